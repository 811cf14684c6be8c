//! A world of one driver (and its successors), fake members, a network, a client and faults, from one seed.

use super::cluster::{NODES, Rng, Shard};
use super::oracle::{Oracle, Pending};
use bytes::Bytes;
use freebs_driver::{Action, Change, Driver, DriverConfig, Event, Mutant, Op, Piece, Reply, ShardSpec, VolumeSpec};
use freebs_format::wire::Message;
use freebs_types::{DriverId, Generation, Hash32, Nanos, NodeId, Peer, ShardId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;

/// What can go wrong, per mille where it is a chance.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shards: u32,
    pub stripe: u64,
    pub blocks: u64,
    pub run_ms: u64,
    pub depth: u64,
    pub limit_ms: u64,
    pub loss: u64,
    pub twice: u64,
    /// Mean time between faults of a kind, 0 for none.
    pub kill_ms: u64,
    pub flap_ms: u64,
    pub change_ms: u64,
    pub replace_ms: u64,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng(seed ^ 0x5eed);
        let mut often = |odds: u64, ms: u64| if rng.odds(odds) { rng.between(ms / 2, ms * 3) } else { 0 };
        let (kill_ms, flap_ms, change_ms, replace_ms) =
            (often(700, 600), often(600, 300), often(600, 500), often(500, 1500));
        Self {
            shards: rng.between(1, 3) as u32,
            stripe: 4096 << rng.below(3),
            blocks: rng.between(4, 48),
            run_ms: 6000,
            depth: rng.between(2, 24),
            limit_ms: [300, 1000, 4000][rng.below(3) as usize],
            loss: if rng.odds(300) { 20 } else { 0 },
            twice: if rng.odds(300) { 30 } else { 0 },
            kill_ms,
            flap_ms,
            change_ms,
            replace_ms,
        }
    }
}

impl Plan {
    /// A world in which requests often run out of time, and blocks are few.
    pub fn harsh(seed: u64) -> Self {
        let blocks = 4 + seed % 8;
        Self { limit_ms: 300, blocks, kill_ms: 400, flap_ms: 300, loss: 0, replace_ms: 0, ..Self::of(seed) }
    }
}

enum Happening {
    ToNode {
        link: u64,
        message: Message,
    },
    ToDriver {
        link: u64,
        message: Message,
    },
    Connected {
        life: u64,
        peer: Peer,
    },
    Broken {
        link: u64,
    },
    Replicate {
        shard: usize,
        node: u64,
        start: u64,
        head: u64,
        view: u64,
        upto: usize,
    },
    Durable {
        shard: usize,
        node: u64,
        start: u64,
        view: u64,
        upto: usize,
    },
    Client,
    Tick(u64),
    /// A driver dies that was replaced before.
    Die(u64),
    Kill,
    Restart(u64),
    Flap,
    /// A view change without any need.
    Unrest(usize),
    Change(usize),
    Activate(usize),
    Join(usize, u64),
    Replace,
}

struct Link {
    life: u64,
    peer: Peer,
    open: bool,
    /// Delivery in order: nothing comes before what was sent earlier.
    last: [u64; 2],
}

enum Open {
    Read { offset: u64, len: u64, start: u64 },
    Status { offset: u64, start: u64 },
    Write(Pending),
    Interval(Vec<Pending>),
    Other,
}

pub struct World {
    pub plan: Plan,
    pub oracle: Oracle,
    pub counters: freebs_driver::Counters,
    pub deliveries: u64,
    pub intervals: u64,
    rng: Rng,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    serial: u64,
    shards: Vec<Shard>,
    workers: BTreeMap<NodeId, u16>,
    /// By generation, which also names a driver's life. The last one is the client's; older ones that live do not know
    /// that they were replaced, and clients of theirs go on, too.
    drivers: BTreeMap<u64, Driver>,
    life: u64,
    /// The newest life that was ready.
    newest_ready: u64,
    pub answers_of_older: u64,
    links: BTreeMap<u64, Link>,
    /// With the life that was asked.
    open: BTreeMap<u64, (u64, Open)>,
    answered: BTreeSet<u64>,
    token: u64,
    ticks: BTreeMap<u64, u64>,
    mutant: Option<Mutant>,
    calm: bool,
}

fn config(
    plan: &Plan,
    life: u64,
    shards: &[Shard],
    workers: &BTreeMap<NodeId, u16>,
    rng: &mut Rng,
    mutant: Option<Mutant>,
    alone: bool,
) -> DriverConfig {
    let spec = |s: &Shard| {
        let view = if rng.odds(500) { s.active() } else { &s.views[0] };
        ShardSpec {
            id: s.id,
            view: freebs_types::ViewNumber(view.number),
            members: view.members.iter().map(|n| NodeId(*n)).collect(),
        }
    };
    DriverConfig {
        driver: DriverId(1000 + life),
        generation: Generation(life),
        identity: Hash32::default(),
        volume: VolumeSpec {
            id: VolumeId(1),
            size: plan.blocks * 4096,
            stripe: plan.stripe,
            shards: shards.iter().map(spec).collect(),
        },
        workers: workers.clone(),
        local: rng.odds(300).then(|| NodeId(rng.between(1, NODES))),
        alone,
        request_limit: Nanos::from_millis(plan.limit_ms),
        mutant,
    }
}

impl World {
    pub fn new(seed: u64, plan: Plan, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng(seed);
        let shards: Vec<_> = (0..plan.shards).map(|i| Shard::new(ShardId::new(1, i))).collect();
        let workers = (1..=NODES).map(|n| (NodeId(n), rng.between(1, 2) as u16)).collect();
        let driver = Driver::new(config(&plan, 1, &shards, &workers, &mut rng, mutant, true), Nanos(0));
        let mut world = Self {
            plan,
            oracle: Oracle::default(),
            counters: freebs_driver::Counters::default(),
            deliveries: 0,
            intervals: 0,
            rng,
            now: 0,
            queue: BTreeMap::new(),
            serial: 0,
            shards,
            workers,
            drivers: BTreeMap::from([(1, driver)]),
            life: 1,
            newest_ready: 0,
            answers_of_older: 0,
            links: BTreeMap::new(),
            open: BTreeMap::new(),
            answered: BTreeSet::new(),
            token: 0,
            ticks: BTreeMap::new(),
            mutant,
            calm: false,
        };
        world.drive(1, Event::Tick);
        let p = world.plan.clone();
        (0..p.depth).for_each(|_| world.soon(0, 5 * MS, Happening::Client));
        world.later(p.kill_ms, Happening::Kill);
        world.later(p.flap_ms, Happening::Flap);
        world.later(p.replace_ms, Happening::Replace);
        (0..p.shards as usize).for_each(|s| world.later(p.change_ms, Happening::Unrest(s)));
        world
    }

    fn at(&mut self, at: u64, what: Happening) {
        self.serial += 1;
        self.queue.insert((at, self.serial), what);
    }

    fn soon(&mut self, from: u64, to: u64, what: Happening) {
        let at = self.now + self.rng.between(from, to);
        self.at(at, what);
    }

    /// A fault, after about so many milliseconds.
    fn later(&mut self, ms: u64, what: Happening) {
        if ms > 0 && !self.calm {
            self.soon(ms * MS / 4, ms * MS * 2, what);
        }
    }

    /// Runs with faults, then until everything that was asked is answered, then reads all.
    pub fn run(&mut self) {
        while let Some((&(at, _), _)) = self.queue.first_key_value()
            && at < self.plan.run_ms * MS
            && self.oracle.errors.is_empty()
        {
            self.one();
        }
        self.calm = true;
        // What was given up has to find its fate, too, before everything can be read.
        let end = self.now + (self.plan.limit_ms + 20_000) * MS;
        self.run_until(end);
        self.expect(self.open.is_empty(), "requests without an answer");
        let size = self.plan.blocks * 4096;
        (0..size).step_by(16384).for_each(|at| self.read(self.life, at, 16384.min(size - at)));
        self.run_until(end + 10_000 * MS);
        self.expect(self.open.is_empty(), "the last reads have no answer");
        let info = self.drivers[&self.life].info();
        let left = info.bytes + info.requests + info.shards.iter().map(|s| s.writes).sum::<usize>();
        self.expect(left == 0, "something is left over in the driver");
        self.count(self.life);
        self.oracle.check();
    }

    fn expect(&mut self, what: bool, message: &str) {
        if !what {
            let message = format!("{message}: {:?}", self.drivers[&self.life].info());
            self.oracle.errors.push(message);
        }
    }

    fn count(&mut self, life: u64) {
        let c = self.drivers[&life].info().counters;
        self.counters.retries += c.retries;
        self.counters.crc_errors += c.crc_errors;
        self.counters.read_failovers += c.read_failovers;
        self.counters.given_up += c.given_up;
        self.counters.view_changes += c.view_changes;
    }

    fn run_until(&mut self, end: u64) {
        while self.oracle.errors.is_empty()
            && let Some((&(at, _), _)) = self.queue.first_key_value()
            && at < end
        {
            self.one();
        }
        self.now = self.now.max(end);
    }

    fn one(&mut self) {
        let ((at, _), what) = self.queue.pop_first().unwrap();
        self.now = self.now.max(at);
        match what {
            Happening::ToNode { link, message } => self.reach_node(link, message),
            Happening::ToDriver { link, message } => self.reach_driver(link, message),
            Happening::Connected { life, peer } => self.connected(life, peer),
            Happening::Broken { link } => self.broken(link),
            Happening::Replicate { shard, node, start, head, view, upto } => {
                if self.shards[shard].replicas[node as usize].start == start
                    && self.shards[shard].append(node, head, view, upto)
                {
                    self.write_log(shard, node);
                }
            }
            Happening::Durable { shard, node, start, view, upto } => {
                let r = &mut self.shards[shard].replicas[node as usize];
                if r.start == start && r.view == view && r.active() && r.durable < upto {
                    r.durable = upto;
                    self.tell(shard, node);
                }
            }
            Happening::Client => self.client(),
            Happening::Tick(life) => {
                if self.ticks.get(&life).is_some_and(|at| *at <= self.now) {
                    self.ticks.remove(&life);
                }
                self.drive(life, Event::Tick);
            }
            Happening::Die(life) => self.die(life),
            Happening::Kill => self.kill(),
            Happening::Restart(node) => self.restart(node),
            Happening::Flap => self.flap(),
            Happening::Unrest(s) => {
                self.later(self.plan.change_ms, Happening::Unrest(s));
                if !self.calm {
                    self.change(s);
                }
            }
            Happening::Change(s) => self.change(s),
            Happening::Activate(s) => self.activate(s),
            Happening::Join(s, node) => self.join(s, node),
            Happening::Replace => self.replace(),
        }
    }

    // The driver.

    fn drive(&mut self, life: u64, event: Event) {
        let mut out = Vec::new();
        let Some(driver) = self.drivers.get_mut(&life) else { return };
        driver.step(Nanos(self.now), event, &mut out);
        for action in out {
            match action {
                Action::Connect(peer) => {
                    self.soon(MS / 10, 3 * MS, Happening::Connected { life, peer });
                }
                Action::Send { to, message } => self.send(life, to, message),
                Action::Done { token, result } => self.done(life, token, result),
                Action::Ready => self.newest_ready = self.newest_ready.max(life),
                Action::Fenced if life < self.life => self.soon(0, MS, Happening::Die(life)),
                Action::Fenced | Action::Closed => self.oracle.errors.push("fenced by nobody".into()),
            }
        }
        if let Some(due) = self.drivers.get(&life).and_then(Driver::next_deadline) {
            // A deadline that has passed must not come again and again.
            let due = due.0.max(self.now + 1);
            if self.ticks.get(&life).is_none_or(|t| due < *t) {
                self.ticks.insert(life, due);
                self.at(due, Happening::Tick(life));
            }
        }
    }

    fn link_of(&self, life: u64, peer: Peer) -> Option<u64> {
        self.links.iter().find(|(_, l)| l.open && l.peer == peer && l.life == life).map(|(id, _)| *id)
    }

    fn connected(&mut self, life: u64, peer: Peer) {
        if !self.drivers.contains_key(&life) {
            return;
        }
        if self.rng.odds(50) || !self.shards[0].replicas[peer.node.0 as usize].alive {
            return self.drive(life, Event::LinkDown(peer));
        }
        if self.link_of(life, peer).is_some() {
            // The driver had forgotten a peer that is a member again.
            return self.drive(life, Event::LinkUp(peer));
        }
        self.serial += 1;
        self.links.insert(self.serial, Link { life, peer, open: true, last: [0; 2] });
        self.drive(life, Event::LinkUp(peer));
    }

    fn send(&mut self, life: u64, to: Peer, message: Message) {
        let link = self.link_of(life, to).expect("sends only where the link is up");
        self.carry(link, 0, message);
    }

    /// One message over a link, 0 to the node, 1 to the driver.
    fn carry(&mut self, link: u64, way: usize, message: Message) {
        if self.rng.odds(self.plan.loss) && !self.calm {
            return;
        }
        let times = 1 + u64::from(self.rng.odds(self.plan.twice));
        for _ in 0..times {
            let slow = if self.rng.odds(20) { 40 * MS } else { MS / 2 };
            let at = self.now + self.rng.between(MS / 20, slow);
            let Some(l) = self.links.get_mut(&link) else { return };
            let at = at.max(l.last[way]);
            l.last[way] = at;
            let message = message.clone();
            let what =
                if way == 0 { Happening::ToNode { link, message } } else { Happening::ToDriver { link, message } };
            self.at(at, what);
        }
    }

    fn reach_driver(&mut self, link: u64, message: Message) {
        if let Some(l) = self.links.get(&link)
            && l.open
        {
            self.deliveries += 1;
            let (life, from) = (l.life, l.peer);
            self.drive(life, Event::Message { from, message });
        }
    }

    fn reach_node(&mut self, link: u64, message: Message) {
        // A link that is broken may still bring what was sent before.
        let Some(peer) = self.links.get(&link).map(|l| l.peer) else { return };
        let id = match &message {
            Message::Attach { shard, .. } | Message::Follow { shard, .. } | Message::Detach { shard, .. } => *shard,
            Message::Lease { shard, .. } => *shard,
            Message::Write(w) => w.shard,
            Message::Read(r) => r.shard,
            other => panic!("a driver sends no {}", other.name()),
        };
        let (s, node) = (id.index as usize, peer.node.0);
        assert_eq!(Peer::of(peer.node, id, self.workers[&peer.node]), peer);
        let (answers, grown) = self.shards[s].receive(node, link, message, self.now, &mut self.rng);
        if self.links[&link].open {
            answers.into_iter().for_each(|m| self.carry(link, 1, m));
        }
        if grown {
            self.write_log(s, node);
            let r = &self.shards[s].replicas[node as usize];
            let (view, upto) = (r.view, r.log.len());
            for other in (1..=NODES).filter(|n| *n != node) {
                let start = self.shards[s].replicas[other as usize].start;
                let slow = if self.rng.odds(50) { 80 * MS } else { MS };
                let what = Happening::Replicate { shard: s, node: other, start, head: node, view, upto };
                self.soon(MS / 20, slow, what);
            }
        }
    }

    /// The log of a member has grown: it is durable a little later.
    fn write_log(&mut self, shard: usize, node: u64) {
        let r = &self.shards[shard].replicas[node as usize];
        let (start, view, upto) = (r.start, r.view, r.log.len());
        let slow = if self.rng.odds(100) { 30 * MS } else { MS / 2 };
        self.soon(MS / 20, slow, Happening::Durable { shard, node, start, view, upto });
    }

    fn tell(&mut self, shard: usize, node: u64) {
        let message = self.shards[shard].durable_item(node);
        self.tell_followers(shard, node, &message);
    }

    fn tell_followers(&mut self, shard: usize, node: u64, message: &Message) {
        for link in self.shards[shard].replicas[node as usize].followers.clone() {
            if self.links.get(&link).is_some_and(|l| l.open) {
                self.carry(link, 1, message.clone());
            }
        }
    }

    // The client.

    fn client(&mut self) {
        if self.calm {
            return;
        }
        let lives: Vec<u64> = self.drivers.keys().copied().collect();
        let life = lives[self.rng.below(lives.len() as u64) as usize];
        if self.open.len() as u64 >= self.plan.depth {
            return self.soon(MS / 2, 5 * MS, Happening::Client);
        }
        let sectors = self.plan.blocks * 8;
        let mut first = self.rng.below(sectors);
        let longest = [3, 24, 96][self.rng.below(3) as usize];
        let mut len = self.rng.between(1, longest);
        if self.rng.odds(500) {
            first = first / 8 * 8;
            len = len.div_ceil(8) * 8;
        }
        let (offset, len) = (first * 512, len.min(sectors - first) * 512);
        self.token += 1;
        let token = self.token;
        match self.rng.below(100) {
            0..45 => self.read(life, offset, len),
            45..88 => {
                let (pending, data) = self.oracle.write(offset, len, false);
                self.open.insert(token, (life, Open::Write(pending)));
                let fua = self.rng.odds(100);
                self.drive(life, Event::Client { token, op: Op::Write { offset, data: data.into(), fua } });
            }
            n @ 88..95 => {
                let (pending, data) = self.oracle.write(offset, len, true);
                self.open.insert(token, (life, Open::Write(pending)));
                let op = match n {
                    88..90 => Op::Trim { offset, len },
                    90..92 => Op::Zero { offset, len, may_trim: self.rng.odds(500) },
                    _ => Op::Write { offset, data: Bytes::from(vec![0; data.len()]), fua: false },
                };
                self.drive(life, Event::Client { token, op });
            }
            95..98 => {
                let start = self.oracle.tick();
                self.open.insert(token, (life, Open::Status { offset, start }));
                self.drive(life, Event::Client { token, op: Op::Status { offset, len } });
            }
            98 if self.plan.shards == 1 => self.interval(life, offset, len),
            _ => {
                self.open.insert(token, (life, Open::Other));
                self.drive(life, Event::Client { token, op: Op::Flush });
            }
        }
    }

    /// Changes here and elsewhere, which may overlap, at once.
    fn interval(&mut self, life: u64, offset: u64, len: u64) {
        let mut ranges = vec![(offset, len)];
        for _ in 0..self.rng.between(1, 4) {
            let sectors = self.plan.blocks * 8;
            let first = self.rng.below(sectors);
            ranges.push((first * 512, self.rng.between(1, 20).min(sectors - first) * 512));
        }
        let mut all = Vec::new();
        let mut changes = Vec::new();
        for (offset, len) in ranges {
            let kind = self.rng.below(4);
            let (pending, data) = self.oracle.write(offset, len, kind < 2);
            all.push(pending);
            changes.push(match kind {
                0 => Change::Trim { offset, len },
                1 => Change::Zero { offset, len },
                _ => Change::Write { offset, data: data.into() },
            });
        }
        self.open.insert(self.token, (life, Open::Interval(all)));
        self.drive(life, Event::Client { token: self.token, op: Op::Interval { changes: changes.into() } });
    }

    fn read(&mut self, life: u64, offset: u64, len: u64) {
        self.token += 1;
        let start = self.oracle.tick();
        self.open.insert(self.token, (life, Open::Read { offset, len, start }));
        self.drive(life, Event::Client { token: self.token, op: Op::Read { offset, len } });
    }

    fn done(&mut self, life: u64, token: u64, result: freebs_types::Result<Reply>) {
        if !self.answered.insert(token) {
            self.oracle.errors.push(format!("token {token} was answered twice"));
        }
        let Some((asked, open)) = self.open.remove(&token) else {
            return self.oracle.errors.push(format!("token {token} was never asked"));
        };
        assert_eq!(asked, life);
        if result.is_ok() && life < self.newest_ready {
            let error = format!("driver {life} gave a success after {} was ready", self.newest_ready);
            self.oracle.errors.push(error);
        }
        self.answers_of_older += u64::from(result.is_ok() && life < self.life);
        match (open, result) {
            (Open::Read { offset, len, start }, Ok(Reply::Read(pieces))) => {
                let mut bytes = Vec::new();
                for piece in pieces {
                    match piece {
                        Piece::Data(d) => bytes.extend_from_slice(&d),
                        Piece::Zero(n) => bytes.resize(bytes.len() + n as usize, 0),
                    }
                }
                if bytes.len() as u64 != len {
                    self.oracle.errors.push(format!("{} bytes in place of {len}", bytes.len()));
                }
                self.oracle.read(offset, start, &bytes);
            }
            (Open::Status { offset, start }, Ok(Reply::Status(runs))) => {
                let mut at = offset;
                for run in runs {
                    if run.zero {
                        self.oracle.zeroes(at, run.bytes, start);
                    }
                    at += run.bytes;
                }
            }
            (Open::Write(pending), result) => self.oracle.wrote(&pending, result.is_ok()),
            (Open::Interval(all), Ok(Reply::Committed(_))) => {
                self.intervals += 1;
                all.iter().for_each(|p| self.oracle.wrote(p, true));
            }
            (Open::Interval(all), Err(_)) => all.iter().for_each(|p| self.oracle.wrote(p, false)),
            (Open::Other, Ok(Reply::Done)) => {}
            (_, Err(_)) => {}
            (_, Ok(reply)) => self.oracle.errors.push(format!("{reply:?} is no answer to {token}")),
        }
        self.soon(MS / 10, 8 * MS, Happening::Client);
    }

    // Faults.

    fn broken(&mut self, link: u64) {
        let Some(l) = self.links.get(&link) else { return };
        let (peer, life) = (l.peer, l.life);
        if l.open {
            self.links.get_mut(&link).unwrap().open = false;
            self.drive(life, Event::LinkDown(peer));
        }
    }

    /// Breaks a link. What is under way to the driver is lost; what is under way to the node may still come.
    fn break_link(&mut self, link: u64) {
        if self.rng.odds(500) {
            let lost = |h: &Happening| matches!(h, Happening::ToNode { link: l, .. } if *l == link);
            self.queue.retain(|_, h| !lost(h));
        }
        for s in &mut self.shards {
            s.replicas.iter_mut().for_each(|r| {
                r.followers.remove(&link);
            });
        }
        self.queue.retain(|_, h| !matches!(h, Happening::ToDriver { link: l, .. } if *l == link));
        self.broken(link);
    }

    fn flap(&mut self) {
        let open: Vec<u64> = self.links.iter().filter(|(_, l)| l.open).map(|(id, _)| *id).collect();
        if !open.is_empty() && !self.calm {
            let link = open[self.rng.below(open.len() as u64) as usize];
            self.break_link(link);
        }
        self.later(self.plan.flap_ms, Happening::Flap);
    }

    fn kill(&mut self) {
        self.later(self.plan.kill_ms, Happening::Kill);
        let node = self.rng.between(1, NODES);
        if self.calm || !self.shards[0].replicas[node as usize].alive {
            return;
        }
        for s in 0..self.shards.len() {
            let led = self.shards[s].active().members[0] == node;
            self.shards[s].kill(node, &mut self.rng);
            if led || self.shards[s].change.is_some() {
                self.soon(20 * MS, 300 * MS, Happening::Change(s));
            }
        }
        let links: Vec<u64> =
            self.links.iter().filter(|(_, l)| l.open && l.peer.node.0 == node).map(|(id, _)| *id).collect();
        for link in links {
            self.queue.retain(|_, h| !matches!(h, Happening::ToNode { link: l, .. } if *l == link));
            self.soon(0, 20 * MS, Happening::Broken { link });
        }
        self.soon(10 * MS, 700 * MS, Happening::Restart(node));
    }

    fn restart(&mut self, node: u64) {
        // A connection of before is never of use again.
        let old: Vec<u64> =
            self.links.iter().filter(|(_, l)| l.open && l.peer.node.0 == node).map(|(id, _)| *id).collect();
        old.into_iter().for_each(|link| self.broken(link));
        for s in 0..self.shards.len() {
            let r = &mut self.shards[s].replicas[node as usize];
            r.alive = true;
            r.start += 1;
            r.lease.forget(self.now);
            // What its log holds is all it knows: it answers in its view again only after it came level.
            r.promised = r.promised.max(r.view + 1);
            self.soon(MS, 100 * MS, Happening::Join(s, node));
        }
    }

    fn join(&mut self, s: usize, node: u64) {
        let shard = &mut self.shards[s];
        let r = &mut shard.replicas[node as usize];
        if !r.alive || (r.active() && r.view == shard.views.last().unwrap().number) {
            return;
        }
        let promised = r.promised;
        if shard.change.is_none() && promised == r.view + 1 {
            // A promise that was only the mark of a restart.
            r.promised = r.view;
        }
        if shard.join(node) {
            return self.tell(s, node);
        }
        shard.replicas[node as usize].promised = promised;
        if !self.shards[s].active().members.contains(&node) {
            // Somebody has to take it in again.
            self.soon(50 * MS, 300 * MS, Happening::Change(s));
        }
        self.soon(20 * MS, 100 * MS, Happening::Join(s, node));
    }

    fn change(&mut self, s: usize) {
        let shard = &self.shards[s];
        let headless = !shard.replicas[shard.active().members[0] as usize].leads;
        if !self.calm || headless || shard.active().members.len() < 3 {
            if self.shards[s].seal(&mut self.rng) {
                self.soon(MS, 60 * MS, Happening::Activate(s));
            } else if headless {
                self.soon(20 * MS, 100 * MS, Happening::Change(s));
            }
        }
    }

    fn activate(&mut self, s: usize) {
        let Some(present) = self.shards[s].activate(&mut self.rng) else {
            return self.soon(10 * MS, 100 * MS, Happening::Change(s));
        };
        let news = Message::View(self.shards[s].news(self.shards[s].active().number));
        for node in 1..=NODES {
            if present.contains(&node) {
                if self.rng.odds(800) {
                    self.tell_followers(s, node, &news);
                }
                self.tell(s, node);
            } else {
                self.soon(MS, 400 * MS, Happening::Join(s, node));
            }
        }
    }

    /// The client is served by another driver, with a generation of its own. The one before dies, or does not know.
    fn replace(&mut self) {
        self.later(self.plan.replace_ms, Happening::Replace);
        if self.calm {
            return;
        }
        let old = self.life;
        if self.rng.odds(500) {
            self.die(old);
        } else {
            self.soon(100 * MS, 4000 * MS, Happening::Die(old));
        }
        self.life += 1;
        let (life, alone) = (self.life, self.drivers.is_empty());
        let config = config(&self.plan, life, &self.shards, &self.workers, &mut self.rng, self.mutant, alone);
        self.drivers.insert(life, Driver::new(config, Nanos(self.now)));
        self.drive(life, Event::Tick);
    }

    fn die(&mut self, life: u64) {
        if !self.drivers.contains_key(&life) {
            return;
        }
        self.count(life);
        self.drivers.remove(&life);
        self.ticks.remove(&life);
        let gone: Vec<u64> = self.open.iter().filter(|(_, (l, _))| *l == life).map(|(token, _)| *token).collect();
        for token in gone {
            let open = self.open.remove(&token);
            if let Some((_, Open::Interval(all))) = &open {
                all.iter().for_each(|p| self.oracle.wrote(p, false));
            }
            if let Some((_, Open::Write(pending))) = open {
                self.oracle.wrote(&pending, false);
            }
            self.soon(MS / 10, 5 * MS, Happening::Client);
        }
        let links: Vec<u64> = self.links.iter().filter(|(_, l)| l.open && l.life == life).map(|(id, _)| *id).collect();
        for link in links {
            if self.rng.odds(300) {
                self.queue.retain(|_, h| !matches!(h, Happening::ToNode { link: l, .. } if *l == link));
            }
            self.links.get_mut(&link).unwrap().open = false;
            self.shards.iter_mut().for_each(|s| {
                s.replicas.iter_mut().for_each(|r| {
                    r.followers.remove(&link);
                });
            });
        }
    }
}

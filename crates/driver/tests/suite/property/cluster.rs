//! Fake members: three nodes with a log per shard, a head that orders, views that change, heads that were left
//! behind and do not know it. It keeps the promises a driver may rely on, and no others: messages are late, come
//! twice or not at all, members lag, restart, refuse and send rotten bytes.

use bytes::Bytes;
use freebs_format::wire::{
    DurableItem, Leased, Message, Piece, ReadReply, ReadRequest, Refusal, Refused, Request, ViewNews, WriteRequest,
};
use freebs_format::{ExtentKind, Member, ViewBody, block_crc};
use freebs_types::{
    BLOCK, DriverId, Generation, Hash32, Nanos, NodeId, RequestNumber, Sequence, ShardId, StartNumber, ViewNumber,
    timing,
};
use std::collections::BTreeSet;
use std::rc::Rc;

pub const NODES: u64 = 3;

/// Numbers from a seed (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn between(&mut self, a: u64, b: u64) -> u64 {
        a + self.below(b - a + 1)
    }
    /// So many in a thousand.
    pub fn odds(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

pub enum Body {
    View,
    Attach(Generation, DriverId),
    Data(WriteRequest),
}

pub struct Frame {
    pub view: u64,
    pub body: Body,
}

/// Until when leases may run that a member gave: to one generation, and to those before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    generation: Generation,
    granted: u64,
    older: u64,
}

impl Lease {
    /// It knows nothing of what it gave before a start.
    pub fn forget(&mut self, now: u64) {
        let end = now + timing::LEASE_MS * 1_000_000;
        *self = Self { generation: Generation(0), granted: end, older: end };
    }
}

#[derive(Clone, Default)]
pub struct Replica {
    pub alive: bool,
    /// Raised at every start: what was under way before it is lost.
    pub start: u64,
    pub log: Vec<Rc<Frame>>,
    /// Frames that would survive a power loss.
    pub durable: usize,
    pub view: u64,
    /// It has promised to do nothing below this view any more.
    pub promised: u64,
    /// It is the head of its view, and was not restarted since it opened it (W2).
    pub leads: bool,
    /// Links of drivers that want to hear of it.
    pub followers: BTreeSet<u64>,
    pub lease: Lease,
}

impl Replica {
    /// It takes part in the view that it is in.
    pub fn active(&self) -> bool {
        self.alive && self.view > 0 && self.promised <= self.view
    }

    pub fn generation(&self) -> (Generation, DriverId, u64) {
        let attach = |(i, f): (usize, &Rc<Frame>)| match f.body {
            Body::Attach(generation, driver) => Some((generation, driver, i as u64 + 1)),
            _ => None,
        };
        self.log.iter().enumerate().rev().find_map(attach).unwrap_or_default()
    }

    fn requests(&self) -> impl Iterator<Item = (u64, &WriteRequest)> {
        self.log.iter().enumerate().rev().filter_map(|(i, f)| match &f.body {
            Body::Data(w) => Some((i as u64 + 1, w)),
            _ => None,
        })
    }

    fn block(&self, at: u32) -> (ExtentKind, Option<Bytes>) {
        for (_, w) in self.requests() {
            let mut before = 0;
            for e in &w.extents {
                let covers = e.range.start.0 <= at && u64::from(at) < e.range.end();
                if covers && e.kind != ExtentKind::Data {
                    return (e.kind, None);
                }
                if covers {
                    let mut skip = (before + at - e.range.start.0) as usize * BLOCK;
                    for d in &w.data {
                        if skip < d.len() {
                            return (ExtentKind::Data, Some(d.slice(skip..skip + BLOCK)));
                        }
                        skip -= d.len();
                    }
                }
                if e.kind == ExtentKind::Data {
                    before += e.range.len;
                }
            }
        }
        (ExtentKind::Trim, None)
    }
}

pub struct View {
    pub number: u64,
    pub members: Vec<u64>,
    pub base: u64,
}

impl View {
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }
}

/// A view change between the promise and the new view.
pub struct Change {
    pub number: u64,
    pub log: Vec<Rc<Frame>>,
    /// Head first, with their start numbers.
    pub responders: Vec<(u64, u64)>,
}

pub struct Shard {
    pub id: ShardId,
    pub views: Vec<View>,
    pub last_number: u64,
    pub change: Option<Change>,
    /// By node; 0 is nobody.
    pub replicas: Vec<Replica>,
}

impl Shard {
    pub fn new(id: ShardId) -> Self {
        let first = Rc::new(Frame { view: 1, body: Body::View });
        let replica = Replica {
            alive: true,
            start: 1,
            log: vec![first],
            durable: 1,
            view: 1,
            promised: 1,
            leads: false,
            followers: BTreeSet::new(),
            lease: Lease::default(),
        };
        let mut replicas = vec![replica; NODES as usize + 1];
        replicas[1].leads = true;
        let views = vec![View { number: 1, members: vec![1, 2, 3], base: 1 }];
        Self { id, views, last_number: 1, change: None, replicas }
    }

    pub fn active(&self) -> &View {
        self.views.last().unwrap()
    }

    pub fn news(&self, number: u64) -> ViewNews {
        let view = self.views.iter().find(|v| v.number == number).unwrap();
        let body = ViewBody {
            pred: ViewNumber(0),
            seal_sequence: Sequence(view.base - 1),
            seal_hid: Hash32::default(),
            secret_hash: Hash32::default(),
            quorum: view.quorum() as u8,
            min_copies: view.quorum() as u8,
            generation: Generation(0),
            members: view
                .members
                .iter()
                .map(|n| Member { node: NodeId(*n), start: StartNumber(1), early: false })
                .collect(),
            shared: None,
            volume: None,
        };
        ViewNews { shard: self.id, view: ViewNumber(number), sequence: Sequence(view.base), body }
    }

    fn refuse(&self, node: u64, request: Request, reason: Refusal) -> Message {
        let replica = &self.replicas[node as usize];
        Message::Refused(Refused {
            shard: self.id,
            request,
            reason,
            view: ViewNumber(replica.view),
            generation: replica.generation().0,
        })
    }

    pub fn durable_item(&self, node: u64) -> Message {
        let replica = &self.replicas[node as usize];
        let (view, sequence) = (ViewNumber(replica.view), Sequence(replica.durable as u64));
        Message::Durable(vec![DurableItem { shard: self.id, view, sequence, room: None }])
    }

    /// What a member answers to a message that came over a link. `true`: its log has grown.
    pub fn receive(&mut self, node: u64, link: u64, message: Message, now: u64, rng: &mut Rng) -> (Vec<Message>, bool) {
        if !self.replicas[node as usize].alive {
            return (Vec::new(), false);
        }
        let before = self.replicas[node as usize].log.len();
        let out = match message {
            Message::Attach { view, generation, driver, .. } => self.attach(node, link, view, generation, driver, rng),
            Message::Follow { generation, .. } => self.follow(node, link, generation, rng),
            Message::Detach { .. } => {
                self.replicas[node as usize].followers.remove(&link);
                Vec::new()
            }
            Message::Lease { generation, driver, stamp, .. } => {
                vec![self.lease(node, generation, driver, stamp, now, rng)]
            }
            Message::Write(w) => self.write(node, w, rng),
            Message::Read(r) => vec![self.read(node, r, rng)],
            other => panic!("a driver sends no {}", other.name()),
        };
        (out, self.replicas[node as usize].log.len() > before)
    }

    fn attach(
        &mut self,
        node: u64,
        link: u64,
        view: ViewNumber,
        generation: Generation,
        driver: DriverId,
        rng: &mut Rng,
    ) -> Vec<Message> {
        let replica = &self.replicas[node as usize];
        let (known, user, mut floor) = replica.generation();
        if generation < known {
            return vec![self.refuse(node, Request::Attach, Refusal::Fenced)];
        }
        if !replica.active() || !replica.leads || rng.odds(30) {
            return vec![self.refuse(node, Request::Attach, Refusal::NotReady)];
        }
        if view.0 != replica.view && rng.odds(700) {
            let refused = self.refuse(node, Request::Attach, Refusal::WrongView);
            return if rng.odds(500) { vec![refused] } else { vec![refused, Message::View(self.news(replica.view))] };
        }
        let number = replica.view;
        let replica = &mut self.replicas[node as usize];
        replica.followers.insert(link);
        if (generation, driver) != (known, user) {
            replica.log.push(Rc::new(Frame { view: number, body: Body::Attach(generation, driver) }));
            floor = replica.log.len() as u64;
        }
        let attached = Message::Attached { news: self.news(number), generation, floor: Sequence(floor) };
        vec![attached, self.durable_item(node)]
    }

    fn follow(&mut self, node: u64, link: u64, generation: Generation, rng: &mut Rng) -> Vec<Message> {
        let (known, _, _) = self.replicas[node as usize].generation();
        if generation < known {
            return vec![self.refuse(node, Request::Attach, Refusal::Fenced)];
        }
        self.replicas[node as usize].followers.insert(link);
        let replica = &self.replicas[node as usize];
        if !replica.active() || rng.odds(30) {
            return vec![self.refuse(node, Request::Attach, Refusal::NotReady)];
        }
        let news = self.news(replica.view);
        vec![Message::Attached { news, generation: known, floor: Sequence(0) }, self.durable_item(node)]
    }

    /// L2: only to the newest generation that the member knows, if it takes part and has its attachment for good.
    fn lease(
        &mut self,
        node: u64,
        generation: Generation,
        driver: DriverId,
        stamp: Nanos,
        now: u64,
        rng: &mut Rng,
    ) -> Message {
        let replica = &self.replicas[node as usize];
        let (known, user, at) = replica.generation();
        if generation < known {
            return self.refuse(node, Request::Attach, Refusal::Fenced);
        }
        let durable = replica.durable as u64 >= at;
        if !replica.active() || (known, user) != (generation, driver) || !durable || rng.odds(20) {
            return self.refuse(node, Request::Attach, Refusal::NotReady);
        }
        let view = ViewNumber(replica.view);
        let lease = &mut self.replicas[node as usize].lease;
        if lease.generation != known {
            *lease = Lease { generation: known, granted: 0, older: lease.older.max(lease.granted) };
        }
        lease.granted = now + timing::LEASE_MS * 1_000_000;
        let older_ms = lease.older.saturating_sub(now).div_ceil(1_000_000) as u32;
        Message::Leased(Leased { shard: self.id, view, generation, stamp, older_ms })
    }

    fn write(&mut self, node: u64, w: WriteRequest, rng: &mut Rng) -> Vec<Message> {
        let replica = &self.replicas[node as usize];
        let (known, user, _) = replica.generation();
        let request = Request::Write(w.number);
        if w.generation < known {
            return vec![self.refuse(node, request, Refusal::Fenced)];
        }
        if !replica.active() || !replica.leads || (known, user) != (w.generation, w.driver) || rng.odds(10) {
            return vec![self.refuse(node, request, Refusal::NotReady)];
        }
        if w.view.0 != replica.view {
            return vec![self.refuse(node, request, Refusal::WrongView)];
        }
        let mine = || replica.requests().filter(|(_, o)| o.driver == w.driver);
        let ordered = |number: RequestNumber, sequence: u64| {
            let items = vec![(number, Sequence(sequence))];
            vec![Message::Ordered { shard: self.id, view: ViewNumber(replica.view), items }]
        };
        // W3: a repeat is answered with its place, and a request below the lowest open one is of the past.
        if let Some((sequence, _)) = mine().find(|(_, o)| o.number == w.number) {
            return ordered(w.number, sequence);
        }
        if mine().any(|(_, o)| o.lowest_open > w.number) {
            return Vec::new();
        }
        if w.number.0 % 67 == 66 {
            return vec![self.refuse(node, request, Refusal::NoSpace)];
        }
        let (view, number) = (replica.view, w.number);
        let out = ordered(number, replica.log.len() as u64 + 1);
        let replica = &mut self.replicas[node as usize];
        replica.log.push(Rc::new(Frame { view, body: Body::Data(w) }));
        out
    }

    fn read(&mut self, node: u64, r: ReadRequest, rng: &mut Rng) -> Message {
        let replica = &self.replicas[node as usize];
        let request = Request::Read(r.id);
        if r.generation < replica.generation().0 {
            return self.refuse(node, request, Refusal::Fenced);
        }
        if replica.active() && r.view.0 != replica.view {
            return self.refuse(node, request, Refusal::WrongView);
        }
        if !replica.active() || (replica.durable as u64) < r.floor.0 || rng.odds(20) {
            return self.refuse(node, request, Refusal::NotReady);
        }
        // Everything that it has, also what is not durable yet: nothing forbids that.
        let (mut pieces, mut crcs, mut data): (Vec<Piece>, _, Vec<Bytes>) = (Vec::new(), Vec::new(), Vec::new());
        for at in r.range.start.0..r.range.end() as u32 {
            let (kind, bytes) = replica.block(at);
            match pieces.last_mut() {
                Some(p) if p.kind == kind && rng.odds(800) => p.blocks += 1,
                _ => pieces.push(Piece { kind, blocks: 1, changed: false }),
            }
            if let Some(bytes) = bytes.filter(|_| !r.status_only) {
                crcs.push(block_crc(&bytes));
                data.push(bytes);
            }
        }
        if !data.is_empty() && rng.odds(15) {
            let i = rng.below(data.len() as u64) as usize;
            let mut rotten = data[i].to_vec();
            rotten[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8);
            data[i] = rotten.into();
        }
        Message::ReadReply(ReadReply { shard: self.id, id: r.id, pieces, crcs, data })
    }

    /// The member takes what the head of its view had up to a frame. Returns whether anything was new.
    pub fn append(&mut self, node: u64, head: u64, view: u64, upto: usize) -> bool {
        let from = &self.replicas[head as usize];
        let to = &self.replicas[node as usize];
        let fits = from.alive && from.leads && from.view == view && from.log.len() >= upto;
        if !fits || !to.active() || to.view != view || to.log.len() >= upto {
            return false;
        }
        let new = from.log[to.log.len()..upto].to_vec();
        self.replicas[node as usize].log.extend(new);
        true
    }

    /// A member that was away, or was left out of the view change, comes level.
    pub fn join(&mut self, node: u64) -> bool {
        let view = self.active();
        let (number, head) = (view.number, view.members[0]);
        let from = &self.replicas[head as usize];
        let to = &self.replicas[node as usize];
        let fits = view.members.contains(&node) && from.leads && from.active() && from.view == number;
        if !fits || node == head || !to.alive || to.promised > number {
            return false;
        }
        let log = from.log.clone();
        let to = &mut self.replicas[node as usize];
        (to.durable, to.view, to.promised, to.leads) = (log.len(), number, number, false);
        to.log = log;
        true
    }

    /// Power is lost at a node: what was not durable is gone, or not.
    pub fn kill(&mut self, node: u64, rng: &mut Rng) {
        let replica = &mut self.replicas[node as usize];
        let kept = rng.between(replica.durable as u64, replica.log.len() as u64) as usize;
        replica.log.truncate(kept);
        replica.durable = kept;
        replica.alive = false;
        replica.leads = false;
        replica.followers.clear();
        replica.start += 1;
    }

    /// The promise (V2, V3): enough members of the active view stop, and the longest log of theirs counts.
    pub fn seal(&mut self, rng: &mut Rng) -> bool {
        let view = self.active();
        let needed = view.members.len() - view.quorum() + 1;
        let mut alive: Vec<u64> =
            view.members.iter().copied().filter(|n| self.replicas[*n as usize].alive && self.holds_view(*n)).collect();
        if self.change.is_some() || alive.len() < needed {
            return false;
        }
        for i in (1..alive.len()).rev() {
            alive.swap(i, rng.below(i as u64 + 1) as usize);
        }
        alive.truncate(rng.between(needed as u64, alive.len() as u64) as usize);
        self.last_number += 1;
        let number = self.last_number;
        let mut log = Vec::new();
        for n in &alive {
            let replica = &mut self.replicas[*n as usize];
            replica.promised = number;
            replica.leads = false;
            replica.durable = replica.log.len();
            if replica.log.len() > log.len() {
                log = replica.log.clone();
            }
        }
        let responders = alive.iter().map(|n| (*n, self.replicas[*n as usize].start)).collect();
        self.change = Some(Change { number, log, responders });
        true
    }

    /// V4: a log without the active view's frame is empty of that view.
    fn holds_view(&self, node: u64) -> bool {
        let view = self.active();
        self.replicas[node as usize].log.get(view.base as usize - 1).is_some_and(|f| f.view == view.number)
    }

    /// The new view, if those who promised are still there. Returns its members that have it.
    pub fn activate(&mut self, rng: &mut Rng) -> Option<Vec<u64>> {
        let change = self.change.take()?;
        let there = |(n, start): &(u64, u64)| {
            let r = &self.replicas[*n as usize];
            r.alive && r.start == *start && r.promised == change.number
        };
        if !change.responders.iter().all(there) {
            return None;
        }
        let mut present: Vec<u64> = change.responders.iter().map(|(n, _)| *n).collect();
        if present.len() < 2 {
            let other = (1..=NODES).find(|n| !present.contains(n) && self.replicas[*n as usize].alive)?;
            present.push(other);
        }
        let mut members = present.clone();
        if rng.odds(800) {
            members.extend((1..=NODES).filter(|n| !present.contains(n)));
        }
        let mut log = change.log;
        log.push(Rc::new(Frame { view: change.number, body: Body::View }));
        let view = View { number: change.number, members, base: log.len() as u64 };
        // The view frame must be on A members before the view is active (V5).
        if present.len() < view.quorum() {
            return None;
        }
        for n in &present {
            let replica = &mut self.replicas[*n as usize];
            replica.log.clone_from(&log);
            replica.durable = log.len();
            (replica.view, replica.promised) = (change.number, change.number);
            replica.leads = *n == view.members[0];
        }
        self.views.push(view);
        Some(present)
    }
}

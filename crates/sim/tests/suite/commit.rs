//! The driver of an interval over three shards dies at every message of its commit, in each order of messages: heads and
//! drivers are the real ones, logs are durable at once, and who delivers messages goes through all orders.

use bytes::Bytes;
use freebs_chain::{
    Action as Order, Branch, Event as Happens, Found, Host, HostConfig, IntervalAsk, Mutant as ChainMutant, Opened,
    ShardInfo, ShardSnapshots, Who,
};
use freebs_driver::{
    Action, Change, Driver, DriverConfig, Event, Mutant as DriverMutant, Op, Reply, ShardSpec, VolumeSpec,
};
use freebs_format::wire::Message;
use freebs_format::{ExtentKind, Frame, IntervalRecord, IntervalState, interval_record};
use freebs_io::LinkId;
use freebs_lsvd::{Durable, Record};
use freebs_secrets::HostKey;
use freebs_types::{
    BLOCK, ClusterId, DriverId, Error, Generation, Hash32, Nanos, NodeId, Peer, Result, Sequence, ShardId, StartNumber,
    ViewNumber, VolumeId, limits,
};
use std::collections::{BTreeMap, VecDeque};

const NODES: usize = 3;
const STRIPE: u64 = 1 << 20;
/// The first block of each shard is written.
const NEW: u8 = 0xaa;
/// A new driver has its answer within this time, and what nobody asks for is decided: a lease, and a few questions.
const DECIDED_MS: u64 = 2000 + 500;

fn shard(n: usize) -> ShardId {
    ShardId { volume: VolumeId(1), index: n as u32 }
}

fn peer(n: usize) -> Peer {
    Peer { node: NodeId(n as u64 + 1), worker: 0 }
}

/// A chain of one.
struct Node {
    host: Host,
    blocks: BTreeMap<u32, Bytes>,
    done: VecDeque<Durable>,
}

impl Node {
    fn apply(&mut self, frame: &Frame) {
        let data = frame.data.concat();
        for update in frame.head.updates() {
            for (e, at) in update.extents() {
                for i in 0..e.range.len {
                    let lba = e.range.start.0 + i;
                    let from = (at + i) as usize * BLOCK;
                    match e.kind {
                        ExtentKind::Data => {
                            self.blocks.insert(lba, Bytes::copy_from_slice(&data[from..from + BLOCK]));
                        }
                        _ => drop(self.blocks.remove(&lba)),
                    }
                }
            }
        }
    }

    fn records(&self) -> Vec<IntervalRecord> {
        let of = |place| self.blocks.get(&interval_record(place).start.0);
        (0..limits::SHARD_INTERVALS).filter_map(of).filter_map(|b| IntervalRecord::decode(b).unwrap()).collect()
    }

    fn is_prepared(&self) -> bool {
        self.records().iter().any(|r| r.state == IntervalState::Prepared)
    }

    fn has_new(&self) -> bool {
        self.blocks.get(&0).is_some_and(|b| b.iter().all(|b| *b == NEW))
    }
}

/// A driver, and what is on its way from and to each node.
struct Client {
    driver: Driver,
    to: Vec<VecDeque<Message>>,
    from: Vec<VecDeque<Message>>,
    is_ready: bool,
    answer: Option<Result<Reply>>,
}

struct World {
    nodes: Vec<Node>,
    /// By number; the first one may be dead.
    clients: Vec<Client>,
    asks: VecDeque<(usize, ViewNumber, IntervalAsk)>,
    now: Nanos,
    generation: u64,
    driver_mutant: Option<DriverMutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// The next message to this node arrives.
    There(usize),
    /// All that this node has said arrives.
    Back(usize),
}

impl World {
    fn new(chain: Option<ChainMutant>, driver_mutant: Option<DriverMutant>) -> Self {
        let workers: BTreeMap<NodeId, u16> = (0..NODES).map(|n| (peer(n).node, 1)).collect();
        let node = |n: usize| {
            let config = HostConfig {
                cluster: ClusterId([7; 16]),
                me: peer(n),
                start: StartNumber(1),
                workers: workers.clone(),
                node_secret: Hash32([n as u8; 32]),
                host_key: HostKey::new(Hash32([n as u8; 32])),
                mutant: chain,
            };
            Node { host: Host::new(config), blocks: BTreeMap::new(), done: VecDeque::new() }
        };
        let nodes = (0..NODES).map(node).collect();
        let now = Nanos::from_millis(1000);
        let mut w = Self { nodes, clients: Vec::new(), asks: VecDeque::new(), now, generation: 1, driver_mutant };
        (0..NODES).for_each(|n| w.tell(n, ViewNumber(0)));
        w.settle();
        w.attach();
        w.until_ready(&[0, 1, 2]);
        w
    }

    fn tell(&mut self, n: usize, active: ViewNumber) {
        let info = ShardInfo {
            shard: shard(n),
            members: vec![peer(n).node],
            active,
            known: active,
            blocks: 1024,
            highest: active,
            generation: Generation(self.generation),
            has_keys: false,
            joining: Vec::new(),
            view_members: vec![peer(n).node],
            volume: None,
            forced: None,
            branch: Branch::default(),
            snapshots: ShardSnapshots::default(),
            fork: None,
            flatten: false,
        };
        self.happens(n, Happens::Shards(vec![info]));
    }

    /// A new driver begins.
    fn attach(&mut self) {
        let number = self.clients.len() as u64 + 1;
        self.generation = number;
        (0..NODES).for_each(|n| {
            self.happens(n, Happens::LinkUp { link: LinkId(100 + number), who: Who::Driver });
            self.tell(n, ViewNumber(1));
        });
        let spec = |n| ShardSpec { id: shard(n), view: ViewNumber(0), members: vec![peer(n).node] };
        let config = DriverConfig {
            driver: DriverId(number),
            generation: Generation(number),
            identity: Hash32::default(),
            volume: VolumeSpec {
                id: VolumeId(1),
                size: 12 * STRIPE,
                stripe: STRIPE,
                shards: (0..NODES).map(spec).collect(),
            },
            workers: BTreeMap::new(),
            local: None,
            alone: true,
            request_limit: freebs_driver::REQUEST_LIMIT,
            mutant: self.driver_mutant,
        };
        self.clients.push(Client {
            driver: Driver::new(config, self.now),
            to: vec![VecDeque::new(); NODES],
            from: vec![VecDeque::new(); NODES],
            is_ready: false,
            answer: None,
        });
        self.steps(number as usize - 1, Event::Tick);
    }

    fn steps(&mut self, c: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (mut out, client) = (Vec::new(), &mut self.clients[c]);
            client.driver.step(self.now, event, &mut out);
            for action in out {
                match action {
                    Action::Connect(peer) => events.push_back(Event::LinkUp(peer)),
                    Action::Send { to, message } => client.to[to.node.0 as usize - 1].push_back(message),
                    Action::Done { result, .. } => client.answer = Some(result),
                    Action::Ready => client.is_ready = true,
                    Action::Fenced | Action::Closed => {}
                }
            }
        }
    }

    fn happens(&mut self, n: usize, event: Happens) {
        self.nodes[n].host.step(self.now, event);
        self.carry_out(n);
    }

    fn carry_out(&mut self, n: usize) {
        for order in self.nodes[n].host.take_actions() {
            match order {
                Order::Send { to, message } => {
                    if let Some(client) = self.clients.get_mut((to.0 - 101) as usize) {
                        client.from[n].push_back(message);
                    }
                }
                Order::Append(record) => self.append(n, &record),
                Order::Propose { shard, .. } => {
                    let opened = Opened {
                        view: ViewNumber(1),
                        pred: ViewNumber(0),
                        members: vec![peer(n).node],
                        quorum: 1,
                        min_copies: 1,
                        pred_members: vec![peer(n).node],
                        pred_quorum: 0,
                        pred_learning: Vec::new(),
                        pred_unseen: Vec::new(),
                        forced: None,
                        generation: Generation(0),
                        keys: BTreeMap::new(),
                        volume: None,
                    };
                    self.happens(n, Happens::Proposed { shard, result: Ok(opened), seed: Hash32([9; 32]) });
                }
                Order::Activate { shard, view, .. } => {
                    self.happens(n, Happens::Activated { shard, view, result: Ok(()) });
                }
                Order::FindPast(ask) => {
                    self.happens(n, Happens::PastFound { ask, found: Ok(Found::Window(None)) });
                }
                Order::ListIntervals { shard, view, .. } => {
                    self.happens(n, Happens::Intervals { shard, view, found: Ok(Vec::new()) });
                }
                Order::AskInterval { view, ask, .. } => self.asks.push_back((n, view, ask)),
                _ => {}
            }
        }
    }

    fn append(&mut self, n: usize, record: &Record) {
        let done = match record {
            Record::Frame(f) => {
                self.nodes[n].apply(f);
                Durable::Frame { shard: shard(n), view: f.header().view_number(), sequence: f.head.seq() }
            }
            Record::Mark { shard, ticket, .. } => Durable::Mark { shard: *shard, ticket: *ticket },
            Record::Cut { shard, to } => Durable::Cut { shard: *shard, to: *to },
            _ => return,
        };
        self.nodes[n].done.push_back(done);
    }

    /// Nodes do all that they can without another message of a driver.
    fn settle(&mut self) {
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for n in 0..NODES {
                let now = self.now;
                self.nodes[n].host.end_turn(now);
                self.carry_out(n);
                while let Some(done) = self.nodes[n].done.pop_front() {
                    is_busy = true;
                    self.happens(n, Happens::Durable(vec![done]));
                }
            }
            if let Some((n, view, ask)) = self.asks.pop_front() {
                is_busy = true;
                let (now, at) = (self.now, ask.at.index as usize);
                let word = self.nodes[at].host.on_interval_ask(now, &ask);
                self.carry_out(at);
                let word = word.ok_or_else(|| Error::retry("not now"));
                self.happens(n, Happens::IntervalWord { shard: shard(n), view, ask, word });
            }
        }
    }

    fn moves(&self, c: usize) -> Vec<Move> {
        let client = &self.clients[c];
        let there = (0..NODES).filter(|n| !client.to[*n].is_empty()).map(Move::There);
        let back = (0..NODES).filter(|n| !client.from[*n].is_empty()).map(Move::Back);
        there.chain(back).collect()
    }

    fn makes(&mut self, c: usize, step: Move) {
        match step {
            Move::There(n) => {
                let Some(message) = self.clients[c].to[n].pop_front() else { return };
                let from = LinkId(101 + c as u64);
                self.happens(n, Happens::Message { from, message });
                self.settle();
            }
            Move::Back(n) => {
                for message in std::mem::take(&mut self.clients[c].from[n]) {
                    self.steps(c, Event::Message { from: peer(n), message });
                }
            }
        }
    }

    /// Time passes, for the nodes and the last driver, whose messages all arrive: those of nodes that come first in `order` first.
    fn passes(&mut self, order: &[usize], ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            self.now = self.now.plus(Nanos::from_millis(20));
            (0..NODES).for_each(|n| self.happens(n, Happens::Tick));
            self.settle();
            let c = self.clients.len() - 1;
            self.steps(c, Event::Tick);
            loop {
                let moves = self.moves(c);
                let of = |m: &Move| matches!(m, Move::There(n) | Move::Back(n) if Some(n) == order.first());
                let Some(next) = moves.iter().find(|m| of(m)).or(moves.first()) else { break };
                self.makes(c, *next);
            }
        }
    }

    /// Returns after how many milliseconds.
    fn until_ready(&mut self, order: &[usize]) -> u64 {
        for ms in 0..=DECIDED_MS / 20 {
            if self.clients.last().unwrap().is_ready {
                return ms * 20;
            }
            self.passes(order, 20);
        }
        DECIDED_MS + 1
    }

    fn news(&self) -> Vec<bool> {
        self.nodes.iter().map(Node::has_new).collect()
    }
}

/// Which rules are left out.
type Mutants = (Option<ChainMutant>, Option<DriverMutant>);

/// The world when the interval was begun and these moves were made.
fn after(mutants: Mutants, moves: &[Move]) -> World {
    let mut w = World::new(mutants.0, mutants.1);
    let change = |n: u64| Change::Write { offset: n * STRIPE, data: vec![NEW; BLOCK].into() };
    let changes = (0..NODES as u64).map(change).collect();
    w.steps(0, Event::Client { token: 1, op: Op::Interval { changes } });
    moves.iter().for_each(|m| w.makes(0, *m));
    w
}

/// What becomes of the driver, or comes after it.
#[derive(Clone, Copy, Debug)]
enum End<'a> {
    /// It is dead, and another one attaches; nodes that are named first are quick.
    Next(&'a [usize]),
    /// It is dead, and nobody comes.
    Nobody,
    /// It slept, and goes on when heads have given it up.
    Wakes,
}

/// Time passes for the nodes alone, until nothing is prepared any more.
fn is_given_up(w: &mut World) -> u64 {
    let mut waited = 0;
    while waited <= DECIDED_MS && w.nodes.iter().any(Node::is_prepared) {
        w.now = w.now.plus(Nanos::from_millis(20));
        (0..NODES).for_each(|n| w.happens(n, Happens::Tick));
        w.settle();
        waited += 20;
    }
    waited
}

/// The driver goes on after a sleep: in the end it has its answer, and all is there.
fn wakes(w: &mut World) -> std::result::Result<(), String> {
    if is_given_up(w) > DECIDED_MS {
        return Err("blocks are still locked".into());
    }
    w.passes(&[0], 3000);
    match &w.clients[0].answer {
        Some(Ok(Reply::Committed(_))) if w.news() == [true; NODES] => Ok(()),
        answer => Err(format!("it was answered {answer:?}, and is there: {:?}", w.news())),
    }
}

/// Of what a dead driver had sent these messages arrive before others come, and the rest when all is over.
fn ends(w: &mut World, arrive: u32, end: End<'_>) -> std::result::Result<(), String> {
    let is_answered = matches!(w.clients[0].answer, Some(Ok(Reply::Committed(_))));
    if w.clients[0].answer.as_ref().is_some_and(Result::is_err) {
        return Err(format!("the client got {:?}", w.clients[0].answer));
    }
    for n in (0..NODES).filter(|n| arrive >> n & 1 == 1) {
        while !w.clients[0].to[n].is_empty() {
            w.makes(0, Move::There(n));
        }
    }
    let waited = match end {
        End::Next(order) => {
            w.attach();
            w.until_ready(order)
        }
        End::Nobody => is_given_up(w),
        End::Wakes => return wakes(w),
    };
    if waited > DECIDED_MS {
        return Err("blocks are still locked".into());
    }
    let first = w.news();
    if first.iter().any(|n| *n != first[0]) {
        return Err(format!("half of it is there: {first:?}"));
    }
    if is_answered && !first[0] {
        return Err("it was answered, and is not there".into());
    }
    if w.nodes.iter().any(Node::is_prepared) {
        return Err("the first read comes before the decision".into());
    }
    for n in 0..NODES {
        while !w.clients[0].to[n].is_empty() {
            w.makes(0, Move::There(n));
        }
    }
    if let End::Next(order) = end {
        w.passes(order, 1000);
        let is_kept = |r: &IntervalRecord| r.state == IntervalState::Committed;
        if let Some(n) = (0..NODES).find(|n| w.nodes[*n].records().iter().any(is_kept)) {
            return Err(format!("shard {n} remembers it for ever: {:?}", w.nodes[n].records()));
        }
    }
    if w.news() != first {
        return Err(format!("it flips from {first:?} to {:?}", w.news()));
    }
    Ok(())
}

/// Goes through all orders of messages. Gives back how many ends there were, and the first wrong one.
fn explore(mutants: Mutants, orders: &[&[usize]]) -> (usize, Option<String>) {
    let mut open: Vec<Vec<Move>> = vec![Vec::new()];
    let mut ended = 0;
    while let Some(moves) = open.pop() {
        let w = after(mutants, &moves);
        let next = w.moves(0);
        let in_flight = (0..NODES).filter(|n| !w.clients[0].to[*n].is_empty()).fold(0, |all, n| all | 1 << n);
        let all = orders.iter().map(|o| End::Next(o)).chain([End::Nobody, End::Wakes]);
        for (arrive, end) in (0..8).filter(|a| a & !in_flight == 0).flat_map(|a| all.clone().map(move |e| (a, e))) {
            let mut w = after(mutants, &moves);
            ended += 1;
            if let Err(why) = ends(&mut w, arrive, end) {
                return (ended, Some(format!("{moves:?}, then {arrive:03b} arrive, {end:?}: {why}")));
            }
        }
        open.extend(next.into_iter().map(|m| [moves.clone(), vec![m]].concat()));
    }
    (ended, None)
}

#[test]
fn a_driver_may_die_at_every_message_of_a_commit() {
    let all: [&[usize]; 3] = [&[0], &[1], &[2]];
    let (ended, wrong) = explore((None, None), &all);
    println!("{ended} ends");
    assert_eq!(wrong, None, "after {ended} ends");
    assert!(ended > 5000, "{ended}");
}

#[test]
fn a_commit_without_its_rules_is_noticed() {
    let chain = [ChainMutant::AbortsUnrecorded, ChainMutant::DecisionsForgotten, ChainMutant::AttachesPastIntervals];
    let of_chain = chain.into_iter().map(|m| (Some(m), None));
    for mutants in of_chain.chain([(None, Some(DriverMutant::DecideEarly))]) {
        let (ended, wrong) = explore(mutants, &[&[0], &[2]]);
        println!("{mutants:?}: {wrong:?} after {ended} ends");
        assert!(wrong.is_some(), "{mutants:?} was not noticed in {ended} ends");
    }
}

/// The record of an abort goes when nobody has asked for it for long.
#[test]
fn an_abort_is_forgotten_in_the_end() {
    let mut w = after((None, None), &[Move::There(1)]);
    w.attach();
    w.until_ready(&[1]);
    assert_eq!(w.nodes[0].records()[0].state, IntervalState::Aborted, "the second shard has asked the first one");
    w.passes(&[0], 11_000);
    assert!(w.nodes.iter().all(|n| n.records().is_empty()) && w.news() == [false; NODES]);
}

/// The first frames are there, so what is explored is the commit alone.
#[test]
fn nobody_dies_and_all_is_there() {
    let mut w = after((None, None), &[]);
    w.passes(&[0], 100);
    assert!(
        matches!(w.clients[0].answer, Some(Ok(Reply::Committed(ref p))) if p.len() == NODES && p[0].sequence > Sequence(0))
    );
    assert_eq!(w.news(), [true; NODES]);
    assert!(w.nodes.iter().skip(1).all(|n| n.records().is_empty()), "only the decision is remembered");
    assert_eq!(w.nodes[0].records()[0].state, IntervalState::Committed);
}

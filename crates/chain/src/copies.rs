//! Members are replaced one after the other until none is left that was there when snapshots were taken: workers with
//! logs of their own, links in memory, and a control plane of a few lines.

use crate::event::{
    Begins, Branch, ControlPort, CutWord, HostConfig, IntervalAsk, IntervalWord, Mutant, Opened, ShardInfo,
    ShardSnapshots, Who,
};
use crate::head::view_secret;
use crate::worker::{Worker, WorkerConfig};
use bytes::Bytes;
use freebs_format::wire::Message;
use freebs_format::{
    Extent, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, Member, PinUpdate, UpdateDraft, UpdateKind,
    ViewBody, block_crc, hide,
};
use freebs_io::memory::MemoryDevice;
use freebs_io::{Clock, LinkId, Outbox, Random};
use freebs_lsvd::{Engine, Expect, Record, Shape};
use freebs_secrets::HostKey;
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DeviceId, DriverId, Error, ErrorKind, Fork, Generation, Hash32, Nanos,
    NodeId, Peer, RequestNumber, Result, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const SHARD: ShardId = ShardId::new(1, 0);
const CLUSTER: ClusterId = ClusterId([7; 16]);
const SEGMENT: u64 = 1 << 20;
const NODES: u64 = 6;
const BLOCKS: u32 = 24;
/// More frames than are fed to who has nothing.
const ROUNDS: u64 = 40;
/// Each is taken in the round of its number.
const SNAPSHOTS: [SnapshotId; 3] = [SnapshotId(10), SnapshotId(20), SnapshotId(30)];

fn node_secret(n: u64) -> Hash32 {
    Hash32([n as u8; 32])
}

fn host_key(n: u64) -> HostKey {
    HostKey::new(Hash32([n as u8; 32]))
}

fn peer(n: u64) -> Peer {
    Peer { node: NodeId(n), worker: 0 }
}

/// The control plane's knowledge.
#[derive(Default)]
struct State {
    chain: Vec<NodeId>,
    active: ViewNumber,
    active_members: Vec<NodeId>,
    highest: ViewNumber,
    joining: Vec<NodeId>,
    learning: Vec<NodeId>,
}

#[derive(Clone)]
pub(crate) struct Plane {
    node: NodeId,
    state: Rc<RefCell<State>>,
}

impl ControlPort for Plane {
    async fn propose(&self, _: ShardId, _: ViewNumber, _: StartNumber) -> Result<Opened> {
        let mut s = self.state.borrow_mut();
        if s.chain.first() != Some(&self.node) {
            return Err(Error::invalid("not the head"));
        }
        s.highest = s.highest.next();
        Ok(Opened {
            view: s.highest,
            pred: s.active,
            members: s.chain.clone(),
            quorum: 1,
            min_copies: 1,
            pred_members: s.active_members.clone(),
            pred_quorum: 1,
            pred_learning: s.learning.clone(),
            pred_unseen: Vec::new(),
            forced: None,
            generation: Generation(0),
            keys: (1..=NODES).map(|n| (NodeId(n), host_key(n).public())).collect(),
            volume: None,
        })
    }

    async fn activate(&self, _: ShardId, view: ViewNumber, _: Generation, _: Begins) -> Result<()> {
        let mut s = self.state.borrow_mut();
        (s.active, s.active_members, s.learning) = (view, s.chain.clone(), s.joining.clone());
        Ok(())
    }

    async fn hand_over(&self, _: ShardId, _: NodeId) -> Result<()> {
        Err(Error::invalid("nobody hands over here"))
    }

    async fn complete(&self, _: ShardId, _: ViewNumber, nodes: Vec<NodeId>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        s.joining.retain(|n| !nodes.contains(n));
        s.learning.retain(|n| !nodes.contains(n));
        Ok(())
    }

    async fn cuts(&self, _: Vec<CutWord>) -> Result<()> {
        Err(Error::invalid("nobody makes snapshots here"))
    }

    async fn ask_interval(&self, _: IntervalAsk) -> Result<IntervalWord> {
        Err(Error::invalid("there is one shard only"))
    }
}

type Post = Rc<RefCell<VecDeque<(u64, u64, Message)>>>;

pub(crate) struct Letters {
    from: u64,
    post: Post,
}

impl Outbox<Message> for Letters {
    fn send(&self, to: LinkId, message: Message) {
        self.post.borrow_mut().push_back((self.from, to.0, message));
    }
}

/// Milliseconds of the test.
pub(crate) struct Ticks(Rc<Cell<u64>>);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::from_millis(1 + self.0.get())
    }
    fn wall(&self) -> u64 {
        1 + self.now().0
    }
}

struct Counted(u64);

impl Random for Counted {
    fn fill(&mut self, bytes: &mut [u8]) {
        for b in bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *b = (self.0 >> 33) as u8;
        }
    }
}

pub(crate) type TestWorker = Worker<MemoryDevice, Letters, Plane, Ticks>;

/// A log of one member, as it was before others came.
pub(crate) struct Log {
    shard: ShardId,
    token: Hash32,
    pub sequence: u64,
    pub version: u64,
    offset: u32,
}

impl Log {
    /// Behind its fork.
    pub fn forked(shard: ShardId, fork: &Fork) -> Self {
        let token = freebs_lsvd::fork_token(CLUSTER, fork);
        Self { token, sequence: fork.sequence.0, version: fork.version.0, ..Self::new(shard) }
    }

    pub fn new(shard: ShardId) -> Self {
        Self { shard, token: Hash32::default(), sequence: 0, version: 0, offset: 0 }
    }

    fn meta(&self) -> FrameMeta {
        FrameMeta {
            cluster: CLUSTER,
            shard: self.shard,
            view: ViewNumber(1),
            chunk: ChunkId::new(1, 0),
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version),
            committed: Sequence(self.sequence),
            wall: 0,
        }
    }

    fn secret(&self) -> Hash32 {
        view_secret(&node_secret(1), self.shard, ViewNumber(1))
    }

    pub fn open(&mut self) -> Frame {
        let body = ViewBody {
            pred: ViewNumber(0),
            seal_sequence: Sequence(0),
            seal_hid: Hash32::default(),
            secret_hash: hide(&self.secret()),
            quorum: 1,
            min_copies: 1,
            generation: Generation(0),
            members: vec![Member { node: NodeId(1), start: StartNumber(1) }],
            shared: None,
            volume: None,
        };
        let (frame, token) =
            FrameBuilder::special(&self.meta(), FrameKind::View, &body.encode(), &self.secret(), &self.token);
        (self.token, self.sequence) = (token, self.sequence + 1);
        frame
    }

    fn updates(&mut self, mut b: FrameBuilder) -> Frame {
        let meta = FrameMeta { first_version: Version(self.version + 1), ..self.meta() };
        self.version += b.updates().len() as u64;
        let (frame, token) = b.build(&meta, &self.secret(), &self.token);
        (self.token, self.sequence) = (token, self.sequence + 1);
        self.offset += frame.header().data_blocks();
        frame
    }

    pub fn write(&mut self, lba: u32, fill: u8) -> Frame {
        let data = Bytes::from(vec![fill; 4 * BLOCK]);
        let mut b = FrameBuilder::new();
        b.push(UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(1),
            number: RequestNumber(self.sequence),
            lowest_open: RequestNumber(self.sequence),
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(lba, 4) }],
            crcs: data.chunks_exact(BLOCK).map(block_crc).collect(),
            data: vec![data],
        });
        self.updates(b)
    }

    pub fn put(&mut self, draft: UpdateDraft) -> Frame {
        let mut b = FrameBuilder::new();
        b.push(draft);
        self.updates(b)
    }

    pub fn pin(&mut self, pin: PinUpdate) -> Frame {
        let mut b = FrameBuilder::new();
        let number = RequestNumber(self.sequence);
        b.push_pin(pin, (DriverId(1), number, number));
        self.updates(b)
    }
}

/// Writes, three snapshots and a window. Gives the versions that are pinned.
async fn fill(device: &MemoryDevice) -> Vec<u64> {
    fill_rounds(device, 1, ROUNDS).await
}

/// The first rounds of them, in the log of a node.
async fn fill_rounds(device: &MemoryDevice, node: u64, rounds: u64) -> Vec<u64> {
    let engine = open(device, node).await;
    let writer = engine.clone();
    let task = tokio::task::spawn_local(async move { writer.run().await });
    let mut log = Log::new(SHARD);
    engine.append(Record::Frame(log.open()));
    let mut pins = Vec::new();
    for round in 0..rounds {
        engine.append(Record::Frame(log.write((round * 3 % 20) as u32, round as u8 + 1)));
        match round {
            _ if SNAPSHOTS.contains(&SnapshotId(round)) => {
                engine.append(Record::Frame(log.pin(PinUpdate::Snapshot(SnapshotId(round)))));
                pins.push(log.version);
            }
            33 => engine.append(Record::Frame(log.pin(PinUpdate::Retain(Version(0))))),
            _ => engine.append(Record::Frame(log.write(0, round as u8 + 101))),
        }
    }
    engine.committed(SHARD, Sequence(log.sequence));
    engine.close().await.unwrap();
    task.await.unwrap().unwrap();
    pins
}

pub(crate) async fn open(device: &MemoryDevice, node: u64) -> Engine<MemoryDevice> {
    let expect = Expect { cluster: CLUSTER, node: NodeId(node), worker: 0, workers: 1 };
    Engine::open(device.clone(), &expect).await.unwrap().0
}

pub(crate) async fn blank(node: u64) -> MemoryDevice {
    let device = MemoryDevice::new(512, 64 << 20);
    let shape = Shape {
        cluster: CLUSTER,
        node: NodeId(node),
        device: DeviceId([node as u8; 16]),
        worker: 0,
        workers: 1,
        segment_bytes: SEGMENT,
        size_limit: 48 * SEGMENT,
        wall: 1,
    };
    Engine::create(device.clone(), &shape).await.unwrap();
    device
}

pub(crate) struct World {
    state: Rc<RefCell<State>>,
    post: Post,
    pub workers: BTreeMap<u64, TestWorker>,
    notes: Rc<RefCell<Vec<String>>>,
    now: Rc<Cell<u64>>,
    told: Option<(ViewNumber, Vec<NodeId>, ViewNumber, Vec<NodeId>)>,
}

impl World {
    /// The first node alone.
    async fn of(first: &MemoryDevice) -> Self {
        let mut w = Self::new();
        w.start(1, first).await;
        w.until("the first node alone", Self::is_level).await;
        w
    }

    /// Nothing runs.
    pub fn new() -> Self {
        let state = State { chain: vec![NodeId(1)], active: ViewNumber(1), highest: ViewNumber(1), ..State::default() };
        let state = State { active_members: state.chain.clone(), ..state };
        Self {
            state: Rc::new(RefCell::new(state)),
            post: Post::default(),
            workers: BTreeMap::new(),
            notes: Rc::default(),
            now: Rc::default(),
            told: None,
        }
    }

    pub async fn start(&mut self, node: u64, device: &MemoryDevice) {
        self.start_without(node, device, None).await;
    }

    /// The same with a rule left out.
    pub async fn start_without(&mut self, node: u64, device: &MemoryDevice, mutant: Option<Mutant>) {
        let notes = self.notes.clone();
        let config = WorkerConfig {
            host: HostConfig {
                cluster: CLUSTER,
                me: peer(node),
                start: StartNumber(2),
                workers: (1..=NODES).map(|n| (NodeId(n), 1)).collect(),
                node_secret: node_secret(node),
                host_key: host_key(node),
                mutant,
            },
            engine: open(device, node).await,
            outbox: Letters { from: node, post: self.post.clone() },
            control: Plane { node: NodeId(node), state: self.state.clone() },
            clock: Ticks(self.now.clone()),
            random: Box::new(Counted(node)),
            scrub_bytes: 0,
            notes: Box::new(move |note| notes.borrow_mut().push(format!("node {node}: {}", note.text))),
        };
        let worker = Worker::start(config).await.unwrap();
        for (other, w) in &self.workers {
            w.on_link_up(LinkId(node), Who::Member(peer(node)));
            worker.on_link_up(LinkId(*other), Who::Member(peer(*other)));
        }
        self.workers.insert(node, worker);
        self.told = None;
    }

    /// So many milliseconds pass, in which nothing runs.
    pub fn pass(&self, ms: u64) {
        self.now.set(self.now.get() + ms);
    }

    /// The control plane's news go to all.
    fn tell(&mut self) {
        let info = {
            let s = self.state.borrow();
            let now = (s.active, s.chain.clone(), s.highest, s.joining.clone());
            if self.told.as_ref() == Some(&now) {
                return;
            }
            self.told = Some(now);
            ShardInfo {
                shard: SHARD,
                members: s.chain.clone(),
                active: s.active,
                known: s.active,
                blocks: 1024,
                highest: s.highest,
                generation: Generation(0),
                has_keys: true,
                joining: s.joining.clone(),
                view_members: s.active_members.clone(),
                volume: None,
                forced: None,
                branch: Branch::default(),
                snapshots: ShardSnapshots {
                    kept: Arc::new(SNAPSHOTS.into()),
                    as_of: s.active,
                    ..ShardSnapshots::default()
                },
                fork: None,
                flatten: false,
            }
        };
        self.workers.values().for_each(|w| w.on_shards(vec![info.clone()]));
    }

    /// Lets some time pass; whether `done` came true.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..60_000 {
            self.tell();
            let letter = self.post.borrow_mut().pop_front();
            if let Some((from, to, message)) = letter {
                if let Some(w) = self.workers.get(&to).filter(|_| self.workers.contains_key(&from)) {
                    w.on_messages(LinkId(from), &mut vec![message]);
                }
                continue;
            }
            if done(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.now.set(self.now.get() + 1);
        }
        panic!("{what}: {:#?}", self.notes.borrow());
    }

    /// Lets that many milliseconds pass.
    pub async fn waits(&mut self, millis: u64) {
        let end = self.now.get() + millis;
        self.until("time", |w| w.now.get() >= end).await;
    }

    /// True if all members are in the active view and have everything of it.
    fn is_level(&self) -> bool {
        let s = self.state.borrow();
        let status = |n: &NodeId| self.workers[&n.0].status().into_iter().find(|x| x.shard == SHARD);
        let all: Vec<_> = s.chain.iter().filter_map(status).collect();
        let last = all.iter().map(|x| x.last.sequence).max();
        s.active_members == s.chain
            && s.joining.is_empty()
            && all.len() == s.chain.len()
            && all.iter().all(|x| x.view == s.active && Some(x.durable) == last && x.committed == x.last.sequence)
    }

    async fn chain(&mut self, members: &[u64], new: &[u64]) {
        {
            let mut s = self.state.borrow_mut();
            s.chain = members.iter().copied().map(NodeId).collect();
            s.joining = new.iter().copied().map(NodeId).collect();
        }
        self.until(&format!("chain {members:?}"), Self::is_level).await;
    }

    pub fn stop(&mut self, node: u64) {
        if let Some(w) = self.workers.remove(&node) {
            w.stop();
        }
        self.workers.values().for_each(|w| w.on_link_down(LinkId(node)));
    }

    async fn content(&self, node: u64, version: u64) -> Vec<u8> {
        let out = self.workers[&node].engine().read_at(SHARD, Version(version), BlockRange::new(0, BLOCKS)).await;
        let out = out.unwrap_or_else(|e| panic!("node {node}, version {version}: {e}"));
        let mut data = out.data.iter().flat_map(|d| d.chunks_exact(BLOCK));
        let pieces = out.pieces.iter().flat_map(|p| (0..p.blocks).map(move |_| p.kind));
        pieces.map(|kind| if kind == ExtentKind::Data { data.next().unwrap()[0] } else { 0 }).collect()
    }
}

/// After three replacements no snapshot was left on any copy.
#[test]
fn all_members_are_replaced_and_every_snapshot_is_there() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, async {
        let first = blank(1).await;
        let pins = fill(&first).await;
        let mut w = World::of(&first).await;
        let known = w.workers[&1].engine().history(SHARD).unwrap();
        assert_eq!(known.pins.iter().map(|p| p.version.0).collect::<Vec<_>>(), pins);
        let window = known.retain.expect("a window").0;
        let last = w.workers[&1].engine().state(SHARD).unwrap().version.0;
        let versions: Vec<u64> = pins.iter().copied().chain(window..=last).collect();
        let mut then = Vec::new();
        for v in &versions {
            then.push(w.content(1, *v).await);
        }
        assert!(then.windows(2).any(|t| t[0] != t[1]) && last > window + 5);
        for n in 2..=NODES {
            let device = blank(n).await;
            w.start(n, &device).await;
        }
        let steps: [(&[u64], &[u64], u64); 4] =
            [(&[1, 2, 3], &[2, 3], 0), (&[1, 2, 4], &[4], 3), (&[1, 4, 5], &[5], 2), (&[4, 5, 6], &[6], 1)];
        for (chain, new, gone) in steps {
            w.chain(chain, new).await;
            w.stop(gone);
            for node in chain {
                let found = w.workers[node].engine().history(SHARD).unwrap();
                assert_eq!((&found.pins, found.retain), (&known.pins, known.retain), "node {node} of {chain:?}");
                assert_eq!(found.whole_from, Version(0), "node {node} of {chain:?}");
                for (v, then) in versions.iter().zip(&then) {
                    assert_eq!(w.content(*node, *v).await, *then, "node {node} of {chain:?}, version {v}");
                }
                w.workers[node].engine().check();
            }
        }
        w.workers.values().for_each(TestWorker::stop);
    });
}

/// The first byte of each block of a node, or that it can't be read.
async fn blocks(w: &World, node: u64, version: Option<u64>) -> Vec<Option<u8>> {
    let mut out = Vec::new();
    for lba in 0..BLOCKS {
        let (engine, range) = (w.workers[&node].engine(), BlockRange::new(lba, 1));
        let read = match version {
            None => engine.read(SHARD, range).await,
            Some(v) => engine.read_at(SHARD, Version(v), range).await,
        };
        out.push(match read {
            Ok(o) => Some(o.data.first().map_or(0, |d| d[0])),
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Corrupt);
                None
            }
        });
    }
    out
}

/// One bit of the first of the four blocks that a frame wrote changes.
pub(crate) fn rot(device: &MemoryDevice, fill: u8) {
    device.poke(|bytes| {
        let at = bytes.chunks(512).position(|s| s.iter().all(|b| *b == fill)).expect("it is there");
        bytes[at * 512 + 7] ^= 1;
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Blocks of the last copy had rotted, one of them in a snapshot. No new copy could be made of all the others, for ever.
#[test]
fn a_copy_is_made_of_what_can_be_read() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        let first = blank(1).await;
        let pins = fill(&first).await;
        let mut w = World::of(&first).await;
        let (now, then) = (blocks(&w, 1, None).await, blocks(&w, 1, Some(pins[1])).await);
        // The last round but one wrote at 14, and round 19 at 17, which the second snapshot has.
        [ROUNDS - 1, 20].into_iter().for_each(|fill| rot(&first, fill as u8));
        let damaged = (blocks(&w, 1, None).await, blocks(&w, 1, Some(pins[1])).await);
        let lost = |a: &[Option<u8>], b: &[Option<u8>]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(lost(&damaged.0, &now) + lost(&damaged.1, &then) >= 2, "{damaged:?}");
        for n in 2..=3 {
            let device = blank(n).await;
            w.start(n, &device).await;
        }
        w.chain(&[1, 2, 3], &[2, 3]).await;
        for node in 2..=3 {
            assert_eq!((blocks(&w, node, None).await, blocks(&w, node, Some(pins[1])).await), damaged, "node {node}");
            w.workers[&node].engine().check();
        }
        w.workers.values().for_each(TestWorker::stop);
    });
}

/// A frame that a member lacks had rotted where its head has it, and was asked for without end.
#[test]
fn a_member_that_lacks_a_rotten_frame_gets_what_is_left_of_it() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        for rotten in [ROUNDS - 3, ROUNDS - 1] {
            let (first, second) = (blank(1).await, blank(2).await);
            fill(&first).await;
            fill_rounds(&second, 2, ROUNDS - 10).await;
            let mut w = World::of(&first).await;
            rot(&first, rotten as u8);
            let damaged = blocks(&w, 1, None).await;
            w.start(2, &second).await;
            w.chain(&[1, 2], &[2]).await;
            assert_eq!(blocks(&w, 2, None).await, damaged, "round {rotten}");
            w.workers.values().for_each(TestWorker::stop);
        }
    });
}

//! One node of a run: a disk that lives on, and a process on it that comes and goes.
//!
//! Everything of a process runs in a local set of its own, so that a kill is the drop of that set (nothing of it
//! ever runs again), and a pause is not polling it (SIGSTOP: its timers fire all at once afterwards).

use crate::control::{Control, Plane};
use crate::device::{Crash, Disk, SimDevice};
use crate::network::{Arrival, EndPoint, Network, Place};
use crate::raft;
use crate::world::World;
use freebs_agent::{Commands, Membership, Numbered, Port, TakenIn, caller, workers_of};
use freebs_chain::{HostConfig, Mutant, Who, Worker, WorkerConfig};
use freebs_consensus::Devices;
use freebs_control::State;
use freebs_format::wire::{Message, Role};
use freebs_io::{Clock, Device, LinkId, Outbox, Random};
use freebs_lsvd::{Engine, Expect, Options, Shape};
use freebs_secrets::HostKey;
use freebs_types::{BLOCK, ClusterId, DeviceId, Error, Hash32, Nanos, NodeId, Peer, Result, ShardId, ViewNumber};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// Messages that a process takes in one go, as a socket's buffer would give them.
const MESSAGES_AT_ONCE: usize = 64;
/// Short memory for maps: some dozens of entries in force, and of superseded ones.
const SMALL_MAP_BYTES: usize = 64 << 10;
/// A second's share of the scrub: small logs are read several times in a run.
const SCRUB_BYTES: u64 = 1 << 20;

pub type SimWorker = Worker<SimDevice, SimOutbox, Port<Plane>, SimClock>;

/// What all nodes of a run share.
#[derive(Clone)]
pub struct Shared {
    pub world: Rc<World>,
    pub net: Rc<Network>,
    pub control: Rc<Control>,
    pub cluster: ClusterId,
    pub segment_bytes: u64,
    /// All have named host keys: views have slices, and other members can become head.
    pub has_keys: bool,
    pub mutant: Option<Mutant>,
    /// Before each piece that a member learns of what it lacks.
    pub early_pause: Nanos,
    /// Where the rates of clocks come from; `None`: all run alike.
    pub drift: Option<u64>,
    pub has_small_maps: bool,
}

impl Shared {
    /// The options of a node's log engine.
    fn options(&self) -> Options {
        let options = Options::of_workers(1);
        if self.has_small_maps { Options { map_bytes: SMALL_MAP_BYTES, ..options } } else { options }
    }

    /// The rate of the clock of the host with this number.
    #[must_use]
    pub fn rate(&self, host: u64) -> Rate {
        self.drift.map(|seed| Rate::draw(seed, host)).unwrap_or_default()
    }
}

/// How much faster than the world a clock runs, in parts of a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate(i64);

impl Rate {
    /// Of the host with this number: somewhere within the bound that leases count on, or at one of its ends.
    #[must_use]
    pub fn draw(seed: u64, host: u64) -> Self {
        let most = 1_000_000 / freebs_types::timing::CLOCK_DRIFT_ONE_IN as i64;
        let mut luck = crate::rng::Rng::fork(seed ^ host << 40, 12);
        Self(match luck.below(3) {
            0 => most,
            1 => -most,
            _ => luck.below(2 * most as u64) as i64 - most,
        })
    }

    /// The reading of the clock at this time of the world.
    #[must_use]
    pub fn of(self, now: Nanos) -> Nanos {
        let more = i128::from(now.0) * i128::from(self.0) / 1_000_000;
        Nanos((i128::from(now.0) + more) as u64)
    }
}

/// Where the wall clocks of all nodes begin, by and large; nanoseconds since 1970.
pub const WALL_BEGINS: u64 = 1_700_000_000_000_000_000;

/// Monotonic time with a start and a rate of its own per node, and a wall clock that is wrong.
pub struct SimClock {
    world: Rc<World>,
    offset: Nanos,
    rate: Rate,
    wall: Rc<Cell<u64>>,
}

impl Clock for SimClock {
    fn now(&self) -> Nanos {
        self.rate.of(self.world.now()).plus(self.offset)
    }

    fn wall(&self) -> u64 {
        self.wall.get().wrapping_add(self.world.now().0)
    }
}

/// Where secrets of views come from. A start of a node has its own stream; no two of a run are the same.
pub struct SimRandom(pub crate::rng::Rng);

impl Random for SimRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.0.next().to_le_bytes()[..piece.len()]);
        }
    }
}

/// A worker's messages go straight into the network.
pub struct SimOutbox(Rc<Network>);

impl Outbox<Message> for SimOutbox {
    fn send(&self, to: LinkId, message: Message) {
        self.0.send(to, message);
    }
}

/// What came in and was not taken yet, by link: in order on each, in any order across them, as sockets are read.
#[derive(Default)]
struct Inbox {
    arrivals: RefCell<BTreeMap<LinkId, VecDeque<Arrival>>>,
    wake: Notify,
}

impl Inbox {
    /// The next thing of some link, with as many messages behind it as come in one go.
    fn take(&self, world: &World) -> Option<(LinkId, Vec<Arrival>)> {
        let mut arrivals = self.arrivals.borrow_mut();
        let count = arrivals.len() as u64;
        let chosen = world.luck.borrow_mut().below(count) as usize;
        let link = *arrivals.keys().nth(chosen)?;
        let queue = arrivals.get_mut(&link)?;
        let mut out = Vec::from_iter(queue.pop_front());
        while matches!(out.first(), Some(Arrival::Message(_)))
            && matches!(queue.front(), Some(Arrival::Message(_)))
            && out.len() < MESSAGES_AT_ONCE
        {
            out.extend(queue.pop_front());
        }
        if queue.is_empty() {
            arrivals.remove(&link);
        }
        Some((link, out))
    }
}

/// One life of the process.
struct Process {
    incarnation: u64,
    set: Rc<RefCell<Option<LocalSet>>>,
    inbox: Rc<Inbox>,
    waker: Rc<RefCell<Option<Waker>>>,
    paused: Rc<Cell<bool>>,
    worker: Rc<RefCell<Option<SimWorker>>>,
}

/// A node.
pub struct Node {
    pub id: NodeId,
    pub disk: Disk,
    shared: Shared,
    wall: Rc<Cell<u64>>,
    lives: Cell<u64>,
    process: RefCell<Option<Process>>,
    /// The power of its machine is off, so that nobody says that there is no process.
    dark: Cell<bool>,
    /// Damage was injected here: what recovery finds is no surprise.
    pub damaged: Cell<bool>,
    /// Its disk is not the present one: it has to be refused.
    pub is_old: Cell<bool>,
    /// Nothing is started, whoever wants that.
    held: Cell<bool>,
    /// Faults are over: no process ends by itself any more.
    settled: Cell<bool>,
}

impl Node {
    #[must_use]
    pub fn new(id: NodeId, disk: Disk, shared: Shared) -> Rc<Self> {
        let wall = Rc::new(Cell::new(WALL_BEGINS + id.0 * 77_777_777));
        let (lives, process, dark, damaged, is_old, held, settled) = Default::default();
        Rc::new(Self { id, disk, shared, wall, lives, process, dark, damaged, is_old, held, settled })
    }

    /// Makes the log, before the run begins.
    pub async fn format(&self) -> Result<()> {
        let shape = Shape {
            cluster: self.shared.cluster,
            node: self.id,
            device: DeviceId([self.id.0 as u8; 16]),
            worker: 0,
            workers: 1,
            segment_bytes: self.shared.segment_bytes,
            size_limit: self.disk.limit(),
            wall: self.wall.get(),
        };
        Engine::create(self.disk.open(), &shape).await
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// Whether a process is alive and not paused.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.borrow().as_ref().is_some_and(|p| !p.paused.get())
    }

    /// True if its log is in use.
    #[must_use]
    pub fn works(&self) -> bool {
        self.process.borrow().as_ref().is_some_and(|p| p.worker.borrow().is_some())
    }

    /// The state of its disk, as its messages to others say it.
    #[must_use]
    pub fn devices(&self) -> Devices {
        match self.works() {
            _ if self.disks().iter().any(Disk::is_silent) => Devices::Silent,
            true => Devices::Work,
            false => Devices::Begin,
        }
    }

    /// Whether its machine is there and says that no process is.
    #[must_use]
    pub fn is_refusing(&self) -> bool {
        !self.is_alive() && !self.dark.get()
    }

    #[must_use]
    pub fn incarnation(&self) -> Option<u64> {
        self.process.borrow().as_ref().map(|p| p.incarnation)
    }

    #[must_use]
    pub fn worker(&self) -> Option<SimWorker> {
        self.process.borrow().as_ref().and_then(|p| p.worker.borrow().clone())
    }

    /// Whether its device is out of use until the process starts again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.disks().iter().any(Disk::has_failed)
    }

    fn place(&self) -> Place {
        Place::Node(self.id.0)
    }

    /// Starts a process, unless one is alive.
    pub fn start(self: &Rc<Self>) {
        if self.is_alive() || self.held.get() {
            return;
        }
        self.lives.set(self.lives.get() + 1);
        self.dark.set(false);
        let incarnation = self.lives.get();
        self.shared.world.say(|| format!("node {}: process {incarnation} starts", self.id));
        self.shared.world.trace(0x30, self.id.0, incarnation);
        self.shared.net.witness.borrow_mut().started(self.id);
        if let Some(seats) = self.shared.control.seats() {
            seats.started(self.id);
        }
        let inbox = Rc::new(Inbox::default());
        let worker = Rc::new(RefCell::new(None));
        let set = LocalSet::new();
        let (plane, news) = (Plane::new(&self.shared.control, self.place()), inbox.clone());
        plane.on_news(move || news.wake.notify_one());
        let known = plane.state();
        let life = Life {
            me: EndPoint { place: self.place(), incarnation },
            node: self.clone(),
            inbox: inbox.clone(),
            slot: worker.clone(),
            plane,
            member: RefCell::new(Membership::new(Peer { node: self.id, worker: 0 }, 1, known)),
            asked: RefCell::default(),
        };
        set.spawn_local(life.run());
        let process = Process {
            incarnation,
            set: Rc::new(RefCell::new(Some(set))),
            inbox,
            waker: Rc::default(),
            paused: Rc::default(),
            worker,
        };
        let (set, waker, paused) = (process.set.clone(), process.waker.clone(), process.paused.clone());
        *self.process.borrow_mut() = Some(process);
        tokio::task::spawn_local(std::future::poll_fn(move |cx| {
            *waker.borrow_mut() = Some(cx.waker().clone());
            if paused.get() {
                return Poll::Pending;
            }
            match set.borrow_mut().as_mut() {
                Some(set) => Pin::new(set).poll(cx),
                None => Poll::Ready(()),
            }
        }));
    }

    /// From now on nothing is started here, and nothing more happens to the disk: somebody is at work on it.
    pub fn hold(&self, held: bool) {
        self.held.set(held);
    }

    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Ends the process in the middle of whatever it does.
    pub fn kill(&self, crash: Crash) {
        if self.held.get() {
            return;
        }
        self.dark.set(self.dark.get() || crash == Crash::Power);
        let Some(process) = self.process.borrow_mut().take() else {
            if crash == Crash::Power {
                self.disk.crash(crash);
                self.seat_died(crash);
            }
            return;
        };
        self.shared.world.say(|| format!("node {}: {crash:?}", self.id));
        self.shared.world.trace(0x31, self.id.0, crash as u64);
        // The disk first: nothing that is dropped below may still change it.
        self.disk.crash(crash);
        let worker = process.worker.borrow_mut().take();
        let set = process.set.borrow_mut().take();
        drop(set);
        drop(worker);
        self.seat_died(crash);
        if let Some(w) = process.waker.borrow_mut().take() {
            w.wake();
        }
        let me = EndPoint { place: self.place(), incarnation: process.incarnation };
        self.shared.net.process_died(me, crash == Crash::Power);
    }

    fn seat_died(&self, crash: Crash) {
        if let Some(seats) = self.shared.control.seats() {
            seats.died(self.id, crash);
        }
    }

    /// A process that can't go on ends, and with it the seat in it.
    fn exit(self: &Rc<Self>, incarnation: u64) {
        let node = self.clone();
        self.shared.world.after(Nanos(0), move || {
            if node.incarnation() == Some(incarnation) {
                node.kill(Crash::Kill);
            }
        });
    }

    /// From now on its processes go on, whatever becomes of their logs.
    pub fn settle(&self) {
        self.settled.set(true);
    }

    /// The log can't go on: the process ends soon, as a node's does, and is started again a while later.
    fn end_with_log(self: &Rc<Self>, incarnation: u64, why: &Error) {
        let (node, world) = (self.clone(), self.shared.world.clone());
        world.say(|| format!("node {}: its log can't go on: {why}", self.id));
        world.count("processes that ended with their log");
        let wait = Nanos::from_millis(crate::rng::mix(self.id.0 ^ incarnation << 16) % 1000);
        self.shared.world.after(wait, move || {
            if node.incarnation() == Some(incarnation) && !node.settled.get() {
                node.kill(Crash::Kill);
                world.after(wait, move || node.start());
            }
        });
    }

    /// The disk of its log, and that of its seat, if it has one.
    #[must_use]
    pub fn disks(&self) -> Vec<Disk> {
        let seat = self.shared.control.seats().and_then(|s| s.disk(self.id));
        [self.disk.clone()].into_iter().chain(seat).collect()
    }

    /// Stops the process without ending it.
    pub fn pause(&self, paused: bool) {
        let process = self.process.borrow();
        let Some(p) = process.as_ref().filter(|p| p.paused.get() != paused) else { return };
        self.shared.world.say(|| format!("node {}: paused {paused}", self.id));
        p.paused.set(paused);
        if let Some(seats) = self.shared.control.seats() {
            seats.paused(self.id, paused);
        }
        if !paused && let Some(w) = p.waker.borrow().as_ref() {
            w.wake_by_ref();
        }
    }

    /// Moves the wall clock.
    pub fn jump(&self, wall: u64) {
        self.wall.set(wall);
    }

    /// Something came in for a process of this node.
    pub fn arrive(&self, incarnation: u64, link: LinkId, arrival: Arrival) -> bool {
        let process = self.process.borrow();
        let Some(p) = process.as_ref().filter(|p| p.incarnation == incarnation) else { return false };
        p.inbox.arrivals.borrow_mut().entry(link).or_default().push_back(arrival);
        p.inbox.wake.notify_one();
        true
    }
}

/// What runs inside a process.
struct Life {
    me: EndPoint,
    node: Rc<Node>,
    inbox: Rc<Inbox>,
    slot: Rc<RefCell<Option<SimWorker>>>,
    plane: Plane,
    member: RefCell<Membership>,
    /// Links to members that have not answered yet.
    asked: RefCell<BTreeMap<LinkId, Peer>>,
}

impl Life {
    async fn run(self) {
        let (worker, taken_in) = match self.boot().await {
            Ok(begun) => begun,
            Err(e) => {
                // A write that fails during the start ends the process, which is started again.
                if self.node.damaged.get() || self.node.has_failed() || self.node.is_old.get() {
                    self.node.shared.world.say(|| format!("node {} does not start: {e}", self.node.id));
                } else {
                    self.node.shared.world.violation(format!("node {} does not start: {e}", self.node.id));
                }
                if self.node.shared.control.seats().is_some() {
                    self.node.exit(self.me.incarnation);
                }
                return;
            }
        };
        *self.slot.borrow_mut() = Some(worker.clone());
        if let Some(seats) = self.node.shared.control.seats() {
            seats.works(self.node.id);
        }
        self.work(worker, taken_in).await;
    }

    async fn work(self, worker: SimWorker, _: TakenIn) {
        self.hear_shards(&worker, &self.plane.begin());
        let mut ends = false;
        loop {
            if let Some(why) = worker.failure().filter(|_| !ends) {
                self.node.end_with_log(self.me.incarnation, &why);
                ends = true;
            }
            while let Some(state) = self.plane.next() {
                self.hear_shards(&worker, &state);
            }
            self.dial();
            match self.inbox.take(&self.node.shared.world) {
                None => self.wait().await,
                Some((link, arrivals)) => self.take(&worker, link, arrivals),
            }
        }
    }

    fn now(&self) -> Nanos {
        self.node.shared.world.now()
    }

    /// Waits until something comes in, or somebody is to be dialled.
    async fn wait(&self) {
        let next = self.member.borrow().dialler.next();
        match next {
            Some(at) => {
                let wait = Duration::from_nanos(at.since(self.now()).0);
                let _ = tokio::time::timeout(wait, self.inbox.wake.notified()).await;
            }
            None => self.inbox.wake.notified().await,
        }
    }

    fn dial(&self) {
        let due = self.member.borrow_mut().dialler.due(self.now());
        for peer in due {
            let link = self.node.shared.net.dial(self.me, Place::Node(peer.node.0));
            self.asked.borrow_mut().insert(link, peer);
        }
    }

    async fn boot(&self) -> Result<(SimWorker, TakenIn)> {
        let (node, shared) = (&self.node, &self.node.shared);
        if let Some(seats) = shared.control.seats() {
            let came_with = raft::start_of(&node.disk.open()).await?;
            seats.sit(node.id, came_with, &self.plane).await?;
        }
        let expect = Expect { cluster: shared.cluster, node: node.id, worker: 0, workers: 1 };
        let mut numbered = None;
        let admit = async |came_with| {
            let number = numbered.insert(self.plane.number(node.id, came_with).await?);
            Ok(number.start())
        };
        let (engine, report) = Engine::open_as(node.disk.open(), &expect, shared.options(), admit).await?;
        let begun = numbered.map(Numbered::written).ok_or_else(|| Error::bug("a log was opened without a number"))?;
        shared.world.say(|| format!("node {}: {report:?}", node.id));
        if !report.damage.is_empty() && !node.damaged.get() {
            shared.world.violation(format!("node {}: damage that nobody did: {report:?}", node.id));
        }
        if !node.damaged.get() && !node.is_old.get() {
            self.compare_with_witness(&engine);
        }
        check_space(&shared.world, node.id, &engine).await;
        let start = begun.start();
        if let Some(seats) = shared.control.seats() {
            seats.carry(node.id, start);
        }
        let host_key = HostKey::new(Hash32([node.id.0 as u8; 32]));
        let key = shared.has_keys.then(|| host_key.public());
        let taken_in = self.plane.register(node.id, begun, key).await?;
        if node.is_old.get() {
            shared.world.violation(format!("node {} was taken in with an old disk (V8)", node.id));
        }
        let host = HostConfig {
            cluster: shared.cluster,
            me: Peer { node: node.id, worker: 0 },
            start,
            workers: workers_of(&self.plane.state()),
            node_secret: Hash32([node.id.0 as u8; 32]),
            host_key,
            early_pause: shared.early_pause,
            mutant: shared.mutant,
        };
        let offset = Nanos(crate::rng::mix(node.id.0 ^ start.0 << 8) >> 20);
        let (world, id) = (shared.world.clone(), node.id);
        let config = WorkerConfig {
            host,
            engine,
            outbox: SimOutbox(shared.net.clone()),
            control: Port::new(self.plane.clone(), node.id),
            clock: SimClock {
                world: shared.world.clone(),
                offset,
                rate: shared.rate(node.id.0),
                wall: node.wall.clone(),
            },
            random: Box::new(SimRandom(crate::rng::Rng::fork(node.id.0 << 32 ^ start.0, 6))),
            scrub_bytes: SCRUB_BYTES,
            notes: Box::new(move |note| {
                let text = note.text.as_str();
                // Nobody may order more than the smallest member takes (W7).
                if text.contains("out of use: the device is full") {
                    world.violation(format!("node {id}: {text}"));
                }
                world.count(format!("note {}", kind_of(text)));
                world.say(|| format!("node {id}: {text}"));
            }),
        };
        Ok((Worker::start(config).await?, taken_in))
    }

    /// What this node told others before it died, it still knows and has (V2, W4).
    fn compare_with_witness(&self, engine: &Engine<SimDevice>) {
        let (node, shared) = (&self.node, &self.node.shared);
        let witness = shared.net.witness.borrow();
        let place = |shard| format!("node {}, shard {shard}, after its restart", node.id);
        // Also of shards that it left: a promise is for ever.
        for (shard, promised) in witness.promises(node.id) {
            let known = engine.state(shard).map_or(ViewNumber(0), |s| s.promised.max(s.last.view));
            if known < promised {
                let text = format!("view {promised} was promised, only {known} is known (V2)");
                shared.world.violation(format!("{}: {text}", place(shard)));
            }
        }
        for state in engine.shards().into_iter().filter_map(|s| engine.state(s)) {
            let (shard, view) = (state.shard, state.last.view);
            let durable = witness.told_durable(node.id, shard, view);
            let last = state.last.sequence;
            if last < durable {
                let text = format!("{durable} was told durable in view {view}, only {last} is there (W4)");
                shared.world.violation(format!("{}: {text}", place(shard)));
            }
        }
    }

    /// The worker hears the news of its shards in a state.
    fn hear_shards(&self, worker: &SimWorker, state: &Arc<State>) {
        let left = self.member.borrow_mut().tell(self.now(), state, worker);
        for (shard, active) in left {
            let (world, node) = (&self.node.shared.world, self.node.id);
            let stays = worker.shards().contains(&shard);
            world.count(if stays { "states older than a log" } else { "replicas that were left" });
            let mut witness = self.node.shared.net.witness.borrow_mut();
            let told = witness.told_above(node, shard, active, |view| self.node.shared.control.counts(shard, view));
            if let Some(view) = told.filter(|_| !stays && !self.node.damaged.get()) {
                let text = format!("node {node} left shard {shard} by a state in which view {active} is active");
                world.violation(format!("{text}, and it told that it is durable in view {view} (V7)"));
            }
            witness.left(node, shard, active);
        }
    }

    fn take(&self, worker: &SimWorker, link: LinkId, arrivals: Vec<Arrival>) {
        let (now, mut messages) = (self.now(), Vec::new());
        for arrival in arrivals {
            match arrival {
                Arrival::Incoming(who) => {
                    self.node.shared.net.accept(link);
                    let (from, role) = hello_of(who.place);
                    match caller(Peer { node: self.node.id, worker: 0 }, from, role) {
                        Ok(who) => worker.on_link_up(link, who),
                        Err(e) => self.node.shared.world.violation(format!("node {}: {e}", self.node.id)),
                    }
                }
                Arrival::Up => {
                    let peer = self.asked.borrow_mut().remove(&link);
                    if let Some(peer) = peer {
                        self.member.borrow_mut().dialler.opened(now, peer, link);
                        worker.on_link_up(link, Who::Member(peer));
                    }
                }
                Arrival::Down => {
                    let never_up = self.asked.borrow_mut().remove(&link);
                    match never_up {
                        Some(peer) => self.member.borrow_mut().dialler.failed(now, peer),
                        None => {
                            worker.on_link_down(link);
                            self.member.borrow_mut().dialler.closed(now, link);
                        }
                    }
                }
                Arrival::Message(m) => messages.push(*m),
            }
        }
        if !messages.is_empty() {
            worker.on_messages(link, &mut messages);
        }
    }
}

/// Accounting: what maps name is counted as live, and everything fits. A member that learns a map meanwhile gets more.
pub async fn check_space<D: Device>(world: &World, node: NodeId, engine: &Engine<D>) {
    engine.check();
    let before = engine.space();
    let mut named_by = Vec::new();
    // Of those that a fork names some are its parent's, and count there.
    let is_fork = |s: &ShardId| engine.state(*s).is_some_and(|state| state.fork.is_some());
    // As of now: one that becomes flat while others are read was none of these when space was counted.
    let shards: Vec<ShardId> = engine.shards().into_iter().filter(|s| !is_fork(s)).collect();
    for shard in shards {
        let blocks = engine.digest(shard).await.map_or(0, |d| d.data_blocks);
        named_by.push((shard, blocks * BLOCK as u64));
    }
    let space = engine.space();
    let named: u64 = named_by.iter().map(|(_, bytes)| bytes).sum();
    let room = u64::from(space.used_segments) * space.segment_bytes;
    let fits = space.used_segments + space.free_segments <= space.limit_segments;
    if space.live_bytes.max(before.live_bytes) < named || space.live_bytes > room || !fits || space.poisoned {
        world.violation(format!("node {node}: {space:?} does not fit {named} bytes of named blocks, {named_by:?}"));
    }
}

/// A note without its numbers, so that notes of a kind are counted together.
fn kind_of(note: &str) -> String {
    let words = note.split(' ').filter(|w| !w.contains(|c: char| c.is_ascii_digit()));
    words.take(8).collect::<Vec<_>>().join(" ")
}

/// The words of a peer that connects from there about itself.
fn hello_of(place: Place) -> (Peer, Role) {
    match place {
        Place::Node(n) => (Peer { node: NodeId(n), worker: 0 }, Role::Node),
        _ => (Peer { node: NodeId(0), worker: 0 }, Role::Driver),
    }
}

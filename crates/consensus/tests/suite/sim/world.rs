//! The simulated world: processes, devices, network, clients, faults and the oracle.

use freebs_consensus::machine::{Machine, Proposal};
use freebs_consensus::types::{Entry, Randomness};
use freebs_consensus::wire::Message;
use freebs_consensus::{Devices, Mutant, Network, Options, Peer, Seat, Store, Timing};
use freebs_control::{Command, CreateVolume, Outcome as Came, State};
use freebs_io::Random;
use freebs_io::faults::{CrashDevice, Survives};
use freebs_types::*;
use openraft::EntryPayload;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Luck(pub u64);

impl Luck {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

impl Random for Luck {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|c| c.copy_from_slice(&self.next().to_le_bytes()[..c.len()]));
    }
}

/// What a run did; equal for equal seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub acked: u64,
    pub refused: u64,
    pub kills: u64,
    pub cuts: u64,
    pub wiped: u64,
    pub repeats: u64,
    pub installs: u64,
    pub leaders: u64,
    pub voters_changed: u64,
    /// Orders to give the shards of failed nodes to others.
    pub fail_overs: u64,
    pub index: u64,
    /// Of everything that was sent and applied, in order.
    pub trace: u64,
}

impl Outcome {
    pub fn add(&mut self, o: &Self) {
        self.acked += o.acked;
        self.refused += o.refused;
        self.kills += o.kills;
        self.cuts += o.cuts;
        self.wiped += o.wiped;
        self.repeats += o.repeats;
        self.installs += o.installs;
        self.leaders += o.leaders;
        self.voters_changed += o.voters_changed;
        self.fail_overs += o.fail_overs;
        self.index += o.index;
        self.trace ^= o.trace;
    }
}

/// What the cluster has decided, as far as anybody has applied it.
#[derive(Default)]
struct Oracle {
    /// By index: the machine after it, and the entry.
    states: BTreeMap<u64, ([u8; 32], String)>,
    /// First index of each command.
    first: BTreeMap<(u64, u64), u64>,
    leaders: BTreeMap<u64, Seat>,
    /// In which start of a seat a request got its number.
    requests: BTreeMap<(Seat, u64), StartNumber>,
    /// Who got which generation, as applied.
    generations: BTreeMap<(u64, u64), String>,
    /// Acknowledged: volume, generation, who.
    acked: Vec<(u64, u64, String)>,
    /// Nodes that were taken for failed, as applied.
    failed: BTreeSet<NodeId>,
    voters: BTreeSet<Vec<Seat>>,
    /// Messages that were sent.
    sent: u64,
    /// Messages that must not be sent. A task of a process that panics ends alone, so the world looks here.
    wrong: Vec<String>,
    out: Outcome,
}

fn mix(trace: &mut u64, bytes: &[u8]) {
    let h = blake3::hash(bytes);
    *trace = trace.rotate_left(5) ^ u64::from_le_bytes(h.as_bytes()[..8].try_into().unwrap());
}

impl Oracle {
    fn applied(&mut self, entry: &Entry, machine: &Machine) {
        let index = entry.log_id.index();
        let hash = *blake3::hash(&machine.encode()).as_bytes();
        let what = format!("{:?}", entry.payload);
        mix(&mut self.out.trace, &hash);
        let known = self.states.entry(index).or_insert_with(|| (hash, what.clone()));
        assert_eq!(known.1, what, "two entries at index {index}");
        assert_eq!(known.0, hash, "two states at index {index}");
        self.out.index = self.out.index.max(index);
        if let EntryPayload::Membership(m) = &entry.payload {
            self.voters.insert(m.voter_ids().collect());
        }
        let EntryPayload::Normal(Proposal::Command { session, number, command, .. }) = &entry.payload else { return };
        let first = *self.first.entry((*session, *number)).or_insert(index);
        assert!(first <= index);
        if let Command::FailOver { nodes } = command.as_ref() {
            self.out.fail_overs += u64::from(first == index);
            self.failed.extend(nodes.iter().map(|(n, _)| *n));
        }
        if let Command::AttachVolume { volume, name, .. } = command.as_ref() {
            let Some(v) = machine.state.volume(*volume) else { return };
            if first == index && v.holder.as_ref().is_some_and(|h| h.name == *name) {
                let old = self.generations.insert((volume.0, v.generation.0), name.clone());
                assert!(old.is_none_or(|o| o == *name), "a generation was given twice");
            } else if first < index {
                self.out.repeats += 1;
                let known = self.generations.contains_key(&(volume.0, v.generation.0));
                assert!(known, "a repeated command was applied again at index {index}");
            }
        }
    }

    fn sent(&mut self, from: Seat, bytes: &[u8]) {
        self.sent += 1;
        mix(&mut self.out.trace, bytes);
        let (envelope, message) = Message::decode(bytes).expect("what is sent can be read");
        // An answer to a request of an earlier start, still on its way, must not pass for one to a request of this one.
        if envelope.id != 0 && !message.is_reply() {
            let start = *self.requests.entry((from, envelope.id)).or_insert(envelope.start);
            if start != envelope.start {
                self.wrong.push(format!("a number of a request of {from} was used in an earlier start"));
            }
        }
        match message {
            Message::Append(r) => {
                let term = r.vote.leader_id.term;
                let leader = *self.leaders.entry(term).or_insert(from);
                if leader != from {
                    self.wrong.push(format!("two leaders act in term {term}"));
                }
            }
            Message::PieceReply { vote: Some(_), .. } => self.out.installs += 1,
            Message::Propose(Proposal::Command { command, .. }) => {
                let is_leaders = matches!(
                    command.as_ref(),
                    Command::FailOver { .. }
                        | Command::ReplaceHead { .. }
                        | Command::ReplaceMembers { .. }
                        | Command::ExtendChains { .. }
                        | Command::LeaveChains { .. }
                        | Command::StandIn { .. }
                );
                if is_leaders {
                    self.wrong.push(format!("{from} does not lead and decides (L5): {command:?}"));
                }
            }
            _ => {}
        }
    }
}

enum Process {
    Down,
    Up { task: JoinHandle<()>, peer: Rc<RefCell<Option<SimPeer>>> },
}

pub(super) type SimPeer = Peer;

struct Node {
    id: NodeId,
    device: CrashDevice,
    /// As the superblock of the node's own device has it.
    start: StartNumber,
    /// The start in which the store was opened last, as noted there.
    noted: StartNumber,
    process: Process,
    /// The power is off, so that nobody says that no process listens there.
    dark: bool,
    blank: bool,
    /// As its messages say it.
    devices: Devices,
    /// The device before the newest start, and whether it was put back.
    yesterday: Option<CrashDevice>,
    put_back: bool,
    /// An old image that nothing tells: what it applies need not be what others do.
    is_apart: bool,
}

type Teller = Rc<dyn Fn(NodeId)>;

pub struct World {
    nodes: RefCell<Vec<Node>>,
    oracle: RefCell<Oracle>,
    luck: RefCell<Luck>,
    pub(super) cut: RefCell<BTreeSet<(u64, u64)>>,
    /// Links that the machine at their end refuses although a process listens there.
    pub(super) broken: RefCell<BTreeSet<(u64, u64)>>,
    /// How often in a row a link was closed by its end or refused there, and who is told of it, by who opens links.
    refused: RefCell<BTreeMap<(u64, u64), u64>>,
    tellers: RefCell<BTreeMap<u64, Teller>>,
    /// One message in so many is lost; 0: none.
    loss: Cell<u64>,
    slow: Cell<u64>,
    mail: tokio::sync::mpsc::UnboundedSender<(u64, Seat, Vec<u8>)>,
    mutant: Option<Mutant>,
    founded: Cell<bool>,
}

/// A node's way into the network.
struct Wire {
    world: Rc<World>,
    from: Seat,
}

impl Network for Wire {
    fn send(&self, to: Seat, message: Vec<u8>) {
        let w = &self.world;
        w.oracle.borrow_mut().sent(self.from, &message);
        let way = (self.from.node.0, to.node.0);
        let luck = &mut w.luck.borrow_mut();
        let lost = w.loss.get() > 0 && luck.one_in(w.loss.get());
        if lost || w.cut.borrow().contains(&way) {
            return;
        }
        match w.refuses(way) {
            Some(true) => {
                let (world, delay) = (w.clone(), 1 + luck.below(w.slow.get()));
                spawn_local(async move { world.close_later(way, delay).await });
                return;
            }
            Some(false) => {
                w.refused.borrow_mut().remove(&way);
            }
            None => {}
        }
        let copies = if luck.one_in(50) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = 1 + luck.below(w.slow.get());
            let _ = w.mail.send((delay, to, message.clone()));
        }
    }

    fn refusals(&self, node: NodeId) -> u64 {
        self.world.refused.borrow().get(&(self.from.node.0, node.0)).copied().unwrap_or(0)
    }

    fn devices(&self) -> Devices {
        self.world.nodes.borrow()[self.from.node.0 as usize - 1].devices
    }

    fn on_loss(&self, tell: Teller) {
        self.world.tellers.borrow_mut().insert(self.from.node.0, tell);
    }
}

fn timing() -> Timing {
    Timing {
        heartbeat_ms: 100,
        election_ms: 600,
        answer_ms: 800,
        gone_ms: 6000,
        fail_ms: 1500,
        submit_ms: 6000,
        snapshot_entries: 16,
    }
}

impl World {
    pub(super) fn count(&self) -> usize {
        self.nodes.borrow().len()
    }

    pub(super) fn chance(&self) -> u64 {
        self.luck.borrow_mut().next()
    }

    pub(super) fn below(&self, n: u64) -> u64 {
        self.luck.borrow_mut().below(n)
    }

    pub(super) fn peer(&self, node: usize) -> Option<SimPeer> {
        match &self.nodes.borrow()[node].process {
            Process::Up { peer, .. } => peer.borrow().clone(),
            Process::Down => None,
        }
    }

    /// True if a link is refused at its end, false if it is open; `None` if nobody can say.
    fn refuses(&self, way: (u64, u64)) -> Option<bool> {
        let nodes = self.nodes.borrow();
        let to = nodes.iter().find(|n| n.id.0 == way.1)?;
        let is_down = matches!(to.process, Process::Down);
        let no_answer = self.cut.borrow().contains(&(way.1, way.0)) || (is_down && to.dark);
        (!no_answer).then(|| is_down || self.broken.borrow().contains(&way))
    }

    /// After a while one end hears that the other one has closed the link, or refuses a new one.
    async fn close_later(&self, way: (u64, u64), delay_ms: u64) {
        sleep(delay_ms).await;
        if self.refuses(way) == Some(true) {
            *self.refused.borrow_mut().entry(way).or_default() += 1;
            let tell = self.tellers.borrow().get(&way.0).cloned();
            tell.iter().for_each(|tell| tell(NodeId(way.1)));
        }
    }

    /// The link from one node to another breaks, and can't be opened again.
    pub(super) async fn break_link(&self, way: (u64, u64)) {
        self.broken.borrow_mut().insert(way);
        self.close_later(way, 1).await;
    }

    /// Starts a node's process on the device that it has.
    pub(super) fn boot(self: &Rc<Self>, node: usize) {
        let world = self.clone();
        let here = node as u64 + 1;
        self.refused.borrow_mut().retain(|way, _| way.0 != here);
        self.nodes.borrow_mut()[node].dark = false;
        let (seed, random) = (self.chance(), Luck(self.chance()));
        let slot = Rc::new(RefCell::new(None));
        let shown = slot.clone();
        let task = spawn_local(async move {
            let local = LocalSet::new();
            local.run_until(world.process(node, seed, random, slot)).await;
        });
        self.nodes.borrow_mut()[node].process = Process::Up { task, peer: shown };
    }

    async fn process(self: Rc<Self>, node: usize, seed: u64, random: Luck, slot: Rc<RefCell<Option<SimPeer>>>) {
        let (mut device, id, start, noted, blank, put_back) = {
            let n = &mut self.nodes.borrow_mut()[node];
            n.start = n.start.next();
            (n.device.clone(), n.id, n.start, n.noted, n.blank, n.put_back)
        };
        let options = Options { cluster: CLUSTER, node: id, start, noted, room: 24 << 10, mutant: self.mutant };
        let random: Box<dyn Random> = Box::new(random);
        let before = Some(device.copy()).filter(|_| !blank && !put_back);
        let opened = Store::open(device.clone(), options, random).await;
        let store = match opened {
            // Rule V8: yesterday's store is noticed, and the node comes back in a new seat.
            Err(e) if put_back => {
                assert!(e.kind == ErrorKind::Corrupt && e.text.contains("old image"), "{e}");
                device = CrashDevice::new(4096, 1 << 30);
                self.nodes.borrow_mut()[node].device = device.clone();
                let random = Box::new(Luck(seed ^ 2));
                Store::create(device, options, random).await.expect("a blank device takes a store")
            }
            Ok(_) if put_back => panic!("an old image was believed"),
            Err(e) if e.kind == ErrorKind::NotFound && blank => {
                let random = Box::new(Luck(seed ^ 1));
                Store::create(device, options, random).await.expect("a blank device takes a store")
            }
            other => other.expect("a store can be opened after any crash"),
        };
        {
            let n = &mut self.nodes.borrow_mut()[node];
            n.noted = store.start_number();
            n.blank = false;
            n.put_back = false;
            n.yesterday = before;
        }
        let world = self.clone();
        let watcher = Rc::new(move |e: &Entry, m: &Machine| {
            if !world.nodes.borrow()[node].is_apart {
                world.oracle.borrow_mut().applied(e, m);
            }
        });
        let wire = Wire { world: self.clone(), from: store.seat() };
        let contacts = self.nodes.borrow().iter().map(|n| n.id).collect();
        let fresh = store.read(|c| c.vote.is_none() && c.entries.is_empty() && c.snapshot.is_none());
        let peer = Peer::start(store, wire, timing(), contacts, seed, Some(watcher)).await.expect("it starts");
        if node == 0 && fresh && !self.founded.replace(true) {
            Randomness::scope(seed, peer.found()).await.expect("it is the first");
        }
        *slot.borrow_mut() = Some(peer);
        std::future::pending::<()>().await;
    }

    /// From now on the messages of a node say this of its devices.
    pub(super) fn say_devices(&self, node: usize, devices: Devices) {
        self.nodes.borrow_mut()[node].devices = devices;
    }

    /// The store of a node, and what is noted of it, as they are now.
    pub(super) fn image(&self, node: usize) -> (CrashDevice, StartNumber) {
        let n = &self.nodes.borrow()[node];
        (n.device.copy(), n.noted)
    }

    /// Puts that in, in a node that is down. What it applies is not looked at from now on.
    pub(super) fn put_in(&self, node: usize, (device, noted): (CrashDevice, StartNumber)) {
        let n = &mut self.nodes.borrow_mut()[node];
        (n.device, n.start, n.noted, n.is_apart) = (device, noted, noted, true);
    }

    /// A node that is down gets the store of a cluster that is founded with a state that was made again.
    pub(super) async fn make_again(&self, node: usize, seed: u64) {
        let device = CrashDevice::new(4096, 1 << 30);
        let (id, start) = (self.nodes.borrow()[node].id, StartNumber(1));
        let noted = StartNumber(0);
        let options = Options { cluster: CLUSTER, node: id, start, noted, room: 24 << 10, mutant: self.mutant };
        let state = State::made_again(CLUSTER, 1_000_000);
        let founded = Store::found(device.clone(), options, Box::new(Luck(seed)), &state).await;
        let noted = founded.expect("a blank device takes a store").start_number();
        self.put_in(node, (device, noted));
    }

    /// The process is gone, with or without the power. Without a process the machine closes its links.
    pub(super) async fn kill(self: &Rc<Self>, node: usize, power: bool) {
        let process = std::mem::replace(&mut self.nodes.borrow_mut()[node].process, Process::Down);
        if let Process::Up { task, .. } = process {
            task.abort();
            if let Err(e) = task.await
                && e.is_panic()
            {
                std::panic::resume_unwind(e.into_panic());
            }
        }
        let (seed, how) = (self.chance(), self.below(4));
        let here = node as u64 + 1;
        self.tellers.borrow_mut().remove(&here);
        let n = &mut self.nodes.borrow_mut()[node];
        n.dark |= power;
        if !n.dark {
            let others: Vec<u64> = self.tellers.borrow().keys().copied().collect();
            for other in others {
                let (world, delay) = (self.clone(), 1 + self.below(self.slow.get()));
                spawn_local(async move { world.close_later((other, here), delay).await });
            }
        }
        if power {
            let survives = match how {
                0 => Survives::Nothing,
                1 => Survives::Everything,
                2 => Survives::Some(seed),
                _ => Survives::Torn(seed),
            };
            n.device = n.device.cut().image(survives);
        } else {
            n.device.kill(seed);
            n.device.stop_at(u64::MAX);
        }
    }

    /// Panics of processes are those of the test.
    pub(super) async fn check(self: &Rc<Self>) {
        let dead: Vec<usize> = {
            let nodes = self.nodes.borrow();
            let ended = |n: &Node| matches!(&n.process, Process::Up { task, .. } if task.is_finished());
            (0..nodes.len()).filter(|i| ended(&nodes[*i])).collect()
        };
        for node in dead {
            self.kill(node, false).await;
        }
        for node in 0..self.count() {
            if let Some(peer) = self.peer(node) {
                peer.check().unwrap_or_else(|e| panic!("node {node} stopped: {e}"));
            }
        }
        let wrong = &self.oracle.borrow().wrong;
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    pub(super) async fn client(self: Rc<Self>, number: u64) {
        for op in 0.. {
            let pause = 20 + self.below(300);
            sleep(pause).await;
            let node = self.below(self.count() as u64) as usize;
            let Some(peer) = self.peer(node) else { continue };
            let volume = VolumeId(1 + self.below(2));
            let name = format!("client{number}-{op}");
            let command = Command::AttachVolume {
                volume,
                identity: Hash32([1; 32]),
                name: name.clone(),
                force: true,
                since: None,
                lapsed: false,
            };
            let seed = self.chance();
            match Randomness::scope(seed, peer.submit(command)).await {
                Ok(done) => {
                    let Came::Attached { generation, .. } = done.outcome else {
                        panic!("an attach is answered by one")
                    };
                    assert!(peer.state().revision() >= done.revision, "what is answered is seen");
                    let o = &mut self.oracle.borrow_mut();
                    o.out.acked += 1;
                    o.acked.push((volume.0, generation.0, name));
                }
                Err(e) => {
                    assert!(matches!(e.kind, ErrorKind::Retry | ErrorKind::NotFound), "{e:?}");
                    self.oracle.borrow_mut().out.refused += 1;
                }
            }
        }
    }

    pub(super) async fn set_up(&self) {
        for _ in 0..200 {
            sleep(100).await;
            let Some(peer) = self.peer(0) else { continue };
            let Some(volume) = [1, 2].into_iter().find(|v| peer.state().volume(VolumeId(*v)).is_none()) else { return };
            let ids: Vec<NodeId> = self.nodes.borrow().iter().map(|n| n.id).collect();
            for node in ids {
                let (name, address, start) = (format!("data{node}"), format!("h{node}:1"), StartNumber(1));
                let node = Command::RegisterNode { node, name, address, workers: 1, start };
                let _ = Randomness::scope(volume, peer.submit(node)).await;
            }
            let new = CreateVolume { name: format!("v{volume}"), size: 1 << 30, ..CreateVolume::default() };
            let _ = Randomness::scope(volume, peer.submit(Command::CreateVolume(new))).await;
        }
        panic!("a cluster without faults does not get going");
    }

    fn partition(&self) {
        let count = self.nodes.borrow().len() as u64;
        let mut cut = self.cut.borrow_mut();
        match self.below(5) {
            0 => cut.clear(),
            2 => {
                self.broken.borrow_mut().insert((1 + self.below(count), 1 + self.below(count)));
            }
            1 => {
                let side = self.below(1 << count);
                for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
                    if (side >> a & 1) != (side >> b & 1) {
                        cut.insert((a + 1, b + 1));
                    }
                }
            }
            _ => {
                cut.insert((1 + self.below(count), 1 + self.below(count)));
            }
        }
    }

    async fn fault(self: &Rc<Self>) {
        let node = self.below(self.count() as u64) as usize;
        match self.below(10) {
            0..=3 => {
                // At one of the next calls of its device.
                let device = self.nodes.borrow()[node].device.clone();
                let at = device.calls() + 1 + self.below(8);
                device.stop_at(at);
                for _ in 0..40 {
                    sleep(25).await;
                    if device.calls() >= at {
                        break;
                    }
                }
                let power = self.below(3) > 0;
                let running = matches!(self.nodes.borrow()[node].process, Process::Up { .. });
                self.kill(node, power).await;
                let o = &mut self.oracle.borrow_mut().out;
                o.kills += u64::from(running);
                o.cuts += u64::from(running && power);
            }
            4 => self.partition(),
            5 => {
                self.cut.borrow_mut().clear();
                self.broken.borrow_mut().clear();
            }
            6 => self.loss.set([0, 3, 10, 30][self.below(4) as usize]),
            7 => self.slow.set([5, 20, 150][self.below(3) as usize]),
            8 => self.wipe(node).await,
            _ => {
                // All power at once.
                for node in 0..self.count() {
                    self.kill(node, true).await;
                }
                self.oracle.borrow_mut().out.cuts += 1;
            }
        }
        sleep(self.below(1500)).await;
        for node in 0..self.count() {
            let down = matches!(self.nodes.borrow()[node].process, Process::Down);
            if down && self.below(4) > 0 {
                self.boot(node);
            }
        }
    }

    /// A node loses its store, or gets yesterday's back, once in a run, while there are voters enough that none of the others is missed.
    async fn wipe(self: &Rc<Self>, node: usize) {
        let enough = self.peer(node).is_some_and(|p| p.machine(|m| m.membership.voter_ids().count() >= 3));
        if self.oracle.borrow().out.wiped > 0 || !enough {
            return;
        }
        self.kill(node, true).await;
        let old = self.below(2) == 0;
        let n = &mut self.nodes.borrow_mut()[node];
        match n.yesterday.take().filter(|_| old) {
            Some(old) => (n.device, n.put_back) = (old, true),
            None => (n.device, n.blank) = (CrashDevice::new(4096, 1 << 30), true),
        }
        self.oracle.borrow_mut().out.wiped += 1;
    }

    async fn converge(self: &Rc<Self>) {
        self.cut.borrow_mut().clear();
        self.broken.borrow_mut().clear();
        self.loss.set(0);
        self.slow.set(10);
        let count = self.nodes.borrow().len();
        for node in 0..count {
            self.nodes.borrow()[node].device.stop_at(u64::MAX);
        }
        for node in 0..count {
            // A call that hangs for ever ends with its process.
            self.kill(node, false).await;
            self.boot(node);
        }
        for _ in 0..600 {
            sleep(100).await;
            self.check().await;
            let indexes: BTreeSet<_> = (0..count)
                .map(|n| {
                    self.peer(n).and_then(|p| {
                        p.machine(|m| {
                            m.applied
                                .map(|a| (a.index(), m.membership.clone()))
                                .map(|(i, m)| (i, m.voter_ids().count()))
                        })
                    })
                })
                .collect();
            let settled = indexes.len() == 1
                && indexes.first().is_some_and(|i| {
                    i.is_some_and(|(i, v)| i >= self.oracle.borrow().out.index && v == wanted_voters(count))
                });
            if settled {
                return;
            }
        }
        let seen: Vec<_> = (0..count).map(|n| self.peer(n).map_or("down".into(), |p| p.describe())).collect();
        let seen = seen.join("\n");
        panic!("the nodes do not agree after the faults:\n{seen}");
    }

    /// Messages that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.oracle.borrow().sent
    }

    /// From now on only those count that are taken for failed then.
    pub(super) fn forget_failed(&self) {
        self.oracle.borrow_mut().failed.clear();
    }

    /// Nodes that were ever taken for failed.
    pub(super) fn failed(&self) -> BTreeSet<NodeId> {
        self.oracle.borrow().failed.clone()
    }

    fn verify(&self) {
        let o = self.oracle.borrow();
        for (volume, generation, name) in &o.acked {
            assert_eq!(o.generations.get(&(*volume, *generation)), Some(name), "an acknowledged command is lost");
        }
        let mut names: Vec<&String> = o.generations.values().collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "a command counts twice");
        let peer = self.peer(0).expect("all run");
        let state = peer.state();
        for v in state.volumes() {
            let highest = o.acked.iter().filter(|(id, ..)| *id == v.id.0).map(|a| a.1).max().unwrap_or(0);
            assert!(v.generation.0 >= highest, "the state went back");
        }
    }
}

fn wanted_voters(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

pub(super) async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn deliver(world: Rc<World>, mut mail: tokio::sync::mpsc::UnboundedReceiver<(u64, Seat, Vec<u8>)>) {
    while let Some((delay, to, bytes)) = mail.recv().await {
        let world = world.clone();
        spawn_local(async move {
            sleep(delay).await;
            if let Some(peer) = world.peer(to.node.0 as usize - 1) {
                peer.receive(bytes);
            }
        });
    }
}

/// A cluster of which nothing runs yet.
pub(super) fn world(count: u64, luck: Luck, mutant: Option<Mutant>) -> Rc<World> {
    let (mail, letters) = tokio::sync::mpsc::unbounded_channel();
    let node = |i| Node {
        id: NodeId(i + 1),
        device: CrashDevice::new(4096, 1 << 30),
        start: StartNumber(0),
        noted: StartNumber(0),
        process: Process::Down,
        dark: false,
        blank: true,
        devices: Devices::Work,
        yesterday: None,
        put_back: false,
        is_apart: false,
    };
    let world = Rc::new(World {
        nodes: RefCell::new((0..count).map(node).collect()),
        oracle: RefCell::default(),
        luck: RefCell::new(luck),
        cut: RefCell::default(),
        broken: RefCell::default(),
        refused: RefCell::default(),
        tellers: RefCell::default(),
        loss: Cell::new(0),
        slow: Cell::new(10),
        mail,
        mutant,
        founded: Cell::new(false),
    });
    spawn_local(deliver(world.clone(), letters));
    world
}

async fn life(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let mut luck = Luck(seed);
    let count = [1u64, 2, 3, 3, 5, 5][luck.below(6) as usize];
    let world = world(count, luck, mutant);
    (0..count as usize).for_each(|n| world.boot(n));
    world.set_up().await;
    let clients: Vec<_> = (0..3).map(|n| spawn_local(world.clone().client(n))).collect();
    sleep(2000).await;
    for _ in 0..12 {
        world.fault().await;
        world.check().await;
    }
    world.converge().await;
    sleep(2000).await;
    for c in clients {
        c.abort();
        if let Err(e) = c.await
            && e.is_panic()
        {
            std::panic::resume_unwind(e.into_panic());
        }
    }
    world.converge().await;
    world.verify();
    let mut o = world.oracle.borrow_mut();
    o.out.leaders = o.leaders.len() as u64;
    o.out.voters_changed = o.voters.len() as u64;
    o.out.clone()
}

/// Runs a story in simulated time.
pub fn told<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = LocalSet::new();
    local.block_on(&runtime, story)
}

/// Runs one seed. Panics if something does not hold.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    told(life(seed, mutant))
}

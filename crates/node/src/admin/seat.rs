//! A node's seat in the control plane, on a thread of its own, because every change waits for the disk.
//!
//! The thread opens the store (a file of its own in the data directory, through the same device as the log), tells old
//! and blank stores from the present one by the note beside it, founds the cluster or goes on with it, and from then
//! on serves commands and messages.
//!
//! Invariants:
//! - A cluster is founded at most once: by its first node, or with an authority by the one whose file says so, when
//!   neither a store nor a note nor a device that ran before is there. What an earlier version kept of the control state is what it is founded with.
//! - A store that is damaged, lost, or older than its note never votes: the node takes a new seat, and is a learner
//!   until the others give it a vote. A node that has nobody to learn from stops instead (rule V8).
//! - Messages carry the start number that is durable on the node's devices, so that the others drop those of an old
//!   image of the node (rule V8).

use super::client::Client;
use super::earlier;
use super::seat_files::{NOTE_FILE, STORE_FILE};
use super::seat_links::{Book, Health, SeatLinks};
use crate::events::EventLog;
use crate::fill::Fill;
use crate::timing;
use crate::{files, headroom};
use freebs_consensus::handle::{Desk, Handle, handle};
use freebs_consensus::machine::{Machine, what_is};
use freebs_consensus::note::{Instead, NOTE_BYTES, SeatNote};
use freebs_consensus::wire::MESSAGE_VERSION;
use freebs_consensus::{Devices, Options, Peer, Store, Timing, Watcher, limits};
use freebs_control::api::Request;
use freebs_control::events::{EventKind, Told, told};
use freebs_control::{Command, State};
use freebs_io::Random;
use freebs_io::linux::ring::Ring;
use freebs_io::linux::{DeviceOptions, FileDevice, OsRandom, Pulse};
use freebs_types::{
    ClusterId, Error, ErrorKind, HostPublic, NodeId, Result, SnapshotId, StartNumber, limits as common,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// What a store that must not be used is put aside as.
const ASIDE: &str = "control.store.unusable";
/// Messages that wait for the seat; beyond, the connections that bring them are not read.
const MESSAGES_MAX: usize = 64;

/// What a seat needs to know.
#[derive(Clone, Debug)]
pub struct SeatOptions {
    pub cluster: ClusterId,
    pub node: NodeId,
    /// Where its files lie.
    pub data: PathBuf,
    /// Nodes that the cluster begins with and where they are, this one included.
    pub members: Vec<Command>,
    /// Others that this node knows of, and where they may be.
    pub peers: BTreeMap<NodeId, String>,
    /// Nodes join the cluster with tokens.
    pub authority: Option<Authority>,
    /// It founds the cluster, if that was not done yet.
    pub founder: bool,
    /// No other node can go on with the control state, though others may be known.
    pub is_alone: bool,
    /// The cluster was in use before: its state is somewhere, and is not begun anew.
    pub was_in_use: bool,
    /// Highest number that this node's devices come with; 0 if there are none.
    pub came_with: StartNumber,
    /// Hears of what is decided.
    pub events: Arc<EventLog>,
    /// A node that is away for so long is replaced, as a voter and in its chains.
    pub replace_after: Duration,
    /// Of the node's devices, that of its store among them.
    pub pulse: Pulse,
    /// The room of the node's logs.
    pub fill: Fill,
}

/// Of a cluster that nodes join.
#[derive(Clone, Copy, Debug)]
pub struct Authority {
    /// Public half of the authority's key.
    pub key: HostPublic,
    /// Public half of this node's.
    pub identity: HostPublic,
}

/// What the seat's thread is told.
pub(super) enum Order {
    /// A message from another seat.
    Message(Vec<u8>),
    /// A node says where it is.
    Address(NodeId, String),
    /// Answer once all is applied here that was committed until now.
    CatchUp(oneshot::Sender<Result<()>>),
    /// This start number is durable on the devices.
    Started(StartNumber),
    /// The cluster has taken the node in.
    TakenIn,
}

/// What others see of the seat.
#[derive(Clone, Debug)]
pub(super) struct SeatPort {
    pub node: NodeId,
    pub cluster: ClusterId,
    pub orders: mpsc::Sender<Order>,
    #[cfg(test)]
    pub events: Arc<EventLog>,
    seen: Arc<Seen>,
}

/// What the seat's thread knows of the others, for whoever asks.
#[derive(Debug, Default)]
struct Seen {
    /// The node that leads; 0 for none.
    leader: AtomicU64,
    voters: AtomicU64,
    votes: AtomicBool,
    /// Its store has failed: it takes no part until the node is started again.
    is_out: AtomicBool,
    /// The others have said that this node runs on an old copy of what it had.
    old: OnceLock<Error>,
    /// It was told already that a node of another cluster was refused.
    refused: AtomicBool,
    /// Messages of another version that were dropped, by the node that sent them.
    others: Mutex<BTreeMap<NodeId, u64>>,
    /// Nodes that this one does not know, and when they were let in last.
    knocked: Mutex<BTreeMap<NodeId, Instant>>,
}

impl SeatPort {
    pub fn leads(&self) -> bool {
        self.seen.leader.load(Ordering::Relaxed) == self.node.0
    }

    pub fn votes(&self) -> bool {
        self.seen.votes.load(Ordering::Relaxed)
    }

    /// True if it has the only vote; `None` if its store says nothing of that, or has failed.
    pub fn has_only_vote(&self) -> Option<bool> {
        let voters = self.seen.voters.load(Ordering::Acquire);
        let votes = self.seen.votes.load(Ordering::Acquire);
        (voters > 0 && self.check().is_ok()).then_some(voters == 1 && votes)
    }

    /// Waits until the others have said that this node runs on an old copy of what it had.
    pub async fn is_old(&self) -> Error {
        loop {
            if let Some(e) = self.seen.old.get() {
                return e.clone();
            }
            tokio::time::sleep(timing::SEAT_LOOK).await;
        }
    }

    /// `Retry` if this node's control store has failed: what it knows is old, and it would never learn better.
    pub fn check(&self) -> Result<()> {
        if self.seen.is_out.load(Ordering::Relaxed) {
            return Err(Error::retry(
                "the control store of this node has failed, so it takes no part in the control plane until it is \
                 started again; ask another node",
            ));
        }
        Ok(())
    }

    /// A node of another cluster wants to take part in this one: refused, and told once.
    pub fn refuse(&self, node: NodeId, cluster: ClusterId) -> Error {
        let e = Error::invalid(format!(
            "refused: node {node} belongs to the cluster {cluster}, and this node to {}; if it should be here, give it \
             a cluster file of this cluster and an empty data directory",
            self.cluster
        ));
        if !self.seen.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("{e}");
        }
        e
    }

    /// Counts a message of another version, which is dropped. It is told of the first one of a node, of the second, the
    /// fourth, and so on.
    pub fn drop_other(&self, node: NodeId, version: u16) -> Option<Error> {
        let mut all = self.seen.others.lock().unwrap_or_else(|e| e.into_inner());
        if all.len() >= common::NODES_MAX && !all.contains_key(&node) {
            return None;
        }
        let count = all.entry(node).or_default();
        *count += 1;
        count.is_power_of_two().then(|| {
            Error::invalid(format!(
                "node {node} sends messages of version {version} to the control plane, and this node knows version \
                 {MESSAGE_VERSION} alone: the two do not hear each other ({count} dropped). Run the same version of \
                 freebs on all nodes: stop those that run another one, and start them with it"
            ))
        })
    }

    /// A node that votes alone may run on an old copy of its store, and one that it does not know may have joined since:
    /// true if such a node is to be let in now, for a moment, so that the seats can find out.
    pub fn may_knock(&self, node: NodeId) -> bool {
        if self.seen.voters.load(Ordering::Relaxed) > 1 {
            return false;
        }
        let mut all = self.seen.knocked.lock().unwrap_or_else(|e| e.into_inner());
        let was_in = all.get(&node).is_some_and(|at| at.elapsed() < timing::KNOCK_AGAIN);
        if was_in || (all.len() >= common::NODES_MAX && !all.contains_key(&node)) {
            return false;
        }
        all.insert(node, Instant::now());
        true
    }

    /// The node that leads, as far as is known here.
    pub fn leader(&self) -> Option<NodeId> {
        Some(NodeId(self.seen.leader.load(Ordering::Relaxed))).filter(|n| n.0 > 0)
    }

    /// How many nodes vote, as far as is known here.
    pub fn voters(&self) -> u64 {
        self.seen.voters.load(Ordering::Relaxed)
    }
}

/// Starts the thread; returns when the store is open and the seat works.
pub(super) async fn start(options: SeatOptions) -> Result<(Handle, SeatPort)> {
    let (orders, queue) = mpsc::channel(MESSAGES_MAX);
    let seen = Arc::new(Seen::default());
    let port = SeatPort {
        node: options.node,
        cluster: options.cluster,
        orders,
        #[cfg(test)]
        events: options.events.clone(),
        seen: seen.clone(),
    };
    let (control, desk) = handle(Arc::new(State::new(options.cluster)));
    let (tell, started) = oneshot::channel();
    let run = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(r) => r,
            Err(e) => {
                let _ = tell.send(Err(Error::os(format!("can't start a runtime for the control plane: {e}"))));
                return;
            }
        };
        LocalSet::new().block_on(&runtime, async move {
            match open(&options).await {
                Ok(seat) => {
                    let _ = tell.send(Ok(()));
                    run(seat, desk, queue, &seen, &options).await;
                }
                Err(e) => {
                    let _ = tell.send(Err(e));
                }
            }
        });
    };
    let thread = std::thread::Builder::new().name("control".into());
    thread.spawn(run).map_err(|e| Error::os(format!("can't start a thread for the control plane: {e}")))?;
    started.await.map_err(|_| Error::bug("the control plane's thread ended before it began"))??;
    Ok((control, port))
}

type SeatPeer = Peer;

/// The seat at work.
struct Seat {
    peer: SeatPeer,
    /// What is durable on the devices.
    start: Rc<Cell<StartNumber>>,
    health: Health,
    book: Book,
}

/// Opens the store and starts the seat on it.
async fn open(options: &SeatOptions) -> Result<Seat> {
    let store = open_store(options).await?;
    let start = Rc::new(Cell::new(options.came_with));
    let addresses = options.addresses();
    let contacts = addresses.keys().copied().collect();
    let health = Health { pulse: options.pulse.clone(), fill: options.fill.clone(), ..Health::default() };
    let links = SeatLinks::new(options.cluster, options.node, addresses, start.clone(), health.clone());
    let book = links.book();
    let mut random = OsRandom;
    let watcher = tell_decisions(options.events.clone(), store.read(|c| c.last().map_or(0, |last| last.index())));
    let gone_ms = u64::try_from(options.replace_after.as_millis()).unwrap_or(u64::MAX);
    let timing = Timing { gone_ms, ..Timing::default() };
    let peer = Peer::start(store, links, timing, contacts, random.next_u64(), Some(watcher)).await?;
    let (events, known) = (options.events.clone(), peer.watch());
    peer.tell_failures(move |node, why| {
        let name = known.now().node(node).map_or_else(|| node.to_string(), |n| n.name.clone());
        events.tell(Told::new(EventKind::NodeFailed, why).about(name));
    });
    let mut state = peer.watch();
    let registered = book.clone();
    peer.spawn(async move {
        loop {
            registered.learn(&state.now());
            if !state.next().await {
                return;
            }
        }
    });
    Ok(Seat { peer, start, health, book })
}

/// Tells of each command that is applied. Entries up to `last` were in the store before this start.
fn tell_decisions(events: Arc<EventLog>, last: u64) -> Watcher {
    let before: RefCell<(u64, Arc<State>)> = RefCell::default();
    Rc::new(move |entry, machine| {
        let (index, command) = what_is(entry);
        let (at, state) = before.replace((index, machine.state.clone()));
        // Behind a snapshot it is not known what the first command found.
        if at + 1 == index
            && let Some(command) = command
        {
            events.decided(told(&state, command, &machine.state), index <= last);
        }
    })
}

/// Serves until nobody can ask any more.
async fn run(seat: Seat, desk: Desk, mut orders: mpsc::Receiver<Order>, seen: &Seen, options: &SeatOptions) {
    let peer = &seat.peer;
    let stands = peer.clone();
    peer.spawn(async move { stands.stand_after_start(OsRandom.next_u64()).await });
    let told = async {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Message(message) => peer.receive(message),
                Order::Address(node, address) => seat.book.hear(node, address),
                Order::CatchUp(done) => {
                    let (asked, book) = (peer.clone(), seat.book.clone());
                    peer.spawn(async move {
                        let came = tokio::select! {
                            came = asked.catch_up() => came,
                            e = foreign(&asked, &book) => Err(e),
                        };
                        let _ = done.send(came);
                    });
                }
                Order::Started(number) => seat.start.set(number),
                Order::TakenIn => seat.health.works.set(true),
            }
        }
    };
    let look = async {
        let (mut complained, mut silent) = (false, false);
        loop {
            if (seat.health.devices() == Devices::Silent) != silent {
                silent = !silent;
                tell_silence(options.events.clone(), silent);
            }
            let old = peer.check_outdated().and(seat.book.removed(options.node).map_or(Ok(()), Err));
            if let Err(e) = &old {
                let _ = seen.old.set(e.clone());
            }
            let failed = peer.check().and(old);
            let leads = peer.leader().0.filter(|_| failed.is_ok()).map_or(0, |s| s.node.0);
            if seen.leader.swap(leads, Ordering::Relaxed) != leads {
                match leads {
                    0 => tracing::info!("nobody leads the control plane"),
                    node if node == options.node.0 => {
                        options.events.tell(Told::new(EventKind::Leader, "leads the control plane from now on"));
                    }
                    node => tracing::info!("node {node} leads the control plane"),
                }
            }
            // In this order: `has_only_vote` reads them in the other one.
            seen.is_out.store(failed.is_err(), Ordering::Relaxed);
            seen.votes.store(peer.votes() && failed.is_ok(), Ordering::Release);
            seen.voters.store(peer.voters() as u64, Ordering::Release);
            if let Err(e) = failed
                && !complained
            {
                let text = format!("takes no part in the control plane until it is started again: {e}");
                options.events.tell(Told::new(EventKind::Fault, text));
                complained = true;
            }
            tokio::time::sleep(timing::SEAT_LOOK).await;
        }
    };
    tokio::select! {
        () = desk.serve(peer.clone()) => {}
        () = told => {}
        () = look => {}
    }
}

/// Says that the device does not answer, or does again. What is said goes to a file, which may lie on that very device, so a
/// thread of its own waits for it.
fn tell_silence(events: Arc<EventLog>, silent: bool) {
    let (kind, text) = if silent {
        (EventKind::Fault, "the device does not answer: the others go on without this node until it does")
    } else {
        (EventKind::Node, "the device answers again")
    };
    let tell = move || events.tell(Told::new(kind, text));
    if let Err(e) = std::thread::Builder::new().name("events".into()).spawn(tell) {
        tracing::warn!("{text} (no event of it: {e})");
    }
}

/// Returns once this node, which nobody has taken in, was told by others for a while that they are another cluster.
async fn foreign(peer: &SeatPeer, book: &Book) -> Error {
    let mut since = None;
    loop {
        match book.foreign().filter(|_| peer.voters() == 0) {
            Some(e) if since.get_or_insert_with(tokio::time::Instant::now).elapsed() >= timing::FOREIGN_MAX => {
                return e;
            }
            Some(_) => {}
            None => since = None,
        }
        tokio::time::sleep(timing::SEAT_LOOK).await;
    }
}

impl SeatOptions {
    /// Where nodes are, as far as is known before anybody was asked.
    fn addresses(&self) -> BTreeMap<NodeId, String> {
        let mut all = self.peers.clone();
        all.extend(self.members.iter().filter_map(|m| match m {
            Command::RegisterNode { node, address, .. } => Some((*node, address.clone())),
            _ => None,
        }));
        all
    }

    fn others(&self) -> bool {
        !self.is_alone && self.addresses().keys().any(|node| *node != self.node)
    }

    fn read_note(&self) -> Result<Option<SeatNote>> {
        let path = self.data.join(NOTE_FILE);
        match files::read_limited(&path, NOTE_BYTES)? {
            Some(bytes) => {
                let note = SeatNote::decode(&bytes, self.cluster, self.node);
                note.map(Some).map_err(|e| e.at(path.display()))
            }
            None => Ok(None),
        }
    }

    fn write_note(&self, note: &SeatNote) -> Result<()> {
        let path = self.data.join(NOTE_FILE);
        headroom::with_room(&path, || files::write_durably(&path, &note.encode()))
    }

    /// What this node founds the cluster with, if it is the one to do that.
    fn founds_with(&self) -> Result<Option<State>> {
        let mut state = match earlier::read(&self.data, self.cluster)? {
            // Among nodes that have joined the first is one as any: an operator says with the state which one founds.
            Some(state) if self.founder || self.authority.is_some() => state,
            Some(_) => return Err(self.unread("this node does not found the cluster by its cluster file")),
            None if !self.founder || self.was_in_use || self.came_with.0 > 0 => return Ok(None),
            None => State::new(self.cluster),
        };
        for member in &self.members {
            let is_known = |node| state.node(node).is_some();
            if !matches!(member, Command::RegisterNode { node, .. } if is_known(*node)) {
                state.apply(member.clone())?;
            }
        }
        if let Some(Authority { key, identity }) = self.authority {
            state.begin_authority(key, self.node, identity)?;
        }
        Ok(Some(state))
    }

    /// A state that was left here is not used: somebody has to look at it before it is out of the way.
    fn unread(&self, why: &str) -> Error {
        Error::invalid(format!(
            "{} in {} has a control state that is not used, because {why}. Start the node that it was made for, or move \
             both files {} away if it is not wanted; nothing was touched",
            earlier::NAMES[0],
            self.data.display(),
            earlier::NAMES.join(" and ")
        ))
    }

    fn nothing_unread(&self, why: &str) -> Result<()> {
        if earlier::is_there(&self.data) { Err(self.unread(why)) } else { Ok(()) }
    }

    fn lost(&self, why: &Error) -> Error {
        Error::not_found(format!(
            "the control state is gone ({why}), and as far as this node knows no other one can go on with it (of one or \
             two nodes only one has a vote); a new one would mix up this cluster's volumes. Put {STORE_FILE} and {NOTE_FILE} in {} back, or make it again from what the nodes' logs know \
             (`freebs control rebuild`), or begin anew in another directory",
            self.data.display()
        ))
    }
}

/// Whether another node knows a control state of this cluster. A founder that has lost its disk would begin the same
/// cluster a second time, and give out the same numbers again.
async fn in_use_elsewhere(options: &SeatOptions) -> bool {
    let mut asked = tokio::task::JoinSet::new();
    for (_, address) in options.addresses().into_iter().filter(|(node, _)| *node != options.node) {
        asked.spawn_local(tokio::time::timeout(timing::FOUND_ASK_MAX, knows_state(address, options.cluster)));
    }
    asked.join_all().await.into_iter().any(|known| known == Ok(true))
}

async fn knows_state(address: String, cluster: ClusterId) -> bool {
    let Ok(client) = Client::connect(&address).await else { return false };
    // Answered from what the node knows itself, also where nobody leads; who has no state yet refuses.
    let any = Request::SnapshotList { volume: None, after: SnapshotId::default() };
    let answer = client.call(&any, timing::FOUND_ASK_MAX).await;
    client.welcome().cluster == cluster && answer.is_ok()
}

async fn open_device(options: &SeatOptions) -> Result<FileDevice> {
    let path = options.data.join(STORE_FILE);
    let ring = Ring::start()?;
    let begun = tokio::time::Instant::now();
    loop {
        let device = DeviceOptions { create: true, pulse: options.pulse.clone(), ..DeviceOptions::default() };
        match FileDevice::open(&ring, &path, device) {
            Err(e) if e.kind == ErrorKind::Busy && begun.elapsed() < timing::BUSY_MAX => {
                tokio::time::sleep(timing::BUSY_LOOK).await;
            }
            other => return other.map_err(|e| e.at(path.display())),
        }
    }
}

/// The store of this start: the one that is there, the one that the cluster begins with, or one of a new seat.
async fn open_store(options: &SeatOptions) -> Result<Store> {
    let known = options.read_note()?;
    let note = known.unwrap_or_else(|| SeatNote::new(options.cluster, options.node)).begin();
    options.write_note(&note)?;
    let mine = Options {
        cluster: options.cluster,
        node: options.node,
        start: note.begun(),
        noted: note.used(),
        room: limits::LOG_ROOM_BYTES,
        mutant: None,
    };
    let device = open_device(options).await?;
    let random = || Box::new(OsRandom);
    let store = match Store::open(device.clone(), mine, random()).await {
        Ok(store) => store,
        Err(e) => match note.instead(e.kind, options.others(), || options.founds_with())? {
            Instead::Found(_) if in_use_elsewhere(options).await => {
                options.nothing_unread("another node has a control state of this cluster")?;
                tracing::warn!("this node has lost its control store: the cluster is in use; it learns from others");
                Store::create(device, mine, random()).await?
            }
            Instead::Found(state) => {
                let authority = state.joining().authority().map(|key| format!("; its authority is {key}"));
                let text = format!("the cluster begins here{}", authority.unwrap_or_default());
                options.events.tell(Told::new(EventKind::Node, text));
                Store::found(device, mine, random(), &state).await?
            }
            Instead::New => Store::create(device, mine, random()).await?,
            Instead::PutAside => {
                options.nothing_unread("the control store beside it was in use")?;
                tracing::error!(
                    "the control store can't be used: {e}. This node takes a new seat and learns from others"
                );
                drop(device);
                let aside = |e: &std::io::Error| files::os_error("put aside", &options.data.join(STORE_FILE), e);
                std::fs::rename(options.data.join(STORE_FILE), options.data.join(ASIDE)).map_err(|e| aside(&e))?;
                files::sync_directory(&options.data)?;
                Store::create(open_device(options).await?, mine, random()).await?
            }
            Instead::Lost => return Err(options.lost(&e)),
            Instead::Fails => return Err(e.at(options.data.join(STORE_FILE).display())),
        },
    };
    let left = earlier::read(&options.data, options.cluster).map_err(|e| Error {
        kind: e.kind,
        text: format!(
            "{e}. If it is not wanted, because the control store beside it is the newest, move both files {} away",
            earlier::NAMES.join(" and ")
        )
        .into(),
    })?;
    if left.is_some_and(|left| !has_taken_over(&store, &left, options.cluster)) {
        return Err(options.unread("the control store beside it is in use and older"));
    }
    options.write_note(&note.in_use())?;
    earlier::put_aside(&options.data)?;
    Ok(store)
}

/// True if the store has at least what an earlier state has: the cluster was founded with that, or goes on behind it.
fn has_taken_over(store: &Store, left: &State, cluster: ClusterId) -> bool {
    let snapshot = store.read(|c| c.snapshot.as_ref().map(|s| s.bytes.clone()));
    let machine = snapshot.and_then(|bytes| Machine::decode(&bytes, cluster).ok());
    machine.is_some_and(|m| m.state.revision() >= left.revision())
}

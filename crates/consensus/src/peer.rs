//! One seat at work: the library, its storage and its links, and what stands around them: forwarding, sessions,
//! joining, the choice of voters, nodes that fail, and a leader that is gone.
//!
//! Invariants:
//! - Whatever is decided because "I am the leader" is decided through the log, and the voters are changed only after
//!   leadership was confirmed by a quorum (rule L5).
//! - A message of an older start of a seat than one was heard from, or than the node has registered, is dropped
//!   (rule V8): an old image of a store does not vote.
//! - A seat that votes alone leads only once it has asked the others whether it is an old image. It gives nobody its vote and
//!   follows nobody, for nobody can lead without its vote: who does shows that its store is old.
//! - A command is sent again under the same number, and so applied at most once.

use crate::doubts::Doubts;
use crate::limits;
use crate::links::{Clients, Links, Network, Raft};
use crate::log::{Applied, Log, Watcher};
use crate::lookout::Lookout;
use crate::machine::{Answer, Machine, Proposal};
use crate::mutant::Mutant;
use crate::peer::watch::Works;
use crate::runtime::{Receiver, watched};
use crate::sound;
use crate::store::Store;
use crate::timing::{self, Timing};
use crate::types::{LogId, Randomness, Seat, Snapshot, SnapshotMeta, Types, Vote};
use crate::voters::{Change, Seen, next_change};
use crate::wire::{Devices, Envelope, Message};
use freebs_control::{Command, Done, State};
use freebs_types::{Error, NodeId, Result, StartNumber};
use futures_util::future::{Either, select};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use openraft::{AsyncRuntime, ChangeMembers, ReadPolicy};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

mod elect;
mod watch;

/// Messages that may wait to be dealt with; what comes beyond is dropped.
const INBOX_MAX: usize = 1024;
/// Requests of others that are dealt with at a time.
const SERVED_MAX: usize = 512;
/// Those of one node: as many proposals as it may have under way, and as much again for the rest. One that asks for more
/// leaves room for the others.
const SERVED_OF_NODE_MAX: usize = 2 * limits::SESSION_WINDOW_MAX as usize;

/// Requests of others that are dealt with, by the node that asks.
#[derive(Default)]
struct Served(BTreeMap<NodeId, usize>);

impl Served {
    fn has_room(&self, node: NodeId) -> bool {
        self.0.values().sum::<usize>() < SERVED_MAX && self.0.get(&node).is_none_or(|n| *n < SERVED_OF_NODE_MAX)
    }

    fn begin(&mut self, node: NodeId) {
        *self.0.entry(node).or_default() += 1;
    }

    fn end(&mut self, node: NodeId) {
        if let Some(n) = self.0.get_mut(&node) {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&node);
            }
        }
    }
}

/// The session in which this seat sends commands.
#[derive(Default)]
struct Sending {
    session: Option<u64>,
    next: u64,
    open: BTreeSet<u64>,
}

/// A snapshot that arrives.
struct Arriving {
    from: Seat,
    vote: Vote,
    end: Option<LogId>,
    total: u64,
    bytes: Vec<u8>,
}

/// Hears which node is taken for failed, and why.
type Teller = Box<dyn Fn(NodeId, String)>;

struct Inner {
    raft: Raft,
    store: Store,
    links: Rc<Links>,
    machine: Rc<RefCell<Machine>>,
    state: Receiver<Arc<State>>,
    timing: Timing,
    inbox: mpsc::Sender<Vec<u8>>,
    served: RefCell<Served>,
    /// Proposals of others that are under way here, by who asks and the number of the request.
    proposing: RefCell<BTreeSet<(Seat, u64)>>,
    /// Heartbeat intervals since the start.
    tick: Cell<u64>,
    heard: RefCell<BTreeMap<Seat, u64>>,
    /// The state of each node's devices, as it says it.
    works: RefCell<BTreeMap<NodeId, Works>>,
    starts: RefCell<BTreeMap<Seat, StartNumber>>,
    contacts: RefCell<BTreeSet<NodeId>>,
    joining: RefCell<BTreeSet<Seat>>,
    /// A node that retires is being removed.
    removing: Cell<bool>,
    arriving: RefCell<Option<Arriving>>,
    /// Entries and snapshots of a leader are dealt with one after the other.
    led: tokio::sync::Mutex<()>,
    /// The last message that was refused, for people: from whom, and why.
    refused: RefCell<Option<(Seat, Error)>>,
    sending: RefCell<Sending>,
    window: Notify,
    opening: tokio::sync::Mutex<()>,
    /// What others say that this node is registered with, if it comes with less; and who waits to hear of it.
    outdated: Cell<Option<StartNumber>>,
    told: Notify,
    /// The only vote is its own, as its store had it at the start; and it still asks the others before it leads.
    alone: Cell<bool>,
    asks: Cell<bool>,
    /// One that leads or votes beside it, although the only vote is its own: the store is old.
    rival: Cell<Option<Seat>>,
    /// The control state was made again since the one here: the highest founding that others have named, and who did.
    superseded: Cell<Option<(u64, NodeId)>>,
    /// The founding of the first leader that has sent anything to a seat that knew none; 0 before.
    taken: Cell<u64>,
    /// Nodes that are being asked whether there is one.
    asked: RefCell<BTreeSet<NodeId>>,
    /// Somebody wants to be taken in.
    woken: Notify,
    lookout: RefCell<Lookout>,
    doubts: RefCell<Doubts>,
    /// A link was closed by its end, or refused there.
    lost: Notify,
    /// Who is told which node failed, and why.
    teller: RefCell<Option<Teller>>,
    /// This node's devices did not answer when that was looked at last.
    was_silent: Cell<bool>,
    /// The heartbeat interval from which on it judges others by their devices.
    judges_from: Cell<u64>,
    seeds: Cell<u64>,
}

/// One seat. Clones share it.
#[derive(Clone)]
pub struct Peer(Rc<Inner>);

/// The library's settings. A seat that asks the others first would lead as soon as it is there.
fn config_of(timing: &Timing, asks: bool) -> Result<openraft::Config> {
    let mut config = timing.config();
    (config.enable_elect, config.enable_leader_restore) = (!asks, Some(!asks));
    config.validate().map_err(|e| Error::bug(format!("timing of the control plane: {e}")))
}

/// The machine of the last snapshot, or a new one.
fn kept_machine(store: &Store) -> Result<Machine> {
    match store.read(|c| c.snapshot.as_ref().map(|k| k.bytes.clone())) {
        Some(bytes) => Machine::decode(&bytes, store.cluster()),
        None => Ok(Machine::new(store.cluster())),
    }
}

fn not_leading() -> Error {
    Error::retry("no node leads the control plane right now; wait, it settles by itself while most voters run")
}

impl Peer {
    /// Starts the seat whose store this is, on the current `LocalSet`; all chance comes from `seed`. It goes on until
    /// that `LocalSet` is dropped. Nodes that it may ask to be taken in are `contacts`.
    pub async fn start(
        store: Store,
        network: impl Network,
        timing: Timing,
        contacts: BTreeSet<NodeId>,
        seed: u64,
        watcher: Option<Watcher>,
    ) -> Result<Self> {
        let start = Self::start_seeded(store, Rc::new(network), timing, contacts, seed, watcher);
        Randomness::scope(seed, start).await
    }

    async fn start_seeded(
        store: Store,
        network: Rc<dyn Network>,
        timing: Timing,
        contacts: BTreeSet<NodeId>,
        seed: u64,
        watcher: Option<Watcher>,
    ) -> Result<Self> {
        let machine = kept_machine(&store)?;
        let (published, state) = watched(machine.state.clone());
        let machine = Rc::new(RefCell::new(machine));
        let first = if store.mutant() == Some(Mutant::RequestsNumberedAnew) { 1 } else { seed };
        let about = (store.seat(), store.cluster(), store.start_number());
        let links = Rc::new(Links::new(network, about, machine.clone(), first));
        let applied = Applied { store: store.clone(), machine: machine.clone(), published, watcher };
        let me = store.seat();
        let alone = store.read(|c| c.votes_alone(me));
        // Where nodes join there may be some that this one does not know yet.
        let has_others =
            contacts.iter().any(|n| *n != me.node) || machine.borrow().state.joining().authority().is_some();
        let asks = alone && has_others;
        let config = config_of(&timing, asks)?;
        let clients = Clients { links: links.clone(), answer: Duration::from_millis(timing.election_ms) };
        let raft = Raft::new(store.seat(), Arc::new(config), clients, Log(store.clone()), applied).await;
        let raft = raft.map_err(|e| Error::corrupt(format!("the control plane can't start: {e}")))?;
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let lookout = Lookout::new(store.mutant());
        let peer = Self(Rc::new(Inner {
            raft,
            store,
            links,
            machine,
            state,
            timing,
            inbox,
            served: RefCell::default(),
            proposing: RefCell::default(),
            tick: Cell::new(0),
            heard: RefCell::default(),
            works: RefCell::default(),
            starts: RefCell::default(),
            contacts: RefCell::new(contacts),
            joining: RefCell::default(),
            removing: Cell::default(),
            arriving: RefCell::default(),
            led: tokio::sync::Mutex::default(),
            refused: RefCell::default(),
            sending: RefCell::default(),
            window: Notify::new(),
            opening: tokio::sync::Mutex::default(),
            outdated: Cell::default(),
            told: Notify::new(),
            alone: Cell::new(alone),
            asks: Cell::new(asks),
            rival: Cell::default(),
            superseded: Cell::default(),
            taken: Cell::default(),
            asked: RefCell::default(),
            woken: Notify::new(),
            lookout: RefCell::new(lookout),
            doubts: RefCell::default(),
            lost: Notify::new(),
            teller: RefCell::default(),
            was_silent: Cell::default(),
            judges_from: Cell::default(),
            seeds: Cell::new(seed),
        }));
        peer.begin(messages);
        Ok(peer)
    }

    /// Starts the tasks of the seat.
    fn begin(&self, messages: mpsc::Receiver<Vec<u8>>) {
        let (peer, inner) = (self, Rc::downgrade(&self.0));
        peer.0.links.on_loss(move |node| {
            if let Some(inner) = inner.upgrade() {
                Self(inner).hear_of_loss(node);
            }
        });
        drop(Randomness::spawn(peer.clone().read_inbox(messages)));
        drop(Randomness::spawn(peer.clone().tend()));
        drop(Randomness::spawn(peer.clone().hear_of_leaders()));
        if peer.0.asks.get() {
            drop(Randomness::spawn(peer.clone().ask_before_leading()));
        }
    }

    /// The seat that this peer is: its node and store.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.0.store.seat()
    }

    /// Runs a task on the seat's `LocalSet`, with chance of its own from the seat's seed.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let seed = self.0.seeds.get();
        self.0.seeds.set(seed.wrapping_add(1));
        drop(tokio::task::spawn_local(Randomness::scope(seed, task)));
    }

    /// The newest state applied here.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.0.state.now().clone()
    }

    /// Hears of each new state.
    #[must_use]
    pub fn watch(&self) -> Receiver<Arc<State>> {
        self.0.state.clone()
    }

    /// Looks at the machine.
    pub fn machine<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.0.machine.borrow())
    }

    /// Who leads as far as is known here, and in which term.
    #[must_use]
    pub fn leader(&self) -> (Option<Seat>, u64) {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        (m.current_leader, m.current_term)
    }

    /// Whether it can go on: its store is in order and the library runs.
    pub fn check(&self) -> Result<()> {
        if let Some(e) = self.0.store.poison() {
            return Err(e);
        }
        let metrics = self.0.raft.metrics();
        let running = metrics.borrow_watched().running_state.clone();
        running.map_err(|e| Error::device_failed(format!("the control plane of this node stopped: {e}")))
    }

    /// For people who ask why it does not go on.
    #[must_use]
    pub fn describe(&self) -> String {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        let store = self.0.store.read(|c| {
            let entries = (c.entries.first_key_value().map(|e| *e.0), c.entries.last_key_value().map(|e| *e.0));
            let snapshot = c.snapshot.as_ref().map(|s| s.meta.last_log_id);
            format!("vote {:?}, entries {entries:?}, purged {:?}, snapshot {snapshot:?}", c.vote, c.purged)
        });
        let refused = self.0.refused.borrow();
        let refused = refused.as_ref().map(|(from, e)| format!("; refused from {from}: {e}")).unwrap_or_default();
        format!("{}: {store}; {:?} of {:?}, {}{refused}", self.seat(), m.state, m.current_leader, *m)
    }

    /// Founds a cluster of one. Only ever called once for a cluster.
    pub async fn found(&self) -> Result<()> {
        let members: BTreeMap<Seat, ()> = [(self.seat(), ())].into();
        let done = self.0.raft.initialize(members).await;
        done.map_err(|e| Error::invalid(format!("this node is in a cluster already: {e}")))
    }

    /// How many seats vote, as far as is known here.
    #[must_use]
    pub fn voters(&self) -> usize {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        m.membership_config.membership().voter_ids().count()
    }

    /// Whether this seat votes, as far as is known here.
    #[must_use]
    pub fn votes(&self) -> bool {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        m.membership_config.membership().voter_ids().any(|v| v == self.seat())
    }

    /// After a start: stands for election when the time for that has come. Who votes alone has nobody to wait for; others
    /// wait for a leader that may be there, and by chance, of which any number is, for longer.
    pub async fn stand_after_start(&self, chance: u64) {
        if self.voters() > 1 {
            let ms = timing::STAND_AFTER_MS + chance % timing::STAND_AFTER_MS;
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.stand().await;
    }

    /// Asks for votes now instead of after the time for that, if this seat votes and nobody leads. The others vote only if
    /// they hear of no leader either. Who votes alone asks them something else first.
    pub async fn stand(&self) {
        let can_write = self.0.links.devices() != Devices::Silent;
        if can_write && self.votes() && self.leader().0.is_none() && !self.0.asks.get() {
            // Without it the election comes by itself, only later.
            let _ = self.0.raft.trigger().elect(true).await;
        }
    }

    /// Returns once everything that was committed when this was called is applied here. `Corrupt` if the others do not
    /// listen to this node, because it runs on an old image of its devices (rule V8).
    pub async fn catch_up(&self) -> Result<()> {
        let mut asked = 0u32;
        let index = loop {
            let told = std::pin::pin!(self.0.told.notified());
            self.check_outdated()?;
            // An entry of its own in the log, which comes behind all that.
            let proposed = std::pin::pin!(self.propose(Proposal::OpenSession));
            match select(proposed, told).await {
                Either::Left((Ok(Answer::Session(index)), _)) => break index,
                Either::Left(_) => {}
                Either::Right(_) => continue,
            }
            asked += 1;
            let heartbeat = Duration::from_millis(self.0.timing.heartbeat_ms);
            tokio::time::sleep(if asked < 50 { timing::CATCH_UP_AGAIN } else { heartbeat }).await;
        };
        while self.machine(|m| m.applied.is_none_or(|a| a.index() < index)) {
            tokio::time::sleep(timing::APPLIED_LOOK).await;
        }
        Ok(())
    }

    /// Takes a message in. Never blocks; what there is no room for is dropped, as the network may do, too.
    pub fn receive(&self, message: Vec<u8>) {
        if message.len() <= limits::MESSAGE_BYTES_MAX {
            let _ = self.0.inbox.try_send(message);
        }
    }

    async fn read_inbox(self, mut messages: mpsc::Receiver<Vec<u8>>) {
        while let Some(bytes) = messages.recv().await {
            let Ok((envelope, message)) = Message::decode(&bytes) else { continue };
            if !self.is_of_this_founding(&envelope, &message) {
                continue;
            }
            if let Message::Outdated(start) = message {
                // Only ever of a node that was registered so; nothing else is believed of such a message.
                if envelope.cluster == self.0.links.cluster && envelope.to.node == self.seat().node {
                    self.hear_outdated(start);
                }
                continue;
            }
            if !self.believes(&envelope) {
                self.tell_outdated(&envelope);
                continue;
            }
            if let Err(e) = self.0.store.read(|here| sound::from(envelope.from, &message, self.seat(), here)) {
                self.refuse(envelope.from, e);
                continue;
            }
            if !self.may_be_heard(&envelope, &message) {
                continue;
            }
            self.0.heard.borrow_mut().insert(envelope.from, self.0.tick.get());
            self.hear_devices(&envelope);
            if message.is_reply() {
                self.0.links.answer(envelope.from, envelope.id, message);
            } else if self.0.served.borrow().has_room(envelope.from.node) && self.is_new(&envelope, &message) {
                self.0.served.borrow_mut().begin(envelope.from.node);
                drop(Randomness::spawn(self.clone().serve(envelope, message)));
            }
        }
    }

    /// False for a message of a seat whose state comes from another founding: nothing is taken from one into another. The seat
    /// with the lower number decides nothing from then on.
    fn is_of_this_founding(&self, e: &Envelope, message: &Message) -> bool {
        let (known, theirs) = (self.0.links.founding(), e.founding);
        // A seat that knows nothing yet takes all from the first one that gives it something.
        let mine = if known > 0 { known } else { self.0.taken.get() };
        if mine == 0 && matches!(message, Message::Append(_) | Message::Piece { .. }) {
            self.0.taken.set(theirs);
        }
        let is_any = self.0.store.mutant() == Some(Mutant::EveryFoundingIsHeard);
        let is_same = mine == 0 || theirs == 0 || mine == theirs || is_any;
        if !is_same && e.cluster == self.0.links.cluster && e.to.node == self.seat().node {
            // As with any other word, an old image of a node is not believed (rule V8).
            let registered = self.0.state.now().node(e.from.node).map_or(StartNumber(0), |n| n.start);
            if theirs > mine && e.start >= registered {
                let known = self.0.superseded.get().filter(|(of, _)| *of >= theirs);
                self.0.superseded.set(known.or(Some((theirs, e.from.node))));
                self.0.told.notify_waiters();
            } else if theirs < mine {
                // The number in it is what it says. If it is lost, the next message is answered so.
                let _ = self.0.links.send(e.from, 0, &Message::Here);
            }
        }
        is_same
    }

    /// Whether a message is for this seat, and from the newest start of the one it names (rule V8).
    fn believes(&self, e: &Envelope) -> bool {
        let for_us = e.to == self.seat() || (e.to.node == self.seat().node && (e.to.store == 0 || self.is_alone()));
        if e.cluster != self.0.links.cluster || !for_us || e.from == self.seat() {
            return false;
        }
        let registered = self.0.state.now().node(e.from.node).map_or(StartNumber(0), |n| n.start);
        let mut starts = self.0.starts.borrow_mut();
        let highest = starts.get(&e.from).copied().unwrap_or_default().max(registered);
        if e.start < highest || (starts.len() >= 2 * limits::SEATS_MAX && !starts.contains_key(&e.from)) {
            return false;
        }
        starts.insert(e.from, e.start);
        true
    }

    /// Rule V8: who comes with less than it is registered with should know why nobody listens.
    fn tell_outdated(&self, e: &Envelope) {
        let registered = self.0.state.now().node(e.from.node).map(|n| n.start);
        if let Some(start) = registered.filter(|s| e.start < *s && e.cluster == self.0.links.cluster) {
            // If it is lost, the next message is answered so.
            let _ = self.0.links.send(e.from, 0, &Message::Outdated(start));
        }
    }

    fn hear_outdated(&self, start: StartNumber) {
        if self.0.links.start() < start && self.0.outdated.get() < Some(start) {
            self.0.outdated.set(Some(start));
            self.0.told.notify_waiters();
        }
    }

    /// An error, once the others have said that this node runs on an old image of its devices, or of its control store. It
    /// decides nothing then.
    pub fn check_outdated(&self) -> Result<()> {
        if let Some((_, by)) = self.0.superseded.get().filter(|(of, _)| *of > self.0.links.founding()) {
            return Err(Error::corrupt(format!(
                "node {by} says that the control state was made again (`freebs control rebuild`) since node {} had a part in \
                 it: the control store here would be of before, and decides nothing. If that is so, rename control.store and \
                 control.note of this node: it learns from the others then. If it was not made again for this cluster, stop \
                 node {by}, start this one again, and move nothing",
                self.seat().node
            )));
        }
        if let Some(rival) = self.0.rival.get() {
            return Err(Error::corrupt(format!(
                "node {} votes alone in the control plane, as its store has it, and node {} leads or votes beside it: \
                 the control store is an old copy, or the cluster was founded twice. Put the newest data directory \
                 back. If only control.store and control.note are old, move both away: this node learns from the others \
                 then. The others go on without it",
                self.seat().node,
                rival.node
            )));
        }
        let mine = self.0.links.start();
        match self.0.outdated.get().filter(|seen| mine < *seen) {
            None => Ok(()),
            Some(seen) => Err(Error::corrupt(format!(
                "node {} comes with start number {mine}, and was seen with {seen}: its data directory is an old image. \
                 Put the newest one back; a node without it can't be taken in again yet, and the other copies go on \
                 without it",
                self.seat().node
            ))),
        }
    }

    /// False for a proposal that is sent again while it is under way here: its answer will come.
    fn is_new(&self, e: &Envelope, message: &Message) -> bool {
        !matches!(message, Message::Propose(_)) || self.0.proposing.borrow_mut().insert((e.from, e.id))
    }

    async fn serve(self, envelope: Envelope, message: Message) {
        let proposal = matches!(message, Message::Propose(_));
        let answer = self.answer(envelope.from, envelope.id, message).await;
        self.0.served.borrow_mut().end(envelope.from.node);
        if proposal {
            self.0.proposing.borrow_mut().remove(&(envelope.from, envelope.id));
        }
        if let Some(answer) = answer {
            // A message that can't be made is as one that was lost.
            let _ = self.0.links.send(envelope.from, envelope.id, &answer);
        }
    }

    async fn answer(&self, from: Seat, id: u64, message: Message) -> Option<Message> {
        let raft = &self.0.raft;
        match message {
            Message::Append(r) => self.append(from, r).await,
            Message::Vote(r) => raft.vote(r).await.ok().map(Message::VoteReply),
            Message::PreVote(r) => raft.pre_vote(r).await.ok().map(Message::VoteReply),
            Message::Piece { vote, meta, offset, total, bytes } => {
                self.piece(from, vote, meta, offset, total, bytes).await
            }
            Message::Propose(p) => Some(match self.propose_here(p).await {
                Ok(answer) => Message::ProposeReply(answer),
                Err(_) => Message::Refused(self.leader().0),
            }),
            Message::Join => {
                let mut joining = self.0.joining.borrow_mut();
                let state = self.state();
                let is_welcome = state.check_member(from.node).is_ok() && !state.gives_up_its_seat(from.node);
                let may_come = raft.is_leader() && is_welcome;
                if may_come && joining.len() < limits::SEATS_MAX && joining.insert(from) {
                    self.0.woken.notify_one();
                }
                None
            }
            Message::Doubt(node) => self.try_to_reach(node).await,
            // A seat that knows the asker to be old has said so before (`believes`).
            Message::Here if id > 0 => Some(Message::Refused(self.rival_of(from))),
            Message::Gone { node, term } => {
                self.hear_gone(from, node, term);
                None
            }
            _ => None,
        }
    }

    async fn piece(
        &self,
        from: Seat,
        vote: Vote,
        meta: SnapshotMeta,
        offset: u64,
        total: u64,
        bytes: Vec<u8>,
    ) -> Option<Message> {
        let whole = {
            let mut slot = self.0.arriving.borrow_mut();
            if offset == 0 {
                *slot = Some(Arriving { from, vote, end: meta.last_log_id, total, bytes: Vec::new() });
            }
            let a = slot.as_mut()?;
            let same = (a.from, a.vote, a.end, a.total) == (from, vote, meta.last_log_id, total);
            if !same || a.bytes.len() as u64 != offset {
                return Some(Message::PieceReply { have: 0, vote: None });
            }
            a.bytes.extend(bytes);
            let have = a.bytes.len() as u64;
            if have < total {
                return Some(Message::PieceReply { have, vote: None });
            }
            slot.take().expect("it is there").bytes
        };
        if let Err(e) = sound::is_of_its_place(&whole, &meta, self.0.links.cluster) {
            return self.refuse(from, e);
        }
        let done = self.install(from, vote, Snapshot { meta, snapshot: Rc::new(whole) }).await?;
        Some(Message::PieceReply { have: total, vote: Some(done) })
    }

    fn refuse(&self, from: Seat, e: Error) -> Option<Message> {
        *self.0.refused.borrow_mut() = Some((from, e));
        None
    }

    /// Has the library know of this leader, and says what is committed here then, as the library knows it. Until it hears
    /// from the next leader, nothing commits more but what this one sends: this seat leads no more, if it did.
    async fn follow(&self, vote: Vote) -> Option<Option<LogId>> {
        let (known, committed) = self.known().await?;
        if known >= vote {
            return Some(committed);
        }
        let nothing = AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
        self.0.raft.append_entries(nothing).await.ok()?;
        Some(self.known().await?.1)
    }

    /// The vote and what is committed, as the library knows it: the store may hear of it later.
    async fn known(&self) -> Option<(Vote, Option<LogId>)> {
        self.0.raft.with_raft_state(|s| (*s.vote_ref(), s.local_committed().copied())).await.ok()
    }

    /// A message that is refused changes nothing: who sends it is not followed either. So it is judged before, and again when
    /// nobody else can commit anything any more.
    async fn append(&self, from: Seat, mut r: AppendEntriesRequest<Types>) -> Option<Message> {
        let _one = self.0.led.lock().await;
        let judge = |committed| self.0.store.read(|here| sound::agree(&r, here, committed));
        if let Err(e) = judge(self.known().await?.1) {
            return self.refuse(from, e);
        }
        if let Err(e) = judge(self.follow(r.vote).await?) {
            return self.refuse(from, e);
        }
        r.leader_commit = self.0.store.read(|here| sound::known_committed(&r, here));
        self.0.raft.append_entries(r).await.ok().map(Message::AppendReply)
    }

    /// The vote that the library knows then, once it has installed a snapshot or did not have to.
    async fn install(&self, from: Seat, vote: Vote, snapshot: Snapshot) -> Option<Vote> {
        let one = self.0.led.lock().await;
        let end = snapshot.meta.last_log_id?;
        let known = self.known().await?.1;
        let mut judged = sound::replaces(&end, known.as_ref());
        if judged.is_ok() {
            judged = sound::replaces(&end, self.follow(vote).await?.as_ref());
        }
        if let Err(e) = judged {
            self.refuse(from, e);
            return None;
        }
        let _announced = self.0.store.announce(end);
        let installed = std::pin::pin!(self.0.raft.install_full_snapshot(vote, snapshot));
        let done = match select(installed, std::pin::pin!(self.has_taken(vote, end))).await {
            Either::Left((done, _)) => done,
            // It takes a while. Heartbeats are to be answered meanwhile.
            Either::Right((_, installed)) => {
                drop(one);
                installed.await
            }
        };
        Some(done.ok()?.vote)
    }

    /// Returns once the library has begun with a snapshot, or does not because it follows somebody else.
    async fn has_taken(&self, vote: Vote, end: LogId) {
        while let Some((known, committed)) = self.known().await
            && known == vote
            && committed < Some(end)
        {
            tokio::time::sleep(timing::APPLIED_LOOK).await;
        }
    }

    /// Puts a proposal into the log, if this seat leads.
    async fn propose_here(&self, proposal: Proposal) -> Result<Answer> {
        self.check_outdated()?;
        let within = Duration::from_millis(self.0.timing.answer_ms);
        match tokio::time::timeout(within, self.0.raft.client_write(proposal)).await {
            Ok(Ok(done)) => Ok(done.data),
            _ => Err(not_leading()),
        }
    }

    /// Returns once this one leads no more, as far as is known here.
    async fn replaced(&self, leader: Seat) {
        let mut metrics = self.0.raft.metrics();
        while metrics.now().current_leader == Some(leader) {
            if !metrics.next().await {
                return;
            }
        }
    }

    /// Puts a proposal into the log, here or at the leader. An error leaves open whether it is in it.
    async fn propose(&self, proposal: Proposal) -> Result<Answer> {
        match self.leader().0 {
            Some(leader) if leader == self.seat() => self.propose_here(proposal).await,
            Some(leader) => {
                let within = Duration::from_millis(self.0.timing.answer_ms * 3 / 2);
                let proposal = Message::Propose(proposal);
                // A leader that has died answers nothing: whoever comes next is asked at once.
                let again = Duration::from_millis(self.0.timing.election_ms);
                let asked = std::pin::pin!(self.0.links.call_again(leader, &proposal, within, again));
                match select(asked, std::pin::pin!(self.replaced(leader))).await {
                    Either::Left((Ok(Message::ProposeReply(answer)), _)) => Ok(answer),
                    Either::Left((Err(e), _)) => Err(e),
                    _ => Err(not_leading()),
                }
            }
            None => Err(not_leading()),
        }
    }

    /// A moment, after which it may go better.
    async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(self.0.timing.heartbeat_ms / 2)).await;
    }

    /// The session to send in, opened if there is none.
    async fn session(&self) -> u64 {
        let _one = self.0.opening.lock().await;
        loop {
            if let Some(session) = self.0.sending.borrow().session {
                return session;
            }
            // One that was opened and whose answer was lost is forgotten by itself.
            match self.propose(Proposal::OpenSession).await {
                Ok(Answer::Session(session)) => {
                    let new = Sending { session: Some(session), next: 1, open: BTreeSet::new() };
                    *self.0.sending.borrow_mut() = new;
                }
                _ => self.pause().await,
            }
        }
    }

    /// A number for a command, once the window has room: session, number.
    async fn number(&self) -> (u64, u64) {
        loop {
            let session = self.session().await;
            let waits = self.0.window.notified();
            {
                let s = &mut *self.0.sending.borrow_mut();
                let floor = s.open.first().copied().unwrap_or(s.next);
                if s.session == Some(session) && s.next < floor + limits::SESSION_WINDOW_MAX {
                    s.open.insert(s.next);
                    s.next += 1;
                    return (session, s.next - 1);
                }
            }
            waits.await;
        }
    }

    /// Has a command applied once. `Retry` leaves open whether it was.
    pub async fn submit(&self, command: Command) -> Result<Done> {
        command.encode()?;
        let within = Duration::from_millis(self.0.timing.submit_ms);
        let done = tokio::time::timeout(within, self.submit_until(command)).await;
        done.unwrap_or_else(|_| Err(not_leading()))
    }

    async fn submit_until(&self, command: Command) -> Result<Done> {
        let (session, number) = self.number().await;
        let _open = Open { sending: &self.0.sending, window: &self.0.window, session, number };
        let mut sent = 0;
        let done = loop {
            let floor = self.0.sending.borrow().open.first().copied().unwrap_or(number).min(number);
            let proposal = Proposal::Command { session, number, floor, command: Box::new(command.clone()) };
            sent += 1;
            match self.propose(proposal).await {
                Ok(Answer::Done(done)) => break done?,
                Ok(_) => {
                    let mut s = self.0.sending.borrow_mut();
                    s.session = s.session.filter(|s| *s != session);
                    let text = if sent == 1 { "the session has ended; send it again" } else { "it may be applied" };
                    return Err(Error::retry(text));
                }
                Err(_) => self.pause().await,
            }
        };
        let mut state = self.0.state.clone();
        while state.now().revision() < done.revision {
            if !state.next().await {
                return Err(not_leading());
            }
        }
        Ok(done)
    }

    /// Rule L5: true if a quorum says at this moment that this seat leads, and everything committed is applied here.
    pub async fn confirm_leadership(&self) -> bool {
        let within = Duration::from_millis(self.0.timing.answer_ms);
        if self.check_outdated().is_err() {
            return false;
        }
        if self.0.store.mutant() == Some(Mutant::LeaderUnconfirmed) {
            return self.0.raft.is_leader();
        }
        let confirmed = self.0.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        self.0.raft.is_leader() && matches!(tokio::time::timeout(within, confirmed).await, Ok(Ok(_)))
    }

    /// Every heartbeat, and when there are news: counts time, asks to be taken in while it is in no cluster, looks whether
    /// the leader is there, and as leader looks after members.
    async fn tend(self) {
        let mut leads_since = None;
        let interval = Duration::from_millis(self.0.timing.heartbeat_ms);
        let mut tick = Box::pin(tokio::time::sleep(interval));
        if !self.0.raft.is_leader() {
            self.ask_to_join();
        }
        loop {
            let woken = std::pin::pin!(self.0.woken.notified());
            if let Either::Left(_) = select(tick.as_mut(), woken).await {
                self.0.tick.set(self.0.tick.get() + 1);
                self.say_silence();
                tick = Box::pin(tokio::time::sleep(interval));
            }
            if !self.0.raft.is_leader() {
                leads_since = None;
                self.0.joining.borrow_mut().clear();
                self.0.lookout.borrow_mut().follow(self.leader().0.map(|seat| seat.node));
                self.look_after_leader();
                self.ask_to_join();
                continue;
            }
            let since = *leads_since.get_or_insert(self.0.tick.get());
            self.ask_while_leading();
            self.look_after_nodes();
            if let Some(change) = self.wanted_change(since)
                && self.confirm_leadership().await
                && self.change(change).await
            {
                // Perhaps there is more to do.
                self.0.woken.notify_one();
            }
            self.remove_retired();
        }
    }

    /// Removes a node that retires once no seat of it is a member of the control plane, as is committed.
    fn remove_retired(&self) {
        let node = {
            let metrics = self.0.raft.metrics();
            let m = metrics.borrow_watched();
            let membership = m.membership_config.membership();
            let is_settled = m.membership_config.log_id() == m.committed_membership_config.log_id();
            let has_seat = |node: NodeId| membership.nodes().any(|(seat, ())| seat.node == node);
            self.state().retiring().find(|node| is_settled && !has_seat(*node))
        };
        let Some(node) = node.filter(|_| !self.0.removing.replace(true)) else { return };
        let peer = self.clone();
        self.spawn(async move {
            // One that did not come through is given again at the next heartbeat.
            let _ = peer.submit(Command::RemoveNode { node }).await;
            peer.0.removing.set(false);
        });
    }

    fn ask_to_join(&self) {
        let member = {
            let metrics = self.0.raft.metrics();
            metrics.borrow_watched().membership_config.membership().get_node(&self.seat()).is_some()
        };
        // A member that nobody sends anything to may have been forgotten.
        let last = self.0.heard.borrow().values().copied().max().unwrap_or(0);
        if member && (self.0.tick.get() - last) * self.0.timing.heartbeat_ms < 4 * self.0.timing.answer_ms {
            return;
        }
        for node in self.others() {
            let _ = self.0.links.send(Seat { node, store: 0 }, 0, &Message::Join);
        }
    }

    /// The next change of members that this leader wants, which leads since tick `since`.
    fn wanted_change(&self, since: u64) -> Option<ChangeMembers<Seat, ()>> {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        // One change at a time: nothing while one is not committed yet.
        let membership = m.membership_config.membership();
        if m.membership_config.log_id() != m.committed_membership_config.log_id() {
            return None;
        }
        // A change of voters has two steps; one whose second step was never taken (its leader died, or waited too
        // long) stays between old and new until somebody takes it.
        if let [_, new] = &membership.get_joint_config()[..] {
            return Some(ChangeMembers::ReplaceAllVoters(new.clone()));
        }
        let new = self.0.joining.borrow_mut().pop_first();
        // More seats than an entry can name would be an entry that nobody can read.
        let has_room = membership.nodes().count() < limits::SEATS_MAX;
        if let Some(new) = new.filter(|s| has_room && membership.get_node(s).is_none()) {
            return Some(ChangeMembers::AddNodes([(new, ())].into()));
        }
        let voters: BTreeSet<Seat> = membership.voter_ids().collect();
        let last = m.last_log_index.unwrap_or(0);
        let (heard, state) = (self.0.heard.borrow(), self.state());
        let seen: Vec<Seen> = membership
            .nodes()
            .map(|(seat, ())| {
                let at = if *seat == self.seat() { self.0.tick.get() } else { heard.get(seat).copied().unwrap_or(0) };
                let matched = m.replication.as_ref().and_then(|r| r.get(seat).copied().flatten());
                Seen {
                    seat: *seat,
                    voter: voters.contains(seat),
                    silent_ms: (self.0.tick.get() - at.max(since)) * self.0.timing.heartbeat_ms,
                    caught_up: matched.is_some_and(|l| l.index() + 64 >= last),
                    retires: state.gives_up_its_seat(seat.node),
                }
            })
            .collect();
        Some(match next_change(&seen, self.seat(), self.0.timing.gone_ms)? {
            Change::Voters(voters) => ChangeMembers::ReplaceAllVoters(voters),
            Change::Forget(seat) => ChangeMembers::RemoveNodes([seat].into()),
        })
    }

    /// Whether it was done.
    async fn change(&self, change: ChangeMembers<Seat, ()>) -> bool {
        // Who votes no longer stays a learner. What fails is wanted again at the next heartbeat.
        let within = Duration::from_millis(4 * self.0.timing.answer_ms);
        let done = tokio::time::timeout(within, self.0.raft.change_membership(change, true)).await;
        matches!(done, Ok(Ok(_)))
    }
}

/// Closes a number when its command has ended, however that was.
struct Open<'a> {
    sending: &'a RefCell<Sending>,
    window: &'a Notify,
    session: u64,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut s = self.sending.borrow_mut();
        if s.session == Some(self.session) {
            s.open.remove(&self.number);
        }
        self.window.notify_waiters();
    }
}

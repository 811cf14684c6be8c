//! The control plane kept by the nodes themselves, in a share of the seeds: a real seat of Raft in each node.
//!
//! In these runs `control::Control` decides nothing. Its state is the newest that any seat has applied, and serves faults
//! and checks alone. The rest is as in a real cluster:
//! - Each node's process has a `freebs_consensus::Peer` over a `Store` on a simulated disk of its own, with the note
//!   beside it that tells an old store. The process, its seat and both disks stop, die, stand still and lose their power
//!   together. The first node founds the cluster with the volumes in it, the others ask to be taken in.
//! - Messages between seats go from node to node over the network of the run: they take its time, are lost where it loses
//!   some, and do not pass where it is cut. A link is refused where no process is, unless the machine is dark (`wire`).
//! - A node hears each state from its own seat, a little later or much later, and sends its commands through it. A gateway
//!   follows one node, sends its commands there, and goes on to the next node when that one does not answer.
//! - Leaders are elected, look after nodes and name heads as the real ones do, with the real times; nobody plays a leader.
//! - The state is lost only with all nodes down: the disks of the seats are blank then, and the cluster is founded anew
//!   with the state that was made from the logs.
//!
//! Checked (`witness`): seats apply the same entries with the same results, one leader acts in a term, what is decided
//! because somebody leads is not sent to another one (L5), an answered command was applied; when faults end, all seats have
//! all that was decided.

mod seat;
mod wire;
mod witness;

use crate::config::Config;
use crate::control::Control;
use crate::device::{Crash, Disk, SimDevice};
use crate::network::{Network, Place};
use crate::rng::Rng;
use crate::timing;
use crate::world::World;
use freebs_agent::{Following, highest_start};
use freebs_consensus::{Mutant, Timing, voters};
use freebs_control::{Command, Done, State};
use freebs_format::disk::{SUPERBLOCK_AT, SUPERBLOCK_BYTES};
use freebs_io::Device;
use freebs_types::{ClusterId, Error, Nanos, NodeId, Result, StartNumber};
use seat::Host;
pub use seat::SeatImage;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::sync::oneshot;
use wire::Ways;
use witness::Witness;

/// Bytes that the disk of a seat can grow to.
const DISK_BYTES: u64 = 64 << 20;

/// The node that a gateway follows, for how many looks in a row it has not answered, and whose turn is next.
#[derive(Clone, Copy, Debug)]
struct Followed {
    node: NodeId,
    silent: u32,
    following: Following,
}

impl Followed {
    /// The one at this place, of so many.
    fn new(at: usize, count: usize) -> Self {
        let mut following = Following::default();
        following.follow(at, count);
        Self { node: NodeId(at as u64 + 1), silent: 0, following }
    }
}

/// The seats of all nodes of a run.
pub struct Seats {
    world: Rc<World>,
    net: Rc<Network>,
    control: Weak<Control>,
    cluster: ClusterId,
    timing: Timing,
    mutant: Option<Mutant>,
    hosts: Vec<Host>,
    /// The node that founds the cluster, and the state that it founds it with.
    founder: RefCell<(NodeId, Arc<State>)>,
    /// It has done so. A founder whose disk is blank again asks the others, and takes a new seat.
    founded: Cell<bool>,
    /// How often it was founded anew.
    foundings: Cell<u64>,
    ways: RefCell<Ways>,
    witness: RefCell<Witness>,
    followed: RefCell<BTreeMap<u64, Followed>>,
    /// No message of any seat arrives.
    silent: Cell<bool>,
    luck: RefCell<Rng>,
}

/// The start number of the log on a node's disk, as it is before the log is opened.
pub async fn start_of(device: &SimDevice) -> Result<StartNumber> {
    let mut copies = Vec::new();
    for at in SUPERBLOCK_AT.into_iter().filter(|at| at + SUPERBLOCK_BYTES as u64 <= device.len()) {
        copies.push(device.read(at, SUPERBLOCK_BYTES).await?);
    }
    Ok(highest_start(copies))
}

fn stopped() -> Error {
    Error::retry("the control plane of this node does not run")
}

impl Seats {
    /// Blank disks for all nodes; the first one will found the cluster with the control plane's present state.
    #[must_use]
    pub fn new(config: &Config, control: &Rc<Control>, mutant: Option<Mutant>) -> Rc<Self> {
        let (world, net) = control.parts();
        let (state, seed) = (control.snapshot(), config.seed);
        let mut luck = Rng::fork(seed, 16);
        let gone_ms = config.gone.millis();
        let timing = Timing { gone_ms, snapshot_entries: luck.spread(8, 200), ..Timing::default() };
        let host = |n: u64| {
            let mut disk = config.disk.clone();
            disk.limit = DISK_BYTES;
            let times = config.slowness.get(n as usize - 1).copied().unwrap_or(1);
            disk.write_latency.0 *= times;
            disk.sync_latency.0 *= times;
            Host::new(NodeId(n), Disk::new(&world, disk, Rng::fork(seed, 300 + n)))
        };
        Rc::new(Self {
            control: Rc::downgrade(control),
            cluster: state.cluster(),
            timing,
            mutant,
            hosts: (1..=config.nodes).map(host).collect(),
            founder: RefCell::new((NodeId(1), state.clone())),
            founded: Cell::new(false),
            foundings: Cell::new(0),
            ways: RefCell::default(),
            witness: RefCell::new(Witness::new(state)),
            followed: RefCell::default(),
            silent: Cell::new(false),
            luck: RefCell::new(luck),
            world,
            net,
        })
    }

    fn host(&self, node: NodeId) -> Option<&Host> {
        self.hosts.get(usize::try_from(node.0).ok()?.checked_sub(1)?)
    }

    /// The disk of a node's seat.
    #[must_use]
    pub fn disk(&self, node: NodeId) -> Option<Disk> {
        self.host(node).map(|h| h.disk.clone())
    }

    /// Looks after gateways for as long as the run goes on.
    pub async fn tend(self: Rc<Self>) {
        loop {
            tokio::time::sleep(timing::SEAT_LOOK).await;
            self.look_at_followed();
        }
    }

    /// A process of the node begins.
    pub fn started(&self, node: NodeId) {
        if let Some(host) = self.host(node) {
            host.begin();
            self.ways.borrow_mut().forget(node);
        }
    }

    /// The process of the node stands still, or goes on.
    pub fn paused(&self, node: NodeId, paused: bool) {
        if let Some(host) = self.host(node) {
            host.paused.set(paused);
        }
    }

    /// The process of the node is gone, if there was one, or its power.
    pub fn died(self: &Rc<Self>, node: NodeId, crash: Crash) {
        let Some(host) = self.host(node) else { return };
        let had_process = host.end(crash);
        if had_process && crash == Crash::Kill {
            self.close_links_to(node);
        }
    }

    /// From now on no message of any seat arrives, or each again.
    pub fn be_silent(&self, silent: bool) {
        self.silent.set(silent);
    }

    /// The node that leads by its own word; the one of the newest term, if there are several.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        let by_own_word = |h: &Host| {
            let peer = h.peer()?;
            let (leader, term) = peer.leader();
            (leader == Some(peer.seat())).then_some((term, h.id))
        };
        self.hosts.iter().filter_map(by_own_word).max().map(|(_, node)| node)
    }

    /// True once as many seats vote as there are nodes for.
    #[must_use]
    pub fn are_set_up(&self) -> bool {
        let wanted = voters::count_of(self.hosts.len());
        let votes = |h: &&Host| h.peer().is_some_and(|p| p.votes());
        self.leader().is_some() && self.hosts.iter().filter(votes).count() == wanted
    }

    /// Why not all seats have all that was decided, if that is so.
    #[must_use]
    pub fn unlevel(&self) -> Option<String> {
        let newest = self.witness.borrow().newest();
        let behind = |h: &&Host| h.applied() < Some(newest);
        let host = self.hosts.iter().find(behind)?;
        let seen = host.peer().map_or("it has no seat".into(), |p| p.describe());
        Some(format!("the seat of node {} has not applied entry {newest}: {seen}", host.id))
    }

    /// The word of each seat about itself, for people.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let line = |h: &Host| h.peer().map_or(format!("node {} has no seat", h.id), |p| p.describe());
        self.hosts.iter().map(line).collect()
    }

    /// All nodes are down, and so is every copy of the state: the cluster is founded anew with this one.
    pub fn found_again(&self, state: State) {
        self.world.count("clusters founded anew");
        let state = Arc::new(state);
        self.foundings.set(self.foundings.get() + 1);
        for host in &self.hosts {
            host.swap(SeatImage::default().in_founding(self.foundings.get()));
        }
        let founder = NodeId(self.luck.borrow_mut().range(1, self.hosts.len() as u64));
        *self.founder.borrow_mut() = (founder, state.clone());
        self.founded.set(false);
        self.witness.borrow_mut().begin(state);
    }

    /// A copy of what a node has of the control plane, if that is told from the present one when it is put back. An old image
    /// of a seat that votes alone asks the other nodes before it leads, and hears of it from them (`consensus`,
    /// `tests/suite/sim/alone.rs`). But none of them may be there, or within reach, just then; and then nothing in the world
    /// can tell that it is old, so nothing here may demand it.
    #[must_use]
    pub fn image(&self, node: NodeId) -> Option<SeatImage> {
        let host = self.host(node).filter(|h| self.hosts.len() >= 3 && h.peer().is_some_and(|p| !p.votes_alone()))?;
        Some(host.image())
    }

    /// True if each other node has heard that a node was started with this number.
    #[must_use]
    pub fn all_others_know(&self, node: NodeId, start: StartNumber) -> bool {
        let knows = |h: &Host| {
            let known = h.peer().and_then(|p| p.state().node(node).map(|n| n.start));
            known.is_some_and(|s| s >= start)
        };
        self.hosts.iter().filter(|h| h.id != node).all(knows)
    }

    /// Puts that in, while the node has no process, and gives back what was there. Where an old one would have the only
    /// vote, nothing is done.
    pub fn swap(&self, node: NodeId, image: SeatImage) -> Option<SeatImage> {
        let image = image.in_founding(self.foundings.get());
        (self.hosts.len() >= 3).then(|| self.host(node).map(|h| h.swap(image))).flatten()
    }

    /// A command from a node, through its own seat, or from a gateway, through the node that it follows.
    pub async fn submit(&self, from: Place, command: Command) -> Result<Done> {
        let done = match from {
            Place::Node(n) => self.ask(NodeId(n), command).await,
            Place::Gateway(g) => self.submit_over_network(g, command).await,
            Place::Control => Err(stopped()),
        };
        if let Ok(done) = &done
            && let Err(why) = self.witness.borrow().answered(done)
        {
            self.world.violation(why);
        }
        done
    }

    /// A command of a person, who asks some node that runs, from there.
    pub fn order(self: &Rc<Self>, command: Command) {
        let running: Vec<NodeId> = self.hosts.iter().filter(|h| h.answers()).map(|h| h.id).collect();
        let Some(node) = self.luck.borrow_mut().pick(&running).copied() else { return };
        let seats = self.clone();
        tokio::task::spawn_local(async move {
            let done = seats.submit(Place::Node(node.0), command.clone()).await;
            seats.world.say(|| format!("control: ordered at node {node}: {command:?} -> {done:?}"));
            seats.world.trace(0x51, node.0, u64::from(done.is_ok()));
        });
    }

    async fn ask(&self, node: NodeId, command: Command) -> Result<Done> {
        let desk = self.host(node).and_then(Host::desk).ok_or_else(stopped)?;
        let (tell, told) = oneshot::channel();
        desk.send(seat::Ask::Submit(command, tell)).map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }

    async fn submit_over_network(&self, gateway: u64, command: Command) -> Result<Done> {
        let node = self.followed_by(gateway);
        let (here, there) = (Place::Gateway(gateway), Place::Node(node.0));
        let no_answer = || Error::retry(format!("node {node} does not answer"));
        let Some(wait) = self.net.round_trip(here, there) else {
            self.wait(timing::CALL_PATIENCE).await;
            return Err(no_answer());
        };
        let half = Nanos(wait.0 / 2);
        self.wait(half).await;
        let answer = tokio::time::timeout(timing::SEAT_PATIENCE, self.ask(node, command)).await;
        let is_lost = self.control.upgrade().is_none_or(|c| c.loses_answer());
        if is_lost || self.net.is_blocked(there, here) {
            self.wait(timing::CALL_PATIENCE).await;
            return Err(no_answer());
        }
        self.wait(half).await;
        answer.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn wait(&self, time: Nanos) {
        if let Some(control) = self.control.upgrade() {
            control.sleep(time).await;
        }
    }

    /// Returns once everything that was decided until now is applied at this node.
    pub async fn catch_up(&self, node: NodeId) -> Result<()> {
        let desk = self.host(node).and_then(Host::desk).ok_or_else(stopped)?;
        let (tell, told) = oneshot::channel();
        desk.send(seat::Ask::CatchUp(tell)).map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }

    /// The newest state that can be had at this place now, if any.
    #[must_use]
    pub fn state_at(&self, place: Place) -> Option<Arc<State>> {
        let node = match place {
            Place::Node(n) => NodeId(n),
            Place::Gateway(g) => {
                let node = self.followed_by(g);
                self.reaches(g, node).then_some(node)?
            }
            Place::Control => return None,
        };
        self.host(node)?.peer().map(|p| p.state())
    }

    fn followed_by(&self, gateway: u64) -> NodeId {
        let count = self.hosts.len();
        let first = || Followed::new(self.luck.borrow_mut().below(count as u64) as usize, count);
        self.followed.borrow_mut().entry(gateway).or_insert_with(first).node
    }

    /// The place where a command from there is taken in.
    #[must_use]
    pub fn asked_by(&self, from: Place) -> Place {
        match from {
            Place::Gateway(g) => Place::Node(self.followed_by(g).0),
            other => other,
        }
    }

    /// True if this gateway hears of states from this node.
    #[must_use]
    pub fn follows(&self, gateway: u64, node: NodeId) -> bool {
        self.followed_by(gateway) == node
    }

    /// True if nothing between the two is cut, and the node answers.
    fn reaches(&self, gateway: u64, node: NodeId) -> bool {
        let (here, there) = (Place::Gateway(gateway), Place::Node(node.0));
        let is_open = !self.net.is_blocked(here, there) && !self.net.is_blocked(there, here);
        is_open && self.host(node).is_some_and(Host::answers)
    }

    /// A gateway whose node was silent at two looks in a row follows the next one that answers, and hears what that knows.
    fn look_at_followed(&self) {
        let mut moved = Vec::new();
        let count = self.hosts.len();
        for (gateway, followed) in self.followed.borrow_mut().iter_mut() {
            followed.silent = if self.reaches(*gateway, followed.node) { 0 } else { followed.silent + 1 };
            let is_there = |at: &usize| self.reaches(*gateway, NodeId(*at as u64 + 1));
            if followed.silent >= 2
                && let Some(at) = followed.following.order(count).find(is_there)
            {
                *followed = Followed::new(at, count);
                moved.push(*gateway);
            }
        }
        let Some(control) = self.control.upgrade() else { return };
        moved.into_iter().for_each(|g| control.tell_gateways(&|other| other == g));
    }
}

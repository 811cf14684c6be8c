//! The seat of one node: its disk and note, which outlive processes, and what of it runs inside one.

use super::Seats;
use super::wire::{About, Wire};
use crate::control::Plane;
use crate::device::{Content, Crash, Disk};
use crate::node::SimRandom;
use crate::rng::{Rng, mix};
use crate::timing;
use freebs_consensus::note::{Instead, NOTE_BYTES, SeatNote};
use freebs_consensus::{Options, Peer, Store};
use freebs_control::{Command, Done, State};
use freebs_io::Random;
use freebs_types::{Error, NodeId, Result, StartNumber};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Bytes of log behind what an area of a store begins with: few, so that runs see areas that are full.
const ROOM_BYTES: u64 = 24 << 10;

/// A request to a seat; it is carried out inside its process.
pub(super) enum Ask {
    Submit(Command, oneshot::Sender<Result<Done>>),
    CatchUp(oneshot::Sender<Result<()>>),
}

struct Up {
    peer: Peer,
    desk: mpsc::UnboundedSender<Ask>,
    about: Rc<About>,
}

/// A copy of what a node has of the control plane on disk; blank by default.
#[derive(Default)]
pub struct SeatImage {
    disk: Content,
    note: Option<[u8; NOTE_BYTES]>,
    founding: u64,
}

impl SeatImage {
    /// The same; a blank one takes part in the cluster as that was founded last.
    pub(super) fn in_founding(self, newest: u64) -> Self {
        Self { founding: if self.note.is_some() { self.founding } else { newest }, ..self }
    }
}

/// A node's part in the control plane.
pub(super) struct Host {
    pub id: NodeId,
    pub disk: Disk,
    /// A file that is replaced whole.
    note: Cell<Option<[u8; NOTE_BYTES]>>,
    /// The founding of the cluster that its log follows, counted.
    founding: Cell<u64>,
    lives: Cell<u64>,
    /// A process is there.
    pub alive: Cell<bool>,
    pub paused: Cell<bool>,
    /// The power is off, so that nobody says that no process is there.
    pub dark: Cell<bool>,
    up: RefCell<Option<Up>>,
}

impl Host {
    pub fn new(id: NodeId, disk: Disk) -> Self {
        let (note, founding, lives, alive, paused, dark, up) = Default::default();
        Self { id, disk, note, founding, lives, alive, paused, dark, up }
    }

    /// A process begins.
    pub fn begin(&self) {
        self.lives.set(self.lives.get() + 1);
        self.alive.set(true);
        self.paused.set(false);
        self.dark.set(false);
    }

    /// The process ends, or the power goes. True if there was a process.
    pub fn end(&self, crash: Crash) -> bool {
        self.dark.set(self.dark.get() || crash == Crash::Power);
        self.disk.crash(crash);
        // Its tasks are gone already; this was the last hold on them.
        self.up.borrow_mut().take();
        self.alive.replace(false)
    }

    /// All that it has on its disk and beside it.
    pub fn image(&self) -> SeatImage {
        SeatImage { disk: self.disk.content(), note: self.note.get(), founding: self.founding.get() }
    }

    /// Puts that in, and gives back what was there.
    pub fn swap(&self, image: SeatImage) -> SeatImage {
        let founding = self.founding.replace(image.founding);
        SeatImage { disk: self.disk.swap(image.disk), note: self.note.replace(image.note), founding }
    }

    pub fn peer(&self) -> Option<Peer> {
        self.up.borrow().as_ref().map(|up| up.peer.clone())
    }

    pub fn desk(&self) -> Option<mpsc::UnboundedSender<Ask>> {
        self.up.borrow().as_ref().map(|up| up.desk.clone())
    }

    /// True if it would answer a gateway now.
    pub fn answers(&self) -> bool {
        self.up.borrow().is_some() && !self.paused.get()
    }

    /// The last entry that it has applied.
    pub fn applied(&self) -> Option<u64> {
        self.peer()?.machine(|m| m.applied.map(|a| a.index()))
    }

    /// The founding of the cluster that its log follows, counted.
    pub fn founding(&self) -> u64 {
        self.founding.get()
    }

    fn note(&self, s: &Seats) -> Result<SeatNote> {
        match self.note.get() {
            Some(bytes) => SeatNote::decode(&bytes, s.cluster, self.id),
            None => Ok(SeatNote::new(s.cluster, self.id)),
        }
    }
}

impl Seats {
    /// Opens the store of a node, and starts the seat in the process that calls this, which came with that start number.
    /// `plane` hears of each state.
    pub async fn sit(self: &Rc<Self>, node: NodeId, came_with: StartNumber, plane: &Plane) -> Result<()> {
        let host = self.host(node).ok_or_else(|| Error::bug("a node without a place for its seat"))?;
        let seed = mix(mix(node.0 << 32 ^ host.lives.get()) ^ self.luck.borrow_mut().next());
        let store = self.open_store(host, seed).await?;
        let about = Rc::new(About::of(came_with));
        let wire = Wire::new(self, store.seat(), about.clone());
        let contacts = self.hosts.iter().map(|h| h.id).collect();
        let weak = Rc::downgrade(self);
        let watcher = Rc::new(move |entry: &_, machine: &_| {
            if let Some(seats) = weak.upgrade() {
                seats.applied(node, entry, machine);
            }
        });
        let peer = Peer::start(store, wire, self.timing.clone(), contacts, seed, Some(watcher)).await?;
        let (desk, asked) = mpsc::unbounded_channel();
        *host.up.borrow_mut() = Some(Up { peer: peer.clone(), desk, about });
        let stands = peer.clone();
        peer.spawn(async move { stands.stand_after_start(seed).await });
        peer.spawn(answer(peer.clone(), asked));
        peer.spawn(self.clone().pass_on(peer.clone(), plane.clone()));
        peer.spawn(self.clone().check(peer.clone()));
        Ok(())
    }

    /// From now on its messages carry this start number, which the node's log has.
    pub fn carry(&self, node: NodeId, start: StartNumber) {
        if let Some(about) = self.about(node) {
            about.start.set(start);
        }
    }

    /// From now on they say that its log is in use.
    pub fn works(&self, node: NodeId) {
        if let Some(about) = self.about(node) {
            about.works.set(true);
        }
    }

    fn about(&self, node: NodeId) -> Option<Rc<About>> {
        self.host(node).and_then(|h| h.up.borrow().as_ref().map(|up| up.about.clone()))
    }

    async fn open_store(&self, host: &Host, seed: u64) -> Result<Store> {
        let note = host.note(self)?.begin();
        host.note.set(Some(note.encode()));
        let (cluster, mutant) = (self.cluster, self.mutant);
        let (start, noted) = (note.begun(), note.used());
        let options = Options { cluster, node: host.id, start, noted, room: ROOM_BYTES, mutant };
        let random = |salt| -> Box<dyn Random> { Box::new(SimRandom(Rng::fork(seed, salt))) };
        let opened = Store::open(host.disk.open(), options, random(1)).await;
        let (founder, state) = self.founder.borrow().clone();
        let founds = || Ok((founder == host.id).then_some(state));
        let store = match opened {
            Ok(store) => store,
            Err(e) => match note.instead(e.kind, self.hosts.len() > 1, founds)? {
                Instead::Found(state) if !self.founded.get() => {
                    let store = Store::found(host.disk.open(), options, random(2), &state).await?;
                    self.founded.set(true);
                    store
                }
                // The others know that the cluster was founded.
                Instead::Found(_) | Instead::New => Store::create(host.disk.open(), options, random(2)).await?,
                // Nobody takes a seat's disk away but with the whole control state.
                Instead::PutAside | Instead::Lost | Instead::Fails => {
                    if !host.disk.has_failed() {
                        self.world.violation(format!("the control store of node {} can't be opened: {e}", host.id));
                    }
                    return Err(e);
                }
            },
        };
        host.note.set(Some(note.in_use().encode()));
        Ok(store)
    }

    /// Tells the node, and the gateways that follow it, of each state.
    async fn pass_on(self: Rc<Self>, peer: Peer, plane: Plane) {
        let mut state = peer.watch();
        let node = peer.seat().node;
        loop {
            let newest: Arc<State> = state.now().clone();
            plane.push(newest);
            if let Some(control) = self.control.upgrade() {
                control.tell_gateways(&|gateway| self.follows(gateway, node));
            }
            if !state.next().await {
                return;
            }
        }
    }

    /// A seat stops only if its disk fails.
    async fn check(self: Rc<Self>, peer: Peer) {
        let node = peer.seat().node;
        loop {
            tokio::time::sleep(timing::SEAT_LOOK).await;
            let Err(e) = peer.check() else { continue };
            if self.host(node).is_some_and(|h| !h.disk.has_failed()) {
                self.world.violation(format!("the seat of node {node} has stopped: {e}"));
            }
            return;
        }
    }
}

async fn answer(peer: Peer, mut asked: mpsc::UnboundedReceiver<Ask>) {
    while let Some(ask) = asked.recv().await {
        let one = peer.clone();
        // Nobody may be there any more to take the answer.
        peer.spawn(async move {
            match ask {
                Ask::Submit(command, tell) => drop(tell.send(one.submit(command).await)),
                Ask::CatchUp(tell) => drop(tell.send(one.catch_up().await)),
            }
        });
    }
}

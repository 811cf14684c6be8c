//! The readers of snapshots of one worker: one for each snapshot that is open here, shared by all its connections, beside the
//! drivers of attached volumes.
//!
//! Invariants: a snapshot needs no attachment, so none is asked for and none is given back; a reader is there while somebody
//! uses it; once its snapshot was deleted it gives nothing but errors, whatever its members may still have.

use super::Drivers;
use super::waiting::{Asked, Waiting};
use crate::runtime::core::Core;
use crate::runtime::nbd_conn::Conn;
use freebs_agent::{past_news_of, reader_of};
use freebs_control::{ControlPlane, State};
use freebs_driver::past::Past;
use freebs_driver::{Action, Event, Op};
use freebs_format::wire::{Message, Request};
use freebs_io::Clock;
use freebs_io::linux::SystemClock;
use freebs_nbd::Ticket;
use freebs_types::{Error, Peer, Result, SnapshotId, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Snapshots that one worker reads at a time: each has some megabytes of blocks on their way.
const READERS_MAX: usize = 256;

/// One snapshot that is open.
pub struct PastSlot {
    past: RefCell<Past>,
    number: u16,
    volume: VolumeId,
    snapshot: SnapshotId,
    /// Revision of the state that it was opened by: an older one may not have the snapshot yet.
    revision: u64,
    /// Connections, and those that are still being shaken hands with.
    users: Cell<usize>,
    waiting: Waiting,
}

/// All that are open on a worker, by their numbers.
#[derive(Default)]
pub struct Readers {
    slots: RefCell<BTreeMap<u16, Rc<PastSlot>>>,
    last: Cell<u16>,
}

impl Readers {
    pub fn get(&self, number: u16) -> Option<Rc<PastSlot>> {
        self.slots.borrow().get(&number).cloned()
    }

    pub fn all(&self) -> Vec<Rc<PastSlot>> {
        self.slots.borrow().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.slots.borrow().len()
    }

    fn of(&self, volume: VolumeId, snapshot: SnapshotId) -> Option<Rc<PastSlot>> {
        self.slots.borrow().values().find(|s| (s.volume, s.snapshot) == (volume, snapshot)).cloned()
    }

    /// A number that none has that is open, and none had a moment ago.
    fn next_number(&self) -> u16 {
        let slots = self.slots.borrow();
        loop {
            self.last.set(self.last.get().wrapping_add(1));
            if !slots.contains_key(&self.last.get()) {
                return self.last.get();
            }
        }
    }
}

/// The reader that a message is for; `None` if it is a driver's.
pub fn reader_for(message: &Message) -> Option<u16> {
    match message {
        Message::ReadReply(r) => Past::reader_of(r.id),
        Message::Refused(r) => match r.request {
            Request::Read(id) => Past::reader_of(id),
            _ => None,
        },
        _ => None,
    }
}

impl<C: ControlPlane> Drivers<C> {
    /// Opens a snapshot, if it is not open here, and counts one more user; the number of its reader.
    pub fn open_past(&self, core: &Rc<Core<C>>, volume: VolumeId, snapshot: SnapshotId) -> Result<u16> {
        if core.stopping.get() {
            return Err(Error::retry("this process is stopping"));
        }
        if let Some(slot) = self.readers.of(volume, snapshot) {
            slot.users.set(slot.users.get() + 1);
            return Ok(slot.number);
        }
        if self.readers.len() >= READERS_MAX {
            return Err(Error::busy(format!(
                "{READERS_MAX} snapshots are read here already; close some, or try again"
            )));
        }
        let number = self.readers.next_number();
        let local = core.shards.as_ref().map(|_| core.spec.me.node);
        // Of the newest state, which this worker may not have been told of yet.
        let state = core.spec.control.state();
        let config = reader_of(&state, volume, snapshot, number, local)?;
        let slot = Rc::new(PastSlot {
            past: RefCell::new(Past::new(config, SystemClock.now())),
            number,
            volume,
            snapshot,
            revision: state.revision(),
            users: Cell::new(1),
            waiting: Waiting::default(),
        });
        self.readers.slots.borrow_mut().insert(number, slot.clone());
        self.fit_windows(core);
        self.step_past(core, &slot, Event::Tick);
        Ok(number)
    }

    /// One user less; the last one closes it.
    pub fn release_past(&self, core: &Rc<Core<C>>, number: u16) {
        let Some(slot) = self.readers.get(number) else { return };
        slot.users.set(slot.users.get().saturating_sub(1));
        if slot.users.get() == 0 {
            self.step_past(core, &slot, Event::Close);
            self.readers.slots.borrow_mut().remove(&number);
        }
    }

    /// A request of a client; the answer goes to `conn`.
    pub fn request_past(&self, core: &Rc<Core<C>>, slot: &Rc<PastSlot>, conn: &Rc<Conn>, ticket: Ticket, op: Op) {
        self.put_past(core, slot, Asked::Client { conn: conn.clone(), ticket }, op);
    }

    pub(super) fn put_past(&self, core: &Rc<Core<C>>, slot: &Rc<PastSlot>, asked: Asked, op: Op) {
        let token = slot.waiting.put(asked);
        self.step_past(core, slot, Event::Client { token, op });
    }

    pub(super) fn step_past(&self, core: &Rc<Core<C>>, slot: &Rc<PastSlot>, event: Event) {
        let mut out = self.spare.borrow_mut().pop().unwrap_or_default();
        slot.past.borrow_mut().step(SystemClock.now(), event, &mut out);
        self.carry_out_past(core, slot, out);
    }

    fn carry_out_past(&self, core: &Rc<Core<C>>, slot: &Rc<PastSlot>, mut out: Vec<Action>) {
        for action in out.drain(..) {
            match action {
                Action::Send { to, message } => self.send(core, to, message),
                Action::Done { token, result } => slot.waiting.done(token, result),
                Action::Connect(peer) => {
                    let slot = slot.clone();
                    self.connect(core, peer, move |core, event| core.drivers.step_past(core, &slot, event));
                }
                Action::Closed | Action::Ready | Action::Fenced => {}
            }
        }
        self.spare.borrow_mut().push(out);
    }

    pub(super) fn tick_past(&self, core: &Rc<Core<C>>) {
        let now = SystemClock.now();
        for slot in self.readers.all() {
            if slot.past.borrow().next_deadline().is_some_and(|d| d <= now) {
                self.step_past(core, &slot, Event::Tick);
            }
        }
    }

    pub(super) fn tell_past(&self, core: &Rc<Core<C>>, event: &Event) {
        for slot in self.readers.all() {
            self.step_past(core, &slot, event.clone());
        }
    }

    pub(super) fn on_past_message(&self, core: &Rc<Core<C>>, reader: u16, from: Peer, message: Message) {
        if let Some(slot) = self.readers.get(reader) {
            self.step_past(core, &slot, Event::Message { from, message });
        }
    }

    /// The control state is another than the one before.
    pub(super) fn on_past_state(&self, core: &Rc<Core<C>>, earlier: &State, state: &State) {
        let is_told = |slot: &Rc<PastSlot>| slot.revision <= state.revision();
        for slot in self.readers.all().into_iter().filter(is_told) {
            match past_news_of(earlier, state, slot.volume, slot.snapshot) {
                Ok(events) => events.into_iter().for_each(|e| self.step_past(core, &slot, e)),
                Err(gone) => {
                    let mut out = Vec::new();
                    slot.past.borrow_mut().end(gone, &mut out);
                    if !out.is_empty() {
                        tracing::warn!("volume {}: a snapshot that is being read was deleted", slot.volume);
                    }
                    self.carry_out_past(core, &slot, out);
                }
            }
        }
    }
}

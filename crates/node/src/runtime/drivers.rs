//! The drivers of one worker: one for each volume that is attached here, shared by all its NBD connections.
//!
//! Invariants: a volume has at most one driver here; it is attached before its first connection begins and given
//! back after its last one ended, unless it is held (`held`); each request of a client is answered once, on the
//! connection that asked; a connection belongs to one attachment for its whole life, and never speaks through a later
//! one (rule 14 of the contract: who was fenced gets errors until it connects anew).

mod held;
mod past;
mod waiting;

pub use held::Held;
pub use past::PastSlot;

use super::core::Core;
use super::dial;
use super::nbd_conn::{Conn, Flusher, Served, Serves};
use crate::timing;
use freebs_agent::{Answer, Asking, Attachment, DriverLinks, Right, Wanted, news_of};
use freebs_control::{ControlPlane, Holder, State};
use freebs_driver::{Action, Driver, Event, Op, Reply};
use freebs_format::Pin;
use freebs_format::wire::{Message, Role};
use freebs_io::linux::{OsRandom, SystemClock};
use freebs_io::{Clock, LinkId, Outbox, Random};
use freebs_nbd::{NbdErrno, Ticket};
use freebs_types::{DriverId, Error, Generation, NodeId, Peer, Result, ShardId, VolumeId, limits};
use past::Readers;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use waiting::{Asked, Waiting};

/// What each driver may add to what waits on a link: its window, and as much again for what it repeats.
pub const LINK_WINDOW_PER_DRIVER: usize = 2 * limits::DRIVER_WINDOW_BYTES;

/// One attached volume.
pub struct Slot {
    driver: RefCell<Driver>,
    volume: VolumeId,
    generation: Generation,
    state: RefCell<Attachment>,
    /// Connections, those that are still being shaken hands with, and one more while it is held.
    users: Cell<usize>,
    /// It stays attached without a connection, until it is let go.
    held: Cell<bool>,
    /// Users that only wait until it is ready, to give it back then.
    returning: Cell<usize>,
    conns: RefCell<Vec<Weak<Conn>>>,
    /// `state` changed.
    changed: Notify,
    waiting: Waiting,
}

impl Slot {
    fn is_ready(&self) -> bool {
        self.state.borrow().is_ready()
    }

    /// Its driver answers nobody any more.
    fn is_over(&self) -> bool {
        self.state.borrow().is_over()
    }

    /// Returns when its driver is ready, or never will be.
    async fn settled(&self) {
        while !self.is_ready() && !self.is_over() {
            self.changed.notified().await;
        }
    }

    /// A connection's first word here.
    pub fn join(&self, conn: &Rc<Conn>) {
        let mut conns = self.conns.borrow_mut();
        conns.retain(|c| c.strong_count() > 0);
        conns.push(Rc::downgrade(conn));
    }
}

/// All drivers of a worker.
pub struct Drivers<C> {
    slots: RefCell<BTreeMap<VolumeId, Rc<Slot>>>,
    /// Volumes that are being attached or given back, one at a time each, and what that waits for.
    busy: RefCell<BTreeMap<VolumeId, String>>,
    settled: Notify,
    links: RefCell<DriverLinks>,
    pub flusher: Rc<Flusher>,
    spare: RefCell<Vec<Vec<Action>>>,
    readers: Readers,
    marker: std::marker::PhantomData<C>,
}

/// Why the control plane has not given the right to a volume yet.
fn control_plane(why: &str) -> String {
    format!("the volume waits for the control plane: {why}; see `freebs status`")
}

/// The members or the answer that an attachment lacks which is not ready.
fn lacks(slot: &Slot, state: &State) -> String {
    let info = slot.driver.borrow().info();
    let name = |node: NodeId| state.node(node).map_or_else(|| node.to_string(), |n| n.name.clone());
    let (mut silent, mut heads) = (BTreeSet::new(), BTreeSet::new());
    for shard in &info.shards {
        let lends = shard.members.iter().filter(|m| m.lease).count();
        if lends < shard.quorum.max(1) {
            silent.extend(shard.members.iter().filter(|m| !m.lease).map(|m| name(m.node)));
        } else if !shard.attached {
            heads.extend(shard.head.map(name));
        }
    }
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    if !silent.is_empty() {
        format!("too few members of the volume answer: nothing from {}; see `freebs status`", list(silent))
    } else if !heads.is_empty() {
        format!("the head of the volume does not answer: nothing from {}; see `freebs status`", list(heads))
    } else if info.shards.iter().any(|s| s.members.is_empty()) {
        "no node has the volume open yet; see `freebs volume show`".into()
    } else {
        "the volume's last user may still be there; it can be had within seconds if not".into()
    }
}

/// The holder of the volumes that are attached here.
fn who<C: ControlPlane>(core: &Core<C>) -> Holder {
    Holder { identity: core.spec.identity, name: core.spec.name.clone() }
}

fn shard_of(message: &Message) -> Option<ShardId> {
    match message {
        Message::Attached { news, .. } => Some(news.shard),
        Message::View(news) => Some(news.shard),
        Message::Ordered { shard, .. } => Some(*shard),
        Message::Leased(l) => Some(l.shard),
        Message::ReadReply(r) => Some(r.shard),
        Message::Refused(r) => Some(r.shard),
        _ => None,
    }
}

impl<C: ControlPlane> Drivers<C> {
    pub fn new() -> Self {
        Self {
            slots: RefCell::default(),
            busy: RefCell::default(),
            settled: Notify::new(),
            links: RefCell::default(),
            flusher: Rc::new(Flusher::default()),
            spare: RefCell::default(),
            readers: Readers::default(),
            marker: std::marker::PhantomData,
        }
    }

    /// The tasks that send replies and look at time-outs.
    pub fn start_tasks(&self, core: &Rc<Core<C>>) {
        self.flusher.start();
        let weak = Rc::downgrade(core);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(timing::DRIVER_TICK).await;
                let Some(core) = weak.upgrade() else { return };
                let now = SystemClock.now();
                let slots: Vec<Rc<Slot>> = core.drivers.slots.borrow().values().cloned().collect();
                for slot in slots {
                    let due = slot.driver.borrow().next_deadline().is_some_and(|d| d <= now);
                    if due {
                        core.drivers.step(&core, &slot, Event::Tick);
                    }
                }
                core.drivers.tick_past(&core);
            }
        });
    }

    fn slot(&self, volume: VolumeId) -> Option<Rc<Slot>> {
        self.slots.borrow().get(&volume).cloned()
    }

    /// Attaches the volume, if it is not attached here, and counts one more user of the attachment that it returns.
    pub async fn open(&self, core: &Rc<Core<C>>, volume: VolumeId) -> Result<Generation> {
        let slot = self.joined(core, volume, false).await?;
        let ready = Self::wait_ready(core, &slot).await;
        if ready.is_err() {
            Self::release_once_ready(core, &slot);
        }
        ready.map(|()| slot.generation)
    }

    /// The attachment of a volume, made if there is none here, with one more user. `force`: also if somebody else has the
    /// volume, and is there.
    async fn joined(&self, core: &Rc<Core<C>>, volume: VolumeId, force: bool) -> Result<Rc<Slot>> {
        loop {
            if core.stopping.get() {
                return Err(Error::retry("this process is stopping"));
            }
            if self.busy.borrow().contains_key(&volume) {
                self.settled.notified().await;
                continue;
            }
            if let Some(slot) = self.slot(volume).filter(|s| !s.is_over()) {
                slot.users.set(slot.users.get() + 1);
                return Ok(slot);
            }
            self.busy.borrow_mut().insert(volume, control_plane("it has not answered yet"));
            let attached = self.attach(core, volume, force).await;
            self.busy.borrow_mut().remove(&volume);
            self.settled.notify_waiters();
            attached?;
        }
    }

    async fn wait_ready(core: &Core<C>, slot: &Slot) -> Result<()> {
        let late = tokio::time::timeout(timing::ATTACH_LIMIT, slot.settled()).await.is_err();
        slot.changed.notify_waiters();
        match () {
            () if slot.is_ready() => Ok(()),
            () if late => Err(Error::retry(lacks(slot, &core.state.borrow()))),
            () => Err(Error::fenced("the volume was attached elsewhere at the same time")),
        }
    }

    /// Asks the control plane for the right to use the volume.
    async fn ask_for(&self, core: &Core<C>, id: VolumeId, force: bool) -> Result<Right> {
        let mut asking = Asking::new(id, who(core), force, SystemClock.now());
        loop {
            let command = asking.question(&core.spec.control.state())?;
            let answer = core.spec.control.submit(command).await;
            match asking.answer(SystemClock.now(), answer) {
                Answer::Right(right) => return Ok(right),
                Answer::Again(e) if !core.stopping.get() => {
                    tracing::debug!("volume {id}: not attached yet: {e}");
                    self.busy.borrow_mut().insert(id, control_plane(&e.text));
                }
                Answer::Again(e) | Answer::Never(e) => return Err(e),
            }
            let news = core.spec.control.changed(asking.seen());
            let _ = tokio::time::timeout(timing::ATTACH_ASK_AGAIN, news).await;
        }
    }

    /// Gets the right to use the volume, and makes its driver.
    async fn attach(&self, core: &Rc<Core<C>>, id: VolumeId, force: bool) -> Result<()> {
        let right = self.ask_for(core, id, force).await?;
        let local = core.shards.as_ref().map(|_| core.spec.me.node);
        let driver = DriverId(OsRandom.next_u64().max(1));
        let config = right.driver(&core.spec.control.state(), &who(core), driver, local)?;
        let slot = Rc::new(Slot {
            driver: RefCell::new(Driver::new(config, SystemClock.now())),
            volume: id,
            generation: right.generation,
            state: RefCell::new(Attachment::new(right)),
            users: Cell::new(0),
            held: Cell::new(false),
            returning: Cell::new(0),
            conns: RefCell::default(),
            changed: Notify::new(),
            waiting: Waiting::default(),
        });
        self.slots.borrow_mut().insert(id, slot.clone());
        self.fit_windows(core);
        self.step(core, &slot, Event::Tick);
        Ok(())
    }

    /// The reason why a volume is not attached here yet, for people.
    pub fn waits_for(&self, core: &Core<C>, volume: VolumeId) -> String {
        if let Some(why) = self.busy.borrow().get(&volume) {
            return why.clone();
        }
        match self.slot(volume).filter(|slot| !slot.is_ready()) {
            Some(slot) => lacks(&slot, &core.state.borrow()),
            None => "the volume was not attached in time; try again".into(),
        }
    }

    /// The attachment of a connection, for as long as it lasts.
    pub fn attachment(&self, volume: VolumeId, generation: Generation) -> Option<Rc<Slot>> {
        self.slot(volume).filter(|s| s.generation == generation)
    }

    /// One user less; the last one gives the volume back.
    pub fn release(&self, core: &Rc<Core<C>>, volume: VolumeId, generation: Generation) {
        let Some(slot) = self.attachment(volume, generation) else { return };
        slot.users.set(slot.users.get().saturating_sub(1));
        if slot.users.get() == 0 {
            let core = core.clone();
            tokio::task::spawn_local(async move { core.drivers.give_back(&core, &slot).await });
        }
    }

    fn is_current(&self, slot: &Rc<Slot>) -> bool {
        self.slot(slot.volume).is_some_and(|s| Rc::ptr_eq(&s, slot))
    }

    async fn give_back(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>) {
        if slot.users.get() > 0 || !self.is_current(slot) || self.busy.borrow().contains_key(&slot.volume) {
            return;
        }
        self.busy.borrow_mut().insert(slot.volume, control_plane("it has not heard yet that the last user left"));
        // If the control plane can't be reached, the attachment stays this identity's, who may take it again.
        if let Err(e) = self.end(core, slot).await {
            tracing::debug!("volume {} was not given back: {e}", slot.volume);
        }
        self.busy.borrow_mut().remove(&slot.volume);
        self.settled.notify_waiters();
    }

    /// Ends an attachment that is marked as busy, and gives the right back.
    async fn end(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>) -> Result<()> {
        self.step(core, slot, Event::Close);
        let give_back = slot.state.borrow_mut().end();
        self.slots.borrow_mut().remove(&slot.volume);
        match give_back {
            Some(command) => core.spec.control.submit(command).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Gives all volumes back, for a clean stop; but for those that were taken from somebody who may be there still.
    pub async fn close_all(&self, core: &Core<C>) {
        let slots: Vec<Rc<Slot>> = self.slots.borrow().values().cloned().collect();
        let mut detaching = JoinSet::new();
        for slot in slots {
            let mut out = Vec::new();
            slot.driver.borrow_mut().step(SystemClock.now(), Event::Close, &mut out);
            for action in out {
                if let Action::Send { to, message } = action {
                    self.send(core, to, message);
                }
            }
            let Some(command) = slot.state.borrow_mut().end() else { continue };
            let control = core.spec.control.clone();
            detaching.spawn_local(async move { control.submit(command).await });
        }
        self.slots.borrow_mut().clear();
        // Together, because each waits for the control plane, which may be gone.
        let all = async { while detaching.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(timing::GIVE_BACK_LIMIT, all).await;
    }

    /// A request of a client; the answer goes to `conn`.
    pub fn request(&self, core: &Rc<Core<C>>, conn: &Rc<Conn>, ticket: Ticket, op: Op) {
        let slot = match &conn.serves {
            Serves::Volume(slot) => slot.upgrade(),
            Serves::Snapshot { slot, .. } => match slot.upgrade() {
                Some(slot) => return self.request_past(core, &slot, conn, ticket, op),
                None => None,
            },
        };
        let Some(slot) = slot else {
            conn.fail(ticket, &Error::fenced("the volume is not attached here any more"));
            return;
        };
        if slot.state.borrow().leaves_by().is_some() {
            conn.refuse(ticket, NbdErrno::Shutdown);
            return;
        }
        self.put(core, &slot, Asked::Client { conn: conn.clone(), ticket }, op);
    }

    /// A request of this process itself, which has opened the volume or snapshot.
    pub fn request_here(&self, core: &Rc<Core<C>>, of: Served, op: Op, reply: oneshot::Sender<Result<Reply>>) {
        let asked = Asked::Here(reply);
        let asked = match of {
            Served::Volume { volume, generation } => match self.attachment(volume, generation) {
                Some(slot) => return self.put(core, &slot, asked, op),
                None => asked,
            },
            Served::Snapshot { reader, .. } => match self.readers.get(reader) {
                Some(slot) => return self.put_past(core, &slot, asked, op),
                None => asked,
            },
        };
        if let Asked::Here(reply) = asked {
            // Nobody may wait any more.
            drop(reply.send(Err(Error::fenced("it is not open here any more"))));
        }
    }

    /// One user less of what was opened for it.
    pub fn release_served(&self, core: &Rc<Core<C>>, of: Served) {
        match of {
            Served::Volume { volume, generation } => self.release(core, volume, generation),
            Served::Snapshot { reader, .. } => self.release_past(core, reader),
        }
    }

    /// The driver or reader that a connection which was opened for it speaks to.
    pub fn serves(&self, of: Served, since: Option<Arc<[Pin]>>) -> Serves {
        match of {
            Served::Volume { volume, generation } => {
                Serves::Volume(self.attachment(volume, generation).as_ref().map(Rc::downgrade).unwrap_or_default())
            }
            Served::Snapshot { reader, .. } => Serves::Snapshot {
                slot: self.readers.get(reader).as_ref().map(Rc::downgrade).unwrap_or_default(),
                since,
            },
        }
    }

    fn put(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>, asked: Asked, op: Op) {
        let token = slot.waiting.put(asked);
        self.step(core, slot, Event::Client { token, op });
    }

    fn step(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>, event: Event) {
        let mut out = self.spare.borrow_mut().pop().unwrap_or_default();
        slot.driver.borrow_mut().step(SystemClock.now(), event, &mut out);
        for action in out.drain(..) {
            self.carry_out(core, slot, action);
        }
        self.spare.borrow_mut().push(out);
    }

    fn carry_out(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>, action: Action) {
        if slot.state.borrow_mut().note(&action) {
            slot.changed.notify_waiters();
        }
        match action {
            Action::Send { to, message } => self.send(core, to, message),
            Action::Done { token, result } => slot.waiting.done(token, result),
            Action::Connect(peer) => {
                let slot = slot.clone();
                self.connect(core, peer, move |core, event| core.drivers.step(core, &slot, event));
            }
            Action::Fenced => {
                tracing::warn!("volume {} was attached elsewhere: everything here fails from now on", slot.volume);
                if self.is_current(slot) {
                    self.slots.borrow_mut().remove(&slot.volume);
                }
            }
            Action::Ready | Action::Closed => {}
        }
    }

    fn send(&self, core: &Core<C>, to: Peer, message: Message) {
        let link = self.links.borrow().link(to);
        if let Some(link) = link {
            core.transport.send(link, message);
        }
    }

    /// A driver or reader wants a link: there is one, or it is dialled, or the shards are right here. It hears of it by `tell`,
    /// or with all others.
    fn connect(&self, core: &Rc<Core<C>>, peer: Peer, tell: impl FnOnce(&Rc<Core<C>>, Event) + 'static) {
        let wanted = self.links.borrow_mut().want(peer);
        let core = core.clone();
        match wanted {
            Wanted::Open(link) => drop(tokio::task::spawn_local(async move {
                let event = core.drivers.links.borrow().news(peer, link);
                tell(&core, event);
            })),
            Wanted::Opening => {}
            Wanted::Dial => drop(tokio::task::spawn_local(async move {
                let up = if peer == core.spec.me && core.shards.is_some() {
                    core.local_link().ok_or_else(|| Error::bug("no shards here"))
                } else {
                    dial::dial(&core, peer, Role::Driver).await
                };
                core.drivers.connected(&core, peer, up);
            })),
        }
    }

    fn connected(&self, core: &Rc<Core<C>>, peer: Peer, up: Result<LinkId>) {
        if let Err(e) = &up {
            tracing::debug!("{peer}: {e}");
        }
        let event = self.links.borrow_mut().opened(peer, up.ok());
        self.fit_windows(core);
        self.tell_all(core, &event);
    }

    /// A link takes the windows of all drivers at once, which is what they send when it has just come up: with less,
    /// it would be closed for that, come up again, and never carry anything. The bytes are the drivers' own; the link
    /// only refers to them.
    fn fit_windows(&self, core: &Core<C>) {
        let drivers = self.slots.borrow().len() + self.readers.len();
        let bytes = limits::PEER_WINDOW_BYTES + drivers * LINK_WINDOW_PER_DRIVER;
        for link in self.links.borrow().open() {
            core.transport.set_window(link, bytes);
        }
    }

    fn tell_all(&self, core: &Rc<Core<C>>, event: &Event) {
        let slots: Vec<Rc<Slot>> = self.slots.borrow().values().cloned().collect();
        for slot in slots {
            self.step(core, &slot, event.clone());
        }
        self.tell_past(core, event);
    }

    pub fn on_link_down(&self, core: &Rc<Core<C>>, peer: Peer, link: LinkId) {
        let event = self.links.borrow_mut().closed(peer, link);
        if let Some(event) = event {
            self.tell_all(core, &event);
        }
    }

    /// Messages of a member, for the drivers whose shards they name.
    pub fn on_messages(&self, core: &Rc<Core<C>>, from: Peer, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            if let Message::Durable(items) = message {
                self.on_durable(core, from, items);
                continue;
            }
            if let Some(reader) = past::reader_for(&message) {
                self.on_past_message(core, reader, from, message);
                continue;
            }
            let Some(slot) = shard_of(&message).and_then(|s| self.slot(s.volume)) else { continue };
            self.step(core, &slot, Event::Message { from, message });
        }
    }

    /// Durable answers come for many volumes at once; each driver gets its own.
    fn on_durable(&self, core: &Rc<Core<C>>, from: Peer, items: Vec<freebs_format::wire::DurableItem>) {
        let mut rest = &items[..];
        while let Some(first) = rest.first() {
            let volume = first.shard.volume;
            let n = rest.iter().take_while(|i| i.shard.volume == volume).count();
            let (mine, others) = rest.split_at(n);
            rest = others;
            if let Some(slot) = self.slot(volume) {
                let message = Message::Durable(mine.to_vec());
                self.step(core, &slot, Event::Message { from, message });
            }
        }
    }

    /// The control state is another than the one before.
    pub fn on_state(&self, core: &Rc<Core<C>>, earlier: &State, state: &State) {
        let slots: Vec<Rc<Slot>> = self.slots.borrow().values().cloned().collect();
        for slot in slots {
            for event in news_of(earlier, state, slot.volume) {
                let is_last = matches!(event, Event::Close);
                self.step(core, &slot, event);
                if is_last {
                    tracing::warn!("volume {} was deleted", slot.volume);
                    self.slots.borrow_mut().remove(&slot.volume);
                }
            }
        }
        self.on_past_state(core, earlier, state);
    }
}

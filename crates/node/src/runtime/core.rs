//! The inside of a worker: links by who is at their other end, the shards of a node, and the drivers.

use super::FreebsWire;
use super::audits::Audits;
use super::dial;
use super::drivers::{Drivers, LINK_WINDOW_PER_DRIVER};
use super::nbd_conn;
use super::thread::{Admission, Command, WorkerSpec, start_shards};
use crate::conn;
use crate::timing;
use freebs_agent::{Membership, Port, caller};
use freebs_chain::{Who, Worker};
use freebs_control::{ControlPlane, State};
use freebs_format::wire::{Hello, Message, Role, Welcome};
use freebs_io::linux::net::{Handler, LinkStream, LooseLink, Transport, fresh_link};
use freebs_io::linux::{FileDevice, SystemClock};
use freebs_io::{Clock, LinkId, Outbox as _};
use freebs_lsvd::OpenReport;
use freebs_types::{Error, Generation, NodeId, Peer, Result, StartNumber, VolumeId, limits};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot};

/// Links of one worker that others opened, or that it opened.
const LINKS_MAX: usize = 4096;
/// Answers that wait for the drivers of one link, whatever they have attached.
const ANSWERS_BYTES_MAX: usize = 1 << 30;

/// The chain worker of a node.
pub type Shards<C> = Worker<FileDevice, Transport<FreebsWire>, Port<Arc<C>>, SystemClock>;

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// Another node's worker, for the chain.
    Member(Peer),
    /// A driver elsewhere, of a process that speaks for this node (0 for none), for the chain.
    Driver(NodeId),
    /// A member, for the drivers here.
    ServesUs(Peer),
}

/// Everything of one worker.
pub struct Core<C: ControlPlane> {
    pub spec: WorkerSpec<C>,
    pub transport: Transport<FreebsWire>,
    pub shards: Option<Shards<C>>,
    pub drivers: Drivers<C>,
    far: RefCell<HashMap<LinkId, Far>>,
    /// What drivers elsewhere have attached, by their links.
    attached: RefCell<HashMap<LinkId, BTreeSet<VolumeId>>>,
    pub state: RefCell<Arc<State>>,
    pub member: RefCell<Membership>,
    /// Something of the dialler has changed.
    pub dial_again: Rc<Notify>,
    audits: Audits<FileDevice>,
    start: StartNumber,
    pub stopping: Cell<bool>,
}

struct LinkHandler<C: ControlPlane>(std::rc::Weak<Core<C>>);

impl<C: ControlPlane> Handler<Message> for LinkHandler<C> {
    fn on_messages(&self, link: LinkId, messages: &mut Vec<Message>) {
        let Some(core) = self.0.upgrade() else { return };
        let far = core.far.borrow().get(&link).copied();
        if let Some(Far::Driver(_)) = far {
            core.fit_window(link, messages);
        }
        match (far, &core.shards) {
            (Some(Far::Member(_) | Far::Driver(_)), Some(shards)) => shards.on_messages(link, messages),
            (Some(Far::ServesUs(peer)), _) => core.drivers.on_messages(&core, peer, messages),
            _ => {}
        }
    }

    fn on_closed(&self, link: LinkId, why: Error) {
        if let Some(core) = self.0.upgrade() {
            core.has_closed(link, &why);
        }
    }
}

impl<C: ControlPlane> Core<C> {
    /// Opens the device, if there is one, and starts everything on this thread.
    /// What the control state says of shards and peers comes with the first `Command::State`: until then no member is
    /// spoken to, and no view proposed.
    pub async fn build(spec: WorkerSpec<C>, admission: Option<Admission>) -> Result<(Rc<Self>, Option<OpenReport>)> {
        let transport = Transport::start();
        let (mut shards, mut report, mut start) = (None, None, StartNumber(0));
        if let (Some(disk), Some(admission)) = (spec.disk.clone(), admission) {
            let (s, r) = start_shards(&spec, &disk, admission, &transport).await?;
            start = s.start_number();
            (shards, report) = (Some(s), Some(r));
        }
        let state = spec.control.state();
        let member = Membership::new(spec.me, spec.workers, state.clone());
        let core = Rc::new(Self {
            drivers: Drivers::new(),
            spec,
            transport,
            shards,
            far: RefCell::default(),
            attached: RefCell::default(),
            state: RefCell::new(state),
            member: RefCell::new(member),
            dial_again: Rc::default(),
            audits: Audits::default(),
            start,
            stopping: Cell::new(false),
        });
        core.transport.set_handler(Rc::new(LinkHandler(Rc::downgrade(&core))));
        core.drivers.start_tasks(&core);
        tokio::task::spawn_local(dial::dial_on(Rc::downgrade(&core)));
        Ok((core, report))
    }

    /// Waits until the device is out of use. A gateway has none.
    pub async fn failed(&self) -> Error {
        match &self.shards {
            Some(shards) => shards.failed().await,
            None => std::future::pending().await,
        }
    }

    async fn open(self: Rc<Self>, volume: VolumeId, reply: oneshot::Sender<Result<Generation>>) {
        if let Err(Ok(generation)) = reply.send(self.drivers.open(&self, volume).await) {
            self.drivers.release(&self, volume, generation);
        }
    }

    /// Takes commands until it is told to stop.
    pub async fn run(self: Rc<Self>, mut commands: mpsc::UnboundedReceiver<Command>) {
        while let Some(command) = commands.recv().await {
            match command {
                Command::State(state) => self.on_state(state),
                Command::Link { stream, hello, welcome, leftover } => {
                    if let Err(e) = self.accept(stream, hello, welcome, leftover) {
                        tracing::warn!("a connection was not taken: {e}");
                    }
                }
                Command::Open { volume, reply } => {
                    tokio::task::spawn_local(self.clone().open(volume, reply));
                }
                Command::OpenPast { volume, snapshot, reply } => {
                    let opened = self.drivers.open_past(&self, volume, snapshot);
                    if let Err(Ok(reader)) = reply.send(opened) {
                        self.drivers.release_past(&self, reader);
                    }
                }
                Command::WaitsFor { volume, reply } => {
                    let _ = reply.send(self.drivers.waits_for(&self, volume));
                }
                Command::Hold { volume, force, reply } => {
                    self.beside(reply, move |core| async move { core.drivers.hold(&core, volume, force).await });
                }
                Command::LetGoOf { volume, generation: of, reply } => {
                    self.beside(reply, move |core| async move { core.drivers.let_go_of(&core, volume, of).await });
                }
                Command::LetGo { volume, force, reply } => {
                    self.beside(reply, move |core| async move { core.drivers.let_go(&core, volume, force).await });
                }
                Command::Expel { volume, force, reply } => {
                    self.beside(reply, move |core| async move { core.drivers.expel(&core, volume, force).await });
                }
                Command::Request { of, op, reply } => self.drivers.request_here(&self, of, op, reply),
                Command::Release { of } => self.drivers.release_served(&self, of),
                Command::Nbd { of, since, place, stream, session, input } => {
                    nbd_conn::serve(&self, (of, since), place, stream, *session, input);
                }
                Command::Status { reply } => {
                    let _ = reply.send(self.shards.as_ref().map(Worker::status).unwrap_or_default());
                }
                Command::AskInterval { ask, reply } => {
                    let no_shards = || Err(Error::retry("no shards here"));
                    let word = self.shards.as_ref().map_or_else(no_shards, |s| s.on_interval_ask(&ask));
                    let _ = reply.send(word);
                }
                Command::Digest { shard, reply } => {
                    let engine = self.shards.as_ref().map(|s| s.engine().clone());
                    tokio::task::spawn_local(async move {
                        let result = match engine {
                            Some(e) => e.digest(shard).await,
                            None => Err(Error::not_found("a gateway holds no shards")),
                        };
                        let _ = reply.send(result);
                    });
                }
                Command::Audit { of, reply } => {
                    let engine = self.shards.as_ref().map(Worker::engine);
                    let none = || Error::not_found("a gateway holds no shards");
                    let _ = reply.send(engine.ok_or_else(none).and_then(|engine| self.audits.ask(engine, of)));
                }
                Command::Stop { reply } => {
                    self.stop().await;
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    /// Works on something while other commands are taken. Nobody may wait for its result any more.
    fn beside<T: 'static, F>(self: &Rc<Self>, reply: oneshot::Sender<T>, work: impl FnOnce(Rc<Self>) -> F + 'static)
    where
        F: Future<Output = T> + 'static,
    {
        let core = self.clone();
        tokio::task::spawn_local(async move {
            let _ = reply.send(work(core).await);
        });
    }

    async fn stop(&self) {
        self.stopping.set(true);
        self.dial_again.notify_one();
        self.drivers.close_all(self).await;
        self.transport.shut_down();
        if let Some(shards) = &self.shards {
            // What is queued is made durable; a clean end is a courtesy, nothing relies on it.
            let closed = tokio::time::timeout(timing::LOG_CLOSE_MAX, shards.engine().close()).await;
            if let Ok(Err(e)) = closed {
                tracing::warn!("the log was not closed cleanly: {e}");
            }
            shards.stop();
        }
    }

    /// Somebody connected and said hello. The welcome is the first on the link, so who hears it knows that this worker works.
    fn accept(
        self: &Rc<Self>,
        stream: LooseLink,
        hello: Hello,
        welcome: Welcome,
        leftover: bytes::BytesMut,
    ) -> Result<()> {
        let stream = stream.fasten()?;
        let far = self.far_of(&hello)?;
        let link = self.link(stream, far, leftover);
        self.transport.send(link, Message::Welcome(welcome));
        self.announce(link, far);
        Ok(())
    }

    /// Who said this hello, if it may be true.
    fn far_of(&self, hello: &Hello) -> Result<Far> {
        if hello.cluster != self.spec.cluster {
            return Err(Error::invalid(format!("a peer of another cluster ({}) connected", hello.cluster)));
        }
        if self.far.borrow().len() >= LINKS_MAX {
            return Err(Error::no_space(format!("{LINKS_MAX} links are open already")));
        }
        let peer = Peer { node: hello.node, worker: hello.from_worker };
        Ok(match caller(self.spec.me, peer, hello.role)? {
            Who::Member(peer) => Far::Member(peer),
            Who::Driver => Far::Driver(hello.node),
        })
    }

    /// Answers to drivers may wait as far as the windows of what they have attached reach: they may well have asked
    /// for so much at once, and a link that is closed for it would be asked for the same again.
    fn fit_window(&self, link: LinkId, messages: &[Message]) {
        let mut all = self.attached.borrow_mut();
        for message in messages {
            let changed = match message {
                // A volume that nobody knows has no window: a message may name any.
                Message::Attach { shard, .. } | Message::Follow { shard, .. } => {
                    self.state.borrow().volume(shard.volume).is_some()
                        && all.entry(link).or_default().insert(shard.volume)
                }
                // A reader of the past never says that it begins or ends.
                Message::Read(r) if r.at.version.0 > 0 => {
                    self.state.borrow().volume(r.shard.volume).is_some()
                        && all.entry(link).or_default().insert(r.shard.volume)
                }
                Message::Detach { shard, .. } => all.get_mut(&link).is_some_and(|v| v.remove(&shard.volume)),
                _ => false,
            };
            if changed {
                let volumes = all.get(&link).map_or(0, BTreeSet::len);
                let bytes = limits::PEER_WINDOW_BYTES + volumes * LINK_WINDOW_PER_DRIVER;
                self.transport.set_window(link, bytes.min(ANSWERS_BYTES_MAX));
            }
        }
    }

    /// A greeted stream becomes a link.
    pub fn adopt(&self, stream: LinkStream, far: Far, leftover: bytes::BytesMut) -> LinkId {
        let link = self.link(stream, far, leftover);
        self.announce(link, far);
        link
    }

    fn link(&self, stream: LinkStream, far: Far, leftover: bytes::BytesMut) -> LinkId {
        let link = fresh_link();
        self.far.borrow_mut().insert(link, far);
        self.transport.adopt(stream, link, leftover);
        link
    }

    /// Tells the shards here that somebody is there.
    fn announce(&self, link: LinkId, far: Far) {
        if let Some(shards) = &self.shards {
            match far {
                Far::Member(peer) => shards.on_link_up(link, Who::Member(peer)),
                Far::Driver(_) => shards.on_link_up(link, Who::Driver),
                Far::ServesUs(_) => {}
            }
        }
    }

    /// A link from the drivers here to the shards here.
    pub fn local_link(&self) -> Option<LinkId> {
        let shards = self.shards.as_ref()?;
        let (ours, theirs) = self.transport.local_pair();
        self.far.borrow_mut().insert(ours, Far::ServesUs(self.spec.me));
        self.far.borrow_mut().insert(theirs, Far::Driver(NodeId(0)));
        shards.on_link_up(theirs, Who::Driver);
        Some(ours)
    }

    pub fn hello(&self, role: Role, to_worker: u16) -> Hello {
        Hello {
            cluster: self.spec.cluster,
            role,
            // A gateway may speak for the node beside it.
            node: if self.spec.me.node.0 == 0 { conn::own_number() } else { self.spec.me.node },
            start: self.start,
            from_worker: self.spec.me.worker,
            to_worker,
        }
    }

    pub fn address(&self, node: NodeId) -> Option<String> {
        Some(self.state.borrow().node(node)?.address.clone())
    }

    /// The control state changed: shards that are new, changed or gone, peers that are needed, volumes.
    fn on_state(self: &Rc<Self>, state: Arc<State>) {
        let earlier = self.state.replace(state.clone());
        if let Some(shards) = &self.shards {
            self.member.borrow_mut().tell(SystemClock.now(), &state, shards);
            self.dial_again.notify_one();
        }
        self.drivers.on_state(self, &earlier, &state);
        self.part_from_removed(&state);
    }

    /// Closes the links of nodes that were removed: they were looked at when they came.
    fn part_from_removed(self: &Rc<Self>, state: &State) {
        if state.joining().removed().is_empty() {
            return;
        }
        let is_of_removed = |far: &Far| match far {
            Far::Member(peer) | Far::ServesUs(peer) => state.is_removed(peer.node),
            Far::Driver(node) => state.is_removed(*node),
        };
        let gone: Vec<LinkId> =
            self.far.borrow().iter().filter(|(_, far)| is_of_removed(far)).map(|(l, _)| *l).collect();
        for link in gone {
            self.transport.close(link);
            self.has_closed(link, &Error::fenced("its node was removed from the cluster"));
        }
    }

    /// A link is closed: who used it hears so.
    fn has_closed(self: &Rc<Self>, link: LinkId, why: &Error) {
        let far = self.far.borrow_mut().remove(&link);
        self.attached.borrow_mut().remove(&link);
        match (far, &self.shards) {
            (Some(Far::Member(peer)), Some(shards)) => {
                tracing::info!("link to {peer} closed: {why}");
                shards.on_link_down(link);
                self.member.borrow_mut().dialler.closed(SystemClock.now(), link);
                self.dial_again.notify_one();
            }
            (Some(Far::Driver(_)), Some(shards)) => shards.on_link_down(link),
            (Some(Far::ServesUs(peer)), _) => {
                tracing::info!("link to {peer} closed: {why}");
                self.drivers.on_link_down(self, peer, link);
            }
            _ => {}
        }
    }
}

//! The worker: carries out what a host asks for, on a log engine and an outbox. Async, but without sockets, files
//! or clocks of its own, so it runs in simulation as it does in production.
//!
//! A turn: messages and completions step the host one by one; then, once, the host ends its turn: one append takes
//! the frames of all shards, one message takes what goes to one link.

use crate::cuts::Words;
use crate::event::{
    self, Action, Begins, ControlPort, CutWord, Event, HostConfig, IntervalAsk, IntervalWord, MapSource, Mended,
    Mutant, Note, NoteKind, Opened, PastAsk, ShardInfo, ShardStatus, SyncSource, Wanted, Who,
};
use crate::flatten::Flattening;
use crate::host::Host;
use crate::past::is_of_the_past;
use crate::repair::{Damage, Hole};
use crate::replica::{Replica, TailEntry, genesis};
use crate::sync::{ANSWER_BYTES, is_said_committed};
use crate::timing;
use bytes::Bytes;
use freebs_format::wire::{FrameName, Message, Piece, ReadReply, ReadRequest, Refusal, Refused, Request, SyncRequest};
use freebs_format::{FrameHead, Pin};
use freebs_io::{Clock, Device, LinkId, Outbox, Random};
use freebs_lsvd::{DamagedBlocks, Durable, Engine, EventKind, KeptState, Listener, MapPlace};
use freebs_types::{
    Error, ErrorKind, Generation, Hash32, Nanos, NodeId, Peer, Result, Sequence, ShardId, StartNumber, Version,
    ViewNumber, limits,
};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Frames behind a hole that are looked at for one that can be read.
const BEHIND_MAX: u64 = 64;

/// Blocks that were looked up for a read: pieces, and the CRCs and data of their data blocks.
pub(crate) type Found = (Vec<Piece>, Vec<u32>, Vec<Bytes>);

/// Damaged blocks that are taken from the log at once, as pieces of a few.
const DAMAGED_MAX: usize = 256;

/// What a worker is made of.
pub struct WorkerConfig<D: Device, O, P, K> {
    /// Cluster, node and worker.
    pub host: HostConfig,
    /// The log engine of its device.
    pub engine: Engine<D>,
    /// Takes the messages that are to be sent.
    pub outbox: O,
    /// The control plane.
    pub control: P,
    /// Monotonic time, and the wall clock.
    pub clock: K,
    /// Secrets of views come from it.
    pub random: Box<dyn Random>,
    /// Bytes a second that the scrub reads; 0 for none.
    pub scrub_bytes: u64,
    /// Receives lines worth logging.
    pub notes: Box<dyn Fn(&Note)>,
}

/// One worker of a node: all shards on one device. Clones are handles to the same worker.
pub struct Worker<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock>(pub(crate) Rc<Inner<D, O, P, K>>);

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Clone for Worker<D, O, P, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) struct Inner<D: Device, O, P, K> {
    host: RefCell<Host>,
    pub engine: Engine<D>,
    outbox: O,
    control: P,
    pub clock: K,
    pub notes: Box<dyn Fn(&Note)>,
    random: RefCell<Box<dyn Random>>,
    turn: Notify,
    words: RefCell<Words>,
    flattening: RefCell<Flattening>,
    tasks: RefCell<JoinSet<()>>,
    last_append: Cell<Nanos>,
    stopped: Cell<bool>,
    /// The reason why the device is out of use, for good.
    failure: RefCell<Option<Error>>,
    failing: Notify,
}

struct EngineListener<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock>(Weak<Inner<D, O, P, K>>);

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Listener for EngineListener<D, O, P, K> {
    fn durable(&self, done: &mut Vec<Durable>) {
        if let Some(inner) = self.0.upgrade() {
            let worker = Worker(inner);
            worker.tell_whole_from(done);
            worker.hear_of_pieces(done);
            worker.step(Event::Durable(std::mem::take(done)));
        }
    }

    fn failed(&self, error: &Error) {
        if let Some(inner) = self.0.upgrade() {
            Worker(inner).fail(error.clone());
        }
    }
}

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// Takes over what the engine recovered, and starts the log's writer and the worker's own tasks on the local
    /// set that it is called in.
    pub async fn start(config: WorkerConfig<D, O, P, K>) -> Result<Self> {
        let mut host = Host::new(config.host);
        // What was found while the log was opened is in the report of that.
        host.set_lost_something(config.engine.events().iter().any(|e| e.kind == EventKind::Damage));
        for shard in config.engine.shards() {
            let Some(state) = config.engine.state(shard) else { continue };
            let (tail, view_frame, damage) = load(&config.engine, &state).await?;
            let replica = Replica::recovered(&state, tail, view_frame, damage);
            let is_orphan = config.engine.check_inherited(shard).is_err() && !host.leaves_out(Mutant::OrphansGoOn);
            match state.fork.filter(|_| is_orphan) {
                Some(fork) => host.add_orphan(replica, &fork),
                None => host.add(replica),
            }
        }
        let inner = Rc::new(Inner {
            host: RefCell::new(host),
            engine: config.engine,
            outbox: config.outbox,
            control: config.control,
            clock: config.clock,
            notes: config.notes,
            random: RefCell::new(config.random),
            turn: Notify::new(),
            words: RefCell::default(),
            flattening: RefCell::default(),
            tasks: RefCell::new(JoinSet::new()),
            last_append: Cell::new(Nanos(0)),
            stopped: Cell::new(false),
            failure: RefCell::new(None),
            failing: Notify::new(),
        });
        inner.engine.set_listener(Rc::new(EngineListener(Rc::downgrade(&inner))));
        let worker = Self(inner);
        worker.spawn(|w| async move {
            if let Err(e) = w.0.engine.run().await {
                w.fail(e);
            }
        });
        worker.carry_out();
        worker.spawn(Self::run_turns);
        worker.spawn(Self::run_ticks);
        worker.spawn(Self::run_flatten);
        if config.scrub_bytes > 0 {
            worker.spawn(move |w| w.run_scrub(config.scrub_bytes));
        }
        Ok(worker)
    }

    pub(crate) fn trace(&self, text: String) {
        (self.0.notes)(&Note::new(NoteKind::Trace, None, text));
    }

    /// Tasks hold the worker weakly in spirit only: they end when it is stopped or its set is dropped.
    fn spawn<F: Future<Output = ()> + 'static>(&self, task: impl FnOnce(Self) -> F) {
        let mut tasks = self.0.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(task(self.clone()));
    }

    /// Ends all tasks at once, as a kill would. What the engine had not made durable is lost.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        self.0.tasks.borrow_mut().abort_all();
    }

    fn fail(&self, e: Error) {
        self.0.failure.borrow_mut().get_or_insert_with(|| e.clone());
        self.0.failing.notify_one();
        self.step(Event::EngineFailed(e));
    }

    /// The reason why only a new start of the log can help: the device is out of use, and none of its replicas does anything any
    /// more, or the map lost a page, and what that had can't be read.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.0.failure.borrow().clone()
    }

    /// Waits for that reason. One caller at a time.
    pub async fn failed(&self) -> Error {
        loop {
            if let Some(e) = self.failure() {
                return e;
            }
            self.0.failing.notified().await;
        }
    }

    /// The log engine of its device.
    pub fn engine(&self) -> &Engine<D> {
        &self.0.engine
    }

    /// A link is open. Call it before the first message of that link.
    pub fn on_link_up(&self, link: LinkId, who: Who) {
        self.step(Event::LinkUp { link, who });
    }

    /// A link is gone. Nothing of it may come after this.
    pub fn on_link_down(&self, link: LinkId) {
        self.step(Event::LinkDown { link });
    }

    /// Messages of one link, in order; `messages` is left empty.
    pub fn on_messages(&self, from: LinkId, messages: &mut Vec<Message>) {
        {
            let (mut host, now) = self.host_of_now();
            for message in messages.drain(..) {
                host.step(now, Event::Message { from, message });
            }
        }
        self.carry_out();
        self.0.turn.notify_one();
    }

    /// News from the control plane: shards that are new or changed.
    pub fn on_shards(&self, infos: Vec<ShardInfo>) {
        self.step(Event::Shards(self.without_ends(infos)));
    }

    /// By a control state in which this view is active, this node is no member of the shard any more: all of it goes but
    /// what was promised (V2). If the log is of a newer view, the state is an old one, and nothing happens.
    pub fn on_left(&self, shard: ShardId, active: ViewNumber) {
        if !self.put_off(shard, Event::Left { shard, active }) {
            self.step(Event::Left { shard, active });
        }
    }

    /// A volume was deleted: this shard of it goes, with all that is here.
    pub fn on_gone(&self, shard: ShardId) {
        if !self.put_off(shard, Event::Gone(shard)) {
            self.step(Event::Gone(shard));
        }
    }

    /// Workers of each node have become known or changed.
    pub fn on_workers(&self, workers: BTreeMap<NodeId, u16>) {
        self.step(Event::Workers(workers));
    }

    /// Workers of other nodes that a link is wanted to.
    pub fn wanted_peers(&self) -> BTreeSet<Peer> {
        self.0.host.borrow().wanted_peers()
    }

    /// All shards that are here, or are about to be.
    pub fn shards(&self) -> Vec<ShardId> {
        self.0.host.borrow().shards()
    }

    /// Shards that this node has left, of which a promise is kept.
    pub fn left_shards(&self) -> Vec<ShardId> {
        self.0.host.borrow().left_shards()
    }

    /// All replicas here, for people and programs.
    pub fn status(&self) -> Vec<ShardStatus> {
        let host = self.0.host.borrow();
        let pins = |s: ShardId| self.0.engine.history(s).map_or(0, |h| h.pins.len());
        let forks = self.forks();
        let of = |s: ShardId| {
            let status = host.status(s)?;
            let waits = status.waits.or_else(|| self.why_not_flat(s));
            Some(ShardStatus { pins: pins(s), fork: forks.get(&s).copied(), waits, ..status })
        };
        host.shards().into_iter().filter_map(of).collect()
    }

    pub(crate) fn flattening(&self) -> RefMut<'_, Flattening> {
        self.0.flattening.borrow_mut()
    }

    pub(crate) fn begins_anew(&self, info: &ShardInfo) -> bool {
        self.0.host.borrow().begins_anew(info)
    }

    pub(crate) fn has_own_frames(&self, shard: ShardId) -> bool {
        self.0.host.borrow().replica(shard).is_none_or(|r| !r.is_empty_log())
    }

    pub(crate) fn is_to_be_read(&self, parent: ShardId) -> bool {
        self.0.host.borrow().is_to_be_read(parent)
    }

    pub(crate) fn leaves_out(&self, rule: Mutant) -> bool {
        self.0.host.borrow().leaves_out(rule)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    pub(crate) fn is_to_be_flat(&self, shard: ShardId) -> bool {
        self.0.host.borrow().is_to_be_flat(shard)
    }

    pub(crate) fn ticket_of(&self, shard: ShardId) -> Option<u64> {
        self.0.host.borrow_mut().ticket_of(shard)
    }

    pub(crate) fn notes(&self) -> &dyn Fn(&Note) {
        &*self.0.notes
    }

    /// The host and the time, for events that come now. It is told the wall clock, so that a write that is let in does not seem to
    /// have been there earlier, and the room on the device.
    fn host_of_now(&self) -> (RefMut<'_, Host>, Nanos) {
        let mut host = self.0.host.borrow_mut();
        host.set_wall(self.0.clock.wall());
        self.tell_room(&mut host);
        (host, self.0.clock.now())
    }

    pub(crate) fn answer_interval(&self, ask: &IntervalAsk) -> Option<IntervalWord> {
        if self.0.stopped.get() {
            return None;
        }
        let word = {
            let (mut host, now) = self.host_of_now();
            host.on_interval_ask(now, ask)
        };
        self.carry_out();
        self.0.turn.notify_one();
        word
    }

    pub(crate) fn step(&self, event: Event) {
        if self.0.stopped.get() {
            return;
        }
        {
            let (mut host, now) = self.host_of_now();
            host.step(now, event);
        }
        self.carry_out();
        self.0.turn.notify_one();
    }

    /// A mark, or a frame that was put back, may change from which version on history is whole.
    fn tell_whole_from(&self, done: &[Durable]) {
        for d in done {
            if let Durable::Mark { shard, .. } | Durable::Repair { shard, .. } = d
                && let Ok(kept) = self.0.engine.whole_from(*shard)
            {
                self.0.host.borrow_mut().set_whole_from(*shard, kept);
            }
        }
    }

    /// Bytes that the device has for updates, of which it was given some already, and whether it may have more soon
    /// (W7).
    fn room(&self) -> (u64, bool) {
        let space = self.0.engine.space();
        let free = space.free_segments.saturating_sub(space.reserve_segments);
        (u64::from(free) * space.segment_bytes, space.more_soon)
    }

    fn tell_room(&self, host: &mut Host) {
        let (room, more_soon) = self.room();
        host.set_room(room, more_soon);
        let space = self.0.engine.space();
        host.set_spare(u64::from(space.spare_segments) * space.segment_bytes);
    }

    async fn run_turns(self) {
        loop {
            let deadline = self.0.host.borrow().next_deadline();
            match deadline {
                None => self.0.turn.notified().await,
                Some(at) => {
                    let wait = at.since(self.0.clock.now());
                    let wait = Duration::from_nanos(wait.0);
                    let _ = tokio::time::timeout(wait, self.0.turn.notified()).await;
                }
            }
            let now = self.0.clock.now();
            {
                let mut host = self.0.host.borrow_mut();
                host.set_wall(self.0.clock.wall());
                host.end_turn(now);
            }
            self.carry_out();
        }
    }

    async fn run_ticks(self) {
        let (mut marked, mut tried, mut tries) = (Nanos(0), Nanos(0), 0);
        let begun = self.0.clock.now();
        let (mut checkpoint, mut looked) = (begun, begun);
        loop {
            tokio::time::sleep(timing::TICK).await;
            if self.0.clock.now().since(looked) >= timing::PAST_EVERY {
                looked = self.0.clock.now();
                self.0.host.borrow_mut().set_past_over(&self.0.engine.past_over());
            }
            if self.0.clock.now().since(checkpoint) >= timing::CHECKPOINT_EVERY {
                checkpoint = self.0.clock.now();
                self.spawn(async move |w: Self| {
                    if let Err(e) = w.0.engine.checkpoint().await {
                        w.trace(format!("log: no checkpoint: {e}"));
                    }
                });
            }
            let open_for = self.0.clock.now().since(begun);
            if open_for >= timing::LOST_MAP_ENDS_AFTER && self.0.engine.waits_for_start() {
                let text = "a page of its map can't be read; a new start makes the map from the log";
                self.0.failure.borrow_mut().get_or_insert_with(|| Error::corrupt(text));
                self.0.failing.notify_one();
            }
            let damaged = self.0.engine.take_damaged(DAMAGED_MAX);
            if !damaged.is_empty() {
                self.step(Event::Damaged(damaged));
            }
            self.step(Event::Tick);
            if self.room().1 {
                // What waits for room in the log may be the only thing that would make it look.
                self.0.engine.look_for_room();
            }
            for event in self.0.engine.events() {
                let text = format!("log: {:?}: {}", event.kind, event.text);
                (self.0.notes)(&Note::new(NoteKind::Log(event.kind), None, text));
            }
            // A device that is busy, or has no room for that, is asked again, less and less often.
            let (now, last) = (self.0.clock.now(), self.0.last_append.get());
            let since = last.max(tried);
            tries = if since == last { 0 } else { tries };
            if last > marked && now.since(since) >= Nanos(timing::MARK_AFTER_IDLE.0 << tries) {
                if self.0.engine.flush_idle() {
                    marked = last;
                }
                (tried, tries) = (now, (tries + 1).min(timing::MARK_TRIES_MAX));
            }
        }
    }

    fn carry_out(&self) {
        let actions = self.0.host.borrow_mut().take_actions();
        for action in actions {
            match action {
                Action::Send { to, message } => self.0.outbox.send(to, message),
                Action::Append(record) => {
                    self.0.last_append.set(self.0.clock.now());
                    self.0.engine.append(record);
                }
                // Not from within a step.
                Action::CheckFork { shard, fork } => self.spawn(async move |w: Self| {
                    let result = w.0.engine.check_fork(&fork).map_err(|e| e.kind);
                    w.step(Event::ForkChecked { shard, result });
                }),
                Action::Committed { shard, sequence } => self.0.engine.committed(shard, sequence),
                Action::Keep { shard, from } => self.0.engine.keep(shard, from),
                Action::Read { link, request } => self.spawn(move |w| w.read(link, request)),
                Action::SyncRead { link, request, known_common } => {
                    self.spawn(move |w| w.sync_read(link, request, known_common));
                }
                Action::MapRead { link, request, since, upto, past, after } => {
                    self.spawn(move |w| w.map_read(link, request, (since, past, upto), after));
                }
                Action::Propose { shard, active } => self.spawn(move |w| w.propose(shard, active)),
                Action::Activate { shard, view, generation, begins } => {
                    self.spawn(move |w| w.activate(shard, view, generation, begins));
                }
                Action::HandOver { shard, to } => self.spawn(move |w| w.hand_over(shard, to)),
                Action::Complete { shard, view, nodes } => self.spawn(move |w| w.complete(shard, view, nodes)),
                Action::Cut(word) => {
                    if let Some(word) = self.in_log(word) {
                        self.0.words.borrow_mut().add(word);
                        self.speak();
                    }
                }
                // Not from within a step.
                Action::ListPins { shard } => self.spawn(async move |w: Self| w.list_pins(shard)),
                Action::FindPast(ask) => self.spawn(async move |w: Self| w.find_past(ask).await),
                Action::ListIntervals { shard, view, alone } => self.spawn(async move |w: Self| {
                    let found = w.list_intervals(shard, alone).await;
                    w.step(Event::Intervals { shard, view, found });
                }),
                Action::AskInterval { shard, view, ask } => self.spawn(async move |w: Self| {
                    let word = w.0.control.ask_interval(ask).await;
                    w.step(Event::IntervalWord { shard, view, ask, word });
                }),
                Action::Mend { blocks, data } => self.spawn(async move |w: Self| w.mend(blocks, &data)),
                Action::Unmended { id } => self.0.engine.unmended(id),
                Action::Note(note) => (self.0.notes)(&note),
            }
        }
    }

    async fn read(self, link: LinkId, r: ReadRequest) {
        let engine = &self.0.engine;
        let found: Result<Found> = if is_of_the_past(&r) {
            self.look_up_past(&r).await
        } else if r.status_only {
            engine.block_status(r.shard, r.range).await.map(|pieces| (pieces, Vec::new(), Vec::new()))
        } else {
            engine.read(r.shard, r.range).await.map(|o| (o.pieces, o.crcs, o.data))
        };
        // Much may have happened while the blocks were read.
        let late = self.0.host.borrow().read_refusal(&r);
        let found = found.map_err(|e| {
            self.trace(format!("shard {}: read of {:?}: {e}", r.shard, r.range));
            Refusal::of(&e)
        });
        let message = match found.and_then(|f| late.map_or(Ok(f), Err)) {
            Ok((pieces, crcs, data)) => Message::ReadReply(ReadReply { shard: r.shard, id: r.id, pieces, crcs, data }),
            Err(reason) => Message::Refused(Refused {
                shard: r.shard,
                request: Request::Read(r.id),
                reason,
                view: r.view,
                generation: Generation(0),
            }),
        };
        self.0.outbox.send(link, message);
    }

    /// A task of its own, so that the host is not stepped from within a step.
    fn mend(&self, blocks: DamagedBlocks, data: &Bytes) {
        let DamagedBlocks { id, shard, range, .. } = blocks;
        let done = self.0.engine.mend(id, data);
        let end = match &done {
            Ok(0) => Mended::Done,
            Ok(n) => {
                let text = format!("shard {shard}: {n} damaged blocks at {} are mended", range.start);
                (self.0.notes)(&Note::new(NoteKind::Mended, Some(shard), text));
                Mended::Done
            }
            Err(e) if matches!(e.kind, ErrorKind::Retry | ErrorKind::NoSpace) => Mended::Later,
            Err(_) => Mended::Useless,
        };
        self.step(Event::Mended { id, end });
    }

    async fn sync_read(self, link: LinkId, request: SyncRequest, known: Option<Sequence>) {
        let common = match known {
            Some(c) => Ok(c),
            None => self.find_common(&request).await,
        };
        let source = match common {
            Err(e) => SyncSource { common: Sequence(0), frames: Err(e) },
            Ok(common) => {
                let frames = self.0.engine.frames(request.shard, common.next(), ANSWER_BYTES).await;
                SyncSource { common, frames }
            }
        };
        self.step(Event::SyncRead { link, request, source });
    }

    async fn map_read(
        self,
        link: LinkId,
        request: SyncRequest,
        (since, past, upto): (Sequence, Sequence, Sequence),
        after: MapPlace,
    ) {
        let engine = &self.0.engine;
        let piece = engine.entries_with_past(request.shard, after, since, past, upto, ANSWER_BYTES).await;
        // Behind the piece: what was kept before may have been let go of while it was read.
        let kept = engine.kept_state(request.shard);
        let (piece, kept) = match (piece, kept) {
            (Ok(piece), Ok(kept)) => (Ok(piece), kept),
            (Err(e), _) | (_, Err(e)) => (Err(e), KeptState::default()),
        };
        let view_frame = engine.view_frame(request.shard, upto).map(Box::new);
        self.step(Event::MapRead { link, request, source: MapSource { since, upto, view_frame, kept, piece } });
    }

    /// The first of the asker's frames (newest first) that this log has, too.
    async fn find_common(&self, r: &SyncRequest) -> Result<Sequence> {
        let mut oldest = None;
        for n in &r.names {
            if n.sequence.0 == 0 {
                return Ok(Sequence(0));
            }
            if is_said_committed(n) {
                oldest = Some(n.sequence);
                break;
            }
            oldest = match self.0.engine.name(r.shard, n.sequence).await {
                Ok(own) if own.hid == n.hid => return Ok(n.sequence),
                Ok(_) => None,
                Err(e) if e.kind == ErrorKind::NotFound => Some(n.sequence),
                // Which frame is the first one that the asker lacks is not known.
                Err(e) => return Err(Error::retry(e.text)),
            };
        }
        let committed = self.0.engine.tip(r.shard).map(|(_, _, committed)| committed).unwrap_or_default();
        given_up_in_common(oldest, committed)
    }

    async fn propose(self, shard: ShardId, active: ViewNumber) {
        let start = self.0.engine.start();
        let result: Result<Opened> = self.0.control.propose(shard, active, start).await;
        let mut seed = Hash32::default();
        self.0.random.borrow_mut().fill(&mut seed.0);
        self.step(Event::Proposed { shard, result, seed });
    }

    async fn activate(self, shard: ShardId, view: ViewNumber, generation: Generation, begins: Begins) {
        let result = self.0.control.activate(shard, view, generation, begins).await;
        self.step(Event::Activated { shard, view, result });
    }

    async fn complete(self, shard: ShardId, view: ViewNumber, nodes: Vec<NodeId>) {
        if let Err(e) = self.0.control.complete(shard, view, nodes).await {
            self.trace(format!("shard {shard}: members of view {view} have everything, and that was not heard: {e}"));
        }
    }

    async fn hand_over(self, shard: ShardId, to: NodeId) {
        if let Err(e) = self.0.control.hand_over(shard, to).await {
            self.trace(format!("shard {shard}: node {to} did not become its head: {e}"));
        }
    }

    /// A word on a cut, as the log has it: it is said only when the log keeps the version for the snapshot. A pin that finds no
    /// place is in no log, whatever was ordered; if it only is not there yet, the head says it again.
    fn in_log(&self, word: CutWord) -> Option<CutWord> {
        let CutWord::Cut { shard, snapshot, version, .. } = word else { return Some(word) };
        if self.0.engine.check_pin(shard, Pin { version, snapshot }).is_ok() {
            return Some(word);
        }
        let pins = self.0.engine.history(shard).map_or(0, |h| h.pins.len());
        let why = format!("shard {shard} keeps {pins} versions, and can't keep more; delete some snapshots");
        (pins >= limits::SHARD_PINS_MAX).then_some(CutWord::Fails { snapshot, why })
    }

    /// Says what the heads have to say of snapshots: what comes while it is said goes together, with the next.
    fn speak(&self) {
        let Some(words) = self.0.words.borrow_mut().begin() else { return };
        self.spawn(async move |w: Self| {
            let said = w.0.control.cuts(words).await;
            w.0.words.borrow_mut().end();
            if let Err(e) = said {
                w.trace(format!("what heads said of a snapshot was not heard: {e}"));
            }
            w.speak();
        });
    }

    fn list_pins(&self, shard: ShardId) {
        let pins = self.0.engine.history(shard).map(|h| h.pins).unwrap_or_default();
        self.step(Event::Pins { shard, pins });
    }

    async fn find_past(self, ask: PastAsk) {
        let (engine, shard, now) = (&self.0.engine, ask.shard, ask.now);
        let found = match ask.wanted {
            Wanted::Window => engine.history(shard).map(|h| event::Found::Window(h.retain)),
            Wanted::Begin => engine.times_begin(shard, now).await.map(event::Found::Begin),
            Wanted::At { past, snapshot } => {
                engine.find_past(shard, past, (now, ask.last), snapshot).await.map(event::Found::Version)
            }
            Wanted::Room { above, from } => {
                engine.times_above(shard, above, (from, now)).await.map(event::Found::Times)
            }
        };
        self.step(Event::PastFound { ask, found });
    }

    /// The node's start number, for greetings.
    pub fn start_number(&self) -> StartNumber {
        self.0.engine.start()
    }
}

/// The oldest frame that an asker names, if this log has none at its place: what it gave up was committed, and so is
/// what the asker names there. A frame that this log never had, or has another one for, is not common.
fn given_up_in_common(oldest: Option<Sequence>, committed: Sequence) -> Result<Sequence> {
    oldest
        .filter(|s| *s <= committed)
        .ok_or_else(|| Error::invalid("none of the frames that the asker names is known to be in common"))
}

/// What a replica needs beside the state: the tail, the view frame, and where damage was found.
async fn load<D: Device>(
    engine: &Engine<D>,
    state: &freebs_lsvd::ShardState,
) -> Result<(Vec<TailEntry>, Option<FrameHead>, Damage)> {
    let (tail, unread) = load_tail(engine, state).await?;
    let lost = with_frames(&state.holes, unread);
    let mut holes = Vec::new();
    for (i, (from, until)) in lost.iter().enumerate() {
        let before = Sequence(from.0.saturating_sub(1));
        let name = match before.0 {
            0 => genesis(),
            _ => match engine.name(state.shard, before).await {
                Ok(n) => FrameName { view: n.view, sequence: n.sequence, hid: n.hid },
                // Given up or damaged itself: this hole can't be filled frame by frame.
                Err(_) => FrameName { sequence: before, ..FrameName::default() },
            },
        };
        let next = lost.get(i + 1).map_or(state.last.sequence.next(), |h| h.0);
        let (until, end) = end_of(engine, state, *until, next).await;
        holes.push(Hole { before: name, until, end: end.filter(|hid| *hid != Hash32::default()) });
    }
    let view_frame = match &state.view {
        Some((sequence, _)) => engine.frame(state.shard, *sequence).await.ok().map(|f| f.head),
        None => None,
    };
    Ok((tail, view_frame, Damage::new(holes, state.suspect_tail)))
}

/// Ranges of lost frames, with those whose data can't be read.
fn with_frames(holes: &[(Sequence, Sequence)], frames: Vec<Sequence>) -> Vec<(Sequence, Sequence)> {
    let mut all: Vec<_> = holes.iter().copied().chain(frames.into_iter().map(|s| (s, s))).collect();
    all.sort_unstable();
    let mut out: Vec<(Sequence, Sequence)> = Vec::new();
    for (from, until) in all {
        match out.last_mut() {
            Some(last) if from <= last.1.next() => last.1 = last.1.max(until),
            _ => out.push((from, until)),
        }
    }
    out
}

/// Where a hole ends in front of sequence `next`, and the `hid` of its last frame. A frame behind it that can't be read
/// is fetched as well, or nobody could say of which branch the lost ones were.
async fn end_of<D: Device>(
    engine: &Engine<D>,
    state: &freebs_lsvd::ShardState,
    until: Sequence,
    next: Sequence,
) -> (Sequence, Option<Hash32>) {
    for behind in until.0 + 1..next.0.min(until.0 + 1 + BEHIND_MAX) {
        match engine.frame(state.shard, Sequence(behind)).await {
            Ok(f) => return (Sequence(behind - 1), Some(f.head.before().hid)),
            Err(e) if e.kind == ErrorKind::Corrupt => {}
            Err(_) => break,
        }
    }
    (until, Some(state.last).filter(|l| l.sequence == until).map(|l| l.hid))
}

/// The frames from the committed one to the last, so that a cut finds its way back; and those of them that can't be read,
/// although they are not lost as the log knows it.
async fn load_tail<D: Device>(
    engine: &Engine<D>,
    state: &freebs_lsvd::ShardState,
) -> Result<(Vec<TailEntry>, Vec<Sequence>)> {
    let (mut tail, mut unread) = (Vec::new(), Vec::new());
    let mut at = state.committed;
    if at.0 == 0 {
        let none = Hash32::default();
        tail.push(TailEntry { name: genesis(), version: Version(0), parent: none, digest: none, token: None, wall: 0 });
        at = at.next();
    }
    while at <= state.last.sequence {
        match engine.frame(state.shard, at).await {
            Ok(f) => {
                // What the frame behind it tells is enough to cut back to a frame that is not here.
                let follows = tail.last().is_some_and(|t: &TailEntry| t.name.sequence.next() == at);
                if !follows && at > state.committed {
                    let before = TailEntry::before(&f.head);
                    // The beginning of a branch does not tell the token: the log may know more.
                    let origin = engine.origin_before(state.shard, at).filter(|_| before.token.is_none());
                    tail.push(origin.map_or(before, |(parent, digest)| {
                        TailEntry::with_origin(before.name, before.version, parent, digest)
                    }));
                }
                tail.push(TailEntry::of(&f.head));
            }
            // Lost, or given up. A cut behind it goes to the last frame that is here.
            Err(e) if e.kind == ErrorKind::NotFound => {}
            Err(e) if e.kind == ErrorKind::Corrupt => unread.extend(Some(at).filter(|at| *at > state.committed)),
            Err(e) => return Err(e),
        }
        at = at.next();
    }
    Ok((tail, unread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Chain, SHARD};
    use freebs_io::faults::FaultDevice;
    use freebs_io::memory::MemoryDevice;
    use freebs_lsvd::{Expect, Record, Shape};
    use freebs_types::{BLOCK, ClusterId, DeviceId};

    /// A log with a frame that nobody knows to be committed, and a sector of its data that can't be read. It answered seals
    /// as one that has the frame, and was the longest; and nobody could be given the frame.
    #[test]
    fn a_frame_whose_data_can_not_be_read_is_a_lost_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let memory = MemoryDevice::new(512, 1 << 26);
            let device = FaultDevice::new(memory.clone());
            let (cluster, node) = (ClusterId([1; 16]), NodeId(2));
            let shape = Shape {
                cluster,
                node,
                device: DeviceId([9; 16]),
                worker: 0,
                workers: 1,
                segment_bytes: 1 << 20,
                size_limit: 20 << 20,
                wall: 1,
            };
            let expect = Expect { cluster, node, worker: 0, workers: 1 };
            Engine::create(device.clone(), &shape).await.unwrap();
            let (engine, _) = Engine::open(device.clone(), &expect).await.unwrap();
            let mut chain = Chain::new();
            let (view, write) = (chain.view(), chain.write(&[0xab; BLOCK]));
            let names = [&view, &write].map(|f| TailEntry::of(&f.head).name);
            [view, write].into_iter().for_each(|f| engine.append(Record::Frame(f)));
            let writer = engine.clone();
            let task = tokio::task::spawn_local(async move { writer.run().await });
            engine.close().await.unwrap();
            task.await.unwrap().unwrap();

            let (engine, _) = Engine::open(device.clone(), &expect).await.unwrap();
            let state = engine.state(SHARD).unwrap();
            assert_eq!((state.last, state.committed), (names[1], Sequence(0)));
            let (_, _, damage) = load(&engine, &state).await.unwrap();
            assert!(!damage.is_there());
            let mut at = 0;
            memory.poke(|bytes| at = bytes.chunks(512).position(|s| s.iter().all(|b| *b == 0xab)).unwrap());
            device.spoil(at as u64 * 512);
            let (engine, _) = Engine::open(device, &expect).await.unwrap();
            let state = engine.state(SHARD).unwrap();
            assert_eq!(state.last, names[1], "what can be read of it says what it is");
            let (tail, view_frame, damage) = load(&engine, &state).await.unwrap();
            let lost = Hole { before: names[0], until: Sequence(2), end: Some(names[1].hid) };
            assert_eq!((&damage.holes[..], damage.suspect_tail), (&[lost][..], false));
            let r = Replica::recovered(&state, tail, view_frame, damage);
            assert!(r.seal_answer(ViewNumber(2), ViewNumber(1)).damaged);
            // Once it is known to be committed, it is for the scrub to mend its block.
            engine.committed(SHARD, Sequence(2));
            let (_, _, damage) = load(&engine, &engine.state(SHARD).unwrap()).await.unwrap();
            assert!(!damage.is_there());
        });
    }

    /// A head took the clock of its last turn for writes that messages brought: what was written behind a moment was found in
    /// front of it.
    #[test]
    fn messages_come_at_the_time_at_which_they_are_taken() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut world = crate::copies::World::new();
            world.start(1, &crate::copies::blank(1).await).await;
            let worker = &world.workers[&1];
            worker.on_link_up(LinkId(9), Who::Member(Peer { node: NodeId(2), worker: 0 }));
            let wall = || worker.0.host.borrow().wall();
            let before = wall();
            world.pass(250);
            assert_eq!(wall(), before, "nothing has come yet");
            worker.on_messages(LinkId(9), &mut vec![Message::Heartbeat(Vec::new())]);
            assert_eq!(wall(), before + 250_000_000);
        });
    }

    #[test]
    fn ranges_of_lost_frames_are_joined() {
        let range = |(from, until): (u64, u64)| (Sequence(from), Sequence(until));
        let joined = |holes: &[(u64, u64)], frames: &[u64]| {
            let holes: Vec<_> = holes.iter().copied().map(range).collect();
            with_frames(&holes, frames.iter().copied().map(Sequence).collect())
        };
        assert_eq!(joined(&[], &[4, 5, 7]), [(4, 5), (7, 7)].map(range));
        assert_eq!(joined(&[(2, 3), (9, 9)], &[4, 8]), [(2, 4), (8, 9)].map(range));
    }

    /// An asker whose log is damaged names only what it has behind the damage. If that was cut everywhere else, the
    /// answer called it common all the same, and the asker for level.
    #[test]
    fn only_what_was_given_up_is_taken_for_common() {
        let at = |s: u64| Some(Sequence(s));
        assert_eq!(given_up_in_common(at(5), Sequence(7)).unwrap(), Sequence(5));
        assert!(given_up_in_common(at(8), Sequence(7)).is_err(), "never was here");
        assert!(given_up_in_common(None, Sequence(7)).is_err(), "another frame is here");
    }
}

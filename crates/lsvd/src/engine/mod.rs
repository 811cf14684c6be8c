//! The handle on a device's log, and the writer.
//!
//! Invariants: one append is in flight at a time; while it is, the next one gathers (group commit). What a listener
//! hears is durable and in the maps. After a failed write or sync nothing of the device is believed. The writer ends only
//! when nothing that it began can act any more.

pub mod append;
pub mod brought;
pub mod cleaning;
pub mod core;
pub(crate) mod forks;
pub(crate) mod loss;
pub mod maps;
pub mod moves;
pub mod queue;
pub mod recover;
pub mod rot;
mod stand_ins;

use crate::engine::append::{Batch, Next, frame_data_max};
use crate::engine::core::Core;
use crate::engine::maps::Io;
use crate::engine::queue::Queued;
use crate::log::geometry::{Geometry, OpenSegment};
use crate::log::guard::Ways;
use crate::log::join::join_all;
use crate::log::lost::LostAppends;
use crate::log::{openings, superblock};
use crate::shard::Shard;
use crate::shard::history::is_of_times;
use crate::shard::history::table::Table;
use crate::{
    CleanOptions, Counters, Durable, Event, EventKind, Expect, FrameName, Listener, OpenReport, Options, Record,
    RuleMutant, Shape, ShardState, Space,
};
use bytes::BytesMut;
use freebs_format::disk::Superblock;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Hash32, Result, Sequence, ShardId, StartNumber, Version, ViewNumber};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// Buffers above this are not kept for reuse.
const SPARE_BYTES_MAX: usize = 1 << 20;

pub(crate) struct Inner<D> {
    pub device: Ways<D>,
    pub core: RefCell<Core>,
    superblock: Superblock,
    /// The queue or the device's end has something for the writer.
    pub(crate) work: Notify,
    /// A segment was opened or freed: the pool may be short, or larger than it has to be.
    pub pool: Rc<Notify>,
    /// The map has something to do, or room for it.
    pub map_wake: Rc<Notify>,
    /// The pool has grown, or can't; or a reader has let a segment go.
    pub grown: Rc<Notify>,
    /// The writer has stopped.
    stopped: Notify,
}

impl<D> Inner<D> {
    /// The writer has something to do, or need not wait any longer.
    pub fn ring(&self) {
        self.work.notify_one();
        self.grown.notify_one();
    }
}

/// Notes that the writer has stopped, also when it is dropped in the middle of a write whose end is unknown then.
struct Running<'a, D> {
    inner: &'a Inner<D>,
    ended: bool,
}

impl<D> Drop for Running<'_, D> {
    fn drop(&mut self) {
        let mut core = self.inner.core.borrow_mut();
        core.running = false;
        if std::mem::take(&mut core.maps.wanted) {
            core.maps.outcome = Err(Error::retry("the log was closed before the checkpoint was made"));
        }
        core.maps.made.notify_waiters();
        if !self.ended && core.failed.is_none() {
            core.failed = Some(Error::retry("the writer of the log was stopped"));
        }
        self.inner.stopped.notify_waiters();
    }
}

/// One of the things that the writer does at once.
struct Part<'a> {
    work: Pin<&'a mut dyn Future<Output = Result<()>>>,
    end: Option<Result<()>>,
}

impl<'a> Part<'a> {
    fn new(work: Pin<&'a mut dyn Future<Output = Result<()>>>) -> Self {
        Self { work, end: None }
    }

    /// Goes on, unless it is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Option<&Result<()>> {
        if self.end.is_none()
            && let Poll::Ready(end) = self.work.as_mut().poll(cx)
        {
            self.end = Some(end);
        }
        self.end.as_ref()
    }
}

/// A device's log, opened. Clones are the same engine.
pub struct Engine<D: Device> {
    pub(crate) inner: Rc<Inner<D>>,
}

impl<D: Device> Clone for Engine<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Device> Engine<D> {
    /// Makes an empty log. Refuses a device that already has one, or that holds something else.
    pub async fn create(device: D, shape: &Shape) -> Result<()> {
        superblock::create(&device, shape).await
    }

    /// Recovers a log and raises the device's start number by one.
    pub async fn open(device: D, expect: &Expect) -> Result<(Self, OpenReport)> {
        Self::open_with(device, expect, Options::of_workers(expect.workers)).await
    }

    /// The same, with limits of the caller's choice.
    pub async fn open_with(device: D, expect: &Expect, options: Options) -> Result<(Self, OpenReport)> {
        let next = async |came_with: StartNumber| Ok(StartNumber(came_with.0.saturating_add(1)));
        Self::admitted(device, expect, options, None, next).await
    }

    /// The same, with a rule left out that a test must miss.
    #[doc(hidden)]
    pub async fn open_without(
        rule: Option<RuleMutant>,
        device: D,
        expect: &Expect,
        options: Options,
    ) -> Result<(Self, OpenReport)> {
        let next = async |came_with: StartNumber| Ok(StartNumber(came_with.0.saturating_add(1)));
        Self::admitted(device, expect, options, rule, next).await
    }

    /// Recovers a log and raises the device's start number to what `admit` makes of the one that it comes with
    /// (rule V8). If that is an error, the log and its superblock are as they were.
    pub async fn open_as(
        device: D,
        expect: &Expect,
        options: Options,
        admit: impl AsyncFnOnce(StartNumber) -> Result<StartNumber>,
    ) -> Result<(Self, OpenReport)> {
        Self::admitted(device, expect, options, None, admit).await
    }

    async fn admitted(
        device: D,
        expect: &Expect,
        options: Options,
        mutant: Option<RuleMutant>,
        admit: impl AsyncFnOnce(StartNumber) -> Result<StartNumber>,
    ) -> Result<(Self, OpenReport)> {
        let mut report = OpenReport::default();
        let (sb, order) = superblock::load(&device, &mut report.damage).await?;
        superblock::check(&sb, device.sector(), expect)?;
        // What a killed process left in the device's cache is made durable before it is believed.
        device.sync().await?;
        let geometry = Geometry {
            cluster: sb.cluster_id(),
            device: sb.device_id(),
            start: sb.start_number(),
            sector: sb.sector.get() as usize,
            segment_bytes: sb.segment_bytes.get(),
            limit_segments: Geometry::limit(sb.size_limit.get(), sb.segment_bytes.get()),
        };
        let how = (options, mutant);
        let mut core = crate::engine::recover::recover(&device, geometry, how, &mut report).await?;
        let start = admit(sb.start_number()).await?;
        let sb = superblock::raise(&device, sb, order, start).await?;
        core.geometry.start = start;
        let core = RefCell::new(core);
        Io { device: &device, core: &core, alone: true }.erase_stale().await?;
        let mut core = core.into_inner();
        if let Some(open) = core.open.as_ref().filter(|_| core.stale_footer) {
            let at = geometry.byte(open.id, (geometry.segment_bytes - geometry.sector as u64) as u32);
            let (_, done) = device.write(at, AlignedBuf::zeroed(geometry.sector), Durability::Durable).await;
            done.map_err(|e| Error::device_failed(format!("write of the log at byte {at}: {e}")))?;
        }
        let now = core.geometry;
        let next = core.segs.plan(None, now.limit_segments);
        core.segs.set_planned(next);
        openings::begin(&device, &now, &mut core.opened, next).await?;
        report.start = sb.start_number();
        for f in &report.damage {
            let place = f.segment.map_or("superblock".to_owned(), |s| format!("segment {s}"));
            core.event(EventKind::Damage, format!("{place}, byte {}: {}", f.offset, f.what));
            f.segment.into_iter().for_each(|s| core.suspect(s));
        }
        let (grown, pool, map_wake) = (core.segs.freed.clone(), core.pool.clone(), core.map_wake.clone());
        let inner = Inner {
            device: Ways::new(device),
            core: RefCell::new(core),
            superblock: sb,
            work: Notify::new(),
            pool,
            map_wake,
            grown,
            stopped: Notify::new(),
        };
        Ok((Self { inner: Rc::new(inner) }, report))
    }

    /// Device and state, for what reads and writes the map.
    pub(crate) fn io(&self) -> Io<'_, Ways<D>> {
        Io { device: &self.inner.device, core: &self.inner.core, alone: false }
    }

    /// Number of this start (rule V8).
    pub fn start(&self) -> StartNumber {
        self.inner.superblock.start_number()
    }
    /// The superblock, as it was written at this start.
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }
    /// All shards that the log has, in order.
    pub fn shards(&self) -> Vec<ShardId> {
        self.inner.core.borrow().shards.keys().copied().collect()
    }
    /// A copy of everything that is known of a shard.
    pub fn state(&self, shard: ShardId) -> Option<ShardState> {
        Some(self.inner.core.borrow().shards.get(&shard)?.state())
    }
    /// Name, version and committed sequence of the shard's last durable frame, without copying its state.
    pub fn tip(&self, shard: ShardId) -> Option<(FrameName, Version, Sequence)> {
        let core = self.inner.core.borrow();
        let s = core.shards.get(&shard)?;
        Some((s.tip.name, s.tip.version, s.committed))
    }
    /// Parent and digest of the frame in front of an uncommitted one, as far as the log knows them: from both its access
    /// token is made. A frame that begins a branch does not tell.
    pub fn origin_before(&self, shard: ShardId, sequence: Sequence) -> Option<(Hash32, Hash32)> {
        let core = self.inner.core.borrow();
        let before = core.shards.get(&shard)?.overlay.get(sequence)?.before;
        (before.name.sequence.next() == sequence).then_some((before.parent, before.digest))
    }
    /// The lowest view that is still served (rule V2); `None` if the shard is unknown.
    pub fn promised(&self, shard: ShardId) -> Option<ViewNumber> {
        Some(self.inner.core.borrow().shards.get(&shard)?.promised)
    }

    /// Puts a record into the queue. Never blocks; order of calls is order in the log. Once the log has failed,
    /// records are dropped: the listener was told.
    pub fn append(&self, record: Record) {
        let mut core = self.inner.core.borrow_mut();
        core.cleaning.idle &= !matches!(record, Record::Frame(_));
        if core.push(Queued::Record(record)) {
            self.inner.work.notify_one();
        }
    }

    /// Sets the listener for all that becomes durable. Call it before the first record.
    pub fn set_listener(&self, listener: Rc<dyn Listener>) {
        self.inner.core.borrow_mut().listener = Some(listener);
    }

    /// All frames of the shard up to here are committed: they are never cut.
    pub fn committed(&self, shard: ShardId, to: Sequence) {
        let mut core = self.inner.core.borrow_mut();
        let is_short = core.short_of_space();
        let Core { shards, segs, maps, .. } = &mut *core;
        if let Some(s) = shards.get_mut(&shard) {
            s.hear_committed(to, segs);
            if is_short {
                // A frame that was not committed may have been what kept them.
                segs.candidates.append(&mut segs.blocked);
            }
            if !segs.candidates.is_empty() {
                self.inner.work.notify_one();
            }
            if segs.prune || segs.past_grown() > maps.past_bytes {
                self.inner.map_wake.notify_one();
            }
        }
        core.no_longer_held();
    }

    /// Frames from here on stay in the log (a member lags), unless space is short.
    pub fn keep(&self, shard: ShardId, from: Sequence) {
        let mut core = self.inner.core.borrow_mut();
        if let Some(s) = core.shards.get_mut(&shard) {
            s.keep = Some(from);
        }
        core.no_longer_held();
    }

    /// How cleaning goes on from here.
    pub fn set_cleaning(&self, options: CleanOptions) {
        let mut core = self.inner.core.borrow_mut();
        core.cleaning.options = options;
        core.segs.changes += 1;
        core.cleaning.wake.notify_one();
        // Who waits for cleaning hears also that there is none any more.
        self.inner.ring();
    }

    /// Bytes of data that one frame may have in segments of this size.
    pub fn frame_data_max(&self) -> usize {
        frame_data_max(&self.inner.core.borrow())
    }
    /// Room on the device now.
    pub fn space(&self) -> Space {
        self.inner.core.borrow().space()
    }
    /// Counted since `open`.
    pub fn counters(&self) -> Counters {
        self.inner.core.borrow().counters
    }
    /// What has happened since the last call, the newest 1,000.
    pub fn events(&self) -> Vec<Event> {
        self.inner.core.borrow_mut().take_events()
    }

    /// Lets cleaning look whether there is something to do. For who waits because `Space::more_soon` says that there may
    /// be: nothing else need happen that would make it look.
    pub fn look_for_room(&self) {
        let core = self.inner.core.borrow();
        let is_wanted = !core.queue.is_empty() || core.short_of_space();
        if core.hope() && !core.cleaning.busy && is_wanted {
            core.cleaning.wake.notify_one();
        }
        if !core.segs.candidates.is_empty() {
            self.inner.ring();
        }
    }

    /// Makes the last append provably durable (rule E7), if something came since the last time. To be called after
    /// a moment without appends; until there are any again, cleaning has the device to itself. Also asks a file system
    /// that was full again for room. True if there is nothing left to prove: else it is to be called again, for the device
    /// may be busy, or may have no room for the proof yet.
    pub fn flush_idle(&self) -> bool {
        let mut core = self.inner.core.borrow_mut();
        core.cleaning.idle = true;
        core.cleaning.wake.notify_one();
        // Nobody writes while room is short, so nothing else would ask the file system for it again.
        self.inner.pool.notify_one();
        if core.proven || core.writing || !core.queue.is_empty() {
            return core.proven && !core.writing && core.queue.is_empty();
        }
        let Core { segs, .. } = &mut *core;
        segs.look_again();
        if core.push(Queued::Idle) {
            self.inner.work.notify_one();
        }
        false
    }

    /// Asks for a checkpoint, for who does not wait for it.
    pub fn want_checkpoint(&self) {
        let mut core = self.inner.core.borrow_mut();
        core.maps.wanted |= core.running && core.failed.is_none();
        self.inner.map_wake.notify_one();
    }

    /// Makes a checkpoint, so that the next start reads only what comes behind it. To be called every minute or so. It
    /// is made in the background, in small steps, by the writer if that is running. `NoSpace` if there is no room, or
    /// `Corrupt` if a part of the map is lost: the log alone is enough in both cases. It is left out, without an error,
    /// in a log of few segments if what lives needs the segment that it would take.
    pub async fn checkpoint(&self) -> Result<()> {
        let made = {
            let mut core = self.inner.core.borrow_mut();
            if let Some(e) = &core.failed {
                return Err(e.clone());
            }
            if core.closing {
                return Err(Error::retry("the log is closed"));
            }
            core.maps.wanted = core.running;
            core.maps.made.clone()
        };
        let made = made.notified();
        if !self.inner.core.borrow().maps.wanted {
            // Nobody else makes room meanwhile: a writer that is started waits until it is made.
            let _task = self.inner.device.task();
            return Io { alone: true, ..self.io() }.checkpoint().await;
        }
        self.inner.map_wake.notify_one();
        made.await;
        let core = self.inner.core.borrow();
        core.failed.clone().map_or(core.maps.outcome.clone(), Err)
    }

    /// Writes what is queued and the proof of it, then stops the writer, which must be running if anything is queued.
    /// When it returns nothing is on its way to the device any more, also if the log has failed.
    pub async fn close(&self) -> Result<()> {
        let wait = {
            let mut core = self.inner.core.borrow_mut();
            core.closing = true;
            let wait = core.running || (core.failed.is_none() && !core.queue.is_empty());
            if wait && !core.proven | core.writing | !core.queue.is_empty() {
                core.push(Queued::Idle);
            }
            wait
        };
        if wait {
            let stopped = self.inner.stopped.notified();
            self.inner.ring();
            stopped.await;
        }
        self.inner.device.quiet().await;
        match &self.inner.core.borrow().failed {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// The writer. Ends after `close`, or with the error that ended the log.
    pub async fn run(&self) -> Result<()> {
        {
            let mut core = self.inner.core.borrow_mut();
            if core.running {
                return Err(Error::bug("the writer of a log runs once"));
            }
            core.running = true;
            let all: Vec<u32> = core.segs.used().map(|(i, _)| i).collect();
            core.segs.candidates.extend(all);
        }
        let mut running = Running { inner: &self.inner, ended: false };
        self.inner.device.quiet().await;
        let (map, tombs) = (pin!(self.map_loop()), pin!(self.tomb_loop()));
        let (space, clean, write) = (pin!(self.space_loop()), pin!(self.clean_loop()), pin!(self.write_loop()));
        let mut parts = [Part::new(map), Part::new(tombs), Part::new(space), Part::new(clean), Part::new(write)];
        let end = poll_fn(|cx| {
            let over = parts.iter_mut().find_map(|p| p.poll(cx).cloned());
            over.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let end = self.come_to_rest(end, &mut parts).await;
        running.ended = true;
        end
    }

    /// The log has ended: what was begun comes to its end, and nothing else is begun.
    async fn come_to_rest(&self, mut end: Result<()>, parts: &mut [Part<'_>]) -> Result<()> {
        let device = &self.inner.device;
        device.set_shut(true);
        if let Err(e) = &end {
            self.fail(e);
        }
        poll_fn(|cx| {
            for p in parts.iter_mut().filter(|_| !device.is_quiet()) {
                if let Some(Err(e)) = p.poll(cx)
                    && end.is_ok()
                {
                    end = Err(e.clone());
                }
            }
            if device.is_quiet() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if let Err(e) = &end {
            self.fail(e);
        }
        device.set_shut(false);
        end
    }

    /// Ends the log; the first error counts.
    pub(crate) fn fail(&self, e: &Error) {
        let listener = {
            let mut core = self.inner.core.borrow_mut();
            if core.failed.is_some() {
                return;
            }
            core.failed = Some(e.clone());
            core.queue.clear();
            core.listener.clone()
        };
        if let Some(l) = listener {
            l.failed(e);
        }
    }

    async fn write_loop(&self) -> Result<()> {
        let inner = &self.inner;
        let mut spare = None;
        let mut done = Vec::new();
        loop {
            let next = {
                let mut core = inner.core.borrow_mut();
                core.clean();
                core.next(&mut spare)
            };
            match next {
                Next::Wait if inner.core.borrow().is_closed() => return Ok(()),
                Next::Wait => {
                    let asks = inner.core.borrow().growing;
                    if asks || inner.core.borrow().cleaning.idle {
                        inner.pool.notify_one();
                    }
                    inner.work.notified().await;
                }
                Next::Rotate => self.rotate().await?,
                Next::Done(d) => done.push(d),
                Next::Fail(e) => return Err(e),
                Next::Write(batch, buf) => self.write(batch, buf, &mut spare, &mut done).await?,
            }
            if !done.is_empty() {
                let listener = inner.core.borrow().listener.clone();
                if let Some(l) = listener {
                    l.durable(&mut done);
                }
                done.clear();
            }
        }
    }

    async fn write(
        &self,
        batch: Batch,
        buf: AlignedBuf,
        spare: &mut Option<AlignedBuf>,
        done: &mut Vec<Durable>,
    ) -> Result<()> {
        self.inner.core.borrow_mut().writing = true;
        let buf = self.write_bytes(batch.byte, buf).await?;
        // What does not come in order is held against the map first. From there on nothing waits until it acts.
        let frames: Vec<_> = batch.ops.iter().map(|op| (&op.head, batch.repair)).collect();
        if let Err(e) = self.io().resolve(&frames).await {
            // The frame is durable and can't act: the next start must not begin with the map that lacks a page.
            self.io().forget_checkpoints().await?;
            return Err(Error::retry(format!("the log must be opened again: {e}")));
        }
        if batch.given.is_some() {
            // A new live table lets freed segments be used, or go back.
            self.inner.pool.notify_one();
        }
        self.inner.core.borrow_mut().written(batch, buf.len(), done);
        self.io().resolved();
        let mut core = self.inner.core.borrow_mut();
        core.writing = false;
        if core.segs.prune
            || core.maps.grown >= core.maps.table_limit()
            || core.maps.since >= core.maps.checkpoint_bytes
            || core.segs.past_grown() > core.maps.past_bytes
        {
            core.map_wake.notify_one();
        }
        *spare = Some(buf).filter(|b| b.capacity() <= SPARE_BYTES_MAX);
        Ok(())
    }

    /// A durable write; an error poisons the device (invariant 7).
    async fn write_bytes(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf> {
        let (buf, result) = self.inner.device.write(at, buf, Durability::Durable).await;
        match result {
            // A write that returns after the log has ended counts for nothing.
            Ok(()) => self.inner.core.borrow().failed.clone().map_or(Ok(buf), Err),
            Err(e) => {
                let e = Error::device_failed(format!("write of the log at byte {at}: {e}"));
                self.fail(&e);
                Err(e)
            }
        }
    }

    /// The segment to open next; `None` if it must be waited for.
    fn next_segment(&self) -> Result<Option<u32>> {
        let core = &mut *self.inner.core.borrow_mut();
        if let Some(e) = &core.failed {
            return Err(e.clone());
        }
        if core.waits_for_growth() {
            return Ok(None);
        }
        if !core.may_open() {
            core.segs.look_again();
            core.clean();
            if !core.may_open() && core.drop_moves() {
                // Something else may be next now.
                self.inner.grown.notify_one();
                return Ok(None);
            }
            // What stands between a segment and its being given up may be being looked up.
            if !core.may_open() && core.waits_for_room() {
                return Ok(None);
            }
        }
        // Readers may hold ready segments for a moment; they are waited for.
        let ready = core.segs.ready_count();
        if !core.may_open() || (ready == 0 && !core.can_grow()) {
            if core.asks_again() {
                return Ok(None);
            }
            if core.may_refuse().is_some() {
                core.no_segment = true;
                self.inner.grown.notify_one();
                return Ok(None);
            }
            return Err(core.full());
        }
        core.opening = core.segs.ready();
        Ok(core.opening)
    }

    /// Closes the open segment with its index and opens the next one. If there is none, waits until that may have
    /// changed; what is next in the queue may be something else then.
    async fn rotate(&self) -> Result<()> {
        let inner = &self.inner;
        let Some(next) = self.next_segment()? else {
            inner.pool.notify_one();
            inner.grown.notified().await;
            return Ok(());
        };
        // A page names it as the next one before another names it as opened.
        let naming = inner.core.borrow_mut().naming_page(next);
        if let Some((at, page)) = naming {
            self.write_bytes(at, page).await?;
        }
        let mut writes = Vec::with_capacity(2);
        {
            let mut core = inner.core.borrow_mut();
            let index = core.index(next);
            core.counters.index_bytes += index.as_ref().map_or(0, |(_, buf)| buf.len() as u64);
            writes.extend(index);
            writes.push(core.opening_page(next));
        }
        for done in join_all(writes.into_iter().map(|(at, buf)| self.write_bytes(at, buf)).collect()).await {
            done?;
        }
        let mut core = inner.core.borrow_mut();
        if let Some(old) = core.open.take() {
            core.segs.get_mut(old.id).appends = old.appends();
            core.segs.close(old.id);
        }
        core.proven = true;
        let for_records = core.next_opens_for_records();
        let seq = core.next_seq;
        let skipped = u8::try_from(seq - core.last_seq - 1).unwrap_or(u8::MAX);
        (core.next_seq, core.last_seq) = (seq + 1, seq);
        core.segs.open(next, seq);
        (core.opening, core.asked_again) = (None, false);
        core.counters.segments_opened += 1;
        core.open = Some(OpenSegment {
            id: next,
            seq,
            skipped,
            at: 0,
            index: BytesMut::new(),
            frames: 0,
            first_append: 0,
            last_append: 0,
            last: None,
            lost: LostAppends::default(),
            for_records,
        });
        inner.pool.notify_one();
        Ok(())
    }

    /// Keeps the map within its memory, in the background. Ends only with an error.
    async fn map_loop(&self) -> Result<()> {
        loop {
            self.inner.core.borrow_mut().maps.busy = true;
            let done = self.io().upkeep().await;
            let awaited = {
                let maps = &mut self.inner.core.borrow_mut().maps;
                maps.busy = false;
                std::mem::take(&mut maps.awaited)
            };
            done?;
            if awaited {
                self.inner.ring();
            }
            self.inner.map_wake.notified().await;
        }
    }

    /// True if a page of the map is lost, and the log alone is what the next start reads: until then there are no checkpoints,
    /// and what the page had can't be read. Not if the log alone was what this start had, and the map that came of it is lost:
    /// the next one would hardly fare better.
    #[must_use]
    pub fn waits_for_start(&self) -> bool {
        let core = self.inner.core.borrow();
        core.maps.damaged && core.maps.had_checkpoint && core.maps.kept.iter().all(Option::is_none)
    }

    /// Blocks of committed entries that wait above a shard's map for frames that may be cut; for tests.
    #[doc(hidden)]
    pub fn held_blocks(&self, shard: ShardId) -> u64 {
        let core = self.inner.core.borrow();
        let held = core.shards.get(&shard).into_iter().flat_map(|s| s.overlay.held());
        held.map(|(_, e)| u64::from(e.len)).sum()
    }

    /// The append that the newest checkpoint covers, and the one that was the last when it was begun; for tests.
    #[doc(hidden)]
    pub fn checkpoint_covers(&self) -> Option<(u64, u64)> {
        let core = self.inner.core.borrow();
        core.maps.kept.iter().flatten().max_by_key(|k| k.revision).map(|k| (k.covered, k.written))
    }

    /// Counts what is live anew from the chunk indexes and compares; for tests.
    #[doc(hidden)]
    pub fn check_counts(&self) {
        let core = self.inner.core.borrow();
        let again = core.recount();
        let mut sum = 0;
        for (i, s) in core.segs.iter() {
            assert_eq!(s.live, again[i as usize], "live blocks of segment {i} ({:?})", s.state);
            assert!(s.is_used() || s.live == 0, "segment {i} is free but has something live");
            sum += s.live;
        }
        assert_eq!(sum, core.segs.live_blocks);
        assert_eq!(core.segs.used().count() as u32, core.segs.used_count);
    }

    /// Superseded extents of a shard that are in memory; for tests.
    #[doc(hidden)]
    pub fn past_in_memory(&self, shard: ShardId) -> u64 {
        self.inner.core.borrow().shards.get(&shard).map_or(0, |s| s.history.memory.len())
    }

    /// From now on history stays in memory, as if there were no room for its runs; for tests.
    #[doc(hidden)]
    pub fn refuse_past(&self) {
        let past = &mut self.inner.core.borrow_mut().maps.past;
        (past.is_stuck, past.is_refused) = (true, true);
    }

    /// Pages of all runs of history; for tests.
    #[doc(hidden)]
    pub fn past_pages(&self) -> u64 {
        self.inner.core.borrow().maps.past.runs().map(|r| u64::from(r.places.pages)).sum()
    }

    /// Holds all that a kept version sees, and that something newer covers, against what counts as live; for tests.
    #[doc(hidden)]
    pub async fn check_past(&self) -> Result<()> {
        let shards: Vec<ShardId> = self.inner.core.borrow().shards.keys().copied().collect();
        for id in shards {
            let mut at = 0;
            while let Some(start) = self.io().next_own_entry(id, at).await?.filter(|a| !is_of_times(*a)) {
                at = start + 64;
                let check = |_: &Core, s: &Shard, layers: Table| {
                    layers.iter().for_each(|(a, l)| s.check_layer(a, l));
                    Ok(())
                };
                self.io().with_layers(id, (start, at), check).await?;
            }
        }
        Ok(())
    }

    /// As `check_counts`, and holds what the maps name against it; for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        self.check_counts();
        let core = self.inner.core.borrow();
        let mut named = std::collections::BTreeSet::new();
        for s in core.shards.values() {
            s.overlay.check();
            s.named(|chunk, first, count| {
                assert!(
                    s.chunks.all_live(chunk, first, count),
                    "shard {}: blocks of {chunk} that are named live",
                    s.id
                );
                named.extend((first..first + count).map(|i| (s.id, chunk, i)));
            });
        }
        if core.maps.nothing_below() && core.maps.past.is_empty() {
            assert_eq!(core.segs.live_blocks, named.len() as u64, "every live block is named by something");
        }
    }
}

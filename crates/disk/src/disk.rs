//! The handle on a disk: FreEBS's figure 5 as a safe interface, for any number of threads.

use crate::ahead::{Run, runs};
use crate::blocks::{Content, Sink, Span, draft};
use crate::inside::Inside;
use crate::open::{self, CreateOptions, OpenOptions, fresh_history};
use crate::shared::{Guard, Shared, Step};
use freebs_format::UpdateDraft;
use freebs_lsvd::{Counters, Event, OpenReport, Space};
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Result, Version, limits};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A disk. Clones are the same disk; the last one to go closes it.
#[derive(Clone)]
pub struct Disk {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    size: u64,
    report: OpenReport,
    /// Bytes of data in one update.
    update_bytes: u64,
    /// One stream at a time.
    putting: Mutex<()>,
    /// As the description has it, to be asked without the lock.
    is_copy: AtomicBool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Who wants to know whether that went well calls `close`.
        let _ = close(&self.shared);
    }
}

/// What a disk is and how it fares.
#[derive(Clone, Debug)]
pub struct Status {
    /// Bytes of the disk.
    pub size: u64,
    /// The last version that reads see.
    pub version: Version,
    /// Everything up to this version survives a power cut.
    pub durable: Version,
    /// Identity of this disk, and of its line of versions.
    pub disk: [u8; 16],
    /// Names the line of versions: disks of one history have the same content at the same version.
    pub history: [u8; 16],
    /// `put_writes` is between two versions: nothing is served.
    pub is_filling: bool,
    /// Room in the log.
    pub space: Space,
    /// Counted since the disk was opened.
    pub counters: Counters,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("size", &self.handle.size).finish_non_exhaustive()
    }
}

fn close(shared: &Arc<Shared>) -> Result<()> {
    let mut g = shared.lock();
    let Ok(inside) = g.inside() else {
        drop(g);
        return Ok(());
    };
    let mut id = None;
    let version = inside.head.version();
    let end = shared.drive(g, |inside| {
        if inside.head.durable() < version {
            inside.wanted = inside.wanted.max(version);
            return Step::Change;
        }
        let id = *id.get_or_insert_with(|| inside.spawn(|engine| async move { engine.close().await }));
        match inside.step::<Result<()>>(id) {
            Some(end) => Step::Done(end),
            None => Step::Change,
        }
    });
    shared.stop();
    shared.let_go();
    end
}

pub(crate) fn filling(inside: &Inside) -> Result<()> {
    let version = inside.head.version();
    if inside.description.filling_to <= version {
        return Ok(());
    }
    Err(Error::retry(format!(
        "the disk is between two versions, on its way to another one's content; go on with put_writes since version \
         {version}"
    )))
}

impl Disk {
    /// Makes a disk of `size` bytes (a multiple of 512, at most 1 TiB) in a file that does not exist yet, or on an
    /// empty block device. The file grows with what is written.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        Self::create_with(path, size, &CreateOptions::default())
    }

    /// As `create`, with options.
    pub fn create_with(path: impl AsRef<Path>, size: u64, options: &CreateOptions) -> Result<Self> {
        Self::start(open::create(path.as_ref(), size, options)?)
    }

    /// Opens a disk for this process alone (`Busy` otherwise). After a crash its content is that of some version, at
    /// least the last one that was answered as durable.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// As `open`, with options.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::start(open::open(path.as_ref(), options)?)
    }

    fn start((inside, report): (Inside, OpenReport)) -> Result<Self> {
        let size = inside.description.size;
        let update_bytes = inside.engine.frame_data_max().min(limits::UPDATE_DATA_BYTES_MAX) as u64;
        let is_copy = AtomicBool::new(inside.description.copy);
        let shared = Shared::start(inside)?;
        let putting = Mutex::new(());
        Ok(Self { handle: Arc::new(Handle { shared, size, report, update_bytes, putting, is_copy }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    pub(crate) fn putting(&self) -> MutexGuard<'_, ()> {
        self.handle.putting.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn is_now_a_copy(&self) {
        self.handle.is_copy.store(true, Ordering::Release);
    }
    pub(crate) fn update_bytes(&self) -> u64 {
        self.handle.update_bytes
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.handle.size
    }
    /// What recovery found when the disk was opened.
    pub fn report(&self) -> &OpenReport {
        &self.handle.report
    }

    /// The version: the number of updates so far.
    pub fn version(&self) -> Result<Version> {
        let mut g = self.shared().lock();
        Ok(Version(g.inside()?.head.version()))
    }

    /// State of the disk at this moment. An error if the disk has failed.
    pub fn status(&self) -> Result<Status> {
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        let d = &inside.description;
        Ok(Status {
            size: d.size,
            version: Version(inside.head.version()),
            durable: Version(inside.head.durable()),
            disk: d.disk,
            history: d.history,
            is_filling: d.filling_to > inside.head.version(),
            space: inside.engine.space(),
            counters: inside.engine.counters(),
        })
    }

    /// What the log has noticed since the last call (damage, want of space), the newest 1,000.
    pub fn events(&self) -> Result<Vec<Event>> {
        let mut g = self.shared().lock();
        Ok(g.inside()?.engine.events())
    }

    /// Reads the current content. Offset and length are multiples of 512. Up to 4 MiB are of one version; longer
    /// reads are made of several.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_when(buf, offset, None)
    }

    /// Reads the content as it was at a version: the current one, one of which there is a snapshot, or one in the
    /// retention window. `NotFound` if that version is not held.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, version: Version) -> Result<()> {
        self.read_when(buf, offset, Some(version.0))
    }

    fn read_when(&self, buf: &mut [u8], offset: u64, version: Option<u64>) -> Result<()> {
        Span::check(offset, buf.len() as u64, self.handle.size)?;
        let mut rest = buf;
        let all = Span { offset, len: rest.len() as u64 };
        for span in all.pieces(u64::from(limits::READ_BLOCKS_MAX) * BLOCK as u64) {
            let (buf, others) = rest.split_at_mut(span.len as usize);
            rest = others;
            match (self.read_span(Sink { span, buf: &mut *buf }, version), version) {
                // It is not the present one, or no longer.
                (Err(e), Some(v)) if e.kind == ErrorKind::NotFound => self.read_old(Sink { span, buf }, v)?,
                (done, _) => done?,
            }
        }
        if all.len == 0 {
            let kept = match version {
                Some(v) => v <= self.version()?.0 && self.history()?.has(Version(v)),
                None => true,
            };
            let mut g = self.shared().lock();
            check_version(g.inside()?, version.filter(|_| !kept))?;
        }
        Ok(())
    }

    fn read_span(&self, mut sink: Sink<'_>, version: Option<u64>) -> Result<()> {
        let range = sink.span.blocks();
        let mut may_ahead = true;
        let (under, over) = loop {
            let mut g = self.shared().lock();
            let inside = g.inside()?;
            // What was ordered and then failed to become durable is not served as if it had.
            inside.alive()?;
            filling(inside)?;
            check_version(inside, version)?;
            let over = inside.head.overlay.over(range);
            let covered: u32 = over.iter().map(|(_, n, _)| n).sum();
            if covered == range.len {
                break (Vec::new(), over);
            }
            if let Some(runs) = inside.ahead.get(range) {
                break (runs, over);
            }
            match self.read_medium(g, range, may_ahead)? {
                Some(runs) => break (runs, over),
                // What is wrong lies ahead, where nobody has asked for it.
                None => may_ahead = false,
            }
        };
        for (lba, blocks, data) in under.into_iter().chain(over) {
            match data {
                Some(d) => sink.put(lba, &d),
                None => sink.zero(lba, blocks),
            }
        }
        Ok(())
    }

    /// Reads from the log, and perhaps ahead. None if only reading ahead made it fail.
    fn read_medium(&self, mut g: Guard<'_>, range: BlockRange, may_ahead: bool) -> Result<Option<Vec<Run>>> {
        let shared = self.shared();
        let inside = g.inside()?;
        let (shard, changes) = (inside.shard(), inside.ahead.changes());
        let mut window = range;
        if may_ahead {
            window = inside.ahead.plan(range, self.handle.size.div_ceil(BLOCK as u64) as u32);
        }
        if window != range && !inside.head.overlay.over(window).is_empty() {
            window = range;
        }
        // The engine plans the read at the first poll, in this hold of the lock: one version.
        let out = match shared.run(g, move |engine| async move { engine.read(shard, window).await })? {
            Ok(out) => out,
            Err(_) if window != range => return Ok(None),
            Err(e) => return Err(e),
        };
        let list = runs(window, &out);
        if window != range
            && let Ok(inside) = shared.lock().inside()
            && inside.ahead.changes() == changes
        {
            inside.ahead.keep(range, window, &list);
        }
        Ok(Some(list))
    }

    /// Writes; returns when the bytes have their version and later reads see them. They are durable after the next
    /// `fsync`, or when the disk comes to it. Offset and length are multiples of 512. Up to 4 MiB from a multiple of
    /// 4,096 on are one update, which is there whole or not at all after a crash; more becomes several.
    pub fn write(&self, buf: &[u8], offset: u64) -> Result<Version> {
        self.change(offset, buf.len() as u64, Content::Data(buf), None, false)
    }

    /// Writes; returns when the bytes are durable. Writes from several threads share their appends.
    pub fn write_durable(&self, buf: &[u8], offset: u64) -> Result<Version> {
        self.change(offset, buf.len() as u64, Content::Data(buf), None, true)
    }

    /// Writes if that makes `version`; `Invalid` if the disk is at another one. At most one update.
    pub fn write_as(&self, buf: &[u8], offset: u64, version: Version) -> Result<Version> {
        let span = Span { offset, len: buf.len() as u64 };
        if span.pieces(self.handle.update_bytes).count() != 1 {
            return Err(Error::invalid("a write of a given version is one update: 512 bytes to 4 MiB"));
        }
        self.change(offset, buf.len() as u64, Content::Data(buf), Some(version.0), false)
    }

    /// Makes a range read as zeroes and frees its space.
    pub fn trim(&self, offset: u64, len: u64) -> Result<Version> {
        self.change(offset, len, Content::Trim, None, false)
    }

    /// Makes a range read as zeroes without storing any.
    pub fn zero(&self, offset: u64, len: u64) -> Result<Version> {
        self.change(offset, len, Content::Zero, None, false)
    }

    /// Returns when everything that was written before the call is durable, with the version that is.
    pub fn fsync(&self) -> Result<Version> {
        let mut g = self.shared().lock();
        let version = g.inside()?.head.version();
        self.shared().drive(g, |inside| {
            if let Err(e) = inside.alive() {
                return Step::Done(Err(e));
            }
            inside.wanted = inside.wanted.max(version);
            Step::Durable(version, Version(version))
        })
    }

    /// A start reads what was written since the last checkpoint, and one is made this often while there are writes (60 s
    /// if nothing is said), or when 512 MiB were written.
    pub fn set_checkpoint_interval(&self, interval: Duration) -> Result<()> {
        let mut g = self.shared().lock();
        g.inside()?.checkpoint_every = interval;
        self.shared().leave(g);
        Ok(())
    }

    /// Lets the log look for what it can give up now. Content, version and readers are not touched.
    pub fn cleanup(&self) -> Result<Space> {
        self.fsync()?;
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        inside.engine.flush_idle();
        let space = inside.engine.space();
        self.shared().leave(g);
        Ok(space)
    }

    /// Makes everything durable and lets the file go. Other clones of the handle get errors from then on.
    pub fn close(self) -> Result<()> {
        close(self.shared())
    }

    fn change(
        &self,
        offset: u64,
        len: u64,
        content: Content<'_>,
        expected: Option<u64>,
        durable: bool,
    ) -> Result<Version> {
        Span::check(offset, len, self.handle.size)?;
        self.before_change()?;
        if len == 0 {
            return if durable { self.fsync() } else { self.version() };
        }
        let all = Span { offset, len };
        let Content::Data(mut rest) = content else {
            return self.change_span(all, content, expected, durable);
        };
        let mut version = Version(0);
        for span in all.pieces(self.handle.update_bytes) {
            let (mine, others) = rest.split_at(span.len as usize);
            rest = others;
            let last = rest.is_empty();
            version = self.change_span(span, Content::Data(mine), expected, durable && last)?;
        }
        Ok(version)
    }

    fn change_span(&self, span: Span, content: Content<'_>, expected: Option<u64>, durable: bool) -> Result<Version> {
        let size = self.handle.size;
        let edges = span.edges(size);
        if edges.is_empty() {
            let update = draft(span, content, &[], size);
            return self.order(span, update, &[], expected, durable);
        }
        // Nobody else may write the edge blocks between our reading and our writing them.
        let blocks = span.blocks();
        let held = edges.clone();
        self.shared().drive(self.shared().lock(), move |inside| {
            if overlaps(inside, blocks, &[]) {
                return Step::Change;
            }
            inside.busy.extend(held.iter().copied());
            Step::Done(Ok(()))
        })?;
        let old: Result<Vec<Vec<u8>>> = edges.iter().map(|lba| self.block(*lba)).collect();
        match old {
            Ok(old) => self.order(span, draft(span, content, &old, size), &edges, expected, durable),
            Err(e) => {
                self.let_go(&edges);
                Err(e)
            }
        }
    }

    fn block(&self, lba: u32) -> Result<Vec<u8>> {
        let mut block = vec![0; BLOCK];
        let span = Span { offset: u64::from(lba) * BLOCK as u64, len: BLOCK as u64 };
        self.read_span(Sink { span, buf: &mut block }, None)?;
        Ok(block)
    }

    fn let_go(&self, edges: &[u32]) {
        let mut g = self.shared().lock();
        if let Ok(inside) = g.inside() {
            edges.iter().for_each(|e| {
                inside.busy.remove(e);
            });
        }
        g.changed = true;
        self.shared().leave(g);
    }

    /// Gives an update its version, once there is room for it; `edges` are the caller's own busy blocks.
    fn order(
        &self,
        span: Span,
        update: UpdateDraft,
        edges: &[u32],
        expected: Option<u64>,
        durable: bool,
    ) -> Result<Version> {
        let (blocks, bytes) = (span.blocks(), update.data_bytes());
        let mut update = Some(update);
        let mut mine = None;
        let shared = self.shared();
        let end = shared.drive(shared.lock(), |inside| {
            if update.is_some() {
                match admit(inside, blocks, edges, expected, bytes) {
                    Ok(true) => {}
                    Ok(false) => {
                        // Room comes when what waits is durable.
                        inside.wanted = inside.wanted.max(inside.head.version());
                        return Step::Change;
                    }
                    Err(e) => return Step::Done(Err(e)),
                }
                let update = update.take().expect("checked above");
                mine = Some(inside.order(update, durable));
                shared.arrived();
            }
            let version = mine.expect("ordered above");
            if durable { Step::Durable(version, Version(version)) } else { Step::Done(Ok(Version(version))) }
        });
        if !edges.is_empty() {
            self.let_go(edges);
        }
        end
    }

    /// A copy that is changed becomes a disk of its own.
    pub(crate) fn before_change(&self) -> Result<()> {
        if self.handle.is_copy.load(Ordering::Acquire) { self.leave_history() } else { Ok(()) }
    }

    /// A copy that is written to has a history of its own from then on.
    fn leave_history(&self) -> Result<()> {
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        filling(inside)?;
        if !inside.description.copy {
            return Ok(());
        }
        (inside.description.copy, inside.description.history) = (false, fresh_history());
        self.handle.is_copy.store(false, Ordering::Release);
        self.describe(g)
    }

    /// Writes the description and waits for it.
    pub(crate) fn describe(&self, mut g: Guard<'_>) -> Result<()> {
        let inside = g.inside()?;
        inside.describe();
        let sequence = inside.about.sequence();
        self.shared().drive(g, |inside| match inside.about.durable_sequence() >= sequence {
            true => Step::Done(Ok(())),
            false => Step::Change,
        })
    }
}

/// Whether somebody else is writing a part of one of these blocks.
fn overlaps(inside: &Inside, blocks: BlockRange, own: &[u32]) -> bool {
    inside.busy.range(blocks.start.0..blocks.end() as u32).any(|b| !own.contains(b))
}

/// Whether an update may be ordered now; an error if it may not at all.
fn admit(inside: &mut Inside, blocks: BlockRange, own: &[u32], expected: Option<u64>, bytes: usize) -> Result<bool> {
    inside.alive()?;
    filling(inside)?;
    if inside.description.copy {
        return Err(Error::retry("the disk has become a copy while the write was on its way"));
    }
    if let Some(v) = expected.filter(|v| *v != inside.head.version() + 1) {
        let text = format!("version {v} is not the next one: the disk is at {}", inside.head.version());
        return Err(Error::invalid(text));
    }
    Ok(inside.check_space(bytes)? && inside.has_room() && !overlaps(inside, blocks, own))
}

fn check_version(inside: &Inside, version: Option<u64>) -> Result<()> {
    let now = inside.head.version();
    match version {
        Some(v) if v != now => Err(Error::not_found(match v > now {
            true => format!("version {v} does not exist yet: the disk is at {now}"),
            false => format!("version {v} is not held any more: the disk is at {now}"),
        })),
        _ => Ok(()),
    }
}

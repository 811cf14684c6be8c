//! Map entries on the device: immutable sorted runs in segments of the log that hold nothing else.
//!
//! A memory table fills and is written as a *young* run; when there are enough of these, they are merged into the
//! *old* one. A lookup asks the table, then the young runs, newest first, then the old one; a young run knows exactly
//! which blocks it has, so about one page is read, whatever the number of runs.
//!
//! Invariants:
//! - Over a block, no level has an entry that is older than one in a level below it.
//! - A run never changes. Its pages are not written over while a level, a kept checkpoint (rule E5), a writer or a
//!   reader has it.
//! - All of this is soft state: the log alone makes it again (invariant 5).

pub(crate) mod cache;
pub(crate) mod checkpoint;
pub(crate) mod flush;
pub(crate) mod look;
pub(crate) mod manifest;
pub(crate) mod merge;
pub(crate) mod page;
pub(crate) mod run;
#[cfg(test)]
mod tests;
pub(crate) mod write;

use crate::clean::Need;
use crate::core::Core;
use crate::map::{Extent, ExtentMap, Outcome};
use crate::segments::SegmentState;
use crate::{Options, RuleMutant};
use bytes::Bytes;
use cache::{Cache, PageKey};
use freebs_format::disk::PAGE_BYTES;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{DeviceId, Error, Result, Sequence, ShardId, Version};
use run::{Place, Run};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use tokio::sync::Notify;

/// Bytes that an entry of the memory table takes, about, CRCs of further blocks aside.
pub(crate) const ENTRY_BYTES: usize = 112;
/// Young runs that are merged.
pub(crate) const YOUNG_RUNS: usize = 10;

/// A checkpoint that recovery could begin with.
pub(crate) struct Kept {
    pub revision: u64,
    pub runs: Vec<Rc<Run>>,
    pub manifest: Vec<Place>,
    /// Frames in appends behind this are not covered.
    pub covered: u64,
    /// The last append when it was begun.
    pub written: u64,
}

/// The levels below the memory tables, and where they lie.
pub(crate) struct Maps {
    /// Newest first.
    pub young: VecDeque<Rc<Run>>,
    pub old: Option<Rc<Run>>,
    pub cache: Cache,
    pub next_run: u64,
    /// The shard of each slot. A shard that is made anew gets a new slot, so entries of the one before are no one's.
    pub slots: BTreeMap<u32, ShardId>,
    pub next_slot: u32,
    /// About the bytes that the memory tables have grown by since they were last measured.
    pub grown: usize,
    /// Bytes of the memory tables at which they are written out.
    pub table_bytes: usize,
    /// The whole map of every shard is in memory; runs are there for recovery only.
    pub resident: bool,
    /// Bytes of memory for maps that stay in it.
    resident_bytes: usize,
    /// Whether memory is bounded at all.
    pub bounded: bool,
    /// Map segments.
    segments: BTreeSet<u32>,
    /// The segment that is being filled, and its next page.
    open: Option<(u32, u32)>,
    /// Segments with pages of what is being written, by its number.
    writing: BTreeMap<u64, BTreeSet<u32>>,
    pub kept: [Option<Kept>; 2],
    /// The highest append that a slot has said to be durable.
    pub durable: u64,
    /// What was committed when the checkpoint was written that recovery begins with: to be told when this append has
    /// been applied. Not before, or what was cut would count.
    pub committed: (u64, Vec<(ShardId, u32, Sequence)>),
    /// Segments that slots name which may have to be erased. Until they are, nothing is written there.
    pub avoid: BTreeSet<u32>,
    /// Slots that recovery did not keep; they are erased before anything else is written.
    pub stale: [bool; 2],
    /// State of the table of segments when merging everything was tried and failed.
    pub no_squeeze: Option<u64>,
    /// A page of a run is lost. Nothing is merged or covered by a checkpoint until the next start.
    pub damaged: bool,
    /// Shards for which what lies below has been looked up.
    pub looked: Vec<ShardId>,
    /// Bytes of log since the last checkpoint was begun, and after how many the next one is made.
    pub since: u64,
    pub checkpoint_bytes: u64,
    /// A checkpoint is asked for; what became of the last one, and who waits for that.
    pub wanted: bool,
    pub outcome: Result<()>,
    pub made: Rc<Notify>,
    /// Something is being written or merged, or what is kept no longer is being found; somebody waits for its end.
    pub busy: bool,
    pub awaited: bool,
}

impl Maps {
    pub fn new(options: Options) -> Self {
        let bytes = options.map_bytes;
        Self {
            young: VecDeque::new(),
            old: None,
            cache: Cache::new(bytes / 4 / PAGE_BYTES),
            next_run: 1,
            slots: BTreeMap::new(),
            next_slot: 1,
            grown: 0,
            table_bytes: bytes / 16 * 7,
            resident: true,
            resident_bytes: bytes / 4 * 3,
            bounded: options != Options::UNBOUNDED,
            segments: BTreeSet::new(),
            open: None,
            writing: BTreeMap::new(),
            kept: [None, None],
            durable: 0,
            committed: (0, Vec::new()),
            avoid: BTreeSet::new(),
            stale: [false; 2],
            no_squeeze: None,
            damaged: false,
            looked: Vec::new(),
            since: 0,
            checkpoint_bytes: options.checkpoint_bytes,
            wanted: false,
            outcome: Ok(()),
            made: Rc::default(),
            busy: false,
            awaited: false,
        }
    }

    /// Runs from the newest to the oldest.
    pub fn runs(&self) -> impl Iterator<Item = &Rc<Run>> {
        self.young.iter().chain(&self.old)
    }

    /// The runs that lookups must ask.
    pub fn levels(&self) -> Vec<Rc<Run>> {
        if self.resident { Vec::new() } else { self.runs().cloned().collect() }
    }

    /// Whether memory knows everything.
    pub fn nothing_below(&self) -> bool {
        self.resident || (self.young.is_empty() && self.old.is_none())
    }

    /// Bytes of the maps, or of their tables, at which they are written out.
    pub fn table_limit(&self) -> usize {
        if self.resident { self.resident_bytes } else { self.table_bytes }
    }

    /// Whether maps of these runs can stay in memory.
    pub fn fits_memory(&self, runs: &[(Run, bool, u32)]) -> bool {
        let entries: u64 = runs.iter().map(|(r, ..)| r.entries).sum();
        let pages: u64 = runs.iter().map(|(.., pages)| u64::from(*pages)).sum();
        let bytes = entries.saturating_mul(ENTRY_BYTES as u64).saturating_add(pages.saturating_mul(PAGE_BYTES as u64));
        bytes <= (self.resident_bytes / 16 * 15) as u64
    }

    pub fn new_slot(&mut self, shard: ShardId) -> u32 {
        let slot = self.next_slot;
        self.next_slot += 1;
        self.slots.insert(slot, shard);
        slot
    }

    pub fn new_run(&mut self) -> u64 {
        self.next_run += 1;
        self.next_run - 1
    }

    /// What was being written is in a level now, or given up.
    pub fn written(&mut self, number: u64) {
        self.writing.remove(&number);
    }

    /// A segment that recovery found to hold pages of a checkpoint.
    pub fn found(&mut self, segment: u32) {
        self.segments.insert(segment);
    }
}

/// Pages that one call has read, so that it gets on however small the cache is.
pub(crate) type Pages = BTreeMap<PageKey, Bytes>;

/// Pages that must be read first.
pub(crate) type Missing = Vec<(Rc<Run>, u32)>;

impl Maps {
    fn page(&mut self, run: &Rc<Run>, page: u32, have: &Pages, missing: &mut Missing) -> Option<Bytes> {
        let key = (run.number, page);
        let found = have.get(&key).cloned().or_else(|| self.cache.get(key));
        if found.is_none() && !missing.iter().any(|(r, p)| r.number == run.number && *p == page) {
            missing.push((run.clone(), page));
        }
        found
    }

    /// Adds to `view` what the runs have of `[start, end)` where it has nothing yet.
    pub fn fill(
        &mut self,
        device: DeviceId,
        runs: &[Rc<Run>],
        slot: u32,
        (start, end): (u32, u32),
        view: &mut ExtentMap,
        have: &Pages,
    ) -> Result<Missing> {
        let (mut missing, mut out) = (Missing::new(), Outcome::default());
        let mut gaps = gaps(view, start, end);
        for run in runs {
            let wanted: Vec<_> = gaps.iter().filter(|(a, b)| run.may_have(slot, *a, *b)).copied().collect();
            let mut pages: Vec<u32> = wanted.iter().flat_map(|(a, b)| run.pages_of(slot, *a, *b)).collect();
            pages.dedup();
            for page in pages {
                let Some(bytes) = self.page(run, page, have, &mut missing) else { continue };
                run.entries_of(device, page, &bytes, |s, a, e| {
                    let from = wanted.partition_point(|g| g.1 <= a);
                    for g in wanted[from..].iter().take_while(|g| s == slot && g.0 < a + e.len) {
                        let (x, y) = (a.max(g.0), (a + e.len).min(g.1));
                        view.insert(x, e.piece(x - a, y - x), &mut out);
                    }
                })?;
            }
            if !wanted.is_empty() {
                gaps = self::gaps(view, start, end);
            }
            if !missing.is_empty() || gaps.is_empty() {
                break;
            }
        }
        Ok(missing)
    }

    /// Adds to `view` what the runs have of `[start, end)` up to a version. All of them are asked: what a newer run has
    /// may be too new.
    #[allow(clippy::too_many_arguments, reason = "as `fill`, and a version")]
    pub fn fill_at(
        &mut self,
        device: DeviceId,
        runs: &[Rc<Run>],
        slot: u32,
        (start, end): (u32, u32),
        version: Version,
        view: &mut ExtentMap,
        have: &Pages,
    ) -> Result<Missing> {
        let mut missing = Missing::new();
        self.each_of(device, runs, slot, (start, end), have, &mut missing, |a, e| {
            if e.version <= version {
                view.insert(a, e, &mut Outcome::default());
            }
        })?;
        Ok(missing)
    }

    /// Calls `each` for every entry, cut to the range, that any run has in `[start, end)`; and names the pages that must
    /// be read before all of them have been told.
    #[allow(clippy::too_many_arguments, reason = "as `fill`")]
    pub fn each_of(
        &mut self,
        device: DeviceId,
        runs: &[Rc<Run>],
        slot: u32,
        (start, end): (u32, u32),
        have: &Pages,
        missing: &mut Missing,
        mut each: impl FnMut(u32, Extent),
    ) -> Result<()> {
        for run in runs.iter().filter(|r| r.may_have(slot, start, end)) {
            for page in run.pages_of(slot, start, end) {
                let Some(bytes) = self.page(run, page, have, missing) else { continue };
                run.entries_of(device, page, &bytes, |s, a, e| {
                    let (x, y) = (a.max(start), (a + e.len).min(end));
                    if s == slot && x < y {
                        each(x, e.piece(x - a, y - x));
                    }
                })?;
            }
        }
        Ok(())
    }

    /// The first block from `at` on for which a run has an entry.
    pub fn next(
        &mut self,
        device: DeviceId,
        runs: &[Rc<Run>],
        slot: u32,
        at: u32,
        have: &Pages,
    ) -> Result<(Option<u32>, Missing)> {
        let (mut missing, mut best) = (Missing::new(), None::<u32>);
        for run in runs {
            let found = match &run.members {
                Some(m) => m.next(slot, at),
                None => {
                    let page = run.page_of(slot, at);
                    let Some(bytes) = self.page(run, page, have, &mut missing) else { continue };
                    let mut first = None;
                    run.entries_of(device, page, &bytes, |s, a, e| {
                        if s == slot && a + e.len > at && first.is_none() {
                            first = Some(a.max(at));
                        }
                    })?;
                    let behind = run.fences.get(page as usize + 1).filter(|f| (**f >> 32) as u32 == slot);
                    first.or(behind.map(|f| *f as u32))
                }
            };
            best = best.into_iter().chain(found).min();
        }
        Ok((best, missing))
    }
}

/// The parts of a range that a view has no entry for.
fn gaps(view: &ExtentMap, start: u32, end: u32) -> Vec<(u32, u32)> {
    let (mut out, mut at) = (Vec::new(), start);
    for (a, _, _, len) in view.range(start, end) {
        if a > at {
            out.push((at, a));
        }
        at = a + len;
    }
    if at < end {
        out.push((at, end));
    }
    out
}

/// Device and state, for what has to wait.
pub(crate) struct Io<'a, D> {
    pub device: &'a D,
    pub core: &'a RefCell<Core>,
    /// Whether nobody else lets the device grow.
    pub alone: bool,
}

impl<D> Clone for Io<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D> Copy for Io<'_, D> {}

impl<D: Device> Io<'_, D> {
    pub fn device_id(&self) -> DeviceId {
        self.core.borrow().geometry.device
    }

    fn byte(&self, at: Place) -> u64 {
        self.core.borrow().geometry.byte(at.segment, at.page * PAGE_BYTES as u32)
    }

    pub async fn read_pages(&self, at: Place) -> Result<Bytes> {
        let byte = self.byte(at);
        let read = self.device.read(byte, write::whole(&at)).await;
        Ok(read?.freeze())
    }

    pub async fn write_pages(&self, at: Place, buf: AlignedBuf, how: Durability) -> (AlignedBuf, Result<()>) {
        let byte = self.byte(at);
        self.core.borrow_mut().counters.map_bytes += buf.len() as u64;
        let (buf, done) = self.device.write(byte, buf, how).await;
        (buf, done.map_err(|e| Error::device_failed(format!("write of the map at byte {byte}: {e}"))))
    }

    /// One more ready segment, while nobody else sees to that.
    async fn make_room(&self) -> Result<()> {
        let (bare, len, geometry) = {
            let core = self.core.borrow();
            let bare = core.segs.iter().find(|(_, s)| s.state == SegmentState::Bare).map(|(id, _)| id);
            (bare, core.segs.len(), core.geometry)
        };
        match bare {
            Some(id) => {
                if !crate::openings::is_whole(self.device, &geometry, id).await {
                    self.device.prewrite(geometry.byte(id, 0), geometry.segment_bytes).await?;
                }
                self.core.borrow_mut().segs.set_state(id, SegmentState::Ready);
            }
            None if len < geometry.limit_segments => {
                crate::ways::grow(self.device, geometry, len).await?;
                self.core.borrow_mut().segs.push();
            }
            None => return Err(Error::no_space("no segment is free for the map")),
        }
        Ok(())
    }

    /// Room for up to `most` pages, one behind the other.
    pub async fn room(&self, number: u64, most: u32) -> Result<Place> {
        loop {
            let wake = {
                let mut core = self.core.borrow_mut();
                if let Some(at) = core.map_room(number, most) {
                    return Ok(at);
                }
                if !core.may_open_map() {
                    return Err(Error::no_space("no segment is free for the map"));
                }
                core.map_wake.clone()
            };
            if self.alone {
                self.make_room().await?;
            } else {
                wake.notified().await;
            }
        }
    }
}

/// Lets others run; what follows is a step of its own.
pub(crate) async fn pause() {
    let mut first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

impl Core {
    /// Whether room is wanted, and entries that nobody has held against the levels below them may keep some: then all
    /// levels are merged.
    pub fn wants_squeeze(&self) -> bool {
        let m = &self.maps;
        if m.nothing_below() || m.damaged || m.no_squeeze == Some(self.segs.changes) {
            return false;
        }
        let old = m.old.as_ref().map_or(0, |o| o.entries);
        let least = match self.need() {
            Need::None => return false,
            Need::Gentle(_) => (old / 8).max(512),
            Need::Short(_) => (old / 16).max(256),
            Need::Hard => (old / 64).max(64),
        };
        let behind = (m.grown / ENTRY_BYTES) as u64 + m.young.iter().map(|r| r.entries).sum::<u64>();
        behind >= least
    }

    /// Whether the map may have another segment: what the log needs to come back to life stays.
    pub fn may_open_map(&self) -> bool {
        let spare = self.segs.ready_count() > 2 || self.can_grow();
        spare
            && self.failed.is_none()
            && self.free_segments() > (self.geometry.reserve_segments() / 2).max(crate::core::LAST_SEGMENTS + 1)
    }

    fn map_room(&mut self, number: u64, most: u32) -> Option<Place> {
        let pages = (self.geometry.segment_bytes / PAGE_BYTES as u64) as u32;
        let (segment, page) = match self.maps.open.filter(|(_, p)| *p < pages) {
            Some(open) => open,
            None => {
                // Where the log goes on next is not for the map.
                let avoid = &self.maps.avoid;
                let id = self.segs.ready_for_map(self.opening, avoid).filter(|_| self.may_open_map())?;
                self.segs.set_state(id, SegmentState::Map);
                self.segs.map_count += 1;
                self.maps.segments.insert(id);
                self.pool.notify_one();
                (id, 0)
            }
        };
        let count = most.min(pages - page);
        self.maps.open = Some((segment, page + count));
        self.maps.writing.entry(number).or_default().insert(segment);
        Some(Place { segment, page, count })
    }

    /// Map segments without anything that is named are ready for any use.
    pub fn sweep_map(&mut self) {
        let m = &self.maps;
        let mut named: BTreeSet<u32> = m.writing.values().flatten().copied().collect();
        // Rule E5: what either checkpoint names stays.
        let kept = m.kept.iter().flatten().filter(|_| !self.segs.leaves_out(RuleMutant::KeptUsedAgain));
        let runs = m.runs().chain(kept.clone().flat_map(|k| &k.runs));
        let places = runs.flat_map(|r| r.places.list()).chain(kept.flat_map(|k| &k.manifest));
        named.extend(places.map(|p| p.segment));
        let pages = (self.geometry.segment_bytes / PAGE_BYTES as u64) as u32;
        named.extend(m.open.filter(|(_, p)| *p < pages).map(|o| o.0));
        let gone: Vec<u32> = self.maps.segments.difference(&named).copied().collect();
        for id in gone {
            self.maps.segments.remove(&id);
            self.segs.set_state(id, SegmentState::Ready);
            // No live table names it, so it may go back to the file system.
            self.segs.get_mut(id).freed_by = 1;
            self.segs.map_count -= 1;
            self.segs.freed.notify_one();
        }
    }

    /// Recovery has applied all appends up to this one: tells what the checkpoint knew to be committed by then.
    pub fn tell_committed(&mut self, applied: u64) {
        if self.maps.committed.0 > applied {
            return;
        }
        for (id, slot, to) in std::mem::take(&mut self.maps.committed.1) {
            if let Some(s) = self.shards.get_mut(&id).filter(|s| s.slot == slot) {
                s.hear_committed(to, &mut self.segs);
            }
        }
    }

    /// A newer entry, of version `by`, covers this one.
    pub fn superseded(&mut self, slot: u32, at: u32, e: &Extent, by: Version) {
        let Some(shard) = self.maps.slots.get(&slot) else { return };
        if let Some(s) = self.shards.get_mut(shard) {
            s.supersede(at, e, by, false, &mut self.segs);
        }
    }
}

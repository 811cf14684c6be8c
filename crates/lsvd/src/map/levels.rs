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

use crate::Options;
use crate::map::cache::{Cache, PageKey};
use crate::map::extents::{ENTRY_BYTES, Extent, ExtentMap, Outcome};
use crate::map::past::PastRuns;
use crate::map::run::{Place, Run};
use bytes::Bytes;
use freebs_format::disk::PAGE_BYTES;
use freebs_types::{DeviceId, Result, Sequence, ShardId, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use tokio::sync::Notify;

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
    /// Runs of history, which lookups of older versions ask besides.
    pub past: PastRuns,
    pub cache: Cache,
    pub next_run: u64,
    /// The shard of each slot. A shard that is made anew gets a new slot, so entries of the one before are no one's.
    pub slots: BTreeMap<u32, ShardId>,
    pub next_slot: u32,
    /// About the bytes that the memory tables have grown by since they were last measured.
    pub grown: usize,
    /// Bytes of the memory tables at which they are written out.
    pub table_bytes: usize,
    /// Bytes of history in memory at which it is written out.
    pub past_bytes: usize,
    /// Bytes of it at which, if it can't be written, retention windows are made shorter.
    pub history_bytes: usize,
    /// The whole map of every shard is in memory; runs are there for recovery only.
    pub resident: bool,
    /// Bytes of memory for maps that stay in it.
    resident_bytes: usize,
    /// Whether memory is bounded at all.
    pub bounded: bool,
    /// Map segments.
    pub segments: BTreeSet<u32>,
    /// The segment that is being filled, and its next page.
    pub open: Option<(u32, u32)>,
    /// Segments with pages of what is being written, by its number.
    pub writing: BTreeMap<u64, BTreeSet<u32>>,
    pub kept: [Option<Kept>; 2],
    /// There has been a checkpoint since this start began.
    pub had_checkpoint: bool,
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
            past: PastRuns::default(),
            cache: Cache::new(bytes / 4 / PAGE_BYTES),
            next_run: 1,
            slots: BTreeMap::new(),
            next_slot: 1,
            grown: 0,
            table_bytes: bytes / 16 * 6,
            past_bytes: bytes / 16,
            history_bytes: bytes / 2,
            resident: true,
            resident_bytes: bytes / 16 * 11,
            bounded: options != Options::UNBOUNDED,
            segments: BTreeSet::new(),
            open: None,
            writing: BTreeMap::new(),
            kept: [None, None],
            had_checkpoint: false,
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

    /// The runs of which lookups may ask for pages: of entries in force, and of history.
    pub fn asked(&self) -> Vec<Rc<Run>> {
        let mut all = self.levels();
        all.extend(self.past.runs().cloned());
        all
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
    pub(super) fn page(&mut self, run: &Rc<Run>, page: u32, have: &Pages, missing: &mut Missing) -> Option<Bytes> {
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
            let found = match run.members() {
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
pub(crate) fn gaps(view: &ExtentMap, start: u32, end: u32) -> Vec<(u32, u32)> {
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

//! Runs of history: superseded extents that a kept version sees, moved out of memory.
//!
//! Invariants:
//! - The same layer may be in several runs, and in memory. That with the lowest end tells how long it was in force; of trims
//!   and zeroes the newest record counts that was heard of when it was made, or else the one that was met first.
//! - A layer may still be in a run when no kept version sees it any more. Then its blocks are free, or become so when the
//!   runs are looked through.

use crate::map::extents::Layer;
use crate::map::levels::{Maps, Missing, Pages};
use crate::map::run::Run;
use crate::map::tally::{Count, GroupEnd, Tallies};
use freebs_types::{DeviceId, Result, Version};
use std::collections::VecDeque;
use std::rc::Rc;

/// Pages whose layers are looked at together, of all runs, unless they are of one block.
const TOGETHER_PAGES: usize = 32;

/// The runs of history.
#[derive(Default)]
pub(crate) struct PastRuns {
    /// Newest first.
    pub young: VecDeque<Rc<Run>>,
    pub old: Option<Rc<Run>>,
    /// State of the table of segments when something was to be written here and there was no room.
    pub no_room: Option<u64>,
    /// The last try to write something found no room.
    pub is_stuck: bool,
    /// None is written any more; for tests.
    pub is_refused: bool,
    /// Runs are to be merged, for nobody needs a good part of what they have; and about how many pages are left then.
    pub wants_merge: Option<u64>,
    /// It is being found out what nobody needs.
    pub is_looked_through: bool,
}

impl PastRuns {
    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_none()
    }

    /// From the newest to the oldest.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &Rc<Run>> {
        self.young.iter().chain(&self.old)
    }

    fn tallies(&self) -> impl Iterator<Item = &Tallies> {
        self.runs().filter_map(|r| r.past()).map(|p| &p.tallies)
    }

    /// True if a run has anything of a slot.
    pub fn has(&self, slot: u32) -> bool {
        self.tallies().any(|t| t.of(slot).layers > 0)
    }

    /// The count of a slot in all runs.
    pub fn of(&self, slot: u32) -> Count {
        self.added(|t| t.of(slot))
    }

    /// About as much of it as was in force up to versions behind `after` and up to `upto`.
    pub fn sum(&self, slot: u32, after: Version, upto: Version) -> Count {
        self.added(|t| t.sum(slot, after, upto))
    }

    fn added<F: Fn(&Tallies) -> Count>(&self, each: F) -> Count {
        let mut all = Count::default();
        self.tallies().for_each(|t| all.add(each(t)));
        all
    }

    /// Blocks by group of the version that they were in force up to, in no order.
    pub fn ends(&self, slot: u32) -> impl Iterator<Item = GroupEnd> {
        self.tallies().flat_map(move |t| t.ends(slot))
    }

    /// Layers of slots that are not among these.
    pub fn beside(&self, is_known: impl Fn(u32) -> bool) -> u64 {
        let of = |t: &Tallies| t.slots().filter(|(slot, _)| !is_known(*slot)).map(|(_, n)| n.layers).sum::<u64>();
        self.tallies().map(of).sum()
    }

    pub fn entries(&self) -> u64 {
        self.runs().map(|r| r.entries).sum()
    }
}

/// Calls `each` for the layers of some stretches of blocks, which are in order, cut to them, those of the oldest run first; up
/// to a version, if one is given, at least the newest one of each block. Names the pages that must be read before.
pub(crate) fn each_past(
    maps: &mut Maps,
    device: DeviceId,
    slot: u32,
    wanted: &[(u32, u32)],
    upto: Option<Version>,
    have: &Pages,
    mut each: impl FnMut(u32, Layer),
) -> Result<Missing> {
    let mut missing = Missing::new();
    if !maps.past.has(slot) {
        return Ok(missing);
    }
    let runs: Vec<Rc<Run>> = maps.past.runs().rev().cloned().collect();
    for run in &runs {
        let mut pages: Vec<u32> = wanted.iter().flat_map(|(a, b)| run.past_pages(slot, *a, *b, upto)).collect();
        pages.dedup();
        for page in pages {
            let Some(bytes) = maps.page(run, page, have, &mut missing) else { continue };
            run.layers_of(device, page, &bytes, |s, a, l| {
                if s != slot || upto.is_some_and(|v| l.e.version > v) {
                    return;
                }
                let end = a + l.e.len;
                let from = wanted.partition_point(|w| w.1 <= a);
                for (x, y) in wanted[from..].iter().take_while(|w| w.0 < end).map(|w| (a.max(w.0), end.min(w.1))) {
                    each(x, l.piece(x - a, y - x));
                }
            })?;
        }
    }
    Ok(missing)
}

/// The first block from `at` on that a run of history has a layer of.
pub(crate) fn next_past(
    maps: &mut Maps,
    device: DeviceId,
    slot: u32,
    at: u32,
    have: &Pages,
) -> Result<(Option<u32>, Missing)> {
    let (mut missing, mut best) = (Missing::new(), None::<u32>);
    if !maps.past.has(slot) {
        return Ok((best, missing));
    }
    let runs: Vec<Rc<Run>> = maps.past.runs().cloned().collect();
    for run in &runs {
        // A cell over the block has layers there, however many pages it takes.
        let page = run.page_of(slot, at);
        let Some(bytes) = maps.page(run, page, have, &mut missing) else { continue };
        let mut first = None;
        run.layers_of(device, page, &bytes, |s, a, l| {
            if s == slot && a + l.e.len > at && first.is_none() {
                first = Some(a.max(at));
            }
        })?;
        let behind = run.fences.get(page as usize + 1).filter(|f| (**f >> 32) as u32 == slot);
        let found = first.or(behind.map(|f| (*f as u32).max(at)));
        best = best.into_iter().chain(found).min();
    }
    Ok((best, missing))
}

/// The end of the blocks from `start` on whose layers take few pages; at most `end`, and one block at least.
pub(crate) fn past_end(past: &PastRuns, slot: u32, start: u32, end: u32) -> u32 {
    let most = TOGETHER_PAGES / past.runs().count().max(1);
    let few = |end: u32, run: &Rc<Run>| {
        let far = run.past_pages(slot, start, end, None).nth(most.max(1));
        let fence = far.map(|page| run.fences[page as usize] as u32);
        fence.map_or(end, |f| f.clamp(start + 1, end))
    };
    past.runs().filter(|_| start < end).fold(end, few)
}

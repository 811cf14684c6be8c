//! The chunk index of a shard: (chunk, block ordinal) -> place in a segment. Local to a node (END 3.4).
//!
//! Invariants: the runs of a chunk are sorted and don't overlap; the newest place of an ordinal counts. A chunk, and
//! a run of it, stays only while a map entry, or one that a cut could bring back, names a block of it: so the index is
//! as large as what is live, and names no segment that was given up.

use freebs_types::{ChunkId, ViewNumber};
use std::collections::BTreeMap;

/// Blocks `[first, first + count)` of a chunk lie one behind the other at byte `at` of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: u32,
    pub count: u32,
    pub segment: u32,
    pub at: u32,
}

pub(crate) use crate::log::place::{ORDINALS_MAX, fits};

const BLOCK: u32 = freebs_types::BLOCK as u32;

impl Run {
    fn end(&self) -> u32 {
        self.first + self.count
    }
    fn piece(&self, from: u32, to: u32) -> Self {
        Self { first: from, count: to - from, segment: self.segment, at: self.at + (from - self.first) * BLOCK }
    }
}

/// One bit per ordinal: named by the map, or by an entry that a cut could bring back.
#[derive(Clone, Debug, Default)]
struct Bits {
    words: Vec<u64>,
    live: u32,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    runs: Vec<Run>,
    bits: Bits,
}

impl Bits {
    /// Calls `word(index, mask)` for the words that cover a range.
    fn words(first: u32, end: u32, mut word: impl FnMut(usize, u64)) {
        let mut at = first;
        while at < end {
            let to = ((at | 63) + 1).min(end);
            let n = to - at;
            let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << (at & 63) };
            word(at as usize / 64, mask);
            at = to;
        }
    }

    fn ones(&self, first: u32, end: u32) -> i64 {
        let mut n = 0;
        Self::words(first, end, |i, mask| n += i64::from((self.words.get(i).unwrap_or(&0) & mask).count_ones()));
        n
    }

    /// Calls `each(first, count)` for the stretches of ones in a range.
    fn stretches(&self, first: u32, end: u32, each: &mut impl FnMut(u32, u32)) {
        let (mut at, mut open) = (first, None);
        while at < end {
            let word = self.words.get(at as usize / 64).unwrap_or(&0) >> (at & 63);
            let to = ((at | 63) + 1).min(end);
            let (here, set) = if word & 1 == 1 { (word.trailing_ones(), true) } else { (word.trailing_zeros(), false) };
            let next = (at + here).min(to);
            match (set, open) {
                (true, None) => open = Some(at),
                (false, Some(from)) => {
                    each(from, at - from);
                    open = None;
                }
                _ => {}
            }
            at = next;
        }
        if let Some(from) = open {
            each(from, end - from);
        }
    }

    /// Calls `each(first, count)` for the stretches of zeroes in a range.
    fn gaps(&self, first: u32, end: u32, mut each: impl FnMut(u32, u32)) {
        let mut at = first;
        self.stretches(first, end, &mut |from, n| {
            if from > at {
                each(at, from - at);
            }
            at = from + n;
        });
        if end > at {
            each(at, end - at);
        }
    }

    /// Sets or clears a range; gives back how many bits changed.
    fn mark(&mut self, first: u32, end: u32, to: bool) -> i64 {
        let wanted = (end as usize).div_ceil(64);
        if to && self.words.len() < wanted {
            self.words.resize(wanted, 0);
        }
        let mut n = 0;
        let words = &mut self.words;
        Self::words(first, end, |i, mask| {
            let Some(w) = words.get_mut(i) else { return };
            let change = if to { !*w & mask } else { *w & mask };
            *w ^= change;
            n += i64::from(change.count_ones());
        });
        self.live = if to { self.live + n as u32 } else { self.live - n as u32 };
        assert!(self.live as usize <= self.words.len() * 64, "no more bits are set than there are");
        n
    }
}

impl Chunk {
    /// Takes out the runs that overlap a range and have no live block.
    fn drop_dead(&mut self, first: u32, end: u32) {
        let mut i = self.runs.partition_point(|r| r.end() <= first);
        while let Some(r) = self.runs.get(i).filter(|r| r.first < end) {
            if self.bits.ones(r.first, r.end()) == 0 {
                self.runs.remove(i);
            } else {
                i += 1;
            }
        }
    }
}

/// The `n` runs from `from` on lie in order between their neighbours, and don't overlap.
fn assert_sorted(runs: &[Run], from: usize, n: usize) {
    let near = &runs[from.saturating_sub(1)..(from + n + 1).min(runs.len())];
    assert!(near.iter().all(|r| r.count > 0), "a run has a block");
    assert!(near.is_sorted_by(|a, b| a.end() <= b.first), "the runs of a chunk are sorted and don't overlap");
}

/// The places of a range, in order, as far as there are any; `true` if that is all of it.
fn lookup(runs: &[Run], first: u32, end: u32, mut each: impl FnMut(Run)) -> bool {
    let mut covered = 0;
    for r in &runs[runs.partition_point(|r| r.end() <= first)..] {
        if r.first >= end {
            break;
        }
        let piece = r.piece(r.first.max(first), r.end().min(end));
        covered += piece.count;
        each(piece);
    }
    covered == end - first
}

/// Chunks of one shard. Each method that changes what is live tells `live(segment, blocks up or down)`; so a
/// segment's count is always the number of live bits in the runs that lie in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkIndex {
    chunks: BTreeMap<ChunkId, Chunk>,
    /// A test leaves rule E8 out.
    pub by_counter: bool,
}

impl ChunkIndex {
    /// Rule E8: a chunk is named by the view that opened it and its counter there.
    fn name(&self, chunk: ChunkId) -> ChunkId {
        if self.by_counter { ChunkId { view: ViewNumber(0), ..chunk } } else { chunk }
    }

    fn get(&self, chunk: ChunkId) -> Option<&Chunk> {
        self.chunks.get(&self.name(chunk))
    }

    fn get_mut(&mut self, chunk: ChunkId) -> Option<&mut Chunk> {
        let name = self.name(chunk);
        self.chunks.get_mut(&name)
    }

    /// Whether any block of the range has a place already.
    #[cfg(test)]
    pub fn has_any(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        self.get(chunk).is_some_and(|c| {
            let i = c.runs.partition_point(|r| r.end() <= first);
            c.runs.get(i).is_some_and(|r| r.first < first + count)
        })
    }

    /// Gives the blocks of `run` their place; places that they had before are forgotten.
    pub fn place(&mut self, chunk: ChunkId, run: Run, mut live: impl FnMut(u32, i64)) {
        assert!(fits(run.first, run.count), "ordinals are checked before they get here");
        let c = self.chunks.entry(self.name(chunk)).or_default();
        let n = c.bits.ones(run.first, run.end());
        if n > 0 {
            // Places without a live block may be of segments that are gone; nobody counts there.
            lookup(&c.runs, run.first, run.end(), |old| live(old.segment, -c.bits.ones(old.first, old.end())));
            live(run.segment, n);
        }
        let runs = &mut c.runs;
        if let Some(last) = runs.last_mut()
            && last.end() == run.first
            && last.segment == run.segment
            && last.at + last.count * BLOCK == run.at
        {
            last.count += run.count;
            return;
        }
        let from = runs.partition_point(|r| r.end() <= run.first);
        let to = runs.partition_point(|r| r.first < run.end());
        if from == to {
            runs.insert(from, run);
            assert_sorted(runs, from, 1);
            return;
        }
        let (left, right) = (runs[from], runs[to - 1]);
        let mut new = Vec::with_capacity(3);
        if left.first < run.first && c.bits.ones(left.first, run.first) > 0 {
            new.push(left.piece(left.first, run.first));
        }
        new.push(run);
        if right.end() > run.end() && c.bits.ones(run.end(), right.end()) > 0 {
            new.push(right.piece(run.end(), right.end()));
        }
        let n = new.len();
        runs.splice(from..to, new);
        assert_sorted(runs, from, n);
    }

    /// Forgets places in a range that nothing names, after what was placed there had its chance to be named.
    pub fn settle(&mut self, chunk: ChunkId, first: u32, count: u32) {
        let Some(c) = self.get_mut(chunk) else { return };
        c.drop_dead(first, first + count);
        if c.bits.live == 0 {
            let name = self.name(chunk);
            self.chunks.remove(&name);
        }
    }

    /// The blocks of a range that nothing names.
    pub fn dead_in(&self, chunk: ChunkId, first: u32, count: u32, mut each: impl FnMut(u32, u32)) {
        match self.get(chunk) {
            Some(c) => c.bits.gaps(first, first + count, each),
            None => each(first, count),
        }
    }

    /// The live blocks of a range that lie one behind the other from byte `at` of a segment on, as if all of it lay
    /// there: ordinal and number of each stretch.
    pub fn live_at(&self, chunk: ChunkId, at: Run, mut each: impl FnMut(u32, u32)) {
        let Some(c) = self.get(chunk) else { return };
        lookup(&c.runs, at.first, at.end(), |r| {
            if r.segment == at.segment && r.at == at.at + (r.first - at.first) * BLOCK {
                c.bits.stretches(r.first, r.end(), &mut each);
            }
        });
    }

    /// The places of a range of blocks, in order. `false` if some block has none.
    pub fn lookup(&self, chunk: ChunkId, first: u32, count: u32, each: impl FnMut(Run)) -> bool {
        self.get(chunk).is_some_and(|c| lookup(&c.runs, first, first + count, each))
    }

    /// Blocks that are named from now on.
    pub fn acquire(&mut self, chunk: ChunkId, first: u32, count: u32, mut live: impl FnMut(u32, i64)) {
        let Some(Chunk { runs, bits }) = self.get_mut(chunk) else { return };
        lookup(runs, first, first + count, |r| live(r.segment, bits.mark(r.first, r.end(), true)));
    }

    /// Blocks that nobody names any more. A chunk without any is forgotten.
    pub fn release(&mut self, chunk: ChunkId, first: u32, count: u32, mut live: impl FnMut(u32, i64)) {
        let Some(Chunk { runs, bits }) = self.get_mut(chunk) else { return };
        lookup(runs, first, first + count, |r| live(r.segment, -bits.mark(r.first, r.end(), false)));
        self.settle(chunk, first, count);
    }

    /// Chunks behind `after`, with their places and live bits.
    pub fn export(&self, after: Option<ChunkId>) -> impl Iterator<Item = (ChunkId, &[Run], &[u64])> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let all = self.chunks.range((from, std::ops::Bound::Unbounded));
        all.map(|(id, c)| (*id, &c.runs[..], &c.bits.words[..]))
    }

    /// Puts back a chunk that was exported. Bits without a place are dropped.
    pub fn import(&mut self, id: ChunkId, runs: Vec<Run>, words: Vec<u64>, mut live: impl FnMut(u32, i64)) {
        let mut c = Chunk { runs, bits: Bits::default() };
        let there = Bits { words, live: 0 };
        for r in &c.runs {
            for at in r.first..r.end() {
                if there.ones(at, at + 1) == 1 {
                    c.bits.mark(at, at + 1, true);
                }
            }
            live(r.segment, c.bits.ones(r.first, r.end()));
        }
        assert!(c.runs.is_sorted_by(|a, b| a.end() <= b.first), "what was exported is sorted");
        c.runs.retain(|r| c.bits.ones(r.first, r.end()) > 0);
        if c.bits.live > 0 {
            self.chunks.insert(id, c);
        }
    }

    /// Forgets everything: the shard is gone.
    pub fn clear(&mut self, mut live: impl FnMut(u32, i64)) {
        for c in std::mem::take(&mut self.chunks).into_values() {
            for r in &c.runs {
                live(r.segment, -c.bits.ones(r.first, r.end()));
            }
        }
    }

    /// Whether all blocks of a range have a place and are live; for checks.
    pub fn all_live(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        self.get(chunk).is_some_and(|c| {
            c.bits.ones(first, first + count) == i64::from(count) && lookup(&c.runs, first, first + count, |_| ())
        })
    }

    /// Live blocks per segment, counted anew; for checks.
    pub fn recount(&self, mut live: impl FnMut(u32, i64)) {
        for c in self.chunks.values() {
            for r in &c.runs {
                live(r.segment, c.bits.ones(r.first, r.end()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, count: u32, segment: u32, at: u32) -> Run {
        Run { first, count, segment, at: at * BLOCK }
    }
    fn found(c: &ChunkIndex, first: u32, count: u32) -> Option<Vec<Run>> {
        let mut out = Vec::new();
        c.lookup(ChunkId::new(1, 0), first, count, |r| out.push(r)).then_some(out)
    }

    #[test]
    fn runs_join_split_and_move() {
        let id = ChunkId::new(1, 0);
        let mut c = ChunkIndex::default();
        c.place(id, run(0, 4, 1, 10), |_, _| ());
        c.place(id, run(4, 4, 1, 14), |_, _| ());
        c.acquire(id, 0, 8, |_, _| ());
        assert_eq!(found(&c, 1, 6), Some(vec![run(1, 6, 1, 11)]));
        assert_eq!(found(&c, 7, 2), None);
        c.place(id, run(10, 2, 2, 0), |_, _| ());
        c.acquire(id, 10, 2, |_, _| ());
        assert_eq!(found(&c, 7, 4), None, "there is a gap");
        c.place(id, run(3, 2, 5, 7), |_, _| ());
        assert_eq!(found(&c, 0, 8), Some(vec![run(0, 3, 1, 10), run(3, 2, 5, 7), run(5, 3, 1, 15)]));
        assert!(c.has_any(id, 8, 3) && !c.has_any(id, 8, 2) && !c.has_any(id, 12, 9));
        c.place(id, run(0, 12, 9, 100), |_, _| ());
        assert_eq!(found(&c, 0, 12), Some(vec![run(0, 12, 9, 100)]));
        c.release(id, 1, 10, |_, _| ());
        c.place(id, run(0, 1, 3, 0), |_, _| ());
        assert_eq!(found(&c, 1, 1), Some(vec![run(1, 1, 9, 101)]), "still the place of the last block's run");
        c.place(id, run(11, 1, 3, 1), |_, _| ());
        assert_eq!(found(&c, 1, 1), None, "a place that no live block has is forgotten");
        assert_eq!(found(&c, 11, 1), Some(vec![run(11, 1, 3, 1)]));
    }

    #[test]
    fn live_stretches_are_those_at_the_place_that_is_asked_for() {
        let id = ChunkId::new(1, 0);
        let mut c = ChunkIndex::default();
        let live = |c: &ChunkIndex, at: Run| {
            let mut out = Vec::new();
            c.live_at(id, at, |first, n| out.push((first, n)));
            out
        };
        c.place(id, run(10, 200, 1, 50), |_, _| ());
        c.acquire(id, 10, 200, |_, _| ());
        assert_eq!(live(&c, run(10, 200, 1, 50)), [(10, 200)]);
        c.release(id, 60, 10, |_, _| ());
        c.release(id, 128, 1, |_, _| ());
        assert_eq!(live(&c, run(10, 200, 1, 50)), [(10, 50), (70, 58), (129, 81)]);
        assert_eq!(live(&c, run(20, 45, 1, 60)), [(20, 40)]);
        assert_eq!(live(&c, run(10, 200, 1, 51)), [], "another byte");
        assert_eq!(live(&c, run(10, 200, 2, 50)), [], "another segment");
        c.place(id, run(100, 4, 2, 7), |_, _| ());
        assert_eq!(live(&c, run(10, 200, 1, 50)), [(10, 50), (70, 30), (104, 24), (129, 81)]);
        assert_eq!(live(&c, run(100, 4, 2, 7)), [(100, 4)]);
        let mut dead = Vec::new();
        c.dead_in(id, 55, 80, |first, n| dead.push((first, n)));
        assert_eq!(dead, [(60, 10), (128, 1)]);
    }

    #[test]
    fn live_blocks_follow_their_place() {
        let id = ChunkId::new(1, 0);
        let mut c = ChunkIndex::default();
        let mut live = [0i64; 10];
        c.place(id, run(0, 200, 1, 0), |s, n| live[s as usize] += n);
        c.acquire(id, 60, 80, |s, n| live[s as usize] += n);
        c.acquire(id, 60, 10, |s, n| live[s as usize] += n);
        assert_eq!(live[1], 80);
        c.place(id, run(100, 50, 2, 0), |s, n| live[s as usize] += n);
        assert_eq!(live[1..3], [40, 40]);
        c.release(id, 50, 60, |s, n| live[s as usize] += n);
        assert_eq!(live[1..3], [0, 30]);
        let mut again = [0i64; 10];
        c.recount(|s, n| again[s as usize] += n);
        assert_eq!(live, again);
        c.release(id, 0, 200, |s, n| live[s as usize] += n);
        assert_eq!(live, [0; 10]);
        assert!(!c.has_any(id, 0, 200), "a chunk without a live block is forgotten");
    }
}

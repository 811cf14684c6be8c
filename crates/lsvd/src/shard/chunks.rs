//! The chunk index of a shard: (chunk, block ordinal) -> place in a segment. Local to a node (END 3.4).
//!
//! Invariants: the runs of a chunk are sorted and don't overlap; the newest place of an ordinal counts. A chunk, and
//! a run of it, stays only while a map entry, or one that a cut could bring back, names a block of it: so the index is
//! as large as what is live, and names no segment that was given up.

pub(crate) use crate::log::place::{ORDINALS_MAX, fits};
pub(crate) use crate::shard::places::Run;
use crate::shard::places::{BLOCK, BlockPlaces, Packing};
use freebs_types::{ChunkId, ViewNumber};
use std::collections::BTreeMap;

/// One bit per ordinal: named by the map, or by an entry that a cut could bring back.
#[derive(Clone, Debug, Default)]
struct Bits {
    words: Vec<u64>,
    live: u32,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    places: BlockPlaces,
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

/// Calls `each` for the places of a range, in order, as far as there are any; `true` if that is all of it.
fn lookup(places: &BlockPlaces, packing: Packing, first: u32, end: u32, mut each: impl FnMut(Run)) -> bool {
    let mut covered = 0;
    places.each(packing, first, end, |r| {
        covered += r.count;
        each(r);
    });
    covered == end - first
}

/// Chunks of one shard. Each method that changes what is live tells `live(segment, blocks up or down)`; so a
/// segment's count is always the number of live bits in the runs that lie in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkIndex {
    chunks: BTreeMap<ChunkId, Chunk>,
    /// How places are packed.
    pub packing: Packing,
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
        let Some(c) = self.get(chunk) else { return false };
        let mut any = false;
        c.places.each(self.packing, first, first + count, |_| any = true);
        any
    }

    /// Gives the blocks of `run` their place; places that they had before are forgotten.
    pub fn place(&mut self, chunk: ChunkId, run: Run, mut live: impl FnMut(u32, i64)) {
        assert!(fits(run.first, run.count), "ordinals are checked before they get here");
        let (name, packing) = (self.name(chunk), self.packing);
        let c = self.chunks.entry(name).or_default();
        let n = c.bits.ones(run.first, run.end());
        if n > 0 {
            // Places without a live block may be of segments that are gone; nobody counts there.
            let count = |old: Run| live(old.segment, -c.bits.ones(old.first, old.end()));
            c.places.each(packing, run.first, run.end(), count);
            live(run.segment, n);
        }
        c.places.put(packing, run, |first, end| c.bits.ones(first, end) > 0);
    }

    /// Forgets places in a range that nothing names, after what was placed there had its chance to be named.
    pub fn settle(&mut self, chunk: ChunkId, first: u32, count: u32) {
        let (name, packing) = (self.name(chunk), self.packing);
        let Some(Chunk { places, bits }) = self.chunks.get_mut(&name) else { return };
        if bits.live == 0 {
            self.chunks.remove(&name);
            return;
        }
        places.drop_dead(first, first + count, |first, end| bits.ones(first, end) > 0);
        places.unpack(packing, bits.live);
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
        lookup(&c.places, self.packing, at.first, at.end(), |r| {
            if r.segment == at.segment && r.at == at.at + (r.first - at.first) * BLOCK {
                c.bits.stretches(r.first, r.end(), &mut each);
            }
        });
    }

    /// The places of a range of blocks, in order. `false` if some block has none.
    pub fn lookup(&self, chunk: ChunkId, first: u32, count: u32, each: impl FnMut(Run)) -> bool {
        self.get(chunk).is_some_and(|c| lookup(&c.places, self.packing, first, first + count, each))
    }

    /// Blocks that are named from now on.
    pub fn acquire(&mut self, chunk: ChunkId, first: u32, count: u32, mut live: impl FnMut(u32, i64)) {
        let packing = self.packing;
        let Some(Chunk { places, bits }) = self.get_mut(chunk) else { return };
        places.each(packing, first, first + count, |r| live(r.segment, bits.mark(r.first, r.end(), true)));
    }

    /// Blocks that nobody names any more. A chunk without any is forgotten.
    pub fn release(&mut self, chunk: ChunkId, first: u32, count: u32, mut live: impl FnMut(u32, i64)) {
        let packing = self.packing;
        let Some(Chunk { places, bits }) = self.get_mut(chunk) else { return };
        places.each(packing, first, first + count, |r| live(r.segment, -bits.mark(r.first, r.end(), false)));
        self.settle(chunk, first, count);
    }

    /// Chunks behind `after`, with their places and live bits.
    pub fn export(&self, after: Option<ChunkId>) -> impl Iterator<Item = (ChunkId, &BlockPlaces, &[u64])> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let all = self.chunks.range((from, std::ops::Bound::Unbounded));
        all.map(|(id, c)| (*id, &c.places, &c.bits.words[..]))
    }

    /// Puts back a chunk that was exported. Bits without a place are dropped.
    pub fn import(
        &mut self,
        id: ChunkId,
        was: (BlockPlaces, Packing),
        words: Vec<u64>,
        mut live: impl FnMut(u32, i64),
    ) {
        let mut c = Chunk { places: was.0, bits: Bits::default() };
        let there = Bits { words, live: 0 };
        c.places.repack(was.1, self.packing);
        let Chunk { places, bits } = &mut c;
        places.each(self.packing, 0, ORDINALS_MAX, |r| {
            there.stretches(r.first, r.end(), &mut |from, n| {
                bits.mark(from, from + n, true);
            });
            live(r.segment, bits.ones(r.first, r.end()));
        });
        places.drop_dead(0, ORDINALS_MAX, |first, end| bits.ones(first, end) > 0);
        places.unpack(self.packing, bits.live);
        if c.bits.live > 0 {
            self.chunks.insert(id, c);
        }
    }

    /// Forgets everything: the shard is gone.
    pub fn clear(&mut self, mut live: impl FnMut(u32, i64)) {
        for c in std::mem::take(&mut self.chunks).into_values() {
            c.places.each(self.packing, 0, ORDINALS_MAX, |r| live(r.segment, -c.bits.ones(r.first, r.end())));
        }
    }

    /// Whether all blocks of a range have a place and are live; for checks.
    pub fn all_live(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        self.get(chunk).is_some_and(|c| {
            let all = c.bits.ones(first, first + count) == i64::from(count);
            all && lookup(&c.places, self.packing, first, first + count, |_| ())
        })
    }

    /// Live blocks per segment, counted anew; for checks.
    pub fn recount(&self, mut live: impl FnMut(u32, i64)) {
        for c in self.chunks.values() {
            c.places.each(self.packing, 0, ORDINALS_MAX, |r| live(r.segment, c.bits.ones(r.first, r.end())));
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

    /// Packed or not, the same blocks live at the same places, whatever happens to them; and so they do when they were
    /// exported and put back, by one that packs in the same way, in another, or not at all.
    #[test]
    fn packed_places_are_the_same_places() {
        let packings =
            [(4096, 4096), (512, 32768), (1024, 20_000)].map(|(sector, per_segment)| Packing { sector, per_segment });
        let id = ChunkId::new(1, 0);
        let mut tables = 0;
        for seed in 0..30u64 {
            let mut n = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = |below: u32| {
                n ^= n << 13;
                n ^= n >> 7;
                n ^= n << 17;
                ((n >> 20) % u64::from(below)) as u32
            };
            let packing = packings[seed as usize % 3];
            let mut both = [ChunkIndex::default(), ChunkIndex { packing, ..ChunkIndex::default() }];
            let mut live = [[0i64; 40]; 2];
            let span = [40, 300, 5000][seed as usize / 3 % 3];
            for _ in 0..1500 {
                let (first, count) = (random(span), 1 + random(3) * random(4));
                let step = random(10);
                // Now and then a place that no cell can say.
                let odd = u32::from(random(400) == 0);
                let run = Run { first, count, segment: random(40), at: random(2000) * 8192 + odd };
                for (c, live) in both.iter_mut().zip(&mut live) {
                    let mut live = |s: u32, n: i64| live[s as usize] += n;
                    if step < 6 {
                        c.place(id, run, &mut live);
                        c.acquire(id, first, count, &mut live);
                    } else {
                        c.release(id, first, count, &mut live);
                    }
                }
                let table = both[1].get(id).is_some_and(|c| matches!(c.places, BlockPlaces::Cells { .. }));
                tables += u32::from(table);
            }
            let [plain, packed] = &both;
            assert_eq!(live[0], live[1], "seed {seed}");
            for other in packings.into_iter().chain([Packing::default()]) {
                let mut again = ChunkIndex { packing: other, ..ChunkIndex::default() };
                let mut count = [0i64; 40];
                for (id, places, words) in packed.export(None) {
                    let was = (places.clone(), packing);
                    again.import(id, was, words.to_vec(), |s, n| count[s as usize] += n);
                }
                assert_eq!(count, live[0], "seed {seed}");
                for at in 0..span + 12 {
                    let lives = plain.all_live(id, at, 1);
                    assert_eq!((packed.all_live(id, at, 1), again.all_live(id, at, 1)), (lives, lives), "seed {seed}");
                    if lives {
                        assert_eq!(found(packed, at, 1), found(plain, at, 1), "seed {seed}, block {at}");
                        assert_eq!(found(&again, at, 1), found(plain, at, 1), "seed {seed}, block {at}");
                    }
                }
            }
        }
        assert!(tables > 400, "{tables} steps with a table");
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

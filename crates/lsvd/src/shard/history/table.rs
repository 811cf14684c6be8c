//! Superseded extents, each with the versions at which it was in force.
//!
//! Invariants:
//! - Cells don't overlap. The layers of a cell cover all of it and are sorted by (version, sequence); the versions of a
//!   layer end where those of the next one begin, at the latest.
//! - Layers come in any order, and more than once (rule E2): the same layers give the same table.
//! - Between two layers there may have been others that nobody needs. So a layer may seem to have been in force longer
//!   than it was, but never at a version that is kept.

use crate::map::extents::{Extent, ExtentMap, Layer, Outcome};
use crate::map::tally::{self, ENDS_GROUP};
use freebs_types::{Sequence, Version};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// The name of a layer: its cell's first block, and its version and sequence.
pub(crate) type LayerName = (u32, (Version, Sequence));

/// What becomes of extents that are brought: `needs(from, to)`, and who is told of those that are not needed.
pub(crate) struct Judge<'a> {
    pub needs: &'a dyn Fn(Version, Version) -> bool,
    pub gone: &'a mut dyn FnMut(Extent),
    /// Whether they have just been recorded. What is found later in a level of the map may name an older record.
    pub recorded: bool,
    /// They lie below all that is here.
    pub is_below: bool,
    /// The level that they come from, if levels are merged; else 0.
    pub level: u16,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    len: u32,
    layers: Vec<Layer>,
}

impl Cell {
    fn piece(&self, skip: u32, len: u32) -> Self {
        let layers = self.layers.iter().map(|l| l.piece(skip, len));
        Self { len, layers: layers.collect() }
    }
}

/// Data blocks by the version that took their place, singly and in groups.
#[derive(Clone, Debug, Default)]
struct Ends {
    each: BTreeMap<u64, u64>,
    groups: BTreeMap<u64, u64>,
}

impl Ends {
    fn change(&mut self, to: Version, blocks: u32, is_more: bool) {
        for (map, key) in [(&mut self.each, to.0), (&mut self.groups, tally::group(to))] {
            let n = map.entry(key).or_default();
            *n = if is_more { *n + u64::from(blocks) } else { *n - u64::from(blocks) };
            if *n == 0 {
                map.remove(&key);
            }
        }
    }

    /// The highest version from which on there are more than `blocks`; and how many versions and groups were looked at.
    fn with_more_than(&self, blocks: u64) -> (Option<Version>, usize) {
        let (mut sum, mut looks) = (0, 0);
        for (group, n) in self.groups.iter().rev() {
            looks += 1;
            if sum + n <= blocks {
                sum += n;
                continue;
            }
            let first = group * ENDS_GROUP;
            for (to, n) in self.each.range(first..=first + (ENDS_GROUP - 1)).rev() {
                looks += 1;
                sum += n;
                if sum > blocks {
                    return (Some(Version(*to)), looks);
                }
            }
        }
        (None, looks)
    }
}

/// The counts of all layers.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Data blocks.
    blocks: u64,
    layers: usize,
    ends: Ends,
}

impl Tally {
    fn add(&mut self, l: &Layer) {
        self.layers += 1;
        if l.e.is_data() {
            self.blocks += u64::from(l.e.len);
            self.ends.change(l.to, l.e.len, true);
        }
    }

    fn remove(&mut self, l: &Layer) {
        self.layers -= 1;
        if l.e.is_data() {
            self.blocks -= u64::from(l.e.len);
            self.ends.change(l.to, l.e.len, false);
        }
    }

    /// A layer was in force up to `to` and no longer.
    fn shorten(&mut self, l: &mut Layer, to: Version) {
        if to < l.to {
            self.remove(l);
            l.to = to;
            self.add(l);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    cells: BTreeMap<u32, Cell>,
    tally: Tally,
}

impl Table {
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
    pub fn blocks(&self) -> u64 {
        self.tally.blocks
    }
    pub fn len(&self) -> usize {
        self.tally.layers
    }

    fn put_cell(&mut self, start: u32, c: Cell) {
        if !c.layers.is_empty() {
            c.layers.iter().for_each(|l| self.tally.add(l));
            self.cells.insert(start, c);
        }
    }

    fn take(&mut self, start: u32) -> Option<Cell> {
        let c = self.cells.remove(&start)?;
        c.layers.iter().for_each(|l| self.tally.remove(l));
        Some(c)
    }

    /// Makes a cell begin at `at` if one lies over it.
    fn split(&mut self, at: u32) {
        let over = self.cells.range(..at).next_back().filter(|(s, c)| **s + c.len > at).map(|(s, _)| *s);
        if let Some((start, c)) = over.and_then(|s| Some((s, self.take(s)?))) {
            self.put_cell(start, c.piece(0, at - start));
            self.put_cell(at, c.piece(at - start, start + c.len - at));
        }
    }

    /// Adds an extent that `to` has taken the place of, as far as it is needed. What it shows of others, that they
    /// were in force for a shorter time, may make them unneeded.
    pub fn insert(&mut self, start: u32, e: &Extent, to: Version, judge: &mut Judge<'_>) {
        let end = start + e.len;
        if self.cells.range(..end).next_back().is_none_or(|(s, c)| *s + c.len <= start) {
            // The most common case: nothing lies there.
            if (judge.needs)(e.version, to) {
                let l = Layer { e: e.clone(), to, found: !judge.recorded, level: judge.level };
                self.put_cell(start, Cell { len: e.len, layers: vec![l] });
            } else {
                (judge.gone)(e.clone());
            }
            return;
        }
        self.split(start);
        self.split(end);
        let here: Vec<u32> = self.cells.range(start..end).map(|(s, _)| *s).collect();
        let mut at = start;
        for s in here {
            if at < s {
                self.fill(at, e.piece(at - start, s - at), to, judge);
            }
            let c = self.cells.get_mut(&s).expect("just seen");
            at = s + c.len;
            Self::join(&mut c.layers, e.piece(s - start, c.len), to, judge, &mut self.tally);
            if c.layers.is_empty() {
                self.cells.remove(&s);
            }
        }
        if at < end {
            self.fill(at, e.piece(at - start, end - at), to, judge);
        }
    }

    fn fill(&mut self, start: u32, e: Extent, to: Version, judge: &mut Judge<'_>) {
        if (judge.needs)(e.version, to) {
            let l = Layer { e, to, found: !judge.recorded, level: judge.level };
            self.put_cell(start, Cell { len: l.e.len, layers: vec![l] });
        } else {
            (judge.gone)(e);
        }
    }

    fn join(layers: &mut Vec<Layer>, e: Extent, to: Version, judge: &mut Judge<'_>, tally: &mut Tally) {
        let i = layers.partition_point(|l| l.e.key() < e.key());
        let to = layers.get(i).filter(|l| l.e.key() > e.key()).map_or(to, |next| to.min(next.e.version));
        if let Some(same) = layers.get_mut(i).filter(|l| l.e.key() == e.key()) {
            // The same trim or zero is at home in the later record.
            tally.shorten(same, to);
            // A record that was heard of when it was made counts more than one that was met in a level of the map, which may be an
            // old one. Of the former the last one counts, of the latter the first.
            let is_better = match (judge.recorded, !same.found) {
                (true, true) => !judge.is_below && judge.level >= same.level,
                (false, false) => judge.is_below || judge.level < same.level,
                (recorded, _) => recorded,
            };
            if is_better {
                (same.found, same.level) = (!judge.recorded, judge.level);
                if !e.is_data() {
                    same.e.offset = e.offset;
                }
            }
            return;
        }
        let from = e.version;
        if (judge.needs)(from, to) {
            let layer = Layer { e, to, found: !judge.recorded, level: judge.level };
            tally.add(&layer);
            layers.insert(i, layer);
        } else {
            (judge.gone)(e);
        }
        if let Some(before) = i.checked_sub(1).map(|i| &mut layers[i]).filter(|b| b.to > from) {
            tally.shorten(before, from);
            if !(judge.needs)(before.e.version, from) {
                let layer = layers.remove(i - 1);
                tally.remove(&layer);
                (judge.gone)(layer.e);
            }
        }
    }

    /// Puts back a layer that was exported, whoever needs it. Of levels one above the other those of the lowest come first, or
    /// say which one they are of.
    pub fn put_back(&mut self, start: u32, l: &Layer) {
        self.put(start, l, false);
    }

    /// The same of a layer that lies below all that is here.
    pub fn put_below(&mut self, start: u32, l: &Layer) {
        self.put(start, l, true);
    }

    fn put(&mut self, start: u32, l: &Layer, is_below: bool) {
        let (recorded, level) = (!l.found, l.level);
        let judge = &mut Judge { needs: &|_, _| true, gone: &mut |_| (), recorded, is_below, level };
        self.insert(start, &l.e, l.to, judge);
    }

    /// Drops the first cells, with `most` layers or more; whether there are others.
    pub fn drop_some(&mut self, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            let Some((_, c)) = self.cells.pop_first() else { break };
            left = left.saturating_sub(c.layers.len());
        }
        !self.cells.is_empty()
    }

    /// The first cell from a block on, its length, and its layers in order of versions.
    pub fn cell(&self, from: u32) -> Option<(u32, u32, &[Layer])> {
        self.cells.range(from..).next().map(|(s, c)| (*s, c.len, &c.layers[..]))
    }

    /// Takes the first cell off if it ends at a block, or before it; and cuts one off there if it goes on behind it.
    pub fn pop_before(&mut self, end: u32) -> Option<(u32, u32, Vec<Layer>)> {
        let first = self.cells.keys().next().copied().filter(|s| *s < end)?;
        self.split(end);
        self.take(first).map(|c| (first, c.len, c.layers))
    }

    /// Drops what is no longer needed, of cells from `at` on with `most` layers or more. Where to go on, if there are more.
    pub fn prune(&mut self, at: u32, most: usize, judge: &mut Judge<'_>) -> Option<u32> {
        let (mut starts, mut left) = (Vec::new(), most);
        for (s, c) in self.cells.range(at..) {
            if left == 0 {
                break;
            }
            starts.push(*s);
            left = left.saturating_sub(c.layers.len());
        }
        let next = starts.last().and_then(|s| self.cells.range((Excluded(*s), Unbounded)).next()).map(|(s, _)| *s);
        for s in starts {
            let Some(cell) = self.cells.get_mut(&s) else { continue };
            for l in cell.layers.extract_if(.., |l| !(judge.needs)(l.e.version, l.to)) {
                self.tally.remove(&l);
                (judge.gone)(l.e);
            }
            if cell.layers.is_empty() {
                self.cells.remove(&s);
            }
        }
        next
    }

    /// All layers of cells that overlap `[start, end)`, clipped to it.
    pub fn range(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, Layer)> {
        let from =
            self.cells.range(..start).next_back().filter(|(s, c)| **s + c.len > start).map_or(start, |(s, _)| *s);
        let cells = if from < end { from..end } else { end..end };
        self.cells.range(cells).flat_map(move |(s, c)| {
            let (a, b) = ((*s).max(start), (*s + c.len).min(end));
            c.layers.iter().map(move |l| (a, l.piece(a - *s, b - a)))
        })
    }

    /// Adds to a view what was in force at a version, as far as it is here.
    pub fn view_at(&self, start: u32, end: u32, version: Version, view: &mut ExtentMap) {
        let mut out = Outcome::default();
        for (a, l) in self.range(start, end).filter(|(_, l)| l.e.version <= version) {
            view.insert(a, l.e, &mut out);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Layer)> {
        self.cells.iter().flat_map(|(s, c)| c.layers.iter().map(|l| (*s, l)))
    }

    /// The layers behind one, each with its cell's first block, in order of blocks and versions. Cells may have been split
    /// since that one was given.
    pub fn export(&self, after: Option<LayerName>) -> impl Iterator<Item = (u32, &Layer)> {
        let cells = self.cells.range(after.map_or(0, |a| a.0)..);
        cells.flat_map(move |(s, c)| {
            let known = after.filter(|a| a.0 == *s).map_or(0, |a| c.layers.partition_point(|l| l.e.key() <= a.1));
            c.layers[known..].iter().map(move |l| (*s, l))
        })
    }

    /// The end of the first cells from `at` on that have `most` layers or more together; at most `end`.
    pub fn end_of(&self, at: u32, end: u32, most: usize) -> u32 {
        let before = self.cells.range(..at).next_back().filter(|(s, c)| **s + c.len > at);
        let mut layers = 0;
        for (s, c) in before.into_iter().chain(self.cells.range(at..end.max(at))) {
            layers += c.layers.len();
            if layers >= most {
                return (*s + c.len).min(end);
            }
        }
        end
    }

    /// The first block from `at` on that has a layer.
    pub fn next(&self, at: u32) -> Option<u32> {
        let before = self.cells.range(..at).next_back().filter(|(s, c)| **s + c.len > at).map(|_| at);
        before.or_else(|| self.cells.range(at..).next().map(|(s, _)| *s))
    }

    /// The highest version at which the window may begin so that at most so many data blocks are kept beside what is
    /// pinned; `None` if all of them may stay.
    pub fn retain_for(&self, blocks: u64) -> Option<Version> {
        self.tally.ends.with_more_than(blocks).0
    }

    /// Data blocks by group of the version that took their place.
    pub fn ends(&self) -> impl Iterator<Item = tally::GroupEnd> {
        let ends = |(group, n): (&u64, &u64)| tally::GroupEnd {
            last: Version(group * ENDS_GROUP + (ENDS_GROUP - 1)),
            width: ENDS_GROUP,
            blocks: *n,
        };
        self.tally.ends.groups.iter().map(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pins::Kept;
    use super::*;
    use crate::map::extents::Crcs;
    use freebs_format::ExtentKind;
    use freebs_types::{ChunkId, Sequence, SnapshotId};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const BLOCKS: u32 = 40;

    fn extent(len: u32, version: u64) -> Extent {
        Extent {
            len,
            kind: if version.is_multiple_of(5) { ExtentKind::Trim } else { ExtentKind::Data },
            version: Version(version),
            sequence: Sequence(version),
            chunk: ChunkId::new(version, 0),
            offset: 0,
            crcs: Crcs::None,
        }
    }

    /// Per block: versions of the writes.
    type Naive = Vec<Vec<u64>>;

    /// Each block of a write that another one covers, superseded by one of the later ones, not always the next, in any
    /// order.
    fn superseded(writes: &[(u32, u32)], naive: &Naive, order: u64) -> Vec<(u32, Extent, Version)> {
        let mut all: Vec<(u32, Extent, Version)> = Vec::new();
        let mut seed = order | 1;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        for (i, (s, l)) in writes.iter().enumerate() {
            let v = i as u64 + 1;
            for b in *s..s + l {
                let later: Vec<u64> = naive[b as usize].iter().copied().filter(|w| *w > v).collect();
                if !later.is_empty() {
                    all.push((b, extent(*l, v).piece(b - s, 1), Version(later[random(later.len())])));
                }
            }
        }
        for i in (1..all.len()).rev() {
            all.swap(i, random(i + 1));
        }
        all
    }

    /// Every block reads, at every version that is kept, as the last write at or before it.
    fn reads_as(t: &Table, naive: &Naive, kept: &Kept) -> Result<(), TestCaseError> {
        let pinned: BTreeSet<u64> = kept.pins.keys().map(|v| v.0).collect();
        for b in 0..BLOCKS {
            for v in (1..=30).filter(|v| kept.has(Version(*v))) {
                let want = naive[b as usize].iter().copied().rfind(|w| *w <= v);
                let mut view = ExtentMap::default();
                t.view_at(b, b + 1, Version(v), &mut view);
                // The last write of a block is in the map, and not in the history.
                let last = naive[b as usize].last().copied();
                let mut have = view.iter().next().map(|(_, e)| e.version.0);
                if last.is_some_and(|l| l <= v) {
                    have = last;
                }
                prop_assert_eq!(have, want, "block {} at {}, pinned {:?}", b, v, pinned);
            }
        }
        Ok(())
    }

    /// `retain_for` by sorting all there is.
    fn sorted(t: &Table, blocks: u64) -> Option<Version> {
        let data = t.iter().filter(|(_, l)| l.e.is_data());
        let mut ends: Vec<(Version, u64)> = data.map(|(_, l)| (l.to, u64::from(l.e.len))).collect();
        ends.sort_unstable();
        let mut sum = 0;
        ends.iter().rev().find_map(|(to, n)| {
            sum += n;
            (sum > blocks).then_some(*to)
        })
    }

    /// Whoever asked where the window should begin had all of the history sorted.
    #[test]
    fn where_the_window_begins_is_found_without_looking_at_all() {
        const VERSIONS: u64 = 100_000;
        let mut t = Table::default();
        for v in (1..VERSIONS).filter(|v| !v.is_multiple_of(5)) {
            t.put_back((v % 1000) as u32, &Layer { e: extent(1, v), to: Version(v + 1), found: false, level: 0 });
        }
        for blocks in [0, 1, 5_000, 40_000, t.blocks() - 1, t.blocks()] {
            let (found, looks) = t.tally.ends.with_more_than(blocks);
            assert_eq!(found, sorted(&t, blocks));
            assert!(looks as u64 <= ENDS_GROUP + VERSIONS / ENDS_GROUP + 1, "{looks} looks for {blocks} blocks");
        }
    }

    /// A table of all layers that another one exports.
    fn exported(t: &Table) -> Table {
        let (mut end, mut last) = (Table::default(), None);
        loop {
            let part: Vec<_> = t.export(last).take(2).collect();
            part.iter().for_each(|(a, l)| end.put_back(*a, l));
            let Some((a, l)) = part.last() else { return end };
            last = Some((*a, l.e.key()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        /// Whatever the order in which superseded extents come, a read at a pinned version gives what was written last
        /// at or before it, and what no pinned version sees is given back, each block once.
        #[test]
        fn is_the_naive_history(
            ops in prop::collection::vec((0u32..BLOCKS - 1, 1u32..12), 2..30),
            pins in prop::collection::btree_set(1u64..30, 0..6),
            retain in prop::option::of(1u64..30),
            drops in prop::collection::vec(0usize..6, 0..4),
            order in any::<u64>(),
        ) {
            let mut kept = Kept {
                pins: pins.iter().map(|v| (Version(*v), SnapshotId(0))).collect(),
                retain: retain.map(Version),
            };
            let writes: Vec<(u32, u32)> = ops.iter().map(|(s, l)| (*s, (*l).min(BLOCKS - s))).collect();
            let mut naive: Naive = vec![Vec::new(); BLOCKS as usize];
            for (i, (s, l)) in writes.iter().enumerate() {
                (*s..s + l).for_each(|b| naive[b as usize].push(i as u64 + 1));
            }
            let all = superseded(&writes, &naive, order);
            let (mut t, mut gone) = (Table::default(), Vec::new());
            for (a, e, to) in &all {
                let keep = kept.clone();
                let needs = |a, b| keep.needs(a, b);
                t.insert(*a, e, *to, &mut Judge { needs: &needs, gone: &mut |e: Extent| gone.push((e.version.0, e.offset)), recorded: false, is_below: false, level: 0 });
            }
            let mut step = 0;
            loop {
                reads_as(&t, &naive, &kept)?;
                let held: usize = t.iter().map(|(_, l)| l.e.len as usize).sum();
                prop_assert_eq!(held + gone.len(), all.len(), "each block is here or was given back");
                prop_assert_eq!(t.blocks(), t.iter().filter(|(_, l)| l.e.is_data()).map(|(_, l)| u64::from(l.e.len)).sum::<u64>());
                prop_assert_eq!(t.len(), t.iter().count());
                for blocks in [0, 1, 7, t.blocks() / 2, t.blocks()] {
                    prop_assert_eq!(t.retain_for(blocks), sorted(&t, blocks));
                }
                if step == drops.len() {
                    break;
                }
                if let Some(v) = kept.pins.keys().nth(drops[step]).copied() {
                    kept.pins.remove(&v);
                } else {
                    kept.retain = kept.retain.map(|r| Version(r.0 + 5));
                }
                step += 1;
                let keep = kept.clone();
                let mut at = Some(0);
                while let Some(from) = at {
                    let needs = |a, b| keep.needs(a, b);
                    at = t.prune(from, 3, &mut Judge { needs: &needs, gone: &mut |e: Extent| gone.push((e.version.0, e.offset)), recorded: false, is_below: false, level: 0 });
                }
            }
            let list = |t: &Table| t.iter().map(|(a, l)| (a, l.e.len, l.e.key(), l.to)).collect::<Vec<_>>();
            prop_assert_eq!(list(&t), list(&exported(&t)));
            if kept.is_none() {
                prop_assert!(t.is_empty());
            }
        }
    }
}

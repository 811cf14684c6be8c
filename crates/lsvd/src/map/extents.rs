//! The map of a shard: address -> (kind, version, sequence, place in a chunk, CRCs).
//!
//! Invariants: extents don't overlap; each holds at least one block. Entries merge by (version, sequence), the
//! higher one wins block by block (rule E2), so the order of insertion never matters. Trims and zeroes are entries
//! like any other (rule E1); what was never written has none.

use freebs_format::ExtentKind;
use freebs_types::{ChunkId, Sequence, Version};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes that an entry of a table in memory takes, about, CRCs of further blocks aside.
pub(crate) const ENTRY_BYTES: usize = 112;

/// CRCs of an extent's data blocks; the table of a larger update is shared by its pieces.
#[derive(Clone, Debug)]
pub(crate) enum Crcs {
    None,
    One(u32),
    Many { table: Rc<[u32]>, at: u32 },
}

impl Crcs {
    pub fn slice(&self, len: u32) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(c) => std::slice::from_ref(c),
            Self::Many { table, at } => &table[*at as usize..(*at + len) as usize],
        }
    }

    /// CRCs that take memory beside the extent.
    fn tabled(&self, len: u32) -> usize {
        if matches!(self, Self::Many { .. }) { len as usize } else { 0 }
    }

    fn skip(&self, skip: u32, len: u32) -> Self {
        match self {
            Self::Many { table, at } if len == 1 => Self::One(table[(*at + skip) as usize]),
            Self::Many { table, at } => Self::Many { table: table.clone(), at: at + skip },
            other => other.clone(),
        }
    }
}

/// One entry of the map, without its address.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub len: u32,
    pub kind: ExtentKind,
    pub version: Version,
    pub sequence: Sequence,
    /// Chunk of the data; unused for trims and zeroes.
    pub chunk: ChunkId,
    /// Data: first block's ordinal in the chunk. Trims and zeroes: the segment that holds the record of it.
    pub offset: u32,
    pub crcs: Crcs,
}

impl Extent {
    pub fn key(&self) -> (Version, Sequence) {
        (self.version, self.sequence)
    }

    pub fn is_data(&self) -> bool {
        self.kind == ExtentKind::Data
    }

    /// The piece of `len` blocks after the first `skip`.
    pub fn piece(&self, skip: u32, len: u32) -> Self {
        debug_assert!(len > 0 && skip + len <= self.len);
        Self {
            len,
            offset: if self.is_data() { self.offset + skip } else { self.offset },
            crcs: self.crcs.skip(skip, len),
            ..*self
        }
    }
}

/// A superseded extent: it was in force from its own version up to, but without, `to`.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub e: Extent,
    pub to: Version,
    /// It was met in a level of the map, which may name an older record of a trim or zero than the last one.
    pub found: bool,
    /// While levels are merged: the one that it comes from, 0 the lowest. Else 0.
    pub level: u16,
}

impl Layer {
    /// The piece of `len` blocks after the first `skip`.
    pub fn piece(&self, skip: u32, len: u32) -> Self {
        Self { e: self.e.piece(skip, len), ..*self }
    }
}

/// What an insertion did; the caller keeps one for reuse.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Pieces of the new extent that are in the map now: address and length.
    pub placed: Vec<(u32, u32)>,
    /// Pieces of old extents that the new one took the place of.
    pub displaced: Vec<(u32, Extent)>,
    /// Pieces of the new extent that a newer one keeps out, with that one's version.
    pub lost: Vec<(u32, Extent, Version)>,
    /// Pieces where the very same entry was there already.
    pub same: Vec<(u32, u32)>,
}

impl Outcome {
    fn clear(&mut self) {
        self.placed.clear();
        self.displaced.clear();
        self.lost.clear();
        self.same.clear();
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    extents: BTreeMap<u32, Extent>,
    /// CRCs in tables, those of pieces counted by themselves.
    crcs: usize,
}

impl ExtentMap {
    fn put(&mut self, start: u32, e: Extent) {
        assert!(e.len > 0, "an extent holds a block");
        debug_assert!(self.range(start, start + e.len).next().is_none(), "extents don't overlap");
        self.crcs += e.crcs.tabled(e.len);
        self.extents.insert(start, e);
    }

    fn remove(&mut self, start: u32) -> Extent {
        let e = self.extents.remove(&start).expect("just seen");
        self.crcs -= e.crcs.tabled(e.len);
        e
    }

    /// Adds an entry behind all others.
    pub fn push(&mut self, start: u32, e: Extent) {
        debug_assert!(self.extents.last_key_value().is_none_or(|(s, l)| s + l.len <= start));
        self.put(start, e);
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Extent)> {
        self.extents.iter().map(|(s, e)| (*s, e))
    }

    /// Extents that overlap `[start, end)`, clipped to it: address, extent, blocks to skip in it, length.
    pub fn range(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, &Extent, u32, u32)> {
        let before = self.extents.range(..start).next_back().filter(|(s, e)| *s + e.len > start);
        let from = if start < end { start..end } else { end..end };
        before.into_iter().filter(move |_| start < end).chain(self.extents.range(from)).map(move |(s, e)| {
            let (a, b) = ((*s).max(start), (*s + e.len).min(end));
            (a, e, a - *s, b - a)
        })
    }

    /// A copy of what lies in `[start, end)`.
    pub fn clip(&self, start: u32, end: u32) -> Self {
        let mut out = Self::default();
        self.range(start, end).for_each(|(a, e, skip, len)| out.push(a, e.piece(skip, len)));
        out
    }

    pub fn clear(&mut self) {
        self.extents.clear();
        self.crcs = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.extents.len() * ENTRY_BYTES + self.crcs * 4
    }

    /// Drops the first `n` entries; whether there are more.
    pub fn drop_some(&mut self, n: usize) -> bool {
        for _ in 0..n {
            if let Some((_, e)) = self.extents.pop_first() {
                self.crcs -= e.crcs.tabled(e.len);
            }
        }
        !self.extents.is_empty()
    }

    /// The first address from `at` on that has an entry.
    pub fn next(&self, at: u32) -> Option<u32> {
        let before = self.extents.range(..at).next_back().filter(|(s, e)| *s + e.len > at).map(|_| at);
        before.or_else(|| self.extents.range(at..).next().map(|(s, _)| *s))
    }

    /// Merges one extent in.
    pub fn insert(&mut self, start: u32, new: Extent, out: &mut Outcome) {
        out.clear();
        // A rewrite of exactly one old extent, the most common case, needs no rebalancing.
        if let Some(old) = self.extents.get_mut(&start)
            && old.len == new.len
            && old.key() < new.key()
        {
            out.placed.push((start, new.len));
            self.crcs = self.crcs + new.crcs.tabled(new.len) - old.crcs.tabled(old.len);
            out.displaced.push((start, std::mem::replace(old, new)));
            return;
        }
        let end = start + new.len;
        let touched = self.touched(start, end);
        if touched.is_empty() {
            out.placed.push((start, new.len));
            self.put(start, new);
            return;
        }
        // `run` is where the part of the new extent begins that is not yet placed.
        let mut run = start;
        for (s, old) in touched {
            let (a, b) = (s.max(start), (s + old.len).min(end));
            if old.key() < new.key() {
                if s < a {
                    self.put(s, old.piece(0, a - s));
                }
                if b < s + old.len {
                    self.put(b, old.piece(b - s, s + old.len - b));
                }
                out.displaced.push((a, old.piece(a - s, b - a)));
                continue;
            }
            self.place(run, a, start, &new, out);
            run = b;
            if old.key() == new.key() {
                out.same.push((a, b - a));
            } else {
                out.lost.push((a, new.piece(a - start, b - a), old.version));
            }
            self.put(s, old);
        }
        self.place(run, end, start, &new, out);
    }

    fn place(&mut self, from: u32, to: u32, start: u32, new: &Extent, out: &mut Outcome) {
        if from < to {
            out.placed.push((from, to - from));
            self.put(from, new.piece(from - start, to - from));
        }
    }

    /// Takes out every extent that overlaps the range.
    fn touched(&mut self, start: u32, end: u32) -> Vec<(u32, Extent)> {
        let before = self.extents.range(..start).next_back().filter(|(s, e)| *s + e.len > start).map(|(s, _)| *s);
        let keys: Vec<u32> = before.into_iter().chain(self.extents.range(start..end).map(|(s, _)| *s)).collect();
        keys.into_iter().map(|s| (s, self.remove(s))).collect()
    }

    /// Takes the parts inside `[start, end)` of the extents that `which` names.
    pub fn take(&mut self, start: u32, end: u32, which: impl Fn(&Extent) -> bool) -> Vec<(u32, Extent)> {
        // Exactly one extent is the most common case.
        if let Some(old) = self.extents.get(&start).filter(|e| e.len == end - start) {
            return if which(old) { vec![(start, self.remove(start))] } else { Vec::new() };
        }
        let mut out = Vec::new();
        for (s, old) in self.touched(start, end) {
            if !which(&old) {
                self.put(s, old);
                continue;
            }
            let (a, b) = (s.max(start), (s + old.len).min(end));
            if s < a {
                self.put(s, old.piece(0, a - s));
            }
            if b < s + old.len {
                self.put(b, old.piece(b - s, s + old.len - b));
            }
            out.push((a, old.piece(a - s, b - a)));
        }
        out
    }

    /// Changes the home of the trims and zeroes in `[start, end)` that `which` names; gives back the old home and
    /// the length of each.
    pub fn rehome(&mut self, start: u32, end: u32, home: u32, which: impl Fn(&Extent) -> bool) -> Vec<(u32, u32)> {
        let mut from = Vec::new();
        for (s, mut e) in self.take(start, end, |e| !e.is_data() && which(e)) {
            from.push((e.offset, e.len));
            e.offset = home;
            self.put(s, e);
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(kind: u8, len: u32, version: u64, sequence: u64) -> Extent {
        let kind = ExtentKind::from_byte(kind).unwrap();
        let data = kind == ExtentKind::Data;
        let table: Rc<[u32]> = (0..len).map(|i| version as u32 * 1000 + sequence as u32 * 100 + i).collect();
        Extent {
            len,
            kind,
            version: Version(version),
            sequence: Sequence(sequence),
            chunk: ChunkId::new(version, sequence as u32),
            offset: 0,
            crcs: if data { Crcs::Many { table, at: 0 } } else { Crcs::None },
        }
    }

    /// Per block: key, kind, ordinal, CRC.
    type Cell = ((u64, u64), u8, u32, Option<u32>);

    fn cells(start: u32, e: &Extent) -> Vec<(u32, Cell)> {
        (0..e.len)
            .map(|i| {
                let ordinal = if e.is_data() { e.offset + i } else { e.offset };
                let crc = e.crcs.slice(e.len).get(i as usize).copied();
                (start + i, ((e.version.0, e.sequence.0), e.kind as u8, ordinal, crc))
            })
            .collect()
    }

    fn flat(m: &ExtentMap) -> BTreeMap<u32, Cell> {
        let mut out = BTreeMap::new();
        let mut last = 0;
        for (s, e) in m.iter() {
            assert!(e.len > 0 && s >= last, "extents overlap");
            last = s + e.len;
            out.extend(cells(s, e));
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn is_the_naive_array_whatever_the_order(
            // Distinct keys: the version is the position, the sequence a few versions each.
            ops in prop::collection::vec((0u32..60, 1u32..20, 1u8..=3), 1..40),
            order in any::<u64>(),
        ) {
            let mut all: Vec<(u32, Extent)> = ops
                .iter()
                .enumerate()
                .map(|(i, (s, l, k))| (*s, extent(*k, *l, i as u64 + 1, i as u64 / 3 + 1)))
                .collect();
            let mut naive: BTreeMap<u32, Cell> = BTreeMap::new();
            for (s, e) in &all {
                naive.extend(cells(*s, e));
            }
            let mut seed = order | 1;
            for i in (1..all.len()).rev() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                all.swap(i, (seed >> 33) as usize % (i + 1));
            }
            let mut m = ExtentMap::default();
            let mut out = Outcome::default();
            for (s, e) in &all {
                let before = flat(&m);
                m.insert(*s, e.clone(), &mut out);
                let after = flat(&m);
                // What the outcome says is what happened, block by block.
                let placed: u32 = out.placed.iter().map(|p| p.1).sum();
                let lost: u32 = out.lost.iter().map(|p| p.1.len).sum();
                let same: u32 = out.same.iter().map(|p| p.1).sum();
                prop_assert_eq!(placed + lost + same, e.len);
                for (a, d) in &out.displaced {
                    for (lba, cell) in cells(*a, d) {
                        prop_assert_eq!(before[&lba], cell);
                        prop_assert!(after[&lba] != cell);
                    }
                }
            }
            prop_assert_eq!(flat(&m), naive.clone());
            for (s, e) in &all {
                m.insert(*s, e.clone(), &mut out);
                prop_assert!(out.placed.is_empty() && out.displaced.is_empty());
            }
            prop_assert_eq!(flat(&m), naive.clone());
            // Clipped iteration and removal agree with the array, too.
            let (a, b) = (ops[0].0, ops[0].0 + ops[0].1);
            let mut clipped = BTreeMap::new();
            for (s, e, skip, len) in m.range(a, b) {
                clipped.extend(cells(s, &e.piece(skip, len)));
            }
            prop_assert_eq!(clipped, naive.range(a..b).map(|(k, v)| (*k, *v)).collect::<BTreeMap<_, _>>());
            let odd = |e: &Extent| e.version.0 % 2 == 1;
            let taken = m.take(a, b, odd);
            let mut back = flat(&m);
            for (s, e) in &taken {
                for (lba, cell) in cells(*s, e) {
                    prop_assert!(back.insert(lba, cell).is_none());
                }
            }
            prop_assert_eq!(back, naive);
        }
    }
}

//! Committed entries that wait above the map for uncommitted frames, by their address.
//!
//! Invariants: no two overlap, and none is empty. A block has the newest of the entries that were put over it.

use crate::map::extents::Extent;
use std::collections::BTreeMap;

/// A committed entry, and the append that recorded it last.
#[derive(Clone, Debug)]
pub(super) struct HeldEntry {
    pub extent: Extent,
    pub append: u64,
}

impl HeldEntry {
    fn piece(&self, skip: u32, len: u32) -> Self {
        Self { extent: self.extent.piece(skip, len), append: self.append }
    }
}

#[derive(Debug, Default)]
pub(super) struct HeldMap {
    entries: BTreeMap<u32, HeldEntry>,
}

impl HeldMap {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them in order of their address.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &HeldEntry)> {
        self.entries.iter().map(|(a, e)| (*a, e))
    }

    /// The first append that one of them needs.
    pub fn first_append(&self) -> Option<u64> {
        self.entries.values().map(|e| e.append).min()
    }

    /// The parts of them that lie in a range: address and entry.
    pub fn range(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, Extent)> {
        self.touching(start, end).map(move |(a, e)| {
            let (from, to) = (a.max(start), (a + e.extent.len).min(end));
            (from, e.extent.piece(from - a, to - from))
        })
    }

    fn touching(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, &HeldEntry)> {
        let from = self.entries.range(..=start).next_back().filter(|(a, e)| **a + e.extent.len > start);
        let from = from.map_or(start, |(a, _)| *a);
        self.entries.range(from..end.max(from)).map(|(a, e)| (*a, e))
    }

    /// Takes the parts in a range of those that `which` names.
    pub fn take(&mut self, start: u32, end: u32, which: impl Fn(&Extent) -> bool) -> Vec<(u32, HeldEntry)> {
        let named: Vec<u32> = self.touching(start, end).filter(|(_, e)| which(&e.extent)).map(|(a, _)| a).collect();
        let mut taken = Vec::with_capacity(named.len());
        for a in named {
            let e = self.entries.remove(&a).expect("just seen");
            let (from, to, len) = (a.max(start), (a + e.extent.len).min(end), e.extent.len);
            if a < from {
                self.entries.insert(a, e.piece(0, from - a));
            }
            if to < a + len {
                self.entries.insert(to, e.piece(to - a, a + len - to));
            }
            taken.push((from, e.piece(from - a, to - from)));
        }
        taken
    }

    /// Adds an entry, but for blocks where there is one.
    pub fn put(&mut self, start: u32, e: &HeldEntry) {
        let end = start + e.extent.len;
        let there: Vec<(u32, u32)> = self.touching(start, end).map(|(a, e)| (a, a + e.extent.len)).collect();
        let mut at = start;
        for (a, b) in there.into_iter().chain([(end, end)]) {
            if at < a {
                self.entries.insert(at, e.piece(at - start, a - at));
            }
            at = at.max(b);
        }
    }
}

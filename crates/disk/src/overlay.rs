//! What is ordered but not yet in the engine's map: reads look here first.
//!
//! Invariants: pieces don't overlap; each is of the newest update of its blocks. A piece leaves when its update is
//! durable, for then the map has it.

use bytes::Bytes;
use freebs_types::{BLOCK, BlockRange};
use std::collections::BTreeMap;

/// Blocks of one update that are not durable yet. `data` is none for trims and zeroes.
#[derive(Clone, Debug)]
struct Piece {
    len: u32,
    version: u64,
    data: Option<Bytes>,
}

impl Piece {
    fn part(&self, skip: u32, len: u32) -> Self {
        let cut = |d: &Bytes| d.slice(skip as usize * BLOCK..(skip + len) as usize * BLOCK);
        Self { len, version: self.version, data: self.data.as_ref().map(cut) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pieces: BTreeMap<u32, Piece>,
}

impl Overlay {
    /// Puts the blocks of an update over everything older.
    pub fn put(&mut self, range: BlockRange, version: u64, data: Option<Bytes>) {
        let (start, end) = (range.start.0, range.end() as u32);
        for (s, old) in self.take(start, end) {
            self.keep_outside(s, &old, start, end);
        }
        self.pieces.insert(start, Piece { len: range.len, version, data });
    }

    /// The update is durable: its pieces leave, where no newer one lies over them.
    pub fn settle(&mut self, range: BlockRange, version: u64) {
        let (start, end) = (range.start.0, range.end() as u32);
        if self.pieces.get(&start).is_some_and(|p| p.len == range.len) {
            if self.pieces[&start].version <= version {
                self.pieces.remove(&start);
            }
            return;
        }
        for (s, old) in self.take(start, end) {
            if old.version > version {
                self.pieces.insert(s, old);
            } else {
                self.keep_outside(s, &old, start, end);
            }
        }
    }

    /// What lies over a range: address, blocks, and their bytes (none for zeroes), in order.
    pub fn over(&self, range: BlockRange) -> Vec<(u32, u32, Option<Bytes>)> {
        if self.pieces.is_empty() {
            return Vec::new();
        }
        let (start, end) = (range.start.0, range.end() as u32);
        let before = self.pieces.range(..start).next_back().filter(|(s, p)| *s + p.len > start);
        let all = before.into_iter().chain(self.pieces.range(start..end));
        all.map(|(s, p)| {
            let (a, b) = ((*s).max(start), (*s + p.len).min(end));
            (a, b - a, p.part(a - s, b - a).data)
        })
        .collect()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn take(&mut self, start: u32, end: u32) -> Vec<(u32, Piece)> {
        let before = self.pieces.range(..start).next_back().filter(|(s, p)| *s + p.len > start).map(|(s, _)| *s);
        let keys: Vec<u32> = before.into_iter().chain(self.pieces.range(start..end).map(|(s, _)| *s)).collect();
        keys.into_iter().map(|s| (s, self.pieces.remove(&s).expect("just seen"))).collect()
    }

    fn keep_outside(&mut self, s: u32, old: &Piece, start: u32, end: u32) {
        if s < start {
            self.pieces.insert(s, old.part(0, start - s));
        }
        if s + old.len > end {
            self.pieces.insert(end, old.part(end - s, s + old.len - end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(fill: u8, len: u32) -> Bytes {
        vec![fill; len as usize * BLOCK].into()
    }

    proptest! {
        #[test]
        fn agrees_with_an_array(ops in proptest::collection::vec((0u32..40, 1u32..12, any::<bool>()), 1..60), settle in 0usize..60) {
            let mut o = Overlay::default();
            let mut model: Vec<Option<(u64, u8)>> = vec![None; 64];
            for (i, (start, len, data)) in ops.iter().enumerate() {
                let (v, fill) = (i as u64 + 1, (i + 1) as u8);
                o.put(BlockRange::new(*start, *len), v, data.then(|| block(fill, *len)));
                for m in &mut model[*start as usize..(start + len) as usize] {
                    *m = Some((v, if *data { fill } else { 0 }));
                }
            }
            for (i, (start, len, _)) in ops.iter().enumerate().take(settle) {
                o.settle(BlockRange::new(*start, *len), i as u64 + 1);
                for m in &mut model[*start as usize..(start + len) as usize] {
                    *m = m.filter(|m| m.0 > i as u64 + 1);
                }
            }
            let mut seen = vec![None; 64];
            for (a, n, data) in o.over(BlockRange::new(0, 64)) {
                for b in 0..n {
                    seen[(a + b) as usize] = Some(data.as_ref().map_or(0, |d| d[b as usize * BLOCK]));
                }
            }
            prop_assert_eq!(seen, model.iter().map(|m| m.map(|m| m.1)).collect::<Vec<_>>());
            prop_assert_eq!(o.is_empty(), model.iter().all(Option::is_none));
        }
    }
}

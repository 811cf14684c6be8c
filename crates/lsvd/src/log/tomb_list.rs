//! Where trims and zeroes were recorded in a segment: shards and blocks, for who looks up which of them are in force.
//!
//! Invariants: the stretches of a shard don't touch, and are in order whenever they are asked for; so a segment with any
//! number of trims is looked through a part at a time. Once the segment is closed, a long list is not kept: the
//! segment's index has it, and here is only how long it was.

use freebs_types::ShardId;
use std::collections::BTreeMap;

/// A stretch: shard, first block, end.
pub(crate) type Stretch = (ShardId, u32, u32);

/// Stretches of a closed segment that stay in memory.
const KEPT: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    end: u32,
    /// Trims and zeroes that were recorded in it.
    records: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TombList {
    all: BTreeMap<(ShardId, u32), Tail>,
    records: u64,
    blocks: u64,
    /// Records that only the segment's index lists; 0 if all are here.
    in_index: u32,
}

impl TombList {
    /// That of a segment whose index lists `records` trims and zeroes; if that is 0, an empty one.
    pub fn of_index(records: u32) -> Self {
        Self { in_index: records, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.in_index == 0
    }

    /// Records that only the segment's index lists; 0 if all are here.
    pub fn in_index(&self) -> u32 {
        self.in_index
    }

    /// Nothing is added any more, or only again: a long list is forgotten.
    pub fn seal(&mut self) {
        if self.all.len() > KEPT {
            *self = Self::of_index(u32::try_from(self.records).unwrap_or(u32::MAX));
        }
    }

    /// Trims and zeroes that were recorded, each by itself.
    pub fn records(&self) -> u64 {
        self.records + u64::from(self.in_index)
    }

    /// Blocks that those in memory were about.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn remove(&mut self, key: (ShardId, u32)) -> Tail {
        let tail = self.all.remove(&key).expect("just seen");
        self.blocks -= u64::from(tail.end - key.1);
        self.records -= u64::from(tail.records);
        tail
    }

    pub fn add(&mut self, shard: ShardId, start: u32, len: u32) {
        if self.in_index > 0 {
            self.in_index = self.in_index.saturating_add(1);
            return;
        }
        let (mut start, mut tail) = (start, Tail { end: start + len, records: 1 });
        while let Some((key, other)) = self.all.range(..=(shard, tail.end)).next_back() {
            let (key, other) = (*key, *other);
            if key.0 != shard || other.end < start {
                break;
            }
            self.remove(key);
            start = start.min(key.1);
            tail = Tail { end: tail.end.max(other.end), records: tail.records.saturating_add(other.records) };
        }
        self.blocks += u64::from(tail.end - start);
        self.records += u64::from(tail.records);
        self.all.insert((shard, start), tail);
    }

    /// The first `most` stretches behind the end of one. That one may have been joined with others since it was given out:
    /// what lies behind its end then comes first.
    pub fn behind(&self, last: Option<Stretch>, most: usize) -> Vec<Stretch> {
        use std::ops::Bound::{Excluded, Unbounded};
        let at = last.map(|(shard, _, end)| (shard, end));
        let over = at.and_then(|at| {
            let ((shard, _), t) = self.all.range(..=at).next_back()?;
            (*shard == at.0 && t.end > at.1).then_some((at.0, at.1, t.end))
        });
        let rest = self.all.range((at.map_or(Unbounded, Excluded), Unbounded));
        over.into_iter().chain(rest.map(|((shard, start), t)| (*shard, *start, t.end))).take(most).collect()
    }

    /// Forgets those of a shard, but for what the index lists.
    pub fn forget(&mut self, shard: ShardId) {
        let keys: Vec<_> = self.all.range((shard, 0)..=(shard, u32::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_the_naive_set_in_parts_of_any_size(
            ops in prop::collection::vec((0u64..3, 0u32..60, 1u32..9), 1..60),
            most in 1usize..5,
            gone in 0u64..4,
        ) {
            let (mut list, mut naive) = (TombList::default(), BTreeSet::new());
            for (shard, start, len) in &ops {
                list.add(ShardId::new(*shard, 0), *start, *len);
                naive.extend((*start..start + len).map(|b| (ShardId::new(*shard, 0), b)));
            }
            prop_assert_eq!(list.records(), ops.len() as u64);
            list.forget(ShardId::new(gone, 0));
            naive.retain(|(shard, _)| *shard != ShardId::new(gone, 0));
            prop_assert_eq!(list.records(), ops.iter().filter(|op| op.0 != gone).count() as u64);
            prop_assert_eq!((list.blocks(), list.is_empty()), (naive.len() as u64, naive.is_empty()));
            let (mut found, mut last) = (Vec::new(), None);
            loop {
                let part = list.behind(last, most);
                prop_assert!(part.len() <= most);
                let Some(end) = part.last() else { break };
                last = Some(*end);
                found.extend(part);
            }
            let touch = found.windows(2).any(|w: &[Stretch]| w[0].0 == w[1].0 && w[0].2 >= w[1].1);
            prop_assert!(!touch && found.is_sorted());
            let blocks = found.into_iter().flat_map(|(shard, start, end)| (start..end).map(move |b| (shard, b)));
            prop_assert_eq!(blocks.collect::<BTreeSet<_>>(), naive);
        }

        #[test]
        fn nothing_that_was_there_is_left_out_if_more_comes_between_two_parts(
            ops in prop::collection::vec((0u64..2, 0u32..60, 1u32..5), 1..40),
            more in prop::collection::vec((0u64..2, 0u32..60, 1u32..9), 0..20),
            most in 1usize..4,
        ) {
            let blocks_of = |(shard, start, end): Stretch| (start..end).map(move |b| (shard, b));
            let stretch = |(shard, start, len): (u64, u32, u32)| (ShardId::new(shard, 0), start, start + len);
            let mut list = TombList::default();
            ops.iter().for_each(|(shard, start, len)| list.add(ShardId::new(*shard, 0), *start, *len));
            let (mut found, mut last, mut more) = (BTreeSet::new(), None, more.into_iter());
            loop {
                let part = list.behind(last, most);
                let Some(end) = part.last() else { break };
                last = Some(*end);
                found.extend(part.into_iter().flat_map(blocks_of));
                if let Some((shard, start, len)) = more.next() {
                    list.add(ShardId::new(shard, 0), start, len);
                }
            }
            let there: BTreeSet<_> = ops.into_iter().flat_map(|op| blocks_of(stretch(op))).collect();
            prop_assert!(found.is_superset(&there));
        }
    }
}

//! How much history there is, and when it ceases to be: superseded data blocks by the version that took their place.
//!
//! Versions are counted in groups of the same width. Where there would be too many groups, two become one, so that the counts of
//! a run stay small beside it.

use crate::log::place::NUMBER_MAX;
use crate::map::extents::Layer;
use freebs_types::Version;
use std::collections::BTreeMap;

/// Versions whose superseded blocks are counted together, or a power of two times as many.
pub(crate) const ENDS_GROUP: u64 = 1024;
/// Groups of a run, at most, of all its slots; but one for each slot.
const GROUPS_MAX: usize = 2048;
/// How often a group can become twice as wide: it has all versions then.
const WIDER_MAX: u32 = 54;

/// Bytes of one count on a page: slot, how often groups were made wider, group, layers, blocks.
pub(crate) const COUNT_BYTES: usize = 32;

/// The group of a version, among those that were never made wider.
pub(crate) fn group(v: Version) -> u64 {
    v.0 / ENDS_GROUP
}

/// Layers and data blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub layers: u64,
    pub blocks: u64,
}

impl Count {
    pub fn of(l: &Layer) -> Self {
        Self { layers: 1, blocks: if l.e.is_data() { u64::from(l.e.len) } else { 0 } }
    }

    pub fn add(&mut self, other: Self) {
        self.layers = self.layers.saturating_add(other.layers);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }
}

/// Data blocks that were in force up to one of some versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupEnd {
    /// The last of these versions, and how many there are.
    pub last: Version,
    pub width: u64,
    pub blocks: u64,
}

/// Counts of the layers of a run of history, by slot and by the group of the version that they were in force up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tallies {
    wider: u32,
    groups: BTreeMap<(u32, u64), Count>,
    slots: BTreeMap<u32, Count>,
}

impl Tallies {
    pub fn note(&mut self, slot: u32, l: &Layer) {
        self.add(slot, group(l.to) >> self.wider, Count::of(l));
        while self.groups.len() > GROUPS_MAX.max(2 * self.slots.len()) && self.wider < WIDER_MAX {
            self.wider += 1;
            for ((slot, group), n) in std::mem::take(&mut self.groups) {
                self.groups.entry((slot, group / 2)).or_default().add(n);
            }
        }
    }

    fn add(&mut self, slot: u32, group: u64, n: Count) {
        self.groups.entry((slot, group)).or_default().add(n);
        self.slots.entry(slot).or_default().add(n);
    }

    pub fn slots(&self) -> impl Iterator<Item = (u32, Count)> {
        self.slots.iter().map(|(slot, n)| (*slot, *n))
    }

    pub fn of(&self, slot: u32) -> Count {
        self.slots.get(&slot).copied().unwrap_or_default()
    }

    fn width(&self) -> u64 {
        ENDS_GROUP << self.wider
    }

    /// About as many as were in force up to versions behind `after` and up to `upto`: of a group in part, that part.
    pub fn sum(&self, slot: u32, after: Version, upto: Version) -> Count {
        let (mut all, width) = (Count::default(), self.width());
        if upto <= after {
            return all;
        }
        let (first, end) = (after.0 + 1, upto.0.saturating_add(1));
        for ((_, group), n) in self.groups.range((slot, first / width)..=(slot, upto.0 / width)) {
            let from = group * width;
            let part = end.min(from + width) - first.max(from);
            let of = |n: u64| (u128::from(n) * u128::from(part) / u128::from(width)) as u64;
            all.add(Count { layers: of(n.layers), blocks: of(n.blocks) });
        }
        all
    }

    /// Blocks by group.
    pub fn ends(&self, slot: u32) -> impl Iterator<Item = GroupEnd> {
        let width = self.width();
        let ends = move |group: u64, blocks| GroupEnd { last: Version(group * width + (width - 1)), width, blocks };
        self.groups.range((slot, 0)..=(slot, u64::MAX)).map(move |((_, group), n)| ends(*group, n.blocks))
    }

    /// Each count, as it is written.
    pub fn encode(&self) -> impl Iterator<Item = [u8; COUNT_BYTES]> {
        let wider = self.wider;
        let each = move |(slot, group, n): (u32, u64, Count)| {
            let mut out = [0; COUNT_BYTES];
            out[..4].copy_from_slice(&slot.to_le_bytes());
            out[4..8].copy_from_slice(&wider.to_le_bytes());
            for (i, n) in [group, n.layers, n.blocks].into_iter().enumerate() {
                out[8 * i + 8..8 * i + 16].copy_from_slice(&n.to_le_bytes());
            }
            out
        };
        self.groups.iter().map(|((slot, group), n)| (*slot, *group, *n)).map(each)
    }

    /// Adds a count that was written; `None` if it can't be one of these.
    pub fn decode(&mut self, bytes: &[u8]) -> Option<()> {
        let bytes: &[u8; COUNT_BYTES] = bytes.try_into().ok()?;
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (slot, wider, group, layers, blocks) = (short(0), short(4), number(8), number(16), number(24));
        let is_first = self.groups.is_empty();
        if wider > WIDER_MAX || (!is_first && (wider != self.wider || self.groups.contains_key(&(slot, group)))) {
            return None;
        }
        let fits = group <= (NUMBER_MAX / ENDS_GROUP) >> wider && 0 < layers && layers < 1 << 40 && blocks < 1 << 50;
        self.wider = wider;
        fits.then(|| self.add(slot, group, Count { layers, blocks }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::extents::{Crcs, Extent};
    use freebs_format::ExtentKind;
    use freebs_types::{ChunkId, Sequence};

    fn layer(kind: ExtentKind, len: u32, to: u64) -> Layer {
        let e = Extent {
            len,
            kind,
            version: Version(1),
            sequence: Sequence(1),
            chunk: ChunkId::default(),
            offset: 0,
            crcs: Crcs::None,
        };
        Layer { e, to: Version(to), found: false, level: 0 }
    }

    #[test]
    fn counts_are_what_was_noted_and_come_back() {
        let mut t = Tallies::default();
        for (slot, kind, len, to) in [(1, 1, 4, 2), (1, 1, 3, 1023), (1, 2, 9, 1024), (3, 1, 1, 5000)] {
            t.note(slot, &layer(ExtentKind::from_byte(kind).unwrap(), len, to));
        }
        assert_eq!(t.of(1), Count { layers: 3, blocks: 7 });
        assert_eq!(t.of(2), Count::default());
        let sum = |after, upto| t.sum(1, Version(after), Version(upto));
        assert_eq!((sum(0, 0), sum(0, 1024)), (Count::default(), Count { layers: 1, blocks: 6 }));
        assert_eq!((sum(0, 511), sum(0, 4095)), (Count { layers: 0, blocks: 3 }, Count { layers: 2, blocks: 6 }));
        assert_eq!((sum(1023, 2047), sum(5000, 9)), (Count { layers: 1, blocks: 0 }, Count::default()));
        let ends = |last, blocks| GroupEnd { last: Version(last), width: 1024, blocks };
        assert_eq!(t.ends(1).collect::<Vec<_>>(), [ends(1023, 7), ends(2047, 0)]);
        let mut again = Tallies::default();
        t.encode().for_each(|b| again.decode(&b).unwrap());
        assert_eq!(again, t);
        assert_eq!(again.slots().collect::<Vec<_>>(), [(1, t.of(1)), (3, Count { layers: 1, blocks: 1 })]);
    }

    /// A layer that ends far from all others took a count of its own, which is larger than the layer is in a run.
    #[test]
    fn there_are_never_many_groups() {
        let mut t = Tallies::default();
        for n in 0..50_000u64 {
            t.note(1 + n as u32 % 3, &layer(ExtentKind::Data, 2, n * 1_000_000 + 5));
        }
        assert!(t.groups.len() <= GROUPS_MAX, "{}", t.groups.len());
        assert_eq!((1..4).map(|slot| t.of(slot).blocks).sum::<u64>(), 100_000);
        let middle = t.sum(1, Version(0), Version(25_000 * 1_000_000)).blocks;
        assert!((16_000..=16_700).contains(&middle), "{middle}");
        let mut again = Tallies::default();
        t.encode().for_each(|b| again.decode(&b).unwrap());
        assert_eq!(again, t);
    }

    #[test]
    fn what_can_not_be_a_count_is_refused() {
        let mut t = Tallies::default();
        t.note(1, &layer(ExtentKind::Data, 4, 2));
        let good = t.encode().next().unwrap();
        assert!(Tallies::default().decode(&good[1..]).is_none());
        for at in [7, 15, 23, 31] {
            let mut bad = good;
            bad[at] = 0xff;
            assert!(Tallies::default().decode(&bad).is_none(), "byte {at}");
        }
        assert!(Tallies::default().decode(&[0; COUNT_BYTES]).is_none(), "no layers");
        let mut other = good;
        other[4] = 1;
        let mut both = Tallies::default();
        both.decode(&good).unwrap();
        assert!(both.decode(&other).is_none(), "groups of another width");
        assert!(both.decode(&good).is_none(), "the same group again");
    }
}

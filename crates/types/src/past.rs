//! The past of a shard: how it is named, and where its map tells when what was ordered.
//!
//! Time is cut into *moments* of `MOMENT_MS`. The first frame of a moment in which updates are ordered says so by a zero at
//! the moment's address, which lies behind those of all blocks. So the entry's version is the first one of that moment, and
//! times travel, are kept, and are found with the map. Addresses come again; an entry counts only if its version is behind the
//! first one of the retention window, and behind that of the zero at `TIMES_LBA`: from there on the clock is believed.

use crate::limits::{MOMENT_MS, SHARD_ADDRESSES, SHARD_BLOCKS_MAX, SHARD_MOMENTS};
use crate::{BlockRange, Lba, Version};
use core::fmt;

/// The address of the zero from which on times are told: those of before it are not known any more.
pub const TIMES_LBA: Lba = Lba((SHARD_BLOCKS_MAX + SHARD_MOMENTS) as u32);

/// A place in the past of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Past {
    /// Behind the update with this version.
    Version(Version),
    /// Behind all that was ordered before this time, milliseconds since 1970 by the heads' clocks. It counts as the moment
    /// that begins then or next.
    TimeMs(u64),
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(v) => write!(f, "version {v}"),
            Self::TimeMs(ms) => write!(f, "{ms} ms since 1970"),
        }
    }
}

/// A stretch of `MOMENT_MS` by the heads' clocks, counted from 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment that has this wall-clock time, nanoseconds since 1970.
    #[must_use]
    pub const fn at_wall(wall: u64) -> Self {
        Self(wall / (MOMENT_MS * 1_000_000))
    }

    /// The first moment that begins at this time, milliseconds since 1970, or after it.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.div_ceil(MOMENT_MS))
    }

    /// When it begins, milliseconds since 1970; at most the highest number.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0.saturating_mul(MOMENT_MS)
    }

    /// When it begins, nanoseconds since 1970; at most the highest number.
    #[must_use]
    pub const fn wall(self) -> u64 {
        self.ms().saturating_mul(1_000_000)
    }

    /// The moment behind it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// So many moments in front of it; the first one of all if there are not so many.
    #[must_use]
    pub const fn less(self, moments: u64) -> Self {
        Self(self.0.saturating_sub(moments))
    }

    /// Its address. `SHARD_MOMENTS` moments that follow each other have different ones.
    #[must_use]
    pub const fn lba(self) -> Lba {
        Lba((SHARD_BLOCKS_MAX + self.0 % SHARD_MOMENTS) as u32)
    }

    /// The addresses from this moment up to, but without, another one: of at most `SHARD_MOMENTS`, the last ones. Two stretches
    /// if they go round, none if there is nothing between the two.
    #[must_use]
    pub fn until(self, end: Self) -> Vec<BlockRange> {
        let from = self.max(end.less(SHARD_MOMENTS));
        let len = end.0.saturating_sub(from.0);
        let first = len.min(SHARD_MOMENTS - from.0 % SHARD_MOMENTS);
        let ranges = [(from.lba(), first), (Self(from.0.saturating_add(first)).lba(), len - first)];
        let ranges = ranges.into_iter().filter(|(_, len)| *len > 0);
        ranges.map(|(start, len)| BlockRange { start, len: len as u32 }).collect()
    }
}

impl BlockRange {
    /// True if an extent of a shard may have these addresses: all of them are of blocks, or, of one without data, all of times.
    #[must_use]
    pub const fn is_in_shard(self, has_data: bool) -> bool {
        let of_times = !has_data && self.start.0 as u64 >= SHARD_BLOCKS_MAX && self.end() <= SHARD_ADDRESSES;
        self.end() <= SHARD_BLOCKS_MAX || of_times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MOMENTS_TOLD, RETAIN_MS_MAX};

    #[test]
    fn addresses_lie_behind_blocks_and_are_different_within_what_is_told() {
        assert_eq!(Moment(0).lba().0 as u64, SHARD_BLOCKS_MAX);
        assert_eq!(Moment(SHARD_MOMENTS - 1).lba().0 + 1, TIMES_LBA.0);
        assert_eq!(u64::from(TIMES_LBA.0) + 1, SHARD_ADDRESSES);
        assert_eq!(Moment(SHARD_MOMENTS).lba(), Moment(0).lba());
        const { assert!(RETAIN_MS_MAX / MOMENT_MS < MOMENTS_TOLD && MOMENTS_TOLD < SHARD_MOMENTS) }
        const { assert!(SHARD_ADDRESSES <= 1 << 32) }
    }

    #[test]
    fn stretches_of_moments_go_round() {
        let range = |start: Lba, len| BlockRange { start, len };
        assert_eq!(Moment(5).until(Moment(8)), [range(Moment(5).lba(), 3)]);
        assert!(Moment(8).until(Moment(8)).is_empty() && Moment(9).until(Moment(8)).is_empty());
        let last = 7 * SHARD_MOMENTS - 2;
        assert_eq!(Moment(last).until(Moment(last + 2)), [range(Moment(last).lba(), 2)]);
        assert_eq!(Moment(last).until(Moment(last + 5)), [range(Moment(last).lba(), 2), range(Moment(0).lba(), 3)]);
        let all: u64 = Moment(3).until(Moment(u64::MAX)).iter().map(|r| u64::from(r.len)).sum();
        assert_eq!(all, SHARD_MOMENTS);
    }

    #[test]
    fn times_become_moments() {
        assert_eq!((Moment::from_ms(0), Moment::from_ms(1), Moment::from_ms(100)), (Moment(0), Moment(1), Moment(1)));
        assert_eq!((Moment::at_wall(99_999_999), Moment::at_wall(100_000_000)), (Moment(0), Moment(1)));
        assert_eq!((Moment(7).ms(), Moment(7).next(), Moment(u64::MAX).next()), (700, Moment(8), Moment(u64::MAX)));
        assert_eq!((Moment(7).wall(), Moment(u64::MAX).wall(), Moment(3).less(5)), (700_000_000, u64::MAX, Moment(0)));
    }

    #[test]
    fn no_extent_lies_over_the_border() {
        let edge = SHARD_BLOCKS_MAX as u32;
        let at = BlockRange::new;
        assert!(at(edge - 2, 2).is_in_shard(true) && at(0, edge).is_in_shard(false) && at(edge, 5).is_in_shard(false));
        assert!(
            !at(edge - 2, 3).is_in_shard(false)
                && !at(edge, 5).is_in_shard(true)
                && !at(0, u32::MAX).is_in_shard(false)
        );
        assert!(at(TIMES_LBA.0, 1).is_in_shard(false) && !at(TIMES_LBA.0, 2).is_in_shard(false));
        assert!(!at(u32::MAX, u32::MAX).is_in_shard(false));
    }
}

//! The past of a shard: how it is named, and where its map tells when what was ordered.
//!
//! Time is cut into *moments* of `MOMENT_MS`. The first frame of a moment in which updates are ordered says so by a zero at
//! the moment's address, which lies behind those of all blocks. So the entry's version is the first one of that moment, and
//! times travel, are kept, and are found with the map. Addresses come again; those of moments in front of the retention window
//! are trimmed with each step of it, so a trim at a moment's address says that nothing is known of it.

use crate::limits::{MOMENT_MS, MOMENTS_AHEAD, SHARD_ADDRESSES, SHARD_BLOCKS_MAX, SHARD_MOMENTS};
use crate::{BlockRange, Lba, Version};
use core::fmt;

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

    /// The moment behind it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Its address. `SHARD_MOMENTS` moments that follow each other have different ones.
    #[must_use]
    pub const fn lba(self) -> Lba {
        Lba((SHARD_BLOCKS_MAX + self.0 % SHARD_MOMENTS) as u32)
    }

    /// The oldest moment whose address none has that is to come within `MOMENTS_AHEAD`.
    #[must_use]
    pub const fn oldest(self) -> Self {
        Self((self.0 + MOMENTS_AHEAD + 1).saturating_sub(SHARD_MOMENTS))
    }

    /// The addresses of moments in front of this one, down to the oldest that can be told at `now`: what is trimmed when a
    /// window begins here. Two stretches if they go round, none if this is the oldest one.
    #[must_use]
    pub fn before(self, now: Self) -> Vec<BlockRange> {
        let from = now.oldest();
        let len = self.0.saturating_sub(from.0).min(SHARD_MOMENTS);
        let first = len.min(SHARD_ADDRESSES - u64::from(from.lba().0));
        let ranges = [(from.lba(), first), (Self(from.0 + first).lba(), len - first)];
        let ranges = ranges.into_iter().filter(|(_, len)| *len > 0);
        ranges.map(|(start, len)| BlockRange { start, len: len as u32 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{RETAIN_MS_MAX, SHARD_ADDRESSES};

    #[test]
    fn addresses_lie_behind_blocks_and_are_different_within_a_window() {
        assert_eq!(Moment(0).lba().0 as u64, SHARD_BLOCKS_MAX);
        assert_eq!(Moment(SHARD_MOMENTS - 1).lba().0 as u64, SHARD_ADDRESSES - 1);
        assert_eq!(Moment(SHARD_MOMENTS).lba(), Moment(0).lba());
        assert!(RETAIN_MS_MAX / MOMENT_MS + MOMENTS_AHEAD < SHARD_MOMENTS && SHARD_ADDRESSES <= 1 << 32);
    }

    #[test]
    fn all_that_is_not_in_a_window_or_to_come_is_in_front_of_it() {
        let blocks = |m: u64, now: u64| Moment(m).before(Moment(now)).iter().map(|r| u64::from(r.len)).sum::<u64>();
        let all = SHARD_MOMENTS - MOMENTS_AHEAD - 1;
        for now in [3 * SHARD_MOMENTS - 1, 3 * SHARD_MOMENTS, 5 * SHARD_MOMENTS + 77, 5 * SHARD_MOMENTS + MOMENTS_AHEAD]
        {
            let is_in = |m: u64, lba: Lba| {
                let inside = |r: &BlockRange| r.start <= lba && u64::from(lba.0) < r.end();
                Moment(m).before(Moment(now)).iter().any(inside)
            };
            for window in [0, 1, 1000, RETAIN_MS_MAX / MOMENT_MS] {
                let first = now - window;
                assert_eq!(blocks(first, now), all - window);
                assert!(is_in(first, Moment(first - 1).lba()) && !is_in(first, Moment(first).lba()));
                assert!(!is_in(first, Moment(now).lba()) && !is_in(first, Moment(now + MOMENTS_AHEAD).lba()));
                assert!(is_in(first, Moment(now).oldest().lba()));
            }
        }
        assert!(Moment(5).before(Moment(7)).iter().all(|r| r.start.0 as u64 == SHARD_BLOCKS_MAX && r.len == 5));
        assert_eq!(blocks(9 * SHARD_MOMENTS, 20 * SHARD_MOMENTS), 0);
    }

    #[test]
    fn times_become_moments() {
        assert_eq!((Moment::from_ms(0), Moment::from_ms(1), Moment::from_ms(100)), (Moment(0), Moment(1), Moment(1)));
        assert_eq!((Moment::at_wall(99_999_999), Moment::at_wall(100_000_000)), (Moment(0), Moment(1)));
        assert_eq!((Moment(7).ms(), Moment(7).next(), Moment(u64::MAX).next()), (700, Moment(8), Moment(u64::MAX)));
    }
}

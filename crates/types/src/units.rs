//! Units of address and length. A block is 4 KiB, a sector of a client is 512 bytes.

use core::fmt;

/// Bytes of a block, the unit of maps, CRCs and atomicity.
pub const BLOCK: usize = 4096;
/// Bytes of the smallest request of a client.
pub const SECTOR: usize = 512;

/// A block address inside one shard. A shard addresses at most 2^28 blocks (1 TiB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u32);

impl Lba {
    /// The address `n` blocks on. Panics past 2^32 blocks; addresses from outside are checked before.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        match self.0.checked_add(n) {
            Some(v) => Self(v),
            None => panic!("block address overflow"),
        }
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A run of blocks `[start, start + len)` of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    /// First block.
    pub start: Lba,
    /// Number of blocks. Ranges of length 0 are refused wherever they come from outside.
    pub len: u32,
}

impl BlockRange {
    /// The `len` blocks from block `start` on.
    #[must_use]
    pub const fn new(start: u32, len: u32) -> Self {
        Self { start: Lba(start), len }
    }

    /// One past the last block, as u64, so that it can't overflow.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.0 as u64 + self.len as u64
    }

    /// True if any block is in both. An empty range overlaps one that it lies strictly inside.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        (self.start.0 as u64) < other.end() && (other.start.0 as u64) < self.end()
    }
}

/// Nanoseconds of a monotonic clock since an arbitrary start. Never a wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
    /// The time `d` later; stays at the largest one instead of overflowing.
    #[must_use]
    pub const fn plus(self, d: Nanos) -> Self {
        Self(self.0.saturating_add(d.0))
    }
    /// Time since `earlier`, 0 if that lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Self(self.0.saturating_sub(earlier.0))
    }
    /// Whole milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

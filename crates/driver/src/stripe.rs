//! Where a client's bytes lie: address stripe k is on shard k mod n, there at stripe k div n.
//!
//! Invariants: whatever range of the volume is cut into spans, each byte is in exactly one span, a span is one
//! contiguous run of its shard, and spans end only at multiples of the granule (so that what is aligned to less
//! than it is never torn) or at the end of the range.

use freebs_types::{BLOCK, BlockRange, Error, Result, limits};

/// Size and striping of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub size: u64,
    stripe: u64,
    shards: u64,
}

/// A walk over a range of the volume, span by span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    /// The rest: the present granule begins at `at`.
    at: u64,
    end: u64,
    granule: u64,
    /// Shards of the present granule that were done.
    done: u64,
}

/// A contiguous run of bytes of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub shard: usize,
    /// Byte address in the shard.
    pub start: u64,
    pub len: u64,
    /// The client's range that this is a part of.
    from: u64,
    to: u64,
}

impl Span {
    /// The blocks it touches, and the bytes of the first block before it.
    pub fn blocks(&self) -> (BlockRange, usize) {
        let block = BLOCK as u64;
        let first = self.start / block;
        let end = (self.start + self.len).div_ceil(block);
        (BlockRange::new(first as u32, (end - first) as u32), (self.start % block) as usize)
    }
}

impl Layout {
    /// A layout that can't be served has size 0 and says why.
    pub fn new(size: u64, stripe: u64, shards: usize) -> Result<Self> {
        if shards == 0 || shards > limits::VOLUME_SHARDS_MAX as usize {
            return Err(Error::invalid("a volume has 1 to 1,024 shards"));
        }
        if shards > 1 && (!stripe.is_power_of_two() || stripe < BLOCK as u64 || stripe > 1 << 40) {
            return Err(Error::invalid("a stripe is a power of two from 4,096 bytes to 1 TiB"));
        }
        let n = shards as u64;
        let capacity = n * limits::SHARD_VOLUME_BLOCKS_MAX * BLOCK as u64;
        if size > capacity {
            return Err(Error::invalid("a shard holds at most 1,022 GiB: the volume needs more shards"));
        }
        // One shard is one endless stripe.
        Ok(Self { size, stripe: if n == 1 { 1 << 62 } else { stripe }, shards: n })
    }

    /// Whether the range lies in the volume.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    pub fn walk(&self, offset: u64, len: u64, granule: u64) -> Walk {
        Walk { at: offset, end: offset + len, granule, done: 0 }
    }

    /// The next span and the walk behind it.
    pub fn next(&self, mut walk: Walk) -> Option<(Span, Walk)> {
        while walk.at < walk.end {
            let to = ((walk.at / walk.granule + 1) * walk.granule).min(walk.end);
            let (first, last) = (walk.at / self.stripe, (to - 1) / self.stripe);
            let k = first + walk.done;
            if walk.done == self.shards || k > last {
                walk = Walk { at: to, done: 0, ..walk };
                continue;
            }
            // Stripes k, k + n, ... of the granule follow one another in the shard.
            let k_last = k + (last - k) / self.shards * self.shards;
            let start = k / self.shards * self.stripe + if k == first { walk.at % self.stripe } else { 0 };
            let end = k_last / self.shards * self.stripe
                + if k_last == last { (to - 1) % self.stripe + 1 } else { self.stripe };
            let span = Span { shard: (k % self.shards) as usize, start, len: end - start, from: walk.at, to };
            walk.done += 1;
            return Some((span, walk));
        }
        None
    }

    /// The runs of a client's range in its order: (offset, length, shard).
    pub fn runs(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, usize)> {
        let (stripe, shards) = (self.stripe, self.shards);
        let mut at = from;
        std::iter::from_fn(move || {
            if at >= to {
                return None;
            }
            let k = at / stripe;
            let end = ((k + 1) * stripe).min(to);
            let run = (at, end - at, (k % shards) as usize);
            at = end;
            Some(run)
        })
    }

    /// Where a byte of the volume lies in its shard.
    pub fn address(&self, at: u64) -> u64 {
        at / self.stripe / self.shards * self.stripe + at % self.stripe
    }

    /// The client's runs (offset, length) that make up a span, in the shard's order.
    pub fn pieces(&self, span: Span) -> impl Iterator<Item = (u64, u64)> {
        let (stripe, shards) = (self.stripe, self.shards);
        let first = span.from / stripe;
        let behind = (span.shard as u64 + shards - first % shards) % shards;
        let mut k = first + behind;
        std::iter::from_fn(move || {
            let at = span.from.max(k * stripe);
            if at >= span.to {
                return None;
            }
            let end = ((k + 1) * stripe).min(span.to);
            k += shards;
            Some((at, end - at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_shard_is_the_identity() {
        let layout = Layout::new(1022 << 30, 0, 1).unwrap();
        let (span, walk) = layout.next(layout.walk(1000, 5000, 1 << 20)).unwrap();
        assert_eq!((span.shard, span.start, span.len), (0, 1000, 5000));
        assert_eq!(span.blocks(), (BlockRange::new(0, 2), 1000));
        assert!(layout.next(walk).is_none());
    }

    #[test]
    fn impossible_layouts_are_refused() {
        assert!(Layout::new(1 << 20, 4096, 0).is_err());
        assert!(Layout::new(1 << 20, 5000, 2).is_err());
        assert!(Layout::new(1 << 20, 2048, 2).is_err());
        assert!(Layout::new(1023 << 30, 4096, 1).is_err());
        assert!(Layout::new(2044 << 30, 4096, 2).is_ok());
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_span(
            shards in 1usize..6, stripe in 0u32..4, offset in 0u64..300_000, len in 0u64..300_000, granule in 0u32..5,
        ) {
            let stripe = 4096u64 << stripe;
            let granule = 16_384u64 << granule;
            let layout = Layout::new(600_000, stripe, shards).unwrap();
            let place = |at: u64| {
                if shards == 1 { return (0, at) }
                let k = at / stripe;
                ((k % shards as u64) as usize, k / shards as u64 * stripe + at % stripe)
            };
            let mut walk = layout.walk(offset, len, granule);
            let mut seen = vec![false; len as usize];
            while let Some((span, rest)) = layout.next(walk) {
                walk = rest;
                let mut at = span.start;
                prop_assert!(span.len > 0 && span.to - span.from <= granule);
                for (from, n) in layout.pieces(span) {
                    for byte in (from..from + n).step_by(512).chain([from + n - 1]) {
                        prop_assert_eq!(place(byte), (span.shard, at + (byte - from)));
                    }
                    for byte in from..from + n {
                        prop_assert!(!std::mem::replace(&mut seen[(byte - offset) as usize], true));
                    }
                    at += n;
                }
                prop_assert_eq!(at, span.start + span.len);
            }
            prop_assert!(seen.iter().all(|s| *s));
            let mut at = offset;
            for (from, n, shard) in layout.runs(offset, offset + len) {
                prop_assert_eq!((from, place(from).0), (at, shard));
                at += n;
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}

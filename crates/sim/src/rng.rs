//! The one source of chance of a run: xoshiro256++ seeded by splitmix64.
//!
//! Invariant: the same seed gives the same numbers on every machine. Parts of a run draw from streams of their own
//! (`fork`), so that a change in one part does not shift the luck of the others.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// One step of splitmix64: also a good mixer of a single number.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        Self(std::array::from_fn(|_| {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(at)
        }))
    }

    /// A stream of its own, named by `salt`.
    #[must_use]
    pub fn fork(seed: u64, salt: u64) -> Self {
        Self::new(mix(seed) ^ mix(salt.wrapping_mul(0xd6e8_feb8_6659_fd93)))
    }

    pub fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// From 0 to `n - 1`; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }

    /// Between `low` and `high`, with small values as likely as large ones in every order of magnitude.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let (a, b) = ((low.max(1) as f64).ln(), (high.max(1) as f64).ln());
        let at = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        ((a + (b - a) * at).exp() as u64).clamp(low, high)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_streams_differ() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(Rng::fork(7, 1).next(), Rng::fork(7, 2).next());
        assert_ne!(Rng::fork(7, 1).next(), Rng::fork(8, 1).next());
    }

    #[test]
    fn odds_are_about_right() {
        let mut r = Rng::new(1);
        let hits = (0..10_000).filter(|_| r.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!(!(0..1_000).any(|_| r.chance(0.0)));
        assert!((0..1_000).all(|_| r.chance(1.0)));
        assert!((0..1_000).all(|_| (3..=9).contains(&r.range(3, 9)) && (10..=99).contains(&r.spread(10, 99))));
    }
}

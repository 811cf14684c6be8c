//! A small generator: tests name their seed, so that a failure can be run again.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator whose seed comes from `FREEBS_SEED` or from the time, and is told.
    #[must_use]
    pub fn announced(what: &str) -> Self {
        let seed = match std::env::var("FREEBS_SEED") {
            Ok(text) => text.parse().expect("FREEBS_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64 & 0xffff_ffff,
        };
        super::tools::say(&format!("{what}: FREEBS_SEED={seed}"));
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

//! Clock and randomness as traits.

use freebs_types::Nanos;

/// Time. Safety decisions use `now` only.
pub trait Clock: 'static {
    /// Monotonic time.
    fn now(&self) -> Nanos;
    /// Wall-clock nanoseconds since 1970, for people and retention windows; may jump.
    fn wall(&self) -> u64;
}

/// Randomness: secrets and identities.
pub trait Random: 'static {
    /// Fills all of `bytes`. From the operating system in a node, from the seed in tests.
    fn fill(&mut self, bytes: &mut [u8]);

    /// A number of 64 random bits.
    fn next_u64(&mut self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }
}

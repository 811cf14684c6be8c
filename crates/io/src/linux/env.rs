//! The real clock and the operating system's random generator.

use crate::{Clock, Random};
use freebs_types::Nanos;

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn read(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the answer.
    let result = unsafe { libc::clock_gettime(clock, &mut t) };
    assert_eq!(result, 0, "clock {clock} cannot be read");
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

impl Clock for SystemClock {
    /// Time since boot, time asleep included: a lease must also run out on a machine (or virtual machine) that was
    /// suspended, so `CLOCK_MONOTONIC`, which stands still then, would not do.
    fn now(&self) -> Nanos {
        Nanos(read(libc::CLOCK_BOOTTIME))
    }

    fn wall(&self) -> u64 {
        read(libc::CLOCK_REALTIME)
    }
}

/// The operating system's generator, fit for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    /// Panics if the system gives no randomness: there is no safe way to go on without.
    fn fill(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives random bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_and_the_wall_clock_is_of_this_century() {
        let a = SystemClock.now();
        let b = SystemClock.now();
        assert!(b >= a && a.0 > 0);
        let year_2020 = 1_577_836_800_u64 * 1_000_000_000;
        assert!(SystemClock.wall() > year_2020);
    }

    #[test]
    fn random_numbers_differ() {
        let (a, b) = (OsRandom.next_u64(), OsRandom.next_u64());
        assert_ne!(a, b);
        let mut bytes = [0; 64];
        OsRandom.fill(&mut bytes);
        assert_ne!(bytes, [0; 64]);
    }
}

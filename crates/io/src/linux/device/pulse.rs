//! How long devices have not answered: what is in flight, and when something was answered last.
//!
//! Writes and syncs count together, and reads by themselves: a file system that takes no writes may still give what it has in
//! memory. Operations that may take long in good order (changes of the length, holes, writing zeroes ahead) do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The pulse of devices that count as one: clones share it. Asked from any thread.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Times are counted from here.
    zero: Instant,
    reads: Beat,
    writes: Beat,
}

#[derive(Debug, Default)]
struct Beat {
    in_flight: AtomicU32,
    /// When the last answer came, or the first of those that are in flight was asked; in milliseconds.
    since_ms: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(Inner { zero: Instant::now(), reads: Beat::default(), writes: Beat::default() }))
    }
}

/// An operation in flight, until it is dropped.
pub(super) struct InFlight<'a>(&'a Pulse, &'a Beat);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // The time first: who sees the number of before sees an answer that has just come.
        self.1.since_ms.store(self.0.now_ms(), Ordering::Release);
        self.1.in_flight.fetch_sub(1, Ordering::Release);
    }
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        self.0.zero.elapsed().as_millis() as u64
    }

    fn begin<'a>(&'a self, beat: &'a Beat) -> InFlight<'a> {
        if beat.in_flight.load(Ordering::Acquire) == 0 {
            beat.since_ms.store(self.now_ms(), Ordering::Release);
        }
        beat.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(self, beat)
    }

    pub(super) fn read(&self) -> InFlight<'_> {
        self.begin(&self.0.reads)
    }

    pub(super) fn write(&self) -> InFlight<'_> {
        self.begin(&self.0.writes)
    }

    /// For how long something has been in flight and nothing was answered; zero if nothing is in flight.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        let now = self.now_ms();
        let of = |beat: &Beat| match beat.in_flight.load(Ordering::Acquire) {
            0 => 0,
            _ => now.saturating_sub(beat.since_ms.load(Ordering::Acquire)),
        };
        Duration::from_millis(of(&self.0.reads).max(of(&self.0.writes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_silent(pulse: &Pulse, ms: u64) -> bool {
        pulse.silent_for() >= Duration::from_millis(ms)
    }

    #[test]
    fn silence_is_counted_from_the_last_answer_and_only_while_something_is_asked() {
        let pulse = Pulse::default();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pulse.silent_for(), Duration::ZERO, "nothing is asked");
        let first = pulse.write();
        let second = pulse.write();
        assert!(!is_silent(&pulse, 20), "it counts from when it was asked");
        std::thread::sleep(Duration::from_millis(20));
        assert!(is_silent(&pulse, 20));
        // An answered read says nothing of writes.
        drop(pulse.read());
        assert!(is_silent(&pulse, 20));
        let known = pulse.clone().silent_for();
        drop(first);
        assert!(pulse.silent_for() < known, "an answer came");
        drop(second);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pulse.silent_for(), Duration::ZERO);
        let _read = pulse.read();
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_silent(&pulse, 10));
    }
}

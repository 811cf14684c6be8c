//! The times of this crate: how long a worker polls, and how long a link may be dead.

use std::time::Duration;

/// No polling window is longer: beyond it a wake-up (10 to 50 µs) costs little in proportion, and polling longer would
/// only burn the processor.
pub(crate) const POLL_WINDOW_MAX: Duration = Duration::from_millis(1);
/// The first polling window after none: about what a wake-up costs. A shorter one would hardly ever see an event; a
/// longer one is what a window grows to when it does.
pub(crate) const POLL_WINDOW_MIN: Duration = Duration::from_micros(25);
/// A look without an event that takes this long: another thread had the processor. A look by itself takes a few µs, and
/// a thread that gets the processor mostly keeps it for longer than this.
pub(crate) const LOOK_TAKEN: Duration = Duration::from_micros(200);
/// The other side of a TCP link may acknowledge nothing for this long; then the link is closed. Shorter, a loss burst of
/// the network closes links; longer, a peer that has lost its power is noticed later by those that only wait for it.
pub(crate) const TCP_SILENCE_MAX: Duration = Duration::from_secs(5);

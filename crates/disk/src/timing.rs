//! The times of the library: how long callers wait for each other, and when what nobody waits for is done.

use std::time::Duration;

/// A file that another process has is waited for this long: one that was just killed lets go in a moment. Longer, a
/// disk that is in use is told late to who opens it twice.
pub(crate) const BUSY_MAX: Duration = Duration::from_secs(2);
/// A file that another process has is tried again this often.
pub(crate) const BUSY_LOOK: Duration = Duration::from_millis(5);
/// Time between checkpoints of the log (DESIGN section 3), unless somebody chose another one. It bounds what `open` reads
/// again after a kill.
pub(crate) const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// Writes that nobody waits for are done after this time at the latest. Shorter, small writes are gathered less; longer,
/// more of what was not synced is lost by a kill.
pub(crate) const WRITE_BEHIND: Duration = Duration::from_millis(20);
/// After this time without an append the last one is proven durable (rule E7), so that a torn end is told from damage.
/// Longer than a pause of a busy caller, for which each proof is a write more.
pub(crate) const MARK_AFTER_IDLE: Duration = Duration::from_millis(200);
/// The keeper waits at most this long for those it has just answered to come back, so that one sync serves them all:
/// a little more than it takes threads to wake and call again, and little beside a sync.
pub(crate) const GATHER_MAX: Duration = Duration::from_micros(120);

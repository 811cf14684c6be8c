//! The times of a driver: when it asks again, how long it waits, when it gives up.

use freebs_types::{Nanos, timing};

/// A request that has no outcome after this time fails (CONTRACT 15), unless the volume says otherwise. Longer than any
/// view change, restart of a node or take-over of an attachment, so that clients see a pause and not an error; shorter
/// than the time after which a file system over NBD is given up by its users.
pub const REQUEST_LIMIT: Nanos = Nanos::from_millis(60_000);

/// A lease runs this long from the asking. The member counts `LEASE_MS` from its answer, and its clock may be as much
/// too fast as this one is too slow: 2,000 ms less twice the drift are 1,960 ms. Any longer would break rule L1.
pub(crate) const LEASE: Nanos =
    Nanos::from_millis(timing::LEASE_MS - 2 * timing::LEASE_MS / timing::CLOCK_DRIFT_ONE_IN);
/// A lease is asked for again when this much of it is left: half, so that several questions may be lost before
/// the driver has to hold answers back.
pub(crate) const LEASE_RENEW_LEFT: Nanos = Nanos(LEASE.0 / 2);
/// A member that has not answered a question for a lease is asked again after this time at the earliest. Longer than
/// a round trip and a sync, so that a healthy member is asked once; short beside what is left of the lease.
pub(crate) const LEASE_ASK_AGAIN: Nanos = Nanos::from_millis(100);

/// A question to a member (attach, follow) without an answer is asked again after this time. Refusals and broken links
/// are noticed by themselves; this is for messages that a member dropped, which is rare.
pub(crate) const ASK_AGAIN: Nanos = Nanos::from_millis(1000);
/// Time between two questions to one member for a view that it has named: a burst of answers that all name a newer view
/// is one question.
pub(crate) const VIEW_ASK_GAP: Nanos = Nanos::from_millis(10);
/// An update without any answer is sent again after this time, doubled each time, up to eight times as long. Repeats
/// are only for what a head has dropped: a broken link or a new view repeats at once.
pub(crate) const REPEAT_AFTER: Nanos = Nanos::from_millis(1000);

/// Silence of a read after which another member is asked, too. Doubled each time, up to eight times as long. Well above
/// a slow disk's answer, so that load alone does not double the reads; well below what a client feels as a stall.
pub(crate) const HEDGE_AFTER: Nanos = Nanos::from_millis(200);
/// A member that was silent is asked again after this time whether it answers in time: a few small reads a second are
/// the price of noticing that it is back.
pub(crate) const PROBE_EVERY: Nanos = Nanos::from_millis(500);

/// The first pause of a back-off, in milliseconds (links, refusals); it doubles each time.
pub(crate) const BACK_OFF_MIN_MS: u64 = 10;
/// The longest pause of a back-off, in milliseconds: a member that comes back is noticed within it.
pub(crate) const BACK_OFF_MAX_MS: u64 = 500;

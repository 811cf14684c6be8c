//! How long a node or gateway waits: before it asks the control plane again, and before it dials again.

use freebs_types::Nanos;

/// The control plane is asked for an attachment for this long: longer than an election and the time for which it tries a
/// command.
pub const ATTACH_ASK_LIMIT: Nanos = Nanos::from_millis(15_000);
/// News are waited for this long before it is asked again.
pub const ATTACH_ASK_AGAIN: Nanos = Nanos::from_millis(100);
/// A volume that is taken from its clients answers what they had asked before for this long: as long as leases run, so
/// longer than most answers take, and no longer than somebody would wait who takes the volume by force.
pub const LEAVE_MAX: Nanos = Nanos::from_millis(2000);
/// A node's registration is tried again after this time, while there is no leader to take it.
pub const REGISTER_AGAIN: Nanos = Nanos::from_millis(100);
/// The same when the state could not be written (a disk is full, for one), which does not pass in moments.
pub const REGISTER_UNWRITTEN_AGAIN: Nanos = Nanos::from_millis(1000);

/// The first pause before a link to a member is tried again; it doubles each time. A peer that was started again is there
/// soon.
pub const LINK_BACK_OFF_MIN: Nanos = Nanos::from_millis(20);
/// The longest such pause: a peer that comes back has its links within it.
pub const LINK_BACK_OFF_MAX: Nanos = Nanos::from_millis(500);
/// A link that lasted this long broke for a reason of its own, and is opened again at once. One that lasted less is
/// probably refused by the other side each time.
pub const LINK_STEADY: Nanos = Nanos::from_millis(1000);

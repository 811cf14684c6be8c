//! The times of the simulated world that no seed decides: how often it looks, and how long its parts wait.
//!
//! Times that a seed decides are drawn in `config` and where the fault is made.

use freebs_types::Nanos;
use std::time::Duration;

/// A direction of the network that is held back is looked at again this often: a cut that ends is noticed as late as
/// that, which is little beside how long cuts last.
pub(crate) const HELD_BACK_LOOK: Nanos = Nanos::from_millis(20);
/// A caller of the control plane that hears nothing gives up after this time: far below what real callers wait, so that
/// short runs see callers that do not know what became of their request.
pub(crate) const CALL_PATIENCE: Nanos = Nanos::from_millis(300);
/// A node that starts asks again after this time for all that was decided.
pub(crate) const CALL_AGAIN: Nanos = Nanos::from_millis(50);
/// A process that the control plane can't reach is told of its news again after this time.
pub(crate) const NEWS_AGAIN: Nanos = Nanos::from_millis(100);
/// A client whose volume can't be had comes back after this time.
pub(crate) const CLIENT_AGAIN: Duration = Duration::from_millis(30);
/// It is looked this often whether a volume needs a gateway.
pub(crate) const ATTACH_LOOK: Duration = Duration::from_millis(20);
/// Seats and the gateways that follow them are looked at this often: one heartbeat.
pub(crate) const SEAT_LOOK: Duration = Duration::from_millis(100);
/// A gateway waits this long for the answer of the node that it follows: longer than an election takes, and far below what
/// real ones wait, as `CALL_PATIENCE`.
pub(crate) const SEAT_PATIENCE: Duration = Duration::from_millis(2000);
/// The cluster has this long to take all seats in, before the run begins.
pub(crate) const SEATS_SET_UP: Nanos = Nanos::from_millis(20_000);
/// The end of a run looks this often whether all is well, so a run takes at most this much too long.
pub(crate) const SETTLED_LOOK: Nanos = Nanos::from_millis(50);
/// Faults begin this long after the start of the cluster, which mostly has come up by then; some of them meet one that is
/// still starting.
pub(crate) const COME_UP: Nanos = Nanos::from_millis(300);
/// A disk that does nothing for this long is its node's failure, as with real nodes.
pub const DEVICE_SILENT: Nanos = Nanos::from_millis(1000);
/// A slow disk takes this long for one operation at most; longer ones are stalls.
pub(crate) const SLOW_MAX: Nanos = Nanos::from_millis(4000);
/// A disk that stands still looks this often whether it may go on.
pub(crate) const STALL_LOOK: Nanos = Nanos::from_millis(50);
/// The shortest run that still fails is looked for in steps of this length: shorter than what happens in it takes.
pub(crate) const SHRINK_STEP: Nanos = Nanos::from_millis(10);
/// It is looked this often whether clients get answers where they should.
pub(crate) const PROGRESS_LOOK: Nanos = Nanos::from_millis(20);
/// They get them within this time, where enough members are up: a second until silence counts, and the way to another view, now
/// and then twice.
pub(crate) const PROGRESS_MOST: Nanos = Nanos::from_millis(2500);
/// When faults have ended, chains that became shorter have their copies again after this time: a node that failed again and again
/// is heard for a minute before it comes back, and of a shard one comes after the other.
pub(crate) const WHOLE_AGAIN: Nanos = Nanos::from_millis(90_000);

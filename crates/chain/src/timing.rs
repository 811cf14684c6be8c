//! The times of a chain: how long a head and members wait for each other, and how often a worker looks.
//!
//! But for `HEAD_ANSWER_DELAY` they are seen at a tick, so none is kept more exactly than `TICK`.

use freebs_types::{Nanos, timing};
use std::time::Duration;

/// Time-outs are looked at this often. Everything else happens when a message or completion comes, so this only bounds
/// how late a time-out is noticed: less than half of the shortest one, at a cost that an idle node does not feel.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A member from which the head hears nothing for this long while something is outstanding is passed over; and frames
/// that came before their predecessors wait this long for them, then they are fetched. One decision: how late a link may
/// be before it counts as not delivering.
pub(crate) const LINK_SILENCE: Nanos = Nanos::from_millis(timing::LINK_SILENCE_MS);
/// An idle head speaks this often to members that may not know its newest frame or commit. DESIGN's T = 250 ms is for
/// nodes and their failure; this is for a member that lost the last frame of a burst, which nothing else would tell it
/// of. It is told within one tenth of a second, and in a chain at rest nothing is sent.
pub(crate) const HEARTBEAT_EVERY: Nanos = Nanos::from_millis(100);
/// A passed-over member is invited to ask for what it lacks this often. It asks by itself when its link comes back;
/// this is for a link that stayed up.
pub(crate) const NUDGE_EVERY: Nanos = Nanos::from_millis(200);
/// A node that is to come to a view, and has everything, is asked again after this time whether that is so still: the control plane may be
/// silent for long before the view can be opened, and in that everybody waits for what is lacking by then.
pub(crate) const LEVEL_COUNTS: Nanos = Nanos::from_millis(1000);
/// A head hears of its members' durable sequences at the latest after this time, with many shards in one message;
/// drivers hear at once. The head frees its window and learns what is committed by it, so no client waits for it; shorter,
/// there is a message for each append.
pub(crate) const HEAD_ANSWER_DELAY: Nanos = Nanos::from_millis(3);
/// A lease runs this long from the member's answer (L1, L2).
pub(crate) const LEASE: Nanos = Nanos::from_millis(timing::LEASE_MS);
/// A driver that was given a generation has come to the members of an active view after this time, or comes no more. Its link
/// may have to be made anew twice until then.
pub(crate) const DRIVER_COMES: Nanos = Nanos::from_millis(3 * timing::LEASE_MS);

/// A head orders nothing behind its cut of a snapshot for this long at most (S2). Several times what an election of the
/// control plane's leader takes, and no longer than leases run: a client's writes wait for it.
pub(crate) const HOLD_MAX: Nanos = Nanos::from_millis(2000);
/// A head looks this often whether its log's retention window may begin later; more often, if the window is short.
pub(crate) const WINDOW_EVERY: Nanos = Nanos::from_millis(60_000);
/// Memory that the past takes is looked at this often.
pub(crate) const PAST_EVERY: Nanos = Nanos::from_millis(1000);
/// A window is made shorter for want of memory no more often than this: by then logs have looked whether that was enough.
pub(crate) const ROOM_EVERY: Nanos = Nanos::from_millis(2 * 1000);
/// A head looks no more often than this. A window is longer by that than it should be.
pub(crate) const WINDOW_EVERY_MIN: Nanos = Nanos::from_millis(1000);
/// A window moves at least this often, so that the log tells how far it was to have come; and people are told no more often
/// that it is short.
pub(crate) const WINDOW_TOLD_EVERY: Nanos = Nanos::from_millis(3600 * 1000);
/// A head's clock that is behind the last frame's by more than this is believed all the same, and times begin anew.
pub(crate) const CLOCK_BACK_MAX: Nanos = Nanos::from_millis(600_000);
/// A head's word on a snapshot is said again after this time, if the control plane has not taken it in.
pub(crate) const CUT_AGAIN: Nanos = Nanos::from_millis(250);

/// An unanswered seal is asked for again after this time: a promise needs one sync of the other's disk.
pub(crate) const SEAL_AGAIN: Nanos = Nanos::from_millis(100);
/// After an error the next proposal of a view waits this long, then twice as long, and so on five times (1.6 s); an
/// activation without an answer is asked for again after it. What went wrong is often over at once (a view that was
/// overtaken), and the shard takes no writes meanwhile.
pub(crate) const PROPOSE_AGAIN: Nanos = Nanos::from_millis(50);
/// While a view is opened, a fetch of which nothing was taken is asked for again after this time: longer than a peer
/// needs to read frames from its disk, since a second answer would bring the same bytes.
pub(crate) const OPENING_FETCH_AGAIN: Nanos = Nanos::from_millis(200);
/// A head that has waited this long for answers says what it waits for. A node that is being started answers sooner.
pub(crate) const WAIT_TOLD: Nanos = Nanos::from_millis(3000);
/// An opening that has not got on for this long starts anew with a higher view. Shorter, an opening that fetches from
/// a slow disk would never end; longer, a member that died in the middle keeps the shard shut.
pub(crate) const OPENING_PATIENCE: Nanos = Nanos::from_millis(5000);
/// A head that may go on by force waits this long for members that it has a link to: one that is there after all may have
/// more than those that were named.
pub(crate) const FORCED_PATIENCE: Nanos = Nanos::from_millis(1000);
/// Frames that are lost in the only log there is are given up by force after this time. Until then another survivor may
/// have them: each is asked several times.
pub(crate) const GIVE_UP_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// A stopped head says again that another member is to be head after this time; then after twice as long, and so on
/// five times. The control plane may have no leader, or nobody else may be able to lead.
pub(crate) const HAND_OVER_AGAIN: Nanos = Nanos::from_millis(1000);
/// The word that new members have everything is said again after this time, if the control plane has not taken it in.
pub(crate) const COMPLETE_AGAIN: Nanos = Nanos::from_millis(500);

/// An answer to a sync that takes longer is asked for again; the next one may take twice as long, and so on five times:
/// from a slow disk none would be in time otherwise, and all that it reads in vain.
pub(crate) const SYNC_AGAIN: Nanos = Nanos::from_millis(250);
/// A question for lost frames or entries is asked again, of the next member, after this time; after late answers twice
/// as long, and so on. Longer than for a sync: it is read from places all over the log.
pub(crate) const REPAIR_AGAIN: Nanos = Nanos::from_millis(500);
/// A question for the past is asked again, of the next member, after this time: it is read from places all over the log.
pub(crate) const PAST_AGAIN: Nanos = Nanos::from_millis(2000);
/// Twice as long after each one that was late, so many times at most.
pub(crate) const PAST_LATE_MAX: u32 = 4;
/// When no other member has more of the past it is asked for again after this time. Nobody waits for it, and who has it may
/// be away.
pub(crate) const PAST_PAUSE: Nanos = Nanos::from_millis(30_000);
/// When all others have refused frames or entries, they are asked again after this time; the next time after twice as
/// long, and so on three times: they may have given them up, and asked at every tick they would log nothing else.
pub(crate) const REFUSED_PAUSE: Nanos = Nanos::from_millis(500);
/// A question for the blocks of a damaged place is asked again, of the next member, after this time, and a place that
/// nobody could give rests as long. It is background work: reads go to other members meanwhile.
pub(crate) const MEND_AGAIN: Nanos = Nanos::from_millis(1000);
/// A learner on a full device rests this long; each time in a row twice as long, and so on three times, unless it sees
/// that there is room. What it learns can't be kept before cleaning has made room, and asking costs the others reads.
pub(crate) const FULL_PAUSE: Nanos = Nanos::from_millis(2000);
/// So long somebody counts as waiting for damaged blocks, who asked for them in vain: longer than it takes to ask again.
pub(crate) const AWAITED: Nanos = Nanos::from_millis(10_000);
const _: () = assert!(AWAITED.0 > SYNC_AGAIN.0 << 5);
/// A head refuses writes when no log has had room, nor made some, for this long (W7). Longer than a member needs to hear
/// of a commit and to say what that has freed: a heartbeat, two ticks and an answer. Longer still, clients of a full volume
/// wait for nothing.
pub(crate) const NO_ROOM_PATIENCE: Nanos = Nanos::from_millis(200);
const _: () = assert!(NO_ROOM_PATIENCE.0 > HEARTBEAT_EVERY.0 + 3 * TICK.as_nanos() as u64);
/// A member for whose room a write waits is passed over when it has not said for this long how much it has: several heartbeats,
/// each of which it would answer.
pub(crate) const ROOM_SILENCE: Nanos = Nanos::from_millis(500);
const _: () = assert!(ROOM_SILENCE.0 > 3 * HEARTBEAT_EVERY.0 + 3 * TICK.as_nanos() as u64);
/// The state that a transfer by map ends with is kept this long after it was last asked for. The asker's next piece
/// comes within moments, or the asker is gone; what is kept holds memory and pins what the map names.
pub(crate) const MAP_HOLD: Nanos = Nanos::from_millis(10_000);

/// A prepared interval whose driver says nothing gets its outcome after this time: as long as a lease runs. Shorter, drivers that
/// wait for a view change of one shard lose what the others have prepared.
pub(crate) const INTERVAL_PATIENCE: Nanos = Nanos::from_millis(timing::LEASE_MS);
/// The same while a cut waits: far less than `HOLD_MAX`, for which other shards hold; more than a driver's round trips.
pub(crate) const INTERVAL_PATIENCE_OF_CUTS: Nanos = Nanos::from_millis(300);
const _: () = assert!(2 * INTERVAL_PATIENCE_OF_CUTS.0 < HOLD_MAX.0);
/// The record of an abort whose driver is gone is kept this long after it was asked for: much longer than whoever asks again
/// takes to do so.
pub(crate) const ABORT_KEPT: Nanos = Nanos::from_millis(10_000);
/// Another shard, or the log, is asked again about intervals after this time.
pub(crate) const INTERVALS_AGAIN: Nanos = Nanos::from_millis(100);

/// When nothing was appended for this long, the log is closed with a mark (rule E7): it tells a torn end from damage.
/// Shorter, a client that writes now and then pays a write more each time; longer, more writes are under that doubt.
pub(crate) const MARK_AFTER_IDLE: Nanos = Nanos::from_millis(100);
/// While it can't be closed that is tried again after this time, then after twice as long, and so on this many times (6.4 s):
/// a full device may have no room for the mark for hours, and each look costs it a walk of what it holds.
pub(crate) const MARK_TRIES_MAX: u32 = 6;
/// Time between checkpoints of the log (DESIGN section 3). It bounds what recovery reads again after a kill.
pub(crate) const CHECKPOINT_EVERY: Nanos = Nanos::from_millis(60_000);
/// A log whose map lost a page is given up for a new start when it has been open for this long: if pages are lost again and
/// again, the starts, which read the whole log, are not all that the node does.
pub(crate) const LOST_MAP_ENDS_AFTER: Nanos = Nanos::from_millis(600_000);
/// The scrub reads a part of a second's share this often: small steps, so that a client's read never waits long.
pub(crate) const SCRUB_STEP: Duration = Duration::from_millis(250);
/// A pass of the scrub begins this long after the one before began, if that took less: a small log is not read without
/// end.
pub(crate) const SCRUB_PASS_EVERY: Nanos = Nanos::from_millis(3_600_000);

/// A fork whose parent is not here yet, or whose cut is not known to be committed, is waited for this long. Then the shard is
/// learned from others.
pub(crate) const FORK_PATIENCE: Nanos = Nanos::from_millis(5_000);
/// A log is asked this often whether it can make a fork by now.
pub(crate) const FORK_AGAIN: Nanos = Nanos::from_millis(100);
/// The first view of a clone's shard, which a quorum has, becomes active when all members that are there have it, or after
/// this time: who has not said so by then counts as one that learns.
pub(crate) const FORK_ROLL_CALL: Nanos = Nanos::from_millis(500);
/// Forks that are to be flat are looked for this often. One that failed is left alone this long; each time in a row
/// without a piece that was brought twice as long, and so on this many times (32 s): it may lack what only a repair or a deletion
/// brings.
pub(crate) const FLATTEN_EVERY: Duration = Duration::from_millis(100);
pub(crate) const FLATTEN_AGAIN: Nanos = Nanos::from_millis(2_000);
pub(crate) const FLATTEN_TRIES_MAX: u32 = 4;
/// Between two pieces clients have the disk.
pub(crate) const FLATTEN_PAUSE: Duration = Duration::from_millis(5);
/// A piece that takes longer to become durable is begun again.
pub(crate) const FLATTEN_PATIENCE: Duration = Duration::from_millis(30_000);

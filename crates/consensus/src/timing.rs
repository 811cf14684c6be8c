//! The times of the control plane: how fast a leader is replaced, when a node counts as failed, when as gone.
//!
//! The design has heartbeats every T = 250 ms and a node that was silent for 4 T has failed. Here 4 T is kept (1 s), and
//! heartbeats are sent every 100 ms, so that the loss of one or two of them is no silence, and a leader that is silent is
//! replaced within the same second. One whose links were closed is replaced within a few of `REACH_EVERY` (`doubts`).

use openraft::SnapshotPolicy;
use std::time::Duration;

/// Times, and when a snapshot is made.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Milliseconds between two heartbeats of the leader; also the step in which a seat counts time.
    pub heartbeat_ms: u64,
    /// Milliseconds that seats hold to a leader that they heard of. Then a voter waits for 0.7 to 1 of it more, by
    /// chance, before it asks for votes; an answer to that, which needs a disk, is waited for 0.7 of it.
    pub election_ms: u64,
    /// Milliseconds that an answer is waited for that needs somebody's disk.
    pub answer_ms: u64,
    /// A voter that was silent for this many milliseconds is replaced, and so is a member of a chain.
    pub gone_ms: u64,
    /// A node that was silent for this many milliseconds has failed: its shards get other heads.
    pub fail_ms: u64,
    /// Milliseconds that a command is tried.
    pub submit_ms: u64,
    /// Entries of the log after which a snapshot is made.
    pub snapshot_entries: u64,
}

impl Default for Timing {
    fn default() -> Self {
        // A leader that is silent is replaced after 0.85 to 1 s. A node that only seems so, because it or the network
        // was busy, costs nothing: votes are asked for only if most would give theirs.
        Self {
            heartbeat_ms: 100,
            election_ms: 500,
            answer_ms: 2000,
            gone_ms: 600_000,
            fail_ms: 1000,
            submit_ms: 10_000,
            snapshot_entries: 5000,
        }
    }
}

impl Timing {
    pub(crate) fn config(&self) -> openraft::Config {
        openraft::Config {
            cluster_name: "freebs".into(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_ms * 7 / 10,
            election_timeout_max: self.election_ms,
            install_snapshot_timeout: 4 * self.answer_ms,
            max_payload_entries: 256,
            replication_lag_threshold: 2 * self.snapshot_entries,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            max_in_snapshot_log_to_keep: self.snapshot_entries / 4,
            enable_pre_vote: Some(true),
            // Without it the library takes up to a thousand requests before it hears that entries are on the disk. If one
            // comes during each write, nothing is committed, and no heartbeat is sent.
            broadcast_submitted_on_append: Some(true),
            ..openraft::Config::default()
        }
    }
}

/// Milliseconds for which it counts that another node can't reach one either. A second is `fail_ms`: after it silence
/// decides by itself; an older agreement may be about a pause that is over.
pub(crate) const AGREED_MS: u64 = 1000;
/// A snapshot that is being made for this many milliseconds is given up: whoever asked for it has ended long ago, and it
/// would be of a moment that nobody asked for.
pub(crate) const SNAPSHOT_MS: u64 = 60_000;
/// Milliseconds after which others are asked again about a node that can't be reached: the other one looks for up to
/// `REACH_EVERY` times ten, and the question or its answer may be lost.
pub(crate) const DOUBT_AGAIN_MS: u64 = 300;
/// Milliseconds after which a node that is being emptied is gone: longer than a restart takes.
pub(crate) const DRAINED_GONE_MS: u64 = 30_000;
/// Milliseconds between two looks at the room of nodes: each may be a command, and room changes slowly.
pub(crate) const MEASURE_EVERY_MS: u64 = 2_000;
/// Hundredths of a node's room by which what is taken of it has to change to be told anew.
pub(crate) const MEASURE_PERCENT: u8 = 5;
/// Milliseconds between two copies that leave a full node: what one has freed is measured before the next.
pub(crate) const RELIEVE_EVERY_MS: u64 = 30_000;
/// Milliseconds without any failure after which heads go to nodes that are back: long enough that one which comes and goes gets
/// none, and each move costs a pause.
pub(crate) const HEADS_BACK_MS: u64 = 10_000;
/// Milliseconds between two heads that move.
pub(crate) const HEAD_EVERY_MS: u64 = 500;
/// Milliseconds for which a node that had failed is heard without a pause before it comes back to a chain that it left.
pub(crate) const RETURN_MS: u64 = 1000;
/// The same at most, after doubling each time that it fails again.
pub(crate) const RETURN_MOST_MS: u64 = 60_000;
/// Milliseconds after which it counts no more that a node had failed.
pub(crate) const RETURN_FORGET_MS: u64 = 600_000;
/// Milliseconds that a head may take to open its view before the next member is tried. A head that lacks frames fetches
/// them in that time; shorter, healthy heads under load are passed over, each at the cost of a view change.
pub(crate) const OPEN_MS: u64 = 10_000;
/// The same at most, after doubling at each try: a shard whose members all lack much comes to rest, and is still tried
/// again after minutes.
pub(crate) const OPEN_MOST_MS: u64 = 160_000;
/// After a start a leader is waited for this many milliseconds, and by chance up to as long again, before votes are asked
/// for: longer than a heartbeat, so that a leader that is there is heard; far below the 500 ms after which voters stand by
/// themselves, so that a cluster that was stopped is back at once.
pub(crate) const STAND_AFTER_MS: u64 = 150;
/// A seat that votes alone asks the other nodes for so long, before it leads, whether it is an old image; where all have answered, no
/// longer. As long as others wait for a leader after a start, at most.
pub(crate) const ALONE_ASKS: Duration = Duration::from_millis(2 * STAND_AFTER_MS);
/// It asks each of them this often: it may be started at the same time.
pub(crate) const ALONE_AGAIN: Duration = Duration::from_millis(50);
/// Heartbeats after which who leads alone asks again: those that it did not reach may be there by now.
pub(crate) const ALONE_LOOK_TICKS: u64 = 5;
/// Heartbeats for which a node has to say that its device does not answer before that is believed.
pub(crate) const SILENT_SAID: u64 = 2;
/// Heartbeats after which a node whose device did not answer judges others by theirs: one on the same disk says in the next one or
/// two that its device answers, too.
pub(crate) const JUDGES_AFTER: u64 = 5;
/// A node that is asked about another one tries this often whether it reaches it. A refused connection is known after
/// a millisecond, and heard of at once; a link that rests after a failure is opened again within a few of these.
pub(crate) const REACH_EVERY: Duration = Duration::from_millis(20);
/// A seat that catches up asks for an entry of its own this often for the first second, and at each heartbeat later: a
/// node that starts waits for it, and a leader may come at any moment.
pub(crate) const CATCH_UP_AGAIN: Duration = Duration::from_millis(20);
/// A seat looks this often whether an entry that it waits for is applied here.
pub(crate) const APPLIED_LOOK: Duration = Duration::from_millis(5);

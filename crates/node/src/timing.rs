//! The times of the program: what it waits for, for how long, and how often it looks. In the order of the rooms.
//!
//! Times that a protocol rests on are not here: those of the chain, of drivers and of the control plane stand in their
//! crates. What is here decides how soon people and peers hear of something, not what is true.

use freebs_control::timing::WATCH_MS;
use std::time::Duration;

// Anywhere.

/// A file or device that another process has is waited for this long: one that was just killed lets go when the kernel
/// has closed it, which takes as long as its last writes do. Longer, somebody who starts a node twice is told late.
pub const BUSY_MAX: Duration = Duration::from_secs(3);
/// A file or device that another process has is tried again this often.
pub const BUSY_LOOK: Duration = Duration::from_millis(10);
/// After a connection that could not be accepted (no file descriptors, mostly) this long is waited: they get free when
/// others close, and asked at once the loop would do nothing but log.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A socket of this host is listened at again after this time when a connection could not be accepted.
pub const HOST_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A process of this host that connects to ask something has this long to say it: it knows the question already.
pub const HOST_LINE_MAX: Duration = Duration::from_secs(5);

// `admin`: the control plane's edge.

/// A device that has answered nothing for this long, with something in flight, is its node's failure: the seat says so, and others
/// become heads. Longer than disks stall in good order now and then; with the heartbeats for which that is said, and a view change
/// behind them, about a second and a half.
pub const DEVICE_SILENT: Duration = Duration::from_millis(1000);
/// Workers tell the room of their logs this often; the leader looks at it less often.
pub const ROOM_TOLD_EVERY: Duration = Duration::from_millis(500);
/// The connection from seat to seat: a node that does not take it within this time counts as not there. Below
/// `fail_ms` of consensus, so that a seat that is gone does not hold up what is for another one.
pub const SEAT_CONNECT_MAX: Duration = Duration::from_millis(500);
/// A message to a seat that is not taken within this time ends the connection: what waits behind it is old by then, and
/// is sent again where it matters.
pub const SEAT_WRITE_MAX: Duration = Duration::from_secs(2);
/// Between attempts to reach a seat; what comes meanwhile is dropped. Half a heartbeat of consensus.
pub const SEAT_AGAIN: Duration = Duration::from_millis(50);
/// A connection to a seat that lasted this long broke for a reason of its own, and is tried again at once: whether that
/// node is gone is known then. One that lasted less is probably closed by the other side each time.
pub const SEAT_STEADY: Duration = Duration::from_secs(1);
/// A node that is to make a token, or that one joins by, may have been started on the line before: it is waited for this
/// long, which is more than a small node needs to read its devices.
pub const NODE_BEGINS_MAX: Duration = Duration::from_secs(15);
/// It is asked again this often.
pub const NODE_BEGINS_LOOK: Duration = Duration::from_millis(100);
/// Other members are noted again after this time if the file could not be written: mostly the disk is full.
pub const PEERS_AGAIN: Duration = Duration::from_secs(5);
/// Other nodes have this long to say whether they know a state, when this one is about to found the cluster. Who is there says
/// so at once, but for a machine that has far too much to do. It is in the way of the very first start only, where
/// nothing answers at an address, and one that answers later is heard of by its messages.
pub const FOUND_ASK_MAX: Duration = Duration::from_secs(3);
/// The leader's name for others, and the store's health, are looked up this often: one heartbeat.
pub const SEAT_LOOK: Duration = Duration::from_millis(100);
/// A node that is not known where one votes alone is let in for so long: the seats ask each other within `ALONE_ASKS` of
/// consensus, once each has a link to the other.
pub const KNOCK_MAX: Duration = Duration::from_secs(1);
/// After this time it is let in again; meanwhile it is told that it is no member.
pub const KNOCK_AGAIN: Duration = Duration::from_secs(30);
/// Somebody without a certificate has this long to join, which is several times what a command may take: then it has to
/// connect again.
pub const JOINING_MAX: Duration = Duration::from_secs(60);
/// Of those who were refused at the door it is told at most this often, and half as often each time that more come: anybody can
/// knock, and each line takes room in the log and among the events.
pub const KNOCKS_TOLD_EVERY: Duration = Duration::from_secs(10);
/// It is told at least this often.
pub const KNOCKS_TOLD_LEAST_OFTEN: Duration = Duration::from_secs(3600);
/// After this time without a knock it is told as often as at first.
pub const KNOCKS_QUIET: Duration = Duration::from_secs(600);
/// A member gives a node that does not know it this long to learn of it: one that begins to lead may be behind.
pub const UNKNOWN_MAX: Duration = Duration::from_secs(3);
/// A node that was never taken in gives up if it has heard for this long of another cluster only: a wrong address in
/// the cluster file is said within a second.
pub const FOREIGN_MAX: Duration = Duration::from_secs(1);
/// The newest state is looked at for a token within this time: other nodes that want to join wait for it.
pub const TOKEN_LOOK_MAX: Duration = Duration::from_secs(2);
/// A node that is to be removed gives its vote up within this time, if there are others to have it.
pub const RETIRE_MAX: Duration = Duration::from_secs(15);
/// A command that was applied becomes visible here within this time, or is answered all the same: the caller may then
/// read an older state.
pub const VISIBLE_MAX: Duration = Duration::from_secs(5);
/// A node learns within this time all that was committed before a question, or another node is to be asked.
pub const CATCH_UP_MAX: Duration = Duration::from_secs(5);
/// A watch is answered within its own time and five seconds more, or its connection is given up: room for a node that
/// is busy, since `SILENT_MAX` notices one that is gone.
pub const WATCH_MAX: Duration = Duration::from_millis(WATCH_MS + 5_000);
/// Between attempts of a follower to connect to some node.
pub const FOLLOW_AGAIN: Duration = Duration::from_millis(100);
/// The node that is followed is asked this often whether it is there.
pub const LISTEN_EVERY: Duration = Duration::from_secs(1);
/// It has this long to say so; then another one is followed. With `LISTEN_EVERY`, a frozen node holds a gateway up for
/// two seconds.
pub const SILENT_MAX: Duration = Duration::from_secs(1);
/// A command of a follower waits this long for a connection, and an announcement for its answer.
pub const CONNECTED_MAX: Duration = Duration::from_secs(1);
/// The node's answer to a command: as long as consensus tries one (`submit_ms`).
pub const COMMAND_MAX: Duration = Duration::from_secs(10);
/// A snapshot is tried for this long: several attempts, each of which waits for heads that hold.
pub const SNAPSHOT_MAX: Duration = Duration::from_secs(10);
/// An attempt at a snapshot that took this long failed because a shard did not come, and the heads of the others had held
/// for it: another attempt would stop their writers once more.
pub const SNAPSHOT_ATTEMPT_MAX: Duration = Duration::from_secs(1);
/// While another snapshot of the same volumes is being made, or there is no leader, it is tried again at news, or after
/// this time.
pub const SNAPSHOT_LOOK: Duration = Duration::from_millis(100);
/// The answer to a question for a snapshot: as long as it is tried, with a command at its begin and one at its end.
pub const SNAPSHOT_CALL_MAX: Duration = Duration::from_secs(35);
/// The leader looks at all schedules of snapshots this often: they are of whole minutes, and one that is some seconds late
/// is not missed.
pub const SCHEDULE_LOOK: Duration = Duration::from_secs(2);
/// A client's connection to a node's control API.
pub const CLIENT_CONNECT_MAX: Duration = Duration::from_secs(2);
/// Answers that nobody reads for this long end a connection of the control API.
pub const API_WRITE_MAX: Duration = Duration::from_secs(30);
/// One node has this long to say how it is, or what happened; `status` and `events` go on without those that do not.
pub const NODE_ANSWER_MAX: Duration = Duration::from_secs(2);
/// A digest has this long: it reads everything a replica holds, which for 10 TiB at 500 MB/s is six hours. A node that
/// dies is noticed by its connection.
pub const DIGEST_MAX: Duration = Duration::from_secs(6 * 3600);
/// Between rounds of a verification while replicas move.
pub const VERIFY_AGAIN: Duration = Duration::from_millis(200);

// `runtime`: workers, links, drivers.

/// A peer that says nothing for this long after connecting is let go. Longer than any start of a worker; it holds a
/// connection and 512 bytes meanwhile.
pub const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// A link to a worker of a node, greeting included.
pub const LINK_CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Drivers' time-outs are looked at this often: half of the shortest (10 ms, the first back-off).
pub const DRIVER_TICK: Duration = Duration::from_millis(5);
/// A volume whose members do not answer for this long is not attached: longer than a take-over waits for old leases and
/// a view change together. Clients are told earlier (`--attach-wait`); what was begun helps those that ask again.
pub const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// News are waited for this long before the control plane, or a worker, is asked again for an attachment.
pub const ATTACH_ASK_AGAIN: Duration = Duration::from_nanos(freebs_agent::timing::ATTACH_ASK_AGAIN.0);
/// All volumes together are given back within this time at a stop; those that are not lapse by their leases.
pub const GIVE_BACK_LIMIT: Duration = Duration::from_secs(2);
/// It is looked this often whether a volume that is let go has given its last answers.
pub const LEAVE_LOOK: Duration = Duration::from_millis(5);
/// An NBD client that takes no reply for this long is let go: it holds a place in the window of its volume. As long as
/// the request limit of drivers, so a client that itself waits for requests is never meant.
pub const NBD_STUCK_LIMIT: Duration = Duration::from_secs(60);
/// A start waits this long for the control plane in silence; then it says what it waits for.
pub const CONTROL_PATIENCE: Duration = Duration::from_secs(5);
/// A node that is told to stop waits this long until others have its heads, and their views are open; then the views
/// change without it. A view change takes some tens of milliseconds, one that has to fetch something seconds.
pub const HAND_OVER_MAX: Duration = Duration::from_secs(5);
/// A node whose log can't go on is gone after this time, whoever has its heads: until its links are closed others take it for one
/// that is there.
pub const FAILED_NODE_ENDS: Duration = Duration::from_secs(2);
/// A member that does not answer within this time gets none of these heads: as long as the leader of the control plane
/// waits for a node that says nothing.
pub const HAND_OVER_LOOK: Duration = Duration::from_secs(1);
/// A log has this long to be closed cleanly at a stop. A clean end is a courtesy, nothing relies on it.
pub const LOG_CLOSE_MAX: Duration = Duration::from_secs(5);
/// A worker's thread has this long to end: giving back volumes and closing the log, and a second more.
pub const WORKER_STOP_MAX: Duration = Duration::from_secs(8);

/// Behind each piece of its audits' work a worker has this long for everything else; only then the next audit reads a
/// piece. With the piece (1 MiB, of which hashing takes half a millisecond) that is 200 MB/s at most for all audits of a
/// worker together, a gigabyte in five seconds.
pub const AUDIT_PAUSE: Duration = Duration::from_millis(4);
/// An audit that nobody has asked for this long is forgotten: who asks, does so every 200 ms.
pub const AUDIT_KEPT: Duration = Duration::from_secs(60);

/// A node looks this often whether the room for its small files is still there.
pub const HEADROOM_EVERY: Duration = Duration::from_secs(60);

// `gateway`: NBD handshakes.

/// A client's time from the connection to GO, all in all, without what its volume takes. A client needs
/// milliseconds; one on a machine that swaps may need seconds.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// That much more for each question about an export, so that a client can walk as many as a cluster has. nbdinfo asks two
/// about each and takes 0.2 s for them over TCP: its kernel holds the last bytes of the second one back that long.
pub const HANDSHAKE_QUESTION: Duration = Duration::from_millis(250);
/// A worker says within this time what keeps a volume from being attached; it only has to look.
pub const WHY_NOT_MAX: Duration = Duration::from_millis(250);
/// A gateway hears within this time of a volume or a snapshot that was just made; a client that names one that it does not
/// know waits for so long.
pub const NAME_HEARD_OF_MAX: Duration = Duration::from_secs(1);
/// A gateway hears within this time of a volume that a command names, which the command has heard of from a node.
pub const HEARD_OF_MAX: Duration = Duration::from_secs(5);
/// A command hears within this time of a snapshot that was just taken: longer than who follows a node that stands still
/// lags (`LISTEN_EVERY` and `SILENT_MAX`), and no longer, for a wrong name is refused only then.
pub const HEARD_OF_SNAPSHOT_MAX: Duration = Duration::from_secs(3);
/// A client that waits for its volume is looked at this often: if it has gone, nothing is attached for it.
pub const CLIENT_GONE_LOOK: Duration = Duration::from_millis(250);

// `up`: the supervisor.

/// The supervisor looks this often whether it can go on: short, because people wait with it.
pub const UP_LOOK: Duration = Duration::from_millis(20);
/// Once all volumes can be used, the last nodes are waited for this long, so that the first words name all of them.
pub const ALL_UP_MAX: Duration = Duration::from_secs(1);
/// A process that ended sooner than this after its start is not started again at once: it may fail each time.
pub const QUICK_END: Duration = Duration::from_secs(2);
/// The first pause before such a process is started again; it doubles each time.
pub const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(5);
/// Between SIGTERM and SIGKILL: longer than `HAND_OVER_MAX` and `WORKER_STOP_MAX` together, so that a stop that goes well
/// is never cut off.
pub const STOP_GRACE: Duration = Duration::from_secs(15);
const _: () = assert!(STOP_GRACE.as_millis() > HAND_OVER_MAX.as_millis() + WORKER_STOP_MAX.as_millis());
/// A port that is taken is waited for this long: those of processes that were just killed may take a moment.
pub const PORT_MAX: Duration = Duration::from_millis(1500);
/// A port that is taken is tried again this often.
pub const PORT_LOOK: Duration = Duration::from_millis(50);
/// A question to the supervisor, both sides. A stop may take its `STOP_GRACE`, for more than one node.
pub const UP_ANSWER_MAX: Duration = Duration::from_secs(30);
/// When nothing is ready for this long, the supervisor says what is missing: longer than a start takes that goes well.
pub const UP_FIRST_WORD: Duration = Duration::from_secs(5);
/// From then on it says so this often.
pub const UP_SLOW: Duration = Duration::from_secs(20);

// `events`.

/// The same thing of the same shard is told once in this time, with how often it was left out.
pub const REPEATS_AFTER: Duration = Duration::from_secs(10);

// `cli`: what a person waits for.

/// An ordinary answer of a node. Longer than `COMMAND_MAX`, so that the node's own error is what is shown.
pub const CALL_MAX: Duration = Duration::from_secs(15);
/// `node start` waits this long for the node to answer; it goes on starting after that.
pub const START_MAX: Duration = Duration::from_secs(10);
/// `node start` looks this often whether the node answers.
pub const START_LOOK: Duration = Duration::from_millis(50);
/// An answer to `volume attach` and `detach`: longer than `ATTACH_ASK_LIMIT` and `ATTACH_LIMIT` together.
pub const ATTACH_CALL_MAX: Duration = Duration::from_secs(60);
const _: () = assert!(
    ATTACH_CALL_MAX.as_millis() > freebs_agent::timing::ATTACH_ASK_LIMIT.millis() as u128 + ATTACH_LIMIT.as_millis()
);
/// A new volume is waited for this long, so that the next command finds it ready; it is there in any case.
pub const USABLE_MAX: Duration = Duration::from_secs(10);
/// `cluster restart` looks this often whether all copies are there again.
pub const RESTART_LOOK: Duration = Duration::from_millis(200);
/// It waits so long for that behind each node: what was written meanwhile is copied, and a node reads its log first.
pub const RESTART_MAX: Duration = Duration::from_secs(600);
/// `node drain` looks this often how far it is.
pub const DRAIN_LOOK: Duration = Duration::from_millis(500);
/// `volume flatten` looks this often how far it is.
pub const FLAT_LOOK: Duration = Duration::from_millis(100);
/// `volume create` looks this often whether the volume can be used.
pub const USABLE_LOOK: Duration = Duration::from_millis(20);
/// `volume recover` looks this often how it comes along: new members may have to learn for hours.
pub const RECOVER_LOOK: Duration = Duration::from_millis(200);
/// A verification reads everything; only the connection's end ends it early.
pub const VERIFY_MAX: Duration = Duration::from_secs(24 * 3600);
/// Between two questions of `verify` how far an audit is, at first; each pause is twice the one before it.
pub const AUDIT_LOOK_MIN: Duration = Duration::from_millis(20);
/// The longest such pause.
pub const AUDIT_LOOK_MAX: Duration = Duration::from_millis(200);
/// A member that was audited and does not answer any more is asked again for this long: its connection may have broken,
/// and its audit goes on meanwhile. So is one that can't begin an audit, because too many are under way there.
pub const AUDIT_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks of `events --follow` for what is new.
pub const EVENTS_LOOK: Duration = Duration::from_millis(500);
/// Milliseconds that clocks of nodes may differ and an event may take to be gathered: it is looked for so far back.
pub const EVENTS_LATE_MS: u64 = 10_000;
/// A rollback waits so long for a volume that somebody has: a gateway gives it back a moment after its last client has left.
pub const GIVEN_BACK_MAX: Duration = Duration::from_secs(2);
/// A volume that an import had attached which was killed is waited for this long by one that begins anew in it: longer
/// than leases last (two seconds), so that a person who tries again at once need not try twice.
pub const LEFT_MAX: Duration = Duration::from_secs(6);
/// It is tried this often.
pub const LEFT_LOOK: Duration = Duration::from_millis(250);
/// Progress that was asked for is told on a line of its own this often.
pub const PROGRESS_LINE_EVERY: Duration = Duration::from_secs(1);
/// The time left is told from the rate of this long: long enough for holes and data to mix, short enough to follow a
/// network that became slower.
pub const RATE_OF: Duration = Duration::from_secs(10);
/// The progress line of a device tool, an import or an export changes this often.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// A backup that is under way says so this often: far below the grace of a prune.
pub const BACKUP_ALIVE_EVERY: Duration = Duration::from_secs(60);

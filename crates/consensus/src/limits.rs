//! Named maxima of consensus: of what it keeps, and of what it sends.

use freebs_control::limits::{COMMAND_BYTES_MAX, NUMBER_MAX, STATE_BYTES_MAX};

/// Voters at the very most: 5, and 5 more while they are replaced.
pub const VOTERS_MAX: usize = 10;
/// Voters and learners together: each node, twice while stores are replaced.
pub const SEATS_MAX: usize = 2 * freebs_types::limits::NODES_MAX;
/// Highest term that others may name. The store reads terms up to `NUMBER_MAX`, so elections from here on can be kept.
pub const TERM_MAX: u64 = NUMBER_MAX / 2;
/// A vote may name a term that is so far above the one that is known here: an election each 100 ms for 13 years. One
/// message must not use up the terms that there are.
pub const TERMS_AHEAD_MAX: u64 = 1 << 32;
/// Highest index of a log that others may name; the store reads more, so the entries behind it can be kept.
pub const LOG_INDEX_MAX: u64 = NUMBER_MAX / 2;
/// Sessions that are remembered; the one longest unused is forgotten first.
pub const SESSIONS_MAX: usize = 1024;
/// Commands of one session that may be unanswered at a time.
pub const SESSION_WINDOW_MAX: u64 = 64;
/// Bytes of an encoded result.
pub const RESULT_BYTES_MAX: usize = 1024;
/// Bytes of one encoded log entry: a membership of all seats, or a command.
pub const ENTRY_BYTES_MAX: usize = 64 + 16 * (SEATS_MAX + 2 * VOTERS_MAX);
/// Bytes of a snapshot: the state, and the sessions with their results. All sessions with full windows would not be
/// in it; results that do not fit are a reason to forget sessions earlier (`SESSION_BYTES_MAX`).
pub const SNAPSHOT_BYTES_MAX: usize = STATE_BYTES_MAX + SESSION_BYTES_MAX + (1 << 20);
/// Bytes of all remembered results together.
pub const SESSION_BYTES_MAX: usize = 16 << 20;
/// Bytes of entries in one message; an entry more may make it longer.
pub const APPEND_BYTES_SOFT_MAX: usize = 1 << 20;
/// Bytes of one piece of a snapshot.
pub const PIECE_BYTES: usize = 256 << 10;
/// Bytes of one message, header included.
pub const MESSAGE_BYTES_MAX: usize = 64 + APPEND_BYTES_SOFT_MAX + ENTRY_BYTES_MAX + 4096;
/// Bytes of the log that are kept behind a snapshot before another one is made of it.
pub const LOG_ROOM_BYTES: u64 = 8 << 20;
/// Bytes of the store's file.
pub const STORE_BYTES_MAX: u64 = 4 * (SNAPSHOT_BYTES_MAX as u64 + (128 << 20));

const _: () = assert!(COMMAND_BYTES_MAX < ENTRY_BYTES_MAX);
const _: () = assert!(TERM_MAX + TERMS_AHEAD_MAX < NUMBER_MAX && LOG_INDEX_MAX < NUMBER_MAX);

//! The log engine: one log on a device for all shards of a worker; maps, chunk index and state in memory.
//!
//! Frames are appended in the order in which they come, by one write per turn for all shards (group commit), and act
//! only once they are durable. The log is the only truth: everything in memory is what its frames make of it, in log
//! order, by the same code when running and when recovering. No clock, no thread, no I/O but the device.
//!
//! The rooms: `map`, `chunks`, `frames`, `requests` are what a `shard` has; `history` is what it was; `segments` says what lies where and what
//! is live; `core` is all of it; `ways` is the device, and what is on its way to it; `batch` lays out appends, `clean` gives segments up, `engine` writes; `read` and
//! `log` read back, `scrub` reads what nobody asks for, `audit` follows the hash chain; `scan` and `recover` make it again from bytes; `tool` looks at a device that nobody uses.

mod api;
pub mod audit;
mod batch;
mod check;
mod chunks;
mod clean;
mod closed;
mod core;
mod engine;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod holes;
mod join;
mod learned;
mod log;
mod loss;
mod map;
mod overlay;
mod read;
mod recover;
mod requests;
mod runs;
mod scan;
mod scrub;
mod segments;
mod shard;
mod since;
mod superblock;
pub mod tool;
mod ways;

pub use api::*;
pub use engine::Engine;
pub use loss::Lost;
pub use requests::{DRIVERS_MAX, ENTRIES_MAX, RequestTable, Seen};
pub use scrub::Scrubber;

// A mark with as many of everything as there may be is one frame; its view frame, and what has a fixed size, have the
// rest.
const _: () = assert!(
    ENTRIES_MAX * 24
        + DRIVERS_MAX * 16
        + freebs_types::limits::SHARD_PINS_MAX * 8
        + freebs_types::limits::CLOSED_VIEWS_MAX * freebs_format::CLOSED_VIEW_BYTES
        + (8 << 10)
        <= freebs_types::limits::FRAME_HEAD_BYTES_MAX
);

/// Entries in one carry, so that its head stays below `limits::FRAME_HEAD_BYTES_MAX` with a CRC for each block.
pub const CARRY_ENTRIES_MAX: usize = 2048;

//! The log engine: one log on a device for all shards of a worker; maps, chunk index and state in memory.
//!
//! Frames are appended in the order in which they come, by one write per turn for all shards (group commit), and act
//! only once they are durable. The log is the only truth: everything in memory is what its frames make of it, in log
//! order, by the same code when running and when recovering. No clock, no thread, no I/O but the device.
//!
//! The rooms, from the ground: `log` is bytes and segments, and the way to the device; `map` is entries and their runs; a
//! `shard` is what frames make of it; `engine` owns all of it, and writes; `upkeep` cleans, scrubs and makes checkpoints;
//! `read` reads back; `audit` follows the hash chain; `tool` looks at a device that nobody uses.

mod api;
pub mod audit;
mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod map;
mod read;
mod shard;
pub mod tool;
mod upkeep;

pub use api::requests::{DRIVERS_MAX, ENTRIES_MAX, RequestTable, Seen};
pub use api::*;
pub use engine::Engine;
pub use upkeep::scrub::Scrubber;

// A mark with as many of everything as there may be is one frame; its view frame, and what has a fixed size, have the
// rest.
const _: () = assert!(
    ENTRIES_MAX * 24
        + DRIVERS_MAX * 16
        + freebs_types::limits::SHARD_PINS_MAX * freebs_format::PIN_BYTES
        + freebs_types::limits::CLOSED_VIEWS_MAX * freebs_format::CLOSED_VIEW_BYTES
        + freebs_types::limits::LOST_VERSIONS_MAX * freebs_format::LOST_VERSION_BYTES
        + (8 << 10)
        <= freebs_types::limits::FRAME_HEAD_BYTES_MAX
);

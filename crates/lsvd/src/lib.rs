//! The log engine: one log per device for all shards of a worker; maps, chunk index and state in memory.

mod api;
mod engine;
mod requests;

pub use api::*;
pub use engine::Engine;
pub use requests::{DRIVERS_MAX, ENTRIES_MAX, RequestTable, Seen};

/// Entries in one carry, so that its head stays below `limits::FRAME_HEAD_BYTES_MAX` with a CRC for each block.
pub const CARRY_ENTRIES_MAX: usize = 2048;

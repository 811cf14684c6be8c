//! The consequences of the control state for a node or a gateway: the shards that it has, the views that it opens, the shape of the
//! volumes that its drivers serve. Decisions only; sockets, threads and clocks are of whoever calls.
//!
//! The node and the simulator use the same code, so that what is decided here is tried under all faults.
//!
//! Invariants:
//! - What a member is told of a shard, and what it opens, comes from one control state each (rules V2, V6).
//! - A shard is left only if the control state has the volume and another chain for it, and is gone only if the volume was
//!   deleted: a state that does not know a volume says nothing of it (V7).

mod plane;
mod port;
mod shards;
mod volumes;

pub use plane::Commands;
pub use port::Port;
pub use shards::{News, Shards};
pub use volumes::{news_of, spec_of, workers_of};

//! Snapshots: records of versions that shards keep, and the protocol by which those of several shards are one instant.
//!
//! A snapshot is begun, its shards' heads cut and hold, and report; when all have reported it is decided, and when all say
//! that they had held until they heard that, it is complete (rules S1, S2; `docs/design/0034`). No read or write waits for
//! any of it longer than heads hold.
//!
//! Invariants:
//! - of a volume at most one snapshot is under way, and of those that have not failed each has another name;
//! - no number is given out twice;
//! - a report counts only of the view that is active, and once another view is active a snapshot that is not confirmed by the
//!   head of the one before fails: so a complete one was held by all its heads at once.

mod apply;
mod record;
mod schedule;
mod store;

pub(crate) use apply::no_such;
pub use record::{Cut, Snapshot, SnapshotVolume, Stage};
pub use schedule::{Group, Keep, Schedule};
pub(crate) use store::Snapshots;

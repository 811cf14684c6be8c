//! The place where a shard of a clone begins.

use crate::{Sequence, ShardId, SnapshotId, Version};

/// Where a shard of a clone begins: at a version of another shard, which a snapshot pins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The shard that it was cloned from.
    pub parent: ShardId,
    /// The snapshot that pins the version.
    pub snapshot: SnapshotId,
    /// The version that the clone begins with. Its own versions follow it.
    pub version: Version,
    /// The frame with that version. The clone's own frames follow it.
    pub sequence: Sequence,
}

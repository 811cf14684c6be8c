//! Frames that a log has lost for good, as plain values.

use freebs_types::{Sequence, ShardId, Version};
use std::fmt;

/// Frames that one shard misses, or may miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The shard.
    pub shard: ShardId,
    /// The last frame that is here, and the version behind it.
    pub last: Sequence,
    /// The version of the last update that is here.
    pub version: Version,
    /// Durable updates behind `version` may be lost.
    pub tail: bool,
    /// Frames that are lost, as ranges. Blocks that were not written behind them may be older than they were.
    pub frames: Vec<(Sequence, Sequence)>,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tail {
            write!(f, "updates behind version {}, if there were any, are lost", self.version)?;
        }
        for (i, (from, to)) in self.frames.iter().enumerate() {
            let join = if self.tail || i > 0 { "; " } else { "" };
            write!(
                f,
                "{join}frames {from} to {to} are lost, and blocks not written behind them may be older than they were"
            )?;
        }
        Ok(())
    }
}

//! From versions to sequences: where in the log a version lies, for callers that count updates and not frames.

use crate::engine::Engine;
use freebs_format::FrameKind;
use freebs_io::Device;
use freebs_types::{Result, Sequence, ShardId, Version};

impl<D: Device> Engine<D> {
    /// The first frame with an update behind `version`, if the log still has it and every frame from there on.
    /// A few reads of the log: versions only grow with the sequence.
    pub async fn frame_behind(&self, shard: ShardId, version: Version) -> Result<Option<Sequence>> {
        let (mut from, mut to) = {
            let core = self.inner.core.borrow();
            let s = core.shard(shard)?;
            (s.first_kept(), s.tip.name.sequence)
        };
        if from > to {
            return Ok(None);
        }
        let first = self.frame(shard, from).await?;
        let h = first.header();
        let before = match h.frame_kind() {
            FrameKind::Data => Version(h.first_version.get().saturating_sub(1)),
            _ => h.last_version(),
        };
        if before > version {
            return Ok(None);
        }
        // `to` is the answer, or lies behind it.
        while from < to {
            let middle = Sequence(from.0 + (to.0 - from.0) / 2);
            if self.frame(shard, middle).await?.header().last_version() > version {
                to = middle;
            } else {
                from = middle.next();
            }
        }
        Ok(Some(to))
    }
}

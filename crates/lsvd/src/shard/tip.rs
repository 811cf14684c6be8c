//! A shard's last frame.

use crate::FrameName;
use freebs_format::FrameHead;
use freebs_types::{ChunkId, Hash32, Version};

/// A shard's last frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tip {
    pub name: FrameName,
    /// Of a frame that is known only from the one behind it: its own token, or zeroes if that begins a branch; and
    /// `digest` is zero.
    pub parent: Hash32,
    pub digest: Hash32,
    pub version: Version,
    pub chunk: ChunkId,
    pub chunk_blocks: u32,
}

impl Tip {
    /// All that is known of the frame before is what its follower says.
    pub fn before(head: &FrameHead) -> Self {
        let b = head.before();
        let name = FrameName { view: b.view, sequence: b.sequence, hid: b.hid };
        Self { name, version: b.version, parent: b.token.unwrap_or_default(), ..Self::default() }
    }

    pub fn of(head: &FrameHead) -> Self {
        let h = head.header();
        Self {
            name: FrameName { view: head.view(), sequence: head.seq(), hid: h.hid() },
            parent: h.parent_token(),
            digest: h.digest(),
            version: h.last_version(),
            chunk: h.chunk(),
            chunk_blocks: h.chunk_offset.get() + h.data_blocks(),
        }
    }
}

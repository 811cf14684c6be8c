//! Numbers and places that frames are known by.

use freebs_types::limits;

/// Sequences and versions from outside lie below this, so that counting on from them can't overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Where a frame was found or put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub segment: u32,
    pub head_at: u32,
    pub data_at: u32,
    pub append: u64,
}

/// Ordinals of a chunk lie below this: a full chunk and one more frame of the largest size, and then some.
pub(crate) const ORDINALS_MAX: u32 = 8192;
const _: () =
    assert!(ORDINALS_MAX >= limits::CHUNK_BLOCKS_MAX + (limits::FRAME_DATA_BYTES_MAX / freebs_types::BLOCK) as u32);

/// True if a range of ordinals can be one.
pub(crate) fn fits(first: u32, count: u32) -> bool {
    u64::from(first) + u64::from(count) <= u64::from(ORDINALS_MAX)
}

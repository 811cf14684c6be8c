//! Identity and measures of a device, and its open segment.

use crate::log::lost::LostAppends;
use bytes::BytesMut;
use freebs_format::disk::{SEGMENTS_AT, SEGMENTS_MAX, SegmentFooter};
use freebs_types::{ClusterId, DeviceId, StartNumber};

/// Segments that only a local frame that frees others may open: one to hold it, one whose live table makes what it
/// frees usable. With them a full device comes back to life when something in it is committed or deleted.
pub(crate) const LAST_SEGMENTS: u32 = 2;

/// Ready segments that records don't open while the device may still grow (the map may): others may fill the file system at any
/// time, and what was ordered by then is to be written, and trims, zeroes, views and deletions are to be taken.
pub(crate) const HEADROOM_SEGMENTS: u32 = 3;

/// Identity and measures of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub cluster: ClusterId,
    pub device: DeviceId,
    pub start: StartNumber,
    pub sector: usize,
    pub segment_bytes: u64,
    pub limit_segments: u32,
}

impl Geometry {
    pub fn limit(size_limit: u64, segment_bytes: u64) -> u32 {
        let n = size_limit.saturating_sub(SEGMENTS_AT) / segment_bytes;
        n.min(u64::from(SEGMENTS_MAX)) as u32
    }

    /// Byte on the device of a byte in a segment.
    pub fn byte(&self, segment: u32, at: u32) -> u64 {
        SEGMENTS_AT + u64::from(segment) * self.segment_bytes + u64::from(at)
    }

    /// Segments that `space` tells heads to leave alone: what is on its way, promises, cleaning.
    pub fn reserve_segments(&self) -> u32 {
        (self.limit_segments / 32).clamp(LAST_SEGMENTS + 2, 64)
    }

    /// Bytes that the index of `len` bytes takes at the end of a segment, with footer and alignment.
    pub fn index_room(&self, len: usize) -> usize {
        (len + size_of::<SegmentFooter>()).next_multiple_of(self.sector)
    }
}

/// The segment that appends go to.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub id: u32,
    pub seq: u64,
    /// Numbers right before its own that no segment has.
    pub skipped: u8,
    /// Byte of the next append.
    pub at: u32,
    /// Index entries of all frames so far.
    pub index: BytesMut,
    pub frames: u32,
    /// First and last append; 0 if there is none yet.
    pub first_append: u64,
    pub last_append: u64,
    /// The append that the next one repeats; `None` in front of the first one, and if it is not known.
    pub last: Option<LastAppend>,
    /// Appends of which something is lost for good.
    pub lost: LostAppends,
    /// It was opened for records that had waited for it: they get into it, however few are free by that.
    pub for_records: bool,
}

impl OpenSegment {
    /// Its first append and its last one, also if that is lost.
    pub fn appends(&self) -> (u64, u64) {
        (self.first_append, self.last_append.max(self.lost.last()))
    }
}

/// The last append of the open segment, as the next one repeats it.
#[derive(Debug)]
pub(crate) struct LastAppend {
    pub append: u64,
    /// Where the entries of the frames that are repeated begin in the segment's index, and how many there are.
    pub index_at: usize,
    pub frames: u32,
    /// The copies in front of those: how many, and the CRC-32C of their entries.
    pub copies: (u32, u32),
    /// Its live table, if it is the segment's first one.
    pub table: Vec<u8>,
}

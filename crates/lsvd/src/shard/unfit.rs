//! Frames and map entries that make no sense, whatever the log holds: they are refused before they are written, and do not
//! count where they are found.

use crate::log::place::NUMBER_MAX;
use crate::shard::chunks;
use freebs_format::{CarryBody, CarryEntry, ExtentKind, FrameHead};
use freebs_types::BLOCK;

/// The words about a frame that would take the place of a committed one.
pub(crate) const USURPS: &str = "frame differs from a committed one of its sequence";

/// Why a frame can't be one of a shard's sequence, if so.
pub(crate) fn frame(head: &FrameHead) -> Option<&'static str> {
    let (s, h) = (head.seq(), head.header());
    if head.kind().is_local() {
        return Some("local frame in the place of one of the sequence");
    }
    if s.0 == 0 || s.0 >= NUMBER_MAX || h.first_version.get() >= NUMBER_MAX {
        return Some("frame with an impossible number");
    }
    (!chunks::fits(h.chunk_offset.get(), h.data_blocks())).then_some("frame outside its chunk")
}

/// Why an entry of a carry can't be one of a map, if so.
pub(crate) fn entry(e: &CarryEntry) -> Option<&'static str> {
    if e.version.0 >= NUMBER_MAX || e.sequence.0 >= NUMBER_MAX {
        return Some("carried entry with an impossible number");
    }
    let data = e.kind == ExtentKind::Data;
    if e.range.len == 0 || !e.range.is_in_shard(data) {
        return Some("carried entry outside any shard");
    }
    (data && !chunks::fits(e.offset, e.range.len)).then_some("carried entry outside its chunk")
}

/// Why a carry with so many bytes of data can't be one, if so.
pub(crate) fn carry(body: &CarryBody, data: usize) -> Option<&'static str> {
    let blocks = |e: &CarryEntry| if e.kind == ExtentKind::Data { e.range.len as usize } else { 0 };
    if body.entries.iter().any(|e| e.crcs.len() != blocks(e)) {
        return Some("carried entries without a CRC for each block");
    }
    if body.entries.iter().map(blocks).sum::<usize>() * BLOCK != data {
        return Some("carried entries that do not fit their data");
    }
    body.entries.iter().find_map(entry)
}

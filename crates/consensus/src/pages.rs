//! The log's pages: pieces of 512 bytes, which no device tears, each under a checksum and knowing where it belongs.
//!
//! A *batch* is what one write brings: records, cut into pages, filled up to whole units of 4 KiB. Because each page
//! carries its store, its area (by a random number), its place and its batch, a page is one of four things: what lay
//! there before (zeroes, or a page of an older area), a page of this area, or damaged. A torn write leaves only the
//! first two; so damage is never taken for a torn write.

use freebs_format::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a page: the smallest sector, so no device tears one.
pub const PAGE_BYTES: usize = 512;
/// Bytes of the stamp at the start of a page.
pub const STAMP_BYTES: usize = 40;
/// Bytes of records in one page.
pub const PAYLOAD_BYTES: usize = PAGE_BYTES - STAMP_BYTES;
/// Pages that are written together: 4 KiB, the largest sector.
pub const UNIT_PAGES: u32 = 8;
/// Bytes of such a unit.
pub const UNIT_BYTES: usize = UNIT_PAGES as usize * PAGE_BYTES;
/// Every page of an area has these bytes behind its checksum.
pub const PAGE_MAGIC: [u8; 4] = *b"FBCP";
/// Version of stores: of pages, records and superblock.
pub const STORE_VERSION: u16 = 1;

/// Head of a page; up to 472 bytes of records follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageStamp {
    /// CRC-32C of the other 508 bytes of the page.
    pub crc: U32,
    /// Always `FBCP`.
    pub magic: [u8; 4],
    /// Random number of the store.
    pub store: U64,
    /// Random number of the area.
    pub area: U64,
    /// Number of the page in the file.
    pub page: U32,
    /// Number of the batch in its area, from 0.
    pub batch: U32,
    /// Pages of the batch that follow.
    pub left: U32,
    /// Bytes of records in it.
    pub used: U16,
    /// Always 1.
    pub version: U16,
}
const _: () = assert!(size_of::<PageStamp>() == STAMP_BYTES);

/// What lies at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Zeroes, or a page of an area that was there before.
    Before,
    /// A page of this area.
    Here {
        /// Number of the batch in its area, from 0.
        batch: u32,
        /// Pages of the batch that follow.
        left: u32,
        /// Bytes of records in it.
        used: usize,
    },
    /// Neither of them: its bytes changed after they were written, or were written elsewhere.
    Damaged,
}

/// Where a page belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Random number of the store.
    pub store: u64,
    /// Random number of the area.
    pub area: u64,
    /// Number of the page in the file.
    pub page: u32,
}

/// Pages that a batch with `bytes` bytes of records has; a multiple of `UNIT_PAGES`.
#[must_use]
pub fn pages_of(bytes: usize) -> u32 {
    (bytes.max(1).div_ceil(PAYLOAD_BYTES) as u32).next_multiple_of(UNIT_PAGES)
}

/// Writes page `index` of the batch `records` into `out`, which has its size.
pub fn stamp(out: &mut [u8], place: Place, batch: u32, records: &[u8], index: u32) {
    let count = pages_of(records.len());
    let from = (index as usize * PAYLOAD_BYTES).min(records.len());
    let piece = &records[from..(from + PAYLOAD_BYTES).min(records.len())];
    let mut head = PageStamp {
        crc: 0.into(),
        magic: PAGE_MAGIC,
        store: place.store.into(),
        area: place.area.into(),
        page: place.page.into(),
        batch: batch.into(),
        left: (count - 1 - index).into(),
        used: (piece.len() as u16).into(),
        version: STORE_VERSION.into(),
    };
    out.fill(0);
    out[STAMP_BYTES..STAMP_BYTES + piece.len()].copy_from_slice(piece);
    out[..STAMP_BYTES].copy_from_slice(head.as_bytes());
    head.crc = crc32c(&out[4..]).into();
    out[..4].copy_from_slice(head.crc.as_bytes());
}

/// What the page is, seen from where it lies.
#[must_use]
pub fn look(bytes: &[u8], place: Place) -> Page {
    if bytes.iter().all(|b| *b == 0) {
        return Page::Before;
    }
    let Ok((head, _)) = PageStamp::ref_from_prefix(bytes) else { return Page::Damaged };
    let mine = head.magic == PAGE_MAGIC && head.store.get() == place.store && head.page.get() == place.page;
    if head.crc.get() != crc32c(&bytes[4..]) || !mine || head.version.get() != STORE_VERSION {
        return Page::Damaged;
    }
    let used = head.used.get() as usize;
    match head.area.get() == place.area {
        _ if used > PAYLOAD_BYTES => Page::Damaged,
        true => Page::Here { batch: head.batch.get(), left: head.left.get(), used },
        false => Page::Before,
    }
}

//! Checksums made right again, as a hostile sender would, so that what lies behind them is reached.
//!
//! Each function takes the lengths that the bytes claim for themselves as far as they fit, and leaves bytes that are
//! too short as they are: a mutation of a length is a case, too.

use bytes::{Bytes, BytesMut};
use core::mem::{offset_of, size_of};
use freebs_backup::format::{ManifestHeader, ObjectHeader};
use freebs_consensus::wire::SeatHeader;
use freebs_control::StateHeader;
use freebs_format::disk::{
    APPEND_REPEATS, AppendHeader, CheckpointSlot, INDEX_ENTRY_FIXED, IndexFixed, Openings, PageHeader, PagesFixed,
    RepeatFixed, SegmentFooter,
};
use freebs_format::wire::{HEADER_BYTES, MessageHeader, kind};
use freebs_format::{FrameHeader, FrameKind, crc32c, layout, pack, unpack};
use freebs_types::limits;

const FRAME: usize = size_of::<FrameHeader>();

fn put(bytes: &mut [u8], at: usize, crc: u32) {
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// The checksum of a fixed struct of `len` bytes, which lies at its end and covers what is before it.
pub fn fixed(bytes: &mut [u8], len: usize) {
    if let Some(head) = bytes.get_mut(..len) {
        let crc = crc32c(&head[..len - 4]);
        put(head, len - 4, crc);
    }
}

/// A record of an interval: its checksum, over what its counts say.
pub fn interval(bytes: &mut [u8]) {
    const FIXED: usize = 80;
    if bytes.len() < FIXED {
        return;
    }
    let count = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let tables = (count(56) * 16 + count(58) * 12).min(bytes.len() - FIXED);
    let crc = crc32c(&[&bytes[..FIXED - 4], &bytes[FIXED..FIXED + tables]].concat());
    put(bytes, FIXED - 4, crc);
}

/// An object of a backup: what is packed, then the header.
pub fn object(bytes: &mut [u8]) {
    if let Some((head, packed)) = bytes.split_at_mut_checked(size_of::<ObjectHeader>()) {
        put(head, offset_of!(ObjectHeader, packed_crc), crc32c(packed));
        fixed(head, size_of::<ObjectHeader>());
    }
}

/// A manifest of a backup that is not sealed: its hash, then the header.
pub fn manifest(bytes: &mut [u8]) {
    if let Some((head, body)) = bytes.split_at_mut_checked(size_of::<ManifestHeader>()) {
        let at = offset_of!(ManifestHeader, seal);
        let hash = freebs_backup::name_of(&[&head[..at], body].concat(), None);
        head[at..at + 32].copy_from_slice(&hash.0);
        fixed(head, size_of::<ManifestHeader>());
    }
}

/// A message of `freebs_format::wire`: the frames in its meta part, the body of a control message, then the header.
pub fn message(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let meta = word(bytes, offset_of!(MessageHeader, meta_len));
    let meta_end = HEADER_BYTES.saturating_add(meta).min(bytes.len());
    let total = word(bytes, offset_of!(MessageHeader, total_len)).clamp(meta_end, bytes.len());
    frames(&mut bytes[HEADER_BYTES..meta_end]);
    let at = offset_of!(MessageHeader, kind);
    let is_control = matches!(u16::from_le_bytes([bytes[at], bytes[at + 1]]), kind::CONTROL | kind::CONTROL_REPLY);
    // Its meta part begins with the checksum of the body.
    if is_control && meta_end >= HEADER_BYTES + 4 {
        let crc = crc32c(&bytes[meta_end..total]);
        put(bytes, HEADER_BYTES, crc);
    }
    let at = offset_of!(MessageHeader, crc);
    let crc = crc32c(&bytes[..at]) ^ crc32c(&bytes[HEADER_BYTES..meta_end]).rotate_left(1);
    put(bytes, at, crc);
}

/// All messages of a stream, as far as their lengths lead.
pub fn messages(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes.len() >= at + HEADER_BYTES {
        let total = word(bytes, at + offset_of!(MessageHeader, total_len)).max(HEADER_BYTES);
        let end = at.saturating_add(total).min(bytes.len());
        message(&mut bytes[at..end]);
        at = end;
    }
}

/// Where a mark says how long the view frame is that it holds, and where that begins.
fn mark_offsets() -> (usize, usize) {
    let mark = layout::LAYOUTS.iter().find(|l| l.name == "MarkFixed").expect("it is described");
    let field = mark.fields.iter().find(|f| f.name == "view_frame_len").expect("it has one");
    (FRAME + field.offset, FRAME + mark.bytes)
}

/// The head of a frame at the start of `bytes`, and the view frame inside a mark before it.
pub fn frame(bytes: &mut [u8]) {
    if bytes.len() < FRAME {
        return;
    }
    let len = word(bytes, offset_of!(FrameHeader, head_len)).clamp(FRAME, bytes.len());
    if bytes[offset_of!(FrameHeader, kind)] == FrameKind::Mark as u8 {
        let (length_at, view_at) = mark_offsets();
        if len >= view_at {
            let view = word(bytes, length_at).min(len - view_at);
            frame(&mut bytes[view_at..view_at + view]);
        }
    }
    let crc = crc32c(&bytes[FRAME..len]);
    put(bytes, offset_of!(FrameHeader, body_crc), crc);
    fixed(bytes, FRAME);
}

/// Every frame head that `bytes` hold, wherever it begins.
pub fn frames(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes.len() >= at + FRAME {
        if bytes[at..].starts_with(&freebs_format::FRAME_MAGIC) {
            let len = word(bytes, at + offset_of!(FrameHeader, head_len)).clamp(FRAME, bytes.len() - at);
            frame(&mut bytes[at..at + len]);
            at += len;
        } else {
            at += 1;
        }
    }
}

/// A page of the map: header, body.
pub fn map_page(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<PageHeader>();
    if bytes.len() >= HEAD {
        let used = word(bytes, offset_of!(PageHeader, used)).min(bytes.len() - HEAD);
        let crc = crc32c(&bytes[HEAD..HEAD + used]);
        put(bytes, offset_of!(PageHeader, body_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// A slot of a checkpoint: header, places.
pub fn checkpoint(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<CheckpointSlot>();
    if bytes.len() >= HEAD {
        let places = word(bytes, offset_of!(CheckpointSlot, extents));
        let len = places.saturating_mul(size_of::<PagesFixed>()).min(bytes.len() - HEAD);
        let crc = crc32c(&bytes[HEAD..HEAD + len]);
        put(bytes, offset_of!(CheckpointSlot, extents_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// A page of openings: header, indexes of segments.
pub fn openings(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<Openings>();
    if bytes.len() >= HEAD {
        let count = word(bytes, offset_of!(Openings, count));
        let len = count.saturating_mul(size_of::<u32>()).min(bytes.len() - HEAD);
        let crc = crc32c(&bytes[HEAD..HEAD + len]);
        put(bytes, offset_of!(Openings, list_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// An append: header, extra bytes and heads, each with its checksums.
pub fn append(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<AppendHeader>();
    if bytes.len() >= HEAD {
        let heads = word(bytes, offset_of!(AppendHeader, heads_len)).clamp(HEAD, bytes.len());
        let extra = word(bytes, offset_of!(AppendHeader, extra_len)).min(heads - HEAD);
        frames(&mut bytes[HEAD + extra..heads]);
        let flags = offset_of!(AppendHeader, flags);
        if u16::from(bytes[flags]) & APPEND_REPEATS != 0 {
            repeat(&mut bytes[HEAD..HEAD + extra]);
        }
        let crc = crc32c(&bytes[HEAD..heads]);
        put(bytes, offset_of!(AppendHeader, heads_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// The repeat of an append.
fn repeat(bytes: &mut [u8]) {
    const FIXED: usize = size_of::<RepeatFixed>();
    if bytes.len() >= FIXED {
        let table = word(bytes, offset_of!(RepeatFixed, table_len)).min(bytes.len() - FIXED);
        entries(&mut bytes[FIXED + table..]);
        let crc = crc32c(&bytes[FIXED..]);
        put(bytes, offset_of!(RepeatFixed, body_crc), crc);
        fixed(bytes, FIXED);
    }
}

/// The packed heads of an index, as far as they take as many bytes as before.
fn entries(bytes: &mut [u8]) {
    let (all, mut at) = (Bytes::copy_from_slice(bytes), 0);
    while bytes.len() >= at + INDEX_ENTRY_FIXED {
        let len = word(bytes, at + offset_of!(IndexFixed, head_len)).min(limits::FRAME_HEAD_BYTES_MAX);
        at += INDEX_ENTRY_FIXED;
        let mut rest = all.slice(at..);
        let Ok(head) = unpack(&mut rest, len) else { return };
        let end = all.len() - rest.len();
        let (mut head, mut packed) = (head.to_vec(), BytesMut::new());
        frame(&mut head);
        pack(&head, &mut packed);
        if packed.len() == end - at {
            bytes[at..end].copy_from_slice(&packed);
        }
        at = end;
    }
}

/// A segment's footer at the end of `bytes`, and the index before it.
pub fn segment_index(bytes: &mut [u8]) {
    const FOOTER: usize = size_of::<SegmentFooter>();
    if let Some(index) = bytes.len().checked_sub(FOOTER) {
        entries(&mut bytes[..index]);
        let crc = crc32c(&bytes[..index]);
        put(bytes, index + offset_of!(SegmentFooter, index_crc), crc);
        fixed(&mut bytes[index..], FOOTER);
    }
}

/// The control state: header, body.
pub fn state(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<StateHeader>();
    if bytes.len() >= HEAD {
        let (len, at) = ((bytes.len() - HEAD) as u64, offset_of!(StateHeader, body_len));
        bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
        let crc = crc32c(&bytes[HEAD..]);
        put(bytes, offset_of!(StateHeader, body_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// A message between seats: header, body.
pub fn seat_message(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<SeatHeader>();
    if bytes.len() >= HEAD {
        let len = bytes.len() as u32;
        put(bytes, offset_of!(SeatHeader, total_len), len);
        let crc = crc32c(&bytes[HEAD..]);
        put(bytes, offset_of!(SeatHeader, body_crc), crc);
        fixed(bytes, HEAD);
    }
}

/// A page of a seat's store: the checksum comes first.
pub fn store_page(bytes: &mut [u8]) {
    if bytes.len() == freebs_consensus::pages::PAGE_BYTES {
        let crc = crc32c(&bytes[4..]);
        put(bytes, 0, crc);
    }
}

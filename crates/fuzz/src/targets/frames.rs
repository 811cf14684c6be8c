//! Frames: heads with their tables, and the bodies of the frames without updates.

use crate::input::Input;
use crate::{seal, signal};
use bytes::{Bytes, BytesMut};
use core::mem::size_of;
use freebs_format::disk::IndexEntry;
use freebs_format::{
    AttachBody, CarryBody, ExtentKind, Frame, FrameHead, FrameHeader, FrameKind, IntervalRecord, MarkBody, PIN_BYTES,
    ViewBody, VolumeDescription,
};
use freebs_types::{BLOCK, Result, limits};

pub const WORDS: &[&[u8]] =
    &[b"FBFR", b"FBIV", b"\x01\0\x01\0", b"\x01\0\x02\0", b"\x01\0\x06\0", b"\x01\0\x07\0", b"\0\x10\0\0"];

/// Walks over all that a head says.
pub fn checked_head(head: &FrameHead) {
    let h = head.header();
    assert!(head.bytes().len() == h.head_len.get() as usize && head.bytes().len() <= limits::FRAME_HEAD_BYTES_MAX);
    assert!(h.data_len.get() as usize <= limits::FRAME_DATA_BYTES_MAX);
    let (mut blocks, mut count) = (0u32, 0);
    for u in head.updates() {
        assert_eq!(u.first_block, blocks);
        assert!(!u.kind.is_reserved(), "an update that nobody knows how to apply");
        for (e, at) in u.extents() {
            assert!(e.range.len > 0 && e.range.is_in_shard(e.kind == ExtentKind::Data) && at == blocks);
            blocks += if e.kind == ExtentKind::Data { e.range.len } else { 0 };
        }
        assert_eq!(u.crcs.len(), (blocks - u.first_block) as usize, "one CRC for each block of data");
        assert_eq!(u.version.0, h.first_version.get() + count);
        count += 1;
    }
    assert!(count <= limits::FRAME_UPDATES_MAX as u64 && count == u64::from(h.updates.get()));
    if head.kind() == FrameKind::Data {
        assert_eq!((blocks, head.crcs().len()), (h.data_blocks(), h.data_blocks() as usize));
        assert!(count == 0 || h.last_version().0 == h.first_version.get() + count - 1);
    }
    let before = head.before();
    assert!(before.sequence <= head.seq() && before.version.0 <= h.first_version.get());
}

/// A frame with its data.
pub fn checked_frame(frame: &Frame) {
    checked_head(&frame.head);
    assert_eq!(frame.data.iter().map(Bytes::len).sum::<usize>(), frame.data_bytes());
    let _ = frame.verify_data();
    let _ = frame.verify_digest();
}

fn view(body: &[u8]) -> Result<()> {
    let v = ViewBody::decode(body)?;
    let n = v.members.len();
    assert!((1..=limits::CHAIN_MEMBERS_MAX).contains(&n) && (1..=n).contains(&v.quorum.into()));
    if let Some(s) = &v.shared {
        assert!((1..=n).contains(&s.threshold.into()) && s.slices.len() == n);
    }
    v.volume.as_deref().into_iter().for_each(described);
    let again = v.encode();
    assert_eq!(again.len(), body.len());
    // The flags of a member and its slice are not looked at unless the secret is shared.
    assert_eq!(ViewBody::decode(&again).expect("what was encoded decodes"), v);
    assert_eq!(v.without_slices().members, v.members);
    signal::saw("view", (n * 4 + usize::from(v.shared.is_some()) * 2 + usize::from(v.volume.is_some())) as u64);
    Ok(())
}

fn described(v: &VolumeDescription) {
    assert!((1..=limits::VOLUME_NAME_BYTES_MAX).contains(&v.name.len()));
}

fn attach(body: &[u8]) -> Result<()> {
    let a = AttachBody::decode(body)?;
    assert_eq!(AttachBody::decode(&a.encode())?, a);
    Ok(())
}

fn mark(body: &[u8]) -> Result<()> {
    let m = MarkBody::decode(body)?;
    assert!(m.pins.len() <= limits::SHARD_PINS_MAX && m.pins.is_sorted_by_key(|p| p.version));
    let tables = m.requests.floors.len() * 16 + m.requests.entries.len() * 24 + m.pins.len() * PIN_BYTES;
    assert!(tables <= body.len());
    m.view_frame.iter().for_each(|f| {
        checked_head(f);
        let _ = view(f.body());
    });
    let again = m.encode();
    assert!(again.len() <= body.len());
    assert_eq!(MarkBody::decode(&again).expect("what was encoded decodes").encode(), again);
    signal::saw("mark", m.requests.entries.len() as u64 + 64 * u64::from(m.view_frame.is_some()));
    Ok(())
}

fn carry(body: &[u8], data_blocks: u32) -> Result<()> {
    let c = CarryBody::decode(body, data_blocks)?;
    let mut crcs = 0;
    for e in &c.entries {
        assert!(e.range.len > 0 && e.range.is_in_shard(e.kind == ExtentKind::Data));
        assert_eq!(e.crcs.len(), if e.kind == ExtentKind::Data { e.range.len as usize } else { 0 });
        crcs += e.crcs.len();
    }
    assert_eq!(crcs, data_blocks as usize);
    let again = c.encode();
    assert_eq!(again.len(), body.len());
    assert_eq!(CarryBody::decode(&again, data_blocks).expect("what was encoded decodes"), c);
    signal::saw("carry", c.entries.len() as u64);
    Ok(())
}

fn body(kind: FrameKind, bytes: &[u8], data_blocks: u32) {
    match kind {
        FrameKind::View => signal::ended("view", &view(bytes)),
        FrameKind::Attach => signal::ended("attach", &attach(bytes)),
        FrameKind::Mark => signal::ended("mark", &mark(bytes)),
        FrameKind::Carry => signal::ended("carry", &carry(bytes, data_blocks)),
        FrameKind::Data | FrameKind::Seal | FrameKind::Holders => {}
    }
}

/// A head, what it says, and its body; then as an entry of an index.
pub fn frame(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::frame(&mut bytes);
    }
    let all = Bytes::from(bytes);
    let mut rest = all.clone();
    let result = FrameHead::parse(&mut rest);
    signal::ended("frame", &result);
    let Ok(head) = result else { return };
    let len = head.bytes().len();
    assert!(head.bytes()[..] == all[..len] && rest == all[len..], "the head's bytes are what was given");
    checked_head(&head);
    signal::kind("kind of frame", head.kind() as u64);
    signal::saw("updates", head.updates().count() as u64);
    body(head.kind(), head.body(), head.header().data_blocks());
    let mut index = BytesMut::new();
    IndexEntry { head_at: 1, data_at: 2, append: 3, flags: 1, head: head.clone() }.encode(&mut index);
    assert!(index.len() <= IndexEntry::encoded_len_max(len));
    let back = IndexEntry::decode_all(index.freeze(), 1, usize::MAX).expect("what was encoded decodes");
    assert_eq!(back[0].head.bytes(), head.bytes());
    // With what follows as its data, if that fits.
    let want = head.header().data_len.get() as usize;
    if rest.len() >= want && want.is_multiple_of(BLOCK) {
        let data = if want == 0 { Vec::new() } else { vec![rest.slice(..want)] };
        checked_frame(&Frame::new(head, data).expect("the length fits"));
    }
}

/// A body without a head around it.
pub fn bodies(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::frames(&mut bytes);
    }
    let kinds = [FrameKind::View, FrameKind::Attach, FrameKind::Mark, FrameKind::Carry];
    let kind = kinds[usize::from(input.choice) % kinds.len()];
    body(kind, &bytes, u32::from(input.choice >> 2));
}

/// The blocks of an interval's record.
pub fn interval(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::interval(&mut bytes);
    }
    let result = IntervalRecord::decode(&bytes);
    signal::ended("interval", &result);
    let Ok(Some(record)) = result else { return };
    assert!(record.participants.len() <= limits::INTERVAL_SHARDS_MAX && record.participants.is_sorted_by(|a, b| a < b));
    assert!(record.extents.iter().all(|e| e.range.len > 0 && e.range.end() <= limits::SHARD_VOLUME_BLOCKS_MAX));
    assert!(record.data_blocks() as usize * BLOCK <= limits::INTERVAL_DATA_BYTES_MAX);
    let again = record.encode();
    assert_eq!(again.len(), record.blocks() as usize * BLOCK);
    assert_eq!(IntervalRecord::decode(&again).expect("what was encoded decodes"), Some(record.clone()));
    signal::saw("interval", (record.extents.len() + record.participants.len()) as u64);
}

const _: () = assert!(size_of::<FrameHeader>() == 256);

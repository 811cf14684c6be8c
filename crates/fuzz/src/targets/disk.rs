//! Structures of a device, each by itself.

use crate::input::{Choices, Input};
use crate::{seal, signal};
use bytes::{Bytes, BytesMut};
use core::mem::size_of;
use freebs_format::disk::{
    APPEND_DATA_BYTES_MAX, APPEND_HEADS_BYTES_MAX, AppendHeader, CHECKPOINT_BYTES, CHECKPOINT_EXTENTS_MAX,
    CheckpointSlot, HOST_KEY_BYTES, HostKeyFile, IndexEntry, LOG_NUMBER_END, LiveTable, MANIFEST_BYTES_MAX,
    OPENINGS_BYTES, OPENINGS_MAX, Openings, PAGE_BYTES, PageHeader, PageName, Repeat, SUPERBLOCK_BYTES, SegmentFooter,
    Superblock,
};
use freebs_format::keys::{JoinToken, KeyOf, SigningKeyFile};
use freebs_format::{FrameHead, frame_digest};
use freebs_lsvd::fuzzing;
use freebs_types::{ClusterId, DeviceId, NodeId, StartNumber, limits};
use zerocopy::IntoBytes;

pub const WORDS: &[&[u8]] =
    &[b"FBSB", b"FBAP", b"FBIX", b"FBMP", b"FBCP", b"FBOP", b"FBHK", b"FBFR", b"\0\x10\0\0", b"\x08", b"\x19"];

/// The device and cluster of the golden bytes.
pub const DEVICE: DeviceId = DeviceId([0xde; 16]);
pub fn cluster() -> ClusterId {
    ClusterId(core::array::from_fn(|i| 0x10 + i as u8))
}

fn mended(input: &Input<'_>, seal: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal(&mut bytes);
    }
    bytes
}

pub fn superblock(data: &[u8]) {
    let bytes = mended(&Input::of(data), |b| seal::fixed(b, size_of::<Superblock>()));
    let result = Superblock::decode(&bytes);
    signal::ended("superblock", &result);
    let Ok(sb) = result else { return };
    let (sector, segment) = (sb.sector.get(), sb.segment_bytes.get());
    assert!(sector.is_power_of_two() && (512..=4096).contains(&sector) && segment.is_multiple_of(4096));
    assert!((limits::SEGMENT_BYTES_MIN..=1 << 30).contains(&segment));
    assert!(sb.revision.get().checked_add(1 << 32).is_some() && sb.start.get().checked_add(1 << 32).is_some());
    let again = sb.encode();
    assert!(again.len() == SUPERBLOCK_BYTES && again[..256] == bytes[..256], "the bytes encode again");
}

pub fn append(data: &[u8]) {
    let bytes = mended(&Input::of(data), seal::append);
    let result = AppendHeader::decode(&bytes);
    signal::ended("append", &result);
    let Ok(h) = result else { return };
    let (heads, extra) = (h.heads_len.get() as usize, h.extra_len.get() as usize);
    assert!((size_of::<AppendHeader>() + extra..=APPEND_HEADS_BYTES_MAX).contains(&heads));
    assert!(h.data_len.get() as usize <= APPEND_DATA_BYTES_MAX && h.seq().0 < LOG_NUMBER_END);
    assert!(h.total(4096) <= APPEND_HEADS_BYTES_MAX + APPEND_DATA_BYTES_MAX + 4096);
    if bytes.len() < heads {
        return;
    }
    let table = LiveTable { bits: bytes[96..96 + extra].to_vec() };
    assert_eq!(LiveTable::new(table.iter(), extra as u32 * 8), table);
    if let Ok(repeat) = Repeat::decode(Bytes::copy_from_slice(&bytes[96..96 + extra])) {
        repeat.entries.iter().for_each(|e| super::frames::checked_head(&e.head));
        signal::saw("frames of a repeat", repeat.entries.len() as u64);
    }
    let mut rest = Bytes::copy_from_slice(&bytes[96 + extra..heads]);
    let mut frames = 0;
    while let Ok(head) = FrameHead::parse(&mut rest) {
        super::frames::checked_head(&head);
        frames += 1;
    }
    signal::saw("frames of an append", frames + u64::from(rest.is_empty()) * 1000);
    let mut again = h;
    again.finish(&bytes[96..heads]);
    assert!(h.heads_crc.get() != again.heads_crc.get() || again.as_bytes() == &bytes[..96], "the bytes encode again");
}

pub fn segment_index(data: &[u8]) {
    let bytes = mended(&Input::of(data), seal::segment_index);
    let result = SegmentFooter::decode(&bytes, limits::SEGMENT_BYTES);
    signal::ended("footer", &result);
    let Ok(f) = result else { return };
    assert!(u64::from(f.index_at.get()) + u64::from(f.index_len.get()) + 96 <= limits::SEGMENT_BYTES);
    let index = Bytes::copy_from_slice(&bytes[..bytes.len() - 96]);
    let entries = IndexEntry::decode_all(index.clone(), f.frames.get(), limits::SEGMENT_BYTES as usize);
    signal::ended("index", &entries);
    let Ok(entries) = entries else { return };
    assert_eq!(entries.len(), f.frames.get() as usize);
    let mut again = BytesMut::new();
    entries.iter().for_each(|e| e.encode(&mut again));
    assert_eq!(again.len(), index.len());
    assert!(entries.iter().map(|e| e.head.bytes().len()).sum::<usize>() <= limits::SEGMENT_BYTES as usize);
    entries.iter().for_each(|e| super::frames::checked_head(&e.head));
    signal::saw("entries", entries.len() as u64);
}

/// The page begins at once, or (choice) its body does, with the count in front.
pub fn map_page(data: &[u8]) {
    let input = Input::of(data);
    if input.choice & 1 == 1 {
        let mut c = Choices(input.rest);
        let count = c.number(4) as u32;
        return entries(c.0, count);
    }
    let bytes = mended(&input, seal::map_page);
    let name = PageName { device: DEVICE, kind: 1 + u16::from(input.choice >> 1) % 3, run: 77, page: 3 };
    let result = PageHeader::open(&bytes, name);
    signal::ended("page", &result);
    let Ok((count, body)) = result else { return };
    assert!(body.len() + size_of::<PageHeader>() <= bytes.len());
    let mut again = bytes.clone();
    PageHeader::seal(&mut again, name, count, body.len());
    assert_eq!(PageHeader::open(&again, name).expect("just sealed"), (count, body));
    entries(body, count);
}

fn entries(body: &[u8], count: u32) {
    let result = fuzzing::map_page(&body[..body.len().min(PAGE_BYTES - size_of::<PageHeader>())], count);
    signal::ended("entries of a page", &result);
    let Ok((entries, built, again)) = result else { return };
    assert!(entries.len() == count as usize && again == count && built.len() <= body.len());
    let mut last = (0, 0);
    for (slot, start, len, crcs) in &entries {
        assert!((*slot, *start) >= last && *len > 0 && *crcs <= *len as usize, "in order, without overlap");
        last = (*slot, start + len);
        assert!(freebs_types::BlockRange::new(*start, *len).is_in_shard(*crcs > 0));
    }
    let back = fuzzing::map_page(&built, count).expect("what was built is read");
    assert!(back.0 == entries && back.1 == built);
    signal::saw("entries of a page", entries.len() as u64);
}

pub fn checkpoint(data: &[u8]) {
    let bytes = mended(&Input::of(data), seal::checkpoint);
    let result = CheckpointSlot::decode(&bytes, DEVICE);
    signal::ended("checkpoint", &result);
    let Ok((slot, places)) = result else { return };
    assert!(places.len() <= CHECKPOINT_EXTENTS_MAX && slot.bytes.get() <= MANIFEST_BYTES_MAX);
    let used = size_of::<CheckpointSlot>() + size_of_val(&places[..]);
    let again = slot.encode(&places);
    assert_eq!(again.len(), CHECKPOINT_BYTES);
    // The length field is not looked at.
    let (back, list) = CheckpointSlot::decode(&again, DEVICE).expect("what was encoded decodes");
    assert!(list == places && again[96..used] == bytes[96..used]);
    assert_eq!((back.revision, back.manifest, back.bytes), (slot.revision, slot.manifest, slot.bytes));
}

pub fn openings(data: &[u8]) {
    let bytes = mended(&Input::of(data), seal::openings);
    let result = Openings::decode(&bytes, DEVICE);
    signal::ended("openings", &result);
    let Ok((page, list)) = result else { return };
    let newest = page.newest.get();
    assert!(list.len() <= OPENINGS_MAX && list.len() as u64 <= newest && newest < LOG_NUMBER_END);
    let again =
        Openings::encode(DEVICE, (page.revision.get(), StartNumber(page.start.get())), (newest, &list), page.next());
    assert_eq!(again.len(), OPENINGS_BYTES);
    let used = size_of::<Openings>() + size_of_val(&list[..]);
    let (back, named) = Openings::decode(&again, DEVICE).expect("what was encoded decodes");
    assert!(named == list && again[96..used] == bytes[96..used] && back.next() == page.next());
    signal::saw("segments that were opened", list.len() as u64);
}

pub fn manifest(data: &[u8]) {
    let bytes = mended(&Input::of(data), seal::frames);
    let result = fuzzing::manifest(&bytes);
    signal::ended("manifest", &result);
    let Ok(size) = result else { return };
    let items = size.shards + size.runs + size.segments + size.chunks + size.history;
    assert!(items < bytes.len() && size.covered <= size.written);
    for n in [size.shards, size.runs, size.segments, size.chunks, size.history] {
        signal::saw("items of a manifest", n as u64);
    }
}

pub fn host_key(data: &[u8]) {
    let bytes = mended(&Input::of(data), |b| seal::fixed(b, HOST_KEY_BYTES));
    let result = HostKeyFile::decode(&bytes, cluster(), NodeId(3));
    for of in [KeyOf::Node, KeyOf::Authority] {
        if let Ok((seed, public)) = SigningKeyFile::decode(&bytes, of, cluster()) {
            let again = SigningKeyFile::encode(of, cluster(), &seed, &public);
            assert_eq!(again[..88], bytes[..88], "all but reserved bytes and the checksum");
        }
    }
    if let Ok(token) = JoinToken::parse(&String::from_utf8_lossy(data)) {
        assert_eq!(JoinToken::parse(&token.text()), Ok(token));
    }
    signal::ended("host key", &result);
    let Ok((secret, public)) = result else { return };
    assert_eq!(bytes.len(), HOST_KEY_BYTES);
    let again = HostKeyFile::encode(cluster(), NodeId(3), &secret, &public);
    assert_eq!(again[..96], bytes[..96], "all but reserved bytes and the checksum");
    // The digest of a frame takes any bytes.
    let _ = frame_digest(&bytes, &again, &[]);
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    let image = super::image::image(true);
    for (i, body) in super::image::page_bodies(image, freebs_format::disk::PAGE_ENTRIES).into_iter().take(2).enumerate()
    {
        let counted = [&body.0.to_le_bytes()[..], &body.1].concat();
        out.add("map-page", format!("entries-{i}"), Input::bytes(false, 0, 1, &counted));
    }
    // A manifest lies in pages one behind the other.
    let manifests = super::image::manifests(image);
    for (i, bytes) in manifests.into_iter().enumerate() {
        fuzzing::manifest(&bytes).expect("the image's own manifest");
        out.add("manifest", format!("image-{i}"), Input::bytes(true, 0, 0, &bytes));
    }
}

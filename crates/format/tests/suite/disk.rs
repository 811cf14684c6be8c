//! Structures of a device: round trips, refusals, hostile bytes.

use crate::common::any::frame;
use crate::common::*;
use bytes::{Bytes, BytesMut};
use freebs_format::disk::*;
use freebs_format::*;
use freebs_types::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn superblock() -> Superblock {
    Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: DISK_VERSION.into(),
        length: 256.into(),
        features: 0.into(),
        sector: 512.into(),
        cluster: cluster().0,
        device: [3; 16],
        node: 2.into(),
        worker: 1.into(),
        workers: 4.into(),
        reserved0: 0.into(),
        segment_bytes: (1u64 << 20).into(),
        size_limit: (1u64 << 30).into(),
        revision: 7.into(),
        start: 6.into(),
        created: 5.into(),
        reserved: [0; 148],
        crc: 0.into(),
    }
}

fn resealed(mut bytes: Vec<u8>, covered: usize) -> Vec<u8> {
    let crc = crc32c(&bytes[..covered]);
    bytes[covered..covered + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_superblock_is_found_whole_or_not_at_all() {
    let good = superblock().encode();
    assert_eq!(good.len(), SUPERBLOCK_BYTES);
    let sb = Superblock::decode(&good).unwrap();
    assert_eq!((sb.cluster_id(), sb.node_id(), sb.start_number()), (cluster(), NodeId(2), StartNumber(6)));
    for bit in 0..256 * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let e = Superblock::decode(&bad).unwrap_err();
        let expected = if bit < 32 { ErrorKind::NotFound } else { ErrorKind::Corrupt };
        assert_eq!(e.kind, expected, "bit {bit}");
    }
    for len in 0..256 {
        assert_eq!(Superblock::decode(&good[..len]).unwrap_err().kind, ErrorKind::Corrupt);
    }
    assert_eq!(Superblock::decode(&[0; 4096]).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_superblock_of_a_newer_format_or_an_impossible_shape_is_refused() {
    let kind = |change: &dyn Fn(&mut Superblock)| {
        let mut sb = superblock();
        change(&mut sb);
        Superblock::decode(&sb.encode()).map(|_| ()).map_err(|e| e.kind)
    };
    assert_eq!(kind(&|_| ()), Ok(()));
    for version in [0, DISK_VERSION - 1, DISK_VERSION + 1, u16::MAX] {
        assert_eq!(kind(&|s| s.version = version.into()), Err(ErrorKind::Invalid), "{version}");
    }
    for unknown in [1u32, 2, 1 << 31] {
        assert_eq!(kind(&|s| s.features = unknown.into()), Err(ErrorKind::Invalid), "{unknown:#x}");
    }
    for sector in [0u32, 256, 768, 8192, u32::MAX] {
        assert_eq!(kind(&|s| s.sector = sector.into()), Err(ErrorKind::Corrupt), "{sector}");
    }
    for segment in [0u64, 4096, (1 << 20) - 4096, (1 << 20) + 512, 1 << 31, u64::MAX] {
        assert_eq!(kind(&|s| s.segment_bytes = segment.into()), Err(ErrorKind::Corrupt), "{segment}");
    }
}

fn append(extra_and_heads: &[u8], extra: usize) -> AppendHeader {
    let mut h = AppendHeader {
        magic: [0; 4],
        version: 0.into(),
        flags: 0,
        skipped: 3,
        device: [3; 16],
        segment: 4.into(),
        offset: 8192.into(),
        segment_seq: 9.into(),
        number: 100.into(),
        durable: 99.into(),
        heads_len: ((size_of::<AppendHeader>() + extra_and_heads.len()) as u32).into(),
        extra_len: (extra as u32).into(),
        data_len: 8192.into(),
        frames: 1.into(),
        start: 6.into(),
        lost: LostStretch::default(),
        heads_crc: 0.into(),
        crc: 0.into(),
    };
    h.finish(extra_and_heads);
    h
}

#[test]
fn an_append_header_is_found_whole_or_not_at_all() {
    let heads = [&[0xff; 3][..], data_frame().head.bytes()].concat();
    let h = append(&heads, 3);
    let good = h.as_bytes().to_vec();
    let back = AppendHeader::decode(&good).unwrap();
    assert_eq!((back.seq(), back.heads_crc.get()), (SegmentSeq(9), crc32c(&heads)));
    assert_eq!(back.total(512), (size_of::<AppendHeader>() + heads.len()).next_multiple_of(512) + 8192);
    assert_eq!((back.seq_before(), AppendHeader { skipped: 255, ..back }.seq_before()), (5, 0));
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(AppendHeader::decode(&bad).unwrap_err().kind, ErrorKind::Corrupt, "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(AppendHeader::decode(&good[..len]).is_err());
    }
    let with = |at: usize, value: u32| {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        AppendHeader::decode(&resealed(bad, 100)).map(|_| ()).map_err(|e| e.kind)
    };
    assert_eq!(with(56, 103), Err(ErrorKind::Corrupt), "shorter than its header");
    assert_eq!(with(56, APPEND_HEADS_BYTES_MAX as u32 + 1), Err(ErrorKind::Corrupt));
    assert_eq!(with(60, u32::MAX), Err(ErrorKind::Corrupt), "more extra bytes than heads");
    assert_eq!(with(64, APPEND_DATA_BYTES_MAX as u32 + 4096), Err(ErrorKind::Corrupt));
    assert_eq!(with(64, 100), Err(ErrorKind::Corrupt));
    let mut newer = good.clone();
    newer[4] = 3;
    assert_eq!(AppendHeader::decode(&resealed(newer, 100)).unwrap_err().kind, ErrorKind::Invalid);
}

/// A repeat counts as a whole or not at all, and never panics.
#[test]
fn a_repeat_is_found_whole_or_not_at_all() {
    let mut entries = BytesMut::new();
    for at in [96, 2000] {
        let head = data_frame().head;
        IndexEntry { head_at: at, data_at: 4096, append: 7, flags: 0, head }.encode(&mut entries);
    }
    let table = [5u8, 0, 1];
    let mut good = vec![0; Repeat::encoded_len(table.len(), entries.len())];
    Repeat::encode(&mut good, 7, &table, (3, 99), (2, &entries));
    let back = Repeat::decode(good.clone().into()).unwrap();
    assert_eq!((back.append, back.entries.len(), back.table.unwrap().bits), (7, 2, table.to_vec()));
    assert_eq!((back.copies, back.copies_crc), (3, 99));
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Repeat::decode(bad.into()).unwrap_err().kind, ErrorKind::Corrupt, "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(Repeat::decode(good[..len].to_vec().into()).is_err());
    }
    // Of another append than it says; more frames than it has; a table longer than all.
    let mut other = good.clone();
    Repeat::encode(&mut other, 8, &table, (3, 99), (2, &entries));
    assert!(Repeat::decode(other.clone().into()).is_err());
    Repeat::encode(&mut other, 7, &table, (3, 99), (3, &entries));
    assert!(Repeat::decode(other.into()).is_err());
    let mut long = good;
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Repeat::decode(resealed(long, 28).into()).is_err());
    let mut empty = vec![0; Repeat::encoded_len(0, 0)];
    Repeat::encode(&mut empty, 9, &[], (0, 0), (0, &[]));
    let back = Repeat::decode(empty.into()).unwrap();
    assert!(back.append == 9 && back.table.is_none() && back.entries.is_empty());
}

fn footer(index: &[u8], frames: u32) -> SegmentFooter {
    let mut f = SegmentFooter {
        magic: [0; 4],
        version: 0.into(),
        skipped: 3.into(),
        device: [3; 16],
        segment: 4.into(),
        frames: frames.into(),
        segment_seq: 9.into(),
        first_append: 90.into(),
        last_append: 100.into(),
        index_at: 8192.into(),
        index_len: 0.into(),
        next: 5.into(),
        index_crc: 0.into(),
        lost: [LostStretch::default(); LOST_STRETCHES_MAX],
        reserved: [0; 4],
        crc: 0.into(),
    };
    f.finish(index);
    f
}

fn index_of(frames: &[Frame]) -> Bytes {
    let mut index = BytesMut::new();
    for (i, f) in frames.iter().enumerate() {
        let at = i as u32 * 4096;
        let flags = (i % 2) as u16;
        let e = IndexEntry { head_at: at + 96, data_at: at + 512, append: 90 + i as u64, flags, head: f.head.clone() };
        let before = index.len();
        e.encode(&mut index);
        assert!(index.len() - before <= IndexEntry::encoded_len_max(f.head.bytes().len()));
    }
    index.freeze()
}

/// A footer with stretches that overlap, touch, go backwards, or come behind an empty place is none.
#[test]
fn losses_of_a_footer_are_in_order() {
    let with = |lost: &[(u64, u64)]| {
        let mut f = footer(&[], 0);
        f.lost.iter_mut().zip(lost).for_each(|(out, s)| *out = LostStretch::new(*s));
        f.finish(&[]);
        SegmentFooter::decode(f.as_bytes(), 1 << 20)
    };
    let most: Vec<_> = (1..=LOST_STRETCHES_MAX as u64).map(|n| (10 * n, 10 * n + 8)).collect();
    for good in [&[][..], &[(95, 95)], &[(95, 97), (99, 101)], &most] {
        let f = with(good).unwrap();
        assert_eq!(f.lost().collect::<Vec<_>>(), good);
        assert_eq!(f.known_lost().collect::<Vec<_>>(), good[..good.len().min(LOST_STRETCHES_MAX - 1)]);
        assert_eq!(f.last(), good.last().map_or(100, |s| s.1.max(100)));
    }
    for bad in [
        &[(0, 5)][..],
        &[(5, 0)],
        &[(7, 6)],
        &[(95, 97), (98, 99)],
        &[(95, 97), (96, 99)],
        &[(95, 97), (90, 91)],
        &[(0, 0), (95, 97)],
        &[(95, LOG_NUMBER_END)],
    ] {
        assert_eq!(with(bad).unwrap_err().kind, ErrorKind::Corrupt, "{bad:?}");
    }
}

#[test]
fn a_segment_index_names_every_frame() {
    let frames: Vec<Frame> = all_frames().into_iter().map(|(_, f)| f).collect();
    let index = index_of(&frames);
    let f = footer(&index, frames.len() as u32);
    let good = f.as_bytes().to_vec();
    // The footer is found in the last bytes of whatever was read.
    let back = SegmentFooter::decode(&[&[7; 100][..], &good].concat(), 1 << 20).unwrap();
    assert_eq!((back.index_crc.get(), back.index_len.get()), (crc32c(&index), index.len() as u32));
    assert_eq!((back.seq_before(), SegmentFooter { skipped: u16::MAX.into(), ..back }.seq_before()), (5, 0));
    let room = frames.iter().map(|f| f.head.bytes().len()).sum();
    let entries = IndexEntry::decode_all(index.clone(), back.frames.get(), room).unwrap();
    assert!(IndexEntry::decode_all(index.clone(), back.frames.get(), room - 1).is_err(), "more than there is room for");
    assert_eq!(entries.len(), frames.len());
    for (i, (e, f)) in entries.iter().zip(&frames).enumerate() {
        assert_eq!(e.head.bytes(), f.head.bytes());
        assert_eq!(
            (e.head_at, e.data_at, e.append, e.flags),
            (i as u32 * 4096 + 96, i as u32 * 4096 + 512, 90 + i as u64, (i % 2) as u16)
        );
    }
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(SegmentFooter::decode(&bad, 1 << 20).unwrap_err().kind, ErrorKind::Corrupt, "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(SegmentFooter::decode(&good[..len], 1 << 20).is_err());
    }
    assert!(SegmentFooter::decode(&good, 8192).is_err(), "an index outside its segment");
    let mut newer = good.clone();
    newer[4] = 3;
    assert_eq!(SegmentFooter::decode(&resealed(newer, 204), 1 << 20).unwrap_err().kind, ErrorKind::Invalid);
    for wrong in [0, 4, 6, u32::MAX] {
        assert!(IndexEntry::decode_all(index.clone(), wrong, room).is_err());
    }
    for len in 1..index.len() {
        assert!(IndexEntry::decode_all(index.slice(..len), 5, room).is_err(), "{len} bytes");
    }
}

proptest! {
    #[test]
    fn live_tables_round_trip(live in prop::collection::btree_set(0u32..5000, 0..40), segments in 5000u32..6000) {
        let table = LiveTable::new(live.iter().map(|s| SegmentId(*s)), segments);
        prop_assert_eq!(table.bits.len() as u32, segments.div_ceil(8));
        prop_assert_eq!(table.iter().map(|s| s.0).collect::<std::collections::BTreeSet<_>>(), live.clone());
        let read = LiveTable { bits: table.bits.clone() };
        for s in 0..segments {
            prop_assert_eq!(read.contains(SegmentId(s)), live.contains(&s));
        }
        prop_assert!(!read.contains(SegmentId(u32::MAX)));
    }

    #[test]
    fn indexes_round_trip(frames in prop::collection::vec(frame(), 0..8)) {
        let index = index_of(&frames);
        let back = IndexEntry::decode_all(index, frames.len() as u32, usize::MAX).unwrap();
        for (e, f) in back.iter().zip(&frames) {
            prop_assert_eq!(e.head.bytes(), f.head.bytes());
        }
    }

    #[test]
    fn random_bytes_are_nothing(bytes in prop::collection::vec(any::<u8>(), 0..1000), magic in 0usize..5) {
        let mut bytes = bytes;
        let magics = [*b"FBSB", *b"FBAP", *b"FBIX", *b"FBFR"];
        if bytes.len() >= 256 && magic < 4 {
            bytes[..4].copy_from_slice(&magics[magic]);
            let footer = bytes.len() - size_of::<SegmentFooter>();
            bytes[footer..footer + 4].copy_from_slice(&magics[magic]);
        }
        prop_assert!(Superblock::decode(&bytes).is_err());
        prop_assert!(AppendHeader::decode(&bytes).is_err());
        prop_assert!(SegmentFooter::decode(&bytes, 1 << 20).is_err());
        prop_assert!(bytes.is_empty() || IndexEntry::decode_all(bytes.clone().into(), 1, usize::MAX).is_err());
    }

    /// Right checksums over wrong bytes: nothing panics, and what is accepted is within its maxima.
    #[test]
    fn hostile_structures_do_no_harm(edits in prop::collection::vec((0usize..252, any::<u8>()), 1..8), sector in 9u32..13) {
        let mut sb = superblock().encode();
        let mut ap = append(&[0; 64], 8).as_bytes().to_vec();
        let mut fo = footer(&[0; 64], 1).as_bytes().to_vec();
        for (at, value) in edits {
            sb[at] = value;
            ap[at % 100] = value;
            fo[at % 204] = value;
        }
        if let Ok(sb) = Superblock::decode(&resealed(sb, 252)) {
            prop_assert!(sb.sector.get() <= 4096 && sb.segment_bytes.get() <= 1 << 30);
        }
        if let Ok(h) = AppendHeader::decode(&resealed(ap, 100)) {
            prop_assert!(h.total(1 << sector) <= APPEND_HEADS_BYTES_MAX + 4096 + APPEND_DATA_BYTES_MAX);
            prop_assert!(h.extra_len.get() <= h.heads_len.get());
        }
        if let Ok(f) = SegmentFooter::decode(&resealed(fo, 204), 1 << 20) {
            let lost: Vec<_> = f.lost().collect();
            prop_assert!(lost.windows(2).all(|w| w[0].1 + 1 < w[1].0) && lost.iter().all(|(from, to)| 1 <= *from && from <= to));
            prop_assert!(u64::from(f.index_at.get()) + u64::from(f.index_len.get()) <= 1 << 20);
        }
    }
}

//! Golden bytes: every structure as it was when its format was fixed. A difference here means that devices and
//! peers of an earlier build are not understood any more, and asks for a new version number, not for new golden
//! bytes. `cargo xtask bless` writes them anew while a version is not out.

#![allow(clippy::disallowed_methods, reason = "golden bytes are files beside the test")]

use crate::common::*;
use bytes::BytesMut;
use freebs_format::disk::*;
use freebs_format::keys::*;
use freebs_format::*;
use freebs_types::*;
use std::fmt::Write;
use std::path::Path;
use zerocopy::IntoBytes;

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        line.iter().for_each(|b| write!(out, "{b:02x}").unwrap());
        out.push('\n');
    }
    out
}

/// Compares with `tests/golden/NAME.hex`; long data only by length and hash.
fn golden(name: &str, bytes: &[u8], data: &[u8]) {
    let mut text = hex(bytes);
    if !data.is_empty() {
        writeln!(text, "data: {} bytes, blake3 {}", data.len(), blake3::hash(data)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.hex"));
    if freebs_testing::bless() {
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (i, (a, b)) in known.lines().zip(text.lines()).enumerate() {
        assert_eq!(a, b, "{name}: bytes {} to {} are not what they were", i * 32, i * 32 + 31);
    }
    assert_eq!(known.lines().count(), text.lines().count(), "{name}: another length");
}

#[test]
fn frames() {
    let others = [
        ("mark-pins", pins_frame()),
        ("mark-closed", closed_frame()),
        ("mark-history", history_frame()),
        ("mark-fork", fork_frame()),
        ("mark-lost", lost_frame()),
        ("mark-flat", flat_frame()),
        ("mark-given-up", given_up_frame()),
        ("snapshot", snapshot_frame()),
        ("view-shared", shared_view_frame()),
        ("view-described", described_view_frame()),
        ("view-branch", branch_view_frame()),
    ];
    for (name, frame) in all_frames().into_iter().chain(others) {
        let (mut bytes, pins) = (frame.head.bytes().clone(), frame.header().features.get() & FEATURE_PINS);
        assert_eq!(pins > 0, name == "snapshot" || name == "mark-pins", "{name}");
        let has = |feature| frame.header().features.get() & feature > 0;
        let of = |names: &[&str]| names.contains(&name);
        assert_eq!(has(FEATURE_SHARED), of(&["view-shared", "view-described", "view-branch"]), "{name}");
        assert_eq!(has(FEATURE_VOLUME), of(&["view-described", "view-branch"]), "{name}");
        assert_eq!(has(FEATURE_CLOSED), name == "mark-closed", "{name}");
        assert_eq!(has(FEATURE_HISTORY), name == "mark-history", "{name}");
        assert_eq!(has(FEATURE_FORK), name == "mark-fork", "{name}");
        assert_eq!(has(FEATURE_LOST), name == "mark-lost", "{name}");
        assert_eq!(has(FEATURE_BRANCH), name == "view-branch", "{name}");
        assert_eq!(has(FEATURE_GIVEN_UP), name == "mark-given-up", "{name}");
        assert!(FrameHead::parse(&mut bytes).is_ok(), "{name}");
        golden(&format!("frame-{name}"), frame.head.bytes(), &frame.data.concat());
    }
}

fn superblock() -> Superblock {
    Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: DISK_VERSION.into(),
        length: 256.into(),
        features: 0.into(),
        sector: 4096.into(),
        cluster: cluster().0,
        device: [0xde; 16],
        node: 2.into(),
        worker: 1.into(),
        workers: 4.into(),
        reserved0: 0.into(),
        segment_bytes: limits::SEGMENT_BYTES.into(),
        size_limit: (20u64 << 30).into(),
        revision: 9.into(),
        start: 8.into(),
        created: 1_767_225_600_000_000_000.into(),
        reserved: [0; 148],
        crc: 0.into(),
    }
}

#[test]
fn intervals() {
    let frame = prepare_frame();
    assert_eq!(frame.header().features.get(), FEATURE_INTERVALS);
    golden("frame-prepare", frame.head.bytes(), &frame.data.concat());
    for record in [prepared(), IntervalRecord { state: IntervalState::Committed, extents: Vec::new(), ..prepared() }] {
        let bytes = record.encode();
        assert_eq!(bytes.len(), record.blocks() as usize * BLOCK);
        if record.state == IntervalState::Prepared {
            golden("interval-record", &bytes[..160], &bytes[160..]);
        }
        assert_eq!(IntervalRecord::decode(&bytes).unwrap().as_ref(), Some(&record));
        for at in [0, 4, 6, 7, 16, 40, 57, 59, 61, 76, 80, 96, 130] {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0x81;
            let back = IntervalRecord::decode(&bad);
            let is_covered = at < 80 + 2 * 16 + record.extents.len() * 12;
            assert!(back.is_err() || (at == 0 && back == Ok(None)) || !is_covered, "byte {at}: {back:?}");
        }
    }
    let none = IntervalRecord { extents: Vec::new(), ..prepared() };
    assert!(IntervalRecord::decode(&none.encode()).is_err(), "a prepared one changes something");
    assert_eq!(IntervalRecord::decode(&[0; BLOCK]).unwrap(), None);
    assert_eq!(IntervalRecord::decode(&[]).unwrap(), None);
    let last = limits::SHARD_INTERVALS - 1;
    assert_eq!(u64::from(interval_record(0).start.0), limits::SHARD_VOLUME_BLOCKS_MAX);
    assert_eq!(u64::from(interval_data(last).0 + limits::INTERVAL_PLACE_BLOCKS), limits::SHARD_BLOCKS_MAX);
    assert_eq!(interval_record(last).end(), u64::from(interval_data(0).0));
}

#[test]
fn map() {
    let mut page = vec![0; PAGE_BYTES];
    page[64..74].copy_from_slice(&[25, 7, 8, 6, 4, 9, 0xa, 0xb, 0xc, 0xd]);
    let name = PageName { device: DeviceId([0xde; 16]), kind: PAGE_ENTRIES, run: 77, page: 3 };
    PageHeader::seal(&mut page, name, 1, 10);
    golden("map-page", &page[..96], &page[96..]);
    assert_eq!(PageHeader::open(&page, name).unwrap(), (1, &page[64..74]));
    for other in [PageName { page: 2, ..name }, PageName { run: 78, ..name }, PageName { kind: PAGE_FENCES, ..name }] {
        assert_eq!(PageHeader::open(&page, other).unwrap_err().kind, ErrorKind::Corrupt);
    }
    let slot = CheckpointSlot {
        magic: [0; 4],
        version: 0.into(),
        length: 0.into(),
        device: [0xde; 16],
        revision: 12.into(),
        manifest: 78.into(),
        bytes: 9000.into(),
        extents: 0.into(),
        durable: 4242.into(),
        reserved: [0; 28],
        extents_crc: 0.into(),
        crc: 0.into(),
    };
    let extents = [(5, 4095, 1), (9, 0, 2)].map(|(segment, page, count): (u32, u32, u32)| PagesFixed {
        segment: segment.into(),
        page: page.into(),
        count: count.into(),
    });
    let bytes = slot.encode(&extents);
    golden("checkpoint", &bytes[..128], &bytes[128..]);
    let (back, list) = CheckpointSlot::decode(&bytes, DeviceId([0xde; 16])).unwrap();
    assert_eq!((back.revision.get(), back.bytes.get(), back.durable.get(), &list[..]), (12, 9000, 4242, &extents[..]));
    assert_eq!(CheckpointSlot::decode(&bytes, DeviceId([1; 16])).unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(CheckpointSlot::decode(&[0; 4096], DeviceId([1; 16])).unwrap_err().kind, ErrorKind::NotFound);
    for at in [0, 5, 30, 60, 90, 97, 110] {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(CheckpointSlot::decode(&bad, DeviceId([0xde; 16])).is_err(), "byte {at}");
    }
}

#[test]
fn openings() {
    let device = DeviceId([0xde; 16]);
    let page = |list: &[u32], next| Openings::encode(device, (6, StartNumber(41)), (1003, list), next);
    let bytes = page(&[7, OPENINGS_NONE, 12], Some(9));
    golden("openings", &bytes[..128], &[]);
    let (head, list) = Openings::decode(&bytes, device).unwrap();
    assert_eq!((head.revision.get(), head.start.get(), head.newest.get(), head.next()), (6, 41, 1003, Some(9)));
    assert_eq!(list, [7, OPENINGS_NONE, 12]);
    assert_eq!(Openings::decode(&bytes, DeviceId([1; 16])).unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(Openings::decode(&[0; 4096], device).unwrap_err().kind, ErrorKind::NotFound);
    for at in [0, 5, 30, 40, 50, 53, 60, 90, 97, 107] {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(Openings::decode(&bad, device).is_err(), "byte {at}");
    }
    let most = vec![3; OPENINGS_MAX];
    let (head, list) = Openings::decode(&page(&most, None), device).unwrap();
    assert!(list == most && head.next().is_none());
    // Numbers that can't be raised any more are nobody's.
    for (revision, start, newest) in [(LOG_NUMBER_END, 1, 1), (1, LOG_NUMBER_END, 1), (1, 1, LOG_NUMBER_END)] {
        let page = Openings::encode(device, (revision, StartNumber(start)), (newest, &[7]), None);
        assert_eq!(Openings::decode(&page, device).unwrap_err().kind, ErrorKind::Corrupt);
    }
}

#[test]
fn device() {
    golden("superblock", &superblock().encode()[..256], &superblock().encode()[256..]);
}

#[test]
fn appends() {
    let table = LiveTable::new([0, 1, 9, 1200].into_iter().map(SegmentId), 1280);
    let heads: Vec<u8> = [view_frame(), data_frame()].iter().flat_map(|f| f.head.bytes().to_vec()).collect();
    let extra_and_heads = [&table.bits[..], &heads].concat();
    let mut append = AppendHeader {
        magic: [0; 4],
        version: 0.into(),
        flags: APPEND_REPAIR as u8,
        skipped: 0,
        device: [0xde; 16],
        segment: 12.into(),
        offset: 0.into(),
        segment_seq: 40.into(),
        number: 5000.into(),
        durable: 4999.into(),
        heads_len: ((size_of::<AppendHeader>() + extra_and_heads.len()) as u32).into(),
        extra_len: (table.bits.len() as u32).into(),
        data_len: (2 * BLOCK as u32).into(),
        frames: 2.into(),
        start: 8.into(),
        lost: LostStretch::default(),
        heads_crc: 0.into(),
        crc: 0.into(),
    };
    append.finish(&extra_and_heads);
    golden("append", &[append.as_bytes(), &extra_and_heads].concat(), &[]);
    let mut entry = BytesMut::new();
    let (at, data) = ((size_of::<AppendHeader>() + table.bits.len()) as u32, data_frame());
    IndexEntry { head_at: at, data_at: 4096, append: 5000, flags: 0, head: data.head }.encode(&mut entry);
    let mut repeat = vec![0; Repeat::encoded_len(table.bits.len(), entry.len())];
    Repeat::encode(&mut repeat, 5000, &table.bits, (2, 0x1234_5678), (1, &entry));
    let back = Repeat::decode(repeat.clone().into()).unwrap();
    assert_eq!((back.append, back.table.as_ref(), back.entries.len()), (5000, Some(&table), 1));
    let extra_and_heads = [&repeat[..], view_frame().head.bytes()].concat();
    let heads_len = size_of::<AppendHeader>() + extra_and_heads.len();
    let mut append = AppendHeader { flags: APPEND_REPEATS as u8, skipped: 2, offset: 16384.into(), ..append };
    (append.number, append.durable, append.frames) = (5001.into(), 5000.into(), 1.into());
    append.lost = LostStretch::new((4988, 4990));
    (append.heads_len, append.extra_len) = ((heads_len as u32).into(), (repeat.len() as u32).into());
    append.finish(&extra_and_heads);
    golden("append-repeat", &[append.as_bytes(), &extra_and_heads].concat(), &[]);
}

#[test]
fn indexes() {
    let mut index = BytesMut::new();
    for (i, (_, f)) in all_frames().into_iter().enumerate() {
        let at = i as u32;
        let flags = if i == 0 { APPEND_REPAIR } else { 0 };
        IndexEntry { head_at: 96 + at, data_at: 4096 * (1 + at), append: 5000 + u64::from(at), flags, head: f.head }
            .encode(&mut index);
    }
    let mut footer = SegmentFooter {
        magic: [0; 4],
        version: 0.into(),
        skipped: 2.into(),
        device: [0xde; 16],
        segment: 12.into(),
        frames: 5.into(),
        segment_seq: 40.into(),
        first_append: 5000.into(),
        last_append: 5004.into(),
        index_at: ((16 << 20) - 8192).into(),
        index_len: 0.into(),
        next: 13.into(),
        index_crc: 0.into(),
        lost: [LostStretch::default(); LOST_STRETCHES_MAX],
        reserved: [0; 4],
        crc: 0.into(),
    };
    footer.finish(&index);
    golden("segment-index", &index, &[]);
    golden("segment-footer", footer.as_bytes(), &[]);
    footer.lost[..2].copy_from_slice(&[LostStretch::new((5001, 5001)), LostStretch::new((5003, 5005))]);
    footer.finish(&index);
    golden("segment-footer-lost", footer.as_bytes(), &[]);
}

#[test]
fn messages() {
    let all = all_messages();
    assert_eq!(all.len(), 24, "one of each kind");
    for m in all {
        let (head, payload) = wire_bytes(&m);
        golden(&format!("message-{}", m.name().replace(' ', "-")), &head, &payload);
    }
}

#[test]
fn messages_with_slices_keep_their_bytes() {
    for (name, m) in messages_with_slices() {
        let (head, payload) = wire_bytes(&m);
        golden(&format!("message-{name}"), &head, &payload);
    }
}

#[test]
fn the_host_key() {
    let (secret, public) = (Hash32([0x5c; 32]), HostPublic([0x9b; 32]));
    let bytes = HostKeyFile::encode(cluster(), NodeId(3), &secret, &public);
    golden("host-key", &bytes, &[]);
    assert_eq!(HostKeyFile::decode(&bytes, cluster(), NodeId(3)).unwrap(), (secret, public));
    assert!(HostKeyFile::decode(&bytes, cluster(), NodeId(4)).is_err());
    assert!(HostKeyFile::decode(&bytes, ClusterId([1; 16]), NodeId(3)).is_err());
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(HostKeyFile::decode(&bad, cluster(), NodeId(3)).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(HostKeyFile::decode(&bytes[..len], cluster(), NodeId(3)).is_err(), "{len} bytes");
    }
}

#[test]
fn signing_keys() {
    let (seed, public) = (Hash32([0x5c; 32]), HostPublic([0x9b; 32]));
    for (name, of, other) in [("node", KeyOf::Node, KeyOf::Authority), ("authority", KeyOf::Authority, KeyOf::Node)] {
        let bytes = SigningKeyFile::encode(of, cluster(), &seed, &public);
        golden(&format!("{name}-key"), &bytes, &[]);
        assert_eq!(SigningKeyFile::decode(&bytes, of, cluster()).unwrap(), (seed, public));
        assert!(SigningKeyFile::decode(&bytes, other, cluster()).is_err());
        assert!(SigningKeyFile::decode(&bytes, of, ClusterId([1; 16])).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SigningKeyFile::decode(&bad, of, cluster()).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(SigningKeyFile::decode(&bytes[..len], of, cluster()).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn tokens() {
    let authority = HostPublic([0x9b; 32]);
    let token = JoinToken { cluster: cluster(), authority, secret: [0x3d; 24], expires_ms: 1_790_000_000_000 };
    let text = token.text();
    golden("join-token", text.as_bytes(), &[]);
    assert_eq!(JoinToken::parse(&format!(" {}\n", text.to_uppercase())).unwrap(), token);
    assert!(!format!("{token:?}").contains("3d3d"), "secrets are not for logs");
    for at in 0..text.len() {
        let mut bad = text.clone().into_bytes();
        bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
        let e = JoinToken::parse(std::str::from_utf8(&bad).unwrap()).unwrap_err();
        assert!(e.kind == ErrorKind::Invalid && !e.text.contains("3d3d"), "{at}: {e}");
    }
    for bad in ["", "00", &text[1..], &format!("{text}00"), &text.replacen('3', "é", 1), &"g".repeat(192)] {
        assert!(JoinToken::parse(bad).unwrap_err().text.contains("freebs cluster token"), "{bad}");
    }
}

/// Published values, so that a change of a library or of its parameters is noticed.
#[test]
fn hashes_are_the_known_ones() {
    assert_eq!(crc32c(&block(1)), block_crc(&block(1)));
    assert_eq!(crc32c(&[0u8; 32]), 0x8a91_36aa, "RFC 3720, B.4");
    assert_eq!(crc32c(&[0xffu8; 32]), 0x62a8_ab43, "RFC 3720, B.4");
    let digest = frame_digest(b"", b"", &[]);
    assert_eq!(
        digest.to_string(),
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "BLAKE3 of nothing"
    );
    assert_eq!(frame_digest(b"a", b"b", &[b"c".as_slice().into()]), frame_digest(b"abc", b"", &[]));
}

#[test]
fn a_lost_block() {
    let block = lost_block(0x0102_0304);
    golden("lost-block", &block[..16], &block);
}

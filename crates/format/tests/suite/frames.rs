//! Frames: what is built is parsed again, what was changed is refused, and the hash chain holds.

use crate::common::any::{carry, draft, frame, frame_meta, hash, mark_body, view_body};
use crate::common::*;
use bytes::{BufMut, Bytes, BytesMut};
use freebs_format::*;
use freebs_types::*;
use proptest::prelude::*;

fn parse(bytes: &[u8]) -> Result<FrameHead> {
    FrameHead::parse(&mut Bytes::copy_from_slice(bytes))
}

/// Everything that can be asked of a head that was parsed; none of it may panic.
fn use_all(head: &FrameHead) {
    for u in head.updates() {
        let data: u32 =
            u.extents().filter(|(e, _)| e.kind == ExtentKind::Data).map(|(e, first)| (e.range.len, first).0).sum();
        assert_eq!(data as usize, u.crcs.len());
    }
    assert!(head.kind() != FrameKind::Data || head.crcs().len() == head.header().data_blocks() as usize);
    let _ = (head.header().last_version(), head.seq().next(), head.shard());
    let _ = head.header().chunk_offset.get() + head.header().data_blocks();
    let _ = ViewBody::decode(head.body());
    let _ = AttachBody::decode(head.body());
    let _ = MarkBody::decode(head.body());
    let _ = CarryBody::decode(head.body(), head.header().data_blocks());
}

#[test]
fn updates_come_back_as_they_went_in() {
    let frame = data_frame();
    let head = parse(frame.head.bytes()).unwrap();
    assert_eq!(
        (head.kind(), head.seq(), head.header().last_version()),
        (FrameKind::Data, Sequence(1001), Version(2002))
    );
    let ups: Vec<Update<'_>> = head.updates().collect();
    assert_eq!(ups.len(), 2);
    assert_eq!(
        (ups[0].version, ups[0].number, ups[0].lowest_open),
        (Version(2001), RequestNumber(12), RequestNumber(10))
    );
    let extents: Vec<_> = ups[0].extents().collect();
    let places: Vec<u32> = extents.iter().map(|(_, first)| *first).collect();
    assert_eq!(extents.iter().map(|(e, _)| *e).collect::<Vec<_>>(), drafts()[0].extents);
    assert_eq!(places, [0, 1, 1], "a data extent's blocks are counted, a zero extent has none");
    assert_eq!((ups[1].kind, ups[1].version, ups[1].first_block), (UpdateKind::Trim, Version(2002), 2));
    assert_eq!(head.crcs().len(), 2);
}

/// A reader that does not know how secrets are shared must not take the view for one that it knows, and a frame must
/// not hide that it is one.
#[test]
fn slices_are_announced() {
    let frame = shared_view_frame();
    let body = ViewBody::decode(frame.head.body()).unwrap();
    assert_eq!(body, shared_view_body());
    assert_eq!(body.without_slices(), crate::common::view_body());
    for (frame, feature) in [(frame, 0), (crate::common::view_frame(), FEATURE_SHARED), (data_frame(), FEATURE_SHARED)]
    {
        let mut bytes = frame.head.bytes().to_vec();
        bytes[8..12].copy_from_slice(&feature.to_le_bytes());
        reseal_frame(&mut bytes);
        assert!(parse(&bytes).is_err());
    }
    let mut bytes = shared_view_body().encode();
    let threshold = bytes.len() - 32;
    for bad in [0, 4] {
        bytes[threshold] = bad;
        assert!(ViewBody::decode(&bytes).is_err(), "{bad} of 3 slices");
    }
}

/// The same of what a view says of its volume.
#[test]
fn a_description_is_announced() {
    let frame = crate::common::described_view_frame();
    let body = ViewBody::decode(frame.head.body()).unwrap();
    assert_eq!(body, crate::common::described_view_body());
    assert_eq!(body.without_slices(), crate::common::view_body());
    let shared_only = (shared_view_frame(), FEATURE_SHARED | FEATURE_VOLUME);
    for (frame, features) in [(frame.clone(), 0), (frame.clone(), FEATURE_SHARED), (frame, FEATURE_VOLUME), shared_only]
    {
        let mut bytes = frame.head.bytes().to_vec();
        bytes[8..12].copy_from_slice(&features.to_le_bytes());
        reseal_frame(&mut bytes);
        assert!(parse(&bytes).is_err());
    }
    let good = crate::common::described_view_body().encode();
    let at = good.len() - 168;
    // Not two or more ways to answer, no name longer than there is room for, none that is empty, nothing behind it.
    for (offset, bad) in [(22, 2), (23, 129), (23, 0), (151, 1)] {
        let mut bytes = good.clone();
        bytes[at + offset] = bad;
        assert!(ViewBody::decode(&bytes).is_err(), "byte {offset} is {bad}");
    }
    let mut bytes = good;
    bytes[92] = 3;
    assert!(ViewBody::decode(&bytes).is_err(), "a flag that is not known");
}

/// V10: a branch shows what it is, and what it goes on from. Who does not know of branches refuses it.
#[test]
fn a_branch_names_the_public_hash_of_the_frame_before_it() {
    let (frame, body) = (crate::common::branch_view_frame(), crate::common::branch_view_body());
    let head = parse(frame.head.bytes()).unwrap();
    assert!(head.is_branch());
    assert_eq!(ViewBody::decode(head.body()).unwrap(), body);
    let before = head.before();
    assert_eq!((before.hid, before.token, before.view), (body.seal_hid, None, body.pred));
    assert_eq!(head.header().parent_token(), body.seal_hid);
    let all = FEATURE_SHARED | FEATURE_VOLUME;
    let described = crate::common::described_view_frame();
    for (frame, features) in [(&frame, all), (&described, all | FEATURE_BRANCH)] {
        let mut bytes = frame.head.bytes().to_vec();
        bytes[8..12].copy_from_slice(&features.to_le_bytes());
        reseal_frame(&mut bytes);
        assert!(parse(&bytes).is_err());
    }
    // A chain that is continued shows the token; and where nothing is sealed there is nothing to branch off from.
    let token = |f: &Frame| f.head.before().token;
    assert!(!described.head.is_branch() && token(&described) == Some(described.header().parent_token()));
    let first = ViewBody { seal_sequence: Sequence(0), ..crate::common::view_body() };
    let first =
        FrameBuilder::special(&crate::common::meta(), FrameKind::View, &first.encode(), &SECRET, &first.seal_hid);
    assert!(!first.0.head.is_branch());
}

#[test]
fn pins_name_versions_and_no_blocks() {
    let frame = crate::common::snapshot_frame();
    let head = parse(frame.head.bytes()).unwrap();
    let ups: Vec<_> =
        head.updates().map(|u| (u.kind, u.version.0, u.pin.map(PinUpdate::base), u.extents().count())).collect();
    let first = head.header().first_version.get();
    assert_eq!(
        ups,
        [
            (UpdateKind::Snapshot, first, Some(21), 0),
            (UpdateKind::Release, first + 1, Some(77), 0),
            (UpdateKind::Retain, first + 2, Some(1100), 0),
            (UpdateKind::Past, first + 3, Some(22), 0)
        ]
    );
    assert_eq!(head.updates().filter_map(|u| u.pin).map(PinUpdate::past).collect::<Vec<_>>(), [0, 0, 0, 1090]);
    // An older reader would pass over them: the frame must say that it has them. Bit 1 was that of pins whose table had
    // no snapshots.
    for (features, kind) in [(0, ErrorKind::Corrupt), (1, ErrorKind::Invalid)] {
        let mut bytes = frame.head.bytes().to_vec();
        bytes[8] = features;
        reseal_frame(&mut bytes);
        assert_eq!(parse(&bytes).unwrap_err().kind, kind);
    }
    let mut bytes = frame.head.bytes().to_vec();
    bytes[256 + 48 + 32 + 7] = 0x80;
    reseal_frame(&mut bytes);
    assert_eq!(parse(&bytes).unwrap_err().kind, ErrorKind::Corrupt, "a version beyond all numbers");
    let mark = crate::common::pins_frame();
    let body = MarkBody::decode(mark.head.body()).unwrap();
    let pin = |version, snapshot| Pin { version: Version(version), snapshot: SnapshotId(snapshot) };
    assert_eq!((body.pins, body.retain), (vec![pin(77, 3), pin(1200, 0)], Version(1100)));
    let mut unsorted = mark.head.body().to_vec();
    let end = unsorted.len();
    unsorted[end - 16..end - 8].copy_from_slice(&77u64.to_le_bytes());
    assert!(MarkBody::decode(&unsorted).is_err());
    assert!(MarkBody::decode(&unsorted[..end - 8]).is_err());
}

/// A peer told numbers that no frame ever reaches: as of such a frame no later pin counted, and a checkpoint with one could not be
/// read again. A pin of version 0 was given up by an update that ends the retention window.
#[test]
fn a_mark_tells_no_impossible_numbers_of_history() {
    let pin = |version| vec![Pin { version: Version(version), snapshot: SnapshotId(3) }];
    let mark = |pins, retain, as_of, whole_from| MarkBody {
        pins,
        retain: Version(retain),
        kept_as_of: Some(Sequence(as_of)),
        whole_from: Version(whole_from),
        ..MarkBody::default()
    };
    let (most, over) = ((1 << 62) - 1, 1 << 62);
    for (what, body, is_right) in [
        ("the most", mark(pin(most), most, most, most), true),
        ("pin 0", mark(pin(0), 0, 1, 0), false),
        ("pin", mark(pin(over), 0, 1, 0), false),
        ("window", mark(vec![], over, 1, 0), false),
        ("as of", mark(vec![], 0, over, 0), false),
        ("whole from", mark(vec![], 0, 1, u64::MAX), false),
    ] {
        let read = MarkBody::decode(&body.encode());
        assert_eq!(read.is_ok(), is_right, "{what}");
        assert!(read.map_or(true, |b| b.encode() == body.encode()), "{what}");
    }
}

#[test]
fn a_mark_names_no_impossible_versions_as_lost_to_clones() {
    let most = limits::LOST_VERSIONS_MAX as u64;
    let lost = |list: &[u64]| list.iter().map(|v| Version(*v)).collect::<Vec<_>>();
    let many = |n: u64| (1..=n).map(Version).collect::<Vec<_>>();
    for (what, lost, is_right) in [
        ("some", lost(&[1, 7, (1 << 62) - 1]), true),
        ("as many as may be", many(most), true),
        ("one more", many(most + 1), false),
        ("version 0", lost(&[0, 7]), false),
        ("no such version", lost(&[7, 1 << 62]), false),
        ("in another order", lost(&[7, 3]), false),
        ("twice", lost(&[7, 7]), false),
    ] {
        let body = MarkBody {
            lost,
            pins: vec![Pin { version: Version(9), snapshot: SnapshotId(1) }],
            ..crate::common::mark_body()
        };
        let bytes = body.encode();
        let read = MarkBody::decode(&bytes);
        assert_eq!(read.is_ok(), is_right, "{what}");
        let Ok(read) = read else { continue };
        assert_eq!((&read.lost, &read.pins, read.encode() == bytes), (&body.lost, &body.pins, true), "{what}");
        let counted = bytes.len() - 8;
        for (at, value) in [(counted, 0u32), (counted, most as u32 + 1), (counted, 1 << 24), (counted + 4, 1)] {
            let mut bad = bytes.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(MarkBody::decode(&bad).is_err(), "{what}: {value} at byte {at}");
        }
    }
}

/// Updates of the reserved kinds were taken without a feature bit, and acted as plain writes: a frame of a newer freebs
/// would have done something else here than there. So were they on the wire.
#[test]
fn an_update_of_a_kind_that_is_not_known_is_refused() {
    let known = [UpdateKind::Write, UpdateKind::Trim, UpdateKind::Zero];
    for kind in 0..=u8::MAX {
        let mut bytes = data_frame().head.bytes().to_vec();
        bytes[256] = kind;
        reseal_frame(&mut bytes);
        let is_pin = UpdateKind::from_byte(kind).is_some_and(UpdateKind::is_pin);
        let is_interval = UpdateKind::from_byte(kind).is_some_and(UpdateKind::is_interval);
        let expected = match UpdateKind::from_byte(kind) {
            Some(k) if known.contains(&k) => None,
            // A pin has no blocks.
            Some(_) if is_pin => Some(ErrorKind::Corrupt),
            // The feature bit is not there.
            Some(_) if is_interval => Some(ErrorKind::Corrupt),
            _ => Some(ErrorKind::Invalid),
        };
        assert_eq!(parse(&bytes).err().map(|e| e.kind), expected, "kind {kind}");
        let sent = wire::Message::Frames { forward: Vec::new(), frames: vec![data_frame()] };
        let mut sent = whole_message(&sent);
        let at = sent.windows(4).position(|w| w == b"FBFR").unwrap();
        sent[at..at + bytes.len()].copy_from_slice(&bytes);
        reseal_message(&mut sent);
        let e = decode_message(&sent).err();
        assert_eq!(e.as_ref().map(|e| e.kind), expected, "kind {kind} on the wire");
        if let Some(e) = e.filter(|e| e.kind == ErrorKind::Invalid) {
            assert!(e.text.contains("use a newer freebs"), "{e}");
        }
    }
}

/// Secrets of closed views stand in marks in the order of their views, and no more of them than a mark may have.
#[test]
fn a_mark_has_secrets_of_closed_views_in_order() {
    let mark = crate::common::closed_frame();
    let body = MarkBody::decode(mark.head.body()).unwrap();
    assert_eq!(body.closed.iter().map(|c| (c.view.0, c.published.0)).collect::<Vec<_>>(), [(3, 600), (4, 801)]);
    let pin = |version, snapshot| Pin { version: Version(version), snapshot: SnapshotId(snapshot) };
    let learned = MarkBody { learned_upto: Sequence(7), pins: vec![pin(5, 1)], ..body.clone() };
    assert_eq!(MarkBody::decode(&learned.encode()).unwrap().closed, body.closed);
    let twice = MarkBody { closed: vec![body.closed[1], body.closed[0]], ..body.clone() };
    assert!(MarkBody::decode(&twice.encode()).is_err());
    let closed = |n: usize| (0..n as u64).map(|v| ClosedView { view: ViewNumber(v), ..body.closed[0] }).collect();
    let full = MarkBody { closed: closed(limits::CLOSED_VIEWS_MAX), ..body.clone() };
    assert!(MarkBody::decode(&full.encode()).is_ok());
    let too_many = MarkBody { closed: closed(limits::CLOSED_VIEWS_MAX + 1), ..body };
    assert!(MarkBody::decode(&too_many.encode()).is_err());
    let bytes = mark.head.body();
    assert!(MarkBody::decode(&bytes[..bytes.len() - 48]).is_err());
}

#[test]
fn a_newer_format_is_said_to_be_one() {
    for (at, what) in [(4, "version"), (9, "features")] {
        let mut bytes = data_frame().head.bytes().to_vec();
        // A feature bit that is not known, or a higher version.
        bytes[at] += 64;
        assert_eq!(parse(&bytes).unwrap_err().kind, ErrorKind::Corrupt, "{what}: the checksum comes first");
        reseal_frame(&mut bytes);
        let e = parse(&bytes).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Invalid, "{what}");
        assert!(e.text.contains("newer"), "{e}");
    }
    let mut bytes = data_frame().head.bytes().to_vec();
    bytes[0] = b'X';
    reseal_frame(&mut bytes);
    assert_eq!(parse(&bytes).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    for (name, frame) in all_frames() {
        let good = frame.head.bytes().to_vec();
        parse(&good).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let e = parse(&bad).expect_err("a flipped bit is found");
            assert_eq!(e.kind, ErrorKind::Corrupt, "{name}, bit {bit}");
        }
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]).unwrap_err().kind, ErrorKind::Corrupt, "{name}, {len} bytes");
        }
        let mut with_more = Bytes::from([&good[..], b"behind"].concat());
        FrameHead::parse(&mut with_more).unwrap();
        assert_eq!(&with_more[..], b"behind");
    }
}

#[test]
fn a_flipped_bit_in_the_data_is_found() {
    for (name, frame) in all_frames().into_iter().filter(|(_, f)| f.data_bytes() > 0) {
        frame.verify_data().unwrap();
        frame.verify_digest().unwrap();
        for bit in (0..frame.data_bytes() * 8).step_by(977) {
            let mut data = frame.data[0].to_vec();
            data[bit / 8] ^= 1 << (bit % 8);
            let bad = Frame::new(frame.head.clone(), vec![data.into()]).unwrap();
            assert!(bad.verify_digest().is_err(), "{name}, bit {bit}");
            if frame.head.kind() == FrameKind::Data {
                assert!(bad.verify_data().is_err(), "{name}, bit {bit}");
            }
        }
        let short = frame.data[0].slice(..BLOCK);
        assert!(Frame::new(frame.head.clone(), vec![short]).is_err());
    }
}

#[test]
fn the_digest_covers_identity_body_and_data() {
    let good = data_frame();
    good.verify_digest().unwrap();
    // Cluster, volume, view, sequence, version, body; each with its checksums made right again.
    for at in [24, 40, 56, 72, 80, 256 + 8, 256 + 2 * 48] {
        let mut bytes = good.head.bytes().to_vec();
        bytes[at] ^= 1;
        reseal_frame(&mut bytes);
        let head = parse(&bytes).unwrap();
        let bad = Frame::new(head, good.data.clone()).unwrap();
        assert!(bad.verify_digest().is_err(), "byte {at}");
    }
}

#[test]
fn updates_are_checked_against_the_limits() {
    let ok = |d: &UpdateDraft| d.check(limits::SHARD_BLOCKS_MAX).is_ok();
    let blocks = |n: usize| {
        let data: Vec<Bytes> = vec![vec![1u8; n * BLOCK].into()];
        UpdateDraft {
            extents: vec![extent(ExtentKind::Data, 0, n as u32)],
            crcs: vec![block_crc(&data[0][..BLOCK]); n],
            data,
            ..drafts().remove(0)
        }
    };
    assert!(ok(&blocks(1024)) && !ok(&blocks(1025)), "4 MiB");
    let trims = |n: u32| UpdateDraft {
        extents: (0..n).map(|i| extent(ExtentKind::Trim, i, 1)).collect(),
        ..drafts().remove(1)
    };
    assert!(ok(&trims(1024)) && !ok(&trims(1025)) && !ok(&trims(0)));
    let at = |start, len| UpdateDraft { extents: vec![extent(ExtentKind::Trim, start, len)], ..drafts().remove(1) };
    let end = limits::SHARD_BLOCKS_MAX as u32;
    assert!(ok(&at(end - 1, 1)) && !ok(&at(end, 1)) && !ok(&at(0, 0)) && !ok(&at(u32::MAX, u32::MAX)));
    assert!(at(end, 1).check(u64::MAX).is_err(), "no shard is larger than a frame can address");
    assert!(at(99, 1).check(100).is_ok() && at(100, 1).check(100).is_err());
    let mut wrong = blocks(2);
    wrong.crcs.pop();
    assert!(!ok(&wrong));
    let mut wrong = blocks(2);
    wrong.data = vec![vec![1u8; BLOCK + 512].into()];
    assert!(!ok(&wrong));
}

/// The builder is filled until it refuses, with updates of one size: the frame is within all maxima.
#[test]
fn a_full_frame_can_be_parsed() {
    let small = UpdateDraft { extents: vec![extent(ExtentKind::Trim, 5, 1)], ..drafts().remove(1) };
    let wide =
        UpdateDraft { extents: (0..1024).map(|i| extent(ExtentKind::Zero, i * 2, 1)).collect(), ..drafts().remove(1) };
    let long = UpdateDraft {
        extents: vec![extent(ExtentKind::Data, 0, 1024)],
        crcs: vec![0; 1024],
        data: vec![vec![0u8; 4 << 20].into()],
        ..drafts().remove(0)
    };
    for (draft, count) in [(small, limits::FRAME_UPDATES_MAX), (wide, 21), (long, 1)] {
        draft.check(limits::SHARD_BLOCKS_MAX).unwrap();
        let mut b = FrameBuilder::new();
        while b.fits(&draft) {
            b.push(draft.clone());
        }
        assert_eq!(b.updates().len(), count);
        let (frame, _) = b.build(&meta(), &SECRET, &PARENT);
        assert!(b.is_empty() && b.data_bytes() == 0);
        assert!(frame.head.bytes().len() <= limits::FRAME_HEAD_BYTES_MAX);
        assert!(frame.data_bytes() <= limits::FRAME_DATA_BYTES_MAX);
        let head = parse(frame.head.bytes()).unwrap();
        assert_eq!(head.updates().count(), count);
    }
}

#[test]
fn impossible_heads_are_refused_though_their_checksums_are_right() {
    let good = data_frame().head.bytes().to_vec();
    let changed = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        reseal_frame(&mut bad);
        parse(&bad)
    };
    let cases: [(&str, usize, &[u8]); 16] = [
        ("kind 0", 6, &[0]),
        ("unknown kind", 6, &[8]),
        ("kind without updates", 6, &[2]),
        ("head below its header", 12, &255u32.to_le_bytes()),
        ("head above its maximum", 12, &(limits::FRAME_HEAD_BYTES_MAX as u32 + 1).to_le_bytes()),
        ("data not in blocks", 16, &4097u32.to_le_bytes()),
        ("data above its maximum", 16, &(limits::FRAME_DATA_BYTES_MAX as u32 + 4096).to_le_bytes()),
        ("one update too many", 20, &3u32.to_le_bytes()),
        ("all updates there can be", 20, &u32::MAX.to_le_bytes()),
        ("sequence that can't be counted on", 72, &u64::MAX.to_le_bytes()),
        ("version that can't be counted on", 80, &u64::MAX.to_le_bytes()),
        ("place far outside a chunk", 104, &u32::MAX.to_le_bytes()),
        ("unknown update", 256, &[9]),
        ("more extents than there are", 258, &u16::MAX.to_le_bytes()),
        ("more blocks than its extents", 260, &3u32.to_le_bytes()),
        ("extent without blocks", 256 + 96 + 4, &0u32.to_le_bytes()),
    ];
    for (what, at, bytes) in cases {
        assert_eq!(changed(at, bytes).expect_err(what).kind, ErrorKind::Corrupt, "{what}");
    }
    let extent = 256 + 2 * 48;
    assert!(changed(extent, &(1u32 << 28).to_le_bytes()).is_err(), "outside any shard");
    assert!(changed(extent + 8, &[4]).is_err(), "unknown kind of extent");
    assert!(changed(extent, &7u32.to_le_bytes()).is_ok(), "only another address");
}

#[test]
fn bodies_with_lying_counts_are_refused() {
    let view = ViewBody::decode(&view_body_bytes()).unwrap();
    assert_eq!(view, crate::common::view_body());
    for (at, value) in [(90, 0), (90, 2), (90, 4), (90, 200), (88, 0), (88, 4)] {
        let mut bad = view_body_bytes();
        bad[at] = value;
        assert!(ViewBody::decode(&bad).is_err(), "byte {at} = {value}");
    }
    let mark = crate::common::mark_body().encode();
    for at in [204, 208, 212] {
        for value in [0u32, 1 << 16, u32::MAX] {
            let mut bad = mark.clone();
            let old = u32::from_le_bytes(bad[at..at + 4].try_into().unwrap());
            assert!(old > 0 && old != value);
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(MarkBody::decode(&bad).is_err(), "byte {at} = {value}");
        }
    }
    let data = [block(3), block(4)];
    let carry = crate::common::carry_body(&data).encode();
    assert!(CarryBody::decode(&carry, 2).is_ok() && CarryBody::decode(&carry, 1).is_err());
    for value in [0u64, 2, 4, 1 << 40, u64::MAX] {
        let mut bad = carry.clone();
        bad[..8].copy_from_slice(&value.to_le_bytes());
        assert!(CarryBody::decode(&bad, 2).is_err(), "{value} entries");
    }
}

fn view_body_bytes() -> Vec<u8> {
    crate::common::view_body().encode()
}

/// A mark names the shard's view frame; anything else in its place is not taken for one.
#[test]
fn a_mark_holds_a_view_frame_and_nothing_else() {
    let with = |head: FrameHead| MarkBody { view_frame: Some(head), ..crate::common::mark_body() }.encode();
    assert!(MarkBody::decode(&with(view_frame().head)).is_ok());
    assert!(MarkBody::decode(&with(attach_frame().head)).is_err());
    // The length of the view frame names a few bytes more than it has.
    let mut long = with(view_frame().head);
    let len = u32::from_le_bytes(long[204..208].try_into().unwrap());
    long[204..208].copy_from_slice(&(len + 16).to_le_bytes());
    long[208..212].copy_from_slice(&0u32.to_le_bytes());
    assert!(MarkBody::decode(&long).is_err());
}

/// Frames as a head makes them, one on the other.
fn chain(count: u64) -> Vec<(Frame, Hash32)> {
    let mut parent = Hash32::default();
    (0..count)
        .map(|i| {
            let meta = FrameMeta { sequence: Sequence(i + 1), ..meta() };
            let (frame, id) = match i % 3 {
                0 => FrameBuilder::special(
                    &meta,
                    FrameKind::Attach,
                    &crate::common::attach_body().encode(),
                    &SECRET,
                    &parent,
                ),
                _ => build(&meta, drafts(), &parent),
            };
            parent = id;
            (frame, id)
        })
        .collect()
}

#[test]
fn tokens_make_a_chain() {
    let frames = chain(9);
    for ((a, id), (b, _)) in frames.iter().zip(&frames[1..]) {
        assert_eq!(b.header().parent_token(), *id, "the header shows the token of the frame before");
        assert_eq!(hide(&b.header().parent_token()), a.header().hid(), "everyone can check the link");
        assert_eq!(token(&SECRET, &a.header().parent_token(), &a.header().digest()), *id);
        assert_ne!(a.header().hid(), *id, "the last token is not shown");
    }
    // Without the secret, or from another digest, another token comes out.
    let (first, id) = &frames[0];
    let other = Hash32([8; 32]);
    assert_ne!(token(&other, &first.header().parent_token(), &first.header().digest()), *id);
    assert_ne!(token(&SECRET, &first.header().parent_token(), &other), *id);
    assert_ne!(token(&SECRET, &other, &first.header().digest()), *id);
}

#[test]
fn local_frames_have_no_place_in_the_chain() {
    for frame in [mark_frame(), carry_frame()] {
        assert_eq!(frame.header().parent_token(), Hash32::default());
        assert_eq!(frame.header().hid(), Hash32([0x41; 32]), "of the shard's last frame");
        frame.verify_digest().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn frames_round_trip(frame in frame()) {
        let bytes = frame.head.bytes().clone();
        let mut rest = bytes.clone();
        let head = FrameHead::parse(&mut rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(head.bytes(), &bytes);
        use_all(&head);
        let again = Frame::new(head, frame.data.clone()).unwrap();
        again.verify_data().unwrap();
        again.verify_digest().unwrap();
    }

    #[test]
    fn what_fits_can_be_parsed(meta in frame_meta(), drafts in prop::collection::vec(draft(40), 1..30), p in hash()) {
        let mut b = FrameBuilder::new();
        for d in drafts {
            d.check(limits::SHARD_BLOCKS_MAX).unwrap();
            if b.fits(&d) {
                b.push(d);
            }
        }
        let given = b.updates().to_vec();
        let (frame, id) = b.build(&meta, &SECRET, &p);
        let head = parse(frame.head.bytes()).unwrap();
        prop_assert_eq!(hide(&id), head.header().hid());
        prop_assert_eq!(head.header().last_version().0, meta.first_version.0 + given.len() as u64 - 1);
        let mut first = 0;
        for (u, d) in head.updates().zip(&given) {
            prop_assert_eq!((u.kind, u.driver, u.number, u.lowest_open), (d.kind, d.driver, d.number, d.lowest_open));
            prop_assert_eq!(u.extents().map(|(e, _)| e).collect::<Vec<_>>(), d.extents.clone());
            prop_assert_eq!(u.crcs.iter().map(|c| c.get()).collect::<Vec<_>>(), d.crcs.clone());
            prop_assert_eq!(u.first_block, first);
            first += d.crcs.len() as u32;
        }
        prop_assert_eq!(head.updates().count(), given.len());
    }

    #[test]
    fn bodies_round_trip(view in view_body(), mark in mark_body(), (carry, data) in carry()) {
        prop_assert_eq!(&ViewBody::decode(&view.encode()).unwrap(), &view);
        let again = MarkBody::decode(&mark.encode()).unwrap();
        prop_assert_eq!(format!("{again:?}"), format!("{mark:?}"));
        prop_assert_eq!(&CarryBody::decode(&carry.encode(), data.len() as u32).unwrap(), &carry);
    }

    #[test]
    fn bodies_with_bytes_left_over_or_missing_are_refused(mark in mark_body(), (carry, data) in carry(), cut in 1usize..40) {
        let longer = |mut b: Vec<u8>| { b.extend(vec![0; cut]); b };
        let shorter = |mut b: Vec<u8>| { b.truncate(b.len() - cut.min(b.len())); b };
        let view = crate::common::view_body().encode();
        prop_assert!(ViewBody::decode(&longer(view.clone())).is_err());
        prop_assert!(ViewBody::decode(&shorter(view)).is_err());
        let attach = crate::common::attach_body().encode();
        prop_assert!(AttachBody::decode(&longer(attach.clone())).is_err());
        prop_assert!(AttachBody::decode(&shorter(attach)).is_err());
        prop_assert!(MarkBody::decode(&longer(mark.encode())).is_err());
        prop_assert!(MarkBody::decode(&shorter(mark.encode())).is_err());
        prop_assert!(CarryBody::decode(&longer(carry.encode()), data.len() as u32).is_err());
        prop_assert!(CarryBody::decode(&shorter(carry.encode()), data.len() as u32).is_err());
    }

    #[test]
    fn random_bytes_are_no_frame(bytes in prop::collection::vec(any::<u8>(), 0..2000), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"FBFR\x01\0\x01\0");
        }
        prop_assert!(parse(&bytes).is_err());
        let _ = ViewBody::decode(&bytes);
        let _ = AttachBody::decode(&bytes);
        let _ = MarkBody::decode(&bytes);
        let _ = CarryBody::decode(&bytes, bytes.len() as u32 % 7);
    }

    /// A sender that makes its checksums right can't make a reader panic.
    #[test]
    fn hostile_heads_do_no_harm(
        frame in frame(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        words in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0u32, 1, 255, 1 << 16, 1 << 28, u32::MAX])), 0..3),
    ) {
        let mut bytes = frame.head.bytes().to_vec();
        for (at, value) in edits {
            let at = 4 + at.index(bytes.len() - 4);
            bytes[at] = value;
        }
        for (at, value) in words {
            let at = (4 + at.index(bytes.len() - 8)) / 4 * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        reseal_frame(&mut bytes);
        if let Ok(head) = parse(&bytes) {
            use_all(&head);
            if let Ok(frame) = Frame::new(head, frame.data.clone()) {
                let _ = (frame.verify_data(), frame.verify_digest());
            }
        }
    }

    #[test]
    fn an_altered_byte_breaks_the_chain(at in any::<prop::sample::Index>(), bit in 0u8..8, which in 1usize..8) {
        let frames = chain(9);
        let good = &frames[which].0;
        let mut all = BytesMut::from(&good.head.bytes()[..]);
        good.data.iter().for_each(|d| all.put_slice(d));
        let at = at.index(all.len());
        all[at] ^= 1 << bit;
        let mut head = all.split_to(good.head.bytes().len()).to_vec();
        reseal_frame(&mut head);
        let data = if all.is_empty() { Vec::new() } else { vec![all.freeze()] };
        // Either it can't be read at all, or its digest does not match, or its links to its neighbours are broken;
        // what is covered by none of them is the encryption tag and the reserved bytes.
        let is_unused = (208..248).contains(&at);
        let whole = parse(&head).ok().and_then(|h| Frame::new(h, data).ok());
        if let Some(bad) = whole.filter(|f| f.verify_digest().is_ok()) {
            let h = bad.header();
            let before = hide(&h.parent_token()) == frames[which - 1].0.header().hid();
            let after = hide(&frames[which + 1].0.header().parent_token()) == h.hid();
            let own = hide(&token(&SECRET, &h.parent_token(), &h.digest())) == h.hid();
            prop_assert!(!(before && after && own) || is_unused || (248..256).contains(&at));
        }
    }
}

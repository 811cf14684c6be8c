//! Messages: what is sent arrives as it was, in whatever pieces; what was changed on the way is refused.

use crate::common::any::{frame, message};
use crate::common::*;
use bytes::BytesMut;
use freebs_format::wire::*;
use freebs_format::*;
use freebs_types::*;
use proptest::prelude::*;

/// Everything that was decoded can be used and sent on without a panic.
fn use_all(m: &Message) {
    let _ = (format!("{m:?}").len(), m.name(), m.data_bytes());
    let bytes = whole_message(m);
    assert!(decode_message(&bytes).is_ok(), "what was decoded can be sent on");
    if let Message::Frames { frames, .. } | Message::SyncReply(SyncReply { frames, .. }) = m {
        for f in frames {
            let _ = (f.verify_data(), f.verify_digest(), f.head.updates().count());
        }
    }
}

#[test]
fn every_kind_arrives_as_it_was_sent() {
    let slices = messages_with_slices().into_iter().map(|(_, m)| m);
    for m in all_messages().into_iter().chain(slices) {
        let bytes = whole_message(&m);
        assert_eq!(Message::wanted(&bytes).unwrap(), bytes.len());
        let again = decode_message(&bytes).unwrap().unwrap();
        assert_eq!(format!("{again:?}"), format!("{m:?}"));
        assert_eq!(whole_message(&again), bytes);
    }
}

#[test]
fn a_newer_protocol_is_said_to_be_one() {
    let good = whole_message(&Message::Hello(hello()));
    let mut newer = good.clone();
    newer[4] = WIRE_VERSION as u8 + 1;
    let e = decode_message(&newer).unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("version"), "{e}");
    let mut other = good.clone();
    other[..4].copy_from_slice(b"GET ");
    assert_eq!(decode_message(&other).unwrap_err().kind, ErrorKind::Corrupt);
    let mut unknown = good;
    unknown[6] = 99;
    reseal_message(&mut unknown);
    assert_eq!(decode_message(&unknown).unwrap_err().kind, ErrorKind::Invalid);
}

/// A flipped bit in header or meta: refused, or (if it makes the length larger) waited for more. Never another message.
#[test]
fn every_flipped_bit_in_header_and_meta_is_refused() {
    for m in all_messages() {
        let good = whole_message(&m);
        let (head, _) = wire_bytes(&m);
        for bit in 0..head.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let got = decode_message(&bad);
            assert!(!matches!(got, Ok(Some(_))), "{}, bit {bit}", m.name());
            if !(64..96).contains(&bit) {
                assert!(got.is_err(), "{}, bit {bit}: only the length can make it wait", m.name());
            }
        }
    }
}

/// Data travel under the CRCs of the meta part; bodies of control messages under one of their own.
#[test]
fn a_flipped_bit_in_the_payload_is_found() {
    let crcs_match = |crcs: &[u32], data: &[bytes::Bytes]| {
        let blocks: Vec<u32> = data.iter().flat_map(|d| d.chunks(BLOCK).map(block_crc)).collect();
        blocks == crcs
    };
    let mut seen = 0;
    for m in all_messages() {
        let (head, payload) = wire_bytes(&m);
        for bit in (0..payload.len() * 8).step_by(if payload.len() < 1000 { 1 } else { 1009 }) {
            let mut bad = payload.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let is_found = match decode_message(&[&head[..], &bad].concat()) {
                Err(_) => true,
                Ok(Some(Message::Write(w))) => !crcs_match(&w.crcs, &w.data),
                Ok(Some(Message::ReadReply(r))) => !crcs_match(&r.crcs, &r.data),
                Ok(Some(Message::Frames { frames, .. } | Message::SyncReply(SyncReply { frames, .. }))) => {
                    frames.iter().any(|f| f.verify_data().is_err() || f.verify_digest().is_err())
                }
                other => panic!("{}: {other:?}", m.name()),
            };
            assert!(is_found, "{}, bit {bit}", m.name());
            seen += 1;
        }
    }
    assert!(seen > 500);
}

#[test]
fn half_a_message_is_waited_for() {
    for m in all_messages() {
        let good = whole_message(&m);
        for len in (0..good.len()).step_by(if good.len() < 2000 { 1 } else { 61 }) {
            let mut buf = BytesMut::from(&good[..len]);
            assert!(Message::decode(&mut buf).unwrap().is_none(), "{}, {len} bytes", m.name());
            assert_eq!(buf.len(), len, "nothing is taken before all is there");
            let wanted = Message::wanted(&buf).unwrap();
            assert_eq!(wanted, if len < HEADER_BYTES { HEADER_BYTES } else { good.len() });
        }
    }
}

/// The parts of a message that are shorter or longer than its tables say, with a right checksum.
#[test]
fn bytes_missing_or_left_over_in_the_meta_part_are_refused() {
    for m in all_messages() {
        let (head, payload) = wire_bytes(&m);
        let per_item = match &m {
            Message::Durable(_) => 32,
            Message::Ordered { .. } => 16,
            Message::Heartbeat(_) => 48,
            _ => usize::MAX,
        };
        for change in [-64i64, -8, -4, -1, 1, 4, 7, 8, 96] {
            let meta_len = head.len() as i64 - 64 + change;
            if meta_len < 0 || (change.unsigned_abs() as usize).is_multiple_of(per_item) {
                continue;
            }
            let mut bad = head.clone();
            bad.resize(64 + meta_len as usize, 0);
            let total = (bad.len() + payload.len()) as u32;
            bad[8..12].copy_from_slice(&total.to_le_bytes());
            bad[12..16].copy_from_slice(&(meta_len as u32).to_le_bytes());
            bad.extend_from_slice(&payload);
            reseal_message(&mut bad);
            assert!(decode_message(&bad).is_err(), "{}, {change} bytes", m.name());
        }
    }
}

#[test]
fn payload_where_none_belongs_is_refused() {
    for m in all_messages() {
        let mut bad = whole_message(&m);
        bad.extend_from_slice(&[0; BLOCK]);
        let total = bad.len() as u32;
        bad[8..12].copy_from_slice(&total.to_le_bytes());
        reseal_message(&mut bad);
        assert!(decode_message(&bad).is_err(), "{}", m.name());
    }
}

#[test]
fn lengths_beyond_the_maxima_are_refused_before_anything_is_awaited() {
    let good = whole_message(&Message::Nudge { shard: shard(), view: ViewNumber(1) });
    let with = |total: u32, meta: u32| {
        let mut bad = good.clone();
        bad[8..12].copy_from_slice(&total.to_le_bytes());
        bad[12..16].copy_from_slice(&meta.to_le_bytes());
        Message::wanted(&bad)
    };
    let max = limits::MESSAGE_BYTES_MAX as u32;
    assert_eq!(with(max, 0).unwrap(), max as usize);
    for (total, meta) in [(max + 1, 0), (u32::MAX, 0), (63, 0), (0, 0), (64, 1), (max, META_BYTES_MAX as u32 + 1)] {
        assert_eq!(with(total, meta).unwrap_err().kind, ErrorKind::Corrupt, "{total}, {meta}");
    }
}

#[test]
fn a_write_is_held_to_the_limits_of_an_update() {
    let with = |change: &dyn Fn(&mut WriteRequest)| {
        let mut w = write_request();
        change(&mut w);
        decode_message(&whole_message(&Message::Write(w)))
    };
    assert!(with(&|_| ()).is_ok());
    assert!(with(&|w| w.kind = UpdateKind::Snapshot).is_err(), "drivers write, trim and zero");
    let part = |n: u32| {
        let shard = |index| ShardId { volume: VolumeId(3), index };
        let id = IntervalId { decider: shard(0), driver: DriverId(7), number: IntervalNumber(1) };
        let participants = (0..n).map(shard).collect();
        Some(Box::new(IntervalPart { id, lowest_open: IntervalNumber(1), participants }))
    };
    let prepare = |n: u32| with(&|w| (w.kind, w.interval) = (UpdateKind::Prepare, part(n)));
    assert!(prepare(64).is_ok() && prepare(65).is_err(), "an interval has 64 shards at most");
    let twice = with(&|w| {
        (w.kind, w.interval) = (UpdateKind::Prepare, part(2));
        w.interval.iter_mut().for_each(|i| i.participants.reverse());
    });
    assert!(twice.is_err(), "in order");
    assert!(with(&|w| w.crcs.push(1)).is_err());
    assert!(with(&|w| w.data = vec![vec![0; 100].into()]).is_err());
    let many = |n: usize| with(&|w| w.extents = vec![extent(ExtentKind::Zero, 0, 1); n]);
    assert!(many(limits::UPDATE_EXTENTS_MAX).is_ok() && many(limits::UPDATE_EXTENTS_MAX + 1).is_err());
    let long = |bytes: usize| {
        with(&|w| {
            w.data = vec![vec![0; bytes].into()];
            w.crcs = vec![0; bytes / BLOCK];
        })
    };
    assert!(long(limits::UPDATE_DATA_BYTES_MAX).is_ok() && long(limits::UPDATE_DATA_BYTES_MAX + BLOCK).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn messages_round_trip(m in message()) {
        let bytes = whole_message(&m);
        let again = decode_message(&bytes).unwrap().unwrap();
        prop_assert_eq!(format!("{:?}", again), format!("{:?}", m));
        prop_assert_eq!(whole_message(&again), bytes);
    }

    #[test]
    fn a_stream_in_any_pieces_gives_the_same_messages(
        messages in prop::collection::vec(message(), 1..6), cuts in prop::collection::vec(1usize..5000, 1..50),
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(whole_message).collect();
        let (mut buf, mut got, mut at) = (BytesMut::new(), Vec::new(), 0);
        for n in cuts.iter().cycle() {
            let end = (at + n).min(stream.len());
            buf.extend_from_slice(&stream[at..end]);
            while let Some(m) = Message::decode(&mut buf).unwrap() {
                got.push(format!("{m:?}"));
            }
            at = end;
            if at == stream.len() {
                break;
            }
        }
        prop_assert!(buf.is_empty());
        prop_assert_eq!(got, messages.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>());
    }

    #[test]
    fn random_bytes_are_no_message(bytes in prop::collection::vec(any::<u8>(), 64..1000), dress: bool) {
        let mut bytes = bytes;
        if dress {
            bytes[..6].copy_from_slice(b"FBMS\x01\0");
            let len = bytes.len() as u32;
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            let meta = u32::from(bytes[12]).min(len - 64);
            bytes[12..16].copy_from_slice(&meta.to_le_bytes());
        }
        prop_assert!(!matches!(decode_message(&bytes), Ok(Some(_))));
    }

    /// A sender that makes its checksums right can't make a receiver panic.
    #[test]
    fn hostile_messages_do_no_harm(
        m in message(),
        kind in prop::option::of(0u16..25),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        words in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0u32, 1, 2, 255, 1 << 16, 1 << 30, u32::MAX])), 0..3),
    ) {
        let mut bytes = whole_message(&m);
        if let Some(kind) = kind {
            bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        }
        for (at, value) in edits {
            let at = 16 + at.index(bytes.len() - 16);
            bytes[at] = value;
        }
        for (at, value) in words {
            let at = (8 + at.index(bytes.len() - 12)) / 4 * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        reseal_message(&mut bytes);
        if let Ok(Some(m)) = decode_message(&bytes) {
            use_all(&m);
        }
    }

    /// The same for the heads of frames inside: their own checksums are right, too.
    #[test]
    fn hostile_frames_in_a_message_do_no_harm(
        f in frame(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let m = Message::Frames { forward: Vec::new(), frames: vec![f] };
        let (mut head, payload) = wire_bytes(&m);
        let at = HEADER_BYTES + 8; // Behind the fixed part of `Frames`.
        let len = head.len() - at;
        for (i, value) in edits {
            head[at + 4 + i.index(len - 4)] = value;
        }
        reseal_frame(&mut head[at..]);
        reseal_message(&mut head);
        if let Ok(Some(m)) = decode_message(&[&head[..], &payload].concat()) {
            use_all(&m);
        }
    }
}

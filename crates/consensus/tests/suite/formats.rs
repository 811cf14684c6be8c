//! `docs/formats/control.md` says what the code does, and bytes of a build are understood by the next one.

use crate::tables;
use core::mem::{offset_of, size_of};
use freebs_consensus::machine::{Answer, Machine, Proposal};
use freebs_consensus::note::{NOTE_BYTES, SeatNote};
use freebs_consensus::pages::{self, PAGE_BYTES, Page, PageStamp, Place};
use freebs_consensus::superblock::StoreSuperblock;
use freebs_consensus::types::{Entry, Membership, SnapshotMeta, StoredMembership, Vote, log_id};
use freebs_consensus::wire::{self, Envelope, Message, SeatHeader};
use freebs_consensus::{Devices, Seat, limits, store};
use freebs_control::{Command, Done, Outcome};
use freebs_types::*;
use openraft::EntryPayload;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

macro_rules! agrees {
    ($docs:expr, $type:ident { $($field:ident),* $(,)? }) => {{
        let d = $docs.iter().find(|d| d.name == stringify!($type)).expect("it has a table");
        assert_eq!(d.bytes, size_of::<$type>(), stringify!($type));
        let built = [$((offset_of!($type, $field), stringify!($field))),*];
        let described: Vec<_> = d.rows.iter().map(|r| (r.offset, r.field.as_str())).collect();
        assert_eq!(described, built);
        let ends = built.iter().skip(1).map(|f| f.0).chain([d.bytes]);
        let sizes: Vec<usize> = ends.zip(built).map(|(end, f)| end - f.0).collect();
        assert_eq!(d.rows.iter().map(|r| r.bytes).collect::<Vec<_>>(), sizes);
    }};
}

#[test]
fn tables_and_structs_agree() {
    let docs = tables::structs(&tables::read("control.md"));
    assert_eq!(docs.len(), 4);
    agrees!(docs, SeatNote { magic, version, length, cluster, node, begun, used, reserved, crc });
    agrees!(
        docs,
        StoreSuperblock {
            magic,
            version,
            length,
            cluster,
            node,
            store,
            start,
            generation,
            area,
            first_page,
            pages,
            first_batch,
            reserved,
            crc,
        }
    );
    agrees!(docs, PageStamp { crc, magic, store, area, page, batch, left, used, version });
    agrees!(
        docs,
        SeatHeader {
            magic,
            version,
            kind,
            total_len,
            body_crc,
            cluster,
            from_node,
            from_store,
            to_node,
            to_store,
            id,
            start,
            founding,
            room_bytes,
            devices,
            used_percent,
            crc,
        }
    );
}

#[test]
fn a_note_comes_back_and_nothing_else_is_taken_for_one() {
    let (cluster, node) = (ClusterId([3; 16]), NodeId(2));
    let note = SeatNote::new(cluster, node).begin().in_use().begin();
    let bytes = note.encode();
    let read = SeatNote::decode(&bytes, cluster, node).unwrap();
    assert_eq!((read.begun(), read.used()), (StartNumber(2), StartNumber(1)));
    assert_eq!(&bytes[..8], b"FBCN\x01\x00\x40\x00", "golden");
    assert_eq!(&bytes[32..48], [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "golden");
    for at in 0..NOTE_BYTES {
        let mut bad = bytes;
        bad[at] ^= 1;
        assert!(SeatNote::decode(&bad, cluster, node).is_err(), "byte {at}");
        assert!(SeatNote::decode(&bytes[..at], cluster, node).is_err(), "{at} bytes");
    }
    assert!(SeatNote::decode(&bytes, ClusterId([4; 16]), node).is_err());
    assert!(SeatNote::decode(&bytes, cluster, NodeId(3)).is_err());
    let more_used_than_begun = SeatNote { used: 3.into(), ..note };
    assert!(SeatNote::decode(&more_used_than_begun.encode(), cluster, node).is_err());
}

#[test]
fn kinds_agree() {
    let text = tables::read("control.md");
    macro_rules! has {
        ($module:path: $($name:ident),*) => {{
            use $module as kinds;
            $(let row = format!("| {} | {} |", kinds::$name, stringify!($name));
            assert!(text.contains(&row), "no row {row}");)*
        }};
    }
    has!(store::kind: VOTE, ENTRY, COMMITTED, TRUNCATED, PURGED, SNAPSHOT);
    has!(wire::kind: APPEND, APPEND_REPLY, VOTE, PRE_VOTE, VOTE_REPLY, PIECE, PIECE_REPLY, PROPOSE, PROPOSE_REPLY,
         JOIN, REFUSED, OUTDATED, DOUBT, GONE, HERE);
}

fn seats() -> [Seat; 3] {
    [1, 2, 3].map(|n| Seat { node: NodeId(n), store: 0x11 * n })
}

fn membership() -> Membership {
    let all: BTreeMap<Seat, ()> = seats().into_iter().map(|s| (s, ())).collect();
    Membership::new(vec![seats()[..1].iter().copied().collect(), all.keys().copied().collect()], all).unwrap()
}

fn entries() -> Vec<Entry> {
    let command = Box::new(Command::ResizeVolume { volume: VolumeId(7), size: 1 << 30 });
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Proposal::OpenSession),
        EntryPayload::Normal(Proposal::Command { session: 4, number: 5, floor: 3, command }),
        EntryPayload::Membership(membership()),
    ];
    payloads.into_iter().zip(8..).map(|(payload, i)| Entry { log_id: log_id(2, i), payload }).collect()
}

fn messages() -> Vec<(&'static str, Message)> {
    let vote = Vote::new_committed(2, seats()[0]);
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(2, 9)),
        last_membership: StoredMembership::new(Some(log_id(1, 3)), membership()),
    };
    let mut ask = VoteRequest::new(Vote::new(3, seats()[1]), Some(log_id(2, 9)));
    ask.leadership_transfer = true;
    let done = Done { revision: 6, outcome: Outcome::Created { volume: VolumeId(7) } };
    vec![
        (
            "append",
            Message::Append(AppendEntriesRequest {
                vote,
                prev_log_id: Some(log_id(1, 7)),
                entries: entries(),
                leader_commit: Some(log_id(1, 6)),
            }),
        ),
        ("append-reply", Message::AppendReply(AppendEntriesResponse::PartialSuccess(Some(log_id(2, 9))))),
        ("append-higher", Message::AppendReply(AppendEntriesResponse::HigherVote(vote))),
        ("vote", Message::Vote(ask.clone())),
        ("pre-vote", Message::PreVote(ask)),
        ("vote-reply", Message::VoteReply(VoteResponse::new(vote, None, true))),
        ("piece", Message::Piece { vote, meta, offset: 3, total: 9, bytes: vec![1, 2, 3] }),
        ("piece-reply", Message::PieceReply { have: 9, vote: Some(vote) }),
        ("propose", Message::Propose(Proposal::OpenSession)),
        ("propose-reply", Message::ProposeReply(Answer::Done(Ok(done)))),
        ("no-session", Message::ProposeReply(Answer::NoSession)),
        ("join", Message::Join),
        ("refused", Message::Refused(Some(seats()[2]))),
        ("outdated", Message::Outdated(StartNumber(7))),
        ("doubt", Message::Doubt(NodeId(3))),
        ("gone", Message::Gone { node: NodeId(3), term: 0 }),
        ("here", Message::Here),
        ("gone-leader", Message::Gone { node: NodeId(3), term: 7 }),
    ]
}

fn envelope() -> Envelope {
    let [from, to] = [0, 1].map(|n| seats()[n]);
    Envelope {
        cluster: ClusterId([0xc1; 16]),
        from,
        to,
        start: StartNumber(5),
        founding: 9,
        devices: Devices::Begin,
        room: freebs_consensus::Room { bytes: 0x0102_0304, used_percent: 61, is_level: false },
        id: 77,
    }
}

fn page() -> Vec<u8> {
    let mut out = vec![0; PAGE_BYTES];
    pages::stamp(&mut out, Place { store: 0x51, area: 0xa1, page: 24 }, 3, &[9; 500], 1);
    out
}

fn superblock() -> StoreSuperblock {
    let mut s = StoreSuperblock::new(ClusterId([0xc1; 16]), NodeId(2), 0x51);
    s.start = 4.into();
    s.generation = 9.into();
    s.area = 0xa1.into();
    s.first_page = 16.into();
    s.pages = 64.into();
    s.first_batch = 8.into();
    s.seal();
    s
}

/// A difference here means that stores and peers of an earlier build are not understood any more.
#[test]
#[allow(clippy::disallowed_methods, reason = "golden bytes are a file beside the test")]
fn golden_bytes() {
    let mut all = vec![
        ("superblock".to_owned(), zerocopy::IntoBytes::as_bytes(&superblock()).to_vec()),
        ("page".to_owned(), page()),
        ("machine".to_owned(), Machine::new(ClusterId([0xc1; 16])).encode()),
    ];
    all.extend(messages().into_iter().map(|(n, m)| (n.to_owned(), m.encode(envelope()).unwrap())));
    let mut text = String::new();
    for (name, bytes) in all {
        writeln!(text, "{name}").unwrap();
        for line in bytes.chunks(32) {
            line.iter().for_each(|b| write!(text, "{b:02x}").unwrap());
            text.push('\n');
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.hex");
    if freebs_testing::bless() {
        std::fs::write(path, &text).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap();
    for (i, (a, b)) in known.lines().zip(text.lines()).enumerate() {
        assert_eq!(a, b, "line {}", i + 1);
    }
    assert_eq!(known.len(), text.len());
}

/// The first start of a node that a rebuild left out is a time in milliseconds: half of it was said, and every message of
/// that node was one of an older start.
#[test]
fn start_numbers_of_any_size_are_said_whole() {
    for start in [1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, 1 << 41, u64::MAX].map(StartNumber) {
        let envelope = Envelope { start, ..envelope() };
        let bytes = Message::Here.encode(envelope).unwrap();
        assert_eq!(Message::decode(&bytes).unwrap().0, envelope);
    }
}

/// Version 1 had its checksum elsewhere. Its messages were no messages of a control plane at all, and were dropped without a
/// word, by either side; so would be those of a later version.
#[test]
fn a_message_of_another_version_is_known_as_such() {
    let mut old = Message::Here.encode(envelope()).unwrap();
    old.truncate(80);
    old[4..6].copy_from_slice(&1u16.to_le_bytes());
    old[8..12].copy_from_slice(&80u32.to_le_bytes());
    let crc = freebs_format::crc32c(&old[..76]);
    old[76..].copy_from_slice(&crc.to_le_bytes());
    let mut next = Message::Here.encode(envelope()).unwrap();
    next[4..6].copy_from_slice(&(wire::MESSAGE_VERSION + 1).to_le_bytes());
    next.extend([0; 8]);
    for (bytes, version) in [(old, 1), (next, wire::MESSAGE_VERSION + 1)] {
        let e = Message::decode(&bytes).unwrap_err();
        let words = [format!("version {version}"), "version 4".into(), "same version of freebs on all nodes".into()];
        assert!(words.iter().all(|w| e.text.contains(w)), "{e}");
        assert_eq!(wire::other_version(&bytes), Some(version));
    }
    for bytes in [&Message::Here.encode(envelope()).unwrap()[..], b"FBCM", b"FBCM\x01", b"FBCX\x01\0", b""] {
        assert_eq!(wire::other_version(bytes), None);
    }
}

#[test]
fn there_and_back() {
    for (name, m) in messages() {
        let bytes = m.encode(envelope()).unwrap();
        let (e, back) = Message::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(e, envelope());
        assert_eq!(back.encode(e).unwrap(), bytes, "{name}");
        assert_eq!(format!("{back:?}"), format!("{m:?}"));
        for cut in 0..bytes.len() {
            assert!(Message::decode(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert!(Message::decode(&bytes).is_err(), "{name} changed at {at}");
        }
    }
}

/// The largest membership and the largest page of entries fit their maxima.
#[test]
fn maxima_hold() {
    let all: BTreeMap<Seat, ()> =
        (0..limits::SEATS_MAX as u64).map(|n| (Seat { node: NodeId(n), store: n }, ())).collect();
    let some: std::collections::BTreeSet<Seat> = all.keys().take(limits::VOTERS_MAX).copied().collect();
    let payload = EntryPayload::Membership(Membership::new(vec![some.clone(), some], all).unwrap());
    let entry = Entry { log_id: log_id(1, 1), payload };
    let mut bytes = Vec::new();
    freebs_consensus::codec::put_entry(&mut bytes, &entry).unwrap();
    assert!(bytes.len() <= limits::ENTRY_BYTES_MAX, "{}", bytes.len());
    assert_eq!(freebs_consensus::codec::get_entry(&bytes).unwrap(), entry);
    let piece = 2 * (limits::PIECE_BYTES + limits::ENTRY_BYTES_MAX);
    assert!(piece <= limits::MESSAGE_BYTES_MAX, "a piece with the largest membership fits a message");
}

#[test]
fn a_page_knows_its_place() {
    let place = Place { store: 0x51, area: 0xa1, page: 24 };
    let bytes = page();
    assert_eq!(pages::look(&bytes, place), Page::Here { batch: 3, left: 6, used: 28 });
    assert_eq!(pages::look(&bytes, Place { area: 5, ..place }), Page::Before);
    assert_eq!(pages::look(&bytes, Place { page: 25, ..place }), Page::Damaged);
    assert_eq!(pages::look(&bytes, Place { store: 1, ..place }), Page::Damaged);
    assert_eq!(pages::look(&[0; PAGE_BYTES], place), Page::Before);
    for at in 0..PAGE_BYTES {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(pages::look(&bytes, place), Page::Damaged, "byte {at}");
    }
}

/// The fuzzer found that a start counted on from the highest generation.
#[test]
fn a_superblock_that_can_not_be_counted_on_from_is_refused() {
    let limit = freebs_control::limits::NUMBER_MAX;
    for (generation, fine) in [(9, true), (limit, true), (limit + 1, false), (u64::MAX, false)] {
        let mut s = superblock();
        s.generation = generation.into();
        s.seal();
        let read = StoreSuperblock::read(zerocopy::IntoBytes::as_bytes(&s));
        assert_eq!(read.as_ref().is_ok_and(Option::is_some), fine, "{generation}: {read:?}");
    }
}

proptest! {
    /// Bodies that pass their checksums and are nonsense: an error, or a message that is written the same way.
    #[test]
    fn hostile_bodies_never_panic(kind in 0u16..14, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = Message::Join.encode(envelope()).unwrap();
        bytes.extend(&body);
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        let len = bytes.len() as u32;
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].copy_from_slice(&freebs_format::crc32c(&body).to_le_bytes());
        let crc_at = wire::HEADER_BYTES - 4;
        let crc = freebs_format::crc32c(&bytes[..crc_at]);
        bytes[crc_at..][..4].copy_from_slice(&crc.to_le_bytes());
        match Message::decode(&bytes) {
            Ok((e, m)) => prop_assert_eq!(m.encode(e).unwrap().len(), bytes.len()),
            Err(e) => prop_assert!(!e.text.contains("no message of a control plane"), "the checksum is right: {}", e),
        }
    }
}

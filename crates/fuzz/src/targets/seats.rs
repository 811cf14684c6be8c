//! Seats of the control plane: messages, entries of the log, the note, snapshots.

use crate::input::{Choices, Input};
use crate::{seal, signal};
use freebs_consensus::codec::{get_entry, put_entry};
use freebs_consensus::machine::Machine;
use freebs_consensus::note::{NOTE_BYTES, SeatNote};
use freebs_consensus::types::{Entry, LogId, log_id};
use freebs_consensus::wire::{Envelope, Message};
use freebs_consensus::{Seat, limits, pages, superblock};
use freebs_types::{ClusterId, NodeId};
use openraft::EntryPayload;

pub const WORDS: &[&[u8]] = &[
    &[0xff; 8],
    b"FBCM",
    b"FBCN",
    b"FBCP",
    b"FBCL",
    b"\xff\xff\xff\xff\xff\xff\xff\x3f",
    b"\0\0\0\0\0\0\0\x40",
    b"\x01\x02",
];

pub const CLUSTER: ClusterId = ClusterId([0xc1; 16]);
pub const NODE: NodeId = NodeId(2);

pub fn message(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::seat_message(&mut bytes);
    }
    let result = Message::decode(&bytes);
    signal::ended("seat message", &result);
    let Ok((envelope, message)) = result else { return };
    assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX);
    held_to_maxima(&message);
    signal::kind("kind", u64::from(bytes[6]));
    let again = message.encode(envelope).expect("what was decoded is no longer than the maximum");
    let (back, same) = Message::decode(&again).expect("what was encoded decodes");
    assert_eq!(back, envelope);
    assert_eq!(same.encode(envelope).expect("as before"), again, "encoding is stable");
    assert!(again.len() <= bytes.len());
    if is_canonical(&message) {
        assert_eq!(again, bytes, "the bytes encode again");
    }
}

/// Sets of seats may come in any order, and twice; a text of an error is cut.
fn is_canonical(m: &Message) -> bool {
    match m {
        Message::Append(r) => !r.entries.iter().any(|e| matches!(e.payload, EntryPayload::Membership(_))),
        Message::Piece { .. } | Message::ProposeReply(_) => false,
        _ => true,
    }
}

fn held_to_maxima(m: &Message) {
    let term = |id: &LogId| id.committed_leader_id().term;
    match m {
        Message::Append(r) => {
            assert!(r.vote.committed && r.vote.leader_id.term <= limits::TERM_MAX, "a leader's, within the maximum");
            let first = r.prev_log_id.map_or(0, |p| p.index() + 1);
            for (i, e) in r.entries.iter().enumerate() {
                assert_eq!(e.log_id.index(), first + i as u64, "entries follow one another");
            }
            let terms = r.prev_log_id.iter().chain(r.entries.iter().map(|e| &e.log_id)).map(term);
            assert!(terms.chain([r.vote.leader_id.term]).is_sorted(), "terms rise up to the leader's");
        }
        Message::Vote(r) | Message::PreVote(r) => {
            assert!(!r.vote.committed && r.vote.leader_id.term <= limits::TERM_MAX, "a candidate's");
        }
        Message::Piece { vote, meta, offset, total, bytes } => {
            assert!(bytes.len() <= limits::PIECE_BYTES && *total <= limits::SNAPSHOT_BYTES_MAX as u64);
            assert!(offset + bytes.len() as u64 <= *total);
            let last = meta.last_log_id.as_ref().expect("of an entry");
            assert!(vote.committed && term(last) <= vote.leader_id.term && last.index() <= limits::LOG_INDEX_MAX);
            assert!(meta.last_membership.voter_ids().next().is_some(), "somebody votes");
        }
        _ => {}
    }
}

fn seat(n: u64) -> Seat {
    Seat { node: NodeId(n), store: 0x11 * n }
}

/// An envelope for what is encoded.
fn envelope() -> Envelope {
    Envelope {
        cluster: CLUSTER,
        from: seat(1),
        to: seat(2),
        start: freebs_types::StartNumber(5),
        founding: 9,
        devices: freebs_consensus::Devices::Silent,
        room: freebs_consensus::Room { bytes: 1 << 40, used_percent: 61, is_level: false },
        id: 77,
    }
}

pub fn entry(data: &[u8]) {
    let input = Input::of(data);
    let result = get_entry(input.rest);
    signal::ended("entry", &result);
    let Ok(entry) = result else { return };
    let mut again = Vec::new();
    signal::kind("entry", u64::from(input.rest[16]) << 8 | u64::from(input.rest.get(17).copied().unwrap_or(0)));
    put_entry(&mut again, &entry).expect("what was decoded encodes");
    assert!(again.len() <= input.rest.len() && input.rest.len() <= limits::ENTRY_BYTES_MAX);
    if !matches!(entry.payload, EntryPayload::Membership(_)) {
        assert_eq!(again, input.rest, "the bytes encode again");
    }
    assert_eq!(get_entry(&again).expect("what was encoded decodes"), entry);
}

pub fn note(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::fixed(&mut bytes, NOTE_BYTES);
    }
    let result = SeatNote::decode(&bytes, CLUSTER, NODE);
    signal::ended("note", &result);
    let Ok(note) = result else { return };
    assert_eq!(note.encode()[..], bytes[..], "the bytes encode again");
    let next = note.begin();
    assert!(next.begun() > note.begun() && next.in_use().used() == next.begun() && note.used() <= note.begun());
    // The superblock of the store and a page of it, from the same bytes.
    let mut both = [0; 512];
    both[..64].copy_from_slice(&bytes);
    let _ = superblock::StoreSuperblock::read(&both);
    let _ = pages::look(&both, pages::Place { store: 1, area: 1, page: 1 });
}

/// Entries (each with its length, all with theirs in front), then a machine.
pub fn machine(data: &[u8]) {
    let input = Input::of(data);
    let mut c = Choices(input.rest);
    let mut entries = Choices(c.piece());
    let mut bytes = c.0.to_vec();
    // The state is at the end, behind its magic.
    let at = bytes.windows(4).position(|w| w == freebs_control::STATE_MAGIC);
    if let (true, Some(at)) = (input.mend, at) {
        seal::state(&mut bytes[at..]);
    }
    let result = Machine::decode(&bytes, CLUSTER);
    signal::ended("machine", &result);
    let Ok(mut machine) = result else { return };
    same(&machine);
    let mut index = machine.applied.map_or(0, |a| a.index() + 1);
    // An entry with a higher index is refused when it is decoded.
    while !entries.0.is_empty() && index <= freebs_control::limits::NUMBER_MAX {
        let Ok(Entry { payload, .. }) = get_entry(entries.piece()) else { continue };
        machine.apply(&Entry { log_id: log_id(1, index), payload }, None);
        index += 1;
    }
    same(&machine);
    signal::saw("applied", index);
}

fn same(machine: &Machine) {
    let bytes = machine.encode();
    let back = Machine::decode(&bytes, CLUSTER).expect("a machine's bytes decode");
    assert!(back == *machine && back.encode() == bytes, "a machine comes back");
}

/// One entry of each kind.
fn some_entries() -> Vec<Entry> {
    use freebs_consensus::machine::Proposal;
    use freebs_consensus::types::Membership;
    use freebs_control::Command;
    use freebs_types::VolumeId;
    let seats: std::collections::BTreeMap<_, _> = (1..4).map(|n| (seat(n), ())).collect();
    let joint = vec![[seat(1)].into(), seats.keys().copied().collect()];
    let command = Box::new(Command::ResizeVolume { volume: VolumeId(7), size: 1 << 30 });
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Proposal::OpenSession),
        EntryPayload::Normal(Proposal::Command { session: 4, number: 1, floor: 1, command }),
        EntryPayload::Membership(Membership::new(joint, seats).expect("three seats")),
    ];
    payloads.into_iter().zip(8..).map(|(payload, i)| Entry { log_id: log_id(2, i), payload }).collect()
}

fn some_messages() -> Vec<(&'static str, Message)> {
    use freebs_consensus::machine::{Answer, Proposal};
    use freebs_consensus::types::{SnapshotMeta, StoredMembership, Vote};
    use freebs_control::{Done, Outcome};
    use freebs_types::{Error, StartNumber, VolumeId};
    use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
    let vote = Vote::new_committed(2, seat(1));
    let EntryPayload::Membership(members) = some_entries().pop().expect("there are four").payload else {
        unreachable!()
    };
    let last_membership = StoredMembership::new(Some(log_id(1, 3)), members);
    let meta = SnapshotMeta { last_log_id: Some(log_id(2, 9)), last_membership };
    let ask = VoteRequest::new(Vote::new(3, seat(2)), Some(log_id(2, 9)));
    let (prev_log_id, leader_commit) = (Some(log_id(1, 7)), Some(log_id(1, 6)));
    let append = AppendEntriesRequest { vote, prev_log_id, entries: some_entries(), leader_commit };
    let done = Done { revision: 6, outcome: Outcome::Created { volume: VolumeId(7) } };
    vec![
        ("append", Message::Append(append)),
        ("append-reply", Message::AppendReply(AppendEntriesResponse::PartialSuccess(Some(log_id(2, 9))))),
        ("append-higher", Message::AppendReply(AppendEntriesResponse::HigherVote(vote))),
        ("vote", Message::Vote(ask.clone())),
        ("pre-vote", Message::PreVote(ask)),
        ("vote-reply", Message::VoteReply(VoteResponse::new(vote, None, true))),
        ("piece", Message::Piece { vote, meta, offset: 3, total: 9, bytes: vec![1, 2, 3] }),
        ("piece-reply", Message::PieceReply { have: 9, vote: Some(vote) }),
        ("propose", Message::Propose(Proposal::OpenSession)),
        ("propose-reply", Message::ProposeReply(Answer::Done(Ok(done)))),
        ("propose-error", Message::ProposeReply(Answer::Done(Err(Error::no_space("full"))))),
        ("no-session", Message::ProposeReply(Answer::NoSession)),
        ("join", Message::Join),
        ("refused", Message::Refused(Some(seat(3)))),
        ("outdated", Message::Outdated(StartNumber(7))),
        ("doubt", Message::Doubt(NodeId(3))),
        ("gone", Message::Gone { node: NodeId(3), term: 2 }),
        ("here", Message::Here),
    ]
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    for (name, m) in some_messages() {
        let bytes = m.encode(envelope()).expect("short");
        out.add("seat-message", name, Input::bytes(true, 0, 0, &bytes));
    }
    let mut behind = Vec::new();
    for (i, e) in some_entries().into_iter().enumerate() {
        let mut bytes = Vec::new();
        put_entry(&mut bytes, &e).expect("short");
        out.add("seat-entry", format!("kind-{i}"), Input::bytes(false, 0, 0, &bytes));
        behind.extend((bytes.len() as u16).to_le_bytes());
        behind.extend(bytes);
    }
    let note = SeatNote::new(CLUSTER, NODE).begin().in_use().begin();
    out.add("seat-note", "begun", Input::bytes(true, 0, 0, &note.encode()));
    let mut machine = Machine::new(CLUSTER);
    for (i, e) in some_entries().into_iter().enumerate() {
        machine.apply(&Entry { log_id: log_id(1, i as u64), ..e }, None);
    }
    let rest = [&(behind.len() as u16).to_le_bytes()[..], &behind, &machine.encode()].concat();
    out.add("seat-machine", "four", Input::bytes(true, 0, 0, &rest));
}

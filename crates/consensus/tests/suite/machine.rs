//! The machine: commands count once, however they come; its bytes are canonical; damage never panics.

use freebs_consensus::limits;
use freebs_consensus::machine::{Answer, Machine, Proposal};
use freebs_consensus::types::{Entry, log_id};
use freebs_control::{Command, CreateVolume, Outcome};
use freebs_types::*;
use openraft::EntryPayload;
use proptest::prelude::*;
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId([3; 16]);

fn apply(m: &mut Machine, p: Proposal) -> Answer {
    let index = m.applied.map_or(0, |a| a.index() + 1);
    m.apply(&Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(p) }, None)
}

fn session(m: &mut Machine) -> u64 {
    let Answer::Session(n) = apply(m, Proposal::OpenSession) else { panic!("a session is opened") };
    n
}

/// A machine with a volume, and the session that made it.
fn machine() -> (Machine, u64) {
    let mut m = Machine::new(CLUSTER);
    let s = session(&mut m);
    let node = Command::RegisterNode {
        node: NodeId(1),
        name: "a".into(),
        address: "h:1".into(),
        workers: 1,
        start: StartNumber(1),
    };
    let volume = Command::CreateVolume(CreateVolume { name: "v".into(), size: 1 << 30, ..CreateVolume::default() });
    for (number, command) in [(1, node), (2, volume)] {
        let command = Box::new(command);
        let Answer::Done(done) = apply(&mut m, Proposal::Command { session: s, number, floor: 1, command }) else {
            panic!("it is done")
        };
        done.unwrap();
    }
    (m, s)
}

fn attach(session: u64, number: u64, floor: u64) -> Proposal {
    let command = Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([1; 32]),
        name: "c".into(),
        force: true,
        since: None,
        lapsed: false,
    };
    Proposal::Command { session, number, floor, command: Box::new(command) }
}

fn generation(a: &Answer) -> Option<u64> {
    match a {
        Answer::Done(Ok(done)) => match done.outcome {
            Outcome::Attached { generation, .. } => Some(generation.0),
            _ => None,
        },
        _ => None,
    }
}

proptest! {
    /// Commands of several sessions, repeated and out of order, with floors that rise, and the machine sometimes
    /// written and read again: as many generations as different commands, and every repeat gets the first answer.
    #[test]
    fn a_command_counts_once(ops in proptest::collection::vec((0usize..3, 1u64..20, 0u64..4, any::<bool>()), 1..120)) {
        let (mut m, _) = machine();
        let sessions: Vec<u64> = (0..3).map(|_| session(&mut m)).collect();
        let mut known: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut floors = [1u64; 3];
        for (who, number, rise, again) in ops {
            floors[who] = if rise == 0 { (floors[who] + 1).min(number) } else { floors[who] };
            let answer = apply(&mut m, attach(sessions[who], number, floors[who]));
            match (generation(&answer), known.get(&(who, number))) {
                (Some(g), Some(first)) => prop_assert_eq!(g, *first, "a repeat"),
                (Some(g), None) => { known.insert((who, number), g); }
                (None, _) => prop_assert_eq!(answer, Answer::NoSession),
            }
            prop_assert_eq!(m.state.volume(VolumeId(1)).unwrap().generation.0, known.len() as u64);
            if again {
                let bytes = m.encode();
                let back = Machine::decode(&bytes, CLUSTER).unwrap();
                prop_assert_eq!(&back.encode(), &bytes);
                prop_assert_eq!(&back, &m);
                m = back;
            }
        }
    }

    #[test]
    fn damaged_bytes_are_an_error(at in any::<prop::sample::Index>(), with in 1u8.., cut in any::<bool>()) {
        let (m, _) = machine();
        let mut bytes = m.encode();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= with }
        // A changed number may be another machine; a checksum is around it wherever it lies. It never panics.
        let _ = Machine::decode(&bytes, CLUSTER);
    }
}

#[test]
fn what_cannot_be_told_from_a_repeat_is_refused() {
    let (mut m, s) = machine();
    assert_eq!(generation(&apply(&mut m, attach(s, 3, 3))), Some(1));
    assert_eq!(apply(&mut m, attach(s, 2, 3)), Answer::NoSession, "below the floor");
    assert_eq!(apply(&mut m, attach(s, 3 + limits::SESSION_WINDOW_MAX, 3)), Answer::NoSession, "above the window");
    assert_eq!(apply(&mut m, attach(s + 77, 1, 1)), Answer::NoSession, "never opened");
    assert_eq!(m.state.volume(VolumeId(1)).unwrap().generation.0, 1);
}

#[test]
fn sessions_have_a_maximum_and_the_longest_unused_goes() {
    let (mut m, s) = machine();
    let second = session(&mut m);
    for _ in 0..limits::SESSIONS_MAX - 2 {
        session(&mut m);
    }
    assert_eq!(generation(&apply(&mut m, attach(s, 3, 1))), Some(1), "all are there");
    session(&mut m);
    assert_eq!(generation(&apply(&mut m, attach(s, 4, 1))), Some(2), "the first was used");
    assert_eq!(apply(&mut m, attach(second, 1, 1)), Answer::NoSession, "the second was not");
    let other = Machine::decode(&m.encode(), ClusterId([4; 16]));
    assert_eq!(other.unwrap_err().kind, ErrorKind::Corrupt, "of another cluster");
}

/// The fuzzer gave a snapshot that names a session twice. Its answers were counted twice and kept once, so the machine
/// was not the one that its own bytes make; with enough of them it would have looked for sessions to forget where none
/// were left, and panicked.
#[test]
fn a_session_that_comes_twice_is_refused() {
    let (m, _) = machine();
    let bytes = m.encode();
    // Applied (17 bytes), membership (4), the number of sessions, the session, the state.
    let state = bytes.windows(4).position(|w| w == freebs_control::STATE_MAGIC).unwrap();
    assert_eq!(bytes[21..25], [1, 0, 0, 0]);
    let session = &bytes[25..state];
    let twice = [&bytes[..21], &[2, 0, 0, 0], session, session, &bytes[state..]].concat();
    assert_eq!(Machine::decode(&twice, CLUSTER).unwrap_err().kind, ErrorKind::Corrupt);
    let mut other = session.to_vec();
    other[0] += 1;
    let two = [&bytes[..21], &[2, 0, 0, 0], session, &other, &bytes[state..]].concat();
    let back = Machine::decode(&two, CLUSTER).unwrap();
    assert_eq!(back.encode(), two);
}

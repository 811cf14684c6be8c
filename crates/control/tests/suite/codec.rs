//! Commands and results as bytes: golden bytes, every form there and back, and nothing that is damaged is believed
//! to be another command with bytes left over, or panics.

use freebs_control::codec::{decode_result, encode_result};
use freebs_control::{
    Ack, Command, CreateVolume, Cut, Done, Group, Keep, NewNode, Outcome, RecoverShard, Schedule, limits,
};
use freebs_types::*;
use proptest::prelude::*;
use std::fmt::Write;

fn commands() -> Vec<Command> {
    let shard = ShardId::new(7, 3);
    let mut all = vec![
        Command::RegisterNode {
            node: NodeId(2),
            name: "b".into(),
            address: "10.0.0.2:7000".into(),
            workers: 4,
            start: StartNumber(9),
        },
        Command::CreateVolume(CreateVolume {
            name: "vol".into(),
            size: 1 << 30,
            copies: Some(3),
            ack: Ack::All,
            min_copies: None,
            shards: Some(5),
            stripe: Some(1 << 20),
            retain_ms: Some(86_400_000),
        }),
        Command::DeleteVolume { volume: VolumeId(7), force: true },
        Command::ResizeVolume { volume: VolumeId(7), size: 2 << 30 },
        Command::ProposeView { shard, active: ViewNumber(4), node: NodeId(2), start: StartNumber(9) },
        Command::ActivateView { shard, view: ViewNumber(5), generation: Generation(6) },
        Command::AttachVolume {
            volume: VolumeId(7),
            identity: Hash32([0xab; 32]),
            name: "host".into(),
            force: false,
            since: None,
            lapsed: false,
        },
        Command::DetachVolume { volume: VolumeId(7), generation: Generation(6), settled: false },
        Command::NameHostKey { node: NodeId(2), start: StartNumber(9), key: HostPublic([0xcd; 32]) },
        Command::MoveHead { shard, node: NodeId(2) },
        Command::ReplaceHead { shard, head: NodeId(2), active: ViewNumber(4), node: NodeId(3) },
        Command::FailOver { nodes: vec![(NodeId(2), StartNumber(9)), (NodeId(3), StartNumber(1))] },
        Command::DetachVolume { volume: VolumeId(7), generation: Generation(6), settled: true },
        Command::AttachVolume {
            volume: VolumeId(7),
            identity: Hash32([0xab; 32]),
            name: "host".into(),
            force: true,
            since: Some(Generation(6)),
            lapsed: true,
        },
        Command::ReplaceMembers {
            gone: vec![(NodeId(2), StartNumber(9))],
            failed: vec![(NodeId(3), StartNumber(1)), (NodeId(4), StartNumber(2))],
        },
        Command::MembersComplete { shard, view: ViewNumber(5), nodes: vec![NodeId(2), NodeId(3)] },
        Command::RecoverShard(RecoverShard {
            shard,
            active: ViewNumber(5),
            by_force: true,
            members: vec![NodeId(1), NodeId(2), NodeId(3)],
            survivors: vec![(NodeId(2), StartNumber(9))],
            lost: vec![(NodeId(1), StartNumber(7)), (NodeId(3), StartNumber(8))],
            chain: vec![NodeId(2), NodeId(4)],
            least: Sequence(100),
            version: Version(90),
            known: Sequence(97),
            gives_up: 7,
            same: Sequence(95),
            learn: vec![NodeId(4)],
        }),
    ];
    all.extend(last_commands().into_iter().chain(commands_of_joining()));
    all
}

fn commands_of_joining() -> [Command; 8] {
    let identity = HostPublic([0xcd; 32]);
    [
        Command::DrainNode { node: NodeId(2), drains: true, heir: None },
        Command::DrainNode { node: NodeId(2), drains: true, heir: Some(NodeId(4)) },
        Command::RemoveNode { node: NodeId(2) },
        Command::RetireNode { node: NodeId(2) },
        Command::DrainChains { away: vec![(NodeId(3), StartNumber(7))] },
        Command::RevokeTokens { tokens: vec![Hash32([0xab; 32]), Hash32([0xcd; 32])] },
        Command::MakeToken { token: Hash32([0xab; 32]), expires_ms: 3000, now_ms: 2000 },
        Command::AddNode(NewNode {
            token: Hash32([0xab; 32]),
            identity,
            name: "b".into(),
            address: "10.0.0.2:7000".into(),
            workers: 4,
            now_ms: 2000,
        }),
    ]
}

/// The forms with the highest numbers.
fn last_commands() -> [Command; 22] {
    let shard = ShardId::new(7, 3);
    [
        Command::ExtendChains { away: vec![(NodeId(2), StartNumber(9)), (NodeId(3), StartNumber(1))], waited: vec![] },
        Command::ActivateBranch { shard, view: ViewNumber(5), generation: Generation(6) },
        Command::RetainVolume { volume: VolumeId(7), retain_ms: 3_600_000 },
        Command::RenameVolume { volume: VolumeId(7), name: "other".into() },
        Command::BeginSnapshot {
            name: "snap".into(),
            volumes: vec![VolumeId(7), VolumeId(8)],
            created_ms: 1000,
            past: None,
        },
        Command::BeginSnapshot {
            name: "snap".into(),
            volumes: vec![VolumeId(7), VolumeId(8)],
            created_ms: 1000,
            past: Some(Past::Version(Version(77))),
        },
        Command::BeginSnapshot {
            name: "snap".into(),
            volumes: vec![VolumeId(7), VolumeId(8)],
            created_ms: 1000,
            past: Some(Past::TimeMs(900)),
        },
        Command::ReportCuts {
            snapshot: SnapshotId(3),
            cuts: vec![(shard, Cut { view: ViewNumber(5), version: Version(90), sequence: Sequence(100) })],
        },
        Command::ConfirmCuts { snapshot: SnapshotId(3), held: vec![(shard, ViewNumber(5))] },
        Command::FailSnapshot { snapshot: SnapshotId(3), why: "late".into() },
        Command::DeleteSnapshot { volume: VolumeId(7), name: "snap".into(), now_ms: 2000 },
        Command::LockSnapshot { volume: VolumeId(7), name: "snap".into(), until_ms: 3000, now_ms: 2000 },
        Command::DeleteVolumeAndSnapshots { volume: VolumeId(7), force: true, now_ms: 2000 },
        Command::CloneVolume { volume: VolumeId(7), snapshot: "snap".into(), name: "other".into() },
        Command::FlattenVolume { volume: VolumeId(15) },
        Command::ActivateClone {
            shard,
            view: ViewNumber(5),
            generation: Generation(6),
            learning: vec![NodeId(2), NodeId(3)],
        },
        Command::ScheduleSnapshots { volume: VolumeId(15), schedule: None },
        Command::ScheduleSnapshots {
            volume: VolumeId(15),
            schedule: Some(Schedule {
                every_ms: 3_600_000,
                keep: vec![Keep { by: Group::Each, count: 3 }, Keep { by: Group::Week, count: 4 }],
            }),
        },
        Command::LeaveChains { failed: vec![(NodeId(2), StartNumber(9))], shards: vec![] },
        Command::LeaveChains { failed: vec![(NodeId(2), StartNumber(9))], shards: vec![(shard, ViewNumber(5))] },
        Command::ExtendChains {
            away: vec![(NodeId(2), StartNumber(9)), (NodeId(3), StartNumber(1))],
            waited: vec![(NodeId(3), StartNumber(1))],
        },
        Command::StandIn { failed: vec![(NodeId(2), StartNumber(9))], away: vec![(NodeId(3), StartNumber(1))] },
    ]
}

fn results() -> Vec<Result<Done>> {
    let outcomes = [
        Outcome::Registered,
        Outcome::Created { volume: VolumeId(7) },
        Outcome::Deleted,
        Outcome::Resized { size: 2 << 30 },
        Outcome::Proposed { view: ViewNumber(5), pred: ViewNumber(4), generation: Generation(6) },
        Outcome::Activated,
        Outcome::Attached { generation: Generation(6), alone: false },
        Outcome::Detached,
        Outcome::Named,
        Outcome::Moved,
        Outcome::Attached { generation: Generation(6), alone: true },
        Outcome::SnapshotBegun { snapshot: SnapshotId(3) },
        Outcome::Noted,
        Outcome::Added { node: NodeId(4) },
    ];
    let mut all: Vec<_> = outcomes.into_iter().map(|outcome| Ok(Done { revision: 77, outcome })).collect();
    all.push(Err(Error::busy("somebody has it")));
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        write!(out, "{b:02x}").unwrap();
        out
    })
}

/// A difference here means that logs of an earlier build are not understood any more.
#[test]
fn golden_bytes() {
    let all: Vec<String> = commands().iter().map(|c| hex(&c.encode().unwrap())).collect();
    let known = [
        "01020000000000000009000000000000000400010062 0d0031302e302e302e323a37303030",
        "020000004000000000 01 0103 00 0105000000 010000100000000000 01005c260500000000 0300766f6c",
        "03070000000000000001",
        "0407000000000000000000008000000000",
        "05070000000000000003000000040000000000000002000000000000000900000000000000",
        "060700000000000000030000000500000000000000 0600000000000000",
        "070700000000000000abababababababababababababababababababababababababababababababab000400686f7374",
        "0807000000000000000600000000000000",
        "0902000000000000000900000000000000cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
        "0a0700000000000000030000000200000000000000",
        "0c07000000000000000300000002000000000000000400000000000000 0300000000000000",
        "0b02 02000000000000000900000000000000 03000000000000000100000000000000",
        "0d07000000000000000600000000000000",
        "0e0700000000000000abababababababababababababababababababababababababababababababab03 0600000000000000 0400686f7374",
        "0f01 02000000000000000900000000000000 02 03000000000000000100000000000000 04000000000000000200000000000000",
        "10070000000000000003000000 0500000000000000 02 02000000000000000300000000000000",
        "11070000000000000003000000 0500000000000000 6400000000000000 5a00000000000000 5f00000000000000 6100000000000000 \
         0700000000000000 01 03 010000000000000002000000000000000300000000000000 02 02000000000000000400000000000000 01 0400000000000000 \
         01 02000000000000000900000000000000 02 01000000000000000700000000000000 03000000000000000800000000000000",
        "1202 02000000000000000900000000000000 03000000000000000100000000000000",
        "130700000000000000030000000500000000000000 0600000000000000",
        "1f0700000000000000 80ee360000000000",
        "140700000000000000 05006f74686572",
        "15e803000000000000 02 0700000000000000 0800000000000000 00 0400736e6170",
        "15e803000000000000 02 0700000000000000 0800000000000000 014d00000000000000 0400736e6170",
        "15e803000000000000 02 0700000000000000 0800000000000000 028403000000000000 0400736e6170",
        "160300000000000000 0100 070000000000000003000000 0500000000000000 5a00000000000000 6400000000000000",
        "170300000000000000 0100 070000000000000003000000 0500000000000000",
        "180300000000000000 04006c617465",
        "190700000000000000 d007000000000000 0400736e6170",
        "1a0700000000000000 b80b000000000000 d007000000000000 0400736e6170",
        "1b0700000000000000 d007000000000000 01",
        "1c0700000000000000 0400736e6170 05006f74686572",
        "1d0f00000000000000",
        "1e070000000000000003000000 0500000000000000 0600000000000000 02 0200000000000000 0300000000000000",
        "210f0000000000000000",
        "210f000000000000000280ee36000000000000030000000304000000",
        "2201 02000000000000000900000000000000 0000",
        "2201 02000000000000000900000000000000 0100 070000000000000003000000 0500000000000000",
        "2302 02000000000000000900000000000000 03000000000000000100000000000000 01 03000000000000000100000000000000",
        "3101 02000000000000000900000000000000 01 03000000000000000100000000000000",
        "2c0200000000000000 01",
        "2e0200000000000000 0400000000000000 01",
        "2f0200000000000000",
        "300200000000000000",
        "2d01 0300000000000000 0700000000000000",
        "2b 0200 abababababababababababababababababababababababababababababababab \
         cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
        "29b80b000000000000 d007000000000000 abababababababababababababababababababababababababababababababab",
        "2ad007000000000000 abababababababababababababababababababababababababababababababab \
         cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd 0400 010062 0d0031302e302e302e323a37303030",
    ]
    .map(|s| s.replace(' ', ""));
    assert_eq!(all, known);
}

/// The same of results.
#[test]
fn golden_bytes_of_results() {
    let all: Vec<String> = results().iter().map(|r| hex(&encode_result(r))).collect();
    let known = [
        "014d00000000000000",
        "024d000000000000000700000000000000",
        "034d00000000000000",
        "044d000000000000000000008000000000",
        "054d00000000000000050000000000000004000000000000000600000000000000",
        "064d00000000000000",
        "074d000000000000000600000000000000",
        "084d00000000000000",
        "094d00000000000000",
        "0a4d00000000000000",
        "0b4d000000000000000600000000000000",
        "0c4d000000000000000300000000000000",
        "0d4d00000000000000",
        "284d000000000000000400000000000000",
        "00020f00736f6d65626f647920686173206974",
    ];
    assert_eq!(all, known);
}

#[test]
fn there_and_back() {
    for c in commands() {
        assert_eq!(Command::decode(&c.encode().unwrap()), Ok(c));
    }
    for r in results() {
        assert_eq!(decode_result(&encode_result(&r)), Ok(r));
    }
}

#[test]
fn cut_or_longer_bytes_are_refused() {
    for c in commands() {
        let mut bytes = c.encode().unwrap();
        (0..bytes.len()).for_each(|n| assert!(Command::decode(&bytes[..n]).is_err(), "{c:?} cut at {n}"));
        bytes.push(0);
        assert!(Command::decode(&bytes).is_err(), "{c:?} with a byte more");
    }
    for r in results() {
        let mut bytes = encode_result(&r);
        (0..bytes.len()).for_each(|n| assert!(decode_result(&bytes[..n]).is_err(), "{r:?} cut at {n}"));
        bytes.push(0);
        assert!(decode_result(&bytes).is_err(), "{r:?} with a byte more");
    }
}

#[test]
fn cuts_of_a_command_have_a_maximum() {
    let cut = Cut { view: ViewNumber(5), version: Version(90), sequence: Sequence(100) };
    let report = |n: usize| {
        let cuts = (0..n as u32).map(|i| (ShardId::new(7, i), cut)).collect();
        Command::ReportCuts { snapshot: SnapshotId(3), cuts }
    };
    let most = report(limits::CUTS_OF_COMMAND_MAX);
    assert_eq!(Command::decode(&most.encode().unwrap()), Ok(most));
    assert_eq!(report(limits::CUTS_OF_COMMAND_MAX + 1).encode().unwrap_err().kind, ErrorKind::Invalid);
    let volumes = (1..=limits::SNAPSHOT_VOLUMES_MAX as u64 + 1).map(VolumeId).collect();
    let begin = Command::BeginSnapshot { name: "n".into(), volumes, created_ms: 1, past: None };
    assert_eq!(begin.encode().unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn texts_have_a_maximum() {
    let name = "x".repeat(limits::COMMAND_BYTES_MAX);
    let long = Command::CreateVolume(CreateVolume { name, size: 1 << 30, ..CreateVolume::default() });
    assert_eq!(long.encode().unwrap_err().kind, ErrorKind::Invalid);
    let bytes = encode_result(&Err(Error::invalid("é".repeat(5000))));
    let back = decode_result(&bytes).unwrap().unwrap_err();
    assert!(back.text.len() <= limits::ERROR_TEXT_BYTES_MAX && back.text.starts_with("éé"));
}

/// The fuzzer made a command whose address was longer than any that is encoded. It was decoded, so a seat took it into its
/// log, where it could not be written, and the seat stopped.
#[test]
fn what_can_not_be_encoded_is_not_decoded() {
    for len in [800, 880, 894, 895, 896, 900, 980] {
        let mut bytes = vec![1];
        bytes.extend([0; 18]);
        for text in ["n", &"h".repeat(len)] {
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        assert!(bytes.len() <= limits::COMMAND_BYTES_MAX);
        match Command::decode(&bytes) {
            Ok(c) => assert_eq!(c.encode(), Ok(bytes), "{len}"),
            Err(e) => assert!(e.kind == ErrorKind::Corrupt && len > 894, "{len}: {e}"),
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_command_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(c) = Command::decode(&bytes) {
            prop_assert_eq!(c.encode().unwrap(), bytes.clone());
        }
        let _ = decode_result(&bytes);
    }
}

//! The control plane: commands, results, the state, requests and replies as JSON, the cluster file.

use crate::input::{Choices, Input};
use crate::{seal, signal};
use freebs_control::api::{Reply, Request};
use freebs_control::cluster_file::ClusterFile;
use freebs_control::codec::{decode_result, encode_result};
use freebs_control::{
    Ack, Command, CreateVolume, Group, Keep, STATE_HEADER_BYTES, STATE_MAGIC, Schedule, State, limits,
};
use freebs_types::{
    ClusterId, Generation, Hash32, HostPublic, NodeId, ShardId, StartNumber, ViewNumber, VolumeId, limits as common,
};

pub const WORDS: &[&[u8]] = &[
    b"{\"",
    b"\":",
    b"null",
    b"true",
    b"[",
    b"]",
    b"-1",
    b"18446744073709551615",
    b"4611686018427387904",
    b"1e400",
    b"\\ud800",
    b"\xff",
    b"FBCS",
];

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// A command, or (choice) what came of one.
pub fn command(data: &[u8]) {
    let input = Input::of(data);
    if input.choice & 1 == 1 {
        let result = decode_result(input.rest);
        signal::ended("result", &result);
        let Ok(result) = result else { return };
        let again = encode_result(&result);
        let text = result.as_ref().err().map_or(0, |e| e.text.len());
        assert!(text > limits::ERROR_TEXT_BYTES_MAX || again == input.rest, "the bytes encode again");
        let cut = decode_result(&again).expect("what was encoded decodes");
        assert_eq!(encode_result(&cut), again);
        return;
    }
    let result = Command::decode(input.rest);
    signal::ended("command", &result);
    let Ok(command) = result else { return };
    assert!(input.rest.len() <= limits::COMMAND_BYTES_MAX);
    signal::kind("kind of command", u64::from(input.rest[0]));
    assert_eq!(command.encode().expect("what was decoded encodes"), input.rest, "the bytes encode again");
}

/// Pieces with their lengths, each a command.
fn decoded(mut c: Choices<'_>) -> Vec<Command> {
    let mut out = Vec::new();
    while !c.0.is_empty() && out.len() < 64 {
        out.extend(Command::decode(c.piece()).ok());
    }
    out
}

fn apply(state: &mut State, commands: &[Command]) {
    for c in commands {
        let before = state.revision();
        let result = state.apply(c.clone());
        signal::ended("apply", &result);
        assert!(state.revision() >= before && state.revision() <= before + 1);
        assert!(result.is_ok() || state.revision() == before, "a refused command changes nothing");
    }
}

fn comes_back(state: &State) {
    let bytes = state.encode();
    assert!(bytes.len() <= limits::STATE_BYTES_MAX);
    let back = State::decode(&bytes).expect("a state's bytes decode");
    assert!(back == *state && back.encode() == bytes, "a state comes back");
}

pub fn commands(data: &[u8]) {
    let input = Input::of(data);
    let commands = decoded(Choices(input.rest));
    let mut states = [State::new(CLUSTER), State::new(CLUSTER)];
    for state in &mut states {
        apply(state, &commands);
    }
    assert!(states[0] == states[1], "the same commands give the same state");
    comes_back(&states[0]);
    signal::saw("revision", states[0].revision());
}

/// Commands (with the length of all of them in front), then a state; a mended one gets a header of its own.
pub fn state(data: &[u8]) {
    let input = Input::of(data);
    let mut c = Choices(input.rest);
    let commands = decoded(Choices(c.piece()));
    let mut bytes = c.0.to_vec();
    if input.mend && bytes.len() >= STATE_HEADER_BYTES {
        bytes[..4].copy_from_slice(&STATE_MAGIC);
        seal::state(&mut bytes);
    }
    let result = State::decode(&bytes);
    signal::ended("state", &result);
    let Ok(mut state) = result else { return };
    assert!(state.nodes().count() <= common::NODES_MAX && state.revision() <= limits::NUMBER_MAX);
    comes_back(&state);
    apply(&mut state, &commands);
    comes_back(&state);
}

/// A request, or (choice) a reply.
pub fn api(data: &[u8]) {
    let input = Input::of(data);
    if input.choice & 1 == 0 {
        let result = Request::decode(input.rest);
        signal::ended("request", &result);
        if let Ok(r) = result {
            assert_eq!(Request::decode(&r.encode()).expect("what was encoded decodes"), r);
        }
        return;
    }
    let result = Reply::decode(input.rest);
    // The text of an error may be the input's.
    signal::kind("reply", result.as_ref().err().map_or(0, |e| 1 + e.kind as u64));
    let again = Reply::encode(result.clone());
    match (Reply::decode(&again), result) {
        // Numbers that are no integers are printed as short as they can be read again.
        (Ok(back), Ok(reply)) => assert_eq!(Reply::encode(Ok(back)), Reply::encode(Ok(reply))),
        (Err(back), Err(e)) => assert_eq!((back.kind, back.text), (e.kind, e.text)),
        (back, reply) => panic!("{back:?} is not {reply:?}"),
    }
}

pub fn cluster_file(data: &[u8]) {
    let input = Input::of(data);
    let result = ClusterFile::decode(input.rest);
    signal::ended("cluster file", &result);
    let Ok(file) = result else { return };
    assert!((1..=common::NODES_MAX).contains(&file.nodes.len()));
    assert!(file.nodes.iter().all(|n| file.node(n.id) == Some(n)), "each id is one node's");
    assert_eq!(ClusterFile::decode(&file.encode()).expect("what was encoded decodes"), file);
    signal::saw("nodes", file.nodes.len() as u64);
}

fn without_lost(shard: freebs_types::ShardId) -> Command {
    use freebs_control::RecoverShard;
    use freebs_types::{NodeId, Sequence, StartNumber, Version, ViewNumber};
    Command::RecoverShard(RecoverShard {
        shard,
        active: ViewNumber(2),
        by_force: true,
        members: [3, 1, 2].map(NodeId).to_vec(),
        survivors: vec![(NodeId(3), StartNumber(3))],
        lost: [1, 2].map(|n| (NodeId(n), StartNumber(n))).to_vec(),
        chain: [3, 4].map(NodeId).to_vec(),
        least: Sequence(9),
        version: Version(7),
        known: Sequence(0),
        gives_up: 0,
        same: Sequence(9),
        learn: vec![NodeId(4)],
    })
}

/// A chain becomes shorter, and the place of who left is kept; and a node is emptied.
fn shorter(shard: ShardId) -> [Command; 8] {
    let node = (NodeId(2), StartNumber(2));
    [
        Command::LeaveChains { failed: vec![node], shards: vec![(shard, ViewNumber(1))] },
        Command::ExtendChains { away: vec![node], waited: vec![node] },
        Command::StandIn { failed: vec![node], away: vec![(NodeId(3), StartNumber(1))] },
        Command::DrainNode { node: NodeId(2), drains: true, heir: None },
        Command::DrainNode { node: NodeId(2), drains: true, heir: Some(NodeId(3)) },
        Command::RetireNode { node: NodeId(2) },
        Command::RemoveNode { node: NodeId(2) },
        Command::DrainChains { away: vec![node] },
    ]
}

fn some_commands() -> Vec<Command> {
    let (volume, shard) = (VolumeId(1), ShardId::new(1, 0));
    let register = |n: u64| Command::RegisterNode {
        node: NodeId(n),
        name: format!("n{n}"),
        address: format!("127.0.0.1:{}", 7400 + n),
        workers: 2,
        start: StartNumber(n),
    };
    let attach = |force, since: Option<u64>, lapsed| Command::AttachVolume {
        volume,
        identity: Hash32([u8::from(force); 32]),
        name: "host".into(),
        force,
        since: since.map(Generation),
        lapsed,
    };
    let propose = |active, node| Command::ProposeView {
        shard,
        active: ViewNumber(active),
        node: NodeId(node),
        start: StartNumber(node),
    };
    let activate =
        |view, generation| Command::ActivateView { shard, view: ViewNumber(view), generation: Generation(generation) };
    vec![
        register(1),
        register(2),
        register(3),
        register(4),
        Command::NameHostKey { node: NodeId(2), start: StartNumber(2), key: HostPublic([5; 32]) },
        Command::CreateVolume(CreateVolume {
            name: "vol".into(),
            size: 1 << 30,
            copies: Some(3),
            ack: Ack::All,
            min_copies: Some(2),
            shards: Some(2),
            stripe: Some(1 << 20),
            retain_ms: None,
        }),
        propose(0, 1),
        activate(1, 0),
        attach(false, None, false),
        attach(true, Some(1), false),
        Command::ResizeVolume { volume, size: 2 << 30 },
        Command::MoveHead { shard, node: NodeId(2) },
        propose(1, 2),
        activate(2, 2),
        Command::FailOver { nodes: vec![(NodeId(2), StartNumber(2))] },
        Command::ReplaceHead { shard, head: NodeId(2), active: ViewNumber(2), node: NodeId(3) },
        Command::ReplaceMembers { gone: vec![(NodeId(2), StartNumber(2))], failed: vec![(NodeId(3), StartNumber(3))] },
        Command::MembersComplete { shard, view: ViewNumber(3), nodes: vec![NodeId(3), NodeId(4)] },
        Command::DetachVolume { volume, generation: Generation(2), settled: false },
        Command::DeleteVolume { volume, force: true },
        without_lost(shard),
        Command::ActivateBranch { shard, view: ViewNumber(4), generation: Generation(2) },
        Command::ActivateClone { shard, view: ViewNumber(4), generation: Generation(2), learning: vec![NodeId(3)] },
        Command::ExtendChains { away: vec![(NodeId(2), StartNumber(2))], waited: Vec::new() },
        Command::RenameVolume { volume, name: "other".into() },
        Command::CloneVolume { volume, snapshot: "snap".into(), name: "clone".into() },
        Command::FlattenVolume { volume },
        Command::RetainVolume { volume, retain_ms: 3_600_000 },
        Command::ScheduleSnapshots { volume, schedule: None },
        Command::ScheduleSnapshots {
            volume,
            schedule: Some(Schedule { every_ms: 60_000, keep: vec![Keep { by: Group::Day, count: 7 }] }),
        },
    ]
}

/// Each with its length before it.
fn pieces(commands: &[Command]) -> Vec<u8> {
    let encoded = commands.iter().map(|c| c.encode().expect("short names"));
    encoded.flat_map(|bytes| [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat()).collect()
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    let mut all = some_commands();
    all.extend(shorter(ShardId::new(1, 0)));
    for (i, c) in all.iter().enumerate() {
        let bytes = c.encode().expect("short names");
        out.add("command", format!("kind-{}-{i}", bytes[0]), Input::bytes(false, 0, 0, &bytes));
    }
    out.add("commands", "all", Input::bytes(false, 0, 0, &pieces(&all)));
    let mut state = State::new(CLUSTER);
    for (i, c) in all.iter().enumerate() {
        let result = state.apply(c.clone());
        let bytes = encode_result(&result);
        out.add("command", format!("result-{}-{i}", bytes[0]), Input::bytes(false, 0, 1, &bytes));
        if [5, 8, 14, 17, 19].contains(&i) {
            let behind = pieces(&all[i + 1..]);
            let rest = [&(behind.len() as u16).to_le_bytes()[..], &behind, &state.encode()].concat();
            out.add("state", format!("after-{i}"), Input::bytes(true, 0, 0, &rest));
        }
    }
    let requests: [&[u8]; 6] = [
        b"{\"request\":\"status\"}",
        b"{\"request\":\"volume_move_head\",\"name\":\"v\",\"node\":\"n\",\"shard\":3}",
        b"{\"request\":\"shard_status\",\"volume\":7}",
        b"{\"request\":\"events\",\"limit\":20,\"since_ms\":5,\"volume\":\"v\"}",
        b"{\"request\":\"volume_create\",\"name\":\"v\",\"size\":1073741824,\"copies\":3,\"ack\":\"all\"}",
        b"{\"request\":\"watch\",\"since\":18446744073709551615}",
    ];
    for (i, r) in requests.into_iter().enumerate() {
        out.add("api", format!("request-{i}"), Input::bytes(false, 0, 0, r));
    }
    let submit = Request::Submit { command: all[6].clone() }.encode();
    out.add("api", "submit", Input::bytes(false, 0, 0, &submit));
    let replies: [&[u8]; 3] = [
        b"{\"ok\":{\"reply\":\"deleted\"}}",
        b"{\"error\":{\"kind\":\"no_space\",\"text\":\"full\"}}",
        b"{\"ok\":{\"reply\":\"events\",\"events\":[],\"missing\":[\"n2\"]}}",
    ];
    for (i, r) in replies.into_iter().enumerate() {
        out.add("api", format!("reply-{i}"), Input::bytes(false, 0, 1, r));
    }
    let done = Reply::encode(State::new(CLUSTER).apply(all[0].clone()).map(Reply::Done));
    out.add("api", "reply-done", Input::bytes(false, 0, 1, &done));
    let node = |n: u64| freebs_control::cluster_file::ClusterNode {
        id: freebs_types::NodeId(n),
        name: format!("node{n}"),
        address: format!("127.0.0.1:{}", 7400 + n),
        data: format!("node{n}").into(),
        workers: 1,
    };
    let mut file = ClusterFile::new(CLUSTER, vec![node(1), node(2), node(3)]);
    out.add("cluster-file", "three", Input::bytes(false, 0, 0, &file.encode()));
    (file.device_size, file.segment_bytes, file.set_up) = (Some(1 << 40), Some(16 << 20), true);
    file.nodes.truncate(1);
    out.add("cluster-file", "one", Input::bytes(false, 0, 0, &file.encode()));
}

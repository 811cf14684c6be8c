//! Nodes that are taken out of the cluster, and nodes that take the places of others.

use freebs_control::{Command, CreateVolume, DrainStep, NewNode, Outcome, State};
use freebs_types::{ClusterId, ErrorKind, Hash32, HostPublic, NodeId, Result, ShardId, StartNumber, VolumeId};
use std::collections::BTreeSet;

const SHARD: ShardId = ShardId::new(1, 0);

fn register(node: u64) -> Command {
    let (name, address) = (format!("node{node}"), format!("127.0.0.1:{}", 7399 + node));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(1) }
}

/// So many nodes that have joined and run.
fn cluster(nodes: u64) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    s.apply(register(1)).unwrap();
    s.begin_authority(HostPublic([9; 32]), NodeId(1), HostPublic([1; 32])).unwrap();
    for n in 2..=nodes {
        assert_eq!(join(&mut s, n), Ok(Outcome::Added { node: NodeId(n) }));
        s.apply(register(n)).unwrap();
    }
    s
}

fn join(s: &mut State, n: u64) -> Result<Outcome> {
    let token = Hash32([s.revision() as u8; 32]);
    s.apply(Command::MakeToken { token, expires_ms: 2_000_000, now_ms: 1_000_000 })?;
    let (name, address) = (format!("node{n}"), format!("127.0.0.1:{}", 7399 + n));
    let identity = HostPublic([n as u8; 32]);
    let new = NewNode { token, identity, name, address, workers: 1, now_ms: 1_000_000 };
    Ok(s.apply(Command::AddNode(new))?.outcome)
}

fn drain(s: &mut State, node: u64, heir: Option<u64>) -> Result<()> {
    s.apply(Command::DrainNode { node: NodeId(node), drains: true, heir: heir.map(NodeId) }).map(drop)
}

fn remove(s: &mut State, node: u64) -> Result<()> {
    s.apply(Command::RetireNode { node: NodeId(node) })?;
    s.apply(Command::RemoveNode { node: NodeId(node) }).map(drop)
}

fn volume(s: &mut State) {
    let new =
        CreateVolume { name: "data".into(), size: 1 << 30, copies: Some(1), min_copies: Some(1), ..Default::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    open(s);
}

/// The head opens the view that follows, and all members have everything.
fn open(s: &mut State) {
    let sh = s.shard(SHARD).unwrap().clone();
    let node = sh.head().unwrap();
    let start = s.node(node).unwrap().start;
    s.apply(Command::ProposeView { shard: SHARD, active: sh.active, node, start }).unwrap();
    let (view, generation) = (s.shard(SHARD).unwrap().highest, s.volume(VolumeId(1)).unwrap().generation);
    s.apply(Command::ActivateView { shard: SHARD, view, generation }).unwrap();
    let sh = s.shard(SHARD).unwrap().clone();
    let nodes = [sh.joining, sh.learning].concat();
    if !nodes.is_empty() {
        s.apply(Command::MembersComplete { shard: SHARD, view: sh.active, nodes }).unwrap();
    }
}

fn says(what: Result<()>, kind: ErrorKind, words: &str) {
    let e = what.unwrap_err();
    assert!(e.kind == kind && e.text.contains(words), "{e}");
}

#[test]
fn only_who_has_nothing_and_gets_nothing_is_removed() {
    let mut s = cluster(4);
    volume(&mut s);
    let holder = s.shard(SHARD).unwrap().head().unwrap().0;
    let other = (2..=4).find(|n| *n != holder).unwrap();
    says(remove(&mut s, 9), ErrorKind::NotFound, "there is no node 9");
    says(remove(&mut s, 1), ErrorKind::Invalid, "authority-key");
    says(remove(&mut s, other), ErrorKind::Busy, "empties it first");
    if holder != 1 {
        says(remove(&mut s, holder), ErrorKind::Busy, "has a copy that others need");
        drain(&mut s, holder, None).unwrap();
        says(remove(&mut s, holder), ErrorKind::Busy, "has a copy that others need");
    }
    drain(&mut s, other, None).unwrap();
    says(s.apply(Command::RemoveNode { node: NodeId(other) }).map(drop), ErrorKind::Busy, "not given its vote up");
    // It may still stay.
    s.apply(Command::RetireNode { node: NodeId(other) }).unwrap();
    assert!(s.gives_up_its_seat(NodeId(other)) && State::decode(&s.encode()).unwrap() == s);
    s.apply(Command::DrainNode { node: NodeId(other), drains: false, heir: None }).unwrap();
    assert!(!s.gives_up_its_seat(NodeId(other)));
    drain(&mut s, other, None).unwrap();
    remove(&mut s, other).unwrap();
    let revision = s.revision();
    remove(&mut s, other).unwrap();
    assert_eq!(s.revision(), revision, "a repeat changes nothing");
    // Without an authority the nodes are those of the cluster file.
    let mut plain = State::new(ClusterId([7; 16]));
    for n in 1..=4 {
        plain.apply(register(n)).unwrap();
    }
    drain(&mut plain, 4, None).unwrap();
    says(remove(&mut plain, 4), ErrorKind::Invalid, "cluster file");
}

#[test]
fn who_was_removed_never_comes_back_and_its_number_is_nobody_elses() {
    let mut s = cluster(4);
    let mut watcher = State::new(s.cluster());
    watcher.take_in(s.changes_since(0)).unwrap();
    drain(&mut s, 4, None).unwrap();
    remove(&mut s, 4).unwrap();
    says(s.apply(register(4)).map(drop), ErrorKind::Fenced, "was removed");
    says(s.check_member(NodeId(4)), ErrorKind::Fenced, "empty data directory");
    // The kept state says so as well, and a watcher sees it go.
    let kept = State::decode(&s.encode()).unwrap();
    assert_eq!(kept, s);
    assert!(kept.is_removed(NodeId(4)) && !kept.is_removed(NodeId(3)));
    watcher.take_in(s.changes_since(watcher.revision())).unwrap();
    assert_eq!(watcher.nodes().map(|n| n.id.0).collect::<Vec<_>>(), [1, 2, 3]);
    // The same machine, with a key of its own or the old one: it is another node.
    assert_eq!(join(&mut s, 4), Ok(Outcome::Added { node: NodeId(5) }));
    assert!(s.node(NodeId(5)).is_some() && s.node(NodeId(4)).is_none());
}

#[test]
fn an_heir_takes_the_places_of_who_drains_whoever_has_less() {
    let mut s = cluster(4);
    volume(&mut s);
    let holder = s.shard(SHARD).unwrap().head().unwrap().0;
    let spare: Vec<u64> = (1..=4).filter(|n| *n != holder).collect();
    let most = *spare.last().unwrap();
    says(drain(&mut s, holder, Some(holder)), ErrorKind::Invalid, "its own places");
    says(drain(&mut s, holder, Some(9)), ErrorKind::Invalid, "there is no node 9");
    drain(&mut s, holder, Some(most)).unwrap();
    // Said again without a word of that, it stays so.
    drain(&mut s, holder, None).unwrap();
    assert_eq!(s.node(NodeId(holder)).unwrap().heir, Some(NodeId(most)));
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    says(drain(&mut s, spare[0], Some(holder)), ErrorKind::Invalid, "being emptied itself");
    assert_eq!(s.drain_steps(&BTreeSet::new())[0].1, DrainStep::Comes(NodeId(most)));
    // One that is away is nobody's heir.
    let away = BTreeSet::from([NodeId(most)]);
    assert_eq!(s.drain_steps(&away)[0].1, DrainStep::Comes(NodeId(spare[0])));
    for _ in 0..4 {
        s.apply(Command::DrainChains { away: Vec::new() }).unwrap();
        open(&mut s);
    }
    assert_eq!(s.shard(SHARD).unwrap().members, [NodeId(most)]);
    s.apply(Command::DrainNode { node: NodeId(holder), drains: false, heir: None }).unwrap();
    assert_eq!(s.node(NodeId(holder)).unwrap().heir, None);
}

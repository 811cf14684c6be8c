//! Nodes that are emptied: no volume ever has fewer whole copies, and each step is one that the chain can take.

use freebs_control::{Ack, Command, CreateVolume, DrainStep, Shard, State};
use freebs_types::{ClusterId, ErrorKind, NodeId, ShardId, StartNumber, VolumeId};
use std::collections::BTreeSet;

const SHARD: ShardId = ShardId::new(1, 0);

fn cluster(nodes: u64, copies: u8, ack: Ack, min_copies: u8) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    for n in 1..=nodes {
        let (name, address) = (format!("node{n}"), format!("h{n}:1"));
        let start = StartNumber(1);
        s.apply(Command::RegisterNode { node: NodeId(n), name, address, workers: 1, start }).unwrap();
    }
    let (copies, min_copies) = (Some(copies), Some(min_copies));
    let new = CreateVolume { name: "data".into(), size: 1 << 30, copies, ack, min_copies, ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    open(&mut s);
    s
}

fn shard(s: &State) -> Shard {
    s.shard(SHARD).unwrap().clone()
}

/// The head opens the view that follows.
fn open(s: &mut State) {
    let sh = shard(s);
    let node = sh.head().unwrap();
    let start = s.node(node).unwrap().start;
    s.apply(Command::ProposeView { shard: SHARD, active: sh.active, node, start }).unwrap();
    let (view, generation) = (shard(s).highest, s.volume(VolumeId(1)).unwrap().generation);
    s.apply(Command::ActivateView { shard: SHARD, view, generation }).unwrap();
}

fn complete(s: &mut State) {
    let sh = shard(s);
    let nodes = [sh.joining, sh.learning].concat();
    s.apply(Command::MembersComplete { shard: SHARD, view: sh.active, nodes }).unwrap();
}

fn drain(s: &mut State, node: u64) {
    s.apply(Command::DrainNode { node: NodeId(node), drains: true, heir: None }).unwrap();
}

fn step(s: &mut State, away: &[u64]) -> Option<DrainStep> {
    let of: BTreeSet<NodeId> = away.iter().copied().map(NodeId).collect();
    let step = s.drain_steps(&of).first().map(|found| found.1);
    let away = away.iter().map(|n| (NodeId(*n), StartNumber(1))).collect();
    s.apply(Command::DrainChains { away }).unwrap();
    step
}

fn leaves(step: Option<DrainStep>) -> Option<NodeId> {
    match step? {
        DrainStep::Leaves { node, .. } => Some(node),
        DrainStep::Comes(_) => None,
    }
}

/// All steps until there are none, each to its end; at no time are there fewer whole copies, nor more than one above.
fn to_the_end(s: &mut State) {
    let copies = usize::from(s.volume(VolumeId(1)).unwrap().copies);
    for _ in 0..40 {
        if step(s, &[]).is_none() {
            return;
        }
        open(s);
        if !shard(s).learning.is_empty() || !shard(s).joining.is_empty() {
            complete(s);
        }
        assert!((copies..=copies + 1).contains(&whole(s)), "{:?}", shard(s));
    }
    panic!("it goes on without end: {:?}", shard(s));
}

/// Members that have everything, of the view that answers.
fn whole(s: &State) -> usize {
    let sh = shard(s);
    let lacks = |n: &&NodeId| sh.joining.contains(n) || sh.learning.contains(n);
    sh.view_members().iter().filter(|n| !lacks(n)).count()
}

/// A node of each kind of chain is emptied, be it head or not: another one comes first, and only when it has everything the node
/// leaves.
#[test]
fn another_node_has_everything_before_one_leaves() {
    for (copies, ack, min) in [(1, Ack::Majority, 1), (2, Ack::All, 2), (3, Ack::Majority, 2), (3, Ack::All, 1)] {
        for node in 1..=u64::from(copies) {
            let mut s = cluster(u64::from(copies) + 1, copies, ack, min);
            let new = NodeId(u64::from(copies) + 1);
            drain(&mut s, node);
            let mut least = whole(&s);
            let mut look = |s: &State| least = least.min(whole(s));
            assert_eq!(step(&mut s, &[]), Some(DrainStep::Comes(new)), "{copies}, {node}");
            look(&s);
            assert_eq!(step(&mut s, &[]), None, "it learns");
            open(&mut s);
            look(&s);
            assert_eq!(step(&mut s, &[]), None, "it may lack something");
            complete(&mut s);
            look(&s);
            assert_eq!(leaves(step(&mut s, &[])), Some(NodeId(node)), "{copies}, {node}");
            assert_eq!(s.shards_at(NodeId(node)), 1, "until the view without it is active it may be needed");
            look(&s);
            open(&mut s);
            look(&s);
            assert_eq!(least, usize::from(copies), "{copies}, {node}");
            assert!(!shard(&s).members.contains(&NodeId(node)) && shard(&s).members.len() == usize::from(copies));
            assert_eq!((s.shards_at(NodeId(node)), step(&mut s, &[])), (0, None));
        }
    }
}

#[test]
fn a_drain_without_room_says_how_much_is_missing() {
    let mut s = cluster(3, 3, Ack::Majority, 2);
    let e = s.apply(Command::DrainNode { node: NodeId(2), drains: true, heir: None }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NoSpace);
    for words in ["without node2 there are 2 nodes", "a volume has up to 3 (data)", "1 more is needed"] {
        assert!(e.text.contains(words), "{e}");
    }
    assert!(!s.drains(NodeId(2)));
    // With a fourth it is possible, and of the next one not any more.
    let (name, address) = ("node4".into(), "h4:1".into());
    s.apply(Command::RegisterNode { node: NodeId(4), name, address, workers: 1, start: StartNumber(1) }).unwrap();
    drain(&mut s, 2);
    assert!(s.apply(Command::DrainNode { node: NodeId(3), drains: true, heir: None }).is_err());
    // One that has none of it may always go.
    let mut s = cluster(2, 1, Ack::Majority, 1);
    drain(&mut s, 2);
    assert!(s.apply(Command::DrainNode { node: NodeId(1), drains: true, heir: None }).is_err(), "nobody is left");
    s.apply(Command::DrainNode { node: NodeId(2), drains: false, heir: None }).unwrap();
    drain(&mut s, 1);
    let e = s.apply(Command::DrainNode { node: NodeId(9), drains: true, heir: None }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound);
}

/// Nothing new comes to it, neither as a new volume nor in place of others.
#[test]
fn nothing_comes_to_a_node_that_drains() {
    let mut s = cluster(5, 3, Ack::Majority, 2);
    drain(&mut s, 4);
    let new = CreateVolume { name: "more".into(), size: 1 << 30, shards: Some(8), ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    let more = s.volume_by_name("more").unwrap().clone();
    assert!(more.shards.iter().all(|sh| !sh.members.contains(&NodeId(4))));
    let gone = vec![(NodeId(3), StartNumber(1))];
    s.apply(Command::ReplaceMembers { gone, failed: vec![] }).unwrap();
    assert_eq!(shard(&s).members, [1, 2, 5].map(NodeId));
    // It stays so when it is started again, and when the state is read again.
    let (name, address) = ("node4".into(), "h4:1".into());
    s.apply(Command::RegisterNode { node: NodeId(4), name, address, workers: 1, start: StartNumber(2) }).unwrap();
    let s = State::decode(&s.encode()).unwrap();
    assert!(s.drains(NodeId(4)));
}

/// Others that are away hold up neither more nor less than they do otherwise.
#[test]
fn a_node_leaves_only_where_the_others_answer() {
    let mut s = cluster(4, 3, Ack::Majority, 2);
    drain(&mut s, 1);
    assert_eq!(step(&mut s, &[4]), None, "nobody is there to come");
    assert_eq!(step(&mut s, &[2, 3]), None, "too few are there for a longer chain");
    assert_eq!(step(&mut s, &[]), Some(DrainStep::Comes(NodeId(4))));
    open(&mut s);
    complete(&mut s);
    assert_eq!(step(&mut s, &[2, 3]), None, "the two that are left of three would not be enough");
    let next = step(&mut s, &[2]);
    assert_eq!(next, Some(DrainStep::Leaves { node: NodeId(1), head: NodeId(3) }), "one that is there leads");
    open(&mut s);
    assert_eq!(shard(&s).members, [3, 2, 4].map(NodeId));
}

/// The node that had come stayed for ever, and each time one more.
#[test]
fn a_drain_that_is_undone_leaves_no_chain_longer() {
    let mut s = cluster(5, 3, Ack::Majority, 2);
    for drained in [2, 1] {
        drain(&mut s, drained);
        assert!(matches!(step(&mut s, &[]), Some(DrainStep::Comes(_))));
        open(&mut s);
        complete(&mut s);
        s.apply(Command::DrainNode { node: NodeId(drained), drains: false, heir: None }).unwrap();
        assert_eq!(shard(&s).members.len(), 4);
        let last = *shard(&s).members.last().unwrap();
        assert_eq!(leaves(step(&mut s, &[])), Some(last));
        open(&mut s);
        assert_eq!((shard(&s).members, step(&mut s, &[])), ([1, 2, 3].map(NodeId).to_vec(), None));
    }
}

/// A chain that had become shorter for a while needed fewer nodes, and could not become longer again.
#[test]
fn room_is_reckoned_from_the_copies_that_volumes_are_to_have() {
    let mut s = cluster(3, 3, Ack::All, 1);
    s.apply(Command::LeaveChains { failed: vec![(NodeId(3), StartNumber(1))], shards: vec![] }).unwrap();
    open(&mut s);
    assert_eq!(shard(&s).members.len(), 2);
    assert!(s.apply(Command::DrainNode { node: NodeId(3), drains: true, heir: None }).is_err());
}

/// With two in one chain of all copies neither could leave; with all of a chain it grew to more members than a chain has.
#[test]
fn several_members_of_a_chain_are_emptied_one_after_the_other() {
    for (nodes, copies, ack, min) in
        [(5, 3, Ack::All, 2), (8, 4, Ack::Majority, 2), (3, 1, Ack::Majority, 1), (4, 2, Ack::All, 2)]
    {
        let mut s = cluster(nodes, copies, ack, min);
        let drained: Vec<u64> = (1..=nodes - u64::from(copies)).collect();
        drained.iter().for_each(|n| drain(&mut s, *n));
        to_the_end(&mut s);
        assert_eq!(shard(&s).members.len(), usize::from(copies));
        for n in drained {
            assert_eq!(s.shards_at(NodeId(n)), 0, "{nodes}, {copies}: node {n}");
        }
    }
}

/// Nodes without copies were emptied, and each made the number smaller that was to stay: the last copy went with it.
#[test]
fn nodes_that_have_nothing_take_no_copies_along() {
    let mut s = cluster(4, 3, Ack::Majority, 2);
    drain(&mut s, 1);
    let e = s.apply(Command::DrainNode { node: NodeId(4), drains: true, heir: None }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
    assert_eq!(step(&mut s, &[4]), None, "nobody is there to come");
    let mut s = cluster(2, 1, Ack::Majority, 1);
    drain(&mut s, 1);
    assert!(s.apply(Command::DrainNode { node: NodeId(2), drains: true, heir: None }).is_err());
    to_the_end(&mut s);
    assert_eq!(shard(&s).members, [NodeId(2)]);
}

/// Nobody comes beside as many members as there can be.
#[test]
fn the_longest_chain_is_not_made_longer() {
    let mut s = cluster(8, 7, Ack::Majority, 2);
    let e = s.apply(Command::DrainNode { node: NodeId(1), drains: true, heir: None }).unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("7 copies"), "{e}");
    drain(&mut s, 8);
    assert_eq!(step(&mut s, &[]), None);
}

/// A member that has left for a while comes back first, also if it is to be emptied and nobody else can come.
#[test]
fn one_that_drains_and_was_away_is_better_than_none() {
    let mut s = cluster(3, 2, Ack::All, 1);
    drain(&mut s, 1);
    s.apply(Command::LeaveChains { failed: vec![(NodeId(1), StartNumber(1))], shards: vec![] }).unwrap();
    open(&mut s);
    assert_eq!((shard(&s).members, shard(&s).away), (vec![NodeId(2)], vec![NodeId(1)]));
    assert_eq!(step(&mut s, &[]), None, "it is not settled");
    let away = vec![(NodeId(3), StartNumber(1))];
    s.apply(Command::ExtendChains { away, waited: vec![] }).unwrap();
    assert_eq!(shard(&s).members, [2, 1].map(NodeId));
}

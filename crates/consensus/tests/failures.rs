//! When a node counts as failed, and what the leader decides then.

use freebs_consensus::failures::{Failures, Look};
use freebs_control::{Command, CreateVolume, State};
use freebs_types::*;
use std::collections::BTreeSet;

const FAIL_MS: u64 = 1000;

fn cluster(nodes: u64) -> State {
    let mut s = State::new(ClusterId([1; 16]));
    for node in 1..=nodes {
        let (name, address) = (format!("n{node}"), format!("10.0.0.{node}:7400"));
        let start = StartNumber(3);
        s.apply(Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start }).unwrap();
    }
    s
}

fn volume(s: &mut State, name: &str) -> (ShardId, Vec<NodeId>) {
    s.apply(Command::CreateVolume(CreateVolume { name: name.into(), size: 1 << 30, ..CreateVolume::default() }))
        .unwrap();
    let volume = s.volume_by_name(name).unwrap();
    (volume.shard_id(0), volume.shards[0].members.clone())
}

fn look(node: u64, silent_ms: u64, lost: bool) -> Look {
    Look { node: NodeId(node), silent_ms, lost }
}

fn set<const N: usize>(nodes: [u64; N]) -> BTreeSet<NodeId> {
    nodes.into_iter().map(NodeId).collect()
}

#[test]
fn silence_is_failure_after_the_time_for_it() {
    let mut f = Failures::default();
    let nodes = [look(2, 999, false), look(3, 1000, false), look(4, 5000, true)];
    assert_eq!(f.look(100, &nodes, FAIL_MS), (set([3, 4]), vec![]));
}

#[test]
fn a_lost_link_is_failure_only_if_another_node_agrees() {
    let mut f = Failures::default();
    let lost = [look(2, 100, true), look(3, 100, false)];
    f.agree(NodeId(2), 0);
    assert_eq!(f.look(100, &lost, FAIL_MS), (set([]), vec![NodeId(2)]), "nobody had been asked");
    assert_eq!(f.look(200, &lost, FAIL_MS), (set([]), vec![]), "asked just now");
    assert_eq!(f.look(400, &lost, FAIL_MS), (set([]), vec![NodeId(2)]), "asked again");
    f.agree(NodeId(3), 410);
    f.agree(NodeId(2), 420);
    assert_eq!(f.look(500, &lost, FAIL_MS), (set([2]), vec![]));
    // It is back: what was said of it before counts no more, also when the link is lost another time.
    assert_eq!(f.look(600, &[look(2, 0, false)], FAIL_MS), (set([]), vec![]));
    assert_eq!(f.look(700, &lost, FAIL_MS), (set([]), vec![NodeId(2)]));
    // An agreement that is old is none.
    f.agree(NodeId(2), 700);
    assert_eq!(f.look(1701, &lost, FAIL_MS), (set([]), vec![NodeId(2)]));
}

#[test]
fn heads_that_failed_are_replaced_in_one_command() {
    let mut s = cluster(3);
    let all: Vec<_> = (0..9).map(|i| volume(&mut s, &format!("v{i}"))).collect();
    let mut f = Failures::default();
    assert_eq!(f.decide(0, &s, &set([])), []);
    let commands = f.decide(0, &s, &set([1]));
    assert_eq!(commands, [Command::FailOver { nodes: vec![(NodeId(1), StartNumber(3))] }]);
    commands.into_iter().for_each(|c| assert!(s.apply(c).is_ok()));
    assert!(all.iter().any(|(_, members)| members[0] == NodeId(1)));
    assert!(all.iter().all(|(id, _)| s.shard(*id).unwrap().head() != Some(NodeId(1))));
    assert_eq!(f.decide(100, &s, &set([1])), [], "all is decided");
}

/// A head whose device has failed, say, answers its seat's heartbeats and never opens a view.
#[test]
fn a_new_head_that_opens_no_view_is_replaced_and_given_longer_each_time() {
    let mut s = cluster(4);
    let (shard, members) = volume(&mut s, "v");
    let mut f = Failures::default();
    let failed: BTreeSet<NodeId> = [members[0]].into();
    let mut now = 1000;
    f.decide(now, &s, &failed).into_iter().for_each(|c| assert!(s.apply(c).is_ok()));
    let mut times = Vec::new();
    for _ in 0..8 {
        let before = now;
        let (at, command) =
            (1..).map(|i| before + 100 * i).find_map(|at| f.decide(at, &s, &failed).pop().map(|c| (at, c))).unwrap();
        let Command::MoveHead { shard: of, node } = &command else { panic!("{command:?}") };
        assert_eq!(*of, shard);
        assert!(s.shard(shard).unwrap().head() != Some(*node) && !failed.contains(node));
        s.apply(command).unwrap();
        times.push(at - now);
        now = at;
    }
    assert_eq!(times, [5000, 10_000, 20_000, 40_000, 80_000, 80_000, 80_000, 80_000]);
    // It opens one at last.
    let head = s.shard(shard).unwrap().head().unwrap();
    let propose = Command::ProposeView { shard, active: ViewNumber(0), node: head, start: StartNumber(3) };
    s.apply(propose).unwrap();
    s.apply(Command::ActivateView { shard, view: ViewNumber(1), generation: Generation(0) }).unwrap();
    assert!((0..2000).all(|i| f.decide(now + 100 * i, &s, &failed).is_empty()));
}

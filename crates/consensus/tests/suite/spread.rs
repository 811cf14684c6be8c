//! The leader's care for room and heads: what it measures, when a full node gives a copy away, and when heads go back.

use super::failures::{cluster, volume};
use freebs_consensus::Room;
use freebs_consensus::failures::Failures;
use freebs_control::{Command, State};
use freebs_types::*;
use std::collections::{BTreeMap, BTreeSet};

const GIB: u64 = 1 << 30;

fn rooms(used: &[u8]) -> BTreeMap<NodeId, Room> {
    (1..).map(NodeId).zip(used.iter().map(|u| Room { bytes: 100 * GIB, used_percent: *u, is_level: true })).collect()
}

fn set<const N: usize>(nodes: [u64; N]) -> BTreeSet<NodeId> {
    nodes.into_iter().map(NodeId).collect()
}

/// One look of a leader at such a cluster; what it orders is done.
fn turn(f: &mut Failures, now: u64, s: &mut State, away: BTreeSet<NodeId>, used: &[u8]) -> Option<Command> {
    assert_eq!(f.decide(now, s, &away, &set([])), [], "nothing else is due");
    let command = f.spread(now, s, away, &rooms(used))?;
    s.apply(command.clone()).unwrap();
    Some(command)
}

fn open(s: &mut State, id: ShardId) {
    let sh = s.shard(id).unwrap().clone();
    let node = sh.head().unwrap();
    s.apply(Command::ProposeView { shard: id, active: sh.active, node, start: StartNumber(3) }).unwrap();
    let view = s.shard(id).unwrap().highest;
    s.apply(Command::ActivateView { shard: id, view, generation: Generation(0) }).unwrap();
}

#[test]
fn room_is_measured_when_it_has_changed_enough() {
    let (mut s, mut f) = (cluster(2), Failures::default());
    let measured = |c: Option<Command>| match c {
        Some(Command::MeasureNodes { of }) => of.iter().map(|m| (m.node.0, m.used_percent)).collect::<Vec<_>>(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    };
    let all = set([]);
    assert_eq!(measured(turn(&mut f, 0, &mut s, all.clone(), &[10, 50])), [(1, 10), (2, 50)]);
    for (now, used, found) in [
        (100, [99, 50], vec![]),
        (2_000, [14, 50], vec![]),
        (4_000, [15, 50], vec![(1, 15)]),
        (6_000, [84, 54], vec![(1, 84)]),
        (8_000, [85, 54], vec![(1, 85)]),
        (10_000, [84, 54], vec![]),
        (12_000, [94, 54], vec![(1, 94)]),
        (14_000, [95, 54], vec![(1, 95)]),
        (16_000, [94, 45], vec![(2, 45)]),
    ] {
        assert_eq!(measured(turn(&mut f, now, &mut s, all.clone(), &used)), found, "at {now}");
    }
}

#[test]
fn a_full_node_gives_copies_away_one_after_the_other() {
    let (mut s, mut f) = (cluster(4), Failures::default());
    let ids: Vec<ShardId> = (0..4).map(|i| volume(&mut s, &format!("v{i}")).0).collect();
    ids.iter().for_each(|id| open(&mut s, *id));
    let all = set([]);
    assert!(matches!(turn(&mut f, 0, &mut s, all.clone(), &[96, 20, 20, 20]), Some(Command::MeasureNodes { .. })));
    // Also while somebody is away, but not there.
    let found = f.spread(200, &s, set([3]), &rooms(&[96, 20, 20, 20]));
    let Some(Command::MoveCopy { shard, from, to }) = found else { panic!("no copy moves: {found:?}") };
    assert!(from == NodeId(1) && to != NodeId(3), "{from} to {to}");
    s.apply(Command::MoveCopy { shard, from, to }).unwrap();
    // Until that one has moved, and what it freed could be measured, no other does.
    for now in [300, 40_000] {
        assert_eq!(f.spread(now, &s, all.clone(), &rooms(&[96, 20, 20, 20])), None);
    }
    assert!(s.is_moving_from(NodeId(1)));
    // The other one becomes full itself: the copy stays where it is.
    let used: Vec<u8> = (1..=4).map(|n| if n == to.0 || n == 1 { 97 } else { 20 }).collect();
    assert!(matches!(turn(&mut f, 50_000, &mut s, all.clone(), &used), Some(Command::MeasureNodes { .. })));
    assert_eq!(turn(&mut f, 50_100, &mut s, all, &used), Some(Command::MoveCopy { shard, from, to: from }));
    assert!(!s.is_moving_from(NodeId(1)) && !s.shard(shard).unwrap().members.contains(&to));
}

#[test]
fn heads_go_back_to_a_node_that_returned_and_to_no_other() {
    let (mut s, mut f) = (cluster(3), Failures::default());
    let ids: Vec<ShardId> = (0..6).map(|i| volume(&mut s, &format!("v{i}")).0).collect();
    for id in &ids {
        s.apply(Command::MoveHead { shard: *id, node: NodeId(1) }).unwrap();
        open(&mut s, *id);
    }
    let used = [10; 3];
    turn(&mut f, 0, &mut s, set([]), &used);
    // An operator has put them there: they stay.
    assert_eq!(turn(&mut f, 60_000, &mut s, set([]), &used), None);
    // Node 3 fails, and is back.
    assert_eq!(turn(&mut f, 61_000, &mut s, set([3]), &used), None);
    assert_eq!(turn(&mut f, 62_000, &mut s, set([]), &used), None, "not at once");
    assert_eq!(turn(&mut f, 71_900, &mut s, set([]), &used), None);
    let mut moved = 0;
    for step in 0..40 {
        if let Some(Command::MoveHead { shard, node }) = turn(&mut f, 72_100 + step * 250, &mut s, set([]), &used) {
            assert_eq!(node, NodeId(3));
            moved += 1;
            // Until it has opened its view no other moves.
            let now = 72_110 + step * 250;
            f.decide(now, &s, &set([]), &set([]));
            assert_eq!(f.spread(now, &s, set([]), &rooms(&used)), None);
            open(&mut s, shard);
        }
    }
    assert_eq!(moved, 3, "half of them: the other node that has none was not away");
}

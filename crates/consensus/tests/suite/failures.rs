//! When a node counts as failed, and what the leader decides then.

use freebs_consensus::Devices;
use freebs_consensus::failures::{Failures, Look};
use freebs_control::{Command, CreateVolume, RecoverShard, State};
use freebs_types::*;
use std::collections::BTreeSet;

const FAIL_MS: u64 = 1000;

pub fn cluster(nodes: u64) -> State {
    let mut s = State::new(ClusterId([1; 16]));
    for node in 1..=nodes {
        let (name, address) = (format!("n{node}"), format!("10.0.0.{node}:7400"));
        let start = StartNumber(3);
        s.apply(Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start }).unwrap();
    }
    s
}

pub fn volume(s: &mut State, name: &str) -> (ShardId, Vec<NodeId>) {
    s.apply(Command::CreateVolume(CreateVolume { name: name.into(), size: 1 << 30, ..CreateVolume::default() }))
        .unwrap();
    let volume = s.volume_by_name(name).unwrap();
    (volume.shard_id(0), volume.shards[0].members.clone())
}

fn look(node: u64, silent_ms: u64, lost: bool) -> Look {
    let (start, devices) = (StartNumber(3), Devices::Work);
    Look { node: NodeId(node), start, silent_ms, lost, devices, idle_ms: silent_ms, has_worked: true }
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

/// By its own word a device counts as it is, also of a node that is heard at this moment.
#[test]
fn a_node_whose_devices_are_of_no_use_has_failed() {
    let with = |devices, idle_ms, has_worked| Look { devices, idle_ms, has_worked, ..look(2, 0, false) };
    let fails = |f: &mut Failures, n: Look| !f.look(100, &[n], FAIL_MS).0.is_empty();
    let mut f = Failures::default();
    assert!(fails(&mut f, with(Devices::Silent, 0, true)) && !fails(&mut f, with(Devices::Work, 0, true)));
    // One that began with its leader has as long as a head has to open a view; one that was away, none.
    assert!(!fails(&mut f, with(Devices::Begin, 9_999, false)) && fails(&mut f, with(Devices::Begin, 10_000, false)));
    assert!(fails(&mut f, with(Devices::Begin, 0, false)), "it failed before, and does not work yet");
    assert!(!fails(&mut f, with(Devices::Work, 0, true)));
    assert!(!fails(&mut f, with(Devices::Begin, 999, true)) && fails(&mut f, with(Devices::Begin, 1000, true)));
    let gone = |idle_ms| !Failures::gone(&[with(Devices::Begin, idle_ms, true)], 5000, |_| false).is_empty();
    assert!(gone(5000) && !gone(4999), "heard or not");
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
    // Nor does it count for a later start.
    f.agree(NodeId(2), 750);
    let again = Look { start: StartNumber(4), ..lost[0] };
    assert_eq!(f.look(800, &[again], FAIL_MS), (set([]), vec![NodeId(2)]));
    // An agreement that is old is none.
    f.agree(NodeId(2), 800);
    assert_eq!(f.look(1801, &[again], FAIL_MS), (set([]), vec![NodeId(2)]));
}

/// The first failure of a new leader is the one that it leads for.
#[test]
fn the_leader_before_has_failed_from_the_beginning_if_it_was_given_up() {
    let lost = [look(2, 0, true), look(3, 0, false)];
    let begun = |at| {
        let mut f = Failures::default();
        f.inherit(at, NodeId(2), StartNumber(3));
        f
    };
    assert_eq!(begun(100).look(300, &lost, FAIL_MS), (set([2]), vec![]));
    assert_eq!(begun(100).look(1101, &lost, FAIL_MS), (set([]), vec![NodeId(2)]), "too long ago");
    assert_eq!(begun(100).look(300, &[look(2, 0, false)], FAIL_MS), (set([]), vec![]), "it is there");
    let again = Look { start: StartNumber(4), ..lost[0] };
    assert_eq!(begun(100).look(300, &[again], FAIL_MS), (set([]), vec![NodeId(2)]), "it was started anew");
}

#[test]
fn heads_that_failed_are_replaced_in_one_command() {
    let mut s = cluster(3);
    let all: Vec<_> = (0..9).map(|i| volume(&mut s, &format!("v{i}"))).collect();
    let mut f = Failures::default();
    assert_eq!(f.decide(0, &s, &set([]), &set([])), []);
    let commands = f.decide(0, &s, &set([1]), &set([]));
    assert_eq!(commands, [Command::FailOver { nodes: vec![(NodeId(1), StartNumber(3))] }]);
    commands.into_iter().for_each(|c| assert!(s.apply(c).is_ok()));
    assert!(all.iter().any(|(_, members)| members[0] == NodeId(1)));
    assert!(all.iter().all(|(id, _)| s.shard(*id).unwrap().head() != Some(NodeId(1))));
    assert_eq!(f.decide(100, &s, &set([1]), &set([])), [], "all is decided");
}

/// The commands of the first moment from `from` on at which there are any, and when that is.
fn next(f: &mut Failures, s: &State, failed: &BTreeSet<NodeId>, from: u64) -> (u64, Vec<Command>) {
    let found = (1..10_000)
        .map(|i| from + 100 * i)
        .map(|at| (at, f.decide(at, s, failed, &set([]))))
        .find(|(_, c)| !c.is_empty());
    found.expect("something is decided")
}

pub fn open(s: &mut State, shard: ShardId, start: u64) {
    let sh = s.shard(shard).unwrap();
    let (node, active, start) = (sh.head().unwrap(), sh.active, StartNumber(start));
    s.apply(Command::ProposeView { shard, active, node, start }).unwrap();
    let view = s.shard(shard).unwrap().pending.unwrap().view;
    s.apply(Command::ActivateView { shard, view, generation: Generation(0) }).unwrap();
}

/// A head whose device has failed, say, answers its seat's heartbeats and never opens a view.
#[test]
fn a_head_that_opens_no_view_is_replaced_and_each_has_longer_than_the_one_before() {
    let mut s = cluster(4);
    let (shard, members) = volume(&mut s, "v");
    let mut f = Failures::default();
    let failed: BTreeSet<NodeId> = [members[0]].into();
    let (mut now, commands) = next(&mut f, &s, &failed, 0);
    commands.into_iter().for_each(|c| assert!(s.apply(c).is_ok()));
    let (mut times, mut heads) = (Vec::new(), Vec::new());
    for lost in [false, false, true, false, false, false] {
        let (at, commands) = next(&mut f, &s, &failed, now);
        let [Command::ReplaceHead { shard: of, head, node, .. }] = commands[..] else { panic!("{commands:?}") };
        assert_eq!((of, Some(head)), (shard, s.shard(shard).unwrap().head()));
        // An order that was lost is given again.
        if !lost {
            assert!(s.apply(commands[0].clone()).is_ok());
        }
        times.push((at - now).div_ceil(1000));
        heads.push(node);
        now = at;
    }
    assert_eq!(times, [11, 21, 41, 80, 161, 161], "a new head is seen a heartbeat later");
    let (b, c) = (members[1], members[2]);
    assert_eq!(heads, [c, b, c, c, b, c]);
    open(&mut s, shard, 3);
    assert!((0..3000).all(|i| f.decide(now + 100 * i, &s, &failed, &set([])).is_empty()), "it opens one at last");
}

#[test]
fn every_head_that_has_not_opened_a_view_is_watched() {
    let mut s = cluster(3);
    let (shard, members) = volume(&mut s, "v");
    open(&mut s, shard, 3);
    let mut f = Failures::default();
    let none = set([]);
    assert!((0..3000).all(|i| f.decide(100 * i, &s, &none, &set([])).is_empty()), "it is open");
    // Moved by hand.
    s.apply(Command::MoveHead { shard, node: members[1] }).unwrap();
    let (at, commands) = next(&mut f, &s, &none, 300_000);
    assert!(at > 309_000 && matches!(commands[..], [Command::ReplaceHead { .. }]), "{at} {commands:?}");
    open(&mut s, shard, 3);
    // An order for a head that has opened its view meanwhile comes to nothing.
    assert!(s.apply(commands[0].clone()).is_err());
    assert!((0..3000).all(|i| f.decide(400_000 + 100 * i, &s, &none, &set([])).is_empty()));
    // Started again.
    let name = format!("n{}", members[1].0);
    let address = format!("10.0.0.{}:7400", members[1].0);
    s.apply(Command::RegisterNode { node: members[1], name, address, workers: 1, start: StartNumber(4) }).unwrap();
    // Of a new leader, and while nobody else is there: it waits, and gives the order as soon as it can be of use.
    let mut f = Failures::default();
    let others: BTreeSet<NodeId> = [members[0], members[2]].into();
    assert!((0..3000).all(|i| f.decide(800_000 + 100 * i, &s, &others, &set([])).is_empty()));
    let (at, commands) = next(&mut f, &s, &none, 1_100_000);
    assert!(at <= 1_110_000 && matches!(commands[..], [Command::ReplaceHead { .. }]), "{at} {commands:?}");
}

/// Who was silent for long is replaced, once heads are in order, and only as long as there is something to do.
#[test]
fn members_that_are_gone_are_replaced_after_their_heads() {
    let mut s = cluster(5);
    let (shard, members) = volume(&mut s, "a");
    let start = StartNumber(3);
    let open = |s: &mut State| {
        let sh = s.shard(shard).unwrap().clone();
        let node = sh.head().unwrap();
        s.apply(Command::ProposeView { shard, active: sh.active, node, start }).unwrap();
        let view = s.shard(shard).unwrap().highest;
        s.apply(Command::ActivateView { shard, view, generation: Generation(0) }).unwrap();
        view
    };
    open(&mut s);
    let head = members[0];
    let looks = [look(head.0, 5000, true), look(members[1].0, 4999, true)];
    let gone = Failures::gone(&looks, 5000, |_| false);
    assert_eq!(gone, [head].into());
    let other = (1..=5).map(NodeId).find(|n| !members.contains(n)).unwrap();
    let failed = [head, other].into();
    let mut f = Failures::default();
    let commands = f.decide(0, &s, &failed, &gone);
    assert!(matches!(commands[..], [Command::FailOver { .. }]), "{commands:?}");
    for c in commands {
        s.apply(c).unwrap();
    }
    let commands = f.decide(100, &s, &failed, &gone);
    assert_eq!(
        commands,
        [Command::ReplaceMembers { gone: vec![(head, start)], failed: vec![(other, start)] }],
        "who has failed takes no place"
    );
    for c in commands {
        s.apply(c).unwrap();
    }
    assert!(!s.shard(shard).unwrap().members.contains(&head) && !s.shard(shard).unwrap().members.contains(&other));
    assert_eq!(f.decide(200, &s, &failed, &gone), [], "it is under way");
}

/// A shard that went on by force had too few nodes for all copies. It gets another member when one is back.
#[test]
fn a_chain_that_is_too_short_gets_a_member() {
    let mut s = cluster(4);
    let (shard, members) = volume(&mut s, "a");
    let start = StartNumber(3);
    let open = |s: &mut State| {
        let sh = s.shard(shard).unwrap().clone();
        s.apply(Command::ProposeView { shard, active: sh.active, node: sh.head().unwrap(), start }).unwrap();
        let (view, generation) = (s.shard(shard).unwrap().highest, s.volume(shard.volume).unwrap().generation);
        s.apply(Command::ActivateView { shard, view, generation }).unwrap();
        view
    };
    let active = open(&mut s);
    let other = (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap();
    let lost = [members[1], members[2]];
    let how = RecoverShard {
        shard,
        active,
        by_force: true,
        members: members.clone(),
        survivors: vec![(members[0], start)],
        lost: lost.map(|n| (n, start)).to_vec(),
        chain: vec![members[0], other],
        least: Sequence(9),
        version: Version(8),
        known: Sequence(0),
        gives_up: 0,
        same: Sequence(9),
        learn: Vec::new(),
    };
    s.apply(Command::RecoverShard(how)).unwrap();
    let view = open(&mut s);
    s.apply(Command::MembersComplete { shard, view, nodes: vec![other] }).unwrap();
    let mut f = Failures::default();
    assert_eq!(f.decide(0, &s, &lost.into(), &BTreeSet::new()), [], "nobody is to spare");
    let commands = f.decide(100, &s, &[lost[0]].into(), &BTreeSet::new());
    assert_eq!(commands, [Command::ExtendChains { away: vec![(lost[0], start)], waited: Vec::new() }]);
    for c in commands {
        s.apply(c).unwrap();
    }
    assert_eq!(s.shard(shard).unwrap().members, [members[0], other, lost[1]]);
    assert_eq!(f.decide(200, &s, &[lost[0]].into(), &BTreeSet::new()), [], "it is under way");
}

/// Its asker is gone, and its volume has no head that could cut it.
#[test]
fn a_snapshot_that_does_not_come_to_an_end_fails() {
    let mut s = cluster(3);
    let (shard, _) = volume(&mut s, "v");
    let begin = Command::BeginSnapshot { name: "a".into(), volumes: vec![shard.volume], created_ms: 1, past: None };
    s.apply(begin).unwrap();
    let id = s.snapshots_under_way().next().expect("one is being made");
    let mut f = Failures::default();
    // The shard has no view: its head is replaced again and again, which is another matter.
    let fails = |commands: Vec<Command>| {
        commands.iter().any(|c| matches!(c, Command::FailSnapshot { snapshot, .. } if *snapshot == id))
    };
    assert!(!fails(f.decide(1000, &s, &set([]), &set([]))));
    assert!(!fails(f.decide(60_900, &s, &set([]), &set([]))));
    let commands = f.decide(61_000, &s, &set([]), &set([]));
    assert!(fails(commands.clone()), "{commands:?}");
    commands.into_iter().for_each(|c| _ = s.apply(c));
    assert!(s.snapshot_record(id).is_some_and(|r| r.has_failed()));
    assert!(!fails(f.decide(200_000, &s, &set([]), &set([]))));
}

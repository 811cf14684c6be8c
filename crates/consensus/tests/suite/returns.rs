//! Chains that become shorter when members fail, and when these come back (V11, V13, V14).

use crate::failures::{cluster, open};
use freebs_consensus::failures::{Failures, Look};
use freebs_consensus::{Devices, Mutant};
use freebs_control::{Ack, Command, CreateVolume, State, limits};
use freebs_types::*;
use std::collections::BTreeSet;

const FAIL_MS: u64 = 1000;
const GONE_MS: u64 = 600_000;
const START: StartNumber = StartNumber(3);

fn volume(s: &mut State, name: &str, copies: u8, min_copies: u8) -> (ShardId, Vec<NodeId>) {
    let new = CreateVolume {
        name: name.into(),
        size: 1 << 30,
        copies: Some(copies),
        ack: Ack::All,
        min_copies: Some(min_copies),
        ..CreateVolume::default()
    };
    s.apply(Command::CreateVolume(new)).unwrap();
    let volume = s.volume_by_name(name).unwrap();
    let (shard, members) = (volume.shard_id(0), volume.shards[0].members.clone());
    open(s, shard, 3);
    (shard, members)
}

fn leave(of: &[NodeId]) -> Command {
    Command::LeaveChains { failed: of.iter().map(|n| (*n, START)).collect(), shards: vec![] }
}

fn extend(away: &[NodeId], waited: &[NodeId]) -> Command {
    let named = |of: &[NodeId]| of.iter().map(|n| (*n, START)).collect();
    Command::ExtendChains { away: named(away), waited: named(waited) }
}

fn apply(s: &mut State, commands: &[Command]) {
    commands.iter().for_each(|c| assert!(s.apply(c.clone()).is_ok(), "{c:?}"));
}

/// All that is left of a chain is the chain, and its first member the head, in one command for all shards.
#[test]
fn chains_become_shorter_first_and_once() {
    let mut s = cluster(4);
    let all: Vec<_> = (0..6).map(|i| volume(&mut s, &format!("v{i}"), 3, 2)).collect();
    let node = all[0].1[0];
    let (failed, none) = (BTreeSet::from([node]), BTreeSet::new());
    let mut f = Failures::default();
    assert_eq!(f.decide(0, &s, &none, &none), []);
    let commands = f.decide(100, &s, &failed, &none);
    assert_eq!(commands, [leave(&[node])]);
    apply(&mut s, &commands);
    for (shard, members) in &all {
        let left: Vec<NodeId> = members.iter().copied().filter(|n| *n != node).collect();
        assert_eq!(s.shard(*shard).unwrap().members, left);
    }
    assert_eq!(f.decide(200, &s, &failed, &none), [], "all is decided");
    all.iter().filter(|(_, m)| m.contains(&node)).for_each(|(shard, _)| open(&mut s, *shard, 3));
    assert_eq!(f.decide(300, &s, &failed, &none), [], "the places are kept");
    // It has been gone for too long: others take them.
    let commands = f.decide(400, &s, &failed, &failed);
    assert_eq!(commands, [extend(&[node], &[])]);
}

/// A shorter chain whose head does not open its view gets another one, as any.
#[test]
fn a_head_that_does_not_make_its_chain_shorter_is_replaced() {
    let mut s = cluster(3);
    let (shard, members) = volume(&mut s, "v", 3, 2);
    let (failed, none) = (BTreeSet::from([members[2]]), BTreeSet::new());
    let mut f = Failures::default();
    let commands = f.decide(0, &s, &failed, &none);
    apply(&mut s, &commands);
    assert_eq!(s.shard(shard).unwrap().members, members[..2]);
    assert_eq!(f.decide(100, &s, &failed, &none), []);
    let late = (2..200).map(|i| f.decide(100 * i, &s, &failed, &none)).find(|c| !c.is_empty());
    assert_eq!(
        late.expect("it is late"),
        [Command::ReplaceHead { shard, head: members[0], active: ViewNumber(1), node: members[1] }]
    );
}

fn look(node: NodeId, silent_ms: u64) -> Look {
    let devices = Devices::Work;
    Look { node, start: START, silent_ms, lost: false, devices, idle_ms: silent_ms, has_worked: true }
}

/// A chain of two that one member leaves, and comes back to.
struct Flapping {
    s: State,
    f: Failures,
    shard: ShardId,
    node: NodeId,
    now: u64,
}

impl Flapping {
    fn new(mutant: Option<Mutant>) -> Self {
        let mut s = cluster(3);
        let (shard, members) = volume(&mut s, "v", 2, 1);
        Self { s, f: Failures::new(GONE_MS, mutant), shard, node: members[1], now: 1000 }
    }

    /// The next heartbeat, at which the node has been silent for so long.
    fn step(&mut self, silent_ms: u64) -> Vec<Command> {
        self.now += 100;
        let look = look(self.node, silent_ms);
        let (failed, _) = self.f.look(self.now, &[look], FAIL_MS);
        let commands = self.f.decide(self.now, &self.s, &failed, &BTreeSet::new());
        apply(&mut self.s, &commands);
        commands
    }

    /// The node fails.
    fn fails(&mut self) {
        let commands = self.step(FAIL_MS);
        assert_eq!(commands, [leave(&[self.node])]);
        self.open();
    }

    /// The view of the plan, if there is one, in which all have everything.
    fn open(&mut self) {
        if !self.s.shard(self.shard).unwrap().active_members.is_empty() {
            open(&mut self.s, self.shard, 3);
            let shard = self.s.shard(self.shard).unwrap();
            let (shard, view, nodes) = (self.shard, shard.active, shard.joining.clone());
            apply(&mut self.s, &[Command::MembersComplete { shard, view, nodes }]);
        }
    }

    /// It is heard again: after how many milliseconds it is to come to the chain.
    fn comes(&mut self) -> u64 {
        let begun = self.now + 100;
        for _ in 0..1000 {
            let commands = self.step(0);
            if !commands.is_empty() {
                assert_eq!(commands, [extend(&[], &[])]);
                return self.now - begun;
            }
        }
        panic!("it does not come back");
    }
}

#[test]
fn who_fails_often_comes_back_later_each_time() {
    let mut scene = Flapping::new(None);
    for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
        scene.fails();
        assert_eq!(scene.comes(), 1000 * wait);
        assert_eq!(scene.s.shard(scene.shard).unwrap().members.len(), 2);
        scene.open();
    }
    scene.now += 601_000;
    scene.fails();
    assert_eq!(scene.comes(), 1000, "that was long ago");
    let mut at_once = Flapping::new(Some(Mutant::BackAtOnce));
    for _ in 0..3 {
        at_once.fails();
        assert_eq!(at_once.comes(), 0);
    }
}

/// Silence for a moment, of which a heartbeat or two is nothing, begins the time anew.
#[test]
fn who_comes_back_is_heard_without_a_pause() {
    let mut scene = Flapping::new(None);
    scene.fails();
    (0..8).for_each(|_| assert_eq!(scene.step(200), []));
    assert_eq!(scene.step(600), []);
    assert_eq!(scene.comes(), 900);
}

/// A new leader hears a node that is away by the control state, and does not know since when.
#[test]
fn a_new_leader_listens_first() {
    let mut scene = Flapping::new(None);
    scene.fails();
    scene.f = Failures::default();
    assert_eq!(scene.comes(), 1000);
}

/// It stands still for a moment every forty seconds: never for so long that it were gone, and never heard for long enough to come
/// back. Its place was kept without end, and the node to spare had nothing to do.
#[test]
fn the_place_of_one_that_comes_and_goes_is_not_kept_without_end() {
    let mut scene = Flapping::new(None);
    let (begun, spare) = (scene.now, NodeId(3));
    assert!(!scene.s.shard(scene.shard).unwrap().members.contains(&spare));
    let others = loop {
        let silent = if scene.now % 40_000 < 2000 { FAIL_MS } else { 0 };
        scene.step(silent);
        scene.open();
        let members = &scene.s.shard(scene.shard).unwrap().members;
        if members.contains(&spare) {
            break members.clone();
        }
        assert!(scene.now - begun < 3 * GONE_MS, "its place is kept");
    };
    assert!(
        scene.now - begun >= GONE_MS && !others.contains(&scene.node),
        "after {} ms: {others:?}",
        scene.now - begun
    );
}

/// A node that learns for longer than places are kept, and then fails for a moment, comes back to its place all the same.
#[test]
fn who_learns_for_long_keeps_its_place() {
    let mut scene = Flapping::new(None);
    scene.fails();
    scene.comes();
    assert_eq!(scene.step(0), [], "it is learning");
    scene.now += 3 * GONE_MS;
    scene.fails();
    let plan = scene.s.shard(scene.shard).unwrap();
    assert_eq!((plan.members.len(), &plan.away), (1, &vec![scene.node]));
    scene.comes();
}

/// A node is heard all the time, and can't come back for longer than places are kept: whoever it would come to is away. Its first
/// pause afterwards gave its place to another one, which had to copy everything.
#[test]
fn who_is_there_and_waits_for_others_keeps_its_place() {
    let mut scene = Flapping::new(None);
    scene.fails();
    let (shard, node) = (scene.shard, scene.node);
    let head = scene.s.shard(shard).unwrap().members[0];
    let none = BTreeSet::new();
    let step = |scene: &mut Flapping, silent_ms: u64, head_failed: bool| {
        scene.now += 100;
        let look = look(node, silent_ms);
        let (mut failed, _) = scene.f.look(scene.now, &[look], FAIL_MS);
        failed.extend(Some(head).filter(|_| head_failed));
        let commands = scene.f.decide(scene.now, &scene.s, &failed, &none);
        apply(&mut scene.s, &commands);
        commands
    };
    (0..GONE_MS / 100 + 100).for_each(|_| assert_eq!(step(&mut scene, 0, true), [], "there is nobody to come to"));
    (0..20).for_each(|_| assert_eq!(step(&mut scene, FAIL_MS, false), [], "its place is kept"));
    scene.comes();
    assert_eq!(scene.s.shard(shard).unwrap().members, [head, node]);
}

/// The head of a chain to which a node comes is started again: the view that it opens does not wait for that node. It comes again
/// when the view is open.
#[test]
fn a_head_that_is_started_again_waits_for_nobody_that_comes() {
    let mut scene = Flapping::new(None);
    scene.fails();
    scene.comes();
    let shard = scene.s.shard(scene.shard).unwrap();
    let (head, active) = (shard.head().unwrap(), shard.active);
    assert_eq!(scene.step(0), [], "it is learning");
    let (name, address) = ("again".into(), "10.0.0.1:7400".into());
    let again = Command::RegisterNode { node: head, name, address, workers: 1, start: StartNumber(4) };
    apply(&mut scene.s, &[again]);
    assert_eq!(scene.step(0), [Command::LeaveChains { failed: vec![], shards: vec![(scene.shard, active)] }]);
    assert_eq!(scene.s.shard(scene.shard).unwrap().members, [head]);
    for _ in 0..50 {
        assert_eq!(scene.step(0), [], "the head has not opened it yet");
    }
    open(&mut scene.s, scene.shard, 4);
    assert_eq!(scene.comes(), 0);
    assert_eq!(scene.s.shard(scene.shard).unwrap().members, [head, scene.node]);
}

/// The head of a shorter chain has begun its view and can't open it, and the member that left is back: that one leads; and if it
/// can't, either, the next one does, and so on.
#[test]
fn a_plan_that_was_made_longer_is_not_left_alone() {
    let mut s = cluster(3);
    let (shard, members) = volume(&mut s, "v", 3, 2);
    let (failed, none) = (BTreeSet::from([members[1]]), BTreeSet::new());
    let mut f = Failures::default();
    let commands = f.decide(0, &s, &failed, &none);
    apply(&mut s, &commands);
    let active = ViewNumber(1);
    apply(&mut s, &[Command::ProposeView { shard, active, node: members[0], start: START }]);
    let mut orders = Vec::new();
    for at in 1..500 {
        let commands = f.decide(100 * at, &s, &none, &none);
        apply(&mut s, &commands);
        orders.extend(commands);
    }
    let replace = |head, node| Command::ReplaceHead { shard, head, active, node };
    let longer = Command::LeaveChains { failed: vec![], shards: vec![(shard, active)] };
    assert_eq!(orders, [longer, replace(members[1], members[0]), replace(members[0], members[2])]);
}

/// After the control state was made again a node that was not looked at is waited for. If it does not come, its chains go on
/// without it, as without any.
#[test]
fn one_that_was_never_started_is_waited_for_a_while() {
    let mut s = cluster(4);
    let (shard, members) = volume(&mut s, "v", 3, 2);
    let away = members[2];
    let mut page = s.changes_since(0);
    page.nodes.iter_mut().filter(|n| n.id == away).for_each(|n| n.start = StartNumber(0));
    let of = &mut page.volumes[0].shards[0];
    (of.joining, of.unseen) = (vec![away], vec![away]);
    let mut s = State::new(ClusterId([1; 16]));
    s.take_in(page).unwrap();
    let (mut f, none) = (Failures::new(GONE_MS, None), BTreeSet::new());
    let other = (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap();
    for at in [0, 100, 9_900] {
        assert_eq!(f.decide(at, &s, &none, &none), []);
        assert_eq!(f.decide(at, &s, &BTreeSet::from([other]), &none), [], "another one fails");
    }
    let commands = f.decide(10_000, &s, &none, &none);
    assert_eq!(commands, [Command::LeaveChains { failed: vec![], shards: vec![] }]);
    apply(&mut s, &commands);
    assert_eq!(s.shard(shard).unwrap().members, members[..2]);
    open(&mut s, shard, 3);
    // Its place is kept, for the usual time.
    let given = (101..7_000).map(|i| 100 * i).find(|at| {
        let commands = f.decide(*at, &s, &none, &none);
        apply(&mut s, &commands);
        !commands.is_empty()
    });
    assert!(given.is_some_and(|at| at >= GONE_MS), "{given:?}");
    assert_eq!(s.shard(shard).unwrap().members, [members[0], members[1], other]);
}

/// One command can't name all that have failed. Each that is given makes some chains shorter, of which it names all that have.
#[test]
fn more_nodes_fail_than_a_command_names() {
    let mut s = cluster(240);
    let shards: Vec<ShardId> = (0..90).map(|i| volume(&mut s, &format!("v{i}"), 2, 1).0).collect();
    let heads: BTreeSet<NodeId> = shards.iter().map(|id| s.shard(*id).unwrap().members[0]).collect();
    let tails = shards.iter().map(|id| s.shard(*id).unwrap().members[1]);
    let failed: BTreeSet<NodeId> = tails.filter(|n| !heads.contains(n)).collect();
    assert!(failed.len() > limits::FAILED_NODES_MAX, "{}", failed.len());
    let (mut f, none) = (Failures::default(), BTreeSet::new());
    for at in 0.. {
        let commands = f.decide(100 * at, &s, &failed, &none);
        if commands.is_empty() {
            break;
        }
        for command in &commands {
            let before = s.clone();
            apply(&mut s, std::slice::from_ref(command));
            assert_ne!(s, before, "{command:?} changes nothing");
        }
    }
    for id in shards {
        let shard = s.shard(id).unwrap();
        assert!(shard.members.iter().all(|n| !failed.contains(n)), "{:?}", shard.members);
    }
}

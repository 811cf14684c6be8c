//! Nodes that stand in for members that have failed (V21), as the leader orders it.

use crate::failures::{cluster, open};
use freebs_consensus::failures::{Failures, Look};
use freebs_consensus::{Devices, Mutant};
use freebs_control::{Ack, Command, CreateVolume, DrainStep, State};
use freebs_types::*;
use std::collections::BTreeSet;

const FAIL_MS: u64 = 1000;
const GONE_MS: u64 = 600_000;
const START: StartNumber = StartNumber(3);

/// Five nodes, and a chain of three of them.
struct Scene {
    s: State,
    f: Failures,
    shard: ShardId,
    members: Vec<NodeId>,
    now: u64,
}

impl Scene {
    fn new(mutant: Option<Mutant>) -> Self {
        let mut s = cluster(5);
        let new = CreateVolume {
            name: "v".into(),
            size: 1 << 30,
            copies: Some(3),
            ack: Ack::Majority,
            min_copies: Some(2),
            ..CreateVolume::default()
        };
        s.apply(Command::CreateVolume(new)).unwrap();
        let volume = s.volume_by_name("v").unwrap();
        let (shard, members) = (volume.shard_id(0), volume.shards[0].members.clone());
        open(&mut s, shard, 3);
        Self { s, f: Failures::new(GONE_MS, mutant), shard, members, now: 1000 }
    }

    /// What is ordered when a node was silent for so long; `lost`: its link was closed.
    fn step(&mut self, node: NodeId, silent_ms: u64, lost: bool) -> Vec<Command> {
        self.now += 100;
        let of = |n: NodeId| {
            let silent_ms = if n == node { silent_ms } else { 0 };
            let lost = lost && n == node;
            Look {
                node: n,
                start: START,
                silent_ms,
                lost,
                devices: Devices::Work,
                idle_ms: silent_ms,
                has_worked: true,
            }
        };
        let looks: Vec<Look> = self.s.nodes().map(|n| of(n.id)).collect();
        let (failed, ask) = self.f.look(self.now, &looks, FAIL_MS);
        ask.into_iter().for_each(|n| self.f.agree(n, self.now));
        let commands = self.f.decide(self.now, &self.s, &failed, &BTreeSet::new());
        commands.iter().for_each(|c| assert!(self.s.apply(c.clone()).is_ok(), "{c:?}"));
        commands
    }

    fn open(&mut self) {
        open(&mut self.s, self.shard, 3);
    }

    fn chain(&self) -> Vec<NodeId> {
        self.s.shard(self.shard).unwrap().members.clone()
    }
}

/// A node that was killed is noticed at once; that another one stands in for it has the time that silence has. It may be back by then.
#[test]
fn who_was_silent_for_long_enough_is_stood_in_for() {
    for mutant in [None, Some(Mutant::NobodyStandsIn)] {
        let mut s = Scene::new(mutant);
        let node = s.members[1];
        for silent_ms in (100..1000).step_by(100) {
            assert_eq!(s.step(node, silent_ms, true), [], "{silent_ms}");
        }
        let commands = s.step(node, 1000, true);
        if mutant.is_some() {
            assert_eq!(commands, []);
            continue;
        }
        assert_eq!(commands, [Command::StandIn { failed: vec![(node, START)], away: vec![] }]);
        let chain = s.chain();
        assert!(chain.len() == 3 && !chain.contains(&node));
        assert_eq!(s.step(node, 1100, true), [], "all is decided");
        s.open();
        assert_eq!(s.step(node, 1200, true), [], "its place is kept");
    }
}

/// A head that has failed, and the one that stands in for it: one command, and one view.
#[test]
fn a_head_is_stood_in_for_by_one_command() {
    let mut s = Scene::new(None);
    let head = s.members[0];
    let commands = s.step(head, 1000, false);
    assert!(matches!(commands[..], [Command::StandIn { .. }, Command::FailOver { .. }]), "{commands:?}");
    let chain = s.chain();
    assert_eq!((chain[0], chain.len(), chain.contains(&head)), (s.members[1], 3, false));
    assert_eq!(s.step(head, 1100, false), []);
}

/// It is back: when it was heard for a second it comes again, and when it has everything its stand-in leaves.
#[test]
fn who_is_back_takes_its_place_again() {
    let mut s = Scene::new(None);
    let node = s.members[2];
    s.step(node, 1000, false);
    s.open();
    let stand_in = s.chain()[2];
    let held = (0..30).take_while(|_| s.step(node, 0, false).is_empty()).count();
    assert!((9..=11).contains(&held), "{held} heartbeats");
    assert_eq!(s.chain(), [s.members[0], s.members[1], stand_in, node]);
    s.open();
    let view = s.s.shard(s.shard).unwrap().active;
    s.s.apply(Command::MembersComplete { shard: s.shard, view, nodes: vec![node] }).unwrap();
    let steps = s.s.drain_steps(&BTreeSet::new());
    assert_eq!(steps, [(s.shard, DrainStep::Leaves { node: stand_in, head: s.members[0] })]);
    assert_eq!(s.step(node, 0, false), [Command::DrainChains { away: vec![] }]);
    s.open();
    let shard = s.s.shard(s.shard).unwrap();
    assert_eq!(shard.members.iter().copied().collect::<BTreeSet<_>>(), s.members.iter().copied().collect());
    assert!(!shard.is_kept_by(stand_in));
    assert_eq!(s.step(node, 0, false), []);
}

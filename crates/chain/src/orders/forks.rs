//! Shards of clones: nothing is here before the log has made the fork, a log that can't make it learns from others and leads
//! nobody before that, and a log that has nothing else is an empty one (V2).

use super::*;
use crate::event::Event;
use freebs_lsvd::{Durable, fork_name};
use freebs_types::{ErrorKind, Fork, SnapshotId};

const FORK: Fork =
    Fork { parent: ShardId::new(9, 0), snapshot: SnapshotId(4), version: Version(70), sequence: Sequence(50) };

/// A node whose log has the parent, or not.
struct Node {
    host: Host,
    now: Nanos,
}

impl Node {
    fn new() -> Self {
        Self { host: Host::new(config(1, None)), now: Nanos::from_millis(1) }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.host.step(self.now, event);
        self.host.end_turn(self.now);
        self.host.take_actions()
    }

    /// The control plane says that it leads a clone's shard.
    fn told(&mut self) -> Vec<Action> {
        let (active, known, highest) = (ViewNumber(0), ViewNumber(0), ViewNumber(6));
        self.step(Event::Shards(vec![ShardInfo { active, known, highest, fork: Some(FORK), ..info(1024) }]))
    }

    fn checked(&mut self, result: Result<(), ErrorKind>) -> Vec<Action> {
        self.step(Event::ForkChecked { shard: SHARD, result })
    }

    /// The control plane gives its head the first view.
    fn opens(&mut self) -> Vec<Action> {
        let opened = Opened {
            view: ViewNumber(7),
            pred: ViewNumber(0),
            members: [1, 2, 3].map(NodeId).to_vec(),
            quorum: 2,
            min_copies: 1,
            pred_members: [1, 2, 3].map(NodeId).to_vec(),
            pred_quorum: 2,
            pred_learning: Vec::new(),
            pred_unseen: Vec::new(),
            forced: None,
            generation: Generation(0),
            keys: BTreeMap::new(),
            volume: None,
        };
        let mut actions = self.step(Event::Proposed { shard: SHARD, result: Ok(opened), seed: Hash32([4; 32]) });
        let tickets: Vec<u64> = marks(&actions).iter().map(|m| m.1).collect();
        for ticket in tickets {
            actions.extend(self.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }])));
        }
        actions
    }
}

fn asks(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::CheckFork { fork, .. } if *fork == FORK))
}

fn proposes(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Propose { .. }))
}

/// The marks, each with its ticket; true for one that makes the fork.
fn marks(actions: &[Action]) -> Vec<(bool, u64)> {
    let mark = |a: &Action| match a {
        Action::Append(Record::Mark { change, ticket, .. }) => Some((change.fork.is_some(), *ticket)),
        _ => None,
    };
    actions.iter().filter_map(mark).collect()
}

/// The frame that a log goes on with.
fn frame(actions: &[Action]) -> Option<&freebs_format::Frame> {
    actions.iter().find_map(|a| match a {
        Action::Append(Record::Frame(f)) => Some(f),
        _ => None,
    })
}

#[test]
fn a_clone_goes_on_from_its_fork() {
    let mut n = Node::new();
    let told = n.told();
    assert!(asks(&told) && !proposes(&told) && !n.host.has(SHARD), "nothing is here yet");
    // News that come meanwhile are taken in when it is.
    assert!(!asks(&n.told()));
    let made = n.checked(Ok(()));
    let [(true, ticket)] = marks(&made)[..] else { panic!("{made:?}") };
    assert!(marks(&n.checked(Ok(()))).is_empty(), "once");
    assert!(!n.host.has(SHARD), "not before it is durable");
    let there = n.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }]));
    assert!(proposes(&there));
    let opened = n.opens();
    let frame = frame(&opened).expect("the frame of the first view");
    let (name, before) = (fork_name(n.host.cluster(), &FORK), frame.head.before());
    assert_eq!((frame.head.seq(), frame.head.view()), (Sequence(51), ViewNumber(7)));
    assert_eq!((before.sequence, before.hid, before.version), (name.sequence, name.hid, FORK.version));
}

#[test]
fn a_log_without_the_parent_leads_nobody() {
    let mut n = Node::new();
    n.told();
    // The cut may only not be known to be committed yet.
    assert!(n.checked(Err(ErrorKind::NotFound)).is_empty() && !n.host.has(SHARD));
    assert!(asks(&n.step(Event::Tick)));
    n.now = n.now.plus(crate::timing::FORK_PATIENCE);
    assert!(proposes(&n.checked(Err(ErrorKind::NotFound))) && n.host.has(SHARD), "it learns, as any member does");
    assert!(frame(&n.opens()).is_none(), "an empty log is not where a clone begins");
    let ticks = n.step(Event::Tick);
    assert!(ticks.iter().any(|a| matches!(a, Action::HandOver { to: NodeId(2), .. })), "{ticks:?}");
}

#[test]
fn one_that_is_not_whole_is_not_waited_for() {
    let mut n = Node::new();
    n.told();
    assert!(proposes(&n.checked(Err(ErrorKind::Corrupt))));
}

#[test]
fn a_clone_that_is_deleted_while_it_is_made_is_forgotten() {
    let mut n = Node::new();
    n.told();
    let made = n.checked(Ok(()));
    let ticket = marks(&made)[0].1;
    let gone = n.step(Event::Gone(SHARD));
    assert!(gone.iter().any(|a| matches!(a, Action::Append(Record::Forget { .. }))));
    n.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }]));
    assert!(!n.host.has(SHARD));
}

#[test]
fn a_fork_that_comes_too_late_is_learned() {
    let mut n = Node::new();
    n.told();
    let ticket = marks(&n.checked(Ok(())))[0].1;
    let refused = n.step(Event::Durable(vec![Durable::Unlearned { shard: SHARD, ticket, why: "gone" }]));
    assert!(proposes(&refused) && n.host.has(SHARD));
    assert!(frame(&n.opens()).is_none(), "an empty log is not where a clone begins");
}

/// V2: a device that was lost makes the fork again, and is as empty as without it.
#[test]
fn a_fork_alone_counts_for_no_seal() {
    let r = Replica::forked(SHARD, ClusterId([1; 16]), &FORK);
    let answer = r.seal_answer(ViewNumber(9), ViewNumber(7));
    assert!(r.is_empty_log() && !answer.has_pred && answer.last.view == ViewNumber(0));
    let mut s = opening().0;
    let empty = SealAnswer { shard: SHARD, view: ViewNumber(2), pred: ViewNumber(1), ..answer };
    let before = s.r.last;
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), SealAnswer { promised: ViewNumber(2), ..empty }));
    assert_eq!(s.r.last, before, "nothing is sealed by it");
}

//! Shards of clones: nothing is here before the log has made the fork, a log that can't make it learns from others and leads
//! nobody before that, and a log that has nothing else is an empty one (V2).

use super::*;
use crate::event::{Begins, Event};
use crate::timing;
use freebs_lsvd::{Durable, ShardState, fork_name};
use freebs_types::{ErrorKind, Fork, SnapshotId};
use std::collections::BTreeSet;

const FORK: Fork =
    Fork { parent: ShardId::new(9, 0), snapshot: SnapshotId(4), version: Version(70), sequence: Sequence(50) };

/// A node whose log has the parent, or not.
struct Node {
    host: Host,
    now: Nanos,
}

impl Node {
    fn new() -> Self {
        Self::without(None)
    }

    /// One that leaves out a rule.
    fn without(mutant: Option<Mutant>) -> Self {
        Self { host: Host::new(config(1, mutant)), now: Nanos::from_millis(1) }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.host.step(self.now, event);
        self.host.end_turn(self.now);
        self.host.take_actions()
    }

    /// The control plane says that it leads a clone's shard.
    fn told(&mut self) -> Vec<Action> {
        self.told_of([1, 2, 3], 0)
    }

    /// The same with these members, in that active view.
    fn told_of(&mut self, members: [u64; 3], active: u64) -> Vec<Action> {
        let (active, highest) = (ViewNumber(active), ViewNumber(6.max(active)));
        let members = members.map(NodeId).to_vec();
        let info = ShardInfo { members, active, known: active, highest, fork: Some(FORK), ..info(1024) };
        self.step(Event::Shards(vec![info]))
    }

    /// Some time passes.
    fn waits(&mut self, time: Nanos) -> Vec<Action> {
        self.now = self.now.plus(time);
        self.step(Event::Tick)
    }

    /// Its process starts again, with what the log has of the promise.
    fn restarts(&mut self, promised: ViewNumber) {
        self.host = Host::new(config(1, None));
        let state = ShardState { shard: SHARD, promised, ..ShardState::default() };
        self.host.add(Replica::recovered(&state, Vec::new(), None, Damage::default()));
    }

    /// The mark of the fork is durable.
    fn forks(&mut self, made: &[Action]) -> Vec<Action> {
        let [(true, ticket)] = marks(made)[..] else { panic!("{made:?}") };
        self.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }]))
    }

    fn checked(&mut self, result: Result<(), ErrorKind>) -> Vec<Action> {
        self.step(Event::ForkChecked { shard: SHARD, result })
    }

    /// The control plane gives its head the first view.
    fn opens(&mut self) -> Vec<Action> {
        self.opens_in(7)
    }

    /// The same of that number; the frame of it, if there is one.
    fn opens_view(&mut self, view: u64) -> Option<Frame> {
        frame(&self.opens_in(view)).cloned()
    }

    fn opens_in(&mut self, view: u64) -> Vec<Action> {
        let opened = Opened {
            view: ViewNumber(view),
            pred: ViewNumber(0),
            members: [1, 2, 3].map(NodeId).to_vec(),
            quorum: 2,
            min_copies: 1,
            pred_members: [1, 2, 3].map(NodeId).to_vec(),
            pred_quorum: 2,
            pred_learning: Vec::new(),
            pred_unseen: Vec::new(),
            joining: Vec::new(),
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

/// A node that came to a clone had no links to learn it by: whoever hears of nothing else asks for none later.
#[test]
fn a_fork_that_is_to_be_made_has_links() {
    for (mutant, wanted) in [(None, [2, 3].map(peer).into()), (Some(Mutant::ForksToComeAlone), BTreeSet::new())] {
        let mut n = Node::without(mutant);
        n.told();
        assert_eq!(n.host.wanted_peers(), wanted);
    }
}

#[test]
fn a_log_without_the_parent_leads_nobody() {
    let mut n = Node::new();
    n.told();
    // The cut may only not be known to be committed yet.
    assert!(n.checked(Err(ErrorKind::NotFound)).is_empty() && !n.host.has(SHARD));
    assert!(asks(&n.waits(timing::FORK_AGAIN)));
    n.now = n.now.plus(timing::FORK_PATIENCE);
    assert!(proposes(&n.checked(Err(ErrorKind::NotFound))) && n.host.has(SHARD), "it learns, as any member does");
    assert!(frame(&n.opens()).is_none(), "an empty log is not where a clone begins");
    let ticks = n.step(Event::Tick);
    assert!(ticks.iter().any(|a| matches!(a, Action::HandOver { to: NodeId(2), .. })), "{ticks:?}");
}

/// The parent may be about to be mended. Whoever found it damaged at the first look never made the fork.
#[test]
fn one_that_is_not_whole_is_waited_for_too() {
    let mut n = Node::new();
    n.told();
    assert!(n.checked(Err(ErrorKind::Corrupt)).is_empty() && !n.host.has(SHARD));
    assert!(asks(&n.waits(timing::FORK_AGAIN)));
    n.now = n.now.plus(timing::FORK_PATIENCE);
    assert!(proposes(&n.checked(Err(ErrorKind::Corrupt))));
}

/// A full device had no room for the mark of a fork, and what filled it was the deleted parent, which waited for the fork: neither
/// got on before the clone was deleted.
#[test]
fn a_fork_without_room_is_not_waited_for_without_end() {
    let mut n = Node::new();
    n.told();
    for wait in [Nanos(0), timing::FORK_AGAIN, timing::FORK_PATIENCE] {
        n.waits(wait);
        let made = n.checked(Ok(()));
        let [(true, ticket)] = marks(&made)[..] else { panic!("{made:?}") };
        n.step(Event::Durable(vec![Durable::NoRoom { shard: SHARD, ticket }]));
        assert_eq!(n.host.has(SHARD), wait == timing::FORK_PATIENCE, "it learns then");
    }
}

/// The power went before any view of the clone was active. No node had its parent's version in time, so each was to learn
/// the clone, and had promised by then: none made the fork, for ever.
#[test]
fn a_log_with_nothing_but_promises_makes_its_fork() {
    for (starts_again, mutant) in [(false, None), (true, None), (false, Some(Mutant::ForksGivenUp))] {
        let mut n = Node::without(mutant);
        n.told();
        n.now = n.now.plus(timing::FORK_PATIENCE);
        n.checked(Err(ErrorKind::NotFound));
        assert!(frame(&n.opens()).is_none());
        if starts_again {
            n.restarts(ViewNumber(7));
            n.told();
        }
        assert_eq!(asks(&n.waits(timing::FORK_AGAIN)), mutant.is_none(), "it is looked again");
        if mutant.is_some() {
            continue;
        }
        assert!(n.host.has(SHARD));
        assert!(marks(&n.checked(Err(ErrorKind::NotFound))).is_empty() && n.host.has(SHARD));
        let made = n.checked(Ok(()));
        assert!(!n.host.has(SHARD), "it answers nothing before its fork is durable");
        assert!(n.host.shards() == [SHARD] && marks(&n.told()).is_empty());
        assert!(proposes(&n.forks(&made)), "started again: {starts_again}");
        assert_eq!(n.host.replica(SHARD).map(Replica::promise), Some(ViewNumber(7)), "what was promised stays");
        assert!(n.opens_view(8).is_some_and(|f| f.head.seq() == Sequence(51)));
    }
}

/// From then on there is somebody to learn from.
#[test]
fn no_fork_is_made_late_of_a_shard_that_has_begun() {
    let mut n = Node::new();
    n.restarts(ViewNumber(7));
    n.told_of([2, 1, 3], 8);
    assert!(!asks(&n.waits(timing::FORK_AGAIN)));
    assert!(n.checked(Ok(())).is_empty() && n.host.has(SHARD));
    // The parent gave the version up in the meantime: what was promised is there as before.
    let mut n = Node::new();
    n.restarts(ViewNumber(7));
    n.told();
    let ticket = marks(&n.checked(Ok(())))[0].1;
    n.step(Event::Durable(vec![Durable::Unlearned { shard: SHARD, ticket, why: "gone" }]));
    assert_eq!(n.host.replica(SHARD).map(Replica::promise), Some(ViewNumber(7)));
}

/// It was deleted, or left this node, while the mark of its fork waited for the disk: the fork was one of nothing.
#[test]
fn a_parent_is_read_from_when_the_mark_is_on_its_way() {
    let mut n = Node::new();
    assert!(!n.host.is_to_be_read(FORK.parent));
    n.told();
    assert!(n.host.is_to_be_read(FORK.parent) && !n.host.is_to_be_read(SHARD));
    let made = n.checked(Ok(()));
    assert!(n.host.is_to_be_read(FORK.parent));
    n.forks(&made);
    assert!(!n.host.is_to_be_read(FORK.parent), "the log says so from here on");
    let mut n = Node::without(Some(Mutant::ForksToComeUnread));
    n.told();
    assert!(!n.host.is_to_be_read(FORK.parent), "without the rule it goes");
}

#[test]
fn a_clone_that_is_left_while_it_is_made_is_forgotten() {
    for by_news in [false, true] {
        let mut n = Node::new();
        n.told();
        let made = n.checked(Ok(()));
        let ticket = marks(&made)[0].1;
        let left = match by_news {
            false => n.step(Event::Left { shard: SHARD, active: ViewNumber(7) }),
            true => n.told_of([2, 3, 4], 7),
        };
        let promised = left.iter().find_map(|a| match a {
            Action::Append(Record::Forget { promised, .. }) => Some(*promised),
            _ => None,
        });
        assert_eq!(promised, Some(ViewNumber(7)));
        n.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }]));
        assert!(!n.host.has(SHARD));
    }
}

/// The thing that a view begins which becomes active.
fn begins(actions: &[Action]) -> Option<&Begins> {
    actions.iter().find_map(|a| if let Action::Activate { begins, .. } = a { Some(begins) } else { None })
}

/// A member that lacked the parent's version learned the clone for hours, and nobody had said so: when another one was lost
/// its empty log was one of those that may have lost everything, and the shard stood still.
#[test]
fn who_does_not_begin_at_the_fork_is_named() {
    // The third one has the frame of the first view, is there and has it not, or is away.
    let untold = Some(Mutant::LateForksUntold);
    let cases = [(true, true, None), (false, true, None), (false, false, None), (false, false, untold)];
    for (has, is_there, mutant) in cases {
        let mut n = Node::without(mutant);
        n.told();
        let made = n.checked(Ok(()));
        n.forks(&made);
        for node in [2, 3].into_iter().filter(|n| is_there || *n == 2) {
            n.step(Event::LinkUp { link: LinkId(node), who: Who::Member(peer(node)) });
        }
        let sequence = n.opens_view(7).expect("the frame of the first view").head.seq();
        n.step(Event::Durable(vec![Durable::Frame { shard: SHARD, view: ViewNumber(7), sequence }]));
        let has_it = |n: &mut Node, node| {
            let item = DurableItem { shard: SHARD, view: ViewNumber(7), sequence, room: None };
            n.step(Event::Message { from: LinkId(node), message: Message::Durable(vec![item]) })
        };
        let second = has_it(&mut n, 2);
        let learning = |of: &[Action]| begins(of).cloned();
        let named = match mutant {
            None => Some(Begins::Clone { learning: vec![NodeId(3)] }),
            Some(_) => Some(Begins::Nothing),
        };
        match (has, is_there) {
            (true, _) => {
                assert_eq!(learning(&second), None, "the third one may be about to say so");
                assert_eq!(learning(&has_it(&mut n, 3)), Some(Begins::Nothing));
            }
            (false, true) => {
                assert_eq!(learning(&second), None);
                assert_eq!(learning(&n.waits(timing::FORK_ROLL_CALL)), named);
            }
            (false, false) => assert_eq!(learning(&second), named),
        }
    }
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

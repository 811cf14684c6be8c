//! Chains that become shorter (V11 to V14): a table of all small chains against the rule spelled out, and scenes.

use freebs_control::events::{EventKind, told};
use freebs_control::{Ack, Command, CreateVolume, Mutant, Shard, State, limits};
use freebs_types::{ClusterId, NodeId, ShardId, StartNumber, ViewNumber, VolumeId};
use std::collections::BTreeSet;

pub const SHARD: ShardId = ShardId::new(1, 0);
pub const CLUSTER: ClusterId = ClusterId([7; 16]);

pub fn ids(of: &[u64]) -> Vec<NodeId> {
    of.iter().copied().map(NodeId).collect()
}

pub fn starts(of: &[u64]) -> Vec<(NodeId, StartNumber)> {
    of.iter().map(|n| (NodeId(*n), StartNumber(1))).collect()
}

fn register(node: u64, start: u64) -> Command {
    let (name, address) = (format!("node{node}"), format!("h{node}:1"));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(start) }
}

/// A volume of this many copies, the first view of which is active.
pub fn volume(nodes: u64, copies: u8, ack: Ack, min_copies: u8) -> State {
    let mut s = State::new(CLUSTER);
    for n in 1..=nodes {
        s.apply(register(n, 1)).unwrap();
    }
    let new = CreateVolume {
        name: "data".into(),
        size: 1 << 30,
        copies: Some(copies),
        ack,
        min_copies: Some(min_copies),
        ..CreateVolume::default()
    };
    s.apply(Command::CreateVolume(new)).unwrap();
    open(&mut s);
    s
}

pub fn shard(s: &State) -> Shard {
    s.shard(SHARD).unwrap().clone()
}

/// The head opens the view that follows.
pub fn open(s: &mut State) {
    let sh = shard(s);
    let node = sh.head().unwrap();
    let start = s.node(node).unwrap().start;
    s.apply(Command::ProposeView { shard: SHARD, active: sh.active, node, start }).unwrap();
    let (view, generation) = (shard(s).highest, s.volume(VolumeId(1)).unwrap().generation);
    s.apply(Command::ActivateView { shard: SHARD, view, generation }).unwrap();
}

pub fn leave(failed: &[u64]) -> Command {
    Command::LeaveChains { failed: starts(failed), shards: vec![] }
}

/// Nodes come, while `away` do not and the places of `waited` are kept.
pub fn extend(away: &[u64], waited: &[u64]) -> Command {
    Command::ExtendChains { away: starts(away), waited: starts(waited) }
}

pub fn complete(s: &mut State, node: u64) {
    let view = shard(s).active;
    s.apply(Command::MembersComplete { shard: SHARD, view, nodes: ids(&[node]) }).unwrap();
}

/// The state with this shard in the place of its own.
pub fn with(s: &State, change: impl FnOnce(&mut Shard)) -> State {
    let mut page = s.changes_since(0);
    change(&mut page.volumes[0].shards[0]);
    let mut changed = State::new(CLUSTER);
    changed.take_in(page).unwrap();
    changed
}

/// V11 as it is written: the chain of `n` members of which these have failed and those still learn.
fn spelled_out(n: u64, ack: Ack, min: u64, failed: &BTreeSet<u64>, learning: &BTreeSet<u64>) -> Option<Vec<NodeId>> {
    let majority = n / 2 + 1;
    let a = |len: u64| if ack == Ack::All { len } else { majority.max(min).min(len) };
    let there: Vec<u64> = (1..=n).filter(|m| !failed.contains(m)).collect();
    // A view that needs all of them became active with all of them.
    let whole: Vec<u64> = there.iter().copied().filter(|m| a(n) == n || !learning.contains(m)).collect();
    let can_answer = whole.len() as u64 >= a(n);
    let is_long_enough = !whole.is_empty() && whole.len() as u64 >= min;
    let can_be_sealed = there.len() as u64 > n - a(n);
    (there.len() as u64 != n && !can_answer && is_long_enough && can_be_sealed).then(|| ids(&whole))
}

pub fn subsets(of: std::ops::RangeInclusive<u64>) -> Vec<BTreeSet<u64>> {
    let all: Vec<u64> = of.collect();
    let one = |bits: u32| all.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, n)| *n).collect();
    (0..1u32 << all.len()).map(one).collect()
}

/// Chains of up to `most` members, with both acks, each min copies, and each set of members that learn; for each what is left of
/// them when each set has failed. True if all of it is as the rule says.
fn is_as_spelled_out(most: u64, mutant: Option<Mutant>) -> bool {
    let mut shorter = 0;
    for n in 1..=most {
        for (ack, min) in [Ack::Majority, Ack::All].into_iter().flat_map(|a| (1..=n).map(move |min| (a, min))) {
            let s = volume(n, n as u8, ack, min as u8);
            assert_eq!(shard(&s).members, ids(&(1..=n).collect::<Vec<_>>()));
            for learning in subsets(2..=n) {
                let s = with(&s, |sh| {
                    sh.joining = learning.iter().copied().map(NodeId).collect();
                    sh.learning.clone_from(&sh.joining);
                });
                for failed in subsets(1..=n) {
                    let of: BTreeSet<NodeId> = failed.iter().copied().map(NodeId).collect();
                    let found = s.leavers_with(&of, mutant).first().map(|l| l.chain.clone());
                    shorter += u64::from(found.is_some());
                    if found != spelled_out(n, ack, min, &failed, &learning) {
                        return false;
                    }
                }
            }
        }
    }
    assert!(shorter > 100, "{shorter}");
    true
}

#[test]
fn chains_become_shorter_as_the_rule_says() {
    assert!(is_as_spelled_out(7, None));
    for mutant in [Mutant::LeavesBelowLeast, Mutant::LeavesUnsealed, Mutant::LearnersStay] {
        assert!(!is_as_spelled_out(4, Some(mutant)), "{mutant:?}: nothing is missed");
    }
}

/// A plan that is not active changes nothing of the rule: for each set that has failed first, and each that has failed when others
/// of them are back, what is left of the active view is the same as without the plan. True if it is so.
fn is_the_same_in_a_plan(most: u64, mutant: Option<Mutant>) -> bool {
    let mut other = 0;
    for n in 2..=most {
        for (ack, min) in [Ack::Majority, Ack::All].into_iter().flat_map(|a| (1..=n).map(move |min| (a, min))) {
            let s = volume(n, n as u8, ack, min as u8);
            for learning in subsets(2..=n) {
                let s = with(&s, |sh| {
                    sh.joining = learning.iter().copied().map(NodeId).collect();
                    sh.learning.clone_from(&sh.joining);
                });
                for first in subsets(1..=n) {
                    let mut s = s.clone();
                    s.apply_with(leave(&first.iter().copied().collect::<Vec<_>>()), mutant).unwrap();
                    let plan: BTreeSet<NodeId> = shard(&s).members.into_iter().collect();
                    for failed in subsets(1..=n) {
                        let of: BTreeSet<NodeId> = failed.iter().copied().map(NodeId).collect();
                        let found = s.leavers(&of).first().map(|l| l.chain.iter().copied().collect::<BTreeSet<_>>());
                        let wanted = spelled_out(n, ack, min, &failed, &learning).map(|c| c.into_iter().collect());
                        let wanted = wanted.filter(|chain| *chain != plan);
                        if found != wanted {
                            return false;
                        }
                        other += u64::from(found.is_some() && plan.len() < n as usize);
                    }
                }
            }
        }
    }
    assert!(other > 100, "{other}");
    true
}

#[test]
fn chains_become_shorter_in_a_plan_as_in_the_view() {
    assert!(is_the_same_in_a_plan(5, None));
    assert!(!is_the_same_in_a_plan(4, Some(Mutant::AwayForgotten)), "nothing is missed");
}

/// The member that failed leaves, and what it has stays where it is; it comes back before anybody else, and counts when it has
/// everything.
#[test]
fn who_leaves_is_away_until_it_is_back() {
    let mut s = volume(4, 3, Ack::All, 2);
    let command = leave(&[2]);
    let before = s.clone();
    s.apply(command.clone()).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.active_members, sh.away), (ids(&[1, 3]), ids(&[1, 2, 3]), ids(&[2])));
    let events = told(&before, &command, &s);
    assert_eq!((events.len(), events[0].kind, events[0].about.as_deref()), (1, EventKind::MemberLeft, Some("node2")));
    assert_eq!(s.encode()[4], 8, "a reader that knows nothing of it would free what node 2 has");
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    assert_eq!(s.unopened().len(), 1, "its head is watched until the shorter view is open");
    let same = s.clone();
    s.apply(command).unwrap();
    assert_eq!(s, same, "it comes twice");
    open(&mut s);
    assert!(shard(&s).is_kept_by(NodeId(2)) && s.unopened().is_empty());
    // Its place is kept, and given away when it is not waited for any more.
    s.apply(extend(&[2], &[2])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 3]));
    let mut given = s.clone();
    given.apply(extend(&[2], &[])).unwrap();
    assert_eq!((shard(&given).members, shard(&given).away), (ids(&[1, 3, 4]), ids(&[2])));
    open(&mut given);
    complete(&mut given, 4);
    assert!(shard(&given).away.is_empty() && !shard(&given).is_kept_by(NodeId(2)));
    // It is back: first it learns.
    s.apply(extend(&[], &[])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.away), (ids(&[1, 3, 2]), ids(&[2]), ids(&[2])));
    open(&mut s);
    assert_eq!(shard(&s).away, ids(&[2]), "until it has everything");
    let (before, view) = (s.clone(), shard(&s).active);
    let command = Command::MembersComplete { shard: SHARD, view, nodes: ids(&[2]) };
    s.apply(command.clone()).unwrap();
    assert_eq!(told(&before, &command, &s)[0].kind, EventKind::MemberBack);
    let sh = shard(&s);
    assert!(sh.away.is_empty() && sh.joining.is_empty() && sh.members == ids(&[1, 3, 2]), "{sh:?}");
}

/// All is reckoned from the active view, and never from a plan (V11).
#[test]
fn a_plan_that_is_not_active_says_nothing() {
    let mut s = volume(3, 2, Ack::Majority, 1);
    s.apply(leave(&[2])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1]));
    // Node 2 is back before that view is active, and node 1 fails.
    let mut other = s.clone();
    other.apply(leave(&[1])).unwrap();
    let sh = shard(&other);
    assert_eq!((sh.members, sh.active_members, sh.away), (ids(&[2]), ids(&[1, 2]), ids(&[1])));
    let nobody = s.clone();
    s.apply(leave(&[1, 2])).unwrap();
    assert_eq!(s, nobody, "of none that is there nothing can be made");
    // Once it is active, node 2 has no say in it: only node 1 seals it.
    open(&mut s);
    let alone = s.clone();
    s.apply(leave(&[1])).unwrap();
    assert_eq!((s, shard(&alone).view_members()), (alone.clone(), &ids(&[1])[..]));
}

/// The chain goes on without a learner, and without who leads; the last that left comes back first.
#[test]
fn the_last_that_left_comes_back_first() {
    let mut s = volume(4, 3, Ack::All, 1);
    for failed in [&[1][..], &[1, 3]] {
        s.apply(leave(failed)).unwrap();
        open(&mut s);
    }
    let sh = shard(&s);
    assert_eq!((sh.members, sh.away), (ids(&[2]), ids(&[1, 3])));
    // There is a place for each of them, and none for another.
    let mut other = s.clone();
    other.apply(extend(&[1, 3], &[1, 3])).unwrap();
    assert_eq!(other, s);
    other.apply(extend(&[1, 3], &[3])).unwrap();
    assert_eq!(shard(&other).members, ids(&[2, 4]), "node 1 is not waited for any more");
    s.apply(extend(&[], &[])).unwrap();
    assert_eq!(shard(&s).members, ids(&[2, 3]));
    open(&mut s);
    // Node 3 fails before it is known to have everything: it leaves again, and stays the last.
    s.apply(leave(&[3])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.away), (ids(&[2]), ids(&[]), ids(&[1, 3])));
}

/// One that is to come, and fails, leaves the plan, and nothing that was pending counts (V14).
#[test]
fn who_is_to_come_and_fails_leaves_the_plan() {
    let mut s = volume(3, 3, Ack::All, 2);
    s.apply(leave(&[3])).unwrap();
    open(&mut s);
    s.apply(extend(&[], &[])).unwrap();
    let (active, node) = (shard(&s).active, NodeId(1));
    s.apply(Command::ProposeView { shard: SHARD, active, node, start: StartNumber(1) }).unwrap();
    let mut held = s.clone();
    held.apply_with(leave(&[3]), Some(Mutant::ComingHoldsUp)).unwrap();
    assert_eq!(held, s);
    s.apply(leave(&[3])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.pending, sh.active_members, sh.away), (ids(&[1, 2]), None, ids(&[]), ids(&[3])));
    // If the head changed meanwhile, a view of its own follows.
    held.apply(Command::MoveHead { shard: SHARD, node: NodeId(2) }).unwrap();
    held.apply(leave(&[3])).unwrap();
    assert_eq!((shard(&held).members, shard(&held).view_members()), (ids(&[2, 1]), &ids(&[1, 2])[..]));
    // Without the rule of V13 node 3 would begin anew, and its place be given away.
    let mut forgotten = volume(3, 3, Ack::All, 2);
    forgotten.apply_with(leave(&[3]), Some(Mutant::AwayForgotten)).unwrap();
    open(&mut forgotten);
    assert!(!shard(&forgotten).is_kept_by(NodeId(3)));
}

/// Only those that are named, in the view that is named; and nothing of what an operator has said is changed.
#[test]
fn only_what_is_meant_becomes_shorter() {
    let s = volume(3, 3, Ack::All, 2);
    let named = |shards| Command::LeaveChains { failed: starts(&[3]), shards };
    let after = |command| {
        let mut s = s.clone();
        s.apply(command).unwrap();
        shard(&s).members
    };
    assert_eq!(after(named(vec![(SHARD, ViewNumber(1))])), ids(&[1, 2]));
    assert_eq!(after(named(vec![(SHARD, ViewNumber(2))])), ids(&[1, 2, 3]));
    assert_eq!(after(named(vec![(ShardId::new(1, 1), ViewNumber(1))])), ids(&[1, 2, 3]));
    let other = Command::LeaveChains { failed: vec![(NodeId(3), StartNumber(2))], shards: vec![] };
    assert_eq!(after(other), ids(&[1, 2, 3]), "it was started again since");
    let many = vec![(SHARD, ViewNumber(1)); limits::LEFT_SHARDS_MAX + 1];
    assert!(s.clone().apply(named(many.clone())).is_err() && named(many).encode().is_err());
    // A member that was not looked at seals nothing, and one that lost its log does not.
    let failed = BTreeSet::from([NodeId(3)]);
    let five = volume(5, 4, Ack::Majority, 1);
    let two = BTreeSet::from([NodeId(3), NodeId(4)]);
    assert_eq!(five.leavers(&two).len(), 1);
    assert_eq!(with(&five, |sh| sh.unseen = ids(&[2])).leavers(&two), []);
    assert_eq!(with(&five, |sh| sh.joining = ids(&[2])).leavers(&two), []);
    assert_eq!(with(&s, |sh| sh.unseen = ids(&[2])).leavers(&failed).len(), 1, "of `all` one is enough");
}

/// One that lacks little does not wait for those who lack everything.
#[test]
fn those_that_return_have_room_of_their_own() {
    let mut s = State::new(CLUSTER);
    for n in 1..=4 {
        s.apply(register(n, 1)).unwrap();
    }
    let new = |name: &str, copies, ack, shards| {
        let (name, shards) = (name.into(), Some(shards));
        let size = 1 << 30;
        Command::CreateVolume(CreateVolume { name, size, copies: Some(copies), ack, shards, ..CreateVolume::default() })
    };
    s.apply(new("returns", 3, Ack::All, 100)).unwrap();
    let open_all = |s: &mut State| {
        for index in 0..100 {
            let id = ShardId::new(1, index);
            let sh = s.shard(id).unwrap().clone();
            let node = sh.head().unwrap();
            s.apply(Command::ProposeView { shard: id, active: sh.active, node, start: StartNumber(1) }).unwrap();
            let (view, generation) = (s.shard(id).unwrap().highest, s.volume(VolumeId(1)).unwrap().generation);
            s.apply(Command::ActivateView { shard: id, view, generation }).unwrap();
        }
    };
    open_all(&mut s);
    s.apply(leave(&[1])).unwrap();
    open_all(&mut s);
    let left = s.volume(VolumeId(1)).unwrap().shards.iter().filter(|s| s.away == ids(&[1])).count();
    assert!(left > limits::RETURNING_SHARDS_MAX, "{left}");
    let none = BTreeSet::new();
    assert_eq!(s.extensions(&none, &none).len(), limits::RETURNING_SHARDS_MAX);
    let gone = BTreeSet::from([NodeId(1)]);
    assert_eq!(s.extensions(&gone, &none).len(), limits::JOINING_SHARDS_MAX);
    assert_eq!(s.extensions(&gone, &gone).len(), 0);
    // Nor do those who lack everything wait for them: another node is gone while these return.
    s.apply(extend(&[], &[])).unwrap();
    let returning = |s: &State| s.volume(VolumeId(1)).unwrap().shards.iter().filter(|s| !s.joining.is_empty()).count();
    assert_eq!(returning(&s), limits::RETURNING_SHARDS_MAX);
    s.apply(new("other", 3, Ack::Majority, 100)).unwrap();
    assert_eq!(s.replacements(&BTreeSet::from([NodeId(2)]), &none).len(), limits::JOINING_SHARDS_MAX);
}

/// A member of the active view that was still learning is left out of a plan. It does not count for one that has everything when
/// another plan is made from the same view, and keeps what it has learned.
#[test]
fn who_was_learning_is_not_whole_in_the_next_plan() {
    for learning in [ids(&[4]), ids(&[])] {
        let mut s = with(&volume(4, 4, Ack::Majority, 1), |sh| {
            sh.joining = ids(&[4]);
            sh.learning.clone_from(&learning);
        });
        let before = s.clone();
        s.apply(leave(&[2])).unwrap();
        assert_eq!((shard(&s).members, shard(&s).joining), (ids(&[1, 3]), ids(&[])));
        let texts: Vec<String> = told(&before, &leave(&[2]), &s).into_iter().map(|t| t.text).collect();
        let failed = "node2 has failed, and nothing could be answered without it";
        assert_eq!(texts, [failed, "node4 has not everything yet: the chain goes on with those that have"]);
        // Of one that is not known to be new nobody knows what it has: it is none of those that have everything.
        assert_eq!(shard(&s).away, [&learning[..], &ids(&[2])].concat(), "the last that comes back lacks most");
        // Node 2 is back before that is active, and node 1 fails.
        s.apply(leave(&[1])).unwrap();
        assert_eq!(shard(&s).members, ids(&[3, 2]), "node 4 has not everything");
    }
}

/// Node 3 is back in a view of all three, which is active, so it has everything, and the head dies before it says so. The other
/// two, with all that was answered, would have waited for the head.
#[test]
fn who_has_answered_in_a_view_of_all_is_whole_before_that_is_told() {
    let mut s = volume(3, 3, Ack::All, 2);
    s.apply(leave(&[3])).unwrap();
    open(&mut s);
    s.apply(extend(&[], &[])).unwrap();
    open(&mut s);
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.learning, sh.away), (ids(&[1, 2, 3]), ids(&[3]), ids(&[3]), ids(&[3])));
    // After a rebuild nobody knows who had it.
    let unknown = with(&s, |sh| sh.learning.clear());
    assert_eq!(unknown.leavers(&BTreeSet::from([NodeId(1)])), []);
    s.apply(leave(&[1])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.away), (ids(&[2, 3]), ids(&[]), ids(&[1])));
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    // It may even lead.
    s.apply(Command::MoveHead { shard: SHARD, node: NodeId(3) }).unwrap();
    open(&mut s);
    // One that fails in such a view is the last that left, whatever was told.
    let mut s = volume(4, 3, Ack::All, 1);
    for failed in [&[2][..], &[2, 3]] {
        s.apply(leave(failed)).unwrap();
        open(&mut s);
    }
    s.apply(extend(&[3], &[3])).unwrap();
    open(&mut s);
    assert_eq!((shard(&s).members, shard(&s).away), (ids(&[1, 2]), ids(&[2, 3])));
    s.apply(leave(&[2, 3])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).away), (ids(&[1]), ids(&[3, 2])));
}

/// The last member of a shorter plan can't open it, and the other one is back: both are named, and whoever has everything leads.
#[test]
fn a_plan_that_nobody_can_open_becomes_longer_again() {
    let mut s = volume(2, 2, Ack::Majority, 1);
    s.apply(leave(&[1])).unwrap();
    assert_eq!(shard(&s).members, ids(&[2]));
    let named = |view, failed: &[u64]| Command::LeaveChains { failed: starts(failed), shards: vec![(SHARD, view)] };
    let before = s.clone();
    for nothing in [leave(&[]), named(ViewNumber(1), &[1]), named(ViewNumber(9), &[])] {
        s.apply(nothing).unwrap();
        assert_eq!(s, before, "only of the shard that is named, in that view, with who is there");
    }
    s.apply(named(ViewNumber(1), &[])).unwrap();
    let events = told(&before, &named(ViewNumber(1), &[]), &s);
    let kinds: Vec<_> = events.iter().map(|t| (t.kind, t.about.as_deref())).collect();
    assert_eq!(kinds, [(EventKind::MemberBack, Some("node1")), (EventKind::HeadMoved, Some("node2"))]);
    let sh = shard(&s);
    assert_eq!((&sh.members, &sh.away, sh.view_members()), (&ids(&[1, 2]), &ids(&[]), &ids(&[1, 2])[..]));
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    assert_eq!(s.unopened(), [], "no view was begun, so this one goes on");
    open(&mut s);
    assert_eq!(shard(&s).members, ids(&[1, 2]));
}

/// The head that did not open a shorter plan is not the head of the longer one, and whoever is, is watched. So is a view that
/// was begun and given up: all of its members may have promised another one.
#[test]
fn a_plan_that_was_made_longer_is_watched() {
    let mut s = volume(3, 3, Ack::All, 2);
    s.apply(leave(&[2])).unwrap();
    let named = |s: &State| Command::LeaveChains { failed: vec![], shards: vec![(SHARD, shard(s).active)] };
    s.apply(named(&s)).unwrap();
    let sh = shard(&s);
    assert_eq!((&sh.members, sh.view_members()), (&ids(&[2, 1, 3]), &ids(&[1, 2, 3])[..]));
    // Whoever leads it: another chain is to follow.
    for members in [[2, 1, 3], [1, 3, 2]] {
        let s = with(&s, |sh| sh.members = ids(&members));
        assert_eq!(s.unopened(), [(SHARD, NodeId(members[0]), ViewNumber(1))], "{members:?}");
    }
    // The chain of the active view again. Node 2 has begun another one, and it is not known who promised that.
    let mut s = volume(2, 2, Ack::Majority, 1);
    s.apply(leave(&[1])).unwrap();
    let propose = Command::ProposeView { shard: SHARD, active: ViewNumber(1), node: NodeId(2), start: StartNumber(1) };
    s.apply(propose).unwrap();
    s.apply(named(&s)).unwrap();
    let sh = shard(&s);
    assert_eq!((&sh.members, sh.active_members, sh.pending), (&ids(&[1, 2]), ids(&[]), None));
    assert_eq!(s.unopened(), [(SHARD, NodeId(1), ViewNumber(1))]);
    open(&mut s);
    assert_eq!(s.unopened(), []);
}

/// A head that has to open a view opens it with those that have everything: who still comes would be waited for until it has, too.
/// It goes on learning when that view is open.
#[test]
fn no_view_waits_for_those_that_come() {
    let mut s = volume(4, 3, Ack::All, 2);
    s.apply(leave(&[3])).unwrap();
    open(&mut s);
    s.apply(extend(&[3], &[])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).joining), (ids(&[1, 2, 4]), ids(&[4])));
    let named = |s: &State| Command::LeaveChains { failed: vec![], shards: vec![(SHARD, shard(s).active)] };
    let after = |s: &State, command: Command| {
        let mut s = s.clone();
        s.apply(command).unwrap();
        s
    };
    assert_eq!(after(&s, named(&s)), s, "the view is open");
    assert_eq!(after(&s, Command::LeaveChains { failed: vec![], shards: vec![] }), s);
    // The head is started again.
    s.apply(register(1, 2)).unwrap();
    assert_eq!(after(&s, Command::LeaveChains { failed: vec![], shards: vec![(SHARD, ViewNumber(1))] }), s);
    s.apply(named(&s)).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.active_members, sh.joining, sh.away), (ids(&[1, 2]), ids(&[]), ids(&[]), ids(&[4, 3])));
    assert!(shard(&s).is_kept_by(NodeId(4)));
    assert_eq!(after(&s, extend(&[3], &[3])), s, "not before that view is open");
    open(&mut s);
    s.apply(extend(&[3], &[3])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2, 4]));
    // Another one is made head.
    s.apply(Command::MoveHead { shard: SHARD, node: NodeId(2) }).unwrap();
    s.apply(named(&s)).unwrap();
    assert_eq!((shard(&s).members, shard(&s).view_members()), (ids(&[2, 1]), &ids(&[1, 2])[..]));
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    open(&mut s);
    // The view with it is given up, and promised by all perhaps. Another one has to follow first.
    s.apply(extend(&[3], &[3])).unwrap();
    let (active, node) = (shard(&s).active, NodeId(2));
    s.apply(Command::ProposeView { shard: SHARD, active, node, start: StartNumber(1) }).unwrap();
    assert_eq!(after(&s, named(&s)), s, "it is being opened, by one that waited for it");
    s.apply(leave(&[4])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).pending), (ids(&[2, 1]), None));
    assert_eq!(after(&s, extend(&[3], &[3])), s);
    open(&mut s);
    s.apply(extend(&[3], &[3])).unwrap();
    assert_eq!(shard(&s).members, ids(&[2, 1, 4]));
}

/// A shorter chain has nobody who learns. What former members have is all that there is beside it, if its members are lost.
#[test]
fn former_members_keep_what_they_have_while_the_chain_is_short() {
    let mut s = with(&volume(4, 3, Ack::Majority, 1), |sh| {
        sh.members = ids(&[1, 2, 4]);
        (sh.joining, sh.learning, sh.keepers) = (ids(&[4]), ids(&[4]), ids(&[3]));
    });
    s.apply(leave(&[2])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).away), (ids(&[1]), ids(&[4, 2])));
    open(&mut s);
    assert!(shard(&s).is_kept_by(NodeId(3)), "{:?}", shard(&s));
    for (back, is_kept) in [(2, true), (4, false)] {
        s.apply(extend(&[], &[])).unwrap();
        open(&mut s);
        assert!(shard(&s).members.contains(&NodeId(back)) && shard(&s).is_kept_by(NodeId(3)));
        complete(&mut s, back);
        assert_eq!(shard(&s).is_kept_by(NodeId(3)), is_kept, "{:?}", shard(&s));
    }
}

/// The control state was made again, and a node was not looked at. It has not failed: it was never there.
#[test]
fn a_member_that_was_never_started_is_not_there() {
    let rebuilt = with(&volume(3, 3, Ack::All, 2), |sh| (sh.joining, sh.unseen) = (ids(&[3]), ids(&[3])));
    let none = BTreeSet::new();
    assert_eq!(rebuilt.leavers(&none), []);
    let mut page = rebuilt.changes_since(0);
    page.nodes.iter_mut().filter(|n| n.id == NodeId(3)).for_each(|n| n.start = StartNumber(0));
    let mut s = State::new(CLUSTER);
    s.take_in(page).unwrap();
    assert_eq!(s.leavers(&none).iter().map(|l| l.chain.clone()).collect::<Vec<_>>(), [ids(&[1, 2])]);
    s.apply(Command::LeaveChains { failed: vec![], shards: vec![] }).unwrap();
    assert_eq!((shard(&s).members, shard(&s).away), (ids(&[1, 2]), ids(&[3])));
    // It is no member that has everything, in no other plan.
    let mut started = s.clone();
    started.apply(register(3, 1)).unwrap();
    assert_eq!(started.leavers(&BTreeSet::from([NodeId(1)])), []);
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    // Its place is kept for it, if it is waited for.
    s.apply(register(4, 1)).unwrap();
    open(&mut s);
    let waited = Command::ExtendChains { away: vec![], waited: vec![(NodeId(3), StartNumber(0))] };
    assert_eq!(Command::decode(&waited.encode().unwrap()).unwrap(), waited);
    s.apply(waited).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2]));
    s.apply(extend(&[], &[])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2, 4]));
}

/// A new member that fails while it learns does not keep one out that lacks little.
#[test]
fn a_new_member_that_fails_makes_room_for_one_that_is_back() {
    let mut s = volume(4, 3, Ack::All, 2);
    s.apply(leave(&[3])).unwrap();
    open(&mut s);
    s.apply(extend(&[3], &[])).unwrap();
    let grows = s.clone();
    s.apply(leave(&[3, 4])).unwrap();
    assert_eq!((s.clone(), shard(&s).members), (grows, ids(&[1, 2, 4])), "nobody is back");
    s.apply(leave(&[4])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.away), (ids(&[1, 2]), ids(&[]), ids(&[4, 3])));
    s.apply(extend(&[4], &[])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2, 3]));
}

/// A node that was never a member, and fails while it learns, goes on when it is back: it keeps what it has learned, and its place.
#[test]
fn a_new_member_that_fails_keeps_what_it_has_learned() {
    let mut s = volume(4, 3, Ack::Majority, 2);
    s.apply(leave(&[3])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2, 3]), "a majority is there");
    let grows = with(&s, |sh| {
        sh.active_members = ids(&[1, 2]);
        sh.members = ids(&[1, 2, 4]);
        sh.joining = ids(&[4]);
    });
    let mut s = grows.clone();
    s.apply(leave(&[4])).unwrap();
    assert_eq!(s, grows, "it holds nobody up");
    let (active, node) = (shard(&s).active, NodeId(1));
    s.apply(Command::ProposeView { shard: SHARD, active, node, start: StartNumber(1) }).unwrap();
    s.apply(leave(&[4])).unwrap();
    let sh = shard(&s);
    assert_eq!((&sh.members, &sh.away, sh.pending), (&ids(&[1, 2]), &ids(&[4]), None));
    assert!(sh.is_kept_by(NodeId(4)));
    open(&mut s);
    let (before, waited) = (s.clone(), extend(&[4], &[4]));
    s.apply(waited).unwrap();
    assert_eq!(s, before, "its place is kept for as long as one's that was a member");
    s.apply(extend(&[], &[])).unwrap();
    assert_eq!(shard(&s).members, ids(&[1, 2, 4]), "it comes before others");
}

/// A volume that was never opened has no chain to become shorter.
#[test]
fn before_the_first_view_nothing_becomes_shorter() {
    let s = with(&volume(2, 2, Ack::All, 1), |sh| sh.active = ViewNumber(0));
    assert_eq!(s.leavers(&BTreeSet::from([NodeId(2)])), []);
}

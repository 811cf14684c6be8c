//! Nodes that stand in for members that have failed (V21): a table of all small chains against the rule spelled out, and scenes.

use super::shorter::{CLUSTER, SHARD, complete, extend, ids, leave, open, shard, starts, subsets, volume, with};
use freebs_control::events::{EventKind, told};
use freebs_control::{Ack, Command, DrainStep, Mutant, State};
use freebs_types::NodeId;
use std::collections::BTreeSet;

fn stand_in(failed: &[u64], away: &[u64]) -> Command {
    Command::StandIn { failed: starts(failed), away: starts(away) }
}

fn drain(s: &mut State) {
    s.apply(Command::DrainChains { away: vec![] }).unwrap();
}

fn set(of: &[u64]) -> BTreeSet<NodeId> {
    of.iter().copied().map(NodeId).collect()
}

/// Chains of up to four members with up to two nodes to spare, with both acks, each min copies, and each set of members that
/// learn; for each what becomes of them when each set has failed. True if all of it is as the rule says.
fn is_as_spelled_out(mutant: Option<Mutant>) -> bool {
    let mut found = 0;
    for (n, spare) in (1..=4u64).flat_map(|n| (0..=2).map(move |spare| (n, spare))) {
        for (ack, min) in [Ack::Majority, Ack::All].into_iter().flat_map(|a| (1..=n).map(move |min| (a, min))) {
            let s = volume(n + spare, n as u8, ack, min as u8);
            for learning in subsets(2..=n) {
                let s = with(&s, |sh| {
                    sh.joining = learning.iter().copied().map(NodeId).collect();
                    sh.learning.clone_from(&sh.joining);
                });
                for failed in subsets(1..=n + spare) {
                    let of = failed.iter().copied().map(NodeId).collect();
                    let chain = s.stand_ins_with(&of, &BTreeSet::new(), mutant).first().map(|l| l.chain.clone());
                    let is_right = match &chain {
                        Some(chain) => is_one(n, spare, chain, &failed),
                        None => true,
                    };
                    if !is_right || chain.is_some() != is_wanted((n, spare), (ack, min), &failed, &learning) {
                        return false;
                    }
                    found += u64::from(chain.is_some());
                }
            }
        }
    }
    assert!(found > 100, "{found}");
    true
}

/// V21: whether nodes are to stand in.
fn is_wanted((n, spare): (u64, u64), (ack, min): (Ack, u64), failed: &BTreeSet<u64>, learning: &BTreeSet<u64>) -> bool {
    let quorum = if ack == Ack::All { n } else { (n / 2 + 1).max(min) };
    let there: Vec<u64> = (1..=n).filter(|m| !failed.contains(m)).collect();
    let whole = there.iter().filter(|m| !learning.contains(m)).count() as u64;
    let (somebody_failed, somebody_can) = ((there.len() as u64) < n, (n + 1..=n + spare).any(|m| !failed.contains(&m)));
    let is_sealed = there.len() as u64 + quorum > n;
    let needs_nobody_new = there.len() as u64 >= quorum && quorum < n;
    somebody_failed && somebody_can && whole >= min && is_sealed && needs_nobody_new
}

/// As long as before; all that are there stay, in front; and nobody who has failed is in it while a node is to spare.
fn is_one(n: u64, spare: u64, chain: &[NodeId], failed: &BTreeSet<u64>) -> bool {
    let has = |m: &u64| chain.contains(&NodeId(*m));
    let all_stay = (1..=n).filter(|m| !failed.contains(m)).all(|m| has(&m));
    let any_failed = failed.iter().any(|m| has(m));
    let any_spare = (n + 1..=n + spare).any(|m| !failed.contains(&m) && !has(&m));
    let new_failed = (n + 1..=n + spare).any(|m| failed.contains(&m) && has(&m));
    chain.len() as u64 == n && all_stay && !(any_failed && any_spare) && !new_failed && !failed.contains(&chain[0].0)
}

#[test]
fn nodes_stand_in_as_the_rule_says() {
    assert!(is_as_spelled_out(None));
    assert!(!is_as_spelled_out(Some(Mutant::StandsInForTooMany)), "nothing is missed");
}

/// A member fails, and another node stands in for it at once; it comes back, has everything, and the other one leaves.
#[test]
fn who_stands_in_leaves_when_the_other_is_back() {
    let mut s = volume(5, 3, Ack::Majority, 2);
    let (before, command) = (s.clone(), stand_in(&[3], &[]));
    s.apply(command.clone()).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.active_members, sh.away), (ids(&[1, 2, 4]), ids(&[1, 2, 3]), ids(&[3])));
    assert_eq!((sh.joining, sh.standing), (ids(&[4]), ids(&[4])));
    let events = told(&before, &command, &s);
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [EventKind::MemberLeft, EventKind::MemberReplaced]);
    assert_eq!(s.encode()[4], 13, "a reader that knows nothing of it would have node 4 learn");
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    let same = s.clone();
    s.apply(command).unwrap();
    assert_eq!(s, same, "it comes twice");
    open(&mut s);
    // It learns nothing, and nobody else comes, while the place is kept.
    s.apply(extend(&[3], &[3])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).standing), (ids(&[1, 2, 4]), ids(&[4])));
    s.apply(extend(&[], &[])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.standing), (ids(&[1, 2, 4, 3]), ids(&[4, 3]), ids(&[4])));
    open(&mut s);
    drain(&mut s);
    assert_eq!(shard(&s).members.len(), 4, "it has not everything yet");
    complete(&mut s, 3);
    assert_eq!(s.settlers(&set(&[]), &set(&[])), [], "it leaves");
    let leaves = DrainStep::Leaves { node: NodeId(4), head: NodeId(1) };
    assert_eq!(s.drain_steps(&set(&[])), [(SHARD, leaves)]);
    drain(&mut s);
    assert!(shard(&s).is_kept_by(NodeId(4)), "what it answered is needed for the seal");
    open(&mut s);
    let sh = shard(&s);
    assert_eq!((sh.members.clone(), sh.joining.len(), sh.away.len()), (ids(&[1, 2, 3]), 0, 0));
    assert!(!sh.is_kept_by(NodeId(4)) && sh.standing.is_empty() && sh.keepers.is_empty());
}

/// The place is not kept any more: the stand-in learns, and is a member as others.
#[test]
fn who_stands_in_for_nobody_learns() {
    let mut s = volume(5, 3, Ack::Majority, 2);
    s.apply(stand_in(&[3], &[])).unwrap();
    open(&mut s);
    assert_eq!(s.settlers(&set(&[3]), &set(&[])), [(SHARD, 1)]);
    s.apply(extend(&[3], &[])).unwrap();
    let sh = shard(&s);
    assert_eq!((sh.members, sh.joining, sh.standing.len()), (ids(&[1, 2, 4]), ids(&[4]), 0));
    complete(&mut s, 4);
    let sh = shard(&s);
    assert_eq!((sh.members.clone(), sh.away.len()), (ids(&[1, 2, 4]), 0));
    assert!(!sh.is_kept_by(NodeId(3)), "it frees what it has");
}

/// A second member fails. With what is written there are enough that answer, so the chain stays; another one stands in only where
/// those that have everything are as many as the volume is to have.
#[test]
fn a_second_member_fails_while_one_stands_in() {
    for (min, chain, away) in [(2, [1, 2, 4], &[3][..]), (1, [1, 4, 5], &[3, 2][..])] {
        let mut s = volume(5, 3, Ack::Majority, min);
        s.apply(stand_in(&[3], &[])).unwrap();
        open(&mut s);
        assert_eq!(s.leavers(&set(&[2, 3])), [], "nodes 1 and 4 answer");
        s.apply(leave(&[2, 3])).unwrap();
        s.apply(stand_in(&[2], &[3])).unwrap();
        assert_eq!((shard(&s).members, shard(&s).away), (ids(&chain), ids(away)), "{min}");
        // One that stands in fails: another one does, and no place is kept.
        let mut s = volume(5, 3, Ack::Majority, min);
        s.apply(stand_in(&[3], &[])).unwrap();
        open(&mut s);
        s.apply(stand_in(&[4], &[3])).unwrap();
        let sh = shard(&s);
        assert_eq!((sh.members, sh.standing, sh.away), (ids(&[1, 2, 5]), ids(&[5]), ids(&[3])));
        // Nobody who has everything is left.
        assert_eq!(s.stand_ins(&set(&[1, 2]), &set(&[3])), []);
    }
}

/// Another member fails before the view with the stand-in is active, and the one that had failed is back: nobody waits for the
/// stand-in to learn.
#[test]
fn a_plan_with_stand_ins_is_given_up_when_another_member_fails() {
    let mut s = volume(5, 3, Ack::Majority, 1);
    s.apply(stand_in(&[3], &[])).unwrap();
    s.apply(leave(&[2])).unwrap();
    let sh = shard(&s);
    assert_eq!(sh.members, ids(&[1, 3, 2]), "those that are there first");
    assert!(sh.standing.is_empty() && sh.joining.is_empty() && sh.away.is_empty());
    open(&mut s);
    assert!(s.unopened().is_empty());
    // The head fails with it: the next one that has everything leads.
    let mut s = volume(5, 3, Ack::Majority, 1);
    s.apply(stand_in(&[1], &[])).unwrap();
    assert_eq!((shard(&s).members, shard(&s).away), (ids(&[2, 3, 4]), ids(&[1])));
}

/// The state of a cluster in which nobody stands in is written as before.
#[test]
fn without_stand_ins_the_state_is_as_before() {
    let s = volume(5, 3, Ack::Majority, 2);
    assert!(s.encode()[4] < 13);
    assert_eq!(State::decode(&s.encode()).unwrap().cluster(), CLUSTER);
}

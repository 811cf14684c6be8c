//! Which seats vote: a pure function from who is there to the next change.
//!
//! - 1, 3 or 5 voters: as many as there are nodes for, one step at a time, and never fewer than there were.
//! - A voter that has been silent for long is replaced, if somebody is there to replace it; else it stays, because a
//!   smaller group is no safer than one with a member missing.
//! - A node has one seat that counts, the one that is heard; a seat that its node has left is replaced like one that
//!   is silent, and forgotten once it has no vote.

use crate::types::Seat;
use freebs_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A seat as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The seat.
    pub seat: Seat,
    /// True if it has a vote; else it is a learner.
    pub voter: bool,
    /// Milliseconds since it was heard; 0 for the leader itself.
    pub silent_ms: u64,
    /// Its log is close to the leader's, so that it can vote at once.
    pub caught_up: bool,
}

/// One change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// From now on these vote.
    Voters(BTreeSet<Seat>),
    /// A learner that is silent for long, and whose node has another seat, is no member any more.
    Forget(Seat),
}

/// Seats by node that are heard, the one heard last if a node has several.
fn present(seats: &[Seen], gone_ms: u64) -> BTreeMap<NodeId, Seen> {
    let mut found: BTreeMap<NodeId, Seen> = BTreeMap::new();
    for s in seats.iter().filter(|s| s.silent_ms < gone_ms) {
        let known = found.entry(s.seat.node).or_insert(*s);
        if (s.silent_ms, !s.voter, s.seat) < (known.silent_ms, !known.voter, known.seat) {
            *known = *s;
        }
    }
    found
}

/// How many seats vote in a cluster of so many nodes, once that many are there.
#[must_use]
pub fn count_of(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// The next change, or none if all is as it should be. The leader is in `seats`, heard just now.
#[must_use]
pub fn next_change(seats: &[Seen], leader: Seat, gone_ms: u64) -> Option<Change> {
    let present = present(seats, gone_ms);
    let voters: BTreeSet<Seat> = seats.iter().filter(|s| s.voter).map(|s| s.seat).collect();
    let counts = |s: &Seat| present.get(&s.node).is_some_and(|p| p.seat == *s);
    let left: Vec<Seat> = voters.iter().filter(|v| !counts(v) && **v != leader).copied().collect();
    let voting_nodes: BTreeSet<NodeId> = voters.iter().filter(|v| counts(v)).map(|v| v.node).collect();
    let mut ready: Vec<Seat> = present
        .values()
        .filter(|s| !s.voter && s.caught_up && !voting_nodes.contains(&s.seat.node))
        .map(|s| s.seat)
        .collect();
    // A node that has left a voting seat and is there in another one comes first.
    ready.sort_by_key(|s| (!left.iter().any(|l| l.node == s.node), *s));
    if let (Some(out), Some(new)) = (left.first(), ready.first()) {
        let out = left.iter().find(|l| l.node == new.node).unwrap_or(out);
        return Some(Change::Voters(voters.iter().filter(|v| *v != out).chain([new]).copied().collect()));
    }
    let step = if voters.len() >= 3 { 5 } else { 3 };
    let missing = count_of(voters.len() + ready.len()).min(step).saturating_sub(voters.len());
    if left.is_empty() && missing > 0 {
        return Some(Change::Voters(voters.iter().chain(&ready[..missing]).copied().collect()));
    }
    let elsewhere = |s: &&Seen| present.get(&s.seat.node).is_some_and(|p| p.seat != s.seat);
    let old = seats.iter().filter(elsewhere).find(|s| !s.voter && s.silent_ms >= gone_ms);
    old.map(|s| Change::Forget(s.seat))
}

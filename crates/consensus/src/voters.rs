//! Which seats vote: a pure function from who is there to the next change.
//!
//! - 1, 3 or 5 voters: as many as there are nodes for, one step at a time. Five become three if a node that
//!   retires has a vote and nobody is there to have it; three never become one, since a seat that votes alone could not be told from
//!   an old copy of itself.
//! - A voter that has been silent for long is replaced, if somebody is there to replace it; else it stays, because a
//!   smaller group is no safer than one with a member missing.
//! - A node has one seat that counts, the one that is heard; a seat that its node has left is replaced like one that
//!   is silent, and forgotten once it has no vote. So are all seats of a node that retires, at once, but for votes that the others
//!   would miss: those that vote then were heard just now.

use crate::types::Seat;
use freebs_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Silence up to which a seat is taken to be there when it takes the vote of one that is alive.
const RECENT_MS: u64 = 2000;
/// Differences in silence below this say nothing.
const HEARD_STEP_MS: u64 = 500;

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
    /// Its node is to have no seat any more: it is being taken out of the cluster.
    pub retires: bool,
}

/// One change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// From now on these vote.
    Voters(BTreeSet<Seat>),
    /// A learner that is silent for long, and whose node has another seat, or none that counts, is no member any more.
    Forget(Seat),
}

/// Seats by node that are heard, the one heard last if a node has several.
fn present(seats: &[Seen], gone_ms: u64) -> BTreeMap<NodeId, Seen> {
    let mut found: BTreeMap<NodeId, Seen> = BTreeMap::new();
    for s in seats.iter().filter(|s| s.silent_ms < gone_ms && !s.retires) {
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

/// Three of five voters, those heard last, if one of the five retires. Nothing if they were not all heard just now: the next
/// failure would be one too many.
fn fewer(seats: &[Seen], voters: &BTreeSet<Seat>, leader: Seat) -> Option<BTreeSet<Seat>> {
    let votes = || seats.iter().filter(|s| voters.contains(&s.seat));
    if voters.len() <= 3 || !votes().any(|s| s.retires) {
        return None;
    }
    let mut stay: Vec<&Seen> = votes().filter(|s| !s.retires && s.silent_ms < RECENT_MS).collect();
    stay.sort_by_key(|s| (s.seat != leader, s.silent_ms / HEARD_STEP_MS, s.seat));
    (stay.len() >= 3).then(|| stay[..3].iter().map(|s| s.seat).collect())
}

/// The next change, or none if all is as it should be. The leader is in `seats`, heard just now.
#[must_use]
pub fn next_change(seats: &[Seen], leader: Seat, gone_ms: u64) -> Option<Change> {
    let present = present(seats, gone_ms);
    let voters: BTreeSet<Seat> = seats.iter().filter(|s| s.voter).map(|s| s.seat).collect();
    let counts = |s: &Seat| present.get(&s.node).is_some_and(|p| p.seat == *s);
    // A vote that is the only one is given to nobody: an old copy of who had it would lead beside the new one.
    let retires = |v: &Seat| voters.len() > 1 && seats.iter().any(|s| s.seat == *v && s.retires);
    let left: Vec<Seat> = voters.iter().filter(|v| !counts(v) && (**v != leader || retires(v))).copied().collect();
    let voting_nodes: BTreeSet<NodeId> = voters.iter().filter(|v| counts(v)).map(|v| v.node).collect();
    let mut ready: Vec<Seat> = present
        .values()
        .filter(|s| !s.voter && s.caught_up && !voting_nodes.contains(&s.seat.node))
        .map(|s| s.seat)
        .collect();
    // A node that has left a voting seat and is there in another one comes first.
    ready.sort_by_key(|s| (!left.iter().any(|l| l.node == s.node), *s));
    let heard_ms = |seat: &Seat| seats.iter().find(|s| s.seat == *seat).map_or(u64::MAX, |s| s.silent_ms);
    // A vote that is alive is given to nobody but a seat that is.
    let only_recent = !left.is_empty() && left.iter().all(retires);
    let new = ready.iter().find(|s| !only_recent || heard_ms(s) < RECENT_MS);
    if let (Some(out), Some(new)) = (left.iter().find(|l| !retires(l)).or(left.first()), new) {
        let out = left.iter().find(|l| l.node == new.node).unwrap_or(out);
        return Some(Change::Voters(voters.iter().filter(|v| *v != out).chain([new]).copied().collect()));
    }
    if let Some(fewer) = fewer(seats, &voters, leader) {
        return Some(Change::Voters(fewer));
    }
    let step = if voters.len() >= 3 { 5 } else { 3 };
    let missing = count_of(voters.len() + ready.len()).min(step).saturating_sub(voters.len());
    if left.is_empty() && missing > 0 {
        return Some(Change::Voters(voters.iter().chain(&ready[..missing]).copied().collect()));
    }
    let elsewhere = |s: &Seen| present.get(&s.seat.node).is_some_and(|p| p.seat != s.seat);
    let is_old = |s: &&Seen| !s.voter && (s.retires || s.silent_ms >= gone_ms && elsewhere(s));
    let old = seats.iter().find(is_old);
    old.map(|s| Change::Forget(s.seat))
}

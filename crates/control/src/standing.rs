//! Nodes to spare that stand in for members that have failed (rule V21): what is written has all its copies again at once, and
//! nothing old moves. Pure functions of the state, each applied in one entry.
//!
//! A stand-in is a member that is joining, and learns nothing for as long as a place is kept for the one that left. When that one
//! is back and has everything the stand-in leaves; when its place is kept no longer the stand-in learns, and is a member as others.
//!
//! Invariants: as many members that have everything are left as the volume is to have at least, so nobody counts early where
//! another one may have the only copy (V16 c); the members that are there, and held the view before, are enough for the next one,
//! so it waits for no stand-in; and not all of them have to answer, for then nobody counts early. A clone's shard has no
//! stand-ins: its members learn everything first.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::mutant::Mutant;
use crate::placement::Loads;
use crate::state::{Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber, limits as common};
use std::collections::BTreeSet;

/// A shard in which nodes are to stand in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingIn {
    /// The shard.
    pub shard: ShardId,
    /// The chain from then on, head first.
    pub chain: Vec<NodeId>,
    /// Those in it that stand in from now on.
    pub new: Vec<NodeId>,
}

impl Shard {
    /// Members that learn, and do not only stand in.
    pub(crate) fn learners(&self) -> impl Iterator<Item = &NodeId> {
        self.joining.iter().filter(|n| !self.standing.contains(n))
    }

    /// The chain becomes this one. Members that leave it are away, those that have everything as the last; who stood in is not.
    fn stand_in(&mut self, chain: Vec<NodeId>, new: &[NodeId]) {
        if self.active_members.is_empty() {
            self.active_members.clone_from(&self.members);
        }
        let leaves = |n: &&NodeId| !chain.contains(n) && !self.standing.contains(n) && !self.away.contains(n);
        let (learners, whole): (Vec<NodeId>, Vec<NodeId>) =
            self.members.iter().filter(leaves).partition(|n| self.joining.contains(n));
        self.away.splice(0..0, learners);
        self.away.extend(whole);
        self.keepers.retain(|n| !chain.contains(n) && !self.away.contains(n));
        self.members = chain;
        self.joining.retain(|n| self.members.contains(n));
        self.joining.extend(new);
        self.standing.extend(new);
        self.pending = None;
        self.tidy_standing();
        self.tidy_away();
    }

    /// Only who is joining stands in.
    pub(crate) fn tidy_standing(&mut self) {
        let joining = &self.joining;
        self.standing.retain(|n| joining.contains(n));
    }

    /// So many stand in for whom no place is kept any more. Places are kept for those of `waited`, and for who is there, or on its way;
    /// and where the chain is longer than it is to have `copies`, one leaves it anyway.
    fn standing_for_nobody(
        &self,
        copies: usize,
        waited: &BTreeSet<NodeId>,
        is_there: impl Fn(&NodeId) -> bool,
    ) -> usize {
        let is_kept = |n: &&NodeId| self.members.contains(n) || waited.contains(n) || is_there(n);
        let leave = self.members.len().saturating_sub(copies);
        self.standing.len().saturating_sub(leave + self.away.iter().filter(is_kept).count())
    }
}

impl State {
    /// The chain with stand-ins in the places of those that were silent for long enough, and the new ones in it.
    fn chain_with_stand_ins(
        &self,
        volume: &Volume,
        shard: &Shard,
        (silent, away): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
        loads: &mut Loads,
        mutant: Option<Mutant>,
    ) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
        let is_known =
            shard.forced.is_none() && shard.unseen.is_empty() && shard.branch.is_none_or(|b| b.view < shard.active);
        let is_settled = shard.active.0 > 0 && shard.active_members.is_empty();
        let (len, copies) = (shard.members.len(), usize::from(volume.copies));
        if !is_known || !is_settled || volume.origin.is_some() || copies >= common::CHAIN_MEMBERS_MAX || len < copies {
            return None;
        }
        let is_there =
            |n: &NodeId| !silent.contains(n) && !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let failed: Vec<NodeId> = shard.members.iter().filter(|n| silent.contains(n)).copied().collect();
        let learns = |n: &NodeId| shard.joining.contains(n) || shard.learning.contains(n);
        let there = shard.members.iter().filter(|n| is_there(n)).count();
        let whole = shard.members.iter().filter(|n| is_there(n) && !learns(n)).count();
        let least = if mutant == Some(Mutant::StandsInForTooMany) { 1 } else { usize::from(volume.min_copies).max(1) };
        if failed.is_empty() || whole < least || there + volume.quorum(len) <= len {
            return None;
        }
        let wanted = copies.saturating_sub(len - failed.len());
        let mut new: Vec<NodeId> = Vec::new();
        while new.len() < wanted {
            // Who left comes back in another way.
            let may_come = |n: &NodeId| is_there(n) && !shard.away.contains(n) && !new.contains(n);
            let Some(n) = self.spare(shard, may_come, loads) else { break };
            new.push(n);
        }
        // The first of those that have failed stay where nobody is to spare.
        let stay = &failed[..wanted - new.len()];
        let mut chain: Vec<NodeId> =
            shard.members.iter().filter(|n| !failed.contains(n) || stay.contains(n)).copied().collect();
        chain.sort_by_key(|n| (learns(n), !is_there(n)));
        chain.extend(&new);
        let quorum = volume.quorum(chain.len());
        let is_other = chain.len() < len || !new.is_empty();
        let may_lead = chain.first().is_some_and(|head| is_there(head) && !learns(head));
        if !is_other || !may_lead || quorum >= chain.len() || there < quorum {
            return None;
        }
        new.iter().for_each(|n| loads.add_member(*n));
        Some((chain, new))
    }

    /// Shards in which nodes to spare can stand in for members that were silent for so long that they have failed. None of `away`
    /// comes.
    #[must_use]
    pub fn stand_ins(&self, silent: &BTreeSet<NodeId>, away: &BTreeSet<NodeId>) -> Vec<StandingIn> {
        self.stand_ins_with(silent, away, None)
    }

    /// The same with a rule left out, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn stand_ins_with(
        &self,
        silent: &BTreeSet<NodeId>,
        away: &BTreeSet<NodeId>,
        mutant: Option<Mutant>,
    ) -> Vec<StandingIn> {
        let mut loads = self.loads.clone();
        let mut out = Vec::new();
        if silent.is_empty() {
            return out;
        }
        for (volume, shard) in self.volumes().flat_map(|v| v.shards.iter().map(move |s| (v, s))) {
            if let Some((chain, new)) = self.chain_with_stand_ins(volume, shard, (silent, away), &mut loads, mutant) {
                out.push(StandingIn { shard: volume.shard_id(shard.index), chain, new });
            }
        }
        out
    }

    /// Shards with stand-ins for whom no place is kept any more, as many as may learn at a time: so many of each learn from now on.
    #[must_use]
    pub fn settlers(&self, away: &BTreeSet<NodeId>, waited: &BTreeSet<NodeId>) -> Vec<(ShardId, usize)> {
        let is_there =
            |n: &NodeId| !away.contains(n) && !self.drains(*n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let waited: BTreeSet<NodeId> = waited.iter().copied().filter(|n| !self.drains(*n)).collect();
        let of = |v: &Volume, s: &Shard| {
            let count = s.standing_for_nobody(usize::from(v.copies), &waited, is_there);
            (count > 0).then(|| (v.shard_id(s.index), count))
        };
        let all = self.volumes().flat_map(|v| v.shards.iter().filter_map(move |s| of(v, s)));
        all.take(self.room_to_learn()).collect()
    }

    /// So many more shards may have members that learn everything.
    pub(crate) fn room_to_learn(&self) -> usize {
        let busy: usize = self.volumes().map(|v| v.shards.iter().filter(|s| s.is_learned()).count()).sum();
        limits::JOINING_SHARDS_MAX.saturating_sub(busy)
    }

    /// Nodes that are there stand in for those of `failed`.
    pub(crate) fn stand_in(
        &mut self,
        failed: &[(NodeId, StartNumber)],
        away: &[(NodeId, StartNumber)],
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        if failed.len() + away.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let mut changed: Vec<Volume> = Vec::new();
        for StandingIn { shard: id, chain, new } in self.stand_ins_with(&self.still(failed), &self.still(away), mutant)
        {
            if changed.last().is_none_or(|v| v.id != id.volume) {
                changed.push(self.volume_to_change(id.volume)?);
            }
            let volume = changed.last_mut().expect("pushed above");
            shard_of(volume, id)?.stand_in(chain, &new);
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }

    /// Those that stand in for nobody learn from now on.
    pub(crate) fn settle(&mut self, away: &BTreeSet<NodeId>, waited: &BTreeSet<NodeId>) -> Result<()> {
        for (id, count) in self.settlers(away, waited) {
            let mut volume = self.volume_to_change(id.volume)?;
            shard_of(&mut volume, id)?.standing.drain(..count);
            self.commit(volume);
        }
        Ok(())
    }
}

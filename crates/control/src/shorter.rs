//! Chains that become shorter (rules V11 to V14): a member without which nothing can be answered leaves the chain by a view
//! change as soon as it has failed, and comes back by another one. Pure functions of the state, each applied in one entry.
//!
//! Invariants: all is reckoned from the chain of the active view, and never from a plan that has not become active (V11);
//! a chain that is planned here has members that have everything and no others, at least the volume's min copies of them,
//! and enough of the view before are there to seal that; who has left keeps what it has (V13).

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::mutant::Mutant;
use crate::state::{Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber, ViewNumber, limits as common};
use std::collections::BTreeSet;

/// A shard whose chain is to become shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The shard.
    pub shard: ShardId,
    /// The head that it has now.
    pub head: NodeId,
    /// The chain from then on, head first.
    pub chain: Vec<NodeId>,
}

/// The copies of a chain, as its volume says.
struct Counts {
    /// So many it is to have.
    copies: u8,
    /// The active view needs the answers of all its members.
    is_of_all: bool,
}

impl Counts {
    fn of(volume: &Volume, shard: &Shard) -> Self {
        let len = shard.view_members().len();
        Self { copies: volume.copies, is_of_all: volume.quorum(len) == len }
    }
}

impl Shard {
    /// The chain becomes this one. Who leaves it is away: of those the last have everything, as a chain of this quorum has it.
    fn leave(&mut self, chain: Vec<NodeId>, of: &Counts, mutant: Option<Mutant>) {
        if self.members == chain {
            return;
        }
        if self.active.0 > 0 && self.active_members.is_empty() {
            self.active_members.clone_from(&self.members);
        }
        let has_all: Vec<NodeId> =
            self.active_members.iter().filter(|n| self.has_all(n, of.is_of_all)).copied().collect();
        let leaves = |n: &&NodeId| !chain.contains(n);
        let last: Vec<NodeId> = has_all.iter().filter(leaves).copied().collect();
        // One that was to come, or is new in the view, lacks most. What it has learned stays where it is; and what one has that was not
        // looked at is not known.
        let is_of_view = |n: &NodeId| self.active_members.contains(n);
        let is_new = |n: &&NodeId| !is_of_view(n) || self.learning.contains(n) || self.unseen.contains(n);
        let comes_last = |n: &&NodeId| leaves(n) && is_new(n) && !last.contains(n) && !self.away.contains(n);
        let stood_in = |n: &&NodeId| self.standing.contains(n);
        let new: Vec<NodeId> = self.members.iter().filter(|n| comes_last(n) && !stood_in(n)).copied().collect();
        if mutant != Some(Mutant::AwayForgotten) {
            self.away.retain(|n| !last.contains(n));
            self.away.splice(0..0, new);
            self.away.extend(last);
        }
        self.keepers.retain(|n| !chain.contains(n) && !self.away.contains(n));
        self.members = chain;
        self.joining.retain(|n| self.members.contains(n) && !has_all.contains(n));
        self.tidy_away();
        self.pending = None;
        self.stay(of.copies);
    }

    /// True of a member of the active view that has everything: also of one that a plan leaves out, which is not active yet. A view
    /// that needs the answers of all its members (`is_of_all`) became active because each of them had everything, those that were
    /// new in it, too, whether that was told or not.
    fn has_all(&self, node: &NodeId, is_of_all: bool) -> bool {
        let is_new = self.learning.contains(node);
        if is_new && is_of_all && self.view_members().contains(node) {
            return true;
        }
        let is_planned = self.active_members.is_empty() || self.members.contains(node);
        // Of one that was not looked at it is not known any more whether it had everything when it left.
        let is_away = self.away.contains(node) && !self.unseen.contains(node);
        !is_new && !self.joining.contains(node) && (is_planned || is_away || self.keepers.contains(node))
    }

    /// A member that has everything is not away; and of too many the first that left are forgotten.
    pub(crate) fn tidy_away(&mut self) {
        let (members, joining) = (&self.members, &self.joining);
        self.away.retain(|n| !members.contains(n) || joining.contains(n));
        let over = self.away.len().saturating_sub(common::CHAIN_MEMBERS_MAX);
        self.away.drain(..over);
    }

    /// The plan without those that are to stand in, and have not been in a view yet.
    fn planned_without_new_stand_ins(&self) -> Vec<NodeId> {
        let is_new = |n: &&NodeId| self.standing.contains(n) && !self.view_members().contains(n);
        self.members.iter().filter(|n| !is_new(n)).copied().collect()
    }

    /// The last one that left and is there: it lacks least.
    pub(crate) fn returning(&self, is_there: impl Fn(&NodeId) -> bool) -> Option<NodeId> {
        self.away.iter().rev().copied().find(|n| is_there(n) && !self.members.contains(n))
    }

    /// True if nobody learns but members that were away: these lack little.
    pub(crate) fn only_returns(&self) -> bool {
        self.learners().all(|n| self.away.contains(n))
    }

    /// True if somebody learns everything.
    pub(crate) fn is_learned(&self) -> bool {
        !self.only_returns()
    }
}

impl State {
    /// The members of the active view that go on without the others, if it is to be left (V11).
    fn chain_of_whole(
        &self,
        volume: &Volume,
        shard: &Shard,
        failed: &BTreeSet<NodeId>,
        mutant: Option<Mutant>,
    ) -> Option<Vec<NodeId>> {
        let of_view = shard.view_members();
        let is_there = |n: &NodeId| !failed.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let of_all = Counts::of(volume, shard).is_of_all;
        let is_whole = |n: &NodeId| shard.has_all(n, of_all) || mutant == Some(Mutant::LearnersStay);
        let whole: Vec<NodeId> = of_view.iter().copied().filter(|n| is_there(n) && is_whole(n)).collect();
        let quorum = volume.quorum(of_view.len());
        // Who stands in answers as others do, where anybody is left that has everything (V21).
        let standing = of_view.iter().filter(|n| is_there(n) && shard.standing.contains(n)).count();
        let answering = if whole.is_empty() { 0 } else { whole.len() + standing };
        // After a rebuild of the control state one that was never started is not there, either.
        if of_view.iter().all(is_there) || answering >= quorum {
            return None;
        }
        let least = if mutant == Some(Mutant::LeavesBelowLeast) { 1 } else { usize::from(volume.min_copies).max(1) };
        // An empty log counts only of a member that was new in the view; of one that was not looked at nothing does.
        let may_answer = |n: &NodeId| shard.has_all(n, of_all) || shard.learning.contains(n);
        let counts = |n: &&NodeId| is_there(n) && !shard.unseen.contains(n) && may_answer(n);
        let is_sealed = of_view.iter().filter(counts).count() + quorum > of_view.len();
        // Before the first view there is nothing that could not be answered, and no chain to reckon from.
        let is_under_way = shard.forced.is_some() || shard.active.0 == 0;
        let may_be_sealed = is_sealed || mutant == Some(Mutant::LeavesUnsealed);
        if whole.len() < least || !may_be_sealed || is_under_way {
            return None;
        }
        // Of a plan that is these already nothing changes, whoever of them leads.
        let at = |n: &NodeId| shard.members.iter().position(|m| m == n).unwrap_or(usize::MAX);
        let mut chain = whole;
        chain.sort_by_key(at);
        Some(chain)
    }

    /// The chain without those that were to come to it and have failed (V14). One that has never been a member goes on learning
    /// until the view with it is being opened, or somebody is back who lacks less.
    fn chain_of_those_coming(&self, shard: &Shard, failed: &BTreeSet<NodeId>) -> Option<Vec<NodeId>> {
        let is_back = |n: &NodeId| !failed.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let keeps_out = shard.returning(is_back).is_some();
        let holds_up = |n: &NodeId| shard.away.contains(n) || shard.pending.is_some() || keeps_out;
        let stays = |n: &&NodeId| !failed.contains(*n) || shard.view_members().contains(n) || !holds_up(n);
        shard.grows().then(|| shard.members.iter().filter(stays).copied().collect())
    }

    /// The chain of the active view again, those that are there first, if stand-ins were to come to it, and another member has failed
    /// before their view is active: it would wait for them to learn (V21).
    fn chain_without_new_stand_ins(
        &self,
        volume: &Volume,
        shard: &Shard,
        failed: &BTreeSet<NodeId>,
    ) -> Option<Vec<NodeId>> {
        let is_there = |n: &NodeId| !failed.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let (quorum, plan) = (volume.quorum(shard.members.len()), shard.planned_without_new_stand_ins());
        if plan.len() == shard.members.len() || plan.iter().filter(|n| is_there(n)).count() >= quorum {
            return None;
        }
        let learns = |n: &NodeId| shard.joining.contains(n) || shard.learning.contains(n);
        let mut chain = shard.active_members.clone();
        chain.sort_by_key(|n| (learns(n), !is_there(n)));
        let may_lead = |head: &NodeId| is_there(head) && !learns(head);
        chain.first().is_some_and(may_lead).then_some(chain).filter(|_| shard.forced.is_none())
    }

    /// Shards whose chains become shorter when these nodes have failed, with what is left of them: those of which nothing can
    /// be answered (V11), and those to which a failed one was to come (V14).
    #[must_use]
    pub fn leavers(&self, failed: &BTreeSet<NodeId>) -> Vec<Leaving> {
        self.leavers_with(failed, None)
    }

    /// The same with a rule left out, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn leavers_with(&self, failed: &BTreeSet<NodeId>, mutant: Option<Mutant>) -> Vec<Leaving> {
        let of = |v: &Volume, s: &Shard| {
            let coming = || self.chain_of_those_coming(s, failed).filter(|_| mutant != Some(Mutant::ComingHoldsUp));
            let undone = || self.chain_without_new_stand_ins(v, s, failed);
            let chain = self.chain_of_whole(v, s, failed, mutant).or_else(coming).or_else(undone)?;
            let is_other = chain != s.members;
            is_other.then_some(Leaving { shard: v.shard_id(s.index), head: s.head()?, chain })
        };
        self.volumes().flat_map(|v| v.shards.iter().filter_map(|s| of(v, s))).collect()
    }

    /// The members that have everything and are there, in a plan of a shorter chain that does not become active: those that are back
    /// first, for the head of the plan has had its time. `None` if the plan has them all. One of them alone may be unable to lead, or
    /// to seal.
    #[must_use]
    pub fn regrown(&self, id: ShardId, failed: &BTreeSet<NodeId>) -> Option<Leaving> {
        let (volume, shard) = (self.volume(id.volume)?, self.shard(id)?);
        let of_all = Counts::of(volume, shard).is_of_all;
        let is_of_view = |n: &NodeId| shard.active_members.contains(n);
        let plan = shard.planned_without_new_stand_ins();
        let is_shorter = plan.len() < shard.active_members.len() && plan.iter().all(is_of_view);
        if shard.active.0 == 0 || shard.forced.is_some() || !is_shorter {
            return None;
        }
        let is_there = |n: &NodeId| !failed.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let is_back = |n: &&NodeId| is_there(n) && shard.has_all(n, of_all) && !shard.members.contains(n);
        let back: Vec<NodeId> = shard.active_members.iter().filter(is_back).copied().collect();
        let chain = [&back, &plan[..]].concat();
        (!back.is_empty()).then_some(Leaving { shard: id, head: shard.head()?, chain })
    }

    /// The members of the active view alone, if others are to come to them and the head has to open a view now: with these in it that
    /// would wait until they have everything (V14). They keep what they have learned, and come again to that view.
    #[must_use]
    pub fn without_those_coming(&self, id: ShardId) -> Option<Leaving> {
        let shard = self.shard(id)?;
        // A head that has a view opens the next one when they have everything.
        let may_go_on = self.is_led(shard) && (shard.pending.is_some() || self.is_open(shard));
        if !shard.grows() || shard.forced.is_some() || may_go_on {
            return None;
        }
        let stays = |n: &&NodeId| shard.active_members.contains(n);
        let chain = shard.members.iter().filter(stays).copied().collect();
        Some(Leaving { shard: id, head: shard.head()?, chain })
    }

    /// All such chains become shorter, or those of these shards, if their active views are still these; of these also plans become
    /// longer again that don't become active, and those go on alone that have to open a view before others have come. A node that was
    /// started again since is not meant.
    pub(crate) fn leave_chains(
        &mut self,
        failed: &[(NodeId, StartNumber)],
        shards: &[(ShardId, ViewNumber)],
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        if failed.len() > limits::FAILED_NODES_MAX || shards.len() > limits::LEFT_SHARDS_MAX {
            let (nodes, most) = (limits::FAILED_NODES_MAX, limits::LEFT_SHARDS_MAX);
            return Err(Error::invalid(format!("at most {nodes} nodes leave at a time, and {most} shards by name")));
        }
        let failed = self.still(failed);
        let active = |id: ShardId| self.shard(id).map(|s| s.active);
        let named = |id: &ShardId| shards.iter().any(|(shard, view)| shard == id && active(*id) == Some(*view));
        let mut leaving = self.leavers_with(&failed, mutant);
        leaving.retain(|l| shards.is_empty() || named(&l.shard));
        let others: BTreeSet<ShardId> = shards.iter().map(|(id, _)| *id).filter(|id| named(id)).collect();
        let is_left = |id: &ShardId| leaving.iter().any(|l| l.shard == *id);
        let other = |id: &ShardId| self.regrown(*id, &failed).or_else(|| self.without_those_coming(*id));
        let others: Vec<Leaving> = others.iter().filter(|id| !is_left(id)).filter_map(other).collect();
        leaving.extend(others);
        leaving.sort_by_key(|l| l.shard);
        let mut changed: Vec<Volume> = Vec::new();
        for Leaving { shard: id, chain, .. } in leaving {
            if changed.last().is_none_or(|v| v.id != id.volume) {
                changed.push(self.volume_to_change(id.volume)?);
            }
            let volume = changed.last_mut().expect("pushed above");
            let shard = shard_of(volume, id)?.clone();
            let of = Counts::of(volume, &shard);
            shard_of(volume, id)?.leave(chain, &of, mutant);
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }
}

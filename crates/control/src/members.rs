//! Members that take the places of others (rules V1, V2, V7): pure functions of the state, each applied in one entry.
//!
//! A new member goes to the end of the chain and is *joining*: its view may be active, for those before it are enough,
//! and it learns everything from them. Until it has, it leads nothing, and whoever was a member before keeps what it
//! has. Who seals a view is its own members, whatever the chain is to be next.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::mutant::Mutant;
use crate::placement::Loads;
use crate::state::{Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber, ViewNumber, limits as common};
use std::collections::BTreeSet;

impl Shard {
    /// A node that was a member before is not needed any more once nobody learns, and the view of all of them is active. The only
    /// member of a branch may have a log that had lost something: of a volume that is to have other `copies`, what others have
    /// is kept until there is another one. Nor does a chain that became shorter say anything of those who learned in it: until it has
    /// its copies again all is kept.
    pub(crate) fn let_go(&mut self, copies: u8, mutant: Option<Mutant>) {
        let is_complete = self.joining.is_empty() || mutant == Some(Mutant::KeepersLetGo);
        let is_of_branch = self.branch.is_some_and(|b| copies > 1 || b.view == self.active);
        let is_alone = self.members.len() == 1 && is_of_branch;
        let has_its_copies = self.members.len() >= usize::from(copies);
        let is_long_enough = has_its_copies || self.away.is_empty() || mutant == Some(Mutant::KeepersLetGo);
        if is_complete && !is_alone && is_long_enough && self.active_members.is_empty() {
            self.keepers.clear();
        }
        if has_its_copies && self.joining.is_empty() && self.active_members.is_empty() {
            self.away.clear();
        }
    }

    /// Only who has everything may lead (V1).
    pub(crate) fn may_lead(&self, id: ShardId, node: NodeId, mutant: Option<Mutant>) -> Result<()> {
        match self.joining.contains(&node) && mutant != Some(Mutant::LearnersLead) {
            true => Err(Error::retry(format!("node {node} is still learning what shard {id} has; try it later"))),
            false => Ok(()),
        }
    }

    /// `new` takes the place of `old`. `is_clone`: there is something to learn before the first view, too.
    fn replace(&mut self, old: NodeId, new: NodeId, is_clone: bool, mutant: Option<Mutant>) {
        if self.active.0 > 0 && self.active_members.is_empty() {
            self.active_members = self.members.clone();
        }
        let had_everything = !self.joining.contains(&old);
        self.members.retain(|m| *m != old);
        self.joining.retain(|m| *m != old);
        self.keepers.retain(|m| *m != new);
        if self.active.0 > 0 || is_clone {
            self.joining.push(new);
            if had_everything {
                self.keepers.push(old);
            }
        }
        self.members.push(new);
        let joining = &self.joining;
        let is_last = mutant != Some(Mutant::NewMembersFirst);
        self.members.sort_by_key(|m| joining.contains(m) == is_last);
        self.pending = None;
    }
}

impl Shard {
    /// True if members are to come to those of the active view, all of which stay: that goes on until they have everything.
    pub(crate) fn grows(&self) -> bool {
        let before = &self.active_members;
        let is_new = |n: &NodeId| !before.contains(n) && self.joining.contains(n);
        !before.is_empty()
            && before.iter().all(|n| self.members.contains(n))
            && self.members.iter().all(|n| before.contains(n) || is_new(n))
            && self.members.len() > before.len()
    }

    /// The one that is to come does not, and nothing hangs on it yet.
    fn retract(&mut self, new: NodeId, copies: u8) {
        self.members.retain(|n| *n != new);
        self.joining.retain(|n| *n != new);
        self.pending = None;
        self.stay(copies);
    }

    /// If the chain is that of the active view again, no other view has to follow.
    pub(crate) fn stay(&mut self, copies: u8) {
        if self.forced.is_none() && self.members == self.active_members {
            self.active_members.clear();
            self.let_go(copies, None);
        }
    }

    /// `new` comes to those that are there.
    pub(crate) fn extend(&mut self, new: NodeId) {
        self.active_members = self.members.clone();
        self.keepers.retain(|m| *m != new);
        self.joining.push(new);
        self.members.push(new);
        self.pending = None;
    }
}

impl State {
    /// True if a shard has gone on by force, or is to.
    pub(crate) fn has_branches(&self) -> bool {
        self.volumes.values().any(|v| v.shards.iter().any(|s| s.forced.is_some() || s.branch.is_some()))
    }

    pub(crate) fn has_changing_members(&self) -> bool {
        let changes = |s: &Shard| !(s.active_members.is_empty() && s.joining.is_empty() && s.keepers.is_empty());
        self.volumes.values().any(|v| v.shards.iter().any(changes))
    }

    /// True if anybody has left a chain that became shorter, and is not back.
    pub(crate) fn has_away(&self) -> bool {
        self.volumes.values().any(|v| v.shards.iter().any(|s| !s.away.is_empty()))
    }

    /// True if anybody stands in for another one.
    pub(crate) fn has_standing(&self) -> bool {
        self.volumes.values().any(|v| v.shards.iter().any(|s| !s.standing.is_empty()))
    }

    /// All nodes that left a chain that became shorter, and are not back.
    #[must_use]
    pub fn away_nodes(&self) -> BTreeSet<NodeId> {
        self.volumes.values().flat_map(|v| v.shards.iter().flat_map(|s| s.away.iter().copied())).collect()
    }

    /// Those of them that are out of such a chain now: the others are on their way back to all.
    #[must_use]
    pub fn left_nodes(&self) -> BTreeSet<NodeId> {
        let left = |s: &Shard| s.away.iter().filter(|n| !s.members.contains(n)).copied().collect::<Vec<_>>();
        self.volumes.values().flat_map(|v| v.shards.iter().flat_map(left)).collect()
    }

    /// The member to be replaced and the one in its place, if there is something to be done: those that are left can
    /// go on, and there is a node to spare. A former member comes first, for it has the most; then who carries least.
    fn replacement(
        &self,
        volume: &Volume,
        shard: &Shard,
        (gone, failed): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
        loads: &Loads,
    ) -> Option<(NodeId, NodeId)> {
        let is_there =
            |n: &NodeId| !gone.contains(n) && !failed.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let old = *shard.members.iter().rev().find(|m| gone.contains(m))?;
        let whole = shard.members.iter().filter(|m| is_there(m) && !shard.joining.contains(m)).count();
        let sealed = shard.view_members().iter().filter(|m| is_there(m)).count();
        // A node that is still to come to a view takes nothing from it.
        let is_to_come = shard.grows() && !shard.view_members().contains(&old);
        let is_held = is_to_come || whole >= volume.quorum(shard.members.len());
        if !is_held || sealed < volume.quorum(shard.view_members().len()) {
            return None;
        }
        if shard.keepers.len() >= common::CHAIN_MEMBERS_MAX {
            return None;
        }
        Some((old, self.spare(shard, is_there, loads)?))
    }

    /// The node that is to be a member next: the heir of one that drains, or else a former member, for it has the most, else who
    /// carries least.
    pub(crate) fn spare(&self, shard: &Shard, is_there: impl Fn(&NodeId) -> bool, loads: &Loads) -> Option<NodeId> {
        let may_come = |n: &NodeId| is_there(n) && !self.drains(*n) && !shard.members.contains(n);
        let drains = shard.members.iter().chain(&shard.away).filter_map(|m| self.nodes.get(m)).filter(|n| n.drains);
        let heir = drains.filter_map(|n| n.heir).find(may_come);
        if heir.is_some() {
            return heir;
        }
        let spare = self.nodes.keys().copied().filter(may_come);
        spare.min_by_key(|n| {
            let load = loads.of(*n);
            let has_some = shard.keepers.contains(n) || shard.away.contains(n);
            (!has_some, load.copies, load.heads, *n)
        })
    }

    /// Shards whose chains are shorter than their volumes are to have them (V10, V11), and the nodes that come to them while
    /// these are away, as many as may be learned at a time. Of a shard one at a time. Who left comes before others, and the
    /// places of those of `waited` that left are kept (V13).
    #[must_use]
    pub fn extensions(&self, away: &BTreeSet<NodeId>, waited: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId)> {
        let is_there = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let returns = |s: &&Shard| s.learners().next().is_some() && s.only_returns();
        let returning: usize = self.volumes().map(|v| v.shards.iter().filter(returns).count()).sum();
        let mut room = self.room_to_learn();
        let mut room_to_return = limits::RETURNING_SHARDS_MAX.saturating_sub(returning);
        let mut loads = self.loads.clone();
        let (mut out, volumes) = (Vec::new(), self.volumes());
        for (volume, shard) in volumes.flat_map(|v| v.shards.iter().map(move |s| (v, s))) {
            let nobody_learns = shard.learners().next().is_none();
            let is_settled = shard.active.0 > 0 && nobody_learns && shard.active_members.is_empty();
            // Before the head has opened its view that would wait for who comes (V14). Where nobody ever left it was always so.
            let is_settled = is_settled && (shard.away.is_empty() || self.is_open(shard));
            let copies = usize::from(volume.copies);
            // Who stands in leaves for who is back.
            let places = (copies + shard.standing.len()).saturating_sub(shard.members.len());
            let there = shard.members.iter().filter(|n| is_there(n)).count();
            // The view that they are in goes on until the new one has everything, and then that one counts.
            let len = shard.members.len();
            let is_held = there >= volume.quorum(len) && there + 1 >= volume.quorum(len + 1);
            if !is_settled || places == 0 || !is_held {
                continue;
            }
            let stays = |n: &NodeId| is_there(n) && !self.drains(*n);
            let returning = shard.returning(stays);
            let kept = shard.away.iter().filter(|n| waited.contains(n) && !self.drains(**n)).count();
            let room = if returning.is_some() { &mut room_to_return } else { &mut room };
            let other = || self.spare(shard, is_there, &loads).filter(|_| places > kept.max(shard.standing.len()));
            // One that is being emptied is better than none.
            let drained = || shard.returning(is_there);
            if let Some(new) = returning.or_else(other).or_else(drained).filter(|_| *room > 0) {
                *room -= 1;
                loads.add_member(new);
                out.push((volume.shard_id(shard.index), new));
            }
        }
        out
    }

    /// Places that other nodes take when these have been gone for too long, as many as may be learned at a time: the
    /// shard, who leaves it and who comes. Of a shard one at a time.
    #[must_use]
    pub fn replacements(&self, gone: &BTreeSet<NodeId>, failed: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId, NodeId)> {
        // Those that return lack little, and have room of their own.
        let is_busy = |s: &&Shard| s.is_learned();
        let mut room = self.room_to_learn();
        let (mut out, mut loads) = (Vec::new(), self.loads.clone());
        for volume in self.volumes() {
            for shard in &volume.shards {
                let may = room > 0 || is_busy(&shard);
                let found = self.replacement(volume, shard, (gone, failed), &loads).filter(|_| may);
                let Some((old, new)) = found else { continue };
                room = room.saturating_sub(usize::from(!is_busy(&shard)));
                loads.add_member(new);
                out.push((volume.shard_id(shard.index), old, new));
            }
        }
        out
    }

    /// Nodes that were to come to a chain beside those that are there, and are gone; nobody takes their places.
    #[must_use]
    pub fn retractions(&self, gone: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId)> {
        let of = |v: &Volume, s: &Shard| {
            let is_to_come = |n: &&NodeId| s.grows() && gone.contains(n) && !s.active_members.contains(n);
            s.members.iter().rev().find(is_to_come).map(|n| (v.shard_id(s.index), *n))
        };
        self.volumes().flat_map(|v| v.shards.iter().filter_map(|s| of(v, s))).collect()
    }

    /// Who was started again since is neither gone nor failed.
    pub(crate) fn replace_members(
        &mut self,
        gone: &[(NodeId, StartNumber)],
        failed: &[(NodeId, StartNumber)],
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        if gone.len() + failed.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let mut changed: Vec<Volume> = Vec::new();
        let replaced = self.replacements(&self.still(gone), &self.still(failed));
        for (id, old, new) in &replaced {
            if changed.last().is_none_or(|v| v.id != id.volume) {
                changed.push(self.volume_to_change(id.volume)?);
            }
            let volume = changed.last_mut().expect("pushed above");
            let is_clone = volume.origin.is_some();
            shard_of(volume, *id)?.replace(*old, *new, is_clone, mutant);
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        for (id, new) in self.retractions(&self.still(gone)) {
            // Of a shard one at a time.
            if replaced.iter().all(|(of, ..)| *of != id) {
                let mut volume = self.volume_to_change(id.volume)?;
                let copies = volume.copies;
                shard_of(&mut volume, id)?.retract(new, copies);
                self.commit(volume);
            }
        }
        Ok(Outcome::Moved)
    }

    /// Those that were not started again since.
    pub(crate) fn still(&self, of: &[(NodeId, StartNumber)]) -> BTreeSet<NodeId> {
        of.iter().filter(|n| self.node(n.0).is_some_and(|known| known.start == n.1)).map(|n| n.0).collect()
    }

    /// Members come to the chains that are too short; none of those that are away, if they were not started again since.
    pub(crate) fn extend_chains(
        &mut self,
        away: &[(NodeId, StartNumber)],
        waited: &[(NodeId, StartNumber)],
    ) -> Result<Outcome> {
        if away.len().max(waited.len()) > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let (away, waited) = (self.still(away), self.still(waited));
        self.settle(&away, &waited)?;
        let mut changed: Vec<Volume> = Vec::new();
        for (id, new) in self.extensions(&away, &waited) {
            if changed.last().is_none_or(|v| v.id != id.volume) {
                changed.push(self.volume_to_change(id.volume)?);
            }
            let volume = changed.last_mut().expect("pushed above");
            shard_of(volume, id)?.extend(new);
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }

    /// Only of the active view, and only if it is the one of these members: in another one they may lack something.
    pub(crate) fn members_complete(
        &mut self,
        shard: ShardId,
        view: ViewNumber,
        nodes: &[NodeId],
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        let mut volume = self.volume_to_change(shard.volume)?;
        let copies = volume.copies;
        let s = shard_of(&mut volume, shard)?;
        let is_present = view.0 > 0 && s.active == view && s.active_members.is_empty();
        if !is_present && mutant != Some(Mutant::CompleteForEver) {
            return Err(Error::fenced(format!("view {view} of shard {shard} is not the one of its present members")));
        }
        let before = s.joining.len();
        s.joining.retain(|n| !nodes.contains(n));
        s.tidy_away();
        s.learning.retain(|n| !nodes.contains(n));
        s.unseen.retain(|n| !nodes.contains(n));
        if s.joining.len() < before {
            s.let_go(copies, mutant);
            self.commit(volume);
        }
        Ok(Outcome::Moved)
    }
}

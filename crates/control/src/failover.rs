//! What becomes of the chains of nodes that have failed: pure functions of the state, each applied in one entry.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::mutant::Mutant;
use crate::state::{Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber, ViewNumber};
use std::collections::BTreeSet;

impl State {
    /// Whether a member can't be counted on: it has failed, or never ran.
    fn is_gone(&self, node: NodeId, failed: &BTreeSet<NodeId>) -> bool {
        failed.contains(&node) || self.node(node).is_none_or(|n| n.start.0 == 0)
    }

    /// The chain with those in front that are left, in their order, those that have everything before those that don't
    /// (V1), and then those that are gone, since they may come back. `None` if so few are left that the shard could not be
    /// written anyway: then it stays as it is, and goes on under whoever of the quorum comes back first.
    fn chain_of_those_left(
        &self,
        volume: &Volume,
        shard: &Shard,
        failed: &BTreeSet<NodeId>,
        mutant: Option<Mutant>,
    ) -> Option<Vec<NodeId>> {
        let (gone, mut left): (Vec<NodeId>, Vec<NodeId>) =
            shard.members.iter().partition(|m| self.is_gone(**m, failed));
        if left.len() < volume.quorum(shard.members.len()) {
            return None;
        }
        if mutant != Some(Mutant::LearnersLead) {
            left.sort_by_key(|n| shard.joining.contains(n));
        }
        left.extend(gone);
        // Only who has everything leads.
        let may_lead = |head: &NodeId| !shard.joining.contains(head) || mutant == Some(Mutant::LearnersLead);
        left.first().is_some_and(may_lead).then_some(left)
    }

    /// The chain without a head that has failed; `None` if the head has not, or the chain stays.
    fn chain_without(
        &self,
        volume: &Volume,
        shard: &Shard,
        failed: &BTreeSet<NodeId>,
        mutant: Option<Mutant>,
    ) -> Option<Vec<NodeId>> {
        let head = shard.head().filter(|h| failed.contains(h))?;
        self.chain_of_those_left(volume, shard, failed, mutant).filter(|chain| chain.first() != Some(&head))
    }

    /// Shards that get another head when these nodes have failed, with the present head and the next one.
    #[must_use]
    pub fn heads_without(&self, failed: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId, NodeId)> {
        let mut moved = Vec::new();
        for volume in self.volumes() {
            for shard in &volume.shards {
                if let (Some(head), Some(chain)) = (shard.head(), self.chain_without(volume, shard, failed, None)) {
                    moved.push((volume.shard_id(shard.index), head, chain[0]));
                }
            }
        }
        moved
    }

    /// True if the shard's head has opened the active view, in its present start.
    pub(crate) fn is_led(&self, shard: &Shard) -> bool {
        let is_of = |head: NodeId| {
            let node = self.node(head);
            shard.opened_by.is_none_or(|by| by == head) && node.is_some_and(|n| n.start == shard.head_start)
        };
        shard.active.0 > 0 && shard.head().is_some_and(is_of)
    }

    /// True if it has, and no other view was begun since: all may have promised that, whether it is still pending or was given up.
    pub(crate) fn is_open(&self, shard: &Shard) -> bool {
        self.is_led(shard) && shard.highest == shard.active
    }

    /// Shards that can't be written, because their head has not opened a view since it was named, or was started, or began
    /// another one: with that head and the active view.
    #[must_use]
    pub fn unopened(&self) -> Vec<(ShardId, NodeId, ViewNumber)> {
        // One that is to have another chain answers nothing before that (V11), but while members come to the one that it has.
        let is_to_change = |s: &Shard| !s.active_members.is_empty() && !s.grows();
        let is_to_be_shorter = |s: &Shard| s.members.len() < s.active_members.len();
        let waits = |s: &Shard| match s.forced {
            Some(_) => is_to_be_shorter(s) || !self.is_led(s),
            None => is_to_change(s) || !self.is_open(s),
        };
        let of = |v: &Volume, s: &Shard| {
            let head = s.head().filter(|_| waits(s))?;
            Some((v.shard_id(s.index), head, s.active))
        };
        self.volumes().flat_map(|v| v.shards.iter().filter_map(|s| of(v, s))).collect()
    }

    /// The member behind the head that could be head in its place, if enough of them are left.
    #[must_use]
    pub fn next_head(&self, shard: ShardId, failed: &BTreeSet<NodeId>) -> Option<NodeId> {
        let volume = self.volume(shard.volume)?;
        let s = volume.shard(shard.index)?;
        self.chain_of_those_left(volume, s, failed, None)?;
        s.members[1..].iter().copied().find(|m| !self.is_gone(*m, failed) && !s.joining.contains(m))
    }

    /// What was pending is void (rule V6).
    pub(crate) fn replace_head(
        &mut self,
        shard: ShardId,
        (head, active): (NodeId, ViewNumber),
        node: NodeId,
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        let mut volume = self.volume_to_change(shard.volume)?;
        let s = shard_of(&mut volume, shard)?;
        if s.head() != Some(head) || s.active != active {
            return Err(Error::fenced(format!("shard {shard} has another head or another active view by now")));
        }
        let Some(at) = s.members.iter().position(|m| *m == node) else {
            return Err(Error::invalid(format!("node {node} is no member of shard {shard}; its head is one of them")));
        };
        if at > 0 {
            s.may_lead(shard, node, mutant)?;
            s.members.rotate_left(at);
            s.pending = None;
            self.commit(volume);
        }
        Ok(Outcome::Moved)
    }

    /// Every shard whose head has failed gets the next member as head, and what was pending is void (rule V6). A node
    /// that was started again since is not meant.
    pub(crate) fn fail_over(&mut self, nodes: &[(NodeId, StartNumber)], mutant: Option<Mutant>) -> Result<Outcome> {
        if nodes.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let same = |n: &&(NodeId, StartNumber)| self.node(n.0).is_some_and(|known| known.start == n.1);
        let failed: BTreeSet<NodeId> = nodes.iter().filter(same).map(|n| n.0).collect();
        let mut changed = Vec::new();
        for volume in self.volumes() {
            let mut new: Option<Volume> = None;
            for shard in &volume.shards {
                if let Some(chain) = self.chain_without(volume, shard, &failed, mutant) {
                    let new = new.get_or_insert_with(|| (**volume).clone());
                    let shard = &mut new.shards[shard.index as usize];
                    shard.members = chain;
                    shard.pending = None;
                }
            }
            changed.extend(new);
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }
}

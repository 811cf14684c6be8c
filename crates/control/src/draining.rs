//! Nodes that are being emptied: nothing new comes to them, and others take their places, one shard after the other.
//!
//! A node that drains is there as before: it leads, answers and is learned from. Another one comes to the chain beside it and
//! learns everything, as when a chain that is too short gets a member; and only when that one has everything the node that drains
//! leaves. So at no time there are fewer copies than before. One that has failed meanwhile is replaced at once, like one that is
//! gone for good.
//!
//! Invariants: a member leaves only if as many others have everything as the volume is to have copies; and a node drains only if
//! there are nodes for that.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::state::{Node, Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Volumes that an error names.
const NAMED_MAX: usize = 5;

/// The next step of a shard with a member that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// This node comes to the chain, and learns.
    Comes(NodeId),
    /// This member leaves it.
    Leaves(NodeId),
}

impl Shard {
    /// The member leaves for good. It keeps what it has until the view without it is active.
    fn part(&mut self, node: NodeId) {
        self.active_members.clone_from(&self.members);
        self.members.retain(|n| *n != node);
        self.keepers.push(node);
        self.pending = None;
    }
}

impl State {
    /// True if the node is being emptied.
    #[must_use]
    pub fn drains(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.drains)
    }

    /// All nodes that are being emptied.
    #[must_use]
    pub fn draining(&self) -> BTreeSet<NodeId> {
        self.nodes.values().filter(|n| n.drains).map(|n| n.id).collect()
    }

    /// Nodes that have run and are not being emptied, whether they are there or not.
    fn homes(&self) -> usize {
        self.nodes.values().filter(|n| n.start.0 > 0 && !n.drains).count()
    }

    /// Shards of which a node has, or may have, something that others need.
    #[must_use]
    pub fn shards_at(&self, node: NodeId) -> usize {
        let is_at = |s: &&Shard| [&s.members, &s.active_members, &s.keepers, &s.away].iter().any(|l| l.contains(&node));
        self.volumes.values().map(|v| v.shards.iter().filter(is_at).count()).sum()
    }

    pub(crate) fn drain_node(&mut self, id: NodeId, drains: bool) -> Result<Outcome> {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return Err(Error::not_found(format!("there is no node {id}; `freebs status` shows those there are")));
        };
        if node.drains == drains {
            return Ok(Outcome::Moved);
        }
        if drains {
            self.has_room_without(&node)?;
        }
        self.revision += 1;
        self.nodes.insert(id, Arc::new(Node { drains, changed: self.revision, ..(*node).clone() }));
        Ok(Outcome::Moved)
    }

    /// `NoSpace` if a volume would have fewer copies than it can have now.
    fn has_room_without(&self, node: &Node) -> Result<()> {
        let homes = self.homes();
        let left = homes.saturating_sub(usize::from(node.start.0 > 0 && !node.drains));
        let needs = |v: &Volume| usize::from(v.copies).min(homes);
        let short: Vec<&Arc<Volume>> = self.volumes.values().filter(|v| needs(v) > left).collect();
        let Some(most) = short.iter().map(|v| needs(v)).max() else { return Ok(()) };
        let mut names: Vec<&str> = short.iter().take(NAMED_MAX).map(|v| v.name.as_str()).collect();
        if short.len() > names.len() {
            names.push("…");
        }
        Err(Error::no_space(format!(
            "without {} there {} for copies, and {} up to {most} ({}): {} more {} needed. Add a node first",
            node.name,
            if left == 1 { "is 1 node".to_owned() } else { format!("are {left} nodes") },
            if short.len() == 1 { "a volume has".to_owned() } else { format!("{} volumes have", short.len()) },
            names.join(", "),
            most - left,
            if most - left == 1 { "is" } else { "are" },
        )))
    }

    /// The next steps of all shards with a member that drains, or with more members than its volume is to have copies, as many as
    /// may be learned at a time. Of a shard one at a time, and only where everything is settled. Nodes that are away do not come.
    #[must_use]
    pub fn drain_steps(&self, away: &BTreeSet<NodeId>) -> Vec<(ShardId, DrainStep)> {
        let learns = |s: &&Shard| !s.joining.is_empty() && !s.only_returns();
        let busy: usize = self.volumes().map(|v| v.shards.iter().filter(learns).count()).sum();
        let mut room = limits::JOINING_SHARDS_MAX.saturating_sub(busy);
        let (mut out, mut loads) = (Vec::new(), self.loads.clone());
        let is_there = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        for (volume, shard) in self.volumes().flat_map(|v| v.shards.iter().map(move |s| (v, s))) {
            let Some(step) = self.drain_step(volume, shard, is_there) else { continue };
            let id = volume.shard_id(shard.index);
            match step {
                Some(leaves) => out.push((id, DrainStep::Leaves(leaves))),
                None if room > 0 => {
                    let Some(new) = self.spare(shard, is_there, &loads) else { continue };
                    room -= 1;
                    loads.add_member(new);
                    out.push((id, DrainStep::Comes(new)));
                }
                None => {}
            }
        }
        out
    }

    /// `None` if there is nothing to do now; inside it, the member that leaves, or `None` if another one has to come first.
    fn drain_step(&self, volume: &Volume, shard: &Shard, is_there: impl Fn(&NodeId) -> bool) -> Option<Option<NodeId>> {
        let drains = shard.members.iter().rev().find(|n| self.drains(**n) && is_there(n));
        // Another one had come already when it was said that nobody is to be emptied.
        let surplus = || shard.members.last().filter(|_| shard.members.len() > usize::from(volume.copies));
        let leaves = *drains.or_else(surplus)?;
        let is_settled = shard.joining.is_empty() && shard.active_members.is_empty() && shard.learning.is_empty();
        let is_known = shard.forced.is_none() && shard.unseen.is_empty() && shard.keepers.is_empty();
        if shard.active.0 == 0 || !is_settled || !is_known || !self.is_open(shard) {
            return None;
        }
        let wanted = usize::from(volume.copies).min(self.homes());
        // Others that drain, too, stay until it is their turn.
        let stay = shard.members.iter().filter(|n| **n != leaves && !self.drains(**n)).count();
        let there = shard.members.iter().filter(|n| **n != leaves && is_there(n)).count();
        let len = shard.members.len();
        if stay >= wanted && there >= volume.quorum(len - 1) {
            return Some(Some(leaves));
        }
        // Everybody answers: those that are there count for the longer chain, too.
        let all = shard.members.iter().filter(|n| is_there(n)).count();
        let is_held = all >= volume.quorum(len) && all + 1 >= volume.quorum(len + 1);
        (stay < wanted && drains.is_some() && is_held).then_some(None)
    }

    /// All that can be done now for nodes that drain; none of those that are away comes, if it was not started again since.
    pub(crate) fn drain_chains(&mut self, away: &[(NodeId, StartNumber)]) -> Result<Outcome> {
        if away.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let mut changed: Vec<Volume> = Vec::new();
        for (id, step) in self.drain_steps(&self.still(away)) {
            if changed.last().is_none_or(|v| v.id != id.volume) {
                changed.push(self.volume_to_change(id.volume)?);
            }
            let shard = shard_of(changed.last_mut().expect("pushed above"), id)?;
            match step {
                DrainStep::Comes(new) => shard.extend(new),
                DrainStep::Leaves(old) => shard.part(old),
            }
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }
}

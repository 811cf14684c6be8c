//! Nodes that are being emptied: nothing new comes to them, and others take their places, one shard after the other.
//!
//! A node that drains is there as before: it leads, answers and is learned from. Another one comes to the chain beside it and
//! learns everything, as when a chain that is too short gets a member; and only when that one has everything the node that drains
//! leaves. So at no time there are fewer copies than before. One that has failed meanwhile is replaced at once, like one that is
//! gone for good.
//!
//! Invariants: a member leaves only if as many others are members, and have everything, as the volume is to have copies; so a
//! chain is never longer than that by more than one. A node drains only if there are nodes for all copies without it.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::limits;
use crate::state::{Node, Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber, limits as common};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Volumes that an error names.
const NAMED_MAX: usize = 5;

/// The next step of a shard with a member that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// This node comes to the chain, and learns.
    Comes(NodeId),
    /// A member leaves it.
    Leaves {
        /// The member.
        node: NodeId,
        /// The head from then on.
        head: NodeId,
    },
}

impl Shard {
    /// The member leaves for good. It keeps what it has until the view without it is active.
    fn part(&mut self, node: NodeId, head: NodeId) {
        self.active_members.clone_from(&self.members);
        self.members.retain(|n| *n != node);
        self.members.sort_by_key(|n| *n != head);
        // Who only stood in has nothing that others lack once the next view is active.
        if !self.joining.contains(&node) {
            self.keepers.push(node);
        }
        self.joining.retain(|n| *n != node);
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

    pub(crate) fn drain_node(&mut self, id: NodeId, drains: bool, heir: Option<NodeId>) -> Result<Outcome> {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return Err(Error::not_found(format!("there is no node {id}; `freebs status` shows those there are")));
        };
        // Asked again without a word of who takes the places, that stays as it was.
        let heir = heir.or(node.heir).filter(|_| drains);
        let retires = node.retires && drains;
        if (node.drains, node.heir, node.retires) == (drains, heir, retires) {
            return Ok(Outcome::Moved);
        }
        if drains && !node.drains {
            self.has_room_without(&node)?;
        }
        if heir != node.heir {
            self.can_inherit(&node, heir)?;
        }
        self.revision += 1;
        self.nodes.insert(id, Arc::new(Node { drains, heir, retires, changed: self.revision, ..(*node).clone() }));
        Ok(Outcome::Moved)
    }

    /// Refuses a node that can't take another one's places.
    fn can_inherit(&self, node: &Node, heir: Option<NodeId>) -> Result<()> {
        let Some(id) = heir else { return Ok(()) };
        let why = match self.nodes.get(&id) {
            None => format!("there is no node {id}; `freebs status` shows those there are"),
            Some(h) if h.id == node.id => format!("{} can't take its own places", h.name),
            Some(h) if h.drains => format!("{} is being emptied itself, so it takes no places", h.name),
            Some(h) if h.start.0 == 0 => format!("{} has never run; start it first", h.name),
            Some(_) => return Ok(()),
        };
        Err(Error::invalid(why))
    }

    /// `NoSpace` if there would be too few nodes for all copies of all volumes, `Invalid` if a chain could not become longer.
    fn has_room_without(&self, node: &Node) -> Result<()> {
        let full = |v: &&Arc<Volume>| {
            let is_at = v.shards.iter().any(|s| s.members.contains(&node.id));
            is_at && usize::from(v.copies) >= common::CHAIN_MEMBERS_MAX
        };
        if let Some(v) = self.volumes.values().find(full) {
            return Err(Error::invalid(format!(
                "volume {} has {} copies, as many as a volume can have, so no other node can come beside {}",
                v.name, v.copies, node.name
            )));
        }
        let left = self.homes().saturating_sub(usize::from(node.start.0 > 0 && !node.drains));
        let short: Vec<&Arc<Volume>> = self.volumes.values().filter(|v| usize::from(v.copies) > left).collect();
        let Some(most) = short.iter().map(|v| usize::from(v.copies)).max() else { return Ok(()) };
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
        let mut room = self.room_to_learn();
        let (mut out, mut loads) = (Vec::new(), self.loads.clone());
        let is_there = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        for (volume, shard) in self.volumes().flat_map(|v| v.shards.iter().map(move |s| (v, s))) {
            let Some(step) = self.drain_step(volume, shard, is_there) else { continue };
            let id = volume.shard_id(shard.index);
            match step {
                Some((node, head)) => out.push((id, DrainStep::Leaves { node, head })),
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

    /// `None` if there is nothing to do now; inside it, the member that leaves and the head from then on, or `None` if another one
    /// has to come first.
    fn drain_step(
        &self,
        volume: &Volume,
        shard: &Shard,
        is_there: impl Fn(&NodeId) -> bool,
    ) -> Option<Option<(NodeId, NodeId)>> {
        let (len, copies) = (shard.members.len(), usize::from(volume.copies));
        // Somebody is back for whom one of them stands in (V21).
        let stands_in = shard.standing.last().filter(|_| len > copies);
        let drains = || shard.members.iter().rev().find(|n| self.drains(**n) && is_there(n));
        // Another one had come already when it was said that nobody is to be emptied.
        let surplus = || shard.members.last().filter(|_| len > copies);
        let leaves = *stands_in.or_else(drains).or_else(surplus)?;
        let learns = |n: &&NodeId| stands_in.is_none() || !shard.standing.contains(n);
        let nobody_learns = !shard.joining.iter().chain(&shard.learning).any(|n| learns(&n));
        let is_settled = nobody_learns && shard.active_members.is_empty();
        let nobody_waits = stands_in.is_some() || (shard.keepers.is_empty() && shard.away.is_empty());
        let is_known = shard.forced.is_none() && shard.unseen.is_empty();
        if shard.active.0 == 0 || !is_settled || !is_known || !nobody_waits || !self.is_open(shard) {
            return None;
        }
        let others: Vec<NodeId> = shard.members.iter().filter(|n| **n != leaves && is_there(n)).copied().collect();
        if len > copies {
            let is_held = others.len() >= volume.quorum(len - 1) && len > 1;
            let head = others.iter().find(|n| !shard.joining.contains(n));
            return head.filter(|_| is_held).map(|head| Some((leaves, *head)));
        }
        // Those that are there have to be enough for the longer chain, too.
        let there = shard.members.iter().filter(|n| is_there(n)).count();
        let is_held = there >= volume.quorum(len) && there + 1 >= volume.quorum(len + 1);
        (is_held && len < common::CHAIN_MEMBERS_MAX).then_some(None)
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
                DrainStep::Leaves { node, head } => shard.part(node, head),
            }
        }
        changed.into_iter().for_each(|volume| self.commit(volume));
        Ok(Outcome::Moved)
    }
}

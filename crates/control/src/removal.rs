//! Nodes that are taken out of the cluster for good.
//!
//! Invariants: a node that is removed has nothing that others need; it never comes back under its number, and no other node gets
//! that. It gives its seat in the control plane up before: the leader removes it once no seat of it is left, so that no vote is ever
//! missed that counted. How few can vote is not known here.

use crate::command::Outcome;
use crate::limits;
use crate::state::{Node, State};
use freebs_types::{Error, NodeId, Result};
use std::sync::Arc;

/// The node that `freebs cluster init` has made: it has the authority's key.
pub const FIRST: NodeId = NodeId(1);

impl State {
    /// True if the node was a member once, and was removed.
    #[must_use]
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.joining().removed().contains(&node)
    }

    /// `Fenced` if it was: it ends for good.
    pub fn check_removed(&self, node: NodeId) -> Result<()> {
        if !self.is_removed(node) {
            return Ok(());
        }
        Err(Error::fenced(format!(
            "node {node} was removed from this cluster, and does not come back; its machine can join as a new node, with an empty \
             data directory"
        )))
    }

    /// Refuses a node that can't be removed: asked before the command is given, and again when it is applied.
    pub fn may_remove(&self, id: NodeId) -> Result<()> {
        let Some(node) = self.nodes.get(&id) else {
            return Err(Error::not_found(format!("there is no node {id}; `freebs status` shows those there are")));
        };
        let name = &node.name;
        if !self.has_authority() {
            return Err(Error::invalid(
                "the nodes of this cluster are those of its cluster file; nodes are removed from clusters that `freebs cluster \
                 init` has made",
            ));
        }
        if id == FIRST {
            return Err(Error::invalid(format!(
                "{name} has the key that nodes are certified with when they join (authority-key), so it can't be removed"
            )));
        }
        match self.shards_at(id) {
            0 if node.drains => {}
            0 => {
                return Err(Error::busy(format!(
                    "{name} may get copies at any time; `freebs node drain {name} --wait` empties it first"
                )));
            }
            n => {
                let left = if n == 1 { "a copy".to_owned() } else { format!("{n} copies") };
                return Err(Error::busy(format!(
                    "{name} has {left} that others need; `freebs node drain {name} --wait` gives them to others first"
                )));
            }
        }
        if self.joining().removed().len() >= limits::REMOVED_MAX {
            return Err(Error::no_space(format!(
                "{} nodes were removed from this cluster, as many as it can remember",
                limits::REMOVED_MAX
            )));
        }
        Ok(())
    }

    /// True if the node has no seat in the control plane, or is to have none.
    #[must_use]
    pub fn gives_up_its_seat(&self, node: NodeId) -> bool {
        self.is_removed(node) || self.nodes.get(&node).is_some_and(|n| n.retires)
    }

    /// Nodes that are removed as soon as they have no seat in the control plane any more.
    pub fn retiring(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.values().filter(|n| n.retires).map(|n| n.id)
    }

    pub(crate) fn retire_node(&mut self, id: NodeId) -> Result<Outcome> {
        if self.gives_up_its_seat(id) {
            return Ok(Outcome::Moved);
        }
        self.may_remove(id)?;
        self.revision += 1;
        if let Some(node) = self.nodes.get(&id).cloned() {
            self.nodes.insert(id, Arc::new(Node { retires: true, changed: self.revision, ..(*node).clone() }));
        }
        Ok(Outcome::Moved)
    }

    pub(crate) fn remove_node(&mut self, id: NodeId) -> Result<Outcome> {
        if self.is_removed(id) {
            return Ok(Outcome::Moved);
        }
        self.may_remove(id)?;
        if self.nodes.get(&id).is_none_or(|n| !n.retires) {
            return Err(Error::busy(format!("node {id} has not given its vote up")));
        }
        self.nodes.remove(&id);
        self.joining_mut().remove_node(id);
        self.revision += 1;
        // Watchers get the list of those there are.
        self.forgotten = self.revision;
        Ok(Outcome::Moved)
    }
}

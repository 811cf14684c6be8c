//! Where the copies of a new shard go: the nodes that carry least, in an order that only the state decides.

use crate::state::Volume;
use freebs_types::NodeId;
use std::collections::BTreeMap;

/// What one node carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub heads: u64,
    pub copies: u64,
}

/// What all nodes carry. Derived from the volumes; entries without load are not kept, so that the same volumes give
/// the same value however it was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loads {
    by_node: BTreeMap<NodeId, Load>,
    shards: usize,
}

impl Loads {
    pub fn of(&self, node: NodeId) -> Load {
        self.by_node.get(&node).copied().unwrap_or_default()
    }

    pub fn shards(&self) -> usize {
        self.shards
    }

    pub fn add(&mut self, volume: &Volume) {
        self.shards += volume.shards.len();
        volume.shards.iter().for_each(|s| self.add_chain(&s.members));
    }

    pub fn add_chain(&mut self, members: &[NodeId]) {
        for (i, node) in members.iter().enumerate() {
            let load = self.by_node.entry(*node).or_default();
            load.copies += 1;
            load.heads += u64::from(i == 0);
        }
    }

    /// One more copy, which leads nothing.
    pub fn add_member(&mut self, node: NodeId) {
        self.by_node.entry(node).or_default().copies += 1;
    }

    pub fn remove(&mut self, volume: &Volume) {
        self.shards -= volume.shards.len();
        for shard in &volume.shards {
            for (i, node) in shard.members.iter().enumerate() {
                let load = self.by_node.get_mut(node).expect("every member was added");
                load.copies -= 1;
                load.heads -= u64::from(i == 0);
                if *load == Load::default() {
                    self.by_node.remove(node);
                }
            }
        }
    }

    /// Adds those of the given nodes that carry least to a chain until it has `copies`, or has all of them.
    pub fn fill(&self, chain: &mut Vec<NodeId>, nodes: impl Iterator<Item = NodeId>, copies: usize) {
        let mut others: Vec<NodeId> = nodes.filter(|n| !chain.contains(n)).collect();
        others.sort_unstable_by_key(|n| {
            let l = self.of(*n);
            (l.copies, l.heads, *n)
        });
        let missing = copies.saturating_sub(chain.len());
        chain.extend(others.into_iter().take(missing));
    }

    /// A chain of `copies` of the given nodes: the head where fewest heads are, the others where fewest copies are.
    /// Ties go to fewer of the other kind, then to the lower id.
    pub fn choose(&self, nodes: impl Iterator<Item = NodeId>, copies: usize) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = nodes.collect();
        if nodes.is_empty() || copies == 0 {
            return Vec::new();
        }
        let head_key = |n: &NodeId| {
            let l = self.of(*n);
            (l.heads, l.copies, *n)
        };
        nodes.sort_unstable_by_key(head_key);
        nodes[1..].sort_unstable_by_key(|n| {
            let l = self.of(*n);
            (l.copies, l.heads, *n)
        });
        nodes.truncate(copies);
        nodes
    }
}

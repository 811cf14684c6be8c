//! What becomes of the chains of nodes that have failed: a pure function of the state, applied in one entry.

use crate::command::Outcome;
use crate::limits;
use crate::state::{Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber};
use std::collections::BTreeSet;

/// The chain without a head that has failed: those that are left in their order, then those that have failed, since
/// they may come back. `None` if the head is there, or so few are left that the shard could not be written anyway:
/// then it stays as it is, and goes on under whoever of the quorum comes back first.
fn chain_without(volume: &Volume, shard: &Shard, failed: &BTreeSet<NodeId>) -> Option<Vec<NodeId>> {
    if !failed.contains(&shard.head()?) {
        return None;
    }
    let (gone, mut left): (Vec<NodeId>, Vec<NodeId>) = shard.members.iter().partition(|m| failed.contains(m));
    if left.len() < volume.quorum(shard.members.len()) {
        return None;
    }
    left.extend(gone);
    Some(left)
}

impl State {
    /// Shards that get another head when these nodes have failed, and which one.
    #[must_use]
    pub fn heads_without(&self, failed: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId)> {
        let mut moved = Vec::new();
        for volume in self.volumes() {
            for shard in &volume.shards {
                if let Some(head) = chain_without(volume, shard, failed).and_then(|chain| chain.first().copied()) {
                    moved.push((volume.shard_id(shard.index), head));
                }
            }
        }
        moved
    }

    /// Every shard whose head has failed gets the next member as head, and what was pending is void (rule V6). A node
    /// that was started again since is not meant.
    pub(crate) fn fail_over(&mut self, nodes: &[(NodeId, StartNumber)]) -> Result<Outcome> {
        if nodes.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes fail at a time", limits::FAILED_NODES_MAX)));
        }
        let same = |n: &&(NodeId, StartNumber)| self.node(n.0).is_some_and(|known| known.start == n.1);
        let failed: BTreeSet<NodeId> = nodes.iter().filter(same).map(|n| n.0).collect();
        let mut changed = Vec::new();
        for volume in self.volumes() {
            let mut new: Option<Volume> = None;
            for shard in &volume.shards {
                if let Some(chain) = chain_without(volume, shard, &failed) {
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

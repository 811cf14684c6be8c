//! The shards that the control state gives to a worker of a node, and what changed since the state before.

use crate::cuts::{nothing_known, snapshots_of};
use crate::port::{branch_of, forced_of};
use freebs_chain::ShardInfo;
use freebs_control::{Shard, State, Volume};
use freebs_format::VolumeDescription;
use freebs_types::{Peer, ShardId, ViewNumber};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The shards that a worker has heard of.
pub struct Shards {
    me: Peer,
    /// Workers of this node.
    workers: u16,
    known: BTreeMap<ShardId, ShardInfo>,
    /// Revision of the newest state that was heard.
    revision: u64,
}

/// The differences of a control state from the one before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// This node keeps them no more, with the view that is active; what was promised stays. The state may be an old one:
    /// who is in a newer view stays there.
    pub left: Vec<(ShardId, ViewNumber)>,
    /// Their volumes were deleted.
    pub gone: Vec<ShardId>,
    /// New here, or something of them is another.
    pub changed: Vec<ShardInfo>,
}

impl Shards {
    /// For the worker `me` of a node that has so many `workers`.
    #[must_use]
    pub fn new(me: Peer, workers: u16) -> Self {
        Self { me, workers, known: BTreeMap::new(), revision: 0 }
    }

    /// A new control state; `here` are the shards that have a replica here, `promised` those of which only a promise is
    /// left.
    pub fn on_state(&mut self, state: &State, here: &[ShardId], promised: &[ShardId]) -> News {
        // A former member keeps its replica until the others have everything (V7).
        let left_in = |id: &ShardId| state.shard(*id).filter(|s| !s.is_kept_by(self.me.node)).map(|s| (*id, s.active));
        // Also those of volumes that were deleted while this node was away.
        let is_gone = |id: &ShardId| state.was_deleted(id.volume);
        let left = here.iter().filter_map(left_in).collect();
        let gone = here.iter().chain(promised).copied().filter(is_gone).collect();
        let mut mine = self.mine(state);
        if state.revision() < self.revision {
            for (shard, info) in &mut mine {
                info.snapshots = self.known.get(shard).map_or_else(nothing_known, |i| i.snapshots.clone());
            }
        }
        self.revision = self.revision.max(state.revision());
        let changed = mine.values().filter(|i| self.known.get(&i.shard) != Some(i)).cloned().collect();
        self.known = mine;
        News { left, gone, changed }
    }

    fn mine(&self, state: &State) -> BTreeMap<ShardId, ShardInfo> {
        let mut mine = BTreeMap::new();
        for volume in state.volumes() {
            let description = Arc::new(volume.description());
            for s in &volume.shards {
                let shard = volume.shard_id(s.index);
                if s.is_kept_by(self.me.node) && Peer::of(self.me.node, shard, self.workers) == self.me {
                    let info = ShardInfo {
                        shard,
                        members: s.members.clone(),
                        active: s.active,
                        known: s.known(),
                        blocks: volume.shard_blocks(),
                        highest: s.highest,
                        generation: volume.generation,
                        has_keys: s.members.iter().all(|n| state.node(*n).is_some_and(|n| n.host_key.is_some())),
                        joining: s.joining.clone(),
                        standing: s.standing.clone(),
                        view_members: s.view_members().to_vec(),
                        volume: Some(described(volume, s, &description)),
                        forced: forced_of(s),
                        branch: branch_of(s),
                        snapshots: snapshots_of(state, shard),
                        fork: volume.fork(s.index),
                        flatten: volume.origin.as_ref().is_some_and(|o| o.flatten),
                    };
                    mine.insert(shard, info);
                }
            }
        }
        mine
    }
}

/// The description for view frames of a shard. Nearly all shards of a volume have the same.
fn described(volume: &Volume, shard: &Shard, common: &Arc<VolumeDescription>) -> Arc<VolumeDescription> {
    match (&shard.forced, &shard.branch) {
        (None, None) => common.clone(),
        _ => Arc::new(volume.description_of(shard)),
    }
}

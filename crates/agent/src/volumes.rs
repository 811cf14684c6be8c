//! The news for drivers in a control state.

use freebs_control::{State, Volume};
use freebs_driver::{Event, ShardSpec, VolumeSpec};
use freebs_types::{NodeId, VolumeId};
use std::collections::BTreeMap;

/// The volume as its driver wants to know it: the active view of each shard, whatever is planned.
#[must_use]
pub fn spec_of(volume: &Volume) -> VolumeSpec {
    let shards = volume.shards.iter().map(|s| ShardSpec {
        id: volume.shard_id(s.index),
        view: s.active,
        members: s.view_members().to_vec(),
    });
    VolumeSpec { id: volume.id, size: volume.size, stripe: volume.stripe, shards: shards.collect() }
}

/// Workers of each registered node.
#[must_use]
pub fn workers_of(state: &State) -> BTreeMap<NodeId, u16> {
    state.nodes().map(|n| (n.id, n.workers)).collect()
}

/// The events that a new state is for a driver of the volume, whose process knew the `earlier` one. `Event::Close` is the
/// last one of a volume that was deleted.
#[must_use]
pub fn news_of(earlier: &State, state: &State, volume: VolumeId) -> [Event; 3] {
    let last = state.volume(volume).map_or(Event::Close, |v| Event::Volume(spec_of(v)));
    [Event::Workers(workers_of(state)), Event::Started(state.nodes_renewed_since(earlier)), last]
}

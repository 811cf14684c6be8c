//! Snapshots as their readers want to know them: cuts, size, and who may have copies today.

use crate::volumes::workers_of;
use freebs_control::{Snapshot, State, Volume};
use freebs_driver::past::{Cut, PastConfig};
use freebs_driver::{Event, REQUEST_LIMIT, ShardSpec, VolumeSpec};
use freebs_format::Pin;
use freebs_types::{Error, NodeId, Result, SnapshotId, VolumeId};
use std::sync::Arc;

/// The volume as readers of its past want to know it: of each shard all that may have a copy. Those that are known to have
/// everything come first, those that learn last.
#[must_use]
pub fn holders_of(volume: &Volume) -> VolumeSpec {
    let shards = volume.shards.iter().map(|s| {
        let known = s.members.iter().chain(&s.active_members).chain(&s.keepers).chain(&s.away);
        let (learning, whole): (Vec<NodeId>, Vec<NodeId>) = known.partition(|n| s.joining.contains(n));
        let mut members = Vec::new();
        for node in whole.into_iter().chain(learning) {
            if !members.contains(&node) {
                members.push(node);
            }
        }
        ShardSpec { id: volume.shard_id(s.index), view: s.active, members }
    });
    VolumeSpec { id: volume.id, size: volume.size, stripe: volume.stripe, shards: shards.collect() }
}

/// The snapshot of a volume with this name, which can be read. `NotFound` if there is none, `Retry` if it is under way.
pub fn readable<'a>(state: &'a State, volume: &Volume, name: &str) -> Result<&'a Snapshot> {
    let called = format!("{}@{name}", volume.name);
    let none =
        || Error::not_found(format!("there is no snapshot {called}; see `freebs snapshot list {}`", volume.name));
    let snapshot = state.snapshot(volume.id, name).ok_or_else(none)?;
    match snapshot.is_complete() {
        true => Ok(snapshot),
        false => Err(Error::retry(format!("snapshot {called} is not complete yet; try again"))),
    }
}

/// The part of a volume in a complete snapshot: its size in bytes, and a cut for each shard. `NotFound` if it has nothing of it.
pub fn cuts_of(snapshot: &Snapshot, volume: VolumeId) -> Result<(u64, Vec<Cut>)> {
    let none = || Error::not_found(format!("snapshot {} has nothing of volume {volume}", snapshot.name));
    let of = snapshot.of(volume).filter(|_| snapshot.is_complete()).ok_or_else(none)?;
    let cut = |c: &Option<freebs_control::Cut>| c.map(|c| Cut { version: c.version, sequence: c.sequence });
    let cuts: Option<Vec<Cut>> = of.cuts.iter().map(cut).collect();
    Ok((of.size, cuts.ok_or_else(none)?))
}

/// The pins of an earlier snapshot, one for each shard, if changes since then can be told at the later one.
#[must_use]
pub fn since(earlier: &Snapshot, later: &Snapshot, volume: VolumeId) -> Option<Arc<[Pin]>> {
    let (before, after) = (cuts_of(earlier, volume).ok()?.1, cuts_of(later, volume).ok()?.1);
    let fits = before.len() == after.len() && before.iter().zip(&after).all(|(b, a)| b.version <= a.version);
    fits.then(|| before.iter().map(|c| Pin { version: c.version, snapshot: earlier.id }).collect())
}

/// The configuration of a reader. `number`: its own among those of its process; `local`: the node that it runs in.
/// `NotFound` if volume or snapshot were deleted meanwhile.
pub fn reader_of(
    state: &State,
    volume: VolumeId,
    snapshot: SnapshotId,
    number: u16,
    local: Option<NodeId>,
) -> Result<PastConfig> {
    let known = state.volume(volume).zip(state.snapshot_record(snapshot));
    let (volume, snapshot) = known.ok_or_else(gone)?;
    let (size, cuts) = cuts_of(snapshot, volume.id)?;
    let mut spec = VolumeSpec { size, ..holders_of(volume) };
    spec.shards.truncate(cuts.len());
    let workers = workers_of(state);
    let snapshot = snapshot.id;
    Ok(PastConfig { number, volume: spec, snapshot, cuts, workers, local, request_limit: REQUEST_LIMIT })
}

/// The events that a new state is for a reader whose process knew the `earlier` one; the error if the snapshot was deleted.
pub fn past_news_of(earlier: &State, state: &State, volume: VolumeId, snapshot: SnapshotId) -> Result<[Event; 3]> {
    let is_there = state.snapshot_record(snapshot).is_some_and(|s| s.is_complete() && s.of(volume).is_some());
    let volume = state.volume(volume).filter(|_| is_there).ok_or_else(gone)?;
    let started = Event::Started(state.nodes_renewed_since(earlier));
    Ok([Event::Workers(workers_of(state)), started, Event::Volume(holders_of(volume))])
}

fn gone() -> Error {
    Error::not_found("the snapshot was deleted")
}

//! Clones among what is asked of a cluster: of snapshots that were made, and of snapshots of clones; some are made flat, and
//! what they were cloned from may be deleted meanwhile.
//!
//! Nobody writes to them. At the end each is read on all its members: they have the same, and the oracle says whether it is
//! what the snapshot was.

use crate::cluster::Cluster;
use crate::snapshots::{Instant, Sector, read_shard};
use freebs_agent::Commands;
use freebs_control::{Command, Outcome, Volume};
use freebs_types::{ErrorKind, Nanos, ShardId, ViewNumber, VolumeId};
use std::rc::Rc;

/// Volumes that are made beside those of the run, at most.
const CLONES_MAX: usize = 6;

impl Cluster {
    /// The volume whose data one has, and the instant of which it has them if it is a clone. `None` of a clone whose
    /// snapshot nobody asked for here.
    pub(crate) fn root_of(&self, volume: VolumeId) -> Option<(VolumeId, Option<Instant>)> {
        self.control.with_state(|state| {
            let (mut root, mut snapshot) = (volume, None);
            while let Some(origin) = state.volume(root).and_then(|v| v.origin.as_ref()) {
                (root, snapshot) = (origin.volume, Some(origin.snapshot));
            }
            match snapshot {
                None => Some((root, None)),
                Some(id) => self.made.borrow().iter().find(|m| m.is(id)).map(|m| (root, Some(m.instant()))),
            }
        })
    }

    /// True if a volume was cloned from another one.
    pub(crate) fn is_clone(&self, volume: VolumeId) -> bool {
        self.control.with_state(|state| state.volume(volume).is_some_and(|v| v.origin.is_some()))
    }
}

/// Somebody clones a volume of a snapshot that is complete.
pub async fn make(c: &Rc<Cluster>, of: VolumeId, snapshot: String) {
    let is_lost = c.config.odds.lose_members > 0.0 || c.config.odds.lose_control > 0.0;
    let there = c.control.volumes().iter().filter(|v| v.origin.is_some()).count();
    if is_lost || there >= CLONES_MAX {
        return;
    }
    let name = format!("{snapshot}-clone-of-{of}");
    let plane = c.stranger();
    let made = plane.submit(Command::CloneVolume { volume: of, snapshot, name }).await;
    let Ok(Outcome::Created { volume }) = made.map(|d| d.outcome) else { return };
    c.world.count(if c.is_clone(of) { "clones of clones made" } else { "clones made" });
    let wait = {
        let mut luck = c.luck.borrow_mut();
        luck.chance(0.4).then(|| Nanos(luck.spread(1_000_000, 2_000_000_000)))
    };
    if let Some(wait) = wait {
        let again = c.clone();
        let flatten = async move {
            if again.stranger().submit(Command::FlattenVolume { volume }).await.is_ok() {
                again.world.count("clones that were to be flat");
            }
        };
        c.world.after(wait, move || drop(tokio::task::spawn_local(flatten)));
    }
}

/// Reads all clones on each member, and has the oracle judge them.
pub async fn check(c: &Cluster) {
    let state = c.control.snapshot();
    for volume in state.volumes() {
        let Some((root, Some(instant))) = c.root_of(volume.id) else { continue };
        match contents(c, volume, root).await {
            Ok(Some(values)) => {
                c.world.count("clones read");
                c.oracle.check_snapshot(instant, &values);
            }
            Ok(None) => c.world.count("clones that no member could read"),
            Err(why) => c.world.violation(format!("clone {}: {why}", volume.id)),
        }
    }
}

/// All that a clone has; `None` if a shard of it is on no member.
async fn contents(c: &Cluster, volume: &Volume, root: VolumeId) -> Result<Option<Vec<Sector>>, String> {
    let mut values = Vec::new();
    for s in &volume.shards {
        let shard = volume.shard_id(s.index);
        if s.active == ViewNumber(0) {
            return Ok(None);
        }
        let Some(found) = on_members(c, (volume, root), shard).await? else { return Ok(None) };
        values.extend(found);
    }
    Ok(Some(values))
}

/// A shard as its members have it. A log that lost frames, of it or of a parent, says so.
async fn on_members(
    c: &Cluster,
    (volume, root): (&Volume, VolumeId),
    shard: ShardId,
) -> Result<Option<Vec<Sector>>, String> {
    let of = &volume.shards[shard.index as usize];
    let mut found: Option<(u64, Vec<Sector>)> = None;
    for node in of.members.iter().filter(|n| !of.joining.contains(n)) {
        let Some(worker) = c.node(node.0).and_then(|n| n.worker()) else { continue };
        let engine = worker.engine();
        let Some(known) = engine.state(shard).filter(|s| s.view.is_some()) else { continue };
        match (read_shard(engine, (volume, root), shard, known.version).await, &found) {
            (Ok(values), Some((other, known))) if values != *known => {
                let differs = values.iter().zip(known).find(|(a, b)| a != b);
                return Err(format!("shard {shard}: nodes {node} and {other} differ: {differs:?}"));
            }
            (Ok(values), None) => found = Some((node.0, values)),
            (Ok(_), Some(_)) => {}
            (Err(e), _) if e.kind == ErrorKind::Corrupt && (c.config.has_rot || c.config.has_loss) => {}
            (Err(e), _) => return Err(format!("node {node}: {e}")),
        }
    }
    Ok(found.map(|(_, values)| values))
}

//! Clones among what is asked of a cluster: of snapshots that were made, and of snapshots of clones; some are made flat, and
//! what they were cloned from may be deleted meanwhile.
//!
//! Clients use some of them as they use any other volume. At the end each is read on all its members: they have the same,
//! and the oracle says whether what nobody has written to is what the snapshot was. By then each has begun, unless too few
//! members have its parent's version.

use crate::cluster::Cluster;
use crate::oracle::Instant;
use crate::rng::Rng;
use crate::snapshots::{Made, Sector, read_shard};
use crate::workload::Workload;
use freebs_agent::Commands;
use freebs_control::{Command, Outcome, Shard, Volume};
use freebs_lsvd::ShardState;
use freebs_types::{ErrorKind, Nanos, NodeId, SECTOR, ShardId, ViewNumber, VolumeId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Volumes that are made beside those of the run, at most.
const CLONES_MAX: usize = 6;
/// Requests of the clients of one.
const REQUESTS: u64 = 150;
/// It is looked this often whether one has begun.
const LOOK: Duration = Duration::from_millis(20);

/// By clone the volume of the run whose data it began with, and the instant of these.
pub type Clones = BTreeMap<VolumeId, (VolumeId, Instant)>;

impl Cluster {
    /// The volume whose data a clone began with, and the instant of these. `None` of what is no clone.
    pub(crate) fn origin_of(&self, volume: VolumeId) -> Option<(VolumeId, Instant)> {
        self.clones.borrow().get(&volume).copied()
    }

    /// True if a volume was cloned from another one.
    pub(crate) fn is_clone(&self, volume: VolumeId) -> bool {
        self.clones.borrow().contains_key(&volume)
    }

    /// The volumes whose writes a volume has. One that nobody writes to counts for what it was cloned from.
    pub(crate) fn sources(&self, volume: VolumeId) -> Vec<VolumeId> {
        match self.origin_of(volume).filter(|_| !self.is_used(volume)) {
            Some((root, _)) => vec![root],
            None => self.oracle.sources(volume),
        }
    }
}

/// Somebody clones a volume of a snapshot that is complete. What clients use is not cloned again: the oracle knows one origin of
/// each sector.
pub async fn make(c: &Rc<Cluster>, of: VolumeId, made: Made) {
    let (there, is_of_clone, is_used) = (c.clones.borrow().len(), c.is_clone(of), c.is_used(of));
    // A clone whose answer was lost is neither. One that is made behind the end of all faults may not have begun when it is read.
    if c.over.get() || there >= CLONES_MAX || is_of_clone == is_used {
        return;
    }
    let origin = c.origin_of(of).unwrap_or((of, made.instant()));
    let name = format!("{}-clone-of-{of}", made.name());
    let plane = c.stranger();
    let done = plane.submit(Command::CloneVolume { volume: of, snapshot: made.name(), name }).await;
    let Ok(Outcome::Created { volume }) = done.map(|d| d.outcome) else { return };
    c.clones.borrow_mut().insert(volume, origin);
    c.world.count(if is_of_clone { "clones of clones made" } else { "clones made" });
    let (flatten, uses) = {
        let mut luck = c.luck.borrow_mut();
        let flatten = luck.chance(0.4).then(|| Nanos(luck.spread(1_000_000, 2_000_000_000)));
        (flatten, luck.chance(0.5))
    };
    if let Some(wait) = flatten {
        let again = c.clone();
        let flatten = async move {
            if again.stranger().submit(Command::FlattenVolume { volume }).await.is_ok() {
                again.world.count("clones that were to be flat");
            }
        };
        c.world.after(wait, move || drop(tokio::task::spawn_local(flatten)));
    }
    if uses {
        use_it(c, volume, origin).await;
    }
}

/// Clients use a clone as soon as it has begun.
async fn use_it(c: &Rc<Cluster>, clone: VolumeId, origin: (VolumeId, Instant)) {
    let has_begun = |v: &Volume| v.shards.iter().all(|s| s.active > ViewNumber(0));
    let volume = loop {
        if c.over.get() {
            return;
        }
        match c.control.volume(clone) {
            Some(v) if has_begun(&v) => break v,
            _ => tokio::time::sleep(LOOK).await,
        }
    };
    c.world.count("clones that clients use");
    let (sectors, stripe) = (volume.size / SECTOR as u64, volume.stripe / SECTOR as u64);
    let group = if volume.shards.len() > 1 { volume.stripe } else { 1 << 20 };
    c.oracle.add_clone(clone, group, origin);
    let luck = Rng::fork(c.config.seed, 300 + clone.0);
    let mut work = Workload::draw(luck, sectors, stripe, REQUESTS);
    work.may_have_intervals(Rng::fork(c.config.seed, 800 + clone.0), stripe, volume.shards.len() as u64);
    c.use_volume(clone, work);
}

/// True of a clone's shard that can't begin: fewer members than its first view needs have what it begins with, or can have it.
/// The others lost it with their parent's version, or came when that was gone.
pub fn is_hopeless(c: &Cluster, volume: &Volume, shard: &Shard) -> bool {
    let Some(fork) = volume.fork(shard.index).filter(|_| shard.active == ViewNumber(0)) else { return false };
    let id = volume.shard_id(shard.index);
    let may_begin = |n: &&NodeId| {
        let Some(worker) = c.node(n.0).and_then(|n| n.worker()) else { return false };
        let has = |s: ShardState| s.last.sequence >= fork.sequence;
        worker.engine().check_fork(&fork).is_ok() || worker.engine().state(id).is_some_and(has)
    };
    shard.members.iter().filter(may_begin).count() < volume.quorum(shard.members.len())
}

/// Reads all clones on each member, and has the oracle judge them.
pub async fn check(c: &Cluster) {
    let state = c.control.snapshot();
    for volume in state.volumes() {
        let Some((root, instant)) = c.origin_of(volume.id) else { continue };
        match contents(c, volume).await {
            Ok(Some(values)) => {
                c.world.count("clones read");
                // Clients have read their own writes.
                let is_own = |s: &Sector| c.is_used(volume.id) && c.oracle.is_written(volume.id, s.1);
                let values: Vec<Sector> =
                    values.into_iter().filter(|s| !is_own(s)).map(|(_, s, value)| (root, s, value)).collect();
                c.oracle.check_snapshot(instant, &values);
            }
            Ok(None) => c.world.count("clones that no member could read"),
            Err(why) => c.world.violation(format!("clone {}: {why}", volume.id)),
        }
    }
}

/// All that a clone has; `None` if a shard of it is on no member, or never can be.
async fn contents(c: &Cluster, volume: &Volume) -> Result<Option<Vec<Sector>>, String> {
    let mut values = Vec::new();
    for s in &volume.shards {
        let shard = volume.shard_id(s.index);
        if s.active == ViewNumber(0) {
            return match is_hopeless(c, volume, s) {
                true => Ok(None),
                false => Err(format!("shard {shard} has not begun, and a member has what it begins with")),
            };
        }
        let Some(found) = on_members(c, volume, shard).await? else { return Ok(None) };
        values.extend(found);
    }
    Ok(Some(values))
}

/// A shard as its members have it. A log that lost frames, of it or of a parent, says so.
async fn on_members(c: &Cluster, volume: &Volume, shard: ShardId) -> Result<Option<Vec<Sector>>, String> {
    let of = &volume.shards[shard.index as usize];
    let sources = c.sources(volume.id);
    let mut found: Option<(u64, Vec<Sector>)> = None;
    for node in of.members.iter().filter(|n| !of.joining.contains(n)) {
        let Some(worker) = c.node(node.0).and_then(|n| n.worker()) else { continue };
        let engine = worker.engine();
        let Some(known) = engine.state(shard).filter(|s| s.view.is_some()) else { continue };
        match (read_shard(engine, (volume, &sources), shard, known.version).await, &found) {
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

//! Snapshots among what is asked of a cluster: of one volume or of several, some of them deleted again; and of times and
//! versions of the past, where a volume keeps it.
//!
//! At the end each complete one is read at its cuts, on all members: they have the same, or know that their history is not
//! whole that far back; and the oracle says whether it is an instant between the question for it and the answer. A snapshot
//! whose record was lost with the control state is not looked at.

use crate::clones;
use crate::cluster::Cluster;
use crate::content::{self, Value};
use crate::node::WALL_BEGINS;
use crate::oracle::{BLOCK_SECTORS, Instant, Stamp};
use freebs_agent::Commands;
use freebs_control::{Command, Outcome, Snapshot, Stage, State, Volume};
use freebs_types::{
    BLOCK, BlockRange, Error, ErrorKind, Nanos, Past, SECTOR, ShardId, SnapshotId, Version, VolumeId, limits,
};
use std::rc::Rc;
use std::time::Duration;

/// It is looked this often whether a snapshot is complete.
const LOOK: Duration = Duration::from_millis(3);
/// Whoever asks gives up after so many looks: more than heads hold.
const LOOKS_MAX: usize = 1500;

/// A snapshot that was complete.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    id: SnapshotId,
    asked: Stamp,
    done: Stamp,
    /// In its name.
    number: Stamp,
}

/// Clocks of nodes differ by no more, and stand still for no longer, unless they jump.
const CLOCKS_MAX: Nanos = Nanos::from_millis(2000);
/// Times are noted this often.
const NOTED_EVERY: Nanos = Nanos::from_millis(50);

/// Notes which place in the order of events is of which time, for as long as there is load.
pub fn note_times(c: &Rc<Cluster>) {
    if c.config.volumes.iter().all(|v| v.retain_ms.is_none()) || c.over.get() {
        return;
    }
    c.times.borrow_mut().push((c.world.now(), c.oracle.stamp()));
    let again = c.clone();
    c.world.after(NOTED_EVERY, move || note_times(&again));
}

/// The time that clocks of nodes would say if none had jumped and none were ahead, milliseconds since 1970.
fn clock_ms(c: &Cluster) -> u64 {
    (WALL_BEGINS + c.world.now().0) / 1_000_000
}

/// A place in the past of a volume of one shard that keeps it, perhaps.
fn past_of(c: &Cluster, volumes: &[VolumeId]) -> Option<Past> {
    let [volume] = volumes else { return None };
    let keeps =
        |s: &State| s.volume(*volume).is_some_and(|v| v.retain_ms > 0 && v.shards.len() == 1 && v.origin.is_none());
    if !c.control.with_state(keeps) {
        return None;
    }
    let mut luck = c.luck.borrow_mut();
    match luck.below(5) {
        0 => None,
        1 => Some(Past::Version(Version(luck.range(1, 400)))),
        _ => Some(Past::TimeMs(clock_ms(c) - luck.below(4500))),
    }
}

/// Between which places in the order of events a snapshot is an instant.
fn instant_of(c: &Cluster, past: Option<Past>, asked: Stamp, done: Stamp) -> Instant {
    match past {
        None => (asked, done),
        Some(Past::TimeMs(ms)) if c.config.odds.jump_clock == 0.0 => {
            let at = Nanos((ms * 1_000_000).saturating_sub(WALL_BEGINS));
            let (times, end) = (c.times.borrow(), at.plus(CLOCKS_MAX));
            let before = times.iter().rev().find(|(t, _)| t.plus(CLOCKS_MAX) <= at);
            let behind = times.iter().find(|(t, _)| *t >= end);
            (before.map_or(0, |t| t.1), behind.map_or(done, |t| t.1))
        }
        // Any instant will do.
        Some(_) => (0, done),
    }
}

impl Made {
    pub(crate) fn name(&self) -> String {
        format!("s{}", self.number)
    }

    pub(crate) fn instant(&self) -> Instant {
        (self.asked, self.done)
    }
}

/// Somebody asks for a snapshot.
pub fn take(c: &Rc<Cluster>) {
    // Nobody here knows of a clone whose answer was lost.
    let is_known = |v: &VolumeId| c.is_used(*v) || c.is_clone(*v);
    let all: Vec<VolumeId> = c.control.volumes().iter().map(|v| v.id).filter(is_known).collect();
    let (clones, volumes): (Vec<_>, Vec<_>) = all.into_iter().partition(|v| c.is_clone(*v));
    let (volumes, delete, clone) = {
        let mut luck = c.luck.borrow_mut();
        let all = luck.chance(0.6);
        let one = luck.pick(&volumes).copied();
        let delete = luck.chance(0.3).then(|| Nanos(luck.spread(1_000_000, 1_000_000_000)));
        let volumes = if all { volumes } else { one.into_iter().collect() };
        // A clone is as of another instant than its group would be.
        let of_clone = if luck.chance(0.3) { luck.pick(&clones).copied() } else { None };
        let volumes = of_clone.map_or(volumes, |v| vec![v]);
        let clone = if luck.chance(0.4) { luck.pick(&volumes).copied() } else { None };
        (volumes, delete, clone)
    };
    let cluster = c.clone();
    tokio::task::spawn_local(async move {
        let past = past_of(&cluster, &volumes);
        let Some(made) = ask(&cluster, &volumes, past).await else { return };
        cluster.made.borrow_mut().push(made);
        if let Some(of) = clone {
            clones::make(&cluster, of, made).await;
        }
        if let Some(wait) = delete {
            let again = cluster.clone();
            cluster
                .world
                .after(wait, move || drop(tokio::task::spawn_local(async move { remove(&again, made).await })));
        }
    });
}

async fn ask(c: &Rc<Cluster>, volumes: &[VolumeId], past: Option<Past>) -> Option<Made> {
    let plane = c.stranger();
    let asked = c.oracle.stamp();
    let (name, volumes_of) = (format!("s{asked}"), volumes.to_vec());
    let created_ms = past.map_or(asked, |_| clock_ms(c));
    let command = Command::BeginSnapshot { name, volumes: volumes_of, created_ms, past };
    let Ok(Outcome::SnapshotBegun { snapshot: id }) = plane.submit(command).await.map(|d| d.outcome) else {
        return None;
    };
    for _ in 0..LOOKS_MAX {
        match c.control.with_state(|s| s.snapshot_record(id).map(|s| s.stage.clone())) {
            Some(Stage::Complete) => {
                c.world.count(match past {
                    Some(Past::TimeMs(_)) => "snapshots of times made",
                    Some(Past::Version(_)) => "snapshots of versions made",
                    None if volumes.len() > 1 => "groups of snapshots made",
                    None => "snapshots made",
                });
                let (number, done) = (asked, c.oracle.stamp());
                let (asked, done) = instant_of(c, past, asked, done);
                return Some(Made { id, asked, done, number });
            }
            Some(Stage::Failed { why }) => {
                c.world.say(|| format!("snapshot {id} failed: {why}"));
                c.world.count(if past.is_some() {
                    "snapshots of the past that failed"
                } else {
                    "snapshots that failed"
                });
                return None;
            }
            Some(_) => tokio::time::sleep(LOOK).await,
            None => return None,
        }
    }
    c.world.count("snapshots that were given up");
    let _ = plane.submit(Command::FailSnapshot { snapshot: id, why: "nobody waits any more".into() }).await;
    None
}

/// One of its volumes, or all, lose it.
async fn remove(c: &Rc<Cluster>, made: Made) {
    let plane = c.stranger();
    let record = c.control.with_state(|s| s.snapshot_record(made.id).cloned());
    let Some(record) = record else { return };
    for v in &record.volumes {
        let delete = Command::DeleteSnapshot { volume: v.volume, name: record.name.clone(), now_ms: 0 };
        if plane.submit(delete).await.is_ok() {
            c.world.count("snapshots deleted");
        }
    }
}

/// Reads what is left of all that were made, on each member, and has the oracle judge it.
pub async fn check(c: &Cluster) {
    // Where a shard goes on by force, snapshots may be lost with what they are of.
    if c.config.odds.lose_members > 0.0 {
        return;
    }
    let state = c.control.snapshot();
    let made = c.made.borrow().clone();
    for made in made {
        let Some(record) = state.snapshot_record(made.id).filter(|s| s.is_complete()) else { continue };
        match contents(c, &state, record).await {
            Ok(Some(values)) => {
                c.world.count("snapshots read");
                // Nobody writes to a clone without clients: it is as it began.
                let unused = record.volumes.iter().find(|v| !c.is_used(v.volume));
                let of_clone = unused.and_then(|v| c.origin_of(v.volume)).map(|o| o.1);
                c.oracle.check_snapshot(of_clone.unwrap_or(made.instant()), &values);
            }
            Ok(None) => c.world.count("snapshots that no member has whole"),
            // A deletion may come while it is read: heads then let go of it at once.
            Err(_) if c.control.with_state(|s| s.snapshot_record(record.id) != Some(record)) => {
                c.world.count("snapshots deleted while they were read");
            }
            Err(why) => c.world.violation(format!("snapshot {}: {why}", record.id)),
        }
    }
}

/// A sector with what it has.
pub(crate) type Sector = (VolumeId, u64, Value);

/// All that a snapshot has; `None` if a shard of it is on no member, as each of them says.
async fn contents(c: &Cluster, state: &State, record: &Snapshot) -> Result<Option<Vec<Sector>>, String> {
    let mut values = Vec::new();
    for of in &record.volumes {
        let Some(volume) = state.volume(of.volume) else { continue };
        for s in &volume.shards {
            let Some(shard) = on_members(c, volume, record, volume.shard_id(s.index)).await? else { return Ok(None) };
            values.extend(shard);
        }
    }
    Ok(Some(values))
}

/// A shard's cut, as its members have it: the same, or they know that they have not. `None` if none has it.
async fn on_members(
    c: &Cluster,
    volume: &Volume,
    record: &Snapshot,
    shard: ShardId,
) -> Result<Option<Vec<Sector>>, String> {
    let cut = record.cut(shard).ok_or_else(|| format!("shard {shard} has no cut"))?;
    // A log that lost frames says so of blocks, and of pins.
    let is_damaged = c.config.has_rot || c.config.has_loss;
    let of = &volume.shards[shard.index as usize];
    let sources = c.sources(volume.id);
    let mut found: Option<(u64, Vec<Sector>)> = None;
    for node in of.members.iter().filter(|n| !of.joining.contains(n)) {
        let Some(worker) = c.node(node.0).and_then(|n| n.worker()) else { continue };
        let engine = worker.engine();
        let Ok(history) = engine.history(shard) else { continue };
        let keeps = history.pins.iter().any(|p| p.version == cut.version && p.snapshot == record.id);
        let read =
            if keeps { read_shard(engine, (volume, &sources), shard, cut.version).await } else { Err(unkept(shard)) };
        match (read, &found) {
            (Ok(values), Some((other, known))) if values != *known => {
                let differs = values.iter().zip(known).find(|(a, b)| a != b);
                return Err(format!("shard {shard} at {}: nodes {node} and {other} differ: {differs:?}", cut.version));
            }
            (Ok(values), None) => found = Some((node.0, values)),
            (Ok(_), Some(_)) => {}
            (Err(_), _) if is_damaged => {}
            (Err(e), _) if e.kind == ErrorKind::Corrupt && history.whole_from > cut.version => {}
            (Err(e), _) => return Err(format!("node {node}: {e}; whole from {}", history.whole_from)),
        }
    }
    Ok(found.map(|(_, values)| values))
}

fn unkept(shard: ShardId) -> Error {
    Error::not_found(format!("the cut of shard {shard} is not kept"))
}

/// A shard at a version. Its data are those of these volumes.
pub(crate) async fn read_shard<D: freebs_io::Device>(
    engine: &freebs_lsvd::Engine<D>,
    (volume, sources): (&Volume, &[VolumeId]),
    shard: ShardId,
    version: Version,
) -> Result<Vec<Sector>, Error> {
    let mut values = Vec::new();
    let stripe = volume.stripe / BLOCK as u64;
    let (count, index) = (volume.shards.len() as u64, u64::from(shard.index));
    let mut at = 0;
    while at < volume.shard_blocks() {
        let blocks = (volume.shard_blocks() - at).min(u64::from(limits::READ_BLOCKS_MAX));
        let out = engine.read_at(shard, version, BlockRange::new(at as u32, blocks as u32)).await?;
        let data = out.data.concat();
        let mut data = data.chunks_exact(BLOCK);
        for piece in &out.pieces {
            for _ in 0..piece.blocks {
                let has_data = piece.kind == freebs_format::ExtentKind::Data;
                let block = if has_data { data.next() } else { None };
                let global = (at / stripe * count + index) * stripe + at % stripe;
                for i in 0..BLOCK_SECTORS {
                    let sector = global * BLOCK_SECTORS + i;
                    let bytes = block.map(|b| &b[i as usize * SECTOR..(i as usize + 1) * SECTOR]);
                    let zeroes = || Ok((sources[0], 0));
                    let found = bytes.map_or_else(zeroes, |b| content::parse_of(sources, sector, b));
                    let bad = |why: String| Error::corrupt(format!("volume {} sector {sector} {why}", volume.id));
                    values.push((sources[0], sector, found.map_err(bad)?.1));
                }
                at += 1;
            }
        }
    }
    Ok(values)
}

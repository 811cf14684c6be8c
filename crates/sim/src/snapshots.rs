//! Snapshots among what is asked of a cluster: of one volume or of several, some of them deleted again.
//!
//! At the end each complete one is read at its cuts, on a member that keeps it, and the oracle says whether it is an instant
//! between the question for it and the answer. A snapshot whose record was lost with the control state is not looked at,
//! nor one that no member has: members that learn by map get the present only.

use crate::cluster::Cluster;
use crate::content::{self, Value};
use crate::oracle::{BLOCK_SECTORS, Stamp};
use freebs_agent::Commands;
use freebs_control::{Command, Outcome, Snapshot, Stage, State, Volume};
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Nanos, Result, SECTOR, ShardId, SnapshotId, VolumeId, limits};
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
}

/// Somebody asks for a snapshot.
pub fn take(c: &Rc<Cluster>) {
    let volumes: Vec<VolumeId> = c.control.volumes().iter().map(|v| v.id).collect();
    let (volumes, delete) = {
        let mut luck = c.luck.borrow_mut();
        let all = luck.chance(0.6);
        let one = luck.pick(&volumes).copied();
        let delete = luck.chance(0.3).then(|| Nanos(luck.spread(1_000_000, 1_000_000_000)));
        (if all { volumes } else { one.into_iter().collect() }, delete)
    };
    let cluster = c.clone();
    tokio::task::spawn_local(async move {
        let Some(made) = ask(&cluster, &volumes).await else { return };
        cluster.made.borrow_mut().push(made);
        if let Some(wait) = delete {
            let again = cluster.clone();
            cluster
                .world
                .after(wait, move || drop(tokio::task::spawn_local(async move { remove(&again, made).await })));
        }
    });
}

async fn ask(c: &Rc<Cluster>, volumes: &[VolumeId]) -> Option<Made> {
    let plane = c.stranger();
    let asked = c.oracle.stamp();
    let command = Command::BeginSnapshot { name: format!("s{asked}"), volumes: volumes.to_vec(), created_ms: asked };
    let Ok(Outcome::SnapshotBegun { snapshot: id }) = plane.submit(command).await.map(|d| d.outcome) else {
        return None;
    };
    for _ in 0..LOOKS_MAX {
        match c.control.with_state(|s| s.snapshot_record(id).map(|s| s.stage.clone())) {
            Some(Stage::Complete) => {
                c.world.count(if volumes.len() > 1 { "groups of snapshots made" } else { "snapshots made" });
                return Some(Made { id, asked, done: c.oracle.stamp() });
            }
            Some(Stage::Failed { why }) => {
                c.world.say(|| format!("snapshot {id} failed: {why}"));
                c.world.count("snapshots that failed");
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

/// Reads what is left of all that were made, and has the oracle judge it.
pub async fn check(c: &Cluster) {
    // Where a shard goes on by force, or its log has lost frames, pins may be lost with what they are of.
    let odds = &c.config.odds;
    if odds.lose_members > 0.0 || c.config.has_loss || c.config.has_rot {
        return;
    }
    let replaced = [odds.leave_node, odds.suspend_host, odds.old_image, odds.lag_seat, odds.lose_control];
    let is_steady = replaced.iter().all(|o| *o == 0.0) && matches!(c.config.profile, "calm" | "crowd" | "gateways");
    let state = c.control.snapshot();
    let made = c.made.borrow().clone();
    for made in made {
        let Some(record) = state.snapshot_record(made.id).filter(|s| s.is_complete()) else { continue };
        match contents(c, &state, record).await {
            Ok(values) => {
                c.world.count("snapshots read");
                c.oracle.check_snapshot((made.asked, made.done), &values);
            }
            // Who learns by map gets the present only.
            Err(e) if e.kind == ErrorKind::NotFound && !is_steady => c.world.count("snapshots that no member has"),
            Err(e) => c.world.violation(format!("snapshot {}: {e}", record.id)),
        }
    }
}

async fn contents(c: &Cluster, state: &State, record: &Snapshot) -> Result<Vec<(VolumeId, u64, Value)>> {
    let mut values = Vec::new();
    for of in &record.volumes {
        let Some(volume) = state.volume(of.volume) else { continue };
        for s in &volume.shards {
            read_shard(c, volume, record, volume.shard_id(s.index), &mut values).await?;
        }
    }
    Ok(values)
}

async fn read_shard(
    c: &Cluster,
    volume: &Volume,
    record: &Snapshot,
    shard: ShardId,
    values: &mut Vec<(VolumeId, u64, Value)>,
) -> Result<()> {
    let none = || Error::not_found(format!("no member keeps shard {shard}"));
    let cut = record.cut(shard).ok_or_else(none)?;
    let members = &volume.shards[shard.index as usize].members;
    let keeps = |engine: &freebs_lsvd::Engine<_>| {
        let pins = engine.history(shard).map(|h| h.pins).unwrap_or_default();
        pins.iter().any(|p| p.version == cut.version && p.snapshot == record.id)
    };
    let worker = members.iter().filter_map(|n| c.node(n.0)?.worker()).find(|w| keeps(w.engine())).ok_or_else(none)?;
    let stripe = volume.stripe / BLOCK as u64;
    let (count, index) = (volume.shards.len() as u64, u64::from(shard.index));
    let mut at = 0;
    while at < volume.shard_blocks() {
        let blocks = (volume.shard_blocks() - at).min(u64::from(limits::READ_BLOCKS_MAX));
        let out = worker.engine().read_at(shard, cut.version, BlockRange::new(at as u32, blocks as u32)).await?;
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
                    let value = bytes.map_or(Ok(0), |b| content::parse(volume.id.0, sector, b));
                    let bad = |why: String| Error::corrupt(format!("volume {} sector {sector} {why}", volume.id));
                    values.push((volume.id, sector, value.map_err(bad)?));
                }
                at += 1;
            }
        }
    }
    Ok(())
}

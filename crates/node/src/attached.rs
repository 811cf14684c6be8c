//! A volume that this process attaches for itself, or a snapshot that it reads: the worker and driver of a gateway, without
//! clients. For commands that copy whole volumes.
//!
//! Invariant: an attachment is one more driver, with an identity that no other process has: it never takes a volume from
//! somebody who is there, and nobody takes it from here without force. A snapshot is read whoever has the volume.

use crate::admin::{FollowerOptions, Plane};
use crate::gateway::{self, Workers};
use crate::options::host_name;
use crate::runtime::{Command, Served, WorkerHandle, WorkerSpec, pass_on_state, start_worker, stop_workers};
use crate::timing;
use freebs_agent::{readable, since};
use freebs_control::{ControlPlane, Snapshot};
use freebs_driver::{Op, Reply};
use freebs_format::Pin;
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Hash32, NodeId, Peer, Result, ShardId, SnapshotId, VolumeId, limits};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A volume that is attached here, or a snapshot that is read here.
pub struct Attached {
    worker: WorkerHandle,
    of: Served,
}

/// A snapshot that is read here, and what it is.
pub struct AttachedPast {
    pub reader: Attached,
    pub snapshot: Snapshot,
    /// Bytes of the volume then.
    pub size: u64,
    control: Arc<Plane>,
    volume: VolumeId,
}

/// The name under which a command of this process has a volume: what it does, its host and process.
fn holder(doing: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let host: String = host_name().chars().map(allowed).take(limits::VOLUME_NAME_BYTES_MAX / 2).collect();
    format!("{doing}-on-{host}-{}", std::process::id())
}

/// A worker without a device, and the control plane that it follows, which has heard of the volume.
async fn start(
    addresses: &[String],
    cluster: ClusterId,
    doing: &str,
    volume: VolumeId,
) -> Result<(WorkerHandle, Arc<Plane>)> {
    let options = FollowerOptions { cluster: Some(cluster), addresses: addresses.to_vec() };
    let control = Arc::new(Plane::follow(options)?);
    let late = || Error::retry("no node tells of the volume; see `freebs status`, and try again");
    gateway::heard_of(&*control, volume).await.ok_or_else(late)?;
    let mut identity = Hash32([0; 32]);
    OsRandom.fill(&mut identity.0);
    let worker = start_worker(WorkerSpec {
        cluster,
        me: Peer { node: NodeId(0), worker: 0 },
        workers: 1,
        identity,
        name: holder(doing),
        control: control.clone(),
        disk: None,
        busy_poll: Duration::ZERO,
    })
    .await?;
    pass_on_state(control.clone(), Workers { node: NodeId(0), commands: vec![worker.commands.clone()] });
    Ok((worker, control))
}

/// The snapshot with this name, which a node may know already that this process has not heard of yet.
async fn heard_of_snapshot(control: &Plane, volume: VolumeId, name: &str) -> Result<Snapshot> {
    let find = || {
        let state = control.state();
        let known = state.volume(volume).ok_or_else(|| Error::not_found("the volume was deleted"))?;
        readable(&state, known, name).cloned()
    };
    let heard = async {
        loop {
            let revision = control.state().revision();
            if let Ok(snapshot) = find() {
                return snapshot;
            }
            control.changed(revision).await;
        }
    };
    match tokio::time::timeout(timing::HEARD_OF_SNAPSHOT_MAX, heard).await {
        Ok(snapshot) => Ok(snapshot),
        Err(_) => find(),
    }
}

impl Attached {
    /// Attaches a volume of the cluster that has a node at one of these addresses. `doing` is a word for people who find the
    /// volume attached. `Busy` if somebody else has it. It needs a runtime whose tasks stay on this thread.
    pub async fn open(addresses: &[String], cluster: ClusterId, doing: &str, volume: VolumeId) -> Result<Self> {
        let (worker, _) = start(addresses, cluster, doing, volume).await?;
        match gateway::open(&worker.commands, volume, timing::ATTACH_LIMIT).await {
            Ok(generation) => Ok(Self { worker, of: Served::Volume { volume, generation } }),
            Err(e) => {
                stop_workers(vec![worker]).await;
                Err(e)
            }
        }
    }

    /// Opens a snapshot of a volume, by its name. `NotFound` if the volume has none of this name, `Retry` if it is not
    /// complete. It needs a runtime whose tasks stay on this thread.
    pub async fn open_past(
        addresses: &[String],
        cluster: ClusterId,
        doing: &str,
        volume: VolumeId,
        name: &str,
    ) -> Result<AttachedPast> {
        let (worker, control) = start(addresses, cluster, doing, volume).await?;
        match Self::open_named(&worker, &control, volume, name).await {
            Ok((of, snapshot)) => {
                let size = snapshot.of(volume).map_or(0, |of| of.size);
                Ok(AttachedPast { reader: Self { worker, of }, snapshot, size, control, volume })
            }
            Err(e) => {
                stop_workers(vec![worker]).await;
                Err(e)
            }
        }
    }

    async fn open_named(
        worker: &WorkerHandle,
        control: &Plane,
        volume: VolumeId,
        name: &str,
    ) -> Result<(Served, Snapshot)> {
        let snapshot = heard_of_snapshot(control, volume, name).await?;
        let of = gateway::open_past(&worker.commands, volume, snapshot.id).await?;
        Ok((of, snapshot))
    }

    /// Asks the driver something, now; the answer comes when it is waited for. Several may be on their way.
    pub fn ask(&self, op: Op) -> impl Future<Output = Result<Reply>> + use<> {
        let (reply, answer) = oneshot::channel();
        let asked = self.worker.commands.send(Command::Request { of: self.of, op, reply });
        async move {
            let ended = || Error::bug("the driver has ended");
            asked.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())?
        }
    }

    /// Gives the volume back, or closes the snapshot.
    pub async fn close(self) {
        stop_workers(vec![self.worker]).await;
    }
}

impl AttachedPast {
    /// Name of the volume's snapshot with the newest content that can be read: one of the past may have been made last.
    pub fn newest(&self) -> String {
        let state = self.control.state();
        let first = ShardId { volume: self.volume, index: 0 };
        let complete = state.snapshots_of(self.volume).filter(|s| s.is_complete());
        let newest = complete.max_by_key(|s| (s.cut(first).map(|c| c.version), s.id));
        newest.map_or_else(|| self.snapshot.name.clone(), |s| s.name.clone())
    }

    /// Names of the volume's complete snapshots that are older and whose names begin so.
    pub fn older(&self, prefix: &str) -> Vec<String> {
        let state = self.control.state();
        let is_one = |s: &&Arc<Snapshot>| s.is_complete() && s.id < self.snapshot.id && s.name.starts_with(prefix);
        state.snapshots_of(self.volume).filter(is_one).map(|s| s.name.clone()).collect()
    }

    /// The pins of the earlier snapshot with this number, if it is there and can be compared, and `is_it` says of its number
    /// and time of making (milliseconds since 1970) that it is the one that is meant.
    pub fn since_number(&self, id: SnapshotId, is_it: impl Fn(SnapshotId, u64) -> bool) -> Option<Arc<[Pin]>> {
        let state = self.control.state();
        let earlier = state.snapshot_record(id).filter(|s| s.is_complete() && is_it(s.id, s.created_ms))?;
        since(earlier, &self.snapshot, self.volume)
    }

    /// The pins of an earlier snapshot, for a question for what changed since. `NotFound` if there is none of this name,
    /// `Invalid` if it is not an earlier one.
    pub fn since(&self, name: &str) -> Result<Arc<[Pin]>> {
        let state = self.control.state();
        let volume = state.volume(self.volume).ok_or_else(|| Error::not_found("the volume was deleted"))?;
        let earlier = readable(&state, volume, name)?;
        let later = &self.snapshot.name;
        let order = || Error::invalid(format!("{name} is not earlier than {later}; name the earlier snapshot first"));
        since(earlier, &self.snapshot, self.volume).ok_or_else(order)
    }
}

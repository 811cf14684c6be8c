//! Volumes that this process attaches for itself, and snapshots that it reads: the worker and drivers of a gateway, without
//! clients. For commands that copy whole volumes, and for programs that link `client`.
//!
//! Invariant: an attachment is one more driver. With an identity that no other process has, as commands have one, it never
//! takes a volume from somebody who is there, and nobody takes it from here without force. A snapshot is read whoever has
//! the volume.

use crate::admin::{FollowerOptions, Plane};
use crate::conn;
use crate::gateway::{self, Workers};
use crate::identity;
use crate::options::host_name;
use crate::runtime::{Command, Served, WorkerHandle, WorkerSpec, pass_on_state, start_worker, stop_workers};
use crate::timing;
use freebs_agent::{readable, since};
use freebs_control::{ControlPlane, Snapshot, Volume};
use freebs_driver::{Op, Reply};
use freebs_format::Pin;
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Hash32, NodeId, Peer, Result, ShardId, SnapshotId, VolumeId, limits};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A worker without a device, and the control plane that it follows.
pub struct Session {
    worker: WorkerHandle,
    control: Arc<Plane>,
}

/// The cluster that a session speaks with, and as whom.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Nodes, any of which will do.
    pub addresses: Vec<String>,
    /// Another cluster is refused; `None`: the one whose node answers first.
    pub cluster: Option<ClusterId>,
    /// The name under which people find volumes attached.
    pub name: String,
    /// A later session with the same one takes its volumes up again at once.
    pub identity: Hash32,
}

/// From now on all sessions of this process speak TLS, with the key and certificate in the data directory of a node on this
/// machine. To be called before the first one begins.
///
/// # Errors
/// `Invalid` if that is no data directory of a node of a cluster with an authority, or if the process speaks as another node
/// already; `Corrupt` or `Os` if its files can't be read.
pub fn speak_as_node(data: &Path) -> Result<()> {
    conn::speak_as(identity::of_directory(data)?)
}

/// From now on all sessions of this process speak plain with nodes on other machines, too, unless they speak as a node: nobody
/// else reaches that network.
pub fn trust_network() {
    conn::trust_network();
}

/// The thing that was opened in a session: a volume as one attachment has it, or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened(Served);

impl Session {
    /// Begins, whether any node can be reached yet or not. It needs a runtime whose tasks stay on this thread.
    ///
    /// # Errors
    /// If its threads can't be started.
    pub async fn start(options: SessionOptions) -> Result<Self> {
        let SessionOptions { addresses, cluster, name, identity } = options;
        let control = Arc::new(Plane::follow(FollowerOptions { cluster, addresses })?);
        let cluster = match cluster {
            Some(cluster) => cluster,
            None => control.ready().await.cluster(),
        };
        let worker = start_worker(WorkerSpec {
            cluster,
            me: Peer { node: NodeId(0), worker: 0 },
            workers: 1,
            identity,
            name,
            control: control.clone(),
            disk: None,
            busy_poll: Duration::ZERO,
        })
        .await?;
        pass_on_state(control.clone(), Workers { node: NodeId(0), commands: vec![worker.commands.clone()] });
        Ok(Self { worker, control })
    }

    /// The volume of this name. One that was just made is waited for a moment.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub async fn volume(&self, name: &str) -> Result<Arc<Volume>> {
        let heard = async {
            let mut state = self.control.state();
            loop {
                if let Some(volume) = state.volume_by_name(name) {
                    return volume.clone();
                }
                state = self.control.changed(state.revision()).await;
            }
        };
        match tokio::time::timeout(timing::HEARD_OF_SNAPSHOT_MAX, heard).await {
            Ok(volume) => Ok(volume),
            Err(_) => self.control.state().need(name).cloned(),
        }
    }

    /// Attaches a volume.
    ///
    /// # Errors
    /// `Busy` if somebody else has it and is there; `Retry` says what it waits for.
    pub async fn attach(&self, volume: VolumeId) -> Result<Opened> {
        let generation = gateway::open(&self.worker.commands, volume, timing::ATTACH_LIMIT).await?;
        Ok(Opened(Served::Volume { volume, generation }))
    }

    /// Opens a snapshot of a volume, and says how many bytes the volume had then.
    ///
    /// # Errors
    /// `NotFound` if the volume has none of this name, `Retry` if it is not complete.
    pub async fn open_past(&self, volume: VolumeId, name: &str) -> Result<(Opened, u64)> {
        let (opened, snapshot) = self.open_named(volume, name).await?;
        Ok((opened, snapshot.of(volume).map_or(0, |of| of.size)))
    }

    async fn open_named(&self, volume: VolumeId, name: &str) -> Result<(Opened, Snapshot)> {
        let snapshot = heard_of_snapshot(&self.control, volume, name).await?;
        let of = gateway::open_past(&self.worker.commands, volume, snapshot.id).await?;
        Ok((Opened(of), snapshot))
    }

    /// A way to ask the driver of what was opened, from any thread.
    #[must_use]
    pub fn asker(&self, of: Opened) -> Asker {
        Asker { commands: self.worker.commands.clone(), of: of.0 }
    }

    /// One user less of what was opened. The last one gives a volume back, or closes a snapshot, in the background.
    pub fn release(&self, of: Opened) {
        let _ = self.worker.commands.send(Command::Release { of: of.0 });
    }

    /// Gives a volume back, whoever uses it here, and waits until the control plane has heard so; or closes a snapshot. An attachment
    /// that somebody has taken over is gone already.
    ///
    /// # Errors
    /// `Retry` if the control plane could not be told: the volume is free when its leases have ended.
    pub async fn give_back(&self, of: Opened) -> Result<()> {
        let Served::Volume { volume, generation } = of.0 else {
            self.release(of);
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        let ended = || Error::retry("the worker of this process has ended");
        self.worker.commands.send(Command::LetGoOf { volume, generation, reply }).map_err(|_| ended())?;
        let done = answer.await.map_err(|_| ended())?;
        if done.is_err() {
            // It is tried again in the background, and nobody uses it here meanwhile.
            self.release(of);
        }
        done
    }

    /// Gives everything back.
    pub async fn stop(&self) {
        stop_workers(std::slice::from_ref(&self.worker)).await;
    }
}

/// Asks one driver, or the reader of one snapshot.
#[derive(Clone, Debug)]
pub struct Asker {
    commands: mpsc::UnboundedSender<Command>,
    of: Served,
}

impl Asker {
    /// Asks it something, now; the answer comes when it is waited for. Several may be on their way.
    ///
    /// # Errors
    /// Those of the driver; `Fenced` once the volume is not attached here any more; `Retry` if the session has ended, or does
    /// meanwhile: a change may still happen then.
    pub fn ask(&self, op: Op) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let asked = self.commands.send(Command::Request { of: self.of, op, reply });
        async move {
            let ended = || Error::retry("the cluster was closed here: connect and attach again");
            asked.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())?
        }
    }
}

/// A volume that is attached here, or a snapshot that is read here.
pub struct Attached {
    session: Session,
    of: Opened,
}

/// A snapshot that is read here, and what it is.
pub struct AttachedPast {
    /// It reads the snapshot.
    pub reader: Attached,
    /// The snapshot as it was when this was opened.
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

/// A session that has heard of the volume.
async fn start(addresses: &[String], cluster: ClusterId, doing: &str, volume: VolumeId) -> Result<Session> {
    let mut identity = Hash32([0; 32]);
    OsRandom.fill(&mut identity.0);
    let (addresses, name) = (addresses.to_vec(), holder(doing));
    let session = Session::start(SessionOptions { addresses, cluster: Some(cluster), name, identity }).await?;
    if gateway::heard_of(&*session.control, volume).await.is_some() {
        return Ok(session);
    }
    session.stop().await;
    Err(Error::retry("no node tells of the volume; see `freebs status`, and try again"))
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
        let session = start(addresses, cluster, doing, volume).await?;
        match session.attach(volume).await {
            Ok(of) => Ok(Self { session, of }),
            Err(e) => {
                session.stop().await;
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
        let session = start(addresses, cluster, doing, volume).await?;
        let control = session.control.clone();
        match session.open_named(volume, name).await {
            Ok((of, snapshot)) => {
                let size = snapshot.of(volume).map_or(0, |of| of.size);
                Ok(AttachedPast { reader: Self { session, of }, snapshot, size, control, volume })
            }
            Err(e) => {
                session.stop().await;
                Err(e)
            }
        }
    }

    /// Asks the driver something, now; the answer comes when it is waited for. Several may be on their way.
    pub fn ask(&self, op: Op) -> impl Future<Output = Result<Reply>> + use<> {
        self.session.asker(self.of).ask(op)
    }

    /// Gives the volume back, or closes the snapshot.
    pub async fn close(self) {
        self.session.stop().await;
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

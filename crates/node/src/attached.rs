//! A volume that this process attaches for itself: the worker and driver of a gateway, without clients. For commands that
//! copy whole volumes.
//!
//! Invariant: it is one more driver, with an identity that no other process has: it never takes a volume from somebody who
//! is there, and nobody takes it from here without force.

use crate::admin::{FollowerOptions, Plane};
use crate::gateway::{self, Workers};
use crate::options::host_name;
use crate::runtime::{Command, WorkerHandle, WorkerSpec, pass_on_state, start_worker, stop_workers};
use crate::timing;
use freebs_driver::{Op, Reply};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Generation, Hash32, NodeId, Peer, Result, VolumeId, limits};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A volume that is attached here.
pub struct Attached {
    worker: WorkerHandle,
    volume: VolumeId,
    generation: Generation,
}

/// The name under which a command of this process has a volume: what it does, its host and process.
fn holder(doing: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let host: String = host_name().chars().map(allowed).take(limits::VOLUME_NAME_BYTES_MAX / 2).collect();
    format!("{doing}-on-{host}-{}", std::process::id())
}

impl Attached {
    /// Attaches a volume of the cluster that has a node at one of these addresses. `doing` is a word for people who find the
    /// volume attached. `Busy` if somebody else has it. It needs a runtime whose tasks stay on this thread.
    pub async fn open(addresses: &[String], cluster: ClusterId, doing: &str, volume: VolumeId) -> Result<Self> {
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
        pass_on_state(control, Workers { node: NodeId(0), commands: vec![worker.commands.clone()] });
        match gateway::open(&worker.commands, volume, timing::ATTACH_LIMIT).await {
            Ok(generation) => Ok(Self { worker, volume, generation }),
            Err(e) => {
                stop_workers(vec![worker]).await;
                Err(e)
            }
        }
    }

    /// Asks the driver something, now; the answer comes when it is waited for. Several may be on their way.
    pub fn ask(&self, op: Op) -> impl Future<Output = Result<Reply>> + use<> {
        let (reply, answer) = oneshot::channel();
        let Self { volume, generation, .. } = *self;
        let asked = self.worker.commands.send(Command::Request { volume, generation, op, reply });
        async move {
            let ended = || Error::bug("the driver has ended");
            asked.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())?
        }
    }

    /// Gives the volume back.
    pub async fn close(self) {
        stop_workers(vec![self.worker]).await;
    }
}

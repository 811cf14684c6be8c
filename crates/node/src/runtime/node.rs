//! One node: its control plane, its workers, its listeners, from start to a clean stop.

use super::greet::greet;
use super::thread::{Command, Disk, WorkerHandle, WorkerSpec, start_worker};
use crate::admin::{LocalFuture, LocalNode, Me, Plane, Service, serve};
use crate::cli::signals::Stop;
use crate::gateway::{self, Workers};
use crate::options::{NodeOptions, bind_error};
use freebs_chain::ShardStatus as ChainStatus;
use freebs_control::ControlPlane;
use freebs_control::api::{MemberState, ShardDigest, ShardStatus};
use freebs_format::wire::Role;
use freebs_io::Random;
use freebs_io::linux::OsRandom;
use freebs_io::linux::net::Stream;
use freebs_types::{Error, Hash32, NodeId, Peer, Result, ShardId, VolumeId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The file beside the log from which the secrets of views are derived, until secrets are shared among members.
const SECRET_FILE: &str = "view-secret";

/// Connections that have not said who they are.
const GREETINGS_MAX: usize = 256;
/// Connections to the control API.
const CONTROL_CLIENTS_MAX: usize = 2048;

/// Runs a node until it is told to stop.
pub fn run_node(options: NodeOptions) -> Result<()> {
    super::block_on(node(options))
}

async fn node(options: NodeOptions) -> Result<()> {
    let mut stop = Stop::new()?;
    let me = options.me().clone();
    let listen = options.listen.to_string();
    let listener = TcpListener::bind(options.listen).await.map_err(|e| bind_error("node", &listen, "--listen", &e))?;
    let plane = Plane::start(&options)?;
    let control = Arc::new(plane.clone());
    let secret = node_secret(&options.data)?;
    let ran_before = options.cluster.set_up || plane.state().node(me.id).is_some_and(|n| n.start.0 > 0);
    let mut handles = Vec::new();
    for worker in 0..options.workers {
        let disk = Disk {
            path: options.data.join(format!("log-{worker}.freebs")),
            segment_bytes: options.segment_bytes,
            size_limit: options.device_bytes / u64::from(options.workers),
            must_exist: ran_before,
            node_secret: secret,
        };
        let spec = WorkerSpec {
            cluster: options.cluster.cluster,
            me: Peer { node: me.id, worker },
            workers: options.workers,
            identity: Hash32(*blake3::hash(format!("node {}", me.id).as_bytes()).as_bytes()),
            name: me.name.clone(),
            control: control.clone(),
            disk: Some(disk),
        };
        // A stop need not wait for a recovery, which changes nothing that the next one would miss.
        let handle = tokio::select! {
            handle = start_worker(spec) => handle?,
            () = stop.wait() => {
                stop_workers(handles).await;
                return Ok(());
            }
        };
        tell_of_recovery(worker, &handle);
        handles.push(handle);
    }
    let start = handles.iter().map(|h| h.start).min().unwrap_or_default();
    let workers = Workers { node: me.id, commands: handles.iter().map(|h| h.commands.clone()).collect() };
    let registering = (plane.clone(), me.clone());
    let taken_in = tokio::task::spawn_local(async move { registering.0.register(&registering.1, start).await });
    let service = Service::new(
        Me {
            cluster: options.cluster.cluster,
            id: me.id,
            name: me.name.clone(),
            address: me.address.clone(),
            start,
            workers: options.workers,
            keeper: options.is_keeper(),
        },
        plane.clone(),
        Arc::new(Local { workers: workers.clone() }),
    );
    tokio::task::spawn_local(pass_on_state(control.clone(), workers.clone()));
    if let Some(nbd) = &options.nbd {
        gateway::serve(nbd.clone(), control, workers.clone()).await?;
        service.announce_self(nbd.to_string());
    }
    tokio::task::spawn_local(accept(listener, service, workers));
    tracing::info!(node = me.name, %listen, "up");
    let refused = async {
        match taken_in.await {
            Ok(Err(e)) => e.at("this node was not taken in by the control plane"),
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.wait() => {}
        e = refused => {
            stop_workers(handles).await;
            return Err(e);
        }
    }
    stop_workers(handles).await;
    tracing::info!(node = me.name, "stopped");
    Ok(())
}

fn tell_of_recovery(worker: u16, handle: &WorkerHandle) {
    let Some(r) = &handle.report else { return };
    tracing::info!(
        worker,
        start = r.start.0,
        shards = r.shards,
        frames = r.frames,
        segments = r.segments,
        torn_bytes = r.torn_bytes,
        damage = r.damage.len(),
        "recovered"
    );
}

/// Tells workers of every change of the control state.
pub async fn pass_on_state<C: ControlPlane>(control: Arc<C>, workers: Workers) {
    let mut seen = 0;
    loop {
        let state = control.changed(seen).await;
        seen = state.revision();
        for w in &workers.commands {
            let _ = w.send(Command::State(state.clone()));
        }
    }
}

/// Ends workers in good order, and waits for their threads a while.
pub async fn stop_workers(handles: Vec<WorkerHandle>) {
    let mut done = Vec::new();
    for h in &handles {
        let (reply, stopped) = oneshot::channel();
        let _ = h.commands.send(Command::Stop { reply });
        done.push(stopped);
    }
    for d in done {
        let _ = tokio::time::timeout(Duration::from_secs(8), d).await;
    }
}

async fn accept(listener: TcpListener, service: Arc<Service>, workers: Workers) {
    let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
    let clients = Arc::new(Semaphore::new(CONTROL_CLIENTS_MAX));
    loop {
        let Ok(greeting) = greetings.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (service, workers, clients) = (service.clone(), workers.clone(), clients.clone());
                tokio::task::spawn_local(async move {
                    if let Err(e) = route(stream, greeting, clients, service, &workers).await {
                        tracing::debug!("a connection ended: {e}");
                    }
                });
            }
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Brings a connection to who it asks for: the control API, or one of the workers.
async fn route(
    stream: TcpStream,
    greeting: OwnedSemaphorePermit,
    clients: Arc<Semaphore>,
    service: Arc<Service>,
    workers: &Workers,
) -> Result<()> {
    let greeted = greet(Stream::Tcp(stream)).await?;
    drop(greeting);
    let hello = greeted.hello;
    if hello.role == Role::Control {
        let full = |_| Error::no_space(format!("{CONTROL_CLIENTS_MAX} clients of the control API are connected"));
        let _place = clients.try_acquire_owned().map_err(full)?;
        let Stream::Tcp(stream) = greeted.stream else { return Err(Error::bug("nodes listen on TCP")) };
        return serve(stream, greeted.leftover, hello, service).await;
    }
    let worker = usize::from(hello.to_worker) % workers.commands.len();
    let stream = greeted.stream.loosen()?;
    let command = Command::Link { stream, hello, leftover: greeted.leftover };
    workers.commands[worker].send(command).map_err(|_| Error::retry("this node is stopping"))
}

/// The node's secret, made at the first start.
fn node_secret(data: &Path) -> Result<Hash32> {
    let path = data.join(SECRET_FILE);
    match crate::files::read_limited(&path, 64)? {
        Some(bytes) => <[u8; 32]>::try_from(&bytes[..]).map(Hash32).map_err(|_| {
            Error::corrupt(format!(
                "{} has {} bytes in place of 32; put it back from a copy, or start this node with an empty data \
                 directory so that it is filled from the others",
                path.display(),
                bytes.len()
            ))
        }),
        None => {
            let mut secret = Hash32::default();
            OsRandom.fill(&mut secret.0);
            crate::files::write_durably(&path, &secret.0)?;
            Ok(secret)
        }
    }
}

/// What the control API asks of this node's replicas.
struct Local {
    workers: Workers,
}

impl Local {
    fn worker(&self, shard: ShardId) -> &mpsc::UnboundedSender<Command> {
        let peer = Peer::of(self.workers.node, shard, self.workers.commands.len() as u16);
        &self.workers.commands[usize::from(peer.worker)]
    }

    async fn chain_status(&self) -> Vec<ChainStatus> {
        let mut all = Vec::new();
        for w in &self.workers.commands {
            let (reply, answer) = oneshot::channel();
            if w.send(Command::Status { reply }).is_ok() {
                all.extend(answer.await.unwrap_or_default());
            }
        }
        all.sort_by_key(|s| s.shard);
        all
    }
}

fn member_state(s: &ChainStatus) -> MemberState {
    match s.state {
        "active" | "following" => MemberState::Active,
        "syncing" => MemberState::Syncing,
        "stopped" | "damaged" => MemberState::Failed,
        _ => MemberState::Opening,
    }
}

impl LocalNode for Local {
    fn shards(&self, volume: Option<VolumeId>) -> LocalFuture<'_, Vec<ShardStatus>> {
        Box::pin(async move {
            let all = self.chain_status().await;
            let wanted = all.iter().filter(|s| volume.is_none_or(|v| s.shard.volume == v));
            wanted
                .map(|s| ShardStatus {
                    shard: s.shard,
                    view: s.view,
                    head: s.members.first().copied().unwrap_or(NodeId(0)),
                    version: s.version,
                    sequence: s.last.sequence,
                    durable: s.durable,
                    state: member_state(s),
                })
                .collect()
        })
    }

    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>> {
        Box::pin(async move {
            let gone = || Error::retry("this node is stopping");
            let (reply, answer) = oneshot::channel();
            self.worker(shard).send(Command::Digest { shard, reply }).map_err(|_| gone())?;
            let digest = answer.await.map_err(|_| gone())??;
            let status = self.chain_status().await;
            let view = status.iter().find(|s| s.shard == shard).map(|s| s.view).unwrap_or_default();
            Ok(ShardDigest { shard, view, version: digest.version, digest: digest.hash })
        })
    }
}

//! One node: its control plane, its workers, its listeners, from start to a clean stop.

use super::greet::greet;
use super::thread::{Command, Disk, OpenWorker, WorkerHandle, WorkerSpec, open_worker};
use crate::admin::{LocalFuture, LocalNode, Me, Plane, Service, serve};
use crate::cli::signals::Stop;
use crate::gateway::{self, Workers};
use crate::options::{NodeOptions, bind_error};
use freebs_chain::ShardStatus as ChainStatus;
use freebs_control::api::{MemberState, ShardDigest, ShardStatus};
use freebs_control::{ControlPlane, State};
use freebs_format::wire::Role;
use freebs_io::Random;
use freebs_io::linux::OsRandom;
use freebs_io::linux::net::Stream;
use freebs_types::{Error, Hash32, NodeId, Peer, Result, ShardId, StartNumber, VolumeId};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The file beside the log from which the secrets of views are derived, until secrets are shared among members.
const SECRET_FILE: &str = "view-secret";

/// How long the keeper of the control state is waited for in silence.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);
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
    // A stop need not wait for a recovery, which changes nothing that the next one would miss.
    let handles = tokio::select! {
        handles = start_workers(&options, &plane) => handles?,
        () = turn_away(&listener) => return Ok(()),
        () = stop.wait() => return Ok(()),
    };
    let start = handles.start;
    let workers = Workers { node: me.id, commands: handles.workers.iter().map(|h| h.commands.clone()).collect() };
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
    // Others may need this one's control plane to be taken in themselves.
    let taken_in = Rc::new(Cell::new(false));
    tokio::task::spawn_local(accept(listener, service.clone(), workers.clone(), taken_in.clone()));
    let ended = tokio::select! {
        registered = plane.register(&me, start) => match registered {
            Ok(()) => {
                taken_in.set(true);
                serve_all(&options, plane, &service, workers).await.map(|()| false)
            }
            Err(e) => Err(e.at("this node was not taken in by the control plane")),
        },
        () = stop.wait() => Ok(true),
    };
    if let Ok(false) = ended {
        tracing::info!(node = me.name, %listen, "up");
        stop.wait().await;
    }
    stop_workers(handles.workers).await;
    tracing::info!(node = me.name, "stopped");
    ended.map(|_| ())
}

/// All workers of a node, and the number of this start.
struct Started {
    start: StartNumber,
    workers: Vec<WorkerHandle>,
}

/// Recovers all devices, and starts their workers once the control plane has said that no device is an old image
/// (rule V8). All get the same start number, because a node registers one.
async fn start_workers(options: &NodeOptions, plane: &Plane) -> Result<Started> {
    let me = options.me();
    let control = Arc::new(plane.clone());
    let secret = node_secret(&options.data)?;
    let ran_before = options.cluster.set_up || plane.state().node(me.id).is_some_and(|n| n.start.0 > 0);
    let mut open: Vec<OpenWorker> = Vec::new();
    for worker in 0..options.workers {
        let disk = Disk {
            path: options.data.join(format!("log-{worker}.freebs")),
            segment_bytes: options.segment_bytes,
            size_limit: options.device_bytes / u64::from(options.workers),
            must_exist: ran_before,
            node_secret: secret,
            scrub_bytes: options.scrub_bytes.div_ceil(u64::from(options.workers)),
        };
        let spec = WorkerSpec {
            cluster: options.cluster.cluster,
            me: Peer { node: me.id, worker },
            workers: options.workers,
            identity: Hash32(*blake3::hash(format!("node {}", me.id).as_bytes()).as_bytes()),
            name: me.name.clone(),
            control: control.clone(),
            disk: Some(disk),
            busy_poll: options.busy_poll,
        };
        open.push(open_worker(spec).await?);
    }
    let came_with: Vec<StartNumber> = open.iter().map(|w| w.came_with).collect();
    let start = known_state(plane).await.next_start(me.id, &came_with)?;
    let mut workers = Vec::new();
    for (worker, w) in open.into_iter().enumerate() {
        let handle = w.start(start).await?;
        tell_of_recovery(worker, &handle);
        workers.push(handle);
    }
    Ok(Started { start, workers })
}

/// The control state, as soon as its keeper can be reached.
async fn known_state(plane: &Plane) -> Arc<State> {
    let state = plane.ready();
    let mut state = std::pin::pin!(state);
    match tokio::time::timeout(KEEPER_PATIENCE, &mut state).await {
        Ok(state) => state,
        Err(_) => {
            tracing::warn!("this node waits for the keeper of the control state, to be told that its devices are new");
            state.await
        }
    }
}

/// What a node that was taken in does beside answering for the control plane.
async fn serve_all(options: &NodeOptions, plane: Plane, service: &Service, workers: Workers) -> Result<()> {
    let control = Arc::new(plane);
    pass_on_state(control.clone(), workers.clone());
    if let Some(nbd) = &options.nbd {
        gateway::serve(nbd.clone(), control, workers).await?;
        service.announce_self(nbd.to_string());
    }
    Ok(())
}

/// Closes connections for as long as there is nobody to answer them: who connects tries again, or elsewhere.
async fn turn_away(listener: &TcpListener) {
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn tell_of_recovery(worker: usize, handle: &WorkerHandle) {
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

/// Tells workers the control state, and from then on every change of it.
pub fn pass_on_state<C: ControlPlane>(control: Arc<C>, workers: Workers) {
    let tell = move |state: &Arc<State>| {
        for w in &workers.commands {
            let _ = w.send(Command::State(state.clone()));
        }
    };
    let mut state = control.state();
    tell(&state);
    tokio::task::spawn_local(async move {
        loop {
            state = control.changed(state.revision()).await;
            tell(&state);
        }
    });
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

async fn accept(listener: TcpListener, service: Arc<Service>, workers: Workers, taken_in: Rc<Cell<bool>>) {
    let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
    let clients = Arc::new(Semaphore::new(CONTROL_CLIENTS_MAX));
    loop {
        let Ok(greeting) = greetings.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (service, clients) = (service.clone(), clients.clone());
                let (workers, taken_in) = (workers.clone(), taken_in.clone());
                tokio::task::spawn_local(async move {
                    if let Err(e) = route(stream, greeting, clients, service, &workers, &taken_in).await {
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
    taken_in: &Cell<bool>,
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
    if !taken_in.get() {
        // What a member says counts only once its start is known (rules W2, V8).
        return Err(Error::retry("a member or driver came before this node was taken in"));
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

//! A worker's thread: an event loop of its own, told from outside only by commands.

use super::core::{Core, Shards};
use super::drivers::Held;
use super::nbd_conn::Served;
use crate::events::EventLog;
use crate::timing;
use bytes::BytesMut;
use freebs_agent::{Port, workers_of};
use freebs_chain::{HostConfig, IntervalAsk, IntervalWord, ShardStatus, Worker, WorkerConfig};
use freebs_control::audit::{AuditOf, AuditState};
use freebs_control::events::{EventKind, Told};
use freebs_control::{ControlPlane, State};
use freebs_driver::Op;
use freebs_format::Pin;
use freebs_format::disk::{SEGMENTS_AT, SUPERBLOCK_BYTES, Superblock};
use freebs_format::wire::{Hello, Welcome};
use freebs_io::linux::net::{LooseLink, LooseStream, Transport};
use freebs_io::linux::ring::Ring;
use freebs_io::linux::{DeviceOptions, FileDevice, OsRandom, Poison, Pulse, SystemClock};
use freebs_io::{Clock, Device, Random};
use freebs_lsvd::{Digest, Engine, Expect, OpenReport, Options, Shape};
use freebs_nbd::Session;
use freebs_secrets::HostKey;
use freebs_types::{
    ClusterId, DeviceId, Error, ErrorKind, Generation, Hash32, Peer, Result, ShardId, SnapshotId, StartNumber, VolumeId,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::LocalSet;

/// Segments that a new device begins with.
const FIRST_SEGMENTS: u64 = 2;

/// The device of a worker.
#[derive(Clone, Debug)]
pub struct Disk {
    pub path: PathBuf,
    /// Bytes of a segment and of the whole device, if it has to be made.
    pub segment_bytes: u64,
    pub size_limit: u64,
    /// The node has run before: a device that is missing is an error, not a beginning.
    pub must_exist: bool,
    /// Secrets of views without slices are derived from this one.
    pub node_secret: Hash32,
    /// Opens this node's slices of other views' secrets.
    pub host_key: HostKey,
    /// Bytes a second that this worker's scrub reads; 0 for none.
    pub scrub_bytes: u64,
    /// Bytes of memory for the maps of the whole node, of which each worker has its share.
    pub map_bytes: u64,
    /// What people are told of.
    pub events: Arc<EventLog>,
    /// Of all devices of the node.
    pub pulse: Pulse,
    pub poison: Poison,
}

/// What a worker is.
pub struct WorkerSpec<C> {
    pub cluster: ClusterId,
    /// The node (0 for a gateway) and which of its workers this is.
    pub me: Peer,
    pub workers: u16,
    /// Hash of the persistent identity of drivers here, and its name for people.
    pub identity: Hash32,
    pub name: String,
    pub control: Arc<C>,
    /// None for a gateway.
    pub disk: Option<Disk>,
    /// How long it looks for more before it sleeps; see `freebs_io::linux::busy`.
    pub busy_poll: Duration,
}

/// What a worker is told.
pub enum Command {
    /// The control state is another.
    State(Arc<State>),
    /// Somebody connected: a member, or a driver.
    Link {
        stream: LooseLink,
        hello: Hello,
        welcome: Welcome,
        leftover: BytesMut,
    },
    /// Attach the volume for one more NBD connection (or count it, if it is attached here).
    Open {
        volume: VolumeId,
        reply: oneshot::Sender<Result<Generation>>,
    },
    /// Asks for the reason why the volume is not attached here yet, for people.
    WaitsFor {
        volume: VolumeId,
        reply: oneshot::Sender<String>,
    },
    /// Opens a snapshot of the volume for one more connection; the number of its reader.
    OpenPast {
        volume: VolumeId,
        snapshot: SnapshotId,
        reply: oneshot::Sender<Result<u16>>,
    },
    /// The opposite of `Open` or `OpenPast`, for a connection that never came.
    Release {
        of: Served,
    },
    /// An NBD connection in transmission, counted by an `Open` or `OpenPast` before. It belongs to that attachment and to no
    /// other: once that one is fenced, or its snapshot deleted, the connection gets nothing but errors.
    Nbd {
        of: Served,
        /// Of a snapshot: the pins since which block status tells changes.
        since: Option<Arc<[Pin]>>,
        /// Its place among the connections of the process.
        place: OwnedSemaphorePermit,
        stream: LooseStream,
        session: Box<Session>,
        input: BytesMut,
    },
    /// A request of this process itself, for what an `Open` or `OpenPast` counted.
    Request {
        of: Served,
        op: Op,
        reply: oneshot::Sender<Result<freebs_driver::Reply>>,
    },
    /// Attaches the volume until `LetGo`, also without a connection. `force`: takes it from whoever has it.
    Hold {
        volume: VolumeId,
        force: bool,
        reply: oneshot::Sender<Result<Held>>,
    },
    /// Give this attachment back, if this process has it still, whoever uses it here.
    LetGoOf {
        volume: VolumeId,
        generation: Generation,
        reply: oneshot::Sender<Result<()>>,
    },
    /// The opposite of `Hold`: the generation that ended, `None` if the volume is not attached here. `force`: also while
    /// clients use it.
    LetGo {
        volume: VolumeId,
        force: bool,
        reply: oneshot::Sender<Result<Option<Generation>>>,
    },
    /// Takes the volume from whoever has it, and gives it back. `force`: also if that one is there.
    Expel {
        volume: VolumeId,
        force: bool,
        reply: oneshot::Sender<Result<()>>,
    },
    Status {
        reply: oneshot::Sender<Vec<ShardStatus>>,
    },
    /// Another shard's head asks the head of one that is here.
    AskInterval {
        ask: IntervalAsk,
        reply: oneshot::Sender<Result<IntervalWord>>,
    },
    Digest {
        shard: ShardId,
        reply: oneshot::Sender<Result<Digest>>,
    },
    /// Begin the audit of a shard's hash chain, or say how far it is.
    Audit {
        of: AuditOf,
        reply: oneshot::Sender<Result<AuditState>>,
    },
    /// Give volumes back, make everything durable, end.
    Stop {
        reply: oneshot::Sender<()>,
    },
}

/// The outside end of a worker.
pub struct WorkerHandle {
    pub commands: mpsc::UnboundedSender<Command>,
    pub report: Option<OpenReport>,
    /// Hears why its device is out of use.
    pub failed: oneshot::Receiver<Error>,
}

/// A worker whose device is recovered and not written to yet: it waits for the number of this start (rule V8).
pub struct OpenWorker {
    /// What the device comes with.
    pub came_with: StartNumber,
    admit: oneshot::Sender<StartNumber>,
    commands: mpsc::UnboundedSender<Command>,
    started: oneshot::Receiver<Result<Up>>,
}

impl OpenWorker {
    /// Lets it begin. Without this its thread ends, and the device stays as it was.
    pub async fn start(self, start: StartNumber) -> Result<WorkerHandle> {
        // If it is gone, its error says why.
        let _ = self.admit.send(start);
        let up = self.started.await.map_err(|_| ended())??;
        Ok(WorkerHandle { commands: self.commands, report: up.report, failed: up.failed })
    }
}

fn ended() -> Error {
    Error::bug("a worker ended before it began")
}

/// The inside end of the question which number a start has.
pub struct Admission {
    came_with: oneshot::Sender<StartNumber>,
    start: oneshot::Receiver<StartNumber>,
}

impl Admission {
    async fn ask(self, came_with: StartNumber) -> Result<StartNumber> {
        let stopped = || Error::retry("the node stopped before this worker was to begin");
        self.came_with.send(came_with).map_err(|_| stopped())?;
        self.start.await.map_err(|_| stopped())
    }
}

/// Starts the thread of a worker with a device, and waits until that is recovered.
pub async fn open_worker<C: ControlPlane>(spec: WorkerSpec<C>) -> Result<OpenWorker> {
    let (commands, receiver) = mpsc::unbounded_channel();
    let (tell_started, started) = oneshot::channel();
    let (came_with, asked) = oneshot::channel();
    let (admit, start) = oneshot::channel();
    spawn_thread(spec, Some(Admission { came_with, start }), receiver, tell_started)?;
    match asked.await {
        Ok(came_with) => Ok(OpenWorker { came_with, admit, commands, started }),
        Err(_) => Err(started.await.map_err(|_| ended())?.err().unwrap_or_else(ended)),
    }
}

/// Starts the thread of a worker without a device.
pub async fn start_worker<C: ControlPlane>(spec: WorkerSpec<C>) -> Result<WorkerHandle> {
    let (commands, receiver) = mpsc::unbounded_channel();
    let (tell_started, started) = oneshot::channel();
    spawn_thread(spec, None, receiver, tell_started)?;
    let up = started.await.map_err(|_| ended())??;
    Ok(WorkerHandle { commands, report: up.report, failed: up.failed })
}

/// The answer of a worker's thread that has begun.
struct Up {
    report: Option<OpenReport>,
    failed: oneshot::Receiver<Error>,
}

type Started = oneshot::Sender<Result<Up>>;

fn spawn_thread<C: ControlPlane>(
    spec: WorkerSpec<C>,
    admission: Option<Admission>,
    commands: mpsc::UnboundedReceiver<Command>,
    started: Started,
) -> Result<()> {
    std::thread::Builder::new()
        .name(format!("worker-{}", spec.me.worker))
        .spawn(move || run_thread(spec, admission, commands, started))
        .map(|_| ())
        .map_err(|e| Error::os(format!("no thread for a worker: {e}")))
}

fn run_thread<C: ControlPlane>(
    spec: WorkerSpec<C>,
    admission: Option<Admission>,
    commands: mpsc::UnboundedReceiver<Command>,
    started: Started,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().event_interval(31).build() {
        Ok(r) => r,
        Err(e) => {
            let _ = started.send(Err(Error::os(format!("no event loop for a worker: {e}"))));
            return;
        }
    };
    let local = LocalSet::new();
    let busy_poll = spec.busy_poll;
    local.block_on(&runtime, async move {
        if !busy_poll.is_zero() {
            tokio::task::spawn_local(freebs_io::linux::busy::poll(busy_poll));
        }
        match Core::build(spec, admission).await {
            Ok((core, report)) => {
                let (tell, failed) = oneshot::channel();
                let _ = started.send(Ok(Up { report, failed }));
                let watched = core.clone();
                tokio::task::spawn_local(async move {
                    let _ = tell.send(watched.failed().await);
                });
                core.run(commands).await;
            }
            Err(e) => {
                let _ = started.send(Err(e));
            }
        }
    });
}

/// Opens (or makes) the device and starts the chain on it.
pub async fn start_shards<C: ControlPlane>(
    spec: &WorkerSpec<C>,
    disk: &Disk,
    admission: Admission,
    transport: &Transport<super::FreebsWire>,
) -> Result<(Shards<C>, OpenReport)> {
    let (engine, report) = open_engine(spec, disk, admission).await.map_err(|e| e.at(disk.path.display()))?;
    for f in &report.damage {
        let at = f.segment.map_or_else(String::new, |s| format!(", segment {s}"));
        let text = format!("found at the start in {}{at}, byte {}: {}", disk.path.display(), f.offset, f.what);
        disk.events.tell(Told::new(EventKind::Damage, text).about(spec.name.clone()));
    }
    let state = spec.control.state();
    let host = HostConfig {
        cluster: spec.cluster,
        me: spec.me,
        start: engine.start(),
        workers: workers_of(&state),
        node_secret: disk.node_secret,
        host_key: disk.host_key.clone(),
        mutant: None,
    };
    let (events, control) = (disk.events.clone(), spec.control.clone());
    let worker = Worker::start(WorkerConfig {
        host,
        engine,
        outbox: transport.clone(),
        control: Port::new(spec.control.clone(), spec.me.node),
        clock: SystemClock,
        random: Box::new(OsRandom),
        scrub_bytes: disk.scrub_bytes,
        notes: Box::new(move |note| events.note(note, &control.state())),
    })
    .await?;
    Ok((worker, report))
}

/// Whether the device begins with a superblock: what is not ours is left as it is, for the engine to refuse.
async fn is_ours(device: &FileDevice) -> bool {
    if device.len() < SUPERBLOCK_BYTES as u64 {
        return false;
    }
    device.read(0, SUPERBLOCK_BYTES).await.is_ok_and(|b| Superblock::decode(&b).is_ok())
}

/// Opens the device. One of a process that was just killed stays locked for a moment: the kernel ends its requests
/// first.
async fn open_device(ring: &Ring, path: &Path, options: &DeviceOptions) -> Result<FileDevice> {
    let begun = std::time::Instant::now();
    loop {
        match FileDevice::open(ring, path, options.clone()) {
            Err(e) if e.kind == ErrorKind::Busy && begun.elapsed() < timing::BUSY_MAX => {
                tokio::time::sleep(timing::BUSY_LOOK).await;
            }
            other => return other,
        }
    }
}

async fn open_engine<C>(
    spec: &WorkerSpec<C>,
    disk: &Disk,
    admission: Admission,
) -> Result<(Engine<FileDevice>, OpenReport)> {
    let ring = Ring::start()?;
    // A file that was cut short still has bytes: only one that is missing or empty is made anew.
    let is_new = std::fs::metadata(&disk.path).map_or(true, |m| m.is_file() && m.len() == 0);
    if is_new && disk.must_exist {
        return Err(Error::not_found(
            "the device is gone, and was there at an earlier start; put it back where it was. A node whose device is \
             lost for good can't be taken in again yet: leave it down, the other copies go on without it",
        ));
    }
    let (poison, pulse) = (disk.poison.clone(), disk.pulse.clone());
    let options = DeviceOptions { create: true, poison, pulse, ..DeviceOptions::default() };
    let device = open_device(&ring, &disk.path, &options).await?;
    if !device.is_direct() {
        tracing::warn!("{} does not take direct I/O; going through the page cache", disk.path.display());
    }
    if is_new {
        let mut id = DeviceId::default();
        let mut random = OsRandom;
        random.fill(&mut id.0);
        let shape = Shape {
            cluster: spec.cluster,
            node: spec.me.node,
            device: id,
            worker: spec.me.worker,
            workers: spec.workers,
            segment_bytes: disk.segment_bytes,
            size_limit: disk.size_limit,
            wall: SystemClock.wall(),
        };
        Engine::create(device.clone(), &shape).await?;
    }
    // The first segments are made here, so that a full file system is an error at the start and not of a write.
    let first = (SEGMENTS_AT + FIRST_SEGMENTS * disk.segment_bytes).min(disk.size_limit);
    if !device.is_block_device() && device.len() < first && is_ours(&device).await {
        device.set_len(first).await.map_err(|e| {
            let way_out = "free some space, or choose another directory with --data";
            Error { text: format!("no room for the first segments: {e}; {way_out}").into(), ..e }
        })?;
    }
    let expect = Expect { cluster: spec.cluster, node: spec.me.node, worker: spec.me.worker, workers: spec.workers };
    let options = Options::of_node(disk.map_bytes, spec.workers);
    Engine::open_as(device, &expect, options, async |came_with| admission.ask(came_with).await).await
}

//! Making and opening disks: the log, what the disk is, and the view that this start opens.
//!
//! Invariants: a disk that was not made to its end is refused, as is damage at the end of the log that may have
//! taken durable updates (rule E7), unless the caller accepts that loss. Nothing is ordered before the start's own view
//! frame is durable (rule W2).

use crate::confined::Task;
use crate::description::{Description, check_size};
use crate::head::{Head, NODE};
use crate::inside::Inside;
use crate::timing;
use freebs_format::disk::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use freebs_format::{Extent, ExtentKind, UpdateDraft, UpdateKind, block_crc};
use freebs_io::linux::{DeviceOptions, LentDevice, OsRandom, SystemClock, Which};
use freebs_io::{Clock, Device, Random};
use freebs_lsvd::{Engine, Expect, OpenReport, Options, Record, Shape};
use freebs_types::{
    BLOCK, BlockRange, ClusterId, DeviceId, DriverId, Error, ErrorKind, Hash32, RequestNumber, Result, ShardId, limits,
};
use std::path::Path;
use std::time::Instant;

/// The disk's content, and its description.
pub(crate) const CONTENT: ShardId = ShardId::new(1, 0);
pub(crate) const ABOUT: ShardId = ShardId::new(2, 0);

/// How to make a disk.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes that the log may grow to. Default: twice the disk, and 512 MiB.
    pub log_bytes: Option<u64>,
    /// Bytes of a segment of the log, 1 MiB to 1 GiB. Default: 16 MiB.
    pub segment_bytes: u64,
    /// Go through the page cache.
    pub buffered: bool,
    /// Bytes of memory for the map of what is where, 16 MiB to 1 TiB. What does not fit lies in the file. Default:
    /// 256 MiB, which is used only as far as it is needed.
    pub map_bytes: Option<u64>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { log_bytes: None, segment_bytes: limits::SEGMENT_BYTES, buffered: false, map_bytes: None }
    }
}

/// How to open a disk.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Go through the page cache.
    pub buffered: bool,
    /// As in `CreateOptions`.
    pub map_bytes: Option<u64>,
    /// Takes for lost what damage to the log has taken, and goes on with the rest. A disk that may have lost durable
    /// updates at its end is refused otherwise, and blocks that lost updates may have written are not read. The error
    /// says what is lost. Has no effect on a disk that has lost nothing.
    pub accept_loss: bool,
}

/// Runs a task alone, performing what it asks for.
fn alone<T>(device: &LentDevice, future: impl Future<Output = T> + 'static) -> T
where
    T: 'static,
{
    let mut task = Task::new(future);
    loop {
        if let Some(out) = task.step() {
            return out;
        }
        while let Some(w) = device.take(Which::Any).or_else(|| device.take(Which::Space)) {
            device.complete(w.perform());
        }
    }
}

fn open_device(path: &Path, create: bool, buffered: bool) -> Result<LentDevice> {
    let begun = Instant::now();
    let options = DeviceOptions { create, buffered, ..DeviceOptions::default() };
    loop {
        match LentDevice::open(path, &options) {
            Err(e) if e.kind == ErrorKind::Busy && begun.elapsed() < timing::BUSY_MAX => {
                std::thread::sleep(timing::BUSY_LOOK);
            }
            other => return other,
        }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut b = [0; N];
    OsRandom.fill(&mut b);
    b
}

/// A fresh name for a history.
pub(crate) fn fresh_history() -> [u8; 16] {
    random()
}

/// Makes a disk at a path where nothing is yet (or an empty file), and opens it.
pub(crate) fn create(path: &Path, size: u64, options: &CreateOptions) -> Result<(Inside, OpenReport)> {
    check_size(size)?;
    let map = map_options(options.map_bytes)?;
    if std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0) {
        return Err(Error::invalid(format!("{} exists already; open it, or choose another path", path.display())));
    }
    let device = open_device(path, true, options.buffered)?;
    let limit = options.log_bytes.unwrap_or(size.saturating_mul(2).saturating_add(512 << 20));
    let cluster = ClusterId(random());
    let shape = Shape {
        cluster,
        node: NODE,
        device: DeviceId(random()),
        worker: 0,
        workers: 1,
        segment_bytes: options.segment_bytes,
        size_limit: limit,
        wall: SystemClock.wall(),
    };
    let description = Description {
        size,
        created: SystemClock.wall(),
        disk: cluster.0,
        history: fresh_history(),
        copy: false,
        secret: Hash32(random()),
        base: 0,
        filling_to: 0,
    };
    let made = device.clone();
    alone(&device, async move { Engine::create(made, &shape).await })?;
    let (engine, report) = open_engine(&device, cluster, map)?;
    let about = Head::new(cluster, ABOUT, Hash32::default(), None)?;
    let head = Head::new(cluster, CONTENT, description.secret, None)?;
    let mut inside = Inside::new(device, engine, head, about, description);
    let frame = inside.about.open_view(inside.engine.start(), 0);
    inside.engine.append(Record::Frame(frame));
    inside.describe();
    begin(&mut inside)?;
    Ok((inside, report))
}

/// Opens a disk.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<(Inside, OpenReport)> {
    let map = map_options(options.map_bytes)?;
    let device = open_device(path, false, options.buffered)?;
    let cluster = identity(&device, path)?;
    let (mut engine, report) = open_engine(&device, cluster, map).map_err(|e| e.at(path.display()))?;
    if options.accept_loss && !engine.lost().is_empty() {
        // The log is closed behind what says so, and opened once more.
        alone(&device, async move { engine.accept_loss().await }).map_err(|e| e.at(path.display()))?;
        engine = open_engine(&device, cluster, map).map_err(|e| e.at(path.display()))?.0;
    }
    let state = engine.state(ABOUT).filter(|s| s.version.0 > 0);
    let state = state.ok_or_else(|| Error::invalid(format!("{}: no disk was made here to its end", path.display())))?;
    let reader = engine.clone();
    let read = alone(&device, async move { reader.read(ABOUT, BlockRange::new(0, 1)).await })?;
    let block = read.data.first().ok_or_else(|| Error::corrupt("the disk's description is missing"))?;
    let description = Description::decode(block).map_err(|e| e.at(path.display()))?;
    let about = Head::new(cluster, ABOUT, Hash32::default(), Some(&state))?;
    let content = engine.state(CONTENT);
    if content.as_ref().is_some_and(|s| s.suspect_tail) {
        let lost: Vec<String> = engine.lost().iter().filter(|l| l.shard == CONTENT).map(|l| l.to_string()).collect();
        return Err(Error::corrupt(format!(
            "{}: damage to the log may have taken durable updates, and there is no other copy to ask: {}. Copy the file, \
             if it may be read better elsewhere; open it with `accept_loss` to go on without them",
            path.display(),
            lost.join("; ")
        )));
    }
    let head = Head::new(cluster, CONTENT, description.secret, content.as_ref())?;
    let mut inside = Inside::new(device, engine, head, about, description);
    inside.engine.committed(ABOUT, state.last.sequence);
    inside.engine.committed(CONTENT, inside.head.sequence());
    let frame = inside.about.open_view(inside.engine.start(), state.version.0);
    inside.engine.append(Record::Frame(frame));
    begin(&mut inside)?;
    Ok((inside, report))
}

/// Opens this start's view of the content and waits for it.
fn begin(inside: &mut Inside) -> Result<()> {
    let (start, version) = (inside.engine.start(), inside.head.version());
    let frame = inside.head.open_view(start, version);
    let sequence = frame.head.seq();
    inside.engine.append(Record::Frame(frame));
    while inside.head.durable_sequence() < sequence {
        inside.turn();
        inside.alive()?;
        let device = inside.device.clone();
        while let Some(w) = device.take(Which::Any).or_else(|| device.take(Which::Space)) {
            device.complete(w.perform());
        }
    }
    Ok(())
}

/// The cluster that the superblock names.
fn identity(device: &LentDevice, path: &Path) -> Result<ClusterId> {
    let end = SUPERBLOCK_AT.iter().max().map_or(0, |a| a + SUPERBLOCK_BYTES as u64);
    let gone = || Error::invalid(format!("{} holds no disk", path.display()));
    if device.len() < end {
        return Err(gone());
    }
    let mut problem = None;
    for at in SUPERBLOCK_AT {
        let reader = device.clone();
        let read = alone(device, async move { reader.read(at, SUPERBLOCK_BYTES).await });
        match read.and_then(|b| Superblock::decode(&b)) {
            Ok(sb) => return Ok(sb.cluster_id()),
            Err(e) if e.kind == ErrorKind::NotFound => {}
            Err(e) => problem = Some(e.at(path.display())),
        }
    }
    Err(problem.unwrap_or_else(gone))
}

fn map_options(map_bytes: Option<u64>) -> Result<Options> {
    let bytes = map_bytes.unwrap_or(Options::NODE_MAP_BYTES);
    Options::check_map_bytes(bytes).map(|()| Options::of_node(bytes, 1))
}

fn open_engine(device: &LentDevice, cluster: ClusterId, map: Options) -> Result<(Engine<LentDevice>, OpenReport)> {
    let expect = Expect { cluster, node: NODE, worker: 0, workers: 1 };
    let mine = device.clone();
    alone(device, async move { Engine::open_with(mine, &expect, map).await })
}

impl Inside {
    /// Puts the description into the log as it is now.
    pub fn describe(&mut self) {
        let block = self.description.encode();
        let draft = UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(0),
            number: RequestNumber(0),
            lowest_open: RequestNumber(0),
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 1) }],
            crcs: vec![block_crc(&block)],
            data: vec![block.into()],
        };
        debug_assert_eq!(draft.data_bytes(), BLOCK);
        for frame in [self.about.push(draft), self.about.pack()].into_iter().flatten() {
            self.engine.append(Record::Frame(frame));
        }
    }
}

//! What the engine's tests share: a writer of chained frames, a naive model of a shard, an engine with its writer.

#![allow(dead_code, reason = "each test file uses its part")]

use bytes::Bytes;
use freebs_format::disk::{AppendHeader, SegmentFooter};
use freebs_format::{
    AttachBody, Extent, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, Member, Pin, PinUpdate, UpdateDraft,
    UpdateKind, ViewBody, ViewSecret, block_crc, hide,
};
use freebs_io::{AnyDevice, Device};
use freebs_lsvd::{Durable, Expect, FrameName, Listener, OpenReport, Options, Record, RuleMutant, Shape};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DeviceId, DriverId, Error, Generation, Hash32, HostPublic, Lba, NodeId,
    RequestNumber, Result, SealedSlice, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

pub const CLUSTER: ClusterId = ClusterId([7; 16]);
pub const SEGMENT: u64 = 1 << 20;
/// Bytes of an append's header, and of a segment's footer.
pub const HEADER: usize = size_of::<AppendHeader>();
pub const FOOTER: usize = size_of::<SegmentFooter>();

/// The pin of a version: each has a snapshot of its own.
pub fn pin(version: u64) -> Pin {
    Pin { version: Version(version), snapshot: SnapshotId(version * 3 + 1) }
}

/// Seeds that catch rules which are left out.
pub fn seed_table() -> freebs_testing::Table {
    freebs_testing::Table::new("crates/lsvd/tests/suite/mutant_seeds.txt", include_str!("mutant_seeds.txt"))
}

pub fn shape(segments: u64) -> Shape {
    Shape {
        cluster: CLUSTER,
        node: NodeId(1),
        device: DeviceId([9; 16]),
        worker: 0,
        workers: 1,
        segment_bytes: SEGMENT,
        size_limit: SEGMENT * (segments + 1),
        wall: 1,
    }
}

pub fn expect() -> Expect {
    Expect { cluster: CLUSTER, node: NodeId(1), worker: 0, workers: 1 }
}

/// The engine is made for one type of device only, whatever the tests have: making it for each takes half a minute.
pub type Engine = freebs_lsvd::Engine<AnyDevice>;

pub fn erased<D: Device + Clone>(device: &D) -> AnyDevice {
    AnyDevice::new(device.clone())
}

pub async fn create_log(device: impl Device, shape: &Shape) -> Result<()> {
    Engine::create(AnyDevice::new(device), shape).await
}

pub type Opened = Result<(Engine, OpenReport)>;

pub async fn open_log(device: impl Device, expect: &Expect) -> Opened {
    Engine::open(AnyDevice::new(device), expect).await
}

pub async fn open_log_with(device: impl Device, expect: &Expect, options: Options) -> Opened {
    Engine::open_with(AnyDevice::new(device), expect, options).await
}

pub async fn open_log_without(
    rule: Option<RuleMutant>,
    device: impl Device,
    expect: &Expect,
    options: Options,
) -> Opened {
    Engine::open_without(rule, AnyDevice::new(device), expect, options).await
}

/// A small, fast, repeatable source of choices.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A block whose content says what it is.
pub fn block(fill: u64) -> Bytes {
    let mut b = vec![0u8; BLOCK];
    for (i, c) in b.chunks_exact_mut(8).enumerate() {
        c.copy_from_slice(&(fill.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64)).to_le_bytes());
    }
    b[..8].copy_from_slice(&fill.to_le_bytes());
    b.into()
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell8 {
    Trim,
    Zero,
    Data(u64),
}

pub type Model = BTreeMap<u32, Cell8>;

/// One change of some blocks.
#[derive(Clone, Debug)]
pub struct Op {
    pub extents: Vec<(ExtentKind, u32, u32)>,
    pub fill: u64,
}

impl Op {
    pub fn random(rng: &mut Rng, blocks: u32) -> Self {
        let n = if rng.chance(80) { 1 } else { 1 + rng.below(3) };
        let part = blocks / n as u32;
        let extents = (0..n as u32)
            .map(|i| {
                let kind = match rng.below(10) {
                    0 => ExtentKind::Trim,
                    1 => ExtentKind::Zero,
                    _ => ExtentKind::Data,
                };
                let most = if rng.chance(70) { 4 } else { 24 };
                let len = 1 + rng.below(most) as u32;
                let len = len.min(part);
                (kind, i * part + rng.below(u64::from(part - len + 1)) as u32, len)
            })
            .collect();
        Self { extents, fill: rng.next() >> 8 }
    }

    pub fn apply(&self, model: &mut Model) {
        for (kind, start, len) in &self.extents {
            for b in *start..start + len {
                let cell = match kind {
                    ExtentKind::Trim => Cell8::Trim,
                    ExtentKind::Zero => Cell8::Zero,
                    ExtentKind::Data => Cell8::Data(self.fill + u64::from(b)),
                };
                model.insert(b, cell);
            }
        }
    }

    fn draft(&self, driver: DriverId, number: u64, low: u64) -> UpdateDraft {
        let mut data = Vec::new();
        let mut crcs = Vec::new();
        for (kind, start, len) in &self.extents {
            if *kind == ExtentKind::Data {
                let mut run = Vec::with_capacity(*len as usize * BLOCK);
                for b in *start..start + len {
                    let block = block(self.fill + u64::from(b));
                    crcs.push(block_crc(&block));
                    run.extend_from_slice(&block);
                }
                data.push(Bytes::from(run));
            }
        }
        let kind = match self.extents[0].0 {
            ExtentKind::Data => UpdateKind::Write,
            ExtentKind::Trim => UpdateKind::Trim,
            ExtentKind::Zero => UpdateKind::Zero,
        };
        UpdateDraft {
            kind,
            driver,
            number: RequestNumber(number),
            lowest_open: RequestNumber(low),
            extents: self
                .extents
                .iter()
                .map(|(kind, s, l)| Extent { kind: *kind, range: BlockRange::new(*s, *l) })
                .collect(),
            crcs,
            data,
        }
    }
}

/// The head of a shard's chain, as far as frames go.
#[derive(Clone)]
pub struct Chain {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub secret: Hash32,
    pub id: Hash32,
    pub sequence: u64,
    pub version: u64,
    pub chunk: ChunkId,
    pub offset: u32,
    pub committed: u64,
    pub requests: u64,
    /// The driver's lowest request without an answer.
    pub low: u64,
    /// Members of its views.
    pub members: u64,
}

impl Chain {
    pub fn new(shard: ShardId) -> Self {
        Self {
            shard,
            view: ViewNumber(1),
            secret: Hash32([3; 32]),
            id: Hash32::default(),
            sequence: 0,
            version: 0,
            chunk: ChunkId::new(1, 0),
            offset: 0,
            committed: 0,
            requests: 0,
            low: 1,
            members: 1,
        }
    }

    fn meta(&self) -> FrameMeta {
        FrameMeta {
            cluster: CLUSTER,
            shard: self.shard,
            view: self.view,
            chunk: self.chunk,
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version),
            committed: Sequence(self.committed),
            wall: 0,
        }
    }

    pub fn frame(&mut self, ops: &[Op]) -> Frame {
        if self.offset >= 4096 {
            self.chunk.counter += 1;
            self.offset = 0;
        }
        let mut b = FrameBuilder::new();
        for op in ops {
            self.requests += 1;
            b.push(op.draft(DriverId(5), self.requests, self.low));
        }
        let meta = FrameMeta { first_version: Version(self.version + 1), ..self.meta() };
        let (frame, id) = b.build(&meta, &self.secret, &self.id);
        self.id = id;
        self.sequence += 1;
        self.version += ops.len() as u64;
        self.offset += frame.header().data_blocks();
        frame
    }

    /// A frame of updates about versions: kind and what they are about. Snapshots have numbers of their own, as `pin`
    /// gives them.
    pub fn pins(&mut self, ops: &[(UpdateKind, u64)]) -> Frame {
        let mut b = FrameBuilder::new();
        for ((kind, base), version) in ops.iter().zip(self.version + 1..) {
            self.requests += 1;
            let base = if *kind == UpdateKind::Snapshot { pin(version).snapshot.0 } else { *base };
            let pin = match kind {
                UpdateKind::Past => PinUpdate::Past(pin(base)),
                _ => PinUpdate::of(*kind, base, 0).unwrap(),
            };
            b.push_pin(pin, (DriverId(5), RequestNumber(self.requests), RequestNumber(self.low)));
        }
        let meta = FrameMeta { first_version: Version(self.version + 1), ..self.meta() };
        let (frame, id) = b.build(&meta, &self.secret, &self.id);
        self.id = id;
        self.sequence += 1;
        self.version += ops.len() as u64;
        frame
    }

    /// Opens the next view, which seals the one before at its present end.
    pub fn view_frame(&mut self, view: u64, secret: u8) -> Frame {
        self.opens(view, secret, None, self.id)
    }

    /// The same, and publishes the secret of the view before.
    pub fn publishing_view_frame(&mut self, view: u64, secret: u8) -> Frame {
        let pred_secret = if self.sequence == 0 { Hash32::default() } else { self.secret };
        let (point, slices) = (HostPublic([0; 32]), vec![SealedSlice::default()]);
        self.opens(view, secret, Some(Box::new(ViewSecret { threshold: 1, point, pred_secret, slices })), self.id)
    }

    /// The next view by force: its frame names the public hash of the one before it, and begins a branch.
    pub fn branch_frame(&mut self, view: u64, secret: u8) -> Frame {
        self.opens(view, secret, None, hide(&self.id))
    }

    /// One or the other.
    pub fn next_view(&mut self, view: u64, secret: u8, by_force: bool) -> Frame {
        if by_force { self.branch_frame(view, secret) } else { self.view_frame(view, secret) }
    }

    fn opens(&mut self, view: u64, secret: u8, shared: Option<Box<ViewSecret>>, parent: Hash32) -> Frame {
        // The other kind of frame is as it always was.
        let is_first = self.sequence == 0 && shared.is_some();
        let body = ViewBody {
            pred: if is_first { ViewNumber(0) } else { self.view },
            seal_sequence: Sequence(self.sequence),
            seal_hid: if is_first { Hash32::default() } else { hide(&self.id) },
            secret_hash: hide(&Hash32([secret; 32])),
            quorum: 1,
            min_copies: 1,
            generation: Generation(1),
            members: (1..=self.members)
                .map(|n| Member { node: NodeId(n), start: StartNumber(1), early: false })
                .collect(),
            shared,
            volume: None,
        };
        self.view = ViewNumber(view);
        self.secret = Hash32([secret; 32]);
        (self.chunk, self.offset) = (ChunkId::new(view, 0), 0);
        let (frame, id) = FrameBuilder::special(&self.meta(), FrameKind::View, &body.encode(), &self.secret, &parent);
        self.id = id;
        self.sequence += 1;
        frame
    }

    pub fn attach_frame(&mut self, generation: u64) -> Frame {
        let body =
            AttachBody { generation: Generation(generation), driver: DriverId(generation), identity: Hash32([1; 32]) };
        let (frame, id) =
            FrameBuilder::special(&self.meta(), FrameKind::Attach, &body.encode(), &self.secret, &self.id);
        self.id = id;
        self.sequence += 1;
        frame
    }

    pub fn name(&self) -> FrameName {
        FrameName { view: self.view, sequence: Sequence(self.sequence), hid: hide(&self.id) }
    }
}

#[derive(Default)]
pub struct Heard {
    pub done: RefCell<Vec<Durable>>,
    pub count: Cell<usize>,
    pub failed: RefCell<Option<Error>>,
}

impl Listener for Heard {
    fn durable(&self, done: &mut Vec<Durable>) {
        self.count.set(self.count.get() + done.len());
        self.done.borrow_mut().append(done);
    }
    fn failed(&self, error: &Error) {
        assert!(self.failed.borrow().is_none(), "failure is told once");
        *self.failed.borrow_mut() = Some(error.clone());
    }
}

/// An engine with its writer running in the current `LocalSet`.
pub struct Rig {
    pub engine: Engine,
    pub heard: Rc<Heard>,
    pub sent: Cell<usize>,
    pub report: OpenReport,
    pub task: tokio::task::JoinHandle<Result<()>>,
}

impl Rig {
    pub async fn open(device: impl Device) -> Result<Self> {
        Self::open_with(device, Options::of_workers(1)).await
    }

    pub async fn open_with(device: impl Device, options: Options) -> Result<Self> {
        Self::open_without(None, device, options).await
    }

    /// The same, with a rule left out.
    pub async fn open_without(rule: Option<RuleMutant>, device: impl Device, options: Options) -> Result<Self> {
        let (engine, report) = open_log_without(rule, device, &expect(), options).await?;
        let heard = Rc::new(Heard::default());
        engine.set_listener(heard.clone());
        let writer = engine.clone();
        let task = tokio::task::spawn_local(async move { writer.run().await });
        Ok(Self { engine, heard, sent: Cell::new(0), report, task })
    }

    pub fn append(&self, r: Record) {
        self.sent.set(self.sent.get() + 1);
        self.engine.append(r);
    }

    /// Waits until everything that was appended is durable, or the log has failed.
    pub async fn settle(&self) {
        for _ in 0..1_000_000 {
            if self.heard.count.get() == self.sent.get() || self.heard.failed.borrow().is_some() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} of {} records became durable", self.heard.count.get(), self.sent.get());
    }

    /// Everything of a shard, read back and compared with the CRCs that come with it.
    pub async fn read_all(&self, shard: ShardId, blocks: u32) -> Result<Model> {
        self.read_version(shard, None, blocks).await
    }

    /// The same, at a version.
    pub async fn read_version(&self, shard: ShardId, version: Option<Version>, blocks: u32) -> Result<Model> {
        let mut out = Model::new();
        let mut at = 0;
        while at < blocks {
            let len = (blocks - at).min(200);
            let range = BlockRange { start: Lba(at), len };
            let (status, read) = match version {
                None => (self.engine.block_status(shard, range).await?, self.engine.read(shard, range).await?),
                Some(v) => {
                    let status = self.engine.block_status_at(shard, v, range).await?;
                    (status, self.engine.read_at(shard, v, range).await?)
                }
            };
            assert_eq!(read.pieces.iter().map(|p| p.blocks).sum::<u32>(), len);
            assert_eq!(read.pieces, status, "block status says what a read says");
            let mut data = read.data.iter().flat_map(|d| d.chunks_exact(BLOCK)).zip(&read.crcs);
            let mut lba = at;
            for p in &read.pieces {
                for _ in 0..p.blocks {
                    let cell = match p.kind {
                        ExtentKind::Trim => Cell8::Trim,
                        ExtentKind::Zero => Cell8::Zero,
                        ExtentKind::Data => {
                            let (bytes, crc) = data.next().unwrap();
                            assert_eq!(*crc, block_crc(bytes));
                            let fill = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                            assert_eq!(bytes, &block(fill)[..]);
                            Cell8::Data(fill)
                        }
                    };
                    out.insert(lba, cell);
                    lba += 1;
                }
            }
            at += len;
        }
        Ok(out)
    }

    pub async fn stop(self) {
        self.engine.close().await.unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Stops in the middle of whatever is going on.
    pub fn kill(self) {
        self.task.abort();
    }
}

/// The model with every block spelled out.
pub fn full(model: &Model, blocks: u32) -> Model {
    (0..blocks).map(|b| (b, model.get(&b).copied().unwrap_or(Cell8::Trim))).collect()
}

/// Runs a test with local tasks.
pub fn local<F: Future<Output = ()>>(f: F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let set = tokio::task::LocalSet::new();
    set.block_on(&rt, f);
}

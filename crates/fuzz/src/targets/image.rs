//! Small valid devices, and forgeries of their structures with right checksums.
//!
//! An input is a row of edits of `EDIT_BYTES`: what is changed, which one, where in it, how many bytes, and to what. Where
//! structures lie is asked of the image as it was, so that one forgery does not hide another.

use crate::cow::CowDevice;
use crate::input::Choices;
use crate::rng::Rng;
use crate::seal;
use bytes::Bytes;
use core::mem::{offset_of, size_of};
use freebs_format::disk::{
    APPEND_MAGIC, AppendHeader, CHECKPOINT_AT, CHECKPOINT_BYTES, FOOTER_MAGIC, INDEX_ENTRY_FIXED, IndexEntry,
    OPENINGS_AT, OPENINGS_BYTES, PAGE_BYTES, PAGE_MAGIC, PageHeader, SEGMENTS_AT, SUPERBLOCK_AT, SUPERBLOCK_BYTES,
    SegmentFooter, Superblock,
};
use freebs_format::{
    AttachBody, Extent, ExtentKind, Frame, FrameBuilder, FrameHeader, FrameKind, FrameMeta, Member, PinUpdate,
    UpdateDraft, UpdateKind, ViewBody, block_crc, hide,
};
use freebs_io::Device;
use freebs_lsvd::{Durable, Engine, Expect, Listener, Options, Record, Shape};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DeviceId, DriverId, Error, Generation, Hash32, NodeId, RequestNumber,
    Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::OnceLock;

pub const EDIT_BYTES: usize = 16;
/// Edits of an input that count.
const EDITS_MAX: usize = 16;
const SEGMENT: u64 = 1 << 20;
pub const LIMIT: u64 = 32 << 20;
/// Blocks that the shards of the images use.
pub const BLOCKS: u32 = 400;
const CLUSTER: ClusterId = ClusterId([7; 16]);

/// A device's bytes, and where its structures lie.
pub struct Image {
    pub bytes: Vec<u8>,
    pub sector: usize,
    /// Maps that do not fit in memory, and checkpoints.
    pub spilled: bool,
    appends: Vec<u64>,
    footers: Vec<u64>,
    pages: Vec<u64>,
}

pub fn expect() -> Expect {
    Expect { cluster: CLUSTER, node: NodeId(1), worker: 0, workers: 1 }
}

impl Image {
    pub fn options(&self) -> Options {
        match self.spilled {
            true => Options { map_bytes: 16 << 10, checkpoint_bytes: 1 << 40 },
            false => Options::of_workers(1),
        }
    }

    pub fn device(&'static self) -> CowDevice {
        CowDevice::new(&self.bytes, self.sector, LIMIT)
    }
}

/// Runs tasks of one thread, with no time.
pub fn local<T>(f: impl Future<Output = T>) -> T {
    let rt = tokio::runtime::Builder::new_current_thread().build();
    tokio::task::LocalSet::new().block_on(&rt.expect("a runtime of one thread"), f)
}

/// One image without checkpoints, one with runs of a map and two checkpoints.
pub fn image(spilled: bool) -> &'static Image {
    static IMAGES: [OnceLock<Image>; 2] = [OnceLock::new(), OnceLock::new()];
    IMAGES[usize::from(spilled)].get_or_init(|| {
        let sector = if spilled { 4096 } else { 512 };
        let bytes = local(story(sector, spilled));
        let find = |from: u64, step: u64, magic: [u8; 4]| -> Vec<u64> {
            let mut at = from;
            let mut out = Vec::new();
            while at < bytes.len() as u64 {
                if bytes[at as usize..].starts_with(&magic) {
                    out.push(at);
                }
                at += step;
            }
            out
        };
        let appends = find(SEGMENTS_AT, 512, APPEND_MAGIC);
        let footers = find(SEGMENTS_AT + SEGMENT - size_of::<SegmentFooter>() as u64, SEGMENT, FOOTER_MAGIC);
        let pages = find(SEGMENTS_AT, PAGE_BYTES as u64, PAGE_MAGIC);
        assert!(!appends.is_empty() && !footers.is_empty() && pages.is_empty() != spilled, "an image has everything");
        Image { bytes, sector, spilled, appends, footers, pages }
    })
}

/// Appends that became durable, counted.
#[derive(Default)]
struct Heard(Cell<usize>);

impl Listener for Heard {
    fn durable(&self, done: &mut Vec<Durable>) {
        self.0.set(self.0.get() + done.len());
        done.clear();
    }
    fn failed(&self, error: &Error) {
        panic!("the image's device failed: {error}");
    }
}

/// The head of a shard's chain, as far as frames go.
struct Chain {
    shard: ShardId,
    view: ViewNumber,
    id: Hash32,
    sequence: u64,
    version: u64,
    offset: u32,
    requests: u64,
}

const SECRET: Hash32 = Hash32([3; 32]);

impl Chain {
    fn meta(&self) -> FrameMeta {
        FrameMeta {
            cluster: CLUSTER,
            shard: self.shard,
            view: self.view,
            chunk: ChunkId::new(self.view.0, 0),
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version),
            committed: Sequence(self.sequence.saturating_sub(2)),
            wall: 0,
        }
    }

    fn special(&mut self, kind: FrameKind, body: &[u8]) -> Frame {
        let (frame, id) = FrameBuilder::special(&self.meta(), kind, body, &SECRET, &self.id);
        self.id = id;
        self.sequence += 1;
        frame
    }

    fn view(&mut self) -> Frame {
        let body = ViewBody {
            pred: self.view,
            seal_sequence: Sequence(self.sequence),
            seal_hid: hide(&self.id),
            secret_hash: hide(&SECRET),
            quorum: 1,
            min_copies: 1,
            generation: Generation(1),
            members: vec![Member { node: NodeId(1), start: StartNumber(1), early: false }],
            shared: None,
            volume: None,
        };
        (self.view, self.offset) = (ViewNumber(self.view.0 + 1), 0);
        self.special(FrameKind::View, &body.encode())
    }

    fn attach(&mut self) -> Frame {
        let body = AttachBody { generation: Generation(1), driver: DriverId(1), identity: Hash32([1; 32]) };
        self.special(FrameKind::Attach, &body.encode())
    }

    fn draft(&mut self, rng: &mut Rng) -> UpdateDraft {
        let len = 1 + rng.below(6) as u32;
        let range = BlockRange::new(rng.below((BLOCKS - len) as usize) as u32, len);
        let kind =
            [ExtentKind::Data, ExtentKind::Data, ExtentKind::Data, ExtentKind::Trim, ExtentKind::Zero][rng.below(5)];
        let (mut crcs, mut data) = (Vec::new(), Vec::new());
        if kind == ExtentKind::Data {
            let run: Vec<u8> = (0..len as usize * BLOCK).map(|i| (i as u64 * 31 + self.version) as u8).collect();
            crcs.extend(run.chunks_exact(BLOCK).map(block_crc));
            data.push(Bytes::from(run));
        }
        self.requests += 1;
        let kind_of_update = match kind {
            ExtentKind::Data => UpdateKind::Write,
            ExtentKind::Trim => UpdateKind::Trim,
            ExtentKind::Zero => UpdateKind::Zero,
        };
        UpdateDraft {
            kind: kind_of_update,
            driver: DriverId(5),
            number: RequestNumber(self.requests),
            lowest_open: RequestNumber(self.requests.saturating_sub(3).max(1)),
            extents: vec![Extent { kind, range }],
            crcs,
            data,
        }
    }

    fn data(&mut self, rng: &mut Rng, pin: bool) -> Frame {
        let mut b = FrameBuilder::new();
        let count = 1 + rng.below(3);
        for _ in 0..count {
            b.push(self.draft(rng));
        }
        if pin {
            b.push_pin(PinUpdate::Snapshot(SnapshotId(6)), (DriverId(5), RequestNumber(0), RequestNumber(0)));
        }
        let meta = FrameMeta { first_version: Version(self.version + 1), ..self.meta() };
        let (frame, id) = b.build(&meta, &SECRET, &self.id);
        self.id = id;
        self.sequence += 1;
        self.version += count as u64 + u64::from(pin);
        self.offset += frame.header().data_blocks();
        frame
    }
}

/// Two shards with views, an attachment, writes, trims, pins and marks; three segments of them are closed.
async fn story(sector: usize, spilled: bool) -> Vec<u8> {
    let device = CowDevice::new(&[], sector, LIMIT);
    let shape = Shape {
        cluster: CLUSTER,
        node: NodeId(1),
        device: DeviceId([9; 16]),
        worker: 0,
        workers: 1,
        segment_bytes: SEGMENT,
        size_limit: LIMIT,
        wall: 1,
    };
    Engine::create(device.clone(), &shape).await.expect("a blank device");
    let options = match spilled {
        true => Options { map_bytes: 16 << 10, checkpoint_bytes: 1 << 40 },
        false => Options::of_workers(1),
    };
    let (engine, _) = Engine::open_with(device.clone(), &expect(), options).await.expect("just made");
    let (heard, mut sent) = (Rc::new(Heard::default()), 0);
    engine.set_listener(heard.clone());
    let writer = engine.clone();
    let task = tokio::task::spawn_local(async move { writer.run().await });
    let mut rng = Rng::new(1);
    let mut chains: Vec<Chain> = (1..=2)
        .map(|i| Chain {
            shard: ShardId::new(i, 0),
            view: ViewNumber(0),
            id: Hash32::default(),
            sequence: 0,
            version: 0,
            offset: 0,
            requests: 0,
        })
        .collect();
    let mut records = Vec::new();
    for round in 0..150 {
        let c = &mut chains[rng.below(2)];
        let (shard, marks) = (c.shard, round % 50 == 49);
        if c.sequence == 0 || round % 60 == 59 {
            records.push(Record::Frame(c.view()));
            records.push(Record::Frame(c.attach()));
        }
        records.push(Record::Frame(c.data(&mut rng, round % 40 == 39)));
        if marks {
            records.push(Record::Mark { shard, change: freebs_lsvd::MarkChange::default(), ticket: 1 });
        }
        sent += records.len();
        records.drain(..).for_each(|r| engine.append(r));
        if rng.chance(60) {
            settle(&heard, sent).await;
            engine.committed(shard, Sequence(chains.iter().find(|c| c.shard == shard).map_or(0, |c| c.sequence)));
        }
        if spilled && round % 60 == 40 {
            settle(&heard, sent).await;
            engine.checkpoint().await.expect("a checkpoint");
        }
    }
    settle(&heard, sent).await;
    // Without a last checkpoint: what was written since is read from the log.
    task.abort();
    device.get(0, device.len() as usize)
}

async fn settle(heard: &Heard, sent: usize) {
    for _ in 0..1_000_000 {
        if heard.0.get() >= sent {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} of {sent} records became durable", heard.0.get());
}

/// One change of a device.
struct Edit {
    what: u8,
    len: usize,
    which: usize,
    field: usize,
    value: [u8; 8],
}

fn word(bytes: &[u8], at: u64) -> usize {
    u32::from_le_bytes(bytes[at as usize..][..4].try_into().expect("four bytes")) as usize
}

fn of<T: Copy>(list: &[T], which: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[which % list.len()])
}

impl Edit {
    /// Writes the value somewhere in `room` bytes from `from` on.
    fn put(&self, bytes: &mut [u8], from: usize, room: usize) {
        let room = room.min(bytes.len().saturating_sub(from));
        let at = from + self.field % room.saturating_sub(self.len).max(1);
        if let Some(place) = bytes.get_mut(at..at + self.len) {
            place.copy_from_slice(&self.value[..self.len]);
        }
    }

    fn number(&self) -> u64 {
        u64::from_le_bytes(self.value)
    }

    /// Changes a structure of `len` bytes at `at`, and seals it.
    fn forge(&self, device: &CowDevice, at: u64, len: usize, room: (usize, usize), seal: impl FnOnce(&mut [u8])) {
        let mut bytes = device.get(at, len);
        self.put(&mut bytes, room.0, room.1);
        seal(&mut bytes);
        device.put(at, &bytes);
    }

    fn apply(&self, image: &Image, device: &CowDevice) {
        let good = &image.bytes;
        match self.what % 14 {
            0 => device.put(self.number() % good.len() as u64, &self.value[..self.len]),
            what @ 1..=4 => {
                let Some(at) = of(&image.appends, self.which) else { return };
                self.append(good, device, at, what);
            }
            what @ 5..=6 => {
                let Some(at) = of(&image.footers, self.which) else { return };
                self.index(good, device, at, what == 5);
            }
            7 => SUPERBLOCK_AT.iter().for_each(|at| {
                let seal = |b: &mut [u8]| seal::fixed(b, size_of::<Superblock>());
                self.forge(device, *at, SUPERBLOCK_BYTES, (8, 96), seal);
            }),
            8 => {
                let (i, room) = (self.which % 2, self.which / 2 % 2);
                if (self.which / 4).is_multiple_of(2) {
                    let room = [(24, 36), (96, 60)][room];
                    self.forge(device, CHECKPOINT_AT[i], CHECKPOINT_BYTES, room, seal::checkpoint);
                } else {
                    let room = [(24, 32), (96, 60)][room];
                    self.forge(device, OPENINGS_AT[i], OPENINGS_BYTES, room, seal::openings);
                }
            }
            9..=11 => {
                let Some(at) = of(&image.pages, self.which) else { return };
                let used = word(good, at + offset_of!(PageHeader, used) as u64);
                let room = if self.what.is_multiple_of(5) { (24, 24) } else { (size_of::<PageHeader>(), used.max(16)) };
                self.forge(device, at, PAGE_BYTES, room, |b| {
                    seal::frames(&mut b[size_of::<PageHeader>()..]);
                    seal::map_page(b);
                });
            }
            12 => {
                let sectors = good.len() / 512;
                let from = (self.which % sectors * 512) as u64;
                device.put((self.field % sectors * 512) as u64, &device.get(from, 512 * self.len));
            }
            _ => device.truncate((self.number() % (good.len() as u64 / 512)) * 512),
        }
    }

    /// The header of an append, the table of live segments in it, or the header or body of a frame in it.
    fn append(&self, good: &[u8], device: &CowDevice, at: u64, what: u8) {
        let heads = word(good, at + offset_of!(AppendHeader, heads_len) as u64);
        let extra = word(good, at + offset_of!(AppendHeader, extra_len) as u64);
        let head = size_of::<AppendHeader>();
        let mut frames = Vec::new();
        let mut frame = head + extra;
        while frame < heads {
            frames.push(frame);
            frame += word(good, at + (frame + offset_of!(FrameHeader, head_len)) as u64);
        }
        let room = match (what, of(&frames, self.field >> 9)) {
            (1, _) => (6, 82),
            (2, _) if extra > 0 => (head, extra),
            (3, Some(f)) => (f + 6, 240),
            (_, Some(f)) => (f + 256, word(good, at + (f + offset_of!(FrameHeader, head_len)) as u64) - 256),
            (_, None) => (6, 82),
        };
        self.forge(device, at, heads, room, seal::append);
    }

    /// A footer, or an entry of its index.
    fn index(&self, good: &[u8], device: &CowDevice, footer: u64, only_footer: bool) {
        let index_at = word(good, footer + offset_of!(SegmentFooter, index_at) as u64) as u64;
        let len = word(good, footer + offset_of!(SegmentFooter, index_len) as u64);
        let head = size_of::<SegmentFooter>();
        if only_footer {
            return self.forge(device, footer, head, (24, 64), |b| seal::fixed(b, head));
        }
        let segment = footer + head as u64 - SEGMENT;
        let (mut entries, mut rest) =
            (Vec::new(), Bytes::copy_from_slice(&good[(segment + index_at) as usize..][..len]));
        while !rest.is_empty() {
            entries.push(len - rest.len());
            IndexEntry::decode_next(&mut rest).expect("the image's own index");
        }
        let Some(entry) = of(&entries, self.field >> 9) else { return };
        let room = if self.field & 256 == 0 { (entry, INDEX_ENTRY_FIXED) } else { (entry + INDEX_ENTRY_FIXED, 500) };
        let mut index = device.get(segment + index_at, len);
        self.put(&mut index, room.0, room.1);
        index.extend(device.get(footer, head));
        seal::segment_index(&mut index);
        device.put(segment + index_at, &index[..len]);
        device.put(footer, &index[len..]);
    }
}

/// The device of an input.
pub fn forged(image: &'static Image, input: &[u8]) -> CowDevice {
    let device = image.device();
    for bytes in input.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        let mut c = Choices(bytes);
        let edit = Edit {
            what: c.number(1) as u8,
            len: 1 + c.number(1) as usize % 8,
            which: c.number(2) as usize,
            field: c.number(4) as usize,
            value: c.number(8).to_le_bytes(),
        };
        edit.apply(image, &device);
    }
    device
}

/// Count and body of the image's pages of a kind.
pub fn page_bodies(image: &Image, kind: u16) -> Vec<(u32, Vec<u8>)> {
    let pages = image.pages.iter().map(|at| &image.bytes[*at as usize..][..PAGE_BYTES]);
    let of_kind = pages.filter(|p| p[offset_of!(PageHeader, kind)] == kind as u8);
    let body = |p: &[u8]| {
        let used = word(p, offset_of!(PageHeader, used) as u64);
        let head = size_of::<PageHeader>();
        (word(p, offset_of!(PageHeader, count) as u64) as u32, p[head..head + used].to_vec())
    };
    of_kind.map(body).collect()
}

/// The image's manifests, put together of their pages.
pub fn manifests(image: &Image) -> Vec<Vec<u8>> {
    let mut all: std::collections::BTreeMap<(usize, usize), Vec<u8>> = std::collections::BTreeMap::new();
    for at in &image.pages {
        let p = &image.bytes[*at as usize..][..PAGE_BYTES];
        if p[offset_of!(PageHeader, kind)] == freebs_format::disk::PAGE_MANIFEST as u8 {
            let used = word(p, offset_of!(PageHeader, used) as u64);
            let head = size_of::<PageHeader>();
            let name = (word(p, offset_of!(PageHeader, run) as u64), word(p, offset_of!(PageHeader, page) as u64));
            all.insert(name, p[head..head + used].to_vec());
        }
    }
    let mut out: std::collections::BTreeMap<usize, Vec<u8>> = std::collections::BTreeMap::new();
    all.into_iter().for_each(|((run, _), body)| out.entry(run).or_default().extend(body));
    out.into_values().collect()
}

/// Bytes of an edit.
pub fn edit(what: u8, len: u8, which: u16, field: u32, value: u64) -> Vec<u8> {
    let (which, field, value) = (which.to_le_bytes(), field.to_le_bytes(), value.to_le_bytes());
    [&[what, len][..], &which, &field, &value].concat()
}

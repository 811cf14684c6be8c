//! Four million separate extents of 4 KiB under a small cache: memory, reads per lookup, bytes written for the map,
//! pauses, recovery.
//!
//! `cargo run --release -p freebs-lsvd --example extents -- [EXTENTS] [MIB] [FRAMES] [BLOCKS] [SHARDS] [CLEANING]`
//! (4,000,000 and 16 if not said, one frame on its way, of 64 blocks, one shard, and no cleaning; 1 switches it on).
//! `16000000 64 1 1 1 1` is the worst case: appends of one block each. The device lies in files below
//! `target/extents`; a block of one repeated word, as all data here are, takes eight bytes there.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example measures time and uses files")]

use bytes::Bytes;
use freebs_format::disk::{APPEND_MAGIC, OPENINGS_AT, OPENINGS_BYTES};
use freebs_format::{Extent, ExtentKind, FrameBuilder, FrameMeta, UpdateDraft, UpdateKind, block_crc};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{
    CleanOptions, Counters, Durable, Engine, Expect, FrameName, Listener, OpenReport, Options, Record, Shape,
};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DeviceId, DriverId, Error, Hash32, NodeId, RequestNumber, Result, Sequence,
    ShardId, Version, ViewNumber,
};
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([7; 16]);
/// A word with this bit says where a sector lies that is more than a repeated word, and its bytes without zeroes at the
/// end: 13 bits of length, the others of place.
const WHOLE: u64 = 1 << 63;

/// A device in two files: a word per sector, and the sectors that are more than a repeated word, one behind the other.
#[derive(Clone)]
struct WordDevice {
    words: Rc<File>,
    whole: Rc<File>,
    /// Where the next whole sector goes.
    end: Rc<Cell<u64>>,
    len: Rc<Cell<u64>>,
    /// Calls that read, and their bytes.
    reads: Rc<Cell<(u64, u64)>>,
    spent: Rc<Cell<Duration>>,
    /// Appends that were begun.
    appends: Rc<Cell<u64>>,
}

impl WordDevice {
    fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let file = |name| {
            let mut o = OpenOptions::new();
            Rc::new(o.read(true).write(true).create(true).truncate(true).open(dir.join(name)).unwrap())
        };
        Self {
            words: file("words"),
            whole: file("whole"),
            end: Rc::default(),
            len: Rc::default(),
            reads: Rc::default(),
            spent: Rc::default(),
            appends: Rc::default(),
        }
    }

    fn timed<T>(&self, f: impl FnOnce() -> T) -> T {
        let start = worked();
        let out = f();
        self.spent.set(self.spent.get() + worked() - start);
        out
    }

    fn read_now(&self, at: u64, len: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(len);
        let mut words = vec![0u8; len / BLOCK * 8];
        read_at(&self.words, &mut words, at / BLOCK as u64 * 8);
        let (calls, bytes) = self.reads.get();
        self.reads.set((calls + 1, bytes + len as u64));
        for (block, word) in buf.chunks_exact_mut(BLOCK).zip(words.chunks_exact(8)) {
            let n = u64::from_le_bytes(word.try_into().unwrap());
            if n & WHOLE != 0 {
                read_at(&self.whole, &mut block[..(n & 0x1fff) as usize], (n & !WHOLE) >> 13);
            } else {
                block.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(word));
            }
        }
        buf
    }

    fn write_now(&self, at: u64, buf: &[u8]) {
        let mut words = Vec::with_capacity(buf.len() / BLOCK * 8);
        let mut before = vec![0u8; buf.len() / BLOCK * 8];
        read_at(&self.words, &mut before, at / BLOCK as u64 * 8);
        for (b, before) in buf.chunks_exact(BLOCK).zip(before.chunks_exact(8)) {
            if b[8..] == b[..BLOCK - 8] {
                words.extend_from_slice(&b[..8]);
            } else {
                let len = b.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
                let before = u64::from_le_bytes(before.try_into().unwrap());
                // A sector that is written again keeps its place while it fits.
                let fits = before & WHOLE != 0 && room(len) <= room((before & 0x1fff) as usize);
                let place = if fits { (before & !WHOLE) >> 13 } else { self.end.replace(self.end.get() + room(len)) };
                words.extend_from_slice(&(WHOLE | place << 13 | len as u64).to_le_bytes());
                self.whole.write_all_at(&b[..len], place).unwrap();
            }
        }
        self.words.write_all_at(&words, at / BLOCK as u64 * 8).unwrap();
    }
}

/// Bytes that are kept for a sector of which so many are written.
fn room(len: usize) -> u64 {
    len.next_multiple_of(512) as u64
}

/// What this thread has worked: a machine that is busy with others makes no pauses of ours.
fn worked() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which is ours.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    assert_eq!(done, 0, "every Linux has this clock");
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What lies behind a file's end reads as zeroes.
fn read_at(file: &File, mut buf: &mut [u8], mut at: u64) {
    while !buf.is_empty() {
        match file.read_at(buf, at).unwrap() {
            0 => return,
            n => (buf, at) = (&mut buf[n..], at + n as u64),
        }
    }
}

impl Device for WordDevice {
    fn sector(&self) -> usize {
        BLOCK
    }
    fn len(&self) -> u64 {
        self.len.get()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        Ok(self.timed(|| self.read_now(at, len)))
    }
    async fn write(&self, at: u64, buf: AlignedBuf, _: Durability) -> (AlignedBuf, Result<()>) {
        self.appends.set(self.appends.get() + u64::from(buf[..4] == APPEND_MAGIC));
        self.timed(|| self.write_now(at, &buf));
        tokio::task::yield_now().await;
        (buf, Ok(()))
    }
    async fn sync(&self) -> Result<()> {
        Ok(())
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.len.set(len);
        Ok(())
    }
    async fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    async fn prewrite(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Heard {
    done: Cell<usize>,
}

impl Listener for Heard {
    fn durable(&self, done: &mut Vec<Durable>) {
        self.done.set(self.done.get() + done.len());
    }
    fn failed(&self, error: &Error) {
        panic!("the log has failed: {error}");
    }
}

/// What some of the engine's own steps took, without the device.
#[derive(Default)]
struct Steps {
    /// The longest ones, with what was counted in them.
    longest: RefCell<Vec<(Duration, String)>>,
    count: Cell<u64>,
    over: Cell<u64>,
    far_over: Cell<u64>,
}

/// Steps that are told one by one.
const LONGEST: usize = 5;

impl Steps {
    fn add(&self, step: Duration, before: &Counters, after: &Counters) {
        self.count.set(self.count.get() + 1);
        self.over.set(self.over.get() + u64::from(step > Duration::from_millis(1)));
        self.far_over.set(self.far_over.get() + u64::from(step > Duration::from_millis(2)));
        let mut longest = self.longest.borrow_mut();
        if longest.len() < LONGEST || longest.last().is_some_and(|l| l.0 < step) {
            longest.push((step, counted(before, after)));
            longest.sort_by_key(|l| std::cmp::Reverse(l.0));
            longest.truncate(LONGEST);
        }
    }

    fn say(&self, what: &str) {
        let (over, far, count) = (self.over.get(), self.far_over.get(), self.count.get());
        println!("steps {what}: {count}, {over} over 1 ms, {far} over 2 ms; the longest:");
        self.longest.borrow().iter().for_each(|(step, what)| println!("  {step:?}: {what}"));
    }
}

/// The counters that rose.
fn counted(before: &Counters, after: &Counters) -> String {
    let fields = |c: &Counters| {
        let text = format!("{c:?}");
        let inside = text.split_once('{').map_or("", |t| t.1).trim_end_matches('}').to_owned();
        inside.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let pairs = fields(before).into_iter().zip(fields(after));
    let number = |t: &str| t.rsplit(' ').find_map(|n| n.parse::<i64>().ok()).unwrap_or(0);
    let rose = pairs.filter(|(a, b)| a != b).map(|(a, b)| {
        let name = b.split(':').next().unwrap_or("").trim().to_owned();
        format!("{name} +{}", number(b.trim()) - number(a.trim()))
    });
    rose.collect::<Vec<_>>().join(", ")
}

/// Steps in which blocks were copied and hashed for an append, which take the longer the more of them there are; and
/// all others, which are the map's, cleaning's and looking for what is next.
#[derive(Default)]
struct Pauses {
    with_append: Steps,
    others: Steps,
}

struct Rig {
    engine: Engine<WordDevice>,
    heard: Rc<Heard>,
    flying: usize,
    task: tokio::task::JoinHandle<()>,
}

async fn open(device: &WordDevice, options: Options, flying: usize, pauses: &Rc<Pauses>) -> (Rig, OpenReport) {
    let expect = Expect { cluster: CLUSTER, node: NodeId(1), worker: 0, workers: 1 };
    let (engine, report) = Engine::open_with(device.clone(), &expect, options).await.unwrap();
    let heard = Rc::new(Heard::default());
    engine.set_listener(heard.clone());
    let (writer, asked, device, pauses) = (engine.clone(), engine.clone(), device.clone(), pauses.clone());
    let task = tokio::task::spawn_local(async move {
        let mut run = std::pin::pin!(writer.run());
        let end = poll_fn(|cx| {
            let (begun, counters) = (device.appends.get(), asked.counters());
            let (start, before) = (worked(), device.spent.get());
            let polled = run.as_mut().poll(cx);
            let step = (worked() - start).saturating_sub(device.spent.get() - before);
            let now = asked.counters();
            let has_append = (begun, counters.appends) != (device.appends.get(), now.appends);
            let steps = if has_append { &pauses.with_append } else { &pauses.others };
            steps.add(step, &counters, &now);
            polled
        });
        end.await.unwrap();
    });
    (Rig { engine, heard, flying, task }, report)
}

struct Chain {
    shard: ShardId,
    id: Hash32,
    sequence: u64,
    version: u64,
    chunk: ChunkId,
    offset: u32,
}

impl Chain {
    /// A frame that writes one block at each of these addresses.
    fn frame(&mut self, lbas: &[u32]) -> Record {
        if self.offset >= 4096 {
            (self.chunk.counter, self.offset) = (self.chunk.counter + 1, 0);
        }
        let mut b = FrameBuilder::new();
        for (i, lba) in lbas.iter().enumerate() {
            let word = self.version + 1 + i as u64;
            let data: Bytes = word.to_le_bytes().repeat(BLOCK / 8).into();
            b.push(UpdateDraft {
                kind: UpdateKind::Write,
                driver: DriverId(5),
                number: RequestNumber(word),
                lowest_open: RequestNumber(word),
                extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(*lba, 1) }],
                crcs: vec![block_crc(&data)],
                data: vec![data],
            });
        }
        let meta = FrameMeta {
            cluster: CLUSTER,
            shard: self.shard,
            view: ViewNumber(1),
            chunk: self.chunk,
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version + 1),
            committed: Sequence(self.sequence),
            wall: 0,
        };
        let (frame, id) = b.build(&meta, &Hash32([3; 32]), &self.id);
        self.id = id;
        self.sequence += 1;
        self.version += lbas.len() as u64;
        self.offset += lbas.len() as u32;
        Record::Frame(frame)
    }
}

/// The n-th of `of` addresses in an order that looks random; each second block stays unwritten.
fn scattered(n: u64, of: u64) -> u32 {
    ((n.wrapping_mul(2_654_435_761) % of) * 2) as u32
}

/// Writes blocks, so many in a frame, the shards in turn, and so many frames on their way, which are the most that one
/// append takes.
async fn write(rig: &Rig, chains: &mut [Chain], what: &What, n: u64, lba: impl Fn(u64) -> u32) {
    let (mut sent, mut at, shards) = (rig.heard.done.get(), 0, chains.len() as u64);
    while at < n {
        let chain = &mut chains[(at / what.blocks % shards) as usize];
        let lbas: Vec<u32> = (at..(at + what.blocks).min(n)).map(&lba).collect();
        at += lbas.len() as u64;
        rig.engine.append(chain.frame(&lbas));
        sent += 1;
        while sent - rig.heard.done.get() > rig.flying {
            tokio::task::yield_now().await;
        }
    }
    while sent > rig.heard.done.get() {
        tokio::task::yield_now().await;
    }
}

/// Resident memory, now and at its highest.
fn memory() -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let mib = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    };
    format!("resident {:.1} MiB, at most {:.1}", mib("VmRSS"), mib("VmHWM"))
}

/// A measurement.
struct What {
    extents: u64,
    mib: usize,
    flying: usize,
    /// Blocks of a frame.
    blocks: u64,
    shards: u64,
    /// Cleaning has to make room.
    cleans: bool,
}

fn shape(what: &What) -> Shape {
    let room = if what.cleans { what.extents * BLOCK as u64 / 10 * 15 + (1 << 30) } else { 64 << 30 };
    Shape {
        cluster: CLUSTER,
        node: NodeId(1),
        device: DeviceId([9; 16]),
        worker: 0,
        workers: 1,
        segment_bytes: 16 << 20,
        size_limit: room,
        wall: 1,
    }
}

/// Starts after a kill: by the table, and with every segment asked.
async fn recover(
    device: &WordDevice,
    options: Options,
    what: &What,
    (shard, tip): (ShardId, FrameName),
    pauses: &Rc<Pauses>,
) {
    for table in [true, false] {
        if !table {
            for at in OPENINGS_AT {
                let (_, done) = device.write(at, AlignedBuf::zeroed(OPENINGS_BYTES), Durability::Durable).await;
                done.unwrap();
            }
            print!("where every segment is asked: ");
        }
        device.reads.take();
        let (start, before) = (Instant::now(), worked());
        let (rig, report) = open(device, options, what.flying, pauses).await;
        let (took, (reads, bytes)) = (start.elapsed().as_secs_f64(), device.reads.get());
        assert_eq!(rig.engine.tip(shard).unwrap().0, tip);
        let work = (worked() - before).as_secs_f64();
        let from = report.checkpoint;
        println!(
            "recovery in {took:.2} s ({work:.2} of the processor) from checkpoint {from}, {} frames",
            report.frames
        );
        println!("it read {reads} times, {:.1} MiB", bytes as f64 / 1_048_576.0);
        println!("{}; {:?}", memory(), rig.engine.space());
        rig.task.abort();
        let _ = rig.task.await;
    }
}

async fn measure(what: &What) {
    let dir = Path::new("target/extents");
    let device = WordDevice::new(dir);
    Engine::create(device.clone(), &shape(what)).await.unwrap();
    let pauses = Rc::new(Pauses::default());
    let options = Options { map_bytes: what.mib << 20, ..Options::of_workers(1) };
    let (rig, _) = open(&device, options, what.flying, &pauses).await;
    rig.engine.set_cleaning(CleanOptions { enabled: what.cleans, ..CleanOptions::default() });
    let (extents, shards) = (what.extents, what.shards);
    // Which of a shard's blocks the n-th write goes to: the shards take turns.
    let of = (extents / shards) | 1;
    let turn = |n: u64| n / what.blocks / shards * what.blocks + n % what.blocks;
    let chain = |n: u64| Chain {
        shard: ShardId::new(1 + n, 0),
        id: Hash32::default(),
        sequence: 0,
        version: 0,
        chunk: ChunkId::new(1, 0),
        offset: 0,
    };
    let mut chains: Vec<Chain> = (0..shards).map(chain).collect();
    let start = Instant::now();
    write(&rig, &mut chains, what, extents, |n| scattered(turn(n), of)).await;
    println!("{extents} extents in {:.1} s; {}", start.elapsed().as_secs_f64(), memory());

    let (before, start, updates) = (rig.engine.counters(), Instant::now(), extents / 2);
    write(&rig, &mut chains, what, updates, |n| scattered(turn(n).wrapping_mul(7_368_787), of)).await;
    let each = (rig.engine.counters().map_bytes - before.map_bytes) as f64 / updates as f64;
    println!("{updates} updates in {:.1} s: {each:.0} bytes for the map each", start.elapsed().as_secs_f64());
    println!("{} checkpoints, {:?}", rig.engine.counters().checkpoints, rig.engine.events());

    let before = rig.engine.counters();
    for n in 0..extents / 20 {
        let shard = chains[(n % shards) as usize].shard;
        let lba = scattered((n / shards).wrapping_mul(15_485_863), of);
        let read = rig.engine.read(shard, BlockRange::new(lba, 1)).await.unwrap();
        let written = read.pieces[0].kind == ExtentKind::Data;
        assert!(written || shards > 1, "block {lba}");
    }
    let c = rig.engine.counters();
    let (reads, looked) = (c.map_reads - before.map_reads, c.map_lookups - before.map_lookups);
    println!("{looked} lookups: {:.3} reads of the device each", reads as f64 / looked as f64);
    rig.engine.checkpoint().await.unwrap();
    println!("a checkpoint: {:.1} MiB", (rig.engine.counters().map_bytes - c.map_bytes) as f64 / 1_048_576.0);
    pauses.with_append.say("with an append");
    pauses.others.say("without one");

    // Some more behind the checkpoint, then a kill.
    let more = (extents / 20).min(200_000);
    write(&rig, &mut chains, what, more, |n| scattered(turn(n).wrapping_mul(32_452_843), of)).await;
    println!("{}; {:?}", memory(), rig.engine.space());
    let shard = chains[0].shard;
    let tip = rig.engine.tip(shard).unwrap();
    rig.task.abort();
    let _ = rig.task.await;
    drop(rig.engine);
    recover(&device, options, what, (shard, tip.0), &pauses).await;
    std::fs::remove_dir_all(dir).unwrap();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(default, |a| a.parse().expect("a number"));
    let what = What {
        extents: number(4_000_000),
        mib: number(16) as usize,
        flying: number(1) as usize,
        blocks: number(64),
        shards: number(1),
        cleans: number(0) > 0,
    };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, measure(&what));
}

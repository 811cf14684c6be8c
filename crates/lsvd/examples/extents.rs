//! Four million separate extents of 4 KiB under a small cache: memory, reads per lookup, bytes written for the map,
//! pauses, recovery.
//!
//! `cargo run --release -p freebs-lsvd --example extents -- [EXTENTS] [MIB] [FRAMES]` (4,000,000 and 16 if not said,
//! and one frame of 64 blocks on its way). The device lies in files below `target/extents`; a block of one repeated
//! word, as all data here are, takes eight bytes there.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example measures time and uses files")]

use bytes::Bytes;
use freebs_format::disk::APPEND_MAGIC;
use freebs_format::{Extent, ExtentKind, FrameBuilder, FrameMeta, UpdateDraft, UpdateKind, block_crc};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{CleanOptions, Durable, Engine, Expect, Listener, OpenReport, Options, Record, Shape};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DeviceId, DriverId, Error, Hash32, NodeId, RequestNumber, Result, Sequence,
    ShardId, Version, ViewNumber,
};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

const SHARD: ShardId = ShardId::new(1, 0);
const CLUSTER: ClusterId = ClusterId([7; 16]);
/// Stands for a sector that is more than a repeated word.
const WHOLE: u64 = u64::MAX;

/// A device in two sparse files: a word per sector, and the sectors that are more than a repeated word.
#[derive(Clone)]
struct WordDevice {
    words: Rc<File>,
    whole: Rc<File>,
    len: Rc<Cell<u64>>,
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
            len: Rc::default(),
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
        for (i, (block, word)) in buf.chunks_exact_mut(BLOCK).zip(words.chunks_exact(8)).enumerate() {
            if word == WHOLE.to_le_bytes() {
                read_at(&self.whole, block, at + (i * BLOCK) as u64);
            } else {
                block.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(word));
            }
        }
        buf
    }

    fn write_now(&self, at: u64, buf: &[u8]) {
        let mut words = Vec::with_capacity(buf.len() / BLOCK * 8);
        for (i, b) in buf.chunks_exact(BLOCK).enumerate() {
            if b[8..] == b[..BLOCK - 8] {
                words.extend_from_slice(&b[..8]);
            } else {
                words.extend_from_slice(&WHOLE.to_le_bytes());
                self.whole.write_all_at(b, at + (i * BLOCK) as u64).unwrap();
            }
        }
        self.words.write_all_at(&words, at / BLOCK as u64 * 8).unwrap();
    }
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
    longest: Cell<Duration>,
    count: Cell<u64>,
    over: Cell<u64>,
}

impl Steps {
    fn add(&self, step: Duration) {
        self.longest.set(self.longest.get().max(step));
        self.count.set(self.count.get() + 1);
        self.over.set(self.over.get() + u64::from(step > Duration::from_millis(1)));
    }

    fn say(&self, what: &str) {
        let (longest, over, count) = (self.longest.get(), self.over.get(), self.count.get());
        println!("steps {what}: the longest {longest:?}; {over} of {count} over 1 ms");
    }
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
            let seen = (device.appends.get(), asked.counters().appends);
            let (start, before) = (worked(), device.spent.get());
            let polled = run.as_mut().poll(cx);
            let step = (worked() - start).saturating_sub(device.spent.get() - before);
            let has_append = seen != (device.appends.get(), asked.counters().appends);
            if has_append {
                pauses.with_append.add(step)
            } else {
                pauses.others.add(step)
            }
            polled
        });
        end.await.unwrap();
    });
    (Rig { engine, heard, flying, task }, report)
}

struct Chain {
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
            shard: SHARD,
            view: ViewNumber(1),
            chunk: self.chunk,
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version + 1),
            committed: Sequence(self.sequence.saturating_sub(8)),
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

/// Writes blocks, 64 in a frame and so many frames on their way, which are the most that one append takes.
async fn write(rig: &Rig, chain: &mut Chain, n: u64, lba: impl Fn(u64) -> u32) {
    let (mut sent, mut at) = (rig.heard.done.get(), 0);
    while at < n {
        let lbas: Vec<u32> = (at..(at + 64).min(n)).map(&lba).collect();
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

async fn measure(extents: u64, mib: usize, flying: usize) {
    let dir = Path::new("target/extents");
    let device = WordDevice::new(dir);
    let shape = Shape {
        cluster: CLUSTER,
        node: NodeId(1),
        device: DeviceId([9; 16]),
        worker: 0,
        workers: 1,
        segment_bytes: 16 << 20,
        size_limit: 64 << 30,
        wall: 1,
    };
    Engine::create(device.clone(), &shape).await.unwrap();
    let pauses = Rc::new(Pauses::default());
    let options = Options { map_bytes: mib << 20, ..Options::of_workers(1) };
    let (rig, _) = open(&device, options, flying, &pauses).await;
    // What cleaning moves is a matter of its own.
    rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
    let of = extents | 1;
    let mut chain = Chain { id: Hash32::default(), sequence: 0, version: 0, chunk: ChunkId::new(1, 0), offset: 0 };
    let start = Instant::now();
    write(&rig, &mut chain, extents, |n| scattered(n, of)).await;
    println!("{extents} extents in {:.1} s; {}", start.elapsed().as_secs_f64(), memory());

    let (before, start, updates) = (rig.engine.counters(), Instant::now(), extents / 2);
    write(&rig, &mut chain, updates, |n| scattered(n.wrapping_mul(7_368_787), of)).await;
    let each = (rig.engine.counters().map_bytes - before.map_bytes) as f64 / updates as f64;
    println!("{updates} updates in {:.1} s: {each:.0} bytes for the map each", start.elapsed().as_secs_f64());

    let before = rig.engine.counters();
    for n in 0..extents / 20 {
        let lba = scattered(n.wrapping_mul(15_485_863), of);
        let read = rig.engine.read(SHARD, BlockRange::new(lba, 1)).await.unwrap();
        assert_eq!(read.pieces[0].kind, ExtentKind::Data, "block {lba}");
    }
    let c = rig.engine.counters();
    let (reads, looked) = (c.map_reads - before.map_reads, c.map_lookups - before.map_lookups);
    println!("{looked} lookups: {:.3} reads of the device each", reads as f64 / looked as f64);
    rig.engine.checkpoint().await.unwrap();
    println!("a checkpoint: {:.1} MiB", (rig.engine.counters().map_bytes - c.map_bytes) as f64 / 1_048_576.0);
    pauses.with_append.say("with an append");
    pauses.others.say("without one");

    // Some more behind the checkpoint, then a kill.
    write(&rig, &mut chain, extents / 20, |n| scattered(n.wrapping_mul(32_452_843), of)).await;
    let tip = rig.engine.tip(SHARD).unwrap();
    rig.task.abort();
    let _ = rig.task.await;
    drop(rig.engine);
    let start = Instant::now();
    let (rig, report) = open(&device, options, flying, &pauses).await;
    let took = start.elapsed().as_secs_f64();
    assert_eq!(rig.engine.tip(SHARD).unwrap().0, tip.0);
    println!("recovery in {took:.2} s from checkpoint {}, {} frames behind it", report.checkpoint, report.frames);
    println!("{}; {:?}", memory(), rig.engine.space());
    std::fs::remove_dir_all(dir).unwrap();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let extents = args.next().map_or(4_000_000, |a| a.parse().expect("a number of extents"));
    let mib = args.next().map_or(16, |a| a.parse().expect("a number of MiB"));
    let flying = args.next().map_or(1, |a| a.parse().expect("a number of frames"));
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, measure(extents, mib, flying));
}

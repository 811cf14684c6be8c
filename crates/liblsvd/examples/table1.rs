//! FreEBS's table 1: a disk beside a plain file with the same durability, through the Rust and the C functions.
//!
//! `cargo run --release -p liblsvd --example table1 -- DIRECTORY [--mib N] [--random-mib N] [--rounds N] [--seconds N] [--only 1|2|3]`
//!
//! Two kinds of durability, each with the file that is its like:
//! - *durable*: each write is durable when it returns. The file is opened with O_DIRECT and O_DSYNC.
//! - *synced*: writes are durable after the fsync at the end, whose time counts. The file goes through the page cache,
//!   which is dropped before reads.
//!
//! In each round file, Rust and C take turns with every benchmark; the median of the rounds is shown. Then durable
//! random writes of 4 KiB into what is written already, by one thread and by 32. `--only` takes one of these three parts:
//! 1 the durable table, 2 the threads, 3 the synced table.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use freebs_disk::{CreateOptions, Disk};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LARGE: usize = 40 << 10;
const SMALL: usize = 4 << 10;
const NAMES: [&str; 3] = ["file", "Rust", "C"];
const ROWS: [&str; 5] = ["sequential write", "sequential read", "random read", "random write", "sequential read 2"];

/// Memory that direct I/O takes.
struct Buffer {
    start: *mut u8,
    len: usize,
}

impl Buffer {
    fn new(len: usize, seed: u64) -> Self {
        // SAFETY: a layout with a size.
        let start = unsafe { alloc_zeroed(Layout::from_size_align(len, 4096).unwrap()) };
        assert!(!start.is_null());
        let mut b = Self { start, len };
        let mut rng = Rng(seed | 1);
        b.bytes().chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&rng.next().to_le_bytes()));
        b
    }
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, Layout::from_size_align(self.len, 4096).unwrap()) }
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

/// What is measured.
trait Target: Sync {
    fn write(&self, buf: &[u8], at: u64, durable: bool);
    fn read(&self, buf: &mut [u8], at: u64);
    fn sync(&self);
    /// Forgets what is cached.
    fn drop_cache(&self) {}
}

struct Plain(File);

impl Plain {
    fn new(path: &Path, durable: bool) -> Self {
        let mut o = OpenOptions::new();
        o.read(true).write(true).create_new(true);
        if durable {
            o.custom_flags(libc::O_DIRECT | libc::O_DSYNC);
        }
        Self(o.open(path).unwrap())
    }
}

impl Target for Plain {
    fn write(&self, buf: &[u8], at: u64, _durable: bool) {
        self.0.write_all_at(buf, at).unwrap();
    }
    fn read(&self, buf: &mut [u8], at: u64) {
        self.0.read_exact_at(buf, at).unwrap();
    }
    fn sync(&self) {
        self.0.sync_data().unwrap();
    }
    fn drop_cache(&self) {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::posix_fadvise(self.0.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    }
}

impl Target for Disk {
    fn write(&self, buf: &[u8], at: u64, durable: bool) {
        if durable { self.write_durable(buf, at) } else { Disk::write(self, buf, at) }.unwrap();
    }
    fn read(&self, buf: &mut [u8], at: u64) {
        Disk::read(self, buf, at).unwrap();
    }
    fn sync(&self) {
        self.fsync().unwrap();
    }
}

struct InC(*mut lsvd::lsvd_disk);

// SAFETY: the C functions may be called from any thread.
unsafe impl Sync for InC {}

impl InC {
    fn new(path: &Path, size: u64) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a path.
        let disk = unsafe { lsvd::create_log_lsvd(name.as_ptr(), size, log_bytes(size)) };
        assert!(!disk.is_null());
        Self(disk)
    }
}

impl Target for InC {
    fn write(&self, buf: &[u8], at: u64, durable: bool) {
        let (b, n) = (buf.as_ptr().cast(), buf.len() as u64);
        // SAFETY: an open disk, and a buffer of that length.
        let done = unsafe {
            if durable { lsvd::write_durable_lsvd(self.0, b, n, at) } else { lsvd::write_lsvd(self.0, b, n, at, 0) }
        };
        assert_eq!(done, 0);
    }
    fn read(&self, buf: &mut [u8], at: u64) {
        // SAFETY: as above.
        let done = unsafe { lsvd::read_lsvd(self.0, buf.as_mut_ptr().cast(), buf.len() as u64, at, lsvd::ALL_ONES) };
        assert_eq!(done, 0);
    }
    fn sync(&self) {
        // SAFETY: an open disk.
        assert_eq!(unsafe { lsvd::fsync_lsvd(self.0) }, 0);
    }
}

impl Drop for InC {
    fn drop(&mut self) {
        // SAFETY: the last use.
        assert_eq!(unsafe { lsvd::close_lsvd(self.0) }, 0);
    }
}

struct Options {
    directory: PathBuf,
    bytes: u64,
    random: u64,
    rounds: usize,
    run: Duration,
    only: u64,
}

impl Options {
    fn has(&self, part: u64) -> bool {
        self.only == 0 || self.only == part
    }
}

fn options() -> Options {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().expect("a directory"));
    let run = Duration::from_secs(3);
    let mut o = Options { directory, bytes: 256 << 20, random: 8 << 20, rounds: 3, run, only: 0 };
    while let Some(name) = args.next() {
        let n: u64 = args.next().and_then(|v| v.parse().ok()).expect("a number behind each option");
        match name.as_str() {
            "--mib" => o.bytes = n << 20,
            "--random-mib" => o.random = n << 20,
            "--rounds" => o.rounds = n.max(1) as usize,
            "--seconds" => o.run = Duration::from_secs(n),
            "--only" => o.only = n,
            other => panic!("unknown option {other}"),
        }
    }
    o.bytes = o.bytes / LARGE as u64 * LARGE as u64;
    o
}

fn log_bytes(size: u64) -> u64 {
    size * 4 + (1 << 30)
}

fn target(o: &Options, which: usize, path: &Path, durable: bool) -> Box<dyn Target> {
    let _ = std::fs::remove_file(path);
    let options = CreateOptions { log_bytes: Some(log_bytes(o.bytes)), ..CreateOptions::default() };
    match which {
        0 => Box::new(Plain::new(path, durable)),
        1 => Box::new(Disk::create_with(path, o.bytes, &options).unwrap()),
        _ => Box::new(InC::new(path, o.bytes)),
    }
}

/// One of the five benchmarks; gives KB/s (1,000 bytes, as FreEBS).
fn measure(o: &Options, t: &dyn Target, row: usize, durable: bool, rng: &mut Rng) -> f64 {
    let (size, bytes) = if row == 2 || row == 3 { (SMALL, o.random) } else { (LARGE, o.bytes) };
    let mut buf = Buffer::new(size, rng.next());
    let count = bytes / size as u64;
    let is_write = row == 0 || row == 3;
    if !is_write {
        t.drop_cache();
    }
    let begun = Instant::now();
    for i in 0..count {
        let at = if size == SMALL { rng.below(o.bytes / SMALL as u64) * SMALL as u64 } else { i * LARGE as u64 };
        if is_write {
            t.write(buf.bytes(), at, durable);
        } else {
            t.read(buf.bytes(), at);
        }
    }
    if is_write {
        t.sync();
    }
    (count * size as u64) as f64 / begun.elapsed().as_secs_f64() / 1000.0
}

/// Durable random writes per second.
fn durable_writes(o: &Options, t: &dyn Target, threads: u64) -> f64 {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|s| {
        for i in 0..threads {
            let (stop, count) = (&stop, &count);
            s.spawn(move || {
                let (mut buf, mut rng) = (Buffer::new(SMALL, i + 1), Rng(i * 77 + 1));
                while !stop.load(Ordering::Relaxed) {
                    t.write(buf.bytes(), rng.below(o.bytes / SMALL as u64) * SMALL as u64, true);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(o.run);
        stop.store(true, Ordering::Relaxed);
    });
    count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn line(name: &str, figures: [Vec<f64>; 3]) {
    let [file, rust, c] = figures.map(median);
    println!("| {name} | {file:.0} | {rust:.0} | {c:.0} | {:.2} | {:.2} |", rust / file, c / file);
}

/// Fresh targets and their files.
fn targets(o: &Options, durable: bool) -> (Vec<PathBuf>, Vec<Box<dyn Target>>) {
    let paths: Vec<PathBuf> = NAMES.iter().map(|n| o.directory.join(format!("table1.{n}"))).collect();
    let targets = paths.iter().enumerate().map(|(i, p)| target(o, i, p, durable)).collect();
    (paths, targets)
}

fn table(o: &Options, durable: bool) {
    let mut rows: Vec<[Vec<f64>; 3]> = vec![Default::default(); ROWS.len()];
    for round in 0..o.rounds {
        let (paths, targets) = targets(o, durable);
        for (row, figures) in rows.iter_mut().enumerate() {
            for turn in 0..3 {
                let which = (turn + round) % 3;
                let mut rng = Rng((round * 10 + row) as u64 + 1);
                figures[which].push(measure(o, &*targets[which], row, durable, &mut rng));
            }
        }
        drop(targets);
        paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }
    let name = if durable { "durable" } else { "synced" };
    println!("\n| {name}, KB/s | {} | {} | {} | Rust / file | C / file |", NAMES[0], NAMES[1], NAMES[2]);
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, figures) in ROWS.iter().zip(rows) {
        line(name, figures);
    }
}

fn writers(o: &Options) {
    let mut writers: [[Vec<f64>; 3]; 2] = Default::default();
    let (paths, targets) = targets(o, true);
    let mut rng = Rng(1);
    for t in &targets {
        measure(o, &**t, 0, false, &mut rng);
    }
    for round in 0..o.rounds {
        for (figures, threads) in writers.iter_mut().zip([1, 32]) {
            for turn in 0..3 {
                let which = (turn + round) % 3;
                figures[which].push(durable_writes(o, &*targets[which], threads));
            }
        }
    }
    drop(targets);
    paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
    println!("\n| durable random write, 4 KiB, per second | file | Rust | C | Rust / file | C / file |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, figures) in ["1 thread", "32 threads"].iter().zip(writers) {
        line(name, figures);
    }
}

fn main() {
    let o = options();
    if o.has(1) {
        table(&o, true);
    }
    if o.has(2) {
        writers(&o);
    }
    if o.has(3) {
        table(&o, false);
    }
}

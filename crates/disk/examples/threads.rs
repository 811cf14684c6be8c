//! Durable random writes of 4 KiB by many threads, beside a plain file, in short rounds that take turns.
//!
//! `cargo run --release -p freebs-disk --example threads -- DIRECTORY [THREADS [ROUNDS [MILLISECONDS]]]`
//!
//! Shows besides what an append carries, and processor time and context switches of a write.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use freebs_disk::{CreateOptions, Disk};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;

#[repr(align(4096))]
struct Block([u8; BLOCK]);

enum Target {
    Plain(File),
    Log(Disk),
}

impl Target {
    fn write(&self, block: &Block, at: u64) {
        match self {
            Self::Plain(f) => f.write_all_at(&block.0, at).unwrap(),
            Self::Log(d) => {
                d.write_durable(&block.0, at).unwrap();
            }
        }
    }
}

/// Processor seconds, and voluntary and other context switches, of the process.
fn usage() -> [f64; 3] {
    // SAFETY: all zeroes are a value of it, and the call fills it in.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut u), 0);
        u
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    [seconds(u.ru_utime) + seconds(u.ru_stime), u.ru_nvcsw as f64, u.ru_nivcsw as f64]
}

/// Writes per second, and how long one took in the mean.
fn run(target: &Target, threads: u64, time: Duration) -> (u64, f64) {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|s| {
        for i in 0..threads {
            let (stop, count) = (&stop, &count);
            s.spawn(move || {
                let (block, mut x, mut n) = (Block([i as u8; BLOCK]), i + 1, 0);
                while !stop.load(Ordering::Relaxed) {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    target.write(&block, (x >> 33) % (BYTES / BLOCK as u64) * BLOCK as u64);
                    n += 1;
                }
                count.fetch_add(n, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let n = count.load(Ordering::Relaxed);
    (n, n as f64 / begun.elapsed().as_secs_f64())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().expect("a directory"));
    let mut number = |or: u64| args.next().map_or(or, |a| a.parse().expect("a number"));
    let (threads, rounds, time) = (number(32), number(9), Duration::from_millis(number(500)));
    let paths = ["threads.file", "threads.log"].map(|n| directory.join(n));
    paths.iter().for_each(|p| drop(std::fs::remove_file(p)));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
        .open(&paths[0])
        .unwrap();
    let options = CreateOptions { log_bytes: Some(BYTES * 4 + (1 << 30)), ..CreateOptions::default() };
    let disk = Disk::create_with(&paths[1], BYTES, &options).unwrap();
    let zeroes = vec![0u8; 1 << 20];
    let block = Block([0; BLOCK]);
    for at in (0..BYTES).step_by(BLOCK) {
        file.write_all_at(&block.0, at).unwrap();
    }
    for at in (0..BYTES).step_by(zeroes.len()) {
        disk.write(&zeroes, at).unwrap();
    }
    disk.fsync().unwrap();
    let targets = [Target::Plain(file), Target::Log(disk.clone())];
    let mut rates: [Vec<f64>; 2] = Default::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let which = (turn + round as usize) % 2;
            let before = (usage(), disk.status().unwrap().counters);
            let (n, rate) = run(&targets[which], threads, time);
            let (now, c) = (usage(), disk.status().unwrap().counters);
            rates[which].push(rate);
            let each = |i: usize| (now[i] - before.0[i]) / n as f64;
            print!("{}: {rate:.0}/s, {:.1} µs", ["file", "log"][which], each(0) * 1e6);
            print!(", switches {:.2} + {:.2}", each(1), each(2));
            let appends = c.appends - before.1.appends;
            println!(", {:.1} writes in each of {appends} appends", n as f64 / appends.max(1) as f64);
        }
    }
    let [file, log] = rates.map(median);
    println!("{threads} threads: file {file:.0}/s, log {log:.0}/s, {:.2}", log / file);
    drop((targets, disk));
    paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
}

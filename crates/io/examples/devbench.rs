//! Figures of a device: durable writes one at a time, and random reads 32 at a time.
//!
//! `cargo run --release -p freebs-io --example devbench -- PATH [deferred|cooperative|plain|threads]`
//! makes (or uses) a file of 256 MiB at PATH; without an engine's name the best one is taken.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use freebs_io::linux::ring::{Ring, RingKind};
use freebs_io::linux::{DeviceOptions, FileDevice, OsRandom};
use freebs_io::{AlignedBuf, Device, Durability, Random};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

const SIZE: u64 = 256 << 20;
const RUN: Duration = Duration::from_secs(3);

fn report(name: &str, mut times: Vec<Duration>, elapsed: Duration) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{name:<34} {:>8.0}/s   p50 {:>6.1} µs   p99 {:>7.1} µs",
        times.len() as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99)
    );
}

#[derive(Clone, Copy)]
enum Way {
    Durable,
    WriteThenSync,
}

async fn writes(device: &FileDevice, len: usize, way: Way, name: &str) {
    let (mut buf, mut at, mut times) = (AlignedBuf::zeroed(len), 0, Vec::new());
    buf.fill(0xa5);
    let start = Instant::now();
    while start.elapsed() < RUN {
        let begun = Instant::now();
        let durability = if let Way::Durable = way { Durability::Durable } else { Durability::Cached };
        let (back, done) = device.write(at, buf, durability).await;
        done.expect("the device works");
        if let Way::WriteThenSync = way {
            device.sync().await.expect("the device works");
        }
        times.push(begun.elapsed());
        buf = back;
        at = (at + len as u64) % SIZE;
    }
    report(name, times, start.elapsed());
}

async fn reads(device: &FileDevice, depth: usize) {
    let start = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (device, mut state) = (device.clone(), OsRandom.next_u64() | 1);
            tokio::task::spawn_local(async move {
                let mut times = Vec::new();
                while start.elapsed() < RUN {
                    // xorshift, quite random enough to miss every cache.
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let begun = Instant::now();
                    device.read(state % (SIZE / 4096) * 4096, 4096).await.expect("the device works");
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("no task fails"));
    }
    report(&format!("random 4 KiB reads, depth {depth}"), times, start.elapsed());
}

async fn run(path: &std::path::Path, kind: Option<RingKind>) -> freebs_types::Result<()> {
    let ring = kind.map_or_else(Ring::start, Ring::start_kind)?;
    let device = FileDevice::open(&ring, path, DeviceOptions { create: true, ..DeviceOptions::default() })?;
    println!("{:?} engine, direct {}, sector {}", ring.kind(), device.is_direct(), device.sector());
    if device.len() < SIZE {
        let start = Instant::now();
        device.set_len(SIZE).await?;
        println!("prewriting {} MiB took {:.2} s", SIZE >> 20, start.elapsed().as_secs_f64());
    }
    for _ in 0..2 {
        writes(&device, 4096, Way::Durable, "4 KiB durable write").await;
        writes(&device, 4096, Way::WriteThenSync, "4 KiB write, then sync").await;
    }
    writes(&device, 8192, Way::Durable, "8 KiB durable write").await;
    writes(&device, 8192, Way::WriteThenSync, "8 KiB write, then sync").await;
    for depth in [1, 32] {
        reads(&device, depth).await;
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = arguments.first() else { panic!("name a file or block device to measure") };
    let kind = arguments.get(1).map(|k| match k.as_str() {
        "deferred" => RingKind::Deferred,
        "cooperative" => RingKind::Cooperative,
        "plain" => RingKind::Plain,
        "threads" => RingKind::Threads,
        other => panic!("no engine is called {other}"),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let path = std::path::PathBuf::from(path);
    // In a task, as a worker's code is: the future of `block_on` itself costs a look at the sockets for each wake-up.
    let task = async { tokio::task::spawn_local(async move { run(&path, kind).await }).await.expect("no panic") };
    if let Err(e) = LocalSet::new().block_on(&runtime, task) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}

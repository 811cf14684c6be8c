//! A disk that is overwritten at random, block by block, many times over: rate by quarters, latency, write
//! amplification beside what the fill allows. Then a log that has bloated is brought back while it is written to.
//!
//! `cargo run --release -p freebs-disk --example steady -- DIRECTORY [DISK_MIB LOG_MIB WRITE_MIB]` (4096, 7168 and
//! 40960 if not said). Writes are 4 KiB; every 256th is followed by an fsync.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use freebs_disk::{CreateOptions, Disk, Status};
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Latencies of a phase.
#[derive(Default)]
struct Latency(Vec<u32>);

impl Latency {
    fn add(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_nanos() / 100).unwrap_or(u32::MAX));
    }

    /// In microseconds.
    fn at(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let i = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(i).map_or(0.0, |t| f64::from(*t) / 10.0)
    }
}

/// Write amplification of a log that always cleans its oldest segment, under uniformly random overwrites: with a times
/// the room of its live data, the fixed point of `live = exp(-a * (1 - live))` is what is still live there, and
/// `1 / (1 - live)` the amplification (Desnoyers, Analytic Modeling of SSD Write Performance, section 3).
fn ideal(room: f64) -> f64 {
    let mut live: f64 = 0.5;
    for _ in 0..1000 {
        live = (-room * (1.0 - live)).exp();
    }
    1.0 / (1.0 - live)
}

fn amplification(a: &Status, b: &Status) -> f64 {
    let (x, y) = (a.counters, b.counters);
    let written = (y.append_bytes + y.index_bytes) - (x.append_bytes + x.index_bytes);
    let brought = (y.data_bytes - y.cleaned_bytes) - (x.data_bytes - x.cleaned_bytes);
    written as f64 / brought.max(1) as f64
}

/// Overwrites `blocks` blocks chosen at random among `of`; seconds, and the latency of each.
fn overwrite(disk: &Disk, random: &mut Random, blocks: u64, of: u64) -> (f64, Latency) {
    let (mut buf, mut latency) = (vec![0u8; BLOCK], Latency::default());
    let begun = Instant::now();
    for i in 0..blocks {
        let at = (random.next() >> 11) % of;
        buf[..8].copy_from_slice(&random.next().to_le_bytes());
        buf[8..16].copy_from_slice(&(at + 1).to_le_bytes());
        let one = Instant::now();
        disk.write(&buf, at * BLOCK as u64).unwrap();
        if i % 256 == 255 {
            disk.fsync().unwrap();
        }
        latency.add(one.elapsed());
    }
    (begun.elapsed().as_secs_f64(), latency)
}

fn fill(disk: &Disk, bytes: u64) {
    let buf: Vec<u8> = (0..MIB as usize).map(|i| (i % 251) as u8 | 1).collect();
    for at in (0..bytes).step_by(MIB as usize) {
        disk.write(&buf, at).unwrap();
    }
    disk.fsync().unwrap();
}

fn steady(directory: &Path, disk_mib: u64, log_mib: u64, write_mib: u64) {
    let path = directory.join("steady.lsvd");
    let options = CreateOptions { log_bytes: Some(log_mib * MIB), ..CreateOptions::default() };
    let disk = Disk::create_with(&path, disk_mib * MIB, &options).unwrap();
    fill(&disk, disk_mib * MIB);
    let (mut random, of) = (Random(0x5eed), disk_mib * MIB / BLOCK as u64);
    println!("{disk_mib} MiB in a log of {log_mib} MiB, {write_mib} MiB of random overwrites");
    println!("     part     MiB/s   p50 us   p99 us   p99.9 us   cleaned MiB   amplification");
    // What fits before anything must be cleaned is the measure for latency without cleaning.
    let before = (log_mib - disk_mib) / 3;
    let parts = [("begin", before)].into_iter().chain((1..=4).map(|_| ("quarter", write_mib / 4)));
    for (name, mib) in parts {
        let from = disk.status().unwrap();
        let (took, mut latency) = overwrite(&disk, &mut random, mib * MIB / BLOCK as u64, of);
        let to = disk.status().unwrap();
        println!(
            "{name:>9} {:>9.1} {:>8.1} {:>8.1} {:>10.1} {:>13} {:>15.2}",
            mib as f64 / took,
            latency.at(0.5),
            latency.at(0.99),
            latency.at(0.999),
            (to.counters.cleaned_bytes - from.counters.cleaned_bytes) / MIB,
            amplification(&from, &to),
        );
    }
    println!("a log cleaned oldest first at this fill: {:.2}", ideal(log_mib as f64 / disk_mib as f64));
    disk.close().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// FreEBS's clean-up (section 5): a small disk written over and over bloats its log; then it is brought back.
fn bloated(directory: &Path) {
    let path = directory.join("bloated.lsvd");
    let (live_mib, log_mib) = (512, 8 * 512);
    let options = CreateOptions { log_bytes: Some((log_mib + 512) * MIB), ..CreateOptions::default() };
    let disk = Disk::create_with(&path, 4096 * MIB, &options).unwrap();
    fill(&disk, 4096 * MIB);
    // Trims of seven of eight blocks leave every segment with an eighth live.
    for at in 0..4096 * MIB / (8 * BLOCK as u64) {
        disk.trim(at * 8 * BLOCK as u64, 7 * BLOCK as u64).unwrap();
    }
    disk.fsync().unwrap();
    let used =
        |s: &Status| (u64::from(s.space.used_segments) * s.space.segment_bytes) as f64 / s.space.live_bytes as f64;
    let first = disk.status().unwrap();
    println!("bloated: {:.2} times its {live_mib} MiB of live data", used(&first));
    let (mut random, begun) = (Random(7), Instant::now());
    loop {
        // Under load: a hundred writes a second to the blocks that live.
        let of = 4096 * MIB / (8 * BLOCK as u64);
        for _ in 0..10 {
            let at = (random.next() >> 11) % of * 8 + 7;
            disk.write(&[random.next() as u8 | 1; BLOCK], at * BLOCK as u64).unwrap();
        }
        disk.cleanup().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let s = disk.status().unwrap();
        if used(&s) <= 1.2 || begun.elapsed() > Duration::from_secs(300) {
            println!(
                "after {:.1} s under load: {:.2} times, {} MiB moved",
                begun.elapsed().as_secs_f64(),
                used(&s),
                s.counters.cleaned_bytes / MIB
            );
            break;
        }
    }
    disk.close().unwrap();
    std::fs::remove_file(path).unwrap();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(directory) = args.first().map(Path::new) else {
        println!("usage: steady DIRECTORY [DISK_MIB LOG_MIB WRITE_MIB]");
        return;
    };
    let mut sizes = args[1..].iter().map(|s| s.parse().expect("MiB"));
    let mut next = |otherwise: u64| sizes.next().unwrap_or(otherwise);
    let (disk, log, write) = (next(4096), next(7168), next(40960));
    steady(directory, disk, log, write);
    bloated(directory);
}

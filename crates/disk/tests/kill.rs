//! A process that writes is killed at any moment: the disk is then at exactly one version, at least the last one that
//! was answered as durable.
//!
//! The child writes update v at a place and with a content that v alone decides, so that the state of every version
//! can be made again here.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "processes are what is tested")]

mod common;

use common::Rng;
use freebs_disk::{CreateOptions, Disk, Version};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;
const CHILD: &str = "FREEBS_DISK_KILL_CHILD";

/// What update `v` is: where, how long, and its bytes (none for a trim).
fn update(v: u64) -> (u64, u64, Option<Vec<u8>>) {
    let mut rng = Rng::new(v);
    let most = if rng.chance(10) { 64 } else { 6 };
    let len = (1 + rng.below(most)) * 4096;
    let at = rng.below((SIZE - len) / 4096 + 1) * 4096;
    if rng.chance(10) { (at, len, None) } else { (at, len, Some(rng.bytes(len as usize))) }
}

/// The child: opens the disk and goes on writing where it is, durably now and then, telling what is durable.
fn write_until_killed(path: &Path) {
    let disk = Disk::open(path).unwrap();
    let mut out = std::io::stdout();
    loop {
        let v = disk.version().unwrap().0 + 1;
        let (at, len, data) = update(v);
        let mut durable = None;
        match data {
            Some(d) if v.is_multiple_of(7) => durable = Some(disk.write_durable(&d, at).unwrap()),
            Some(d) => assert_eq!(disk.write(&d, at).unwrap(), Version(v)),
            None => assert_eq!(disk.trim(at, len).unwrap(), Version(v)),
        }
        if v.is_multiple_of(11) {
            durable = Some(disk.fsync().unwrap());
        }
        if let Some(d) = durable {
            writeln!(out, "durable {d}").unwrap();
        }
    }
}

#[test]
fn a_killed_writer_leaves_one_version() {
    if let Ok(path) = std::env::var(CHILD) {
        write_until_killed(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    // A small log, so that segments are given up and used again all the time.
    let options = CreateOptions { log_bytes: Some(48 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    Disk::create_with(&path, SIZE, &options).unwrap().close().unwrap();
    let (mut model, mut at) = (vec![0u8; SIZE as usize], 0u64);
    let mut rng = Rng::new(std::process::id().into());
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_killed_writer_leaves_one_version", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let (begun, first) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let (mut told, mut lines_told) = (0, 0);
            for line in lines.lines().map_while(Result::ok) {
                if let Some(v) = line.strip_prefix("durable ").and_then(|v| v.parse().ok()) {
                    told = v;
                    lines_told += 1;
                    // So that a slow disk has something to lose, too.
                    if lines_told == 3 {
                        let _ = begun.send(());
                    }
                }
            }
            told
        });
        first.recv_timeout(Duration::from_secs(60)).expect("the child writes");
        std::thread::sleep(Duration::from_millis(rng.below(150)));
        child.kill().unwrap();
        child.wait().unwrap();
        let told: u64 = reader.join().unwrap();
        let disk = Disk::open(&path).unwrap();
        let version = disk.version().unwrap().0;
        assert!(version >= told, "round {round}: version {version}, but {told} was answered as durable");
        for v in at + 1..=version {
            let (offset, len, data) = update(v);
            let to = &mut model[offset as usize..(offset + len) as usize];
            match data {
                Some(d) => to.copy_from_slice(&d),
                None => to.fill(0),
            }
        }
        at = version;
        let mut all = vec![1u8; SIZE as usize];
        disk.read(&mut all, 0).unwrap();
        let wrong = all.chunks(4096).zip(model.chunks(4096)).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "round {round}: this block is not that of version {version}");
        disk.close().unwrap();
    }
    assert!(at > 100, "{at} updates in all");
}

/// The child: small writes all over the disk, with checkpoints every three seconds.
fn write_in_a_hurry(path: &Path) {
    let disk = Disk::open(path).unwrap();
    disk.set_checkpoint_interval(Duration::from_secs(3)).unwrap();
    let (mut rng, buf) = (Rng::new(7), vec![5u8; 4096]);
    let mut out = std::io::stdout();
    for n in 1u64.. {
        disk.write(&buf, rng.below(LARGE / 4096) * 4096).unwrap();
        if n.is_multiple_of(128) {
            writeln!(out, "durable {}", disk.fsync().unwrap()).unwrap();
        }
    }
}

const LARGE: u64 = 512 * MIB;

/// How long a start takes depends on what was written since the last checkpoint, and not on how long there were writes.
#[test]
fn a_start_takes_no_longer_after_a_long_time_of_writing() {
    if let Ok(path) = std::env::var(CHILD) {
        write_in_a_hurry(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let options = CreateOptions { log_bytes: Some(4 << 30), ..CreateOptions::default() };
    Disk::create_with(&path, LARGE, &options).unwrap().close().unwrap();
    let mut checkpoints = 0;
    for seconds in [2, 8] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_start_takes_no_longer_after_a_long_time_of_writing", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let told = |l: String| l.strip_prefix("durable ").and_then(|v| v.parse::<u64>().ok());
            lines.lines().map_while(Result::ok).filter_map(told).last()
        });
        std::thread::sleep(Duration::from_secs(seconds));
        child.kill().unwrap();
        child.wait().unwrap();
        let told = reader.join().unwrap().expect("the child writes");
        let begun = Instant::now();
        let disk = Disk::open(&path).unwrap();
        let took = begun.elapsed();
        let report = disk.report();
        println!("measured: {told} writes in {seconds} s more, open after {took:?}, {} frames read", report.frames);
        assert!(disk.version().unwrap().0 >= told);
        checkpoints = checkpoints.max(report.checkpoint);
        disk.close().unwrap();
    }
    assert!(checkpoints > 0, "none of the starts began with a checkpoint");
}

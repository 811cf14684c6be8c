//! FreEBS's figure 6: write for some seconds, SIGKILL, open, and see how long that takes.
//!
//! `cargo run --release -p freebs-disk --example recovery -- DIRECTORY [every=SECONDS] [SECONDS ...]` prints a line for
//! each run: seconds of writing, MiB written, seconds until the disk is open again. Random writes of 40 KiB to a disk of
//! 1 GiB, with a checkpoint so often (60 s if nothing is said, for which 30 to 300 s of writing are worth a look).
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use freebs_disk::{CreateOptions, Disk};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 30;
const BUFFER: usize = 40 << 10;

/// Writes until it is killed, and says how far it is.
fn child(path: &Path, every: u64) {
    let options = CreateOptions { log_bytes: Some(64 << 30), ..CreateOptions::default() };
    let disk = Disk::create_with(path, SIZE, &options).unwrap();
    disk.set_checkpoint_interval(Duration::from_secs(every)).unwrap();
    let (mut state, mut buf) = (1u64, vec![0u8; BUFFER]);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    buf.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&next().to_le_bytes()));
    let mut out = std::io::stdout();
    for i in 1u64.. {
        let at = (next() >> 11) % (SIZE / BUFFER as u64) * BUFFER as u64;
        disk.write(&buf, at).unwrap();
        if i.is_multiple_of(256) {
            let version = disk.fsync().unwrap();
            writeln!(out, "{version}").unwrap();
        }
    }
}

fn run(program: &Path, path: &Path, every: u64, seconds: u64) {
    let mut writer = Command::new(program);
    writer.arg("--write").arg(path).arg(every.to_string()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("this program again");
    let out = BufReader::new(writer.stdout.take().unwrap());
    let reader = std::thread::spawn(move || out.lines().map_while(Result::ok).last());
    std::thread::sleep(Duration::from_secs(seconds));
    writer.kill().unwrap();
    writer.wait().unwrap();
    let told: u64 = reader.join().unwrap().and_then(|l| l.parse().ok()).unwrap_or(0);
    let begun = Instant::now();
    let disk = Disk::open(path).unwrap();
    let took = begun.elapsed().as_secs_f64();
    let version = disk.version().unwrap().0;
    assert!(version >= told, "version {version} after {told} was durable");
    println!("{seconds:>8} {:>12} {took:>10.3}", (version * BUFFER as u64) >> 20);
    disk.close().unwrap();
    std::fs::remove_file(path).unwrap();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [write, path, every] if write == "--write" => child(Path::new(path), every.parse().expect("seconds")),
        [directory, rest @ ..] => {
            let path = Path::new(directory).join("recovery.lsvd");
            let program = std::env::current_exe().unwrap();
            let every = rest.iter().find_map(|s| s.strip_prefix("every=")).map_or(60, |s| s.parse().expect("seconds"));
            let seconds = rest.iter().filter(|s| !s.starts_with("every="));
            let mut seconds: Vec<u64> = seconds.map(|s| s.parse().expect("seconds")).collect();
            if seconds.is_empty() {
                seconds = vec![2, 5, 10, 20];
            }
            println!("written s  written MiB     open s");
            seconds.iter().for_each(|s| run(&program, &path, every, *s));
        }
        [] => println!("usage: recovery DIRECTORY [every=SECONDS] [SECONDS ...]"),
    }
}

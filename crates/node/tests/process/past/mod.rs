//! Snapshots as read-only exports: whatever happens to the volume and to its members, they stay what they were.

mod changes;
mod faults;
mod figures;
mod filesystem;
mod reading;
mod rewind;
mod rollback;

use crate::support::PATIENCE;
use crate::support::cluster::Cluster;
use crate::support::nbd::Client;
use crate::support::rng::Rng;
use crate::support::tools::{output, told};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const TOOLS: &[&str] = &["nbdinfo", "nbdcopy", "qemu-img"];

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Bytes none of which is zero, another row for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend((rng.next() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes into a volume, a MiB at a time.
pub fn fill(client: &mut Client, at: u64, bytes: &[u8]) {
    for (i, part) in bytes.chunks(MIB as usize).enumerate() {
        client.write(at + i as u64 * MIB, part);
    }
}

/// Takes a snapshot of a volume.
pub fn snapshot(c: &Cluster, volume: &str, name: &str) {
    let out = output(c.freebs().args(["snapshot", "create", volume, "--name", name]), PATIENCE);
    assert!(out.status.success(), "{}\n{}", told(&out), c.log());
}

/// Reads all of an export.
pub fn read_all(client: &mut Client) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while at < client.size {
        let len = (client.size - at).min(MIB) as u32;
        bytes.extend(client.read(at, len));
        at += u64::from(len);
    }
    bytes
}

/// Where two rows of bytes first differ.
pub fn differ(a: &[u8], b: &[u8]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter().zip(b).position(|(x, y)| x != y)
}

/// Writes other bytes all over a volume until the end; how many writes that were.
fn overwrite(client: &mut Client, bytes: u64, stop: &AtomicBool) -> u64 {
    let (mut rng, mut writes) = (Rng::new(99), 0);
    while !stop.load(Ordering::Relaxed) || writes < 32 {
        let at = rng.below(bytes / 4096) * 4096;
        let len = (64 << 10).min(bytes - at) as usize;
        client.write(at, &noise(1000 + writes, len));
        writes += 1;
    }
    writes
}

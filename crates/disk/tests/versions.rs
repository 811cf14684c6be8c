//! Snapshots and the retention window of a disk: against a list of all that it ever was, over reopening and copying.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files are what is tested")]

mod common;

use common::Rng;
use freebs_disk::{CreateOptions, Disk, ErrorKind, Version};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn small() -> CreateOptions {
    CreateOptions { log_bytes: Some(160 * MIB), segment_bytes: MIB, ..CreateOptions::default() }
}

fn at(disk: &Disk, version: Version) -> Result<Vec<u8>, ErrorKind> {
    let mut b = vec![1u8; disk.size() as usize];
    disk.read_at(&mut b, 0, version).map(|()| b).map_err(|e| e.kind)
}

fn same(disk: &Disk, snaps: &BTreeMap<Version, Vec<u8>>) {
    assert_eq!(disk.snapshots().unwrap(), snaps.keys().copied().collect::<Vec<_>>());
    for (v, content) in snaps {
        assert!(at(disk, *v).as_ref() == Ok(content), "version {v}");
    }
}

#[test]
fn snapshots_are_what_the_disk_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let mut disk = Disk::create_with(&path, 6 * MIB, &small()).unwrap();
    let mut rng = Rng::new(11);
    let mut model = vec![0u8; 6 * MIB as usize];
    let mut snaps: BTreeMap<Version, Vec<u8>> = BTreeMap::new();
    for step in 0..400u32 {
        let len = (1 + rng.below(300)) as usize * 512;
        let from = rng.below((model.len() - len) as u64 / 512) as usize * 512;
        match rng.below(12) {
            0 => {
                let version = disk.snapshot().unwrap();
                assert_eq!(disk.status().unwrap().durable, version, "durable with the answer");
                snaps.insert(version, model.clone());
            }
            1 if snaps.len() > 2 => {
                let v = *snaps.keys().nth(rng.below(snaps.len() as u64) as usize).unwrap();
                disk.drop_snapshot(v).unwrap();
                snaps.remove(&v);
                assert_eq!(at(&disk, v), Err(ErrorKind::NotFound));
                assert_eq!(disk.drop_snapshot(v).unwrap_err().kind, ErrorKind::NotFound);
            }
            2 => {
                disk.trim(from as u64, len as u64).unwrap();
                model[from..from + len].fill(0);
            }
            3 if step % 5 == 0 => {
                disk.close().unwrap();
                disk = Disk::open(&path).unwrap();
            }
            _ => {
                let data = rng.bytes(len);
                disk.write(&data, from as u64).unwrap();
                model[from..from + len].copy_from_slice(&data);
            }
        }
        if step % 40 == 0 {
            same(&disk, &snaps);
        }
    }
    same(&disk, &snaps);
    let now = disk.version().unwrap();
    assert!(at(&disk, now).unwrap() == model);
    disk.read_at(&mut [], 0, *snaps.keys().next().unwrap()).unwrap();
    assert_eq!(disk.read_at(&mut [], 0, Version(now.0 + 1)).unwrap_err().kind, ErrorKind::NotFound);
    let held = disk.history().unwrap();
    assert!(held.bytes > 0 && held.retain.is_none());
    for v in snaps.keys() {
        disk.drop_snapshot(*v).unwrap();
    }
    // Space comes back in the background.
    let begun = std::time::Instant::now();
    while disk.history().unwrap().bytes > 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "history that nobody keeps stays");
        disk.cleanup().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let live = disk.status().unwrap().space.live_bytes;
    assert!(live <= 6 * MIB + 64 * 1024, "{live} bytes live");
}

#[test]
fn the_window_keeps_every_version_until_it_is_moved_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let mut disk = Disk::create_with(&path, MIB, &small()).unwrap();
    disk.write(&[1; 4096], 0).unwrap();
    disk.retain_from(Version(0)).unwrap();
    let first = disk.history().unwrap().retain.unwrap();
    assert_eq!(first, Version(2), "what was before is not there any more");
    for n in 3..=60u8 {
        disk.write(&[n; 4096], 4096 * u64::from(n % 3)).unwrap();
        if n == 30 {
            disk.close().unwrap();
            disk = Disk::open(&path).unwrap();
        }
    }
    disk.fsync().unwrap();
    let block = |disk: &Disk, v: u64, lba: u64| {
        let mut b = [0u8; 4096];
        disk.read_at(&mut b, lba * 4096, Version(v)).map(|()| b[0]).map_err(|e| e.kind)
    };
    for v in 3..=60 {
        assert_eq!(block(&disk, v, v % 3), Ok(v as u8));
        let before = if v >= 6 { v as u8 - 3 } else { u8::from(v == 3) };
        assert_eq!(block(&disk, v - 1, v % 3), Ok(before), "one before {v}");
    }
    assert_eq!(block(&disk, 1, 0), Err(ErrorKind::NotFound));
    let from = disk.retain_hint(10, u64::MAX).unwrap().unwrap();
    assert_eq!(from, Version(51));
    disk.retain_from(from).unwrap();
    assert_eq!(block(&disk, 50, 0), Err(ErrorKind::NotFound));
    assert_eq!(block(&disk, 51, 0), Ok(51));
    disk.retain_none().unwrap();
    assert_eq!(block(&disk, 55, 0), Err(ErrorKind::NotFound));
    assert_eq!(disk.history().unwrap().retain, None);
}

/// Updates about versions go from disk to disk like others, and mean the same there.
#[test]
fn a_copy_has_the_snapshots_that_were_taken_behind_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::create_with(dir.path().join("disk"), MIB, &small()).unwrap();
    let copy = Disk::create_with(dir.path().join("copy"), MIB, &small()).unwrap();
    disk.write(&[1; 8192], 0).unwrap();
    let snap = disk.snapshot().unwrap();
    disk.write(&[2; 4096], 0).unwrap();
    let gone = disk.snapshot().unwrap();
    disk.write(&[3; 4096], 4096).unwrap();
    disk.drop_snapshot(gone).unwrap();
    disk.fsync().unwrap();
    for piece in disk.get_writes(Version(0)).unwrap() {
        copy.put_writes(&piece.unwrap()).unwrap();
    }
    assert_eq!(copy.version().unwrap(), disk.version().unwrap());
    copy.fsync().unwrap();
    assert_eq!(copy.snapshots().unwrap(), [snap]);
    assert!(at(&copy, snap) == at(&disk, snap) && at(&copy, snap).unwrap()[..8192] == [1; 8192]);
    assert_eq!(at(&copy, gone), Err(ErrorKind::NotFound));
}

/// Snapshots may fill the log. Then writes are refused; dropping one is not, and gives the room back.
#[test]
fn a_log_full_of_history_comes_back_to_life() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { log_bytes: Some(24 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(dir.path().join("disk"), 2 * MIB, &options).unwrap();
    let mut rng = Rng::new(5);
    let mut snaps = BTreeMap::new();
    let refused = 'full: loop {
        assert!(snaps.len() < 40, "a log of 24 MiB holds no 40 versions of 2 MiB");
        let mut content = Vec::new();
        for part in 0..8 {
            let data = rng.bytes(256 << 10);
            match disk.write_durable(&data, part * (256 << 10)) {
                Ok(_) => content.extend(data),
                Err(e) => break 'full e,
            }
        }
        match disk.snapshot() {
            Ok(v) => snaps.insert(v, content),
            Err(e) => break e,
        };
    };
    assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused}");
    assert!(snaps.len() > 3, "{} snapshots", snaps.len());
    same(&disk, &snaps);
    let kept = *snaps.keys().nth(1).unwrap();
    for v in snaps.keys().filter(|v| **v != kept) {
        disk.drop_snapshot(*v).unwrap();
    }
    snaps.retain(|v, _| *v == kept);
    let begun = std::time::Instant::now();
    let mut written = 0;
    while written < 16 * MIB {
        match disk.write_durable(&rng.bytes(256 << 10), written % (2 * MIB)) {
            Ok(_) => written += 256 << 10,
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
                assert!(begun.elapsed() < std::time::Duration::from_secs(30), "the room does not come back: {e}");
                disk.cleanup().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
    same(&disk, &snaps);
}

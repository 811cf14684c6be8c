//! A disk against a naive model: one thread with everything, many threads with their own ranges, reopen in between.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files, threads and time are what is tested")]

mod common;

use common::Rng;
use freebs_disk::{CreateOptions, Disk, ErrorKind, OpenOptions, Version};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn small() -> CreateOptions {
    CreateOptions { log_bytes: Some(160 * MIB), segment_bytes: MIB, ..CreateOptions::default() }
}

#[test]
fn the_memory_of_the_map_can_be_chosen_within_limits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    for map_bytes in [Some(0), Some(16 * MIB - 1), Some((1 << 40) + 1)] {
        let e = Disk::create_with(&path, 4 * MIB, &CreateOptions { map_bytes, ..small() }).err().unwrap();
        assert_eq!(e.kind, ErrorKind::Invalid);
        assert!(e.text.contains("16M to 1T") && !path.exists(), "{e}");
    }
    let disk = Disk::create_with(&path, 4 * MIB, &CreateOptions { map_bytes: Some(16 * MIB), ..small() }).unwrap();
    disk.write_durable(&[7; 4096], 8192).unwrap();
    disk.close().unwrap();
    let options = |map_bytes| OpenOptions { map_bytes, ..OpenOptions::default() };
    assert_eq!(Disk::open_with(&path, &options(Some(1))).err().unwrap().kind, ErrorKind::Invalid);
    let disk = Disk::open_with(&path, &options(Some(1 << 40))).unwrap();
    assert_eq!(all(&disk)[8192..12288], [7; 4096]);
}

fn all(disk: &Disk) -> Vec<u8> {
    let mut b = vec![1u8; disk.size() as usize];
    disk.read(&mut b, 0).unwrap();
    b
}

/// One random operation on disk and model.
fn step(rng: &mut Rng, disk: &Disk, model: &mut [u8], version: &mut u64) {
    let sectors = model.len() as u64 / 512;
    let aligned = rng.chance(60);
    let unit = if aligned { 8 } else { 1 };
    let most = if rng.chance(5) { 4096 } else { 64 };
    let len = ((1 + rng.below(most)) * unit).min(sectors / 2 / unit * unit);
    let at = rng.below((sectors - len) / unit + 1) * unit;
    let (from, to) = ((at * 512) as usize, ((at + len) * 512) as usize);
    match rng.below(10) {
        0 => {
            *version = disk.trim(from as u64, (to - from) as u64).unwrap().0;
            model[from..to].fill(0);
        }
        1 => {
            *version = disk.zero(from as u64, (to - from) as u64).unwrap().0;
            model[from..to].fill(0);
        }
        2..=6 => {
            let mut data = rng.bytes(to - from);
            if rng.chance(20) {
                let part = rng.below(data.len() as u64) as usize;
                data[part..].fill(0);
            }
            let before = *version;
            let write = if rng.chance(15) { Disk::write_durable } else { Disk::write };
            *version = write(disk, &data, from as u64).unwrap().0;
            assert!(*version > before);
            model[from..to].copy_from_slice(&data);
        }
        7 => assert!(disk.fsync().unwrap().0 >= *version),
        _ => {
            let mut got = vec![9u8; to - from];
            if rng.chance(50) {
                disk.read(&mut got, from as u64).unwrap();
            } else {
                disk.read_at(&mut got, from as u64, Version(*version)).unwrap();
            }
            assert!(got == model[from..to], "read of {from}..{to}");
        }
    }
    assert_eq!(disk.version().unwrap().0, *version);
}

/// Reads all of it in small pieces, with writes in between, ahead of the reader and behind it.
fn sweep(rng: &mut Rng, disk: &Disk, model: &mut [u8], version: &mut u64) {
    const PIECE: usize = 40 << 10;
    let mut got = vec![0; PIECE];
    for at in (0..model.len() / PIECE).map(|i| i * PIECE) {
        disk.read(&mut got, at as u64).unwrap();
        assert!(got == model[at..at + PIECE], "sequential read at {at}");
        if rng.chance(8) {
            step(rng, disk, model, version);
        }
    }
}

fn life(path: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    let size = 6 * MIB + if seed.is_multiple_of(2) { 1536 } else { 0 };
    let mut disk = Disk::create_with(path, size, &small()).unwrap();
    let (mut model, mut version) = (vec![0u8; size as usize], 0);
    for _ in 0..4 {
        for _ in 0..120 {
            step(&mut rng, &disk, &mut model, &mut version);
        }
        sweep(&mut rng, &disk, &mut model, &mut version);
        assert!(all(&disk) == model);
        if rng.chance(50) {
            disk.close().unwrap();
        } else {
            drop(disk);
        }
        disk = Disk::open(path).unwrap();
        assert_eq!((disk.version().unwrap(), disk.size()), (Version(version), size));
        assert!(all(&disk) == model, "after reopen, seed {seed}");
    }
}

#[test]
fn agrees_with_an_array() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        life(&dir.path().join(format!("disk{seed}")), seed);
    }
}

/// Sixteen threads write durably, each in its own sectors, many of them sharing blocks with their neighbours.
#[test]
fn threads_share_a_disk_and_its_blocks() {
    const THREADS: usize = 16;
    const ROUNDS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = Disk::create_with(&path, 4 * MIB, &small()).unwrap();
    let sectors = 4 * MIB as usize / 512;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let disk = disk.clone();
            s.spawn(move || {
                let mut rng = Rng::new(t as u64);
                for round in 0..ROUNDS {
                    // The sectors of thread t are those with number t modulo THREADS: two threads to each block.
                    let sector = rng.below((sectors / THREADS) as u64) as usize * THREADS + t;
                    let fill = vec![(round * THREADS + t) as u8 | 1; 512];
                    let write = if rng.chance(50) { Disk::write_durable } else { Disk::write };
                    write(&disk, &fill, sector as u64 * 512).unwrap();
                    let mut got = vec![0; 512];
                    disk.read(&mut got, sector as u64 * 512).unwrap();
                    assert_eq!(got, fill, "thread {t}, sector {sector}");
                }
            });
        }
    });
    assert_eq!(disk.version().unwrap().0, (THREADS * ROUNDS) as u64);
    let before = all(&disk);
    disk.close().unwrap();
    let disk = Disk::open(&path).unwrap();
    assert!(all(&disk) == before);
}

#[test]
fn many_durable_writers_share_their_appends() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::create(dir.path().join("disk"), 64 * MIB).unwrap();
    let before = disk.status().unwrap().counters.appends;
    std::thread::scope(|s| {
        for t in 0..32u64 {
            let disk = disk.clone();
            s.spawn(move || {
                for i in 0..40u64 {
                    disk.write_durable(&[t as u8 + 1; 4096], (t * 40 + i) * 4096).unwrap();
                }
            });
        }
    });
    let status = disk.status().unwrap();
    let appends = status.counters.appends - before;
    assert_eq!((status.version.0, status.durable.0), (1280, 1280));
    assert!(appends < 640, "{appends} appends for 1280 durable writes");
    println!("measured: {appends} appends for 1280 durable writes of 32 threads");
}

#[test]
fn what_is_wrong_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let kind = |r: Result<Disk, freebs_disk::Error>| r.map(|_| ()).unwrap_err().kind;
    assert_eq!(kind(Disk::open(&path)), ErrorKind::NotFound);
    assert_eq!(kind(Disk::create(&path, 100)), ErrorKind::Invalid);
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(kind(Disk::create(&path, MIB)), ErrorKind::Invalid);
    assert_eq!(kind(Disk::open(&path)), ErrorKind::Invalid);
    std::fs::write(&path, vec![5u8; 100_000]).unwrap();
    assert!(matches!(kind(Disk::open(&path)), ErrorKind::Invalid | ErrorKind::Corrupt));
    std::fs::remove_file(&path).unwrap();

    let disk = Disk::create_with(&path, MIB, &small()).unwrap();
    assert_eq!(kind(Disk::open(&path)), ErrorKind::Busy);
    let mut b = [0u8; 1024];
    for (offset, len) in [(1u64, 512usize), (0, 100), (MIB, 512), (MIB - 512, 1024), (u64::MAX - 511, 512)] {
        assert_eq!(disk.read(&mut b[..len], offset).unwrap_err().kind, ErrorKind::Invalid, "{offset} {len}");
        assert_eq!(disk.write(&b[..len], offset).unwrap_err().kind, ErrorKind::Invalid, "{offset} {len}");
    }
    assert_eq!(disk.trim(0, 2 * MIB).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(disk.write_as(&b, 0, Version(2)).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(disk.write_as(&b, 0, Version(1)).unwrap(), Version(1));
    assert_eq!(disk.write(&b, 0).unwrap(), Version(2));
    assert_eq!(disk.read_at(&mut b, 0, Version(1)).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(disk.read_at(&mut b, 0, Version(3)).unwrap_err().kind, ErrorKind::NotFound);
    disk.read_at(&mut b, 0, Version(2)).unwrap();
    assert_eq!(disk.write(&[], 0).unwrap(), Version(2));
    let other = disk.clone();
    disk.close().unwrap();
    assert_eq!(other.read(&mut b, 0).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(other.write_durable(&b, 0).unwrap_err().kind, ErrorKind::Invalid);
    assert!(other.fsync().is_err() && other.version().is_err());
}

/// 148 MiB lived in a log of 256 MiB, and the sixth MiB of overwrites was refused, while a caller that tried again got on:
/// nobody said that the segments which cleaning had just emptied are room soon.
#[test]
fn overwrites_wait_for_cleaning_in_a_log_that_is_nearly_full() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { log_bytes: Some(64 * MIB), segment_bytes: 4 * MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(dir.path().join("disk"), 35 * MIB, &options).unwrap();
    let mut rng = Rng::new(12);
    let data = rng.bytes(128 << 10);
    let len = data.len() as u64;
    let parts = disk.size() / len;
    for i in 0..4 * parts {
        let at = if i < 2 * parts { i % parts } else { rng.below(parts) };
        let end = if i % 3 == 0 { disk.write_durable(&data, at * len) } else { disk.write(&data, at * len) };
        assert!(end.is_ok(), "write {i}: {end:?}, {:?}", disk.status().unwrap().space);
    }
    // Many at once.
    std::thread::scope(|s| {
        for t in 0..8 {
            let (disk, data) = (&disk, &data);
            s.spawn(move || {
                for i in 0..parts / 8 {
                    let end = disk.write_durable(data, (t * parts / 8 + i) * len);
                    assert!(end.is_ok(), "write {i} of {t}: {end:?}, {:?}", disk.status().unwrap().space);
                }
            });
        }
    });
    disk.close().unwrap();
}

/// A write behind a trim that nobody had waited for was refused: the trim was not durable yet, and then the segments that
/// it had emptied were not looked at yet.
#[test]
fn a_write_waits_for_what_a_trim_before_it_frees() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { log_bytes: Some(17 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(dir.path().join("disk"), 64 * MIB, &options).unwrap();
    let data = Rng::new(1).bytes(256 << 10);
    let len = data.len() as u64;
    for round in 0..4 {
        let mut written = 0;
        let full = loop {
            match disk.write(&data, written) {
                Ok(_) => written += len,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind, ErrorKind::NoSpace);
        assert!(written >= 8 * MIB, "{written} bytes before it was full");
        disk.trim(0, written).unwrap();
        let end = disk.write(&data, 0);
        assert!(end.is_ok(), "round {round}: {end:?}, {:?}", disk.status().unwrap().space);
    }
    disk.close().unwrap();
}

#[test]
fn a_full_log_refuses_writes_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { log_bytes: Some(17 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(dir.path().join("disk"), 64 * MIB, &options).unwrap();
    let data = Rng::new(1).bytes(256 << 10);
    let mut written = 0;
    let full = loop {
        match disk.write_durable(&data, written) {
            Ok(_) => written += data.len() as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind, ErrorKind::NoSpace);
    assert!(written >= 8 * MIB, "{written} bytes before it was full");
    let mut got = vec![0; data.len()];
    disk.read(&mut got, written - data.len() as u64).unwrap();
    assert!(got == data);
    disk.trim(0, written).unwrap();
    disk.cleanup().unwrap();
    // Segments are given up when their trims are committed and proven, moments later.
    let mut tries = 0;
    while disk.write_durable(&data, 0).is_err() {
        tries += 1;
        assert!(tries < 500, "the log does not heal: {:?}", disk.status().unwrap().space);
        std::thread::sleep(std::time::Duration::from_millis(10));
        disk.cleanup().unwrap();
    }
}

//! What fails below a disk: writes, syncs and reads that the kernel refuses, a file system without room. The disk's own
//! descriptor is changed under it, so that the true system calls fail.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files, threads and time are what is tested")]

mod common;

use common::Rng;
use freebs_disk::{CreateOptions, Disk, ErrorKind};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The descriptor under which this process has the file open.
fn descriptor(path: &Path) -> RawFd {
    let path = path.canonicalize().unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|e| e.unwrap());
    let mut found = all.filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to == path));
    found.next().expect("the disk has its file open").file_name().to_str().unwrap().parse().unwrap()
}

/// Puts another open file in the place of the disk's, and gives back what puts the disk's own there again.
fn replace(fd: RawFd, with: &File) -> File {
    // SAFETY: both are open; the copy belongs to nobody else, and the disk finds an open file at `fd` all the time.
    unsafe {
        let own = <File as std::os::fd::FromRawFd>::from_raw_fd(libc::dup(fd));
        assert_eq!(libc::dup2(with.as_raw_fd(), fd), fd);
        own
    }
}

#[test]
fn a_failed_write_ends_the_disk_and_nothing_pretends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = Disk::create(&path, 16 * MIB).unwrap();
    let durable = disk.write_durable(&[1; 4096], 0).unwrap();
    disk.write(&[2; 4096], 4096).unwrap();
    let fd = descriptor(&path);
    let own = replace(fd, &File::open(&path).unwrap());
    // Many wait for one append, and the append fails: every one of them is told.
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..8u64)
            .map(|t| {
                let disk = disk.clone();
                s.spawn(move || disk.write_durable(&[3; 4096], (2 + t) * 4096).unwrap_err().kind)
            })
            .collect();
        for w in writers {
            assert_eq!(w.join().unwrap(), ErrorKind::DeviceFailed);
        }
    });
    // What made it fail goes away, and still nothing is believed: the kernel may have dropped what it had.
    replace(fd, &own);
    drop(own);
    assert_eq!(disk.fsync().unwrap_err().kind, ErrorKind::DeviceFailed);
    assert_eq!(disk.write(&[4; 4096], 0).unwrap_err().kind, ErrorKind::DeviceFailed);
    assert_eq!(disk.trim(0, 4096).unwrap_err().kind, ErrorKind::DeviceFailed);
    assert_eq!(disk.write(&[4; 512], 512).unwrap_err().kind, ErrorKind::DeviceFailed);
    for offset in [0, 4096, 2 * 4096] {
        assert_eq!(disk.read(&mut [0; 4096], offset).unwrap_err().kind, ErrorKind::DeviceFailed, "{offset}");
    }
    assert!(disk.get_writes(durable).is_err() && disk.put_writes(&[0; 200]).is_err());
    assert!(disk.status().unwrap().space.poisoned);
    assert_eq!(disk.close().unwrap_err().kind, ErrorKind::DeviceFailed);

    let disk = Disk::open(&path).unwrap();
    assert!(disk.version().unwrap() >= durable);
    let mut block = [0; 4096];
    disk.read(&mut block, 0).unwrap();
    assert_eq!(block, [1; 4096]);
    disk.write_durable(&[5; 4096], 0).unwrap();
}

#[test]
fn a_failed_read_is_an_error_of_that_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = Disk::create(&path, 16 * MIB).unwrap();
    disk.write_durable(&Rng::new(1).bytes(MIB as usize), 0).unwrap();
    let fd = descriptor(&path);
    let own = replace(fd, &OpenOptions::new().write(true).open(&path).unwrap());
    for offset in (0..MIB).step_by(65536) {
        assert_eq!(disk.read(&mut [0; 4096], offset).unwrap_err().kind, ErrorKind::Corrupt, "no good copy of it");
    }
    assert!(disk.write(&[1; 512], 512).is_err(), "the rest of the block can't be read");
    replace(fd, &own);
    drop(own);
    let mut block = [0; 4096];
    disk.read(&mut block, 0).unwrap();
    assert_eq!(block[..], Rng::new(1).bytes(4096)[..]);
    disk.write_durable(&[1; 512], 512).unwrap();
    disk.close().unwrap();
}

/// A small file system of its own; gone with the value.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// None, and a line that says so, where this process may not mount; in CI that fails.
    fn new(test: &str, mib: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m");
        let out = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "freebs-test"]).arg(dir.path()).output();
        if out.as_ref().is_ok_and(|o| o.status.success()) {
            return Some(Self(dir));
        }
        assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{test}: {out:?}");
        let line = format!("\nskipped: {test}: it may not mount a file system\n");
        std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Writes until the disk refuses; tells how often it did not.
fn fill(disk: &Disk, thread: u64, data: &[u8]) -> (u64, freebs_disk::Error) {
    let len = data.len() as u64;
    for n in 0.. {
        let at = (thread * 256 + n) * len % (64 * MIB);
        let end = if n % 5 == 0 { disk.write_durable(data, at) } else { disk.write(data, at) };
        if let Err(e) = end {
            return (n, e);
        }
    }
    unreachable!()
}

/// A file system without room: writes are refused before they are ordered, so that everything that was answered has
/// its place, and the disk goes on as soon as there is room again. At first the log asked for room without end, and
/// whoever waited for a durable write waited for ever.
#[test]
fn a_full_file_system_refuses_writes_and_heals() {
    let Some(mounted) = Mounted::new("a_full_file_system_refuses_writes_and_heals", 48) else { return };
    let path = mounted.0.path().join("disk");
    let options = CreateOptions { log_bytes: Some(160 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(&path, 64 * MIB, &options).unwrap();
    let other = mounted.0.path().join("other");
    std::fs::write(&other, vec![1; 16 << 20]).unwrap();
    let data = Rng::new(9).bytes(64 << 10);
    let ends: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..4)
            .map(|t| {
                s.spawn({
                    let (disk, data) = (&disk, &data);
                    move || fill(disk, t, data)
                })
            })
            .collect();
        all.into_iter().map(|w| w.join().unwrap()).collect()
    });
    for (_, e) in &ends {
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
    }
    let written: u64 = ends.iter().map(|(n, _)| n).sum();
    assert!(written > 16 * 12, "{written} writes of 64 KiB before it was full");
    // What was answered becomes durable, can be read, and is given back.
    disk.fsync().unwrap();
    let mut got = vec![0; data.len()];
    disk.read(&mut got, 0).unwrap();
    assert!(got == data);
    // Nothing was overwritten, so there is nothing to clean.
    assert_eq!(disk.write(&data, 0).unwrap_err().kind, ErrorKind::NoSpace, "it stays full");
    disk.trim(0, MIB).unwrap();
    disk.fsync().unwrap();
    std::fs::remove_file(&other).unwrap();
    let begun = Instant::now();
    while let Err(e) = disk.write_durable(&data, 0) {
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
        assert!(begun.elapsed() < Duration::from_secs(20), "does not heal: {:?}", disk.status().unwrap().space);
        std::thread::sleep(Duration::from_millis(10));
    }
    let (more, e) = fill(&disk, 0, &data);
    assert!(e.kind == ErrorKind::NoSpace && more > 16 * 8, "{more} more, then {e}");
    disk.close().unwrap();
    Disk::open(&path).unwrap().read(&mut got, 0).unwrap();
    assert!(got == data);
}

/// Trims and zeroes are taken when data are not, but a log that is full refuses them before they would end it.
#[test]
fn trims_do_not_end_a_full_log() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { log_bytes: Some(17 * MIB), segment_bytes: MIB, ..CreateOptions::default() };
    let disk = Disk::create_with(dir.path().join("disk"), 64 * MIB, &options).unwrap();
    let data = Rng::new(9).bytes(1 << 20);
    let (_, full) = fill(&disk, 0, &data);
    assert_eq!(full.kind, ErrorKind::NoSpace);
    // Each takes a sector of the log, and frees nothing.
    for i in 0..4000u64 {
        match disk.zero(48 * MIB + i % 2 * 4096, 4096).and_then(|_| disk.fsync()) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind, ErrorKind::NoSpace, "{i}: {e}"),
        }
    }
    let mut got = vec![0; data.len()];
    disk.read(&mut got, 0).unwrap();
    assert!(got == data);
    disk.fsync().unwrap();
    disk.close().unwrap();
}

/// The log ends before an append that was durable, as a slot of a checkpoint says, and there is no other copy. The disk
/// was refused for good.
#[test]
fn a_lost_end_is_accepted_only_in_so_many_words() {
    use freebs_format::disk::{APPEND_MAGIC, AppendHeader, CHECKPOINT_AT, CheckpointSlot, SUPERBLOCK_AT, Superblock};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = Disk::create(&path, 16 * MIB).unwrap();
    let version = disk.write_durable(&[1; 4096], 0).unwrap();
    disk.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let headers = bytes.chunks(512).filter(|s| s.starts_with(&APPEND_MAGIC));
    let last = headers.filter_map(|s| AppendHeader::decode(s).ok()).map(|h| h.number.get()).max().unwrap();
    let device = Superblock::decode(&bytes[SUPERBLOCK_AT[0] as usize..][..4096]).unwrap().device;
    for at in CHECKPOINT_AT {
        let slot = CheckpointSlot {
            magic: [0; 4],
            version: 0.into(),
            length: 0.into(),
            device,
            revision: (1000 + at).into(),
            manifest: 0.into(),
            bytes: 0.into(),
            extents: 0.into(),
            durable: (last + 1).into(),
            reserved: [0; 28],
            extents_crc: 0.into(),
            crc: 0.into(),
        };
        bytes[at as usize..][..4096].copy_from_slice(&slot.encode(&[]));
    }
    std::fs::write(&path, &bytes).unwrap();
    for _ in 0..2 {
        let e = Disk::open(&path).err().unwrap();
        assert_eq!(e.kind, ErrorKind::Corrupt);
        assert!(e.text.contains(&format!("behind version {version}")) && e.text.contains("accept_loss"), "{e}");
    }
    let options = freebs_disk::OpenOptions { accept_loss: true, ..Default::default() };
    let disk = Disk::open_with(&path, &options).unwrap();
    let mut block = [0; 4096];
    disk.read(&mut block, 0).unwrap();
    assert_eq!((block, disk.version().unwrap()), ([1; 4096], version));
    disk.write_durable(&[2; 4096], 4096).unwrap();
    disk.close().unwrap();
    let disk = Disk::open(&path).unwrap();
    disk.read(&mut block, 4096).unwrap();
    assert_eq!(block, [2; 4096]);
}

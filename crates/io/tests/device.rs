//! Devices on real files, with every engine: io_uring in its three forms (where the kernel has them) and threads.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests of the edge touch real files")]

mod refused;

use freebs_io::linux::ring::{IN_FLIGHT_MAX, Ring, RingKind};
use freebs_io::linux::{DeviceOptions, FileDevice, Poison};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::ErrorKind;
use refused::refuse;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::LocalSet;

const KINDS: [RingKind; 4] = [RingKind::Deferred, RingKind::Cooperative, RingKind::Plain, RingKind::Threads];

fn worker<F: Future>(body: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, body)
}

/// Runs a body with each engine that exists here. The threads always do.
fn each<F: Future<Output = ()>>(body: impl Fn(Ring, TempDir) -> F) {
    let mut ran = Vec::new();
    for kind in KINDS {
        worker(async {
            match Ring::start_kind(kind) {
                Ok(ring) => {
                    assert_eq!(ring.kind(), kind);
                    ran.push(kind);
                    body(ring, TempDir::new().unwrap()).await;
                }
                Err(e) => assert_eq!(e.kind, ErrorKind::NotFound, "{e}"),
            }
        });
    }
    assert!(ran.contains(&RingKind::Threads), "{ran:?}");
}

fn new_file() -> DeviceOptions {
    DeviceOptions { create: true, ..DeviceOptions::default() }
}

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(byte);
    buf
}

async fn sized(ring: &Ring, dir: &TempDir, len: u64) -> FileDevice {
    let device = FileDevice::open(ring, &dir.path().join("log"), new_file()).unwrap();
    device.set_len(len).await.unwrap();
    device
}

/// Puts another open file in the place of the device's descriptor, so that its calls fail.
fn replace_descriptor(device: &FileDevice, path: &Path, write: bool) {
    let other = std::fs::OpenOptions::new().read(!write).write(write).open(path).unwrap();
    // SAFETY: both descriptors are open; the device's number stays valid and is closed by the device.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), device.as_raw_fd()) } >= 0);
}

#[test]
fn bytes_written_are_read_and_survive_opening_again() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 1 << 20).await;
        assert_eq!((device.sector(), device.len()), (4096, 1 << 20));
        let (buf, done) = device.write(8192, filled(8192, 7), Durability::Durable).await;
        done.unwrap();
        assert_eq!(buf.len(), 8192);
        device.write(4096, filled(4096, 5), Durability::Cached).await.1.unwrap();
        device.sync().await.unwrap();
        drop(device);
        let device = FileDevice::open(&ring, &dir.path().join("log"), DeviceOptions::default()).unwrap();
        let read = device.read(0, 5 * 4096).await.unwrap();
        let expected: Vec<u8> = [0, 5, 7, 7, 0].iter().flat_map(|b| [*b; 4096]).collect();
        assert!(read[..] == expected[..]);
    });
}

#[test]
fn accesses_out_of_range_or_unaligned_are_invalid_and_harmless() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 64 << 10).await;
        for (at, len) in [(0, 100), (512, 4096), (64 << 10, 4096), (60 << 10, 8192), (u64::MAX - 4095, 4096)] {
            assert_eq!(device.read(at, len).await.unwrap_err().kind, ErrorKind::Invalid, "read {at} {len}");
            let (_, done) = device.write(at, filled(len, 1), Durability::Durable).await;
            assert_eq!(done.unwrap_err().kind, ErrorKind::Invalid, "write {at} {len}");
            assert_eq!(device.punch(at, len as u64).await.unwrap_err().kind, ErrorKind::Invalid);
            assert_eq!(device.prewrite(at, len as u64).await.unwrap_err().kind, ErrorKind::Invalid);
        }
        assert_eq!(device.read(0, 1 << 40).await.unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(device.set_len(5000).await.unwrap_err().kind, ErrorKind::Invalid);
        assert!(device.read(0, 64 << 10).await.unwrap().iter().all(|b| *b == 0));
        assert!(device.read(4096, 0).await.unwrap().is_empty());
        device.poison().check().unwrap();
    });
}

#[test]
fn length_changes_are_prewritten_and_durable() {
    use std::os::unix::fs::MetadataExt;
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 3 << 20).await;
        let path = dir.path().join("log");
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 3 << 20);
        device.write(0, filled(4096, 9), Durability::Durable).await.1.unwrap();
        device.set_len(1 << 20).await.unwrap();
        assert_eq!((device.len(), std::fs::metadata(&path).unwrap().len()), (1 << 20, 1 << 20));
        assert_eq!(device.read(1 << 20, 4096).await.unwrap_err().kind, ErrorKind::Invalid);
        device.set_len((2 << 20) + 4096).await.unwrap();
        assert_eq!(device.read(0, 4096).await.unwrap()[0], 9);
        assert!(device.read(1 << 20, (1 << 20) + 4096).await.unwrap().iter().all(|b| *b == 0));
        device.set_len(0).await.unwrap();
        assert_eq!(device.len(), 0);
    });
}

#[test]
fn punched_ranges_give_space_back_and_can_be_filled_again() {
    use std::os::unix::fs::MetadataExt;
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 4 << 20).await;
        let blocks = || std::fs::metadata(dir.path().join("log")).unwrap().blocks() * 512;
        device.write(1 << 20, filled(1 << 20, 3), Durability::Durable).await.1.unwrap();
        let before = blocks();
        device.punch(1 << 20, 1 << 20).await.unwrap();
        assert!(blocks() + (1 << 20) <= before, "{} after, {before} before", blocks());
        device.prewrite(1 << 20, 1 << 20).await.unwrap();
        assert!(blocks() >= before);
        assert!(device.read(1 << 20, 1 << 20).await.unwrap().iter().all(|b| *b == 0));
    });
}

#[test]
fn more_operations_than_any_queue_holds_run_together() {
    each(|ring, dir| async move {
        let count = IN_FLIGHT_MAX as u64 + 1000;
        let blocks = 256;
        let device = Rc::new(sized(&ring, &dir, blocks * 4096).await);
        for block in 0..blocks {
            device.write(block * 4096, filled(4096, block as u8), Durability::Cached).await.1.unwrap();
        }
        let mut tasks = Vec::new();
        for i in 0..count {
            let device = Rc::clone(&device);
            tasks.push(tokio::task::spawn_local(async move {
                let block = i * 7 % blocks;
                let read = device.read(block * 4096, 4096).await.unwrap();
                assert!(read.iter().all(|b| *b == block as u8), "block {block}");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(ring.outstanding(), 0);
    });
}

#[test]
fn a_dropped_future_leaves_its_buffer_to_the_kernel() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 8 << 20).await;
        for round in 0..50_u64 {
            let mut write =
                Box::pin(device.write((round % 8) << 20, filled(1 << 20, round as u8 + 1), Durability::Durable));
            let mut read = Box::pin(device.read(0, 1 << 20));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(write.as_mut().poll(&mut cx).is_pending());
            assert!(read.as_mut().poll(&mut cx).is_pending());
            if round % 2 == 0 {
                // Once submitted, once not yet.
                tokio::task::yield_now().await;
            }
            drop((write, read));
            assert!(ring.outstanding() <= 2 * 50);
        }
        while ring.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
        for piece in 0..8_u64 {
            let read = device.read(piece << 20, 1 << 20).await.unwrap();
            // The writes of a piece overlapped in time, so any of them may be the last; a buffer freed too early
            // would show as a foreign byte.
            let ok = |b: &u8| *b > 0 && (u64::from(*b) - 1) % 8 == piece;
            assert!(read.iter().all(ok), "piece {piece}");
        }
    });
}

#[test]
fn a_ring_that_goes_away_waits_for_what_is_in_flight() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 8 << 20).await;
        let mut writes = Vec::new();
        for i in 0..8_u64 {
            let device = device.clone();
            let mut write =
                Box::pin(async move { device.write(i << 20, filled(1 << 20, 1), Durability::Durable).await.1 });
            assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            writes.push(write);
        }
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        drop((writes, device, ring));
        // Nothing holds the file any more: its lock is free.
        let ring = Ring::start_kind(RingKind::Threads).unwrap();
        FileDevice::open(&ring, &dir.path().join("log"), DeviceOptions::default()).unwrap();
    });
}

#[test]
fn a_failed_write_poisons_for_ever_and_for_all_who_share_it() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 64 << 10).await;
        let options = DeviceOptions { poison: device.poison().clone(), ..new_file() };
        let neighbour = FileDevice::open(&ring, &dir.path().join("other"), options).unwrap();
        replace_descriptor(&device, &dir.path().join("log"), false);
        let (buf, done) = device.write(0, filled(4096, 1), Durability::Durable).await;
        assert_eq!((buf.len(), done.unwrap_err().kind), (4096, ErrorKind::DeviceFailed));
        for device in [&device, &neighbour] {
            let failed = |e: freebs_types::Error| assert_eq!(e.kind, ErrorKind::DeviceFailed, "{e}");
            failed(device.read(0, 0).await.unwrap_err());
            failed(device.sync().await.unwrap_err());
            failed(device.write(0, filled(0, 1), Durability::Cached).await.1.unwrap_err());
            failed(device.set_len(4096).await.unwrap_err());
            failed(device.punch(0, 0).await.unwrap_err());
            failed(device.prewrite(0, 0).await.unwrap_err());
        }
        assert!(device.poison().cause().unwrap().contains("Bad file descriptor"));
    });
}

#[test]
fn a_failed_write_that_nobody_waits_for_poisons_too() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 64 << 10).await;
        replace_descriptor(&device, &dir.path().join("log"), false);
        {
            let mut write = pin!(device.write(0, filled(4096, 1), Durability::Cached));
            assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        while ring.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(device.sync().await.unwrap_err().kind, ErrorKind::DeviceFailed);
    });
}

#[test]
fn a_failed_sync_poisons() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 64 << 10).await;
        // A pipe can't be synced.
        let (reader, _writer) = std::io::pipe().unwrap();
        // SAFETY: both descriptors are open.
        assert!(unsafe { libc::dup2(reader.as_raw_fd(), device.as_raw_fd()) } >= 0);
        assert_eq!(device.sync().await.unwrap_err().kind, ErrorKind::DeviceFailed);
        assert_eq!(device.read(0, 4096).await.unwrap_err().kind, ErrorKind::DeviceFailed);
    });
}

#[test]
fn a_failed_read_does_not_poison() {
    each(|ring, dir| async move {
        let device = sized(&ring, &dir, 64 << 10).await;
        let path = dir.path().join("log");
        // Somebody cuts the file behind our back, in the middle of a sector.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((32 << 10) + 100).unwrap();
        for (at, len) in [(32 << 10, 4096), (0, 64 << 10), (40 << 10, 4096)] {
            assert_eq!(device.read(at, len).await.unwrap_err().kind, ErrorKind::Corrupt, "{len} at {at}");
        }
        assert_eq!(device.read(0, 32 << 10).await.unwrap().len(), 32 << 10);
        device.sync().await.unwrap();
        replace_descriptor(&device, &path, true);
        assert_eq!(device.read(0, 4096).await.unwrap_err().kind, ErrorKind::Os);
        device.sync().await.unwrap();
    });
}

#[test]
fn no_room_leaves_the_length_as_it_was() {
    each(|ring, dir| async move {
        let shm = Path::new("/dev/shm");
        let full = if shm.is_dir() { TempDir::new_in(shm).unwrap() } else { TempDir::new().unwrap() };
        // More than a file of ext4 may have, and more than memory has.
        for dir in [&dir, &full] {
            let device = sized(&ring, dir, 1 << 20).await;
            device.write(0, filled(4096, 4), Durability::Durable).await.1.unwrap();
            let error = device.set_len(1 << 58).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
            assert_eq!(device.len(), 1 << 20);
            assert_eq!(std::fs::metadata(dir.path().join("log")).unwrap().len(), 1 << 20);
            assert_eq!(device.read(0, 4096).await.unwrap()[0], 4);
            device.set_len(2 << 20).await.unwrap();
        }
    });
}

#[test]
fn without_direct_io_everything_works_through_the_cache() {
    each(|ring, dir| async move {
        let options = DeviceOptions { buffered: true, ..new_file() };
        let device = FileDevice::open(&ring, &dir.path().join("log"), options).unwrap();
        assert!(!device.is_direct());
        device.set_len(1 << 20).await.unwrap();
        device.write(4096, filled(4096, 8), Durability::Durable).await.1.unwrap();
        assert_eq!(device.read(4096, 4096).await.unwrap()[4095], 8);
        device.sync().await.unwrap();
    });
}

#[test]
fn a_device_has_one_user() {
    worker(async {
        let (ring, dir) = (Ring::start().unwrap(), TempDir::new().unwrap());
        let path = dir.path().join("log");
        let first = FileDevice::open(&ring, &path, new_file()).unwrap();
        let error = FileDevice::open(&ring, &path, new_file()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.text.contains("is in use by another process"), "{error}");
        drop(first);
        FileDevice::open(&ring, &path, new_file()).unwrap();
    });
}

#[test]
fn a_device_that_is_only_read_refuses_writes_and_is_locked_all_the_same() {
    each(|ring, dir| async move {
        let path = dir.path().join("log");
        let reader = DeviceOptions { read_only: true, ..new_file() };
        let missing = FileDevice::open(&ring, &path, reader.clone()).err().unwrap();
        assert_eq!((missing.kind, path.exists()), (ErrorKind::NotFound, false));
        std::fs::write(&path, vec![3; 8192]).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
        let device = FileDevice::open(&ring, &path, reader.clone()).unwrap();
        assert_eq!(device.read(4096, 4096).await.unwrap()[0], 3);
        assert_eq!(FileDevice::open(&ring, &path, reader).err().unwrap().kind, ErrorKind::Busy);
        assert!(device.write(0, filled(4096, 1), Durability::Durable).await.1.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), vec![3; 8192]);
    });
}

#[test]
fn wrong_paths_say_what_to_do() {
    worker(async {
        let (ring, dir) = (Ring::start().unwrap(), TempDir::new().unwrap());
        let refuse = |path: &Path, options: DeviceOptions| FileDevice::open(&ring, path, options).err().unwrap();
        let missing = refuse(&dir.path().join("no/such/log"), new_file());
        assert_eq!(missing.kind, ErrorKind::NotFound);
        assert!(missing.text.contains("mkdir -p"), "{missing}");
        let absent = refuse(&dir.path().join("log"), DeviceOptions::default());
        assert_eq!((absent.kind, absent.text.contains("does not exist")), (ErrorKind::NotFound, true));
        assert!(!dir.path().join("log").exists());
        let directory = refuse(dir.path(), new_file());
        assert_eq!((directory.kind, directory.text.contains("is a directory")), (ErrorKind::Invalid, true));
        let character = refuse(Path::new("/dev/null"), new_file());
        assert_eq!((character.kind, character.text.contains("neither a regular file")), (ErrorKind::Invalid, true));
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let below = refuse(&dir.path().join("file/log"), new_file());
        assert!(below.text.contains("not a directory") || below.text.contains("does not exist"), "{below}");
        let sector = refuse(&dir.path().join("file"), DeviceOptions { sector: Some(300), ..new_file() });
        assert_eq!(sector.kind, ErrorKind::Invalid);
    });
}

#[test]
fn a_file_with_an_odd_tail_keeps_it_but_does_not_count_it() {
    worker(async {
        let (ring, dir) = (Ring::start().unwrap(), TempDir::new().unwrap());
        let path = dir.path().join("log");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let device = FileDevice::open(&ring, &path, DeviceOptions::default()).unwrap();
        assert_eq!(device.len(), 8192);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000);
        let small = DeviceOptions { sector: Some(512), ..DeviceOptions::default() };
        drop(device);
        let device = FileDevice::open(&ring, &path, small).unwrap();
        assert_eq!((device.sector(), device.len()), (512, 9728));
    });
}

#[test]
fn a_poison_keeps_its_first_cause() {
    let poison = Poison::new();
    poison.check().unwrap();
    let shared = poison.clone();
    shared.set("the first");
    shared.set("the second");
    assert_eq!(poison.cause(), Some("the first"));
    assert_eq!(poison.check().unwrap_err().kind, ErrorKind::DeviceFailed);
}

#[test]
fn the_environment_can_force_threads() {
    const NAME: &str = "the_environment_can_force_threads";
    let variable = freebs_io::linux::ring::NO_URING;
    if std::env::var_os(variable).is_some() {
        worker(async { assert_eq!(Ring::start().unwrap().kind(), RingKind::Threads) });
        return;
    }
    // The variable belongs to a process, and other tests run in this one.
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", NAME]).env(variable, "1").output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
fn threads_stand_in_where_uring_is_forbidden() {
    let thread = std::thread::spawn(|| {
        refuse(libc::SYS_io_uring_setup, libc::EPERM);
        worker(async {
            assert_eq!(Ring::start_kind(RingKind::Plain).err().unwrap().kind, ErrorKind::NotFound);
            let (ring, dir) = (Ring::start().unwrap(), TempDir::new().unwrap());
            assert_eq!(ring.kind(), RingKind::Threads);
            let device = sized(&ring, &dir, 64 << 10).await;
            device.write(4096, filled(4096, 6), Durability::Durable).await.1.unwrap();
            assert_eq!(device.read(4096, 4096).await.unwrap()[9], 6);
        });
    });
    ends(thread);
}

fn ends(thread: std::thread::JoinHandle<()>) {
    let begun = Instant::now();
    while !thread.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the thread does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.join().unwrap();
}

/// The threads ask the kernel for a write that is durable when it returns, and do without where there is none.
#[test]
fn threads_sync_where_the_kernel_has_no_durable_writes() {
    ends(std::thread::spawn(|| {
        refuse(libc::SYS_pwritev2, libc::EOPNOTSUPP);
        worker(async {
            let (ring, dir) = (Ring::start_kind(RingKind::Threads).unwrap(), TempDir::new().unwrap());
            let device = sized(&ring, &dir, 64 << 10).await;
            device.write(4096, filled(4096, 6), Durability::Durable).await.1.unwrap();
            device.sync().await.unwrap();
            assert_eq!(device.read(4096, 4096).await.unwrap()[9], 6);
        });
    }));
}

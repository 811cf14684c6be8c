//! A device whose operations are performed by whoever takes them: each once, with an outcome for each, and poison for
//! every write that failed or got lost.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files are what is tested")]

mod refused;

use freebs_io::linux::{DeviceOptions, LentDevice, Which, Work};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::ErrorKind;
use refused::refuse;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const PAGE: usize = 4096;

fn open(dir: &tempfile::TempDir) -> LentDevice {
    let options = DeviceOptions { create: true, ..DeviceOptions::default() };
    LentDevice::open(&dir.path().join("log"), &options).unwrap()
}

fn poll<T>(f: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match f.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => Some(v),
        Poll::Pending => None,
    }
}

/// Performs all that a future asks for, until it ends.
fn run<T>(device: &LentDevice, f: impl Future<Output = T>) -> T {
    let mut f = pin!(f);
    loop {
        if let Some(v) = poll(f.as_mut()) {
            return v;
        }
        let work = device.take(Which::Any).or_else(|| device.take(Which::Space)).expect("it waits for the device");
        device.complete(work.perform());
    }
}

fn page(fill: u8) -> AlignedBuf {
    let mut b = AlignedBuf::zeroed(PAGE);
    b.fill(fill);
    b
}

#[test]
fn what_is_written_is_read_and_growth_is_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let d = open(&dir);
    run(&d, d.set_len(64 << 10)).unwrap();
    let (_, end) = run(&d, d.write(PAGE as u64, page(7), Durability::Durable));
    end.unwrap();
    run(&d, d.sync()).unwrap();
    let all = run(&d, d.read(0, 64 << 10)).unwrap();
    let fills: Vec<u8> = all.chunks(PAGE).map(|c| c[0]).collect();
    assert_eq!(fills, [vec![0, 7], vec![0; 14]].concat());
    for (at, len) in [(1, PAGE), (0, 100), (64 << 10, PAGE), (u64::MAX - 4095, PAGE)] {
        assert_eq!(run(&d, d.read(at, len)).unwrap_err().kind, ErrorKind::Invalid, "{at} {len}");
    }
}

#[test]
fn reads_are_found_by_their_owner_and_go_out_together() {
    let dir = tempfile::tempdir().unwrap();
    let d = open(&dir);
    run(&d, d.set_len(64 << 10)).unwrap();
    let (_, end) = run(&d, d.write(8192, page(9), Durability::Durable));
    end.unwrap();
    let (mut mine, mut other) = (pin!(d.read(8192, PAGE)), pin!(d.read(0, PAGE)));
    d.set_owner(5);
    assert!(poll(mine.as_mut()).is_none());
    d.set_owner(0);
    assert!(poll(other.as_mut()).is_none());
    assert!(
        !d.is_writing() && !d.has(Which::Writes) && d.has(Which::ReadsOf(5)) && d.take(Which::ReadsOf(6)).is_none()
    );
    let works: Vec<Work> = [d.take(Which::ReadsOf(0)), d.take(Which::ReadsOf(5))].into_iter().flatten().collect();
    assert!(works.len() == 2 && d.take(Which::Any).is_none());
    Work::perform_all(works).into_iter().for_each(|done| d.complete(done));
    assert_eq!(poll(mine.as_mut()).unwrap().unwrap()[0], 9);
    assert_eq!(poll(other.as_mut()).unwrap().unwrap()[0], 0);
}

/// A read that nobody waits for any more is forgotten; a write that is taken and dropped has poisoned the device.
#[test]
fn work_that_gets_lost_poisons_if_it_was_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let d = open(&dir);
    run(&d, d.set_len(64 << 10)).unwrap();
    {
        let mut read = pin!(d.read(0, PAGE));
        assert!(poll(read.as_mut()).is_none());
    }
    assert!(!d.has(Which::Any));
    {
        let mut read = pin!(d.read(0, PAGE));
        assert!(poll(read.as_mut()).is_none());
        drop(d.take(Which::Any));
    }
    run(&d, d.read(0, PAGE)).unwrap();
    {
        let mut write = pin!(d.write(0, page(1), Durability::Durable));
        assert!(poll(write.as_mut()).is_none() && d.is_writing());
        drop(d.take(Which::Writes));
    }
    assert_eq!(run(&d, d.read(0, PAGE)).unwrap_err().kind, ErrorKind::DeviceFailed);
    assert_eq!(run(&d, d.sync()).unwrap_err().kind, ErrorKind::DeviceFailed);
    let (_, end) = run(&d, d.write(0, page(1), Durability::Durable));
    assert_eq!(end.unwrap_err().kind, ErrorKind::DeviceFailed);
}

/// Where the kernel has no writes that are durable when they return, the first write poisoned the device: nobody could even
/// make a disk there.
#[test]
fn a_kernel_without_durable_writes_gets_a_sync() {
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        let thread = std::thread::spawn(move || {
            refuse(libc::SYS_pwritev2, errno);
            let dir = tempfile::tempdir().unwrap();
            let d = open(&dir);
            run(&d, d.set_len(64 << 10)).unwrap();
            for (at, durability) in [(0, Durability::Durable), (8192, Durability::Cached), (4096, Durability::Durable)]
            {
                let (_, end) = run(&d, d.write(at, page(3), durability));
                end.unwrap();
            }
            run(&d, d.sync()).unwrap();
            let all = run(&d, d.read(0, 16 << 10)).unwrap();
            assert_eq!(all.chunks(PAGE).map(|c| c[0]).collect::<Vec<_>>(), [3, 3, 3, 0]);
            assert_eq!(d.poison().cause(), None);
        });
        thread.join().unwrap();
    }
}

/// Room behind the end is the file system's word, not the file's length.
#[test]
fn headroom_is_set_aside_behind_the_end() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let d = open(&dir);
    assert!(d.ask_room().is_none(), "none is asked for");
    d.set_headroom(1 << 20);
    run(&d, d.set_len(64 << 10)).unwrap();
    let meta = || std::fs::metadata(dir.path().join("log")).unwrap();
    assert_eq!((d.len(), meta().len(), d.is_short()), (64 << 10, 64 << 10, false));
    let blocks = meta().blocks();
    let work = d.ask_room().unwrap();
    assert!(d.ask_room().is_none(), "one asks");
    d.complete(work.perform());
    assert!(d.ask_room().is_some() && !d.is_short());
    // Where the file system can reserve at all, growing into it takes no more of it than there is.
    run(&d, d.set_len(128 << 10)).unwrap();
    assert!(meta().blocks() >= blocks && meta().len() == 128 << 10);
}

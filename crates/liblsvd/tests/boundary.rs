//! What a C program can do wrong, and what it is told: null pointers, lengths that no buffer has, odd addresses, disks
//! that are closed (twice, or under other threads), forks. Never memory that is not ours, never a process that ends.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files, threads and time are what is tested")]

use lsvd::*;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const CURRENT: u64 = ALL_ONES;

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn text() -> String {
    // SAFETY: a string of this thread, valid until its next failure.
    unsafe { CStr::from_ptr(error_lsvd()) }.to_str().unwrap().to_owned()
}

struct Opened {
    disk: *mut lsvd_disk,
    dir: tempfile::TempDir,
}

fn opened() -> Opened {
    let dir = tempfile::tempdir().unwrap();
    let path = c_path(&dir.path().join("disk"));
    // SAFETY: a path.
    let disk = unsafe { create_lsvd(path.as_ptr(), 8 * MIB) };
    assert!(!disk.is_null(), "{}", text());
    Opened { disk, dir }
}

/// Every function with this disk; all must refuse it with `EINVAL`.
fn all_refuse(disk: *mut lsvd_disk, path: &CStr) {
    let mut buf = [0 as c_char; 512];
    let mut size = 77usize;
    // SAFETY: buffers are as long as is said; the disk is what is tested.
    unsafe {
        let ints = [
            read_lsvd(disk, buf.as_mut_ptr(), 512, 0, CURRENT),
            write_lsvd(disk, buf.as_ptr(), 512, 0, 0),
            write_durable_lsvd(disk, buf.as_ptr(), 512, 0),
            trim_lsvd(disk, 512, 0),
            zero_lsvd(disk, 512, 0),
            fsync_lsvd(disk),
            cleanup_disk_lsvd(disk, path.as_ptr()),
            put_writes_lsvd(disk, ALL_ONES, buf.as_ptr(), 512),
        ];
        assert_eq!(ints, [-libc::EINVAL; 8]);
        assert_eq!((get_version_lsvd(disk), errno()), (ALL_ONES, libc::EINVAL));
        assert_eq!((get_size_lsvd(disk), errno()), (ALL_ONES, libc::EINVAL));
        assert!(get_writes_lsvd(disk, 0, &mut size).is_null() && errno() == libc::EINVAL && size == 77);
        assert!(writes_lsvd(disk, 0).is_null() && errno() == libc::EINVAL);
        assert!(!text().is_empty());
    }
}

#[test]
fn null_closed_and_made_up_disks_are_refused() {
    let o = opened();
    let spare = c_path(&o.dir.path().join("spare"));
    // SAFETY: numbers that are not disks are what is tested; streams are given back once.
    unsafe {
        assert_eq!(write_lsvd(o.disk, [1 as c_char; 512].as_ptr(), 512, 0, 0), 0);
        let writes = writes_lsvd(o.disk, 0);
        assert!(!writes.is_null());
        all_refuse(null_mut(), &spare);
        all_refuse(o.disk.wrapping_byte_add(1), &spare);
        all_refuse(without_provenance_mut(usize::MAX), &spare);
        all_refuse(writes.cast(), &spare);
        assert_eq!(close_lsvd(null_mut()), 0);
        assert_eq!(close_lsvd(o.disk), 0);
        all_refuse(o.disk, &spare);
        assert_eq!(close_lsvd(o.disk), -libc::EINVAL, "closed twice");

        // The number of a closed disk is not that of the next one.
        let again = open_lsvd(c_path(&o.dir.path().join("disk")).as_ptr());
        assert!(!again.is_null() && again != o.disk);
        all_refuse(o.disk, &spare);
        let mut size = 5;
        assert!(next_writes_lsvd(writes, &mut size).is_null() && errno() == libc::EINVAL, "its disk is closed");
        close_writes_lsvd(writes);
        assert!(next_writes_lsvd(writes, &mut size).is_null() && errno() == libc::EINVAL);
        close_writes_lsvd(writes);
        close_writes_lsvd(null_mut());
        free_lsvd(null_mut());
        assert_eq!(close_lsvd(again), 0);
    }
}

#[test]
fn lengths_places_and_buffers_are_checked() {
    let o = opened();
    let mut buf = vec![1 as c_char; 4096 + 64];
    let p = buf.as_mut_ptr();
    // SAFETY: where a length is larger than the buffer, the call has to refuse it before it looks there.
    unsafe {
        for len in [1, 511, 513, 8 * MIB + 512, 1 << 40, 1 << 62, 1 << 63, u64::MAX - 511, u64::MAX] {
            assert_eq!(read_lsvd(o.disk, p, len, 0, CURRENT), -libc::EINVAL, "{len}");
            assert_eq!(write_lsvd(o.disk, p, len, 0, 0), -libc::EINVAL, "{len}");
            assert_eq!(write_durable_lsvd(o.disk, p, len, 0), -libc::EINVAL, "{len}");
            assert_eq!(trim_lsvd(o.disk, len, 0), -libc::EINVAL, "{len}");
            assert_eq!(zero_lsvd(o.disk, len, 0), -libc::EINVAL, "{len}");
        }
        for at in [1, 8 * MIB, u64::MAX - 511, u64::MAX] {
            assert_eq!(read_lsvd(o.disk, p, 512, at, CURRENT), -libc::EINVAL, "{at}");
            assert_eq!(write_lsvd(o.disk, p, 512, at, 0), -libc::EINVAL, "{at}");
            assert_eq!(trim_lsvd(o.disk, 512, at), -libc::EINVAL, "{at}");
        }
        assert_eq!(read_lsvd(o.disk, null_mut(), 512, 0, CURRENT), -libc::EINVAL);
        assert_eq!(write_lsvd(o.disk, null(), 512, 0, 0), -libc::EINVAL);
        assert_eq!(put_writes_lsvd(o.disk, 0, null(), 512), -libc::EINVAL);
        assert!(get_writes_lsvd(o.disk, 0, null_mut()).is_null() && errno() == libc::EINVAL);
        assert!(create_lsvd(null(), MIB).is_null() && errno() == libc::EINVAL);
        assert!(open_lsvd(c"/nowhere/at/all".as_ptr()).is_null() && errno() == libc::ENOENT);
        assert_eq!(get_version_lsvd(o.disk), 0, "none of it was taken");
        // Nothing of nothing is all right.
        assert_eq!(read_lsvd(o.disk, null_mut(), 0, 0, CURRENT), 0);
        assert_eq!(write_lsvd(o.disk, null(), 0, 8 * MIB, 0), 0);
        assert_eq!(put_writes_lsvd(o.disk, 0, null(), 0), 0);

        // Buffers may lie anywhere.
        for odd in [1, 3, 8, 63] {
            buf[odd..odd + 4096].fill(odd as c_char);
            let p = buf.as_mut_ptr().add(odd);
            assert_eq!(write_durable_lsvd(o.disk, p, 4096, 4096), 0);
            buf[odd..odd + 4096].fill(0);
            let p = buf.as_mut_ptr().add(odd);
            assert_eq!(read_lsvd(o.disk, p, 4096, 4096, CURRENT), 0);
            assert!(buf[odd..odd + 4096].iter().all(|b| *b == odd as c_char));
        }
        assert_eq!(close_lsvd(o.disk), 0);
    }
}

/// Threads are in the middle of everything when the disk is closed: each call ends, with success or `EINVAL`, and what
/// was answered as durable is there.
#[test]
fn a_disk_is_closed_under_its_threads() {
    struct Shared(*mut lsvd_disk);
    // SAFETY: by the contract of the library a disk is for all threads.
    unsafe impl Sync for Shared {}

    for round in 0..10u64 {
        let o = opened();
        let disk = Shared(o.disk);
        let begun = AtomicBool::new(false);
        let durable: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..8u64)
                .map(|t| {
                    let (disk, begun) = (&disk, &begun);
                    s.spawn(move || {
                        let mut buf = [t as c_char + 1; 4096];
                        for n in 0.. {
                            let at = (n * 8 + t) % 2048 * 4096;
                            // SAFETY: the buffer has 4,096 bytes.
                            let end = unsafe {
                                match (t + n) % 4 {
                                    0 => read_lsvd(disk.0, [0 as c_char; 4096].as_mut_ptr(), 4096, at, CURRENT),
                                    1 => fsync_lsvd(disk.0),
                                    _ => write_durable_lsvd(disk.0, buf.as_mut_ptr(), 4096, at),
                                }
                            };
                            if end != 0 {
                                assert_eq!(end, -libc::EINVAL, "{}", text());
                                return n;
                            }
                            begun.store(true, Ordering::Relaxed);
                        }
                        unreachable!()
                    })
                })
                .collect();
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_micros(500 * round));
            // SAFETY: it is closed once.
            assert_eq!(unsafe { close_lsvd(disk.0) }, 0, "{}", text());
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        // SAFETY: a path, and buffers as long as is said.
        unsafe {
            let again = open_lsvd(c_path(&o.dir.path().join("disk")).as_ptr());
            assert!(!again.is_null(), "{}", text());
            for (t, calls) in durable.iter().enumerate() {
                let t = t as u64;
                for n in (0..(*calls).min(256)).filter(|n| (t + n) % 4 > 1) {
                    let mut got = [0 as c_char; 4096];
                    assert_eq!(read_lsvd(again, got.as_mut_ptr(), 4096, (n * 8 + t) * 4096, CURRENT), 0);
                    assert_eq!(got, [t as c_char + 1; 4096], "thread {t}, write {n}");
                }
            }
            assert_eq!(close_lsvd(again), 0);
        }
    }
}

#[test]
fn a_forked_child_is_refused() {
    let o = opened();
    let path = c_path(&o.dir.path().join("another"));
    let mut buf = [1 as c_char; 512];
    // SAFETY: the child makes a few calls that take no lock, and leaves at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let refused = write_durable_lsvd(o.disk, buf.as_ptr(), 512, 0) == -libc::EINVAL
                && read_lsvd(o.disk, buf.as_mut_ptr(), 512, 0, CURRENT) == -libc::EINVAL
                && close_lsvd(o.disk) == -libc::EINVAL
                && create_lsvd(path.as_ptr(), MIB).is_null();
            libc::_exit(if refused { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child was let in");
        assert_eq!(write_durable_lsvd(o.disk, buf.as_ptr(), 512, 0), 0, "the parent goes on");
        assert_eq!(close_lsvd(o.disk), 0);
    }
}

//! All that a C program can do wrong, and the answer: null pointers, lengths that no buffer has, ranges past the end, things
//! that are closed (twice, or under other threads), forks. Never memory that is not ours, never a process that ends.

use crate::support::Nodes;
use cfreebs::*;
use std::ffi::{CStr, CString, c_int};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn text() -> String {
    // SAFETY: a string of this thread, valid until its next failure.
    unsafe { CStr::from_ptr(freebs_error()) }.to_str().unwrap().to_owned()
}

#[derive(Clone, Copy)]
struct Opened {
    cluster: *mut freebs_cluster,
    volume: *mut freebs_volume,
}

// SAFETY: by the contract of the library handles are for all threads.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

fn opened(nodes: &Nodes) -> Opened {
    let addresses = CString::new(nodes.addresses().join(",")).unwrap();
    // SAFETY: strings with an end.
    unsafe {
        let cluster = freebs_connect(addresses.as_ptr());
        assert!(!cluster.is_null(), "{}", text());
        let volume = freebs_attach(cluster, c"demo".as_ptr());
        assert!(!volume.is_null(), "{}", text());
        Opened { cluster, volume }
    }
}

/// Every function with these things; all must refuse them with `EINVAL`.
fn all_refuse(cluster: *mut freebs_cluster, volume: *mut freebs_volume, interval: *mut freebs_interval) {
    let mut buf = [0_u8; 8];
    let p = buf.as_mut_ptr().cast();
    let mut count = 77;
    // SAFETY: buffers are as long as is said; the numbers are what is tested.
    unsafe {
        let ints = [
            freebs_read(volume, p, 8, 0),
            freebs_write(volume, p, 8, 0),
            freebs_trim(volume, 8, 0),
            freebs_flush(volume),
            freebs_interval_read(interval, p, 8, 0),
            freebs_interval_write(interval, p, 8, 0),
            freebs_interval_trim(interval, 8, 0),
            freebs_commit(interval, null_mut(), &mut count),
        ];
        assert_eq!((ints, count), ([-libc::EINVAL; 8], 77));
        assert_eq!((freebs_size(volume), errno()), (ALL_ONES, libc::EINVAL));
        assert!(freebs_begin(volume).is_null() && errno() == libc::EINVAL);
        assert!(freebs_attach(cluster, c"demo".as_ptr()).is_null() && errno() == libc::EINVAL);
        assert!(freebs_open_snapshot(cluster, c"demo".as_ptr(), c"x".as_ptr()).is_null() && errno() == libc::EINVAL);
        assert!(text().contains("null pointer") || text().contains("not open"), "{}", text());
    }
}

fn null_closed_and_made_up_things_are_refused(o: Opened) {
    // SAFETY: numbers that are nothing are what is tested.
    unsafe {
        let interval = freebs_begin(o.volume);
        assert!(!interval.is_null(), "{}", text());
        all_refuse(null_mut(), null_mut(), null_mut());
        all_refuse(o.cluster.wrapping_byte_add(1), o.volume.wrapping_byte_add(1), interval.wrapping_byte_add(1));
        all_refuse(
            without_provenance_mut(usize::MAX),
            without_provenance_mut(usize::MAX),
            without_provenance_mut(usize::MAX),
        );
        // One kind in the place of another.
        all_refuse(o.volume.cast(), interval.cast(), o.cluster.cast());
        all_refuse(interval.cast(), o.cluster.cast(), o.volume.cast());
        assert_eq!(freebs_abort(interval), 0);
        assert_eq!(freebs_abort(interval), -libc::EINVAL, "aborted twice");
        all_refuse(null_mut(), null_mut(), interval);
        let done = freebs_begin(o.volume);
        assert_eq!(freebs_commit(done, null_mut(), null_mut()), 0, "one without changes");
        all_refuse(null_mut(), null_mut(), done);
        assert_eq!([freebs_close(null_mut()), freebs_detach(null_mut()), freebs_abort(null_mut())], [0; 3]);
        for bad in [without_provenance_mut(8), o.volume.cast()] {
            assert_eq!(freebs_close(bad), -libc::EINVAL);
        }
        assert_eq!(freebs_detach(o.cluster.cast()), -libc::EINVAL);
    }
}

fn lengths_places_and_buffers_are_checked(o: Opened) {
    let mut buf = vec![1_u8; 4096 + 64];
    let p = buf.as_mut_ptr();
    // SAFETY: where a length is larger than the buffer, the call has to refuse it before it looks there.
    unsafe {
        let size = freebs_size(o.volume);
        assert_eq!(size, 64 * MIB);
        let interval = freebs_begin(o.volume);
        for len in [size + 1, 1 << 40, 1 << 62, 1 << 63, u64::MAX] {
            assert_eq!(freebs_read(o.volume, p.cast(), len, 0), -libc::EINVAL, "{len}");
            assert_eq!(freebs_write(o.volume, p.cast(), len, 0), -libc::EINVAL, "{len}");
            assert_eq!(freebs_trim(o.volume, len, 0), -libc::EINVAL, "{len}");
            assert_eq!(freebs_interval_read(interval, p.cast(), len, 0), -libc::EINVAL, "{len}");
            assert_eq!(freebs_interval_write(interval, p.cast(), len, 0), -libc::EINVAL, "{len}");
            assert_eq!(freebs_interval_trim(interval, len, 0), -libc::EINVAL, "{len}");
        }
        for at in [size - 7, size, u64::MAX - 7, u64::MAX] {
            assert_eq!(freebs_read(o.volume, p.cast(), 8, at), -libc::EINVAL, "{at}");
            assert_eq!(freebs_write(o.volume, p.cast(), 8, at), -libc::EINVAL, "{at}");
            assert_eq!(freebs_trim(o.volume, 8, at), -libc::EINVAL, "{at}");
            assert_eq!(freebs_interval_read(interval, p.cast(), 8, at), -libc::EINVAL, "{at}");
            assert_eq!(freebs_interval_write(interval, p.cast(), 8, at), -libc::EINVAL, "{at}");
            assert_eq!(freebs_interval_trim(interval, 8, at), -libc::EINVAL, "{at}");
        }
        assert!(text().contains("past the end"), "{}", text());
        for call in [freebs_read(o.volume, null_mut(), 8, 0), freebs_write(o.volume, null(), 8, 0)] {
            assert_eq!(call, -libc::EINVAL);
        }
        assert_eq!(freebs_interval_read(interval, null_mut(), 8, 0), -libc::EINVAL);
        assert_eq!(freebs_interval_write(interval, null(), 8, 0), -libc::EINVAL);
        // Nothing of nothing is all right.
        assert_eq!(freebs_read(o.volume, null_mut(), 0, size), 0);
        assert_eq!(freebs_write(o.volume, null(), 0, 0), 0);
        assert_eq!(freebs_interval_write(interval, null(), 0, size), 0);
        // Places without a count are refused, and the interval is as it was.
        let mut places = [freebs_place::default(); 2];
        assert_eq!(freebs_interval_write(interval, [7_u8; 3].as_ptr().cast(), 3, 5), 0);
        assert_eq!(freebs_commit(interval, places.as_mut_ptr(), null_mut()), -libc::EINVAL);
        let mut count = 0;
        assert_eq!((freebs_commit(interval, places.as_mut_ptr(), &mut count), count), (0, 1), "no room for any");
        assert_eq!(places, [freebs_place::default(); 2]);
        // Buffers may lie anywhere.
        for odd in [1, 3, 8, 63] {
            buf[odd..odd + 4096].fill(odd as u8);
            assert_eq!(freebs_write(o.volume, buf.as_ptr().add(odd).cast(), 4096, 4095), 0);
            buf[odd..odd + 4096].fill(0);
            assert_eq!(freebs_read(o.volume, buf.as_mut_ptr().add(odd).cast(), 4096, 4095), 0);
            assert!(buf[odd..odd + 4096].iter().all(|b| *b == odd as u8));
        }
        assert_eq!(freebs_read(o.volume, buf.as_mut_ptr().cast(), 10, 0), 0);
        assert_eq!(buf[..10], [0, 0, 0, 0, 0, 7, 7, 7, 0, 0]);
    }
}

fn names_and_addresses_are_checked(nodes: &Nodes, o: Opened) {
    let addresses = CString::new(nodes.addresses().join(",")).unwrap();
    let good = addresses.as_ptr();
    // SAFETY: null, or strings with an end.
    unsafe {
        for bad in [null(), c"".as_ptr(), c" , ".as_ptr(), c"\xff:1".as_ptr()] {
            assert!(freebs_connect(bad).is_null() && errno() == libc::EINVAL, "{}", text());
        }
        for bad in [null(), c"".as_ptr(), c"two words".as_ptr(), c"\xff".as_ptr()] {
            assert!(freebs_connect_as(good, bad).is_null() && errno() == libc::EINVAL, "{}", text());
            assert!(freebs_open_snapshot(o.cluster, c"demo".as_ptr(), bad).is_null(), "{}", text());
            assert!([libc::EINVAL, libc::ENOENT].contains(&errno()), "{}", text());
        }
        for (bad, number) in
            [(null(), libc::EINVAL), (c"\xff".as_ptr(), libc::EINVAL), (c"none".as_ptr(), libc::ENOENT)]
        {
            assert!(freebs_attach(o.cluster, bad).is_null() && errno() == number, "{}", text());
        }
        assert!(freebs_attach(o.cluster, c"demo".as_ptr()).is_null() && errno() == libc::EBUSY);
        assert_eq!(freebs_speak_as_node(null()), -libc::EINVAL);
        assert_eq!(freebs_speak_as_node(c"/nowhere/at/all".as_ptr()), -libc::EINVAL, "{}", text());
    }
}

fn a_forked_child_is_refused(nodes: &Nodes, o: Opened) {
    let addresses = CString::new(nodes.addresses().join(",")).unwrap();
    let mut buf = [1_u8; 8];
    let p = buf.as_mut_ptr().cast();
    // SAFETY: the child makes a few calls that take no lock, and leaves at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let refused = freebs_write(o.volume, p, 8, 0) == -libc::EINVAL
                && freebs_read(o.volume, p, 8, 0) == -libc::EINVAL
                && freebs_begin(o.volume).is_null()
                && freebs_detach(o.volume) == -libc::EINVAL
                && freebs_close(o.cluster) == -libc::EINVAL
                && freebs_connect(addresses.as_ptr()).is_null();
            libc::_exit(if refused { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child was let in");
        assert_eq!(freebs_write(o.volume, p, 8, 0), 0, "the parent goes on");
    }
}

/// Writes a number into two blocks of a thread, both or neither.
fn change_both(o: Opened, thread: usize, n: u64) -> c_int {
    let (at, word) = ((thread as u64 + 1) * MIB, n.to_le_bytes());
    // SAFETY: buffers as long as is said.
    unsafe {
        let interval = freebs_begin(o.volume);
        freebs_interval_write(interval, word.as_ptr().cast(), 8, at);
        freebs_interval_write(interval, word.as_ptr().cast(), 8, at + 8192);
        freebs_commit(interval, null_mut(), null_mut())
    }
}

/// Threads are in the middle of everything when volume and cluster go: each call ends, and an answered change is there.
fn all_is_closed_under_its_threads(nodes: &Nodes, o: Opened) {
    let is_closing = AtomicBool::new(false);
    let done: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|s| {
        let work = |t: usize| {
            let (done, is_closing) = (&done[t], &is_closing);
            s.spawn(move || {
                let o = o;
                for n in 1.. {
                    let status = change_both(o, t, n);
                    if status != 0 {
                        let kinds = [-libc::EINVAL, -libc::ECANCELED, -libc::EAGAIN, -libc::EACCES];
                        let is_expected = is_closing.load(Ordering::Relaxed) && kinds.contains(&status);
                        assert!(is_expected, "{status}: {}", text());
                        break;
                    }
                    done.store(n, Ordering::Relaxed);
                }
            })
        };
        let threads: Vec<_> = (0..done.len()).map(work).collect();
        while done.iter().any(|d| d.load(Ordering::Relaxed) < 20) {
            assert!(!threads.iter().any(std::thread::ScopedJoinHandle::is_finished), "a thread has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        is_closing.store(true, Ordering::Relaxed);
        // SAFETY: handles are for all threads.
        unsafe {
            assert_eq!(freebs_detach(o.volume), 0, "{}", text());
            assert_eq!(freebs_detach(o.volume), -libc::EINVAL, "twice");
            assert_eq!(freebs_close(o.cluster), 0);
            assert_eq!(freebs_close(o.cluster), -libc::EINVAL, "twice");
        }
    });
    all_refuse(o.cluster, o.volume, null_mut());
    let again = opened(nodes);
    // SAFETY: buffers as long as is said.
    unsafe {
        for (t, done) in done.iter().enumerate() {
            let mut both = [[0_u8; 8]; 2];
            for (i, word) in both.iter_mut().enumerate() {
                let at = (t as u64 + 1) * MIB + i as u64 * 8192;
                assert_eq!(freebs_read(again.volume, word.as_mut_ptr().cast(), 8, at), 0);
            }
            let [left, right] = both.map(u64::from_le_bytes);
            let answered = done.load(Ordering::Relaxed);
            assert!(left == right && (left == answered || left == answered + 1), "{left} {right} {answered}");
        }
        // Closed with its cluster, a volume is a number that can be given up, and nothing else.
        assert_eq!(freebs_close(again.cluster), 0);
        let mut byte = 0_u8;
        assert_eq!(freebs_read(again.volume, (&raw mut byte).cast(), 1, 0), -libc::EACCES);
        assert!(text().contains("closed"), "{}", text());
        assert!(freebs_begin(again.volume).is_null() && errno() == libc::EACCES);
        assert_eq!(freebs_detach(again.volume), 0);
        assert_eq!(freebs_read(again.volume, (&raw mut byte).cast(), 1, 0), -libc::EINVAL);
    }
}

#[test]
fn mistakes_are_answered() {
    let nodes = Nodes::up();
    let o = opened(&nodes);
    null_closed_and_made_up_things_are_refused(o);
    lengths_places_and_buffers_are_checked(o);
    names_and_addresses_are_checked(&nodes, o);
    a_forked_child_is_refused(&nodes, o);
    all_is_closed_under_its_threads(&nodes, o);
}

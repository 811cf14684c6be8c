//! Memory that an execution holds, counted by the allocator.
//!
//! A binary that wants the bounds of its targets checked makes `Counting` its global allocator. The counters are the
//! thread's own; what a target hands to another thread would be missed, and targets have no threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let _ = HELD.try_with(|held| {
        let now = held.get() + change;
        held.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

/// The system's allocator, with the bytes counted that each thread holds.
pub struct Counting;

// SAFETY: every call is passed on unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be held for a moment; that is not counted, for it depends on the allocator.
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Has the system's allocator keep what is freed. Targets with devices take and free megabytes in each execution, and a
/// third of their time went into pages that the kernel took back and gave again.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(option: i32, value: i32) -> i32;
        }
        const TRIM_THRESHOLD: i32 = -1;
        const MMAP_THRESHOLD: i32 = -3;
        for option in [TRIM_THRESHOLD, MMAP_THRESHOLD] {
            // SAFETY: it sets a number of the allocator, and takes the allocator's lock for that.
            unsafe { mallopt(option, 1 << 30) };
        }
    }
}

/// The most bytes that `f` holds at a time beyond those that were held before; 0 without `Counting`.
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before).max(0) as usize)
}

/// True in a binary that counts.
#[must_use]
pub fn is_counted() -> bool {
    peak_of(|| std::hint::black_box(vec![0u8; 4096])).1 >= 4096
}

//! An allocator that keeps large blocks for reuse.
//!
//! A recovery reads a few mebibytes, and the sweeps make hundreds of thousands of them: without this most of their
//! time goes into pages that the system takes back and gives again.
//!
//! Invariant: every large block has a size that is a power of two, computed from its layout alone, so that whoever
//! asked for it, its block can serve anybody with the same.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Blocks from this size on are kept.
const LARGE: usize = 32 << 10;
const ALIGN: usize = 4096;
/// Kept blocks of each size.
const KEPT: usize = 12;
/// Powers of two from `LARGE` to 2 MiB.
const SIZES: usize = 7;

thread_local! {
    static SPARE: [[Cell<*mut u8>; KEPT]; SIZES] = const { [const { [const { Cell::new(null_mut()) }; KEPT] }; SIZES] };
}

pub struct Keeping;

/// Index of the size and the layout that the block really has; `None` for what is not kept.
fn class(layout: Layout) -> Option<(usize, Layout)> {
    let size = layout.size().next_power_of_two();
    if layout.size() < LARGE || size > LARGE << (SIZES - 1) || layout.align() > ALIGN {
        return None;
    }
    Some(((size / LARGE).trailing_zeros() as usize, Layout::from_size_align(size, ALIGN).ok()?))
}

// SAFETY: a block is either the system's, made and freed with the same layout that `class` computes, or in one cell
// of one thread, from which it is taken before it is given out.
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((class, real)) = class(layout) else {
            // SAFETY: the caller's promise about the layout is passed on.
            return unsafe { System.alloc(layout) };
        };
        let kept = SPARE.try_with(|s| s[class].iter().map(|c| c.replace(null_mut())).find(|p| !p.is_null()));
        match kept {
            Ok(Some(block)) => block,
            // SAFETY: a large layout has a size above zero.
            _ => unsafe { System.alloc(real) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((class, real)) = class(layout) else {
            // SAFETY: what `alloc` did not keep came from the system with this layout.
            return unsafe { System.dealloc(block, layout) };
        };
        let kept = SPARE.try_with(|s| s[class].iter().find(|c| c.get().is_null()).map(|c| c.set(block)));
        if !matches!(kept, Ok(Some(()))) {
            // SAFETY: it came from the system with `real`, at once or by way of a cell.
            unsafe { System.dealloc(block, real) }
        }
    }
}

//! Buffers that direct I/O accepts.

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};

const ALIGN: usize = 4096;

/// A zeroed byte buffer of fixed capacity whose start is aligned to 4,096 bytes.
pub struct AlignedBuf {
    start: *mut u8,
    len: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone; nothing in it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes; the capacity is rounded up to a multiple of 4,096.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).next_multiple_of(ALIGN);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, len, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("capacity is far below isize::MAX")
    }

    /// Bytes that the buffer can hold, at least as many as were asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the visible length, up to the capacity. Bytes keep what was written there before.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} above capacity {}", self.capacity);
        self.len = len;
    }

    /// Shared, reference-counted bytes without a copy.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.start, Self::layout(self.capacity)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are allocated and initialised (zeroed at allocation).
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_zeroed_and_grows_to_its_capacity_only() {
        let mut b = AlignedBuf::zeroed(5000);
        assert_eq!(b.as_ptr() as usize % ALIGN, 0);
        assert_eq!((b.len(), b.capacity()), (5000, 8192));
        assert!(b.iter().all(|x| *x == 0));
        b.set_len(8192);
        b[8191] = 7;
        let shared = b.freeze();
        assert_eq!(shared[8191], 7);
    }

    #[test]
    #[should_panic(expected = "above capacity")]
    fn refuses_to_grow_past_its_capacity() {
        AlignedBuf::zeroed(10).set_len(4097);
    }
}

//! The device trait: sectors with explicit durability, and nothing else.
//!
//! Assumptions about the medium: a write that returned with `Durability::Durable`, and all writes that returned
//! before a `sync` began, survive a power cut once the call returned; anything else may be lost, reordered, or
//! torn at sector boundaries. A failed write or sync leaves unknown bytes, and poisons the device: from then on
//! every call fails with `DeviceFailed` (no retry that could pretend success).

use crate::AlignedBuf;
use freebs_types::Result;

/// What a write promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In the device's cache; durable with the next sync.
    Cached,
    /// On stable media.
    Durable,
}

/// A file or block device of one worker. Offsets and lengths are bytes, multiples of `sector()`.
///
/// All calls may be in flight together; the order of overlapping ones is not defined.
#[allow(async_fn_in_trait, reason = "one thread per worker: futures need not be Send")]
#[allow(clippy::len_without_is_empty, reason = "an empty device is no case of its own")]
pub trait Device: 'static {
    /// Bytes of the physical sector, the unit that is never torn: a power of two from 512 to 4,096.
    fn sector(&self) -> usize;

    /// Bytes that can be addressed now.
    fn len(&self) -> u64;

    /// Exactly `len` bytes from `at`. `Os` for EIO, `Invalid` beyond the end; a short read is an error.
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf>;

    /// Writes all of `buf` at `at`, and gives the buffer back for reuse.
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>);

    /// Makes every write that returned before this call durable, and the file's length, too.
    async fn sync(&self) -> Result<()>;

    /// Grows (prewritten with zeroes, so that later writes change no metadata) or shrinks. Durable on return.
    /// `NoSpace` if the file system is full: the length is then as before, and the device is not poisoned.
    async fn set_len(&self, len: u64) -> Result<()>;

    /// Gives the range back to the file system; it reads as zeroes (or anything) from then on, and must be
    /// prewritten again with `prewrite` before it is used.
    async fn punch(&self, at: u64, len: u64) -> Result<()>;

    /// Fills a range with zeroes so that later writes change no metadata.
    async fn prewrite(&self, at: u64, len: u64) -> Result<()>;
}

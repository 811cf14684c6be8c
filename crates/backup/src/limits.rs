//! A named maximum for everything that a target holds.

use freebs_types::limits::{SHARD_BLOCKS_MAX, VOLUME_SHARDS_MAX};

/// Bytes of a block: the unit of what is stored, and of what is read again when it changed.
pub const BLOCK_BYTES: usize = 512 << 10;
/// Blocks that one page of the table of contents covers: 4 GiB of a volume.
pub const PAGE_BLOCKS: u32 = 8192;
/// Bytes of a volume that one page covers.
pub const PAGE_COVERS: u64 = PAGE_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Bytes of the largest volume: 1 PiB.
pub const VOLUME_BYTES_MAX: u64 = SHARD_BLOCKS_MAX * 4096 * VOLUME_SHARDS_MAX as u64;
/// Pages of the largest volume.
pub const PAGES_MAX: u32 = (VOLUME_BYTES_MAX / PAGE_COVERS) as u32;
/// Bytes of the name of what was backed up: a volume and a snapshot of it.
pub const SOURCE_NAME_BYTES_MAX: usize = 256;
/// Bytes of the header of an object.
pub const OBJECT_HEADER_BYTES: usize = 64;
/// Bytes that sealing adds to what it seals.
pub const TAG_BYTES: usize = 16;
/// Bytes of an object, at least: its header and a byte.
pub const OBJECT_BYTES_MIN: usize = OBJECT_HEADER_BYTES + 1;
/// Bytes of an object, at most: what zstd does not make smaller is stored as it is.
pub const OBJECT_BYTES_MAX: usize = OBJECT_HEADER_BYTES + BLOCK_BYTES + TAG_BYTES;
/// Bytes of a manifest, at most: 16 MiB of pages of the largest volume, and what is before them.
pub const MANIFEST_BYTES_MAX: usize = 128 + 512 + 64 * PAGES_MAX as usize + TAG_BYTES;
/// Bytes of a marker and of a note.
pub const SMALL_BYTES_MAX: usize = 128;
/// Backups of a target; a create of one more is refused.
pub const BACKUPS_MAX: usize = 1 << 20;
/// Objects of a folder that are named by backups: manifests and notes. Each takes some 50 bytes of memory while it is listed.
pub const NOTES_MAX: usize = 1 << 24;
/// A note in the place of a manifest stays for so long, milliseconds by the store's clock: a year.
pub const NOTES_KEPT_MS: u64 = 366 * 86_400_000;
/// A put of what is not there is tried so often while the store says that there is something, and there is nothing.
pub const CONFLICTS_MAX: u32 = 8;
/// Objects of its own that a create remembers, some 300 MB. Of those beyond it asks the store again.
pub const REMEMBERED_MAX: usize = 4 << 20;
/// Requests to a store on their way at once; with as many blocks in memory.
pub const REQUESTS_MAX: usize = 16;
/// Damaged objects that a verify names.
pub const NAMED_MAX: usize = 1000;

const _: () = assert!(PAGES_MAX == 1 << 18 && PAGE_BLOCKS <= 1 << 16);

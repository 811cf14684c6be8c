//! qcow2, versions 2 and 3, as QEMU's `docs/interop/qcow2.txt` has it.

mod header;
mod read;
mod unpack;
mod write;

pub use header::Header;
pub use read::Reader;
pub use write::{DISK_BYTES_MAX, WRITTEN_CLUSTER_BYTES, Writer};

/// The first bytes of every qcow and qcow2 image.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";

/// An entry of a table: the one it refers to has no other reference.
const COPIED: u64 = 1 << 63;
/// An entry of the second table: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// An entry of the second table, in version 3: the cluster reads as zeroes.
const ZERO: u64 = 1;
/// Bits of an entry that are a place in the file.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;

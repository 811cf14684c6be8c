//! The header of an image: read with every doubt, written as version 3.
//!
//! Invariant: a header that was decoded is of an image that can be read here: its numbers are within their limits, its first
//! table lies within the file and covers the disk, and it needs nothing that is not understood.

use super::MAGIC;
use freebs_types::{Error, Result};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header of version 2; version 3 begins with the same fields.
const V2_BYTES: usize = 72;
/// Bytes of the fields of version 3 that every image of it has.
const V3_BYTES: usize = 104;
/// Bytes of the first table, at most: as QEMU has it. With clusters of 64 KiB it is that of a disk of 2 PiB.
const L1_BYTES_MAX: u64 = 32 << 20;

/// The fields, big-endian, as they stand in the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Raw {
    pub magic: [u8; 4],
    pub version: U32,
    pub backing_at: U64,
    pub backing_bytes: U32,
    pub cluster_bits: U32,
    /// Bytes of the disk.
    pub size: U64,
    pub crypt_method: U32,
    /// Entries.
    pub l1_size: U32,
    pub l1_at: U64,
    pub refcount_table_at: U64,
    pub refcount_table_clusters: U32,
    pub snapshots: U32,
    pub snapshots_at: U64,
    // From here on version 3.
    pub incompatible: U64,
    pub compatible: U64,
    pub autoclear: U64,
    pub refcount_order: U32,
    pub header_bytes: U32,
}
const _: () = assert!(size_of::<Raw>() == V3_BYTES);

/// How clusters of an image are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Deflate,
    Zstd,
}

/// The properties of an image that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Bytes of the disk.
    pub size: u64,
    /// A cluster has two to the power of this bytes: 9 to 21.
    pub cluster_bits: u32,
    /// Snapshots inside the image, which are not read.
    pub snapshots: u32,
    pub(super) compression: Compression,
    pub(super) l1_at: u64,
    /// Entries of the first table that the disk needs.
    pub(super) l1_entries: u64,
}

/// Bytes of a file that [`Header::decode`] wants to see.
pub(super) const HEADER_BYTES: usize = V3_BYTES + 8;

impl Header {
    /// Bytes of a cluster.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the disk that one entry of the first table covers.
    pub(super) fn l2_covers(&self) -> u64 {
        self.cluster() << (self.cluster_bits - 3)
    }

    /// The header in the first bytes of a file of `file_bytes` bytes. `first` has [`HEADER_BYTES`] of them, or all there are.
    /// `Invalid` if it is not an image, or one that can't be read here, `Corrupt` if it is damaged; the text says why, and
    /// the way out.
    pub(super) fn decode(first: &[u8], file_bytes: u64) -> Result<Self> {
        if !first.starts_with(&MAGIC) {
            return Err(Error::invalid("it is no qcow2 image: it begins with other bytes; if it is a raw one, say so"));
        }
        if first.len() < V2_BYTES {
            return Err(truncated());
        }
        let mut bytes = [0; V3_BYTES];
        let there = first.len().min(V3_BYTES);
        bytes[..there].copy_from_slice(&first[..there]);
        let mut raw: Raw = zerocopy::transmute!(bytes);
        match raw.version.get() {
            2 => zero_v3(&mut raw),
            3 if first.len() < V3_BYTES => return Err(truncated()),
            3 => {}
            other => {
                return Err(Error::invalid(format!(
                    "it is a qcow image of version {other}, and only 2 and 3 are read; `qemu-img convert -O qcow2` makes one \
                     of version 3"
                )));
            }
        }
        let compression = needs(&raw, first)?;
        Self::checked(&raw, compression, file_bytes)
    }

    fn checked(raw: &Raw, compression: Compression, file_bytes: u64) -> Result<Self> {
        let cluster_bits = raw.cluster_bits.get();
        if !(9..=21).contains(&cluster_bits) {
            return Err(damaged(format!("clusters of 2^{cluster_bits} bytes")));
        }
        if raw.version.get() == 3 && (raw.header_bytes.get() as usize) < V3_BYTES {
            return Err(damaged(format!("a header of {} bytes", raw.header_bytes.get())));
        }
        let size = raw.size.get();
        if size == 0 || size > i64::MAX as u64 {
            return Err(damaged(format!("a disk of {size} bytes")));
        }
        let header = Self {
            version: raw.version.get(),
            size,
            cluster_bits,
            snapshots: raw.snapshots.get(),
            compression,
            l1_at: raw.l1_at.get(),
            l1_entries: 0,
        };
        let l1_entries = size.div_ceil(header.l2_covers());
        if l1_entries > u64::from(raw.l1_size.get()) {
            return Err(damaged("a first table that is too short for its disk"));
        }
        if l1_entries > L1_BYTES_MAX / 8 {
            return Err(Error::invalid(format!(
                "its disk of {size} bytes is too large to be read in such small clusters"
            )));
        }
        if header.l1_at == 0 || !header.l1_at.is_multiple_of(header.cluster()) {
            return Err(damaged("a first table at an odd place"));
        }
        if header.l1_at.checked_add(l1_entries * 8).is_none_or(|end| end > file_bytes) {
            return Err(truncated());
        }
        Ok(Self { l1_entries, ..header })
    }
}

/// Version 2 has none of these fields: what stands there is something else.
fn zero_v3(raw: &mut Raw) {
    (raw.incompatible, raw.compatible, raw.autoclear) = Default::default();
    (raw.refcount_order, raw.header_bytes) = Default::default();
}

/// Refuses an image that needs what is not done here; else its kind of compression.
fn needs(raw: &Raw, first: &[u8]) -> Result<Compression> {
    const DIRTY: u64 = 1;
    const CORRUPT: u64 = 1 << 1;
    const EXTERNAL: u64 = 1 << 2;
    const COMPRESSION: u64 = 1 << 3;
    const EXTENDED_L2: u64 = 1 << 4;
    let has = |bit: u64| raw.incompatible.get() & bit != 0;
    let refused = |text: &str| Err(Error::invalid(text.to_owned()));
    if raw.backing_at.get() != 0 {
        return refused(
            "it is an overlay: the rest of its disk is in another file (a backing file), which is not followed; \
             `qemu-img convert -O qcow2` makes one whole image of both",
        );
    }
    if raw.crypt_method.get() != 0 {
        return refused("it is encrypted; decrypt it first: `qemu-img convert` does so if it is given the key");
    }
    if has(EXTERNAL) {
        return refused(
            "its data are in another file (an external data file); `qemu-img convert -O qcow2` makes one whole image of both",
        );
    }
    if has(CORRUPT) {
        return refused("it is marked as corrupt; `qemu-img check -r all` mends what can be mended");
    }
    if has(DIRTY) {
        return refused(
            "it is marked as dirty: it was not closed, or something has it open; close it, or mend it with \
             `qemu-img check -r all`",
        );
    }
    if has(EXTENDED_L2) {
        return refused(
            "it has subclusters (extended_l2), which are not read; `qemu-img convert -O qcow2` makes one without",
        );
    }
    let unknown = raw.incompatible.get() & !(DIRTY | CORRUPT | EXTERNAL | COMPRESSION | EXTENDED_L2);
    if unknown != 0 {
        return Err(Error::invalid(format!(
            "it needs features that are not known here (bits {unknown:#x}); `qemu-img convert -O qcow2` may make one without"
        )));
    }
    // The byte behind the fields that all have, if the header is so long.
    let kind = first.get(V3_BYTES).copied().filter(|_| raw.header_bytes.get() as usize > V3_BYTES).unwrap_or(0);
    match (has(COMPRESSION), kind) {
        (_, 0) => Ok(Compression::Deflate),
        (true, 1) => Ok(Compression::Zstd),
        (_, other) => Err(Error::invalid(format!(
            "its clusters are compressed in a way that is not known here ({other}); `qemu-img convert -O qcow2` makes one \
             that is read"
        ))),
    }
}

pub(super) fn damaged(text: impl Into<String>) -> Error {
    Error::corrupt(format!("the image is damaged: it has {}; `qemu-img check` says more", text.into()))
}

pub(super) fn truncated() -> Error {
    Error::corrupt("the image is cut short: it ends before what it refers to; copy it again from where it came")
}

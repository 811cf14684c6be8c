//! The store's superblock: whose it is, and where its newest area lies.
//!
//! Two copies, 4 KiB apart, written one after the other, each durable before the next step; nothing of an older area is
//! written over before both name the newer one. So the newest valid copy is right, whichever one is damaged; both
//! damaged is damage.

use crate::pages::STORE_VERSION;
use freebs_control::limits::NUMBER_MAX;
use freebs_format::crc32c;
use freebs_types::{ClusterId, Error, NodeId, Result, StartNumber};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of each copy.
pub const SUPERBLOCK_MAGIC: [u8; 4] = *b"FBCL";
/// Bytes of each copy.
pub const SUPERBLOCK_BYTES: usize = 128;

/// One copy of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StoreSuperblock {
    /// Always `FBCL`.
    pub magic: [u8; 4],
    /// Always 1.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// The node whose store it is.
    pub node: U64,
    /// Random number of the store, part of the seat.
    pub store: U64,
    /// Start number of the node that opened it last (rule V8).
    pub start: U64,
    /// Raised with each new area.
    pub generation: U64,
    /// Random number of the area.
    pub area: U64,
    /// First page of the area, and its pages.
    pub first_page: U32,
    /// Pages of the area.
    pub pages: U32,
    /// Pages of the area's first batch, which is there as a whole.
    pub first_batch: U32,
    /// Zero.
    pub reserved: [u8; 48],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<StoreSuperblock>() == SUPERBLOCK_BYTES);

impl StoreSuperblock {
    /// The superblock of a new store, without an area, without its checksum.
    #[must_use]
    pub fn new(cluster: ClusterId, node: NodeId, store: u64) -> Self {
        Self {
            magic: SUPERBLOCK_MAGIC,
            version: STORE_VERSION.into(),
            length: (SUPERBLOCK_BYTES as u16).into(),
            cluster: cluster.0,
            node: node.0.into(),
            store: store.into(),
            start: 0.into(),
            generation: 0.into(),
            area: 0.into(),
            first_page: 0.into(),
            pages: 0.into(),
            first_batch: 0.into(),
            reserved: [0; 48],
            crc: 0.into(),
        }
    }

    /// Sets the checksum.
    pub fn seal(&mut self) {
        self.crc = crc32c(&self.as_bytes()[..SUPERBLOCK_BYTES - 4]).into();
    }

    /// The copy in `bytes`; `None` if there are only zeroes.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let bad = || Error::corrupt("a superblock of the control plane's store is damaged");
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let (s, rest) = Self::read_from_prefix(bytes).map_err(|_| bad())?;
        if s.magic != SUPERBLOCK_MAGIC || s.crc.get() != crc32c(&s.as_bytes()[..SUPERBLOCK_BYTES - 4]) {
            return Err(bad());
        }
        if s.version.get() != STORE_VERSION || s.length.get() as usize != SUPERBLOCK_BYTES {
            return Err(Error::invalid("the control plane's store has a newer format; use a newer freebs"));
        }
        // A generation is counted on from.
        if rest.iter().any(|b| *b != 0) || s.generation.get() > NUMBER_MAX {
            return Err(bad());
        }
        Ok(Some(s))
    }

    /// The number of the last opening.
    #[must_use]
    pub fn start(&self) -> StartNumber {
        StartNumber(self.start.get())
    }
}

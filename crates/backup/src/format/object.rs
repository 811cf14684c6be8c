//! An object: a block of a volume or a page of a table of contents, packed, perhaps sealed.

use super::{Id, VERSION, check_start, damaged};
use crate::limits::{BLOCK_BYTES, OBJECT_BYTES_MAX, OBJECT_HEADER_BYTES, TAG_BYTES};
use freebs_format::crc32c;
use freebs_types::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The ways in which an object's content was packed.
pub mod flags {
    /// zstd made it smaller.
    pub const ZSTD: u16 = 1;
    /// It is sealed with the key of the target.
    pub const SEALED: u16 = 2;
}

/// The first bytes of an object; its packed content follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ObjectHeader {
    /// Always `FBKO`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the target.
    pub target: [u8; 16],
    /// See [`flags`].
    pub flags: U16,
    /// Zero.
    pub reserved: [u8; 2],
    /// Bytes of the plain content: 1 to 512 KiB.
    pub plain_bytes: U32,
    /// Bytes that follow this struct.
    pub packed_bytes: U32,
    /// Random, if it is sealed; else zero.
    pub nonce: [u8; 12],
    /// Zero.
    pub reserved_2: [u8; 8],
    /// CRC-32C of the bytes that follow this struct: zstd reads some damaged ones as if they were not.
    pub packed_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<ObjectHeader>() == OBJECT_HEADER_BYTES);

impl ObjectHeader {
    /// The first bytes.
    pub const MAGIC: [u8; 4] = *b"FBKO";

    /// A header without the checksum of what follows it.
    #[must_use]
    pub fn new(target: Id, flags: u16, plain_bytes: usize, packed_bytes: usize, nonce: [u8; 12]) -> Self {
        Self {
            magic: Self::MAGIC,
            version: VERSION.into(),
            length: (OBJECT_HEADER_BYTES as u16).into(),
            target: target.0,
            flags: flags.into(),
            reserved: [0; 2],
            plain_bytes: (plain_bytes as u32).into(),
            packed_bytes: (packed_bytes as u32).into(),
            nonce,
            reserved_2: [0; 8],
            packed_crc: 0.into(),
            crc: 0.into(),
        }
    }

    /// The header and the packed content behind it.
    #[must_use]
    pub fn before(mut self, packed: &[u8]) -> Vec<u8> {
        self.packed_crc = crc32c(packed).into();
        self.crc = crc32c(&self.as_bytes()[..60]).into();
        [self.as_bytes(), packed].concat()
    }

    /// The bytes that are authenticated with a sealed content.
    #[must_use]
    pub fn bound(&self) -> &[u8] {
        &self.as_bytes()[..56]
    }

    /// The header of an object, and its packed content.
    ///
    /// # Errors
    /// If these are not the bytes of an object of this target.
    pub fn decode(bytes: &[u8], target: Id) -> Result<(Self, &[u8])> {
        const WHAT: &str = "object";
        let (header, rest) = Self::read_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is cut short"))?;
        if header.crc.get() != crc32c(&bytes[..60]) {
            return Err(damaged(WHAT, "the checksum of its header is wrong"));
        }
        let start = (header.magic, header.version.get(), header.length.get());
        check_start(WHAT, start, Self::MAGIC, OBJECT_HEADER_BYTES)?;
        if header.target != target.0 {
            return Err(damaged(WHAT, "it is of another target"));
        }
        if bytes.len() > OBJECT_BYTES_MAX || rest.len() != header.packed_bytes.get() as usize {
            return Err(damaged(WHAT, "it has not the length that it says"));
        }
        if header.packed_crc.get() != crc32c(rest) {
            return Err(damaged(WHAT, "its checksum is wrong"));
        }
        let (plain, packed) = (header.plain_bytes.get() as usize, rest.len());
        let tag = if header.is_sealed() { TAG_BYTES } else { 0 };
        let fits = if header.is_zstd() { packed > tag && packed < plain + tag } else { packed == plain + tag };
        let known = header.flags.get() & !(flags::ZSTD | flags::SEALED) == 0;
        let is_plain = header.reserved == [0; 2] && header.reserved_2 == [0; 8];
        let nonce = header.is_sealed() || header.nonce == [0; 12];
        if !(1..=BLOCK_BYTES).contains(&plain) || !fits || !known || !is_plain || !nonce {
            return Err(damaged(WHAT, "its header says what no program writes"));
        }
        Ok((header, rest))
    }

    /// True if zstd made it smaller.
    #[must_use]
    pub fn is_zstd(&self) -> bool {
        self.flags.get() & flags::ZSTD != 0
    }

    /// True if it is sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.flags.get() & flags::SEALED != 0
    }
}

//! What a disk is: size, identity, history, secret. Block 0 of a shard of its own in the same log, so that it is
//! written, found again and cleaned like any other block.
//!
//! Invariant: bytes are believed only if magic, version, length and checksum agree and the numbers are possible.

use freebs_format::crc32c;
use freebs_types::{BLOCK, Error, Hash32, Result, SECTOR, limits};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FBSDISK\0";
const FORMAT: u16 = 1;
/// The disk is a copy of another one's history, kept up by `put_writes`.
const COPY: u32 = 1;

/// Bytes of a disk, at the most: what one shard addresses.
pub const SIZE_MAX: u64 = limits::SHARD_BLOCKS_MAX * BLOCK as u64;

/// The bytes of a description; the rest of the block is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    magic: [u8; 8],
    version: U16,
    length: U16,
    flags: U32,
    size: U64,
    created: U64,
    disk: [u8; 16],
    history: [u8; 16],
    secret: [u8; 32],
    base: U64,
    filling_to: U64,
    reserved: [u8; 12],
    crc: U32,
}
const _: () = assert!(size_of::<Fixed>() == 128);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// Bytes.
    pub size: u64,
    /// Wall clock at creation, for people.
    pub created: u64,
    pub disk: [u8; 16],
    /// Names the line of versions: disks of one history have the same content at the same version.
    pub history: [u8; 16],
    pub copy: bool,
    /// Secrets of views are derived from it.
    pub secret: Hash32,
    /// Versions up to this one came by map: there are no frames for them.
    pub base: u64,
    /// Content is between two versions until this one is reached; 0 if it is not.
    pub filling_to: u64,
}

/// `Invalid` unless a disk may have `size` bytes.
pub(crate) fn check_size(size: u64) -> Result<()> {
    if size == 0 || size > SIZE_MAX || !size.is_multiple_of(SECTOR as u64) {
        let text = format!("a disk has 512 bytes to 1 TiB, a multiple of 512; {size} is not that");
        return Err(Error::invalid(text));
    }
    Ok(())
}

impl Description {
    /// One block.
    pub fn encode(&self) -> Vec<u8> {
        let mut f = Fixed {
            magic: MAGIC,
            version: FORMAT.into(),
            length: (size_of::<Fixed>() as u16).into(),
            flags: if self.copy { COPY } else { 0 }.into(),
            size: self.size.into(),
            created: self.created.into(),
            disk: self.disk,
            history: self.history,
            secret: self.secret.0,
            base: self.base.into(),
            filling_to: self.filling_to.into(),
            reserved: [0; 12],
            crc: 0.into(),
        };
        f.crc = crc32c(&f.as_bytes()[..size_of::<Fixed>() - 4]).into();
        let mut block = f.as_bytes().to_vec();
        block.resize(BLOCK, 0);
        block
    }

    pub fn decode(block: &[u8]) -> Result<Self> {
        let (f, _) =
            Fixed::read_from_prefix(block).map_err(|_| Error::corrupt("the disk's description is cut short"))?;
        if f.magic != MAGIC {
            return Err(Error::invalid("the file has a log, but not that of a disk of this library"));
        }
        if f.crc.get() != crc32c(&f.as_bytes()[..size_of::<Fixed>() - 4]) {
            return Err(Error::corrupt("the disk's description does not match its checksum"));
        }
        if f.version.get() != FORMAT || f.length.get() as usize != size_of::<Fixed>() || f.flags.get() & !COPY != 0 {
            return Err(Error::invalid("a disk of a newer format; use a newer freebs"));
        }
        check_size(f.size.get()).map_err(|e| Error::corrupt(e.text))?;
        Ok(Self {
            size: f.size.get(),
            created: f.created.get(),
            disk: f.disk,
            history: f.history,
            copy: f.flags.get() & COPY != 0,
            secret: Hash32(f.secret),
            base: f.base.get(),
            filling_to: f.filling_to.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Description {
        Description {
            size: 10 << 20,
            created: 5,
            disk: [1; 16],
            history: [2; 16],
            copy: true,
            secret: Hash32([3; 32]),
            base: 7,
            filling_to: 9,
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = some().encode();
        assert_eq!(good.len(), BLOCK);
        assert_eq!(Description::decode(&good).unwrap(), some());
        for i in 0..size_of::<Fixed>() {
            let mut bad = good.clone();
            bad[i] ^= 0x40;
            assert!(Description::decode(&bad).is_err(), "byte {i}");
        }
        assert!(Description::decode(&good[..100]).is_err());
    }

    #[test]
    fn the_bytes_of_version_1_stay() {
        let block = some().encode();
        assert_eq!(&block[..16], b"FBSDISK\0\x01\0\x80\0\x01\0\0\0");
        assert_eq!(block[16..24], (10u64 << 20).to_le_bytes());
        assert_eq!((block[32], block[48], block[64], block[96], block[104]), (1, 2, 3, 7, 9));
        assert_eq!(block[124..128], crc32c(&block[..124]).to_le_bytes());
    }

    #[test]
    fn sizes_are_whole_sectors_up_to_a_tebibyte() {
        for good in [512, 4096, 1 << 40] {
            check_size(good).unwrap();
        }
        for bad in [0, 511, 4097, (1 << 40) + 512, u64::MAX] {
            assert!(check_size(bad).is_err(), "{bad}");
        }
    }
}

//! The stand-in for a data block that nobody could read any more when its map entry was told.
//!
//! Invariant: it never matches the CRC that it stands for, so it is nowhere taken for the data.

use bytes::Bytes;
use freebs_types::BLOCK;

/// The first bytes of a stand-in.
pub const LOST_MAGIC: [u8; 4] = *b"FBLO";

/// Stands in a carry for the block with this CRC: magic, the CRC, zeroes. There is no CRC whose stand-in has that very CRC.
#[must_use]
pub fn lost_block(crc: u32) -> Bytes {
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(&LOST_MAGIC);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    block.into()
}

/// True if a block is the stand-in for the one with this CRC.
#[must_use]
pub fn is_lost_block(block: &[u8], crc: u32) -> bool {
    block.starts_with(&LOST_MAGIC) && *block == lost_block(crc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::block_crc;

    #[test]
    fn the_bytes_are_these() {
        let block = lost_block(0x0102_0304);
        assert_eq!(block[..12], *b"FBLO\x04\x03\x02\x01\0\0\0\0");
        assert!(block.len() == BLOCK && block[12..].iter().all(|b| *b == 0));
        assert!(is_lost_block(&block, 0x0102_0304) && !is_lost_block(&block, 0x0102_0305));
        assert!(!is_lost_block(&vec![0; BLOCK], 0));
    }

    /// The CRC of a stand-in is an affine function of the CRC that it stands for, so 33 values say all: f(x) = x, as 32
    /// equations for the bits of x, has no solution.
    #[test]
    fn no_stand_in_matches_what_it_stands_for() {
        let f = |crc| block_crc(&lost_block(crc));
        let zero = f(0);
        assert_eq!(f(0x1234_5678) ^ f(0x1000_0000) ^ f(0x0234_5678), zero, "it is affine");
        // Bits 0 to 31: which bits of x are in the sum; bit 32: what it must be.
        let mut left: Vec<u64> = (0..32)
            .map(|row| {
                let sum = |bit: u32| u64::from((f(1 << bit) ^ zero ^ (1 << bit)) >> row & 1) << bit;
                (0..32).map(sum).sum::<u64>() | u64::from(zero >> row & 1) << 32
            })
            .collect();
        for bit in 0..32 {
            let Some(i) = left.iter().position(|e| e >> bit & 1 == 1) else { continue };
            let used = left.swap_remove(i);
            left.iter_mut().filter(|e| **e >> bit & 1 == 1).for_each(|e| *e ^= used);
        }
        assert!(left.contains(&(1 << 32)), "nothing is 1: there is no such x");
    }
}

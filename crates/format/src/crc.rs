//! CRC-32C, per 4 KiB block and for headers.

use freebs_types::BLOCK;

/// CRC-32C (Castagnoli) of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of one 4 KiB block. Panics on another length.
#[must_use]
pub fn block_crc(block: &[u8]) -> u32 {
    assert_eq!(block.len(), BLOCK, "a block has 4,096 bytes");
    crc32c(block)
}

/// Appends the CRC of each 4 KiB block of `data` to `out`. Panics unless `data` is whole blocks.
pub fn block_crcs(data: &[u8], out: &mut Vec<u32>) {
    assert!(data.len().is_multiple_of(BLOCK), "whole blocks");
    out.extend(data.chunks_exact(BLOCK).map(crc32c));
}

/// Whether all bytes are zero. Ends at the first byte that is not, so it costs little for data.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (head, middle, tail) = {
        // SAFETY: any bit pattern is a valid u64.
        unsafe { bytes.align_to::<u64>() }
    };
    head.iter().all(|b| *b == 0) && middle.iter().all(|w| *w == 0) && tail.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn zero_is_found_at_any_alignment() {
        let mut b = vec![0u8; 5000];
        for start in 0..9 {
            assert!(is_zero(&b[start..]));
        }
        b[4999] = 1;
        assert!(!is_zero(&b[3..]));
        assert!(is_zero(&b[..4999]));
    }
}

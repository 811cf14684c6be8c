//! Self-describing contents: each sector of 512 bytes says which write it is of, and where it belongs.
//!
//! Invariant: a sector is the whole of what one write put there, or zeroes, or it is recognised as neither.

use crate::rng::mix;
use bytes::Bytes;
use freebs_types::{SECTOR, VolumeId};

/// What a sector holds: 0 for zeroes, else the number of the write.
pub type Value = u32;

const WORDS: usize = SECTOR / 8;

fn word(volume: u64, sector: u64, write: Value, index: usize) -> u64 {
    match index {
        0 => u64::from(write),
        1 => volume << 48 | sector,
        _ => mix(u64::from(write) << 32 ^ sector ^ volume << 56 ^ (index as u64) << 20),
    }
}

/// The bytes of a write of `sectors` sectors from `first` on.
#[must_use]
pub fn make(volume: u64, first: u64, sectors: u64, write: Value) -> Bytes {
    let mut out = Vec::with_capacity((sectors as usize) * SECTOR);
    for sector in first..first + sectors {
        for i in 0..WORDS {
            out.extend_from_slice(&word(volume, sector, write, i).to_le_bytes());
        }
    }
    out.into()
}

/// Reads one sector. The error says what is wrong with it.
pub fn parse(volume: u64, sector: u64, bytes: &[u8]) -> Result<Value, String> {
    if bytes.iter().all(|b| *b == 0) {
        return Ok(0);
    }
    let at = |i: usize| bytes[i * 8..i * 8 + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
    let (write, place) = (at(0), at(1));
    let Ok(value) = Value::try_from(write) else { return Err(format!("begins with {write:#x}")) };
    if place != (volume << 48 | sector) {
        return Err(format!("is write {write}'s of volume {} sector {}", place >> 48, place & ((1 << 48) - 1)));
    }
    match (2..WORDS).find(|i| at(*i) != word(volume, sector, value, *i)) {
        None => Ok(value),
        Some(i) => Err(format!("is write {write}'s up to byte {}, then something else", i * 8)),
    }
}

/// The same of a sector that may be of any of these volumes: of a clone, and of what it was cloned from. Gives back the volume
/// whose write it is; the first one for zeroes.
pub fn parse_of(volumes: &[VolumeId], sector: u64, bytes: &[u8]) -> Result<(VolumeId, Value), String> {
    let mut wrong = String::new();
    for volume in volumes {
        match parse(volume.0, sector, bytes) {
            Ok(value) => return Ok((*volume, value)),
            Err(why) => wrong = why,
        }
    }
    Err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_tells_its_write_and_nothing_else_passes() {
        let bytes = make(3, 10, 2, 77);
        assert_eq!(bytes.len(), 1024);
        assert_eq!(parse(3, 10, &bytes[..512]), Ok(77));
        assert_eq!(parse(3, 11, &bytes[512..]), Ok(77));
        assert_eq!(parse(3, 11, &[0; 512]), Ok(0));
        let of = |volumes: [u64; 2]| parse_of(&volumes.map(VolumeId), 10, &bytes[..512]);
        assert_eq!((of([3, 4]), of([4, 3])), (Ok((VolumeId(3), 77)), Ok((VolumeId(3), 77))));
        assert!(of([4, 5]).is_err());
        assert!(parse(3, 12, &bytes[512..]).unwrap_err().contains("sector 11"));
        for bit in [0, 100, 2000, 4095] {
            let mut bad = bytes[..512].to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(3, 10, &bad).is_err() || parse(3, 10, &bad) != Ok(77), "bit {bit}");
        }
    }
}

//! Bytes without their zeroes: what an index says of frames is half numbers that are small.
//!
//! Words of four bytes, in groups of eight: a byte of bits, the lowest for the first word, then the words whose bit is
//! set. Those that are zero have none. The last word is filled up with zeroes.

use bytes::{Buf, Bytes, BytesMut};
use freebs_types::{Error, Result};

const WORD: usize = 4;
const WORDS: usize = 8;
const GROUP: usize = WORD * WORDS;

/// Bytes that `len` bytes take, at most.
#[must_use]
pub const fn packed_len_max(len: usize) -> usize {
    let words = len.div_ceil(WORD);
    words * WORD + words.div_ceil(WORDS)
}

/// Adds `bytes` to `out` without their zeroes.
pub fn pack(bytes: &[u8], out: &mut BytesMut) {
    out.reserve(packed_len_max(bytes.len()));
    let mut groups = bytes.chunks_exact(GROUP);
    for group in &mut groups {
        pack_group(group.try_into().expect("a whole group"), out);
    }
    let rest = groups.remainder();
    if !rest.is_empty() {
        let mut group = [0; GROUP];
        group[..rest.len()].copy_from_slice(rest);
        pack_group(&group, out);
    }
}

fn pack_group(group: &[u8; GROUP], out: &mut BytesMut) {
    let (mut buf, mut len) = ([0u8; 1 + GROUP], 1);
    for i in 0..WORDS {
        let word: [u8; WORD] = group[i * WORD..][..WORD].try_into().expect("four bytes");
        let set = word != [0; WORD];
        buf[len..len + WORD].copy_from_slice(&word);
        buf[0] |= u8::from(set) << i;
        len += WORD * usize::from(set);
    }
    out.extend_from_slice(&buf[..len]);
}

/// Takes `len` bytes off the front of what was packed. Memory is asked for only if there is a group for every 32 of them.
pub fn unpack(packed: &mut Bytes, len: usize) -> Result<Bytes> {
    let short = || Error::corrupt("packed bytes are cut short");
    let groups = len.div_ceil(GROUP);
    if packed.len() < groups {
        return Err(short());
    }
    let mut out = BytesMut::with_capacity(groups * GROUP);
    for _ in 0..groups {
        let bits = packed.try_get_u8().map_err(|_| short())?;
        let mut group = [0; GROUP];
        for i in (0..WORDS).filter(|i| bits >> i & 1 == 1) {
            let word = &mut group[i * WORD..][..WORD];
            packed.try_copy_to_slice(word).map_err(|_| short())?;
            if word.iter().all(|b| *b == 0) {
                return Err(Error::corrupt("packed bytes with a word of zeroes"));
            }
        }
        out.extend_from_slice(&group);
    }
    if out[len..].iter().any(|b| *b != 0) {
        return Err(Error::corrupt("packed bytes go on behind their end"));
    }
    out.truncate(len);
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(bytes: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        pack(bytes, &mut out);
        out.freeze()
    }

    #[test]
    fn zeroes_take_a_bit_a_word() {
        assert_eq!(packed(&[]), &[][..]);
        assert_eq!(packed(&[0; 64]), &[0, 0][..]);
        assert_eq!(packed(&[0, 0, 0, 0, 7]), &[2, 7, 0, 0, 0][..]);
        assert_eq!(packed(&[1; 32]), &[&[255][..], &[1; 32]].concat());
        let mut wrong = Bytes::from_static(&[1, 7, 7, 0, 0]);
        assert!(unpack(&mut wrong.clone(), 1).is_err(), "a byte behind the end");
        assert_eq!(unpack(&mut wrong, 2).unwrap(), &[7, 7][..]);
        assert!(unpack(&mut Bytes::from_static(&[1, 0, 0, 0, 0]), 4).is_err(), "zeroes that need not be there");
        assert!(unpack(&mut Bytes::from_static(&[0, 0]), 65).is_err());
        assert!(unpack(&mut Bytes::from_static(&[0; 100]), usize::MAX / 2).is_err());
    }

    proptest! {
        #[test]
        fn packing_round_trips(words in prop::collection::vec(prop_oneof![Just(0u32), any::<u32>()], 0..80), cut in 0usize..4) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            let all = packed(&bytes);
            prop_assert!(all.len() <= packed_len_max(bytes.len()));
            let mut rest = [&all[..], b"rest"].concat().into();
            prop_assert_eq!(unpack(&mut rest, bytes.len()).unwrap(), &bytes[..]);
            prop_assert_eq!(rest, &b"rest"[..]);
            for len in 0..all.len() {
                prop_assert!(unpack(&mut all.slice(..len), bytes.len()).is_err());
            }
        }
    }
}

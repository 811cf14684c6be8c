//! Images that are damaged, cut short, or need what is not done here: each is an error that says why, and none is read as
//! something else.

use crate::common::{difference, disk, image, read_back};
use freebs_image::qcow2::Reader;
use freebs_types::ErrorKind;
use proptest::prelude::*;

const SIZE: usize = 700_000;

fn sound() -> (Vec<u8>, Vec<u8>) {
    let disk = disk(SIZE, &[(0, 70_000, 3), (400_000, 300_000, 5)]);
    let image = image(&disk, 1 << 20);
    (disk, image)
}

/// The image with other bytes at a place.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let (_, mut image) = sound();
    image[at..at + bytes.len()].copy_from_slice(bytes);
    image
}

fn refused(image: &[u8], kind: ErrorKind, words: &[&str]) {
    let e = read_back(image).expect_err(words[0]);
    assert_eq!(e.kind, kind, "{e}");
    for word in words {
        assert!(e.text.contains(word), "'{word}' is not said: {e}");
    }
}

#[test]
fn an_image_that_needs_more_is_refused_with_the_way_out() {
    use ErrorKind::{Corrupt, Invalid};
    let bits = |b: u64| with(72, &b.to_be_bytes());
    refused(&with(0, b"QFIX"), Invalid, &["no qcow2 image", "raw"]);
    refused(&with(4, &4u32.to_be_bytes()), Invalid, &["version 4", "qemu-img convert"]);
    refused(&with(8, &4096u64.to_be_bytes()), Invalid, &["backing file", "not followed", "qemu-img convert"]);
    refused(&with(32, &2u32.to_be_bytes()), Invalid, &["encrypted"]);
    refused(&bits(1), Invalid, &["dirty", "qemu-img check -r all"]);
    refused(&bits(2), Invalid, &["marked as corrupt", "qemu-img check -r all"]);
    refused(&bits(4), Invalid, &["external data file", "qemu-img convert"]);
    refused(&bits(16), Invalid, &["extended_l2"]);
    refused(&bits(1 << 40), Invalid, &["not known here", "0x10000000000"]);
    refused(&with(20, &8u32.to_be_bytes()), Corrupt, &["2^8"]);
    refused(&with(20, &22u32.to_be_bytes()), Corrupt, &["2^22"]);
    refused(&with(24, &0u64.to_be_bytes()), Corrupt, &["a disk of 0 bytes"]);
    refused(&with(24, &u64::MAX.to_be_bytes()), Corrupt, &["a disk of"]);
    refused(&with(24, &(1u64 << 40).to_be_bytes()), Corrupt, &["too short for its disk"]);
    refused(&with(40, &100u64.to_be_bytes()), Corrupt, &["odd place"]);
    refused(&with(40, &(1u64 << 50).to_be_bytes()), Corrupt, &["cut short"]);
    refused(&with(100, &72u32.to_be_bytes()), Corrupt, &["a header of 72"]);
    // A disk whose first table alone would take gigabytes.
    let mut large = with(24, &(1u64 << 55).to_be_bytes());
    large[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
    refused(&large, Invalid, &["too large"]);
}

#[test]
fn entries_that_can_not_be_are_damage() {
    use ErrorKind::Corrupt;
    let (l1, l2) = (65_536, 2 * 65_536);
    refused(&with(l1, &(2u64 << 16 | 512).to_be_bytes()), Corrupt, &["second table", "qemu-img check"]);
    refused(&with(l1, &(1u64 << 50).to_be_bytes()), Corrupt, &["cut short"]);
    refused(&with(l2, &(3u64 << 16 | 1024).to_be_bytes()), Corrupt, &["a cluster at byte"]);
    refused(&with(l2, &(1u64 << 48).to_be_bytes()), Corrupt, &["cut short"]);
    refused(&with(l2, &(1u64 << 62 | 3 << 16).to_be_bytes()), Corrupt, &["can't be unpacked", "byte 196608"]);
    refused(&with(l2, &(1u64 << 62 | 1 << 40).to_be_bytes()), Corrupt, &["cut short"]);
    // Marked as zero it is zero, wherever it is said to be; version 2 has no such mark.
    let zero = with(l2, &(3u64 << 16 | 1).to_be_bytes());
    let (back, _) = read_back(&zero[..]).unwrap();
    assert!(back[..65_536].iter().all(|b| *b == 0) && back[65_536] != 0);
    let mut two = zero;
    two[4..8].copy_from_slice(&2u32.to_be_bytes());
    refused(&two, Corrupt, &["version 2 has not"]);
}

/// In version 2 these bytes are something else.
#[test]
fn version_2_has_no_features() {
    let (disk, mut image) = sound();
    image[4..8].copy_from_slice(&2u32.to_be_bytes());
    image[72..112].fill(0xff);
    let (back, _) = read_back(&image[..]).unwrap();
    assert_eq!(difference(&back, &disk), None);
}

/// Cut at any byte that matters it is no shorter disk, but an error.
#[test]
fn an_image_that_is_cut_short_is_an_error() {
    let (disk, image) = sound();
    // The last cluster of data; behind it are refcounts, which are not read.
    let data_end = image.len() - 2 * 65_536 - 65_536 + SIZE % 65_536;
    for len in [0, 3, 4, 71, 72, 103, 104, 65_536, 65_543, 130_000, 131_080, 200_000, 300_000, data_end - 1] {
        let e = read_back(&image[..len]).expect_err("cut short");
        assert!(e.text.contains("cut short") || e.text.contains("no qcow2 image"), "{len}: {e}");
    }
    let (back, _) = read_back(&image[..data_end]).unwrap();
    assert_eq!(difference(&back, &disk), None, "the rest of the last cluster is not of the disk");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any bytes: an error, or a disk of the size that is said, in order; no panic.
    #[test]
    fn any_bytes_are_read_or_refused(
        changes in proptest::collection::vec((prop_oneof![0usize..112, 65_536usize..65_560, 131_072usize..131_200], any::<u8>()), 1..8),
        cut in proptest::option::of(0usize..600_000),
    ) {
        let (_, mut image) = sound();
        for (at, byte) in changes {
            image[at] = byte;
        }
        image.truncate(cut.unwrap_or(usize::MAX).min(image.len()));
        let Ok(mut reader) = Reader::open(&image[..]) else { return Ok(()) };
        let (size, mut at) = (reader.header().size, 0u64);
        for _ in 0..200 {
            match reader.next_piece() {
                Ok(Some(piece)) => {
                    prop_assert_eq!(piece.at, at);
                    prop_assert!(!piece.body.is_empty());
                    at += piece.body.len();
                    prop_assert!(at <= size);
                }
                Ok(None) => {
                    prop_assert_eq!(at, size);
                    break;
                }
                Err(_) => break,
            }
        }
    }
}

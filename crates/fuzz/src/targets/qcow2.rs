//! Disk images of others, read from the first byte of the disk to the last.

use crate::input::Input;
use crate::signal;
use freebs_image::qcow2::{Reader, Writer};
use freebs_image::{Body, Format, READER_BYTES_MAX, runs, sniff};

pub const WORDS: &[&[u8]] = &[
    b"QFI\xfb\0\0\0\x03",
    b"QFI\xfb\0\0\0\x02",
    b"\0\0\0\x09",
    b"\0\0\0\x15",
    b"\x80\0\0\0\0\0\x04\0",
    b"\x40\0\0\0\0\0\x06\0",
    b"\0\0\0\0\0\0\0\x01",
    b"\x28\xb5\x2f\xfd",
];

/// Pieces that are looked at: an image of few bytes may stand for a disk of many.
const PIECES_MAX: usize = 2000;
/// Disks up to here are written again.
const REWRITTEN_MAX: u64 = 1 << 20;

const _: () = assert!(READER_BYTES_MAX >= 32 << 20, "more than the bound of the target");

pub fn image(data: &[u8]) {
    let bytes = Input::of(data).rest;
    signal::kind(
        "format",
        match sniff(bytes) {
            Format::Raw => 0,
            Format::Qcow2 => 1,
            Format::Other(name) => 2 + name.len() as u64,
        },
    );
    let reader = Reader::open(bytes);
    signal::ended("header", &reader);
    let Ok(mut reader) = reader else { return };
    let size = reader.header().size;
    assert!(size > 0 && size <= i64::MAX as u64 && (512..=2 << 20).contains(&reader.header().cluster()));
    signal::saw("cluster bits", u64::from(reader.header().cluster_bits));
    let (mut at, mut disk, mut kinds) = (0, Vec::new(), [0, 0]);
    for _ in 0..PIECES_MAX {
        let piece = reader.next_piece();
        signal::ended("piece", &piece);
        let Ok(piece) = piece else { return };
        let Some(piece) = piece else {
            assert_eq!(at, size, "the disk is read to its end");
            return again(size, &disk);
        };
        assert!(piece.at == at && !piece.body.is_empty() && piece.body.len() <= size - at, "in order, within the disk");
        at += piece.body.len();
        kinds[usize::from(matches!(piece.body, Body::Data(_)))] += 1;
        signal::saw("pieces of zeroes", kinds[0]);
        signal::saw("pieces of data", kinds[1]);
        if size > REWRITTEN_MAX {
            continue;
        }
        match piece.body {
            Body::Zero(n) => disk.resize(disk.len() + n as usize, 0),
            Body::Data(bytes) => disk.extend(bytes),
        }
    }
}

/// A disk that was read is the same after it was written and read.
fn again(size: u64, disk: &[u8]) {
    if size > REWRITTEN_MAX {
        return;
    }
    let mut writer = Writer::new(Vec::new(), size).expect("a size that can be written");
    for run in runs(disk) {
        writer.data(run.from as u64, &disk[run.from..run.to]).expect("memory");
    }
    let (image, bytes) = writer.finish().expect("memory");
    assert_eq!(image.len() as u64, bytes);
    let mut at = 0;
    for piece in Reader::open(&image[..]).expect("just written") {
        let piece = piece.expect("just written");
        let there = &disk[at..at + piece.body.len() as usize];
        match &piece.body {
            Body::Zero(_) => assert!(there.iter().all(|b| *b == 0)),
            Body::Data(bytes) => assert!(bytes == there),
        }
        at += there.len();
    }
    assert_eq!(at as u64, size);
}

const CLUSTER: usize = 512;
/// The mark of an entry whose cluster has no other reference.
const COPIED: u64 = 1 << 63;

/// An image in clusters of 512 bytes, of a disk of 40,000 bytes, whose second table has these entries.
fn made(version: u32, incompatible: u64, entries: &[u64], clusters: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; 3 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &version.to_be_bytes());
    put(20, &9u32.to_be_bytes());
    put(24, &40_000u64.to_be_bytes());
    put(36, &2u32.to_be_bytes());
    put(40, &(CLUSTER as u64).to_be_bytes());
    put(72, &incompatible.to_be_bytes());
    put(96, &4u32.to_be_bytes());
    put(100, &112u32.to_be_bytes());
    put(104, &[u8::from(incompatible != 0)]);
    put(CLUSTER, &(COPIED + 2 * CLUSTER as u64).to_be_bytes());
    for (i, entry) in entries.iter().enumerate() {
        put(2 * CLUSTER + 8 * i, &entry.to_be_bytes());
    }
    for cluster in clusters {
        let mut whole = cluster.to_vec();
        whole.resize(whole.len().next_multiple_of(CLUSTER), 0);
        out.extend(whole);
    }
    out
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    let input = |bytes: &[u8]| Input::bytes(false, 0, 0, bytes);
    let data: Vec<u8> = (0..CLUSTER).map(|i| i as u8 | 1).collect();
    let at = |n: u64| COPIED + n * CLUSTER as u64;
    // One behind the other, one elsewhere, zeroes of each kind.
    let plain = [at(3), at(4), 0, 1, at(3) | 1, at(5), at(3)];
    out.add("qcow2", "plain", input(&made(3, 0, &plain, &[&data, &data, &data])));
    out.add("qcow2", "version-2", input(&made(2, 0, &[at(4), 0, at(3)], &[&data, &data])));
    // A stored block of raw deflate, in two sectors.
    let packed = |sectors: u64, place: u64| 1 << 62 | (sectors - 1) << 61 | place;
    let deflated = [&[1, 0, 2, 0xff, 0xfd][..], &data].concat();
    let place = 3 * CLUSTER as u64;
    out.add("qcow2", "deflate", input(&made(3, 0, &[0, packed(2, place), at(3)], &[&deflated])));
    // A frame of one segment of 512 bytes, as one byte that is repeated.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 1, 3, 0x10, 0, b'A'];
    out.add("qcow2", "zstd", input(&made(3, 1 << 3, &[packed(1, place), 0, packed(1, place)], &[&zstd])));
    let short = made(3, 0, &plain, &[&data]);
    out.add("qcow2", "cut-short", input(&short[..short.len() - 100]));
}

//! Disks as tests think of them: bytes in memory, and what differs from them.

use freebs_image::qcow2::{Reader, Writer};
use freebs_image::{Body, Source, runs};
use freebs_types::Result;

/// A disk with `data` at these places, zeroes elsewhere.
pub fn disk(size: usize, data: &[(usize, usize, u8)]) -> Vec<u8> {
    let mut disk = vec![0; size];
    for (at, len, seed) in data {
        for (i, byte) in disk[*at..(*at + *len).min(size)].iter_mut().enumerate() {
            // Something that does not repeat with any unit of the format, and that can be compressed.
            *byte = ((i / 61) as u8).wrapping_mul(31).wrapping_add(*seed) | 1;
        }
    }
    disk
}

/// The disk that an image holds, and its bytes of data.
pub fn read_back<S: Source>(source: S) -> Result<(Vec<u8>, u64)> {
    let mut reader = Reader::open(source)?;
    let (mut disk, mut data) = (Vec::new(), 0);
    while let Some(piece) = reader.next_piece()? {
        assert_eq!(piece.at, disk.len() as u64, "in order, without gaps");
        assert!(!piece.body.is_empty());
        match piece.body {
            Body::Zero(n) => disk.resize(disk.len() + n as usize, 0),
            Body::Data(bytes) => {
                assert!(bytes.len() <= 2 << 20);
                data += bytes.len() as u64;
                disk.extend(bytes);
            }
        }
    }
    assert_eq!(disk.len() as u64, reader.header().size);
    Ok((disk, data))
}

/// An image of a disk, written in pieces of `step` bytes.
pub fn image(disk: &[u8], step: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), disk.len() as u64).expect("a size that can be written");
    for (i, piece) in disk.chunks(step).enumerate() {
        for run in runs(piece) {
            writer.data((i * step + run.from) as u64, &piece[run.from..run.to]).expect("memory");
        }
    }
    let (bytes, len) = writer.finish().expect("memory");
    assert_eq!(bytes.len() as u64, len, "the file ends with its last cluster");
    bytes
}

/// The first byte that differs.
pub fn difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { Some(a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()))) }
}

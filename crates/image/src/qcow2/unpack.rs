//! Compressed clusters.
//!
//! Invariant: memory is bounded whatever the bytes are: what is unpacked goes to a buffer of one cluster, and a zstd frame
//! that asks for a larger window than any writer of clusters uses is refused before anything is taken for it.

use super::header::Compression;
use freebs_types::{Error, Result};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
use std::io::Read as _;

/// Bytes of the window of a zstd frame, at most: what decoders have to support (RFC 8878, section 3.1.1.1.2). A cluster has
/// 2 MiB at most.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn undone(at: u64) -> Error {
    Error::corrupt(format!(
        "the image is damaged or cut short: the compressed cluster at byte {at} of the file can't be unpacked; \
         `qemu-img check` says more"
    ))
}

/// Unpacks a cluster that lies at `at` of the file, for errors, into `out`, which it has to fill.
pub(super) fn unpack(compression: Compression, at: u64, packed: &[u8], out: &mut [u8]) -> Result<()> {
    let done = match compression {
        Compression::Deflate => inflate(packed, out),
        Compression::Zstd => unzstd(packed, out),
    };
    done.ok_or_else(|| undone(at))
}

/// Raw deflate, without a header. What lies behind the end belongs to another cluster.
fn inflate(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let mut state = Box::<DecompressorOxide>::default();
    let (_, _, written) =
        decompress(&mut state, packed, out, 0, inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    (written == out.len()).then_some(())
}

fn unzstd(packed: &[u8], out: &mut [u8]) -> Option<()> {
    if window(packed)? > WINDOW_BYTES_MAX {
        return None;
    }
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
    decoder.read_exact(out).ok()
}

/// The window that a frame's header asks for, in bytes (RFC 8878, section 3.1.1.1).
fn window(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(&ZSTD_MAGIC)?;
    let (descriptor, rest) = rest.split_first()?;
    if descriptor & 0x20 == 0 {
        let (exponent, mantissa) = (u32::from(rest.first()? >> 3), u64::from(rest.first()? & 7));
        let base = 1u64 << (10 + exponent);
        return Some(base + base / 8 * mantissa);
    }
    // One segment: the window is the content.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = rest.get(dictionary..)?;
    let number = |n: usize| size.get(..n).map(|b| b.iter().rev().fold(0u64, |a, b| a << 8 | u64::from(*b)));
    match descriptor >> 6 {
        0 => number(1),
        1 => number(2).map(|n| n + 256),
        2 => number(4),
        _ => number(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflate_fills_a_cluster_or_fails() {
        let cluster: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
        let mut packed = miniz_oxide::deflate::compress_to_vec(&cluster, 6);
        packed.extend([9; 100]);
        let mut out = vec![0; 4096];
        unpack(Compression::Deflate, 0, &packed, &mut out).unwrap();
        assert_eq!(out, cluster);
        let mut more = vec![0; 4097];
        assert!(unpack(Compression::Deflate, 0, &packed, &mut more).is_err(), "a cluster that is not full");
        assert!(unpack(Compression::Deflate, 512, &packed[..20], &mut out).unwrap_err().text.contains("byte 512"));
    }

    #[test]
    fn zstd_fills_a_cluster_or_fails() {
        let cluster: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
        let packed = ruzstd::encoding::compress_to_vec(&cluster[..], ruzstd::encoding::CompressionLevel::Fastest);
        let mut out = vec![0; 4096];
        unpack(Compression::Zstd, 0, &packed, &mut out).unwrap();
        assert_eq!(out, cluster);
        assert!(unpack(Compression::Zstd, 0, &packed[..packed.len() / 2], &mut out).is_err());
        assert!(unpack(Compression::Zstd, 0, b"no frame", &mut out).is_err());
    }

    /// A frame of fourteen bytes could ask for gigabytes.
    #[test]
    fn a_large_window_is_refused_before_it_is_made() {
        let windowed = |byte: u8| [&ZSTD_MAGIC[..], &[0, byte]].concat();
        assert_eq!(window(&windowed(0)), Some(1024));
        assert_eq!(window(&windowed(13 << 3)), Some(8 << 20));
        assert_eq!(window(&windowed(0xff)), Some((1 << 41) + (7 << 38)));
        let whole = [&ZSTD_MAGIC[..], &[0xe0], &(1u64 << 40).to_le_bytes()].concat();
        assert_eq!(window(&whole), Some(1 << 40));
        assert_eq!(window(&[&ZSTD_MAGIC[..], &[0x60, 0, 1]].concat()), Some(512));
        assert_eq!(window(&whole[..9]), None);
        let mut out = [0; 16];
        assert!(unzstd(&windowed(0xff), &mut out).is_none());
    }
}

//! Written and read again.

use crate::common::{difference, disk, image, read_back};
use freebs_image::qcow2::{Reader, WRITTEN_CLUSTER_BYTES, Writer};
use freebs_image::{Body, Format, Piece, sniff};
use proptest::prelude::*;

const CLUSTER: usize = WRITTEN_CLUSTER_BYTES as usize;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is written is read, and only clusters with data take room.
    #[test]
    fn what_is_written_is_read(
        size in 1usize..3_000_000,
        data in proptest::collection::vec((0usize..3_000_000, 1usize..200_000, any::<u8>()), 0..6),
        step in prop_oneof![Just(1usize << 20), 4096usize..300_000],
    ) {
        let data: Vec<_> = data.into_iter().filter(|(at, ..)| *at < size).collect();
        let disk = disk(size, &data);
        let bytes = image(&disk, step / 4096 * 4096);
        let (back, moved) = read_back(&bytes[..]).unwrap();
        prop_assert_eq!(difference(&disk, &back), None);
        let clusters = disk.chunks(CLUSTER).filter(|c| c.iter().any(|b| *b != 0)).count();
        prop_assert!(moved <= (clusters * CLUSTER) as u64);
        // Header, first table, a second table, a block of refcounts and their table.
        prop_assert_eq!(bytes.len(), (clusters + 4 + usize::from(clusters > 0)) * CLUSTER);
    }
}

/// A second table covers 512 MiB: each has its own, those without data have none, and nothing is held of what lies between.
#[test]
fn a_large_disk_with_little_data_is_small() {
    let size = (5u64 << 30) + 512;
    let places = [0, (512 << 20) - 4096, 512 << 20, (3 << 30) + 7 * 4096, (5 << 30)];
    let mut writer = Writer::new(Vec::new(), size).unwrap();
    for (i, at) in places.iter().enumerate() {
        let len = (size - at).min(4096) as usize;
        writer.data(*at, &vec![i as u8 + 1; len]).unwrap();
    }
    let (bytes, len) = writer.finish().unwrap();
    // Five data clusters, four second tables, four others.
    assert_eq!((bytes.len() as u64, len), (13 * 65_536, 13 * 65_536));
    let mut reader = Reader::open(&bytes[..]).unwrap();
    let (mut at, mut found, mut pieces) = (0, Vec::new(), 0);
    while let Some(Piece { at: here, body }) = reader.next_piece().unwrap() {
        assert_eq!(here, at);
        at += body.len();
        pieces += 1;
        if let Body::Data(bytes) = body {
            let first = bytes.iter().position(|b| *b != 0).expect("a cluster is there for its data");
            found.push((here + first as u64, bytes[first]));
        }
    }
    assert_eq!(at, size);
    assert_eq!(found, places.iter().enumerate().map(|(i, at)| (*at, i as u8 + 1)).collect::<Vec<_>>());
    assert!(pieces <= 10, "zeroes come in one piece: {pieces}");
}

#[test]
fn clusters_of_zeroes_take_no_room() {
    let mut writer = Writer::new(Vec::new(), 1 << 20).unwrap();
    writer.data(0, &[0; 1 << 20]).unwrap();
    let (bytes, _) = writer.finish().unwrap();
    // Header, first table, a block of refcounts and their table.
    assert_eq!(bytes.len(), 4 * CLUSTER);
}

#[test]
fn the_header_has_these_bytes() {
    let bytes = image(&disk(1 << 20, &[(0, 1, 1)]), 1 << 20);
    let known = "514649fb00000003 0000000000000000 00000000 00000010 0000000000100000 00000000 00000001 0000000000010000 \
                 0000000000050000 00000001 00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 \
                 00000004 00000068 0000000000000000";
    let hex: String = bytes[..112].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, known.replace(' ', ""));
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let copied = 1 << 63;
    assert_eq!([number(65_536), number(2 * 65_536), number(2 * 65_536 + 8)], [copied | 2 << 16, copied | 3 << 16, 0]);
    assert_eq!([number(5 * 65_536), number(5 * 65_536 + 8)], [4 << 16, 0], "the table of refcounts");
    assert_eq!(
        bytes[4 * 65_536..4 * 65_536 + 14],
        [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0],
        "six clusters, once each"
    );
}

#[test]
fn an_image_that_is_not_finished_is_none() {
    let mut sink = Vec::new();
    struct Lent<'a>(&'a mut Vec<u8>);
    impl freebs_image::Sink for Lent<'_> {
        fn write_at(&mut self, at: u64, bytes: &[u8]) -> freebs_types::Result<()> {
            self.0.write_at(at, bytes)
        }
    }
    let mut writer = Writer::new(Lent(&mut sink), 1 << 20).unwrap();
    writer.data(0, &[1; 1 << 20]).unwrap();
    drop(writer);
    assert_eq!(sniff(&sink[..512]), Format::Raw);
    assert!(Reader::open(&sink[..]).is_err());
}

#[test]
fn formats_are_told_by_their_first_bytes() {
    let sniffed = |first: &[u8]| sniff(&[first, &[0; 100]].concat());
    assert_eq!(sniffed(b"QFI\xfb\0\0\0\x02"), Format::Qcow2);
    assert_eq!(sniffed(b"QFI\xfb\0\0\0\x01"), Format::Other("qcow (version 1)"));
    assert_eq!(sniffed(b"KDMV"), Format::Other("VMDK"));
    assert_eq!(sniffed(b"vhdxfile"), Format::Other("VHDX"));
    assert_eq!(sniffed(b"conectix"), Format::Other("VHD"));
    let vdi = [&b"<<< Oracle VM VirtualBox Disk Image >>>\n"[..], &[0; 24], &[0x7f, 0x10, 0xda, 0xbe]].concat();
    assert_eq!(sniffed(&vdi), Format::Other("VDI"));
    assert_eq!(sniffed(b"anything else"), Format::Raw);
    assert_eq!(sniff(b""), Format::Raw);
}

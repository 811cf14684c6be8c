//! `docs/formats/backup.md` says what the code does, and bytes of a build are understood by the next one.

use crate::tables;
use core::mem::{offset_of, size_of};
use freebs_backup::format::*;
use freebs_backup::{Keys, limits, name_of, pack, unpack};
use freebs_types::{ClusterId, VolumeId};
use std::collections::BTreeMap;
use std::fmt::Write;
use zerocopy::IntoBytes;

macro_rules! agrees {
    ($docs:expr, $type:ident { $($field:ident),* $(,)? }) => {{
        let d = $docs.iter().find(|d| d.name == stringify!($type)).expect("it has a table");
        assert_eq!(d.bytes, size_of::<$type>(), stringify!($type));
        let built = [$((offset_of!($type, $field), stringify!($field))),*];
        let described: Vec<_> = d.rows.iter().map(|r| (r.offset, r.field.as_str())).collect();
        assert_eq!(described, built);
        let ends = built.iter().skip(1).map(|f| f.0).chain([d.bytes]);
        let sizes: Vec<usize> = ends.zip(built).map(|(end, f)| end - f.0).collect();
        assert_eq!(d.rows.iter().map(|r| r.bytes).collect::<Vec<_>>(), sizes);
    }};
}

#[test]
fn tables_and_structs_agree() {
    let text = tables::read("backup.md");
    let docs = tables::structs(&text);
    assert_eq!(docs.len(), 8);
    agrees!(docs, Marker { magic, version, length, target, key, block_bytes, page_blocks, reserved, crc });
    agrees!(docs, Note { magic, version, length, target, backup, kind, reserved, time_ms, subject, reserved_2, crc });
    agrees!(
        docs,
        ObjectHeader {
            magic,
            version,
            length,
            target,
            flags,
            reserved,
            plain_bytes,
            packed_bytes,
            nonce,
            reserved_2,
            packed_crc,
            crc,
        }
    );
    agrees!(docs, PageHeader { magic, version, length, page, owners, entries, reserved });
    agrees!(docs, BlockEntry { block, owner, stored, name });
    agrees!(
        docs,
        ManifestHeader { magic, version, length, target, backup, key, nonce, body_bytes, reserved, seal, crc }
    );
    agrees!(
        docs,
        ManifestDetails {
            cluster,
            volume,
            parent,
            time_ms,
            size,
            blocks,
            stored_bytes,
            new_blocks,
            new_bytes,
            locked_until_ms,
            moment,
            pages,
            name_bytes,
            reserved,
            name,
        }
    );
    agrees!(docs, PageRef { page, entries, stored, reserved, owner, name });
    for (kind, name) in [
        (note::CREATE, "CREATE"),
        (note::GIVEN_UP, "GIVEN_UP"),
        (note::DELETED, "DELETED"),
        (note::GONE, "GONE"),
        (note::ALIVE, "ALIVE"),
    ] {
        assert!(text.contains(&format!("| {kind} | {name} |")), "{name}");
    }
    assert_eq!((limits::OBJECT_BYTES_MAX, limits::MANIFEST_BYTES_MAX - (16 << 20)), (524_368, 656));
    assert!(text.contains("524,368") && text.contains("16 MiB and 656 bytes"));
}

const TARGET: Id = Id([0x11; 16]);
const BACKUP: Id = Id([0x22; 16]);

fn entry(owner: u8, name: u8, stored: u32) -> Entry {
    Entry { owner: Id([owner; 16]), name: Name([name; 32]), stored }
}

fn page() -> Page {
    let blocks = [(0, entry(2, 7, 100)), (5, entry(3, 8, 524_368)), (8191, entry(2, 9, 65))];
    Page { page: 3, blocks: BTreeMap::from(blocks) }
}

fn manifest() -> Manifest {
    let details = Details {
        cluster: ClusterId([0x33; 16]),
        volume: VolumeId(9),
        name: "data@monday".into(),
        parent: Id([0x44; 16]),
        time_ms: 1_790_000_000_000,
        size: 5 * limits::PAGE_COVERS - 512,
        blocks: 4,
        stored_bytes: 1000,
        new_blocks: 2,
        new_bytes: 500,
        locked_until_ms: 1_800_000_000_000,
        moment: Moment([0x55; 32]),
    };
    let pages = vec![PageRef::new(0, 1, entry(2, 5, 90)), PageRef::new(3, 3, entry(3, 6, 91))];
    Manifest { id: BACKUP, details, pages }
}

fn all() -> Vec<(&'static str, Vec<u8>)> {
    let keys = Keys::new(&[0x66; 32]);
    let plain = b"some bytes of a block, which are too few to be packed";
    let mut random = crate::world::Rng(1);
    let mut object =
        |keys: Option<&Keys>| pack(plain, name_of(plain, keys), TARGET, keys, &mut random).expect("an object");
    vec![
        ("marker", Marker::new(TARGET, Id::NONE).as_bytes().to_vec()),
        ("marker-sealed", Marker::new(TARGET, keys.id()).as_bytes().to_vec()),
        ("note", Note::new(TARGET, BACKUP, note::CREATE, 1_790_000_000_000, [0x77; 32]).as_bytes().to_vec()),
        ("object", object(None)),
        ("object-sealed", object(Some(&keys))),
        ("page", page().encode()),
        ("manifest", manifest().encode(TARGET, None).expect("a manifest")),
        ("manifest-sealed", manifest().encode(TARGET, Some((&keys, [0x88; 12]))).expect("a manifest")),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        write!(s, "{b:02x}").expect("memory");
        s
    })
}

#[test]
#[allow(clippy::disallowed_methods, reason = "golden bytes are a file beside the test")]
fn golden_bytes() {
    let built: String = all().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.hex");
    if freebs_testing::bless() {
        std::fs::write(path, &built).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(path).expect("golden bytes");
    for (built, golden) in built.lines().zip(golden.lines()) {
        assert_eq!(built, golden, "`cargo xtask bless`, if the format was changed on purpose");
    }
    assert_eq!(built.lines().count(), golden.lines().count());
}

#[test]
fn what_was_encoded_is_decoded() {
    let keys = Keys::new(&[0x66; 32]);
    let all: BTreeMap<_, _> = all().into_iter().collect();
    assert_eq!(Marker::decode(&all["marker-sealed"]).unwrap().key(), keys.id());
    assert_eq!(Note::decode(&all["note"], TARGET, BACKUP).unwrap().subject, [0x77; 32]);
    assert_eq!(Page::decode(&all["page"]).unwrap(), page());
    assert_eq!(Manifest::decode(&all["manifest"], TARGET, BACKUP, None).unwrap(), manifest());
    assert_eq!(Manifest::decode(&all["manifest-sealed"], TARGET, BACKUP, Some(&keys)).unwrap(), manifest());
    // Of another target, another backup, with another key or none.
    let other = Keys::new(&[0x67; 32]);
    assert!(Manifest::decode(&all["manifest"], BACKUP, BACKUP, None).is_err());
    assert!(Manifest::decode(&all["manifest"], TARGET, TARGET, None).is_err());
    assert!(Manifest::decode(&all["manifest"], TARGET, BACKUP, Some(&keys)).is_err());
    assert!(Manifest::decode(&all["manifest-sealed"], TARGET, BACKUP, Some(&other)).is_err());
    assert!(Manifest::decode(&all["manifest-sealed"], TARGET, BACKUP, None).is_err());
    assert_eq!(manifest().page(3).unwrap().entries.get(), 3);
    assert!(manifest().page(1).is_none());
}

#[test]
fn what_zstd_packed_is_unpacked_and_no_more_than_a_block() {
    let plain = vec![7; limits::BLOCK_BYTES];
    let name = name_of(&plain, None);
    let object = pack(&plain, name, TARGET, None, &mut crate::world::Rng(1)).unwrap();
    assert!(object.len() < 200 && unpack(&object, name, TARGET, None).unwrap() == plain);
    // A frame of 128 MiB in few bytes, under a header that fits.
    let bomb = zstd::bulk::compress(&vec![0; 128 << 20], 3).unwrap();
    let header = ObjectHeader::new(TARGET, flags::ZSTD, limits::BLOCK_BYTES, bomb.len(), [0; 12]);
    let e = unpack(&header.before(&bomb), name, TARGET, None).unwrap_err();
    assert!(e.text.contains("does not unpack"), "{e}");
}

#[test]
fn pages_and_manifests_that_no_program_writes_are_refused() {
    let good = page().encode();
    let set = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        Page::decode(&bad)
    };
    let entries = 32 + 2 * 16;
    for (at, bytes) in [
        (8, &limits::PAGES_MAX.to_le_bytes()[..]),
        (12, &[3, 0, 0, 0]),
        (16, &[2, 0, 0, 0]),
        (16, &[255; 4]),
        (20, &[1]),
        // The two owners are one.
        (32 + 16, &[2; 16]),
        // The first block is behind the second; an owner that is not there; objects too small and too large.
        (entries, &[6]),
        (entries + 2, &[1]),
        (entries + 2, &[2]),
        (entries + 4, &[64, 0, 0, 0]),
        (entries + 44, &[81, 0, 8, 0]),
        (entries + 80, &[0, 0x20]),
    ] {
        assert!(set(at, bytes).is_err(), "{at} {bytes:?}");
    }
    for len in 0..good.len() {
        assert!(Page::decode(&good[..len]).is_err());
    }
    let bad = |change: fn(&mut Manifest)| {
        let mut m = manifest();
        change(&mut m);
        let bytes = m.encode(TARGET, None).expect("bytes");
        assert!(Manifest::decode(&bytes, TARGET, BACKUP, None).is_err(), "{m:?}");
    };
    bad(|m| m.details.size = limits::VOLUME_BYTES_MAX + 1);
    bad(|m| m.details.size = 0);
    bad(|m| m.details.size = limits::PAGE_COVERS);
    bad(|m| m.details.blocks = 5);
    bad(|m| m.details.new_blocks = 5);
    bad(|m| m.details.stored_bytes = 4 * 524_368 + 1);
    bad(|m| m.details.stored_bytes = 4 * 65 - 1);
    bad(|m| m.details.new_bytes = (2 + 2) * 524_368 + 1);
    bad(|m| m.pages.swap(0, 1));
    bad(|m| m.pages[1].page = limits::PAGES_MAX.into());
    bad(|m| m.pages[0].stored = 10.into());
    bad(|m| m.pages[0].entries = 0.into());
    bad(|m| m.pages[0].entries = 9000.into());
    for name in ["", "a b", "a\n", &"x".repeat(257)] {
        let mut m = manifest();
        m.details.name = name.into();
        assert!(m.encode(TARGET, None).is_err());
    }
}

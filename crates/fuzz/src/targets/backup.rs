//! The objects of a backup target, which anybody may have written who can reach the place.

use crate::input::Input;
use crate::{seal, signal};
use freebs_backup::format::{
    Details, Entry, Id, Manifest, Marker, Moment, Name, Note, ObjectHeader, Page, PageRef, note,
};
use freebs_backup::{Keys, limits, name_of, pack, unpack};
use freebs_types::{ClusterId, VolumeId};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

pub const WORDS: &[&[u8]] =
    &[b"FBKT", b"FBKN", b"FBKO", b"FBKP", b"FBKM", b"\x28\xb5\x2f\xfd", b"\0\0\x08\0", b"\0\x20\0\0"];

const TARGET: Id = Id([0x11; 16]);
const BACKUP: Id = Id([0x22; 16]);

fn keys() -> Keys {
    Keys::new(&[0x33; 32])
}

pub fn object(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    let bytes = &mut bytes;
    match input.choice % 6 {
        0 => {
            if input.mend {
                seal::fixed(bytes, size_of::<Marker>());
            }
            let read = Marker::decode(bytes);
            signal::ended("marker", &read);
            if let Ok(marker) = read {
                assert_eq!(marker.as_bytes(), bytes);
                assert_eq!(Marker::new(marker.target(), marker.key()), marker);
            }
        }
        1 => {
            if input.mend {
                seal::fixed(bytes, size_of::<Note>());
            }
            let read = Note::decode(bytes, TARGET, BACKUP);
            signal::ended("note", &read);
            if let Ok(note) = read {
                signal::kind("note", note.kind.get().into());
                let again = Note::new(TARGET, BACKUP, note.kind.get(), note.time_ms.get(), note.subject);
                assert_eq!(again.as_bytes(), bytes);
            }
        }
        choice @ (2 | 3) => one(bytes, input.mend, choice == 3),
        4 => {
            let read = Page::decode(bytes);
            signal::ended("page", &read);
            if let Ok(page) = read {
                signal::saw("blocks", page.blocks.len() as u64);
                assert!(page.encode() == *bytes, "a page has one form");
                assert!(page.blocks.keys().all(|b| u32::from(*b) < limits::PAGE_BLOCKS));
            }
        }
        _ => manifest(bytes, input.mend),
    }
}

/// An object, plain or sealed.
fn one(bytes: &mut [u8], mend: bool, is_sealed: bool) {
    if mend {
        seal::object(bytes);
    }
    let keys = is_sealed.then(keys);
    let header = ObjectHeader::decode(bytes, TARGET);
    signal::ended("header", &header);
    let Ok((header, packed)) = header else { return };
    let is_plain = !header.is_zstd() && !header.is_sealed() && !is_sealed;
    let name = if is_plain { name_of(packed, None) } else { Name::default() };
    let content = unpack(bytes, name, TARGET, keys.as_ref());
    signal::ended("content", &content);
    assert!(content.is_ok() || !is_plain, "an object whose name is right is read");
    if let Ok(content) = content {
        assert!(content.len() <= limits::BLOCK_BYTES && name_of(&content, keys.as_ref()) == name);
    }
}

fn manifest(bytes: &mut [u8], mend: bool) {
    if mend {
        seal::manifest(bytes);
    }
    let read = Manifest::decode(bytes, TARGET, BACKUP, None);
    signal::ended("manifest", &read);
    if let Ok(manifest) = read {
        signal::saw("pages", manifest.pages.len() as u64);
        assert!(manifest.encode(TARGET, None).expect("it was one") == *bytes, "a manifest has one form");
        assert!(manifest.details.size <= limits::VOLUME_BYTES_MAX && manifest.details.name.is_ascii());
        assert!(manifest.pages.iter().all(|p| manifest.page(p.page.get()) == Some(p)));
    }
    let sealed = Manifest::decode(bytes, TARGET, BACKUP, Some(&keys()));
    assert!(sealed.is_err(), "nobody without the key makes one");
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    struct Same;
    impl freebs_io::Random for Same {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(0x44);
        }
    }
    let mut add = |name: &str, choice: u8, bytes: &[u8]| out.add("backup", name, Input::bytes(true, 0, choice, bytes));
    add("marker", 0, Marker::new(TARGET, Id::NONE).as_bytes());
    add("note", 1, Note::new(TARGET, BACKUP, note::CREATE, 1, [5; 32]).as_bytes());
    let plain: Vec<u8> = (0..200).collect();
    let object = |plain: &[u8], keys: Option<&Keys>| {
        pack(plain, name_of(plain, keys), TARGET, keys, &mut Same).expect("an object")
    };
    add("object", 2, &object(&plain, None));
    // A frame of zstd, as one byte that is repeated 512 times.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 1, 3, 0x10, 0, b'A'];
    let flags = freebs_backup::format::flags::ZSTD;
    add("object-zstd", 2, &ObjectHeader::new(TARGET, flags, 512, zstd.len(), [0; 12]).before(&zstd));
    add("object-sealed", 3, &object(&plain, Some(&keys())));
    let entry = |owner: u8, name: u8| Entry { owner: Id([owner; 16]), name: Name([name; 32]), stored: 100 };
    let blocks = BTreeMap::from([(0, entry(2, 7)), (5, entry(3, 8)), (8191, entry(2, 9))]);
    add("page", 4, &Page { page: 3, blocks }.encode());
    let details = Details {
        cluster: ClusterId([6; 16]),
        volume: VolumeId(9),
        name: "data".into(),
        parent: Id([7; 16]),
        time_ms: 1,
        size: 5 * limits::PAGE_COVERS - 512,
        blocks: 4,
        stored_bytes: 1000,
        new_blocks: 2,
        new_bytes: 500,
        locked_until_ms: 2,
        moment: Moment::default(),
    };
    let pages = vec![PageRef::new(0, 1, entry(2, 5)), PageRef::new(3, 3, entry(3, 6))];
    add("manifest", 5, &Manifest { id: BACKUP, details, pages }.encode(TARGET, None).expect("a manifest"));
}

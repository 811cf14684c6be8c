//! The documents in `docs/formats` say what the code does: every struct has a table, every table its struct, and
//! offsets, sizes and names are the same; so are kinds, reasons, modes and maxima.

use crate::tables::{self, Struct};
use freebs_format::layout::LAYOUTS;
use freebs_format::wire::{self, Refusal, Role, SyncMode, kind};
use freebs_format::{ExtentKind, FrameKind, UpdateKind, disk};
use freebs_types::{limits, timing};
use std::collections::BTreeSet;
use std::path::Path;

/// Described here, and checked where it is defined.
const ELSEWHERE: [&str; 1] = ["StateHeader"];

fn documented() -> Vec<Struct> {
    [tables::structs(&tables::read("disk.md")), tables::structs(&tables::read("wire.md"))].concat()
}

#[test]
fn tables_and_structs_agree() {
    let docs = documented();
    let names: BTreeSet<&str> = docs.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names.len(), docs.len(), "no struct is described twice");
    for l in LAYOUTS {
        let Some(d) = docs.iter().find(|d| d.name == l.name) else { panic!("{} has no table", l.name) };
        assert_eq!(d.bytes, l.bytes, "size of {}", l.name);
        let described: Vec<_> = d.rows.iter().map(|r| (r.offset, r.bytes, r.field.as_str())).collect();
        let built: Vec<_> = l.fields.iter().map(|f| (f.offset, f.bytes, f.name)).collect();
        assert_eq!(described, built, "fields of {}", l.name);
    }
    for d in &docs {
        let known = LAYOUTS.iter().any(|l| l.name == d.name) || ELSEWHERE.contains(&d.name.as_str());
        assert!(known, "the table {} describes nothing", d.name);
    }
}

/// A struct that somebody adds and forgets to describe is found in the source.
#[test]
fn every_fixed_struct_of_the_crate_is_known() {
    let mut seen = 0;
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all = [src.clone(), src.join("wire")].into_iter().flat_map(|d| std::fs::read_dir(d).unwrap());
    let files = all.map(|f| f.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "rs"));
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.display();
        let mut lines = text.lines();
        while lines.any(|l| l.trim() == "#[repr(C)]") {
            let line = lines.next().unwrap_or_default();
            let name = line.split("struct ").nth(1).and_then(|s| s.split([' ', '<']).next()).unwrap_or_default();
            assert!(LAYOUTS.iter().any(|l| l.name == name), "{file}: '{line}' is not in layout.rs");
            seen += 1;
        }
    }
    assert_eq!(seen, LAYOUTS.len(), "layout.rs names a struct that is elsewhere");
}

#[test]
fn kinds_agree() {
    let (disk, wire) = (tables::read("disk.md"), tables::read("wire.md"));
    let all = |name: &dyn Fn(u8) -> Option<String>| -> Vec<(u64, String)> {
        (0..=255).filter_map(|b| name(b).map(|n| (u64::from(b), n))).collect()
    };
    assert_eq!(tables::values(&disk, "Kinds of frames"), all(&|b| FrameKind::from_byte(b).map(|k| format!("{k:?}"))));
    assert_eq!(tables::values(&disk, "Kinds of updates"), all(&|b| UpdateKind::from_byte(b).map(|k| format!("{k:?}"))));
    assert_eq!(tables::values(&disk, "Kinds of extents"), all(&|b| ExtentKind::from_byte(b).map(|k| format!("{k:?}"))));
    assert_eq!(tables::values(&wire, "Reasons"), all(&|b| Refusal::from_byte(b).map(|k| format!("{k:?}"))));
    let roles = [Role::Node, Role::Driver, Role::Control, Role::Seat].map(|r| (r as u64, format!("{r:?}")));
    assert_eq!(tables::values(&wire, "Roles"), roles);
    let modes = [SyncMode::Frames, SyncMode::Level, SyncMode::Map, SyncMode::MapEnd, SyncMode::Refused];
    assert_eq!(tables::values(&wire, "Modes"), modes.map(|m| (m as u64, format!("{m:?}"))));
    macro_rules! kinds {
        ($($name:ident),*) => { vec![$((u64::from(kind::$name), stringify!($name).to_owned())),*] };
    }
    let kinds = kinds!(
        HELLO,
        WELCOME,
        ATTACH,
        FOLLOW,
        ATTACHED,
        DETACH,
        WRITE,
        ORDERED,
        DURABLE,
        READ,
        READ_REPLY,
        REFUSED,
        VIEW,
        FRAMES,
        HEARTBEAT,
        SEAL,
        SEAL_ANSWER,
        SYNC,
        SYNC_REPLY,
        NUDGE,
        CONTROL,
        CONTROL_REPLY,
        LEASE,
        LEASED
    );
    assert_eq!(tables::values(&wire, "Kinds of messages"), kinds);
}

#[test]
fn maxima_agree() {
    macro_rules! maxima {
        ($($name:path),* $(,)?) => {
            vec![$((stringify!($name).rsplit("::").next().unwrap().trim().to_owned(), u64::try_from($name).unwrap())),*]
        };
    }
    let known = maxima![
        disk::SEGMENTS_MAX,
        disk::MANIFEST_BYTES_MAX,
        disk::CHECKPOINT_EXTENTS_MAX,
        disk::OPENINGS_MAX,
        limits::SEGMENT_BYTES,
        limits::SEGMENT_BYTES_MIN,
        disk::APPEND_HEADS_BYTES_MAX,
        disk::REPEAT_BYTES_MAX,
        disk::APPEND_DATA_BYTES_MAX,
        limits::FRAME_HEAD_BYTES_MAX,
        limits::FRAME_DATA_BYTES_SOFT_MAX,
        limits::FRAME_DATA_BYTES_MAX,
        limits::FRAME_UPDATES_MAX,
        limits::UPDATE_DATA_BYTES_MAX,
        limits::UPDATE_EXTENTS_MAX,
        limits::CHUNK_BLOCKS_MAX,
        limits::SHARD_PINS_MAX,
        limits::LOST_VERSIONS_MAX,
        limits::CLOSED_VIEWS_MAX,
        limits::SHARD_BLOCKS_MAX,
        limits::SHARD_INTERVALS,
        limits::INTERVAL_RECORD_BLOCKS_MAX,
        limits::INTERVAL_PLACE_BLOCKS,
        limits::SHARD_VOLUME_BLOCKS_MAX,
        limits::INTERVAL_SHARDS_MAX,
        limits::INTERVAL_EXTENTS_MAX,
        limits::SHARD_MOMENTS,
        limits::MOMENT_MS,
        limits::CHAIN_MEMBERS_MAX,
        wire::HEADER_BYTES,
        limits::MESSAGE_BYTES_MAX,
        wire::META_BYTES_MAX,
        wire::TABLE_ITEMS_MAX,
        limits::READ_BLOCKS_MAX,
        limits::STATUS_BLOCKS_MAX,
        limits::CONTROL_BODY_BYTES_MAX,
        limits::FAN_OUT_BYTES_MAX,
        timing::LINK_SILENCE_MS,
        limits::DRIVER_WINDOW_BYTES,
        limits::DRIVER_REQUESTS_MAX,
        limits::SHARD_WINDOW_BYTES,
        limits::PEER_WINDOW_BYTES,
    ];
    let said = [tables::maxima(&tables::read("disk.md")), tables::maxima(&tables::read("wire.md"))].concat();
    assert_eq!(said, known);
}

#[test]
fn fixed_places_agree() {
    let text = tables::read("disk.md");
    for at in disk::SUPERBLOCK_AT.into_iter().chain([disk::SEGMENTS_AT]).filter(|a| *a > 0) {
        let thousands = at
            .to_string()
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|c| String::from_utf8_lossy(c).into_owned())
            .collect::<Vec<_>>();
        assert!(text.contains(&format!("byte {} ", thousands.join(","))), "byte {at} of a device");
    }
}

/// The parser notices what it has to notice.
#[test]
fn the_check_can_fail() {
    let good = "### `X`: 6 bytes\n\n| offset | bytes | field | meaning |\n| ---: | --- | --- | --- |\n| 0 | 4 | a | what |\n| 4 | 2 | b | what |\n";
    let x = tables::structs(good);
    assert_eq!((x[0].name.as_str(), x[0].bytes, x[0].rows.len()), ("X", 6, 2));
    assert_ne!(tables::structs(&good.replace("| 4 | 2", "| 4 | 4")), x);
    assert_ne!(tables::structs(&good.replace("| b |", "| c |")), x);
    assert!(std::panic::catch_unwind(|| tables::structs(&good.replace("| a | what |", "| a |  |"))).is_err());
}

//! Writes passed from disk to disk: by frames, by map, interrupted, doubled, damaged.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files are what is tested")]

mod common;

use common::Rng;
use freebs_disk::{CreateOptions, Disk, ErrorKind, PIECE_BYTES_MAX, Version};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 3 * MIB;

fn options() -> CreateOptions {
    CreateOptions { log_bytes: Some(40 * MIB), segment_bytes: MIB, ..CreateOptions::default() }
}

fn all(disk: &Disk) -> Vec<u8> {
    let mut b = vec![1u8; disk.size() as usize];
    disk.read(&mut b, 0).unwrap();
    b
}

fn pieces(disk: &Disk, since: u64) -> Vec<Vec<u8>> {
    disk.get_writes(Version(since)).unwrap().map(|p| p.unwrap()).collect()
}

/// Some random updates, small and large.
fn scribble(disk: &Disk, rng: &mut Rng, updates: u64) {
    for _ in 0..updates {
        let most = if rng.chance(10) { 120 } else { 8 };
        let len = (1 + rng.below(most)) * 4096;
        let at = rng.below((SIZE - len) / 4096 + 1) * 4096;
        match rng.below(12) {
            0 => disk.trim(at, len).map(drop).unwrap(),
            1 => disk.zero(at, len).map(drop).unwrap(),
            2 => disk.write(&rng.bytes(512), at + 512).map(drop).unwrap(),
            _ => disk.write(&rng.bytes(len as usize), at).map(drop).unwrap(),
        }
    }
}

/// Overwrites everything until the log has given its first frames up.
fn wear(disk: &Disk, rng: &mut Rng) {
    for _ in 0..6 {
        for at in (0..SIZE).step_by(256 << 10) {
            disk.write_durable(&rng.bytes(256 << 10), at).unwrap();
        }
        disk.cleanup().unwrap();
    }
    assert!(disk.status().unwrap().counters.segments_freed > 0, "something was given up");
}

fn path(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

fn fresh(at: &Path) -> Disk {
    Disk::create_with(at, SIZE, &options()).unwrap()
}

#[derive(Clone, Debug)]
enum Act {
    Scribble(u64),
    Wear,
    Sync,
    /// Sync that stops after so many pieces, then the target is opened again.
    Break(usize),
    ReopenSource,
    Repeat,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1u64..60).prop_map(Act::Scribble),
        1 => Just(Act::Wear),
        3 => Just(Act::Sync),
        2 => (0usize..3).prop_map(Act::Break),
        1 => Just(Act::ReopenSource),
        1 => Just(Act::Repeat),
    ]
}

fn follow(seed: u64, acts: &[Act]) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let mut source = fresh(&path(&dir, "source"));
    let mut target = fresh(&path(&dir, "target"));
    let mut last: Vec<Vec<u8>> = Vec::new();
    for a in acts {
        match a {
            Act::Scribble(n) => scribble(&source, &mut rng, *n),
            Act::Wear => wear(&source, &mut rng),
            Act::Sync => {
                last = pieces(&source, target.version().unwrap().0);
                for p in &last {
                    assert!(p.len() <= PIECE_BYTES_MAX);
                    target.put_writes(p).unwrap();
                }
                assert_eq!(target.version().unwrap(), source.version().unwrap());
                assert!(all(&target) == all(&source), "the copy differs");
            }
            Act::Break(n) => {
                for p in pieces(&source, target.version().unwrap().0).iter().take(*n) {
                    target.put_writes(p).unwrap();
                }
                let filling = target.status().unwrap().is_filling;
                if filling {
                    assert_eq!(target.read(&mut [0; 512], 0).unwrap_err().kind, ErrorKind::Retry);
                    assert_eq!(target.write(&[0; 512], 0).unwrap_err().kind, ErrorKind::Retry);
                    assert_eq!(target.get_writes(Version(0)).err().unwrap().kind, ErrorKind::Retry);
                }
                target.fsync().unwrap();
                drop(target);
                target = Disk::open(path(&dir, "target")).unwrap();
                assert_eq!(target.status().unwrap().is_filling, filling, "remembered");
            }
            Act::ReopenSource => {
                drop(source);
                source = Disk::open(path(&dir, "source")).unwrap();
            }
            Act::Repeat => {
                let before = target.version().unwrap();
                if !target.status().unwrap().is_filling {
                    let content = all(&target);
                    for p in &last {
                        target.put_writes(p).unwrap();
                    }
                    assert!(target.version().unwrap() == before && all(&target) == content, "a repeat changes nothing");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]
    #[test]
    fn a_copy_follows(seed in any::<u64>(), acts in proptest::collection::vec(act(), 1..14)) {
        follow(seed, &acts);
    }
}

/// From nothing, behind a log that has given frames up, with writes during the transfer.
#[test]
fn the_map_is_sent_where_frames_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(7);
    let source = fresh(&path(&dir, "source"));
    let target = fresh(&path(&dir, "target"));
    scribble(&source, &mut rng, 40);
    for p in pieces(&source, 0) {
        target.put_writes(&p).unwrap();
    }
    let early = target.version().unwrap();
    wear(&source, &mut rng);
    source.trim(0, 64 << 10).unwrap();
    scribble(&source, &mut rng, 40);
    let mut writes = source.get_writes(early).unwrap();
    let first = writes.next().unwrap().unwrap();
    assert_eq!(first[12], 2, "a piece of the map, and not the last");
    scribble(&source, &mut rng, 60);
    source.fsync().unwrap();
    target.put_writes(&first).unwrap();
    for p in writes {
        target.put_writes(&p.unwrap()).unwrap();
    }
    assert!(!target.status().unwrap().is_filling);
    assert!(target.version().unwrap() > early);
    for p in pieces(&source, target.version().unwrap().0) {
        target.put_writes(&p).unwrap();
    }
    assert_eq!(target.version().unwrap(), source.version().unwrap());
    assert!(all(&target) == all(&source));
    // A copy of the copy, from before the jump and from behind it.
    let third = fresh(&path(&dir, "third"));
    for p in pieces(&target, 0) {
        third.put_writes(&p).unwrap();
    }
    assert!(all(&third) == all(&source) && third.version().unwrap() == source.version().unwrap());
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(3);
    let source = fresh(&path(&dir, "source"));
    scribble(&source, &mut rng, 30);
    let target = fresh(&path(&dir, "target"));
    let stream: Vec<u8> = pieces(&source, 0).concat();
    let invalid = |r: Result<Version, freebs_disk::Error>| assert_eq!(r.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(source.get_writes(Version(31)).err().unwrap().kind, ErrorKind::Invalid);
    invalid(target.put_writes(&pieces(&source, 20).concat()));
    invalid(target.put_writes(&[0; 200]));
    let other = Disk::create_with(path(&dir, "other"), SIZE + 512, &options()).unwrap();
    invalid(other.put_writes(&stream));

    // Any changed byte and any cut is noticed; what was applied before it is a whole version.
    for i in (0..stream.len()).step_by(stream.len() / 150).chain(0..140) {
        let mut bad = stream.clone();
        bad[i] ^= 1;
        target.put_writes(&bad).unwrap_err();
        target.put_writes(&stream[..i.max(1)]).unwrap_err();
    }
    target.put_writes(&stream).unwrap();
    assert!(all(&target) == all(&source));

    // A copy that is written to leaves the history; so does nobody else.
    source.write(&[5; 512], 0).unwrap();
    let more: Vec<u8> = pieces(&source, 30).concat();
    target.write(&[6; 512], 0).unwrap();
    invalid(target.put_writes(&more));
    assert_ne!(target.status().unwrap().history, source.status().unwrap().history);
    invalid(source.put_writes(&pieces(&target, 0).concat()));
}

/// FreEBS's case for `cleanup`: a log of many times its live data becomes one of about that.
#[test]
fn cleaning_into_a_new_file_keeps_content_and_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(11);
    let disk = fresh(&path(&dir, "old"));
    for _ in 0..8 {
        scribble(&disk, &mut rng, 150);
    }
    let version = disk.cleanup_into(path(&dir, "new")).unwrap();
    let before = all(&disk);
    assert_eq!(version, disk.version().unwrap());
    let new = Disk::open(path(&dir, "new")).unwrap();
    assert!(all(&new) == before);
    assert_eq!(new.version().unwrap(), version);
    assert!(new.status().unwrap().counters.appends < 10);
    // It follows the old one on (FreEBS: "it can be brought up to date with the synchronization protocol").
    scribble(&disk, &mut rng, 20);
    for p in pieces(&disk, version.0) {
        new.put_writes(&p).unwrap();
    }
    assert!(all(&new) == all(&disk));
}

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
    /// A clean disk of the same history, which has no frames, is made and stays as it is.
    Twin,
    /// So many pieces of the twin.
    FromTwin(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1u64..60).prop_map(Act::Scribble),
        1 => Just(Act::Wear),
        3 => Just(Act::Sync),
        2 => (0usize..3).prop_map(Act::Break),
        1 => Just(Act::ReopenSource),
        1 => Just(Act::Repeat),
        1 => Just(Act::Twin),
        2 => (0usize..6).prop_map(Act::FromTwin),
    ]
}

fn follow(seed: u64, acts: &[Act]) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let mut source = fresh(&path(&dir, "source"));
    let mut target = fresh(&path(&dir, "target"));
    let mut last: Vec<Vec<u8>> = Vec::new();
    let mut twin = None;
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
            Act::Twin => {
                drop(twin.take());
                let _ = std::fs::remove_file(path(&dir, "twin"));
                source.cleanup_into(path(&dir, "twin")).unwrap();
                twin = Some(Disk::open(path(&dir, "twin")).unwrap());
            }
            Act::FromTwin(n) => {
                let since = target.version().unwrap();
                if let Some(t) = twin.as_ref().filter(|t| t.version().unwrap() >= since) {
                    for p in pieces(t, since.0).iter().take(*n) {
                        target.put_writes(p).unwrap();
                    }
                }
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

/// Found by the test above.
#[test]
fn a_copy_that_changes_its_source_follows() {
    use Act::{Break, FromTwin, ReopenSource, Repeat, Scribble, Sync, Twin};
    let acts =
        [Repeat, Break(1), ReopenSource, Scribble(8), Sync, Scribble(12), FromTwin(4), Twin, FromTwin(1), Sync, Twin];
    follow(7828497775369459328, &acts);
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

/// A transfer by map broke off, then blocks that it had brought were trimmed. The next map was for "a disk of version
/// 0, to which trims say nothing", but the disk was no longer empty: it kept what was trimmed.
#[test]
fn a_trim_reaches_a_copy_that_was_left_half_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(5);
    let source = fresh(&path(&dir, "source"));
    let target = fresh(&path(&dir, "target"));
    wear(&source, &mut rng);
    let first = pieces(&source, 0).swap_remove(0);
    assert_eq!(first[12], 2, "a piece of the map, and not the last");
    target.put_writes(&first).unwrap();
    assert_eq!(target.version().unwrap(), Version(0));
    source.trim(8192, 65536).unwrap();
    for p in pieces(&source, 0) {
        target.put_writes(&p).unwrap();
    }
    assert!(all(&target) == all(&source), "the copy differs");
}

/// Two disks of one history: one has only the map, the other one still has the frames. What the map of the one began
/// is ended by the frames of the other; at first nothing ended it any more.
#[test]
fn frames_end_what_a_map_began() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(21);
    let source = fresh(&path(&dir, "source"));
    let target = fresh(&path(&dir, "target"));
    scribble(&source, &mut rng, 100);
    source.cleanup_into(path(&dir, "clean")).unwrap();
    let clean = Disk::open(path(&dir, "clean")).unwrap();
    let first = pieces(&clean, 0).swap_remove(0);
    assert_eq!(first[12], 2, "a piece of the map, and not the last");
    target.put_writes(&first).unwrap();
    assert!(target.status().unwrap().is_filling);
    scribble(&source, &mut rng, 5);
    let frames = pieces(&source, 0);
    assert_eq!(frames[0][12], 1, "a piece of frames");
    for p in frames {
        target.put_writes(&p).unwrap();
    }
    assert!(!target.status().unwrap().is_filling);
    assert!(all(&target) == all(&source), "the copy differs");
    target.fsync().unwrap();
    drop(target);
    assert!(all(&Disk::open(path(&dir, "target")).unwrap()) == all(&source), "after a reopen");
}

/// A part of a newer map, then all of an older one: blocks are newer than the version that the older one leads to, and
/// nothing may be served before the newer one's version. At first the older map's end was the end of it.
#[test]
fn an_older_map_does_not_end_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(22);
    let source = fresh(&path(&dir, "source"));
    let target = fresh(&path(&dir, "target"));
    scribble(&source, &mut rng, 100);
    source.cleanup_into(path(&dir, "old")).unwrap();
    let old = Disk::open(path(&dir, "old")).unwrap();
    scribble(&source, &mut rng, 100);
    source.cleanup_into(path(&dir, "new")).unwrap();
    let new = Disk::open(path(&dir, "new")).unwrap();
    target.put_writes(&pieces(&new, 0)[0]).unwrap();
    for p in pieces(&old, 0) {
        target.put_writes(&p).unwrap();
    }
    assert!(target.status().unwrap().is_filling, "at {}, with blocks of later versions", target.version().unwrap());
    assert_eq!(target.read(&mut [0; 512], 0).unwrap_err().kind, ErrorKind::Retry);
    target.fsync().unwrap();
    drop(target);
    let target = Disk::open(path(&dir, "target")).unwrap();
    assert!(target.status().unwrap().is_filling, "remembered");
    for p in pieces(&source, target.version().unwrap().0) {
        target.put_writes(&p).unwrap();
    }
    assert!(all(&target) == all(&source), "the copy differs");
}

/// Pieces of a map say which addresses they cover: one that was left out is noticed, in one transfer and over a
/// reopen, where it is not known any more how far the map had come.
#[test]
fn a_piece_of_the_map_that_is_left_out_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(23);
    let source = fresh(&path(&dir, "source"));
    wear(&source, &mut rng);
    let map = pieces(&source, 0);
    assert!(map.len() > 3 && map[0][12] == 2 && map[1][12] == 2 && map.last().unwrap()[12] == 3);
    let kind = |disk: &Disk, p: &Vec<u8>| disk.put_writes(p).map_err(|e| e.kind);
    for left_out in 0..map.len() - 1 {
        let target = fresh(&path(&dir, &format!("target{left_out}")));
        for p in &map[..left_out] {
            target.put_writes(p).unwrap();
        }
        for p in &map[left_out + 1..] {
            assert_eq!(kind(&target, p), Err(ErrorKind::Invalid), "piece {left_out} is missing");
        }
        // A repeat of a piece, and going on where it stopped, is right. Until the last one nothing is reached.
        for p in &map[left_out.saturating_sub(1)..] {
            let reached = target.put_writes(p).unwrap();
            assert_eq!(reached, target.version().unwrap());
        }
        assert!(all(&target) == all(&source));
    }
    let target = fresh(&path(&dir, "target"));
    target.put_writes(&map[0]).unwrap();
    drop(target);
    let target = Disk::open(path(&dir, "target")).unwrap();
    assert_eq!(kind(&target, &map[1]), Err(ErrorKind::Invalid));
    for p in &map {
        target.put_writes(p).unwrap();
    }
    assert!(all(&target) == all(&source));
}

/// A copy is written to while writes of its source are put: it leaves the history between two updates, and whoever
/// puts is told. At first the update that would have had the writer's version was left out without a word.
#[test]
fn a_copy_that_is_written_to_meanwhile_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(24);
    let source = fresh(&path(&dir, "source"));
    scribble(&source, &mut rng, 300);
    let stream = pieces(&source, 0).concat();
    for round in 0..20u64 {
        let target = fresh(&path(&dir, &format!("target{round}")));
        let other = target.clone();
        let put = std::thread::scope(|s| {
            let put = s.spawn(|| target.put_writes(&stream));
            // The last rounds write right behind the last update, before `put_writes` is back.
            while other.version().unwrap().0 < (1 + round * 19).min(300) {
                std::hint::spin_loop();
            }
            let mine = other.write(&[0xee; 4096], SIZE - 4096).unwrap();
            (put.join().unwrap(), mine)
        });
        let (put, mine) = put;
        let content = all(&target);
        assert!(content[SIZE as usize - 4096..].iter().all(|b| *b == 0xee));
        assert_eq!(target.version().unwrap(), mine, "nothing of the old history came behind the write");
        match put {
            Ok(v) => assert_eq!((v.0, mine), (300, Version(301))),
            Err(e) => assert_eq!(e.kind, ErrorKind::Invalid, "{e}"),
        }
    }
}

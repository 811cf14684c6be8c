//! Disks that were backed up are restored, and nothing is stored twice.

use crate::world::*;
use freebs_backup::limits::PAGE_COVERS;
use freebs_backup::{Pruning, Unwatched, Verifying, create, delete, list, open, prune, resolve, restore, verify};
use freebs_types::ErrorKind;

#[test]
fn a_disk_comes_back_and_zeroes_cost_nothing() {
    let store = Memory::new();
    let t = target(&store, 1);
    assert!(t.is_new());
    // Two pages, the second one cut short in its last block.
    let size = PAGE_COVERS + 3 * BLOCK + 1000;
    let last = size / BLOCK;
    let disk = Disk::new(size, &[(0, 1), (5, 2), (8191, 3), (8192, 4), (last, 5)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup");
    let d = &made.manifest.details;
    assert_eq!((d.blocks, d.new_blocks, d.size, made.manifest.pages.len()), (5, 5, size, 2));
    assert_eq!(ids(&t), [made.manifest.id]);
    check(&t, made.manifest.id, &disk);
    // A marker and its copy, a manifest, two pages, five blocks.
    assert_eq!(store.keys().len(), 10);
    assert!(!target(&store, 2).is_new());
    // An empty disk is a backup, too.
    let empty = Disk::new(9 * PAGE_COVERS, &[]);
    let made = backup(&t, &empty, 2, 100).expect("a backup");
    assert_eq!((made.read_bytes, made.manifest.pages.len()), (0, 0));
    check(&t, made.manifest.id, &empty);
}

#[test]
fn the_next_backup_stores_what_is_new_and_any_one_may_be_deleted() {
    let store = Memory::new();
    let t = target(&store, 1);
    let mut disk = Disk::new(PAGE_COVERS + 100 * BLOCK, &(0..100).map(|b| (b, 2 * b)).collect::<Vec<_>>());
    disk.blocks.insert(8200, 77);
    let first = backup(&t, &disk, 1, 100).expect("a backup");
    let mut states = vec![(first.manifest.id, disk.clone())];
    for n in 0..3 {
        store.plan(None);
        disk.blocks.insert(10 + n, 1001 + 2 * n);
        disk.blocks.remove(&(50 + n));
        let made = backup(&t, &disk, 1, 200 + n).expect("a backup");
        let d = &made.manifest.details;
        assert_eq!((d.new_blocks, d.blocks), (1, 101 - n - 1));
        assert_eq!(d.parent, states.last().expect("one").0, "the newest one");
        // One block that can't be compressed, one page, one manifest, and the note of the create.
        assert!(store.sent() < BLOCK + 16384 && store.puts() == 4, "{} bytes, {} puts", store.sent(), store.puts());
        assert_eq!(made.manifest.pages[1], first.manifest.pages[1], "a page without changes is shared");
        states.push((made.manifest.id, disk.clone()));
    }
    // Another volume has another line of backups.
    let other = backup(&t, &disk, 2, 300).expect("a backup");
    assert!(other.manifest.details.parent.is_none());
    states.push((other.manifest.id, disk.clone()));
    let full = finish(create(&t, &disk, &freebs_backup::Order { full: true, ..order(1, 400) }, &Unwatched));
    let full = full.expect("a backup").manifest;
    assert_eq!((full.details.new_blocks, full.details.parent.is_none()), (98, true));
    states.push((full.id, disk.clone()));
    // From the middle, from the begin, from the end.
    for gone in [2, 0, 3, 0] {
        let (id, _) = states.remove(gone);
        finish(delete(&t, id, 500, false)).expect("deleted");
        assert_eq!(finish(open(&t, id)).unwrap_err().kind, ErrorKind::NotFound);
        let pruned = finish(prune(&t, &Pruning::default())).expect("pruned");
        assert_eq!((pruned.backups, pruned.waiting), (1, 0));
        states.iter().for_each(|(id, disk)| check(&t, *id, disk));
    }
    let verified =
        finish(verify(&t, &Verifying { backup: None, of_million: 1_000_000 }, &Unwatched)).expect("verified");
    assert_eq!((verified.wrong, verified.backups), (0, 2));
    for (id, _) in states {
        finish(delete(&t, id, 500, false)).expect("deleted");
    }
    let dry = finish(prune(&t, &Pruning { is_dry: true, ..Pruning::default() })).expect("looked at");
    let before = store.keys();
    let wet = finish(prune(&t, &Pruning::default())).expect("pruned");
    assert_eq!((dry.objects, dry.bytes, dry.kept), (wet.objects, wet.bytes, 0));
    assert!(
        store
            .keys()
            .iter()
            .all(|k| ["freebs-backup", "freebs-backup-copy"].contains(&k.as_str()) || k.starts_with("backups/")),
        "notes are left"
    );
    assert_eq!(before.len() as u64 - wet.objects - 2, store.keys().len() as u64);
    assert!(ids(&t).is_empty());
}

#[test]
fn only_what_changed_is_read_if_the_source_knows_it() {
    let store = Memory::new();
    let t = target(&store, 1);
    let mut disk = Disk::new(40 * BLOCK + 700, &(0..30).map(|b| (b, 2 * b)).collect::<Vec<_>>());
    disk.blocks.insert(40, 9);
    disk.now = 1;
    let first = backup(&t, &disk, 1, 100).expect("a backup");
    disk.moments.insert(1, disk.blocks.clone());
    disk.now = 2;
    disk.blocks.insert(3, 501);
    disk.blocks.remove(&4);
    disk.read.set(0);
    let second = backup(&t, &disk, 1, 200).expect("a backup");
    assert_eq!(disk.read.get(), 2 * BLOCK);
    assert_eq!((second.manifest.details.new_blocks, second.manifest.details.blocks), (1, 30));
    check(&t, second.manifest.id, &disk);
    // It grew: the block that was the last one is read again, although nobody wrote to it.
    disk.moments.insert(2, disk.blocks.clone());
    disk.now = 3;
    disk.size += 5 * BLOCK;
    disk.read.set(0);
    let third = backup(&t, &disk, 1, 300).expect("a backup");
    assert_eq!(disk.read.get(), BLOCK);
    assert_eq!(third.manifest.details.new_blocks, 1);
    check(&t, third.manifest.id, &disk);
    // It finds in the middle that it can't tell: all is read.
    disk.moments.insert(3, disk.blocks.clone());
    (disk.now, disk.has_lost_track) = (4, true);
    disk.blocks.insert(5, 503);
    disk.blocks.insert(6, 505);
    disk.blocks.remove(&7);
    disk.read.set(0);
    let untold = backup(&t, &disk, 1, 350).expect("a backup");
    assert_eq!((disk.read.get(), untold.manifest.details.new_blocks), (29 * BLOCK, 2));
    check(&t, untold.manifest.id, &disk);
    disk.has_lost_track = false;
    // Its parent's page is lost: all is read and stored again.
    let page = untold.manifest.pages[0].object();
    store.remove(&freebs_backup::object_key(page.owner, page.name));
    disk.moments.insert(4, disk.blocks.clone());
    disk.now = 5;
    disk.read.set(0);
    let fourth = backup(&t, &disk, 1, 400).expect("a backup");
    assert_eq!((disk.read.get(), fourth.manifest.details.new_blocks), (29 * BLOCK, 29));
    check(&t, fourth.manifest.id, &disk);
    check(&t, first.manifest.id, &Disk { size: 40 * BLOCK + 700, blocks: disk_of_first(), ..Disk::default() });
}

fn disk_of_first() -> std::collections::BTreeMap<u64, u64> {
    (0..30).map(|b| (b, 2 * b)).chain([(40, 9)]).collect()
}

#[test]
fn a_sealed_target_tells_nothing_and_opens_with_its_key_only() {
    let store = Memory::new();
    let t = sealed(&store, 1, 1).expect("a target");
    let disk = Disk::new(4 * BLOCK, &[(0, 2), (1, 3), (3, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup");
    check(&t, made.manifest.id, &disk);
    // Neither names nor bytes are those of the content.
    let plain = content(2, BLOCK as usize);
    let name = freebs_backup::name_of(&plain, None).to_string();
    for key in store.keys() {
        assert!(!key.contains(&name));
        let bytes = store.read(&key);
        for told in [&b"vol1"[..], &[7; 16], &plain[..16]] {
            assert!(!bytes.windows(told.len()).any(|w| w == told), "{key}");
        }
    }
    drop(t);
    let e = sealed(&store, 2, 1).err().expect("another key");
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("right file"), "{e}");
    let e = finish(freebs_backup::Target::open(store.store(), None, Box::new(Rng(1)), true)).err().expect("no key");
    assert!(e.text.contains("--key"), "{e}");
    let t = sealed(&store, 1, 2).expect("the target");
    let more = backup(&t, &disk, 1, 200).expect("a backup");
    assert_eq!(more.manifest.details.new_blocks, 0);
    assert_eq!(finish(verify(&t, &Verifying { backup: None, of_million: 1_000_000 }, &Unwatched)).unwrap().wrong, 0);
    let plain = Memory::new();
    drop(target(&plain, 1));
    let e = sealed(&plain, 1, 1).err().expect("a plain target");
    assert!(e.text.contains("leave out --key"), "{e}");
}

#[test]
fn a_locked_backup_is_not_deleted_before_its_date() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(4 * BLOCK, &[(0, 2)]);
    let locked = freebs_backup::Order { locked_until_ms: 1000, ..order(1, 100) };
    let id = finish(create(&t, &disk, &locked, &Unwatched)).expect("a backup").manifest.id;
    assert_eq!(finish(delete(&t, id, 999, true)).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(ids(&t), [id]);
    finish(delete(&t, id, 1000, false)).expect("its date");
    assert!(ids(&t).is_empty());
}

#[test]
fn a_backup_is_found_by_its_first_digits() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(4 * BLOCK, &[(0, 2)]);
    let (a, b) = (backup(&t, &disk, 1, 100).unwrap().manifest.id, backup(&t, &disk, 2, 100).unwrap().manifest.id);
    assert_eq!(finish(resolve(&t, &a.to_string()[..6])).unwrap(), a);
    assert_eq!(finish(resolve(&t, "")).unwrap_err().kind, ErrorKind::Invalid);
    finish(delete(&t, a, 100, false)).unwrap();
    assert_eq!(finish(resolve(&t, "")).unwrap(), b);
    assert_eq!(finish(resolve(&t, &a.to_string())).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_disk_that_is_restored_to_has_nothing_else_on_it() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(6 * BLOCK, &[(1, 2), (4, 3)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup");
    let manifest = finish(open(&t, made.manifest.id)).unwrap();
    let to = Written { size: 8 * BLOCK, ..Written::default() };
    to.blocks.borrow_mut().insert(7, vec![1; BLOCK as usize]);
    to.blocks.borrow_mut().insert(1, vec![1; BLOCK as usize]);
    finish(restore(&t, &manifest, &to, &Unwatched)).expect("restored");
    to.check(&disk);
    let small = Written::new(5 * BLOCK);
    let e = finish(restore(&t, &manifest, &small, &Unwatched)).unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && small.blocks.borrow().is_empty(), "{e}");
    assert_eq!(finish(list(&t)).unwrap().backups.len(), 1);
}

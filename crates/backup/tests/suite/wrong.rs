//! Damage, and what others put there: found, named, refused.

use crate::world::*;
use freebs_backup::format::{Entry, Note, Page, PageRef, note};
use freebs_backup::{
    Id, Manifest, Pruning, Target, Unwatched, Verified, Verifying, delete, list, object_key, open, prune, restore,
    verify,
};
use freebs_types::{ErrorKind, Result};
use zerocopy::IntoBytes;

fn verified(t: &Target, of_million: u32) -> Verified {
    finish(verify(t, &Verifying { backup: None, of_million }, &Unwatched)).expect("verified")
}

fn restored(t: &Target, manifest: &Manifest) -> Result<()> {
    finish(restore(t, manifest, &Written::new(manifest.details.size), &Unwatched)).map(drop)
}

#[test]
fn one_flipped_bit_is_found_by_verify_and_stops_a_restore() {
    for key in [None, Some(3)] {
        let store = Memory::new();
        let t = match key {
            None => target(&store, 1),
            Some(key) => sealed(&store, key, 1).expect("a target"),
        };
        let disk = Disk::new(8 * BLOCK, &[(0, 2), (1, 3), (5, 4)]);
        let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
        let mut rng = Rng(9);
        for object in store.keys().iter().filter(|k| k.starts_with("blocks/")) {
            let good = store.read(object);
            let drawn: Vec<usize> = (0..20).map(|_| rng.below(good.len() as u64) as usize).collect();
            for at in (0..64).chain(drawn).chain([good.len() - 1]) {
                let mut bad = good.clone();
                bad[at] ^= 1 << rng.below(8);
                store.write(object, bad);
                let found = verified(&t, 1_000_000);
                assert!(
                    found.wrong == 1 && found.named[0].text.contains(object.as_str()),
                    "byte {at} of {object}: {found:?}"
                );
                assert_eq!(found.broken.iter().copied().collect::<Vec<_>>(), [made.id]);
                match restored(&t, &made) {
                    Err(e) => assert!(e.text.contains(object.as_str()) && e.text.contains("--full"), "byte {at}: {e}"),
                    Ok(()) => panic!("byte {at} of {object}"),
                }
            }
            store.write(object, good[..good.len() - 1].to_vec());
            assert_eq!(verified(&t, 0).wrong, 1, "a shorter one is found without reading it");
            store.remove(object);
            assert_eq!(verified(&t, 0).wrong, 1, "so is one that is missing");
            assert_eq!(restored(&t, &made).unwrap_err().kind, ErrorKind::Corrupt);
            store.write(object, good);
        }
        assert_eq!(verified(&t, 1_000_000).wrong, 0);
        restored(&t, &made).expect("all is as it was");
    }
}

#[test]
fn an_object_in_the_place_of_another_one_is_found() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 3), (1, 5)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let names = [3, 5].map(|seed| object_key(made.id, freebs_backup::name_of(&content(seed, BLOCK as usize), None)));
    let [a, b] = names.clone().map(|k| store.read(&k));
    assert_eq!(a.len(), b.len(), "neither can be compressed");
    store.write(&names[0], b);
    store.write(&names[1], a);
    assert_eq!(verified(&t, 1_000_000).wrong, 2);
    let e = restored(&t, &made).unwrap_err();
    assert!(e.text.contains("another hash"), "{e}");
}

#[test]
fn every_flipped_byte_of_a_manifest_is_noticed_and_prune_then_takes_nothing() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let key = format!("backups/{}", made.id);
    let good = store.read(&key);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 4;
        store.write(&key, bad);
        assert!(finish(open(&t, made.id)).is_err(), "byte {at}");
    }
    let listed = finish(list(&t)).expect("a list").backups;
    assert!(listed.len() == 1 && listed[0].details.is_err(), "it is shown as damaged");
    let before = store.keys();
    let e = finish(prune(&t, &Pruning::default())).unwrap_err();
    assert!(e.kind == ErrorKind::Corrupt && e.text.contains("backup delete"), "{e}");
    assert_eq!(before, store.keys());
    // A new backup does without it.
    let next = backup(&t, &disk, 1, 200).expect("a backup").manifest;
    assert!(next.details.parent.is_none());
    let e = finish(delete(&t, made.id, 0, false)).unwrap_err();
    assert!(e.text.contains("--force"), "{e}");
    finish(delete(&t, made.id, 0, true)).expect("deleted");
    assert_eq!(finish(prune(&t, &Pruning::default())).expect("pruned").objects, 2);
    check(&t, next.id, &disk);
}

#[test]
fn a_damaged_page_stops_prune_and_only_its_backups_are_broken() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let other = backup(&t, &Disk::new(8 * BLOCK, &[(0, 4)]), 2, 100).expect("a backup").manifest;
    let page = made.pages[0].object();
    store.remove(&object_key(page.owner, page.name));
    let e = finish(prune(&t, &Pruning::default())).unwrap_err();
    assert!(e.kind == ErrorKind::Corrupt && e.text.contains(&made.id.to_string()), "{e}");
    assert_eq!(verified(&t, 1_000_000).broken.into_iter().collect::<Vec<_>>(), [made.id]);
    let one = finish(verify(&t, &Verifying { backup: Some(other.id), of_million: 1_000_000 }, &Unwatched)).unwrap();
    assert_eq!((one.wrong, one.backups, one.objects), (0, 1, 2));
}

#[test]
fn a_place_with_other_things_is_refused_and_left_alone() {
    let store = Memory::new();
    store.write("holiday/photo.jpg", vec![1]);
    for (make, kind) in [(true, ErrorKind::Invalid), (false, ErrorKind::NotFound)] {
        let e = finish(Target::open(store.store(), None, Box::new(Rng(1)), make)).err().expect("refused");
        assert_eq!(e.kind, kind, "{e}");
    }
    assert_eq!(store.keys(), ["holiday/photo.jpg"]);
    // A marker of another version, and a damaged one.
    let made = Memory::new();
    drop(target(&made, 1));
    let good = made.read("freebs-backup");
    made.remove("freebs-backup-copy");
    for (at, word) in [(4, "version"), (20, "checksum"), (0, "does not begin")] {
        let mut bad = good.clone();
        bad[at] ^= 3;
        made.write("freebs-backup", bad);
        let e = finish(Target::open(made.store(), None, Box::new(Rng(1)), true)).err().expect("refused");
        assert!(e.text.contains(word), "{e}");
    }
}

#[test]
fn a_target_whose_marker_is_damaged_is_read_by_its_copy() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let names = ["freebs-backup", "freebs-backup-copy"];
    let good = store.read(names[0]);
    assert_eq!(good, store.read(names[1]));
    for (name, byte) in names.into_iter().flat_map(|name| [(name, Some(0)), (name, Some(20)), (name, None)]) {
        match byte {
            Some(at) => {
                let mut bad = good.clone();
                bad[at] ^= 1;
                store.write(name, bad);
            }
            None => store.remove(name),
        }
        let before = store.keys();
        let read = finish(Target::open(store.store(), None, Box::new(Rng(2)), false)).expect("opened");
        assert!(read.id() == t.id() && ids(&read) == [made.id]);
        assert_eq!(before, store.keys(), "nothing is written for a reader");
        check(&t, made.id, &disk);
        // A create mends it.
        assert!(!target(&store, 3).is_new());
        assert!(names.iter().all(|name| store.read(name) == good), "{name} {byte:?}");
    }
    names.iter().for_each(|name| store.write(name, vec![0; 64]));
    let e = finish(Target::open(store.store(), None, Box::new(Rng(2)), true)).err().expect("refused");
    assert!(e.kind == ErrorKind::Corrupt && e.text.contains("freebs-backup"), "{e}");
}

#[test]
fn old_notes_go_and_young_ones_and_those_of_owners_stay() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2), (1, 4)]);
    let first = backup(&t, &disk, 1, 100).expect("a backup").manifest.id;
    let mut changed = disk.clone();
    changed.blocks.insert(1, 6);
    // It names a block of the first.
    let second = backup(&t, &changed, 1, 200).expect("a backup").manifest.id;
    let other = backup(&t, &disk, 2, 300).expect("a backup").manifest.id;
    for id in [first, other] {
        finish(delete(&t, id, 0, false)).expect("deleted");
    }
    assert_eq!(finish(prune(&t, &Pruning::default())).expect("pruned").backups, 2);
    store.wait(freebs_backup::limits::NOTES_KEPT_MS - 100);
    assert_eq!(finish(prune(&t, &Pruning::default())).expect("pruned").notes, 0);
    store.wait(200);
    let dry = finish(prune(&t, &Pruning { is_dry: true, ..Pruning::default() })).expect("looked at");
    assert_eq!(dry.notes, 0);
    assert_eq!(finish(prune(&t, &Pruning::default())).expect("pruned").notes, 1);
    let there: Vec<bool> =
        [first, second, other].iter().map(|id| store.keys().contains(&format!("backups/{id}"))).collect();
    assert_eq!(there, [true, true, false]);
    check(&t, second, &changed);
}

#[test]
fn a_sign_of_life_of_a_create_that_has_ended_is_taken_away() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let alive = format!("alive/{}", made.id);
    store.write(&alive, Note::new(t.id(), made.id, note::ALIVE, 100, [0; 32]).as_bytes().to_vec());
    finish(prune(&t, &Pruning::default())).expect("pruned");
    assert!(!store.keys().contains(&alive));
    check(&t, made.id, &disk);
}

#[test]
fn objects_that_are_no_backups_are_left_alone() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let strange = [
        "README".to_owned(),
        "backups/README".to_owned(),
        format!("backups/more/{}", made.id),
        "blocks/README/x".to_owned(),
        format!("blocks/{}/00/README", made.id),
        format!("blocks/{}/README", made.id),
    ];
    strange.iter().for_each(|key| store.write(key, vec![1]));
    assert_eq!(ids(&t), [made.id]);
    finish(delete(&t, made.id, 0, false)).expect("deleted");
    finish(prune(&t, &Pruning::default())).expect("pruned");
    assert!(strange.iter().all(|key| store.keys().contains(key)));
    // A note of another backup in the place of a manifest is damage, not an end, when objects depend on it.
    let next = backup(&t, &disk, 1, 200).expect("a backup").manifest;
    let gone = store.read(&format!("backups/{}", made.id));
    assert!(Note::is_one(&gone));
    store.write(&format!("backups/{}", next.id), gone);
    assert_eq!(finish(open(&t, next.id)).unwrap_err().kind, ErrorKind::Corrupt);
    let e = finish(prune(&t, &Pruning::default())).unwrap_err();
    assert!(e.kind == ErrorKind::Corrupt && e.text.contains(&next.id.to_string()), "{e}");
}

#[test]
fn a_block_of_another_length_is_found_by_verify() {
    let store = Memory::new();
    let t = target(&store, 1);
    let whole = Disk::new(2 * BLOCK, &[(0, 2), (1, 3)]);
    let made = backup(&t, &whole, 1, 100).expect("a backup").manifest;
    let short = Disk::new(BLOCK / 2, &[(0, 5)]);
    let other = backup(&t, &short, 2, 100).expect("a backup").manifest;
    let object = |of: &Manifest, seed: u64, len: u64| {
        let name = freebs_backup::name_of(&content(seed, len as usize), None);
        Entry { owner: of.id, name, stored: store.read(&object_key(of.id, name)).len() as u32 }
    };
    let forged_page = |id: u8, blocks: &[(u16, Entry)]| {
        let bytes = Page { page: 0, blocks: blocks.iter().copied().collect() }.encode();
        let name = freebs_backup::name_of(&bytes, None);
        let packed = freebs_backup::pack(&bytes, name, t.id(), None, &mut Rng(1)).expect("packed");
        let id = Id([id; 16]);
        let entry = Entry { owner: id, name, stored: packed.len() as u32 };
        store.write(&object_key(id, name), packed);
        let mut forged = made.clone();
        forged.id = id;
        forged.details.blocks = blocks.len() as u64;
        forged.details.new_blocks = 0;
        forged.details.new_bytes = 0;
        forged.details.stored_bytes = blocks.iter().map(|(_, e)| u64::from(e.stored)).sum();
        forged.pages = vec![PageRef::new(0, blocks.len() as u32, entry)];
        store.write(&format!("backups/{id}"), forged.encode(t.id(), None).expect("a manifest"));
        forged
    };
    let (good, less) = (object(&made, 2, BLOCK), object(&other, 5, BLOCK / 2));
    // A block of half the length, one that is a page, and a whole one, which is right.
    let page = made.pages[0].object();
    let forged = [forged_page(1, &[(0, good), (1, less)]), forged_page(2, &[(1, page)]), forged_page(3, &[(1, good)])];
    let refused: Vec<Id> = forged.iter().filter(|m| restored(&t, m).is_err()).map(|m| m.id).collect();
    assert_eq!(refused, [forged[0].id, forged[1].id]);
    let found = verified(&t, 1_000_000);
    assert_eq!(found.broken.iter().copied().collect::<Vec<_>>(), refused, "{found:?}");
}

#[test]
fn an_object_that_was_packed_in_another_way_is_as_good() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(2 * BLOCK, &[(0, 2), (1, 3)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    // Another version of zstd packed it, in a run of the same backup that stood still.
    let plain = content(2, BLOCK as usize);
    let name = freebs_backup::name_of(&plain, None);
    let packed = zstd::bulk::compress(&plain, 19).expect("packed");
    let header = freebs_backup::format::ObjectHeader::new(
        t.id(),
        freebs_backup::format::flags::ZSTD,
        plain.len(),
        packed.len(),
        [0; 12],
    );
    let object = header.before(&packed);
    let key = object_key(made.id, name);
    assert_ne!(object.len(), store.read(&key).len());
    store.write(&key, object);
    for of_million in [0, 1_000_000] {
        let found = verified(&t, of_million);
        assert!(found.wrong == 0 && found.broken.is_empty(), "{found:?}");
    }
    check(&t, made.id, &disk);
}

#[test]
fn notes_of_what_is_gone_cost_no_request_each() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let mut rng = Rng(5);
    for _ in 0..1000 {
        let mut id = Id::NONE;
        freebs_io::Random::fill(&mut rng, &mut id.0);
        let note = Note::new(t.id(), id, note::GONE, 0, [0; 32]);
        store.write(&format!("backups/{id}"), note.as_bytes().to_vec());
    }
    let count = |what: &dyn Fn()| {
        store.plan(None);
        what();
        store.gets()
    };
    let gets = [
        count(&|| assert_eq!(ids(&t), [made.id])),
        count(&|| assert_eq!(finish(freebs_backup::resolve(&t, &made.id.to_string()[..4])).expect("found"), made.id)),
        count(&|| assert_eq!(verified(&t, 0).backups, 1)),
        count(&|| drop(finish(prune(&t, &Pruning::default())).expect("pruned"))),
        count(&|| drop(backup(&t, &disk, 1, 200).expect("a backup"))),
    ];
    assert!(gets.iter().all(|n| *n < 10), "{gets:?}");
}

#[test]
fn a_target_with_more_notes_than_backups_can_be_is_used() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    for n in 0..=freebs_backup::limits::BACKUPS_MAX as u128 {
        store.write(&format!("backups/{}", Id((n + 1).to_be_bytes())), vec![0; 128]);
    }
    check(&t, finish(freebs_backup::resolve(&t, &made.id.to_string()[..8])).expect("found"), &disk);
    finish(delete(&t, made.id, 0, false)).expect("deleted");
    assert_eq!(finish(list(&t)).expect("a list").backups.len(), 0);
}

#[test]
fn a_damaged_backup_that_is_deleted_does_not_stop_a_prune() {
    let store = Memory::new();
    let t = target(&store, 1);
    let disk = Disk::new(8 * BLOCK, &[(0, 2)]);
    let made = backup(&t, &disk, 1, 100).expect("a backup").manifest;
    let next = backup(&t, &disk, 1, 200).expect("a backup").manifest;
    store.plan(Some(Fault::KillBehind(2)));
    backup(&t, &Disk::new(8 * BLOCK, &[(0, 4)]), 2, 100).expect_err("killed");
    store.plan(None);
    let key = format!("backups/{}", made.id);
    let mut bad = store.read(&key);
    bad[200] ^= 1;
    store.write(&key, bad);
    finish(delete(&t, made.id, 0, true)).expect("deleted");
    let before = store.keys();
    let how = Pruning { grace_ms: 1 << 40, ..Pruning::default() };
    let pruned = finish(prune(&t, &how)).expect("it waits for the create");
    assert_eq!((pruned.waiting, pruned.objects, pruned.kept), (1, 0, 3));
    assert_eq!(before, store.keys());
    store.wait(1000);
    let pruned = finish(prune(&t, &Pruning { grace_ms: 10, ..how })).expect("pruned");
    assert_eq!((pruned.waiting, pruned.objects, pruned.backups), (0, 1, 1));
    check(&t, next.id, &disk);
}

//! Damage, and what others put there: found, named, refused.

use crate::world::*;
use freebs_backup::format::Note;
use freebs_backup::{
    Manifest, Pruning, Target, Unwatched, Verified, Verifying, delete, list, object_key, open, prune, restore, verify,
};
use freebs_types::{ErrorKind, Result};

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
    for (at, word) in [(4, "version"), (20, "checksum"), (0, "does not begin")] {
        let mut bad = good.clone();
        bad[at] ^= 3;
        made.write("freebs-backup", bad);
        let e = finish(Target::open(made.store(), None, Box::new(Rng(1)), true)).err().expect("refused");
        assert!(e.text.contains(word), "{e}");
    }
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
    // A note of another backup in the place of a manifest is damage, not an end.
    let next = backup(&t, &disk, 1, 200).expect("a backup").manifest;
    let gone = store.read(&format!("backups/{}", made.id));
    assert!(Note::is_one(&gone));
    store.write(&format!("backups/{}", next.id), gone);
    assert!(finish(list(&t)).unwrap().backups[0].details.is_err());
}

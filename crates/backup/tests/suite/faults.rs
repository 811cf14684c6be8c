//! A create that fails or is killed at each of its requests leaves no backup in the list, and the next one goes on.

use crate::world::*;
use freebs_backup::{Pruning, prune};
use freebs_types::ErrorKind;
use std::collections::BTreeSet;

fn disk() -> Disk {
    Disk::new(20 * BLOCK, &[(0, 1), (1, 2), (2, 1), (7, 3), (12, 5), (19, 4)])
}

/// Puts of a create that nothing disturbs.
fn puts() -> u64 {
    let store = Memory::new();
    let t = target(&store, 1);
    store.plan(None);
    backup(&t, &disk(), 1, 100).expect("a backup");
    store.puts()
}

#[test]
fn killed_at_every_put_it_goes_on_and_sends_nothing_twice() {
    let all = puts();
    // The note, five blocks (two are the same), a page, the manifest.
    assert_eq!(all, 8);
    let kinds = [Fault::FailPut, Fault::KillBefore, Fault::KillBehind];
    for (kind, n) in kinds.into_iter().flat_map(|k| (1..=all).map(move |n| (k, n))) {
        let fault = kind(n);
        let store = Memory::new();
        let t = target(&store, 1);
        store.plan(Some(fault));
        let e = backup(&t, &disk(), 1, 100).expect_err("it was disturbed");
        assert_eq!(e.kind, ErrorKind::Retry, "{fault:?}: {e}");
        let there = store.keys();
        // Prune takes nothing at once, because the create may go on.
        store.plan(None);
        let pruned = finish(prune(&t, &Pruning { grace_ms: 1000, ..Pruning::default() })).expect("pruned");
        assert_eq!(pruned.objects, 0, "{fault:?}");
        if fault == Fault::KillBehind(all) {
            assert_eq!(ids(&t).len(), 1, "the manifest was there");
            continue;
        }
        assert!(ids(&t).is_empty(), "{fault:?}");
        store.plan(None);
        let made = backup(&t, &disk(), 1, 200).expect("it goes on");
        check(&t, made.manifest.id, &disk());
        let before = there.iter().filter(|k| k.starts_with("blocks/")).count() as u64;
        assert_eq!(made.resumed, before, "{fault:?}");
        // The objects that were missing, and a note and a manifest.
        assert_eq!(store.puts(), all - before, "{fault:?}");
        assert_eq!(ids(&t), [made.manifest.id]);
        assert!(store.keys().iter().all(|k| !k.starts_with("creates/")), "no note is left");
        // The volume changed between the two runs: what the first one stored in vain is taken away.
        let named = finish(prune(&t, &Pruning::default())).expect("pruned");
        assert_eq!((named.objects, named.kept), (0, 6), "{fault:?}");
    }
}

#[test]
fn what_an_interrupted_run_stored_of_another_state_is_pruned() {
    let store = Memory::new();
    let t = target(&store, 1);
    store.plan(Some(Fault::KillBehind(6)));
    backup(&t, &disk(), 1, 100).expect_err("killed");
    store.plan(None);
    let mut changed = disk();
    changed.blocks.insert(7, 1001);
    changed.blocks.remove(&12);
    let made = backup(&t, &changed, 1, 200).expect("it goes on");
    check(&t, made.manifest.id, &changed);
    let pruned = finish(prune(&t, &Pruning::default())).expect("pruned");
    assert_eq!((pruned.objects, pruned.kept), (2, 5));
    check(&t, made.manifest.id, &changed);
}

#[test]
fn an_answer_that_is_lost_is_no_conflict() {
    let all = puts();
    for n in 1..=all {
        let store = Memory::new();
        let t = target(&store, 1);
        store.plan(Some(Fault::LoseAnswer(n)));
        let made = backup(&t, &disk(), 1, 100);
        // Note and manifest are put if they are not there: the store's client repeats it and meets its own object.
        assert_eq!(made.is_ok(), n == 1 || n == all, "{n}");
        store.plan(None);
        if let Ok(made) = made {
            check(&t, made.manifest.id, &disk());
        } else {
            check(&t, backup(&t, &disk(), 1, 200).expect("it goes on").manifest.id, &disk());
        }
        assert_eq!(ids(&t).len(), 1);
    }
    // The marker of a new target.
    let store = Memory::new();
    store.plan(Some(Fault::LoseAnswer(1)));
    assert!(target(&store, 1).is_new());
}

#[test]
fn a_listing_that_breaks_off_is_never_taken_for_a_whole_one() {
    let store = Memory::new();
    let t = target(&store, 1);
    let first = backup(&t, &disk(), 1, 100).expect("a backup").manifest.id;
    store.plan(Some(Fault::KillBehind(3)));
    backup(&t, &Disk::new(9 * BLOCK, &[(0, 9), (1, 11)]), 2, 100).expect_err("killed");
    let before = store.keys();
    let mut failed = BTreeSet::new();
    for n in 1..20 {
        for what in 0..3 {
            store.plan(Some(Fault::CutListing(n)));
            let done = match what {
                0 => finish(prune(&t, &Pruning { grace_ms: 1 << 40, ..Pruning::default() })).map(drop),
                1 => finish(freebs_backup::list(&t)).map(drop),
                _ => backup(&t, &disk(), 1, 200).map(drop),
            };
            if let Err(e) = done {
                assert_eq!(e.kind, ErrorKind::Retry, "{e}");
                failed.insert((what, n));
            }
            store.plan(None);
            check(&t, first, &disk());
        }
    }
    for key in before.iter().filter(|k| k.starts_with("blocks/")) {
        assert!(store.keys().contains(key), "{key} was taken away");
    }
    assert!([0, 1, 2].iter().all(|w| failed.contains(&(*w, 1)) && failed.contains(&(*w, 2))), "{failed:?}");
}

#[test]
fn a_target_that_becomes_another_one_gets_no_manifest() {
    for change in 0..3 {
        let store = Memory::new();
        let t = target(&store, 1);
        let disk = disk();
        let order = order(1, 100);
        let mut task: Task<'_, _> = Box::pin(freebs_backup::create(&t, &disk, &order, &freebs_backup::Unwatched));
        for _ in 0..6 {
            assert!(poll(&mut task).is_none());
        }
        let note = store.keys().into_iter().find(|k| k.starts_with("creates/")).expect("it is under way");
        match change {
            0 => {
                store.remove("freebs-backup");
                store.remove("freebs-backup-copy");
            }
            1 => {
                let other = Memory::new();
                drop(target(&other, 2));
                store.write("freebs-backup", other.read("freebs-backup"));
            }
            _ => store.remove(&note),
        }
        let e = finish(task).expect_err("it was changed");
        assert!(e.kind == ErrorKind::Retry && e.text.contains("begin again"), "{e}");
        assert!(store.keys().iter().all(|k| !k.starts_with("backups/")));
    }
}

#[test]
fn a_conflict_with_nothing_there_is_tried_again() {
    let all = puts();
    let store = Memory::new();
    let t = target(&store, 1);
    store.plan(Some(Fault::Conflict(all)));
    let made = backup(&t, &disk(), 1, 100).expect("a backup").manifest;
    check(&t, made.id, &disk());
    // One that does not end.
    store.plan(Some(Fault::Conflicts(2)));
    let e = backup(&t, &disk(), 2, 200).expect_err("nothing can be put");
    assert!(e.kind == ErrorKind::Retry && !e.text.contains("given up"), "{e}");
    store.plan(Some(Fault::Conflicts(1)));
    store.wait(1000);
    let how = Pruning { grace_ms: 10, ..Pruning::default() };
    let e = finish(prune(&t, &how)).expect_err("whether the create has ended can't be known");
    assert!(e.kind == ErrorKind::Retry && !e.text.contains("another prune"), "{e}");
    store.plan(None);
    assert_eq!(finish(prune(&t, &how)).expect("pruned").given_up.len(), 1);
    check(&t, made.id, &disk());
}

#[test]
fn what_is_listed_and_cant_be_found_is_not_done_without() {
    let store = Memory::new();
    let t = target(&store, 1);
    let first = backup(&t, &disk(), 1, 100).expect("a backup").manifest.id;
    let second = backup(&t, &disk(), 1, 200).expect("a backup").manifest.id;
    finish(freebs_backup::delete(&t, first, 0, false)).expect("deleted");
    let before = store.keys();
    let mut wrong = Vec::new();
    let manifest = [format!("backups/{second}")];
    store.hide(&manifest);
    wrong.extend(finish(freebs_backup::list(&t)).is_ok().then_some("a list without a backup"));
    wrong.extend(finish(prune(&t, &Pruning::default())).is_ok().then_some("a prune without a backup"));
    store.hide(&["freebs-backup".to_owned(), "freebs-backup-copy".to_owned()]);
    wrong.extend(finish(prune(&t, &Pruning::default())).is_ok().then_some("a prune without a marker"));
    store.hide(&[]);
    let gone: Vec<String> = before.iter().filter(|k| !store.keys().contains(k)).cloned().collect();
    assert!(wrong.is_empty() && gone.is_empty(), "{wrong:#?}\n{gone:#?}");
    check(&t, second, &disk());
}

#[test]
fn a_disk_of_zeroes_gives_signs_of_life() {
    let store = Memory::new();
    let t = target(&store, 1);
    store.plan(None);
    let pages = 5;
    let disk = Disk::new(pages * freebs_backup::limits::PAGE_COVERS, &[]);
    finish(freebs_backup::create(&t, &disk, &order(1, 100), &Lively)).expect("a backup");
    // And its note, and its manifest.
    assert!(store.puts() >= pages + 2, "{}", store.puts());
}

//! A directory as a target.

use crate::world::*;
use freebs_backup::{Keys, Place, Pruning, Target, Unwatched, create};
use freebs_types::ErrorKind;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

#[test]
fn a_directory_is_a_target_and_half_written_files_are_not_seen() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("backups");
    let place = Place::parse(path.to_str().expect("a plain path")).expect("a place");
    assert_eq!(place.open(false).err().expect("not there").kind, ErrorKind::NotFound);
    let disk = Disk::new(5 * BLOCK, &[(0, 2), (4, 3)]);
    runtime().block_on(async {
        let store = place.open(true).expect("made");
        // As on a new file system.
        std::fs::create_dir(path.join("lost+found")).expect("a directory");
        let t = Target::open(store, None, Box::new(Rng(1)), true).await.expect("a target");
        let made = create(&t, &disk, &order(1, 100), &Unwatched).await.expect("a backup").manifest;
        // The leavings of a client that is killed while it writes.
        let manifest = path.join("backups").join(made.id.to_string());
        std::fs::copy(&manifest, format!("{}#1", manifest.display())).expect("room");
        std::fs::copy(&manifest, path.join("backups").join(format!("{}#7", "a".repeat(32)))).expect("room");
        let listed = freebs_backup::list(&t).await.expect("a list").backups;
        assert!(listed.len() == 1 && listed[0].id == made.id);
        let to = Written::new(disk.size);
        freebs_backup::restore(&t, &made, &to, &Unwatched).await.expect("restored");
        to.check(&disk);
        freebs_backup::delete(&t, made.id, 0, false).await.expect("deleted");
        let pruned = freebs_backup::prune(&t, &freebs_backup::Pruning::default()).await.expect("pruned");
        assert_eq!((pruned.objects, pruned.kept), (3, 0));
    });
    // Not below what is not there, and not in place of a file.
    let deep = Place::parse(dir.path().join("a/b").to_str().expect("plain")).expect("a place");
    assert!(deep.open(true).err().expect("refused").text.contains("mounted"));
    let file = dir.path().join("file");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), &file).expect("a file");
    let e = Place::Directory(file).open(true).err().expect("refused");
    assert!(e.text.contains("is no directory"), "{e}");
}

/// Puts a link that leads nowhere in the place of a file; the file is beside it.
fn hide(path: &std::path::Path) {
    std::fs::rename(path, path.with_extension("away")).expect("moved");
    std::os::unix::fs::symlink("/nowhere/that/is/mounted", path).expect("a link");
}

fn show(path: &std::path::Path) {
    std::fs::remove_file(path).expect("the link");
    std::fs::rename(path.with_extension("away"), path).expect("moved");
}

#[test]
fn a_manifest_that_cant_be_looked_at_stops_a_prune_of_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Place::Directory(dir.path().into()).open(true).expect("opened");
    let disk = Disk::new(5 * BLOCK, &[(0, 2), (4, 3)]);
    runtime().block_on(async {
        let t = Target::open(store, None, Box::new(Rng(1)), true).await.expect("a target");
        let first = create(&t, &disk, &order(1, 100), &Unwatched).await.expect("a backup").manifest.id;
        let second = create(&t, &disk, &order(1, 200), &Unwatched).await.expect("a backup").manifest.id;
        freebs_backup::delete(&t, first, 0, false).await.expect("deleted");
        let manifest = dir.path().join("backups").join(second.to_string());
        hide(&manifest);
        let listed = freebs_backup::list(&t).await;
        let pruned = freebs_backup::prune(&t, &Pruning::default()).await;
        show(&manifest);
        let how = freebs_backup::Verifying { backup: None, of_million: 1_000_000 };
        let found = freebs_backup::verify(&t, &how, &Unwatched).await.expect("verified");
        assert!(found.broken.is_empty() && pruned.is_err() && listed.is_err(), "{found:?}\n{pruned:?}\n{listed:?}");
        // All is there again.
        let pruned = freebs_backup::prune(&t, &Pruning::default()).await.expect("pruned");
        assert_eq!((pruned.objects, pruned.kept, pruned.backups), (0, 3, 1));
    });
}

#[test]
fn what_a_directory_names_and_cant_be_looked_at_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Place::Directory(dir.path().into()).open(true).expect("opened");
    let disk = Disk::new(5 * BLOCK, &[(0, 2), (4, 3)]);
    runtime().block_on(async {
        let t = Target::open(store, None, Box::new(Rng(1)), true).await.expect("a target");
        let made = create(&t, &disk, &order(1, 100), &Unwatched).await.expect("a backup").manifest.id;
        let at = |key: &str| dir.path().join(key);
        let made = made.to_string();
        let some = format!("{}0", "a".repeat(31));
        std::fs::create_dir_all(at("creates")).expect("made");
        std::fs::create_dir_all(at("deleted")).expect("made");
        for folder in ["creates", "deleted"] {
            std::fs::copy(at("freebs-backup"), at(folder).join(&some)).expect("room");
        }
        let digits =
            std::fs::read_dir(at("blocks").join(&made)).expect("read").next().expect("one").expect("one").path();
        let object = std::fs::read_dir(&digits).expect("read").next().expect("one").expect("one").path();
        let places = [
            at("creates").join(&some),
            at("deleted").join(&some),
            at("backups"),
            at("blocks").join(&made),
            digits,
            object,
        ];
        let mut ignored = Vec::new();
        for place in places {
            hide(&place);
            let how = Pruning { is_dry: true, grace_ms: 1 << 40, mutant: None };
            ignored.extend(freebs_backup::prune(&t, &how).await.is_ok().then(|| place.clone()));
            show(&place);
        }
        assert!(ignored.is_empty(), "{ignored:#?}");
        // Names that can't be of a target may be as they like.
        for strange in ["backups/README", "creates/README", "blocks/README", "blocks/README#1"] {
            std::os::unix::fs::symlink("/nowhere", at(strange)).expect("a link");
        }
        std::os::unix::fs::symlink("..", at("backups/loop")).expect("a link");
        let how = Pruning { is_dry: true, grace_ms: 1 << 40, mutant: None };
        let pruned = freebs_backup::prune(&t, &how).await.expect("pruned");
        assert_eq!((pruned.objects, pruned.kept), (0, 3));
    });
}

#[test]
fn a_directory_that_is_unmounted_is_not_taken_for_an_empty_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("backups");
    let store = Place::Directory(path.clone()).open(true).expect("opened");
    let disk = Disk::new(5 * BLOCK, &[(0, 2), (4, 3)]);
    runtime().block_on(async {
        let t = Target::open(store, None, Box::new(Rng(1)), true).await.expect("a target");
        let made = create(&t, &disk, &order(1, 100), &Unwatched).await.expect("a backup").manifest.id;
        std::fs::rename(&path, dir.path().join("away")).expect("moved");
        std::fs::create_dir(&path).expect("the place that it was mounted at");
        let listed = freebs_backup::list(&t).await;
        assert!(listed.is_err(), "{listed:?}");
        assert!(freebs_backup::open(&t, made).await.is_err_and(|e| e.kind == ErrorKind::Retry));
        assert!(create(&t, &disk, &order(1, 200), &Unwatched).await.is_err());
        assert_eq!(std::fs::read_dir(&path).expect("read").count(), 0, "nothing is written there");
    });
}

#[test]
fn without_being_told_to_an_empty_directory_is_not_made_a_target() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Place::Directory(dir.path().into()).open(false).expect("opened");
    let e = runtime().block_on(Target::open(store, None, Box::new(Rng(1)), false)).err().expect("refused");
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("mounted"), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
}

const MARKERS: [&str; 2] = ["freebs-backup", "freebs-backup-copy"];

/// Takes the markers of a target away.
struct Away<'a>(&'a std::path::Path);

impl freebs_backup::Watch for Away<'_> {
    fn reached(&self, _: u64) {
        for name in MARKERS.map(|name| self.0.join(name)) {
            if !name.is_symlink() {
                hide(&name);
            }
        }
    }
}

#[test]
fn a_create_that_goes_on_syncs_the_directories_of_the_one_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Place::Directory(dir.path().into()).open(true).expect("opened");
    let disk = Disk::new(5 * BLOCK, &[(0, 2), (4, 3)]);
    runtime().block_on(async {
        let t = Target::open(store, None, Box::new(Rng(1)), true).await.expect("a target");
        // One that ends behind its blocks, because the target is not there any more.
        create(&t, &disk, &order(1, 100), &Away(dir.path())).await.expect_err("interrupted");
        for name in MARKERS {
            show(&dir.path().join(name));
        }
        let owner = std::fs::read_dir(dir.path().join("blocks")).expect("read").next().expect("one").expect("one");
        // A directory that can't be synced.
        let unsynced = owner.path().join("00");
        std::os::unix::fs::symlink("/proc/self/fdinfo", &unsynced).expect("a link");
        let made = create(&t, &disk, &order(1, 200), &Unwatched).await;
        let listed = freebs_backup::list(&t).await.expect("a list").backups;
        assert!(made.is_err() && listed.is_empty(), "{listed:?}");
        std::fs::remove_file(&unsynced).expect("removed");
        let made = create(&t, &disk, &order(1, 300), &Unwatched).await.expect("it goes on");
        assert_eq!(made.resumed, 3);
    });
}

#[test]
fn a_key_file_is_read_and_nothing_else_is_taken_for_one() {
    let text = Keys::new_file(&mut Rng(1));
    let keys = Keys::of_file(&text).expect("a key");
    assert_eq!(keys.id(), Keys::of_file(&format!("  {}\n", text.trim())).expect("a key").id());
    assert_ne!(keys.id(), Keys::of_file(&Keys::new_file(&mut Rng(2))).expect("a key").id());
    for at in 0..text.len() - 1 {
        let mut bad = text.to_string().into_bytes();
        bad[at] = if bad[at] == b'1' { b'2' } else { b'1' };
        let bad = String::from_utf8(bad).expect("letters");
        assert!(Keys::of_file(&bad).is_err(), "byte {at}");
    }
    for bad in ["", "freebs-backup-key-1", &text[..50]] {
        let e = Keys::of_file(bad).expect_err(bad);
        assert!(e.kind == ErrorKind::Invalid && e.text.contains("freebs backup key"), "{e}");
    }
}

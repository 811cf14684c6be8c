//! A directory as a target.

use crate::world::*;
use freebs_backup::{Keys, Place, Target, Unwatched, create};
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

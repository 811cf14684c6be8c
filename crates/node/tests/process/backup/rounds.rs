//! A file system is backed up, changed, backed up again, damaged, restored.

use super::*;
use crate::support::cluster::scratch;
use crate::support::nbd::Client;
use crate::support::tools::{have, run, say};
use crate::support::{Weight, shared, turn};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of the volume.
const SIZE: u64 = 96 * MIB;
/// Files of a MiB in it.
const FILES: u64 = 64;

/// An ext4 image with files that can't be compressed.
fn ext4(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    for n in 0..FILES {
        std::fs::write(tree.join(format!("file{n}")), noise(n + 1, MIB as usize)).expect("room");
    }
    let image = dir.join("ext4.img");
    File::create(&image).and_then(|f| f.set_len(SIZE)).expect("a sparse file");
    run("mke2fs", ["-q", "-t", "ext4", "-d", text(&tree), text(&image)]);
    image
}

fn write(c: &Cluster, volume: &str, file: &Path, at: u64, bytes: &[u8]) {
    let mut client = Client::attach(&c.place, volume);
    client.write(at, bytes);
    drop(client);
    File::options().write(true).open(file).and_then(|f| f.write_all_at(bytes, at)).expect("the same in the file");
    c.json(&["volume", "detach", volume, "--force"]);
}

#[test]
fn an_ext4_image_comes_back_from_any_of_its_backups() {
    if !have(&["mke2fs", "e2fsck"]) {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let dir = scratch();
    let target = dir.path().join("backups");
    let target = text(&target);
    let image = ext4(dir.path());
    c.json(&["volume", "import", "bk", text(&image)]);
    let first = backup(&c, &["create", "bk", target]);
    let states = |n: u64| dir.path().join(format!("state{n}.img"));
    std::fs::copy(&image, states(0)).expect("room");
    let mut ids = vec![word(&first, "backup").to_owned()];
    // A hundredth of the data, in one piece.
    for n in 1..3 {
        write(&c, "bk", &image, 30 * MIB + n * 3_000_000 / 4096 * 4096, &noise(100 + n, (FILES * MIB / 100) as usize));
        std::fs::copy(&image, states(n)).expect("room");
        let next = backup(&c, &["create", "bk", target]);
        let (sent, all) = (next["sent"].as_u64().expect("a number"), first["sent"].as_u64().expect("a number"));
        say(&format!(
            "incremental backup after changing 1 %: {sent} of {all} bytes, {:.2} %",
            100.0 * sent as f64 / all as f64
        ));
        assert!(40 * sent < all, "less than 2.5 %");
        assert_eq!(word(&next, "parent"), ids.last().expect("one before"));
        let read = next["read"].as_u64().expect("a number");
        assert!(read <= 2 * (MIB / 2) + FILES * MIB / 100, "only blocks that were written to are read: {next}");
        assert_eq!(snapshots(&c, "bk"), [word(&next, "snapshot")], "one to compare with");
        ids.push(word(&next, "backup").to_owned());
    }
    assert_eq!(listed(&c, target), ids);
    assert_eq!(backup(&c, &["verify", target])["damaged"], 0);
    for (n, id) in ids.iter().enumerate() {
        restores_to(&c, target, &id[..8], "bk-back", SIZE, &states(n as u64));
    }
    // The one in the middle goes.
    backup(&c, &["delete", target, &ids[1]]);
    let pruned = backup(&c, &["prune", target]);
    assert!(pruned["objects"].as_u64() > Some(0) && pruned["backups"] == 1, "{pruned}");
    let middle = ids.remove(1);
    assert_eq!(listed(&c, target), ids);
    refused(&tried(&c, &["show", target, &middle]), &["there is no backup", "backup list"]);
    for (n, id) in [(0, &ids[0]), (2, &ids[1])] {
        restores_to(&c, target, id, "bk-back", SIZE, &states(n));
    }
    let back = dir.path().join("back.img");
    backup(&c, &["restore", target, &ids[0], "bk-fs"]);
    c.json(&["volume", "export", "bk-fs", text(&back)]);
    run("e2fsck", ["-fn", text(&back)]);
    damaged(&c, target, &ids);
}

/// One flipped bit is found by verify and by restore, and nothing of a volume is left.
fn damaged(c: &Cluster, target: &str, ids: &[String]) {
    let objects = files(&Path::new(target).join("blocks"));
    let mut rng = Rng::new(7);
    for _ in 0..3 {
        let object = &objects[rng.next() as usize % objects.len()];
        let good = std::fs::read(object).expect("an object");
        let mut bad = good.clone();
        let at = rng.next() as usize % bad.len();
        bad[at] ^= 1 << (rng.next() % 8);
        std::fs::write(object, bad).expect("room");
        let name = object.file_name().and_then(|n| n.to_str()).expect("hexadecimal digits");
        let out = tried(c, &["verify", target]);
        refused(&out, &["DAMAGED", "BROKEN", name, "--full"]);
        let broken: Vec<&String> =
            ids.iter().filter(|id| told(&out).contains(&format!("BROKEN backup {id}"))).collect();
        assert!(!broken.is_empty());
        refused(&tried(c, &["restore", target, broken[0], "bk-broken"]), &[name, "--full", "was not made"]);
        assert!(volumes(c, "bk-broken").is_empty());
        std::fs::write(object, good).expect("room");
        assert_eq!(backup(c, &["verify", target, "--sample", "10%"])["damaged"], 0);
    }
}

/// Somebody writes all the time, two blocks far from each other, one after the other: the second is never ahead.
#[test]
fn a_volume_in_use_is_backed_up_as_it_was_at_one_instant() {
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let dir = scratch();
    let target = dir.path().join("t");
    let target = text(&target);
    let volume = c.volume("64M", &["--shards", "4"]);
    let (first, second) = (3 * MIB, 50 * MIB);
    let mut client = Client::attach(&c.place, &volume);
    client.write(20 * MIB, &noise(1, MIB as usize));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let made = std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut n = 0u64;
            while !is_over() {
                n += 1;
                for at in [first, second] {
                    client.write(at, &n.to_le_bytes().repeat(512));
                }
            }
            n
        });
        let made: Vec<Value> = (0..4).map(|_| backup(&c, &["create", &volume, target])).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let n = writer.join().expect("it writes");
        say(&format!("{} backups while {n} pairs were written", made.len()));
        assert!(n > 10);
        made
    });
    let mut last = 0;
    for one in &made {
        backup(&c, &["restore", target, word(one, "backup"), "bk-use"]);
        let file = exported(&c, "bk-use");
        let number = |at: u64| {
            let mut bytes = [0; 8];
            File::open(&file).and_then(|f| f.read_exact_at(&mut bytes, at)).expect("the export");
            u64::from_le_bytes(bytes)
        };
        let (a, b) = (number(first), number(second));
        assert!(a == b || a == b + 1, "{a} {b}");
        assert!(a >= last && number(20 * MIB) != 0, "{a} after {last}");
        last = a;
        std::fs::remove_file(&file).expect("our own file");
        c.json(&["volume", "delete", "bk-use", "--force"]);
    }
    assert!(made[1..].iter().all(|one| one["read"].as_u64() <= Some(2 * MIB)), "{made:?}");
    // A snapshot of somebody's own: it stays, and its backup is its content.
    let place = format!("{volume}@mine");
    c.json(&["snapshot", "create", &volume, "--name", "mine"]);
    client.write(first, &[0xff; 4096]);
    let one = backup(&c, &["create", &place, target]);
    assert_eq!((word(&one, "volume"), word(&one, "snapshot")), (place.as_str(), "mine"));
    let file = dir.path().join("mine.raw");
    c.json(&["volume", "export", &place, text(&file)]);
    restores_to(&c, target, word(&one, "backup"), "bk-use", 64 * MIB, &file);
    assert!(snapshots(&c, &volume).contains(&"mine".to_owned()));
}

#[test]
fn an_encrypted_backup_comes_back_with_its_key_only() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let [target, key, other] = ["t", "key", "other"].map(|n| text(&dir.path().join(n)).to_owned());
    let file = dir.path().join("file");
    std::fs::write(&file, noise(3, 5 << 20)).expect("room");
    c.json(&["volume", "import", "bk-secret", text(&file)]);
    backup(&c, &["key", &key]);
    refused(&tried(&c, &["key", &key]), &["is there already"]);
    backup(&c, &["key", &other]);
    let made =
        backup(&c, &["create", "bk-secret", &target, "--key", &key, "--lock-until", "30days", "--rate", "50MiB/s"]);
    assert!(word(&made, "locked_until").ends_with('Z'));
    for words in [&["list", &target][..], &["list", &target, "--key", &other], &["create", "bk-secret", &target]] {
        refused(&tried(&c, words), &["encrypted", "--key"]);
    }
    let id = word(&made, "backup");
    refused(&tried(&c, &["delete", &target, id, "--key", &key]), &["is locked"]);
    let restored = backup(&c, &["restore", &target, id, "bk-secret2", "--key", &key, "--copies", "2"]);
    assert_eq!(restored["size"], 5 << 20);
    assert_eq!(first_difference(&file, &exported(&c, "bk-secret2"), 5 << 20), None);
    assert_eq!(backup(&c, &["verify", &target, "--key", &key])["damaged"], 0);
}

//! Targets and volumes that can't be used.

use super::*;
use crate::support::cluster::scratch;
use crate::support::tools::{command, output, skip};
use crate::support::{PATIENCE, Weight, shared, turn};

#[test]
fn what_is_no_target_is_refused_with_the_way_out() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let volume = c.volume("8M", &[]);
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    std::fs::write(path("file"), "x").expect("room");
    std::fs::create_dir(path("photos")).expect("a directory");
    std::fs::write(path("photos/one"), "x").expect("room");
    refused(&tried(&c, &["create", &volume, &path("file")]), &["is no directory"]);
    refused(&tried(&c, &["create", &volume, &path("photos")]), &["other things in it", "'one'", "an empty or a new"]);
    refused(&tried(&c, &["create", &volume, &path("not/there")]), &["mounted"]);
    for command in ["list", "verify", "prune"] {
        refused(&tried(&c, &[command, &path("nowhere")]), &["is not there"]);
        refused(&tried(&c, &[command, &path("photos")]), &["there are no backups", "freebs-backup"]);
    }
    refused(&tried(&c, &["create", "no-such-volume", &path("t")]), &["no-such-volume"]);
    let key = path("file");
    refused(&tried(&c, &["create", &volume, &path("t"), "--key", &key]), &["this is no key file", "backup key"]);
    let none = format!("{volume}@none");
    refused(&tried(&c, &["create", &none, &path("t")]), &["there is no snapshot", &none, "snapshot list"]);
    assert!(listed(&c, &path("t")).is_empty() && snapshots(&c, &volume).is_empty());
    let made = backup(&c, &["create", &volume, &path("t")]);
    assert_eq!((&made["blocks"], listed(&c, &path("t")).len()), (&Value::from(0), 1));
    let id = word(&made, "backup");
    refused(&tried(&c, &["restore", &path("t"), id, "bk-small", "--size", "4M"]), &["does not fit", "--size"]);
    refused(&tried(&c, &["restore", &path("t"), "0000", "bk-small"]), &["there is no backup 0000"]);
    // Another version of the format.
    let mut marker = std::fs::read(path("t/freebs-backup")).expect("the marker");
    marker[4] = 9;
    std::fs::write(path("t/freebs-backup"), marker).expect("room");
    refused(&tried(&c, &["list", &path("t")]), &["version 9", "use the program that made it"]);
}

/// A file system of some MiB, as long as the value is there.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, options: &str) -> Option<Self> {
        std::fs::create_dir(&at).expect("a directory");
        let out = output(command("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&at), PATIENCE);
        out.status.success().then_some(Self(at))
    }

    fn again(&self, options: &str) {
        let options = format!("remount,{options}");
        let out = output(command("mount").args(["-o", &options]).arg(&self.0), PATIENCE);
        assert!(out.status.success(), "{}", told(&out));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = output(command("umount").arg("-l").arg(&self.0), PATIENCE);
    }
}

#[test]
fn a_target_that_is_full_or_read_only_takes_the_rest_later() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let Some(small) = Small::mount(dir.path().join("small"), "size=5m") else {
        return skip("a file system can't be mounted here");
    };
    let target = text(&small.0).to_owned();
    let file = dir.path().join("file");
    std::fs::write(&file, noise(8, 8 << 20)).expect("room");
    c.json(&["volume", "import", "bk-full", text(&file)]);
    refused(&tried(&c, &["create", "bk-full", &target]), &["the target is full", "not sent again"]);
    assert!(listed(&c, &target).is_empty());
    small.again("size=30m,ro");
    refused(&tried(&c, &["create", "bk-full", &target]), &["read-only"]);
    small.again("size=30m,rw");
    let made = backup(&c, &["create", "bk-full", &target]);
    assert!(made["resumed"].as_u64() > Some(0), "{made}");
    restores_to(&c, &target, word(&made, "backup"), "bk-full2", 8 << 20, &file);
}

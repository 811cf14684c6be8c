//! A file system in a snapshot.

use super::*;
use crate::support::cluster::Setup;
use crate::support::image::{AsFile, Mounted};
use crate::support::tools::{self, TOOL_TIME_MAX, can_mount, command, have, run};
use crate::support::{Weight, turn};

/// ext4 is written to while snapshots are taken: a copy of each is whole after its journal is replayed.
#[test]
fn a_file_system_at_work_is_whole_in_each_snapshot() {
    let tools = ["nbdfuse", "losetup", "mount", "mke2fs", "e2fsck", "nbdcopy"];
    if !have(&tools) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { volume: Some("demo:96M"), ..Setup::default() });
    let uri = c.place.uri("demo");
    let image = c.dir().join("empty");
    run("mke2fs", ["-q", "-t", "ext4", "-b", "4096", text(&image), "96M"]);
    run("nbdcopy", ["--flush", text(&image), &uri]);
    let as_file = AsFile::open(&c.dir().join("fuse"), &[&uri]);
    let at = c.dir().join("mnt");
    let stop = AtomicBool::new(false);
    {
        let _mounted = Mounted::new(&as_file.path(), &at);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let file = std::fs::File::create(at.join(format!("file{}", n % 40))).expect("a file");
                    std::os::unix::fs::FileExt::write_all_at(&file, &noise(n, 64 << 10), 0).expect("room");
                    file.sync_all().expect("a durable file");
                    n += 1;
                }
            });
            for n in 0..3 {
                std::thread::sleep(std::time::Duration::from_millis(300));
                snapshot(&c, "demo", &format!("s{n}"));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    drop(as_file);
    for n in 0..3 {
        let copy = c.dir().join(format!("copy{n}"));
        run("nbdcopy", [&c.place.uri(&format!("demo@s{n}")), text(&copy)]);
        // The journal is replayed on the copy; then nothing is left to mend.
        let replayed =
            tools::output(command("e2fsck").args(["-f", "-p", "-E", "journal_only"]).arg(&copy), TOOL_TIME_MAX);
        assert!(replayed.status.code().is_some_and(|s| s <= 1), "s{n}: {}", told(&replayed));
        let checked = tools::output(command("e2fsck").args(["-f", "-n"]).arg(&copy), TOOL_TIME_MAX);
        assert!(checked.status.success(), "s{n}: {}", told(&checked));
    }
    c.stop();
}

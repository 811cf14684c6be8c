//! A backup that is killed at a drawn moment is in no list, and the next one goes on.

use super::*;
use crate::support::cluster::scratch;
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, rounds, shared, turn};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

#[test]
fn a_backup_that_is_killed_anywhere_goes_on() {
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let dir = scratch();
    let file = dir.path().join("file");
    let size = 16 * MIB;
    std::fs::write(&file, noise(5, size as usize)).expect("room");
    c.json(&["volume", "import", "bk-kill", text(&file)]);
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let mut rng = Rng::new(seed);
    let (mut resumed, mut ended) = (0, 0);
    let count = rounds(5, 50);
    for round in 0..count {
        let target = dir.path().join(format!("t{round}"));
        let mut cmd = c.freebs();
        cmd.args(["backup", "create", "bk-kill", text(&target), "--rate", "16M"]);
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = cmd.spawn().expect("it runs");
        // At the first of its objects, and then anywhere in the second that the rate gives it.
        wait_for("the first object, or the end", || {
            let begun = target.join("blocks").exists() || child.try_wait().expect("our own child").is_some();
            begun.then_some(())
        });
        std::thread::sleep(Duration::from_millis(rng.next() % 1000));
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        let before = listed(&c, text(&target));
        let pruned = backup(&c, &["prune", text(&target)]);
        assert!(pruned["objects"] == 0, "what was stored stays for the next one: {pruned}");
        let next = backup(&c, &["create", "bk-kill", text(&target)]);
        assert_eq!(snapshots(&c, "bk-kill").len(), round + 1, "one for each target, those of the killed are gone");
        let now = listed(&c, text(&target));
        match before.as_slice() {
            [] => {
                assert_eq!(now, [word(&next, "backup")], "seed {seed}");
                resumed += next["resumed"].as_u64().expect("a number");
                let sent = next["sent"].as_u64().expect("a number");
                assert!(sent < size + MIB && next["new_blocks"] == 32, "{next}");
            }
            [whole] => {
                ended += 1;
                assert!(now.len() == 2 && word(&next, "parent") == whole, "seed {seed}: {next}");
            }
            more => panic!("{more:?}"),
        }
        assert_eq!(backup(&c, &["verify", text(&target)])["damaged"], 0, "seed {seed}");
        restores_to(&c, text(&target), word(&next, "backup"), "bk-kill2", size, &file);
        let last = backup(&c, &["prune", text(&target), "--grace", "0s"]);
        assert!(last["objects"] == 0 && last["under_way"] == serde_json::json!([]), "{last}");
        std::fs::remove_dir_all(&target).expect("our own directory");
    }
    say(&format!("{count} kills: {resumed} objects were not sent again, {ended} backups had ended (seed {seed})"));
    assert!(resumed > 0 || ended == count, "some of them go on");
}

#[test]
fn a_backup_or_restore_that_is_stopped_leaves_nothing_in_lists() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let (file, target) = (dir.path().join("file"), dir.path().join("t"));
    let size = 8 * MIB;
    std::fs::write(&file, noise(6, size as usize)).expect("room");
    c.json(&["volume", "import", "bk-stop", text(&file)]);
    let stopped = |words: &[&str], is_begun: &dyn Fn() -> bool| {
        let mut cmd = c.freebs();
        cmd.arg("backup").args(words).args(["--rate", "1M", "--progress"]);
        let mut child = cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        wait_for("its begin", || is_begun().then_some(()));
        // SAFETY: it takes two numbers; the process is our own child, and was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().expect("a pipe"), &mut said).expect("text");
        assert_eq!(child.wait().expect("our own child").code(), Some(1), "{said}");
        said
    };
    let said = stopped(&["create", "bk-stop", text(&target)], &|| target.join("blocks").exists());
    assert!(said.contains("is in no list"), "{said}");
    assert!(listed(&c, text(&target)).is_empty());
    assert!(snapshots(&c, "bk-stop").is_empty());
    let made = backup(&c, &["create", "bk-stop", text(&target)]);
    assert!(made["resumed"].as_u64() > Some(0), "{made}");
    let id = word(&made, "backup");
    let said =
        stopped(&["restore", text(&target), id, "bk-stop2"], &|| volumes(&c, "bk-stop2") == ["bk-stop2.restoring"]);
    assert!(said.contains("was not made"), "{said}");
    assert!(volumes(&c, "bk-stop2").is_empty());
    restores_to(&c, text(&target), id, "bk-stop2", size, &file);
}

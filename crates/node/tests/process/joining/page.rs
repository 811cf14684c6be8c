//! The README's way from an empty machine to three nodes, run as it stands there, at other addresses.

use crate::support::cluster::{free_ports, freebs, scratch};
use crate::support::tools::{command, output, told, wait_for};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

/// A shell with all that it has begun. The processes end with this value.
struct Shell(Child);

impl Shell {
    fn run(script: &str, dir: &Path, cluster: &str) -> Self {
        let programs = dir.join("programs");
        std::fs::create_dir(&programs).expect("a directory");
        let program = std::fs::canonicalize(freebs().get_program()).expect("the program under test");
        std::os::unix::fs::symlink(program, programs.join("freebs")).expect("a link");
        let path = std::env::var("PATH").unwrap_or_default();
        let log = File::create(dir.join("shell.log")).expect("a log file");
        let mut cmd = command("sh");
        cmd.args(["-c", script]).current_dir(dir).env("FREEBS_CLUSTER", cluster).env("FREEBS_SCRUB_RATE", "8M");
        cmd.env("PATH", format!("{}:{path}", programs.display()));
        let both = log.try_clone().expect("a file");
        cmd.stdin(Stdio::null()).stdout(log).stderr(both).process_group(0);
        Self(cmd.spawn().expect("a shell"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: a system call that takes no memory; the group is this shell's, whose process was not waited for before.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

#[test]
fn the_readme_goes_from_an_empty_machine_to_three_nodes() {
    let _turn = turn(Weight::Light);
    let page = include_str!("../../../../../README.md");
    let lines = page.lines().skip_while(|l| !l.starts_with("    freebs cluster init")).take_while(|l| !l.is_empty());
    let mut script = lines.map(|l| format!("{}\n", l.trim())).collect::<String>();
    assert_eq!((script.matches("node join").count(), script.matches('&').count()), (2, 3), "{script}");
    let base = free_ports(3);
    for i in 0..3 {
        script = script.replace(&format!("127.0.0.1:{}", 7400 + i), &format!("127.0.0.1:{}", base + i));
    }
    let cluster = format!("127.0.0.1:{base}");
    let script = script.replace("init --data a", &format!("init --data a --listen {cluster}"));
    let dir = scratch();
    // The nodes go on when the last line was run: the shell waits for them.
    let _shell = Shell::run(&format!("set -e\n{script}wait\n"), dir.path(), &cluster);
    let log = || std::fs::read_to_string(dir.path().join("shell.log")).unwrap_or_default();
    let mut last = String::new();
    wait_for("three nodes", || {
        let mut cmd = freebs();
        let out = output(cmd.args(["status", "--json", "--cluster", &cluster]), PATIENCE);
        let now = format!("{}\n{}", told(&out), log());
        last.clone_from(&now);
        let status: Value = serde_json::from_slice(&out.stdout).ok()?;
        let up = status["nodes"].as_array()?.iter().filter(|n| n["state"] == "up" && n["votes"] == true).count();
        (up == 3).then_some(())
    });
    assert!(log().contains("good for one node"), "{last}");
    let mut cmd = freebs();
    let made =
        output(cmd.args(["volume", "create", "data", "--size", "64M", "--cluster", &cluster, "--json"]), PATIENCE);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&made)));
    assert_eq!(made["copies"], 3);
}

//! A real file system image goes in by real clients and comes back, with all members there and with one killed.

use crate::support::cluster::{Cluster, Setup};
use crate::support::image::{self, AsFile, Mounted, assert_same_tree};
use crate::support::load::Answers;
use crate::support::nbd::{Client, Op};
use crate::support::tools::{self, can_mount, command, first_difference, have, run, say};
use crate::support::{Raised, Weight, full, turn};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TOOLS: &[&str] = &["nbdcopy", "nbdinfo", "nbdkit", "qemu-img", "mke2fs", "e2fsck", "diff"];

/// Writes that show that it goes on.
const SOME: u64 = 20;

fn tree_bytes() -> u64 {
    if full() { 1 << 30 } else { 48 << 20 }
}

fn setup() -> Setup {
    let (device_size, volume) = if full() { ("8G", "demo:2G") } else { ("768M", "demo:256M") };
    let segment_size = if full() { "16M" } else { "8M" };
    Setup { device_size, segment_size, volume: Some(volume), ..Setup::default() }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A tree and an image of it, below `dir`.
fn make(dir: &Path) -> u64 {
    let tree = dir.join("tree");
    image::tree(&tree, tree_bytes());
    image::ext4(&tree, &dir.join("image"), tree_bytes())
}

/// Reads the volume back and compares its beginning with the image.
fn same_back(c: &Cluster, uri: &str, bytes: u64) {
    let back = c.dir().join("back");
    run("nbdcopy", [uri, text(&back)]);
    let differs = first_difference(&c.dir().join("image"), &back, bytes);
    assert_eq!(differs, None, "what came back differs from what went in at this byte\n{}", c.log());
    let fsck = tools::output(command("e2fsck").args(["-f", "-n"]).arg(&back), tools::TOOL_TIME_MAX);
    assert!(fsck.status.success(), "e2fsck: {}", tools::told(&fsck));
    std::fs::remove_file(back).expect("just made");
}

fn zero(c: &Cluster, bytes: u64) {
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(1 << 30) as u32;
        client.ask(&Op::Zero { at, len, fua: false }).expect("a connection").expect("zeroes");
        at += u64::from(len);
    }
}

#[test]
fn an_image_copied_in_comes_back_and_can_be_mounted() {
    if !have(TOOLS) {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(setup());
    let bytes = make(c.dir());
    let image = c.dir().join("image");
    let uri = c.place.uri("demo");

    let begun = Instant::now();
    run("nbdcopy", ["--flush", text(&image), &uri]);
    say(&format!("measured: nbdcopy of {} MiB in {:.2} s", bytes >> 20, begun.elapsed().as_secs_f64()));
    same_back(&c, &uri, bytes);

    zero(&c, bytes);
    let begun = Instant::now();
    run("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", text(&image), &uri]);
    say(&format!("measured: qemu-img convert in {:.2} s", begun.elapsed().as_secs_f64()));
    same_back(&c, &uri, bytes);

    if have(&["nbdfuse", "losetup", "mount"]) && can_mount() {
        let (as_file, at) = (AsFile::open(&c.dir().join("fuse"), &[&uri]), c.dir().join("mnt"));
        {
            let _mounted = Mounted::new(&as_file.path(), &at);
            assert_same_tree(&c.dir().join("tree"), &at);
            std::fs::write(at.join("written-here"), vec![42; 3 << 20]).expect("the file system can be written");
            std::fs::remove_dir_all(at.join("share")).expect("files can be removed");
        }
        {
            let _mounted = Mounted::new(&as_file.path(), &at);
            assert_eq!(std::fs::read(at.join("written-here")).expect("the file is there"), vec![42; 3 << 20]);
            assert!(!at.join("share").exists());
        }
        drop(as_file);
        let back = c.dir().join("back");
        run("nbdcopy", [&uri, text(&back)]);
        let fsck = tools::output(command("e2fsck").args(["-f", "-n"]).arg(&back), tools::TOOL_TIME_MAX);
        assert!(fsck.status.success(), "e2fsck after the mount: {}", tools::told(&fsck));
    }
    c.verify("demo");
    c.stop();
}

/// Writes 4 KiB at depth 1 into the last mebibyte of the volume until told to stop; when each answer came, and how long
/// it took.
fn probe(c: &Cluster, stop: &AtomicBool, answers: &Answers) -> Vec<(Instant, Duration)> {
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let base = client.size - (1 << 20);
    let mut seen = vec![];
    while !stop.load(Ordering::Relaxed) {
        let at = base + (seen.len() as u64 % 256) * 4096;
        let begun = Instant::now();
        client.write(at, &[seen.len() as u8; 4096]);
        seen.push((begun, begun.elapsed()));
        answers.add();
    }
    seen
}

#[test]
fn a_member_killed_in_mid_copy_is_not_noticed_by_the_client() {
    if !have(TOOLS) {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..setup() });
    let bytes = make(c.dir());
    // Else the kernel writes the image out in the middle of what is measured, to the disk that the nodes use.
    tools::run("sync", ["-f", text(c.dir())]);
    let image = c.dir().join("image");
    let uri = c.place.uri("demo");
    let (_, others) = c.chain("demo");
    let nodes = c.nodes();
    let victim = nodes.iter().find(|(n, _)| *n == others[0]).expect("it is up").1;

    let (stop, answers) = (AtomicBool::new(false), Answers::default());
    // A source that takes its time over each read, so that the copy has a middle on a fast machine, too.
    let delay = if full() { "rdelay=20ms" } else { "rdelay=150ms" };
    let source = ["[", "nbdkit", "--exit-with-parent", "--filter=delay", "file", text(&image), delay, "]"];
    let (killed, seen) = std::thread::scope(|s| {
        // Also when something here panics, so that the prober ends.
        let _raised = Raised(&stop);
        let prober = s.spawn(|| probe(&c, &stop, &answers));
        // As wide as a real client copies by default.
        let copy = s.spawn(|| {
            let mut cmd = command("nbdcopy");
            cmd.args(["--flush", "--requests=16", "--connections=1", "--"]).args(source).arg(&uri);
            tools::output(&mut cmd, tools::TOOL_TIME_MAX)
        });
        std::thread::sleep(Duration::from_millis(if full() { 2500 } else { 350 }));
        assert!(!copy.is_finished(), "the copy was over before the kill");
        let killed = Instant::now();
        c.kill(&[victim]);
        let out = copy.join().expect("no panic");
        answers.more(SOME);
        stop.store(true, Ordering::Relaxed);
        assert!(out.status.success(), "the client saw an error: {}\n{}", tools::told(&out), c.log());
        (killed, prober.join().expect("the prober saw no error"))
    });
    let longest =
        |after: bool| seen.iter().filter(|s| (s.0 + s.1 > killed) == after).map(|s| s.1).max().unwrap_or_default();
    say(&format!(
        "measured: longest stall of a 4 KiB write beside the copy: {:.3} s before the kill of a member, {:.3} s after \
         (promised: 0.2 s)",
        longest(false).as_secs_f64(),
        longest(true).as_secs_f64()
    ));
    for (begun, took) in seen.iter().filter(|s| s.1 > Duration::from_millis(100)) {
        let at = if *begun < killed { -(killed - *begun).as_secs_f64() } else { (*begun - killed).as_secs_f64() };
        say(&format!("  begun {at:+.3} s from the kill: {:.3} s", took.as_secs_f64()));
    }
    same_back(&c, &uri, bytes);

    let data = c.data();
    let out = c.cli(&["node", "start", &others[0], "--data", text(&data)]);
    assert!(out.status.success(), "{}", tools::told(&out));
    c.wait_healthy("demo");
    c.verify("demo");
    same_back(&c, &uri, bytes);
    c.stop();
}

//! The disk under one node fails while all is in use: writes to it end with errors, and the node ends; or they do not end at all.
//! It is missed like one that was killed; nobody waits for it.

use super::rig::VOLUME;
use crate::support::cluster::{Cluster, Setup};
use crate::support::image::Mounted;
use crate::support::nbd::Client;
use crate::support::tools::{can_mount, command, have, run, say, tidies, told, wait_for};
use crate::support::{Weight, turn};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// A client never waits for so much longer, whatever else the machine has to do. What is asked is a second and a half.
const NEVER: Duration = Duration::from_secs(20);

/// A file system in memory, of these bytes.
struct Memory(PathBuf);

impl Memory {
    fn new(at: &Path, bytes: u64) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let size = format!("size={bytes}");
        run("mount", ["-t", "tmpfs", "-o", &size, "none", at.to_str().expect("a plain path")]);
        Self(at.to_owned())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        tidies(command("umount").arg("-l").arg(&self.0));
    }
}

/// Puts the node's files on a disk of which only a part is there: what is written beyond fails, once `fill` has taken the rest.
fn moved(c: &Cluster, node: &str, memory: &Memory) -> Mounted {
    let (image, at) = (memory.0.join("disk"), c.data().join(node));
    File::create(&image).and_then(|f| f.set_len(4 << 30)).expect("a file");
    run("mke2fs", ["-q", "-t", "ext4", "-m", "0", image.to_str().expect("a plain path")]);
    let before = c.dir().join("before");
    std::fs::rename(&at, &before).expect("the node does not run");
    let mounted = Mounted::new(&image, &at);
    let from = format!("{}/.", before.display());
    run("cp", ["-a", "--sparse=always", &from, at.to_str().expect("a plain path")]);
    run("sync", [""; 0]);
    mounted
}

fn fill(memory: &Memory) {
    let file = File::create(memory.0.join("rest")).expect("a file");
    let (mut end, mut part) = (0, 16 * MIB);
    while part >= 4096 {
        match file.write_all_at(&vec![1; part as usize], end) {
            Ok(()) => end += part,
            Err(_) => part /= 2,
        }
    }
}

/// A cluster whose second node is on a disk of its own, with a volume that wants all its copies; that node is its head, or not.
fn begun(is_head: bool, mib: u64) -> (Cluster, Memory, Mounted) {
    let mut c = Cluster::up(Setup { volume: None, ..Setup::default() });
    let out = c.cli(&["volume", "delete", VOLUME, "--force"]);
    assert!(out.status.success(), "{}", told(&out));
    c.json(&["volume", "create", VOLUME, "--size", "1G", "--ack", "all", "--min-copies", "2"]);
    c.wait_healthy(VOLUME);
    c.stop();
    let memory = Memory::new(&c.dir().join("memory"), mib * MIB);
    let mounted = moved(&c, "node2", &memory);
    c.start();
    c.wait_healthy(VOLUME);
    let (head, _) = c.chain(VOLUME);
    let wanted = if is_head { "node2" } else { "node1" };
    if (head == "node2") != is_head {
        c.json(&["volume", "move-head", VOLUME, wanted]);
        c.wait_healthy(VOLUME);
    }
    (c, memory, mounted)
}

fn block(n: u64) -> Vec<u8> {
    vec![n as u8 + 1; MIB as usize]
}

/// Writes until the second node is no member any more, and a while longer: the longest wait of the client.
fn write_until_left(c: &Cluster, client: &mut Client) -> Duration {
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    let mut n = 20;
    let has_left = || {
        let (head, others) = c.chain(VOLUME);
        head != "node2" && others.iter().all(|o| o != "node2")
    };
    while n < 250 || !has_left() {
        let asked = Instant::now();
        client.write(n % 250 * MIB, &block(n % 250));
        longest = longest.max(asked.elapsed());
        n += 1;
        assert!(begun.elapsed() < Duration::from_secs(120), "node2 is still waited for\n{}", c.log());
    }
    assert!(longest < NEVER, "{longest:?}");
    longest
}

fn check(client: &mut Client) {
    (0..250).for_each(|n| assert!(client.read(n * MIB, MIB as u32) == block(n), "MiB {n}"));
}

/// The disk fails under a member, or under the head. The longest wait of a client.
fn fails_under(is_head: bool) -> Duration {
    let (mut c, memory, mounted) = begun(is_head, 600);
    let mut client = Client::connect(&c.place, VOLUME, true).expect("a client");
    (0..20).for_each(|n| client.write(n * MIB, &block(n)));
    fill(&memory);
    let longest = write_until_left(&c, &mut client);
    wait_for("the reason is told", || c.logs().contains("can't go on as it is").then_some(()));
    check(&mut client);
    drop(client);
    c.stop();
    drop(mounted);
    longest
}

/// A file system that takes no writes until this is dropped: they neither end nor fail.
struct Frozen(PathBuf);

impl Frozen {
    fn new(at: PathBuf) -> Self {
        run("fsfreeze", ["-f", at.to_str().expect("a plain path")]);
        Self(at)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        tidies(command("fsfreeze").arg("-u").arg(&self.0));
    }
}

/// The disk under a member, or under the head, does not answer for a while; then it does again. The longest wait of a client.
fn freezes_under(is_head: bool) -> Duration {
    let (mut c, _memory, mounted) = begun(is_head, 1500);
    let mut client = Client::connect(&c.place, VOLUME, true).expect("a client");
    (0..20).for_each(|n| client.write(n * MIB, &block(n)));
    let frozen = Frozen::new(c.data().join("node2"));
    let longest = write_until_left(&c, &mut client);
    wait_for("the reason is told", || c.logs().contains("the device does not answer").then_some(()));
    check(&mut client);
    drop(frozen);
    // It comes back by itself, with what was written meanwhile.
    wait_for("three members", || (c.chain(VOLUME).1.len() == 2).then_some(()));
    c.wait_healthy(VOLUME);
    check(&mut client);
    drop(client);
    c.stop();
    drop(mounted);
    longest
}

#[test]
fn a_node_whose_disk_fails_is_missed_like_one_that_was_killed() {
    if !have(&["losetup", "mount", "umount", "mke2fs"]) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    for is_head in [false, true] {
        let longest = fails_under(is_head);
        let place = if is_head { "the head" } else { "a member" };
        say(&format!("measured: the disk fails under {place}: a client waited for {longest:.1?} at most"));
    }
}

/// A node whose disk does not answer is heard, and was there for all others: clients waited for as long as that went on.
#[test]
fn a_node_whose_disk_freezes_is_gone_on_without() {
    if !have(&["losetup", "mount", "umount", "mke2fs", "fsfreeze"]) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    for is_head in [false, true] {
        let longest = freezes_under(is_head);
        let place = if is_head { "the head" } else { "a member" };
        say(&format!("measured: the disk freezes under {place}: a client waited for {longest:.1?} at most"));
    }
}

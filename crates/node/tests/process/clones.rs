//! `freebs volume clone` and `flatten`: a clone is what its snapshot is, goes its own way, and stays right whatever becomes
//! of its parents and of the nodes that have them.

use crate::past::{differ, fill, noise, read_all, snapshot};
use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::{Client, Op};
use crate::support::rng::Rng;
use crate::support::tools::{told, wait_for};
use crate::support::{Weight, rounds, shared, turn};
use serde_json::Value;
use std::process::Output;

const MIB: u64 = 1 << 20;

/// A volume, and all that it must have.
#[derive(Clone)]
struct Disk {
    name: String,
    bytes: Vec<u8>,
}

impl Disk {
    /// One that nobody has written.
    fn new(name: &str, bytes: u64) -> Self {
        Self { name: name.into(), bytes: vec![0; bytes as usize] }
    }

    fn write(&mut self, client: &mut Client, at: u64, data: &[u8]) {
        fill(client, at, data);
        self.bytes[at as usize..][..data.len()].copy_from_slice(data);
    }

    fn trim(&mut self, client: &mut Client, at: u64, len: u32) {
        let done = client.ask(&Op::Trim { at, len }).expect("an answer");
        assert_eq!(done, Ok(vec![]), "a trim of {}", self.name);
        self.bytes[at as usize..][..len as usize].fill(0);
    }

    /// Some writes and trims, small ones and large ones, here and there.
    fn change(&mut self, client: &mut Client, seed: u64) {
        let mut rng = Rng::new(seed);
        let blocks = self.bytes.len() as u64 / 4096;
        for n in 0..24 {
            let (at, count) = (rng.below(blocks), 1 + rng.below(24));
            let count = count.min(blocks - at);
            match n % 4 {
                3 => self.trim(client, at * 4096, (count * 4096) as u32),
                // Less than a block: the rest of it is read first.
                2 => self.write(client, at * 4096 + 512, &noise(seed + n, 1024)),
                _ => self.write(client, at * 4096, &noise(seed + n, (count * 4096) as usize)),
            }
        }
    }

    /// The clone of a snapshot that was made when it was like this.
    fn clone_as(&self, c: &Cluster, snapshot: &str, name: &str) -> Self {
        let made = c.json(&["volume", "clone", &format!("{}@{snapshot}", self.name), name]);
        assert_eq!((&made["name"], &made["size"]), (&name.into(), &(self.bytes.len() as u64).into()), "{made}");
        assert_eq!(made["state"], "ready", "{made:#}\n{}", c.log());
        let origin = (&made["origin"]["volume"], &made["origin"]["snapshot"]);
        assert_eq!(origin, (&self.name.as_str().into(), &snapshot.into()), "{made}");
        Self { name: name.into(), bytes: self.bytes.clone() }
    }

    fn check(&self, c: &Cluster, when: &str) {
        let mut client = Client::attach(&c.place, &self.name);
        self.check_by(&mut client, when);
    }

    fn check_by(&self, client: &mut Client, when: &str) {
        let found = read_all(client);
        if let Some(at) = differ(&found, &self.bytes) {
            panic!("{} differs at byte {at}, {when}", self.name);
        }
    }
}

/// The command ends with status 1 and says these words.
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

/// Of each copy of a volume, whether it reads from the parent.
fn readers(c: &Cluster, volume: &str) -> Vec<bool> {
    let v = c.json(&["volume", "show", volume]);
    let shards = v["shards"].as_array().expect("shards");
    let members = shards.iter().flat_map(|s| s["members"].as_array().expect("members"));
    members.map(|m| m["reads_from_parent"].as_bool().expect("a flag")).collect()
}

fn pid(c: &Cluster, node: &str) -> u32 {
    c.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down")).1
}

/// A clone has what the volume had when the snapshot was made, whatever was written to that since; and from then on neither
/// sees what is written to the other.
#[test]
fn a_clone_goes_its_own_way() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("32M", &["--shards", "3", "--stripe", "64K"]);
    let mut source = Disk::new(&volume, 32 * MIB);
    let mut of_source = c.client(&volume);
    source.write(&mut of_source, 0, &noise(1, 20 << 20));
    source.trim(&mut of_source, 3 * MIB, 1 << 20);
    snapshot(&c, &volume, "s");
    let then = source.clone();
    source.write(&mut of_source, 0, &noise(2, 24 << 20));
    let (first, second) = (format!("{volume}-first"), format!("{volume}-second"));
    let mut clone = then.clone_as(&c, "s", &first);
    let mut of_clone = c.client(&first);
    clone.check_by(&mut of_clone, "new");
    for round in 0..rounds(3, 20) as u64 {
        clone.change(&mut of_clone, 100 + round);
        source.change(&mut of_source, 200 + round);
        clone.check_by(&mut of_clone, "after writes");
        source.check_by(&mut of_source, "after writes to its clone");
    }
    // Nobody changes a snapshot: another clone of it begins like the first one.
    then.clone_as(&c, "s", &second).check(&c, "cloned later");
    let mut past = Client::connect(&c.place, &format!("{volume}@s"), true).expect("a snapshot");
    assert_eq!(differ(&read_all(&mut past), &then.bytes), None);
    for name in [&volume, &first, &second] {
        c.verify(name);
    }
    let out = c.cli(&["volume", "list"]);
    let row = String::from_utf8_lossy(&out.stdout).lines().find(|l| l.starts_with(&first)).map(str::to_owned);
    assert!(row.is_some_and(|row| row.ends_with(&format!("{volume}@s"))), "{}", told(&out));
    let out = c.cli(&["volume", "show", &first]);
    assert!(told(&out).contains(&format!("cloned from {volume}@s")), "{}", told(&out));
}

/// A clone has the size of its snapshot, and grows by itself.
#[test]
fn a_clone_has_its_own_size() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    let mut source = Disk::new(&volume, 8 * MIB);
    source.write(&mut c.client(&volume), 7 * MIB, &noise(1, 1 << 20));
    snapshot(&c, &volume, "small");
    c.json(&["volume", "resize", &volume, "--size", "16M"]);
    c.client(&volume).write(12 * MIB, &noise(2, 1 << 20));
    let name = format!("{volume}-clone");
    let mut clone = source.clone_as(&c, "small", &name);
    c.json(&["volume", "resize", &name, "--size", "24M"]);
    clone.bytes.resize(24 << 20, 0);
    clone.check(&c, "grown");
}

/// Clones of clones' snapshots, each with changes of its own; then their ancestors are deleted, with their snapshots, from the
/// middle on.
#[test]
fn clones_of_clones_outlive_their_ancestors() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("16M", &["--shards", "2"]);
    let mut disks = vec![Disk::new(&volume, 16 * MIB)];
    disks[0].write(&mut c.client(&volume), 0, &noise(1, 12 << 20));
    // More than the depth at which clones become flat by themselves.
    let depth = rounds(10, 50);
    for n in 0..depth {
        let last = disks.last().expect("one");
        snapshot(&c, &last.name, "s");
        let mut next = last.clone_as(&c, "s", &format!("{volume}-{n}"));
        next.change(&mut c.client(&next.name), 1000 * (n as u64 + 1));
        disks.push(next);
    }
    disks.iter().for_each(|d| d.check(&c, "with all ancestors"));
    let mut rng = Rng::announced("ancestors");
    while disks.len() > 2 {
        let gone = disks.remove(rng.below(disks.len() as u64 - 1) as usize);
        // The gateway gives it back a moment after its last reader has left.
        wait_for("it is nobody's", || {
            c.cli(&["volume", "delete", &gone.name, "--with-snapshots"]).status.success().then_some(())
        });
        disks.iter().for_each(|d| d.check(&c, &format!("without {}", gone.name)));
    }
    disks.iter().for_each(|d| c.verify(&d.name));
}

#[test]
fn what_can_not_be_cloned_is_said() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    snapshot(&c, &volume, "s");
    let (at, clone) = (format!("{volume}@s"), format!("{volume}-clone"));
    let unknown = format!("{volume}@none");
    refused(&c.cli(&["volume", "clone", &unknown, &clone]), &[&unknown, &format!("snapshot list {volume}")]);
    refused(&c.cli(&["volume", "clone", "none@s", &clone]), &["no volume 'none'", "volume list"]);
    refused(&c.cli(&["volume", "clone", &at, &volume]), &["already", "another name"]);
    refused(&c.cli(&["volume", "flatten", &volume]), &["is no clone"]);
    refused(&c.cli(&["volume", "flatten", "none"]), &["no volume 'none'"]);
    for usage in [&["volume", "clone", &volume, &clone][..], &["volume", "clone", &at, "a/b"]] {
        assert_eq!(c.cli(usage).status.code(), Some(2), "{usage:?}");
    }
    let list = c.json(&["volume", "list"]);
    let names: Vec<&str> =
        list["volumes"].as_array().expect("a list").iter().filter_map(|v| v["name"].as_str()).collect();
    assert!(!names.contains(&clone.as_str()), "nothing half-made is left: {names:?}");
    c.json(&["volume", "clone", &at, &clone]);
    refused(&c.cli(&["snapshot", "show", &format!("{clone}@s")]), &["no snapshot"]);
}

/// Two of three members stand still, so nothing can be cut: there is no snapshot, and nothing to clone.
#[test]
fn a_snapshot_that_failed_is_not_cloned() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { nodes: 5, volume: Some("demo:16M"), ..Setup::default() });
    let (_, others) = c.chain("demo");
    let still: Vec<u32> = others.iter().map(|n| pid(&c, n)).collect();
    still.iter().for_each(|p| c.pause(*p));
    refused(&c.cli(&["snapshot", "create", "demo", "--name", "s"]), &["no snapshot was made"]);
    refused(&c.cli(&["volume", "clone", "demo@s", "clone"]), &["demo@s", "was not made", "make another one"]);
    still.iter().for_each(|p| c.resume(*p));
    c.wait_healthy("demo");
    refused(&c.cli(&["volume", "clone", "demo@s", "clone"]), &["demo@s", "was not made"]);
    snapshot(&c, "demo", "s");
    Disk::new("demo", 16 * MIB).clone_as(&c, "s", "clone").check(&c, "of the second attempt");
    c.stop();
}

/// Each member is killed in turn, then all at once, while the clone still reads from its parent, which is written on.
#[test]
fn a_clone_survives_kills() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { volume: Some("demo:16M"), ..Setup::default() });
    let mut source = Disk::new("demo", 16 * MIB);
    let mut client = Client::attach(&c.place, "demo");
    source.write(&mut client, 0, &noise(1, 12 << 20));
    snapshot(&c, "demo", "s");
    let mut clone = source.clone_as(&c, "s", "clone");
    let mut of_clone = Client::attach(&c.place, "clone");
    for (n, node) in ["node1", "node2", "node3"].into_iter().enumerate() {
        clone.change(&mut of_clone, 10 * n as u64);
        source.write(&mut client, n as u64 * 4 * MIB, &noise(50 + n as u64, 4 << 20));
        c.kill(&[pid(&c, node)]);
        clone.check_by(&mut of_clone, &format!("{node} killed"));
        clone.change(&mut of_clone, 1000 + 10 * n as u64);
        wait_for("the node", || c.nodes().iter().any(|n| n.0 == node).then_some(()));
        c.wait_healthy("clone");
        c.wait_healthy("demo");
    }
    drop((client, of_clone));
    c.crash();
    c.start();
    for disk in [&source, &clone] {
        c.wait_healthy(&disk.name);
        disk.check(&c, "after all were killed");
        c.verify(&disk.name);
    }
    c.json(&["snapshot", "delete", "demo@s"]);
    c.stop();
    c.start();
    clone.check(&c, "without its snapshot, and started again");
    c.stop();
}

/// Members that are gone are replaced by nodes that never had the parent: they learn all that the clone is.
#[test]
fn new_members_of_a_clone_learn_all_of_it() {
    let _turn = turn(Weight::Light);
    let env = vec![("FREEBS_REPLACE_AFTER".into(), "2s".into())];
    let more = vec!["--no-restart".into()];
    let mut c = Cluster::up(Setup { nodes: 5, volume: Some("demo:16M"), more, env, ..Setup::default() });
    let mut source = Disk::new("demo", 16 * MIB);
    let mut client = Client::attach(&c.place, "demo");
    source.write(&mut client, 0, &noise(1, 12 << 20));
    snapshot(&c, "demo", "s");
    let mut clone = source.clone_as(&c, "s", "clone");
    let mut of_clone = Client::attach(&c.place, "clone");
    clone.change(&mut of_clone, 7);
    source.write(&mut client, 0, &noise(2, 12 << 20));
    let (head, others) = c.chain("clone");
    for gone in [&others[0], &head] {
        c.kill(&[pid(&c, gone)]);
        let chain = wait_for("a chain without it", || {
            let v = c.volume("clone");
            let all = v["shards"][0]["members"].as_array()?.clone();
            let names: Vec<String> = all.iter().filter_map(|m| Some(m["node"].as_str()?.to_owned())).collect();
            let whole = all.iter().all(|m: &Value| m["state"] == "active") && !names.contains(gone);
            (whole && names.len() == 3).then_some(names)
        });
        clone.check_by(&mut of_clone, &format!("{gone} replaced, {chain:?}"));
        clone.change(&mut of_clone, 70);
        c.verify("clone");
    }
    // Of the first members one is left, and the others are enough without it.
    c.kill(&[pid(&c, &others[1])]);
    clone.check_by(&mut of_clone, "without any of the first members");
    c.stop();
}

/// Flattened a clone reads nothing from its parent, which is deleted then with its snapshots; and so it is after a restart.
#[test]
fn a_clone_is_flattened_while_it_is_used() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { volume: None, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "32M", "--shards", "2"]);
    let mut source = Disk::new("data", 32 * MIB);
    let mut client = Client::attach(&c.place, "data");
    source.write(&mut client, 0, &noise(1, 24 << 20));
    snapshot(&c, "data", "s");
    let mut clone = source.clone_as(&c, "s", "clone");
    wait_for("all members read from the parent", || (readers(&c, "clone") == [true; 6]).then_some(()));
    let shown = c.cli(&["volume", "show", "clone"]);
    assert!(told(&shown).contains("cloned from data@s, and reads from there in 6 of 6 copies"), "{}", told(&shown));
    let mut of_clone = Client::attach(&c.place, "clone");
    clone.change(&mut of_clone, 5);
    std::thread::scope(|s| {
        let flatten = s.spawn(|| c.json(&["volume", "flatten", "clone"]));
        for n in 0..8 {
            clone.change(&mut of_clone, 100 + 50 * n);
        }
        let flat = flatten.join().expect("a command that ends");
        assert_eq!(flat["origin"]["flatten"], true, "{flat}");
    });
    assert_eq!(readers(&c, "clone"), [false; 6]);
    clone.check_by(&mut of_clone, "flat");
    source.check_by(&mut client, "after its clone became flat");
    drop(client);
    wait_for("it is nobody's", || {
        c.cli(&["volume", "delete", "data", "--with-snapshots"]).status.success().then_some(())
    });
    clone.check_by(&mut of_clone, "without its parent");
    c.verify("clone");
    drop(of_clone);
    c.stop();
    c.start();
    c.wait_healthy("clone");
    clone.check(&c, "started again");
    assert_eq!(readers(&c, "clone"), [false; 6]);
    let out = c.cli(&["events", "--volume", "clone", "--json"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let events: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let told = |kind: &str, word: &str| {
        events.iter().any(|e| e["kind"] == kind && e["text"].as_str().is_some_and(|t| t.contains(word)))
    };
    assert!(told("volume_created", "cloned from data@s") && told("flattening", "data@s"), "{text}");
    c.stop();
}

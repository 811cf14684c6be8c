//! Nodes are taken away, and started again, while their volume is in use.

use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::Client;
use crate::support::tools::{say, told, wait_for};
use crate::support::{Weight, turn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
pub const BLOCKS: u64 = 4000;

pub fn pattern(round: u64, block: u64) -> Vec<u8> {
    [(round * 7 + block) as u8; BLOCK].to_vec()
}

/// Says that it is time to stop, also when a test fails meanwhile.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes all blocks over and over until it is told to stop: rounds, and the longest wait.
pub fn write_on(client: &mut Client, stop: &AtomicBool) -> (u64, Duration) {
    let (mut round, mut longest) = (0, Duration::ZERO);
    loop {
        for block in 0..BLOCKS {
            let asked = Instant::now();
            client.write(block * BLOCK as u64, &pattern(round, block));
            longest = longest.max(asked.elapsed());
        }
        round += 1;
        if stop.load(Ordering::Relaxed) {
            return (round, longest);
        }
    }
}

fn names(c: &Cluster) -> Vec<String> {
    let (head, mut others) = c.chain("data");
    others.push(head);
    others.sort();
    others
}

#[test]
fn a_node_is_emptied_under_load_and_taken_away() {
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { volume: None, nodes: 4, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "256M"]);
    c.wait_healthy("data");
    c.json(&["volume", "move-head", "data", "node2"]);
    c.wait_healthy("data");
    let (head, _) = c.chain("data");
    assert_eq!(head, "node2");
    let out = c.cli(&["node", "drain", "nobody"]);
    assert!(out.status.code() == Some(1) && told(&out).contains("there is no node 'nobody'"), "{}", told(&out));
    let mut client = Client::connect(&c.place, "data", true).expect("a client");
    let stop = AtomicBool::new(false);
    let ((rounds, longest), took) = std::thread::scope(|s| {
        let writes = s.spawn(|| write_on(&mut client, &stop));
        let end = StopAtEnd(&stop);
        let begun = Instant::now();
        let drained = c.json(&["node", "drain", &head, "--wait"]);
        let took = begun.elapsed();
        drop(end);
        assert_eq!((drained["shards"].as_u64(), drained["drains"].as_bool()), (Some(0), Some(true)), "{drained}");
        (writes.join().expect("no write fails"), took)
    });
    say(&format!("measured: the head drained in {took:.1?}, a client waited for {longest:.1?} at most"));
    let members = names(&c);
    assert!(members.len() == 3 && !members.contains(&head), "{members:?} without {head}");
    let text = told(&c.cli(&["status"]));
    assert!(text.contains("up, drained"), "{text}");
    // Without it nothing is missing, and no other one can go.
    let out = c.cli(&["node", "stop", &head]);
    assert!(out.status.success(), "{}", told(&out));
    let out = c.cli(&["node", "drain", &members[0]]);
    assert!(out.status.code() == Some(1) && told(&out).contains("1 more is needed"), "{}", told(&out));
    for block in 0..BLOCKS {
        let is = client.read(block * BLOCK as u64, BLOCK as u32);
        assert!(is == pattern(rounds - 1, block), "block {block}");
    }
    c.wait_healthy("data");
    let out = c.cli(&["volume", "verify", "data"]);
    assert!(out.status.success(), "{}", told(&out));
    // It is a node as others again.
    let out = c.cli(&["node", "start", &head]);
    assert!(out.status.success(), "{}", told(&out));
    let undone = c.json(&["node", "drain", &head, "--undo"]);
    assert_eq!(undone["drains"].as_bool(), Some(false));
    c.json(&["volume", "create", "more", "--size", "64M", "--shards", "4"]);
    c.wait_healthy("more");
    let more = c.json(&["volume", "show", "more"]);
    assert!(more.to_string().contains(&head), "{more:#}");
    drop(client);
    c.stop();
}

#[test]
fn all_nodes_are_started_again_under_load() {
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { volume: None, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "256M", "--shards", "6"]);
    c.wait_healthy("data");
    let before = c.nodes();
    let mut client = Client::connect(&c.place, "data", true).expect("a client");
    let stop = AtomicBool::new(false);
    let (rounds, longest) = std::thread::scope(|s| {
        let writes = s.spawn(|| write_on(&mut client, &stop));
        let end = StopAtEnd(&stop);
        let done = c.json(&["cluster", "restart"]);
        drop(end);
        assert_eq!(done["nodes"].as_array().map(Vec::len), Some(3), "{done}");
        writes.join().expect("no write fails")
    });
    say(&format!("measured: three nodes were started again, a client waited for {longest:.1?} at most"));
    let after = c.nodes();
    assert!(before.iter().all(|old| !after.contains(old)), "each is another process: {before:?}, {after:?}");
    for block in 0..BLOCKS {
        assert!(client.read(block * BLOCK as u64, BLOCK as u32) == pattern(rounds - 1, block), "block {block}");
    }
    // Heads go back by themselves only after a while.
    c.wait_healthy("data");
    let planned = c.json(&["cluster", "rebalance", "--dry-run"]);
    assert_eq!(
        (planned["copies"].as_array().map(Vec::len), planned["done"].as_bool()),
        (Some(0), Some(false)),
        "{planned}"
    );
    let moved = c.json(&["cluster", "rebalance", "--heads"]);
    assert_eq!(moved["done"].as_bool(), Some(true), "{moved}");
    let status = c.status();
    let volumes = status["volumes"].as_array().expect("a list");
    let all: Vec<_> = volumes.iter().flat_map(|v| v["shards"].as_array().expect("a list")).collect();
    let heads = ["node1", "node2", "node3"].map(|name| all.iter().filter(|s| s["head"] == name).count());
    assert!(heads.iter().max() <= heads.iter().min().map(|n| n + 1).as_ref(), "{heads:?}");
    let text = told(&c.cli(&["cluster", "rebalance"]));
    assert!(text.contains("spread as well as"), "{text}");
    // A node that is down would be missed with the next one.
    let out = c.cli(&["node", "stop", "node3"]);
    assert!(out.status.success(), "{}", told(&out));
    let out = c.cli(&["cluster", "restart"]);
    assert!(out.status.code() == Some(1) && told(&out).contains("node3 is down"), "{}", told(&out));
    assert_eq!(c.nodes().len(), 2);
    drop(client);
    c.stop();
}

/// From one node to three to five, while a client writes.
#[test]
fn a_local_cluster_grows_while_it_is_used() {
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { volume: None, nodes: 1, grows_to: 5, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "64M"]);
    let mut client = Client::connect(&c.place, "data", true).expect("a client");
    let (stop, data) = (AtomicBool::new(false), c.data().display().to_string());
    let (rounds, longest) = std::thread::scope(|s| {
        let writes = s.spawn(|| write_on(&mut client, &stop));
        let end = StopAtEnd(&stop);
        for nodes in ["3", "5"] {
            let grown = c.json(&["up", "--data", &data, "--nodes", nodes]);
            assert_eq!(grown["nodes"].as_u64(), nodes.parse().ok(), "{grown}");
            wait_for("nodes and votes", || {
                let status = c.status();
                let all = status["nodes"].as_array()?;
                let votes = all.iter().filter(|n| n["state"] == "up" && n["votes"] == true).count();
                (votes.to_string() == nodes).then_some(())
            });
        }
        drop(end);
        writes.join().expect("no write fails")
    });
    say(&format!("measured: one node became five, a client waited for {longest:.1?} at most"));
    let out = c.cli(&["up", "--data", &data, "--nodes", "2"]);
    assert!(out.status.code() == Some(1) && told(&out).contains("are not taken away"), "{}", told(&out));
    c.json(&["volume", "create", "wide", "--size", "64M", "--copies", "5"]);
    for block in 0..BLOCKS {
        assert!(client.read(block * BLOCK as u64, BLOCK as u32) == pattern(rounds - 1, block), "block {block}");
    }
    drop(client);
    c.wait_healthy("wide");
    c.stop();
    // The next start has all of them.
    let file = std::fs::read(c.data().join("cluster.json")).expect("a file");
    let file: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(file["nodes"].as_array().map(Vec::len), Some(5));
}

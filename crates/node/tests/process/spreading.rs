//! Copies and heads move: to nodes that have come, into zones, away from a node that is full, back to one that returned.

use crate::draining::{BLOCKS, StopAtEnd, pattern, write_on};
use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::{Client, Op};
use crate::support::tools::{say, told, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;

fn node<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["nodes"].as_array().expect("a list");
    all.iter().find(|n| n["name"] == name).unwrap_or_else(|| panic!("no {name} in {status:#}"))
}

/// So many of each node, in the order of their numbers.
fn counts(c: &Cluster, of: &str) -> Vec<u64> {
    let status = c.status();
    let all = status["nodes"].as_array().expect("a list");
    all.iter().map(|n| n[of].as_u64().unwrap_or_else(|| panic!("no {of} in {n}"))).collect()
}

fn chains(c: &Cluster, volume: &str) -> Vec<Vec<String>> {
    let v = c.volume(volume);
    let members = |s: &Value| {
        let of = s["members"].as_array().expect("a list");
        of.iter().map(|m| m["node"].as_str().expect("a name").to_owned()).collect()
    };
    v["shards"].as_array().expect("a list").iter().map(members).collect()
}

/// Without the volume that a cluster begins with.
fn up(setup: Setup) -> Cluster {
    let c = Cluster::up(setup);
    c.json(&["volume", "delete", "demo"]);
    c
}

fn refused(c: &Cluster, args: &[&str], words: &[&str]) {
    let out = c.cli(args);
    let text = told(&out);
    assert!(!out.status.success() && words.iter().all(|w| text.contains(w)), "{args:?}: {text}");
}

#[test]
fn copies_and_heads_are_spread_over_nodes_that_came_and_zones_that_were_named() {
    let _turn = turn(Weight::Loaded);
    let mut c = up(Setup { volume: None, nodes: 3, grows_to: 5, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "128M", "--shards", "10"]);
    c.wait_healthy("data");
    assert_eq!(counts(&c, "copies"), [10, 10, 10]);
    let mut client = Client::connect(&c.place, "data", true).expect("a client");
    let (stop, data) = (AtomicBool::new(false), c.data().display().to_string());
    let (rounds, longest) = std::thread::scope(|s| {
        let writes = s.spawn(|| write_on(&mut client, &stop));
        let end = StopAtEnd(&stop);
        c.json(&["up", "--data", &data, "--nodes", "5"]);
        wait_for("five nodes with room", || {
            let status = c.status();
            let all = status["nodes"].as_array()?;
            let up = all.iter().filter(|n| n["state"] == "up" && n["room_bytes"].as_u64() > Some(0)).count();
            (up == 5).then_some(())
        });
        let planned = c.json(&["cluster", "rebalance", "--dry-run"]);
        assert!(planned["done"] == false && planned["copies"].as_array().is_some_and(|m| m.len() == 10), "{planned:#}");
        assert_eq!(counts(&c, "copies")[..3], [10, 10, 10], "a plan moves nothing");
        let moved = c.json(&["cluster", "rebalance"]);
        assert_eq!(
            (moved["done"].as_bool(), moved["copies"].as_array().map(Vec::len)),
            (Some(true), Some(12)),
            "{moved:#}"
        );
        assert_eq!(counts(&c, "copies"), [6; 5]);
        assert_eq!(counts(&c, "heads"), [2; 5]);
        // Three zones: each shard has a copy in each.
        for (name, zone) in [("node1", "a"), ("node2", "a"), ("node3", "b"), ("node4", "b"), ("node5", "c")] {
            c.json(&["node", "set", name, "--zone", zone]);
        }
        c.json(&["node", "set", "node5", "--weight", "200"]);
        c.json(&["cluster", "rebalance"]);
        drop(end);
        writes.join().expect("no write fails")
    });
    say(&format!("measured: copies went over five nodes and three zones, a client waited for {longest:.1?} at most"));
    let zone = |name: &String| match name.as_str() {
        "node1" | "node2" => "a",
        "node3" | "node4" => "b",
        _ => "c",
    };
    for chain in chains(&c, "data") {
        assert_eq!(chain.iter().map(zone).collect::<BTreeSet<_>>().len(), 3, "{chain:?}");
    }
    for block in 0..BLOCKS {
        assert!(client.read(block * 4096, 4096) == pattern(rounds - 1, block), "block {block}");
    }
    let text = told(&c.cli(&["status"]));
    assert!(["ZONE", "WEIGHT", "ROOM", "USED", "PROMISED", "200"].iter().all(|w| text.contains(w)), "{text}");
    let text = told(&c.cli(&["cluster", "rebalance"]));
    assert!(text.contains("spread as well as they can be"), "{text}");
    bad_input(&c);
    drop(client);
    c.verify("data");
    c.stop();
}

/// Words that make no sense, on a cluster with a volume `data`.
fn bad_input(c: &Cluster) {
    refused(c, &["node", "set", "nobody", "--zone", "a"], &["there is no node 'nobody'"]);
    refused(c, &["node", "set", "node1"], &["--zone", "--weight"]);
    refused(c, &["node", "set", "node1", "--weight", "1001"], &["1001"]);
    refused(c, &["node", "set", "node1", "--zone", "a/b c"], &["zone"]);
    let (from, to) = (&chains(c, "data")[0][0], "nobody");
    refused(c, &["volume", "move-copy", "data", "--from", from, "--to", to], &["there is no node"]);
    refused(c, &["volume", "move-copy", "data", "--from", from, "--to", from], &["already"]);
    let (other, stop) = (&chains(c, "data")[0][1], "--stop");
    refused(c, &["volume", "move-copy", "data", "--from", from, "--to", other], &["already"]);
    refused(c, &["volume", "move-copy", "data", "--from", from, "--to", other, "--shard", "99"], &["no shard 99"]);
    refused(c, &["volume", "move-copy", "data", "--from", from], &["--to"]);
    refused(c, &["volume", "move-copy", "data", "--from", from, "--to", other, stop], &["--stop"]);
    // Nothing moves: nothing is stopped.
    c.json(&["volume", "move-copy", "data", "--from", from, stop]);
}

/// A node is filled; what it has goes to others before it refuses anything, and there is a word about it.
#[test]
fn a_node_that_fills_up_gives_copies_away() {
    let _turn = turn(Weight::Loaded);
    let more = ["--workers", "1"].map(str::to_owned).to_vec();
    let mut c = up(Setup { device_size: "160M", volume: None, more, ..Setup::default() });
    let room = wait_for("room", || node(&c.status(), "node1")["room_bytes"].as_u64().filter(|b| *b > 0));
    let parts = |percent: u64| room * percent / 100 / MIB;
    let names = [("large", parts(53)), ("small", parts(44))];
    for (name, mib) in names {
        c.json(&["volume", "create", name, "--size", &format!("{mib}M"), "--copies", "1"]);
        c.wait_healthy(name);
        let at = chains(&c, name)[0][0].clone();
        if at != "node1" {
            c.json(&["volume", "move-copy", name, "--from", &at, "--to", "node1"]);
        }
        assert_eq!(chains(&c, name), [["node1"]]);
    }
    let mut clients = names.map(|(name, _)| Client::connect(&c.place, name, true).expect("a client"));
    for (client, (_, mib)) in clients.iter_mut().zip(names) {
        for part in 0..mib {
            let op = Op::Write { at: part * MIB, data: vec![part as u8 | 1; MIB as usize], fua: false };
            let end = client.ask(&op).expect("a connection");
            assert!(end.is_ok(), "MiB {part}: {end:?}");
        }
    }
    let fills = node(&c.status(), "node1")["used_percent"].as_u64();
    say(&format!("measured: node1 is filled to {fills:?} %"));
    let took = std::time::Instant::now();
    let at = wait_for("a copy that has left node1", || {
        let away: Vec<String> = names.iter().map(|(name, _)| chains(&c, name)[0].join(",")).collect();
        away.iter().find(|of| !of.contains("node1")).cloned()
    });
    say(&format!("measured: a copy went to {at} within {:.1?}", took.elapsed()));
    wait_for("room at node1", || (node(&c.status(), "node1")["used_percent"].as_u64()? < 85).then_some(()));
    // Writes go on at both, and all is what it was.
    for (client, (_, mib)) in clients.iter_mut().zip(names) {
        for part in 0..mib {
            assert!(client.read(part * MIB, MIB as u32).iter().all(|b| *b == part as u8 | 1), "MiB {part}");
            client.write(part * MIB, &vec![part as u8 | 2; MIB as usize]);
        }
    }
    let events = told(&c.cli(&["events"]));
    assert!(events.contains("copies go elsewhere"), "{events}");
    drop(clients);
    c.stop();
}

#[test]
fn heads_go_back_to_a_node_that_returned() {
    let _turn = turn(Weight::Loaded);
    let mut c = up(Setup { volume: None, ..Setup::default() });
    c.json(&["volume", "create", "data", "--size", "96M", "--shards", "6"]);
    c.wait_healthy("data");
    assert_eq!(counts(&c, "heads"), [2, 2, 2]);
    c.kill(&[c.pid_of("node2")]);
    wait_for("other heads", || (counts(&c, "heads")[1] == 0).then_some(()));
    wait_for("heads of its own", || (counts(&c, "heads")[1] == 2).then_some(()));
    c.wait_healthy("data");
    c.stop();
}

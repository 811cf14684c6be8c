//! A cluster that grows and shrinks while its volumes are in use: nodes come, go, and take the places of others.

use super::{done, refused, start_refused};
use crate::draining::{BLOCKS, StopAtEnd, pattern, write_on};
use crate::support::nbd::{Client, Place};
use crate::support::servers::Servers;
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const BLOCK: usize = 4096;

fn join(s: &mut Servers, names: &[&str], before: usize) {
    for (i, name) in names.iter().enumerate() {
        done(&s.join("a", &s.token("10min"), name, &[]));
        s.start(name);
        s.wait_up(before + i + 1);
    }
}

/// So many nodes vote.
fn wait_votes(s: &Servers, votes: usize) {
    wait_for("votes", || {
        let status = s.json(&["status"]);
        let count = status["nodes"].as_array()?.iter().filter(|n| n["votes"] == true).count();
        (count == votes).then_some(())
    });
}

fn names_of(nodes: &[Value]) -> Vec<&str> {
    nodes.iter().map(|n| n["name"].as_str().expect("a name")).collect()
}

/// Five nodes become four, of which one is new, while clients write.
fn change(s: &mut Servers) {
    wait_votes(s, 5);
    refused(&s.cli(&["node", "remove", "nobody"]), &["there is no node 'nobody'"]);
    refused(&s.cli(&["node", "remove", "a"]), &["authority-key"]);
    refused(&s.cli(&["node", "remove", "e"]), &["freebs node drain e --wait"]);
    s.json(&["node", "drain", "e", "--wait"]);
    let removed = s.json(&["node", "remove", "e"]);
    assert_eq!((removed["node"].as_str(), removed["id"].as_u64()), (Some("e"), Some(5)), "{removed}");
    assert_eq!(s.wait_ended("e"), Some(1), "it ends by itself");
    start_refused(s, "e", &[], &["node 5 was removed from this cluster"]);
    assert_eq!(names_of(&s.wait_up(4)), ["a", "b", "c", "d"]);
    wait_votes(s, 3);
    // One that dies for good, and one that takes its places.
    s.kill("d");
    join(s, &["f"], 3);
    refused(&s.cli(&["node", "replace", "d", "g"]), &["there is no node 'g'"]);
    let replaced = s.json(&["node", "replace", "d", "f"]);
    assert_eq!((replaced["node"].as_str(), replaced["replaced_by"].as_str()), (Some("d"), Some("f")), "{replaced}");
    assert_eq!(names_of(&s.wait_up(4)), ["a", "b", "c", "f"]);
    wait_votes(s, 3);
}

/// Another node than the first one leads; its name.
fn another_leads(s: &mut Servers) -> String {
    let leader = |s: &Servers| {
        let status = s.json(&["status"]);
        let all = status["nodes"].as_array()?.clone();
        all.iter().find(|n| n["leads"] == true)?["name"].as_str().map(str::to_owned)
    };
    if wait_for("a leader", || leader(s)) == "a" {
        s.kill("a");
        wait_for("another leader", || leader(s).filter(|name| name != "a"));
        s.start("a");
        s.wait_up(4);
    }
    wait_for("a leader", || leader(s))
}

fn client(place: &Place, volume: &str) -> Client {
    wait_for("the gateway", || Client::connect(place, volume, true).ok())
}

#[test]
fn nodes_come_and_go_under_load() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(6);
    s.json(&["volume", "create", "one", "--size", "64M", "--copies", "1"]);
    let place = s.gateway("door");
    let (mut one, stop) = (client(&place, "one"), AtomicBool::new(false));
    let mut three = None;
    let (first, second) = std::thread::scope(|t| {
        let first = t.spawn(|| write_on(&mut one, &stop));
        let end = StopAtEnd(&stop);
        join(&mut s, &["b", "c", "d", "e"], 1);
        s.json(&["volume", "create", "three", "--size", "64M", "--shards", "5"]);
        let three = three.insert(client(&place, "three"));
        let second = t.spawn(|| write_on(three, &stop));
        change(&mut s);
        drop(end);
        (first.join().expect("no error"), second.join().expect("no error"))
    });
    let longest: Duration = first.1.max(second.1);
    say(&format!("nodes came and went under load: longest wait {longest:?}, {} and {} rounds", first.0, second.0));
    for (mut client, rounds) in [(one, first.0), (three.expect("connected"), second.0)] {
        for block in (0..BLOCKS).step_by(7) {
            assert_eq!(client.read(block * BLOCK as u64, BLOCK as u32), pattern(rounds - 1, block), "block {block}");
        }
    }
    // The others know no old member any more, and start without it.
    s.kill("b");
    s.start("b");
    s.wait_up(4);
    s.wait_healthy("three");
    done(&s.cli(&["volume", "verify", "three"]));
    // The control plane needs three that vote.
    s.json(&["volume", "delete", "three"]);
    let leader = another_leads(&mut s);
    s.json(&["node", "drain", &leader, "--wait"]);
    s.json(&["node", "remove", &leader]);
    assert_eq!(s.wait_ended(&leader), Some(1));
    wait_votes(&s, 3);
    let last = ["b", "c"].into_iter().find(|n| *n != leader).expect("one of them");
    s.json(&["node", "drain", last, "--wait"]);
    refused(&s.cli(&["node", "remove", last]), &["there would be 2 nodes", "needs 3 that vote"]);
    s.wait_up(3);
}

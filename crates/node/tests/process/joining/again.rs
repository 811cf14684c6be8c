//! Starts of nodes that have lost something: a cluster is founded once, and no command leaves what the next one can't read.

use super::encrypted::certified;
use super::{done, edit, refused, start_refused, three};
use crate::support::nbd::Client;
use crate::support::servers::Servers;
use crate::support::tools::{self, told, wait_for};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Removes files of a data directory whose names begin so.
fn lose(data: &Path, begins: &[&str]) {
    for entry in std::fs::read_dir(data).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if begins.iter().any(|b| name.starts_with(b)) {
            std::fs::remove_file(&path).expect("removed");
        }
    }
}

fn file_of(s: &Servers, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(s.data(name).join("cluster.json")).expect("a file")).expect("JSON")
}

/// The first node knew nobody: it began the same cluster a second time, alone, or could never come back.
#[test]
fn the_first_node_learns_from_those_who_joined() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    let peers: Vec<_> =
        file_of(&s, "a")["peers"].as_array().expect("a list").iter().map(|p| p["name"].clone()).collect();
    assert_eq!(peers, ["b", "c"]);
    wait_for("three votes", || file_of(&s, "a").get("only_vote").is_none().then_some(()));
    s.kill("a");
    lose(&s.data("a"), &["control."]);
    s.start("a");
    s.wait_up(3);
    s.wait_healthy("data");
    // Without its log, too: what it had is lost, so it is not taken in, and begins nothing.
    s.kill("a");
    lose(&s.data("a"), &["control.", "log-"]);
    s.start("a");
    assert_eq!(s.wait_ended("a"), Some(1));
    let log = std::fs::read_to_string(s.dir().join("a.log")).expect("a log");
    assert_eq!(log.matches("the cluster begins here").count(), 1, "{log}");
    assert!(s.json(&["volume", "list"]).to_string().contains("data"));
}

#[test]
fn a_cluster_is_founded_once() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::begin(1);
    assert_eq!(file_of(&s, "a").get("founds"), None, "the word is taken out once it was done");
    s.kill("a");
    lose(&s.data("a"), &["control.", "log-"]);
    start_refused(&s, "a", &[], &["the control state is gone"]);
}

/// The only vote was put aside with its store, for another node to stand in that has none; both waited for ever.
#[test]
fn of_two_nodes_one_votes_and_is_not_put_aside() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    let gone = |s: &mut Servers| {
        s.kill("a");
        let kept = ["control.store", "control.note"].map(|name| (s.data("a").join(name), s.dir().join(name)));
        kept.iter().for_each(|(from, to)| std::fs::rename(from, to).expect("moved"));
        start_refused(s, "a", &[], &["the control state is gone", "only one has a vote", "freebs control rebuild"]);
        kept.iter().for_each(|(from, to)| std::fs::rename(to, from).expect("moved back"));
        s.start("a");
    };
    wait_for("b in a's file", || file_of(&s, "a")["peers"].as_array().filter(|p| p.len() == 1).map(|_| ()));
    gone(&mut s);
    s.start("b");
    s.wait_up(2);
    wait_for("that b has run", || (file_of(&s, "a")["peers"][0]["has_run"] == true).then_some(()));
    gone(&mut s);
    s.wait_up(2);
    // The other one learns from it.
    s.kill("b");
    lose(&s.data("b"), &["control."]);
    s.start("b");
    s.wait_up(2);
}

/// The next line of the page made a cluster of its own in the directory of a node that had not joined yet.
#[test]
fn a_directory_with_keys_alone_is_not_run() {
    let _turn = turn(Weight::Light);
    let s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    std::fs::remove_file(s.data("b").join("cluster.json")).expect("removed");
    start_refused(&s, "b", &[], &["freebs node join", "freebs cluster init"]);
    assert!(!s.data("b").join("cluster.json").exists());
    // The token of the first attempt is gone with the shell: another one does.
    done(&s.join("a", &s.token("10min"), "b", &[]));
    assert_eq!(file_of(&s, "b")["nodes"][0]["id"], 2, "it is the same node");
    let status = s.json(&["status"]);
    assert_eq!(status["nodes"].as_array().expect("a list").len(), 2, "{status:#}");
}

/// Each of these left a cluster file that no start could read, or that each later one was refused with.
#[test]
fn a_wrong_place_to_listen_costs_nothing() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    let (a, b) = (s.address("a"), s.address("b"));
    start_refused(&s, "b", &["--listen", &a], &[&format!("{a} is taken")]);
    start_refused(&s, "b", &["--listen", "0.0.0.0:7400", "--trusted-network"], &["nobody reaches"]);
    assert_eq!(file_of(&s, "b")["nodes"][0]["address"], b.as_str());
    s.start("b");
    s.wait_up(2);
    s.kill("b");
    // A node that has moved since: its old place is free, though others may still have it noted.
    s.kill("a");
    let c = s.address("c");
    s.start_with("a", &["--listen", &c]);
    s.start("b");
    wait_for("a at another place", || {
        let out = tools::output(s.freebs().args(["--cluster", &b, "status", "--json"]), PATIENCE);
        told(&out).contains(&c).then_some(())
    });
    s.kill("b");
    s.start_with("b", &["--listen", &a]);
    wait_for("b at a's old place", || {
        let out = tools::output(s.freebs().args(["--cluster", &c, "status", "--json"]), PATIENCE);
        let status: Value = serde_json::from_slice(&out.stdout).ok()?;
        let up = status["nodes"].as_array()?.iter().filter(|n| n["state"] == "up").count();
        (up == 2 && file_of(&s, "b")["nodes"][0]["address"] == a.as_str()).then_some(())
    });
}

/// A node may not be where another one is, also while that one is down.
#[test]
fn the_place_of_a_node_that_is_down_is_not_taken() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    s.kill("c");
    s.kill("b");
    let c = s.address("c");
    start_refused(&s, "b", &["--listen", &c], &["is that of c"]);
    assert_eq!(file_of(&s, "b")["nodes"][0]["address"], s.address("b").as_str());
    s.start("b");
    s.start("c");
    s.wait_up(3);
}

/// Somebody else's key, and files that say less than the node's own does.
#[test]
fn what_the_cluster_knows_of_a_node_is_held_against_it() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    s.kill("b");
    let (key, kept) = (s.data("b").join("node-key"), s.dir().join("kept"));
    std::fs::copy(&key, &kept).expect("copied");
    std::fs::copy(s.data("c").join("node-key"), &key).expect("copied");
    let certificate = s.data("b").join("node-certificate");
    start_refused(&s, "b", &[], &["node-certificate", "not of this node's key"]);
    // With the certificate that belongs to it, too.
    let own = std::fs::read(&certificate).expect("a certificate");
    std::fs::copy(s.data("c").join("node-certificate"), &certificate).expect("copied");
    start_refused(&s, "b", &[], &["node-certificate", "not that of node 2"]);
    // And with one that the authority would never have made.
    std::fs::write(&certificate, certified(&s, 2, "c")).expect("written");
    start_refused(&s, "b", &[], &["node-key", "another key"]);
    std::fs::write(&certificate, own).expect("written");
    std::fs::copy(&kept, &key).expect("copied");
    // Without the authority it would speak plain.
    let mut file = file_of(&s, "b");
    let (object, open) = (file.as_object_mut().expect("an object"), s.dir().join("open.json"));
    object.remove("authority");
    object.remove("peers");
    std::fs::write(&open, file.to_string()).expect("written");
    let open = open.to_str().expect("a text");
    start_refused(&s, "b", &["--cluster-file", open], &["authority"]);
    edit(&s, "b", |file| file["authority"] = "00".repeat(32).into());
    start_refused(&s, "b", &[], &["node-certificate", "not signed by the authority that cluster.json names"]);
}

/// The state that was made again lay on a node that has joined: it was put aside unread, and the node waited for ever.
#[test]
fn a_state_that_was_made_again_is_read_on_any_node() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    let door = s.gateway("door");
    let mut client = wait_for("the gateway", || Client::connect(&door, "data", true).ok());
    client.write(0, &[7; 4096]);
    drop(client);
    for name in ["door", "a", "b", "c"] {
        s.kill(name);
    }
    // One node's own file names not all of them.
    let own = s.data("b").join("cluster.json");
    let rebuild = |file: &Path| {
        let mut cmd = s.freebs();
        cmd.args(["control", "rebuild", "--write", "--put-aside", "--cluster-file"]).arg(file);
        tools::output(&mut cmd, PATIENCE)
    };
    refused(&rebuild(&own), &["has to name all nodes"]);
    let node = |name: &str| {
        let mut node = file_of(&s, name)["nodes"][0].clone();
        node["data"] = s.data(name).to_str().expect("a text").into();
        node
    };
    let b = file_of(&s, "b");
    let mut all = json!({ "version": 1, "cluster": b["cluster"], "nodes": [node("b"), node("c")] });
    let path = s.dir().join("all.json");
    let write = |all: &Value| std::fs::write(&path, all.to_string()).expect("written");
    write(&all);
    refused(&rebuild(&path), &["authority"]);
    all["authority"] = b["authority"].clone();
    write(&all);
    refused(&rebuild(&path), &["does not name a"]);
    all["nodes"].as_array_mut().expect("a list").push(node("a"));
    write(&all);
    done(&rebuild(&path));
    for name in ["b", "c", "a"] {
        s.start(name);
    }
    s.wait_up(3);
    s.wait_healthy("data");
    // The numbers go on behind those that were given, and the place is still for members alone.
    done(&s.join("b", &s.token("10min"), "d", &[]));
    assert_eq!(file_of(&s, "d")["nodes"][0]["id"], 4);
    let door = s.gateway("again");
    let mut client = wait_for("the gateway", || Client::connect(&door, "data", true).ok());
    assert_eq!(client.read(0, 4096), [7; 4096]);
}

/// All stop, and the state is made again from these nodes' logs; the first one founds the cluster with it.
fn make_again(s: &mut Servers, running: &[&str], named: &[&str], without: &[&str]) {
    running.iter().for_each(|name| s.kill(name));
    let own = file_of(s, named[0]);
    let node = |name: &&str| {
        let mut node = file_of(s, name)["nodes"][0].clone();
        node["data"] = s.data(name).to_str().expect("a text").into();
        node
    };
    let nodes: Vec<_> = named.iter().map(node).collect();
    let all = json!({ "version": 1, "cluster": own["cluster"], "authority": own["authority"], "nodes": nodes });
    let path = s.dir().join("all.json");
    std::fs::write(&path, all.to_string()).expect("written");
    let mut cmd = s.freebs();
    cmd.args(["control", "rebuild", "--write", "--put-aside", "--cluster-file"]).arg(&path);
    cmd.args(without.iter().flat_map(|name| ["--without", name]));
    done(&tools::output(&mut cmd, PATIENCE));
    start_refused(
        s,
        named[0],
        &["--cluster-file", path.to_str().expect("a text"), "--name", named[0]],
        &["node --data"],
    );
}

/// The one that had the only vote went by what its own file said of the time before, and could never start again.
#[test]
fn the_other_one_of_two_founds_the_cluster_again() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    s.start("b");
    s.wait_up(2);
    s.json(&["volume", "create", "data", "--size", "16M"]);
    wait_for("that b has run", || (file_of(&s, "a")["peers"][0]["has_run"] == true).then_some(()));
    make_again(&mut s, &["a", "b"], &["b", "a"], &[]);
    s.start("b");
    s.start("a");
    s.wait_up(2);
    s.wait_healthy("data");
    wait_for("the only vote of b", || (file_of(&s, "b")["only_vote"] == true).then_some(()));
    assert_eq!(file_of(&s, "a").get("only_vote"), None);
}

/// A node that was left out of the new state came back with its store of before: the founder of the new one ended at each start,
/// and was said to be the old one.
#[test]
fn a_store_of_before_the_state_was_made_again_ends_nobody_else() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    wait_for("three votes", || file_of(&s, "a").get("only_vote").is_none().then_some(()));
    s.wait_healthy("data");
    let kept = ["control.store", "control.note"].map(|name| (s.data("c").join(name), s.dir().join(name)));
    s.kill("c");
    let copy = |from: &PathBuf, to: &PathBuf| assert!(std::fs::copy(from, to).expect("copied") > 0);
    kept.iter().for_each(|(from, to)| copy(from, to));
    make_again(&mut s, &["a", "b"], &["a", "b", "c"], &["c"]);
    s.start("a");
    s.start("b");
    wait_for("the founder", || {
        let status: Value = serde_json::from_slice(&s.cli(&["status", "--json"]).stdout).ok()?;
        (status["nodes"].as_array()?.iter().filter(|n| n["state"] == "up").count() == 2).then_some(())
    });
    lose(&s.data("c"), &["control."]);
    kept.iter().for_each(|(to, from)| copy(from, to));
    s.start("c");
    assert_eq!(s.wait_ended("c"), Some(1));
    let log = std::fs::read_to_string(s.dir().join("c.log")).expect("a log");
    assert!(log.contains("made again"), "{log}");
    s.json(&["volume", "create", "more", "--size", "16M", "--copies", "1"]);
    // It does what it was told, and is a member as before.
    lose(&s.data("c"), &["control."]);
    s.start("c");
    s.wait_up(3);
}

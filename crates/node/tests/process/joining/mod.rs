//! A cluster that grows: nodes join with tokens, one after the other, and volumes get copies on them.

mod again;
mod copies;
mod encrypted;
mod hostile;
mod machines;
mod page;
mod removed;
mod tokens;

use crate::support::nbd::{Client, Op};
use crate::support::servers::Servers;
use crate::support::tools::{self, told, wait_for};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BLOCK: usize = 4096;

/// The command ends with status 1 and says these words.
#[track_caller]
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

#[track_caller]
fn done(out: &Output) {
    assert!(out.status.success(), "{}", told(out));
}

/// The cluster file of a node, changed by hand.
fn edit(s: &Servers, name: &str, how: impl FnOnce(&mut Value)) {
    let path = s.data(name).join("cluster.json");
    let mut file = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    how(&mut file);
    std::fs::write(&path, file.to_string()).expect("written");
}

/// A start of a node that must end by itself, and say these words.
#[track_caller]
fn start_refused(s: &Servers, name: &str, more: &[&str], words: &[&str]) {
    let mut cmd = s.freebs();
    cmd.arg("node").arg("--data").arg(s.data(name)).args(more);
    refused(&tools::output(&mut cmd, PATIENCE), words);
}

/// Three nodes that have joined, with a volume on all of them.
fn three() -> Servers {
    let mut s = Servers::begin(3);
    for (i, name) in ["b", "c"].into_iter().enumerate() {
        done(&s.join("a", &s.token("10min"), name, &[]));
        s.start(name);
        s.wait_up(i + 2);
    }
    s.json(&["volume", "create", "data", "--size", "16M"]);
    s
}

fn member_names(v: &Value) -> Vec<String> {
    let members = v["shards"][0]["members"].as_array().expect("a list");
    let mut names: Vec<_> = members.iter().map(|m| m["node"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn three_nodes_join_and_one_may_die() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(3);
    for (i, name) in ["b", "c"].into_iter().enumerate() {
        // By any node of the cluster.
        let by = ["a", "b"][i];
        done(&s.join(by, &s.token("10min"), name, &[]));
        s.start(name);
        let nodes = s.wait_up(i + 2);
        assert_eq!(nodes.len(), i + 2);
    }
    let made = s.json(&["volume", "create", "data", "--size", "64M"]);
    assert_eq!((made["copies"].as_u64(), member_names(&made)), (Some(3), vec!["a".into(), "b".into(), "c".into()]));
    let place = s.gateway("door");
    let mut client = wait_for("the gateway", || Client::connect(&place, "data", true).ok());
    for i in 0..16 {
        client.write(i << 20, &[i as u8 + 1; BLOCK]);
    }
    // The first node has begun the cluster, and is not needed more than others.
    s.kill("a");
    for i in 0..16 {
        assert_eq!(client.read(i << 20, BLOCK as u32), [i as u8 + 1; BLOCK], "block {i}");
    }
    for i in 16..32 {
        client.write(i << 20, &[i as u8 + 1; BLOCK]);
    }
    assert!(matches!(client.ask(&Op::Flush), Ok(Ok(_))));
    s.start("a");
    s.wait_up(3);
    s.wait_healthy("data");
    for i in 0..32 {
        assert_eq!(client.read(i << 20, BLOCK as u32), [i as u8 + 1; BLOCK], "block {i}");
    }
    drop(client);
    let verified = s.cli(&["volume", "verify", "data"]);
    done(&verified);
}

#[test]
fn tokens_are_good_for_one_node_and_a_time() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::begin(4);
    let first = s.token("10min");
    let short = s.json(&["cluster", "token", "--expires", "1s"]);
    done(&s.join("a", &first, "b", &[]));
    refused(&s.join("a", &first, "c", &[]), &["the token was used by b already", "freebs cluster token"]);
    // The name, and the place, of others; the token is still good afterwards.
    let second = s.token("10min");
    let elsewhere = s.data("elsewhere");
    let elsewhere = elsewhere.to_str().expect("a text");
    refused(
        &s.join("a", &second, "b", &["--listen", "127.0.0.1:9", "--data", elsewhere]),
        &["the name b is node 2's", "--name"],
    );
    refused(&s.join("a", &second, "c", &["--listen", &s.address("b")]), &["is that of b", "--listen"]);
    // It ends by the clock of this machine, which the node has, too.
    let ends = UNIX_EPOCH + Duration::from_millis(short["expires_ms"].as_u64().expect("a time"));
    wait_for("the end of the token", || (SystemTime::now() > ends).then_some(()));
    refused(&s.join("a", short["token"].as_str().expect("a text"), "d", &[]), &["the token ended"]);
    done(&s.join("a", &second, "c", &[]));
    // A node that has joined and never ran is seen, and gets nothing to keep.
    let status = s.json(&["status"]);
    let seen: Vec<_> = status["nodes"].as_array().expect("a list").iter().map(|n| n["name"].clone()).collect();
    assert_eq!(seen, ["a", "b", "c"]);
    assert_eq!(member_names(&s.json(&["volume", "create", "data", "--size", "16M"])), ["a"]);
    s.start("c");
    s.wait_up(2);
    assert_eq!(member_names(&s.json(&["volume", "create", "more", "--size", "16M"])), ["a", "c"]);
}

#[test]
fn what_can_not_join_is_told_the_way_out() {
    let _turn = turn(Weight::Light);
    let (s, other) = (Servers::begin(2), Servers::begin(1));
    let (token, foreign) = (s.token("10min"), other.token("10min"));
    refused(&s.join("a", &foreign, "b", &[]), &["the token is of the cluster", "name a node of that cluster"]);
    let cut = &token[..token.len() - 1];
    refused(&s.join("a", cut, "b", &[]), &["no token to join with: it has 191 characters"]);
    let out = s.join("a", &token, "b", &["--listen", "0.0.0.0:7400"]);
    refused(&out, &["nobody reaches one at 0.0.0.0:7400"]);
    let out = s.join("a", &token, "b", &["--listen", "127.0.0.1:0"]);
    assert!(!out.status.success(), "{}", told(&out));
    // The others would look for it on themselves.
    let out = s.join_at("192.0.2.1:7400", &token, "b", &["--listen", "127.0.0.1:7400"]);
    refused(&out, &["could not reach this one at 127.0.0.1:7400", "--listen"]);
    // A file there may be another cluster's.
    std::fs::create_dir_all(s.data("b")).expect("a directory");
    std::fs::write(s.data("b").join("view-secret"), [1; 32]).expect("written");
    refused(&s.join("a", &token, "b", &[]), &["view-secret", "--data"]);
    std::fs::remove_dir_all(s.data("b")).expect("removed");
    let up = s.cli(&["up", "--data", s.data("a").to_str().expect("a text")]);
    refused(&up, &["freebs node --data", "Choose another directory"]);
    let a = s.data("a");
    let a = a.to_str().expect("a text");
    refused(&s.join("a", &token, "b", &["--data", a]), &["--data"]);
    refused(&other.init("a"), &["--data"]);
    refused(&s.cli(&["cluster", "init", "--listen", "0.0.0.0:7400", "--data", "x"]), &["nobody reaches"]);
    // A secret is not for logs, nor for errors.
    assert!(!s.log().contains(&token[112..160]) && !told(&out).contains(&token[112..160]));
    done(&s.join("a", &token, "b", &[]));
    refused(
        &s.join("a", &s.token("10min"), "c", &["--data", s.data("b").to_str().expect("a text")]),
        &["of b", "--data"],
    );
}

/// Somebody who was told the cluster's identity could become a member of it, and get a vote.
#[test]
fn a_node_that_has_not_joined_is_not_taken_in() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    // As b, with another number: it has all that a member has but the membership.
    edit(&s, "b", |file| {
        file["nodes"][0]["id"] = 7.into();
        file["nodes"][0]["name"] = "stranger".into();
    });
    s.start("b");
    assert_eq!(s.wait_ended("b"), Some(1));
    assert!(s.log().contains("its certificate is not that of node 7"), "{}", s.log());
    // With the authority's key it could have that, too, and is still no member.
    std::fs::write(s.data("b").join("node-certificate"), encrypted::certified(&s, 7, "b")).expect("written");
    s.start("b");
    assert_eq!(s.wait_ended("b"), Some(1));
    assert!(s.log().contains("is no member of this cluster"), "{}", s.log());
    let status = s.json(&["status"]);
    assert!(!status.to_string().contains("stranger"), "{status:#}");
}

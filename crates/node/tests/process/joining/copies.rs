//! A first node that is started from a copy of its directory, made when it was alone: it has the only vote, as it knows.

use super::done;
use crate::support::cluster::freebs;
use crate::support::servers::Servers;
use crate::support::tools::{self, told, wait_for};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::Value;
use std::path::Path;

fn copy(from: &Path, to: &Path) {
    let done = tools::output(tools::command("cp").arg("-r").arg(from).arg(to), PATIENCE);
    assert!(done.status.success(), "{}", told(&done));
}

/// The node that leads by the word of the one there; `None` if that says nothing.
fn leader_by(address: &str) -> Option<u64> {
    let out = tools::output(freebs().args(["--cluster", address, "status", "--json"]), PATIENCE);
    let status: Value = serde_json::from_slice(&out.stdout).ok()?;
    status["nodes"].as_array()?.iter().find(|n| n["leads"] == true)?["id"].as_u64()
}

/// Two nodes join, the first one dies, and a copy of its directory takes its place.
fn grown(s: &mut Servers) {
    for (i, name) in ["b", "c"].into_iter().enumerate() {
        done(&s.join("a", &s.token("10min"), name, &[]));
        s.start(name);
        s.wait_up(i + 2);
    }
    s.json(&["volume", "create", "data", "--size", "16M"]);
    s.kill("a");
    std::fs::remove_dir_all(s.data("a")).expect("removed");
    copy(&s.data("old"), &s.data("a"));
}

/// The first node ends, names the way out, and the others lead.
fn ends_by_itself(s: &mut Servers) {
    assert_eq!(s.wait_ended("a"), Some(1));
    let log = std::fs::read_to_string(s.dir().join("a.log")).expect("a log");
    assert!(log.contains("old"), "{log}");
    let b = s.address("b");
    let leader = wait_for("a leader", || leader_by(&b));
    assert_ne!(leader, 1, "{}", s.log());
    assert!(s.json(&["volume", "list"]).to_string().contains("data"));
}

/// It led alone at once, and turned the others away as strangers: two clusters of one name.
#[test]
fn a_copy_of_the_first_node_from_when_it_was_alone_does_not_lead() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(2);
    s.kill("a");
    copy(&s.data("a"), &s.data("old"));
    s.start("a");
    s.wait_up(1);
    grown(&mut s);
    s.start("a");
    ends_by_itself(&mut s);
}

/// The same with others that begin at the same time, so that none of them leads.
#[test]
fn nor_does_it_after_a_power_cut() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::begin(2);
    s.kill("a");
    copy(&s.data("a"), &s.data("old"));
    s.start("a");
    s.wait_up(1);
    grown(&mut s);
    s.kill("b");
    s.kill("c");
    for name in ["a", "b", "c"] {
        s.start(name);
    }
    ends_by_itself(&mut s);
}

/// The files of `cluster init` are those one saves: they founded the cluster a second time.
#[test]
fn the_files_of_init_found_it_no_second_time() {
    let _turn = turn(Weight::Loaded);
    let mut s = Servers::made(2);
    copy(&s.data("a"), &s.data("old"));
    s.start("a");
    s.wait_up(1);
    grown(&mut s);
    s.start("a");
    ends_by_itself(&mut s);
}

//! The control plane of a cluster, as clients of it see it: commands that are done once, and what all nodes say of them.

use super::PATIENCE;
use super::cluster::Cluster;
use super::tools::{self, told, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rest of a client between two commands: the machine is to do other things, too.
const BETWEEN: Duration = Duration::from_millis(20);
/// Names that one client uses again and again.
const NAMES: usize = 6;

/// Runs a command that talks to one node of the cluster, or to any.
pub fn ask(c: &Cluster, node: Option<&str>, args: &[&str]) -> Output {
    let mut cmd = c.freebs();
    if let Some(address) = node {
        cmd.env("FREEBS_CLUSTER", address);
    }
    tools::output(cmd.args(args).arg("--json"), PATIENCE)
}

fn said(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(out)))
}

/// A node as `status` shows it: name, process and address.
pub type Shown = (String, u32, String);

/// All `nodes` as they are now, once exactly one leads, all are up and all vote; the leader first.
pub fn settled(c: &Cluster, nodes: usize) -> Vec<Shown> {
    let count = nodes;
    wait_for("a leader, and votes of all", || {
        let status = c.status();
        let mut nodes = status["nodes"].as_array()?.clone();
        nodes.sort_by_key(|n| n["leads"] != true);
        let led = nodes.iter().filter(|n| n["leads"] == true).count() == 1;
        let voting = nodes.iter().all(|n| n["votes"] == true);
        let of =
            |n: &Value| Some((n["name"].as_str()?.into(), n["pid"].as_u64()? as u32, n["address"].as_str()?.into()));
        let found: Vec<_> = nodes.iter().filter_map(of).collect();
        (led && voting && found.len() == count).then_some(found)
    })
}

/// One command, sent until it is known to have been done; how long that took. `already`: what a node says if it was
/// done by an attempt whose answer was lost.
fn done(c: &Cluster, node: Option<&str>, args: &[&str], already: &str) -> Duration {
    let begun = Instant::now();
    let mut lost = false;
    loop {
        let out = ask(c, node, args);
        if out.status.success() {
            break;
        }
        let error = said(&out)["error"].clone();
        if error["kind"] == "retry" {
            lost = true;
        } else if lost && error["kind"] == already {
            break;
        } else {
            panic!("{args:?}: {}\n{}", told(&out), c.log());
        }
        assert!(begun.elapsed() < PATIENCE, "{args:?} is not done in {PATIENCE:?}: {}\n{}", told(&out), c.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

pub fn create(c: &Cluster, node: Option<&str>, name: &str, copies: &str) -> Duration {
    done(c, node, &["volume", "create", name, "--size", "64M", "--copies", copies, "--no-wait"], "invalid")
}

fn delete(c: &Cluster, name: &str) -> Duration {
    done(c, None, &["volume", "delete", name], "not_found")
}

/// Creates and deletes volumes of so many copies, under the same few names, until it is told to stop. What there is of
/// them in the end.
pub fn churn(
    c: &Cluster,
    who: &str,
    copies: &str,
    stop: &AtomicBool,
    times: &Mutex<Vec<Duration>>,
) -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for i in 0.. {
        let name = format!("{who}{}", i % NAMES);
        // Every name is seen with and without its volume, and some volumes stay for a while.
        let took = if there.remove(&name) {
            delete(c, &name)
        } else {
            let took = create(c, None, &name, copies);
            there.insert(name);
            took
        };
        times.lock().expect("not poisoned").push(took);
        std::thread::sleep(BETWEEN);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    there
}

/// Every node's list of volumes: the same names and identities, none twice.
pub fn agreed(c: &Cluster, nodes: &[Shown]) -> BTreeSet<String> {
    let list = |address: &str| -> Vec<(String, u64)> {
        let status = said(&ask(c, Some(address), &["volume", "list"]));
        let volumes = status["volumes"].as_array().unwrap_or_else(|| panic!("no volumes in {status:#}")).clone();
        let of = |v: &Value| (v["name"].as_str().expect("a name").to_owned(), v["id"].as_u64().expect("an id"));
        volumes.iter().map(of).collect()
    };
    let last = Mutex::new(vec![]);
    let same = || {
        let lists: Vec<_> = nodes.iter().map(|n| list(&n.2)).collect();
        let equal = lists.iter().all(|l| *l == lists[0]);
        *last.lock().expect("not poisoned") = lists.clone();
        equal.then(|| lists[0].clone())
    };
    let all = wait_for("the same volumes on all nodes", same);
    let names: BTreeSet<String> = all.iter().map(|v| v.0.clone()).collect();
    let ids: BTreeSet<u64> = all.iter().map(|v| v.1).collect();
    assert!(names.len() == all.len() && ids.len() == all.len(), "something is there twice: {all:?}");
    names
}

/// What commands took, for a person.
pub fn ms(times: &mut [Duration]) -> String {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_millis();
    format!("median {} ms, 90% {} ms, longest {} ms", at(50), at(90), at(100))
}

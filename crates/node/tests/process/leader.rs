//! The leader of the control plane dies, or stands still, while volumes are created and deleted. What was answered is
//! there, once, as all nodes say.

use crate::support::cluster::{Cluster, Setup};
use crate::support::tools::{self, say, told, wait_for};
use crate::support::{Raised, alone, full};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// No command may take so long, on a slow machine either.
const COMMAND_MAX: Duration = Duration::from_secs(15);
/// Names that one client uses again and again.
const NAMES: usize = 6;

/// Runs a command that talks to one node of the cluster, or to any.
fn ask(c: &Cluster, node: Option<&str>, args: &[&str]) -> Output {
    let mut cmd = c.freebs();
    if let Some(address) = node {
        cmd.env("FREEBS_CLUSTER", address);
    }
    tools::output(cmd.args(args).arg("--json"), Duration::from_secs(60))
}

fn said(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(out)))
}

/// The nodes as they are now, once exactly one leads, all are up and all vote: name, process and address, the leader
/// first.
fn settled(c: &Cluster) -> Vec<(String, u32, String)> {
    wait_for("a leader and three votes", Duration::from_secs(30), || {
        let status = c.status();
        let mut nodes = status["nodes"].as_array()?.clone();
        nodes.sort_by_key(|n| n["leads"] != true);
        let led = nodes.iter().filter(|n| n["leads"] == true).count() == 1;
        let voting = nodes.iter().all(|n| n["votes"] == true);
        let of =
            |n: &Value| Some((n["name"].as_str()?.into(), n["pid"].as_u64()? as u32, n["address"].as_str()?.into()));
        let found: Vec<_> = nodes.iter().filter_map(of).collect();
        (led && voting && found.len() == 3).then_some(found)
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
        assert!(begun.elapsed() < COMMAND_MAX, "{args:?} is not done in {COMMAND_MAX:?}: {}\n{}", told(&out), c.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

fn create(c: &Cluster, node: Option<&str>, name: &str) -> Duration {
    done(c, node, &["volume", "create", name, "--size", "64M", "--copies", "1", "--no-wait"], "invalid")
}

fn delete(c: &Cluster, name: &str) -> Duration {
    done(c, None, &["volume", "delete", name], "not_found")
}

/// Creates and deletes volumes under the same few names until it is told to stop. What there is of them in the end.
fn churn(c: &Cluster, who: &str, stop: &AtomicBool, times: &Mutex<Vec<Duration>>) -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for i in 0.. {
        let name = format!("{who}{}", i % NAMES);
        // Every name is seen with and without its volume, and some volumes stay for a while.
        let took = if there.remove(&name) {
            delete(c, &name)
        } else {
            let took = create(c, None, &name);
            there.insert(name);
            took
        };
        times.lock().expect("not poisoned").push(took);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    there
}

/// Every node's list of volumes: the same names and identities, none twice.
fn agreed(c: &Cluster, nodes: &[(String, u32, String)]) -> BTreeSet<String> {
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
    let all = wait_for("the same volumes on all nodes", Duration::from_secs(10), same);
    let names: BTreeSet<String> = all.iter().map(|v| v.0.clone()).collect();
    let ids: BTreeSet<u64> = all.iter().map(|v| v.1).collect();
    assert!(names.len() == all.len() && ids.len() == all.len(), "something is there twice: {all:?}");
    names
}

fn ms(times: &mut [Duration]) -> String {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_millis();
    format!("median {} ms, 90% {} ms, longest {} ms", at(50), at(90), at(100))
}

#[test]
fn leaders_killed_while_volumes_come_and_go_lose_and_double_nothing() {
    let _turn = alone();
    let rounds = if full() { 50 } else { 5 };
    let c = Cluster::up(Setup { volume: Some("demo:64M"), ..Setup::default() });
    settled(&c);
    let (stop, times) = (AtomicBool::new(false), Mutex::new(vec![]));
    let mut wanted = std::thread::scope(|s| {
        let clients: Vec<_> = ["a", "b"].map(|who| s.spawn(|| churn(&c, who, &stop, &times))).into_iter().collect();
        let _raised = Raised(&stop);
        for _ in 0..rounds {
            let nodes = settled(&c);
            c.kill(&[nodes[0].1]);
            let count = || times.lock().expect("not poisoned").len();
            let before = count();
            wait_for("commands behind the kill", 2 * COMMAND_MAX, || (count() >= before + 6).then_some(()));
            let back = || c.nodes().iter().any(|n| n.0 == nodes[0].0 && n.1 != nodes[0].1).then_some(());
            wait_for("the killed node", Duration::from_secs(30), back);
        }
        drop(_raised);
        let all = clients.into_iter().flat_map(|t| t.join().expect("a client"));
        all.collect::<BTreeSet<_>>()
    });
    wanted.insert("demo".into());
    assert_eq!(agreed(&c, &settled(&c)), wanted);
    let times = &mut times.into_inner().expect("not poisoned");
    say(&format!("measured: leader killed {rounds} times under {} commands: {}", times.len(), ms(times)));
}

/// Nobody hears that its connections end, and nobody starts it again: the others have to notice.
#[test]
fn a_leader_that_stands_still_is_replaced() {
    let _turn = alone();
    let rounds = if full() { 20 } else { 4 };
    let c = Cluster::up(Setup { volume: Some("demo:64M"), ..Setup::default() });
    let mut times = vec![];
    let mut wanted: BTreeSet<String> = ["demo".into()].into();
    for round in 0..rounds {
        let nodes = settled(&c);
        c.pause(nodes[0].1);
        let name = format!("v{round}");
        times.push(create(&c, Some(&nodes[1].2), &name));
        wanted.insert(name);
        c.resume(nodes[0].1);
        assert_eq!(agreed(&c, &nodes), wanted, "round {round}");
    }
    let told = ms(&mut times);
    say(&format!("measured: a volume created while the leader stands still: {told}"));
    // What is aimed at; a machine that does other things meanwhile may need more.
    let limit = Duration::from_millis(if full() { 1500 } else { 5000 });
    assert!(times[times.len() / 2] < limit, "{told}");
}

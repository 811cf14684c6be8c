//! Nodes that go away for long: others take their places and learn what they had, under load, and whoever comes back
//! has nothing to say any more.

use crate::support::cluster::{Cluster, Setup};
use crate::support::device;
use crate::support::load::Load;
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, full, turn};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Answers that show that it goes on: far more than are in flight at once.
const SOME: u64 = 300;

/// Members of the first shard, once all of them are active, and `without` is none of them.
fn members(c: &Cluster, without: &str) -> Vec<String> {
    wait_for("a chain without it", || {
        let v = c.volume("demo");
        let all = v["shards"][0]["members"].as_array()?.clone();
        let names: Vec<String> = all.iter().filter_map(|m| Some(m["node"].as_str()?.to_owned())).collect();
        let whole = all.iter().all(|m| m["state"] == "active") && !names.iter().any(|n| n == without);
        whole.then_some(names)
    })
}

fn pid(c: &Cluster, node: &str) -> u32 {
    c.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down")).1
}

/// Shards of which something is on a node's devices.
fn shards_on(c: &Cluster, node: &str) -> usize {
    let devices = device::files(&c.data().join(node));
    let shards = |path: &PathBuf| {
        let found = c.json(&["device", "inspect", path.to_str().expect("a path")]);
        let shards = found["shards"].as_array().expect("a list of shards");
        // Of a shard that was let go of, the promise stays.
        let has_some = |s: &&Value| s["sequence"] != 0 || s["live_bytes"] != 0 || s["promised"] == 0;
        shards.iter().filter(has_some).count()
    };
    devices.iter().map(shards).sum()
}

#[test]
fn members_that_are_gone_are_replaced_under_load() {
    let _turn = turn(Weight::Light);
    let env = vec![("FREEBS_REPLACE_AFTER".into(), "3s".into())];
    let mut c = Cluster::up(Setup { nodes: 4, more: vec!["--no-restart".into()], env, ..Setup::default() });
    let region = if full() { 192 * MIB } else { 24 * MIB };
    let mut oracle = Oracle::new(0, region, Rng::announced("members that are gone"));
    let answers = oracle.answers.clone();
    let place = c.place.clone();
    let load = Load { pause: Duration::from_millis(1), ..Load::new(&place, "demo") };
    let (head, others) = c.chain("demo");
    let paused = others[0].clone();
    let mut times: Vec<(&str, Duration)> = Vec::new();
    load.run(&c, &mut oracle, || {
        answers.more(2 * SOME);
        let begun = Instant::now();
        let old = pid(&c, &paused);
        c.pause(old);
        let chain = members(&c, &paused);
        times.push(("a member stood still", begun.elapsed()));
        assert!(chain.contains(&head) && chain.contains(&others[1]), "{chain:?}");
        c.resume(old);
        // It is to spare again, and takes the place of the head.
        wait_for("the one that stood still", || c.nodes().iter().any(|n| n.0 == paused).then_some(()));
        let begun = Instant::now();
        let (head, _) = c.chain("demo");
        c.kill(&[pid(&c, &head)]);
        let chain = members(&c, &head);
        times.push(("the head was killed", begun.elapsed()));
        assert!(chain.contains(&paused), "{chain:?}");
        answers.more(SOME);
    });
    assert_eq!((oracle.tally.errors, oracle.tally.lost), (0, 0), "{:?}", oracle.tally);
    load.check(&c, &mut oracle);
    c.verify("demo");
    let told = c.cli(&["events", "--json", "--volume", "demo"]);
    let told: Vec<Value> =
        String::from_utf8_lossy(&told.stdout).lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    for kind in ["member_replaced", "member_complete"] {
        assert_eq!(told.iter().filter(|e| e["kind"] == kind).count(), 2, "{kind}: {told:#?}");
    }
    for (what, took) in times {
        say(&format!("measured: {what}; {:.1} s until another had everything", took.as_secs_f64()));
    }
    say(&format!(
        "measured: longest gap {} ms in {} writes",
        oracle.tally.longest_gap.as_millis(),
        oracle.tally.writes
    ));

    // The dead one comes back with all the others, finds that it is no member any more, and lets go of what it has.
    c.stop();
    assert_eq!(shards_on(&c, &head), 1);
    c.start();
    c.wait_healthy("demo");
    wait_for("all four", || (c.nodes().len() == 4).then_some(()));
    load.check(&c, &mut oracle);
    std::thread::sleep(Duration::from_secs(1));
    c.stop();
    let chain: usize = ["node1", "node2", "node3", "node4"].iter().map(|n| shards_on(&c, n)).sum();
    assert_eq!((shards_on(&c, &head), chain), (0, 3));
}

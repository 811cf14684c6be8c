//! All copies of the control state are lost: `freebs control rebuild` makes it again from the nodes' logs, and every
//! volume is there with what was answered.

use crate::support::cluster::{Cluster, Setup, files_below};
use crate::support::load::Load;
use crate::support::nbd::{Client, Place};
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{self, say, wait_for};
use crate::support::{Weight, full, turn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Answers that a client gets before it all ends.
const SOME: u64 = 2000;
const CONTROL: [&str; 2] = ["control.store", "control.note"];

/// What must be the same before and after: size, shards, copies, by name.
fn volumes(c: &Cluster) -> BTreeMap<String, (u64, usize, u64, u64)> {
    let shown = |v: &Value| {
        let number = |key: &str| v[key].as_u64().unwrap_or_else(|| panic!("{key}: {v:#}"));
        let shards = v["shards"].as_array().expect("a list").len();
        let name = v["name"].as_str().expect("a name").to_owned();
        (name, (number("size"), shards, number("copies"), number("min_copies")))
    };
    c.status()["volumes"].as_array().expect("a list").iter().map(shown).collect()
}

fn view(c: &Cluster, volume: &str) -> u64 {
    c.volume(volume)["shards"][0]["view"].as_u64().expect("a view")
}

fn must(c: &Cluster, args: &[&str]) {
    let out = c.cli(args);
    assert!(out.status.success(), "freebs {args:?}: {}", tools::told(&out));
}

/// Every file of the control state, on all nodes.
fn control_files(c: &Cluster) -> Vec<PathBuf> {
    let is_control = |p: &Path| {
        let name = p.file_name().expect("a name").to_string_lossy().into_owned();
        name.starts_with("control.")
    };
    files_below(&c.data(), &is_control)
}

/// Removes all of them.
fn lose(c: &Cluster) -> usize {
    let all = control_files(c);
    all.iter().for_each(|p| fs::remove_file(p).unwrap_or_else(|e| panic!("{}: {e}", p.display())));
    all.iter().filter(|p| CONTROL.iter().any(|n| p.ends_with(n))).count()
}

fn rebuild(c: &Cluster, more: &[&str]) -> (Option<i32>, Value, String) {
    let file = c.data().join("cluster.json");
    let mut args = vec!["--json", "control", "rebuild", "--cluster-file", file.to_str().expect("a path")];
    args.extend(more);
    let out = c.cli(&args);
    let shown = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", tools::told(&out)));
    (out.status.code(), shown, tools::told(&out))
}

fn names(shown: &Value) -> Vec<String> {
    let all = shown["volumes"].as_array().unwrap_or_else(|| panic!("{shown:#}"));
    let mut names: Vec<String> = all.iter().map(|v| v["name"].as_str().expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}

/// `kill -9` of everything while the oracle writes.
fn kill_under_load(c: &mut Cluster, place: &Place, oracle: &mut Oracle) {
    let mut client = Load::new(place, "demo").attach();
    let answers = oracle.answers.clone();
    let all = c.processes();
    std::thread::scope(|s| {
        s.spawn(|| {
            answers.more(SOME);
            c.kill(&[c.supervisor()]);
            c.sweep();
        });
        let ended = oracle.run(&mut client, 32, || false).unwrap_or_else(|e| panic!("{e}"));
        assert!(!ended, "the connection ends with the gateway");
    });
    c.crash();
    c.wait_ended(&all);
}

/// Volumes of several kinds, one of them made larger, one deleted.
fn prepare(c: &Cluster) {
    must(c, &["volume", "create", "wide", "--size", "64M", "--shards", "4", "--stripe", "64K"]);
    must(c, &["volume", "create", "one", "--size", "32M", "--copies", "1"]);
    must(c, &["volume", "create", "five", "--size", "32M", "--copies", "5", "--ack", "all", "--min-copies", "3"]);
    must(c, &["volume", "create", "gone", "--size", "32M"]);
    must(c, &["volume", "delete", "gone"]);
    for i in 0..if full() { 200 } else { 20 } {
        must(c, &["volume", "create", &format!("small{i}"), "--size", "1M"]);
    }
    let before = view(c, "demo");
    must(c, &["volume", "resize", "demo", "--size", "384M"]);
    wait_for("a view that says the new size", || (view(c, "demo") > before).then_some(()));
    for name in ["demo", "wide", "one", "five"] {
        c.wait_healthy(name);
    }
}

#[test]
fn volumes_come_back_when_the_control_state_is_lost() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { nodes: 5, more: vec!["--no-restart".into()], ..Setup::default() });
    let place = c.place.clone();
    prepare(&c);
    let mut wide = Client::attach(&place, "wide");
    let pattern: Vec<u8> = (0..MIB).map(|i| (i / 7) as u8).collect();
    wide.write(3 * MIB, &pattern);
    drop(wide);
    let mut oracle = Oracle::new(0, 96 * MIB, Rng::announced("a lost control state"));
    let answers = oracle.answers.clone();
    for round in 0..2 {
        kill_under_load(&mut c, &place, &mut oracle);
        // The state itself is worth more, as long as it is there.
        let out = c.cli(&["control", "rebuild", "--cluster-file", c.data().join("cluster.json").to_str().unwrap()]);
        assert!(!out.status.success() && tools::told(&out).contains("--put-aside"), "{}", tools::told(&out));
        c.start();
        let wanted = volumes(&c);
        kill_under_load(&mut c, &place, &mut oracle);
        assert_eq!(lose(&c), 10);

        // Nobody makes anything up.
        c.spawn();
        wait_for("supervisor, gateway and nodes", || (c.processes().len() == 7).then_some(()));
        wait_for("what the nodes begin anew", || (control_files(&c).len() >= 10).then_some(()));
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(c.ready_line(), None);
        let out = c.cli(&["volume", "list"]);
        assert!(!out.status.success(), "{}", tools::told(&out));
        says_the_way_out(&c);
        c.crash();

        let without: &[&str] = if round == 0 { &[] } else { &["--without", "node5"] };
        let (_, _, told) = rebuild_refused(&c, without);
        assert!(told.contains("--put-aside"), "what the nodes begun anew is of no use, but who knows that: {told}");
        let begun = Instant::now();
        let dry = rebuild(&c, &[without, &["--put-aside"]].concat());
        assert_eq!(dry.1["written_to"], Value::Null);
        assert_eq!(dry.0, Some(0), "{}", dry.2);
        let done = rebuild(&c, &[without, &["--put-aside", "--write"]].concat());
        assert_eq!((done.0, done.1["written_to"].as_str()), (Some(0), Some("node1")), "{}", done.2);
        say(&format!("measured: twice in {} ms for {} volumes", begun.elapsed().as_millis(), wanted.len()));
        let all: Vec<String> = wanted.keys().cloned().collect();
        assert_eq!((names(&dry.1), names(&done.1)), (all.clone(), all), "{}", done.2);

        let begun = Instant::now();
        c.start();
        for name in wanted.keys() {
            c.wait_healthy(name);
        }
        say(&format!("measured: {} ms until all were healthy", begun.elapsed().as_millis()));
        assert_eq!(volumes(&c), wanted);
        Load::new(&place, "demo").check(&c, &mut oracle);
        assert!(Client::attach(&place, "wide").read(3 * MIB, MIB as u32) == pattern);
        for name in ["demo", "wide", "one", "five"] {
            c.verify(name);
        }
        deleted_when_detached(&c, &format!("small{round}"));
        // It is a cluster like any other: volumes can be made, with numbers that nothing had before.
        must(&c, &["volume", "create", &format!("new{round}"), "--size", "1M"]);
        c.wait_healthy(&format!("new{round}"));
    }
    Load::new(&place, "demo").run(&c, &mut oracle, || answers.more(SOME));
    // What was in flight when everything died is not known; what was answered was read above.
    assert_eq!(oracle.tally.errors, 0, "{:?}", oracle.tally);
    c.stop();
}

/// Nobody knows who used the volume before, so it may be in use.
fn deleted_when_detached(c: &Cluster, name: &str) {
    let told = tools::told(&c.cli(&["volume", "delete", name]));
    assert!(told.contains(&format!("freebs volume detach {name}")) && told.contains("--force"), "{told}");
    must(c, &["volume", "detach", name]);
    must(c, &["volume", "delete", name]);
}

/// Both the commands that find no control state and `up` name the one that helps. They only said that the nodes did not
/// answer like nodes.
fn says_the_way_out(c: &Cluster) {
    // A node that has just been started does not listen yet.
    tools::wait_within(Duration::from_secs(10), "the way out in what `status` says", || {
        tools::told(&c.cli(&["status"])).contains("freebs control rebuild").then_some(())
    });
    let said = c.dir().join("up.err");
    let told = || fs::read_to_string(&said).unwrap_or_default();
    tools::wait_within(Duration::from_secs(10), "the way out in what `up` says", || {
        told().contains("freebs control rebuild").then_some(())
    });
}

#[test]
fn what_to_do_without_a_control_state_is_said() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    c.stop();
    assert_eq!(lose(&c), 6);
    c.spawn();
    wait_for("supervisor, gateway and nodes", || (c.processes().len() == 5).then_some(()));
    says_the_way_out(&c);
    assert_eq!(c.ready_line(), None);
}

fn rebuild_refused(c: &Cluster, more: &[&str]) -> (Option<i32>, Value, String) {
    let done = rebuild(c, more);
    assert_eq!(done.0, Some(1), "{}", done.2);
    assert!(done.1["error"].is_object(), "{}", done.2);
    done
}

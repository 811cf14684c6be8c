//! Two of three members of a volume are lost for good, with their directories: `freebs volume recover` says what may be
//! lost, and goes on by force when that is accepted.

use crate::support::cluster::{Cluster, Setup};
use crate::support::device;
use crate::support::nbd::{Client, Op};
use crate::support::tools::{self, say, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// `freebs volume recover` changed nothing, and force is needed.
const FORCE_NEEDED: i32 = 3;

fn pid(c: &Cluster, node: &str) -> u32 {
    c.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down")).1
}

fn recover(c: &Cluster, more: &[&str]) -> (Option<i32>, Value, String) {
    let out = c.cli(&[&["--json", "volume", "recover", "demo"], more].concat());
    let shown = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", tools::told(&out)));
    (out.status.code(), shown, tools::told(&out))
}

fn names(of: &Value) -> Vec<String> {
    of.as_array().unwrap_or_else(|| panic!("{of:#}")).iter().map(|n| n.as_str().expect("a name").to_owned()).collect()
}

/// Views of the shard in a node's log that began a branch.
fn branches(c: &Cluster, node: &str) -> usize {
    let mut found = 0;
    for path in device::files(&c.data().join(node)) {
        let out = c.cli(&["--json", "device", "inspect", "--frames", path.to_str().expect("a path")]);
        assert!(out.status.success(), "{}", tools::told(&out));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        found += lines.filter(|l| l["frame"]["branch"] == true && l["frame"]["counts"] == true).count();
    }
    found
}

/// A quorum is up: nothing is forced, whatever an operator says.
fn is_refused(c: &Cluster) {
    let before = c.volume("demo");
    for more in [&[][..], &["--accept-loss", "00000000"]] {
        let (code, shown, told) = recover(c, more);
        assert_eq!((code, shown["error"]["kind"].as_str()), (Some(1), Some("invalid")), "{told}");
        assert!(told.contains("nothing of volume 'demo' needs recovery"), "{told}");
    }
    let now = c.volume("demo");
    assert_eq!(now["shards"][0]["view"], before["shards"][0]["view"]);
    assert_eq!((&now["shards"][0]["branch"], &now["shards"][0]["forced"]), (&Value::Null, &Value::Bool(false)));
    let people = tools::told(&c.cli(&["volume", "show", "demo"]));
    assert!(!people.contains("went on by force"), "{people}");
}

/// Without the word of an operator it says what is left, and changes nothing. Gives back the word that accepts this.
fn looks_only(c: &Cluster, survivor: &str, lost: &[String]) -> String {
    // It may still take in what was sent to it before: each look of that time is of another situation.
    let (code, shown, told) = wait_for("answers of the survivor that stay the same", || {
        let (before, (code, shown, told)) = (recover(c, &[]).1, recover(c, &[]));
        (code == Some(FORCE_NEEDED) && before["word"] == shown["word"]).then_some((code, shown, told))
    });
    assert_eq!((code, shown["decided"].as_bool()), (Some(FORCE_NEEDED), Some(false)), "{told}");
    let shard = &shown["shards"][0];
    let plan = &shard["plan"];
    assert_eq!(
        (shard["need"].as_str(), shard["counting"].as_u64(), shard["needed"].as_u64()),
        (Some("force"), Some(1), Some(2))
    );
    assert_eq!((plan["head"].as_str(), plan["back"].as_u64()), (Some(survivor), Some(1)), "{shown:#}");
    let mut of_lost = lost.to_vec();
    of_lost.sort_unstable();
    assert_eq!(names(&plan["lost"]), of_lost);
    assert_eq!((names(&plan["members"])[0].as_str(), names(&plan["new"]).len()), (survivor, 2));
    let view = c.volume("demo")["shards"][0]["view"].as_u64();
    assert_eq!(
        (view, c.volume("demo")["state"].as_str()),
        (shard["view"].as_u64(), Some("paused")),
        "nothing was changed"
    );
    let people = tools::told(&c.cli(&["volume", "recover", "demo"]));
    let word = shown["word"].as_str().expect("a word").to_owned();
    for part in ["does not answer", &format!("--accept-loss {word}"), "Nothing is known to be lost"] {
        assert!(people.contains(part), "{part}: {people}");
    }
    word
}

/// It goes on by itself from then on; the break is in the log of the survivor.
fn is_told(c: &Cluster, survivor: &str, plan: &Value) {
    let new = names(&plan["new"]);
    let (code, _, told) = recover(c, &["--accept-loss", "00000000"]);
    assert!(code == Some(1) && told.contains("nothing of volume 'demo' needs recovery"), "{told}");
    let events = c.cli(&["events", "--json", "--volume", "demo"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    let forced: Vec<Value> = events.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    assert_eq!(forced.iter().filter(|e: &&Value| e["kind"] == "forced").count(), 1, "{events}");
    // Whoever looks at the volume, or audits it, sees that something was lost.
    let branch = &c.volume("demo")["shards"][0]["branch"];
    let (view, version) = (branch["view"].as_u64().expect("a view"), branch["version"].as_u64());
    assert_eq!(version, plan["version"].as_u64(), "{branch:#}");
    for command in [&["volume", "show", "demo"][..], &["verify", "demo"]] {
        let out = c.cli(command);
        let said = format!("view {view} went on by force from version {}", version.expect("a version"));
        assert!(out.status.success() && tools::told(&out).contains(&said), "{said}: {}", tools::told(&out));
    }
    let audit: Value = serde_json::from_slice(&c.cli(&["--json", "verify", "demo"]).stdout).expect("JSON");
    for member in audit["shards"][0]["members"].as_array().expect("members") {
        // A member that learned the map has no frames of before.
        let branches = member["audit"]["branches"].as_array().expect("branches");
        assert!(branches.iter().all(|b| b["view"] == view), "{member:#}");
        assert!(member["node"] != survivor || branches.len() == 1, "{member:#}");
    }

    // Without the lost ones, whose directories are gone.
    let pids: Vec<u32> = new.iter().map(String::as_str).chain([survivor]).map(|node| pid(c, node)).collect();
    c.kill(&pids);
    pids.iter().for_each(|pid| c.wait_gone(*pid));
    assert_eq!(branches(c, survivor), 1, "the break is in the log");
    for node in &new {
        assert!(c.cli(&["device", "verify", first_device(c, node).as_str()]).status.success());
    }
}

#[test]
fn a_volume_goes_on_without_two_of_three_members() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { nodes: 5, more: vec!["--no-restart".into()], ..Setup::default() });
    let place = c.place.clone();
    let (head, others) = c.chain("demo");
    let survivor = others[1].clone();
    let mut client = Client::attach(&place, "demo");
    let pattern = |n: u64| (0..MIB).map(|i| (i / 5 + n * 91) as u8).collect::<Vec<u8>>();
    (0..8).for_each(|n| client.write(n * MIB, &pattern(n)));
    c.verify("demo");
    is_refused(&c);

    // The survivor misses what only the others have. It still takes in what was sent before it was passed over.
    let paused = pid(&c, &survivor);
    c.pause(paused);
    (0..20).for_each(|n| {
        client.write(10 * MIB, &pattern(n)[..4096]);
        std::thread::sleep(Duration::from_millis(50));
    });
    client.write(8 * MIB, &pattern(8));
    client.write(3 * MIB, &pattern(9));
    let lost = [head.clone(), others[0].clone()];
    let pids = [pid(&c, &lost[0]), pid(&c, &lost[1])];
    c.kill(&pids);
    pids.iter().for_each(|p| c.wait_gone(*p));
    for node in &lost {
        fs::remove_dir_all(c.data().join(node)).expect("its directory");
    }
    c.resume(paused);
    wait_for("the survivor", || c.nodes().iter().any(|n| n.0 == survivor).then_some(()));

    let word = looks_only(&c, &survivor, &lost);
    // The loss that is accepted is the one that was shown, and nothing else.
    let (code, shown, told) = recover(&c, &["--accept-loss", "00000000"]);
    assert_eq!((code, &shown["decided"]), (Some(FORCE_NEEDED), &Value::Bool(false)), "{told}");
    assert_eq!(shown["word"].as_str(), Some(word.as_str()), "{told}");
    let begun = Instant::now();
    let (code, shown, told) = recover(&c, &["--accept-loss", &word]);
    assert_eq!(
        (code, &shown["decided"], &shown["serves"]),
        (Some(0), &Value::Bool(true), &Value::Bool(true)),
        "{told}"
    );
    say(&format!("measured: by force it served again after {:.1} s", begun.elapsed().as_secs_f64()));
    // The client that had it attached does not go on as if nothing had happened.
    let old = client.ask(&Op::Read { at: 0, len: 4096 });
    assert!(!matches!(old, Ok(Ok(_))), "the old attachment is over");
    drop(client);
    let mut client = Client::attach(&place, "demo");
    for n in 0..8 {
        assert!(client.read(n * MIB, MIB as u32) == pattern(n), "the {n}th MiB is as the survivor had it");
    }
    assert!(client.read(8 * MIB, MIB as u32).iter().all(|b| *b == 0), "it never had this");
    client.write(9 * MIB, &pattern(9));
    c.wait_healthy("demo");
    c.verify("demo");
    is_told(&c, &survivor, plan_of(&shown));
    c.crash();
}

fn plan_of(shown: &Value) -> &Value {
    &shown["shards"][0]["plan"]
}

fn first_device(c: &Cluster, node: &str) -> String {
    device::files(&c.data().join(node))[0].to_str().expect("a path").to_owned()
}

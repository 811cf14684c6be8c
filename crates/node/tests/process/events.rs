//! `freebs events`: what happened to a cluster of real processes, and why.

use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::Client;
use crate::support::tools::wait_for;
use crate::support::{Weight, shared, turn};
use serde_json::Value;

fn events(c: &Cluster, args: &[&str]) -> Vec<Value> {
    let out = c.cli(&[&["events", "--json"], args].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("events are text");
    text.lines().map(|l| serde_json::from_str(l).expect("each line is an object")).collect()
}

/// The last event of a kind.
fn last<'a>(events: &'a [Value], kind: &str) -> Option<&'a Value> {
    events.iter().rev().find(|e| e["kind"] == kind)
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|e| e["kind"] == kind).count()
}

#[test]
fn what_happened_is_told_with_its_reason_and_survives_restarts() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    let mut client = Client::attach(&c.place, "demo");
    client.write(0, &[7; 4096]);
    let (head, _) = c.chain("demo");
    let pid = c.nodes().iter().find(|n| n.0 == head).expect("it is up").1;
    c.kill(&[pid]);
    let moved = wait_for("a new head, told", || {
        // Others may be told behind these two.
        let all = events(&c, &["--volume", "demo"]);
        let at = |kind: &str| all.iter().rposition(|e| e["kind"] == kind);
        let is_over = at("head_moved").is_some_and(|moved| at("view_active").is_some_and(|active| active > moved));
        last(&all, "head_moved").cloned().filter(|_| is_over)
    });
    assert_eq!((moved["about"].as_str(), moved["volume"].as_str()), (Some(&*head), Some("demo")));
    assert!(moved["text"].as_str().expect("a text").contains("failed"), "{moved}");
    let of_node = events(&c, &["--node", &head]);
    let failed = last(&of_node, "node_failed").expect("why it was replaced");
    assert!(failed["text"].as_str().expect("a text").contains("has failed: "), "{failed}");
    assert!(failed["time_ms"].as_u64() <= moved["time_ms"].as_u64(), "the reason comes first: {failed} {moved}");

    let before = events(&c, &[]);
    assert_eq!(count(&before, "volume_created"), 1, "each decision once, whoever tells it: {before:?}");
    assert_eq!(count(&before, "attached"), 1);
    let times: Vec<_> = before.iter().map(|e| e["time_ms"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(events(&c, &["--limit", "2"]).len(), 2);
    assert!(events(&c, &["--since", "1ms", "--volume", "none"]).is_empty());

    drop(client);
    c.stop();
    c.start();
    let after = events(&c, &["--limit", "2000"]);
    assert_eq!(count(&after, "volume_created"), 1, "{after:?}");
    let of = |e: &Value| (e["kind"].clone(), e["revision"].clone(), e["shard"].clone());
    for e in before.iter().filter(|e| e["revision"].is_u64()) {
        assert!(after.iter().any(|a| of(a) == of(e)), "{e} is forgotten");
    }
    assert!(count(&after, "node") >= count(&before, "node") + 3, "all were started again");

    let people = c.cli(&["events"]);
    let text = String::from_utf8_lossy(&people.stdout);
    assert!(text.contains("TOLD BY") && text.contains("head_moved") && text.contains("Z "), "{text}");
}

#[test]
fn events_that_can_not_be_asked_for_are_refused() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    for args in [["--limit", "0"], ["--limit", "2001"], ["--since", "soon"]] {
        let out = c.cli(&[&["events"][..], &args[..]].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
    }
}

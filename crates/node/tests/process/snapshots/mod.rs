//! `freebs snapshot`: made under load and at one instant, listed, locked and deleted; what can't be done says the way out.

mod made;
mod schedules;
mod words;

use crate::support::cluster::Cluster;
use crate::support::tools::told;
use serde_json::Value;
use std::process::Output;

fn create(c: &Cluster, volumes: &str, name: &str) -> Value {
    c.json(&["snapshot", "create", volumes, "--name", name])
}

/// Snapshots of a volume as (name, stage).
fn listed(c: &Cluster, volume: &str) -> Vec<(String, String)> {
    let all = c.json(&["snapshot", "list", volume]);
    let text = |v: &Value| v.as_str().expect("a text").to_owned();
    all["snapshots"].as_array().expect("a list").iter().map(|s| (text(&s["name"]), text(&s["stage"]))).collect()
}

/// Versions that the replicas of a volume's shards keep for snapshots.
fn pins(c: &Cluster, volume: &str) -> Vec<u64> {
    let v = c.volume(volume);
    let shards = v["shards"].as_array().expect("shards");
    let members = shards.iter().flat_map(|s| s["members"].as_array().expect("members"));
    members.map(|m| m["pins"].as_u64().expect("a number")).collect()
}

/// The command ends with status 1 and says these words.
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

//! The commands about snapshots, and their answers.

use super::{create, listed, pins, refused};
use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::Client;
use crate::support::tools::wait_for;
use crate::support::{Weight, turn};
use serde_json::Value;

#[test]
fn snapshots_are_made_listed_locked_and_deleted() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    c.json(&["volume", "create", "more", "--size", "64M", "--shards", "2"]);
    Client::attach(&c.place, "demo").write(0, &[7; 4096]);
    let made = create(&c, "demo", "first");
    assert_eq!((made["stage"].as_str(), made["volumes"][0]["name"].as_str()), (Some("complete"), Some("demo")));
    assert_eq!(made["volumes"][0]["cuts"].as_array().map(Vec::len), Some(1));
    create(&c, "demo,more", "group");
    let unnamed = c.json(&["snapshot", "create", "more"]);
    let name = unnamed["name"].as_str().expect("a name").to_owned();
    let complete = |name: &str| (name.to_owned(), "complete".to_owned());
    assert_eq!(listed(&c, "demo"), [complete("first"), complete("group")]);
    assert_eq!(listed(&c, "more"), [complete("group"), complete(&name)]);
    assert_eq!(c.json(&["snapshot", "show", "more@group"])["volumes"].as_array().map(Vec::len), Some(2));
    assert_eq!(c.json(&["volume", "show", "demo"])["snapshots"], 2);
    wait_for("pins on all members", || (pins(&c, "demo") == [2, 2, 2]).then_some(()));

    refused(&c.cli(&["snapshot", "create", "demo", "--name", "first"]), &["demo@first", "already", "another name"]);
    refused(&c.cli(&["snapshot", "create", "none", "--name", "x"]), &["no volume 'none'", "volume list"]);
    refused(&c.cli(&["snapshot", "create", "demo,demo", "--name", "x"]), &["each named once"]);
    refused(&c.cli(&["snapshot", "show", "demo@none"]), &["demo@none", "snapshot list demo"]);
    refused(&c.cli(&["snapshot", "delete", "demo@none"]), &["demo@none", "snapshot list demo"]);
    refused(&c.cli(&["volume", "delete", "demo", "--force"]), &["2 snapshots", "--with-snapshots"]);
    for usage in [&["snapshot", "delete", "demo"][..], &["snapshot", "lock", "demo@first", "--until", "soon"]] {
        assert_eq!(c.cli(usage).status.code(), Some(2), "{usage:?}");
    }

    c.json(&["snapshot", "lock", "demo@first", "--until", "1days"]);
    refused(&c.cli(&["snapshot", "delete", "demo@first"]), &["locked until"]);
    refused(&c.cli(&["snapshot", "lock", "demo@first", "--until", "1h"]), &["shorter"]);
    refused(&c.cli(&["volume", "delete", "demo", "--force", "--with-snapshots"]), &["locked until"]);

    c.json(&["snapshot", "delete", "demo@group"]);
    assert_eq!(listed(&c, "more"), [complete("group"), complete(&name)], "the other one keeps it");
    wait_for("the pin of a deleted snapshot goes", || (pins(&c, "demo") == [1, 1, 1]).then_some(()));
    c.json(&["volume", "delete", "more", "--with-snapshots"]);
    assert_eq!(c.json(&["snapshot", "list"])["snapshots"].as_array().map(Vec::len), Some(1));
    let out = c.cli(&["events", "--volume", "demo", "--json"]);
    let text = String::from_utf8(out.stdout).expect("events are text");
    let events: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    let count = |kind: &str| events.iter().filter(|e| e["kind"] == kind).count();
    assert_eq!((count("snapshot_made"), count("snapshot_locked"), count("snapshot_deleted")), (2, 1, 1), "{events:?}");
    c.sweep();
}

//! Snapshots that are made by themselves.

use super::{create, listed, refused};
use crate::support::cluster::{Cluster, Setup};
use crate::support::tools::wait_for;
use crate::support::{Weight, turn};

/// Names of complete snapshots that a schedule has made.
fn auto(c: &Cluster, volume: &str) -> Vec<String> {
    let complete = listed(c, volume).into_iter().filter(|(_, stage)| stage == "complete");
    complete.map(|(name, _)| name).filter(|name| name.starts_with("auto-")).collect()
}

/// One is made at once and the next one with the next minute; the rules let the first go, unless it is locked; what people
/// have made stays.
#[test]
fn a_schedule_makes_snapshots_and_lets_old_ones_go() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { nodes: 3, ..Setup::default() });
    c.json(&["volume", "create", "locked", "--size", "64M"]);
    create(&c, "demo", "mine");
    for (volume, rules) in [("demo", "1"), ("locked", "1")] {
        let shown = c.json(&["snapshot", "schedule", volume, "--every", "1m", "--keep", rules]);
        assert_eq!((&shown["volume"], &shown["schedule"]["every_ms"]), (&volume.into(), &60_000.into()), "{shown}");
    }
    let first = |volume: &str| wait_for("the first one", || auto(&c, volume).pop());
    let (free, locked) = (first("demo"), first("locked"));
    c.json(&["snapshot", "lock", &format!("locked@{locked}"), "--until", "1days"]);

    refused(&c.cli(&["snapshot", "create", "demo", "--name", &free]), &["schedules", "another name"]);
    refused(&c.cli(&["snapshot", "schedule", "none", "--off"]), &["no volume 'none'"]);
    refused(&c.cli(&["snapshot", "schedule", "demo", "--every", "90s", "--keep", "1"]), &["minutes", "1h"]);
    refused(&c.cli(&["snapshot", "schedule", "demo", "--every", "1h", "--keep", "900,900h"]), &["900"]);
    for usage in
        [&["--every", "1h"][..], &["--keep", "1"], &["--every", "1h", "--keep", "1y"], &["--off", "--every", "1h"]]
    {
        let words = [&["snapshot", "schedule", "demo"][..], usage].concat();
        assert_eq!(c.cli(&words).status.code(), Some(2), "{usage:?}");
    }
    let text = String::from_utf8(c.cli(&["volume", "show", "demo"]).stdout).expect("text");
    assert!(text.contains("a snapshot every 1m, keeps 1"), "{text}");

    // Another leader goes on where the first one was.
    c.stop();
    c.start();
    wait_for("the next one in its place", || (auto(&c, "demo").iter().all(|n| *n > free)).then_some(()));
    wait_for("the locked one and the next", || (auto(&c, "locked").len() == 2).then_some(()));
    assert!(auto(&c, "locked").contains(&locked));
    assert!(listed(&c, "demo").iter().any(|(name, _)| name == "mine"));
    let off = c.json(&["snapshot", "schedule", "demo", "--off"]);
    assert!(off["schedule"].is_null() && !auto(&c, "demo").is_empty(), "what is there stays: {off}");
    let events = String::from_utf8(c.cli(&["events", "--volume", "demo"]).stdout).expect("text");
    assert!(events.contains("snapshots_scheduled") && events.contains("none any more"), "{events}");
    c.sweep();
}

//! The device tools on the device of a real node: refused while it runs, right when it has stopped.

use crate::support::cluster::{Cluster, Setup, freebs};
use crate::support::device::{self, Kind};
use crate::support::nbd::Client;
use crate::support::rng::Rng;
use crate::support::tools::{self, told};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

fn tool(args: &[&str], path: &Path) -> Output {
    tools::output(freebs().arg("device").args(args).arg(path), PATIENCE)
}

fn json(args: &[&str], path: &Path, status: i32) -> Value {
    let out = tool(&[args, &["--json"]].concat(), path);
    assert_eq!(out.status.code(), Some(status), "{}", told(&out));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&out)))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// A cluster of one node with two closed segments, stopped; its device.
fn stopped() -> (Cluster, PathBuf) {
    let setup = Setup {
        nodes: 1,
        device_size: "256M",
        volume: Some("demo:64M"),
        more: vec!["--copies".into(), "1".into()],
        ..Setup::default()
    };
    let mut c = Cluster::up(setup);
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let mut bytes = vec![0; 1 << 20];
    let mut rng = Rng::new(5);
    for i in 0..20 {
        rng.fill(&mut bytes);
        client.write(i << 20, &bytes);
    }
    let path = device::files(&c.data()).pop().expect("the node's device");
    // While the node runs nothing is looked at.
    for args in [&["inspect"][..], &["verify"], &["rebuild", "--write"]] {
        let out = tool(args, &path);
        assert_eq!(out.status.code(), Some(1), "{}", told(&out));
        assert!(told(&out).contains("freebs node stop"), "{}", told(&out));
    }
    c.stop();
    (c, path)
}

#[test]
fn a_stopped_nodes_device_is_inspected_verified_and_rebuilt() {
    let _turn = turn(Weight::Light);
    let (mut c, path) = stopped();
    let before = std::fs::read(&path).expect("the device");

    let seen = json(&["inspect", "--segments"], &path, 0);
    assert_eq!(keys(&seen), ["device", "recovery", "segments", "shards"]);
    let shard = &seen["shards"][0];
    assert_eq!(shard["live_bytes"], 20 << 20, "{seen:#}");
    assert!(shard["sequence"].as_u64() >= Some(20) && seen["device"]["start"].as_u64() >= Some(1));
    let id = shard["shard"].as_str().expect("its name");
    let one = json(&["inspect", "--shard", id], &path, 0);
    assert!(one["shards"][0]["chunks"].as_array().is_some_and(|x| !x.is_empty()), "{one:#}");
    let out = tool(&["inspect", "--frames", "--json"], &path);
    let lines: Vec<Value> = out
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    let frames = lines.iter().filter(|l| l.get("frame").is_some()).count() as u64;
    assert_eq!(frames + 1, lines.len() as u64, "frames, then the rest");

    let sound = json(&["verify"], &path, 0);
    assert_eq!(keys(&sound), ["checked", "damage", "damage_count", "device", "losses", "recovery", "sound"]);
    assert_eq!((&sound["sound"], &sound["checked"]["frames"]), (&Value::Bool(true), &Value::from(frames)));
    assert!(std::fs::read(&path).expect("the device") == before, "looking changes nothing");

    // One bit of data, and the indexes of closed segments.
    let pieces = device::pieces(&path);
    let data = pieces.iter().find(|p| p.kind == Kind::Data && !p.indexed).expect("data in the open segment");
    device::flip(&path, data.at + 77, 3);
    let found = json(&["verify"], &path, 1);
    let damage = &found["damage"][0];
    assert_eq!((&damage["kind"], &damage["byte"]), (&Value::from("data"), &Value::from(data.at)), "{found:#}");
    assert_eq!((&damage["shard"], &found["losses"][0]["block_count"]), (&Value::from(id), &Value::from(1)));
    device::flip(&path, data.at + 77, 3);
    let indexes: Vec<_> = pieces.iter().filter(|p| p.kind == Kind::Index).collect();
    assert!(!indexes.is_empty(), "a segment was closed");
    indexes.iter().for_each(|p| device::flip(&path, p.at + 30, 0));
    let dry = json(&["rebuild"], &path, 0);
    assert_eq!(keys(&dry), ["complete", "device", "indexes", "recovery", "shards", "written"]);
    assert_eq!((&dry["shards"][0]["same"], &dry["written"]), (&Value::Bool(true), &Value::Bool(false)));
    let done = json(&["rebuild", "--write"], &path, 0);
    assert_eq!(done["indexes"].as_array().map(Vec::len), Some(indexes.len()));
    assert_eq!(done["shards"][0]["after"], shard["digest"], "as it was");
    assert!(std::fs::read(&path).expect("the device") == before, "byte for byte");
    c.start();
    c.verify("demo");
    c.stop();
}

#[test]
fn what_is_no_device_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    let refused = |path: &Path, words: &str| {
        let out = tool(&["verify"], path);
        assert_eq!(out.status.code(), Some(1), "{}", told(&out));
        assert!(told(&out).contains(words) && !told(&out).contains("panicked"), "{}", told(&out));
    };
    refused(&file, "does not exist");
    refused(dir.path(), "is a directory");
    std::fs::write(&file, vec![0; 3 << 20]).expect("a file");
    refused(&file, "no freebs log here");
    std::fs::write(&file, vec![]).expect("a file");
    refused(&file, "empty");
}

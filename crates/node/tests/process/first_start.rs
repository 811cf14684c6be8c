//! The first command, its end, the second start, and what `--json` promises to programs.

use crate::support::cluster::{Cluster, Setup};
use crate::support::nbd::{Client, Op};
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, shared, turn};
use freebs_control::{Command, CreateVolume, State};
use freebs_types::{Hash32, ShardId, ViewNumber, VolumeId};
use serde_json::Value;
use std::time::Duration;

#[test]
fn first_command_brings_up_three_nodes_and_stops_cleanly() {
    let _turn = turn(Weight::Light);
    // As the README has it, but for places.
    let mut c = Cluster::up(Setup { device_size: "20G", segment_size: "16M", volume: None, ..Setup::default() });
    say(&format!("measured: ready after {:.2} s (aimed at: 5 s)", c.ready_after.as_secs_f64()));
    let line = c.ready_line().expect("it is ready");
    assert!(line.contains(&c.place.uri("demo")), "no URI in: {line}");

    // A volume can be used as soon as a majority was taken in; the last node may come a moment later.
    let nodes = wait_for("three nodes", || Some(c.nodes()).filter(|n| n.len() == 3));
    assert_eq!(c.gateways().len(), 1);
    let mut all: Vec<u32> = nodes.iter().chain(&c.gateways()).map(|(_, pid)| *pid).collect();
    all.push(c.supervisor());
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5, "nodes, gateway and supervisor are processes of their own");
    assert_eq!(c.volume("demo")["size"], 10u64 << 30);

    let mut client = Client::connect(&c.place, "demo", true).expect("the volume can be used once `ready` is printed");
    client.write(4096, &[7; 4096]);
    assert_eq!(client.read(4096, 4096), [7; 4096]);
    drop(client);
    c.verify("demo");
    // `stop` is Ctrl-C; it asserts that nothing is left.
    c.stop();
}

#[test]
fn a_second_start_finds_the_data() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup::default());
    let pattern =
        |round: u8| -> Vec<u8> { (0..1 << 20).map(|i: u32| (i >> 9) as u8 ^ round.wrapping_mul(37)).collect() };
    for round in 0..3u8 {
        let mut client = Client::connect(&c.place, "demo", true).expect("a client");
        for earlier in 0..round {
            let at = u64::from(earlier) << 24;
            assert_eq!(client.read(at, 1 << 20), pattern(earlier), "round {earlier} after {round} restarts");
        }
        client.write(u64::from(round) << 24, &pattern(round));
        drop(client);
        match round {
            0 => c.stop(),
            1 => c.stop_with(libc::SIGTERM),
            _ => c.crash(),
        }
        c.start();
    }
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    for earlier in 0..3u8 {
        assert_eq!(client.read(u64::from(earlier) << 24, 1 << 20), pattern(earlier), "after a crash");
    }
    drop(client);
    c.verify("demo");
    c.stop();
}

/// The control state as a version without seats kept it, for a cluster that is stopped and had this status.
fn state_of_an_earlier_version(c: &Cluster, status: &Value) -> State {
    let file = std::fs::read(c.data().join("cluster.json")).expect("a cluster file");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let mut state = State::new(serde_json::from_value(file["cluster"].clone()).expect("an identity"));
    for node in status["nodes"].as_array().expect("a list") {
        let node = Command::RegisterNode {
            node: serde_json::from_value(node["id"].clone()).expect("an id"),
            name: node["name"].as_str().expect("a name").into(),
            address: node["address"].as_str().expect("an address").into(),
            workers: 1,
            start: serde_json::from_value(node["start"].clone()).expect("a number"),
        };
        state.apply(node).expect("a node");
    }
    let new = CreateVolume { name: "demo".into(), size: 256 << 20, ..CreateVolume::default() };
    state.apply(Command::CreateVolume(new)).expect("a volume");
    // Generations of later attachments are above those of all earlier ones.
    for _ in 0..50 {
        let (name, identity) = ("earlier".into(), Hash32([1; 32]));
        let attach =
            Command::AttachVolume { volume: VolumeId(1), identity, name, force: false, since: None, lapsed: false };
        state.apply(attach).expect("an attachment");
    }
    let generation = state.volume(VolumeId(1)).expect("created").generation;
    state.apply(Command::DetachVolume { volume: VolumeId(1), generation, settled: false }).expect("it gives it back");
    let seen = &status["volumes"][0]["shards"][0];
    let shard = ShardId::new(1, 0);
    let head = state.shard(shard).and_then(|s| s.head()).expect("a head");
    let head = state.node(head).expect("a member is a node").clone();
    assert_eq!(seen["head"], head.name, "the same volume has the same chain");
    for view in 1..=seen["view"].as_u64().expect("a number") {
        let (active, view) = (ViewNumber(view - 1), ViewNumber(view));
        state.apply(Command::ProposeView { shard, active, node: head.id, start: head.start }).expect("a view");
        state.apply(Command::ActivateView { shard, view, generation }).expect("it becomes active");
    }
    state
}

/// Until the control plane was replicated, the first node kept it in two files. Such a directory is gone on with.
#[test]
fn what_an_earlier_version_left_is_taken_over() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup::default());
    c.wait_healthy("demo");
    let pattern: Vec<u8> = (0..1 << 20).map(|i: u32| (i >> 9) as u8 ^ 91).collect();
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    client.write(1 << 20, &pattern);
    drop(client);
    let status = c.status();
    c.stop();
    let state = state_of_an_earlier_version(&c, &status).encode();
    for node in ["node1", "node2", "node3"] {
        for name in ["control.store", "control.note"] {
            std::fs::remove_file(c.data().join(node).join(name)).expect("each node has a seat");
        }
    }
    let kept = ["control.state", "control.state.copy"].map(|n| c.data().join("node1").join(n));
    kept.iter().for_each(|path| std::fs::write(path, &state).expect("a file"));
    for _ in 0..2 {
        c.start();
        let mut client = Client::attach(&c.place, "demo");
        assert_eq!(client.read(1 << 20, 1 << 20), pattern);
        client.write(0, &[4; 4096]);
        drop(client);
        c.wait_healthy("demo");
        c.verify("demo");
        assert!(kept.iter().all(|path| !path.exists()), "the earlier state must not be begun with again");
        c.stop();
    }
}

#[test]
fn what_dies_is_restarted_unless_told_otherwise() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    let (head, others) = c.chain("demo");
    let pid = |name: &str| c.nodes().iter().find(|(n, _)| n == name).map(|(_, p)| *p);
    let before = pid(&others[0]).expect("it is up");
    c.kill(&[before]);
    wait_for("the killed node", || pid(&others[0]).filter(|p| *p != before));
    c.wait_healthy("demo");
    // A stopped node stays down until it is started.
    let data = c.data();
    let data = data.to_str().expect("a plain path");
    let out = c.cli(&["node", "stop", &others[1], "--data", data]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(pid(&others[1]), None);
    let state =
        c.status()["nodes"].as_array().expect("a list").iter().find(|n| n["name"] == others[1]).unwrap().clone();
    assert_eq!(state["state"], "down");
    assert!(c.cli(&["node", "start", &others[1], "--data", data]).status.success());
    c.wait_healthy("demo");
    c.verify("demo");
    // A gateway that dies comes back, too, and clients connect again.
    let gateway = c.gateways()[0].1;
    c.kill(&[gateway]);
    let mut client = Client::attach(&c.place, "demo");
    client.write(0, &[1; 512]);
    drop(client);
    // A head that dies opens a new view.
    c.kill(&[pid(&head).expect("it is up")]);
    let mut client = Client::attach(&c.place, "demo");
    assert_eq!(client.ask(&Op::Read { at: 0, len: 512 }).expect("connected").expect("read"), [1; 512]);
}

#[test]
fn left_down_with_no_restart() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    let (_, others) = c.chain("demo");
    let victim = c.nodes().into_iter().find(|(n, _)| *n == others[0]).expect("it is up");
    c.kill(&[victim.1]);
    let killed = format!("{} was killed by signal 9", victim.0);
    let is_told = |line: &str| line.contains(&killed) && line.contains("it stays down (--no-restart)");
    wait_for("it is said that it stays down", || c.log().lines().any(is_told).then_some(()));
    // One that is started again is so within a tenth of this time.
    std::thread::sleep(Duration::from_secs(1));
    assert!(c.nodes().iter().all(|(n, _)| *n != victim.0), "{:?}", c.nodes());
    assert_eq!(c.nodes().len(), 2);
}

fn fields(v: &Value, names: &[&str]) {
    for name in names {
        assert!(v.get(name).is_some(), "no field {name} in {v:#}");
    }
}

fn is_listed(list: &Value, name: &str) -> bool {
    list["volumes"].as_array().expect("a list").iter().any(|v| v["name"] == name)
}

#[test]
fn json_has_the_promised_names() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.json(&["volume", "create", "second", "--size", "64M", "--copies", "2", "--ack", "all"]);
    assert_eq!(volume["name"], "second");
    assert_eq!(volume["copies"], 2);
    let s = c.status();
    fields(&s, &["nodes", "gateways", "volumes"]);
    for node in s["nodes"].as_array().expect("a list") {
        fields(node, &["name", "pid", "address", "state"]);
        assert_eq!(node["state"], "up");
    }
    for gateway in s["gateways"].as_array().expect("a list") {
        fields(gateway, &["name", "pid"]);
    }
    let volumes = s["volumes"].as_array().expect("a list");
    assert!(["demo", "second"].iter().all(|name| is_listed(&s, name)), "{s:#}");
    for v in volumes {
        fields(v, &["name", "size", "copies", "shards"]);
        let shard = &v["shards"][0];
        fields(shard, &["id", "view", "head", "members"]);
        for m in shard["members"].as_array().expect("a list") {
            fields(m, &["node", "version", "state"]);
        }
    }
    let list = c.json(&["volume", "list"]);
    assert!(is_listed(&list, "demo") && is_listed(&list, "second"), "{list:#}");
    fields(&c.json(&["volume", "show", "second"]), &["name", "size", "copies", "shards"]);
    assert_eq!(c.json(&["volume", "resize", "second", "--size", "96M"])["size"], 96u64 << 20);
    assert_eq!(c.json(&["volume", "verify", "second"])["agree"], true);
    c.json(&["volume", "delete", "second"]);
    let list = c.json(&["volume", "list"]);
    assert!(is_listed(&list, "demo") && !is_listed(&list, "second"), "{list:#}");
    // People get tables.
    let out = c.cli(&["status"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("NODE") && text.contains("demo"), "{text}");
}

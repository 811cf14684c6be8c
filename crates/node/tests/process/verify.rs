//! `freebs verify` on a cluster of processes: ten moves of the head are proven, a turned bit is found at its member only,
//! a member that is away is said, and a volume may have more shards than a worker audits at a time.

use crate::support::cluster::{Cluster, Setup};
use crate::support::device::{self, Kind};
use crate::support::nbd::Client;
use crate::support::rng::Rng;
use crate::support::tools::{say, told};
use crate::support::{Weight, turn};
use serde_json::Value;

const MOVES: usize = 10;
/// Bytes that are written before each move.
const PIECE: usize = 256 << 10;

/// The command's exit status and what it prints in JSON.
fn verify(c: &Cluster) -> (Option<i32>, Value) {
    verify_volume(c, "demo")
}

fn verify_volume(c: &Cluster, name: &str) -> (Option<i32>, Value) {
    let out = c.cli(&["verify", name, "--json"]);
    let found = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", told(&out), c.log()));
    (out.status.code(), found)
}

fn members(found: &Value) -> &[Value] {
    found["shards"][0]["members"].as_array().expect("members")
}

/// The node's device file, and a byte in its first data block.
fn first_data(c: &Cluster, node: &str) -> (std::path::PathBuf, u64) {
    let file = device::files(&c.data().join(node)).into_iter().next().expect("the node's device");
    let piece = device::pieces(&file).into_iter().find(|p| p.kind == Kind::Data).expect("data");
    (file, piece.at + 100)
}

/// Ten moves of the head, with writes between them.
fn move_the_head(c: &Cluster) {
    let mut rng = Rng::new(3);
    let mut client = Client::attach(&c.place, "demo");
    for i in 0..MOVES {
        let mut bytes = vec![0; PIECE];
        rng.fill(&mut bytes);
        client.write((i * PIECE) as u64, &bytes);
        let (head, others) = c.chain("demo");
        let to = &others[i % others.len()];
        let out = c.cli(&["volume", "move-head", "demo", to]);
        assert!(out.status.success(), "{head} to {to}: {}\n{}", told(&out), c.log());
        client.write((i * PIECE) as u64, &bytes[..PIECE / 2]);
    }
}

/// All three members have the same history, proven up to the view that is open.
fn is_proven(found: &Value) {
    assert_eq!((&found["sound"], &found["complete"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(members(found).len(), 3);
    assert_eq!(found["shards"][0]["comparison"]["nodes"].as_array().map(Vec::len), Some(3), "{found:#}");
    for m in members(found) {
        let ranges = m["audit"]["ranges"].as_array().expect("ranges");
        let [proven, linked] = &ranges[..] else { panic!("closed views, and the open one: {found:#}") };
        assert_eq!((&proven["proof"], &linked["proof"]), (&"proven".into(), &"linked".into()), "{found:#}");
        let view = |range: &Value, end: &str| range[end].as_u64().expect("a view");
        assert!(view(proven, "last_view") - view(proven, "first_view") + 1 >= MOVES as u64, "{found:#}");
        assert_eq!(view(linked, "first_view"), view(linked, "last_view"));
        assert_eq!(proven["first"], 1);
    }
}

#[test]
fn ten_moves_of_the_head_are_proven_and_one_turned_bit_is_found() {
    let _turn = turn(Weight::Light);
    let setup = Setup { device_size: "512M", volume: Some("demo:64M"), scrub_rate: "0", ..Setup::default() };
    let mut c = Cluster::up(setup);
    move_the_head(&c);
    c.wait_healthy("demo");
    let (code, found) = verify(&c);
    assert_eq!(code, Some(0), "{found:#}");
    is_proven(&found);
    let table = c.cli(&["verify", "demo"]);
    say(&told(&table));
    assert!(String::from_utf8_lossy(&table.stdout).contains("demo: no break: the history is proven, linked"));

    // A member is stopped: the others are sound, and the command says that one is missing.
    let (_, others) = c.chain("demo");
    let (node, data) = (others[0].clone(), c.data());
    let data = data.to_str().expect("a plain path");
    let out = c.cli(&["node", "stop", &node, "--data", data]);
    assert!(out.status.success(), "{}", told(&out));
    let (code, found) = verify(&c);
    assert_eq!(code, Some(4), "{found:#}");
    let away = members(&found).iter().filter(|m| m["error"].is_string()).map(|m| &m["node"]);
    assert_eq!(away.collect::<Vec<_>>(), [&Value::from(node.clone())]);

    // A bit of its device turns over meanwhile.
    let (file, byte) = first_data(&c, &node);
    device::flip(&file, byte, 3);
    let out = c.cli(&["node", "start", &node, "--data", data]);
    assert!(out.status.success(), "{}", told(&out));
    c.wait_healthy("demo");
    let (code, found) = verify(&c);
    assert_eq!(code, Some(3), "{found:#}");
    assert_eq!(found["shards"][0]["comparison"]["difference"], Value::Null, "{found:#}");
    for m in members(&found) {
        let breaks = m["audit"]["breaks"].as_array().expect("breaks");
        if m["node"] != node.as_str() {
            assert!(m["sound"] == true && breaks.is_empty(), "{found:#}");
            continue;
        }
        assert_eq!((m["sound"].as_bool(), breaks.len()), (Some(false), 1), "{found:#}");
        assert_eq!(breaks[0]["cause"], "altered");
        let at = breaks[0]["byte"].as_u64().expect("a place");
        assert!(at <= byte && byte < at + (8 << 20), "the break is told at byte {at}, the bit turned in byte {byte}");
    }
    let table = c.cli(&["verify", "demo"]);
    assert_eq!(table.status.code(), Some(3));
    say(&told(&table));
    let missing = c.cli(&["verify", "nothing"]);
    assert_eq!(missing.status.code(), Some(1), "{}", told(&missing));
    c.stop();
}

/// A worker audits eight shards at a time, and all shards of a volume may be of one worker. Those behind the eighth were not
/// audited; nor were those of the third command at the same time, which has to wait.
#[test]
fn many_shards_are_audited_by_three_commands_at_once() {
    const SHARDS: usize = 12;
    let _turn = turn(Weight::Light);
    let setup = Setup { device_size: "512M", volume: None, scrub_rate: "0", ..Setup::default() };
    let mut c = Cluster::up(setup);
    let out = c.cli(&["volume", "create", "wide", "--size", "12G", "--shards", &SHARDS.to_string()]);
    assert!(out.status.success(), "{}", told(&out));
    c.wait_healthy("wide");
    let found: Vec<_> = std::thread::scope(|s| {
        let all = [(); 3].map(|()| s.spawn(|| verify_volume(&c, "wide")));
        all.into_iter().map(|one| one.join().expect("a finding")).collect()
    });
    for (code, found) in found {
        assert_eq!(code, Some(0), "{found:#}");
        assert_eq!(found["shards"].as_array().map(Vec::len), Some(SHARDS), "{found:#}");
        assert_eq!(found["complete"], true, "{found:#}");
    }
    c.stop();
}

//! Members that are away, that have lost their history, or whose blocks have rotted.

use super::*;
use crate::support::cluster::Setup;
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;

fn pid(c: &Cluster, node: &str) -> u32 {
    c.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down")).1
}

/// Each member is killed in turn while a client reads the snapshot again and again: it hears nothing of it.
#[test]
fn each_member_may_be_away() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { volume: Some("demo:16M"), ..Setup::default() });
    let data = noise(3, 12 << 20);
    let mut client = Client::attach(&c.place, "demo");
    fill(&mut client, 0, &data);
    snapshot(&c, "demo", "s");
    fill(&mut client, 0, &noise(4, 12 << 20));
    let mut reader = Client::connect(&c.place, "demo@s", true).expect("a snapshot");
    for node in ["node1", "node2", "node3"] {
        c.json(&["node", "stop", node]);
        for _ in 0..2 {
            assert_eq!(differ(&read_all(&mut reader)[..data.len()], &data), None, "while {node} is away");
        }
        c.json(&["node", "start", node]);
        wait_for("the node", || c.nodes().iter().any(|n| n.0 == node).then_some(()));
        c.wait_healthy("demo");
    }
    // Two of three are away: what one has is enough for the past.
    let old = [pid(&c, "node2"), pid(&c, "node3")];
    c.json(&["node", "stop", "node2"]);
    c.json(&["node", "stop", "node3"]);
    c.wait_ended(&old);
    assert_eq!(differ(&read_all(&mut reader)[..data.len()], &data), None, "one member is enough");
    c.stop();
}

/// A member is replaced by a node that was never there when the snapshot was taken. Whether that one has its history by now
/// or not, what is read is the snapshot, and no reader waits for long.
#[test]
fn a_member_that_lacks_history_is_passed_over() {
    let _turn = turn(Weight::Light);
    let env = vec![("FREEBS_REPLACE_AFTER".into(), "2s".into())];
    let more = vec!["--no-restart".into()];
    let mut c = Cluster::up(Setup { nodes: 4, volume: Some("demo:16M"), more, env, ..Setup::default() });
    let data = noise(5, 8 << 20);
    let mut client = Client::attach(&c.place, "demo");
    fill(&mut client, 0, &data);
    snapshot(&c, "demo", "s");
    fill(&mut client, 0, &noise(6, 8 << 20));
    let (head, others) = c.chain("demo");
    c.kill(&[pid(&c, &others[0])]);
    let chain = wait_for("a new member that has everything", || {
        let v = c.volume("demo");
        let all = v["shards"][0]["members"].as_array()?.clone();
        let names: Vec<String> = all.iter().filter_map(|m| Some(m["node"].as_str()?.to_owned())).collect();
        let whole = all.iter().all(|m: &Value| m["state"] == "active") && !names.contains(&others[0]);
        (whole && names.len() == 3).then_some(names)
    });
    let mut reader = Client::connect(&c.place, "demo@s", true).expect("a snapshot");
    for _ in 0..3 {
        assert_eq!(differ(&read_all(&mut reader)[..data.len()], &data), None, "of {chain:?}");
    }
    assert_eq!(differ(&client.read(0, 4096), &noise(6, 8 << 20)[..4096]), None);
    say(&format!("members after the change: {chain:?}"));
    // The new one alone has it, too.
    let old = [head.as_str(), &others[1]];
    let pids = old.map(|node| pid(&c, node));
    old.iter().for_each(|node| _ = c.json(&["node", "stop", node]));
    c.wait_ended(&pids);
    let mut alone = Client::connect(&c.place, "demo@s", true).expect("a snapshot");
    assert_eq!(differ(&read_all(&mut alone)[..data.len()], &data), None, "without {old:?}");
    c.stop();
}

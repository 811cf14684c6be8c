//! A member of five nodes with three copies dies, or stands still: another node stands in for it, so that what is written has
//! three copies again within two seconds, and nothing old has moved. The member comes back, and the other one leaves (V21).

use super::rig::{VOLUME, five, pid_of, start_node};
use crate::support::cluster::Cluster;
use crate::support::device;
use crate::support::gateway::Gateway;
use crate::support::nbd::Client;
use crate::support::plane::settled;
use crate::support::tools::{say, wait_within};
use crate::support::{Weight, full, turn};
use serde_json::Value;
use std::time::{Duration, Instant};

/// New writes have three copies again within this time. Printed beside the figure; on a machine that has much else to do it may be
/// more.
const ASKED: Duration = Duration::from_secs(2);
/// Never more than this.
const NEVER: Duration = Duration::from_secs(12);
/// A node that has failed before is heard for longer before it comes back (V14).
const RETURNS: Duration = Duration::from_secs(300);
/// Bytes of one write.
const PIECE: usize = 1 << 20;

/// Data that no node packs or leaves out.
fn piece(number: u64) -> Vec<u8> {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..PIECE / 8).flat_map(|_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    words.collect()
}

fn names(shard: &Value, key: &str) -> Vec<String> {
    let all = shard[key].as_array().into_iter().flatten();
    all.map(|n| n.as_str().expect("a name").to_owned()).collect()
}

fn shard(c: &Cluster) -> Value {
    c.volume(VOLUME)["shards"][0].clone()
}

/// A member that neither leads the control plane nor heads the volume.
fn victim(c: &Cluster) -> String {
    let (leader, ..) = settled(c, 5).swap_remove(0);
    let (_, others) = c.chain(VOLUME);
    others.into_iter().find(|n| *n != leader).expect("two of three are no heads, and one node leads")
}

/// The stand-in, once it counts in the active view.
fn counting(c: &Cluster, victim: &str) -> Option<String> {
    let s = shard(c);
    let members = s["members"].as_array()?;
    let who = names(&s, "standing").first()?.clone();
    let of = members.iter().find(|m| m["node"] == who.as_str())?;
    let has_left = members.len() == 3 && members.iter().all(|m| m["node"] != victim);
    (has_left && of["version"].as_u64()? > 0).then_some(who)
}

/// True if the chain is as long as it is to be, of members that have everything.
fn is_whole(c: &Cluster) -> bool {
    let v = c.volume(VOLUME);
    let s = &v["shards"][0];
    let nobody = ["away", "joining", "standing"].iter().all(|key| names(s, key).is_empty());
    v["state"] == "ready" && nobody && s["members"].as_array().is_some_and(|m| m.len() == 3)
}

/// Bytes of the volume that are in force in a node's log.
fn live_bytes(c: &Cluster, node: &str) -> u64 {
    let device = device::files(&c.data().join(node)).pop().expect("the node's device");
    let found = c.json(&["device", "inspect", device.to_str().expect("a plain path")]);
    let id = shard_id(&found);
    let all = found["shards"].as_array().expect("shards");
    all.iter().filter(|s| s["shard"] == id.as_str()).map(|s| s["live_bytes"].as_u64().expect("a number")).sum()
}

/// The only volume's only shard.
fn shard_id(found: &Value) -> String {
    let all = found["shards"].as_array().expect("shards");
    all.iter().map(|s| s["shard"].as_str().expect("an id").to_owned()).next().expect("one")
}

#[test]
fn another_node_stands_in_at_once_and_copies_nothing() {
    let _turn = turn(Weight::Loaded);
    let mut c = five(&["--no-restart"]);
    let old = if full() { 192 } else { 48 };
    let mut gateway = Gateway::start(&c, c.dir(), "writer");
    let mut client = Client::attach(&gateway.place, VOLUME);
    (0..old).for_each(|n| client.write(n * PIECE as u64, &piece(n)));
    let (mut written, mut stood) = (old, Vec::new());
    for is_killed in [true, false] {
        let node = victim(&c);
        let pid = pid_of(&c, &node);
        let hit = Instant::now();
        if is_killed {
            c.kill(&[pid]);
        } else {
            c.pause(pid);
        }
        // It is written all the time.
        let who = wait_within(RETURNS, "a stand-in that counts", || {
            client.write(written * PIECE as u64, &piece(written));
            counting(&c, &node)
        });
        let took = hit.elapsed();
        written += 1;
        let how = if is_killed { "killed" } else { "frozen" };
        say(&format!(
            "{node} {how}: {who} counts for new writes after {:.2} s (asked: {} s)",
            took.as_secs_f64(),
            ASKED.as_secs()
        ));
        assert!(took < NEVER, "{took:?}");
        for _ in 0..4 {
            client.write(written * PIECE as u64, &piece(written));
            written += 1;
        }
        let s = shard(&c);
        assert_eq!((names(&s, "away"), names(&s, "standing")), (vec![node.clone()], vec![who.clone()]), "{s:#}");
        stood.push(who);
        if is_killed {
            // With nothing at work it can be seen how much each log has.
            drop(client);
            gateway.stop();
            c.stop();
            let (head, new) = (live_bytes(&c, &chain_member(&s, stood.last())), live_bytes(&c, &stood[0]));
            let most = (written - old) * PIECE as u64;
            say(&format!("{new} bytes at the stand-in of {head} of the volume; {most} were written meanwhile"));
            assert!(new <= most && new > 0 && head >= old * PIECE as u64, "{new} of {head}, {most}");
            c.start();
            gateway = Gateway::start(&c, c.dir(), "writer");
            client = Client::attach(&gateway.place, VOLUME);
        } else {
            c.resume(pid);
        }
        wait_within(RETURNS, "it to be back", || is_whole(&c).then_some(()));
        assert!(shard(&c)["members"].as_array().expect("members").iter().any(|m| m["node"] == node.as_str()));
    }
    for n in 0..written {
        assert!(client.read(n * PIECE as u64, PIECE as u32) == piece(n), "piece {n} is another one");
    }
    drop(client);
    c.wait_healthy(VOLUME);
    c.verify(VOLUME);
}

/// A member that has everything.
fn chain_member(s: &Value, not: Option<&String>) -> String {
    let all = s["members"].as_array().expect("members").iter().map(|m| m["node"].as_str().expect("a name").to_owned());
    all.into_iter().find(|n| Some(n) != not).expect("another one")
}

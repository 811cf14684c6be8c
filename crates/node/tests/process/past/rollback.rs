//! `freebs volume rollback`: the content comes back, the present is kept, and nobody takes a mixture for either.

use super::*;
use crate::support::cluster::Setup;
use crate::support::nbd::Op;
use crate::support::tools::wait_for;
use crate::support::{Weight, rounds, shared, turn};
use serde_json::Value;
use std::process::Output;
use std::time::Duration;

fn found(c: &Cluster, export: &str) -> Vec<u8> {
    read_all(&mut Client::connect(&c.place, export, true).unwrap_or_else(|e| panic!("{export}: {e}\n{}", c.log())))
}

#[track_caller]
fn same(c: &Cluster, export: &str, want: &[u8], when: &str) {
    let differ = differ(&found(c, export), want);
    assert_eq!(differ, None, "{export} is not what it should be, {when}");
}

#[track_caller]
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

/// Gives the volume back: the gateway does so a moment after its last client has left.
fn quiet(c: &Cluster, volume: &str) {
    wait_for("it is nobody's", || c.volume(volume)["attached"].is_null().then_some(()));
}

/// Names of the volume's complete snapshots.
fn complete(c: &Cluster, volume: &str) -> Vec<String> {
    let list = c.json(&["snapshot", "list", volume]);
    let all = list["snapshots"].as_array().expect("a list").iter().filter(|s| s["stage"] == "complete");
    all.map(|s| s["name"].as_str().expect("a name").to_owned()).collect()
}

/// Data, zeroes, trims and growth since the snapshot; back, forth, and back again.
#[test]
fn a_volume_goes_back_and_forth() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("16M", &["--shards", "3", "--stripe", "64K"]);
    let mut client = c.client(&volume);
    let mut then = vec![0; 16 << 20];
    then[..8 << 20].copy_from_slice(&noise(1, 8 << 20));
    fill(&mut client, 0, &then[..8 << 20]);
    snapshot(&c, &volume, "s");
    drop(client);
    c.json(&["volume", "resize", &volume, "--size", "24M"]);
    let mut client = c.client(&volume);
    let mut last = then.clone();
    last.resize(24 << 20, 0);
    for (at, data) in [
        (MIB, noise(2, 3 << 20)),
        (6 * MIB, vec![0; 1 << 20]),
        (12 * MIB, noise(3, 1 << 20)),
        (20 * MIB, noise(4, 2 << 20)),
    ] {
        fill(&mut client, at, &data);
        last[at as usize..][..data.len()].copy_from_slice(&data);
    }
    assert_eq!(client.ask(&Op::Trim { at: 4 * MIB, len: 1 << 20 }).expect("an answer"), Ok(vec![]));
    last[4 << 20..5 << 20].fill(0);
    drop(client);
    quiet(&c, &volume);
    let done = c.json(&["volume", "rollback", &format!("{volume}@s")]);
    then.resize(24 << 20, 0);
    same(&c, &volume, &then, "rolled back");
    let before = done["before"].as_str().expect("the present is kept").to_owned();
    same(&c, &format!("{volume}@{before}"), &last, "what it had before");
    assert!(done["changed"].as_u64() >= Some(8 << 20) && done["changed"].as_u64() <= Some(9 << 20), "{done}");
    quiet(&c, &volume);
    let done = c.json(&["volume", "rollback", &format!("{volume}@{before}"), "--discard-present"]);
    assert!(done["before"].is_null(), "{done}");
    same(&c, &volume, &last, "forth again");
    quiet(&c, &volume);
    c.json(&["volume", "rollback", &format!("{volume}@s"), "--discard-present"]);
    same(&c, &volume, &then, "and back");
    assert_eq!(complete(&c, &volume), ["s".to_owned(), before]);
    c.verify(&volume);
}

#[test]
fn what_can_not_be_gone_back_to_is_said() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    refused(&c.cli(&["volume", "rollback", &format!("{volume}@none")]), &["no snapshot", "snapshot list"]);
    refused(&c.cli(&["volume", "rollback", "none@s"]), &["no volume 'none'", "volume list"]);
    assert_eq!(c.cli(&["volume", "rollback", &volume]).status.code(), Some(2));
    let mut client = c.client(&volume);
    client.write(0, &noise(1, 4096));
    snapshot(&c, &volume, "s");
    client.write(0, &noise(2, 4096));
    refused(&c.cli(&["volume", "rollback", &format!("{volume}@s")]), &["attached by", "volume detach"]);
    assert_eq!(client.read(0, 4096), noise(2, 4096));
    assert_eq!(complete(&c, &volume), ["s"], "nothing is left of it");
}

/// A rollback ends in any way: the volume has a name that says how it is, the present is not lost, and the same command goes
/// on.
#[test]
fn a_rollback_that_is_killed_goes_on() {
    let _turn = turn(Weight::Heavy);
    let c = Cluster::up(Setup { nodes: 3, ..Setup::default() });
    c.json(&["volume", "create", "v", "--size", "64M"]);
    let mut client = Client::attach(&c.place, "v");
    let data = noise(5, 48 << 20);
    fill(&mut client, 0, &data);
    snapshot(&c, "v", "s");
    let newer = noise(6, 48 << 20);
    fill(&mut client, MIB, &newer);
    drop(client);
    quiet(&c, "v");
    let (mut want, mut last) = (data.clone(), data);
    want.resize(64 << 20, 0);
    last.resize(64 << 20, 0);
    last[MIB as usize..][..newer.len()].copy_from_slice(&newer);
    let mut rng = Rng::announced("killed rollbacks");
    for round in 0..rounds(4, 30) {
        let mut child = c.freebs().args(["volume", "rollback", "v@s"]).spawn().expect("freebs starts");
        std::thread::sleep(Duration::from_millis(rng.below(900)));
        let _ = child.kill();
        child.wait().expect("it ends");
        let list = c.json(&["volume", "list"]);
        let names: Vec<&Value> = list["volumes"].as_array().expect("a list").iter().map(|v| &v["name"]).collect();
        let (has, mixture) = (names.iter().any(|n| **n == "v"), names.iter().any(|n| **n == "v.rolling-back"));
        assert!(has != mixture, "round {round}: {names:?}");
        let kept = complete(&c, if mixture { "v.rolling-back" } else { "v" });
        let kept = kept.iter().find(|n| n.starts_with("before-rollback-")).cloned();
        assert!(!mixture || kept.is_some(), "round {round}: the present is not kept");
        // The killed one may have the volume for a moment still, and its last command may yet come.
        if let Ok(mut client) = Client::connect(&c.place, "v", true) {
            let is = read_all(&mut client);
            assert!(is == last || is == want, "round {round}: a mixture has the volume's name");
            drop(client);
            quiet(&c, "v");
        }
    }
    let out = wait_for("the volume can be had", || {
        let out = c.cli(&["volume", "rollback", "v@s"]);
        out.status.success().then_some(out)
    });
    assert!(told(&out).contains("rolled v back to v@s"), "{}", told(&out));
    same(&c, "v", &want, "after kills");
    let first = complete(&c, "v").into_iter().find(|n| n.starts_with("before-rollback-")).expect("the present is kept");
    same(&c, &format!("v@{first}"), &last, "the present of before");
    // Those that the interrupted ones have made of mixtures would hold their room.
    let mixtures: Vec<_> = complete(&c, "v").into_iter().filter(|n| n.starts_with("rolling-back-")).collect();
    assert!(mixtures.is_empty(), "{mixtures:?}");
    c.verify("v");
}

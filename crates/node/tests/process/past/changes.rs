//! Differences between two snapshots.

use super::*;
use crate::support::nbd::Op;
use crate::support::tools::{have, run};
use crate::support::{Weight, shared, turn};
use serde_json::Value;
use std::collections::BTreeSet;

const BLOCK: u64 = 4096;

/// The changed blocks by `freebs snapshot diff`.
fn diff(c: &Cluster, from: &str, to: Option<&str>) -> (BTreeSet<u64>, Value) {
    let found = c.json(&[&["snapshot", "diff", from][..], &to.into_iter().collect::<Vec<_>>()].concat());
    let mut blocks = BTreeSet::new();
    for r in found["ranges"].as_array().expect("a list") {
        let (at, n) = (r["offset"].as_u64().expect("a number"), r["bytes"].as_u64().expect("a number"));
        assert!(n > 0 && at % BLOCK == 0 && n % BLOCK == 0, "{r}");
        blocks.extend((at / BLOCK)..(at + n) / BLOCK);
    }
    assert_eq!(found["changed"], blocks.len() as u64 * BLOCK);
    (blocks, found)
}

/// Drawn writes, trims and zeroes between five snapshots, on three shards: of each pair what is told is exactly what was
/// touched in between, and what is not told is the same in both.
#[test]
fn what_changed_is_told_exactly() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &["--shards", "3", "--stripe", "64K"]);
    let mut client = c.client(&volume);
    let blocks = (8 << 20) / BLOCK;
    let (mut rng, mut touched, mut images) = (Rng::announced("what changed"), Vec::new(), Vec::new());
    for n in 0..5 {
        let mut here = BTreeSet::new();
        for _ in 0..if n == 3 { 0 } else { 40 } {
            let (first, len) = (rng.below(blocks - 16), 1 + rng.below(16));
            let (at, bytes) = (first * BLOCK, (len * BLOCK) as u32);
            let op = match rng.below(5) {
                0 => Op::Trim { at, len: bytes },
                1 => Op::Zero { at, len: bytes, fua: false },
                _ => Op::Write { at, data: noise(rng.next(), bytes as usize), fua: false },
            };
            client.ask(&op).expect("an answer").expect("a success");
            here.extend(first..first + len);
        }
        snapshot(&c, &volume, &format!("s{n}"));
        touched.push(here);
        let mut reader = Client::connect(&c.place, &format!("{volume}@s{n}"), true).expect("a snapshot");
        images.push(read_all(&mut reader));
    }
    for a in 0..5 {
        for b in a + 1..5 {
            let (told, found) = diff(&c, &format!("{volume}@s{a}"), Some(&format!("{volume}@s{b}")));
            let between: BTreeSet<u64> = touched[a + 1..=b].iter().flatten().copied().collect();
            assert!(told.is_subset(&between), "{a} to {b}: {:?}", told.difference(&between));
            let block = |image: &[u8], n: u64| image[(n * BLOCK) as usize..][..BLOCK as usize].to_vec();
            for n in (0..blocks).filter(|n| !told.contains(n)) {
                assert_eq!(
                    block(&images[a], n),
                    block(&images[b], n),
                    "block {n} changed from {a} to {b}, and nobody says so"
                );
            }
            for r in found["ranges"].as_array().expect("a list").iter().filter(|r| r["zero"] == true) {
                let first = r["offset"].as_u64().expect("a number") / BLOCK;
                assert!(block(&images[b], first).iter().all(|x| *x == 0), "{r}");
            }
        }
    }
    assert_eq!(diff(&c, &format!("{volume}@s2"), Some(&format!("{volume}@s3"))).0, BTreeSet::new());
    let newest = diff(&c, &format!("{volume}@s0"), None);
    assert_eq!(newest.1["to"], format!("{volume}@s4"));
    assert_eq!(newest.0, diff(&c, &format!("{volume}@s0"), Some(&format!("{volume}@s4"))).0);
    if have(&["nbdinfo"]) {
        let uri = c.place.uri(&format!("{volume}@s4"));
        let map = run("nbdinfo", ["--map=freebs:changed-since:s0", "--json", &uri]);
        let map: Vec<Value> = serde_json::from_str(&map).expect("JSON");
        let mut blocks = BTreeSet::new();
        for r in map.iter().filter(|r| r["type"] == 1) {
            let (at, n) = (r["offset"].as_u64().expect("a number"), r["length"].as_u64().expect("a number"));
            blocks.extend((at / BLOCK)..(at + n) / BLOCK);
        }
        assert_eq!(blocks, newest.0, "by NBD");
    }
}

#[test]
fn impossible_differences_are_refused() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let (one, two) = (c.volume("4M", &[]), c.volume("4M", &[]));
    for (volume, name) in [(&one, "a"), (&one, "b"), (&two, "a")] {
        snapshot(&c, volume, name);
    }
    let at = |volume: &str, name: &str| format!("{volume}@{name}");
    for (from, to, word) in [
        (at(&one, "b"), Some(at(&one, "a")), "name the earlier snapshot first"),
        (at(&one, "a"), Some(at(&two, "a")), "different volumes"),
        (at(&one, "a"), Some(at(&one, "none")), "there is no snapshot"),
        (at(&one, "none"), Some(at(&one, "a")), "there is no snapshot"),
        (at(&one, "b"), None, "is the newest snapshot"),
        (at("none", "b"), None, "none"),
    ] {
        let args: Vec<&str> = ["snapshot", "diff", &from].into_iter().chain(to.as_deref()).collect();
        let out = c.cli(&args);
        assert!(out.status.code() == Some(1) && told(&out).contains(word), "{args:?}: {}", told(&out));
    }
    let out = c.cli(&["snapshot", "diff", &one]);
    assert!(out.status.code() == Some(2) && told(&out).contains("VOLUME@NAME"), "{}", told(&out));
}

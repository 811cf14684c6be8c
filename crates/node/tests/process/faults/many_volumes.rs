//! Many small volumes, and a node that heads a fifth of them dies.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, SOME, VOLUME, five, pid_of, start_node};
use crate::support::cluster::Cluster;
use crate::support::plane::{create, settled};
use crate::support::tools::{say, told, wait_within};
use crate::support::{Weight, full, rounds, turn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest until all volumes are as they should be.
const ALL_MAX: Duration = Duration::from_secs(300);

fn volumes(c: &Cluster) -> Option<Vec<Value>> {
    let out = c.cli(&["volume", "list", "--json"]);
    let list: Option<Value> = out.status.success().then(|| serde_json::from_slice(&out.stdout).expect("JSON"));
    Some(list?["volumes"].as_array()?.clone())
}

fn create_all(c: &Cluster, count: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count) {
                    create(c, None, &format!("small{i}"), "3");
                }
            });
        }
    });
}

/// Waits until every volume is in one of these states; how long that took.
fn all_are(c: &Cluster, count: usize, states: &[&str]) -> Duration {
    let begun = Instant::now();
    wait_within(ALL_MAX, "all volumes", || {
        let all = volumes(c)?;
        let fit = all.iter().filter(|v| v["state"].as_str().is_some_and(|s| states.contains(&s))).count();
        (all.len() == count && fit == count).then_some(())
    });
    begun.elapsed()
}

fn all_volumes(c: &Cluster) -> Vec<Value> {
    wait_within(ALL_MAX, "the volumes", || volumes(c))
}

/// The head of each volume, by name.
fn heads(c: &Cluster) -> BTreeMap<String, String> {
    let text = |v: &Value| v.as_str().expect("a name").to_owned();
    all_volumes(c).iter().map(|v| (text(&v["name"]), text(&v["shards"][0]["head"]))).collect()
}

/// Heads do not go back by themselves: they are sent back to where they were at first, and that of the volume in use to
/// one of its members after the other.
fn spread(c: &Cluster, first: &BTreeMap<String, String>, round: usize) {
    let mut wanted = first.clone();
    let in_use = all_volumes(c).into_iter().find(|v| v["name"] == VOLUME).expect("it is there");
    let mut members: Vec<_> = in_use["shards"][0]["members"].as_array().expect("members is a list").clone();
    members.sort_by_key(|m| m["node"].to_string());
    wanted.insert(VOLUME.into(), members[round % members.len()]["node"].as_str().expect("a name").into());
    let now = heads(c);
    let moves: Vec<_> = wanted.iter().filter(|(name, head)| now[*name] != **head).collect();
    std::thread::scope(|s| {
        for part in moves.chunks(moves.len().div_ceil(4).max(1)) {
            s.spawn(move || {
                for (name, head) in part {
                    let out = c.cli(&["volume", "move-head", name, head]);
                    assert!(out.status.success(), "{}\n{}", told(&out), c.log());
                }
            });
        }
    });
}

#[test]
fn a_head_of_many_volumes_killed_again_and_again() {
    let _turn = turn(Weight::Loaded);
    let (count, away) = if full() { (1000, 5) } else { (20, 0) };
    let c = five(&["--no-restart"]);
    let begun = Instant::now();
    create_all(&c, count);
    let created = begun.elapsed();
    all_are(&c, count + 1, &["ready"]);
    let (made, ready) = (created.as_secs_f64(), begun.elapsed().as_secs_f64());
    say(&format!("measured: {count} volumes created in {made:.1} s, ready after {ready:.1} s"));
    settled(&c, NODES);
    let mut rig = Rig::on(&c, "a head of many volumes");
    let mut figures =
        Figures::new(format!("head of a fifth of {count} volumes killed, back after {away} s")).median_asked(2.0);
    let first = heads(&c);
    for round in 0..rounds(2, 20) {
        spread(&c, &first, round);
        all_are(&c, count + 1, &["ready"]);
        let (mut moved, mut usable, mut whole) = (0, Duration::ZERO, Duration::ZERO);
        figures.add(rig.round(|writes| {
            let (head, _) = c.chain(VOLUME);
            moved = heads(&c).values().filter(|h| **h == head).count();
            let pid = pid_of(&c, &head);
            let hit = Instant::now();
            c.kill(&[pid]);
            usable = all_are(&c, count + 1, &["ready", "degraded"]);
            writes.more(SOME);
            std::thread::sleep(Duration::from_secs(away).saturating_sub(hit.elapsed()));
            let back = Instant::now();
            start_node(&c, &head, pid);
            whole = all_are(&c, count + 1, &["ready"]);
            Moments { hit, back }
        }));
        let (usable, whole) = (usable.as_secs_f64(), whole.as_secs_f64());
        say(&format!("{moved} heads were moved: all volumes usable after {usable:.2} s, whole {whole:.2} s later"));
    }
    rig.end(&[&figures]);
}

//! Snapshots of several volumes while a writer numbers its writes across them.

use super::listed;
use crate::support::cluster::{Cluster, Setup};
use crate::support::load::{Answers, block_of, number_of};
use crate::support::nbd::{Client, Op};
use crate::support::tools::{say, told};
use crate::support::{Raised, Weight, rounds, turn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const VOLUMES: [&str; 4] = ["a", "b", "c", "d"];
const MIB: u64 = 1 << 20;

/// Writes numbers, each after the answer to the one before, to one volume and shard after the other. The longest that one
/// of them took.
fn write_on(c: &Cluster, answers: &Answers, done: &AtomicBool) -> Duration {
    let mut clients: Vec<Client> = VOLUMES.iter().map(|v| Client::attach(&c.place, v)).collect();
    let (mut number, mut longest) = (0_u64, Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let (volume, stripe) = (number as usize % VOLUMES.len(), number / VOLUMES.len() as u64 % 4);
        let begun = Instant::now();
        let write = Op::Write { at: stripe * MIB, data: block_of(number), fua: false };
        match clients[volume].ask(&write) {
            Ok(result) => assert_eq!(result.map(|_| ()), Ok(()), "write {number}"),
            // The gateway lives in none of the nodes.
            Err(e) => panic!("write {number}: {e}"),
        }
        longest = longest.max(begun.elapsed());
        answers.add();
    }
    longest
}

/// A snapshot has all writes up to its last one, and none behind that: in each place the last write of those that belong
/// there.
fn is_prefix(c: &Cluster, name: &str) {
    let mut there = Vec::new();
    for v in VOLUMES {
        let mut client = Client::connect(&c.place, &format!("{v}@{name}"), true).expect("a snapshot");
        there.push((0..4).map(|stripe| client.read(stripe * MIB, 4096)).collect::<Vec<_>>());
    }
    let last = there.iter().flatten().map(|block| number_of(block)).max().expect("16 places");
    for (volume, stripes) in there.iter().enumerate() {
        for (stripe, block) in stripes.iter().enumerate() {
            let belongs = |n: &u64| *n as usize % VOLUMES.len() == volume && *n as usize / VOLUMES.len() % 4 == stripe;
            let wanted = (1..=last).rev().take(VOLUMES.len() * 4).find(belongs);
            assert_eq!(number_of(block), wanted.unwrap_or(0), "{name}: volume {volume}, stripe {stripe}, up to {last}");
        }
    }
}

#[test]
fn groups_are_made_under_load_and_with_a_node_killed() {
    let _turn = turn(Weight::Loaded);
    let c = Cluster::up(Setup { volume: None, ..Setup::default() });
    for v in VOLUMES {
        c.json(&["volume", "create", v, "--size", "64M", "--shards", "4"]);
    }
    let (answers, done) = (Answers::default(), AtomicBool::new(false));
    let all = VOLUMES.join(",");
    let (groups, kills) = (rounds(5, 180), rounds(1, 20));
    let (mut times, mut made) = (Vec::new(), 0);
    let longest = std::thread::scope(|s| {
        let writer = s.spawn(|| write_on(&c, &answers, &done));
        let raised = Raised(&done);
        answers.more(50);
        for n in 0..groups {
            let begun = Instant::now();
            super::create(&c, &all, &format!("g{n}"));
            times.push(begun.elapsed());
            answers.more(20);
        }
        // A node dies in the middle: the snapshot is there or is not, and writers go on.
        for n in 0..kills {
            // Not the one that the command is asked of first.
            let victim = c.nodes()[1 + n % 2].1;
            let name = format!("killed{n}");
            let making = s.spawn({
                let (c, all, name) = (&c, &all, name.clone());
                move || c.cli(&["snapshot", "create", all, "--name", &name])
            });
            std::thread::sleep(Duration::from_millis(n as u64 % 7 * 5));
            c.kill(&[victim]);
            let out = making.join().expect("a command that ends");
            assert!(matches!(out.status.code(), Some(0 | 1)), "{}", told(&out));
            answers.more(100);
            let is_there = listed(&c, "a").iter().any(|(of, stage)| *of == name && stage == "complete");
            assert_eq!(is_there, out.status.success(), "{name}: {}", told(&out));
            made += usize::from(is_there);
            VOLUMES.iter().for_each(|v| c.wait_healthy(v));
        }
        drop(raised);
        writer.join().expect("a writer")
    });
    times.sort();
    say(&format!(
        "snapshots of 4 volumes with 16 shards, as a command: {:?} in the middle, {:?} at most; longest write {longest:?}; a \
         node was killed under {kills} more, {made} of them are there",
        times[times.len() / 2],
        times[times.len() - 1],
    ));
    let complete: Vec<String> =
        listed(&c, "d").into_iter().filter(|(_, stage)| stage == "complete").map(|(name, _)| name).collect();
    assert_eq!(complete.len(), groups + made);
    complete.iter().for_each(|name| is_prefix(&c, name));
}

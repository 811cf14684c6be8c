//! Heads of many volumes move without a pause, while each volume is written.

use super::prober::Prober;
use crate::support::cluster::{Cluster, Setup};
use crate::support::plane::{create, settled};
use crate::support::tools::{say, told};
use crate::support::{Raised, Weight, full, turn};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const NODES: u16 = 3;
/// Commands that run at a time.
const MOVERS: usize = 4;

/// Moves the heads of these volumes from one node to the next until the time is over; the number of moves.
fn move_heads(c: &Cluster, volumes: &[String], until: Instant) -> usize {
    let mut moves = 0;
    for round in 0.. {
        for volume in volumes {
            if Instant::now() >= until {
                return moves;
            }
            let (head, others) = c.chain(volume);
            let to = &others[round % others.len()];
            let out = c.cli(&["volume", "move-head", volume, to]);
            assert!(out.status.success(), "{volume} from {head} to {to}: {}\n{}", told(&out), c.log());
            moves += 1;
        }
    }
    moves
}

#[test]
fn heads_of_many_volumes_move_without_a_pause() {
    let _turn = turn(Weight::Heavy);
    let (count, time): (usize, _) = if full() { (20, Duration::from_secs(10)) } else { (6, Duration::from_secs(2)) };
    let c = Cluster::up(Setup { nodes: NODES, ..Setup::default() });
    let names: Vec<String> = (0..count).map(|i| format!("small{i}")).collect();
    for name in &names {
        create(&c, None, name, "3");
    }
    names.iter().for_each(|name| c.wait_healthy(name));
    settled(&c, usize::from(NODES));
    let mut probers: Vec<Prober> = names.iter().map(|name| Prober::connect(&c.place, name, 0)).collect();
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let until = begun + time;
    let (moves, took) = std::thread::scope(|s| {
        let raised = Raised(&stop);
        probers.iter_mut().for_each(|p| drop(s.spawn(|| p.run(&stop))));
        let movers: Vec<_> =
            names.chunks(count.div_ceil(MOVERS)).map(|part| s.spawn(|| move_heads(&c, part, until))).collect();
        let moves: usize = movers.into_iter().map(|m| m.join().expect("moves")).sum();
        drop(raised);
        (moves, begun.elapsed().as_secs_f64())
    });
    assert!(moves > 0, "no head moved in {took:.1} s");
    let (errors, lost) = probers.iter().fold((0, 0), |(e, l), p| (e + p.errors, l + p.lost));
    assert_eq!((errors, lost), (0, 0), "writes failed, or were not answered\n{}", c.log());
    let longest = probers.iter().map(|p| p.longest(begun, Instant::now())).max().unwrap_or_default();
    let writes: u64 = probers.iter().map(|p| p.answers.count()).sum();
    for (prober, name) in probers.iter_mut().zip(&names) {
        c.wait_healthy(name);
        prober.check();
    }
    names.iter().for_each(|name| c.verify(name));
    say(&format!(
        "measured: heads of {count} volumes moved {moves} times in {took:.1} s ({:.1} a second) under {writes} writes; \
         longest write {:.3} s, errors 0, lost answers 0, replicas agree",
        moves as f64 / took,
        longest.as_secs_f64()
    ));
}

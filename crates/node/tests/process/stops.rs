//! Nodes that are told to stop by a signal, as a service manager or Ctrl-C does it, without `freebs node stop`.

use crate::support::cluster::{Cluster, Setup};
use crate::support::load::Load;
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{say, told, wait_for};
use crate::support::{Weight, rounds, turn};
use std::time::Duration;

const REGION: u64 = 8 << 20;
/// Answers that show that it goes on: far more than are in flight at once.
const SOME: u64 = 200;

/// All that a node has logged.
fn log_of(c: &Cluster, node: &str) -> String {
    std::fs::read_to_string(c.data().join("logs").join(format!("{node}.log"))).expect("a node's log")
}

/// The last words of the supervisor.
fn said(c: &Cluster) -> String {
    std::fs::read_to_string(c.dir().join("up.err")).expect("what `freebs up` said")
}

fn start(c: &Cluster, node: &str) {
    let out = c.cli(&["node", "start", node]);
    assert!(out.status.success(), "{}\n{}", told(&out), c.log());
}

/// SIGTERM ended the process at once, and its shards were without a head until others had noticed.
#[test]
fn a_node_that_is_told_to_stop_hands_its_heads_over_first() {
    let _turn = turn(Weight::Loaded);
    let c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    c.wait_healthy("demo");
    let mut oracle = Oracle::new(0, REGION, Rng::announced("nodes told to stop"));
    let answers = oracle.answers.clone();
    let load = Load { pause: Duration::from_millis(1), ..Load::new(&c.place, "demo") };
    let rounds = rounds(4, 30);
    load.run(&c, &mut oracle, || {
        for round in 0..rounds {
            let signal = [libc::SIGTERM, libc::SIGINT][round % 2];
            let (head, _) = c.chain("demo");
            let before = log_of(&c, &head).matches("heads were handed over moved=1").count();
            let pid = c.pid_of(&head);
            answers.more(SOME);
            c.tell(pid, signal);
            c.wait_gone(pid);
            let log = log_of(&c, &head);
            let after = log.matches("heads were handed over moved=1").count();
            assert_eq!(after, before + 1, "round {round}: {head} did not hand its head over\n{}", c.log());
            assert!(log.contains("told to stop: other nodes become heads first"), "{log}");
            assert_ne!(c.chain("demo").0, head, "another one is head\n{}", c.log());
            answers.more(SOME);
            start(&c, &head);
            c.wait_healthy("demo");
        }
    });
    let gap = oracle.tally.longest_gap.as_secs_f64();
    say(&format!("measured: head told to stop by a signal {rounds} times, longest gap {gap:.3} s"));
    assert_eq!((oracle.tally.errors, oracle.tally.lost), (0, 0), "{:?}\n{}", oracle.tally, c.log());
    assert_eq!(said(&c).matches("ended with exit status 0").count(), rounds, "{}", said(&c));
    load.check(&c, &mut oracle);
    c.verify("demo");
}

/// A node with nobody to hand its heads to stops all the same; one that is told so twice ends where it stands.
#[test]
fn a_stop_does_not_wait_for_members_that_are_not_there() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    c.wait_healthy("demo");
    for signals in [&[libc::SIGTERM][..], &[libc::SIGTERM, libc::SIGINT]] {
        let (head, others) = c.chain("demo");
        let [pid, a, b] = [&head, &others[0], &others[1]].map(|n| c.pid_of(n));
        [a, b].iter().for_each(|pid| c.pause(*pid));
        signals.iter().for_each(|signal| c.tell(pid, *signal));
        c.wait_gone(pid);
        [a, b].iter().for_each(|pid| c.resume(*pid));
        let log = log_of(&c, &head);
        let (words, status) = match signals.len() {
            1 => ("heads were not handed over|no head was handed over", 0),
            _ => ("told to stop again", 1),
        };
        assert!(words.split('|').any(|w| log.contains(w)), "{words} is not said\n{}", c.log());
        let ended = format!("{head} ended with exit status {status}");
        // The process is gone a moment before its supervisor has read what it said last.
        wait_for(&ended, || said(&c).contains(&ended).then_some(()));
        start(&c, &head);
        c.wait_healthy("demo");
    }
}

//! Nodes and gateways die, stand still, are stopped or lose their heads under a client that remembers every answer.

use crate::support::cluster::{Cluster, Setup};
use crate::support::load::{Answers, Load, all_up, pids};
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{say, told, wait_at_most, wait_for};
use crate::support::{PATIENCE, Weight, full, turn};
use std::process::{Child, Stdio};
use std::time::Duration;

const REGION: u64 = 8 << 20;
/// Answers that show that it goes on: far more than are in flight at once.
const SOME: u64 = 200;

/// Many requests in flight, but not so many a second that other tests get nothing done.
fn load(c: &Cluster) -> Load<'_> {
    Load { pause: Duration::from_millis(1), ..Load::new(&c.place, "demo") }
}

#[test]
fn a_killed_gateway_decides_its_open_writes_once() {
    let _turn = turn(Weight::Light);
    let rounds = if full() { 20 } else { 4 };
    let mut rng = Rng::announced("kills of the gateway");
    let c = Cluster::up(Setup::default());
    let mut oracle = Oracle::new(0, REGION, Rng::new(rng.next()));
    let answers = oracle.answers.clone();
    for round in 0..rounds {
        let gateway = c.gateways()[0].1;
        let with_nodes = round % 2 == 1;
        let mut victims = vec![gateway];
        if with_nodes {
            victims.extend(pids(&c));
        }
        load(&c).run(&c, &mut oracle, || {
            answers.more(SOME + rng.below(2 * SOME));
            c.kill(&victims);
            if with_nodes {
                all_up(&c, 3, &victims);
            }
            c.wait_gone(gateway);
            answers.more(SOME);
        });
        load(&c).check(&c, &mut oracle);
    }
    assert!(oracle.tally.lost > 0, "no request was in flight when the gateway died: {:?}", oracle.tally);
    c.wait_healthy("demo");
    c.verify("demo");
}

/// Asks for another head until a node takes the order, and the head is another. The command itself waits for all
/// members, for a while: it is to be waited for.
fn move_head(c: &Cluster, to: &str) -> Child {
    let ask = || {
        let mut cmd = c.freebs();
        cmd.args(["volume", "move-head", "demo", to]).stdin(Stdio::null()).stdout(Stdio::null());
        cmd.spawn().expect("it starts")
    };
    let mut asked = ask();
    wait_for("the new head", || {
        if asked.try_wait().expect("our own child").is_some_and(|s| !s.success()) {
            asked = ask();
        }
        (c.chain("demo").0 == *to).then_some(())
    });
    asked
}

/// The order was carried out.
fn ended_well(c: &Cluster, asked: &mut Child) {
    let status = wait_at_most(asked, PATIENCE);
    assert!(status.is_some_and(|s| s.success()), "{status:?}\n{}", c.log());
}

/// Each member in turn is head of the chain, although none of them but the last knows the last view's secret.
fn heads_move(c: &Cluster, answers: &Answers) {
    for round in 0..if full() { 30 } else { 10 } {
        let (_, others) = c.chain("demo");
        ended_well(c, &mut move_head(c, &others[round % 2]));
        answers.more(SOME);
        c.wait_healthy("demo");
    }
}

/// A member that says nothing is passed over: it stands still until much was answered without it.
fn members_stand_still(c: &Cluster, answers: &Answers) {
    for round in 0..if full() { 10 } else { 4 } {
        let pid = c.pid_of(&c.chain("demo").1[round % 2]);
        c.pause(pid);
        answers.more(2 * SOME);
        c.resume(pid);
        answers.more(SOME);
        c.wait_healthy("demo");
    }
}

/// The head says nothing any more, and somebody orders another one. It goes on with everything that was answered, and
/// what the old head still has under way when it awakes is of no account.
fn heads_stand_still_and_are_moved(c: &Cluster, answers: &Answers) {
    for round in 0..if full() { 10 } else { 3 } {
        let (head, others) = c.chain("demo");
        let pid = c.pid_of(&head);
        c.pause(pid);
        // The next one is also who takes over without an order.
        let mut asked = move_head(c, &others[0]);
        answers.more(2 * SOME);
        c.resume(pid);
        answers.more(SOME);
        c.wait_healthy("demo");
        ended_well(c, &mut asked);
        assert_eq!(c.chain("demo").0, others[0], "round {round}\n{}", c.log());
    }
}

/// A node that is stopped on purpose hands its heads over first: its clients hardly notice.
fn stopped_nodes_hand_their_heads_over(c: &Cluster, answers: &Answers) {
    // The usual data directory is another one: the cluster is found by its address.
    for _ in 0..if full() { 20 } else { 4 } {
        let (head, _) = c.chain("demo");
        let out = c.cli(&["node", "stop", &head]);
        assert!(out.status.success(), "{}\n{}", told(&out), c.log());
        let (new, _) = c.chain("demo");
        assert_ne!(new, head, "its head was moved before it ended\n{}", c.log());
        // Somebody else has taken over.
        wait_for("a chain without it", || (c.volume("demo")["state"] == "degraded").then_some(()));
        answers.more(SOME);
        assert!(c.cli(&["node", "start", &head]).status.success());
        c.wait_healthy("demo");
    }
}

/// No client sees an error of any of these, one after the other in the same cluster.
fn under_load(what: &str, stories: &[fn(&Cluster, &Answers)]) {
    let c = Cluster::up(Setup::default());
    c.wait_healthy("demo");
    let mut oracle = Oracle::new(0, REGION, Rng::announced(what));
    let answers = oracle.answers.clone();
    for story in stories {
        oracle.tally.longest_gap = Duration::ZERO;
        load(&c).run(&c, &mut oracle, || story(&c, &answers));
        say(&format!("measured: {what}, longest gap {:.3} s", oracle.tally.longest_gap.as_secs_f64()));
        assert_eq!((oracle.tally.errors, oracle.tally.lost), (0, 0), "{:?}\n{}", oracle.tally, c.log());
        load(&c).check(&c, &mut oracle);
    }
    c.verify("demo");
}

#[test]
fn heads_are_moved_and_handed_over_under_load() {
    let _turn = turn(Weight::Loaded);
    under_load("heads moved and stopped on purpose", &[heads_move, stopped_nodes_hand_their_heads_over]);
}

#[test]
fn members_and_heads_that_stand_still_are_passed_over() {
    let _turn = turn(Weight::Light);
    under_load("members and heads stand still", &[members_stand_still, heads_stand_still_and_are_moved]);
}

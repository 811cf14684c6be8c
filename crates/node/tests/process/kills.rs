//! Nodes die at random moments under a client that remembers every answer.

use crate::support::cluster::{Cluster, Setup};
use crate::support::load::{Load, all_up, pids};
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{say, wait_for};
use crate::support::{alone, full};
use std::time::{Duration, Instant};

const REGION: u64 = 32 << 20;

fn load(c: &Cluster) -> Load<'_> {
    Load::new(&c.place, "demo")
}

#[test]
fn all_nodes_killed_again_and_again_lose_no_answered_write() {
    let _turn = alone();
    let rounds = if full() { 20 } else { 3 };
    let mut rng = Rng::announced("kills of all nodes");
    let mut c = Cluster::up(Setup::default());
    let mut oracle = Oracle::new(0, REGION, Rng::new(rng.next()));
    let mut errors = 0;
    for round in 0..rounds {
        let before = pids(&c);
        let moment = Duration::from_millis(300 + rng.below(1500));
        let mut back = Duration::ZERO;
        let gap = std::mem::take(&mut oracle.tally.longest_gap);
        load(&c).run(&c, &mut oracle, || {
            std::thread::sleep(moment);
            let begun = Instant::now();
            c.kill(&before);
            all_up(&c, 3, &before);
            c.wait_healthy("demo", Duration::from_secs(40));
            back = begun.elapsed();
            std::thread::sleep(Duration::from_millis(300));
        });
        let longest = oracle.tally.longest_gap;
        oracle.tally.longest_gap = gap.max(longest);
        load(&c).check(&c, &mut oracle);
        if oracle.tally.errors > 0 && errors == 0 {
            say(&format!("requests failed in round {round}:\n{}", c.log()));
        }
        errors = oracle.tally.errors;
        say(&format!(
            "round {round}: killed after {} ms, healthy after {:.2} s, longest gap {:.2} s, {:?}",
            moment.as_millis(),
            back.as_secs_f64(),
            longest.as_secs_f64(),
            oracle.tally
        ));
    }
    assert_eq!(oracle.tally.errors, 0, "while there is no quorum requests wait, they do not fail: {:?}", oracle.tally);
    assert!(oracle.tally.writes > 100, "the client got hardly anything done: {:?}", oracle.tally);
    assert_eq!(oracle.tally.lost, 0, "the gateway stayed up, so the connection must have, too");
    c.verify("demo");
    c.stop();
    c.start();
    load(&c).check(&c, &mut oracle);
}

#[test]
fn members_and_heads_killed_one_by_one_under_load() {
    let _turn = alone();
    let rounds = if full() { 12 } else { 3 };
    let mut rng = Rng::announced("kills one by one");
    let c = Cluster::up(Setup::default());
    let mut oracle = Oracle::new(0, REGION, Rng::new(rng.next()));
    for round in 0..rounds {
        let (head, others) = c.chain("demo");
        let victim = if round % 3 == 1 { head.clone() } else { others[rng.below(2) as usize].clone() };
        let role = if victim == head { "head" } else { "member" };
        let pid = c.nodes().iter().find(|n| n.0 == victim).expect("it is up").1;
        let gap = std::mem::take(&mut oracle.tally.longest_gap);
        load(&c).run(&c, &mut oracle, || {
            std::thread::sleep(Duration::from_millis(300 + rng.below(500)));
            c.kill(&[pid]);
            std::thread::sleep(Duration::from_millis(500));
            c.wait_healthy("demo", Duration::from_secs(40));
        });
        say(&format!("round {round}: a {role} killed, longest gap {:.3} s", oracle.tally.longest_gap.as_secs_f64()));
        assert!(role == "head" || oracle.tally.errors == 0, "the loss of a member showed: {:?}", oracle.tally);
        oracle.tally.longest_gap = gap.max(oracle.tally.longest_gap);
        load(&c).check(&c, &mut oracle);
    }
    c.verify("demo");
}

#[test]
fn a_killed_gateway_decides_its_open_writes_once() {
    let _turn = alone();
    let rounds = if full() { 10 } else { 2 };
    let mut rng = Rng::announced("kills of the gateway");
    let c = Cluster::up(Setup::default());
    let mut oracle = Oracle::new(0, REGION, Rng::new(rng.next()));
    for round in 0..rounds {
        let gateway = c.gateways()[0].1;
        let with_nodes = round % 2 == 1;
        let mut victims = vec![gateway];
        if with_nodes {
            victims.extend(pids(&c));
        }
        load(&c).run(&c, &mut oracle, || {
            std::thread::sleep(Duration::from_millis(300 + rng.below(700)));
            c.kill(&victims);
            if with_nodes {
                all_up(&c, 3, &victims);
            }
            std::thread::sleep(Duration::from_millis(1500));
        });
        load(&c).check(&c, &mut oracle);
    }
    assert!(oracle.tally.lost > 0, "no request was in flight when the gateway died: {:?}", oracle.tally);
    c.wait_healthy("demo", Duration::from_secs(40));
    c.verify("demo");
}

/// Three of five nodes die, one of them a member that is not the head: nobody can decide anything any more, and the two
/// members that are left go on.
#[test]
fn reads_and_writes_go_on_without_a_control_plane() {
    let _turn = alone();
    let c = Cluster::up(Setup { nodes: 5, more: vec!["--no-restart".into()], ..Setup::default() });
    let five = || Some(c.nodes()).filter(|n| n.len() == 5);
    let nodes = wait_for("five nodes", Duration::from_secs(20), five);
    c.wait_healthy("demo", Duration::from_secs(20));
    // All five vote a moment after the last one was taken in.
    let voting =
        || c.status()["nodes"].as_array().is_some_and(|all| all.iter().all(|n| n["votes"] == true)).then_some(());
    wait_for("five votes", Duration::from_secs(30), voting);
    let (head, others) = c.chain("demo");
    let stays = [&head, &others[0]];
    let victims: Vec<u32> = nodes.iter().filter(|(name, _)| !stays.contains(&name)).map(|n| n.1).collect();
    assert_eq!(victims.len(), 3);
    // Attaching is for the control plane to decide: one connection keeps the volume attached.
    let _attached = load(&c).attach();
    let mut oracle = Oracle::new(0, REGION, Rng::new(5));
    let mut decided = false;
    load(&c).run(&c, &mut oracle, || {
        std::thread::sleep(Duration::from_millis(500));
        c.kill(&victims);
        std::thread::sleep(Duration::from_secs(4));
        let out = c.cli(&["volume", "create", "more", "--size", "64M", "--copies", "1"]);
        decided = out.status.success();
    });
    assert!(!decided, "two of five must not decide");
    say(&format!("measured: without a control plane, longest gap {:.3} s", oracle.tally.longest_gap.as_secs_f64()));
    assert_eq!(oracle.tally.errors, 0, "{:?}", oracle.tally);
    assert!(oracle.tally.longest_gap < Duration::from_secs(2), "{:?}", oracle.tally);
    load(&c).check(&c, &mut oracle);
}

#[test]
fn a_frozen_member_is_passed_over() {
    let _turn = alone();
    let c = Cluster::up(Setup::default());
    let (_, others) = c.chain("demo");
    let pid = c.nodes().iter().find(|n| n.0 == others[1]).expect("it is up").1;
    let mut oracle = Oracle::new(0, REGION, Rng::new(3));
    load(&c).run(&c, &mut oracle, || {
        std::thread::sleep(Duration::from_millis(500));
        c.pause(pid);
        std::thread::sleep(Duration::from_secs(3));
        c.resume(pid);
        std::thread::sleep(Duration::from_millis(500));
    });
    say(&format!("measured: a member frozen for 3 s, longest gap {:.3} s", oracle.tally.longest_gap.as_secs_f64()));
    assert_eq!(oracle.tally.errors, 0, "{:?}", oracle.tally);
    assert!(oracle.tally.longest_gap < Duration::from_secs(2), "{:?}", oracle.tally);
    load(&c).check(&c, &mut oracle);
    c.wait_healthy("demo", Duration::from_secs(30));
    c.verify("demo");
}

/// Asks for another head until a node takes the order: who would answer may be the one that is stopped.
fn move_head(c: &Cluster, to: &str) {
    let begun = Instant::now();
    loop {
        let out = c.cli(&["volume", "move-head", "demo", to]);
        if out.status.success() {
            return;
        }
        let late = begun.elapsed() > Duration::from_secs(30);
        assert!(!late, "{}\n{}", String::from_utf8_lossy(&out.stderr), c.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Each member in turn is head of the chain, although none of them but the last knows the last view's secret.
#[test]
fn heads_move_under_load() {
    let _turn = alone();
    let rounds = if full() { 30 } else { 6 };
    let c = Cluster::up(Setup::default());
    let mut oracle = Oracle::new(0, REGION, Rng::new(5));
    load(&c).run(&c, &mut oracle, || {
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(300));
            let (_, others) = c.chain("demo");
            let to = &others[round % 2];
            move_head(&c, to);
            wait_for("the new head", Duration::from_secs(20), || (c.chain("demo").0 == *to).then_some(()));
            c.wait_healthy("demo", Duration::from_secs(20));
        }
    });
    let gap = oracle.tally.longest_gap;
    say(&format!("measured: {rounds} moves of the head, longest gap {:.3} s", gap.as_secs_f64()));
    assert_eq!(oracle.tally.errors, 0, "{:?}", oracle.tally);
    assert!(gap < Duration::from_secs(3), "{:?}", oracle.tally);
    load(&c).check(&c, &mut oracle);
    c.verify("demo");
}

/// The head says nothing any more. Another member goes on with everything that was answered, and what the old head
/// still has under way when it awakes is of no account.
#[test]
fn another_head_goes_on_for_a_frozen_one() {
    let _turn = alone();
    let c = Cluster::up(Setup::default());
    let (head, others) = c.chain("demo");
    let pid = c.nodes().iter().find(|n| n.0 == head).expect("it is up").1;
    let mut oracle = Oracle::new(0, REGION, Rng::new(6));
    load(&c).run(&c, &mut oracle, || {
        std::thread::sleep(Duration::from_millis(500));
        c.pause(pid);
        std::thread::sleep(Duration::from_millis(300));
        move_head(&c, &others[0]);
        // Long enough for the client to work through the new head.
        std::thread::sleep(Duration::from_secs(4));
        c.resume(pid);
        std::thread::sleep(Duration::from_millis(500));
        c.wait_healthy("demo", Duration::from_secs(30));
    });
    let gap = oracle.tally.longest_gap;
    say(&format!("measured: a frozen head and another one in its place, longest gap {:.3} s", gap.as_secs_f64()));
    assert_eq!(c.chain("demo").0, others[0]);
    assert_eq!(oracle.tally.errors, 0, "{:?}", oracle.tally);
    assert!(gap < Duration::from_secs(6), "{:?}", oracle.tally);
    load(&c).check(&c, &mut oracle);
    c.verify("demo");
}

/// A head dies and stays dead for a while. Nobody says which node is to go on: the others find out.
#[test]
fn another_head_takes_over_for_a_dead_one() {
    let _turn = alone();
    let rounds = if full() { 20 } else { 4 };
    let c = Cluster::up(Setup { nodes: 5, more: vec!["--no-restart".into()], ..Setup::default() });
    wait_for("five nodes", Duration::from_secs(20), || Some(c.nodes()).filter(|n| n.len() == 5));
    c.wait_healthy("demo", Duration::from_secs(20));
    let data = c.data();
    let mut oracle = Oracle::new(0, REGION, Rng::new(8));
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let (head, _) = c.chain("demo");
        let pid = c.nodes().iter().find(|n| n.0 == head).expect("it is up").1;
        let before = std::mem::take(&mut oracle.tally.longest_gap);
        load(&c).run(&c, &mut oracle, || {
            std::thread::sleep(Duration::from_millis(500));
            if round % 4 == 3 {
                c.pause(pid);
            } else {
                c.kill(&[pid]);
            }
            wait_for("another head", Duration::from_secs(30), || (c.chain("demo").0 != head).then_some(()));
            std::thread::sleep(Duration::from_secs(3));
            if round % 4 == 3 {
                c.resume(pid);
            } else {
                let out = c.cli(&["node", "start", &head, "--data", data.to_str().expect("a plain path")]);
                assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), c.log());
            }
            c.wait_healthy("demo", Duration::from_secs(30));
        });
        let gap = oracle.tally.longest_gap.as_secs_f64();
        say(&format!("round {round}: head {head} gone, longest gap {gap:.3} s"));
        gaps.push(gap);
        oracle.tally.longest_gap = before.max(oracle.tally.longest_gap);
        assert_eq!(oracle.tally.errors, 0, "{:?}\n{}", oracle.tally, c.log());
        load(&c).check(&c, &mut oracle);
    }
    gaps.sort_by(f64::total_cmp);
    let median = gaps[gaps.len() / 2];
    say(&format!("measured: {rounds} heads gone, longest gap {:.3} s, median {median:.3} s", gaps[gaps.len() - 1]));
    // Far above what it takes; without a new head it would be for ever.
    assert!(gaps[gaps.len() - 1] < 10.0, "{gaps:?}\n{}", c.log());
    c.verify("demo");
}

/// A node that is stopped on purpose hands its heads over first: its clients hardly notice.
#[test]
fn a_stopped_node_hands_its_heads_over() {
    let _turn = alone();
    let rounds = if full() { 20 } else { 3 };
    let c = Cluster::up(Setup::default());
    let data = c.data();
    let data = data.to_str().expect("a plain path");
    let mut oracle = Oracle::new(0, REGION, Rng::new(9));
    load(&c).run(&c, &mut oracle, || {
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(300));
            let (head, _) = c.chain("demo");
            let out = c.cli(&["node", "stop", &head, "--data", data]);
            assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), c.log());
            let (new, _) = c.chain("demo");
            assert_ne!(new, head, "its head was moved before it ended\n{}", c.log());
            assert_eq!(c.volume("demo")["state"], "degraded", "and somebody else has taken over");
            assert!(c.cli(&["node", "start", &head, "--data", data]).status.success());
            c.wait_healthy("demo", Duration::from_secs(30));
        }
    });
    let gap = oracle.tally.longest_gap.as_secs_f64();
    say(&format!("measured: {rounds} heads stopped on purpose, longest gap {gap:.3} s"));
    assert_eq!(oracle.tally.errors, 0, "{:?}\n{}", oracle.tally, c.log());
    load(&c).check(&c, &mut oracle);
    c.verify("demo");
}

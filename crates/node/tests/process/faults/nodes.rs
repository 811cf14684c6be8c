//! One node of the chain dies and comes back, or stands still for a while.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, SOME, VOLUME, another_head, five, pid_of, start_node};
use crate::support::cluster::Cluster;
use crate::support::load::Answers;
use crate::support::plane::settled;
use crate::support::tools::{say, wait_for};
use crate::support::{Weight, full, rounds, turn};
use std::time::{Duration, Instant};

/// A place in the chain.
#[derive(Clone, Copy, Debug)]
enum Role {
    Head,
    Middle,
    Tail,
}

fn who(c: &Cluster, role: Role) -> String {
    let (head, mut others) = c.chain(VOLUME);
    assert_eq!(others.len(), 2, "three copies");
    match role {
        Role::Head => head,
        Role::Middle => others.swap_remove(0),
        Role::Tail => others.swap_remove(1),
    }
}

/// The process of that node. If it leads the control plane, too, the others have to find another leader first: told.
fn victim(c: &Cluster, role: Role) -> (String, u32) {
    let (leader, ..) = settled(c, NODES).swap_remove(0);
    let node = who(c, role);
    if node == leader {
        say(&format!("{node} leads the control plane, too"));
    }
    let pid = pid_of(c, &node);
    (node, pid)
}

/// Kills a node, and starts it again as soon as it was shown that everything goes on without it: of a head, through
/// another one; of other members before (`noticed` is false) or after the cluster has noticed that they are gone. It
/// stays away for at least so long.
fn killed(c: &Cluster, role: Role, noticed: bool, away: Duration, writes: &Answers) -> Moments {
    let (node, pid) = victim(c, role);
    let hit = Instant::now();
    c.kill(&[pid]);
    match role {
        Role::Head => another_head(c, &node, writes),
        Role::Middle | Role::Tail => writes.more(SOME),
    }
    if noticed {
        wait_for("the cluster to notice", || c.nodes().iter().all(|n| n.0 != node).then_some(()));
        writes.more(SOME);
    }
    std::thread::sleep(away.saturating_sub(hit.elapsed()));
    let back = Instant::now();
    start_node(c, &node, pid);
    Moments { hit, back }
}

/// Stops the head, and lets it go on when another one has gone on for it, after `away` at the earliest.
fn frozen(c: &Cluster, away: Duration, writes: &Answers) -> Moments {
    let (head, pid) = victim(c, Role::Head);
    let hit = Instant::now();
    c.pause(pid);
    another_head(c, &head, writes);
    std::thread::sleep(away.saturating_sub(hit.elapsed()));
    let back = Instant::now();
    c.resume(pid);
    Moments { hit, back }
}

/// How long it is gone for at least, for the figure's name.
fn after(seconds: u64) -> String {
    if seconds == 0 { "once others had gone on".into() } else { format!("after {seconds} s") }
}

/// Nobody decides for the nodes but they themselves, and who was killed is started by hand.
#[test]
fn each_place_of_the_chain_killed_again_and_again() {
    let _turn = turn(Weight::Loaded);
    let c = five(&["--no-restart"]);
    let mut rig = Rig::on(&c, "kills in a chain");
    let away = if full() { 2 } else { 0 };
    let name = |place: &str| format!("{place} killed, back {}", after(away));
    let mut all = [
        (Role::Head, Figures::new(name("head")).median_asked(0.6).longest_asked(1.5)),
        (Role::Middle, Figures::new(name("middle")).longest_asked(0.1)),
        (Role::Tail, Figures::new(name("tail")).longest_asked(0.1)),
    ];
    for round in 0..rounds(4, 20) {
        for (role, figures) in &mut all {
            let noticed = round % 2 == 0;
            figures.add(rig.round(|writes| killed(&c, *role, noticed, Duration::from_secs(away), writes)));
        }
    }
    let mut long = Figures::new("head killed, back after 60 s").median_asked(0.6).longest_asked(1.5);
    for _ in 0..if full() { 3 } else { 0 } {
        long.add(rig.round(|writes| killed(&c, Role::Head, true, Duration::from_secs(60), writes)));
    }
    let [(_, heads), (_, middles), (_, tails)] = &all;
    rig.end(&[heads, middles, tails, &long]);
}

/// When it goes on it takes itself for the head, and for a member that may be read from.
#[test]
fn a_head_that_stands_still_again_and_again_says_nothing_from_the_past() {
    let _turn = turn(Weight::Loaded);
    let c = five(&[]);
    let mut rig = Rig::on(&c, "heads that stand still");
    // Longer than its leases.
    let seconds = if full() { 30 } else { 3 };
    let mut figures = Figures::new(format!("head stopped for {seconds} s")).longest_asked(1.6);
    for _ in 0..rounds(3, 20) {
        figures.add(rig.round(|writes| frozen(&c, Duration::from_secs(seconds), writes)));
    }
    rig.end(&[&figures]);
}

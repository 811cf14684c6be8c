//! One node of the chain dies and comes back, or stands still for a while.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, VOLUME, five, pid_of, start_node};
use crate::support::cluster::Cluster;
use crate::support::plane::settled;
use crate::support::tools::say;
use crate::support::{alone, full, rounds};
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

fn killed(c: &Cluster, role: Role, away: Duration) -> Moments {
    let (node, pid) = victim(c, role);
    let hit = Instant::now();
    c.kill(&[pid]);
    std::thread::sleep(away);
    let back = Instant::now();
    start_node(c, &node);
    Moments { hit, back }
}

fn frozen(c: &Cluster, role: Role, away: Duration) -> Moments {
    let (_, pid) = victim(c, role);
    let hit = Instant::now();
    c.pause(pid);
    std::thread::sleep(away);
    let back = Instant::now();
    c.resume(pid);
    Moments { hit, back }
}

/// Nobody decides for the nodes but they themselves, and who was killed is started by hand.
#[test]
fn each_place_of_the_chain_killed_again_and_again() {
    let _turn = alone();
    let c = five(&["--no-restart"]);
    let mut rig = Rig::on(&c, "kills in a chain");
    let member = if full() { 2 } else { 1 };
    let mut all = [
        (Role::Head, 2, Figures::new("head killed, back after 2 s").median_asked(0.6).longest_asked(1.5)),
        (Role::Middle, member, Figures::new(format!("middle killed, back after {member} s")).longest_asked(0.1)),
        (Role::Tail, member, Figures::new(format!("tail killed, back after {member} s")).longest_asked(0.1)),
    ];
    for _ in 0..rounds(2, 20) {
        for (role, away, figures) in &mut all {
            figures.add(rig.round(|| killed(&c, *role, Duration::from_secs(*away))));
        }
    }
    let mut long = Figures::new("head killed, back after 60 s").median_asked(0.6).longest_asked(1.5);
    for _ in 0..if full() { 3 } else { 0 } {
        long.add(rig.round(|| killed(&c, Role::Head, Duration::from_secs(60))));
    }
    let [(.., heads), (.., middles), (.., tails)] = &all;
    rig.end(&[heads, middles, tails, &long]);
}

/// When it goes on it takes itself for the head, and for a member that may be read from.
#[test]
fn a_head_that_stands_still_again_and_again_says_nothing_from_the_past() {
    let _turn = alone();
    let c = five(&[]);
    let mut rig = Rig::on(&c, "heads that stand still");
    let seconds = if full() { 30 } else { 5 };
    let mut figures = Figures::new(format!("head stopped for {seconds} s")).longest_asked(1.6);
    for _ in 0..rounds(2, 20) {
        figures.add(rig.round(|| frozen(&c, Role::Head, Duration::from_secs(seconds))));
    }
    rig.end(&[&figures]);
}

//! A member without which nothing can be answered dies, or stands still for a while: its chain goes on without it, and it
//! comes back (V11, V13).

use super::figures::{Figures, Stall};
use super::rig::{Moments, Rig, SOME, VOLUME, pid_of, start_node};
use crate::support::cluster::{Cluster, Setup};
use crate::support::load::Answers;
use crate::support::plane::settled;
use crate::support::tools::{told, wait_for, wait_within};
use crate::support::{Weight, full, rounds, turn};
use std::time::{Duration, Instant};

/// Seconds that a client waits for an answer at most.
const ASKED: f64 = 1.5;
/// The figures are printed beside what is asked of them. While a member is away it is waited for answers before it comes back, so
/// nobody waits for it; and no client waits for so much longer, whatever else the machine has to do, until it is level.
const NEVER: Duration = Duration::from_secs(10);
/// A node that has failed again and again within ten minutes is heard for a minute, without a pause, before it comes back (V14).
const RETURNS: Duration = Duration::from_secs(300);

/// A volume of that shape on nodes all of which vote.
struct Scene {
    c: Cluster,
    nodes: usize,
    copies: usize,
}

impl Scene {
    fn new(nodes: usize, copies: usize, shape: &[&str]) -> Self {
        let env = if full() { vec![] } else { vec![("FREEBS_BUSY_POLL".into(), "0".into())] };
        let more = vec!["--no-restart".into()];
        let c = Cluster::up(Setup { nodes: nodes as u16, volume: None, more, env, ..Setup::default() });
        // `freebs up` makes one of another shape.
        let out = c.cli(&["volume", "delete", VOLUME, "--force"]);
        assert!(out.status.success(), "{}", told(&out));
        let copies_asked = copies.to_string();
        let new = ["volume", "create", VOLUME, "--size", "256M", "--copies", &copies_asked];
        let out = c.cli(&[&new[..], shape].concat());
        assert!(out.status.success(), "{}", told(&out));
        settled(&c, nodes);
        Self { c, nodes, copies }
    }

    /// The head, or another member; one that does not lead the control plane, too.
    fn victim(&self, is_head: bool) -> (String, u32) {
        let (leader, ..) = settled(&self.c, self.nodes).swap_remove(0);
        let (head, others) = self.c.chain(VOLUME);
        let may_be = if is_head { head != leader } else { others.iter().any(|n| *n != leader) };
        if !may_be {
            let out = self.c.cli(&["volume", "move-head", VOLUME, &others[0]]);
            assert!(out.status.success(), "{}", told(&out));
        }
        let (head, others) = self.c.chain(VOLUME);
        let node = if is_head { Some(head) } else { others.into_iter().find(|n| *n != leader) };
        let node = node.expect("one that does not lead");
        let pid = pid_of(&self.c, &node);
        (node, pid)
    }

    fn has_left(&self, node: &str) -> bool {
        let (head, others) = self.c.chain(VOLUME);
        head != node && others.iter().all(|n| n != node)
    }

    /// True if it has all its copies, and nobody is awaited.
    fn is_whole(&self) -> bool {
        let v = self.c.volume(VOLUME);
        let shard = &v["shards"][0];
        let none = |key: &str| shard[key].as_array().is_none_or(Vec::is_empty);
        v["state"] == "ready"
            && none("away")
            && none("joining")
            && shard["members"].as_array().is_some_and(|m| m.len() == self.copies)
    }

    /// A member goes for at least so long, and comes back.
    fn goes(&self, (is_head, is_killed): (bool, bool), away: Duration, writes: &Answers) -> Moments {
        let (node, pid) = self.victim(is_head);
        let hit = Instant::now();
        if is_killed {
            self.c.kill(&[pid])
        } else {
            self.c.pause(pid)
        }
        wait_for("the chain without it", || self.has_left(&node).then_some(()));
        writes.more(SOME);
        let v = self.c.volume(VOLUME);
        assert_eq!((&v["state"], &v["shards"][0]["away"][0]), (&"degraded".into(), &node.as_str().into()), "{v:#}");
        std::thread::sleep(away.saturating_sub(hit.elapsed()));
        let back = Instant::now();
        if is_killed {
            start_node(&self.c, &node, pid)
        } else {
            self.c.resume(pid)
        }
        wait_within(RETURNS, "it to be back", || self.is_whole().then_some(()));
        Moments { hit, back }
    }

    /// Each place, killed and frozen in turn.
    fn run(&self, what: &str) {
        let mut rig = Rig::on(&self.c, what);
        let seconds = if full() { 30 } else { 6 };
        let mut all = [(true, true), (false, true), (true, false), (false, false)].map(|how| {
            let (place, fault) = (if how.0 { "head" } else { "member" }, if how.1 { "killed" } else { "frozen" });
            (how, Figures::new(format!("{what}: {place} {fault} for {seconds} s")).longest_asked(ASKED))
        });
        for _ in 0..rounds(1, 4) {
            for (how, figures) in &mut all {
                let stall = rig.round(|writes| self.goes(*how, Duration::from_secs(seconds), writes));
                let Stall { fault, back, machine, .. } = stall;
                assert!(fault.max(back) < NEVER + machine, "{what}, {how:?}: {stall:?}");
                figures.add(stall);
            }
        }
        rig.end(&all.iter().map(|(_, f)| f).collect::<Vec<_>>());
    }
}

#[test]
fn members_of_volumes_that_want_all_copies_come_and_go() {
    let _turn = turn(Weight::Loaded);
    Scene::new(5, 3, &["--ack", "all", "--min-copies", "2"]).run("three of all");
}

#[test]
fn one_of_two_copies_comes_and_goes() {
    let _turn = turn(Weight::Loaded);
    Scene::new(3, 2, &["--min-copies", "1"]).run("two copies, min 1");
}

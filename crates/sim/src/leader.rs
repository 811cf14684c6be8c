//! The leader of the control plane looks after the nodes, and names other heads for those that have failed: by the code
//! that a real one decides by (`freebs_consensus::failures`).
//!
//! Simulated is what it sees. A node answers a heartbeat if its process runs and both ways are open. One whose process
//! was killed refuses, and another node that can ask it says so, too; one without power, or that is paused or cut off,
//! is silent. When the control plane was down, another one leads, which knows nothing of what was before, unless the one
//! before it was given up because it had died: then it knows that.

use crate::cluster::Cluster;
use crate::network::Place;
use crate::node::Node;
use crate::rng::Rng;
use freebs_consensus::Timing;
use freebs_consensus::failures::{Failures, Look};
use freebs_control::Command;
use freebs_types::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How many nodes are asked about one.
const ASKED_MAX: usize = 3;

/// What a leader has in mind.
pub struct Leader {
    failures: RefCell<Failures>,
    /// The lead, and when it began.
    since: Cell<Option<(u64, u64)>>,
    heard: RefCell<BTreeMap<NodeId, u64>>,
    /// What was decided is on its way.
    deciding: Cell<bool>,
    luck: RefCell<Rng>,
}

impl Leader {
    #[must_use]
    pub fn new(luck: Rng) -> Rc<Self> {
        Rc::new(Self {
            failures: RefCell::default(),
            since: Cell::default(),
            heard: RefCell::default(),
            deciding: Cell::default(),
            luck: RefCell::new(luck),
        })
    }

    /// Leads for as long as the run goes on.
    pub async fn lead(self: Rc<Self>, c: Rc<Cluster>) {
        let timing = Timing::default();
        loop {
            if !c.control.is_down() && !self.deciding.get() {
                self.look(&c, &timing);
            }
            tokio::time::sleep(Duration::from_millis(timing.heartbeat_ms)).await;
        }
    }

    fn look(self: &Rc<Self>, c: &Rc<Cluster>, timing: &Timing) {
        let now = c.world.now().millis();
        let term = c.control.term();
        let since = match self.since.get() {
            Some((t, since)) if t == term => since,
            _ => {
                self.begin(c, now);
                self.since.set(Some((term, now)));
                now
            }
        };
        let looks: Vec<Look> = c.nodes.iter().filter_map(|n| self.look_at(c, n, (since, now), timing)).collect();
        let (failed, ask) = self.failures.borrow_mut().look(now, &looks, timing.fail_ms);
        for node in ask {
            let others = looks.iter().filter(|l| l.node != node && !l.lost && !failed.contains(&l.node));
            others.take(ASKED_MAX).for_each(|other| self.ask(c, other.node, node));
        }
        let gone = Failures::gone(&looks, c.config.gone.millis());
        let commands = c.control.with_state(|s| self.failures.borrow_mut().decide(now, s, &failed, &gone));
        if !commands.is_empty() {
            self.give_orders(c, commands, &failed);
        }
    }

    /// Another one leads: it knows nothing but that the one before was given up, if it was.
    fn begin(&self, c: &Cluster, now: u64) {
        self.failures.take();
        self.heard.take();
        let start = |n: NodeId| c.control.with_state(|s| s.node(n).map(|n| n.start));
        if let Some((node, start)) = c.control.take_given_up().and_then(|n| Some((n, start(n)?))) {
            c.world.count("leaders that were given up");
            self.failures.borrow_mut().inherit(now, node, start);
        }
    }

    fn look_at(&self, c: &Cluster, node: &Node, (since, now): (u64, u64), timing: &Timing) -> Option<Look> {
        // One that never ran has no say in anything yet.
        let start = c.control.with_state(|s| s.node(node.id).map(|n| n.start)).filter(|s| s.0 > 0)?;
        if hears(c, Place::Control, node) && node.runs() {
            self.heard.borrow_mut().insert(node.id, now);
        }
        let heard = self.heard.borrow().get(&node.id).copied().unwrap_or(0).max(since);
        // Who is there has the time to answer this leader once, before it counts as silent.
        let silent_ms = if now < since + 2 * timing.heartbeat_ms { 0 } else { now - heard };
        Some(Look { node: node.id, start, silent_ms, lost: refuses(c, Place::Control, node) })
    }

    /// Another node is asked whether it can reach this one.
    fn ask(self: &Rc<Self>, c: &Rc<Cluster>, other: NodeId, node: NodeId) {
        let (leader, cluster, wait) = (self.clone(), c.clone(), self.wait());
        c.world.after(wait, move || {
            let of = |n: NodeId| cluster.node(n.0).cloned();
            let Some((other, node)) = of(other).zip(of(node)) else { return };
            let answers = hears(&cluster, Place::Control, &other) && other.runs();
            if answers && refuses(&cluster, Place::Node(other.id.0), &node) {
                leader.failures.borrow_mut().agree(node.id, cluster.world.now().millis());
            }
        });
    }

    fn give_orders(self: &Rc<Self>, c: &Rc<Cluster>, commands: Vec<Command>, failed: &BTreeSet<NodeId>) {
        self.deciding.set(true);
        let (leader, cluster, wait) = (self.clone(), c.clone(), self.wait());
        let term = c.control.term();
        c.world.say(|| format!("control: nodes {failed:?} have failed"));
        c.world.after(wait, move || {
            leader.deciding.set(false);
            // Rule L5: who does not lead any more decides nothing.
            if cluster.control.is_down() || cluster.control.term() != term {
                return;
            }
            for command in commands {
                let done = cluster.control.apply(command.clone());
                cluster.world.say(|| format!("control: {command:?} -> {done:?}"));
                cluster.world.trace(0x52, u64::from(done.is_ok()), leader.luck.borrow_mut().next());
                cluster.world.count(match command {
                    Command::FailOver { .. } => "heads of failed nodes replaced",
                    Command::ReplaceMembers { .. } => "members of nodes that are gone replaced",
                    _ => "heads that were late replaced",
                });
            }
        });
    }

    fn wait(&self) -> Nanos {
        Nanos(self.luck.borrow_mut().spread(200_000, 50_000_000))
    }
}

/// Whether the machine of a node can be asked, and its answer heard.
fn hears(c: &Cluster, from: Place, node: &Node) -> bool {
    let to = Place::Node(node.id.0);
    !c.net.is_blocked(from, to) && !c.net.is_blocked(to, from)
}

/// Whether its machine says that there is no process.
fn refuses(c: &Cluster, from: Place, node: &Node) -> bool {
    hears(c, from, node) && node.is_refusing()
}

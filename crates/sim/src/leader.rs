//! The leader of the control plane looks after the nodes, and names other heads for those that have failed: by the code
//! that a real one decides by (`freebs_consensus::lookout`).
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
use freebs_consensus::lookout::{Findings, Lookout, Sight};
use freebs_control::Command;
use freebs_types::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The leader of the moment.
pub struct Leader {
    lookout: RefCell<Lookout>,
    /// The lead that `lookout` is of.
    term: Cell<Option<u64>>,
    /// When each node was last heard, by all that may lead.
    heard: RefCell<BTreeMap<NodeId, u64>>,
    luck: RefCell<Rng>,
}

impl Leader {
    #[must_use]
    pub fn new(luck: Rng) -> Rc<Self> {
        let (lookout, term, heard) = Default::default();
        Rc::new(Self { lookout, term, heard, luck: RefCell::new(luck) })
    }

    /// Leads for as long as the run goes on.
    pub async fn lead(self: Rc<Self>, c: Rc<Cluster>) {
        let timing = Timing { gone_ms: c.config.gone.millis(), ..Timing::default() };
        loop {
            if !c.control.is_down() {
                self.look(&c, &timing);
            }
            tokio::time::sleep(Duration::from_millis(timing.heartbeat_ms)).await;
        }
    }

    fn look(self: &Rc<Self>, c: &Rc<Cluster>, timing: &Timing) {
        let now = c.world.now().millis();
        if self.term.replace(Some(c.control.term())) != Some(c.control.term()) {
            self.begin(c, now);
        }
        for node in c.nodes.iter().filter(|n| n.runs() && hears(c, Place::Control, n)) {
            self.heard.borrow_mut().insert(node.id, now);
        }
        let see = |node: NodeId| Sight {
            heard_ms: self.heard.borrow().get(&node).copied().unwrap_or(0),
            lost: c.node(node.0).is_some_and(|n| refuses(c, Place::Control, n)),
        };
        let findings = self.lookout.borrow_mut().look(now, timing, &c.control.snapshot(), None, see);
        findings.ask.iter().for_each(|(other, node)| self.ask(c, *other, *node));
        if !findings.orders.is_empty() {
            self.give_orders(c, findings);
        }
    }

    /// Another one leads.
    fn begin(&self, c: &Cluster, now: u64) {
        let (before, mut lookout) = (c.control.take_given_up(), Lookout::default());
        lookout.follow(before.map(|(node, _)| node));
        if let Some((node, start)) = before {
            c.world.count("leaders that were given up");
            lookout.give_up(now, node, start);
        }
        *self.lookout.borrow_mut() = lookout;
    }

    /// Another node is asked whether it can reach this one.
    fn ask(self: &Rc<Self>, c: &Rc<Cluster>, other: NodeId, node: NodeId) {
        let (leader, cluster, wait) = (self.clone(), c.clone(), self.wait());
        c.world.after(wait, move || {
            let of = |n: NodeId| cluster.node(n.0).cloned();
            let Some((other, node)) = of(other).zip(of(node)) else { return };
            let answers = hears(&cluster, Place::Control, &other) && other.runs();
            if answers && refuses(&cluster, Place::Node(other.id.0), &node) {
                leader.lookout.borrow_mut().agree(cluster.world.now().millis(), node.id);
            }
        });
    }

    fn give_orders(self: &Rc<Self>, c: &Rc<Cluster>, findings: Findings) {
        let (leader, cluster, wait) = (self.clone(), c.clone(), self.wait());
        let term = c.control.term();
        c.world.say(|| format!("control: {:?} for {:?}", findings.orders, findings.failed));
        c.world.after(wait, move || {
            // Rule L5: who does not lead any more decides nothing.
            if cluster.control.term() != term {
                return;
            }
            leader.lookout.borrow_mut().settle();
            if cluster.control.is_down() {
                return;
            }
            for command in findings.orders {
                let done = cluster.control.apply(command.clone());
                cluster.world.say(|| format!("control: {command:?} -> {done:?}"));
                cluster.world.trace(0x52, u64::from(done.is_ok()), leader.luck.borrow_mut().next());
                cluster.world.count(match command {
                    Command::FailOver { .. } => "heads of failed nodes replaced",
                    Command::ReplaceMembers { .. } => "members of nodes that are gone replaced",
                    Command::ExtendChains { .. } => "short chains extended",
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

//! The leader of the control plane in runs whose nodes have no seats: it looks after the nodes, and names other heads for
//! those that have failed. Nothing is decided here: that is `freebs_consensus`'s, as with a real one (`lookout`, `orders`,
//! `reach`, `doubts`).
//!
//! Simulated is what it sees. A node answers a heartbeat if its process runs and both ways are open. One whose process
//! was killed refuses; one without power, or that is paused or cut off, is silent. A quorum says that a lead goes on as long
//! as the control plane was not down since it began; then another one leads, which knows nothing of what was before, but for
//! the leader that it has given up with the others.

use crate::cluster::Cluster;
use crate::network::Place;
use crate::node::Node;
use crate::rng::Rng;
use freebs_consensus::doubts::{Doubts, Led};
use freebs_consensus::lookout::{Lookout, Sight};
use freebs_consensus::orders::{Orders, Step};
use freebs_consensus::reach::Attempt;
use freebs_consensus::{Devices, Mutant, Seat, Timing, voters};
use freebs_control::Command;
use freebs_types::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The leader of the moment.
pub struct Leader {
    lookout: RefCell<Lookout>,
    /// The lead that `lookout` is of.
    lead: Cell<Option<Led>>,
    /// When each node was last heard, by all that may lead.
    heard: RefCell<BTreeMap<NodeId, u64>>,
    /// When its log was last said to be in use.
    worked: RefCell<BTreeMap<NodeId, u64>>,
    luck: RefCell<Rng>,
    mutant: Option<Mutant>,
}

impl Leader {
    #[must_use]
    pub fn new(luck: Rng, mutant: Option<Mutant>) -> Rc<Self> {
        let (lookout, lead, heard, worked) = Default::default();
        Rc::new(Self { lookout, lead, heard, worked, luck: RefCell::new(luck), mutant })
    }

    /// Leads for as long as the run goes on.
    pub async fn lead(self: Rc<Self>, c: Rc<Cluster>) {
        let timing = Timing { gone_ms: c.config.gone.millis(), ..Timing::default() };
        loop {
            if let Some(lead) = lead_of(&c) {
                self.look(&c, &timing, lead);
            }
            tokio::time::sleep(Duration::from_millis(timing.heartbeat_ms)).await;
        }
    }

    fn look(self: &Rc<Self>, c: &Rc<Cluster>, timing: &Timing, lead: Led) {
        let now = c.world.now().millis();
        if self.lead.replace(Some(lead)) != Some(lead) {
            self.begin(c, now);
        }
        for node in c.nodes.iter().filter(|n| n.runs() && hears(c, Place::Control, n)) {
            self.heard.borrow_mut().insert(node.id, now);
        }
        for node in c.nodes.iter().filter(|n| n.runs() && n.devices() == Devices::Work && hears(c, Place::Control, n)) {
            self.worked.borrow_mut().insert(node.id, now);
        }
        let ms = |of: &RefCell<BTreeMap<NodeId, u64>>, node| of.borrow().get(&node).copied().unwrap_or(0);
        let see = |node: NodeId| Sight {
            heard_ms: ms(&self.heard, node),
            worked_ms: ms(&self.worked, node),
            devices: c.node(node.0).map_or(Devices::Begin, |n| n.devices()),
            lost: c.node(node.0).is_some_and(|n| refuses(c, Place::Control, n)),
        };
        let findings = self.lookout.borrow_mut().look(now, timing, &c.control.snapshot(), lead, see);
        findings.ask.iter().for_each(|(other, node)| self.ask(c, *other, *node));
        if let Some(orders) = findings.orders {
            self.carry_out(c, orders);
        }
    }

    /// Another one leads.
    fn begin(&self, c: &Cluster, now: u64) {
        let (before, mut lookout) = (c.control.take_given_up(), Lookout::new(self.mutant));
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
            let refusals = u64::from(refuses(&cluster, Place::Node(other.id.0), &node));
            let attempt = Attempt::new(other.id, node.id, 0);
            if answers && attempt.is_some_and(|a| a.is_refused(refusals)) {
                leader.lookout.borrow_mut().agree(cluster.world.now().millis(), other.id, node.id);
            }
        });
    }

    fn carry_out(self: &Rc<Self>, c: &Rc<Cluster>, mut orders: Orders) {
        let (leader, cluster, wait) = (self.clone(), c.clone(), self.wait());
        c.world.say(|| format!("control: {orders:?}"));
        c.world.after(wait, move || {
            loop {
                let now = lead_of(&cluster);
                match orders.next(now) {
                    Step::Confirm => drop(orders.confirm(now == Some(orders.lead()))),
                    Step::Give(command) => leader.give(&cluster, orders.lead(), command),
                    Step::End => break,
                }
            }
            leader.lookout.borrow_mut().settle(orders.lead());
        });
    }

    fn give(&self, c: &Cluster, lead: Led, command: Command) {
        if lead_of(c) != Some(lead) {
            c.world.violation(format!("who does not lead decides: {command:?} (L5)"));
        }
        let done = c.control.apply(command.clone());
        c.world.say(|| format!("control: {command:?} -> {done:?}"));
        c.world.trace(0x52, u64::from(done.is_ok()), self.luck.borrow_mut().next());
        c.world.count(match command {
            Command::FailOver { .. } => "heads of failed nodes replaced",
            Command::ReplaceMembers { .. } => "members of nodes that are gone replaced",
            Command::ExtendChains { .. } => "short chains extended",
            Command::LeaveChains { .. } => "chains made shorter",
            Command::StandIn { .. } => "nodes that stand in",
            Command::DrainChains { .. } => "chains drained",
            _ => "heads that were late replaced",
        });
    }

    fn wait(&self) -> Nanos {
        Nanos(self.luck.borrow_mut().spread(200_000, 50_000_000))
    }
}

/// The lead of this moment, if anybody leads. The control plane stands outside of the nodes here: its place is node 0, and
/// the number of the lead is its term.
fn lead_of(c: &Cluster) -> Option<Led> {
    (!c.control.is_down()).then(|| Led { by: Seat::default(), term: c.control.term() })
}

/// True if the voters give up a node that has led until now: by the word of each that is refused there. As many nodes vote as
/// would in a cluster with seats, it among them.
pub fn is_given_up(c: &Cluster, node: &Node) -> bool {
    let seat = |node: NodeId| Seat { node, store: 1 };
    let (led, now) = (Led { by: seat(node.id), term: c.control.term() }, c.world.now().millis());
    let others = c.nodes.iter().filter(|n| n.id != node.id).take(voters::count_of(c.nodes.len()) - 1);
    let voters = [others.clone().map(|n| seat(n.id)).chain([led.by]).collect::<BTreeSet<Seat>>()];
    let mut doubts = Doubts::default();
    let refused: Vec<Seat> = others
        .filter(|n| n.runs() && refuses(c, Place::Node(n.id.0), node))
        .map(|n| seat(n.id))
        .inspect(|from| doubts.hear(now, led, *from, (node.id, led.term), &voters))
        .collect();
    refused.first().is_some_and(|me| doubts.verdict(now, *me, &voters).is_some())
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

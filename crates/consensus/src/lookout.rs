//! The leader's look at the nodes: whom it asks about whom, and what it orders. Pure, with the time as a number.
//!
//! Invariants:
//! - Silence counts from when a leader began to lead, because nobody had a reason to say anything to it before; of the one
//!   that led before it alone it has heard all the time. Another term is another lead.
//! - Nothing more is ordered while orders of the same lead are on their way.
//! - What one node says of another one counts, and what it says of itself does not.
//! - A seat that does not lead has nothing in mind of the nodes but a leader that it gave up.

use crate::doubts::Led;
use crate::failures::{Failures, Look};
use crate::mutant::Mutant;
use crate::orders::Orders;
use crate::timing::Timing;
use crate::wire::Devices;
use freebs_control::{Command, State};
use freebs_types::{NodeId, StartNumber};
use std::collections::BTreeSet;

/// How many other nodes are asked about one.
const ASKED_MAX: usize = 3;
/// Heartbeats that a node has to answer a new leader, before it counts as silent.
const FIRST_ANSWER: u64 = 2;

/// A node as it is known where the leader runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// When something was last heard of it; 0 if nothing was.
    pub heard_ms: u64,
    /// When it was last heard while its devices worked; 0 if it never was.
    pub worked_ms: u64,
    /// The state of its devices, as it said last.
    pub devices: Devices,
    /// Its end has closed the link, and no new one could be opened.
    pub lost: bool,
}

/// The results of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first is to be asked whether it can reach the second.
    pub ask: Vec<(NodeId, NodeId)>,
    /// Commands that are to be applied. [`Lookout::settle`] is wanted when they have ended.
    pub orders: Option<Orders>,
}

/// One seat's mind about the nodes.
#[derive(Debug, Default)]
pub struct Lookout {
    failures: Failures,
    /// The lead of this seat, and since when it leads.
    lead: Option<(Led, u64)>,
    led_before: Option<NodeId>,
    /// The leader's node that this seat has given up last, the start in which it led, and when.
    given_up: Option<(NodeId, StartNumber, u64)>,
    /// Orders of that lead are on their way.
    deciding: bool,
    mutant: Option<Mutant>,
}

impl Lookout {
    /// Of a seat that has not led. `mutant`: the rule that its orders leave out.
    #[must_use]
    pub fn new(mutant: Option<Mutant>) -> Self {
        Self { mutant, ..Self::default() }
    }

    /// This seat does not lead; `leader` does, if that is known.
    pub fn follow(&mut self, leader: Option<NodeId>) {
        (self.lead, self.failures) = (None, Failures::default());
        self.led_before = leader.or(self.led_before);
    }

    /// The leader's node, in the start with which it is registered now, was given up by most voters, this seat among them
    /// (`doubts`).
    pub fn give_up(&mut self, now_ms: u64, node: NodeId, start: StartNumber) {
        self.given_up = Some((node, start, now_ms));
    }

    /// Since when this seat leads; none if it does not.
    #[must_use]
    pub fn leads_since(&self) -> Option<u64> {
        self.lead.map(|(_, since)| since)
    }

    /// As leader, in this lead: what is to be asked and ordered now. `see` tells what is known of a node that is not the
    /// leader's own.
    pub fn look(
        &mut self,
        now_ms: u64,
        timing: &Timing,
        state: &State,
        lead: Led,
        see: impl Fn(NodeId) -> Sight,
    ) -> Findings {
        let since = match self.lead {
            Some((of, since)) if of == lead => since,
            _ => self.begin(now_ms, lead, timing.gone_ms),
        };
        if self.deciding {
            return Findings::default();
        }
        // One that never ran has no say in anything yet.
        let there = state.nodes().filter(|n| n.id != lead.by.node && n.start.0 > 0);
        let looks: Vec<Look> =
            there.map(|n| self.look_at(n.id, n.start, see(n.id), (since, now_ms), timing.heartbeat_ms)).collect();
        let (failed, doubtful) = self.failures.look(now_ms, &looks, timing.fail_ms);
        let mut findings = Findings::default();
        for node in doubtful {
            let others = looks.iter().filter(|l| l.node != node && !l.lost && !failed.contains(&l.node));
            findings.ask.extend(others.take(ASKED_MAX).map(|other| (other.node, node)));
        }
        let gone = Failures::gone(&looks, timing.gone_ms, |node| state.drains(node));
        let commands = self.failures.decide(now_ms, state, &failed, &gone);
        self.deciding = !commands.is_empty();
        if self.deciding {
            let failed = reasons(&commands, &looks, timing.fail_ms);
            findings.orders = Some(Orders::new(lead, commands, failed, self.mutant));
        }
        findings
    }

    /// Another lead begins, now. A seat that leads because the one before was given up need not find out again that this one
    /// has failed. If that has been started again since, it has not.
    fn begin(&mut self, now_ms: u64, lead: Led, gone_ms: u64) -> u64 {
        (self.lead, self.failures, self.deciding) = (Some((lead, now_ms)), Failures::new(gone_ms, self.mutant), false);
        if let Some((node, start, at_ms)) = self.given_up.take() {
            self.failures.inherit(at_ms, node, start);
        }
        now_ms
    }

    fn look_at(
        &self,
        node: NodeId,
        start: StartNumber,
        sight: Sight,
        (since, now): (u64, u64),
        heartbeat_ms: u64,
    ) -> Look {
        let ignores = self.mutant == Some(Mutant::HeardIsEnough);
        let floor = if self.led_before == Some(node) { 0 } else { since };
        // A word of before this lead may be old: who says it may have said another one since, to the leader of that time.
        let is_old = sight.heard_ms <= floor;
        let devices = if ignores || is_old { Devices::Work } else { sight.devices };
        let heard = sight.heard_ms.max(floor);
        let is_new = now < since + FIRST_ANSWER * heartbeat_ms;
        let silent_ms = if is_new { 0 } else { now.saturating_sub(heard) };
        // One that is not known to have worked in this lead may have begun with it.
        let idle_ms = now.saturating_sub(sight.worked_ms.max(floor)).max(silent_ms);
        let has_worked = sight.worked_ms > floor;
        let idle_ms = if devices == Devices::Work || is_new { silent_ms } else { idle_ms };
        Look { node, start, silent_ms, lost: sight.lost, devices, idle_ms, has_worked }
    }

    /// `from` can't reach this node either, by its own word.
    pub fn agree(&mut self, now_ms: u64, from: NodeId, node: NodeId) {
        if from != node {
            self.failures.agree(node, now_ms);
        }
    }

    /// Orders of that lead were given, or dropped: what is still needed is found again.
    pub fn settle(&mut self, of: Led) {
        self.deciding &= self.lead.is_some_and(|(lead, _)| lead != of);
    }
}

/// The nodes that these orders take for failed.
fn reasons(orders: &[Command], looks: &[Look], fail_ms: u64) -> Vec<(NodeId, String)> {
    let failed = orders.iter().filter_map(|c| match c {
        Command::FailOver { nodes }
        | Command::LeaveChains { failed: nodes, .. }
        | Command::StandIn { failed: nodes, .. } => Some(nodes),
        _ => None,
    });
    let failed: BTreeSet<NodeId> = failed.flatten().map(|(n, _)| *n).collect();
    let reason = |look: &Look| match look.devices {
        _ if look.silent_ms >= fail_ms => format!("has failed: nothing was heard of it for {} ms", look.silent_ms),
        Devices::Silent => "has failed: it says that its device does not answer".into(),
        Devices::Begin => "has failed: it has been started again, and its devices are not in use yet".into(),
        Devices::Work => "has failed: its connections are closed, and another node can't reach it either".into(),
    };
    failed.iter().filter_map(|n| Some((*n, reason(looks.iter().find(|l| l.node == *n)?)))).collect()
}

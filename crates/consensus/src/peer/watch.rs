//! Nodes that fail: the leader looks after them at each heartbeat, and asks others about those that it can't reach.

use super::Peer;
use crate::failures::{Failures, Look};
use crate::mutant::Mutant;
use crate::types::Seat;
use crate::wire::Message;
use freebs_control::Command;
use freebs_types::{NodeId, StartNumber};
use futures_util::future::select;
use std::collections::BTreeMap;
use std::pin::pin;

/// How many other nodes are asked about one.
const ASKED_MAX: usize = 3;

impl Peer {
    /// The time as failures count it: only while this seat gets to run, so that its own pause is nobody's silence.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.tick.get() * self.0.timing.heartbeat_ms
    }

    /// The registered nodes other than this one, as the leader since tick `since` sees them.
    fn looks(&self, since: u64) -> Vec<Look> {
        let mut last: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (seat, at) in self.0.heard.borrow().iter() {
            let known = last.entry(seat.node).or_default();
            *known = (*known).max(*at);
        }
        let now = self.0.tick.get();
        let look = |node: NodeId, start: StartNumber| {
            // The others had no reason to say anything to this node while it did not lead.
            let floor = if self.0.led_before.get() == Some(node) { 0 } else { since };
            let heard = last.get(&node).copied().unwrap_or(0).max(floor);
            // Who is there has the time to answer this leader once, before it counts as silent.
            let silent = if now < since + 2 { 0 } else { now - heard.min(now) };
            let silent_ms = silent * self.0.timing.heartbeat_ms;
            Look { node, start, silent_ms, lost: self.0.links.refusals(node) > 0 }
        };
        let state = self.state();
        // One that never ran has no say in anything yet.
        let there = state.nodes().filter(|n| n.id != self.seat().node && n.start.0 > 0);
        there.map(|n| look(n.id, n.start)).collect()
    }

    /// As leader since tick `since`: gives the shards of nodes that have failed to other heads.
    pub(super) fn look_after_nodes(&self, since: u64) {
        if self.0.deciding.get() {
            return;
        }
        let looks = self.looks(since);
        let now = self.now_ms();
        let (failed, ask) = self.0.failures.borrow_mut().look(now, &looks, self.0.timing.fail_ms);
        for node in ask {
            let others = looks.iter().filter(|l| l.node != node && !l.lost && !failed.contains(&l.node));
            for other in others.take(ASKED_MAX) {
                // If it is lost, the question is asked again.
                let _ = self.0.links.send(Seat { node: other.node, store: 0 }, 0, &Message::Doubt(node));
            }
        }
        let gone = Failures::gone(&looks, self.0.timing.gone_ms);
        let commands = self.0.failures.borrow_mut().decide(now, &self.state(), &failed, &gone);
        if !commands.is_empty() {
            let failed = self.reasons(&commands, &looks);
            self.0.deciding.set(true);
            let peer = self.clone();
            self.spawn(async move {
                peer.give_orders(commands, failed).await;
                peer.0.deciding.set(false);
            });
        }
    }

    /// A seat that leads because the one before was given up need not find out again that this one has failed.
    pub(super) fn begin_to_lead(&self) {
        if let Some((node, at_ms)) = self.0.given_up.take()
            && let Some(registered) = self.state().node(node)
        {
            self.0.failures.borrow_mut().inherit(at_ms, node, registered.start);
        }
    }

    /// From now on this is called for each node that this leader takes for failed, with why.
    pub fn tell_failures(&self, tell: impl Fn(NodeId, String) + 'static) {
        *self.0.teller.borrow_mut() = Some(Box::new(tell));
    }

    /// The nodes that these commands take for failed, each with the reason.
    fn reasons(&self, commands: &[Command], looks: &[Look]) -> Vec<(NodeId, String)> {
        let failed = commands.iter().filter_map(|c| match c {
            Command::FailOver { nodes } => Some(nodes),
            _ => None,
        });
        let reason = |look: &Look| match look.silent_ms >= self.0.timing.fail_ms {
            true => format!("has failed: nothing was heard of it for {} ms", look.silent_ms),
            false => "has failed: its connections are closed, and another node can't reach it either".into(),
        };
        failed.flatten().filter_map(|(n, _)| Some((*n, reason(looks.iter().find(|l| l.node == *n)?)))).collect()
    }

    /// What fails is found to be needed again at a later heartbeat.
    async fn give_orders(&self, commands: Vec<Command>, failed: Vec<(NodeId, String)>) {
        let lead = self.leader();
        // Rule L5: who only believes to lead decides nothing.
        if !self.confirm_leadership().await {
            return;
        }
        if let Some(tell) = &*self.0.teller.borrow() {
            failed.into_iter().for_each(|(node, why)| tell(node, why));
        }
        let given = async {
            for command in commands {
                let _ = self.submit(command).await;
            }
        };
        // Rule L5: whoever leads next sees for itself. A command that was sent on to it would carry out what this one saw
        // before it was cut off.
        let deposed = async {
            match self.0.store.mutant() {
                Some(Mutant::LeaderUnconfirmed) => std::future::pending().await,
                _ => self.ended(lead).await,
            }
        };
        select(pin!(deposed), pin!(given)).await;
    }

    /// `Gone` to who asked, if this node can't reach that one either; the voters tell each other of their leader.
    pub(super) async fn try_to_reach(&self, node: NodeId) -> Option<Message> {
        if node == self.seat().node || !self.is_refused_by(node).await || self.say_refused(node) {
            return None;
        }
        Some(Message::Gone(node))
    }

    pub(super) fn hear_gone(&self, from: Seat, node: NodeId) {
        if !self.0.raft.is_leader() {
            self.hear_refused(from, node);
        } else if from.node != node {
            self.0.failures.borrow_mut().agree(node, self.now_ms());
            self.0.woken.notify_one();
        }
    }
}

//! Nodes that fail: the leader looks after them at each heartbeat, and asks others about those that it can't reach.

use super::Peer;
use crate::doubts::Led;
use crate::lookout::Sight;
use crate::orders::{Orders, Step};
use crate::types::Seat;
use crate::wire::Message;
use freebs_types::NodeId;
use futures_util::future::select;
use std::collections::BTreeMap;
use std::pin::pin;

impl Peer {
    /// The time as failures count it: only while this seat gets to run, so that its own pause is nobody's silence.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.tick.get() * self.0.timing.heartbeat_ms
    }

    /// When each node was last heard.
    fn heard_ms(&self) -> BTreeMap<NodeId, u64> {
        let mut last: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (seat, at) in self.0.heard.borrow().iter() {
            let known = last.entry(seat.node).or_default();
            *known = (*known).max(*at * self.0.timing.heartbeat_ms);
        }
        last
    }

    /// The lead of this moment, as far as is known here.
    fn lead(&self) -> Option<Led> {
        let (by, term) = self.leader();
        by.map(|by| Led { by, term })
    }

    /// As leader: gives the shards of nodes that have failed to other heads.
    pub(super) fn look_after_nodes(&self) {
        let Some(lead) = self.lead().filter(|lead| lead.by == self.seat()) else { return };
        let (heard, state) = (self.heard_ms(), self.state());
        let see = |node: NodeId| Sight {
            heard_ms: heard.get(&node).copied().unwrap_or(0),
            lost: self.0.links.refusals(node) > 0,
        };
        let findings = self.0.lookout.borrow_mut().look(self.now_ms(), &self.0.timing, &state, lead, see);
        for (other, node) in findings.ask {
            // If it is lost, the question is asked again.
            let _ = self.0.links.send(Seat { node: other, store: 0 }, 0, &Message::Doubt(node));
        }
        if let Some(orders) = findings.orders {
            let peer = self.clone();
            self.spawn(async move { peer.carry_out(orders).await });
        }
    }

    /// From now on this is called for each node that this leader takes for failed, with why.
    pub fn tell_failures(&self, tell: impl Fn(NodeId, String) + 'static) {
        *self.0.teller.borrow_mut() = Some(Box::new(tell));
    }

    async fn carry_out(&self, mut orders: Orders) {
        loop {
            match orders.next(self.lead()) {
                Step::Confirm => {
                    let failed = orders.confirm(self.confirm_leadership().await);
                    if let Some(tell) = &*self.0.teller.borrow() {
                        failed.into_iter().for_each(|(node, why)| tell(node, why));
                    }
                }
                Step::Give(command) => {
                    let given = pin!(self.submit(command));
                    let _ = select(pin!(self.is_over(&orders)), given).await;
                }
                Step::End => break,
            }
        }
        self.0.lookout.borrow_mut().settle(orders.lead());
    }

    /// Returns once orders are to end.
    async fn is_over(&self, orders: &Orders) {
        let mut metrics = self.0.raft.metrics();
        while orders.go_on(self.lead()) && metrics.next().await {}
    }

    /// `Gone` to who asked, if this node can't reach that one either; the voters tell each other of their leader.
    pub(super) async fn try_to_reach(&self, node: NodeId) -> Option<Message> {
        if !self.is_refused_by(node).await || self.say_refused(node) {
            return None;
        }
        Some(Message::Gone { node, term: 0 })
    }

    pub(super) fn hear_gone(&self, from: Seat, node: NodeId, term: u64) {
        if !self.0.raft.is_leader() {
            self.hear_refused(from, node, term);
        } else {
            self.0.lookout.borrow_mut().agree(self.now_ms(), from.node, node);
            self.0.woken.notify_one();
        }
    }
}

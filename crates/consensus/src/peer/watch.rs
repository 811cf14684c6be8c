//! Nodes that fail: the leader looks after them at each heartbeat, and asks others about those that it can't reach.

use super::Peer;
use crate::doubts::Led;
use crate::lookout::Sight;
use crate::orders::{Orders, Step};
use crate::timing;
use crate::types::Seat;
use crate::wire::{Devices, Envelope, Message, Room};
use freebs_types::NodeId;
use futures_util::future::select;
use std::collections::BTreeMap;
use std::pin::pin;

/// The state of another node's devices, as it says it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Works {
    said: Devices,
    /// The heartbeat interval in which they were last said to work; 0 if never.
    worked: u64,
    /// The intervals in which they were said not to answer, first and last, without another word between.
    silent: Option<(u64, u64)>,
    room: Room,
}

impl Works {
    /// Takes in a word. True if it is one that they do not answer, and was said for some intervals.
    fn hear(&mut self, devices: Devices, tick: u64) -> bool {
        self.said = devices;
        self.silent = (devices == Devices::Silent).then(|| (self.silent.map_or(tick, |s| s.0), tick));
        if devices == Devices::Work {
            self.worked = tick;
        }
        self.is_silent()
    }

    /// One word is none: a machine that stood still says it before it has looked at what its disk has answered, and one of
    /// several on a slow disk says it a moment before the others.
    fn is_silent(&self) -> bool {
        self.silent.is_some_and(|(first, last)| last - first >= timing::SILENT_SAID)
    }

    fn is_only_beginning(&self) -> bool {
        self.said == Devices::Begin
    }

    fn devices(&self) -> Devices {
        match self.said {
            Devices::Silent if !self.is_silent() => Devices::Work,
            said => said,
        }
    }
}

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

    /// Takes in the state of a node's devices. If they are the leader's and do not answer, this seat says so to all voters, as if
    /// it had been refused there: who can't write decides nothing.
    pub(super) fn hear_devices(&self, e: &Envelope) {
        let (node, tick) = (e.from.node, self.0.tick.get());
        let confirmed = {
            let mut works = self.0.works.borrow_mut();
            let known = works.entry(node).or_default();
            known.room = e.room;
            known.hear(e.devices, tick)
        };
        if confirmed && self.judges() {
            self.say_refused(node);
        }
    }

    /// At each heartbeat. While this node's devices do not answer the others are told so, for an answer to anything may wait for
    /// the disk, and no votes are asked for; and they are told when that is over.
    pub(super) fn say_silence(&self) {
        let is_silent = self.0.links.devices() == Devices::Silent;
        let is_other = self.0.was_silent.replace(is_silent) != is_silent;
        if is_other {
            self.0.raft.runtime_config().elect(!is_silent && !self.0.asks.get());
        }
        if is_silent {
            self.0.judges_from.set(self.0.tick.get() + timing::JUDGES_AFTER);
        }
        if is_silent || is_other {
            for node in self.others() {
                let _ = self.0.links.send(Seat { node, store: 0 }, 0, &Message::Here);
            }
        }
    }

    /// False while this node's own devices do not answer, and for some heartbeats behind that, until the others have had the time
    /// to say how theirs are: several nodes may be on one disk, and what is slow for all of them is nobody's failure.
    fn judges(&self) -> bool {
        self.0.links.devices() != Devices::Silent && self.0.tick.get() >= self.0.judges_from.get()
    }

    /// True if that node's devices do not answer, as it has said for some heartbeats.
    pub(super) fn is_silent(&self, node: NodeId) -> bool {
        self.judges() && self.0.works.borrow().get(&node).is_some_and(Works::is_silent)
    }

    /// The lead of this moment, as far as is known here.
    fn lead(&self) -> Option<Led> {
        let (by, term) = self.leader();
        by.map(|by| Led { by, term })
    }

    /// As leader: gives the shards of nodes that have failed to other heads.
    pub(super) fn look_after_nodes(&self) {
        let Some(lead) = self.lead().filter(|lead| lead.by == self.seat()) else { return };
        if !self.judges() {
            return;
        }
        let (heard, state) = (self.heard_ms(), self.state());
        let works = self.0.works.borrow();
        let see = |node: NodeId| {
            let known = works.get(&node).copied().unwrap_or_default();
            // A seat that only begins itself, with the others, takes nobody for failed for that.
            let excused = known.is_only_beginning() && self.0.links.devices() == Devices::Begin;
            Sight {
                heard_ms: heard.get(&node).copied().unwrap_or(0),
                worked_ms: known.worked * self.0.timing.heartbeat_ms,
                devices: if excused { Devices::Work } else { known.devices() },
                lost: self.0.links.refusals(node) > 0,
                room: known.room,
            }
        };
        let findings =
            self.0.lookout.borrow_mut().look(self.now_ms(), &self.0.timing, &state, (lead, self.0.links.room()), see);
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

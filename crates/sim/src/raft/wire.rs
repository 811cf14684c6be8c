//! Messages between seats, over the network of the run.
//!
//! Each goes alone: later ones may arrive before it. Where the network is cut, it does not arrive. A link that is refused,
//! or closed by its end, is heard of as by the real links.

use super::Seats;
use crate::network::Place;
use freebs_consensus::{Devices, Network, Seat};
use freebs_types::{NodeId, StartNumber};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

type Teller = Rc<dyn Fn(NodeId)>;
/// From one node to another.
type Way = (NodeId, NodeId);

/// The state of all links.
#[derive(Default)]
pub(super) struct Ways {
    /// The times in a row that a link was closed by its end or refused there.
    refused: BTreeMap<Way, u64>,
    /// The seats that are told of it, by node.
    tellers: BTreeMap<NodeId, Teller>,
}

impl Ways {
    /// The process of a node is another one.
    pub fn forget(&mut self, node: NodeId) {
        self.refused.retain(|way, _| way.0 != node);
        self.tellers.remove(&node);
    }
}

/// A seat's way into the network.
pub(super) struct Wire {
    seats: Weak<Seats>,
    from: Seat,
    about: Rc<About>,
}

/// The things that messages of a seat say of its node.
pub(super) struct About {
    /// The start number that is durable on the node's disk for its log.
    pub start: Cell<StartNumber>,
    /// The log is in use.
    pub works: Cell<bool>,
}

impl About {
    /// Of a node whose log came with that number, and is not in use yet.
    pub fn of(came_with: StartNumber) -> Self {
        Self { start: Cell::new(came_with), works: Cell::new(false) }
    }
}

impl Wire {
    pub fn new(seats: &Rc<Seats>, from: Seat, about: Rc<About>) -> Self {
        Self { seats: Rc::downgrade(seats), from, about }
    }
}

impl Network for Wire {
    fn send(&self, to: Seat, message: Vec<u8>) {
        if let Some(seats) = self.seats.upgrade() {
            seats.send(self.from, to.node, message);
        }
    }

    fn refusals(&self, node: NodeId) -> u64 {
        let seats = self.seats.upgrade();
        seats.and_then(|s| s.ways.borrow().refused.get(&(self.from.node, node)).copied()).unwrap_or(0)
    }

    fn on_loss(&self, tell: Teller) {
        if let Some(seats) = self.seats.upgrade() {
            seats.ways.borrow_mut().tellers.insert(self.from.node, tell);
        }
    }

    fn start_number(&self) -> Option<StartNumber> {
        Some(self.about.start.get())
    }

    fn devices(&self) -> Devices {
        let silent = self.seats.upgrade().is_some_and(|s| s.host(self.from.node).is_some_and(|h| h.disk.is_silent()));
        match self.about.works.get() {
            _ if silent => Devices::Silent,
            true => Devices::Work,
            false => Devices::Begin,
        }
    }
}

impl Seats {
    fn send(self: &Rc<Self>, from: Seat, to: NodeId, message: Vec<u8>) {
        self.sent(from, &message);
        let way = (from.node, to);
        if self.silent.get() || self.is_cut(way) {
            return;
        }
        match self.refuses(way) {
            Some(true) => return self.close_later(way),
            Some(false) => {
                self.ways.borrow_mut().refused.remove(&way);
            }
            None => {}
        }
        let Some(wait) = self.net.one_way(Place::Node(from.node.0), Place::Node(to.0)) else { return };
        let seats = self.clone();
        self.world.after(wait, move || {
            if seats.silent.get() || seats.is_cut(way) {
                return;
            }
            if let Some(peer) = seats.host(to).and_then(super::Host::peer) {
                peer.receive(message);
            }
        });
    }

    fn is_cut(&self, way: Way) -> bool {
        self.net.is_blocked(Place::Node(way.0.0), Place::Node(way.1.0))
    }

    /// True if a link is refused at its end, false if it is open; `None` if nobody can say.
    fn refuses(&self, way: Way) -> Option<bool> {
        let to = self.host(way.1)?;
        let no_answer = self.is_cut((way.1, way.0)) || (!to.alive.get() && to.dark.get());
        (!no_answer).then(|| !to.alive.get())
    }

    /// After a while one end hears that the other one has closed the link, or refuses a new one.
    fn close_later(self: &Rc<Self>, way: Way) {
        let Some(wait) = self.net.one_way(Place::Node(way.1.0), Place::Node(way.0.0)) else { return };
        let seats = self.clone();
        self.world.after(wait, move || {
            if seats.refuses(way) == Some(true) && !seats.is_cut(way) {
                *seats.ways.borrow_mut().refused.entry(way).or_default() += 1;
                let tell = seats.ways.borrow().tellers.get(&way.0).cloned();
                tell.iter().for_each(|tell| tell(way.1));
            }
        });
    }

    /// The process of a node was killed: its machine closes the links of all others to it.
    pub(super) fn close_links_to(self: &Rc<Self>, node: NodeId) {
        self.ways.borrow_mut().forget(node);
        let others: Vec<NodeId> = self.ways.borrow().tellers.keys().copied().collect();
        others.into_iter().for_each(|other| self.close_later((other, node)));
    }
}

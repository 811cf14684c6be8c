//! Simulated connections with the manners of TCP: in order or broken, never anything in between.
//!
//! Invariants: what one end sends arrives at the other in that order, without gaps, until that end hears that the
//! connection is down; after that nothing arrives. A cut-off direction holds messages back and lets them go when it
//! heals; if that takes too long, the connection breaks and both ends hear of it, each in its own time. Nothing is
//! ever doubled within a connection; whoever connects again may send again.

use crate::rng::Rng;
use crate::timing;
use crate::watch::Witness;
use crate::world::World;
use bytes::BytesMut;
use freebs_format::wire::Message;
use freebs_io::LinkId;
use freebs_types::{Nanos, NodeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// Bytes on their way in one direction after which the connection breaks instead of growing (the edge's window).
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Where processes run. The control plane is a place, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Node(u64),
    Gateway(u64),
    Control,
}

impl Place {
    fn number(self) -> u64 {
        match self {
            Place::Node(n) => n,
            Place::Gateway(n) => 1 << 32 | n,
            Place::Control => 2 << 32,
        }
    }
}

/// Who lives at an end: one incarnation of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndPoint {
    pub place: Place,
    pub incarnation: u64,
}

/// What comes out of a connection at one end.
#[derive(Debug)]
pub enum Arrival {
    /// Somebody connects. The link is up already at this end.
    Incoming(EndPoint),
    /// The connection that this end asked for is there.
    Up,
    /// It is gone, or never came to be.
    Down,
    Message(Box<Message>),
}

/// Takes what arrives for a place. False: no such process is alive.
pub trait Receiver {
    fn arrive(&self, at: EndPoint, link: LinkId, arrival: Arrival) -> bool;
    /// The process that is alive at a place.
    fn incarnation(&self, place: Place) -> Option<u64>;
}

/// Odds and delays of all links.
#[derive(Clone, Debug)]
pub struct NetConfig {
    pub delay_min: Nanos,
    pub delay_max: Nanos,
    /// A message now and then waits for a retransmission.
    pub lost: f64,
    /// A bit of the data in an answer to a read is wrong when it arrives.
    pub flipped: f64,
    /// Messages go through the codecs.
    pub encoded: bool,
    /// A cut-off connection breaks after a time in this range.
    pub patience_min: Nanos,
    pub patience_max: Nanos,
}

#[derive(Default)]
struct Direction {
    queue: VecDeque<(Packet, usize)>,
    bytes: usize,
    last_due: Nanos,
    /// Nothing comes out before this time (the rest of a broken connection, drained late).
    held_until: Nanos,
    blocked_since: Option<Nanos>,
}

enum Packet {
    Incoming(EndPoint),
    Up,
    Message(Box<Message>),
}

struct Connection {
    ends: [EndPoint; 2],
    links: [LinkId; 2],
    /// `directions[i]` flows towards end `i`.
    directions: [Direction; 2],
    /// The process at the other end has taken it.
    accepted: bool,
    broken: bool,
    /// Ends that have heard that it is down, or that are dead.
    ended: [bool; 2],
    patience: Nanos,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u64, Connection>,
    by_link: BTreeMap<LinkId, (u64, usize)>,
    next: u64,
    /// Directions that nothing passes, with the number of reasons.
    blocked: BTreeMap<(Place, Place), u32>,
}

/// All connections of a run.
pub struct Network {
    world: Rc<World>,
    config: NetConfig,
    state: RefCell<State>,
    luck: RefCell<Rng>,
    receiver: RefCell<Option<Weak<dyn Receiver>>>,
    pub witness: RefCell<Witness>,
}

impl Network {
    #[must_use]
    pub fn new(world: &Rc<World>, config: NetConfig, luck: Rng) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            config,
            state: RefCell::default(),
            luck: RefCell::new(luck),
            receiver: RefCell::default(),
            witness: RefCell::default(),
        })
    }

    pub fn set_receiver(&self, receiver: Weak<dyn Receiver>) {
        *self.receiver.borrow_mut() = Some(receiver);
    }

    fn delay(&self) -> Nanos {
        let mut luck = self.luck.borrow_mut();
        let mut wait = luck.spread(self.config.delay_min.0, self.config.delay_max.0);
        if luck.chance(self.config.lost) {
            wait += luck.range(20_000_000, 250_000_000);
        }
        Nanos(wait)
    }

    fn some(&self, low: Nanos, high: Nanos) -> Nanos {
        Nanos(self.luck.borrow_mut().range(low.0, high.0))
    }

    /// Whether nothing passes from one place to another now.
    #[must_use]
    pub fn is_blocked(&self, from: Place, to: Place) -> bool {
        self.state.borrow().blocked.contains_key(&(from, to))
    }

    /// Cuts one direction; reasons add up.
    pub fn block(&self, from: Place, to: Place) {
        *self.state.borrow_mut().blocked.entry((from, to)).or_default() += 1;
    }

    pub fn unblock(&self, from: Place, to: Place) {
        let mut s = self.state.borrow_mut();
        if let Some(n) = s.blocked.get_mut(&(from, to)) {
            *n -= 1;
            if *n == 0 {
                s.blocked.remove(&(from, to));
            }
        }
    }

    /// One way and back, for a call to `to`: `None` if the answer can't come now.
    pub fn round_trip(&self, from: Place, to: Place) -> Option<Nanos> {
        let there = !self.is_blocked(from, to) && !self.is_blocked(to, from);
        let wait = self.delay().plus(self.delay());
        there.then_some(wait)
    }

    /// One way, for a message that goes alone: `None` if it does not arrive.
    pub fn one_way(&self, from: Place, to: Place) -> Option<Nanos> {
        let is_lost = self.luck.borrow_mut().chance(self.config.lost);
        let wait = self.delay();
        (!is_lost && !self.is_blocked(from, to)).then_some(wait)
    }

    /// Connects to the process at `place`, whoever it is by then. The answer is `Up` or `Down` on the link.
    pub fn dial(self: &Rc<Self>, from: EndPoint, place: Place) -> LinkId {
        let mut s = self.state.borrow_mut();
        s.next += 2;
        let (id, link) = (s.next, LinkId(s.next));
        let unknown = EndPoint { place, incarnation: 0 };
        let patience = self.some(self.config.patience_min, self.config.patience_max);
        let connection = Connection {
            ends: [from, unknown],
            links: [link, LinkId(id + 1)],
            directions: Default::default(),
            accepted: false,
            broken: false,
            ended: [false, true],
            patience,
        };
        s.connections.insert(id, connection);
        s.by_link.insert(link, (id, 0));
        drop(s);
        let net = self.clone();
        let wait = self.delay();
        self.world.after(wait, move || {
            let receiver = net.receiver.borrow().clone().and_then(|r| r.upgrade());
            let incarnation = receiver.and_then(|r| r.incarnation(place));
            net.knock(id, incarnation);
        });
        // An end that never answers must not leave the caller waiting.
        let (net, wait) = (self.clone(), self.some(Nanos::from_millis(300), Nanos::from_millis(1500)));
        self.world.after(wait, move || {
            match net.state.borrow().connections.get(&id).map(|c| (c.accepted, c.ended[1])) {
                Some((false, true)) => {}
                Some((false, false)) => return net.break_later(id),
                _ => return,
            }
            net.end(id, 0);
        });
        link
    }

    /// The request to connect reaches the other place.
    fn knock(self: &Rc<Self>, id: u64, incarnation: Option<u64>) {
        let mut s = self.state.borrow_mut();
        let Some(c) = s.connections.get_mut(&id).filter(|c| !c.ended[0]) else { return };
        let (from, to) = (c.ends[0].place, c.ends[1].place);
        let dialer = c.ends[0];
        match incarnation {
            Some(incarnation) => c.ends[1].incarnation = incarnation,
            None => {
                // Nobody listens. If the place can answer, it says so at once.
                drop(s);
                if !self.is_blocked(to, from) {
                    let (net, wait) = (self.clone(), self.delay());
                    self.world.after(wait, move || net.end(id, 0));
                }
                return;
            }
        }
        if s.blocked.contains_key(&(from, to)) {
            return;
        }
        if let Some(c) = s.connections.get_mut(&id) {
            c.ended[1] = false;
            let link = c.links[1];
            s.by_link.insert(link, (id, 1));
        }
        drop(s);
        self.queue(id, 1, Packet::Incoming(dialer), 0, Nanos(0));
    }

    /// The process that was connected to has taken the link: the other end hears `Up`.
    pub fn accept(self: &Rc<Self>, link: LinkId) {
        let mut s = self.state.borrow_mut();
        let Some((id, end)) = s.by_link.get(&link).copied() else { return };
        if let Some(c) = s.connections.get_mut(&id) {
            c.accepted = true;
        }
        drop(s);
        let wait = self.delay();
        self.queue(id, 1 - end, Packet::Up, 0, wait);
    }

    fn break_later(self: &Rc<Self>, id: u64) {
        let net = self.clone();
        self.world.after(Nanos(0), move || net.break_connection(id));
    }

    /// Sends on a link; a link that is down swallows it.
    pub fn send(self: &Rc<Self>, link: LinkId, message: Message) {
        let Some((id, end)) = self.state.borrow().by_link.get(&link).copied() else { return };
        self.watch(id, end, &message);
        let bytes = message.data_bytes();
        let message = if self.config.encoded { self.through_codecs(message) } else { Some(message) };
        let Some(mut message) = message else { return };
        if let Message::ReadReply(r) = &mut message
            && self.luck.borrow_mut().chance(self.config.flipped)
        {
            self.flip(&mut r.data);
        }
        let wait = self.delay();
        self.queue(id, 1 - end, Packet::Message(Box::new(message)), bytes, wait);
        let over = |c: &Connection| c.directions[1 - end].bytes > IN_FLIGHT_BYTES_MAX;
        if self.state.borrow().connections.get(&id).is_some_and(over) {
            self.break_connection(id);
        }
    }

    /// Tells the witness what a node says.
    fn watch(&self, id: u64, end: usize, message: &Message) {
        let place = self.state.borrow().connections.get(&id).map(|c| c.ends[end].place);
        self.witness.borrow_mut().note_question((id, end), message);
        let Some(Place::Node(n)) = place else { return };
        let heard = self.witness.borrow_mut().hear(NodeId(n), (id, end), message);
        if let Err(rule) = heard {
            self.world.violation(rule);
        }
    }

    fn flip(&self, data: &mut [bytes::Bytes]) {
        let mut luck = self.luck.borrow_mut();
        let n = data.len() as u64;
        let Some(part) = data.get_mut(luck.below(n) as usize) else { return };
        let mut bytes = part.to_vec();
        let bit = luck.below(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        *part = bytes.into();
    }

    fn through_codecs(&self, message: Message) -> Option<Message> {
        let name = message.name();
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        for part in message.payload() {
            bytes.extend_from_slice(part);
        }
        let wanted = Message::wanted(&bytes);
        if wanted.as_ref().ok() != Some(&bytes.len()) {
            self.world.violation(format!("a {name} message of {} bytes claims {wanted:?}", bytes.len()));
        }
        match Message::decode(&mut bytes) {
            Ok(Some(m)) if bytes.is_empty() => Some(m),
            other => {
                self.world.violation(format!("a {name} message does not decode: {other:?}"));
                None
            }
        }
    }

    fn queue(self: &Rc<Self>, id: u64, to: usize, packet: Packet, bytes: usize, wait: Nanos) {
        let now = self.world.now();
        let mut s = self.state.borrow_mut();
        let Some(c) = s.connections.get_mut(&id).filter(|c| !c.ended[1 - to] && !c.broken) else { return };
        let d = &mut c.directions[to];
        // In order: nothing overtakes what was sent before.
        d.last_due = d.last_due.max(now.plus(wait));
        let wait = d.last_due.since(now);
        d.queue.push_back((packet, bytes));
        d.bytes += bytes;
        drop(s);
        let net = self.clone();
        self.world.after(wait, move || net.deliver(id, to));
    }

    /// The first message of a direction is due.
    fn deliver(self: &Rc<Self>, id: u64, to: usize) {
        let now = self.world.now();
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let Some(c) = s.connections.get_mut(&id).filter(|c| !c.ended[to]) else { return };
        let route = (c.ends[1 - to].place, c.ends[to].place);
        let (patience, broken) = (c.patience, c.broken);
        let d = &mut c.directions[to];
        if d.queue.is_empty() {
            return;
        }
        if s.blocked.contains_key(&route) {
            let since = *d.blocked_since.get_or_insert(now);
            let net = self.clone();
            if now.since(since) >= patience && !broken {
                self.break_later(id);
            } else {
                self.world.after(timing::HELD_BACK_LOOK, move || net.deliver(id, to));
            }
            return;
        }
        if d.held_until > now {
            let (net, wait) = (self.clone(), d.held_until.since(now));
            self.world.after(wait, move || net.deliver(id, to));
            return;
        }
        d.blocked_since = None;
        let Some((packet, bytes)) = d.queue.pop_front() else { return };
        d.bytes -= bytes;
        let (end, link) = (c.ends[to], c.links[to]);
        self.hand_over(end, link, packet, id, to);
    }

    fn hand_over(self: &Rc<Self>, end: EndPoint, link: LinkId, packet: Packet, id: u64, to: usize) {
        let arrival = match packet {
            Packet::Incoming(who) => Arrival::Incoming(who),
            Packet::Up => Arrival::Up,
            Packet::Message(m) => Arrival::Message(m),
        };
        let (what, size) = match &arrival {
            Arrival::Message(m) => {
                self.world.moment(m.name());
                match &**m {
                    Message::SyncReply(r) => self.world.count(format!("sync reply {:?}", r.mode)),
                    Message::Refused(r) => self.world.count(format!("refused {:?}", r.reason)),
                    _ => {}
                }
                (m.name().bytes().fold(0u64, |a, b| a.wrapping_mul(31) + u64::from(b)), m.data_bytes())
            }
            _ => (1, 0),
        };
        self.world.trace(0x10 ^ what, end.place.number() << 20 ^ link.0, size as u64);
        if self.world.is_verbose() && !matches!(&arrival, Arrival::Message(m) if m.name() == "heartbeat") {
            self.world.say(|| format!("{:?} {link} gets {}", end.place, describe(&arrival)));
        }
        // Called through the queue, so nothing of the network is borrowed by the receiver.
        let (net, receiver) = (self.clone(), self.receiver.borrow().clone());
        self.world.after(Nanos(0), move || {
            let alive = !net.has_ended(id, to)
                && receiver.and_then(|r| r.upgrade()).is_some_and(|r| r.arrive(end, link, arrival));
            if !alive {
                net.break_connection(id);
            }
        });
    }

    fn has_ended(&self, id: u64, end: usize) -> bool {
        self.state.borrow().connections.get(&id).is_none_or(|c| c.ended[end])
    }

    /// The connection is lost: both ends hear of it, each in its own time; what was on its way may still arrive.
    pub fn break_connection(self: &Rc<Self>, id: u64) {
        let now = self.world.now();
        let mut s = self.state.borrow_mut();
        let Some(c) = s.connections.get_mut(&id).filter(|c| !c.broken) else { return };
        c.broken = true;
        let mut ends = [Nanos(0); 2];
        for (d, end) in c.directions.iter_mut().zip(&mut ends) {
            let mut luck = self.luck.borrow_mut();
            // What was on its way is lost from some message on; the rest may come late, long after the other end has
            // connected anew.
            let keep = luck.below(d.queue.len() as u64 + 1) as usize;
            d.queue.truncate(keep);
            let late = if luck.chance(0.5) { luck.spread(1_000_000, 400_000_000) } else { 0 };
            d.held_until = now.plus(Nanos(late));
            *end = Nanos(late + luck.spread(100_000, 5_000_000));
        }
        drop(s);
        for (end, wait) in ends.into_iter().enumerate() {
            let net = self.clone();
            self.world.after(wait, move || net.end(id, end));
        }
    }

    /// One end hears that the connection is down.
    fn end(self: &Rc<Self>, id: u64, end: usize) {
        let mut s = self.state.borrow_mut();
        let Some(c) = s.connections.get_mut(&id).filter(|c| !c.ended[end]) else { return };
        c.ended[end] = true;
        let (point, link) = (c.ends[end], c.links[end]);
        let was_broken = std::mem::replace(&mut c.broken, true);
        let other_ended = c.ended[1 - end];
        s.by_link.remove(&link);
        if other_ended {
            s.connections.remove(&id);
        }
        drop(s);
        self.world.trace(0x11, point.place.number(), link.0);
        self.world.say(|| format!("{:?} {link} is down", point.place));
        let receiver = self.receiver.borrow().clone();
        if let Some(r) = receiver.and_then(|r| r.upgrade()) {
            r.arrive(point, link, Arrival::Down);
        }
        if !was_broken {
            let (net, wait) = (self.clone(), self.delay());
            self.world.after(wait, move || net.end(id, 1 - end));
        }
    }

    /// The process at this end is gone. After a kill its system closes the connections; after a power loss nobody
    /// says anything for a while, and what was not on the wire yet is lost.
    pub fn process_died(self: &Rc<Self>, who: EndPoint, silently: bool) {
        let mut s = self.state.borrow_mut();
        let mut lost = Vec::new();
        for (id, c) in &mut s.connections {
            for end in 0..2 {
                if c.ends[end] == who && !c.ended[end] {
                    c.ended[end] = true;
                    lost.push((*id, end, c.links[end]));
                }
            }
        }
        for (_, _, link) in &lost {
            s.by_link.remove(link);
        }
        drop(s);
        for (id, end, _) in lost {
            self.lose_end(id, end, silently);
        }
    }

    fn lose_end(self: &Rc<Self>, id: u64, end: usize, silently: bool) {
        let mut s = self.state.borrow_mut();
        let Some(c) = s.connections.get_mut(&id) else { return };
        c.broken = true;
        if c.ended[1 - end] {
            s.connections.remove(&id);
            return;
        }
        let d = &mut c.directions[1 - end];
        let due = d.last_due;
        if silently {
            let keep = self.luck.borrow_mut().below(d.queue.len() as u64 + 1) as usize;
            d.queue.truncate(keep);
        }
        drop(s);
        let wait = if silently {
            self.some(Nanos::from_millis(1), Nanos::from_millis(2000))
        } else {
            // Behind all that was sent.
            due.since(self.world.now()).plus(self.delay())
        };
        let net = self.clone();
        self.world.after(wait, move || net.end(id, 1 - end));
    }

    /// Connections that are up, for faults to choose from.
    #[must_use]
    pub fn connections(&self) -> Vec<u64> {
        let s = self.state.borrow();
        s.connections.iter().filter(|(_, c)| !c.broken && !c.ended[1]).map(|(id, _)| *id).collect()
    }

    /// Everything is let through again.
    pub fn heal(&self) {
        self.state.borrow_mut().blocked.clear();
    }
}

fn describe(arrival: &Arrival) -> String {
    let text = match arrival {
        Arrival::Message(m) => match &**m {
            Message::Frames { forward, frames } => {
                let names: Vec<String> = frames
                    .iter()
                    .map(|f| {
                        let h = f.header();
                        format!("{}:{}/{} {:?}", f.head.shard(), h.view_number(), h.seq(), f.head.kind())
                    })
                    .collect();
                format!("frames {names:?} forward {forward:?}")
            }
            Message::SyncReply(r) => {
                let names: Vec<String> =
                    r.frames.iter().map(|f| format!("{}/{}", f.header().view_number(), f.header().seq())).collect();
                format!("sync reply {} view {} {:?} common {} frames {names:?}", r.shard, r.view, r.mode, r.common)
            }
            Message::Sync(r) => {
                format!("sync {} view {} until {} from {:?}", r.shard, r.view, r.until, r.names.first())
            }
            Message::Write(w) => {
                format!("write {} view {} number {} {:?} {:?}", w.shard, w.view, w.number, w.kind, w.extents)
            }
            Message::ReadReply(r) => format!("read reply {} id {} {:?}", r.shard, r.id, r.pieces),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    text.chars().take(500).collect()
}

//! A gateway of a run: one driver of one volume with the client that uses it. It dies, pauses, leaves in order, and is
//! superseded.
//!
//! Invariant: every request of the client is entered with the oracle before the driver hears of it, and leaves it
//! only by the driver's answer; what a dead gateway had in flight stays open there for ever.

use crate::content;
use crate::control::{Control, Plane};
use crate::intervals::{self, Change};
use crate::network::{Arrival, EndPoint, Network, Place};
use crate::node::Rate;
use crate::oracle::{Oracle, Reading};
use crate::workload::{Wish, Workload};
use crate::world::World;
use bytes::Bytes;
use freebs_agent::{Attachment, Commands, DriverLinks, Right, Wanted, news_of};
use freebs_control::State;
use freebs_driver::{Action, Driver, DriverConfig, Event, Op, Piece, Placed, Reply, StatusRun};
use freebs_io::LinkId;
use freebs_types::{ErrorKind, Generation, Nanos, Peer, Result, SECTOR, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

/// Sectors of one read when everything is read.
const SCAN_SECTORS: u64 = 256;
/// Such reads in flight.
const SCAN_DEPTH: usize = 4;

/// What the driver's token stands for.
enum Open {
    Write { id: content::Value, first: u64, count: u64, slot: bool },
    Interval { id: content::Value, changes: Vec<Change>, slot: bool },
    Read { reading: Reading, first: u64, count: u64, slot: bool },
    Status { reading: Reading, first: u64, count: u64 },
    Flush,
}

enum Item {
    Arrival(LinkId, Arrival),
    Tick,
    Next,
    /// The control state is another.
    News,
    /// A link was found open when the driver wanted it.
    Found(Peer, LinkId),
    /// The client leaves, and the volume is given back.
    Leave,
    /// The volume may be given back by now.
    Left,
}

/// Errors that a client may get.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// The volume's limit is short enough to be met.
    pub retry: bool,
    pub no_space: bool,
    pub corrupt: bool,
}

/// One gateway process.
pub struct Gateway {
    pub id: u64,
    pub volume: VolumeId,
    pub generation: Generation,
    world: Rc<World>,
    net: Rc<Network>,
    control: Rc<Control>,
    plane: Plane,
    oracle: Rc<Oracle>,
    work: Rc<RefCell<Workload>>,
    allowed: Allowed,
    attachment: RefCell<Attachment>,
    /// Of the clock that its driver reads.
    rate: Rate,
    driver: RefCell<Driver>,
    /// The control state as it was heard of last.
    known: RefCell<Arc<State>>,
    links: RefCell<DriverLinks>,
    /// The member that each link goes to, also before it is open.
    peers: RefCell<BTreeMap<LinkId, Peer>>,
    /// Requests without an answer, and when each was made.
    open: RefCell<BTreeMap<u64, (Nanos, Open)>>,
    tokens: Cell<u64>,
    timer: Cell<Option<Nanos>>,
    paused: Cell<bool>,
    held: RefCell<VecDeque<Item>>,
    dead: Cell<bool>,
    /// It has left, and the control plane has heard so, or can't be told.
    left: Cell<bool>,
    /// Sectors still to be read by a scan that is under way.
    scan: Cell<Option<(u64, u64)>>,
    scanned: Cell<bool>,
}

impl Gateway {
    /// Starts a driver for an attachment.
    #[must_use]
    #[allow(clippy::too_many_arguments, reason = "what a gateway is made of; each is named where it starts")]
    pub fn start(
        (id, rate): (u64, Rate),
        (right, config): (Right, DriverConfig),
        plane: Plane,
        world: &Rc<World>,
        net: &Rc<Network>,
        control: &Rc<Control>,
        oracle: &Rc<Oracle>,
        work: &Rc<RefCell<Workload>>,
        allowed: Allowed,
    ) -> Rc<Self> {
        let (volume, generation) = (config.volume.id, config.generation);
        world.say(|| format!("gateway {id}: volume {volume} generation {generation} driver {}", config.driver));
        world.trace(0x40, id, generation.0);
        let known = plane.state();
        let gateway = Rc::new(Self {
            id,
            volume,
            generation,
            world: world.clone(),
            net: net.clone(),
            control: control.clone(),
            plane,
            oracle: oracle.clone(),
            work: work.clone(),
            allowed,
            attachment: RefCell::new(Attachment::new(right)),
            rate,
            driver: RefCell::new(Driver::new(config, rate.of(world.now()))),
            known: RefCell::new(known),
            links: RefCell::default(),
            peers: RefCell::default(),
            open: RefCell::default(),
            tokens: Cell::new(0),
            timer: Cell::new(None),
            paused: Cell::new(false),
            held: RefCell::default(),
            dead: Cell::new(false),
            left: Cell::new(false),
            scan: Cell::new(None),
            scanned: Cell::new(false),
        });
        let weak = Rc::downgrade(&gateway);
        gateway.plane.on_news(move || {
            if let Some(gateway) = weak.upgrade() {
                gateway.take_or_hold(Item::News);
            }
        });
        gateway.step(Event::Tick);
        let depth = gateway.work.borrow().depth;
        for _ in 0..depth {
            gateway.next_soon();
        }
        if generation > Generation(1) && gateway.work.borrow_mut().wants_scan() {
            gateway.begin_scan();
        }
        gateway
    }

    /// The time of this host.
    fn now(&self) -> Nanos {
        self.rate.of(self.world.now())
    }

    fn me(&self) -> EndPoint {
        EndPoint { place: Place::Gateway(self.id), incarnation: 1 }
    }

    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.attachment.borrow().is_fenced()
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.attachment.borrow().is_ready() && !self.is_leaving()
    }

    fn is_leaving(&self) -> bool {
        self.attachment.borrow().leaves_by().is_some()
    }

    /// True if somebody else has to attach before the volume can be used again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_dead() || self.is_fenced() || self.left.get()
    }

    /// Whether the control plane has given out a higher generation.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.control.volume(self.volume).is_none_or(|v| v.generation > self.generation)
    }

    /// Requests of the client without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.open.borrow().len()
    }

    /// When the oldest of them was made.
    #[must_use]
    pub fn oldest(&self) -> Option<Nanos> {
        self.open.borrow().values().next().map(|(at, _)| *at)
    }

    /// Updates whose fate the driver does not know, those that it gave up included.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.driver.borrow().info().shards.iter().map(|s| s.writes).sum()
    }

    #[must_use]
    pub fn has_scanned(&self) -> bool {
        self.scanned.get()
    }

    /// Its state in a line, for people.
    #[must_use]
    pub fn info(&self) -> String {
        let info = self.driver.borrow().info();
        let mut out = format!(
            "ready {}, in flight {}, dead {}, fenced {}, superseded {}",
            info.ready,
            self.in_flight(),
            self.is_dead(),
            self.is_fenced(),
            self.is_superseded()
        );
        for s in &info.shards {
            let members: Vec<String> = s
                .members
                .iter()
                .map(|m| format!("n{} link {} durable {:?}", m.node, m.link, m.durable.map(|d| d.0)))
                .collect();
            let (view, committed) = (s.view, s.committed);
            let _ = write!(out, "; {} view {view} attached {} writes {}", s.id, s.attached, s.writes);
            let _ = write!(out, " committed {committed} {members:?}");
        }
        out
    }

    /// The process is gone, with everything it had in flight.
    pub fn kill(&self) {
        if self.dead.replace(true) {
            return;
        }
        self.world.say(|| format!("gateway {}: killed", self.id));
        self.world.trace(0x41, self.id, 0);
        self.net.process_died(self.me(), false);
        self.held.borrow_mut().clear();
    }

    pub fn pause(self: &Rc<Self>, paused: bool) {
        if self.paused.replace(paused) == paused || paused {
            return;
        }
        loop {
            let item = self.held.borrow_mut().pop_front();
            match item {
                Some(item) if !self.paused.get() => self.take(item),
                _ => break,
            }
        }
    }

    pub fn arrive(self: &Rc<Self>, link: LinkId, arrival: Arrival) -> bool {
        if !self.dead.get() {
            self.take_or_hold(Item::Arrival(link, arrival));
        }
        !self.dead.get()
    }

    /// The client leaves: what it asked is answered, and then the volume is given back.
    pub fn leave(self: &Rc<Self>) {
        self.take_or_hold(Item::Leave);
    }

    fn news(self: &Rc<Self>) {
        self.plane.hear();
        let state = self.plane.state();
        let earlier = self.known.replace(state.clone());
        news_of(&earlier, &state, self.volume).into_iter().for_each(|e| self.step(e));
    }

    fn take_or_hold(self: &Rc<Self>, item: Item) {
        if self.dead.get() {
            return;
        }
        if self.paused.get() {
            self.held.borrow_mut().push_back(item);
        } else {
            self.take(item);
        }
    }

    fn take(self: &Rc<Self>, item: Item) {
        match item {
            Item::Tick => self.step(Event::Tick),
            Item::Next => self.next(),
            Item::News => self.news(),
            Item::Found(peer, link) => {
                let event = self.links.borrow().news(peer, link);
                self.step(event);
            }
            Item::Leave => self.begin_to_leave(),
            Item::Left => self.close_if_left(),
            Item::Arrival(link, arrival) => self.arrived(link, arrival),
        }
    }

    fn begin_to_leave(self: &Rc<Self>) {
        if self.is_over() {
            return;
        }
        self.world.say(|| format!("gateway {}: its client leaves, ready {}", self.id, self.is_ready()));
        self.attachment.borrow_mut().leave(self.now());
        self.close_if_left();
    }

    /// Gives the volume back as soon as nothing is waited for any more.
    fn close_if_left(self: &Rc<Self>) {
        let (now, in_flight) = (self.now(), self.in_flight());
        let (by, has_left) = {
            let attachment = self.attachment.borrow();
            (attachment.leaves_by(), attachment.has_left(now, in_flight))
        };
        match by {
            Some(_) if has_left => self.close(),
            Some(by) => self.look_again_after(by.since(now).max(Nanos(1000))),
            None => {}
        }
    }

    fn look_again_after(self: &Rc<Self>, wait: Nanos) {
        let gateway = self.clone();
        self.world.after(wait, move || gateway.take_or_hold(Item::Left));
    }

    fn close_if_answered(self: &Rc<Self>) {
        if self.is_leaving() && self.in_flight() == 0 {
            self.look_again_after(Nanos(0));
        }
    }

    fn close(self: &Rc<Self>) {
        if self.attachment.borrow().is_over() {
            return;
        }
        let is_ready = self.attachment.borrow().is_ready();
        self.step(Event::Close);
        let Some(command) = self.attachment.borrow_mut().end() else {
            self.world.count("volumes kept by gateways that ended before they were ready");
            return self.left.set(true);
        };
        self.world.count(if is_ready { "volumes given back" } else { "volumes given back before they were ready" });
        let gateway = self.clone();
        tokio::task::spawn_local(async move {
            let done = gateway.plane.submit(command).await;
            gateway.world.say(|| format!("gateway {}: the volume was given back: {done:?}", gateway.id));
            gateway.left.set(true);
        });
    }

    fn arrived(self: &Rc<Self>, link: LinkId, arrival: Arrival) {
        let Some(peer) = self.peers.borrow().get(&link).copied() else { return };
        match arrival {
            Arrival::Incoming(_) => {}
            Arrival::Up => {
                let event = self.links.borrow_mut().opened(peer, Some(link));
                self.step(event);
            }
            Arrival::Down => {
                self.peers.borrow_mut().remove(&link);
                let mut links = self.links.borrow_mut();
                let event = match links.link(peer) {
                    Some(_) => links.closed(peer, link),
                    None => Some(links.opened(peer, None)),
                };
                drop(links);
                event.into_iter().for_each(|event| self.step(event));
            }
            Arrival::Message(message) => self.step(Event::Message { from: peer, message: *message }),
        }
    }

    fn step(self: &Rc<Self>, event: Event) {
        let mut out = Vec::new();
        self.driver.borrow_mut().step(self.now(), event, &mut out);
        for action in out {
            self.carry_out(action);
        }
        self.set_timer();
    }

    fn set_timer(self: &Rc<Self>) {
        let Some(at) = self.driver.borrow().next_deadline() else { return };
        if self.timer.get().is_some_and(|t| t <= at) {
            return;
        }
        self.timer.set(Some(at));
        let gateway = self.clone();
        let wait = at.since(self.now()).max(Nanos(1000));
        self.world.after(wait, move || {
            if gateway.timer.get() == Some(at) {
                gateway.timer.set(None);
                gateway.take_or_hold(Item::Tick);
            }
        });
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        self.attachment.borrow_mut().note(&action);
        match action {
            Action::Connect(peer) => self.connect(peer),
            Action::Send { to, message } => {
                let link = self.links.borrow().link(to);
                if let Some(link) = link {
                    self.net.send(link, message);
                }
            }
            Action::Done { token, result } => self.done(token, result),
            Action::Ready => {
                self.oracle.ready(self.volume, self.generation);
                self.world.moment("ready");
                self.world.trace(0x42, self.id, self.generation.0);
                self.world.say(|| format!("gateway {}: ready", self.id));
            }
            Action::Fenced => {
                self.world.say(|| format!("gateway {}: fenced", self.id));
            }
            Action::Closed => {}
        }
    }

    fn connect(self: &Rc<Self>, peer: Peer) {
        let wanted = self.links.borrow_mut().want(peer);
        match wanted {
            Wanted::Open(link) => {
                let gateway = self.clone();
                self.world.after(Nanos(0), move || gateway.take_or_hold(Item::Found(peer, link)));
            }
            Wanted::Opening => {}
            Wanted::Dial => {
                let link = self.net.dial(self.me(), Place::Node(peer.node.0));
                self.peers.borrow_mut().insert(link, peer);
            }
        }
    }

    /// True if the client asks nothing more here.
    fn is_over(&self) -> bool {
        self.dead.get() || self.is_leaving() || self.attachment.borrow().is_over()
    }

    fn next_soon(self: &Rc<Self>) {
        let wait = self.work.borrow_mut().think();
        let gateway = self.clone();
        self.world.after(wait, move || gateway.take_or_hold(Item::Next));
    }

    /// The client wants something again.
    fn next(self: &Rc<Self>) {
        if self.is_over() {
            return;
        }
        let wish = self.work.borrow_mut().next();
        let Some(wish) = wish else { return };
        self.ask(wish, true);
    }

    fn ask(self: &Rc<Self>, wish: Wish, slot: bool) {
        let token = self.tokens.get() + 1;
        self.tokens.set(token);
        let (volume, generation) = (self.volume, self.generation);
        let unit = SECTOR as u64;
        let said = format!("{wish:?}");
        let write = |first, count, zero| self.oracle.begin_write(volume, generation, first, count, zero);
        let (op, open) = match wish {
            Wish::Write { first, count, fua } => {
                let id = write(first, count, false);
                let data = content::make(volume.0, first, count, id);
                (Op::Write { offset: first * unit, data, fua }, Open::Write { id, first, count, slot })
            }
            Wish::WriteZeroes { first, count } => {
                let data = Bytes::from(vec![0; count as usize * SECTOR]);
                let id = write(first, count, true);
                (Op::Write { offset: first * unit, data, fua: false }, Open::Write { id, first, count, slot })
            }
            Wish::Trim { first, count } => {
                let id = write(first, count, true);
                (Op::Trim { offset: first * unit, len: count * unit }, Open::Write { id, first, count, slot })
            }
            Wish::Zero { first, count, may_trim } => {
                let id = write(first, count, true);
                (Op::Zero { offset: first * unit, len: count * unit, may_trim }, Open::Write { id, first, count, slot })
            }
            Wish::Read { first, count } => {
                let reading = self.oracle.begin_read(volume, generation);
                (Op::Read { offset: first * unit, len: count * unit }, Open::Read { reading, first, count, slot })
            }
            Wish::Status { first, count } => {
                let reading = self.oracle.begin_read(volume, generation);
                (Op::Status { offset: first * unit, len: count * unit }, Open::Status { reading, first, count })
            }
            Wish::Interval(changes) => {
                self.world.count("intervals");
                let id = self.oracle.begin_interval(volume, generation, intervals::laid_over(&changes));
                let op = Op::Interval { changes: intervals::for_driver(volume, id, &changes) };
                (op, Open::Interval { id, changes, slot })
            }
            Wish::Flush => (Op::Flush, Open::Flush),
        };
        let name = match &open {
            Open::Write { id, .. } | Open::Interval { id, .. } => format!(" is write {id}"),
            _ => String::new(),
        };
        self.world.say(|| format!("gateway {}: request {token} {said}{name}", self.id));
        self.open.borrow_mut().insert(token, (self.world.now(), open));
        self.step(Event::Client { token, op });
    }

    fn done(self: &Rc<Self>, token: u64, result: Result<Reply>) {
        let Some((_, open)) = self.open.borrow_mut().remove(&token) else {
            self.world.violation(format!("gateway {}: a second answer to request {token}", self.id));
            return;
        };
        self.world.trace(0x43, token, u64::from(result.is_ok()));
        if let Err(e) = &result {
            self.world.say(|| format!("gateway {}: request {token} failed: {e}", self.id));
            self.judge_error(e.kind, &e.text);
        }
        let slot = match open {
            Open::Write { id, first, count, slot } => {
                self.end_write(id, result.is_ok(), &[(first, count)]);
                slot
            }
            Open::Interval { id, changes, slot } => {
                let places: Vec<_> = changes.iter().map(|c| (c.first, c.count)).collect();
                self.end_write(id, result.is_ok(), &places);
                match result {
                    Ok(reply) => self.judge_places(&reply),
                    Err(e) if e.kind == ErrorKind::Busy => self.oracle.never(self.volume, id),
                    Err(_) => {}
                }
                slot
            }
            Open::Read { reading, first, count, slot } => {
                if let Ok(reply) = result {
                    self.judge_read(reading, first, count, reply);
                }
                if !slot {
                    self.scan_on();
                }
                slot
            }
            Open::Status { reading, first, count } => {
                if let Ok(reply) = result {
                    self.judge_status(reading, first, count, reply);
                }
                true
            }
            Open::Flush => true,
        };
        if slot {
            self.next_soon();
        }
        self.close_if_answered();
    }

    fn end_write(&self, id: content::Value, ok: bool, places: &[(u64, u64)]) {
        self.world.say(|| format!("gateway {}: write {id} ended, ok {ok}", self.id));
        self.oracle.end_write(self.volume, id, ok);
        self.world.moment("answer");
        if !ok {
            places.iter().for_each(|(first, count)| self.work.borrow_mut().failed(*first, *count));
        }
    }

    /// An interval has a place, in a view that there was.
    fn judge_places(&self, reply: &Reply) {
        let shards = self.control.volume(self.volume).map_or(0, |v| v.shards.len());
        let fits = |p: &Placed| p.shard.volume == self.volume && (p.shard.index as usize) < shards && p.view.0 > 0;
        match reply {
            Reply::Committed(places) if !places.is_empty() && places.iter().all(fits) => {}
            _ => self.world.violation(format!("gateway {}: an interval was answered with {reply:?}", self.id)),
        }
    }

    fn judge_error(&self, kind: ErrorKind, text: &str) {
        let fine = match kind {
            ErrorKind::Fenced => self.is_superseded(),
            // A request that is not answered in time fails when the driver is closed.
            // An interval is aborted when it takes too long.
            ErrorKind::Retry | ErrorKind::Busy => self.allowed.retry || self.is_leaving(),
            ErrorKind::NoSpace => self.allowed.no_space,
            ErrorKind::Corrupt | ErrorKind::DeviceFailed => self.allowed.corrupt,
            _ => false,
        };
        if !fine {
            self.world.violation(format!("gateway {}: a client got an error {kind:?}: {text}", self.id));
        }
    }

    fn judge_read(&self, reading: Reading, first: u64, count: u64, reply: Reply) {
        let Reply::Read(pieces) = reply else {
            self.world.violation(format!("gateway {}: a read was answered with {reply:?}", self.id));
            return;
        };
        let mut bytes = Vec::with_capacity(count as usize * SECTOR);
        for p in pieces {
            match p {
                Piece::Data(b) => bytes.extend_from_slice(&b),
                Piece::Zero(n) => bytes.resize(bytes.len() + n as usize, 0),
            }
        }
        if bytes.len() != count as usize * SECTOR {
            self.world.violation(format!("gateway {}: a read of {count} sectors got {} bytes", self.id, bytes.len()));
            return;
        }
        let sources = self.oracle.sources(self.volume);
        let mut values = Vec::with_capacity(count as usize);
        for (s, chunk) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            match content::parse_of(&sources, s, chunk) {
                Ok((_, v)) => values.push(v),
                Err(e) => {
                    self.world.violation(format!("volume {} sector {s} {e}", self.volume));
                    return;
                }
            }
        }
        self.world.say(|| format!("gateway {}: sectors {first}+{count} are {:?}", self.id, runs(&values)));
        self.oracle.end_read(reading, first, &values);
    }

    /// What the status calls zero must be as a read of zeroes; of the rest it says nothing.
    fn judge_status(&self, reading: Reading, first: u64, count: u64, reply: Reply) {
        let Reply::Status(runs) = reply else {
            self.world.violation(format!("gateway {}: a status was answered with {reply:?}", self.id));
            return;
        };
        let total: u64 = runs.iter().map(|r| r.bytes).sum();
        if total == 0 || total > count * SECTOR as u64 || runs.iter().any(|r| r.hole && !r.zero) {
            self.world.violation(format!("gateway {}: an impossible status {runs:?}", self.id));
            return;
        }
        let mut at = first * SECTOR as u64;
        for StatusRun { bytes, zero, .. } in runs {
            if zero && at.is_multiple_of(SECTOR as u64) && bytes.is_multiple_of(SECTOR as u64) {
                let values = vec![0; bytes as usize / SECTOR];
                self.oracle.end_read(reading, at / SECTOR as u64, &values);
            }
            at += bytes;
        }
    }

    /// Reads the whole volume, a few pieces at a time.
    pub fn begin_scan(self: &Rc<Self>) {
        self.scanned.set(false);
        self.scan.set(Some((0, self.work.borrow().sectors)));
        for _ in 0..SCAN_DEPTH {
            self.scan_on();
        }
    }

    fn scan_on(self: &Rc<Self>) {
        if self.is_over() {
            return;
        }
        let Some((at, end)) = self.scan.get() else { return };
        if at >= end {
            let is_last = !self.open.borrow().values().any(|(_, o)| matches!(o, Open::Read { slot: false, .. }));
            self.scanned.set(is_last);
            return;
        }
        let count = SCAN_SECTORS.min(end - at);
        self.scan.set(Some((at + count, end)));
        self.ask(Wish::Read { first: at, count }, false);
    }
}

fn runs(values: &[content::Value]) -> Vec<(content::Value, usize)> {
    let mut out: Vec<(content::Value, usize)> = Vec::new();
    for v in values {
        match out.last_mut() {
            Some((w, n)) if w == v => *n += 1,
            _ => out.push((*v, 1)),
        }
    }
    out
}

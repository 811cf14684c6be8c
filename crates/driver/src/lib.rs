//! The driver: the client core that serves one attached volume.
//!
//! It routes requests over the shards of the volume, counts durable answers, repeats what was not answered, makes
//! sub-block writes out of whole blocks, and checks every block that it hands out. It is sans-I/O and deterministic:
//! `step(event) -> actions`; who drives it opens the links, carries the messages and tells the time.
//!
//! Invariants, with the rules of the protocol they keep:
//! - A request is answered exactly once. A success is answered only when it is durable on A members of one view
//!   (W4), or read from a member that has everything this driver completed (R1), after the barrier (R2), with no
//!   write of its own in flight there (R3), and with matching CRCs. And only while A members of each shard that it
//!   touched lend this driver the right to answer (L1); until then it is held back.
//! - A write keeps its number for ever, so a repeat is never applied twice (W3). Its blocks stay taken until its
//!   fate is known, also when its client was told that it failed (R3).
//! - Flush is free: a volume in sync mode answers no write before it is durable on A members, so when a flush comes
//!   in, every write that was answered before it is durable already. The same holds for FUA.
//! - Memory is bounded by windows (`limits::DRIVER_WINDOW_BYTES`, `DRIVER_REQUESTS_MAX`); more waits, unsplit.
//!
//! The folder: `stripe` (where bytes lie), `blocks` (who waits for whom), `requests` (of clients, and their parts),
//! `plan`, `interval` and `group` (changes that happen together), `writes` and `reads` (parts on their way), `shard` (views, attachment, barrier), `leases` (the right to answer),
//! `members` (links and who to ask). Beside them `past`: a core of its own that reads snapshots, without an attachment.

mod blocks;
mod group;
mod info;
mod interval;
mod leases;
mod members;
pub mod past;
mod plan;
mod reads;
mod requests;
mod shard;
mod slab;
mod stripe;
mod timers;
mod timing;
mod updates;
mod writes;

pub use info::{Counters, Info, MemberInfo, ShardInfo};
pub use plan::{
    Change, INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, INTERVAL_RUNS_MAX, INTERVAL_SHARDS_MAX, INTERVAL_TOTAL_BYTES_MAX,
    Placed,
};
pub use timing::REQUEST_LIMIT;

use bytes::Bytes;
use freebs_format::Pin;
use freebs_format::wire::Message;
use freebs_types::{
    DriverId, Error, Generation, Hash32, IntervalNumber, Nanos, NodeId, Peer, Result, ShardId, ViewNumber, VolumeId,
};
use group::Group;
use members::Link;
use reads::{Attempt, Fetch};
use requests::{Part, Request};
use shard::Shard;
use slab::{Key, Slab};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use stripe::Layout;
use timers::{Timer, Timers};

/// Bytes of one read or write of a client.
pub const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Bytes that the answer to one `Op::Status` covers at most; the answer to a longer one ends there.
pub const STATUS_BYTES_MAX: u64 = 1 << 30;
/// Client requests that wait or are worked on; more are refused with `Retry`.
pub const REQUESTS_MAX: usize = 65_536;

/// The volume as the control plane describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The volume.
    pub id: VolumeId,
    /// Bytes.
    pub size: u64,
    /// Bytes: a power of two, at least 4,096. Means nothing with one shard.
    pub stripe: u64,
    /// In the order in which stripes go over them.
    pub shards: Vec<ShardSpec>,
}

/// A shard and its chain, as far as is known; members know better and say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// The shard.
    pub id: ShardId,
    /// 0 while no view is known.
    pub view: ViewNumber,
    /// Head first.
    pub members: Vec<NodeId>,
}

/// Everything that a driver is started with.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// New and random at every start of a driver (W1).
    pub driver: DriverId,
    /// The generation that the control plane gave this attachment.
    pub generation: Generation,
    /// Hash of the persistent identity of who attached.
    pub identity: Hash32,
    /// The volume; `Event::Volume` brings a newer description.
    pub volume: VolumeSpec,
    /// Workers of each node; 1 for nodes that are not named.
    pub workers: BTreeMap<NodeId, u16>,
    /// The node that this driver runs in: preferred for reads.
    pub local: Option<NodeId>,
    /// No driver of an earlier generation can hold a lease, so what members say of older ones is not waited for (L3).
    pub alone: bool,
    /// A request that has no outcome after this time fails; `REQUEST_LIMIT` unless the volume says otherwise.
    pub request_limit: Nanos,
    /// Breaks one rule, to prove that tests notice. Always `None` outside of tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// Rules that a test can turn off, one at a time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// W4: durable answers of any view count.
    CountAcrossViews,
    /// R1: reads go to members whatever they have.
    NoReadFloor,
    /// R2: reads do not wait for the attach barrier.
    NoBarrier,
    /// R3: reads and writes of the same blocks go on together.
    NoReadWait,
    /// R3: the blocks of a write that was given up are free at once.
    ForgetGivenUp,
    /// An interval goes to the head as two updates.
    SplitInterval,
    /// I1: an interval is decided when its first shard has it, whatever the others have.
    DecideEarly,
    /// Sub-block writes of one block are not queued.
    SharedUpdates,
    /// W3: a repeat gets a number of its own.
    NewNumberOnRepeat,
    /// W4: a write is answered as soon as the head has ordered it.
    AnswerOrdered,
    /// CRCs of what is read are not looked at.
    TrustBytes,
    /// L1: successes are given, and the driver is ready, without leases.
    AnswerWithoutLease,
    /// L1, L3: the lease of one member is enough.
    OneLeaseIsEnough,
    /// L1: leases count in whatever view they were given.
    LeasesOfAnyView,
    /// L3: leases of older generations are not waited for.
    OlderNotWaitedFor,
}

/// A request of a client. Offsets and lengths are bytes and need no alignment.
#[derive(Clone, Debug)]
pub enum Op {
    /// The answer is `Reply::Read`.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most `REQUEST_BYTES_MAX`.
        len: u64,
    },
    /// `fua` changes nothing here: every answer is durable.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes to write, at most `REQUEST_BYTES_MAX`.
        data: Bytes,
        /// The client asked for the answer to come after the data are durable.
        fua: bool,
    },
    /// The range may be forgotten; whole blocks of it read as zeroes then.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Writes zeroes. `may_trim`: the range may count as a hole afterwards.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The range may count as a hole afterwards.
        may_trim: bool,
    },
    /// Changes that happen together or not at all; `Reply::Committed` answers. In each shard they are
    /// within `INTERVAL_BYTES_MAX` and `INTERVAL_RUNS_MAX`, a little less if there are several, and all within
    /// `INTERVAL_TOTAL_BYTES_MAX`, `INTERVAL_SHARDS_MAX` and `INTERVAL_CHANGES_MAX`.
    Interval {
        /// In order: of those that overlap the later one counts.
        changes: Arc<[Change]>,
    },
    /// The answer comes at once: whatever was answered before is durable.
    Flush,
    /// What is where. The answer may end before the range does (`STATUS_BYTES_MAX`), but never covers nothing.
    Status {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// As `Status`, with what changed behind an earlier snapshot of the volume. Only for the past.
    Changes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The pins of the earlier snapshot, one for each shard.
        since: Arc<[Pin]>,
    },
}

/// The input of `step`.
#[derive(Clone, Debug)]
pub enum Event {
    /// Tokens are the caller's; each is answered by one `Action::Done`.
    Client {
        /// The caller's, given back with `Done`.
        token: u64,
        /// The request.
        op: Op,
    },
    /// The link that `Connect` asked for is open. Nothing of an earlier link to that peer is delivered after this.
    LinkUp(Peer),
    /// The link broke, or could not be opened.
    LinkDown(Peer),
    /// A message came on a link that is up.
    Message {
        /// The member that sent it.
        from: Peer,
        /// The message; kinds that are not for drivers are dropped.
        message: Message,
    },
    /// Time has passed; wanted at `next_deadline`.
    Tick,
    /// The volume was resized, or shards moved. Stripe and number of shards can't change.
    Volume(VolumeSpec),
    /// Workers of each node have become known or changed; 1 for nodes that are not named.
    Workers(BTreeMap<NodeId, u16>),
    /// These nodes were started anew, or have another address: links to them that are down are opened at once.
    Started(Vec<NodeId>),
    /// Everything that is open fails, and the members are told.
    Close,
}

/// Orders to the caller.
#[derive(Clone, Debug)]
pub enum Action {
    /// Wanted answers: `LinkUp`, or `LinkDown` if that is impossible now.
    Connect(Peer),
    /// To a peer whose link is up.
    Send {
        /// The member.
        to: Peer,
        /// The message, to be delivered in order or not at all.
        message: Message,
    },
    /// A client's request has its outcome.
    Done {
        /// As the client's event named it.
        token: u64,
        /// The answer, or an error that says what the client may do.
        result: Result<Reply>,
    },
    /// Once: all shards are attached and past the barrier (R2), A members of each have lent, and older generations have
    /// no leases any more (L3).
    Ready,
    /// Once: a newer generation exists. Everything that is open has failed, and all that comes later will.
    Fenced,
    /// The last action: nothing more is done, and later requests are refused.
    Closed,
}

/// The answer to a request that has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Of a write, trim, zero or flush.
    Done,
    /// Of an interval: where it lies in the log of each shard that it has changed.
    Committed(Vec<Placed>),
    /// In order; together exactly the bytes that were asked for.
    Read(Vec<Piece>),
    /// In order, neighbours differ.
    Status(Vec<StatusRun>),
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Data(Bytes),
    /// This many zero bytes.
    Zero(u64),
}

/// A run of bytes in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRun {
    /// Length, 1 and up.
    pub bytes: u64,
    /// Trimmed or never written.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
    /// Touched behind the snapshot that `Op::Changes` names; never set by `Op::Status`.
    pub changed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Fenced,
    Closed,
}

/// See the top of this file.
pub struct Driver {
    driver: DriverId,
    generation: Generation,
    identity: Hash32,
    local: Option<NodeId>,
    request_limit: Nanos,
    workers: BTreeMap<NodeId, u16>,
    mutant: Option<Mutant>,
    alone: bool,
    volume: VolumeId,
    /// The error is what every request gets.
    layout: Result<Layout>,

    now: Nanos,
    state: State,
    ready: bool,
    shards: Vec<Shard>,
    by_id: BTreeMap<ShardId, usize>,
    links: BTreeMap<Peer, Link>,
    timers: Timers,

    /// Open requests by number of arrival; so the first one's deadline is the next one.
    requests: BTreeMap<u64, Request>,
    next_request: u64,
    /// Those whose success waits for leases (L1), in order of ending.
    held_back: BTreeMap<u64, u64>,
    next_held: u64,
    /// Requests that are not cut into parts yet, in order of arrival.
    admission: VecDeque<u64>,
    parts: Slab<Part>,
    /// Intervals over several shards.
    groups: Slab<Group>,
    next_interval: IntervalNumber,
    /// Attempts that may not be over in all of their shards.
    open_intervals: BTreeSet<IntervalNumber>,
    /// Parts that may go on: their blocks have become theirs.
    runnable: VecDeque<Key>,
    /// Bytes of parts, for the window.
    bytes: usize,
    fetches: Slab<Fetch>,
    attempts: BTreeMap<u64, Attempt>,
    next_attempt: u64,
    counters: Counters,
}

impl Driver {
    /// Starts attaching with the first `step`.
    #[must_use]
    pub fn new(config: DriverConfig, now: Nanos) -> Self {
        let spec = config.volume;
        let layout = Layout::new(spec.size, spec.stripe, spec.shards.len());
        let shards: Vec<_> = spec.shards.iter().map(|s| Shard::new(s, &config.workers, config.mutant)).collect();
        let by_id = shards.iter().enumerate().map(|(i, s)| (s.id, i)).collect();
        Self {
            driver: config.driver,
            generation: config.generation,
            identity: config.identity,
            local: config.local,
            request_limit: config.request_limit,
            workers: config.workers,
            mutant: config.mutant,
            alone: config.alone,
            volume: spec.id,
            layout,
            now,
            state: State::Open,
            ready: false,
            shards,
            by_id,
            links: BTreeMap::new(),
            timers: Timers::default(),
            requests: BTreeMap::new(),
            next_request: 0,
            held_back: BTreeMap::new(),
            next_held: 0,
            admission: VecDeque::new(),
            parts: Slab::new(),
            groups: Slab::new(),
            next_interval: IntervalNumber(1),
            open_intervals: BTreeSet::new(),
            runnable: VecDeque::new(),
            bytes: 0,
            fetches: Slab::new(),
            attempts: BTreeMap::new(),
            // Ids differ between attachments, so an answer to an earlier driver at the same place is not taken for
            // one of ours.
            next_attempt: (config.generation.0 & 0xffff) << 48 | 1,
            counters: Counters::default(),
        }
    }

    /// Takes one event and adds what is to be done to `out`. Call it once with `Tick` to begin.
    pub fn step(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Client { token, op } => self.client(token, op, out),
            Event::LinkUp(peer) => self.link_up(peer, out),
            Event::LinkDown(peer) => self.link_down(peer, out),
            Event::Message { from, message } => self.message(from, message, out),
            Event::Tick => {}
            Event::Volume(spec) => self.volume_changed(&spec, out),
            Event::Workers(workers) => self.workers_changed(workers, out),
            Event::Started(nodes) => self.nodes_started(&nodes, out),
            Event::Close => self.close(out),
        }
        if self.state == State::Open {
            if self.links.is_empty() {
                (0..self.shards.len()).for_each(|s| self.contact(s, out));
            }
            self.fire(out);
            self.run(out);
        }
    }

    /// When `step` wants to be called with `Tick`, if nothing else comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let request = self.requests.first_key_value().map(|(_, r)| r.deadline);
        [request, self.timers.next()].into_iter().flatten().min()
    }

    /// Whether `Action::Ready` was given; does not go back when a member or a lease is lost.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.ready && self.state == State::Open
    }

    /// Client requests without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    fn mutated(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn message(&mut self, from: Peer, message: Message, out: &mut Vec<Action>) {
        // Only who was asked is listened to.
        if self.state != State::Open || !self.links.get(&from).is_some_and(Link::is_up) {
            return;
        }
        self.heard(from);
        match message {
            Message::Attached { news, generation, floor } => self.attached(from, &news, generation, floor, out),
            Message::View(news) => self.news(&news, out),
            Message::Ordered { shard, view, items } => self.ordered(from, shard, view, &items, out),
            Message::Durable(items) => self.durable(from, &items, out),
            Message::Leased(leased) => self.leased(from, leased, out),
            Message::ReadReply(reply) => self.read_reply(from, reply, out),
            Message::Refused(refused) => self.refused(from, refused, out),
            // Nothing else is meant for a driver.
            _ => {}
        }
    }

    /// Does what has become due.
    fn fire(&mut self, out: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop(self.now) {
            match timer {
                Timer::Connect(peer) => self.connect_again(peer, out),
                Timer::Attach(s) => self.attach_again(s, out),
                Timer::Follow(s) => self.follow_again(s, out),
                Timer::Stall(s) => self.stalled(s, out),
                Timer::Lease(s) => self.leases_due(s, out),
                Timer::Reads(s) => self.reads_again(s, out),
                Timer::Hedge(fetch) => self.hedge(fetch, out),
                Timer::Group(group) => self.try_again(group, out),
            }
        }
        while let Some((&id, request)) = self.requests.first_key_value()
            && request.deadline <= self.now
        {
            self.expire(id, out);
        }
    }

    /// Lets everything go on that can.
    fn run(&mut self, out: &mut Vec<Action>) {
        loop {
            while let Some(part) = self.runnable.pop_front() {
                self.run_part(part, out);
            }
            self.admit(out);
            if self.runnable.is_empty() {
                break;
            }
        }
    }

    /// A newer generation exists: this driver's right is gone for ever.
    fn fence(&mut self, out: &mut Vec<Action>) {
        if self.state != State::Open {
            return;
        }
        self.state = State::Fenced;
        self.stop(&fenced(), out);
        out.push(Action::Fenced);
    }

    fn close(&mut self, out: &mut Vec<Action>) {
        if self.state == State::Closed {
            return;
        }
        if self.state == State::Open {
            self.detach(out);
        }
        self.state = State::Closed;
        self.stop(&closed(), out);
        out.push(Action::Closed);
    }

    /// Fails everything that is open and forgets it.
    fn stop(&mut self, error: &Error, out: &mut Vec<Action>) {
        for request in std::mem::take(&mut self.requests).into_values() {
            out.push(Action::Done { token: request.token, result: Err(error.clone()) });
        }
        self.held_back.clear();
        self.admission.clear();
        self.parts = Slab::new();
        self.groups = Slab::new();
        self.runnable.clear();
        self.bytes = 0;
        self.fetches = Slab::new();
        self.attempts.clear();
        self.timers.clear();
        self.shards.iter_mut().for_each(Shard::forget);
    }
}

fn fenced() -> Error {
    Error::fenced("the volume was attached by somebody else: attach again to go on")
}

fn closed() -> Error {
    Error::retry("the volume is closed here: attach it again")
}

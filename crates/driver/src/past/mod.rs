//! The reader of the past: the client core that serves one snapshot of a volume, read-only.
//!
//! The data of a pinned version never change, so there is nothing to attach, to be fenced from or to wait for: no view,
//! generation, lease or barrier. It asks member after member until one has the blocks, and checks every block that it hands
//! out. Sans-I/O and deterministic, with the events and actions of the driver.
//!
//! Invariants:
//! - A request is answered exactly once. A success has bytes whose CRCs matched, of the versions that it was started with.
//! - A member that refuses, is silent or has bad bytes costs time, not an error, as long as another one answers. What no
//!   member keeps any more is `NotFound`, what all have damaged is `Corrupt`, and what nobody says within the limit is
//!   `Retry`.
//! - Memory is bounded (`WINDOW_BYTES`, `REQUESTS_MAX`); more waits, unsplit.
//! - Numbers of its questions are never those of a driver, nor of another reader of the same process that is open.
//!
//! The folder: this file (requests and their cutting), `asking` (blocks on their way), `links` (and the choice of a member),
//! `fetch` and `member` (what these are about).

mod asking;
mod fetch;
mod links;
mod member;

pub use member::Cut;

use crate::members::Link;
use crate::reads::corrupt;
use crate::requests::{GRANULE_DATA, GRANULE_STATUS, Run, assemble, pieces, status};
use crate::slab::{Key, Slab};
use crate::stripe::{Layout, Span, Walk};
use crate::timers::{Timer, Timers};
use crate::{Action, Event, Op, REQUEST_BYTES_MAX, REQUESTS_MAX, Reply, STATUS_BYTES_MAX, VolumeSpec};
use fetch::{Attempt, Fetch, Wanted};
use freebs_format::Pin;
use freebs_format::wire::{Message, Request as WireRequest};
use freebs_types::{BLOCK, Error, Nanos, NodeId, Peer, Result, ShardId, SnapshotId, VolumeId, limits};
use member::Shard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of blocks that one reader asks for at once. Less than a driver's window: who reads the past reads in bulk, and
/// several readers may share a link.
pub const WINDOW_BYTES: usize = 16 << 20;

/// Set in the number of each question of a reader, and of no driver.
const MARK: u64 = 1 << 47;

/// Everything that a reader is started with.
#[derive(Clone, Debug)]
pub struct PastConfig {
    /// The reader's number among those of its process that are open: it is in the number of each question.
    pub number: u16,
    /// The volume as it was when the snapshot was taken, but for the members of its shards, which are those of today:
    /// `Event::Volume` brings newer ones. All that may have a copy, those first that are known to have everything.
    pub volume: VolumeSpec,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// One cut for each shard.
    pub cuts: Vec<Cut>,
    /// Workers of each node; 1 for nodes that are not named.
    pub workers: BTreeMap<NodeId, u16>,
    /// The node that this reader runs in: preferred.
    pub local: Option<NodeId>,
    /// A request that has no outcome after this time fails.
    pub request_limit: Nanos,
}

struct Request {
    token: u64,
    deadline: Nanos,
    what: Kind,
    offset: u64,
    len: u64,
    walk: Walk,
    open: usize,
    fetches: Vec<Key>,
    /// Per part its shard and what it brought.
    results: Vec<(usize, Vec<Run>)>,
    error: Option<Error>,
}

enum Kind {
    Read,
    Status,
    Changes(Arc<[Pin]>),
}

/// See the top of this file.
pub struct Past {
    volume: VolumeId,
    snapshot: SnapshotId,
    /// The error is what every request gets.
    layout: Result<Layout>,
    shards: Vec<Shard>,
    by_id: BTreeMap<ShardId, usize>,
    workers: BTreeMap<NodeId, u16>,
    local: Option<NodeId>,
    request_limit: Nanos,
    now: Nanos,
    /// Why nothing is answered any more.
    over: Option<Error>,
    links: BTreeMap<Peer, Link>,
    timers: Timers,
    /// Open requests by number of arrival; so the first one's deadline is the next one.
    requests: BTreeMap<u64, Request>,
    next_request: u64,
    /// Those that are not cut into parts yet, in order of arrival.
    admission: VecDeque<u64>,
    bytes: usize,
    fetches: Slab<Fetch>,
    attempts: BTreeMap<u64, Attempt>,
    next_attempt: u64,
    /// Which member is asked first the next time, among those with equally little to do.
    turn: usize,
    failovers: u64,
}

impl Past {
    /// Begins with the first `step`. A snapshot that can't be read as it is described answers every request so.
    #[must_use]
    pub fn new(config: PastConfig, now: Nanos) -> Self {
        let spec = config.volume;
        let mut layout = Layout::new(spec.size, spec.stripe, spec.shards.len());
        if spec.shards.len() != config.cuts.len() || config.cuts.iter().any(|c| c.version.0 == 0) {
            layout = Err(Error::invalid("the snapshot does not name a version of each shard"));
        }
        let shards = spec.shards.iter().zip(&config.cuts);
        let shards: Vec<_> = shards.map(|(s, cut)| Shard::new(s.id, *cut, &s.members, &config.workers)).collect();
        Self {
            volume: spec.id,
            snapshot: config.snapshot,
            layout,
            by_id: shards.iter().enumerate().map(|(i, s)| (s.id, i)).collect(),
            shards,
            workers: config.workers,
            local: config.local,
            request_limit: config.request_limit,
            now,
            over: None,
            links: BTreeMap::new(),
            timers: Timers::default(),
            requests: BTreeMap::new(),
            next_request: 0,
            admission: VecDeque::new(),
            bytes: 0,
            fetches: Slab::new(),
            attempts: BTreeMap::new(),
            next_attempt: u64::from(config.number) << 48 | MARK,
            turn: 0,
            failovers: 0,
        }
    }

    /// The reader that an answer is for, by the number of its question; `None` if that is a driver's.
    #[must_use]
    pub fn reader_of(question: u64) -> Option<u16> {
        (question & MARK > 0).then_some((question >> 48) as u16)
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
            Event::Volume(spec) => self.members_changed(&spec, out),
            Event::Workers(workers) => self.workers_changed(workers, out),
            Event::Started(nodes) => self.nodes_started(&nodes, out),
            Event::Close => self.end(Error::retry("the snapshot is closed here: open it again"), out),
        }
        if self.over.is_none() {
            if self.links.is_empty() {
                self.contact(out);
            }
            self.fire(out);
            self.admit(out);
        }
    }

    /// Everything that is open, and all that comes later, fails with this.
    pub fn end(&mut self, why: Error, out: &mut Vec<Action>) {
        if self.over.is_some() {
            return;
        }
        for request in std::mem::take(&mut self.requests).into_values() {
            out.push(Action::Done { token: request.token, result: Err(why.clone()) });
        }
        self.over = Some(why);
        self.admission.clear();
        self.bytes = 0;
        self.fetches = Slab::new();
        self.attempts.clear();
        self.timers.clear();
        self.shards.iter_mut().for_each(Shard::forget);
        out.push(Action::Closed);
    }

    /// When `step` wants to be called with `Tick`, if nothing else comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let request = self.requests.first_key_value().map(|(_, r)| r.deadline);
        [request, self.timers.next()].into_iter().flatten().min()
    }

    /// Requests without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Questions that were put to another member because one refused, was silent or had bad bytes.
    #[must_use]
    pub fn failovers(&self) -> u64 {
        self.failovers
    }

    fn message(&mut self, from: Peer, message: Message, out: &mut Vec<Action>) {
        // Only who was asked is listened to.
        if self.over.is_some() || !self.is_up(from) {
            return;
        }
        self.heard(from);
        match message {
            Message::ReadReply(reply) => self.read_reply(from, reply, out),
            Message::Refused(r) => {
                if let (WireRequest::Read(id), Some(&s)) = (r.request, self.by_id.get(&r.shard)) {
                    self.read_refused(from, s, id, r.reason, out);
                }
            }
            // Nothing else is meant for a reader.
            _ => {}
        }
    }

    /// Does what has become due.
    fn fire(&mut self, out: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop(self.now) {
            match timer {
                Timer::Connect(peer) => self.connect_again(peer, out),
                Timer::Reads(s) => self.reads_again(s, out),
                Timer::Hedge(fetch) => self.hedge(fetch, out),
                Timer::Attach(_) | Timer::Follow(_) | Timer::Stall(_) | Timer::Lease(_) | Timer::Group(_) => {}
            }
        }
        while let Some((&id, request)) = self.requests.first_key_value()
            && request.deadline <= self.now
        {
            self.expire(id, out);
        }
    }

    fn client(&mut self, token: u64, op: Op, out: &mut Vec<Action>) {
        if let Err(error) = self.accept(token, op, out) {
            out.push(Action::Done { token, result: Err(error) });
        }
    }

    fn accept(&mut self, token: u64, op: Op, out: &mut Vec<Action>) -> Result<()> {
        if let Some(why) = &self.over {
            return Err(why.clone());
        }
        let layout = self.layout.clone()?;
        let (what, offset, len) = match op {
            Op::Read { offset, len } if len > REQUEST_BYTES_MAX => {
                return Err(Error::invalid(format!("a read of {len} bytes at {offset}: 64 MiB are the most")));
            }
            Op::Read { offset, len } => (Kind::Read, offset, len),
            Op::Status { offset, len } => (Kind::Status, offset, len),
            Op::Changes { offset, len, since } => {
                let fits = since.len() == self.shards.len() && since.iter().all(|p| p.version.0 > 0);
                if !fits {
                    return Err(Error::invalid("the earlier snapshot is of another volume"));
                }
                if since.iter().zip(&self.shards).any(|(p, s)| p.version > s.cut.version) {
                    return Err(Error::invalid("the snapshot that changes are asked from is the later one"));
                }
                (Kind::Changes(since), offset, len)
            }
            // Nothing is ever on its way to stable storage.
            Op::Flush => (Kind::Status, 0, 0),
            Op::Write { .. } | Op::Trim { .. } | Op::Zero { .. } | Op::Interval { .. } => {
                return Err(Error::invalid("a snapshot is read-only"));
            }
        };
        if !layout.holds(offset, len) {
            return Err(Error::invalid("the request reaches beyond the end of the snapshot"));
        }
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Error::retry("too many requests wait already"));
        }
        if len == 0 {
            let reply = match what {
                Kind::Read => Reply::Read(Vec::new()),
                _ => Reply::Done,
            };
            out.push(Action::Done { token, result: Ok(reply) });
            return Ok(());
        }
        let (len, granule) = match what {
            Kind::Read => (len, GRANULE_DATA),
            _ => (len.min(STATUS_BYTES_MAX), GRANULE_STATUS),
        };
        let request = Request {
            token,
            deadline: self.now.plus(self.request_limit),
            what,
            offset,
            len,
            walk: layout.walk(offset, len, granule),
            open: 0,
            fetches: Vec::new(),
            results: Vec::new(),
            error: None,
        };
        self.requests.insert(self.next_request, request);
        self.admission.push_back(self.next_request);
        self.next_request += 1;
        Ok(())
    }

    /// Cuts waiting requests into parts, in order of arrival, as far as the window allows.
    fn admit(&mut self, out: &mut Vec<Action>) {
        while let Some(&id) = self.admission.front() {
            let Ok(layout) = self.layout else { return };
            let Some(request) = self.requests.get_mut(&id) else {
                self.admission.pop_front();
                continue;
            };
            let next = if request.error.is_some() { None } else { layout.next(request.walk) };
            let Some((span, walk)) = next else {
                self.admission.pop_front();
                self.finish_if_ended(id, out);
                continue;
            };
            let charge = if matches!(request.what, Kind::Read) { span.len as usize } else { BLOCK };
            let is_full = self.bytes > 0 && self.bytes + charge > WINDOW_BYTES;
            if is_full || self.shards[span.shard].parts >= limits::DRIVER_REQUESTS_MAX {
                return;
            }
            request.walk = walk;
            self.begin(id, span, charge, out);
        }
    }

    fn begin(&mut self, id: u64, span: Span, charge: usize, out: &mut Vec<Action>) {
        let request = self.requests.get_mut(&id).expect("the caller has just seen it");
        let (range, skip) = span.blocks();
        let wanted = match &request.what {
            Kind::Read => Wanted::Data,
            Kind::Status => Wanted::Status,
            Kind::Changes(since) => Wanted::Changes(since[span.shard]),
        };
        let index = request.results.len();
        let fetch = Fetch::new((id, index), span.shard, (range, skip, span.len), wanted, charge);
        let key = self.fetches.insert(fetch);
        request.open += 1;
        request.fetches.push(key);
        request.results.push((span.shard, Vec::new()));
        self.bytes += charge;
        self.shards[span.shard].parts += 1;
        self.go_on(key, out);
    }

    /// Ends a part: its share of the window is free again, its request hears of it.
    fn end_part(&mut self, key: Key, result: Result<Vec<Run>>, out: &mut Vec<Action>) {
        let Some((id, index)) = self.drop_fetch(key) else { return };
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.open -= 1;
        match result {
            Ok(runs) => request.results[index].1 = runs,
            Err(error) => request.error = request.error.take().or(Some(error)),
        }
        self.finish_if_ended(id, out);
    }

    fn finish_if_ended(&mut self, id: u64, out: &mut Vec<Action>) {
        let (Some(request), Ok(layout)) = (self.requests.get(&id), &self.layout) else { return };
        let layout = *layout;
        if request.open > 0 || (request.error.is_none() && layout.next(request.walk).is_some()) {
            return;
        }
        let Some(request) = self.requests.remove(&id) else { return };
        let Request { offset, len, results, .. } = request;
        let result = match (request.error, request.what) {
            (Some(error), _) => Err(error),
            (None, Kind::Read) => Ok(Reply::Read(pieces(assemble(&layout, offset, len, results)))),
            (None, _) => Ok(Reply::Status(status(assemble(&layout, offset, len, results)))),
        };
        out.push(Action::Done { token: request.token, result });
    }

    /// The limit has passed: the client is told what is known of the reason.
    fn expire(&mut self, id: u64, out: &mut Vec<Action>) {
        let Some(request) = self.requests.remove(&id) else { return };
        let mut error = request.error;
        for key in request.fetches {
            let damaged = self.fetches.get(key).is_some_and(Fetch::met_damage);
            error = error.or_else(|| damaged.then(corrupt));
            self.drop_fetch(key);
        }
        let late = || Error::retry("no member that has the snapshot answered in time; see `freebs status`");
        out.push(Action::Done { token: request.token, result: Err(error.unwrap_or_else(late)) });
    }
}

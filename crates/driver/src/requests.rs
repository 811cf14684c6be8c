//! Requests of clients and the parts they are cut into.
//!
//! A request waits for admission (windows), is cut into parts of one shard each, and is answered when all parts
//! have ended. A part first gets its blocks (`blocks`), then fetches what it needs (`reads`), then, if it writes,
//! goes to the head (`writes`).
//!
//! Invariants: parts get their blocks in order of arrival of their requests; `open` counts the parts of a request
//! that have not ended; a part without a request is a write that was given up, and nothing but its fate ends it.

use crate::blocks::Use;
use crate::group::Doing;
use crate::plan::{Placed, Plan, Progress};
use crate::slab::Key;
use crate::stripe::{Layout, Span, Walk};
use crate::updates::{Blocks, Content, edges};
use crate::{
    Action, Driver, Mutant, Op, Piece, REQUEST_BYTES_MAX, REQUESTS_MAX, Reply, STATUS_BYTES_MAX, State, StatusRun,
    closed, fenced,
};
use bytes::Bytes;
use freebs_format::ExtentKind;
use freebs_types::{BLOCK, BlockRange, Error, Nanos, RequestNumber, Result, limits};
use std::collections::{BTreeMap, VecDeque};

/// Parts of reads and writes end at multiples of this, so aligned pieces up to that size never tear.
pub(crate) const GRANULE_DATA: u64 = 1 << 20;
/// Trims and zeroes carry no data, so their parts may be long.
const GRANULE_VOID: u64 = 1 << 30;
/// The most that a member answers at once: 64 MiB.
pub(crate) const GRANULE_STATUS: u64 = limits::STATUS_BLOCKS_MAX as u64 * BLOCK as u64;

pub(crate) enum What {
    Read,
    Status,
    Write(Bytes),
    Void(ExtentKind),
    /// The plans are taken out when their parts begin.
    Interval(Option<Vec<Plan>>),
}

pub(crate) struct Request {
    pub token: u64,
    pub deadline: Nanos,
    what: What,
    offset: u64,
    len: u64,
    /// What is not cut into parts yet.
    walk: Walk,
    open: usize,
    parts: Vec<Key>,
    /// Per part its shard and what it brought.
    results: Vec<(usize, Vec<Run>)>,
    error: Option<Error>,
    /// Places of intervals.
    placed: Vec<Placed>,
    /// It has ended, and its answer waits for leases (L1): its place among those.
    pub held: Option<u64>,
}

impl Request {
    pub fn new(token: u64, deadline: Nanos, what: What, offset: u64, len: u64, walk: Walk) -> Self {
        Self {
            token,
            deadline,
            what,
            offset,
            len,
            walk,
            open: 0,
            parts: Vec::new(),
            results: Vec::new(),
            error: None,
            placed: Vec::new(),
            held: None,
        }
    }

    pub fn place(&mut self, placed: Placed) {
        self.placed.push(placed);
    }

    /// An interval over several shards is decided: none of its parts is waited for but the one that ends now.
    pub fn is_decided(&mut self, placed: Vec<Placed>) {
        self.placed = placed;
        self.open = 1;
        self.parts.clear();
    }

    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// The shards that it has touched; some may come several times.
    pub fn shards(&self) -> impl Iterator<Item = usize> {
        self.results.iter().map(|(shard, _)| *shard)
    }
}

/// Bytes of one kind in an answer; `data` is empty unless they are data that were asked for.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub kind: ExtentKind,
    pub bytes: u64,
    pub data: Bytes,
    /// As the member said it.
    pub changed: bool,
}

impl Run {
    fn split_to(&mut self, bytes: u64) -> Self {
        let n = bytes.min(self.bytes);
        let data = if self.data.is_empty() { Bytes::new() } else { self.data.split_to(n as usize) };
        self.bytes -= n;
        Self { bytes: n, data, ..*self }
    }
}

pub(crate) enum Work {
    Read,
    Status,
    /// Not ready yet, perhaps because edges have to be read first.
    Write(Content),
    /// Whole blocks, and the kind of extent that was asked for.
    Ready(Vec<Blocks>, ExtentKind),
    /// An interval that is not ready yet.
    Interval(Box<Progress>),
    /// An interval that is: first blocks and contents.
    Scattered(Vec<(u32, Blocks)>),
}

/// What a request does in one shard, in one piece.
pub(crate) struct Part {
    /// `None`: given up, the client has its error already.
    pub request: Option<u64>,
    /// Place in the request's results.
    pub index: usize,
    pub shard: usize,
    pub range: BlockRange,
    /// The client's bytes begin so far into the first block, and are so many.
    pub skip: usize,
    pub len: u64,
    pub work: Work,
    /// Set when it was first sent (W3).
    pub number: Option<RequestNumber>,
    /// Fetches under way: the read itself or the first edge, and the last edge.
    pub fetches: [Option<Key>; 2],
    /// Old contents of the edges.
    pub old: [Option<Vec<u8>>; 2],
    ticket: Key,
    /// Of an interval, the tickets of its other segments.
    more: Vec<Key>,
    /// Of an interval over several shards.
    pub group: Option<Key>,
    pub doing: Doing,
    /// Bytes in the window.
    charge: usize,
}

impl Part {
    pub fn edges(&self) -> (bool, bool) {
        edges(self.range.len, self.skip, self.len)
    }

    fn tickets(&self) -> impl Iterator<Item = Key> {
        std::iter::once(self.ticket).chain(self.more.iter().copied())
    }

    pub fn tickets_from(&mut self, mut tickets: Vec<Key>) {
        self.ticket = tickets.pop().expect("a part uses blocks");
        self.more = tickets;
    }
}

impl Driver {
    pub(crate) fn client(&mut self, token: u64, op: Op, out: &mut Vec<Action>) {
        if let Err(error) = self.accept(token, op, out) {
            out.push(Action::Done { token, result: Err(error) });
        }
    }

    /// Takes a request in.
    fn accept(&mut self, token: u64, op: Op, out: &mut Vec<Action>) -> Result<()> {
        match self.state {
            State::Open => {}
            State::Fenced => return Err(fenced()),
            State::Closed => return Err(closed()),
        }
        if let Op::Interval { changes } = &op {
            return self.interval(token, changes, out);
        }
        let layout = self.layout.clone()?;
        if matches!(op, Op::Changes { .. }) {
            return Err(Error::invalid("only a snapshot tells what changed"));
        }
        let (what, offset, mut len, granule) = match op {
            // Every write that was answered is durable on A members already (sync mode), so there is nothing to
            // wait for; writes that are not answered yet are none of a flush's business.
            Op::Flush => (What::Void(ExtentKind::Zero), 0, 0, GRANULE_VOID),
            Op::Read { offset, len } => (What::Read, offset, len, GRANULE_DATA),
            Op::Status { offset, len } | Op::Changes { offset, len, .. } => (What::Status, offset, len, GRANULE_STATUS),
            Op::Write { offset, data, fua: _ } => {
                let len = data.len() as u64;
                (What::Write(data), offset, len, GRANULE_DATA)
            }
            Op::Trim { offset, len } => (What::Void(ExtentKind::Trim), offset, len, GRANULE_VOID),
            Op::Zero { offset, len, may_trim } => {
                let kind = if may_trim { ExtentKind::Trim } else { ExtentKind::Zero };
                (What::Void(kind), offset, len, GRANULE_VOID)
            }
            Op::Interval { .. } => return Ok(()),
        };
        if !layout.holds(offset, len) {
            return Err(Error::invalid("the request reaches beyond the end of the volume"));
        }
        if matches!(what, What::Read | What::Write(_)) && len > REQUEST_BYTES_MAX {
            return Err(Error::invalid("the request is longer than 64 MiB"));
        }
        if matches!(what, What::Status) {
            len = len.min(STATUS_BYTES_MAX);
        }
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Error::retry("too many requests wait already"));
        }
        let deadline = self.now.plus(self.request_limit);
        let request = Request::new(token, deadline, what, offset, len, layout.walk(offset, len, granule));
        let id = self.next_request;
        self.next_request += 1;
        self.requests.insert(id, request);
        if len > 0 {
            self.admission.push_back(id);
        } else {
            // It has no parts and waits for nobody's.
            self.answer(id, out);
        }
        Ok(())
    }

    /// Cuts waiting requests into parts, in order of arrival, as far as the windows allow.
    pub(crate) fn admit(&mut self, out: &mut Vec<Action>) {
        while let Some(&id) = self.admission.front() {
            let Ok(layout) = self.layout.clone() else { return };
            let Some(request) = self.requests.get_mut(&id) else {
                self.admission.pop_front();
                continue;
            };
            if let What::Interval(plan) = &mut request.what
                && request.error.is_none()
                && let Some(taken) = plan.take()
            {
                let is_full = |p: &Plan| self.shards[p.shard()].parts >= limits::DRIVER_REQUESTS_MAX;
                let bytes: usize = taken.iter().map(Plan::data_bytes).sum();
                if taken.iter().any(is_full) || (self.bytes > 0 && self.bytes + bytes > limits::DRIVER_WINDOW_BYTES) {
                    *plan = Some(taken);
                    return;
                }
                self.begin_interval(id, taken);
                continue;
            }
            let next = if request.error.is_some() { None } else { layout.next(request.walk) };
            let Some((span, walk)) = next else {
                self.admission.pop_front();
                self.finish_if_ended(id, out);
                continue;
            };
            let charge = match request.what {
                What::Read | What::Write(_) => span.len as usize,
                What::Status | What::Void(_) | What::Interval(_) => BLOCK,
            };
            let shard = &mut self.shards[span.shard];
            if shard.parts >= limits::DRIVER_REQUESTS_MAX
                || (self.bytes > 0 && self.bytes + charge > limits::DRIVER_WINDOW_BYTES)
            {
                return;
            }
            request.walk = walk;
            self.begin(id, &layout, span, charge);
        }
    }

    fn begin(&mut self, id: u64, layout: &Layout, span: Span, charge: usize) {
        let request = self.requests.get_mut(&id).expect("the caller has just seen it");
        let (range, skip) = span.blocks();
        let work = match &request.what {
            What::Read => Work::Read,
            What::Status => Work::Status,
            What::Void(kind) => Work::Write(Content::Void(*kind)),
            What::Interval(_) => return,
            What::Write(data) => {
                let slice = |(at, n): (u64, u64)| {
                    let from = (at - request.offset) as usize;
                    data.slice(from..from + n as usize)
                };
                Work::Write(Content::Data(layout.pieces(span).map(slice).collect()))
            }
        };
        let how = match work {
            Work::Read | Work::Status => Use::Read,
            _ => {
                let (first, last) = edges(range.len, skip, span.len);
                Use::Write { first, last }
            }
        };
        let key = self.insert_part(id, span.shard, range, skip, span.len, work, charge);
        let (ticket, granted) = self.shards[span.shard].blocks.enter(range, how, key);
        self.parts.get_mut(key).expect("was just inserted").ticket = ticket;
        if granted {
            self.runnable.push_back(key);
        }
    }

    /// Adds a part to its request, without tickets yet.
    #[expect(clippy::too_many_arguments, reason = "the fields of a part that differ")]
    pub(crate) fn insert_part(
        &mut self,
        id: u64,
        shard: usize,
        range: BlockRange,
        skip: usize,
        len: u64,
        work: Work,
        charge: usize,
    ) -> Key {
        let request = self.requests.get_mut(&id).expect("the caller has just seen it");
        let part = Part {
            request: Some(id),
            index: request.results.len(),
            shard,
            range,
            skip,
            len,
            work,
            number: None,
            fetches: [None; 2],
            old: [None, None],
            ticket: Key::MIN,
            more: Vec::new(),
            group: None,
            doing: Doing::Nothing,
            charge,
        };
        let key = self.parts.insert(part);
        request.open += 1;
        request.parts.push(key);
        request.results.push((shard, Vec::new()));
        self.bytes += charge;
        self.shards[shard].parts += 1;
        key
    }

    /// The part's blocks are its own: go on with it.
    pub(crate) fn run_part(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get(key) else { return };
        let (range, shard) = (part.range, part.shard);
        match part.work {
            Work::Read => self.fetch(key, 0, shard, range, false, out),
            Work::Status => self.fetch(key, 0, shard, range, true, out),
            Work::Write(_) => {
                let (first, last) = part.edges();
                if !first && !last {
                    return self.enqueue(key, out);
                }
                if first {
                    self.fetch(key, 0, shard, BlockRange { len: 1, ..range }, false, out);
                }
                if last {
                    let at = BlockRange::new(range.start.0 + (range.len - 1), 1);
                    self.fetch(key, 1, shard, at, false, out);
                }
            }
            Work::Interval(_) => self.run_interval(key, out),
            Work::Ready(..) | Work::Scattered(_) => {}
        }
    }

    /// A fetch has brought its blocks.
    pub(crate) fn fetched(&mut self, key: Key, slot: usize, runs: Vec<Run>, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(key) else { return };
        part.fetches[slot] = None;
        if matches!(part.work, Work::Read | Work::Status) {
            let runs = clip(runs, part.skip as u64, part.len);
            return self.end_part(key, Ok(runs), out);
        }
        let mut block = Vec::with_capacity(BLOCK);
        for run in &runs {
            match run.kind {
                ExtentKind::Data => block.extend_from_slice(&run.data),
                _ => block.resize(block.len() + run.bytes as usize, 0),
            }
        }
        if matches!(part.work, Work::Interval(_)) {
            return self.interval_fetched(key, slot, block, out);
        }
        part.old[slot] = Some(block);
        if part.fetches == [None; 2] {
            self.enqueue(key, out);
        }
    }

    /// Ends a part: its blocks and its share of the windows are free again, its request hears of it.
    pub(crate) fn end_part(&mut self, key: Key, result: Result<Vec<Run>>, out: &mut Vec<Action>) {
        if let (Err(error), Some(group)) = (&result, self.parts.get(key).and_then(|p| p.group))
            && self.groups.get(group).is_some()
        {
            return self.fail_group(group, error.clone(), out);
        }
        let Some(part) = self.parts.remove(key) else { return };
        for fetch in part.fetches.into_iter().flatten() {
            self.drop_fetch(fetch);
        }
        let shard = &mut self.shards[part.shard];
        for ticket in part.tickets() {
            shard.blocks.leave(ticket, &mut self.runnable);
        }
        shard.parts -= 1;
        self.bytes -= part.charge;
        let Some(id) = part.request else { return };
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.open -= 1;
        match result {
            Ok(runs) => request.results[part.index].1 = runs,
            Err(error) => request.error = request.error.take().or(Some(error)),
        }
        self.finish_if_ended(id, out);
    }

    fn finish_if_ended(&mut self, id: u64, out: &mut Vec<Action>) {
        let (Some(request), Ok(layout)) = (self.requests.get(&id), &self.layout) else { return };
        let all_cut = request.error.is_some() || layout.next(request.walk).is_none();
        if request.open == 0 && all_cut && request.held.is_none() {
            self.answer(id, out);
        }
    }

    /// Tells the client how it went.
    pub(crate) fn reply(&mut self, id: u64, out: &mut Vec<Action>) {
        let Ok(layout) = self.layout else { return };
        let Some(request) = self.requests.remove(&id) else { return };
        if let Some(place) = request.held {
            self.held_back.remove(&place);
        }
        let result = match request.error {
            Some(error) => Err(error),
            None => Ok(match request.what {
                What::Write(_) | What::Void(_) => Reply::Done,
                What::Interval(_) => Reply::Committed(request.placed),
                What::Read => Reply::Read(pieces(assemble(&layout, request.offset, request.len, request.results))),
                What::Status => Reply::Status(status(assemble(&layout, request.offset, request.len, request.results))),
            }),
        };
        out.push(Action::Done { token: request.token, result });
    }

    /// The limit has passed (CONTRACT 15): the client gets its error. What was sent to a head may still happen, so
    /// it keeps its number and its blocks until its fate is known (R3).
    pub(crate) fn expire(&mut self, id: u64, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let parts = std::mem::take(&mut request.parts);
        let mut error = request.error.take();
        let token = request.token;
        if let Some(place) = request.held {
            self.held_back.remove(&place);
        }
        self.requests.remove(&id);
        let forget = self.mutated(Mutant::ForgetGivenUp);
        if let Some(group) = self.group_of(&parts) {
            return self.expire_group(group, (token, error), parts, out);
        }
        for key in parts {
            let Some(part) = self.parts.get_mut(key) else { continue };
            part.request = None;
            if part.number.is_none() {
                error = error.or_else(|| self.corrupt_seen(key));
                self.end_part(key, Ok(Vec::new()), out);
            } else if forget {
                self.forget_write(key);
                self.end_part(key, Ok(Vec::new()), out);
            } else {
                let (shard, tickets): (_, Vec<_>) = (part.shard, part.tickets().collect());
                self.counters.given_up += 1;
                tickets.into_iter().for_each(|ticket| self.shards[shard].blocks.stick(ticket));
            }
        }
        out.push(Action::Done { token, result: Err(error.unwrap_or_else(late)) });
    }

    /// The same of an interval over several shards. Before it is asked to be decided it is aborted, and that is sure.
    fn expire_group(
        &mut self,
        group: Key,
        (token, mut error): (u64, Option<Error>),
        parts: Vec<Key>,
        out: &mut Vec<Action>,
    ) {
        for key in parts {
            error = error.or_else(|| self.corrupt_seen(key));
            let Some(part) = self.parts.get_mut(key) else { continue };
            part.request = None;
            let (shard, tickets): (_, Vec<_>) = (part.shard, part.tickets().collect());
            self.counters.given_up += 1;
            tickets.into_iter().for_each(|ticket| self.shards[shard].blocks.stick(ticket));
        }
        let aborted = self.group_expired(group, out);
        let error = if aborted { error.unwrap_or_else(crate::group::late) } else { late() };
        out.push(Action::Done { token, result: Err(error) });
    }
}

fn late() -> Error {
    Error::retry("no quorum of the members answered in time")
}

/// The bytes `[skip, skip + len)` of some runs.
pub(crate) fn clip(runs: Vec<Run>, mut skip: u64, mut len: u64) -> Vec<Run> {
    let mut out = Vec::with_capacity(runs.len());
    for mut run in runs {
        let before = run.split_to(skip).bytes;
        skip -= before;
        let now = run.split_to(len);
        len -= now.bytes;
        if now.bytes > 0 {
            out.push(now);
        }
    }
    out
}

/// Puts what the shards brought in the client's order.
pub(crate) fn assemble(layout: &Layout, offset: u64, len: u64, mut results: Vec<(usize, Vec<Run>)>) -> Vec<Run> {
    if results.len() == 1 {
        return results.pop().map(|(_, runs)| runs).unwrap_or_default();
    }
    let mut by_shard: BTreeMap<usize, VecDeque<Run>> = BTreeMap::new();
    for (shard, runs) in results {
        by_shard.entry(shard).or_default().extend(runs);
    }
    let mut out = Vec::new();
    for (_, mut wanted, shard) in layout.runs(offset, offset + len) {
        let queue = by_shard.get_mut(&shard).expect("every shard of the range has brought something");
        while wanted > 0 {
            let run = queue.front_mut().expect("a part brings all of its bytes");
            let taken = run.split_to(wanted);
            wanted -= taken.bytes;
            if run.bytes == 0 {
                queue.pop_front();
            }
            out.push(taken);
        }
    }
    out
}

pub(crate) fn pieces(runs: Vec<Run>) -> Vec<Piece> {
    let mut out = Vec::with_capacity(runs.len());
    for run in runs {
        match (run.kind, out.last_mut()) {
            (ExtentKind::Data, _) => out.push(Piece::Data(run.data)),
            (_, Some(Piece::Zero(bytes))) => *bytes += run.bytes,
            _ => out.push(Piece::Zero(run.bytes)),
        }
    }
    out
}

pub(crate) fn status(runs: Vec<Run>) -> Vec<StatusRun> {
    let mut out: Vec<StatusRun> = Vec::with_capacity(runs.len());
    for run in runs {
        let (hole, zero) = (run.kind == ExtentKind::Trim, run.kind != ExtentKind::Data);
        let now = StatusRun { bytes: run.bytes, hole, zero, changed: run.changed };
        match out.last_mut() {
            Some(last) if (StatusRun { bytes: now.bytes, ..*last }) == now => last.bytes += now.bytes,
            _ => out.push(now),
        }
    }
    out
}

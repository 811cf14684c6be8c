//! Blocks on their way from members.
//!
//! A fetch is one run of blocks that a part wants; an attempt is one question to one member. A fetch asks one
//! member, another one on refusal, mismatch or silence, and takes the first good answer. A member that was silent is
//! passed over until it answers a probe in time: one that is frozen costs the reads that it has, and no later ones.
//!
//! Invariants: a member is asked only when it is known to have, durably in the present view, everything that this
//! driver has completed (R1), and only behind the barrier (R2). Bytes are handed on only after their CRCs matched.
//! An answer counts whenever it comes, even from a view that is over: the fetch has its blocks for itself (R3), so
//! they have had one value since it began.

use crate::members::{Backoff, Silence};
use crate::requests::Run;
use crate::shard::Shard;
use crate::slab::Key;
use crate::timers::Timer;
use crate::{Action, Driver, Mutant, timing};
use bytes::Bytes;
use freebs_format::wire::{Message, ReadReply, ReadRequest, Refusal};
use freebs_format::{ExtentKind, Pin, block_crc};
use freebs_types::{BLOCK, BlockRange, Error, Nanos, NodeId, Peer, Sequence, ViewNumber};

/// A member with more reads than this without an answer is passed over while others have fewer.
pub(crate) const OUTSTANDING_MAX: u32 = 64;
/// Attempts of one fetch that are waited for at the same time.
pub(crate) const ATTEMPTS_MAX: usize = 8;

/// A run of blocks that a part wants.
pub(crate) struct Fetch {
    part: Key,
    slot: usize,
    shard: usize,
    range: BlockRange,
    status_only: bool,
    /// The bits below are places in this view.
    view: ViewNumber,
    /// Members that were asked in this round.
    tried: u8,
    /// Members whose bytes did not match.
    bad: u8,
    tries: u32,
    rest: Backoff,
    waiting: bool,
    due: Option<Nanos>,
    /// Attempts under way, oldest first.
    attempts: [u64; ATTEMPTS_MAX],
    live: usize,
}

/// A question to a member.
pub(crate) struct Attempt {
    fetch: Key,
    shard: usize,
    node: NodeId,
    peer: Peer,
}

impl Shard {
    fn readable(&self) -> bool {
        self.known && self.passed
    }
}

impl Driver {
    pub(crate) fn fetch(
        &mut self,
        part: Key,
        slot: usize,
        shard: usize,
        range: BlockRange,
        status_only: bool,
        out: &mut Vec<Action>,
    ) {
        let fetch = Fetch {
            part,
            slot,
            shard,
            range,
            status_only,
            view: self.shards[shard].view,
            tried: 0,
            bad: 0,
            tries: 0,
            rest: Backoff::default(),
            waiting: false,
            due: None,
            attempts: [0; ATTEMPTS_MAX],
            live: 0,
        };
        let key = self.fetches.insert(fetch);
        self.parts.get_mut(part).expect("a part fetches for itself").fetches[slot] = Some(key);
        self.go_on(key, out);
    }

    /// Asks the next member, or waits until there is one.
    pub(crate) fn go_on(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        let shard = &self.shards[fetch.shard];
        if fetch.view != shard.view {
            (fetch.view, fetch.tried, fetch.bad) = (shard.view, 0, 0);
        }
        if let Some(m) = self.choose(key) {
            self.attempt(key, m, out);
            return self.probe(key, out);
        }
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        if fetch.live > 0 {
            return;
        }
        // If everybody was asked, a new round begins after a while.
        let again = (fetch.tried != 0).then(|| fetch.rest.next());
        fetch.tried = 0;
        self.wait(key, again);
    }

    /// The member to ask: the local one, else the shard's own, else whoever has least to do.
    fn choose(&self, key: Key) -> Option<usize> {
        let fetch = self.fetches.get(key)?;
        let shard = &self.shards[fetch.shard];
        let n = shard.members.len();
        if !shard.readable() || n == 0 {
            return None;
        }
        let local = self.local.and_then(|node| shard.members.iter().position(|m| m.node == node));
        let first = local.unwrap_or(((shard.id.volume.0 + u64::from(shard.id.index)) % n as u64) as usize);
        let fit = |m: &usize| fetch.tried & (1 << m) == 0 && self.fits(shard, *m);
        let in_turn = || (0..n).map(|i| (first + i) % n).filter(fit);
        let awake = || in_turn().filter(|m| shard.members[*m].silence.is_none());
        awake()
            .find(|m| shard.members[*m].reads < OUTSTANDING_MAX)
            .or_else(|| awake().min_by_key(|m| shard.members[*m].reads))
            .or_else(|| in_turn().min_by_key(|m| shard.members[*m].reads))
    }

    /// A silent member gets a read that another one answers, too, so that nobody waits for it.
    fn probe(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get(key) else { return };
        let shard = &self.shards[fetch.shard];
        let due = |m: &usize| shard.members[*m].silence.is_some_and(|s| self.now >= s.probe_at);
        let fit = |m: &usize| fetch.tried & (1 << m) == 0 && self.fits(shard, *m);
        if let Some(m) = (0..shard.members.len()).find(|m| due(m) && fit(m)) {
            self.attempt(key, m, out);
        }
    }

    /// Whether a member may be read from now (R1).
    fn fits(&self, shard: &Shard, m: usize) -> bool {
        let member = &shard.members[m];
        let has_all = member.durable.is_some_and(|d| d >= shard.floor) || self.mutated(Mutant::NoReadFloor);
        has_all && self.now >= member.rest_until && self.is_up(member.peer)
    }

    fn attempt(&mut self, key: Key, m: usize, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get(key) else { return };
        if fetch.live == ATTEMPTS_MAX {
            self.end_attempt(fetch.attempts[0]);
        }
        let id = self.next_attempt;
        self.next_attempt += 1;
        let no_floor = self.mutated(Mutant::NoReadFloor);
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        let shard = &mut self.shards[fetch.shard];
        let member = &mut shard.members[m];
        member.reads += 1;
        if member.silence.is_some() {
            member.silence =
                Some(Silence { probe_at: self.now.plus(timing::PROBE_EVERY), asked: Some((id, self.now)) });
        }
        fetch.tried |= 1 << m;
        fetch.attempts[fetch.live] = id;
        fetch.live += 1;
        let patience = Nanos(timing::HEDGE_AFTER.0 << fetch.tries.min(3));
        self.timers.arm(&mut fetch.due, self.now.plus(patience), Timer::Hedge(key));
        self.attempts.insert(id, Attempt { fetch: key, shard: fetch.shard, node: member.node, peer: member.peer });
        let message = Message::Read(ReadRequest {
            shard: shard.id,
            view: shard.view,
            generation: self.generation,
            id,
            floor: if no_floor { Sequence(0) } else { shard.floor },
            range: fetch.range,
            status_only: fetch.status_only,
            at: Pin::default(),
            since: Pin::default(),
        });
        out.push(Action::Send { to: member.peer, message });
    }

    /// Forgets an attempt; its answer will mean nothing.
    fn end_attempt(&mut self, id: u64) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id)?;
        if let Some(member) = self.shards[attempt.shard].member_of(attempt.node) {
            member.reads = member.reads.saturating_sub(1);
        }
        if let Some(fetch) = self.fetches.get_mut(attempt.fetch)
            && let Some(at) = fetch.attempts[..fetch.live].iter().position(|a| *a == id)
        {
            fetch.attempts.copy_within(at + 1..fetch.live, at);
            fetch.live -= 1;
        }
        Some(attempt)
    }

    /// Forgets the attempts at a peer. Returns the fetches they were made for.
    pub(crate) fn lose_attempts(&mut self, peer: Peer) -> Vec<Key> {
        let lost: Vec<_> = self.attempts.iter().filter(|(_, a)| a.peer == peer).map(|(id, _)| *id).collect();
        lost.into_iter().filter_map(|id| self.end_attempt(id)).map(|a| a.fetch).collect()
    }

    pub(crate) fn drop_fetch(&mut self, key: Key) {
        let Some(mut fetch) = self.fetches.remove(key) else { return };
        self.timers.disarm(&mut fetch.due, Timer::Hedge(key));
        for id in &fetch.attempts[..fetch.live] {
            self.end_attempt(*id);
        }
    }

    /// Lets a fetch wait for members, and try again after a time if there is one to wait for.
    pub(crate) fn wait(&mut self, key: Key, again: Option<Nanos>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        self.timers.disarm(&mut fetch.due, Timer::Hedge(key));
        let s = fetch.shard;
        let shard = &mut self.shards[s];
        if !std::mem::replace(&mut fetch.waiting, true) {
            shard.waiting.push(key);
        }
        let rested = shard.members.iter().map(|m| m.rest_until).filter(|t| *t > self.now).min();
        let at = [again.map(|d| self.now.plus(d)), rested].into_iter().flatten().min();
        if let Some(at) = at
            && shard.reads_due.is_none_or(|due| at < due)
        {
            self.timers.arm(&mut shard.reads_due, at, Timer::Reads(s));
        }
    }

    pub(crate) fn reads_again(&mut self, s: usize, out: &mut Vec<Action>) {
        self.shards[s].reads_due = None;
        self.wake_reads(s, out);
    }

    /// Something has changed that fetches without a member may have waited for.
    pub(crate) fn wake_reads(&mut self, s: usize, out: &mut Vec<Action>) {
        let shard = &self.shards[s];
        if shard.waiting.is_empty() || !shard.readable() {
            return;
        }
        for key in std::mem::take(&mut self.shards[s].waiting) {
            if let Some(fetch) = self.fetches.get_mut(key) {
                fetch.waiting = false;
                self.go_on(key, out);
            }
        }
    }

    /// No answer for long: another member is asked, too, or the same ones again if a message was lost.
    pub(crate) fn hedge(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        fetch.due = None;
        fetch.tries += 1;
        let patience = Nanos(timing::HEDGE_AFTER.0 << fetch.tries.min(3));
        self.timers.arm(&mut fetch.due, self.now.plus(patience), Timer::Hedge(key));
        // The timer was armed with the newest of them, so all of them have been waited for.
        for id in &fetch.attempts[..fetch.live] {
            let Some(a) = self.attempts.get(id) else { continue };
            if let Some(member) = self.shards[a.shard].member_of(a.node) {
                member.silence.get_or_insert(Silence { probe_at: self.now.plus(timing::PROBE_EVERY), asked: None });
            }
        }
        if let Some(m) = self.choose(key) {
            self.counters.read_failovers += 1;
            return self.attempt(key, m, out);
        }
        // Everybody was asked: the next time they may be asked again.
        if let Some(fetch) = self.fetches.get_mut(key) {
            fetch.tried = 0;
        }
    }

    /// A member has answered a read, perhaps one that nobody waits for any more.
    fn answered(&mut self, from: Peer, s: usize, id: u64) {
        let now = self.now;
        let shard = &mut self.shards[s];
        let Some(m) = shard.position(from) else { return };
        let member = &mut shard.members[m];
        let asked = member.silence.and_then(|s| s.asked);
        if asked.is_some_and(|(probe, at)| probe == id && now.since(at) < timing::HEDGE_AFTER) {
            member.silence = None;
        }
    }

    pub(crate) fn read_reply(&mut self, from: Peer, reply: ReadReply, out: &mut Vec<Action>) {
        if let Some(s) = self.by_id.get(&reply.shard).copied() {
            self.answered(from, s, reply.id);
        }
        let Some(attempt) = self.attempts.get(&reply.id) else { return };
        if attempt.peer != from || self.shards[attempt.shard].id != reply.shard {
            return;
        }
        let Some(attempt) = self.end_attempt(reply.id) else { return };
        let Some(fetch) = self.fetches.get(attempt.fetch) else { return };
        let (part, slot) = (fetch.part, fetch.slot);
        match check(reply, fetch.range, fetch.status_only, self.mutated(Mutant::TrustBytes)) {
            Some(runs) => {
                if let Some(member) = self.shards[attempt.shard].member_of(attempt.node) {
                    member.rest = Backoff::default();
                }
                self.drop_fetch(attempt.fetch);
                self.fetched(part, slot, runs, out);
            }
            None => self.bad_answer(&attempt, out),
        }
    }

    /// A member's bytes are not what they should be; the next one is asked. If all of them are bad, that is it.
    fn bad_answer(&mut self, attempt: &Attempt, out: &mut Vec<Action>) {
        self.counters.crc_errors += 1;
        let Some(fetch) = self.fetches.get_mut(attempt.fetch) else { return };
        let shard = &self.shards[fetch.shard];
        if fetch.view == shard.view
            && let Some(m) = shard.members.iter().position(|m| m.node == attempt.node)
        {
            fetch.bad |= 1 << m;
        }
        if fetch.bad.count_ones() as usize == shard.members.len() {
            let part = fetch.part;
            return self.end_part(part, Err(corrupt()), out);
        }
        self.counters.read_failovers += 1;
        self.go_on(attempt.fetch, out);
    }

    pub(crate) fn read_refused(&mut self, from: Peer, s: usize, id: u64, reason: Refusal, out: &mut Vec<Action>) {
        self.answered(from, s, id);
        if !self.attempts.get(&id).is_some_and(|a| a.peer == from && a.shard == s) {
            return;
        }
        let Some(attempt) = self.end_attempt(id) else { return };
        match reason {
            Refusal::Corrupt => return self.bad_answer(&attempt, out),
            Refusal::Invalid => {
                let Some(fetch) = self.fetches.get(attempt.fetch) else { return };
                let error = Error::invalid("a member of the shard does not understand this read");
                return self.end_part(fetch.part, Err(error), out);
            }
            _ => {}
        }
        let now = self.now;
        if let Some(member) = self.shards[s].member_of(attempt.node)
            && member.rest_until <= now
        {
            member.rest_until = now.plus(member.rest.next());
        }
        self.counters.read_failovers += 1;
        self.go_on(attempt.fetch, out);
    }

    /// What a part that is out of time has to say of its fetches, if it is more than that.
    pub(crate) fn corrupt_seen(&self, part: Key) -> Option<Error> {
        let fetches = self.parts.get(part)?.fetches.into_iter().flatten();
        let bad = fetches.filter_map(|f| self.fetches.get(f)).any(|f| f.bad != 0);
        bad.then(corrupt)
    }
}

pub(crate) fn corrupt() -> Error {
    Error::corrupt("no member has these blocks with matching checksums")
}

/// The runs of an answer, if it is what was asked for and every block matches its CRC.
pub(crate) fn check(reply: ReadReply, range: BlockRange, status_only: bool, trust: bool) -> Option<Vec<Run>> {
    let total: u64 = reply.pieces.iter().map(|p| u64::from(p.blocks)).sum();
    if total != u64::from(range.len) || reply.pieces.iter().any(|p| p.blocks == 0) {
        return None;
    }
    let mut runs = Vec::with_capacity(reply.pieces.len());
    let mut data = reply.data.into_iter();
    let mut crcs = reply.crcs.iter();
    let mut rest = Bytes::new();
    for piece in &reply.pieces {
        let bytes = u64::from(piece.blocks) * BLOCK as u64;
        let (kind, changed) = (piece.kind, piece.changed);
        if status_only || kind != ExtentKind::Data {
            runs.push(Run { kind, bytes, data: Bytes::new(), changed });
            continue;
        }
        let mut wanted = bytes as usize;
        while wanted > 0 {
            if rest.is_empty() {
                rest = data.next()?;
            }
            let now = rest.split_to(rest.len().min(wanted));
            if now.is_empty() || !now.len().is_multiple_of(BLOCK) {
                return None;
            }
            for block in now.chunks_exact(BLOCK) {
                let crc = *crcs.next()?;
                if block_crc(block) != crc && !trust {
                    return None;
                }
            }
            wanted -= now.len();
            runs.push(Run { kind, bytes: now.len() as u64, data: now, changed });
        }
    }
    let nothing_left = rest.is_empty() && data.all(|d| d.is_empty()) && crcs.next().is_none();
    (status_only || nothing_left).then_some(runs)
}

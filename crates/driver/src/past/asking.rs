//! Blocks of the past on their way from members. A fetch asks one member, another one on refusal, mismatch or silence, and
//! takes the first good answer.

use super::Past;
use super::fetch::{Attempt, Wanted};
use crate::members::Backoff;
use crate::reads::{ATTEMPTS_MAX, check, corrupt};
use crate::requests::clip;
use crate::slab::Key;
use crate::timers::Timer;
use crate::{Action, timing};
use freebs_format::Pin;
use freebs_format::wire::{Message, ReadReply, ReadRequest, Refusal};
use freebs_types::{Error, Generation, Nanos, Peer, ViewNumber};

impl Past {
    /// Asks the next member, or waits until there is one.
    pub(super) fn go_on(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        let shard = &self.shards[fetch.shard];
        if fetch.epoch != shard.epoch {
            (fetch.epoch, fetch.tried, fetch.bad, fetch.gone) = (shard.epoch, 0, 0, 0);
        }
        if !shard.members.is_empty() && fetch.useless().count_ones() as usize == shard.members.len() {
            let why = if fetch.bad > 0 { corrupt() } else { Error::not_found(NOT_KEPT) };
            return self.end_part(key, Err(why), out);
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

    /// A silent member gets a question that another one answers, too, so that nobody waits for it.
    fn probe(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get(key) else { return };
        let members = &self.shards[fetch.shard].members;
        let due = |m: &usize| members[*m].silence.is_some_and(|s| self.now >= s.probe_at);
        if let Some(m) = (0..members.len()).find(|m| due(m) && self.may_ask(fetch, *m)) {
            self.attempt(key, m, out);
        }
    }

    fn attempt(&mut self, key: Key, m: usize, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get(key) else { return };
        if fetch.live == ATTEMPTS_MAX {
            self.end_attempt(fetch.attempts[0]);
        }
        let id = self.next_attempt;
        self.next_attempt += 1;
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        let shard = &mut self.shards[fetch.shard];
        let (node, peer) = shard.asked(m, id, self.now);
        fetch.tried |= 1 << m;
        fetch.attempts[fetch.live] = id;
        fetch.live += 1;
        let patience = Nanos(timing::HEDGE_AFTER.0 << fetch.tries.min(3));
        self.timers.arm(&mut fetch.due, self.now.plus(patience), Timer::Hedge(key));
        self.attempts.insert(id, Attempt { fetch: key, shard: fetch.shard, node, peer });
        let since = if let Wanted::Changes(pin) = fetch.wanted { pin } else { Pin::default() };
        let message = Message::Read(ReadRequest {
            shard: shard.id,
            view: ViewNumber(0),
            generation: Generation(0),
            id,
            floor: shard.cut.sequence,
            range: fetch.range,
            status_only: !matches!(fetch.wanted, Wanted::Data),
            at: Pin { version: shard.cut.version, snapshot: self.snapshot },
            since,
        });
        out.push(Action::Send { to: peer, message });
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

    /// Forgets the attempts at a peer. Returns the fetches that they were made for.
    pub(super) fn lose_attempts(&mut self, peer: Peer) -> Vec<Key> {
        let lost: Vec<_> = self.attempts.iter().filter(|(_, a)| a.peer == peer).map(|(id, _)| *id).collect();
        let mut fetches = Vec::with_capacity(lost.len());
        for id in lost {
            let Some(attempt) = self.end_attempt(id) else { continue };
            // It never said no: as soon as it can be reached again, it may be asked again in the same round.
            let place = self.shards[attempt.shard].members.iter().position(|m| m.node == attempt.node);
            if let (Some(m), Some(fetch)) = (place, self.fetches.get_mut(attempt.fetch)) {
                fetch.tried &= !(1 << m);
            }
            fetches.push(attempt.fetch);
        }
        fetches
    }

    /// Ends a fetch and all its questions: the request that it was for, and its place there.
    pub(super) fn drop_fetch(&mut self, key: Key) -> Option<(u64, usize)> {
        let mut fetch = self.fetches.remove(key)?;
        self.timers.disarm(&mut fetch.due, Timer::Hedge(key));
        for id in &fetch.attempts[..fetch.live] {
            self.end_attempt(*id);
        }
        self.bytes -= fetch.charge;
        self.shards[fetch.shard].parts -= 1;
        Some((fetch.request, fetch.index))
    }

    /// No answer for long: another member is asked, too, or the same ones again if a message was lost.
    pub(super) fn hedge(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        fetch.due = None;
        fetch.tries += 1;
        let patience = Nanos(timing::HEDGE_AFTER.0 << fetch.tries.min(3));
        self.timers.arm(&mut fetch.due, self.now.plus(patience), Timer::Hedge(key));
        // The timer was armed with the newest of them, so all of them have been waited for.
        for id in &fetch.attempts[..fetch.live] {
            let Some(a) = self.attempts.get(id) else { continue };
            self.shards[a.shard].is_silent(a.node, self.now);
        }
        let mut next = self.choose(key);
        if next.is_none() {
            // Everybody was asked: a message may be lost, or somebody may have it by now.
            self.fetches.get_mut(key).expect("just seen").tried = 0;
            next = self.choose(key);
        }
        if let Some(m) = next {
            self.failovers += 1;
            self.attempt(key, m, out);
        }
    }

    pub(super) fn read_reply(&mut self, from: Peer, reply: ReadReply, out: &mut Vec<Action>) {
        if let Some(s) = self.by_id.get(&reply.shard).copied() {
            self.shards[s].answered(from, reply.id, self.now);
        }
        let Some(attempt) = self.attempts.get(&reply.id) else { return };
        if attempt.peer != from || self.shards[attempt.shard].id != reply.shard {
            return;
        }
        let Some(attempt) = self.end_attempt(reply.id) else { return };
        let Some(fetch) = self.fetches.get(attempt.fetch) else { return };
        let (skip, len) = (fetch.skip as u64, fetch.len);
        match check(reply, fetch.range, !matches!(fetch.wanted, Wanted::Data), false) {
            Some(runs) => {
                if let Some(member) = self.shards[attempt.shard].member_of(attempt.node) {
                    member.rest = Backoff::default();
                }
                self.end_part(attempt.fetch, Ok(clip(runs, skip, len)), out);
            }
            None => self.is_useless(&attempt, true, out),
        }
    }

    /// A member's bytes are not what they should be, or it does not keep the version; the next one is asked. If all of them
    /// are so, that is it.
    fn is_useless(&mut self, attempt: &Attempt, is_bad: bool, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(attempt.fetch) else { return };
        let shard = &self.shards[fetch.shard];
        let place = shard.members.iter().position(|m| m.node == attempt.node);
        if let Some(m) = place.filter(|_| fetch.epoch == shard.epoch) {
            *(if is_bad { &mut fetch.bad } else { &mut fetch.gone }) |= 1 << m;
        }
        self.failovers += 1;
        self.go_on(attempt.fetch, out);
    }

    pub(super) fn read_refused(&mut self, from: Peer, s: usize, id: u64, reason: Refusal, out: &mut Vec<Action>) {
        self.shards[s].answered(from, id, self.now);
        if !self.attempts.get(&id).is_some_and(|a| a.peer == from && a.shard == s) {
            return;
        }
        let Some(attempt) = self.end_attempt(id) else { return };
        match reason {
            Refusal::Corrupt => return self.is_useless(&attempt, true, out),
            Refusal::NotFound => return self.is_useless(&attempt, false, out),
            Refusal::Invalid => {
                let error = Error::invalid("a member of the shard does not understand this read of the past");
                return self.end_part(attempt.fetch, Err(error), out);
            }
            _ => {}
        }
        let now = self.now;
        if let Some(member) = self.shards[s].member_of(attempt.node)
            && member.rest_until <= now
        {
            member.rest_until = now.plus(member.rest.next());
        }
        self.failovers += 1;
        self.go_on(attempt.fetch, out);
    }
}

/// The error of a read of a version that no member keeps.
const NOT_KEPT: &str = "no member of the volume keeps this snapshot any more: it was deleted, or its history is lost";

//! Updates on their way: numbered, sent, ordered by the head, durable on A members.
//!
//! Invariants: an update keeps its number through all repeats (W3), and repeats of one shard are sent in order of
//! their numbers. It ends when A members have its sequence in one view (W4), or when the head has refused it for
//! good. `lowest_open` never passes a number whose fate is not known, given-up ones included.

use crate::group::Doing;
use crate::members::Backoff;
use crate::requests::Work;
use crate::shard::Attach;
use crate::slab::Key;
use crate::timers::Timer;
use crate::updates::{Content, Update, merge};
use crate::{Action, Driver, Mutant, timing};
use freebs_format::wire::{Message, Refusal, WriteRequest};
use freebs_format::{ExtentKind, UpdateKind};
use freebs_types::{Error, Nanos, Peer, RequestNumber, Sequence, ShardId, ViewNumber, limits};

/// Bytes that are repeated at one go, while the link seems fine.
const REPEAT_BYTES_MAX: usize = 4 << 20;

/// An update whose fate is not known.
pub(crate) struct Sent {
    part: Key,
    /// Where the head has put it, in the shard's present view.
    pub sequence: Option<Sequence>,
    last: Nanos,
    copies: u32,
}

impl Driver {
    /// All bytes of the part's blocks are known: on to the head.
    pub(crate) fn enqueue(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(key) else { return };
        let [first, last] = std::mem::take(&mut part.old);
        let Work::Write(content) = &part.work else { return };
        let wanted = match content {
            Content::Data(_) => ExtentKind::Data,
            Content::Void(kind) => *kind,
        };
        part.work = Work::Ready(merge(content, part.range.len, part.skip, part.len, first, last), wanted);
        let s = part.shard;
        self.shards[s].outbox.push_back(key);
        self.send_waiting(s, out);
    }

    /// Sends what waits for the attachment, or for old numbers to be answered: from the lowest open number on at most
    /// `DRIVER_REQUESTS_MAX` are given out, because members remember no more of a driver (W3).
    pub(crate) fn send_waiting(&mut self, s: usize, out: &mut Vec<Action>) {
        while self.shards[s].attached() {
            let shard = &self.shards[s];
            let lowest = shard.writes.first_key_value().map_or(shard.next_number, |(n, _)| *n);
            if shard.next_number.0 - lowest.0 >= limits::DRIVER_REQUESTS_MAX as u64 {
                break;
            }
            let Some(key) = self.shards[s].outbox.pop_front() else { break };
            let Some(part) = self.parts.get_mut(key) else { continue };
            let shard = &mut self.shards[s];
            let number = shard.next_number;
            shard.next_number = number.next();
            part.number = Some(number);
            let before = shard.writes.insert(number, Sent { part: key, sequence: None, last: self.now, copies: 0 });
            assert!(before.is_none(), "a number is given out once (W3)");
            assert!(shard.writes.len() <= limits::DRIVER_REQUESTS_MAX, "members remember no more of a driver (W3)");
            if shard.stall_due.is_none() {
                self.timers.arm(&mut shard.stall_due, self.now.plus(timing::REPEAT_AFTER), Timer::Stall(s));
            }
            self.send(s, number, out);
        }
    }

    /// Sends an update for the first time or again. Returns its bytes.
    fn send(&mut self, s: usize, number: RequestNumber, out: &mut Vec<Action>) -> usize {
        let shard = &mut self.shards[s];
        let lowest_open = shard.writes.first_key_value().map_or(number, |(n, _)| *n);
        let (Some(head), Some(sent)) = (shard.members.first(), shard.writes.get_mut(&number)) else { return 0 };
        let Some(part) = self.parts.get(sent.part) else { return 0 };
        self.counters.retries += u64::from(sent.copies > 0);
        sent.copies += 1;
        sent.last = self.now;
        let (group, doing) = (part.group, part.doing);
        let update = match &part.work {
            Work::Scattered(_) if matches!(doing, Doing::Commit | Doing::Abort) => Update::nothing(),
            Work::Ready(blocks, wanted) => {
                let kind = match wanted {
                    ExtentKind::Data => UpdateKind::Write,
                    ExtentKind::Trim => UpdateKind::Trim,
                    ExtentKind::Zero => UpdateKind::Zero,
                };
                Update::build(part.range.start.0, blocks, kind)
            }
            Work::Scattered(runs) => {
                let most = group.map_or(limits::UPDATE_EXTENTS_MAX, |_| limits::INTERVAL_EXTENTS_MAX);
                Update::scattered(runs, most)
            }
            _ => return 0,
        };
        let (shard, view, to) = (shard.id, shard.view, head.peer);
        let interval = group.and_then(|g| self.interval_request(g, doing));
        let kind = interval.as_ref().map_or(update.kind, |(kind, _)| *kind);
        let interval = interval.map(|(_, part)| Box::new(part));
        let bytes = update.data.iter().map(|d| d.len()).sum();
        let message = Message::Write(WriteRequest {
            shard,
            view,
            generation: self.generation,
            driver: self.driver,
            number,
            lowest_open,
            kind,
            interval,
            extents: update.extents,
            crcs: update.crcs,
            data: update.data,
        });
        out.push(Action::Send { to, message });
        bytes
    }

    /// A head has taken the attachment: everything that it may not know is repeated, in order (W3).
    pub(crate) fn resend_all(&mut self, s: usize, out: &mut Vec<Action>) {
        let open = self.shards[s].writes.iter().filter(|(_, w)| w.sequence.is_none());
        let mut numbers: Vec<_> = open.map(|(n, _)| *n).collect();
        if self.mutated(Mutant::NewNumberOnRepeat) {
            numbers = numbers.into_iter().map(|n| self.renumber(s, n)).collect();
        }
        for number in numbers {
            self.send(s, number, out);
        }
    }

    fn renumber(&mut self, s: usize, old: RequestNumber) -> RequestNumber {
        let shard = &mut self.shards[s];
        let number = shard.next_number;
        shard.next_number = number.next();
        let sent = shard.writes.remove(&old).expect("the caller has just seen it");
        if let Some(part) = self.parts.get_mut(sent.part) {
            part.number = Some(number);
        }
        shard.writes.insert(number, sent);
        number
    }

    pub(crate) fn ordered(
        &mut self,
        from: Peer,
        shard: ShardId,
        view: ViewNumber,
        items: &[(RequestNumber, Sequence)],
        out: &mut Vec<Action>,
    ) {
        let Some(&s) = self.by_id.get(&shard) else { return };
        let mix = self.mutated(Mutant::CountAcrossViews);
        let shard = &mut self.shards[s];
        // Numbers mean something only to the head that has taken this attachment; what comes before its answer
        // may be meant for an earlier driver at this place.
        if shard.attach != Attach::Done || !shard.is_head(from) || (view != shard.view && !mix) {
            return;
        }
        shard.attach_backoff = Backoff::default();
        for (number, sequence) in items {
            let Some(sent) = shard.writes.get_mut(number) else { continue };
            if sent.sequence.is_none() && *sequence > Sequence(0) {
                sent.sequence = Some(*sequence);
                shard.ordered.insert((*sequence, *number));
            }
        }
        self.end_writes(s, out);
    }

    /// Ends the updates that A members have (W4). Some may have been durable before they were known as ordered.
    pub(crate) fn end_writes(&mut self, s: usize, out: &mut Vec<Action>) {
        let early = self.mutated(Mutant::AnswerOrdered);
        loop {
            let shard = &mut self.shards[s];
            let Some(&(sequence, number)) = shard.ordered.first() else { break };
            if sequence > shard.committed && !early {
                break;
            }
            shard.ordered.pop_first();
            let Some(sent) = shard.writes.remove(&number) else { continue };
            assert_eq!(sent.sequence, Some(sequence), "an update ends where the head of this view has put it (W4)");
            shard.floor = shard.floor.max(sequence);
            let view = shard.view;
            if let Some(group) = self.parts.get(sent.part).and_then(|p| p.group) {
                self.part_durable((group, sent.part), view, sequence, out);
                continue;
            }
            self.interval_placed(sent.part, view, sequence);
            self.end_part(sent.part, Ok(Vec::new()), out);
        }
        if !self.shards[s].outbox.is_empty() {
            self.send_waiting(s, out);
        }
    }

    pub(crate) fn write_refused(
        &mut self,
        from: Peer,
        s: usize,
        number: RequestNumber,
        reason: Refusal,
        out: &mut Vec<Action>,
    ) {
        let shard = &mut self.shards[s];
        if shard.attach != Attach::Done || !shard.is_head(from) {
            return;
        }
        let Some(sent) = shard.writes.get(&number) else { return };
        if sent.sequence.is_some() {
            // An answer to a copy: another copy was ordered.
            return;
        }
        let error = match reason {
            Refusal::NoSpace => Error::no_space("the nodes of this volume are full"),
            Refusal::Invalid => Error::invalid("the head of the shard does not understand this write"),
            Refusal::NotFound => Error::not_found("the shard does not exist there any more"),
            Refusal::Aborted => Error::busy("the interval was aborted: another one, or a snapshot, was in its way"),
            // Nothing is decided.
            _ => return self.reattach(s),
        };
        let part = sent.part;
        shard.writes.remove(&number);
        match self.parts.get(part).and_then(|p| p.group) {
            Some(group) => self.part_refused((group, part), error, reason == Refusal::Aborted, out),
            None => self.end_part(part, Err(error), out),
        }
        self.send_waiting(s, out);
    }

    /// For a mutant: as if the fate were known.
    pub(crate) fn forget_write(&mut self, key: Key) {
        let Some(part) = self.parts.get(key) else { return };
        let shard = &mut self.shards[part.shard];
        if let Some(sent) = part.number.and_then(|n| shard.writes.remove(&n))
            && let (Some(sequence), Some(number)) = (sent.sequence, part.number)
        {
            shard.ordered.remove(&(sequence, number));
        }
    }

    /// A message may have been lost although the link seems fine: updates that nobody has ordered for long are
    /// repeated, and if nothing becomes durable, all members are asked again where they are.
    pub(crate) fn stalled(&mut self, s: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        shard.stall_due = None;
        if shard.writes.is_empty() {
            shard.stall_mark = None;
            return;
        }
        self.timers.arm(&mut shard.stall_due, self.now.plus(timing::REPEAT_AFTER), Timer::Stall(s));
        if !shard.attached() {
            return;
        }
        let now = self.now;
        let late = |w: &Sent| now >= w.last.plus(Nanos(timing::REPEAT_AFTER.0 << (w.copies.max(1) - 1).min(3)));
        let open = shard.writes.iter().filter(|(_, w)| w.sequence.is_none() && late(w));
        let numbers: Vec<_> = open.map(|(n, _)| *n).collect();
        let first = shard.ordered.first().copied();
        let stuck = (first.is_some() && first == shard.stall_mark) || !numbers.is_empty();
        shard.stall_mark = first;
        let mut bytes = 0;
        for number in numbers {
            if bytes >= REPEAT_BYTES_MAX {
                break;
            }
            bytes += self.send(s, number, out);
        }
        if stuck {
            self.ask_all(s, out);
        }
    }
}

//! What is left of lost frames that all others have given up is learned: the map entries that they placed (rule E3), one
//! piece at a time, and when the last one is durable a mark that they are there.
//!
//! Invariants:
//! - Only a mark that is durable ends a hole.
//! - It says down to which version none of the tellers of its pieces lacked anything of the past.
//! - It says what the teller keeps that knew most frames as committed: what that one had given up it did not tell.

use crate::event::{Action, NoteKind};
use crate::repair::Damage;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::wire::{MapPoint, SyncMode, SyncReply};
use freebs_format::{Frame, FrameHead, FrameKind, MarkBody};
use freebs_lsvd::{KeptState, Learned, MarkChange, Record, RequestTable};
use freebs_types::{Sequence, Version, ViewNumber};

/// Map entries that are learned in place of lost frames: those of all holes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relearning {
    pub since: Sequence,
    pub upto: Sequence,
    pub from: MapPoint,
    /// Below this version no teller of a piece had all that it kept.
    pub whole_from: Version,
    /// A piece, or the mark at the end, is on its way to the disk; nothing more is asked for meanwhile.
    pub writing: Option<u64>,
    pub is_end: bool,
}

impl Damage {
    /// Goes on learning where it stopped, unless other frames are missing by now.
    pub fn begin_learning(&mut self) {
        let since = self.holes.iter().map(|h| h.before.sequence).chain(self.absent.map(|a| a.0)).min();
        let upto = self.holes.iter().map(|h| h.until).chain(self.absent.map(|a| a.1)).max();
        let Some((since, upto)) = since.zip(upto) else { return };
        let (from, whole_from) = (MapPoint::BEGIN, Version(0));
        let fresh = Relearning { since, upto, from, whole_from, writing: None, is_end: false };
        let same = |l: &Relearning| (l.since, l.upto) == (since, upto);
        let goes_on = self.put_off.take().filter(same);
        if goes_on.is_none() {
            self.forget_kept();
        }
        self.learning = Some(goes_on.unwrap_or(fresh));
    }

    /// Frames are asked for first again.
    pub fn put_off_learning(&mut self) {
        self.turns.begin();
        self.learned_end = None;
        if let Some(l) = self.learning.take() {
            self.put_off = Some(l).filter(|l| l.writing.is_none());
        }
    }
}

impl Replica {
    /// Entries that lost frames had placed: into the log, and behind the last of them a mark that they are there.
    pub(crate) fn take_lost_entries(&mut self, ctx: &mut Ctx<'_>, reply: &SyncReply) {
        let Some(learning) = self.damage.learning else { return };
        let is_asked = |f: &&Frame| {
            f.head.kind() == FrameKind::Carry && f.head.seq() == learning.upto && f.head.shard() == self.id
        };
        let carry = reply.frames.first().filter(is_asked).filter(|_| reply.common == learning.since);
        let told = carry.and_then(|c| Some((self.kept_with(ctx, reply)?, self.take_carry(ctx, c, false)?)));
        let Some((kept, ticket)) = told else {
            self.repair_refused(ctx);
            return;
        };
        let whole_from = learning.whole_from.max(kept.whole_from);
        self.damage.hear_kept(kept);
        // What was refused before was another piece.
        let others = self.other_members(ctx).len().max(1);
        self.damage.turns.forget_round(others);
        let next = Some(Relearning { from: reply.map_next, whole_from, writing: ticket, ..learning });
        if reply.mode == SyncMode::Map {
            self.damage.learning = next;
            if ticket.is_none() {
                self.repair_tick(ctx);
            }
            return;
        }
        let mark = reply.frames.get(1).filter(|f| f.head.kind() == FrameKind::Mark && f.verify_digest().is_ok());
        let Some(mark) = mark.cloned() else { return self.repair_refused(ctx) };
        (self.damage.learning, self.damage.learned_end) = (next, Some(mark));
        if ticket.is_none() {
            self.end_learning(ctx);
        }
    }

    /// All pieces are durable: the mark that says so goes into the log.
    fn end_learning(&mut self, ctx: &mut Ctx<'_>) {
        let Some((learning, mark)) = self.damage.learning.zip(self.damage.learned_end.take()) else { return };
        match self.say_learned(ctx, learning, &mark) {
            Some(ticket) => {
                self.damage.learning = Some(Relearning { writing: Some(ticket), is_end: true, ..learning });
            }
            None => self.repair_refused(ctx),
        }
    }

    /// The log has no room for a piece of what was lost; all is asked for again later.
    pub(crate) fn lost_entries_refused(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        if self.damage.learning.is_some_and(|l| l.writing == Some(ticket)) {
            self.damage.put_off_learning();
            self.damage.turns.rest_for(ctx.now, timing::FULL_PAUSE);
        }
    }

    /// What else the lost frames may have said comes with the state at the end.
    fn say_learned(&mut self, ctx: &mut Ctx<'_>, learning: Relearning, mark: &Frame) -> Option<u64> {
        let body = MarkBody::decode(mark.head.body()).ok().filter(|_| mark.head.seq() >= learning.upto)?;
        let mut requests = RequestTable::from_format(&body.requests);
        requests.cut(self.last.sequence);
        self.requests.merge(&requests.to_format());
        self.learn_lost_attach(ctx, body.attach);
        let was_lost = |f: &&FrameHead| learning.since < f.seq() && f.seq() <= learning.upto;
        if let Some(frame) = body.view_frame.as_ref().filter(was_lost) {
            self.learn_lost_view(ctx, frame);
        }
        let learned = Learned {
            since: learning.since,
            upto: learning.upto,
            view_frame: body.view_frame,
            attach: body.attach,
            requests,
            given_up: ViewNumber(0),
        };
        let kept = self.damage.kept()?.clone();
        let ticket = ctx.ticket();
        let kept = Some(Box::new(KeptState { whole_from: learning.whole_from.max(body.whole_from), ..kept }));
        // All that a parent would have is learned with the first of them.
        let flat = self.damage.is_orphan() && learning.since == Sequence(0);
        let change = MarkChange { learned: Some(Box::new(learned)), kept, flat, ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
        Some(ticket)
    }

    /// A piece of what was lost is durable, or the mark at the end: nothing up to there is missed any more.
    pub fn on_learned_durable(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        let Some(learning) = self.damage.learning.as_mut().filter(|l| l.writing == Some(ticket)) else { return };
        learning.writing = None;
        if !learning.is_end {
            match self.damage.learned_end.is_some() {
                true => self.end_learning(ctx),
                false => self.repair_tick(ctx),
            }
            return;
        }
        let Relearning { since, upto, .. } = *learning;
        self.damage.learning = None;
        let is_mended = !self.damage.holes.is_empty();
        self.forget_learned_holes(since, upto);
        self.has_learned_behind(ctx, since, upto);
        if !is_mended {
            return;
        }
        let from = since.next();
        let text = format!("what lost frames from {from} to {upto} had brought was learned again");
        ctx.out.tell(NoteKind::Mended, self.id, &text);
    }

    /// A map that was learned from `since` on is durable: what it brought is not missed.
    pub fn forget_learned_holes(&mut self, since: Sequence, upto: Sequence) {
        self.damage.holes.retain(|h| h.before.sequence < since || h.until > upto);
    }
}

/// Of two words on what is kept the one as of more frames.
pub(crate) fn newer(before: Option<KeptState>, kept: KeptState) -> KeptState {
    before.filter(|b| b.as_of > kept.as_of).unwrap_or(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::Hole;
    use crate::testing::{Chain, SHARD, frames, reply, step};
    use freebs_format::{CarryBody, CarryEntry, ExtentKind, FrameBuilder, FrameMeta, Pin};
    use freebs_types::{BlockRange, ChunkId, Hash32, SnapshotId};

    /// Entries that frames 2 and 3 had placed, and the word of their teller.
    fn piece(mode: SyncMode, word: &KeptState) -> SyncReply {
        let entry = CarryEntry {
            kind: ExtentKind::Trim,
            range: BlockRange::new(3, 1),
            version: Version(2),
            sequence: Sequence(2),
            chunk: ChunkId::default(),
            offset: 0,
            crcs: Vec::new(),
        };
        let (committed, whole_from, pins) = (word.as_of, word.whole_from, word.pins.clone());
        let state = MarkBody { committed, whole_from, pins, ..MarkBody::default() };
        let local = |kind, sequence, body: Vec<u8>| {
            let meta = FrameMeta { sequence, ..Chain::new().meta(4) };
            FrameBuilder::local(&meta, kind, &body, Vec::new(), &Hash32::default())
        };
        let carry = local(FrameKind::Carry, Sequence(3), CarryBody { entries: vec![entry] }.encode());
        let all = vec![carry, local(FrameKind::Mark, Sequence(4), state.encode())];
        let map_next = if mode == SyncMode::Map { MapPoint { from: 9, ..MapPoint::NONE } } else { MapPoint::NONE };
        SyncReply { map_next, ..reply(1, mode, all) }
    }

    /// Entries of lost frames came from two members, one of them without all of the past. What the mark at the end said was
    /// true of the last one.
    #[test]
    fn lost_entries_are_as_whole_as_all_their_tellers() {
        for (tellers, whole_from) in [([0, 0], 0), ([7, 0], 7), ([0, 7], 7), ([7, 5], 7)] {
            let words = tellers.map(|v| KeptState { as_of: Sequence(4), whole_from: Version(v), ..Default::default() });
            assert_eq!(marked(&words).whole_from, Version(whole_from), "tellers from {tellers:?}");
        }
    }

    /// One of two tellers had heard that a snapshot was deleted, and did not tell what only that needs. The other one had not, and
    /// named the pin at the end: it counted as told.
    #[test]
    fn a_pin_that_a_teller_had_given_up_is_not_told() {
        let pin = Pin { version: Version(2), snapshot: SnapshotId(3) };
        let word =
            |as_of, pins: &[Pin]| KeptState { as_of: Sequence(as_of), pins: pins.to_vec(), ..Default::default() };
        for (words, as_of, pins) in [
            ([word(9, &[]), word(5, &[pin])], 9, 0),
            ([word(5, &[pin]), word(9, &[])], 9, 0),
            ([word(5, &[]), word(9, &[pin])], 9, 1),
            ([word(9, &[pin]), word(5, &[])], 9, 1),
            ([word(5, &[]), word(5, &[pin])], 5, 1),
        ] {
            let kept = marked(&words);
            assert_eq!((kept.as_of, kept.pins.len()), (Sequence(as_of), pins), "{words:?}");
        }
    }

    /// The versions that are kept by the mark at the end, with the words of the tellers of two pieces.
    fn marked(words: &[KeptState; 2]) -> KeptState {
        let mut r = Replica::empty(SHARD);
        let all = frames(5, 4);
        let mut told = None;
        step(&mut r, |r, ctx| {
            assert!(all.iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(1))));
            r.on_durable(ctx, Sequence(5));
            let before = crate::replica::TailEntry::of(&all[0].head).name;
            r.damage = Damage::new(vec![Hole { before, until: Sequence(3), end: None }], false);
            r.damage.begin_learning();
            for (mode, word) in [SyncMode::Map, SyncMode::MapEnd].into_iter().zip(words) {
                ctx.out.actions.clear();
                r.take_lost_entries(ctx, &piece(mode, word));
                let ticket = r.damage.learning.and_then(|l| l.writing).expect("a piece goes into the log");
                // All is put off for a while, and goes on where it was.
                r.on_learned_durable(ctx, ticket);
                if mode == SyncMode::Map {
                    r.damage.put_off_learning();
                    r.damage.begin_learning();
                }
                told = ctx.out.actions.iter().find_map(|a| match a {
                    Action::Append(Record::Mark { change, .. }) => change.kept.as_deref().cloned(),
                    _ => None,
                });
            }
        });
        told.expect("a mark says so")
    }
}

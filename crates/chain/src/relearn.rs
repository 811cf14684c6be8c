//! What is left of lost frames that all others have given up is learned: the map entries that they placed (rule E3), one
//! piece at a time, and when the last one is durable a mark that they are there.
//!
//! Invariant: only a mark that is durable ends a hole.

use crate::event::{Action, NoteKind};
use crate::repair::Damage;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::wire::{MapPoint, SyncMode, SyncReply};
use freebs_format::{Frame, FrameHead, FrameKind, MarkBody};
use freebs_lsvd::{KeptState, Learned, MarkChange, Record, RequestTable};
use freebs_types::{Sequence, ViewNumber};

/// Map entries that are learned in place of lost frames: those of all holes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relearning {
    pub since: Sequence,
    pub upto: Sequence,
    pub from: MapPoint,
    /// A piece, or the mark at the end, is on its way to the disk; nothing more is asked for meanwhile.
    pub writing: Option<u64>,
    pub is_end: bool,
}

impl Damage {
    /// Goes on learning where it stopped, unless other frames are missing by now.
    pub fn begin_learning(&mut self) {
        let since = self.holes.iter().map(|h| h.before.sequence).min();
        let upto = self.holes.iter().map(|h| h.until).max();
        let Some((since, upto)) = since.zip(upto) else { return };
        let fresh = Relearning { since, upto, from: MapPoint::BEGIN, writing: None, is_end: false };
        let same = |l: &Relearning| (l.since, l.upto) == (since, upto);
        self.learning = Some(self.put_off.take().filter(same).unwrap_or(fresh));
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
        let Some(ticket) = carry.and_then(|c| self.take_carry(ctx, c, false)) else {
            self.repair_refused(ctx);
            return;
        };
        // What was refused before was another piece.
        let others = self.other_members(ctx).len().max(1);
        self.damage.turns.forget_round(others);
        let next = Some(Relearning { from: reply.map_next, writing: ticket, ..learning });
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
        let ticket = ctx.ticket();
        let kept = Some(Box::new(KeptState {
            retain: Some(body.retain).filter(|v| v.0 > 0),
            as_of: body.kept_as_of.unwrap_or(body.committed),
            whole_from: body.whole_from,
            is_whole_past: false,
            pins: body.pins,
        }));
        let change = MarkChange { learned: Some(Box::new(learned)), kept, ..MarkChange::default() };
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
        self.forget_learned_holes(since, upto);
        let from = since.next();
        let text = format!("what lost frames from {from} to {upto} had brought was learned again");
        ctx.out.tell(NoteKind::Mended, self.id, &text);
    }

    /// A map that was learned from `since` on is durable: what it brought is not missed.
    pub fn forget_learned_holes(&mut self, since: Sequence, upto: Sequence) {
        self.damage.holes.retain(|h| h.before.sequence < since || h.until > upto);
    }
}

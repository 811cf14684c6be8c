//! A replica as a member: it takes frames, makes promises, answers reads and follows its head.

use crate::event::{Action, Mutant};
use crate::past::is_of_the_past;
use crate::replica::{Client, Ctx, Replica, TailEntry, weight};
use crate::timing;
use freebs_format::wire::{
    FrameName, Given, HeartbeatItem, Message, ReadRequest, Refusal, Refused, Request, SealAnswer,
};
use freebs_format::{Frame, FrameKind, ViewBody, hide};
use freebs_io::LinkId;
use freebs_types::{Generation, Hash32, HostPublic, Nanos, NodeId, Peer, SealedSlice, Sequence, ViewNumber, limits};

/// Views that this node may not have heard of yet when it is asked to promise them.
const VIEWS_AHEAD: u64 = 1024;

/// Blocks that no read may ask for: none, too many, or outside of any shard.
pub(crate) fn range_refusal(r: &ReadRequest) -> Option<Refusal> {
    let most = if r.status_only { limits::STATUS_BLOCKS_MAX } else { limits::READ_BLOCKS_MAX };
    let is_possible = (1..=most).contains(&r.range.len) && r.range.end() <= limits::SHARD_BLOCKS_MAX;
    (!is_possible).then_some(Refusal::Invalid)
}

impl Replica {
    /// A frame from the head, or passed on by a member.
    pub fn on_frame(&mut self, ctx: &mut Ctx<'_>, frame: Frame) {
        let h = frame.header();
        if self.stopped.is_some() || frame.head.kind() == FrameKind::View || h.view_number() < self.promise() {
            return;
        }
        if !self.may_take(ctx, &frame) {
            return;
        }
        if self.view_number() != h.view_number() {
            // A view that this log does not know yet; its head, or a gap, will make us ask.
            return;
        }
        if h.seq() <= self.last.sequence {
            self.compare(ctx, &frame);
            return;
        }
        if h.seq() > self.last.sequence.next() && !ctx.mutant(Mutant::GapsAreSkipped) {
            self.wait_for_predecessors(ctx, frame);
            return;
        }
        self.take(ctx, frame);
        while let Some((s, f)) = self.gap.first_key_value() {
            if *s > self.last.sequence.next() || !self.may_take(ctx, f) {
                break;
            }
            let Some((_, frame)) = self.gap.pop_first() else { break };
            self.gap_bytes -= weight(&frame);
            if frame.head.seq() == self.last.sequence.next() {
                self.take(ctx, frame);
            }
        }
        self.gap_since = ctx.now;
        self.learn_active(ctx);
    }

    /// The frame has the next sequence: it must also continue the hash chain, and its data must be whole.
    fn take(&mut self, ctx: &mut Ctx<'_>, frame: Frame) {
        let skips = ctx.mutant(Mutant::GapsAreSkipped);
        if hide(&frame.header().parent_token()) != self.last.hid && !skips {
            ctx.out.note(format!("shard {}: frame {} does not continue this log", self.id, frame.head.seq()));
            return;
        }
        if let Err(e) = frame.verify_data() {
            ctx.out.note(format!("shard {}: frame {} from the network: {e}", self.id, frame.head.seq()));
            return;
        }
        self.append(ctx, frame);
    }

    /// A frame that is there already: a difference stops this member (W6).
    fn compare(&mut self, ctx: &mut Ctx<'_>, frame: &Frame) {
        let known = self.tail.get(&frame.head.seq());
        if known.is_some_and(|k| k.name.hid != frame.header().hid()) {
            self.stop(ctx, format!("frame {} differs from the chain's", frame.head.seq()));
        }
    }

    fn wait_for_predecessors(&mut self, ctx: &mut Ctx<'_>, frame: Frame) {
        if self.gap.is_empty() {
            self.gap_since = ctx.now;
        }
        let bytes = weight(&frame);
        let fits = self.gap_bytes + bytes <= limits::SHARD_WINDOW_BYTES;
        if fits && self.gap.insert(frame.head.seq(), frame).is_none() {
            self.gap_bytes += bytes;
        }
    }

    /// One frame of a SYNC answer: also older views and view frames, in order, up to the head's own view.
    pub fn on_synced_frame(&mut self, ctx: &mut Ctx<'_>, frame: Frame, limit: ViewNumber) -> bool {
        let h = frame.header();
        if h.seq() <= self.last.sequence {
            let known = self.tail.get(&h.seq()).map(|k| k.name);
            if known.is_none_or(|k| k.hid == h.hid() || k.view >= h.view_number()) {
                self.compare(ctx, &frame);
                return self.stopped.is_none();
            }
            // A frame of an older view that came after this log was named to the answerer: the newer view cut it.
            self.cut(ctx, Sequence(h.seq().0 - 1));
        }
        let is_unnamed = self.last.hid == Hash32::default() && self.last.sequence <= self.committed;
        if is_unnamed && h.seq() == self.last.sequence.next() {
            // The committed frame is lost here (see `cut`); the one behind it tells its name.
            let before = TailEntry::before(&frame.head);
            (self.last, self.version) = (before.name, before.version);
            self.tail.insert(before.name.sequence, before);
        }
        if self.stopped.is_some()
            || h.seq() != self.last.sequence.next()
            || h.view_number() > limit
            || frame.head.before().hid != self.last.hid
            || frame.verify_data().is_err()
            || frame.head.kind().is_local()
        {
            ctx.out.note(format!("shard {}: a frame of a SYNC answer does not fit ({})", self.id, h.seq()));
            return false;
        }
        if frame.head.kind() == FrameKind::View && !self.view_fits(&frame, limit) {
            ctx.out.note(format!("shard {}: view frame {} does not fit its seal", self.id, h.view_number()));
            return false;
        }
        self.append(ctx, frame);
        true
    }

    /// A view frame names the seal right before it (V5). Of the view that is asked for, this node is a member; of those
    /// before it perhaps not yet.
    fn view_fits(&self, frame: &Frame, asked: ViewNumber) -> bool {
        let Ok(body) = ViewBody::decode(frame.head.body()) else { return false };
        let is_member = |me: NodeId| body.members.iter().any(|m| m.node == me);
        body.seal_sequence == self.last.sequence
            && body.seal_hid == self.last.hid
            && frame.head.view() > self.view_number()
            && frame.head.view() > body.pred
            && self.may_branch(&frame.head)
            && (frame.head.view() < asked
                || self.me.is_none_or(|me| is_member(me) || self.comes_to(frame.head.view(), me)))
            && !self.has_given_up()
            && self.published_fits(frame, &body)
    }

    pub fn on_heartbeat(&mut self, ctx: &mut Ctx<'_>, from: Peer, item: &HeartbeatItem) {
        if item.view > self.view_number() && self.may_follow(item.view) && !self.is_open_head() {
            // The head takes this member for one of its view, which it is not.
            self.ask(ctx, from, item.view, Sequence(u64::MAX));
            return;
        }
        if self.view_number() != item.view || item.view < self.promise() {
            return;
        }
        self.note_committed(ctx, item.committed);
        ctx.out.actions.push(Action::Keep { shard: self.id, from: item.keep });
        self.learn_active(ctx);
        if self.told_room.is_some_and(Self::is_short) {
            // A write may wait for room here: the head hears that this member is there, and how it is (W7).
            self.answer_durable(ctx);
        }
        if item.last > self.last.sequence && self.gap.is_empty() {
            self.gap_since = self.gap_since.max(Nanos(1));
            self.ask_head(ctx);
        }
    }

    /// The head invites this member to ask for what it lacks.
    pub fn on_nudge(&mut self, ctx: &mut Ctx<'_>, link: LinkId, view: ViewNumber) {
        let Some(peer) = ctx.peers.owner(link) else { return };
        if self.may_follow(view) && !self.is_open_head() {
            self.ask(ctx, peer, view, Sequence(u64::MAX));
        }
    }

    /// A quorum holds the frame of a view that became active (V6), whether this member was told by its head or not. What a
    /// rebuild goes on from is not known to have been: another one may go back behind it (V9).
    pub fn note_active(&mut self, ctx: &mut Ctx<'_>) {
        let known = self.info.as_ref().map_or(ViewNumber(0), |i| i.known);
        if let Some(frame) = self.view.as_ref().filter(|v| v.number == known).map(|v| v.sequence) {
            self.note_committed(ctx, frame);
        }
    }

    /// Somebody opens view `view` and asks for a promise (V2).
    pub fn on_seal(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        (view, pred): (ViewNumber, ViewNumber),
        slice: Option<(HostPublic, SealedSlice)>,
    ) {
        // A promise is for ever, so one that the control plane cannot have numbered would end the shard here.
        let given_out = self.info.as_ref().map_or(ViewNumber(0), |i| i.highest).max(self.view_number());
        if self.stopped.is_some() || view.0 > given_out.0.saturating_add(VIEWS_AHEAD) {
            return;
        }
        self.note_active(ctx);
        let is_old = view < self.promise() || view < self.view_number();
        let is_repeat = view == self.promised && self.promising.is_none();
        if is_old || is_repeat {
            self.answer_seal(ctx, link, (view, pred), slice);
        } else if self.promising.is_some_and(|p| p.view == view) {
            // An own opening waits for its own answer.
            if let Some(p) = self.promising.as_mut().filter(|p| p.asker.is_some()) {
                (p.asker, p.slice) = (Some(link), slice.or(p.slice));
            }
        } else if ctx.mutant(Mutant::PromiseNotDurable) {
            self.promised = view;
            self.answer_seal(ctx, link, (view, pred), slice);
        } else {
            self.yield_to(ctx);
            self.promise_durably(ctx, (view, pred), Some(link), slice);
        }
    }

    /// The promise, and everything in front of it, is durable: it may be told.
    pub fn on_mark_durable(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        self.on_learned(ctx, ticket);
        self.on_kept_durable(ctx, ticket);
        self.on_learned_durable(ctx, ticket);
        self.on_regained_durable(ctx, ticket);
        self.on_given_up(ctx, ticket);
        let Some(p) = self.promising.filter(|p| p.ticket == ticket) else { return };
        self.promising = None;
        self.promised = self.promised.max(p.view);
        match p.asker {
            Some(link) => self.answer_seal(ctx, link, (p.view, p.pred), p.slice),
            None => {
                let answer = self.whole_answer(ctx, p.view, p.pred, None);
                self.on_seal_answer(ctx, ctx.config.me.node, answer);
            }
        }
    }

    fn answer_seal(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        (view, pred): (ViewNumber, ViewNumber),
        slice: Option<(HostPublic, SealedSlice)>,
    ) {
        let answer = self.whole_answer(ctx, view, pred, slice);
        ctx.out.send(link, Message::SealAnswer(answer));
    }

    /// Only who has the promise gets the slice that goes with it.
    pub fn whole_answer(
        &self,
        ctx: &Ctx<'_>,
        view: ViewNumber,
        pred: ViewNumber,
        slice: Option<(HostPublic, SealedSlice)>,
    ) -> SealAnswer {
        let mut answer = self.seal_answer(view, pred);
        if ctx.mutant(Mutant::GivenUpCounts) && !self.damage.is_there() && self.stopped.is_none() {
            answer.damaged = false;
        }
        if ctx.mutant(Mutant::PendingFramesCount) && pred.0 > 0 && self.view_number() > pred {
            (answer.last, answer.has_pred) = (self.last, true);
        }
        // A log that begins in the middle has all of its views behind that (V19).
        answer.damaged |= self.lacks_some() && ctx.mutant(Mutant::EarlyIsDamaged);
        if self.promised == view && answer.promised == view {
            answer.given = self.give_or_guess(ctx, pred, slice);
        }
        answer
    }

    /// The end of what this log has of views up to `pred` (V4). Frames of views that never became active may lie behind
    /// it, of several on top of each other after rebuilds of the control state; each view's frame names the frame before
    /// it. `None` if one of them is not known, or names no older view.
    pub fn end_in(&self, pred: ViewNumber) -> Option<FrameName> {
        let mut last = self.last;
        while last.view > pred {
            let v = self.open_views().find(|v| v.number == last.view && v.body.pred < last.view)?;
            last = FrameName { view: v.body.pred, sequence: v.body.seal_sequence, hid: v.body.seal_hid };
        }
        Some(last)
    }

    /// This log's answer to a seal of `pred`. A log whose end there is not known does not count.
    pub fn seal_answer(&self, view: ViewNumber, pred: ViewNumber) -> SealAnswer {
        let end = self.end_in(pred);
        let begins = if self.last.sequence < self.begins.sequence { crate::replica::genesis() } else { self.begins };
        let last = end.filter(|_| pred.0 > 0).unwrap_or(begins);
        let has_pred = end.is_some_and(|l| l.view == pred);
        SealAnswer {
            shard: self.id,
            view,
            pred,
            last,
            has_pred: has_pred || pred == ViewNumber(0),
            committed: self.committed.min(last.sequence),
            damaged: self.damage.is_there()
                || self.has_given_up()
                || self.stopped.is_some()
                || end.is_none()
                || (self.is_doubtful && self.is_empty_log()),
            // A frame of a view is as good as a promise of it.
            promised: self.promise().max(self.view_number()),
            given: Given::Nothing,
        }
    }

    /// A driver wants durable answers of this member.
    pub fn on_follow(&mut self, ctx: &mut Ctx<'_>, link: LinkId, generation: Generation) {
        if generation < self.attach.generation && !ctx.mutant(Mutant::OlderDriversAnswered) {
            self.refuse(ctx, link, Request::Attach, Refusal::Fenced);
            return;
        }
        self.clients.insert(link, Client { generation, is_attached: false });
        if self.active_known && self.serves() {
            if let Some(news) = self.news() {
                let floor = Sequence(0);
                ctx.out.send(link, Message::Attached { news, generation, floor });
            }
            self.answer_durable(ctx);
        }
    }

    /// A read: any member in the driver's view whose log is durable up to the floor may answer it (R1).
    pub fn on_read(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: ReadRequest) {
        if self.may_not_be_read(ctx) {
            return self.refuse(ctx, link, Request::Read(r.id), Refusal::NotReady);
        }
        if is_of_the_past(&r) {
            return self.on_read_past(ctx, link, r);
        }
        let refusal = if r.generation < self.attach.generation {
            Some(Refusal::Fenced)
        } else if self.view_number() != r.view {
            Some(Refusal::WrongView)
        } else if !self.serves() || (self.durable < r.floor && !ctx.mutant(Mutant::FloorIgnored)) {
            Some(Refusal::NotReady)
        } else {
            range_refusal(&r)
        };
        match refusal {
            Some(reason) => self.refuse(ctx, link, Request::Read(r.id), reason),
            None => ctx.out.actions.push(Action::Read { link, request: r }),
        }
    }

    pub fn refuse(&self, ctx: &mut Ctx<'_>, link: LinkId, request: Request, reason: Refusal) {
        let refused =
            Refused { shard: self.id, request, reason, view: self.view_number(), generation: self.attach.generation };
        ctx.out.send(link, Message::Refused(refused));
    }

    /// Looks after a member's own time-outs.
    pub fn member_tick(&mut self, ctx: &mut Ctx<'_>) {
        let gap_is_old = !self.gap.is_empty() && ctx.now.since(self.gap_since) >= timing::LINK_SILENCE;
        if gap_is_old {
            self.ask_head(ctx);
        }
        self.retry_asking(ctx);
        self.ask_next_piece(ctx);
        self.repair_tick(ctx);
        self.tell_whole(ctx);
        self.tell_room(ctx);
    }
}

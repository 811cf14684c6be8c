//! Going on by force (rule V10): so many members of a view are lost for good that it can't be sealed, and an operator has
//! said from whose logs the shard goes on. What only the lost members had is lost.
//!
//! Invariants: who goes on by force has the durable promises of all survivors that were named, and of no others needs
//! any; the view frame names the public `hid` of the frame before it as its parent, never the token, so the break is
//! seen by whoever reads the log; nobody takes such a frame unless the control plane says that there is one.

use crate::event::{Forced, LogStatus, Mutant, NoteKind, Opened, ShardInfo};
use crate::open::Phase;
use crate::repair::GivingUp;
use crate::replica::{Ctx, OpenView, Replica};
use crate::timing;
use freebs_format::wire::{FrameName, SealAnswer};
use freebs_format::{FrameHead, ViewBody};
use freebs_lsvd::{EventKind, Learned, MarkChange, Record};
use freebs_types::{Hash32, NodeId, Sequence, Version, ViewNumber};
use std::collections::BTreeMap;

impl Opened {
    /// Nodes whose promises are asked for: the members of the predecessor, and the survivor that has more than they have.
    pub(crate) fn sealers(&self) -> impl Iterator<Item = NodeId> {
        let named = self.forced.iter().flat_map(|f| &f.survivors);
        let others = named.filter(|n| !self.pred_members.contains(n));
        self.pred_members.iter().chain(others).copied()
    }
}

impl Replica {
    /// True unless the frame begins a branch that may not stand in this log. The token protects a chain from whoever does not
    /// know it; of a branch that is the control plane's word.
    pub fn may_branch(&self, frame: &FrameHead) -> bool {
        let parent = Sequence(frame.seq().0.saturating_sub(1));
        !frame.is_branch() || self.may_stand(frame.view(), parent)
    }

    /// The same for a branch behind which a map leads: the state at its end has the frame of that view, or of a later one, which
    /// names the newest branch before it.
    pub(crate) fn may_pass_branch(&self, frame: &FrameHead, body: &ViewBody) -> bool {
        if frame.is_branch() {
            return frame.view() <= self.view_number() || self.may_branch(frame);
        }
        let branch = body.volume.as_ref().map_or(ViewNumber(0), |v| v.branch);
        let of_word = |i: &ShardInfo| i.forced.as_ref().map_or(Sequence(0), |f| f.least);
        let at = |i: &ShardInfo| if branch <= i.branch.view { i.branch.at } else { of_word(i) };
        branch <= self.view_number() || self.may_stand(branch, self.info.as_ref().map_or(Sequence(0), at))
    }

    /// True if the control plane says that there is such a branch, and nothing here is of frames that it has left.
    fn may_stand(&self, view: ViewNumber, at: Sequence) -> bool {
        let is_said = |i: &ShardInfo| view <= i.branch.view || (i.forced.is_some() && view > i.active);
        self.info.as_ref().is_some_and(is_said) && !self.is_ahead(view, at)
    }

    /// True if nothing more is to be learned in a view: a branch has left it, or is to, and this node is no member that seals it.
    pub(crate) fn is_left_by_force(&self, info: &ShardInfo, view: ViewNumber) -> bool {
        let Some(me) = self.me else { return false };
        let word = info.forced.as_ref().filter(|f| !f.survivors.contains(&me) && !info.view_members.contains(&me));
        view < info.branch.view || (word.is_some() && view <= info.active)
    }

    /// An opening that this head has begun is void (V6) when the control plane names other members, or an operator has
    /// given his word, or another one than before. It begins anew, with that.
    pub fn hear_of_members(&mut self, ctx: &mut Ctx<'_>, info: &ShardInfo) {
        let has_word = |i: &ShardInfo| info.forced.is_some() && info.forced != i.forced;
        let is_void = |i: &ShardInfo| i.members != info.members || has_word(i);
        if !self.is_active_head() && self.info.as_ref().is_some_and(is_void) {
            self.yield_to(ctx);
        }
        if self.asking.is_some_and(|a| self.is_left_by_force(info, a.view)) {
            (self.asking, self.map_end, self.map_piece) = (None, None, None);
        }
    }

    /// The survivor whose log is gone on from, and where it ends, if all have answered. A member that is there after all,
    /// and was not named, is waited for a while: its answer may be the one that the usual rule lacks.
    pub(crate) fn forced_at(
        &self,
        ctx: &Ctx<'_>,
        opened: &Opened,
        answers: &BTreeMap<NodeId, SealAnswer>,
    ) -> Option<(NodeId, FrameName)> {
        let me = ctx.config.me.node;
        let forced = opened.forced.as_ref()?;
        if self.is_late(ctx, opened, answers) {
            return None;
        }
        let (winner, best) = self.best_by_force(me, opened, answers, ctx.mutant(Mutant::ForcedAlone))?;
        // Members that are to keep what they have have nothing committed behind the end; who is new begins anew.
        let learners = self.info.as_ref().map(|i| &i.joining);
        let keeps = |n: &NodeId| opened.members.contains(n) && !learners.is_some_and(|l| l.contains(n));
        let end = best.last.sequence;
        let mut of_named = forced.survivors.iter().filter_map(|n| Some((n, answers.get(n)?)));
        let is_followed = of_named.all(|(n, a)| !keeps(n) || a.committed <= end);
        // A member that is alone in its chain gets what it lacks from nobody later.
        let has_all = winner == me || !(forced.gives_up > 0 && (self.has_given_up() || !self.damage.holes.is_empty()));
        let nobody_has_more = self.back_with_more(me, opened, answers).is_none() || ctx.mutant(Mutant::BackPassedOver);
        let is_as_told = end >= forced.least && nobody_has_more;
        (is_as_told && is_followed && has_all).then_some((winner, best.last))
    }

    /// True if a member of the view is there, and has not answered yet; not for long.
    fn is_late(&self, ctx: &Ctx<'_>, opened: &Opened, answers: &BTreeMap<NodeId, SealAnswer>) -> bool {
        opened.pred_members.iter().any(|n| !answers.contains_key(n) && self.may_come(ctx, *n))
    }

    /// True if there is a link to a node, and not for so long that what it was asked for can't come any more.
    fn may_come(&self, ctx: &Ctx<'_>, node: NodeId) -> bool {
        let Some(h) = self.head.as_ref() else { return false };
        let Phase::Sealing { linked, .. } = &h.phase else { return false };
        let since = linked.get(&node).map_or(h.at, |l| h.at.max(*l));
        ctx.peers.link(ctx.peer(node, self.id)).is_some() && ctx.now.since(since) < timing::FORCED_PATIENCE
    }

    /// The survivor that was named with the best sound log, if all have answered; only for a mutant, if this node alone has.
    fn best_by_force(
        &self,
        me: NodeId,
        opened: &Opened,
        answers: &BTreeMap<NodeId, SealAnswer>,
        alone: bool,
    ) -> Option<(NodeId, SealAnswer)> {
        let forced = opened.forced.as_ref()?;
        let needed = forced.survivors.iter().filter(|n| !alone || **n == me);
        let of_all = needed.map(|n| Some((*n, *answers.get(n)?))).collect::<Option<Vec<_>>>()?;
        // Nobody can tell any more what this log lacks behind its end: it goes on from there.
        let is_unknown = self.end_in(opened.pred).is_none();
        let is_broken = !self.damage.holes.is_empty() || self.lacks_some() || self.stopped.is_some() || is_unknown;
        let own = SealAnswer { damaged: is_broken, ..self.seal_answer(opened.view, opened.pred) };
        let sound =
            of_all.into_iter().map(|(n, a)| if n == me { (n, own) } else { (n, a) }).filter(|(_, a)| !a.damaged);
        let sound: Vec<(NodeId, SealAnswer)> = sound.collect();
        // A log with the view's frame has all that was before it. If nobody has that, all of the view is lost.
        let has_any = sound.iter().any(|(_, a)| a.has_pred);
        let counting = sound.into_iter().filter(|(_, a)| a.has_pred || !has_any);
        counting.max_by_key(|(n, a)| (a.last.view, a.last.sequence, *n == me))
    }

    /// A member that was taken for lost has answered, and has more than the best of those that were named, or knows of more than
    /// the operator was told: he has to look again.
    fn back_with_more(&self, me: NodeId, opened: &Opened, answers: &BTreeMap<NodeId, SealAnswer>) -> Option<NodeId> {
        let forced = opened.forced.as_ref()?;
        let (winner, best) = self.best_by_force(me, opened, answers, false)?;
        let end = |a: &SealAnswer| (a.last.view, a.last.sequence);
        let is_less = winner == me && self.has_given_up();
        let has_more = |a: &SealAnswer| {
            let knows_more = a.has_pred && a.committed > forced.known.max(best.last.sequence);
            knows_more || end(a) > end(&best) || (is_less && a.has_pred)
        };
        let mut others = answers.iter().filter(|(n, _)| !forced.survivors.contains(n));
        others.find(|(_, a)| has_more(a)).map(|(n, _)| *n)
    }

    /// The member because of which the operator has to look again, if so.
    pub(crate) fn is_back(
        &self,
        me: NodeId,
        opened: &Opened,
        answers: &BTreeMap<NodeId, SealAnswer>,
    ) -> Option<NodeId> {
        let forced = opened.forced.as_ref()?;
        let gives_up = forced.gives_up > 0 && !self.damage.holes.is_empty();
        let other = answers.keys().find(|n| gives_up && !forced.survivors.contains(n)).copied();
        self.back_with_more(me, opened, answers).or(other)
    }

    /// The secret of the view that ends with `seal`, and the parent of the frame that follows it: its token, or of a
    /// branch its `hid`, and no secret. `None` if this node has neither.
    pub(crate) fn goes_on_from(&self, ctx: &Ctx<'_>, opened: &Opened, seal: FrameName) -> Option<(Hash32, Hash32)> {
        let h = self.head.as_ref()?;
        let reaches = self.tail.get(&seal.sequence).is_some_and(|t| t.name.hid == seal.hid);
        let may_branch = opened.forced.is_some() && seal.hid != Hash32::default() && seal.sequence.0 > 0 && reaches;
        let continued = match may_branch && h.by_force && !ctx.mutant(Mutant::BranchNamesTheToken) {
            true => None,
            false => self.continuation(ctx, seal, &h.gathered),
        };
        // Slices can be lost, too, although there are logs enough. But who is asked may only be late with its slice, or need the one
        // of the frame, which this log had not when it asked (`lacks_slices`).
        let is_late = |n| n != ctx.config.me.node && !h.gathered.contains_key(&n) && self.may_come(ctx, n);
        let is_time = matches!(h.phase, Phase::Sealing { .. }) && ctx.now.since(h.at) >= timing::FORCED_PATIENCE;
        let have_come = is_time && !opened.sealers().any(is_late);
        let by_force = may_branch && (h.by_force || have_come);
        continued.or_else(|| by_force.then_some((Hash32::default(), seal.hid)))
    }

    /// The steps of a head that may go on by force, as time passes.
    pub(crate) fn force_tick(&mut self, ctx: &mut Ctx<'_>) {
        self.try_to_seal(ctx);
        let Some(h) = self.head.as_ref() else { return };
        let Phase::Sealing { opened, answers, .. } = &h.phase else { return };
        let Some(forced) = opened.forced.clone() else { return };
        let is_late = self.is_late(ctx, opened, answers);
        let (pred, at) = (opened.pred, h.at);
        let are_there = forced.survivors.iter().all(|n| answers.contains_key(n));
        // A member that is back may have what is lost here; else the operator looks again.
        let are_all = answers.keys().all(|n| forced.survivors.contains(n));
        let since = self.damage.stands_since(ctx.now).max(at);
        let may_give_up = forced.gives_up > 0 && are_there && are_all && !is_late;
        if may_give_up && ctx.now.since(since) >= timing::GIVE_UP_PATIENCE {
            self.give_up_lost_frames(ctx, &forced, pred);
        }
    }

    /// Where a log that has lost frames can be gone on from: in front of the first hole that is not known to be
    /// committed. What was lost before that is undone, and what followed it stays.
    fn end_by_force(&self, last: FrameName) -> (FrameName, Version) {
        let named = |s: Sequence| self.tail.get(&s).filter(|t| t.name.hid != Hash32::default());
        let open = self.damage.holes.iter().filter(|h| h.before.sequence >= self.committed);
        let fronts = open.filter_map(|h| named(h.before.sequence)).map(|t| (t.name, t.version));
        let first = fronts.min_by_key(|(name, _)| name.sequence).filter(|(name, _)| name.sequence < last.sequence);
        first.unwrap_or_else(|| (last, named(last.sequence).map_or(self.version, |t| t.version)))
    }

    /// No survivor has the frames that this log has lost, and there is no sound log: they are given up. Until a branch is active
    /// that says so, this log counts for no usual seal.
    fn give_up_lost_frames(&mut self, ctx: &mut Ctx<'_>, forced: &Forced, view: ViewNumber) {
        let is_busy = self.damage.giving_up.is_some() || ctx.now < self.damage.full_until;
        if self.damage.holes.is_empty() || is_busy || self.stopped.is_some() {
            return;
        }
        let (end, _) = self.end_by_force(self.last);
        if end.sequence < forced.least || self.lost_since_told(forced) {
            return;
        }
        self.cut(ctx, end.sequence);
        let since = self.damage.holes.iter().map(|h| h.before.sequence).min();
        let upto = self.damage.holes.iter().map(|h| h.until).max();
        let Some((since, upto)) = since.zip(upto).filter(|_| self.stopped.is_none()) else { return };
        let view_frame = self.view_frame.clone();
        let (attach, requests) = (self.attach, self.requests.clone());
        let learned = Learned { since, upto, view_frame, attach, requests, given_up: view };
        let ticket = ctx.ticket();
        // Else the next start would find that the same is lost.
        let flat = self.damage.is_orphan() && since == Sequence(0);
        let change = MarkChange { learned: Some(Box::new(learned)), flat, ..MarkChange::default() };
        ctx.out.actions.push(crate::event::Action::Append(Record::Mark { shard: self.id, change, ticket }));
        self.damage.giving_up = Some(GivingUp { ticket, since, upto, view });
    }

    /// True if more frames are lost than the operator was told of: he has to look again.
    pub(crate) fn lost_since_told(&self, forced: &Forced) -> bool {
        forced.gives_up > 0 && self.damage.missing() > forced.gives_up
    }

    /// It is durable that lost frames are given up.
    pub fn on_given_up(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        let Some(g) = self.damage.giving_up.take_if(|g| g.ticket == ticket) else { return };
        self.given_up = self.given_up.max(g.view);
        self.forget_learned_holes(g.since, g.upto);
        let text = format!("lost frames from {} to {} were given up by force", g.since.next(), g.upto);
        ctx.out.tell(NoteKind::Log(EventKind::Damage), self.id, &text);
    }

    /// The device has no room for the mark that says so: it is tried again later.
    pub fn giving_up_refused(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        if self.damage.giving_up.take_if(|g| g.ticket == ticket).is_some() {
            self.damage.full_until = ctx.now.plus(timing::FULL_PAUSE);
        }
    }

    /// True if lost frames of this log were given up, and it is in no view since that is known to have been active. What others
    /// have may be whole, so this log is no part of what they agree on.
    pub fn has_given_up(&self) -> bool {
        let is_over = |v: &OpenView| v.number > self.given_up && v.sequence <= self.committed;
        self.given_up.0 > 0 && !self.open_views().any(is_over)
    }

    /// This log is of what was lost by force, or may be: what it knows to be committed reaches beyond what all have, and
    /// a view that it is not in has gone on from there, or is to. Or it has given up frames for a branch that never became
    /// active. What was learned in part only is of frames that this log does not have; it is found by what was told with it.
    pub fn is_of_lost_branch(&self, info: &ShardInfo, me: NodeId) -> bool {
        if self.has_given_up() && info.known > self.given_up {
            return true;
        }
        let (view, at) = (info.branch.view, info.branch.at);
        let is_active = view.0 > 0 && info.known >= view && self.view_number() < view;
        // All that was told before a word of force may be of frames that it leaves. A survivor goes on with what it has, and so does
        // who is in a later view already, which may be active by now: that word is older than the log.
        let is_news = self.info.as_ref().is_none_or(|i| i.forced != info.forced) && self.view_number() <= info.active;
        let word = info.forced.as_ref().filter(|f| is_news && !f.survivors.contains(&me));
        let may_be_lost = word.is_some_and(|f| self.is_ahead(ViewNumber(u64::MAX), f.least));
        (is_active && (self.committed > at || self.is_ahead(view, at))) || may_be_lost
    }

    /// The part of this log that counts when the active view is left.
    pub fn log_status(&self) -> LogStatus {
        let active = self.active();
        let answer = self.seal_answer(active, active);
        let (last, version) = self.end_by_force(answer.last);
        let lacks_secret = self.head.as_ref().is_some_and(|h| h.slices_told.is_some()) && !self.is_open_head();
        LogStatus {
            active,
            has_view: answer.has_pred,
            last,
            version,
            committed: self.known_committed(),
            promised: answer.promised,
            lost: self.damage.missing() + self.damage.absent.map_or(0, |(since, upto)| upto.0 - since.0),
            has_given_up: self.has_given_up(),
            is_suspect: self.damage.suspect_tail
                || self.end_in(active).is_none()
                || (self.is_doubtful && self.is_empty_log()),
            is_stopped: self.stopped.is_some(),
            lacks_secret,
        }
    }
}

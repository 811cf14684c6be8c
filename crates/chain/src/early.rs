//! Members that count for new writes before they have everything (rules V16 to V20, design note 39): the state comes first,
//! frames behind it as anybody's, and what lies in front is learned meanwhile, as what is left of lost frames is.
//!
//! Invariants:
//! - Who has a hole counts only in a view whose frame names it early, and leads nothing, is read from nowhere, and tells nobody
//!   of the map below it (V20).
//! - The state is given by the head of an active view alone, as of a committed frame that is not in front of that view's own (V16 b),
//!   and not before enough members that have everything hold that one (V16 a). In later views that counts for as long as all of
//!   these stay.
//! - Who is to come to a view that goes on, and lacks something, is not level: nothing waits until it has learned (V14).
//! - A view with such members becomes active, and answers, by all its members (V18).
//! - Who stands in for another one learns nothing in front of its views while the control plane says so (V21).
//! - Nobody takes it who has that frame, or may be known to have everything: the control plane would take it for whole.

use crate::event::{Action, Mutant, Opened, ShardInfo};
use crate::replica::{Ctx, Replica, TailEntry};
use crate::sync::Asking;
use crate::timing;
use crate::{learn::Learning, open::Phase};
use freebs_format::wire::{SealAnswer, SyncReply, SyncRequest};
use freebs_format::{FrameHead, FrameKind, MarkBody, ViewBody};
use freebs_io::LinkId;
use freebs_lsvd::{KeptState, MapPlace, MarkChange, Record};
use freebs_types::{Lba, NodeId, Sequence, Version};
use std::collections::BTreeMap;

/// True if a view lets a node count early.
fn is_named(body: &ViewBody, node: NodeId) -> bool {
    body.members.iter().any(|m| m.node == node && m.early)
}

/// The quorum of a chain of so many members of a volume that asks for a majority.
fn quorum_of(len: usize, min_copies: u8) -> usize {
    len.min((len / 2 + 1).max(usize::from(min_copies)))
}

/// The members that may count early in a view that is to be opened (V16 c). With the answers of all, nothing would be won.
pub(crate) fn early_in(opened: &Opened, answers: &BTreeMap<NodeId, SealAnswer>, mutant: Option<Mutant>) -> Vec<NodeId> {
    let is_new = |n: &&NodeId| opened.joining.contains(n);
    let whole = opened.members.iter().filter(|n| !is_new(n)).count();
    // One that is there, and left all the same, may have had the only other copy.
    let has_left = |n: &NodeId| opened.pred_members.contains(n) && !opened.members.contains(n);
    let is_left_out = answers.keys().any(has_left) && mutant != Some(Mutant::EarlyForThoseThere);
    let is_safe = whole > 0 && (whole >= usize::from(opened.min_copies) || !is_left_out);
    let is_of_all = usize::from(opened.quorum) >= opened.members.len();
    let begins = opened.pred.0 == 0 || opened.forced.is_some();
    match is_safe && !is_of_all && !begins {
        true => opened.members.iter().filter(is_new).copied().collect(),
        false => Vec::new(),
    }
}

/// Those of the members that may count early in a view that need not wait for others to hold its frame, although they lack
/// something (V16 a). They counted in the view before, so enough of its members that have everything hold what they lack; and
/// if all of these stay, that is so here, too, whoever of them is there. `before`: the view before.
pub(crate) fn still_early(
    opened: &Opened,
    answers: &BTreeMap<NodeId, SealAnswer>,
    early: &[NodeId],
    before: &ViewBody,
    mutant: Option<Mutant>,
) -> Vec<NodeId> {
    let mut whole = before.members.iter().filter(|m| !m.early);
    let all_stay = whole.all(|m| opened.members.contains(&m.node) && !early.contains(&m.node));
    let counted = |n: &NodeId| is_named(before, *n) && answers.get(n).is_some_and(|a| a.has_pred);
    match all_stay || mutant == Some(Mutant::EarlyWithoutLeavers) {
        true => early.iter().copied().filter(counted).collect(),
        false => Vec::new(),
    }
}

impl Replica {
    /// True if what lies in front of some frame of this log never came: this member is not whole.
    pub(crate) fn lacks_some(&self) -> bool {
        self.damage.absent.is_some()
    }

    /// A member that lacks something counts in a view that says so, and in no other one.
    pub(crate) fn may_count(&self) -> bool {
        let is_early = |me| self.view.as_ref().is_some_and(|v| is_named(&v.body, me));
        !self.lacks_some() || self.me.is_none_or(is_early)
    }

    /// Only a whole member leads (V20).
    pub(crate) fn may_not_lead(&self, ctx: &Ctx<'_>) -> bool {
        self.lacks_some() && !ctx.mutant(Mutant::EarlyLeads)
    }

    /// Nothing is read of a log that lacks something (V20).
    pub(crate) fn may_not_be_read(&self, ctx: &Ctx<'_>) -> bool {
        self.lacks_some() && !ctx.mutant(Mutant::EarlyReads)
    }

    /// True if this node would begin with the state alone: it is new, and no clone's shard is to be learned.
    pub(crate) fn would_begin_early(&self, me: NodeId) -> bool {
        let may = |i: &ShardInfo| i.joining.contains(&me) && i.fork.is_none() && !i.flatten;
        self.info.as_ref().is_some_and(may)
    }

    /// True if enough members that have everything hold the view's frame, and so all in front of it (V16 a).
    fn is_safe_without(&self, ctx: &Ctx<'_>) -> bool {
        let (Some(v), Some(h)) = (self.view.as_ref(), self.head.as_ref()) else { return false };
        let is_whole = |n: NodeId| !is_named(&v.body, n);
        let whole = v.body.members.iter().filter(|m| is_whole(m.node)).count();
        let holding = h.members.iter().filter(|m| is_whole(m.node) && m.durable >= v.sequence).count();
        holding >= quorum_of(whole, v.body.min_copies).max(1) || ctx.mutant(Mutant::EarlyUnsafe)
    }

    /// As head: whether an early member's question is put off, because it may count by the answer and must not yet, or because
    /// soon it may begin with the state alone.
    pub(crate) fn puts_off_early(&self, ctx: &Ctx<'_>, link: LinkId, r: &SyncRequest) -> bool {
        let asker = ctx.peers.owner(link).map(|p| p.node);
        let (Some(v), Some(h), Some(node)) = (self.view.as_ref(), self.head.as_ref(), asker) else { return false };
        if !is_named(&v.body, node) {
            return false;
        }
        // Those that have everything are enough for the view: it is active in a moment, and the control plane says so.
        let whole = v.body.members.iter().filter(|m| !m.early).count();
        // Who stands in has nothing to learn, however long that takes (V21).
        let stands_in = self.stands_in(node) && !ctx.mutant(Mutant::StandInsLearn);
        let is_soon = stands_in || (whole >= h.quorum && ctx.now.since(h.at) < timing::EARLY_PATIENCE);
        let opens = matches!(h.phase, Phase::Opening { .. } | Phase::Activating { .. }) || self.heard_active < v.number;
        let is_safe = self.is_safe_without(ctx) || h.still_early.contains(&node);
        (r.lacks && !is_safe) || (r.early && !r.lacks && opens && is_soon)
    }

    /// As head: gives an early member the state alone, if it is safe without what it lacks. `since`: the last frame that both have.
    pub(crate) fn gives_state(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: &SyncRequest, since: Sequence) -> bool {
        let asker = ctx.peers.owner(link).map(|p| p.node);
        let (Some(v), Some(node)) = (self.view.as_ref(), asker) else { return false };
        // A newer state of the control plane would know if it had everything in a view before, and its answers if in this one.
        let joins = |i: &ShardInfo| i.joining.contains(&node) && self.heard_active >= v.number;
        let is_new = self.info.as_ref().is_some_and(|i| joins(i) && i.fork.is_none() && !i.flatten);
        let has_answered = self.head.iter().flat_map(|h| &h.members).any(|m| m.node == node && m.durable.0 > 0);
        let may = r.early && is_named(&v.body, node) && is_new && !has_answered && !r.map_from.is_some();
        if !may || !self.is_active_head() || !self.is_safe_without(ctx) {
            return false;
        }
        // All that is not known to be committed comes as frames: a member that is asked for it must have it (V16 b).
        let upto = if ctx.mutant(Mutant::EarlyWithoutTail) { self.durable } else { self.committed.min(self.durable) };
        let view_is_in = self.view.as_ref().is_some_and(|v| v.sequence <= upto);
        let Some(state) = self.tail.get(&upto).copied().filter(|_| view_is_in && since < upto) else { return false };
        self.map_hold = Some((state, ctx.now));
        // No entry is read: none lies behind the end.
        let after = MapPlace { lba: Lba(u32::MAX), ..MapPlace::default() };
        let request = SyncRequest { map_since: since, ..r.clone() };
        ctx.out.actions.push(Action::MapRead { link, request, since: upto, upto, past: upto, after });
        true
    }

    /// The shard's state as of a frame of the tail. Floors and attachments of later frames do no harm in it.
    pub(crate) fn state_at(&self, at: &TailEntry, view_frame: Option<FrameHead>) -> MarkBody {
        let (last_parent, last_digest) = at.origin();
        let mut requests = self.requests.clone();
        requests.cut(at.name.sequence);
        MarkBody {
            committed: at.name.sequence,
            attach: self.attach,
            last_view: at.name.view,
            last_parent,
            last_digest,
            view_frame,
            requests: requests.to_format(),
            ..MarkBody::default()
        }
    }

    /// The state of the head has come: the log goes on from it, and says what it lacks (V17).
    pub(crate) fn on_state_reply(&mut self, ctx: &mut Ctx<'_>, asking: Asking, reply: &SyncReply) {
        self.asking = None;
        let Some(mark) = reply.frames.get(1).filter(|f| f.head.kind() == FrameKind::Mark) else { return };
        let is_ours = mark.head.shard() == self.id && reply.common <= asking.named;
        // One that has the view's frame may have answered in it, and counts for whole or not from then on.
        let is_in = self.view_number() >= asking.view;
        if !is_ours || is_in || !self.would_begin_early(ctx.config.me.node) {
            return;
        }
        // As where a map begins: what was named behind the common frame is of a branch that was cut.
        let common = reply.common.max(self.committed);
        if common < asking.named.min(self.last.sequence) {
            self.cut(ctx, common);
        }
        if self.stopped.is_some() || mark.head.seq() <= self.last.sequence {
            return;
        }
        let Some(kept) = self.kept_with(ctx, reply) else { return };
        // It stands in front, or history would count as let go of.
        let ticket = ctx.ticket();
        let change = MarkChange { kept: Some(Box::new(kept)), ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
        self.told_kept = KeptState::default();
        let map = Learning::new(common, mark.head.seq(), Version(0));
        if self.take_state(ctx, &map, mark, true) {
            let until = self.wanted_until();
            self.ask(ctx, asking.to, asking.view, until);
        }
    }

    /// True if a node stands in for another one, by the control plane's word.
    fn stands_in(&self, node: NodeId) -> bool {
        self.info.as_ref().is_some_and(|i| i.standing.contains(&node))
    }

    /// As head: true if a member stands in, and would have to learn everything now (V21).
    pub(crate) fn learns_for_nothing(&self, ctx: &Ctx<'_>, link: LinkId, r: &SyncRequest) -> bool {
        let asker = ctx.peers.owner(link).map(|p| p.node);
        r.early && asker.is_some_and(|n| self.stands_in(n)) && !ctx.mutant(Mutant::StandInsLearn)
    }

    /// True if something of what lies in front may be asked for now.
    pub(crate) fn learns_behind(&mut self, ctx: &Ctx<'_>) -> bool {
        // A place is kept for the one that has it all (V21).
        if self.stands_in(ctx.config.me.node) && !ctx.mutant(Mutant::StandInsLearn) {
            return false;
        }
        self.lacks_some() && ctx.now.since(*self.damage.absent_at.get_or_insert(ctx.now)) >= ctx.config.early_pause
    }

    /// The log lacks what lies behind `since`, up to `upto`.
    pub(crate) fn begins_behind(&mut self, since: Sequence, upto: Sequence) {
        let before = self.damage.absent.unwrap_or((since, upto));
        self.damage.absent = Some((before.0.min(since), before.1.max(upto)));
        self.damage.absent_at = None;
        self.damage.put_off_learning();
    }

    /// Until the control plane knows that this member is whole the head hears so now and then: the word may have been lost, and
    /// without writes there is no other one.
    pub(crate) fn tell_whole(&mut self, ctx: &mut Ctx<'_>) {
        let me = ctx.config.me.node;
        let joins = self.info.as_ref().is_some_and(|i| i.joining.contains(&me));
        let is_early = self.view.as_ref().is_some_and(|v| is_named(&v.body, me));
        if joins && is_early && !self.lacks_some() && ctx.now.since(self.told_whole) >= timing::COMPLETE_AGAIN {
            self.told_whole = ctx.now;
            self.answer_durable(ctx);
        }
    }

    /// All that lay in front was learned, and is durable: the head hears that this member is whole.
    pub(crate) fn has_learned_behind(&mut self, ctx: &mut Ctx<'_>, since: Sequence, upto: Sequence) {
        if self.damage.absent.is_some_and(|(from, to)| since <= from && to <= upto) {
            self.damage.absent = None;
            ctx.out.note(format!("shard {}: has everything that lay in front of frame {upto}", self.id));
            self.answer_durable(ctx);
        }
    }
}

//! Opening a view (rules V1 to V6): how a head that restarted comes back, how another member becomes head, how members
//! take the places of others, and how the first view of a shard begins.
//!
//! A head that nobody has replaced, and that is to open another view all the same, orders in the present one until it
//! promises the next: the control plane may be away for long.
//!
//! Closed → Proposing (control numbers the view; or Active, if it was that before) → Sealing (promises and logs of the predecessor's members) →
//! Fetching (the longest log, if it is not ours) → Opening (the view frame on a quorum) → Activating → Active.

use crate::event::{Action, Begins, Forced, Mutant, Opened};
use crate::head::{Head, Member, Said, view_secret};
use crate::replica::{Ctx, Replica};
use crate::timing;
use crate::window::retained_in;
use freebs_format::wire::{FrameName, Given, Message, SealAnswer};
use freebs_format::{FrameBuilder, FrameKind, FrameMeta, Member as ViewMember, ViewBody, VolumeDescription, hide};
use freebs_types::{ChunkId, Error, Hash32, Nanos, NodeId, Peer, Result, Sequence, StartNumber, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// A head whose device is full proposes the next view after the pause that follows this many failures.
const FULL_FAILURES: u32 = 5;

#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Not open; the next proposal goes out at the next tick.
    Closed,
    Proposing,
    Sealing {
        opened: Opened,
        answers: BTreeMap<NodeId, SealAnswer>,
        /// Nodes that have promised a later view.
        beyond: BTreeSet<NodeId>,
        /// The highest committed sequence that any answer named, whether it counts or not (V3).
        floor: Sequence,
        asked: Nanos,
        /// When a member's link came up last.
        linked: BTreeMap<NodeId, Nanos>,
    },
    Fetching {
        view: ViewNumber,
        opened: Opened,
        seal: FrameName,
        /// Who has it.
        winner: Peer,
        asked: Nanos,
    },
    Opening {
        view: ViewNumber,
        sequence: Sequence,
    },
    Activating {
        view: ViewNumber,
    },
    Active,
}

impl Opened {
    /// Answers that seal the predecessor: so many meet every quorum of it (V2).
    pub(crate) fn answers_needed(&self) -> usize {
        let len = self.pred_members.len();
        len + 1 - usize::from(self.pred_quorum).clamp(1, len.max(1))
    }

    /// True if the predecessor can be sealed, and the view be held by a quorum, without these nodes.
    fn can_do_without(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let others = |of: &[NodeId]| of.iter().filter(|n| !nodes.contains(n)).count();
        // Going on by force needs all survivors (V10).
        let is_forced_by = |f: &Forced| f.survivors.iter().any(|n| nodes.contains(n));
        !self.forced.as_ref().is_some_and(is_forced_by)
            && others(&self.pred_members) >= self.answers_needed()
            && others(&self.members) >= usize::from(self.quorum)
    }
}

impl Replica {
    /// The control plane says that this node is the shard's head: it opens a view of its own (W2).
    pub fn become_head(&mut self, ctx: &mut Ctx<'_>) {
        if self.head.is_some() {
            return;
        }
        self.head = Some(Box::new(Head::new(ctx.now)));
        if ctx.mutant(Mutant::HeadOrdersAfterRestart)
            && self.view.is_some()
            && self.head_node() == Some(ctx.config.me.node)
        {
            self.resume_without_a_view(ctx);
            return;
        }
        self.propose(ctx);
    }

    /// Only for the mutant of W2: what a head must not do.
    fn resume_without_a_view(&mut self, ctx: &mut Ctx<'_>) {
        let Some(v) = self.view.clone() else { return };
        let members = self.members_of(ctx, &v.body.members.iter().map(|m| m.node).collect::<Vec<_>>());
        let secret = view_secret(&ctx.config.node_secret, self.id, v.number);
        let token = self.last_token(&ctx.config.node_secret);
        if let Some(h) = self.head.as_mut() {
            h.reset(members, usize::from(v.body.quorum), secret, token);
            h.phase = Phase::Active;
        }
        self.learn_active(ctx);
        self.nudge_all(ctx);
    }

    fn members_of(&self, ctx: &Ctx<'_>, nodes: &[NodeId]) -> Vec<Member> {
        nodes
            .iter()
            .map(|n| Member {
                node: *n,
                peer: ctx.peer(*n, self.id),
                durable: Sequence(0),
                live: false,
                said: Said::default(),
                waiting_since: None,
                nudged: Nanos(0),
            })
            .collect()
    }

    fn set_phase(&mut self, now: Nanos, phase: Phase) {
        if let Some(h) = self.head.as_mut() {
            h.phase = phase;
            h.at = now;
        }
    }

    /// The control plane says that another node is the shard's head.
    pub fn step_down(&mut self, ctx: &mut Ctx<'_>) {
        if self.head.is_some() && !ctx.mutant(Mutant::HeadDoesNotStepDown) {
            self.head = None;
            ctx.out.note(format!("shard {}: another node is its head now", self.id));
        }
    }

    /// Another node opens a newer view, so the control plane named it. If that is not so any more, this node opens the
    /// next one.
    pub fn yield_to(&mut self, ctx: &mut Ctx<'_>) {
        if self.head.is_some() && !ctx.mutant(Mutant::HeadDoesNotStepDown) {
            self.head = Some(Box::new(Head::new(ctx.now)));
        }
    }

    fn propose(&mut self, ctx: &mut Ctx<'_>) {
        if self.stopped.is_some() {
            return;
        }
        self.set_phase(ctx.now, Phase::Proposing);
        self.ask_for_a_view(ctx);
    }

    /// One question at a time: the answer to an earlier one is as good, and what comes of it is seen when it is there.
    fn ask_for_a_view(&mut self, ctx: &mut Ctx<'_>) {
        if !std::mem::replace(&mut self.proposing, true) {
            let active = self.active();
            ctx.out.actions.push(Action::Propose { shard: self.id, active });
        }
    }

    /// Another view is to follow this one, and nothing is wrong with this one.
    fn plan(&mut self, ctx: &mut Ctx<'_>, what: &str) {
        let Some(h) = self.head.as_ref().filter(|h| h.plan_at <= ctx.now) else { return };
        if self.proposing {
            return;
        }
        if h.failures == 0 {
            ctx.out.note(format!("shard {}: {what}", self.id));
        }
        match ctx.mutant(Mutant::PlansStopOrders) {
            true => self.propose(ctx),
            false => self.ask_for_a_view(ctx),
        }
    }

    /// The view was opened before all members had named host keys, and only this node can follow it. By now they have.
    pub fn ask_for_slices(&mut self, ctx: &mut Ctx<'_>) {
        let has_none = self.view.as_ref().is_some_and(|v| v.body.shared.is_none());
        let can_have = self.info.as_ref().is_some_and(|i| i.has_keys) && !ctx.knows_secrets();
        if !(has_none && can_have && self.is_active_head()) || self.waits_for_coming(ctx) {
            return;
        }
        if self.head.as_ref().is_some_and(|h| !h.asked_for_slices) {
            self.plan(ctx, "all members have named host keys");
            let is_asked = self.proposing;
            self.head.iter_mut().for_each(|h| h.asked_for_slices = is_asked);
        }
    }

    /// The control plane names other members than the view has, or the volume is another one than the view frame says:
    /// the next view is to have that (V1, V9). What it names is newer than the view if it knows of that view.
    pub fn ask_for_members(&mut self, ctx: &mut Ctx<'_>) {
        let Some((view, info)) = self.view.as_ref().zip(self.info.as_ref()) else { return };
        let is_in = |n: &NodeId| view.body.members.iter().any(|m| m.node == *n);
        let others = info.members.len() != view.body.members.len() || !info.members.iter().all(is_in);
        let (number, is_newer) = (view.number, info.highest >= view.number);
        // The state in which a branch is active may come later than that it is.
        let is_same = |of: &VolumeDescription| view.body.volume.as_deref().is_some_and(|v| v.is_same_volume(of));
        let is_another = info.volume.as_deref().is_some_and(|of| !is_same(of));
        if is_newer && others && self.is_active_head() && ctx.mutant(Mutant::MembersChangeInView) {
            return self.take_members_in(ctx);
        }
        if is_newer && (others || is_another) && self.is_active_head() && !self.waits_for_coming(ctx) {
            let what = if is_another { "another size or name" } else { "other members" };
            let text = format!("{what} than in view {number} is named");
            self.plan(ctx, &text);
        }
    }

    /// Only for the mutant of V1: what a head must not do.
    fn take_members_in(&mut self, ctx: &mut Ctx<'_>) {
        let Some(nodes) = self.info.as_ref().map(|i| i.members.clone()) else { return };
        let new = self.members_of(ctx, &nodes);
        let Some(h) = self.head.as_mut() else { return };
        let is_new = |m: &Member| h.members.iter().all(|old| old.node != m.node);
        let new: Vec<Member> = new.into_iter().filter(is_new).collect();
        h.members.retain(|m| nodes.contains(&m.node));
        h.members.extend(new);
    }

    /// New members answer in the view, so they hold all that was before it: the control plane hears that, now and then
    /// for as long as it does not know (V7).
    pub fn tell_complete(&mut self, ctx: &mut Ctx<'_>) {
        let (Some(view), Some(info), true) = (&self.view, &self.info, self.is_active_head()) else { return };
        let Some(h) = self.head.as_ref().filter(|h| !info.joining.is_empty() && h.says_complete_again(ctx.now)) else {
            return;
        };
        let too_early = ctx.mutant(Mutant::CompleteTooEarly);
        let has_all = |m: &&Member| info.joining.contains(&m.node) && (m.durable >= view.sequence || too_early);
        let nodes: Vec<NodeId> = h.members.iter().filter(has_all).map(|m| m.node).collect();
        if nodes.is_empty() || info.active != view.number {
            return;
        }
        ctx.out.actions.push(Action::Complete { shard: self.id, view: view.number, nodes });
        if let Some(h) = self.head.as_mut() {
            h.told_complete = ctx.now;
        }
    }

    /// Another node was head in between and has a newer view's number, and perhaps promises for it, of which this node
    /// need not have heard. Its own view will not get on, so it opens one above them all.
    pub fn see_whether_overtaken(&mut self, ctx: &mut Ctx<'_>) {
        let highest = self.info.as_ref().map(|i| i.highest).unwrap_or_default();
        let view = match self.head.as_ref().map(|h| &h.phase) {
            Some(Phase::Sealing { opened, .. }) => opened.view,
            Some(Phase::Fetching { view, .. } | Phase::Opening { view, .. } | Phase::Activating { view }) => *view,
            // The number may be its own, the answer with which was lost. Whoever promised it takes nothing from here any
            // more, so nothing is lost by going on until a view above it is there.
            Some(Phase::Active) => {
                let view = self.view_number();
                if view < highest && !ctx.mutant(Mutant::HeadOrdersAfterRestart) {
                    self.plan(ctx, &format!("view {view} was overtaken by view {highest}"));
                }
                return;
            }
            Some(Phase::Closed | Phase::Proposing) | None => return,
        };
        if view < highest && !ctx.mutant(Mutant::HeadOrdersAfterRestart) {
            ctx.out.note(format!("shard {}: view {view} was overtaken by view {highest}", self.id));
            self.yield_to(ctx);
        }
    }

    /// The control plane committed a pending view: promise, and ask the predecessor's members to (V2).
    pub fn on_proposed(&mut self, ctx: &mut Ctx<'_>, result: Result<Opened>, seed: Hash32) {
        self.proposing = false;
        let is_active = self.is_active_head();
        let Some(h) = self.head.as_mut().filter(|h| is_active || matches!(h.phase, Phase::Proposing)) else { return };
        let opened = match result {
            Ok(o) => o,
            Err(e) => {
                h.plan_at = ctx.now.plus(Nanos(timing::PROPOSE_AGAIN.0 << h.failures.min(5)));
                h.failures += 1;
                if h.failures.is_power_of_two() {
                    ctx.out.note(format!("shard {}: no view yet: {e}", self.id));
                }
                h.asked_for_slices &= !is_active;
                return self.has_no_view(ctx.now, is_active);
            }
        };
        h.failures = 0;
        let (view, pred) = (opened.view, opened.pred);
        if view <= self.promise() || view <= self.view_number() {
            return self.has_no_view(ctx.now, is_active);
        }
        let Some(h) = self.head.as_mut() else { return };
        h.seed = seed;
        h.gathered.clear();
        // Requests that came before the promise are ordered before it, and nothing behind it.
        self.pack(ctx);
        self.asking = None;
        let (answers, beyond) = (BTreeMap::new(), BTreeSet::new());
        let floor = Sequence(0);
        self.set_phase(
            ctx.now,
            Phase::Sealing { opened, answers, beyond, floor, asked: Nanos(0), linked: BTreeMap::new() },
        );
        self.promise_durably(ctx, (view, pred), None, None);
        self.ask_for_seals(ctx);
    }

    /// No view came of a proposal. A head that was open before still is.
    fn has_no_view(&mut self, now: Nanos, is_active: bool) {
        if !is_active {
            self.set_phase(now, Phase::Closed);
        }
    }

    fn ask_for_seals(&mut self, ctx: &mut Ctx<'_>) {
        let me = ctx.config.me.node;
        let now = ctx.now;
        let Some(Phase::Sealing { opened, answers, asked, .. }) = self.head.as_mut().map(|h| &mut h.phase) else {
            return;
        };
        if opened.pred == ViewNumber(0) || (asked.0 > 0 && now.since(*asked) < timing::SEAL_AGAIN) {
            return;
        }
        *asked = now;
        // Damage is mended meanwhile: who has told of it is asked again. So is who had no slice and may be sent it.
        let missing = |n: &NodeId| answers.get(n).is_none_or(|a| a.damaged || a.given == Given::Nothing);
        let (view, pred) = (opened.view, opened.pred);
        let own = answers.contains_key(&me) && missing(&me);
        let missing: Vec<NodeId> = opened.sealers().filter(|n| *n != me && missing(n)).collect();
        if own && !self.damage.is_there() {
            let answer = self.whole_answer(ctx, view, pred, None);
            self.on_seal_answer(ctx, me, answer);
        }
        for n in missing {
            if let Some(link) = ctx.peers.link(ctx.peer(n, self.id)) {
                let slice = self.slice_for(pred, n);
                ctx.out.send(link, Message::Seal { shard: self.id, view, pred, slice });
            }
        }
        self.tell_what_it_waits_for(ctx);
    }

    pub fn on_seal_answer(&mut self, ctx: &mut Ctx<'_>, from: NodeId, mut answer: SealAnswer) {
        answer.given = self.counted(&answer);
        let phase = self.head.as_mut().map(|h| &mut h.phase);
        let Some(Phase::Sealing { opened, answers, beyond, floor, .. }) = phase else { return };
        let is_asked = opened.sealers().any(|n| n == from) || ctx.mutant(Mutant::LeftOnesSeal);
        if answer.view != opened.view || answer.pred != opened.pred || !is_asked {
            return;
        }
        // A log without the view's frame says nothing of what is committed in it: it may be of what was lost by force before the
        // view, and sequences of different histories are not compared (W4).
        if answer.has_pred {
            *floor = answer.committed.max(*floor);
        }
        if answer.promised > opened.view {
            if beyond.insert(from) {
                ctx.out.note(format!("shard {}: {from} has promised view {}", self.id, answer.promised));
            }
            if from == ctx.config.me.node || !opened.can_do_without(beyond) {
                self.set_phase(ctx.now, Phase::Closed);
            }
            return;
        }
        // Whose promise is lower has none for this view: it may go on answering in the one before (V2).
        if answer.promised < opened.view {
            return;
        }
        answers.insert(from, answer);
        if let Some(h) = self.head.as_mut().filter(|_| answer.given != Given::Nothing) {
            h.gathered.insert(from, answer.given);
        }
        self.try_to_seal(ctx);
    }

    /// Seals when enough members have answered, or all of those whose word is enough by force (V10).
    pub(crate) fn try_to_seal(&mut self, ctx: &mut Ctx<'_>) {
        let me = ctx.config.me.node;
        let Some(h) = self.head.as_ref() else { return };
        let Phase::Sealing { opened, answers, floor, .. } = &h.phase else { return };
        if !answers.contains_key(&me) {
            return;
        }
        // A head that may give up what was lost gets it from nobody once the view is another (V10): it waits until it has it again.
        let gives_up = opened.forced.as_ref().is_some_and(|f| f.gives_up > 0) && !self.damage.holes.is_empty();
        let is_less = (self.has_given_up() && !ctx.mutant(Mutant::GivenUpCounts)) || gives_up;
        let sealed = if is_less { None } else { self.sealed_at(ctx, opened, answers, *floor) };
        let by_force = sealed.is_none();
        let Some((winner, seal)) = sealed.or_else(|| self.forced_at(ctx, opened, answers)) else {
            return;
        };
        let seal = match by_force && ctx.mutant(Mutant::ForcedFromCommitted) {
            true => self.tail.first_key_value().map_or(seal, |(_, t)| t.name),
            false => seal,
        };
        let opened = opened.clone();
        let own = answers.get(&me).map(|a| (a.last, a.has_pred)).unwrap_or_default();
        self.head.iter_mut().for_each(|h| h.by_force = by_force);
        if winner == me || (own.0 == seal && own.1) || ctx.mutant(Mutant::ShortestLogWins) {
            let seal = if ctx.mutant(Mutant::ShortestLogWins) { own.0 } else { seal };
            self.open_at(ctx, &opened, seal);
        } else {
            let (view, winner) = (opened.view, ctx.peer(winner, self.id));
            self.set_phase(ctx.now, Phase::Fetching { view, opened, seal, winner, asked: ctx.now });
            self.ask(ctx, winner, view, seal.sequence);
        }
    }

    /// The member whose log the predecessor is sealed at, and where, if enough have answered: len − A + 1 of its members
    /// meet every quorum of it.
    fn sealed_at(
        &self,
        ctx: &mut Ctx<'_>,
        opened: &Opened,
        answers: &BTreeMap<NodeId, SealAnswer>,
        floor: Sequence,
    ) -> Option<(NodeId, FrameName)> {
        let me = ctx.config.me.node;
        let (len, mut needed) = (opened.pred_members.len(), opened.answers_needed());
        if opened.pred == ViewNumber(0) || ctx.mutant(Mutant::SealAlone) || ctx.mutant(Mutant::ShortestLogWins) {
            needed = 1;
        }
        // A single copy has nobody to ask: what its log engine knows to be lost gives errors, the rest is served.
        let lone = len == 1 && !self.damage.suspect_tail && self.stopped.is_none();
        // Before there was any active view nothing was promised to anybody, so nothing can be missing.
        let is_first = opened.pred == ViewNumber(0);
        // A log without any frame may be a device that was lost: it does not count, unless it never had any (V2).
        let had_none = |n: &NodeId| opened.pred_learning.contains(n) || ctx.mutant(Mutant::EmptyLogsCount);
        let has_some = |n: &NodeId, a: &SealAnswer| a.has_pred || a.last.view.0 > 0 || had_none(n);
        let anyone = ctx.mutant(Mutant::LeftOnesSeal);
        let is_member = |n: &NodeId| (opened.pred_members.contains(n) || anyone) && !opened.pred_unseen.contains(n);
        // A clone's shard begins at its fork, and nowhere else.
        let begins = |a: &SealAnswer| !is_first || a.last == self.begins;
        let is_sound = |a: &SealAnswer| !a.damaged || lone || is_first;
        let counts = |n: &NodeId, a: &SealAnswer| is_member(n) && is_sound(a) && has_some(n, a) && begins(a);
        let counting: Vec<(&NodeId, &SealAnswer)> = answers.iter().filter(|(n, a)| counts(n, a)).collect();
        if counting.len() < needed {
            return None;
        }
        let (winner, seal) = counting
            .iter()
            .filter(|(_, a)| a.has_pred)
            .max_by_key(|(n, a)| (a.last.sequence, **n == me))
            .map(|(n, a)| (**n, a.last))?;
        // Nothing is sealed below a committed sequence named in any answer (V3).
        if seal.sequence < floor && !ctx.mutant(Mutant::SealsBelowCommitted) {
            return None;
        }
        let new = counting.iter().map(|(n, _)| **n).filter(|n| opened.pred_learning.contains(n));
        let empty: Vec<NodeId> = new.filter(|n| answers[n].last.view.0 == 0).collect();
        if !empty.is_empty() {
            ctx.out.note(format!("shard {}: nodes {empty:?} have nothing of view {} yet", self.id, opened.pred));
        }
        Some((winner, seal))
    }

    /// A log that is out of use can't lead, and nobody else sees that it does not: its node answers. For as long as it is
    /// named, it asks for each of the other members in turn to be head.
    pub fn hand_over_tick(&mut self, ctx: &mut Ctx<'_>, why: &str) {
        let me = ctx.config.me.node;
        let others = match self.info.as_ref().map(|i| &i.members[..]) {
            Some([first, others @ ..]) if *first == me && !others.is_empty() => others,
            _ => return,
        };
        let (at, times) = self.handed_over.unwrap_or_default();
        if times > 0 && ctx.now.since(at) < Nanos(timing::HAND_OVER_AGAIN.0 << (times - 1).min(5)) {
            return;
        }
        let to = others[times as usize % others.len()];
        self.handed_over = Some((ctx.now, times.saturating_add(1)));
        ctx.out.note(format!("shard {}: {why}; node {to} is to be head", self.id));
        ctx.out.actions.push(Action::HandOver { shard: self.id, to });
    }

    /// Something of the longest log has arrived.
    pub fn fetch_gets_on(&mut self, now: Nanos) {
        if let Some(h) = self.head.as_mut().filter(|h| matches!(h.phase, Phase::Fetching { .. })) {
            h.at = now;
        }
    }

    /// This device has no room for the longest log, and nobody says when it will: who has that log can be the head.
    pub fn has_no_room_to_fetch(&mut self, ctx: &mut Ctx<'_>) {
        let Some(h) = self.head.as_mut() else { return };
        let Phase::Fetching { winner, .. } = h.phase else { return };
        h.failures = FULL_FAILURES;
        self.asking = None;
        self.set_phase(ctx.now, Phase::Closed);
        let to = winner.node;
        ctx.out.note(format!("shard {}: no room for the longest log; node {to}, which has it, is to be head", self.id));
        ctx.out.actions.push(Action::HandOver { shard: self.id, to });
    }

    /// The log has no room for a promise. It was told to nobody, so it is none; who asked for it asks again.
    pub fn promise_refused(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        if self.promising.take_if(|p| p.ticket == ticket).is_some_and(|p| p.asker.is_none()) {
            if let Some(h) = self.head.as_mut() {
                h.failures = FULL_FAILURES;
            }
            self.set_phase(ctx.now, Phase::Closed);
        }
    }

    /// An answer that came while the disk was behind, or while cleaning made room, was not taken.
    fn fetch_again(&mut self, ctx: &mut Ctx<'_>) {
        let is_idle = self.asking.is_none();
        let Some(Phase::Fetching { view, seal, winner, asked, .. }) = self.head.as_mut().map(|h| &mut h.phase) else {
            return;
        };
        if is_idle && ctx.now.since(*asked) >= timing::OPENING_FETCH_AGAIN {
            *asked = ctx.now;
            let (to, view, until) = (*winner, *view, seal.sequence);
            self.ask(ctx, to, view, until);
        }
    }

    /// The longest log has arrived up to its end.
    pub fn on_fetched(&mut self, ctx: &mut Ctx<'_>) {
        let Some(Phase::Fetching { opened, seal, .. }) = self.head.as_ref().map(|h| &h.phase) else { return };
        let (opened, seal) = (opened.clone(), *seal);
        if self.tail.get(&seal.sequence).is_some_and(|t| t.name.hid == seal.hid) {
            self.open_at(ctx, &opened, seal);
        } else {
            self.set_phase(ctx.now, Phase::Closed);
        }
    }

    /// Cuts what is behind the seal and appends the view frame; the others get both by SYNC (V5).
    fn open_at(&mut self, ctx: &mut Ctx<'_>, opened: &Opened, seal: FrameName) {
        let Some(h) = self.head.as_ref() else { return };
        let (seed, reaches) = (h.seed, self.tail.get(&seal.sequence).is_some_and(|t| t.name.hid == seal.hid));
        let Some((pred_secret, parent)) = self.goes_on_from(ctx, opened, seal) else {
            if reaches {
                self.lacks_slices(ctx, opened);
            } else {
                ctx.out.note(format!("shard {}: own log does not reach the seal {}", self.id, seal.sequence));
                self.set_phase(ctx.now, Phase::Closed);
            }
            return;
        };
        self.cut(ctx, seal.sequence);
        if self.stopped.is_some() || self.last.sequence != seal.sequence || self.last.hid != seal.hid {
            ctx.out.note(format!("shard {}: own log does not reach the seal {}", self.id, seal.sequence));
            self.set_phase(ctx.now, Phase::Closed);
            return;
        }
        let (secret, shared) = self.make_secret(ctx, opened, &seed, pred_secret);
        self.known.remember(opened.pred, opened.view, secret);
        let start = |n: NodeId| if n == ctx.config.me.node { ctx.config.start } else { StartNumber(0) };
        let begins_branch = parent == seal.hid;
        // A branch follows the view that its log ends with, whichever was active.
        let pred = if begins_branch { seal.view } else { opened.pred };
        let mut volume = opened.volume.clone();
        volume.iter_mut().filter(|_| begins_branch).for_each(|v| v.branch = opened.view);
        let body = ViewBody {
            pred,
            seal_sequence: seal.sequence,
            seal_hid: seal.hid,
            secret_hash: hide(&secret),
            quorum: opened.quorum,
            min_copies: opened.min_copies,
            // The generation of this moment is in the view (V6): members that missed the attachment learn it.
            generation: self.attach.generation.max(opened.generation),
            members: opened.members.iter().map(|n| ViewMember { node: *n, start: start(*n) }).collect(),
            shared,
            volume,
        };
        let meta = FrameMeta {
            cluster: ctx.config.cluster,
            shard: self.id,
            view: opened.view,
            chunk: ChunkId { view: opened.view, counter: 0 },
            chunk_offset: 0,
            sequence: seal.sequence.next(),
            first_version: self.version,
            committed: self.committed_to_tell(ctx),
            wall: self.wall_of_view(ctx),
        };
        let (frame, token) = FrameBuilder::special(&meta, FrameKind::View, &body.encode(), &secret, &parent);
        let members = self.members_of(ctx, &opened.members);
        let quorum = quorum_of(ctx, opened);
        let wall = self.tail.get(&seal.sequence).map_or(0, |t| t.wall);
        let retained_ms = retained_in(self.view_frame.as_ref());
        if let Some(h) = self.head.as_mut() {
            h.reset(members, quorum, secret, token);
            h.window.goes_on_from(wall, retained_ms, ctx.now);
        }
        self.append(ctx, frame);
        // Behind the frame: when the log is read again it is what cuts the tail, and a tail that had a hole is suspect.
        self.trust_tail(ctx);
        self.set_phase(ctx.now, Phase::Opening { view: opened.view, sequence: meta.sequence });
        self.nudge_all(ctx);
        if ctx.mutant(Mutant::ActiveTooEarly) {
            self.set_phase(ctx.now, Phase::Activating { view: opened.view });
            self.activate(ctx, opened.view);
        }
    }

    /// Once a quorum holds the view frame, the control plane may make the view active (V6).
    pub fn view_frame_durable(&mut self, ctx: &mut Ctx<'_>) {
        if self.head.as_ref().is_some_and(|h| h.window.is_unknown()) {
            self.see_to_window(ctx);
        }
        if self.head.as_ref().is_some_and(|h| h.intervals.are_unknown()) {
            self.see_to_intervals(ctx);
        }
        let Some(h) = self.head.as_ref() else { return };
        let Phase::Opening { view, sequence } = h.phase else { return };
        let holding = h.members.iter().filter(|m| m.durable >= sequence).count();
        if holding >= h.quorum && !self.calls_the_roll(ctx) {
            self.set_phase(ctx.now, Phase::Activating { view });
            self.activate(ctx, view);
        }
    }

    fn activate(&self, ctx: &mut Ctx<'_>, view: ViewNumber) {
        let generation = self.view.as_ref().map(|v| v.body.generation).unwrap_or_default();
        let begins_branch = self.view_frame.as_ref().is_some_and(|f| f.view() == view && f.is_branch());
        let learning = if ctx.mutant(Mutant::LateForksUntold) { Vec::new() } else { self.late_for_fork() };
        let begins = match (begins_branch, learning.is_empty()) {
            (true, _) => Begins::Branch,
            (false, false) => Begins::Clone { learning },
            (false, true) => Begins::Nothing,
        };
        ctx.out.actions.push(Action::Activate { shard: self.id, view, generation, begins });
    }

    pub fn on_activated(&mut self, ctx: &mut Ctx<'_>, view: ViewNumber, result: Result<(), Error>) {
        if !matches!(self.head.as_ref().map(|h| &h.phase), Some(Phase::Activating { view: v }) if *v == view) {
            return;
        }
        match result {
            Ok(()) => {
                if let Some(info) = self.info.as_mut() {
                    info.active = info.active.max(view);
                    info.known = info.known.max(view);
                }
                self.set_phase(ctx.now, Phase::Active);
                ctx.out.note(format!("shard {}: view {view} is active", self.id));
                self.commit_what_is_durable(ctx);
                self.learn_active(ctx);
            }
            Err(e) if e.kind == freebs_types::ErrorKind::Retry => {
                // The control plane can't be reached now; the tick asks again.
            }
            Err(e) => {
                ctx.out.note(format!("shard {}: view {view} did not become active: {e}", self.id));
                self.set_phase(ctx.now, Phase::Closed);
            }
        }
    }

    pub fn open_link_changed(&mut self, ctx: &mut Ctx<'_>, peer: Peer, is_up: bool) {
        if !is_up {
            return;
        }
        if let Some(Phase::Sealing { opened, asked, linked, .. }) = self.head.as_mut().map(|h| &mut h.phase) {
            *asked = Nanos(0);
            if opened.sealers().any(|n| n == peer.node) {
                linked.insert(peer.node, ctx.now);
            }
        }
        self.ask_for_seals(ctx);
    }

    pub fn open_tick(&mut self, ctx: &mut Ctx<'_>) {
        let Some(h) = self.head.as_ref() else { return };
        let waited = ctx.now.since(h.at);
        match &h.phase {
            Phase::Closed if waited >= Nanos(timing::PROPOSE_AGAIN.0 << h.failures.min(5)) => self.propose(ctx),
            Phase::Sealing { opened, .. } => {
                let is_forced = opened.forced.is_some();
                self.ask_for_seals(ctx);
                if self.lacks_its_fork() {
                    self.tell_what_it_waits_for(ctx);
                    self.hand_over_tick(ctx, "this log does not reach the snapshot that it was cloned from");
                }
                if is_forced {
                    self.force_tick(ctx);
                }
            }
            Phase::Fetching { .. } if waited >= timing::OPENING_PATIENCE => self.set_phase(ctx.now, Phase::Closed),
            Phase::Fetching { .. } => self.fetch_again(ctx),
            Phase::Opening { .. } if self.late_for_fork().is_empty() => {}
            Phase::Opening { .. } => self.view_frame_durable(ctx),
            Phase::Activating { view } if waited >= timing::PROPOSE_AGAIN => {
                let view = *view;
                self.set_phase(ctx.now, Phase::Activating { view });
                self.activate(ctx, view);
            }
            _ => {}
        }
    }
}

/// The members that have to hold a frame of a view.
fn quorum_of(ctx: &Ctx<'_>, opened: &Opened) -> usize {
    match ctx.config.mutant {
        Some(Mutant::QuorumOfOne) => 1,
        Some(Mutant::MajorityIsEnough) => opened.members.len() / 2 + 1,
        _ => usize::from(opened.quorum),
    }
}

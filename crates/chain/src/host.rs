//! All replicas of one worker: routes events to them, and ends each turn with one message per link.
//!
//! Invariants: only the control plane's word makes a replica; what a replica has promised outlives it, here and in the
//! log, until the volume is deleted (V2).

use crate::event::{
    Action, Event, HostConfig, IntervalAsk, IntervalWord, MemberStatus, Mutant, ShardInfo, ShardStatus, Who,
};
use crate::forks::Forks;
use crate::mend::Mending;
use crate::open::Phase;
use crate::out::Out;
use crate::past::is_of_the_past;
use crate::peers::Peers;
use crate::regain::Regain;
use crate::replica::{Ctx, Replica, with_overhead};
use crate::timing;
use freebs_format::wire::{Message, ReadRequest, Refusal, Refused, Request};
use freebs_format::{Frame, FrameKind};
use freebs_io::LinkId;
use freebs_lsvd::{Durable, Record, fork_name};
use freebs_types::{ClusterId, Error, Fork, Generation, Nanos, NodeId, Peer, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Invitations to unknown shards that are remembered.
const INVITED_MAX: usize = 4096;

/// The shards of one worker.
pub struct Host {
    config: HostConfig,
    replicas: BTreeMap<ShardId, Replica>,
    peers: Peers,
    pub(crate) out: Out,
    tickets: u64,
    /// Shards that this node has left, with the highest view that it promised of each.
    left: BTreeMap<ShardId, ViewNumber>,
    /// Shards that a head speaks of before the control plane has: its link and view.
    invited: BTreeMap<ShardId, (LinkId, ViewNumber)>,
    /// Shards whose former replica the log has not come to the end of, with what it still has to do: that many cuts,
    /// the end itself being one. What it makes durable before that is not of the present replica.
    ending: BTreeMap<ShardId, usize>,
    /// Forks that are to be made here.
    forks: Forks,
    /// When it was last looked for logs that may make one after all.
    bare_asked: Nanos,
    /// Heads that have updates to pack at the end of the turn.
    packing: BTreeSet<ShardId>,
    pub(crate) mending: Mending,
    /// The shard that had its turn to ask for its past last.
    regained: Option<ShardId>,
    /// Bytes that the log takes, and how many of them wait for the disk already.
    room_bytes: u64,
    unwritten_bytes: u64,
    /// Shards that have some of these.
    sharers: u64,
    spare_bytes: u64,
    more_soon: bool,
    failed: Option<Error>,
    lost_something: bool,
    pub(crate) now: Nanos,
    wall: u64,
}

impl Host {
    /// A host without shards: the control plane's news brings them.
    #[must_use]
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            replicas: BTreeMap::new(),
            peers: Peers::default(),
            out: Out::default(),
            tickets: 0,
            left: BTreeMap::new(),
            invited: BTreeMap::new(),
            ending: BTreeMap::new(),
            forks: Forks::default(),
            bare_asked: Nanos(0),
            packing: BTreeSet::new(),
            mending: Mending::default(),
            regained: None,
            room_bytes: u64::MAX,
            unwritten_bytes: 0,
            sharers: 0,
            spare_bytes: u64::MAX,
            more_soon: false,
            failed: None,
            lost_something: false,
            now: Nanos(0),
            wall: 0,
        }
    }

    pub(crate) fn add(&mut self, mut replica: Replica) {
        replica.is_doubtful |= self.lost_something && replica.is_empty_log();
        self.replicas.insert(replica.id, replica.at(self.config.me.node));
    }

    /// Says, before there are replicas, that recovery found damage: a log that is empty then may have had something.
    pub(crate) fn set_lost_something(&mut self, has: bool) {
        self.lost_something = has;
    }

    /// How many bytes of updates the device takes, those included that it was given and has not made durable yet, and
    /// whether it may take more soon (W7).
    pub fn set_room(&mut self, bytes: u64, more_soon: bool) {
        (self.room_bytes, self.more_soon) = (bytes, more_soon);
    }

    /// How many bytes of others' frames the log takes at most without coming to its end, counted in the same way.
    pub fn set_spare(&mut self, bytes: u64) {
        self.spare_bytes = bytes;
    }

    /// From which version on the log has all that it keeps.
    pub fn set_whole_from(&mut self, shard: ShardId, whole_from: Version) {
        if let Some(r) = self.replicas.get_mut(&shard) {
            r.whole_from = whole_from;
        }
    }

    /// Shards whose past takes more memory here than it should.
    pub fn set_past_over(&mut self, over: &[ShardId]) {
        self.replicas.values_mut().for_each(|r| r.past_over = over.contains(&r.id));
    }

    #[cfg(test)]
    pub(crate) fn wall(&self) -> u64 {
        self.wall
    }

    /// Sets the wall clock for frames that are made from now on, nanoseconds since 1970.
    pub fn set_wall(&mut self, wall: u64) {
        self.wall = wall;
    }

    /// Peers that this worker needs a link to, by what is known of its shards, those included that are about to be here.
    pub fn wanted_peers(&self) -> BTreeSet<Peer> {
        let workers = &self.config.workers;
        let peer = |n: NodeId, s: ShardId| Peer::of(n, s, workers.get(&n).copied().unwrap_or(1));
        // Those of the view have to be asked for the next one, although it may be without them; and a log need not know which one
        // that is.
        let of_logs = self.replicas.values().filter_map(|r| Some((r.view.as_ref(), r.info.as_ref()?)));
        of_logs
            .chain(self.forks.infos().filter(|_| !self.leaves_out(Mutant::ForksToComeAlone)).map(|info| (None, info)))
            .flat_map(|(view, i)| {
                let of_view = view.into_iter().flat_map(|v| v.body.members.iter().map(|m| m.node));
                let of_view = of_view.chain(i.view_members.iter().copied());
                i.members.iter().copied().chain(of_view).map(move |n| peer(n, i.shard))
            })
            .filter(|p| p.node != self.config.me.node)
            .collect()
    }

    pub(crate) fn with<T>(&mut self, shard: ShardId, f: impl FnOnce(&mut Replica, &mut Ctx<'_>) -> T) -> Option<T> {
        let replica = self.replicas.get_mut(&shard)?;
        replica.leases.begin(self.now);
        let before = replica.unwritten_bytes();
        let other_sharers = self.sharers - u64::from(before > 0);
        let others = self.unwritten_bytes.saturating_sub(before);
        let mut ctx = Ctx {
            now: self.now,
            wall: self.wall,
            config: &self.config,
            peers: &self.peers,
            out: &mut self.out,
            tickets: &mut self.tickets,
            room: self.room_bytes.saturating_sub(with_overhead(others)),
            spare: self.spare_bytes.saturating_sub(with_overhead(others)),
            more_soon: self.more_soon,
            sharers: other_sharers + 1,
        };
        let done = f(replica, &mut ctx);
        replica.check();
        self.unwritten_bytes = others + replica.unwritten_bytes();
        self.sharers = other_sharers + u64::from(replica.unwritten_bytes() > 0);
        Some(done)
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.config.cluster
    }

    /// True if a fork that is to be made reads from a shard.
    pub(crate) fn is_to_be_read(&self, parent: ShardId) -> bool {
        self.forks.read_from(parent) && !self.leaves_out(Mutant::ForksToComeUnread)
    }

    pub(crate) fn leaves_out(&self, rule: Mutant) -> bool {
        self.config.mutant == Some(rule)
    }

    pub(crate) fn forks_mut(&mut self) -> &mut Forks {
        &mut self.forks
    }

    /// Takes out a replica whose log has nothing but promises.
    pub(crate) fn take_bare(&mut self, shard: ShardId) -> Option<Replica> {
        self.packing.remove(&shard);
        self.replicas.remove(&shard)
    }

    /// Forks that logs with nothing but promises may still make, if it is time to look again.
    pub(crate) fn bare_forks(&mut self, now: Nanos) -> Vec<(ShardId, Fork)> {
        if self.leaves_out(Mutant::ForksGivenUp) || now.since(self.bare_asked) < timing::FORK_AGAIN {
            return Vec::new();
        }
        self.bare_asked = now;
        self.replicas.iter().filter_map(|(shard, r)| Some((*shard, r.may_fork_yet()?))).collect()
    }

    pub(crate) fn new_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn has(&self, shard: ShardId) -> bool {
        self.replicas.contains_key(&shard)
    }

    pub(crate) fn replica(&self, shard: ShardId) -> Option<&Replica> {
        self.replicas.get(&shard)
    }

    /// True if this node was never a member of a shard, as far as it knows, and nothing of it is in the log.
    pub(crate) fn is_unknown(&self, shard: ShardId) -> bool {
        !self.has(shard) && !self.left.contains_key(&shard) && !self.ending.contains_key(&shard)
    }

    /// True if news names this node as a member.
    pub(crate) fn is_member(&self, info: &ShardInfo) -> bool {
        info.members.contains(&self.config.me.node)
    }

    fn each(&mut self, mut f: impl FnMut(&mut Replica, &mut Ctx<'_>)) {
        let shards: Vec<ShardId> = self.replicas.keys().copied().collect();
        for s in shards {
            self.with(s, &mut f);
        }
    }

    /// One shard at a time has its past from others: it is read from places all over their logs, and nobody waits for it. One whose
    /// question has no answer lets the next one go on.
    fn regain_tick(&mut self) {
        let now = self.now;
        self.replicas.values_mut().filter(|r| r.whole_from == Version(0)).for_each(|r| r.regain = Regain::default());
        if self.replicas.values().any(|r| r.regain.is_at_work(now)) {
            return;
        }
        let lacks = |(shard, r): (&ShardId, &Replica)| (r.whole_from > Version(0)).then_some(*shard);
        let mut all: Vec<ShardId> = self.replicas.iter().filter_map(lacks).collect();
        let next = all.partition_point(|s| Some(*s) <= self.regained);
        all.rotate_left(next);
        let goes_on = |r: &mut Replica, ctx: &mut Ctx<'_>| {
            r.regain_tick(ctx);
            r.regain.is_at_work(ctx.now)
        };
        let begun = all.into_iter().find(|s| self.with(*s, goes_on).unwrap_or(false));
        self.regained = begun.or(self.regained);
    }

    /// One event. Actions gather until `take_actions`; messages of a turn until `end_turn`.
    pub fn step(&mut self, now: Nanos, event: Event) {
        self.now = now;
        match event {
            Event::Message { from, message } => self.on_message(from, message),
            Event::LinkUp { link, who: Who::Member(peer) } => {
                self.peers.up(link, peer, now);
                self.each(|r, ctx| r.head_link_changed(ctx, peer, true));
            }
            Event::LinkUp { who: Who::Driver, .. } => {}
            Event::LinkDown { link } => self.on_link_down(link),
            Event::Durable(done) => done.into_iter().for_each(|d| self.on_durable(d)),
            Event::EngineFailed(e) => self.on_engine_failed(&e),
            Event::Shards(infos) => infos.into_iter().for_each(|i| self.on_info(i)),
            Event::Left { shard, active } => self.on_left(shard, active),
            Event::Gone(shard) => self.on_gone(shard),
            Event::Workers(workers) => self.config.workers = workers,
            Event::Proposed { shard, result, seed } => {
                self.with(shard, |r, ctx| r.on_proposed(ctx, result, seed));
            }
            Event::Activated { shard, view, result } => {
                self.with(shard, |r, ctx| r.on_activated(ctx, view, result));
            }
            Event::SyncRead { link, request, source } => {
                self.with(request.shard, |r, ctx| r.answer_sync(ctx, link, &request, source));
            }
            Event::MapRead { link, request, source } => {
                self.with(request.shard, |r, ctx| r.answer_map(ctx, link, &request, source));
            }
            Event::Pins { shard, pins } => {
                self.with(shard, |r, ctx| r.on_pins(ctx, &pins));
            }
            Event::PastFound { ask, found } => {
                self.with(ask.shard, |r, ctx| r.on_past_found(ctx, ask, found));
            }
            Event::Intervals { shard, view, found } => {
                self.with(shard, |r, ctx| r.on_intervals(ctx, view, found));
            }
            Event::IntervalWord { shard, view, ask, word } => {
                self.with(shard, |r, ctx| r.on_interval_word(ctx, view, &ask, word));
            }
            Event::ForkChecked { shard, result } => self.on_fork_checked(shard, result),
            Event::Orphaned(shard) => self.on_orphaned(shard),
            Event::Damaged(all) => self.mending.add(all),
            Event::Mended { id, end } => self.mending.on_mended(now, id, end),
            Event::Tick => {
                self.each(|r, ctx| {
                    r.member_tick(ctx);
                    r.head_tick(ctx);
                });
                self.regain_tick();
                self.mend_tick();
                self.fork_tick();
            }
        }
    }

    /// Another shard's head asks about an interval. `None`: this is not the head, or can't say it now.
    pub fn on_interval_ask(&mut self, now: Nanos, ask: &IntervalAsk) -> Option<IntervalWord> {
        self.now = now;
        self.with(ask.at, |r, ctx| r.on_interval_ask(ctx, ask)).flatten()
    }

    /// Ends a turn: heads pack their frames, and what was gathered becomes messages.
    pub fn end_turn(&mut self, now: Nanos) {
        self.now = now;
        for shard in std::mem::take(&mut self.packing) {
            self.with(shard, |r, ctx| r.pack(ctx));
        }
        self.out.flush(now, &self.peers);
    }

    /// Takes out all that is to be done, in order. The caller carries out all of it.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out.actions)
    }

    /// When `end_turn` is due even if nothing happens.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.out.next_deadline()
    }

    #[cfg(test)]
    pub(crate) fn gathers_for(&self) -> usize {
        self.out.gathers_for()
    }

    fn on_message(&mut self, from: LinkId, message: Message) {
        let member = self.peers.heard(from, self.now);
        match message {
            Message::Write(w) => {
                let shard = w.shard;
                let number = w.number;
                if self.with(shard, |r, ctx| r.on_write(ctx, from, w)).is_none() {
                    self.refuse_unknown(from, shard, Request::Write(number));
                }
                self.packing.insert(shard);
            }
            Message::Read(r) => {
                if self.with(r.shard, |x, ctx| x.on_read(ctx, from, r)).is_none() {
                    self.refuse_unknown(from, r.shard, Request::Read(r.id));
                }
            }
            Message::Attach { shard, generation, driver, identity, .. } => {
                let known = self.with(shard, |r, ctx| r.on_attach(ctx, from, driver, generation, identity));
                if known.is_none() {
                    self.refuse_unknown(from, shard, Request::Attach);
                }
            }
            Message::Follow { shard, generation, .. } => {
                if self.with(shard, |r, ctx| r.on_follow(ctx, from, generation)).is_none() {
                    self.refuse_unknown(from, shard, Request::Attach);
                }
            }
            Message::Lease { shard, generation, driver, stamp } => {
                self.with(shard, |r, ctx| r.on_lease(ctx, from, (generation, driver), stamp));
            }
            Message::Detach { shard, generation, driver } => {
                self.with(shard, |r, _| r.on_detach(from, generation, driver));
            }
            // All others are spoken among members only: from a driver's link they mean nothing.
            other => {
                if let Some(peer) = member {
                    self.on_peer_message(from, peer, other);
                }
            }
        }
    }

    fn on_peer_message(&mut self, from: LinkId, peer: Peer, message: Message) {
        match message {
            Message::Frames { forward, frames } => self.on_frames(peer, &forward, frames),
            Message::Durable(items) => {
                for i in items {
                    self.with(i.shard, |r, ctx| r.head_member_durable(ctx, peer.node, &i));
                }
            }
            Message::Heartbeat(items) => {
                for i in items {
                    self.with(i.shard, |r, ctx| r.hear_heartbeat(ctx, peer, &i));
                }
            }
            Message::Seal { shard, view, pred, slice } => {
                // One that is not known holds nothing, so its answer would not count.
                self.with(shard, |r, ctx| r.on_seal(ctx, from, (view, pred), slice));
            }
            Message::SealAnswer(a) => {
                self.with(a.shard, |r, ctx| r.on_seal_answer(ctx, peer.node, a));
            }
            Message::Sync(r) if !self.replicas.contains_key(&r.shard) => {
                let reply = freebs_format::wire::SyncReply::refused(&r);
                self.out.send(from, Message::SyncReply(reply));
            }
            Message::Sync(r) => {
                self.packing.remove(&r.shard);
                self.with(r.shard, |x, ctx| {
                    x.pack(ctx);
                    x.on_sync(ctx, from, r);
                });
            }
            Message::SyncReply(r) => {
                self.with(r.shard, |x, ctx| x.hear_sync_reply(ctx, peer, r));
            }
            Message::Nudge { shard, view } => {
                let known = self.with(shard, |r, ctx| r.hear_nudge(ctx, peer, from, view));
                self.remember_invitation(shard, known.map_or(Some((from, view)), |()| None));
            }
            Message::ReadReply(r) => self.on_mending_reply(peer, &r),
            Message::Refused(Refused { request: Request::Read(id), reason, .. }) => {
                self.on_mending_refused(peer, id, reason);
            }
            _ => {}
        }
    }

    /// Members may hear of a shard from its head before the control plane tells them.
    fn remember_invitation(&mut self, shard: ShardId, of: Option<(LinkId, ViewNumber)>) {
        self.invited.extend(of.map(|of| (shard, of)));
        if self.invited.len() > INVITED_MAX {
            self.invited.pop_first();
        }
    }

    /// The control plane names this node as a member: no peer's word makes a replica, for it may be of a view that is
    /// long dead.
    pub(crate) fn ensure(&mut self, shard: ShardId) {
        if self.replicas.contains_key(&shard) {
            return;
        }
        let promised = self.left.remove(&shard).unwrap_or_default();
        let ending = self.ending.get(&shard).copied().unwrap_or(0);
        self.add(Replica::left(shard, promised, ending));
    }

    /// Frames go on along their route first: passing on does not wait for the own disk.
    fn on_frames(&mut self, from: Peer, forward: &[NodeId], frames: Vec<Frame>) {
        for frame in frames {
            let shard = frame.head.shard();
            if frame.header().cluster_id() != self.config.cluster || frame.head.kind() == FrameKind::Mark {
                continue;
            }
            if let Some((next, rest)) = forward.split_first() {
                let workers = self.config.workers.get(next).copied().unwrap_or(1);
                let peer = Peer::of(*next, shard, workers);
                // A route may name anybody. A member that lacks the frame asks for it.
                if self.peers.link(peer).is_some() {
                    self.out.frame(peer, rest, frame.clone());
                }
            }
            self.with(shard, |r, ctx| r.hear_frame(ctx, from, frame));
        }
    }

    fn refuse_unknown(&mut self, to: LinkId, shard: ShardId, request: Request) {
        let reason = Refusal::NotReady;
        let refused = Refused { shard, request, reason, view: ViewNumber(0), generation: Generation(0) };
        self.out.send(to, Message::Refused(refused));
    }

    fn on_link_down(&mut self, link: LinkId) {
        match self.peers.down(link) {
            // Even if there is another link by now: what this one carried may be lost.
            Some((peer, _)) => self.each(|r, ctx| r.head_link_changed(ctx, peer, false)),
            None => self.each(|r, _| {
                r.clients.remove(&link);
            }),
        }
        self.invited.retain(|_, (from, _)| *from != link);
    }

    fn on_durable(&mut self, done: Durable) {
        match done {
            Durable::Frame { shard, sequence, .. } => {
                self.with(shard, |r, ctx| r.on_frame_durable(ctx, sequence));
            }
            Durable::Cut { shard, .. } | Durable::Forget { shard } => {
                self.with(shard, |r, _| r.on_cut_done());
                if let Some(left) = self.ending.get_mut(&shard) {
                    *left -= 1;
                    self.ending.retain(|_, left| *left > 0);
                }
            }
            Durable::Mark { shard, ticket } if self.on_fork_durable(shard, ticket) => {}
            Durable::Mark { shard, ticket } => {
                self.with(shard, |r, ctx| r.on_mark_durable(ctx, ticket));
            }
            Durable::Repair { shard, sequence } => {
                self.with(shard, |r, ctx| r.on_repair_durable(ctx, sequence));
            }
            Durable::Unrepaired { shard, sequence, why } => {
                self.with(shard, |r, ctx| r.on_unrepaired(ctx, sequence, why));
            }
            Durable::Refused { shard, sequence, why } => {
                self.with(shard, |r, ctx| r.on_refused(ctx, sequence, why));
            }
            Durable::Unlearned { shard, ticket, .. } if self.on_fork_refused(shard, ticket) => {}
            Durable::Unlearned { shard, ticket, why } => {
                self.with(shard, |r, ctx| r.on_unlearned(ctx, ticket, why));
            }
            Durable::NoRoom { shard, ticket } => {
                self.on_no_room_for_fork(shard, ticket);
                self.with(shard, |r, ctx| r.on_no_room(ctx, ticket));
            }
            Durable::Carry { shard, ticket } => {
                self.with(shard, |r, ctx| {
                    r.on_piece_durable(ctx, ticket);
                    r.on_learned_durable(ctx, ticket);
                    r.on_regained_durable(ctx, ticket);
                });
            }
        }
    }

    fn on_engine_failed(&mut self, e: &Error) {
        self.failed = Some(e.clone());
        self.each(|r, ctx| r.stop(ctx, format!("the device is out of use: {e}")));
    }

    pub(crate) fn on_info(&mut self, info: ShardInfo) {
        let shard = info.shard;
        let mine = self.is_member(&info);
        if self.waits_for_fork(&info) || (!mine && !self.replicas.contains_key(&shard)) {
            return;
        }
        let leads = info.members.first() == Some(&self.config.me.node);
        if self.begins_anew(&info) {
            self.begin_anew(&info);
        }
        self.ensure(shard);
        self.with(shard, |r, ctx| {
            // A view that was known once to have been active does not go back.
            let known = r.info.as_ref().map(|i| i.known).unwrap_or_default();
            if r.info.is_none() {
                r.doubt_promises(ctx, info.highest);
            }
            r.hear_of_members(ctx, &info);
            if r.info.as_ref().is_none_or(|i| i.snapshots != info.snapshots || i.active != info.active) {
                r.snapshots_changed();
            }
            r.leases.given_out(info.generation, ctx.now);
            r.info = Some(ShardInfo { active: info.active.max(known), known: info.known.max(known), ..info });
            r.note_active(ctx);
            r.begins = r.info.as_ref().and_then(|i| i.fork).map_or(r.begins, |f| fork_name(ctx.config.cluster, &f));
            if leads {
                r.become_head(ctx);
                r.see_to_snapshots(ctx);
            } else {
                r.step_down(ctx);
            }
        });
        if let Some((link, view)) = self.invited.remove(&shard) {
            self.with(shard, |r, ctx| r.on_nudge(ctx, link, view));
        }
    }

    /// True if news makes a log begin anew: what it has is of what was lost by force, or may be. A member that has everything of the
    /// active view cuts at its seal instead, and keeps what it has.
    pub(crate) fn begins_anew(&self, info: &ShardInfo) -> bool {
        let me = self.config.me.node;
        let learns = info.joining.contains(&me) || self.config.mutant == Some(Mutant::SurvivorsBeginAnew);
        let is_lost = |r: &Replica| r.is_of_lost_branch(info, me);
        self.is_member(info) && learns && self.replicas.get(&info.shard).is_some_and(is_lost)
    }

    /// Others have everything in an active view that this node is not in. What it promised stays (V2): a head of an older
    /// view may be asleep, and without the promise a blank member would be one more of those that it wakes up to.
    ///
    /// A control state that is older than the log says nothing of it: a head may have taken this node into a newer view
    /// since, and what it has answered there would be lost. Views that become active later have higher numbers, so the
    /// state in which it has left that one, too, is obeyed.
    fn on_left(&mut self, shard: ShardId, active: ViewNumber) {
        if self.leave_fork(shard, active) {
            return;
        }
        let Some(replica) = self.replicas.get(&shard) else { return };
        let is_old = replica.promise().max(replica.view_number()) > active;
        if is_old && self.config.mutant != Some(Mutant::LeavesByOldStates) {
            return;
        }
        // A promise that the log has lost was of no view behind this one.
        let promised = replica.promise().max(replica.view_number()).max(replica.active()).max(active);
        self.end_with(shard, if self.config.mutant == Some(Mutant::PromisesGo) { ViewNumber(0) } else { promised });
    }

    /// Nothing is left but this promise.
    pub(crate) fn end_with(&mut self, shard: ShardId, promised: ViewNumber) {
        if promised.0 > 0 {
            self.left.insert(shard, promised);
        }
        self.end(shard, promised);
    }

    /// This node is to be a member again, and what it has is of what was lost by force (V10): it has nothing any more but
    /// what it promised.
    fn begin_anew(&mut self, info: &ShardInfo) {
        let shard = info.shard;
        let of_log = self.replicas.get(&shard).map(|r| r.promise().max(r.view_number())).unwrap_or_default();
        let promised = of_log.max(info.branch.view);
        if self.config.mutant != Some(Mutant::LostLogsGoOn) {
            self.out.note(format!("shard {shard}: what this log has was lost by force, or may be; it begins anew"));
            self.end_with(shard, promised);
        }
    }

    /// The volume was deleted.
    fn on_gone(&mut self, shard: ShardId) {
        let was_to_fork = self.forget_fork(shard);
        if was_to_fork || self.left.remove(&shard).is_some() || self.replicas.contains_key(&shard) {
            self.end(shard, ViewNumber(0));
        }
        self.invited.remove(&shard);
    }

    /// The replica goes, if there is one, and all that the log has of it but this promise.
    fn end(&mut self, shard: ShardId, promised: ViewNumber) {
        self.out.actions.push(Action::Append(Record::Forget { shard, promised }));
        let replica = self.replicas.remove(&shard);
        let ending = replica.as_ref().map_or_else(|| self.ending.get(&shard).copied().unwrap_or(0), Replica::cuts);
        self.ending.insert(shard, ending + 1);
        let Some(replica) = replica else { return };
        self.unwritten_bytes = self.unwritten_bytes.saturating_sub(replica.unwritten_bytes());
        self.sharers -= u64::from(replica.unwritten_bytes() > 0);
        self.packing.remove(&shard);
        self.out.forget_answers(shard);
        for (link, _) in replica.clients {
            let (view, generation) = (ViewNumber(0), Generation(u64::MAX));
            let refused = Refused { shard, request: Request::Attach, reason: Refusal::NotFound, view, generation };
            self.out.send(link, Message::Refused(refused));
        }
    }

    /// All shards that have a replica here, or are about to have one.
    pub fn shards(&self) -> Vec<ShardId> {
        self.replicas.keys().copied().chain(self.forks.shards()).collect()
    }

    /// Shards that this node has left, of which the log has nothing but a promise.
    pub fn left_shards(&self) -> Vec<ShardId> {
        self.left.keys().copied().collect()
    }

    /// Why blocks that were looked up are not to be given out, if so: a newer attachment is known by now (L2), or a
    /// newer view was promised or entered (V2). What a kept version sees has not changed.
    pub(crate) fn read_refusal(&self, r: &ReadRequest) -> Option<Refusal> {
        match self.replicas.get(&r.shard) {
            None => Some(Refusal::NotReady),
            Some(x) if is_of_the_past(r) => x.stopped.is_some().then_some(Refusal::NotReady),
            Some(x) if r.generation < x.attach.generation => Some(Refusal::Fenced),
            Some(x) if x.view_number() != r.view || !x.serves() => Some(Refusal::WrongView),
            Some(_) => None,
        }
    }

    /// A shard's replica, for people and programs; `None` if there is none here.
    pub fn status(&self, shard: ShardId) -> Option<ShardStatus> {
        let r = self.replicas.get(&shard)?;
        let is_head = r.head.is_some();
        let state = match r.head.as_ref().map(|h| &h.phase) {
            _ if r.stopped.is_some() => "stopped",
            _ if r.damage.is_there() => "damaged",
            Some(Phase::Active) => "active",
            Some(_) => "opening",
            None if r.is_full => "full",
            None if r.asking.is_some() => "syncing",
            None if r.serves() => "following",
            None => "waiting",
        };
        let members = match (&r.view, &r.info) {
            (Some(v), _) => v.body.members.iter().map(|m| m.node).collect(),
            (None, Some(i)) => i.members.clone(),
            _ => Vec::new(),
        };
        let chain = r.head.iter().flat_map(|h| &h.members);
        let me = self.config.me.node;
        Some(ShardStatus {
            shard,
            view: r.view_number(),
            members,
            is_head,
            state,
            version: r.version,
            last: r.last,
            durable: r.durable,
            committed: r.committed,
            chain: chain
                .map(|m| MemberStatus { node: m.node, durable: m.durable, live: m.live || m.node == me })
                .collect(),
            clients: r.clients.values().filter(|c| c.is_attached).count(),
            lapsed: r.lapsed(self.now),
            pins: 0,
            past: r.past_status(),
            waits: r.waits(),
            whole_from: r.whole_from,
            fork: None,
            log: r.log_status(),
        })
    }
}

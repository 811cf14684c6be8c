//! A replica as the head of its chain: it orders requests, packs frames, and knows how far each member is.
//!
//! Invariants: requests are ordered only in a view that this incarnation of the node opened and that became active
//! (W2, V6); a request number is applied at most once (W3); what a member was not sent, it is not `live` for.

mod check;
mod room;

use crate::coming::Coming;
use crate::cuts::Cuts;
use crate::event::Mutant;
use crate::intervals::Intervals;
use crate::open::Phase;
use crate::replica::{Client, Ctx, Replica, TailEntry, with_overhead};
use crate::secret::Gathered;
use crate::timing;
use crate::window::Window;
use freebs_format::wire::{DurableItem, HeartbeatItem, Message, Refusal, Request, WriteRequest};
use freebs_format::{
    AttachBody, Frame, FrameBuilder, FrameKind, FrameMeta, PinUpdate, UpdateDraft, UpdateKind, ViewBody, token,
};
use freebs_io::LinkId;
use freebs_lsvd::Seen;
use freebs_types::{
    ChunkId, DriverId, Generation, Hash32, Nanos, NodeId, Peer, RequestNumber, Sequence, ShardId, ViewNumber, limits,
};
pub(crate) use room::Said;
use room::{RoomWait, SpaceFor};
use std::collections::{BTreeMap, VecDeque};

/// Attachments that this node may not have heard of yet when their drivers come.
const GENERATIONS_AHEAD: u64 = 16;

/// What the head knows of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub node: NodeId,
    pub peer: Peer,
    /// In this view; 0 until it has the view frame.
    pub durable: Sequence,
    /// It gets every frame as it is made. Otherwise it has to ask with SYNC first.
    pub live: bool,
    /// What its log takes beyond what it had when it said so (W7).
    pub said: Said,
    /// Since when something it was sent is unanswered.
    pub waiting_since: Option<Nanos>,
    pub nudged: Nanos,
}

pub(crate) struct Head {
    pub phase: Phase,
    /// When the present phase began or was last pushed.
    pub at: Nanos,
    /// Proposals that failed in a row: they come slower.
    pub failures: u32,
    /// Where the secret of the view comes from that is being opened.
    pub seed: Hash32,
    /// What members gave of the secret of the view before it, and what was said of that last.
    pub gathered: Gathered,
    pub slices_told: Option<(ViewNumber, usize)>,
    /// The last word on a seal that waits.
    pub waits: Option<String>,
    /// The seal is one by the word of an operator (V10).
    pub by_force: bool,
    /// Before this time no view is asked for that can wait.
    pub plan_at: Nanos,
    /// A view was asked for because the present one has no slices; once is enough.
    pub asked_for_slices: bool,
    /// When it was said last that new members have everything.
    pub told_complete: Nanos,
    /// Secret of the view and access token of the last frame.
    pub secret: Hash32,
    pub token: Hash32,
    pub members: Vec<Member>,
    pub quorum: usize,
    builder: FrameBuilder,
    /// The attachment is in a frame of this view: members that lost an earlier one to a cut have it from there.
    is_attached: bool,
    /// Who asked for the updates in the builder.
    asked: Vec<(LinkId, RequestNumber)>,
    /// Requests that wait for room in the shard's window.
    waiting: VecDeque<(LinkId, WriteRequest)>,
    /// Numbers of the attached driver that were refused for good in this view, down to its lowest open one: it takes
    /// the first answer for the fate, so a copy that comes later must not be applied (W3).
    refused: BTreeMap<RequestNumber, Refusal>,
    /// Data bytes of frames that are not committed: (sequence, bytes).
    uncommitted: VecDeque<(Sequence, usize)>,
    uncommitted_bytes: usize,
    told: (Sequence, Sequence),
    told_at: Nanos,
    /// Nodes that come to the members that are there.
    pub coming: Coming,
    /// Snapshots of the shard.
    pub cuts: Cuts,
    /// The wait of the first request for room (W7).
    room: RoomWait,
    /// Its retention window.
    pub window: Window,
    /// Intervals over several shards.
    pub intervals: Intervals,
}

impl Head {
    pub fn new(now: Nanos) -> Self {
        Self {
            phase: Phase::Closed,
            at: now,
            failures: 0,
            seed: Hash32::default(),
            gathered: Gathered::new(),
            slices_told: None,
            waits: None,
            by_force: false,
            plan_at: now,
            asked_for_slices: false,
            told_complete: Nanos(0),
            secret: Hash32::default(),
            token: Hash32::default(),
            members: Vec::new(),
            quorum: 1,
            builder: FrameBuilder::new(),
            is_attached: false,
            asked: Vec::new(),
            waiting: VecDeque::new(),
            refused: BTreeMap::new(),
            uncommitted: VecDeque::new(),
            uncommitted_bytes: 0,
            told: (Sequence(0), Sequence(0)),
            told_at: now,
            coming: Coming::default(),
            cuts: Cuts::default(),
            room: RoomWait::default(),
            window: Window::default(),
            intervals: Intervals::default(),
        }
    }

    /// Takes requests out of the queue.
    pub fn take_waiting(&mut self, which: impl Fn(&WriteRequest) -> bool) -> Vec<(LinkId, WriteRequest)> {
        let (taken, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|(_, w)| which(w));
        self.waiting = rest;
        VecDeque::into(taken)
    }

    /// The request is the next one again.
    pub fn wait_in_front(&mut self, link: LinkId, w: WriteRequest) {
        self.waiting.push_front((link, w));
    }

    /// Adds an update about pins, which nobody asked for, to what the next frame will have.
    pub fn push_pin(&mut self, pin: PinUpdate) {
        self.builder.push_pin(pin, (DriverId(0), RequestNumber(0), RequestNumber(0)));
    }

    /// Adds an update that nobody asked for to what the next frame will have.
    pub fn push(&mut self, draft: UpdateDraft) {
        self.builder.push(draft);
    }

    /// True if the next frame has updates already.
    pub fn gathers(&self) -> bool {
        !self.builder.is_empty()
    }

    /// Starts anew for a view that is about to be opened: nothing of an older one is left.
    pub fn reset(&mut self, members: Vec<Member>, quorum: usize, secret: Hash32, token: Hash32) {
        self.members = members;
        self.quorum = quorum;
        self.waits = None;
        self.secret = secret;
        self.token = token;
        self.slices_told = None;
        self.builder = FrameBuilder::new();
        self.is_attached = false;
        self.asked.clear();
        self.waiting.clear();
        self.refused.clear();
        self.uncommitted.clear();
        self.uncommitted_bytes = 0;
        self.told = (Sequence(0), Sequence(0));
        self.coming = Coming::default();
        self.begin_cuts();
        self.room = RoomWait::default();
        self.window = Window::default();
        self.intervals = Intervals::default();
    }

    /// Whether it is time to say that new members have everything.
    pub fn says_complete_again(&self, now: Nanos) -> bool {
        self.told_complete == Nanos(0) || now.since(self.told_complete) >= timing::COMPLETE_AGAIN
    }

    /// Bytes of the updates that the next frame will have.
    pub fn gathered_bytes(&self) -> usize {
        self.builder.data_bytes()
    }

    /// Whether a member that gets every frame takes one more update. What it had when it told its room is reckoned twice
    /// for a moment: then there is something under way to it, and its next answer says more.
    fn space_at(&self, m: &Member, now: Nanos) -> SpaceFor {
        let takes = |bytes: usize| m.said.room.is_none_or(|r| r.bytes > with_overhead(bytes as u64));
        let gathered = self.gathered_bytes();
        if takes(self.uncommitted_bytes + gathered) {
            return SpaceFor::There;
        }
        let sent = self.uncommitted.iter().filter(|(s, _)| *s > m.durable).map(|(_, bytes)| bytes);
        let under_way = sent.sum::<usize>() + gathered;
        match takes(under_way) {
            true => SpaceFor::There,
            false if !self.uncommitted.is_empty() || gathered > 0 => SpaceFor::Soon,
            false => self.room.space_without(&m.said, now),
        }
    }

    /// True if a write waits for room at a member that does not say how it is. Nothing else need be under way to it.
    fn is_silent_on_room(&self, m: &Member, now: Nanos) -> bool {
        self.room.is_silent(&m.said, now) && self.space_at(m, now) != SpaceFor::There
    }

    /// The sequence that `quorum` members hold durably in this view.
    fn committed(&self, mutant: Option<Mutant>) -> Sequence {
        let mut durable: Vec<Sequence> = self.members.iter().map(|m| m.durable).collect();
        durable.sort_unstable_by(|a, b| b.cmp(a));
        // The head is there, too.
        let there = 1 + self.members.iter().filter(|m| m.live).count();
        let quorum = if mutant == Some(Mutant::QuorumOfThoseThere) { self.quorum.min(there) } else { self.quorum };
        durable.get(quorum.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The secret of a view without slices: derived, so that its head still knows it when it was restarted.
pub(crate) fn view_secret(node_secret: &Hash32, shard: ShardId, view: ViewNumber) -> Hash32 {
    let mut h = blake3::Hasher::new_keyed(&node_secret.0);
    h.update(&shard.volume.0.to_le_bytes());
    h.update(&shard.index.to_le_bytes());
    h.update(&view.0.to_le_bytes());
    Hash32(*h.finalize().as_bytes())
}

impl Replica {
    /// Whether this replica opened its view itself and may feed members in it (opening or active).
    pub fn is_open_head(&self) -> bool {
        matches!(
            self.head.as_ref().map(|h| &h.phase),
            Some(Phase::Opening { .. } | Phase::Activating { .. } | Phase::Active)
        )
    }

    /// Its view is not active yet, and no newer one was promised.
    pub fn is_opening_head(&self) -> bool {
        let opens =
            matches!(self.head.as_ref().map(|h| &h.phase), Some(Phase::Opening { .. } | Phase::Activating { .. }));
        opens && self.serves()
    }

    pub fn is_active_head(&self) -> bool {
        matches!(self.head.as_ref().map(|h| &h.phase), Some(Phase::Active)) && self.serves()
    }

    /// The committed sequence that this head names to members (W5).
    pub fn committed_to_tell(&self, ctx: &Ctx<'_>) -> Sequence {
        if ctx.mutant(Mutant::CommittedUntold) { Sequence(0) } else { self.committed }
    }

    fn meta(&self, ctx: &Ctx<'_>, first_update: bool, blocks: u32) -> FrameMeta {
        let view = self.view_number();
        let (mut chunk, mut offset) = self.chunk;
        if chunk.view != view {
            (chunk, offset) = (ChunkId { view, counter: 0 }, 0);
        } else if offset + blocks > limits::CHUNK_BLOCKS_MAX {
            (chunk, offset) = (ChunkId { view, counter: chunk.counter + 1 }, 0);
        }
        FrameMeta {
            cluster: ctx.config.cluster,
            shard: self.id,
            view,
            chunk,
            chunk_offset: offset,
            sequence: self.last.sequence.next(),
            first_version: if first_update { self.version.next() } else { self.version },
            committed: self.committed_to_tell(ctx),
            wall: self.wall_of_gathered(ctx),
        }
    }

    /// A driver wants to use the shard (W1): a new generation is written to the log before it counts.
    pub fn on_attach(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        driver: DriverId,
        generation: Generation,
        identity: Hash32,
    ) {
        if !self.is_active_head() {
            self.refuse(ctx, link, Request::Attach, Refusal::NotReady);
            return;
        }
        let known = self.attach;
        // A generation that only the view frame named has no driver yet.
        let is_free = generation > known.generation || known.driver == DriverId(0);
        if generation < known.generation || !(is_free || driver == known.driver) {
            self.refuse(ctx, link, Request::Attach, Refusal::Fenced);
            return;
        }
        // One that the control plane cannot have given out would fence all that it does give out.
        let given_out = self.info.as_ref().map_or(known.generation, |i| i.generation);
        if generation.0 > given_out.0.saturating_add(GENERATIONS_AHEAD) {
            self.refuse(ctx, link, Request::Attach, Refusal::NotReady);
            return;
        }
        self.pack(ctx);
        let is_written = self.head.as_ref().is_some_and(|h| h.is_attached);
        if is_free && let Some(h) = self.head.as_mut() {
            h.refused.clear();
        }
        if is_free || !is_written {
            let meta = self.meta(ctx, false, 0);
            let body = AttachBody { generation, driver, identity }.encode();
            if let Some(h) = self.head.as_mut() {
                let (frame, token) = FrameBuilder::special(&meta, FrameKind::Attach, &body, &h.secret, &h.token);
                (h.token, h.is_attached) = (token, true);
                self.order(ctx, frame);
            }
        }
        if self.has_intervals_of_others(ctx) {
            // R2: their outcomes lie in front of the floor.
            return self.put_off_attach(ctx, link);
        }
        self.clients.insert(link, Client { generation, is_attached: true });
        let floor = if ctx.mutant(Mutant::NoAttachBarrier) { Sequence(0) } else { self.last.sequence };
        if let Some(news) = self.news() {
            ctx.out.send(link, Message::Attached { news, generation, floor });
        }
        self.answer_durable(ctx);
    }

    /// A driver's write: checked, then packed with what else this turn brings.
    pub fn on_write(&mut self, ctx: &mut Ctx<'_>, link: LinkId, w: WriteRequest) {
        if let Some(reason) = self.write_refusal(ctx, &w) {
            self.refuse(ctx, link, Request::Write(w.number), reason);
            return;
        }
        if let Some(Seen::At(sequence)) = self.requests.lookup(w.driver, w.number)
            && !ctx.mutant(Mutant::RepeatsAreApplied)
        {
            // A repeat (W3): it completes as the first one did, by durable answers.
            ctx.out.ordered(link, self.id, self.view_number(), (w.number, sequence));
            return;
        }
        let Some(h) = self.head.as_mut() else { return };
        let asked = h.asked.iter_mut().find(|(_, n)| *n == w.number).map(|(l, _)| l);
        let mut queued = h.waiting.iter_mut().filter(|(_, q)| (q.driver, q.number) == (w.driver, w.number));
        if let Some(to) = asked.or_else(|| queued.next().map(|(l, _)| l)) {
            // A copy of what is on its way: the answer goes where the driver is now.
            *to = link;
            return;
        }
        if self.refuses_prepare(&w, ctx) {
            return self.refuse_for_good(ctx, link, (w.number, w.lowest_open), Refusal::Aborted);
        }
        let must_wait = self.space_for(ctx, &w) != SpaceFor::There || self.is_stuffed() || self.holds();
        let Some(h) = self.head.as_mut() else { return };
        if must_wait || !h.waiting.is_empty() || h.uncommitted_bytes >= limits::SHARD_WINDOW_BYTES {
            if h.waiting.len() < limits::DRIVER_REQUESTS_MAX {
                h.waiting.push_back((link, w));
            }
            return;
        }
        self.admit(ctx, link, w);
    }

    /// Writes wait until the chain has its least copies (V1).
    pub fn is_too_short(&self, ctx: &Ctx<'_>) -> bool {
        let is_short = |b: &ViewBody| b.members.len() < usize::from(b.min_copies);
        self.view.as_ref().is_some_and(|v| is_short(&v.body)) && !ctx.mutant(Mutant::ShortChainsOrder)
    }

    fn write_refusal(&self, ctx: &Ctx<'_>, w: &WriteRequest) -> Option<Refusal> {
        let anyone = ctx.mutant(Mutant::RequestsOfAnyone);
        if w.generation < self.attach.generation && !anyone {
            return Some(Refusal::Fenced);
        }
        if !self.is_active_head() {
            return Some(Refusal::NotReady);
        }
        if self.is_too_short(ctx) {
            return Some(Refusal::NotReady);
        }
        if w.view != self.view_number() && !anyone {
            return Some(Refusal::WrongView);
        }
        if (w.generation > self.attach.generation || w.driver != self.attach.driver) && !anyone {
            // It has to attach first.
            return Some(Refusal::NotReady);
        }
        match self.requests.lookup(w.driver, w.number) {
            Some(Seen::Below) => Some(Refusal::Invalid),
            Some(Seen::At(_)) => None,
            None => self.head.as_ref().and_then(|h| h.refused.get(&w.number).copied()),
        }
    }

    /// W7: what needs space is refused before it is ordered; what was ordered once is not. What is on its way may replace
    /// something, or take less of its segment than was set aside for it: until it is committed there is hope.
    fn space_for(&self, ctx: &Ctx<'_>, w: &WriteRequest) -> SpaceFor {
        if !matches!(w.kind, UpdateKind::Write | UpdateKind::Prepare) || w.crcs.is_empty() {
            return SpaceFor::There;
        }
        let ordered = self.head.as_ref().is_some_and(|h| !h.uncommitted.is_empty());
        let is_under_way = ordered || self.unwritten_bytes() > 0 || ctx.sharers > 1;
        let own = match self.has_room(ctx) {
            true => SpaceFor::There,
            false if ctx.more_soon || is_under_way => SpaceFor::Soon,
            false => SpaceFor::None,
        };
        if ctx.mutant(Mutant::MembersRoomIgnored) {
            return own;
        }
        let members =
            self.head.iter().flat_map(|h| h.members.iter().filter(|m| m.live).map(|m| h.space_at(m, ctx.now)));
        members.fold(own, SpaceFor::max)
    }

    /// Refuses a request, given its number and the driver's lowest open one, so that no copy of it is applied later.
    pub fn refuse_for_good(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        (number, lowest_open): (RequestNumber, RequestNumber),
        reason: Refusal,
    ) {
        if let Some(h) = self.head.as_mut() {
            h.refused = h.refused.split_off(&lowest_open);
            h.refused.insert(number, reason);
            if h.refused.len() > limits::DRIVER_REQUESTS_MAX {
                h.refused.pop_first();
            }
        }
        self.refuse(ctx, link, Request::Write(number), reason);
    }

    fn admit(&mut self, ctx: &mut Ctx<'_>, link: LinkId, w: WriteRequest) {
        if w.kind.is_interval() {
            return self.admit_interval(ctx, link, w);
        }
        if self.meets_prepared(&w, ctx) {
            // Nothing is decided: it is asked for again.
            return self.refuse(ctx, link, Request::Write(w.number), Refusal::NotReady);
        }
        let blocks = self.info.as_ref().map_or(limits::SHARD_VOLUME_BLOCKS_MAX, |i| i.blocks);
        let (number, lowest_open) = (w.number, w.lowest_open);
        let draft = UpdateDraft {
            kind: w.kind,
            driver: w.driver,
            number: w.number,
            lowest_open: w.lowest_open,
            extents: w.extents,
            crcs: w.crcs,
            data: w.data,
        };
        if draft.check(blocks).is_err() {
            if draft.check(limits::SHARD_VOLUME_BLOCKS_MAX).is_ok() {
                // The volume may have grown, and this node not heard of it yet.
                self.refuse(ctx, link, Request::Write(number), Refusal::NotReady);
            } else {
                self.refuse_for_good(ctx, link, (number, lowest_open), Refusal::Invalid);
            }
            return;
        }
        self.add_to_frame(ctx, draft, Some((link, number)));
    }

    /// Adds an update to what the next frame will have.
    pub fn add_to_frame(&mut self, ctx: &mut Ctx<'_>, draft: UpdateDraft, asked: Option<(LinkId, RequestNumber)>) {
        if self.head.as_ref().is_some_and(|h| !h.builder.fits(&draft)) {
            self.pack(ctx);
        }
        self.begin_moment(ctx);
        if let Some(h) = self.head.as_mut() {
            h.builder.push(draft);
            h.asked.extend(asked);
        }
    }

    /// Ends the head's turn: what was gathered becomes a frame.
    pub fn pack(&mut self, ctx: &mut Ctx<'_>) {
        let is_active = self.is_active_head();
        let Some(h) = self.head.as_mut() else { return };
        if h.builder.is_empty() {
            return;
        }
        if !is_active {
            // Promised away, or stopped, since they came: nothing is ordered any more (V2). The driver repeats them.
            (h.builder, h.asked) = (FrameBuilder::new(), Vec::new());
            h.window.packed(false);
            return;
        }
        h.window.packed(true);
        let mut builder = std::mem::take(&mut h.builder);
        let asked = std::mem::take(&mut h.asked);
        let blocks = (builder.data_bytes() / freebs_types::BLOCK) as u32;
        let meta = self.meta(ctx, true, blocks);
        let Some(h) = self.head.as_mut() else { return };
        let (frame, token) = builder.build(&meta, &h.secret, &h.token);
        h.token = token;
        for (link, number) in asked {
            ctx.out.ordered(link, self.id, meta.view, (number, meta.sequence));
        }
        self.order(ctx, frame);
    }

    /// Gives a finished frame to the log and to the live members, by the shortest way for its size.
    fn order(&mut self, ctx: &mut Ctx<'_>, frame: Frame) {
        assert!(frame.head.view() >= self.promise(), "nothing is ordered in a view below a promise (V2)");
        let bytes = frame.data_bytes();
        self.append(ctx, frame.clone());
        let me = ctx.config.me.node;
        let Some(h) = self.head.as_mut() else { return };
        h.uncommitted.push_back((frame.head.seq(), bytes));
        h.uncommitted_bytes += bytes;
        let live: Vec<Peer> = h
            .members
            .iter_mut()
            .filter(|m| m.live && m.node != me)
            .map(|m| {
                m.waiting_since.get_or_insert(ctx.now);
                m.peer
            })
            .collect();
        if bytes <= limits::FAN_OUT_BYTES_MAX {
            for peer in live {
                ctx.out.frame(peer, &[], frame.clone());
            }
        } else if let Some((first, rest)) = live.split_first() {
            // Large frames go down the chain: each link carries them once (FreEBS section 4.1).
            let route: Vec<NodeId> = rest.iter().map(|p| p.node).collect();
            ctx.out.frame(*first, &route, frame);
        }
    }

    /// A member's answer: durable up to a sequence of a view (W4: another view's answers do not count).
    pub fn head_member_durable(&mut self, ctx: &mut Ctx<'_>, node: NodeId, item: &DurableItem) {
        if item.view != self.view_number() || !self.is_open_head() {
            return;
        }
        let sequence = item.sequence;
        let last = self.last.sequence;
        let Some(h) = self.head.as_mut() else { return };
        let Some(m) = h.members.iter_mut().find(|m| m.node == node) else { return };
        if sequence > m.durable {
            // What it was told before it had these frames may have meant nothing to it.
            h.told = (Sequence(0), Sequence(0));
        }
        m.durable = m.durable.max(sequence.min(last));
        m.said = Said { room: item.room, at: ctx.now };
        m.waiting_since = if m.durable >= last { None } else { m.waiting_since.map(|_| ctx.now) };
        self.view_frame_durable(ctx);
        self.commit_what_is_durable(ctx);
        if self.is_active_head() {
            // The own disk may be the last to have the view frame: then the view became active before.
            self.learn_active(ctx);
        }
    }

    /// Raises the committed sequence to what a quorum holds, if the view is active: what a pending view holds may
    /// still be cut, however many have it (V4).
    pub fn commit_what_is_durable(&mut self, ctx: &mut Ctx<'_>) {
        if !self.is_active_head() {
            return;
        }
        let committed = self.head.as_ref().map(|h| h.committed(ctx.config.mutant)).unwrap_or_default();
        self.note_committed(ctx, committed);
        self.release_window(ctx);
        self.see_to_snapshots(ctx);
    }

    pub fn release_window(&mut self, ctx: &mut Ctx<'_>) {
        let committed = self.committed;
        let Some(h) = self.head.as_mut() else { return };
        while h.uncommitted.front().is_some_and(|(s, _)| *s <= committed) {
            if let Some((_, bytes)) = h.uncommitted.pop_front() {
                h.uncommitted_bytes -= bytes;
            }
        }
        let is_stuffed = self.is_stuffed() || self.holds();
        while let Some(h) = self.head.as_mut() {
            if is_stuffed || h.uncommitted_bytes >= limits::SHARD_WINDOW_BYTES {
                break;
            }
            let front = self.head.as_ref().and_then(|h| h.waiting.front());
            let space = front.map_or(SpaceFor::There, |(_, w)| self.space_for(ctx, w));
            let Some(h) = self.head.as_mut() else { break };
            if !h.room.gives_up(ctx.now, space) && space != SpaceFor::There {
                self.pack(ctx);
                break;
            }
            // No other message may come that ends this turn with a frame.
            let Some((link, w)) = h.waiting.pop_front() else {
                self.pack(ctx);
                break;
            };
            if let Some(reason) = self.write_refusal(ctx, &w) {
                self.refuse(ctx, link, Request::Write(w.number), reason);
            } else if space == SpaceFor::None {
                self.refuse_for_good(ctx, link, (w.number, w.lowest_open), Refusal::NoSpace);
            } else {
                self.admit(ctx, link, w);
            }
        }
    }

    /// The member has everything that is ordered: from the next frame on it is fed as frames are made.
    pub fn member_is_level(&mut self, ctx: &mut Ctx<'_>, link: LinkId) {
        // What the builder holds is ordered after this answer, and reaches the member as a live frame.
        let (now, last) = (ctx.now, self.last.sequence);
        let Some(peer) = ctx.peers.owner(link) else { return };
        let Some(h) = self.head.as_mut() else { return };
        if let Some(m) = h.members.iter_mut().find(|m| m.peer == peer) {
            m.live = true;
            m.waiting_since = (m.durable < last).then_some(now);
            // It may have missed the last heartbeat, and then knows neither the commit nor that the view is active.
            h.told = (Sequence(0), Sequence(0));
        } else {
            self.coming_is_level(now, peer.node);
        }
    }

    /// A link to a member is gone, or there again.
    pub fn head_link_changed(&mut self, ctx: &mut Ctx<'_>, peer: Peer, is_up: bool) {
        if !self.is_open_head() {
            self.open_link_changed(ctx, peer, is_up);
            return;
        }
        // Also when a new link takes the place of one whose end was not noticed: what that one carried may be lost.
        self.pass_over(ctx, peer);
        self.coming_is_away(peer.node);
        if is_up {
            self.nudge(ctx, peer);
        }
    }

    /// From now on frames go past this member; those behind it in the chain ask for what they missed.
    fn pass_over(&mut self, ctx: &mut Ctx<'_>, peer: Peer) {
        let Some(h) = self.head.as_mut() else { return };
        let Some(m) = h.members.iter_mut().find(|m| m.peer == peer && m.live) else { return };
        m.live = false;
        m.waiting_since = None;
        // It says so again when it is there.
        m.said.room.iter_mut().for_each(|r| r.past_over = false);
        let (last, now) = (self.last.sequence, ctx.now);
        let behind: Vec<Peer> = h
            .members
            .iter_mut()
            .filter(|m| m.live && m.durable < last && m.peer != ctx.config.me)
            .map(|m| {
                m.waiting_since = Some(now);
                m.peer
            })
            .collect();
        ctx.out.note(format!("shard {}: member {peer} is passed over", self.id));
        for p in behind {
            self.nudge(ctx, p);
        }
    }

    fn nudge(&mut self, ctx: &mut Ctx<'_>, peer: Peer) {
        let (view, now) = (self.view_number(), ctx.now);
        let Some(link) = ctx.peers.link(peer) else { return };
        let Some(m) = self.head.as_mut().and_then(|h| h.members.iter_mut().find(|m| m.peer == peer)) else { return };
        m.nudged = now;
        ctx.out.send(link, Message::Nudge { shard: self.id, view });
    }

    /// Invites every member that is not level.
    pub fn nudge_all(&mut self, ctx: &mut Ctx<'_>) {
        let Some(h) = self.head.as_ref() else { return };
        let me = ctx.config.me.node;
        let late: Vec<Peer> = h.members.iter().filter(|m| !m.live && m.node != me).map(|m| m.peer).collect();
        for p in late {
            self.nudge(ctx, p);
        }
    }

    /// The head's time-outs: silent members are passed over, late ones invited, idle ones told.
    pub fn head_tick(&mut self, ctx: &mut Ctx<'_>) {
        if self.stopped.is_some() {
            self.hand_over_tick(ctx, "this log is out of use");
            return;
        }
        self.see_whether_overtaken(ctx);
        if !self.is_open_head() {
            self.open_tick(ctx);
            return;
        }
        if self.is_active_head() && self.head.as_ref().is_some_and(|h| !h.waiting.is_empty()) {
            // There may be room now, or no hope for any.
            self.release_window(ctx);
        }
        let me = ctx.config.me.node;
        let (now, peers) = (ctx.now, ctx.peers);
        let mut silent = None;
        let mut late = Vec::new();
        // Nobody hears a heartbeat in a pending view, and who did not know yet that it may begin a branch let its frame go.
        let (opens, last) = (self.is_opening_head(), self.last.sequence);
        let lacks = |m: &Member| !m.live || (opens && m.durable < last);
        if let Some(h) = self.head.as_ref() {
            // Without a quorum of live members nothing is gained by going past one, and its frames are under way to it.
            let spare = h.members.iter().filter(|m| m.live || m.node == me).count() > h.quorum;
            for m in h.members.iter().filter(|m| m.node != me) {
                let quiet = now.since(peers.last_heard(m.peer)) >= timing::LINK_SILENCE;
                let is_late = quiet && m.waiting_since.is_some_and(|s| now.since(s) >= timing::LINK_SILENCE);
                if spare && m.live && (is_late || h.is_silent_on_room(m, now)) {
                    // One at a time: those behind it may be silent only because it passes nothing on.
                    silent = silent.or(Some(m.peer));
                } else if lacks(m) && now.since(m.nudged) >= timing::NUDGE_EVERY {
                    late.push(m.peer);
                }
            }
        }
        if let Some(p) = silent {
            self.pass_over(ctx, p);
        }
        for p in late {
            self.nudge(ctx, p);
        }
        self.see_to_intervals(ctx);
        self.see_to_snapshots(ctx);
        self.look_at_pins(ctx);
        self.see_to_window(ctx);
        self.heartbeat(ctx);
        self.ask_for_slices(ctx);
        self.ask_for_members(ctx);
        self.tell_complete(ctx);
        self.open_tick(ctx);
    }

    fn heartbeat(&mut self, ctx: &mut Ctx<'_>) {
        let ordered = ctx.mutant(Mutant::OrderedIsCommitted);
        let state = (self.last.sequence, if ordered { self.last.sequence } else { self.committed_to_tell(ctx) });
        let (now, me) = (ctx.now, ctx.config.me.node);
        if !self.is_active_head() {
            return;
        }
        let Some(h) = self.head.as_mut() else { return };
        // A frame or heartbeat that was lost on a link that others keep busy is noticed by the next heartbeat only.
        let behind = h.members.iter().any(|m| m.live && m.node != me && m.durable < state.0);
        // Members that are short of room answer each heartbeat: a write that waits for them hears how they are.
        let is_news = h.told != state || behind || h.room.waits();
        if !is_news || now.since(h.told_at) < timing::HEARTBEAT_EVERY {
            return;
        }
        (h.told, h.told_at) = (state, now);
        let keep = h.members.iter().map(|m| m.durable).min().unwrap_or_default();
        let item = HeartbeatItem {
            shard: self.id,
            view: self.view.as_ref().map(|v| v.number).unwrap_or_default(),
            last: state.0,
            committed: state.1,
            keep,
        };
        let peers: Vec<Peer> = h.members.iter().filter(|m| m.live && m.node != me).map(|m| m.peer).collect();
        for p in peers {
            ctx.out.heartbeat(p, item);
        }
        ctx.out.actions.push(crate::event::Action::Keep { shard: self.id, from: keep });
    }

    /// The access token of the last frame, from the secret of its view (only this node's own views).
    pub fn last_token(&self, node_secret: &Hash32) -> Hash32 {
        match self.tail.get(&self.last.sequence) {
            Some(TailEntry { token: Some(token), .. }) => *token,
            Some(t) if t.name.sequence.0 > 0 => {
                token(&view_secret(node_secret, self.id, t.name.view), &t.parent, &t.digest)
            }
            _ => Hash32::default(),
        }
    }
}

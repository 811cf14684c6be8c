//! SYNC by map: a member that was away for so long that the frames it lacks were given up learns the map instead
//! (rule E3): all entries placed since its own last committed frame, then the state that goes with them, then the
//! frames behind that.
//!
//! The past that is kept comes below the entries in force, and in front of each piece what its teller keeps (design note
//! 33): the learner judges what comes by that. Invariant: a piece goes into the log only when that is known to be durable;
//! what was told in an earlier transfer, or is on its way, does not count.
//!
//! Entries merge by (version, sequence) (rule E2), so pieces may come twice, and blocks that are overwritten during
//! the transfer are brought by the frames behind it. Only a head is learned from, or who has promised the view that the
//! learner opens; and only what is committed is sent (a learner can't take entries back).
//!
//! A device may be too full for a piece: the log refuses it then. What makes room is learned first (trims and zeroes
//! take next to none), then the learner rests, serves what it has, and tries again: cleaning or the next trim may have
//! made room. It counts as a member only when it has all.

use crate::event::{Action, MapSource, Mutant, ShardInfo};
use crate::replica::{Ctx, Replica, TailEntry, first_chunk, with_overhead};
use crate::sync::{ANSWER_BYTES, Asking};
use crate::timing;
use freebs_format::wire::{FrameName, MapPoint, Message, SyncMode, SyncReply, SyncRequest};
use freebs_format::{
    AttachBody, CarryBody, ExtentKind, Frame, FrameBuilder, FrameHead, FrameKind, FrameMeta, MarkBody, ViewBody,
};
use freebs_io::LinkId;
use freebs_lsvd::{Base, KeptState, MapPlace, MarkChange, Record, RequestTable};
use freebs_types::{ChunkId, Nanos, NodeId, Sequence, Version, ViewNumber};
use std::collections::BTreeMap;

/// Where a transfer stands, at the learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learning {
    pub from: MapPoint,
    pub since: Sequence,
    /// The map is learned as of this committed sequence.
    pub upto: Sequence,
    /// The place where the piece begins that was taken last.
    pub piece: MapPoint,
    /// Not 0 if all of the past is wanted, because history here is not whole below this version.
    pub past: Version,
    /// Below this version no teller of a piece had all that it kept.
    pub whole_from: Version,
    /// There is no room for data; only what frees blocks is taken.
    pub frees: bool,
    /// That was done already; the map as of `upto` frees no more.
    pub freed: bool,
    /// Rests since a piece was taken.
    pub rests: u32,
    /// The next piece is not asked for yet.
    pub hold: Option<Hold>,
}

/// What a learner waits for between two pieces: a map may be larger than what its disk takes at once (W7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The piece before, under this ticket, is on its way to the disk.
    Disk(u64),
    /// Cleaning makes room.
    Room,
    /// The device is full; tried again at this time.
    Full(Nanos),
}

impl Learning {
    /// A transfer that begins.
    pub fn new(since: Sequence, upto: Sequence, past: Version) -> Self {
        let (from, whole_from) = (MapPoint::NONE, Version(0));
        Self { from, since, upto, piece: from, past, whole_from, frees: false, freed: false, rests: 0, hold: None }
    }

    /// Nothing is asked for, and nothing is on its way to the disk: the device is full.
    pub fn is_resting(&self) -> bool {
        matches!(self.hold, Some(Hold::Full(_)))
    }
}

/// Where a transfer goes on.
fn point(at: MapPlace) -> MapPoint {
    MapPoint { from: u64::from(at.lba.0) + 1, behind: at.behind, blocks: at.blocks }
}

/// Where a log is to read on.
fn place(from: MapPoint) -> MapPlace {
    MapPlace { lba: from.lba(), behind: from.behind, blocks: from.blocks }
}

impl Replica {
    /// The frames that a member lacks are gone: it gets the map, piece by piece.
    pub fn feed_by_map(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: SyncRequest, since: Sequence) {
        // Who promised the view that the asker opens may have the frame of another one on top, that never became active.
        // A head that is not active yet feeds who has nothing of the active view behind what both have, or is nobody who seals
        // that: no frame that the view's seal may need is cut for one that may never become active (V2). What is older is in
        // the active view.
        if self.gives_state(ctx, link, &r, since) {
            return;
        }
        if self.learns_for_nothing(ctx, link, &r) {
            self.refuse_sync(ctx, link, &r);
            return;
        }
        let r = SyncRequest { early: false, ..r };
        let opens = self.is_opening_head();
        let known = self.info.as_ref().map_or(ViewNumber(0), |i| i.known);
        let may_seal = ctx.peers.owner(link).is_none_or(|p| self.may_seal_active(p.node));
        if opens && may_seal && r.names.iter().any(|n| n.sequence > since && n.view >= known) {
            self.refuse_sync(ctx, link, &r);
            return;
        }
        let view_is_in = |s: Sequence| {
            r.fetch || opens || r.map_from.is_some() || self.view.as_ref().is_some_and(|v| v.sequence <= s)
        };
        // Members that learn at the same time learn the same state: only one is kept.
        let held = self.map_hold.filter(|(_, at)| ctx.now.since(*at) < timing::MAP_HOLD).map(|(t, _)| t.name.sequence);
        let upto = match held {
            _ if r.map_from.is_some() => r.until,
            Some(held) if since < held && view_is_in(held) => held,
            _ => self.committed.min(self.durable),
        };
        let may_feed = self.may_feed_map(&r) && !self.damage.lacks(since, upto);
        let Some(state) = self.kept_state(upto).filter(|_| may_feed && view_is_in(upto) && since <= upto) else {
            self.refuse_sync(ctx, link, &r);
            return;
        };
        let past = if r.past > Version(0) { Sequence(0) } else { since };
        let after = place(r.map_from);
        // The state at the transfer's end must be known still when it is over.
        self.map_hold = Some((state, ctx.now));
        ctx.out.actions.push(Action::MapRead { link, request: r, since, upto, past, after });
    }

    /// True if the active view may be sealed with the log of this node, in whatever way.
    fn may_seal_active(&self, node: NodeId) -> bool {
        let named = |i: &ShardInfo| i.forced.as_ref().is_some_and(|f| f.survivors.contains(&node));
        self.info.as_ref().is_none_or(|i| i.view_members.is_empty() || i.view_members.contains(&node) || named(i))
    }

    /// The head, or who has promised the view that the asker opens: what is committed there stays so.
    fn may_feed_map(&self, r: &SyncRequest) -> bool {
        let has_promised = r.view == self.promised && self.promising.is_none() && r.view > self.view_number();
        self.is_active_head() || self.is_opening_head() || (r.fetch && has_promised)
    }

    /// Frames that a member lost are gone everywhere: it gets what is left of what they brought. Any member has that,
    /// since only what is committed is sent, which is the same in every view; what newer frames wrote over it the asker
    /// has from these. A log that gave frames up has not, and a branch that began with it feeds no view before it (V10).
    pub(crate) fn feed_lost(&self, ctx: &mut Ctx<'_>, link: LinkId, r: SyncRequest) {
        let is_of_branch = self.info.as_ref().is_none_or(|i| r.view >= i.branch.view);
        let has_what_it_had = is_of_branch && !self.has_given_up();
        let is_sound = has_what_it_had && self.stopped.is_none() && !self.damage.meets(r.map_since, r.until);
        let has_all = is_sound && r.until <= self.committed.min(self.durable);
        let wants_past = r.past > Version(0);
        let has_past = !self.damage.is_there() && !self.lacks_some() && self.whole_from < r.past;
        if !has_all
            || (wants_past && !has_past)
            || (!wants_past && r.map_since >= r.until)
            || self.committed_state().is_none()
        {
            self.refuse_sync(ctx, link, &r);
            return;
        }
        let after = place(r.map_from);
        let (since, upto) = (r.map_since, r.until);
        let past = if wants_past { Sequence(0) } else { since };
        ctx.out.actions.push(Action::MapRead { link, request: r, since, upto, past, after });
    }

    /// The newest frame whose state no cut takes back.
    fn committed_state(&self) -> Option<TailEntry> {
        let newest = self.tail.range(..=self.committed.min(self.durable)).next_back();
        newest.map(|(_, t)| *t)
    }

    fn kept_state(&self, upto: Sequence) -> Option<TailEntry> {
        let held = self.map_hold.map(|(t, _)| t).filter(|t| t.name.sequence == upto);
        self.tail.get(&upto).copied().or(held)
    }

    /// The chunk that a frame of this name filled, and how far. Of frames before the last one that is not kept.
    fn chunk_behind(&self, name: FrameName) -> (ChunkId, u32) {
        if name == self.last { self.chunk } else { first_chunk(name.view) }
    }

    /// A piece was read: it goes out as a carry frame, the last one with the state as a mark frame.
    pub fn answer_map(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: &SyncRequest, source: MapSource) {
        let (body, data, next) = match source.piece {
            Ok(_) if ctx.mutant(Mutant::LearnsTheStateOnly) => (CarryBody::default(), Vec::new(), None),
            Ok(p) => p,
            Err(e) => return self.keep_waiting(ctx, link, r, &e),
        };
        if source.kept.as_of < source.upto {
            // The log was not told yet that all of that is committed, so it may keep more.
            self.refuse_sync(ctx, link, r);
            return;
        }
        let state = if r.lost { self.committed_state() } else { self.kept_state(source.upto) };
        let view_frame = source.view_frame.map(|f| *f).or_else(|| {
            let newest = self.view.as_ref().filter(|v| v.sequence <= source.upto);
            newest.and(self.view_frame.clone())
        });
        // Without its view a state is good for nothing. Of lost frames none need have been one of a view.
        let has_view = |t: &TailEntry| view_frame.as_ref().is_some_and(|f| f.view() == t.name.view);
        let Some(at) = state.filter(|t| r.lost || (self.may_feed_map(r) && has_view(t))) else {
            // If a state is held that nothing completes any more, the next question gets another one.
            self.map_hold.take_if(|(t, _)| !r.lost && t.name.sequence == source.upto && !has_view(t));
            self.refuse_sync(ctx, link, r);
            return;
        };
        let (chunk, chunk_offset) = self.chunk_behind(at.name);
        let meta = FrameMeta {
            cluster: ctx.config.cluster,
            shard: self.id,
            view: at.name.view,
            chunk,
            chunk_offset,
            sequence: source.upto,
            first_version: at.version,
            committed: source.upto,
            wall: ctx.wall,
        };
        let mut frames = vec![FrameBuilder::local(&meta, FrameKind::Carry, &body.encode(), data, &at.name.hid)];
        let state = match next {
            None if r.early && ctx.mutant(Mutant::EarlyWithoutRequests) => {
                MarkBody { requests: Default::default(), ..self.state_at(&at, view_frame) }
            }
            None => self.state_at(&at, view_frame),
            Some(_) => MarkBody { committed: at.name.sequence, ..MarkBody::default() },
        };
        let kept = source.kept;
        let state = MarkBody {
            pins: kept.pins,
            retain: kept.retain.unwrap_or_default(),
            kept_as_of: Some(kept.as_of),
            whole_from: kept.whole_from,
            ..state
        };
        let meta = FrameMeta { sequence: at.name.sequence, committed: at.name.sequence, ..meta };
        frames.push(FrameBuilder::local(&meta, FrameKind::Mark, &state.encode(), Vec::new(), &at.name.hid));
        let reply = SyncReply {
            shard: self.id,
            view: r.view,
            id: r.id,
            mode: match next {
                None if r.early => SyncMode::State,
                None => SyncMode::MapEnd,
                Some(_) => SyncMode::Map,
            },
            common: if r.early { r.map_since } else { source.since },
            map_next: next.map_or(MapPoint::NONE, point),
            frames,
        };
        ctx.out.send(link, Message::SyncReply(reply));
    }

    /// A piece of the map arrived.
    pub fn on_map_reply(&mut self, ctx: &mut Ctx<'_>, asking: Asking, reply: SyncReply) {
        self.asking = None;
        let Some(carry) = reply.frames.first().filter(|f| f.head.kind() == FrameKind::Carry) else { return };
        let upto = carry.head.seq();
        let since = reply.common;
        let learning = asking.map.unwrap_or_else(|| Learning::new(since, upto, asking.past));
        if learning.upto != upto || learning.since != reply.common || carry.head.shard() != self.id {
            return;
        }
        self.damage.put_off_learning();
        // What we had named behind the common frame is of a branch that was cut, however long it is. What came since
        // follows the common frame, and may be committed by now, as may some of what was named: a head that has given
        // all of these frames up takes the oldest for the common one.
        let common = learning.since.max(self.committed);
        if common < asking.named.min(self.last.sequence) {
            self.cut(ctx, common);
        }
        if self.stopped.is_some() {
            return;
        }
        let Some(kept) = self.kept_with(ctx, &reply) else { return };
        let learning = Learning { whole_from: learning.whole_from.max(kept.whole_from), ..learning };
        if self.is_kept_news(&kept) {
            // It is in force before what comes with it is judged; until then nobody knows what is.
            let ticket = ctx.ticket();
            self.told_kept = KeptState::default();
            let change = MarkChange { kept: Some(Box::new(kept.clone())), ..MarkChange::default() };
            ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
            let map = Learning { hold: Some(Hold::Disk(ticket)), ..learning };
            (self.asking, self.map_piece) = (Some(Asking { map: Some(map), ..asking }), Some((reply, kept)));
            return;
        }
        self.take_piece(ctx, asking, learning, &reply);
    }

    /// The versions that a piece's teller keeps, as of behind the piece; `None` if it doesn't say so.
    pub(crate) fn kept_with(&mut self, ctx: &mut Ctx<'_>, reply: &SyncReply) -> Option<KeptState> {
        let mark = reply.frames.get(1).filter(|f| f.head.kind() == FrameKind::Mark && f.verify_digest().is_ok());
        let Some(body) = mark.and_then(|m| MarkBody::decode(m.head.body()).ok()) else {
            ctx.out.note(format!("shard {}: a piece of the map does not say what is kept; asking again", self.id));
            return None;
        };
        let as_of = body.kept_as_of.unwrap_or(body.committed);
        self.note_ahead(reply.view, as_of);
        Some(KeptState {
            retain: Some(body.retain).filter(|v| v.0 > 0),
            as_of,
            whole_from: body.whole_from,
            past: Version(0),
            pins: body.pins,
        })
    }

    /// True if the log does not have it yet. As of which frame it is goes into the log with the state at the end.
    fn is_kept_news(&self, kept: &KeptState) -> bool {
        let told = &self.told_kept;
        (&kept.pins, kept.retain, kept.whole_from) != (&told.pins, told.retain, told.whole_from)
    }

    /// A mark is durable: the one in front of a piece lets it in.
    pub fn on_kept_durable(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        let Some((asking, map)) = self.asking.and_then(|a| Some((a, a.map?))) else { return };
        if map.hold != Some(Hold::Disk(ticket)) {
            return;
        }
        let Some((reply, kept)) = self.map_piece.take() else { return };
        (self.asking, self.told_kept) = (None, kept);
        if self.stopped.is_none() && self.promise() <= asking.view {
            self.take_piece(ctx, asking, Learning { hold: None, ..map }, &reply);
        }
    }

    /// A piece goes into the log.
    fn take_piece(&mut self, ctx: &mut Ctx<'_>, asking: Asking, learning: Learning, reply: &SyncReply) {
        assert!(self.map_piece.is_none(), "what a teller keeps is durable before its piece is taken");
        let Some(ticket) = reply.frames.first().and_then(|c| self.take_carry(ctx, c, learning.frees)) else { return };
        let hold = Some(ticket.map_or(Hold::Room, Hold::Disk));
        let piece = if learning.from.is_some() { learning.from } else { MapPoint::BEGIN };
        let map = Learning { from: reply.map_next, piece, hold, ..learning };
        match reply.mode {
            SyncMode::MapEnd => {
                let Some(mark) = reply.frames.get(1).filter(|f| f.head.kind() == FrameKind::Mark) else { return };
                self.asking = Some(Asking { map: Some(map), ..asking });
                self.map_end = Some(mark.clone());
                if ticket.is_none() {
                    self.end_map(ctx);
                }
            }
            _ if reply.map_next.is_some() => {
                self.asking = Some(Asking { map: Some(map), ..asking });
                self.ask_next_piece(ctx);
            }
            _ => {}
        }
    }

    /// The last piece is durable: the state that belongs to the map follows, if all of the map was taken.
    fn end_map(&mut self, ctx: &mut Ctx<'_>) {
        let Some((asking, map)) = self.asking.and_then(|a| Some((a, a.map?))) else { return };
        let Some(mark) = self.map_end.take() else { return };
        // Nothing is taken behind a promise that was made meanwhile (rule V2).
        if self.stopped.is_some() || self.promise() > asking.view {
            self.asking = None;
            return;
        }
        if map.frees {
            self.rest(ctx);
            return;
        }
        self.asking = None;
        if self.take_state(ctx, &map, &mark, false) {
            let until = self.wanted_until();
            self.ask(ctx, asking.to, asking.view, until);
        }
    }

    /// The log has no room for a piece. The first time, what is left of the map is looked through for what frees blocks.
    pub fn on_no_room(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        self.lost_entries_refused(ctx, ticket);
        self.regain_refused(ctx, ticket);
        self.giving_up_refused(ctx, ticket);
        self.promise_refused(ctx, ticket);
        let Some(map) = self.asking.as_mut().and_then(|a| a.map.as_mut()) else { return };
        if map.hold != Some(Hold::Disk(ticket)) {
            return;
        }
        self.map_end = None;
        if self.map_piece.take().is_some() {
            // Not even what goes in front of the piece.
            self.full_from = if map.from.is_some() { map.from } else { MapPoint::BEGIN };
            self.rest(ctx);
            return;
        }
        if map.frees || map.freed {
            self.full_from = if map.frees { self.full_from } else { map.piece };
            self.rest(ctx);
            return;
        }
        if !self.is_full {
            ctx.out.note(format!("shard {}: the device is full; the map is learned when there is room", self.id));
        }
        self.is_full = true;
        (map.from, map.frees, map.freed, map.hold) = (map.piece, true, true, Some(Hold::Room));
        self.full_from = map.piece;
        self.ask_next_piece(ctx);
    }

    /// The log can't have a piece, and never will: the map is asked for anew, and so are entries of lost frames, later.
    pub fn on_unlearned(&mut self, ctx: &mut Ctx<'_>, ticket: u64, why: &'static str) {
        self.lost_entries_refused(ctx, ticket);
        self.regain_refused(ctx, ticket);
        let map = self.asking.and_then(|a| a.map);
        if map.is_some_and(|m| m.hold == Some(Hold::Disk(ticket))) {
            (self.asking, self.map_end) = (None, None);
            ctx.out.note(format!("shard {}: a piece of the map makes no sense here ({why}); asking again", self.id));
        }
    }

    /// The learner goes on later with the piece that had no room. Who opens a view has no time for that.
    fn rest(&mut self, ctx: &mut Ctx<'_>) {
        self.has_no_room_to_fetch(ctx);
        let from = self.full_from;
        if let Some(map) = self.asking.as_mut().and_then(|a| a.map.as_mut()) {
            let pause = Nanos(timing::FULL_PAUSE.0 << map.rests.min(3));
            (map.from, map.frees, map.hold) = (from, false, Some(Hold::Full(ctx.now.plus(pause))));
            map.rests += 1;
        }
    }

    /// A piece of a map is durable.
    pub fn on_piece_durable(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        if let Some(map) = self.asking.as_mut().and_then(|a| a.map.as_mut())
            && map.hold == Some(Hold::Disk(ticket))
        {
            map.hold = Some(Hold::Room);
            self.is_full &= map.frees;
            map.rests = if map.frees { map.rests } else { 0 };
            self.fetch_gets_on(ctx.now);
            match self.map_end.is_some() {
                true => self.end_map(ctx),
                false => self.ask_next_piece(ctx),
            }
        }
    }

    /// Goes on learning as soon as the log takes another piece.
    pub fn ask_next_piece(&mut self, ctx: &mut Ctx<'_>) {
        let Some((asking, map)) = self.asking.and_then(|a| Some((a, a.map?))) else { return };
        // What comes replaces older blocks here; cleaning gets them back if it is let.
        let is_due = match map.hold {
            Some(Hold::Room) => map.frees || self.has_room_for_piece(ctx) || !ctx.more_soon,
            Some(Hold::Full(until)) => ctx.now >= until || self.has_room_for_piece(ctx),
            Some(Hold::Disk(_)) | None => false,
        };
        if is_due {
            self.asking = None;
            self.ask_map(ctx, asking.to, asking.view, Learning { hold: None, ..map });
        }
    }

    /// Whether the log takes one more answer.
    pub(crate) fn has_room_for_piece(&self, ctx: &Ctx<'_>) -> bool {
        ctx.room > with_overhead(self.unwritten_bytes() + ANSWER_BYTES as u64)
    }

    /// Gives back the ticket of the record, or of none if there is nothing in the piece; `None` if it is damaged. Of a
    /// piece that is only to free blocks no data are taken.
    pub(crate) fn take_carry(&mut self, ctx: &mut Ctx<'_>, carry: &Frame, frees: bool) -> Option<Option<u64>> {
        let mut body = match CarryBody::decode(carry.head.body(), carry.header().data_blocks()) {
            Ok(b) if carry.verify_digest().is_ok() => b,
            _ => {
                ctx.out.note(format!("shard {}: a piece of the map is damaged; asking again", self.id));
                return None;
            }
        };
        let mut data = carry.data.clone();
        if frees {
            body.entries.retain(|e| e.kind != ExtentKind::Data);
            data.clear();
        }
        if body.entries.is_empty() {
            return Some(None);
        }
        let ticket = ctx.ticket();
        let record = Record::Carry { shard: self.id, body, data, ticket };
        ctx.out.actions.push(Action::Append(record));
        Some(Some(ticket))
    }

    /// The log goes on from the state that belongs to the learned map. False if that is not to be asked for again at once.
    /// `early`: the map itself was not.
    pub(crate) fn take_state(&mut self, ctx: &mut Ctx<'_>, map: &Learning, mark: &Frame, early: bool) -> bool {
        let since = map.since;
        let Ok(body) = MarkBody::decode(mark.head.body()) else { return true };
        let h = mark.header();
        if mark.verify_digest().is_err() || h.seq() <= self.last.sequence {
            return true;
        }
        // Who goes on without the frame of the view that the state is of takes itself to be in an older one for good.
        let frame = body.view_frame.as_ref().filter(|f| f.view() == body.last_view && f.seq() <= h.seq());
        let whole = |f| Some((f, ViewBody::decode(FrameHead::body(f)).ok().filter(|v| v.pred < f.view())?));
        let Some((frame, view)) = frame.and_then(whole) else {
            ctx.out.note(format!("shard {}: the end of the map lacks the frame of view {}", self.id, body.last_view));
            return true;
        };
        if !self.may_pass_branch(frame, &view) {
            // This log begins anew when the control plane says that there is a branch, or learns all when it has said so.
            ctx.out.note(format!("shard {}: the map leads past a branch that may not stand here", self.id));
            return false;
        }
        let name = FrameName { view: body.last_view, sequence: h.seq(), hid: h.hid() };
        // No generation that is known is forgotten (L2): neither that of the view, nor the one that this log had.
        let of_view = AttachBody { generation: view.generation, ..AttachBody::default() };
        let newer = |a: AttachBody, b: AttachBody| if b.generation > a.generation { b } else { a };
        let attach = newer(newer(body.attach, of_view), self.attach);
        let requests = RequestTable::from_format(&body.requests);
        let base = Base {
            since,
            tip: self.last.sequence,
            last: name,
            parent: body.last_parent,
            digest: body.last_digest,
            version: h.last_version(),
            committed: body.committed,
            view_frame: body.view_frame.clone(),
            attach,
            requests: requests.clone(),
            open_chunk: (h.chunk(), h.chunk_offset.get()),
        };
        let ticket = ctx.ticket();
        let kept = KeptState {
            retain: Some(body.retain).filter(|v| v.0 > 0),
            as_of: body.kept_as_of.unwrap_or(body.committed),
            whole_from: map.whole_from,
            // Marks in front of the pieces may have shown that more is missing, and these brought that, too.
            past: if map.past > Version(0) { Version(u64::MAX) } else { Version(0) },
            pins: body.pins,
        };
        self.told_kept = KeptState::default();
        let (base, kept) = (Some(Box::new(base)), Some(Box::new(kept)));
        let change = MarkChange { base, kept, early, ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
        self.learned = Some((ticket, since, name.sequence));
        self.last = name;
        self.version = h.last_version();
        let entry = TailEntry::with_origin(name, self.version, body.last_parent, body.last_digest);
        self.tail = BTreeMap::from([(name.sequence, entry)]);
        self.committed = name.sequence;
        self.is_full = false;
        self.requests = requests;
        self.learn_attach(ctx, attach, name.sequence);
        self.chunk = (h.chunk(), h.chunk_offset.get());
        self.forget_recent();
        if early {
            self.begins_behind(since, name.sequence);
        }
        self.enter_view(ctx, frame, view);
        let what = if early { "begins with the state of" } else { "learned the map up to" };
        ctx.out.note(format!("shard {}: {what} sequence {}", self.id, name.sequence));
        true
    }

    /// The learned state is durable: from here on this member counts.
    pub fn on_learned(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        if let Some((_, since, sequence)) = self.learned.filter(|(t, ..)| *t == ticket) {
            self.learned = None;
            self.forget_learned_holes(since, sequence);
            self.on_durable(ctx, sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Action;
    use crate::testing::{Chain, appends, map_end, map_end_with, step};
    use freebs_format::CarryEntry;
    use freebs_types::{Generation, Peer};

    const HEAD: Peer = Peer { node: NodeId(1), worker: 0 };

    /// Frames 1 to 3 that both have, a branch of `own` more here, and the chain's, of the next view.
    fn branched(own: u64, chain: u64) -> (Replica, Vec<Frame>) {
        let mut here = Chain { committed: 3, ..Chain::new() };
        let mut common = vec![here.view()];
        common.extend(here.frames(2));
        let mut there = Chain { secret: 8, ..here.clone() };
        let mut r = Replica::empty(crate::testing::SHARD);
        step(&mut r, |r, ctx| {
            for f in common.into_iter().chain(here.frames(own)) {
                assert!(r.on_synced_frame(ctx, f, ViewNumber(1)));
            }
        });
        assert_eq!((r.last.sequence, r.committed), (Sequence(3 + own), Sequence(3.min(2 + own))));
        let mut frames = vec![there.view()];
        frames.extend(there.frames(chain - 1));
        (r, frames)
    }

    /// A member had more frames of a branch that was cut than the chain has by now, and the chain's first ones were
    /// given up. It kept its own, dropped the state, and learned the map again and again.
    #[test]
    fn a_longer_branch_gives_way_to_the_map() {
        let (mut r, chain) = branched(7, 3);
        step(&mut r, |r, ctx| {
            r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
            r.on_sync_reply(ctx, map_end(3, &chain[2], &chain[0].head));
            assert_eq!(appends(&ctx.out.actions), ["cut 3", "base"]);
        });
        assert_eq!(r.stopped, None);
        assert_eq!(r.last.hid, chain[2].header().hid());
        assert_eq!((r.last.sequence, r.committed, r.view_number()), (Sequence(6), Sequence(6), ViewNumber(2)));
    }

    /// What a fetch of the head that opens view 3 gets of a log that ends with the pending view frame 6 of view 2, of
    /// which frame 4 is the newest that is known to be committed.
    fn fetched(winner: &mut Replica, view_frame: Option<FrameHead>) -> Option<SyncReply> {
        let r = SyncRequest {
            early: false,
            lacks: false,
            shard: crate::testing::SHARD,
            view: ViewNumber(3),
            id: 8,
            names: Vec::new(),
            until: Sequence(5),
            map_from: MapPoint::NONE,
            map_since: Sequence(0),
            lost: false,
            fetch: true,
            past: Version(0),
        };
        let mut reply = None;
        step(winner, |w, ctx| {
            w.promised = ViewNumber(3);
            w.on_durable(ctx, Sequence(6));
            ctx.out.actions.clear();
            w.feed_by_map(ctx, LinkId(1), r.clone(), Sequence(3));
            let read = ctx.out.actions.iter().any(|a| matches!(a, Action::MapRead { upto: Sequence(4), .. }));
            if read {
                let piece = Ok((CarryBody::default(), Vec::new(), None));
                let source = MapSource {
                    since: Sequence(3),
                    upto: Sequence(4),
                    view_frame: view_frame.map(Box::new),
                    kept: KeptState { as_of: Sequence(4), ..KeptState::default() },
                    piece,
                };
                w.answer_map(ctx, LinkId(1), &r, source);
            }
            for a in std::mem::take(&mut ctx.out.actions) {
                if let Action::Send { message: Message::SyncReply(r), .. } = a {
                    reply = Some(r);
                }
            }
        });
        reply.filter(|r| r.mode == SyncMode::MapEnd)
    }

    /// The frames of the longest log were given up, and on top of it lay the frame of a newer view that never became
    /// active; or the committed frame itself was given up and known only from the one behind it. The map was refused,
    /// and the view that would have ended this could never be opened.
    #[test]
    fn a_pending_view_does_not_hide_the_map_below_it() {
        let mut c = Chain { committed: 4, ..Chain::new() };
        let mut all = vec![c.view()];
        all.extend(c.frames(4));
        all.push(c.view());
        let mut winner = Replica::empty(crate::testing::SHARD);
        step(&mut winner, |w, ctx| {
            assert!(all.iter().all(|f| w.on_synced_frame(ctx, f.clone(), ViewNumber(2))));
        });
        let first = Some(all[0].head.clone());
        assert!(fetched(&mut winner, None).is_none(), "the view in force there is not known");
        let reply = fetched(&mut winner, first.clone()).expect("a map");
        let state = MarkBody::decode(reply.frames[1].head.body()).unwrap();
        assert_eq!(state.view_frame.map(|f| f.view()), Some(ViewNumber(1)));
        // As after a restart of the winner that has only what lies behind the committed frame.
        let known = winner.tail[&Sequence(4)];
        winner.tail.insert(Sequence(4), TailEntry::before(&all[4].head));
        let reply = fetched(&mut winner, first).expect("a map");
        let (mut r, _) = branched(0, 1);
        step(&mut r, |r, ctx| {
            r.ask(ctx, HEAD, ViewNumber(3), Sequence(5));
            let id = r.asking.expect("it asks").id;
            r.on_sync_reply(ctx, SyncReply { id, view: ViewNumber(3), ..reply });
        });
        assert_eq!((r.stopped.clone(), r.last, r.view_number()), (None, known.name, ViewNumber(1)));
        assert_eq!(r.last_token(&freebs_types::Hash32::default()), all[4].header().parent_token());
    }

    /// A head that opened a view learned a map whose state came without the frame of its view. It went on with that state
    /// in the view that it had before, and could follow neither.
    #[test]
    fn a_state_is_taken_with_its_view_or_not_at_all() {
        for has_own in [false, true] {
            let (mut r, chain) = branched(0, 4);
            let first = r.view_frame.clone().expect("the frame of view 1");
            assert_eq!((first.view(), chain[0].head.view()), (ViewNumber(1), ViewNumber(2)));
            let end = map_end(3, &chain[2], if has_own { &chain[0].head } else { &first });
            step(&mut r, |r, ctx| {
                r.ask(ctx, HEAD, ViewNumber(3), Sequence(7));
                let id = r.asking.expect("it asks").id;
                r.on_sync_reply(ctx, SyncReply { id, view: ViewNumber(3), ..end });
            });
            let view = if has_own { 2 } else { 1 };
            assert_eq!(
                (r.last.view, r.view_number()),
                (ViewNumber(view), ViewNumber(view)),
                "the view of its last frame"
            );
        }
    }

    /// The state that another member learned before was held for it. Its view's frame was forgotten meanwhile, and each
    /// question for the map made the state be held for longer.
    #[test]
    fn a_state_whose_view_is_forgotten_is_not_held() {
        let mut c = Chain { committed: 6, ..Chain::new() };
        let mut all = vec![c.view()];
        all.extend(c.frames(3));
        all.push(c.view());
        let second = all[4].head.clone();
        all.extend(c.frames(3));
        let mut winner = Replica::empty(crate::testing::SHARD);
        step(&mut winner, |w, ctx| {
            assert!(all.iter().all(|f| w.on_synced_frame(ctx, f.clone(), ViewNumber(2))));
            w.on_durable(ctx, Sequence(8));
            w.map_hold = Some((TailEntry::of(&all[3].head), ctx.now));
            w.promised = ViewNumber(3);
            let r = SyncRequest {
                early: false,
                lacks: false,
                shard: crate::testing::SHARD,
                view: ViewNumber(3),
                id: 8,
                names: Vec::new(),
                until: Sequence(8),
                map_from: MapPoint::NONE,
                map_since: Sequence(0),
                lost: false,
                fetch: true,
                past: Version(0),
            };
            let mut modes = Vec::new();
            for _ in 0..2 {
                ctx.out.actions.clear();
                w.feed_by_map(ctx, LinkId(1), r.clone(), Sequence(1));
                let upto = ctx.out.actions.iter().find_map(|a| match a {
                    Action::MapRead { upto, .. } => Some(*upto),
                    _ => None,
                });
                let upto = upto.expect("it reads the map");
                // The log knows the view that is in force at the newest committed frame, and none before.
                let view_frame = Some(Box::new(second.clone())).filter(|f| f.seq() <= upto);
                let piece = Ok((CarryBody::default(), Vec::new(), None));
                w.answer_map(
                    ctx,
                    LinkId(1),
                    &r,
                    MapSource {
                        since: Sequence(1),
                        upto,
                        view_frame,
                        kept: KeptState { as_of: upto, ..KeptState::default() },
                        piece,
                    },
                );
                modes.extend(ctx.out.actions.iter().filter_map(|a| match a {
                    Action::Send { message: Message::SyncReply(r), .. } => Some((upto.0, r.mode)),
                    _ => None,
                }));
            }
            assert_eq!(modes, [(4, SyncMode::Refused), (6, SyncMode::MapEnd)]);
        });
    }

    /// A piece of one block and of one trim, or the end with it.
    fn piece(from: u64, end: SyncReply) -> SyncReply {
        let entry = |kind, at, crcs| CarryEntry {
            kind,
            range: freebs_types::BlockRange::new(at, 1),
            version: freebs_types::Version(1),
            sequence: Sequence(4),
            chunk: freebs_types::ChunkId { view: ViewNumber(1), counter: 0 },
            offset: 0,
            crcs,
        };
        let block = bytes::Bytes::from(vec![5; freebs_types::BLOCK]);
        let entries = vec![
            entry(ExtentKind::Data, 1, vec![freebs_format::block_crc(&block)]),
            entry(ExtentKind::Trim, 7, Vec::new()),
        ];
        let h = *end.frames[0].header();
        let meta = FrameMeta { sequence: h.seq(), ..Chain::new().meta(h.seq().0) };
        let body = CarryBody { entries }.encode();
        let carry = FrameBuilder::local(&meta, FrameKind::Carry, &body, vec![block], &h.hid());
        let map_next = MapPoint { from, ..MapPoint::NONE };
        let mode = if from > 0 { SyncMode::Map } else { SyncMode::MapEnd };
        let frames = [vec![carry], end.frames[1..].to_vec()].concat();
        SyncReply { mode, map_next, frames, ..end }
    }

    /// A device was full, and what a learner wrote all the same ended its log.
    #[test]
    fn a_learner_without_room_takes_what_frees_some_and_rests() {
        let (mut r, chain) = branched(0, 4);
        let mut peers = crate::peers::Peers::default();
        peers.up(LinkId(1), HEAD, Nanos(0));
        let end = || map_end(3, &chain[2], &chain[0].head);
        let (mut tickets, mut now) = (7, Nanos::from_millis(1));
        let mut play = |r: &mut Replica, ms: u64, act: &mut dyn FnMut(&mut Replica, &mut Ctx<'_>)| {
            now = now.plus(Nanos::from_millis(ms));
            let (mut carries, mut asks) = (Vec::new(), Vec::new());
            crate::testing::step_at(now, &peers, &mut tickets, r, |r, ctx| {
                act(r, ctx);
                for a in &ctx.out.actions {
                    match a {
                        Action::Append(Record::Carry { body, data, ticket, .. }) => {
                            carries.push((body.entries.len(), data.len(), *ticket));
                        }
                        Action::Send { message: Message::Sync(q), .. } => asks.push(q.map_from.from),
                        _ => {}
                    }
                }
            });
            (carries, asks)
        };
        let answer = |r: &mut Replica, ctx: &mut Ctx<'_>, reply: SyncReply| {
            let id = r.asking.expect("it asks").id;
            r.on_sync_reply(ctx, SyncReply { id, ..reply });
        };
        let (_, asks) = play(&mut r, 1, &mut |r, ctx| r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX)));
        assert_eq!(asks, [0]);
        let (carries, _) = play(&mut r, 1, &mut |r, ctx| answer(r, ctx, piece(3, end())));
        let (_, asks) = play(&mut r, 1, &mut |r, ctx| r.on_piece_durable(ctx, carries[0].2));
        assert_eq!(((carries[0].0, carries[0].1), asks), ((2, 1), vec![3]));
        // The second and last piece has no room. It is asked for once more, for its trim, and there is no state for that.
        let (carries, _) = play(&mut r, 1, &mut |r, ctx| answer(r, ctx, piece(0, end())));
        let (_, asks) = play(&mut r, 1, &mut |r, ctx| r.on_no_room(ctx, carries[0].2));
        assert_eq!((asks, r.is_full), (vec![3], true));
        let (carries, _) = play(&mut r, 1, &mut |r, ctx| answer(r, ctx, piece(0, end())));
        assert_eq!((carries[0].0, carries[0].1), (1, 0));
        let idle = play(&mut r, 1, &mut |r, ctx| {
            r.on_piece_durable(ctx, carries[0].2);
            ctx.room = 0;
            r.ask_next_piece(ctx);
            r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
            r.retry_asking(ctx);
        });
        assert_eq!((idle, r.last.sequence, r.is_full), ((vec![], vec![]), Sequence(3), true));
        let (_, asks) = play(&mut r, 2000, &mut |r, ctx| r.ask_next_piece(ctx));
        assert_eq!(asks, [3]);
        let (carries, _) = play(&mut r, 1, &mut |r, ctx| answer(r, ctx, piece(0, end())));
        assert_eq!((r.last.sequence, carries[0].1), (Sequence(3), 1));
        // There is none still. What frees some was taken already, so nothing more is read before the next, longer rest.
        let (_, asks) = play(&mut r, 1, &mut |r, ctx| {
            r.on_no_room(ctx, carries[0].2);
            ctx.room = 0;
            r.ask_next_piece(ctx);
        });
        assert_eq!(asks, [0; 0]);
        let (_, asks) = play(&mut r, 2000, &mut |r, ctx| {
            ctx.room = 0;
            r.ask_next_piece(ctx);
        });
        assert_eq!(asks, [0; 0]);
        let (_, asks) = play(&mut r, 2000, &mut |r, ctx| r.ask_next_piece(ctx));
        assert_eq!(asks, [3]);
        let (carries, _) = play(&mut r, 1, &mut |r, ctx| answer(r, ctx, piece(0, end())));
        play(&mut r, 1, &mut |r, ctx| r.on_piece_durable(ctx, carries[0].2));
        assert_eq!((r.last.sequence, r.is_full), (Sequence(6), false));
    }

    /// The same with what its teller keeps.
    fn with_pin(reply: SyncReply, version: u64) -> SyncReply {
        let (carry, mark) = (reply.frames[0].clone(), &reply.frames[1]);
        let mut state = MarkBody::decode(mark.head.body()).unwrap();
        state.pins = vec![freebs_format::Pin { version: Version(version), ..Default::default() }];
        let meta = FrameMeta { view: mark.head.view(), ..Chain::new().meta(mark.head.seq().0) };
        let hid = mark.header().hid();
        let mark = FrameBuilder::local(&meta, FrameKind::Mark, &state.encode(), Vec::new(), &hid);
        SyncReply { frames: vec![carry, mark], ..reply }
    }

    /// The device was full, and what a head keeps waited in front of its piece when another head was asked. It was refused
    /// then, and nobody heard: pieces were taken without it, and what snapshots need of them was free at once.
    #[test]
    fn pieces_come_behind_what_is_kept_whatever_becomes_of_a_mark() {
        for is_refused in [true, false] {
            let (mut r, chain) = branched(0, 4);
            let told = |from| with_pin(piece(from, map_end(3, &chain[2], &chain[0].head)), 2);
            step(&mut r, |r, ctx| {
                let answered = |r: &mut Replica, ctx: &mut Ctx<'_>, view, from| {
                    ctx.out.actions.clear();
                    let id = r.asking.expect("it asks").id;
                    r.on_sync_reply(ctx, SyncReply { id, view: ViewNumber(view), ..told(from) });
                    let ticket = ctx.out.actions.iter().find_map(|a| match a {
                        Action::Append(Record::Mark { ticket, .. } | Record::Carry { ticket, .. }) => Some(*ticket),
                        _ => None,
                    });
                    (appends(&ctx.out.actions), ticket.expect("it goes into the log"))
                };
                r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
                let (mark, first) = answered(r, ctx, 1, 3);
                assert_eq!(mark, ["mark"]);
                r.ask(ctx, HEAD, ViewNumber(2), Sequence(u64::MAX));
                if is_refused {
                    r.on_no_room(ctx, first);
                } else {
                    r.on_kept_durable(ctx, first);
                }
                let (mark, second) = answered(r, ctx, 2, 3);
                assert_eq!(mark, ["mark"], "the first one is refused: {is_refused}");
                // From here on it is known to be in force.
                ctx.out.actions.clear();
                r.on_kept_durable(ctx, second);
                assert_eq!(appends(&ctx.out.actions), ["carry"]);
                let map = r.asking.and_then(|a| a.map).expect("it learns");
                let Some(Hold::Disk(ticket)) = map.hold else { panic!("{:?}", map.hold) };
                r.on_piece_durable(ctx, ticket);
                assert_eq!(answered(r, ctx, 2, 5).0, ["carry"]);
            });
        }
    }

    /// The log does not take a piece and tells so: the learner, which waited for it without end, begins anew.
    #[test]
    fn a_piece_that_makes_no_sense_is_asked_for_again() {
        let (mut r, chain) = branched(0, 4);
        let end = || map_end(3, &chain[2], &chain[0].head);
        step(&mut r, |r, ctx| {
            r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
            let id = r.asking.expect("it asks").id;
            r.on_sync_reply(ctx, SyncReply { id, ..piece(0, end()) });
            let ticket = |a: &Action| match a {
                Action::Append(Record::Carry { ticket, .. }) => Some(*ticket),
                _ => None,
            };
            let ticket = ctx.out.actions.iter().find_map(ticket).expect("a piece");
            assert!(r.map_end.is_some());
            r.on_unlearned(ctx, ticket + 1, "of somebody else");
            assert!(r.asking.is_some());
            r.on_unlearned(ctx, ticket, "no sense");
            assert!(r.asking.is_none() && r.map_end.is_none());
            ctx.out.actions.clear();
            r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
            assert!(r.asking.is_some_and(|a| a.map.is_none()), "from the beginning");
        });
        assert_eq!((r.stopped, r.last.sequence), (None, Sequence(3)));
    }

    /// A state names an older generation than the frame of its view does, or than the learner knows. It went on with the older
    /// one, and its log forgot what it had known (L2).
    #[test]
    fn a_state_never_lowers_the_generation() {
        for (own, in_state, of_view, then) in [(0, 0, 5, 5), (0, 6, 5, 6), (7, 6, 5, 7)] {
            let mut here = Chain { committed: 3, ..Chain::new() };
            let mut common = vec![here.view()];
            common.extend(here.frames(2));
            let mut there = Chain { generation: of_view, ..here };
            let mut chain = vec![there.view()];
            chain.extend(there.frames(3));
            let attach = |n| AttachBody { generation: Generation(n), ..AttachBody::default() };
            let end = map_end_with(3, &chain[2], &chain[0].head, attach(in_state));
            let mut r = Replica::empty(crate::testing::SHARD);
            step(&mut r, |r, ctx| {
                common.iter().for_each(|f| assert!(r.on_synced_frame(ctx, f.clone(), ViewNumber(1))));
                r.learn_attach(ctx, attach(own), Sequence(3));
                r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
                r.on_sync_reply(ctx, end);
                let base = |a: &Action| match a {
                    Action::Append(Record::Mark { change, .. }) => change.base.as_ref().map(|b| b.attach.generation.0),
                    _ => None,
                };
                assert_eq!(ctx.out.actions.iter().find_map(base), Some(then), "what the log keeps");
            });
            assert_eq!((r.attach.generation.0, r.view_number()), (then, ViewNumber(2)));
        }
    }

    /// Frames that come while the question is under way follow the common one; they are no branch.
    #[test]
    fn frames_that_overtake_a_map_are_not_cut() {
        let (mut r, _) = branched(0, 1);
        let mut all = Chain { committed: 5, ..Chain::new() };
        let first = all.view();
        let frames = all.frames(5);
        step(&mut r, |r, ctx| {
            r.ask(ctx, HEAD, ViewNumber(1), Sequence(u64::MAX));
            frames[2..].iter().for_each(|f| r.on_frame(ctx, f.clone()));
            assert_eq!(r.committed, Sequence(5));
            ctx.out.actions.clear();
            r.on_sync_reply(ctx, map_end(3, &frames[3], &first.head));
            assert_eq!(appends(&ctx.out.actions), [""; 0]);
        });
        assert_eq!(r.stopped, None);
        assert_eq!((r.last.sequence, r.committed), (Sequence(6), Sequence(5)));
    }
}

//! What a replica does about damage in its own log (rule E7): frames that were lost are fetched and put back, and a
//! tail that may have lost frames is compared with the chain's before it is trusted again. Of lost frames that all
//! others have given up, what is left of them is learned (see `relearn`).
//!
//! A frame whose data can't be read is known by its head, and yet nobody can be given it. While it may still be cut it is
//! one of the lost ones (V2, V5); behind that only its blocks are (see `mend`).
//!
//! Invariant: nothing is cut because of damage; until it is mended the replica's seal answers do not count.

use crate::event::{Action, NoteKind, ShardInfo};
use crate::head::Head;
use crate::parts::Parts;
use crate::relearn::{Relearning, newer};
use crate::replica::{Ctx, Replica, TailEntry, with_overhead};
use crate::sync::Asking;
use crate::timing;
use freebs_format::wire::{FrameName, MapPoint, Message, SyncMode, SyncReply, SyncRequest};
use freebs_format::{AttachBody, Frame, FrameHead, FrameKind, ViewBody};
use freebs_lsvd::{KeptState, MarkChange, Record, Unrepaired};
use freebs_types::{DriverId, Hash32, Nanos, NodeId, Peer, Sequence, Version, ViewNumber};

/// A range of frames that damage took, after `before`, up to and with `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The last frame before the hole.
    pub before: FrameName,
    /// The last lost frame.
    pub until: Sequence,
    /// The `hid` of the last one of them, if the frame behind it tells.
    pub end: Option<Hash32>,
}

/// What is known of the damage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Damage {
    pub holes: Vec<Hole>,
    /// Frames behind the first one, up to the second, never came: that is no damage (V19).
    pub absent: Option<(Sequence, Sequence)>,
    /// When something of that was asked for last, or that it is not there was seen first.
    pub absent_at: Option<Nanos>,
    /// The log has no room for that.
    pub absent_full: bool,
    /// Frames behind the last one may be missing.
    pub suspect_tail: bool,
    orphan: bool,
    /// Nothing was appended since a cut that made the tail suspect. When the log is read again the cut is there only from
    /// the next frame on, so what says that the tail was compared must come behind that, too.
    cut_short: bool,
    trust_again: bool,
    asking: Option<Asking>,
    /// Frames that are on their way to the disk: the one before them, and the last of them. No more are asked for
    /// meanwhile.
    writing: Option<(FrameName, Sequence)>,
    /// Frames of the first hole that wait for those behind them.
    pub parts: Parts,
    /// Who refused in this view may not in the next one.
    asked_in: ViewNumber,
    pub turns: Turns,
    /// Nobody has the frames: their entries are asked for.
    pub learning: Option<Relearning>,
    /// Where that had come to when nobody went on giving them.
    pub put_off: Option<Relearning>,
    /// The word of the teller that knew most frames as committed on what it keeps.
    told: Option<KeptState>,
    /// The state that came with the last of them, which is on its way to the disk.
    pub learned_end: Option<Frame>,
    /// Frames that are given up by force, once this ticket is durable.
    pub giving_up: Option<GivingUp>,
    /// The device had no room for that; before this time it is not asked again.
    pub full_until: Nanos,
    /// Frames that are missing and the place up to which entries were learned, and since when that has been so.
    left: ((u64, MapPoint), Nanos),
    /// When a piece of the map could not be told for damaged blocks.
    asked_for: Option<Nanos>,
}

/// Lost frames on their way to be given up by force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivingUp {
    pub ticket: u64,
    /// The frame before them, and the last of them.
    pub since: Sequence,
    pub upto: Sequence,
    /// The view that is left.
    pub view: ViewNumber,
}

/// Whose turn it is to be asked, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    /// Counts those who gave nothing.
    tried: usize,
    /// Refusals since the last frame that came.
    refused: usize,
    /// Questions in a row without an answer in time.
    late: u32,
    /// Nobody is asked before this time.
    rest_until: Nanos,
}

impl Turns {
    fn of<'a>(&self, others: &'a [Peer]) -> &'a Peer {
        &others[self.tried % others.len()]
    }

    /// No answer in time: another one is asked, and has more time.
    fn no_answer(&mut self) {
        self.tried += 1;
        self.late = (self.late + 1).min(5);
    }

    /// One of the `others` members has refused. True if by now each of them has, once more.
    fn refused_by_all(&mut self, others: usize) -> bool {
        self.tried += 1;
        self.refused += 1;
        self.refused.is_multiple_of(others)
    }

    /// Refusals since the last time that all had refused were about another piece: they do not count any more.
    pub fn forget_round(&mut self, others: usize) {
        self.refused -= self.refused % others;
    }

    /// All `others` have refused both frames and entries: rests, longer each time. Returns how often that has happened.
    fn rest(&mut self, now: Nanos, others: usize) -> usize {
        let rounds = self.refused / (2 * others);
        self.rest_until = now.plus(Nanos(timing::REFUSED_PAUSE.0 << (rounds.max(1) - 1).min(3)));
        rounds
    }

    pub fn rest_for(&mut self, now: Nanos, pause: Nanos) {
        self.rest_until = now.plus(pause);
    }

    /// Nobody has refused yet.
    pub fn begin(&mut self) {
        (self.refused, self.rest_until) = (0, Nanos(0));
    }
}

impl Damage {
    /// True if this node was put that question.
    pub fn is_asked(&self, peer: Peer, id: u64) -> bool {
        self.asking.is_some_and(|a| a.id == id && a.to == peer)
    }

    pub fn new(holes: Vec<Hole>, suspect_tail: bool) -> Self {
        Self { holes, suspect_tail, ..Self::default() }
    }

    /// Frames that are missing.
    pub fn missing(&self) -> u64 {
        self.holes.iter().map(|h| h.until.0.saturating_sub(h.before.sequence.0)).sum()
    }

    /// Since when nothing of what is missing has come.
    pub fn stands_since(&mut self, now: Nanos) -> Nanos {
        let left = (self.missing(), self.learning.map_or(MapPoint::NONE, |l| l.from));
        if self.left.0 != left {
            self.left = (left, now);
        }
        self.left.1
    }

    /// Damaged blocks keep a piece of the map from being told.
    pub fn is_asked_for(&mut self, now: Nanos) {
        self.asked_for = Some(now);
    }

    /// True if somebody waits for damaged blocks to be mended, or given up.
    pub fn is_awaited(&self, now: Nanos) -> bool {
        self.asked_for.is_some_and(|at| now.since(at) < timing::AWAITED)
    }

    pub fn is_there(&self) -> bool {
        self.suspect_tail || !self.holes.is_empty()
    }

    /// Whether anything is missing behind `at`, or may be.
    pub fn is_there_behind(&self, at: Sequence) -> bool {
        self.suspect_tail || self.holes.iter().any(|h| h.until > at)
    }

    /// The log is cut behind `to`. What was missing there may have been told durable and be the chain's, too, so the end
    /// of the log is suspect until it was compared.
    pub fn cut(&mut self, to: Sequence) {
        let is_lost = self.holes.iter().any(|h| h.until > to);
        (self.suspect_tail, self.cut_short) = (self.suspect_tail | is_lost, self.cut_short | is_lost);
        if is_lost {
            // What was asked for reaches beyond the cut.
            self.asking = None;
            self.parts.clear();
        }
        if self.writing.is_some_and(|(_, upto)| upto > to) {
            self.take_back();
        }
        self.holes.retain(|h| h.before.sequence < to);
        for h in self.holes.iter_mut().filter(|h| h.until > to) {
            (h.until, h.end) = (to, None);
        }
        if self.learning.or(self.put_off).is_some_and(|l| l.upto > to) {
            (self.learning, self.put_off, self.learned_end) = (None, None, None);
        }
    }

    /// A frame behind a hole has come, and tells the name of the last one in it.
    pub fn learn_end(&mut self, head: &FrameHead) {
        let before = head.before();
        if let Some(hole) = self.holes.iter_mut().find(|h| h.until == before.sequence && h.end.is_none()) {
            hole.end = Some(before.hid).filter(|hid| *hid != Hash32::default());
        }
    }

    /// All that a fork reads from its parents is lost, as if it were that of frames up to this one. Once it is learned again the fork
    /// reads from none.
    pub fn lose_parents(&mut self, first: FrameName, last: FrameName) {
        self.orphan = true;
        self.holes.retain(|h| h.until > last.sequence);
        self.add(Hole { before: first, until: last.sequence, end: Some(last.hid) });
    }

    /// The teller of a piece keeps this.
    pub fn hear_kept(&mut self, kept: KeptState) {
        self.told = Some(newer(self.told.take(), kept));
    }

    /// The versions that the teller keeps that knew most frames as committed.
    pub fn kept(&self) -> Option<&KeptState> {
        self.told.as_ref()
    }

    /// All pieces are asked for again.
    pub fn forget_kept(&mut self) {
        self.told = None;
    }

    /// True of a fork that has lost what it reads from its parents.
    pub fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// One more range of lost frames.
    fn add(&mut self, hole: Hole) {
        let at = self.holes.partition_point(|h| h.before.sequence < hole.before.sequence);
        self.holes.insert(at, hole);
    }

    /// Whether frames behind `since`, up to `upto`, are missing.
    pub fn meets(&self, since: Sequence, upto: Sequence) -> bool {
        self.lacks(since, upto) || self.holes.iter().any(|h| h.before.sequence < upto && since < h.until)
    }

    /// True if frames behind `since`, up to `upto`, never came.
    pub fn lacks(&self, since: Sequence, upto: Sequence) -> bool {
        self.absent.is_some_and(|(from, to)| from < upto && since < to)
    }

    /// A question has no answer yet, or there is a reason not to ask.
    fn is_asking(&self, now: Nanos) -> bool {
        let asked = self.asking.is_some_and(|a| now.since(a.at) < Nanos(timing::REPAIR_AGAIN.0 << self.turns.late));
        let writes = self.writing.is_some() || self.learning.is_some_and(|l| l.writing.is_some());
        asked || writes || now < self.turns.rest_until
    }

    /// Frames from that one on did not get into the log: they are missing still.
    fn take_back(&mut self) {
        let Some((before, upto)) = self.writing.take() else { return };
        if let Some(hole) = self.holes.iter_mut().find(|h| h.before.sequence == upto) {
            hole.before = before;
        }
    }
}

impl Replica {
    /// Asks another member for the first hole's frames, or for what is left of them.
    pub fn repair_tick(&mut self, ctx: &mut Ctx<'_>) {
        let hole = self.damage.holes.first().copied();
        if hole.is_none() && !self.learns_behind(ctx) {
            return;
        }
        // Members answer for their own view, which may be newer than the last one of a log with holes.
        let active = self.info.as_ref().map_or(ViewNumber(0), |i| i.active);
        let view = self.view_number().max(self.promise()).max(active);
        if view != self.damage.asked_in {
            // That they refused in another view does not say that they have nothing.
            self.damage.put_off_learning();
            self.damage.asked_in = view;
        }
        let put_back = hole.is_some_and(|h| h.before.sequence >= h.until);
        if put_back
            || self.damage.is_asking(ctx.now)
            || self.asking.and_then(|a| a.map).is_some_and(|m| !m.is_resting())
            || self.stopped.is_some()
        {
            return;
        }
        if self.damage.asking.take().is_some() {
            self.damage.turns.no_answer();
        }
        if hole.is_none() && self.damage.learning.is_none() {
            // There are no frames to ask for.
            self.damage.begin_learning();
        }
        let others = self.other_members(ctx);
        let has_room = self.has_room_to_mend(ctx);
        self.damage.absent_full = hole.is_none() && !has_room && !ctx.more_soon;
        if others.is_empty() || !has_room {
            return;
        }
        let to = *self.damage.turns.of(&others);
        let frames = hole.map(|h| (h.until, self.damage.parts.ask(&h, self.committed)));
        let id = ctx.ticket();
        let (named, at) = (self.last.sequence, ctx.now);
        let (until, (last, in_parts)) = frames.unwrap_or_default();
        let until = self.damage.learning.map_or(until, |l| l.upto);
        self.damage.asking = Some(Asking { id, to, view, until, named, at, tries: 0, past: Version(0), map: None });
        self.damage.absent_at = Some(at);
        let Some(link) = ctx.peers.link(to) else { return };
        let frames = SyncRequest {
            early: false,
            lacks: false,
            shard: self.id,
            view,
            id,
            names: vec![last],
            until,
            map_from: MapPoint::NONE,
            map_since: Sequence(0),
            lost: false,
            fetch: in_parts,
            past: Version(0),
        };
        let request = match self.damage.learning {
            None => frames,
            Some(l) => SyncRequest {
                names: Vec::new(),
                map_from: l.from,
                map_since: l.since,
                lost: true,
                fetch: false,
                past: Version(0),
                ..frames
            },
        };
        ctx.out.send(link, Message::Sync(request));
    }

    /// True if the log takes what is asked for.
    fn has_room_to_mend(&self, ctx: &Ctx<'_>) -> bool {
        match self.damage.learning {
            Some(_) => self.has_room_for_piece(ctx),
            None => ctx.spare > with_overhead(self.unwritten_bytes()),
        }
    }

    /// The view's other members. If its frame is lost, or a newer view is active, then also those of the active view and those
    /// that the control plane names: what is said to go on by force leaves out who may have all of it.
    pub(crate) fn other_members(&self, ctx: &Ctx<'_>) -> Vec<Peer> {
        let of_view = self.view.iter().flat_map(|v| v.body.members.iter().map(|m| m.node));
        // The frame of the view before stands for a lost one, and its members for those of that view.
        let is_lost = self.view_frame.as_ref().is_none_or(|f| f.view() != self.view_number());
        let is_behind = |i: &&ShardInfo| is_lost || self.view.is_none() || self.view_number() < i.active;
        let of_info = self.info.iter().filter(is_behind).flat_map(|i| i.view_members.iter().chain(&i.members).copied());
        let mut others: Vec<NodeId> = Vec::new();
        for n in of_view.chain(of_info).filter(|n| *n != ctx.config.me.node) {
            if !others.contains(&n) {
                others.push(n);
            }
        }
        others.into_iter().map(|n| ctx.peer(n, self.id)).collect()
    }

    /// Whether the answer is one to a repair; if so its frames go into the log beside the others.
    pub fn take_repairs(&mut self, ctx: &mut Ctx<'_>, reply: &SyncReply) -> bool {
        let Some(asking) = self.damage.asking.filter(|a| a.id == reply.id && a.view == reply.view) else {
            return false;
        };
        (self.damage.asking, self.damage.turns.late) = (None, 0);
        match reply.mode {
            SyncMode::Refused | SyncMode::State => {
                self.repair_refused(ctx);
                return true;
            }
            SyncMode::Map | SyncMode::MapEnd => {
                match self.damage.learning {
                    Some(_) => self.take_lost_entries(ctx, reply),
                    None => self.repair_refused(ctx),
                }
                return true;
            }
            SyncMode::Frames | SyncMode::Level => {}
        }
        // A view that was promised since is to say what follows.
        let may_take = self.damage.learning.is_none() && self.promise() <= asking.view;
        let Some(hole) = self.damage.holes.first().copied().filter(|_| may_take) else { return true };
        let until = asking.until.min(hole.until);
        let mut came = self.damage.parts.take_for(&hole);
        let known = came.len();
        let mut before = came.last().map_or(hole.before, |f| TailEntry::of(&f.head).name);
        for f in &reply.frames {
            let follows = f.head.seq() == before.sequence.next() && f.head.before().hid == before.hid;
            let follows = follows && self.may_branch(&f.head);
            if !follows || f.head.seq() > until || f.verify_data().is_err() || f.verify_digest().is_err() {
                break;
            }
            before = TailEntry::of(&f.head).name;
            came.push(f.clone());
        }
        let is_head = self.head_node() == Some(asking.to.node) && self.view_number() == asking.view;
        let is_news = came.len() > known;
        // If the frame behind the hole is not of their branch, that is for SYNC to find out.
        let sure = if is_news { self.damage.parts.sure(&hole, &came, is_head).unwrap_or(0) } else { 0 };
        let mut rest = came.split_off(sure);
        if before.sequence >= hole.until {
            rest.clear();
        }
        let gets_on = is_news && !(came.is_empty() && rest.is_empty());
        match self.damage.parts.keep(rest) && gets_on {
            true => self.put_back(ctx, &hole, &came),
            // They don't follow what is here; what is left of them may do.
            false => self.repair_refused(ctx),
        }
        true
    }

    /// Frames of a hole go into the log, as many as it has room for.
    fn put_back(&mut self, ctx: &mut Ctx<'_>, hole: &Hole, came: &[Frame]) {
        self.damage.turns.refused = 0;
        if came.is_empty() {
            return;
        }
        let mut room = ctx.spare.saturating_sub(with_overhead(self.unwritten_bytes()));
        let fits = came.iter().take_while(|f| {
            let bytes = with_overhead(f.data_bytes() as u64);
            let fits = bytes == 0 || bytes < room;
            room = room.saturating_sub(bytes);
            fits
        });
        let came = &came[..fits.count()];
        let Some(last) = came.last() else {
            self.damage.turns.rest_for(ctx.now, timing::FULL_PAUSE);
            return;
        };
        let before = TailEntry::of(&last.head).name;
        if let Some(hole) = self.damage.holes.first_mut() {
            hole.before = before;
        }
        self.damage.writing = Some((hole.before, before.sequence));
        for f in came {
            ctx.out.actions.push(Action::Append(Record::Repair(f.clone())));
            self.note_repaired(ctx, &f.head);
        }
    }

    /// The log did not take a frame that was to be put back.
    pub fn on_unrepaired(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence, why: Unrepaired) {
        match why {
            // It may have been learned meanwhile, or cut.
            Unrepaired::NotMissed => self.on_repair_durable(ctx, sequence),
            Unrepaired::NoRoom | Unrepaired::Differs | Unrepaired::Unfit => {
                self.damage.take_back();
                self.damage.turns.rest_for(ctx.now, timing::FULL_PAUSE);
            }
        }
    }

    /// A frame that was put back is durable. The last one ends its hole.
    pub fn on_repair_durable(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence) {
        self.damage.writing = self.damage.writing.filter(|(_, upto)| *upto > sequence);
        let is_whole = |h: &Hole| h.before.sequence >= h.until && h.until == sequence;
        if let Some(i) = self.damage.holes.iter().position(is_whole) {
            let text = format!("lost frames up to {sequence} were fetched again");
            ctx.out.tell(NoteKind::Mended, self.id, &text);
            self.damage.holes.remove(i);
            self.repair_tick(ctx);
        }
    }

    /// A frame of this log was to be given to another member, and can't be read. Until it is here again this log answers no
    /// seal as one that has it; and as long as nobody else has it, its head gets on only in a view that ends before it.
    pub(crate) fn lost_frame(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence) {
        let before = Sequence(sequence.0.saturating_sub(1));
        let name = |s: Sequence| self.tail.get(&s).map(|t| t.name);
        let Some((before, frame)) = name(before).zip(name(sequence)).filter(|_| sequence > self.committed) else {
            return;
        };
        if self.damage.meets(before.sequence, sequence) {
            return;
        }
        let end = Some(frame.hid).filter(|hid| *hid != Hash32::default());
        self.damage.add(Hole { before, until: sequence, end });
        let me = ctx.config.me.node;
        let has_it = |h: &Head| h.members.iter().any(|m| m.node != me && m.durable >= sequence);
        if self.is_open_head() && !self.head.as_deref().is_some_and(has_it) {
            ctx.out.note(format!("shard {}: nobody can be given frame {sequence}; another view is to follow", self.id));
            self.yield_to(ctx);
        }
    }

    /// What a frame says beside its data, as if it had not been missing when this log was read.
    fn note_repaired(&mut self, ctx: &mut Ctx<'_>, head: &FrameHead) {
        debug_assert!(head.seq() <= self.last.sequence, "a hole lies in front of the last frame");
        if head.seq() >= self.committed {
            self.tail.insert(head.seq(), TailEntry::of(head));
        }
        match head.kind() {
            FrameKind::Data => {
                for u in head.updates() {
                    self.requests.apply(u.driver, u.number, u.lowest_open, head.seq());
                }
            }
            FrameKind::View => self.learn_lost_view(ctx, head),
            FrameKind::Attach => {
                if let Ok(body) = AttachBody::decode(head.body()) {
                    self.learn_lost_attach(ctx, body);
                }
            }
            _ => {}
        }
    }

    /// Later attachments are known from later frames.
    pub(crate) fn learn_lost_attach(&mut self, ctx: &mut Ctx<'_>, body: AttachBody) {
        // A view frame may have named the generation without its driver.
        let is_named = body.generation == self.attach.generation && self.attach.driver == DriverId(0);
        if body.generation > self.attach.generation || is_named {
            let last = self.last.sequence;
            self.learn_attach(ctx, body, last);
        }
    }

    /// A view frame that was missing. It counts only if the last frame of this log is of its view: what follows it here
    /// may be of a branch that was cut where the view was opened (V4).
    pub(crate) fn learn_lost_view(&mut self, ctx: &mut Ctx<'_>, frame: &FrameHead) {
        let is_ours = frame.view() == self.last.view && frame.seq() <= self.last.sequence;
        let is_news = is_ours && self.view.as_ref().is_none_or(|v| v.sequence < frame.seq());
        if let Some(body) = ViewBody::decode(frame.body()).ok().filter(|_| is_news) {
            let generation = body.generation;
            self.learn_lost_attach(ctx, AttachBody { generation, ..AttachBody::default() });
            // The stand-in has its own number again.
            let older = self.view_frame.as_ref().map(|f| f.view());
            if let Some((v, older)) = self.view.as_mut().zip(older).filter(|(v, _)| v.number == frame.view()) {
                v.number = older;
            }
            self.enter_view(ctx, frame, body);
        }
    }

    /// One member has no frames for the hole, or does not know the view yet: the next one is asked at once. When all
    /// have refused they are asked for what is left of the frames, and for these again after a pause.
    pub(crate) fn repair_refused(&mut self, ctx: &mut Ctx<'_>) {
        let others = self.other_members(ctx).len().max(1);
        if !self.damage.turns.refused_by_all(others) {
            return;
        }
        self.damage.parts.clear();
        match self.damage.learning.take() {
            None => return self.damage.begin_learning(),
            some => self.damage.put_off = some,
        }
        if self.damage.turns.rest(ctx.now, others) == 1
            && let Some(hole) = self.damage.holes.first()
        {
            let (from, until) = (hole.before.sequence.next(), hole.until);
            ctx.out.note(format!("shard {}: no member gives the lost frames from {from} to {until} now", self.id));
        }
    }

    /// The tail was compared with the chain's: no frame is missing behind it. A promise may be, and the chain that it was
    /// compared with may be one that was left; so the promise that may have been there is made again.
    pub fn trust_tail(&mut self, ctx: &mut Ctx<'_>) {
        if !self.damage.suspect_tail {
            return;
        }
        self.promised = self.promised.max(self.may_have_promised());
        self.damage.suspect_tail = false;
        self.damage.trust_again = self.damage.cut_short;
        self.say_trusted(ctx);
    }

    /// A frame was appended: it cuts what lies behind the one before it, whenever this log is read.
    pub fn cut_is_told(&mut self, ctx: &mut Ctx<'_>) {
        self.damage.cut_short = false;
        if std::mem::take(&mut self.damage.trust_again) {
            self.say_trusted(ctx);
        }
    }

    fn say_trusted(&self, ctx: &mut Ctx<'_>) {
        let ticket = ctx.ticket();
        let promised = Some(self.promised).filter(|p| p.0 > 0);
        let change = MarkChange { trusted: true, promised, ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Branch, ShardInfo, ShardSnapshots};
    use crate::peers::Peers;
    use crate::sync::is_said_committed;
    use crate::testing::{Chain, SHARD, appends, frames, map_end, reply, step, step_at};
    use freebs_format::hide;
    use freebs_format::wire::SyncMode;
    use freebs_io::LinkId;
    use freebs_types::{Generation, NodeId};

    const OTHER: Peer = Peer { node: NodeId(1), worker: 0 };

    /// Frames 1 to 8 of this log, of which 4 and 5 are lost, and what a branch has behind the third. Committed is 3, or
    /// the lost 4.
    fn holed(committed: u64) -> (Replica, Vec<Frame>, Vec<Frame>) {
        let mut here = Chain { committed, ..Chain::new() };
        let mut all = vec![here.view()];
        all.extend(here.frames(2));
        let mut there = Chain { secret: 8, committed, ..here.clone() };
        if committed == 4 {
            all.extend(here.frames(1));
            there = Chain { secret: 8, ..here.clone() };
        }
        all.extend(here.frames(8 - all.len() as u64));
        let mut branch = vec![there.view()];
        branch.extend(there.frames(6));
        let mut r = Replica::empty(SHARD);
        step(&mut r, |r, ctx| {
            assert!(all.iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(1))));
        });
        // As it is read after a start.
        let tail = r.tail.extract_if(..=Sequence(5), |s, _| s.0 >= 4).count();
        assert_eq!(tail, 2);
        let before_sixth = TailEntry::before(&all[5].head);
        r.tail.insert(Sequence(5), before_sixth);
        let before = TailEntry::of(&all[2].head).name;
        let hole = Hole { before, until: Sequence(5), end: Some(before_sixth.name.hid) };
        r.damage = Damage::new(vec![hole], true);
        r.durable = Sequence(8);
        (r, all, branch)
    }

    /// The reply to the question that a tick sends.
    fn answered(r: &mut Replica, ms: u64, mode: SyncMode, frames: &[Frame]) -> Vec<String> {
        let mut peers = Peers::default();
        peers.up(LinkId(1), OTHER, Nanos(0));
        let (mut tickets, mut done) = (ms, Vec::new());
        step_at(Nanos::from_millis(ms), &peers, &mut tickets, r, |r, ctx| {
            r.repair_tick(ctx);
            let id = r.damage.asking.expect("it asks").id;
            r.on_sync_reply(ctx, SyncReply { id, ..reply(3, mode, frames.to_vec()) });
            done = appends(&ctx.out.actions);
        });
        done
    }

    /// A member with a branch that will be cut gave what it has at the place of the lost frames: it follows the frame in
    /// front of the hole, and nobody looked at the one behind it.
    #[test]
    fn a_hole_takes_no_frames_of_another_branch() {
        let (mut r, all, branch) = holed(3);
        assert_eq!(answered(&mut r, 1000, SyncMode::Frames, &branch[..2]), [""; 0]);
        assert_eq!(r.damage.holes.len(), 1);
        r.damage.learning = None;
        assert_eq!(answered(&mut r, 2000, SyncMode::Frames, &all[3..5]), ["repair 4", "repair 5"]);
        assert_eq!(r.tail[&Sequence(4)].name.hid, all[3].header().hid(), "a cut finds its way back");
        step(&mut r, |r, ctx| r.on_repair_durable(ctx, Sequence(5)));
        assert!(r.damage.holes.is_empty() && r.damage.suspect_tail);
    }

    /// The cut of a branch with a hole is in the log only from the frame on that takes its place. The mark that says that
    /// the tail was compared lay before it, and did not count at the next start.
    #[test]
    fn a_tail_is_trusted_behind_the_frame_that_cuts_it() {
        let (mut r, _, branch) = holed(3);
        step(&mut r, |r, ctx| {
            r.ask(ctx, OTHER, ViewNumber(2), Sequence(u64::MAX));
            let id = r.asking.expect("it asks").id;
            let level = SyncReply { id, view: ViewNumber(2), ..reply(3, SyncMode::Level, Vec::new()) };
            r.on_sync_reply(ctx, level);
            assert_eq!(appends(&ctx.out.actions), ["cut 3", "mark"]);
            assert!(!r.damage.is_there());
            ctx.out.actions.clear();
            assert!(branch[..2].iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(2))));
            assert_eq!(appends(&ctx.out.actions), ["frame 4", "mark", "frame 5"]);
        });
    }

    /// The question that a tick sends.
    fn question(r: &mut Replica, ms: u64, spare: u64) -> Option<(FrameName, bool)> {
        let mut peers = Peers::default();
        peers.up(LinkId(1), OTHER, Nanos(0));
        let (mut tickets, mut asked) = (ms, None);
        step_at(Nanos::from_millis(ms), &peers, &mut tickets, r, |r, ctx| {
            ctx.spare = spare;
            r.repair_tick(ctx);
            asked = ctx.out.actions.iter().find_map(|a| match a {
                Action::Send { message: Message::Sync(q), .. } => Some((q.names[0], q.fetch)),
                _ => None,
            });
        });
        asked
    }

    /// The reply to it.
    fn given(r: &mut Replica, frames: &[Frame]) -> Vec<String> {
        let mut done = Vec::new();
        step(r, |r, ctx| {
            let asking = r.damage.asking.expect("it asks");
            let reply = reply(3, SyncMode::Frames, frames.to_vec());
            r.on_sync_reply(ctx, SyncReply { id: asking.id, view: asking.view, ..reply });
            done = appends(&ctx.out.actions);
        });
        done
    }

    /// A log was cut within a hole while a question for all of it was on its way. The answer, from the head of before,
    /// brought frames that had just been cut: their requests counted as applied from then on, and nothing took that back.
    #[test]
    fn an_answer_from_before_a_cut_brings_nothing_back_behind_it() {
        let (mut r, all, branch) = holed(4);
        question(&mut r, 1000, u64::MAX);
        let asked = r.damage.asking.expect("it asks");
        assert_eq!(asked.until, Sequence(5));
        step(&mut r, |r, ctx| {
            r.ask(ctx, OTHER, ViewNumber(2), Sequence(u64::MAX));
            let id = r.asking.expect("it asks").id;
            let level = SyncReply { view: ViewNumber(2), ..reply(4, SyncMode::Level, Vec::new()) };
            r.on_sync_reply(ctx, SyncReply { id, ..level });
        });
        assert_eq!((r.last.sequence, r.damage.holes[0].until), (Sequence(4), Sequence(4)));
        step(&mut r, |r, ctx| {
            let late = reply(3, SyncMode::Frames, all[3..5].to_vec());
            r.on_sync_reply(ctx, SyncReply { id: asked.id, view: asked.view, ..late });
            assert_eq!(appends(&ctx.out.actions), [""; 0]);
        });
        assert!(r.tail.range(Sequence(5)..).next().is_none());
        // Asked again, it takes what is in front of the cut.
        assert!(question(&mut r, 2000, u64::MAX).is_some());
        assert_eq!(given(&mut r, &all[3..5]), ["repair 4"]);
        assert!(r.tail.range(Sequence(5)..).next().is_none() && branch[0].head.seq() == Sequence(5));
    }

    /// More frames were lost above the committed one than one answer holds. Nobody gave a part of them, and while a third
    /// member was away the shard waited for ever.
    #[test]
    fn a_hole_above_the_committed_frame_is_filled_in_parts() {
        let (mut r, all, branch) = holed(3);
        let name = |f: &Frame| TailEntry::of(&f.head).name;
        assert_eq!(question(&mut r, 1000, u64::MAX), Some((name(&all[2]), true)));
        assert_eq!(given(&mut r, &all[3..4]), [""; 0], "it waits for the frame that says it is right");
        assert_eq!(question(&mut r, 1020, u64::MAX), Some((name(&all[3]), true)));
        assert_eq!(given(&mut r, &all[4..5]), ["repair 4", "repair 5"]);
        // Of another branch, the last one does not fit what follows.
        let (mut r, ..) = holed(3);
        question(&mut r, 1000, u64::MAX);
        assert_eq!(given(&mut r, &branch[..1]), [""; 0]);
        assert_eq!(question(&mut r, 1020, u64::MAX), Some((name(&branch[0]), true)));
        assert_eq!(given(&mut r, &branch[1..2]), [""; 0]);
        r.damage.learning = None;
        assert_eq!(question(&mut r, 1040, u64::MAX), Some((name(&all[2]), true)), "from the beginning");
        assert_eq!(given(&mut r, &all[3..5]), ["repair 4", "repair 5"]);
    }

    /// The frame behind the hole was damaged, too, and a member with a branch that will be cut gave what it had.
    #[test]
    fn a_hole_without_a_known_end_takes_what_the_head_has_or_what_is_committed() {
        for (is_head, committed, takes) in [(true, 3, 2), (false, 3, 0), (false, 4, 1)] {
            let (mut r, all, _) = holed(3);
            let before = TailEntry::of(&all[2].head).name;
            r.damage = Damage::new(vec![Hole { before, until: Sequence(5), end: None }], true);
            if !is_head {
                // The next view is promised; who answers for it is not its head yet.
                r.promised = ViewNumber(2);
            }
            let mut c = Chain { committed: 3, ..Chain::new() };
            c.view();
            c.frames(3);
            let mut last = Chain { committed, ..c };
            let frames = [all[3].clone(), last.frames(1).remove(0)];
            assert_eq!(question(&mut r, 1000, u64::MAX).map(|(_, in_parts)| in_parts), Some(false));
            let got = given(&mut r, &frames);
            assert_eq!(got.len(), takes, "{got:?}");
        }
        // A frame that comes behind it says what its end is.
        let (mut r, all, branch) = holed(3);
        let before = TailEntry::of(&all[2].head).name;
        r.damage = Damage::new(vec![Hole { before, until: Sequence(5), end: None }], true);
        r.damage.learn_end(&all[4].head);
        assert_eq!(r.damage.holes[0].end, None);
        r.damage.learn_end(&all[5].head);
        assert_eq!(r.damage.holes[0].end, Some(all[4].header().hid()));
        question(&mut r, 1000, u64::MAX);
        assert_eq!(given(&mut r, &branch[..2]), [""; 0]);
    }

    /// A full device: frames that were to be put back ended its log. One that the log did not take was never asked for
    /// again, and the hole stayed until the next start.
    #[test]
    fn frames_that_are_not_put_back_are_asked_for_again() {
        let (mut r, all, _) = holed(3);
        assert_eq!(question(&mut r, 1000, 0), None, "nothing fits");
        for (ms, why) in [(1020, Unrepaired::NoRoom), (4020, Unrepaired::Differs)] {
            assert!(question(&mut r, ms, u64::MAX).is_some());
            assert_eq!(given(&mut r, &all[3..5]), ["repair 4", "repair 5"]);
            assert_eq!(question(&mut r, ms + 20, u64::MAX), None, "they are under way");
            step_at(Nanos::from_millis(ms + 40), &Peers::default(), &mut 90, &mut r, |r, ctx| {
                r.on_unrepaired(ctx, Sequence(4), why);
                r.on_repair_durable(ctx, Sequence(5));
            });
            assert!(!r.damage.holes.is_empty());
            assert_eq!(question(&mut r, ms + 60, u64::MAX), None, "it rests");
        }
        assert!(question(&mut r, 7000, u64::MAX).is_some());
        given(&mut r, &all[3..5]);
        step(&mut r, |r, ctx| {
            r.on_repair_durable(ctx, Sequence(4));
            r.on_unrepaired(ctx, Sequence(5), Unrepaired::NotMissed);
        });
        assert!(r.damage.holes.is_empty());
    }

    /// Who fills holes gives what is committed, or all of it.
    #[test]
    fn a_hole_is_not_filled_in_part_with_what_is_not_committed() {
        let mut c = Chain { committed: 3, ..Chain::new() };
        let mut r = Replica::empty(SHARD);
        let mut all = vec![c.view()];
        all.extend(c.frames(7));
        let mut peers = Peers::default();
        peers.up(LinkId(1), OTHER, Nanos(0));
        step_at(Nanos(1), &peers, &mut 7, &mut r, |r, ctx| {
            assert!(all.iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(1))));
            r.on_durable(ctx, Sequence(8));
            for (until, fetch, gets) in [(8, false, 0), (6, false, 4), (8, true, 4)] {
                let names = vec![TailEntry::of(&all[1].head).name];
                let (map_from, map_since) = (MapPoint::NONE, Sequence(0));
                let q = SyncRequest {
                    early: false,
                    lacks: false,
                    shard: SHARD,
                    view: ViewNumber(1),
                    id: 1,
                    names,
                    until: Sequence(until),
                    map_from,
                    map_since,
                    lost: false,
                    fetch,
                    past: Version(0),
                };
                ctx.out.actions.clear();
                let source = crate::event::SyncSource { common: Sequence(3), frames: Ok(all[3..7].to_vec()) };
                r.answer_sync(ctx, LinkId(1), &q, source);
                let sent = ctx.out.actions.iter().find_map(|a| match a {
                    Action::Send { message: Message::SyncReply(r), .. } => Some(r.frames.len()),
                    _ => None,
                });
                let gets = if until == 6 { 3 } else { gets };
                assert_eq!(sent, Some(gets), "until {until}, for a fetch: {fetch}");
            }
        });
    }

    fn info(highest: u64) -> ShardInfo {
        ShardInfo {
            shard: SHARD,
            members: [1, 2].map(NodeId).to_vec(),
            active: ViewNumber(1),
            known: ViewNumber(1),
            blocks: 1024,
            highest: ViewNumber(highest),
            generation: Generation(0),
            has_keys: false,
            joining: Vec::new(),
            standing: Vec::new(),
            view_members: Vec::new(),
            volume: None,
            forced: None,
            branch: Branch::default(),
            snapshots: ShardSnapshots::default(),
            fork: None,
            flatten: false,
        }
    }

    /// The last append, with a promise in it, is lost. The head of the view that was left by that promise still reaches this
    /// member, and gives it what it lacks.
    #[test]
    fn a_log_that_lost_its_end_does_not_forget_a_promise() {
        for (highest, serves) in [(1, true), (2, false)] {
            let mut r = Replica::empty(SHARD);
            let all = frames(4, 3);
            step(&mut r, |r, ctx| {
                assert!(all.iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(1))));
                r.on_durable(ctx, Sequence(4));
            });
            r.damage = Damage::new(Vec::new(), true);
            r.info = Some(info(highest));
            assert_eq!(r.serves(), serves, "before the tail was compared; {highest} views");
            step(&mut r, |r, ctx| {
                r.ask(ctx, OTHER, ViewNumber(1), Sequence(u64::MAX));
                let id = r.asking.expect("it asks").id;
                r.on_sync_reply(ctx, SyncReply { id, ..reply(4, SyncMode::Level, Vec::new()) });
                let promised = ctx.out.actions.iter().find_map(|a| match a {
                    Action::Append(Record::Mark { change, .. }) if change.trusted => change.promised,
                    _ => None,
                });
                assert_eq!(promised.unwrap_or_default(), ViewNumber(highest), "it is durable, too");
            });
            assert!(!r.damage.suspect_tail);
            assert_eq!(r.serves(), serves, "{highest} views were given out");
        }
    }

    /// The lost frames lay among those that a cut could have taken back, and the tail was suspect, too: the chain's map
    /// was never taken, and nothing else was on offer.
    #[test]
    fn a_branch_with_a_hole_gives_way_to_the_map() {
        for committed in [3, 4] {
            let (mut r, _, branch) = holed(committed);
            step(&mut r, |r, ctx| {
                r.ask(ctx, OTHER, ViewNumber(1), Sequence(u64::MAX));
                let at = &branch[3];
                r.on_sync_reply(ctx, map_end(committed, at, &branch[0].head));
                assert_eq!(appends(&ctx.out.actions), [format!("cut {committed}"), "base".into()]);
                assert_eq!(r.last.hid, at.header().hid());
            });
            assert_eq!((r.stopped.clone(), r.damage.suspect_tail), (None, true), "until it was compared");
            step(&mut r, |r, ctx| {
                let id = r.asking.expect("it asks for what follows").id;
                let level = reply(r.last.sequence.0, SyncMode::Level, Vec::new());
                r.on_sync_reply(ctx, SyncReply { id, ..level });
            });
            assert!(!r.damage.suspect_tail);
        }
    }

    /// The committed frame itself was lost, and all behind it was of a branch that was cut. Nothing that the member
    /// could name was in common.
    #[test]
    fn a_lost_committed_frame_is_named_by_its_sequence() {
        let (mut r, _, branch) = holed(4);
        let first = branch[0].clone();
        step(&mut r, |r, ctx| {
            let names = r.names();
            assert_eq!(names.iter().map(|n| n.sequence.0).collect::<Vec<_>>(), [8, 7, 6, 5, 4]);
            assert!(is_said_committed(&names[4]) && names[..4].iter().all(|n| !is_said_committed(n)));
            r.ask(ctx, OTHER, ViewNumber(2), Sequence(u64::MAX));
            ctx.out.actions.clear();
            let frames = SyncReply { view: ViewNumber(2), ..reply(4, SyncMode::Level, branch[..3].to_vec()) };
            r.on_sync_reply(ctx, frames);
            assert_eq!(appends(&ctx.out.actions), ["cut 4", "frame 5", "frame 6", "frame 7", "mark"]);
        });
        assert_eq!(r.stopped, None);
        assert_eq!(r.tail[&Sequence(4)].name.hid, hide(&first.header().parent_token()));
        assert_eq!(r.damage.holes[0].until, Sequence(4), "the committed frame is still fetched");
    }
}

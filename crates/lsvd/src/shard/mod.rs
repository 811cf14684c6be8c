//! One shard as its frames in log order make it: last frame, map, places, requests, and what a cut would bring back.
//!
//! Invariants:
//! - Log order decides: recovery and the running engine apply the same frames by the same rules and get the same.
//! - A frame with the next sequence extends. One with a sequence that is taken by another frame cuts back first; it
//!   never does at or below `committed` (rule E7). One that leaves a gap makes a hole, unless the gap is known to
//!   have been released.
//! - Frames above `committed` are in the overlay, and only there. What a committed frame brings goes into the map
//!   below it as the newest there; what came out of order is held against the map first (rule E2).
//! - A block's bit in the chunk index is set when its entry is admitted and cleared when a newer one is committed over
//!   it, or its frame is cut. Clearing it again does nothing, so it does not matter how often that is found out.

mod absent;
pub mod chunks;
pub mod closed;
mod forked;
pub mod forks;
pub mod frames;
pub mod history;
pub mod holes;
mod learned;
mod named;
pub mod overlay;
pub mod places;
mod state;
pub mod tip;
pub mod unfit;

use crate::log::lost::LostAppends;
use crate::log::place::{At, NUMBER_MAX};
use crate::log::segments::Segments;
use crate::map::extents::{Crcs, Extent, ExtentMap, Outcome};
use crate::shard::closed::Closed;
use crate::shard::frames::{FrameIndex, FramePlace};
use crate::shard::history::History;
use crate::shard::history::pins::PinOp;
use crate::shard::holes::Hole;
use crate::shard::overlay::{Overlay, Uncommitted, entries};
use crate::{Base, FrameName, MarkChange, RequestTable, RuleMutant, Unrepaired};
use chunks::{ChunkIndex, Run};
use freebs_format::{
    ABSENT_BYTES, AttachBody, CarryBody, CarryEntry, ExtentKind, FLAT_BYTES, FORK_BYTES, FrameHead, FrameKind,
    LOST_VERSION_BYTES, MarkBody, PIN_BYTES,
};
use freebs_types::{BLOCK, ChunkId, Fork, Hash32, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tip::Tip;

#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub id: ShardId,
    pub tip: Tip,
    pub committed: Sequence,
    pub promised: ViewNumber,
    pub given_up: ViewNumber,
    pub secret: Option<(ViewNumber, Hash32)>,
    pub views: Vec<(Sequence, FrameHead)>,
    pub attaches: Vec<(Sequence, AttachBody)>,
    pub requests: RequestTable,
    pub holes: Vec<Hole>,
    /// Frames that were never here: the log began behind them.
    pub absent: Option<absent::Absent>,
    /// The tip in front of a hole, by its first sequence, while a cut may go back there.
    pub fronts: BTreeMap<u64, Tip>,
    /// Frames up to here may have had their blocks moved into an append that is lost. Only while the log is replayed.
    pub moved: u64,
    /// Up to here those of them that are no longer in the log are holes already.
    pub missed: u64,
    /// The last frames may be lost. Only a comparison with the chain ends that (E7), not frames that come: of what is
    /// fetched again a part may be missing still.
    pub suspect: bool,
    /// Append of the newest mark, which says all that was promised before it.
    pub last_mark: u64,
    /// A lost append may have held a mark with a promise: no later one says what was promised.
    pub promise_lost: bool,
    /// Append of the last frame that made no sense. A mark up to there knows nothing of it.
    pub refused: u64,
    /// The log says so since the last start: neither frames that come later nor a segment that goes makes the loss look
    /// mended.
    pub suspect_told: bool,
    pub released: Sequence,
    /// Whose entries of the device's runs are this shard's.
    pub slot: u32,
    /// Entries of committed frames: the newest level of the map.
    pub map: ExtentMap,
    /// The level below, while it is being written to a run.
    pub frozen: Option<Rc<ExtentMap>>,
    /// What the runs below say of the blocks of the frame that is about to be applied, if it is one that need not be
    /// the newest there. Set by who has looked it up.
    pub below: ExtentMap,
    pub overlay: Overlay,
    /// The append that a checkpoint has the shard as of. Only carries from before are applied again.
    pub as_of: u64,
    /// Behind this append a live block is one whose entry is in the map. A checkpoint has what lives later than the map.
    pub sure_from: u64,
    /// What is committed up to here is in the runs, but for `dirty`.
    pub flushed: Sequence,
    /// Blocks whose entries changed although they are not newer than that: first one and end.
    pub dirty: Vec<(u32, u32)>,
    /// Highest sequence of an entry that came ahead of its frame (a map that is being learned). Frames up to there are
    /// not the newest in the map.
    pub ahead: Sequence,
    pub chunks: ChunkIndex,
    pub frames: FrameIndex,
    /// What is committed as the chain says, although frames up to there may not be here yet.
    pub hint: Sequence,
    /// Frames from here on stay in the log.
    pub keep: Option<Sequence>,
    /// Append of the last frame or mark.
    pub last_append: u64,
    /// Segment of the newest mark and what it says is released.
    pub mark: Option<(u32, Sequence)>,
    /// Segments with frames, and with marks that name frames, that were cut since the last frame.
    pub stale: BTreeSet<u32>,
    /// Repairs of frames of which nothing in the log has told yet: the first copy of such a frame was given up, and the
    /// mark that says so lies further on. Only while the log is replayed.
    pub orphans: BTreeMap<Sequence, (FrameHead, At)>,
    /// Segments with marks that name frames above `committed`, and the highest such frame.
    pub marks: BTreeMap<u32, Sequence>,
    /// Secrets of views that are closed.
    pub closed: Closed,
    /// Versions that are kept, and what was in force at them.
    pub history: History,
    /// The parent that it reads from, if it is a clone's that is not flat.
    pub fork: Option<Fork>,
    /// How it came to be flat, if it was a clone's, until a mark in a later segment says nothing of that.
    ended: Option<forks::Ended>,
    outcome: Outcome,
}

fn hid8(hid: &Hash32) -> u64 {
    u64::from_le_bytes(hid.0[..8].try_into().expect("eight bytes"))
}

/// A head with bytes of its own, so that a small frame does not keep a large buffer alive.
fn own(head: &FrameHead) -> FrameHead {
    FrameHead::parse(&mut bytes::Bytes::copy_from_slice(head.bytes())).expect("parsed before")
}

/// Merges an entry that was recorded later than what is there: the same trim or zero is at home in the later record.
fn insert_later(map: &mut ExtentMap, start: u32, e: Extent, out: &mut Outcome) {
    let (home, key, end, data) = (e.offset, e.key(), start + e.len, e.is_data());
    map.insert(start, e, out);
    if !data && !out.same.is_empty() {
        map.rehome(start, end, home, |e| e.key() == key);
    }
}

impl Shard {
    pub fn new(id: ShardId, slot: u32) -> Self {
        Self { id, slot, ..Self::default() }
    }

    /// What is here is being written: gives back the blocks that are not newer than what was written before.
    pub fn take_dirty(&mut self) -> Vec<(u32, u32)> {
        let mut all = std::mem::take(&mut self.dirty);
        all.sort_unstable();
        let mut out: Vec<(u32, u32)> = Vec::new();
        for (start, end) in all {
            match out.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => out.push((start, end)),
            }
        }
        self.flushed = self.committed;
        out
    }

    /// The map's table becomes the frozen one; gives it back.
    pub fn freeze(&mut self) -> Rc<ExtentMap> {
        assert!(self.frozen.is_none(), "one table at a time is written");
        let table = Rc::new(std::mem::take(&mut self.map));
        self.frozen = Some(table.clone()).filter(|t| !t.is_empty());
        table
    }

    /// The frozen table is not written after all.
    pub fn thaw(&mut self, segs: &mut Segments) {
        let Some(frozen) = self.frozen.take() else { return };
        let newer = std::mem::take(&mut self.map);
        self.map = Rc::try_unwrap(frozen).unwrap_or_else(|f| (*f).clone());
        for (a, e) in newer.iter() {
            self.down(a, e.clone(), segs);
        }
    }

    /// Applies a frame of the sequence. `damaged` is the highest append known to be lost, so far in log order.
    /// Gives back why the frame does not count, if so.
    pub fn apply(
        &mut self,
        head: &FrameHead,
        at: At,
        repair: bool,
        damaged: u64,
        segs: &mut Segments,
    ) -> Result<(), &'static str> {
        let s = head.seq();
        if let Some(why) = unfit::frame(head) {
            return Err(self.without(at, why));
        }
        segs.note(at.segment, self.id, Some(s));
        if repair {
            return self.repair(head, at, segs);
        }
        if s <= self.tip.name.sequence {
            let same = self.has(head, segs);
            if same {
                return Ok(());
            }
            if s <= self.committed && !segs.leaves_out(RuleMutant::CommittedIsCut) {
                return Err(unfit::USURPS);
            }
            self.cut(Sequence(s.0 - 1), segs);
            if self.tip.name.sequence >= s {
                self.step_back(head, damaged);
            }
        }
        let is_lost = self.misses_its_cut(s, (head.view(), Some(head.before().hid)), damaged);
        if is_lost {
            self.cut(self.committed, segs);
        }
        let next = self.tip.name.sequence.0 + 1;
        if s.0 == next && self.is_over_written(head) {
            return Err(self.without(at, "frame over blocks of its chunk that were written before"));
        }
        if s.0 > next {
            self.add_hole(next, s.0 - 1, is_lost || self.may_miss(damaged), self.tip.version);
            self.adopt_orphans(segs);
            self.fronts.insert(next, self.tip);
            // A cut goes back to the frame before, although that one is not here.
            self.tip = Tip::before(head);
        } else if is_lost {
            // Our last frame is committed, and does not belong to the chain.
            self.add_hole(s.0 - 1, s.0 - 1, true, Version(0));
        }
        self.extend(head, at, segs);
        Ok(())
    }

    /// Whether a frame of a sequence that is taken is the one that is here. Its name is more than its sequence: another
    /// one cuts the tail off (rule E3).
    fn has(&self, head: &FrameHead, segs: &Segments) -> bool {
        let s = head.seq();
        match self.frames.get(s) {
            Some(p) => p.hid == hid8(&head.header().hid()) || segs.leaves_out(RuleMutant::SequenceIsName),
            // Of frames so old nobody knows any more; they are committed, so this can only be the same again.
            None if s <= self.committed && self.frames.is_before_all(s) => true,
            None => s <= self.released || (s == self.tip.name.sequence && self.tip.name.hid == head.header().hid()),
        }
    }

    /// Whether a frame would take the place of a committed one. Such frames are not written: the next start may not
    /// know any more that the other one is committed, and would cut it (rule E7).
    pub fn is_usurped_by(&self, head: &FrameHead, segs: &Segments) -> bool {
        let taken = head.seq() <= self.committed && head.seq() <= self.tip.name.sequence;
        taken && !segs.leaves_out(RuleMutant::CommittedIsCut) && !self.has(head, segs)
    }

    /// Makes the frame before `head` the last one. What is the last one is on a branch that `head` cuts, but there is
    /// no undo: a mark, written on that branch, put the shard there, and the frames before it are not in the log. If
    /// they were released, as a later mark will say, nothing of them is missed; else they are lost.
    fn step_back(&mut self, head: &FrameHead, damaged: u64) {
        let s = head.seq().0;
        let hard = self.may_miss(damaged);
        self.tip = Tip::default();
        self.cut_holes(s - 1, s - 1);
        if s == 1 {
            return;
        }
        self.tip = Tip::before(head);
        // The frame in front of a hole is here, and only the hole is cut off.
        let is_here = self.frames.get(self.tip.name.sequence).is_some_and(|p| p.hid == hid8(&self.tip.name.hid));
        if !is_here && self.holes.iter().all(|hole| hole.to < s - 1) {
            self.add_hole(s - 1, s - 1, hard, Version(0));
        }
    }

    fn extend(&mut self, head: &FrameHead, at: At, segs: &mut Segments) {
        let s = head.seq();
        let known = head.header().committed_seq().0.min(s.0 - 1).max(self.hint.0.min(s.0));
        self.set_committed(Sequence(known), segs);
        let before = std::mem::replace(&mut self.tip, Tip::of(head));
        self.frames.push(s, Self::place_of(head, at));
        self.promised = self.promised.max(head.view());
        self.last_append = at.append;
        for by in std::mem::take(&mut self.stale) {
            segs.pin(at.segment, by);
        }
        self.note_body(head);
        self.place_data(head, at, segs);
        let late = s <= self.ahead;
        self.enter(head, at, late, before, segs);
    }

    fn place_of(head: &FrameHead, at: At) -> FramePlace {
        FramePlace {
            segment: at.segment,
            head_at: at.head_at,
            head_len: head.bytes().len() as u32,
            data_at: at.data_at,
            data_len: head.header().data_len.get(),
            hid: hid8(&head.header().hid()),
        }
    }

    /// View, attachment and request numbers.
    fn note_body(&mut self, head: &FrameHead) {
        let s = head.seq();
        match head.kind() {
            FrameKind::View => {
                let i = self.views.partition_point(|v| v.0 <= s);
                self.views.insert(i, (s, own(head)));
                self.closed.note(head);
            }
            FrameKind::Attach => {
                if let Ok(body) = AttachBody::decode(head.body()) {
                    let i = self.attaches.partition_point(|a| a.0 <= s);
                    self.attaches.insert(i, (s, body));
                }
            }
            _ => {
                for u in head.updates() {
                    self.requests.apply(u.driver, u.number, u.lowest_open, s);
                }
            }
        }
        self.prune();
    }

    /// Forgets views and attachments that a cut can't bring back.
    fn prune(&mut self) {
        let old = self.views.partition_point(|v| v.0 <= self.committed);
        self.views.drain(..old.saturating_sub(1));
        let old = self.attaches.partition_point(|a| a.0 <= self.committed);
        self.attaches.drain(..old.saturating_sub(1));
    }

    /// Gives the frame's data their place.
    fn place_data(&mut self, head: &FrameHead, at: At, segs: &mut Segments) {
        let h = head.header();
        if h.data_blocks() > 0 {
            let run = Run { first: h.chunk_offset.get(), count: h.data_blocks(), segment: at.segment, at: at.data_at };
            self.chunks.place(h.chunk(), run, |s, n| segs.count_live(s, n));
        }
    }

    /// The frame's entries go into the overlay while it may be cut, else into the map. `late` if they need not be the
    /// newest.
    fn enter(&mut self, head: &FrameHead, at: At, late: bool, before: Tip, segs: &mut Segments) {
        let (sequence, mut list) = (head.seq(), Vec::new());
        entries(head, at, |a, e| list.push((a, e)));
        self.acquire_data(&list, at, segs);
        let pins = PinOp::of(head);
        if late {
            self.late_pins(sequence, &pins);
        }
        if sequence <= self.committed {
            self.apply_pins(sequence, &pins, segs);
            self.go_down(list, late, segs);
            return;
        }
        if late {
            self.hold_newer(&list, segs);
        }
        let keeps = !pins.is_empty();
        self.overlay.put(Uncommitted { sequence, before, entries: list, pins, append: at.append });
        self.waiting_changed(keeps, segs);
    }

    /// All blocks that the frame names are live; and its trims are recorded here.
    fn acquire_data(&mut self, list: &[(u32, Extent)], at: At, segs: &mut Segments) {
        for (a, e) in list {
            if e.is_data() {
                self.chunks.acquire(e.chunk, e.offset, e.len, |s, n| segs.count_live(s, n));
            } else {
                segs.get_mut(at.segment).tomb_list.add(self.id, *a, e.len);
            }
        }
    }

    /// A committed frame's entries go into the map.
    fn go_down(&mut self, list: Vec<(u32, Extent)>, late: bool, segs: &mut Segments) {
        for (a, e) in list {
            if late { self.down_late(a, e, segs) } else { self.down(a, e, segs) }
        }
    }

    /// Puts a committed entry into the map, which has nothing newer below it.
    fn down(&mut self, start: u32, e: Extent, segs: &mut Segments) {
        if e.sequence <= self.flushed {
            self.dirty.push((start, start + e.len));
        }
        let (mut out, by) = (std::mem::take(&mut self.outcome), e.version);
        if segs.leaves_out(RuleMutant::LastComerWins) {
            let other = self.map.take(start, start + e.len, |old| old.key() != e.key());
            other.iter().for_each(|(_, old)| self.release(old, segs));
        }
        insert_later(&mut self.map, start, e, &mut out);
        for (a, e) in out.displaced.drain(..) {
            self.supersede(a, &e, by, false, segs);
        }
        for (a, e, by) in out.lost.drain(..) {
            self.supersede(a, &e, by, true, segs);
        }
        self.outcome = out;
    }

    /// Puts a committed entry that came out of order into the map, as far as nothing newer is known.
    fn down_late(&mut self, start: u32, e: Extent, segs: &mut Segments) {
        for (a, e) in self.not_beaten(start, e, segs) {
            self.down(a, e, segs);
        }
    }

    /// The pieces of an entry that no newer committed one covers (rule E2); the others are free.
    fn not_beaten(&mut self, start: u32, e: Extent, segs: &mut Segments) -> Vec<(u32, Extent)> {
        if segs.leaves_out(RuleMutant::LastComerWins) {
            return vec![(start, e)];
        }
        let (mut view, mut out) = (self.below_view(start, start + e.len), Outcome::default());
        view.insert(start, e.clone(), &mut out);
        for (a, gone, by) in out.lost.drain(..) {
            self.supersede(a, &gone, by, true, segs);
        }
        let stays = out.placed.into_iter().chain(out.same);
        stays.map(|(a, len)| (a, e.piece(a - start, len))).collect()
    }

    /// Committed entries that are as new as those of an uncommitted frame, or newer, are held above it.
    fn hold_newer(&mut self, list: &[(u32, Extent)], segs: &mut Segments) {
        for (a, e) in list {
            let view = self.below_view(*a, a + e.len);
            for (a, newer) in view.iter().filter(|(_, n)| n.key() >= e.key()) {
                // It is in the map below already, so the log need not keep its append for this copy.
                let covered = self.overlay.hold(a, newer.clone(), None);
                self.supersede_held(covered, segs);
            }
        }
    }

    /// The entry's blocks are free.
    pub fn release(&mut self, e: &Extent, segs: &mut Segments) {
        if e.is_data() {
            self.chunks.release(e.chunk, e.offset, e.len, |s, n| segs.count_died(s, n));
        }
    }

    /// The entry's frame is cut. Its blocks are free, but for those that a carry has brought, too: they are held above
    /// the frames, or were in force until something newer came.
    fn release_cut(&mut self, start: u32, e: &Extent, segs: &mut Segments) {
        let end = start + e.len;
        let same = |a: u32, o: &Extent| {
            o.is_data()
                && o.chunk == e.chunk
                && u64::from(o.offset) + u64::from(start) == u64::from(e.offset) + u64::from(a)
        };
        let held = self.overlay.held_in(start, end).filter(|(a, o)| same(*a, o)).map(|(a, o)| (a, a + o.len));
        let layers =
            self.history.memory.range(start, end).filter(|(a, l)| same(*a, &l.e)).map(|(a, l)| (a, a + l.e.len));
        let mut named: Vec<(u32, u32)> = held.chain(layers).filter(|(a, b)| *a < end && start < *b).collect();
        named.sort_unstable();
        let mut at = start;
        for (a, b) in named.into_iter().chain([(end, end)]) {
            if a > at {
                self.release(&e.piece(at - start, a - at), segs);
            }
            at = at.max(b);
        }
    }

    /// A frame that fills a hole, or a new copy of one that is there.
    fn repair(&mut self, head: &FrameHead, at: At, segs: &mut Segments) -> Result<(), &'static str> {
        let (s, h) = (head.seq(), head.header());
        let place = Self::place_of(head, at);
        if let Some(old) = self.frames.get(s) {
            if old.hid != place.hid {
                return Err("repair with another frame than the one it is for");
            }
            self.frames.replace(s, place);
            if h.data_blocks() > 0 {
                let run =
                    Run { first: h.chunk_offset.get(), count: h.data_blocks(), segment: at.segment, at: at.data_at };
                self.chunks.place(h.chunk(), run, |s, n| segs.count_live(s, n));
                self.chunks.settle(h.chunk(), run.first, run.count);
            }
            return Ok(());
        }
        let Some(end) = self.fill_hole(s.0) else {
            if s <= self.released.min(self.committed) {
                // Its first copy was given up. This one is where its blocks are.
                self.place_data(head, at, segs);
                let before = self.tip;
                self.enter(head, at, true, before, segs);
            } else {
                self.orphans.insert(s, (own(head), at));
            }
            return Ok(());
        };
        // The frame behind the hole knows what the tip was before, unless it is committed and nothing is to be known. So
        // does a mark that put the shard up to the frame itself.
        let behind = self.overlay.after(s).filter(|u| u.sequence.0 <= end.saturating_add(1));
        let behind = behind.map(|u| std::mem::replace(&mut u.before, Tip::of(head)));
        let before = self.overlay.get(s).map(|mark| mark.before).or(behind).unwrap_or(self.tip);
        self.frames.replace(s, place);
        if s == self.tip.name.sequence {
            self.tip = Tip::of(head);
        }
        self.note_body(head);
        self.place_data(head, at, segs);
        self.enter(head, at, true, before, segs);
        Ok(())
    }

    /// Why a repair has nothing to mend, if so. Such a one is not written: replayed without the frame that it is not
    /// for, it would be taken for it.
    pub fn is_not_for(&self, head: &FrameHead) -> Option<Unrepaired> {
        let s = head.seq();
        match self.frames.get(s) {
            Some(p) => (p.hid != hid8(&head.header().hid())).then_some(Unrepaired::Differs),
            None if self.holes.iter().any(|h| h.from <= s.0 && s.0 <= h.to) => None,
            None => Some(Unrepaired::NotMissed),
        }
    }

    /// Looks again at repairs that came before anything that told of their frames.
    fn adopt_orphans(&mut self, segs: &mut Segments) {
        for (_, (head, at)) in std::mem::take(&mut self.orphans) {
            // One that is refused now is for a frame that another one has taken the place of.
            let _ = self.repair(&head, at, segs);
        }
    }

    /// Whether a repair is left that nothing told of.
    pub fn forget_orphans(&mut self) -> bool {
        let last = self.tip.name.sequence;
        std::mem::take(&mut self.orphans).into_keys().any(|s| s > last)
    }

    /// Applies map entries with their places.
    pub fn carry(&mut self, body: &CarryBody, at: At, segs: &mut Segments) -> Result<(), &'static str> {
        segs.note(at.segment, self.id, None);
        let mut data_at = at.data_at;
        for e in &body.entries {
            let (start, data) = (e.range.start.0, e.kind == ExtentKind::Data);
            if let Some(why) = unfit::entry(e) {
                return Err(why);
            }
            let unknown = self.unknown(e, at.append);
            if data {
                let run = Run { first: e.offset, count: e.range.len, segment: at.segment, at: data_at };
                data_at += e.range.len * BLOCK as u32;
                self.chunks.place(e.chunk, run, |s, n| segs.count_live(s, n));
                self.chunks.acquire(e.chunk, e.offset, e.range.len, |s, n| segs.count_live(s, n));
            } else {
                segs.get_mut(at.segment).tomb_list.add(self.id, start, e.range.len);
            }
            let extent = Extent {
                len: e.range.len,
                kind: e.kind,
                version: e.version,
                sequence: e.sequence,
                chunk: if data { e.chunk } else { ChunkId::default() },
                offset: if data { e.offset } else { at.segment },
                crcs: match e.crcs[..] {
                    [] => Crcs::None,
                    [one] => Crcs::One(one),
                    _ => Crcs::Many { table: e.crcs.clone().into(), at: 0 },
                },
            };
            for (a, len) in unknown {
                self.carried(a, extent.piece(a - start, len), at, segs);
            }
        }
        Ok(())
    }

    /// True if uncommitted frames write some of these blocks.
    pub fn is_over(&self, start: u32, end: u32) -> bool {
        self.overlay.map.range(start, end).next().is_some()
    }

    /// The parts of a carried entry that the map need not have: address and length. Blocks that are live already are
    /// named by this very entry, since a block of a chunk is written once; they have only moved.
    pub fn unknown(&self, e: &CarryEntry, append: u64) -> Vec<(u32, u32)> {
        let (start, len) = (e.range.start.0, e.range.len);
        if e.kind != ExtentKind::Data || append <= self.sure_from {
            return vec![(start, len)];
        }
        let mut out = Vec::new();
        for (from, to, is_written) in self.overlay.parts(start, start + len) {
            if is_written {
                out.push((from, to - from));
                continue;
            }
            let first = e.offset + (from - start);
            self.chunks.dead_in(e.chunk, first, to - from, |dead, n| out.push((start + (dead - e.offset), n)));
        }
        out
    }

    /// One entry of a carry: into the map, or above it where frames that may be cut write the same blocks.
    fn carried(&mut self, start: u32, e: Extent, at: At, segs: &mut Segments) {
        if e.sequence > self.tip.name.sequence {
            self.ahead = self.ahead.max(e.sequence);
        }
        for (a, e) in self.not_beaten(start, e, segs) {
            for (from, to, is_written) in self.overlay.parts(a, a + e.len) {
                let part = e.piece(from - a, to - from);
                if is_written {
                    let covered = self.overlay.hold(from, part, Some(at.append));
                    self.supersede_held(covered, segs);
                } else {
                    self.down(from, part, segs);
                }
            }
        }
    }

    /// Takes the promises of a mark. Only a newer promise makes up for one that may be lost: other marks may be made by a log
    /// that does not know of it.
    fn promise(&mut self, body: &MarkBody, damaged: u64) {
        self.promise_lost |= self.may_miss_promise(damaged);
        self.promise_lost &= body.promised <= self.promised;
        self.promised = self.promised.max(body.promised);
        self.given_up = self.given_up.max(body.given_up);
    }

    /// Applies a mark: takes what is newer in it. `head` is the mark's own. Appends up to `damaged` are known to be lost,
    /// and of a map that was learned up to the last of `lost` a part may be.
    pub fn mark(
        &mut self,
        head: &FrameHead,
        body: &MarkBody,
        at: At,
        (damaged, lost): (u64, &LostAppends),
        segs: &mut Segments,
    ) -> Result<(), &'static str> {
        segs.note(at.segment, self.id, None);
        let (s, h) = (head.seq(), head.header());
        if s.0 >= NUMBER_MAX || h.first_version.get() >= NUMBER_MAX || h.chunk_offset.get() > chunks::ORDINALS_MAX {
            return Err("mark with an impossible number");
        }
        if body.fork.is_some_and(|f| f.parent == self.id) {
            return Err("mark of a shard that reads from itself");
        }
        self.promise(body, damaged);
        if body.secret_view.0 > 0 && self.secret.is_none_or(|(v, _)| v <= body.secret_view) {
            self.secret = Some((body.secret_view, body.secret));
        }
        self.mark = Some((at.segment, body.released));
        if s > self.committed {
            let highest = self.marks.entry(at.segment).or_default();
            *highest = s.max(*highest);
        }
        let is_lost = self.misses_its_cut(s, (body.last_view, None), damaged);
        if is_lost {
            self.cut(self.committed, segs);
        }
        if body.whole && body.learned_upto.0 > 0 && s > self.committed {
            // A branch that was cut before the map was learned.
            self.cut(body.learned_upto, segs);
        }
        if body.whole {
            // No frame takes the place of those that were cut here. Without this mark a start would put them under the map.
            for by in std::mem::take(&mut self.stale) {
                segs.pin(at.segment, by);
            }
        }
        self.take_place(s, h.hid(), segs);
        let last = self.tip.name.sequence;
        let lost_since = self.lost_since(body, damaged, lost.last());
        if s > last {
            self.add_hole(last.0 + 1, s.0, is_lost || self.may_miss(damaged), self.tip.version);
            self.jump(head, body, at, segs);
        } else {
            self.fill_in(s, body);
        }
        self.take_fork(body, at.append, lost, damaged == u64::MAX);
        (self.last_append, self.last_mark) = (at.append, at.append);
        // Whatever else came between, this is what was known when the mark was written.
        self.suspect = body.suspect_tail || at.append <= self.refused;
        if s >= last {
            self.tip.parent = body.last_parent;
            self.tip.digest = body.last_digest;
        }
        self.released = self.released.max(body.released);
        self.closed.merge(&body.closed);
        self.closed.prune(self.id, segs);
        self.take_learned(s, body, lost_since);
        self.take_absent(body, lost_since);
        self.miss_moved();
        self.trim_holes();
        self.mark_pins(body, s >= last, segs);
        self.set_committed(Sequence(body.committed.0.min(s.0)), segs);
        self.adopt_orphans(segs);
        Ok(())
    }

    /// Cuts our last frame off if a mark at its sequence has another name: the one that took its place is lost.
    fn take_place(&mut self, s: Sequence, hid: Hash32, segs: &mut Segments) {
        let last = self.tip.name;
        if s != last.sequence || s.0 == 0 || last.hid == hid || s <= self.committed {
            return;
        }
        self.cut(Sequence(s.0 - 1), segs);
        if self.tip.name.sequence == s {
            // A mark of the branch that was cut brought us there, and nothing leads back.
            self.tip = Tip::default();
            self.tip.name.sequence = Sequence(s.0 - 1);
        }
    }

    /// Takes from a mark what frames said that are no longer in the log: their segments were given up, and those
    /// that follow them say nothing of view, attachment and older requests.
    fn fill_in(&mut self, s: Sequence, body: &MarkBody) {
        if let Some(f) = &body.view_frame
            && f.seq() <= s
            && self.views.iter().all(|v| v.0 != f.seq())
        {
            let i = self.views.partition_point(|v| v.0 <= f.seq());
            self.views.insert(i, (f.seq(), own(f)));
        }
        if self.attaches.iter().all(|a| a.1.generation < body.attach.generation) {
            let i = self.attaches.partition_point(|a| a.0 <= s);
            self.attaches.insert(i, (s, body.attach));
        }
        self.requests.merge(&body.requests);
        self.prune();
    }

    /// Goes on from a mark that is ahead of the frames that are here. What it says may be of frames that were cut
    /// later, and that were given up together with what they wrote; so it can be cut, too, unless it is committed or
    /// the whole map came with it.
    fn jump(&mut self, head: &FrameHead, body: &MarkBody, at: At, segs: &mut Segments) {
        let (s, h) = (head.seq(), head.header());
        if body.whole || body.committed >= s {
            // The map was learned up to here, or what came before is committed.
            self.commit_to(Sequence(u64::MAX), segs);
            self.views = body.view_frame.iter().map(|f| (f.seq(), own(f))).collect();
            self.attaches = vec![(Sequence(0), body.attach)];
            self.requests = RequestTable::from_format(&body.requests);
        } else {
            let (entries, pins, append) = (Vec::new(), Vec::new(), at.append);
            self.overlay.put(Uncommitted { sequence: s, before: self.tip, entries, pins, append });
            self.fill_in(s, body);
        }
        self.tip = Tip {
            name: FrameName { view: body.last_view, sequence: s, hid: h.hid() },
            parent: body.last_parent,
            digest: body.last_digest,
            version: h.last_version(),
            chunk: h.chunk(),
            chunk_blocks: h.chunk_offset.get(),
        };
    }

    /// Brings back the state that frame `to` left; what was committed is not asked for.
    pub fn cut(&mut self, to: Sequence, segs: &mut Segments) {
        let to = to.max(self.committed);
        if to >= self.tip.name.sequence {
            return;
        }
        self.supersede_cut(to, segs);
        let mut kept = false;
        while let Some(u) = self.overlay.cut(to) {
            kept |= !u.pins.is_empty();
            u.entries.iter().for_each(|(a, e)| self.release_cut(*a, e, segs));
            self.tip = u.before;
        }
        if self.tip.name.sequence > to
            && let Some(front) = self.fronts.get(&(to.0 + 1))
        {
            self.tip = *front;
        }
        self.fronts.retain(|from, _| *from <= to.0);
        self.waiting_changed(kept, segs);
        self.cut_reading(to, segs);
        let gone = self.overlay.rebuild();
        self.go_down(gone, false, segs);
        self.stale.extend(self.frames.cut(to));
        // A mark that names a frame of the branch must not outlive the frame that cuts it.
        self.stale.extend(self.marks.extract_if(.., |_, s| *s > to).map(|(segment, _)| segment));
        self.requests.cut(to);
        self.views.retain(|v| v.0 <= to);
        self.attaches.retain(|a| a.0 <= to);
        self.closed.cut(to);
        self.cut_holes(to.0, self.tip.name.sequence.0);
        // A mark may have said so of what was learned for lost frames of the branch.
        self.released = self.released.min(to);
    }

    /// The chain says what is committed; the frames may come later.
    pub fn hear_committed(&mut self, to: Sequence, segs: &mut Segments) {
        self.hint = self.hint.max(to);
        self.set_committed(to.min(self.tip.name.sequence), segs);
    }

    /// Raises what is known to be committed and gives up what could undo it.
    pub fn set_committed(&mut self, to: Sequence, segs: &mut Segments) {
        if to <= self.committed {
            return;
        }
        if self.history.below.is_stuck(self.committed) {
            // Its history was left out of the count while it had to stay in memory.
            segs.past_grows(self.history.memory.bytes());
        }
        self.committed = to;
        self.fronts.retain(|from, _| *from > to.0);
        self.marks.retain(|_, s| *s > to);
        self.commit_to(to, segs);
        self.prune();
    }

    /// Frames up to `to` can't be cut any more: what they brought goes into the map.
    fn commit_to(&mut self, to: Sequence, segs: &mut Segments) {
        while let Some(done) = self.overlay.commit(to) {
            self.apply_pins(done.sequence, &done.pins, segs);
            self.waiting_changed(!done.pins.is_empty(), segs);
            self.supersede_held(done.covered, segs);
            self.go_down(done.entries, false, segs);
            self.go_down(done.again, false, segs);
        }
        self.covered_in_turn(to);
    }

    /// The shard was deleted: nothing of it is live.
    pub fn forget(mut self, holder: u32, segs: &mut Segments) {
        self.chunks.clear(|s, n| segs.count_live(s, n));
        segs.forget(self.id, holder);
    }

    /// Map entries in memory that no cut can take back, in a range.
    pub fn committed_view(&self, start: u32, end: u32) -> ExtentMap {
        let (mut view, mut out) = (ExtentMap::default(), Outcome::default());
        let held = self.overlay.held_in(start, end);
        let levels = [self.frozen.as_deref(), Some(&self.map)].into_iter().flatten();
        let levels = levels.flat_map(|m| m.range(start, end)).map(|(a, e, skip, len)| (a, e.piece(skip, len)));
        for (a, e) in levels.chain(held) {
            insert_later(&mut view, a, e, &mut out);
        }
        view
    }

    /// Map entries in memory as the last durable frame left them, in a range.
    pub fn view(&self, start: u32, end: u32) -> ExtentMap {
        let (mut view, mut out) = (ExtentMap::default(), Outcome::default());
        for map in [self.frozen.as_deref(), Some(&self.map), Some(&self.overlay.map)].into_iter().flatten() {
            for (a, e, skip, len) in map.range(start, end) {
                view.insert(a, e.piece(skip, len), &mut out);
            }
        }
        view
    }

    /// The committed entries of a range, those of the runs included: for a frame whose blocks were looked up.
    fn below_view(&self, start: u32, end: u32) -> ExtentMap {
        let (mut view, mut out) = (self.committed_view(start, end), Outcome::default());
        for (a, e, skip, len) in self.below.range(start, end) {
            view.insert(a, e.piece(skip, len), &mut out);
        }
        view
    }

    /// The first address from `at` on that has an entry.
    pub fn next_entry(&self, at: u32) -> Option<u32> {
        let maps = [self.frozen.as_deref(), Some(&self.map), Some(&self.overlay.map)];
        maps.into_iter().flatten().filter_map(|m| m.next(at)).chain(self.history.memory.next(at)).min()
    }

    pub fn first_kept(&self) -> Sequence {
        let last = self.tip.name.sequence;
        if self.frames.get(last).is_none() { Sequence(last.0 + 1) } else { self.frames.first_kept() }
    }

    /// What would be a mark with these changes, and the last frame as the mark's header names it.
    pub fn mark_body(&self, change: &MarkChange, released: Sequence) -> (Tip, MarkBody) {
        let secret = match (change.secret, self.secret) {
            (Some(new), Some(old)) => Some(if new.0 >= old.0 { new } else { old }),
            (new, old) => new.or(old),
        };
        let mut body = MarkBody {
            promised: change.promised.unwrap_or_default().max(self.promised),
            secret_view: secret.map_or(ViewNumber(0), |s| s.0),
            secret: secret.map_or(Hash32::default(), |s| s.1),
            committed: self.committed,
            attach: self.attaches.last().map(|a| a.1).unwrap_or_default(),
            last_view: self.tip.name.view,
            last_parent: self.tip.parent,
            last_digest: self.tip.digest,
            released: released.max(self.released),
            suspect_tail: self.suspect && !change.trusted,
            given_up: self.given_up,
            view_frame: self.views.last().map(|v| v.1.clone()),
            requests: self.requests.to_format(),
            ..MarkBody::default()
        };
        let mut tip = self.tip;
        let base = change.base.as_deref().filter(|b| b.last.sequence >= tip.name.sequence);
        if let Some(base) = base {
            tip = Self::base(base, &mut body);
        } else if let Some(learned) = change.learned.as_deref() {
            self.learned_body(learned, &mut body);
        }
        body.absent = self.absent_for_mark(change, base);
        self.fork_for_mark(change, &mut body);
        self.kept_for_mark(change, base, &mut body);
        self.lost_for_mark(change, base, &mut body);
        (tip, body)
    }

    fn base(base: &Base, body: &mut MarkBody) -> Tip {
        body.committed = base.committed;
        body.attach = base.attach;
        body.last_view = base.last.view;
        body.last_parent = base.parent;
        body.last_digest = base.digest;
        body.released = body.released.max(base.last.sequence);
        (body.whole, body.learned_since, body.learned_upto) = (true, base.since, base.tip);
        body.view_frame = base.view_frame.clone();
        body.requests = base.requests.to_format();
        Tip {
            name: base.last,
            parent: base.parent,
            digest: base.digest,
            version: base.version,
            chunk: base.open_chunk.0,
            chunk_blocks: base.open_chunk.1,
        }
    }

    /// All that is left of a shard whose deleted mark lies there.
    pub fn keep_promise(&mut self, promised: ViewNumber, at: At, segs: &mut Segments) {
        segs.note(at.segment, self.id, None);
        (self.promised, self.mark) = (promised, Some((at.segment, Sequence(0))));
        (self.last_append, self.last_mark) = (at.append, at.append);
    }

    /// Whether something of it is lost, or may be.
    pub fn is_wounded(&self) -> bool {
        self.suspect || !self.holes.is_empty()
    }

    /// True if a cut may still take a frame. Entries that were learned beyond the last frame here are of none.
    pub fn may_cut(&self, sequence: Sequence) -> bool {
        sequence > self.committed && sequence <= self.tip.name.sequence
    }

    /// What of this shard stands against giving up a segment with frames from `min` to `max`.
    pub fn holds(&self, max: Sequence, short_of_space: bool) -> bool {
        let kept = !short_of_space && self.keep.is_some_and(|k| max >= k);
        // The frame before a hole tells where it begins, those behind it where it ends; a mark must not jump over it.
        let hole = self.holes.iter().any(|h| max.0 + 1 >= h.from);
        max > self.committed || kept || hole
    }

    /// Bytes of a mark's tables: the view's frame and the requests.
    pub fn mark_tables_len(&self) -> usize {
        self.views.last().map_or(0, |v| v.1.bytes().len())
            + self.requests.encoded_len()
            + self.history.pins.kept.pins.len() * PIN_BYTES
            + if self.fork.is_some() { FORK_BYTES } else { FLAT_BYTES }
            + ABSENT_BYTES
            + self.history.lost_to_forks.count() * LOST_VERSION_BYTES
            + self.closed.mark_bytes()
    }

    /// Whether the state must be marked anew before a segment goes that holds frames up to `max`.
    pub fn needs_mark(&self, segment: u32, seq: u64, max: Sequence, segs: &Segments) -> bool {
        match self.mark {
            None => true,
            Some((s, released)) => s == segment || (max.0 > 0 && (segs.get(s).seq <= seq || released < max)),
        }
    }
}

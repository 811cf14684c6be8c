//! One shard as its frames in log order make it: last frame, map, places, requests, and what a cut would bring back.
//!
//! Invariants:
//! - Log order decides: recovery and the running engine apply the same frames by the same rules and get the same.
//! - A frame with the next sequence extends. One with a sequence that is taken by another frame cuts back first; it
//!   never does at or below `committed` (rule E7). One that leaves a gap makes a hole, unless the gap is known to
//!   have been released.
//! - For every frame above `committed` there is an `Undo` with the extents that it displaced; those stay live.

use crate::chunks::{self, ChunkIndex, Run};
use crate::frames::{FrameIndex, FramePlace};
use crate::map::{Crcs, Extent, ExtentMap, Outcome};
use crate::segments::Segments;
use crate::{Base, FrameName, MarkChange, RequestTable, ShardState};
use freebs_format::{AttachBody, CarryBody, ExtentKind, FrameHead, FrameKind, MarkBody, ViewBody, hide};
use freebs_types::{BLOCK, ChunkId, Hash32, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Sequences and versions from outside lie below this, so that counting on from them can't overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// Where a frame was found or put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub segment: u32,
    pub head_at: u32,
    pub data_at: u32,
    pub append: u64,
}

/// A shard's last frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tip {
    pub name: FrameName,
    pub parent: Hash32,
    pub digest: Hash32,
    pub version: Version,
    pub chunk: ChunkId,
    pub chunk_blocks: u32,
}

impl Tip {
    fn of(head: &FrameHead) -> Self {
        let h = head.header();
        Self {
            name: FrameName { view: head.view(), sequence: head.seq(), hid: h.hid() },
            parent: h.parent_token(),
            digest: h.digest(),
            version: h.last_version(),
            chunk: h.chunk(),
            chunk_blocks: h.chunk_offset.get() + h.data_blocks(),
        }
    }
}

/// What it takes to bring back the state before an uncommitted frame, or before the jump that an uncommitted mark
/// made.
#[derive(Debug)]
struct Undo {
    sequence: Sequence,
    before: Tip,
    head: Option<FrameHead>,
    displaced: Vec<(u32, Extent)>,
}

/// A range of lost frames. A soft one goes away when a mark says that they had been released.
#[derive(Clone, Copy, Debug)]
struct Hole {
    from: u64,
    to: u64,
    hard: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub id: ShardId,
    pub tip: Tip,
    pub committed: Sequence,
    pub promised: ViewNumber,
    pub secret: Option<(ViewNumber, Hash32)>,
    views: Vec<(Sequence, FrameHead)>,
    attaches: Vec<(Sequence, AttachBody)>,
    requests: RequestTable,
    holes: Vec<Hole>,
    /// Frames up to here may have had their blocks moved into an append that is lost. Only while the log is replayed.
    moved: u64,
    /// Up to here those of them that are no longer in the log are holes already.
    missed: u64,
    pub suspect: bool,
    pub released: Sequence,
    pub map: ExtentMap,
    pub chunks: ChunkIndex,
    pub frames: FrameIndex,
    undo: VecDeque<Undo>,
    /// What is committed as the chain says, although frames up to there may not be here yet.
    hint: Sequence,
    /// Frames from here on stay in the log.
    pub keep: Option<Sequence>,
    /// Append of the last frame or mark.
    pub last_append: u64,
    /// Segment of the newest mark and what it says is released.
    pub mark: Option<(u32, Sequence)>,
    /// Segments with frames, and with marks that name frames, that were cut since the last frame.
    stale: BTreeSet<u32>,
    /// Repairs of frames of which nothing in the log has told yet: the first copy of such a frame was given up, and the
    /// mark that says so lies further on. Only while the log is replayed.
    orphans: BTreeMap<Sequence, (FrameHead, At)>,
    /// Segments with marks that name frames above `committed`, and the highest such frame.
    pub marks: BTreeMap<u32, Sequence>,
    outcome: Outcome,
    /// What a frame displaced for good. It is given up after all of the frame has been placed: a chunk must not go
    /// because the first of its blocks are dead already while the others have not been named yet.
    freed: Vec<Extent>,
}

fn hid8(head: &FrameHead) -> u64 {
    u64::from_le_bytes(head.header().hid[..8].try_into().expect("eight bytes"))
}

/// A head with bytes of its own, so that a small frame does not keep a large buffer alive.
fn own(head: &FrameHead) -> FrameHead {
    FrameHead::parse(&mut bytes::Bytes::copy_from_slice(head.bytes())).expect("parsed before")
}

impl Shard {
    pub fn new(id: ShardId) -> Self {
        Self { id, ..Self::default() }
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
        let (s, h) = (head.seq(), head.header());
        if s.0 == 0 || s.0 >= NUMBER_MAX || h.first_version.get() >= NUMBER_MAX {
            return Err("frame with an impossible number");
        }
        if !chunks::fits(h.chunk_offset.get(), h.data_blocks()) {
            return Err("frame outside its chunk");
        }
        segs.note(at.segment, self.id, Some(s));
        if repair {
            return self.repair(head, at, segs);
        }
        if s <= self.tip.name.sequence {
            let same = match self.frames.get(s) {
                Some(p) => p.hid == hid8(head),
                None => s <= self.released || (s == self.tip.name.sequence && self.tip.name.hid == h.hid()),
            };
            if same {
                return Ok(());
            }
            if s <= self.committed {
                return Err("frame differs from a committed one of its sequence");
            }
            self.cut(Sequence(s.0 - 1), segs);
            if self.tip.name.sequence >= s {
                self.step_back(head, damaged);
            }
        }
        let next = self.tip.name.sequence.0 + 1;
        if s.0 > next {
            self.add_hole(next, s.0 - 1, self.may_miss(damaged));
            self.adopt_orphans(segs);
        } else if head.view() != self.tip.name.view
            && self.tip.name.sequence.0 > 0
            && hide(&h.parent_token()) != self.tip.name.hid
        {
            // The frame that cut this tail is lost: what we have as last does not belong to the chain.
            if self.tip.name.sequence > self.committed {
                self.cut(Sequence(s.0 - 2), segs);
            }
            self.add_hole(s.0 - 1, s.0 - 1, true);
        }
        self.extend(head, at, segs);
        Ok(())
    }

    /// Makes the frame before `head` the last one. What is the last one is on a branch that `head` cuts, but there is
    /// no undo: a mark, written on that branch, put the shard there, and the frames before it are not in the log. If
    /// they were released, as a later mark will say, nothing of them is missed; else they are lost.
    fn step_back(&mut self, head: &FrameHead, damaged: u64) {
        let (s, h) = (head.seq().0, head.header());
        let hard = self.may_miss(damaged);
        self.tip = Tip::default();
        self.holes.retain(|hole| hole.from < s);
        self.holes.iter_mut().for_each(|hole| hole.to = hole.to.min(s - 1));
        if s == 1 {
            return;
        }
        // All that is known of the frame before is what its follower says.
        self.tip.name.view = match head.kind() {
            FrameKind::View => ViewBody::decode(head.body()).map_or(head.view(), |v| v.pred),
            _ => head.view(),
        };
        (self.tip.name.sequence, self.tip.name.hid) = (Sequence(s - 1), hide(&h.parent_token()));
        self.tip.version = Version(h.first_version.get().saturating_sub(1));
        if self.holes.iter().all(|hole| hole.to < s - 1) {
            self.add_hole(s - 1, s - 1, hard);
        }
    }

    fn extend(&mut self, head: &FrameHead, at: At, segs: &mut Segments) {
        let s = head.seq();
        let known = head.header().committed_seq().0.min(s.0 - 1).max(self.hint.0.min(s.0));
        self.set_committed(Sequence(known), segs);
        if s > self.committed {
            self.undo.push_back(Undo {
                sequence: s,
                before: self.tip,
                head: Some(head.clone()),
                displaced: Vec::new(),
            });
        }
        self.tip = Tip::of(head);
        self.frames.push(s, Self::place_of(head, at));
        self.promised = self.promised.max(head.view());
        self.last_append = at.append;
        self.suspect = false;
        for by in std::mem::take(&mut self.stale) {
            segs.pin(at.segment, by);
        }
        self.note_body(head);
        self.place_updates(head, at, segs);
    }

    fn place_of(head: &FrameHead, at: At) -> FramePlace {
        FramePlace {
            segment: at.segment,
            head_at: at.head_at,
            head_len: head.bytes().len() as u32,
            data_at: at.data_at,
            data_len: head.header().data_len.get(),
            hid: hid8(head),
        }
    }

    /// View, attachment and request numbers.
    fn note_body(&mut self, head: &FrameHead) {
        let s = head.seq();
        match head.kind() {
            FrameKind::View => {
                let i = self.views.partition_point(|v| v.0 <= s);
                self.views.insert(i, (s, own(head)));
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

    fn place_updates(&mut self, head: &FrameHead, at: At, segs: &mut Segments) {
        let h = head.header();
        if h.data_blocks() > 0 {
            let run = Run { first: h.chunk_offset.get(), count: h.data_blocks(), segment: at.segment, at: at.data_at };
            self.chunks.place(h.chunk(), run, |s, n| segs.count_live(s, n));
        }
        for u in head.updates() {
            let table: Option<Rc<[u32]>> = (u.crcs.len() > 1).then(|| u.crcs.iter().map(|c| c.get()).collect());
            for (e, first) in u.extents() {
                let data = e.kind == ExtentKind::Data;
                let crcs = match (&table, data) {
                    (_, false) => Crcs::None,
                    (None, true) => Crcs::One(u.crcs[0].get()),
                    (Some(table), true) => Crcs::Many { table: table.clone(), at: first - u.first_block },
                };
                let extent = Extent {
                    len: e.range.len,
                    kind: e.kind,
                    version: u.version,
                    sequence: head.seq(),
                    chunk: if data { h.chunk() } else { ChunkId::default() },
                    offset: if data { h.chunk_offset.get() + first } else { at.segment },
                    crcs,
                };
                self.merge(e.range.start.0, extent, segs);
            }
        }
        self.release_freed(segs);
        self.chunks.settle(h.chunk(), h.chunk_offset.get(), h.data_blocks());
    }

    /// Merges an entry into the map and keeps the counts of what is live.
    fn merge(&mut self, start: u32, e: Extent, segs: &mut Segments) {
        let (by, kind, home) = (e.sequence, e.kind, e.offset);
        if kind != ExtentKind::Data {
            segs.get_mut(home).tomb_list.push((self.id, start, e.len));
        }
        let (chunk, mut out) = (e.chunk, std::mem::take(&mut self.outcome));
        self.map.insert(start, e, &mut out);
        for (a, len) in out.placed.drain(..) {
            match kind {
                ExtentKind::Data => {
                    self.chunks.acquire(chunk, home + (a - start), len, |s, n| segs.count_live(s, n));
                }
                _ => segs.count_tombs(home, i64::from(len)),
            }
        }
        for (a, e) in out.displaced.drain(..) {
            self.set_aside(by, a, e);
        }
        for (a, e, winner) in out.lost.drain(..) {
            if self.undo_of(winner).is_none() {
                continue;
            }
            for (a, e) in self.not_aside(a, e) {
                self.acquire(&e, segs);
                self.set_aside(winner, a, e);
            }
        }
        self.outcome = out;
    }

    /// The parts of an entry that are not set aside already: a carry may bring again what an uncommitted frame has
    /// displaced, and it must be counted once.
    fn not_aside(&self, at: u32, e: Extent) -> Vec<(u32, Extent)> {
        let mut parts = vec![(at, e)];
        for (from, aside) in self.undo.iter().flat_map(|u| &u.displaced) {
            let to = from + aside.len;
            let covers = |(a, e): &(u32, Extent)| e.key() == aside.key() && *from < a + e.len && *a < to;
            for (a, e) in parts.extract_if(.., |p| covers(p)).collect::<Vec<_>>() {
                if a < *from {
                    parts.push((a, e.piece(0, from - a)));
                }
                if to < a + e.len {
                    parts.push((to, e.piece(to - a, a + e.len - to)));
                }
            }
        }
        parts
    }

    fn undo_of(&mut self, s: Sequence) -> Option<&mut Undo> {
        let i = self.undo.binary_search_by_key(&s, |u| u.sequence).ok()?;
        self.undo.get_mut(i)
    }

    /// Keeps a live piece that frame `by` displaced while that frame may be cut; else it is free.
    fn set_aside(&mut self, by: Sequence, at: u32, e: Extent) {
        match self.undo_of(by) {
            Some(u) => u.displaced.push((at, e)),
            None => self.freed.push(e),
        }
    }

    fn release_freed(&mut self, segs: &mut Segments) {
        let mut freed = std::mem::take(&mut self.freed);
        for e in freed.drain(..) {
            self.release(&e, segs);
        }
        self.freed = freed;
    }

    fn acquire(&mut self, e: &Extent, segs: &mut Segments) {
        if e.is_data() {
            self.chunks.acquire(e.chunk, e.offset, e.len, |s, n| segs.count_live(s, n));
        } else {
            segs.count_tombs(e.offset, i64::from(e.len));
        }
    }

    fn release(&mut self, e: &Extent, segs: &mut Segments) {
        if e.is_data() {
            self.chunks.release(e.chunk, e.offset, e.len, |s, n| segs.count_died(s, n));
        } else {
            segs.count_tombs(e.offset, -i64::from(e.len));
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
        if !self.fill_hole(s.0) {
            if s <= self.released.min(self.committed) {
                // Its first copy was given up. This one is where its blocks are.
                self.place_updates(head, at, segs);
            } else {
                self.orphans.insert(s, (own(head), at));
            }
            return Ok(());
        }
        if s > self.committed {
            let i = self.undo.partition_point(|u| u.sequence < s);
            let before = match self.undo.get_mut(i) {
                Some(u) => std::mem::replace(&mut u.before, Tip::of(head)),
                None => self.tip,
            };
            self.undo.insert(i, Undo { sequence: s, before, head: Some(head.clone()), displaced: Vec::new() });
        }
        self.frames.replace(s, place);
        if s == self.tip.name.sequence {
            self.tip = Tip::of(head);
        }
        self.note_body(head);
        self.place_updates(head, at, segs);
        Ok(())
    }

    /// Whether a repair would have something to mend. Those that have not are not written: replayed without the frame
    /// that they are not for, they would be taken for it.
    pub fn is_for(&self, head: &FrameHead) -> bool {
        let s = head.seq();
        match self.frames.get(s) {
            Some(p) => p.hid == hid8(head),
            None => self.holes.iter().any(|h| h.from <= s.0 && s.0 <= h.to),
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
            if e.version.0 >= NUMBER_MAX || e.sequence.0 >= NUMBER_MAX || (data && !chunks::fits(e.offset, e.range.len))
            {
                return Err("carried entry outside its chunk");
            }
            if data {
                let run = Run { first: e.offset, count: e.range.len, segment: at.segment, at: data_at };
                data_at += e.range.len * BLOCK as u32;
                self.chunks.place(e.chunk, run, |s, n| segs.count_live(s, n));
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
            let key = extent.key();
            self.merge(start, extent, segs);
            self.release_freed(segs);
            if data {
                self.chunks.settle(e.chunk, e.offset, e.range.len);
            } else {
                for (home, len) in self.map.rehome(start, start + e.range.len, at.segment, |e| e.key() == key) {
                    segs.count_tombs(at.segment, i64::from(len));
                    segs.count_tombs(home, -i64::from(len));
                }
            }
        }
        Ok(())
    }

    /// Applies a mark: takes what is newer in it. `head` is the mark's own.
    pub fn mark(&mut self, head: &FrameHead, body: &MarkBody, at: At, damaged: u64, segs: &mut Segments) {
        segs.note(at.segment, self.id, None);
        let (s, h) = (head.seq(), head.header());
        if s.0 >= NUMBER_MAX || h.first_version.get() >= NUMBER_MAX || h.chunk_offset.get() > chunks::ORDINALS_MAX {
            return;
        }
        self.promised = self.promised.max(body.promised);
        if body.secret_view.0 > 0 && self.secret.is_none_or(|(v, _)| v <= body.secret_view) {
            self.secret = Some((body.secret_view, body.secret));
        }
        self.mark = Some((at.segment, body.released));
        if s > self.committed {
            let highest = self.marks.entry(at.segment).or_default();
            *highest = s.max(*highest);
        }
        let last = self.tip.name;
        if s == last.sequence && s.0 > 0 && last.hid != h.hid() && s > self.committed {
            // Our last frame was cut, and the one that took its place is lost.
            self.cut(Sequence(s.0 - 1), segs);
            if self.tip.name.sequence == s {
                // A mark of the branch that was cut brought us there, and nothing leads back.
                self.tip = Tip::default();
                self.tip.name.sequence = Sequence(s.0 - 1);
            }
        }
        let last = self.tip.name.sequence;
        // Of the map that came before a mark, a part may be lost. That a whole segment is lost says nothing of when;
        // a map that came must count then, or nothing could ever be mended.
        let lost_since = damaged < u64::MAX && self.may_miss(damaged);
        if s > last {
            self.add_hole(last.0 + 1, s.0, self.may_miss(damaged));
            self.jump(head, body, segs);
        } else {
            self.fill_in(s, body);
        }
        self.last_append = at.append;
        if s >= last {
            self.suspect = body.suspect_tail;
            self.tip.parent = body.last_parent;
            self.tip.digest = body.last_digest;
        }
        self.released = self.released.max(body.released);
        if body.whole && lost_since {
            (self.moved, self.missed) = (s.0, 0);
        } else if body.whole {
            self.holes.retain(|h| h.from > s.0);
            (self.moved, self.missed) = (0, 0);
        }
        self.miss_moved();
        self.trim_holes();
        self.set_committed(Sequence(body.committed.0.min(s.0)), segs);
        self.adopt_orphans(segs);
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
    fn jump(&mut self, head: &FrameHead, body: &MarkBody, segs: &mut Segments) {
        let (s, h) = (head.seq(), head.header());
        if body.whole || body.committed >= s {
            for u in std::mem::take(&mut self.undo) {
                for (_, e) in u.displaced {
                    self.release(&e, segs);
                }
            }
            self.views = body.view_frame.iter().map(|f| (f.seq(), own(f))).collect();
            self.attaches = vec![(Sequence(0), body.attach)];
            self.requests = RequestTable::from_format(&body.requests);
        } else {
            self.undo.push_back(Undo { sequence: s, before: self.tip, head: None, displaced: Vec::new() });
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
        let mut aside = Vec::new();
        while self.undo.back().is_some_and(|u| u.sequence > to) {
            let u = self.undo.pop_back().expect("just seen");
            for (e, _) in u.head.iter().flat_map(FrameHead::updates).flat_map(|up| up.extents().collect::<Vec<_>>()) {
                let (a, b) = (e.range.start.0, e.range.end() as u32);
                for (_, gone) in self.map.take(a, b, |x| x.sequence == u.sequence) {
                    self.release(&gone, segs);
                }
            }
            aside.extend(u.displaced);
            self.tip = u.before;
        }
        let mut out = std::mem::take(&mut self.outcome);
        for (a, e) in aside {
            if e.sequence > to {
                self.release(&e, segs);
                continue;
            }
            // What comes back was counted as live all the time; only what it meets can change that.
            let by = e.sequence;
            self.map.insert(a, e, &mut out);
            for (a, e) in out.displaced.drain(..) {
                self.set_aside(by, a, e);
            }
            for (a, e, winner) in out.lost.drain(..) {
                self.set_aside(winner, a, e);
            }
        }
        self.release_freed(segs);
        self.outcome = out;
        self.stale.extend(self.frames.cut(to));
        // A mark that names a frame of the branch must not outlive the frame that cuts it.
        self.stale.extend(self.marks.extract_if(.., |_, s| *s > to).map(|(segment, _)| segment));
        self.requests.cut(to);
        self.views.retain(|v| v.0 <= to);
        self.attaches.retain(|a| a.0 <= to);
        let last = self.tip.name.sequence.0;
        self.holes.retain(|h| h.from <= last);
        if let Some(h) = self.holes.last_mut() {
            h.to = h.to.min(last);
        }
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
        self.committed = to;
        self.marks.retain(|_, s| *s > to);
        while self.undo.front().is_some_and(|u| u.sequence <= to) {
            let u = self.undo.pop_front().expect("just seen");
            for (_, e) in u.displaced {
                self.release(&e, segs);
            }
        }
        self.prune();
    }

    /// The shard was deleted: nothing of it is live.
    pub fn forget(mut self, holder: u32, segs: &mut Segments) {
        for u in std::mem::take(&mut self.undo) {
            for (_, e) in u.displaced {
                self.release(&e, segs);
            }
        }
        let map = std::mem::take(&mut self.map);
        for (_, e) in map.iter() {
            self.release(e, segs);
        }
        segs.forget(self.id, holder);
    }

    /// Whether append `damaged` (0 for none), of which something is lost, may have held frames behind our last one. The
    /// very append of our last frame may, too: its heads are lost from one of them on.
    pub fn may_miss(&self, damaged: u64) -> bool {
        damaged > 0 && self.last_append <= damaged
    }

    /// An append is lost. It may have held blocks of ours that cleaning moved there. Their frames were given up, so that
    /// no gap in the sequence tells of them.
    pub fn lost_append(&mut self) {
        self.moved = self.moved.max(self.tip.name.sequence.0);
        self.missed = 0;
        self.miss_moved();
    }

    /// From here on frames are given up by an engine that knows what is lost.
    pub fn replayed(&mut self) {
        (self.moved, self.missed) = (0, 0);
    }

    /// Of what a lost append may have held, all that was given up is missed: only a frame that is still in the log has
    /// its blocks there, too.
    fn miss_moved(&mut self) {
        let to = self.moved.min(self.released.0);
        if to <= self.missed {
            return;
        }
        let absent = self.frames.absent(self.missed + 1, to);
        self.missed = to;
        for (from, to) in absent {
            // What was missed there before is part of the new hole, or goes beyond it.
            let old = self.holes.extract_if(.., |h| h.from <= to && from <= h.to).collect::<Vec<_>>();
            let before = old.iter().filter(|h| h.from < from).map(|h| Hole { to: from - 1, ..*h });
            let behind = old.iter().filter(|h| h.to > to).map(|h| Hole { from: to + 1, ..*h });
            self.holes.extend(before.chain(behind));
            self.holes.push(Hole { from, to, hard: true });
        }
        self.holes.sort_by_key(|h| h.from);
    }

    fn add_hole(&mut self, from: u64, to: u64, hard: bool) {
        self.holes.push(Hole { from, to, hard });
        self.trim_holes();
    }

    fn trim_holes(&mut self) {
        let released = self.released.0;
        for h in &mut self.holes {
            if !h.hard {
                h.from = h.from.max(released + 1);
            }
        }
        self.holes.retain(|h| h.from <= h.to);
    }

    fn fill_hole(&mut self, s: u64) -> bool {
        let Some(i) = self.holes.iter().position(|h| h.from <= s && s <= h.to) else { return false };
        let h = self.holes.remove(i);
        for part in [Hole { to: s - 1, ..h }, Hole { from: s + 1, ..h }] {
            if part.from <= part.to {
                self.holes.push(part);
            }
        }
        self.holes.sort_by_key(|h| h.from);
        true
    }

    /// The end of the last hole: entries placed before it may have been overwritten by what is lost.
    pub fn last_hole(&self) -> Option<Sequence> {
        self.holes.iter().map(|h| Sequence(h.to)).max()
    }

    /// Map entries that no cut can take back, in a range.
    pub fn committed_view(&self, start: u32, end: u32) -> ExtentMap {
        let mut view = ExtentMap::default();
        let mut out = Outcome::default();
        for (a, e, skip, len) in self.map.range(start, end) {
            if e.sequence <= self.committed || self.undo.is_empty() {
                view.insert(a, e.piece(skip, len), &mut out);
            }
        }
        for (a, e) in self.undo.iter().flat_map(|u| &u.displaced) {
            let (from, to) = ((*a).max(start), (*a + e.len).min(end));
            if e.sequence <= self.committed && from < to {
                view.insert(from, e.piece(from - a, to - from), &mut out);
            }
        }
        view
    }

    /// The first address from `at` on that has an entry, in force or set aside.
    pub fn next_entry(&self, at: u32) -> Option<u32> {
        let aside = self.undo.iter().flat_map(|u| &u.displaced).filter(|(a, e)| a + e.len > at).map(|(a, _)| *a);
        self.map.next(at).into_iter().chain(aside.map(|a| a.max(at))).min()
    }

    pub fn first_kept(&self) -> Sequence {
        let last = self.tip.name.sequence;
        if self.frames.get(last).is_none() { Sequence(last.0 + 1) } else { self.frames.first_kept() }
    }

    pub fn state(&self) -> ShardState {
        let view = self.views.last().and_then(|(s, f)| Some((*s, ViewBody::decode(f.body()).ok()?)));
        ShardState {
            shard: self.id,
            last: self.tip.name,
            parent: self.tip.parent,
            digest: self.tip.digest,
            version: self.tip.version,
            committed: self.committed,
            promised: self.promised,
            secret: self.secret,
            view,
            attach: self.attaches.last().map(|a| a.1).unwrap_or_default(),
            requests: self.requests.clone(),
            holes: self.holes.iter().map(|h| (Sequence(h.from), Sequence(h.to))).collect(),
            suspect_tail: self.suspect,
            first_kept: self.first_kept(),
            open_chunk: (self.tip.chunk, self.tip.chunk_blocks),
        }
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
            deleted: false,
            suspect_tail: self.suspect && !change.trusted,
            whole: false,
            view_frame: self.views.last().map(|v| v.1.clone()),
            requests: self.requests.to_format(),
        };
        let mut tip = self.tip;
        if let Some(base) = change.base.as_deref().filter(|b| b.last.sequence >= tip.name.sequence) {
            tip = Self::base(base, &mut body);
        }
        (tip, body)
    }

    fn base(base: &Base, body: &mut MarkBody) -> Tip {
        body.committed = base.committed;
        body.attach = base.attach;
        body.last_view = base.last.view;
        body.last_parent = base.parent;
        body.last_digest = base.digest;
        body.released = body.released.max(base.last.sequence);
        body.suspect_tail = false;
        body.whole = true;
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

    /// The deleted mark's body.
    pub fn deleted_body(&self) -> MarkBody {
        MarkBody { promised: self.promised, deleted: true, ..MarkBody::default() }
    }

    /// Whether something of it is lost, or may be.
    pub fn is_wounded(&self) -> bool {
        self.suspect || !self.holes.is_empty()
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
        self.views.last().map_or(0, |v| v.1.bytes().len()) + self.requests.encoded_len()
    }

    /// Whether the state must be marked anew before a segment goes that holds frames up to `max`.
    pub fn needs_mark(&self, segment: u32, seq: u64, max: Sequence, segs: &Segments) -> bool {
        match self.mark {
            None => true,
            Some((s, released)) => s == segment || (max.0 > 0 && (segs.get(s).seq <= seq || released < max)),
        }
    }
}

impl Shard {
    /// Blocks of trims and zeroes, in force or set aside, by the segment that records them; for checks.
    pub fn tombs(&self, mut each: impl FnMut(u32, u32)) {
        let aside = self.undo.iter().flat_map(|u| &u.displaced).map(|(_, e)| e);
        for e in self.map.iter().map(|(_, e)| e).chain(aside).filter(|e| !e.is_data()) {
            each(e.offset, e.len);
        }
    }

    /// Data entries in force or set aside; for checks.
    pub fn data_blocks(&self) -> u64 {
        let aside = self.undo.iter().flat_map(|u| &u.displaced).map(|(_, e)| e);
        let all = self.map.iter().map(|(_, e)| e).chain(aside);
        all.filter(|e| e.is_data()).map(|e| u64::from(e.len)).sum()
    }
}

//! Everything the engine knows, without I/O: shards, segments, queue, counters; and what durable frames do to it.
//!
//! Invariants: maps and indexes change only by `apply_entry`, with frames that are durable (or were found so by
//! recovery). Nothing here is borrowed across an await.

use super::brought::Brought;
use super::cleaning::Cleaning;
use super::moves::Moves;
use super::queue::{Job, Queued};
use super::rot::Rot;
use crate::CleanMutant;
use crate::log::geometry::{Geometry, HEADROOM_SEGMENTS, LAST_SEGMENTS, OpenSegment};
use crate::log::lost::LostAppends;
use crate::log::openings::Opened;
use crate::log::place::At;
use crate::log::segments::{SegmentState, Segments};
use crate::map::extents::ENTRY_BYTES;
use crate::map::levels::Maps;
use crate::shard::Shard;
use crate::shard::forks::Forks;
use crate::shard::history::Hints;
use crate::shard::places::Packing;
use crate::{Counters, Durable, Event, EventKind, Finding, Listener, MarkChange, Options, RuleMutant, Space};
use bytes::Bytes;
use freebs_format::{CarryBody, FrameHead, FrameKind, MarkBody};
use freebs_io::AlignedBuf;
use freebs_types::{BLOCK, Error, ErrorKind, Result, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::Notify;

/// Events kept for `events`; older ones are dropped.
const EVENTS_MAX: usize = 1000;

/// Places of frames of all shards that are kept in memory, and those of one shard at least. Peers that ask for older
/// ones learn by map.
const FRAME_PLACES: usize = 131_072;
const FRAME_PLACES_MIN: usize = 128;

/// The finding at the place of a frame that does not count.
pub(crate) fn finding(head: &FrameHead, at: At, why: &'static str) -> Finding {
    let what = format!("shard {}, sequence {}: {why}", head.shard(), head.seq());
    Finding { segment: Some(at.segment), offset: u64::from(at.head_at), what }
}

pub(crate) struct Core {
    pub geometry: Geometry,
    pub shards: BTreeMap<ShardId, Shard>,
    pub forks: Forks,
    pub segs: Segments,
    pub queue: VecDeque<Queued>,
    pub open: Option<OpenSegment>,
    /// The open segment ends with the footer of an index that was cut short when it was closed. It is erased before
    /// anything is appended: the next index may begin with the same bytes, and be cut short where it would make the old
    /// one whole, which lacks what came after it.
    pub stale_footer: bool,
    /// The segment that is opened as soon as the open one has its index.
    pub opening: Option<u32>,
    pub next_append: u64,
    pub brought: Brought,
    pub next_seq: u64,
    /// Number of the segment that was opened last. Torn appends may have had those in between.
    pub last_seq: u64,
    /// The segments that were opened last.
    pub opened: Opened,
    /// Whether the last append is known to be durable by a later one, or there is none.
    pub proven: bool,
    /// Highest append known to be lost, while the log is replayed.
    pub damaged: u64,
    /// The last appends that were found to be lost together then. Every append says so: it does not rely on them.
    pub known_lost: Option<(u64, u64)>,
    /// The appends that are lost then, or may be: maps that were learned up to the last one don't count. Where in the log a segment
    /// lay that is lost as a whole is not known, but there is an end to it.
    pub lost: LostAppends,
    /// The append that recovery applies.
    pub replaying: u64,
    /// The file system refused to let the device grow.
    pub no_growth: bool,
    pub growing: bool,
    /// What is next finds no segment. If it may be refused it is.
    pub no_segment: bool,
    /// The file system was asked once more for room since a segment was opened.
    pub asked_again: bool,
    pub writing: bool,
    /// The open segment gets a first append without frames.
    pub rolled: bool,
    pub failed: Option<Error>,
    pub closing: bool,
    pub running: bool,
    pub cleaning: Cleaning,
    pub counters: Counters,
    events: VecDeque<Event>,
    pub listener: Option<Rc<dyn Listener>>,
    pub maps: Maps,
    /// While the log is replayed: what is known to be kept at its end.
    pub hints: Hints,
    pub rot: Rot,
    /// Rung when the map has something to do, or room.
    pub map_wake: Rc<Notify>,
    /// Rung when trims are to be looked up.
    pub tomb_wake: Rc<Notify>,
    /// Rung when a segment was taken: the pool may be short.
    pub pool: Rc<Notify>,
}

impl Core {
    /// Appends were found to be lost, and it is known now that they were. Those that touch are one stretch.
    pub fn knows_lost(&mut self, from: u64, to: u64) {
        let (from, to) = (from.max(1), to.max(1));
        self.known_lost = Some(match self.known_lost {
            Some((first, last)) if from <= last + 1 && first <= to + 1 => (first.min(from), last.max(to)),
            Some(later) if to < later.0 => later,
            _ => (from, to),
        });
    }

    pub fn new(geometry: Geometry, segments: u32, options: Options) -> Self {
        let mut segs = Segments::default();
        for _ in 0..segments {
            segs.push();
        }
        Self {
            geometry,
            shards: BTreeMap::new(),
            forks: Forks::default(),
            segs,
            queue: VecDeque::new(),
            open: None,
            stale_footer: false,
            opening: None,
            next_append: 1,
            brought: Brought::default(),
            next_seq: 1,
            last_seq: 0,
            opened: Opened::default(),
            proven: true,
            damaged: 0,
            known_lost: None,
            lost: LostAppends::default(),
            replaying: u64::MAX,
            no_growth: false,
            growing: false,
            no_segment: false,
            asked_again: false,
            writing: false,
            rolled: false,
            failed: None,
            closing: false,
            running: false,
            cleaning: Cleaning::default(),
            counters: Counters::default(),
            events: VecDeque::new(),
            listener: None,
            maps: Maps::new(options),
            hints: Hints::new(),
            rot: Rot::default(),
            map_wake: Rc::default(),
            tomb_wake: Rc::default(),
            pool: Rc::default(),
        }
    }

    /// How places of chunks are packed. It is the same while the log is open, or places would be mistaken.
    pub fn packing(&self) -> Packing {
        Packing::of(&self.geometry)
    }

    /// The page that says that segment `id` is opened now, and where it goes.
    pub fn opening_page(&mut self, id: u32) -> (u64, AlignedBuf) {
        assert_eq!(self.opened.next(), Some(id), "the page before names a segment that is opened as the next one");
        self.opened.put(self.next_seq, id);
        let next = self.segs.plan(Some(id), self.geometry.limit_segments);
        self.page_of_openings(next)
    }

    /// The page that says that segment `id` is opened next, unless the last one does.
    pub fn naming_page(&mut self, id: u32) -> Option<(u64, AlignedBuf)> {
        (self.opened.next() != Some(id)).then(|| self.page_of_openings(Some(id)))
    }

    fn page_of_openings(&mut self, next: Option<u32>) -> (u64, AlignedBuf) {
        self.segs.set_planned(next);
        let (at, page) = self.opened.page(&self.geometry, next);
        self.counters.index_bytes += page.len() as u64;
        (at, page)
    }

    pub fn event(&mut self, kind: EventKind, text: impl Into<String>) {
        // Checksum errors are counted where they are met, told or not.
        if kind == EventKind::Damage {
            self.counters.damage += 1;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { kind, text: text.into() });
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    pub fn shard(&self, id: ShardId) -> Result<&Shard> {
        if let Some(e) = self.failed.as_ref().filter(|e| e.kind == ErrorKind::DeviceFailed) {
            return Err(e.clone());
        }
        self.shards.get(&id).ok_or_else(|| Error::not_found(format!("no shard {id} on this device")))
    }

    /// True if the queue may still be filled.
    pub fn push(&mut self, q: Queued) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.queue.push_back(q);
        true
    }

    /// Whether the writer may stop: nothing more is to be written.
    pub fn is_closed(&self) -> bool {
        self.closing && self.queue.is_empty()
    }

    pub fn free_segments(&self) -> u32 {
        let used = self.segs.used_count + self.segs.map_count + self.segs.count(SegmentState::Lost);
        let there = self.segs.len() - self.segs.count(SegmentState::Bare);
        let total = if self.no_growth { there } else { self.geometry.limit_segments.max(self.segs.len()) };
        total.saturating_sub(used)
    }

    /// True if the device may still give more segments than are ready.
    pub fn can_grow(&self) -> bool {
        self.more_segments() && (!self.no_growth || self.growing)
    }

    /// Whether the device may have more segments than are ready, if the file system has room for them.
    pub fn more_segments(&self) -> bool {
        self.segs.len() < self.geometry.limit_segments || self.segs.count(SegmentState::Bare) > 0
    }

    /// Whether the file system, which has refused, is asked once more for room: it may have come back, and the log
    /// must not end for want of asking.
    pub fn asks_again(&mut self) -> bool {
        let again = self.no_growth && self.more_segments() && (self.growing || !self.asked_again);
        if again {
            (self.asked_again, self.growing) = (true, true);
        }
        again
    }

    /// True if a segment may be opened as soon as the device has grown.
    pub fn waits_for_growth(&self) -> bool {
        self.can_grow() && self.may_fill() && !self.may_open()
    }

    /// Takes moves out of the queue that no segment can be opened for. Nothing is lost by it. Marks that were put in front of
    /// them come in front of what is next.
    pub fn drop_moves(&mut self) -> bool {
        let behind = self.queue.iter().find(|q| !matches!(q, Queued::Suspect(_)));
        if !matches!(behind, Some(Queued::Job(Job::Move(_)))) {
            return false;
        }
        let mut moves = Moves::default();
        self.take_marks_back();
        while let Some(Queued::Job(Job::Move(m))) = self.queue.pop_front_if(|q| matches!(q, Queued::Job(Job::Move(_))))
        {
            moves.count(&m);
            self.counters.mended_blocks -= m.mends();
        }
        self.moves_done(moves);
        moves != Moves::default()
    }

    /// Whether one more segment may be opened for what is next in the queue. The last one that is ready may only be
    /// opened if its live table makes another one usable; else none could ever be opened again.
    pub fn may_open(&self) -> bool {
        let ready = self.segs.ready_count() + self.segs.count(SegmentState::Given);
        ready >= 2 + self.headroom() && self.may_fill()
    }

    /// Ready segments that are left alone until the file system has refused another one.
    pub fn headroom(&self) -> u32 {
        if self.no_growth || !self.more_segments() { 0 } else { HEADROOM_SEGMENTS }
    }

    /// Whether one more segment may be filled with what is next in the queue.
    fn may_fill(&self) -> bool {
        // A mark that has to be in front of what frees others is as needed as that.
        let frees = matches!(self.queue.front(), Some(Queued::Job(_) | Queued::Suspect(_)));
        frees || self.free_segments() > self.last_segments()
    }

    /// Segments that only a local frame that frees others may open.
    pub fn last_segments(&self) -> u32 {
        if self.keeps_nothing_back() { 1 } else { LAST_SEGMENTS }
    }

    /// Free segments at which heads are to order nothing more.
    pub fn reserve_segments(&self) -> u32 {
        if self.keeps_nothing_back() { 1 } else { self.geometry.reserve_segments() }
    }

    fn keeps_nothing_back(&self) -> bool {
        self.cleaning.options.mutant == Some(CleanMutant::NoReserve)
    }

    pub fn space(&self) -> Space {
        let used = self.segs.used_count + self.segs.map_count;
        let free = self.free_segments();
        Space {
            segment_bytes: self.geometry.segment_bytes,
            limit_segments: used + free,
            used_segments: used,
            free_segments: free,
            reserve_segments: self.reserve_segments(),
            spare_segments: free.saturating_sub(self.last_segments() + 1),
            more_soon: self.more_soon() || self.is_giving_up(),
            live_bytes: self.segs.live_blocks * BLOCK as u64,
            poisoned: self.failed.as_ref().is_some_and(|e| e.kind == ErrorKind::DeviceFailed),
        }
    }

    /// Lets a durable frame act. Gives back why it does not count, if so.
    pub fn apply_entry(&mut self, head: &FrameHead, at: At, repair: bool) -> Result<(), Finding> {
        self.try_apply(head, at, repair).map_err(|why| finding(head, at, why))
    }

    /// The same, and gives back the reason alone.
    pub fn try_apply(&mut self, head: &FrameHead, at: At, repair: bool) -> Result<(), &'static str> {
        let id = head.shard();
        let before = self.fork_of(id);
        let done = self.apply_alone(head, at, repair);
        if head.kind() == FrameKind::Mark {
            self.fork_changed(id, before);
        }
        done
    }

    fn apply_alone(&mut self, head: &FrameHead, at: At, repair: bool) -> Result<(), &'static str> {
        if head.header().cluster_id() != self.geometry.cluster {
            return Err("frame of another cluster");
        }
        let id = head.shard();
        let packing = self.packing();
        let doubted = if head.kind() == FrameKind::Mark { self.doubted(id, at.append) } else { Vec::new() };
        let Self { shards, segs, maps, hints, forks, lost, .. } = self;
        let by_counter = segs.leaves_out(RuleMutant::ChunkIsCounter);
        let fresh = |maps: &mut Maps, forks: &Forks| {
            let mut s = Shard::new(id, maps.new_slot(id));
            s.history.hint = hints.get(&id).cloned().unwrap_or_default();
            (s.history.read_by_forks, s.history.lost_to_forks) = (forks.of(id), forks.lost_of(id));
            (s.chunks.by_counter, s.chunks.packing) = (by_counter, packing);
            s
        };
        match head.kind() {
            FrameKind::Mark => {
                let body = MarkBody::decode(head.body()).map_err(|_| "mark that can't be read")?;
                if body.deleted {
                    forks.lose(id, doubted);
                    if let Some(shard) = shards.remove(&id) {
                        maps.slots.remove(&shard.slot);
                        // Its part of the runs of history is nobody's.
                        segs.prune |= shard.history.below.is_any();
                        shard.forget(at.segment, segs);
                    } else {
                        segs.forget(id, at.segment);
                    }
                    segs.get_mut(at.segment).forgets = at.append;
                    if body.promised > ViewNumber(0) {
                        let shard = shards.entry(id).or_insert_with(|| fresh(maps, forks));
                        shard.keep_promise(body.promised, at, segs);
                    }
                    return Ok(());
                }
                let shard = shards.entry(id).or_insert_with(|| fresh(maps, forks));
                forks.is_told(id);
                if body.whole || body.learned_upto > Sequence(0) {
                    doubted.first().into_iter().for_each(|_| forks.has_to_say(id));
                    shard.history.lost_to_forks.add(doubted);
                }
                shard.mark(head, &body, at, (self.damaged, lost), segs)
            }
            FrameKind::Carry => {
                let blocks = head.header().data_blocks();
                let body = CarryBody::decode(head.body(), blocks).map_err(|_| "carry that can't be read")?;
                let shard = shards.entry(id).or_insert_with(|| fresh(maps, forks));
                maps.grown += body.entries.len() * ENTRY_BYTES + blocks as usize * 4;
                shard.carry(&body, at, segs)
            }
            _ => {
                let shard = shards.entry(id).or_insert_with(|| fresh(maps, forks));
                let extents: usize = head.updates().map(|u| u.extents().count()).sum();
                maps.grown += extents * ENTRY_BYTES + head.header().data_blocks() as usize * 4;
                let most = match maps.bounded {
                    true => (FRAME_PLACES / maps.slots.len().max(1)).max(FRAME_PLACES_MIN),
                    false => usize::MAX,
                };
                // Those of frames that may be cut stay: a repeat of one must be known for what it is.
                let open = shard.tip.name.sequence.0.saturating_sub(shard.committed.0);
                let most = most.max(usize::try_from(open).map_or(usize::MAX, |n| n.saturating_mul(2)));
                if shard.frames.len() >= most {
                    shard.frames.shrink(most - most / 8, self.replaying < u64::MAX);
                }
                shard.apply(head, at, repair, self.damaged, segs)
            }
        }
    }

    /// While the log is replayed: a frame of a whole append makes no sense. What local frames told leaves no gap, so it
    /// is missed as if the append were lost, but by their shard alone (rule E7).
    pub fn lost_frame(&mut self, head: &FrameHead, at: At) {
        let foreign = head.header().cluster_id() != self.geometry.cluster;
        if !foreign && !head.kind().is_local() {
            return;
        }
        self.segs.get_mut(at.segment).evidence = true;
        if let Some(s) = self.shards.get_mut(&head.shard()) {
            s.refused(at);
            s.lost_append();
        }
    }

    /// A cut that has come to its turn.
    pub fn apply_cut(&mut self, shard: ShardId, to: Sequence) -> Durable {
        let mut below = None;
        if let Some(s) = self.shards.get_mut(&shard) {
            below = Some(s.committed).filter(|c| to < *c);
            s.cut(to, &mut self.segs);
        }
        if let Some(c) = below {
            // A committed frame is never cut (rule V3), whoever asks for it.
            self.event(EventKind::Refused, format!("shard {shard}: a cut to {to}, below {c}, which is committed"));
        }
        Durable::Cut { shard, to }
    }

    /// Body of a mark as bytes, with the shard's last frame for its header.
    pub fn mark_frame(&self, shard: ShardId, change: &MarkChange, released: Sequence) -> freebs_format::Frame {
        let mut fresh = Shard::new(shard, 0);
        (fresh.history.read_by_forks, fresh.history.lost_to_forks) = (self.forks.of(shard), self.forks.lost_of(shard));
        let s = self.shards.get(&shard).unwrap_or(&fresh);
        let (tip, mut body) = s.mark_body(change, released);
        if self.segs.leaves_out(RuleMutant::PinsUntold) {
            (body.pins, body.retain) = (Vec::new(), Version(0));
        }
        if self.segs.leaves_out(RuleMutant::LostToForksUntold) {
            body.lost.clear();
        }
        if self.segs.leaves_out(RuleMutant::ForksUntold) && change.fork.is_none() {
            body.fork = None;
        }
        body.closed = s.closed.still(shard, &self.segs).to_vec();
        if change.has_learned() {
            body.learned_from_append = self.brought.learned_from(shard).unwrap_or(self.next_append);
        }
        let first = self.open.as_ref().map_or(0, |o| o.first_append);
        s.flat_for_mark(self.brought.flat_by(shard, change), first, &mut body);
        self.local_frame(shard, &tip, body.committed, FrameKind::Mark, &body.encode(), Vec::new())
    }

    pub fn deleted_frame(&self, shard: ShardId, promised: ViewNumber) -> freebs_format::Frame {
        let fresh = Shard::new(shard, 0);
        let s = self.shards.get(&shard).unwrap_or(&fresh);
        let body = MarkBody { promised, deleted: true, ..MarkBody::default() }.encode();
        self.local_frame(shard, &s.tip, s.committed, FrameKind::Mark, &body, Vec::new())
    }

    pub fn carry_frame(&self, shard: ShardId, body: &CarryBody, data: Vec<Bytes>) -> freebs_format::Frame {
        let fresh = Shard::new(shard, 0);
        let s = self.shards.get(&shard).unwrap_or(&fresh);
        self.local_frame(shard, &s.tip, s.committed, FrameKind::Carry, &body.encode(), data)
    }

    fn local_frame(
        &self,
        shard: ShardId,
        tip: &crate::shard::tip::Tip,
        committed: Sequence,
        kind: FrameKind,
        body: &[u8],
        data: Vec<Bytes>,
    ) -> freebs_format::Frame {
        let meta = freebs_format::FrameMeta {
            cluster: self.geometry.cluster,
            shard,
            view: tip.name.view,
            chunk: tip.chunk,
            chunk_offset: tip.chunk_blocks,
            sequence: tip.name.sequence,
            first_version: tip.version,
            committed,
            wall: 0,
        };
        freebs_format::FrameBuilder::local(&meta, kind, body, data, &tip.name.hid)
    }

    /// Live blocks per segment, counted anew; for tests.
    pub fn recount(&self) -> Vec<u64> {
        let mut out = vec![0u64; self.segs.len() as usize];
        for s in self.shards.values() {
            s.chunks.recount(|seg, n| out[seg as usize] += n as u64);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Next;
    use crate::engine::moves::Move;
    use crate::{Durable, MarkChange, Record};
    use freebs_types::{ClusterId, DeviceId, StartNumber};

    const FIRST: ShardId = ShardId::new(1, 0);
    const SECOND: ShardId = ShardId::new(2, 0);

    /// Marks that were put in front of moves, or of what is refused, hold nothing up, and are said later.
    #[test]
    fn marks_in_front_of_what_is_dropped_are_said_later() {
        let geometry = Geometry {
            cluster: ClusterId([1; 16]),
            device: DeviceId([2; 16]),
            start: StartNumber(1),
            sector: 4096,
            segment_bytes: 1 << 20,
            limit_segments: 40,
        };
        let mut core = Core::new(geometry, 0, Options::UNBOUNDED);
        core.queue.push_back(Queued::Suspect(FIRST));
        assert!(!core.drop_moves() && core.queue.len() == 1, "nothing is dropped where there is no move");
        core.queue.push_back(Queued::Job(Job::Move(Move { pieces: VecDeque::new(), mends: false })));
        core.queue.push_back(Queued::Suspect(SECOND));
        core.queue.push_back(Queued::Record(Record::Mark { shard: SECOND, change: MarkChange::default(), ticket: 7 }));
        core.cleaning.outstanding = 1;
        assert!(core.drop_moves());
        assert!(matches!(core.queue.front(), Some(Queued::Suspect(SECOND))) && core.queue.len() == 2);
        assert!(matches!(core.may_refuse(), Some((Durable::NoRoom { shard: SECOND, ticket: 7 }, _))));
        core.no_segment = true;
        assert!(matches!(core.next(&mut None), Next::Done(Durable::NoRoom { shard: SECOND, ticket: 7 })));
        assert!(core.queue.is_empty());
        let said: Vec<_> = std::iter::from_fn(|| core.forks.take_untold(|_| true)).collect();
        assert_eq!(said, [FIRST, SECOND]);
    }
}

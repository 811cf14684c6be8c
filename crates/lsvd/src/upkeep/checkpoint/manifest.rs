//! A manifest: everything but map entries that recovery needs to go on from a checkpoint, as a row of items. It is
//! written and read an item at a time, so nobody needs the memory for all of it.
//!
//! Invariants: a shard's item is of the moment when its table was frozen, as of its last committed frame (rule E4),
//! and says up to which append it is covered. Segments and chunks are written later, a few at a time: frames behind
//! the covered ones say again what changed meanwhile. What is read is held against maxima before it is believed.

mod absent;
mod forks;

use crate::FrameName;
use crate::RequestTable;
use crate::log::contents::Contents;
use crate::log::place::{NUMBER_MAX, ORDINALS_MAX, fits};
use crate::log::segments::Segment;
use crate::log::tomb_list::Stretch;
use crate::map::extents::{Crcs, Extent, Layer};
use crate::map::run::{self, Place};
use crate::shard::Shard;
use crate::shard::chunks::ChunkIndex;
use crate::shard::forks::Ended;
use crate::shard::frames::FramePlace;
use crate::shard::history::memory::ToldUpto;
use crate::shard::history::pins::Kept;
use crate::shard::holes::Hole;
use crate::shard::places::{BlockPlaces, Packing, Run};
use crate::shard::tip::Tip;
use freebs_format::disk::{LOG_NUMBER_END, SEGMENTS_MAX};
use freebs_format::{AttachBody, ClosedView, ExtentKind, FrameHead, Pin, RequestEntry, RequestFloor, Requests};
use freebs_types::{
    ChunkId, DriverId, Error, Fork, Generation, Hash32, RequestNumber, Result, Sequence, ShardId, SnapshotId, Version,
    ViewNumber, limits,
};

const SHARD: u8 = 1;
const RUN: u8 = 2;
const SEGMENT: u8 = 3;
const CHUNK: u8 = 4;
/// The kind of a run, in bits.
const OLD: u8 = 1;
const PAST: u8 = 2;
/// The two forms of a chunk's places.
const RUNS: u8 = 0;
const CELLS: u8 = 1;
const END: u8 = 5;
const COMMITTED: u8 = 6;
/// 7 was that of pins without snapshots, 10 of pins that did not say whether runs of history are to be looked through, and 8 of
/// superseded extents that did not say how they were met.
const PINS: u8 = 15;
const HISTORY: u8 = 14;
const CLOSED: u8 = 9;
const FORK: u8 = 11;
const LOST: u8 = 12;
const FLAT: u8 = 13;
const ABSENT: u8 = 16;

/// Bytes that one shard takes among those of a segment, about.
const CONTENT_BYTES: usize = 16;
/// Bytes of an item, at most: a shard has the largest.
const ITEM_BYTES_MAX: usize = 64 << 20;
/// Bytes in front of an item: what it is, and its length.
const ITEM_HEAD: usize = 1 + size_of::<u32>();

/// Places of frames that a checkpoint keeps of each shard: what a peer that was away for a moment asks for.
const FRAMES_KEPT: usize = 1024;

#[derive(Default)]
pub(crate) struct Out {
    bytes: Vec<u8>,
    /// Bytes of these that were given out.
    taken: usize,
    /// An item was larger than a reader takes.
    too_large: bool,
}

impl Out {
    /// Begins an item; `end` with what this gives back ends it.
    fn begin(&mut self, kind: u8) -> usize {
        self.u8(kind);
        self.u32(0);
        self.bytes.len()
    }
    fn end(&mut self, from: usize) {
        let len = self.bytes.len() - from;
        self.too_large |= len > ITEM_BYTES_MAX;
        self.bytes[from - size_of::<u32>()..from].copy_from_slice(&(len as u32).to_le_bytes());
    }

    /// The next `most` bytes that nobody has taken; fewer only at the `end`. An item that no reader takes is refused.
    pub fn piece(&mut self, most: usize, end: bool) -> Result<Option<&[u8]>> {
        if self.too_large {
            return Err(Error::no_space("an item of a manifest that is too large"));
        }
        let (from, left) = (self.taken, self.bytes.len() - self.taken);
        if left < most && (left == 0 || !end) {
            self.bytes.drain(..from);
            self.taken = 0;
            return Ok(None);
        }
        self.taken += left.min(most);
        Ok(Some(&self.bytes[from..self.taken]))
    }

    fn u8(&mut self, n: u8) {
        self.bytes.push(n);
    }
    fn u32(&mut self, n: u32) {
        self.bytes.extend(n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.bytes.extend(n.to_le_bytes());
    }
    fn len(&mut self, n: usize) {
        self.u32(n as u32);
    }
    fn hash(&mut self, h: &Hash32) {
        self.bytes.extend(h.0);
    }
    fn shard_id(&mut self, id: ShardId) {
        self.u64(id.volume.0);
        self.u32(id.index);
    }
    fn chunk_id(&mut self, id: ChunkId) {
        self.u64(id.view.0);
        self.u32(id.counter);
    }

    fn tip(&mut self, t: &Tip) {
        self.u64(t.name.view.0);
        self.u64(t.name.sequence.0);
        self.hash(&t.name.hid);
        self.hash(&t.parent);
        self.hash(&t.digest);
        self.u64(t.version.0);
        self.chunk_id(t.chunk);
        self.u32(t.chunk_blocks);
    }

    /// A shard as of its last committed frame. All that it was told in appends up to `written` is in its map or here,
    /// but for frames that may be cut.
    pub fn shard(&mut self, s: &Shard, written: u64) -> u64 {
        let (frames, first) = s.overlay.first_appends();
        let covered = first.map_or(written, |a| (a - 1).min(written));
        let as_of = frames.map_or(written, |a| (a - 1).min(written));
        let tip = s.overlay.frames().next().map_or(s.tip, |f| f.before);
        let last = tip.name.sequence;
        let item = self.begin(SHARD);
        self.shard_id(s.id);
        self.u32(s.slot);
        self.u64(covered);
        self.u64(as_of);
        self.tip(&tip);
        [s.committed.0.min(last.0), s.promised.0, s.given_up.0, s.hint.0, s.released.0, s.ahead.0]
            .into_iter()
            .for_each(|n| self.u64(n));
        let secret = s.secret.unwrap_or_default();
        self.u64(secret.0.0);
        self.hash(&secret.1);
        let mark = s.mark.unwrap_or((u32::MAX, Sequence(0)));
        self.u32(mark.0);
        self.u64(mark.1.0);
        self.u8(u8::from(s.suspect) | u8::from(s.promise_lost) << 1);
        self.len(s.stale.len());
        s.stale.iter().for_each(|id| self.u32(*id));
        self.len(s.marks.len());
        for (segment, names) in &s.marks {
            self.u32(*segment);
            self.u64(names.0);
        }
        // As a cut to there would leave them.
        let holes: Vec<_> = s.holes.iter().filter(|h| h.from <= last.0).collect();
        self.len(holes.len());
        for h in holes {
            self.u64(h.from);
            self.u64(h.to.min(last.0));
            self.u8(u8::from(h.hard));
            self.u64(h.front.0);
        }
        let views: Vec<_> = s.views.iter().filter(|v| v.0 <= last).collect();
        self.len(views.len());
        for (_, head) in views {
            self.len(head.bytes().len());
            self.bytes.extend_from_slice(head.bytes());
        }
        let attaches: Vec<_> = s.attaches.iter().filter(|a| a.0 <= last).collect();
        self.len(attaches.len());
        for (s, a) in attaches {
            self.u64(s.0);
            self.u64(a.generation.0);
            self.u64(a.driver.0);
            self.hash(&a.identity);
        }
        self.requests(&s.requests, last);
        let (first, places) = s.frames.newest(last, FRAMES_KEPT);
        self.u64(first.0);
        self.len(places.len());
        for p in &places {
            [p.segment, p.head_at, p.head_len, p.data_at, p.data_len].into_iter().for_each(|n| self.u32(n));
            self.u64(p.hid);
        }
        self.end(item);
        covered
    }

    fn requests(&mut self, table: &RequestTable, last: Sequence) {
        let r = table.to_format();
        self.len(r.floors.len());
        for f in &r.floors {
            self.u64(f.driver.0);
            self.u64(f.lowest_open.0);
        }
        let entries: Vec<_> = r.entries.iter().filter(|e| e.sequence <= last).collect();
        self.len(entries.len());
        for e in entries {
            self.u64(e.driver.0);
            self.u64(e.number.0);
            self.u64(e.sequence.0);
        }
    }

    pub fn run(&mut self, r: &run::Run, old: bool) {
        let item = self.begin(RUN);
        self.u64(r.number);
        self.u8((u8::from(old) * OLD) | (u8::from(r.past().is_some()) * PAST));
        self.u64(r.entries);
        self.len(r.fences.len());
        self.places(r.places.list());
        self.end(item);
    }

    fn places(&mut self, list: &[Place]) {
        self.len(list.len());
        for p in list {
            [p.segment, p.page, p.count].into_iter().for_each(|n| self.u32(n));
        }
    }

    /// A part of what a segment holds: first the shards, and `most` stretches of trims, less what the shards took. Gives back
    /// how much it was, and how far it is written, unless that was the end.
    pub fn segment(&mut self, id: u32, s: &Segment, from: SegmentPart, most: usize) -> (usize, Option<SegmentPart>) {
        let content = if from.begun { Vec::new() } else { s.content.to_bytes() };
        let shards = content.len() / CONTENT_BYTES;
        let most_tombs = most.saturating_sub(shards);
        let tombs = s.tomb_list.behind(from.tomb, most_tombs);
        let item = self.begin(SEGMENT);
        self.u32(id);
        self.u64(s.seq);
        self.u64(s.appends.0);
        self.u64(s.appends.1);
        self.u64(s.forgets);
        self.u8(u8::from(s.evidence));
        self.len(content.len());
        self.bytes.extend_from_slice(&content);
        self.u32(s.tomb_list.in_index());
        self.len(tombs.len());
        for (shard, start, end) in &tombs {
            self.shard_id(*shard);
            self.u32(*start);
            self.u32(end - start);
        }
        self.len(if from.begun { 0 } else { s.pins.len() });
        s.pins.iter().filter(|_| !from.begun).for_each(|p| self.u32(*p));
        self.end(item);
        let to = SegmentPart { seq: s.seq, begun: true, tomb: tombs.last().copied().or(from.tomb) };
        (shards + tombs.len(), (tombs.len() == most_tombs).then_some(to))
    }

    /// Chunks behind `after`, until they have `most` runs and words of bits, or more; gives back the last one.
    pub fn chunks(&mut self, slot: u32, index: &ChunkIndex, after: Option<ChunkId>, most: usize) -> Option<ChunkId> {
        let (mut last, mut left) = (None, most);
        for (id, places, words) in index.export(after) {
            if left == 0 {
                break;
            }
            let item = self.begin(CHUNK);
            self.u32(slot);
            self.chunk_id(id);
            match places {
                BlockPlaces::Runs(runs) => {
                    self.u8(RUNS);
                    self.len(runs.len());
                    for r in runs {
                        [r.first, r.count, r.segment, r.at].into_iter().for_each(|n| self.u32(n));
                    }
                }
                BlockPlaces::Cells { first, cells } => {
                    self.u8(CELLS);
                    [index.packing.sector, index.packing.per_segment, *first].into_iter().for_each(|n| self.u32(n));
                    self.len(cells.len());
                    cells.iter().for_each(|c| self.u32(*c));
                }
            }
            self.len(words.len());
            words.iter().for_each(|w| self.u64(*w));
            self.end(item);
            (last, left) = (Some(id), left.saturating_sub(places.size() + words.len()));
        }
        last
    }

    /// What is committed when all of the shard has been written. Chunks may say that what a frame up to there covers is
    /// dead, so the frame must count as committed as soon as it is applied again.
    pub fn committed(&mut self, s: &Shard) {
        let item = self.begin(COMMITTED);
        self.u32(s.slot);
        self.u64(s.committed.0);
        self.end(item);
    }

    /// What is kept of a shard: as of its item, or (`later`) when all was written.
    pub fn pins(&mut self, s: &Shard, later: bool) {
        let (pins, is_loose) = (&s.history.pins, s.history.below.is_loose_behind_a_start());
        if pins.kept.is_none() && pins.as_of == Sequence(0) && s.history.whole_from == Version(0) && !is_loose {
            return;
        }
        let item = self.begin(PINS);
        self.u32(s.slot);
        self.u8(u8::from(later));
        self.u64(s.kept_state().as_of.0);
        self.u64(pins.kept.retain.unwrap_or_default().0);
        self.len(pins.kept.pins.len());
        for p in pins.kept.list() {
            self.u64(p.version.0);
            self.u64(p.snapshot.0);
        }
        self.u64(s.history.whole_from.0);
        self.u8(u8::from(is_loose));
        self.end(item);
    }

    /// Secrets of closed views, as of the shard's item.
    pub fn closed(&mut self, s: &Shard) {
        let last = s.overlay.frames().next().map_or(s.tip, |f| f.before).name.sequence;
        let list: Vec<&ClosedView> = s.closed.list().iter().filter(|c| c.published <= last).collect();
        if list.is_empty() {
            return;
        }
        let item = self.begin(CLOSED);
        self.u32(s.slot);
        self.len(list.len());
        for c in list {
            self.u64(c.view.0);
            self.u64(c.published.0);
            self.hash(&c.secret);
        }
        self.end(item);
    }

    /// Up to `most` superseded extents behind one; gives back the last one, unless that was the end.
    pub fn history(&mut self, s: &Shard, after: Option<ToldUpto>, most: usize) -> Option<ToldUpto> {
        let (mut last, mut n) = (None, 0);
        for (name, l) in s.history.memory.export(after).take(most) {
            let (_, (start, _)) = name;
            let item = self.begin(HISTORY);
            self.u32(s.slot);
            self.u8(l.e.kind as u8);
            self.u8(u8::from(l.found));
            [start, l.e.len, l.e.offset].into_iter().for_each(|n| self.u32(n));
            [l.e.version.0, l.to.0, l.e.sequence.0].into_iter().for_each(|n| self.u64(n));
            self.chunk_id(l.e.chunk);
            let crcs = l.e.crcs.slice(l.e.len);
            self.len(crcs.len());
            crcs.iter().for_each(|c| self.u32(*c));
            self.end(item);
            (last, n) = (Some(name), n + 1);
        }
        last.filter(|_| n == most)
    }

    pub fn finish(&mut self, begun: Begun, last: u64, next_run: u64, next_slot: u32) {
        let item = self.begin(END);
        self.u64(begun.written);
        self.u64(begun.opened);
        self.u64(last);
        self.u64(next_run);
        self.u32(next_slot);
        self.end(item);
    }
}

/// How far a segment is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentPart {
    /// Number of the segment: the rest of another use of it is none of this one's.
    pub seq: u64,
    begun: bool,
    tomb: Option<Stretch>,
}

/// The log when a checkpoint is begun: its last append, and the number of its newest segment.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub written: u64,
    pub opened: u64,
}

/// A chunk as it was.
pub(crate) struct ChunkItem {
    pub slot: u32,
    pub id: ChunkId,
    pub places: (BlockPlaces, Packing),
    pub words: Vec<u64>,
}

/// What was kept of the shard of a slot.
pub(crate) struct PinsItem {
    pub slot: u32,
    pub later: bool,
    pub as_of: Sequence,
    pub kept: Kept,
    pub whole_from: Version,
    /// Runs of history may have what nobody needs.
    pub is_loose: bool,
}

/// The content of a segment, or a part of it: the lists of all its items are its own.
pub(crate) struct SegmentItem {
    pub id: u32,
    pub seq: u64,
    /// First and last append of a closed segment.
    pub appends: (u64, u64),
    pub forgets: u64,
    pub evidence: bool,
    pub content: Contents,
    /// Trims and zeroes that only the segment's index lists.
    pub in_index: u32,
    pub tombs: Vec<(ShardId, u32, u32)>,
    pub pins: Vec<u32>,
}

/// What a manifest says.
#[derive(Default)]
pub(crate) struct Manifest {
    pub shards: Vec<(Shard, u64)>,
    /// Runs without fences and the like, newest first, those of history, too; whether it is the old one; and its pages with
    /// entries.
    pub runs: Vec<(run::Run, bool, u32)>,
    pub segments: Vec<SegmentItem>,
    pub chunks: Vec<ChunkItem>,
    pub pins: Vec<PinsItem>,
    /// Superseded extents by slot, with their addresses.
    pub history: Vec<(u32, u32, Layer)>,
    /// Secrets of closed views, by slot.
    pub closed: Vec<(u32, Vec<ClosedView>)>,
    /// Versions that are lost to clones, by slot.
    pub lost: Vec<(u32, Vec<Version>)>,
    /// Where shards of clones begin, by slot.
    pub forks: Vec<(u32, Fork)>,
    /// How shards of clones became flat, by slot.
    pub flats: Vec<(u32, Ended)>,
    /// Frames that were never in the log, by slot.
    pub absent: Vec<(u32, (Sequence, Sequence))>,
    /// What was committed at the end, by slot.
    pub committed: Vec<(u32, Sequence)>,
    /// Last append and newest segment when it was begun, and last append when all was written.
    pub written: u64,
    pub opened: u64,
    pub last: u64,
    pub next_run: u64,
    pub next_slot: u32,
    /// Chunks and history were read and not kept.
    pub is_part: bool,
}

impl Manifest {
    /// Up to here everything of every shard is covered.
    pub fn covered(&self) -> u64 {
        self.shards.iter().map(|s| s.1).fold(self.written, u64::min)
    }

    /// A manifest that is in memory as a whole.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(true);
        r.push(bytes)?;
        r.finish()
    }

    fn item(&mut self, kind: u8, r: &mut In<'_>) -> Option<()> {
        match kind {
            SHARD => self.shards.push(r.shard()?),
            RUN => self.runs.push(r.run()?),
            SEGMENT => self.segments.push(r.segment()?),
            CHUNK => {
                let chunk = r.chunk()?;
                self.chunks.extend(Some(chunk).filter(|_| !self.is_part));
            }
            PINS => self.pins.push(r.pins()?),
            HISTORY => {
                let layer = r.history()?;
                self.history.extend(Some(layer).filter(|_| !self.is_part));
            }
            CLOSED => self.closed.push(r.closed()?),
            FORK => self.forks.push(r.fork()?),
            LOST => self.lost.push(r.lost()?),
            FLAT => self.flats.push(r.flat()?),
            ABSENT => self.absent.push(r.absent()?),
            COMMITTED => self.committed.push((r.u32()?, Sequence(r.number()?))),
            END => {
                (self.written, self.opened, self.last) = (r.number()?, r.log_number()?, r.number()?);
                (self.next_run, self.next_slot) = (r.number()?, r.u32()?);
            }
            _ => return None,
        }
        r.0.is_empty().then_some(())
    }
}

/// A manifest that is read from its beginning, in pieces of any length.
pub(crate) struct Reader {
    manifest: Manifest,
    /// The beginning of an item whose end has not come yet.
    rest: Vec<u8>,
    at_end: bool,
}

impl Reader {
    /// Of one that is not kept `whole`, chunks and history are only held against what they can be.
    pub fn new(whole: bool) -> Self {
        Self { manifest: Manifest { is_part: !whole, ..Manifest::default() }, rest: Vec::new(), at_end: false }
    }

    fn senseless() -> Error {
        Error::corrupt("manifest of a checkpoint that makes no sense")
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(bytes);
        let mut from = 0;
        while let Some((head, behind)) = self.rest[from..].split_at_checked(ITEM_HEAD) {
            let (kind, len) = (head[0], u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize);
            if len > ITEM_BYTES_MAX {
                return Err(Self::senseless());
            }
            let Some(body) = behind.get(..len) else { break };
            let done = self.manifest.item(kind, &mut In(body)).filter(|()| !self.at_end);
            done.ok_or_else(Self::senseless)?;
            self.at_end = kind == END;
            from += ITEM_HEAD + len;
        }
        self.rest.drain(..from);
        Ok(())
    }

    pub fn finish(self) -> Result<Manifest> {
        let is_whole = self.at_end && self.rest.is_empty() && self.manifest.has_possible_forks();
        if is_whole { Ok(self.manifest) } else { Err(Self::senseless()) }
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (a, b) = self.0.split_at_checked(n)?;
        self.0 = b;
        Some(a)
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    fn bool(&mut self) -> Option<bool> {
        self.u8().filter(|b| *b < 2).map(|b| b == 1)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    fn number(&mut self) -> Option<u64> {
        self.u64().filter(|n| *n < NUMBER_MAX)
    }
    fn log_number(&mut self) -> Option<u64> {
        self.u64().filter(|n| *n < LOG_NUMBER_END)
    }
    fn hash(&mut self) -> Option<Hash32> {
        Some(Hash32(self.take(32)?.try_into().ok()?))
    }
    fn shard_id(&mut self) -> Option<ShardId> {
        Some(ShardId::new(self.u64()?, self.u32()?))
    }
    fn chunk_id(&mut self) -> Option<ChunkId> {
        Some(ChunkId::new(self.u64()?, self.u32()?))
    }
    fn segment_id(&mut self) -> Option<u32> {
        self.u32().filter(|s| *s < SEGMENTS_MAX)
    }

    /// A list whose length was written before it. Each element takes a byte at least, so a false length ends early.
    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let n = self.u32()? as usize;
        if n > self.0.len() {
            return None;
        }
        (0..n).map(|_| each(self)).collect()
    }

    /// A list of numbers, in as much memory as it takes.
    fn words(&mut self) -> Option<Vec<u32>> {
        let n = self.u32()? as usize;
        let bytes = self.take(n.checked_mul(size_of::<u32>())?)?.chunks_exact(size_of::<u32>());
        Some(bytes.map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect())
    }

    fn tip(&mut self) -> Option<Tip> {
        let name = FrameName { view: ViewNumber(self.u64()?), sequence: Sequence(self.number()?), hid: self.hash()? };
        Some(Tip {
            name,
            parent: self.hash()?,
            digest: self.hash()?,
            version: Version(self.number()?),
            chunk: self.chunk_id()?,
            chunk_blocks: self.u32().filter(|n| *n <= ORDINALS_MAX)?,
        })
    }

    fn shard(&mut self) -> Option<(Shard, u64)> {
        let mut s = Shard::new(self.shard_id()?, self.u32()?);
        let covered = self.number()?;
        s.as_of = self.number()?;
        s.tip = self.tip()?;
        s.committed = Sequence(self.number()?);
        s.promised = ViewNumber(self.u64()?);
        s.given_up = ViewNumber(self.u64()?);
        s.hint = Sequence(self.u64()?);
        s.released = Sequence(self.number()?);
        s.ahead = Sequence(self.number()?);
        let (view, secret) = (ViewNumber(self.u64()?), self.hash()?);
        s.secret = (view.0 > 0).then_some((view, secret));
        let (segment, released) = (self.u32()?, Sequence(self.u64()?));
        s.mark = (segment < SEGMENTS_MAX).then_some((segment, released));
        let flags = self.u8()?;
        (s.suspect, s.promise_lost) = ((flags & 1) > 0, (flags & 2) > 0);
        if flags > 3 {
            return None;
        }
        s.stale = self.list(Self::segment_id)?.into_iter().collect();
        s.marks = self.list(|r| Some((r.segment_id()?, Sequence(r.number()?))))?.into_iter().collect();
        s.holes = self.list(|r| {
            let (from, to, hard) = (r.number()?, r.number()?, r.bool()?);
            let hole = Hole { from, to, hard, front: Version(r.number()?) };
            Some(hole).filter(|h| 0 < h.from && h.from <= h.to)
        })?;
        s.views = self.list(|r| {
            let len = r.u32()? as usize;
            let mut bytes = bytes::Bytes::copy_from_slice(r.take(len.min(limits::FRAME_HEAD_BYTES_MAX))?);
            let head = FrameHead::parse(&mut bytes).ok()?;
            Some((head.seq(), head))
        })?;
        s.attaches = self.list(|r| {
            let at = Sequence(r.number()?);
            let (generation, driver) = (Generation(r.u64()?), DriverId(r.u64()?));
            Some((at, AttachBody { generation, driver, identity: r.hash()? }))
        })?;
        s.requests = self.requests()?;
        let first = self.number()?;
        let places = self.list(|r| {
            let (segment, head_at, head_len) = (r.segment_id()?, r.u32()?, r.u32()?);
            let (data_at, data_len, hid) = (r.u32()?, r.u32()?, r.u64()?);
            let fits = head_len as usize <= limits::FRAME_HEAD_BYTES_MAX
                && data_len as usize <= limits::FRAME_DATA_BYTES_MAX
                && head_at.max(data_at) < 1 << 30;
            fits.then_some(FramePlace { segment, head_at, head_len, data_at, data_len, hid })
        })?;
        // They end with the last frame, and frames are counted from 1.
        if !places.is_empty() && (first == 0 || first.checked_add(places.len() as u64)? > s.tip.name.sequence.0 + 1) {
            return None;
        }
        for (i, p) in places.into_iter().enumerate() {
            s.frames.push(Sequence(first + i as u64), p);
        }
        (s.last_append, s.last_mark) = (covered, covered);
        Some((s, covered))
    }

    fn requests(&mut self) -> Option<RequestTable> {
        let floors =
            self.list(|r| Some(RequestFloor { driver: DriverId(r.u64()?), lowest_open: RequestNumber(r.u64()?) }))?;
        let entries = self.list(|r| {
            let (driver, number) = (DriverId(r.u64()?), RequestNumber(r.u64()?));
            Some(RequestEntry { driver, number, sequence: Sequence(r.u64()?) })
        })?;
        Some(RequestTable::from_format(&Requests { floors, entries }))
    }

    fn run(&mut self) -> Option<(run::Run, bool, u32)> {
        let mut run = run::Run { number: self.number()?, ..run::Run::default() };
        let flags = self.u8().filter(|f| *f <= OLD | PAST)?;
        let old = flags & OLD != 0;
        if flags & PAST != 0 {
            run.beside = run::Beside::Past(run::PastRun::default());
        }
        run.entries = self.number()?;
        let pages = self.u32()?;
        let mut total = 0u64;
        let list = self.list(|r| {
            let p = Place { segment: r.segment_id()?, page: r.u32()?, count: r.u32()? };
            total += u64::from(p.count);
            (p.count > 0 && u64::from(p.page) + u64::from(p.count) <= 1 << 18).then_some(p)
        })?;
        let mut places = run::Places::default();
        list.into_iter().for_each(|p| places.push(p));
        run.places = places;
        (pages > 0 && u64::from(pages) < total && total < 1 << 31).then_some((run, old, pages))
    }

    fn segment(&mut self) -> Option<SegmentItem> {
        let (id, seq, appends) = (self.segment_id()?, self.log_number()?, (self.log_number()?, self.log_number()?));
        let (forgets, evidence) = (self.u64()?, self.bool()?);
        let len = self.u32()? as usize;
        let content = Contents::from_bytes(self.take(len)?)?;
        let in_index = self.u32()?;
        let tombs = self.list(|r| {
            let (id, start, len) = (r.shard_id()?, r.u32()?, r.u32()?);
            (u64::from(start) + u64::from(len) <= limits::SHARD_ADDRESSES).then_some((id, start, len))
        })?;
        let pins = self.list(Self::segment_id)?;
        let fits = in_index == 0 || tombs.is_empty();
        fits.then_some(SegmentItem { id, seq, appends, forgets, evidence, content, in_index, tombs, pins })
    }

    fn pins(&mut self) -> Option<PinsItem> {
        let (slot, later, as_of) = (self.u32()?, self.bool()?, Sequence(self.number()?));
        let retain = Some(Version(self.number()?)).filter(|v| v.0 > 0);
        let pins = self.list(|r| Some(Pin { version: Version(r.number()?), snapshot: SnapshotId(r.u64()?) }))?;
        let (whole_from, is_loose) = (Version(self.number()?), self.bool()?);
        let fits = pins.len() <= limits::SHARD_PINS_MAX;
        fits.then(|| PinsItem { slot, later, as_of, kept: Kept::of(&pins, retain), whole_from, is_loose })
    }

    fn closed(&mut self) -> Option<(u32, Vec<ClosedView>)> {
        let slot = self.u32()?;
        let list = self.list(|r| {
            Some(ClosedView { view: ViewNumber(r.u64()?), published: Sequence(r.number()?), secret: r.hash()? })
        })?;
        (list.len() <= limits::CLOSED_VIEWS_MAX).then_some((slot, list))
    }

    fn history(&mut self) -> Option<(u32, u32, Layer)> {
        let (slot, kind, found) = (self.u32()?, ExtentKind::from_byte(self.u8()?)?, self.bool()?);
        let (start, len, offset) = (self.u32()?, self.u32()?, self.u32()?);
        let (version, to) = (Version(self.number()?), Version(self.number()?));
        let (sequence, chunk) = (Sequence(self.number()?), self.chunk_id()?);
        let crcs = self.list(Self::u32)?;
        let data = kind == ExtentKind::Data;
        let fits = if data { fits(offset, len) && crcs.len() == len as usize } else { crcs.is_empty() };
        // Superseded entries of times are no history.
        if len == 0 || u64::from(start) + u64::from(len) > limits::SHARD_BLOCKS_MAX || !fits || version > to {
            return None;
        }
        let crcs = match crcs[..] {
            [] => Crcs::None,
            [one] => Crcs::One(one),
            _ => Crcs::Many { table: crcs.into(), at: 0 },
        };
        Some((
            slot,
            start,
            Layer { e: Extent { len, kind, version, sequence, chunk, offset, crcs }, to, found, level: 0 },
        ))
    }

    fn chunk(&mut self) -> Option<ChunkItem> {
        let (slot, id) = (self.u32()?, self.chunk_id()?);
        let places = match self.u8()? {
            RUNS => (BlockPlaces::Runs(self.chunk_runs()?), Packing::default()),
            CELLS => {
                let packing = Packing { sector: self.u32()?, per_segment: self.u32()? };
                let first = self.u32()?;
                let cells = self.words()?;
                let fits = packing.is_sound() && fits(first, cells.len() as u32);
                (BlockPlaces::Cells { first, cells: fits.then_some(cells)? }, packing)
            }
            _ => return None,
        };
        let words = self.list(Self::u64)?;
        (words.len() <= ORDINALS_MAX as usize / 64).then_some(ChunkItem { slot, id, places, words })
    }

    fn chunk_runs(&mut self) -> Option<Vec<Run>> {
        let mut end = 0;
        self.list(|r| {
            let run = Run { first: r.u32()?, count: r.u32()?, segment: r.segment_id()?, at: r.u32()? };
            let fits = run.first >= end && run.count > 0 && fits(run.first, run.count);
            end = run.first.saturating_add(run.count);
            (fits && run.at < 1 << 30).then_some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::segments::Segments;
    use std::collections::BTreeSet;

    fn decoded(mut out: Out) -> Manifest {
        out.finish(Begun { written: 1, opened: 1 }, 1, 1, 1);
        Manifest::decode(&out.bytes).unwrap()
    }

    /// The trims of 64 segments were put into order and written in one step, however many there were.
    #[test]
    fn a_step_writes_a_part_of_the_lists_of_a_segment() {
        const MOST: usize = 64;
        let mut segs = Segments::default();
        segs.push();
        for n in 0..1000 {
            segs.note(0, ShardId::new(n % 150, 0), Some(Sequence(n + 1)));
            // Half of them touch.
            segs.get_mut(0).tomb_list.add(ShardId::new(n % 3, 0), (n / 4 * 10 + n % 2) as u32, 1);
        }
        segs.get_mut(0).pins = BTreeSet::from([3, 4]);
        let (mut out, mut part, mut all) = (Out::default(), SegmentPart::default(), 0);
        loop {
            let (n, next) = out.segment(0, segs.get(0), part, MOST);
            all += n;
            assert!(n <= MOST || next.is_some_and(|to| to.tomb.is_none()), "{n}");
            let Some(next) = next else { break };
            part = next;
        }
        assert!(all > 5 * MOST, "{all}");
        let items = decoded(out).segments;
        assert_eq!(items.iter().flat_map(|i| &i.pins).copied().collect::<Vec<_>>(), [3, 4]);
        let content: Vec<_> = items.iter().flat_map(|i| i.content.iter()).collect();
        assert_eq!(content, segs.get(0).content.iter().collect::<Vec<_>>());
        let tombs: Vec<_> = items.iter().flat_map(|i| &i.tombs).map(|t| (t.0, t.1, t.1 + t.2)).collect();
        assert_eq!(tombs, segs.get(0).tomb_list.behind(None, usize::MAX));
    }

    #[test]
    fn a_trim_between_two_steps_leaves_no_other_out() {
        let (mut segs, id) = (Segments::default(), ShardId::new(1, 0));
        segs.push();
        for start in [0, 10, 20] {
            segs.get_mut(0).tomb_list.add(id, start, 1);
        }
        let mut out = Out::default();
        let mut part = out.segment(0, segs.get(0), SegmentPart::default(), 2).1;
        // It joins two stretches, of which one was written. Its frame will be applied again; that of the other will not.
        segs.get_mut(0).tomb_list.add(id, 11, 9);
        while let Some(from) = part {
            part = out.segment(0, segs.get(0), from, 2).1;
        }
        let tombs: Vec<_> = decoded(out).segments.iter().flat_map(|i| i.tombs.clone()).collect();
        assert!(tombs.iter().any(|(_, start, len)| (*start..start + len).contains(&20)), "{tombs:?}");
    }

    /// The start behind a checkpoint that was made before runs of history were looked through did not look through them.
    #[test]
    fn what_nobody_needs_is_to_be_looked_for_behind_a_checkpoint_too() {
        for is_loose in [false, true] {
            let (mut out, mut s) = (Out::default(), Shard::new(ShardId::new(1, 0), 7));
            s.history.below.was_loose(is_loose);
            out.pins(&s, true);
            let found = decoded(out).pins;
            assert_eq!(
                found.iter().map(|p| (p.slot, p.is_loose)).collect::<Vec<_>>(),
                [(7, true)][..usize::from(is_loose)]
            );
        }
    }

    #[test]
    fn places_of_frames_that_can_not_be_are_refused() {
        let mut s = Shard::new(ShardId::new(1, 0), 1);
        s.tip.name.sequence = Sequence(1);
        let p = FramePlace { segment: 0, head_at: 0, head_len: 9, data_at: 0, data_len: 0, hid: 1 };
        s.frames.push(Sequence(1), p);
        let mut out = Out::default();
        out.shard(&s, 1);
        let at = out.bytes.len() - 28 - 4 - 8;
        out.finish(Begun { written: 1, opened: 1 }, 1, 1, 1);
        assert!(Manifest::decode(&out.bytes).is_ok());
        for first in [0, 2, u64::MAX] {
            out.bytes[at..at + 8].copy_from_slice(&first.to_le_bytes());
            assert!(Manifest::decode(&out.bytes).is_err(), "first sequence {first}");
        }
    }

    /// 64 chunks were written in one step, with up to 8,192 runs each.
    #[test]
    fn a_step_writes_few_chunks_if_they_have_many_runs() {
        const MOST: usize = 1000;
        let (mut index, mut runs) = (ChunkIndex::default(), 0);
        for chunk in 0..100u32 {
            let id = ChunkId::new(1, chunk);
            for i in 0..chunk * 8 {
                index.place(id, Run { first: 2 * i, count: 1, segment: 0, at: i * 8192 }, |_, _| ());
                index.acquire(id, 2 * i, 1, |_, _| ());
                runs += 1;
            }
        }
        let (mut out, mut last, mut before) = (Out::default(), None, 0);
        loop {
            last = out.chunks(1, &index, last, MOST);
            let step = (out.bytes.len() - before) / 16;
            assert!(step <= 2 * MOST, "{step} runs in a step");
            before = out.bytes.len();
            if last.is_none() {
                break;
            }
        }
        assert_eq!(decoded(out).chunks.iter().map(|c| c.places.0.size()).sum::<usize>(), runs);
    }

    #[test]
    fn holes_that_can_not_be_are_refused() {
        let read = |from, to| {
            let (mut out, mut s) = (Out::default(), Shard::new(ShardId::new(1, 0), 1));
            (s.tip.name.sequence, s.committed) = (Sequence(9), Sequence(9));
            s.holes.push(Hole { from, to, hard: true, front: Version(0) });
            out.shard(&s, 1);
            out.finish(Begun { written: 1, opened: 1 }, 1, 1, 1);
            Manifest::decode(&out.bytes).is_ok()
        };
        assert!(read(1, 1) && read(3, 7));
        assert!(!read(0, 7) && !read(0, 0) && !read(8, 7));
    }
}

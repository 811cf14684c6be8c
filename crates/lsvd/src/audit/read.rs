//! Reading a log for the audit: a segment at a time, the newest first, in steps of a size that the caller chooses.
//!
//! A segment's frames are known from its index (of the open segment, from the one that is being gathered). Of each frame
//! the head is read where the append has it, and the data are hashed in pieces.
//!
//! Invariants:
//! - Nothing is kept from being cleaned or used again. Frames of a segment count only if the segment still has the number
//!   that it had when it was begun; else they were given up.
//! - Between two pieces of `READ_BYTES`, and every `ITEMS_PER_STEP` frames, others get their turn.

use super::walk::{Fact, Known, Walk};
use super::{Ask, Place, Report};
use crate::FrameName;
use crate::engine::Engine;
use crate::log::gate::{Gate, READ_BYTES};
use crate::log::geometry::Geometry;
use crate::log::join::yield_now;
use crate::log::scan::{Window, lies_before, scan};
use crate::log::whole::footer;
use bytes::Bytes;
use freebs_format::disk::{APPEND_REPAIR, IndexEntry, SegmentFooter};
use freebs_format::{FrameKind, MarkBody, block_crc, crc32c};
use freebs_io::Device;
use freebs_types::{BLOCK, ChunkId, ErrorKind, Result, Sequence, ShardId, Version};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Frames that are looked at before others get their turn.
const ITEMS_PER_STEP: usize = 64;

/// How far an audit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Segments that were read, or had nothing to read.
    pub done: u32,
    /// Segments in all.
    pub total: u32,
}

/// A shard's log as the audit found it when it began.
struct Start {
    shard: ShardId,
    geometry: Geometry,
    last: FrameName,
    version: Version,
    committed: Sequence,
    /// The last durable append.
    append: u64,
    known: Known,
    /// Segments that say anything of the shard, newest first, with their numbers.
    segments: Vec<(u32, u64)>,
}

/// Something that a segment says of the shard.
enum Item {
    Frame(Box<Fact>),
    Learned(Sequence, Sequence),
    Mapped { since: Sequence, tip: Sequence, upto: Sequence },
    Deleted,
    Damage(Place, String),
}

type Work = Pin<Box<dyn Future<Output = Result<Report>>>>;

/// An audit of one shard, a step at a time.
pub struct Auditor<D: Device> {
    engine: Engine<D>,
    start: Rc<Start>,
    gate: Rc<Gate>,
    done: Rc<Cell<u32>>,
    ask: Ask,
    work: Option<Work>,
    bytes: u64,
}

impl<D: Device> Auditor<D> {
    /// An audit of the shard as it is now. Nothing is read before the first step. `NotFound` if the shard is unknown.
    pub fn new(engine: Engine<D>, shard: ShardId) -> Result<Self> {
        let start = {
            let core = engine.inner.core.borrow();
            let s = core.shard(shard)?;
            let holding = core.segs.used().filter(|(_, segment)| segment.content.has(shard));
            let mut segments: Vec<(u32, u64)> = holding.map(|(id, segment)| (id, segment.seq)).collect();
            segments.sort_unstable_by_key(|(_, seq)| std::cmp::Reverse(*seq));
            Start {
                shard,
                geometry: core.geometry,
                last: s.tip.name,
                version: s.tip.version,
                committed: s.committed.min(s.tip.name.sequence),
                append: core.next_append - 1,
                known: Known {
                    released: s.released,
                    holes: s.holes.iter().map(|h| (Sequence(h.from), Sequence(h.to))).collect(),
                    closed: s.closed.list().to_vec(),
                },
                segments,
            }
        };
        Ok(Self {
            engine,
            start: Rc::new(start),
            gate: Rc::default(),
            done: Rc::default(),
            ask: Ask::default(),
            work: None,
            bytes: 0,
        })
    }

    /// The last frame of the shard that was known to be committed when the audit was made: others have the same one.
    #[must_use]
    pub fn committed(&self) -> Sequence {
        self.start.committed
    }

    /// Tells the audit what to look for beside the chain. Has no effect behind the first step.
    pub fn ask(&mut self, ask: Ask) {
        self.ask = ask;
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress { done: self.done.get(), total: self.start.segments.len() as u32 }
    }

    /// Reads on, about `bytes` bytes; what is read beyond them is taken off the next steps. Gives the report at the
    /// end. `DeviceFailed` once the device is poisoned, `NotFound` if the shard is gone, `NoSpace` if there is more to
    /// remember than an audit may. No step may follow the one that ends it.
    pub async fn step(&mut self, bytes: u64) -> Result<Option<Report>> {
        let (engine, start, gate, done) = (&self.engine, &self.start, &self.gate, &self.done);
        let ask = std::mem::take(&mut self.ask);
        let work = self
            .work
            .get_or_insert_with(|| Box::pin(run(engine.clone(), start.clone(), gate.clone(), done.clone(), ask)));
        let end = self.gate.drive(bytes, work).await;
        self.bytes += self.gate.take_read();
        match end {
            None => Ok(None),
            Some(Err(e)) => Err(e),
            Some(Ok(report)) => Ok(Some(Report { bytes: self.bytes, ..report })),
        }
    }
}

async fn run<D: Device>(
    engine: Engine<D>,
    start: Rc<Start>,
    gate: Rc<Gate>,
    done: Rc<Cell<u32>>,
    ask: Ask,
) -> Result<Report> {
    let reader = Reader { engine: &engine, start: &start, gate: &gate };
    let mut walk = Walk::new(start.shard, (start.last, start.version), start.known.clone(), ask);
    let mut segments = 0;
    for (id, seq) in &start.segments {
        if walk.is_done() {
            break;
        }
        let found = reader.segment(*id, *seq).await;
        {
            let core = engine.inner.core.borrow();
            if let Some(e) = core.failed.as_ref().filter(|e| e.kind == ErrorKind::DeviceFailed) {
                return Err(e.clone());
            }
            walk.set_released(core.shard(start.shard)?.released);
        }
        segments += u32::from(found.is_some());
        for (i, item) in found.into_iter().flatten().enumerate() {
            if i % ITEMS_PER_STEP == 0 {
                yield_now().await;
            }
            match item {
                Item::Frame(fact) => walk.frame(*fact),
                Item::Learned(since, upto) => walk.learned(since, upto),
                Item::Mapped { since, tip, upto } => walk.mapped(since, tip, upto),
                Item::Deleted => walk.end(),
                Item::Damage(at, what) => walk.damage(at, what),
            }
        }
        done.set(done.get() + 1);
    }
    done.set(start.segments.len() as u32);
    Ok(Report { segments, committed: start.committed, ..walk.finish()? })
}

struct Reader<'a, D: Device> {
    engine: &'a Engine<D>,
    start: &'a Start,
    gate: &'a Gate,
}

impl<D: Device> Reader<'_, D> {
    fn place(&self, segment: u32, offset: u32) -> Place {
        Place { segment, offset, byte: self.start.geometry.byte(segment, offset) }
    }

    fn window(&self, segment: u32) -> Window<'_, crate::log::guard::Ways<D>> {
        Window::paced(&self.engine.inner.device, self.start.geometry, segment, self.gate)
    }

    fn is_still(&self, id: u32, seq: u64) -> bool {
        let core = self.engine.inner.core.borrow();
        let s = core.segs.get(id);
        s.is_used() && s.seq == seq
    }

    /// All that a segment says of the shard, the last frame first. `None` if it was given up.
    async fn segment(&self, id: u32, seq: u64) -> Option<Vec<Item>> {
        if !self.is_still(id, seq) {
            return None;
        }
        // By the byte where they lie.
        let mut items: Vec<(u32, Item)> = Vec::new();
        let entries = match self.index(id, seq).await {
            Some(entries) => entries,
            None => self.appends(id, seq, &mut items).await,
        };
        let (mut heads, mut data) = (self.window(id), self.window(id));
        for (i, e) in entries.into_iter().enumerate() {
            if i % ITEMS_PER_STEP == 0 {
                yield_now().await;
            }
            if e.head.kind() == FrameKind::Mark {
                items.extend(said(&e).map(|item| (e.head_at, item)));
                continue;
            }
            let wrong = self.check(&e, &mut heads, &mut data).await;
            let (repair, at) = (e.flags & APPEND_REPAIR != 0, (self.place(id, e.head_at), seq));
            let fact = match wrong {
                None => Fact::of(&e.head, at, repair, None),
                Some(Wrong::Head(what)) => Fact::of(&e.head, at, repair, Some(what)),
                Some(Wrong::Data(what)) => match self.with_blocks_put_back(&e, id, &mut data).await {
                    Ok(()) => Fact::of(&e.head, at, repair, None).mended(),
                    Err(lost) => Fact::of(&e.head, at, repair, Some(format!("{what}{lost}"))),
                },
            };
            items.push((e.head_at, Item::Frame(Box::new(fact))));
        }
        items.sort_by_key(|(at, _)| *at);
        let items = items.into_iter().rev().map(|(_, item)| item);
        self.is_still(id, seq).then(|| items.collect())
    }

    /// True for a frame of the shard that was durable when the audit began.
    fn is_asked(&self, e: &IndexEntry) -> bool {
        let kind = e.head.kind();
        let ours = e.head.shard() == self.start.shard && e.append <= self.start.append;
        ours && (!kind.is_local() || kind == FrameKind::Mark)
    }

    /// The shard's frames in a segment, in the order of the log, as its index says. `None` if it has none that can be
    /// read.
    async fn index(&self, id: u32, seq: u64) -> Option<Vec<IndexEntry>> {
        let gathered = {
            let core = self.engine.inner.core.borrow();
            let open = core.open.as_ref().filter(|o| o.id == id && o.seq == seq && !o.index.is_empty());
            open.map(|o| Bytes::copy_from_slice(&o.index))
        };
        let end = self.start.geometry.segment_bytes as u32;
        let (mut index, end) = match gathered {
            Some(index) => (index, end),
            None => {
                let mut w = self.window(id);
                let f: SegmentFooter = footer(&mut w, &self.start.geometry, seq).await?;
                let bytes = w.get(f.index_at.get() as usize, f.index_len.get() as usize).await?;
                (Some(bytes).filter(|b| crc32c(b) == f.index_crc.get())?, f.index_at.get())
            }
        };
        let mut entries = Vec::new();
        for i in 0.. {
            if index.is_empty() {
                break;
            }
            if i % ITEMS_PER_STEP == 0 {
                yield_now().await;
            }
            let e = IndexEntry::decode_next(&mut index).ok().filter(|e| lies_before(e, end))?;
            if self.is_asked(&e) {
                entries.push(e);
            }
        }
        Some(entries)
    }

    /// The same from the segment's appends, for want of an index.
    async fn appends(&self, id: u32, seq: u64, items: &mut Vec<(u32, Item)>) -> Vec<IndexEntry> {
        let mut w = self.window(id);
        let f = footer(&mut w, &self.start.geometry, seq).await;
        let limit = f.as_ref().map_or(self.start.geometry.segment_bytes as u32, |f| f.index_at.get());
        let mut found = scan(&mut w, seq, limit).await;
        found.end_with(f.map_or(self.start.append, |f| f.last_append.get()).min(self.start.append));
        let damaged = found.appends.iter().filter(|a| a.lost > 0).map(|a| (a.at, a.number()));
        let missing = found.missing.iter().map(|(number, at)| (*at, *number));
        for (at, number) in damaged.chain(missing) {
            let what = format!("append {number} is damaged, and so is what would tell its frames");
            items.push((at, Item::Damage(self.place(id, at), what)));
        }
        let entries = found.appends.iter_mut().flat_map(|a| std::mem::take(&mut a.entries));
        entries.filter(|e| self.is_asked(e)).collect()
    }

    /// Why a frame's bytes are not what was written, if so.
    async fn check<W: Device>(
        &self,
        e: &IndexEntry,
        heads: &mut Window<'_, W>,
        data: &mut Window<'_, W>,
    ) -> Option<Wrong> {
        let head = |what: &str| Some(Wrong::Head(what.to_owned()));
        match heads.get(e.head_at as usize, e.head.bytes().len()).await {
            None => return head("its head can't be read"),
            Some(bytes) if bytes != *e.head.bytes() => {
                return head("its head is not what the index of its segment says");
            }
            Some(_) => {}
        }
        let mut digest = e.head.begin_digest();
        let (mut at, mut left) = (e.data_at as usize, e.head.header().data_len.get() as usize);
        while left > 0 {
            let n = left.min(READ_BYTES);
            let Some(piece) = data.get(at, n).await else { return Some(Wrong::Data("its data can't be read")) };
            digest.update(&piece);
            (at, left) = (at + n, left - n);
            if left > 0 {
                yield_now().await;
            }
        }
        (digest.finish() != e.head.header().digest()).then_some(Wrong::Data("its bytes do not give its digest"))
    }

    /// Holds a frame against its digest with the blocks that were put back for damaged ones. They lie in another place; in
    /// this one they stay damaged until it is cleaned. The error says how many blocks are nowhere.
    async fn with_blocks_put_back<W: Device>(
        &self,
        e: &IndexEntry,
        id: u32,
        data: &mut Window<'_, W>,
    ) -> std::result::Result<(), String> {
        let (h, mut digest) = (e.head.header(), e.head.begin_digest());
        let (mut damaged, mut lost, mut other) = (0u32, 0u32, None);
        for (i, crc) in (0u32..).zip(e.head.crcs()) {
            if (i as usize).is_multiple_of(ITEMS_PER_STEP) {
                yield_now().await;
            }
            let at = e.data_at + i * BLOCK as u32;
            let is_right = |b: &Bytes| block_crc(b) == crc.get();
            let mut block = data.get(at as usize, BLOCK).await.filter(is_right);
            if block.is_none() {
                damaged += 1;
                let of_chunk = (h.chunk(), h.chunk_offset.get().saturating_add(i));
                block = self.block_elsewhere(of_chunk, (id, at), &mut other).await;
            }
            match block.filter(is_right) {
                Some(block) => digest.update(&block),
                None => lost += 1,
            }
        }
        match lost {
            0 if damaged > 0 && digest.finish() == h.digest() => Ok(()),
            0 => Err(String::new()),
            n => Err(format!(": {damaged} of its blocks are damaged, of which {n} have not been put back")),
        }
    }

    /// A block of a chunk where the log has it now, if that is another place than this one. `other` is the segment where
    /// the one before was.
    async fn block_elsewhere<'w>(
        &'w self,
        (chunk, offset): (ChunkId, u32),
        here: (u32, u32),
        other: &mut Option<(u32, Window<'w, crate::log::guard::Ways<D>>)>,
    ) -> Option<Bytes> {
        let mut place = None;
        {
            let core = self.engine.inner.core.borrow();
            let shard = core.shard(self.start.shard).ok()?;
            shard.chunks.lookup(chunk, offset, 1, |run| place = Some((run.segment, run.at)));
        }
        let (segment, at) = place.filter(|p| *p != here)?;
        if other.as_ref().is_none_or(|(id, _)| *id != segment) {
            *other = Some((segment, self.window(segment)));
        }
        other.as_mut()?.1.get(at as usize, BLOCK).await
    }
}

/// The difference between a frame that lies here and what was written.
enum Wrong {
    /// In its head.
    Head(String),
    /// In its data.
    Data(&'static str),
}

/// The part of a mark that the audit has to know: frames whose entries were learned, or that all before it is gone.
fn said(e: &IndexEntry) -> Option<Item> {
    let body = MarkBody::decode(e.head.body()).ok()?;
    let (since, upto) = (body.learned_since, body.learned_upto);
    match (body.deleted, body.whole) {
        (true, _) => Some(Item::Deleted),
        (false, true) => Some(Item::Mapped { since, tip: upto, upto: e.head.seq() }),
        (false, false) => (upto.0 > 0).then_some(Item::Learned(since, upto)),
    }
}

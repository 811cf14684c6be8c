//! The table of segments: what each holds, how much of it is live, and which may be used again.
//!
//! Invariants:
//! - `live` is the number of data blocks there that a map names, or an entry that a cut could bring back; `tombs` is
//!   the same for blocks that trims and zeroes cover (rule E1).
//! - A segment that was given up is used again only when a live table without it is durable: until then recovery
//!   still sees it whole, beside everything else that the newest table names.
//! - A pinned segment is not given up while the segments that pin it are in use: it holds the frame that says that
//!   frames there don't count.

use freebs_types::{ChunkId, Sequence, ShardId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Written before (if only with zeroes) and ready for use.
    Ready,
    Open,
    Closed,
    /// Given up, but the newest live table still names it.
    Given,
}

/// What a segment holds of one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// Frames of the sequence, lowest and highest; both 0 if there are only local ones.
    pub min: Sequence,
    pub max: Sequence,
    pub chunks: Vec<ChunkId>,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub state: SegmentState,
    pub seq: u64,
    pub live: u64,
    pub tombs: u64,
    pub content: BTreeMap<ShardId, Content>,
    /// Where trims and zeroes were recorded, so that those still in force are found when they must be carried.
    pub tomb_list: Vec<(ShardId, u32, u32)>,
    /// Segments that must be given up before this one.
    pub pins: BTreeSet<u32>,
    /// Local frames on their way that let this segment be given up.
    pub jobs: u32,
    readers: Rc<Cell<u32>>,
}

impl Segment {
    fn new() -> Self {
        Self {
            state: SegmentState::Ready,
            seq: 0,
            live: 0,
            tombs: 0,
            content: BTreeMap::new(),
            tomb_list: Vec::new(),
            pins: BTreeSet::new(),
            jobs: 0,
            readers: Rc::default(),
        }
    }

    pub fn is_used(&self) -> bool {
        matches!(self.state, SegmentState::Open | SegmentState::Closed)
    }
}

/// While it exists, a segment's bytes are not written over.
pub(crate) struct ReadGuard {
    readers: Rc<Cell<u32>>,
    freed: Rc<Notify>,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.readers.set(self.readers.get() - 1);
        if self.readers.get() == 0 {
            self.freed.notify_one();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    /// Closed segments that may have become free since they were last looked at.
    pub candidates: BTreeSet<u32>,
    /// Those without live blocks that something else kept; looked at again when a segment closes.
    pub blocked: BTreeSet<u32>,
    pub live_blocks: u64,
    /// Segments that are open or closed.
    pub used_count: u32,
    /// Rung when a segment may have become ready: the pool has grown, or a reader has gone.
    pub freed: Rc<Notify>,
}

impl Segments {
    /// One more, freshly written segment.
    pub fn push(&mut self) -> u32 {
        self.all.push(Segment::new());
        self.all.len() as u32 - 1
    }
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }
    pub fn get(&self, id: u32) -> &Segment {
        &self.all[id as usize]
    }
    pub fn get_mut(&mut self, id: u32) -> &mut Segment {
        &mut self.all[id as usize]
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.all.iter().enumerate().map(|(i, s)| (i as u32, s))
    }
    pub fn used(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.iter().filter(|(_, s)| s.is_used())
    }

    pub fn guard(&self, id: u32) -> ReadGuard {
        let readers = self.get(id).readers.clone();
        readers.set(readers.get() + 1);
        ReadGuard { readers, freed: self.freed.clone() }
    }

    /// The lowest segment that can be opened.
    pub fn ready(&self) -> Option<u32> {
        self.iter().find(|(_, s)| s.state == SegmentState::Ready && s.readers.get() == 0).map(|(i, _)| i)
    }
    pub fn ready_count(&self) -> u32 {
        self.iter().filter(|(_, s)| s.state == SegmentState::Ready).count() as u32
    }

    pub fn open(&mut self, id: u32, seq: u64) {
        let s = self.get_mut(id);
        assert!(s.state == SegmentState::Ready && s.live == 0, "only a free segment is opened");
        let readers = s.readers.clone();
        *s = Segment { state: SegmentState::Open, seq, readers, ..Segment::new() };
        self.used_count += 1;
    }

    pub fn close(&mut self, id: u32) {
        self.get_mut(id).state = SegmentState::Closed;
        self.candidates.insert(id);
        self.candidates.append(&mut self.blocked);
    }

    /// A segment that recovery found in use.
    pub fn found(&mut self, id: u32, seq: u64) {
        let s = self.get_mut(id);
        (s.state, s.seq) = (SegmentState::Closed, seq);
        self.used_count += 1;
    }

    /// A live table without the segments given up so far is durable.
    pub fn table_durable(&mut self, given: &[u32]) {
        for id in given {
            let s = self.get_mut(*id);
            if s.state == SegmentState::Given {
                s.state = SegmentState::Ready;
            }
        }
    }
    pub fn given(&self) -> Vec<u32> {
        self.iter().filter(|(_, s)| s.state == SegmentState::Given).map(|(i, _)| i).collect()
    }

    /// Live blocks up or down.
    pub fn count_live(&mut self, id: u32, delta: i64) {
        let s = &mut self.all[id as usize];
        s.live = s.live.checked_add_signed(delta).expect("a segment's live blocks are never below zero");
        self.live_blocks = self.live_blocks.checked_add_signed(delta).expect("the sum of segments");
        if delta < 0 && s.live == 0 && s.state == SegmentState::Closed {
            self.candidates.insert(id);
        }
    }

    pub fn count_tombs(&mut self, id: u32, delta: i64) {
        let s = &mut self.all[id as usize];
        s.tombs = s.tombs.checked_add_signed(delta).expect("a segment's trims are never below zero");
        if delta < 0 && s.tombs == 0 && s.live == 0 && s.state == SegmentState::Closed {
            self.candidates.insert(id);
        }
    }

    /// Notes that a frame of the shard lies in a segment; `sequence` and `chunk` unless it is a local one.
    pub fn note(&mut self, id: u32, shard: ShardId, sequence: Option<Sequence>, chunk: Option<ChunkId>) {
        let c = self.all[id as usize].content.entry(shard).or_default();
        if let Some(s) = sequence {
            c.min = if c.max.0 == 0 { s } else { c.min.min(s) };
            c.max = c.max.max(s);
        }
        if let Some(chunk) = chunk
            && c.chunks.last() != Some(&chunk)
            && !c.chunks.contains(&chunk)
        {
            c.chunks.push(chunk);
        }
    }

    /// `holder` is not given up before `by`.
    pub fn pin(&mut self, holder: u32, by: u32) {
        if holder != by && self.get(by).is_used() {
            self.get_mut(holder).pins.insert(by);
        }
    }

    /// The shard was deleted by a mark in `holder`: nothing before it counts, but it lies there.
    pub fn forget(&mut self, shard: ShardId, holder: u32) {
        let with: Vec<u32> =
            self.used().filter(|(i, s)| *i != holder && s.content.contains_key(&shard)).map(|(i, _)| i).collect();
        for id in with {
            self.get_mut(id).content.remove(&shard);
            self.pin(holder, id);
            self.candidates.insert(id);
        }
        self.get_mut(holder).content.remove(&shard);
        self.candidates.insert(holder);
    }

    /// Gives a segment up; tells what it held.
    pub fn give_up(&mut self, id: u32) -> BTreeMap<ShardId, Content> {
        let s = self.get_mut(id);
        assert!(s.state == SegmentState::Closed && s.live == 0 && s.tombs == 0, "nothing live is given up");
        s.state = SegmentState::Given;
        s.tomb_list = Vec::new();
        let content = std::mem::take(&mut s.content);
        self.used_count -= 1;
        let unpinned: Vec<u32> = self.iter().filter(|(_, s)| s.pins.contains(&id)).map(|(i, _)| i).collect();
        for u in unpinned {
            self.get_mut(u).pins.remove(&id);
            self.candidates.insert(u);
        }
        content
    }
}

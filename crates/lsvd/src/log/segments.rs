//! The table of segments: what each holds, how much of it is live, and which may be used again.
//!
//! Invariants:
//! - `live` is the number of data blocks there that a map names, or a frame that could be cut. It may be higher than
//!   that while nobody has found out that an entry was superseded; so none means none.
//! - `tomb_list` says where trims and zeroes were recorded there, or that its index must be asked; those still in force
//!   are looked up before the segment is given up (rule E1).
//! - A segment that was given up is used again only when a live table without it is durable: until then recovery
//!   still sees it whole, beside everything else that the newest table names.
//! - A segment that went back to the file system is written with zeroes before it is used again, so that no append
//!   meets a hole.
//! - A segment with damage, and one that is lost, stays as it is while a shard misses something or may do so: what tells
//!   of the damage must not go before the damage is mended (rule E7).
//! - A pinned segment is not given up while the segments that pin it are in use: it holds the frame that says that
//!   frames there don't count.

use crate::RuleMutant;
use crate::log::contents::Contents;
use crate::log::tomb_list::TombList;
use freebs_format::CarryEntry;
use freebs_types::{Sequence, ShardId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::Notify;

/// Blocks that die before it is worth looking again for a segment to clean.
const DIED_CHANGE: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Written before (if only with zeroes) and ready for use.
    Ready,
    Open,
    Closed,
    /// Given up, but the newest live table still names it.
    Given,
    /// Holds pages of the map. No live table names it: without a checkpoint that does, it is free.
    Map,
    /// Free, but a hole in the file, or not known to be none.
    Bare,
    /// Nothing in it can be read any more. Live tables go on naming it, so that it is missed at the next start, too.
    Lost,
}
const STATES: usize = 7;

impl SegmentState {
    /// The ways from one state to the next, those of recovery included.
    fn leads_to(self, next: Self) -> bool {
        match next {
            Self::Ready => matches!(self, Self::Given | Self::Map | Self::Bare),
            Self::Open => matches!(self, Self::Ready | Self::Closed),
            Self::Closed => matches!(self, Self::Open | Self::Ready),
            Self::Given => self == Self::Closed,
            Self::Map => self == Self::Ready,
            Self::Bare => matches!(self, Self::Ready | Self::Lost),
            Self::Lost => matches!(self, Self::Ready | Self::Closed),
        }
    }
}

/// Trims and zeroes in force, by shard and slot: a shard that was made anew has nothing to do with them.
pub(crate) type Tombs = BTreeMap<(ShardId, u32), Vec<CarryEntry>>;

#[derive(Debug)]
pub(crate) struct Segment {
    pub state: SegmentState,
    pub seq: u64,
    /// Its first and last append, once it is closed and its index was written or read; zeroes before.
    pub appends: (u64, u64),
    pub live: u64,
    pub content: Contents,
    /// Where trims and zeroes were recorded, so that those still in force are found when they must be carried.
    pub tomb_list: TombList,
    /// What was found of them still in force, to be carried.
    pub tombs: Option<Tombs>,
    /// Last append here that says that a shard was deleted; 0 for none.
    pub forgets: u64,
    /// Segments that must be given up before this one.
    pub pins: BTreeSet<u32>,
    /// Local frames are on their way that let this segment be given up.
    pub leaving: bool,
    /// Its live blocks are being moved.
    pub cleaning: bool,
    /// Cleaning could not empty it: what was live then, and the number of the log's newest segment.
    pub stuck: Option<(u64, u64)>,
    /// A live block of it can't be read, or does not match its CRC: the number of the log's newest segment then.
    pub damaged: Option<u64>,
    /// Blocks that cleaning moved here, and the sum of the ages (as segment numbers) that they brought along.
    pub moved: (u64, u64),
    /// The segment whose live table made this one ready.
    pub freed_by: u64,
    /// Recovery found damage in it: it is what tells that something is lost.
    pub evidence: bool,
    readers: Rc<Cell<u32>>,
}

impl Segment {
    fn new() -> Self {
        Self {
            state: SegmentState::Ready,
            seq: 0,
            appends: (0, 0),
            live: 0,
            content: Contents::default(),
            tomb_list: TombList::default(),
            tombs: None,
            forgets: 0,
            pins: BTreeSet::new(),
            leaving: false,
            cleaning: false,
            stuck: None,
            damaged: None,
            moved: (0, 0),
            freed_by: 0,
            evidence: false,
            readers: Rc::default(),
        }
    }

    /// All that lies here is known: what memory has of it becomes small.
    pub fn seal(&mut self) {
        self.content.pack();
        self.tomb_list.seal();
    }

    pub fn is_used(&self) -> bool {
        matches!(self.state, SegmentState::Open | SegmentState::Closed)
    }

    /// Number of the segment that its data were written to first, in the mean.
    pub fn birth(&self, blocks: u64) -> u64 {
        let (moved, sum) = self.moved;
        (sum + blocks.saturating_sub(moved) * self.seq) / blocks.max(moved).max(1)
    }

    pub fn is_read(&self) -> bool {
        self.readers.get() > 0
    }
}

/// While it exists, a segment's bytes are not written over.
pub(crate) struct ReadGuard {
    readers: Rc<Cell<u32>>,
    freed: Rc<Notify>,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        assert!(self.readers.get() > 0, "a guard is counted as long as it is there");
        self.readers.set(self.readers.get() - 1);
        if self.readers.get() == 0 {
            self.freed.notify_one();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    /// Segments in each state.
    counts: [u32; STATES],
    /// Closed segments that may have become free since they were last looked at.
    pub candidates: BTreeSet<u32>,
    /// Those without live blocks that something else kept; looked at again when a segment closes.
    pub blocked: BTreeSet<u32>,
    /// Those that it takes too much to give up alone; looked at again together with any candidate.
    pub dear: BTreeSet<u32>,
    /// Those whose trims and zeroes must be looked up first.
    pub asked: BTreeSet<u32>,
    /// The one that is being looked at.
    pub asking: Option<u32>,
    pub live_blocks: u64,
    /// Where the log said that it goes on when it was stopped: recovery looks for it there, and nowhere else.
    pub said: Option<u32>,
    /// The segment that the last page of openings names as the next one. Another one may be opened all the same, when a
    /// page has said so first.
    planned: Option<u32>,
    /// Segments that are open or closed.
    pub used_count: u32,
    /// Segments that hold pages of the map.
    pub map_count: u32,
    /// About the bytes that history in memory has grown by since it was last measured.
    past_grown: usize,
    /// Some shard gave up a version that it kept: what was live for it alone is to be found.
    pub prune: bool,
    /// Rises when more segments may be worth cleaning than before.
    pub changes: u64,
    /// Blocks that died so far; those that were moved did not.
    pub died: u64,
    /// Rung when a segment may have become ready: the pool has grown, or a reader has gone.
    pub freed: Rc<Notify>,
    /// The rule that a test leaves out. It is here because shards and all of the core see this table.
    pub mutant: Option<RuleMutant>,
}

impl Segments {
    /// History in memory takes so many bytes more, about.
    pub fn past_grows(&mut self, bytes: usize) {
        self.past_grown += bytes;
    }

    pub fn past_grown(&self) -> usize {
        self.past_grown
    }

    /// History in memory was measured.
    pub fn set_past_grown(&mut self, bytes: usize) {
        self.past_grown = bytes;
    }

    /// Whether a test leaves a rule out.
    pub fn leaves_out(&self, rule: RuleMutant) -> bool {
        self.mutant == Some(rule)
    }

    /// One more, freshly written segment.
    pub fn push(&mut self) -> u32 {
        self.all.push(Segment::new());
        self.counts[SegmentState::Ready as usize] += 1;
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

    /// Whether something is being looked up that may let a segment go.
    pub fn is_asking(&self) -> bool {
        self.asking.is_some() || !self.asked.is_empty()
    }

    /// The lowest ready segment where the log will not go on next.
    pub fn ready_for_map(&self, opening: Option<u32>, avoid: &BTreeSet<u32>) -> Option<u32> {
        let next = self.said().or(opening);
        let fits = |i: u32, s: &Segment| s.state == SegmentState::Ready && !s.is_read() && Some(i) != next;
        let mut all = self.iter().filter(|(i, s)| fits(*i, s) && !avoid.contains(i)).map(|(i, _)| i);
        let first = all.next()?;
        if self.planned == Some(first) { all.next().or(Some(first)) } else { Some(first) }
    }

    /// The segment that is opened next: the one that was planned, or the lowest one that can be opened.
    pub fn ready(&self) -> Option<u32> {
        let can = |s: &Segment| s.state == SegmentState::Ready && !s.is_read();
        let ready = |id: &u32| self.all.get(*id as usize).is_some_and(can);
        if let Some(id) = self.said() {
            return Some(id).filter(ready);
        }
        let lowest = || self.iter().find(|(_, s)| can(s)).map(|(i, _)| i);
        self.planned.filter(ready).or_else(lowest)
    }

    /// Which segment is probably opened behind `opening`: the one that must be, the lowest one that is ready, the lowest
    /// one that is made ready first, or the one by which a device of up to `limit` segments grows.
    pub fn plan(&self, opening: Option<u32>, limit: u32) -> Option<u32> {
        let lowest = |state: SegmentState| {
            let fits = |(id, s): &(u32, &Segment)| s.state == state && !s.is_read() && Some(*id) != opening;
            self.iter().find(fits).map(|(id, _)| id)
        };
        let said = self.said().filter(|id| Some(*id) != opening);
        let there = said.or_else(|| lowest(SegmentState::Ready)).or_else(|| lowest(SegmentState::Bare));
        there.or_else(|| Some(self.len()).filter(|id| *id < limit))
    }
    /// The segment that the last page of openings names as the next one.
    pub fn planned(&self) -> Option<u32> {
        self.planned
    }
    /// A page of openings names this segment as the next one.
    pub fn set_planned(&mut self, next: Option<u32>) {
        self.planned = next;
    }
    pub fn count(&self, state: SegmentState) -> u32 {
        self.counts[state as usize]
    }
    pub fn set_state(&mut self, id: u32, state: SegmentState) {
        let old = std::mem::replace(&mut self.all[id as usize].state, state);
        // A test that leaves rule E5 out has a closed segment used at once.
        assert!(old.leads_to(state) || self.mutant.is_some(), "segment {id}: {old:?} does not become {state:?}");
        self.counts[old as usize] -= 1;
        self.counts[state as usize] += 1;
    }
    /// The segment that must be opened next, while it is free.
    pub fn said(&self) -> Option<u32> {
        let free = |s: &Segment| matches!(s.state, SegmentState::Ready | SegmentState::Bare);
        self.said.filter(|id| self.all.get(*id as usize).is_some_and(free))
    }
    pub fn ready_count(&self) -> u32 {
        self.count(SegmentState::Ready)
    }

    pub fn open(&mut self, id: u32, seq: u64) {
        let s = self.get_mut(id);
        assert!(s.state == SegmentState::Ready && s.live == 0, "only a free segment is opened");
        assert!(!s.is_read(), "what is being read is not written over");
        assert!(!s.leaving, "no local frame is on its way to let a free segment go");
        let readers = s.readers.clone();
        *s = Segment { seq, readers, ..Segment::new() };
        self.said = None;
        self.set_state(id, SegmentState::Open);
        self.used_count += 1;
    }

    pub fn close(&mut self, id: u32) {
        assert_eq!(self.get(id).state, SegmentState::Open, "only the open segment is closed");
        self.set_state(id, SegmentState::Closed);
        self.get_mut(id).seal();
        self.candidates.insert(id);
        self.look_again();
        self.changes += 1;
    }

    /// What a live table names: segments in use, and those that are missed.
    pub fn named(&self) -> impl Iterator<Item = u32> {
        self.iter().filter(|(_, s)| s.is_used() || s.state == SegmentState::Lost).map(|(i, _)| i)
    }

    /// Nothing is missed any more: what was lost is room.
    pub fn forget_lost(&mut self) {
        let lost: Vec<u32> = self.iter().filter(|(_, s)| s.state == SegmentState::Lost).map(|(i, _)| i).collect();
        lost.into_iter().for_each(|id| self.set_state(id, SegmentState::Bare));
    }

    /// What stood against giving segments up may have gone.
    pub fn look_again(&mut self) {
        self.candidates.append(&mut self.blocked);
        self.candidates.append(&mut self.dear);
    }

    /// A segment that recovery found in use.
    pub fn found(&mut self, id: u32, seq: u64) {
        assert!(self.get(id).live == 0, "recovery counts what is live when it has found the segments");
        self.set_state(id, SegmentState::Closed);
        self.get_mut(id).seq = seq;
        self.used_count += 1;
    }

    /// The live table of segment number `by`, without the segments given up so far, is durable.
    pub fn table_durable(&mut self, given: &[u32], by: u64) {
        for id in given {
            if self.get(*id).state == SegmentState::Given {
                self.set_state(*id, SegmentState::Ready);
                self.get_mut(*id).freed_by = by;
            }
        }
    }
    pub fn given(&self) -> Vec<u32> {
        self.iter().filter(|(_, s)| s.state == SegmentState::Given).map(|(i, _)| i).collect()
    }

    /// Live blocks up or down, that were placed or live elsewhere now.
    pub fn count_live(&mut self, id: u32, delta: i64) {
        if delta < 0 {
            // Cleaning does not move anything out of a damaged segment, so this is a repair.
            let mended = self.all[id as usize].damaged.take().is_some();
            self.changes += u64::from(mended);
        }
        self.change_live(id, delta);
    }

    fn change_live(&mut self, id: u32, delta: i64) {
        let s = &mut self.all[id as usize];
        s.live = s.live.checked_add_signed(delta).expect("a segment's live blocks are never below zero");
        self.live_blocks = self.live_blocks.checked_add_signed(delta).expect("the sum of segments");
        if delta < 0 && s.live == 0 && s.state == SegmentState::Closed {
            self.candidates.insert(id);
        }
    }

    /// Live blocks down that live nowhere else now.
    pub fn count_died(&mut self, id: u32, delta: i64) {
        let before = self.died / DIED_CHANGE;
        self.died += delta.unsigned_abs();
        if self.died / DIED_CHANGE != before {
            self.changes += 1;
        }
        self.change_live(id, delta);
    }

    /// Notes that a frame of the shard lies in a segment; `sequence` unless it is a local one.
    pub fn note(&mut self, id: u32, shard: ShardId, sequence: Option<Sequence>) {
        self.all[id as usize].content.note(shard, sequence);
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
            self.used().filter(|(i, s)| *i != holder && s.content.has(shard)).map(|(i, _)| i).collect();
        for id in with {
            let s = self.get_mut(id);
            s.content.remove(shard);
            s.tomb_list.forget(shard);
            self.pin(holder, id);
            self.candidates.insert(id);
        }
        self.changes += 1;
        let s = self.get_mut(holder);
        s.content.remove(shard);
        s.tomb_list.forget(shard);
        self.candidates.insert(holder);
    }

    /// Gives a segment up; tells what it held.
    pub fn give_up(&mut self, id: u32) -> Contents {
        let s = self.get_mut(id);
        assert!(s.state == SegmentState::Closed && s.live == 0, "nothing live is given up");
        assert!(s.pins.is_empty(), "a segment stays while those are there that pin it");
        s.tomb_list = TombList::default();
        let content = std::mem::take(&mut s.content);
        // Rule E5: recovery still reads it as long as the durable live table names it.
        let at_once = self.leaves_out(RuleMutant::GivenUsedAtOnce);
        self.set_state(id, if at_once { SegmentState::Ready } else { SegmentState::Given });
        self.used_count -= 1;
        self.changes += 1;
        let unpinned: Vec<u32> = self.iter().filter(|(_, s)| s.pins.contains(&id)).map(|(i, _)| i).collect();
        for u in unpinned {
            self.get_mut(u).pins.remove(&id);
            self.candidates.insert(u);
        }
        content
    }
}

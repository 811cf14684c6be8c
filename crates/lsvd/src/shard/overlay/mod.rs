//! The state of a shard beyond its committed frames: the frames that a cut could still take back, and their entries.
//!
//! Invariants:
//! - It holds exactly the frames above `committed`, in order, each with the tip before it. The map below it knows
//!   nothing of them, so a cut drops frames here and changes nothing else (rule E4).
//! - `map` is the merge (rule E2) of the entries of these frames and of `held`. Where it has an entry, none below it
//!   is newer; so a lookup that finds one here is done.
//! - `held` are committed entries that came out of order over blocks that these frames write, and no others: each block
//!   of them is in an entry of a frame that is here. They go down behind the frames, so that what goes down is always
//!   newer than what it meets there. Each is held once: where it was recorded anew meanwhile, only the last record
//!   counts, for the others may go with their segments (rule E1).

mod held;

use crate::log::place::At;
use crate::map::extents::Crcs;
use crate::map::extents::Extent;
use crate::map::extents::ExtentMap;
use crate::map::extents::Outcome;
use crate::shard::history::Beaten;
use crate::shard::history::pins::PinOp;
use crate::shard::tip::Tip;
use freebs_format::{ExtentKind, FrameHead};
use freebs_types::{ChunkId, Sequence};
use held::{HeldEntry, HeldMap};
use std::collections::VecDeque;
use std::rc::Rc;

/// A frame that may still be cut, or a mark that put the shard ahead of the frames that are here, and may be of a
/// branch that is cut later.
#[derive(Debug)]
pub(crate) struct Uncommitted {
    pub sequence: Sequence,
    pub before: Tip,
    /// Entries that it brings to the map, in order; none if it is a mark.
    pub entries: Vec<(u32, Extent)>,
    /// Changes of the versions that are kept.
    pub pins: Vec<PinOp>,
    /// Append where it lies.
    pub append: u64,
}

/// A frame that can't be cut any more.
pub(crate) struct Committed {
    pub sequence: Sequence,
    pub pins: Vec<PinOp>,
    pub entries: Vec<(u32, Extent)>,
    /// The parts of held entries that it covers: a cut that comes later must not show them again.
    pub covered: Vec<Beaten>,
    /// Parts of held entries that are as new as it, or newer. They go into the map behind it; the newer ones stay here,
    /// too, for the frames that come later.
    pub again: Vec<(u32, Extent)>,
}

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    frames: VecDeque<Uncommitted>,
    pub map: ExtentMap,
    held: HeldMap,
    outcome: Outcome,
}

/// Takes off what an entry over a range covers.
fn beat(held: &mut HeldMap, start: u32, end: u32, by: &Extent) -> Vec<Beaten> {
    let older = held.take(start, end, |e| e.key() < by.key());
    older.into_iter().map(|(a, e)| (a, e.extent, by.version)).collect()
}

/// Calls `each(address, entry)` for the map entries of a data frame, in the order of its updates.
pub(crate) fn entries(head: &FrameHead, at: At, mut each: impl FnMut(u32, Extent)) {
    let h = head.header();
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
            each(e.range.start.0, extent);
        }
    }
}

impl Overlay {
    /// The first append with one of its frames; and the first that it needs when it is to be made again.
    pub fn first_appends(&self) -> (Option<u64>, Option<u64>) {
        let frames = self.frames.iter().map(|f| f.append).min();
        (frames, frames.into_iter().chain(self.held.first_append()).min())
    }

    /// A frame behind the others, or between them where one was missing. It takes the place of a mark that put the shard
    /// up to it.
    pub fn put(&mut self, mut frame: Uncommitted) {
        let i = self.frames.partition_point(|f| f.sequence < frame.sequence);
        frame.entries.iter().for_each(|(a, e)| self.map.insert(*a, e.clone(), &mut self.outcome));
        match self.frames.get_mut(i).filter(|f| f.sequence == frame.sequence) {
            Some(mark) => {
                assert!(mark.entries.is_empty(), "each frame is here once");
                // The mark says what the frame alone does not: it must be there when this is made again.
                frame.append = frame.append.min(mark.append);
                *mark = frame;
            }
            None => self.frames.insert(i, frame),
        }
    }

    /// The frame of this sequence.
    pub fn get(&self, s: Sequence) -> Option<&Uncommitted> {
        self.frames.iter().find(|f| f.sequence == s)
    }

    /// True if a frame that is here names the blocks of an entry that came with a carry.
    pub fn names(&self, e: &Extent) -> bool {
        let is_its = |x: &Extent| x.is_data() && x.chunk == e.chunk && x.key() == e.key();
        e.is_data() && self.get(e.sequence).is_some_and(|f| f.entries.iter().any(|(_, x)| is_its(x)))
    }

    /// The first frame behind a sequence, whose tip before is changed by a repair.
    pub fn after(&mut self, s: Sequence) -> Option<&mut Uncommitted> {
        let i = self.frames.partition_point(|f| f.sequence <= s);
        self.frames.get_mut(i)
    }

    /// The parts of a range, and whether these frames write them.
    pub fn parts(&self, start: u32, end: u32) -> Vec<(u32, u32, bool)> {
        let (mut parts, mut at) = (Vec::new(), start);
        for (a, _, _, len) in self.map.range(start, end) {
            if at < a {
                parts.push((at, a, false));
            }
            match parts.last_mut() {
                Some((_, to, true)) if *to == a => *to = a + len,
                _ => parts.push((a, a + len, true)),
            }
            at = a + len;
        }
        if at < end {
            parts.push((at, end, false));
        }
        parts
    }

    /// Keeps a committed entry of blocks that these frames write, or that the next one does, in the append that recorded
    /// it last; none (`None`) if it is in the map below already. Gives back what it covers of the others.
    pub fn hold(&mut self, start: u32, extent: Extent, append: Option<u64>) -> Vec<Beaten> {
        let end = start + extent.len;
        self.map.insert(start, extent.clone(), &mut self.outcome);
        let covered = beat(&mut self.held, start, end, &extent);
        let before = self.held.take(start, end, |h| h.key() == extent.key());
        // An entry that is said to be below may be held only.
        let append = append.or_else(|| before.iter().map(|(_, h)| h.append).min());
        self.held.put(start, &HeldEntry { extent, append: append.unwrap_or(u64::MAX) });
        covered
    }

    /// Committed entries that are held here, in order of their address.
    pub fn held(&self) -> impl Iterator<Item = (u32, &Extent)> {
        self.held.iter().map(|(a, h)| (a, &h.extent))
    }

    /// The parts of them that lie in a range.
    pub fn held_in(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, Extent)> {
        self.held.range(start, end)
    }

    /// Takes the first frame if it is committed; its entries are those of the map below from now on.
    pub fn commit(&mut self, committed: Sequence) -> Option<Committed> {
        let f = self.frames.pop_front_if(|f| f.sequence <= committed)?;
        let Uncommitted { sequence, pins, entries, .. } = f;
        let mut out = Committed { sequence, pins, entries, covered: Vec::new(), again: Vec::new() };
        if self.frames.is_empty() && self.held.is_empty() {
            self.map.clear();
            return Some(out);
        }
        let Self { map, held, .. } = self;
        for (start, e) in &out.entries {
            let (start, end) = (*start, start + e.len);
            map.take(start, end, |x| x.sequence == sequence);
            if held.is_empty() {
                continue;
            }
            out.covered.extend(beat(held, start, end, e));
            // The entry itself may have come before its frame. What is above it in `map` has just gone, so it must not
            // be held any longer: nobody would find it there and say where its record has moved.
            let same = held.take(start, end, |h| h.key() == e.key());
            out.again.extend(same.into_iter().map(|(a, h)| (a, h.extent)));
            out.again.extend(held.range(start, end));
        }
        self.let_go(&out.entries);
        if self.frames.is_empty() {
            assert!(self.held.is_empty(), "what is held lies over or under a frame");
            self.map.clear();
        }
        Some(out)
    }

    /// Holds no longer what only the frame with these entries wrote, which has been taken. What of that is left is newer
    /// than the frame, and goes down behind it.
    fn let_go(&mut self, entries: &[(u32, Extent)]) {
        for (start, e) in entries {
            if self.held.is_empty() {
                return;
            }
            // Only a map that is learned brings what is newer than a frame; else nothing is found here.
            let ranges: Vec<(u32, u32)> = self.held.range(*start, start + e.len).map(|(a, h)| (a, a + h.len)).collect();
            for (start, end) in ranges {
                for (from, to) in self.unwritten(start, end) {
                    self.held.take(from, to, |_| true);
                    self.map.take(from, to, |_| true);
                }
            }
        }
    }

    /// The parts of a range that none of these frames writes.
    fn unwritten(&self, start: u32, end: u32) -> Vec<(u32, u32)> {
        let mut left = vec![(start, end)];
        for (a, e) in self.frames.iter().flat_map(|f| &f.entries) {
            let (a, b) = (*a, a + e.len);
            if left.iter().any(|(from, to)| *from < b && a < *to) {
                let cut = left.into_iter().flat_map(|(from, to)| [(from, to.min(a)), (from.max(b), to)]);
                left = cut.filter(|(from, to)| from < to).collect();
            }
        }
        left
    }

    /// Takes the last frame if it lies behind `to`. `rebuild` follows when all are gone.
    pub fn cut(&mut self, to: Sequence) -> Option<Uncommitted> {
        self.frames.pop_back_if(|f| f.sequence > to)
    }

    /// Makes the map anew from the frames that are left. Gives back what is no longer held, because none of them writes
    /// it: it goes down.
    pub fn rebuild(&mut self) -> Vec<(u32, Extent)> {
        self.map = ExtentMap::default();
        let Self { frames, map, outcome, .. } = self;
        for f in frames.iter() {
            f.entries.iter().for_each(|(a, e)| map.insert(*a, e.clone(), outcome));
        }
        let before = std::mem::take(&mut self.held);
        let mut gone = Vec::new();
        let parts = before.iter().map(|(a, h)| (a, h, self.parts(a, a + h.extent.len))).collect::<Vec<_>>();
        for (start, h, parts) in parts {
            for (from, to, is_written) in parts {
                let extent = h.extent.piece(from - start, to - from);
                if is_written {
                    self.map.insert(from, extent.clone(), &mut self.outcome);
                    self.held.put(from, &HeldEntry { extent, append: h.append });
                } else {
                    gone.push((from, extent));
                }
            }
        }
        gone
    }

    pub fn frames(&self) -> impl Iterator<Item = &Uncommitted> {
        self.frames.iter()
    }

    /// Holds what is here against the invariants; for tests.
    pub fn check(&self) {
        for (a, h) in self.held() {
            assert!(self.unwritten(a, a + h.len).is_empty(), "blocks from {a} on are held for no frame: {h:?}");
            let newer = |x: &Extent| x.key() >= h.key();
            let parts = self.parts(a, a + h.len);
            assert!(parts.iter().all(|p| p.2) && self.map.range(a, a + h.len).all(|(_, x, ..)| newer(x)));
        }
    }
}

#[cfg(test)]
mod tests;

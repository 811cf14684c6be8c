//! What a shard knows beyond its committed frames: the frames that a cut could still take back, and their entries.
//!
//! Invariants:
//! - It holds exactly the frames above `committed`, in order, each with the tip before it. The map below it knows
//!   nothing of them, so a cut drops frames here and changes nothing else (rule E4).
//! - `map` is the merge (rule E2) of the entries of these frames and of `held`. Where it has an entry, none below it
//!   is newer; so a lookup that finds one here is done.
//! - `held` are committed entries that came out of order over blocks that these frames write. They go down behind
//!   the frames, so that what goes down is always newer than what it meets there. Each is held once: where it was recorded
//!   anew meanwhile, only the last record counts, for the others may go with their segments (rule E1).

use crate::log::place::At;
use crate::map::extents::{Crcs, Extent, ExtentMap, Outcome};
use crate::shard::history::Beaten;
use crate::shard::history::pins::PinOp;
use crate::shard::tip::Tip;
use freebs_format::{ExtentKind, FrameHead};
use freebs_types::{ChunkId, Sequence};
use std::collections::VecDeque;
use std::rc::Rc;

/// A frame that may still be cut, or a mark that put the shard ahead of the frames that are here, and may be of a
/// branch that is cut later.
#[derive(Debug)]
pub(crate) struct Uncommitted {
    pub sequence: Sequence,
    pub before: Tip,
    /// What it brings to the map, in order; nothing if it is a mark.
    pub entries: Vec<(u32, Extent)>,
    /// What it changes of the versions that are kept.
    pub pins: Vec<PinOp>,
    /// Append where it lies.
    pub append: u64,
}

/// A frame that can't be cut any more.
pub(crate) struct Committed {
    pub sequence: Sequence,
    pub pins: Vec<PinOp>,
    pub entries: Vec<(u32, Extent)>,
    /// What it covers of the held entries: a cut that comes later must not show them again.
    pub covered: Vec<Beaten>,
    /// Parts of held entries that are as new as it, or newer. They go into the map behind it; the newer ones stay here,
    /// too, for the frames that come later.
    pub again: Vec<(u32, Extent)>,
}

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    frames: VecDeque<Uncommitted>,
    pub map: ExtentMap,
    held: Vec<Held>,
    outcome: Outcome,
}

#[derive(Debug)]
struct Held {
    start: u32,
    extent: Extent,
    append: u64,
}

impl Held {
    fn end(&self) -> u32 {
        self.start + self.extent.len
    }
    fn overlaps(&self, start: u32, end: u32) -> bool {
        self.start < end && start < self.end()
    }
}

/// Takes the parts in `[start, end)` of those held entries that `which` names.
fn take(held: &mut Vec<Held>, start: u32, end: u32, which: impl Fn(&Extent) -> bool) -> Vec<Held> {
    let mut taken = Vec::new();
    let named = |h: &mut Held| h.overlaps(start, end) && which(&h.extent);
    for h in held.extract_if(.., named).collect::<Vec<_>>() {
        let (a, b) = (h.start.max(start), h.end().min(end));
        let piece = |from: u32, to: u32| Held { start: from, extent: h.extent.piece(from - h.start, to - from), ..h };
        taken.push(piece(a, b));
        held.extend([(h.start, a), (b, h.end())].into_iter().filter(|(x, y)| x < y).map(|(x, y)| piece(x, y)));
    }
    taken
}

/// Takes off what an entry over `[start, end)` covers of those that are held.
fn beat(held: &mut Vec<Held>, start: u32, end: u32, by: &Extent) -> Vec<Beaten> {
    let older = take(held, start, end, |h| h.key() < by.key());
    older.into_iter().map(|h| (h.start, h.extent, by.version)).collect()
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
        (frames, frames.into_iter().chain(self.held.iter().map(|h| h.append)).min())
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

    /// The first frame behind a sequence, whose tip before is changed by a repair.
    pub fn after(&mut self, s: Sequence) -> Option<&mut Uncommitted> {
        let i = self.frames.partition_point(|f| f.sequence <= s);
        self.frames.get_mut(i)
    }

    /// Keeps a committed entry that lies over or under one of these frames, in the append that recorded it last; none
    /// (`None`) if it is in the map below already. Gives back what it covers of the others.
    pub fn hold(&mut self, start: u32, extent: Extent, append: Option<u64>) -> Vec<Beaten> {
        let end = start + extent.len;
        self.map.insert(start, extent.clone(), &mut self.outcome);
        let covered = beat(&mut self.held, start, end, &extent);
        let before = take(&mut self.held, start, end, |h| h.key() == extent.key());
        // An entry that is said to be below may be held only.
        let append = append.or_else(|| before.iter().map(|h| h.append).min());
        self.held.push(Held { start, extent, append: append.unwrap_or(u64::MAX) });
        covered
    }

    /// Committed entries that are held here, in the order in which they came.
    pub fn held(&self) -> impl Iterator<Item = (u32, &Extent)> {
        self.held.iter().map(|h| (h.start, &h.extent))
    }

    /// Takes the first frame if it is committed; its entries are those of the map below from now on.
    pub fn commit(&mut self, committed: Sequence) -> Option<Committed> {
        let f = self.frames.pop_front_if(|f| f.sequence <= committed)?;
        assert!(self.frames.front().is_none_or(|next| next.sequence > f.sequence), "frames lie in order");
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
            out.covered.extend(beat(held, start, end, e));
            // The entry itself may have come before its frame. What is above it in `map` has just gone, so it must not
            // be held any longer: nobody would find it there and say where its record has moved.
            let same = take(held, start, end, |h| h.key() == e.key());
            out.again.extend(same.into_iter().map(|h| (h.start, h.extent)));
            for h in held.iter().filter(|h| h.overlaps(start, end)) {
                let (a, b) = (h.start.max(start), h.end().min(end));
                out.again.push((a, h.extent.piece(a - h.start, b - a)));
            }
        }
        Some(out)
    }

    /// Takes the last frame if it lies behind `to`. `rebuild` follows when all are gone.
    pub fn cut(&mut self, to: Sequence) -> Option<Uncommitted> {
        self.frames.pop_back_if(|f| f.sequence > to)
    }

    /// Makes the map anew from the frames that are left.
    pub fn rebuild(&mut self) {
        self.map = ExtentMap::default();
        let Self { frames, map, held, outcome } = self;
        for f in frames.iter() {
            f.entries.iter().for_each(|(a, e)| map.insert(*a, e.clone(), outcome));
        }
        for h in held.iter() {
            map.insert(h.start, h.extent.clone(), outcome);
        }
    }

    /// What was held goes down, once there is no frame left.
    pub fn let_go(&mut self) -> Vec<(u32, Extent)> {
        if !self.frames.is_empty() {
            return Vec::new();
        }
        self.map = ExtentMap::default();
        std::mem::take(&mut self.held).into_iter().map(|h| (h.start, h.extent)).collect()
    }

    pub fn frames(&self) -> impl Iterator<Item = &Uncommitted> {
        self.frames.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::Version;

    fn zero(home: u32) -> Extent {
        Extent {
            len: 3,
            kind: ExtentKind::Zero,
            version: Version(8),
            sequence: Sequence(10),
            chunk: ChunkId::default(),
            offset: home,
            crcs: Crcs::None,
        }
    }

    fn frame(sequence: u64, entries: Vec<(u32, Extent)>) -> Uncommitted {
        Uncommitted {
            sequence: Sequence(sequence),
            before: Tip::default(),
            pins: Vec::new(),
            entries,
            append: sequence,
        }
    }

    /// A zero was learned ahead of its frame, then the frame came and was committed while others were not. The learned
    /// one went on being held, where nothing above it told so: the record of it was carried to another segment again
    /// and again, for the held one stood where it had been, and the writer never did anything else.
    #[test]
    fn what_came_ahead_of_its_frame_is_not_held_behind_it() {
        let mut o = Overlay::default();
        o.hold(77, zero(1), Some(5));
        o.put(frame(10, vec![(77, zero(2))]));
        o.put(frame(11, Vec::new()));
        let done = o.commit(Sequence(10)).unwrap();
        assert_eq!((done.entries.len(), done.covered.len(), done.again.len()), (1, 0, 1));
        assert_eq!((done.again[0].0, done.again[0].1.len), (77, 3));
        assert!(o.map.range(77, 80).next().is_none());
        assert_eq!(o.held().count(), 0);
    }

    /// The parts that the frame does not write go on being held.
    #[test]
    fn only_what_the_frame_writes_is_let_go() {
        let mut o = Overlay::default();
        o.hold(77, zero(1), Some(5));
        o.put(frame(10, vec![(78, zero(2).piece(0, 1))]));
        o.put(frame(11, Vec::new()));
        let done = o.commit(Sequence(10)).unwrap();
        assert_eq!(done.again.iter().map(|(a, e)| (*a, e.len)).collect::<Vec<_>>(), [(78, 1)]);
        let mut held: Vec<_> = o.held().map(|(a, e)| (a, e.len)).collect();
        held.sort_unstable();
        assert_eq!(held, [(77, 1), (79, 1)]);
        assert_eq!(o.map.range(77, 80).map(|(a, ..)| a).collect::<Vec<_>>(), [77, 79]);
    }

    /// An entry that was recorded again while it was held was held twice, and the first record was the one that counted.
    #[test]
    fn the_last_record_of_what_is_held_counts() {
        let mut o = Overlay::default();
        o.put(frame(11, vec![(70, Extent { sequence: Sequence(11), version: Version(9), ..zero(4) }.piece(0, 3))]));
        o.hold(70, zero(1), Some(5));
        o.hold(70, zero(2), Some(7));
        o.hold(71, zero(3).piece(0, 1), Some(8));
        let list = |o: &Overlay| {
            let mut held: Vec<_> = o.held.iter().map(|h| (h.start, h.extent.len, h.extent.offset, h.append)).collect();
            held.sort_unstable();
            held
        };
        assert_eq!(list(&o), [(70, 1, 2, 7), (71, 1, 3, 8), (72, 1, 2, 7)]);
        // An entry that is said to be in the map below is held only: it is not there before a checkpoint has it from the log.
        o.hold(72, zero(2).piece(0, 1), None);
        assert_eq!(list(&o), [(70, 1, 2, 7), (71, 1, 3, 8), (72, 1, 2, 7)]);
        let done = o.commit(Sequence(11)).unwrap();
        let mut covered: Vec<_> = done.covered.iter().map(|(a, e, by)| (*a, e.len, e.offset, by.0)).collect();
        covered.sort_unstable();
        assert_eq!(covered, [(70, 1, 2, 9), (71, 1, 3, 9), (72, 1, 2, 9)]);
    }
}

//! What a shard's log misses: ranges of lost frames, and blocks that cleaning had moved into an append that is lost.
//!
//! Invariants (rule E7):
//! - A gap in the sequence is a hole until its frames are put back, or what they placed was learned, or a mark says that
//!   they had been released. The last does not count where an append is known to be lost.
//! - If the frame that cut a tail may be lost, all of the tail that is not known to be committed is missed: what comes behind
//!   the loss commits by sequence, and would take frames of the branch for those of the chain.
//! - A frame that makes no sense is missed, too: behind the last one that counts it leaves a suspect tail.
//! - A promise leaves no gap: if an append is lost and no mark came behind it, there may have been one.
//! - Moved blocks leave no gap, so when an append is lost all frames that were given up are missed again.

use crate::log::place::At;
use crate::shard::Shard;
use freebs_format::{FrameHead, ViewBody};
use freebs_types::{Hash32, Sequence, Version, ViewNumber};

/// A range of lost frames. A soft one goes away when a mark says that they had been released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub from: u64,
    pub to: u64,
    pub hard: bool,
    /// None of its frames has a version up to here: that of the frame before it, or lower if nobody knows.
    pub front: Version,
}

impl Shard {
    /// Whether append `damaged` (0 for none), of which something is lost, may have held frames behind our last one. The
    /// very append of our last frame may, too: its heads are lost from one of them on.
    pub fn may_miss(&self, damaged: u64) -> bool {
        damaged > 0 && self.last_append <= damaged
    }

    /// True if frames behind the last committed one may have been cut by one that is lost, as a frame or mark of view `view` at
    /// `s` says, and the name in front of it, if it is known. A tail is cut by the frame of a view only, and in a log of which
    /// nothing is lost that frame outlives the tail. The only member of a view seals all that it has.
    pub fn misses_its_cut(&self, s: Sequence, (view, before): (ViewNumber, Option<Hash32>), damaged: u64) -> bool {
        let tip = &self.tip.name;
        if tip.sequence.0 == 0 || view == tip.view {
            return false;
        }
        if s == tip.sequence.next() && before.is_some() {
            return before != Some(tip.hid);
        }
        let is_alone = self.views.last().is_some_and(|(_, f)| {
            f.view() == tip.view && ViewBody::decode(f.body()).is_ok_and(|v| v.members.len() == 1)
        });
        tip.sequence > self.committed && self.may_miss(damaged) && !is_alone
    }

    /// True if append `damaged` (0 for none) may have held a promise of ours. It has no sequence, and so leaves no gap, wherever
    /// in the log it was: frames of older views may follow it.
    pub fn may_miss_promise(&self, damaged: u64) -> bool {
        damaged > 0 && self.last_mark <= damaged
    }

    /// An append is lost. It may have held blocks of ours that cleaning moved there. Their frames were given up, so that
    /// no gap in the sequence tells of them.
    pub fn lost_append(&mut self) {
        self.moved = self.moved.max(self.tip.name.sequence.0);
        self.missed = 0;
        self.miss_moved();
    }

    /// A frame that makes no sense does not count. It may be of the chain, and as the last one it leaves no gap.
    pub fn without(&mut self, at: At, why: &'static str) -> &'static str {
        self.refused(at);
        why
    }

    /// The frame at this place makes no sense, so its content is not known.
    pub fn refused(&mut self, at: At) {
        (self.suspect, self.suspect_told, self.refused) = (true, false, at.append);
    }

    /// True if the frame behind our last one puts its data into its chunk before the end of that one's. A block of a chunk is
    /// written once, and a view's head fills its chunks in order.
    pub fn is_over_written(&self, head: &FrameHead) -> bool {
        let (h, tip) = (head.header(), &self.tip);
        h.data_blocks() > 0
            && head.view() == tip.name.view
            && (h.chunk(), h.chunk_offset.get()) < (tip.chunk, tip.chunk_blocks)
    }

    /// From here on frames are given up by an engine that knows what is lost. If an append is lost, the mark that says of
    /// the frames before it that they had been released may be lost with what was moved of them.
    pub fn replayed(&mut self) {
        let moved = self.moved;
        self.holes.iter_mut().filter(|h| h.from <= moved).for_each(|h| h.hard = true);
        (self.moved, self.missed) = (0, 0);
        self.frames.replayed();
    }

    /// Of what a lost append may have held, all that was given up is missed: only a frame that is still in the log has
    /// its blocks there, too.
    pub fn miss_moved(&mut self) {
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
            self.holes.push(Hole { from, to, hard: true, front: Version(0) });
        }
        self.holes.sort_by_key(|h| h.from);
    }

    pub fn add_hole(&mut self, from: u64, to: u64, hard: bool, front: Version) {
        self.holes.push(Hole { from, to, hard, front });
        self.trim_holes();
    }

    /// Of the frames up to one nothing is here.
    pub fn lose_upto(&mut self, to: u64) {
        self.holes.iter_mut().for_each(|h| h.from = h.from.max(to.saturating_add(1)));
        self.holes.insert(0, Hole { from: 1, to, hard: true, front: Version(0) });
        self.trim_holes();
    }

    pub fn trim_holes(&mut self) {
        let released = self.released.0;
        for h in &mut self.holes {
            if !h.hard {
                h.from = h.from.max(released + 1);
            }
        }
        self.holes.retain(|h| h.from <= h.to);
    }

    /// The log goes on elsewhere behind `to`, and `last` is the last frame that is left; it lies behind `to` if that one is
    /// in front of a hole. Frames that are missing behind `to` may have been told durable and be of the chain, too, so the
    /// tail is suspect until it was compared.
    pub fn cut_holes(&mut self, to: u64, last: u64) {
        if self.holes.iter().any(|h| h.to > to) {
            (self.suspect, self.suspect_told) = (true, false);
        }
        self.holes.retain(|h| h.from <= last);
        self.holes.iter_mut().for_each(|h| h.to = h.to.min(last));
    }

    /// Gives back the last frame of the hole, if `s` is in one.
    pub fn fill_hole(&mut self, s: u64) -> Option<u64> {
        let i = self.holes.iter().position(|h| h.from <= s && s <= h.to)?;
        let h = self.holes.remove(i);
        for part in [Hole { to: s - 1, ..h }, Hole { from: s + 1, ..h }] {
            if part.from <= part.to {
                self.holes.push(part);
            }
        }
        self.holes.sort_by_key(|h| h.from);
        Some(h.to)
    }
}

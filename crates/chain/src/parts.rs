//! Frames for a hole that a cut could still take back are of the right branch only if the frame behind the hole says so.
//! One answer may not reach that far. Then its frames wait here for the next ones.
//!
//! Invariant: the frames follow one another, and the first one follows what is in front of the hole.

use crate::repair::Hole;
use crate::replica::{TailEntry, weight};
use freebs_format::Frame;
use freebs_format::wire::FrameName;
use freebs_types::{Sequence, limits};

/// A head orders no more while so much is not committed, and the last frame of it may be of any size.
const PARTS_BYTES_MAX: usize = limits::SHARD_WINDOW_BYTES + limits::FRAME_DATA_BYTES_MAX + limits::FRAME_HEAD_BYTES_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    frames: Vec<Frame>,
    /// What is under way was asked for in parts: who answers gives also what is not committed.
    asked: bool,
}

impl Parts {
    /// The frame behind which to go on, and whether the answer may be a part of what is not committed.
    pub fn ask(&mut self, hole: &Hole, committed: Sequence) -> (FrameName, bool) {
        let frames = self.take_for(hole);
        let last = frames.last().map_or(hole.before, |f| TailEntry::of(&f.head).name);
        (self.frames, self.asked) = (frames, hole.end.is_some() && hole.until > committed);
        (last, self.asked)
    }

    /// What waits for this hole.
    pub fn take_for(&mut self, hole: &Hole) -> Vec<Frame> {
        let frames = std::mem::take(&mut self.frames);
        let first = frames.first().map(|f| (f.head.seq(), f.head.before().hid));
        if first == Some((hole.before.sequence.next(), hole.before.hid)) { frames } else { Vec::new() }
    }

    /// How many of the frames are of the chain for sure; `None` if the frame behind the hole is of another branch than
    /// they. Without that frame's word the head of the view is right, and the frames themselves say what was committed
    /// before them. Who was not asked for a part and gives one gives what is committed.
    pub fn sure(&self, hole: &Hole, frames: &[Frame], from_head: bool) -> Option<usize> {
        let last = frames.last().map(|f| TailEntry::of(&f.head).name)?;
        let is_whole = last.sequence >= hole.until;
        match hole.end {
            Some(end) if is_whole => return (end == last.hid).then_some(frames.len()),
            None if is_whole && !from_head => {}
            _ if is_whole || !self.asked => return Some(frames.len()),
            _ => {}
        }
        let committed = frames.iter().map(|f| f.header().committed_seq()).max().unwrap_or_default();
        Some(frames.iter().take_while(|f| f.head.seq() <= committed).count())
    }

    /// Keeps frames until those behind them have come; `false` if they are too many.
    pub fn keep(&mut self, frames: Vec<Frame>) -> bool {
        let fits = frames.iter().map(weight).sum::<usize>() <= PARTS_BYTES_MAX;
        self.frames = if fits { frames } else { Vec::new() };
        fits
    }

    pub fn clear(&mut self) {
        self.frames.clear();
    }
}

//! The frame index of a shard: sequence -> place of the frame in the log.
//!
//! Invariants: places are kept by sequence without gaps in the deque (a missing frame has an empty place); the last
//! one is the shard's last frame, or the deque is empty. A jump over more than `GAP_MAX` frames drops what was
//! before, so that no number from outside makes the deque large. While the log is replayed, what was forgotten for want
//! of memory is still known to be in the log.

use freebs_types::Sequence;
use std::collections::VecDeque;

/// Missing frames in a row that are kept as empty places.
const GAP_MAX: u64 = 4096;
/// Runs of frames that are known to be in the log although their places are forgotten. With more, the oldest count as
/// missing, which is a false alarm at worst.
const FORGOTTEN_MAX: usize = 4096;
const NONE: u32 = u32::MAX;

/// Where a frame lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePlace {
    pub segment: u32,
    pub head_at: u32,
    pub head_len: u32,
    pub data_at: u32,
    pub data_len: u32,
    /// First bytes of the `hid`, enough to tell a repeat from another frame of that number.
    pub hid: u64,
}

impl FramePlace {
    const EMPTY: Self = Self { segment: NONE, head_at: 0, head_len: 0, data_at: 0, data_len: 0, hid: 0 };

    fn is_empty(&self) -> bool {
        self.segment == NONE
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FrameIndex {
    /// Sequence of the first place.
    first: u64,
    places: VecDeque<FramePlace>,
    /// Highest sequence below the last one that has no place.
    missing: u64,
    /// Frames whose places were forgotten while the log was replayed, as runs: first and last.
    forgotten: VecDeque<(u64, u64)>,
}

impl FrameIndex {
    pub fn get(&self, s: Sequence) -> Option<FramePlace> {
        let i = usize::try_from(s.0.checked_sub(self.first)?).ok()?;
        self.places.get(i).copied().filter(|p| !p.is_empty())
    }

    /// Puts the next frame behind all others; frames in between are missing.
    pub fn push(&mut self, s: Sequence, place: FramePlace) {
        let next = self.first + self.places.len() as u64;
        if self.places.is_empty() || s.0 < next || s.0 - next > GAP_MAX {
            self.known_to(s.0.saturating_sub(1));
            self.places.clear();
            self.first = s.0;
            self.missing = s.0.saturating_sub(1);
        } else if s.0 > next {
            self.missing = s.0 - 1;
            self.places.extend((next..s.0).map(|_| FramePlace::EMPTY));
        }
        self.places.push_back(place);
        assert_eq!(self.first + self.places.len() as u64 - 1, s.0, "the last place is that of the last frame");
        assert!(self.missing < s.0, "the last frame is there");
    }

    /// A new place for a frame at or before the last one. `false` if it lies before everything that is kept.
    pub fn replace(&mut self, s: Sequence, place: FramePlace) -> bool {
        let Some(p) = s.0.checked_sub(self.first).and_then(|i| self.places.get_mut(i as usize)) else { return false };
        *p = place;
        if s.0 == self.missing {
            self.find_missing();
        }
        true
    }

    fn find_missing(&mut self) {
        let back = self.places.iter().rev().position(FramePlace::is_empty);
        self.missing = match back {
            Some(n) => self.first + (self.places.len() - 1 - n) as u64,
            None => self.first.saturating_sub(1),
        };
    }

    /// Forgets frames behind `to`; gives back their segments.
    pub fn cut(&mut self, to: Sequence) -> Vec<u32> {
        self.known_to(to.0);
        let keep = (to.0 + 1).saturating_sub(self.first).min(self.places.len() as u64) as usize;
        let gone: Vec<u32> = self.places.drain(keep..).filter(|p| !p.is_empty()).map(|p| p.segment).collect();
        while self.places.back().is_some_and(FramePlace::is_empty) {
            self.places.pop_back();
        }
        if self.places.is_empty() {
            self.first = 0;
            self.missing = to.0;
        } else {
            self.find_missing();
        }
        assert!(self.places.back().is_none_or(|p| !p.is_empty()), "the last place is one");
        gone
    }

    /// Forgets the frames from `lo` to `hi` that lie in a segment.
    pub fn drop_segment(&mut self, lo: Sequence, hi: Sequence, segment: u32) {
        let from = lo.0.saturating_sub(self.first) as usize;
        let to = ((hi.0 + 1).saturating_sub(self.first) as usize).min(self.places.len());
        for i in from.min(to)..to {
            if self.places[i].segment == segment {
                self.places[i] = FramePlace::EMPTY;
                self.missing = self.missing.max(self.first + i as u64);
            }
        }
        while self.places.front().is_some_and(FramePlace::is_empty) {
            self.places.pop_front();
            self.first += 1;
        }
        assert!(self.places.front().is_none_or(|p| !p.is_empty()), "the first place is one");
    }

    /// Forgets frames in segments that are not there any more.
    pub fn keep_segments(&mut self, keep: impl Fn(u32) -> bool) {
        self.places.iter_mut().filter(|p| !keep(p.segment)).for_each(|p| *p = FramePlace::EMPTY);
        while self.places.back().is_some_and(FramePlace::is_empty) {
            self.places.pop_back();
        }
        while self.places.front().is_some_and(FramePlace::is_empty) {
            self.places.pop_front();
            self.first += 1;
        }
        self.find_missing();
    }

    /// The first sequence from which there is no gap up to the last frame.
    pub fn first_kept(&self) -> Sequence {
        Sequence(self.missing.saturating_add(1).max(self.first))
    }

    /// The newest places up to `to`, without a gap, at most `n`: the first sequence and the places in order.
    pub fn newest(&self, to: Sequence, n: usize) -> (Sequence, Vec<FramePlace>) {
        let end = (to.0 + 1).saturating_sub(self.first).min(self.places.len() as u64) as usize;
        let mut list: Vec<_> = self.places.range(..end).rev().take_while(|p| !p.is_empty()).take(n).copied().collect();
        list.reverse();
        (Sequence(self.first + (end - list.len()) as u64), list)
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether a frame is older than all whose places are known.
    pub fn is_before_all(&self, s: Sequence) -> bool {
        self.places.is_empty() || s.0 < self.first
    }

    /// Forgets the oldest places until `n` are left. While the log is replayed, `absent` still has to know of them.
    pub fn shrink(&mut self, n: usize, replaying: bool) {
        let gone = self.places.len().saturating_sub(n);
        let places = self.places.drain(..gone).zip(self.first..);
        for (_, s) in places.filter(|(p, _)| replaying && !p.is_empty()) {
            match self.forgotten.back_mut() {
                Some(last) if last.1 + 1 == s => last.1 = s,
                _ => self.forgotten.push_back((s, s)),
            }
        }
        let many = self.forgotten.len().saturating_sub(FORGOTTEN_MAX);
        self.forgotten.drain(..many);
        self.first += gone as u64;
        self.missing = self.missing.max(self.first.saturating_sub(1));
    }

    /// Frames behind `to` are none that were forgotten.
    fn known_to(&mut self, to: u64) {
        while self.forgotten.pop_back_if(|f| f.0 > to).is_some() {}
        if let Some(last) = self.forgotten.back_mut() {
            last.1 = last.1.min(to);
        }
    }

    /// The log has been replayed: what is forgotten from here on need not be known any more.
    pub fn replayed(&mut self) {
        self.forgotten = VecDeque::new();
    }

    /// Runs of frames from `from` to `to` that are not in the log.
    pub fn absent(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (mut out, mut next) = (Vec::new(), from);
        let places = self.places.iter().zip(self.first..).filter(|(p, _)| !p.is_empty());
        let there = self.forgotten.iter().copied().chain(places.map(|(_, s)| (s, s)));
        for (first, last) in there.filter(|(first, last)| *first <= to && *last >= from) {
            if next < first {
                out.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= to {
            out.push((next, to));
        }
        out
    }

    /// Places from `s` on, up to the first missing one.
    pub fn from(&self, s: Sequence) -> impl Iterator<Item = (Sequence, FramePlace)> {
        let i = s.0.checked_sub(self.first).and_then(|i| usize::try_from(i).ok()).unwrap_or(usize::MAX);
        let i = i.min(self.places.len());
        self.places
            .range(i..)
            .take_while(|p| !p.is_empty())
            .enumerate()
            .map(move |(n, p)| (Sequence(s.0 + n as u64), *p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32) -> FramePlace {
        FramePlace { segment, ..FramePlace::EMPTY }
    }
    fn seqs(f: &FrameIndex, from: u64) -> Vec<u64> {
        f.from(Sequence(from)).map(|(s, _)| s.0).collect()
    }

    #[test]
    fn gaps_cuts_and_freed_segments() {
        let mut f = FrameIndex::default();
        assert_eq!(f.first_kept(), Sequence(1));
        for s in 1..=10 {
            f.push(Sequence(s), place(s as u32 / 4));
        }
        assert_eq!(f.first_kept(), Sequence(1));
        f.push(Sequence(13), place(3));
        assert_eq!((f.first_kept(), seqs(&f, 9), seqs(&f, 11)), (Sequence(13), vec![9, 10], vec![]));
        assert_eq!(f.absent(1, 12), [(11, 12)]);
        assert_eq!((f.absent(11, 20), f.absent(1, 10)), (vec![(11, 12), (14, 20)], vec![]));
        assert!(f.replace(Sequence(12), place(3)));
        assert_eq!(f.first_kept(), Sequence(12));
        assert!(f.replace(Sequence(11), place(3)));
        assert_eq!(f.first_kept(), Sequence(1));
        f.drop_segment(Sequence(4), Sequence(7), 1);
        assert_eq!((f.first_kept(), seqs(&f, 1)), (Sequence(8), vec![1, 2, 3]));
        f.drop_segment(Sequence(1), Sequence(3), 0);
        assert_eq!(f.first_kept(), Sequence(8));
        assert_eq!(f.cut(Sequence(9)), [2, 3, 3, 3]);
        assert_eq!(seqs(&f, 8), [8, 9]);
        f.push(Sequence(10), place(7));
        assert_eq!(f.get(Sequence(10)).unwrap().segment, 7);
        f.push(Sequence(1 << 60), place(8));
        assert_eq!((f.first_kept(), f.places.len()), (Sequence(1 << 60), 1));
        assert_eq!(f.absent(3, 1 << 60), [(3, (1 << 60) - 1)]);
        f.cut(Sequence(3));
        assert!(f.is_before_all(Sequence(3)));
        assert_eq!(f.first_kept(), Sequence(4));
        f.push(Sequence(4), place(9));
        assert_eq!(f.first_kept(), Sequence(4));
        (5..=20).for_each(|s| f.push(Sequence(s), place(9)));
        f.shrink(5, false);
        assert_eq!((f.first_kept(), f.len(), seqs(&f, 18)), (Sequence(16), 5, vec![18, 19, 20]));
        assert!(f.is_before_all(Sequence(15)) && !f.is_before_all(Sequence(16)));
        assert_eq!(f.newest(Sequence(19), 2).0, Sequence(18));
        assert_eq!(f.absent(1, 20), [(1, 15)]);
    }

    /// Places that are forgotten for want of memory while the log is replayed: the frames are not missed.
    #[test]
    fn what_is_forgotten_is_not_absent() {
        let mut f = FrameIndex::default();
        (1..=10).chain(13..=20).for_each(|s| f.push(Sequence(s), place(1)));
        f.shrink(9, true);
        assert_eq!((f.first_kept(), f.absent(1, 20)), (Sequence(13), vec![(11, 12)]));
        f.shrink(4, true);
        assert_eq!((f.first_kept(), f.absent(1, 25)), (Sequence(17), vec![(11, 12), (21, 25)]));
        assert_eq!((f.absent(14, 18), f.absent(5, 11)), (vec![], vec![(11, 11)]));
        f.cut(Sequence(14));
        f.push(Sequence(15), place(2));
        assert_eq!(f.absent(1, 16), [(11, 12), (16, 16)]);
        f.cut(Sequence(8));
        assert_eq!(f.absent(1, 10), [(9, 10)]);
        f.replayed();
        assert_eq!(f.absent(1, 10), [(1, 10)]);
    }
}

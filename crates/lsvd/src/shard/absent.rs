//! A log that begins in the middle: frames that were never in it, and whose entries are not here either (rule V17).
//!
//! Invariants:
//! - That is a hole, and an admitted one. Nothing below it is read, or told to peers; but it is no damage: nothing is kept
//!   for its sake, and the log's end is sound.
//! - Each mark says it, so it outlives the segments that told of it first. The newest mark counts.
//! - It ends as holes do, when its entries were learned. A mark that says so does not count if a part of them may be lost:
//!   then what is lost is a hole by itself, and this one stays.

use crate::shard::Shard;
use crate::{Base, MarkChange};
use freebs_format::MarkBody;
use freebs_types::Sequence;

/// Behind the first frame, up to the second.
pub(crate) type Absent = (Sequence, Sequence);

/// All that lies in one of the two, or between them.
fn hull(a: Option<Absent>, b: Option<Absent>) -> Option<Absent> {
    a.into_iter().chain(b).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// The rest of it when what lies behind `since` up to `upto` was learned. If that is in its middle, all of it is left.
fn without(absent: Option<Absent>, since: Sequence, upto: Sequence) -> Option<Absent> {
    let (from, to) = absent?;
    let from = if since <= from { from.max(upto) } else { from };
    let to = if upto >= to { to.min(since) } else { to };
    Some((from, to)).filter(|(from, to)| from < to)
}

impl Shard {
    /// Frames that are not here, nor what they brought: the first and the last of each range, in no order.
    pub fn missing(&self) -> impl Iterator<Item = (u64, u64)> {
        let absent = self.absent.map(|(since, upto)| (since.0 + 1, upto.0));
        self.holes.iter().map(|h| (h.from, h.to)).chain(absent)
    }

    /// The end of the last of these ranges: entries placed before it may have been overwritten by what is missing.
    pub fn last_missing(&self) -> Option<Sequence> {
        self.missing().map(|(_, to)| Sequence(to)).max()
    }

    /// The word of a mark with these changes.
    pub fn absent_for_mark(&self, change: &MarkChange, base: Option<&Base>) -> Option<Absent> {
        match (base, change.learned.as_deref()) {
            (Some(b), _) if change.early => hull(self.absent, Some((b.since, b.last.sequence)).filter(|(a, b)| a < b)),
            (Some(b), _) => without(self.absent, b.since, b.last.sequence),
            (None, Some(l)) => without(self.absent, l.since, l.upto),
            (None, None) => self.absent,
        }
    }

    /// Takes the word of a mark. `lost_since`: of a map that came in front of it a part may be lost.
    pub fn take_absent(&mut self, body: &MarkBody, lost_since: bool) {
        let has_learned = body.whole || body.learned_upto > Sequence(0);
        let before = self.absent.filter(|_| has_learned && lost_since);
        self.absent = hull(before, body.absent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_as_the_numbers_in_it() {
        let numbers = |a: Option<Absent>| a.map_or(0..0, |(s, u)| s.0 + 1..u.0 + 1).collect::<Vec<u64>>();
        for (since, upto) in (0..9).flat_map(|s| (s..9).map(move |u| (s, u))) {
            let (all, learned) = (Some((Sequence(3), Sequence(6))), (Sequence(since), Sequence(upto)));
            let left = numbers(without(all, learned.0, learned.1));
            let mut want = numbers(all);
            want.retain(|n| *n <= since || upto < *n);
            let is_in_the_middle = 3 < since && since < upto && upto < 6;
            assert_eq!(left, if is_in_the_middle { numbers(all) } else { want }, "without {since} to {upto}");
        }
        assert_eq!(
            hull(Some((Sequence(1), Sequence(3))), Some((Sequence(7), Sequence(9)))),
            Some((Sequence(1), Sequence(9)))
        );
        assert_eq!((hull(None, None), without(None, Sequence(0), Sequence(9))), (None, None));
    }
}

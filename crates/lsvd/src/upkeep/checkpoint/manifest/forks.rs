//! Forks in a manifest: where they begin, how they became flat, and what is lost to them.

use super::{FLAT, FORK, In, LOST, Manifest, Out};
use crate::engine::forks::LINE_MAX;
use crate::shard::Shard;
use crate::shard::forks::Ended;
use freebs_format::Flat;
use freebs_types::{Fork, Sequence, ShardId, SnapshotId, Version, limits};
use std::collections::BTreeMap;

impl Out {
    /// Versions that are lost to clones.
    pub fn lost_to_forks(&mut self, s: &Shard) {
        let lost = s.lost_to_forks();
        if lost.is_empty() {
            return;
        }
        let item = self.begin(LOST);
        self.u32(s.slot);
        self.len(lost.len());
        lost.iter().for_each(|v| self.u64(v.0));
        self.end(item);
    }

    /// Where a shard of a clone begins, or how it became flat.
    pub fn fork(&mut self, s: &Shard) {
        if let Some(ended) = s.ended() {
            let item = self.begin(FLAT);
            self.u32(s.slot);
            self.u64(ended.flat.upto.0);
            self.u64(ended.flat.from_append);
            self.u64(ended.flat.to_append);
            self.u64(ended.append);
            self.end(item);
        }
        let Some(fork) = &s.fork else { return };
        let item = self.begin(FORK);
        self.u32(s.slot);
        self.shard_id(fork.parent);
        self.u64(fork.snapshot.0);
        self.u64(fork.version.0);
        self.u64(fork.sequence.0);
        self.end(item);
    }
}

impl Manifest {
    /// A shard forks from one other, and from none that reads from it.
    pub fn has_possible_forks(&self) -> bool {
        let forks: BTreeMap<u32, &Fork> = self.forks.iter().map(|(slot, fork)| (*slot, fork)).collect();
        let of = self.shards.iter().filter_map(|(s, _)| Some((s.id, forks.get(&s.slot)?.parent)));
        let parents: BTreeMap<ShardId, ShardId> = of.collect();
        let ends = |shard: &ShardId| {
            let mut line = std::iter::successors(Some(*shard), |s| parents.get(s).copied());
            !line.by_ref().skip(1).take(LINE_MAX).any(|s| s == *shard)
        };
        forks.len() == self.forks.len() && parents.keys().all(ends)
    }
}

impl In<'_> {
    pub fn fork(&mut self) -> Option<(u32, Fork)> {
        let (slot, parent, snapshot) = (self.u32()?, self.shard_id()?, SnapshotId(self.u64()?));
        let (version, sequence) = (Version(self.number()?), Sequence(self.number()?));
        let is_possible = version.0 > 0 && sequence.0 > 0;
        is_possible.then_some((slot, Fork { parent, snapshot, version, sequence }))
    }

    pub fn lost(&mut self) -> Option<(u32, Vec<Version>)> {
        let (slot, lost) = (self.u32()?, self.list(|r| Some(Version(r.number()?)))?);
        let is_right = lost.is_sorted_by(|a, b| a < b)
            && lost.iter().all(|v| v.0 > 0)
            && (1..=limits::LOST_VERSIONS_MAX).contains(&lost.len());
        is_right.then_some((slot, lost))
    }

    pub fn flat(&mut self) -> Option<(u32, Ended)> {
        let slot = self.u32()?;
        let upto = Sequence(self.number()?);
        let flat = Flat { upto, from_append: self.log_number()?, to_append: self.log_number()? };
        let ended = Ended { flat, append: self.log_number()? };
        (flat.is_possible() && flat.to_append <= ended.append).then_some((slot, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Begun;
    use super::*;
    use crate::log::place::NUMBER_MAX;

    fn fork(parent: u64, version: u64, sequence: u64) -> Fork {
        let snapshot = SnapshotId(7);
        Fork { parent: ShardId::new(parent, 0), snapshot, version: Version(version), sequence: Sequence(sequence) }
    }

    #[test]
    fn flat_shards_that_can_not_be_are_refused() {
        let read = |upto, (from_append, to_append), append| {
            let (mut out, mut s) = (Out::default(), Shard::new(ShardId::new(1, 0), 1));
            let ended = Ended { flat: Flat { upto: Sequence(upto), from_append, to_append }, append };
            s.set_ended(ended);
            out.shard(&s, 1);
            out.fork(&s);
            out.finish(Begun { written: 1, opened: 1 }, 1, 1, 9);
            let read = Manifest::decode(&out.bytes);
            read.map(|m| assert_eq!(m.flats, [(1, ended)])).is_ok()
        };
        assert!(read(7, (3, 4), 5) && read(7, (5, 5), 5) && read(7, (0, 0), 5));
        for appends in [(0, 1), (4, 3), (3, 0), (3, 6), (6, 6), (3, u64::MAX)] {
            assert!(!read(7, appends, 5), "{appends:?}");
        }
        assert!(!read(NUMBER_MAX, (3, 4), 5) && !read(7, (3, 4), u64::MAX));
    }

    /// Each of these counted a fork that nothing takes back, or made a parent wait for itself.
    #[test]
    fn forks_that_can_not_be_are_refused() {
        let read = |forks: &[(u32, Fork)], lost: &[u64]| {
            let mut out = Out::default();
            for id in 1..=3 {
                out.shard(&Shard::new(ShardId::new(id, 0), id as u32), 1);
            }
            for (slot, fork) in forks {
                let mut s = Shard::new(ShardId::new(u64::from(*slot), 0), *slot);
                s.fork = Some(*fork);
                out.fork(&s);
            }
            if !lost.is_empty() {
                let item = out.begin(LOST);
                out.u32(1);
                out.len(lost.len());
                lost.iter().for_each(|v| out.u64(*v));
                out.end(item);
            }
            out.finish(Begun { written: 1, opened: 1 }, 1, 1, 9);
            Manifest::decode(&out.bytes).map(|m| (m.forks.len(), m.lost.len()))
        };
        assert_eq!(read(&[(2, fork(1, 5, 6)), (3, fork(2, 7, 8))], &[3, 5]).unwrap(), (2, 1));
        assert_eq!(read(&[(2, fork(9, 5, 6))], &[]).unwrap(), (1, 0), "its parent may be gone");
        for (what, forks) in [
            ("of itself", vec![(2, fork(2, 5, 6))]),
            ("of one that reads from it", vec![(1, fork(2, 5, 6)), (2, fork(3, 5, 6)), (3, fork(1, 5, 6))]),
            ("of two", vec![(2, fork(1, 5, 6)), (2, fork(3, 5, 6))]),
            ("the same twice", vec![(2, fork(1, 5, 6)), (2, fork(1, 5, 6))]),
            ("of version 0", vec![(2, fork(1, 0, 6))]),
            ("of no frame", vec![(2, fork(1, 5, 0))]),
            ("of an impossible version", vec![(2, fork(1, NUMBER_MAX, 6))]),
        ] {
            assert!(read(&forks, &[]).is_err(), "{what}");
        }
        for lost in [&[0][..], &[5, 5], &[6, 5], &[NUMBER_MAX]] {
            assert!(read(&[], lost).is_err(), "{lost:?}");
        }
        let many = |n: usize| (1..=n as u64).collect::<Vec<_>>();
        assert!(read(&[], &many(limits::LOST_VERSIONS_MAX)).is_ok());
        assert!(read(&[], &many(limits::LOST_VERSIONS_MAX + 1)).is_err());
    }
}

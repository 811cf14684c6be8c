//! Forks: shards of clones, which read from a version of another shard in the same log what they have no entry for
//! (design note 36).
//!
//! Invariants:
//! - While a fork here reads a version, its parent keeps that version, whoever else has given it up (rule E10).
//! - A fork's own entries are newer than all that it reads from its parent (rule E2), so one below the other is right.

use crate::shard::history::pins::PinOp;
use freebs_format::{Flat, FrameHead, Pin};
use freebs_types::{Fork, Sequence, ShardId, SnapshotId, Version, limits};
use std::collections::{BTreeMap, BTreeSet};

/// The point of a parent that a fork reads: a version, the frame that pinned it, and the snapshot that it was pinned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ForkPoint {
    pub version: Version,
    pub sequence: Sequence,
    pub snapshot: SnapshotId,
}

impl ForkPoint {
    pub fn of(fork: &Fork) -> Self {
        Self { version: fork.version, sequence: fork.sequence, snapshot: fork.snapshot }
    }

    /// None of this version is lower.
    pub fn first(version: Version) -> Self {
        Self { version, sequence: Sequence(0), snapshot: SnapshotId(0) }
    }

    /// True if an update pins it.
    fn is_pinned_by(&self, op: PinOp) -> bool {
        matches!(op, PinOp::Take(pin) if self.is_of(&pin))
    }

    /// True if it is the version that a pin is of.
    pub fn is_of(&self, pin: &Pin) -> bool {
        (pin.version, pin.snapshot) == (self.version, self.snapshot)
    }
}

/// How a fork became flat, and the append of the first mark that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub flat: Flat,
    pub append: u64,
}

/// The points that forks read of a shard, and how many do.
pub(crate) type Read = BTreeMap<ForkPoint, u32>;

/// True if a version that forks read lies from `from` up to, but without, `to`.
pub(crate) fn is_read_in(read: &Read, from: Version, to: Version) -> bool {
    from < to && read.range(ForkPoint::first(from)..ForkPoint::first(to)).next().is_some()
}

/// The forks of this log, and what they read, by parent.
#[derive(Debug, Default)]
pub(crate) struct Forks {
    all: BTreeMap<ShardId, Fork>,
    /// Those whose marks are on the way to the disk.
    coming: BTreeMap<ShardId, Fork>,
    by_parent: BTreeMap<ShardId, Read>,
    /// Versions that are lost to forks of parents that are not here: their first frames are on the way to the log.
    lost: BTreeMap<ShardId, LostVersions>,
    /// Those that may have been flat: behind their last mark something of the log is lost. They say that they are forks in front of
    /// all else, and so of whatever takes the place of what their parents have.
    unsure: BTreeSet<ShardId>,
    /// Shards that have to say something in a mark: parents of which versions are taken for lost to forks that may have been flat,
    /// and those whose marks found no room.
    untold: BTreeSet<ShardId>,
}

/// Versions of a parent that are lost to its forks: so many as a mark can name. If there are that many, all lower ones are
/// lost, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostVersions {
    named: BTreeSet<Version>,
    below: Version,
}

impl LostVersions {
    pub fn has(&self, version: Version) -> bool {
        version < self.below || self.named.contains(&version)
    }

    pub fn add(&mut self, versions: impl IntoIterator<Item = Version>) {
        self.named.extend(versions);
        while self.named.len() > limits::LOST_VERSIONS_MAX {
            self.named.pop_first();
        }
        if let Some(first) = self.named.first().filter(|_| self.named.len() == limits::LOST_VERSIONS_MAX) {
            self.below = self.below.max(*first);
        }
    }

    pub fn count(&self) -> usize {
        self.named.len()
    }
}

impl Forks {
    pub fn add(&mut self, shard: ShardId, fork: &Fork) {
        self.all.insert(shard, *fork);
        *self.by_parent.entry(fork.parent).or_default().entry(ForkPoint::of(fork)).or_default() += 1;
    }

    /// The mark of one is on its way to the disk: what it is to read is kept from now on.
    pub fn comes(&mut self, shard: ShardId, fork: &Fork) {
        self.coming.insert(shard, *fork);
    }

    /// That mark is durable, if it was of this fork.
    pub fn came(&mut self, shard: ShardId, fork: &Fork) {
        if self.coming.get(&shard) == Some(fork) {
            self.coming.remove(&shard);
        }
    }

    /// One that reads there no more.
    pub fn remove(&mut self, shard: ShardId, fork: &Fork) {
        self.all.remove(&shard);
        let Some(read) = self.by_parent.get_mut(&fork.parent) else { return };
        let point = ForkPoint::of(fork);
        if let Some(n) = read.get_mut(&point) {
            *n -= 1;
            if *n == 0 {
                read.remove(&point);
            }
        }
        if read.is_empty() {
            self.by_parent.remove(&fork.parent);
        }
    }

    /// The points that forks read of a parent, or are about to.
    pub fn of(&self, parent: ShardId) -> Read {
        let mut read = self.by_parent.get(&parent).cloned().unwrap_or_default();
        for fork in self.coming.values().filter(|f| f.parent == parent) {
            *read.entry(ForkPoint::of(fork)).or_default() += 1;
        }
        read
    }

    /// As of a shard, for one that is not here yet.
    pub fn loses_by(&mut self, head: &FrameHead) -> bool {
        let Some(read) = self.by_parent.get(&head.shard()) else { return false };
        let known = self.lost.get(&head.shard());
        let lost: Vec<Version> = lost_by(read, head).filter(|v| known.is_none_or(|k| !k.has(*v))).collect();
        let is_new = !lost.is_empty();
        if is_new {
            self.lost.entry(head.shard()).or_default().add(lost);
        }
        is_new
    }

    /// Losses of a parent that is not here yet.
    pub fn lost_of(&self, parent: ShardId) -> LostVersions {
        self.lost.get(&parent).cloned().unwrap_or_default()
    }

    /// These are lost to forks of a parent that ends.
    pub fn lose(&mut self, parent: ShardId, versions: Vec<Version>) {
        if !versions.is_empty() {
            self.lost.entry(parent).or_default().add(versions);
            self.untold.insert(parent);
        }
    }

    /// A shard that is here has to say what it is, and what is lost to forks of it.
    pub fn has_to_say(&mut self, shard: ShardId) {
        self.untold.insert(shard);
    }

    /// A shard that has to say something: one that is here, or whose frame is next. It is taken to have said it.
    pub fn take_untold(&mut self, is_next: impl Fn(&ShardId) -> bool) -> Option<ShardId> {
        self.untold.extract_if(.., |parent| is_next(parent)).next()
    }

    pub fn is_unsure(&mut self, shard: ShardId) {
        self.unsure.insert(shard);
    }

    /// The next fork that has to say that it is one; it is taken to have said it.
    pub fn take_unsure(&mut self) -> Option<ShardId> {
        let all = &self.all;
        self.unsure.extract_if(.., |shard| all.contains_key(shard)).next()
    }

    /// True if a fork, or a parent that is here, has something to say.
    pub fn has_to_tell(&self, is_here: impl Fn(&ShardId) -> bool) -> bool {
        self.untold.iter().any(is_here) || self.unsure.iter().any(|shard| self.all.contains_key(shard))
    }

    /// The parent says so itself from now on.
    pub fn is_told(&mut self, parent: ShardId) {
        self.lost.remove(&parent);
    }

    /// Each fork, and where it begins, in order.
    pub fn all(&self) -> impl Iterator<Item = (ShardId, Fork)> {
        self.all.iter().map(|(shard, fork)| (*shard, *fork))
    }
}

/// Versions that forks read and that a frame of the parent takes the place of.
pub fn lost_by(read: &Read, head: &FrameHead) -> impl Iterator<Item = Version> {
    let is_other = |p: &&ForkPoint| p.sequence == head.seq() && !PinOp::of(head).iter().any(|op| p.is_pinned_by(*op));
    read.keys().filter(is_other).map(|p| p.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark names some of the lost versions. Whoever reads it takes no other version for whole than who wrote it.
    #[test]
    fn more_lost_versions_than_a_mark_names_are_all_lost() {
        let most = limits::LOST_VERSIONS_MAX as u64;
        let (mut all, mut read) = (LostVersions::default(), LostVersions::default());
        all.add((1..most).map(|n| Version(2 * n)));
        assert!(all.has(Version(2)) && !all.has(Version(1)) && !all.has(Version(5)));
        all.add((most..most + 3).map(|n| Version(2 * n)));
        assert_eq!(all.count() as u64, most);
        read.add(all.named.iter().copied());
        for lost in [&all, &read] {
            assert!((0..=6).all(|v| lost.has(Version(v))) && !lost.has(Version(9)) && lost.has(Version(10)));
        }
    }
}

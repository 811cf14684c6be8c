//! Forks: shards of clones, which read from a version of another shard in the same log what they have no entry for
//! (design note 36).
//!
//! Invariants:
//! - While a fork here reads a version, its parent keeps that version, whoever else has given it up (rule E10).
//! - A fork's own entries are newer than all that it reads from its parent (rule E2), so one below the other is right.

use freebs_types::{Fork, ShardId, Version};
use std::collections::BTreeMap;

/// Versions of a shard that forks read, and how many do.
pub(crate) type Read = BTreeMap<Version, u32>;

/// True if a version that forks read lies from `from` up to, but without, `to`.
pub(crate) fn is_read_in(read: &Read, from: Version, to: Version) -> bool {
    from < to && read.range(from..to).next().is_some()
}

/// The forks of this log, and which versions they read, by parent.
#[derive(Debug, Default)]
pub(crate) struct Forks {
    all: BTreeMap<ShardId, Fork>,
    by_parent: BTreeMap<ShardId, Read>,
}

impl Forks {
    pub fn add(&mut self, shard: ShardId, fork: &Fork) {
        self.all.insert(shard, *fork);
        *self.by_parent.entry(fork.parent).or_default().entry(fork.version).or_default() += 1;
    }

    /// One that reads there no more.
    pub fn remove(&mut self, shard: ShardId, fork: &Fork) {
        self.all.remove(&shard);
        let Some(read) = self.by_parent.get_mut(&fork.parent) else { return };
        if let Some(n) = read.get_mut(&fork.version) {
            *n -= 1;
            if *n == 0 {
                read.remove(&fork.version);
            }
        }
        if read.is_empty() {
            self.by_parent.remove(&fork.parent);
        }
    }

    /// The parent is gone: whoever reads there finds nothing.
    pub fn forget(&mut self, parent: ShardId) {
        self.by_parent.remove(&parent);
    }

    pub fn of(&self, parent: ShardId) -> Read {
        self.by_parent.get(&parent).cloned().unwrap_or_default()
    }

    /// Each fork, and where it begins, in order.
    pub fn all(&self) -> impl Iterator<Item = (ShardId, Fork)> {
        self.all.iter().map(|(shard, fork)| (*shard, *fork))
    }

    pub fn is_parent(&self, shard: ShardId) -> bool {
        self.by_parent.contains_key(&shard)
    }
}

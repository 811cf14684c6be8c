//! The carries that callers have brought to shards since the log was opened, as far as a mark at their end has to name them.

use crate::MarkChange;
use freebs_types::ShardId;
use std::collections::BTreeMap;

/// The first and the last append with some of these carries.
type Appends = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// Shards that learn map entries from a peer.
    learned: BTreeMap<ShardId, Appends>,
    /// Forks that got entries of what they read from their parents.
    inherited: BTreeMap<ShardId, Appends>,
}

fn note(all: &mut BTreeMap<ShardId, Appends>, shard: ShardId, append: u64) {
    all.entry(shard).or_insert((append, append)).1 = append;
}

impl Brought {
    /// A carry goes into an append; `inherited` if it has some of what a fork reads from its parents.
    pub fn carry(&mut self, shard: ShardId, append: u64, inherited: bool) {
        note(&mut self.learned, shard, append);
        if inherited {
            note(&mut self.inherited, shard, append);
        }
    }

    /// A mark tells of what came in front of it.
    pub fn told(&mut self, shard: ShardId, change: &MarkChange) {
        if change.has_learned() || change.flat {
            self.learned.remove(&shard);
        }
        if change.flat {
            self.inherited.remove(&shard);
        }
    }

    /// The shard ends.
    pub fn forget(&mut self, shard: ShardId) {
        self.learned.remove(&shard);
        self.inherited.remove(&shard);
    }

    /// The append since which a map is learned.
    pub fn learned_from(&self, shard: ShardId) -> Option<u64> {
        self.learned.get(&shard).map(|l| l.0)
    }

    /// The appends by which a fork is flat with this change.
    pub fn flat_by(&self, shard: ShardId, change: &MarkChange) -> Option<(u64, u64)> {
        let learned = self.learned.get(&shard).filter(|_| change.has_learned());
        let all = learned.into_iter().chain(self.inherited.get(&shard)).copied();
        all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

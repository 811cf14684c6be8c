//! Forks and their parents: the versions that are kept, the places of blocks, the holes that are seen through.

use crate::RuleMutant;
use crate::engine::core::Core;
use crate::shard::Shard;
use crate::shard::chunks::Run;
use freebs_types::{ChunkId, Fork, Sequence, ShardId};

/// Shards that a read passes through at most: where there are more, it fails. Forks are made flat long before.
pub(crate) const LINE_MAX: usize = 256;

impl Core {
    /// The parent that a shard reads from, if it reads from one.
    pub fn fork_of(&self, shard: ShardId) -> Option<Fork> {
        self.shards.get(&shard).and_then(|s| s.fork)
    }

    /// A mark, or the end of a shard, may have changed that.
    pub fn fork_changed(&mut self, shard: ShardId, before: Option<Fork>) {
        let now = self.fork_of(shard);
        if now == before {
            return;
        }
        if let Some(fork) = &before {
            self.forks.remove(shard, fork);
        }
        if let Some(fork) = &now {
            self.forks.add(shard, fork);
        }
        for fork in before.into_iter().chain(now) {
            let mut read = self.forks.of(fork.parent);
            if self.segs.leaves_out(RuleMutant::ForksForgotten) {
                read.clear();
            }
            if let Some(parent) = self.shards.get_mut(&fork.parent) {
                parent.set_read_by_forks(read, &mut self.segs);
            }
        }
    }

    /// True if a parent keeps a version for a fork that is made now: frames in front in the log may have given it up.
    pub fn may_fork(&self, fork: &Fork) -> bool {
        self.shards.get(&fork.parent).is_some_and(|p| p.keeps_for_fork(fork.version) && p.committed >= fork.sequence)
    }

    /// The shards that a shard reads from, one after the other.
    pub fn line(&self, shard: ShardId) -> impl Iterator<Item = Fork> {
        std::iter::successors(self.fork_of(shard), |f| self.fork_of(f.parent)).take(LINE_MAX)
    }

    /// The places of a range of a chunk's blocks, in order: this shard's, and where it has none its parents'. `false` if
    /// some block has none.
    pub fn places(&self, s: &Shard, chunk: ChunkId, blocks: (u32, u32), each: &mut dyn FnMut(Run)) -> bool {
        self.places_within(s, (chunk, blocks), LINE_MAX, each)
    }

    fn places_within(
        &self,
        s: &Shard,
        (chunk, (first, count)): (ChunkId, (u32, u32)),
        line: usize,
        each: &mut dyn FnMut(Run),
    ) -> bool {
        let Some(fork) = s.fork.filter(|_| line > 0) else { return s.chunks.lookup(chunk, first, count, each) };
        let mut found = Vec::new();
        s.chunks.lookup(chunk, first, count, |r| found.push(r));
        let (mut at, end) = (first, first + count);
        let parent = |from: u32, to: u32, each: &mut dyn FnMut(Run)| {
            let of = self.shards.get(&fork.parent);
            from == to || of.is_some_and(|p| self.places_within(p, (chunk, (from, to - from)), line - 1, each))
        };
        for r in found {
            if !parent(at, r.first, each) {
                return false;
            }
            at = r.first + r.count;
            each(r);
        }
        parent(at, end, each)
    }

    /// The end of the last hole that may have changed what a shard reads; `None` if there is none.
    pub fn last_hole(&self, s: &Shard) -> Option<Sequence> {
        let below = self.line(s.id).filter_map(|f| {
            let parent = self.shards.get(&f.parent)?;
            let upto = parent.holes.iter().filter(|h| h.from <= f.sequence.0).map(|h| Sequence(h.to)).max()?;
            Some(upto.min(f.sequence))
        });
        s.last_hole().into_iter().chain(below).max()
    }
}

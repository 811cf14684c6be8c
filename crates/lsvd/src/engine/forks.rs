//! Forks and their parents: the versions that are kept, the places of blocks, the holes that are seen through.

use crate::RuleMutant;
use crate::engine::core::Core;
use crate::engine::queue::Queued;
use crate::shard::Shard;
use crate::shard::chunks::Run;
use crate::shard::forks::ForkPoint;
use freebs_types::{ChunkId, Error, Fork, Result, Sequence, ShardId, Version};

/// Shards that a read passes through at most: where there are more, it fails. Forks are made flat long before.
pub(crate) const LINE_MAX: usize = 256;
/// Forks that are named with a damaged block of a parent.
const READERS_MAX: usize = 4;

impl Core {
    /// The parent that a shard reads from, if it reads from one.
    pub fn fork_of(&self, shard: ShardId) -> Option<Fork> {
        self.shards.get(&shard).and_then(|s| s.fork)
    }

    /// A mark, or the end of a shard, may have changed that.
    pub fn fork_changed(&mut self, shard: ShardId, before: Option<Fork>) {
        let now = self.fork_of(shard);
        if let Some(fork) = &now {
            self.forks.came(shard, fork);
        }
        if now == before {
            return;
        }
        if let Some(fork) = &before {
            self.forks.remove(shard, fork);
        }
        if let Some(fork) = &now {
            self.forks.add(shard, fork);
        }
        before.into_iter().chain(now).for_each(|fork| self.tell_parent(&fork));
    }

    /// The mark of a fork is taken to be written. Until it is durable nothing is to go that it reads: who gave the version up
    /// may hear only meanwhile that this is committed.
    pub fn fork_comes(&mut self, shard: ShardId, fork: &Fork) {
        if !self.segs.leaves_out(RuleMutant::ForksToComeForgotten) {
            self.forks.comes(shard, fork);
            self.tell_parent(fork);
        }
    }

    /// Versions of a parent that forks read and of which, when the log had come to an append, nobody may have thought: behind a
    /// fork's last mark something is lost, which may have been the word that it is flat.
    pub fn doubted(&self, parent: ShardId, append: u64) -> Vec<Version> {
        if self.lost.is_empty() {
            return Vec::new();
        }
        let of_parent = self.forks.all().filter(|(_, f)| f.parent == parent);
        let may_be_flat = |shard: &ShardId| {
            self.shards.get(shard).is_some_and(|s| self.lost.has_any(s.last_mark + 1, append.saturating_sub(1)))
        };
        of_parent.filter(|(shard, _)| may_be_flat(shard)).map(|(_, f)| f.version).collect()
    }

    /// The log was replayed: forks that may have been flat.
    pub fn note_unsure_forks(&mut self) {
        let unsure = |(shard, _): (ShardId, Fork)| {
            let last = self.shards.get(&shard)?.last_mark;
            self.lost.has_any(last + 1, u64::MAX).then_some(shard)
        };
        let unsure: Vec<ShardId> = self.forks.all().filter_map(unsure).collect();
        unsure.into_iter().for_each(|shard| self.forks.is_unsure(shard));
    }

    /// True if marks that tell of forks are not in the log yet.
    pub fn has_to_tell(&self) -> bool {
        let waits = self.queue.iter().any(|q| matches!(q, Queued::Suspect(_)));
        waits || self.forks.has_to_tell(|shard| self.shards.contains_key(shard))
    }

    fn tell_parent(&mut self, fork: &Fork) {
        let mut read = self.forks.of(fork.parent);
        if self.segs.leaves_out(RuleMutant::ForksForgotten) {
            read.clear();
        }
        if let Some(parent) = self.shards.get_mut(&fork.parent) {
            parent.set_read_by_forks(read, &mut self.segs);
        }
    }

    /// True if a parent keeps a version for a fork that is made now: frames in front in the log may have given it up.
    pub fn may_fork(&self, fork: &Fork) -> bool {
        let keeps = self.shards.get(&fork.parent).is_some_and(|p| p.keeps_for_fork(fork));
        keeps && self.check_line(fork.parent).is_ok()
    }

    /// An error if not all is here that a shard reads from its parents, or if frames of that are missed.
    pub fn check_line(&self, shard: ShardId) -> Result<()> {
        self.line(shard).try_for_each(|f| {
            let gone = || Error::corrupt(format!("shard {shard} reads from shard {}, which is gone", f.parent));
            let parent = self.shards.get(&f.parent).ok_or_else(gone)?;
            parent.check_fork(&ForkPoint::of(&f))?;
            match parent.misses_up_to(f.sequence) {
                true => Err(Error::corrupt(format!("shard {}: version {} is not whole here", f.parent, f.version))),
                false => Ok(()),
            }
        })
    }

    /// The holes of a fork's parents in front of what it reads, each with its first frame and its last one.
    pub fn holes_below(&self, shard: ShardId) -> Vec<(ShardId, u64, u64)> {
        let of = |f: Fork| {
            let parent = self.shards.get(&f.parent);
            let holes = parent.into_iter().flat_map(Shard::missing);
            holes.filter(move |h| h.0 <= f.sequence.0).map(move |(from, to)| (f.parent, from, to))
        };
        self.line(shard).flat_map(of).collect()
    }

    /// An error if holes of a fork's parents are not those of before: what it was given of their entries is none.
    pub fn check_holes_below(&self, shard: ShardId, before: &[(ShardId, u64, u64)]) -> Result<()> {
        match self.holes_below(shard) == before {
            true => Ok(()),
            false => {
                Err(Error::retry(format!("shard {shard}: what it reads from others was mended while it was read")))
            }
        }
    }

    /// The shards that a shard reads from, one after the other.
    pub fn line(&self, shard: ShardId) -> impl Iterator<Item = Fork> {
        std::iter::successors(self.fork_of(shard), |f| self.fork_of(f.parent)).take(LINE_MAX)
    }

    /// Shards that may read a version of a shard, or of one before it, as forks; a few of them.
    pub fn readers_of(&self, shard: ShardId, version: Version) -> Vec<ShardId> {
        let reads = |id: ShardId| self.line(id).any(|f| f.parent == shard && f.version >= version);
        self.forks.all().map(|(id, _)| id).filter(|id| reads(*id)).take(READERS_MAX).collect()
    }

    /// The shard in whose chunks a place of a range of blocks lies: this one, or one that it reads from.
    pub fn owner_of(&self, shard: ShardId, chunk: ChunkId, offset: u32, (segment, at): (u32, u32)) -> ShardId {
        let has = |id: &ShardId| {
            let mut is_it = false;
            let each = |r: Run| is_it |= (r.segment, r.at) == (segment, at);
            self.shards.get(id).is_some_and(|s| s.chunks.lookup(chunk, offset, 1, each)) && is_it
        };
        std::iter::once(shard).chain(self.line(shard).map(|f| f.parent)).find(has).unwrap_or(shard)
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
            let upto = parent.missing().filter(|h| h.0 <= f.sequence.0).map(|h| Sequence(h.1)).max()?;
            Some(upto.min(f.sequence))
        });
        s.last_missing().into_iter().chain(below).max()
    }
}

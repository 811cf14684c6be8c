//! Questions about forks: can one be made here, and which entries does it read from its parents (design note 36)?

use super::frames::Gathered;
use crate::engine::Engine;
use crate::shard::Shard;
use crate::shard::forks::ForkPoint;
use freebs_format::{CarryBody, Pin};
use freebs_io::Device;
use freebs_types::{Error, Fork, Lba, Result, ShardId};

impl<D: Device> Engine<D> {
    /// An error if a shard that begins at this version of its parent can't read it here. `NotFound` if the parent is not here, or
    /// does not keep the version for that snapshot, or does not know it to be committed; `Corrupt` if it is not whole, or if the
    /// parent lacks something of what it reads itself.
    pub fn check_fork(&self, fork: &Fork) -> Result<()> {
        let (parent, version) = (fork.parent, fork.version);
        let state = self.state(parent).ok_or_else(|| Error::not_found(format!("shard {parent} is not here")))?;
        self.check_pin(parent, Pin { version, snapshot: fork.snapshot })?;
        if state.committed < fork.sequence {
            return Err(Error::not_found(format!(
                "shard {parent}: frame {} is not known to be committed",
                fork.sequence
            )));
        }
        let core = self.inner.core.borrow();
        core.shard(parent)?.check_whole(&ForkPoint::of(fork))?;
        core.check_line(parent)
    }

    /// True if shards of this log read from this one what they have no entry for. It can't go before they are flat. What is
    /// lost to them keeps nothing.
    #[must_use]
    pub fn is_read_by_forks(&self, shard: ShardId) -> bool {
        self.inner.core.borrow().shards.get(&shard).is_some_and(Shard::is_read_by_forks)
    }

    /// An error if not all is here that a shard reads from its parents, blocks that don't match their CRCs aside. `Corrupt` as of
    /// reads. What is lost for good must be learned from others.
    pub fn check_inherited(&self, shard: ShardId) -> Result<()> {
        let core = self.inner.core.borrow();
        let gone = |f: &Fork| Error::corrupt(format!("shard {shard} reads from shard {}, which is gone", f.parent));
        let mut line = core.line(shard);
        line.try_for_each(|f| core.shards.get(&f.parent).ok_or_else(|| gone(&f))?.check_fork(&ForkPoint::of(&f)))
    }

    /// The shards that read from this one, in order.
    #[must_use]
    pub fn forks_of(&self, parent: ShardId) -> Vec<ShardId> {
        let core = self.inner.core.borrow();
        core.forks.all().filter(|(_, f)| f.parent == parent).map(|(shard, _)| shard).collect()
    }

    /// The shards that read from another one, in order, each with where it begins. It costs nothing where there are none.
    #[must_use]
    pub fn forks(&self) -> Vec<(ShardId, Fork)> {
        self.inner.core.borrow().forks.all().collect()
    }

    /// Shards that a read of this one may pass through beside its own.
    #[must_use]
    pub fn depth(&self, shard: ShardId) -> usize {
        self.inner.core.borrow().line(shard).count()
    }

    /// Entries that a fork reads from its parents, from a block on, and their data; and the block to go on from, if there
    /// are more. With all of them brought as carries, in one run of the engine, it is flat, and a mark may
    /// say so. `Corrupt` where something of a
    /// parent is lost. No entries, and no more, of a shard that is no fork.
    pub async fn inherited_entries(&self, shard: ShardId, from: Lba, max_bytes: usize) -> Result<Gathered<Lba>> {
        if self.inner.core.borrow().fork_of(shard).is_none() {
            return Ok((CarryBody::default(), Vec::new(), None));
        }
        self.gather_inherited(shard, from, max_bytes).await
    }
}

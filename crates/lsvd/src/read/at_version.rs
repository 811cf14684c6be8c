//! What others ask of the history: which versions are kept, and what blocks were at one of them.

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::map::tally::Count;
use crate::shard::history::Hints;
use crate::{HistoryState, KeptState, Piece, ReadOut};
use freebs_format::Pin;
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Error, Result, ShardId, Version};

impl<D: Device> Engine<D> {
    /// What of a shard is kept beside its last version, as the last durable frame left it: a pin is taken by an update
    /// of kind `Snapshot`, which pins the version that it has itself, and given up by a `Release`. `NotFound` if the
    /// shard is unknown.
    pub fn history(&self, shard: ShardId) -> Result<HistoryState> {
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let kept = s.kept();
        // Layers in runs of a shard that keeps nothing are free.
        let below = if s.history.is_off() { Count::default() } else { core.maps.past.of(s.slot) };
        Ok(HistoryState {
            pins: kept.list(),
            retain: kept.retain,
            whole_from: s.history.whole_from,
            extents: s.history.memory.len() + below.layers,
            bytes: (s.history.memory.blocks() + below.blocks) * BLOCK as u64,
        })
    }

    /// The versions that committed frames keep, for a peer that learns. Taken behind a piece of `entries_with_past` it
    /// tells of all that the piece was chosen by.
    pub fn kept_state(&self, shard: ShardId) -> Result<KeptState> {
        Ok(self.inner.core.borrow().shard(shard)?.kept_state())
    }

    /// Kept versions below this are not all there; 0 if all are. `NotFound` if the shard is unknown.
    pub fn whole_from(&self, shard: ShardId) -> Result<Version> {
        Ok(self.inner.core.borrow().shard(shard)?.history.whole_from)
    }

    /// Where the retention window should begin so that it holds no more than so many versions, and so many bytes of
    /// superseded data as far as they are known by now: what to name in a `Retain`. `None` if it may stay as it is, or if
    /// there is none. Time is up to the caller, who knows which version was the last one at which time.
    pub fn retain_from(&self, shard: ShardId, versions: u64, bytes: u64) -> Result<Option<Version>> {
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let Some(first) = s.kept().retain else { return Ok(None) };
        let by_versions = Version((s.tip.version.0 + 1).saturating_sub(versions.max(1)));
        let blocks = bytes / BLOCK as u64;
        let by_bytes = s.history.memory.retain_for(blocks, s.slot, &core.maps.past).unwrap_or_default();
        let from = by_versions.max(by_bytes).min(s.tip.version);
        Ok(Some(from).filter(|v| *v > first))
    }

    /// Reads blocks as they were at a version: the last one, a pinned one, or one in the retention window; every other
    /// one is `NotFound`. `Corrupt` as for `read`. At most `limits::READ_BLOCKS_MAX` blocks.
    pub async fn read_at(&self, shard: ShardId, version: Version, range: BlockRange) -> Result<ReadOut> {
        self.read_which(shard, range, Which::At(version)).await
    }

    /// Looks whether a version is pinned for this snapshot; `NotFound` if not.
    pub fn check_pin(&self, shard: ShardId, pin: Pin) -> Result<()> {
        let core = self.inner.core.borrow();
        let kept_for = core.shard(shard)?.pinned_for(pin.version);
        let is_other = || Error::not_found(format!("shard {shard}: version {} is not of this snapshot", pin.version));
        if kept_for == Some(pin.snapshot) { Ok(()) } else { Err(is_other()) }
    }

    /// Kinds of blocks at a version, without their data. Errors as of `read_at`.
    pub async fn block_status_at(&self, shard: ShardId, version: Version, range: BlockRange) -> Result<Vec<Piece>> {
        self.status_which(shard, range, Which::At(version), None).await
    }

    /// As `block_status_at`, and pieces say which blocks an update behind version `since` touched. `since` has to be
    /// kept, too. Then a block without a change has the same content at both: what older data lie under a trim or zero
    /// keep it in the map (rule E1), and data behind `since` are in force with their own version.
    pub async fn changes_at(
        &self,
        shard: ShardId,
        version: Version,
        since: Version,
        range: BlockRange,
    ) -> Result<Vec<Piece>> {
        if since > version {
            return Err(Error::invalid("changes are asked for from a later version to an earlier one"));
        }
        self.status_which(shard, range, Which::At(version), Some(since)).await
    }
}

/// Superseded extents that one step looks through; of the last block of a step all there are.
const PRUNE_LAYERS: usize = 256;

impl Core {
    /// What each shard keeps, for a second look at the log: what is committed, and what will be if nothing is cut. A pin
    /// that an uncommitted frame gives up is still one.
    pub fn keeps(&self) -> Hints {
        let all = self.shards.iter().map(|(id, s)| {
            let mut kept = s.kept();
            kept.join(&s.history.pins.kept);
            for p in s.history.read_by_forks.keys() {
                kept.pins.entry(p.version).or_insert(p.snapshot);
            }
            (*id, kept)
        });
        all.filter(|(_, k)| !k.is_none()).collect()
    }

    /// Drops history that nobody needs any more, a part at a time; whether there is more of it.
    pub fn prune_some(&mut self) -> bool {
        let Self { shards, segs, .. } = self;
        let waits = |s: &&mut crate::shard::Shard| s.history.is_pruned();
        let Some(s) = shards.values_mut().find(waits).filter(|_| segs.prune) else {
            segs.prune = false;
            return false;
        };
        s.prune_history(PRUNE_LAYERS, segs);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Options;
    use crate::engine::core::Core;
    use crate::log::geometry::Geometry;
    use crate::shard::Shard;
    use crate::shard::history::pins::PinOp;
    use crate::shard::overlay::Uncommitted;
    use crate::shard::tip::Tip;
    use freebs_format::Pin;
    use freebs_types::{ClusterId, DeviceId, Sequence, ShardId, StartNumber, Version};

    /// Recovery read the log a second time without a pin that a frame gives up which is not committed yet. So what the
    /// pin keeps was let go of when an older extent took its place in the history, which nothing kept live.
    #[test]
    fn a_pin_that_an_uncommitted_frame_gives_up_is_kept_in_the_second_look() {
        let geometry = Geometry {
            cluster: ClusterId([1; 16]),
            device: DeviceId([2; 16]),
            start: StartNumber(1),
            sector: 4096,
            segment_bytes: 1 << 20,
            limit_segments: 8,
        };
        let mut core = Core::new(geometry, 2, Options { map_bytes: 1 << 20, checkpoint_bytes: 1 << 40 });
        let id = ShardId::new(1, 0);
        let take = |v| PinOp::Take(Pin { version: Version(v), ..Pin::default() });
        let mut s = Shard::new(id, 1);
        s.apply_pins(Sequence(1), &[take(3)], &mut core.segs);
        let pins = vec![PinOp::Release(Version(3)), take(8)];
        s.overlay.put(Uncommitted {
            sequence: Sequence(2),
            before: Tip::default(),
            entries: Vec::new(),
            pins,
            append: 1,
        });
        assert!(!s.kept().has(Version(3)) && s.kept().has(Version(8)));
        core.shards.insert(id, s);
        let known = &core.keeps()[&id];
        assert!(known.has(Version(3)) && known.has(Version(8)));
    }
}

//! Intervals of a client: some of a volume's places, in one shard or in several, changed together.
//!
//! The places stay the same for a run, like the accounts of a bank, so intervals meet one another, and the plain writes to
//! hot blocks. The oracle knows each interval as one write of several runs (`oracle`).

use crate::content;
use crate::oracle::{BLOCK_SECTORS, Touched};
use crate::rng::Rng;
use bytes::Bytes;
use freebs_driver::Change as Op;
use freebs_types::{SECTOR, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The share of the volumes with intervals in which these go over shards, if there are several.
const ACROSS_SHARE: f64 = 0.7;
const ACROSS_SALT: u64 = 47;

/// Places that intervals of a volume change.
const PLACES: (u64, u64) = (2, 12);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Write,
    /// Data that happen to be zeroes.
    WriteZeroes,
    Trim,
    Zero,
}

/// One change of an interval, in sectors.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub first: u64,
    pub count: u64,
    pub how: How,
}

/// The places that clients of a volume like to change together.
#[derive(Clone, Debug)]
pub struct Intervals {
    luck: Rng,
    /// First sectors of blocks, in some volumes all in one shard.
    places: Vec<u64>,
    /// Sectors of a stripe: no change goes beyond its end.
    stripe: u64,
    sectors: u64,
    /// The share of requests that are intervals.
    share: f64,
    /// Odds that one changes all places.
    all: f64,
}

impl Intervals {
    /// `None` in half of all cases. `stripe` in sectors.
    pub fn draw(mut luck: Rng, hot: &[u64], sectors: u64, stripe: u64, shards: u64) -> Option<Self> {
        if luck.chance(0.5) {
            return None;
        }
        let first = luck.pick(hot).copied()?;
        // A stream of its own, so that the rest is drawn as it was when all places were in one shard.
        let across = Rng::fork(first, ACROSS_SALT ^ luck.clone().below(u64::MAX)).chance(ACROSS_SHARE);
        let shard = |s: u64| if across { 0 } else { s / stripe % shards };
        let wanted = luck.range(PLACES.0, PLACES.1) as usize;
        let mut places = vec![first];
        // Half of them are fought for by others, too; some lie side by side.
        for _ in 0..100 {
            let at = match luck.below(4) {
                0 | 1 => luck.pick(hot).copied().unwrap_or(first),
                2 => first + luck.below(8) * BLOCK_SECTORS,
                _ => luck.below(sectors / BLOCK_SECTORS) * BLOCK_SECTORS,
            };
            let fits = at + BLOCK_SECTORS <= sectors && shard(at) == shard(first) && !places.contains(&at);
            if fits && places.len() < wanted {
                places.push(at);
            }
        }
        let (share, all) = (luck.range(5, 60) as f64 / 100.0, if luck.chance(0.3) { 0.8 } else { 0.2 });
        Some(Self { luck, places, stripe, sectors, share, all })
    }

    /// The next interval, if one is next.
    pub fn next(&mut self) -> Option<Vec<Change>> {
        if !self.luck.chance(self.share) {
            return None;
        }
        let whole = self.luck.chance(self.all);
        let mut changes = Vec::new();
        for i in 0..self.places.len() {
            if whole || self.luck.chance(0.5) {
                let change = self.change(self.places[i]);
                changes.push(change);
            }
        }
        // Now and then one change lies over another.
        for _ in 0..self.luck.below(3) {
            let again = self.luck.pick(&self.places).copied()?;
            let change = self.change(again);
            changes.push(change);
        }
        (!changes.is_empty()).then_some(changes)
    }

    fn change(&mut self, block: u64) -> Change {
        let how = match self.luck.below(20) {
            0 => How::WriteZeroes,
            1 | 2 => How::Trim,
            3 => How::Zero,
            _ => How::Write,
        };
        let (first, count) = match self.luck.below(8) {
            0..4 => (block, BLOCK_SECTORS),
            4..7 => (block + self.luck.below(BLOCK_SECTORS), self.luck.range(1, 2 * BLOCK_SECTORS)),
            _ => (block, self.luck.range(2, 4) * BLOCK_SECTORS),
        };
        let end = ((first / self.stripe + 1) * self.stripe).min(self.sectors);
        Change { first, count: count.min(end - first), how }
    }
}

/// The runs that are left of changes which lie over one another.
#[must_use]
pub fn laid_over(changes: &[Change]) -> Vec<Touched> {
    let mut sectors: BTreeMap<u64, bool> = BTreeMap::new();
    for c in changes {
        sectors.extend((c.first..c.first + c.count).map(|s| (s, c.how != How::Write)));
    }
    let mut runs: Vec<Touched> = Vec::new();
    for (sector, zero) in sectors {
        match runs.last_mut() {
            Some(run) if run.first + run.count == sector && run.zero == zero => run.count += 1,
            _ => runs.push(Touched { first: sector, count: 1, zero }),
        }
    }
    runs
}

/// The same for a driver, with data that tell of the interval.
#[must_use]
pub fn for_driver(volume: VolumeId, id: content::Value, changes: &[Change]) -> Arc<[Op]> {
    let unit = SECTOR as u64;
    let change = |c: &Change| {
        let (offset, len) = (c.first * unit, c.count * unit);
        match c.how {
            How::Write => Op::Write { offset, data: content::make(volume.0, c.first, c.count, id) },
            How::WriteZeroes => Op::Write { offset, data: Bytes::from(vec![0; len as usize]) },
            How::Trim => Op::Trim { offset, len },
            How::Zero => Op::Zero { offset, len },
        }
    };
    changes.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_change_counts() {
        let change = |first, count, how| Change { first, count, how };
        let runs = laid_over(&[change(16, 8, How::Write), change(0, 8, How::Write), change(4, 6, How::Trim)]);
        let run = |first, count, zero| Touched { first, count, zero };
        assert_eq!(runs, [run(0, 4, false), run(4, 6, true), run(16, 8, false)]);
    }

    #[test]
    fn changes_lie_in_one_shard_or_in_several() {
        let (mut n, mut over) = (0, 0);
        for seed in 0..200 {
            let (sectors, stripe, shards) = (4096 + seed % 3 * 128, 128, 1 + seed % 3);
            let hot = [8, 120, 128, 1024, sectors - 8];
            let Some(mut some) = Intervals::draw(Rng::new(seed), &hot, sectors, stripe, shards) else { continue };
            for changes in (0..20).filter_map(|_| some.next()) {
                let shard = changes[0].first / stripe % shards;
                let fits = |c: &Change| {
                    let last = c.first + c.count - 1;
                    c.count > 0 && last < sectors && c.first / stripe == last / stripe
                };
                assert!(changes.iter().all(fits), "{changes:?}");
                n += 1;
                over += usize::from(changes.iter().any(|c| c.first / stripe % shards != shard));
            }
        }
        assert!(n > 200 && over > 50 && over < n - 50, "{over} of {n} go over shards");
    }
}

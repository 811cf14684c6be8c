//! The part of a shard's history that is in memory: a table to which layers are added, and below it one that is being written
//! out.
//!
//! Invariants:
//! - Both tell of the same extents as one table would: of a layer that both have, the lower end counts, and the newer record.
//! - The frozen table is not added to. It stays until a run of history has all of it, however often that fails.
//! - A layer of a frame that may be cut never leaves memory: who cuts the frame asks memory alone whose blocks they are.

use super::table::{Judge, LayerName, Table};
use crate::map::extents::{ENTRY_BYTES, Extent, ExtentMap, Layer};
use crate::map::past::PastRuns;
use crate::map::tally::GroupEnd;
use freebs_types::{Sequence, Version};

/// Where a look through the tables goes on: the frozen one comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PruneAt {
    in_table: bool,
    block: u32,
}

/// The beginning of both tables.
pub(crate) const START: PruneAt = PruneAt { in_table: false, block: 0 };

/// The last layer that was told, and whether it is one of the newer table.
pub(crate) type ToldUpto = (bool, LayerName);

#[derive(Debug, Default)]
pub(crate) struct Memory {
    frozen: Table,
    table: Table,
}

impl Memory {
    pub fn is_empty(&self) -> bool {
        self.frozen.is_empty() && self.table.is_empty()
    }

    /// The lower table first.
    pub fn tables(&self) -> [&Table; 2] {
        [&self.frozen, &self.table]
    }

    pub fn len(&self) -> u64 {
        self.tables().iter().map(|t| t.len() as u64).sum()
    }

    pub fn blocks(&self) -> u64 {
        self.tables().iter().map(|t| t.blocks()).sum()
    }

    /// Bytes that it takes, by and large: its layers, and a CRC of each block.
    pub fn bytes(&self) -> usize {
        self.len() as usize * ENTRY_BYTES + self.blocks() as usize * 4
    }

    pub fn insert(&mut self, start: u32, e: &Extent, to: Version, judge: &mut Judge<'_>) {
        self.table.insert(start, e, to, judge);
    }

    /// As `Table::put_back`, above all else.
    pub fn put_back(&mut self, start: u32, l: &Layer) {
        self.table.put_back(start, l);
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Layer)> {
        self.tables().into_iter().flat_map(Table::iter)
    }

    /// The layers of `[start, end)`, cut to it, those of the lower table first.
    pub fn range(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, Layer)> {
        self.tables().into_iter().flat_map(move |t| t.range(start, end))
    }

    pub fn next(&self, at: u32) -> Option<u32> {
        self.tables().into_iter().filter_map(|t| t.next(at)).min()
    }

    pub fn end_of(&self, at: u32, end: u32, most: usize) -> u32 {
        self.tables().into_iter().fold(end, |end, t| t.end_of(at, end, most))
    }

    pub fn view_at(&self, start: u32, end: u32, version: Version, view: &mut ExtentMap) {
        self.tables().into_iter().for_each(|t| t.view_at(start, end, version, view));
    }

    /// The layers behind one, each with its cell's first block.
    pub fn export(&self, after: Option<ToldUpto>) -> impl Iterator<Item = (ToldUpto, &Layer)> {
        let is_behind = |in_table| after.filter(|a| a.0 == in_table).map(|a| a.1);
        let (in_frozen, in_table) = (is_behind(false), is_behind(true));
        let frozen = Some(&self.frozen).filter(|_| after.is_none_or(|a| !a.0));
        let frozen = frozen.into_iter().flat_map(move |t| t.export(in_frozen)).map(|l| (false, l));
        let all = frozen.chain(self.table.export(in_table).map(|l| (true, l)));
        all.map(|(in_table, (start, l))| ((in_table, (start, l.e.key())), l))
    }

    /// Drops what is no longer needed, a part at a time; and where to go on, if there is more.
    pub fn prune(&mut self, at: PruneAt, most: usize, judge: &mut Judge<'_>) -> Option<PruneAt> {
        let table = if at.in_table { &mut self.table } else { &mut self.frozen };
        match table.prune(at.block, most, judge) {
            Some(block) => Some(PruneAt { block, ..at }),
            None if at.in_table => None,
            None => Some(PruneAt { in_table: true, block: 0 }).filter(|_| !self.table.is_empty()),
        }
    }

    /// The table is to be written out. If an earlier try has left one, that one comes first.
    pub fn freeze(&mut self) {
        if self.frozen.is_empty() {
            self.frozen = std::mem::take(&mut self.table);
        }
    }

    pub fn frozen(&self) -> &Table {
        &self.frozen
    }

    /// A run has all that was frozen, up to the frame `committed`; the rest stays here. Gives back the table: it may be so large
    /// that it has to be dropped in parts.
    pub fn drop_frozen(&mut self, committed: Sequence) -> Table {
        let frozen = std::mem::take(&mut self.frozen);
        let rest = frozen.iter().filter(|(_, l)| l.e.sequence > committed);
        rest.for_each(|(start, l)| self.table.put_below(start, l));
        frozen
    }

    /// No layer of what was frozen may leave memory yet.
    pub fn thaw(&mut self) {
        let newer = std::mem::replace(&mut self.table, std::mem::take(&mut self.frozen));
        newer.iter().for_each(|(start, l)| self.table.put_back(start, l));
    }

    /// The highest version at which the window may begin so that at most so many data blocks are kept beside what is
    /// pinned, these and those that runs have; `None` if all of them may stay.
    pub fn retain_for(&self, blocks: u64, slot: u32, below: &PastRuns) -> Option<Version> {
        if self.frozen.is_empty() && !below.has(slot) {
            return self.table.retain_for(blocks);
        }
        let own = |t: &Table| t.ends().collect::<Vec<_>>();
        let mut ends: Vec<GroupEnd> = self.tables().into_iter().flat_map(own).chain(below.ends(slot)).collect();
        ends.sort_unstable_by_key(|e| std::cmp::Reverse(e.last));
        let mut left = blocks;
        ends.into_iter().find_map(|e| {
            if e.blocks <= left {
                left -= e.blocks;
                return None;
            }
            // Of these versions as many stay as blocks may.
            let stay = (u128::from(e.width) * u128::from(left) / u128::from(e.blocks)) as u64;
            Some(Version(e.last.0 - stay.min(e.width - 1)))
        })
    }
}

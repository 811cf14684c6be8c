//! The merge of runs of history.
//!
//! Invariants: layers come in order of slot, cell and version, each once, and end where the next one of their blocks begins at
//! the latest. Cells of one block's layers that all runs have alike pass one layer at a time; of others those that overlap are
//! in memory together.

use super::Io;
use crate::map::extents::Layer;
use crate::map::page::key;
use crate::map::run::Run;
use crate::shard::history::table::Table;
use bytes::Bytes;
use freebs_format::disk::PAGE_BYTES;
use freebs_io::Device;
use freebs_types::{Error, Result, Sequence, Version};
use std::collections::VecDeque;
use std::rc::Rc;

/// Pages that are read at once.
const READ_PAGES: u32 = 16;

type Seen = (u64, u32, (Version, Sequence));

/// Layers of one run, in order.
struct Cursor {
    run: Rc<Run>,
    page: u32,
    bytes: Bytes,
    layers: VecDeque<(u32, u32, Layer)>,
    /// The last one that was read: where its cell begins, the blocks of that, and its version and sequence.
    last: Option<Seen>,
}

impl Cursor {
    fn new(run: Rc<Run>) -> Self {
        Self { run, page: 0, bytes: Bytes::new(), layers: VecDeque::new(), last: None }
    }

    fn is_at_end(&self) -> bool {
        self.layers.is_empty() && self.page as usize == self.run.fences.len()
    }

    /// Where the cell of the next layer begins.
    fn at(&self) -> Option<u64> {
        self.layers.front().map(|(slot, start, _)| key(*slot, *start))
    }

    async fn fill<D: Device>(&mut self, io: Io<'_, D>) -> Result<()> {
        if !self.layers.is_empty() || self.is_at_end() {
            return Ok(());
        }
        if self.bytes.is_empty() {
            let at = self.run.places.find(self.page, READ_PAGES.min(self.run.fences.len() as u32 - self.page));
            self.bytes = io.read_pages(at).await?;
        }
        let page = self.bytes.split_to(PAGE_BYTES);
        let (layers, last) = (&mut self.layers, self.last);
        self.run.layers_of(io.device_id(), self.page, &page, |s, a, l| layers.push_back((s, a, l)))?;
        // Each page begins anew, so it says nothing of the one before it.
        let seen = |(slot, start, l): &(u32, u32, Layer)| (key(*slot, *start), l.e.len, l.e.key());
        let first = layers.front().map(seen);
        let follows = |(at, len, before): Seen, first: Seen| {
            if at == first.0 { len == first.1 && before < first.2 } else { at + u64::from(len) <= first.0 }
        };
        if last.zip(first).is_some_and(|(last, first)| !follows(last, first)) {
            return Err(Error::corrupt("run of history with pages out of order"));
        }
        self.last = layers.back().map(seen);
        self.page += 1;
        Ok(())
    }
}

/// The merge of some runs.
pub(crate) struct PastMerge {
    /// The oldest run first.
    cursors: Vec<Cursor>,
    /// The slot whose cells are gathered, and these.
    slot: u32,
    cells: Table,
    /// Layers that were gathered, in order.
    done: VecDeque<(u32, Layer)>,
    /// Layers of the cell that begins there, which all runs have alike, are passed on one by one; and the last of them, whose
    /// end is not known before the next one is.
    alike: Option<u64>,
    held: Option<(u32, Layer)>,
}

impl PastMerge {
    /// The newest run comes first.
    pub fn new(runs: impl DoubleEndedIterator<Item = Rc<Run>>) -> Self {
        let cursors = runs.rev().map(Cursor::new).collect();
        Self { cursors, slot: 0, cells: Table::default(), done: VecDeque::new(), alike: None, held: None }
    }

    /// The next layer, with its slot and its cell's first block.
    pub async fn next<D: Device>(&mut self, io: Io<'_, D>) -> Result<Option<(u32, u32, Layer)>> {
        loop {
            if let Some((start, l)) = self.done.pop_front() {
                return Ok(Some((self.slot, start, l)));
            }
            for c in &mut self.cursors {
                c.fill(io).await?;
            }
            let first = self.cursors.iter().filter_map(Cursor::at).min();
            if let Some(at) = self.alike {
                if first == Some(at) {
                    self.pass_one(at);
                } else {
                    self.alike = None;
                    self.done.extend(self.held.take());
                }
                continue;
            }
            // All layers in front of the next cell have been gathered.
            let same_slot = first.filter(|f| (f >> 32) as u32 == self.slot);
            let end = same_slot.map_or(u32::MAX, |f| f as u32);
            if let Some((start, len, layers)) = self.cells.pop_before(end) {
                debug_assert!(start + len <= end);
                self.done.extend(layers.into_iter().map(|l| (start, Layer { level: 0, ..l })));
                continue;
            }
            let Some(at) = first else { return Ok(None) };
            self.slot = (at >> 32) as u32;
            if self.cells.is_empty() && self.are_alike(at) {
                self.alike = Some(at);
            } else {
                self.gather(io, at).await?;
            }
        }
    }

    /// True if all cells that begin there are of the same blocks, and no other one begins in these.
    fn are_alike(&self, at: u64) -> bool {
        let lens =
            || self.cursors.iter().filter_map(|c| c.layers.front()).filter(|l| key(l.0, l.1) == at).map(|l| l.2.e.len);
        let Some(len) = lens().next() else { return false };
        let behind = |c: &Cursor| c.at().is_none_or(|a| a == at || a >= at + u64::from(len));
        lens().all(|l| l == len) && self.cursors.iter().all(behind)
    }

    /// Takes the layer of the lowest version; the one before it ends where this one begins.
    fn pass_one(&mut self, at: u64) {
        let heads = self.cursors.iter().enumerate().filter(|(_, c)| c.at() == Some(at));
        let Some((i, _)) = heads.min_by_key(|(i, c)| (c.layers[0].2.e.key(), *i)) else { return };
        let Some((_, start, l)) = self.cursors[i].layers.pop_front() else { return };
        match &mut self.held {
            Some((_, held)) if held.e.key() == l.e.key() => {
                held.to = held.to.min(l.to);
                // Of two records the one that was heard of last counts, or else the one that was met first.
                if !l.found {
                    (held.e.offset, held.found) = (l.e.offset, false);
                }
            }
            _ => {
                let before = self.held.replace((start, l));
                let next = self.held.as_ref().map_or(Default::default(), |(_, l)| l.e.version);
                self.done.extend(before.map(|(start, b)| (start, Layer { to: b.to.min(next), ..b })));
            }
        }
    }

    /// Takes all layers of the cells that begin there.
    async fn gather<D: Device>(&mut self, io: Io<'_, D>, at: u64) -> Result<()> {
        for (level, c) in self.cursors.iter_mut().enumerate() {
            while c.at() == Some(at) {
                let Some((_, start, l)) = c.layers.pop_front() else { break };
                self.cells.put_back(start, &Layer { level: level as u16, ..l });
                c.fill(io).await?;
            }
        }
        Ok(())
    }
}

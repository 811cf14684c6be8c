//! History at work: what memory has of it becomes runs, runs are merged, and what no kept version sees is let go of.
//!
//! Invariants: a table that is being written is frozen and still looked at until the run stands in its place. A layer is
//! given up only by what memory, or the runs that are merged, know of it: it may have been in force for a shorter time, never
//! for longer. Runs are looked through only by who keeps the map, so nothing changes them meanwhile.

use super::past_merge::PastMerge;
use super::write::LayerWriter;
use super::{Io, pause};
use crate::engine::cleaning::Need;
use crate::engine::core::Core;
use crate::log::geometry::LAST_SEGMENTS;
use crate::map::extents::{ExtentMap, Layer, Outcome};
use crate::map::levels::{Missing, Pages, gaps};
use crate::map::page::{DATA_BLOCKS_MAX, OTHER_BLOCKS_MAX};
use crate::map::past;
use crate::map::run::Run;
use crate::shard::Shard;
use crate::shard::history::table::Table;
use freebs_format::disk::PAGE_BYTES;
use freebs_io::Device;
use freebs_types::{ErrorKind, Result, Sequence, ShardId, Version};
use std::rc::Rc;

/// Layers that are written, merged or looked at in one step.
const STEP_LAYERS: usize = 256;
/// Young runs that are merged, and how many at once if there are more.
const YOUNG_RUNS: usize = 8;
const MERGED_RUNS: usize = 16;
/// The runs are written anew if one in so many of their layers is needed by nobody; and, for a window, looked through.
const LOOSE_SHARE: u64 = 8;
/// The same while room is wanted.
const LOOSE_SHARE_SHORT: u64 = 64;

/// A shard whose table was frozen, and up to which frame it goes to the run.
struct Frozen {
    shard: ShardId,
    slot: u32,
    committed: Sequence,
    /// How many layers went there.
    layers: usize,
}

/// Which runs are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PastMergeOf {
    /// The young ones, and the old one if it is not much larger.
    Young,
    /// These and the old one.
    All,
}

/// True if no layer of a shard may leave memory, as far as is known.
fn is_stuck(s: &Shard) -> bool {
    s.history.below.is_stuck(s.committed)
}

/// The layers of a run of history that a look found, and how many of them nobody needs.
#[derive(Default)]
struct Looked {
    layers: u64,
    loose: u64,
}

impl Core {
    /// Adds to a view of the map what the history has of `[start, end)` up to a version.
    pub fn fill_past(
        &mut self,
        shard: ShardId,
        (start, end): (u32, u32),
        version: Version,
        view: &mut ExtentMap,
        have: &Pages,
    ) -> Result<Missing> {
        let s = self.shard(shard)?;
        let slot = s.slot;
        // If the map has one entry of each block, the last one, what it has up to there is what was in force.
        let is_one =
            self.maps.levels().is_empty() && s.frozen.is_none() && s.overlay.held_in(start, end).next().is_none();
        let wanted = if is_one { gaps(view, start, end) } else { vec![(start, end)] };
        let (mut out, device) = (Outcome::default(), self.geometry.device);
        for range in &wanted {
            s.history.memory.view_at(range.0, range.1, version, view);
        }
        past::each_past(&mut self.maps, device, slot, &wanted, Some(version), have, |a, l: Layer| {
            view.insert(a, l.e, &mut out)
        })
    }

    /// The end of the blocks from `start` on, at most `end`, that have few superseded extents together, or of the first one.
    pub fn past_end(&self, shard: ShardId, start: u32, end: u32, most: usize) -> Result<u32> {
        let s = self.shard(shard)?;
        let end = s.history.memory.end_of(start, end, most);
        Ok(if s.history.below.is_any() { past::past_end(&self.maps.past, s.slot, start, end) } else { end })
    }

    /// True if memory has as much of history as it may.
    fn is_past_full(&mut self) -> bool {
        let most = self.maps.past_bytes;
        if self.segs.past_grown() <= most {
            return false;
        }
        // The estimate knows nothing of what was let go of.
        let bytes = self.shards.values().filter(|s| !is_stuck(s)).map(|s| s.history.memory.bytes()).sum();
        self.segs.set_past_grown(bytes);
        bytes > most
    }

    /// True if the runs of history may have enough that nobody needs.
    fn is_past_loose(&self) -> bool {
        let share = if matches!(self.need(), Need::None) { LOOSE_SHARE } else { LOOSE_SHARE_SHORT };
        let past = &self.maps.past;
        let is_behind = |s: &Shard| {
            let upto = s.history.pins.kept.retain.unwrap_or_default();
            let gone = past.sum(s.slot, s.history.below.looked_upto(), upto).layers;
            gone > 0 && gone * share >= past.of(s.slot).layers
        };
        self.shards.values().any(|s| s.history.below.is_loose() || (s.history.below.is_any() && is_behind(s)))
    }

    /// About how many pages are left of the runs of history if they are written anew; `None` if there is no need.
    fn pages_of_all_past(&self) -> Option<u64> {
        let past = &self.maps.past;
        let dead = past.beside(|slot| self.maps.slots.contains_key(&slot));
        let (all, pages) = (past.entries(), past.runs().map(|r| u64::from(r.places.pages)).sum::<u64>());
        let is_dead = dead > 0 && dead * LOOSE_SHARE >= all;
        past.wants_merge.or(is_dead.then(|| pages * (all - dead) / all))
    }

    /// True if the map may take segments for so many pages.
    fn has_room_for_pages(&self, pages: u64) -> bool {
        let each = self.geometry.segment_bytes / PAGE_BYTES as u64;
        let left = (self.geometry.reserve_segments() / 2).max(LAST_SEGMENTS + 1);
        u64::from(self.free_segments().saturating_sub(left)) > pages.div_ceil(each)
    }

    /// The runs are looked through as of now.
    fn begin_past_look(&mut self) {
        self.maps.past.is_looked_through = true;
        for s in self.shards.values_mut() {
            let window = s.history.pins.kept.retain.unwrap_or_default();
            s.history.below.begin_look(window);
        }
    }

    /// True if a layer of a run is needed; its blocks are free if not.
    fn keeps_layer(&mut self, slot: u32, l: &Layer) -> bool {
        let shard = self.maps.slots.get(&slot);
        let Some(s) = shard.and_then(|id| self.shards.get_mut(id)).filter(|s| s.slot == slot) else { return false };
        let is_needed = s.history.needs(l.e.version, l.to);
        if is_needed {
            s.history.goes_below(l);
        } else {
            s.release(&l.e, &mut self.segs);
        }
        is_needed
    }

    /// A run has what was frozen of a shard. Gives back the table, which may be large.
    fn is_written(&mut self, f: &Frozen) -> Option<Table> {
        let s = self.shards.get_mut(&f.shard).filter(|s| s.slot == f.slot)?;
        if f.layers == 0 && !s.history.memory.frozen().is_empty() {
            s.history.below.set_stuck(f.committed);
            s.history.memory.thaw();
            return None;
        }
        Some(s.history.memory.drop_frozen(f.committed))
    }

    /// The runs of history are others.
    pub fn past_changed(&mut self) {
        let past = &self.maps.past;
        self.shards.values_mut().for_each(|s| {
            s.history.below.set_any(past.has(s.slot));
        });
    }
}

impl<D: Device> Io<'_, D> {
    /// Does what is due for the history. What nobody needs is found first, and also where there is no room.
    pub async fn keep_past(&self) -> Result<()> {
        let looks = !self.alone && !self.core.borrow().maps.damaged;
        if looks && self.core.borrow().is_past_loose() {
            let looked = self.look_through_past().await;
            {
                let core = &mut *self.core.borrow_mut();
                core.maps.past.is_looked_through = false;
                // The rest is still to be looked at.
                if looked.is_err() {
                    core.shards.values_mut().for_each(|s| s.history.below.loosen());
                }
            }
            self.bear(looked)?;
        }
        self.flush_past_if_full().await?;
        while looks && self.may_write_past() {
            let Some(merge) = self.next_past_merge() else { break };
            let done = self.merge_past(merge).await;
            self.bear_past(done)?;
        }
        Ok(())
    }

    /// Writes what memory has of history to a run, if that is as much as it may have. Without room all of it stays where it is.
    pub async fn flush_past_if_full(&self) -> Result<()> {
        if !self.may_write_past() || !self.core.borrow_mut().is_past_full() {
            return Ok(());
        }
        let done = self.flush_past().await;
        self.bear_past(done)
    }

    /// False if there was no room, and nothing has changed since.
    fn may_write_past(&self) -> bool {
        let core = self.core.borrow();
        let past = &core.maps.past;
        past.no_room != Some(core.segs.changes) && !past.is_refused && !core.maps.damaged
    }

    fn bear_past(&self, done: Result<()>) -> Result<()> {
        {
            let core = &mut *self.core.borrow_mut();
            let is_full = done.as_ref().is_err_and(|e| e.kind == ErrorKind::NoSpace);
            core.maps.past.is_stuck = is_full;
            core.maps.past.no_room = is_full.then_some(core.segs.changes);
        }
        self.bear(done)
    }

    /// Which runs are to be merged, if there is room for what comes of them.
    fn next_past_merge(&self) -> Option<PastMergeOf> {
        let core = self.core.borrow();
        let past = &core.maps.past;
        if core.pages_of_all_past().is_some_and(|pages| core.has_room_for_pages(pages)) {
            return Some(PastMergeOf::All);
        }
        let pages: u64 = past.young.iter().rev().take(MERGED_RUNS).map(|r| u64::from(r.places.pages)).sum();
        (past.young.len() >= YOUNG_RUNS && core.has_room_for_pages(pages)).then_some(PastMergeOf::Young)
    }

    /// Writes what memory has of history to a run.
    pub async fn flush_past(&self) -> Result<()> {
        let (device, number) = {
            let mut core = self.core.borrow_mut();
            (core.geometry.device, core.maps.new_run())
        };
        let mut frozen = Vec::new();
        let run = self.write_frozen(LayerWriter::new(device, number), &mut frozen).await;
        let mut tables: Vec<Table> = Vec::new();
        let done = {
            let core = &mut *self.core.borrow_mut();
            core.maps.written(number);
            let done = run.map(|run| {
                run.into_iter().for_each(|r| core.maps.past.young.push_front(Rc::new(r)));
                tables = frozen.iter().filter_map(|f| core.is_written(f)).collect();
                core.past_changed();
            });
            core.sweep_map();
            done
        };
        for mut table in tables {
            while table.drop_some(STEP_LAYERS) {
                pause().await;
            }
        }
        done
    }

    async fn write_frozen(&self, mut w: LayerWriter, frozen: &mut Vec<Frozen>) -> Result<Option<Run>> {
        let mut slot = 0;
        loop {
            let f = {
                let core = &mut *self.core.borrow_mut();
                let Some((next, shard)) = core.maps.slots.range(slot + 1..).next().map(|(s, id)| (*s, *id)) else {
                    break;
                };
                slot = next;
                let Some(s) = core.shards.get_mut(&shard).filter(|s| s.slot == slot && !is_stuck(s)) else { continue };
                s.history.memory.freeze();
                Frozen { shard, slot, committed: s.committed, layers: 0 }
            };
            frozen.push(self.write_table(&mut w, f).await?);
        }
        w.finish(*self).await
    }

    /// Writes the frozen table of a shard, but for what may be cut.
    async fn write_table(&self, w: &mut LayerWriter, mut f: Frozen) -> Result<Frozen> {
        let (mut at, mut is_end, mut list) = (0, false, Vec::with_capacity(STEP_LAYERS));
        while !is_end {
            {
                let core = &mut *self.core.borrow_mut();
                let Some(s) = core.shards.get_mut(&f.shard).filter(|s| s.slot == f.slot) else { return Ok(f) };
                let mut looks = 0;
                while looks < STEP_LAYERS && !is_end {
                    let Some((start, len, layers)) = s.history.memory.frozen().cell(at) else {
                        is_end = true;
                        break;
                    };
                    (at, looks) = (start + len, looks + layers.len());
                    let may_go = |l: &Layer| l.e.sequence <= f.committed;
                    pieces(start, len, layers, &mut |start, l| {
                        list.extend(Some((start, l)).filter(|(_, l)| may_go(l)))
                    });
                }
                list.iter().for_each(|(_, l)| s.history.goes_below(l));
            }
            f.layers += list.len();
            for (start, l) in list.drain(..) {
                w.push(*self, f.slot, start, &l).await?;
            }
            pause().await;
        }
        Ok(f)
    }

    /// Merges runs of history: the oldest young ones, and with them the old one, unless that is much larger.
    pub(super) async fn merge_past(&self, of: PastMergeOf) -> Result<()> {
        let (device, number, inputs, with_old) = {
            let mut core = self.core.borrow_mut();
            let past = &core.maps.past;
            let few = past.young.len().saturating_sub(MERGED_RUNS);
            let mut inputs: Vec<Rc<Run>> = past.young.iter().skip(few).cloned().collect();
            let young: u64 = inputs.iter().map(|r| r.entries).sum();
            let is_small = past.old.as_ref().is_none_or(|o| young * LOOSE_SHARE >= o.entries);
            let with_old = of == PastMergeOf::All || is_small;
            inputs.extend(past.old.iter().filter(|_| with_old).cloned());
            (core.geometry.device, core.maps.new_run(), inputs, with_old)
        };
        let mut w = LayerWriter::new(device, number);
        let merged = match self.each_merged(&inputs, Some(&mut w)).await {
            Ok(_) => w.finish(*self).await,
            Err(e) => Err(e),
        };
        let core = &mut *self.core.borrow_mut();
        core.maps.written(number);
        let done = merged.map(|run| {
            let past = &mut core.maps.past;
            past.young.retain(|r| inputs.iter().all(|i| i.number != r.number));
            let run = run.map(Rc::new);
            if with_old {
                (past.old, past.wants_merge) = (run, None);
            } else {
                past.young.extend(run);
            }
            core.past_changed();
        });
        core.sweep_map();
        done
    }

    /// Frees what of the runs of history nobody needs. If that is a good part of them, they are to be written anew.
    pub(super) async fn look_through_past(&self) -> Result<()> {
        let inputs: Vec<Rc<Run>> = {
            let mut core = self.core.borrow_mut();
            core.begin_past_look();
            core.maps.past.runs().cloned().collect()
        };
        let looked = self.each_merged(&inputs, None).await?;
        if looked.loose > 0 && looked.loose * LOOSE_SHARE >= looked.layers {
            let pages: u64 = inputs.iter().map(|r| u64::from(r.places.pages)).sum();
            let left = pages * (looked.layers - looked.loose) / looked.layers;
            self.core.borrow_mut().maps.past.wants_merge = Some(left);
        }
        Ok(())
    }

    /// Looks at all layers of some runs, frees those that nobody needs, and writes the others.
    async fn each_merged(&self, inputs: &[Rc<Run>], mut w: Option<&mut LayerWriter>) -> Result<Looked> {
        let (mut merge, mut looked, mut n) = (PastMerge::new(inputs.iter().cloned()), Looked::default(), 0);
        while let Some((slot, start, l)) = merge.next(*self).await? {
            looked.layers += 1;
            if self.core.borrow_mut().keeps_layer(slot, &l) {
                if let Some(w) = &mut w {
                    w.push(*self, slot, start, &l).await?;
                }
            } else {
                looked.loose += 1;
            }
            n += 1;
            if n >= STEP_LAYERS {
                n = 0;
                pause().await;
                self.flush_past_if_full().await?;
            }
        }
        Ok(looked)
    }
}

/// The layers of a cell, or of each piece of it that fits an entry of a run.
fn pieces(start: u32, len: u32, layers: &[Layer], each: &mut dyn FnMut(u32, Layer)) {
    let has_data = layers.iter().any(|l| l.e.is_data());
    let most = if has_data { DATA_BLOCKS_MAX } else { OTHER_BLOCKS_MAX };
    let mut skip = 0;
    while skip < len {
        let part = (len - skip).min(most);
        layers.iter().for_each(|l| each(start + skip, l.piece(skip, part)));
        skip += part;
    }
}

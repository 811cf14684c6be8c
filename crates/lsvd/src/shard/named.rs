//! Blocks that a shard names, for checks: held against what counts as live.

use crate::map::extents::Extent;
use crate::map::extents::Outcome;
use crate::map::extents::{ExtentMap, Layer};
use crate::shard::Shard;
use crate::shard::history::LAST;
use crate::shard::history::pins::Kept;
use freebs_types::ChunkId;

impl Shard {
    /// A superseded entry that a version sees which is kept, and stays so, has its blocks; for checks.
    pub fn check_layer(&self, start: u32, l: &Layer) {
        let (from, to) = (l.e.version, l.to);
        let is_kept = self.history.pins.kept.needs(from, to) && self.kept().needs(from, to);
        if to < LAST && l.e.is_data() && is_kept && self.history.whole_from <= from {
            let is_live = self.chunks.all_live(l.e.chunk, l.e.offset, l.e.len);
            assert!(
                is_live,
                "shard {}: blocks at {start} of version {from}, in force up to {to}, are not live",
                self.id
            );
        }
    }

    /// Data blocks that anything names, as runs of (chunk, first ordinal, number); for checks.
    pub fn named(&self, mut each: impl FnMut(ChunkId, u32, u32)) {
        // A start may know of less that is committed than was known before. Of what a checkpoint has, blocks that frames cover
        // which count as ones that may be cut, or that only a version needs which these give up, may be free already.
        let may_lack = self.sure_from > 0;
        let mut all: Vec<Extent> = self.overlay.held().map(|(_, e)| e.clone()).collect();
        let mut held = ExtentMap::default();
        let mut out = Outcome::default();
        self.overlay.held().for_each(|(a, e)| held.insert(a, e.clone(), &mut out));
        let table = self.map.iter().map(|e| (e, false));
        for ((a, e), frozen) in table.chain(self.frozen.iter().flat_map(|f| f.iter().map(|e| (e, true)))) {
            // What is over it is newer, so its blocks may be free already: a carry that names them frees them.
            let mut view = held.clip(a, a + e.len);
            for (a, e, skip, len) in self.map.range(a, a + e.len).filter(|_| frozen) {
                view.insert(a, e.piece(skip, len), &mut out);
            }
            for (a, e, skip, len) in self.overlay.map.range(a, a + e.len).filter(|_| may_lack) {
                view.insert(a, e.piece(skip, len), &mut out);
            }
            out = Outcome::default();
            view.insert(a, e.clone(), &mut out);
            all.extend(out.placed.iter().chain(&out.same).map(|(from, len)| e.piece(from - a, *len)));
            for (_, e, _) in out.lost.drain(..).filter(|(_, e, _)| e.is_data()) {
                let live = |i: &u32| self.chunks.all_live(e.chunk, e.offset + i, 1);
                all.extend((0..e.len).filter(live).map(|i| e.piece(i, 1)));
            }
        }
        all.extend(self.overlay.frames().flat_map(|f| &f.entries).map(|(_, e)| e.clone()));
        let kept = if may_lack { self.kept() } else { Kept::default() };
        for (_, l) in self.history.memory.iter() {
            // A layer that was in a run, too, may have been freed by the end that the run knew.
            let is_needed = kept.needs(l.e.version, l.to) || self.history.is_read(l.e.version, l.to);
            if !self.history.below.was_any() && (!may_lack || is_needed) {
                all.push(l.e.clone());
            } else if l.e.is_data() {
                let live = |i: &u32| self.chunks.all_live(l.e.chunk, l.e.offset + i, 1);
                all.extend((0..l.e.len).filter(live).map(|i| l.e.piece(i, 1)));
            }
        }
        all.iter().filter(|e| e.is_data()).for_each(|e| each(e.chunk, e.offset, e.len));
    }
}

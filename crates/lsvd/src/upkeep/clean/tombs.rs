//! Which trims and zeroes of a segment are in force, or were at a version that is kept (rule E6), and are recorded nowhere
//! else: they are carried before it is given up (rule E1).
//!
//! Invariant: what was looked up is of a moment that has passed. Less may be in force since, never more: nothing is
//! added to a closed segment, and what is hidden by something newer stays so. A shard may be gone, or be another of the
//! same name, which its slot tells.

use super::moves::footer;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::engine::maps::pause;
use crate::log::scan::{Window, read_index};
use crate::log::segments::{SegmentState, Tombs};
use crate::log::tomb_list::TombList;
use crate::map::extents::{Extent, ExtentMap};
use crate::shard::Shard;
use crate::shard::history::is_of_times;
use crate::shard::history::table::Table;
use crate::{CARRY_ENTRIES_MAX, Engine, RuleMutant};
use freebs_format::{CarryBody, CarryEntry, ExtentKind, FrameHead, FrameKind};
use freebs_io::Device;
use freebs_types::limits::SHARD_ADDRESSES;
use freebs_types::{BlockRange, ErrorKind, Lba, Result, ShardId};

/// Blocks of the map that one step of the search looks at.
const WINDOW: u32 = 4096;
/// The same of addresses of times: trims there are long.
const TIMES_WINDOW: u32 = 16 * WINDOW;
/// Blocks that are looked at at once if the maps are in memory.
const AT_ONCE: u64 = 4096;
/// Frames of a segment's index that one step looks at.
const FRAMES_PER_STEP: usize = 64;

impl Core {
    /// Whether it is known what of a segment is in force; if not, it is found out.
    pub fn knows_tombs(&mut self, id: u32) -> bool {
        let s = self.segs.get(id);
        if s.tomb_list.is_empty() || s.tombs.is_some() {
            return true;
        }
        let list = &s.tomb_list;
        let in_memory = self.maps.nothing_below() && self.maps.past.is_empty();
        if list.in_index() > 0 || !in_memory || list.blocks() > AT_ONCE {
            self.segs.asked.insert(id);
            self.tomb_wake.notify_one();
            return false;
        }
        let mut found = Tombs::new();
        for (shard, start, end) in s.tomb_list.behind(None, AT_ONCE as usize) {
            let Some(s) = self.shards.get(&shard) else { continue };
            let list = found.entry((shard, s.slot)).or_default();
            gather(id, &s.committed_view(start, end), list);
            if s.keeps_history() && !self.segs.leaves_out(RuleMutant::PinnedTrimsDie) {
                s.covered_tombs(id, s.layers(start, end, Table::default()), |a, e| list.push(tomb_entry(a, e)));
            }
        }
        self.segs.get_mut(id).tombs = Some(found);
        true
    }
}

impl<D: Device> Engine<D> {
    /// Looks up what segments are waiting for, as long as the log is written. Ends only with an error.
    pub(crate) async fn tomb_loop(&self) -> Result<()> {
        let wake = self.inner.core.borrow().tomb_wake.clone();
        loop {
            if !self.find_tombs().await? {
                wake.notified().await;
            }
        }
    }

    /// `false` if no segment waits.
    async fn find_tombs(&self) -> Result<bool> {
        let next = {
            let mut core = self.inner.core.borrow_mut();
            core.segs.asking = core.segs.asked.pop_first();
            core.segs.asking.map(|id| (id, core.segs.get(id).seq, core.segs.get(id).tomb_list.in_index() > 0))
        };
        let Some((id, seq, in_index)) = next else { return Ok(false) };
        let listed = if in_index { Some(self.recorded(id, seq).await) } else { None };
        let (mut tombs, mut last) = (Some(Tombs::new()), None);
        loop {
            // It may be given up meanwhile, and used again.
            let next = {
                let core = self.inner.core.borrow();
                let s = core.segs.get(id);
                let list = listed.as_ref().unwrap_or(&s.tomb_list);
                if s.seq == seq { list.behind(last, 1).pop() } else { None }
            };
            let Some((shard, start, end)) = next else { break };
            last = next;
            let Some(slot) = self.inner.core.borrow().shards.get(&shard).map(|s| s.slot) else { continue };
            let mut found = Vec::new();
            match self.tombs_of(id, shard, start, end, &mut found).await {
                Ok(()) if found.is_empty() => {}
                Ok(()) => tombs.iter_mut().for_each(|t| t.entry((shard, slot)).or_default().append(&mut found)),
                Err(e) if e.kind == ErrorKind::NotFound => {}
                Err(e) if e.kind == ErrorKind::DeviceFailed => return Err(e),
                // A part of the map is lost: nobody knows, so the segment stays.
                Err(_) => tombs = None,
            }
        }
        let mut core = self.inner.core.borrow_mut();
        core.segs.asking = None;
        core.segs.freed.notify_one();
        let s = core.segs.get_mut(id);
        if s.state == SegmentState::Closed && s.seq == seq && tombs.is_some() {
            s.tombs = tombs;
            core.segs.candidates.insert(id);
        }
        // Who waits for room hears also that there is none in it.
        self.inner.work.notify_one();
        Ok(true)
    }

    /// Where trims and zeroes were recorded in a closed segment, by its index. If that can't be read, they may be anywhere
    /// in its shards.
    async fn recorded(&self, id: u32, seq: u64) -> TombList {
        let (geometry, guard) = {
            let core = self.inner.core.borrow();
            (core.geometry, core.segs.guard(id))
        };
        let mut w = Window::new(&self.inner.device, geometry, id);
        let index = match footer(&mut w, seq).await {
            Some(f) => read_index(&mut w, &f).await,
            None => None,
        };
        drop(guard);
        let mut out = TombList::default();
        let Some(entries) = index else {
            let core = self.inner.core.borrow();
            let s = core.segs.get(id);
            let shards = s.content.iter().filter(|_| s.seq == seq);
            shards.for_each(|(shard, _)| out.add(shard, 0, SHARD_ADDRESSES as u32));
            return out;
        };
        for (n, e) in entries.iter().enumerate() {
            recorded_by(&e.head, &mut out);
            if n % FRAMES_PER_STEP == FRAMES_PER_STEP - 1 {
                pause().await;
            }
        }
        out
    }

    async fn tombs_of(&self, id: u32, shard: ShardId, start: u32, end: u32, out: &mut Vec<CarryEntry>) -> Result<()> {
        let mut at = start;
        while let Some(from) = self.io().next_own_entry(shard, at).await?.filter(|a| *a < end) {
            let window = if is_of_times(from) { TIMES_WINDOW } else { WINDOW };
            at = from.saturating_add(window).min(end);
            if !is_of_times(from) {
                at = self.inner.core.borrow().past_end(shard, from, at, CARRY_ENTRIES_MAX)?;
            }
            let here = |_: &Core, _: &Shard, view: &ExtentMap| {
                gather(id, view, out);
                Ok(())
            };
            self.io().with_own_view(shard, (from, at), Which::Committed, here).await?;
            let keeps = |core: &Core| {
                let told = !core.segs.leaves_out(RuleMutant::PinnedTrimsDie);
                core.shard(shard).map(|s| s.keeps_history() && told)
            };
            if keeps(&self.inner.core.borrow())? {
                self.io().covered_tombs(shard, id, (from, at), |a, e| out.push(tomb_entry(a, e))).await?;
            }
            pause().await;
        }
        Ok(())
    }
}

/// Adds the ranges that a frame trims or zeroes.
fn recorded_by(head: &FrameHead, out: &mut TombList) {
    let shard = head.shard();
    match head.kind() {
        FrameKind::Data => {
            for u in head.updates() {
                let tombs = u.extents().filter(|(e, _)| e.kind != ExtentKind::Data);
                tombs.for_each(|(e, _)| out.add(shard, e.range.start.0, e.range.len));
            }
        }
        FrameKind::Carry => {
            let body = CarryBody::decode(head.body(), head.header().data_blocks()).ok();
            let tombs = body.into_iter().flat_map(|b| b.entries).filter(|e| e.kind != ExtentKind::Data);
            tombs.for_each(|e| out.add(shard, e.range.start.0, e.range.len));
        }
        _ => {}
    }
}

/// Adds the trims and zeroes of a view that are recorded in a segment.
fn gather(id: u32, view: &ExtentMap, out: &mut Vec<CarryEntry>) {
    for (a, e) in view.iter().filter(|(_, e)| !e.is_data() && e.offset == id) {
        match out.last_mut() {
            Some(l) if l.range.end() == u64::from(a) && (l.version, l.sequence) == e.key() && l.kind == e.kind => {
                l.range.len += e.len;
            }
            _ => out.push(tomb_entry(a, e)),
        }
    }
}

/// A trim or zero as it is carried.
fn tomb_entry(at: u32, e: &Extent) -> CarryEntry {
    CarryEntry {
        kind: e.kind,
        range: BlockRange { start: Lba(at), len: e.len },
        version: e.version,
        sequence: e.sequence,
        chunk: e.chunk,
        offset: 0,
        crcs: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::log::geometry::Geometry;
    use crate::log::place::At;
    use crate::map::extents::Layer;
    use crate::shard::Shard;
    use crate::shard::history::pins::PinOp;
    use crate::shard::overlay::Uncommitted;
    use crate::shard::tip::Tip;
    use freebs_format::{CarryBody, ExtentKind, Pin};
    use freebs_types::{ChunkId, ClusterId, DeviceId, Sequence, StartNumber, Version};

    fn shard(core: &mut Core, id: ShardId) {
        let slot = core.maps.new_slot(id);
        core.shards.insert(id, Shard::new(id, slot));
    }

    fn core() -> Core {
        let geometry = Geometry {
            cluster: ClusterId([1; 16]),
            device: DeviceId([2; 16]),
            start: StartNumber(1),
            sector: 4096,
            segment_bytes: 1 << 20,
            limit_segments: 8,
        };
        Core::new(geometry, 2, Options { map_bytes: 1 << 20, checkpoint_bytes: 1 << 40 })
    }

    fn zero(version: u64, home: u32) -> Extent {
        Extent {
            len: 3,
            kind: ExtentKind::Zero,
            version: Version(version),
            sequence: Sequence(version),
            chunk: ChunkId::default(),
            offset: home,
            crcs: crate::map::extents::Crcs::None,
        }
    }

    /// A shard was deleted, and made anew, after its trims in a segment had been looked up and before they were carried.
    /// The carry brought them back: blocks of the new shard read as the old one had left them.
    #[test]
    fn trims_of_a_shard_that_is_gone_are_not_carried() {
        let mut core = core();
        let id = ShardId::new(1, 0);
        shard(&mut core, id);
        core.segs.open(0, 1);
        core.segs.close(0);
        core.shards.get_mut(&id).expect("made above").map.push(5, zero(1, 0));
        core.segs.get_mut(0).tomb_list.add(id, 5, 3);
        assert!(core.knows_tombs(0), "the map is in memory");
        assert_eq!(core.needs(0).carries.len(), 1, "what is in force is carried");
        let gone = core.shards.remove(&id).expect("made above");
        core.maps.slots.remove(&gone.slot);
        assert_eq!(core.needs(0).carries.len(), 0, "nobody is left to be told");
        shard(&mut core, id);
        assert_eq!(core.needs(0).carries.len(), 0, "the new shard is another one");
    }

    /// A checkpoint had written the history of a shard when a zero of it was carried, and knew of the carry otherwise. The
    /// next start met the carry before it knew that what covers the zero is committed, and then took the record that the
    /// history names for the one that counts. So the carried one went with its segment (rules E1 and E6).
    #[test]
    fn a_record_that_is_younger_than_the_history_of_a_checkpoint_counts() {
        let (mut core, id) = (core(), ShardId::new(1, 0));
        shard(&mut core, id);
        core.segs.open(1, 2);
        let Core { shards, segs, .. } = &mut core;
        let s = shards.get_mut(&id).expect("made above");
        // As the checkpoint has it: the zero is in the map below and, with its first record, in the history.
        s.committed = Sequence(2);
        s.apply_pins(Sequence(2), &[PinOp::Take(Pin { version: Version(2), ..Pin::default() })], segs);
        s.map.push(5, zero(1, 0));
        s.history.memory.put_back(5, &Layer { e: zero(1, 0), to: Version(3), found: false, level: 0 });
        s.overlay.put(Uncommitted {
            sequence: Sequence(3),
            before: Tip::default(),
            entries: vec![(5, zero(3, 0))],
            pins: Vec::new(),
            append: 3,
        });
        let entries = vec![tomb_entry(5, &zero(1, 0))];
        s.carry(&CarryBody { entries }, At { segment: 1, head_at: 0, data_at: 0, append: 4 }, segs).unwrap();
        s.set_committed(Sequence(3), segs);
        segs.close(1);
        assert!(core.knows_tombs(1), "the map is in memory");
        let carried: Vec<_> = core.needs(1).carries.into_iter().flat_map(|c| c.1.entries).collect();
        assert_eq!(
            carried.iter().map(|e| (e.range.start.0, e.range.len, e.version.0)).collect::<Vec<_>>(),
            [(5, 3, 1)]
        );
    }
}

//! Cleaning: segments with little live data are emptied, segments without any are given up, free ones go back to the
//! file system.
//!
//! `choose` says when and which, `carry` moves what lives, `space` keeps a few segments ready and gives the others
//! back. Here a segment that has nothing live is given up, after what it said of its shards was said anew.
//!
//! Invariants: before a segment is given up, every shard with frames in it has a mark in a later segment, durable,
//! that says that these frames are released, and every trim and zero that is in force there is carried to a later
//! segment (rule E1). Nothing is given up that an uncommitted frame, a lagging member, a hole or a pin needs.
//! Candidates are looked at only when a segment closes or a count drops to zero, and are carried only if that frees
//! at least as much as it writes.

mod carry;
mod choose;
mod space;

pub(crate) use carry::Move;
pub(crate) use choose::{Cleaning, Need};

use crate::core::{Core, Job, Queued};
use crate::map::{Extent, ExtentMap};
use crate::runs::look::Which;
use crate::segments::{SegmentState, Tombs};
use crate::shard::Shard;
use crate::{CARRY_ENTRIES_MAX, Engine};
use freebs_format::{CarryBody, CarryEntry};
use freebs_io::Device;
use freebs_types::{BlockRange, ErrorKind, Lba, Result, Sequence, ShardId};

/// Blocks of the map that one step of the search for trims looks at.
const TOMBS_WINDOW: u32 = 65_536;

/// Bytes of a carried entry without data, and about those of a mark.
const ENTRY_BYTES: u64 = 48;
const MARK_BYTES: u64 = 2048;
const _: () = assert!(ENTRY_BYTES as usize == freebs_format::CARRY_ENTRY_BYTES);

impl Core {
    /// Looks at the candidates: gives up what it can, and asks for the local frames that others need for it.
    pub fn clean(&mut self) {
        while let Some(id) = self.segs.candidates.pop_first() {
            let s = self.segs.get(id);
            if s.state != SegmentState::Closed || s.live > 0 || s.jobs > 0 {
                continue;
            }
            if !s.pins.is_empty() {
                continue;
            }
            let forgets = self.maps.kept.iter().flatten().any(|k| k.covered < s.forgets);
            // A checkpoint that still has a deleted shard needs to be told that it was (rule E5).
            if forgets || self.is_held(id) {
                self.segs.blocked.insert(id);
                continue;
            }
            if !s.tomb_list.is_empty() && s.tombs.is_none() {
                self.segs.asked.insert(id);
                self.map_wake.notify_one();
                continue;
            }
            let jobs = self.jobs(id);
            if jobs.is_empty() {
                self.give_up(id);
                continue;
            }
            let bytes: u64 = jobs
                .iter()
                .map(|j| match j {
                    Job::Carry { body, .. } => ENTRY_BYTES * body.entries.len() as u64,
                    _ => MARK_BYTES,
                })
                .sum();
            if bytes > self.geometry.segment_bytes / 2 || bytes > self.room() {
                self.segs.blocked.insert(id);
                continue;
            }
            self.segs.get_mut(id).jobs = jobs.len() as u32;
            for j in jobs.into_iter().rev() {
                self.queue.push_front(Queued::Job(j));
            }
        }
    }

    /// Local frames that stand between a segment without live data and its being given up.
    fn jobs(&mut self, id: u32) -> Vec<Job> {
        let mut jobs = Vec::new();
        // Once they are carried they are looked up again: then there are none.
        for (shard, entries) in self.segs.get_mut(id).tombs.take().into_iter().flatten() {
            for part in entries.chunks(CARRY_ENTRIES_MAX) {
                let body = CarryBody { entries: part.to_vec() };
                jobs.push(Job::Carry { shard, body, segment: id });
            }
        }
        let s = self.segs.get(id);
        for (shard, c) in &s.content {
            let marked = self.shards.get(shard).is_none_or(|sh| !sh.needs_mark(id, s.seq, c.max, &self.segs));
            if !marked {
                jobs.push(Job::Mark { shard: *shard, released: c.max, segment: id });
            }
        }
        jobs
    }

    fn give_up(&mut self, id: u32) {
        for (shard, c) in self.segs.give_up(id) {
            let Some(s) = self.shards.get_mut(&shard) else { continue };
            s.marks.remove(&id);
            if c.max > Sequence(0) {
                s.frames.drop_segment(c.min, c.max, id);
                s.released = s.released.max(c.max);
            }
        }
        self.counters.segments_freed += 1;
    }
}

impl<D: Device> Engine<D> {
    /// Looks up which trims and zeroes of the segments that wait for it are in force, and only there recorded. `false`
    /// if none waits.
    pub(crate) async fn find_tombs(&self) -> Result<bool> {
        let next = {
            let mut core = self.inner.core.borrow_mut();
            core.segs.asking = core.segs.asked.pop_first();
            core.segs.asking.map(|id| (id, core.segs.get(id).seq, core.segs.get(id).tomb_ranges()))
        };
        let Some((id, seq, ranges)) = next else { return Ok(false) };
        let mut tombs = Some(Tombs::new());
        for (shard, start, end) in ranges {
            let mut found = Vec::new();
            match self.tombs_of(id, shard, start, end, &mut found).await {
                Ok(()) if found.is_empty() => {}
                Ok(()) => tombs.iter_mut().for_each(|t| t.entry(shard).or_default().append(&mut found)),
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
            self.inner.work.notify_one();
        }
        Ok(true)
    }

    async fn tombs_of(&self, id: u32, shard: ShardId, start: u32, end: u32, out: &mut Vec<CarryEntry>) -> Result<()> {
        let mut at = start;
        while let Some(from) = self.io().next_entry(shard, at).await?.filter(|a| *a < end) {
            at = from.saturating_add(TOMBS_WINDOW).min(end);
            let here = |_: &Core, _: &Shard, view: &ExtentMap| {
                for (a, e) in view.iter().filter(|(_, e)| !e.is_data() && e.offset == id) {
                    match out.last_mut() {
                        Some(l) if l.range.end() == u64::from(a) && (l.version, l.sequence) == e.key() => {
                            l.range.len += e.len;
                        }
                        _ => out.push(tomb_entry(a, e)),
                    }
                }
                Ok(())
            };
            self.io().with_view(shard, (from, at), Which::Committed, here).await?;
        }
        Ok(())
    }
}

/// A trim or zero as it is carried.
pub(crate) fn tomb_entry(at: u32, e: &Extent) -> CarryEntry {
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

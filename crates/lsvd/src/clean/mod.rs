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

use crate::CARRY_ENTRIES_MAX;
use crate::core::{Core, Job, Queued};
use crate::segments::SegmentState;
use freebs_format::{CarryBody, CarryEntry};
use freebs_types::{BlockRange, Lba, Sequence, ShardId};
use std::collections::BTreeMap;

/// Bytes of a carried entry without data, and about those of a mark.
const ENTRY_BYTES: u64 = 48;
const MARK_BYTES: u64 = 2048;
const _: () = assert!(ENTRY_BYTES as usize == freebs_format::CARRY_ENTRY_BYTES);

impl Core {
    /// Looks at the candidates: gives up what it can, and asks for the local frames that others need for it.
    pub fn clean(&mut self) {
        if self.segs.count(SegmentState::Lost) > 0 && !self.is_wounded() {
            self.segs.forget_lost();
        }
        while let Some(id) = self.segs.candidates.pop_first() {
            let s = self.segs.get(id);
            if s.state != SegmentState::Closed || s.live > 0 || s.jobs > 0 {
                continue;
            }
            if !s.pins.is_empty() {
                continue;
            }
            if self.is_held(id) {
                self.segs.blocked.insert(id);
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
    fn jobs(&self, id: u32) -> Vec<Job> {
        let s = self.segs.get(id);
        let mut jobs = Vec::new();
        if s.tombs > 0 {
            for (shard, entries) in self.tombs_in(id) {
                for part in entries.chunks(CARRY_ENTRIES_MAX) {
                    let body = CarryBody { entries: part.to_vec() };
                    jobs.push(Job::Carry { shard, body, segment: id });
                }
            }
            if jobs.is_empty() {
                // What is left is set aside until its frame commits; the count tells when.
                return vec![];
            }
        }
        for (shard, c) in &s.content {
            let marked = self.shards.get(shard).is_none_or(|sh| !sh.needs_mark(id, s.seq, c.max, &self.segs));
            if !marked {
                jobs.push(Job::Mark { shard: *shard, released: c.max, segment: id });
            }
        }
        jobs
    }

    /// Trims and zeroes in force that only this segment records.
    fn tombs_in(&self, id: u32) -> BTreeMap<ShardId, Vec<CarryEntry>> {
        let mut out: BTreeMap<ShardId, BTreeMap<u32, CarryEntry>> = BTreeMap::new();
        for (shard, start, len) in &self.segs.get(id).tomb_list {
            let Some(s) = self.shards.get(shard) else { continue };
            for (a, e, _, n) in s.map.range(*start, start + len).filter(|(_, e, ..)| !e.is_data() && e.offset == id) {
                let entry = CarryEntry {
                    kind: e.kind,
                    range: BlockRange { start: Lba(a), len: n },
                    version: e.version,
                    sequence: e.sequence,
                    chunk: e.chunk,
                    offset: 0,
                    crcs: Vec::new(),
                };
                // Overlapping records name the same entry; the longest piece of it is the one to carry.
                let old = out.entry(*shard).or_default().entry(a).or_insert_with(|| entry.clone());
                if old.range.len < n {
                    *old = entry;
                }
            }
        }
        out.into_iter().map(|(s, e)| (s, e.into_values().collect())).collect()
    }

    fn give_up(&mut self, id: u32) {
        if self.segs.get(id).tombs > 0 {
            return;
        }
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

//! Cleaning: segments with little live data are emptied, segments without any are given up, free ones go back to the
//! file system.
//!
//! `choose` says when and which, `carry` moves what lives, `space` keeps a few segments ready and gives the others
//! back. Here a segment that has nothing live is given up, after what it said of its shards was said anew.
//!
//! Invariants: before a segment is given up, every shard with frames in it has a mark in a later segment, durable,
//! that says that these frames are released, and every trim and zero that is in force there is carried to a later
//! segment (rule E1). Nothing is given up that an uncommitted frame, a lagging member, a hole or a pin needs.
//! Candidates are looked at only when a segment closes or a count drops to zero. They are given up in rounds, one at a
//! time: what a round writes is reckoned with the true size of its marks, and is less than what it frees, so that
//! giving up always ends.

mod choose;
pub(crate) mod moves;
mod space;
mod tombs;

use crate::engine::core::Core;
use crate::engine::queue::{Job, Queued};
use crate::log::segments::SegmentState;
use crate::{CARRY_ENTRIES_MAX, RuleMutant};
use freebs_format::{CarryBody, FrameHeader};
use freebs_types::{Sequence, ShardId};
use std::collections::BTreeMap;

/// Bytes of a carried entry without data.
const ENTRY_BYTES: u64 = 48;
/// Bytes of a mark without its tables.
const MARK_BYTES: usize = size_of::<FrameHeader>() + 256;
const _: () = assert!(ENTRY_BYTES as usize == freebs_format::CARRY_ENTRY_BYTES);
/// Segments that are too dear to be given up alone, of which so many are looked at together.
const ROUND_MAX: usize = 64;
/// What a round may write, in percent of what it frees; and when others may soon have to wait.
const ROUND_PERCENT: u64 = 50;
const ROUND_PERCENT_SHORT: u64 = 85;

/// What must be written before a segment without live data is given up.
#[derive(Debug, Default)]
struct Needs {
    carries: Vec<(ShardId, CarryBody)>,
    /// Shards to mark, and what of them is released.
    marks: Vec<(ShardId, Sequence)>,
}

impl Needs {
    fn is_empty(&self) -> bool {
        self.carries.is_empty() && self.marks.is_empty()
    }
}

impl Core {
    /// Looks at the candidates: gives up what it can, and asks for the local frames that others need for it.
    pub fn clean(&mut self) {
        if self.segs.count(SegmentState::Lost) > 0 && !self.is_wounded() {
            self.segs.forget_lost();
            // Until a live table says so a start misses them again, and what was learned with them.
            self.queue.push_back(Queued::Roll);
        }
        if self.segs.candidates.is_empty() {
            return;
        }
        let mut found = Vec::new();
        if self.cleaning.round_jobs == 0 {
            let dear: Vec<u32> = self.segs.dear.iter().take(ROUND_MAX).copied().collect();
            for id in dear {
                self.segs.dear.remove(&id);
                self.segs.candidates.insert(id);
            }
        }
        while let Some(id) = self.segs.candidates.pop_first() {
            let s = self.segs.get(id);
            if s.state != SegmentState::Closed || s.live > 0 || s.leaving || !s.pins.is_empty() {
                continue;
            }
            let mut kept = self.maps.kept.iter().flatten().filter(|_| !self.segs.leaves_out(RuleMutant::DeletionsGo));
            let forgets = kept.any(|k| k.covered < s.forgets);
            // A checkpoint that still has a deleted shard needs to be told that it was (rule E5).
            if forgets || self.is_held(id) {
                self.segs.blocked.insert(id);
                continue;
            }
            if !self.knows_tombs(id) {
                continue;
            }
            if self.cleaning.round_jobs > 0 || found.len() == ROUND_MAX {
                if self.needs(id).is_empty() {
                    self.give_up(id);
                } else {
                    self.segs.dear.insert(id);
                }
                continue;
            }
            let needs = self.needs(id);
            if needs.is_empty() {
                self.give_up(id);
            } else {
                found.push((id, needs));
            }
        }
        if !found.is_empty() {
            self.begin_round(found);
        }
    }

    /// Asks for what lets segments be given up, of as many together as makes it worth it: a shard is marked once for
    /// all of them. Everything that is asked for has room for sure, and the next round begins when it is written.
    fn begin_round(&mut self, mut found: Vec<(u32, Needs)>) {
        assert!(self.cleaning.round.is_empty() && self.cleaning.round_jobs == 0, "one round at a time");
        let saves = |id: u32| self.is_rotten(id);
        // Damaged ones come first, whatever it costs.
        found.sort_by_cached_key(|(id, n)| (!saves(*id), self.needs_bytes(n, &BTreeMap::new()).0, *id));
        let percent = if self.short_of_space() { ROUND_PERCENT_SHORT } else { ROUND_PERCENT };
        let (segment, room) = (self.geometry.segment_bytes, self.room());
        let (mut marks, mut bytes, mut largest, mut taken) = (BTreeMap::new(), 0, 0, 0);
        for (i, (id, needs)) in found.iter().enumerate() {
            let (more, large) = self.needs_bytes(needs, &marks);
            (bytes, largest) = (bytes + more, large.max(largest));
            marks.extend(needs.marks.iter().copied());
            // At the end of each segment that is filled, the next frame may not fit.
            let all = bytes + (bytes / segment + 1) * largest;
            if all > room {
                break;
            }
            if all <= (i as u64 + 1) * segment / 100 * percent || saves(*id) {
                taken = i + 1;
            }
        }
        self.segs.dear.extend(found.drain(taken..).map(|(id, _)| id));
        let mut released: BTreeMap<ShardId, Sequence> = BTreeMap::new();
        let mut jobs = Vec::new();
        for (id, needs) in found {
            jobs.extend(needs.carries.into_iter().map(|(shard, body)| Job::Carry { shard, body }));
            for (shard, max) in needs.marks {
                let highest = released.entry(shard).or_default();
                *highest = max.max(*highest);
            }
            let s = self.segs.get_mut(id);
            // Once they are carried they are looked up again: then there are none.
            (s.leaving, s.tombs) = (true, None);
            self.cleaning.round.push(id);
        }
        for shard in released.keys() {
            self.shards.get_mut(shard).into_iter().for_each(|s| s.suspect_told |= s.suspect);
        }
        jobs.extend(released.into_iter().map(|(shard, released)| Job::Mark { shard, released }));
        self.cleaning.round_jobs = jobs.len() as u32;
        for j in jobs.into_iter().rev() {
            self.queue.push_front(Queued::Job(j));
        }
    }

    /// A local frame of the round is durable and has acted.
    pub fn job_done(&mut self) {
        assert!(self.cleaning.round_jobs > 0, "a local frame of a round acts once");
        self.cleaning.round_jobs -= 1;
        if self.cleaning.round_jobs == 0 {
            for id in std::mem::take(&mut self.cleaning.round) {
                self.segs.get_mut(id).leaving = false;
                self.segs.candidates.insert(id);
            }
        }
    }

    /// Bytes that a mark of the shard takes, in the log and in its segment's index.
    fn mark_bytes(&self, shard: ShardId) -> u64 {
        let tables = self.shards.get(&shard).map_or(0, |s| s.mark_tables_len());
        (2 * (MARK_BYTES + tables)) as u64
    }

    /// Bytes of what is needed, without marks of shards that are in `marked`; and of the largest frame of it.
    fn needs_bytes(&self, needs: &Needs, marked: &BTreeMap<ShardId, Sequence>) -> (u64, u64) {
        let carries = needs.carries.iter().map(|(_, body)| 2 * ENTRY_BYTES * (body.entries.len() as u64 + 8));
        let marks = needs.marks.iter().filter(|(shard, _)| !marked.contains_key(shard));
        let marks = marks.map(|(shard, _)| self.mark_bytes(*shard));
        carries.chain(marks).fold((0, 0), |(sum, largest), n| (sum + n, n.max(largest)))
    }

    /// Shards that must be marked before a segment is given up, and up to where they are released then.
    fn unmarked(&self, id: u32) -> impl Iterator<Item = (ShardId, Sequence)> {
        let s = self.segs.get(id);
        let unmarked = move |(shard, max): &(ShardId, Sequence)| {
            self.shards.get(shard).is_some_and(|sh| sh.needs_mark(id, s.seq, *max, &self.segs))
        };
        s.content.iter().map(|(shard, c)| (shard, c.max)).filter(unmarked)
    }

    /// What stands between a segment without live data and its being given up.
    fn needs(&self, id: u32) -> Needs {
        let mut needs = Needs::default();
        let tombs = self.segs.get(id).tombs.iter().filter(|_| !self.segs.leaves_out(RuleMutant::TrimsDie));
        // Rule E1: what is in force is said anew before this segment goes.
        for ((shard, slot), entries) in tombs.flatten() {
            // They were looked up a while ago.
            if self.shards.get(shard).is_none_or(|s| s.slot != *slot) {
                continue;
            }
            for part in entries.chunks(CARRY_ENTRIES_MAX) {
                needs.carries.push((*shard, CarryBody { entries: part.to_vec() }));
            }
        }
        needs.marks = self.unmarked(id).collect();
        // A sign that frames may be lost may lie in the segment, or be that it is there at all (E7).
        let untold = self.shards.values().filter(|s| s.suspect && !s.suspect_told).map(|s| (s.id, Sequence(0)));
        let untold: Vec<_> = untold.filter(|(id, _)| needs.marks.iter().all(|(marked, _)| marked != id)).collect();
        needs.marks.extend(untold);
        needs
    }

    fn give_up(&mut self, id: u32) {
        assert!(!self.segs.get(id).leaving, "the local frames that let a segment go are durable");
        for (shard, c) in self.segs.give_up(id).iter() {
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

//! When cleaning runs, how much of the device it may have, and which segments it takes.
//!
//! Invariants:
//! - A pass is begun only if all that it moves fits what is free without the reserve of a segment that makes others
//!   usable; so a pass always ends, and free space grows by it.
//! - While there is room, cleaning appends at most its share of what others append. The share grows as free segments
//!   grow few, so that writers and cleaning meet where as much is freed as is used. Only at the reserve are writers
//!   held back, and only while cleaning gets on. Damaged segments are emptied before all others, and without a share.
//! - What may be moved is bounded by what others appended and by what died: a device that is as full as it gets is
//!   compacted once, and not for ever.
//!
//! The choice is the one of Rosenblum and Ousterhout's log-structured file system: free space gained times its age
//! over what it costs, (1 - u) * age / (1 + u), with ages of the data rather than of the segment (RAMCloud).

use super::ENTRY_BYTES;
use crate::engine::cleaning::Need;
use crate::engine::core::Core;
use crate::engine::queue::Queued;
use crate::log::geometry::Geometry;
use crate::log::segments::{Segment, SegmentState};
use crate::{CleanMutant, Record};
use freebs_types::{BLOCK, ShardId};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Bytes that a moved block takes beside its data: its entry and its CRC, in the log and in the segment's index.
const MOVED_BLOCK_BYTES: u64 = 2 * (ENTRY_BYTES + 4);
/// What cleaning may append for 100 bytes of others just before they are held back.
const SHARE_PERCENT_MAX: u64 = 400;
/// How many times its share cleaning gets in a log that is so many times too large.
const GENTLE_MAX: u64 = 4;
/// Segments that are cleaned together.
const VICTIMS_MAX: usize = 8;
/// Segments that are looked at closely, the best by benefit; and those beside them that a shard holds.
const LOOK_MAX: usize = 64;
const HELD_LOOK_MAX: usize = 4096;
/// A segment that could not be emptied is tried again when so many have been opened since, or when it has changed; one
/// with a damaged block when a repair touched it.
const STUCK_SEGMENTS: u64 = 64;
/// Blocks that may be moved for each block that died: as many as it takes in segments that are nearly full.
const MOVES_PER_DEATH: u64 = 32;
/// Percent of a segment that emptying one may cost when others wait: as much as `MOVES_PER_DEATH` allows. Less, and writes
/// are refused for want of room that cleaning could make; more, and what it frees goes into the heads of what it moves.
const WORTH_PERCENT_HARD: u64 = 100 * MOVES_PER_DEATH / (MOVES_PER_DEATH + 1) + 1;
const _: () = assert!(WORTH_PERCENT_HARD == 97);
/// Segments beyond the target for which nobody cleans: the open one, and what just closed.
const SLACK_SEGMENTS: u64 = 2;

/// Segments by their benefit; of the same benefit the one with the lowest number comes first.
type Candidates = BinaryHeap<(u128, Reverse<u32>)>;

impl Core {
    /// Free segments at which writers are held back while cleaning gets on: just before heads refuse.
    pub fn hard_segments(&self) -> u32 {
        self.reserve_segments() + 1
    }

    /// Free segments from which on cleaning is not needed for room.
    pub fn low_segments(&self) -> u32 {
        self.hard_segments() + (self.geometry.limit_segments / 32).clamp(2, 64)
    }

    /// Whether what is kept for others' sake must go, so that heads need not refuse.
    pub fn short_of_space(&self) -> bool {
        self.free_segments() <= self.hard_segments()
    }

    pub fn need(&self) -> Need {
        let options = &self.cleaning.options;
        if !options.enabled {
            return Need::None;
        }
        let (free, hard, low) = (self.free_segments(), self.hard_segments(), self.low_segments());
        let segment = self.geometry.segment_bytes;
        if free <= hard {
            return Need::Hard;
        }
        let share = u64::from(options.share_percent);
        if free <= low {
            let rest = self.open.as_ref().map_or(0, |o| segment - u64::from(o.at));
            let room = u64::from(free - hard - 1) * segment + rest;
            let span = u64::from(low - hard) * segment;
            let gone = span.saturating_sub(room);
            return Need::Short(share + SHARE_PERCENT_MAX.saturating_sub(share) * gone / span);
        }
        let live = self.segs.live_blocks * BLOCK as u64;
        let target = live / 100 * u64::from(options.target_percent) + SLACK_SEGMENTS * segment;
        let used = u64::from(self.segs.used_count) * segment;
        // A log that is very large for what lives in it is cheap to clean, so that more may be spent on it.
        if used > target { Need::Gentle(share * (used / target).min(GENTLE_MAX)) } else { Need::None }
    }

    /// What may be moved, after `moved` blocks more were moved and `appended` were appended by others. At first, and
    /// at most, everything once.
    fn moves_left(&mut self, moved: u64, appended: u64) -> u64 {
        let most = self.segs.live_blocks + 4 * self.geometry.segment_bytes / BLOCK as u64;
        let died = self.segs.died - self.cleaning.died_seen;
        let c = &mut self.cleaning;
        let left = c.moves_left.unwrap_or(most).saturating_sub(moved) + appended + MOVES_PER_DEATH * died;
        (c.moves_left, c.died_seen) = (Some(left.min(most)), self.segs.died);
        left.min(most)
    }

    /// `moved` blocks were moved, and others appended so many bytes.
    pub fn earn(&mut self, moved: u64, bytes: u64) {
        self.moves_left(moved, bytes / BLOCK as u64);
        let percent = match self.need() {
            Need::Short(p) | Need::Gentle(p) => p,
            Need::Hard => SHARE_PERCENT_MAX,
            Need::None => u64::from(self.cleaning.options.share_percent),
        };
        let c = &mut self.cleaning;
        if c.busy || c.looked != Some(self.segs.changes) {
            c.credit = (c.credit + bytes * percent / 100).min(self.geometry.segment_bytes);
            c.wake.notify_one();
        }
    }

    /// Whether cleaning may append so many bytes now; if so they are taken off its share. `rest` is what is left of
    /// the pass.
    pub fn spend(&mut self, bytes: u64, rest: u64) -> bool {
        let enough = match self.need() {
            Need::Hard => 0,
            _ if self.cleaning.saves || (self.cleaning.idle && self.queue.is_empty()) => 0,
            // The share is used evenly, so that nobody has to wait for long.
            Need::Short(_) => bytes,
            // The share is saved up and used at once, so that what stays lies together, and not between what is
            // overwritten soon.
            Need::Gentle(_) | Need::None if !self.cleaning.burst => rest.min(self.geometry.segment_bytes),
            Need::Gentle(_) | Need::None => 0,
        };
        let c = &mut self.cleaning;
        if c.credit < enough {
            return false;
        }
        c.burst = true;
        c.credit = c.credit.saturating_sub(bytes);
        true
    }

    /// Whether cleaning is at work, or may find something to do.
    pub fn hope(&self) -> bool {
        let c = &self.cleaning;
        self.running && c.options.enabled && (c.busy || c.looked != Some(self.segs.changes) || self.wants_squeeze())
    }

    /// Whether it is being found out what may be given up: which trims are in force, or what no version needs any more.
    pub fn is_finding(&self) -> bool {
        self.running && (self.segs.is_asking() || self.segs.prune || self.maps.past.is_looked_through)
    }

    /// True if segments without live data are on their way to be free: they are to be looked at, or what must be written
    /// before has not been.
    pub fn is_giving_up(&self) -> bool {
        self.running && (self.cleaning.round_jobs > 0 || !self.segs.candidates.is_empty())
    }

    /// True if more room may come without anybody's doing but the writer's.
    pub fn more_soon(&self) -> bool {
        self.hope() || self.is_finding()
    }

    /// Whether who finds no room is to wait for some: for cleaning, for what is being found out, or for what the map does,
    /// which may let segments go. He hears when that is over, whatever came of it; and nobody is woken for nothing, or
    /// the two would wake each other all the time.
    pub fn waits_for_room(&mut self) -> bool {
        let waits = self.more_soon() || self.maps.busy;
        self.maps.awaited |= waits;
        if waits && !self.maps.busy && (self.segs.prune || self.wants_squeeze()) {
            self.map_wake.notify_one();
        }
        if waits && (self.cleaning.busy || self.cleaning.looked != Some(self.segs.changes)) {
            self.cleaning.wake.notify_one();
        }
        waits
    }

    /// Whether the log ends as soon as what cleaning has begun is written: nobody waits for room.
    pub fn is_leaving(&self) -> bool {
        self.closing && !self.queue.iter().any(|q| matches!(q, Queued::Record(_)))
    }

    /// Whether a record must wait for cleaning, or may not be appended at all.
    pub fn holds_back(&self, q: &Queued) -> bool {
        match q {
            Queued::Job(_)
            | Queued::Suspect(_)
            | Queued::Idle
            | Queued::Roll
            | Queued::Record(Record::Cut { .. } | Record::Forget { .. }) => false,
            Queued::Record(r) => {
                let free = self.free_segments();
                // What is learned or put back leaves a segment to promises and frames.
                let learns = match r {
                    Record::Carry { data, .. } => !data.is_empty(),
                    Record::Repair(f) => f.data_bytes() > 0,
                    _ => false,
                };
                let is_hard = free <= self.hard_segments() && !self.has_one_for_records();
                free < self.last_segments() + u32::from(learns) || (is_hard && self.more_soon())
            }
        }
    }

    /// Whether the segment that is opened now is one for records: what is next is one, and need not wait.
    pub fn next_opens_for_records(&self) -> bool {
        self.free_segments() > self.hard_segments() && matches!(self.queue.front(), Some(Queued::Record(_)))
    }

    /// Whether the open segment is one that records got, and nothing but that has brought free segments to where
    /// records wait. Held back once more they would never get in: cleaning would fill it, and the next one, with what
    /// it moves. What is left of it does not count as room for cleaning.
    fn has_one_for_records(&self) -> bool {
        self.open.as_ref().is_some_and(|o| o.for_records) && self.free_segments() >= self.hard_segments()
    }

    /// The next record does not fit what is left of its segment: cleaning may have that. Whether there was one.
    pub fn end_records_segment(&mut self) -> bool {
        let ends = self.has_one_for_records() && matches!(self.queue.front(), Some(Queued::Record(_)));
        if let Some(o) = self.open.as_mut().filter(|_| ends) {
            o.for_records = false;
        }
        ends
    }

    /// Bytes that local frames can take for sure, without opening the last segment that is ready.
    pub fn room(&self) -> u64 {
        let open = self.open.as_ref().filter(|_| !self.has_one_for_records()).map_or(0, |o| {
            let index = self.geometry.index_room(o.index.len()) as u64;
            self.geometry.segment_bytes.saturating_sub(u64::from(o.at) + index + self.geometry.sector as u64)
        });
        let ready = self.segs.ready_count();
        let more = if ready == 0 { 0 } else { ready + self.segs.count(SegmentState::Given) - 1 };
        let spare = if self.can_grow() { more.max(2) } else { more };
        // Of each segment its live table, its index and what fits no more are lost.
        open + u64::from(spare) * (self.geometry.segment_bytes / 100 * 97)
    }

    /// True if the log has no segment for a map, and what lives would no longer fit beside one: overwrites would be refused
    /// for ever because of a checkpoint. Only in a log of few segments, which a start reads in no more time than it may
    /// take with a checkpoint.
    pub fn has_no_room_for_a_map(&self) -> bool {
        let Geometry { segment_bytes, limit_segments, .. } = self.geometry;
        let is_short = u64::from(self.segs.used_count) * segment_bytes <= self.maps.checkpoint_bytes;
        let beside = u64::from(limit_segments.saturating_sub(self.hard_segments() + 1)) * segment_bytes;
        let needs = self.segs.live_blocks * (BLOCK as u64 + MOVED_BLOCK_BYTES);
        is_short && self.segs.map_count == 0 && needs > beside / 100 * WORTH_PERCENT_HARD
    }

    /// Bytes that it takes to empty a segment and to give it up, without marks.
    fn cost(s: &Segment) -> u64 {
        s.live * (BLOCK as u64 + MOVED_BLOCK_BYTES) + s.tomb_list.records() * 2 * ENTRY_BYTES
    }

    /// The segments to clean next, the best first; none if nothing is needed or worth it.
    pub fn choose(&mut self) -> Vec<u32> {
        if self.wants_squeeze() {
            self.map_wake.notify_one();
        }
        let need = self.need();
        let rotten = self.rotten();
        if (need == Need::None && (rotten.is_empty() || !self.cleaning.options.enabled))
            || self.failed.is_some()
            || self.is_leaving()
            || self.cleaning.looked == Some(self.segs.changes)
        {
            return Vec::new();
        }
        let moves = self.moves_left(0, 0) * BLOCK as u64;
        let segment = self.geometry.segment_bytes;
        let worth = segment / 100
            * match need {
                Need::Hard => WORTH_PERCENT_HARD,
                Need::Short(_) => 90,
                _ => 85,
            };
        let best = self.candidates(need, &rotten, worth);
        let out = self.take(best, &rotten, worth, moves);
        self.cleaning.saves = out.first().is_some_and(|id| rotten.contains(id));
        self.cleaning.looked = out.is_empty().then_some(self.segs.changes);
        out
    }

    /// Segments that may be cleaned, by benefit; those with damage before all others.
    fn candidates(&self, need: Need, rotten: &BTreeSet<u32>, worth: u64) -> Candidates {
        let blocks = self.geometry.segment_bytes / BLOCK as u64;
        let mut best = Vec::new();
        for (id, s) in self.segs.used() {
            let young = |seq: u64| self.next_seq < seq + STUCK_SEGMENTS;
            let stuck = s.stuck.is_some_and(|(live, seq)| live == s.live && young(seq)) || s.damaged.is_some_and(young);
            let fits = s.state == SegmentState::Closed && s.live > 0 && !s.leaving && s.pins.is_empty();
            if !fits || stuck || s.cleaning {
                continue;
            }
            // What is there goes before it rots further, whatever it costs.
            if rotten.contains(&id) {
                best.push((u128::MAX, Reverse(id)));
                continue;
            }
            if need == Need::None || Self::cost(s) > worth {
                continue;
            }
            let age = self.next_seq.saturating_sub(s.birth(blocks)).max(1);
            let benefit = u128::from(blocks.saturating_sub(s.live)) * u128::from(age) * 1000;
            best.push((benefit / u128::from(blocks + s.live), Reverse(id)));
        }
        BinaryHeap::from(best)
    }

    /// The best of the candidates that fit the room that is left, and are worth it together. `worth` is the most that
    /// emptying one may cost on average, `moves` the data that may be moved, both in bytes.
    fn take(&mut self, mut best: Candidates, rotten: &BTreeSet<u32>, worth: u64, moves: u64) -> Vec<u32> {
        let mut out = Vec::new();
        let (mut live, mut room, mut sum, mut good) = (0, self.room(), 0, 0);
        let mut marked = BTreeSet::new();
        self.cleaning.held = false;
        let (mut looks, mut held) = (0, 0);
        while let Some((_, Reverse(id))) = best.pop() {
            let saves = rotten.contains(&id);
            if !saves && out.first().is_some_and(|first| rotten.contains(first)) {
                break;
            }
            if self.is_held(id) && self.cleaning.options.mutant != Some(CleanMutant::MoveUncommitted) {
                self.cleaning.held = true;
                held += 1;
                if held == HELD_LOOK_MAX {
                    break;
                }
                continue;
            }
            looks += 1;
            if looks > LOOK_MAX {
                break;
            }
            let s = self.segs.get(id);
            let bytes = s.live * BLOCK as u64;
            // A shard is marked once for all of them.
            let unmarked: Vec<ShardId> = self.unmarked(id).map(|(shard, _)| shard).collect();
            let marks = unmarked.iter().filter(|shard| !marked.contains(*shard)).map(|shard| self.mark_bytes(*shard));
            let cost = Self::cost(s) + marks.sum::<u64>();
            if cost > room
                || (live + bytes > moves && !saves)
                || (!out.is_empty() && live + bytes > self.cleaning.options.batch_bytes as u64)
            {
                continue;
            }
            out.push(id);
            marked.extend(unmarked);
            (live, room, sum) = (live + bytes, room - cost, sum + cost);
            if sum <= worth * out.len() as u64 || saves {
                good = out.len();
            }
            if out.len() == VICTIMS_MAX {
                break;
            }
        }
        out.truncate(good);
        out
    }

    /// Something that a shard held may be cleaned now, or given up.
    pub fn no_longer_held(&mut self) {
        if std::mem::take(&mut self.cleaning.held) | self.free_rotten() {
            self.segs.changes += 1;
            self.cleaning.wake.notify_one();
        }
    }

    /// Whether a shard misses something, or may do so.
    pub fn is_wounded(&self) -> bool {
        self.shards.values().any(crate::shard::Shard::is_wounded)
    }

    /// Whether a shard with frames in a segment stands against its being given up.
    pub fn is_held(&self, id: u32) -> bool {
        if self.segs.get(id).evidence && self.is_wounded() {
            return true;
        }
        let short = self.short_of_space();
        self.segs.get(id).content.iter().any(|(id, c)| self.shards.get(&id).is_some_and(|s| s.holds(c.max, short)))
    }
}

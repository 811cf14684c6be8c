//! Damage that is known and not gone: segments under suspicion, segments that are emptied for it, live blocks that
//! wait for bytes from elsewhere, and the findings that have been told.
//!
//! Invariants:
//! - A segment is emptied for its damage when no block of it waits to be mended any more. Neither its share of what
//!   others write nor what it costs stands against that.
//! - A finding is told once: what is found again in the same use of a place, by whoever, is told again only if it was
//!   gone in between. It counts by its place and its text.

use crate::engine::core::Core;
use crate::engine::moves::Piece;
use crate::log::segments::SegmentState;
use crate::{EventKind, Finding};
use freebs_types::{BLOCK, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};

/// Damaged pieces that wait to be mended; what is found beyond them is found again by the next pass.
const WANTED_MAX: usize = 4096;
/// Damaged blocks that are known to be nobody's. Of those beyond them nobody is told as long as these are there.
const GIVEN_UP_MAX: usize = 1 << 16;
/// Findings that are known to be told. Of those beyond them one line tells that there are more.
const TOLD_MAX: usize = 4096;

/// A part of the device in one use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Superblock,
    /// Findings of a reader of all of a segment: its id and its number.
    Segment(u32, u64),
    /// Findings that others met there.
    Met(u32, u64),
    /// A run of the map, by its number.
    Run(u64),
}

/// Findings that were told, by byte and text.
#[derive(Default)]
struct Told {
    places: BTreeMap<Place, BTreeSet<(u64, String)>>,
    count: usize,
    /// It was told that there are more.
    overflowed: bool,
}

/// The fate of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    New,
    Known,
    /// There are too many to know.
    TooMany,
}

impl Told {
    fn add(&mut self, place: Place, offset: u64, what: &str) -> Verdict {
        let list = self.places.entry(place).or_default();
        let key = (offset, what.to_owned());
        if list.contains(&key) {
            return Verdict::Known;
        }
        if self.count >= TOLD_MAX {
            return Verdict::TooMany;
        }
        list.insert(key);
        self.count += 1;
        Verdict::New
    }

    /// Forgets what was found in a place and is no longer there.
    fn keep(&mut self, place: Place, found: &[Finding]) {
        let Some(list) = self.places.get_mut(&place) else { return };
        let before = list.len();
        let found: BTreeSet<(u64, &str)> = found.iter().map(|f| (f.offset, f.what.as_str())).collect();
        list.retain(|(offset, what)| found.contains(&(*offset, what.as_str())));
        self.count -= before - list.len();
    }

    /// Forgets places that are no longer what they were.
    fn retain(&mut self, is_there: impl Fn(&Place) -> bool) {
        self.places.retain(|place, list| !list.is_empty() && is_there(place));
        self.count = self.places.values().map(BTreeSet::len).sum();
        self.overflowed &= self.count >= TOLD_MAX / 2;
    }
}

/// Damage that is known and not mended.
#[derive(Default)]
pub(crate) struct Rot {
    /// Segments in which somebody met damage: they are read first.
    suspects: BTreeSet<u32>,
    /// Segments with damage, and their numbers: they are emptied.
    rotten: BTreeMap<u32, u64>,
    /// Live blocks that are damaged, by the number under which they are asked for.
    wanted: BTreeMap<u64, Piece>,
    next_id: u64,
    /// Not yet given to who asks for them.
    fresh: BTreeSet<u64>,
    /// Blocks that nobody has: segment, its number, byte in it.
    given_up: BTreeSet<(u32, u64, u32)>,
    /// Mending moves on their way to the log.
    mending: u32,
    told: Told,
}

impl Rot {
    /// The damage that was just met in a segment is not the one that is known of it.
    pub fn suspect_again(&mut self, segment: u32) {
        self.suspects.insert(segment);
    }

    pub fn next_suspect(&mut self) -> Option<u32> {
        self.suspects.pop_first()
    }

    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// A segment has damage. Whether that is news.
    pub fn is_news(&mut self, segment: u32, seq: u64) -> bool {
        self.rotten.insert(segment, seq) != Some(seq)
    }

    pub fn want(&mut self, piece: Piece) {
        let known = |p: &Piece| p.place() == piece.place();
        if self.wanted.len() >= WANTED_MAX || self.wanted.values().any(known) {
            return;
        }
        self.next_id += 1;
        self.fresh.insert(self.next_id);
        self.wanted.insert(self.next_id, piece);
    }

    pub fn wanted(&self, id: u64) -> Option<&Piece> {
        self.wanted.get(&id)
    }

    /// Numbers of pieces that nobody was given yet.
    pub fn take_fresh(&mut self, max: usize) -> Vec<u64> {
        let ids: Vec<u64> = self.fresh.iter().copied().take(max).collect();
        self.fresh.retain(|id| !ids.contains(id));
        ids
    }

    pub fn mending(&self) -> u32 {
        self.mending
    }

    /// Bytes for a piece are on their way to the log.
    pub fn mends(&mut self, id: u64) {
        self.wanted.remove(&id);
        self.mending += 1;
    }
}

impl Core {
    pub fn is_still(&self, id: u32, seq: u64) -> bool {
        let s = self.segs.get(id);
        s.state == SegmentState::Closed && s.seq == seq
    }

    pub fn is_poisoned(&self) -> bool {
        self.failed.as_ref().is_some_and(|e| e.kind == ErrorKind::DeviceFailed)
    }

    /// Somebody met damage in a segment. What is known to be damaged waits for mending, or for the next pass.
    pub fn suspect(&mut self, segment: u32) {
        if segment < self.segs.len() && !self.is_rotten(segment) {
            self.rot.suspects.insert(segment);
        }
    }

    /// True if a segment is known to be damaged in this use of it.
    pub fn is_rotten(&self, segment: u32) -> bool {
        self.rot.rotten.get(&segment) == Some(&self.segs.get(segment).seq)
    }

    /// Segments to be emptied because they are damaged; not those with blocks that may be mended yet.
    pub fn rotten(&mut self) -> BTreeSet<u32> {
        if self.rot.rotten.is_empty() {
            return BTreeSet::new();
        }
        let mut rotten = std::mem::take(&mut self.rot.rotten);
        rotten.retain(|id, seq| self.is_still(*id, *seq));
        self.rot.rotten = rotten;
        let waiting: BTreeSet<u32> = self.rot.wanted.values().map(|p| p.place().0).collect();
        self.rot.rotten.keys().filter(|id| !waiting.contains(id)).copied().collect()
    }

    /// True if damaged blocks are still live where they were found; those that are not are forgotten.
    pub fn still_wants(&mut self, id: u64) -> bool {
        let Some(piece) = self.rot.wanted.get(&id) else { return false };
        let lives = !self.live_parts(piece).is_empty();
        if !lives {
            let (segment, seq, _) = piece.place();
            if self.is_still(segment, seq) {
                // It may be what kept the segment from being emptied.
                self.segs.get_mut(segment).damaged = None;
            }
            self.stops_waiting(id);
        }
        lives
    }

    /// Nobody has the blocks of a piece.
    pub fn give_up_blocks(&mut self, id: u64) {
        let Some(piece) = self.rot.wanted.get(&id) else { return };
        let (segment, seq, at) = piece.place();
        let blocks: Vec<u32> = (0..piece.range().len).map(|i| at + i * BLOCK as u32).collect();
        if self.rot.given_up.len() + blocks.len() > GIVEN_UP_MAX {
            let mut known = std::mem::take(&mut self.rot.given_up);
            known.retain(|(segment, seq, _)| self.is_named(*segment, *seq));
            self.rot.given_up = known;
        }
        let room = GIVEN_UP_MAX.saturating_sub(self.rot.given_up.len());
        self.rot.given_up.extend(blocks.into_iter().take(room).map(|at| (segment, seq, at)));
    }

    /// True if nobody has the block in this place.
    pub fn is_given_up(&self, segment: u32, at: u32) -> bool {
        self.rot.given_up.contains(&(segment, self.segs.get(segment).seq, at))
    }

    /// True if a segment is in this use still.
    fn is_named(&self, id: u32, seq: u64) -> bool {
        let s = self.segs.get(id);
        s.is_used() && s.seq == seq
    }

    /// A piece is not waited for any more.
    pub fn stops_waiting(&mut self, id: u64) {
        self.rot.wanted.remove(&id);
        self.look_at_rotten();
    }

    /// Mending moves have acted, or there was nothing left to move.
    pub fn mends_done(&mut self, moves: u32) {
        assert!(moves <= self.rot.mending, "mending moves end once");
        self.rot.mending -= moves;
        if moves > 0 {
            self.look_at_rotten();
        }
    }

    /// Cleaning looks again at what is rotten.
    pub fn look_at_rotten(&mut self) {
        self.free_rotten();
        // A segment that is being cleaned must not wait for a share that nobody earns.
        self.cleaning.saves |= self.cleaning.busy && !self.rotten().is_empty();
        self.segs.changes += 1;
        self.cleaning.wake.notify_one();
    }

    /// Looks again whether damaged segments without live data can be given up. True if there are any.
    pub fn free_rotten(&mut self) -> bool {
        let mut any = false;
        for id in self.rot.rotten.keys() {
            if self.segs.blocked.remove(id) | self.segs.dear.remove(id) {
                any |= self.segs.candidates.insert(*id);
            }
        }
        any
    }

    /// Tells what somebody found who read all of a place, as far as it is not known. Gives back how many that are.
    pub fn tell_found(&mut self, place: Place, by: &str, found: &[Finding]) -> u64 {
        self.rot.told.keep(place, found);
        found.iter().map(|f| u64::from(self.tell(place, by, f))).sum()
    }

    /// Tells a finding, if it is not known. Whether it was told.
    pub fn tell(&mut self, place: Place, by: &str, f: &Finding) -> bool {
        let is_new = self.is_untold(place, f.offset, &f.what);
        if is_new {
            let at = f.segment.map_or("superblock".to_owned(), |s| format!("segment {s}"));
            self.event(EventKind::Damage, format!("{by}{at}, byte {}: {}", f.offset, f.what));
        }
        is_new
    }

    /// A block, or a frame, does not match its checksum. Each is counted, and told once.
    pub fn crc_error(&mut self, (segment, byte): (u32, u32), text: &str) {
        self.counters.crc_errors += 1;
        let place = Place::Met(segment, self.segs.get(segment).seq);
        if self.is_untold(place, u64::from(byte), text) {
            self.event(EventKind::CrcError, text);
        }
    }

    /// True if a finding is one to tell. If there are too many to know, that is told instead, once.
    fn is_untold(&mut self, place: Place, offset: u64, what: &str) -> bool {
        if self.rot.told.count >= TOLD_MAX {
            self.forget_told();
        }
        let verdict = self.rot.told.add(place, offset, what);
        if verdict == Verdict::TooMany && !std::mem::replace(&mut self.rot.told.overflowed, true) {
            let text = format!("{TOLD_MAX} damaged places are known; more are not told one by one");
            self.event(EventKind::Damage, text);
        }
        verdict == Verdict::New
    }

    /// Forgets what was told of places that are gone.
    pub fn forget_told(&mut self) {
        let levels: BTreeSet<u64> = self.maps.asked().iter().map(|r| r.number).collect();
        let mut told = std::mem::take(&mut self.rot.told);
        told.retain(|place| match place {
            Place::Superblock => true,
            Place::Segment(id, seq) | Place::Met(id, seq) => self.is_named(*id, *seq),
            Place::Run(number) => levels.contains(number),
        });
        self.rot.told = told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(offset: u64, what: &str) -> Finding {
        Finding { segment: Some(1), offset, what: what.into() }
    }

    #[test]
    fn what_is_gone_in_between_is_told_again() {
        let (mut told, place) = (Told::default(), Place::Segment(1, 7));
        let found = [finding(5, "a"), finding(5, "b"), finding(9, "a")];
        for f in &found {
            assert_eq!(told.add(place, f.offset, &f.what), Verdict::New);
            assert_eq!(told.add(place, f.offset, &f.what), Verdict::Known);
        }
        assert_eq!(told.add(Place::Segment(1, 8), 5, "a"), Verdict::New, "another use of the segment");
        told.keep(place, &found[1..]);
        assert_eq!(told.count, 3);
        assert_eq!(told.add(place, 5, "b"), Verdict::Known);
        assert_eq!(told.add(place, 5, "a"), Verdict::New);
        told.retain(|p| *p == place);
        assert_eq!((told.count, told.places.len()), (3, 1));
    }

    #[test]
    fn what_is_known_to_be_told_is_bounded() {
        let (mut told, place) = (Told::default(), Place::Superblock);
        assert!((0..TOLD_MAX as u64).all(|i| told.add(place, i, "a") == Verdict::New));
        assert_eq!(told.add(place, u64::MAX, "a"), Verdict::TooMany);
        assert_eq!(told.add(place, 0, "a"), Verdict::Known);
        told.overflowed = true;
        told.retain(|_| true);
        assert!(told.overflowed, "there are as many as before");
        told.keep(place, &[finding(3, "a")]);
        told.retain(|_| true);
        assert!(!told.overflowed && told.count == 1);
    }
}

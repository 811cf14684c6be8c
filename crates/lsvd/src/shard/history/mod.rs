//! What a shard was: which versions are kept, and the extents that were in force at them.
//!
//! A snapshot is a version number that a frame pins; a retention window is a version from which on all are kept. An
//! extent that is superseded stays live if a kept version lies between its own and that of what takes its place; it
//! goes into a table beside the map then. A read at a version takes the newest entry up to there, from map and table.
//!
//! Invariants:
//! - With nothing pinned and no window nothing is recorded: what is superseded is free at once, as ever.
//! - What a kept version sees is live (its bits in the chunk index are set) and is named by the map or by the table. So
//!   cleaning moves it like everything else, and a trim or zero of it is carried (rule E1).
//! - Between pins, nothing has to be known: an extent may be taken for one that was in force longer than it was, but not
//!   at a version that is kept.
//! - A version that is kept and can be read is all there: what is not is below `whole_from`. Only a mark behind all of the
//!   past takes that number back, and only if it did not rise since that was asked for.
//! - Versions behind frames that are given up by force are kept no more: nobody has what they were.
//! - A mark with what a peer keeps raises it for each version of before that was not kept here until then, and for what the
//!   peer lacks of frames that the mark stands for. A log that misses frames lacks something of all versions.
//! - Extents at the addresses of times never become history: what they told at an earlier version, nobody asks.
//! - All of it can be made again from the log (invariant 5). A frame that pins may be gone from the log before those
//!   whose extents it keeps, and only a mark behind them tells of it then; so recovery reads the log twice if it meets
//!   such a mark after it let anything go.

pub(crate) mod below;
pub(crate) mod memory;
pub(crate) mod pins;
pub(crate) mod table;

use crate::log::segments::Segments;
use crate::map::extents::{ENTRY_BYTES, Extent, ExtentMap, Layer};
use crate::shard::Shard;
use crate::shard::forks;
use crate::shard::holes::Hole;
use crate::{Base, KeptState, Learned, MarkChange, RuleMutant};
use below::Below;
use freebs_format::MarkBody;
use freebs_types::{Error, Result, Sequence, ShardId, SnapshotId, Version, limits};
use memory::{Memory, PruneAt, START};
use pins::{Kept, PinOp, Pins};
use std::collections::BTreeMap;
use table::{Judge, Table};

/// No version is as high.
pub(crate) const LAST: Version = Version(u64::MAX);

/// What shards are known to keep before their log is read.
pub(crate) type Hints = BTreeMap<ShardId, Kept>;

/// A committed entry that a newer one of version `to` covers: address, entry, version.
pub(crate) type Beaten = (u32, Extent, Version);

/// A version that is kept for as long as it is read part by part, and the frame that it is as of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading {
    pub version: Version,
    pub sequence: Sequence,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub pins: Pins,
    pub memory: Memory,
    pub below: Below,
    /// What else must be kept while the log is replayed: it is known to be pinned at the end.
    pub hint: Kept,
    /// Versions that somebody reads part by part, each with the frame that it is as of, and how many do.
    reading: BTreeMap<Reading, u32>,
    /// Points that forks in this log read, and which of these versions are lost to them. It is in marks and checkpoints.
    pub read_by_forks: forks::Read,
    pub lost_to_forks: forks::LostVersions,
    /// Versions that frames which may be cut are about to keep: a carry may tell of what took the place of an entry that these
    /// versions see before the frames are known to be committed.
    waiting: Kept,
    /// Entries that a carry has brought and something newer has covered, and that frames which may be cut bring, too.
    covered: Vec<Beaten>,
    /// Something was let go of while the log is replayed; and a mark told later of a version that may have needed it.
    dropped: bool,
    pub late: bool,
    /// Something was given up: the table is to be looked through from here on.
    prune_at: Option<PruneAt>,
    /// Kept versions below this are not all there. It is in marks and checkpoints.
    pub whole_from: Version,
}

impl History {
    /// True if no version but the last one is kept or read.
    pub fn is_off(&self) -> bool {
        let is_read = !self.reading.is_empty() || !self.read_by_forks.is_empty();
        self.pins.kept.is_none() && self.hint.is_none() && self.waiting.is_none() && !is_read
    }

    /// True if something of versions at which an extent was in force is kept, or read by a fork.
    fn keeps(&self, from: Version, to: Version) -> bool {
        let is_kept = self.pins.kept.needs(from, to) || self.hint.needs(from, to) || self.waiting.needs(from, to);
        is_kept || forks::is_read_in(&self.read_by_forks, from, to)
    }

    pub fn needs(&self, from: Version, to: Version) -> bool {
        self.keeps(from, to) || is_read(&self.reading, from, to)
    }

    /// A layer goes to a run.
    pub fn goes_below(&mut self, l: &Layer) {
        let (from, to) = (l.e.version, l.to);
        let (is_kept, is_read) = (self.keeps(from, to), is_read(&self.reading, from, to));
        self.below.goes(is_kept, is_read);
    }

    /// True if neither memory nor a run has anything.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && !self.below.is_any()
    }

    /// True if what nobody needs is still to be looked for.
    pub fn is_pruned(&self) -> bool {
        self.prune_at.is_some()
    }

    /// Something was given up that may have kept what is in memory and in runs.
    fn let_go(&mut self, segs: &mut Segments) {
        self.below.loosen();
        self.look_through_memory(segs);
    }

    fn read_no_more(&mut self, segs: &mut Segments) {
        self.below.read_no_more();
        self.look_through_memory(segs);
    }

    fn look_through_memory(&mut self, segs: &mut Segments) {
        if !self.memory.is_empty() {
            self.prune_at = Some(START);
        }
        // The map's task decides whether runs are looked through.
        segs.prune |= !self.is_empty();
    }

    /// True if somebody reads, part by part or as a fork, a version from `from` up to, but without, `to`.
    pub fn is_read(&self, from: Version, to: Version) -> bool {
        is_read(&self.reading, from, to) || forks::is_read_in(&self.read_by_forks, from, to)
    }
}

/// True if an extent that begins there tells of times. None reaches over the border, and none has data: one that is superseded
/// is gone at once, for nobody asks what was told at an earlier version.
pub(crate) fn is_of_times(start: u32) -> bool {
    u64::from(start) >= limits::SHARD_BLOCKS_MAX
}

/// True if each version from `first` on is kept.
fn has_from(kept: &Kept, first: Version) -> bool {
    kept.retain.is_some_and(|r| r <= first)
}

/// True if a version that is being read lies from `from` up to, but without, `to`.
fn is_read(reading: &BTreeMap<Reading, u32>, from: Version, to: Version) -> bool {
    let next = reading.range(Reading { version: from, sequence: Sequence(0) }..).next();
    next.is_some_and(|(r, _)| r.version < to)
}

impl Shard {
    /// A committed entry is covered by one of version `to`: it is history, or free. `recorded` if this is its last
    /// record: then here a trim or zero is at home from now on.
    pub fn supersede(&mut self, start: u32, e: &Extent, to: Version, recorded: bool, segs: &mut Segments) {
        if is_of_times(start) {
            return;
        }
        if self.history.is_off() && self.history.is_empty() {
            self.history.dropped = true;
            self.release(e, segs);
            return;
        }
        let mut gone = Vec::new();
        let forgets = segs.leaves_out(RuleMutant::PinsForgotten);
        let History { pins, memory, hint, waiting, reading, read_by_forks, .. } = &mut self.history;
        let of_forks = |from, to| forks::is_read_in(read_by_forks, from, to);
        let of_pins = |from, to| [&pins.kept, hint, waiting].into_iter().any(|kept| kept.needs(from, to));
        let is_kept = |from, to| !forgets && (of_pins(from, to) || of_forks(from, to));
        let needs = |from, to| is_kept(from, to) || is_read(reading, from, to);
        let judge = &mut Judge { needs: &needs, gone: &mut |e| gone.push(e), recorded, is_below: false, level: 0 };
        memory.insert(start, e, to, judge);
        segs.past_grows(ENTRY_BYTES + e.crcs.slice(e.len).len() * 4);
        self.history.dropped |= !gone.is_empty();
        gone.iter().for_each(|e| self.release(e, segs));
    }

    /// What was held above the map is covered. It hears of each record of a trim or zero; a history that a checkpoint
    /// brought may know only of one from before. Blocks that a frame which may be cut names, too, stay live until that
    /// frame is committed, and is covered in its turn, or is cut.
    pub fn supersede_held(&mut self, beaten: Vec<Beaten>, segs: &mut Segments) {
        for (a, e, to) in beaten {
            if self.overlay.names(&e) {
                self.history.covered.push((a, e, to));
            } else {
                self.supersede(a, &e, to, true, segs);
            }
        }
    }

    /// Frames behind `to` are cut. Of what they brought, that which carries have brought, too, was in force until something newer
    /// came.
    pub fn supersede_cut(&mut self, to: Sequence, segs: &mut Segments) {
        let cut = self.history.covered.extract_if(.., |(_, e, _)| e.sequence > to).collect::<Vec<_>>();
        cut.into_iter().for_each(|(a, e, by)| self.supersede(a, &e, by, true, segs));
    }

    /// Frames up to `to` are committed: what they brought is covered in its turn.
    pub fn covered_in_turn(&mut self, to: Sequence) {
        self.history.covered.retain(|(_, e, _)| e.sequence > to);
    }

    /// Frames with changes of what is kept have come that may be cut, or are such frames no more.
    pub fn waiting_changed(&mut self, is_so: bool, segs: &mut Segments) {
        if !is_so {
            return;
        }
        let mut now = Kept::default();
        self.overlay.frames().flat_map(|f| &f.pins).for_each(|op| now.expect(*op));
        let before = std::mem::replace(&mut self.history.waiting, now);
        let mut all = self.history.pins.kept.clone();
        all.join(&self.history.waiting);
        if !all.covers(&before) {
            self.history.let_go(segs);
        }
    }

    /// A committed frame changes what is kept, before its blocks take the place of others.
    pub fn apply_pins(&mut self, sequence: Sequence, ops: &[PinOp], segs: &mut Segments) {
        for op in ops {
            // A head pins no version of the past that is not kept. Should one do so, what that needs may be gone.
            let gone = op.gone_of(&self.history.pins.kept);
            if self.history.pins.counts(sequence) {
                self.history.whole_from = self.history.whole_from.max(gone);
            }
            if self.history.pins.apply(sequence, *op) {
                match op {
                    // Runs are looked through for windows when it is worth it.
                    PinOp::Retain { .. } => self.history.look_through_memory(segs),
                    _ => self.history.let_go(segs),
                }
            }
        }
    }

    /// A frame came out of order, which says what is kept: what a version needs may have been let go of.
    pub fn late_pins(&mut self, sequence: Sequence, ops: &[PinOp]) {
        if sequence <= self.history.pins.as_of {
            return;
        }
        let lacks = ops.iter().filter_map(|op| op.lacks(self.tip.version)).max();
        self.history.whole_from = self.history.whole_from.max(lacks.unwrap_or_default());
    }

    /// The frame that what is kept is as of. Frames that are lost may have said more.
    fn kept_as_of(&self) -> Sequence {
        let hole = self.holes.iter().map(|h| Sequence(h.from - 1)).min();
        let seen = hole.map_or(self.committed, |h| h.min(self.committed));
        self.history.pins.as_of.max(seen)
    }

    /// The versions that are kept, for a peer that learns. Which ones frames keep that are lost, nobody knows here: what they
    /// need may have been let go of.
    pub fn kept_state(&self) -> KeptState {
        let (kept, whole_from) = (&self.history.pins.kept, self.history.whole_from);
        KeptState {
            pins: kept.list(),
            retain: kept.retain,
            as_of: self.kept_as_of(),
            whole_from: if self.missing().next().is_none() { whole_from } else { whole_from.max(self.tip.version) },
            past: Version(0),
        }
    }

    /// Versions that are kept when lost frames are given up: those behind the first one of them have what lies below it, and go. The
    /// last version is the present. `flat`: so does all that was read from a parent.
    fn kept_without(&self, lost: &Learned, flat: bool) -> KeptState {
        let (committed, mut whole_from) = (self.committed, self.history.whole_from);
        let is_given_up = |h: &&Hole| lost.since.0 < h.to && h.from <= lost.upto.0;
        let first = self.holes.iter().filter(is_given_up).map(|h| h.front).min();
        let first = if flat && self.fork.is_some() { Some(Version(0)) } else { first };
        let left = self.holes.iter().filter(|h| !is_given_up(h)).map(|h| Sequence(h.from - 1)).min();
        let as_of = self.history.pins.as_of.max(left.map_or(committed, |h| h.min(committed)));
        let (mut pins, mut retain) = (self.history.pins.kept.list(), self.history.pins.kept.retain);
        if let Some(front) = first {
            pins.retain(|p| p.version <= front);
            retain = retain.map(|r| r.max(self.tip.version));
            // Frames that are not known to be committed pin later, each its own version.
            let ops = self.overlay.frames().flat_map(|f| &f.pins);
            let lacks = ops.filter_map(|op| op.lacks(self.tip.version)).filter(|v| *v > front.next()).max();
            whole_from = whole_from.max(lacks.unwrap_or_default());
        }
        KeptState { pins, retain, as_of, whole_from, past: Version(0) }
    }

    /// Puts into a mark which versions are kept, when a peer has told of it or not. `base`: the log goes on from that state.
    pub fn kept_for_mark(&self, change: &MarkChange, base: Option<&Base>, body: &mut MarkBody) {
        let whole_from = self.history.whole_from;
        let Some(told) = change.kept.as_deref() else {
            let own = match change.gives_up() {
                Some(lost) => self.kept_without(lost, change.flat),
                None => KeptState { whole_from, ..self.kept_state() },
            };
            (body.pins, body.retain) = (own.pins, own.retain.unwrap_or_default());
            body.kept_as_of = Some(own.as_of).filter(|s| *s != body.committed);
            body.whole_from = own.whole_from;
            return;
        };
        (body.pins, body.retain) = (told.pins.clone(), told.retain.unwrap_or_default());
        body.kept_as_of = Some(told.as_of).filter(|s| *s != body.committed);
        // Nobody has asked for more that is missing by now.
        body.whole_past = told.past.0 > 0 && told.past >= whole_from;
        let here = if body.whole_past { Version(0) } else { whole_from };
        let (last, sequence) = (self.tip.version, self.tip.name.sequence);
        let end = base.map_or(last, |b| b.version.max(last));
        // Of frames that were here, or should have been, what the peer lacks is not here either.
        let is_in_place_of_own = base.map_or(change.learned.is_some(), |b| b.since < sequence);
        let theirs = body.whole_past || is_in_place_of_own || told.whole_from > last;
        let theirs = if theirs { told.whole_from } else { Version(0) };
        body.whole_from = here.max(theirs).max(self.lacks(told, end));
        assert!(body.whole_past || body.whole_from >= whole_from, "less than all of the past mends no history");
    }

    /// The version below which not all is here of what a peer keeps of the versions before `end`: it brings pins that were
    /// not known when what they need was let go of.
    fn lacks(&self, told: &KeptState, end: Version) -> Version {
        let mut then = self.history.pins.clone();
        then.rebase(&Kept::of(&told.pins, told.retain), told.as_of);
        // Frames that are not known to be committed here may be so at the peer, and what only some of them keep is here, too.
        let here = [&self.history.pins.kept, &self.kept(), &self.history.waiting];
        let pin = then.kept.pins.keys().rfind(|v| **v < end && !here.iter().any(|k| k.has(**v))).map(|v| v.next());
        let window = then.kept.retain.filter(|r| *r < end && !here.iter().any(|k| has_from(k, *r)));
        pin.max(window.map(|_| end)).unwrap_or_default()
    }

    /// A mark tells what was kept as of a frame: the one that it knew to be committed, or that a peer named.
    /// `is_last` if it knows all frames that are here.
    pub fn mark_pins(&mut self, body: &MarkBody, is_last: bool, segs: &mut Segments) {
        // Of a frame that came late in front of it in the same append it knows nothing.
        let own = if is_last || body.whole_past { Version(0) } else { self.history.whole_from };
        self.history.lost_to_forks.add(body.lost.iter().copied());
        self.history.whole_from = own.max(body.whole_from);
        let mut kept = Kept::of_mark(body);
        // Frames that the mark commits may pin what it does not keep.
        let pins = self.overlay.frames().any(|f| !f.pins.is_empty());
        if kept.is_none() && self.history.pins.kept.is_none() && body.kept_as_of.is_none() && !pins {
            return;
        }
        if segs.leaves_out(RuleMutant::ReleasedPinStays) {
            kept.join(&self.history.pins.kept);
        }
        let (more, less) = self.history.pins.rebase(&kept, body.kept_as_of.unwrap_or(body.committed));
        if less {
            self.history.let_go(segs);
        }
        let hint = &self.history.hint;
        let known = kept.pins.keys().all(|v| hint.has(*v)) && kept.retain.is_none_or(|r| hint.has(r));
        self.history.late |= more && self.history.dropped && !known;
    }

    /// Forks here read this from now on.
    pub fn set_read_by_forks(&mut self, read: forks::Read, segs: &mut Segments) {
        let before = std::mem::replace(&mut self.history.read_by_forks, read);
        let (now, hint) = (&self.history.read_by_forks, &self.history.hint);
        let is_less = before.keys().any(|p| !now.contains_key(p));
        // Its blocks may have been let go of while the log is replayed.
        let kept = &self.history.pins.kept;
        let is_new = |p: &forks::ForkPoint| !before.contains_key(p) && !hint.has(p.version) && !kept.has(p.version);
        self.history.late |= self.history.dropped && now.keys().any(is_new);
        if is_less {
            self.history.let_go(segs);
        }
    }

    /// What is kept, as the last durable frame left it.
    pub fn kept(&self) -> Kept {
        let mut kept = self.history.pins.kept.clone();
        for op in self.overlay.frames().flat_map(|f| &f.pins) {
            // Loss is said to be so once the frame is committed.
            if op.gone_of(&kept) == Version(0) {
                kept.apply(*op);
            }
        }
        kept
    }

    /// The snapshot that a version is pinned for; `None` if it is not pinned.
    pub fn pinned_for(&self, v: Version) -> Option<SnapshotId> {
        let changes = self.overlay.frames().any(|f| !f.pins.is_empty());
        let of = |kept: &Kept| kept.pins.get(&v).copied();
        if changes { of(&self.kept()) } else { of(&self.history.pins.kept) }
    }

    /// The reason for which a version can't be read, if it can't.
    pub fn check_version(&self, v: Version) -> Result<()> {
        let last = self.tip.version;
        if v > last {
            return Err(Error::not_found(format!(
                "shard {}: version {v} is not there yet, the last one is {last}",
                self.id
            )));
        }
        let changes = self.overlay.frames().any(|f| !f.pins.is_empty());
        let is_kept = if changes { self.kept().has(v) } else { self.history.pins.kept.has(v) };
        if v < last && is_kept && v < self.history.whole_from {
            return Err(Error::corrupt(format!(
                "shard {}: history is not whole below version {}, so version {v} can't be read",
                self.id, self.history.whole_from
            )));
        }
        if v == last || is_kept {
            return Ok(());
        }
        // Others ask for it whose own block of it is damaged.
        if let Some(point) = self.fork_point(v) {
            return self.check_fork(&point);
        }
        Err(Error::not_found(format!("shard {}: version {v} is neither pinned nor in the retention window", self.id)))
    }

    /// The last version is kept from here on, until `end_reading`.
    pub fn begin_reading(&mut self) -> Reading {
        let reading = Reading { version: self.tip.version, sequence: self.tip.name.sequence };
        *self.history.reading.entry(reading).or_default() += 1;
        reading
    }

    /// True if a version that is being read can still be read: a cut has not taken its frame away.
    pub fn is_reading(&self, reading: Reading) -> bool {
        self.history.reading.contains_key(&reading)
    }

    /// One reader less. What was kept for it is looked for in small steps.
    pub fn end_reading(&mut self, reading: Reading, segs: &mut Segments) {
        let Some(n) = self.history.reading.get_mut(&reading) else { return };
        *n -= 1;
        if *n == 0 {
            self.history.reading.remove(&reading);
            self.history.read_no_more(segs);
        }
    }

    /// Frames behind `to` are cut: whoever reads as of one of them has to begin again.
    pub fn cut_reading(&mut self, to: Sequence, segs: &mut Segments) {
        let before = self.history.reading.len();
        self.history.reading.retain(|r, _| r.sequence <= to);
        if self.history.reading.len() < before {
            self.history.read_no_more(segs);
        }
    }

    /// The entries of a version that memory knows of, without the history.
    pub fn view_at(&self, start: u32, end: u32, version: Version) -> ExtentMap {
        let (mut view, mut out) = (ExtentMap::default(), crate::map::extents::Outcome::default());
        for map in [self.frozen.as_deref(), Some(&self.map)].into_iter().flatten() {
            for (a, e, skip, len) in map.range(start, end).filter(|(_, e, ..)| e.version <= version) {
                view.insert(a, e.piece(skip, len), &mut out);
            }
        }
        for (a, e) in self.overlay.frames().flat_map(|f| &f.entries).filter(|(_, e)| e.version <= version) {
            let (from, to) = ((*a).max(start), (a + e.len).min(end));
            if from < to {
                view.insert(from, e.piece(from - a, to - from), &mut out);
            }
        }
        for (a, e) in self.overlay.held_in(start, end).filter(|(_, e)| e.version <= version) {
            view.insert(a, e, &mut out);
        }
        view
    }

    /// Drops history that nobody needs any more, a part at a time; whether there may be more.
    pub fn prune_history(&mut self, most: usize, segs: &mut Segments) -> bool {
        let Some(at) = self.history.prune_at else { return false };
        let mut gone = Vec::new();
        let History { pins, memory, hint, waiting, reading, read_by_forks, .. } = &mut self.history;
        let is_kept = |from, to| [&pins.kept, hint, waiting].into_iter().any(|kept| kept.needs(from, to));
        let of_forks = |from, to| forks::is_read_in(read_by_forks, from, to);
        let needs = |from, to| is_kept(from, to) || is_read(reading, from, to) || of_forks(from, to);
        let next = memory.prune(
            at,
            most,
            &mut Judge { needs: &needs, gone: &mut |e| gone.push(e), recorded: false, is_below: false, level: 0 },
        );
        self.history.prune_at = next;
        gone.iter().for_each(|e| self.release(e, segs));
        next.is_some()
    }

    /// The log was replayed: what is kept is known now.
    pub fn history_replayed(&mut self, segs: &mut Segments) {
        let hint = std::mem::take(&mut self.history.hint);
        if !hint.is_none() {
            self.history.below.loosen();
        }
        self.history.late = false;
        self.history.prune_at = (!self.history.memory.is_empty()).then_some(START);
        while self.prune_history(usize::MAX, segs) {}
    }

    /// Whether trims and zeroes may be needed that something newer covers.
    pub fn keeps_history(&self) -> bool {
        !self.history.is_off() || !self.history.is_empty()
    }

    /// All committed entries of a range that memory knows, one above the other; `past`: what runs of history have of it. Where
    /// an entry is in more than one place, the history, which hears of it when it is carried, says where it is recorded.
    pub fn layers(&self, start: u32, end: u32, mut past: Table) -> Table {
        let mut table = Table::default();
        let in_force = |e| Layer { e, to: LAST, found: false, level: 0 };
        for map in [self.frozen.as_deref(), Some(&self.map)].into_iter().flatten() {
            for (a, e, skip, len) in map.range(start, end) {
                table.put_back(a, &in_force(e.piece(skip, len)));
            }
        }
        for (a, e) in self.overlay.held_in(start, end) {
            table.put_back(a, &in_force(e));
        }
        self.history.memory.range(start, end).for_each(|(a, l)| past.put_back(a, &l));
        past.iter().for_each(|(a, l)| table.put_back(a, &Layer { found: false, ..l.clone() }));
        table
    }

    /// Trims and zeroes, recorded in a segment, that something newer covers and that a version which is kept sees.
    pub fn covered_tombs(&self, segment: u32, layers: Table, mut each: impl FnMut(u32, &Extent)) {
        let here = |l: &Layer| !l.e.is_data() && l.e.offset == segment && l.to < LAST;
        let is_needed = |l: &Layer| here(l) && self.history.needs(l.e.version, l.to);
        for (a, l) in layers.iter().filter(|(a, l)| !is_of_times(*a) && is_needed(l)) {
            each(a, &l.e);
        }
    }
}

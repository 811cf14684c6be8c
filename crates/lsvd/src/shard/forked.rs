//! The versions that a parent has for its forks (rule E10), and those that it lacks.
//!
//! Invariants:
//! - A version that a fork reads is all there, or it is named as lost: then what lies below it is never read in its place.
//!   Whatever takes the place of frames that it was made of names it, but for what a peer tells for the very same pin and has
//!   all of. That nothing takes back, and it is told in each mark. The parent may have ended here and be made anew: it has
//!   nothing that a fork of before reads but what comes to it then.
//! - A version is whole when its fork is made. That history is not whole from then on is of pins: what a fork reads is kept for
//!   it all the time.
//! - A fork that is flat has all that it read, or it misses the frames up to its beginning.

use crate::log::lost::LostAppends;
use crate::shard::Shard;
use crate::shard::forks::{Ended, ForkPoint, lost_by};
use crate::shard::holes::Hole;
use crate::{Base, KeptState, MarkChange};
use freebs_format::{Flat, FrameHead, MarkBody};
use freebs_types::{Error, Fork, Result, Sequence, Version, limits};
use std::collections::BTreeSet;

impl Shard {
    /// True if a version is kept by what is committed, or by another fork, and is all there.
    pub fn keeps_for_fork(&self, fork: &Fork) -> bool {
        let (point, history) = (ForkPoint::of(fork), &self.history);
        let is_kept = history.pins.kept.has(point.version) || history.read_by_forks.contains_key(&point);
        is_kept && self.committed >= point.sequence && self.check_whole(&point).is_ok()
    }

    /// The reason for which a fork can't read a version, if it can't. Frames that are missed are not asked for.
    pub fn check_fork(&self, point: &ForkPoint) -> Result<()> {
        let tip = (self.tip.name.sequence, self.tip.version);
        let is_there = point.sequence <= tip.0 && point.version <= tip.1;
        let is_lost = self.history.lost_to_forks.has(point.version);
        match is_there && !is_lost && self.history.read_by_forks.contains_key(point) {
            true => Ok(()),
            false => Err(self.lost_to_fork(point.version)),
        }
    }

    /// An error if not all of a version is here that a fork is to be made of.
    pub fn check_whole(&self, point: &ForkPoint) -> Result<()> {
        let history = &self.history;
        let is_whole = point.version >= history.whole_from && !history.lost_to_forks.has(point.version);
        match is_whole && !self.misses_up_to(point.sequence) {
            true => Ok(()),
            false => Err(Error::corrupt(format!("shard {}: version {} is not whole here", self.id, point.version))),
        }
    }

    /// True if frames up to one are missed.
    pub fn misses_up_to(&self, sequence: Sequence) -> bool {
        self.missing().any(|(from, _)| from <= sequence.0)
    }

    fn lost_to_fork(&self, version: Version) -> Error {
        Error::corrupt(format!("shard {}: version {version}, which a clone reads, is lost", self.id))
    }

    /// The first version from one on that is kept, or that a fork reads.
    pub fn first_seen(&self, from: Version) -> Option<Version> {
        let read = self.history.read_by_forks.range(ForkPoint::first(from)..).next().map(|(p, _)| p.version);
        self.kept().first_from(from).into_iter().chain(read).min()
    }

    /// The point that forks read at a version, if they do.
    pub fn fork_point(&self, version: Version) -> Option<ForkPoint> {
        let mut read = self.history.read_by_forks.range(ForkPoint::first(version)..ForkPoint::first(version.next()));
        read.next().map(|(p, _)| *p)
    }

    /// True if forks read something of this shard that is here, or that may be again.
    pub fn is_read_by_forks(&self) -> bool {
        let last = self.tip.name.sequence;
        self.history.read_by_forks.keys().any(|p| p.sequence <= last && !self.history.lost_to_forks.has(p.version))
    }

    /// How it became flat, if a mark of the newest segments with some says so.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// As a checkpoint has it.
    pub fn set_ended(&mut self, ended: Ended) {
        self.ended = Some(ended);
    }

    /// Puts into a mark what it reads from, if it does. One that ends that says of which frames entries are here instead.
    pub fn fork_for_mark(&self, change: &MarkChange, body: &mut MarkBody) {
        let is_empty = self.tip.name.sequence == Sequence(0);
        let fork = change.fork.filter(|_| is_empty).or(self.fork);
        body.fork = fork.filter(|_| !change.flat);
        let ends = fork.filter(|_| change.flat);
        body.flat = ends.map(|f| Flat { upto: f.sequence.max(body.learned_upto), from_append: 0, to_append: 0 });
    }

    /// Puts into a mark how it became flat. Its own word says in which appends the entries are. It is repeated in the segment that
    /// begins with append `first`, if the first one is in that, too: a loss in a segment that is closed is told by the segment.
    pub fn flat_for_mark(&self, brought: Option<(u64, u64)>, first: u64, body: &mut MarkBody) {
        if let Some(flat) = &mut body.flat {
            (flat.from_append, flat.to_append) = brought.unwrap_or_default();
            return;
        }
        let again = |e: &&Ended| first > 0 && e.append >= first && body.fork.is_none();
        body.flat = self.ended.as_ref().filter(again).map(|e| e.flat);
    }

    /// From now on it reads from this parent, or from none, as a mark in append `at` says. Some appends may be lost, or whole
    /// segments are, with all that lay behind the last mark (`segment_lost`). Behind this comes what was learned instead.
    pub fn take_fork(&mut self, body: &MarkBody, at: u64, appends: &LostAppends, segment_lost: bool) {
        let before = std::mem::replace(&mut self.fork, body.fork).filter(|_| body.fork.is_none());
        let flat = body.flat.filter(|_| body.fork.is_none());
        let known = std::mem::take(&mut self.ended);
        self.ended = flat.map(|flat| known.unwrap_or(Ended { flat, append: at }));
        let lost = match (flat, before) {
            // The first of these marks was judged already.
            (Some(flat), _) if known.is_none() && appends.has_any(flat.from_append, flat.to_append) => flat.upto,
            (None, Some(fork)) if segment_lost && appends.last() >= self.last_mark => fork.sequence,
            _ => return,
        };
        self.lose_upto(lost.min(self.tip.name.sequence).0);
    }

    /// Puts into a mark which versions are lost to forks: those that were, and those that it is about to take the frames from.
    /// All that a peer tells is there for the pins that it names and that are whole there.
    pub fn lost_for_mark(&self, change: &MarkChange, base: Option<&Base>, body: &mut MarkBody) {
        let read = &self.history.read_by_forks;
        if read.is_empty() {
            return;
        }
        let told = change.kept.as_deref();
        let is_named = |k: &KeptState, p: &ForkPoint| k.pins.iter().any(|pin| p.is_of(pin));
        let is_told = |p: &ForkPoint| told.is_some_and(|k| k.whole_from <= p.version && is_named(k, p));
        let (from, upto) = self.replaced(change, base, told);
        let replaced = |p: &ForkPoint| from < p.sequence && p.sequence <= upto;
        let is_lost = |p: &&ForkPoint| self.history.lost_to_forks.has(p.version) || (replaced(p) && !is_told(p));
        let lost: BTreeSet<Version> = read.keys().filter(is_lost).map(|p| p.version).collect();
        body.lost = lost.into_iter().collect();
        // If there are as many as a mark can name, all lower ones are lost, too.
        let over = body.lost.len().saturating_sub(limits::LOST_VERSIONS_MAX);
        body.lost.drain(..over);
    }

    /// Versions that forks read, and that are lost to them, for a checkpoint.
    pub fn lost_to_forks(&self) -> Vec<Version> {
        let (read, lost) = (&self.history.read_by_forks, &self.history.lost_to_forks);
        let lost: BTreeSet<Version> = read.keys().map(|p| p.version).filter(|v| lost.has(*v)).collect();
        let mut lost: Vec<Version> = lost.into_iter().collect();
        lost.drain(..lost.len().saturating_sub(limits::LOST_VERSIONS_MAX));
        lost
    }

    /// The frames in whose place something else comes with a mark: those behind the first one, up to the second. What was told
    /// has nothing of versions that frames pinned which the teller did not know to be committed; so all is told that these need.
    fn replaced(&self, change: &MarkChange, base: Option<&Base>, told: Option<&KeptState>) -> (Sequence, Sequence) {
        let known = |last: Sequence| told.map_or(Sequence(u64::MAX), |k| k.as_of.max(last));
        let last = self.tip.name.sequence;
        let first_hole = |since: Sequence, upto: Sequence| {
            let lost = |h: &&Hole| since.0 < h.to && h.from <= upto.0;
            self.holes.iter().filter(lost).map(|h| Sequence(h.from - 1).max(since)).min()
        };
        if let Some(base) = base {
            // Own frames in front of the map stay, if it is known which ones these are.
            let stays = if base.tip.0 > 0 { base.tip.min(last) } else { base.since.min(last) };
            let hole = first_hole(base.since, Sequence(u64::MAX));
            return (hole.unwrap_or(stays).min(stays), known(base.last.sequence));
        }
        let Some(l) = change.learned.as_deref() else { return (Sequence(0), Sequence(0)) };
        // One that is flat by what it learns has no frame less than before, and lacks what its parents had.
        let is_flat = change.flat && self.fork.is_some();
        let from = if is_flat { Some(l.since) } else { first_hole(l.since, l.upto) };
        let upto = if l.given_up.0 > 0 { Sequence(u64::MAX) } else { known(l.upto) };
        from.map_or((Sequence(0), Sequence(0)), |from| (from, upto))
    }

    /// True if a frame takes the place of one that pinned what forks read, and is another one: that is lost to them.
    pub fn loses_forks_by(&mut self, head: &FrameHead) -> bool {
        let history = &mut self.history;
        let lost = lost_by(&history.read_by_forks, head).filter(|v| !history.lost_to_forks.has(*v));
        let lost: Vec<Version> = lost.collect();
        let is_new = !lost.is_empty();
        history.lost_to_forks.add(lost);
        is_new
    }
}

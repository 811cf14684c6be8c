//! The versions that a parent has for its forks (rule E10), and those that it lacks.
//!
//! Invariants:
//! - A version that a fork reads is all there, or it is named as lost: then what lies below it is never read in its place.
//!   Whatever takes the place of frames that it was made of names it, but for what a peer tells for the very same pin. That
//!   nothing takes back, and it is told in each mark. The parent may have ended here and be made anew: it has nothing that a
//!   fork of before reads but what comes to it then.

use crate::shard::Shard;
use crate::shard::forks::{ForkPoint, is_read_in, lost_by};
use crate::shard::holes::Hole;
use crate::{Base, KeptState, MarkChange};
use freebs_format::{FrameHead, MarkBody};
use freebs_types::{Error, Fork, Result, Sequence, Version, limits};
use std::collections::BTreeSet;

impl Shard {
    /// True if a version is kept by what is committed, or by another fork, and is all there.
    pub fn keeps_for_fork(&self, fork: &Fork) -> bool {
        let (point, history) = (ForkPoint::of(fork), &self.history);
        let is_kept = history.pins.kept.has(point.version) || history.read_by_forks.contains_key(&point);
        is_kept && self.committed >= point.sequence && self.check_whole(point.version).is_ok()
    }

    /// The reason for which a fork can't read a version, if it can't.
    pub fn check_fork(&self, point: &ForkPoint) -> Result<()> {
        let tip = (self.tip.name.sequence, self.tip.version);
        let is_there = point.sequence <= tip.0 && point.version <= tip.1;
        if !is_there || !self.history.read_by_forks.contains_key(point) {
            return Err(self.lost_to_fork(point.version));
        }
        self.check_whole(point.version)
    }

    /// An error if not all of a version is here that a fork reads, or may read.
    pub fn check_whole(&self, version: Version) -> Result<()> {
        let is_whole = version >= self.history.whole_from && !self.history.lost_to_forks.contains(&version);
        if is_whole { Ok(()) } else { Err(self.lost_to_fork(version)) }
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
        self.history
            .read_by_forks
            .keys()
            .any(|p| p.sequence <= last && !self.history.lost_to_forks.contains(&p.version))
    }

    /// Puts into a mark which versions are lost to forks: those that were, and those that it is about to take the frames from.
    /// All that a peer tells is there for the pins that it names.
    pub fn lost_for_mark(&self, change: &MarkChange, base: Option<&Base>, body: &mut MarkBody) {
        let read = &self.history.read_by_forks;
        if read.is_empty() {
            return;
        }
        let told = change.kept.as_deref();
        let is_told = |p: &ForkPoint| told.is_some_and(|k| k.pins.iter().any(|pin| p.is_of(pin)));
        let (from, upto) = self.replaced(change, base, told);
        let replaced = |p: &ForkPoint| from < p.sequence && p.sequence <= upto;
        // A word that all of the past is here tells of pins alone.
        let unsure = |p: &ForkPoint| body.whole_from <= p.version && p.version < self.history.whole_from;
        let is_lost = |p: &&ForkPoint| {
            self.history.lost_to_forks.contains(&p.version) || (!is_told(p) && (replaced(p) || unsure(p)))
        };
        let lost: BTreeSet<Version> = read.keys().filter(is_lost).map(|p| p.version).collect();
        body.lost = lost.into_iter().collect();
        // More than a mark can name are lost to everybody.
        let over = body.lost.len().saturating_sub(limits::LOST_VERSIONS_MAX);
        if let Some(last) = body.lost.drain(..over).next_back() {
            body.whole_from = body.whole_from.max(last.next());
        }
    }

    /// Versions that forks read, and that are lost to them, for a checkpoint.
    pub fn lost_to_forks(&self) -> Vec<Version> {
        let (read, lost) = (&self.history.read_by_forks, &self.history.lost_to_forks);
        let lost = lost.iter().filter(|v| is_read_in(read, **v, v.next()));
        let mut lost: Vec<Version> = lost.copied().collect();
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
        match change.learned.as_deref().map(|l| (l, first_hole(l.since, l.upto))) {
            Some((l, Some(hole))) => (hole, if l.given_up.0 > 0 { Sequence(u64::MAX) } else { known(l.upto) }),
            _ => (Sequence(0), Sequence(0)),
        }
    }

    /// True if a frame takes the place of one that pinned what forks read, and is another one: that is lost to them.
    pub fn loses_forks_by(&mut self, head: &FrameHead) -> bool {
        let history = &mut self.history;
        let before = history.lost_to_forks.len();
        history.lost_to_forks.extend(lost_by(&history.read_by_forks, head));
        history.lost_to_forks.len() > before
    }
}

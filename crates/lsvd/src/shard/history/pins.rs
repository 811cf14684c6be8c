//! Which versions of a shard are kept (rule E6): pinned ones, and all from the first of the retention window on.
//!
//! Invariants:
//! - It is a function of the committed frames in their order, and of the marks that speak for frames which are no
//!   longer in the log: a mark says what was pinned as of a sequence, and what is younger is applied on top of it.
//! - A version is pinned by the frame that has it, or by a later one while it is kept. So when the pin comes, nothing that it
//!   needs has been let go of. Of one that comes out of order, or of a version that is not kept, what it needs may be gone: the
//!   shard's history is not whole below it then.

use freebs_format::{FEATURE_PINS, FrameHead, MarkBody, Pin, PinUpdate};
use freebs_types::{Sequence, SnapshotId, Version, limits};
use std::collections::BTreeMap;

/// Changes that are remembered so that a mark of before them can be told from one behind them.
const RECENT_MAX: usize = 1024;

/// What an update says about versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinOp {
    Take(Pin),
    /// A version of before the update itself, which is kept.
    TakePast(Pin),
    Release(Version),
    /// The window begins here, but never before the version of the update itself unless it has begun already.
    Retain {
        from: Version,
        now: Version,
    },
    /// There is no window any more.
    RetainNone,
}

impl PinOp {
    /// True if a later op of this kind makes one that comes out of order void.
    fn is_about_the_same(self, earlier: Self) -> bool {
        if let (Some(v), Some(other)) = (self.version(), earlier.version()) {
            return v == other;
        }
        match (self, earlier) {
            (Self::Retain { .. } | Self::RetainNone, Self::Retain { .. } | Self::RetainNone) => true,
            _ => false,
        }
    }

    /// The version that is pinned, or is so no more.
    fn version(self) -> Option<Version> {
        match self {
            Self::Take(pin) | Self::TakePast(pin) => Some(pin.version),
            Self::Release(v) => Some(v),
            Self::Retain { .. } | Self::RetainNone => None,
        }
    }

    /// The version below which history is not whole if what this one keeps was let go of before; `last` is the last version.
    pub fn lacks(self, last: Version) -> Option<Version> {
        match self {
            Self::Take(pin) | Self::TakePast(pin) => Some(pin.version.next()),
            Self::Retain { .. } => Some(last),
            Self::Release(_) | Self::RetainNone => None,
        }
    }

    /// The version below which history is not whole if a version of the past is pinned that is not kept; else 0.
    pub fn gone_of(self, kept: &Kept) -> Version {
        match self {
            Self::TakePast(pin) if !kept.has(pin.version) => pin.version.next(),
            _ => Version(0),
        }
    }

    /// What a frame says, in order.
    pub fn of(head: &FrameHead) -> Vec<Self> {
        if head.header().features.get() & FEATURE_PINS == 0 {
            return Vec::new();
        }
        let op = |u: freebs_format::Update<'_>| match u.pin? {
            PinUpdate::Snapshot(snapshot) => Some(Self::Take(Pin { version: u.version, snapshot })),
            PinUpdate::Release(Version(0)) => Some(Self::RetainNone),
            PinUpdate::Release(version) => Some(Self::Release(version)),
            PinUpdate::Past(pin) => Some(Self::TakePast(pin)),
            PinUpdate::Retain(from) => Some(Self::Retain { from, now: u.version }),
        };
        head.updates().filter_map(op).collect()
    }
}

/// Versions that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Pinned versions, and the snapshots that they are kept for.
    pub pins: BTreeMap<Version, SnapshotId>,
    /// First version of the window.
    pub retain: Option<Version>,
}

impl Kept {
    pub fn is_none(&self) -> bool {
        self.pins.is_empty() && self.retain.is_none()
    }

    pub fn of_mark(body: &MarkBody) -> Self {
        Self::of(&body.pins, Some(body.retain).filter(|r| r.0 > 0))
    }

    pub fn of(pins: &[Pin], retain: Option<Version>) -> Self {
        Self { pins: pins.iter().map(|p| (p.version, p.snapshot)).collect(), retain }
    }

    /// The pins, lowest version first.
    pub fn list(&self) -> Vec<Pin> {
        self.pins.iter().map(|(version, snapshot)| Pin { version: *version, snapshot: *snapshot }).collect()
    }

    /// True if all that another one keeps is kept.
    pub fn covers(&self, other: &Self) -> bool {
        let earlier = other.retain.is_some_and(|r| self.retain.is_none_or(|own| r < own));
        !earlier && other.pins.keys().all(|v| self.pins.contains_key(v))
    }

    /// Whether a version can be read although it is not the last one.
    pub fn has(&self, v: Version) -> bool {
        self.pins.contains_key(&v) || self.retain.is_some_and(|r| r <= v)
    }

    /// The first version from `v` on that is kept although it need not be the last one.
    pub fn first_from(&self, v: Version) -> Option<Version> {
        let pin = self.pins.range(v..).next().map(|(v, _)| *v);
        pin.into_iter().chain(self.retain.map(|r| r.max(v))).min()
    }

    /// Whether what was in force at the versions from `from` up to, but without, `to` is needed.
    pub fn needs(&self, from: Version, to: Version) -> bool {
        from < to && (self.retain.is_some_and(|r| r < to) || self.pins.range(from..to).next().is_some())
    }

    pub fn apply(&mut self, op: PinOp) {
        match op {
            PinOp::Take(pin) | PinOp::TakePast(pin) => {
                if self.pins.len() < limits::SHARD_PINS_MAX {
                    self.pins.insert(pin.version, pin.snapshot);
                }
            }
            PinOp::Release(v) => {
                self.pins.remove(&v);
            }
            PinOp::Retain { from, now } => {
                let first = self.retain.map_or(now, |r| r.max(from.min(now)));
                self.retain = Some(first);
            }
            PinOp::RetainNone => self.retain = None,
        }
    }

    /// Adds all that a change may keep that was not kept before it.
    pub fn expect(&mut self, op: PinOp) {
        match op {
            PinOp::Take(pin) | PinOp::TakePast(pin) => {
                self.pins.insert(pin.version, pin.snapshot);
            }
            PinOp::Retain { now, .. } => self.retain = Some(self.retain.map_or(now, |r| r.min(now))),
            PinOp::Release(_) | PinOp::RetainNone => {}
        }
    }

    /// Adds what another one keeps.
    pub fn join(&mut self, other: &Self) {
        self.pins.extend(&other.pins);
        self.retain = self.retain.into_iter().chain(other.retain).min();
    }
}

/// What is kept as of the committed frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    pub kept: Kept,
    /// What frames up to here say is in `kept`, whether they were seen or not.
    pub as_of: Sequence,
    /// Changes behind that, in order.
    recent: Vec<(Sequence, PinOp)>,
}

impl Pins {
    pub fn new(kept: Kept, as_of: Sequence) -> Self {
        Self { kept, as_of, recent: Vec::new() }
    }

    /// True if a frame says something that is not known yet.
    pub fn counts(&self, sequence: Sequence) -> bool {
        sequence > self.as_of
    }

    /// A committed frame changes something. Whether anything is given up by it.
    pub fn apply(&mut self, sequence: Sequence, op: PinOp) -> bool {
        if !self.counts(sequence) {
            return false;
        }
        if self.recent.iter().any(|(s, later)| *s > sequence && later.is_about_the_same(op)) {
            return false;
        }
        if self.recent.len() == RECENT_MAX {
            self.as_of = self.recent.remove(0).0;
        }
        let i = self.recent.partition_point(|(s, _)| *s <= sequence);
        self.recent.insert(i, (sequence, op));
        self.kept.apply(op);
        !matches!(op, PinOp::Take(_) | PinOp::TakePast(_))
    }

    /// A mark says what was kept as of a sequence. Whether anything is kept now that was not before, and whether
    /// anything is not that was.
    pub fn rebase(&mut self, kept: &Kept, as_of: Sequence) -> (bool, bool) {
        if as_of < self.as_of {
            return (false, false);
        }
        let before = std::mem::replace(&mut self.kept, kept.clone());
        self.as_of = as_of;
        self.recent.retain(|(s, _)| *s > as_of);
        self.recent.iter().for_each(|(_, op)| self.kept.apply(*op));
        (!before.covers(&self.kept), !self.kept.covers(&before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pins: &[u64], retain: Option<u64>) -> Kept {
        Kept { pins: pins.iter().map(|v| (Version(*v), SnapshotId(0))).collect(), retain: retain.map(Version) }
    }

    #[test]
    fn an_interval_is_needed_if_a_kept_version_lies_in_it() {
        let k = kept(&[3, 7], Some(20));
        let needs = |a, b| k.needs(Version(a), Version(b));
        assert!(needs(3, 4) && needs(1, 4) && needs(5, 8) && needs(7, 9));
        assert!(!needs(4, 7) && !needs(1, 3) && !needs(8, 20) && !needs(7, 7));
        assert!(needs(8, 21) && needs(20, 30) && needs(30, 31));
        assert!(k.has(Version(3)) && k.has(Version(20)) && k.has(Version(99)));
        assert!(!k.has(Version(4)) && !k.has(Version(19)));
        assert!(!Kept::default().needs(Version(0), Version(1 << 60)));
        let first = |v| k.first_from(Version(v)).map(|v| v.0);
        assert_eq!((first(0), first(4), first(8), first(30)), (Some(3), Some(7), Some(20), Some(30)));
        assert_eq!(kept(&[3], None).first_from(Version(4)), None);
    }

    #[test]
    fn a_window_begins_now_and_only_moves_up() {
        let mut k = Kept::default();
        k.apply(PinOp::Retain { from: Version(2), now: Version(10) });
        assert_eq!(k.retain, Some(Version(10)), "what came before is not there any more");
        k.apply(PinOp::Retain { from: Version(5), now: Version(20) });
        assert_eq!(k.retain, Some(Version(10)));
        k.apply(PinOp::Retain { from: Version(15), now: Version(21) });
        assert_eq!(k.retain, Some(Version(15)));
        k.apply(PinOp::Retain { from: Version(99), now: Version(22) });
        assert_eq!(k.retain, Some(Version(22)), "never ahead of the update itself");
        k.apply(PinOp::RetainNone);
        assert!(k.is_none());
    }

    #[test]
    fn a_mark_speaks_for_frames_up_to_its_own() {
        let (s, v) = (Sequence, Version);
        let take = |n| PinOp::Take(Pin { version: v(n), ..Pin::default() });
        let mut p = Pins::default();
        p.apply(s(3), take(30));
        p.apply(s(5), PinOp::Release(v(10)));
        p.apply(s(6), take(60));
        // Laid out before frames 5 and 6 had acted.
        assert_eq!(p.rebase(&kept(&[10, 20, 30], None), s(4)), (true, false));
        assert_eq!(p.kept, kept(&[20, 30, 60], None));
        assert_eq!(p.rebase(&kept(&[], None), s(2)), (false, false), "older than what is known");
        assert!(!p.apply(s(4), PinOp::Release(v(20))), "the mark knew of it");
        assert_eq!(p.kept, kept(&[20, 30, 60], None));
        assert_eq!(p.rebase(&kept(&[60], None), s(9)), (false, true));
        assert_eq!(p.kept, kept(&[60], None));
    }

    #[test]
    fn there_are_never_more_than_the_maximum() {
        let mut p = Pins::default();
        for n in 1..=limits::SHARD_PINS_MAX as u64 + 10 {
            p.apply(Sequence(n), PinOp::Take(Pin { version: Version(n), snapshot: SnapshotId(n) }));
        }
        assert_eq!(p.kept.pins.len(), limits::SHARD_PINS_MAX);
        assert!(p.recent.len() <= RECENT_MAX);
    }
}

//! Snapshots at the head of a chain: the cut, the hold, the report, and the end of pins that nobody needs (rules S1 to S3, E6).
//!
//! A head that hears of a snapshot under way orders a frame that pins its own version, and, if other shards are in it, orders
//! no update behind that until the control plane says that all have reported. It waits `HOLD_MAX` at most: then it goes on,
//! and the snapshot fails. Reads, promises, syncs, attachments and leases never wait for any of it.
//!
//! Invariants: a head does nothing by a state in which its own view is not active yet, for there the cut of the view before may
//! not be reported that is by now; it cuts for a snapshot once in a view; it confirms only what it held from the cut until it heard that all
//! cuts are reported; it gives up only pins of snapshots that a state does not have in which its own view is active, and of
//! two pins of one snapshot the older one.

use crate::event::{Action, CutWord, Found, Mutant, PastAsk, ShardInfo, UnderWay, Wanted};
use crate::head::Head;
use crate::replica::{Ctx, Replica};
use crate::timing;
use crate::window::is_about_to_come;
use freebs_format::{Pin, PinUpdate};
use freebs_lsvd::PastVersion;
use freebs_types::{ErrorKind, Moment, Nanos, Past, Result, Sequence, SnapshotId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Pins that one look gives up; the next one gives up more.
const RELEASES_MAX: usize = 64;

/// A cut that is ordered in the present view.
#[derive(Clone, Copy, Debug)]
struct Taken {
    id: SnapshotId,
    version: Version,
    sequence: Sequence,
    since: Nanos,
    hold: Hold,
    /// When the control plane was told something of it last.
    said_at: Option<Nanos>,
}

/// A version of the past that is looked for.
#[derive(Clone, Copy, Debug)]
struct Search {
    id: SnapshotId,
    /// The end of the log when it was heard of, and the moment that it was then: the log has to have the one before it is asked
    /// for what was before the other.
    behind: Sequence,
    now: Moment,
    last: Version,
    asked_at: Option<Nanos>,
    /// The answer is still to come.
    is_asking: bool,
}

impl Taken {
    fn is_late(&self, now: Nanos) -> bool {
        now.since(self.since) >= timing::HOLD_MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// No update is ordered behind the cut.
    Holds,
    /// It held until it heard that all cuts are reported.
    Held,
    /// It went on before.
    Lapsed,
    /// Other shards are not in the snapshot.
    Free,
}

/// The snapshots of a head in the present view.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    taken: Option<Taken>,
    search: Option<Search>,
    /// The last one of which it was said that there is no room for it.
    refused: Option<(SnapshotId, Nanos)>,
    /// Pins are to be looked at, once all that is ordered up to here is durable.
    look: Option<Sequence>,
    /// A look is under way.
    looking: bool,
    /// Pins that were given up in this view, as long as the log has them.
    released: BTreeSet<Version>,
}

impl Cuts {
    /// Times are told anew: what was found by those of before is none.
    pub fn search_anew(&mut self) {
        self.search = None;
    }

    /// A cut is ordered, or was.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// No update may be ordered now.
    pub fn holds(&self) -> bool {
        self.taken.is_some_and(|t| t.hold == Hold::Holds)
    }
}

/// Pins of a log, oldest first, that are of snapshots that are not there, or of which a newer pin is.
fn useless(pins: &[Pin], info: &ShardInfo, own: Option<SnapshotId>) -> Vec<Version> {
    let newest: BTreeMap<SnapshotId, Version> = pins.iter().map(|p| (p.snapshot, p.version)).collect();
    let is_useless = |p: &&Pin| {
        let id = p.snapshot;
        let snapshots = &info.snapshots;
        let is_known = id.0 > 0 && id > snapshots.spared && Some(id) != own;
        is_known && (!snapshots.kept.contains(&id) || newest.get(&id).is_some_and(|n| *n > p.version))
    };
    pins.iter().filter(is_useless).map(|p| p.version).collect()
}

impl Replica {
    /// True if the state has a snapshot, or may have lost the record of it.
    fn is_kept_or_spared(&self, id: SnapshotId) -> bool {
        let snapshots = self.info.as_ref().map(|i| &i.snapshots);
        snapshots.is_none_or(|s| s.kept.contains(&id) || id <= s.spared)
    }

    fn snapshot_cuts(&self) -> Option<&Cuts> {
        self.head.as_ref().map(|h| &h.cuts)
    }

    /// True if what is known of the snapshots is of a state in which the view here is active.
    pub fn is_told_of_snapshots(&self) -> bool {
        self.info.as_ref().is_some_and(|i| i.snapshots.as_of == self.view_number())
    }

    /// True while the head orders no updates.
    pub fn holds(&self) -> bool {
        self.head.as_ref().is_some_and(|h| h.cuts.holds() || h.window.is_unknown() || h.intervals.are_unknown())
    }

    /// News of the shard's snapshots: what nobody needs any more may go.
    pub fn snapshots_changed(&mut self) {
        let last = self.last.sequence;
        if let Some(h) = self.head.as_mut() {
            h.cuts.look = Some(last);
        }
    }

    /// Does what is to be done for the snapshot under way. Called whenever something may have changed.
    pub fn see_to_snapshots(&mut self, ctx: &mut Ctx<'_>) {
        if !self.is_active_head() {
            return;
        }
        if !self.is_told_of_snapshots() {
            self.lapse_untold(ctx);
            return;
        }
        let under_way = self.info.as_ref().and_then(|i| i.snapshots.under_way);
        let taken = self.snapshot_cuts().and_then(|c| c.taken);
        match (taken, under_way) {
            (None, Some(u)) if !u.is_decided && u.reported.is_none() => self.take_cut(ctx, u),
            (Some(t), Some(u)) if t.id == u.id => self.go_on_with(ctx, t, u),
            (Some(_), _) => {
                // It is complete, has failed, or is gone.
                if let Some(h) = self.head.as_mut() {
                    h.cuts.taken = None;
                }
                self.snapshots_changed();
                self.let_go_on(ctx);
                self.see_to_snapshots(ctx);
            }
            (None, _) => {}
        }
    }

    /// However little is known, nobody waits longer than `HOLD_MAX`.
    fn lapse_untold(&mut self, ctx: &mut Ctx<'_>) {
        let taken = self.head.as_mut().and_then(|h| h.cuts.taken.as_mut());
        let Some(t) = taken.filter(|t| t.hold == Hold::Holds && t.is_late(ctx.now)) else { return };
        (t.hold, t.said_at) = (Hold::Lapsed, None);
        self.let_go_on(ctx);
    }

    fn let_go_on(&mut self, ctx: &mut Ctx<'_>) {
        self.release_window(ctx);
        self.pack(ctx);
    }

    fn take_cut(&mut self, ctx: &mut Ctx<'_>, u: UnderWay) {
        if self.is_too_short(ctx) || self.is_stuffed() {
            return;
        }
        if !self.has_room(ctx) {
            let why = format!("shard {} has no room for it: a device is full", self.id);
            self.refuse_cut(ctx, u.id, why);
            return;
        }
        self.pack(ctx);
        if let Some(past) = u.past {
            self.search_past(ctx, u.id, past);
            return;
        }
        if self.waits_for_intervals(ctx) {
            return;
        }
        self.order_pin(ctx, PinUpdate::Snapshot(u.id));
        let hold = match u.is_alone || ctx.mutant(Mutant::OrdersBehindCuts) {
            true if u.is_alone => Hold::Free,
            true => Hold::Held,
            false => Hold::Holds,
        };
        self.is_cut(ctx, u.id, self.version, hold);
    }

    /// A cut is in the last frame that was ordered.
    fn is_cut(&mut self, ctx: &mut Ctx<'_>, id: SnapshotId, version: Version, hold: Hold) {
        let (view, sequence) = (self.view_number(), self.last.sequence);
        let taken = Taken { id, version, sequence, since: ctx.now, hold, said_at: None };
        if let Some(h) = self.head.as_mut() {
            (h.cuts.taken, h.cuts.search) = (Some(taken), None);
        }
        ctx.out.note(format!("shard {}: snapshot {id} is cut at version {version} in view {view}", self.id));
    }

    /// A snapshot can't be made here. It is said once in a while.
    fn refuse_cut(&mut self, ctx: &mut Ctx<'_>, id: SnapshotId, why: String) {
        let now = ctx.now;
        let Some(h) = self.head.as_mut() else { return };
        let said = h.cuts.refused.filter(|(other, _)| *other == id).map(|(_, at)| at);
        if said.is_none_or(|at| now.since(at) >= timing::CUT_AGAIN) {
            h.cuts.refused = Some((id, now));
            ctx.out.actions.push(Action::Cut(CutWord::Fails { snapshot: id, why }));
        }
    }

    /// Asks the log for a version of the past, once it has all that was ordered before.
    fn search_past(&mut self, ctx: &mut Ctx<'_>, id: SnapshotId, past: Past) {
        let (shard, view, now) = (self.id, self.view_number(), ctx.now);
        // By the clock of now.
        self.see_to_clock(ctx);
        let (behind, last, durable) = (self.last.sequence, self.version, self.durable);
        let moment = Moment::at_wall(self.wall(ctx));
        if is_about_to_come(past, moment) {
            return;
        }
        let Some(h) = self.head.as_mut() else { return };
        let anew = Search { id, behind, now: moment, last, asked_at: None, is_asking: false };
        let search = h.cuts.search.get_or_insert(anew);
        if search.id != id {
            *search = anew;
        }
        let is_due = search.asked_at.is_none_or(|at| now.since(at) >= timing::CUT_AGAIN);
        if durable >= search.behind && is_due && !search.is_asking {
            (search.asked_at, search.is_asking) = (Some(now), true);
            let wanted = Wanted::At { past, snapshot: Some(id) };
            let ask = PastAsk { shard, view, now: search.now, last: search.last, wanted };
            ctx.out.actions.push(Action::FindPast(ask));
        }
    }

    /// The log has found a version of the past for a snapshot, or has not.
    pub fn on_past_for_snapshot(&mut self, ctx: &mut Ctx<'_>, (ask, id): (PastAsk, SnapshotId), found: Result<Found>) {
        let under_way = self.info.as_ref().and_then(|i| i.snapshots.under_way).filter(|u| u.id == id && !u.is_decided);
        let search = self.head.as_mut().and_then(|h| h.cuts.search.as_mut());
        let Some(search) = search.filter(|s| (s.id, s.now, s.last) == (id, ask.now, ask.last)) else { return };
        search.is_asking = false;
        let Some(u) = under_way else { return };
        if !self.is_active_head() || !self.is_told_of_snapshots() || self.is_stuffed() || !self.has_room(ctx) {
            return;
        }
        // Updates that were gathered came behind the question: the present has them.
        self.pack(ctx);
        let version = match found {
            Ok(Found::Version(p)) if p.version < self.window_begins() && p.pinned != Some(id) => {
                let why = format!("shard {} has just given up version {}", self.id, p.version);
                return self.refuse_cut(ctx, id, why);
            }
            Ok(Found::Version(PastVersion { version, pinned, .. })) => match pinned.filter(|other| *other != id) {
                None => Some(version),
                // Nothing was ordered since; so the present is as that was.
                Some(_) if matches!(u.past, Some(Past::TimeMs(_))) && version == self.version => None,
                // That one is about to go.
                Some(other) if !self.is_kept_or_spared(other) => return,
                Some(other) => {
                    let why = format!("shard {}: the snapshot with number {other} is of this version already", self.id);
                    return self.refuse_cut(ctx, id, why);
                }
            },
            Err(e) if e.kind == ErrorKind::NotFound => return self.refuse_cut(ctx, id, e.text.into_owned()),
            // Frames are missing here, or the shard has changed: it is asked again.
            _ => return,
        };
        let pin = match version {
            Some(version) => PinUpdate::Past(Pin { version, snapshot: id }),
            None => PinUpdate::Snapshot(id),
        };
        self.order_pin(ctx, pin);
        let version = version.unwrap_or(self.version);
        if let Some(h) = self.head.as_mut() {
            h.cuts.released.remove(&version);
        }
        // Updates from now on are not of the past.
        let hold = if u.is_alone { Hold::Free } else { Hold::Held };
        self.is_cut(ctx, id, version, hold);
    }

    /// A frame with one update that is about pins.
    pub fn order_pin(&mut self, ctx: &mut Ctx<'_>, pin: PinUpdate) {
        if let Some(h) = self.head.as_mut() {
            h.push_pin(pin);
        }
        self.pack(ctx);
    }

    fn go_on_with(&mut self, ctx: &mut Ctx<'_>, mut t: Taken, u: UnderWay) {
        let view = self.view_number();
        let is_late = t.hold == Hold::Holds && t.is_late(ctx.now);
        if t.hold == Hold::Holds && u.is_decided {
            t.hold = Hold::Held;
        } else if is_late {
            t.hold = Hold::Lapsed;
            t.said_at = None;
        }
        let word = match t.hold {
            Hold::Lapsed if ctx.mutant(Mutant::ConfirmsWithoutHold) && u.is_decided => {
                Some(CutWord::Held { shard: self.id, snapshot: t.id, view })
            }
            Hold::Lapsed => {
                let why = format!("shard {} had waited long enough for the others", self.id);
                Some(CutWord::Fails { snapshot: t.id, why })
            }
            Hold::Held if u.is_decided && !u.is_confirmed => {
                Some(CutWord::Held { shard: self.id, snapshot: t.id, view })
            }
            _ if !u.is_decided && u.reported.is_none() => {
                // Its own log is asked whether it keeps the version.
                let is_there = self.committed.min(self.durable) >= t.sequence;
                let is_committed = is_there || ctx.mutant(Mutant::CutsBeforeCommitted);
                let (version, sequence) = (t.version, t.sequence);
                is_committed.then_some(CutWord::Cut { shard: self.id, snapshot: t.id, view, version, sequence })
            }
            _ => None,
        };
        let is_new = u.is_decided && t.hold == Hold::Held && self.holds();
        let is_due = is_new || t.said_at.is_none_or(|at| ctx.now.since(at) >= timing::CUT_AGAIN);
        if let Some(word) = word.filter(|_| is_due) {
            t.said_at = Some(ctx.now);
            ctx.out.actions.push(Action::Cut(word));
        }
        let held = self.holds();
        if let Some(h) = self.head.as_mut() {
            h.cuts.taken = Some(t);
        }
        if held && t.hold != Hold::Holds {
            self.let_go_on(ctx);
        }
    }

    /// Asks the log for its pins, if some may have to go.
    pub fn look_at_pins(&mut self, ctx: &mut Ctx<'_>) {
        let is_active = self.is_active_head() && self.is_told_of_snapshots();
        let durable = self.durable;
        let Some(h) = self.head.as_mut().filter(|_| is_active) else { return };
        if !h.cuts.looking && !h.cuts.holds() && h.cuts.look.is_some_and(|upto| durable >= upto) {
            (h.cuts.look, h.cuts.looking) = (None, true);
            ctx.out.actions.push(Action::ListPins { shard: self.id });
        }
    }

    /// The pins of this log, oldest first.
    pub fn on_pins(&mut self, ctx: &mut Ctx<'_>, pins: &[Pin]) {
        let Some(h) = self.head.as_mut() else { return };
        h.cuts.looking = false;
        let own = h.cuts.taken.map(|t| t.id);
        let is_held = h.cuts.holds();
        let Some(info) = self.info.as_ref().filter(|i| i.snapshots.as_of == self.view_number()) else { return };
        let mut gone = useless(pins, info, own);
        if ctx.mutant(Mutant::ReleasesWhatIsKept) {
            gone = pins.iter().map(|p| p.version).collect();
        }
        let Some(h) = self.head.as_mut() else { return };
        // A pin that was given up already is still one until its frame is durable.
        h.cuts.released.retain(|v| pins.iter().any(|p| p.version == *v));
        gone.retain(|v| !h.cuts.released.contains(v));
        if gone.is_empty() {
            return;
        }
        if is_held || !self.is_active_head() || self.is_stuffed() {
            self.snapshots_changed();
            return;
        }
        let more = gone.len() > RELEASES_MAX;
        for version in gone.into_iter().take(RELEASES_MAX) {
            if let Some(h) = self.head.as_mut() {
                h.cuts.released.insert(version);
            }
            self.order_pin(ctx, PinUpdate::Release(version));
        }
        if more {
            self.snapshots_changed();
        }
    }
}

impl Head {
    /// Nothing of an older view is left; pins of that may be.
    pub fn begin_cuts(&mut self) {
        self.cuts = Cuts { look: Some(Sequence(0)), ..Cuts::default() };
    }
}

/// Words of a worker's heads that wait to be said together.
#[derive(Debug, Default)]
pub(crate) struct Words {
    waiting: Vec<CutWord>,
    is_speaking: bool,
}

impl Words {
    /// One more word. One that waits already is not said twice.
    pub fn add(&mut self, word: CutWord) {
        if !self.waiting.contains(&word) {
            self.waiting.push(word);
        }
    }

    /// All that is to be said now, if nothing is being said.
    pub fn begin(&mut self) -> Option<Vec<CutWord>> {
        let is_quiet = !self.is_speaking && !self.waiting.is_empty();
        self.is_speaking |= is_quiet;
        is_quiet.then(|| std::mem::take(&mut self.waiting))
    }

    /// It was said, or could not be.
    pub fn end(&mut self) {
        self.is_speaking = false;
    }
}

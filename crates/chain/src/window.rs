//! The retention window at the head of a chain: it begins and ends it, moves it up as time passes, and says when what was
//! ordered.
//!
//! Invariants: the clock in the headers of a shard's frames never goes back, but for a step of more than `CLOCK_AHEAD_MAX`; each
//! view begins a moment of its own, and the first update of a moment is the zero that says so, so that no update of a moment
//! has a lower version; the window does not move while a snapshot of the past is being made.

use crate::event::{Action, PastAsk};
use crate::head::Head;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::{Extent, ExtentKind, PinUpdate, UpdateDraft, UpdateKind};
use freebs_lsvd::PastVersion;
use freebs_types::{BlockRange, DriverId, ErrorKind, Moment, Nanos, Past, RequestNumber, Result, Version};

/// The window of a head in the present view.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The last moment that a frame says to have begun.
    moment: Option<Moment>,
    /// When the log was asked last.
    asked_at: Option<Nanos>,
    /// When it was said last which moments are forgotten.
    told_at: Option<Nanos>,
    /// The log has none, and is to have none.
    is_off: bool,
    /// Its first version, as far as it was ordered in this view.
    begins: Version,
}

impl Replica {
    /// The wall clock for the next frame's header.
    pub fn wall(&self, ctx: &Ctx<'_>) -> u64 {
        self.wall_from(ctx, |last| last)
    }

    /// The wall clock for a view's frame, with which a moment begins.
    pub fn wall_of_view(&self, ctx: &Ctx<'_>) -> u64 {
        self.wall_from(ctx, |last| Moment::at_wall(last).next().ms().saturating_mul(1_000_000))
    }

    fn wall_from(&self, ctx: &Ctx<'_>, least: impl Fn(u64) -> u64) -> u64 {
        let last = self.tail.get(&self.last.sequence).map_or(0, |t| t.wall);
        match last.saturating_sub(ctx.wall) > timing::CLOCK_AHEAD_MAX.0 || last == 0 {
            true => ctx.wall,
            false => ctx.wall.max(least(last)),
        }
    }

    /// Milliseconds that are to be kept, if the state says so.
    fn retain_ms(&self) -> Option<u64> {
        self.info.as_ref().and_then(|i| i.snapshots.retain_ms)
    }

    /// The first version of the window, as far as this head has moved it.
    pub fn window_begins(&self) -> Version {
        self.head.as_ref().map_or(Version(0), |h| h.window.begins)
    }

    /// Before an update is added to the next frame: if that is the first one of a moment, it says so.
    pub fn begin_moment(&mut self, ctx: &Ctx<'_>) {
        if self.retain_ms().is_none_or(|ms| ms == 0) {
            return;
        }
        let moment = Moment::at_wall(self.wall(ctx));
        let Some(h) = self.head.as_mut() else { return };
        if h.window.moment.is_some_and(|last| last >= moment) {
            return;
        }
        if h.gathers() {
            return;
        }
        h.push_own(UpdateKind::Zero, vec![BlockRange { start: moment.lba(), len: 1 }]);
        h.window.moment = Some(moment);
    }

    /// Asks the log where the window begins, and where it should.
    pub fn see_to_window(&mut self, ctx: &mut Ctx<'_>) {
        let (Some(ms), true) = (self.retain_ms(), self.is_active_head() && self.is_told_of_snapshots()) else { return };
        let is_held = self.info.as_ref().is_some_and(|i| i.snapshots.under_way.is_some());
        let every = Nanos::from_millis(ms / 16).clamp(timing::WINDOW_EVERY_MIN, timing::WINDOW_EVERY);
        let (shard, now, wall) = (self.id, ctx.now, self.wall(ctx));
        let Some(h) = self.head.as_mut() else { return };
        h.window.is_off &= ms == 0;
        if is_held || h.window.is_off || h.window.asked_at.is_some_and(|at| now.since(at) < every) {
            return;
        }
        h.window.asked_at = Some(now);
        let from = (wall / 1_000_000).saturating_sub(ms);
        let ask = PastAsk { shard, past: Past::TimeMs(from), now: Moment::at_wall(wall), snapshot: None };
        ctx.out.actions.push(Action::FindPast(ask));
    }

    /// The log has answered.
    pub fn on_past_found(
        &mut self,
        ctx: &mut Ctx<'_>,
        ask: PastAsk,
        retain: Option<Version>,
        found: Result<PastVersion>,
    ) {
        if let Some(id) = ask.snapshot {
            return self.on_past_for_snapshot(ctx, id, found);
        }
        let is_held = self.info.as_ref().is_some_and(|i| i.snapshots.under_way.is_some()) || self.holds();
        let is_active = self.is_active_head() && self.is_told_of_snapshots();
        let (Some(ms), true) = (self.retain_ms(), is_active && !is_held && !self.is_stuffed()) else { return };
        let begins = self.window_begins();
        let wall = self.wall(ctx);
        let (pin, from) = match (ms, retain, found) {
            (0, Some(_), _) => (PinUpdate::Release(Version(0)), None),
            (0, None, _) => {
                self.head.iter_mut().for_each(|h| h.window.is_off = true);
                return;
            }
            (_, None, _) if begins.0 > 0 => return,
            (_, None, _) => (PinUpdate::Retain(self.version), Some(Moment::at_wall(wall))),
            (_, Some(first), found) => {
                let Some(pin) = self.moved(ctx, first.max(begins), found) else { return };
                let Past::TimeMs(ms) = ask.past else { return };
                (pin, Some(Moment::from_ms(ms)))
            }
        };
        self.order_window(ctx, pin, from);
    }

    /// The window's step to the version that was looked for, if it is worth one.
    fn moved(&self, ctx: &Ctx<'_>, first: Version, found: Result<PastVersion>) -> Option<PinUpdate> {
        let told_at = self.head.as_ref().and_then(|h| h.window.told_at);
        let is_due = told_at.is_none_or(|at| ctx.now.since(at) >= timing::MOMENTS_TOLD_EVERY);
        match found {
            // The update that moves it has a version, too: of a shard at rest the window ends with that.
            Ok(p) if p.version > first.next() || is_due => Some(PinUpdate::Retain(p.version.max(first))),
            // Nothing is known of so early a time.
            Err(e) if e.kind == ErrorKind::NotFound && is_due => Some(PinUpdate::Retain(first)),
            _ => None,
        }
    }

    /// Orders a change of the window, and with it that moments in front of it are forgotten.
    fn order_window(&mut self, ctx: &mut Ctx<'_>, pin: PinUpdate, from: Option<Moment>) {
        let (wall, before) = (self.wall(ctx), self.window_begins());
        self.pack(ctx);
        if let Some(h) = self.head.as_mut() {
            h.push_pin(pin);
            if let Some(from) = from {
                let forgotten = from.before(Moment::at_wall(wall));
                h.push_own(UpdateKind::Trim, forgotten);
                h.window.told_at = Some(ctx.now);
            }
        }
        self.pack(ctx);
        let last = self.version;
        let Some(h) = self.head.as_mut() else { return };
        h.window.begins = match pin {
            PinUpdate::Retain(from) => from.max(Version(1)).max(before).min(last),
            _ => Version(0),
        };
    }
}

impl Head {
    /// Adds an update of the head's own about the addresses of moments to what the next frame will have.
    fn push_own(&mut self, kind: UpdateKind, ranges: Vec<BlockRange>) {
        if ranges.is_empty() {
            return;
        }
        let of = if kind == UpdateKind::Trim { ExtentKind::Trim } else { ExtentKind::Zero };
        self.push(UpdateDraft {
            kind,
            driver: DriverId(0),
            number: RequestNumber(0),
            lowest_open: RequestNumber(0),
            extents: ranges.into_iter().map(|range| Extent { kind: of, range }).collect(),
            crcs: Vec::new(),
            data: Vec::new(),
        });
    }
}

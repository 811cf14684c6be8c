//! The retention window at the head of a chain: it begins and ends it, moves it up as time passes, and says when what was
//! ordered.
//!
//! Invariants:
//! - As long as the log may have a window, the first update of a moment is the zero that says so, whatever the control state
//!   says of windows; no update of a moment has a lower version. Until the log has told whether it has one nothing is ordered.
//! - The clock in the headers of a shard's frames never goes back, but for a step of more than `CLOCK_BACK_MAX`; each view
//!   begins a moment of its own. Behind such a step, behind a leap, and where the clock of the frame before is not known, times
//!   begin anew, before anything is answered by them: those of before are not told any more, rather than told wrong.
//! - By the clock the window moves up by no more than a head's own monotonic time and a quarter of it, so a clock that is wrong
//!   does not end the past at once. A stretch in which nothing was ordered is not counted. It does not move while a snapshot is
//!   being made, and in a chain that is too short.
//! - For want of memory it is made shorter by those only that are there to have more of it then.
//! - One question at a time is under way to the log; the answer to one of another view, or of before times began anew, is none.

use crate::event::{Action, Found, NoteKind, PastAsk, PastStatus, Wanted};
use crate::head::Head;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::{Extent, ExtentKind, FrameHead, PinUpdate, UpdateDraft, UpdateKind, ViewBody};
use freebs_lsvd::TimesAbove;
use freebs_types::limits::MOMENT_MS;
use freebs_types::{BlockRange, DriverId, Moment, Nanos, Past, RequestNumber, Result, Sequence, TIMES_LBA, Version};

/// Moments that one step trims at most. Those in front of them do not count any more in any case.
const TRIMMED_MAX: u64 = 24 * 3600 * 1000 / MOMENT_MS;
/// A clock that goes on by more moments than this at once is not believed to tell the same time as before: 10 days.
const LEAP_MAX: u64 = 10 * TRIMMED_MAX;
/// Times begin anew when so many moments are told, far below the number of addresses: 60 days.
const TIMES_MAX: u64 = 60 * TRIMMED_MAX;
/// A step of the window is worth two updates if it lets go of more versions than this.
const STEP_VERSIONS: u64 = 8;

/// A head tells a moment at least this often, so a stretch of twice as many in which none is told is one without a head.
const TOLD_EVERY: u64 = 3600 * 1000 / MOMENT_MS;
/// A window of fewer versions is not made shorter for want of memory: others take it.
const ROOM_VERSIONS: u64 = 64;
/// Moments that a clock may be behind one that is asked for: so long a snapshot of that time waits for it.
const BEHIND_MAX: u64 = 20;

/// The log has a window or none, as far as the head knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InLog {
    #[default]
    Unknown,
    None,
    Has,
}

/// The window of a head in the present view.
#[derive(Debug, Default)]
pub(crate) struct Window {
    log: InLog,
    /// The question that is under way.
    asking: Option<PastAsk>,
    /// When the log was asked last whether the window may move, and whether it takes too much memory.
    stepped_at: Option<Nanos>,
    room_at: Option<Nanos>,
    /// The frame with which it was made shorter for want of memory.
    shorter: Option<Sequence>,
    /// The last moment that has begun; if it is not known, times begin anew.
    last: Option<Moment>,
    /// The clock's moment when it was looked at, by this head's own time.
    seen: Option<(Moment, Nanos)>,
    /// The moment at which the window begins, from which on times are told; `None` until the log has said it.
    begins_at: Option<Moment>,
    /// The two as they were before the frame that is gathered.
    before: Option<(Option<Moment>, Option<Moment>)>,
    /// The first version of the window.
    begins: Version,
    /// How far it might have moved when, by this head's own time.
    allowed: Option<(Moment, Nanos)>,
    /// Milliseconds that were to be kept when that was said last.
    retained_ms: u64,
    moved_at: Option<Nanos>,
    /// It was made shorter than it should be for want of memory; when that was said last.
    is_short: bool,
    said_at: Option<Nanos>,
}

/// True if a place in the past is about to come: by the clock of who asks it is there already.
pub(crate) fn is_about_to_come(past: Past, now: Moment) -> bool {
    let behind = |ms| Moment::from_ms(ms).0.saturating_sub(now.0);
    matches!(past, Past::TimeMs(ms) if (1..=BEHIND_MAX).contains(&behind(ms)))
}

impl Window {
    /// A view goes on now from a frame with this wall clock, 0 if that is not known, of a view in which so many milliseconds were
    /// to be kept.
    pub fn goes_on_from(&mut self, wall: u64, retained_ms: Option<u64>, now: Nanos) {
        self.last = Some(Moment::at_wall(wall)).filter(|_| wall > 0);
        self.seen = self.last.map(|last| (last, now));
        self.retained_ms = retained_ms.unwrap_or_default();
    }

    /// True until the log has told whether it has a window.
    pub fn is_unknown(&self) -> bool {
        self.log == InLog::Unknown
    }

    /// The frame that is gathered is ordered, or dropped.
    pub fn packed(&mut self, is_ordered: bool) {
        if let Some(before) = self.before.take().filter(|_| !is_ordered) {
            (self.last, self.begins_at) = before;
        }
    }

    /// True if the clock goes on to this moment from what was told. Days go by on both clocks, or the one has leapt.
    fn goes_on_to(&self, moment: Moment, now: Nanos) -> bool {
        let (Some(last), Some((seen, since))) = (self.last, self.seen) else { return false };
        let passed = now.since(since).0 / (MOMENT_MS * 1_000_000);
        let is_long = self.begins_at.is_some_and(|from| moment.0.saturating_sub(from.0) > TIMES_MAX);
        last <= moment && moment.0.saturating_sub(seen.0) <= LEAP_MAX.saturating_add(passed) && !is_long
    }

    /// It was to begin at a moment, and nothing was ordered from there up to the next one, if there is one. If that is because no
    /// head was there, it lets go of nothing up to there.
    fn skip(&mut self, to: Moment, next: Option<Moment>, (by_clock, now): (Moment, Nanos)) {
        let next = next.map_or(by_clock, |next| next.min(by_clock));
        if next.0.saturating_sub(to.0) >= 2 * TOLD_EVERY {
            self.allowed = Some((next, now));
        }
    }

    /// How far it may have moved by now: a quarter faster than time goes by, so that what a pause has left behind is made up.
    fn allowed(&self, now: Nanos) -> Option<Moment> {
        let (from, since) = self.allowed?;
        let ms = now.since(since).0 / 1_000_000;
        Some(Moment(from.0.saturating_add((ms + ms / 4) / MOMENT_MS)))
    }
}

/// Milliseconds of its past that a volume was to keep when a view was opened.
pub(crate) fn retained_in(view_frame: Option<&FrameHead>) -> Option<u64> {
    let body = ViewBody::decode(view_frame?.body()).ok()?;
    body.volume.map(|v| v.retain_ms)
}

impl Replica {
    fn window(&self) -> Option<&Window> {
        self.head.as_ref().map(|h| &h.window)
    }

    /// The wall clock for the next frame's header.
    pub fn wall(&self, ctx: &Ctx<'_>) -> u64 {
        self.wall_from(ctx, |last| last)
    }

    /// The same for a frame with what was gathered: its moment has begun by then, whatever the clock does.
    pub fn wall_of_gathered(&self, ctx: &Ctx<'_>) -> u64 {
        let begun = self.window().filter(|w| w.log == InLog::Has).and_then(|w| w.last);
        self.wall(ctx).max(begun.map_or(0, Moment::wall))
    }

    /// The wall clock for a view's frame, with which a moment begins.
    pub fn wall_of_view(&self, ctx: &Ctx<'_>) -> u64 {
        self.wall_from(ctx, |last| Moment::at_wall(last).next().wall())
    }

    fn wall_from(&self, ctx: &Ctx<'_>, least: impl Fn(u64) -> u64) -> u64 {
        let last = self.tail.get(&self.last.sequence).map_or(0, |t| t.wall);
        match last.saturating_sub(ctx.wall) > timing::CLOCK_BACK_MAX.0 || last == 0 {
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
        self.window().map_or(Version(0), |w| w.begins)
    }

    /// The head's knowledge of the past that is kept.
    pub fn past_status(&self) -> Option<PastStatus> {
        let w = self.window().filter(|w| w.log == InLog::Has && self.is_active_head())?;
        Some(PastStatus { first: w.begins, from_ms: w.begins_at.map(Moment::ms), is_short: w.is_short })
    }

    /// Before an update is added to the next frame: if that is the first one of a moment, it says so.
    pub fn begin_moment(&mut self, ctx: &mut Ctx<'_>) {
        if self.window().is_none_or(|w| w.log != InLog::Has) {
            return;
        }
        let moment = Moment::at_wall(self.wall(ctx));
        let now = ctx.now;
        if self.window().is_some_and(|w| w.last == Some(moment)) {
            return;
        }
        if self.head.as_ref().is_some_and(|h| h.gathers()) {
            // All that is gathered came before the moment began.
            self.pack(ctx);
        }
        let Some(h) = self.head.as_mut() else { return };
        if h.window.goes_on_to(moment, now) {
            h.window.before = Some((h.window.last, h.window.begins_at));
            h.push_own(UpdateKind::Zero, vec![BlockRange { start: moment.lba(), len: 1 }]);
            (h.window.last, h.window.seen) = (Some(moment), Some((moment, now)));
            return;
        }
        self.begin_anew(ctx, moment);
    }

    fn begin_anew(&mut self, ctx: &mut Ctx<'_>, moment: Moment) {
        let Some(h) = self.head.as_mut() else { return };
        h.begin_times(moment, ctx.now);
        let why = "the clock has gone back, or on by days, or is not known";
        ctx.out.note(format!("shard {}: {why}: times are told from now on", self.id));
    }

    /// Looks at the clock. If it does not go on from what was told, times begin anew, so that nobody is answered by another one.
    pub fn see_to_clock(&mut self, ctx: &mut Ctx<'_>) {
        let (moment, now) = (Moment::at_wall(self.wall(ctx)), ctx.now);
        let may_order = self.is_active_head() && !self.holds() && !self.is_stuffed();
        let Some(w) = self.head.as_mut().map(|h| &mut h.window).filter(|w| w.log == InLog::Has && may_order) else {
            return;
        };
        if w.goes_on_to(moment, now) {
            w.seen = Some((moment, now));
            return;
        }
        self.pack(ctx);
        self.begin_anew(ctx, moment);
        self.pack(ctx);
    }

    /// Asks the log what there is to ask, and orders what is to be ordered.
    pub fn see_to_window(&mut self, ctx: &mut Ctx<'_>) {
        self.see_to_clock(ctx);
        let is_there = self.view.as_ref().is_some_and(|v| self.durable >= v.sequence);
        let is_asking = self.window().is_none_or(|w| w.asking.is_some());
        if !self.is_open_head() || !is_there || is_asking {
            return;
        }
        if self.window().is_some_and(Window::is_unknown) {
            return self.ask_log(ctx, Wanted::Window);
        }
        let is_held = self.info.as_ref().is_some_and(|i| i.snapshots.under_way.is_some()) || self.holds();
        let is_active = self.is_active_head() && self.is_told_of_snapshots() && !self.is_too_short(ctx);
        let (Some(ms), Some(w)) = (self.retain_ms().filter(|_| is_active && !self.is_stuffed()), self.window()) else {
            return;
        };
        match w.log {
            _ if is_held => {}
            InLog::Has if ms == 0 => self.end_window(ctx),
            InLog::Has => self.see_to_steps(ctx, ms),
            InLog::None if ms > 0 => self.begin_window(ctx, ms),
            InLog::None | InLog::Unknown => {}
        }
    }

    fn ask_log(&mut self, ctx: &mut Ctx<'_>, wanted: Wanted) {
        let now = Moment::at_wall(self.wall(ctx));
        let ask = PastAsk { shard: self.id, view: self.view_number(), now, last: self.version, wanted };
        if let Some(h) = self.head.as_mut() {
            h.window.asking = Some(ask);
            ctx.out.actions.push(Action::FindPast(ask));
        }
    }

    /// The window moves up for want of memory, of any of the members, or by the time.
    fn see_to_steps(&mut self, ctx: &mut Ctx<'_>, ms: u64) {
        let (now, wall, last) = (ctx.now, self.wall(ctx), self.version);
        let is_over = self.is_over(now);
        let Some(w) = self.head.as_mut().map(|h| &mut h.window) else { return };
        if let Some((from, _)) = w.allowed.as_mut().filter(|_| ms < w.retained_ms) {
            // Somebody has said that it is to be shorter.
            from.0 += (w.retained_ms - ms) / MOMENT_MS;
        }
        w.retained_ms = ms;
        let is_due = |at: Option<Nanos>, every: Nanos| at.is_none_or(|at| now.since(at) >= every);
        if w.begins_at.is_none() {
            if is_due(w.room_at, timing::WINDOW_EVERY_MIN) {
                w.room_at = Some(now);
                self.ask_log(ctx, Wanted::Begin);
            }
            return;
        }
        let from = w.begins_at.unwrap_or_default();
        if is_over && last.0 > w.begins.0 + ROOM_VERSIONS && is_due(w.room_at, timing::ROOM_EVERY) {
            w.room_at = Some(now);
            let above = Version(w.begins.0 + last.0.saturating_sub(w.begins.0) / 4);
            return self.ask_log(ctx, Wanted::Room { above, from });
        }
        if w.last.is_some_and(|last| Moment::at_wall(wall).0.saturating_sub(last.0) >= TOLD_EVERY) {
            self.begin_moment(ctx);
            self.pack(ctx);
        }
        let Some(w) = self.head.as_mut().map(|h| &mut h.window) else { return };
        let every = Nanos::from_millis(ms / 16).clamp(timing::WINDOW_EVERY_MIN, timing::WINDOW_EVERY);
        if !is_due(w.stepped_at, every) {
            return;
        }
        w.stepped_at = Some(now);
        let to = Moment::at_wall(wall).less(ms.div_ceil(MOMENT_MS));
        let to = w.allowed(now).map_or(to, |most| to.min(most));
        if w.begins_at.is_none_or(|at| at < to) {
            self.ask_log(ctx, Wanted::At { past: Past::TimeMs(to.ms()), snapshot: None });
        }
    }

    /// True if a log has no memory for so much of the past. One that is away, or has not heard how much less there is now, has
    /// no say.
    fn is_over(&mut self, now: Nanos) -> bool {
        let (own, durable, shorter) = (self.past_over, self.durable, self.window().and_then(|w| w.shorter));
        let Some(h) = self.head.as_mut() else { return false };
        let of_others = h.members.iter().filter(|m| m.live && m.room.is_some_and(|r| r.past_over)).map(|m| m.durable);
        let all = of_others.chain(Some(durable).filter(|_| own)).min();
        if all.is_some() && all < shorter {
            h.window.room_at = Some(now);
        }
        all.is_some()
    }

    /// The log has answered.
    pub fn on_past_found(&mut self, ctx: &mut Ctx<'_>, ask: PastAsk, found: Result<Found>) {
        if ask.view != self.view_number() || !self.is_open_head() {
            return;
        }
        if let Wanted::At { snapshot: Some(id), .. } = ask.wanted {
            return self.on_past_for_snapshot(ctx, (ask, id), found);
        }
        let Some(h) = self.head.as_mut().filter(|h| h.window.asking == Some(ask)) else { return };
        h.window.asking = None;
        match (ask.wanted, found) {
            (Wanted::Window, Ok(Found::Window(Some(first)))) => self.log_has(ctx, InLog::Has, first),
            (Wanted::Window, Ok(_)) => self.log_has(ctx, InLog::None, Version(0)),
            (Wanted::Window, Err(_)) => self.log_has(ctx, InLog::Has, Version(0)),
            (Wanted::Begin, Ok(Found::Begin(at))) => self.log_begins(ctx, at),
            (wanted, Ok(found)) => self.may_step(ctx, wanted, found),
            // Nothing is known of so early a time, or frames are missing; it stays as it is.
            (_, Err(_)) => {}
        }
    }

    /// The log has said whether it has a window, and which version is its first; or could not say it, and then it may have one.
    fn log_has(&mut self, ctx: &mut Ctx<'_>, log: InLog, first: Version) {
        let Some(w) = self.head.as_mut().map(|h| &mut h.window).filter(|w| w.is_unknown()) else { return };
        (w.log, w.begins) = (log, first);
        self.release_window(ctx);
        self.pack(ctx);
        self.see_to_window(ctx);
    }

    /// The log has said at which moment its window begins; if it tells none, times begin anew with the next update.
    fn log_begins(&mut self, ctx: &mut Ctx<'_>, at: Option<Moment>) {
        let Some(w) = self.head.as_mut().map(|h| &mut h.window).filter(|w| w.begins_at.is_none()) else { return };
        match at {
            Some(at) => (w.begins_at, w.allowed) = (Some(at), Some((at, ctx.now))),
            None => {
                let moment = Moment::at_wall(self.wall(ctx));
                self.pack(ctx);
                if let Some(h) = self.head.as_mut() {
                    h.begin_times(moment, ctx.now);
                }
                self.pack(ctx);
            }
        }
    }

    /// The window may begin later, by the time or for want of memory.
    fn may_step(&mut self, ctx: &mut Ctx<'_>, wanted: Wanted, found: Found) {
        let is_held = self.info.as_ref().is_some_and(|i| i.snapshots.under_way.is_some()) || self.holds();
        let is_active = self.is_active_head() && self.is_told_of_snapshots() && !self.is_too_short(ctx);
        let has = self.window().is_some_and(|w| w.log == InLog::Has);
        let Some(ms) = self.retain_ms().filter(|ms| *ms > 0 && has) else { return };
        if !is_active || is_held || self.is_stuffed() {
            return;
        }
        let (now, begins) = (ctx.now, self.window_begins());
        let by_clock = Moment::at_wall(self.wall(ctx)).less(ms.div_ceil(MOMENT_MS));
        match (wanted, found) {
            (Wanted::At { past: Past::TimeMs(ms), .. }, Found::Version(p)) => {
                self.head.iter_mut().for_each(|h| h.window.skip(Moment::from_ms(ms), p.next, (by_clock, now)));
                let moved_at = self.window().and_then(|w| w.moved_at);
                let is_due = moved_at.is_none_or(|at| now.since(at) >= timing::WINDOW_TOLD_EVERY);
                if p.version.0 > begins.0 + STEP_VERSIONS || is_due {
                    self.step_to(ctx, p.version, Moment::from_ms(ms));
                    self.head.iter_mut().for_each(|h| h.window.is_short = false);
                }
            }
            (Wanted::Room { above, .. }, Found::Times(times)) => {
                self.say_short(ctx);
                self.give_up(ctx, above, times);
            }
            _ => {}
        }
    }

    /// Says that less of the past is kept than there should be.
    fn say_short(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now;
        let Some(w) = self.head.as_mut().map(|h| &mut h.window) else { return };
        w.is_short = true;
        if w.said_at.is_none_or(|at| now.since(at) >= timing::WINDOW_TOLD_EVERY) {
            w.said_at = Some(now);
            let text = "keeps less of its past than it should: what all shards keep here takes half as much memory as the \
                        maps may have";
            ctx.out.tell(NoteKind::Past, self.id, text);
        }
    }

    fn begin_window(&mut self, ctx: &mut Ctx<'_>, ms: u64) {
        let (moment, now) = (Moment::at_wall(self.wall(ctx)), ctx.now);
        self.pack(ctx);
        let begins = self.version.next();
        let Some(h) = self.head.as_mut() else { return };
        h.push_pin(PinUpdate::Retain(begins));
        h.window.retained_ms = ms;
        h.begin_times(moment, now);
        let w = &mut h.window;
        (w.log, w.begins, w.moved_at) = (InLog::Has, begins, Some(now));
        self.pack(ctx);
    }

    /// The window begins with this version, which is that of the beginning of this moment; those in front of it are not told.
    fn step_to(&mut self, ctx: &mut Ctx<'_>, first: Version, at: Moment) {
        self.pack(ctx);
        let now = ctx.now;
        let Some(h) = self.head.as_mut().filter(|h| h.window.begins_at.is_none_or(|before| before < at)) else {
            return;
        };
        h.push_pin(PinUpdate::Retain(first));
        h.forget_times(at);
        (h.window.begins, h.window.moved_at) = (first.max(h.window.begins), Some(now));
        self.pack(ctx);
    }

    /// All up to this version is let go of for want of memory.
    fn give_up(&mut self, ctx: &mut Ctx<'_>, above: Version, times: TimesAbove) {
        self.pack(ctx);
        let (moment, now) = (Moment::at_wall(self.wall(ctx)), ctx.now);
        let Some(h) = self.head.as_mut() else { return };
        h.push_pin(PinUpdate::Retain(above));
        match times {
            TimesAbove::Same => {}
            TimesAbove::From(at) => h.forget_times(at),
            TimesAbove::None => h.begin_times(moment, now),
        }
        (h.window.begins, h.window.moved_at) = (above.max(h.window.begins), Some(now));
        self.pack(ctx);
        let last = self.last.sequence;
        if let Some(w) = self.head.as_mut().map(|h| &mut h.window) {
            (w.shorter, w.room_at) = (Some(last), Some(now));
        }
    }

    /// There is no window any more, and nothing is told of times.
    fn end_window(&mut self, ctx: &mut Ctx<'_>) {
        let now = Moment::at_wall(self.wall(ctx)).next();
        self.pack(ctx);
        let Some(h) = self.head.as_mut() else { return };
        let told = h.window.begins_at;
        h.push_pin(PinUpdate::Release(Version(0)));
        h.push_own(UpdateKind::Trim, told.map_or(Vec::new(), |from| from.less(TRIMMED_MAX).until(now)));
        let w = &mut h.window;
        (w.log, w.begins, w.begins_at) = (InLog::None, Version(0), None);
        (w.allowed, w.is_short) = (None, false);
        self.pack(ctx);
    }
}

impl Head {
    /// Adds to what the next frame will have that times are told from the end of this moment on.
    fn begin_times(&mut self, moment: Moment, now: Nanos) {
        let w = &mut self.window;
        w.before.get_or_insert((w.last, w.begins_at));
        (w.last, w.begins_at) = (Some(moment), Some(moment.next()));
        (w.seen, w.asking) = (Some((moment, now)), None);
        // All that was kept until now stays for as long as it should.
        w.allowed = Some((moment.less(w.retained_ms / MOMENT_MS), now));
        self.cuts.search_anew();
        self.push_own(UpdateKind::Zero, vec![BlockRange { start: TIMES_LBA, len: 1 }]);
        self.push_own(UpdateKind::Trim, moment.until(moment.next()));
    }

    /// Adds to what the next frame will have that no times before this moment are told.
    fn forget_times(&mut self, before: Moment) {
        let from = before.less(TRIMMED_MAX);
        let forgotten = self.window.begins_at.map_or(from, |at| at.max(from)).until(before);
        self.push_own(UpdateKind::Trim, forgotten);
        self.window.begins_at = self.window.begins_at.max(Some(before));
    }

    /// Adds an update of the head's own about the addresses of times to what the next frame will have.
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

//! The retention window at a head: its begin, its steps and its end, moments, clocks, and snapshots of the past.

use super::cuts::{ordered, pins, words};
use super::*;
use crate::event::{CutWord, Found, NoteKind, PastAsk, ShardSnapshots, UnderWay, Wanted};
use crate::replica::TailEntry;
use freebs_format::{Pin, PinUpdate};
use freebs_lsvd::{PastVersion, TimesAbove};
use freebs_types::{Error, Moment, Past, SnapshotId, TIMES_LBA, limits};
use std::sync::Arc;

const ID: SnapshotId = SnapshotId(7);
const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
/// Some time in 2026, milliseconds since 1970.
const NOW_MS: u64 = 1_795_000_000_000;

impl Scene {
    /// A head of a shard that is to keep so much of its past.
    fn retains(&mut self, ms: Option<u64>, under_way: Option<UnderWay>) -> Vec<Action> {
        let kept = Arc::new(under_way.iter().map(|u| u.id).collect());
        let snapshots = ShardSnapshots { kept, under_way, spared: SnapshotId(3), as_of: ViewNumber(2), retain_ms: ms };
        self.r.info = Some(ShardInfo { snapshots, ..info(1024) });
        self.play(|r, ctx| r.see_to_snapshots(ctx)).1
    }

    /// So many milliseconds go by on both clocks.
    fn elapses(&mut self, ms: u64) {
        self.now = self.now.plus(Nanos::from_millis(ms));
        self.wall += ms * 1_000_000;
    }

    /// So many milliseconds go by on both clocks, and it ticks.
    fn passes(&mut self, ms: u64) -> Vec<Action> {
        self.elapses(ms);
        self.play(|r, ctx| r.head_tick(ctx)).1
    }

    /// A tick at which the log is asked where the window should begin by the time; the place.
    fn steps_to(&mut self) -> Option<(PastAsk, Past)> {
        asks(&self.passes(SECOND)).into_iter().find_map(|ask| match ask.wanted {
            Wanted::At { past, snapshot: None } => Some((ask, past)),
            _ => None,
        })
    }

    /// The other member is there, or is not.
    fn is_there(&mut self, live: bool) {
        let h = self.r.head.as_mut().unwrap();
        h.members.iter_mut().find(|m| m.node == NodeId(2)).unwrap().live = live;
    }

    fn answers(&mut self, ask: PastAsk, found: Result<Found>) -> Vec<Action> {
        self.play(|r, ctx| r.on_past_found(ctx, ask, found)).1
    }

    /// A window that has just begun; what was ordered for it.
    fn begins(ms: u64) -> (Self, Vec<Action>) {
        let mut s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(None)));
        s.retains(Some(ms), None);
        let actions = s.passes(0);
        s.both_durable();
        (s, actions)
    }
}

/// The questions to the log.
pub(super) fn asks(actions: &[Action]) -> Vec<PastAsk> {
    let of = |a: &Action| if let Action::FindPast(ask) = a { Some(*ask) } else { None };
    actions.iter().filter_map(of).collect()
}

fn at(version: u64) -> Result<Found> {
    Ok(Found::Version(PastVersion { version: Version(version), pinned: None, next: Some(Moment(0)) }))
}

fn gone() -> Result<Found> {
    Err(Error::not_found("outside of the window"))
}

/// Addresses behind those of blocks that appended frames name: kind, version and range.
fn times(actions: &[Action]) -> Vec<(ExtentKind, Version, BlockRange)> {
    let mut out = Vec::new();
    for action in actions {
        let Action::Append(Record::Frame(frame)) = action else { continue };
        for u in frame.head.updates() {
            let all = u.extents().map(|e| (e.0.kind, u.version, e.0.range));
            out.extend(all.filter(|(.., r)| u64::from(r.start.0) >= limits::SHARD_BLOCKS_MAX));
        }
    }
    out
}

/// Moments that have begun with these actions.
fn begun(actions: &[Action]) -> Vec<Lba> {
    let zeroes = times(actions).into_iter().filter(|(kind, ..)| *kind == ExtentKind::Zero);
    zeroes.map(|(.., range)| range.start).filter(|lba| *lba != TIMES_LBA).collect()
}

/// Times begin anew with these actions, behind this moment.
#[track_caller]
fn begin_anew(actions: &[Action], behind: Moment) {
    let [(ExtentKind::Zero, first, begin), (ExtentKind::Trim, then, mark)] = times(actions)[..] else {
        panic!("{:?}", times(actions))
    };
    assert_eq!(
        (begin, mark, then),
        (BlockRange { start: TIMES_LBA, len: 1 }, behind.until(behind.next())[0], first.next())
    );
}

#[test]
fn a_window_begins_steps_and_ends() {
    let mut s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(None)));
    s.retains(None, None);
    let quiet = s.passes(HOUR);
    assert!(asks(&quiet).is_empty() && pins(&quiet).is_empty(), "a state that says nothing changes nothing");
    s.retains(Some(HOUR), None);
    let version = s.r.version;
    let actions = s.passes(SECOND);
    let now = NOW_MS + HOUR + SECOND;
    assert_eq!(pins(&actions), [(version.next(), PinUpdate::Retain(version.next()))]);
    begin_anew(&actions, Moment::from_ms(now));
    let first = version.0 + 1;
    s.both_durable();
    assert_eq!(s.steps_to(), None, "there is nothing yet that is too old");
    assert!(pins(&s.passes(60 * SECOND)).is_empty(), "once");

    // An hour later what was in force then is the first that is kept.
    for n in 1..=40 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    s.elapses(HOUR);
    let (ask, past) = s.steps_to().expect("it is asked where to begin");
    let to = Moment::at_wall(s.wall).less(HOUR / 100);
    assert_eq!(past, Past::TimeMs(to.ms()));
    assert!(s.steps_to().is_none(), "one question at a time");
    let actions = s.answers(ask, at(first + 20));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(Version(first + 20)));
    let begin = Moment::from_ms(now).next();
    let ranges: Vec<BlockRange> = times(&actions).iter().map(|m| m.2).collect();
    assert_eq!(ranges, begin.until(to), "what lies between the last begin and this one, and no more");
    assert!(times(&actions)[0].1 > pins(&actions)[0].0, "behind it, so it counts");
    // One that is not worth a step; and one of another view.
    s.elapses(60 * SECOND);
    let (ask, _) = s.steps_to().unwrap();
    assert!(pins(&s.answers(PastAsk { view: ViewNumber(1), ..ask }, at(first + 90))).is_empty());
    assert!(pins(&s.answers(ask, at(first + 21))).is_empty());
    s.elapses(60 * SECOND);
    let (ask, _) = s.steps_to().unwrap();
    assert!(pins(&s.answers(ask, gone())).is_empty(), "what is not known is not let go of");

    // It ends, with all that is told.
    s.retains(Some(0), None);
    let actions = s.passes(SECOND);
    assert_eq!(pins(&actions)[0].1, PinUpdate::Release(Version(0)));
    let trimmed: u64 = times(&actions).iter().map(|m| u64::from(m.2.len)).sum();
    assert_eq!(trimmed, Moment::at_wall(s.wall).next().0 - to.0 + 24 * 36_000);
    s.both_durable();
    let after = s.passes(2 * HOUR);
    assert!(pins(&after).is_empty() && asks(&after).is_empty());
    assert!(times(&s.write(true, 70, 1, 1)).is_empty(), "nothing is kept");
}

#[test]
fn the_first_update_of_a_moment_says_so_and_the_clock_never_goes_back() {
    let (mut s, _) = Scene::begins(HOUR);
    let mut seen = Vec::new();
    for (n, step) in (1..).zip([0, 10, 89, 1, 0, 100, 0]) {
        s.wall += step * 1_000_000;
        let version = s.r.version;
        let actions = s.write(true, n, 1, 1);
        assert_eq!(ordered(&actions), [n]);
        seen.extend(times(&actions).into_iter().map(|(kind, v, range)| {
            assert_eq!((kind, v, range.len), (ExtentKind::Zero, version.next(), 1), "in front of the write");
            range.start
        }));
    }
    // The window has begun in the first one.
    let m = Moment::from_ms(NOW_MS);
    assert_eq!(seen, [m.next().lba(), m.next().next().lba()]);
    let last = s.wall;
    s.wall -= 60 * 1_000_000_000;
    let behind = s.write(true, 20, 1, 1);
    assert!(times(&behind).is_empty(), "a clock that goes back");
    assert_eq!(s.r.tail[&s.r.last.sequence].wall, last);
}

/// An update that was gathered before a moment began was ordered in it, behind its own zero: as of that moment the write was missing, or
/// there too early.
#[test]
fn what_is_gathered_is_ordered_before_the_next_moment_begins() {
    let (mut s, _) = Scene::begins(HOUR);
    s.passes(200);
    let gathers = |s: &mut Scene, n| s.play(|r, ctx| r.on_write(ctx, DRIVER, request(n, 1, 1))).1;
    assert!(begun(&gathers(&mut s, 1)).is_empty(), "nothing is ordered before the turn's end");
    s.wall += 100 * 1_000_000;
    let first = gathers(&mut s, 2);
    assert_eq!(begun(&first), [Moment::from_ms(NOW_MS + 200).lba()]);
    let second = s.play(|r, ctx| r.pack(ctx)).1;
    assert_eq!(begun(&second), [Moment::from_ms(NOW_MS + 300).lba()]);
}

/// The frame of before a restart had no clock: a head whose clock was behind went on with moments that were there already.
#[test]
fn a_restart_does_not_forget_the_clock() {
    let (s, _) = Scene::begins(HOUR);
    let state = freebs_lsvd::ShardState { last: s.r.last, version: s.r.version, shard: SHARD, ..Default::default() };
    let tail: Vec<TailEntry> = s.r.tail.values().cloned().collect();
    let mut r = Replica::recovered(&state, tail, None, Default::default());
    let wall = r.tail[&r.last.sequence].wall;
    assert_eq!(wall, NOW_MS * 1_000_000);
    let mut s = Scene { wall: wall - 5_000_000_000, ..Scene::new(1) };
    std::mem::swap(&mut s.r, &mut r);
    let next = s.play(|r, ctx| (r.wall(ctx), r.wall_of_view(ctx))).0;
    assert_eq!(next, (wall, Moment::at_wall(wall).next().wall()), "time stands still, and a view begins a moment");
}

/// One head with a clock that was a day ahead let go of a day's window within a minute.
#[test]
fn a_clock_that_is_ahead_does_not_end_the_past() {
    let (mut s, _) = Scene::begins(HOUR);
    for n in 1..=40 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    s.wall += 2 * HOUR * 1_000_000;
    s.passes(600 * SECOND);
    assert_eq!(s.steps_to(), None, "ten minutes have gone by, whatever the clock says");
    // By its own time it gets there.
    s.elapses(HOUR - 600 * SECOND);
    let (_, past) = s.steps_to().unwrap();
    let Past::TimeMs(ms) = past else { panic!() };
    assert!((NOW_MS..NOW_MS + 20 * 60 * SECOND).contains(&ms), "{}", ms - NOW_MS);
}

/// The quarter by which a window moves faster than time was saved up while it was where it should be: after four windows in one
/// view a clock that leapt ahead ended all of it within a minute.
#[test]
fn what_is_not_to_be_made_up_for_is_not_saved() {
    let (mut s, _) = Scene::begins(HOUR);
    for n in 1..=5 * 60 {
        s.elapses(60 * SECOND);
        s.write(true, n, 1, 1);
        s.both_durable();
        if let Some((ask, _)) = s.steps_to() {
            s.answers(ask, at(s.r.version.0.saturating_sub(60).max(1)));
            s.both_durable();
        }
    }
    s.wall += 2 * HOUR * 1_000_000;
    s.elapses(60 * SECOND);
    let before = Moment::at_wall(s.wall).ms() - 3 * HOUR;
    let (_, past) = s.steps_to().expect("a minute has gone by");
    let Past::TimeMs(ms) = past else { panic!() };
    assert!((before - 60 * SECOND..before + 2 * 60 * SECOND).contains(&ms), "{}", ms - before);
}

impl Scene {
    /// A head whose log has a window that begins at this moment.
    fn goes_on(wall_ms: u64, ms: u64, begins: Option<Moment>) -> (Self, Vec<Action>) {
        let mut s = leading_at(wall_ms * 1_000_000, Ok(Found::Window(Some(Version(1)))));
        let now = s.now;
        s.r.head.as_mut().unwrap().window.goes_on_from(s.wall, None, now);
        s.retains(Some(ms), None);
        let ask = asks(&s.passes(0)).pop().unwrap();
        assert_eq!(ask.wanted, Wanted::Begin);
        let actions = s.answers(ask, Ok(Found::Begin(begins)));
        s.both_durable();
        (s, actions)
    }
}

/// The same head opened its next view: what its own frames said of the time was believed.
#[test]
fn a_clock_that_is_ahead_does_not_end_the_past_in_the_next_view_either() {
    let (mut s, _) = Scene::goes_on(NOW_MS + 5 * HOUR, HOUR, Some(Moment::from_ms(NOW_MS - HOUR)));
    let (_, past) = s.steps_to().unwrap();
    let Past::TimeMs(ms) = past else { panic!() };
    assert!((NOW_MS - HOUR..=NOW_MS - HOUR + 5 * SECOND).contains(&ms), "{ms}");
}

#[test]
fn a_window_that_is_made_shorter_moves_at_once() {
    let (mut s, _) = Scene::goes_on(NOW_MS, 5 * HOUR, Some(Moment::from_ms(NOW_MS - 5 * HOUR)));
    let (ask, _) = s.steps_to().unwrap();
    s.answers(ask, gone());
    s.retains(Some(HOUR), None);
    s.elapses(60 * SECOND);
    let (ask, past) = s.steps_to().unwrap();
    assert_eq!(past, Past::TimeMs(Moment::at_wall(s.wall).less(HOUR / 100).ms()));
    let actions = s.answers(ask, at(3));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(Version(3)));
}

/// The word that less is to be kept opens a view. That forgot what had been kept before it, and the room came back four times as late
/// as the old window was long.
#[test]
fn a_window_that_is_made_shorter_by_a_view_moves_at_once() {
    let mut s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(Some(Version(1)))));
    let now = s.now;
    s.r.head.as_mut().unwrap().window.goes_on_from(s.wall, Some(5 * HOUR), now);
    s.retains(Some(HOUR), None);
    let ask = asks(&s.passes(0)).pop().unwrap();
    assert_eq!(ask.wanted, Wanted::Begin);
    s.answers(ask, Ok(Found::Begin(Some(Moment::from_ms(NOW_MS - 5 * HOUR)))));
    s.both_durable();
    let (_, past) = s.steps_to().unwrap();
    let Past::TimeMs(ms) = past else { panic!() };
    assert!(
        (NOW_MS - HOUR - 60 * SECOND..=NOW_MS - HOUR + 60 * SECOND).contains(&ms),
        "{}",
        ms.abs_diff(NOW_MS - HOUR)
    );
}

/// A clock was an hour ahead, and then right: moments of the wrong hour told wrong versions for the right one.
#[test]
fn behind_a_step_back_times_begin_anew() {
    let (mut s, _) = Scene::begins(HOUR);
    s.passes(SECOND);
    s.write(true, 1, 1, 1);
    s.wall -= 11 * 60 * 1_000_000_000;
    let moment = Moment::at_wall(s.wall);
    begin_anew(&s.write(true, 2, 1, 1), moment);
    assert!(times(&s.write(true, 3, 1, 1)).is_empty(), "once");
    s.wall += 200 * 1_000_000;
    assert_eq!(begun(&s.write(true, 4, 1, 1)), [Moment(moment.0 + 2).lba()]);
    // All that was kept stays for an hour.
    s.passes(HOUR / 2);
    assert_eq!(s.steps_to(), None);
    // And behind a leap: addresses come again.
    s.wall += 11 * 24 * HOUR * 1_000_000;
    begin_anew(&s.write(true, 5, 1, 1), Moment::at_wall(s.wall));
}

#[test]
fn where_the_last_moment_is_not_known_times_begin_anew() {
    let moment = Moment::from_ms(NOW_MS);
    // The frame that the view goes on from has no clock that is known, or the log can't say whether it has a window.
    for has in [Ok(Found::Window(Some(Version(1)))), Err(Error::corrupt("frames are missing"))] {
        let mut s = leading_at(NOW_MS * 1_000_000, has);
        s.retains(Some(HOUR), None);
        begin_anew(&s.write(true, 1, 1, 1), moment);
        assert!(asks(&s.passes(SECOND)).is_empty(), "it is known where they begin");
    }
    // The log tells nothing, as behind a branch.
    let (mut s, actions) = Scene::goes_on(NOW_MS, HOUR, None);
    begin_anew(&actions, moment);
    s.elapses(200);
    assert_eq!(begun(&s.write(true, 1, 1, 1)), [Moment(moment.0 + 2).lba()]);
}

/// A clock went back by minutes while writes were gathered: the frame said so, and the next view went on from there.
#[test]
fn a_frame_is_no_older_than_its_moment() {
    let (mut s, _) = Scene::begins(HOUR);
    s.elapses(SECOND);
    s.play(|r, ctx| r.on_write(ctx, DRIVER, request(1, 1, 1)));
    let moment = Moment::at_wall(s.wall);
    s.wall -= 20 * 60 * 1_000_000_000;
    assert_eq!(begun(&s.play(|r, ctx| r.pack(ctx)).1), [moment.lba()]);
    assert_eq!(s.r.tail[&s.r.last.sequence].wall, moment.wall());
}

/// Nothing is ordered until it is known whether moments have to be told.
#[test]
fn writes_wait_for_the_log_to_say_what_it_keeps() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    let ask = asks(&s.both_durable()).pop().unwrap();
    s.play(|r, ctx| r.on_intervals(ctx, ViewNumber(2), Ok(Vec::new())));
    s.play(|r, ctx| r.on_activated(ctx, ViewNumber(2), Ok(())));
    s.play(|r, ctx| r.on_attach(ctx, DRIVER, DriverId(9), Generation(1), Hash32::default()));
    s.both_durable();
    assert!(ordered(&s.write(true, 1, 1, 1)).is_empty());
    assert_eq!(ordered(&s.answers(ask, Ok(Found::Window(None)))), [1]);
}

/// The state said for a moment that nothing is kept, and the log's window went on without moments.
#[test]
fn moments_are_told_for_as_long_as_the_log_has_a_window() {
    let (mut s, _) = Scene::begins(HOUR);
    let u = UnderWay { id: ID, is_alone: true, is_decided: true, reported: None, is_confirmed: true, past: None };
    s.retains(Some(0), Some(u));
    assert!(pins(&s.passes(SECOND)).is_empty(), "it does not move while a snapshot is being made");
    assert_eq!(begun(&s.write(true, 1, 1, 1)).len(), 1);
    s.r.info = None;
    s.passes(SECOND);
    assert_eq!(begun(&s.write(true, 2, 1, 1)).len(), 1);
}

#[test]
fn a_window_that_takes_too_much_memory_is_made_shorter_and_says_so() {
    let (mut s, _) = Scene::begins(HOUR);
    let first = s.r.window_begins().0;
    for n in 1..=160 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    assert!(asks(&s.passes(SECOND)).is_empty());
    assert!(s.r.past_status().is_some_and(|p| !p.is_short && p.first == Version(first)));
    // A member has no memory for it.
    s.is_there(true);
    let room = Some(Room { past_over: true, ..Room::new(u64::MAX, false) });
    let last = s.r.last.sequence.0;
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
    let ask = asks(&s.passes(SECOND)).pop().unwrap();
    let above = Version(first + (s.r.version.0 - first) / 4);
    let from = Moment::from_ms(NOW_MS).next();
    assert_eq!(ask.wanted, Wanted::Room { above, from });
    let to = Moment::from_ms(NOW_MS + 700);
    let actions = s.answers(ask, Ok(Found::Times(TimesAbove::From(to))));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(above));
    let said = actions.iter().any(|a| matches!(a, Action::Note(n) if n.kind == NoteKind::Past));
    assert!(said && s.r.past_status().is_some_and(|p| p.is_short && p.from_ms == Some(to.ms())));
    let room = Some(Room::new(u64::MAX, false));
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
    assert!(asks(&s.passes(SECOND)).is_empty());
    // The own node has none; and all of it is of one moment, so no times of before are told.
    s.r.past_over = true;
    s.both_durable();
    let ask = asks(&s.passes(2 * SECOND)).pop().unwrap();
    let above = Version(above.0 + (s.r.version.0 - above.0) / 4);
    assert_eq!(ask.wanted, Wanted::Room { above, from: to });
    let actions = s.answers(ask, Ok(Found::Times(TimesAbove::None)));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(above), "a quarter of the versions, and no more");
    begin_anew(&actions, Moment::at_wall(s.wall));
    // Times began anew behind what is let go of: it goes all the same, and they stay.
    s.both_durable();
    let from = Moment::at_wall(s.wall).next().ms();
    let ask = asks(&s.passes(2 * SECOND)).pop().unwrap();
    let actions = s.answers(ask, Ok(Found::Times(TimesAbove::Same)));
    let Wanted::Room { above, .. } = ask.wanted else { panic!("{ask:?}") };
    assert_eq!((pins(&actions)[0].1, times(&actions)), (PinUpdate::Retain(above), Vec::new()));
    assert!(s.r.past_status().is_some_and(|p| p.first == above && p.from_ms == Some(from)));
}

/// A member said that it had no memory for so much, and died: the head gave up a quarter a second until nothing was left.
#[test]
fn a_member_that_is_away_has_no_say_about_memory() {
    let (mut s, _) = Scene::begins(HOUR);
    for n in 1..=400 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    s.is_there(true);
    let (last, room) = (s.r.last.sequence.0, Some(Room { past_over: true, ..Room::new(u64::MAX, false) }));
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
    let shorter = |s: &mut Scene| {
        let asked = asks(&s.passes(SECOND)).into_iter().find(|a| matches!(a.wanted, Wanted::Room { .. }))?;
        let Wanted::Room { above, .. } = asked.wanted else { return None };
        let actions = s.answers(asked, Ok(Found::Times(TimesAbove::Same)));
        assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(above));
        Some(above)
    };
    let first = shorter(&mut s).expect("the member has a say");
    assert!((0..40).all(|_| shorter(&mut s).is_none()), "it has not answered since");
    // It has heard of it, and there is still too much; but its word is that of before.
    s.both_durable();
    let last = s.r.last.sequence.0;
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
    assert_eq!(shorter(&mut s), None, "it has not looked at its memory since");
    assert!(shorter(&mut s).is_some_and(|above| above > first));
    // It is gone.
    s.both_durable();
    let last = s.r.last.sequence.0;
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
    s.is_there(false);
    assert!((0..40).all(|_| shorter(&mut s).is_none()));
}

/// A member had what was let go of, and the head's own disk stood still: nothing of it was committed, so the member's memory was as full
/// as before, and a quarter went every two seconds.
#[test]
fn what_is_let_go_of_for_memory_is_committed_before_more_is() {
    let (mut s, _) = Scene::begins(HOUR);
    for n in 1..=400 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    s.is_there(true);
    let room = Some(Room { past_over: true, ..Room::new(u64::MAX, false) });
    let mut steps = 0;
    for second in 0..20 {
        if second == 10 {
            s.durable(s.r.last.sequence.0);
        }
        let last = s.r.last.sequence.0;
        s.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(2, last, room)));
        for ask in asks(&s.passes(SECOND)).into_iter().filter(|a| matches!(a.wanted, Wanted::Room { .. })) {
            s.answers(ask, Ok(Found::Times(TimesAbove::Same)));
            steps += 1;
        }
        assert!(second >= 10 || steps <= 1, "{steps} after {second} s");
    }
    assert!(steps > 1, "it goes on behind the commit");
}

/// For days behind a pause nothing was let go of that had been written since, and the device filled.
#[test]
fn a_pause_is_not_made_up_for() {
    let end = NOW_MS + 64 * HOUR;
    let (mut s, _) = Scene::goes_on(end, HOUR, Some(Moment::from_ms(NOW_MS - HOUR)));
    let found = |next: u64| {
        let next = Some(Moment::from_ms(next));
        Ok(Found::Version(PastVersion { version: Version(1), pinned: None, next }))
    };
    // All that was written before the pause is paid for.
    let (ask, _) = s.steps_to().unwrap();
    s.answers(ask, found(NOW_MS - 1));
    s.elapses(HOUR / 2);
    let (ask, past) = s.steps_to().unwrap();
    assert!(matches!(past, Past::TimeMs(ms) if ms < NOW_MS), "{past:?}");
    s.answers(ask, found(NOW_MS - 1));
    s.elapses(HOUR / 2);
    let (ask, past) = s.steps_to().unwrap();
    assert!(matches!(past, Past::TimeMs(ms) if ms < NOW_MS + HOUR), "{past:?}");
    s.answers(ask, found(end));
    s.elapses(HOUR / 2);
    let (_, past) = s.steps_to().unwrap();
    let Past::TimeMs(ms) = past else { panic!() };
    assert!((end..end + HOUR).contains(&ms), "what was written since is let go of");
}

/// Nobody wrote since a clock was set back: a time of then was looked up among what the wrong clock had told.
#[test]
fn behind_a_step_back_times_begin_anew_before_one_is_looked_up() {
    let (mut s, _) = Scene::begins(HOUR);
    s.passes(SECOND);
    s.write(true, 1, 1, 1);
    s.both_durable();
    s.wall -= 11 * 60 * 1_000_000_000;
    let wall_ms = s.wall / 1_000_000;
    let actions = s.retains(Some(HOUR), Some(under_way(Past::TimeMs(wall_ms - SECOND))));
    begin_anew(&actions, Moment::at_wall(s.wall));
    assert!(searches(&actions).is_empty(), "the log has to have that first");
    let asked = searches(&s.both_durable()).pop().unwrap();
    assert_eq!((asked.now, asked.last), (Moment::at_wall(s.wall), s.r.version));

    // An answer of before is none.
    let (mut s, _) = Scene::begins(HOUR);
    s.write(true, 1, 1, 1);
    s.both_durable();
    let asked = searches(&s.retains(Some(HOUR), Some(under_way(Past::TimeMs(wall_ms))))).pop().unwrap();
    s.wall -= 11 * 60 * 1_000_000_000;
    begin_anew(&s.passes(SECOND), Moment::at_wall(s.wall));
    assert!(pins(&s.answers(asked, at(1))).is_empty());

    // The clock of the head before was ahead.
    let mut s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(Some(Version(1)))));
    let now = s.now;
    s.r.head.as_mut().unwrap().window.goes_on_from((NOW_MS + HOUR) * 1_000_000, None, now);
    let actions = s.retains(Some(HOUR), Some(under_way(Past::TimeMs(NOW_MS - SECOND))));
    begin_anew(&actions, Moment::from_ms(NOW_MS));
}

/// A clock was set back, and when it came near to what it had said before, it was taken for one that stands still.
#[test]
fn a_clock_that_was_set_back_goes_on_from_there() {
    let (mut s, _) = Scene::goes_on(NOW_MS, HOUR, Some(Moment::from_ms(NOW_MS - HOUR)));
    s.wall -= 30 * 60 * 1_000_000_000;
    begin_anew(&s.write(true, 1, 1, 1), Moment::at_wall(s.wall));
    s.wall += 20 * 60 * 1_000_000_000 + 1_000_000_000;
    assert_eq!(begun(&s.write(true, 2, 1, 1)), [Moment::at_wall(s.wall).lba()]);
}

/// Days without a write were taken for a leap of the clock: the write behind them, which somebody wanted to undo, forgot all
/// times.
#[test]
fn days_of_rest_are_no_leap() {
    let (mut s, _) = Scene::begins(35 * 24 * HOUR);
    s.write(true, 1, 1, 1);
    for _ in 0..11 * 24 {
        for ask in asks(&s.passes(HOUR)) {
            s.answers(ask, gone());
        }
        s.both_durable();
    }
    s.elapses(HOUR / 2);
    assert_eq!(begun(&s.write(true, 2, 1, 1)), [Moment::at_wall(s.wall).lba()]);
    // Also of a state that says nothing for so long.
    s.r.info = None;
    for _ in 0..11 * 24 {
        s.passes(HOUR);
    }
    assert_eq!(begun(&s.write(true, 3, 1, 1)), [Moment::at_wall(s.wall).lba()]);
}

#[test]
fn a_window_does_not_begin_behind_a_cut() {
    let mut s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(None)));
    let u = UnderWay { id: ID, is_alone: false, is_decided: false, reported: None, is_confirmed: false, past: None };
    assert_eq!(pins(&s.retains(Some(HOUR), Some(u))).len(), 1, "it is cut");
    assert!(pins(&s.passes(SECOND)).is_empty());
}

fn under_way(past: Past) -> UnderWay {
    UnderWay { id: ID, is_alone: true, is_decided: false, reported: None, is_confirmed: false, past: Some(past) }
}

/// Questions for snapshots.
fn searches(actions: &[Action]) -> Vec<PastAsk> {
    let all = asks(actions).into_iter();
    all.filter(|a| matches!(a.wanted, Wanted::At { snapshot: Some(_), .. })).collect()
}

#[test]
fn a_snapshot_of_the_past_pins_what_the_log_finds() {
    let past = Past::TimeMs(NOW_MS - 5000);
    let u = under_way(past);
    let (mut s, _) = Scene::begins(HOUR);
    s.write(true, 1, 1, 1);
    assert!(searches(&s.retains(Some(HOUR), Some(u))).is_empty(), "the log has not all that was ordered");
    let mut actions = s.both_durable();
    actions.extend(s.passes(SECOND));
    let asked = searches(&actions);
    assert_eq!((asked.len(), asked[0].wanted), (1, Wanted::At { past, snapshot: Some(ID) }));
    assert!(searches(&s.passes(20 * SECOND)).is_empty(), "one question at a time");
    assert!(asks(&s.passes(SECOND)).is_empty(), "the window does not move meanwhile");
    // Writes go on.
    assert_eq!(ordered(&s.write(true, 2, 1, 1)), [2]);
    assert!(pins(&s.answers(PastAsk { view: ViewNumber(1), ..asked[0] }, at(5))).is_empty(), "of another view");
    let actions = s.answers(asked[0], at(5));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Past(Pin { version: Version(5), snapshot: ID }));
    assert!(pins(&s.answers(asked[0], at(5))).is_empty(), "once");
    assert_eq!(ordered(&s.write(true, 3, 1, 1)), [3], "nothing is held");
    let sequence = s.r.last.sequence;
    let actions = s.both_durable();
    let Some(CutWord::Cut { version, sequence: cut, .. }) = words(&actions).first() else { panic!("{actions:?}") };
    assert!(*version == Version(5) && *cut < sequence);
}

/// The log was asked as of a clock that had gone on since, and what had been ordered meanwhile was not in it yet: the snapshot
/// lacked what was there at that time.
#[test]
fn a_time_is_looked_up_when_all_that_was_before_it_is_in_the_log() {
    let (mut s, _) = Scene::begins(HOUR);
    s.passes(SECOND);
    let past = Past::TimeMs(NOW_MS + SECOND + 300);
    s.retains(Some(HOUR), Some(under_way(past)));
    assert!(searches(&s.passes(200)).is_empty(), "it has not come yet");
    s.write(true, 1, 1, 1);
    let now = NOW_MS + SECOND + 350;
    assert!(searches(&s.passes(150)).is_empty(), "the log has not all that was ordered");
    s.elapses(700);
    s.write(true, 2, 1, 1);
    let asked = searches(&s.both_durable());
    assert_eq!(asked[0].now, Moment::at_wall(now * 1_000_000), "what came later may not be there");
}

#[test]
fn a_place_that_is_not_there_fails_the_snapshot_with_the_reason() {
    let past = Past::Version(Version(3));
    let pinned = |by| Ok(Found::Version(PastVersion { version: Version(3), pinned: Some(SnapshotId(by)), next: None }));
    let ends = [
        (gone(), Some("outside of the window")),
        (pinned(2), Some("number 2")),
        (pinned(5), None),
        (Err(Error::retry("")), None),
    ];
    for (found, word) in ends {
        let mut s = leading();
        s.wall = NOW_MS * 1_000_000;
        let asked = searches(&s.retains(Some(HOUR), Some(under_way(past))));
        let actions = s.answers(asked[0], found);
        assert!(pins(&actions).is_empty());
        let why =
            words(&actions).into_iter().find_map(|w| if let CutWord::Fails { why, .. } = w { Some(why) } else { None });
        assert_eq!(why.is_some(), word.is_some());
        assert!(why.is_none_or(|why| why.contains(word.unwrap())), "{why:?}");
        assert!(word.is_some() || searches(&s.passes(SECOND)).len() == 1, "it is asked again");
    }
    // A time at which another snapshot was made, and nothing since: the present is as that was.
    let mut s = leading();
    let u = under_way(Past::TimeMs(0));
    assert!(searches(&s.retains(Some(HOUR), Some(under_way(Past::TimeMs(1500))))).is_empty(), "it has not come yet");
    let asked = searches(&s.retains(Some(HOUR), Some(u)));
    let last = Ok(Found::Version(PastVersion { version: s.r.version, pinned: Some(SnapshotId(2)), next: None }));
    assert_eq!(pins(&s.answers(asked[0], last))[0].1, PinUpdate::Snapshot(ID));
    // The one that an earlier head has pinned for this snapshot is taken as it is.
    let mut s = leading();
    let asked = searches(&s.retains(Some(HOUR), Some(under_way(past))));
    let own = Ok(Found::Version(PastVersion { version: Version(3), pinned: Some(ID), next: None }));
    assert_eq!(pins(&s.answers(asked[0], own))[0].1, PinUpdate::Past(Pin { version: Version(3), snapshot: ID }));
}

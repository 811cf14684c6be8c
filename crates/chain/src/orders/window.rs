//! The retention window at a head: its begin, its steps and its end, moments, and snapshots of the past.

use super::cuts::{ordered, pins, words};
use super::*;
use crate::event::{CutWord, PastAsk, ShardSnapshots, UnderWay};
use crate::timing;
use freebs_format::{ExtentKind, Pin, PinUpdate};
use freebs_lsvd::PastVersion;
use freebs_types::{Error, ErrorKind, Moment, Past, Result, SnapshotId, limits};
use std::sync::Arc;

const ID: SnapshotId = SnapshotId(7);
const HOUR: u64 = 3600 * 1000;
/// Some time in 2026, milliseconds since 1970.
const NOW_MS: u64 = 1_795_000_000_000;

impl Scene {
    /// A head of a shard that keeps so much of its past.
    fn retains(&mut self, ms: Option<u64>, under_way: Option<UnderWay>) -> Vec<Action> {
        let kept = Arc::new(under_way.iter().map(|u| u.id).collect());
        let snapshots = ShardSnapshots { kept, under_way, spared: SnapshotId(3), as_of: ViewNumber(2), retain_ms: ms };
        self.r.info = Some(ShardInfo { snapshots, ..info(1024) });
        self.play(|r, ctx| r.see_to_snapshots(ctx)).1
    }

    fn ticks_at(&mut self, wall_ms: u64) -> Vec<Action> {
        self.wall = wall_ms * 1_000_000;
        self.now = self.now.plus(timing::WINDOW_EVERY);
        self.play(|r, ctx| r.head_tick(ctx)).1
    }

    fn answers(&mut self, ask: PastAsk, retain: Option<u64>, found: Result<PastVersion>) -> Vec<Action> {
        self.play(|r, ctx| r.on_past_found(ctx, ask, retain.map(Version), found)).1
    }
}

/// The questions to the log.
fn asks(actions: &[Action]) -> Vec<PastAsk> {
    let of = |a: &Action| if let Action::FindPast(ask) = a { Some(*ask) } else { None };
    actions.iter().filter_map(of).collect()
}

fn at(version: u64) -> Result<PastVersion> {
    Ok(PastVersion { version: Version(version), pinned: None })
}

fn gone() -> Result<PastVersion> {
    Err(Error::not_found("outside of the window"))
}

/// Addresses behind those of blocks that appended frames name: kind, version and range.
fn moments(actions: &[Action]) -> Vec<(ExtentKind, Version, BlockRange)> {
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

#[test]
fn a_window_begins_steps_and_ends() {
    let mut s = leading();
    s.retains(None, None);
    assert!(asks(&s.ticks_at(NOW_MS)).is_empty(), "a state that says nothing changes nothing");
    s.retains(Some(HOUR), None);
    let asked = asks(&s.ticks_at(NOW_MS));
    let past = Past::TimeMs(NOW_MS - HOUR);
    assert_eq!(asked, [PastAsk { shard: SHARD, past, now: Moment::from_ms(NOW_MS), snapshot: None }]);
    let version = s.r.version;
    let actions = s.answers(asked[0], None, gone());
    assert_eq!(pins(&actions), [(version.next(), PinUpdate::Retain(version))]);
    let forgotten = moments(&actions);
    let before = |m: Moment| m.before(Moment::from_ms(NOW_MS));
    let ranges: Vec<BlockRange> = forgotten.iter().map(|m| m.2).collect();
    assert_eq!(ranges, before(Moment::from_ms(NOW_MS)), "nothing is known of what was before");
    assert!(forgotten.iter().all(|m| m.0 == ExtentKind::Trim));
    assert!(pins(&s.answers(asked[0], None, gone())).is_empty(), "once");
    s.both_durable();

    // An hour later what was in force then is the first that is kept.
    let now = NOW_MS + HOUR + 5000;
    let asked = asks(&s.ticks_at(now));
    assert_eq!(asked[0].past, Past::TimeMs(now - HOUR));
    let first = version.0 + 1;
    for n in 1..=40 {
        s.write(true, n, 1, 1);
    }
    s.both_durable();
    let actions = s.answers(asked[0], Some(first), at(first + 20));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Retain(Version(first + 20)));
    let ranges: Vec<BlockRange> = moments(&actions).iter().map(|m| m.2).collect();
    assert_eq!(ranges, Moment::from_ms(now - HOUR).before(Moment::from_ms(now)));
    assert!(pins(&s.answers(asked[0], Some(first + 20), at(first + 21))).is_empty(), "that is the step's own update");
    assert!(pins(&s.answers(asked[0], Some(first), at(first + 19))).is_empty(), "it never begins earlier again");

    // It ends, and is asked of no more when that is durable.
    s.retains(Some(0), None);
    let asked = asks(&s.ticks_at(now + HOUR));
    assert_eq!(pins(&s.answers(asked[0], Some(first + 20), gone()))[0].1, PinUpdate::Release(Version(0)));
    s.both_durable();
    let asked = asks(&s.ticks_at(now + 2 * HOUR));
    assert!(pins(&s.answers(asked[0], None, gone())).is_empty());
    assert!(asks(&s.ticks_at(now + 3 * HOUR)).is_empty());
}

#[test]
fn the_first_update_of_a_moment_says_so_and_the_clock_never_goes_back() {
    let mut s = leading();
    s.retains(Some(HOUR), None);
    s.wall = NOW_MS * 1_000_000;
    let mut seen = Vec::new();
    for (n, step) in (1..).zip([0, 10, 89, 1, 0, 100, 0]) {
        s.wall += step * 1_000_000;
        let version = s.r.version;
        let actions = s.write(true, n, 1, 1);
        assert_eq!(ordered(&actions), [n]);
        seen.extend(moments(&actions).into_iter().map(|(kind, v, range)| {
            assert_eq!((kind, v, range.len), (ExtentKind::Zero, version.next(), 1), "in front of the write");
            range.start
        }));
    }
    let m = Moment::from_ms(NOW_MS);
    assert_eq!(seen, [m.lba(), m.next().lba(), m.next().next().lba()]);
    let last = s.wall;
    s.wall -= 60 * 1_000_000_000;
    let behind = s.write(true, 20, 1, 1);
    assert!(moments(&behind).is_empty(), "a clock that goes back");
    assert_eq!(s.r.tail[&s.r.last.sequence].wall, last);
    s.retains(Some(0), None);
    s.wall = last + 1_000_000_000;
    assert!(moments(&s.write(true, 21, 1, 1)).is_empty(), "nothing is kept");
}

#[test]
fn a_snapshot_of_the_past_pins_what_the_log_finds() {
    let past = Past::TimeMs(NOW_MS - 5000);
    let u =
        UnderWay { id: ID, is_alone: true, is_decided: false, reported: None, is_confirmed: false, past: Some(past) };
    let mut s = leading();
    s.wall = NOW_MS * 1_000_000;
    s.write(true, 1, 1, 1);
    assert!(asks(&s.retains(Some(HOUR), Some(u))).is_empty(), "the log has not all that was ordered");
    let mut actions = s.both_durable();
    actions.extend(s.ticks_at(NOW_MS));
    let asked = asks(&actions);
    assert_eq!((asked.len(), asked[0].past, asked[0].snapshot), (1, past, Some(ID)));
    assert!(asks(&s.retains(Some(HOUR), Some(u))).is_empty(), "once");
    assert!(asks(&s.ticks_at(NOW_MS)).iter().all(|a| a.snapshot.is_some()), "the window does not move meanwhile");
    // Writes go on.
    assert_eq!(ordered(&s.write(true, 2, 1, 1)), [2]);
    let actions = s.answers(asked[0], Some(2), at(5));
    assert_eq!(pins(&actions)[0].1, PinUpdate::Past(Pin { version: Version(5), snapshot: ID }));
    assert!(pins(&s.answers(asked[0], Some(2), at(5))).is_empty(), "once");
    assert_eq!(ordered(&s.write(true, 3, 1, 1)), [3], "nothing is held");
    let sequence = s.r.last.sequence;
    let actions = s.both_durable();
    let Some(CutWord::Cut { version, sequence: cut, .. }) = words(&actions).first() else { panic!("{actions:?}") };
    assert!(*version == Version(5) && *cut < sequence);
}

#[test]
fn a_place_that_is_not_there_fails_the_snapshot_with_the_reason() {
    let past = Past::Version(Version(3));
    let u =
        UnderWay { id: ID, is_alone: true, is_decided: false, reported: None, is_confirmed: false, past: Some(past) };
    let other = Ok(PastVersion { version: Version(3), pinned: Some(SnapshotId(5)) });
    for (found, word) in
        [(gone(), Some("outside of the window")), (other, Some("number 5")), (Err(Error::retry("")), None)]
    {
        let mut s = leading();
        s.wall = NOW_MS * 1_000_000;
        let asked = asks(&s.retains(Some(HOUR), Some(u)));
        let actions = s.answers(asked[0], Some(2), found);
        assert!(pins(&actions).is_empty());
        let why =
            words(&actions).into_iter().find_map(|w| if let CutWord::Fails { why, .. } = w { Some(why) } else { None });
        assert_eq!(why.is_some(), word.is_some());
        assert!(why.is_none_or(|why| why.contains(word.unwrap())), "{why:?}");
    }
    // A time at which another snapshot was made, and nothing since: the present is as that was.
    let mut s = leading();
    s.wall = NOW_MS * 1_000_000;
    let asked = asks(&s.retains(Some(HOUR), Some(UnderWay { past: Some(Past::TimeMs(NOW_MS)), ..u })));
    let last = Ok(PastVersion { version: s.r.version, pinned: Some(SnapshotId(5)) });
    assert_eq!(pins(&s.answers(asked[0], Some(2), last))[0].1, PinUpdate::Snapshot(ID));
    // The one that an earlier head has pinned for this snapshot is taken as it is.
    let mut s = leading();
    let asked = asks(&s.retains(Some(HOUR), Some(u)));
    let own = Ok(PastVersion { version: Version(3), pinned: Some(ID) });
    assert_eq!(
        pins(&s.answers(asked[0], Some(2), own))[0].1,
        PinUpdate::Past(Pin { version: Version(3), snapshot: ID })
    );
    assert_eq!(gone().unwrap_err().kind, ErrorKind::NotFound);
}

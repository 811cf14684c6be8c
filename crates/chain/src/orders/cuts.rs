//! Snapshots at a head: cut, hold, report, confirm, and pins that nobody needs (rules S1, S2, E6).

use super::*;
use crate::event::{CutWord, ShardSnapshots, UnderWay};
use crate::timing;
use freebs_format::{Pin, PinUpdate};
use freebs_types::SnapshotId;
use std::collections::BTreeSet;
use std::sync::Arc;

const ID: SnapshotId = SnapshotId(7);

fn under_way() -> UnderWay {
    UnderWay { id: ID, is_alone: false, is_decided: false, reported: None, is_confirmed: false, past: None }
}

impl Scene {
    /// A head that is told of its shard's snapshots.
    fn hears(&mut self, kept: &[u64], under_way: Option<UnderWay>) -> Vec<Action> {
        let kept: BTreeSet<SnapshotId> = kept.iter().map(|n| SnapshotId(*n)).collect();
        self.hears_as_of(2, kept, under_way)
    }

    /// By a state in which this view is active.
    fn hears_as_of(&mut self, as_of: u64, kept: BTreeSet<SnapshotId>, under_way: Option<UnderWay>) -> Vec<Action> {
        let as_of = ViewNumber(as_of);
        let snapshots =
            ShardSnapshots { kept: Arc::new(kept), under_way, spared: SnapshotId(3), as_of, retain_ms: None };
        self.r.info = Some(ShardInfo { snapshots, ..info(1024) });
        self.play(|r, ctx| {
            r.snapshots_changed();
            r.see_to_snapshots(ctx);
        })
        .1
    }

    /// So much time passes, and the head looks.
    fn looks_after(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now.plus(Nanos::from_millis(ms));
        self.play(|r, ctx| r.head_tick(ctx)).1
    }
}

pub(super) fn words(actions: &[Action]) -> Vec<&CutWord> {
    let mut words = Vec::new();
    for action in actions {
        if let Action::Cut(word) = action {
            words.push(word);
        }
    }
    words
}

/// Pins in appended frames, with the versions of the updates.
pub(super) fn pins(actions: &[Action]) -> Vec<(Version, PinUpdate)> {
    let mut pins = Vec::new();
    for action in actions {
        if let Action::Append(Record::Frame(frame)) = action {
            pins.extend(frame.head.updates().filter_map(|u| Some((u.version, u.pin?))));
        }
    }
    pins
}

/// Numbers of the requests in appended frames, in order.
pub(super) fn ordered(actions: &[Action]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for action in actions {
        if let Action::Append(Record::Frame(frame)) = action {
            numbers.extend(frame.head.updates().filter(|u| u.driver.0 > 0).map(|u| u.number.0));
        }
    }
    numbers
}

#[test]
fn a_head_cuts_holds_reports_and_goes_on_when_all_have() {
    let mut s = leading();
    s.write(true, 1, 1, 1);
    let version = s.r.version;
    let actions = s.hears(&[7], Some(under_way()));
    assert_eq!(pins(&actions), [(version.next(), PinUpdate::Snapshot(ID))]);
    assert!(words(&actions).is_empty(), "it is not committed");
    assert!(pins(&s.hears(&[7], Some(under_way()))).is_empty(), "once in a view");
    let sequence = s.r.last.sequence;
    for n in 2..=4 {
        assert!(ordered(&s.write(true, n, 1, 1)).is_empty(), "{n} waits");
    }
    let actions = s.both_durable();
    let view = ViewNumber(2);
    let cut = CutWord::Cut { shard: SHARD, snapshot: ID, view, version: version.next(), sequence };
    assert_eq!(words(&actions), [&cut]);
    assert!(ordered(&actions).is_empty());
    assert!(words(&s.looks_after(20)).is_empty());
    assert_eq!(words(&s.looks_after(timing::CUT_AGAIN.millis())), [&cut], "it may not have been heard");
    let reported = UnderWay { reported: Some(view), ..under_way() };
    assert!(words(&s.hears(&[7], Some(reported))).is_empty() && s.r.holds());
    let decided = UnderWay { is_decided: true, ..reported };
    let actions = s.hears(&[7], Some(decided));
    let held = CutWord::Held { shard: SHARD, snapshot: ID, view };
    assert_eq!(words(&actions), [&held]);
    assert_eq!(ordered(&actions), [2, 3, 4], "all that waited, in order");
    assert!(words(&s.hears(&[7], Some(UnderWay { is_confirmed: true, ..decided }))).is_empty());
    assert!(pins(&s.hears(&[7], None)).is_empty());
    let next = UnderWay { id: SnapshotId(8), ..under_way() };
    assert_eq!(pins(&s.hears(&[7, 8], Some(next))).len(), 1, "the next one");
}

/// Writers never wait for a control plane that is away; and whoever went on does not say that it had held.
#[test]
fn a_head_holds_for_so_long_and_then_fails_it() {
    for mutant in [None, Some(Mutant::ConfirmsWithoutHold)] {
        let mut s = leading();
        s.mutant = mutant;
        s.hears(&[7], Some(under_way()));
        s.both_durable();
        s.write(true, 1, 1, 1);
        let actions = s.looks_after(timing::HOLD_MAX.millis() - 1);
        assert!(ordered(&actions).is_empty());
        let actions = s.looks_after(1);
        assert_eq!(ordered(&actions), [1]);
        assert!(matches!(words(&actions)[..], [CutWord::Fails { snapshot: ID, .. }]), "{actions:?}");
        let decided = UnderWay { is_decided: true, reported: Some(ViewNumber(2)), ..under_way() };
        s.hears(&[7], Some(decided));
        let actions = s.looks_after(timing::CUT_AGAIN.millis());
        let confirms = words(&actions).iter().any(|w| matches!(w, CutWord::Held { .. }));
        assert_eq!(confirms, mutant.is_some());
    }
}

#[test]
fn a_snapshot_of_one_shard_holds_nobody() {
    let mut s = leading();
    let actions = s.hears(&[7], Some(UnderWay { is_alone: true, ..under_way() }));
    assert_eq!(pins(&actions).len(), 1);
    assert_eq!(ordered(&s.write(true, 1, 1, 1)), [1]);
    assert!(matches!(words(&s.both_durable())[..], [CutWord::Cut { .. }]));
    assert!(words(&s.looks_after(timing::HOLD_MAX.millis())).iter().all(|w| matches!(w, CutWord::Cut { .. })));
}

#[test]
fn what_is_not_committed_is_not_reported() {
    for mutant in [None, Some(Mutant::CutsBeforeCommitted)] {
        let mut s = leading();
        s.mutant = mutant;
        s.hears(&[7], Some(under_way()));
        assert_eq!(words(&s.looks_after(20)).is_empty(), mutant.is_none());
    }
}

#[test]
fn a_head_that_does_not_hold_is_noticed() {
    let mut s = leading();
    s.mutant = Some(Mutant::OrdersBehindCuts);
    s.hears(&[7], Some(under_way()));
    assert_eq!(ordered(&s.write(true, 1, 1, 1)), [1]);
}

/// The cut of an earlier view is reported: this head has nothing to do with it, and does not cut again.
#[test]
fn what_another_head_has_cut_is_not_cut_again() {
    let mut s = leading();
    assert!(pins(&s.hears(&[7], Some(UnderWay { reported: Some(ViewNumber(1)), ..under_way() }))).is_empty());
    assert!(pins(&s.hears(&[7], Some(UnderWay { is_decided: true, ..under_way() }))).is_empty());
    assert_eq!(ordered(&s.write(true, 1, 1, 1)), [1]);
}

#[test]
fn a_full_device_fails_a_snapshot() {
    let mut s = leading();
    s.r.info = Some(ShardInfo {
        snapshots: ShardSnapshots { under_way: Some(under_way()), as_of: ViewNumber(2), ..ShardSnapshots::default() },
        ..info(1024)
    });
    let (_, actions) = s.play(|r, ctx| {
        ctx.room = 0;
        r.see_to_snapshots(ctx);
    });
    assert!(pins(&actions).is_empty());
    assert!(matches!(words(&actions)[..], [CutWord::Fails { why, .. }] if why.contains("full")), "{actions:?}");
}

/// The state is from before this view: the cut of the view before may have been reported since.
#[test]
fn a_head_does_nothing_by_a_state_of_before_its_view() {
    let mut s = leading();
    let pin = Pin { version: Version(1), snapshot: SnapshotId(5) };
    let actions = s.hears_as_of(1, BTreeSet::new(), Some(under_way()));
    assert!(pins(&actions).is_empty() && pins(&s.looks_after(20)).is_empty());
    assert!(pins(&s.play(|r, ctx| r.on_pins(ctx, &[pin])).1).is_empty());
    assert_eq!(pins(&s.hears(&[7], Some(under_way()))).len(), 1);
    // Nor does one that is told nothing more hold for ever.
    s.write(true, 1, 1, 1);
    s.hears_as_of(1, BTreeSet::new(), None);
    assert!(ordered(&s.looks_after(timing::HOLD_MAX.millis() - 1)).is_empty());
    assert_eq!(ordered(&s.looks_after(1)), [1]);
    assert!(pins(&s.hears(&[7], Some(under_way()))).is_empty(), "once in a view");
}

/// A promise to another head ends it: nothing is held back that a view change needs, and nothing is said any more.
#[test]
fn a_head_that_promised_a_view_says_nothing() {
    let mut s = leading();
    s.hears(&[7], Some(under_way()));
    s.play(|r, ctx| r.on_seal(ctx, LinkId(2), (ViewNumber(3), ViewNumber(2)), None));
    assert!(!s.r.is_active_head());
    assert!(words(&s.both_durable()).is_empty() && words(&s.looks_after(timing::HOLD_MAX.millis())).is_empty());
}

#[test]
fn pins_go_that_no_snapshot_needs() {
    let all = [(1, 0), (2, 3), (3, 5), (4, 6), (5, 7), (6, 6)];
    let all = all.map(|(version, id)| Pin { version: Version(version), snapshot: SnapshotId(id) });
    for mutant in [None, Some(Mutant::ReleasesWhatIsKept)] {
        let mut s = leading();
        s.mutant = mutant;
        s.hears(&[6, 7], None);
        let asked = s.looks_after(20);
        assert!(asked.iter().any(|a| matches!(a, Action::ListPins { shard: SHARD })), "{asked:?}");
        let (_, actions) = s.play(|r, ctx| r.on_pins(ctx, &all));
        let gone: Vec<u64> = pins(&actions)
            .iter()
            .map(|(_, p)| match p {
                PinUpdate::Release(v) => v.0,
                other => panic!("{other:?}"),
            })
            .collect();
        if mutant.is_some() {
            assert_eq!(gone, [1, 2, 3, 4, 5, 6]);
            continue;
        }
        assert_eq!(
            gone,
            [3, 4],
            "no snapshot 5; an older pin of 6; not those of the library, or from before a rebuild"
        );
        s.hears(&[6, 7], None);
        assert!(!s.looks_after(20).iter().any(|a| matches!(a, Action::ListPins { .. })), "not before that is durable");
        s.both_durable();
        s.looks_after(20);
        let (_, actions) = s.play(|r, ctx| r.on_pins(ctx, &all));
        assert!(pins(&actions).is_empty(), "once each");
    }
}

/// A state in which its view is not active may be older than the pins' snapshots.
#[test]
fn pins_stay_while_the_state_does_not_name_the_view() {
    let mut s = leading();
    s.hears(&[], None);
    s.r.info = Some(info(1024));
    assert!(!s.looks_after(20).iter().any(|a| matches!(a, Action::ListPins { .. })));
    let pin = Pin { version: Version(1), snapshot: SnapshotId(5) };
    assert!(pins(&s.play(|r, ctx| r.on_pins(ctx, &[pin])).1).is_empty());
}

//! Slices of views that were followed by others.

use super::*;
use freebs_format::wire::Given;
use freebs_lsvd::ShardState;

fn shared(view: u64) -> Box<ViewSecret> {
    let keys = [1, 2, 3].map(|n| (NodeId(n), host_key(n).public()));
    let made = freebs_secrets::share(&Hash32([3; 32]), ClusterId([1; 16]), (SHARD, ViewNumber(view)), 2, &keys);
    let made = made.expect("three members");
    Box::new(ViewSecret { threshold: 2, point: made.point, pred_secret: Hash32::default(), slices: made.slices })
}

/// A head opened view 2 while a member's key was not known, so that its frame has no slices and says no secret. It never
/// became active, and nobody could follow view 1 any more, whose slices are all there.
#[test]
fn a_view_without_slices_does_not_hide_those_of_the_view_before() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open_with(1, Some(shared(1))));
    s.take(c.plain());
    let slice = s.r.slice_for(ViewNumber(1), NodeId(3));
    assert!(slice.is_some());
    s.take(c.open(2));
    assert_eq!(s.r.slice_for(ViewNumber(1), NodeId(3)), slice);
    s.cut(2);
    assert_eq!(s.r.slice_for(ViewNumber(1), NodeId(3)), slice, "the frame of view 2 was cut");
    s.cut(0);
    assert_eq!(s.r.slice_for(ViewNumber(1), NodeId(3)), None, "that of view 1, too");
}

/// The same after a restart.
#[test]
fn the_view_before_is_known_after_a_restart() {
    let mut c = Chain::new();
    let (one, two) = (c.open_with(1, Some(shared(1))), c.open(2));
    let body = |f: &Frame| ViewBody::decode(f.head.body()).expect("made above");
    let state = ShardState {
        shard: SHARD,
        last: FrameName { view: c.view, sequence: c.last.sequence, hid: c.last.hid },
        view: Some((two.head.seq(), body(&two))),
        views_before: vec![(ViewNumber(1), one.head.seq(), body(&one))],
        ..ShardState::default()
    };
    let mut s = Scene::new(2);
    s.r = Replica::recovered(&state, Vec::new(), Some(two.head.clone()), Damage::default());
    assert!(matches!(s.play(|r, ctx| r.give(ctx, ViewNumber(1), None)).0, Given::Slice(_)));
}

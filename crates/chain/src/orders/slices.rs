//! Slices of views that were followed by others.

use super::*;
use freebs_format::wire::{Given, SealAnswer};
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

/// A log that lacks a view's frame does not say whether this node was the head of a view without slices. What it gives then may
/// be no secret of that view, and must not stand in the way of the slice that is sent later.
#[test]
fn a_guess_counts_only_if_the_frame_names_it() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open_with(1, Some(shared(1))));
    let given = |s: &mut Scene, sent| s.play(|r, ctx| r.give_or_guess(ctx, ViewNumber(2), sent)).0;
    let guess = Given::Secret(view_secret(&Hash32::default(), SHARD, ViewNumber(2)));
    assert_eq!(given(&mut s, None), Given::Nothing, "nobody has said that view 2 was ever active");
    s.r.info = Some(info(1024));
    assert_eq!(given(&mut s, None), guess);
    assert_eq!(s.play(|r, ctx| r.give_or_guess(ctx, ViewNumber(3), None)).0, Given::Nothing, "a view to come");
    assert_eq!(s.play(|r, ctx| r.give(ctx, ViewNumber(2), None)).0, Given::Nothing, "it counts for nothing here");
    let sent = shared(2);
    assert!(matches!(given(&mut s, Some((sent.point, sent.slices[1]))), Given::Slice(_)));
    assert_eq!(given(&mut s, Some((sent.point, sent.slices[0]))), Given::Nothing, "a slice of another member's");

    // At the head: without the frame, with it, and with the frame of another secret.
    let answer =
        |s: &Scene, has_pred, given| SealAnswer { has_pred, given, ..s.r.seal_answer(ViewNumber(3), ViewNumber(2)) };
    assert_eq!(s.r.counted(&answer(&s, false, guess)), Given::Nothing);
    assert_eq!(s.r.counted(&answer(&s, true, guess)), guess, "its log has the frame");
    s.take(c.open(2));
    let right = Given::Secret(c.secret());
    assert_eq!(s.r.counted(&answer(&s, false, right)), right);
    assert_eq!(s.r.counted(&answer(&s, false, Given::Secret(Hash32([9; 32])))), Given::Nothing);
}

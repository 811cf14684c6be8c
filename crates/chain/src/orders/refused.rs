//! Frames that the log refuses, and what a cut makes untrue: the state of a chunk, and answers that wait for company.

use super::*;
use crate::replica::Client;

/// The log refused a frame, which nobody heard, and took the one behind it: the member answered for both.
#[test]
fn what_the_log_refuses_is_not_covered_by_what_lies_behind_it() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    (0..3).for_each(|_| s.take(c.plain()));
    s.r.clients.insert(LinkId(9), Client { generation: Generation(0), is_attached: false });
    let answers = |s: &mut Scene, sequence| {
        let (_, actions) = s.play(|r, ctx| r.on_frame_durable(ctx, Sequence(sequence)));
        actions.iter().filter(|a| matches!(a, Action::Send { message: Message::Durable(_), .. })).count()
    };
    assert_eq!((answers(&mut s, 2), s.r.durable), (1, Sequence(2)));
    s.play(|r, ctx| r.on_refused(ctx, Sequence(3), "made up"));
    assert_eq!((answers(&mut s, 4), s.r.durable), (0, Sequence(2)));
    assert!(s.r.stopped.is_some() && s.r.seal_answer(ViewNumber(2), ViewNumber(1)).damaged);
    // The refused frame is cut: this log does without it.
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    s.cut(1);
    s.play(|r, ctx| r.on_refused(ctx, Sequence(2), "made up"));
    assert_eq!(s.r.stopped, None);
}

/// A log was cut and fed its map: the place of the next block that went with it was that of a frame that had been cut, and
/// the learner took the frames that followed for ones over blocks that were written.
#[test]
fn a_cut_forgets_how_far_the_chunk_was_filled() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.data(BLOCK));
    s.take(c.data(4 * BLOCK));
    s.cut(2);
    assert_eq!(s.r.chunk, (ChunkId { view: ViewNumber(1), counter: 0 }, 0));
}

/// An answer waits a moment for company. In that moment the member got the frame of the next view by SYNC, without having
/// been asked to promise it, and was durable in it; then the old head heard how far it was in the old view, with a frame
/// that it had cut.
#[test]
fn an_answer_that_waits_does_not_outlive_its_view() {
    let played = |act: fn(&mut Replica, &mut Ctx<'_>, Frame)| {
        let mut s = Scene::new(2);
        let mut c = Chain::new();
        s.take(c.open(1));
        s.take(c.plain());
        let mut next = Chain { ..c };
        s.take(c.plain());
        s.r.clients.insert(LinkId(9), Client { generation: Generation(0), is_attached: false });
        let (_, actions) = s.play(|r, ctx| {
            r.on_frame_durable(ctx, Sequence(3));
            act(r, ctx, next.open(2));
            ctx.out.flush(ctx.now.plus(crate::timing::HEAD_ANSWER_DELAY), ctx.peers);
        });
        let answers = actions.into_iter().filter_map(|a| match a {
            Action::Send { to, message: Message::Durable(items) } => Some((to.0, items[0].view.0, items[0].sequence.0)),
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    assert_eq!(played(|_, _, _| ()), [(9, 1, 3), (1, 1, 3)], "driver and head");
    assert_eq!(played(|r, ctx, frame| assert!(r.on_synced_frame(ctx, frame, ViewNumber(2)))), []);
    assert_eq!(played(|r, ctx, _| r.cut(ctx, Sequence(2))), [], "frame 3 is not there any more");
}

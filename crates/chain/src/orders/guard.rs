//! A member that somebody has taken over stops nobody else, and takes nothing from them.

use super::*;
use freebs_format::wire::HeartbeatItem;

/// A member with four frames, the first of which opens the view, and another frame with the third one's place.
fn follower() -> (Scene, Frame) {
    let (mut s, mut c) = (Scene::new(2), Chain::new());
    s.take(c.open(1));
    let first = c.data(BLOCK);
    s.take(first);
    let mut forger = Chain { view: c.view, last: c.last, token: c.token, committed: 0 };
    let forged = forger.data(2 * BLOCK);
    for _ in 0..2 {
        s.take(c.data(BLOCK));
    }
    s.durable(4);
    (s, forged)
}

#[test]
fn a_frame_that_differs_stops_a_member_by_the_heads_word_alone() {
    let (mut s, forged) = follower();
    let last = s.r.last;
    let of = forged.clone();
    let (_, actions) = s.play(|r, ctx| r.hear_frame(ctx, peer(3), of));
    assert!(s.r.stopped.is_none() && s.r.last == last, "another member may have made it up");
    assert_eq!(sync_requests(&actions).len(), 1, "the head is asked");
    let of = forged.clone();
    let (_, actions) = s.play(|r, ctx| r.hear_frame(ctx, peer(3), of));
    assert!(sync_requests(&actions).is_empty(), "once");
    s.play(|r, ctx| r.hear_frame(ctx, peer(1), forged));
    assert!(s.r.stopped.is_some(), "W6");
}

#[test]
fn only_the_head_says_what_is_committed_and_only_the_asked_one_answers() {
    let (mut s, _) = follower();
    let beat = HeartbeatItem {
        shard: SHARD,
        view: ViewNumber(1),
        last: Sequence(4),
        committed: Sequence(4),
        keep: Sequence(4),
    };
    let before = s.r.committed;
    let (_, actions) = s.play(|r, ctx| r.hear_heartbeat(ctx, peer(3), &beat));
    assert!(s.r.committed == before && !actions.iter().any(|a| matches!(a, Action::Keep { .. })));
    s.play(|r, ctx| r.ask(ctx, peer(1), ViewNumber(1), Sequence(u64::MAX)));
    let id = s.r.asking.expect("it asks").id;
    let (view, mode, common) = (ViewNumber(1), SyncMode::Level, Sequence(1));
    let cuts = SyncReply { shard: SHARD, view, id, mode, common, map_next: MapPoint::NONE, frames: Vec::new() };
    let of = cuts.clone();
    s.play(|r, ctx| r.hear_sync_reply(ctx, peer(3), of));
    assert_eq!(s.r.last.sequence, Sequence(4), "it was not asked");
    s.play(|r, ctx| r.hear_heartbeat(ctx, peer(1), &beat));
    assert_eq!(s.r.committed, Sequence(4));
    s.play(|r, ctx| r.hear_sync_reply(ctx, peer(1), cuts));
    assert!(s.r.stopped.is_some(), "what is committed is never cut");
}

/// Whoever can have itself asked can answer that most of the log is not common.
#[test]
fn a_member_that_has_itself_asked_takes_nothing_that_is_committed() {
    let (mut s, _) = follower();
    let (_, actions) = s.play(|r, ctx| r.hear_nudge(ctx, peer(3), LinkId(3), ViewNumber(1)));
    assert!(sync_requests(&actions).is_empty(), "it is not the head");
    s.play(|r, ctx| r.note_committed(ctx, Sequence(4)));
    // Of a newer view it may be.
    let (_, actions) = s.play(|r, ctx| r.hear_nudge(ctx, peer(3), LinkId(3), ViewNumber(2)));
    let id = sync_requests(&actions).first().expect("it is asked").id;
    let (view, mode, common) = (ViewNumber(2), SyncMode::Level, Sequence(1));
    let cuts = SyncReply { shard: SHARD, view, id, mode, common, map_next: MapPoint::NONE, frames: Vec::new() };
    s.play(|r, ctx| r.hear_sync_reply(ctx, peer(3), cuts));
    assert!(s.r.stopped.is_none() && s.r.last.sequence == Sequence(4));
    let (_, actions) = s.play(|r, ctx| r.hear_nudge(ctx, peer(1), LinkId(1), ViewNumber(1)));
    assert_eq!(sync_requests(&actions).len(), 1);
}

/// A head that had lost frames asked the other members for them, and their answers, which go on from a frame in front of the
/// damage, were taken for ones that cut what is committed: it stayed damaged for ever.
#[test]
fn an_answer_for_lost_frames_cuts_nothing() {
    let (mut s, other) = members_with_a_hole();
    let name = |f: &Frame| FrameName { view: ViewNumber(1), sequence: f.head.seq(), hid: f.header().hid() };
    let end = Some(other.log[3].header().hid());
    s.r.damage = Damage::new(vec![Hole { before: name(&other.log[1]), until: Sequence(4), end }], false);
    let mut put_back = Vec::new();
    for _ in 0..200 {
        s.now = s.now.plus(Nanos::from_millis(20));
        let (_, actions) = s.play(|r, ctx| r.member_tick(ctx));
        let asked = actions.into_iter().find_map(|a| match a {
            Action::Send { to: LinkId(3), message: Message::Sync(q) } => Some(q),
            _ => None,
        });
        let Some(q) = asked else { continue };
        let frames = other.log[2..4].to_vec();
        let (view, mode, common) = (ViewNumber(1), SyncMode::Frames, Sequence(2));
        let reply = SyncReply { shard: SHARD, view, id: q.id, mode, common, map_next: MapPoint::NONE, frames };
        let (_, actions) = s.play(|r, ctx| r.hear_sync_reply(ctx, peer(3), reply));
        put_back.extend(actions.iter().filter_map(|a| match a {
            Action::Append(Record::Repair(f)) => Some(f.head.seq().0),
            _ => None,
        }));
        break;
    }
    assert_eq!(put_back, [3, 4]);
}

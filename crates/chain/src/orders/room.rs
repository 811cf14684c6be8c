//! Room for writes (W7): who finds none waits for what is on its way, and is refused when nothing is.

use super::*;

impl Scene {
    /// The head waits as long as it waits for room, of which its own log has so much.
    pub(super) fn ticks(&mut self, room: u64) -> Vec<Action> {
        let mut all = Vec::new();
        for wait in [0, 200] {
            self.now = self.now.plus(Nanos::from_millis(wait));
            let (_, actions) = self.play(|r, ctx| {
                ctx.room = room;
                r.head_tick(ctx);
            });
            all.extend(actions);
        }
        all
    }
}

/// A head refused a write for want of room while others were on their way to its disk: when these were durable there was
/// room again, because a part of the log's open segment was theirs all the time, or because they had replaced what
/// cleaning then emptied.
#[test]
fn a_write_waits_for_those_on_their_way_to_the_heads_disk() {
    for has_room in [true, false] {
        let mut s = leading();
        let last = s.r.last.sequence;
        s.write(true, 2, 2, 1);
        assert_eq!(reason(&s.write(false, 3, 2, 1)), None, "one is on its way");
        assert_eq!(reason(&s.ticks(0)), None);
        s.play(|r, ctx| {
            ctx.room = 0;
            r.on_frame_durable(ctx, last.next());
        });
        assert_eq!(reason(&s.ticks(0)), None, "it is not committed: nothing that it replaced is free yet");
        assert_eq!(s.r.last.sequence, last.next(), "it waits");
        // Nor has the log heard of the commit in this moment.
        let (_, actions) = s.play(|r, ctx| {
            ctx.room = 0;
            r.head_member_durable(ctx, NodeId(2), &answer(2, last.0 + 1, None));
        });
        assert_eq!(reason(&actions), None);
        let actions = s.ticks(if has_room { u64::MAX } else { 0 });
        assert_eq!(reason(&actions), (!has_room).then_some(Refusal::NoSpace));
        assert_eq!(s.r.last.sequence.0, last.0 + 1 + u64::from(has_room));
    }
}

/// Writes of another shard took the rest of the head's room, and would be durable in a moment.
#[test]
fn a_write_waits_for_those_of_other_shards() {
    let mut s = leading();
    let last = s.r.last.sequence;
    s.write(false, 2, 2, 1);
    for _ in 0..20 {
        s.now = s.now.plus(Nanos::from_millis(20));
        let (_, actions) = s.play(|r, ctx| {
            (ctx.room, ctx.sharers) = (0, 2);
            r.head_tick(ctx);
        });
        assert_eq!(reason(&actions), None);
    }
    assert_eq!((reason(&s.ticks(0)), s.r.last.sequence), (Some(Refusal::NoSpace), last));
}

/// A member had all frames and no room. What they replaced there is free for cleaning when the member knows that they
/// are committed: until then it has not said its last word.
#[test]
fn a_write_waits_for_members_that_wait_for_a_commit() {
    let mut s = leading();
    let last = s.r.last.sequence.0;
    let members = &mut s.r.head.as_mut().unwrap().members;
    members.iter_mut().for_each(|m| m.live = m.node == NodeId(3));
    s.write(true, 2, 2, 1);
    let tell = |s: &mut Scene, bytes| {
        let item = answer(2, last + 1, Some(Room::new(bytes, false)));
        s.play(|r, ctx| r.head_member_durable(ctx, NodeId(3), &item)).1
    };
    tell(&mut s, 0);
    assert_eq!(reason(&s.write(true, 3, 2, 1)), None);
    assert_eq!(reason(&s.ticks(u64::MAX)), None, "a frame is not committed");
    s.durable(last + 1);
    assert_eq!((s.r.committed.0, reason(&tell(&mut s, 0))), (last + 1, None), "the member does not know it yet");
    assert_eq!((reason(&tell(&mut s, 1 << 20)), s.r.last.sequence.0), (None, last + 2));
    s.durable(last + 2);
    let item = answer(2, last + 2, Some(Room::new(0, false)));
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(3), &item));
    assert_eq!(reason(&s.write(true, 4, 2, 1)), None);
    assert_eq!(reason(&s.ticks(u64::MAX)), Some(Refusal::NoSpace));
}

/// W7: a log that was making room had none for a moment, and writes were refused that it would soon have taken.
#[test]
fn writes_wait_for_a_log_that_makes_room() {
    let mut s = leading();
    let last = s.r.last.sequence;
    s.more_soon = true;
    assert_eq!(reason(&s.write(false, 2, 1, 1)), None);
    assert_eq!(reason(&s.write(false, 3, 1, 1)), None);
    assert_eq!(s.r.last.sequence, last, "they wait");
    s.play(|r, ctx| r.head_tick(ctx));
    assert_eq!(s.r.last.sequence, last.next(), "and are ordered when there is room");
    s.both_durable();
    // Once there is no hope, they are told.
    assert_eq!(reason(&s.write(false, 4, 1, 1)), None);
    s.more_soon = false;
    assert_eq!(reason(&s.ticks(0)), Some(Refusal::NoSpace));
}

/// W7: the head knew of its own room only, and a member with a smaller device, or one that other volumes filled, ran
/// over.
#[test]
fn writes_wait_or_fail_for_members_that_have_no_room() {
    let mut s = leading();
    let last = s.r.last.sequence.0;
    let tell = |s: &mut Scene, sequence: u64, bytes: u64, more_soon: bool| {
        let item = answer(2, sequence, Some(Room::new(bytes, more_soon)));
        s.play(|r, ctx| r.head_member_durable(ctx, NodeId(3), &item)).1
    };
    // A member that is passed over has no say.
    tell(&mut s, last, 0, false);
    assert_eq!(reason(&s.write(true, 2, 1, 1)), None);
    assert_eq!(s.r.last.sequence.0, last + 1);
    s.both_durable();
    let members = &mut s.r.head.as_mut().unwrap().members;
    members.iter_mut().for_each(|m| m.live = m.node != NodeId(1));
    assert_eq!(reason(&tell(&mut s, last + 1, 0, false)), None);
    s.durable(last + 1);
    assert_eq!(reason(&s.write(true, 3, 1, 1)), None);
    assert_eq!(reason(&s.ticks(u64::MAX)), Some(Refusal::NoSpace));
    // It makes room: who writes waits, and goes on when there is some.
    tell(&mut s, last + 1, 0, true);
    assert_eq!(reason(&s.write(true, 4, 4, 1)), None);
    assert_eq!(s.r.last.sequence.0, last + 1, "it waits");
    tell(&mut s, last + 1, 1 << 20, true);
    assert_eq!(s.r.last.sequence.0, last + 2);
    // 1 MiB is told, and as much is under way: no more before the next answer.
    s.write(true, 5, 4, 255);
    assert_eq!(s.r.last.sequence.0, last + 3);
    assert_eq!(reason(&s.write(true, 6, 4, 1)), None);
    assert_eq!(s.r.last.sequence.0, last + 3, "it waits");
    s.durable(last + 3);
    assert_eq!(reason(&tell(&mut s, last + 3, 0, false)), None);
    assert_eq!(reason(&s.ticks(u64::MAX)), Some(Refusal::NoSpace), "there is no hope");
    // A silent one is passed over and forgotten; trims need no room.
    assert_eq!(reason(&s.write(true, 7, 7, 1)), None);
    tell(&mut s, last + 3, 0, false);
    assert_eq!(reason(&s.ticks(u64::MAX)), Some(Refusal::NoSpace));
    s.r.head.as_mut().unwrap().members.iter_mut().for_each(|m| m.live = false);
    assert_eq!(reason(&s.write(true, 8, 8, 1)), None);
    assert_eq!(s.r.last.sequence.0, last + 4);
}

/// A member said that it makes room, or that it has none, and stood still then. Nothing was under way to it, so it was not
/// passed over, and a client's write waited for as long as it stood still, or was refused.
#[test]
fn a_member_that_falls_silent_about_its_room_is_passed_over() {
    for more_soon in [true, false] {
        for is_silent in [true, false] {
            let mut s = leading();
            let last = s.r.last.sequence.0;
            let item = answer(2, last, Some(Room::new(0, more_soon)));
            s.r.head.as_mut().unwrap().members.iter_mut().for_each(|m| m.live = m.node != NodeId(1));
            s.play(|r, ctx| r.head_member_durable(ctx, NodeId(3), &item));
            s.now = s.now.plus(Nanos::from_millis(1000));
            assert_eq!(reason(&s.write(true, 2, 1, 1)), None);
            let (mut asked, mut refused) = (0, None);
            for _ in 0..40 {
                s.now = s.now.plus(Nanos::from_millis(20));
                let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
                refused = refused.or(reason(&actions));
                let heartbeat = |a: &Action| matches!(a, Action::Keep { .. });
                if actions.iter().any(heartbeat) {
                    asked += 1;
                    if !is_silent {
                        s.play(|r, ctx| r.head_member_durable(ctx, NodeId(3), &item));
                    }
                }
            }
            let is_ordered = s.r.last.sequence.0 == last + 1;
            let is_live = s.r.head.as_ref().unwrap().members.iter().any(|m| m.node == NodeId(3) && m.live);
            assert!(asked > 3 || refused.is_some(), "{asked} heartbeats");
            assert_eq!((is_ordered, is_live), (is_silent, !is_silent), "more soon: {more_soon}");
            assert_eq!(refused.is_some(), !is_silent && !more_soon, "refused by what it says, not by what it said");
        }
    }
}

/// A member that is short of room answers each heartbeat, and one that is not stays silent.
#[test]
fn members_that_are_short_of_room_answer_heartbeats() {
    for (room, answers) in [(0, true), (u64::MAX, false)] {
        let mut s = Scene::new(2);
        let mut c = Chain::new();
        s.take(c.open(1));
        s.durable(1);
        let (last, view) = (s.r.last.sequence, s.r.view_number());
        let beat = |s: &mut Scene| {
            let item = HeartbeatItem { shard: SHARD, view, last, committed: last, keep: last };
            s.play(|r, ctx| {
                ctx.room = room;
                r.on_heartbeat(ctx, Peer { node: NodeId(1), worker: 0 }, &item);
                ctx.out.gathers_for()
            })
            .0
        };
        s.play(|r, ctx| {
            ctx.room = room;
            r.answer_durable(ctx);
        });
        beat(&mut s);
        assert_eq!(beat(&mut s) > 0, answers);
    }
}

/// W7: members say what their log takes, and say it again when it was short and has changed.
#[test]
fn members_tell_the_head_of_their_room() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.open(2));
    s.durable(2);
    assert_eq!(s.r.told_room, Some(Room::new(u64::MAX, false)));
    let tick = |s: &mut Scene, room: u64, sharers: u64, more_soon: bool| {
        let before = s.r.told_room.take().unwrap();
        s.r.told_room = Some(before);
        s.more_soon = more_soon;
        s.play(|r, ctx| {
            (ctx.room, ctx.sharers) = (room, sharers);
            r.member_tick(ctx);
        });
        s.r.told_room.filter(|r| *r != before)
    };
    assert_eq!(tick(&mut s, 100 << 20, 1, false), None, "there is plenty");
    assert_eq!(tick(&mut s, 60 << 20, 2, false), Some(Room::new(30 << 20, false)), "the device is for all");
    assert_eq!(tick(&mut s, 61 << 20, 2, false), None, "that is as good as before");
    assert_eq!(tick(&mut s, 61 << 20, 2, true), Some(Room::new(61 << 19, true)));
    assert_eq!(tick(&mut s, 70_000, 1, true), Some(Room::new(65536, true)));
    assert_eq!(tick(&mut s, 60_000, 1, true), Some(Room::new(0, true)), "none at all is another thing");
    assert_eq!(tick(&mut s, u64::MAX, 1, false), Some(Room::new(u64::MAX, false)));
    assert_eq!(tick(&mut s, u64::MAX, 1, true), None);
}

//! Answers that seal a view, and answers that do not.

use super::*;
use crate::event::{Event, NoteKind, SyncSource};
use crate::replica::{OpenView, TailEntry};
use freebs_format::wire::SyncRequest;
use freebs_types::Error;

/// The head of a shard that never had an active view lost an append. There was nobody to compare its log with, nor
/// anything to find, and the first view was never opened.
#[test]
fn damage_before_the_first_view_does_not_count() {
    let mut s = Scene::new(1);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.durable(1);
    s.r.damage = Damage::new(vec![Hole { before: genesis(), until: Sequence(1), end: None }], true);
    s.play(|r, ctx| r.become_head(ctx));
    s.proposed(0);
    assert_eq!((s.r.last.view, s.r.last.sequence), (ViewNumber(2), Sequence(1)));
    assert!(!s.r.damage.is_there());
}

/// V2: a member whose device was lost answers with an empty log. It was counted, and with it frames that only the
/// lost device and the third member held could be sealed away.
#[test]
fn an_empty_log_does_not_seal() {
    for mutant in [None, Some(Mutant::EmptyLogsCount)] {
        let (mut s, good) = opening();
        s.mutant = mutant;
        let empty = SealAnswer { last: genesis(), has_pred: false, ..good };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), empty));
        assert_eq!(s.r.last.view == ViewNumber(1), mutant.is_none(), "one log is no quorum's");
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        assert_eq!(s.r.last.view, ViewNumber(2));
    }
}

/// V2: an empty log that never had anything is one of a member that has answered nothing. If its device has lost something,
/// nobody knows, and without the promise it may still answer.
#[test]
fn an_empty_log_of_a_member_that_learns_seals() {
    for (learns, damaged, promised, seals) in
        [(3, false, 2, true), (2, false, 2, false), (3, true, 2, false), (3, false, 1, false)]
    {
        let (mut s, good) = opening_with(vec![NodeId(learns)]);
        let promised = ViewNumber(promised);
        let empty = SealAnswer { last: genesis(), has_pred: false, damaged, promised, ..good };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), empty));
        assert_eq!(s.r.last.view == ViewNumber(2), seals, "{learns} {damaged} {promised}");
    }
}

/// A member that is new in the view has a log of what was lost by force before it, and has not heard of that yet. It knows
/// frames to be committed there that the view does not have: no log could be sealed for as long as it did not begin anew.
#[test]
fn what_a_log_without_the_view_knows_is_no_floor() {
    let (mut s, good) = opening_with(vec![NodeId(3)]);
    let name = FrameName { view: ViewNumber(0), sequence: Sequence(118), ..genesis() };
    let old = SealAnswer { last: name, has_pred: false, committed: Sequence(118), ..good };
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), old));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
}

/// A new member was fed frames by a head whose view did not become active, and by the next one, which had given them up, it was
/// not fed any more: it would have had to cut two of them. As a member of the next view only it seals nothing with them.
#[test]
fn who_seals_nothing_is_fed_by_map_though_it_has_frames_of_the_active_view() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    s.durable(3);
    assert!(s.r.is_opening_head());
    let request = SyncRequest {
        early: false,
        lacks: false,
        shard: SHARD,
        view: ViewNumber(2),
        id: 8,
        names: vec![FrameName { hid: Hash32([4; 32]), ..good.last }],
        until: Sequence(u64::MAX),
        map_from: MapPoint::NONE,
        map_since: Sequence(0),
        lost: false,
        fetch: false,
        past: Version(0),
    };
    let forced = Forced { survivors: vec![NodeId(3)], least: Sequence(1), known: Sequence(1), gives_up: 0 };
    for (view_members, forced, is_fed) in
        [(vec![1, 2], None, true), (vec![1, 3], None, false), (vec![1, 2], Some(forced), false)]
    {
        let view_members = view_members.into_iter().map(NodeId).collect();
        let active = ViewNumber(1);
        s.r.info = Some(ShardInfo { active, known: active, view_members, forced, ..info(1024) });
        s.r.committed = Sequence(1);
        let (_, actions) = s.play(|r, ctx| r.feed_by_map(ctx, LinkId(3), request.clone(), Sequence(0)));
        let reads = actions.iter().any(|a| matches!(a, Action::MapRead { .. }));
        assert_eq!((reads, actions.len()), (is_fed, 1));
    }
}

/// V12: node 3 had left the chain of the active view, and has all of the one before. Its answer was counted for the seal, and
/// what nodes 1 and 2 had answered since could be sealed away.
#[test]
fn who_left_seals_nothing() {
    for mutant in [None, Some(Mutant::LeftOnesSeal)] {
        let (mut s, good) = opening();
        s.mutant = mutant;
        if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
            opened.pred_members = [1, 2, 4, 5].map(NodeId).to_vec();
            opened.pred_quorum = 3;
        }
        let wrong = mutant.is_some();
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
        assert_eq!(s.r.last.view == ViewNumber(2), wrong);
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        assert_eq!(s.r.last.view, ViewNumber(2), "two of those that are members are enough");
    }
}

/// V8: after a rebuild of the control state nobody knows which start of a node that was not looked at is the newest. Its log
/// is whole, and may be that of yesterday: an answered write that only the third member had would have been sealed away.
#[test]
fn a_log_that_may_be_an_old_image_seals_nothing() {
    for unseen in [false, true] {
        let (mut s, good) = opening();
        if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
            opened.pred_unseen = if unseen { vec![NodeId(3)] } else { Vec::new() };
        }
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
        assert_eq!(s.r.last.view == ViewNumber(2), !unseen);
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        assert_eq!(s.r.last.view, ViewNumber(2), "two of those that count are enough");
    }
}

/// A shard stood still although two of three members answered: the log of one might be an old image. Nothing said so.
#[test]
fn a_head_that_waits_says_what_for() {
    let (mut s, good) = opening();
    if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
        opened.pred_unseen = vec![NodeId(3)];
    }
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
    let told = |s: &mut Scene, ms| {
        s.now = s.now.plus(Nanos::from_millis(ms));
        let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
        let note = |a| match a {
            Action::Note(n) if n.kind == NoteKind::Waits => Some((n.shard, n.text)),
            _ => None,
        };
        actions.into_iter().filter_map(note).collect::<Vec<_>>()
    };
    assert_eq!((told(&mut s, 200), s.r.waits()), (vec![], None), "others may come soon");
    let text = "it waits: to leave view 1, 2 answers are needed, and 1 count; node 2 does not answer; node 3 does not count: the \
                rebuild of the control state did not look at it, and its log may be an old one";
    assert_eq!(told(&mut s, 3000), [(Some(SHARD), format!("shard {SHARD}: {text}"))]);
    assert_eq!(s.r.waits().as_deref(), Some(text));
    assert_eq!(told(&mut s, 3000), [], "once is enough");
    // Another one comes, and does not count either.
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { damaged: true, ..good }));
    assert_eq!(told(&mut s, 200).len(), 1);
    assert!(s.r.waits().is_some_and(|w| w.contains("node 2 does not count: its log has lost something")));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!((s.r.last.view, s.r.waits()), (ViewNumber(2), None));

    // Enough answers count, and none of these logs has what was answered.
    let (mut s, good) = opening();
    let damaged = SealAnswer { committed: Sequence(4), damaged: true, ..good };
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), damaged));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
    assert_eq!(told(&mut s, 3000).len(), 1);
    assert!(
        s.r.waits().is_some_and(|w| w.contains("no log that counts has frame 4 of view 1, which was answered; node 2"))
    );
}

/// A view frame said that its view follows itself, or a later one. Each step to the view before it led to the same one
/// again: the next seal was never answered, not after a restart either, and the worker did nothing else.
#[test]
fn a_view_follows_an_older_one() {
    for pred in [4, 5, u64::MAX] {
        let mut s = Scene::new(2);
        let mut c = Chain { view: ViewNumber(pred), ..Chain::new() };
        let frame = c.open(4);
        let took = s.play(|r, ctx| r.on_synced_frame(ctx, frame.clone(), ViewNumber(4))).0;
        assert!(!took && s.r.is_empty_log(), "view 4 after view {pred}");
        // A log may have such a frame from before.
        let body = ViewBody::decode(frame.head.body()).expect("a view");
        s.r.last = TailEntry::of(&frame.head).name;
        s.r.view = Some(OpenView { number: ViewNumber(4), sequence: Sequence(1), body });
        let answer = s.r.seal_answer(ViewNumber(9), ViewNumber(2));
        assert_eq!((answer.damaged, answer.has_pred, answer.last), (true, false, genesis()));
    }
}

/// V4: two views were opened on top of view 1, the first of them by a head that a rebuild of the control state had told to
/// go on from, and neither became active. Another rebuild went back to view 1, and asked for that. The log said that it has
/// nothing of view 1, and counted: an answered write that was on three of four members was sealed away.
#[test]
fn views_on_top_of_each_other_leave_what_lies_below_all_of_them() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    s.take(c.open(2));
    s.take(c.open(3));
    let answered = |s: &Scene, pred| {
        let a = s.r.seal_answer(ViewNumber(4), ViewNumber(pred));
        (a.last.view, a.last.sequence, a.has_pred, a.damaged)
    };
    assert_eq!(answered(&s, 3), (ViewNumber(3), Sequence(4), true, false));
    assert_eq!(answered(&s, 2), (ViewNumber(2), Sequence(3), true, false));
    assert_eq!(answered(&s, 1), (ViewNumber(1), Sequence(2), true, false));
    // The newest frame was cut, and there is no view on top any more.
    s.cut(3);
    assert_eq!(answered(&s, 1), (ViewNumber(1), Sequence(2), true, false));
    // After a restart, too; and if one of the frames is not known, the log does not count.
    let names = |views: &[&Frame]| {
        views
            .iter()
            .map(|f| (f.head.view(), f.head.seq(), ViewBody::decode(f.head.body()).expect("made here")))
            .collect::<Vec<_>>()
    };
    let mut c = Chain::new();
    let one = c.open(1);
    let (_, two, three) = (c.plain(), c.open(2), c.open(3));
    for (before, counts) in [(names(&[&one, &two]), true), (names(&[&one]), false)] {
        let newest = names(&[&three]).remove(0);
        let state = freebs_lsvd::ShardState {
            shard: SHARD,
            last: FrameName { view: c.view, sequence: c.last.sequence, hid: c.last.hid },
            view: Some((newest.1, newest.2)),
            views_before: before,
            ..Default::default()
        };
        s.r = Replica::recovered(&state, Vec::new(), Some(three.head.clone()), Damage::default());
        let (view, sequence, has_pred, damaged) = answered(&s, 1);
        assert_eq!((has_pred, damaged), (counts, !counts));
        assert!(!counts || (view, sequence) == (ViewNumber(1), Sequence(2)));
    }
}

/// The new member could not learn by map, because the head was not active, and the head could not become active without the
/// new member.
#[test]
fn an_opening_head_feeds_by_map_who_need_not_cut() {
    // A log with nothing, one with something of the active view, and one of a view before it.
    for (view, last, is_fed) in [(0, 0, true), (2, 2, false), (1, 2, true)] {
        let (mut s, good) = opening();
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        s.durable(3);
        s.r.committed = Sequence(2);
        assert!(s.r.is_opening_head() && !s.r.is_active_head());
        s.r.info = Some(ShardInfo { active: ViewNumber(2), known: ViewNumber(2), ..info(1024) });
        let name = |sequence| FrameName { view: ViewNumber(view), sequence: Sequence(sequence), ..genesis() };
        let request = SyncRequest {
            early: false,
            lacks: false,
            shard: SHARD,
            view: ViewNumber(2),
            id: 8,
            names: if last > 0 { vec![name(last), name(0)] } else { vec![name(0)] },
            until: Sequence(u64::MAX),
            map_from: MapPoint::NONE,
            map_since: Sequence(0),
            lost: false,
            fetch: false,
            past: Version(0),
        };
        let source = SyncSource { common: Sequence(0), frames: Err(Error::not_found("given up")) };
        let (_, actions) = s.play(|r, ctx| r.answer_sync(ctx, LinkId(3), &request, source));
        let reads = |a: &Action| matches!(a, Action::MapRead { upto: Sequence(2), since: Sequence(0), .. });
        assert_eq!(actions.iter().any(reads), is_fed, "{actions:?}");
    }
}

/// The last survivor of a chain had a committed frame of which the head, or data that were written over since, could not be
/// read. New members asked for it again and again, and the view that they were to hold never became active. What is still
/// in force of such a frame is in the map; one that may be cut yet is asked of others.
#[test]
fn a_committed_frame_that_cannot_be_read_is_given_by_map() {
    for (common, until, is_fed) in [(0, u64::MAX, true), (1, u64::MAX, true), (2, u64::MAX, false), (1, 2, false)] {
        let (mut s, good) = opening();
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        s.durable(3);
        s.r.committed = Sequence(2);
        let request = SyncRequest {
            early: false,
            lacks: false,
            shard: SHARD,
            view: ViewNumber(2),
            id: 8,
            names: vec![FrameName { view: ViewNumber(1), sequence: Sequence(common), ..genesis() }],
            until: Sequence(until),
            map_from: MapPoint::NONE,
            map_since: Sequence(0),
            lost: false,
            fetch: false,
            past: Version(0),
        };
        let source = SyncSource { common: Sequence(common), frames: Err(Error::corrupt("no frame header here")) };
        let (_, actions) = s.play(|r, ctx| r.answer_sync(ctx, LinkId(3), &request, source));
        let is_map = |a: &Action| matches!(a, Action::MapRead { upto: Sequence(2), since, .. } if since.0 == common);
        let is_refused = |a: &Action| matches!(a, Action::Send { message: Message::SyncReply(r), .. } if r.mode == SyncMode::Refused);
        let seen = (actions.iter().any(is_map), actions.iter().any(is_refused), s.r.damage.holes.len());
        assert_eq!(seen, (is_fed, !is_fed, usize::from(common == 2)), "from {common} to {until}: {actions:?}");
    }
}

/// A device that has lost something may have lost all that it had of a shard, and then its empty log looks like a new one.
#[test]
fn an_empty_log_on_a_device_that_lost_something_is_doubtful() {
    for has_lost in [false, true] {
        let mut host = Host::new(config(3, None));
        host.set_lost_something(has_lost);
        host.add(Replica::empty(SHARD));
        let damaged = host.with(SHARD, |r, _| r.seal_answer(ViewNumber(2), ViewNumber(1)).damaged);
        assert_eq!(damaged, Some(has_lost));
    }
    let mut s = Scene::new(2);
    s.r.is_doubtful = true;
    s.take(Chain::new().open(1));
    assert!(!s.r.seal_answer(ViewNumber(2), ViewNumber(1)).damaged, "what it has now is what the chain has");
}

/// A promise may have been all that it had. The head of the view that was left by it gives it what it lacks, and counted on it.
#[test]
fn a_log_that_may_have_lost_a_promise_serves_no_view_before_it() {
    for (lost, highest, serves) in [(false, 2, true), (true, 2, false), (true, 1, true)] {
        let mut s = Scene::new(2);
        s.r.is_doubtful = lost;
        let (_, actions) = s.play(|r, ctx| r.doubt_promises(ctx, ViewNumber(highest)));
        let is_durable = actions.iter().any(|a| {
            matches!(a, Action::Append(Record::Mark { change, .. }) if change.promised == Some(ViewNumber(highest)))
        });
        assert_eq!(is_durable, lost, "highest {highest}");
        s.take(Chain::new().open(1));
        s.durable(1);
        assert_eq!(s.r.serves(), serves, "lost {lost}, highest {highest}");
    }
    // So does an empty log on a device that lost something.
    let mut host = Host::new(config(2, None));
    host.set_lost_something(true);
    host.add(Replica::empty(SHARD));
    host.step(Nanos(1), Event::Shards(vec![ShardInfo { highest: ViewNumber(7), ..info(1024) }]));
    assert_eq!(host.with(SHARD, |r, _| r.may_have_promised()), Some(ViewNumber(7)));
}

/// V3: what node 2 and the old head had committed is named by node 2 alone, whose log is damaged. Node 3's counts, although
/// it has lost its end without a trace. Sealed at the longest log that counts, it would be gone.
#[test]
fn nothing_is_sealed_below_what_any_answer_calls_committed() {
    for mutant in [None, Some(Mutant::SealsBelowCommitted)] {
        let (mut s, good) = opening();
        s.mutant = mutant;
        let last = FrameName { sequence: Sequence(4), ..good.last };
        let damaged = SealAnswer { last, committed: Sequence(4), damaged: true, ..good };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), damaged));
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
        let sealed_at = (s.r.last.view == ViewNumber(2)).then(|| s.r.view.as_ref().map(|v| v.body.seal_sequence));
        if mutant.is_some() {
            assert_eq!(sealed_at, Some(Some(Sequence(2))), "without the rule it is lost");
            continue;
        }
        assert_eq!(sealed_at, None);
        // As soon as its damage is mended the rest is fetched there.
        let (_, actions) = s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { damaged: false, ..damaged }));
        let asked = sync_requests(&actions);
        assert_eq!((asked.len(), asked[0].until, s.r.last.sequence), (1, Sequence(4), Sequence(2)));
    }
}

/// V3: nor below what is named by an answer that does not count because of its promise. Node 2 had promised a view whose number
/// nobody gives out any more, or not yet the one that it was asked for; its answer was dropped, and with it what it names.
#[test]
fn nothing_is_sealed_below_what_an_answer_of_another_promise_calls_committed() {
    for promised in [ViewNumber(1), ViewNumber(1 << 50)] {
        let (mut s, good) = opening();
        let last = FrameName { sequence: Sequence(4), ..good.last };
        let longer = SealAnswer { last, committed: Sequence(4), ..good };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { promised, ..longer }));
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), good));
        assert_eq!(s.r.last.view, ViewNumber(1), "promised {promised}: sealed below what is committed");
        // A log that reaches it seals.
        let (_, actions) = s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), longer));
        assert_eq!(sync_requests(&actions).iter().map(|r| r.until).collect::<Vec<_>>(), [Sequence(4)]);
    }
}

/// V2: an answer without the promise that was asked for was counted if the promise in it was lower, and not higher.
#[test]
fn an_answer_counts_only_with_the_promise_that_was_asked_for() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { promised: ViewNumber(1), ..good }));
    assert_eq!(s.r.last.view, ViewNumber(1));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
    // Who has a frame of a newer view is not asked for its promise any more, and says so.
    let mut m = Scene::new(2);
    let mut c = Chain::new();
    m.take(c.open(1));
    m.take(c.open(3));
    let answer = m.r.seal_answer(ViewNumber(2), ViewNumber(1));
    assert_eq!((m.r.promise(), answer.promised), (ViewNumber(0), ViewNumber(3)));
}

/// One member had promised a view whose number nobody gives out any more, and each head that it answered began anew, although
/// the others were enough; so did any node's answer, a member or not.
#[test]
fn a_later_promise_of_one_who_is_not_needed_does_not_close_a_head() {
    let beyond = |good: SealAnswer| SealAnswer { promised: ViewNumber(1 << 50), ..good };
    let (mut s, good) = opening();
    for node in [7, 3] {
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(node), beyond(good)));
    }
    assert!(matches!(s.r.head.as_ref().map(|h| &h.phase), Some(crate::open::Phase::Sealing { .. })));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
    // With two of three nothing can be sealed.
    let (mut s, good) = opening();
    for node in [3, 2] {
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(node), beyond(good)));
    }
    assert!(matches!(s.r.head.as_ref().map(|h| &h.phase), Some(crate::open::Phase::Closed)));
}

/// A member that answered with a damaged log was never asked again, and the view never opened, however soon the
/// damage was mended.
#[test]
fn a_mended_log_is_asked_again() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { damaged: true, ..good }));
    assert_eq!(s.r.last.view, ViewNumber(1));
    s.now = s.now.plus(Nanos::from_millis(200));
    let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
    let asks = |a: &Action| matches!(a, Action::Send { to: LinkId(2), message: Message::Seal { .. } });
    assert!(actions.iter().any(asks), "{actions:?}");
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
}

/// A head with a blank log opened a view whose predecessor had a member that was replaced since, and had come back with
/// everything. Neither the head's log nor the chain named that one, so the head had no link to it, and one answer too
/// few.
#[test]
fn a_head_wants_links_to_all_that_may_seal() {
    let mut host = Host::new(config(1, None));
    let info = ShardInfo {
        shard: SHARD,
        members: [1, 3, 2].map(NodeId).to_vec(),
        active: ViewNumber(1),
        known: ViewNumber(1),
        blocks: 1024,
        highest: ViewNumber(2),
        generation: Generation(0),
        has_keys: true,
        joining: vec![NodeId(2)],
        standing: Vec::new(),
        view_members: [4, 1, 3].map(NodeId).to_vec(),
        volume: None,
        forced: None,
        branch: Branch::default(),
        snapshots: ShardSnapshots::default(),
        fork: None,
        flatten: false,
    };
    host.step(Nanos::from_millis(1), Event::Shards(vec![info]));
    assert_eq!(host.wanted_peers().into_iter().collect::<Vec<_>>(), [2, 3, 4].map(peer));
}

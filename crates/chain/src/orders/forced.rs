//! A head that may go on by force: whose answers it needs, and what it does with a log of its own that is not whole (V10).

use super::*;
use crate::event::Event;
use crate::replica::TailEntry;
use freebs_lsvd::{MarkChange, ShardState};

/// Node 1 with frames 1 to 7, of which it knows 1 to `committed` to be so, has lost these, and is the only survivor of
/// view 1.
fn survivor(committed: u64, lost: &[(u64, u64)], suspect: bool, least: u64) -> Scene {
    let forced = Forced {
        survivors: vec![NodeId(1)],
        least: Sequence(least),
        known: Sequence(committed),
        gives_up: lost.iter().map(|(from, until)| until + 1 - from).sum(),
    };
    let mut s = Scene { forced: Some(forced), ..Scene::new(1) };
    let mut c = Chain::new();
    let mut all = vec![c.open(1)];
    all.extend((2..=7).map(|_| c.data(BLOCK)));
    all.iter().for_each(|f| s.take(f.clone()));
    (1..=7).for_each(|n| s.durable(n));
    s.play(|r, ctx| r.note_committed(ctx, Sequence(committed)));
    let name = |n: u64| TailEntry::of(&all[n as usize - 1].head).name;
    let hole = |(from, until): &(u64, u64)| Hole { before: name(from - 1), until: Sequence(*until), end: None };
    s.r.damage = Damage::new(lost.iter().map(hole).collect(), suspect);
    for (from, until) in lost {
        s.r.tail.retain(|n, _| !(*from..=*until).contains(&n.0));
    }
    let forced = s.forced.clone();
    s.r.info = Some(ShardInfo { active: ViewNumber(1), known: ViewNumber(1), forced, ..info(1024) });
    s.play(|r, ctx| r.become_head(ctx));
    s.proposed(1);
    s
}

impl Scene {
    /// Ticks for so long; what was asked of the log.
    fn wait(&mut self, ms: u64) -> Vec<Record> {
        let mut out = Vec::new();
        for _ in 0..ms.div_ceil(20) {
            self.now = self.now.plus(Nanos::from_millis(20));
            let (_, actions) = self.play(|r, ctx| {
                r.member_tick(ctx);
                r.head_tick(ctx);
            });
            out.extend(actions.into_iter().filter_map(|a| if let Action::Append(r) = a { Some(r) } else { None }));
        }
        out
    }
}

/// Cuts, spans that were given up, and a frame with its committed sequence.
type Done = (Vec<u64>, Vec<(u64, u64)>, Option<(u64, u64)>);

/// Where the log was cut, what was given up, and the frame that was appended: its number, and what it says is committed. It
/// begins a branch.
fn done(records: &[Record]) -> Done {
    let (mut cuts, mut given_up, mut frame) = (Vec::new(), Vec::new(), None);
    for r in records {
        match r {
            Record::Cut { to, .. } => cuts.push(to.0),
            Record::Mark { change: MarkChange { learned: Some(l), .. }, .. } => given_up.push((l.since.0, l.upto.0)),
            Record::Frame(f) => {
                assert!(f.head.is_branch());
                frame = Some((f.head.seq().0, f.header().committed_seq().0));
            }
            _ => {}
        }
    }
    (cuts, given_up, frame)
}

/// Node 2 has half of a map as of frame 6, which it asked for in this view.
fn with_half_a_map(asked_in: u64) -> Replica {
    let mut c = Chain::new();
    let view = c.open(1);
    let last = (2..=6).map(|_| c.data(BLOCK)).last().expect("frame 6");
    let mut r = Replica::empty(SHARD);
    crate::testing::step(&mut r, |r, ctx| {
        r.ask(ctx, peer(1), ViewNumber(asked_in), Sequence(u64::MAX));
        let end = crate::testing::map_end(0, &last, &view.head);
        let (id, view) = (r.asking.expect("it asks").id, ViewNumber(asked_in));
        let map_next = MapPoint { from: 3, ..MapPoint::NONE };
        r.on_sync_reply(ctx, SyncReply { id, view, mode: SyncMode::Map, map_next, ..end });
        assert!(r.asking.and_then(|a| a.map).is_some(), "the next piece is asked for");
    });
    r
}

/// A node had learned a part of what was lost by force when its teller was. It had nothing committed, so it kept that: of blocks
/// that only lost frames had written, and of versions that only these pinned, it said other things than the branch.
#[test]
fn half_a_map_of_what_was_lost_is_forgotten() {
    let found = ShardState { shard: SHARD, ahead: Sequence(6), ..ShardState::default() };
    let made: [(&str, &dyn Fn() -> Replica, bool); 3] = [
        ("it asked in view 1", &|| with_half_a_map(1), true),
        ("it asked in the branch", &|| with_half_a_map(2), false),
        ("a start has found it", &|| Replica::recovered(&found, Vec::new(), None, Damage::default()), true),
    ];
    for (what, made, is_old) in made {
        for at in [4, 6] {
            let branch = Branch { view: ViewNumber(2), at: Sequence(at) };
            let word = Forced { survivors: vec![NodeId(1)], least: Sequence(at), known: Sequence(at), gives_up: 0 };
            let of_this = Forced { survivors: vec![NodeId(2)], ..word.clone() };
            let joining = ShardInfo { members: vec![NodeId(1), NodeId(2)], joining: vec![NodeId(2)], ..info(1024) };
            let active = |n| ShardInfo { active: ViewNumber(n), known: ViewNumber(n), ..joining.clone() };
            let news = [
                ("the branch is active", ShardInfo { branch, ..active(2) }, is_old && at < 6),
                ("it is to be", ShardInfo { forced: Some(word), ..active(1) }, at < 6),
                ("it is to be, with this log", ShardInfo { forced: Some(of_this), ..active(1) }, false),
                ("another view is active", active(2), false),
            ];
            for (heard, info, forgets) in news {
                let mut host = Host::new(config(2, None));
                let r = made();
                assert_eq!(r.log_status().committed, Sequence(6), "what is lost is told, too");
                host.add(r);
                host.step(Nanos::from_millis(1), Event::Shards(vec![info]));
                let forgotten = |a: &Action| matches!(a, Action::Append(Record::Forget { .. }));
                let found = host.take_actions().iter().any(forgotten);
                assert_eq!(found, forgets, "{what}, {heard}, from {at} on");
            }
        }
    }
}

/// The first six frames of a chain; the fourth is that of view 2, which begins a branch or not.
fn two_views(is_branch: bool) -> Vec<Frame> {
    let mut c = Chain::new();
    let mut all = vec![c.open(1), c.plain(), c.plain()];
    if is_branch {
        c.token = c.last.hid;
    }
    all.push(c.open(2));
    all.extend([c.plain(), c.plain()]);
    assert_eq!(all[3].head.is_branch(), is_branch);
    all
}

/// The end of a map that was asked for in view 2.
fn ends_map(r: &mut Replica, ctx: &mut Ctx<'_>, chain: &[Frame]) {
    r.ask(ctx, peer(1), ViewNumber(2), Sequence(u64::MAX));
    let end = crate::testing::map_end(0, &chain[5], &chain[3].head);
    let (id, view) = (r.asking.expect("it asks").id, ViewNumber(2));
    r.on_sync_reply(ctx, SyncReply { id, view, ..end });
}

/// Node 2 is to come to view 1, of nodes 1 and 3; one of these goes on by force from frame `least` on, if so.
fn coming(least: Option<u64>) -> ShardInfo {
    let word = |n| Forced { survivors: vec![NodeId(3)], least: Sequence(n), known: Sequence(n), gives_up: 0 };
    ShardInfo {
        members: [3, 2].map(NodeId).to_vec(),
        joining: vec![NodeId(2)],
        standing: Vec::new(),
        view_members: [1, 3].map(NodeId).to_vec(),
        active: ViewNumber(1),
        known: ViewNumber(1),
        forced: least.map(word),
        ..info(1024)
    }
}

fn forgets(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Append(Record::Forget { .. })))
}

/// A node that came learned everything in the view that went on by force, and counted there. It heard of the operator's word
/// only then, and took what it had been told in that view itself for lost: an answered write had a copy less.
#[test]
fn an_old_word_of_force_takes_nothing_from_who_is_in_the_view_behind_it() {
    let (mut r, chain) = (Replica::empty(SHARD), two_views(false));
    crate::testing::step(&mut r, |r, ctx| ends_map(r, ctx, &chain));
    assert_eq!((r.view_number(), r.last.sequence), (ViewNumber(2), Sequence(6)));
    let mut host = Host::new(config(2, None));
    host.add(r);
    host.step(Nanos::from_millis(1), Event::Shards(vec![coming(Some(4))]));
    assert!(!forgets(&host.take_actions()));
}

/// News was put off by which no log begins anew, for as long as a clone read from it: a member that is to keep what it has, and to
/// cut at the seal, heard nothing any more, and did not lead when it was named.
#[test]
fn only_who_learns_begins_anew() {
    let branch = Branch { view: ViewNumber(3), at: Sequence(1) };
    for joins in [false, true] {
        let (mut r, chain) = (Replica::empty(SHARD), two_views(false));
        crate::testing::step(&mut r, |r, ctx| ends_map(r, ctx, &chain));
        let mut host = Host::new(config(2, None));
        host.add(r);
        let view = ViewNumber(3);
        let joining = if joins { vec![NodeId(2)] } else { Vec::new() };
        let info = ShardInfo { active: view, known: view, highest: view, branch, joining, ..info(1024) };
        assert_eq!(host.begins_anew(&info), joins);
        host.step(Nanos::from_millis(1), Event::Shards(vec![info]));
        assert_eq!(forgets(&host.take_actions()), joins);
    }
}

/// The old head is cut off from the control plane, and not from a node that comes. That went on with what it was told there
/// after it had heard that the view is left by force.
#[test]
fn who_has_heard_the_word_does_not_follow_the_view_that_is_left() {
    let asks = |s: &mut Scene, view| {
        let (_, actions) = s.play(|r, ctx| r.on_nudge(ctx, LinkId(1), ViewNumber(view)));
        sync_requests(&actions).len()
    };
    for (info, view, asked) in [(coming(None), 1, 1), (coming(Some(4)), 1, 0), (coming(Some(4)), 2, 1)] {
        let mut s = Scene::new(2);
        s.r.me = Some(NodeId(2));
        s.r.info = Some(info);
        assert_eq!(asks(&mut s, view), asked);
    }
    // A member follows as ever: it may be that the view is sealed as usual.
    let mut s = Scene::new(2);
    s.r.me = Some(NodeId(2));
    s.r.info = Some(ShardInfo { view_members: [1, 2, 3].map(NodeId).to_vec(), ..coming(Some(4)) });
    assert_eq!(asks(&mut s, 1), 1);
    // An answer that was on its way already is not taken, either.
    for (heard, goes_on) in [(coming(None), true), (coming(Some(9)), false)] {
        let mut r = with_half_a_map(1).at(NodeId(2));
        crate::testing::step(&mut r, |r, ctx| r.hear_of_members(ctx, &heard));
        assert_eq!(r.asking.is_some(), goes_on);
    }
}

/// A node had a part of what only the lost members had, and not heard of the operator's word: the map led it into the branch all
/// the same, which what it had of lost frames went into.
#[test]
fn a_map_leads_nobody_past_the_word_of_force() {
    let chain = two_views(true);
    let before = || with_half_a_map(1).at(NodeId(2));
    let branch = Branch { view: ViewNumber(2), at: Sequence(3) };
    let active = ShardInfo { active: ViewNumber(2), known: ViewNumber(2), branch, ..coming(None) };
    let cases = [
        ("nobody has said so", before(), coming(None), false),
        ("it has more", before(), coming(Some(3)), false),
        ("it has nothing", Replica::empty(SHARD).at(NodeId(2)), coming(Some(3)), true),
        ("it has nothing, and the branch is active", Replica::empty(SHARD).at(NodeId(2)), active, true),
    ];
    for (what, mut r, info, takes) in cases {
        r.info = Some(info);
        crate::testing::step(&mut r, |r, ctx| {
            ends_map(r, ctx, &chain);
            let based = crate::testing::appends(&ctx.out.actions).contains(&"base".to_string());
            assert_eq!((based, r.stopped.clone()), (takes, None), "{what}");
        });
        assert_eq!(r.view_number(), ViewNumber(if takes { 2 } else { 0 }), "{what}");
    }
    // Then it hears the word.
    let mut host = Host::new(config(2, None));
    let mut r = before();
    crate::testing::step(&mut r, |r, ctx| ends_map(r, ctx, &chain));
    host.add(r);
    host.step(Nanos::from_millis(1), Event::Shards(vec![coming(Some(3))]));
    assert!(forgets(&host.take_actions()));
}

/// The only log that is left lacks frames that were committed. They are given up, and what followed them stays.
#[test]
fn lost_frames_of_the_only_survivor_are_given_up() {
    let mut s = survivor(6, &[(3, 4)], false, 7);
    let log = s.r.log_status();
    assert_eq!((log.last.sequence, log.lost, log.has_view), (Sequence(7), 2, true));
    // Another survivor may have them.
    assert_eq!(done(&s.wait(9000)), (vec![], vec![], None));
    assert_eq!(done(&s.wait(2000)), (vec![], vec![(2, 4)], None), "that is not durable yet");
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    assert!(s.r.damage.holes.is_empty());
    assert_eq!(done(&s.wait(100)).2, Some((8, 6)));
}

/// A fork that has lost what it reads from its parents gives that up with them. It was a fork still, so that each start found the
/// same again.
#[test]
fn a_fork_that_gives_up_what_it_has_lost_reads_from_no_parent() {
    for is_orphan in [false, true] {
        let mut s = survivor(6, &[(2, 3)], false, 7);
        if is_orphan {
            let mut last = genesis();
            last.sequence = Sequence(2);
            s.r.damage = Damage::default();
            s.r.damage.lose_parents(genesis(), last);
        }
        let records = s.wait(11_000);
        let marks = records.iter().filter_map(|r| match r {
            Record::Mark { change: MarkChange { learned: Some(l), flat, .. }, .. } => {
                Some((l.since.0, l.upto.0, *flat))
            }
            _ => None,
        });
        let want = if is_orphan { (0, 2, true) } else { (1, 3, false) };
        assert_eq!(marks.collect::<Vec<_>>(), [want]);
    }
}

/// Frames behind a hole that is not known to be committed are not gone on from.
#[test]
fn a_log_ends_before_a_hole_that_may_not_be_committed() {
    let mut s = survivor(3, &[(5, 6)], false, 4);
    let log = s.r.log_status();
    assert_eq!((log.last.sequence, log.lost), (Sequence(4), 2));
    assert_eq!(done(&s.wait(11_000)), (vec![4], vec![], Some((5, 3))));
    // Both at once; and less than the operator was told is not sealed.
    let mut s = survivor(4, &[(2, 3), (6, 6)], false, 5);
    assert_eq!(s.r.log_status().last.sequence, Sequence(5));
    assert_eq!(done(&s.wait(11_000)), (vec![5], vec![(1, 3)], None));
    let mut s = survivor(4, &[(2, 3), (6, 6)], false, 6);
    assert_eq!(done(&s.wait(30_000)), (vec![], vec![], None));
}

/// A log of which only the end is doubtful is whole as far as it goes, and from then on it is the chain's.
#[test]
fn a_doubtful_end_is_gone_on_from() {
    let mut s = survivor(3, &[], true, 7);
    let log = s.r.log_status();
    assert_eq!((log.last.sequence, log.lost, log.is_suspect), (Sequence(7), 0, true));
    assert_eq!(done(&s.wait(1100)), (vec![], vec![], Some((8, 3))));
    assert!(!s.r.damage.is_there());
}

/// Without an operator's word a log that is not whole waits.
#[test]
fn nothing_is_given_up_unasked() {
    let mut s = survivor(6, &[(3, 4)], false, 7);
    s.forced = None;
    s.play(|r, ctx| r.yield_to(ctx));
    s.wait(100);
    s.proposed_as(1, 3);
    assert_eq!(done(&s.wait(30_000)), (vec![], vec![], None));
}

/// Node 1, which is in view 1 with frames 1 and 2, has an operator's word to go on with node 4: that is no member of the view,
/// and keeps what it had of it.
fn with_a_keeper() -> (Scene, SealAnswer) {
    let forced = Forced { survivors: vec![NodeId(1), NodeId(4)], least: Sequence(2), known: Sequence(3), gives_up: 0 };
    let mut s = Scene { forced: Some(forced.clone()), ..Scene::new(1) };
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    (1..=2).for_each(|n| s.durable(n));
    s.r.info = Some(ShardInfo { active: ViewNumber(1), known: ViewNumber(1), forced: Some(forced), ..info(1024) });
    s.play(|r, ctx| r.become_head(ctx));
    s.proposed(1);
    let answer = s.r.seal_answer(ViewNumber(2), ViewNumber(1));
    assert_eq!((answer.has_pred, answer.last.sequence), (true, Sequence(2)));
    (s, answer)
}

fn is_closed(s: &Scene) -> bool {
    matches!(s.r.head.as_ref().map(|h| &h.phase), Some(crate::open::Phase::Closed))
}

/// Its answer was passed over, because it is no member of the view: the shard stood still for ever.
#[test]
fn a_survivor_that_is_no_member_counts() {
    let (mut s, _) = with_a_keeper();
    s.mutant = Some(Mutant::ForcedAlone);
    assert_eq!(done(&s.wait(5000)).2.map(|f| f.0), Some(3));
    let (mut s, answer) = with_a_keeper();
    assert_eq!(done(&s.wait(5000)), (vec![], vec![], None), "it is waited for");
    let waits = "it waits: to go on by force all that are left have to promise; node 4 does not answer";
    assert_eq!(s.r.waits().as_deref(), Some(waits));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(5), answer));
    assert_eq!(done(&s.wait(100)).2, None, "nobody named node 5");
    let (_, actions) = s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(4), answer));
    let records = actions.into_iter().filter_map(|a| if let Action::Append(r) = a { Some(r) } else { None });
    assert_eq!(done(&records.collect::<Vec<_>>()).2.map(|f| f.0), Some(3));
}

/// A survivor has promised a later view, and its word is needed: the head closes, and opens a view above that. A member that
/// was lost has promised one: nobody needs it, and the head goes on.
#[test]
fn a_survivor_with_a_later_promise_closes_the_head() {
    for (from, closes) in [(4, true), (1, true), (2, false)] {
        let (mut s, answer) = with_a_keeper();
        let later = SealAnswer { promised: ViewNumber(7), ..answer };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(from), later));
        assert_eq!(is_closed(&s), closes, "node {from}");
        if !closes {
            s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(4), answer));
            assert_eq!(done(&s.wait(1100)).2.map(|f| f.0), Some(3));
        }
    }
}

/// A survivor is to follow, and its log was damaged since the operator looked: it knows more to be committed than the best sound
/// log has, and would have to cut that. Nobody seals so; if it is to learn everything it begins anew, and may.
#[test]
fn who_is_to_follow_cuts_nothing_that_was_committed() {
    for learns in [false, true] {
        let (mut s, answer) = with_a_keeper();
        let joining = if learns { vec![NodeId(3)] } else { Vec::new() };
        let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) else {
            panic!("it seals")
        };
        opened.forced.iter_mut().for_each(|f| f.survivors.push(NodeId(3)));
        s.r.info.iter_mut().for_each(|i| i.joining = joining.clone());
        let further = SealAnswer { damaged: true, committed: Sequence(3), ..answer };
        s.play(|r, ctx| {
            r.on_seal_answer(ctx, NodeId(3), further);
            r.on_seal_answer(ctx, NodeId(4), answer);
        });
        assert_eq!(done(&s.wait(2000)).2.map(|f| f.0), if learns { Some(3) } else { None });
    }
}

/// Lost frames were given up, and before the branch was active another member came back, whole. The log that had given them up
/// counted as a whole one: with it the view was sealed as usual, they were gone everywhere, and nothing was said to be lost.
#[test]
fn a_log_that_gave_frames_up_does_not_count_as_a_whole_one() {
    let given_up = |mutant| {
        let mut s = survivor(3, &[(3, 4)], false, 7);
        s.mutant = mutant;
        s.wait(11_000);
        assert_eq!(s.r.committed, Sequence(3), "that they were lost says nothing of what is committed");
        let ticket = s.tickets;
        s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
        assert!(s.r.seal_answer(ViewNumber(3), ViewNumber(1)).damaged);
        let whole = SealAnswer { damaged: false, ..s.r.seal_answer(ViewNumber(2), ViewNumber(1)) };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), whole));
        s
    };
    let mut s = given_up(Some(Mutant::GivenUpCounts));
    s.wait(1000);
    assert_eq!(s.r.last.sequence, Sequence(8), "sealed as usual");
    let mut s = given_up(None);
    assert_eq!(done(&s.wait(1000)).2, None);
    assert_eq!(
        s.r.waits().as_deref(),
        Some("it waits: node 2 is back, and has more than those that were named; say `freebs volume recover` again")
    );
}

/// The device is full, and does not take the mark. It was never asked again.
#[test]
fn what_had_no_room_is_given_up_later() {
    let mut s = survivor(6, &[(3, 4)], false, 7);
    assert_eq!(done(&s.wait(11_000)).1, [(2, 4)]);
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_no_room(ctx, ticket));
    assert_eq!(done(&s.wait(1000)).1, [], "it rests");
    assert_eq!(done(&s.wait(2000)).1, [(2, 4)]);
}

/// A member of the view that was taken for lost answers, and knows more than the operator was told of: the head went on from
/// less all the same.
#[test]
fn who_is_back_with_more_is_not_passed_over() {
    // It has lost its power, and counts only when its end was compared; or its log is whole, and longer.
    for (damaged, committed, last) in [(true, 4, 2), (false, 2, 5)] {
        let (mut s, answer) = with_a_keeper();
        let mut passes = with_a_keeper().0;
        passes.mutant = Some(Mutant::BackPassedOver);
        let last = FrameName { sequence: Sequence(last), ..answer.last };
        let more = SealAnswer { damaged, committed: Sequence(committed), last, ..answer };
        for s in [&mut s, &mut passes] {
            if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
                opened.pred_quorum = 1;
            }
            s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), more));
            s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(4), answer));
        }
        assert_eq!(done(&passes.wait(5000)).2.map(|f| f.0), Some(3));
        assert_eq!(done(&s.wait(5000)).2, None, "damaged: {damaged}");
        assert!(s.r.waits().is_some_and(|w| w.contains("node 2 is back, and has more")), "{:?}", s.r.waits());
    }
}

/// A member of the same view lost more frames, and asks for what they brought: the log that had given some of them up answered
/// as if it had everything, and the asker counted as whole from then on.
#[test]
fn a_log_that_gave_frames_up_feeds_no_other() {
    let asked = |s: &mut Scene| {
        let (shard, view, map_since, until) = (s.r.id, ViewNumber(1), Sequence(2), Sequence(4));
        let r = SyncRequest {
            early: false,
            lacks: false,
            shard,
            view,
            id: 9,
            names: vec![],
            until,
            map_from: MapPoint::NONE,
            map_since,
            lost: true,
            fetch: false,
            past: Version(0),
        };
        let (_, actions) = s.play(|r0, ctx| r0.feed_lost(ctx, LinkId(3), r));
        actions.iter().any(|a| matches!(a, Action::MapRead { .. }))
    };
    let mut s = survivor(6, &[(3, 4)], false, 7);
    assert!(!asked(&mut s), "it has lost them itself");
    s.wait(11_000);
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    assert!(s.r.has_given_up() && !asked(&mut s));
    // A branch is active: members of it have the same, those of views before it have not.
    s.r.given_up = ViewNumber(0);
    assert!(asked(&mut s));
    s.r.info.iter_mut().for_each(|i| i.branch = crate::event::Branch { view: ViewNumber(2), at: Sequence(0) });
    assert!(!asked(&mut s));
}

/// The operator was told of one lost frame; the head's node starts again, and finds more. They were given up unseen.
#[test]
fn no_more_is_given_up_than_was_shown() {
    let mut s = survivor(6, &[(2, 4)], false, 7);
    if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
        opened.forced.iter_mut().for_each(|f| f.gives_up = 2);
    }
    assert_eq!(done(&s.wait(30_000)), (vec![], vec![], None));
    assert_eq!(s.r.waits().as_deref(), Some("it waits: 3 frames are lost by now; say `freebs volume recover` again"));
    if let Some(crate::open::Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
        opened.forced.iter_mut().for_each(|f| f.gives_up = 3);
    }
    assert_eq!(done(&s.wait(1000)).1, [(1, 4)]);
}

/// A member of the view comes back long after the operator's word, and has to make its promise durable before it answers: it was
/// passed over if that took longer than the last of the others.
#[test]
fn who_is_back_late_has_a_moment_to_answer() {
    let (mut s, answer) = with_a_keeper();
    assert_eq!(done(&s.wait(5000)).2, None);
    let peer = Peer { node: NodeId(2), worker: 0 };
    s.play(|r, ctx| r.open_link_changed(ctx, peer, true));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(4), answer));
    assert_eq!(done(&s.wait(900)).2, None);
    assert_eq!(done(&s.wait(200)).2.map(|f| f.0), Some(3));
}

/// Of three members two were taken for lost, and the third was to go on by force; it had lost the frame of its view. The two came
/// back with all of it, so nothing was left to be done by force, and the frame was asked of nobody: the control plane named the
/// one that lacked it alone. What is lost is asked of the members of the active view.
#[test]
fn what_is_lost_is_asked_of_members_that_are_back() {
    for (has_view, active, asked) in
        [(false, 1, vec![2, 3]), (true, 1, vec![2, 3]), (true, 2, vec![2, 3]), (false, 0, vec![])]
    {
        let mut s = Scene::new(1);
        let mut c = Chain::new();
        let frames = [c.open(1), c.plain(), c.plain()];
        frames.iter().for_each(|f| s.take(f.clone()));
        s.durable(3);
        let lost = if has_view { 2 } else { 1 };
        let before = if has_view { TailEntry::of(&frames[0].head).name } else { genesis() };
        let end = Some(frames[lost - 1].header().hid());
        s.r.damage = Damage::new(vec![Hole { before, until: Sequence(lost as u64), end }], false);
        s.r.view = s.r.view.take().filter(|_| has_view);
        let view_members = if active > 0 { [1, 2, 3].map(NodeId).to_vec() } else { Vec::new() };
        let members = vec![NodeId(1)];
        s.r.info = Some(ShardInfo { members, view_members, active: ViewNumber(active), ..info(1024) });
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
            seen.extend(actions.iter().filter_map(|a| match a {
                Action::Send { to, message: Message::Sync(_) } => Some(to.0),
                _ => None,
            }));
            s.now = s.now.plus(Nanos::from_millis(10_000));
        }
        assert_eq!(seen, asked, "view frame {has_view}, active {active}");
    }
}

/// The frame of the newest view is lost, and the one before it is there: its members were taken for those of the new view, and the
/// frame was asked of them alone, for ever, if they had left.
#[test]
fn a_lost_view_frame_is_asked_of_the_members_of_its_own_view() {
    let mut c = Chain::new();
    let frames = [c.open(1), c.plain(), c.open(2), c.plain()];
    let mut body = ViewBody::decode(frames[0].head.body()).expect("made here");
    body.members.retain(|m| m.node != NodeId(3));
    let state = ShardState {
        shard: SHARD,
        last: c.last,
        committed: Sequence(4),
        view: Some((Sequence(1), body)),
        ..ShardState::default()
    };
    let name = |n: usize| TailEntry::of(&frames[n].head).name;
    let hole = Hole { before: name(1), until: Sequence(3), end: Some(name(2).hid) };
    let mut s = Scene::new(1);
    s.r = Replica::recovered(&state, Vec::new(), Some(frames[0].head.clone()), Damage::new(vec![hole], false));
    let view_members = [1, 3].map(NodeId).to_vec();
    s.r.info = Some(ShardInfo { members: view_members.clone(), view_members, ..info(1024) });
    let mut asked = Vec::new();
    for _ in 0..2 {
        let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
        asked.extend(actions.iter().filter_map(|a| match a {
            Action::Send { to, message: Message::Sync(_) } => Some(to.0),
            _ => None,
        }));
        s.now = s.now.plus(Nanos::from_millis(10_000));
    }
    assert_eq!(asked, [2, 3]);
    s.play(|r, ctx| r.learn_lost_view(ctx, &frames[2].head));
    let views: Vec<_> = s.r.open_views().map(|v| (v.number.0, v.sequence.0)).collect();
    assert_eq!(views, [(2, 3), (1, 1)]);
}

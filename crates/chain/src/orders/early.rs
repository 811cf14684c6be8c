//! Members that count before they have everything (rules V16 to V20): each rule with the mutant that leaves it out.

use super::*;
use crate::early::early_in;
use crate::open::Phase;
use freebs_format::wire::ReadRequest;
use freebs_format::{AttachBody, MarkBody, RequestEntry, Requests};
use freebs_lsvd::KeptState;

/// Node 1 has opened view 2 with frame 3: 1 and 2 have everything, 3 is new. Nobody has said yet that it holds it.
fn opened(mutant: Option<Mutant>) -> Scene {
    let (mut s, good) = opening();
    s.mutant = mutant;
    if let Some(Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
        (opened.joining, opened.pred_members) = (vec![NodeId(3)], [1, 2, 4].map(NodeId).to_vec());
    }
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    let view = s.r.view.clone().expect("a view");
    assert_eq!((view.number, view.sequence), (ViewNumber(2), Sequence(3)));
    assert_eq!(view.body.members.iter().map(|m| m.early).collect::<Vec<_>>(), [false, false, true]);
    s.durable(3);
    s
}

/// The control plane says that it is active.
fn active(s: &mut Scene) {
    s.r.info = Some(ShardInfo { joining: vec![NodeId(3)], ..info(1024) });
    s.r.heard_active = ViewNumber(2);
    s.r.head.iter_mut().for_each(|h| h.phase = Phase::Active);
    assert!(s.r.is_active_head());
}

fn answers(s: &mut Scene, node: u64, sequence: u64, lacks: bool) -> Vec<Action> {
    let room = Some(Room { lacks, ..Room::new(u64::MAX, false) });
    let item = DurableItem { shard: SHARD, view: ViewNumber(2), sequence: Sequence(sequence), room };
    s.play(|r, ctx| r.head_member_durable(ctx, NodeId(node), &item)).1
}

fn request() -> SyncRequest {
    SyncRequest {
        shard: SHARD,
        view: ViewNumber(2),
        id: 8,
        names: vec![genesis()],
        until: Sequence(u64::MAX),
        map_from: MapPoint::NONE,
        map_since: Sequence(0),
        lost: false,
        fetch: false,
        past: Version(0),
        early: true,
        lacks: false,
    }
}

/// The state that is read for node 3, as of which frame.
fn given(s: &mut Scene) -> Option<u64> {
    let (_, actions) = s.play(|r, ctx| r.feed_by_map(ctx, LinkId(3), request(), Sequence(0)));
    actions.iter().find_map(|a| match a {
        Action::MapRead { request, since, upto, .. } if request.early && since == upto => Some(upto.0),
        _ => None,
    })
}

fn is_refused(actions: &[Action]) -> bool {
    let refused =
        |a: &Action| matches!(a, Action::Send { message: Message::SyncReply(r), .. } if r.mode == SyncMode::Refused);
    actions.iter().any(refused)
}

/// V16 a: what was answered before the view is on two members of it that have everything, or nobody new counts.
#[test]
fn who_is_new_counts_when_the_others_have_what_lies_in_front() {
    for mutant in [None, Some(Mutant::EarlyUnsafe)] {
        let mut s = opened(mutant);
        active(&mut s);
        // As if another new one had it, too.
        s.r.committed = Sequence(3);
        assert_eq!(given(&mut s), mutant.map(|_| 3), "the head alone has it");
        // One that began so in the view before would answer with this one's frame.
        let lacks = SyncRequest { early: false, lacks: true, ..request() };
        let (_, actions) = s.play(|r, ctx| r.on_sync(ctx, LinkId(3), lacks));
        assert_eq!(is_refused(&actions), mutant.is_none());
        answers(&mut s, 2, 3, false);
        assert_eq!(given(&mut s), Some(3));
        // It has answered in this view: whatever it lacks since, the control plane may take it for whole.
        answers(&mut s, 3, 3, false);
        assert_eq!(given(&mut s), None);
    }
}

/// Node 1 was started again, and opens view 3 with the answers of these. In view 2 nodes 3 and 5 lacked something, and counted.
/// Whether node 3 is put off when it asks for the frames of view 3.
fn is_put_off(mutant: Option<Mutant>, members: &[u64], answering: &[u64], has_counted: bool) -> bool {
    let (mut s, good) = opening();
    let nodes = |of: &[u64]| of.iter().copied().map(NodeId).collect::<Vec<_>>();
    if let Some(Phase::Sealing { opened, .. }) = s.r.head.as_mut().map(|h| &mut h.phase) {
        (opened.members, opened.joining, opened.quorum) = (nodes(&[1, 2, 4, 3, 5]), nodes(&[3, 5]), 3);
        opened.pred_members = nodes(&[1, 2, 4]);
    }
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    s.durable(3);
    s.mutant = mutant;
    s.r.head = None;
    s.r.info = Some(ShardInfo { members: nodes(members), joining: nodes(&[3, 5]), ..info(1024) });
    s.play(|r, ctx| r.become_head(ctx));
    let opened = Opened {
        members: nodes(members),
        joining: nodes(&[3, 5]).into_iter().filter(|n| members.contains(&n.0)).collect(),
        quorum: 3,
        pred_quorum: 3,
        ..opened_by_hand(3, &nodes(&[1, 2, 4, 3, 5]))
    };
    s.play(|r, ctx| r.on_proposed(ctx, Ok(opened), Hash32([5; 32])));
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    let own = s.r.seal_answer(ViewNumber(3), ViewNumber(2));
    assert!(own.has_pred);
    for n in answering {
        let answer = SealAnswer { has_pred: *n != 3 || has_counted, ..own };
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(*n), answer));
    }
    let view = s.r.view.as_ref().map(|v| (v.number, v.sequence));
    assert_eq!(view, Some((ViewNumber(3), Sequence(4))));
    s.durable(4);
    let lacks = SyncRequest { view: ViewNumber(3), early: false, lacks: true, ..request() };
    is_refused(&s.play(|r, ctx| r.on_sync(ctx, LinkId(3), lacks)).1)
}

fn opened_by_hand(view: u64, before: &[NodeId]) -> Opened {
    Opened {
        view: ViewNumber(view),
        pred: ViewNumber(view - 1),
        members: before.to_vec(),
        joining: Vec::new(),
        quorum: 2,
        min_copies: 2,
        pred_members: before.to_vec(),
        pred_quorum: 2,
        pred_learning: Vec::new(),
        pred_unseen: Vec::new(),
        forced: None,
        generation: Generation(0),
        keys: BTreeMap::new(),
        volume: None,
    }
}

/// V16 a: a head was started again while another member that has everything was down. The one that was left had counted in
/// the view before, and was to learn everything before it counted in the next one; until then nothing could be written.
#[test]
fn who_counted_goes_on_counting_while_all_that_have_everything_stay() {
    let all = [1, 2, 4, 3, 5];
    // Nodes 2 and 4 are down, and stay.
    assert!(!is_put_off(None, &all, &[3, 5], true));
    // It had not counted: enough of the others may never have had what it lacks.
    assert!(is_put_off(None, &all, &[2, 3, 5], false));
    // One of them leaves, and node 2, which is down, need not have it.
    for (mutant, is_put) in [(None, true), (Some(Mutant::EarlyWithoutLeavers), false)] {
        assert_eq!(is_put_off(mutant, &[1, 2, 3, 5, 6], &[3, 5], true), is_put);
    }
}

/// A member that lacks something left the chain, and was to come back: it had the last frames, so it was taken for level, and the
/// view with it waited until it had learned everything.
#[test]
fn who_is_to_come_and_lacks_something_is_waited_for_outside() {
    for mutant in [None, Some(Mutant::HolesAreLevel)] {
        let mut s = opened(mutant);
        let nodes = |of: &[u64]| of.iter().copied().map(NodeId).collect::<Vec<_>>();
        s.r.head.iter_mut().for_each(|h| h.members.retain(|m| m.node != NodeId(3)));
        active(&mut s);
        let view = ViewNumber(2);
        s.r.info = Some(ShardInfo {
            active: view,
            known: view,
            members: nodes(&[1, 2, 3]),
            joining: nodes(&[3]),
            view_members: nodes(&[1, 2]),
            ..info(1024)
        });
        for (lacks, waits) in [(true, mutant.is_none()), (false, false)] {
            s.play(|r, ctx| r.member_is_level(ctx, LinkId(3), lacks));
            assert_eq!(s.play(|r, ctx| r.waits_for_coming(ctx)).0, waits, "{mutant:?} {lacks}");
        }
    }
}

/// Nor does it count by a state of the control plane that may be of before it had everything, in another view.
#[test]
fn who_may_be_known_to_have_everything_does_not_begin_anew() {
    for (joins, heard, is_given) in [(true, 2, true), (true, 1, false), (false, 2, false)] {
        let mut s = opened(None);
        active(&mut s);
        answers(&mut s, 2, 3, false);
        s.r.heard_active = ViewNumber(heard);
        s.r.info.iter_mut().for_each(|i| i.joining.retain(|_| joins));
        assert_eq!(given(&mut s).is_some(), is_given, "{joins} {heard}");
    }
}

/// While the view is being opened by others a new member waits, for a while; then it learns everything first.
#[test]
fn a_new_member_waits_for_the_view_to_be_active() {
    let mut s = opened(None);
    let asks = |s: &mut Scene| is_refused(&s.play(|r, ctx| r.on_sync(ctx, LinkId(3), request())).1);
    assert!(asks(&mut s));
    s.now = s.now.plus(Nanos::from_millis(1_500));
    assert!(!asks(&mut s));
}

/// V16 b: a state as of a frame that is not known to be committed would stand for what nobody else need have.
#[test]
fn who_is_new_has_what_is_not_known_to_be_committed() {
    for (mutant, upto) in [(None, 3), (Some(Mutant::EarlyWithoutTail), 4)] {
        let mut s = opened(mutant);
        active(&mut s);
        answers(&mut s, 2, 3, false);
        s.play(|r, ctx| r.on_attach(ctx, LinkId(9), DriverId(5), Generation(1), Hash32::default()));
        assert_eq!(s.r.last.sequence, Sequence(4));
        s.durable(4);
        assert_eq!(s.r.committed, Sequence(3));
        assert_eq!(given(&mut s), Some(upto));
    }
}

/// V16 c: a member that left and is there may have the only other copy of what was answered.
#[test]
fn nobody_counts_early_where_members_leave_that_are_there() {
    let name = FrameName::default();
    let answer = SealAnswer {
        shard: SHARD,
        view: ViewNumber(2),
        pred: ViewNumber(1),
        last: name,
        has_pred: true,
        committed: Sequence(0),
        damaged: false,
        promised: ViewNumber(2),
        given: freebs_format::wire::Given::Nothing,
    };
    let nodes = |of: &[u64]| of.iter().copied().map(NodeId).collect::<Vec<_>>();
    let opened = |members: &[u64], joining: &[u64], quorum, pred: &[u64]| Opened {
        members: nodes(members),
        joining: nodes(joining),
        quorum,
        ..opened_by_hand(2, &nodes(pred))
    };
    let three = [1, 2, 3];
    for (what, o, there, early) in [
        ("one is lost", opened(&[1, 2, 4], &[4], 2, &three), vec![1, 2], vec![4]),
        ("two stay, the third one is there", opened(&[1, 2, 4], &[4], 2, &three), vec![1, 2, 3], vec![4]),
        ("two are lost", opened(&[1, 4, 5], &[4, 5], 2, &three), vec![1], vec![4, 5]),
        ("one of the two is there", opened(&[1, 4, 5], &[4, 5], 2, &three), vec![1, 3], vec![]),
        ("all have to answer", opened(&[1, 2, 4], &[4], 3, &three), vec![1, 2], vec![]),
        ("nobody stays", opened(&[4, 5, 6], &[4, 5, 6], 2, &three), vec![], vec![]),
        ("nobody is new", opened(&three, &[], 2, &three), vec![1, 2], vec![]),
        ("the first view", Opened { pred: ViewNumber(0), ..opened(&three, &[3], 2, &[]) }, vec![1], vec![]),
    ] {
        let answers: BTreeMap<_, _> = there.iter().map(|n| (NodeId(*n), answer)).collect();
        let early: Vec<NodeId> = early.into_iter().map(NodeId).collect();
        assert_eq!(early_in(&o, &answers, None), early, "{what}");
        let careless = early_in(&o, &answers, Some(Mutant::EarlyForThoseThere));
        assert_eq!(careless != early, what == "one of the two is there", "{what}");
    }
}

/// The state that the head gives, of a shard with a request that was applied.
fn state(mutant: Option<Mutant>) -> (SyncReply, Scene) {
    let mut s = opened(mutant);
    active(&mut s);
    answers(&mut s, 2, 3, false);
    s.r.requests.apply(DriverId(5), RequestNumber(7), RequestNumber(6), Sequence(2));
    let asked = SyncRequest { map_since: Sequence(0), ..request() };
    let kept = KeptState { as_of: Sequence(3), ..KeptState::default() };
    let piece = Ok((CarryBody::default(), Vec::new(), None));
    let source = MapSource { since: Sequence(3), upto: Sequence(3), view_frame: None, kept, piece };
    let (_, actions) = s.play(|r, ctx| r.answer_map(ctx, LinkId(3), &asked, source));
    let reply = actions.into_iter().find_map(|a| match a {
        Action::Send { message: Message::SyncReply(r), .. } => Some(r),
        _ => None,
    });
    (reply.expect("a state"), s)
}

/// Node 3, which is new, has it.
fn begun(mutant: Option<Mutant>) -> Scene {
    let (reply, _) = state(None);
    assert_eq!((reply.mode, reply.common), (SyncMode::State, Sequence(0)));
    let mut s = Scene::new(3);
    (s.mutant, s.r.me) = (mutant, Some(NodeId(3)));
    s.r.info = Some(ShardInfo { joining: vec![NodeId(3)], ..info(1024) });
    let (_, actions) = s.play(|r, ctx| r.on_nudge(ctx, LinkId(1), ViewNumber(2)));
    let asked = asked(&actions).expect("it asks");
    assert!(asked.early && !asked.lacks && !asked.lost);
    let (_, actions) = s.play(|r, ctx| r.on_sync_reply(ctx, SyncReply { id: asked.id, ..reply }));
    assert_eq!(crate::testing::appends(&actions), ["mark", "base"]);
    let base = actions.iter().find_map(|a| match a {
        Action::Append(Record::Mark { change, ticket, .. }) if change.base.is_some() => Some((change.clone(), *ticket)),
        _ => None,
    });
    let (change, ticket) = base.expect("a state");
    assert!(change.early);
    assert_eq!(change.base.map(|b| (b.since, b.last.sequence, b.requests.len())), Some((Sequence(0), Sequence(3), 1)));
    assert_eq!((s.r.view_number(), s.r.damage.absent), (ViewNumber(2), Some((Sequence(0), Sequence(3)))));
    assert!(!s.r.serves(), "it is not durable yet");
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    s
}

fn asked(actions: &[Action]) -> Option<SyncRequest> {
    actions.iter().find_map(|a| match a {
        Action::Send { message: Message::Sync(q), .. } => Some(q.clone()),
        _ => None,
    })
}

/// V17: a request that was applied is known to who begins with the state.
#[test]
fn the_state_has_the_requests_that_were_applied() {
    for mutant in [None, Some(Mutant::EarlyWithoutRequests)] {
        let (reply, _) = state(mutant);
        let body = MarkBody::decode(reply.frames[1].head.body()).unwrap();
        let requests = Requests {
            entries: vec![RequestEntry { driver: DriverId(5), number: RequestNumber(7), sequence: Sequence(2) }],
            ..body.requests.clone()
        };
        assert_eq!(body.requests == requests, mutant.is_none());
        assert_eq!((body.attach, body.committed), (AttachBody::default(), Sequence(3)));
    }
}

/// V20: it answers for what it has, and says to the head that this is not all; it is read from nowhere.
#[test]
fn who_lacks_something_answers_and_is_not_read() {
    for mutant in [None, Some(Mutant::EarlyReads)] {
        let mut s = begun(mutant);
        assert!(s.r.serves() && s.r.lacks_some());
        s.play(|r, ctx| r.answer_durable(ctx));
        assert_eq!((s.r.durable, s.r.told_room.map(|r| r.lacks)), (Sequence(3), Some(true)));
        let read = ReadRequest {
            shard: SHARD,
            view: ViewNumber(2),
            generation: Generation(1),
            id: 4,
            floor: Sequence(3),
            range: BlockRange::new(0, 1),
            status_only: false,
            at: Default::default(),
            since: Default::default(),
        };
        let (_, actions) = s.play(|r, ctx| r.on_read(ctx, LinkId(9), read));
        assert_eq!(reason(&actions), mutant.map_or(Some(Refusal::NotReady), |_| None));
    }
}

/// V19: its log has all of the views since, and is no damaged one.
#[test]
fn who_lacks_something_seals_the_views_that_it_has() {
    for mutant in [None, Some(Mutant::EarlyIsDamaged)] {
        let mut s = begun(mutant);
        let answer = s.play(|r, ctx| r.whole_answer(ctx, ViewNumber(3), ViewNumber(2), None)).0;
        assert_eq!((answer.has_pred, answer.last.sequence, answer.damaged), (true, Sequence(3), mutant.is_some()));
    }
}

/// V20: it opens no view, and asks for another head.
#[test]
fn who_lacks_something_leads_nothing() {
    for mutant in [None, Some(Mutant::EarlyLeads)] {
        let mut s = begun(mutant);
        s.r.info.iter_mut().for_each(|i| i.members = [3, 1, 2].map(NodeId).to_vec());
        let (_, mut actions) = s.play(|r, ctx| r.become_head(ctx));
        actions.extend(s.play(|r, ctx| r.head_tick(ctx)).1);
        let proposes = actions.iter().any(|a| matches!(a, Action::Propose { .. }));
        let hands_over = actions.iter().any(|a| matches!(a, Action::HandOver { .. }));
        assert_eq!((proposes, hands_over), (mutant.is_some(), mutant.is_none()));
    }
}

/// V20: in a view whose frame does not name it early it counts for nothing before it has everything.
#[test]
fn who_lacks_something_counts_where_the_view_says_so() {
    for early in [true, false] {
        let mut s = begun(None);
        let view = s.r.view.as_mut().expect("a view");
        view.body.members.iter_mut().filter(|m| m.node == NodeId(3)).for_each(|m| m.early = early);
        assert_eq!(s.r.serves(), early);
        let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
        let q = asked(&actions).expect("it asks for what it lacks");
        assert_eq!((q.lost, q.map_since, q.until), (true, Sequence(0), Sequence(3)));
    }
}

/// It learns what lies in front from any member, as what is left of lost frames; then it is whole, and says so.
#[test]
fn who_lacks_something_learns_it() {
    let mut s = begun(None);
    let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
    let q = asked(&actions).expect("it asks");
    let (state, _) = state(None);
    let reply = SyncReply { mode: SyncMode::MapEnd, id: q.id, view: q.view, common: Sequence(0), ..state };
    let (_, actions) = s.play(|r, ctx| r.on_sync_reply(ctx, reply));
    let learned = actions.iter().find_map(|a| match a {
        Action::Append(Record::Mark { change, ticket, .. }) => change.learned.clone().map(|l| (l, *ticket)),
        _ => None,
    });
    let (learned, ticket) = learned.expect("a mark");
    assert_eq!((learned.since, learned.upto), (Sequence(0), Sequence(3)));
    assert!(s.r.lacks_some(), "it is not durable yet");
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    assert_eq!((s.r.damage.absent, s.r.told_room.map(|r| r.lacks)), (None, Some(false)));
}

/// V21: who stands in learns nothing that lies in front, neither before it has the state nor behind.
#[test]
fn who_stands_in_learns_nothing_old() {
    for mutant in [None, Some(Mutant::StandInsLearn)] {
        let mut s = begun(mutant);
        s.r.info.iter_mut().for_each(|i| i.standing = vec![NodeId(3)]);
        let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
        assert_eq!(asked(&actions).is_some(), mutant.is_some());
        // The place is not kept any more.
        s.r.info.iter_mut().for_each(|i| i.standing.clear());
        s.now = s.now.plus(Nanos::from_millis(60_000));
        let (_, actions) = s.play(|r, ctx| r.repair_tick(ctx));
        assert!(asked(&actions).is_some());
        // A head that can't give the state yet gives no map.
        let mut s = opened(mutant);
        s.r.info = Some(ShardInfo { joining: vec![NodeId(3)], standing: vec![NodeId(3)], ..info(1024) });
        s.r.committed = Sequence(2);
        let (_, actions) = s.play(|r, ctx| r.feed_by_map(ctx, LinkId(3), request(), Sequence(0)));
        let reads = actions.iter().any(|a| matches!(a, Action::MapRead { .. }));
        assert_eq!((reads, is_refused(&actions)), (mutant.is_some(), mutant.is_none()), "{mutant:?}");
    }
}

/// V20: the head says of it that it has everything when that is so.
#[test]
fn a_hole_is_not_forgotten() {
    for (mutant, lacks, is_told) in
        [(None, true, false), (None, false, true), (Some(Mutant::HolesForgotten), true, true)]
    {
        let mut s = opened(mutant);
        active(&mut s);
        answers(&mut s, 2, 3, false);
        answers(&mut s, 3, 3, lacks);
        let (_, actions) = s.play(|r, ctx| r.tell_complete(ctx));
        let told = actions.iter().any(|a| matches!(a, Action::Complete { nodes, .. } if nodes[..] == [NodeId(3)]));
        assert_eq!(told, is_told, "{mutant:?} {lacks}");
    }
}

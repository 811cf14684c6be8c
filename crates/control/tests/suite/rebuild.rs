//! The state made again from surveys of logs (rule V9).

use freebs_control::rebuild::{
    NodeName, NodeSurvey, Rebuilt, ShardSurvey, ViewSurvey, VolumeSurvey, rebuild, rebuild_accepting, rebuild_with,
};
use freebs_control::{Ack, Command, CreateVolume, Mutant, Outcome, State};
use freebs_types::{ClusterId, ErrorKind, Generation, NodeId, Sequence, ShardId, StartNumber, ViewNumber, VolumeId};

const CLUSTER: ClusterId = ClusterId([4; 16]);
const REVISION: u64 = 1000;
const VOLUME: VolumeId = VolumeId(3);

fn names(count: u64) -> Vec<NodeName> {
    let name = |n| NodeName { node: NodeId(n), name: format!("node{n}"), address: format!("h{n}:1"), workers: 1 };
    (1..=count).map(name).collect()
}

fn described(name: &str) -> VolumeSurvey {
    VolumeSurvey {
        name: name.into(),
        size: 1 << 30,
        stripe: 1 << 20,
        shards: 1,
        copies: 3,
        min_copies: 2,
        ack: Ack::Majority,
        retain_ms: 0,
    }
}

/// A view of three members, head first, whose frame has a sequence of ten times its number.
fn view(number: u64, pred: u64, members: [u64; 3]) -> ViewSurvey {
    ViewSurvey {
        view: ViewNumber(number),
        sequence: Sequence(number * 10),
        pred: ViewNumber(pred),
        quorum: 2,
        members: members.map(NodeId).to_vec(),
        head_start: StartNumber(7),
        volume: Some(described("data")),
        branch: ViewNumber(0),
    }
}

/// A shard whose log ends with some frames of a view.
fn of(view: &ViewSurvey) -> ShardSurvey {
    ShardSurvey {
        shard: ShardId { volume: VOLUME, index: 0 },
        promised: view.view,
        generation: Generation(5),
        last: Sequence(view.sequence.0 + 9),
        committed: Sequence(view.sequence.0 + 4),
        whole: true,
        promise_lost: false,
        views: vec![view.clone()],
    }
}

/// A log that has just the frame of a view that may never have become active.
fn pending(view: &ViewSurvey) -> ShardSurvey {
    ShardSurvey { last: view.sequence, committed: Sequence(view.sequence.0 - 2), ..of(view) }
}

fn node(n: u64, shards: Vec<ShardSurvey>) -> NodeSurvey {
    NodeSurvey { cluster: CLUSTER, node: NodeId(n), start: StartNumber(20 + n), whole: true, shards }
}

fn made(nodes: u64, surveys: Vec<NodeSurvey>) -> Rebuilt {
    rebuild(CLUSTER, &names(nodes), &surveys, REVISION).unwrap()
}

fn ids(of: &[NodeId]) -> Vec<u64> {
    of.iter().map(|n| n.0).collect()
}

fn why(r: &Rebuilt) -> &str {
    assert!(r.back.is_empty() && r.state.volumes().next().is_none(), "{r:?}");
    &r.left[0].why
}

#[test]
fn a_volume_is_back_with_numbers_above_all_that_were_seen() {
    let v = view(6, 4, [2, 1, 3]);
    let promised = ShardSurvey { promised: ViewNumber(9), generation: Generation(8), ..of(&v) };
    let r = made(3, vec![node(1, vec![of(&v)]), node(2, vec![promised]), node(3, vec![of(&v)])]);
    assert!(r.left.is_empty() && r.back.len() == 1 && r.back[0].joining == 0);
    let volume = r.state.volume_by_name("data").unwrap();
    let s = volume.shard(0).unwrap();
    assert_eq!(
        (s.active, s.highest, s.pending, ids(&s.members)),
        (ViewNumber(6), ViewNumber(1009), None, vec![2, 1, 3])
    );
    assert_eq!((s.head_start, s.opened_by), (StartNumber(7), Some(NodeId(2))));
    assert_eq!((volume.generation, volume.size, volume.copies, volume.min_copies), (Generation(1008), 1 << 30, 3, 2));
    assert_eq!(r.state.node(NodeId(3)).unwrap().start, StartNumber(23));
    // It goes on as any state does, and comes back from bytes.
    let mut state = State::decode(&r.state.encode()).unwrap();
    let propose =
        Command::ProposeView { shard: volume.shard_id(0), active: s.active, node: NodeId(2), start: StartNumber(22) };
    let Outcome::Proposed { view, pred, generation } = state.apply(propose).unwrap().outcome else { panic!() };
    assert_eq!((view, pred, generation), (ViewNumber(1010), ViewNumber(6), Generation(1008)));
    assert!(state.revision() > REVISION);
}

/// A state that is made again knows no snapshots, and heads would give up what logs keep for them.
#[test]
fn what_logs_keep_for_snapshots_of_before_is_spared() {
    let v = view(6, 4, [2, 1, 3]);
    let r = made(3, vec![node(1, vec![of(&v)]), node(2, vec![of(&v)]), node(3, vec![of(&v)])]);
    let mut state = State::decode(&r.state.encode()).unwrap();
    let spared = state.spared_snapshots();
    assert!(spared.0 >= REVISION, "each snapshot is begun under a revision of its own, so none has a number above");
    let mut watcher = State::new(CLUSTER);
    watcher.take_in(state.changes_since(0)).unwrap();
    assert_eq!(watcher.spared_snapshots(), spared, "heads on nodes without a seat hear of it, too");
    let begin = Command::BeginSnapshot { name: "a".into(), volumes: vec![VOLUME], created_ms: 1, past: None };
    let Outcome::SnapshotBegun { snapshot } = state.apply(begin).unwrap().outcome else { panic!() };
    assert!(snapshot > spared && snapshot.0 <= state.revision());
}

/// A shard that had been in more views, and had no quorum when the volume was told to keep its past, said that it keeps none;
/// and its heads, and those of the others, let go of it all.
#[test]
fn of_doubt_a_volume_keeps_its_past() {
    const DAY: u64 = 24 * 3600 * 1000;
    let kept = |said: [&[(u64, u64)]; 2]| {
        let surveys = said.iter().zip(0..).map(|(views, index)| {
            let views: Vec<ViewSurvey> = views
                .iter()
                .map(|(number, retain_ms)| {
                    let volume = VolumeSurvey { shards: 2, retain_ms: *retain_ms, ..described("data") };
                    ViewSurvey { volume: Some(volume), ..view(*number, number - 1, [1, 2, 3]) }
                })
                .collect();
            let last = views.last().unwrap().clone();
            ShardSurvey { shard: ShardId { volume: VOLUME, index }, views, ..of(&last) }
        });
        let surveys: Vec<ShardSurvey> = surveys.collect();
        let r = made(3, (1..=3).map(|n| node(n, surveys.clone())).collect());
        r.state.volume_by_name("data").unwrap_or_else(|| panic!("{r:?}")).retain_ms
    };
    assert_eq!(kept([&[(900, 0)], &[(5, DAY)]]), DAY);
    assert_eq!(kept([&[(900, DAY)], &[(5, 0)]]), DAY);
    // Of one shard the newest view says it.
    assert_eq!(kept([&[(8, DAY), (9, 0)], &[(5, 0)]]), 0);
    assert_eq!(kept([&[(8, 0), (9, DAY)], &[(5, 20_000)]]), DAY);
    // No number that is impossible makes it keep less.
    assert_eq!(kept([&[(9, u64::MAX)], &[(5, 0)]]), 35 * DAY);
    assert_eq!(kept([&[(9, 3)], &[(5, 0)]]), 1000);
}

/// A view whose frame too few of its members have was never active: the one before it counts, which its own log goes
/// through.
#[test]
fn a_view_on_too_few_members_does_not_count() {
    let (old, new) = (view(4, 2, [1, 2, 3]), view(6, 4, [2, 1, 3]));
    let r = made(3, vec![node(1, vec![of(&old)]), node(2, vec![pending(&new)]), node(3, vec![of(&old)])]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert_eq!(
        (s.active, s.highest, ids(&s.members), s.joining.len()),
        (ViewNumber(4), ViewNumber(1006), vec![1, 2, 3], 0)
    );
    // With one more it does, though nothing of it was committed yet. Who lacks it learns.
    let r = made(3, vec![node(1, vec![of(&old)]), node(2, vec![pending(&new)]), node(3, vec![pending(&new)])]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert_eq!((s.active, ids(&s.members), ids(&s.joining)), (ViewNumber(6), vec![2, 3, 1], vec![1]));
    assert_eq!(r.back[0].joining, 1);
    // A log that goes on from elsewhere (view 5 was never active) says nothing of view 4.
    let aside = view(6, 3, [2, 1, 3]);
    let r = made(3, vec![node(1, vec![of(&old)]), node(2, vec![pending(&aside)]), node(3, vec![])]);
    assert!(why(&r).contains("1 of 2 copies"), "{r:?}");
}

/// Node 3 was not looked at. Its device may be put back as it was yesterday, and nobody knows a higher start number of it:
/// what it says of the view that is gone on from would have been sealed at, without what it answered since (V8).
#[test]
fn who_was_not_looked_at_seals_nothing_of_what_was_before() {
    let v = view(6, 4, [2, 1, 3]);
    let shard = ShardId { volume: VOLUME, index: 0 };
    let unseen = |s: &State| ids(&s.shard(shard).unwrap().unseen);
    let mut r = made(3, vec![node(1, vec![of(&v)]), node(2, vec![of(&v)])]);
    assert_eq!(unseen(&r.state), [3]);
    let open = |s: &mut State| {
        let active = s.shard(shard).unwrap().active;
        let done = s.apply(Command::ProposeView { shard, active, node: NodeId(2), start: StartNumber(22) }).unwrap();
        let Outcome::Proposed { view, generation, .. } = done.outcome else { panic!() };
        s.apply(Command::ActivateView { shard, view, generation }).unwrap();
    };
    // A view after that one changes nothing while the node is away; once its start is known, what it says is its own.
    open(&mut r.state);
    assert_eq!(unseen(&r.state), [3]);
    let back = Command::RegisterNode {
        node: NodeId(3),
        name: "node3".into(),
        address: "h3:1".into(),
        workers: 1,
        start: StartNumber(9),
    };
    r.state.apply(back).unwrap();
    assert_eq!(unseen(&r.state), [3]);
    open(&mut r.state);
    assert_eq!(unseen(&r.state), [0; 0]);
}

/// Node 3 was not looked at, and came back with an image of yesterday. A view with it became active, and it answered in
/// that. Then its newest disk was found and put in: its start number was above what the node had been seen with, and what
/// the image had answered was gone (V8).
#[test]
fn the_first_start_of_who_was_not_looked_at_is_above_all_that_it_can_have_had() {
    let v = view(6, 4, [2, 1, 3]);
    let mut r = made(3, vec![node(1, vec![of(&v)]), node(2, vec![of(&v)])]);
    let next = |s: &State, n, came_with| s.next_start(NodeId(n), &[StartNumber(came_with)]).map_err(|e| e.kind);
    let start = next(&r.state, 3, 5).unwrap();
    let (name, address) = ("node3".into(), "h3:1".into());
    r.state.apply(Command::RegisterNode { node: NodeId(3), name, address, workers: 1, start }).unwrap();
    let (shard, active) = (ShardId { volume: VOLUME, index: 0 }, ViewNumber(6));
    let done = r.state.apply(Command::ProposeView { shard, active, node: NodeId(2), start: StartNumber(22) }).unwrap();
    let Outcome::Proposed { view, generation, .. } = done.outcome else { panic!() };
    r.state.apply(Command::ActivateView { shard, view, generation }).unwrap();
    assert!(r.state.shard(shard).unwrap().unseen.is_empty());
    assert_eq!(next(&r.state, 3, 9), Err(ErrorKind::Corrupt), "the disk that it had before");
    // It may be newer than the one that ran last, which is the only one that counts.
    let e = r.state.next_start(NodeId(3), &[StartNumber(9)]).unwrap_err();
    let words = ["old image", "since `freebs control rebuild`", "Put back the one that ran last"];
    assert!(words.iter().all(|w| e.text.contains(w)), "{e}");
    assert_eq!(next(&r.state, 3, start.0), Ok(start.next()));
    assert_eq!(next(&r.state, 1, 21), Ok(StartNumber(22)), "it was looked at");
}

/// Who was a member before keeps what it has until those who join have learned.
#[test]
fn who_has_more_than_the_members_keeps_it() {
    let (old, new) = (view(4, 2, [1, 2, 3]), view(6, 4, [2, 3, 5]));
    let four = |n, v: &ViewSurvey| node(n, vec![of(v)]);
    let r = made(5, vec![four(1, &old), four(2, &new), four(3, &new), node(4, vec![]), node(5, vec![])]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert_eq!((ids(&s.members), ids(&s.joining), ids(&s.keepers)), (vec![2, 3, 5], vec![5], vec![1]));
    assert!(s.learning.is_empty(), "node 5 may have had everything, and lost it");
    assert!(s.unseen.is_empty(), "it was looked at");
    let r = made(5, vec![four(1, &old), four(2, &new), four(3, &new), node(4, vec![]), four(5, &new)]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert!(s.joining.is_empty() && s.keepers.is_empty());
}

/// A node that was not looked at came back, was no member any more, and forgot what nobody else had learned yet.
#[test]
fn who_was_not_looked_at_keeps_what_it_has() {
    let (old, new) = (view(4, 2, [1, 2, 3]), view(6, 4, [2, 1, 5]));
    let both = |n| node(n, vec![ShardSurvey { views: vec![old.clone(), new.clone()], ..of(&new) }]);
    let r = made(5, vec![both(1), both(2), node(4, vec![])]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert_eq!((ids(&s.members), ids(&s.joining), ids(&s.keepers)), (vec![2, 1, 5], vec![5], vec![3]));
}

/// A node that was left out had promised a number that the next state gave out again.
#[test]
fn numbers_rise_with_the_clock() {
    let v = view(6, 4, [2, 1, 3]);
    let surveys: Vec<NodeSurvey> = (1..=3).map(|n| node(n, vec![of(&v)])).collect();
    let r = rebuild(CLUSTER, &names(3), &surveys, 1_700_000_000_000).unwrap();
    assert_eq!(r.state.volume_by_name("data").unwrap().shard(0).unwrap().highest, ViewNumber(1_700_000_000_000));
}

/// The clock was ahead when the state was made again for the first time, and node 3 alone came to promise the next view of one
/// volume. The state was lost again, and made without node 3 by a clock that was right: the number was given out again.
#[test]
fn numbers_rise_when_the_clock_went_back() {
    const AHEAD: u64 = 2_000_000_000_000;
    const RIGHT: u64 = 1_700_000_000_000;
    let old = view(6, 4, [2, 1, 3]);
    let both = |a: ShardSurvey, b: ViewSurvey| {
        let named = ViewSurvey { volume: Some(described("other")), ..b.clone() };
        let other = ShardSurvey { shard: ShardId { volume: VolumeId(2), index: 0 }, views: vec![named], ..of(&b) };
        vec![a, other]
    };
    let surveys: Vec<NodeSurvey> = (1..=3).map(|n| node(n, both(of(&old), old.clone()))).collect();
    let first = rebuild(CLUSTER, &names(3), &surveys, AHEAD).unwrap().state;
    let highest = |s: &State, name: &str| s.volume_by_name(name).unwrap().shard(0).unwrap().highest;
    assert_eq!((highest(&first, "data"), highest(&first, "other")), (ViewNumber(AHEAD), ViewNumber(AHEAD)));
    // Of the other volume nodes 1 and 2 have the next view; of this one node 3 has, of which nobody hears.
    let next = view(AHEAD + 1, 6, [1, 2, 3]);
    let surveys: Vec<NodeSurvey> = (1..=2).map(|n| node(n, both(of(&old), next.clone()))).collect();
    let second = rebuild(CLUSTER, &names(3), &surveys, RIGHT).unwrap().state;
    // The numbers that node 3 may have promised meanwhile, and what those who follow the cluster may have seen.
    let most = AHEAD + 1_000_000_000;
    assert!(highest(&second, "data").0 > most && second.revision() > most, "{second:?}");
    let volume = second.volume_by_name("data").unwrap();
    assert!(volume.generation.0 > most / 1000);
    let mut second = second;
    let new = CreateVolume { name: "new".into(), size: 1 << 30, ..CreateVolume::default() };
    let Ok(Outcome::Created { volume }) = second.apply(Command::CreateVolume(new)).map(|d| d.outcome) else { panic!() };
    assert!(volume.0 > most, "{volume}");
    // A promise that no rebuild can have asked for leaves the other volumes as they are.
    let wild = ShardSurvey { promised: ViewNumber(1 << 61), ..of(&old) };
    let surveys = [node(1, both(wild, old.clone())), node(2, both(of(&old), old.clone()))];
    let r = rebuild(CLUSTER, &names(3), &surveys, RIGHT).unwrap();
    assert_eq!((highest(&r.state, "other"), r.left.len()), (ViewNumber(RIGHT), 0));
}

/// One log named a number just below those that no rebuild gives. The next state began above it, and so beyond them: the third
/// one took none of its numbers for one of a rebuild, and began with the clock again, below all that there had been.
#[test]
fn numbers_rise_after_a_wrong_one_too() {
    const CLOCK: u64 = 1_700_000_000_000;
    const WRONG: u64 = (1 << 61) - 1;
    let shard = ShardId { volume: VOLUME, index: 0 };
    let old = view(6, 4, [2, 1, 3]);
    let lies = ShardSurvey { promised: ViewNumber(WRONG), ..of(&old) };
    let first = rebuild(CLUSTER, &names(3), &[node(1, vec![lies]), node(2, vec![of(&old)])], CLOCK).unwrap();
    assert!(first.state.revision() > WRONG);
    let lone = |r: &Rebuilt| r.lone.iter().map(|l| (l.node.0, l.shard, l.number, l.followed)).collect::<Vec<_>>();
    assert_eq!(lone(&first), [(1, shard, WRONG, true)], "the operator is told whose it is");
    // The next two states: each gives the shard its next view.
    let mut highest = first.state.shard(shard).unwrap().highest.0;
    for _ in 0..2 {
        let next = ViewSurvey { view: ViewNumber(highest + 1), ..view(8, 6, [1, 2, 3]) };
        let surveys: Vec<NodeSurvey> = (1..=3).map(|n| node(n, vec![of(&next)])).collect();
        let r = rebuild(CLUSTER, &names(3), &surveys, CLOCK).unwrap();
        assert!(r.state.revision() > highest + 1_000_000_000, "{} after {highest}", r.state.revision());
        assert_eq!(lone(&r), [], "it is not of one node alone");
        highest = r.state.shard(shard).unwrap().highest.0;
    }
    // One that another rebuild can have given only if others show it, too, is followed for its own shard only.
    let wild = |n, at: u64| node(n, vec![ShardSurvey { promised: ViewNumber(at), ..of(&old) }]);
    let r = rebuild(CLUSTER, &names(3), &[wild(1, WRONG + 1), node(2, vec![of(&old)])], CLOCK).unwrap();
    assert_eq!((r.state.revision(), lone(&r)), (CLOCK, vec![(1, shard, WRONG + 1, false)]));
    // Not so near the end that nothing could follow, whoever says it.
    let most = (1 << 62) - (2 << 40);
    let r = rebuild(CLUSTER, &names(3), &[wild(1, most), wild(2, most)], CLOCK).unwrap();
    assert_eq!((r.state.revision(), lone(&r).len()), (CLOCK, 2));
}

/// Node 3 has the only copy of volume 4, and was not looked at. The next volume was volume 4 again: node 3, when it was back,
/// took what it had for a copy of that one, of which it is no member, and deleted it.
#[test]
fn a_volume_that_nobody_was_seen_to_have_keeps_its_id() {
    let v = view(6, 4, [2, 1, 3]);
    let mut r = made(3, vec![node(1, vec![of(&v)]), node(2, vec![of(&v)])]);
    let new = CreateVolume { name: "new".into(), size: 1 << 30, ..CreateVolume::default() };
    let Ok(Outcome::Created { volume }) = r.state.apply(Command::CreateVolume(new)).map(|d| d.outcome) else {
        panic!()
    };
    assert!(volume.0 > VOLUME.0 + 1000, "{volume}");
}

/// Nodes that were not looked at may hold a later view.
#[test]
fn what_other_nodes_may_know_is_not_passed_over() {
    let v = view(4, 2, [1, 2, 3]);
    let quiet = |n| node(n, vec![of(&v)]);
    let asked = |n| node(n, vec![ShardSurvey { promised: ViewNumber(5), ..of(&v) }]);
    // Two that promised nothing else are enough: no later view was sealed without one of them.
    assert!(made(5, vec![quiet(1), quiet(2)]).left.is_empty());
    assert!(made(5, vec![quiet(1), quiet(2), asked(3)]).left.is_empty());
    // With one, nodes 4 and 5 may have a view of which nobody here ever got the frame.
    let r = made(5, vec![quiet(1), asked(2), asked(3)]);
    assert!(why(&r).contains("not looked at"), "{r:?}");
    // Neither can alone: a view is active on two.
    assert!(made(5, vec![quiet(1), asked(2), asked(3), node(4, vec![])]).left.is_empty());
    let hurt = |n| NodeSurvey { whole: false, ..node(n, vec![]) };
    assert!(made(5, vec![quiet(1), asked(2), asked(3), node(4, vec![]), hurt(5)]).left.is_empty());
    assert!(why(&made(5, vec![quiet(1), asked(2), asked(3), hurt(4), hurt(5)])).contains("not looked at"));
}

/// A view of these members, which A of them answer, of a volume that goes on with `min_copies`.
fn chain(number: u64, pred: u64, members: &[u64], (quorum, min_copies): (u8, u8)) -> ViewSurvey {
    let volume = VolumeSurvey { min_copies, copies: 4, ..described("data") };
    let members = members.iter().copied().map(NodeId).collect();
    ViewSurvey { quorum, members, volume: Some(volume), ..view(number, pred, [1, 2, 3]) }
}

/// Chains that became shorter, as `freebs volume recover` makes them: the view before, and the one that follows.
fn shorter_chains() -> [(u64, ViewSurvey, ViewSurvey); 2] {
    [
        (4, chain(4, 2, &[1, 2, 3, 4], (3, 2)), chain(6, 4, &[3, 4], (2, 2))),
        (2, chain(4, 2, &[1, 2], (2, 1)), chain(6, 4, &[2], (1, 1))),
    ]
}

fn without(v: &ViewSurvey, next: &ViewSurvey) -> Vec<NodeSurvey> {
    let left = v.members.iter().filter(|n| !next.members.contains(n));
    left.map(|n| node(n.0, vec![of(v)])).collect()
}

/// Two of four members had gone on without the others, or one of two, and answered writes. Then the control state was lost, and
/// those two nodes, or that one, were left out: as many as answer a write of the view before were not. It was gone on from,
/// and the writes were lost (V15).
#[test]
fn a_later_chain_may_be_shorter() {
    for (nodes, v, next) in shorter_chains() {
        let r = made(nodes, without(&v, &next));
        assert!(why(&r).contains("there may be a later view than 4"), "{r:?}");
        assert_eq!(r.left[0].missing, next.members, "whose logs would help is said");
        // One of two is enough: the other can't have gone on alone.
        let all = |n: &NodeId| node(n.0, vec![if next.members.contains(n) { of(&next) } else { of(&v) }]);
        let r = made(nodes, v.members.iter().skip(usize::from(nodes == 4)).map(all).collect());
        assert_eq!(r.state.volume_by_name("data").expect("it is back").shard(0).unwrap().active, ViewNumber(6));
        let mutant = Some(Mutant::LeastIsOwn);
        let r = rebuild_with(CLUSTER, &names(nodes), &without(&v, &next), REVISION, mutant).unwrap();
        assert_eq!(r.state.volume_by_name("data").expect("writes are lost").shard(0).unwrap().active, ViewNumber(4));
    }
}

/// Of a volume of one shard for each chain all shards are asked at once; and what is lost for good can be given up.
#[test]
fn what_only_lost_nodes_have_can_be_given_up() {
    for (nodes, v, next) in shorter_chains() {
        let surveys = without(&v, &next);
        let accepting = |of: &[NodeId]| {
            rebuild_accepting(CLUSTER, &names(nodes), &surveys, REVISION, &of.iter().copied().collect()).unwrap()
        };
        let r = accepting(&next.members);
        assert_eq!(r.state.volume_by_name("data").unwrap().shard(0).unwrap().active, ViewNumber(4));
        assert_eq!(r.back[0].given_up, next.members);
        // One of them may have all of it: the other one's loss alone gives nothing up.
        if let [one, other] = next.members[..] {
            for (accepted, missing) in [(one, other), (other, one)] {
                let r = accepting(&[accepted]);
                assert!(r.back.is_empty(), "what {missing} has would be lost: {r:?}");
                assert_eq!(r.left[0].missing, [missing]);
            }
        }
        // Nodes of which everything is known lose nothing by it.
        let seen: Vec<NodeId> = surveys.iter().map(|s| s.node).collect();
        assert_eq!(accepting(&seen).left[0].missing, next.members);
        // Others are not given up with them.
        let more: Vec<NodeName> = names(nodes + 2);
        let r = rebuild_accepting(CLUSTER, &more, &surveys, REVISION, &next.members.iter().copied().collect()).unwrap();
        assert_eq!(r.left[0].missing, [NodeId(nodes + 1), NodeId(nodes + 2)]);
    }
    // It is no way around copies that are missing.
    let v = view(4, 2, [1, 2, 3]);
    let all = (2..=5).map(NodeId).collect();
    let r = rebuild_accepting(CLUSTER, &names(5), &[node(1, vec![of(&v)])], REVISION, &all).unwrap();
    assert!(why(&r).contains("1 of 3 copies are whole, and 2 are needed"), "{r:?}");
    // Where nothing is lost nothing is given up.
    let r =
        rebuild_accepting(CLUSTER, &names(3), &[node(1, vec![of(&v)]), node(2, vec![of(&v)])], REVISION, &all).unwrap();
    assert!(r.back[0].given_up.is_empty(), "{r:?}");
}

/// Two shards, each with a node of its own that may have gone on alone: both are named.
#[test]
fn all_nodes_whose_logs_are_missing_are_named_at_once() {
    let v = chain(4, 2, &[1, 2], (2, 1));
    let wide = |v: &ViewSurvey| {
        let volume = VolumeSurvey { shards: 2, ..v.volume.clone().unwrap() };
        ViewSurvey { volume: Some(volume), ..v.clone() }
    };
    let shard =
        |index, v: &ViewSurvey, whole| ShardSurvey { shard: ShardId { volume: VOLUME, index }, whole, ..of(&wide(v)) };
    let w = chain(4, 2, &[1, 3], (2, 1));
    let surveys = vec![
        node(1, vec![shard(0, &v, true), shard(1, &w, true)]),
        node(2, vec![shard(0, &v, false)]),
        node(3, vec![shard(1, &w, false)]),
    ];
    let r = made(3, surveys);
    assert_eq!((r.left[0].missing.as_slice(), why(&r).starts_with("shard 0: ")), (&[NodeId(2), NodeId(3)][..], true));
}

/// The only copy of a volume may have lost a promise, and has every frame. The volume was left out, however often this was tried.
#[test]
fn a_promise_that_may_be_lost_leaves_no_volume_out() {
    let lost = |s: ShardSurvey| ShardSurvey { promise_lost: true, ..s };
    let v = ViewSurvey { quorum: 1, members: vec![NodeId(1)], ..view(6, 4, [1, 1, 1]) };
    let r = made(2, vec![node(1, vec![lost(of(&v))]), node(2, vec![])]);
    assert!(r.left.is_empty(), "{r:?}");
    assert_eq!(ids(&r.state.volume_by_name("data").unwrap().shard(0).unwrap().members), [1]);
    // It is no promise that was not made, either: two nodes that were not looked at may have gone on.
    let v = view(6, 4, [1, 2, 3]);
    let r = |log: ShardSurvey| made(5, vec![node(1, vec![of(&v)]), node(2, vec![log])]);
    assert!(r(of(&v)).left.is_empty());
    assert!(why(&r(lost(of(&v)))).contains("there may be a later view than 6"));
}

/// Views 4 and 5 both followed view 3, and the one that was found is not the one that became active.
#[test]
fn a_view_that_may_have_been_passed_over_is_not_believed() {
    let (before, found) = (view(3, 1, [1, 2, 3]), view(4, 3, [1, 2, 4]));
    // Nodes 2 and 3 may have sealed view 3 again and opened view 5; what nodes 1 and 4 have was never active.
    let here = || vec![node(1, vec![pending(&found)]), node(4, vec![pending(&found)])];
    assert!(why(&made(4, here())).contains("not looked at"));
    // Node 3, too, has promised nothing else, so two of the three members of view 3 have not.
    let known = made(4, [here(), vec![node(3, vec![of(&before)])]].concat());
    assert_eq!(known.state.volume_by_name("data").unwrap().shard(0).unwrap().active, ViewNumber(4));
    // Something of it was committed: it was active, and the next one would have sealed it.
    let active = made(4, vec![node(1, vec![of(&found)]), node(4, vec![pending(&found)])]);
    assert!(active.left.is_empty(), "{active:?}");
}

/// What only some members hold counts if it may have been active on them and on nodes that are lost.
#[test]
fn a_view_that_may_have_been_active_on_lost_nodes_counts() {
    let all = |v: ViewSurvey| ViewSurvey { quorum: 3, ..v };
    let (old, new) = (all(view(4, 2, [1, 2, 3])), all(view(6, 4, [2, 1, 3])));
    let state = |r: &Rebuilt| r.state.volume_by_name("data").map(|v| v.shard(0).unwrap().clone());
    // With node 3 it would have been on all three. One that holds it has all that anybody was told.
    let r = made(3, vec![node(1, vec![pending(&new)]), node(2, vec![pending(&new)])]);
    let s = state(&r).unwrap();
    assert_eq!((s.active, ids(&s.members), ids(&s.joining)), (ViewNumber(6), vec![2, 1, 3], vec![3]));
    // That it was is not said; nor is it of the one before, of which no log here says that anything was committed.
    assert_eq!((s.known, s.known()), (Some(ViewNumber(0)), ViewNumber(0)));
    let active = made(3, vec![node(1, vec![of(&new)]), node(2, vec![pending(&new)])]);
    assert_eq!(state(&active).unwrap().known, None);
    // Without it, it never was.
    let r = made(3, vec![node(1, vec![pending(&new)]), node(2, vec![pending(&new)]), node(3, vec![of(&old)])]);
    let s = state(&r).unwrap();
    assert_eq!((s.active, s.highest, s.joining.len()), (ViewNumber(4), ViewNumber(1006), 0));
    // Of two copies that answer, one that is left may lack what was answered.
    let (old, new) = (view(4, 2, [1, 2, 3]), view(6, 4, [2, 1, 3]));
    let r = made(3, vec![node(1, vec![of(&old)]), node(2, vec![pending(&new)])]);
    assert!(why(&r).contains("1 of 3 copies are whole, and 2 are needed; more may be"), "{r:?}");
}

/// A log says more than its newest view: what became of one that followed can be seen from the one before.
#[test]
fn the_view_before_shows_that_none_was_passed_over() {
    let one = |v: ViewSurvey| ViewSurvey { quorum: 1, members: vec![NodeId(2)], ..v };
    let (old, new) = (one(view(4, 2, [2, 2, 2])), one(view(6, 4, [2, 2, 2])));
    let alone = pending(&new);
    assert!(why(&made(3, vec![node(2, vec![alone.clone()])])).contains("not looked at"));
    let both = ShardSurvey { views: vec![old, new], ..alone };
    let r = made(3, vec![node(2, vec![both])]);
    assert_eq!(r.state.volume_by_name("data").unwrap().shard(0).unwrap().active, ViewNumber(6));
}

#[test]
fn damaged_logs_do_not_count_and_learn() {
    let v = view(4, 2, [1, 2, 3]);
    let hurt = |n| node(n, vec![ShardSurvey { whole: false, ..of(&v) }]);
    let whole = |n| node(n, vec![of(&v)]);
    let r = made(3, vec![hurt(1), whole(2), whole(3)]);
    let s = r.state.volume_by_name("data").unwrap().shard(0).unwrap().clone();
    assert_eq!((ids(&s.members), ids(&s.joining)), (vec![2, 3, 1], vec![1]));
    assert!(why(&made(3, vec![hurt(1), hurt(2), whole(3)])).contains("1 of 3 copies are whole, and 2 are needed"));
}

#[test]
fn shards_that_are_missing_and_names_that_come_twice_are_said() {
    let two = VolumeSurvey { shards: 2, ..described("wide") };
    let v = ViewSurvey { volume: Some(two), ..view(4, 2, [1, 2, 3]) };
    let r = made(3, (1..=3).map(|n| node(n, vec![of(&v)])).collect());
    assert!(why(&r).contains("shard 1 is on no device"));
    assert_eq!(r.left[0].name.as_deref(), Some("wide"));
    let unnamed = ViewSurvey { volume: None, ..view(4, 2, [1, 2, 3]) };
    assert!(why(&made(3, vec![node(1, vec![of(&unnamed)])])).contains("no view frame says"));
    // One of the two was deleted while these nodes were away: the newer one keeps the name.
    let v = view(4, 2, [1, 2, 3]);
    let newer = ShardSurvey { shard: ShardId { volume: VolumeId(8), index: 0 }, ..of(&v) };
    let r = made(3, (1..=3).map(|n| node(n, vec![of(&v), newer.clone()])).collect());
    assert_eq!(r.state.volume_by_name("data").unwrap().id, VolumeId(8));
    assert_eq!(r.state.volume_by_name("data-3").unwrap().id, VOLUME);
    assert_eq!(r.back[0].was.as_deref(), Some("data"));
    // A volume that can't be brought back does not give its number to a new one.
    let lost = ShardSurvey { shard: ShardId { volume: VolumeId(40), index: 0 }, views: vec![], ..of(&v) };
    let mut r = made(3, (1..=3).map(|n| node(n, vec![of(&v), lost.clone()])).collect());
    assert_eq!((r.back.len(), r.left.len()), (1, 1));
    let create = freebs_control::CreateVolume {
        name: "new".into(),
        size: 1 << 30,
        copies: None,
        ack: Ack::Majority,
        min_copies: None,
        shards: None,
        stripe: None,
        retain_ms: None,
    };
    r.state.apply(Command::CreateVolume(create)).unwrap();
    assert!(r.state.volume_by_name("new").unwrap().id > VolumeId(40));
}

#[test]
fn what_is_not_of_this_cluster_is_refused() {
    let refused = |surveys: Vec<NodeSurvey>| rebuild(CLUSTER, &names(2), &surveys, REVISION).unwrap_err();
    let foreign = NodeSurvey { cluster: ClusterId([5; 16]), ..node(1, vec![]) };
    for surveys in [vec![foreign], vec![node(1, vec![]), node(1, vec![])], vec![node(3, vec![])]] {
        assert_eq!(refused(surveys).kind, ErrorKind::Invalid);
    }
    // Numbers from a damaged file make a state that is refused, not one that is wrong.
    let v = ViewSurvey { quorum: 0, ..view(4, 2, [1, 1, 1]) };
    let r = rebuild(CLUSTER, &names(2), &[node(1, vec![of(&v)])], REVISION);
    assert!(r.is_err() || r.is_ok_and(|r| r.back.is_empty()));
}

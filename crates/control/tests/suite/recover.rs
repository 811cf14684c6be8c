//! Forced recovery (V10): what is found when members are lost, what it costs to go on, and what the command does.

use freebs_control::events::{EventKind, told};
use freebs_control::recover::{LogStatus, Logs, Need, Plan, ShardRecovery, look, word};
use freebs_control::{Branch, Command, CreateVolume, Forced, RecoverShard, Shard, State};
use freebs_types::{
    ClusterId, ErrorKind, Generation, Hash32, NodeId, Sequence, ShardId, StartNumber, Version, ViewNumber, VolumeId,
};
use std::collections::BTreeSet;

const SHARD: ShardId = ShardId::new(1, 0);

fn register(node: u64, start: u64) -> Command {
    Command::RegisterNode {
        node: NodeId(node),
        name: format!("node{node}"),
        address: format!("127.0.0.1:{}", 7399 + node),
        workers: 1,
        start: StartNumber(start),
    }
}

fn register_all(s: &mut State, nodes: u64) {
    for n in 1..=nodes {
        s.apply(register(n, 1)).unwrap();
    }
}

/// View 1 of a volume on nodes 1, 2 and 3 of these is active.
fn cluster(nodes: u64) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    register_all(&mut s, nodes);
    let new = CreateVolume { name: "data".into(), size: 1 << 30, ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    open(&mut s);
    assert_eq!(s.shard(SHARD).unwrap().members, ids(&[1, 2, 3]));
    s
}

/// A volume of two copies on two nodes, which may go on with one.
fn pair() -> State {
    let mut s = State::new(ClusterId([7; 16]));
    register_all(&mut s, 2);
    let new = CreateVolume {
        name: "data".into(),
        size: 1 << 30,
        copies: Some(2),
        min_copies: Some(1),
        ..CreateVolume::default()
    };
    s.apply(Command::CreateVolume(new)).unwrap();
    s
}

/// The head opens the next view, and the one before it was sealed as usual.
fn open(s: &mut State) -> Shard {
    let (view, generation) = propose(s);
    s.apply(Command::ActivateView { shard: SHARD, view, generation }).unwrap();
    s.shard(SHARD).unwrap().clone()
}

/// The head opens the next view by force.
fn open_branch(s: &mut State) -> Shard {
    let (view, generation) = propose(s);
    s.apply(Command::ActivateBranch { shard: SHARD, view, generation }).unwrap();
    s.shard(SHARD).unwrap().clone()
}

fn propose(s: &mut State) -> (ViewNumber, Generation) {
    let sh = s.shard(SHARD).unwrap().clone();
    let (active, node) = (sh.active, sh.head().unwrap());
    let start = s.node(node).unwrap().start;
    s.apply(Command::ProposeView { shard: SHARD, active, node, start }).unwrap();
    (s.shard(SHARD).unwrap().highest, s.volume(VolumeId(1)).unwrap().generation)
}

fn ids(of: &[u64]) -> Vec<NodeId> {
    of.iter().copied().map(NodeId).collect()
}

fn names(of: &[u64]) -> Vec<String> {
    of.iter().map(|n| format!("node{n}")).collect()
}

/// A log of view 1 that ends at this frame, with a version less by ten.
fn log(last: u64, committed: u64) -> LogStatus {
    LogStatus {
        active: ViewNumber(1),
        has_view: true,
        last: Sequence(last),
        last_view: ViewNumber(1),
        version: Version(last.saturating_sub(10)),
        committed: Sequence(committed),
        ..LogStatus::default()
    }
}

/// Answers of these nodes; those without a log have nothing of the shard.
fn logs(of: &[(u64, Option<LogStatus>)]) -> Logs {
    let one = |(n, log): &(u64, Option<LogStatus>)| (NodeId(*n), log.iter().map(|l| (SHARD, *l)).collect());
    of.iter().map(one).collect()
}

fn found(s: &State, logs: &Logs) -> (ShardRecovery, Option<Command>) {
    let mut all = look(s, s.volume(VolumeId(1)).unwrap(), logs, &BTreeSet::new());
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn plan(s: &State, logs: &Logs) -> (Plan, RecoverShard) {
    let (shard, command) = found(s, logs);
    assert_eq!((shard.need, shard.why.as_str()), (Need::Force, ""));
    let Some(Command::RecoverShard(how)) = command else { panic!("a command") };
    (shard.plan.unwrap(), how)
}

#[test]
fn what_can_be_sealed_is_left_alone() {
    let s = cluster(5);
    let nothing = |of: &[(u64, Option<LogStatus>)]| {
        let (shard, command) = found(&s, &logs(of));
        assert_eq!((shard.need, &shard.plan, command), (Need::Nothing, &None, None), "{shard:#?}");
        shard.counting
    };
    let good = Some(log(100, 90));
    assert_eq!(nothing(&[(1, good), (2, good), (3, good), (4, None), (5, None)]), 3);
    assert_eq!(nothing(&[(2, good), (3, Some(log(80, 70)))]), 2);
    // Before there was any view nothing was written.
    let mut s = State::new(ClusterId([7; 16]));
    register_all(&mut s, 3);
    let new = CreateVolume { name: "data".into(), size: 1 << 30, ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    let empty = Some(LogStatus { has_view: true, ..LogStatus::default() });
    assert_eq!(found(&s, &logs(&[(1, empty), (3, empty)])).0.need, Need::Nothing);
    assert_eq!(found(&s, &logs(&[(3, empty)])).0.need, Need::Help, "nobody is to spare");
    s.apply(register(4, 1)).unwrap();
    let (shard, command) = found(&s, &logs(&[(3, empty), (4, None)]));
    assert_eq!((shard.need, shard.plan.unwrap().members), (Need::Members, names(&[3, 4])));
    s.apply(command.unwrap()).unwrap();
    let sh = s.shard(SHARD).unwrap();
    assert!(
        sh.joining.is_empty() && sh.active_members.is_empty() && sh.keepers.is_empty(),
        "there is nothing to learn"
    );
    assert_eq!(open(&mut s).members, ids(&[3, 4]));
}

#[test]
fn the_best_log_that_is_left_is_gone_on_from() {
    let s = cluster(5);
    let spare = [(4, None), (5, None)];
    let look = |of: &[(u64, Option<LogStatus>)]| plan(&s, &logs(&[of, &spare].concat()));
    let lost = |l: LogStatus, n| Some(LogStatus { lost: n, ..l });

    let (p, how) = look(&[(2, Some(log(100, 90)))]);
    let end = (p.head.as_str(), p.sequence, p.version, p.view, p.lost_from);
    assert_eq!(end, ("node2", Sequence(100), Version(90), ViewNumber(1), Sequence(0)));
    assert_eq!(
        (p.lost.clone(), p.back, p.members.clone(), p.new.clone()),
        (names(&[1, 3]), 1, names(&[2, 4, 5]), names(&[4, 5]))
    );
    assert!(!p.loses());
    assert_eq!((how.chain, how.least, how.members), (ids(&[2, 4, 5]), Sequence(100), ids(&[1, 2, 3])));
    let start = |of: &[u64]| ids(of).into_iter().map(|n| (n, StartNumber(1))).collect::<Vec<_>>();
    assert_eq!((how.survivors, how.lost), (start(&[2]), start(&[1, 3])));

    // A whole log before a longer one that has lost frames; that one has to promise, and does not follow: what it knows to
    // be committed lies behind.
    let (p, how) = look(&[(2, Some(log(100, 90))), (3, lost(log(120, 115), 7))]);
    assert_eq!((p.head.as_str(), p.sequence, p.lost_from, p.lost_inside), ("node2", Sequence(100), Sequence(101), 0));
    assert!(p.loses());
    assert_eq!((how.chain, how.survivors), (ids(&[2, 4, 5]), start(&[2, 3])));
    // One of which only the end is doubtful is a whole one as far as it goes.
    let suspect = Some(LogStatus { is_suspect: true, ..log(120, 115) });
    let (p, how) = look(&[(2, Some(log(100, 90))), (3, suspect)]);
    assert_eq!((p.head.as_str(), p.sequence, p.lost_from), ("node3", Sequence(120), Sequence(0)));
    assert_eq!(how.chain, ids(&[3, 2, 4]));
    // If there is no other, it is one that has lost frames.
    let (p, _) = look(&[(1, lost(log(120, 115), 7)), (3, lost(log(130, 115), 9))]);
    assert_eq!((p.head.as_str(), p.sequence, p.lost_inside), ("node3", Sequence(130), 9));
    assert!(p.loses());
    // Other logs have the frames that are given up, so none of them goes on as if it were the same.
    let (_, how) = look(&[(3, lost(log(130, 115), 9))]);
    assert_eq!((how.least, how.same), (Sequence(130), Sequence(0)));
    // One that is out of use does not count at all, and can promise nothing.
    let stopped = Some(LogStatus { is_stopped: true, ..log(140, 115) });
    let (p, how) = look(&[(2, Some(log(100, 90))), (3, stopped)]);
    assert_eq!((p.head.as_str(), how.lost), ("node2", start(&[1, 3])));
    let (_, how) = plan(&cluster(4), &logs(&[(2, Some(log(100, 90))), (3, stopped), (4, None)]));
    assert_eq!(how.chain, ids(&[2, 4]), "and is nobody to spare");
    // The committed sequence is known from another log.
    let (shard, _) = found(&s, &logs(&[(2, Some(log(100, 90))), (1, lost(log(90, 118), 1))]));
    assert_eq!((shard.counting, shard.needed, shard.committed), (1, 2, Sequence(118)));
    let why: Vec<&str> = shard.logs.iter().map(|l| l.why.as_str()).collect();
    assert_eq!(why, ["1 frames of its log are lost", "", "does not answer"]);
    // Two good logs, both behind what is known to be committed (V3).
    let (p, _) = look(&[(1, Some(log(100, 90))), (2, Some(log(99, 90))), (3, lost(log(90, 118), 1))]);
    assert_eq!((p.head.as_str(), p.lost_from, p.members), ("node1", Sequence(101), names(&[1, 2, 4])));
    // All logs are there, and the secret of the view is not.
    let lacks = Some(LogStatus { lacks_secret: true, ..log(100, 90) });
    let (p, how) = look(&[(1, lacks), (2, Some(log(100, 90)))]);
    assert_eq!((p.head.as_str(), p.lost_from, how.chain), ("node1", Sequence(0), ids(&[1, 2, 4])));
}

#[test]
fn why_force_does_not_help_is_said() {
    let s = cluster(5);
    let why = |s: &State, of: &[(u64, Option<LogStatus>)]| {
        let (shard, command) = found(s, &logs(of));
        assert_eq!((shard.need, &shard.plan, command), (Need::Help, &None, None));
        shard.why
    };
    assert!(why(&s, &[(4, None), (5, None)]).contains("nobody who answers has anything"));
    let late = Some(LogStatus { active: ViewNumber(0), ..log(100, 90) });
    assert!(why(&s, &[(2, late), (4, None)]).contains("node2 has not heard of view 1 yet"));
    assert!(why(&s, &[(2, Some(log(100, 90))), (3, None), (4, None)]).contains("node3 has not heard"));
    // Fewer than the volume is to have at least are not enough (V1).
    assert!(why(&cluster(3), &[(2, Some(log(100, 90)))]).contains("it needs 2 members, and 1 can be had"));
    // With one of three missing it goes on, shorter than before.
    let (p, how) = plan(&cluster(4), &logs(&[(2, Some(log(100, 90))), (4, None)]));
    assert_eq!((p.members, how.chain), (names(&[2, 4]), ids(&[2, 4])));
}

/// Of two copies both answer each write: the one that is left has everything, and can't go on alone.
#[test]
fn members_are_replaced_without_force_where_nothing_is_lost() {
    let mut s = State::new(ClusterId([7; 16]));
    register_all(&mut s, 4);
    let new = CreateVolume { name: "data".into(), size: 1 << 30, copies: Some(2), ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    attach(&mut s);
    open(&mut s);
    let both = logs(&[(1, Some(log(100, 90))), (2, Some(log(99, 90)))]);
    assert_eq!(found(&s, &both).0.need, Need::Nothing);
    let (shard, command) = found(&s, &logs(&[(2, Some(log(99, 90))), (3, None), (4, None)]));
    let p = shard.plan.unwrap();
    assert_eq!((shard.need, shard.counting, shard.needed), (Need::Members, 1, 1));
    assert_eq!((p.head.as_str(), p.loses(), p.lost.clone(), p.back), ("node2", false, names(&[1]), 1));
    let Some(Command::RecoverShard(how)) = command else { panic!("a command") };
    assert_eq!((how.by_force, how.chain.clone()), (false, ids(&[2, 3])));
    let (before, command) = (s.clone(), Command::RecoverShard(how));
    s.apply(command.clone()).unwrap();
    assert!(told(&before, &command, &s).iter().all(|t| t.kind != EventKind::Forced));
    let v = s.volume(VolumeId(1)).unwrap();
    assert_eq!((v.generation, v.holder.is_some()), (Generation(1), true), "whoever has it goes on");
    let sh = s.shard(SHARD).unwrap();
    assert_eq!((sh.members.clone(), sh.joining.clone(), sh.keepers.clone()), (ids(&[2, 3]), ids(&[3]), ids(&[1])));
    assert_eq!((sh.view_members(), &sh.forced), (&ids(&[1, 2])[..], &None));
    assert_eq!(s.encode()[4], 3);
    assert_eq!(open(&mut s).branch, None);
    // It learns: nothing more is to be done, although it does not count yet.
    let active = s.shard(SHARD).unwrap().active;
    let of = |last, has_view| LogStatus { active, has_view, last_view: active, ..log(last, 90) };
    assert_eq!(found(&s, &logs(&[(2, Some(of(120, true))), (3, Some(of(0, false)))])).0.need, Need::Nothing);
}

/// A chain that is shorter than the volume is to have it gets another member when there is a node.
#[test]
fn a_short_chain_grows() {
    let mut s = cluster(4);
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let nodes = |of: &[u64]| of.iter().map(|n| (NodeId(*n), StartNumber(1))).collect::<Vec<_>>();
    let grow = |away: &[u64]| Command::ExtendChains { away: nodes(away), waited: vec![] };
    let same = |s: &mut State, failed: &[u64]| {
        let before = s.clone();
        s.apply(grow(failed)).unwrap();
        assert_eq!(*s, before);
    };
    same(&mut s, &[]);
    let sh = open(&mut s);
    assert_eq!((sh.members, sh.joining), (ids(&[2, 4]), ids(&[4])));
    same(&mut s, &[]);
    s.apply(Command::MembersComplete { shard: SHARD, view: sh.active, nodes: ids(&[4]) }).unwrap();
    same(&mut s, &[1, 3]);
    // The command for members that are gone adds none.
    let before = s.clone();
    s.apply(Command::ReplaceMembers { gone: vec![], failed: nodes(&[1]) }).unwrap();
    assert_eq!(s, before);
    s.apply(Command::ReplaceMembers { gone: nodes(&[4]), failed: nodes(&[1]) }).unwrap();
    assert_eq!(s, before, "one of two is no quorum");
    let before = s.clone();
    s.apply(grow(&[1])).unwrap();
    let now = s.shard(SHARD).unwrap();
    assert_eq!((now.members.clone(), now.view_members().to_vec()), (ids(&[2, 4, 3]), ids(&[2, 4])));
    assert_eq!(now.joining, ids(&[3]));
    let events = told(&before, &grow(&[1]), &s);
    assert!(events[0].text.contains("node3 besides the others"), "{events:?}");
    assert_eq!(open(&mut s).joining, ids(&[3]));
    same(&mut s, &[1]);
}

/// A chain of one gets a second member, whose node dies before it has anything. A quorum of the two was wanted for taking it out
/// again: nobody did, and the next view could never become active.
#[test]
fn who_was_to_come_and_is_gone_is_not_waited_for() {
    let mut s = pair();
    open(&mut s);
    let (shard, command) = found(&s, &logs(&[(2, Some(log(100, 90)))]));
    assert_eq!((shard.need, shard.plan.unwrap().members), (Need::Members, names(&[2])));
    s.apply(command.unwrap()).unwrap();
    open(&mut s);
    s.apply(register(3, 1)).unwrap();
    let nodes = |of: &[u64]| of.iter().map(|n| (NodeId(*n), StartNumber(1))).collect::<Vec<_>>();
    s.apply(Command::ExtendChains { away: nodes(&[1]), waited: vec![] }).unwrap();
    let sh = s.shard(SHARD).unwrap().clone();
    assert_eq!((sh.members.clone(), sh.view_members()), (ids(&[2, 3]), &ids(&[2])[..]));
    let without = |s: &State, gone: &[u64]| {
        let mut s = s.clone();
        s.apply(Command::ReplaceMembers { gone: nodes(gone), failed: nodes(&[1]) }).unwrap();
        let sh = s.shard(SHARD).unwrap().clone();
        (sh.members, sh.joining, sh.active_members)
    };
    assert_eq!(without(&s, &[3]), (ids(&[2]), ids(&[]), ids(&[])), "nobody is to spare");
    s.apply(register(4, 1)).unwrap();
    assert_eq!(without(&s, &[3]), (ids(&[2, 4]), ids(&[4]), ids(&[2])));
    assert_eq!(without(&s, &[2]), (ids(&[2, 3]), ids(&[3]), ids(&[2])), "who has everything is not taken out");
    // An operator is quicker than the leader. Nothing hangs on it, so no view follows: the chain was taken to be on its way to
    // one for ever, and never got another member.
    let mut said = s.clone();
    let log = LogStatus { active: sh.active, last_view: sh.active, ..log(100, 90) };
    let (shard, command) = found(&said, &logs(&[(2, Some(log))]));
    assert_eq!(shard.need, Need::Members);
    said.apply(command.unwrap()).unwrap();
    let sh = said.shard(SHARD).unwrap().clone();
    assert_eq!((sh.members, sh.active_members, sh.keepers), (ids(&[2]), ids(&[]), ids(&[])));
    said.apply(Command::ExtendChains { away: nodes(&[1, 3]), waited: vec![] }).unwrap();
    assert_eq!(said.shard(SHARD).unwrap().members, ids(&[2, 4]));
    // Once its view is active it counts.
    let sh = open(&mut s);
    assert_eq!((sh.members, without(&s, &[3]).0), (ids(&[2, 3]), ids(&[2, 3])));
}

/// Node 4 took the place of 3, and then all members with the newest view are lost.
#[test]
fn who_kept_what_was_before_the_view_goes_on() {
    let mut s = cluster(6);
    let start = StartNumber(1);
    s.apply(Command::ReplaceMembers { gone: vec![(NodeId(3), start)], failed: vec![] }).unwrap();
    let sh = open(&mut s);
    assert_eq!(
        (sh.active, sh.members, sh.keepers.clone(), sh.learning),
        (ViewNumber(2), ids(&[1, 2, 4]), ids(&[3]), ids(&[4]))
    );
    let of = |last, has_view| LogStatus { active: ViewNumber(2), has_view, ..log(last, last) };
    let new = |last| LogStatus { last_view: ViewNumber(2), ..of(last, true) };
    let empty = LogStatus { last_view: ViewNumber(0), ..of(0, false) };
    // An empty log of a member that was new in the view counts, as in any seal (V2).
    let both = logs(&[(2, Some(new(150))), (4, Some(empty)), (3, Some(of(100, false)))]);
    assert_eq!(found(&s, &both).0.need, Need::Nothing);
    let (p, how) = plan(&s, &logs(&[(4, Some(empty)), (3, Some(of(100, false))), (5, None), (6, None)]));
    assert_eq!((p.head.as_str(), p.view, p.sequence), ("node3", ViewNumber(1), Sequence(100)));
    assert_eq!((p.lost, how.chain.clone()), (names(&[1, 2]), ids(&[3, 4, 5])));
    assert_eq!((how.least, how.same), (Sequence(100), Sequence(100)));
    // The end of an older view's log may have been cut when the lost view was opened: its members had other frames there.
    let kept = LogStatus { committed: Sequence(93), ..of(100, false) };
    let (_, uncertain) = plan(&s, &logs(&[(4, Some(empty)), (3, Some(kept)), (5, None), (6, None)]));
    assert_eq!((uncertain.least, uncertain.same), (Sequence(100), Sequence(93)));
    s.apply(Command::RecoverShard(how)).unwrap();
    let sh = s.shard(SHARD).unwrap();
    assert_eq!((sh.head(), sh.joining.clone()), (Some(NodeId(3)), ids(&[4, 5])));
    // A log with the view comes first, however little it has of it.
    let (p, _) = plan(&s, &logs(&[(2, Some(new(111))), (3, Some(of(120, false))), (5, None), (6, None)]));
    assert_eq!((p.head.as_str(), p.view), ("node2", ViewNumber(2)));
}

/// A member that was not looked at when the control state was made again may have an old image: it seals nothing (V8).
#[test]
fn who_was_not_looked_at_does_not_count() {
    let s = cluster(5);
    let mut volume = (**s.volume(VolumeId(1)).unwrap()).clone();
    let good = logs(&[(2, Some(log(100, 90))), (3, Some(log(100, 90))), (4, None), (5, None)]);
    assert_eq!(found(&s, &good).0.need, Need::Nothing);
    volume.shards[0].unseen = ids(&[3]);
    let (shard, command) = look(&s, &volume, &good, &BTreeSet::new()).remove(0);
    assert_eq!((shard.need, shard.counting), (Need::Force, 1));
    assert!(shard.logs[2].why.contains("was not looked at"), "{:?}", shard.logs);
    let Some(Command::RecoverShard(how)) = command else { panic!("a command") };
    assert_eq!(how.chain, ids(&[2, 3, 4]));
}

fn attach(s: &mut State) {
    let command = Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([1; 32]),
        name: "gw".into(),
        force: false,
        since: None,
        lapsed: false,
    };
    s.apply(command).unwrap();
}

#[test]
fn a_shard_goes_on_without_what_is_lost() {
    let mut s = cluster(5);
    attach(&mut s);
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    let command = Command::RecoverShard(how);
    let before = s.clone();
    s.apply(command.clone()).unwrap();
    let told = told(&before, &command, &s);
    let kinds: Vec<EventKind> = told.iter().map(|t| t.kind).collect();
    assert_eq!(kinds, [EventKind::Forced, EventKind::MemberReplaced, EventKind::MemberReplaced, EventKind::HeadMoved]);
    assert_eq!((told[0].about.as_deref(), told[0].shard.as_deref()), (Some("node2"), Some("1.0")));
    assert!(told[0].text.contains("version 90 (sequence 100), without node1, node3"), "{}", told[0].text);
    assert!(told[1].text.ends_with("is lost"), "{}", told[1].text);

    let v = s.volume(VolumeId(1)).unwrap();
    assert_eq!((v.generation, v.holder.clone()), (Generation(2), None), "who had it has to attach anew");
    assert_ne!(v.settled, v.generation, "its driver may live on, with leases of lost members");
    let sh = s.shard(SHARD).unwrap().clone();
    assert_eq!((sh.members.clone(), sh.joining.clone()), (ids(&[2, 4, 5]), ids(&[4, 5])));
    assert_eq!((sh.view_members(), sh.keepers.clone()), (&ids(&[1, 2, 3])[..], vec![]));
    assert_eq!(
        sh.forced,
        Some(Forced {
            survivors: ids(&[2]),
            least: Sequence(100),
            version: Version(90),
            same: Sequence(100),
            known: Sequence(90),
            gives_up: 0,
            kept: ids(&[1, 3])
        })
    );
    assert_eq!(s.encode()[4], 4, "a reader that passes over it would let lost logs go on");
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    assert_eq!(v.description_of(&sh).branch, ViewNumber(0));
    // Asked once more, it is as it was.
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    let before = s.clone();
    s.apply(Command::RecoverShard(how)).unwrap();
    assert_eq!(s, before);

    let propose = |node, start| Command::ProposeView {
        shard: SHARD,
        active: ViewNumber(1),
        node: NodeId(node),
        start: StartNumber(start),
    };
    s.apply(propose(2, 1)).unwrap();
    let said = s.volume(VolumeId(1)).unwrap().description_of(s.shard(SHARD).unwrap());
    assert_eq!(said.branch, ViewNumber(0), "it is the head who knows whether it begins one");
    let sh = open_branch(&mut s);
    assert_eq!(
        (sh.forced.clone(), sh.branch),
        (None, Some(Branch { view: sh.active, at: Sequence(100), version: Version(90) }))
    );
    assert_eq!(s.volume(VolumeId(1)).unwrap().description_of(&sh).branch, sh.active);
    assert!(!sh.is_kept_by(NodeId(1)) && !sh.is_kept_by(NodeId(3)), "who is lost keeps nothing");
    assert_eq!(State::decode(&s.encode()).unwrap(), s);

    // Once more, further on: of older logs what was known to be the same stays so.
    let log = LogStatus { active: sh.active, last_view: sh.active, ..log(500, 490) };
    let (_, how) = plan(&s, &logs(&[(4, Some(log)), (1, None), (3, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    assert_eq!(s.shard(SHARD).unwrap().branch, sh.branch);
    let again = open_branch(&mut s);
    assert_eq!(again.branch, Some(Branch { view: again.active, at: Sequence(100), version: Version(490) }));
}

/// A driver that gave the volume back can have no lease, so nobody has to wait for one.
#[test]
fn a_volume_that_nobody_had_stays_settled() {
    let mut s = cluster(5);
    attach(&mut s);
    let (volume, generation) = (VolumeId(1), Generation(1));
    s.apply(Command::DetachVolume { volume, generation, settled: true }).unwrap();
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let v = s.volume(volume).unwrap();
    assert_eq!((v.generation, v.settled), (Generation(2), Generation(2)));
}

#[test]
fn what_was_seen_has_to_be_so_still() {
    let s = cluster(5);
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    let kind = |before: &State, how: &RecoverShard| {
        let mut s = before.clone();
        let e = s.apply(Command::RecoverShard(how.clone())).unwrap_err();
        assert_eq!(&s, before, "a refused command changes nothing");
        e.kind
    };
    // A lost node is back, or the survivor was started again.
    for n in [1, 2, 3] {
        let mut s = s.clone();
        s.apply(register(n, 2)).unwrap();
        assert_eq!(kind(&s, &how), ErrorKind::Fenced, "node {n}");
    }
    let mut moved = s.clone();
    moved.apply(Command::MoveHead { shard: SHARD, node: NodeId(3) }).unwrap();
    assert_eq!(kind(&moved, &how), ErrorKind::Fenced);
    let mut later = s.clone();
    open(&mut later);
    assert_eq!(kind(&later, &how), ErrorKind::Fenced);
    let wrong: [fn(&mut RecoverShard); 11] = [
        |h| h.learn = ids(&[2]),
        |h| h.learn = ids(&[3]),
        |h| h.same = Sequence(101),
        |h| h.survivors.clear(),
        |h| h.lost.truncate(1),
        |h| h.chain = ids(&[4, 2, 5]),
        |h| h.chain = ids(&[2]),
        |h| h.chain = ids(&[2, 4, 4]),
        |h| h.chain = ids(&[2, 4, 1]),
        |h| h.chain = ids(&[2, 4, 5, 6]),
        |h| h.lost.push((NodeId(2), StartNumber(1))),
    ];
    for (i, spoil) in wrong.iter().enumerate() {
        let mut how = how.clone();
        spoil(&mut how);
        assert_eq!(kind(&s, &how), ErrorKind::Invalid, "{i}");
    }
    assert!(s.clone().apply(Command::RecoverShard(how)).is_ok());
}

/// The lost were back in time, and the view was sealed as usual: nothing is lost, and no branch is shown. Who had everything
/// keeps it until the new members have it, too (V7).
#[test]
fn what_was_sealed_after_all_is_no_branch() {
    let mut s = cluster(5);
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let (view, generation) = propose(&mut s);
    let before = s.clone();
    let command = Command::ActivateView { shard: SHARD, view, generation };
    s.apply(command.clone()).unwrap();
    let sh = s.shard(SHARD).unwrap().clone();
    assert_eq!((&sh.forced, sh.branch, sh.active), (&None, None, view));
    assert_eq!((sh.joining.clone(), sh.keepers.clone()), (ids(&[4, 5]), ids(&[1, 3])));
    assert_eq!(s.volume(VolumeId(1)).unwrap().description_of(&sh).branch, ViewNumber(0));
    let told = told(&before, &command, &s);
    assert!(told[0].text.contains("sealed as usual after all, so nothing is lost"), "{told:?}");
    s.apply(Command::MembersComplete { shard: SHARD, view, nodes: ids(&[4, 5]) }).unwrap();
    assert_eq!(s.shard(SHARD).unwrap().keepers, ids(&[]));
    // Nobody begins a branch unasked.
    let (view, generation) = propose(&mut s);
    let e = s.apply(Command::ActivateBranch { shard: SHARD, view, generation }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Fenced);
    assert_eq!(s.shard(SHARD).unwrap().active, sh.active);
}

/// The word was given twice, with another chain the second time: what was lost by the first one is still remembered.
#[test]
fn another_word_forgets_nobody() {
    let mut s = cluster(6);
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (4, None), (5, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let (_, how) = plan(&s, &logs(&[(2, Some(log(104, 90))), (4, None), (6, None)]));
    assert_eq!((how.chain.clone(), how.least), (ids(&[2, 4, 6]), Sequence(104)));
    s.apply(Command::RecoverShard(how.clone())).unwrap();
    let word = s.shard(SHARD).unwrap().forced.clone().unwrap();
    assert_eq!((word.least, word.kept), (Sequence(104), ids(&[1, 3])));
    // The same chain, and a log that is known to reach further: that is another word.
    let further = RecoverShard { least: Sequence(106), same: Sequence(106), members: how.chain.clone(), ..how };
    s.apply(Command::RecoverShard(further)).unwrap();
    let sh = s.shard(SHARD).unwrap();
    assert_eq!(sh.forced.as_ref().map(|f| (f.least, f.kept.clone())), Some((Sequence(106), ids(&[1, 3]))));
    assert_eq!((sh.joining.clone(), sh.view_members()), (ids(&[4, 6]), &ids(&[1, 2, 3])[..]));
}

/// The only logs have lost frames: what one gives up others may have. Until it is certain that the shard goes on from there
/// nobody learns it, so the one that gives them up is alone.
#[test]
fn who_gives_up_lost_frames_is_alone_at_first() {
    let mut s = cluster(5);
    let lost = |l: LogStatus, n| Some(LogStatus { lost: n, ..l });
    let old = LogStatus { has_view: false, is_suspect: true, last_view: ViewNumber(0), ..log(50, 40) };
    let seen = logs(&[(2, lost(log(100, 90), 3)), (3, Some(old)), (4, None), (5, None)]);
    let (p, how) = plan(&s, &seen);
    assert_eq!((p.head.as_str(), how.same, how.gives_up), ("node2", Sequence(0), 3));
    assert_eq!((how.chain.clone(), how.learn.clone(), p.new), (ids(&[2]), ids(&[]), names(&[])));
    s.apply(Command::RecoverShard(how)).unwrap();
    let sh = open_branch(&mut s);
    assert_eq!((sh.members, sh.joining, sh.branch.unwrap().at), (ids(&[2]), ids(&[]), Sequence(0)));
    assert_eq!(sh.keepers, ids(&[3]), "others keep what they have until there is a second one");
    // Its head is started again, and has another view: the others let go of what they had, and its log was the only one.
    assert_eq!(open(&mut s).keepers, ids(&[3]), "there is no second one yet");
    // It gets others by itself, one at a time.
    s.apply(Command::ExtendChains { away: vec![], waited: vec![] }).unwrap();
    let sh = s.shard(SHARD).unwrap().clone();
    assert_eq!((sh.members, sh.joining), (ids(&[2, 3]), ids(&[3])), "a former member comes first, and begins anew");
    let sh = open(&mut s);
    s.apply(Command::MembersComplete { shard: SHARD, view: sh.active, nodes: ids(&[3]) }).unwrap();
    assert_eq!(s.shard(SHARD).unwrap().keepers, ids(&[]));
    // With two nodes at most there is nobody to come later.
    let how =
        |s: &State| look(s, s.volume(VolumeId(1)).unwrap(), &logs(&[(2, lost(log(100, 90), 3))]), &BTreeSet::new());
    assert_eq!(how(&cluster(3)).remove(0).0.need, Need::Help);
}

/// Frames were given up, and before a branch was active the operator looked again. It was said that nothing is lost, logs of
/// others were taken to be the same, and they kept what was given up.
#[test]
fn what_was_given_up_is_remembered() {
    let mut s = cluster(6);
    let holed = LogStatus { lost: 2, ..log(100, 90) };
    let (_, how) = plan(&s, &logs(&[(2, Some(holed)), (4, None), (5, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let since = LogStatus { lost: 0, has_given_up: true, ..holed };
    let (p, how) = plan(&s, &logs(&[(2, Some(since)), (4, None), (6, None)]));
    assert!(p.loses() && p.has_given_up && p.lost_inside == 0);
    assert_eq!((how.same, how.gives_up, how.chain.clone()), (Sequence(0), 1, ids(&[2])));
    s.apply(Command::RecoverShard(how)).unwrap();
    // A member with a whole log is back: that is gone on from, and others are not known to be the same.
    let (p, how) = plan(&s, &logs(&[(2, Some(since)), (3, Some(log(90, 80))), (4, None), (6, None)]));
    assert_eq!((p.head.as_str(), p.loses(), how.gives_up), ("node3", false, 0));
    assert_eq!((how.chain.clone(), how.same), (ids(&[3, 4, 6]), Sequence(90)));
    s.apply(Command::RecoverShard(how)).unwrap();
    assert_eq!(s.shard(SHARD).unwrap().forced.as_ref().unwrap().same, Sequence(0));
    assert_eq!(open_branch(&mut s).branch.unwrap().at, Sequence(0));
}

/// The decision is on the plan that was shown: another situation has another word. Who stands still for a moment is not lost.
#[test]
fn a_word_is_of_one_situation() {
    let s = cluster(5);
    let whole = log(100, 90);
    let short = LogStatus { lost: 3, ..log(80, 80) };
    let of = |seen: &Logs, silent: &[u64]| {
        let silent = ids(silent).into_iter().collect();
        let (found, command) = look(&s, s.volume(VolumeId(1)).unwrap(), seen, &silent).remove(0);
        (found, word(&command).unwrap())
    };
    let both = logs(&[(1, Some(whole)), (2, Some(short)), (4, None), (5, None)]);
    let one = logs(&[(2, Some(short)), (4, None), (5, None)]);
    let (shown, first) = of(&both, &[]);
    assert_eq!((shown.plan.unwrap().head.as_str(), first.len()), ("node1", 8));
    assert_eq!(of(&both, &[]).1, first);
    assert_ne!(of(&one, &[]).1, first);
    let (shown, word) = of(&one, &[1]);
    assert_eq!((shown.need, shown.plan, word.as_str()), (Need::Help, None, ""));
    assert!(shown.why.contains("node1 is there, and does not say what it has"), "{}", shown.why);
}

/// After it went on by force a survivor that does not follow yet knows of frames that were given up. The shard was said to need
/// force again, and whoever had it attached was thrown out each time.
#[test]
fn a_log_of_before_the_branch_says_nothing_of_it() {
    let mut s = cluster(5);
    let damaged = LogStatus { lost: 7, ..log(120, 115) };
    let (_, how) = plan(&s, &logs(&[(2, Some(log(100, 90))), (3, Some(damaged)), (4, None), (5, None)]));
    s.apply(Command::RecoverShard(how)).unwrap();
    let sh = open_branch(&mut s);
    assert_eq!(sh.keepers, ids(&[3]));
    let new = LogStatus { active: sh.active, last_view: sh.active, ..log(105, 102) };
    let old = LogStatus { active: sh.active, has_view: false, ..damaged };
    let (shard, _) = found(&s, &logs(&[(2, Some(new)), (3, Some(old)), (4, Some(new)), (5, Some(new))]));
    assert_eq!((shard.need, shard.committed), (Need::Nothing, Sequence(102)));
}

/// A member that stays in the chain keeps what it has only if that is known to be the same as the log that is gone on from.
#[test]
fn who_may_know_another_history_learns_anew() {
    // Both have what was before the lost view, and one of them knows more of it to be committed than the other.
    let mut s = cluster(6);
    s.apply(Command::ReplaceMembers { gone: vec![(NodeId(3), StartNumber(1))], failed: vec![] }).unwrap();
    let sh = open(&mut s);
    let of = |last, committed| LogStatus {
        active: sh.active,
        has_view: false,
        last_view: ViewNumber(1),
        ..log(last, committed)
    };
    for (committed, learns) in [(40, vec![]), (60, ids(&[2]))] {
        let (_, how) = plan(&s, &logs(&[(3, Some(of(100, 50))), (2, Some(of(90, committed))), (5, None), (6, None)]));
        assert_eq!((how.chain[0], how.same, how.learn.clone()), (NodeId(3), Sequence(50), learns.clone()));
        let mut forced = s.clone();
        forced.apply(Command::RecoverShard(how)).unwrap();
        assert_eq!(forced.shard(SHARD).unwrap().joining.contains(&NodeId(2)), !learns.is_empty());
    }
}

/// A log gave lost frames up, and is the only one of the chain when a member with a whole log is back. The head waited for an
/// operator, and he was told that there is nothing to be done.
#[test]
fn a_head_that_gave_frames_up_does_not_lead_a_view_that_can_be_sealed() {
    let mut s = pair();
    let members = open(&mut s).members;
    let (alone, back) = (members[1], members[0]);
    let holed = LogStatus { lost: 2, ..log(100, 90) };
    let (_, how) = plan(&s, &logs(&[(alone.0, Some(holed))]));
    assert_eq!((how.chain.clone(), how.gives_up), (vec![alone], 2));
    s.apply(Command::RecoverShard(how)).unwrap();
    let since = LogStatus { lost: 0, has_given_up: true, ..holed };
    let (shard, command) = found(&s, &logs(&[(alone.0, Some(since)), (back.0, Some(log(100, 90)))]));
    let Some(Command::RecoverShard(how)) = command else { panic!("{shard:?}") };
    assert_eq!((shard.need, how.by_force, how.chain[0]), (Need::Members, false, back));
    s.apply(Command::RecoverShard(how)).unwrap();
    assert_eq!(s.shard(SHARD).unwrap().members[0], back);
}

/// Nobody has the view. A keeper is there and stands still: it may have more of what was before than the one that answers.
#[test]
fn a_keeper_that_is_silent_may_have_the_best_log() {
    let mut s = cluster(5);
    s.apply(Command::ReplaceMembers { gone: vec![(NodeId(3), StartNumber(1))], failed: vec![] }).unwrap();
    let sh = open(&mut s);
    assert_eq!(sh.keepers, ids(&[3]));
    let old = LogStatus { has_view: false, active: sh.active, ..log(50, 40) };
    let seen = logs(&[(1, Some(old)), (5, None)]);
    let look_with = |silent: &[u64]| {
        let silent = silent.iter().map(|n| NodeId(*n)).collect();
        look(&s, s.volume(VolumeId(1)).unwrap(), &seen, &silent).remove(0).0
    };
    assert_eq!(look_with(&[]).need, Need::Force);
    let found = look_with(&[3]);
    assert_eq!(found.need, Need::Help);
    assert!(found.why.contains("node3 is there, and does not say what it has"), "{}", found.why);
}

//! Members' audits put together: where they agree, who differs, and which secrets one can be told by another.

use freebs_control::api::{Reply, Request};
use freebs_control::audit::{
    AuditBranch, AuditBreak, AuditGo, AuditOf, AuditState, Difference, MemberAudit, UnfitSecret, VolumeAudit, compare,
    secrets,
};
use freebs_types::{Hash32, Sequence, ShardId, Version, ViewNumber};
use std::collections::BTreeMap;

fn hash(n: u8) -> Hash32 {
    Hash32([n; 32])
}

/// A member that has frames of these numbers; those in `other` are not what others have.
fn member(has: &[u64], other: &[u64], committed: u64) -> MemberAudit {
    let hid = |s: u64| hash(if other.contains(&s) { 200 } else { s as u8 });
    MemberAudit {
        version: Version(9),
        sequence: Sequence(10),
        committed: Sequence(committed),
        ranges: Vec::new(),
        folded: false,
        breaks: Vec::new(),
        break_count: 0,
        branches: Vec::new(),
        proven: 0,
        linked: 0,
        summarised: 0,
        segments: 1,
        bytes: 2,
        samples: has.iter().map(|s| (Sequence(*s), hid(*s))).collect(),
        published: Vec::new(),
        unknown: Vec::new(),
        unfit: Vec::new(),
        mended: 0,
    }
}

fn difference(sequence: u64, same_to: u64, nodes: &[&str]) -> Option<Difference> {
    let nodes = nodes.iter().map(|n| (*n).to_owned()).collect();
    Some(Difference { sequence: Sequence(sequence), same_to: Sequence(same_to), nodes })
}

#[test]
fn members_agree_as_far_as_two_of_them_have_the_same() {
    let (a, b, c) = (member(&[2, 4, 8], &[], 9), member(&[4, 8, 10], &[], 10), member(&[], &[], 10));
    let found = compare(&[("a", &a), ("b", &b), ("c", &c)]);
    assert_eq!((found.same_to, found.nodes, found.difference), (Sequence(8), vec!["a".into(), "b".into()], None));
    assert_eq!(compare(&[("a", &a)]).same_to, Sequence(0), "one alone agrees with nobody");
    assert_eq!(compare(&[]), <_>::default());
}

#[test]
fn a_member_that_differs_is_named_where_it_begins() {
    let (a, b) = (member(&[2, 4, 8], &[], 9), member(&[2, 4, 8], &[], 9));
    let c = member(&[2, 4, 8], &[4, 8], 9);
    let found = compare(&[("a", &a), ("b", &b), ("c", &c)]);
    assert_eq!((found.difference, found.same_to), (difference(4, 2, &["c"]), Sequence(2)));
    // Of two nobody knows which one is right.
    assert_eq!(compare(&[("a", &a), ("c", &c)]).difference, difference(4, 2, &["a", "c"]));
    // Frames that are not committed may still be cut.
    let c = member(&[2, 4, 8], &[4, 8], 3);
    assert_eq!(compare(&[("a", &a), ("b", &b), ("c", &c)]).difference, None);
}

#[test]
fn secrets_that_one_log_lost_come_from_others() {
    let (mut a, mut b, mut c) = (member(&[], &[], 9), member(&[], &[], 9), member(&[], &[], 9));
    a.published = vec![(ViewNumber(3), hash(3)), (ViewNumber(2), hash(2))];
    b.published = vec![(ViewNumber(3), hash(3))];
    c.published = vec![(ViewNumber(3), hash(99))];
    c.unknown = vec![ViewNumber(5), ViewNumber(2)];
    let known = secrets([&a, &b, &c].into_iter());
    assert_eq!(known, BTreeMap::from([(ViewNumber(2), hash(2)), (ViewNumber(3), hash(3))]));
    assert_eq!(c.lacks(&known), [(ViewNumber(2), hash(2))]);
    assert_eq!(a.lacks(&known), []);
}

/// The frames stay linked where the word does not fit, and it is said whose it was.
#[test]
fn who_published_a_secret_that_does_not_fit_is_named() {
    let (mut a, mut b, mut c) = (member(&[4], &[], 9), member(&[4], &[], 9), member(&[4], &[], 9));
    a.published = vec![(ViewNumber(2), hash(99)), (ViewNumber(1), hash(1))];
    b.unfit = vec![(ViewNumber(2), hash(99))];
    c.published = vec![(ViewNumber(2), hash(2))];
    let named = [("a", a), ("b", b), ("c", c)].into_iter().map(|(node, m)| (node.to_owned(), Ok(m)));
    let v = VolumeAudit::new("v".into(), vec![("1.0".into(), named.collect())]);
    let unfit = UnfitSecret { view: ViewNumber(2), published_by: vec!["a".to_owned()], unfit_at: vec!["b".to_owned()] };
    assert_eq!((v.sound, &v.shards[0].unfit), (true, &vec![unfit]));
    let json = serde_json::to_value(&v).unwrap();
    assert_eq!(json["shards"][0]["unfit"][0]["published_by"][0], "a");
    assert_eq!(json["shards"][0]["members"][1]["audit"].get("unfit"), None);
}

#[test]
fn a_volume_is_sound_without_breaks_and_differences_and_complete_with_all_members() {
    let sound = || Ok(member(&[4], &[], 9));
    let volume = |members: Vec<Result<MemberAudit, String>>| {
        let named = members.into_iter().enumerate().map(|(i, m)| (format!("node{i}"), m)).collect();
        VolumeAudit::new("v".into(), vec![("1.0".into(), named)])
    };
    let of = |v: &VolumeAudit| (v.sound, v.complete);
    let all = volume(vec![sound(), sound(), sound()]);
    assert_eq!(of(&all), (true, true));
    assert!(all.shards[0].members.iter().all(|m| m.sound && m.audit.as_ref().is_some_and(|a| a.samples.is_empty())));
    assert_eq!(of(&volume(vec![sound(), Err("it is stopped".into())])), (true, false));
    assert_eq!(of(&volume(vec![sound(), sound(), Ok(member(&[4], &[4], 9))])), (false, true));
    let mut broken = member(&[4], &[], 9);
    broken.break_count = 1;
    let v = volume(vec![sound(), Ok(broken), Err("it is stopped".into())]);
    assert_eq!(of(&v), (false, false));
    assert_eq!(v.shards[0].members.iter().map(|m| m.sound).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn questions_and_answers_go_there_and_back_as_json() {
    let go = AuditGo { at: vec![Sequence(7)], secrets: vec![(ViewNumber(2), hash(2))] };
    let audit = AuditOf { shard: ShardId::new(1, 0), run: u64::MAX, go: Some(go) };
    let asked = Request::ShardAudit { node: Some("node1".into()), audit };
    assert_eq!(Request::decode(&asked.encode()).unwrap(), asked);
    let short = br#"{"request":"shard_audit","audit":{"shard":{"volume":1,"index":0},"run":5}}"#;
    let audit = AuditOf { shard: ShardId::new(1, 0), run: 5, go: None };
    assert_eq!(Request::decode(short).unwrap(), Request::ShardAudit { node: None, audit });
    let mut member = member(&[4], &[], 9);
    member.breaks.push(AuditBreak {
        cause: "forged".into(),
        view: ViewNumber(3),
        first: Sequence(4),
        last: Sequence(4),
        version: Version(3),
        segment: Some(1),
        offset: Some(2),
        byte: Some(3),
        what: "words".into(),
    });
    member.published.push((ViewNumber(1), hash(1)));
    for state in [
        AuditState::Ready { committed: Sequence(3) },
        AuditState::Reading { done: 1, total: 2 },
        AuditState::Done(Box::new(member)),
    ] {
        let reply = Reply::Audit(state);
        assert_eq!(Reply::decode(&Reply::encode(Ok(reply.clone()))).unwrap(), reply);
    }
}

/// A node that knows no token wrote a view frame that calls itself a branch, and went on. It was told, and called no break.
#[test]
fn a_branch_that_nobody_knows_of_is_a_break() {
    let branch =
        |view, sequence| AuditBranch { view: ViewNumber(view), sequence: Sequence(sequence), version: Version(3) };
    let m = MemberAudit { branches: vec![branch(4, 5), branch(7, 9), branch(8, 12)], ..member(&[2], &[], 10) };
    let breaks = |newest| {
        let m = m.clone().with_branches_known(ViewNumber(newest));
        assert_eq!(m.break_count, m.breaks.len() as u64);
        m.breaks.iter().map(|b| (b.cause.clone(), b.view.0, b.first.0)).collect::<Vec<_>>()
    };
    assert_eq!(breaks(7), [], "the last one is not committed, and may be cut yet");
    assert_eq!(breaks(4), [("branch".to_owned(), 7, 9)]);
    assert_eq!(breaks(0).len(), 2);
    let found = VolumeAudit::new(
        "v".into(),
        vec![("1.0".into(), vec![("a".into(), Ok(m.with_branches_known(ViewNumber(0))))])],
    );
    assert!(!found.sound);
}

//! Snapshots as heads hear of them, and their words as commands.

use super::*;
use freebs_chain::{CutWord, ShardSnapshots, UnderWay};
use freebs_control::{Cut, Stage};
use freebs_types::{Fork, SnapshotId};

fn begin(s: &mut State, name: &str) -> SnapshotId {
    let volumes = s.volumes().map(|v| v.id).collect();
    match s.apply(Command::BeginSnapshot { name: name.into(), volumes, created_ms: 1, past: None }).unwrap().outcome {
        Outcome::SnapshotBegun { snapshot } => snapshot,
        other => panic!("{other:?}"),
    }
}

fn heard(shards: &mut Shards, s: &State) -> Option<ShardSnapshots> {
    shards.on_state(s, &[], &[]).changed.into_iter().find(|i| i.shard == SHARD).map(|i| i.snapshots)
}

#[test]
fn heads_hear_of_each_stage_and_of_nothing_twice() {
    let mut s = cluster();
    s.apply(Command::CreateVolume(CreateVolume { name: "b".into(), size: 1 << 30, ..CreateVolume::default() }))
        .unwrap();
    let view = open(&mut s);
    let mut shards = Shards::new(Peer::of(head(&s), SHARD, 2), 2);
    heard(&mut shards, &s);
    let id = begin(&mut s, "a");
    let first = UnderWay { id, is_alone: false, is_decided: false, reported: None, is_confirmed: false, past: None };
    let news = heard(&mut shards, &s).unwrap();
    assert!(news.under_way == Some(first) && news.kept.contains(&id));
    let before = s.clone();
    let cut = Cut { view, version: Version(3), sequence: Sequence(4) };
    s.apply(Command::ReportCuts { snapshot: id, cuts: vec![(SHARD, cut)] }).unwrap();
    let reported = UnderWay { reported: Some(view), ..first };
    assert_eq!(heard(&mut shards, &s).unwrap().under_way, Some(reported));
    assert_eq!(heard(&mut shards, &s), None, "nothing new");
    s.apply(Command::FailSnapshot { snapshot: id, why: String::new() }).unwrap();
    let news = heard(&mut shards, &s).unwrap();
    assert!(news.under_way.is_none() && news.kept.is_empty());
    assert_eq!(heard(&mut shards, &before), None, "an older state says nothing of them");
}

#[test]
fn one_shard_is_alone_in_its_snapshot() {
    let mut s = cluster();
    open(&mut s);
    begin(&mut s, "a");
    let mut shards = Shards::new(Peer::of(head(&s), SHARD, 2), 2);
    assert!(heard(&mut shards, &s).unwrap().under_way.is_some_and(|u| u.is_alone));
}

#[test]
fn words_of_heads_become_commands() {
    let mut s = cluster();
    s.apply(Command::CreateVolume(CreateVolume { name: "b".into(), size: 1 << 30, ..CreateVolume::default() }))
        .unwrap();
    let view = open(&mut s);
    let other = ShardId { volume: VolumeId(2), index: 0 };
    let (node, start) = (s.shard(other).unwrap().head().unwrap(), StartNumber(1));
    let propose = Command::ProposeView { shard: other, active: ViewNumber(0), node, start };
    let Outcome::Proposed { view: second, generation, .. } = s.apply(propose).unwrap().outcome else { panic!() };
    s.apply(Command::ActivateView { shard: other, view: second, generation }).unwrap();
    let id = begin(&mut s, "a");
    let before = s.revision();
    let plane = Plane::new(s);
    let port = Port::new(plane.clone(), NodeId(1));
    let cut = |shard, view| CutWord::Cut { shard, snapshot: id, view, version: Version(3), sequence: Sequence(4) };
    now(port.cuts(vec![cut(SHARD, view), cut(other, second)])).unwrap();
    assert_eq!(plane.state().revision(), before + 1, "both in one command");
    assert_eq!(plane.state().snapshot_record(id).unwrap().stage, Stage::Decided);
    let held = |shard, view| CutWord::Held { shard, snapshot: id, view };
    let unknown = CutWord::Fails { snapshot: SnapshotId(99), why: "so".into() };
    now(port.cuts(vec![held(SHARD, view), unknown, held(other, second)])).unwrap();
    assert!(plane.state().snapshot_record(id).unwrap().is_complete());
}

/// A member that is not told where a clone's shard begins would begin it with nothing.
#[test]
fn members_of_a_clone_hear_where_it_begins() {
    let mut s = cluster();
    let view = open(&mut s);
    let id = begin(&mut s, "a");
    let cut = Cut { view, version: Version(3), sequence: Sequence(4) };
    s.apply(Command::ReportCuts { snapshot: id, cuts: vec![(SHARD, cut)] }).unwrap();
    let clone = Command::CloneVolume { volume: SHARD.volume, snapshot: "a".into(), name: "c".into() };
    let Outcome::Created { volume } = s.apply(clone).unwrap().outcome else { panic!() };
    let of = ShardId { volume, index: 0 };
    let me = Peer::of(head(&s), SHARD, 2);
    assert_eq!(Peer::of(head(&s), of, 2), me, "the worker that has the parent");
    let mut shards = Shards::new(me, 2);
    let told = |shards: &mut Shards, s: &State| {
        let changed = shards.on_state(s, &[], &[]).changed;
        changed.into_iter().map(|i| (i.shard, i.fork, i.flatten)).collect::<Vec<_>>()
    };
    let fork = Fork { parent: SHARD, snapshot: id, version: Version(3), sequence: Sequence(4) };
    assert_eq!(told(&mut shards, &s), [(SHARD, None, false), (of, Some(fork), false)]);
    s.apply(Command::FlattenVolume { volume }).unwrap();
    assert_eq!(told(&mut shards, &s), [(of, Some(fork), true)]);
}

//! Clones: what they begin with, where they lie, what is refused, and the order in which things may be deleted.

use freebs_control::api::{OriginStatus, Reply};
use freebs_control::events::{EventKind, told};
use freebs_control::recover::{LogStatus, Logs, Need, look};
use freebs_control::{Ack, Changes, Command, CreateVolume, Cut, Outcome, State, limits};
use freebs_types::*;
use std::collections::BTreeSet;

const SOURCE: VolumeId = VolumeId(1);

fn register(node: u64, start: u64) -> Command {
    let (name, address) = (format!("n{node}"), format!("127.0.0.1:{}", 7400 + node));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 8, start: StartNumber(start) }
}

/// Five nodes, and the volume `data` of two shards, whose views are active.
fn cluster() -> State {
    let mut state = State::new(ClusterId([1; 16]));
    (1..=5).for_each(|n| _ = state.apply(register(n, 1)).unwrap());
    let new = CreateVolume {
        name: "data".into(),
        size: 1 << 30,
        shards: Some(2),
        ack: Ack::All,
        min_copies: Some(1),
        stripe: Some(1 << 16),
        ..CreateVolume::default()
    };
    state.apply(Command::CreateVolume(new)).unwrap();
    open_all(&mut state, SOURCE);
    state
}

fn shards(state: &State, volume: VolumeId) -> Vec<ShardId> {
    let v = state.volume(volume).unwrap();
    v.shards.iter().map(|s| v.shard_id(s.index)).collect()
}

fn open(state: &mut State, shard: ShardId) {
    let (active, node) = state.shard(shard).map(|s| (s.active, s.head().unwrap())).unwrap();
    let start = state.node(node).unwrap().start;
    let propose = Command::ProposeView { shard, active, node, start };
    let Outcome::Proposed { view, generation, .. } = state.apply(propose).unwrap().outcome else { panic!() };
    state.apply(Command::ActivateView { shard, view, generation }).unwrap();
}

fn open_all(state: &mut State, volume: VolumeId) {
    shards(state, volume).into_iter().for_each(|s| open(state, s));
}

fn begin(state: &mut State, volume: VolumeId, name: &str) -> SnapshotId {
    let begin = Command::BeginSnapshot { name: name.into(), volumes: vec![volume], created_ms: 1, past: None };
    let Outcome::SnapshotBegun { snapshot } = state.apply(begin).unwrap().outcome else { panic!() };
    snapshot
}

/// A complete snapshot, cut at these versions.
fn snapshot(state: &mut State, volume: VolumeId, name: &str, version: u64) -> SnapshotId {
    let id = begin(state, volume, name);
    let views: Vec<_> = shards(state, volume).into_iter().map(|s| (s, state.shard(s).unwrap().active)).collect();
    let cut = |view| Cut { view, version: Version(version), sequence: Sequence(version + 3) };
    let cuts = views.iter().map(|(s, view)| (*s, cut(*view))).collect();
    state.apply(Command::ReportCuts { snapshot: id, cuts }).unwrap();
    state.apply(Command::ConfirmCuts { snapshot: id, held: views }).unwrap();
    assert!(state.snapshot(volume, name).unwrap().is_complete());
    id
}

fn clone(state: &mut State, volume: VolumeId, snapshot: &str, name: &str) -> Result<VolumeId> {
    let command = Command::CloneVolume { volume, snapshot: snapshot.into(), name: name.into() };
    let before = state.clone();
    match state.apply(command) {
        Ok(done) => {
            let Outcome::Created { volume } = done.outcome else { panic!("{done:?}") };
            assert_eq!(&State::decode(&state.encode()).unwrap(), state);
            Ok(volume)
        }
        Err(e) => {
            assert_eq!(*state, before, "a refused command changes nothing");
            Err(e)
        }
    }
}

/// A volume of one shard, of which a majority is enough, with the snapshot `s`.
fn majority(state: &mut State) -> VolumeId {
    let new = CreateVolume { name: "m".into(), size: 1 << 30, ..CreateVolume::default() };
    let Outcome::Created { volume } = state.apply(Command::CreateVolume(new)).unwrap().outcome else { panic!() };
    open_all(state, volume);
    snapshot(state, volume, "s", 20);
    volume
}

fn delete_snapshot(state: &mut State, volume: VolumeId, name: &str) -> Result<()> {
    state.apply(Command::DeleteSnapshot { volume, name: name.into(), now_ms: 1 }).map(|_| ())
}

fn delete(state: &mut State, volume: VolumeId) -> Result<()> {
    state.apply(Command::DeleteVolumeAndSnapshots { volume, force: false, now_ms: 1 }).map(|_| ())
}

#[test]
fn a_clone_begins_where_the_snapshot_is() {
    let mut state = cluster();
    // Numbers of views that nobody ever used are given out, too.
    let (head, start) = (state.shard(ShardId::new(1, 1)).unwrap().head().unwrap(), StartNumber(1));
    let active = state.shard(ShardId::new(1, 1)).unwrap().active;
    let propose = Command::ProposeView { shard: ShardId::new(1, 1), active, node: head, start };
    state.apply(propose).unwrap();
    let id = snapshot(&mut state, SOURCE, "monday", 40);
    state.apply(Command::ResizeVolume { volume: SOURCE, size: 2 << 30 }).unwrap();
    let attach = Command::AttachVolume {
        volume: SOURCE,
        identity: Hash32([1; 32]),
        name: "gateway".into(),
        force: false,
        since: None,
        lapsed: false,
    };
    state.apply(attach).unwrap();
    let new = clone(&mut state, SOURCE, "monday", "web").unwrap();
    let (v, of) = (state.volume(new).unwrap(), state.volume(SOURCE).unwrap());
    assert_eq!((v.size, v.copies, v.ack, v.min_copies, v.stripe), (1 << 30, 3, Ack::All, 1, 1 << 16), "as it was then");
    assert_eq!(
        (v.generation, v.settled, &v.holder, v.changed),
        (Generation(0), Generation(0), &None, state.revision())
    );
    for (s, parent) in v.shards.iter().zip(&of.shards) {
        assert_eq!((s.active, s.pending, s.highest), (ViewNumber(0), None, parent.highest));
        assert_eq!((&s.members, s.joining.len(), s.keepers.len()), (&parent.members, 0, 0));
        let fork = v.fork(s.index).unwrap();
        assert_eq!((fork.parent, fork.snapshot), (ShardId { volume: SOURCE, index: s.index }, id));
        assert_eq!((fork.version, fork.sequence), (Version(40), Sequence(43)));
    }
    assert_eq!((v.shards[1].highest, v.fork(2), of.fork(0)), (ViewNumber(2), None, None));
    // Its views are above all of the parent's, and its head opens the first one as any other does.
    open_all(&mut state, new);
    let views: Vec<_> = state.volume(new).unwrap().shards.iter().map(|s| s.active).collect();
    assert_eq!(views, [ViewNumber(2), ViewNumber(3)]);
}

#[test]
fn a_clone_lies_on_the_workers_of_its_parent() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let mut last = SOURCE;
    for n in 0..20 {
        for other in 0..n % 3 {
            let new = CreateVolume { name: format!("o{n}-{other}"), size: 1 << 30, ..CreateVolume::default() };
            let Outcome::Created { volume } = state.apply(Command::CreateVolume(new)).unwrap().outcome else {
                panic!()
            };
            assert!(volume > last);
            last = volume;
        }
        let new = clone(&mut state, SOURCE, "s", &format!("c{n}")).unwrap();
        assert!(new > last && new.0 <= last.0 + limits_of_workers(), "{new} behind {last}");
        last = new;
        for workers in [1, 2, 4, 8] {
            for (a, b) in shards(&state, new).into_iter().zip(shards(&state, SOURCE)) {
                assert_eq!(Peer::of(NodeId(1), a, workers), Peer::of(NodeId(1), b, workers));
            }
        }
    }
}

fn limits_of_workers() -> u64 {
    freebs_types::limits::WORKERS_MAX as u64
}

#[test]
fn a_clone_of_a_clone_forks_from_it() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "a", 40);
    let first = clone(&mut state, SOURCE, "a", "first").unwrap();
    open_all(&mut state, first);
    snapshot(&mut state, first, "b", 50);
    let second = clone(&mut state, first, "b", "second").unwrap();
    let v = state.volume(second).unwrap();
    assert_eq!(v.fork(0).unwrap().parent, ShardId { volume: first, index: 0 });
    assert_eq!(v.origin.as_ref().unwrap().place(), "first@b");
    assert!(v.shards[0].highest > state.shard(ShardId::new(1, 0)).unwrap().highest);
}

/// A member that learns has nothing that could be begun with. It was made head of the clone when the others died, with
/// nothing that it could lead.
#[test]
fn members_that_learn_learn_the_clone_too() {
    let mut state = cluster();
    let volume = majority(&mut state);
    let of = ShardId { volume, index: 0 };
    let was = state.shard(of).unwrap().members.clone();
    let gone = vec![(was[1], StartNumber(1))];
    state.apply(Command::ReplaceMembers { gone, failed: Vec::new() }).unwrap();
    let parent = state.shard(of).unwrap().clone();
    assert_eq!(parent.joining.len(), 1);
    let id = clone(&mut state, volume, "s", "c").unwrap();
    let s = state.volume(id).unwrap().shards[0].clone();
    assert_eq!((&s.members, &s.joining), (&parent.members, &parent.joining));
    assert!(!s.members.contains(&was[1]));
    let learner = s.joining[0];
    let e = state.apply(Command::MoveHead { shard: ShardId { volume: id, index: 0 }, node: learner }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
    // Nobody is complete in a view that there is not.
    let complete =
        Command::MembersComplete { shard: ShardId { volume: id, index: 0 }, view: ViewNumber(0), nodes: vec![learner] };
    assert_eq!(state.apply(complete).unwrap_err().kind, ErrorKind::Fenced);
    open_all(&mut state, id);
    let s = &state.volume(id).unwrap().shards[0];
    assert_eq!(
        (&s.joining, &s.learning),
        (&vec![learner], &vec![learner]),
        "an empty log of its is none that was lost"
    );
}

/// A member had left a volume that wants all copies when it was cloned. The clone named it, or another, for a member that
/// learns: nobody could take the first view's frame without it, and it could not learn from a head that had no view.
#[test]
fn a_clone_of_a_chain_that_became_shorter_begins_with_what_is_left() {
    let mut state = cluster();
    let shard = ShardId { volume: SOURCE, index: 0 };
    let members = state.shard(shard).unwrap().members.clone();
    state.apply(Command::LeaveChains { failed: vec![(members[2], StartNumber(1))], shards: vec![] }).unwrap();
    open_all(&mut state, SOURCE);
    snapshot(&mut state, SOURCE, "s", 40);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    let s = state.volume(id).unwrap().shards[0].clone();
    assert_eq!((&s.members, s.joining.len()), (&members[..2].to_vec(), 0));
    open_all(&mut state, id);
    let none = BTreeSet::new();
    assert!(state.extensions(&none, &none).iter().any(|(of, _)| of.volume == id), "another one comes");
}

#[test]
fn a_short_chain_is_filled_with_those_that_carry_least() {
    let mut state = cluster();
    let volume = majority(&mut state);
    let shard = ShardId { volume, index: 0 };
    let members = state.shard(shard).unwrap().members.clone();
    // Two of three are lost for good, and one goes on alone.
    let log = LogStatus {
        active: ViewNumber(1),
        has_view: true,
        last: Sequence(30),
        last_view: ViewNumber(1),
        ..LogStatus::default()
    };
    let logs: Logs = [(members[0], [(shard, log)].into())].into();
    let (_, command) = look(&state, state.volume(volume).unwrap(), &logs, &BTreeSet::new()).remove(0);
    assert_eq!(command, None, "it needs two members");
    let logs: Logs =
        (1..=5).map(NodeId).filter(|n| !members[1..].contains(n)).map(|n| (n, Default::default())).collect();
    let mut logs = logs;
    logs.get_mut(&members[0]).unwrap().insert(shard, log);
    let (_, command) = look(&state, state.volume(volume).unwrap(), &logs, &BTreeSet::new()).remove(0);
    let Some(Command::RecoverShard(how)) = command else { panic!("it goes on by force") };
    let chain = how.chain[..2].to_vec();
    state.apply(Command::RecoverShard(freebs_control::RecoverShard { chain, ..how })).unwrap();
    let parent = state.shard(shard).unwrap().clone();
    assert_eq!((parent.members.len(), parent.joining.len()), (2, 1));
    let id = clone(&mut state, volume, "s", "c").unwrap();
    let s = &state.volume(id).unwrap().shards[0];
    assert_eq!((&s.members[..2], s.members.len()), (&parent.members[..], 3));
    assert_eq!(s.joining, s.members[1..], "neither has the parent's history");
}

#[test]
fn snapshots_that_are_not_there_are_not_cloned() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let under_way = begin(&mut state, SOURCE, "now");
    let wrong = [
        (SOURCE, "none", "c", ErrorKind::NotFound, "snapshot list data"),
        (SOURCE, "now", "c", ErrorKind::Busy, "is being made"),
        (SOURCE, "s", "data", ErrorKind::Invalid, "choose another name"),
        (SOURCE, "s", "a/b", ErrorKind::Invalid, "data-1"),
        (VolumeId(77), "s", "c", ErrorKind::NotFound, "no volume with id 77"),
    ];
    for (volume, name, to, kind, text) in wrong {
        let e = clone(&mut state, volume, name, to).unwrap_err();
        assert!(e.kind == kind && e.text.contains(text), "{name} {to}: {e}");
    }
    state.apply(Command::FailSnapshot { snapshot: under_way, why: "a head was away".into() }).unwrap();
    let e = clone(&mut state, SOURCE, "now", "c").unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("a head was away"), "{e}");
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    assert!(clone(&mut state, SOURCE, "s", "c").unwrap_err().text.contains("'c' already"));
    let e = clone(&mut state, id, "s", "d").unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("'c@s'"), "the clone has no snapshot: {e}");
}

/// Deleted before the clone's members have heard of the clone, the snapshot would be gone from all of them.
#[test]
fn a_snapshot_stays_until_its_clones_have_begun() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    snapshot(&mut state, SOURCE, "other", 41);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    let e = delete_snapshot(&mut state, SOURCE, "s").unwrap_err();
    assert!(e.kind == ErrorKind::Busy && e.text.contains("'c'") && e.text.contains("data@s"), "{e}");
    assert_eq!(delete(&mut state, SOURCE).unwrap_err().kind, ErrorKind::Busy);
    delete_snapshot(&mut state, SOURCE, "other").unwrap();
    open(&mut state, ShardId { volume: id, index: 0 });
    assert_eq!(delete_snapshot(&mut state, SOURCE, "s").unwrap_err().kind, ErrorKind::Busy, "a shard is missing");
    open(&mut state, ShardId { volume: id, index: 1 });
    delete_snapshot(&mut state, SOURCE, "s").unwrap();
    delete(&mut state, SOURCE).unwrap();
    let v = state.volume(id).unwrap();
    let origin = OriginStatus::new(&state, v.origin.as_ref().unwrap());
    assert_eq!((origin.volume.as_str(), origin.snapshot.as_str()), ("data", "s"));
    assert!(v.fork(1).is_some(), "its members may read from there for long");
    delete(&mut state, id).unwrap();
}

#[test]
fn a_clone_that_never_begins_can_be_deleted() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    delete(&mut state, id).unwrap();
    delete(&mut state, SOURCE).unwrap();
}

/// Before the first view there is nothing to learn in other volumes. A clone's members have something, so who comes in place
/// of one learns it, and who leaves keeps it until then.
#[test]
fn members_that_change_before_the_first_view_learn() {
    let mut state = cluster();
    let volume = majority(&mut state);
    let id = clone(&mut state, volume, "s", "c").unwrap();
    let shard = ShardId { volume: id, index: 0 };
    let before = state.shard(shard).unwrap().members.clone();
    let gone = vec![(before[2], StartNumber(1))];
    state.apply(Command::ReplaceMembers { gone, failed: Vec::new() }).unwrap();
    let s = state.shard(shard).unwrap().clone();
    assert_eq!((s.members[..2].to_vec(), s.joining.clone()), (before[..2].to_vec(), vec![s.members[2]]));
    assert!(s.is_kept_by(before[2]) && s.active_members.is_empty());
    // The one in place of a head that fails has the parent's history.
    state.apply(Command::FailOver { nodes: vec![(before[0], StartNumber(1))] }).unwrap();
    assert_eq!(state.shard(shard).unwrap().head(), Some(before[1]));
    open(&mut state, shard);
    let s = state.shard(shard).unwrap().clone();
    assert_eq!((s.learning.clone(), s.is_kept_by(before[2])), (s.joining.clone(), true));
    let (view, nodes) = (s.active, s.joining);
    state.apply(Command::MembersComplete { shard, view, nodes }).unwrap();
    assert!(!state.shard(shard).unwrap().is_kept_by(before[2]));
}

/// A member that everybody took for whole did not have the parent's history, and learned the clone for hours. Nobody knew, so
/// its empty log counted as one that was lost, and who kept more was let go.
#[test]
fn members_that_lack_what_a_clone_begins_with_learn() {
    let mut state = cluster();
    let volume = majority(&mut state);
    let id = clone(&mut state, volume, "s", "c").unwrap();
    let shard = ShardId { volume: id, index: 0 };
    let m = state.shard(shard).unwrap().members.clone();
    let begin = |state: &mut State, learning: Vec<NodeId>| {
        let (active, node) = state.shard(shard).map(|s| (s.active, s.head().unwrap())).unwrap();
        let propose = Command::ProposeView { shard, active, node, start: StartNumber(1) };
        let Outcome::Proposed { view, generation, .. } = state.apply(propose).unwrap().outcome else { panic!() };
        state.apply(Command::ActivateClone { shard, view, generation, learning }).unwrap();
        assert_eq!(&State::decode(&state.encode()).unwrap(), state);
        state.shard(shard).unwrap().clone()
    };
    // Its head has what it begins with, whatever is said, and strangers are none of its members.
    let s = begin(&mut state, vec![m[0], m[1], NodeId(9)]);
    assert_eq!((&s.members, &s.joining, &s.learning), (&vec![m[0], m[2], m[1]], &vec![m[1]], &vec![m[1]]));
    let e = state.apply(Command::MoveHead { shard, node: m[1] }).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
    // Nor does it when it is the only one that has not failed: it once led with what it had learned so far, as another branch.
    let first = |n: NodeId| (n, StartNumber(1));
    let without = |failed: &[NodeId]| {
        let mut state = state.clone();
        state.apply(Command::FailOver { nodes: failed.iter().copied().map(first).collect() }).unwrap();
        state.shard(shard).unwrap().head()
    };
    assert_eq!((without(&[m[0]]), without(&[m[0], m[2]])), (Some(m[2]), Some(m[0])));
    state.apply(Command::MembersComplete { shard, view: s.active, nodes: vec![m[1]] }).unwrap();
    // All that comes behind the first view is as everywhere.
    let s = begin(&mut state, vec![m[2]]);
    assert_eq!((s.joining, s.learning), (vec![], vec![]));
}

/// A log that has only the clone's beginning says no more of a view than an empty one.
#[test]
fn a_log_with_only_the_beginning_seals_nothing() {
    let mut state = cluster();
    let volume = majority(&mut state);
    let id = clone(&mut state, volume, "s", "c").unwrap();
    let shard = ShardId { volume: id, index: 0 };
    let members = state.shard(shard).unwrap().members.clone();
    let start = LogStatus { last: Sequence(23), version: Version(20), ..LogStatus::default() };
    let need = |state: &State, logs: &[(NodeId, LogStatus)]| {
        let logs: Logs = logs.iter().map(|(n, l)| (*n, [(shard, *l)].into())).collect();
        let (found, _) = look(state, state.volume(id).unwrap(), &logs, &BTreeSet::new()).remove(0);
        (found.need, found.counting)
    };
    assert_eq!(need(&state, &[(members[0], start), (members[1], start)]).0, Need::Nothing, "no view is sealed yet");
    open(&mut state, shard);
    let active = state.shard(shard).unwrap().active;
    let begun = LogStatus { active, ..start };
    let has_view = LogStatus { has_view: true, last: Sequence(24), last_view: active, ..begun };
    let all = [(members[0], has_view), (members[1], begun), (members[2], begun)];
    assert_eq!(need(&state, &all), (Need::Force, 1), "two may have lost all that was written");
    let all = [(members[0], has_view), (members[1], has_view)];
    assert_eq!(need(&state, &all), (Need::Nothing, 2));
}

#[test]
fn only_clones_are_flattened() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    let e = state.apply(Command::FlattenVolume { volume: SOURCE }).unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("'data' is no clone"), "{e}");
    assert_eq!(state.apply(Command::FlattenVolume { volume: VolumeId(77) }).unwrap_err().kind, ErrorKind::NotFound);
    let done = state.apply(Command::FlattenVolume { volume: id }).unwrap();
    assert_eq!((done.outcome, done.revision), (Outcome::Noted, state.revision()));
    assert!(state.volume(id).unwrap().origin.as_ref().unwrap().flatten);
    assert_eq!(&State::decode(&state.encode()).unwrap(), &state);
    let again = state.apply(Command::FlattenVolume { volume: id }).unwrap();
    assert_eq!(again.revision, done.revision, "a repeat changes nothing");
}

#[test]
fn clones_are_told() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let mut step = |command: Command| {
        let before = state.clone();
        let _ = state.apply(command.clone());
        told(&before, &command, &state).into_iter().map(|t| (t.kind, t.volume, t.text)).collect::<Vec<_>>()
    };
    let clone = Command::CloneVolume { volume: SOURCE, snapshot: "s".into(), name: "c".into() };
    let text = "cloned from data@s: 1073741824 bytes, 3 copies, 2 shards".to_owned();
    assert_eq!(step(clone.clone()), [(EventKind::VolumeCreated, Some("c".into()), text)]);
    assert_eq!(step(clone), [], "it was refused");
    let flatten = Command::FlattenVolume { volume: VolumeId(9) };
    let text = "it gets what it reads from data@s as its own".to_owned();
    assert_eq!(step(flatten.clone()), [(EventKind::Flattening, Some("c".into()), text)]);
    assert_eq!(step(flatten), [], "it was said before");
}

/// The name of the volume that it was cloned from is the one that this has now.
#[test]
fn an_origin_follows_a_name() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    state.apply(Command::RenameVolume { volume: SOURCE, name: "old".into() }).unwrap();
    let origin = state.volume(id).unwrap().origin.clone().unwrap();
    assert_eq!(OriginStatus::new(&state, &origin).volume, "old");
}

/// Bytes that are a volume but no clone of anything.
#[test]
fn origins_that_can_not_be_are_refused() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let id = clone(&mut state, SOURCE, "s", "c").unwrap();
    let good = state.changes_since(0);
    let with = |change: &dyn Fn(&mut freebs_control::Origin)| {
        let mut page = Changes { volumes: good.volumes.clone(), ..good.clone() };
        let v = page.volumes.iter_mut().find(|v| v.id == id).unwrap();
        change(v.origin.as_mut().unwrap());
        State::new(state.cluster()).take_in(page)
    };
    assert_eq!(with(&|_| ()), Ok(()));
    let wrong: [&dyn Fn(&mut freebs_control::Origin); 10] = [
        &|o| o.volume = VolumeId(2),
        &|o| o.volume = VolumeId(0),
        &|o| o.volume = VolumeId(9),
        &|o| o.snapshot = SnapshotId(0),
        &|o| o.snapshot = SnapshotId(limits::NUMBER_MAX + 1),
        &|o| o.snapshot_name = "a@b".into(),
        &|o| o.volume_name = String::new(),
        &|o| _ = o.cuts.pop(),
        &|o| o.cuts[1].view = ViewNumber(2),
        &|o| o.cuts[1].sequence = Sequence(u64::MAX),
    ];
    for (i, change) in wrong.into_iter().enumerate() {
        assert_eq!(with(change).unwrap_err().kind, ErrorKind::Corrupt, "{i}");
    }
}

/// A record of a snapshot that does not fit its volume is no reason to stop.
#[test]
fn a_snapshot_of_no_size_is_not_cloned() {
    let mut state = cluster();
    snapshot(&mut state, SOURCE, "s", 40);
    let mut page = state.changes_since(0);
    page.snapshots[0].volumes[0].size = 0;
    page.snapshots[0].changed += 1;
    page.revision += 1;
    let mut other = State::new(state.cluster());
    other.take_in(page).unwrap();
    assert_eq!(clone(&mut other, SOURCE, "s", "c").unwrap_err().kind, ErrorKind::Corrupt);
}

/// Clones of the widest volume fit pages, as other volumes do.
#[test]
fn a_page_of_wide_clones_fits_a_message() {
    let mut state = cluster();
    let shards = freebs_types::limits::VOLUME_SHARDS_MAX;
    let new = CreateVolume { name: "wide".into(), size: 1 << 40, shards: Some(shards), ..CreateVolume::default() };
    let Outcome::Created { volume } = state.apply(Command::CreateVolume(new)).unwrap().outcome else { panic!() };
    open_all(&mut state, volume);
    let id = begin(&mut state, volume, "s");
    // Numbers as a cluster that has run for years may have them.
    let all: Vec<ShardId> = self::shards(&state, volume);
    let cut = |view| Cut { view, version: Version(1 << 50), sequence: Sequence((1 << 50) + 1) };
    for part in all.chunks(limits::CUTS_OF_COMMAND_MAX) {
        let cuts = part.iter().map(|s| (*s, cut(state.shard(*s).unwrap().active))).collect();
        state.apply(Command::ReportCuts { snapshot: id, cuts }).unwrap();
    }
    for part in all.chunks(limits::CUTS_OF_COMMAND_MAX) {
        let held = part.iter().map(|s| (*s, state.shard(*s).unwrap().active)).collect();
        state.apply(Command::ConfirmCuts { snapshot: id, held }).unwrap();
    }
    for n in 0..12 {
        clone(&mut state, volume, "s", &format!("c{n}")).unwrap();
    }
    let mut follower = State::new(state.cluster());
    let mut pages = 0;
    loop {
        let page = state.changes_since(follower.revision());
        let more = page.more;
        let json = Reply::encode(Ok(Reply::Changes(page)));
        assert!(json.len() < freebs_types::limits::CONTROL_BODY_BYTES_MAX, "{} bytes", json.len());
        let Ok(Reply::Changes(page)) = Reply::decode(&json) else { panic!("a page comes back") };
        follower.take_in(page).unwrap();
        pages += 1;
        if !more {
            break;
        }
    }
    assert!(pages > 1, "more than a page");
    assert!(follower.volumes().eq(state.volumes()));
}

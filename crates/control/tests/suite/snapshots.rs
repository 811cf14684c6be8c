//! Snapshots: each rule by itself, and the protocol of the cuts in all orders in which a few heads can act.

use freebs_control::api::Reply;
use freebs_control::events::{EventKind, told};
use freebs_control::{Changes, Command, CreateVolume, Cut, Done, Mutant, Outcome, Snapshot, Stage, State, limits};
use freebs_types::*;
use std::collections::BTreeSet;
use std::rc::Rc;

const V: VolumeId = VolumeId(1);

/// Three nodes, and volumes of so many shards, `v1` and so on, whose first views are active.
fn cluster(shards: &[u32]) -> State {
    let mut state = State::new(ClusterId([1; 16]));
    for n in 1..=3 {
        let (name, address) = (format!("n{n}"), format!("127.0.0.1:{n}"));
        let register = Command::RegisterNode { node: NodeId(n), name, address, workers: 1, start: StartNumber(1) };
        state.apply(register).unwrap();
    }
    for (i, shards) in shards.iter().enumerate() {
        let name = format!("v{}", i + 1);
        let new = CreateVolume { name, size: 1 << 30, shards: Some(*shards), ..CreateVolume::default() };
        state.apply(Command::CreateVolume(new)).unwrap();
    }
    let all: Vec<ShardId> = state.volumes().flat_map(|v| v.shards.iter().map(|s| v.shard_id(s.index))).collect();
    all.into_iter().for_each(|s| _ = open(&mut state, s, None));
    state
}

/// The shard's head opens the next view.
fn open(state: &mut State, shard: ShardId, mutant: Option<Mutant>) -> ViewNumber {
    let (active, node) = state.shard(shard).map(|s| (s.active, s.head().unwrap())).unwrap();
    let propose = Command::ProposeView { shard, active, node, start: StartNumber(1) };
    let Outcome::Proposed { view, generation, .. } = state.apply(propose).unwrap().outcome else { panic!() };
    state.apply_with(Command::ActivateView { shard, view, generation }, mutant).unwrap();
    view
}

fn shard(volume: u64, index: u32) -> ShardId {
    ShardId::new(volume, index)
}

fn begin(state: &mut State, name: &str, volumes: &[u64], at: u64) -> Result<SnapshotId> {
    let volumes = volumes.iter().map(|v| VolumeId(*v)).collect();
    match state.apply(Command::BeginSnapshot { name: name.into(), volumes, created_ms: at, past: None })?.outcome {
        Outcome::SnapshotBegun { snapshot } => Ok(snapshot),
        other => panic!("{other:?}"),
    }
}

fn cut(state: &State, shard: ShardId, version: u64) -> (ShardId, Cut) {
    let view = state.shard(shard).unwrap().active;
    (shard, Cut { view, version: Version(version), sequence: Sequence(version + 1) })
}

fn report(state: &mut State, snapshot: SnapshotId, cuts: Vec<(ShardId, Cut)>) -> Done {
    state.apply(Command::ReportCuts { snapshot, cuts }).unwrap()
}

fn confirm(state: &mut State, snapshot: SnapshotId, shards: &[ShardId]) {
    let held = shards.iter().map(|s| (*s, state.shard(*s).unwrap().active)).collect();
    state.apply(Command::ConfirmCuts { snapshot, held }).unwrap();
}

fn stage(state: &State, id: SnapshotId) -> &Stage {
    &state.snapshot_record(id).unwrap().stage
}

/// A complete snapshot of the one shard of `v1`.
fn simple(state: &mut State, name: &str, at: u64) -> SnapshotId {
    let id = begin(state, name, &[1], at).unwrap();
    let of = cut(state, shard(1, 0), at);
    report(state, id, vec![of]);
    assert_eq!(*stage(state, id), Stage::Complete);
    id
}

fn kind(result: Result<Done>) -> (ErrorKind, String) {
    let e = result.unwrap_err();
    (e.kind, e.text.into_owned())
}

fn delete(state: &mut State, name: &str, now_ms: u64) -> Result<Done> {
    state.apply(Command::DeleteSnapshot { volume: V, name: name.into(), now_ms })
}

#[test]
fn one_shard_is_complete_when_it_is_reported() {
    let mut state = cluster(&[1]);
    let id = simple(&mut state, "a", 7);
    let found = state.snapshot(V, "a").unwrap();
    assert_eq!((found.id, found.volumes[0].size), (id, 1 << 30));
    assert_eq!(found.cut(shard(1, 0)).unwrap().version, Version(7));
    assert!(state.kept_snapshots(V).contains(&id) && state.snapshot_under_way(V).is_none());
}

#[test]
fn several_shards_are_decided_and_then_confirmed() {
    let mut state = cluster(&[2, 1]);
    let id = begin(&mut state, "g", &[2, 1], 1).unwrap();
    let all = [shard(1, 0), shard(1, 1), shard(2, 0)];
    let cuts: Vec<_> = all.iter().map(|s| cut(&state, *s, 5)).collect();
    confirm(&mut state, id, &all);
    report(&mut state, id, cuts[..2].to_vec());
    report(&mut state, id, cuts[..2].to_vec());
    assert_eq!(*stage(&state, id), Stage::Gathering, "one is missing, and nobody can have held for all");
    report(&mut state, id, cuts[2..].to_vec());
    assert_eq!(*stage(&state, id), Stage::Decided);
    confirm(&mut state, id, &all[..1]);
    confirm(&mut state, id, &all[..1]);
    confirm(&mut state, id, &all[2..]);
    assert_eq!(*stage(&state, id), Stage::Decided);
    confirm(&mut state, id, &all[1..2]);
    assert_eq!(*stage(&state, id), Stage::Complete);
    let revision = state.revision();
    state.apply(Command::FailSnapshot { snapshot: id, why: "late".into() }).unwrap();
    report(&mut state, id, cuts);
    assert_eq!((stage(&state, id), state.revision()), (&Stage::Complete, revision), "it stays as it is");
}

#[test]
fn a_question_that_is_asked_again_is_the_same_one() {
    let mut state = cluster(&[1, 1]);
    let id = begin(&mut state, "a", &[1, 2], 1).unwrap();
    let revision = state.revision();
    assert_eq!(begin(&mut state, "a", &[2, 1], 1), Ok(id));
    assert_eq!(state.revision(), revision);
    assert_eq!(begin(&mut state, "a", &[1, 2], 2).unwrap_err().kind, ErrorKind::Busy);
    state.apply(Command::FailSnapshot { snapshot: id, why: "so".into() }).unwrap();
    assert_eq!(begin(&mut state, "a", &[1, 2], 1), Ok(id), "the asker hears that it has failed");
    let next = begin(&mut state, "a", &[1, 2], 2).unwrap();
    assert!(next > id && state.snapshot_record(id).is_none(), "the next attempt takes its place");
}

#[test]
fn only_cuts_of_the_active_view_count() {
    let mut state = cluster(&[2]);
    let id = begin(&mut state, "a", &[1], 1).unwrap();
    let late = cut(&state, shard(1, 0), 5);
    open(&mut state, shard(1, 0), None);
    assert_eq!(*stage(&state, id), Stage::Gathering, "a shard that is not cut is cut by the next head");
    report(&mut state, id, vec![late]);
    assert!(state.snapshot_record(id).unwrap().cut(shard(1, 0)).is_none());
    let good = cut(&state, shard(1, 0), 9);
    report(&mut state, id, vec![good]);
    open(&mut state, shard(1, 0), None);
    let Stage::Failed { why } = stage(&state, id) else { panic!("its head can't know whether the other had gone on") };
    assert!(why.contains("1.0"), "{why}");
    assert!(state.kept_snapshots(V).is_empty() && state.snapshot(V, "a").is_none());
}

#[test]
fn a_confirmed_cut_outlives_its_view() {
    let mut state = cluster(&[2]);
    let id = begin(&mut state, "a", &[1], 1).unwrap();
    let cuts = (0..2).map(|i| cut(&state, shard(1, i), 5)).collect();
    report(&mut state, id, cuts);
    confirm(&mut state, id, &[shard(1, 0)]);
    open(&mut state, shard(1, 0), None);
    assert_eq!(*stage(&state, id), Stage::Decided);
    open(&mut state, shard(1, 1), None);
    assert!(state.snapshot_record(id).unwrap().has_failed());
}

#[test]
fn names_are_unique_among_those_that_have_not_failed() {
    let mut state = cluster(&[1, 1]);
    simple(&mut state, "a", 1);
    let e = begin(&mut state, "a", &[1], 2).unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("v1@a") && e.text.contains("another name"), "{e}");
    let e = begin(&mut state, "a", &[1, 2], 2).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Invalid);
    let wrong = [
        ("a/b", vec![1], ErrorKind::Invalid),
        ("b", vec![1, 1], ErrorKind::Invalid),
        ("b", vec![], ErrorKind::Invalid),
        ("b", vec![9], ErrorKind::NotFound),
    ];
    for (name, volumes, kind) in wrong {
        assert_eq!(begin(&mut state, name, &volumes, 2).unwrap_err().kind, kind, "{name} {volumes:?}");
    }
    assert!(begin(&mut state, "a", &[2], 2).is_ok(), "another volume has its own names");
}

#[test]
fn a_volume_has_so_many() {
    let mut state = cluster(&[1]);
    for n in 0..limits::SNAPSHOTS_OF_VOLUME_MAX as u64 {
        simple(&mut state, &format!("s{n}"), n + 1);
    }
    let e = begin(&mut state, "more", &[1], 9).unwrap_err();
    assert!(e.kind == ErrorKind::NoSpace && e.text.contains("delete some"), "{e}");
    delete(&mut state, "s0", 1).unwrap();
    let id = begin(&mut state, "more", &[1], 9).unwrap();
    assert_eq!(State::decode(&state.encode()).unwrap(), state);
    assert_eq!(state.snapshot_under_way(V).map(|s| s.id), Some(id));
}

#[test]
fn failed_ones_are_listed_for_a_while() {
    let mut state = cluster(&[1]);
    for n in 0..limits::SNAPSHOTS_FAILED_MAX as u64 + 5 {
        let id = begin(&mut state, &format!("f{n}"), &[1], n).unwrap();
        state.apply(Command::FailSnapshot { snapshot: id, why: "x".repeat(1000) }).unwrap();
    }
    assert_eq!(state.snapshots().len(), limits::SNAPSHOTS_FAILED_MAX);
    let last = state.snapshots_of(V).last().unwrap();
    assert!(matches!(&last.stage, Stage::Failed { why } if why.len() == limits::SNAPSHOT_WHY_BYTES_MAX));
    assert_eq!(State::decode(&state.encode()).unwrap(), state);
    let name = last.name.clone();
    delete(&mut state, &name, 1).unwrap();
    assert_eq!(state.snapshots().len(), limits::SNAPSHOTS_FAILED_MAX - 1);
}

/// A watcher that comes from far back is told the numbers of all. With as many as there were room for, that fitted no message: no
/// gateway could start any more.
#[test]
fn the_numbers_of_all_snapshots_fit_a_message() {
    let mut state = cluster(&[1, 1]);
    let id = simple(&mut state, "s", 1);
    let one = state.snapshot_record(id).unwrap().clone();
    let many = (1..limits::SNAPSHOTS_TOTAL_MAX as u64).map(|n| Snapshot {
        id: SnapshotId(limits::NUMBER_MAX - 10 - n),
        name: format!("s{n}"),
        changed: 1,
        ..one.clone()
    });
    let (cluster, revision) = (state.cluster(), state.revision());
    let page = Changes { cluster, revision, snapshots: many.collect(), ..Changes::default() };
    state.take_in(page).unwrap();
    assert_eq!(state.snapshots().len(), limits::SNAPSHOTS_TOTAL_MAX);
    let page = state.changes_since(u64::MAX);
    assert_eq!(page.alive_snapshots.as_ref().map(Vec::len), Some(limits::SNAPSHOTS_TOTAL_MAX));
    assert!(Reply::encode(Ok(Reply::Changes(page))).len() < freebs_types::limits::CONTROL_BODY_BYTES_MAX);
    let e = begin(&mut state, "more", &[2], 9).unwrap_err();
    assert!(e.kind == ErrorKind::NoSpace && e.text.contains("delete some"), "{e}");
}

/// With as many as are listed, one of an older attempt failed last: whoever asked for it was told that somebody deleted it.
#[test]
fn the_one_that_has_just_failed_is_listed() {
    let mut state = cluster(&[1, 1]);
    let old = begin(&mut state, "old", &[2], 1).unwrap();
    for n in 0..limits::SNAPSHOTS_FAILED_MAX as u64 {
        let id = begin(&mut state, &format!("f{n}"), &[1], n).unwrap();
        state.apply(Command::FailSnapshot { snapshot: id, why: "x".into() }).unwrap();
    }
    state.apply(Command::FailSnapshot { snapshot: old, why: "its reason".into() }).unwrap();
    let stage = state.snapshot_record(old).map(|s| s.stage.clone());
    assert_eq!(stage, Some(Stage::Failed { why: "its reason".into() }));
    assert_eq!(state.snapshots().len(), limits::SNAPSHOTS_FAILED_MAX);
}

#[test]
fn a_group_is_deleted_volume_by_volume() {
    let mut state = cluster(&[1, 1]);
    let id = begin(&mut state, "g", &[1, 2], 1).unwrap();
    let all = [shard(1, 0), shard(2, 0)];
    let cuts = all.iter().map(|s| cut(&state, *s, 5)).collect();
    report(&mut state, id, cuts);
    confirm(&mut state, id, &all);
    delete(&mut state, "g", 1).unwrap();
    assert!(state.snapshot(V, "g").is_none() && state.kept_snapshots(V).is_empty());
    assert_eq!(state.snapshot(VolumeId(2), "g").unwrap().volumes.len(), 1);
    let (k, text) = kind(delete(&mut state, "g", 1));
    assert!(k == ErrorKind::NotFound && text.contains("snapshot list v1"), "{text}");
}

#[test]
fn one_that_is_being_made_can_be_deleted() {
    let mut state = cluster(&[1, 1]);
    let id = begin(&mut state, "g", &[1, 2], 1).unwrap();
    delete(&mut state, "g", 1).unwrap();
    assert!(state.snapshot_record(id).unwrap().has_failed());
    assert!(begin(&mut state, "other", &[1, 2], 2).is_ok());
}

#[test]
fn locks_hold_until_their_date_and_grow_only() {
    let mut state = cluster(&[1]);
    simple(&mut state, "a", 1);
    let lock = |state: &mut State, until_ms, now_ms| {
        state.apply(Command::LockSnapshot { volume: V, name: "a".into(), until_ms, now_ms })
    };
    assert_eq!(kind(lock(&mut state, 5, 5)).0, ErrorKind::Invalid);
    assert_eq!(kind(lock(&mut state, u64::MAX, 5)).0, ErrorKind::Invalid);
    lock(&mut state, 5000, 5).unwrap();
    let (k, text) = kind(lock(&mut state, 4000, 5));
    assert!(k == ErrorKind::Invalid && text.contains("1970-01-01T00:00:05Z"), "{text}");
    let (k, text) = kind(delete(&mut state, "a", 4999));
    assert!(k == ErrorKind::Busy && text.contains("locked until 1970-01-01T00:00:05Z"), "{text}");
    let gone = Command::DeleteVolumeAndSnapshots { volume: V, force: true, now_ms: 4999 };
    assert_eq!(kind(state.apply(gone)).0, ErrorKind::Busy);
    delete(&mut state, "a", 5000).unwrap();
}

#[test]
fn a_volume_goes_with_its_snapshots_only_if_that_is_said() {
    let mut state = cluster(&[1, 1]);
    simple(&mut state, "a", 1);
    let group = begin(&mut state, "g", &[1, 2], 2).unwrap();
    let (k, text) = kind(state.apply(Command::DeleteVolume { volume: V, force: true }));
    assert!(k == ErrorKind::Busy && text.contains("2 snapshots") && text.contains("--with-snapshots"), "{text}");
    state.apply(Command::DeleteVolumeAndSnapshots { volume: V, force: false, now_ms: 3 }).unwrap();
    assert!(state.volume(V).is_none() && state.snapshots_of(V).next().is_none());
    assert!(state.snapshot_record(group).unwrap().has_failed(), "it was of both");
    assert_eq!(State::decode(&state.encode()).unwrap(), state);
}

#[test]
fn watchers_hear_of_snapshots_and_of_their_end() {
    let mut state = cluster(&[2, 1]);
    let mut copy = State::new(state.cluster());
    let follow = |copy: &mut State, state: &State| {
        loop {
            let page = state.changes_since(copy.revision());
            let more = page.more;
            let json = serde_json::to_vec(&page).unwrap();
            copy.take_in(serde_json::from_slice(&json).unwrap()).unwrap();
            if !more {
                break;
            }
        }
        let of = |s: &State| s.snapshots().map(|s| (**s).clone()).collect::<Vec<Snapshot>>();
        assert_eq!(of(copy), of(state));
        assert_eq!(copy.kept_snapshots(V), state.kept_snapshots(V));
    };
    follow(&mut copy, &state);
    let id = begin(&mut state, "a", &[1], 1).unwrap();
    follow(&mut copy, &state);
    let cuts = (0..2).map(|i| cut(&state, shard(1, i), 5)).collect();
    report(&mut state, id, cuts);
    confirm(&mut state, id, &[shard(1, 0), shard(1, 1)]);
    follow(&mut copy, &state);
    assert_eq!(copy.snapshot(V, "a").map(|s| s.is_complete()), Some(true));
    delete(&mut state, "a", 1).unwrap();
    follow(&mut copy, &state);
    for n in 0..limits::TOMBSTONES_MAX as u64 + 2 {
        let id = begin(&mut state, "b", &[2], n).unwrap();
        state.apply(Command::FailSnapshot { snapshot: id, why: String::new() }).unwrap();
    }
    follow(&mut copy, &state);
    assert_eq!(State::decode(&state.encode()).unwrap(), state);
}

#[test]
fn damaged_records_are_refused() {
    let mut state = cluster(&[2]);
    let id = begin(&mut state, "a", &[1], 1).unwrap();
    let cuts = (0..2).map(|i| cut(&state, shard(1, i), 5)).collect();
    report(&mut state, id, cuts);
    let page = state.changes_since(0);
    let damages: [fn(&mut Snapshot); 7] = [
        |s| s.name = "a/b".into(),
        |s| s.volumes.clear(),
        |s| s.volumes[0].cuts[0] = None,
        |s| s.waits_for.clear(),
        |s| _ = s.waits_for.insert(ShardId::new(1, 9)),
        |s| s.stage = Stage::Complete,
        |s| s.id = SnapshotId(u64::MAX),
    ];
    for damage in damages {
        let mut page = page.clone();
        damage(&mut page.snapshots[0]);
        let mut copy = State::new(state.cluster());
        assert_eq!(copy.take_in(page).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(copy.revision(), 0);
    }
    State::new(state.cluster()).take_in(page).unwrap();
}

#[test]
fn what_becomes_of_a_snapshot_is_told() {
    let mut state = cluster(&[2]);
    let mut kinds = Vec::new();
    let mut step = |state: &mut State, command: Command| {
        let before = state.clone();
        state.apply(command.clone()).unwrap();
        kinds.extend(told(&before, &command, state).into_iter().map(|t| (t.kind, t.volume, t.text)));
    };
    let begin =
        |name: &str, at| Command::BeginSnapshot { name: name.into(), volumes: vec![V], created_ms: at, past: None };
    step(&mut state, begin("a", 1));
    let id = state.snapshot(V, "a").unwrap().id;
    let cuts = (0..2).map(|i| cut(&state, shard(1, i), 5)).collect();
    step(&mut state, Command::ReportCuts { snapshot: id, cuts });
    let view = state.shard(shard(1, 0)).unwrap().active;
    step(&mut state, Command::ConfirmCuts { snapshot: id, held: (0..2).map(|i| (shard(1, i), view)).collect() });
    step(&mut state, Command::LockSnapshot { volume: V, name: "a".into(), until_ms: 2000, now_ms: 1 });
    step(&mut state, Command::DeleteSnapshot { volume: V, name: "a".into(), now_ms: 2000 });
    step(&mut state, begin("b", 2));
    let id = state.snapshot(V, "b").unwrap().id;
    step(&mut state, Command::FailSnapshot { snapshot: id, why: "so".into() });
    let wanted = [
        (EventKind::SnapshotMade, "@a"),
        (EventKind::SnapshotLocked, "@a until 1970-01-01T00:00:02Z"),
        (EventKind::SnapshotDeleted, "@a"),
        (EventKind::SnapshotFailed, "@b: so"),
    ];
    assert_eq!(kinds, wanted.map(|(kind, text)| (kind, Some("v1".to_owned()), text.to_owned())));
}

// All orders in which heads can hear, cut, hold, lapse and be replaced, and in which what they say can be heard.

/// A rule of the heads that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadMutant {
    ConfirmsWithoutHold,
    OrdersBehindCuts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Holds,
    Held,
    Lapsed,
}

/// A head, or one that does not know yet that it is none any more.
#[derive(Clone, Debug)]
struct Head {
    shard: u32,
    view: ViewNumber,
    version: u64,
    /// The state that it heard last, by its place among all.
    heard: usize,
    /// The news in it; `None` before the first one.
    told: Option<Told>,
    taken: Option<(u64, Hold)>,
    is_live: bool,
}

/// All of a state that a head acts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    is_under_way: bool,
    is_decided: bool,
    /// Its own cut is reported, where that makes a difference.
    is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Report(u32, Cut),
    Confirm(u32, ViewNumber),
    Fail,
}

#[derive(Clone)]
struct World {
    states: Vec<Rc<State>>,
    heads: Vec<Head>,
    /// All words, each of which may be heard at any time, and again.
    said: Vec<Word>,
    /// Writes in the order of their answers, each asked for after the answer to the one before.
    written: Vec<(u32, u64)>,
    changes_left: usize,
}

struct Model {
    shards: u32,
    writes: usize,
    control: Option<Mutant>,
    heads: Option<HeadMutant>,
    seen: BTreeSet<String>,
    complete: usize,
    failed: usize,
    /// The first complete snapshot that is no instant.
    wrong: Option<String>,
}

impl Head {
    fn hears_of(&self, state: &State) -> Told {
        let under_way = state.snapshot_under_way(V);
        Told {
            is_under_way: under_way.is_some(),
            is_decided: under_way.is_some_and(|s| s.stage == Stage::Decided),
            is_cut: self.is_live
                && self.taken.is_none()
                && under_way.is_some_and(|s| s.cut(shard(1, self.shard)).is_some()),
        }
    }
}

impl World {
    fn record(state: &State) -> Option<&Snapshot> {
        state.snapshots().next().map(|s| &**s)
    }

    fn key(&self) -> String {
        let of = |s: &State| {
            let active: Vec<u64> = s.volume(V).unwrap().shards.iter().map(|s| s.active.0).collect();
            let record = Self::record(s).map(|r| format!("{:?}{:?}{:?}", r.stage, r.waits_for, r.volumes[0].cuts));
            format!("{active:?}{record:?}")
        };
        // Of earlier states only what heads will hear of them makes a difference.
        let heads: Vec<String> = self
            .heads
            .iter()
            .map(|h| {
                let mut ahead: Vec<Told> = self.states[h.heard + 1..].iter().map(|s| h.hears_of(s)).collect();
                ahead.dedup();
                format!("{}{}{}{:?}{:?}{}{ahead:?}", h.shard, h.view, h.version, h.told, h.taken, h.is_live)
            })
            .collect();
        let mut said: Vec<String> = self.said.iter().map(|w| format!("{w:?}")).collect();
        said.sort();
        format!("{}{heads:?}{said:?}{:?}{}", of(self.last()), self.written, self.changes_left)
    }

    fn last(&self) -> &State {
        self.states.last().expect("there is one from the begin")
    }

    /// States that say nothing new to a head are heard at once.
    fn skip(&mut self) {
        for h in &mut self.heads {
            while self.states.get(h.heard + 1).is_some_and(|s| h.told == Some(h.hears_of(s))) {
                h.heard += 1;
            }
        }
    }

    fn say(&mut self, word: Word) {
        if !self.said.contains(&word) {
            self.said.push(word);
        }
    }

    /// A head hears of the next state.
    fn hear(&mut self, i: usize, mutant: Option<HeadMutant>) {
        self.heads[i].heard += 1;
        let told = self.heads[i].hears_of(&self.states[self.heads[i].heard]);
        self.heads[i].told = Some(told);
        let h = self.heads[i].clone();
        let under_way = self.states[h.heard].snapshot_under_way(V).cloned();
        let Some(s) = under_way else {
            self.heads[i].taken = None;
            return;
        };
        let is_cut = s.cut(shard(1, h.shard)).is_some();
        match h.taken {
            None if s.stage == Stage::Gathering && !is_cut && h.is_live => {
                let version = h.version + 1;
                let hold = if mutant == Some(HeadMutant::OrdersBehindCuts) { Hold::Held } else { Hold::Holds };
                (self.heads[i].version, self.heads[i].taken) = (version, Some((version, hold)));
                let cut = Cut { view: h.view, version: Version(version), sequence: Sequence(version) };
                self.say(Word::Report(h.shard, cut));
            }
            Some((version, Hold::Holds)) if s.stage == Stage::Decided => {
                self.heads[i].taken = Some((version, Hold::Held));
                self.say(Word::Confirm(h.shard, h.view));
            }
            Some((_, Hold::Held)) if s.stage == Stage::Decided => self.say(Word::Confirm(h.shard, h.view)),
            Some((_, Hold::Lapsed)) if mutant == Some(HeadMutant::ConfirmsWithoutHold) && s.stage == Stage::Decided => {
                self.say(Word::Confirm(h.shard, h.view));
            }
            _ => {}
        }
    }

    fn lapse(&mut self, i: usize) {
        if let Some((version, Hold::Holds)) = self.heads[i].taken {
            self.heads[i].taken = Some((version, Hold::Lapsed));
            self.say(Word::Fail);
        }
    }

    fn write(&mut self, i: usize) {
        self.heads[i].version += 1;
        self.written.push((self.heads[i].shard, self.heads[i].version));
    }

    /// The control plane hears a word.
    fn deliver(&mut self, word: &Word, mutant: Option<Mutant>) -> bool {
        let mut state = self.last().clone();
        let snapshot = Self::record(&state).unwrap().id;
        let command = match word {
            Word::Report(s, cut) => Command::ReportCuts { snapshot, cuts: vec![(shard(1, *s), *cut)] },
            Word::Confirm(s, view) => Command::ConfirmCuts { snapshot, held: vec![(shard(1, *s), *view)] },
            Word::Fail => Command::FailSnapshot { snapshot, why: String::new() },
        };
        let before = state.revision();
        state.apply_with(command, mutant).unwrap();
        let is_new = state.revision() != before;
        if is_new {
            self.states.push(Rc::new(state));
        }
        is_new
    }

    /// Another view of a head's shard becomes active: the old one may still hear and speak, and has nothing ordered. The new
    /// one hears that state first of all.
    fn change_view(&mut self, i: usize, mutant: Option<Mutant>) {
        let mut state = self.last().clone();
        let view = open(&mut state, shard(1, self.heads[i].shard), mutant);
        let heard = self.states.len() - 1;
        self.states.push(Rc::new(state));
        self.heads[i].is_live = false;
        self.heads.push(Head { view, heard, told: None, taken: None, is_live: true, ..self.heads[i].clone() });
        self.changes_left -= 1;
    }

    /// True if a complete snapshot has each write that was answered before one that it has.
    fn is_instant(&self) -> bool {
        let Some(s) = Self::record(self.last()).filter(|s| s.is_complete()) else { return true };
        let has = |(of, version): &(u32, u64)| s.cut(shard(1, *of)).unwrap().version.0 >= *version;
        let first_out = self.written.iter().position(|w| !has(w)).unwrap_or(self.written.len());
        !self.written[first_out..].iter().any(has)
    }
}

impl Model {
    fn run(shards: u32, writes: usize, changes: usize, (control, heads): (Option<Mutant>, Option<HeadMutant>)) -> Self {
        let mut state = cluster(&[shards]);
        let head = |i: u32| {
            let view = state.shard(shard(1, i)).unwrap().active;
            Head { shard: i, view, version: 0, heard: 0, told: None, taken: None, is_live: true }
        };
        let heads_now = (0..shards).map(head).collect();
        let before = state.clone();
        begin(&mut state, "s", &[1], 1).unwrap();
        let first = World {
            states: vec![Rc::new(before), Rc::new(state)],
            heads: heads_now,
            said: Vec::new(),
            written: Vec::new(),
            changes_left: changes,
        };
        let seen = BTreeSet::new();
        let mut model = Self { shards, writes, control, heads, seen, complete: 0, failed: 0, wrong: None };
        model.visit(first);
        model
    }

    fn visit(&mut self, first: World) {
        let mut open = vec![first];
        while let Some(mut world) = open.pop() {
            world.skip();
            if self.wrong.is_some() || !self.seen.insert(world.key()) {
                continue;
            }
            // Both ends are final, and every write from here on is behind all cuts.
            match World::record(world.last()).map(|s| &s.stage) {
                Some(Stage::Complete) => self.complete += 1,
                Some(Stage::Failed { .. }) => self.failed += 1,
                _ => self.next(&world, &mut open),
            }
            if !world.is_instant() {
                self.wrong = Some(format!("{:?} {:?}", world.written, World::record(world.last())));
            }
        }
    }

    fn next(&self, world: &World, open: &mut Vec<World>) {
        let mut step = |act: &dyn Fn(&mut World) -> bool| {
            let mut next = world.clone();
            if act(&mut next) {
                open.push(next);
            }
        };
        for (i, head) in world.heads.iter().enumerate() {
            if head.heard + 1 < world.states.len() {
                step(&|w| {
                    w.hear(i, self.heads);
                    true
                });
            }
            let holds = matches!(head.taken, Some((_, Hold::Holds)));
            if holds {
                step(&|w| {
                    w.lapse(i);
                    true
                });
            }
            if head.is_live && !holds && world.written.len() < self.writes {
                step(&|w| {
                    w.write(i);
                    true
                });
            }
            if head.is_live && world.changes_left > 0 {
                step(&|w| {
                    w.change_view(i, self.control);
                    true
                });
            }
        }
        for word in &world.said {
            step(&|w| w.deliver(word, self.control));
        }
        assert!(self.shards > 0);
    }
}

#[test]
fn a_complete_snapshot_is_an_instant_in_all_orders() {
    for (shards, writes, changes) in [(2, 3, 1), (2, 2, 2), (3, 3, 0), (3, 2, 1)] {
        let found = Model::run(shards, writes, changes, (None, None));
        assert_eq!(found.wrong, None);
        let (seen, complete, failed) = (found.seen.len(), found.complete, found.failed);
        println!(
            "{shards} shards, {writes} writes, {changes} views: {seen} worlds, {complete} complete, {failed} failed"
        );
        assert!(complete > 10 && failed > 100, "both ends are reached: {complete} {failed}");
    }
}

#[test]
fn each_rule_of_the_cuts_is_needed() {
    let control = [Mutant::OldViewsReport, Mutant::SnapshotsOutliveViews].map(|m| (Some(m), None));
    let heads = [HeadMutant::ConfirmsWithoutHold, HeadMutant::OrdersBehindCuts].map(|m| (None, Some(m)));
    for (i, mutant) in control.into_iter().chain(heads).enumerate() {
        assert!(Model::run(2, 2, 1, mutant).wrong.is_some(), "mutant {i} lives");
    }
}

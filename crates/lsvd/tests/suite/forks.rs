//! Forks (design note 36): a tree of shards in one log, each of which begins at a pinned version of another one. Whatever
//! is written, pinned, given up, cleaned, made flat, deleted, cut short by a power failure or recovered, each reads as a
//! naive copy of its parent would, in the present and at its own pins.
//!
//! The stories run on 60 seeds, and on 3,000 in their long form; `FREEBS_SEED=n` runs the one that failed.

use crate::common::*;
use crate::crash_device::{crash_device, power_cut};
use crate::forks_lost::{self, Told, append_lost, mend_all, parent_gone, right_or_lost, tell_all};
use crate::history::{LEFT_OUT, TINY, erase_checkpoints, open};
use crate::waiting::Gated;
use freebs_format::UpdateKind;
use freebs_io::faults::CrashDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Durable, MarkChange, Options, Record, RuleMutant, fork_name, fork_token};
use freebs_types::{ErrorKind, Fork, Hash32, Lba, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCKS: u32 = 96;
pub const SEGMENTS: u64 = 24;
pub const LIMIT: u64 = 40 << 20;
/// Shards of a tree at most, and pins of a shard.
const SHARDS_MAX: usize = 7;
const PINS_MAX: usize = 4;
/// Stories within which a rule that is left out must show.
const MUTANT_SEEDS: u64 = 20;

/// One shard, and what it is by the plainest rules.
#[derive(Clone)]
pub struct Line {
    chain: Chain,
    now: Model,
    /// Pinned versions: frame and content.
    pub pins: BTreeMap<u64, (u64, Model)>,
}

pub struct Tree {
    pub lines: BTreeMap<ShardId, Line>,
    pub rng: Rng,
    next_shard: u64,
    pub next_view: u64,
    /// Forks without a frame of their own.
    pub unopened: BTreeMap<ShardId, Fork>,
    /// Appends are lost, and parents.
    loses: bool,
    /// Forks that read from others what these may have lost.
    pub unsure: BTreeSet<ShardId>,
    /// Blocks that could not be read for that.
    lost: u64,
}

impl Tree {
    fn new(seed: u64) -> Self {
        let root = Line { chain: Chain::new(ShardId::new(1, 0)), now: Model::new(), pins: BTreeMap::new() };
        let lines = [(root.chain.shard, root)].into();
        Self {
            lines,
            rng: Rng::new(seed),
            next_shard: 2,
            next_view: 2,
            unopened: BTreeMap::new(),
            loses: false,
            unsure: BTreeSet::new(),
            lost: 0,
        }
    }

    /// One that has a frame of its own.
    fn any(&mut self) -> ShardId {
        let all: Vec<ShardId> = self.lines.keys().copied().filter(|s| !self.unopened.contains_key(s)).collect();
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn write(&mut self, shard: ShardId) -> Record {
        let (rng, line) = (&mut self.rng, self.lines.get_mut(&shard).unwrap());
        let ops: Vec<Op> = (0..1 + rng.below(3)).map(|_| Op::random(rng, BLOCKS)).collect();
        ops.iter().for_each(|op| op.apply(&mut line.now));
        Record::Frame(line.chain.frame(&ops))
    }

    fn pin(&mut self, shard: ShardId) -> Record {
        let line = self.lines.get_mut(&shard).unwrap();
        let frame = line.chain.pins(&[(UpdateKind::Snapshot, 0)]);
        line.pins.insert(line.chain.version, (line.chain.sequence, line.now.clone()));
        Record::Frame(frame)
    }

    fn unpin(&mut self, shard: ShardId) -> Option<Record> {
        let (rng, line) = (&mut self.rng, self.lines.get_mut(&shard).unwrap());
        let n = rng.below(line.pins.len().max(1) as u64) as usize;
        let version = *line.pins.keys().nth(n)?;
        line.pins.remove(&version);
        Some(Record::Frame(line.chain.pins(&[(UpdateKind::Release, version)])))
    }

    /// A new shard that begins at a pin of another one.
    fn fork(&mut self, parent: ShardId) -> Option<(ShardId, Fork)> {
        let of = self.lines.get(&parent).unwrap().clone();
        let n = self.rng.below(of.pins.len().max(1) as u64) as usize;
        let (version, (sequence, model)) = of.pins.iter().nth(n)?;
        let fork = Fork {
            parent,
            snapshot: pin(*version).snapshot,
            version: Version(*version),
            sequence: Sequence(*sequence),
        };
        let id = ShardId::new(self.next_shard, 0);
        self.next_shard += 1;
        let chain = Chain {
            id: fork_token(CLUSTER, &fork),
            view: ViewNumber(0),
            sequence: *sequence,
            version: *version,
            committed: *sequence,
            ..Chain::new(id)
        };
        self.lines.insert(id, Line { chain, now: model.clone(), pins: BTreeMap::new() });
        Some((id, fork))
    }

    /// The fork's first frame.
    fn open(&mut self, shard: ShardId) -> Record {
        self.next_view += 1;
        let line = self.lines.get_mut(&shard).unwrap();
        Record::Frame(line.chain.view_frame(self.next_view, 9))
    }

    /// Forks of forks lack what these do.
    fn doubt_forks(&mut self, rig: &Rig) {
        let forks = rig.engine.forks();
        let is_new = |t: &Self, (shard, f): &(ShardId, Fork)| t.unsure.contains(&f.parent) && !t.unsure.contains(shard);
        while let Some((shard, _)) = forks.iter().find(|f| is_new(self, f)) {
            self.unsure.insert(*shard);
        }
    }

    async fn compare(&mut self, rig: &Rig) {
        self.doubt_forks(rig);
        for (shard, line) in &self.lines {
            if self.unsure.contains(shard) {
                self.lost += right_or_lost(rig, *shard, None, &line.now, BLOCKS).await;
                for (version, (_, model)) in &line.pins {
                    self.lost += right_or_lost(rig, *shard, Some(Version(*version)), model, BLOCKS).await;
                }
                continue;
            }
            let whole_from = rig.engine.whole_from(*shard).unwrap();
            let found = rig.read_all(*shard, BLOCKS).await.unwrap_or_else(|e| panic!("shard {shard}: {e}"));
            same(&found, &line.now, &format!("shard {shard}"));
            // Nobody has told a parent that is mended what its own lost frames had pinned.
            for (version, (_, model)) in line.pins.iter().filter(|(v, _)| **v >= whole_from.0) {
                let found = rig.read_version(*shard, Some(Version(*version)), BLOCKS).await;
                let what = format!("version {version} of shard {shard}");
                same(&found.unwrap_or_else(|e| panic!("{what}: {e}")), model, &what);
            }
        }
        let shards = rig.engine.shards().into_iter();
        let forks: Vec<(ShardId, Fork)> = shards.filter_map(|s| Some((s, rig.engine.state(s)?.fork?))).collect();
        assert_eq!(rig.engine.forks(), forks);
        rig.engine.check();
        rig.engine.check_past().await.unwrap();
    }
}

fn same(found: &Model, model: &Model, what: &str) {
    let want = full(model, BLOCKS);
    if let Some(b) = (0..BLOCKS).find(|b| found[b] != want[b]) {
        panic!("block {b} of {what} is {:?}, not {:?}", found[&b], want[&b]);
    }
}

/// All that was appended is durable, and known to be committed.
pub async fn commit(t: &mut Tree, rig: &Rig) {
    rig.settle().await;
    assert!(rig.heard.failed.borrow().is_none(), "{:?}", rig.heard.failed.borrow());
    for (shard, line) in &mut t.lines {
        line.chain.committed = line.chain.sequence;
        rig.engine.committed(*shard, Sequence(line.chain.sequence));
    }
}

async fn make_fork(t: &mut Tree, rig: &Rig, parent: ShardId) -> Option<ShardId> {
    commit(t, rig).await;
    let (id, fork) = t.fork(parent)?;
    if fork.version < rig.engine.whole_from(parent).unwrap() {
        assert_eq!(rig.engine.check_fork(&fork).unwrap_err().kind, ErrorKind::Corrupt);
        t.lines.remove(&id);
        return None;
    }
    t.doubt_forks(rig);
    match rig.engine.check_fork(&fork) {
        // Its parent lacks something of what that reads itself.
        Err(e) if e.kind == ErrorKind::Corrupt && t.unsure.contains(&parent) => {
            t.lines.remove(&id);
            return None;
        }
        can => can.unwrap(),
    }
    rig.append(Record::Mark { shard: id, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
    rig.settle().await;
    t.doubt_forks(rig);
    let state = rig.engine.state(id).unwrap();
    assert_eq!((state.last, state.fork, state.version), (fork_name(CLUSTER, &fork), Some(fork), fork.version));
    assert!(state.holes.is_empty() && state.committed == fork.sequence && rig.engine.is_read_by_forks(parent));
    // A start that comes before its first frame.
    if t.rng.chance(60) {
        let frame = t.open(id);
        rig.append(frame);
    } else {
        t.unopened.insert(id, fork);
    }
    Some(id)
}

/// Brings a fork what it reads from its parents, in pieces, with whatever else happens in between.
async fn flatten(t: &mut Tree, rig: &Rig, shard: ShardId) {
    t.doubt_forks(rig);
    let mut at = Some(Lba(0));
    while let Some(from) = at {
        let piece = rig.engine.inherited_entries(shard, from, 24 << 10).await;
        if t.unsure.contains(&shard) && piece.as_ref().is_err_and(|e| e.kind == ErrorKind::Corrupt) {
            return;
        }
        let (body, data, next) = piece.unwrap();
        if !body.entries.is_empty() {
            rig.append(Record::Carry { shard, body, data, ticket: 6 });
        }
        at = next;
        if t.rng.chance(50) {
            let any = t.any();
            let record = if t.rng.chance(20) { t.pin(any) } else { t.write(any) };
            rig.append(record);
        }
        if t.rng.chance(30) {
            commit(t, rig).await;
        }
        if t.rng.chance(10) {
            let _ = rig.engine.checkpoint().await;
        }
    }
    commit(t, rig).await;
    rig.append(Record::Mark { shard, change: MarkChange { flat: true, ..MarkChange::default() }, ticket: 7 });
    // A reader that is passing through it finds that its parent keeps nothing for it any more.
    let is_there = |shard: &ShardId| !t.unsure.contains(shard) && rig.engine.state(*shard).is_some();
    for (shard, line) in t.lines.iter().filter(|(shard, _)| is_there(shard)) {
        let found = rig.read_all(*shard, BLOCKS).await.unwrap_or_else(|e| panic!("shard {shard}: {e}"));
        same(&found, &line.now, &format!("shard {shard}"));
    }
    rig.settle().await;
    assert_eq!(rig.engine.state(shard).unwrap().fork, None);
}

async fn step(t: &mut Tree, rig: &Rig) {
    let shard = t.any();
    let pins = t.lines[&shard].pins.len();
    match t.rng.below(100) {
        0..=9 if pins < PINS_MAX => rig.append(t.pin(shard)),
        10..=15 => t.unpin(shard).into_iter().for_each(|r| rig.append(r)),
        16..=24 if t.lines.len() < SHARDS_MAX => drop(make_fork(t, rig, shard).await),
        25..=28 => {
            commit(t, rig).await;
            flatten(t, rig, shard).await;
        }
        29..=33 if t.lines.len() > 1 + t.unopened.len() && !rig.engine.is_read_by_forks(shard) => {
            commit(t, rig).await;
            t.lines.remove(&shard);
            rig.append(Record::Forget { shard, promised: ViewNumber(0) });
        }
        34..=36 => {
            let made = rig.engine.checkpoint().await;
            assert!(made.is_ok() || made.is_err_and(|e| e.kind == ErrorKind::NoSpace));
        }
        37..=50 => commit(t, rig).await,
        _ => rig.append(t.write(shard)),
    }
}

/// It is stopped or loses power, and starts with or without its checkpoints.
async fn again(t: &mut Tree, rig: Rig, mut device: CrashDevice, options: Options) -> (Rig, CrashDevice) {
    commit(t, &rig).await;
    let told = if t.loses { Some(tell_all(t, &rig).await) } else { None };
    if t.rng.chance(50) {
        rig.stop().await;
    } else {
        rig.kill();
        tokio::task::yield_now().await;
        device = power_cut(&device, &mut t.rng);
    }
    if t.rng.chance(40) {
        erase_checkpoints(&device).await;
    }
    let rig = match told {
        Some(told) => {
            let rig = forks_lost::open(&device, options).await;
            // Without a checkpoint older damage shows again.
            mend_all(t, &rig, &told).await;
            rig
        }
        None => open(&device, options).await,
    };
    // The head of the first view has to find the token of the frame in front.
    for (shard, fork) in std::mem::take(&mut t.unopened) {
        let Some(state) = rig.engine.state(shard).filter(|_| t.lines.contains_key(&shard)) else { continue };
        assert_eq!((state.last, state.parent), (fork_name(CLUSTER, &fork), fork_token(CLUSTER, &fork)));
        assert_eq!((state.digest, state.view), (Hash32::default(), None));
        rig.append(t.open(shard));
    }
    (rig, device)
}

/// One story, with losses or without; gives back segments that cleaning emptied, forks that were made, and blocks that could
/// not be read.
async fn story(seed: u64, loses: bool) -> (u64, u64, u64) {
    let mut t = Tree { loses, ..Tree::new(seed) };
    let mut device = crash_device(LIMIT, seed);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let options = if t.rng.chance(50) { TINY } else { Options::of_workers(1) };
    let mut rig = open(&device, options).await;
    let mut cleaned = 0;
    for _ in 0..4 {
        for _ in 0..60 + t.rng.below(60) {
            step(&mut t, &rig).await;
        }
        if loses && t.rng.chance(60) {
            parent_gone(&mut t, &rig).await;
        }
        commit(&mut t, &rig).await;
        t.compare(&rig).await;
        cleaned += rig.engine.counters().cleaned_segments;
        (rig, device) = again(&mut t, rig, device, options).await;
        t.compare(&rig).await;
        if loses && t.rng.chance(60) {
            (rig, device) = append_lost(&mut t, rig, device, options).await;
            t.compare(&rig).await;
        }
        if t.lines.len() == t.unopened.len() {
            // Nothing is left of them.
            break;
        }
    }
    (cleaned, t.next_shard - 2, t.lost)
}

struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        eprintln!("again: {} cargo test -p freebs-lsvd --test suite forks", freebs_testing::again(self.0));
    }
}

#[test]
fn forks_read_as_naive_copies() {
    let (mut cleaned, mut forks) = (0, 0);
    for seed in freebs_testing::seeds(60, 3000) {
        local(async {
            let guard = Seed(seed);
            let (c, f, lost) = story(seed, false).await;
            assert_eq!(lost, 0);
            (cleaned, forks) = (cleaned + c, forks + f);
            std::mem::forget(guard);
        });
    }
    println!("{cleaned} segments cleaned, {forks} forks");
    assert!(cleaned > 0 && forks > 0, "the stories are about something");
}

/// Between the look at the parent and the fork a frame gave the pin up: what the fork would read may be gone.
#[test]
fn a_version_that_is_given_up_in_front_of_its_fork_makes_none() {
    local(async {
        let mut t = Tree::new(1);
        let device = crash_device(LIMIT, 1);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let rig = open(&device, Options::of_workers(1)).await;
        let parent = t.any();
        rig.append(t.write(parent));
        rig.append(t.pin(parent));
        commit(&mut t, &rig).await;
        let (id, fork) = t.fork(parent).unwrap();
        rig.engine.check_fork(&fork).unwrap();
        rig.append(t.unpin(parent).unwrap());
        rig.append(t.write(parent));
        rig.settle().await;
        rig.engine.committed(parent, Sequence(t.lines[&parent].chain.sequence));
        rig.append(Record::Mark { shard: id, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
        rig.settle().await;
        let answers = rig.heard.done.borrow();
        assert!(matches!(answers.last(), Some(Durable::Unlearned { shard, ticket: 5, .. }) if *shard == id));
        assert!(rig.engine.state(id).is_none() && !rig.engine.is_read_by_forks(parent));
    });
}

/// The parent's version was given up in front of the fork's mark, and that was known to be committed only when the mark was on its
/// way to the disk. What the fork was to read was gone by the time it was there, and it read what lies below.
#[test]
fn a_version_is_kept_while_the_mark_of_its_fork_is_written() {
    for rule in [None, Some(RuleMutant::ForksToComeForgotten)] {
        local(async {
            let mut t = Tree::new(1);
            let device = Gated::new(MemoryDevice::new(4096, LIMIT));
            create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
            let rig = Rig::open_without(rule, device.clone(), Options::of_workers(1)).await.unwrap();
            let parent = t.any();
            rig.append(t.write(parent));
            rig.append(t.pin(parent));
            commit(&mut t, &rig).await;
            let (id, fork) = t.fork(parent).unwrap();
            let then = t.lines[&parent].now.clone();
            (0..20).for_each(|_| rig.append(t.write(parent)));
            rig.append(t.unpin(parent).unwrap());
            rig.settle().await;
            device.shut_to_writes(true);
            rig.append(Record::Mark { shard: id, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            rig.engine.committed(parent, Sequence(t.lines[&parent].chain.sequence));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            device.shut_to_writes(false);
            rig.settle().await;
            assert_eq!(rig.engine.state(id).unwrap().fork, Some(fork));
            let read = rig.read_all(id, BLOCKS).await.unwrap();
            assert_eq!(read == full(&then, BLOCKS), rule.is_none(), "{rule:?}");
            rig.engine.check();
            rig.kill();
        });
    }
}

/// The stories must be able to fail (rule E10).
#[test]
fn forks_that_do_not_hold_are_caught() {
    let rules =
        [(RuleMutant::ForksForgotten, false), (RuleMutant::ForksUntold, false), (RuleMutant::LostToForksUntold, true)];
    for (rule, loses) in rules {
        let fails = |rule, seed: u64| {
            LEFT_OUT.set(rule);
            let run = || {
                local(async {
                    story(seed, loses).await;
                });
            };
            let fails = catch_unwind(AssertUnwindSafe(run)).is_err();
            LEFT_OUT.set(None);
            fails
        };
        // A story that fails without it, too, says nothing of it.
        let caught = (0..MUTANT_SEEDS).find(|seed| fails(Some(rule), *seed) && !fails(None, *seed));
        println!("{rule:?} is caught by seed {caught:?}");
        assert!(caught.is_some(), "{rule:?} is not caught by {MUTANT_SEEDS} seeds");
    }
}

/// A blank log learns all of a fork, the entries of its parents included, and reads the same without them.
async fn learn(rig: &Rig, shard: ShardId) -> Rig {
    let device = MemoryDevice::new(4096, LIMIT);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let learner = Rig::open(device).await.unwrap();
    let told = Told::by(rig, shard).await.unwrap();
    told.give(&learner, told.goes_on(Sequence(0), Sequence(0))).await;
    assert_eq!(learner.engine.state(shard).unwrap().fork, None, "what was learned is flat");
    learner
}

/// All shards of a tree are learned, and read as at their teller. Gives back how many of them are forks there.
async fn learned_story(seed: u64) -> usize {
    let mut t = Tree::new(seed);
    let device = crash_device(LIMIT, seed);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let rig = open(&device, TINY).await;
    for _ in 0..150 {
        step(&mut t, &rig).await;
    }
    commit(&mut t, &rig).await;
    let mut forks = 0;
    for (shard, line) in &t.lines {
        forks += usize::from(rig.engine.state(*shard).unwrap().fork.is_some());
        let learner = learn(&rig, *shard).await;
        same(&learner.read_all(*shard, BLOCKS).await.unwrap(), &line.now, &format!("learned shard {shard}"));
        for (version, (_, model)) in &line.pins {
            let found = learner.read_version(*shard, Some(Version(*version)), BLOCKS).await.unwrap();
            same(&found, model, &format!("learned version {version} of shard {shard}"));
        }
        let [a, b] = [&learner, &rig].map(|r| r.engine.digest(*shard));
        assert_eq!(a.await.unwrap(), b.await.unwrap(), "a copy is told from its teller by nothing");
        learner.stop().await;
    }
    rig.stop().await;
    forks
}

#[test]
fn copies_of_forks_are_flat_and_whole() {
    let mut forks = 0;
    for seed in freebs_testing::seeds(12, 300) {
        local(async {
            let guard = Seed(seed);
            forks += learned_story(seed).await;
            std::mem::forget(guard);
        });
    }
    assert!(forks > 0, "some of them read from others");
}

#[test]
fn parents_that_are_left_out_of_a_copy_are_missed() {
    LEFT_OUT.set(Some(RuleMutant::InheritedUntold));
    let told = |seed: &u64| {
        let run = || {
            local(async {
                learned_story(*seed).await;
            });
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    let caught = (0..MUTANT_SEEDS).find(told);
    LEFT_OUT.set(None);
    assert!(caught.is_some(), "not caught by {MUTANT_SEEDS} seeds");
}

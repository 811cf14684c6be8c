//! Workers whose logs have parents and forks: one that can't be made flat stops no other, and a parent waits for forks that are
//! only about to be made.

use super::{Turns, Wanted};
use crate::copies::{Log, World, blank, open, rot, runtime};
use crate::event::{Branch, Mutant, ShardInfo, ShardSnapshots};
use crate::timing;
use freebs_format::PinUpdate;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{MarkChange, Record};
use freebs_types::{
    BlockRange, ClusterId, Error, ErrorKind, Fork, Generation, Lba, Nanos, NodeId, Sequence, ShardId, SnapshotId,
    Version, ViewNumber,
};
use std::collections::BTreeMap;
use std::time::Duration;

const PARENTS: [ShardId; 2] = [ShardId::new(11, 0), ShardId::new(12, 0)];
const CLONES: [ShardId; 2] = [ShardId::new(19, 0), ShardId::new(20, 0)];
const SNAPSHOT: SnapshotId = SnapshotId(5);
const CLUSTER: ClusterId = ClusterId([7; 16]);
/// The byte of all blocks of the first parent; that of the next one is the next number.
const FILL: u8 = 0x41;

async fn append(device: &MemoryDevice, records: Vec<Record>, committed: &[(ShardId, u64)]) {
    let engine = open(device, 1).await;
    let writer = engine.clone();
    let task = tokio::task::spawn_local(async move { writer.run().await });
    records.into_iter().for_each(|r| engine.append(r));
    for (shard, s) in committed {
        while engine.tip(*shard).is_none_or(|t| t.0.sequence < Sequence(*s)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        engine.committed(*shard, Sequence(*s));
        // It says so durably.
        engine.append(mark(*shard, MarkChange::default()));
    }
    engine.close().await.unwrap();
    task.await.unwrap().unwrap();
}

/// Both parents, each with a snapshot; and the forks of it, which are not made.
async fn with_parents(device: &MemoryDevice) -> [Fork; 2] {
    let mut forks = Vec::new();
    for (parent, fill) in PARENTS.into_iter().zip(FILL..) {
        let mut log = Log::new(parent);
        let frames = [log.open(), log.write(0, fill), log.pin(PinUpdate::Snapshot(SNAPSHOT))];
        append(device, frames.map(Record::Frame).to_vec(), &[(parent, log.sequence)]).await;
        let (version, sequence) = (Version(log.version), Sequence(log.sequence));
        forks.push(Fork { parent, snapshot: SNAPSHOT, version, sequence });
    }
    forks.try_into().unwrap()
}

fn mark(shard: ShardId, change: MarkChange) -> Record {
    Record::Mark { shard, change, ticket: 1 }
}

/// News of a clone's shard, none of whose views was ever active. Another node leads it.
fn news(shard: ShardId, fork: Fork) -> ShardInfo {
    ShardInfo {
        shard,
        members: [2, 1].map(NodeId).to_vec(),
        active: ViewNumber(0),
        known: ViewNumber(0),
        blocks: 1024,
        highest: ViewNumber(9),
        generation: Generation(0),
        has_keys: true,
        joining: Vec::new(),
        standing: Vec::new(),
        view_members: [2, 1].map(NodeId).to_vec(),
        volume: None,
        forced: None,
        branch: Branch::default(),
        snapshots: ShardSnapshots::default(),
        fork: Some(fork),
        flatten: false,
    }
}

/// The first byte of a shard.
async fn first_byte(w: &World, shard: ShardId) -> Result<u8, ErrorKind> {
    let read = w.workers[&1].engine().read(shard, BlockRange::new(0, 1)).await;
    read.map(|o| o.data.first().map_or(0, |d| d[0])).map_err(|e| e.kind)
}

fn is_there(w: &World, shard: ShardId) -> bool {
    w.workers[&1].engine().state(shard).is_some()
}

fn is_fork(w: &World, shard: ShardId) -> bool {
    w.workers[&1].engine().state(shard).is_some_and(|s| s.fork.is_some())
}

/// Two clones whose parents were deleted. A block that the first one reads has rotted.
async fn with_one_rotten(mutant: Option<Mutant>) -> World {
    let device = blank(1).await;
    let forks = with_parents(&device).await;
    let made = CLONES.into_iter().zip(&forks).map(|(c, fork)| mark(c, MarkChange::forked(CLUSTER, fork)));
    append(&device, made.collect(), &[]).await;
    rot(&device, FILL);
    let mut w = World::new();
    w.start_without(1, &device, mutant).await;
    PARENTS.into_iter().for_each(|p| w.workers[&1].on_gone(p));
    assert!(PARENTS.into_iter().all(|p| is_there(&w, p)), "they wait");
    w
}

/// The first clone could not be made flat. The second one was never looked at, and its parent took room for ever.
#[test]
fn one_that_can_not_be_made_flat_stops_no_other() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        let mut w = with_one_rotten(Some(Mutant::TurnsStay)).await;
        w.waits(20_000).await;
        assert!(is_there(&w, PARENTS[1]), "without turns");
        w.stop(1);
        let mut w = with_one_rotten(None).await;
        w.until("the second parent goes", |w| !is_there(w, PARENTS[1])).await;
        assert_eq!(first_byte(&w, CLONES[1]).await, Ok(FILL + 1));
        assert!(is_there(&w, PARENTS[0]) && is_fork(&w, CLONES[0]));
        let status = w.workers[&1].status();
        let waits = |c| status.iter().find(|s| s.shard == c).and_then(|s| s.waits.clone());
        assert!(waits(CLONES[0]).is_some_and(|w| w.contains("flat")) && waits(CLONES[1]).is_none());
        w.stop(1);
    });
}

/// The mark of the fork was not in the log yet, and its parent went: the fork was one of nothing, for ever.
#[test]
fn a_parent_waits_for_a_fork_that_is_about_to_be_made() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        for left in [false, true] {
            let device = blank(1).await;
            let forks = with_parents(&device).await;
            let mut w = World::new();
            w.start(1, &device).await;
            w.workers[&1].on_shards(vec![news(CLONES[0], forks[0])]);
            match left {
                true => w.workers[&1].on_left(PARENTS[0], ViewNumber(1)),
                false => w.workers[&1].on_gone(PARENTS[0]),
            }
            let is_gone =
                |w: &World| w.workers[&1].engine().tip(PARENTS[0]).is_none_or(|t| t.0.sequence == Sequence(0));
            w.until("the parent goes", is_gone).await;
            assert!(is_there(&w, CLONES[0]) && !is_fork(&w, CLONES[0]), "it was made, and is flat");
            assert_eq!(first_byte(&w, CLONES[0]).await, Ok(FILL));
            w.stop(1);
        }
    });
}

/// A node that had promised a view of a clone, and nothing else, never made the fork.
#[test]
fn a_log_with_a_promise_makes_its_fork_and_keeps_it() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        let device = blank(1).await;
        let forks = with_parents(&device).await;
        let promised = Some(ViewNumber(7));
        append(&device, vec![mark(CLONES[0], MarkChange { promised, ..MarkChange::default() })], &[]).await;
        let mut w = World::new();
        w.start(1, &device).await;
        w.workers[&1].on_shards(vec![news(CLONES[0], forks[0])]);
        w.until("the fork is made", |w| is_fork(w, CLONES[0])).await;
        assert_eq!(first_byte(&w, CLONES[0]).await, Ok(FILL));
        w.stop(1);
        drop(w);
        let state = open(&device, 1).await.state(CLONES[0]).unwrap();
        assert_eq!((state.promised, state.fork, state.last.view), (ViewNumber(7), Some(forks[0]), ViewNumber(0)));
    });
}

/// A worker whose log has two forks, the second one with a frame of its own, and lost their parents.
async fn with_orphans(mutant: Option<Mutant>) -> (World, [Fork; 2]) {
    let device = blank(1).await;
    let forks = with_parents(&device).await;
    let made = CLONES.into_iter().zip(&forks).map(|(c, fork)| mark(c, MarkChange::forked(CLUSTER, fork)));
    append(&device, made.collect(), &[]).await;
    let promised = Some(ViewNumber(7));
    let frame = Record::Frame(Log::forked(CLONES[1], &forks[1]).open());
    append(&device, vec![mark(CLONES[0], MarkChange { promised, ..MarkChange::default() }), frame], &[]).await;
    let forget = PARENTS.map(|shard| Record::Forget { shard, promised: ViewNumber(0) });
    append(&device, forget.to_vec(), &[]).await;
    let mut w = World::new();
    w.start_without(1, &device, mutant).await;
    (w, forks)
}

/// A log came with forks of nothing. It counted for seals, and for a whole copy, and all that the parents had was an error, for
/// ever.
#[test]
fn a_fork_without_its_parent_begins_anew_or_learns_what_it_lacks() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        for mutant in [None, Some(Mutant::OrphansGoOn)] {
            let (mut w, forks) = with_orphans(mutant).await;
            w.waits(1_000).await;
            assert_eq!(is_fork(&w, CLONES[0]), mutant.is_some(), "the first one begins anew");
            CLONES.into_iter().zip(forks).for_each(|(c, fork)| w.workers[&1].on_shards(vec![news(c, fork)]));
            let status = w.workers[&1].status();
            let of = |c| status.iter().find(|s| s.shard == c).unwrap();
            let lost = if mutant.is_some() { 0 } else { forks[1].sequence.0 };
            assert_eq!((of(CLONES[0]).state, of(CLONES[0]).log.promised), ("waiting", ViewNumber(7)));
            assert_eq!((of(CLONES[1]).state == "damaged", of(CLONES[1]).log.lost), (mutant.is_none(), lost));
            assert!(is_fork(&w, CLONES[1]), "what it has of its own stays");
            w.stop(1);
        }
    });
}

#[test]
fn turns_go_round_and_who_fails_rests() {
    let [a, b, c] = [1, 2, 3].map(|v| ShardId::new(v, 0));
    let all: BTreeMap<ShardId, Wanted> = [a, b, c].map(|s| (s, Wanted::Itself)).into();
    let (mut turns, now) = (Turns::default(), Nanos(1));
    let corrupt = || Error::corrupt("rotten");
    let mut order = Vec::new();
    for _ in 0..4 {
        let next = turns.next(now, &all).unwrap();
        turns.last = Some(next);
        order.push(next);
    }
    assert_eq!(order, [a, b, c, a]);
    // One whose parent's log is to begin anew comes first, and behind it one whose parent is to go.
    let some: BTreeMap<ShardId, Wanted> = [(a, Wanted::News), (b, Wanted::End), (c, Wanted::Itself)].into();
    assert_eq!(turns.next(now, &some), Some(a));
    assert!(turns.failed(now, a, Lba(0), &corrupt()), "people are told");
    assert_eq!(turns.next(now, &some), Some(b));
    assert!(!turns.failed(now, a, Lba(0), &corrupt()), "once");
    let rest = |turns: &Turns| turns.tried[&a].rests_until.since(now);
    assert_eq!(rest(&turns), Nanos(2 * timing::FLATTEN_AGAIN.0));
    (0..9).for_each(|_| _ = turns.failed(now, a, Lba(0), &corrupt()));
    assert_eq!(rest(&turns), Nanos(timing::FLATTEN_AGAIN.0 << timing::FLATTEN_TRIES_MAX));
    // It got on: the next try goes on from there, soon.
    turns.failed(now, a, Lba(64), &corrupt());
    assert_eq!((rest(&turns), turns.begins_at(a)), (timing::FLATTEN_AGAIN, Lba(64)));
    assert_eq!(turns.next(now.plus(timing::FLATTEN_AGAIN), &some), Some(a));
}

/// A state in which a volume is deleted may be the first one that names a clone of it, to a node that was away. The end was told
/// first: the only whole copy of what the clone reads went before anything of the clone was heard.
#[test]
fn a_parent_that_ends_in_the_state_that_names_its_fork_waits_for_it() {
    tokio::task::LocalSet::new().block_on(&runtime(), async {
        for left in [false, true] {
            let device = blank(1).await;
            let forks = with_parents(&device).await;
            let mut w = World::new();
            w.start(1, &device).await;
            let changed = vec![news(CLONES[0], forks[0])];
            match left {
                true => w.workers[&1].on_state(changed, &[(PARENTS[0], ViewNumber(1))], &[]),
                false => w.workers[&1].on_state(changed, &[], &[PARENTS[0]]),
            }
            let is_gone =
                |w: &World| w.workers[&1].engine().tip(PARENTS[0]).is_none_or(|t| t.0.sequence == Sequence(0));
            w.until("the parent goes", is_gone).await;
            assert!(is_there(&w, CLONES[0]) && !is_fork(&w, CLONES[0]), "it was made, and is flat");
            assert_eq!(first_byte(&w, CLONES[0]).await, Ok(FILL));
            w.stop(1);
        }
    });
}

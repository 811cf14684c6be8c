//! Logs that begin in the middle (rule V17): the state first, frames behind it, and what lies before is learned later.
//! In all that happens meanwhile a read gives what was written or an error, and the log says what it lacks.

use crate::common::*;
use crate::copies::{Learner, base, base_at, data, go_on, keeps, mark};
use crate::crash_device::crash_device;
use crate::history::{BLOCKS, Seed, Story, TINY, erase_checkpoints, open, step};
use freebs_io::faults::{CrashDevice, PowerCut, Survives};
use freebs_lsvd::{Base, CleanOptions, KeptState, Learned, MapPlace, MarkChange, Options, Record};
use freebs_types::{BlockRange, ErrorKind, Lba, Sequence, ShardId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHARD: ShardId = ShardId::new(1, 0);
const SEGMENTS: u64 = 48;
const LIMIT: u64 = 64 << 20;
const PIECE: usize = 24 << 10;

/// Begins behind a state.
fn begins(base: Base, kept: KeptState) -> Record {
    mark(MarkChange { base: Some(Box::new(base)), kept: Some(Box::new(kept)), early: true, ..MarkChange::default() })
}

/// All that lay in front of it was learned.
fn has_learned((since, upto): (Sequence, Sequence), kept: KeptState) -> Record {
    let learned = Some(Box::new(Learned { since, upto, ..Learned::default() }));
    mark(MarkChange { learned, kept: Some(Box::new(kept)), ..MarkChange::default() })
}

/// Each block is as the last frame left it, or is refused because it may be older. Gives back how many were refused.
async fn reads(s: &Story, rig: &Rig) -> u32 {
    let Some(state) = rig.engine.state(SHARD) else { return 0 };
    assert_eq!((state.holes.len(), state.suspect_tail), (0, false), "nothing is lost");
    let ((now, name), mut refused) = (s.at(state.last.sequence), 0);
    assert_eq!(state.last.hid, name.hid, "frame {}", state.last.sequence);
    let before = state.absent.map(|(_, upto)| s.at(upto).0);
    for b in 0..BLOCKS {
        let read = rig.engine.read(SHARD, BlockRange::new(b, 1)).await;
        let is_behind = before.as_ref().is_none_or(|before| before[&b] != now[&b]);
        match (read, now[&b]) {
            (Ok(r), Cell8::Data(fill)) => assert_eq!(r.data.concat(), block(fill), "block {b}"),
            (Ok(r), kind) => assert!(r.data.is_empty(), "block {b} is {kind:?}"),
            (Err(e), _) => {
                assert_eq!(e.kind, ErrorKind::Corrupt, "block {b}: {e}");
                assert!(!is_behind, "block {b} was written behind what is missing: {e}");
                refused += 1;
            }
        }
    }
    refused
}

/// The learner takes the state alone.
async fn begin(s: &mut Story, teller: &Rig, learner: &Learner) {
    let since = learner.rig.engine.state(SHARD).map_or(0, |s| s.committed.0);
    learner.rig.append(Record::Cut { shard: SHARD, to: Sequence(since) });
    let base = base(teller, s, since).await;
    let upto = base.last.sequence;
    teller.engine.keep(SHARD, upto);
    let kept = teller.engine.kept_state(SHARD).unwrap();
    let before = learner.rig.engine.state(SHARD).and_then(|s| s.absent);
    learner.rig.append(keeps(kept.clone()));
    learner.rig.append(begins(base, kept));
    learner.rig.settle().await;
    let first = before.map_or(since, |(first, _)| first.0);
    let want = if since < upto.0 { Some((Sequence(first), upto)) } else { before };
    assert_eq!(learner.rig.engine.state(SHARD).unwrap().absent, want);
    let told = learner.rig.engine.entries(SHARD, Lba(0), Sequence(0), PIECE).await.map(|e| e.0);
    assert!(want.is_none() || told.is_err(), "a map with a hole is told: {told:?}");
}

/// The rest is learned, while both go on.
async fn fill(s: &mut Story, teller: &Rig, mut learner: Learner) -> Learner {
    'transfer: loop {
        let Some((since, upto)) = learner.rig.engine.state(SHARD).unwrap().absent else { return learner };
        let (mut place, mut told) = (Some(MapPlace::default()), KeptState::default());
        while let Some(at) = place {
            let piece = teller.engine.entries_with_past(SHARD, at, since, since, upto, PIECE).await;
            let (body, data, next) = piece.unwrap();
            let kept = teller.engine.kept_state(SHARD).unwrap();
            if (&kept.pins, kept.retain) != (&told.pins, told.retain) {
                learner.rig.append(keeps(kept.clone()));
            }
            (place, told) = (next, kept);
            learner.rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            if s.rng.chance(60) {
                step(s, teller).await;
            }
            if s.rng.chance(30) {
                teller.settle().await;
                learner.by_frames(teller).await;
                learner.rig.engine.committed(SHARD, Sequence(s.committed));
            }
            if s.rng.chance(5) {
                let _ = learner.rig.engine.checkpoint().await;
            }
            if s.rng.chance(6) {
                learner.rig.settle().await;
                reads(s, &learner.rig).await;
                learner = learner.again(s).await;
                assert_eq!(learner.rig.engine.state(SHARD).unwrap().absent, Some((since, upto)), "it says so still");
                reads(s, &learner.rig).await;
                continue 'transfer;
            }
        }
        learner.rig.append(has_learned((since, upto), told));
        learner.rig.settle().await;
        assert_eq!(learner.rig.engine.state(SHARD).unwrap().absent, None);
        return learner;
    }
}

async fn story(seed: u64) -> u32 {
    let mut s = Story::new(seed);
    let device = crash_device(LIMIT, seed);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let options = if s.rng.chance(50) { TINY } else { Options::of_workers(1) };
    let teller = open(&device, options).await;
    let mut learner = Learner::new(&mut s).await;
    let (lags, mut refused) = (s.rng.chance(50), 0);
    for part in 0..2 {
        for _ in 0..40 + s.rng.below(60) {
            step(&mut s, &teller).await;
            if part == 0 && lags {
                teller.engine.keep(SHARD, Sequence(1));
            }
        }
        teller.settle().await;
        let last = s.last().chain.sequence;
        s.committed = s.committed.max(last - s.rng.below(3).min(last));
        teller.engine.committed(SHARD, Sequence(s.committed));
        if part == 0 && lags {
            learner.by_frames(&teller).await;
            learner.rig.engine.committed(SHARD, Sequence(s.committed));
        }
    }
    for _ in 0..1 + s.rng.below(2) {
        begin(&mut s, &teller, &learner).await;
        for _ in 0..s.rng.below(20) {
            step(&mut s, &teller).await;
        }
        teller.settle().await;
        learner.by_frames(&teller).await;
        learner.rig.engine.committed(SHARD, Sequence(s.committed));
        refused += reads(&s, &learner.rig).await;
        if s.rng.chance(50) {
            learner = learner.again(&mut s).await;
            refused += reads(&s, &learner.rig).await;
        }
    }
    learner = fill(&mut s, &teller, learner).await;
    learner.by_frames(&teller).await;
    assert_eq!(reads(&s, &learner.rig).await, 0);
    learner = go_on(&mut s, &teller, learner).await;
    learner.rig.stop().await;
    teller.stop().await;
    refused
}

#[test]
fn logs_that_begin_in_the_middle_read_as_the_naive_history() {
    let (mut refused, mut stories) = (0, 0);
    for seed in freebs_testing::seeds(24, 2_000) {
        stories += 1;
        let guard = Seed(seed);
        local(async {
            refused += story(seed).await;
        });
        std::mem::forget(guard);
    }
    println!("{refused} reads were refused");
    assert!(refused > 100 || stories < 24, "the stories hardly begin in the middle: {refused}");
}

/// Ten frames at a teller: ten runs of eight blocks, the last two of them written twice.
async fn ten_frames(c: &mut Chain) -> Rig {
    let device = crash_device(LIMIT, 1);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let teller = open(&device, Options::of_workers(1)).await;
    for i in 0..12 {
        let at = if i < 10 { i } else { i - 2 };
        teller.append(Record::Frame(c.frame(&[data(at * 8, 8, u64::from(i) << 32)])));
    }
    teller.settle().await;
    c.committed = c.sequence;
    teller.engine.committed(SHARD, Sequence(c.sequence));
    teller
}

/// All of the transfer: the state as of frame 8, the frames behind it, and then what is missing.
async fn transfer(teller: &Rig, learner: &Rig, told: &Cell<Sequence>) {
    let upto = Sequence(8);
    learner.append(begins(base_at(teller, 0, upto.0).await, KeptState { as_of: upto, ..KeptState::default() }));
    learner.settle().await;
    told.set(upto);
    for f in teller.engine.frames(SHARD, upto.next(), 1 << 20).await.unwrap() {
        learner.append(Record::Frame(f));
        learner.settle().await;
    }
    told.set(Sequence(12));
    let mut at = Some(Lba(0));
    while let Some(lba) = at {
        let (body, data, next) = teller.engine.entries_between(SHARD, lba, Sequence(0), upto, 8 << 12).await.unwrap();
        learner.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        learner.settle().await;
        at = next;
    }
    learner.append(has_learned((Sequence(0), upto), KeptState { as_of: Sequence(12), ..KeptState::default() }));
    learner.settle().await;
}

/// All that a power cut leaves of it, at any call, is a log that says what it lacks.
#[test]
fn a_log_that_begins_in_the_middle_is_cut_at_each_call() {
    local(async {
        let mut c = Chain::new(SHARD);
        let teller = ten_frames(&mut c).await;
        let all = teller.read_all(SHARD, 80).await.unwrap();
        let device = crash_device(LIMIT, 2);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let (told, cuts) = (Rc::new(Cell::new(Sequence(0))), Rc::new(RefCell::new(Vec::<(PowerCut, Sequence)>::new())));
        let (t, all_cuts) = (told.clone(), cuts.clone());
        device.on_call(move |_, cut| all_cuts.borrow_mut().push((cut, t.get())));
        let learner = open(&device, Options::of_workers(1)).await;
        transfer(&teller, &learner, &told).await;
        assert_eq!(learner.read_all(SHARD, 80).await.unwrap(), all);
        learner.engine.checkpoint().await.unwrap();
        learner.stop().await;
        let cuts = cuts.take();
        let mut seen = [0; 3];
        for (n, (cut, told)) in cuts.into_iter().enumerate() {
            for survives in [Survives::Nothing, Survives::Everything, Survives::Shredded(n as u64)] {
                let found = cut.image(survives);
                for _ in 0..2 {
                    seen[left(&found, told, &all).await] += 1;
                    erase_checkpoints(&found).await;
                }
            }
        }
        println!("{seen:?}");
        assert!(seen.iter().all(|n| *n > 10), "nothing, a hole, all: {seen:?}");
    });
}

/// The rest of the transfer: 0 for nothing, 1 for a log with a hole, 2 for all of it.
async fn left(device: &CrashDevice, told: Sequence, all: &Model) -> usize {
    let rig = open(device, Options::of_workers(1)).await;
    let state = rig.engine.state(SHARD).unwrap_or_default();
    assert!(state.last.sequence >= told, "{told} was told durable: {state:?}");
    assert_eq!((state.holes.len(), state.suspect_tail), (0, false), "nothing is lost");
    let end = match state.absent {
        _ if state.last.sequence == Sequence(0) => 0,
        Some(absent) => {
            assert_eq!(absent, (Sequence(0), Sequence(8)));
            1
        }
        None => 2,
    };
    for b in (0..80).filter(|_| end > 0) {
        // Runs 8 and 9 were written by frames 9 and 10, and again by 11 and 12.
        let written = if b < 64 { None } else { Some(u64::from(b) / 8 + 1) };
        let read = rig.engine.read(SHARD, BlockRange::new(b, 1)).await;
        let is_here = end == 2 || written.is_some_and(|s| state.last.sequence.0 >= s);
        let Ok(read) = read else {
            assert!(!is_here, "block {b} of {state:?}");
            continue;
        };
        assert!(is_here, "block {b} of {state:?} was read");
        let fill = u64::from_le_bytes(read.data.concat()[..8].try_into().unwrap());
        let again = written.is_some_and(|s| state.last.sequence.0 < s + 2);
        let first = |fill| if again { fill - (2 << 32) } else { fill };
        let Cell8::Data(want) = all[&b] else { panic!("{:?}", all[&b]) };
        assert_eq!(fill, first(want), "block {b} of {state:?}");
    }
    rig.stop().await;
    end
}

/// The segments that told first of what is missing are given up, cleaned, and written over; the log says so still, also to a
/// start without checkpoints. So it is when it was learned: no older mark brings it back.
#[test]
fn what_is_missing_outlives_the_segments_that_told_of_it() {
    for fills in [false, true] {
        local(async move {
            let mut c = Chain::new(SHARD);
            let teller = ten_frames(&mut c).await;
            let all = teller.read_all(SHARD, 80).await.unwrap();
            let device = crash_device(LIMIT, 2);
            create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
            let mut rig = open(&device, Options::of_workers(1)).await;
            rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
            let upto = Sequence(8);
            let mut other = Chain::new(ShardId::new(2, 0));
            rig.append(Record::Frame(other.frame(&[data(0, 1, 1 << 40)])));
            rig.append(begins(base_at(&teller, 0, 8).await, KeptState { as_of: upto, ..KeptState::default() }));
            if fills {
                // The mark of before stays, with the block of another shard beside it.
                rig.settle().await;
                for f in teller.engine.frames(SHARD, upto.next(), 1 << 20).await.unwrap() {
                    rig.append(Record::Frame(f));
                }
                rig.settle().await;
                let (body, data, next) =
                    teller.engine.entries_between(SHARD, Lba(0), Sequence(0), upto, 1 << 20).await.unwrap();
                assert_eq!(next, None);
                rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
                rig.append(has_learned((Sequence(0), upto), KeptState { as_of: upto, ..KeptState::default() }));
            }
            rig.settle().await;
            let want = (!fills).then_some((Sequence(0), upto));
            for round in 0..4 {
                for i in 0..6 {
                    rig.append(Record::Frame(other.frame(&[data(1, 180, (2 + i) << 40)])));
                }
                rig.settle().await;
                rig.engine.committed(other.shard, Sequence(other.sequence));
                rig.engine.set_cleaning(crate::history::eager());
                rig.engine.flush_idle();
                for _ in 0..2000 {
                    tokio::task::yield_now().await;
                }
                assert!(round < 2 || rig.engine.counters().segments_freed > 0, "nothing was given up");
                rig.stop().await;
                erase_checkpoints(&device).await;
                rig = open(&device, Options::of_workers(1)).await;
                assert_eq!(rig.engine.state(SHARD).unwrap().absent, want, "round {round}");
                assert_eq!(rig.read_all(SHARD, 80).await.ok(), fills.then(|| all.clone()), "round {round}");
            }
        });
    }
}

//! Maps larger than their memory: the engine with tiny budgets against the naive model, through restarts, cuts and
//! learning.

use crate::common::*;
use freebs_format::disk::{APPEND_MAGIC, CHECKPOINT_AT, SUPERBLOCK_AT, Superblock};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::tool::{DamageKind, SegmentKind, inspect, rebuild, survey, verify};
use freebs_lsvd::{Finding, Options, Record};
use freebs_types::{ErrorKind, Sequence, ShardId, ViewNumber};

const BLOCKS: u32 = 3000;
/// Tables of a few dozen entries, a cache of four pages.
const TINY: Options = Options { map_bytes: 16 << 10, checkpoint_bytes: 1 << 40 };

async fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let dev = MemoryDevice::new(4096, 1 << 30);
    create_log(dev.clone(), &shape(200)).await.unwrap();
    let mut rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
    let mut shards: Vec<(Chain, Model)> = (1..=3).map(|n| (Chain::new(ShardId::new(n, 0)), Model::new())).collect();
    let mut spilled = 0;
    for round in 0..8 {
        for _ in 0..rng.below(150) {
            let (chain, model) = &mut shards[rng.below(3) as usize];
            let ops: Vec<Op> = (0..1 + rng.below(4)).map(|_| Op::random(&mut rng, BLOCKS)).collect();
            ops.iter().for_each(|op| op.apply(model));
            rig.append(Record::Frame(chain.frame(&ops)));
            if rng.chance(40) {
                chain.committed = chain.sequence - rng.below(4).min(chain.sequence - chain.committed);
                rig.engine.committed(chain.shard, Sequence(chain.committed));
            }
            if rng.chance(5) {
                rig.settle().await;
            }
        }
        rig.settle().await;
        rig.engine.check();
        for (chain, model) in shards.iter().filter(|s| s.0.sequence > 0) {
            assert_eq!(
                rig.read_all(chain.shard, BLOCKS).await.unwrap(),
                full(model, BLOCKS),
                "seed {seed} round {round}"
            );
        }
        spilled = spilled.max(rig.engine.counters().map_bytes);
        if rng.chance(50) {
            let before = digests(&rig, &shards).await;
            if rng.chance(50) {
                rig.stop().await
            } else {
                rig.kill()
            }
            // With memory for everything, or with none: the same state.
            let options = if rng.chance(30) { Options::of_workers(1) } else { TINY };
            rig = Rig::open_with(dev.clone(), options).await.unwrap();
            assert_eq!(rig.report.damage, []);
            rig.engine.check();
            assert_eq!(digests(&rig, &shards).await, before, "seed {seed} round {round}");
        }
    }
    assert!(spilled > 100_000, "the maps never left memory: {spilled}");
}

async fn digests(rig: &Rig, shards: &[(Chain, Model)]) -> Vec<freebs_lsvd::Digest> {
    let mut out = Vec::new();
    for (chain, _) in shards.iter().filter(|s| s.0.sequence > 0) {
        out.push(rig.engine.digest(chain.shard).await.unwrap());
    }
    out
}

#[test]
fn a_map_that_spills_is_the_same_map() {
    for seed in 0..8 {
        local(story(seed));
    }
}

/// Erases both slots, so that all of the log is read.
fn without_checkpoints(dev: &MemoryDevice, which: &[usize]) -> MemoryDevice {
    let copy = MemoryDevice::new(4096, 1 << 30);
    dev.poke(|from| copy.poke(|to| to.clone_from(from)));
    copy.poke(|b| which.iter().for_each(|i| b[CHECKPOINT_AT[*i] as usize..][..4096].fill(0)));
    copy
}

/// A story of writes, cuts, deletions, repairs and learned entries with checkpoints in between: whichever checkpoint
/// a start begins with, and without any, it finds the same.
async fn checkpoints(seed: u64) {
    let mut rng = Rng::new(seed);
    let dev = MemoryDevice::new(4096, 1 << 30);
    create_log(dev.clone(), &shape(200)).await.unwrap();
    let options = if seed.is_multiple_of(2) { TINY } else { Options::of_workers(1) };
    let mut rig = Rig::open_with(dev.clone(), options).await.unwrap();
    let mut shards: Vec<(Chain, Model)> = (1..=3).map(|n| (Chain::new(ShardId::new(n, 0)), Model::new())).collect();
    let (mut begun, mut view) = (0, 2);
    for round in 0..10 {
        for _ in 0..rng.below(100) {
            let shard = &mut shards[rng.below(3) as usize];
            checkpoints_step(&mut rng, &rig, shard, &mut view).await;
        }
        rig.settle().await;
        if rng.chance(50) {
            rig.engine.checkpoint().await.unwrap();
        }
        rig.engine.check();
        let before = digests(&rig, &shards).await;
        let states = states(&rig, &shards);
        if rng.chance(50) {
            rig.stop().await
        } else {
            rig.kill()
        }
        for gone in [&[0, 1][..], &[0], &[1]] {
            let copy = without_checkpoints(&dev, gone);
            let other = Rig::open_with(copy, options).await.unwrap();
            assert_eq!(other.report.damage, [], "seed {seed} round {round} without {gone:?}");
            other.engine.check();
            assert_eq!(digests(&other, &shards).await, before, "seed {seed} round {round} without {gone:?}");
            assert_eq!(self::states(&other, &shards), states, "seed {seed} round {round} without {gone:?}");
            other.kill();
        }
        rig = Rig::open_with(dev.clone(), options).await.unwrap();
        begun += u32::from(rig.report.checkpoint > 0);
        assert_eq!(rig.report.damage, []);
        rig.engine.check();
        assert_eq!(digests(&rig, &shards).await, before, "seed {seed} round {round}");
        assert_eq!(self::states(&rig, &shards), states, "seed {seed} round {round}");
        for (chain, model) in shards.iter().filter(|s| s.0.sequence > 0) {
            let found = rig.read_all(chain.shard, BLOCKS).await.unwrap();
            assert_eq!(found, full(model, BLOCKS), "seed {seed} round {round}");
        }
    }
    assert!(begun > 2, "starts that began with a checkpoint: {begun}");
}

/// A frame of a shard, and now and then a commit, a cut, a deletion, or a checkpoint.
async fn checkpoints_step(rng: &mut Rng, rig: &Rig, (chain, model): &mut (Chain, Model), view: &mut u64) {
    let ops: Vec<Op> = (0..1 + rng.below(4)).map(|_| Op::random(rng, BLOCKS)).collect();
    let (safe, before) = (chain.clone(), model.clone());
    ops.iter().for_each(|op| op.apply(model));
    rig.append(Record::Frame(chain.frame(&ops)));
    match rng.below(100) {
        0..30 => {
            chain.committed = chain.sequence - rng.below(4).min(chain.sequence - chain.committed);
            rig.engine.committed(chain.shard, Sequence(chain.committed));
        }
        30..33 => {
            // The frame is cut by one of another view.
            (*chain, *model) = (safe, before);
            *view += 1;
            // What is committed is told of frames that are there.
            rig.settle().await;
            rig.append(Record::Frame(chain.view_frame(*view, 3)));
            rig.settle().await;
        }
        33 => {
            rig.append(Record::Forget { shard: chain.shard, promised: ViewNumber(0) });
            (*chain, *model) = (Chain::new(chain.shard), Model::new());
            *view += 1;
            rig.append(Record::Frame(chain.view_frame(*view, 3)));
            rig.settle().await;
        }
        34..37 => {
            let engine = rig.engine.clone();
            tokio::task::spawn_local(async move { engine.checkpoint().await });
        }
        37..42 => rig.settle().await,
        42..45 => tokio::task::yield_now().await,
        _ => {}
    }
}

/// What is known of the shards, but for what a start may know less of: how much of a shard's frames is at hand.
fn states(rig: &Rig, shards: &[(Chain, Model)]) -> Vec<String> {
    let state = |c: &Chain| {
        let s = rig.engine.state(c.shard).unwrap();
        let view = s.view.as_ref().map(|v| (v.0, v.1.encode()));
        let attach = (s.attach.generation, s.attach.driver);
        let known = (s.parent, s.digest, s.version, s.promised, s.secret, s.open_chunk);
        format!("{:?} {known:?} {view:?} {attach:?} {:?} {:?} {}", s.last, s.requests, s.holes, s.suspect_tail)
    };
    shards.iter().filter(|s| s.0.sequence > 0).map(|s| state(&s.0)).collect()
}

#[test]
fn any_checkpoint_or_none_gives_the_same_state() {
    for seed in 0..10 {
        local(checkpoints(seed));
    }
}

/// Any page that a checkpoint names may rot, and be noticed only when it is needed. The start after that reads the log
/// alone; no start ends with wrong data.
#[test]
fn a_rotten_page_of_the_map_costs_a_start_and_no_data() {
    local(async {
        let mut rng = Rng::new(77);
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(200)).await.unwrap();
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        let (mut chain, mut model) = (Chain::new(ShardId::new(1, 0)), Model::new());
        for n in 0..1500 {
            let op = Op::random(&mut rng, BLOCKS);
            op.apply(&mut model);
            chain.committed = chain.sequence;
            rig.append(Record::Frame(chain.frame(&[op])));
            if n % 10 == 0 {
                rig.settle().await;
            }
            if n == 1480 {
                rig.engine.checkpoint().await.unwrap();
            }
        }
        rig.settle().await;
        rig.kill();
        let mut pages = Vec::new();
        dev.poke(|b| pages = (0..b.len()).step_by(4096).filter(|at| b[*at..].starts_with(b"FBMP")).collect());
        assert!(pages.len() > 20, "{} pages", pages.len());
        let (mut healed, mut lost) = (0, 0);
        for at in pages {
            let copy = without_checkpoints(&dev, &[]);
            copy.poke(|b| b[at + 100] ^= 16);
            let mut wrong = true;
            for _ in 0..2 {
                let rig = Rig::open_with(copy.clone(), TINY).await.unwrap();
                assert_eq!(rig.engine.state(chain.shard).unwrap().last, chain.name());
                healed += u32::from(!rig.report.damage.is_empty());
                match rig.read_all(chain.shard, BLOCKS).await {
                    Ok(found) => {
                        assert_eq!(found, full(&model, BLOCKS), "page at {at}");
                        wrong = false;
                        rig.kill();
                        break;
                    }
                    Err(e) => {
                        assert_eq!(e.kind, freebs_types::ErrorKind::Corrupt, "{e}");
                        lost += 1;
                        // The writer erases the slots in the background.
                        for _ in 0..100 {
                            tokio::task::yield_now().await;
                        }
                        rig.kill();
                    }
                }
            }
            assert!(!wrong, "page at {at}: the second start has everything");
        }
        assert!(healed > 0 && lost > 0, "{healed} starts read the log alone, {lost} reads met a lost page");
    });
}

/// All that a checkpoint is made of may go: the tools say so page by page, and what the log alone makes is the same.
#[test]
fn the_log_alone_gives_the_same_state() {
    local(async {
        let mut rng = Rng::new(5);
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(200)).await.unwrap();
        let rig = Rig::open(dev.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        for n in 0..600 {
            chain.committed = chain.sequence;
            rig.append(Record::Frame(chain.frame(&[Op::random(&mut rng, BLOCKS)])));
            if n % 50 == 0 {
                rig.settle().await;
            }
            if n % 200 == 199 {
                rig.settle().await;
                rig.engine.checkpoint().await.unwrap();
            }
        }
        rig.settle().await;
        assert_eq!(rig.engine.counters().checkpoints, 3);
        rig.stop().await;
        let sound = verify(&erased(&dev), &mut ()).await.unwrap();
        assert!(sound.is_sound(), "{:?}", sound.damage);
        let kinds = inspect(&erased(&dev), &mut ()).await.unwrap().segments;
        assert!(kinds.iter().any(|s| s.kind == SegmentKind::Map));
        let states = async |dev: &MemoryDevice| {
            let made = rebuild(dev, false, &mut ()).await.unwrap();
            made.shards.iter().map(|s| (s.shard, s.before, s.after)).collect::<Vec<_>>()
        };
        let whole = states(&dev).await;
        assert_eq!(whole[0].1, whole[0].2);
        let mut pages = Vec::new();
        dev.poke(|b| pages = (0..b.len()).step_by(4096).filter(|at| b[*at..].starts_with(b"FBMP")).collect());
        let mut told = 0;
        for at in &pages {
            let copy = without_checkpoints(&dev, &[]);
            copy.poke(|b| b[at + 70] ^= 1);
            let found = verify(&erased(&copy), &mut ()).await.unwrap();
            assert!(found.damage.iter().all(|d| d.kind == DamageKind::Map && !d.lost && found.losses.is_empty()));
            told += usize::from(!found.damage.is_empty());
        }
        // Pages of the first checkpoint are nobody's by now.
        assert!(pages.len() > 6 && told > pages.len() / 2, "{told} of {} pages", pages.len());
        dev.poke(|b| pages.iter().for_each(|at| b[*at..*at + 4096].fill(0xee)));
        let dev = without_checkpoints(&dev, &[0, 1]);
        assert_eq!(states(&dev).await, whole);
        let rig = Rig::open(dev).await.unwrap();
        assert_eq!((rig.report.checkpoint, &rig.report.damage[..]), (0, &[][..]));
        assert_eq!(rig.engine.state(chain.shard).unwrap().last, chain.name());
    });
}

/// A device of an earlier format is refused with words that say what to do, and is left as it was.
#[test]
fn a_device_of_an_earlier_format_is_refused() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(40)).await.unwrap();
        dev.poke(|b| {
            for at in SUPERBLOCK_AT.map(|at| at as usize) {
                let mut earlier = Superblock::decode(&b[at..at + 4096]).unwrap();
                earlier.version = 1.into();
                b[at..at + 4096].copy_from_slice(&earlier.encode());
            }
        });
        let bytes = std::cell::RefCell::new(Vec::new());
        dev.poke(|b| bytes.borrow_mut().clone_from(b));
        let e = Rig::open(dev.clone()).await.err().unwrap();
        assert!(e.kind == ErrorKind::Invalid && e.text.contains("earlier") && e.text.contains("export"), "{e}");
        let e = verify(&erased(&dev), &mut ()).await.unwrap_err();
        assert!(e.kind == ErrorKind::Invalid && e.text.contains("earlier"), "{e}");
        dev.poke(|b| assert!(*b == *bytes.borrow()));
    });
}

/// The fuzzer cut a device off in the middle of a segment. The start passed over the piece, and grew the device for its
/// map; the segment was whole again with what it had held, was taken for a blank one, and the next start found another
/// state than the first.
#[test]
fn a_piece_of_a_segment_at_the_end_is_blank_when_the_device_grows_over_it() {
    local(async {
        let mut rng = Rng::new(5);
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        for i in 0..160 {
            rig.append(Record::Frame(chain.frame(&[Op::random(&mut rng, 400), Op::random(&mut rng, 400)])));
            if i % 4 == 0 {
                rig.settle().await;
                rig.engine.committed(chain.shard, Sequence(chain.sequence));
            }
        }
        rig.settle().await;
        rig.kill();
        let mut whole = Vec::new();
        dev.poke(|b| whole.clone_from(b));
        let segments = (whole.len() - (1 << 20)) / SEGMENT as usize;
        assert!(segments > 4);
        for segment in 1..segments {
            let cut = MemoryDevice::new(4096, 1 << 30);
            let end = (1 << 20) + segment * SEGMENT as usize + SEGMENT as usize / 2;
            cut.poke(|b| b.extend_from_slice(&whole[..end]));
            let mut seen = Vec::new();
            for _ in 0..3 {
                let rig = Rig::open_with(cut.clone(), TINY).await.unwrap();
                seen.push(rig.engine.tip(chain.shard));
                rig.engine.look_for_room();
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                rig.kill();
            }
            assert!(seen.windows(2).all(|w| w[0] == w[1]), "cut in segment {segment}: {seen:?}");
        }
    });
}

/// Damage that each tool says the next start would report; all of them say the same.
async fn tools_find(dev: &MemoryDevice) -> Vec<Finding> {
    let found = survey(dev, &mut ()).await.unwrap();
    assert!(found.recovery.is_empty() || found.shards.iter().all(|s| !s.whole), "{found:?}");
    let checked = verify(dev, &mut ()).await.unwrap();
    assert_eq!(checked.is_sound(), found.recovery.is_empty(), "{:?}", checked.losses);
    let again = rebuild(dev, false, &mut ()).await.unwrap();
    assert!(again.shards.iter().all(|s| s.before == s.after));
    // That indexes are missing is no news where none is used.
    assert_eq!(again.recovery.is_empty(), found.recovery.is_empty());
    for other in [checked.recovery, inspect(dev, &mut ()).await.unwrap().recovery] {
        assert_eq!(other, found.recovery);
    }
    found.recovery
}

/// The slots of checkpoints know how far the log went. If its end is gone, every start says so and has suspect tails, until
/// the log itself tells of it, and so do the tools that look at the device between starts; also where no start could begin with a checkpoint any more (rule E7).
#[test]
fn a_lost_end_of_the_log_is_missed_at_every_start_and_by_tools() {
    local(async {
        let mut rng = Rng::new(6);
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(dev.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        let mut frames = Vec::new();
        for _ in 0..20 {
            frames.push(chain.frame(&[Op::random(&mut rng, 400)]));
            rig.append(Record::Frame(frames[frames.len() - 1].clone()));
            rig.settle().await;
        }
        rig.engine.checkpoint().await.unwrap();
        rig.kill();
        let segment = (1 << 20)..(1 << 20) + SEGMENT as usize;
        let appends = |b: &[u8]| -> Vec<usize> {
            segment.clone().step_by(4096).filter(|at| b[*at..].starts_with(&APPEND_MAGIC)).collect()
        };
        for left in [0, 12] {
            let dev = without_checkpoints(&dev, &[]);
            dev.poke(|b| {
                let from = appends(b)[left];
                b[from..segment.end].fill(0);
            });
            for start in 0..3 {
                let told = tools_find(&dev).await;
                let rig = Rig::open(dev.clone()).await.unwrap();
                assert_ne!(rig.report.damage, [], "start {start} with {left} appends");
                assert_eq!(told, rig.report.damage, "before start {start} with {left} appends");
                let state = rig.engine.state(chain.shard);
                assert_eq!(state.is_some(), left > 0);
                assert!(state.is_none_or(|s| s.suspect_tail && s.last.sequence == Sequence(left as u64)));
                rig.kill();
            }
            // Appends from now on make a log of their own, and the tail stays suspect in it.
            let rig = Rig::open(dev.clone()).await.unwrap();
            rig.append(Record::Frame(frames[left].clone()));
            rig.settle().await;
            rig.stop().await;
            let told = tools_find(&dev).await;
            let rig = Rig::open(dev.clone()).await.unwrap();
            assert_eq!(told, rig.report.damage, "behind {left} appends and one more");
            let state = rig.engine.state(chain.shard).unwrap();
            assert_eq!(state.last.sequence, Sequence(left as u64 + 1));
            assert_eq!(state.suspect_tail, left > 0);
            assert_eq!(rig.report.damage.is_empty(), left == 0);
        }
    });
}

//! Entries that come again while the map lies in runs, and how much of it is looked at in a step.

use crate::common::*;
use bytes::Bytes;
use freebs_format::{CarryBody, CarryEntry, ExtentKind};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Durable, Options, Record};
use freebs_types::{BLOCK, BlockRange, ChunkId, Lba, Sequence, ShardId, Version};
use std::task::Poll;

const SHARD: ShardId = ShardId::new(1, 0);
/// A map of more than a hundred entries does not stay in memory.
const TINY: Options = Options { map_bytes: 16 << 10, checkpoint_bytes: 1 << 40 };

fn write(lba: u32, blocks: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, lba, blocks)], fill }
}

/// Puts an update into the log, commits it, and lets the model know.
async fn put(rig: &Rig, (chain, model): &mut (Chain, Model), op: Op) {
    op.apply(model);
    rig.append(Record::Frame(chain.frame(&[op])));
    rig.settle().await;
    rig.engine.committed(chain.shard, Sequence(chain.sequence));
}

/// The first entry of a shard from a block on, with its data.
async fn entry_at(rig: &Rig, lba: u32) -> (CarryEntry, Bytes) {
    let (body, data, _) = rig.engine.entries(SHARD, Lba(lba), Sequence(0), 64 << 10).await.unwrap();
    let entry = body.entries[0].clone();
    assert_eq!(entry.range.start, Lba(lba));
    let bytes: Vec<u8> = data.concat();
    (entry.clone(), Bytes::copy_from_slice(&bytes[..entry.range.len as usize * BLOCK]))
}

/// A block counts as live until somebody has found out that something newer covers it, which in runs takes a merge. Its
/// record came again in the append of a frame that writes a part of it. It was judged as if the frame were not there (live,
/// so in the map), and then held above the frame; its other blocks were read again, and stayed when the frame was committed.
#[test]
fn what_comes_again_behind_a_frame_brings_nothing_back() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(200)).await.unwrap();
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        let mut shard = (Chain::new(SHARD), Model::new());
        put(&rig, &mut shard, write(100, 8, 1000)).await;
        let (entry, data) = entry_at(&rig, 100).await;
        for i in 0..300 {
            put(&rig, &mut shard, write(1000 + 2 * i, 1, 5)).await;
        }
        rig.engine.checkpoint().await.unwrap();
        put(&rig, &mut shard, write(100, 8, 2000)).await;
        rig.engine.checkpoint().await.unwrap();
        // Both go into one append.
        let appends = rig.engine.counters().appends;
        let frame = write(100, 2, 3000);
        frame.apply(&mut shard.1);
        rig.append(Record::Frame(shard.0.frame(&[frame])));
        let body = CarryBody { entries: vec![entry] };
        rig.append(Record::Carry { shard: SHARD, body, data: vec![data], ticket: 1 });
        rig.settle().await;
        assert_eq!(rig.engine.counters().appends, appends + 1);
        for is_committed in [false, true] {
            if is_committed {
                rig.engine.committed(SHARD, Sequence(shard.0.sequence));
            }
            let found = rig.read_all(SHARD, 200).await.unwrap();
            let all = full(&shard.1, 200);
            let wrong: Vec<_> = (0..200).filter(|b| found[b] != all[b]).map(|b| (b, found[&b])).collect();
            assert_eq!(wrong, [], "committed: {is_committed}");
        }
        // Frames that come in order are not looked up, however many there are in an append.
        let reads = rig.engine.counters().map_reads;
        for i in 0..4 {
            rig.append(Record::Frame(shard.0.frame(&[write(1000 + 200 * i, 40, 7)])));
        }
        rig.settle().await;
        assert_eq!(rig.engine.counters().map_reads, reads);
    });
}

/// The record of a trim is carried when its segment is given up. One that was longer than a chunk was not held against the
/// runs: what had been written into it since, and lay in a run, read as zeroes, and the next merge freed it.
#[test]
fn a_long_trim_that_is_carried_hides_nothing_newer() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(200)).await.unwrap();
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        let mut shard = (Chain::new(SHARD), Model::new());
        let trim = Op { extents: vec![(ExtentKind::Trim, 500, 20_000)], fill: 0 };
        put(&rig, &mut shard, write(600, 8, 1000)).await;
        put(&rig, &mut shard, trim).await;
        let entry = CarryEntry {
            kind: ExtentKind::Trim,
            range: BlockRange::new(500, 20_000),
            version: Version(shard.0.version),
            sequence: Sequence(shard.0.sequence),
            chunk: ChunkId::default(),
            offset: 0,
            crcs: Vec::new(),
        };
        for lba in [600, 9000, 15_000, 20_400] {
            put(&rig, &mut shard, write(lba, 8, u64::from(lba) * 10)).await;
        }
        for i in 0..300 {
            put(&rig, &mut shard, write(30_000 + 2 * i, 1, 5)).await;
        }
        rig.engine.checkpoint().await.unwrap();
        let body = CarryBody { entries: vec![entry] };
        rig.append(Record::Carry { shard: SHARD, body, data: Vec::new(), ticket: 1 });
        rig.settle().await;
        for again in [false, true] {
            let found = rig.read_all(SHARD, 21_000).await.unwrap();
            let all = full(&shard.1, 21_000);
            let wrong: Vec<_> = (0..21_000).filter(|b| found[b] != all[b]).map(|b| (b, found[&b])).collect();
            assert_eq!(wrong, [], "after another checkpoint: {again}");
            rig.engine.checkpoint().await.unwrap();
        }
        rig.engine.check();
    });
}

/// Cleaning moves such blocks, too, in appends of others' frames.
#[test]
fn what_cleaning_moves_behind_frames_brings_nothing_back() {
    const BLOCKS: u32 = 3000;
    for seed in 0..2 {
        local(async move {
            let mut rng = Rng::new(seed);
            let dev = MemoryDevice::new(4096, 1 << 30);
            create_log(dev.clone(), &shape(40)).await.unwrap();
            let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
            let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
            for round in 0..40 {
                for _ in 0..24 {
                    let blocks = 4 + rng.below(24) as u32;
                    let op = write(rng.below(u64::from(BLOCKS - blocks)) as u32, blocks, rng.next() >> 8);
                    op.apply(&mut model);
                    rig.append(Record::Frame(chain.frame(&[op])));
                    for _ in 0..rng.below(4) {
                        tokio::task::yield_now().await;
                    }
                }
                rig.settle().await;
                rig.engine.committed(SHARD, Sequence(chain.sequence));
                let found = rig.read_all(SHARD, BLOCKS).await.unwrap();
                let all = full(&model, BLOCKS);
                let wrong = (0..BLOCKS).filter(|b| found[b] != all[b]).count();
                assert_eq!(wrong, 0, "seed {seed}, round {round}: blocks that are not as they were written");
                rig.engine.check();
            }
            assert!(rig.engine.counters().cleaned_bytes > 0, "nothing was cleaned");
        });
    }
}

/// How often a future gives way before it ends, and what it ends with.
async fn turns<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut turns) = (std::pin::pin!(future), 0);
    let out = std::future::poll_fn(|cx| {
        turns += 1;
        future.as_mut().poll(cx)
    })
    .await;
    (out, turns)
}

/// One step of a future: what it ends with, if that was the last one.
async fn poll<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(out) => Poll::Ready(Some(out)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A shard with `extents` single blocks, none beside another one.
async fn scattered(options: Options, extents: u32) -> (Rig, (Chain, Model)) {
    let dev = MemoryDevice::new(4096, 1 << 30);
    create_log(dev.clone(), &shape(200)).await.unwrap();
    let rig = Rig::open_with(dev, options).await.unwrap();
    let mut shard = (Chain::new(SHARD), Model::new());
    for from in (0..extents).step_by(64) {
        let ops: Vec<Op> = (from..extents.min(from + 64)).map(|i| write(2 * i, 1, 9)).collect();
        ops.iter().for_each(|op| op.apply(&mut shard.1));
        rig.append(Record::Frame(shard.0.frame(&ops)));
    }
    rig.settle().await;
    rig.engine.committed(SHARD, Sequence(shard.0.sequence));
    (rig, shard)
}

/// From what sequence on the entries above a version were placed was asked of the memory table alone: once the map had
/// spilled, all of the disk was read to send a few blocks of it. And the table was looked through in one step.
#[test]
fn what_is_above_a_version_is_sent_and_nothing_else() {
    const EXTENTS: u32 = 6000;
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let (rig, mut shard) = scattered(options, EXTENTS).await;
            let version = Version(shard.0.version);
            rig.engine.checkpoint().await.unwrap();
            for i in 0..5 {
                put(&rig, &mut shard, write(400 * i, 1, 11)).await;
            }
            let trim = Op { extents: vec![(ExtentKind::Trim, 8, 1)], fill: 0 };
            put(&rig, &mut shard, trim).await;
            let read = rig.engine.counters().read_bytes;
            let (mut at, mut found, mut turns) = (Some(Lba(0)), Vec::new(), 0);
            while let Some(from) = at {
                let part = rig.engine.entries_above(SHARD, from, version, 64 << 10);
                let ((body, data, next), n) = self::turns(async { part.await.unwrap() }).await;
                (at, turns) = (next, turns + n);
                let blocks: usize = data.iter().map(|d| d.len() / BLOCK).sum();
                assert_eq!(blocks, body.entries.iter().map(|e| e.crcs.len()).sum::<usize>());
                found.extend(body.entries.iter().map(|e| (e.kind, e.range)));
            }
            let block = |lba: u32| BlockRange::new(lba, 1);
            let mut all: Vec<_> = (0..5).map(|i| (ExtentKind::Data, block(400 * i))).collect();
            all.insert(1, (ExtentKind::Trim, block(8)));
            assert_eq!(found, all);
            assert_eq!(rig.engine.counters().read_bytes - read, 5 * BLOCK as u64);
            assert!(turns > EXTENTS as usize * 2 / 1024, "{turns} turns for {EXTENTS} extents");
        });
    }
}

/// A digest took a copy of the whole map in one step. It is read part by part, of one moment all the same: what is written,
/// trimmed, checkpointed and cleaned meanwhile is none of it, and leaves nothing behind.
#[test]
fn a_digest_is_of_one_moment_and_takes_many_steps() {
    const EXTENTS: u32 = 3000;
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let (rig, mut shard) = scattered(options, EXTENTS).await;
            let zeroes: Vec<_> = (0..1000).map(|i| (ExtentKind::Zero, 7000 + 2 * i, 1)).collect();
            put(&rig, &mut shard, Op { extents: zeroes, fill: 0 }).await;
            let (before, turns) = turns(rig.engine.content(SHARD)).await;
            let before = before.unwrap();
            assert_eq!((before.blocks, before.data_blocks), (4000, 3000));
            assert!(turns > 2000 / 256, "{turns} turns");
            // An uncommitted frame is in it, too.
            let op = write(20, 4, 5);
            op.apply(&mut shard.1);
            rig.append(Record::Frame(shard.0.frame(&[op])));
            rig.settle().await;
            let before = rig.engine.content(SHARD).await.unwrap();
            let mut later = std::pin::pin!(rig.engine.content(SHARD));
            let mut rng = Rng::new(3);
            let mut done = None;
            for step in 0..40 {
                if done.is_none() {
                    done = poll(later.as_mut()).await;
                }
                let op = match step % 4 {
                    0 => write(rng.below(6000) as u32, 64, rng.next() >> 8),
                    1 => Op { extents: vec![(ExtentKind::Trim, rng.below(8000) as u32, 500)], fill: 0 },
                    2 => Op { extents: vec![(ExtentKind::Zero, rng.below(8000) as u32, 300)], fill: 0 },
                    _ => write(7000 + rng.below(2000) as u32, 8, rng.next() >> 8),
                };
                put(&rig, &mut shard, op).await;
                if step % 8 == 0 {
                    rig.engine.checkpoint().await.unwrap();
                }
            }
            let later = match done {
                Some(later) => later,
                None => later.await,
            };
            assert_eq!(later.unwrap(), before);
            for _ in 0..2000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(rig.engine.history(SHARD).unwrap().extents, 0, "nothing is kept behind it");
            rig.engine.check();
            assert_eq!(rig.read_all(SHARD, 9100).await.unwrap(), full(&shard.1, 9100));
        });
    }
}

/// The frames of a digest may be cut off while it is read: it begins again.
#[test]
fn a_digest_of_what_is_cut_begins_again() {
    local(async {
        let (rig, mut shard) = scattered(TINY, 2000).await;
        let good = rig.engine.content(SHARD).await.unwrap();
        let safe = shard.clone();
        rig.append(Record::Frame(shard.0.frame(&[write(0, 100, 77)])));
        rig.settle().await;
        let mut digest = std::pin::pin!(rig.engine.content(SHARD));
        assert!(poll(digest.as_mut()).await.is_none());
        rig.append(Record::Cut { shard: SHARD, to: Sequence(safe.0.sequence) });
        rig.settle().await;
        assert_eq!(digest.await.unwrap(), good);
        rig.engine.check();
        assert_eq!(rig.engine.history(SHARD).unwrap().extents, 0);
    });
}

/// Others have one turn each; tokio's own way gives the writer many.
async fn give_way() {
    let mut done = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut done, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn trim(lba: u32, blocks: u32, (version, sequence): (u64, u64)) -> CarryEntry {
    CarryEntry {
        kind: ExtentKind::Trim,
        range: BlockRange::new(lba, blocks),
        version: Version(version),
        sequence: Sequence(sequence),
        chunk: ChunkId::default(),
        offset: 0,
        crcs: Vec::new(),
    }
}

/// All pages of the map under a long trim were read in one step, to be in memory together.
#[test]
fn a_long_trim_is_looked_up_in_parts() {
    const EXTENTS: u32 = 20_000;
    for is_newest in [false, true] {
        local(async move {
            let (rig, mut shard) = scattered(TINY, EXTENTS).await;
            rig.engine.checkpoint().await.unwrap();
            let key = if is_newest { (shard.0.version + 1, shard.0.sequence + 1) } else { (1, 1) };
            let body = CarryBody { entries: vec![trim(0, 2 * EXTENTS, key)] };
            rig.append(Record::Carry { shard: SHARD, body, data: Vec::new(), ticket: 1 });
            // It has its turn whenever the writer gives way.
            let (engine, heard, sent) = (rig.engine.clone(), rig.heard.clone(), rig.sent.get());
            let reads = move || engine.counters().map_reads;
            let watch = tokio::task::spawn_local(async move {
                let (begin, mut before, mut most) = (reads(), reads(), 0);
                while heard.count.get() < sent {
                    give_way().await;
                    most = most.max(reads() - before);
                    before = reads();
                }
                (reads() - begin, most)
            });
            let (all, most) = watch.await.unwrap();
            assert!(all > 40 && most < 20, "{most} of {all} pages were read at once");
            if is_newest {
                shard.1.clear();
            }
            assert_eq!(rig.read_all(SHARD, 2 * EXTENTS).await.unwrap(), full(&shard.1, 2 * EXTENTS));
            rig.engine.check();
        });
    }
}

/// A peer tells of stretches that it has looked at in one step each.
#[test]
fn a_carry_of_more_than_a_peer_tells_is_not_taken() {
    local(async {
        let (rig, shard) = scattered(TINY, 100).await;
        let key = (shard.0.version + 1, shard.0.sequence + 1);
        for (blocks, is_taken) in [(2048 * 1024, true), (2048 * 1024 + 1, false), (1 << 28, false)] {
            let body = CarryBody { entries: vec![trim(0, blocks, key)] };
            rig.append(Record::Carry { shard: SHARD, body, data: Vec::new(), ticket: 1 });
            rig.settle().await;
            let done = rig.heard.done.borrow();
            let last = done.last();
            let is_right = match is_taken {
                true => matches!(last, Some(Durable::Carry { ticket: 1, .. })),
                false => matches!(last, Some(Durable::Unlearned { ticket: 1, .. })),
            };
            assert!(is_right, "{blocks} blocks: {last:?}");
        }
        rig.stop().await;
    });
}

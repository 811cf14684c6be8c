//! Blocks that cleaning moved are missed when the append that holds them is lost: their frames were given up, so that
//! no gap in the sequence tells of them.

use crate::common::*;
use freebs_format::disk::{CHECKPOINT_AT, SegmentFooter};
use freebs_format::{ExtentKind, Frame};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, Options, Record};
use freebs_types::{BlockRange, ErrorKind, Sequence, ShardId};
use std::cell::RefCell;
use std::ops::Range;

const ONE: ShardId = ShardId::new(1, 0);
const SECTOR: usize = 4096;
const FIRST: usize = 1 << 20;
const BLOCKS: u32 = 2600;

/// Memory for a few dozen entries: maps are in runs.
const TINY: Options = Options { map_bytes: 8 << 10, checkpoint_bytes: 1 << 40 };

/// When a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checkpoint {
    Never,
    /// Blocks are moved behind it.
    Before,
    /// It knows where blocks were moved to; more is written behind it.
    Behind,
    /// Nothing is written behind it.
    Last,
}

fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill: fill << 32 }
}

fn off() -> CleanOptions {
    CleanOptions { enabled: false, ..CleanOptions::default() }
}

/// A device with a history, that history, and what it comes to.
struct Moved {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    model: Model,
}

struct Writer {
    rig: Rig,
    chain: Chain,
    frames: Vec<Frame>,
    model: Model,
}

impl Writer {
    async fn put(&mut self, op: Op) {
        op.apply(&mut self.model);
        let frame = self.chain.frame(&[op]);
        self.rig.append(Record::Frame(frame.clone()));
        self.frames.push(frame);
        self.rig.settle().await;
        self.chain.committed = self.chain.sequence;
        self.rig.engine.committed(ONE, Sequence(self.chain.sequence));
    }

    /// Single blocks, so that the map is large.
    async fn scatter(&mut self) {
        for i in 0..120 {
            self.put(data(440 + 3 * i, 1, 1000 + u64::from(i))).await;
        }
    }

    async fn clean(&mut self) {
        let eager =
            CleanOptions { share_percent: 300, target_percent: 100, batch_bytes: 2 << 20, ..CleanOptions::default() };
        self.rig.engine.set_cleaning(eager);
        for i in 0..3 {
            self.put(data(20, 180, i + 200)).await;
        }
        self.rig.engine.flush_idle();
        for _ in 0..5000 {
            tokio::task::yield_now().await;
        }
        self.rig.engine.set_cleaning(off());
    }
}

async fn moved(rounds: u32) -> Moved {
    moved_with(rounds, Options::of_workers(1), Checkpoint::Never).await
}

/// The first blocks are moved `rounds` times, with whole segments that stay between where they were and where they are.
async fn moved_with(rounds: u32, options: Options, checkpoint: Checkpoint) -> Moved {
    let device = MemoryDevice::new(SECTOR, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let rig = Rig::open_with(device.clone(), options).await.unwrap();
    rig.engine.set_cleaning(off());
    let mut w = Writer { rig, chain: Chain::new(ONE), frames: Vec::new(), model: Model::new() };
    w.put(data(0, 20, 1)).await;
    w.put(data(400, 8, 77)).await;
    w.put(data(20, 180, 2)).await;
    for i in 0..3 {
        w.put(data(1000 + 240 * i, 240, 50 + u64::from(i))).await;
    }
    for i in 0..4 {
        w.put(data(20, 180, i + 2)).await;
    }
    if options == TINY {
        w.scatter().await;
    }
    if checkpoint == Checkpoint::Before {
        w.rig.engine.checkpoint().await.unwrap();
    }
    for _ in 0..rounds {
        w.clean().await;
    }
    if checkpoint == Checkpoint::Behind {
        w.rig.engine.checkpoint().await.unwrap();
    }
    let counters = w.rig.engine.counters();
    assert!(counters.cleaned_segments > 0 && counters.carried > 0, "{counters:?}");
    for i in 0..3 {
        w.put(data(2000 + 180 * i, 180, u64::from(i) + 300)).await;
    }
    assert_eq!(w.rig.read_all(ONE, BLOCKS).await.unwrap(), full(&w.model, BLOCKS));
    if checkpoint == Checkpoint::Last {
        w.rig.engine.checkpoint().await.unwrap();
    }
    let counters = w.rig.engine.counters();
    assert_eq!(counters.map_reads > 0, options == TINY, "{counters:?}");
    assert_eq!(counters.checkpoints, u64::from(checkpoint != Checkpoint::Never));
    w.rig.kill();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let bytes = RefCell::new(Vec::new());
    device.poke(|b| bytes.borrow_mut().clone_from(b));
    Moved { bytes: bytes.into_inner(), frames: w.frames, model: w.model }
}

/// Sectors where appends begin.
fn appends(bytes: &[u8]) -> Vec<usize> {
    (FIRST..bytes.len()).step_by(SECTOR).filter(|at| &bytes[*at..*at + 4] == b"FBAP").collect()
}

fn end_of(at: usize) -> usize {
    (at / SEGMENT as usize + 1) * SEGMENT as usize
}

fn load(bytes: &[u8], rotten: &[Range<usize>]) -> MemoryDevice {
    let device = MemoryDevice::new(SECTOR, 1 << 30);
    device.poke(|b| {
        b.extend_from_slice(bytes);
        rotten.iter().for_each(|r| b[r.clone()].fill(0xee));
    });
    device
}

/// What the start made of a damaged image.
#[derive(Default)]
struct Seen {
    /// Frames are missed of a shard whose last frame is there.
    missed: bool,
    /// The damage was found when a block was read.
    on_read: bool,
}

/// The append and its segment's end rot: either all between them, or these two. What recovery then says of the blocks
/// is right, or that they may be lost.
async fn look(device: MemoryDevice, options: Options, image: &Moved, what: &str) -> Seen {
    let rig = Rig::open_with(device, options).await.unwrap();
    rig.engine.set_cleaning(off());
    rig.engine.check();
    let st = rig.engine.state(ONE).unwrap();
    let (whole, mut seen) = (st.last.sequence.0 == image.frames.len() as u64, Seen::default());
    let model = if whole {
        image.model.clone()
    } else {
        // A torn end of the log that nobody was told is durable; or a checkpoint says that it was.
        assert!(st.last.sequence.0 + 1 == image.frames.len() as u64, "{what}: {st:?}");
        assert!(st.holes.is_empty() || st.suspect_tail, "{what}: {st:?}");
        image.model.iter().filter(|(b, _)| **b < 2000 + 2 * 180).map(|(b, c)| (*b, *c)).collect()
    };
    for b in (0..30).chain(395..410).chain(1000..1010).chain((2000..BLOCKS).step_by(60)) {
        let cell = match rig.engine.read(ONE, BlockRange::new(b, 1)).await {
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Corrupt, "{what}: {e}");
                let said = st.suspect_tail || !st.holes.is_empty();
                // The place of the block is known, by the segment's index or by a checkpoint.
                assert!(said || e.text.contains("does not match its CRC"), "{what}: block {b}: {e}");
                seen.on_read |= !said;
                continue;
            }
            Ok(out) if out.pieces[0].kind == ExtentKind::Data => {
                Cell8::Data(u64::from_le_bytes(out.data[0][..8].try_into().unwrap()))
            }
            Ok(out) if out.pieces[0].kind == ExtentKind::Zero => Cell8::Zero,
            Ok(_) => Cell8::Trim,
        };
        assert_eq!(cell, model.get(&b).copied().unwrap_or(Cell8::Trim), "{what}: block {b}, holes {:?}", st.holes);
    }
    rig.kill();
    seen.missed = whole && !st.holes.is_empty();
    seen
}

async fn is_missed(image: &Moved, rotten: &[Range<usize>], what: &str) -> bool {
    look(load(&image.bytes, rotten), Options::of_workers(1), image, what).await.missed
}

#[test]
fn a_lost_append_of_moved_blocks_is_missed() {
    for rounds in 1..3 {
        local(async move {
            let image = moved(rounds).await;
            let (mut missed, starts) = (0, appends(&image.bytes));
            for at in &starts {
                let end = end_of(*at);
                let stretch = *at..end;
                let all = is_missed(&image, &[stretch], &format!("from {at} to {end}")).await;
                let ends = [*at..at + SECTOR, end - SECTOR..end];
                let two = is_missed(&image, &ends, &format!("{at} and the end {end}")).await;
                missed += u32::from(all) + u32::from(two);
            }
            assert!(missed > 4, "{missed} of {}", 2 * starts.len());
        });
    }
}

/// The same where maps are in runs, with a checkpoint before the moves, behind them or at the very end, and without one.
/// A checkpoint that knows of a move says where the blocks are; else the log alone says that they are missed.
#[test]
fn with_maps_in_runs_and_checkpoints_it_is_missed_too() {
    for checkpoint in [Checkpoint::Never, Checkpoint::Before, Checkpoint::Behind, Checkpoint::Last] {
        local(async move {
            let image = moved_with(2, TINY, checkpoint).await;
            let rig = Rig::open_with(load(&image.bytes, &[]), TINY).await.unwrap();
            assert_eq!((rig.report.checkpoint > 0, &rig.report.damage[..]), (checkpoint != Checkpoint::Never, &[][..]));
            rig.kill();
            let (mut begun, mut alone, mut starts) = (Vec::new(), Vec::new(), appends(&image.bytes));
            // Of the appends with single blocks a few will do.
            let large = |at: &usize| !starts.contains(&(at + SECTOR)) && !starts.contains(&(at + 2 * SECTOR));
            let keep: Vec<usize> = starts.iter().copied().filter(|at| large(at) || at % 7 == 0).collect();
            starts = keep;
            for at in &starts {
                let end = end_of(*at);
                // The third one leaves the index alone, the last one only the footer: a start that need not read the
                // segment does not notice.
                let inside = *at..(at + 24 * SECTOR).min(end - 16 * SECTOR).max(*at);
                let footer = SegmentFooter::decode(&image.bytes[end - SECTOR..end], SEGMENT);
                let index = footer.map_or(end - SECTOR, |f| end - SEGMENT as usize + f.index_at.get() as usize);
                let both = vec![inside.clone(), index..index + 64];
                let (all, ends) = (*at..end, vec![*at..at + SECTOR, end - SECTOR..end]);
                for rotten in [vec![all], ends, vec![inside], both] {
                    let what = format!("{checkpoint:?}: {rotten:?}");
                    begun.push(look(load(&image.bytes, &rotten), TINY, &image, &what).await);
                    let device = load(&image.bytes, &rotten);
                    device.poke(|b| CHECKPOINT_AT.iter().for_each(|at| b[*at as usize..][..SECTOR].fill(0)));
                    alone.push(look(device, TINY, &image, &format!("{what}, the log alone")).await);
                }
            }
            let missed = |all: &[Seen]| all.iter().filter(|s| s.missed).count();
            let on_read = begun.iter().filter(|s| s.on_read).count();
            println!(
                "{checkpoint:?}: {} of {} missed, {on_read} on read, {}",
                missed(&begun),
                begun.len(),
                missed(&alone)
            );
            assert!(missed(&alone) > 4, "{checkpoint:?}: {} of {}", missed(&alone), alone.len());
            // Some of what the log alone misses is known to a checkpoint, which has the places.
            match checkpoint {
                Checkpoint::Never => assert_eq!(missed(&begun), missed(&alone)),
                _ => assert!(missed(&begun) < missed(&alone), "{checkpoint:?}"),
            }
            // Segments that the last one covers are not read by a start: a read or the scrub finds what is rotten there.
            let enough = if checkpoint == Checkpoint::Last { missed(&begun) == 0 } else { missed(&begun) > 4 };
            assert!(enough && on_read > 0, "{checkpoint:?}: {}, {on_read} on read", missed(&begun));
        });
    }
}

/// What may be lost is put back frame by frame.
#[test]
fn frames_that_were_given_up_are_put_back() {
    local(async {
        let image = moved(1).await;
        let mut mended = 0;
        for at in appends(&image.bytes).into_iter().filter(|at| at % SEGMENT as usize > 0) {
            let stretch = at..end_of(at);
            let device = load(&image.bytes, &[stretch]);
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.set_cleaning(off());
            let st = rig.engine.state(ONE).unwrap();
            for (from, to) in &st.holes {
                for s in from.0..=to.0 {
                    rig.append(Record::Repair(image.frames[s as usize - 1].clone()));
                }
            }
            for f in &image.frames[st.last.sequence.0 as usize..] {
                rig.append(Record::Frame(f.clone()));
            }
            rig.settle().await;
            rig.engine.check();
            assert_eq!(rig.engine.state(ONE).unwrap().holes, [], "append at {at}");
            assert_eq!(rig.read_all(ONE, BLOCKS).await.unwrap(), full(&image.model, BLOCKS), "append at {at}");
            rig.stop().await;
            // As long as the damage is still found, frames that are given up in the normal course are missed again.
            let rig = Rig::open(device).await.unwrap();
            rig.engine.check();
            match rig.read_all(ONE, BLOCKS).await {
                Ok(all) => assert_eq!(all, full(&image.model, BLOCKS), "append at {at}"),
                Err(e) => assert_eq!(e.kind, ErrorKind::Corrupt, "append at {at}: {e}"),
            }
            mended += u32::from(!st.holes.is_empty());
            rig.kill();
        }
        assert!(mended > 1, "{mended}");
    });
}

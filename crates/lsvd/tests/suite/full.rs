//! Devices with hardly more room than what lives on them: who writes waits while cleaning gets on, is refused when
//! there is nothing more to gain, and what is kept back for cleaning lets the log go on.

use crate::cleaning::{Load, SHARD, fails, turns};
use crate::common::*;
use freebs_format::ExtentKind;
use freebs_io::faults;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Base, CleanMutant, CleanOptions, Durable, MapPlace, MarkChange, Record, Shape};
use freebs_types::{Sequence, Version};

/// Looks that a writer takes before it is said to wait for ever.
const LOOKS_MAX: u64 = 200_000;

/// Writes as a head does that waits while the log says that more room may come (rule W7). False if it was refused.
async fn write(load: &mut Load, at: u32, len: u32, fill: u64) -> bool {
    for _ in 0..LOOKS_MAX {
        let space = load.rig.engine.space();
        if space.free_segments > space.reserve_segments {
            load.write(&[(at, len)], fill).await;
            return true;
        }
        if !space.more_soon {
            return false;
        }
        load.rig.engine.look_for_room();
        turns(1).await;
    }
    panic!("a writer waits without an end: {:?}", load.rig.engine.space());
}

/// A log of so many segments that holds `permille` of what its closed segments take while writes are taken, of which
/// `rounds` times as much is overwritten as lives in it.
struct Case {
    segments: u64,
    segment_bytes: u64,
    permille: u64,
    random: bool,
    frame_blocks: u32,
}

impl Case {
    /// Blocks that live, a multiple of a frame's.
    fn blocks(&self) -> u32 {
        let closed = self.segments - 5;
        let bytes = closed * self.segment_bytes / 1000 * self.permille;
        (bytes / 4096) as u32 / self.frame_blocks * self.frame_blocks
    }

    async fn play(&self, seed: u64) -> (u64, u64) {
        let device = faults::CrashDevice::new(4096, 1 << 30);
        let shape = Shape {
            segment_bytes: self.segment_bytes,
            size_limit: (1 << 20) + self.segments * self.segment_bytes,
            ..shape(self.segments)
        };
        create_log(device.clone(), &shape).await.unwrap();
        device.pace_widely(seed, 4);
        let mut load = Load::new(device).await;
        let (blocks, frame) = (self.blocks(), self.frame_blocks);
        let mut fill = 1;
        for at in (0..blocks).step_by(frame as usize) {
            fill += 1;
            assert!(
                write(&mut load, at, frame, fill << 32).await,
                "what is to live fits: {:?}",
                load.rig.engine.space()
            );
        }
        let mut rng = Rng::new(seed);
        let (mut taken, mut refused) = (0, 0);
        for i in 0..2 * blocks / frame {
            fill += 1;
            let n = if self.random { rng.below(u64::from(blocks / frame)) as u32 } else { i % (blocks / frame) };
            while !write(&mut load, n * frame, frame, fill << 32).await {
                refused += 1;
                assert!(refused < 1000, "it takes no more at {taken}: {:?}", load.rig.engine.space());
                turns(100).await;
            }
            taken += 1;
        }
        load.settle().await;
        load.check(blocks).await;
        let (c, s) = (load.rig.engine.counters(), load.rig.engine.space());
        println!(
            "{} segments, {} of {} MiB live, random {}, seed {seed}: {taken} taken, {refused} refused, {} permille written",
            self.segments,
            s.live_bytes >> 20,
            (self.segments * self.segment_bytes) >> 20,
            self.random,
            c.write_amplification_permille()
        );
        load.rig.stop().await;
        (taken, refused)
    }
}

/// 148 MiB lived on a device of 256 MiB, and the sixth MiB of overwrites was refused; who tried again got on. The
/// segments that cleaning had emptied were being given up at that moment, and nobody said that this is room soon.
#[test]
fn writes_wait_as_long_as_cleaning_gets_on() {
    for (segments, permille) in [(8, 700), (10, 800), (15, 880), (30, 880)] {
        for random in [false, true] {
            local(async move {
                let case = Case { segments, segment_bytes: 4 << 20, permille, random, frame_blocks: 32 };
                let (taken, refused) = case.play(segments).await;
                assert_eq!(refused, 0, "{refused} times among {taken} writes");
            });
        }
    }
}

/// A device is full of live data, then a fifth of every segment is trimmed, all over it: to get at that, cleaning first
/// needs a segment to write to. The trims themselves take most of the open one.
async fn full_of_holes(mutant: Option<CleanMutant>) {
    let device = MemoryDevice::new(4096, 1 << 30);
    create_log(device.clone(), &shape(24)).await.unwrap();
    let mut load = Load::new(device).await;
    load.rig.engine.set_cleaning(CleanOptions { mutant, ..CleanOptions::default() });
    let mut next = 0;
    while write(&mut load, next, 8, 1 << 32).await {
        next += 8;
    }
    load.settle().await;
    assert!(next >= 16 << 8, "{next} blocks, {:?}", load.rig.engine.space());
    let trims = 120;
    for i in 0..trims {
        // Neighbours lie in other segments.
        let at = (i * 37 % trims) * (next / trims / 8) * 8;
        let op = Op { extents: vec![(ExtentKind::Trim, at, 8)], fill: 0 };
        load.rig.append(Record::Frame(load.chain.frame(&[op])));
        load.settle().await;
        assert!(load.rig.heard.failed.borrow().is_none(), "trim {i}: {:?}", load.rig.heard.failed.borrow());
        for b in at..at + 8 {
            load.fills.remove(&b);
        }
    }
    let (mut taken, mut refused) = (0, 0);
    while taken < trims / 2 {
        assert!(refused < 100, "{taken} writes are taken where {trims} fitted: {:?}", load.rig.engine.space());
        match write(&mut load, next + taken * 8, 8, 2 << 32).await {
            true => taken += 1,
            false => {
                refused += 1;
                load.rig.engine.flush_idle();
                turns(100).await;
            }
        }
    }
    load.settle().await;
    load.rig.engine.check();
    load.rig.stop().await;
}

/// Without the segments that are kept back no room would ever come back: there is none to move anything to.
#[test]
fn a_full_log_comes_back_by_what_is_kept_for_cleaning() {
    local(full_of_holes(None));
    assert!(fails(|| local(full_of_holes(Some(CleanMutant::NoReserve)))));
}

const SEGMENT: u64 = 8 << 20;

/// A log of so many segments, paced as `Case::play` does.
async fn log_of(segments: u64, seed: u64) -> Rig {
    let device = faults::CrashDevice::new(4096, 1 << 30);
    let shape = Shape { segment_bytes: SEGMENT, size_limit: (1 << 20) + segments * SEGMENT, ..shape(segments) };
    create_log(device.clone(), &shape).await.unwrap();
    device.pace_widely(seed, 4);
    Rig::open(device).await.unwrap()
}

/// A frame that writes a stretch of blocks, which is committed at once.
async fn both_write(teller: &mut Load, learner: Option<&Rig>, at: u32, blocks: u32, fill: u64) {
    let op = Op { extents: vec![(ExtentKind::Data, at, blocks)], fill };
    teller.fills.extend((at..at + blocks).map(|b| (b, fill + u64::from(b))));
    let frame = Record::Frame(teller.chain.frame(&[op]));
    if let Some(rig) = learner {
        rig.append(frame.clone());
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(teller.chain.sequence));
    }
    teller.rig.append(frame);
    teller.settle().await;
}

/// All that was overwritten while a member was away is learned by its log. Gives back how often a piece was refused.
async fn learn_all(teller: &Load, learner: &Rig, since: Sequence) -> u64 {
    let upto = Sequence(teller.chain.sequence);
    let (mut place, mut refused) = (Some(MapPlace::default()), 0);
    while let Some(at) = place {
        let piece = teller.rig.engine.entries_with_past(SHARD, at, since, since, upto, 1 << 20).await;
        let (body, data, next) = piece.unwrap();
        learner.heard.done.borrow_mut().clear();
        learner.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        learner.settle().await;
        let done = learner.heard.done.borrow().first().cloned();
        match done {
            Some(Durable::Carry { .. }) => place = next,
            Some(Durable::NoRoom { .. }) => {
                refused += 1;
                assert!(refused < 200, "nothing more is learned at {at:?}: {:?}", learner.engine.space());
                learner.engine.look_for_room();
                turns(1000).await;
            }
            other => panic!("{other:?}"),
        }
    }
    let frame = teller.rig.engine.frame(SHARD, upto).await.unwrap();
    let h = frame.header();
    let base = Base {
        since,
        tip: since,
        last: teller.chain.name(),
        parent: h.parent_token(),
        digest: h.digest(),
        version: h.last_version(),
        committed: upto,
        view_frame: None,
        attach: Default::default(),
        requests: Default::default(),
        open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
    };
    let change = MarkChange { base: Some(Box::new(base)), ..MarkChange::default() };
    learner.append(Record::Mark { shard: SHARD, change, ticket: 2 });
    learner.settle().await;
    refused
}

/// A member was away while a third of its volume was overwritten. Each piece of what it then learned kept the segment from
/// being emptied that it shared with what cleaning moved, until the map's end; the device was full of garbage, and the member
/// learned nothing more.
#[test]
fn a_map_is_learned_on_a_device_that_is_nearly_full() {
    for (segments, frames) in [(10, 35), (15, 70), (30, 176)] {
        local(async move {
            let learner = log_of(segments, segments).await;
            let mut teller = Load::of(log_of(80, 7).await);
            let (frame, mut fill) = (256, 1 << 32);
            let blocks = frames * frame;
            for at in (0..blocks).step_by(frame as usize) {
                both_write(&mut teller, Some(&learner), at, frame, fill).await;
            }
            let since = Sequence(teller.chain.sequence);
            let mut rng = Rng::new(segments);
            for _ in 0..blocks / frame / 3 {
                fill += 1 << 32;
                let at = rng.below(u64::from(blocks / frame)) as u32 * frame;
                both_write(&mut teller, None, at, frame, fill).await;
            }
            let refused = learn_all(&teller, &learner, since).await;
            println!("{segments} segments: {refused} refused, {:?}", learner.engine.space());
            assert_eq!(learner.engine.history(SHARD).unwrap().whole_from, Version(0));
            let learned = Load { fills: teller.fills, ..Load::of(learner) };
            learned.check(blocks).await;
            learned.rig.stop().await;
        });
    }
}

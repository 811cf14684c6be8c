//! Scrub: what nobody reads is read, slowly; what has rotted is named, and mended with bytes from elsewhere.

use crate::common::*;
use bytes::Bytes;
use freebs_format::ExtentKind;
use freebs_format::disk::{PAGE_BYTES, PAGE_MAGIC};
use freebs_io::AnyDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, DamagedBlocks, EventKind, Options, Record, ScrubStep, Scrubber};
use freebs_types::{BLOCK, BlockRange, ErrorKind, Sequence, ShardId};
use std::cell::RefCell;

const SHARD: ShardId = ShardId::new(1, 0);
const BLOCKS: u32 = 1500;
/// Runs on the device, and checkpoints.
const SPILLED: Options = Options { map_bytes: 64 << 10, checkpoint_bytes: 2 << 20 };

async fn image(clean: bool, options: Options) -> (MemoryDevice, Model) {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let rig = Rig::open_with(device.clone(), options).await.unwrap();
    rig.engine.set_cleaning(CleanOptions { enabled: clean, share_percent: 200, ..CleanOptions::default() });
    let (mut rng, mut chain, mut model) = (Rng::new(11), Chain::new(SHARD), Model::new());
    for _ in 0..700 {
        let op = Op::random(&mut rng, BLOCKS);
        op.apply(&mut model);
        chain.committed = chain.sequence;
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
        if !clean {
            // Nothing is given up: a member lags.
            rig.engine.keep(SHARD, Sequence(1));
        }
    }
    rig.engine.committed(SHARD, Sequence(chain.sequence));
    rig.stop().await;
    (device, model)
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let bytes = RefCell::new(Vec::new());
    device.poke(|b| bytes.borrow_mut().clone_from(b));
    bytes.into_inner()
}

fn load(bytes: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    device.poke(|b| b.extend_from_slice(bytes));
    device
}

/// The rest of a pass in steps of so many bytes.
async fn pass(scrubber: &mut Scrubber<AnyDevice>, bytes: u64) -> (ScrubStep, u64) {
    let (mut sum, mut steps) = (ScrubStep::default(), 0);
    while !sum.pass_complete {
        let step = scrubber.step(bytes).await.unwrap();
        sum.bytes += step.bytes;
        sum.findings.extend(step.findings);
        sum.damaged_blocks += step.damaged_blocks;
        sum.pass_complete = step.pass_complete;
        steps += 1;
        assert!(steps < 100_000);
    }
    (sum, steps)
}

#[test]
fn a_sound_log_is_found_to_be_one_in_steps_of_any_size() {
    local(async {
        for (clean, options) in [(false, Options::of_workers(1)), (true, Options::of_workers(1)), (true, SPILLED)] {
            let (device, _) = image(clean, options).await;
            let mut bytes = 0;
            for grant in [10_000, 300_000, u64::MAX] {
                let (engine, _) = open_log_with(device.clone(), &expect(), options).await.unwrap();
                let mut scrubber = Scrubber::new(engine.clone());
                let (sum, steps) = pass(&mut scrubber, grant).await;
                assert_eq!((sum.findings, sum.damaged_blocks), (vec![], 0));
                assert!(bytes == 0 || bytes == sum.bytes, "{bytes}, then {}", sum.bytes);
                bytes = sum.bytes;
                let c = engine.counters();
                assert_eq!((c.scrubbed_bytes, c.scrub_findings), (bytes, 0));
                // The first open went on in the last segment; it is closed by nobody here. Those of the map are read
                // page by page.
                let of_map = if options == SPILLED { 0..5 } else { 0..1 };
                let rest = u64::from(engine.space().used_segments) - c.scrubbed_segments - 1;
                assert!(of_map.contains(&rest), "{rest} segments were left out");
                assert!(bytes >= c.scrubbed_segments * SEGMENT * 9 / 10, "{bytes} bytes");
                match grant {
                    u64::MAX => assert_eq!(steps, 1),
                    // As slow as it is told to be, whatever the size of its reads.
                    _ => assert!((bytes / grant..=bytes / grant + 30).contains(&steps), "{steps} of {grant}"),
                }
                let again = pass(&mut scrubber, u64::MAX).await.0;
                assert_eq!((again.bytes, again.findings), (bytes, vec![]), "the next pass begins anew");
            }
        }
    });
}

/// Where the structures of closed segments lie: append headers, first heads, data, index, footer.
fn places(bytes: &[u8]) -> Vec<(&'static str, usize, usize)> {
    let mut out = vec![("superblock", 0, 256), ("superblock", 512 << 10, 256)];
    for base in (1 << 20..bytes.len()).step_by(SEGMENT as usize) {
        let seg = &bytes[base..base + SEGMENT as usize];
        let word = |at: usize| u32::from_le_bytes(seg[at..at + 4].try_into().unwrap()) as usize;
        let footer = SEGMENT as usize - FOOTER;
        if &seg[footer..footer + 4] != b"FBIX" {
            continue;
        }
        out.push(("index", base + word(footer + 56), word(footer + 60)));
        out.push(("footer", base + footer, FOOTER));
        let mut at = 0;
        while &seg[at..at + 4] == b"FBAP" {
            let (heads, data) = (word(at + 56), word(at + 64));
            let front = heads.next_multiple_of(512);
            out.push(("append header", base + at, HEADER));
            out.push(("heads", base + at + HEADER, heads - HEADER));
            if data > 0 {
                out.push(("data", base + at + front, data));
            }
            at += front + data;
        }
    }
    out
}

/// The model's word on the data of the blocks, where it is data.
fn content(model: &Model, range: BlockRange) -> Bytes {
    let fill = |b: u32| match model[&b] {
        Cell8::Data(fill) => block(fill),
        _ => Bytes::from(vec![0; BLOCK]),
    };
    (range.start.0..range.end() as u32).flat_map(fill).collect()
}

async fn bad_blocks(engine: &Engine, model: &Model) -> Vec<u32> {
    let mut out = Vec::new();
    for b in model.keys() {
        match engine.read(SHARD, BlockRange::new(*b, 1)).await {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Corrupt);
                out.push(*b);
            }
        }
    }
    out
}

fn blocks_of(all: &[DamagedBlocks]) -> Vec<u32> {
    let mut out: Vec<u32> = all.iter().flat_map(|d| d.range.start.0..d.range.end() as u32).collect();
    out.sort_unstable();
    out
}

#[test]
fn every_bit_that_rots_in_a_closed_segment_is_found_and_data_are_mended() {
    local(async {
        for options in [Options::of_workers(1), SPILLED] {
            rot(options).await;
        }
    });
}

async fn rot(options: Options) {
    let (device, model) = image(false, options).await;
    let sound = bytes_of(&device);
    let mut rng = Rng::new(5);
    let places = places(&sound);
    let (mut live, mut dead) = (0, 0);
    for kind in ["superblock", "index", "footer", "append header", "heads", "data"] {
        let of_kind: Vec<_> = places.iter().filter(|p| p.0 == kind).collect();
        assert!(!of_kind.is_empty(), "no {kind}");
        let n = if kind == "data" { 50 } else { 12 };
        for _ in 0..n {
            let (_, at, len) = of_kind[rng.below(of_kind.len() as u64) as usize];
            let (byte, bit) = (at + rng.below(*len as u64) as usize, rng.below(8));
            // It rots under a running engine: recovery has seen it whole.
            let device = load(&sound);
            let rig = Rig::open_with(device.clone(), options).await.unwrap();
            // Cleaning would meet the damage first.
            rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
            assert_eq!(rig.report.damage, []);
            device.poke(|b| b[byte] ^= 1 << bit);
            let mut scrubber = Scrubber::new(rig.engine.clone());
            let sum = pass(&mut scrubber, 300_000).await.0;
            assert!(!sum.findings.is_empty(), "{kind} at byte {byte}, bit {bit}");
            assert_eq!(rig.engine.counters().scrub_findings, sum.findings.len() as u64);
            assert!(rig.engine.events().iter().any(|e| e.kind == EventKind::Damage));
            // Whether it was named is what a read says.
            let bad = bad_blocks(&rig.engine, &model).await;
            let mut wanted = rig.engine.take_damaged(100);
            assert_eq!(sum.damaged_blocks, blocks_of(&wanted).len() as u64, "{kind} at byte {byte}");
            if options == SPILLED {
                // What was overwritten may count as live until runs are merged; then nobody has its bytes any more.
                for d in wanted.extract_if(.., |d| !bad.contains(&d.range.start.0)) {
                    let newer = content(&model, d.range);
                    assert_eq!(rig.engine.mend(d.id, &newer).unwrap_err().kind, ErrorKind::Corrupt);
                    rig.engine.unmended(d.id);
                    assert_eq!(rig.engine.mend(d.id, &newer).unwrap(), 0, "forgotten");
                }
            }
            assert_eq!(blocks_of(&wanted), bad, "{kind} at byte {byte}");
            if kind != "data" {
                assert!(bad.is_empty());
                continue;
            }
            if bad.is_empty() {
                dead += 1
            } else {
                live += 1
            }
            mend(&rig, &wanted, &model).await;
            assert_eq!(bad_blocks(&rig.engine, &model).await, [], "{kind} at byte {byte}");
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
            assert_eq!(rig.engine.counters().mended_blocks, bad.len() as u64);
            rig.engine.check();
            rig.stop().await;
            // The new place holds over a start, whatever the old one says.
            let again = Rig::open_with(device, options).await.unwrap();
            assert_eq!(again.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        }
    }
    assert!(live > 3 && dead > 3, "{live} live and {dead} dead blocks were hit");
}

#[test]
fn pages_of_the_map_that_rot_are_found() {
    local(async {
        let (device, model) = image(true, SPILLED).await;
        let sound = bytes_of(&device);
        let mut rng = Rng::new(8);
        let pages: Vec<usize> =
            (1 << 20..sound.len()).step_by(PAGE_BYTES).filter(|at| sound[*at..*at + 4] == PAGE_MAGIC).collect();
        assert!(!pages.is_empty());
        let (mut met, mut found) = (0, 0);
        for at in pages {
            let device = load(&sound);
            let (engine, report) = open_log_with(device.clone(), &expect(), SPILLED).await.unwrap();
            assert_eq!(report.damage, []);
            device.poke(|b| b[at + rng.below(100) as usize] ^= 1);
            let sum = pass(&mut Scrubber::new(engine.clone()), u64::MAX).await.0;
            found += u32::from(!sum.findings.is_empty());
            // Pages of runs that were merged harm nobody.
            let bad = bad_blocks(&engine, &model).await;
            met += u32::from(!bad.is_empty());
            assert!(bad.is_empty() || !sum.findings.is_empty(), "page at byte {at}");
        }
        assert!(met > 0 && found >= met, "{met} met, {found} found");
    });
}

/// Gives damaged blocks back; first wrong bytes, which must be refused.
async fn mend(rig: &Rig, wanted: &[DamagedBlocks], model: &Model) {
    for d in wanted {
        let right = content(model, d.range);
        let wrong: Bytes = right.iter().map(|b| b ^ 1).collect();
        assert_eq!(rig.engine.mend(d.id, &wrong).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(rig.engine.mend(d.id, &right.slice(BLOCK..)).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(rig.engine.mend(d.id, &right).unwrap(), d.range.len);
        assert_eq!(rig.engine.mend(d.id, &right).unwrap(), 0, "it is on its way");
    }
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
}

/// What a reader stumbles over is looked at first, and blocks that were written anew meanwhile are left alone.
#[test]
fn what_readers_meet_is_looked_at_first_and_never_put_over_newer_data() {
    local(async {
        let (device, mut model) = image(false, Options::of_workers(1)).await;
        let rig = Rig::open(device.clone()).await.unwrap();
        let sound = bytes_of(&device);
        // The newest closed segment that has a live block: a pass would come to it last.
        let places = places(&sound);
        let data = places.iter().rev().filter(|p| p.0 == "data");
        let mut bad = Vec::new();
        for (_, at, _) in data {
            device.poke(|b| b[*at] ^= 1);
            bad = bad_blocks(&rig.engine, &model).await;
            if !bad.is_empty() {
                break;
            }
            device.poke(|b| b[*at] ^= 1);
        }
        let mut scrubber = Scrubber::new(rig.engine.clone());
        let mut read = 0;
        let wanted = loop {
            read += scrubber.step(100_000).await.unwrap().bytes;
            let wanted = rig.engine.take_damaged(100);
            if !wanted.is_empty() {
                break wanted;
            }
        };
        assert!(read < 2 * SEGMENT, "{read} bytes were read before the suspect was done");
        assert_eq!((blocks_of(&wanted), wanted.len()), (bad.clone(), 1));
        // The block is written again before the copy comes.
        let old = content(&model, wanted[0].range);
        let state = rig.engine.state(SHARD).unwrap();
        let mut chain = Chain::new(SHARD);
        (chain.sequence, chain.version) = (state.last.sequence.0, state.version.0);
        (chain.chunk, chain.offset) = state.open_chunk;
        (chain.id, chain.requests) = (freebs_types::Hash32::default(), 100_000);
        chain.low = 100_000;
        let op = Op { extents: vec![(ExtentKind::Data, bad[0], 1)], fill: 77 };
        op.apply(&mut model);
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
        assert_eq!(rig.engine.mend(wanted[0].id, &old).unwrap(), 1);
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        rig.engine.check();
    });
}

/// Scrub, cleaning and writers at the same time: nothing is taken for damage, and nobody waits for the scrub.
#[test]
fn scrub_and_cleaning_do_not_meet() {
    local(async {
        for options in [Options::of_workers(1), SPILLED] {
            let device = MemoryDevice::new(4096, 1 << 30);
            create_log(device.clone(), &shape(30)).await.unwrap();
            let rig = Rig::open_with(device, options).await.unwrap();
            let (mut rng, mut chain) = (Rng::new(6), Chain::new(SHARD));
            let mut scrubber = Scrubber::new(rig.engine.clone());
            let mut passes = 0;
            for i in 0..3000u64 {
                chain.committed = chain.sequence;
                let op = Op { extents: vec![(ExtentKind::Data, rng.below(1500) as u32, 4)], fill: i << 32 };
                rig.append(Record::Frame(chain.frame(&[op])));
                let step = scrubber.step(20 * BLOCK as u64).await.unwrap();
                assert_eq!((step.findings, step.damaged_blocks), (vec![], 0));
                rig.settle().await;
                passes += u32::from(step.pass_complete);
            }
            let c = rig.engine.counters();
            assert!(passes > 3 && c.cleaned_segments > 20, "{passes} passes, {c:?}");
            rig.engine.check();
        }
    });
}

/// A damaged segment is emptied although there is room, and the log has no damage any more; also if what is damaged
/// are no data.
#[test]
fn damaged_segments_are_given_up() {
    local(async {
        let (device, model) = image(false, Options::of_workers(1)).await;
        let sound = bytes_of(&device);
        let places = places(&sound);
        for kind in ["append header", "index", "data"] {
            let device = load(&sound);
            let rig = Rig::open(device.clone()).await.unwrap();
            let (_, at, _) = places.iter().filter(|p| p.0 == kind).nth(2).unwrap();
            device.poke(|b| b[at + 9] ^= 4);
            let mut scrubber = Scrubber::new(rig.engine.clone());
            let first = pass(&mut scrubber, u64::MAX).await.0;
            assert!(!first.findings.is_empty());
            mend(&rig, &rig.engine.take_damaged(100), &model).await;
            // Cleaning saves its share of what others write, unless nobody writes.
            let mut rounds = 0;
            while !pass(&mut scrubber, u64::MAX).await.0.findings.is_empty() {
                rig.engine.flush_idle();
                rig.engine.take_damaged(100).iter().for_each(|d| rig.engine.unmended(d.id));
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                rounds += 1;
                assert!(rounds < 50, "{kind}: the damage stays");
            }
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
            rig.engine.check();
        }
    });
}

/// Many damaged blocks are mended a few at a time, beside writers and cleaning, and everything that was counted as on its
/// way comes to an end.
#[test]
fn mending_takes_its_turn() {
    local(async {
        let (device, mut model) = image(false, Options::of_workers(1)).await;
        let sound = bytes_of(&device);
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
        for (_, at, len) in places(&sound).iter().filter(|p| p.0 == "data") {
            device.poke(|b| b[at + len / 2] ^= 8);
        }
        let found = pass(&mut Scrubber::new(rig.engine.clone()), u64::MAX).await.0;
        let mut wanted = rig.engine.take_damaged(10_000);
        assert!(wanted.len() > 50 && found.damaged_blocks >= wanted.len() as u64, "{} pieces", wanted.len());
        rig.engine.set_cleaning(CleanOptions::default());
        let state = rig.engine.state(SHARD).unwrap();
        let mut chain = Chain::new(SHARD);
        (chain.sequence, chain.version) = (state.last.sequence.0, state.version.0);
        (chain.chunk, chain.offset) = state.open_chunk;
        (chain.requests, chain.low) = (100_000, 100_000);
        let (mut turns, mut waits, mut rng) = (0, 0, Rng::new(3));
        let old = model.clone();
        while let Some(d) = wanted.pop() {
            match rig.engine.mend(d.id, &content(&old, d.range)) {
                Ok(_) => {}
                Err(e) => {
                    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
                    waits += 1;
                    wanted.push(d);
                    let op = Op { extents: vec![(ExtentKind::Data, rng.below(1500) as u32, 1)], fill: waits << 32 };
                    op.apply(&mut model);
                    rig.append(Record::Frame(chain.frame(&[op])));
                    tokio::task::yield_now().await;
                }
            }
            turns += 1;
            assert!(turns < 100_000, "it hangs");
        }
        rig.settle().await;
        for _ in 0..20_000 {
            rig.engine.flush_idle();
            tokio::task::yield_now().await;
        }
        assert!(waits > 10, "{waits} waits");
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        rig.engine.check();
        // Everything that was damaged is gone.
        let again = pass(&mut Scrubber::new(rig.engine.clone()), u64::MAX).await.0;
        assert_eq!(again.findings, []);
        rig.stop().await;
    });
}

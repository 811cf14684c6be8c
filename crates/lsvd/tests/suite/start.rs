//! A start reads the checkpoint, what was opened since, and nothing else; and it finds the same as a start
//! that asks every segment.

use crate::common::*;
use freebs_format::disk::{
    APPEND_MAGIC, CHECKPOINT_AT, CHECKPOINT_BYTES, CheckpointSlot, OPENINGS_AT, OPENINGS_BYTES, OPENINGS_NONE,
    Openings, PAGE_MAGIC, SEGMENTS_AT,
};
use freebs_io::memory::MemoryDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{Digest, Options, Record, RuleMutant};
use freebs_types::{Result, Sequence, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const BLOCKS: u32 = 3000;
const SHARDS: u64 = 3;
/// Tables of a few dozen entries; checkpoints when they are asked for.
const TINY: Options = Options { map_bytes: 64 << 10, checkpoint_bytes: 1 << 40 };

/// A page of openings, and the segments that it names.
type Page = (Openings, Vec<u32>);

/// Counts what is read, and notes where something is written.
#[derive(Clone)]
struct Counting {
    inner: MemoryDevice,
    reads: Rc<Cell<u64>>,
    bytes: Rc<Cell<u64>>,
    segments: Rc<RefCell<BTreeSet<u64>>>,
    writes: Rc<RefCell<Vec<u64>>>,
    pages: Rc<RefCell<Vec<Page>>>,
}

impl Counting {
    fn new(inner: MemoryDevice) -> Self {
        let (reads, bytes) = Default::default();
        Self { inner, reads, bytes, segments: Rc::default(), writes: Rc::default(), pages: Rc::default() }
    }

    fn reset(&self) {
        self.reads.take();
        self.bytes.take();
        self.segments.take();
    }
}

impl Device for Counting {
    fn sector(&self) -> usize {
        self.inner.sector()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + len as u64);
        if let Some(at) = at.checked_sub(SEGMENTS_AT) {
            self.segments.borrow_mut().insert(at / SEGMENT);
        }
        self.inner.read(at, len).await
    }
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        self.writes.borrow_mut().push(at);
        if OPENINGS_AT.contains(&at) {
            self.pages.borrow_mut().push(Openings::decode(&buf, shape(1).device).unwrap());
        }
        self.inner.write(at, buf, durability).await
    }
    async fn sync(&self) -> Result<()> {
        self.inner.sync().await
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len).await
    }
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.inner.punch(at, len).await
    }
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.writes.borrow_mut().push(at);
        self.inner.prewrite(at, len).await
    }
}

fn copy(dev: &MemoryDevice) -> MemoryDevice {
    let copy = MemoryDevice::new(dev.sector(), 1 << 30);
    dev.poke(|from| copy.poke(|to| to.clone_from(from)));
    copy
}

/// Writes over the pages of openings.
fn with_pages(dev: &MemoryDevice, pages: [Option<&[u8]>; 2]) -> MemoryDevice {
    let copy = copy(dev);
    for (at, page) in OPENINGS_AT.into_iter().zip(pages) {
        let zeroes = [0; OPENINGS_BYTES];
        copy.poke(|b| b[at as usize..][..OPENINGS_BYTES].copy_from_slice(page.unwrap_or(&zeroes)));
    }
    copy
}

fn pages_of(dev: &MemoryDevice) -> [Vec<u8>; 2] {
    let mut out = [Vec::new(), Vec::new()];
    dev.poke(|b| out = OPENINGS_AT.map(|at| b[at as usize..][..OPENINGS_BYTES].to_vec()));
    out
}

/// Without the slots of checkpoints every segment is asked.
fn without_checkpoints(dev: &MemoryDevice) -> MemoryDevice {
    let copy = copy(dev);
    copy.poke(|b| CHECKPOINT_AT.iter().for_each(|at| b[*at as usize..][..CHECKPOINT_BYTES].fill(0)));
    copy
}

/// The newer page of openings, where it lies, and the segments that it names.
fn newer_page(dev: &MemoryDevice) -> (usize, Openings, Vec<u32>) {
    let pages = pages_of(dev).map(|p| Openings::decode(&p, shape(1).device).ok());
    let all = pages.into_iter().enumerate().filter_map(|(i, p)| p.map(|(page, list)| (i, page, list)));
    all.max_by_key(|(_, page, _)| page.revision.get()).unwrap()
}

/// A sector or a page that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Rot,
    Zeroes,
}

fn lose(dev: &MemoryDevice, at: u64, len: usize, loss: Loss) {
    dev.poke(|b| {
        let bytes = &mut b[at as usize..][..len];
        match loss {
            Loss::Rot => [40, len - 17].into_iter().for_each(|at| bytes[at] ^= 1),
            Loss::Zeroes => bytes.fill(0),
        }
    });
}

/// The index of a segment can't be found any more: its footer is lost.
fn lose_index(dev: &MemoryDevice, segment: u32, loss: Loss) {
    lose(dev, SEGMENTS_AT + u64::from(segment + 1) * SEGMENT - 4096, 4096, loss);
}

/// Some shards and their writers.
struct Load {
    rng: Rng,
    shards: Vec<(Chain, Model)>,
}

impl Load {
    fn new(seed: u64) -> Self {
        let shards = (1..=SHARDS).map(|n| (Chain::new(ShardId::new(n, 0)), Model::new())).collect();
        Self { rng: Rng::new(seed), shards }
    }

    async fn write(&mut self, rig: &Rig, frames: u64) {
        for _ in 0..frames {
            let (chain, model) = &mut self.shards[self.rng.below(SHARDS) as usize];
            let ops: Vec<Op> = (0..1 + self.rng.below(4)).map(|_| Op::random(&mut self.rng, BLOCKS)).collect();
            ops.iter().for_each(|op| op.apply(model));
            chain.committed = chain.sequence;
            rig.append(Record::Frame(chain.frame(&ops)));
            rig.engine.committed(chain.shard, Sequence(chain.committed));
            if self.rng.chance(20) {
                rig.settle().await;
            }
        }
        rig.settle().await;
    }

    async fn digests(&self, rig: &Rig) -> Vec<Digest> {
        let mut out = Vec::new();
        for (chain, _) in self.shards.iter().filter(|s| s.0.sequence > 0) {
            out.push(rig.engine.digest(chain.shard).await.unwrap());
        }
        out
    }

    /// All that was answered is there. (Of a log with damage there is no digest.)
    async fn check_all(&self, rig: &Rig, told: &str) {
        for (chain, model) in self.shards.iter().filter(|s| s.0.sequence > 0) {
            let last = rig.engine.tip(chain.shard).map(|(name, ..)| name.sequence.0);
            assert_eq!(last, Some(chain.sequence), "shard {}: {told}", chain.shard);
            let is_same = rig.read_all(chain.shard, BLOCKS).await.unwrap() == full(model, BLOCKS);
            assert!(is_same, "shard {}: {told}", chain.shard);
        }
    }

    async fn check(&self, rig: &Rig) {
        rig.engine.check();
        for (chain, model) in self.shards.iter().filter(|s| s.0.sequence > 0) {
            assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
        }
    }
}

/// A start read the ends of every segment of the device, and every segment of the map from end to end.
#[test]
fn a_start_reads_what_was_opened_since_the_checkpoint() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(400)).await.unwrap();
        let mut load = Load::new(3);
        let mut rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        // Twice, so that both slots name a checkpoint.
        for _ in 0..2 {
            load.write(&rig, 2000).await;
            rig.engine.checkpoint().await.unwrap();
        }
        load.write(&rig, 60).await;
        rig.kill();
        let mut cost = Vec::new();
        for pages in [true, false] {
            let there = if pages { copy(&dev) } else { with_pages(&dev, [None, None]) };
            let (mut log, mut map) = (BTreeSet::new(), BTreeSet::new());
            there.poke(|b| {
                for (n, s) in b[SEGMENTS_AT as usize..].chunks(SEGMENT as usize).enumerate() {
                    log.extend(s.starts_with(&APPEND_MAGIC).then_some(n as u64));
                    map.extend(s.starts_with(&PAGE_MAGIC).then_some(n as u64));
                }
            });
            let counting = Counting::new(there);
            let (engine, report) = open_log_with(counting.clone(), &expect(), TINY).await.unwrap();
            assert!(report.damage.is_empty() && report.checkpoint > 0, "{:?}", report.damage);
            let asked = counting.segments.borrow().intersection(&log).count();
            println!(
                "pages {pages}: {} reads, {} bytes, {asked} of {} segments of the log asked, {} of the map",
                counting.reads.get(),
                counting.bytes.get(),
                log.len(),
                map.len()
            );
            assert!(log.len() > 40 && !map.is_empty());
            cost.push((counting.reads.get(), counting.bytes.get(), asked));
            drop(engine);
        }
        assert!(cost[0].2 <= 12, "segments that were asked: {cost:?}");
        let spared = (cost[1].2 - cost[0].2) as u64;
        assert!(cost[0].0 + 2 * spared <= cost[1].0, "two reads for each that was not asked: {cost:?}");
        // Segments that were free before are found to be whole when they are wanted.
        rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        load.write(&rig, 500).await;
        load.check(&rig).await;
        rig.stop().await;
    });
}

/// With any pages of openings (the last one is lost, both are, or they are of an earlier start) a start finds
/// the same, without a word of damage.
#[test]
fn whichever_page_of_openings_is_left_a_start_finds_the_same() {
    let mut tabled = 0;
    for seed in 0..if freebs_testing::full() { 6 } else { 3 } {
        local(async {
            // Small enough for segments to be used again and again.
            let dev = MemoryDevice::new(4096, 1 << 30);
            create_log(dev.clone(), &shape(60)).await.unwrap();
            let mut load = Load::new(seed);
            let mut before = pages_of(&dev);
            for round in 0..8 {
                let counting = Counting::new(dev.clone());
                let rig = Rig::open_with(counting.clone(), TINY).await.unwrap();
                assert_eq!(rig.report.damage, [], "seed {seed} round {round}");
                let pages = pages_of(&dev);
                for part in 0..1 + load.rng.below(3) {
                    let frames = load.rng.below(400);
                    load.write(&rig, frames).await;
                    let checkpoint = part == 1 || load.rng.chance(40);
                    if checkpoint && let Err(e) = rig.engine.checkpoint().await {
                        // The map has none while what was freed waits for a table that says so.
                        assert_eq!(e.kind, freebs_types::ErrorKind::NoSpace, "seed {seed} round {round}: {e}");
                    }
                }
                load.check(&rig).await;
                let digests = load.digests(&rig).await;
                if load.rng.chance(50) {
                    rig.stop().await;
                } else {
                    rig.kill();
                }
                let now = pages_of(&dev);
                let (a, b) = (Some(&now[0][..]), Some(&now[1][..]));
                let earlier = [Some(&pages[0][..]), Some(&pages[1][..])];
                let old = [Some(&before[0][..]), Some(&before[1][..])];
                for left in [[a, b], [a, None], [None, b], [None, None], [earlier[0], b], [a, earlier[1]], old] {
                    let counting = Counting::new(with_pages(&dev, left));
                    counting.reset();
                    let other = Rig::open_with(counting.clone(), TINY).await.unwrap();
                    assert_eq!(other.report.damage, [], "seed {seed} round {round}");
                    tabled += u64::from(counting.reads.get() < 40);
                    assert_eq!(load.digests(&other).await, digests, "seed {seed} round {round}");
                    other.engine.check();
                    other.kill();
                }
                // The index of the segment before the newest one is lost with the page that names the newest one.
                let (newer, _, list) = newer_page(&dev);
                if let [.., closed, _] = list[..]
                    && closed != OPENINGS_NONE
                {
                    let mut left = [a, b];
                    left[newer] = earlier[newer];
                    let hurt = with_pages(&dev, left);
                    lose_index(&hurt, closed, Loss::Zeroes);
                    let other = Rig::open_with(hurt, TINY).await.unwrap();
                    load.check_all(&other, &format!("seed {seed} round {round}")).await;
                    other.kill();
                }
                before = pages;
            }
        });
    }
    assert!(tabled > 10, "starts that asked few segments: {tabled}");
}

/// Index and footer of a segment were lost, and so was the page that names the one that was opened next, which is written
/// at the same moment: the segment was taken for the open one, and what had been answered behind it was gone without a word.
#[test]
fn a_lost_index_and_a_lost_page_hide_no_segment() {
    for seed in 0..8 {
        local(async {
            let dev = MemoryDevice::new(4096, 1 << 30);
            create_log(dev.clone(), &shape(60)).await.unwrap();
            let mut load = Load::new(seed);
            let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
            load.write(&rig, 600).await;
            rig.engine.checkpoint().await.unwrap();
            load.write(&rig, 1 + seed * 20).await;
            // Some frames in a segment that is not full yet, and the pages from before it was opened.
            let before = loop {
                let (before, opened) = (pages_of(&dev), rig.engine.counters().segments_opened);
                while rig.engine.counters().segments_opened == opened {
                    load.write(&rig, 1).await;
                }
                load.write(&rig, 3).await;
                if rig.engine.counters().segments_opened == opened + 1 {
                    break before;
                }
            };
            rig.kill();
            let (newer, page, list) = newer_page(&dev);
            assert!(page.newest.get() > 2 && list.len() > 2);
            let closed = list[list.len() - 2];
            for page in [None, Some(Loss::Rot), Some(Loss::Zeroes)] {
                for index in [Loss::Rot, Loss::Zeroes] {
                    let hurt = copy(&dev);
                    lose_index(&hurt, closed, index);
                    match page {
                        Some(loss) => lose(&hurt, OPENINGS_AT[newer], OPENINGS_BYTES, loss),
                        // The write was lost: what was there before is there still.
                        None => hurt.poke(|b| {
                            b[OPENINGS_AT[newer] as usize..][..OPENINGS_BYTES].copy_from_slice(&before[newer]);
                        }),
                    }
                    let rig = Rig::open_with(hurt, TINY).await.unwrap();
                    let told = format!("seed {seed}, page {page:?}, index {index:?}: {:?}", rig.report.damage);
                    load.check_all(&rig, &told).await;
                    assert!(rig.report.damage.iter().any(|f| f.segment == Some(closed)), "{told}");
                    rig.kill();
                }
            }
            // The segment held pages of the map before, and the write of its first append is lost.
            for table in [true, false] {
                let hurt = if table { copy(&dev) } else { without_checkpoints(&dev) };
                lose_index(&hurt, closed, Loss::Zeroes);
                let to = (SEGMENTS_AT + u64::from(list[list.len() - 1]) * SEGMENT) as usize;
                hurt.poke(|b| {
                    let mut pages = b[SEGMENTS_AT as usize..].chunks(SEGMENT as usize);
                    let page =
                        pages.find(|s| s.starts_with(&PAGE_MAGIC)).expect("a segment of the map")[..4096].to_vec();
                    b[to..to + 4096].copy_from_slice(&page);
                });
                let rig = Rig::open_with(hurt, TINY).await.unwrap();
                let told = format!("seed {seed}, table {table}: {:?}", rig.report.damage);
                load.check_all(&rig, &told).await;
                assert!(rig.report.damage.iter().any(|f| f.segment == Some(closed)), "{told}");
                rig.kill();
            }
        });
    }
}

/// A start relies on this: no segment is opened that the page before does not name as the next one, whoever took the one
/// that was to be it.
#[test]
fn each_segment_is_named_as_the_next_one_before_it_is_opened() {
    let (mut opened, mut renamed) = (0, 0);
    for seed in 0..6 {
        local(async {
            let counting = Counting::new(MemoryDevice::new(4096, 1 << 30));
            // With little room the map now and then takes the segment that was planned.
            create_log(counting.clone(), &shape([36, 44, 60][seed as usize % 3])).await.unwrap();
            let mut load = Load::new(seed);
            for _ in 0..4 {
                let rig = Rig::open_with(counting.clone(), TINY).await.unwrap();
                for _ in 0..4 {
                    load.write(&rig, 200).await;
                    // It may find no room.
                    let _ = rig.engine.checkpoint().await;
                }
                rig.kill();
            }
            let pages = counting.pages.borrow();
            for two in pages.windows(2) {
                let [(before, _), (page, list)] = two else { unreachable!() };
                if page.start.get() > before.start.get() {
                    continue;
                }
                if page.newest.get() == before.newest.get() {
                    renamed += 1;
                    assert!(page.next() != before.next());
                    continue;
                }
                opened += 1;
                assert_eq!(page.newest.get(), before.newest.get() + 1, "seed {seed}");
                assert_eq!(list.last().copied(), before.next(), "seed {seed}");
            }
        });
    }
    println!("{opened} segments opened, another one than was planned for {renamed} of them");
    assert!(opened > 100 && renamed < opened / 2, "{renamed} of {opened}");
}

/// Two pages of openings were lost, one after the other: the log goes on behind the segment that is the newest by the
/// pages, and behind the one that was opened next, too.
#[test]
fn pages_that_were_lost_cut_nothing_off() {
    local(async {
        for lost in 1..=3 {
            let dev = MemoryDevice::new(4096, 1 << 30);
            create_log(dev.clone(), &shape(60)).await.unwrap();
            let mut load = Load::new(lost);
            let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
            load.write(&rig, 600).await;
            rig.engine.checkpoint().await.unwrap();
            load.write(&rig, 20).await;
            let pages = pages_of(&dev);
            let opened = rig.engine.counters().segments_opened;
            while rig.engine.counters().segments_opened < opened + lost {
                load.write(&rig, 4).await;
            }
            load.write(&rig, 4).await;
            let digests = load.digests(&rig).await;
            rig.kill();
            let dev = with_pages(&dev, [Some(&pages[0]), Some(&pages[1])]);
            let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
            assert_eq!(rig.report.damage, [], "{lost} pages lost");
            assert_eq!(load.digests(&rig).await, digests, "{lost} pages lost");
            load.check(&rig).await;
            rig.stop().await;
        }
    });
}

/// A device that was cut short since the checkpoint: segments of the table lie behind its end.
#[test]
fn a_table_of_more_segments_than_there_are_is_no_table() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(60)).await.unwrap();
        let mut load = Load::new(1);
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        load.write(&rig, 1500).await;
        rig.engine.checkpoint().await.unwrap();
        rig.stop().await;
        let segments = (dev.len() - SEGMENTS_AT) / SEGMENT;
        assert!(segments > 20);
        for left in [0, 1, segments / 2, segments - 1] {
            let mut said = Vec::new();
            for pages in [true, false] {
                let cut = if pages { copy(&dev) } else { with_pages(&dev, [None, None]) };
                cut.set_len(SEGMENTS_AT + left * SEGMENT).await.unwrap();
                match open_log_with(cut, &expect(), TINY).await {
                    Ok((_, report)) => said.push(Ok(report.damage)),
                    Err(e) => said.push(Err(e.to_string())),
                }
            }
            assert_eq!(said[0], said[1], "{left} segments left");
            // The last one may be a free one.
            let is_missed = said[0].as_ref().is_ok_and(|d| !d.is_empty());
            assert!(is_missed || left + 1 == segments, "{left} segments left: {said:?}");
        }
    });
}

/// Segments that a slot names: its manifest, as the format has it.
fn named_by_slot(dev: &MemoryDevice, i: usize) -> BTreeSet<u64> {
    let mut out = BTreeSet::new();
    dev.poke(|b| {
        let slot = CheckpointSlot::decode(&b[CHECKPOINT_AT[i] as usize..][..CHECKPOINT_BYTES], shape(1).device);
        out.extend(slot.unwrap().1.iter().map(|p| u64::from(p.segment.get())));
    });
    out
}

/// A start that reads the log alone, because something in it is damaged, makes a map of its own. It was given segments that
/// the slots of checkpoints still named, and these were written with zeroes, or with the map: after a power cut there the
/// next start had neither.
#[test]
fn a_start_that_reads_the_log_alone_leaves_the_checkpoints_as_they_are() {
    local(async {
        let dev = MemoryDevice::new(4096, 1 << 30);
        create_log(dev.clone(), &shape(400)).await.unwrap();
        let mut load = Load::new(5);
        let rig = Rig::open_with(dev.clone(), TINY).await.unwrap();
        // At the front of the device, where room is looked for first; and no segment of the log becomes free there.
        for _ in 0..2 {
            load.write(&rig, 100).await;
            load.shards.iter().for_each(|(chain, _)| rig.engine.keep(chain.shard, Sequence(1)));
            rig.engine.checkpoint().await.unwrap();
        }
        load.write(&rig, 1500).await;
        rig.kill();
        // The last segment that was closed since has an index that is not whole.
        let mut hurt = false;
        let (_, _, list) = newer_page(&dev);
        let closed = list[list.len() - 2];
        dev.poke(|b| {
            let end = (SEGMENTS_AT + u64::from(closed + 1) * SEGMENT) as usize;
            let at = b[..end - 256].iter().rposition(|b| *b != 0).unwrap();
            (b[at], hurt) = (b[at] ^ 1, at > end - (64 << 10));
        });
        assert!(hurt);
        let named = [0, 1].map(|i| named_by_slot(&dev, i));
        assert!(named.iter().all(|n| !n.is_empty()));
        for rule in [None, Some(RuleMutant::KeptUsedAgain)] {
            let noting = Counting::new(copy(&dev));
            let (engine, report) = open_log_without(rule, noting.clone(), &expect(), TINY).await.unwrap();
            assert!(!report.damage.is_empty() && report.checkpoint == 0);
            let (writes, mut hit) = (noting.writes.borrow().clone(), Vec::new());
            for (i, named) in named.iter().enumerate() {
                let emptied = writes.iter().position(|at| *at == CHECKPOINT_AT[i]).expect("the slot is emptied");
                let segment = |at: &u64| at.checked_sub(SEGMENTS_AT).map(|at| at / SEGMENT);
                let early: BTreeSet<u64> = writes[..emptied].iter().filter_map(segment).collect();
                assert!(!early.is_empty(), "the map was written while the log was read");
                hit.extend(early.intersection(named).copied());
            }
            assert_eq!(hit.is_empty(), rule.is_none(), "{rule:?}: {hit:?}");
            drop(engine);
        }
    });
}

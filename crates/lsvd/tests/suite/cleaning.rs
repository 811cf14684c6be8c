//! Cleaning: live data move, segments get free and go back, and whoever writes, reads, cuts, deletes, or pulls the
//! plug meanwhile notices nothing. Rules left out on purpose are caught.

use crate::common::*;
use crate::crash_device::{crash_device, power_cut};
use freebs_format::ExtentKind;
use freebs_format::disk::{IndexEntry, SegmentFooter};
use freebs_io::faults;
use freebs_io::memory::MemoryDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{CleanMutant, CleanOptions, Durable, EventKind, Record};
use freebs_testing::Caught;
use freebs_types::{BLOCK, BlockRange, ErrorKind, Lba, Result, Sequence, ShardId, ViewNumber};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

pub const SHARD: ShardId = ShardId::new(1, 0);

fn eager(mutant: Option<CleanMutant>) -> CleanOptions {
    CleanOptions { share_percent: 300, target_percent: 100, batch_bytes: 2 << 20, mutant, ..CleanOptions::default() }
}

fn off() -> CleanOptions {
    CleanOptions { enabled: false, ..CleanOptions::default() }
}

fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill }
}

pub async fn turns(n: u64) {
    for _ in 0..n {
        tokio::task::yield_now().await;
    }
}

/// Whether the scenario fails, which it must.
pub fn fails(scenario: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(scenario)).is_err()
}

/// One shard's history: the chain and the model after each frame, and what was said to be durable.
struct Shard {
    id: ShardId,
    at: Vec<(Chain, Model)>,
    durable: u64,
    committed: u64,
    /// Times that it was deleted and made again.
    lives: u32,
    /// The newest view.
    views: u64,
}

impl Shard {
    fn new(i: u64) -> Self {
        let id = ShardId::new(i, 0);
        Self { id, at: vec![(Chain::new(id), Model::new())], durable: 0, committed: 0, lives: 0, views: 1 }
    }
    fn last(&self) -> (Chain, Model) {
        let (mut chain, model) = self.at.last().unwrap().clone();
        chain.committed = self.committed;
        (chain, model)
    }
    fn step(&mut self, rng: &mut Rng, blocks: u32) -> Record {
        let (mut chain, mut model) = self.last();
        let ops: Vec<Op> = (0..1 + rng.below(3)).map(|_| Op::random(rng, blocks)).collect();
        ops.iter().for_each(|op| op.apply(&mut model));
        let frame = chain.frame(&ops);
        self.at.push((chain, model));
        Record::Frame(frame)
    }
    /// A new view whose head did not see the last frames: they are cut by its view frame.
    fn branch(&mut self, rng: &mut Rng) -> Record {
        let keep = self.committed + rng.below(self.durable - self.committed + 1);
        self.at.truncate(keep as usize + 1);
        self.durable = self.durable.min(keep);
        let (mut chain, model) = self.last();
        self.views += 1;
        let view = self.views;
        let frame = chain.view_frame(view, view as u8);
        self.at.push((chain, model));
        Record::Frame(frame)
    }
    fn reborn(&mut self) {
        let mut chain = Chain::new(self.id);
        // A shard of the same name has a history of its own.
        self.lives += 1;
        chain.secret.0[1] = self.lives as u8;
        self.at = vec![(chain, Model::new())];
        (self.durable, self.committed) = (0, 0);
    }
}

const STORM_BLOCKS: u32 = 220;

struct Storm {
    rng: Rng,
    shards: Vec<Shard>,
    options: CleanOptions,
}

impl Storm {
    fn hear(&mut self, rig: &Rig) {
        for d in rig.heard.done.borrow_mut().drain(..) {
            match d {
                Durable::Frame { shard, sequence, .. } => {
                    let s = &mut self.shards[shard.volume.0 as usize - 1];
                    // What was cut or forgotten since it was sent is told, too.
                    if sequence.0 < s.at.len() as u64 {
                        s.durable = s.durable.max(sequence.0);
                    }
                }
                other => assert!(matches!(other, Durable::Forget { .. }), "{other:?}"),
            }
        }
    }

    async fn check(&mut self, rig: &Rig, exact: bool) {
        rig.engine.check();
        for s in &mut self.shards {
            let state = rig.engine.state(s.id);
            let last = state.as_ref().map_or(0, |st| st.last.sequence.0);
            assert!(last >= s.durable, "shard {}: {last} of {} promised frames are there", s.id, s.durable);
            assert!((last as usize) < s.at.len(), "shard {}: frame {last} was never sent, or is gone", s.id);
            if exact {
                assert_eq!(last as usize, s.at.len() - 1);
            }
            s.at.truncate(last as usize + 1);
            s.durable = last;
            let (chain, model) = s.at.last().unwrap();
            match state {
                None => assert!(model.is_empty()),
                Some(st) => {
                    assert!(st.holes.is_empty() && !st.suspect_tail);
                    if last > 0 {
                        assert_eq!(st.last, chain.name());
                    }
                    let read = rig.read_all(s.id, STORM_BLOCKS).await.unwrap();
                    assert_eq!(read, full(model, STORM_BLOCKS), "shard {}", s.id);
                }
            }
        }
    }

    /// Everything that can happen to a log, until the power goes.
    async fn day(&mut self, rig: &Rig) {
        rig.engine.set_cleaning(self.options);
        for _ in 0..200 + self.rng.below(500) {
            let i = self.rng.below(self.shards.len() as u64) as usize;
            match self.rng.below(1000) {
                0..600 => {
                    let record = self.shards[i].step(&mut self.rng, STORM_BLOCKS);
                    rig.append(record);
                }
                600..850 => {
                    let s = &mut self.shards[i];
                    s.committed += self.rng.below(s.durable - s.committed + 1);
                    rig.engine.committed(s.id, Sequence(s.committed));
                }
                850..900 => {
                    rig.engine.flush_idle();
                }
                900..920 => {
                    rig.settle().await;
                    self.hear(rig);
                    let record = self.shards[i].branch(&mut self.rng);
                    rig.append(record);
                    // Else a power cut could bring back what was cut.
                    rig.settle().await;
                    self.hear(rig);
                }
                920..930 => {
                    rig.settle().await;
                    self.hear(rig);
                    rig.append(Record::Forget { shard: self.shards[i].id, promised: ViewNumber(0) });
                    rig.settle().await;
                    self.hear(rig);
                    self.shards[i].reborn();
                }
                930..960 => {
                    rig.settle().await;
                    self.hear(rig);
                    self.check(rig, true).await;
                }
                _ => {
                    let n = self.rng.below(60);
                    turns(n).await;
                }
            }
            let n = self.rng.below(4);
            turns(n).await;
            self.hear(rig);
            assert!(rig.heard.failed.borrow().is_none(), "{:?}", rig.heard.failed.borrow());
        }
    }
}

/// Days and nights of a small log; gives back what was counted.
async fn storm(seed: u64, mutant: Option<CleanMutant>) -> freebs_lsvd::Counters {
    let mut device = crash_device(1 << 27, seed);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let shards = (1..=3).map(Shard::new).collect();
    let mut s = Storm { rng: Rng::new(seed), shards, options: eager(mutant) };
    let mut sum = freebs_lsvd::Counters::default();
    for day in 0..8 {
        let rig = Rig::open(device.clone()).await.unwrap();
        assert_eq!(rig.report.damage, [], "a power cut is not damage");
        s.check(&rig, false).await;
        s.day(&rig).await;
        let c = rig.engine.counters();
        sum.cleaned_segments += c.cleaned_segments;
        sum.cleaned_bytes += c.cleaned_bytes;
        sum.punched_segments += c.punched_segments;
        sum.prewritten_segments += c.prewritten_segments;
        if day % 3 == 2 {
            rig.settle().await;
            s.hear(&rig);
            rig.stop().await;
        } else {
            rig.task.abort();
            let _ = rig.task.await;
            device = power_cut(&device, &mut s.rng);
        }
    }
    sum
}

#[test]
fn nobody_notices_that_segments_are_cleaned() {
    let (mut sum, mut n) = ((0, 0, 0), 0);
    for seed in freebs_testing::seeds(18, 1000) {
        println!("{} if it fails", freebs_testing::again(seed));
        n += 1;
        local(async {
            let c = storm(seed, None).await;
            sum = (sum.0 + c.cleaned_segments, sum.1 + c.punched_segments, sum.2 + c.prewritten_segments);
        });
    }
    println!("{} segments cleaned, {} punched, {} prewritten", sum.0, sum.1, sum.2);
    assert!(n == 1 || (sum.0 > 10 * n && sum.1 > n && sum.2 > n), "{sum:?}");
}

#[test]
fn rules_that_are_left_out_are_caught() {
    for mutant in [CleanMutant::LiveBeforeRead, CleanMutant::MoveUncommitted, CleanMutant::PunchNamed] {
        seed_table().hunt(&format!("{mutant:?}"), 0..40, |seed| {
            fails(|| local(async { assert!(storm(seed, Some(mutant)).await.frames == 0) }))
                .then(|| Caught::by("a panic"))
        });
    }
}

/// A file that knows which of its bytes the file system keeps.
#[derive(Clone)]
struct Sparse {
    below: MemoryDevice,
    kept: Rc<RefCell<BTreeSet<u64>>>,
}

const GRAIN: u64 = 64 << 10;

impl Sparse {
    fn new() -> Self {
        Self { below: MemoryDevice::new(4096, 1 << 32), kept: Rc::default() }
    }
    fn bytes(&self) -> u64 {
        self.kept.borrow().len() as u64 * GRAIN
    }
    fn keep(&self, at: u64, len: u64) {
        self.kept.borrow_mut().extend(at / GRAIN..(at + len).div_ceil(GRAIN));
    }
}

impl Device for Sparse {
    fn sector(&self) -> usize {
        self.below.sector()
    }
    fn len(&self) -> u64 {
        self.below.len()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.below.read(at, len).await
    }
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        let end = at + buf.len() as u64;
        let hole = (at / GRAIN..end.div_ceil(GRAIN)).any(|g| !self.kept.borrow().contains(&g));
        assert!(!hole, "a write meets a hole at {at}");
        // As on a disk, others get their turn meanwhile.
        tokio::task::yield_now().await;
        self.below.write(at, buf, durability).await
    }
    async fn sync(&self) -> Result<()> {
        self.below.sync().await
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.keep(self.len(), len.saturating_sub(self.len()));
        self.below.set_len(len).await
    }
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        let whole = at.div_ceil(GRAIN)..(at + len) / GRAIN;
        for g in whole {
            self.kept.borrow_mut().remove(&g);
        }
        self.below.punch(at, len).await
    }
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.keep(at, len);
        self.below.prewrite(at, len).await
    }
}

/// One shard that is written as a head would: never beyond the reserve, each frame committed once it is durable.
pub struct Load {
    pub rig: Rig,
    pub chain: Chain,
    pub fills: BTreeMap<u32, u64>,
    pub refused: u64,
    pub pending: Cell<u64>,
}

impl Load {
    pub async fn new(device: impl Device) -> Self {
        Self::of(Rig::open(device).await.unwrap())
    }

    pub fn of(rig: Rig) -> Self {
        Self { rig, chain: Chain::new(SHARD), fills: BTreeMap::new(), refused: 0, pending: Cell::new(0) }
    }

    /// Writes extents in one frame, up to eight frames ahead of the device.
    pub async fn write(&mut self, extents: &[(u32, u32)], fill: u64) {
        let space = self.rig.engine.space();
        if space.free_segments <= space.reserve_segments {
            self.refused += 1;
            turns(100).await;
            return;
        }
        let ops: Vec<Op> = extents.iter().map(|(start, len)| data(*start, *len, fill)).collect();
        for (start, len) in extents {
            self.fills.extend((*start..start + len).map(|b| (b, fill + u64::from(b))));
        }
        self.rig.append(Record::Frame(self.chain.frame(&ops)));
        let mut turns = 0;
        while self.rig.sent.get() > self.rig.heard.count.get() + 8 && self.rig.heard.failed.borrow().is_none() {
            tokio::task::yield_now().await;
            turns += 1;
            assert!(turns < 100_000, "the writer stands still");
        }
        let durable = self.chain.sequence - (self.rig.sent.get() - self.rig.heard.count.get()) as u64;
        self.chain.committed = durable;
        self.rig.engine.committed(SHARD, Sequence(durable));
        self.rig.heard.done.borrow_mut().clear();
        assert!(self.rig.heard.failed.borrow().is_none(), "{:?}", self.rig.heard.failed.borrow());
        self.pending.set(self.pending.get() + 1);
    }

    pub async fn settle(&self) {
        self.rig.settle().await;
        self.rig.engine.committed(SHARD, Sequence(self.chain.sequence));
    }

    pub async fn check(&self, blocks: u32) {
        self.rig.engine.check();
        for at in (0..blocks).step_by(256) {
            let len = 256.min(blocks - at);
            let out = self.rig.engine.read(SHARD, BlockRange { start: Lba(at), len }).await.unwrap();
            let bytes = out.data.concat();
            for i in 0..len {
                let fill = u64::from_le_bytes(bytes[i as usize * BLOCK..][..8].try_into().unwrap());
                assert_eq!(Some(&fill), self.fills.get(&(at + i)), "block {}", at + i);
            }
        }
    }
}

/// Share of blocks that are live when a segment is cleaned, of a device that is filled to `fill` with uniformly random
/// writes and cleaned oldest first: (1 - u) / -ln u = fill.
fn ideal_u(fill: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let u: f64 = f64::midpoint(low, high);
        if (1.0 - u) / -u.ln() < fill { low = u } else { high = u }
    }
    low
}

/// Uniformly random writes on a device that is a little larger than what they write: never full, and not much more
/// written than must be.
#[test]
fn random_overwrites_go_on_for_ever() {
    local(async {
        let (blocks, segments) = (64 << 8, 112);
        let device = Sparse::new();
        create_log(device.clone(), &shape(segments)).await.unwrap();
        let mut load = Load::new(device.clone()).await;
        let mut rng = Rng::new(1);
        for at in (0..blocks).step_by(64) {
            load.write(&[(at, 64)], 1 << 32).await;
        }
        let turns = 10;
        for i in 0..u64::from(blocks / 8) * turns {
            let extents: Vec<(u32, u32)> = (0..8).map(|_| (rng.below(u64::from(blocks)) as u32, 1)).collect();
            load.write(&extents, (i + 2) << 32).await;
            if i == u64::from(blocks / 8) * 5 {
                load.settle().await;
                load.check(blocks).await;
            }
        }
        load.settle().await;
        load.check(blocks).await;
        let c = load.rig.engine.counters();
        // What a segment holds is less than its bytes: heads, and the index that repeats them.
        let per_block = 4096.0 + 2.0 * (64.0 + 280.0 / 8.0);
        let usable = (segments as f64 - 6.0) * (1 << 20) as f64 / per_block;
        let u = ideal_u(f64::from(blocks) / usable);
        let ideal = 1.0 / (1.0 - u) * per_block / 4096.0;
        let found = c.write_amplification_permille() as f64 / 1000.0;
        println!("write amplification {found:.3}, ideal {ideal:.3} at this fill; refused {}; {c:?}", load.refused);
        assert_eq!(load.refused, 0, "a head never has to refuse");
        assert!(found < 1.25 * ideal, "{found:.2} for {ideal:.2}");
        assert!(c.cleaned_segments > 100);
        load.rig.stop().await;
        let load = Load { rig: Rig::open(device).await.unwrap(), ..load };
        assert_eq!(load.rig.report.damage, []);
        load.check(blocks).await;
    });
}

/// A log that has grown to eight times what lives in it shrinks again while it is in use.
#[test]
fn a_bloated_log_shrinks_under_load() {
    local(async {
        let blocks = 100 << 8;
        let device = Sparse::new();
        create_log(device.clone(), &shape(1200)).await.unwrap();
        let mut load = Load::new(device.clone()).await;
        load.rig.engine.set_cleaning(off());
        let mut rng = Rng::new(2);
        // What stays lies scattered among seven times as much that is overwritten at once.
        let mut fill = 1u64;
        for at in (0..blocks).step_by(8) {
            let hot = (at / 2) / 8 * 8;
            load.write(&[(at, 8), (hot, 56)], fill << 32).await;
            fill += 1;
        }
        load.settle().await;
        let live = u64::from(blocks) * BLOCK as u64;
        assert!(device.bytes() > 8 * live, "{} times what lives", device.bytes() / live);
        load.rig.engine.set_cleaning(CleanOptions::default());
        let (mut written, mut ratio) = (0u64, 9.0);
        // The load: writes to a sixteenth of it, and reads of what is being moved.
        while ratio > 1.2 && written < 20 * live {
            load.write(&[(rng.below(u64::from(blocks) / 16) as u32 / 16 * 16, 16)], fill << 32).await;
            turns(10).await;
            (fill, written) = (fill + 1, written + 16 * BLOCK as u64);
            let at = rng.below(u64::from(blocks) - 8) as u32;
            load.rig.engine.read(SHARD, BlockRange { start: Lba(at), len: 8 }).await.unwrap();
            ratio = device.bytes() as f64 / live as f64;
        }
        println!("{ratio:.2} after {} MiB of load; {:?}", written >> 20, load.rig.engine.counters());
        assert!(ratio <= 1.2, "{ratio:.2} times what lives");
        load.settle().await;
        load.check(blocks).await;
        load.rig.stop().await;
        let load = Load { rig: Rig::open(device).await.unwrap(), ..load };
        assert_eq!(load.rig.report.damage, []);
        load.check(blocks).await;
    });
}

/// Without load, cleaning has the device to itself, and what it frees goes back although nobody writes.
#[test]
fn an_idle_log_shrinks_by_itself() {
    local(async {
        let device = Sparse::new();
        create_log(device.clone(), &shape(400)).await.unwrap();
        let mut load = Load::new(device.clone()).await;
        load.rig.engine.set_cleaning(off());
        let mut rng = Rng::new(3);
        for i in 0..600u64 {
            let extents: Vec<(u32, u32)> = (0..8).map(|_| (rng.below(512) as u32 * 16, 16)).collect();
            load.write(&extents, (i + 1) << 32).await;
        }
        load.settle().await;
        let before = device.bytes();
        load.rig.engine.set_cleaning(CleanOptions::default());
        load.rig.engine.flush_idle();
        turns(20_000).await;
        let live = load.rig.engine.space().live_bytes;
        let after = device.bytes();
        println!(
            "{} MiB, then {} MiB for {} MiB; {:?}",
            before >> 20,
            after >> 20,
            live >> 20,
            load.rig.engine.counters()
        );
        assert!(before > 5 * live && after < live + live / 5 + 12 * SEGMENT, "{before} {after} {live}");
        // A deleted volume goes back, too.
        load.rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        load.rig.settle().await;
        load.rig.engine.flush_idle();
        turns(20_000).await;
        assert!(device.bytes() < 20 * SEGMENT, "{} MiB are left of a deleted volume", device.bytes() >> 20);
    });
}

/// A device that is full of live data takes no more writes, but trims, deletions, restarts; and then writes again.
async fn full_device() {
    let device = Sparse::new();
    create_log(device.clone(), &shape(24)).await.unwrap();
    let mut load = Load::new(device.clone()).await;
    load.rig.engine.set_cleaning(CleanOptions::default());
    let mut rng = Rng::new(4);
    let (mut next, mut i) = (0u32, 0u64);
    // New blocks and old ones, until nothing more is taken.
    while load.refused < 50 {
        let old = (rng.below(u64::from(next) + 1) as u32 / 8) * 8;
        i += 1;
        let before = load.refused;
        load.write(&[(next, 8), (old.min(next.saturating_sub(8)), 8)], i << 32).await;
        next += if load.refused == before { 8 } else { 0 };
    }
    load.settle().await;
    load.check(next).await;
    let space = load.rig.engine.space();
    assert!(load.rig.heard.failed.borrow().is_none(), "{space:?}");
    let held = f64::from(next) * BLOCK as f64 / (24 << 20) as f64;
    assert!(held > 0.55, "only {held:.2} of the device could be filled: {space:?}");
    // Restarts of a full device.
    for _ in 0..3 {
        load.rig.stop().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        assert_eq!(rig.report.damage, []);
        rig.engine.set_cleaning(CleanOptions::default());
        rig.engine.committed(SHARD, Sequence(load.chain.sequence));
        load = Load { rig, ..load };
        load.rig.engine.flush_idle();
        turns(2000).await;
    }
    load.check(next).await;
    // Trims are taken, and free room for writes.
    for at in (0..next / 2).step_by(64) {
        let op = Op { extents: vec![(ExtentKind::Trim, at, 64)], fill: 0 };
        load.rig.append(Record::Frame(load.chain.frame(&[op])));
        load.settle().await;
        assert!(load.rig.heard.failed.borrow().is_none(), "{:?}", load.rig.heard.failed.borrow());
    }
    load.refused = 0;
    for k in 0..400 {
        load.write(&[((next * 3 / 4) / 8 * 8 + 8, 8)], (i + k + 1) << 32).await;
        turns(20).await;
    }
    assert!(load.refused < 100, "after the trims there is room again: {:?}", load.rig.engine.space());
    // And so does a deletion.
    load.rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
    load.rig.settle().await;
    load.rig.engine.flush_idle();
    turns(2000).await;
    assert_eq!(load.rig.engine.space().live_bytes, 0);
    assert!(load.rig.engine.space().used_segments < 4, "{:?}", load.rig.engine.space());
}

#[test]
fn a_full_device_can_still_trim_delete_and_restart() {
    local(full_device());
}

/// The file system is full long before the log is as large as it may get: what is freed is used again, and writes go on.
#[test]
fn writes_go_on_where_the_file_system_is_full() {
    for seed in 0..4 {
        local(async move {
            let device = faults::CrashDevice::new(4096, 1 << 30);
            create_log(device.clone(), &shape(200)).await.unwrap();
            device.set_limit(device.len() + (20 + seed) * SEGMENT);
            device.pace(seed, 8);
            let mut load = Load::new(device.clone()).await;
            let mut rng = Rng::new(seed);
            let mut taken = 0;
            for i in 0..4000u64 {
                let before = load.refused;
                load.write(&[(rng.below(300) as u32 * 8, 8)], (i + 1) << 32).await;
                taken += u64::from(load.refused == before);
                if i % 50 == 0 {
                    load.rig.engine.flush_idle();
                }
            }
            load.settle().await;
            load.rig.engine.check();
            let counters = load.rig.engine.counters();
            println!("seed {seed}: {taken} taken, {counters:?}");
            assert!(taken > 3000 && counters.cleaned_bytes > 1 << 20, "{taken} writes: {:?}", load.rig.engine.space());
            let fills = std::mem::take(&mut load.fills);
            load.rig.stop().await;
            let rig = Rig::open(device).await.unwrap();
            assert_eq!(rig.report.damage, []);
            for (at, fill) in fills {
                let out = rig.engine.read(SHARD, BlockRange { start: Lba(at), len: 1 }).await.unwrap();
                assert_eq!(out.data.concat()[..8], fill.to_le_bytes());
            }
        });
    }
}

/// A block has rotted in a segment that is to be cleaned: it is said, it is not moved, and the segment stays until a
/// good copy has come.
async fn rotten(mutant: Option<CleanMutant>) {
    let device = MemoryDevice::new(4096, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let mut load = Load::new(device.clone()).await;
    load.rig.engine.set_cleaning(off());
    load.write(&[(0, 200)], 1 << 32).await;
    // Most of the first segment dies; block 5 stays, and rots.
    for i in 0..30u64 {
        load.write(&[(20, 180)], (i + 2) << 32).await;
    }
    load.settle().await;
    let good = block((1 << 32) + 5);
    device.poke(|bytes| {
        let at = bytes.windows(BLOCK).step_by(512).position(|w| w == &good[..]).expect("it is there") * 512;
        bytes[at + 100] ^= 1;
    });
    let used = load.rig.engine.space().used_segments;
    load.rig.engine.set_cleaning(CleanOptions { mutant, ..eager(None) });
    load.rig.engine.flush_idle();
    turns(5000).await;
    let events = load.rig.engine.events();
    let told = events.iter().any(|e| e.kind == EventKind::CrcError && e.text.contains("block 5"));
    assert!(told, "{events:?}");
    assert!(load.rig.engine.space().used_segments < used, "others are cleaned");
    let bad = load.rig.engine.read(SHARD, BlockRange::new(5, 1)).await;
    assert_eq!(bad.unwrap_err().kind, ErrorKind::Corrupt);
    // A copy from somebody else.
    let entry = freebs_format::CarryEntry {
        kind: ExtentKind::Data,
        range: BlockRange::new(5, 1),
        version: freebs_types::Version(1),
        sequence: Sequence(1),
        chunk: freebs_types::ChunkId::new(1, 0),
        offset: 5,
        crcs: vec![freebs_format::block_crc(&good)],
    };
    let body = freebs_format::CarryBody { entries: vec![entry] };
    load.rig.append(Record::Carry { shard: SHARD, body, data: vec![good], ticket: 1 });
    load.rig.settle().await;
    load.check(200).await;
    load.rig.engine.flush_idle();
    turns(5000).await;
    assert!(load.rig.engine.space().used_segments <= 4, "{:?}", load.rig.engine.space());
    load.check(200).await;
}

#[test]
fn a_damaged_block_is_told_and_not_moved() {
    local(rotten(None));
    assert!(fails(|| local(rotten(Some(CleanMutant::TrustBytes)))));
}

/// Marks that are much larger than usual, for tables of open requests: giving segments up takes less than it brings,
/// and writes go on.
#[test]
fn large_marks_do_not_eat_what_they_free() {
    local(async {
        let (shards, requests) = (24u64, 1000);
        let device = MemoryDevice::new(4096, 1 << 30);
        create_log(device.clone(), &shape(16)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chains: Vec<Chain> = (1..=shards).map(|i| Chain::new(ShardId::new(i, 0))).collect();
        for c in &mut chains {
            // Many small requests, none of which is said to be answered.
            for _ in 0..requests / 100 {
                let trim = |i: u32| Op { extents: vec![(ExtentKind::Trim, i % 50, 1)], fill: 0 };
                rig.append(Record::Frame(c.frame(&(0..100).map(trim).collect::<Vec<_>>())));
            }
            rig.settle().await;
            c.committed = c.sequence;
            rig.engine.committed(c.shard, Sequence(c.sequence));
        }
        let start = rig.engine.counters().append_bytes;
        let (mut rng, mut taken, mut refused) = (Rng::new(3), 0u64, 0);
        while taken < 1200 && refused < 1000 {
            let space = rig.engine.space();
            if space.free_segments <= space.reserve_segments {
                refused += 1;
                turns(50).await;
                continue;
            }
            taken += 1;
            let c = &mut chains[rng.below(shards) as usize];
            rig.append(Record::Frame(c.frame(&[data(rng.below(40) as u32, 4, taken << 32)])));
            let mut waited = 0;
            while rig.heard.count.get() < rig.sent.get() {
                turns(1).await;
                waited += 1;
                assert!(waited < 10_000, "write {taken} stands still: {:?}", rig.engine.space());
            }
            c.committed = c.sequence;
            rig.engine.committed(c.shard, Sequence(c.sequence));
        }
        let (appended, brought) = (rig.engine.counters().append_bytes - start, taken * 4 * BLOCK as u64);
        println!("taken {taken}, refused {refused}, brought {brought}, appended {appended}");
        assert!(taken == 1200, "{:?}", rig.engine.space());
        assert!(appended < 8 * brought, "{appended} bytes were appended for {brought}");
        let models: Vec<Model> = {
            let mut out = Vec::new();
            for c in &chains {
                out.push(rig.read_all(c.shard, 60).await.unwrap());
            }
            out
        };
        rig.engine.check();
        rig.stop().await;
        let rig = Rig::open(device).await.unwrap();
        assert_eq!(rig.report.damage, []);
        for (c, model) in chains.iter().zip(models) {
            assert_eq!(rig.read_all(c.shard, 60).await.unwrap(), model);
            assert_eq!(rig.engine.state(c.shard).unwrap().requests.len() as u64, c.requests.min(1024));
        }
    });
}

async fn put(rig: &Rig, chain: &mut Chain, op: Op) {
    let frame = chain.frame(&[op]);
    rig.append(Record::Frame(frame));
    rig.settle().await;
    chain.committed = chain.sequence;
    rig.engine.committed(chain.shard, Sequence(chain.sequence));
}

/// A shard that waits for the repair of its newest frames has older ones in every segment: these are cleaned, and the
/// hole is found again after a restart.
#[test]
fn a_hole_holds_only_what_lies_around_it() {
    local(async {
        let device = MemoryDevice::new(4096, 1 << 30);
        create_log(device.clone(), &shape(60)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let (mut a, mut b) = (Chain::new(SHARD), Chain::new(ShardId::new(2, 0)));
        for i in 0..20u64 {
            put(&rig, &mut a, data(i as u32 % 2 * 4, 200, i << 32)).await;
            put(&rig, &mut b, data(i as u32, 4, i << 32)).await;
        }
        // Frame 22 is lost.
        put(&rig, &mut b, data(100, 1, 100 << 32)).await;
        b.frame(&[data(101, 1, 101 << 32)]);
        put(&rig, &mut b, data(102, 1, 102 << 32)).await;
        let holes = [(Sequence(22), Sequence(22))];
        assert_eq!(rig.engine.state(b.shard).unwrap().holes, holes);
        rig.engine.set_cleaning(eager(None));
        for i in 0..4u64 {
            put(&rig, &mut a, data(0, 200, (i + 200) << 32)).await;
        }
        rig.engine.flush_idle();
        turns(5000).await;
        let used = rig.engine.space().used_segments;
        assert!(used <= 8, "{used} segments are used for less than two");
        rig.engine.check();
        rig.stop().await;
        let rig = Rig::open(device).await.unwrap();
        assert_eq!(rig.engine.state(b.shard).unwrap().holes, holes);
        let read = rig.engine.read(b.shard, BlockRange::new(5, 1)).await;
        println!("{:?}", read.map(|r| r.data.len()));
    });
}

/// Many segments that a lagging member needs, all of them better to clean than those of others, do not hide these.
#[test]
fn what_is_held_does_not_hide_the_rest() {
    local(async {
        let device = MemoryDevice::new(4096, 1 << 30);
        create_log(device.clone(), &shape(200)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let (mut a, mut b) = (Chain::new(SHARD), Chain::new(ShardId::new(2, 0)));
        rig.engine.keep(b.shard, Sequence(1));
        for i in 0..80u32 {
            put(&rig, &mut b, data(i, 240, u64::from(i) << 32)).await;
            rig.engine.keep(b.shard, Sequence(1));
        }
        for i in 0..8u32 {
            put(&rig, &mut a, data(i * 100, 240, u64::from(i) << 32)).await;
        }
        rig.engine.set_cleaning(eager(None));
        rig.engine.flush_idle();
        turns(5000).await;
        let counters = rig.engine.counters();
        assert!(counters.cleaned_segments >= 3, "{counters:?}");
    });
}

/// A damaged block in a segment whose other blocks die one by one: the segment is not read again and again for nothing.
#[test]
fn a_damaged_segment_is_not_read_again_and_again() {
    local(async {
        let device = MemoryDevice::new(4096, 1 << 30);
        create_log(device.clone(), &shape(60)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let mut c = Chain::new(SHARD);
        for i in 0..4u64 {
            put(&rig, &mut c, data(i as u32 * 200, 200, (i + 1) << 32)).await;
        }
        for i in 0..4u64 {
            put(&rig, &mut c, data(i as u32 * 200 + 120, 80, (i + 10) << 32)).await;
        }
        let good = block((1 << 32) + 119);
        device.poke(|bytes| {
            let at = bytes.windows(BLOCK).step_by(512).position(|w| w == &good[..]).expect("it is there") * 512;
            bytes[at + 100] ^= 1;
        });
        rig.engine.set_cleaning(CleanOptions { target_percent: 1, ..eager(None) });
        rig.engine.flush_idle();
        for i in 0..118u32 {
            turns(200).await;
            put(&rig, &mut c, data(i, 1, (u64::from(i) + 100) << 32)).await;
            rig.engine.flush_idle();
        }
        assert_eq!(rig.engine.counters().crc_errors, 1, "the segment was read so often");
    });
}

/// An index with a right checksum that speaks of places where nothing can be is not believed; nor is a footer of
/// another device.
async fn wrong_index(other_device: bool) {
    let device = MemoryDevice::new(4096, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    rig.engine.set_cleaning(off());
    let mut c = Chain::new(SHARD);
    for i in 0..6u64 {
        let extents = (0..2).map(|k| (ExtentKind::Data, i as u32 * 20 + k * 100, 100)).collect();
        put(&rig, &mut c, Op { extents, fill: (i + 1) << 32 }).await;
    }
    device.poke(|bytes| {
        let start = freebs_format::disk::SEGMENTS_AT as usize;
        let segment = &mut bytes[start..start + SEGMENT as usize];
        let mut footer = SegmentFooter::decode(segment, SEGMENT).unwrap();
        let at = footer.index_at.get() as usize;
        let len = footer.index_len.get() as usize;
        let index = bytes::Bytes::copy_from_slice(&segment[at..at + len]);
        let mut out = bytes::BytesMut::new();
        for mut e in IndexEntry::decode_all(index, footer.frames.get(), usize::MAX).unwrap() {
            e.data_at = u32::MAX - 4095;
            e.encode(&mut out);
        }
        segment[at..at + len].copy_from_slice(&out);
        if other_device {
            footer.device[0] ^= 1;
        }
        footer.finish(&out);
        segment[SEGMENT as usize - size_of::<SegmentFooter>()..]
            .copy_from_slice(zerocopy::IntoBytes::as_bytes(&footer));
    });
    rig.engine.set_cleaning(CleanOptions { target_percent: 1, ..eager(None) });
    rig.engine.flush_idle();
    turns(5000).await;
    let counters = rig.engine.counters();
    assert!(counters.cleaned_segments > 0, "{counters:?}");
    // Of a footer that is not ours the heads take the place.
    let used = rig.engine.space().used_segments;
    assert_eq!(used, if other_device { 2 } else { 3 });
    rig.read_all(SHARD, 300).await.unwrap();
    rig.engine.check();
}

#[test]
fn a_wrong_index_is_not_believed() {
    local(wrong_index(false));
    local(wrong_index(true));
}

/// Who closes a log does not wait until all of it is clean.
#[test]
fn a_close_does_not_wait_for_cleaning() {
    local(async {
        let device = MemoryDevice::new(4096, 1 << 30);
        create_log(device.clone(), &shape(100)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let mut c = Chain::new(SHARD);
        for i in 0..60u32 {
            put(&rig, &mut c, data(i * 120, 240, u64::from(i) << 32)).await;
        }
        rig.engine.set_cleaning(CleanOptions { batch_bytes: 16 << 20, ..eager(None) });
        rig.engine.flush_idle();
        while rig.engine.counters().cleaned_bytes == 0 {
            turns(1).await;
        }
        let before = rig.engine.counters().cleaned_bytes;
        rig.engine.close().await.unwrap();
        let more = rig.engine.counters().cleaned_bytes - before;
        assert!(more <= 128 << 10, "{more} bytes were moved before the log ended");
    });
}

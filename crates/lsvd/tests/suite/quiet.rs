//! Damage in a log that nobody writes to: it is mended and gone without anybody's doing, and told once.

use crate::common::*;
use bytes::Bytes;
use freebs_format::ExtentKind;
use freebs_io::AnyDevice;
use freebs_io::faults::FaultDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, DamagedBlocks, EventKind, Record, Scrubber};
use freebs_types::{BLOCK, BlockRange, ErrorKind, Sequence, ShardId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

const SHARD: ShardId = ShardId::new(1, 0);
const BLOCKS: u32 = 1500;
/// Turns of the engine between two ticks of a node.
const TURNS: usize = 200;

async fn turns(n: usize) {
    for _ in 0..n {
        tokio::task::yield_now().await;
    }
}

fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill }
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let bytes = RefCell::new(Vec::new());
    device.poke(|b| bytes.borrow_mut().clone_from(b));
    bytes.into_inner()
}

/// The model's word on the data of the blocks, where it is data.
fn content(model: &Model, range: BlockRange) -> Bytes {
    let fill = |b: u32| match model[&b] {
        Cell8::Data(fill) => block(fill),
        _ => Bytes::from(vec![0; BLOCK]),
    };
    (range.start.0..range.end() as u32).flat_map(fill).collect()
}

/// A log as a node has it: looked after at ticks, and written to by nobody.
struct Node {
    rig: Rig,
    scrubber: Scrubber<AnyDevice>,
    /// Damaged blocks that were asked for, and when; others have them a few ticks later.
    asked: VecDeque<(DamagedBlocks, u64)>,
    ticks: u64,
    /// The lines on damage, and how often each was told.
    told: BTreeMap<String, u64>,
}

impl Node {
    fn of(rig: Rig) -> Self {
        let scrubber = Scrubber::new(rig.engine.clone());
        Self { rig, scrubber, asked: VecDeque::new(), ticks: 0, told: BTreeMap::new() }
    }

    fn hear(&mut self) {
        let events = self.rig.engine.events().into_iter();
        for e in events.filter(|e| matches!(e.kind, EventKind::Damage | EventKind::CrcError)) {
            *self.told.entry(e.text).or_default() += 1;
        }
    }

    /// `others` is what the other members have; without them nobody has anything.
    async fn tick(&mut self, others: Option<&Model>) {
        self.ticks += 1;
        self.scrubber.look_at_suspects(1 << 20).await.unwrap();
        let found = self.rig.engine.take_damaged(256);
        self.asked.extend(found.into_iter().map(|d| (d, self.ticks + 3)));
        for _ in 0..8 {
            let Some((d, _)) = self.asked.pop_front_if(|(_, at)| *at <= self.ticks) else { break };
            match others.map(|model| self.rig.engine.mend(d.id, &content(model, d.range))) {
                None => self.rig.engine.unmended(d.id),
                Some(Ok(_)) => {}
                Some(Err(e)) => {
                    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
                    self.asked.push_back((d, self.ticks + 3));
                }
            }
        }
        turns(TURNS).await;
        self.hear();
    }

    async fn scrub(&mut self) {
        while !self.scrubber.step(u64::MAX).await.unwrap().pass_complete {}
        self.hear();
    }

    /// The question of `freebs volume verify`.
    async fn is_sound(&mut self) -> bool {
        let sound = self.rig.engine.check_segments(SHARD).await;
        self.hear();
        sound.is_ok()
    }

    /// Each line that was told more than once.
    fn repeats(&self) -> Vec<(&String, &u64)> {
        self.told.iter().filter(|(_, n)| **n > 1).collect()
    }
}

/// A log of many segments with little that lives in each. With `idle` it has come to rest before.
async fn log(idle: bool) -> (Rig, MemoryDevice, Model) {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
    let (mut rng, mut chain, mut model) = (Rng::new(11), Chain::new(SHARD), Model::new());
    for _ in 0..700 {
        let op = Op::random(&mut rng, BLOCKS);
        op.apply(&mut model);
        chain.committed = chain.sequence;
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
    }
    rig.engine.committed(SHARD, Sequence(chain.sequence));
    rig.engine.set_cleaning(CleanOptions::default());
    if idle {
        rig.engine.flush_idle();
    }
    turns(20_000).await;
    (rig, device, model)
}

/// Turns bits over in what lies in closed segments; gives back how many.
fn rot(device: &MemoryDevice, rng: &mut Rng, bits: usize) -> usize {
    let bytes = bytes_of(device);
    let mut places = Vec::new();
    for base in (1 << 20..bytes.len()).step_by(SEGMENT as usize) {
        let segment = &bytes[base..(base + SEGMENT as usize).min(bytes.len())];
        if segment.len() == SEGMENT as usize && &segment[SEGMENT as usize - FOOTER..][..4] == b"FBIX" {
            places.push(base);
        }
    }
    for _ in 0..bits {
        let base = places[rng.below(places.len() as u64) as usize];
        let (byte, bit) = (base + rng.below(SEGMENT) as usize, rng.below(8));
        device.poke(|b| b[byte] ^= 1 << bit);
    }
    places.len()
}

/// Live blocks were mended at once, but nobody looked at their segments again before somebody wrote: the replica stayed
/// damaged, and whoever asked was told all of it again.
#[test]
fn a_damaged_log_that_nobody_writes_to_is_sound_again() {
    for idle in [true, false] {
        local(nobody_writes(idle));
    }
}

async fn nobody_writes(idle: bool) {
    let (rig, device, model) = log(idle).await;
    let mut node = Node::of(rig);
    assert!(node.is_sound().await && node.told.is_empty());
    let appended = node.rig.engine.counters().frames;
    let segments = rot(&device, &mut Rng::new(5), 200);
    node.scrub().await;
    assert!(!node.is_sound().await);
    let found = node.told.len();
    assert!(found > 20 && segments > 4, "{found} findings in {segments} segments");
    let mut sound_at = None;
    while sound_at.is_none() && node.ticks < 400 {
        node.tick(Some(&model)).await;
        // Somebody asks again and again, and the scrub begins anew.
        if node.ticks.is_multiple_of(5) && node.is_sound().await {
            sound_at = Some(node.ticks);
        }
        if node.ticks.is_multiple_of(20) {
            node.scrub().await;
        }
    }
    let c = node.rig.engine.counters();
    let told = node.told.values().sum::<u64>();
    println!("measured: idle {idle}: {found} findings, sound after {sound_at:?} ticks, {told} lines, {c:?}");
    assert!(sound_at.is_some(), "damaged after {} ticks, {told} lines of {found} findings", node.ticks);
    assert!(node.repeats().is_empty(), "{:?}", node.repeats());
    // A block that cleaning had read before it was damaged need not be mended.
    assert!(c.mended_blocks > if idle { 10 } else { 0 } && c.frames - appended < 2000, "{c:?}");
    node.scrub().await;
    assert_eq!(node.rig.engine.counters().scrub_findings, c.scrub_findings, "nothing is left");
    assert_eq!(node.rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
    node.rig.engine.check();
    node.rig.stop().await;
    let again = Rig::open(device).await.unwrap();
    assert_eq!(again.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
}

/// Turns a bit over in a live block of a closed segment, and says which.
async fn spoil_live(rig: &Rig, device: &MemoryDevice, model: &Model) -> u32 {
    let bytes = bytes_of(device);
    for b in model.iter().filter(|(_, cell)| matches!(cell, Cell8::Data(_))).map(|(b, _)| *b) {
        let wanted = content(model, BlockRange::new(b, 1));
        for at in (1 << 20..bytes.len() - BLOCK).step_by(512).filter(|at| bytes[*at..at + BLOCK] == wanted[..]) {
            let end = at.next_multiple_of(SEGMENT as usize);
            if bytes.get(end - FOOTER..end - FOOTER + 4) != Some(b"FBIX") {
                continue;
            }
            // There may be older copies.
            device.poke(|b| b[at + 100] ^= 1);
            if rig.engine.read(SHARD, BlockRange::new(b, 1)).await.is_err() {
                return b;
            }
            device.poke(|b| b[at + 100] ^= 1);
        }
    }
    panic!("nothing lives in a closed segment");
}

/// Blocks that nobody has stay where they are, and keep their segment. They are asked for again by each pass, and told
/// once, whoever meets them; when somebody has them after all they are mended, and all is sound.
#[test]
fn what_nobody_has_is_told_once_too() {
    local(async {
        let (rig, device, model) = log(true).await;
        let range = BlockRange::new(spoil_live(&rig, &device, &model).await, 1);
        let mut node = Node::of(rig);
        for round in 1..=4 {
            for _ in 0..40 {
                node.tick(None).await;
                let read = node.rig.engine.read(SHARD, range).await;
                assert_eq!(read.unwrap_err().kind, ErrorKind::Corrupt);
            }
            node.scrub().await;
            assert!(!node.is_sound().await, "round {round}");
        }
        let c = node.rig.engine.counters();
        assert!(c.crc_errors > 160 && node.repeats().is_empty(), "{:?}", node.told);
        // One for who reads all of the segment, one for readers, who have met it before, one for cleaning.
        assert!((1..=3).contains(&node.told.len()), "{:?}", node.told);
        assert_eq!(c.scrub_findings, 1);
        node.scrub().await;
        for _ in 0..40 {
            node.tick(Some(&model)).await;
        }
        assert!(node.is_sound().await);
        assert_eq!(node.rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        node.rig.engine.check();
    });
}

/// A sector that can't be read, between live blocks that are read together: nothing that lives is lost, and yet cleaning took
/// the blocks around it for damaged, and never emptied the segment.
#[test]
fn a_bad_sector_between_live_blocks_does_not_keep_their_segment() {
    local(async {
        let memory = MemoryDevice::new(512, 1 << 30);
        let device = FaultDevice::new(memory.clone());
        create_log(device.clone(), &shape(60)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        for (i, (start, len)) in [(0, 200), (5, 3), (200, 200), (400, 200)].into_iter().enumerate() {
            let op = data(start, len, (i as u64 + 1) << 32);
            op.apply(&mut model);
            chain.committed = chain.sequence;
            rig.append(Record::Frame(chain.frame(&[op])));
            rig.settle().await;
        }
        rig.engine.committed(SHARD, Sequence(chain.sequence));
        let dead = block((1 << 32) + 6);
        let bytes = bytes_of(&memory);
        let at = bytes.windows(BLOCK).step_by(512).position(|w| w == &dead[..]).expect("it is there") * 512;
        device.spoil(at as u64 + 1024);
        rig.engine.set_cleaning(CleanOptions::default());
        let mut node = Node::of(rig);
        node.scrub().await;
        assert!(!node.is_sound().await);
        let mut rest = 50;
        while !node.is_sound().await {
            node.tick(Some(&model)).await;
            rest -= 1;
            assert!(rest > 0, "the segment stays: {:?}", node.told);
        }
        assert_eq!((node.rig.engine.counters().mended_blocks, node.told.len()), (0, 1), "{:?}", node.told);
        assert_eq!(node.rig.read_all(SHARD, 600).await.unwrap(), full(&model, 600));
        node.rig.engine.check();
    });
}

/// The proof of the last append was asked for once, while the device was busy with that append, and then never again: for a
/// minute one sector that went bad, and a kill, took an answered write away without a word.
#[test]
fn the_last_append_is_proven_when_the_device_has_time() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(20)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        assert!(rig.engine.flush_idle(), "there is nothing to prove");
        let mut chain = Chain::new(SHARD);
        rig.append(Record::Frame(chain.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 4)], fill: 1 }])));
        // Asked in each of these moments, it is known that the proof is lacking.
        let mut asked = 0;
        while !rig.engine.flush_idle() {
            asked += 1;
            assert!(asked < 10_000, "the log is never proven");
            tokio::task::yield_now().await;
        }
        assert!(asked > 1);
        assert_eq!(rig.engine.counters().appends, 2);
        rig.stop().await;
    });
}

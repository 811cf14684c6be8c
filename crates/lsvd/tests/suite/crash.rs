//! Ends that were torn, devices that are full, reads that are slow: single cases, told step by step. What power cuts and
//! failing calls do at every call of many workloads is in `sweeps`.

use crate::common::*;
use crate::crash_device::{crash_device, power_cut};
use freebs_format::ExtentKind;
use freebs_format::disk::{FOOTER_MAGIC, SegmentFooter};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, Durable, EventKind, MarkChange, Record, Unrepaired};
use freebs_types::{ErrorKind, Sequence, ShardId, ViewNumber};

const BLOCKS: u32 = 200;
const SHARDS: u64 = 3;

/// One shard's history: the chain and the model after each frame.
struct Shard {
    at: Vec<(Chain, Model)>,
    /// Highest sequence that was said to be durable.
    durable: u64,
    /// Whether frames say what is committed.
    commits: bool,
}

impl Shard {
    fn new(i: u64) -> Self {
        Self { at: vec![(Chain::new(ShardId::new(i, 0)), Model::new())], durable: 0, commits: true }
    }
    fn id(&self) -> ShardId {
        self.at[0].0.shard
    }
    fn step(&mut self, rng: &mut Rng, blocks: u32) -> Record {
        let (mut chain, mut model) = self.at.last().unwrap().clone();
        chain.committed = if self.commits { self.durable.max(chain.committed) } else { 0 };
        let n = if rng.chance(80) { 1 } else { 1 + rng.below(3) };
        let ops: Vec<Op> = (0..n).map(|_| Op::random(rng, blocks)).collect();
        for op in &ops {
            op.apply(&mut model);
        }
        let frame = chain.frame(&ops);
        self.at.push((chain, model));
        Record::Frame(frame)
    }
    /// After recovery the shard goes on from what is there.
    fn back_to(&mut self, sequence: u64) {
        self.at.truncate(sequence as usize + 1);
        self.durable = sequence;
    }
}

fn hear(rig: &Rig, shards: &mut [Shard]) {
    for d in rig.heard.done.borrow_mut().drain(..) {
        if let Durable::Frame { shard, sequence, .. } = d {
            let s = &mut shards[shard.volume.0 as usize - 1];
            assert_eq!(sequence.0, s.durable + 1, "told in order, each once");
            s.durable = sequence.0;
            rig.engine.committed(shard, sequence);
        }
    }
}

/// The durable state is a prefix that holds everything that was promised.
async fn check(rig: &Rig, shards: &mut [Shard]) {
    rig.engine.check();
    assert_eq!(rig.report.damage, [], "a power cut is not damage");
    for s in shards {
        let last = rig.engine.state(s.id()).map_or(0, |st| {
            assert!(st.holes.is_empty() && !st.suspect_tail);
            st.last.sequence.0
        });
        assert!(last >= s.durable, "shard {}: {last} of {} promised frames are there", s.id(), s.durable);
        assert!((last as usize) < s.at.len(), "nothing is there that was never sent");
        s.back_to(last);
        let (chain, model) = s.at.last().unwrap();
        if last > 0 {
            assert_eq!(rig.engine.state(s.id()).unwrap().last, chain.name());
            assert_eq!(rig.read_all(s.id(), BLOCKS).await.unwrap(), full(model, BLOCKS));
        }
    }
}

/// Promises and repairs ended a log that was full; after each start they came again.
async fn refuses(rig: &Rig, shard: ShardId, last: Sequence) {
    let frame = rig.engine.frame(shard, last).await.unwrap();
    let (mut promised, mut refused) = (0, false);
    for n in 1..10_000 {
        let change = MarkChange { promised: Some(ViewNumber(n)), ..MarkChange::default() };
        rig.append(Record::Mark { shard, change, ticket: n });
        rig.append(Record::Repair(frame.clone()));
        rig.settle().await;
        assert!(rig.heard.failed.borrow().is_none(), "{:?}", rig.heard.failed.borrow());
        for d in rig.heard.done.borrow_mut().drain(..) {
            match d {
                Durable::Mark { ticket, .. } => promised = ticket,
                Durable::NoRoom { ticket, .. } => refused |= ticket == n,
                Durable::Repair { .. } => {}
                Durable::Unrepaired { sequence, why: Unrepaired::NoRoom, .. } => assert_eq!(sequence, last),
                other => panic!("{other:?}"),
            }
        }
        if refused {
            break;
        }
    }
    assert!(refused, "there is an end to it");
    assert_eq!(rig.engine.state(shard).unwrap().promised.0, promised, "what was refused is not in force");
}

#[test]
fn a_full_device_refuses_and_keeps_what_it_has() {
    local(async {
        let mut rng = Rng::new(5);
        let device = crash_device(1 << 27, 5);
        create_log(device.clone(), &shape(8)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut shards: Vec<Shard> = (1..=SHARDS).map(Shard::new).collect();
        // Nobody commits, so nothing can be given up.
        shards.iter_mut().for_each(|s| s.commits = false);
        let mut warned = false;
        for _ in 0..4000 {
            let i = rng.below(SHARDS) as usize;
            rig.append(shards[i].step(&mut rng, 30));
            rig.settle().await;
            for d in rig.heard.done.borrow_mut().drain(..) {
                if let Durable::Frame { shard, sequence, .. } = d {
                    shards[shard.volume.0 as usize - 1].durable = sequence.0;
                }
            }
            let space = rig.engine.space();
            warned |= space.free_segments <= space.reserve_segments;
            if rig.heard.failed.borrow().is_some() {
                break;
            }
        }
        assert!(warned, "space told before it was full");
        assert_eq!(rig.heard.failed.borrow().as_ref().unwrap().kind, ErrorKind::NoSpace);
        assert!(rig.engine.events().iter().any(|e| e.kind == EventKind::Space));
        assert!(!rig.engine.space().poisoned);
        assert_eq!(rig.task.await.unwrap().unwrap_err().kind, ErrorKind::NoSpace);
        let again = Rig::open(device).await.unwrap();
        check(&again, &mut shards).await;
        refuses(&again, shards[0].id(), Sequence(shards[0].durable)).await;
        shards.iter_mut().for_each(|s| s.commits = true);
        // Once the frames are committed, what they overwrote goes, and there is room again.
        for s in &mut shards {
            again.engine.committed(s.id(), Sequence(s.durable));
        }
        for _ in 0..300 {
            let s = &mut shards[rng.below(SHARDS) as usize];
            again.append(s.step(&mut rng, 30));
            again.settle().await;
            assert!(again.heard.failed.borrow().is_none(), "{:?}", again.heard.failed.borrow());
            hear(&again, &mut shards);
        }
        again.engine.check();
    });
}

/// A segment is not written over while somebody reads there, however long that takes.
#[test]
fn a_slow_read_is_not_overtaken() {
    local(async {
        let mut rng = Rng::new(9);
        let device = crash_device(1 << 27, 9);
        create_log(device.clone(), &shape(12)).await.unwrap();
        let rig = std::rc::Rc::new(Rig::open(device.clone()).await.unwrap());
        let mut shards = vec![Shard::new(1)];
        let mut slow = Vec::new();
        for i in 0..3000u32 {
            let step = shards[0].step(&mut rng, 30);
            rig.append(step);
            rig.settle().await;
            hear(&rig, &mut shards);
            if i % 300 == 200 {
                device.pace(u64::from(i), 30_000);
                let (reader, id) = (rig.clone(), shards[0].id());
                let model = full(&shards[0].at.last().unwrap().1, 30);
                slow.push(tokio::task::spawn_local(async move {
                    assert_eq!(reader.read_all(id, 30).await.unwrap(), model, "what was there when the read began");
                }));
                tokio::task::yield_now().await;
                device.pace(u64::from(i), 3);
            }
        }
        assert!(rig.engine.counters().segments_freed > 12, "{:?}", rig.engine.counters());
        for s in slow {
            s.await.unwrap();
        }
        rig.engine.check();
    });
}

/// A kill left a torn append at the end of a segment. After the restart the next append did not fit there, so the
/// segment was closed in front of the torn one; the check in front of a digest then called the torn one damage.
#[test]
fn a_torn_append_in_a_segment_that_was_closed_later_is_no_damage() {
    local(async {
        let data = |blocks: u32, fill: u64| Op { extents: vec![(freebs_format::ExtentKind::Data, 0, blocks)], fill };
        let mut torn = 0;
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let device = crash_device(1 << 27, seed);
            create_log(device.clone(), &shape(60)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = Chain::new(ShardId::new(1, 0));
            rig.append(Record::Frame(chain.frame(&[data(100, 1)])));
            rig.settle().await;
            let before = chain.clone();
            rig.append(Record::Frame(chain.frame(&[data(60, 2)])));
            for _ in 0..rng.below(6) {
                tokio::task::yield_now().await;
            }
            rig.kill();
            let rig = Rig::open(power_cut(&device, &mut rng)).await.unwrap();
            torn += u64::from(rig.report.torn_bytes > 0);
            if rig.engine.state(before.shard).unwrap().last.sequence.0 == before.sequence {
                chain = before;
            }
            rig.append(Record::Frame(chain.frame(&[data(200, 3)])));
            rig.settle().await;
            rig.engine.digest(chain.shard).await.expect("a torn end is no damage");
            rig.stop().await;
        }
        assert!(torn > 3, "{torn} ends were torn");
    });
}

/// The power went when a segment was closed: its footer was written, its index only in part. The next start went on in
/// that segment. When it was closed again, the power went again, after that part of the index which is the same in both:
/// so the first index was whole, and the footer belonged to it. What had been appended in between was gone.
#[test]
fn an_index_is_not_made_whole_by_the_next_one() {
    local(async {
        let (sector, shard) = (512, ShardId::new(1, 0));
        let dev = MemoryDevice::new(sector, 1 << 30);
        create_log(dev.clone(), &shape(40)).await.unwrap();
        let open = async || {
            let rig = Rig::open(dev.clone()).await.unwrap();
            rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
            rig
        };
        let data = |start, len, fill| Op { extents: vec![(ExtentKind::Data, start, len)], fill };
        let (rig, mut chain) = (open().await, Chain::new(shard));
        for i in 0..6 {
            rig.append(Record::Frame(chain.frame(&[data(i, 1, 100 + u64::from(i))])));
            rig.settle().await;
        }
        let kept = chain.clone();
        // It does not fit, and opens the next segment.
        rig.append(Record::Frame(chain.frame(&[data(0, 250, 7 << 32)])));
        rig.settle().await;
        rig.kill();
        let (first, size) = (1 << 20, SEGMENT as usize);
        let mut index = Vec::new();
        let mut at = 0;
        dev.poke(|b| {
            let footer = SegmentFooter::decode(&b[first + size - sector..first + size], SEGMENT).unwrap();
            at = first + footer.index_at.get() as usize;
            index.extend_from_slice(&b[at..at + sector]);
            b[at..at + sector].fill(0);
            b[first + size..].fill(0);
        });
        let rig = open().await;
        assert_eq!((rig.engine.state(shard).unwrap().last, &rig.report.damage[..]), (kept.name(), &[][..]));
        chain = kept;
        rig.append(Record::Frame(chain.frame(&[data(3, 1, 9)])));
        rig.settle().await;
        rig.kill();
        dev.poke(|b| {
            assert!(b[first..].starts_with(b"FBAP"), "the log went on there");
            b[at..at + sector].copy_from_slice(&index);
            let footer = b[first..first + size].windows(4).rposition(|w| w == FOOTER_MAGIC);
            assert!(footer.is_none_or(|f| f < size - sector), "no footer is left");
        });
        let rig = open().await;
        assert_eq!(rig.engine.state(shard).unwrap().last, chain.name());
        assert_eq!(rig.report.damage, []);
    });
}

//! The engine against a naive model: several shards, all kinds of updates, restarts at any point.

use crate::common::*;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Record, Seen};
use freebs_types::{DriverId, RequestNumber, Sequence, ShardId};

const BLOCKS: u32 = 300;

struct Shard {
    chain: Chain,
    model: Model,
}

impl Shard {
    fn new(i: u64) -> Self {
        Self { chain: Chain::new(ShardId::new(i, 0)), model: Model::new() }
    }
    fn step(&mut self, rng: &mut Rng) -> Record {
        let n = if rng.chance(70) { 1 } else { 1 + rng.below(4) };
        let ops: Vec<Op> = (0..n).map(|_| Op::random(rng, BLOCKS)).collect();
        for op in &ops {
            op.apply(&mut self.model);
        }
        Record::Frame(self.chain.frame(&ops))
    }
}

async fn check(rig: &Rig, shards: &[Shard]) {
    rig.engine.check();
    for s in shards.iter().filter(|s| s.chain.sequence > 0) {
        let state = rig.engine.state(s.chain.shard).unwrap();
        assert_eq!(state.last, s.chain.name());
        assert_eq!(state.version.0, s.chain.version);
        assert_eq!(state.open_chunk, (s.chain.chunk, s.chain.offset));
        assert!(state.holes.is_empty() && !state.suspect_tail);
        let n = s.chain.requests;
        if n > 0 {
            assert_eq!(
                state.requests.lookup(DriverId(5), RequestNumber(n)).map(|s| matches!(s, Seen::At(_))),
                Some(true)
            );
            assert_eq!(state.requests.lookup(DriverId(5), RequestNumber(n + 1)), None);
        }
        assert_eq!(rig.read_all(s.chain.shard, BLOCKS).await.unwrap(), full(&s.model, BLOCKS), "{}", s.chain.shard);
    }
}

async fn run(seed: u64, sector: usize) {
    let mut rng = Rng::new(seed);
    let device = MemoryDevice::new(sector, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    let mut rig = Rig::open(device.clone()).await.unwrap();
    let mut shards: Vec<Shard> = (1..=4).map(Shard::new).collect();
    for round in 0..60 {
        for _ in 0..rng.below(60) {
            let i = rng.below(4) as usize;
            let s = &mut shards[i];
            rig.append(s.step(&mut rng));
            if rng.chance(5) {
                rig.settle().await;
            }
            if rng.chance(30) {
                s.chain.committed = s.chain.sequence - rng.below(5).min(s.chain.sequence - s.chain.committed);
                rig.engine.committed(s.chain.shard, Sequence(s.chain.committed));
            }
        }
        rig.settle().await;
        assert!(rig.heard.failed.borrow().is_none(), "{:?}", rig.heard.failed.borrow());
        if rng.chance(30) {
            rig.engine.flush_idle();
            tokio::task::yield_now().await;
        }
        if round % 5 == 0 {
            check(&rig, &shards).await;
        }
        if rng.chance(30) {
            if rng.chance(50) {
                rig.stop().await;
            } else {
                rig.kill();
            }
            rig = Rig::open(device.clone()).await.unwrap();
            assert_eq!(rig.report.damage, []);
            assert_eq!(rig.report.torn_bytes, 0);
            check(&rig, &shards).await;
        }
    }
    check(&rig, &shards).await;
    let c = rig.engine.counters();
    println!("seed {seed}: {c:?} {:?}", rig.engine.space());
}

#[test]
fn behaves_as_the_naive_model_through_restarts() {
    for seed in 0..24 {
        local(run(seed, if seed % 2 == 0 { 512 } else { 4096 }));
    }
}

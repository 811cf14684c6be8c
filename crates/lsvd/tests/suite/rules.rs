//! A replica learns from another one, as the chain's SYNC does: it asks with the name of its last frames, cuts behind
//! the last common one, and takes frames, or all entries placed since, in whatever order they come. Both agree then.
//!
//! Rules that are left out are caught (rules E2, E3 and E7).

use crate::common::*;
use freebs_format::FrameHead;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Base, CleanOptions, MarkChange, Options, Record, RuleMutant};
use freebs_types::{Lba, Sequence, ShardId};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCKS: u32 = 120;
const SHARD: ShardId = ShardId::new(1, 0);
/// Tables of a few dozen entries, a cache of a few pages.
const TINY: Options = Options { map_bytes: 16 << 10, checkpoint_bytes: 1 << 40 };

struct Pair {
    rng: Rng,
    rule: Option<RuleMutant>,
    options: Options,
    /// The one that has everything, and the one that learns.
    ours: Rig,
    theirs: Rig,
    device: MemoryDevice,
    first: MemoryDevice,
    chain: Chain,
    model: Model,
    /// The last frame that both have.
    common: u64,
    /// The frame of the newest view.
    view: Option<FrameHead>,
    /// At most so many frames, less one, are of a view that nobody else hears of.
    strays: u64,
    /// What was learned is in a checkpoint before the learner is killed.
    checkpoint: bool,
    /// The learner cuts frames of the chain itself, which it could not name.
    unnamed: bool,
}

impl Pair {
    async fn new(seed: u64, rule: Option<RuleMutant>) -> Self {
        let devices = [MemoryDevice::new(512, 1 << 30), MemoryDevice::new(512, 1 << 30)];
        let options = if seed.is_multiple_of(2) { TINY } else { Options::of_workers(1) };
        for d in &devices {
            create_log(d.clone(), &shape(60)).await.unwrap();
        }
        let [a, b] = devices;
        let ours = Rig::open_without(rule, a.clone(), options).await.unwrap();
        let eager = CleanOptions { share_percent: 300, target_percent: 100, ..CleanOptions::default() };
        ours.engine.set_cleaning(eager);
        let theirs = Rig::open_without(rule, b.clone(), options).await.unwrap();
        let (chain, model) = (Chain::new(SHARD), Model::new());
        let rng = Rng::new(seed);
        let (device, first, common, view, strays, checkpoint) = (b, a, 0, None, 5, true);
        let unnamed = false;
        Self {
            rng,
            rule,
            options,
            ours,
            theirs,
            device,
            first,
            chain,
            model,
            common,
            view,
            strays,
            checkpoint,
            unnamed,
        }
    }

    fn write(&mut self) -> Record {
        let op = Op::random(&mut self.rng, BLOCKS);
        op.apply(&mut self.model);
        Record::Frame(self.chain.frame(&[op]))
    }

    /// Frames that only the first one gets; all but the last few are committed.
    async fn go_on(&mut self, frames: u64) {
        for _ in 0..frames {
            let record = self.write();
            self.ours.append(record);
        }
        self.ours.settle().await;
        self.chain.committed = self.chain.committed.max(self.chain.sequence - self.rng.below(4));
        self.ours.engine.committed(SHARD, Sequence(self.chain.committed));
    }

    /// Both get the same; then the second one gets a few frames of a view that nobody else hears of.
    async fn part(&mut self) {
        let mut records = vec![Record::Frame(self.chain.view_frame(2, 1))];
        for _ in 0..20 + self.rng.below(60) {
            records.push(self.write());
        }
        for r in records {
            self.ours.append(r.clone());
            self.theirs.append(r);
        }
        self.ours.settle().await;
        self.theirs.settle().await;
        self.common = self.chain.sequence;
        let committed = self.common - self.rng.below(8);
        self.chain.committed = committed;
        for rig in [&self.ours, &self.theirs] {
            rig.engine.committed(SHARD, Sequence(committed));
        }
        let (mut stray, n) = (self.chain.clone(), self.rng.below(self.strays));
        if self.unnamed {
            for _ in 0..n {
                let record = self.write();
                self.ours.append(record.clone());
                self.theirs.append(record);
            }
        } else if n > 0 {
            self.theirs.append(Record::Frame(stray.view_frame(3, 2)));
            for _ in 0..n {
                self.theirs.append(Record::Frame(stray.frame(&[Op::random(&mut self.rng, BLOCKS)])));
            }
        }
        self.theirs.settle().await;
        let view = self.chain.view_frame(4, 3);
        self.view = Some(view.head.clone());
        self.ours.append(Record::Frame(view));
    }

    /// The last frame that both have, by name.
    async fn last_common(&self) -> u64 {
        let mut at = self.theirs.engine.tip(SHARD).unwrap().0.sequence.0;
        loop {
            let theirs = self.theirs.engine.name(SHARD, Sequence(at)).await.unwrap();
            match self.ours.engine.name(SHARD, Sequence(at)).await {
                Ok(name) if name == theirs => return at,
                _ => at -= 1,
            }
        }
    }

    async fn by_frames(&mut self, from: u64) {
        let mut next = from;
        while next <= self.chain.sequence {
            for f in self.ours.engine.frames(SHARD, Sequence(next), 1 << 16).await.unwrap() {
                next += 1;
                self.theirs.append(Record::Frame(f));
            }
        }
        self.theirs.settle().await;
    }

    /// All entries placed behind `since`, while more is written.
    async fn pages(&mut self, since: u64, out: &mut Vec<Record>) {
        let mut from = Some(Lba(0));
        while let Some(at) = from {
            let (body, data, next) = self.ours.engine.entries(SHARD, at, Sequence(since), 60_000).await.unwrap();
            if !body.entries.is_empty() {
                out.push(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            }
            from = next;
            let more = self.rng.below(4);
            self.go_on(more).await;
        }
    }

    async fn by_map(&mut self, since: u64) {
        self.theirs.append(Record::Cut { shard: SHARD, to: Sequence(since) });
        let mut records = Vec::new();
        self.pages(since, &mut records).await;
        self.go_on(40).await;
        // What was learned before is learned again, for what was written since. It comes in any order.
        let known = self.chain.committed;
        self.ours.engine.keep(SHARD, Sequence(known));
        self.pages(since, &mut records).await;
        for i in (1..records.len()).rev() {
            records.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        records.into_iter().for_each(|r| self.theirs.append(r));
        let engine = &self.ours.engine;
        let frame = engine.frame(SHARD, Sequence(known)).await.unwrap();
        let h = frame.header();
        let base = Base {
            since: Sequence(since),
            tip: Sequence(since),
            last: engine.name(SHARD, Sequence(known)).await.unwrap(),
            parent: h.parent_token(),
            digest: h.digest(),
            version: h.last_version(),
            committed: Sequence(known),
            view_frame: self.view.clone(),
            attach: Default::default(),
            requests: Default::default(),
            open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
        };
        let change = MarkChange { base: Some(Box::new(base)), ..MarkChange::default() };
        self.theirs.append(Record::Mark { shard: SHARD, change, ticket: 7 });
        self.by_frames(known + 1).await;
    }

    /// Both hold what was written, and go on doing so after a restart.
    async fn agree(mut self) {
        for round in 0..3 {
            let (ours, theirs) = (&self.ours, &self.theirs);
            theirs.engine.check();
            assert_eq!(theirs.engine.state(SHARD).unwrap().last, self.chain.name(), "round {round}");
            assert_eq!(theirs.read_all(SHARD, BLOCKS).await.unwrap(), full(&self.model, BLOCKS), "round {round}");
            let digests = (ours.engine.digest(SHARD).await, theirs.engine.digest(SHARD).await);
            assert_eq!(digests.0.unwrap(), digests.1.unwrap(), "round {round}");
            if round == 0 && self.checkpoint {
                self.theirs.engine.checkpoint().await.unwrap();
            }
            self.theirs.kill();
            self.theirs = Rig::open_without(self.rule, self.device.clone(), self.options).await.unwrap();
            assert_eq!(self.theirs.report.damage, []);
            let next = self.chain.sequence + 1;
            self.go_on(10).await;
            self.by_frames(next).await;
        }
    }
}

async fn learn(seed: u64, rule: Option<RuleMutant>) {
    learn_with(Pair::new(seed, rule).await).await;
}

async fn learn_with(mut pair: Pair) {
    pair.part().await;
    let by_frames = pair.rng.chance(30);
    if by_frames {
        pair.ours.engine.keep(SHARD, Sequence(pair.common));
    }
    let frames = 20 + pair.rng.below(200);
    pair.go_on(frames).await;
    let since = if pair.unnamed { pair.common } else { pair.last_common().await };
    assert_eq!(since, pair.common, "the last common frame");
    if by_frames {
        // The first one of them takes the place of what is cut.
        pair.by_frames(since + 1).await;
    } else {
        pair.by_map(since).await;
    }
    pair.agree().await;
}

#[test]
fn a_replica_that_learned_is_the_same_replica() {
    for seed in 0..60 {
        println!("seed {seed}");
        local(learn(seed, None));
    }
}

/// The log does not say that a branch was cut where the map followed: at the next start, if it came before a checkpoint,
/// the branch was there again. A shorter one was put under the map as if it were committed; a longer one was the end of
/// the log.
#[test]
fn a_branch_that_gave_way_to_a_map_does_not_come_back() {
    for seed in 0..60 {
        println!("seed {seed}");
        local(async move {
            let mut pair = Pair::new(seed, None).await;
            (pair.strays, pair.checkpoint) = (if seed % 3 == 0 { 5 } else { 400 }, false);
            learn_with(pair).await;
        });
    }
}

/// Where the map came from, the learner's last frames had been given up. They are of the chain, but were cut with
/// whatever else lay behind the common one, and came again with the map. When the log was read again they were cut behind
/// the map's entries, which lost the places of their blocks.
#[test]
fn frames_that_were_cut_and_came_again_with_a_map_keep_their_blocks() {
    for seed in 0..60 {
        println!("seed {seed}");
        local(async move {
            let mut pair = Pair::new(seed, None).await;
            (pair.strays, pair.checkpoint, pair.unnamed) = (if seed % 3 == 0 { 5 } else { 100 }, false, true);
            learn_with(pair).await;
        });
    }
}

/// Whoever sends it: another frame in the place of a committed one is refused, and nothing is cut; not when it comes,
/// nor when the log is read again (rule E7).
async fn usurped(seed: u64, rule: Option<RuleMutant>) {
    let mut pair = Pair::new(seed, rule).await;
    pair.part().await;
    pair.go_on(30).await;
    let committed = pair.chain.committed;
    let (mut other, mut last) = (pair.chain.clone(), pair.chain.clone());
    (other.sequence, other.version) = (committed - 1 - pair.rng.below(3), 1000);
    (other.chunk.counter, other.offset) = (77, 0);
    let frame = other.frame(&[Op::random(&mut pair.rng, BLOCKS)]);
    // It is told that the frame is refused, and the one behind it is durable.
    pair.ours.append(Record::Frame(frame));
    let op = Op::random(&mut pair.rng, BLOCKS);
    op.apply(&mut pair.model);
    pair.ours.append(Record::Frame(last.frame(&[op])));
    pair.ours.settle().await;
    for _ in 0..2 {
        let rig = &pair.ours;
        rig.engine.check();
        let st = rig.engine.state(SHARD).unwrap();
        assert_eq!((st.last, st.holes.len()), (last.name(), 0));
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&pair.model, BLOCKS));
        pair.ours.kill();
        pair.ours = Rig::open_without(rule, pair.first.clone(), pair.options).await.unwrap();
    }
}

#[test]
fn nothing_takes_the_place_of_a_committed_frame() {
    (0..10).for_each(|seed| local(usurped(seed, None)));
    let caught =
        |seed| catch_unwind(AssertUnwindSafe(|| local(usurped(seed, Some(RuleMutant::CommittedIsCut))))).is_err();
    assert!((0..10).any(caught), "committed frames that are cut are noticed");
}

#[test]
fn rules_that_are_left_out_are_caught() {
    for rule in [RuleMutant::LastComerWins, RuleMutant::SequenceIsName, RuleMutant::TrimsUntold] {
        let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| local(learn(*seed, Some(rule))))).is_err();
        let caught = (0..20).find(fails);
        println!("{rule:?}: {caught:?}");
        assert!(caught.is_some(), "{rule:?} was not caught");
    }
}

//! Copies that lose no history (design note 33): who learns the map reads every version that its teller keeps, block by
//! block, whatever is pinned, released, written, cleaned and started again meanwhile.

use crate::common::*;
use crate::crash_device::{crash_device, power_cut};
use crate::history::{LEFT_OUT, Seed, Story, TINY, erase_checkpoints, open, step};
use freebs_format::disk::AppendHeader;
use freebs_format::{ExtentKind, Frame, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Base, KeptState, Learned, MapPlace, MarkChange, Options, Record, RuleMutant};
use freebs_types::{BlockRange, ErrorKind, Sequence, ShardId, Version};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SHARD: ShardId = ShardId::new(1, 0);
const SEGMENTS: u64 = 48;
const LIMIT: u64 = 64 << 20;
/// Bytes of data in a piece: few, so that there are many.
const PIECE: usize = 24 << 10;
/// Stories within which a rule that is left out must show.
const MUTANT_SEEDS: u64 = 12;

thread_local! {
    /// The teller's pins come behind the entries of its piece.
    static LATE_PINS: Cell<bool> = const { Cell::new(false) };
}

/// A log that learns, on a device that may lose power.
pub struct Learner {
    pub rig: Rig,
    pub device: CrashDevice,
    options: Options,
}

impl Learner {
    pub async fn new(s: &mut Story) -> Self {
        let device = crash_device(LIMIT, s.rng.next());
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let options = if s.rng.chance(50) { TINY } else { Options::of_workers(1) };
        Self { rig: open(&device, options).await, device, options }
    }

    /// It is stopped or loses power, and starts with or without its checkpoints.
    pub async fn again(self, s: &mut Story) -> Self {
        let Self { rig, mut device, options } = self;
        if s.rng.chance(50) {
            rig.stop().await;
        } else {
            rig.kill();
            tokio::task::yield_now().await;
            device = power_cut(&device, &mut s.rng);
        }
        if s.rng.chance(40) {
            erase_checkpoints(&device).await;
        }
        Self { rig: open(&device, options).await, device, options }
    }

    /// The frames behind its last one.
    pub async fn by_frames(&self, teller: &Rig) {
        let last = teller.engine.tip(SHARD).unwrap().0.sequence;
        let mut next = self.rig.engine.state(SHARD).map_or(Sequence(1), |s| s.last.sequence.next());
        while next <= last {
            for f in teller.engine.frames(SHARD, next, 1 << 16).await.unwrap() {
                next = f.head.seq().next();
                self.rig.append(Record::Frame(f));
            }
        }
        self.rig.settle().await;
    }
}

/// The state of the teller as of its last committed frame, as a base for who has `since`.
pub async fn base(teller: &Rig, s: &mut Story, since: u64) -> Base {
    while teller.engine.frame(SHARD, Sequence(s.committed)).await.is_err() {
        // It was given up.
        teller.append(s.write());
        teller.settle().await;
        s.committed = s.last().chain.sequence;
        teller.engine.committed(SHARD, Sequence(s.committed));
    }
    base_at(teller, since, s.committed).await
}

/// The state of the teller as of a committed frame that is still there.
pub async fn base_at(teller: &Rig, since: u64, committed: u64) -> Base {
    let frame = teller.engine.frame(SHARD, Sequence(committed)).await.unwrap();
    let h = frame.header();
    Base {
        since: Sequence(since),
        tip: Sequence(since),
        last: teller.engine.name(SHARD, Sequence(committed)).await.unwrap(),
        parent: h.parent_token(),
        digest: h.digest(),
        version: h.last_version(),
        committed: Sequence(committed),
        view_frame: None,
        attach: Default::default(),
        requests: Default::default(),
        open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
    }
}

pub fn mark(change: MarkChange) -> Record {
    Record::Mark { shard: SHARD, change, ticket: 7 }
}

pub fn keeps(kept: KeptState) -> Record {
    mark(MarkChange { kept: Some(Box::new(kept)), ..MarkChange::default() })
}

/// Learns what was placed behind `since`, while the story goes on at the teller. It may be begun several times.
async fn learn(s: &mut Story, teller: &Rig, mut learner: Learner) -> Learner {
    'transfer: loop {
        let since = learner.rig.engine.state(SHARD).map_or(0, |s| s.committed.0);
        learner.rig.append(Record::Cut { shard: SHARD, to: Sequence(since) });
        let begin = base(teller, s, since).await;
        let upto = begin.last.sequence;
        teller.engine.keep(SHARD, upto);
        let (mut place, mut told) = (Some(MapPlace::default()), KeptState::default());
        let begun_again = s.rng.chance(25);
        while let Some(at) = place {
            let since = Sequence(since);
            let piece = teller.engine.entries_with_past(SHARD, at, since, since, upto, PIECE).await;
            let (body, data, next) = piece.unwrap();
            if s.rng.chance(30) {
                step(s, teller).await;
            }
            let kept = teller.engine.kept_state(SHARD).unwrap();
            let carry = (!body.entries.is_empty()).then_some(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            let is_news = (&kept.pins, kept.retain) != (&told.pins, told.retain);
            let mark = is_news.then(|| keeps(kept.clone()));
            let records = if LATE_PINS.get() { [carry, mark] } else { [mark, carry] };
            records.into_iter().flatten().for_each(|r| learner.rig.append(r));
            (place, told) = (next, kept);
            if s.rng.chance(60) {
                step(s, teller).await;
            }
            if s.rng.chance(5) {
                let _ = learner.rig.engine.checkpoint().await;
            }
            if begun_again && s.rng.chance(10) {
                learner = learner.again(s).await;
                continue 'transfer;
            }
        }
        // The pins that came with the last piece go with the state.
        let change = MarkChange { base: Some(Box::new(begin)), kept: Some(Box::new(told)), ..MarkChange::default() };
        learner.rig.append(mark(change));
        teller.settle().await;
        learner.rig.settle().await;
        learner.by_frames(teller).await;
        return learner;
    }
}

/// Both go on, and the learner is started again now and then; then it has what the story says.
pub async fn go_on(s: &mut Story, teller: &Rig, mut learner: Learner) -> Learner {
    for round in 0..3 {
        teller.settle().await;
        learner.by_frames(teller).await;
        learner.rig.engine.committed(SHARD, Sequence(s.committed));
        assert_eq!(learner.rig.engine.history(SHARD).unwrap().whole_from, Version(0), "round {round}");
        s.compare(&learner.rig, true).await;
        let last = teller.engine.tip(SHARD).unwrap().0.sequence;
        teller.engine.keep(SHARD, Sequence(s.committed.min(last.0)));
        if round == 0 && s.rng.chance(50) {
            let _ = learner.rig.engine.checkpoint().await;
        }
        learner = learner.again(s).await;
        for _ in 0..10 {
            step(s, teller).await;
        }
    }
    learner
}

async fn story(seed: u64) {
    let mut s = Story::new(seed);
    let device = crash_device(LIMIT, seed);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let options = if s.rng.chance(50) { TINY } else { Options::of_workers(1) };
    let teller = open(&device, options).await;
    let mut learner = Learner::new(&mut s).await;
    let lags = s.rng.chance(50);
    for part in 0..2 {
        for _ in 0..40 + s.rng.below(60) {
            step(&mut s, &teller).await;
            if part == 0 && lags {
                teller.engine.keep(SHARD, Sequence(1));
            }
        }
        teller.settle().await;
        let last = s.last().chain.sequence;
        s.committed = s.committed.max(last - s.rng.below(3).min(last));
        teller.engine.committed(SHARD, Sequence(s.committed));
        if part == 0 && lags {
            learner.by_frames(&teller).await;
            teller.engine.keep(SHARD, Sequence(s.committed));
            learner.rig.engine.committed(SHARD, Sequence(s.committed));
        }
    }
    learner = learn(&mut s, &teller, learner).await;
    learner = go_on(&mut s, &teller, learner).await;
    // The copy is told on: the one that it was of is not needed any more.
    let Learner { rig: copy, .. } = learner;
    copy.engine.committed(SHARD, Sequence(s.committed));
    copy.settle().await;
    let last = copy.engine.tip(SHARD).unwrap().0.sequence.0;
    s.back_to(last, s.committed.min(last));
    teller.stop().await;
    let second = Learner::new(&mut s).await;
    let second = learn(&mut s, &copy, second).await;
    let second = go_on(&mut s, &copy, second).await;
    second.rig.stop().await;
    copy.stop().await;
}

#[test]
fn copies_read_as_the_naive_history() {
    for seed in freebs_testing::seeds(24, 2_000) {
        let guard = Seed(seed);
        local(story(seed));
        std::mem::forget(guard);
    }
}

/// The stories must be able to fail.
#[test]
fn copies_that_lose_history_are_caught() {
    let rules = [(Some(RuleMutant::PastUntold), false), (Some(RuleMutant::ReleasedPinStays), false), (None, true)];
    for (rule, late) in rules {
        LEFT_OUT.set(rule);
        LATE_PINS.set(late);
        let told = |seed: &u64| catch_unwind(AssertUnwindSafe(|| local(story(*seed)))).is_err();
        let caught = (0..MUTANT_SEEDS).find(told);
        LEFT_OUT.set(None);
        LATE_PINS.set(false);
        println!("{rule:?}, late pins {late}: caught by seed {caught:?}");
        assert!(caught.is_some(), "{rule:?}, late pins {late}: not caught by {MUTANT_SEEDS} seeds");
    }
}

pub fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill }
}

/// A teller with three pins, each of another content, and one block that has more layers than a piece has entries.
async fn teller() -> (Rig, Chain) {
    let device = crash_device(LIMIT, 1);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let rig = open(&device, Options::of_workers(1)).await;
    let mut c = Chain::new(SHARD);
    for i in 0..3 {
        rig.append(Record::Frame(c.frame(&[data(0, 20, 1000 * (i + 1))])));
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Snapshot, 0)])));
    }
    let trim = Op { extents: vec![(ExtentKind::Trim, 4, 8)], fill: 0 };
    rig.append(Record::Frame(c.frame(&[trim, data(0, 2, 9000)])));
    rig.settle().await;
    rig.engine.committed(SHARD, Sequence(c.sequence));
    (rig, c)
}

async fn same_as_at(teller: &Rig, learner: &Rig, version: u64) {
    let at = async |rig: &Rig| rig.read_version(SHARD, Some(Version(version)), 30).await.unwrap();
    assert_eq!(at(teller).await, at(learner).await, "version {version}");
}

/// All that is told of each block, in pieces of so many bytes, to one who says how far each piece went, or does not.
async fn told_in(rig: &Rig, upto: Sequence, bytes: usize, says: bool) -> BTreeSet<(u32, u64, u64, u8)> {
    let (mut told, mut place) = (BTreeSet::new(), Some(MapPlace::default()));
    while let Some(at) = place {
        let piece = rig.engine.entries_with_past(SHARD, at, Sequence(0), Sequence(0), upto, bytes).await;
        let (body, _, next) = piece.unwrap();
        for e in body.entries {
            let of = |a| (a, e.version.0, e.sequence.0, e.kind as u8);
            told.extend((e.range.start.0..e.range.start.0 + e.range.len).map(of));
        }
        place = next.map(|n| MapPlace { blocks: if says { n.blocks } else { u32::MAX }, ..n });
    }
    told
}

/// A piece may end between two entries, one above the other, that reach beyond what it looked at.
#[test]
fn small_pieces_tell_as_much_as_one() {
    local(async {
        let mut left_out = 0;
        for seed in 0..12 {
            let device = crash_device(LIMIT, seed);
            create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
            let rig = open(&device, Options::of_workers(1)).await;
            let (mut c, mut rng) = (Chain::new(SHARD), Rng::new(seed));
            // The case by hand first.
            let mut extents = vec![(0, 3), (3, 5), (3, 5)];
            extents
                .extend((0..if seed == 0 { 0 } else { 20 }).map(|_| (rng.below(60) as u32, 1 + rng.below(14) as u32)));
            for (start, len) in extents {
                rig.append(Record::Frame(c.frame(&[data(start, len, rng.below(1 << 20))])));
                rig.append(Record::Frame(c.pins(&[(UpdateKind::Snapshot, 0)])));
            }
            rig.settle().await;
            let upto = Sequence(c.sequence);
            rig.engine.committed(SHARD, upto);
            if rng.chance(50) {
                rig.engine.checkpoint().await.unwrap();
            }
            let all = told_in(&rig, upto, 1 << 20, true).await;
            for blocks in 1..=6 {
                let bytes = blocks * freebs_types::BLOCK;
                assert_eq!(told_in(&rig, upto, bytes, true).await, all, "seed {seed}, {blocks} blocks");
                left_out += usize::from(told_in(&rig, upto, bytes, false).await != all);
            }
            rig.stop().await;
        }
        assert!(left_out > 12, "it would be seen: {left_out}");
    });
}

/// Pieces of a map came, and nothing that says what is kept: the transfer was given up, and frames came instead. A pin in
/// one of them comes late, for what it needs was covered already. It is listed and not read, until the past was had again.
#[test]
fn a_pin_that_comes_late_is_not_read_before_its_past_is_here() {
    local(async {
        let (teller, c) = teller().await;
        let device = crash_device(LIMIT, 2);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let mut rig = open(&device, Options::of_workers(1)).await;
        let upto = Sequence(c.sequence);
        let (body, data, next) =
            teller.engine.entries(SHARD, freebs_types::Lba(0), Sequence(0), 1 << 20).await.unwrap();
        assert_eq!(next, None);
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        for f in teller.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap() {
            rig.append(Record::Frame(f));
        }
        rig.settle().await;
        rig.engine.committed(SHARD, upto);
        for start in 0..3 {
            let known = rig.engine.history(SHARD).unwrap();
            assert_eq!(known.pins, [pin(2), pin(4), pin(6)], "start {start}");
            assert_eq!(known.whole_from, Version(7), "start {start}");
            assert_eq!(rig.engine.state(SHARD).unwrap().whole_from, Version(7));
            for v in [2, 4, 6] {
                let found = rig.engine.read_at(SHARD, Version(v), BlockRange::new(0, 1)).await;
                assert_eq!(found.unwrap_err().kind, ErrorKind::Corrupt, "start {start}, version {v}");
            }
            same_as_at(&teller, &rig, c.version).await;
            if start == 1 {
                rig.engine.checkpoint().await.unwrap();
            }
            rig.stop().await;
            rig = open(&device, Options::of_workers(1)).await;
        }
        // All of the past, for the pins that are told and in force before it comes.
        rig.engine.committed(SHARD, upto);
        rig.append(keeps(teller.engine.kept_state(SHARD).unwrap()));
        let mut place = Some(MapPlace::default());
        while let Some(at) = place {
            let piece = teller.engine.entries_with_past(SHARD, at, upto, Sequence(0), upto, PIECE).await;
            let (body, data, next) = piece.unwrap();
            place = next;
            rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        }
        let kept = teller.engine.kept_state(SHARD).unwrap();
        rig.append(keeps(KeptState { past: Version(7), ..kept }));
        rig.settle().await;
        for start in 0..2 {
            assert_eq!(rig.engine.history(SHARD).unwrap().whole_from, Version(0), "start {start}");
            for v in [2, 4, 6, c.version] {
                same_as_at(&teller, &rig, v).await;
            }
            rig.engine.check();
            rig.engine.check_past().await.unwrap();
            rig.stop().await;
            if start == 0 {
                erase_checkpoints(&device).await;
            }
            rig = open(&device, Options::of_workers(1)).await;
        }
        rig.stop().await;
    });
}

/// All of the past was being had of a peer when a frame with a pin came late. The mark at the end, of pieces from before that
/// frame, said that history is whole.
#[test]
fn a_pin_that_comes_late_outlives_a_past_of_before() {
    local(async {
        let (teller, c) = teller().await;
        let (mut rig, device) = plain().await;
        let (body, data, next) =
            teller.engine.entries(SHARD, freebs_types::Lba(0), Sequence(0), 1 << 20).await.unwrap();
        assert_eq!(next, None);
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        let mut frames = teller.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap();
        let behind = frames.split_off(4);
        frames.into_iter().for_each(|f| rig.append(Record::Frame(f)));
        rig.settle().await;
        let until = Sequence(4);
        rig.engine.committed(SHARD, until);
        let lacks = rig.engine.history(SHARD).unwrap().whole_from;
        assert_eq!(lacks, Version(5));
        let kept = KeptState { pins: vec![pin(2), pin(4)], as_of: until, ..KeptState::default() };
        rig.append(keeps(kept.clone()));
        let piece =
            teller.engine.entries_with_past(SHARD, MapPlace::default(), until, Sequence(0), until, 1 << 20).await;
        let (body, data, next) = piece.unwrap();
        assert_eq!(next, None);
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        behind.into_iter().for_each(|f| rig.append(Record::Frame(f)));
        rig.append(keeps(KeptState { past: lacks, ..kept }));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(c.sequence));
        for start in 0..3 {
            let known = rig.engine.history(SHARD).unwrap();
            assert_eq!((known.pins, known.whole_from), (vec![pin(2), pin(4), pin(6)], Version(7)), "start {start}");
            let found = rig.engine.read_at(SHARD, Version(6), BlockRange::new(0, 4)).await;
            assert_eq!(found.unwrap_err().kind, ErrorKind::Corrupt, "start {start}");
            rig.stop().await;
            if start == 0 {
                erase_checkpoints(&device).await;
            }
            rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.committed(SHARD, Sequence(c.sequence));
        }
        rig.stop().await;
    });
}

/// A learner lacks the same as its teller, and knows it.
#[test]
fn a_copy_of_a_log_whose_history_is_not_whole_says_so() {
    local(async {
        let (teller, c) = teller().await;
        let device = crash_device(LIMIT, 2);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let rig = open(&device, Options::of_workers(1)).await;
        let kept = KeptState { whole_from: Version(5), ..teller.engine.kept_state(SHARD).unwrap() };
        rig.append(keeps(kept.clone()));
        let (since, upto) = (Sequence(0), Sequence(c.sequence));
        let piece = teller.engine.entries_with_past(SHARD, MapPlace::default(), since, since, upto, 1 << 20).await;
        let (body, data, next) = piece.unwrap();
        assert_eq!(next, None);
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        let frame = teller.engine.frame(SHARD, upto).await.unwrap();
        let h = frame.header();
        let base = Base {
            since,
            tip: since,
            last: c.name(),
            parent: h.parent_token(),
            digest: h.digest(),
            version: h.last_version(),
            committed: upto,
            view_frame: None,
            attach: Default::default(),
            requests: Default::default(),
            open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
        };
        rig.append(mark(MarkChange {
            base: Some(Box::new(base)),
            kept: Some(Box::new(kept)),
            ..MarkChange::default()
        }));
        rig.settle().await;
        let at = async |v| rig.engine.read_at(SHARD, Version(v), BlockRange::new(0, 20)).await;
        assert_eq!(rig.engine.history(SHARD).unwrap().whole_from, Version(5));
        assert_eq!(at(4).await.unwrap_err().kind, ErrorKind::Corrupt);
        same_as_at(&teller, &rig, 6).await;
        rig.stop().await;
    });
}

/// A log on a device that tests write to.
pub async fn plain() -> (Rig, MemoryDevice) {
    let device = MemoryDevice::new(4096, LIMIT);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    (Rig::open(device.clone()).await.unwrap(), device)
}

/// A frame is lost whose data a snapshot sees. What is left of it is learned of a peer that lacks the data, too: its history
/// is not whole there. The learner took itself for whole, and showed what had been there before the lost frame.
#[test]
fn lost_frames_are_learned_as_whole_as_they_are_told() {
    local(async {
        let (rig, device) = plain().await;
        let mut c = Chain::new(SHARD);
        let mut all = vec![c.frame(&[data(0, 4, 10)]), c.frame(&[data(0, 4, 25)])];
        all.extend([c.pins(&[(UpdateKind::Snapshot, 0)]), c.frame(&[data(0, 4, 50)])]);
        for f in &all {
            rig.append(Record::Frame(f.clone()));
            rig.settle().await;
        }
        let upto = Sequence(c.sequence);
        rig.engine.committed(SHARD, upto);
        assert_eq!(rig.read_version(SHARD, Some(Version(3)), 1).await.unwrap()[&0], Cell8::Data(25));
        rig.kill();
        tokio::task::yield_now().await;
        device.poke(|bytes| {
            let append_of = |f: &Frame| {
                let head = f.head.bytes();
                bytes.windows(head.len()).position(|w| w == head).expect("it is there") / 4096 * 4096
            };
            let (own, repeat) = (append_of(&all[1]), append_of(&all[2]) + size_of::<AppendHeader>());
            bytes[own..own + 4096].fill(0xee);
            bytes[repeat] ^= 1;
        });
        erase_checkpoints(&device).await;
        let mut rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.committed(SHARD, upto);
        assert_eq!(rig.engine.state(SHARD).unwrap().holes, [(Sequence(2), Sequence(2))]);
        // A log that misses a frame does not know what that one keeps; so it tells nobody that all is here.
        assert_eq!(rig.engine.kept_state(SHARD).unwrap().whole_from, Version(4));
        assert_eq!(rig.engine.whole_from(SHARD).unwrap(), Version(0));
        let learned = Learned { since: Sequence(1), upto: Sequence(2), ..Learned::default() };
        let kept = KeptState { pins: vec![pin(3)], as_of: upto, whole_from: Version(4), ..KeptState::default() };
        rig.append(mark(MarkChange {
            learned: Some(Box::new(learned)),
            kept: Some(Box::new(kept)),
            ..MarkChange::default()
        }));
        rig.settle().await;
        for start in 0..3 {
            let state = rig.engine.state(SHARD).unwrap();
            assert_eq!((state.holes, state.whole_from), (vec![], Version(4)), "start {start}");
            let found = rig.engine.read_at(SHARD, Version(3), BlockRange::new(0, 1)).await;
            assert_eq!(found.unwrap_err().kind, ErrorKind::Corrupt, "start {start}");
            assert_eq!(rig.read_all(SHARD, 1).await.unwrap()[&0], Cell8::Data(50), "start {start}");
            rig.stop().await;
            if start == 1 {
                erase_checkpoints(&device).await;
            }
            rig = Rig::open(device.clone()).await.unwrap();
        }
        rig.stop().await;
    });
}

/// The mark that says what is kept was not taken, for want of room, and the pieces came all the same. What they covered was
/// free at once, and the state at the end said that all is there: snapshots read as zeroes.
#[test]
fn pins_that_come_with_the_state_alone_are_not_read() {
    local(async {
        let (teller, c) = teller().await;
        let (mut rig, device) = plain().await;
        let (since, upto) = (Sequence(0), Sequence(c.sequence));
        let mut s = Story::new(1);
        s.committed = c.sequence;
        let piece = teller.engine.entries_with_past(SHARD, MapPlace::default(), since, since, upto, 1 << 20).await;
        let (body, data, next) = piece.unwrap();
        assert_eq!(next, None);
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        let begin = base(&teller, &mut s, 0).await;
        let kept = teller.engine.kept_state(SHARD).unwrap();
        rig.append(mark(MarkChange {
            base: Some(Box::new(begin)),
            kept: Some(Box::new(kept)),
            ..MarkChange::default()
        }));
        rig.settle().await;
        for start in 0..2 {
            assert_eq!(rig.engine.history(SHARD).unwrap().pins, [pin(2), pin(4), pin(6)], "start {start}");
            assert_eq!(rig.engine.history(SHARD).unwrap().whole_from, Version(7), "start {start}");
            let found = rig.engine.read_at(SHARD, Version(2), BlockRange::new(0, 1)).await;
            assert_eq!(found.unwrap_err().kind, ErrorKind::Corrupt, "start {start}");
            same_as_at(&teller, &rig, c.version).await;
            rig.stop().await;
            rig = Rig::open(device.clone()).await.unwrap();
        }
        rig.stop().await;
    });
}

/// Two marks were in one append, the first with what a peer keeps. The second was made before the first counted: it took back
/// what that had said, and the log called its history whole.
#[test]
fn a_mark_behind_another_one_takes_nothing_back() {
    local(async {
        let (mut rig, device) = plain().await;
        let mut c = Chain::new(SHARD);
        for fill in 0..3 {
            rig.append(Record::Frame(c.frame(&[data(0, 4, fill)])));
        }
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(3));
        let kept = KeptState { pins: vec![pin(1)], as_of: Sequence(3), ..KeptState::default() };
        rig.append(keeps(kept));
        rig.append(mark(MarkChange::default()));
        rig.settle().await;
        for start in 0..3 {
            let known = rig.engine.history(SHARD).unwrap();
            assert_eq!((known.pins, known.whole_from), (vec![pin(1)], Version(2)), "start {start}");
            rig.stop().await;
            if start == 0 {
                erase_checkpoints(&device).await;
            }
            rig = Rig::open(device.clone()).await.unwrap();
        }
        rig.stop().await;
    });
}

/// The last frames of a copy were cut, for they were not known to be committed. They came again as entries of a map, covered
/// by newer ones, with a pin between them. The next start took the entries for those of the frames that were cut, and the
/// pinned version lost their blocks.
#[test]
fn a_pin_keeps_what_comes_again_for_frames_that_were_cut() {
    const BLOCKS: u32 = 8;
    local(async {
        let device = MemoryDevice::new(4096, 8 << 20);
        let of_teller = MemoryDevice::new(4096, 8 << 20);
        for d in [&device, &of_teller] {
            create_log(d.clone(), &shape(8)).await.unwrap();
        }
        let (teller, learner) = (Rig::open(of_teller).await.unwrap(), Rig::open(device.clone()).await.unwrap());
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        for op in
            [(0, 4, 100), (1, 1, 500)].map(|(at, len, fill)| Op { extents: vec![(ExtentKind::Data, at, len)], fill })
        {
            op.apply(&mut model);
            teller.append(Record::Frame(chain.frame(&[op])));
        }
        teller.settle().await;
        for f in teller.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap() {
            learner.append(Record::Frame(f));
        }
        learner.settle().await;
        learner.engine.committed(SHARD, Sequence(1));

        teller.append(Record::Frame(chain.pins(&[(UpdateKind::Snapshot, 0)])));
        let (pinned, mut now) = (chain.version, model.clone());
        let op = Op { extents: vec![(ExtentKind::Data, 1, 1)], fill: 900 };
        op.apply(&mut now);
        teller.append(Record::Frame(chain.frame(&[op])));
        teller.settle().await;
        teller.engine.committed(SHARD, Sequence(4));

        learner.append(Record::Cut { shard: SHARD, to: Sequence(1) });
        let kept = teller.engine.kept_state(SHARD).unwrap();
        learner.append(keeps(kept.clone()));
        let (since, upto) = (Sequence(1), Sequence(4));
        let piece = teller.engine.entries_with_past(SHARD, MapPlace::default(), since, since, upto, 1 << 20).await;
        let (body, data, next) = piece.unwrap();
        assert!(next.is_none() && body.entries.len() == 2, "{body:?}");
        learner.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        let base = Some(Box::new(base_at(&teller, 1, 4).await));
        learner.append(mark(MarkChange { base, kept: Some(Box::new(kept)), ..MarkChange::default() }));
        learner.settle().await;
        let check = async |rig: &Rig, told: &str| {
            rig.engine.check();
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&now, BLOCKS), "{told}");
            let found = rig.read_version(SHARD, Some(Version(pinned)), BLOCKS).await.unwrap();
            assert_eq!(found, full(&model, BLOCKS), "{told}");
        };
        check(&learner, "learned").await;
        learner.kill();
        tokio::task::yield_now().await;
        let rig = Rig::open(device).await.unwrap();
        check(&rig, "started again").await;
        rig.stop().await;
    });
}

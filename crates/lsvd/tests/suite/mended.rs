//! What was mended stays mended, and what is lost stays missed, when the segments that told of it are given up.

use crate::common::*;
use freebs_format::disk::{APPEND_MAGIC, AppendHeader, SEGMENTS_AT, SegmentFooter};
use freebs_format::{ExtentKind, Frame, UpdateKind};
use freebs_io::Device;
use freebs_io::faults::FaultDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Base, CleanOptions, EventKind, Finding, Learned, MarkChange, Piece, Record, Scrubber};
use freebs_types::{BLOCK, BlockRange, ErrorKind, Lba, Sequence, ShardId, Version, ViewNumber};

const ONE: ShardId = ShardId::new(1, 0);
const TWO: ShardId = ShardId::new(2, 0);

fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill: fill << 32 }
}

fn off() -> CleanOptions {
    CleanOptions { enabled: false, ..CleanOptions::default() }
}

fn eager() -> CleanOptions {
    CleanOptions { share_percent: 300, target_percent: 100, batch_bytes: 2 << 20, ..CleanOptions::default() }
}

async fn idle(rig: &Rig) {
    rig.engine.flush_idle();
    for _ in 0..5000 {
        tokio::task::yield_now().await;
    }
}

async fn device() -> MemoryDevice {
    let device = MemoryDevice::new(4096, 1 << 30);
    create_log(device.clone(), &shape(60)).await.unwrap();
    device
}

async fn put(rig: &Rig, chain: &mut Chain, op: Op) -> Frame {
    let f = chain.frame(&[op]);
    rig.append(Record::Frame(f.clone()));
    rig.settle().await;
    chain.committed = chain.sequence;
    rig.engine.committed(chain.shard, Sequence(chain.sequence));
    f
}

/// Lets a log that was killed come to rest.
async fn idle_device() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Destroys the sector of a frame's head, once a log that was killed has come to rest.
async fn lose_head(device: &MemoryDevice, frame: &Frame) {
    idle_device().await;
    let head = frame.head.bytes();
    device.poke(|bytes| {
        let at = bytes.windows(head.len()).position(|w| w == head).expect("it is there") / 4096 * 4096;
        bytes[at..at + 4096].fill(0xee);
    });
}

/// Destroys what the append of a frame, alone in it, repeats of the one before.
fn lose_repeat(device: &MemoryDevice, frame: &Frame) {
    let head = frame.head.bytes();
    device.poke(|bytes| {
        let at = bytes.windows(head.len()).position(|w| w == head).expect("it is there") / 4096 * 4096;
        bytes[at + size_of::<AppendHeader>()] ^= 1;
    });
}

/// The tail was compared with the chain's.
fn trusted(shard: ShardId) -> Record {
    Record::Mark { shard, change: MarkChange { trusted: true, ..MarkChange::default() }, ticket: 1 }
}

/// Where a block of data lies on the device.
fn place(bytes: &[u8], good: &[u8]) -> usize {
    bytes.windows(BLOCK).step_by(512).position(|w| w == good).expect("it is there") * 512
}

/// A frame with a rotten block is repaired, what its first copy shared a segment with is overwritten, and the segment
/// is given up, in the normal course or by cleaning. At the next start the repair is all that is left of the frame.
async fn repaired(clean: bool) {
    let device = device().await;
    let rig = Rig::open(device.clone()).await.unwrap();
    rig.engine.set_cleaning(off());
    let mut c = Chain::new(ONE);
    let first = put(&rig, &mut c, data(0, 20, 1)).await;
    if clean {
        put(&rig, &mut c, data(400, 8, 77)).await;
    }
    for i in 0..8 {
        put(&rig, &mut c, data(20, 180, i + 2)).await;
    }
    device.poke(|bytes| {
        let at = place(bytes, &block((1 << 32) + 5));
        bytes[at + 100] ^= 1;
    });
    assert!(rig.engine.read(ONE, BlockRange::new(5, 1)).await.is_err());
    rig.append(Record::Repair(first));
    rig.settle().await;
    rig.engine.set_cleaning(if clean { eager() } else { off() });
    for i in 0..3 {
        put(&rig, &mut c, data(20, 180, i + 200)).await;
    }
    idle(&rig).await;
    assert!(rig.engine.counters().segments_freed > 0, "no segment was given up");
    let before = rig.read_all(ONE, 500).await.unwrap();
    rig.stop().await;
    let rig = Rig::open(device).await.unwrap();
    assert_eq!(rig.report.damage, []);
    assert_eq!(rig.read_all(ONE, 500).await.unwrap(), before);
}

#[test]
fn a_repaired_frame_outlives_its_first_copy() {
    local(repaired(false));
    local(repaired(true));
}

/// Written all the same, it would be taken for the frame once nothing tells of that one any more.
#[test]
fn a_repair_for_another_frame_is_not_written() {
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        let (mut c, mut other) = (Chain::new(ONE), Chain::new(ONE));
        put(&rig, &mut c, data(0, 4, 1)).await;
        let before = rig.engine.counters().appends;
        rig.engine.append(Record::Repair(other.frame(&[data(0, 4, 9)])));
        rig.engine.append(Record::Repair(Chain::new(TWO).frame(&[data(0, 4, 9)])));
        idle(&rig).await;
        let refused = rig.engine.events().iter().filter(|e| e.kind == EventKind::Refused).count();
        assert_eq!(refused, 2);
        let idle_append = 1;
        assert!(rig.engine.counters().appends <= before + idle_append, "it was written");
        rig.stop().await;
        let rig = Rig::open(device).await.unwrap();
        assert_eq!(rig.report.damage, []);
        assert_eq!(rig.report.frames, 1);
    });
}

/// Rot in a block that nothing but a kept version sees was asked of others as they are now, who never had the bytes that
/// match. It is asked for at a version that sees it.
#[test]
fn damaged_history_is_mended_from_the_past() {
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let mut c = Chain::new(ONE);
        put(&rig, &mut c, data(0, 20, 1)).await;
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Snapshot, 0)])));
        let pinned = Version(c.version);
        put(&rig, &mut c, data(0, 20, 2)).await;
        for i in 0..16 {
            put(&rig, &mut c, data(20, 180, i + 3)).await;
        }
        let good = block((1 << 32) + 5);
        device.poke(|bytes| {
            let at = place(bytes, &good);
            bytes[at + 100] ^= 1;
        });
        let one = BlockRange::new(5, 1);
        assert_eq!(rig.engine.read_at(ONE, pinned, one).await.unwrap_err().kind, ErrorKind::Corrupt);
        assert!(rig.engine.has_suspects());
        let mut scrubber = Scrubber::new(rig.engine.clone());
        while !scrubber.step(1 << 20).await.unwrap().pass_complete {}
        let found = rig.engine.take_damaged(16);
        assert_eq!(found.iter().map(|d| (d.shard, d.range, d.seen_at)).collect::<Vec<_>>(), [(ONE, one, pinned)]);
        let now = rig.engine.read(ONE, one).await.unwrap().data.concat();
        assert_eq!(
            rig.engine.mend(found[0].id, &now.into()).unwrap_err().kind,
            ErrorKind::Corrupt,
            "the present is another"
        );
        assert_eq!(rig.engine.mend(found[0].id, &good).unwrap(), 1);
        idle(&rig).await;
        assert_eq!(rig.engine.read_at(ONE, pinned, one).await.unwrap().data.concat(), good);
        rig.stop().await;
    });
}

/// The last frame of TWO is lost in a damaged append among frames of ONE. When these are overwritten, the segment must
/// stay: nothing else says that TWO may miss something (rule E7).
async fn suspected(clean: bool) {
    let device = device().await;
    let rig = Rig::open(device.clone()).await.unwrap();
    rig.engine.set_cleaning(off());
    let (mut a, mut b) = (Chain::new(ONE), Chain::new(TWO));
    put(&rig, &mut b, data(0, 4, 1)).await;
    put(&rig, &mut a, data(0, 200, 2)).await;
    put(&rig, &mut a, data(200, 200, 3)).await;
    let lost = put(&rig, &mut b, data(0, 4, 4)).await;
    // It repeats the lost one, and its own header is lost, too.
    let behind = put(&rig, &mut a, data(400, 4, 5)).await;
    put(&rig, &mut a, data(404, 4, 6)).await;
    rig.kill();
    lose_head(&device, &lost).await;
    lose_head(&device, &behind).await;

    let rig = Rig::open(device.clone()).await.unwrap();
    let state = rig.engine.state(TWO).unwrap();
    assert!(state.suspect_tail && state.last.sequence.0 == 1);
    rig.engine.set_cleaning(if clean { eager() } else { off() });
    for i in 0..4 {
        put(&rig, &mut a, data(200, 200, i + 10)).await;
        put(&rig, &mut a, data(400, 4, i + 30)).await;
    }
    idle(&rig).await;
    rig.stop().await;
    let rig = Rig::open(device.clone()).await.unwrap();
    assert!(rig.engine.state(TWO).unwrap().suspect_tail, "the lost tail is forgotten");

    // A frame that comes does not mend it, also not over a start: more may be missing.
    rig.append(Record::Frame(lost));
    rig.settle().await;
    assert!(rig.engine.state(TWO).unwrap().suspect_tail);
    rig.stop().await;
    let rig = Rig::open(device.clone()).await.unwrap();
    assert!(rig.engine.state(TWO).unwrap().suspect_tail, "half of what was lost is here");
    rig.engine.set_cleaning(if clean { eager() } else { off() });
    // Compared with the chain, it need not be remembered.
    rig.append(trusted(TWO));
    rig.settle().await;
    rig.engine.committed(TWO, Sequence(2));
    for i in 0..12 {
        put(&rig, &mut a, data(0, 200, i + 50)).await;
        put(&rig, &mut a, data(200, 204, i + 70)).await;
    }
    idle(&rig).await;
    rig.stop().await;
    let rig = Rig::open(device).await.unwrap();
    assert!(!rig.engine.state(TWO).unwrap().suspect_tail);
}

#[test]
fn a_suspect_tail_is_not_forgotten() {
    local(suspected(false));
    local(suspected(true));
}

/// A whole segment is lost. Its number stays in the live tables until those that miss something are mended, and its
/// place is not written over.
#[test]
fn a_lost_segment_is_missed_until_its_shards_are_mended() {
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let (mut a, mut b, mut c) = (Chain::new(ONE), Chain::new(TWO), Chain::new(ShardId::new(3, 0)));
        put(&rig, &mut b, data(0, 4, 1)).await;
        put(&rig, &mut a, data(0, 200, 2)).await;
        put(&rig, &mut a, data(200, 200, 3)).await;
        let lost = put(&rig, &mut b, data(0, 4, 4)).await;
        put(&rig, &mut a, data(400, 200, 5)).await;
        put(&rig, &mut a, data(600, 200, 6)).await;
        rig.stop().await;
        device.poke(|bytes| {
            let segment = place(bytes, &block((4 << 32) + 1)) / SEGMENT as usize;
            bytes[segment * SEGMENT as usize..(segment + 1) * SEGMENT as usize].fill(0xee);
        });
        for round in 0..2 {
            let rig = Rig::open(device.clone()).await.unwrap();
            assert!(rig.report.damage.iter().any(|f| f.what.contains("whole segment is lost")), "start {round}");
            let state = rig.engine.state(TWO).unwrap();
            assert!(state.suspect_tail && state.last.sequence.0 == 1, "start {round}: {state:?}");
            for i in 0..4 {
                put(&rig, &mut c, data(0, 200, 40 + 10 * round + i)).await;
            }
            rig.stop().await;
        }
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.append(Record::Frame(lost));
        rig.append(trusted(TWO));
        rig.settle().await;
        assert!(!rig.engine.state(TWO).unwrap().suspect_tail);
        rig.stop().await;
    });
}

/// The last frame is lost, and a mark behind it says that it was here: the mark stands in for it until the frame is
/// repaired, and then the frame can be committed or cut like any other.
#[test]
fn a_repaired_frame_takes_the_place_of_the_mark_that_named_it() {
    for is_cut in [false, true] {
        local(async {
            let device = device().await;
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.set_cleaning(off());
            let mut c = Chain::new(ONE);
            put(&rig, &mut c, data(0, 4, 1)).await;
            let lost = c.frame(&[data(0, 4, 2)]);
            rig.append(Record::Frame(lost.clone()));
            rig.settle().await;
            rig.append(Record::Mark { shard: ONE, change: MarkChange::default(), ticket: 1 });
            rig.settle().await;
            rig.kill();
            lose_head(&device, &lost).await;

            let rig = Rig::open(device.clone()).await.unwrap();
            let state = rig.engine.state(ONE).unwrap();
            assert_eq!((state.last.sequence, state.committed), (Sequence(2), Sequence(1)), "the mark was read");
            rig.append(Record::Repair(lost.clone()));
            rig.settle().await;
            if is_cut {
                rig.append(Record::Cut { shard: ONE, to: Sequence(1) });
                rig.settle().await;
                assert_eq!(rig.engine.state(ONE).unwrap().last.sequence, Sequence(1));
            } else {
                rig.engine.committed(ONE, Sequence(2));
            }
            let version = if is_cut { 1 } else { 2 };
            let read = rig.engine.read(ONE, BlockRange::new(0, 4)).await.unwrap();
            let expected: Vec<_> = (0..4).map(|i| block((version << 32) + i)).collect();
            assert_eq!(read.data.concat(), expected.concat());
            rig.stop().await;
        });
    }
}

/// All that a replica has of a shard goes to another one, but for what says so.
async fn learn(from: &Rig, to: &Rig) {
    let mut at = Some(Lba(0));
    while let Some(lba) = at {
        let (body, data, next) = from.engine.entries(TWO, lba, Sequence(0), 1 << 18).await.unwrap();
        to.append(Record::Carry { shard: TWO, body, data, ticket: 1 });
        at = next;
    }
    to.settle().await;
}

fn say(to: &Rig, change: MarkChange) {
    to.append(Record::Mark { shard: TWO, change, ticket: 2 });
}

/// The state of a shard as its last frame left it.
async fn base(of: &Rig, chain: &Chain) -> Base {
    let last = of.engine.frame(TWO, Sequence(chain.sequence)).await.unwrap();
    let h = last.header();
    Base {
        since: Sequence(0),
        tip: Sequence(0),
        last: chain.name(),
        parent: h.parent_token(),
        digest: h.digest(),
        version: h.last_version(),
        committed: Sequence(chain.sequence),
        view_frame: None,
        attach: Default::default(),
        requests: Default::default(),
        open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
    }
}

/// The log goes on where a segment is lost that held a part of a map which had been learned. The mark behind it said that
/// nothing was missing, and went on saying so: blocks read as if they had never been written.
async fn learned_and_lost(early: bool, kill: bool, more: u64) {
    let (theirs, ours) = (Rig::open(device().await).await.unwrap(), device().await);
    let mut b = Chain::new(TWO);
    for i in 0..4 {
        put(&theirs, &mut b, data(i * 200, 200, u64::from(i) + 2)).await;
    }
    let all = theirs.read_all(TWO, 800).await.unwrap();
    let rig = Rig::open(ours.clone()).await.unwrap();
    rig.engine.set_cleaning(off());
    let mut a = Chain::new(ONE);
    put(&rig, &mut a, data(0, 200, 20)).await;
    let base = MarkChange { base: Some(Box::new(base(&theirs, &b).await)), early, ..MarkChange::default() };
    if early {
        say(&rig, base);
        learn(&theirs, &rig).await;
        let learned = Learned { upto: Sequence(b.sequence), ..Learned::default() };
        say(&rig, MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() });
    } else {
        learn(&theirs, &rig).await;
        say(&rig, base);
    }
    for i in 0..4 {
        put(&rig, &mut a, data(0, 200, 30 + i)).await;
    }
    assert_eq!(rig.read_all(TWO, 800).await.unwrap(), all);
    rig.stop().await;
    ours.poke(|bytes| {
        let segment = place(bytes, &block((4 << 32) + 450)) / SEGMENT as usize;
        bytes[segment * SEGMENT as usize..(segment + 1) * SEGMENT as usize].fill(0xee);
    });
    let mut rig = Rig::open(ours.clone()).await.unwrap();
    for start in 0..3 {
        assert!(rig.report.damage.iter().any(|f| f.what.contains("whole segment is lost")), "start {start}");
        let state = rig.engine.state(TWO).unwrap();
        assert!(!state.holes.is_empty(), "start {start}: a part of the map is lost, and nothing is missed: {state:?}");
        rig.stop().await;
        rig = Rig::open(ours.clone()).await.unwrap();
    }
    // It is learned once more: then nothing is missed any more, at this start and at the next ones.
    rig.engine.set_cleaning(off());
    for shard in [ONE, TWO] {
        rig.append(trusted(shard));
    }
    for i in 0..more {
        put(&rig, &mut a, data(0, 200, 40 + i)).await;
    }
    learn(&theirs, &rig).await;
    let learned = Learned { upto: Sequence(b.sequence), ..Learned::default() };
    say(&rig, MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() });
    rig.settle().await;
    assert_eq!(rig.engine.state(TWO).unwrap().holes, []);
    if kill {
        rig.kill();
    } else {
        rig.stop().await;
    }
    for start in 0..3 {
        let rig = Rig::open(ours.clone()).await.unwrap();
        assert_eq!(rig.engine.state(TWO).unwrap().holes, [], "start {start}");
        assert_eq!(rig.read_all(TWO, 800).await.unwrap(), all, "start {start}");
        for i in 0..3 {
            put(&rig, &mut a, data(0, 200, 60 + 10 * start + i)).await;
        }
        rig.stop().await;
    }
}

#[test]
fn a_learned_map_whose_segment_is_lost_is_missed() {
    for (early, more) in (0..3).flat_map(|more| [(false, more), (true, more)]) {
        local(learned_and_lost(early, false, more));
        local(learned_and_lost(early, true, more));
    }
}

/// Two frames of the last log that is left are lost, and given up by force: one mark says so of all from the first to the last of
/// them (V10). The sound frames between them stay, at the next starts, too, and what the lost ones wrote is undone.
#[test]
fn frames_between_those_that_are_given_up_stay() {
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let mut c = Chain::new(TWO);
        let (mut all, mut model) = (Vec::new(), Model::new());
        // The third and the sixth are lost; the fifth has a part of what the third wrote.
        for (start, fill) in [(0, 1), (4, 2), (0, 3), (8, 4), (1, 5), (12, 6), (16, 7), (17, 8)] {
            let op = data(start, 4, fill);
            if ![3, 6].contains(&fill) {
                op.apply(&mut model);
            }
            all.push(put(&rig, &mut c, op).await);
        }
        rig.kill();
        for lost in [2, 5] {
            lose_head(&device, &all[lost]).await;
            lose_repeat(&device, &all[lost + 1]);
        }
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let holes = [3, 6].map(|s| (Sequence(s), Sequence(s)));
        assert_eq!(rig.engine.state(TWO).unwrap().holes, holes);
        assert!(rig.read_all(TWO, 20).await.is_err(), "a hole hides older blocks");
        // Blocks that the lost frames wrote, or may have written, are not told as zeroes.
        let kinds = rig.engine.block_status(TWO, BlockRange { start: Lba(0), len: 40 }).await.unwrap();
        assert_eq!(kinds, [Piece { kind: ExtentKind::Data, blocks: 40, changed: false }]);
        let given_up = ViewNumber(7);
        let learned = Learned { since: Sequence(2), upto: Sequence(6), given_up, ..Learned::default() };
        say(&rig, MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() });
        rig.settle().await;
        rig.kill();
        for start in 0..4 {
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.set_cleaning(off());
            let state = rig.engine.state(TWO).unwrap();
            assert_eq!((state.holes, state.last), (vec![], c.name()), "start {start}");
            assert_eq!(state.given_up, given_up, "start {start}: a checkpoint knows of it, too");
            for s in [1, 2, 4, 5, 7] {
                let here = rig.engine.frame(TWO, Sequence(s)).await.unwrap();
                assert_eq!(here.header().hid(), all[s as usize - 1].header().hid(), "start {start}: frame {s}");
            }
            assert_eq!(rig.read_all(TWO, 20).await.unwrap(), full(&model, 20), "start {start}");
            // With checkpoints, too.
            if start % 2 > 0 { rig.stop().await } else { rig.kill() }
        }
    });
}

/// Frame 3 is given up. What was pinned behind it had what lay below, without an error, and said that it was whole.
#[test]
fn versions_behind_frames_that_are_given_up_are_not_kept() {
    // The last pin is known to be committed by then, or not; a log that was stopped begins with a checkpoint.
    for (is_committed, stops) in [(true, false), (true, true), (false, false)] {
        local(async {
            let device = device().await;
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.set_cleaning(off());
            let mut c = Chain::new(TWO);
            let mut all = vec![put(&rig, &mut c, data(0, 4, 1)).await];
            let pin = async |c: &mut Chain| {
                let frame = c.pins(&[(UpdateKind::Snapshot, 0)]);
                rig.append(Record::Frame(frame.clone()));
                rig.settle().await;
                frame
            };
            all.push(pin(&mut c).await);
            all.push(put(&rig, &mut c, data(0, 4, 3)).await);
            all.push(put(&rig, &mut c, data(8, 4, 4)).await);
            all.push(pin(&mut c).await);
            if is_committed {
                c.committed = c.sequence;
                rig.engine.committed(TWO, Sequence(c.sequence));
            }
            for start in [0, 16] {
                let frame = c.frame(&[data(start, 4, 6)]);
                rig.append(Record::Frame(frame.clone()));
                rig.settle().await;
            }
            rig.kill();
            lose_head(&device, &all[2]).await;
            lose_repeat(&device, &all[3]);
            if stops {
                Rig::open(device.clone()).await.unwrap().stop().await;
            }
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.set_cleaning(off());
            let learned =
                Learned { since: Sequence(2), upto: Sequence(3), given_up: ViewNumber(7), ..Learned::default() };
            say(&rig, MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() });
            // A mark behind it that knows of no such thing.
            say(&rig, MarkChange { promised: Some(ViewNumber(8)), ..MarkChange::default() });
            rig.settle().await;
            rig.engine.committed(TWO, Sequence(c.sequence));
            rig.kill();
            for start in 0..4 {
                let rig = Rig::open(device.clone()).await.unwrap();
                rig.engine.set_cleaning(off());
                rig.engine.committed(TWO, Sequence(c.sequence));
                let at = async |v| rig.engine.read_at(TWO, Version(v), BlockRange::new(0, 4)).await.map_err(|e| e.kind);
                let whole_from = rig.engine.state(TWO).unwrap().whole_from;
                let what = format!("start {start}, committed: {is_committed}, stops: {stops}");
                if is_committed {
                    assert_eq!(at(5).await.err(), Some(ErrorKind::NotFound), "{what}: nobody has what it was");
                    assert!(at(2).await.is_ok(), "{what}: what is before the lost frame is whole");
                    assert_eq!(whole_from, Version(0), "{what}");
                } else {
                    assert_eq!(at(5).await.err(), Some(ErrorKind::Corrupt), "{what}");
                    assert_eq!(whole_from, Version(6), "{what}");
                }
                if start % 2 > 0 { rig.stop().await } else { rig.kill() }
            }
        });
    }
}

/// The footer of one segment gives it a number above that of the segment which names it as live.
#[test]
fn a_segment_that_is_named_and_used_again_is_lost_as_it_was() {
    use zerocopy::IntoBytes;
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(off());
        let mut c = Chain::new(TWO);
        for i in 0..3 {
            put(&rig, &mut c, data(1000 * i, 200, u64::from(i))).await;
        }
        assert_eq!(rig.engine.counters().segments_opened, 3);
        rig.kill();
        idle_device().await;
        device.poke(|bytes| {
            let at = (SEGMENTS_AT + SEGMENT) as usize;
            let segment = &mut bytes[at..at + SEGMENT as usize];
            let mut f = SegmentFooter::decode(segment, SEGMENT).unwrap();
            assert_eq!(f.segment_seq.get(), 2);
            f.segment_seq = 4.into();
            let (from, len) = (f.index_at.get() as usize, f.index_len.get() as usize);
            let index = segment[from..from + len].to_vec();
            f.finish(&index);
            let end = segment.len();
            segment[end - size_of::<SegmentFooter>()..].copy_from_slice(f.as_bytes());
        });
        let rig = Rig::open(device.clone()).await.unwrap();
        let told = |f: &&Finding| f.segment == Some(1) && f.what.contains("the whole segment is lost");
        assert!(rig.report.damage.iter().any(|f| told(&f)), "{:?}", rig.report.damage);
    });
}

/// The first append of a segment, with the last frame of a shard that is quiet from then on, can't be read at one start.
/// The segment before is given up, which alone tells that an append is missing.
#[test]
fn a_quiet_shard_stays_suspect() {
    local(async {
        let device = device().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        let (mut quiet, mut busy) = (Chain::new(ONE), Chain::new(TWO));
        put(&rig, &mut quiet, data(0, 60, 1)).await;
        for i in 0..3 {
            put(&rig, &mut busy, data(0, 200, 10 + i)).await;
        }
        put(&rig, &mut quiet, data(0, 60, 2)).await;
        rig.kill();
        idle_device().await;
        let bytes = device.read(0, device.len() as usize).await.unwrap();
        let appends = (SEGMENTS_AT as usize..bytes.len())
            .step_by(4096)
            .filter(|at| bytes[*at..].starts_with(&APPEND_MAGIC))
            .filter_map(|at| Some((AppendHeader::decode(&bytes[at..at + size_of::<AppendHeader>()]).ok()?, at as u64)));
        let last = appends.max_by_key(|(h, _)| h.number.get()).unwrap();
        assert_eq!(last.0.offset.get(), 0);
        let faulty = FaultDevice::new(device.clone());
        faulty.spoil(last.1);
        let rig = Rig::open(faulty.clone()).await.unwrap();
        let state = rig.engine.state(ONE).unwrap();
        assert!(state.suspect_tail && state.last.sequence == Sequence(1), "{state:?}");
        // The other shard is mended by its peers.
        rig.append(trusted(TWO));
        let learned = Learned { upto: Sequence(busy.sequence), ..Learned::default() };
        say(&rig, MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() });
        rig.settle().await;
        for i in 0..40 {
            put(&rig, &mut busy, data(0, 200, 30 + i)).await;
            idle(&rig).await;
        }
        assert!(rig.engine.counters().segments_freed > 0);
        rig.kill();
        idle_device().await;
        let rig = Rig::open(faulty.clone()).await.unwrap();
        assert!(rig.engine.state(ONE).unwrap().suspect_tail, "{:?}", rig.report.damage);
    });
}

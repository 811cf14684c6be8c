//! Blocks that nobody can read any more: all else is told to who makes a copy, and there, too, to read them fails. They are
//! mended when somebody turns up who has them.

use crate::common::*;
use crate::copies::{base, data, keeps, mark, plain};
use crate::history::{Story, erase_checkpoints};
use freebs_format::{CarryBody, ExtentKind, UpdateKind};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, MapPlace, MarkChange, Record, Scrubber};
use freebs_types::{BLOCK, BlockRange, ErrorKind, Result, Sequence, ShardId, Version};
use std::collections::{BTreeMap, BTreeSet};

const SHARD: ShardId = ShardId::new(1, 0);
const BLOCKS: u32 = 30;

type Piece = (CarryBody, Vec<bytes::Bytes>, Option<MapPlace>);

/// One bit of each copy of a block on the device.
pub fn rot(device: &MemoryDevice, fill: u64) {
    let block = block(fill);
    let mut found = 0;
    device.poke(|bytes| {
        for b in bytes.chunks_exact_mut(512).filter(|b| **b == block[..512]) {
            b[100] ^= 4;
            found += 1;
        }
    });
    assert!(found > 0, "block {fill} is on the device");
}

/// A piece, asked for until it is told. Nobody else has what is damaged.
async fn piece(rig: &Rig, at: MapPlace, upto: Sequence, bytes: usize) -> Result<Piece> {
    let mut found = Err(freebs_types::Error::bug("never asked"));
    for _ in 0..4 {
        found = rig.engine.entries_with_past(SHARD, at, Sequence(0), Sequence(0), upto, bytes).await;
        match &found {
            Err(e) => assert_eq!(e.kind, ErrorKind::Corrupt),
            Ok(_) => break,
        }
        rig.engine.take_damaged(100).iter().for_each(|d| rig.engine.unmended(d.id));
    }
    found
}

/// A teller with a snapshot of version 1, of which it has no block any more that is written over since, and a block in force
/// that it has not, either.
async fn teller() -> (Rig, MemoryDevice, Chain) {
    let (rig, device) = plain().await;
    let mut c = Chain::new(SHARD);
    rig.append(Record::Frame(c.frame(&[data(0, 20, 1000)])));
    rig.append(Record::Frame(c.pins(&[(UpdateKind::Snapshot, 0)])));
    rig.append(Record::Frame(c.frame(&[data(5, 3, 2000)])));
    rig.append(Record::Frame(c.frame(&[Op { extents: vec![(ExtentKind::Trim, 18, 2)], fill: 0 }])));
    rig.settle().await;
    rig.engine.committed(SHARD, Sequence(c.sequence));
    (rig, device, c)
}

/// All that it tells, in pieces of so many bytes, and the state at the end.
async fn told(rig: &Rig, c: &Chain, bytes: usize) -> Vec<Record> {
    let upto = Sequence(c.sequence);
    let kept = rig.engine.kept_state(SHARD).unwrap();
    let (mut out, mut place) = (vec![keeps(kept.clone())], Some(MapPlace::default()));
    while let Some(at) = place {
        let (body, data, next) = piece(rig, at, upto, bytes).await.unwrap();
        out.push(Record::Carry { shard: SHARD, body, data, ticket: 1 });
        place = next;
    }
    let mut s = Story::new(1);
    s.committed = c.sequence;
    let begin = base(rig, &mut s, 0).await;
    out.push(mark(MarkChange { base: Some(Box::new(begin)), kept: Some(Box::new(kept)), ..MarkChange::default() }));
    out
}

/// Block by block: content, or the kind of error.
async fn cells(rig: &Rig, version: Option<u64>) -> Vec<Result<Cell8, ErrorKind>> {
    let mut out = Vec::new();
    for lba in 0..BLOCKS {
        let range = BlockRange::new(lba, 1);
        let read = match version {
            None => rig.engine.read(SHARD, range).await,
            Some(v) => rig.engine.read_at(SHARD, Version(v), range).await,
        };
        out.push(read.map_err(|e| e.kind).map(|r| match r.pieces[0].kind {
            ExtentKind::Trim => Cell8::Trim,
            ExtentKind::Zero => Cell8::Zero,
            ExtentKind::Data => Cell8::Data(u64::from_le_bytes(r.data[0][..8].try_into().unwrap())),
        }));
    }
    out
}

fn bad(cells: &[Result<Cell8, ErrorKind>]) -> Vec<usize> {
    let is_bad = |c: &Result<Cell8, ErrorKind>| *c == Err(ErrorKind::Corrupt);
    cells.iter().enumerate().filter(|(_, c)| is_bad(c)).map(|(i, _)| i).collect()
}

/// A block had rotted on the last copy. Each piece with it was refused, for ever, so no new copy could be made.
#[test]
fn a_block_that_nobody_has_keeps_nobody_from_learning_the_others() {
    local(async {
        for bytes in [BLOCK, 3 * BLOCK, 1 << 20] {
            let (teller, device, c) = teller().await;
            // Seen by the snapshot only, and in force.
            rot(&device, 1006);
            rot(&device, 2007);
            rot(&device, 1010);
            let then = [cells(&teller, None).await, cells(&teller, Some(2)).await];
            assert_eq!([bad(&then[0]), bad(&then[1])], [vec![7, 10], vec![6, 10]]);
            let (mut rig, device) = plain().await;
            told(&teller, &c, bytes).await.into_iter().for_each(|r| rig.append(r));
            rig.settle().await;
            for start in 0..3 {
                assert_eq!([cells(&rig, None).await, cells(&rig, Some(2)).await], then, "start {start}");
                rig.engine.check();
                rig.stop().await;
                if start == 1 {
                    erase_checkpoints(&device).await;
                }
                rig = Rig::open(device.clone()).await.unwrap();
                assert_eq!(rig.report.damage, [], "start {start}");
            }
            rig.stop().await;
            teller.stop().await;
        }
    });
}

/// The records that a learner gets of a teller with three damaged blocks.
async fn told_with_damage() -> (Vec<Record>, Chain) {
    let (teller, device, c) = teller().await;
    [1006, 2007, 1010].into_iter().for_each(|fill| rot(&device, fill));
    let told = told(&teller, &c, 1 << 20).await;
    teller.stop().await;
    (told, c)
}

fn carries(told: &[Record]) -> Vec<Record> {
    told.iter().filter(|r| matches!(r, Record::Carry { .. })).cloned().collect()
}

/// Data at the end of the log that do not match their CRC are taken for an append that was torn, and taken off: with all that
/// others have in it.
#[test]
fn what_stands_in_for_lost_blocks_is_no_torn_append() {
    local(async {
        let (told, _) = told_with_damage().await;
        let (rig, device) = plain().await;
        let other = ShardId::new(2, 0);
        carries(&told).into_iter().for_each(|r| rig.append(r));
        rig.append(Record::Frame(Chain::new(other).frame(&[data(3, 1, 500)])));
        rig.settle().await;
        assert_eq!(rig.engine.counters().appends, 1);
        rig.kill();
        tokio::task::yield_now().await;
        let again = Rig::open(device).await.unwrap();
        assert_eq!(again.report.damage, []);
        assert_eq!(again.engine.state(other).unwrap().last.sequence, Sequence(1));
        assert_eq!(again.read_all(other, 4).await.unwrap()[&3], Cell8::Data(503));
        again.stop().await;
    });
}

/// A block that its teller has lost may be here: as it came with its frame, or from another teller.
#[test]
fn what_stands_in_for_lost_blocks_takes_the_place_of_none() {
    local(async {
        let (sound, _, c) = teller().await;
        let then = [cells(&sound, None).await, cells(&sound, Some(2)).await];
        assert_eq!([bad(&then[0]), bad(&then[1])], [vec![0; 0], vec![]]);
        let (good, (lost, _)) = (told(&sound, &c, 1 << 20).await, told_with_damage().await);
        for by_frames in [true, false] {
            let (mut rig, device) = plain().await;
            if by_frames {
                for f in sound.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap() {
                    rig.append(Record::Frame(f));
                }
                rig.settle().await;
                rig.engine.committed(SHARD, Sequence(c.sequence));
                // As history is had again: what the teller keeps, then its pieces.
                lost[..lost.len() - 1].iter().for_each(|r| rig.append(r.clone()));
            } else {
                // All at once, as when one transfer follows the other.
                let (pieces, end) = good.split_at(good.len() - 1);
                pieces.iter().cloned().chain(carries(&lost)).chain(end.to_vec()).for_each(|r| rig.append(r));
            }
            rig.settle().await;
            for start in 0..3 {
                let found = [cells(&rig, None).await, cells(&rig, Some(2)).await];
                assert_eq!(found, then, "by frames: {by_frames}, start {start}");
                rig.engine.check();
                rig.stop().await;
                if start == 1 {
                    erase_checkpoints(&device).await;
                }
                rig = Rig::open(device.clone()).await.unwrap();
            }
            rig.stop().await;
        }
        sound.stop().await;
    });
}

/// The segments of stand-ins, as the scrub finds them.
async fn stand_ins(rig: &Rig) -> Vec<Option<u32>> {
    let mut scrubber = Scrubber::new(rig.engine.clone());
    let step = scrubber.step(u64::MAX).await.unwrap();
    assert!(step.pass_complete && step.findings.iter().all(|f| f.what.contains("nobody had")), "{:?}", step.findings);
    step.findings.iter().map(|f| f.segment).collect()
}

/// Cleaning moves what stands in for lost blocks, the scrub finds it as damage, and who has the blocks mends them.
#[test]
fn what_stands_in_for_lost_blocks_is_moved_and_mended() {
    local(async {
        let (told, mut c) = told_with_damage().await;
        let (rig, device) = plain().await;
        let options = CleanOptions { share_percent: 300, target_percent: 100, ..CleanOptions::default() };
        rig.engine.set_cleaning(options);
        told.into_iter().for_each(|r| rig.append(r));
        rig.settle().await;
        let then = [cells(&rig, None).await, cells(&rig, Some(2)).await];
        assert_eq!([bad(&then[0]), bad(&then[1])], [vec![7, 10], vec![6, 10]]);
        let (mut rng, mut found) = (Rng::new(6), BTreeSet::new());
        for i in 1..4000u64 {
            c.committed = c.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, 100 + rng.below(1000) as u32, 4)], fill: i << 32 };
            rig.append(Record::Frame(c.frame(&[op])));
            rig.settle().await;
            if i % 500 == 0 {
                found.extend(stand_ins(&rig).await.into_iter().flatten());
            }
        }
        assert!(found.len() > 1, "they are moved: {found:?}");
        assert_eq!([cells(&rig, None).await, cells(&rig, Some(2)).await], then);
        let mut wanted = Vec::new();
        for i in 4000..10_000u64 {
            c.committed = c.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, 100 + rng.below(1000) as u32, 4)], fill: i << 32 };
            rig.append(Record::Frame(c.frame(&[op])));
            rig.settle().await;
            if i % 100 == 0 {
                // Those in the open segment are not looked at, and those that were found may be elsewhere by now.
                stand_ins(&rig).await;
                wanted = rig.engine.take_damaged(100);
                let lbas: BTreeSet<u32> = wanted.iter().flat_map(|d| d.range.start.0..d.range.end() as u32).collect();
                if lbas == BTreeSet::from([6, 7, 10]) {
                    break;
                }
            }
            assert!(i < 9999, "they are found: {wanted:?}");
        }
        for d in wanted {
            let all = BTreeMap::from([(6, 1006), (7, 2007), (10, 1010)]);
            let bytes: Vec<u8> =
                (d.range.start.0..d.range.end() as u32).flat_map(|lba| block(all[&lba]).to_vec()).collect();
            for _ in 0..1000 {
                match rig.engine.mend(d.id, &bytes.clone().into()) {
                    Err(e) if e.kind == ErrorKind::Retry => tokio::task::yield_now().await,
                    end => {
                        assert_eq!(end.unwrap(), d.range.len);
                        break;
                    }
                }
            }
        }
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stand_ins(&rig).await, [], "what is dead is no damage of this log");
        rig.stop().await;
        let again = Rig::open(device).await.unwrap();
        let found = [cells(&again, None).await, cells(&again, Some(2)).await];
        assert_eq!([bad(&found[0]), bad(&found[1])], [vec![0; 0], vec![]]);
        let of = |i: usize, lba: usize| found[i][lba];
        assert_eq!([of(0, 7), of(0, 10), of(1, 6)], [2007, 1010, 1006].map(|fill| Ok(Cell8::Data(fill))));
        again.stop().await;
    });
}

/// The block of a frame rotted and was mended, which gave it another place. The frame was read from the first one only: nobody
/// who lacked it could be given it.
#[test]
fn a_frame_whose_block_was_mended_is_whole() {
    local(async {
        let (rig, device, c) = teller().await;
        rot(&device, 1010);
        let read = rig.engine.frames(SHARD, Sequence(1), 1 << 20).await;
        assert_eq!(read.unwrap_err().kind, ErrorKind::Corrupt);
        assert!(rig.engine.has_suspects());
        let place = MapPlace::default();
        let told = rig.engine.entries_with_past(SHARD, place, Sequence(0), Sequence(0), Sequence(c.sequence), 1 << 20);
        assert_eq!(told.await.unwrap_err().kind, ErrorKind::Corrupt);
        let wanted = rig.engine.take_damaged(100);
        assert_eq!(wanted.iter().map(|d| d.range).collect::<Vec<_>>(), [BlockRange::new(10, 1)]);
        assert_eq!(rig.engine.mend(wanted[0].id, &block(1010)).unwrap(), 1);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let frames = rig.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap();
        assert_eq!(frames.len() as u64, c.sequence);
        frames.iter().for_each(|f| f.verify_data().unwrap());
        rig.stop().await;
    });
}

/// Where heads refuse for want of room no block was mended, and the copies that had it went away one by one.
#[test]
fn a_full_device_is_mended() {
    local(async {
        let device = MemoryDevice::new(4096, 64 << 20);
        create_log(device.clone(), &shape(14)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut c = Chain::new(SHARD);
        let is_full = |rig: &Rig| rig.engine.space().free_segments <= rig.engine.space().reserve_segments;
        for i in 0..100 {
            if is_full(&rig) {
                break;
            }
            rig.append(Record::Frame(c.frame(&[data(64 * i, 64, 1000 * u64::from(i) + 1000)])));
            rig.settle().await;
        }
        assert!(is_full(&rig));
        rig.engine.committed(SHARD, Sequence(c.sequence));
        rot(&device, 1005);
        let place = MapPlace::default();
        let told = rig.engine.entries_with_past(SHARD, place, Sequence(0), Sequence(0), Sequence(c.sequence), 1 << 20);
        assert_eq!(told.await.unwrap_err().kind, ErrorKind::Corrupt);
        let wanted = rig.engine.take_damaged(100);
        assert_eq!(rig.engine.mend(wanted[0].id, &block(1005)).unwrap(), 1);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.read_all(SHARD, 64).await.unwrap()[&5], Cell8::Data(1005));
        rig.engine.check();
        rig.stop().await;
    });
}

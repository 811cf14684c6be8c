//! The end of the log when it can't be read, or has gone: what may have been durable is never taken for torn.

use crate::common::*;
use freebs_format::ExtentKind;
use freebs_format::disk::{APPEND_MAGIC, AppendHeader, SEGMENTS_AT};
use freebs_io::Device;
use freebs_io::faults::{CrashDevice, FaultDevice, PowerCut, Survives};
use freebs_lsvd::tool::recover;
use freebs_lsvd::{MarkChange, Record};
use freebs_types::{Sequence, ShardId, ViewNumber};
use std::cell::RefCell;
use std::rc::Rc;

const BLOCKS: u32 = 120;

/// Header and place of each append of a device, in order of their numbers.
async fn appends(device: &CrashDevice) -> Vec<(u64, AppendHeader)> {
    let bytes = device.read(0, device.len() as usize).await.unwrap();
    let places = (SEGMENTS_AT as usize..bytes.len()).step_by(512);
    let found = places.filter(|at| bytes[*at..].starts_with(&APPEND_MAGIC));
    let found = found.filter_map(|at| Some((at as u64, AppendHeader::decode(&bytes[at..at + HEADER]).ok()?)));
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(_, h)| h.number.get());
    found
}

async fn fresh() -> (CrashDevice, Rig, Chain) {
    let device = CrashDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(12)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    (device, rig, Chain::new(ShardId::new(1, 0)))
}

/// Many small extents, so that the heads take more than a sector; the blocks lie apart from those of others.
fn wide(fill: u64) -> Op {
    Op { extents: (0..40).map(|i| (ExtentKind::Data, 2 * i, 1)).collect(), fill }
}

fn write(lba: u32, blocks: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, lba, blocks)], fill }
}

/// A killed log whose last append was answered, and one of whose sectors the device can't read. The append was taken for
/// torn: its frame was gone without a word, and the next append went over it.
#[test]
fn an_end_that_can_not_be_read_is_no_torn_one() {
    for part in ["header", "heads", "data"] {
        local(async move {
            let (device, rig, mut chain) = fresh().await;
            let mut model = Model::new();
            for i in 0..4 {
                let op = write(100 + i, 2, 1000 * u64::from(i));
                op.apply(&mut model);
                rig.append(Record::Frame(chain.frame(&[op])));
                rig.settle().await;
            }
            let before = (chain.clone(), model.clone());
            let last = wide(50_000);
            last.apply(&mut model);
            rig.append(Record::Frame(chain.frame(&[last])));
            rig.settle().await;
            rig.kill();
            let device = device.copy();
            let (at, h) = *appends(&device).await.last().unwrap();
            let front = u64::from(h.heads_len.get()).next_multiple_of(512);
            assert!(front > 1024 && h.durable.get() == h.number.get() - 1, "the end has no proof");
            let hit = match part {
                "header" => at,
                "heads" => at + 1024,
                _ => at + front + 5 * 4096,
            };
            let was = device.read(at, front as usize).await.unwrap().to_vec();
            let faulty = FaultDevice::new(device.clone());
            faulty.spoil(hit);
            for start in 0..3 {
                let rig = Rig::open(faulty.clone()).await.unwrap();
                assert!(!rig.report.damage.is_empty(), "{part}, start {start}: not a word of it");
                assert_eq!(rig.report.torn_bytes, 0, "{part}, start {start}");
                let st = rig.engine.state(chain.shard).unwrap();
                if part == "data" {
                    // The blocks that it wrote are known: only the block that can't be read is lost.
                    assert_eq!((st.last, st.suspect_tail, &st.holes[..]), (chain.name(), false, &[][..]));
                    for (lba, cell) in &full(&model, BLOCKS) {
                        let read = rig.engine.read(chain.shard, freebs_types::BlockRange::new(*lba, 1)).await;
                        assert_eq!(read.is_err(), *lba == 10, "block {lba} ({cell:?})");
                    }
                } else {
                    assert!(st.suspect_tail, "{part}, start {start}");
                    assert!(st.holes.is_empty() && st.last.sequence.0 >= before.0.sequence);
                    if start == 0 {
                        assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(&before.1, BLOCKS));
                    }
                    // A frame behind it does not make it look mended, and does not go over it.
                    let mut other = Chain::new(ShardId::new(2 + start, 0));
                    rig.append(Record::Frame(other.frame(&[write(0, 1, 7)])));
                    rig.settle().await;
                    assert_eq!(device.read(at, front as usize).await.unwrap()[..], was[..], "{part}: written over");
                }
                rig.stop().await;
            }
            if part != "data" {
                // Compared with others, the tail is sound again, at the next starts, too.
                let rig = Rig::open(faulty.clone()).await.unwrap();
                let change = MarkChange { trusted: true, ..MarkChange::default() };
                rig.append(Record::Mark { shard: chain.shard, change, ticket: 1 });
                rig.settle().await;
                rig.stop().await;
                let rig = Rig::open(faulty).await.unwrap();
                assert!(!rig.engine.state(chain.shard).unwrap().suspect_tail);
                assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(&before.1, BLOCKS));
            }
        });
    }
}

/// A power cut in the middle of an append: some blocks are as they were before, and one sector can't be read. The sector
/// alone was taken for damage of a whole append. Its frame counted, the blocks that it was to write were no longer what
/// they had been, and nobody could be given it.
#[test]
fn a_torn_append_with_a_bad_sector_is_given_up() {
    local(async {
        let (device, rig, mut chain) = fresh().await;
        let mut model = Model::new();
        let first = write(0, 80, 1000);
        first.apply(&mut model);
        rig.append(Record::Frame(chain.frame(&[first])));
        rig.settle().await;
        let before = chain.name();
        rig.append(Record::Frame(chain.frame(&[wide(50_000)])));
        rig.settle().await;
        rig.kill();
        let device = device.copy();
        let (at, h) = *appends(&device).await.last().unwrap();
        let data = at + u64::from(h.heads_len.get()).next_multiple_of(512);
        put(&device, data + 10 * 4096, freebs_io::AlignedBuf::zeroed(10 * 4096)).await;
        let faulty = FaultDevice::new(device.clone());
        faulty.spoil(data + 5 * 4096);
        for start in 0..2 {
            let rig = Rig::open(faulty.clone()).await.unwrap();
            assert_eq!(rig.report.torn_bytes > 0, start == 0);
            assert!(rig.report.damage.is_empty(), "nothing that was answered is lost: {:?}", rig.report.damage);
            let st = rig.engine.state(chain.shard).unwrap();
            assert_eq!((st.last, st.suspect_tail, &st.holes[..]), (before, false, &[][..]));
            assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(&model, BLOCKS), "what was there before");
            // The next append lies over it.
            rig.append(Record::Frame(Chain::new(ShardId::new(2 + start, 0)).frame(&[write(0, 1, 7)])));
            rig.settle().await;
            rig.stop().await;
        }
    });
}

/// The same when the append was the first of its segment: the one before says where it would be.
#[test]
fn a_first_append_that_can_not_be_read_is_missed() {
    local(async {
        let (device, rig, mut chain) = fresh().await;
        while rig.engine.counters().segments_opened < 2 {
            rig.append(Record::Frame(chain.frame(&[write(0, 60, chain.sequence * 100)])));
            rig.settle().await;
        }
        rig.kill();
        let device = device.copy();
        let (at, h) = *appends(&device).await.last().unwrap();
        assert_eq!(h.offset.get(), 0, "it is the first of its segment");
        let faulty = FaultDevice::new(device.clone());
        faulty.spoil(at);
        let rig = Rig::open(faulty.clone()).await.unwrap();
        assert!(!rig.report.damage.is_empty(), "not a word of it");
        let st = rig.engine.state(chain.shard).unwrap();
        assert!(st.suspect_tail && st.last.sequence == Sequence(chain.sequence - 1));
        // The next append lies where the log said that it goes on. The loss is still known behind it.
        let mut other = Chain::new(ShardId::new(2, 0));
        rig.append(Record::Frame(other.frame(&[write(0, 1, 7)])));
        rig.settle().await;
        rig.stop().await;
        let rig = Rig::open(faulty).await.unwrap();
        assert!(!rig.report.damage.is_empty() && rig.engine.state(chain.shard).unwrap().suspect_tail);
    });
}

/// And when it was the first of all: a log that may have had one is not an empty one.
#[test]
fn the_first_append_of_all_that_can_not_be_read_is_missed() {
    local(async {
        let (device, rig, mut chain) = fresh().await;
        rig.append(Record::Frame(chain.frame(&[write(0, 1, 7)])));
        rig.settle().await;
        rig.kill();
        let faulty = FaultDevice::new(device.copy());
        faulty.spoil(SEGMENTS_AT);
        let rig = Rig::open(faulty).await.unwrap();
        assert!(!rig.report.damage.is_empty(), "not a word of it");
    });
}

/// A log that goes on in a segment where a power cut had left the first sector of a first append alone.
struct Torn {
    device: CrashDevice,
    /// Where the segment begins, and the sector that the power cut left there.
    at: u64,
    sector: freebs_io::AlignedBuf,
    /// The shard of all that was before, and the one of three frames that are alone in the segment.
    shard: ShardId,
    other: ShardId,
}

async fn put(device: &CrashDevice, at: u64, sector: freebs_io::AlignedBuf) {
    device.write(at, sector, freebs_io::Durability::Durable).await.1.unwrap();
}

/// Logs like that, of a device whose segments are used again.
async fn torn_first_appends() -> Vec<Torn> {
    let (device, rig, mut chain) = fresh().await;
    let moments: Rc<RefCell<Vec<PowerCut>>> = Rc::default();
    let to = moments.clone();
    device.on_call(move |_, cut| to.borrow_mut().push(cut));
    for i in 0..150 {
        // Some segments are given up at once, and lie about from then on.
        let op = match i {
            0..=39 => write(60 * (i % 12), 60, 1000 * u64::from(i)),
            40 => Op { extents: vec![(ExtentKind::Trim, 0, 12 * 60)], fill: 0 },
            _ => write(i % 2, 60, 1000 * u64::from(i)),
        };
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
        chain.committed = chain.sequence;
        rig.engine.committed(chain.shard, Sequence(chain.committed));
    }
    assert!(rig.engine.counters().segments_freed > 3, "segments are used again");
    let mut out = Vec::new();
    let moments = moments.take();
    let half = moments.len() / 2;
    for cut in moments.into_iter().skip(half) {
        let (none, all) = (cut.image(Survives::Nothing), cut.image(Survives::Everything));
        let number = |list: &[(u64, AppendHeader)]| list.iter().map(|(_, h)| h.number.get()).max();
        let (old, new) = (appends(&none).await, appends(&all).await);
        let Some((at, h)) = new.last().filter(|_| number(&new) > number(&old)).copied() else { continue };
        if h.offset.get() > 0 {
            continue;
        }
        // Its first sector alone survives.
        let sector = all.read(at, 512).await.unwrap();
        let device = none.copy();
        put(&device, at, all.read(at, 512).await.unwrap()).await;
        let rig = Rig::open(device.clone()).await.unwrap();
        assert!(rig.report.damage.is_empty() && rig.report.torn_bytes > 0, "{:?}, {h:?}", rig.report);
        let mut other = Chain::new(ShardId::new(2, 0));
        for i in 0..3 {
            rig.append(Record::Frame(other.frame(&[write(i, 20, 8)])));
            rig.settle().await;
        }
        assert_eq!(rig.engine.counters().segments_opened, 1);
        rig.stop().await;
        let first = appends(&device).await.into_iter().rev().find(|(_, h)| h.offset.get() == 0).unwrap().0;
        assert_eq!(first, at, "the log goes on where its last footer says");
        out.push(Torn { device, at, sector, shard: chain.shard, other: other.shard });
    }
    assert!(out.len() > 3, "{}", out.len());
    out
}

/// A power cut left of a segment's first append its first sector alone. It was taken off, and with it what says where the
/// log goes on: the segment was begun anew elsewhere, where nobody looks for it. When its first append was lost then,
/// the rest of it was gone without a word. Or the lost write was to go over the torn one, which still looks like one.
#[test]
fn a_lost_first_append_behind_a_torn_one_is_missed() {
    local(async {
        for Torn { device, at, sector, other, .. } in torn_first_appends().await {
            for sector in [freebs_io::AlignedBuf::zeroed(512), sector] {
                let lost = device.copy();
                let stays = sector.iter().any(|b| *b != 0);
                put(&lost, at, sector).await;
                let rig = Rig::open(lost).await.unwrap();
                assert!(!rig.report.damage.is_empty(), "the first append at {at} is lost, torn one there: {stays}");
                let there = rig.engine.state(other).map_or(0, |s| s.last.sequence.0);
                assert_eq!(there, 3, "what lies behind it counts");
            }
        }
    });
}

/// The torn append took a number with it that no segment has. The segment that was opened then named none before it: when
/// its first append was lost with what repeats that, and with it the live table, there was none to go by instead. Every
/// segment of the device counted, given up or not.
#[test]
fn given_up_segments_stay_given_up_behind_a_torn_append() {
    local(async {
        let mut given_up = 0;
        for Torn { device, at, .. } in torn_first_appends().await {
            let list = appends(&device).await;
            let begins = |n: u64| list.iter().rfind(|(_, h)| h.number.get() <= n && h.offset.get() == 0).unwrap();
            let newest = begins(u64::MAX);
            let behind = list.iter().find(|(_, h)| h.number.get() == newest.1.number.get() + 1).unwrap().0;
            assert_eq!((newest.0, newest.1.skipped), (at, 1));
            let before = begins(newest.1.number.get() - 1);
            let front = device.read(before.0, 512).await.unwrap();
            let table = &front[size_of::<AppendHeader>()..][..before.1.extra_len.get() as usize];
            let named: u32 = table.iter().map(|b| b.count_ones()).sum();
            given_up += list.iter().filter(|(_, h)| h.offset.get() == 0).count() - named as usize - 2;
            let used = Rig::open(device.copy()).await.unwrap().report.segments;
            for stays in [true, false] {
                let lost = device.copy();
                put(&lost, at, freebs_io::AlignedBuf::zeroed(512)).await;
                let mut repeat = lost.read(behind, 512).await.unwrap();
                repeat[100] ^= u8::from(!stays);
                put(&lost, behind, repeat).await;
                let rig = Rig::open(lost).await.unwrap();
                // Without a table those count that the table of the segment before names: they are still there.
                let expected = if stays { used } else { named + 2 };
                assert_eq!(rig.report.segments, expected, "a repeat stays: {stays}");
            }
        }
        assert!(given_up > 3, "segments that were given up, and look whole: {given_up}");
    });
}

/// And the end of the segment before went unnoticed when it was lost with the footer: the numbers of the two do not follow
/// one another.
#[test]
fn a_lost_end_in_front_of_a_torn_append_is_missed() {
    local(async {
        for Torn { device, at, shard, .. } in torn_first_appends().await {
            let list = appends(&device).await;
            let first = list.iter().find(|(a, _)| *a == at).unwrap().1.number.get();
            let (end, _) = *list.iter().find(|(_, h)| h.number.get() == first - 1).unwrap();
            let was = Rig::open(device.copy()).await.unwrap().engine.state(shard).unwrap();
            assert!(!was.suspect_tail && was.holes.is_empty());
            let lost = device.copy();
            let segment = SEGMENTS_AT + (end - SEGMENTS_AT) / SEGMENT * SEGMENT;
            for sector in [end, segment + SEGMENT - 512] {
                put(&lost, sector, freebs_io::AlignedBuf::zeroed(512)).await;
            }
            for start in 0..3 {
                let rig = Rig::open(lost.clone()).await.unwrap();
                let now = rig.engine.state(shard).unwrap();
                assert!(now.last.sequence < was.last.sequence, "its last frame lay there");
                assert!(now.suspect_tail, "start {start}: {:?}", rig.report.damage);
                rig.stop().await;
            }
        }
    });
}

/// An end that could not be read once. The log went on behind it, and it does not come back when it can be read again.
#[test]
fn an_append_that_was_given_up_stays_so() {
    local(async {
        let (device, rig, mut chain) = fresh().await;
        for i in 0..4 {
            rig.append(Record::Frame(chain.frame(&[write(2 * i, 2, 1000 * u64::from(i))])));
            rig.settle().await;
        }
        let before = chain.name();
        rig.append(Record::Frame(chain.frame(&[write(50, 2, 7)])));
        rig.settle().await;
        rig.kill();
        let device = device.copy();
        let (at, _) = *appends(&device).await.last().unwrap();
        let faulty = FaultDevice::new(device.clone());
        faulty.spoil(at);
        let rig = Rig::open(faulty).await.unwrap();
        let state = rig.engine.state(chain.shard).unwrap();
        assert!(state.suspect_tail && state.last == before);
        let mut other = Chain::new(ShardId::new(2, 0));
        rig.append(Record::Frame(other.frame(&[write(0, 1, 7)])));
        rig.settle().await;
        rig.stop().await;
        for _ in 0..2 {
            let rig = Rig::open(device.clone()).await.unwrap();
            let state = rig.engine.state(chain.shard).unwrap();
            assert!(state.suspect_tail && state.last == before, "{state:?}");
            rig.stop().await;
        }
    });
}

/// A single copy has nobody to ask. What it has lost is said, and taken for lost only in so many words: the end that can't
/// be read, and the frames of two appends in a row.
#[test]
fn a_loss_is_accepted_in_so_many_words() {
    for end in [true, false] {
        local(async move {
            let (device, rig, mut chain) = fresh().await;
            for i in 0..6 {
                rig.append(Record::Frame(chain.frame(&[write(2 * i, 2, 1000 * u64::from(i))])));
                rig.settle().await;
            }
            rig.kill();
            let device = device.copy();
            let list = appends(&device).await;
            let faulty = FaultDevice::new(device.clone());
            let (lost, at) = match end {
                true => ((vec![], true, 5), vec![5]),
                false => ((vec![(Sequence(3), Sequence(3))], false, 6), vec![2, 3]),
            };
            at.into_iter().for_each(|i| faulty.spoil(list[i].0));
            let erased = erased(&faulty);
            for accept in [false, true, true] {
                let found = recover(&erased, accept, &mut ()).await.unwrap();
                let is_lost = found.lost.iter().map(|l| (l.frames.clone(), l.tail, l.last.0)).collect::<Vec<_>>();
                if found.accepted || !accept {
                    assert_eq!(is_lost, std::slice::from_ref(&lost));
                    assert!(!found.recovery.is_empty() && found.accepted == accept);
                    let what = found.lost[0].to_string();
                    assert!(what.contains(if end { "behind version 5" } else { "frames 3 to 3" }), "{what}");
                } else {
                    assert!(is_lost.is_empty(), "it was accepted before");
                }
            }
            let rig = Rig::open(faulty.clone()).await.unwrap();
            let st = rig.engine.state(chain.shard).unwrap();
            assert!(!st.suspect_tail && st.holes.is_empty() && st.last.sequence.0 == lost.2);
            assert!(st.given_up >= st.last.view.max(ViewNumber(1)), "it answers no seal as if it were whole");
            let all = rig.read_all(chain.shard, BLOCKS).await.unwrap();
            for i in 0..6 {
                let gone = if end { i == 5 } else { i == 2 };
                let cell = if gone { Cell8::Trim } else { Cell8::Data(1000 * u64::from(i) + u64::from(2 * i)) };
                assert_eq!(all[&(2 * i)], cell, "block {}", 2 * i);
            }
            // It goes on from there.
            if end {
                let mut again = Chain::new(chain.shard);
                (0..5).for_each(|i| drop(again.frame(&[write(2 * i, 2, 1000 * u64::from(i))])));
                chain = again;
            }
            rig.append(Record::Frame(chain.frame(&[write(50, 1, 7)])));
            rig.settle().await;
            rig.engine.check();
            rig.stop().await;
            let rig = Rig::open(faulty).await.unwrap();
            let st = rig.engine.state(chain.shard).unwrap();
            assert!(!st.suspect_tail && st.holes.is_empty() && st.last == chain.name());
        });
    }
}

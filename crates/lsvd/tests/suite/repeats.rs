//! An append that is lost is known from the one behind it, which repeats what it held; and what nothing repeats costs
//! no more than it was.

use crate::common::*;
use crate::damage::{BLOCKS, FIRST, Image, image_with, load};
use freebs_format::ExtentKind;
use freebs_format::disk::{APPEND_HEADS_BYTES_MAX, AppendHeader, REPEAT_BYTES_MAX, Repeat, SegmentFooter};
use freebs_io::Device;
use freebs_io::faults::FaultDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Finding, MarkChange, Record};
use freebs_types::{ErrorKind, Sequence, ShardId, ViewNumber};

/// How an append is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hit {
    /// Its first sector is zeroes: no header.
    Header,
    /// A bit of its heads.
    Heads,
    /// Its first sector can't be read.
    Unread,
    /// Its own repeat.
    Repeat,
}

/// An append of the open segment.
#[derive(Clone, Copy)]
pub struct Open {
    pub at: usize,
    pub header: AppendHeader,
}

/// Appends of the open segment, in order. It may still end with the footer of its use before.
pub fn open_appends(bytes: &[u8]) -> Vec<Open> {
    let header = |at: usize| AppendHeader::decode(&bytes[at..at + size_of::<AppendHeader>()]).ok();
    let seq = |at: usize| header(at).map_or(0, |h| h.segment_seq.get());
    let newest = (FIRST..bytes.len()).step_by(SEGMENT as usize).max_by_key(|at| seq(*at)).unwrap();
    let (mut out, mut at) = (Vec::new(), newest);
    while let Some(header) = header(at).filter(|h| h.segment_seq.get() == seq(newest)) {
        out.push(Open { at, header });
        at += header.total(512);
    }
    out
}

fn hit(bytes: &mut [u8], a: Open, hit: Hit) {
    let (extra, heads) = (a.header.extra_len.get() as usize, a.header.heads_len.get() as usize);
    match hit {
        Hit::Header => bytes[a.at..a.at + 512].fill(0),
        Hit::Heads => bytes[a.at + HEADER + extra..a.at + heads].iter_mut().step_by(97).for_each(|b| *b ^= 4),
        Hit::Repeat => bytes[a.at + HEADER + extra / 2] ^= 4,
        Hit::Unread => {}
    }
}

/// Everything is here and is served: no hole, no suspect tail, nothing that was moved is missed.
async fn all_is_here(rig: &Rig, image: &Image, what: &str) {
    rig.engine.check();
    for h in &image.history {
        let (_, model, chain) = h.last().unwrap();
        let st = rig.engine.state(chain.shard).unwrap();
        assert_eq!((st.last, &st.holes[..], st.suspect_tail), (chain.name(), &[][..], false), "{what}");
        assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS), "{what}");
        // Frames can be given to others, too; some were given up.
        for sequence in (1..=st.last.sequence.0).map(Sequence) {
            let found = rig.engine.frame(chain.shard, sequence).await;
            let name = rig.engine.name(chain.shard, sequence).await;
            match (found, name) {
                (Ok(f), Ok(n)) => assert_eq!(f.header().hid(), n.hid, "{what}"),
                (Err(e), _) if e.kind == ErrorKind::NotFound => {}
                (found, name) => panic!("{what}, frame {sequence}: {found:?}, {name:?}"),
            }
        }
    }
}

/// Frames of one append were read at once, and a bad sector in the data of the last one hid those before it.
#[test]
fn a_bad_sector_hides_no_other_frame() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let faulty = FaultDevice::new(device.clone());
        let rig = Rig::open(faulty.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        let shard = chain.shard;
        let data = |i: u32| Op { extents: vec![(ExtentKind::Data, i, 1)], fill: 1000 + u64::from(i) };
        for i in 0..3u32 {
            rig.append(Record::Frame(chain.frame(&[data(i)])));
        }
        rig.settle().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        let last = rig.engine.frames(shard, Sequence(1), 1 << 20).await.unwrap().pop().unwrap().data[0].clone();
        let at = (0..bytes.len()).step_by(512).find(|at| bytes[*at..].starts_with(&last)).unwrap();
        faulty.spoil(at as u64);
        let read = async |from| {
            let frames = rig.engine.frames(shard, Sequence(from), 1 << 20).await;
            frames.map(|f| f.len()).map_err(|e| e.kind)
        };
        assert_eq!((read(1).await, read(2).await, read(3).await), (Ok(2), Ok(1), Err(ErrorKind::Corrupt)));
        rig.stop().await;
    });
}

/// One lost sector of an append in the open segment made nearly everything on the device unreadable, blocks that were
/// never written among it: what it had held could have been anything that cleaning ever moved.
#[test]
fn a_lost_append_of_the_open_segment_costs_nothing() {
    let mut looks = 0;
    for seed in 0..6 {
        local(async {
            let image = image_with(500 + seed, 400, true).await;
            let open = open_appends(&image.bytes);
            assert_eq!(open[0].header.offset.get(), 0);
            for (i, a) in open[..open.len() - 1].iter().enumerate() {
                for how in [Hit::Header, Hit::Heads, Hit::Unread, Hit::Repeat] {
                    let none = match how {
                        Hit::Heads => a.header.frames.get() == 0,
                        Hit::Repeat => i == 0,
                        _ => false,
                    };
                    if none {
                        continue;
                    }
                    looks += 1;
                    let what = format!("seed {seed}, append {} of {}, {how:?}", i, open.len());
                    let mut bytes = image.bytes.clone();
                    hit(&mut bytes, *a, how);
                    let device = load(&bytes);
                    let faulty = FaultDevice::new(device.clone());
                    if how == Hit::Unread {
                        faulty.spoil(a.at as u64);
                    }
                    let rig = Rig::open(faulty.clone()).await.unwrap();
                    assert!(!rig.report.damage.is_empty(), "{what}");
                    all_is_here(&rig, &image, &what).await;
                    // The log goes on in the segment, and closes it with an index like any other.
                    let mut other = Chain::new(ShardId::new(7, 0));
                    while rig.engine.counters().segments_opened == 0 {
                        let op = Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: other.sequence };
                        rig.append(Record::Frame(other.frame(&[op])));
                        rig.settle().await;
                    }
                    rig.stop().await;
                    let rig = Rig::open(faulty).await.unwrap();
                    // But for a header that any start looks at.
                    let first = |d: &Finding| i == 0 && d.what == "the first append can't be read";
                    assert!(rig.report.damage.iter().all(first), "{what}: {:?}", rig.report.damage);
                    all_is_here(&rig, &image, &what).await;
                }
            }
        });
    }
    assert!(looks > 60, "{looks}");
}

/// An append and the one behind it are lost: what the second one held is known, and of the first that it is not. Only
/// what its own frames may have written is not served.
#[test]
fn of_two_lost_appends_the_second_is_known() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chains: Vec<Chain> = (1..=3).map(|n| Chain::new(ShardId::new(n, 0))).collect();
        let mut models = vec![Model::new(); 3];
        for i in 0..12u32 {
            let (chain, model) = (&mut chains[i as usize % 3], &mut models[i as usize % 3]);
            let op = Op { extents: vec![(ExtentKind::Data, i, 2)], fill: u64::from(i) * 100 };
            op.apply(model);
            rig.append(Record::Frame(chain.frame(&[op])));
            rig.settle().await;
        }
        rig.stop().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        // Shard 1 has the appends 1, 4, 7 and 10; of 4 and 5 only 5 is known.
        let open = open_appends(&bytes);
        assert_eq!(open.iter().map(|a| a.header.number.get()).collect::<Vec<_>>(), (1..=13).collect::<Vec<_>>());
        hit(&mut bytes, open[3], Hit::Header);
        hit(&mut bytes, open[4], Hit::Header);
        let dev = load(&bytes);
        for start in 0..3 {
            let rig = Rig::open(dev.clone()).await.unwrap();
            assert!(!rig.report.damage.is_empty());
            let holes = |n: usize| rig.engine.state(chains[n].shard).unwrap().holes;
            let suspect = |n: usize| rig.engine.state(chains[n].shard).unwrap().suspect_tail;
            assert_eq!((holes(0), holes(1), holes(2)), (vec![(Sequence(2), Sequence(2))], vec![], vec![]));
            assert_eq!([suspect(0), suspect(1), suspect(2)], [false; 3], "start {start}");
            for n in [1, 2] {
                assert_eq!(rig.read_all(chains[n].shard, BLOCKS).await.unwrap(), full(&models[n], BLOCKS));
            }
            let read = |lba| rig.engine.read(chains[0].shard, freebs_types::BlockRange::new(lba, 1));
            assert!(read(0).await.is_err() && read(50).await.is_err(), "the lost frame may have written them");
            assert!(read(6).await.is_ok() && read(9).await.is_ok(), "what lies behind it is served");
            // The segment is closed at the second start.
            let mut other = Chain::new(ShardId::new(7 + start, 0));
            while start == 1 && rig.engine.counters().segments_opened == 0 {
                let op = Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: other.sequence };
                rig.append(Record::Frame(other.frame(&[op])));
                rig.settle().await;
            }
            rig.stop().await;
        }
    });
}

/// A promise leaves no gap in the sequence: frames of the view before it follow, and nothing told that it is lost.
#[test]
fn a_lost_append_may_have_held_a_promise() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        let shard = chain.shard;
        let promise = |view| {
            let change = MarkChange { promised: Some(ViewNumber(view)), ..MarkChange::default() };
            Record::Mark { shard, change, ticket: 1 }
        };
        for i in 0..7u32 {
            let op = Op { extents: vec![(ExtentKind::Data, i, 2)], fill: i.into() };
            rig.append(if i == 3 { promise(7) } else { Record::Frame(chain.frame(&[op])) });
            rig.settle().await;
        }
        rig.stop().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        let open = open_appends(&bytes);
        hit(&mut bytes, open[3], Hit::Header);
        hit(&mut bytes, open[4], Hit::Header);
        let dev = load(&bytes);
        // A rebuild of the control state must not take it for a log that promised nothing.
        let found = freebs_lsvd::tool::survey(&dev, &mut ()).await.unwrap();
        assert_eq!((found.shards[0].whole, found.shards[0].promise_lost), (true, true));
        // It is known until a newer one was made, over checkpoints, too.
        for start in 0..4 {
            let rig = Rig::open(dev.clone()).await.unwrap();
            let state = rig.engine.state(shard).unwrap();
            assert!(state.holes.is_empty() && !state.suspect_tail, "start {start}: {state:?}");
            assert_eq!((state.promise_lost, state.promised >= ViewNumber(7)), (start < 3, start == 3), "start {start}");
            if start == 1 {
                rig.append(Record::Mark { shard, change: MarkChange::default(), ticket: 2 });
            } else if start == 2 {
                rig.append(promise(9));
            }
            rig.settle().await;
            rig.stop().await;
        }
    });
}

/// The end of the log is lost, and a checkpoint or what can't be read tells. Nothing repeats it; yet what cleaning had
/// moved is not missed, at this start and at later ones, when the segment has long been closed.
#[test]
fn a_lost_end_costs_what_was_in_it() {
    let mut suspects = 0;
    for seed in 0..6 {
        local(async {
            let image = image_with(700 + seed, 400, true).await;
            let open = open_appends(&image.bytes);
            // Without the proof at the end, that is the last one with frames.
            let (last, proof) = (open[open.len() - 2], open[open.len() - 1]);
            assert!(proof.header.frames.get() == 0 && last.header.frames.get() > 0);
            let mut bytes = image.bytes.clone();
            let total = proof.header.total(512);
            bytes[proof.at..proof.at + total].fill(0);
            let faulty = FaultDevice::new(load(&bytes));
            faulty.spoil(last.at as u64);
            for start in 0..4 {
                let rig = Rig::open(faulty.clone()).await.unwrap();
                rig.engine.check();
                for h in &image.history {
                    let chain = &h.last().unwrap().2;
                    let st = rig.engine.state(chain.shard).unwrap();
                    suspects += u64::from(st.suspect_tail);
                    let what = format!("seed {seed}, start {start}: {} of {}", st.last.sequence, chain.sequence);
                    assert!(st.holes.is_empty(), "{what}: {:?}", st.holes);
                    assert!(st.suspect_tail || (start > 0 && st.last == chain.name()), "{what}");
                    let model = &h[st.last.sequence.0 as usize].1;
                    assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS), "{what}");
                }
                // At each start another segment is opened; at the last one all shards were compared and are whole.
                let mut other = Chain::new(ShardId::new(7 + start, 0));
                let before = rig.engine.counters().segments_opened;
                while rig.engine.counters().segments_opened < before + 2 {
                    let op = Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: other.sequence };
                    rig.append(Record::Frame(other.frame(&[op])));
                    rig.settle().await;
                }
                for h in image.history.iter().filter(|_| start == 1) {
                    let chain = &h.last().unwrap().2;
                    let st = rig.engine.state(chain.shard).unwrap();
                    for s in st.last.sequence.0 + 1..=chain.sequence {
                        rig.append(Record::Frame(h[s as usize].0.clone().unwrap()));
                    }
                }
                rig.settle().await;
                rig.stop().await;
            }
        });
    }
    assert!(suspects > 10, "{suspects}");
}

/// Appends with as many frames as fit, of heads as large as they get: each can still be repeated by the next one.
#[test]
fn what_is_appended_can_be_repeated() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &freebs_lsvd::Shape { segment_bytes: 8 << 20, size_limit: 1 << 28, ..shape(40) })
            .await
            .unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        for i in 0..40u64 {
            let zeroes = |n: u32| Op { extents: (0..n).map(|i| (ExtentKind::Zero, 2 * i, 1)).collect(), fill: 0 };
            let ops: Vec<Op> = (0..if i % 3 == 0 { 17 } else { 4 }).map(|_| zeroes(1000)).collect();
            rig.append(Record::Frame(chain.frame(&ops)));
        }
        rig.settle().await;
        let digest = rig.engine.digest(chain.shard).await.unwrap();
        rig.stop().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        let (mut largest, mut repeats) = (0, 0);
        let mut at = FIRST;
        while let Ok(h) = AppendHeader::decode(&bytes[at..at + HEADER]) {
            let (extra, heads) = (h.extra_len.get() as usize, h.heads_len.get() as usize);
            assert!(heads <= APPEND_HEADS_BYTES_MAX && extra <= REPEAT_BYTES_MAX);
            largest = largest.max(heads - extra);
            if h.repeats() {
                let repeat = Repeat::decode(bytes[at + HEADER..at + HEADER + extra].to_vec().into()).unwrap();
                assert_eq!(repeat.append, h.number.get() - 1);
                repeats += 1;
            }
            at += h.total(512);
        }
        assert!(largest > 400_000 && repeats > 3, "{largest} {repeats}");
        let rig = Rig::open(device).await.unwrap();
        assert_eq!(rig.engine.digest(chain.shard).await.unwrap(), digest);
    });
}

/// A footer says what was lost when its segment was closed.
#[test]
fn a_segment_with_a_loss_is_closed_with_it() {
    local(async {
        let image = image_with(900, 60, false).await;
        let open = open_appends(&image.bytes);
        let mut bytes = image.bytes.clone();
        for a in &open[2..4] {
            hit(&mut bytes, *a, Hit::Header);
        }
        let lost = open[2].header.number.get();
        let device = load(&bytes);
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut other = Chain::new(ShardId::new(7, 0));
        while rig.engine.counters().segments_opened == 0 {
            let op = Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: other.sequence };
            rig.append(Record::Frame(other.frame(&[op])));
            rig.settle().await;
        }
        let change = MarkChange::default();
        rig.append(Record::Mark { shard: other.shard, change, ticket: 1 });
        rig.settle().await;
        let was: Vec<_> = image.history.iter().map(|h| rig.engine.state(h[0].2.shard).unwrap().holes).collect();
        assert!(was.iter().any(|h| !h.is_empty()));
        rig.stop().await;
        let segment = FIRST + (open[0].at - FIRST) / SEGMENT as usize * SEGMENT as usize;
        let tail = device.read((segment + SEGMENT as usize - 512) as u64, 512).await.unwrap();
        let footer = SegmentFooter::decode(&tail, SEGMENT).unwrap();
        assert_eq!(footer.lost().collect::<Vec<_>>(), [(lost, lost)]);
        let rig = Rig::open(device).await.unwrap();
        let now: Vec<_> = image.history.iter().map(|h| rig.engine.state(h[0].2.shard).unwrap().holes).collect();
        assert_eq!(now, was);
        assert!(rig.report.damage.iter().any(|d| d.what.contains(&format!("append {lost} "))));
    });
}

/// A view change cut frames 5 to 8, and the appends with the view's frame and some behind it are lost. The first frame, or
/// mark, that is left took one frame of the branch away, at most; the others came back as committed, and were served.
#[test]
fn what_a_lost_frame_had_cut_does_not_come_back() {
    // Frames behind the loss by what is left: the next one, one behind a gap, a mark at the branch's last sequence.
    for (lost, frames, mark, until) in [(4, 6, false, 7), (6, 8, false, 9), (5, 4, true, 8)] {
        local(async move {
            let device = MemoryDevice::new(512, 1 << 30);
            create_log(device.clone(), &shape(40)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = Chain { members: 2, ..Chain::new(ShardId::new(1, 0)) };
            let shard = chain.shard;
            let add = async |record| {
                rig.append(record);
                rig.settle().await;
            };
            add(Record::Frame(chain.view_frame(1, 1))).await;
            let write = |chain: &mut Chain, fill: u64| {
                let op = Op { extents: vec![(ExtentKind::Data, chain.sequence as u32, 1)], fill };
                Record::Frame(chain.frame(&[op]))
            };
            for _ in 0..3 {
                add(write(&mut chain, 1)).await;
            }
            chain.committed = 4;
            let mut branch = chain.clone();
            for _ in 0..4 {
                add(write(&mut branch, 1000)).await;
            }
            add(Record::Frame(chain.view_frame(2, 2))).await;
            for _ in 1..frames {
                chain.committed = chain.sequence;
                add(write(&mut chain, 2000)).await;
            }
            if mark {
                rig.engine.committed(shard, Sequence(chain.sequence));
                for _ in 0..2 {
                    add(Record::Mark { shard, change: MarkChange::default(), ticket: 1 }).await;
                }
            }
            rig.stop().await;
            let mut bytes = Vec::new();
            device.poke(|b| bytes.clone_from(b));
            let open = open_appends(&bytes);
            open[8..8 + lost].iter().for_each(|a| hit(&mut bytes, *a, Hit::Header));
            let rig = Rig::open(load(&bytes)).await.unwrap();
            rig.engine.check();
            let state = rig.engine.state(shard).unwrap();
            assert_eq!(state.holes, [(Sequence(5), Sequence(until))], "{lost} appends are lost: {state:?}");
            for lba in 4..8 {
                let Ok(out) = rig.engine.read(shard, freebs_types::BlockRange::new(lba, 1)).await else { continue };
                assert_eq!(out.data.concat()[..8], (2000 + u64::from(lba)).to_le_bytes(), "block {lba}");
            }
            rig.stop().await;
        });
    }
}

/// The heads of an answered append are lost, and the one behind it tore: it says what they were, and nothing else does. The log
/// went on right over it, so that a power cut in that write would have taken the answered one away.
#[test]
fn a_torn_append_that_tells_of_the_one_before_is_not_written_over() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        let write = |chain: &mut Chain| {
            let op = Op { extents: vec![(ExtentKind::Data, chain.sequence as u32, 1)], fill: 7 };
            Record::Frame(chain.frame(&[op]))
        };
        for _ in 0..4 {
            rig.append(write(&mut chain));
            rig.settle().await;
        }
        rig.kill();
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        let open = open_appends(&bytes);
        hit(&mut bytes, open[2], Hit::Header);
        let torn = open[3].at..open[3].at + open[3].header.total(512);
        bytes[torn.end - 2048..torn.end].fill(0);
        let told = bytes[torn.clone()].to_vec();
        let dev = load(&bytes);
        for start in 0..2 {
            let rig = Rig::open(dev.clone()).await.unwrap();
            let state = rig.engine.state(chain.shard).unwrap();
            assert!(state.holes.is_empty() && !state.suspect_tail, "start {start}: {state:?}");
            assert_eq!(state.last.sequence, Sequence(3 + start));
            assert!(rig.engine.read(chain.shard, freebs_types::BlockRange::new(2, 1)).await.is_ok());
            if start == 0 {
                let mut again = Chain::new(chain.shard);
                for _ in 0..3 {
                    write(&mut again);
                }
                rig.append(write(&mut again));
                rig.settle().await;
            }
            dev.poke(|b| assert!(b[torn.clone()] == told[..], "start {start}: it stays as it is"));
            rig.stop().await;
        }
    });
}

/// Forged bytes said that a segment has number 0, and its table could not be read. A start asked for the one before, which was
/// the same one, and took all memory with it.
#[test]
fn a_segment_with_number_zero_is_none() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        rig.append(Record::Frame(chain.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 1)], fill: 7 }])));
        rig.settle().await;
        rig.stop().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        for mut a in open_appends(&bytes) {
            let heads = a.at + size_of::<AppendHeader>()..a.at + a.header.heads_len.get() as usize;
            a.header.segment_seq = 0.into();
            a.header.finish(&bytes[heads.clone()]);
            bytes[a.at..heads.start].copy_from_slice(zerocopy::IntoBytes::as_bytes(&a.header));
            bytes[heads].iter_mut().step_by(7).for_each(|b| *b ^= 1);
        }
        let rig = Rig::open(load(&bytes)).await.unwrap();
        assert!(rig.engine.state(chain.shard).is_none_or(|s| s.suspect_tail || s.last.sequence == Sequence(0)));
        rig.stop().await;
    });
}

//! Tools on devices that have lived: crashes that tore ends, segments that were used again, cuts. None of it is damage,
//! and without any index the log gives the same state.

use crate::common::*;
use crate::crash_device::{crash_device, power_cut};
use freebs_format::ExtentKind;
use freebs_io::Device;
use freebs_io::faults::CrashDevice;
use freebs_lsvd::tool::{Action, IndexState, rebuild, verify};
use freebs_lsvd::{CleanOptions, Record};
use freebs_types::{Sequence, ShardId};

const FIRST: u64 = 1 << 20;

/// The same bytes on a device of its own.
async fn copy(device: &CrashDevice) -> (freebs_io::memory::MemoryDevice, Vec<u8>) {
    let bytes = device.read(0, device.len() as usize).await.unwrap().to_vec();
    let copy = freebs_io::memory::MemoryDevice::new(512, 1 << 30);
    copy.poke(|b| b.extend_from_slice(&bytes));
    (copy, bytes)
}

/// What the tools say of a device that nothing is wrong with; how many indexes were made again.
async fn nothing_is_wrong(device: &CrashDevice, what: &str) -> usize {
    let (copied, bytes) = copy(device).await;
    let v = verify(&erased(&copied), &mut ()).await.unwrap();
    assert!(v.is_sound(), "{what}: {:#?} {:?} {:?}", v.damage, v.losses, v.recovery);
    let whole = rebuild(&erased(&copied), false, &mut ()).await.unwrap();
    assert!(whole.shards.iter().all(|s| s.before == s.after), "{what}: {:?}", whole.shards);
    assert!(whole.recovery.is_empty(), "{what}: {:?}", whole.recovery);
    assert!(whole.indexes.iter().all(|i| i.found == IndexState::Sound), "{what}: {:?}", whole.indexes);
    for i in &whole.indexes {
        let end = (FIRST + u64::from(i.segment + 1) * SEGMENT) as usize;
        copied.poke(|b| b[end - FOOTER..end].fill(0));
    }
    let done = rebuild(&erased(&copied), true, &mut ()).await.unwrap();
    assert!(done.recovery.is_empty(), "{what}: {:?}", done.recovery);
    for (s, w) in done.shards.iter().zip(&whole.shards) {
        assert!(s.before == s.after && s.after == w.after, "{what}: {s:?} {w:?}");
    }
    let mut written = 0;
    for i in &done.indexes {
        match &i.action {
            Action::Write => written += 1,
            Action::Leave(why) => assert!(why.contains("used again"), "{what}: {why}"),
            Action::Keep => panic!("{what}: {i:?} was destroyed"),
        }
        let (from, to) = (FIRST + u64::from(i.segment) * SEGMENT, FIRST + u64::from(i.segment + 1) * SEGMENT);
        if i.action == Action::Write {
            // But for the segment that came next, which a footer names for nobody's use.
            copied.poke(|b| {
                let (now, was) = (&b[from as usize..to as usize - FOOTER], &bytes[from as usize..to as usize - FOOTER]);
                assert!(now == was, "{what}: index of segment {} as it was", i.segment);
            });
        }
    }
    written
}

#[test]
fn a_life_with_crashes_and_segments_used_again() {
    let (mut torn, mut written, mut freed, mut moved) = (0, 0, 0, 0);
    for seed in 0..20 {
        local(async {
            let mut rng = Rng::new(seed);
            let mut device = crash_device(1 << 25, seed);
            create_log(device.clone(), &shape(20)).await.unwrap();
            let mut chains: Vec<Chain> = (1..=2).map(|i| Chain::new(ShardId::new(i, 0))).collect();
            for life in 0..5 {
                let rig = Rig::open(device.clone()).await.unwrap();
                rig.engine.set_cleaning(CleanOptions { share_percent: 300, target_percent: 100, ..Default::default() });
                torn += u64::from(rig.report.torn_bytes > 0);
                assert!(rig.report.damage.is_empty());
                // A chain goes on behind what has survived, in a view of its own.
                for c in &mut chains {
                    if let Some(state) = rig.engine.state(c.shard) {
                        assert!(state.last.sequence.0 >= c.committed);
                        c.sequence = state.last.sequence.0;
                        c.version = state.version.0;
                        c.id = freebs_format::token(&c.secret, &state.parent, &state.digest);
                        let (view, secret) = (c.view.0 + 1, 10 + life);
                        rig.append(Record::Frame(c.view_frame(view, secret)));
                    }
                }
                let steps = 60 + rng.below(60);
                for _ in 0..steps {
                    let c = &mut chains[rng.below(2) as usize];
                    let first = rng.below(150) as u32;
                    let op = match rng.below(12) {
                        0 => Op { extents: vec![(ExtentKind::Trim, first, 20)], fill: 1 },
                        1 => Op { extents: vec![(ExtentKind::Zero, first, 9)], fill: 1 },
                        _ => Op {
                            extents: vec![(ExtentKind::Data, first, 1 + rng.below(40) as u32)],
                            fill: rng.next() >> 8,
                        },
                    };
                    rig.append(Record::Frame(c.frame(&[op])));
                    if rng.chance(50) {
                        rig.settle().await;
                        for c in &mut chains {
                            let last = rig.engine.state(c.shard).map_or(0, |s| s.last.sequence.0);
                            c.committed = last.saturating_sub(1);
                            rig.engine.committed(c.shard, Sequence(c.committed));
                        }
                    }
                }
                rig.settle().await;
                let last = Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: rng.next() >> 8 };
                rig.append(Record::Frame(chains[0].frame(&[last])));
                for _ in 0..1 + rng.below(3) {
                    tokio::task::yield_now().await;
                }
                freed += rig.engine.counters().segments_freed;
                moved += rig.engine.counters().cleaned_bytes / 4096;
                if life == 4 {
                    rig.settle().await;
                    rig.stop().await;
                } else {
                    rig.kill();
                    device = power_cut(&device, &mut rng);
                }
                written += nothing_is_wrong(&device, &format!("seed {seed}, life {life}")).await;
            }
        });
    }
    println!("{torn} torn ends, {freed} segments used again, {moved} blocks moved, {written} indexes made anew");
    assert!(torn > 4 && freed > 50 && written > 50 && moved > 1000, "{torn} {freed} {written} {moved}");
}

/// A torn end that stayed behind when the next append did not fit and the segment was closed: without the footer it is
/// the segment behind that tells.
#[test]
fn a_torn_end_in_a_closed_segment_is_no_damage_without_its_index() {
    local(async {
        let data = |blocks: u32, fill: u64| Op { extents: vec![(ExtentKind::Data, 0, blocks)], fill };
        let mut torn = 0;
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let device = crash_device(1 << 27, seed);
            create_log(device.clone(), &shape(60)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = Chain::new(ShardId::new(1, 0));
            rig.append(Record::Frame(chain.frame(&[data(100, 1)])));
            rig.settle().await;
            let before = chain.clone();
            rig.append(Record::Frame(chain.frame(&[data(60, 2)])));
            for _ in 0..1 + rng.below(3) {
                tokio::task::yield_now().await;
            }
            rig.kill();
            let device = power_cut(&device, &mut rng);
            let rig = Rig::open(device.clone()).await.unwrap();
            torn += u64::from(rig.report.torn_bytes > 0);
            if rig.engine.state(before.shard).unwrap().last.sequence.0 == before.sequence {
                chain = before;
            }
            rig.append(Record::Frame(chain.frame(&[data(200, 3)])));
            rig.settle().await;
            rig.stop().await;
            nothing_is_wrong(&device, &format!("seed {seed}")).await;
        }
        assert!(torn > 3, "{torn} ends were torn");
    });
}

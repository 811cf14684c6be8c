//! Frames follow one another without a gap, so that there is always one that may be cut, beside cleaning.

use crate::common::*;
use freebs_format::ExtentKind;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, Options, Record};
use freebs_types::{Sequence, ShardId};

const SHARD: ShardId = ShardId::new(1, 0);
const BLOCKS: u32 = 1500;
/// Frames that are not yet committed.
const DEPTH: u64 = 4;
/// Blocks of one extent.
const EXTENT: u64 = 24;

fn eager() -> CleanOptions {
    CleanOptions { share_percent: 300, target_percent: 100, batch_bytes: 2 << 20, ..CleanOptions::default() }
}

/// Entries that cleaning had moved while a frame over some of their blocks might be cut were held above the map until
/// no frame at all might be. Under a load without a pause that moment never came: they grew to the size of the map, and a
/// checkpoint covered nothing behind the first of them.
#[test]
fn a_load_without_a_pause_holds_little_and_checkpoints_get_on() {
    for options in [Options::of_workers(1), Options { map_bytes: 64 << 10, checkpoint_bytes: 1 << 40 }] {
        local(without_a_pause(options));
    }
}

async fn without_a_pause(options: Options) {
    let device = MemoryDevice::new(4096, 1 << 30);
    create_log(device.clone(), &shape(30)).await.unwrap();
    let rig = Rig::open_with(device.clone(), options).await.unwrap();
    rig.engine.set_cleaning(eager());
    let (mut rng, mut chain, mut model) = (Rng::new(3), Chain::new(SHARD), Model::new());
    let (mut most, mut behind) = (0, Vec::new());
    for i in 1..=4000u64 {
        chain.committed = chain.sequence.saturating_sub(DEPTH - 1);
        // Some of the blocks change often, the others stay where cleaning finds them.
        let start = if rng.chance(80) { rng.below(300) } else { rng.below(u64::from(BLOCKS) - EXTENT) };
        let op = Op { extents: vec![(ExtentKind::Data, start as u32, 1 + rng.below(EXTENT) as u32)], fill: i << 32 };
        op.apply(&mut model);
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(chain.sequence.saturating_sub(DEPTH)));
        most = most.max(rig.engine.held_blocks(SHARD));
        if i % 500 == 0 {
            rig.engine.checkpoint().await.unwrap();
            let (covered, written) = rig.engine.checkpoint_covers().expect("just made");
            behind.push(written - covered);
            rig.engine.check();
        }
    }
    let counters = rig.engine.counters();
    assert!(counters.cleaned_segments > 50 && counters.cleaned_bytes > 20 << 20, "{counters:?}");
    assert!(most > 0, "what is moved never met a frame");
    let told = format!("at most {most} blocks were held, and checkpoints stayed {behind:?} appends behind");
    // All that is held lies over frames that may be cut; and of those, a checkpoint covers none.
    assert!(most <= DEPTH * EXTENT && behind.iter().all(|n| *n < 100), "{told}");
    println!("measured: {told}");
    assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
    rig.kill();
    let again = Rig::open_with(device, options).await.unwrap();
    assert!(again.report.checkpoint > 0 && again.report.frames < 100, "{:?}", again.report);
    assert_eq!(again.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
    again.engine.check();
    again.stop().await;
}

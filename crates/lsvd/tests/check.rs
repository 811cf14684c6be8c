//! What recovery and reads never look at is found by the check that a digest begins with: heads of frames, headers
//! of appends and the live table in a closed segment whose index is good.

mod common;

use common::*;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Engine, Record};
use freebs_types::{ErrorKind, ShardId};

const FIRST: usize = 1 << 20;
const SEGMENT: usize = 1 << 20;

/// A device whose first segments are closed, cleanly stopped.
async fn closed_segments(shard: ShardId) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    Engine::create(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    // The first segment stays in use.
    rig.engine.set_cleaning(freebs_lsvd::CleanOptions { enabled: false, ..Default::default() });
    let (mut rng, mut chain) = (Rng::new(7), Chain::new(shard));
    for _ in 0..600 {
        chain.committed = chain.sequence.saturating_sub(1);
        rig.append(Record::Frame(chain.frame(&[Op::random(&mut rng, 4000)])));
        rig.settle().await;
    }
    assert!(rig.engine.space().used_segments > 3, "several segments were closed");
    rig.stop().await;
    device
}

#[test]
fn a_flipped_bit_in_a_closed_segment_fails_the_digest() {
    local(async {
        let shard = ShardId::new(1, 0);
        let device = closed_segments(shard).await;
        let mut good = Vec::new();
        device.poke(|b| good.clone_from(b));
        let rig = Rig::open(device).await.unwrap();
        rig.engine.digest(shard).await.unwrap();
        rig.stop().await;

        // Append header, live table and first frame head; then index and footer.
        let front = (0..600).step_by(7);
        let back = (SEGMENT - 2000..SEGMENT).step_by(37);
        let mut noticed_at_open = 0;
        for at in front.chain(back) {
            let device = MemoryDevice::new(512, 1 << 30);
            device.poke(|b| {
                b.extend_from_slice(&good);
                b[FIRST + at] ^= 1 << (at % 8);
            });
            let rig = Rig::open(device).await.unwrap();
            noticed_at_open += usize::from(!rig.report.damage.is_empty());
            let digest = rig.engine.digest(shard).await;
            let is_padding = good[FIRST + at..].iter().take(64).all(|b| *b == 0)
                || good[FIRST + at - at % 512..FIRST + at + 1].iter().rev().take(16).all(|b| *b == 0);
            match digest {
                Err(e) => assert_eq!(e.kind, ErrorKind::Corrupt, "{at}: {e}"),
                Ok(_) => assert!(!rig.report.damage.is_empty() || is_padding, "a flip at {at} goes unnoticed"),
            }
            rig.kill();
        }
        assert!(noticed_at_open > 5, "flips in index and footer are seen by recovery");
    });
}

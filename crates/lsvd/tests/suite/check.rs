//! What recovery and reads never look at is found by the check that a digest begins with: heads of frames, headers
//! of appends and the live table in a closed segment whose index is good.

use crate::common::*;
use freebs_format::disk::{AppendHeader, SegmentFooter};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{CleanOptions, Record};
use freebs_types::{ErrorKind, ShardId};

const FIRST: usize = 1 << 20;
const SEGMENT: usize = 1 << 20;

/// A device whose first segments are closed, cleanly stopped.
async fn closed_segments(shard: ShardId) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    // The first segment stays in use.
    rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
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

/// True if nothing that is read lies at a byte of the first segment: behind heads or an index, up to the sector.
fn is_padding(bytes: &[u8], at: usize) -> bool {
    let tail = FIRST + SEGMENT - size_of::<SegmentFooter>();
    let footer = SegmentFooter::decode(&bytes[tail..FIRST + SEGMENT], SEGMENT as u64).unwrap();
    let index = FIRST + footer.index_at.get() as usize;
    if at >= index {
        return at < tail && at >= index + footer.index_len.get() as usize;
    }
    let mut append = FIRST;
    loop {
        let h = AppendHeader::decode(&bytes[append..]).unwrap();
        let heads = append + h.heads_len.get() as usize;
        if at < append + h.total(512) {
            return (heads..heads.next_multiple_of(512)).contains(&at);
        }
        append += h.total(512);
    }
}

#[test]
fn a_flipped_bit_in_a_closed_segment_fails_the_digest() {
    local(async {
        let shard = ShardId::new(1, 0);
        let device = closed_segments(shard).await;
        let mut good = Vec::new();
        device.poke(|b| good.clone_from(b));
        // The log alone: without a writer nothing moves or is given up.
        let (engine, _) = open_log(device, &expect()).await.unwrap();
        engine.digest(shard).await.unwrap();
        let held = engine.space().used_segments;
        assert!(held > 3, "{held} segments are held");

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
            let (engine, report) = open_log(device, &expect()).await.unwrap();
            noticed_at_open += usize::from(!report.damage.is_empty());
            let digest = engine.digest(shard).await;
            let at = FIRST + at;
            let is_padding = is_padding(&good, at);
            match digest {
                Err(e) => assert_eq!(e.kind, ErrorKind::Corrupt, "{at}: {e}"),
                Ok(_) => assert!(!report.damage.is_empty() || is_padding, "a flip at {at} goes unnoticed"),
            }
        }
        assert!(noticed_at_open > 5, "flips in index and footer are seen by recovery");
    });
}

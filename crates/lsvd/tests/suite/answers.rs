//! Every record gets one answer, whatever is wrong with it.

use crate::common::*;
use bytes::Bytes;
use freebs_format::{CarryBody, CarryEntry, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Durable, EventKind, Record, Unrepaired};
use freebs_types::{BlockRange, ChunkId, ClusterId, Hash32, Sequence, ShardId, Version, ViewNumber};

const SHARD: ShardId = ShardId::new(1, 0);

fn write(lba: u32, blocks: u32) -> Op {
    Op { extents: vec![(ExtentKind::Data, lba, blocks)], fill: 7 }
}

/// A frame of sequence 2, of a cluster and in a place of its chunk.
fn second(cluster: ClusterId, chunk_offset: u32) -> Frame {
    let meta = FrameMeta {
        cluster,
        shard: SHARD,
        view: ViewNumber(1),
        chunk: ChunkId::new(1, 0),
        chunk_offset,
        sequence: Sequence(2),
        first_version: Version(1),
        committed: Sequence(0),
        wall: 0,
    };
    FrameBuilder::special(&meta, FrameKind::Seal, &[], &Hash32([3; 32]), &Hash32::default()).0
}

/// A carry of a data block and a trim.
fn carry(change: impl Fn(&mut CarryEntry)) -> (CarryBody, Vec<Bytes>) {
    let data = block(9);
    let mut entry = CarryEntry {
        kind: ExtentKind::Data,
        range: BlockRange::new(40, 1),
        version: Version(1),
        sequence: Sequence(1),
        chunk: ChunkId::new(1, 5),
        offset: 3,
        crcs: vec![freebs_format::block_crc(&data)],
    };
    change(&mut entry);
    (CarryBody { entries: vec![entry] }, vec![data])
}

/// The two answers to a frame that makes no sense: the shard's own, and the one of a repair.
fn are_refused(done: &[Durable], frame: &Frame, text: &str, how: Unrepaired) {
    let [Durable::Refused { shard: SHARD, sequence, why }, Durable::Unrepaired { why: unfit, .. }] = done else {
        panic!("{text}: {done:?}");
    };
    assert!(*sequence == frame.head.seq() && why.contains(text), "{why}");
    // A committed block is there, and not missed.
    assert_eq!(*unfit, how, "{text}");
}

/// A record for which there is no answer is waited for without end: a carry that makes no sense got none. What was larger
/// than a segment ended the log, for all shards. And what was refused was written first, and found as damage at each start.
#[test]
fn whatever_is_refused_is_answered_once_and_not_written() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(SHARD);
        rig.append(Record::Frame(chain.frame(&[write(0, 4)])));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(1));
        let frame = |change: &dyn Fn(&mut Chain), blocks: u32| {
            let mut chain = chain.clone();
            change(&mut chain);
            chain.frame(&[write(100, blocks)])
        };
        let wrong = [
            (second(ClusterId([8; 16]), 4), "another cluster"),
            (frame(&|c| c.version = 1 << 62, 1), "impossible number"),
            (frame(&|c| c.sequence = 1 << 62, 1), "impossible number"),
            (second(CLUSTER, 9000), "outside its chunk"),
            (frame(&|c| c.sequence = 0, 1), "differs from a committed one"),
            (frame(&|_| (), 300), "larger than a segment"),
        ];
        for (i, (frame, text)) in wrong.iter().enumerate() {
            let before = rig.heard.done.borrow().len();
            for record in [Record::Frame(frame.clone()), Record::Repair(frame.clone())] {
                rig.append(record);
            }
            rig.settle().await;
            assert!(rig.heard.failed.borrow().is_none(), "{text}");
            are_refused(
                &rig.heard.done.borrow()[before..],
                frame,
                text,
                if i == 4 { Unrepaired::Differs } else { Unrepaired::Unfit },
            );
        }
        let carries = [
            (carry(|e| e.offset = 8192), "outside its chunk"),
            (carry(|e| e.version = Version(1 << 62)), "impossible number"),
            (carry(|e| e.sequence = Sequence(1 << 63)), "impossible number"),
            (carry(|e| e.crcs.clear()), "CRC"),
            (carry(|e| (e.range.len, e.crcs) = (2, vec![1, 2])), "do not fit their data"),
        ];
        for (n, ((body, data), text)) in (0..).zip(carries) {
            rig.append(Record::Carry { shard: SHARD, body, data, ticket: n });
            rig.settle().await;
            let last = *rig.heard.done.borrow().last().unwrap();
            let is_told = matches!(last, Durable::Unlearned { ticket, why, .. } if ticket == n && why.contains(text));
            assert!(is_told, "{text}: {last:?}");
        }
        let events = rig.engine.events();
        assert_eq!(events.iter().filter(|e| e.kind == EventKind::Refused).count(), 17);
        // All of them at once, and the log goes on behind them.
        for (frame, _) in &wrong {
            rig.append(Record::Frame(frame.clone()));
            rig.append(Record::Frame(chain.frame(&[write(8, 1)])));
        }
        let (body, data) = carry(|_| ());
        rig.append(Record::Carry { shard: SHARD, body, data, ticket: 100 });
        rig.settle().await;
        assert_eq!(rig.heard.count.get(), rig.sent.get());
        assert_eq!(rig.engine.state(SHARD).unwrap().last, chain.name());
        rig.engine.check();
        rig.stop().await;
        let rig = Rig::open(device.clone()).await.unwrap();
        assert_eq!(rig.report.damage, []);
        assert!(!rig.engine.state(SHARD).unwrap().suspect_tail);
    });
}

//! What a shard does beyond writes: cuts, marks, repair, learning from a peer, deletion, frames read back.

use crate::common::*;
use freebs_format::{CarryBody, ExtentKind};
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Base, CleanOptions, Durable, MarkChange, Options, Record, Seen};
use freebs_types::{
    BlockRange, ClusterId, DriverId, ErrorKind, Hash32, Lba, NodeId, RequestNumber, Sequence, ShardId, StartNumber,
    ViewNumber,
};

const BLOCKS: u32 = 120;
const SHARD: ShardId = ShardId::new(1, 0);

async fn device(segments: u64) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(segments)).await.unwrap();
    device
}

fn random_frame(rng: &mut Rng, chain: &mut Chain, model: &mut Model) -> Record {
    let op = Op::random(rng, BLOCKS);
    op.apply(model);
    Record::Frame(chain.frame(&[op]))
}

fn mark(shard: ShardId, change: MarkChange) -> Record {
    Record::Mark { shard, change, ticket: 7 }
}

/// Frames of a view that never became active are cut; the map, the requests, the view and the attachment are again
/// what they were; and a restart, before or after the next frame, sees the same.
#[test]
fn a_cut_brings_back_what_was() {
    for seed in 0..40 {
        local(async move {
            let mut rng = Rng::new(seed);
            let dev = device(60).await;
            let mut rig = Rig::open(dev.clone()).await.unwrap();
            let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
            rig.append(Record::Frame(chain.view_frame(2, 4)));
            rig.append(Record::Frame(chain.attach_frame(1)));
            let mut view = 2;
            for _ in 0..6 {
                for _ in 0..rng.below(30) {
                    rig.append(random_frame(&mut rng, &mut chain, &mut model));
                }
                let (safe, safe_model, safe_view) = (chain.clone(), model.clone(), view);
                rig.settle().await;
                rig.engine.committed(SHARD, Sequence(chain.sequence));
                chain.committed = chain.sequence;
                chain.low = chain.requests + 1;
                // A branch that will not count.
                let mut branch = chain.clone();
                let mut gone = model.clone();
                if rng.chance(70) {
                    view += 1;
                    rig.append(Record::Frame(branch.view_frame(view, 5)));
                    rig.append(Record::Frame(branch.attach_frame(view)));
                }
                for _ in 0..rng.below(40) {
                    rig.append(random_frame(&mut rng, &mut branch, &mut gone));
                }
                rig.settle().await;
                assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&gone, BLOCKS));
                rig.engine.check();
                if rng.chance(30) {
                    rig.stop().await;
                    rig = Rig::open(dev.clone()).await.unwrap();
                    rig.engine.check();
                    assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&gone, BLOCKS));
                }
                // The cut: by word, or by the frame that takes the place.
                (chain, model) = (safe, safe_model);
                if rng.chance(50) {
                    rig.append(Record::Cut { shard: SHARD, to: Sequence(chain.sequence) });
                    rig.settle().await;
                    let st = rig.engine.state(SHARD).unwrap();
                    assert_eq!((st.last, st.version.0), (chain.name(), chain.version));
                    assert_eq!(st.view.as_ref().unwrap().1.secret_hash, freebs_format::hide(&chain.secret));
                    assert_eq!(st.attach.generation.0, if safe_view == 2 { 1 } else { safe_view });
                    assert_eq!(st.requests.lookup(DriverId(5), RequestNumber(chain.requests + 1)), None);
                    rig.engine.check();
                    assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
                }
                view += 1;
                rig.append(Record::Frame(chain.next_view(view, 6, rng.chance(30))));
                rig.append(Record::Frame(chain.attach_frame(view)));
                rig.settle().await;
                rig.engine.check();
                assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
                if rng.chance(50) {
                    rig.kill();
                    rig = Rig::open(dev.clone()).await.unwrap();
                    assert_eq!(rig.report.damage, []);
                    rig.engine.check();
                    assert_eq!(rig.engine.state(SHARD).unwrap().last, chain.name());
                    assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
                }
            }
        });
    }
}

/// V10: a view that goes on by force follows the frame that it names, although it does not know its token. The log keeps
/// what that is made of for as long as the view may be cut, also through a start.
#[test]
fn a_view_that_goes_on_by_force_continues_the_log() {
    local(async {
        let dev = device(40).await;
        let rig = Rig::open(dev.clone()).await.unwrap();
        let mut chain = Chain::new(SHARD);
        rig.append(Record::Frame(chain.view_frame(2, 4)));
        let last = chain.attach_frame(1);
        let origin = Some((last.header().parent_token(), last.header().digest()));
        rig.append(Record::Frame(last));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(2));
        let begins = chain.branch_frame(3, 5);
        assert!(begins.head.is_branch() && begins.head.before().token.is_none());
        rig.append(Record::Frame(begins));
        rig.settle().await;
        let check = |rig: &Rig| {
            assert_eq!(rig.report.damage, []);
            let st = rig.engine.state(SHARD).unwrap();
            assert_eq!((st.last, st.holes.len(), st.suspect_tail), (chain.name(), 0, false));
            assert_eq!(rig.engine.origin_before(SHARD, Sequence(3)), origin);
        };
        check(&rig);
        rig.stop().await;
        let rig = Rig::open(dev.clone()).await.unwrap();
        check(&rig);
        rig.engine.committed(SHARD, Sequence(3));
        assert_eq!(rig.engine.origin_before(SHARD, Sequence(3)), None);
        rig.stop().await;
        let found = freebs_lsvd::tool::verify(&dev, &mut ()).await.unwrap();
        assert!(found.damage.is_empty() && found.checked.links >= 3, "{found:?}");
    });
}

/// Frames of a cut branch must not come back when the segment of the frame that cut them would be given up.
#[test]
fn a_cut_branch_stays_cut_while_segments_come_and_go() {
    for seed in 0..10 {
        local(async move {
            let mut rng = Rng::new(seed);
            let dev = device(40).await;
            let mut rig = Rig::open(dev.clone()).await.unwrap();
            let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
            // A second shard keeps the branch's segments in use.
            let (mut other, mut other_model) = (Chain::new(ShardId::new(2, 0)), Model::new());
            for round in 0..8u64 {
                for _ in 0..30 {
                    rig.append(random_frame(&mut rng, &mut chain, &mut model));
                }
                rig.settle().await;
                chain.committed = chain.sequence;
                let (mut branch, mut gone) = (chain.clone(), model.clone());
                for _ in 0..20 {
                    rig.append(random_frame(&mut rng, &mut branch, &mut gone));
                    if rng.chance(20) {
                        rig.append(random_frame(&mut rng, &mut other, &mut other_model));
                    }
                }
                rig.append(Record::Frame(chain.view_frame(round + 2, 9)));
                for _ in 0..200 {
                    rig.append(random_frame(&mut rng, &mut chain, &mut model));
                    chain.committed = chain.sequence - 1;
                }
                rig.settle().await;
                rig.engine.check();
                rig.stop().await;
                rig = Rig::open(dev.clone()).await.unwrap();
                assert_eq!(rig.report.damage, []);
                assert_eq!(rig.engine.state(SHARD).unwrap().last, chain.name());
                assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
                assert_eq!(rig.read_all(other.shard, BLOCKS).await.unwrap(), full(&other_model, BLOCKS));
            }
        });
    }
}

#[test]
fn marks_keep_promise_secret_and_requests_when_frames_are_given_up() {
    local(async {
        let mut rng = Rng::new(1);
        let dev = device(40).await;
        let rig = Rig::open(dev.clone()).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        rig.append(mark(SHARD, MarkChange { promised: Some(ViewNumber(4)), ..MarkChange::default() }));
        rig.append(mark(SHARD, MarkChange { promised: Some(ViewNumber(3)), ..MarkChange::default() }));
        let secret = (ViewNumber(4), Hash32([8; 32]));
        rig.append(mark(SHARD, MarkChange { secret: Some(secret), ..MarkChange::default() }));
        rig.settle().await;
        assert!(rig.heard.done.borrow().contains(&Durable::Mark { shard: SHARD, ticket: 7 }));
        rig.append(Record::Frame(chain.view_frame(4, 8)));
        rig.append(Record::Frame(chain.attach_frame(17)));
        // An idle shard beside a busy one: its state must outlive its segment.
        let (mut busy, mut busy_model) = (Chain::new(ShardId::new(2, 0)), Model::new());
        rig.append(random_frame(&mut rng, &mut chain, &mut model));
        let zero = Op { extents: vec![(ExtentKind::Zero, 0, BLOCKS)], fill: 0 };
        zero.apply(&mut model);
        rig.append(Record::Frame(chain.frame(&[zero])));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(chain.sequence));
        for _ in 0..2500 {
            busy.committed = busy.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, rng.below(20) as u32, 4)], fill: rng.next() >> 8 };
            op.apply(&mut busy_model);
            rig.append(Record::Frame(busy.frame(&[op])));
        }
        rig.settle().await;
        let freed = rig.engine.counters();
        assert!(freed.segments_freed > 10 && freed.carried >= 2, "{freed:?}");
        assert!(rig.engine.space().used_segments < 12, "{:?}", rig.engine.space());
        let first = rig.engine.state(SHARD).unwrap().first_kept;
        assert!(first > Sequence(1), "its frames were given up");
        assert_eq!(rig.engine.frames(SHARD, Sequence(1), 1).await.unwrap_err().kind, ErrorKind::NotFound);
        rig.kill();
        let rig = Rig::open(dev).await.unwrap();
        assert_eq!(rig.report.damage, []);
        let st = rig.engine.state(SHARD).unwrap();
        assert_eq!((st.last, st.promised, st.secret), (chain.name(), ViewNumber(4), Some(secret)));
        assert_eq!(st.view.unwrap().0, Sequence(1));
        assert_eq!(st.attach.generation.0, 17);
        assert_eq!(st.committed, Sequence(chain.sequence));
        assert_eq!(st.requests.lookup(DriverId(5), RequestNumber(2)), Some(Seen::At(Sequence(4))));
        let token = freebs_format::token(&chain.secret, &st.parent, &st.digest);
        assert_eq!(token, chain.id, "a new head can go on from what the mark kept");
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        assert_eq!(rig.read_all(busy.shard, BLOCKS).await.unwrap(), full(&busy_model, BLOCKS));
        rig.engine.check();
    });
}

#[test]
fn frames_come_back_as_they_went_in() {
    local(async {
        let mut rng = Rng::new(3);
        let dev = device(40).await;
        let rig = Rig::open(dev).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let mut sent = vec![chain.view_frame(2, 1)];
        for _ in 0..300 {
            let Record::Frame(f) = random_frame(&mut rng, &mut chain, &mut model) else { unreachable!() };
            sent.push(f);
        }
        sent.iter().for_each(|f| rig.append(Record::Frame(f.clone())));
        rig.settle().await;
        let mut next = 1;
        while next <= sent.len() as u64 {
            let got = rig.engine.frames(SHARD, Sequence(next), 300_000).await.unwrap();
            for f in got {
                let was = &sent[next as usize - 1];
                assert_eq!(f.head.bytes(), was.head.bytes());
                assert_eq!(f.data.concat(), was.data.concat());
                f.verify_digest().unwrap();
                next += 1;
            }
        }
        let name = rig.engine.name(SHARD, Sequence(17)).await.unwrap();
        assert_eq!((name.sequence, name.hid), (Sequence(17), sent[16].header().hid()));
        assert_eq!(rig.engine.frame(SHARD, Sequence(9)).await.unwrap().head.seq(), Sequence(9));
        assert_eq!(rig.engine.frame(SHARD, Sequence(999)).await.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(
            rig.engine.read(ShardId::new(9, 9), BlockRange::new(0, 1)).await.unwrap_err().kind,
            ErrorKind::NotFound
        );
        assert_eq!(rig.engine.read(SHARD, BlockRange::new(0, 1025)).await.unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(rig.engine.read(SHARD, BlockRange::new(u32::MAX, 9)).await.unwrap_err().kind, ErrorKind::Invalid);
    });
}

/// One device learns from another by map, then by frames; both agree.
#[test]
fn a_peer_learns_by_map_and_goes_on_by_frames() {
    for seed in 0..10 {
        local(async move {
            let mut rng = Rng::new(seed);
            let (a, b) = (device(60).await, device(60).await);
            let rig = Rig::open(a).await.unwrap();
            let mut peer = Rig::open(b.clone()).await.unwrap();
            let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
            rig.append(Record::Frame(chain.view_frame(2, 1)));
            for _ in 0..200 {
                rig.append(random_frame(&mut rng, &mut chain, &mut model));
            }
            rig.settle().await;
            // The last frames are not committed and must not be learned.
            let known = chain.sequence - rng.below(10);
            rig.engine.committed(SHARD, Sequence(known));
            let mut from = Some(Lba(0));
            while let Some(at) = from {
                let (body, data, next) = rig.engine.entries(SHARD, at, Sequence(0), 100_000).await.unwrap();
                assert!(body.entries.iter().all(|e| e.sequence <= Sequence(known)));
                let body = CarryBody::decode(&body.encode(), body.entries.iter().map(|e| e.crcs.len() as u32).sum());
                peer.append(Record::Carry { shard: SHARD, body: body.unwrap(), data, ticket: 1 });
                from = next;
            }
            let frame = rig.engine.frame(SHARD, Sequence(known)).await.unwrap();
            let view = rig.engine.frame(SHARD, Sequence(1)).await.unwrap();
            let base = Base {
                since: Sequence(0),
                tip: Sequence(0),
                last: rig.engine.name(SHARD, Sequence(known)).await.unwrap(),
                parent: frame.header().parent_token(),
                digest: frame.header().digest(),
                version: frame.header().last_version(),
                committed: Sequence(known),
                view_frame: Some(view.head),
                attach: Default::default(),
                requests: Default::default(),
                open_chunk: (frame.header().chunk(), frame.header().chunk_offset.get() + frame.header().data_blocks()),
            };
            peer.append(mark(SHARD, MarkChange { base: Some(Box::new(base)), ..MarkChange::default() }));
            peer.settle().await;
            if rng.chance(50) {
                peer.kill();
                peer = Rig::open(b.clone()).await.unwrap();
                assert_eq!(peer.report.damage, []);
            }
            let st = peer.engine.state(SHARD).unwrap();
            assert_eq!((st.last.sequence, st.first_kept), (Sequence(known), Sequence(known + 1)));
            assert!(st.holes.is_empty());
            let mut next = known + 1;
            while next <= chain.sequence {
                for f in rig.engine.frames(SHARD, Sequence(next), 1 << 20).await.unwrap() {
                    next += 1;
                    peer.append(Record::Frame(f));
                }
            }
            peer.settle().await;
            peer.engine.check();
            assert_eq!(peer.engine.state(SHARD).unwrap().last, chain.name());
            assert_eq!(peer.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
            assert_eq!(peer.engine.digest(SHARD).await.unwrap(), rig.engine.digest(SHARD).await.unwrap());
            peer.kill();
            let peer = Rig::open(b).await.unwrap();
            assert_eq!(peer.report.damage, []);
            assert_eq!(peer.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        });
    }
}

/// The same frames, batched and interrupted differently, give the same digest; other content another one.
#[test]
fn digests_depend_on_content_only() {
    local(async {
        let mut rng = Rng::new(11);
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let frames: Vec<Record> = (0..400).map(|_| random_frame(&mut rng, &mut chain, &mut model)).collect();
        let mut digests = Vec::new();
        for every in [1, 7, 1000] {
            let dev = device(60).await;
            let mut rig = Rig::open(dev.clone()).await.unwrap();
            for (i, f) in frames.iter().enumerate() {
                rig.append(f.clone());
                if i % every == 0 {
                    rig.settle().await;
                    if i % 50 == 0 {
                        rig.engine.committed(SHARD, Sequence(i as u64 / 2));
                    }
                }
            }
            rig.settle().await;
            digests.push(rig.engine.digest(SHARD).await.unwrap());
            rig.stop().await;
            rig = Rig::open(dev).await.unwrap();
            digests.push(rig.engine.digest(SHARD).await.unwrap());
            if every == 1000 {
                rig.append(random_frame(&mut rng, &mut chain.clone(), &mut model));
                rig.settle().await;
                assert_ne!(rig.engine.digest(SHARD).await.unwrap().hash, digests[0].hash);
            }
        }
        assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
        let full = full(&model, BLOCKS);
        assert!(digests[0].blocks <= full.len() as u64);
    });
}

#[test]
fn a_forgotten_shard_leaves_nothing_and_can_come_back() {
    local(async {
        let mut rng = Rng::new(2);
        let dev = device(40).await;
        let mut rig = Rig::open(dev.clone()).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let (mut other, mut other_model) = (Chain::new(ShardId::new(2, 0)), Model::new());
        for _ in 0..100 {
            rig.append(random_frame(&mut rng, &mut chain, &mut model));
            rig.append(random_frame(&mut rng, &mut other, &mut other_model));
        }
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        let mut again = Chain::new(SHARD);
        again.chunk.counter = 500;
        let mut again_model = Model::new();
        rig.append(random_frame(&mut rng, &mut again, &mut again_model));
        for round in 0..3 {
            rig.settle().await;
            rig.engine.check();
            assert_eq!(rig.engine.state(SHARD).unwrap().last, again.name());
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&again_model, BLOCKS));
            assert_eq!(rig.read_all(other.shard, BLOCKS).await.unwrap(), full(&other_model, BLOCKS));
            for _ in 0..200 {
                other.committed = other.sequence;
                rig.append(random_frame(&mut rng, &mut other, &mut other_model));
            }
            if round == 1 {
                rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
                rig.settle().await;
                assert!(rig.engine.state(SHARD).is_none());
                again = Chain::new(SHARD);
                again.chunk.counter = 900;
                again_model = Model::new();
                rig.append(random_frame(&mut rng, &mut again, &mut again_model));
            }
            rig.settle().await;
            rig.stop().await;
            rig = Rig::open(dev.clone()).await.unwrap();
            assert_eq!(rig.report.damage, []);
        }
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        rig.append(Record::Forget { shard: other.shard, promised: ViewNumber(0) });
        rig.settle().await;
        assert_eq!(rig.engine.space().live_bytes, 0);
        assert!(rig.engine.shards().is_empty());
        rig.stop().await;
        let rig = Rig::open(dev).await.unwrap();
        assert!(rig.engine.shards().is_empty());
    });
}

/// V2: a promise is for ever, also that of a shard that left its node: it outlives the shard's frames, checkpoints, the
/// segment that it lies in, and starts.
#[test]
fn a_promise_outlives_its_shard() {
    local(async {
        let mut rng = Rng::new(8);
        let dev = device(40).await;
        let mut rig = Rig::open(dev.clone()).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let mut busy = Chain::new(ShardId::new(2, 0));
        for _ in 0..100 {
            rig.append(random_frame(&mut rng, &mut chain, &mut model));
        }
        let change = MarkChange { promised: Some(ViewNumber(9)), ..MarkChange::default() };
        rig.append(Record::Mark { shard: SHARD, change, ticket: 1 });
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(9) });
        for _ in 0..3 {
            rig.settle().await;
            rig.engine.check();
            let state = rig.engine.state(SHARD).expect("a promise");
            assert_eq!((state.promised, state.last.sequence, state.view), (ViewNumber(9), Sequence(0), None));
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&Model::new(), BLOCKS));
            for i in 0..400u64 {
                busy.committed = busy.sequence;
                let op = Op { extents: vec![(ExtentKind::Data, 0, 4)], fill: i * 10 };
                rig.append(Record::Frame(busy.frame(&[op])));
            }
            rig.settle().await;
            rig.engine.checkpoint().await.unwrap();
            rig.stop().await;
            rig = Rig::open(dev.clone()).await.unwrap();
            assert_eq!(rig.report.damage, []);
        }
        let mut again = Chain::new(SHARD);
        again.chunk.counter = 500;
        let mut again_model = Model::new();
        rig.append(random_frame(&mut rng, &mut again, &mut again_model));
        rig.settle().await;
        assert_eq!(rig.engine.state(SHARD).unwrap().promised, ViewNumber(9));
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&again_model, BLOCKS));
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        rig.settle().await;
        assert_eq!(rig.engine.shards(), [busy.shard], "it was deleted");
        rig.stop().await;
        let rig = Rig::open(dev).await.unwrap();
        assert_eq!(rig.engine.shards(), [busy.shard]);
    });
}

/// V8: a device that is not admitted was raised all the same, so an old image came nearer to the present number with
/// each attempt, until it was taken for the present device.
#[test]
fn a_device_that_is_not_admitted_is_left_as_it_is() {
    local(async {
        let dev = device(40).await;
        open_log(dev.clone(), &expect()).await.unwrap();
        let before = freebs_io::Device::read(&dev, 0, 1 << 20).await.unwrap();
        let refuse = async |came_with| {
            assert_eq!(came_with, StartNumber(1));
            Err(freebs_types::Error::corrupt("an old image"))
        };
        for _ in 0..3 {
            assert!(Engine::open_as(erased(&dev), &expect(), Options::of_workers(1), refuse).await.is_err());
        }
        let after = freebs_io::Device::read(&dev, 0, 1 << 20).await.unwrap();
        assert!(after[..] == before[..], "something was written");
        for wrong in [0, 1, u64::MAX] {
            assert!(
                Engine::open_as(erased(&dev), &expect(), Options::of_workers(1), async |_| Ok(StartNumber(wrong)))
                    .await
                    .is_err()
            );
        }
        let (engine, report) =
            Engine::open_as(erased(&dev), &expect(), Options::of_workers(1), async |_| Ok(StartNumber(9)))
                .await
                .unwrap();
        assert_eq!((report.start, engine.start()), (StartNumber(9), StartNumber(9)));
        let (_, report) = open_log(dev.clone(), &expect()).await.unwrap();
        assert_eq!(report.start, StartNumber(10));
    });
}

#[test]
fn foreign_devices_are_refused_with_the_reason() {
    local(async {
        let dev = device(40).await;
        assert_eq!(create_log(dev.clone(), &shape(40)).await.unwrap_err().kind, ErrorKind::Invalid);
        let e = expect();
        for (wrong, text) in [
            (freebs_lsvd::Expect { cluster: ClusterId([1; 16]), ..e }, "cluster"),
            (freebs_lsvd::Expect { node: NodeId(2), ..e }, "node"),
            (freebs_lsvd::Expect { worker: 1, ..e }, "worker"),
            (freebs_lsvd::Expect { workers: 4, ..e }, "worker"),
        ] {
            let error = open_log(dev.clone(), &wrong).await.err().unwrap();
            assert!(error.kind == ErrorKind::Invalid && error.text.contains(text), "{error}");
        }
        let (engine, report) = open_log(dev.clone(), &e).await.unwrap();
        assert_eq!((report.start.0, engine.start().0), (1, 1), "refused opens change nothing");
        let (_, report) = open_log(dev.clone(), &e).await.unwrap();
        assert_eq!(report.start.0, 2);
        let empty = MemoryDevice::new(512, 1 << 30);
        assert_eq!(open_log(empty.clone(), &e).await.err().unwrap().kind, ErrorKind::NotFound);
        freebs_io::Device::set_len(&empty, 1 << 20).await.unwrap();
        assert_eq!(open_log(empty.clone(), &e).await.err().unwrap().kind, ErrorKind::NotFound);
        empty.poke(|b| b[5000] = 1);
        assert_eq!(create_log(empty, &shape(40)).await.unwrap_err().kind, ErrorKind::Invalid);
        // A larger sector than the log was made for.
        let big = MemoryDevice::new(4096, 1 << 30);
        let bytes = std::cell::RefCell::new(Vec::new());
        dev.poke(|b| bytes.borrow_mut().clone_from(b));
        big.poke(|b| *b = bytes.into_inner());
        assert_eq!(open_log(big, &e).await.err().unwrap().kind, ErrorKind::Invalid);
    });
}

/// A lagging member's frames stay in the log although nothing in them is live, until space is short.
#[test]
fn kept_frames_stay_until_space_is_short() {
    local(async {
        let dev = device(16).await;
        let rig = Rig::open(dev).await.unwrap();
        let mut chain = Chain::new(SHARD);
        rig.append(Record::Frame(chain.view_frame(2, 1)));
        rig.settle().await;
        rig.engine.keep(SHARD, Sequence(100));
        let (mut kept_for, mut gone_at) = (0, 0);
        for i in 0..1200u64 {
            chain.committed = chain.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, 0, 4)], fill: i * 10 };
            rig.append(Record::Frame(chain.frame(&[op])));
            rig.settle().await;
            assert!(rig.heard.failed.borrow().is_none());
            let first = rig.engine.state(SHARD).unwrap().first_kept;
            if first <= Sequence(100) {
                kept_for = i;
            } else if gone_at == 0 {
                gone_at = i;
                let s = rig.engine.space();
                assert!(s.free_segments <= s.reserve_segments + 2, "{s:?}");
            }
        }
        assert!(kept_for > 500 && gone_at > kept_for, "kept until {kept_for}, gone at {gone_at}");
        rig.engine.check();
    });
}

/// Frames that hold no data but may still be cut stay in the log, whatever happens around them.
#[test]
fn uncommitted_frames_stay_though_nothing_in_them_is_live() {
    local(async {
        let dev = device(40).await;
        let mut rig = Rig::open(dev.clone()).await.unwrap();
        let mut chain = Chain::new(SHARD);
        rig.append(Record::Frame(chain.view_frame(2, 1)));
        let safe = chain.clone();
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(1));
        rig.append(Record::Frame(chain.view_frame(3, 2)));
        rig.append(Record::Frame(chain.attach_frame(9)));
        let mut busy = Chain::new(ShardId::new(2, 0));
        for i in 0..1500u64 {
            busy.committed = busy.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, 0, 4)], fill: i * 10 };
            rig.append(Record::Frame(busy.frame(&[op])));
            rig.settle().await;
        }
        assert!(rig.engine.counters().segments_freed > 3);
        assert_eq!(rig.engine.state(SHARD).unwrap().first_kept, Sequence(1));
        rig.stop().await;
        rig = Rig::open(dev).await.unwrap();
        let frames = rig.engine.frames(SHARD, Sequence(1), 1 << 20).await.unwrap();
        assert_eq!(frames.len(), 3);
        rig.append(Record::Cut { shard: SHARD, to: Sequence(1) });
        rig.settle().await;
        let st = rig.engine.state(SHARD).unwrap();
        assert_eq!((st.last, st.attach.generation.0), (safe.name(), 0));
        assert_eq!(st.view.unwrap().0, Sequence(1));
    });
}

/// What was given up stays given up, although its bytes are still there, whole and valid.
#[test]
fn segments_that_were_given_up_do_not_come_back() {
    local(async {
        let mut rng = Rng::new(4);
        let dev = device(40).await;
        let rig = Rig::open(dev.clone()).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        for _ in 0..400 {
            rig.append(random_frame(&mut rng, &mut chain, &mut model));
        }
        rig.settle().await;
        let before = rig.engine.space().used_segments;
        assert!(before > 6);
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        let mut busy = Chain::new(ShardId::new(2, 0));
        for i in 0..400u64 {
            busy.committed = busy.sequence;
            let op = Op { extents: vec![(ExtentKind::Data, 0, 4)], fill: i * 10 };
            rig.append(Record::Frame(busy.frame(&[op])));
        }
        rig.settle().await;
        let used = rig.engine.space().used_segments;
        assert!(used < before, "{used} of {before}");
        rig.stop().await;
        let rig = Rig::open(dev).await.unwrap();
        assert!(rig.report.segments <= used + 2, "{} came back, {used} were in use", rig.report.segments);
        assert_eq!(rig.engine.shards(), [busy.shard]);
        assert_eq!(rig.report.damage, []);
    });
}

/// A carry brought entries that had been overwritten by frames that were not committed yet. They were set aside a
/// second time; a cut then brought one of the two back, and what the other had counted was counted for ever, so that
/// its segment was never given up.
#[test]
fn a_carry_of_what_is_set_aside_counts_nothing_twice() {
    local(async {
        let dev = device(40).await;
        let rig = Rig::open(dev).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let old = Op { extents: vec![(ExtentKind::Trim, 0, 6), (ExtentKind::Data, 10, 6)], fill: 100 };
        old.apply(&mut model);
        rig.append(Record::Frame(chain.frame(&[old])));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(1));
        let safe = chain.clone();
        for (at, len) in [(2, 2), (0, 20), (11, 3)] {
            rig.append(Record::Frame(chain.frame(&[Op { extents: vec![(ExtentKind::Data, at, len)], fill: 9000 }])));
        }
        rig.settle().await;
        for _ in 0..2 {
            let (body, data, _) = rig.engine.entries(SHARD, Lba(0), Sequence(0), 1 << 20).await.unwrap();
            assert_eq!(body.entries.iter().map(|e| e.range.len).sum::<u32>(), 12, "what a cut would bring back");
            rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            rig.settle().await;
            rig.engine.check();
        }
        rig.append(Record::Cut { shard: SHARD, to: Sequence(safe.sequence) });
        rig.settle().await;
        rig.engine.check();
        assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
        assert_eq!(rig.engine.space().live_bytes, 6 * 4096);
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        rig.settle().await;
        rig.engine.check();
        assert_eq!(rig.engine.space().live_bytes, 0);
    });
}

/// A mark was written while the shard was on a branch that was cut later. The branch's frames were given up with their
/// segment, the mark was not: at the next start it put the shard on the branch, from which nothing led back, and a
/// frame was said to be lost although every one had been released.
#[test]
fn a_mark_of_a_branch_that_was_cut_leads_to_no_hole() {
    for extra in 0..3 {
        local(async move {
            let dev = device(40).await;
            let rig = Rig::open(dev.clone()).await.unwrap();
            let (mut chain, mut busy, mut cold) =
                (Chain::new(SHARD), Chain::new(ShardId::new(2, 0)), Chain::new(ShardId::new(3, 0)));
            let write = |chain: &mut Chain, fill: u64| {
                chain.committed = chain.sequence.min(chain.committed);
                Record::Frame(chain.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 4)], fill }]))
            };
            rig.append(Record::Frame(chain.view_frame(2, 1)));
            rig.append(write(&mut chain, 10));
            rig.append(write(&mut chain, 20));
            rig.settle().await;
            chain.committed = 3;
            rig.engine.committed(SHARD, Sequence(3));
            let mut branch = chain.clone();
            rig.append(write(&mut branch, 30));
            while rig.engine.counters().segments_opened < 2 {
                busy.committed = busy.sequence;
                rig.append(write(&mut busy, 40));
                rig.settle().await;
            }
            for i in 0..extra {
                rig.append(write(&mut branch, 50 + i));
            }
            rig.append(mark(SHARD, MarkChange::default()));
            rig.append(write(&mut cold, 60));
            rig.append(Record::Cut { shard: SHARD, to: Sequence(3) });
            rig.append(Record::Frame(chain.view_frame(3, 2)));
            rig.settle().await;
            for fill in 100.. {
                rig.append(write(&mut chain, fill));
                busy.committed = busy.sequence;
                rig.append(write(&mut busy, fill));
                rig.settle().await;
                chain.committed = chain.sequence;
                rig.engine.committed(SHARD, Sequence(chain.sequence));
                if rig.engine.state(SHARD).unwrap().first_kept > Sequence(3) && rig.engine.counters().segments_freed > 2
                {
                    break;
                }
                assert!(fill < 1000, "the first segment is given up");
            }
            let before = rig.read_all(SHARD, BLOCKS).await.unwrap();
            rig.kill();
            let rig = Rig::open(dev.clone()).await.unwrap();
            let st = rig.engine.state(SHARD).unwrap();
            assert_eq!((st.last, st.holes, rig.report.damage.len()), (chain.name(), vec![], 0));
            assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), before);
            rig.engine.check();
        });
    }
}

/// A frame wrote a block and trimmed it again before it wrote another one. The first block was free at once, and with
/// it, as the only one so far, went its chunk; so the second one had no place.
#[test]
fn a_frame_that_undoes_its_first_write_keeps_its_second() {
    local(async {
        let rig = Rig::open(device(20).await).await.unwrap();
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        rig.append(Record::Frame(chain.view_frame(2, 1)));
        rig.settle().await;
        // The member lags: what it gets is committed already.
        rig.engine.committed(SHARD, Sequence(9));
        let op = |kind, at, fill| Op { extents: vec![(kind, at, 1)], fill };
        let ops = [op(ExtentKind::Data, 3, 1), op(ExtentKind::Trim, 3, 0), op(ExtentKind::Data, 7, 2)];
        ops.iter().for_each(|op| op.apply(&mut model));
        rig.append(Record::Frame(chain.frame(&ops)));
        rig.settle().await;
        assert_eq!(rig.read_all(SHARD, 10).await.unwrap(), full(&model, 10));
        rig.engine.check();
    });
}

/// A mark was written while the shard's last frames were of a view that did not win. They were cut, what took their
/// place was committed, and their segment was given up; the mark, in another segment, stayed. The next recovery took
/// it for a jump over lost frames, and the first frame behind it for the end of a branch that is gone.
#[test]
fn a_mark_of_a_branch_that_was_cut_does_not_outlive_it() {
    local(async {
        let dev = device(40).await;
        let rig = Rig::open(dev.clone()).await.unwrap();
        rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
        let (mut chain, mut model) = (Chain::new(SHARD), Model::new());
        let mut busy = Chain::new(ShardId::new(2, 0));
        let data = |at, len, fill| Op { extents: vec![(ExtentKind::Data, at, len)], fill };
        let mut fill_segment = async |rig: &Rig, at: u32| {
            busy.committed = busy.sequence;
            rig.append(Record::Frame(busy.frame(&[data(at, 150, 1), data(200, 60, 2)])));
            rig.settle().await;
        };
        rig.append(Record::Frame(chain.view_frame(2, 1)));
        rig.settle().await;
        rig.engine.committed(SHARD, Sequence(1));
        chain.committed = 1;
        fill_segment(&rig, 0).await;
        let mut branch = chain.clone();
        rig.append(Record::Frame(branch.attach_frame(8)));
        rig.append(Record::Frame(branch.frame(&[data(3, 2, 7)])));
        rig.settle().await;
        // The mark lies beside blocks that stay.
        fill_segment(&rig, 400).await;
        rig.append(mark(SHARD, MarkChange::default()));
        rig.settle().await;
        fill_segment(&rig, 0).await;
        rig.append(Record::Frame(chain.view_frame(3, 2)));
        for i in 0..4u64 {
            let op = data(10, 1, 50 + i);
            op.apply(&mut model);
            rig.append(Record::Frame(chain.frame(&[op])));
        }
        rig.settle().await;
        chain.committed = chain.sequence;
        rig.engine.committed(SHARD, Sequence(chain.sequence));
        for _ in 0..60 {
            fill_segment(&rig, 0).await;
        }
        assert!(rig.engine.state(SHARD).unwrap().first_kept > Sequence(1), "the branch's segment was given up");
        let before = rig.engine.state(SHARD).unwrap();
        rig.stop().await;
        let rig = Rig::open(dev).await.unwrap();
        let state = rig.engine.state(SHARD).unwrap();
        assert_eq!((state.holes, state.last, state.attach), (vec![], chain.name(), before.attach));
        assert_eq!(rig.read_all(SHARD, 20).await.unwrap(), full(&model, 20));
        rig.engine.check();
    });
}

//! Times of the past: each is the version that a plain list of moments says, whatever of the map lies in runs, behind a
//! checkpoint, or has come round to addresses that were used before.

use crate::common::*;
use crate::crash_device::crash_device;
use crate::history::TINY;
use freebs_format::{ExtentKind, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_lsvd::{PastVersion, Record};
use freebs_types::{ErrorKind, Moment, Past, Sequence, ShardId, Version, limits};

const SHARD: ShardId = ShardId::new(1, 0);

/// A zero at a moment's address.
fn begins(moment: Moment) -> Op {
    Op { extents: vec![(ExtentKind::Zero, moment.lba().0, 1)], fill: 0 }
}

/// Nothing is known of moments in front of one, as a head says it.
fn forgets(from: Moment, now: Moment) -> Op {
    let extents = from.before(now).iter().map(|r| (ExtentKind::Trim, r.start.0, r.len)).collect();
    Op { extents, fill: 0 }
}

/// A change of one or two blocks: all that was is kept, and has to have room.
fn small(rng: &mut Rng) -> Op {
    let (start, len) = (rng.below(63) as u32, 1 + rng.below(2) as u32);
    Op { extents: vec![(ExtentKind::Data, start, len)], fill: rng.next() >> 8 }
}

async fn committed(rig: &Rig, c: &mut Chain) {
    rig.settle().await;
    rig.engine.committed(SHARD, Sequence(c.sequence));
    c.committed = c.sequence;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// What the list says: the version in front of the first one of the first moment from there on, or the last one.
fn expected(moments: &[(Moment, u64)], at: Moment, last: u64) -> u64 {
    moments.iter().find(|(m, _)| *m >= at).map_or(last, |(_, v)| v - 1)
}

/// Writes of some versions in each of so many moments, beginning at one; the list, and the rig on a device that was opened anew
/// in between.
async fn written(device: &CrashDevice, from: Moment, rounds: u64, seed: u64) -> (Rig, Chain, Vec<(Moment, u64)>) {
    create_log(device.clone(), &shape(128)).await.unwrap();
    let (mut c, mut rng) = (Chain::new(SHARD), Rng::new(seed));
    let mut rig = Rig::open_with(device.clone(), TINY).await.unwrap();
    rig.append(Record::Frame(c.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 9)], fill: 1 }])));
    // An earlier round has left something there.
    rig.append(Record::Frame(c.frame(&[begins(Moment(from.0 - 3)), begins(Moment(from.0 - 70_000))])));
    rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, 0)])));
    rig.append(Record::Frame(c.frame(&[forgets(from, from)])));
    let (mut list, mut moment) = (Vec::new(), from);
    for round in 0..rounds {
        moment = Moment(moment.0 + 1 + if rng.chance(20) { rng.below(3000) } else { 0 });
        list.push((moment, c.version + 1));
        let mut ops = vec![begins(moment)];
        ops.extend((0..rng.below(4)).map(|_| small(&mut rng)));
        rig.append(Record::Frame(c.frame(&ops)));
        if rng.chance(30) {
            rig.append(Record::Frame(c.frame(&[small(&mut rng)])));
        }
        if round % 16 == 0 {
            committed(&rig, &mut c).await;
        }
        if round == rounds / 2 {
            rig.engine.checkpoint().await.unwrap();
            rig.stop().await;
            rig = Rig::open_with(device.clone(), TINY).await.unwrap();
        }
    }
    committed(&rig, &mut c).await;
    (rig, c, list)
}

#[test]
fn times_are_found_as_a_list_of_moments_says() {
    // Two begin near the end of the addresses, and go round.
    for (seed, from) in
        [(1, 17_000_000_000), (2, 507 * limits::SHARD_MOMENTS - 700), (3, 9 * limits::SHARD_MOMENTS - 1)]
    {
        local(async move {
            let device = crash_device(144 << 20, seed);
            let (rig, c, list) = written(&device, Moment(from), 600, seed).await;
            let mut rng = Rng::new(seed + 50);
            let now = list.last().unwrap().0.next();
            let at = async |past| rig.engine.find_past(SHARD, past, now, None).await;
            for _ in 0..500 {
                let (m, last) = (list[rng.below(list.len() as u64) as usize].0, c.version);
                let ms = (m.ms() + rng.below(300)).saturating_sub(150).clamp(list[0].0.ms() + 1, now.ms());
                let want = expected(&list, Moment::from_ms(ms), last);
                let found = at(Past::TimeMs(ms)).await.unwrap();
                assert_eq!(found, PastVersion { version: Version(want), pinned: None }, "seed {seed}, {ms} ms");
            }
            let all = rig.engine.moments(SHARD, Moment(0), now, usize::MAX).await.unwrap();
            assert_eq!(all, list.iter().map(|(m, v)| (*m, Version(*v))).collect::<Vec<_>>());
            assert_eq!(rig.engine.moments(SHARD, list[7].0, list[400].0, 3).await.unwrap(), all[7..10]);
            rig.engine.check();
            rig.stop().await;
        });
    }
}

#[test]
fn what_lies_outside_of_the_window_is_refused_and_what_is_pinned_is_said() {
    local(async {
        let device = crash_device(144 << 20, 9);
        let (rig, mut c, list) = written(&device, Moment(1_000_000), 40, 9).await;
        let now = list.last().unwrap().0.next();
        let at = async |past| rig.engine.find_past(SHARD, past, now, None).await;
        let kind = async |past| at(past).await.unwrap_err().kind;
        assert_eq!(at(Past::Version(Version(4))).await.unwrap().version, Version(4));
        assert_eq!(kind(Past::Version(Version(1))).await, ErrorKind::NotFound);
        assert_eq!(kind(Past::Version(Version(c.version + 1))).await, ErrorKind::NotFound);
        assert_eq!(kind(Past::TimeMs(now.ms() + 1)).await, ErrorKind::NotFound, "it has not come yet");

        // The window moves up to a version in the middle, and one behind it is pinned.
        let ((begin, version), pinned) = (list[21], list[25].1);
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, version - 1), (UpdateKind::Past, pinned)])));
        rig.append(Record::Frame(c.frame(&[forgets(begin, now)])));
        committed(&rig, &mut c).await;
        for earlier in [begin.ms() - 1000, list[20].0.ms(), list[0].0.ms(), 1] {
            assert_eq!(kind(Past::TimeMs(earlier)).await, ErrorKind::NotFound, "{earlier} ms");
        }
        let before = at(Past::TimeMs(begin.ms() - 100)).await.unwrap_err();
        assert!(before.text.contains(&format!("from {} ms", begin.ms())), "{before}");
        assert_eq!(at(Past::TimeMs(begin.ms())).await.unwrap().version, Version(version - 1));
        let found = at(Past::Version(Version(pinned))).await.unwrap();
        assert_eq!(found.pinned, Some(pin(pinned).snapshot));
        // By its time it is the one behind it for others, which is of the same blocks.
        let by_time = Past::TimeMs(list[26].0.ms());
        let own = rig.engine.find_past(SHARD, by_time, now, Some(pin(list[26].1 - 1).snapshot)).await.unwrap();
        assert_eq!(own.version, Version(list[26].1 - 1));
        let then = rig.read_version(SHARD, Some(Version(pinned)), 64).await.unwrap();

        // Behind the window the pin stays, and what is told of moments goes.
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, c.version)])));
        committed(&rig, &mut c).await;
        assert_eq!(rig.read_version(SHARD, Some(Version(pinned)), 64).await.unwrap(), then);
        assert_eq!(kind(Past::Version(Version(pinned))).await, ErrorKind::NotFound);
        assert!(rig.engine.moments(SHARD, Moment(0), now, 9).await.unwrap().is_empty());
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Release, 0)])));
        committed(&rig, &mut c).await;
        assert_eq!(kind(Past::TimeMs(now.ms())).await, ErrorKind::NotFound, "there is no window");
        rig.engine.check();
        rig.stop().await;
    });
}

/// A head does not do so; what the pinned version needs may be gone, and a read must not make it up.
#[test]
fn a_version_that_is_not_kept_is_not_read_when_it_is_pinned() {
    for reopened in [false, true] {
        local(async move {
            let device = crash_device(144 << 20, 9);
            let (rig, mut c, list) = written(&device, Moment(1_000_000), 40, 9).await;
            let v = list[5].1;
            rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, list[20].1), (UpdateKind::Snapshot, 0)])));
            committed(&rig, &mut c).await;
            rig.append(Record::Frame(c.pins(&[(UpdateKind::Past, v)])));
            committed(&rig, &mut c).await;
            let rig = match reopened {
                false => rig,
                true => {
                    rig.stop().await;
                    Rig::open_with(device.clone(), TINY).await.unwrap()
                }
            };
            let read = rig.read_version(SHARD, Some(Version(v)), 64).await;
            let kind = if reopened { ErrorKind::NotFound } else { ErrorKind::Corrupt };
            assert_eq!(read.map(|m| m.len()).map_err(|e| e.kind), Err(kind), "reopened: {reopened}");
            rig.stop().await;
        });
    }
}

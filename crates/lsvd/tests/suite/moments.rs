//! Times of the past: each is the version that a plain list of moments says, whatever of the map lies in runs, behind a
//! checkpoint, or has come round to addresses that were used before.

use crate::common::*;
use crate::crash_device::crash_device;
use crate::history::TINY;
use freebs_format::{ExtentKind, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_lsvd::{PastVersion, Record, TimesAbove};
use freebs_types::{ErrorKind, Moment, Past, Sequence, ShardId, TIMES_LBA, Version, limits};

const SHARD: ShardId = ShardId::new(1, 0);
/// All that the log has counts.
const LAST: Version = Version(u64::MAX);

/// A zero at a moment's address.
fn begins(moment: Moment) -> Op {
    Op { extents: vec![(ExtentKind::Zero, moment.lba().0, 1)], fill: 0 }
}

/// Times are told from the end of a moment on, as a head says it.
fn anew(moment: Moment) -> [Op; 2] {
    [Op { extents: vec![(ExtentKind::Zero, TIMES_LBA.0, 1)], fill: 0 }, forgets(moment, moment.next())]
}

/// Nothing is known of moments up to, but without, another one.
fn forgets(from: Moment, end: Moment) -> Op {
    Op { extents: from.until(end).iter().map(|r| (ExtentKind::Trim, r.start.0, r.len)).collect(), fill: 0 }
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

/// The list's answer: the version in front of the first one of the first moment from there on, or the last one.
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
    // An earlier round, or a clock that was wrong, has left something there, which lies in the way of what comes.
    let left = [3, 70_000].map(|n| begins(Moment(from.0 - n)));
    let ahead = [5, 700, 90_000].map(|n| begins(Moment(from.0 + n)));
    rig.append(Record::Frame(c.frame(&left)));
    rig.append(Record::Frame(c.frame(&ahead)));
    rig.append(Record::Frame(c.frame(&[forgets(Moment(from.0 + 40), Moment(from.0 + 300))])));
    rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, u64::MAX >> 8)])));
    rig.append(Record::Frame(c.frame(&anew(from))));
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
            let at = async |past| rig.engine.find_past(SHARD, past, (now, LAST), None).await;
            assert_eq!(at(Past::TimeMs(Moment(from).ms())).await.unwrap_err().kind, ErrorKind::NotFound);
            assert_eq!(rig.engine.times_begin(SHARD, now).await.unwrap(), Some(Moment(from).next()));
            for _ in 0..500 {
                let (m, last) = (list[rng.below(list.len() as u64) as usize].0, c.version);
                let ms = (m.ms() + rng.below(300)).saturating_sub(150).clamp(Moment(from).ms() + 1, now.ms());
                let want = expected(&list, Moment::from_ms(ms), last);
                let found = at(Past::TimeMs(ms)).await.unwrap();
                assert_eq!((found.version, found.pinned), (Version(want), None), "seed {seed}, {ms} ms");
                let next = list.iter().map(|(m, _)| *m).find(|m| *m >= Moment::from_ms(ms));
                assert_eq!(found.next, next, "seed {seed}, {ms} ms");
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
        let at = async |past| rig.engine.find_past(SHARD, past, (now, LAST), None).await;
        let kind = async |past| at(past).await.unwrap_err().kind;
        assert_eq!(at(Past::Version(Version(8))).await.unwrap().version, Version(8));
        assert_eq!(kind(Past::Version(Version(7))).await, ErrorKind::NotFound);
        assert_eq!(kind(Past::Version(Version(1))).await, ErrorKind::NotFound);
        assert_eq!(kind(Past::Version(Version(c.version + 1))).await, ErrorKind::NotFound);
        assert_eq!(kind(Past::TimeMs(now.ms() + 1)).await, ErrorKind::NotFound, "it has not come yet");

        // The window moves up to a version in the middle, and one behind it is pinned.
        let ((begin, version), pinned) = (list[21], list[25].1);
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, version - 1), (UpdateKind::Past, pinned)])));
        rig.append(Record::Frame(c.frame(&[forgets(Moment(1_000_001), begin)])));
        committed(&rig, &mut c).await;
        for earlier in [begin.ms() - 1000, list[20].0.ms(), list[0].0.ms(), 1] {
            assert_eq!(kind(Past::TimeMs(earlier)).await, ErrorKind::NotFound, "{earlier} ms");
        }
        let before = at(Past::TimeMs(begin.ms() - 100)).await.unwrap_err();
        assert!(before.text.contains(&format!("from {} ms", begin.ms())), "{before}");
        assert_eq!(at(Past::TimeMs(begin.ms())).await.unwrap().version, Version(version - 1));
        let found = at(Past::Version(Version(pinned))).await.unwrap();
        assert_eq!(found.pinned, Some(pin(pinned).snapshot));
        // A head that asks for where the window may begin is told of it in any case: moments behind it count from there on.
        let begin = Past::TimeMs(list[25].0.ms());
        assert_eq!(at(begin).await.unwrap().version, Version(pinned - 1));
        // By its time it is the one behind it for others, which is of the same blocks.
        let by_time = Past::TimeMs(list[26].0.ms());
        let own = rig.engine.find_past(SHARD, by_time, (now, LAST), Some(pin(list[26].1 - 1).snapshot)).await.unwrap();
        assert_eq!(own.version, Version(list[26].1 - 1));
        let then = rig.read_version(SHARD, Some(Version(pinned)), 64).await.unwrap();

        // Behind the window the pin stays, and what is told of moments goes.
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, c.version)])));
        committed(&rig, &mut c).await;
        assert_eq!(rig.read_version(SHARD, Some(Version(pinned)), 64).await.unwrap(), then);
        assert_eq!(kind(Past::Version(Version(pinned))).await, ErrorKind::NotFound);
        assert!(rig.engine.moments(SHARD, Moment(0), now, 9).await.unwrap().is_empty());
        // Nothing has said as of which moment that is, as after a branch: no time is answered before one is told anew.
        for (m, _) in &list {
            assert_eq!(kind(Past::TimeMs(m.ms())).await, ErrorKind::NotFound);
        }
        assert_eq!(kind(Past::TimeMs(now.ms())).await, ErrorKind::NotFound);
        let next = now.next().next();
        let first = c.version + 1;
        rig.append(Record::Frame(c.frame(&[begins(next), small(&mut Rng::new(3))])));
        committed(&rig, &mut c).await;
        let at_next = async |ms| rig.engine.find_past(SHARD, Past::TimeMs(ms), (next, LAST), None).await;
        assert_eq!(at_next(next.ms()).await.unwrap().version, Version(first - 1));
        assert_eq!(at_next(next.ms() - 100).await.unwrap_err().kind, ErrorKind::NotFound);
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Release, 0)])));
        committed(&rig, &mut c).await;
        assert_eq!(kind(Past::TimeMs(now.ms())).await, ErrorKind::NotFound, "there is no window");
        rig.engine.check();
        rig.stop().await;
    });
}

/// A time at which nothing had been ordered since was taken for that of the log's last version, also of what was ordered behind
/// the question: a snapshot of a minute ago had what was written while it was looked for.
#[test]
fn what_is_ordered_behind_the_question_is_not_of_the_past() {
    local(async {
        let device = crash_device(144 << 20, 12);
        let (rig, mut c, list) = written(&device, Moment(1_000_000), 40, 12).await;
        let (now, last) = (list[39].0.next(), Version(c.version));
        rig.append(Record::Frame(c.frame(&[begins(now.next()), small(&mut Rng::new(3))])));
        committed(&rig, &mut c).await;
        assert!(Version(c.version) > last);
        let found = rig.engine.find_past(SHARD, Past::TimeMs(now.ms()), (now, last), None).await.unwrap();
        assert_eq!((found.version, found.next), (last, None));
        rig.stop().await;
    });
}

/// The trims of each step, of all addresses in front of it, and the zeroes of each moment became history: a volume that is
/// written ten times a second had a million extents of them after an hour, and segments that nothing could empty.
#[test]
fn a_window_that_moves_keeps_no_history_of_times() {
    local(async {
        let device = crash_device(48 << 20, 5);
        create_log(device.clone(), &shape(32)).await.unwrap();
        let (mut c, mut rng) = (Chain::new(SHARD), Rng::new(5));
        let rig = Rig::open_with(device.clone(), TINY).await.unwrap();
        rig.engine.set_cleaning(crate::history::eager());
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, u64::MAX >> 8)])));
        let mut moment = Moment(17_000_000_000);
        rig.append(Record::Frame(c.frame(&anew(moment))));
        let mut list = std::collections::VecDeque::new();
        let mut begin = moment.next();
        let mut most = 0;
        for _ in 0..400 {
            for _ in 0..10 {
                moment = moment.next();
                list.push_back((moment, c.version));
                let (start, len) = (rng.below(40) as u32, 20);
                let op = Op { extents: vec![(ExtentKind::Data, start, len)], fill: rng.next() >> 8 };
                rig.append(Record::Frame(c.frame(&[begins(moment), op])));
            }
            while list.len() > 30 {
                list.pop_front();
            }
            let (to, version) = list[0];
            if to > begin {
                rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, version)])));
                rig.append(Record::Frame(c.frame(&[forgets(begin, to)])));
                begin = to;
            }
            committed(&rig, &mut c).await;
            most = most.max(rig.engine.history(SHARD).unwrap().extents);
        }
        // Of blocks: 30 moments, each of which splits those of before.
        assert!(most < 2_000, "{most} extents");
        let cleaned = rig.engine.counters().cleaned_segments;
        assert!(cleaned > 100, "{cleaned} segments were given up, of a device that was written several times over");
        for (m, version) in &list {
            let found = rig.engine.find_past(SHARD, Past::TimeMs(m.ms()), (moment, LAST), None).await.unwrap();
            assert_eq!(found.version, Version(*version));
        }
        let before = Past::TimeMs(list[0].0.ms() - 100);
        assert_eq!(
            rig.engine.find_past(SHARD, before, (moment, LAST), None).await.unwrap_err().kind,
            ErrorKind::NotFound
        );
        rig.engine.check();
        rig.stop().await;
    });
}

/// From the time on at which addresses came again, moments of rest met what an earlier round had left, and were refused, or
/// were told wrong.
#[test]
fn what_an_earlier_round_has_left_does_not_count() {
    local(async {
        let device = crash_device(144 << 20, 6);
        create_log(device.clone(), &shape(128)).await.unwrap();
        let (mut c, mut rng) = (Chain::new(SHARD), Rng::new(6));
        let rig = Rig::open_with(device.clone(), TINY).await.unwrap();
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, u64::MAX >> 8)])));
        let start = Moment(9 * limits::SHARD_MOMENTS + 1000);
        rig.append(Record::Frame(c.frame(&anew(start))));
        // A window of 2,000 moments goes on for three rounds, by leaps that a head may make.
        let (mut now, mut begin, mut list) = (start, start.next(), Vec::new());
        for round in 0..400 {
            now = Moment(now.0 + 1 + if round % 100 < 50 { rng.below(8_000_000) } else { rng.below(300) });
            list.push((now, c.version + 1));
            rig.append(Record::Frame(c.frame(&[begins(now), small(&mut rng)])));
            let to = now.less(2000);
            if to > begin {
                let first = expected(&list, to, c.version);
                rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, first)])));
                rig.append(Record::Frame(c.frame(&[forgets(begin.max(to.less(700)), to)])));
                begin = to;
            }
            committed(&rig, &mut c).await;
            for _ in 0..20 {
                let at = Moment(now.0 - rng.below(2500));
                let found = rig.engine.find_past(SHARD, Past::TimeMs(at.ms()), (now, LAST), None).await;
                if at < begin {
                    assert_eq!(found.unwrap_err().kind, ErrorKind::NotFound, "{at:?}, the window begins at {begin:?}");
                } else {
                    assert_eq!(found.unwrap().version, Version(expected(&list, at, c.version)), "{at:?} of {now:?}");
                }
            }
        }
        assert!(now.0 > start.0 + 2 * limits::SHARD_MOMENTS, "addresses came again");
        rig.stop().await;
    });
}

/// A clock was ahead: what it told of hours to come was taken for theirs.
#[test]
fn what_a_wrong_clock_has_told_does_not_count_once_times_begin_anew() {
    local(async {
        let device = crash_device(144 << 20, 7);
        let (rig, mut c, list) = written(&device, Moment(1_000_000), 40, 7).await;
        let back = Moment(list[20].0.0 + 1);
        rig.append(Record::Frame(c.frame(&anew(back))));
        let then = Moment(back.0 + 3);
        let first = c.version + 1;
        rig.append(Record::Frame(c.frame(&[begins(then), small(&mut Rng::new(1))])));
        committed(&rig, &mut c).await;
        let now = Moment(list[39].0.0 + 10);
        let at = async |m: Moment| rig.engine.find_past(SHARD, Past::TimeMs(m.ms()), (now, LAST), None).await;
        for m in [list[3].0, list[20].0, back] {
            assert_eq!(at(m).await.unwrap_err().kind, ErrorKind::NotFound, "{m:?}");
        }
        for m in [back.next(), then] {
            assert_eq!(at(m).await.unwrap().version, Version(first - 1));
        }
        for (m, _) in list.iter().filter(|(m, _)| *m > then) {
            assert_eq!(at(*m).await.unwrap().version, Version(c.version), "{m:?}");
        }
        // By their numbers versions of before are there.
        let found = rig.engine.find_past(SHARD, Past::Version(Version(list[30].1)), (now, LAST), None).await.unwrap();
        assert_eq!(found.version, Version(list[30].1));
        rig.stop().await;
    });
}

/// Two heads looked for the version of the same snapshot, and another snapshot's pin went in between: they pinned different ones,
/// and the one that counted was given up as the older of two.
#[test]
fn a_snapshot_that_pins_a_version_already_gets_that_one() {
    local(async {
        let device = crash_device(144 << 20, 8);
        let (rig, mut c, list) = written(&device, Moment(1_000_000), 40, 8).await;
        let (now, version) = (list[39].0.next(), list[25].1 - 1);
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Past, version)])));
        committed(&rig, &mut c).await;
        let at =
            async |id| rig.engine.find_past(SHARD, Past::TimeMs(list[25].0.ms()), (now, LAST), Some(id)).await.unwrap();
        let other = freebs_types::SnapshotId(4_000_000);
        let next = Some(list[25].0);
        assert_eq!(at(other).await, PastVersion { version: Version(version + 1), pinned: None, next });
        let own = pin(version).snapshot;
        assert_eq!(at(own).await, PastVersion { version: Version(version), pinned: Some(own), next: None });
        let other = Past::TimeMs(list[30].0.ms());
        assert_eq!(rig.engine.find_past(SHARD, other, (now, LAST), Some(own)).await.unwrap().version, Version(version));
        rig.stop().await;
    });
}

/// Nothing bounded what a window keeps in memory. Where there is room it goes to the device; nobody has to give anything up.
#[test]
fn who_takes_most_memory_for_the_past_is_told() {
    local(past_in_memory(true));
    local(past_in_memory(false));
}

async fn past_in_memory(is_over: bool) {
    let device = crash_device(144 << 20, 11);
    create_log(device.clone(), &shape(128)).await.unwrap();
    let other = ShardId::new(2, 0);
    let (mut c, mut d, mut rng) = (Chain::new(SHARD), Chain::new(other), Rng::new(11));
    let rig = Rig::open_with(device.clone(), TINY).await.unwrap();
    if is_over {
        rig.engine.refuse_past();
    }
    for c in [&mut c, &mut d] {
        rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, u64::MAX >> 8)])));
    }
    rig.append(Record::Frame(c.frame(&anew(Moment(5000)))));
    let mut list = Vec::new();
    for n in 0..100 {
        list.push((Moment(5001 + 3 * n), c.version + 1));
        rig.append(Record::Frame(c.frame(&[begins(Moment(5001 + 3 * n)), small(&mut rng)])));
        if n < 8 {
            rig.append(Record::Frame(d.frame(&[small(&mut rng)])));
        }
    }
    committed(&rig, &mut c).await;
    rig.engine.committed(other, Sequence(d.sequence));
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.engine.past_over(), [SHARD][..usize::from(is_over)]);
    assert_eq!(rig.engine.past_pages() == 0, is_over);
    let now = Moment(6000);
    let above = async |v| rig.engine.times_above(SHARD, Version(v), (Moment(5001), now)).await.unwrap();
    for v in [7, list[40].1 - 1, list[40].1] {
        let first = list.iter().find(|(_, first)| *first > v).unwrap().0;
        assert_eq!(above(v).await, TimesAbove::From(first));
    }
    assert_eq!(above(list[99].1).await, TimesAbove::None);
    // Nothing is told of the versions that are let go of: what is told stays.
    assert_eq!(above(1).await, TimesAbove::Same);
    rig.append(Record::Frame(c.pins(&[(UpdateKind::Retain, c.version)])));
    committed(&rig, &mut c).await;
    assert!(rig.engine.past_over().is_empty());
    rig.stop().await;
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

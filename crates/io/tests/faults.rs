//! The fault devices do what they say, no more and no less.

use freebs_io::faults::{Call, CrashDevice, Failure, FaultDevice, Lie, Rot, RotDevice, Survives};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::ErrorKind;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const SECTOR: usize = 512;

/// Polls a future that never waits for anything outside.
fn run<F: Future>(f: F) -> F::Output {
    let mut f = pin!(f);
    for _ in 0..1000 {
        if let Poll::Ready(out) = f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return out;
        }
    }
    panic!("the future waits for ever");
}

fn poll_once<F: Future>(f: std::pin::Pin<&mut F>) -> bool {
    f.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn filled(sectors: usize, with: u8) -> AlignedBuf {
    let mut b = AlignedBuf::zeroed(sectors * SECTOR);
    b.fill(with);
    b
}

/// The first byte of each sector.
fn firsts<D: Device>(d: &D) -> Vec<u8> {
    let all = run(d.read(0, d.len() as usize)).unwrap();
    all.chunks_exact(SECTOR).map(|s| s[0]).collect()
}

fn write<D: Device>(d: &D, sector: u64, sectors: usize, with: u8, durability: Durability) {
    run(d.write(sector * SECTOR as u64, filled(sectors, with), durability)).1.unwrap();
}

fn device(sectors: u64) -> CrashDevice {
    let d = CrashDevice::new(SECTOR, 1 << 20);
    run(d.set_len(sectors * SECTOR as u64)).unwrap();
    d
}

#[test]
fn only_what_was_not_promised_is_lost() {
    let d = device(8);
    write(&d, 0, 2, 1, Durability::Durable);
    write(&d, 2, 2, 2, Durability::Cached);
    assert_eq!(firsts(&d), [1, 1, 2, 2, 0, 0, 0, 0]);
    let cut = d.cut();
    assert_eq!(cut.unsynced(), 1);
    assert_eq!(firsts(&cut.image(Survives::Nothing)), [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(firsts(&cut.image(Survives::Everything)), firsts(&d));
    run(d.sync()).unwrap();
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), firsts(&d));
    assert_eq!(firsts(&cut.image(Survives::Nothing))[2], 0, "a cut keeps its moment");
    assert_eq!(d.calls(), 4);
}

#[test]
fn unsynced_writes_come_in_any_order_and_tear_at_sectors_only() {
    let d = device(8);
    write(&d, 0, 8, 1, Durability::Durable);
    write(&d, 0, 4, 2, Durability::Cached);
    write(&d, 2, 4, 3, Durability::Cached);
    let cut = d.cut();
    let whole: BTreeSet<_> = (0..200).map(|s| firsts(&cut.image(Survives::Some(s)))).collect();
    let expected = [[1; 8], [2, 2, 2, 2, 1, 1, 1, 1], [1, 1, 3, 3, 3, 3, 1, 1], [2, 2, 3, 3, 3, 3, 1, 1]];
    assert_eq!(whole, expected.iter().map(|e| e.to_vec()).collect());
    let mut torn = BTreeSet::new();
    for s in 0..300 {
        let image = cut.image(Survives::Torn(s));
        for sector in run(image.read(0, 8 * SECTOR)).unwrap().chunks_exact(SECTOR) {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector never tears");
        }
        torn.insert(firsts(&image));
    }
    assert!(torn.len() > 12, "{} different torn images", torn.len());
    assert_eq!(firsts(&cut.image(Survives::Torn(5))), firsts(&cut.image(Survives::Torn(5))), "by seed");
}

#[test]
fn a_durable_write_is_not_undone_by_an_older_cached_one() {
    let d = device(4);
    write(&d, 0, 4, 1, Durability::Cached);
    write(&d, 1, 2, 2, Durability::Durable);
    for s in [Survives::Nothing, Survives::Everything, Survives::Some(1), Survives::Torn(2)] {
        let image = firsts(&d.cut().image(s));
        assert_eq!(&image[1..3], [2, 2]);
    }
    assert_eq!(firsts(&d.cut().image(Survives::Everything)), [1, 2, 2, 1]);
    run(d.sync()).unwrap();
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), [1, 2, 2, 1]);
    run(d.punch(0, 1024)).unwrap();
    assert_eq!(firsts(&d), [0, 0, 2, 1]);
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), [1, 2, 2, 1], "a hole may not have been punched");
    write(&d, 0, 1, 7, Durability::Durable);
    assert_eq!(firsts(&d.cut().image(Survives::Everything)), [7, 0, 2, 1]);
}

#[test]
fn growth_under_way_may_be_lost_and_growth_that_returned_is_not() {
    let d = device(2);
    d.pace(3, 3);
    let lengths: std::rc::Rc<std::cell::RefCell<BTreeSet<u64>>> = std::rc::Rc::default();
    let seen = lengths.clone();
    d.on_call(move |_, cut| {
        for s in 0..100 {
            seen.borrow_mut().insert(cut.image(Survives::Torn(s)).len() / SECTOR as u64);
        }
        assert_eq!(cut.image(Survives::Nothing).len(), 2 * SECTOR as u64);
        assert_eq!(cut.image(Survives::Everything).len(), 6 * SECTOR as u64);
    });
    run(d.set_len(6 * SECTOR as u64)).unwrap();
    assert_eq!(lengths.take(), BTreeSet::from([2, 3, 4, 5, 6]));
    assert_eq!(d.cut().image(Survives::Nothing).len(), 6 * SECTOR as u64);
    assert_eq!(run(d.set_len(2 << 20)).unwrap_err().kind, ErrorKind::NoSpace);
}

#[test]
fn after_a_kill_the_cache_is_still_there_and_still_unsynced() {
    let (mut done, mut part, mut not) = (0, 0, 0);
    for seed in 0..100 {
        let d = device(16);
        write(&d, 0, 1, 1, Durability::Cached);
        d.stop_at(3);
        {
            let mut call = pin!(d.write(SECTOR as u64, filled(15, 9), Durability::Durable));
            assert!(!poll_once(call.as_mut()));
        }
        d.kill(seed);
        let seen = firsts(&d);
        assert_eq!(seen[0], 1);
        match seen.iter().filter(|b| **b == 9).count() {
            15 => done += 1,
            0 => not += 1,
            _ => part += 1,
        }
        assert!(firsts(&d.cut().image(Survives::Nothing)).iter().all(|b| *b == 0));
        d.stop_at(u64::MAX);
        run(d.sync()).unwrap();
        assert_eq!(firsts(&d.cut().image(Survives::Nothing)), seen);
    }
    assert!(done > 0 && part > 10 && not > 10, "{done} {part} {not}");
}

#[test]
fn lies_are_lies() {
    let d = device(2);
    d.lie(Lie::Durable);
    write(&d, 0, 2, 5, Durability::Durable);
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), [0, 0]);
    d.lie(Lie::Sync);
    run(d.sync()).unwrap();
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), [0, 0]);
    d.lie(Lie::Length);
    run(d.set_len(2048)).unwrap();
    assert_eq!(d.cut().image(Survives::Nothing).len(), 1024);
    run(d.sync()).unwrap();
    assert_eq!(firsts(&d.cut().image(Survives::Nothing)), [5, 5, 0, 0]);
}

#[test]
fn a_failed_write_poisons_and_a_failed_read_does_not() {
    for (failure, left) in [(Failure::Io, [1, 1]), (Failure::Short, [2, 1]), (Failure::Late, [2, 2])] {
        let d = FaultDevice::new(device(2));
        write(&d, 0, 2, 1, Durability::Durable);
        d.plan(Call::Read, 1, Failure::Io);
        d.plan(Call::Read, 2, Failure::Short);
        assert_eq!(firsts(&d), [1, 1]);
        assert_eq!(run(d.read(0, 512)).unwrap_err().kind, ErrorKind::Os);
        assert_eq!(run(d.read(0, 512)).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(firsts(&d), [1, 1]);
        d.plan(Call::Write, 0, failure);
        assert_eq!(run(d.write(0, filled(2, 2), Durability::Durable)).1.unwrap_err().kind, ErrorKind::Os);
        assert!(d.is_poisoned());
        assert_eq!(run(d.read(0, 512)).unwrap_err().kind, ErrorKind::DeviceFailed);
        assert_eq!(run(d.sync()).unwrap_err().kind, ErrorKind::DeviceFailed);
        assert_eq!(run(d.set_len(4096)).unwrap_err().kind, ErrorKind::DeviceFailed);
        assert_eq!(firsts(d.inner()), left, "{failure:?}");
        assert_eq!((d.hits(), d.count(Call::Write), d.count(Call::Read)), (3, 2, 4));
    }
}

#[test]
fn a_failed_sync_poisons_what_is_under_way_and_no_space_heals() {
    let d = FaultDevice::new(device(2));
    d.plan(Call::Allocate, 0, Failure::NoSpace);
    assert_eq!(run(d.set_len(4096)).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(d.len(), 1024);
    run(d.set_len(4096)).unwrap();
    d.inner().pace(1, 3);
    d.plan(Call::Sync, 0, Failure::Io);
    d.plan(Call::Write, 0, Failure::Slow);
    let mut slow = pin!(d.write(0, filled(1, 1), Durability::Durable));
    assert!(!poll_once(slow.as_mut()));
    assert_eq!(run(d.sync()).unwrap_err().kind, ErrorKind::Os);
    assert!(!poll_once(slow.as_mut()), "until it is let go");
    d.let_go();
    assert_eq!(run(slow).1.unwrap_err().kind, ErrorKind::DeviceFailed);
    assert_eq!(firsts(d.inner())[0], 0);
    let d = FaultDevice::new(device(2));
    d.plan(Call::Allocate, 0, Failure::Short);
    assert_eq!(run(d.set_len(4096)).unwrap_err().kind, ErrorKind::Os);
    assert!(d.is_poisoned() && d.inner().len() == 2560, "{}", d.inner().len());
}

#[test]
fn a_bad_sector_fails_until_it_is_written() {
    let d = FaultDevice::new(device(4));
    d.spoil(512);
    for (at, len) in [(0, 2048), (512, 512), (512, 1024)] {
        assert_eq!(run(d.read(at, len)).unwrap_err().kind, ErrorKind::Os);
    }
    run(d.read(0, 512)).unwrap();
    run(d.read(1024, 1024)).unwrap();
    write(&d, 0, 2, 3, Durability::Durable);
    assert_eq!(firsts(&d), [3, 3, 0, 0]);
}

#[test]
fn rot_is_silent() {
    let d = RotDevice::new(device(4));
    write(&d, 0, 4, 1, Durability::Durable);
    assert!(run(d.rot(512, Rot::Flip(9))).unwrap());
    let got = run(d.read(0, 2048)).unwrap();
    assert_eq!((got[512], got[513]), (1, 3));
    assert!(run(d.rot(0, Rot::Zero)).unwrap() && !run(d.rot(0, Rot::Zero)).unwrap());
    assert!(run(d.rot(1024, Rot::Garbage(4))).unwrap());
    assert!(run(d.rot(1536, Rot::CopyOf(0))).unwrap());
    assert_eq!((firsts(&d)[0], firsts(&d)[3]), (0, 0));
    write(&d, 0, 1, 1, Durability::Durable);
    write(&d, 1, 1, 2, Durability::Durable);
    assert!(run(d.swap(0, 512)).unwrap());
    assert_eq!(firsts(&d)[..2], [2, 1]);
    d.lose_write(0);
    d.misdirect_write(1, 1024);
    d.misdirect_read(1, 512);
    write(&d, 0, 1, 7, Durability::Durable);
    write(&d, 0, 1, 8, Durability::Durable);
    assert_eq!(firsts(&d)[..3], [2, 1, 8]);
    assert_eq!(run(d.read(0, 512)).unwrap()[0], 1);
    assert_eq!((d.hits(), d.writes()), (3, 5));
}

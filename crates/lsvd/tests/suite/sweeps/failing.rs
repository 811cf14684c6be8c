//! Failing calls: in every workload each call to the device fails once, in one way or another.
//!
//! No answer is lost and none is given for what was not done; a failed write or sync ends the log, a failed read and a
//! lack of space do not; a slow call is waited for. Nothing panics.

use super::live::{Book, Live, Verdict};
use super::story::{BLOCKS, Story};
use super::{TURNS, full, seeds};
use crate::common::{Op, Rng, create_log, local, shape};
use freebs_io::Device;
use freebs_io::faults::{Call, CrashDevice, Failure, FaultDevice, Lie, Survives};
use freebs_types::{ErrorKind, ShardId};
use std::rc::Rc;

const SECTOR: usize = 512;
const SHARDS: u64 = 2;
const SEGMENTS: u64 = 10;
/// A shard that nobody wrote to before a damaged start.
const LATE: ShardId = ShardId::new(99, 0);

type Faulty = FaultDevice<CrashDevice>;

#[derive(Clone, Copy, Debug)]
struct Plan {
    call: Call,
    n: u64,
    failure: Failure,
}

#[derive(Default)]
struct Tally {
    workloads: u64,
    runs: u64,
    hits: u64,
    poisoned: u64,
    refused: u64,
    damaged: u64,
    answers: u64,
    moved: u64,
}

/// How a call of a kind may fail.
fn failures(call: Call) -> &'static [Failure] {
    use Failure::{Io, Late, NoSpace, Short, Slow};
    match call {
        Call::Read => &[Io, Short, Slow],
        Call::Write => &[Io, Short, Late, NoSpace, Slow],
        Call::Sync => &[Io, Late, Slow],
        Call::Allocate => &[NoSpace, Io, Short, Late, Slow],
    }
}

/// A device with an empty log.
async fn fresh() -> CrashDevice {
    let device = CrashDevice::new(SECTOR, 1 << 27);
    create_log(device.clone(), &shape(SEGMENTS)).await.expect("a device without faults");
    device
}

/// One run with at most one fault; the device as it is at the end.
async fn run(seed: u64, device: &Faulty, book: &Rc<Book>, plan: Option<Plan>, tally: &mut Tally) -> Verdict {
    let mut rng = Rng::new(seed);
    if let Some(p) = plan {
        device.plan(p.call, p.n, p.failure);
    }
    // What hangs is let go after a while.
    let hanging = device.clone();
    let releaser = tokio::task::spawn_local(async move {
        loop {
            for _ in 0..300 {
                tokio::task::yield_now().await;
            }
            hanging.let_go();
        }
    });
    let mut done = Ok(());
    for phase in 0..2 {
        match start(seed, device, book, phase, &mut rng, plan, tally).await {
            Ok(true) => {}
            Ok(false) => {
                device.inner().kill(rng.next());
                break;
            }
            Err(e) => {
                done = Err(format!("start {phase}: {e}"));
                break;
            }
        }
        device.inner().kill(rng.next());
    }
    releaser.abort();
    let _ = releaser.await;
    done
}

/// One start of the engine, with writes; whether another one makes sense.
async fn start(
    seed: u64,
    device: &Faulty,
    book: &Rc<Book>,
    phase: u64,
    rng: &mut Rng,
    plan: Option<Plan>,
    tally: &mut Tally,
) -> Verdict<bool> {
    let before = device.hits();
    let hit = || device.hits() > 0 && plan.is_none_or(|p| p.failure != Failure::Slow);
    let mut live = match Live::open(device.clone(), book.clone()).await {
        Ok(live) => live,
        Err(e) if hit() => {
            tally.refused += 1;
            let kinds = [ErrorKind::DeviceFailed, ErrorKind::Os, ErrorKind::NoSpace, ErrorKind::Corrupt];
            return if kinds.contains(&e.kind) { Ok(false) } else { Err(format!("open: {e}")) };
        }
        Err(e) => return Err(format!("open: {e}")),
    };
    let suspect = live.engine.shards().iter().any(|s| live.engine.state(*s).is_some_and(|s| s.suspect_tail));
    if hit() && device.hits() > before && (suspect || !live.report.damage.is_empty()) {
        tally.damaged += 1;
        return damaged(live, rng).await.map(|()| false);
    }
    live.take_stock(hit).await?;
    live.start();
    live.play(rng, if phase == 0 { 30 } else { 12 }, hit).await?;
    live.settle().await?;
    for _ in 0..5000 {
        // What fails may be a write that nobody waits for.
        if live.has_failed() || !device.is_poisoned() {
            break;
        }
        tokio::task::yield_now().await;
    }
    tally.moved += live.moved();
    if live.has_failed() {
        tally.poisoned += 1;
        failed(live, device, plan).await?;
        return Ok(false);
    }
    if device.is_poisoned() {
        return Err("the device has failed, and nobody was told".into());
    }
    live.sound()?;
    if seed.is_multiple_of(3)
        && let Err(e) = live.digests().await
        && !hit()
    {
        return Err(format!("digest: {e}"));
    }
    match live.close().await {
        // The fault may hit what closing writes.
        Err(_) if device.is_poisoned() => Ok(false),
        done => done.map(|()| true),
    }
}

/// The log has failed: it says so to everybody, and never answers again.
async fn failed(live: Live, device: &Faulty, plan: Option<Plan>) -> Verdict {
    let e = live.book.failed.borrow().clone().expect("the caller saw it");
    if e.kind != ErrorKind::DeviceFailed || !device.is_poisoned() || !live.engine.space().poisoned {
        return Err(format!("{plan:?} ended the log with {:?}: {e}", e.kind));
    }
    let answers = live.book.answers.get();
    let shards = live.book.stories.borrow().len();
    for i in 0..shards {
        let there = live.book.stories.borrow()[i].now().present;
        match live.compare(i, 0, 4).await? {
            Err(e) if e.kind == ErrorKind::DeviceFailed || !there => {}
            other => return Err(format!("nothing is believed after a failure, but a read gave {other:?}")),
        }
        let frame = live.book.stories.borrow_mut()[i].view();
        live.engine.append(freebs_lsvd::Record::Frame(frame));
    }
    live.engine.flush_idle();
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    if live.book.answers.get() != answers {
        return Err("an answer after the end".into());
    }
    live.wrong()?;
    match live.close().await {
        Err(_) => Ok(()),
        Ok(()) => Err("closing a failed log pretends success".into()),
    }
}

/// A read failed during recovery, and recovery says that something is damaged: what it gives is right all the same,
/// and what is written then does not destroy what could not be read.
async fn damaged(mut live: Live, rng: &mut Rng) -> Verdict {
    live.nothing_wrong(rng).await?;
    live.start();
    live.book.stories.borrow_mut().push(Story::new(LATE));
    for _ in 0..10 {
        let frame = live.book.stories.borrow_mut().last_mut().expect("just pushed").view();
        live.engine.append(freebs_lsvd::Record::Frame(frame));
        for _ in 0..rng.below(5) {
            tokio::task::yield_now().await;
        }
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    live.wrong()?;
    if live.has_failed() || live.book.stories.borrow().last().is_some_and(|s| !s.is_settled()) {
        return Err(format!("the log does not go on: {:?}", live.book.failed.borrow()));
    }
    live.close().await
}

/// After the run: on a device without faults everything that was answered is there.
async fn afterwards(seed: u64, device: &Faulty, book: &Rc<Book>, damaged: bool) -> Verdict {
    let disk = match device.is_poisoned() {
        true => device.inner().cut().image(Survives::Some(seed)),
        false => device.inner().copy(),
    };
    let mut live = Live::open(disk, book.clone()).await.map_err(|e| format!("open afterwards: {e}"))?;
    if damaged {
        // A segment that was thought damaged has no index; that is said at every start.
        live.report.damage.clear();
    }
    live.take_stock(|| false).await.map_err(|e| format!("afterwards: {e}"))?;
    live.start();
    live.play(&mut Rng::new(seed), 4, || false).await?;
    live.settle().await?;
    live.sound()?;
    live.close().await
}

async fn sweep_one(seed: u64, device: CrashDevice, plan: Option<Plan>, tally: &mut Tally) -> Verdict<[u64; 4]> {
    device.pace(seed, TURNS);
    let device = FaultDevice::new(device);
    let book = Book::new(SHARDS);
    let damaged = tally.damaged;
    run(seed, &device, &book, plan, tally).await?;
    let counts = Call::ALL.map(|c| device.count(c));
    tally.runs += 1;
    tally.hits += device.hits();
    afterwards(seed, &device, &book, tally.damaged > damaged).await?;
    tally.answers += book.answers.get();
    Ok(counts)
}

async fn sweep(seed: u64, tally: &mut Tally) -> Verdict {
    let empty = fresh().await;
    let counts = sweep_one(seed, empty.copy(), None, tally).await?;
    tally.workloads += 1;
    // In CI each workload takes its part of the calls, a different one for each.
    let step = if full() { 1 } else { 4 };
    for (call, count) in Call::ALL.into_iter().zip(counts) {
        let step = if count < 8 { 1 } else { step };
        for n in (seed % step..count).step_by(step as usize) {
            let all = failures(call);
            let first = ((n / step + seed) % all.len() as u64) as usize;
            for i in 0..if full() { all.len() } else { 1 } {
                let plan = Plan { call, n, failure: all[(first + i) % all.len()] };
                let done = sweep_one(seed, empty.copy(), Some(plan), tally).await;
                done.map_err(|e| format!("{plan:?}: {e}"))?;
            }
        }
    }
    Ok(())
}

fn part(n: u64) {
    let mut tally = Tally::default();
    for seed in seeds(228, 300, n, 2) {
        local(async {
            if let Err(e) = sweep(seed, &mut tally).await {
                panic!("{e}; again with {}", freebs_testing::again(seed));
            }
        });
    }
    let t = tally;
    println!(
        "measured: failing calls, part {n}: {} workloads, {} runs, {} failed calls ({} ended the log, {} refused to \
         open, {} said damage), {} answers, {} blocks moved",
        t.workloads, t.runs, t.hits, t.poisoned, t.refused, t.damaged, t.answers, t.moved
    );
    if t.workloads >= 114 {
        assert!(t.hits * 10 > t.runs * 8, "nearly every planned failure comes true");
        assert!(t.poisoned > 500 && t.refused > 100 && t.damaged > 50, "failures hit all kinds of places");
        assert!(t.moved > 1000, "{} blocks were moved", t.moved);
    }
}

#[test]
fn every_failing_call_of_even_workloads_is_survived() {
    part(0);
}

#[test]
fn every_failing_call_of_odd_workloads_is_survived() {
    part(1);
}

/// A file system that is full for a while: the log goes on with what it has, and grows again when it can.
#[test]
fn no_space_heals_without_a_restart() {
    for seed in 0..10 {
        local(async move {
            let device = CrashDevice::new(SECTOR, 1 << 27);
            create_log(device.clone(), &shape(40)).await.unwrap();
            device.pace(seed, TURNS);
            let book = Book::new(SHARDS);
            let mut live = Live::open(device.clone(), book).await.unwrap();
            live.start();
            let mut rng = Rng::new(seed);
            live.play(&mut rng, 20, || false).await.unwrap();
            device.set_limit(device.len() + 5 * crate::common::SEGMENT);
            let short = |live: &Live| {
                let space = live.engine.space();
                space.free_segments <= space.reserve_segments
            };
            // A head that sees so little room orders nothing more (rule W7). Nothing is committed, so nothing is freed.
            for _ in 0..400 {
                if short(&live) {
                    break;
                }
                let ops = [Op::random(&mut rng, BLOCKS), Op::random(&mut rng, BLOCKS)];
                let frame = live.book.stories.borrow_mut()[rng.below(SHARDS) as usize].write(&ops);
                live.engine.append(freebs_lsvd::Record::Frame(frame));
                live.settle().await.unwrap();
            }
            assert!(short(&live) && !live.has_failed(), "seed {seed}: {:?}", live.engine.space());
            device.set_limit(1 << 27);
            for _ in 0..20 {
                live.engine.flush_idle();
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            assert!(!short(&live), "seed {seed}: room is seen without a write: {:?}", live.engine.space());
            for _ in 0..20 {
                live.play(&mut rng, 5, || false).await.unwrap();
                live.settle().await.unwrap();
                assert!(!live.has_failed(), "{:?}", live.book.failed.borrow());
            }
            live.sound().unwrap();
            live.close().await.unwrap();
        });
    }
}

/// The sweep must be able to fail: on a device that loses what it promised, its failing calls show it.
#[test]
fn a_device_that_lies_is_found_out() {
    let mut found = 0;
    for seed in 0..4 {
        local(async {
            let empty = fresh().await;
            let device = empty.copy();
            device.lie(Lie::Durable);
            let plan = Plan { call: Call::Write, n: 12, failure: Failure::Io };
            if let Err(e) = sweep_one(seed, device, Some(plan), &mut Tally::default()).await {
                println!("{e}");
                found += 1;
            }
        });
    }
    assert!(found >= 3, "found in {found} of 4 workloads");
}

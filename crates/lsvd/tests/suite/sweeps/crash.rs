//! Power cuts: every workload is cut at every call that changes the device, and what may be left is recovered.
//!
//! Every recovery must give per shard a version at least the last durable answer, with everything up to it and
//! nothing after, no damage, and right counts; and the log goes on from there.

use super::live::{Book, Live, Verdict};
use super::story::Story;
use super::{TURNS, full, seeds};
use crate::common::{Rng, create_log, local, shape};
use freebs_io::Device;
use freebs_io::faults::{CrashDevice, Lie, PowerCut, Survives};
use freebs_lsvd::Counters;
use std::cell::RefCell;
use std::rc::Rc;

const SECTOR: usize = 512;
const SHARDS: u64 = 3;
const SEGMENTS: u64 = 14;

/// A power cut, and what was promised and sent by then.
struct Moment {
    call: u64,
    cut: PowerCut,
    stories: Vec<Story>,
}

#[derive(Default)]
pub struct Tally {
    workloads: u64,
    cuts: u64,
    recoveries: u64,
    went_on: u64,
    cut_again: u64,
    torn: u64,
    freed: u64,
    carried: u64,
    moved: u64,
    /// Phases of workloads in which the device became longer.
    grown: u64,
    checkpoints: u64,
    /// Recoveries that began with a checkpoint.
    begun: u64,
}

impl Tally {
    fn count(&mut self, c: Counters) {
        self.freed += c.segments_freed;
        self.carried += c.carried;
        self.checkpoints += c.checkpoints;
        self.moved += c.cleaned_bytes / freebs_types::BLOCK as u64;
    }
}

/// Records a power cut at every call from now on.
fn watch(device: &CrashDevice, book: &Rc<Book>) -> Rc<RefCell<Vec<Moment>>> {
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let (to, book) = (moments.clone(), book.clone());
    device.on_call(move |call, cut| {
        to.borrow_mut().push(Moment { call, cut, stories: book.stories.borrow().clone() });
    });
    moments
}

/// Runs a workload with restarts; the cuts at all of its calls.
async fn workload(seed: u64, lie: Option<Lie>, tally: &mut Tally) -> Verdict<Vec<Moment>> {
    let mut rng = Rng::new(seed);
    let device = CrashDevice::new(SECTOR, 1 << 27);
    create_log(device.clone(), &shape(SEGMENTS)).await.map_err(|e| e.to_string())?;
    device.pace(seed, TURNS);
    let book = Book::new(SHARDS);
    book.tiny.set(seed % 4 == 3);
    if let Some(lie) = lie {
        device.lie(lie);
    }
    let moments = watch(&device, &book);
    let phases = 2 + rng.below(3);
    for phase in 0..phases {
        let before = device.len();
        let mut live = Live::open(device.clone(), book.clone()).await.map_err(|e| format!("open: {e}"))?;
        live.take_stock(|| false).await.map_err(|e| format!("restart {phase}: {e}"))?;
        live.start();
        live.play(&mut rng, 240 / phases, || false).await?;
        tally.count(live.engine.counters());
        live.sound()?;
        if phase + 1 == phases || rng.chance(50) {
            live.settle().await?;
            live.close().await?;
        } else {
            live.kill().await;
        }
        tally.grown += u64::from(device.len() > before);
        // A growth may be under way even after a close.
        device.kill(rng.next());
    }
    tally.workloads += 1;
    Ok(moments.take())
}

/// Recovers what a power cut left; now and then the log goes on, and is cut again.
async fn recover(m: &Moment, survives: Survives, rng: &mut Rng, tally: &mut Tally) -> Verdict {
    let device = m.cut.image(survives);
    let book = Book::with(m.stories.clone());
    book.tiny.set(rng.chance(25));
    let moments = rng.chance(4).then(|| {
        device.pace(rng.next(), TURNS);
        watch(&device, &book)
    });
    let mut live = Live::open(device.clone(), book.clone()).await.map_err(|e| format!("open: {e}"))?;
    tally.recoveries += 1;
    tally.torn += u64::from(live.report.torn_bytes > 0);
    tally.begun += u64::from(live.report.checkpoint > 0);
    live.take_stock(|| false).await?;
    if moments.is_none() && !rng.chance(6) {
        return Ok(());
    }
    live.digests().await.map_err(|e| format!("digest: {e}"))?;
    live.start();
    live.play(rng, 12, || false).await.map_err(|e| format!("after the recovery: {e}"))?;
    tally.went_on += 1;
    live.settle().await?;
    live.sound()?;
    live.close().await?;
    device.kill(rng.next());
    let again = Live::open(device, book).await.map_err(|e| format!("open once more: {e}"))?;
    again.take_stock(|| false).await.map_err(|e| format!("once more: {e}"))?;
    let Some(moments) = moments else { return Ok(()) };
    for m in moments.take() {
        if rng.chance(15) {
            tally.cut_again += 1;
            let survives = [Survives::Some(rng.next()), Survives::Torn(rng.next())][rng.below(2) as usize];
            let live = Live::open(m.cut.image(survives), Book::with(m.stories)).await;
            let live = live.map_err(|e| format!("open after a second cut: {e}"))?;
            tally.recoveries += 1;
            live.take_stock(|| false).await.map_err(|e| format!("cut again at call {}: {e}", m.call))?;
        }
    }
    Ok(())
}

/// What may be left of a moment; a single image if nothing is unsynced.
fn images(m: &Moment, rng: &mut Rng) -> Vec<Survives> {
    let mut all = vec![Survives::Nothing];
    if m.cut.unsynced() > 0 {
        all.extend([Survives::Everything, Survives::Some(rng.next()), Survives::Torn(rng.next())]);
        // On demand more of those that differ from seed to seed.
        for _ in 0..if full() { 16 } else { 0 } {
            all.extend([Survives::Some(rng.next()), Survives::Torn(rng.next())]);
        }
    }
    all
}

/// One workload, cut everywhere. The first thing that is wrong ends it.
pub async fn sweep(seed: u64, lie: Option<Lie>, tally: &mut Tally) -> Verdict {
    let mut rng = Rng::new(seed ^ 0xc0de);
    for m in workload(seed, lie, tally).await? {
        tally.cuts += 1;
        for survives in images(&m, &mut rng) {
            let done = recover(&m, survives, &mut rng, tally).await;
            done.map_err(|e| format!("cut at call {}, {survives:?} survives: {e}", m.call))?;
        }
    }
    Ok(())
}

fn part(n: u64) {
    let mut tally = Tally::default();
    for seed in seeds(156, 200, n, 2) {
        local(async {
            if let Err(e) = sweep(seed, None, &mut tally).await {
                panic!("{e}; again with {}", freebs_testing::again(seed));
            }
        });
    }
    let t = tally;
    println!(
        "measured: crash sweep, part {n}: {} workloads, {} cuts, {} recoveries ({} torn ends, {} went on, {} cut \
         again), {} segments given up, {} local frames, {} blocks moved, {} checkpoints, {} begun with",
        t.workloads,
        t.cuts,
        t.recoveries,
        t.torn,
        t.went_on,
        t.cut_again,
        t.freed,
        t.carried,
        t.moved,
        t.checkpoints,
        t.begun
    );
    if t.workloads >= 78 {
        assert!(t.recoveries >= 50_000, "{} recoveries", t.recoveries);
        assert!(t.torn > 1000 && t.went_on > 1000 && t.freed > 100, "the workloads must be worth something");
        assert!(t.moved > 10_000, "{} blocks were moved", t.moved);
        assert!(t.checkpoints > 500 && t.begun > 10_000, "{} checkpoints, {} begun with", t.checkpoints, t.begun);
    }
}

#[test]
fn every_cut_of_even_workloads_recovers() {
    part(0);
}

#[test]
fn every_cut_of_odd_workloads_recovers() {
    part(1);
}

/// The sweep must be able to fail: each broken promise of the device is found. (That a sync does nothing shows only
/// where a process was killed in the middle of a write and the power went after its restart.)
#[test]
fn a_device_that_lies_is_found_out() {
    for (lie, wanted, among) in [(Lie::Durable, 3, 3), (Lie::Length, 3, 6), (Lie::Sync, 1, 20)] {
        let (mut found, mut tried) = (0, 0);
        while found < wanted && tried < among {
            local(async {
                let mut tally = Tally::default();
                match sweep(tried, Some(lie), &mut tally).await {
                    Err(e) => {
                        println!("{lie:?}, seed {tried}: {e}");
                        found += 1;
                    }
                    Ok(()) => println!("{lie:?}, seed {tried}: not found; the log grew {} times", tally.grown),
                }
            });
            tried += 1;
        }
        assert!(found >= wanted, "{lie:?} was found in {found} of {tried} workloads");
    }
}

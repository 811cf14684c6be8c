//! A cluster's control planes in one thread under one seed: nodes that die at any call of their device, power cuts,
//! partitions, lost and late messages, stores that are lost, voters that change, and clients all the time.
//!
//! What must hold: every acknowledged command is in every later state, exactly once; states at the same index are the
//! same, bit for bit; at most one leader acts in a term; what a leader decided of nodes that failed is not sent to the next
//! one (L5); after the faults everybody agrees and work goes on. Each
//! mutant must be caught. `FREEBS_SEED=n cargo test -p freebs-consensus --test suite sim` runs one seed.

mod alone;
mod devices;
mod leaders;
mod world;

use self::world::{Outcome, run};
use freebs_consensus::Mutant;
use freebs_testing::{Caught, Table};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds in all, and in the long form.
const SEEDS: (u64, u64) = (200, 5000);

/// Runs one of four parts of the seeds.
fn part(part: u64) {
    let (mut total, mut n) = (Outcome::default(), 0);
    for seed in freebs_testing::seeds(SEEDS.0, SEEDS.1).filter(|s| s % 4 == part) {
        let result = catch_unwind(AssertUnwindSafe(|| run(seed, None)));
        let outcome = result.unwrap_or_else(|e| {
            eprintln!("repeat with: {} cargo test -p freebs-consensus --test suite sim", freebs_testing::again(seed));
            std::panic::resume_unwind(e)
        });
        total.add(&outcome);
        n += 1;
    }
    println!("{n} seeds: {total:?}");
    // A simulation in which nothing happens finds nothing.
    assert!(total.acked >= 20 * n && total.leaders >= n);
    let all = [total.kills, total.cuts, total.repeats, total.fail_overs, total.installs, total.wiped];
    assert!(n < 25 || (total.voters_changed > n && all.iter().all(|c| *c > 0)), "{total:?}");
}

#[test]
fn a_quarter_of_the_seeds_holds() {
    part(0);
}

#[test]
fn another_quarter_holds() {
    part(1);
}

#[test]
fn a_third_quarter_holds() {
    part(2);
}

#[test]
fn the_last_quarter_holds() {
    part(3);
}

/// A process was killed while it wrote a superblock, the next one read that from the device's cache, began to write
/// over the area before it, and then the power went, and the superblock with it. Since then a start syncs first.
#[test]
fn what_a_start_reads_is_on_stable_media() {
    run(947, None);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 7, 1001] {
        let (a, b) = (run(seed, None), run(seed, None));
        assert_eq!(a, b, "seed {seed}");
        assert_ne!(a.trace, run(seed + 1, None).trace);
    }
}

/// Runs the recorded seed, and others if it does not catch the mutant.
fn caught(table: &Table, mutant: Mutant, most: u64) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let hunt = || {
        table.hunt(&format!("{mutant:?}"), 0..most, |seed| {
            let e = catch_unwind(AssertUnwindSafe(|| run(seed, Some(mutant)))).err()?;
            let text = e.downcast_ref::<String>().cloned().unwrap_or_default();
            Some(Caught::by(text.lines().next().unwrap_or_default()))
        })
    };
    let found = catch_unwind(AssertUnwindSafe(hunt));
    std::panic::set_hook(hook);
    assert!(found.is_ok(), "{mutant:?} was not caught in {most} seeds");
}

/// The tests of mutants share the panic hook, so they are one test.
#[test]
fn mutants_are_caught() {
    let table = Table::new("crates/consensus/tests/suite/sim/mutant_seeds.txt", include_str!("mutant_seeds.txt"));
    caught(&table, Mutant::RepeatsAreApplied, 40);
    caught(&table, Mutant::EntryNotSynced, 200);
    caught(&table, Mutant::PurgeBeforeSnapshot, 40);
    caught(&table, Mutant::VoteNotSynced, 400);
    caught(&table, Mutant::RequestsNumberedAnew, 40);
}

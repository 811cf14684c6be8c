//! A cluster's control planes in one thread under one seed: nodes that die at any call of their device, power cuts,
//! partitions, lost and late messages, stores that are lost, voters that change, and clients all the time.
//!
//! What must hold: every acknowledged command is in every later state, exactly once; states at the same index are the
//! same, bit for bit; at most one leader acts in a term; after the faults everybody agrees and work goes on. Each
//! mutant must be caught. `SEED=n cargo test -p freebs-consensus --test sim one` runs one seed.

mod world;

use self::world::{Outcome, run};
use freebs_consensus::Mutant;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SEEDS: u64 = 200;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn seeds(from: u64, to: u64) {
    let mut total = Outcome::default();
    for seed in from..to {
        let result = catch_unwind(AssertUnwindSafe(|| run(seed, None)));
        let outcome = result.unwrap_or_else(|e| {
            eprintln!("repeat with: SEED={seed} cargo test -p freebs-consensus --test sim one");
            std::panic::resume_unwind(e)
        });
        total.add(&outcome);
    }
    println!("seeds {from} to {to}: {total:?}");
    // A simulation in which nothing happens finds nothing.
    assert!(total.acked > 20 * (to - from) && total.leaders > to - from && total.voters_changed > to - from);
    assert!(
        total.kills > 0
            && total.cuts > 0
            && total.repeats > 0
            && total.fail_overs > 0
            && total.installs > 0
            && total.wiped > 0
    );
}

#[test]
fn a_quarter_of_the_seeds_holds() {
    seeds(0, env("SEEDS", SEEDS) / 4);
}

#[test]
fn another_quarter_holds() {
    let n = env("SEEDS", SEEDS);
    seeds(n / 4, n / 2);
}

#[test]
fn a_third_quarter_holds() {
    let n = env("SEEDS", SEEDS);
    seeds(n / 2, n / 4 * 3);
}

#[test]
fn the_last_quarter_holds() {
    let n = env("SEEDS", SEEDS);
    seeds(n / 4 * 3, n);
}

#[test]
fn one() {
    println!("{:?}", run(env("SEED", 1), None));
}

/// A process was killed while it wrote a superblock, the next one read that from the device's cache, began to write
/// over the area before it, and then the power went, and the superblock with it. Since then a start syncs first.
#[test]
fn what_a_start_reads_is_on_stable_media() {
    run(528, None);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 7, 1001] {
        let (a, b) = (run(seed, None), run(seed, None));
        assert_eq!(a, b, "seed {seed}");
        assert_ne!(a.trace, run(seed + 1, None).trace);
    }
}

/// Seeds until a mutant is caught, and by what.
fn caught(mutant: Mutant, most: u64) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = (0..most).find_map(|seed| {
        let e = catch_unwind(AssertUnwindSafe(|| run(seed, Some(mutant)))).err()?;
        let text = e.downcast_ref::<String>().cloned().unwrap_or_default();
        Some((seed, text.lines().next().unwrap_or_default().to_owned()))
    });
    std::panic::set_hook(hook);
    let Some((seed, by)) = found else { panic!("{mutant:?} was not caught in {most} seeds") };
    println!("{mutant:?}: caught after {} seeds: {by}", seed + 1);
}

/// The tests of mutants share the panic hook, so they are one test.
#[test]
fn mutants_are_caught() {
    caught(Mutant::RepeatsAreApplied, 40);
    caught(Mutant::EntryNotSynced, 200);
    caught(Mutant::PurgeBeforeSnapshot, 40);
    caught(Mutant::VoteNotSynced, 400);
    caught(Mutant::RequestsNumberedAnew, 40);
}

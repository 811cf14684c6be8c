//! The driver among members that do everything they may, against an oracle that knows what a client may see.
//!
//! One seed is one world: volume, faults, network and client. `FREEBS_SEED=n` runs that one alone and says what
//! happened; `FREEBS_SEEDS=n` runs more of them.

mod cluster;
mod oracle;
mod world;

use self::world::{Plan, World};
use freebs_driver::Mutant;
use freebs_testing::{Caught, Table};
use proptest::prelude::*;

fn run_plan(seed: u64, plan: Plan, mutant: Option<Mutant>) -> World {
    let mut world = World::new(seed, plan, mutant);
    world.run();
    world
}

fn run(seed: u64, mutant: Option<Mutant>) -> World {
    run_plan(seed, Plan::of(seed), mutant)
}

fn check(seed: u64) -> World {
    let world = run(seed, None);
    let errors = &world.oracle.errors;
    let again = freebs_testing::again(seed);
    assert!(errors.is_empty(), "{again} {:?}\n{}", world.plan, errors[..errors.len().min(3)].join("\n"));
    world
}

#[test]
fn every_read_is_what_a_client_may_see() {
    let seeds = freebs_testing::seeds(60, 3000);
    let is_one = seeds.clone().count() == 1;
    let (mut reads, mut writes, mut failed, mut older, mut intervals) = (0, 0, 0, 0, 0);
    let mut counters = freebs_driver::Counters::default();
    for seed in seeds {
        let world = check(seed);
        if is_one {
            println!("{:?}", world.plan);
        }
        reads += world.oracle.reads;
        writes += world.oracle.writes;
        failed += world.oracle.failed;
        older += world.answers_of_older;
        intervals += world.intervals;
        counters.retries += world.counters.retries;
        counters.crc_errors += world.counters.crc_errors;
        counters.read_failovers += world.counters.read_failovers;
        counters.given_up += world.counters.given_up;
        counters.view_changes += world.counters.view_changes;
    }
    println!(
        "reads {reads} writes {writes} failed {failed} intervals {intervals} of older drivers {older} {counters:?}"
    );
    if is_one {
        return;
    }
    // The worlds are worth nothing if nothing happens in them.
    assert!(reads > 5000 && writes > 5000 && reads + writes > 5 * failed);
    assert!(counters.retries > 100 && counters.crc_errors > 20 && counters.read_failovers > 100);
    // Drivers that were replaced go on for a while.
    assert!(older > 20 && intervals > 20);
    assert!(counters.given_up > 20 && counters.view_changes > 50);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_seed(seed: u64) {
        check(seed);
    }
}

#[test]
fn nothing_is_lost_when_requests_run_out_of_time() {
    for seed in 0..30 {
        let world = run_plan(seed, Plan::harsh(seed), None);
        let errors = &world.oracle.errors;
        assert!(errors.is_empty(), "seed {seed} {:?}\n{}", world.plan, errors[..errors.len().min(3)].join("\n"));
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in [3, 4] {
        let (a, b) = (run(seed, None), run(seed, None));
        assert_eq!((a.deliveries, a.oracle.reads, a.oracle.writes), (b.deliveries, b.oracle.reads, b.oracle.writes));
        assert_eq!(a.counters, b.counters);
    }
}

/// A driver that breaks one rule is found out. The other rules are hunted by the simulator of whole clusters, where the
/// members are the real ones.
fn caught(mutant: Mutant) {
    let seeds = 150;
    let plan = if mutant == Mutant::ForgetGivenUp { Plan::harsh } else { Plan::of };
    let table = Table::new("crates/driver/tests/suite/property/mutant_seeds.txt", include_str!("mutant_seeds.txt"));
    table.hunt(&format!("{mutant:?}"), 0..seeds, |seed| {
        let world = run_plan(seed, plan(seed), Some(mutant));
        let error = world.oracle.errors.first()?;
        Some(Caught { by: error.chars().take(200).collect(), cost: Some(world.deliveries) })
    });
}

#[test]
fn catches_drivers_that_do_not_wait_for_older_ones() {
    caught(Mutant::OlderNotWaitedFor);
}

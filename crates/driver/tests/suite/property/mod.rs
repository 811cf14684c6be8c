//! The driver among members that do everything they may, against an oracle that knows what a client may see.
//!
//! One seed is one world: volume, faults, network and client. `DRIVER_SEED=n` runs that one alone and says what
//! happened; `DRIVER_SEEDS=n` runs more of them.

mod cluster;
mod oracle;
mod world;

use self::world::{Plan, World};
use freebs_driver::Mutant;
use proptest::prelude::*;

fn run_plan(seed: u64, plan: Plan, mutant: Option<Mutant>) -> World {
    let mut world = World::new(seed, plan, mutant);
    world.run();
    world
}

fn run(seed: u64, mutant: Option<Mutant>) -> World {
    run_plan(seed, Plan::of(seed), mutant)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn check(seed: u64) -> World {
    let world = run(seed, None);
    let errors = &world.oracle.errors;
    assert!(errors.is_empty(), "DRIVER_SEED={seed} {:?}\n{}", world.plan, errors[..errors.len().min(3)].join("\n"));
    world
}

#[test]
fn every_read_is_what_a_client_may_see() {
    if let Some(seed) = number("DRIVER_SEED") {
        let world = check(seed);
        return println!(
            "{:?} {:?} reads {} writes {} failed {}",
            world.plan, world.counters, world.oracle.reads, world.oracle.writes, world.oracle.failed
        );
    }
    let (mut reads, mut writes, mut failed, mut older) = (0, 0, 0, 0);
    let mut counters = freebs_driver::Counters::default();
    for seed in 0..number("DRIVER_SEEDS").unwrap_or(60) {
        let world = check(seed);
        reads += world.oracle.reads;
        writes += world.oracle.writes;
        failed += world.oracle.failed;
        older += world.answers_of_older;
        counters.retries += world.counters.retries;
        counters.crc_errors += world.counters.crc_errors;
        counters.read_failovers += world.counters.read_failovers;
        counters.given_up += world.counters.given_up;
        counters.view_changes += world.counters.view_changes;
    }
    println!("reads {reads} writes {writes} failed {failed} of older drivers {older} {counters:?}");
    // The worlds are worth nothing if nothing happens in them.
    assert!(reads > 5000 && writes > 5000 && reads + writes > 5 * failed);
    assert!(counters.retries > 100 && counters.crc_errors > 20 && counters.read_failovers > 100);
    // Drivers that were replaced go on for a while.
    assert!(older > 20);
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
    let found = (0..seeds).find_map(|seed| {
        let world = run_plan(seed, plan(seed), Some(mutant));
        world.oracle.errors.first().map(|e| (seed, e.clone()))
    });
    let Some((seed, error)) = found else { panic!("{mutant:?} was not noticed in {seeds} worlds") };
    println!("{mutant:?}: seed {seed}: {}", &error[..error.len().min(200)]);
}

#[test]
fn catches_drivers_that_do_not_wait_for_older_ones() {
    caught(Mutant::OlderNotWaitedFor);
}

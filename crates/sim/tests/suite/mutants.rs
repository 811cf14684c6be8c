//! The simulator can fail: each rule that is left out on purpose is noticed, by the recorded seed or within some others.

use freebs_chain::Mutant as Chain;
use freebs_driver::Mutant as Driver;
use freebs_sim::mutants::{CHAIN, CONTROL, DRIVER};
use freebs_sim::{Config, Mutants, run};
use freebs_testing::{Caught, Table};
use std::collections::BTreeSet;

/// First seed, and how many a mutant may survive.
const FIRST: u64 = 2_000_000;
const SEEDS_MAX: u64 = 300;

/// Mutants that another rule covers, so that leaving out this one alone changes nothing that can be seen.
///
/// `FloorIgnored` (R1 at the member): a driver asks only members that have told it, in the present view, that they
/// are durable up to the floor, and what is durable in a view never goes back, over restarts either. So a member
/// refuses no read for its floor today; `NoReadFloor`, the same rule at the driver, is caught. The member's check
/// stands for drivers that know less than ours does.
///
/// `SealsBelowCommitted` (V3): the answers that count meet every quorum of the predecessor (V2), so the longest of their
/// logs reaches what is committed. The rule stands for a log that counts although it lost something. In a run only one
/// disk is ever damaged: if its log counts no more, the logs that do are whole. `freebs-chain` has a test that fails
/// without the rule (`nothing_is_sealed_below_what_any_answer_calls_committed`).
const COVERED: [Chain; 2] = [Chain::FloorIgnored, Chain::SealsBelowCommitted];

fn table() -> Table {
    Table::new("crates/sim/tests/suite/mutant_seeds.txt", include_str!("mutant_seeds.txt"))
}

/// Runs the recorded seed, then others until one notices. `--nocapture` shows by what.
fn hunt(name: &str, mutants: Mutants) {
    // Room is short only where disks are small; few seeds are of that kind. A read that races with a write of its own
    // driver shows most often where no fault ends one of them. Leases matter where drivers take volumes from each other.
    let kind = match (mutants.chain, mutants.driver) {
        (Some(Chain::MembersRoomIgnored), _) => Some("tight"),
        (_, Some(Driver::NoReadWait)) => Some("calm"),
        (_, Some(Driver::AnswerWithoutLease)) => Some("gateways"),
        _ => None,
    };
    let is_of_use = |seed: &u64| kind.is_none_or(|k| Config::draw(*seed).profile == k);
    table().hunt(name, (FIRST..).filter(is_of_use).take(SEEDS_MAX as usize), |seed| {
        let o = run(seed, mutants, false);
        let first = o.violations.first()?.lines().next().unwrap_or_default().chars().take(120).collect::<String>();
        Some(Caught { by: format!("({}) {first}", o.profile), cost: Some(o.events) })
    });
}

#[test]
fn every_mutant_that_is_hunted_has_its_seed_and_no_other() {
    let chain = CHAIN.iter().filter(|m| !COVERED.contains(m)).map(|m| format!("{m:?}"));
    let others = DRIVER.iter().map(|m| format!("{m:?}")).chain(CONTROL.iter().map(|m| format!("{m:?}")));
    let hunted: BTreeSet<String> = chain.chain(others).collect();
    assert_eq!(table().names().map(str::to_owned).collect::<BTreeSet<_>>(), hunted);
}

#[test]
fn mutants_of_the_chain_are_caught() {
    for m in CHAIN.into_iter().filter(|m| !COVERED.contains(m)) {
        hunt(&format!("{m:?}"), Mutants { chain: Some(m), ..Mutants::default() });
    }
}

#[test]
fn mutants_of_the_driver_are_caught() {
    for m in DRIVER {
        hunt(&format!("{m:?}"), Mutants { driver: Some(m), ..Mutants::default() });
    }
}

#[test]
fn mutants_of_the_control_plane_are_caught() {
    for m in CONTROL {
        hunt(&format!("{m:?}"), Mutants { control: Some(m), ..Mutants::default() });
    }
}

//! The simulator can fail: each rule that is left out on purpose is noticed, by the recorded seed or within some others.

use freebs_sim::mutants::all;
use freebs_sim::{Config, Mutants, run};
use freebs_testing::{Caught, Table};
use std::collections::BTreeSet;
use std::panic::catch_unwind;

/// First seed, and how many a mutant may survive.
const FIRST: u64 = 2_000_000;
pub const SEEDS_MAX: u64 = 300;

fn table() -> Table {
    Table::new("crates/sim/tests/suite/mutant_seeds.txt", include_str!("mutant_seeds.txt"))
}

/// Mutants that can be seen with `--mutant`, but another rule covers them, so that leaving out this one alone changes
/// nothing that can be seen here; `readme.rs` names the tests that notice them.
///
/// `FloorIgnored` (R1 at the member): a driver asks only members that have told it, in the present view, that they
/// are durable up to the floor, and what is durable in a view never goes back, over restarts either. So a member
/// refuses no read for its floor today; `NoReadFloor`, the same rule at the driver, is caught. The member's check
/// stands for drivers that know less than ours does.
///
/// `SealsBelowCommitted` (V3): the answers that count meet every quorum of the predecessor (V2), so the longest of their
/// logs reaches what is committed. The rule stands for a log that counts although it lost something. In a run only one
/// disk is ever damaged: if its log counts no more, the logs that do are whole.
///
/// `ConfirmsWithoutHold`, `OldViewsReport`, `SnapshotsOutliveViews` (S1, S2): a view has to change, or a hold to lapse, between
/// the cuts of a snapshot and its last confirmation, and a write has to be answered in that moment that another shard's cut
/// lacks. No run of some thousand had that. The model of `control/tests/suite/snapshots.rs` goes through all orders of them.
const COVERED: [&str; 5] =
    ["FloorIgnored", "SealsBelowCommitted", "ConfirmsWithoutHold", "OldViewsReport", "SnapshotsOutliveViews"];

/// The only kind of runs that a mutant is hunted in, if others have hardly an occasion. Room is short only where disks are
/// small; few seeds are of that kind. A read that races with a write of its own driver shows most often where no fault ends
/// one of them. Leases matter where drivers take volumes from each other. A cut that was reported too early is lost where a
/// head loses its power and its place at once.
pub fn kind(name: &str) -> Option<&'static str> {
    match name {
        "MembersRoomIgnored" => Some("tight"),
        "NoReadWait" => Some("calm"),
        "AnswerWithoutLease" => Some("gateways"),
        "LeavesByOldStates" => Some("lag_seat"),
        "ForcedFromCommitted" => Some("lose_members"),
        "CutsBeforeCommitted" => Some("everything"),
        "EarlyIsDamaged" => Some("early"),
        _ => None,
    }
}

/// True if a run is of this kind: a profile, or a fault that strikes in it.
fn is_of_kind(config: &Config, kind: &str) -> bool {
    config.profile == kind || config.odds.list().iter().any(|(fault, odds)| *fault == kind && *odds > 0.0)
}

/// Mutants that are hunted here, with their names.
pub fn hunted() -> Vec<(String, Mutants)> {
    all().into_iter().filter(|(name, _)| !COVERED.contains(&name.as_str())).collect()
}

/// Runs the recorded seed, then others until one notices. `--nocapture` shows by what.
fn hunt(name: &str, mutants: Mutants) {
    let kind = kind(name);
    let is_of_use = |seed: &u64| kind.is_none_or(|k| is_of_kind(&Config::draw(*seed), k));
    table().hunt(name, (FIRST..).filter(is_of_use).take(SEEDS_MAX as usize), |seed| {
        let o = run(seed, mutants, false);
        let first = o.violations.first()?.lines().next().unwrap_or_default().chars().take(120).collect::<String>();
        Some(Caught { by: format!("({}) {first}", o.profile), cost: Some(o.events) })
    });
}

#[test]
fn every_mutant_that_is_hunted_has_its_seed_and_no_other() {
    assert_eq!(
        table().names().map(str::to_owned).collect::<BTreeSet<_>>(),
        hunted().into_iter().map(|m| m.0).collect()
    );
}

fn hunt_those(is_wanted: impl Fn(&Mutants) -> bool) {
    let wanted = hunted().into_iter().filter(|(_, m)| is_wanted(m));
    // Those behind one that nobody notices are hunted, too.
    let missed = wanted.filter(|(name, mutants)| catch_unwind(|| hunt(name, *mutants)).is_err()).map(|(name, _)| name);
    assert_eq!(missed.collect::<Vec<_>>(), Vec::<String>::new(), "nobody noticed these");
}

#[test]
fn mutants_of_the_chain_are_caught() {
    hunt_those(|m| m.chain.is_some());
}

#[test]
fn mutants_of_the_driver_are_caught() {
    hunt_those(|m| m.driver.is_some());
}

#[test]
fn mutants_of_the_control_plane_are_caught() {
    hunt_those(|m| m.control.is_some());
}

#[test]
fn mutants_of_the_leader_are_caught() {
    hunt_those(|m| m.seats.is_some());
}

//! The sweeps must be able to fail: each rule of the log that is left out is missed by one of them.

use super::live::{LEFT_OUT, Verdict};
use super::{crash, rot};
use crate::common::{local, seed_table};
use freebs_lsvd::RuleMutant;
use freebs_testing::Caught;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a sweep with a rule left out on the recorded seed, then on others until one of so many shows it. What the engine itself notices, as a panic,
/// counts, too.
fn caught(rule: RuleMutant, most: u64, sweep: impl AsyncFn(u64) -> Verdict) {
    seed_table().hunt(&format!("{rule:?}"), 0..most, |seed| {
        LEFT_OUT.set(Some(rule));
        let mut verdict = Ok(());
        let done = catch_unwind(AssertUnwindSafe(|| local(async { verdict = sweep(seed).await })));
        LEFT_OUT.set(None);
        match (done, verdict) {
            (Ok(()), verdict) => verdict.err().map(Caught::by),
            (Err(_), _) => Some(Caught::by("a panic")),
        }
    });
}

fn caught_by_power_cuts(rule: RuleMutant, most: u64) {
    caught(rule, most, async |seed| crash::sweep(seed, None, &mut crash::Tally::default()).await);
}

#[test]
fn trims_must_outlive_their_segment() {
    caught_by_power_cuts(RuleMutant::TrimsDie, 20);
}

#[test]
fn checkpoints_must_not_commit() {
    caught_by_power_cuts(RuleMutant::CheckpointCommits, 20);
}

#[test]
fn what_a_checkpoint_names_must_stay() {
    caught_by_power_cuts(RuleMutant::KeptUsedAgain, 20);
}

#[test]
fn what_a_live_table_names_must_stay() {
    caught_by_power_cuts(RuleMutant::GivenUsedAtOnce, 20);
}

#[test]
fn deletions_must_outlive_what_they_delete() {
    caught_by_power_cuts(RuleMutant::DeletionsGo, 20);
}

#[test]
fn the_newer_entry_must_win() {
    caught_by_power_cuts(RuleMutant::LastComerWins, 20);
}

#[test]
fn another_frame_in_its_place_must_cut() {
    caught_by_power_cuts(RuleMutant::SequenceIsName, 20);
}

#[test]
fn chunks_of_two_views_are_two() {
    caught_by_power_cuts(RuleMutant::ChunkIsCounter, 20);
}

#[test]
fn damage_must_not_be_cut_off() {
    caught(RuleMutant::DamageIsTorn, 4, async |seed| {
        let image = rot::made(seed, 110).await;
        rot::sweep(&image, seed, 5, &mut rot::Tally::default()).await
    });
}

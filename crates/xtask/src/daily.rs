//! `cargo xtask sim`: one run of the simulator, or all cores busy with new seeds for some minutes.
//!
//! Invariants: no two processes run the same seed; a process that dies, hangs or says nothing counts as a failure, and
//! so does a time in which no seed was run.

use crate::call::Call;
use crate::options::Options;
use crate::{Bad, Done, failed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Seeds that one process runs.
const BATCH: u64 = 20;
/// A batch that takes longer hangs.
const BATCH_SECONDS_MAX: u64 = 1800;
/// Seeds that a day has: those of two days never meet.
const DAY: u64 = 10_000_000;
/// A week.
const MINUTES_MAX: u64 = 7 * 24 * 60;
const FIRST_MAX: u64 = u64::MAX / 2;
/// Failing seeds that are made smaller; more of a day have few causes.
const KEPT_MAX: usize = 5;

/// The findings so far.
#[derive(Debug, Default)]
pub struct Found {
    /// Counters of the runs, summed, by their names.
    pub counts: BTreeMap<String, u64>,
    /// Seeds that failed.
    pub failed: BTreeSet<u64>,
    /// Batches of which nothing is known: the first seed, and how they ended.
    pub lost: Vec<(u64, String)>,
}

impl Found {
    /// Takes in what a batch of `count` seeds from `first` on said, and how it ended.
    pub fn take(&mut self, first: u64, count: u64, said: &str, ended: &str, code: Option<i32>) {
        let failed: Vec<u64> = said.lines().filter_map(failed_seed).collect();
        let end = format!("{} of {count} seeds failed", failed.len());
        let is_whole = said.lines().last() == Some(end.as_str()) && code == Some(i32::from(!failed.is_empty()));
        if !is_whole {
            self.lost.push((first, ended.to_owned()));
        }
        self.failed.extend(failed);
        for (name, n) in said.lines().filter_map(counted) {
            *self.counts.entry(name.to_owned()).or_default() += n;
        }
    }

    /// Seeds that were run.
    #[must_use]
    pub fn seeds(&self) -> u64 {
        self.counts.get("= seeds").copied().unwrap_or(0)
    }

    /// Seeds were run, none failed, and each batch told its end.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed.is_empty() && self.lost.is_empty() && self.seeds() > 0
    }
}

/// The seed of a line `seed 7 (kills) FAILED`.
fn failed_seed(line: &str) -> Option<u64> {
    line.strip_prefix("seed ")?.strip_suffix(" FAILED")?.split(' ').next()?.parse().ok()
}

/// A line with a number on the right of ten columns, and a name.
fn counted(line: &str) -> Option<(&str, u64)> {
    let (number, name) = line.trim_start().split_once(' ')?;
    let is_count = line.len() - name.len() > 10 && !line.starts_with("seed");
    Some((name, number.parse().ok().filter(|_| is_count)?))
}

/// The first seed of a day.
#[must_use]
pub fn first_of_day(now: SystemTime) -> u64 {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    seconds / 86_400 * DAY
}

/// One run, whose options the simulator knows, or a daily one.
///
/// # Errors
/// If a seed fails, or the options are not understood.
pub fn run(mut options: Options) -> Done {
    let minutes: Option<u64> = options.value("--minutes")?;
    let Some(minutes) = minutes else {
        return Call::new("cargo run --quiet --profile sim -p freebs-sim --").with(options.rest()).run_with_usage();
    };
    let first = options.value("--first")?.unwrap_or_else(|| first_of_day(SystemTime::now()));
    options.end()?;
    if !(1..=MINUTES_MAX).contains(&minutes) || first > FIRST_MAX {
        let text = format!("--minutes takes 1 to {MINUTES_MAX}, and --first at most {FIRST_MAX}");
        return Err(Bad::NotUnderstood(text));
    }
    let program = build()?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let found = search(&program, first, minutes, cores);
    tell(&program, &found)
}

/// Builds the simulator; where it is.
fn build() -> Result<String, Bad> {
    let call = Call::new("cargo build --profile sim -p freebs-sim --message-format json-render-diagnostics");
    let output = call.command().stderr(std::process::Stdio::inherit()).output().map_err(|e| {
        call.failed(&e.to_string());
        Bad::Failed
    })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = said.lines().rev().find_map(|l| l.split_once(r#""executable":""#)?.1.split('"').next());
    match path.filter(|_| output.status.success()) {
        Some(path) => Ok(path.to_owned()),
        None => {
            call.failed(&output.status.to_string());
            Err(Bad::Failed)
        }
    }
}

/// All cores run seeds from `first` on until time is up.
fn search(program: &str, first: u64, minutes: u64, cores: u64) -> Found {
    let begun = Instant::now();
    let time = Duration::from_secs(minutes * 60);
    let found = Mutex::new(Found::default());
    let told = AtomicU64::new(0);
    println!("{cores} cores, seeds from {first} on, {minutes} min");
    std::thread::scope(|scope| {
        for core in 0..cores {
            let (found, told) = (&found, &told);
            scope.spawn(move || {
                let share = DAY / cores;
                let mut seeds = (first + core * share..first + (core + 1) * share).step_by(BATCH as usize);
                while begun.elapsed() < time
                    && let Some(seed) = seeds.next()
                {
                    batch(program, seed, found);
                    let f = found.lock().unwrap_or_else(|e| e.into_inner());
                    let (minute, failed) = (begun.elapsed().as_secs() / 60, f.failed.len());
                    if told.fetch_max(minute, Ordering::Relaxed) < minute {
                        println!("{minute:>6} min: {} seeds, {failed} failed, {} lost", f.seeds(), f.lost.len());
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn batch(program: &str, first: u64, found: &Mutex<Found>) {
    let call = Call::new("timeout").with([BATCH_SECONDS_MAX.to_string(), program.to_owned(), first.to_string()]);
    let call = call.with(["--seeds".to_owned(), BATCH.to_string(), "--all".into(), "--counts".into()]);
    let output = call.command().output();
    let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
    match output {
        Ok(o) => {
            let said = String::from_utf8_lossy(&o.stdout).into_owned();
            found.take(first, BATCH, &said, &o.status.to_string(), o.status.code());
        }
        Err(e) => found.lost.push((first, e.to_string())),
    }
}

fn tell(program: &str, found: &Found) -> Done {
    for (name, n) in &found.counts {
        println!("{n:>12} {name}");
    }
    for (first, how) in &found.lost {
        println!("seeds {first} to {} came to no end ({how}); repeat with:", first + BATCH - 1);
        println!("    cargo xtask sim {first} --seeds {BATCH} --all");
    }
    for seed in found.failed.iter().take(KEPT_MAX) {
        match failed::keep(program, *seed) {
            Ok(path) => println!("  kept in {}; it goes to crates/sim/seeds when it is mended", path.display()),
            Err(e) => println!("  seed {seed} can't be kept: {e}"),
        }
    }
    for seed in found.failed.iter().skip(KEPT_MAX) {
        println!("failed, too: cargo xtask sim {seed} --shrink");
    }
    println!("{} of {} seeds failed, {} batches lost", found.failed.len(), found.seeds(), found.lost.len());
    if found.is_good() { Ok(()) } else { Err(Bad::Failed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "         2 = seeds\n      4000 = events\n        12 fault cut\n0 of 2 seeds failed\n";
    const BAD: &str = "seed 8 (kills) FAILED\n  at 3 s: x\n  repeat with: y\n         2 = seeds\n         1 fault cut\n1 of 2 seeds failed\n";

    #[test]
    fn counters_are_summed_and_failing_seeds_are_known() {
        let mut found = Found::default();
        found.take(5, 2, GOOD, "0", Some(0));
        assert!(found.is_good());
        found.take(7, 2, BAD, "1", Some(1));
        assert_eq!((found.seeds(), found.counts["fault cut"], found.counts["= events"]), (4, 13, 4000));
        assert_eq!((found.failed.first(), found.lost.len(), found.is_good()), (Some(&8), 0, false));
    }

    #[test]
    fn a_batch_that_dies_is_a_failure() {
        let endings = [("", Some(0)), (GOOD, None), (GOOD, Some(124)), (GOOD, Some(1)), (BAD, Some(0))];
        for (said, code) in endings.into_iter().chain([("0 of 1 seeds failed\n", Some(0))]) {
            let mut found = Found::default();
            found.take(5, 2, said, "signal", code);
            assert_eq!((found.lost.len(), found.is_good()), (1, false), "{said} {code:?}");
        }
        assert!(!Found::default().is_good(), "no seed at all");
    }

    #[test]
    fn days_have_seeds_of_their_own() {
        let day = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 86_400 + 5);
        assert_eq!(first_of_day(day(20_000)) + DAY, first_of_day(day(20_001)));
    }
}

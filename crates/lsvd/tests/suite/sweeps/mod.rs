//! Sweeps: generated workloads on devices that lose power at every call, fail at every call, and rot in every sector.
//!
//! What runs by default is CI's part. `FREEBS_FULL=1` runs all of it. `FREEBS_SEED=n` runs one workload of a sweep.

mod crash;
mod failing;
mod live;
mod mutants;
mod rot;
mod story;

/// Whether shards have snapshots, too: `FREEBS_SNAPSHOTS=1`.
fn with_snapshots() -> bool {
    std::env::var("FREEBS_SNAPSHOTS").is_ok_and(|v| v == "1")
}

/// Turns that a call to a device takes at most: long enough for the workload to go on meanwhile, so that appends gather
/// and a kill finds something under way.
const TURNS: u64 = 400;

/// Whether everything is to be run, and not only CI's part.
fn full() -> bool {
    std::env::var("FREEBS_FULL").is_ok_and(|v| v == "1")
}

/// The seeds of part `part` of `parts` of a sweep over `n` workloads, or the one that was asked for.
fn seeds(n: u64, part: u64, parts: u64) -> Vec<u64> {
    let one = std::env::var("FREEBS_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    (0..n).filter(|s| s % parts == part && one.is_none_or(|o| o == *s)).collect()
}

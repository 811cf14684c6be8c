//! Sweeps: generated workloads on devices that lose power at every call, fail at every call, and rot in every sector.
//!
//! What runs by default is CI's part. `FREEBS_FULL=1` runs all of it, and in it shards have snapshots, too.
//! `FREEBS_SEED=n` runs one workload of a sweep.

mod crash;
mod failing;
mod live;
mod mutants;
mod rot;
mod story;

use freebs_testing::full;

/// Turns that a call to a device takes at most: long enough for the workload to go on meanwhile, so that appends gather
/// and a kill finds something under way.
const TURNS: u64 = 400;

/// The seeds of part `part` of `parts` of a sweep over `n` workloads, `long` in its long form, or the one that was asked
/// for.
fn seeds(n: u64, long: u64, part: u64, parts: u64) -> Vec<u64> {
    freebs_testing::seeds(n, long).filter(|s| s % parts == part).collect()
}

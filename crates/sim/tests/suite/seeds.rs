//! Good code passes every seed, and a seed is a run: the same one gives the same course.

use freebs_sim::{Mutants, run};

/// First seed of those that always run. Other ones: `cargo run -p freebs-sim -- SEED --seeds N`.
const FIRST: u64 = 1_000_000;

#[test]
fn two_hundred_seeds() {
    let (mut events, mut writes, mut reads) = (0, 0, 0);
    for seed in FIRST..FIRST + 200 {
        let o = run(seed, Mutants::default(), false);
        assert!(o.is_good(), "seed {seed} ({}): {:#?}\n{}", o.profile, o.violations, o.replay(Mutants::default()));
        (events, writes, reads) = (events + o.events, writes + o.writes, reads + o.reads);
    }
    println!("{events} events, {writes} writes and {reads} reads judged");
    // A run that does nothing would pass as well.
    assert!(events > 200_000 && writes > 10_000 && reads > 5_000);
}

#[test]
fn the_same_seed_takes_the_same_course() {
    for seed in FIRST..FIRST + 10 {
        let (a, b) = (run(seed, Mutants::default(), false), run(seed, Mutants::default(), false));
        assert_eq!((a.trace, a.events, a.time), (b.trace, b.events, b.time), "seed {seed}");
        assert_ne!(a.trace, run(seed + 1000, Mutants::default(), false).trace);
    }
}

//! Runs in which the nodes keep the control state themselves: they are a share of the seeds, decide, replace leaders, take
//! the same course again, and a seat that breaks its promise is noticed.

use freebs_sim::mutants::SEATS;
use freebs_sim::{Config, Mutants, Outcome, run};

/// First seed of those that run here.
const FIRST: u64 = 1_500_000;
/// Runs at most until a rule of seats that is left out is noticed: one of nine notices a vote that is not on the disk.
const TRIES: usize = 80;
/// Runs of the test that counts, and in the long form.
const RUNS: (u64, u64) = (24, 600);

fn has_seats(seed: &u64) -> bool {
    Config::draw(*seed).has_seats
}

fn with_seats(of: impl Fn(&Config) -> bool) -> impl Iterator<Item = u64> {
    (FIRST..).filter(has_seats).filter(move |seed| of(&Config::draw(*seed)))
}

fn good(seed: u64) -> Outcome {
    let o = run(seed, Mutants::default(), false);
    assert!(o.is_good(), "seed {seed} ({}): {:#?}\n{}", o.profile, o.violations, o.replay(Mutants::default()));
    o
}

fn count(o: &Outcome, name: &str) -> u64 {
    o.counts.get(name).copied().unwrap_or(0)
}

#[test]
fn about_one_seed_of_eight_has_them() {
    let n = (0..8000).filter(has_seats).count();
    assert!((900..1100).contains(&n), "{n} of 8000");
}

#[test]
fn seats_decide_and_leaders_are_replaced() {
    let (mut decided, mut elected, mut founded, mut replaced, mut n) = (0, 0, 0, 0, 0);
    let runs = freebs_testing::seeds(RUNS.0, RUNS.1).count();
    for seed in with_seats(|_| true).take(runs) {
        let o = good(seed);
        // Nodes register, views become active, clients attach: all of it is in the log.
        assert!(count(&o, "entries decided by seats") > 10, "seed {seed}: {:?}", o.counts);
        decided += count(&o, "entries decided by seats");
        elected += count(&o, "leaders elected");
        founded += 1 + count(&o, "clusters founded anew");
        replaced += count(&o, "heads of failed nodes replaced");
        n += 1;
    }
    println!("{n} runs: {decided} entries, {elected} leaders of {founded} clusters, {replaced} times heads replaced");
    assert!(n < 24 || (decided > 25 * n && elected > founded + n / 4 && replaced > 0));
}

/// The node that leads is killed, and another one leads, in a cluster with more than one voter.
#[test]
fn a_run_whose_leaders_are_killed_elects_others() {
    let kills = |c: &Config| c.profile == "kills" && c.nodes >= 3 && c.odds.lose_control == 0.0;
    let mut others = 0;
    for seed in with_seats(kills).take(6) {
        let o = good(seed);
        others += count(&o, "leaders elected").saturating_sub(1);
    }
    assert!(others >= 3, "{others} leaders after the first ones");
}

#[test]
fn the_same_seed_takes_the_same_course() {
    for seed in with_seats(|_| true).take(6) {
        let (a, b) = (good(seed), good(seed));
        assert_eq!((a.trace, a.events, a.time), (b.trace, b.events, b.time), "seed {seed}");
        assert_eq!(a.counts, b.counts, "seed {seed}");
    }
}

/// Seats that lose their power have forgotten what they said. Two of them lead in one term, or entries that were decided
/// give way to others.
#[test]
fn seats_that_forget_are_noticed() {
    let loses_power = |c: &Config| c.nodes >= 3 && matches!(c.profile, "power" | "everything");
    for rule in SEATS {
        let mutants = Mutants { seats: Some(rule), ..Mutants::default() };
        let noticed = with_seats(loses_power).take(TRIES).map(|seed| run(seed, mutants, false)).find(|o| !o.is_good());
        let o = noticed.unwrap_or_else(|| panic!("{rule:?} is not noticed in {TRIES} runs"));
        assert!(o.replay(mutants).contains(&format!("--mutant {rule:?}")), "{}", o.replay(mutants));
        println!("{rule:?}: seed {}: {:?}", o.seed, o.violations.first());
    }
}

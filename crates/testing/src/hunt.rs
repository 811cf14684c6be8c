//! The hunt for a seed that catches a mutant. It begins with the seed that is recorded in a table, which is nearly always
//! enough; the table is written by `cargo xtask mutants --write`.
//!
//! Invariants: a mutant that nothing catches fails its test; a recorded seed that does not catch any more is told.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

/// How many catching seeds a hunt for the cheapest one compares, and how far it goes behind the first.
const CATCHES: usize = 4;
const SEEDS_BEHIND_FIRST: usize = 40;
/// Characters of a run's complaint that a hunt prints.
const BY_MAX: usize = 160;

/// A mutant that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The first line of what the run complained of.
    pub by: String,
    /// The cost of the run, in any unit that is the same for all runs of a mutant; its time if nothing better is known.
    pub cost: Option<u64>,
}

impl Caught {
    /// Noticed with these words, at a cost that nobody counted.
    pub fn by(text: impl Into<String>) -> Self {
        Self { by: text.into(), cost: None }
    }
}

/// Seeds that caught mutants when they were looked for last: lines of a name and a seed; lines that begin with # say
/// what the table is.
#[derive(Debug)]
pub struct Table {
    /// From the top of the tree, for people and for who writes it anew.
    path: &'static str,
    seeds: BTreeMap<&'static str, u64>,
}

/// How a hunt ended.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    AsRecorded(u64, Caught),
    /// Another seed than the recorded one, and what is to be said of that.
    Stale(u64, Caught, String),
    Nothing,
}

impl Table {
    /// Reads a table.
    ///
    /// # Panics
    /// If a line is something else than a name and a seed, or a name comes twice.
    #[must_use]
    pub fn new(path: &'static str, text: &'static str) -> Self {
        let mut seeds = BTreeMap::new();
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let entry = line.split_once(' ').and_then(|(name, seed)| Some((name, seed.parse().ok()?)));
            let Some((name, seed)) = entry else { panic!("{path}: '{line}' is not a name and a seed") };
            assert!(seeds.insert(name, seed).is_none(), "{path}: {name} is there twice");
        }
        Self { path, seeds }
    }

    /// The names of the mutants in the table.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.seeds.keys().copied()
    }

    /// Runs the recorded seed, then `seeds`, until `run` says that the mutant was caught. With `FREEBS_HUNT=1` it looks
    /// for the cheapest of several seeds, wherever the table begins, and prints it for who writes the table.
    ///
    /// # Panics
    /// If no seed catches the mutant.
    pub fn hunt(&self, name: &str, seeds: impl Iterator<Item = u64>, run: impl FnMut(u64) -> Option<Caught>) -> u64 {
        if super::is_set("FREEBS_HUNT") {
            let Some(c) = cheapest(seeds, run) else { panic!("nobody noticed {name}") };
            let (seed, after, cost) = (c.seed, c.after, c.cost);
            let by: String = c.caught.by.lines().next().unwrap_or_default().chars().take(BY_MAX).collect();
            say(&format!("hunted: {} {name} {seed} after {after} cost {cost}: {by}", self.path));
            return seed;
        }
        let (seed, caught) = match self.find(name, seeds, run) {
            Found::AsRecorded(seed, caught) => (seed, caught),
            Found::Stale(seed, caught, why) => {
                say(&format!("stale: {}: {why}; cargo xtask mutants --write makes the table anew", self.path));
                (seed, caught)
            }
            Found::Nothing => panic!("nobody noticed {name}"),
        };
        println!("{name:>24} seed {seed}: {}", caught.by);
        seed
    }

    fn find(&self, name: &str, seeds: impl Iterator<Item = u64>, mut run: impl FnMut(u64) -> Option<Caught>) -> Found {
        let recorded = self.seeds.get(name).copied();
        if let Some(seed) = recorded
            && let Some(caught) = run(seed)
        {
            return Found::AsRecorded(seed, caught);
        }
        for seed in seeds.filter(|s| Some(*s) != recorded) {
            if let Some(caught) = run(seed) {
                let why = match recorded {
                    Some(old) => format!("{name} is caught by seed {seed}, and no more by seed {old}"),
                    None => format!("{name} is caught by seed {seed}, and not recorded"),
                };
                return Found::Stale(seed, caught, why);
            }
        }
        Found::Nothing
    }
}

/// The cheapest of several catches.
struct Cheapest {
    seed: u64,
    /// Seeds that were run until the first catch, that one included.
    after: usize,
    cost: u64,
    caught: Caught,
}

fn cheapest(seeds: impl Iterator<Item = u64>, mut run: impl FnMut(u64) -> Option<Caught>) -> Option<Cheapest> {
    let mut catches = Vec::new();
    let (mut after, mut behind) = (0, 0);
    for seed in seeds {
        after += usize::from(catches.is_empty());
        let begun = Instant::now();
        if let Some(caught) = run(seed) {
            let cost = caught.cost.unwrap_or_else(|| begun.elapsed().as_micros() as u64);
            catches.push((seed, cost, caught));
        }
        behind += usize::from(!catches.is_empty());
        if catches.len() == CATCHES || behind > SEEDS_BEHIND_FIRST {
            break;
        }
    }
    let (seed, cost, caught) = catches.into_iter().min_by_key(|(_, cost, _)| *cost)?;
    Some(Cheapest { seed, after, cost, caught })
}

/// Prints a line past the capture of the test runner.
fn say(line: &str) {
    let _ = std::io::stderr().lock().write_all(format!("\n{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Seeds.\nOne 5\nTwo 70\n";

    fn catches(which: &'static [u64]) -> impl FnMut(u64) -> Option<Caught> {
        move |seed| which.contains(&seed).then(|| Caught { by: format!("by {seed}"), cost: Some(100 - seed) })
    }

    #[test]
    fn the_recorded_seed_comes_first() {
        let table = Table::new("a/table", TEXT);
        assert_eq!(table.names().collect::<Vec<_>>(), ["One", "Two"]);
        let mut runs = Vec::new();
        let found = table.find("Two", 0..10, |seed| {
            runs.push(seed);
            catches(&[3, 70])(seed)
        });
        assert_eq!(found, Found::AsRecorded(70, Caught { by: "by 70".into(), cost: Some(30) }));
        assert_eq!(runs, [70]);
    }

    #[test]
    fn a_table_that_is_stale_is_told() {
        let table = Table::new("a/table", TEXT);
        let Found::Stale(3, _, why) = table.find("Two", 0..10, catches(&[3])) else { panic!("seed 3 catches") };
        assert_eq!(why, "Two is caught by seed 3, and no more by seed 70");
        let Found::Stale(3, _, why) = table.find("Three", 0..10, catches(&[3])) else { panic!("seed 3 catches") };
        assert_eq!(why, "Three is caught by seed 3, and not recorded");
    }

    #[test]
    fn a_mutant_that_nothing_catches_is_found() {
        let table = Table::new("a/table", TEXT);
        assert_eq!(table.find("One", 0..10, catches(&[])), Found::Nothing);
        assert!(std::panic::catch_unwind(|| table.hunt("One", 0..10, catches(&[]))).is_err());
    }

    #[test]
    fn the_cheapest_of_several_is_taken() {
        let found = |seeds, which| cheapest(seeds, catches(which)).map(|c| (c.seed, c.after, c.cost));
        assert_eq!(found(0..100, &[3, 9, 20, 30, 43]), Some((30, 4, 70)));
        assert_eq!(found(0..100, &[3, 9, 44, 45]), Some((9, 4, 91)));
        assert_eq!(found(0..10, &[]), None);
    }

    #[test]
    fn a_table_with_something_else_in_it_is_refused() {
        for text in ["One", "One x", "One 1\nOne 2"] {
            assert!(std::panic::catch_unwind(|| Table::new("a/table", text)).is_err(), "{text}");
        }
    }
}

//! A failing seed is made smaller: volumes, faults and time are left out while it still fails in the same way.

use crate::cluster::Mutants;
use crate::config::Config;
use crate::less::{FLIPPED_BITS, LOST_MESSAGES, Less};
use crate::run::{Outcome, run_config};
use crate::timing::SHRINK_STEP;
use freebs_types::Nanos;

/// A smaller run that fails.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The parts of the run that are left out.
    pub less: Less,
    /// The end of the smaller run: it has violations.
    pub outcome: Outcome,
    /// How many runs it took to find it.
    pub runs: u64,
}

/// Makes the run of `seed` smaller with at most `runs_max` runs. `None` if it does not fail at all.
#[must_use]
pub fn shrink(seed: u64, less: &Less, mutants: Mutants, runs_max: u64) -> Option<Shrunk> {
    let outcome = run_config(less.of(Config::draw(seed)), mutants, false);
    let wanted = kind(outcome.violations.first()?);
    let best = Shrunk { less: less.clone(), outcome, runs: 1 };
    let mut search = Search { seed, mutants, runs_max, wanted, best };
    loop {
        let before = search.best.less.clone();
        search.fewer_volumes();
        search.fewer_faults();
        search.shorter();
        if search.best.less == before || search.best.runs >= runs_max {
            return Some(search.best);
        }
    }
}

struct Search {
    seed: u64,
    mutants: Mutants,
    runs_max: u64,
    wanted: String,
    best: Shrunk,
}

impl Search {
    /// Takes a smaller run if it fails in the same way.
    fn takes(&mut self, less: Less) -> bool {
        if self.best.runs >= self.runs_max {
            return false;
        }
        self.best.runs += 1;
        let outcome = run_config(less.of(Config::draw(self.seed)), self.mutants, false);
        let fails = outcome.violations.first().is_some_and(|v| kind(v) == self.wanted);
        if fails {
            (self.best.less, self.best.outcome) = (less, outcome);
        }
        fails
    }

    fn config(&self) -> Config {
        self.best.less.of(Config::draw(self.seed))
    }

    fn fewer_volumes(&mut self) {
        for n in 1..self.config().volumes.len() {
            if self.takes(Less { volumes: Some(n), ..self.best.less.clone() }) {
                return;
            }
        }
    }

    /// Names of the faults that the run has now.
    fn faults(&self) -> Vec<&'static str> {
        let config = self.config();
        let odds = config.odds.list();
        let odds = odds.iter().filter(|(_, odds)| *odds > 0.0).map(|(name, _)| *name);
        let net = [(LOST_MESSAGES, config.net.lost), (FLIPPED_BITS, config.net.flipped)];
        let net = net.into_iter().filter(|(_, odds)| *odds > 0.0).map(|(name, _)| name);
        odds.chain(net).filter(|name| !config.less.without.contains(name)).collect()
    }

    /// All faults at once, then halves, quarters and so on, down to single ones.
    fn fewer_faults(&mut self) {
        let mut size = self.faults().len();
        while size > 0 {
            for some in self.faults().chunks(size) {
                let mut less = self.best.less.clone();
                less.without.extend(some);
                self.takes(less);
            }
            size /= 2;
        }
    }

    /// The earliest end is looked for by halves; whether an earlier one fails is not a matter of order, but nearly.
    fn shorter(&mut self) {
        let (mut low, mut high) = (0, self.config().until.0 / SHRINK_STEP.0);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.takes(Less { until: Some(Nanos(middle * SHRINK_STEP.0)), ..self.best.less.clone() }) {
                high = middle;
            } else {
                low = middle;
            }
        }
    }
}

/// The first words of a violation, without its time and its numbers.
fn kind(violation: &str) -> String {
    let text = violation.strip_prefix("at ").and_then(|v| v.split_once(" s: ")).map_or(violation, |(_, text)| text);
    let words = text.lines().next().unwrap_or_default().split(|c: char| !c.is_alphabetic());
    words.filter(|w| w.len() > 1).take(6).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_violation_has_neither_time_nor_numbers() {
        let a = kind("at    3.000123 s: shard 1.0: view 1005 was active, and view 1004 was made again (V9)");
        assert_eq!(a, "shard view was active and view");
        assert_eq!(a, kind("at   12.500000 s: shard 2.1: view 7 was active, and view 6 was made again (V9)"));
        assert_ne!(a, kind("at   12.500000 s: shard 2.1: view 7 was promised"));
        assert_eq!(kind("panic: index out of bounds: the len is 3"), "panic index out of bounds the");
    }
}

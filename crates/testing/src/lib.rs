//! Tools that tests of several crates share: the long forms, seeds, and the hunt for seeds that catch a mutant.
//!
//! All variables of the environment that these tests know are read here; `docs/testing.md` lists them.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a hunt takes the time of its catches")]

mod hunt;

pub use hunt::{Caught, Table};

use std::ops::Range;

/// True if the long forms of the tests are asked for: `FREEBS_FULL=1`.
#[must_use]
pub fn full() -> bool {
    is_set("FREEBS_FULL")
}

/// True if golden bytes are to be written anew: `FREEBS_BLESS=1`.
#[must_use]
pub fn bless() -> bool {
    is_set("FREEBS_BLESS")
}

/// Seeds that a test runs: `few` from 0 on, `many` in its long form, as many as `FREEBS_SEEDS` says, or the one that
/// `FREEBS_SEED` names.
///
/// # Panics
/// If one of the variables is no number.
#[must_use]
pub fn seeds(few: u64, many: u64) -> Range<u64> {
    seeds_of(number("FREEBS_SEED"), number("FREEBS_SEEDS"), if full() { many } else { few })
}

/// The variables, written before a command that repeats a seed.
#[must_use]
pub fn again(seed: u64) -> String {
    format!("{}FREEBS_SEED={seed}", if full() { "FREEBS_FULL=1 " } else { "" })
}

fn seeds_of(one: Option<u64>, count: Option<u64>, usual: u64) -> Range<u64> {
    match one {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..count.unwrap_or(usual),
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| v == "1")
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is '{text}', which is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_goes_before_a_count_and_a_count_before_the_usual() {
        assert_eq!(seeds_of(Some(7), Some(9), 100), 7..8);
        assert_eq!(seeds_of(None, Some(9), 100), 0..9);
        assert_eq!(seeds_of(None, None, 100), 0..100);
    }
}

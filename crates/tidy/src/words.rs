//! Comments that begin with a question word instead of a noun: a number for each crate that may only go down.
//!
//! A reader has to read "Who waits gets …" twice; "A request that waits gets …" says it at once. The comments that
//! were there when the rule came are counted in [`RECORD`]; new ones are not taken, and a count that went down is
//! recorded, so that it stays down.

use crate::rust::{TokenKind, tokens};
use crate::{Finding, Tree};
use std::collections::BTreeMap;

/// The file with lines of a crate's name and its number.
pub const RECORD: &str = "crates/tidy/words.txt";

/// Beginnings that the rule is about.
const BEGINNINGS: [&str; 5] = ["What", "Who", "Whether", "For so", "By how"];

/// Lines of comments that begin so, in a source.
pub fn lines(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for comment in tokens(text).into_iter().filter(|t| t.kind == TokenKind::Comment) {
        for (n, line) in comment.text.lines().enumerate() {
            let said = line.trim_start_matches(['/', '*', '!', ' ', '\t']);
            let begins = |b: &&str| said.strip_prefix(*b).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
            if BEGINNINGS.iter().any(begins) {
                found.push(comment.line + n);
            }
        }
    }
    found
}

/// Places by crate, in the order of paths.
fn counted(tree: &Tree) -> BTreeMap<&str, Vec<(&str, usize)>> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        let Some((name, _)) = path.strip_prefix("crates/").and_then(|p| p.split_once('/')) else { continue };
        places.entry(name).or_default().extend(lines(text).into_iter().map(|line| (path, line)));
    }
    places
}

/// Crates whose number is not the recorded one.
pub fn ratchet(tree: &Tree) -> Vec<Finding> {
    let mut places = counted(tree);
    let mut found = Vec::new();
    for (n, line) in tree.text(RECORD).lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let mut words = line.split(' ');
        let (name, number) = (words.next().unwrap_or_default(), words.next().and_then(|w| w.parse::<usize>().ok()));
        let Some(recorded) = number else {
            found.push(Finding::new(RECORD, n + 1, "not a crate and a number: write `name 12`"));
            continue;
        };
        let places = places.remove(name).unwrap_or_default();
        if places.len() > recorded {
            found.push(too_many(name, &places, recorded));
        } else if places.len() < recorded || recorded == 0 {
            let text = match places.len() {
                0 => format!("`{name}` has none left: take the line out"),
                now => format!("`{name}` has only {now} left: write `{name} {now}`"),
            };
            found.push(Finding::new(RECORD, n + 1, text));
        }
    }
    let unrecorded = places.into_iter().filter(|(_, places)| !places.is_empty());
    found.extend(unrecorded.map(|(name, places)| too_many(name, &places, 0)));
    found
}

fn too_many(name: &str, places: &[(&str, usize)], recorded: usize) -> Finding {
    let (path, line) = places[places.len() - 1];
    let text = format!(
        "`{name}` has {} comment lines that begin with {}, {recorded} are recorded: begin with the noun (the last one is \
         here)",
        places.len(),
        BEGINNINGS.join(", ")
    );
    Finding::new(path, line, text)
}

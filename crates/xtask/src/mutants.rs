//! `cargo xtask mutants`: looks for seeds that catch mutants, prints the tables, and can write them anew: the seeds that
//! tests begin with, and in the README how many seeds it took.

use crate::call::Call;
use crate::options::Options;
use crate::watched::watched;
use crate::{Bad, Done, root};
use std::collections::BTreeMap;

/// Crates whose mutants are hunted by seeds, and the part of their tests that does it.
const HUNTS: [(&str, &[&str]); 4] = [
    ("freebs-sim", &["mutants::mutants_of"]),
    ("freebs-consensus", &["sim::mutants_are_caught"]),
    ("freebs-driver", &["property::catches"]),
    ("freebs-lsvd", &["sweeps::mutants", "cleaning::rules_that_are_left_out"]),
];

/// The file with the table of all mutants.
const README: &str = "crates/sim/README.md";

/// Findings of a hunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hunted {
    /// The seed that catches the mutant cheaply.
    seed: u64,
    /// Seeds that were run until the first one that caught it.
    after: u64,
}

/// Tables by path: mutants and their seeds.
type Tables = BTreeMap<String, BTreeMap<String, Hunted>>;

/// Hunts in all crates, or in the one that is named.
///
/// # Errors
/// If a mutant is not caught, or the options are not understood.
pub fn run(mut options: Options) -> Done {
    let write = options.flag("--write");
    let one = options.word();
    options.end()?;
    let wanted = |name: &str| one.as_deref().is_none_or(|o| name == o || name.strip_prefix("freebs-") == Some(o));
    let hunts: Vec<_> = HUNTS.iter().filter(|(name, _)| wanted(name)).collect();
    if hunts.is_empty() {
        let names = HUNTS.map(|(name, _)| name).join(", ");
        return Err(Bad::NotUnderstood(format!("mutants are hunted by seeds in {names}")));
    }
    let (mut tables, mut bad) = (Tables::new(), false);
    for (name, tests) in hunts {
        let call = Call::new("cargo test --profile sim --test suite -p").with([*name, "--"]);
        let call = call.with(tests.iter().copied()).env("FREEBS_HUNT", "1");
        let mut here = Tables::new();
        match watched(&call, None, None, |line| take(&mut here, line)) {
            Ok(()) if here.is_empty() => {
                call.failed("it hunted nothing");
                bad = true;
            }
            Ok(()) => tables.append(&mut here),
            Err(how) => {
                call.failed(&how);
                bad = true;
            }
        }
    }
    let of = |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_default();
    let old = of(README);
    let mut readme = old.clone();
    for (path, seeds) in &tables {
        bad |= tell(path, &of(path), &table(seeds), write).is_err();
        readme = with_counts(&readme, path, seeds);
    }
    bad |= tell(README, &old, &readme, write).is_err();
    if bad { Err(Bad::Failed) } else { Ok(()) }
}

/// Takes in a line `hunted: TABLE NAME SEED after N cost N: by ...`.
fn take(tables: &mut Tables, line: &str) {
    let words: Vec<&str> = line.strip_prefix("hunted: ").unwrap_or_default().split(' ').collect();
    if let [path, name, seed, "after", after, ..] = words[..]
        && let (Ok(seed), Ok(after)) = (seed.parse(), after.parse())
    {
        tables.entry(path.to_owned()).or_default().insert(name.to_owned(), Hunted { seed, after });
    }
}

/// The lines of a table.
fn table(seeds: &BTreeMap<String, Hunted>) -> String {
    let head =
        "# Seeds that catch mutants, cheap ones: a name and a seed. `cargo xtask mutants --write` makes this anew.\n";
    seeds.iter().fold(head.to_owned(), |text, (name, h)| text + &format!("{name} {}\n", h.seed))
}

/// The text, with the last cell of each line `| crate | rule | `mutant` | says | where | seeds |` made anew if the mutant was
/// hunted in the table of this path. The simulator hunts those of several crates.
fn with_counts(text: &str, path: &str, seeds: &BTreeMap<String, Hunted>) -> String {
    let hunter = path.split('/').nth(1).unwrap_or_default();
    let is_hunted_here = |of: &str| of == hunter || hunter == "sim" && ["chain", "driver", "control"].contains(&of);
    let counted = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", of, rule, mutant, says, at, _, ""] = cells[..] else { return None };
        let name = mutant.strip_prefix('`')?.strip_suffix('`')?;
        let found = seeds.get(name).filter(|_| is_hunted_here(of))?;
        Some(format!("| {of} | {rule} | {mutant} | {says} | {at} | {} |", found.after))
    };
    text.lines().map(|l| counted(l).unwrap_or_else(|| l.to_owned()) + "\n").collect()
}

fn tell(path: &str, old: &str, text: &str, write: bool) -> std::io::Result<()> {
    let file = root().join(path);
    println!("\n{path}");
    text.lines().filter(|l| l.starts_with("| ") || !path.ends_with(".md")).for_each(|l| println!("{l}"));
    if old == text {
        println!("as it was");
    } else if write {
        std::fs::write(&file, text).inspect_err(|e| println!("{path} can't be written: {e}"))?;
        println!("written anew");
    } else {
        println!("differs from what is recorded; --write records it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_hunted_becomes_a_table() {
        let mut tables = Tables::new();
        let lines = ["hunted: a/t Two 7 after 3 cost 9: by x", "hunted: a/t One 5 after 1 cost 1: y"];
        for line in lines.into_iter().chain(["test a ... ok", "hunted: a/t", "hunted: a/t Three 5 cost 1: y"]) {
            take(&mut tables, line);
        }
        let text = table(&tables["a/t"]);
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), ["One 5", "Two 7"]);
        assert!(text.starts_with("# "));
        let readme = "# A\n| a | W1 | `Two` | x | y | 100 |\n| a | W2 | `Four` | x | z | - |\n";
        let others = readme.replace("| a |", "| chain |");
        assert_eq!(with_counts(readme, "crates/a/t", &tables["a/t"]), readme.replace("100", "3"));
        assert_eq!(with_counts(&others, "crates/sim/t", &tables["a/t"]), others.replace("100", "3"));
        assert_eq!(with_counts(&others, "crates/a/t", &tables["a/t"]), others);
    }
}

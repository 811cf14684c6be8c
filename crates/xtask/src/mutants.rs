//! `cargo xtask mutants`: looks for seeds that catch mutants, prints the tables, and can write them anew: the seeds that
//! tests begin with, and in a crate's README how many seeds it took.

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
    for (path, seeds) in &tables {
        let of = |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_default();
        bad |= tell(path, &of(path), &table(seeds), write).is_err();
        if let Some((folder, _)) = path.split_once("/tests/") {
            let readme = format!("{folder}/README.md");
            let old = of(&readme);
            if let Some(new) = with_counts(&old, seeds) {
                bad |= tell(&readme, &old, &new, write).is_err();
            }
        }
    }
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

/// The text, with the last cell of each line `| rule | `mutant` | runs | seeds |` of a mutant that was hunted made anew.
/// `None` if it has no such line.
fn with_counts(text: &str, seeds: &BTreeMap<String, Hunted>) -> Option<String> {
    let counted = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", rule, mutant, runs, _, ""] = cells[..] else { return None };
        let found = seeds.get(mutant.strip_prefix('`')?.strip_suffix('`')?)?;
        Some(format!("| {rule} | {mutant} | {runs} | {} |", found.after))
    };
    let lines: Vec<(&str, Option<String>)> = text.lines().map(|l| (l, counted(l))).collect();
    let is_there = lines.iter().any(|(_, new)| new.is_some());
    let all = lines.into_iter().map(|(old, new)| new.unwrap_or_else(|| old.to_owned()) + "\n");
    is_there.then(|| all.collect())
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
        let readme =
            "# A\n| rule | mutant | runs | seeds |\n| W1 | `Two` | all | 100 |\n| W2 | `Four` | none | a test |\n";
        assert_eq!(with_counts(readme, &tables["a/t"]), Some(readme.replace("100", "3")));
        assert_eq!(with_counts("# A\n| W2 | `Four` | all | 100 |\n", &tables["a/t"]), None);
    }
}

//! `cargo xtask mutants`: looks for seeds that catch mutants, prints the tables, and can write them anew.

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

/// Tables by path: mutants and their seeds.
type Tables = BTreeMap<String, BTreeMap<String, u64>>;

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
        bad |= tell(path, seeds, write).is_err();
    }
    if bad { Err(Bad::Failed) } else { Ok(()) }
}

/// Takes in a line `hunted: TABLE NAME SEED cost N: by ...`.
fn take(tables: &mut Tables, line: &str) {
    let mut words = line.strip_prefix("hunted: ").unwrap_or_default().split(' ');
    if let (Some(path), Some(name), Some(seed)) = (words.next(), words.next(), words.next())
        && let Ok(seed) = seed.parse()
    {
        tables.entry(path.to_owned()).or_default().insert(name.to_owned(), seed);
    }
}

/// The lines of a table.
fn table(seeds: &BTreeMap<String, u64>) -> String {
    let head =
        "# Seeds that catch mutants, cheap ones: a name and a seed. `cargo xtask mutants --write` makes this anew.\n";
    seeds.iter().fold(head.to_owned(), |text, (name, seed)| text + &format!("{name} {seed}\n"))
}

fn tell(path: &str, seeds: &BTreeMap<String, u64>, write: bool) -> std::io::Result<()> {
    let (file, text) = (root().join(path), table(seeds));
    print!("\n{path}\n{text}");
    let old = std::fs::read_to_string(&file).unwrap_or_default();
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
        for line in ["hunted: a/t Two 7 cost 9: by x", "hunted: a/t One 5 cost 1: y", "test a ... ok", "hunted: a/t"] {
            take(&mut tables, line);
        }
        let text = table(&tables["a/t"]);
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), ["One 5", "Two 7"]);
        assert!(text.starts_with("# "));
    }
}

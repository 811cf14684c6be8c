//! The table of variables in `docs/testing.md` is that of the tree: no variable is missing, none is gone, and each is used
//! where the table says.

use freebs_xtask::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where a variable is used: the crates, `bench`, or `.ci`.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Ways in which code names a variable, each followed by the name in quotes. The readers of `freebs-testing` are among them.
const READERS: [&str; 9] =
    ["var(", "var_os(", "env = ", "is_set(", "number(", "environ[", "environ.get(", "getenv(", "env_remove("];

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["target", "out", "__pycache__"].contains(&name.as_str()) && !name.starts_with('.') {
            files(&path, out);
        } else if path.is_file() {
            out.push(path);
        }
    }
}

/// The words of a text that are names of our variables.
fn our_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |w: &&str| w.strip_prefix("FREEBS_").is_some_and(|r| !r.is_empty() && *w == w.to_uppercase());
    words.filter(is_name).map(str::to_owned).collect()
}

/// The constants of a C header, whose names look like those of variables.
fn constants(header: &str) -> BTreeSet<String> {
    let defined = header.lines().filter_map(|l| l.strip_prefix("#define ")?.split_whitespace().next());
    defined.map(str::to_owned).collect()
}

/// Names in quotes that are read as variables.
fn read_names(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for reader in READERS {
        for (at, _) in text.match_indices(reader) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let rest = &text[at + reader.len()..];
            if let Some(quoted) = rest.strip_prefix('"').filter(|_| !before.is_alphanumeric() && before != '_') {
                let name = quoted.split('"').next().unwrap_or_default();
                if !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_') {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    found
}

/// The variables that the tree uses. Comments count, too: they would name what is gone.
fn used() -> Uses {
    let mut uses = Uses::new();
    let mut places = vec![("bench".to_owned(), root().join("bench")), (".ci".to_owned(), root().join(".ci"))];
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // This crate names variables to set and to look for them.
        if name != "xtask" {
            places.push((name, path));
        }
    }
    let mut defined = BTreeSet::new();
    for (place, folder) in places {
        let mut all = Vec::new();
        files(&folder, &mut all);
        for header in all.iter().filter(|p| p.extension().is_some_and(|e| e == "h")) {
            defined.extend(constants(&std::fs::read_to_string(header).unwrap()));
        }
        for path in all {
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let is_code = path.extension().is_none_or(|e| ["rs", "py", "h", "c"].iter().any(|x| e == *x));
            let names =
                if is_code { our_names(&text).into_iter().chain(read_names(&text)).collect() } else { BTreeSet::new() };
            // Facts of the build that cargo tells are no variables of ours.
            for name in names.into_iter().filter(|n| !n.starts_with("CARGO_")) {
                uses.entry(name).or_default().insert(place.clone());
            }
        }
    }
    uses.retain(|name, _| !defined.contains(name));
    uses
}

/// The table of a page: rows of name, meaning, default, and places.
fn table(page: &str) -> Uses {
    let mut uses = Uses::new();
    for line in page.lines().filter(|l| l.starts_with("| `") && !l.starts_with("| `cargo")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, meaning, default, places] = cells[..] else { continue };
        assert!(!meaning.is_empty() && !default.is_empty(), "{line}");
        let places = places.split(", ").map(str::to_owned).collect();
        assert!(uses.insert(name.trim_matches('`').to_owned(), places).is_none(), "{name} is there twice");
    }
    uses
}

#[test]
fn the_table_is_that_of_the_tree() {
    let page = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let (said, used) = (table(&page), used());
    assert!(used.len() > 10, "{used:?}");
    let mut wrong = Vec::new();
    for (name, places) in &used {
        match said.get(name) {
            None => wrong.push(format!("{name} lacks, which {places:?} use")),
            Some(row) if row != places => wrong.push(format!("{name} is used by {places:?}, not by {row:?}")),
            Some(_) => {}
        }
    }
    let gone = said.keys().filter(|name| !used.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name} is used by nothing")));
    assert!(wrong.is_empty(), "docs/testing.md: {}", wrong.join("; "));
}

/// Pages and scripts name no variable that is gone.
#[test]
fn pages_name_variables_that_are_there() {
    let used = used();
    let mut pages = vec![root().join("README.md"), root().join(".ci/run")];
    files(&root().join("docs"), &mut pages);
    files(&root().join("crates"), &mut pages);
    for path in pages.iter().filter(|p| p.extension().is_none_or(|e| e == "md")) {
        for name in our_names(&std::fs::read_to_string(path).unwrap_or_default()) {
            assert!(used.contains_key(&name), "{} names {name}, which nothing uses", path.display());
        }
    }
}

#[test]
fn the_check_can_fail() {
    let code = "std::env::var(\"SEED\"); var_os(\"PATH\"); let x = number(\"N_9\"); env = \"FREEBS_X\"; is_var(\"NO\")";
    assert_eq!(read_names(code).into_iter().collect::<Vec<_>>(), ["FREEBS_X", "N_9", "PATH", "SEED"]);
    assert_eq!(our_names("`FREEBS_A=1` FREEBS_Bc FREEBS_ freebs_C, \"FREEBS_D\"").len(), 2);
    let header = "#ifndef FREEBS_H\n#define FREEBS_H\n#define FREEBS_MAX 9\nint freebs(void);";
    assert_eq!(constants(header).into_iter().collect::<Vec<_>>(), ["FREEBS_H", "FREEBS_MAX"]);
    let rows = table("| `A` | what | none | io, node |\n| x | y | z | w |\n| `cargo xtask ci` | a | b | c |");
    assert_eq!(rows.into_iter().collect::<Vec<_>>(), [("A".into(), ["io".into(), "node".into()].into())]);
}

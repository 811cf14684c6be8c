//! The crates: each is in the table of `docs/architecture.md`, and none depends on one above it.

use crate::rust::tokens;
use crate::{Finding, Tree, markdown};

/// The page with the table of crates.
pub const PAGE: &str = "docs/architecture.md";

/// The floors of the house, from the ground. A crate depends only on crates of lower floors, in tests as well.
pub const FLOORS: &[&[&str]] = &[
    &["testing", "types"],
    &["capi", "format", "identity", "image", "io", "nbd", "secrets"],
    &["backup", "control", "driver", "lsvd"],
    &["chain", "consensus", "disk"],
    &["agent"],
    &["fuzz", "liblsvd", "node", "sim"],
    &["client", "tidy", "xtask"],
    &["libfreebs"],
];

/// The crates that are deterministic: no thread, socket, file, clock or random generator of their own.
pub const CORES: &[&str] =
    &["types", "format", "secrets", "lsvd", "chain", "driver", "control", "consensus", "agent", "image", "nbd"];

/// Crates that a core may depend on without being one: `io` has the traits, and its `linux` is not for cores.
const BESIDE_CORES: &[&str] = &["io"];

fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|f| f.contains(&name))
}

/// Crates that the table lacks, and rows without a crate.
pub fn table(tree: &Tree) -> Vec<Finding> {
    let section = markdown::section(tree.text(PAGE), "Crates");
    let rows: Vec<(usize, &str)> = section
        .iter()
        .filter_map(|l| Some((l.number, markdown::cells(l.text)?.first()?.strip_prefix('`')?.strip_suffix('`')?)))
        .collect();
    let line = section.first().map_or(1, |l| l.number);
    let crates = tree.crates();
    let missing = crates.iter().filter(|c| rows.iter().all(|(_, row)| row != *c));
    let mut found: Vec<Finding> = missing
        .map(|c| {
            Finding::new(PAGE, line, format!("the table of crates lacks `{c}`: add a row that says what is in it"))
        })
        .collect();
    for (line, row) in rows.iter().filter(|(_, row)| !crates.contains(row)) {
        found.push(Finding::new(PAGE, *line, format!("there is no crate `{row}`: take the row out")));
    }
    found
}

/// A crate of this workspace that a manifest names as a dependency.
struct Dependency<'a> {
    name: &'a str,
    line: usize,
    /// Of tests and examples only.
    dev: bool,
}

/// The dependencies of a manifest on crates of this workspace.
fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    let mut section = "";
    for (n, text) in manifest.lines().enumerate() {
        let mut key = text;
        if let Some(head) = text.trim().strip_prefix('[') {
            section = head.trim_end_matches(']');
            key = section.rsplit_once("dependencies.").map_or("", |(_, key)| key);
        } else if !section.ends_with("dependencies") {
            continue;
        }
        let key = key.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(name) = key.strip_prefix("freebs-").or(["libfreebs", "liblsvd"].contains(&key).then_some(key)) {
            found.push(Dependency { name, line: n + 1, dev: section.contains("dev-dependencies") });
        }
    }
    found
}

/// The manifests of the crates, by name.
fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, String)> {
    tree.crates().into_iter().map(|name| (name, format!("crates/{name}/Cargo.toml")))
}

/// Dependencies on a crate of the same floor or one above, and crates without a floor.
pub fn order(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, path) in manifests(tree) {
        let Some(own) = floor(name) else {
            let text = format!("`{name}` has no floor: give it one in FLOORS of crates/tidy/src/crates.rs");
            found.push(Finding::new(&path, 1, text));
            continue;
        };
        for d in dependencies(tree.text(&path)) {
            if floor(d.name).is_none_or(|other| other >= own) {
                let text = format!(
                    "`{name}` (floor {own}) must not depend on `{}`: it may depend on floors below only; move what both \
                     need down",
                    d.name
                );
                found.push(Finding::new(&path, d.line, text));
            }
        }
    }
    found
}

/// Cores that depend on a crate of the edge, name `io::linux`, or lift the bans of `clippy.toml`; and a page that
/// names other cores than [`CORES`].
pub fn cores(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, path) in manifests(tree).filter(|(name, _)| CORES.contains(name)) {
        for d in dependencies(tree.text(&path)) {
            if !d.dev && !CORES.contains(&d.name) && !BESIDE_CORES.contains(&d.name) {
                let text =
                    format!("`{name}` is a core and depends on `{}`, which is none: put a trait between", d.name);
                found.push(Finding::new(&path, d.line, text));
            }
        }
        let sources = format!("crates/{name}/src/");
        for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(&sources)) {
            for token in tokens(text) {
                if token.is_word("disallowed_types") || token.is_word("disallowed_methods") {
                    let text =
                        "a core must not lift the bans of clippy.toml: take time, randomness and files from traits";
                    found.push(Finding::new(path, token.line, text));
                } else if token.is_word("linux") {
                    let text = "a core must not name `io::linux`: use the traits of `io`";
                    found.push(Finding::new(path, token.line, text));
                }
            }
        }
    }
    let sentence =
        markdown::section(tree.text(PAGE), "Crates").into_iter().find(|l| l.text.contains(" are the *cores*"));
    if let Some(line) = sentence {
        let (names, _) = line.text.split_once(" are the *cores*").unwrap_or_default();
        let mut names = markdown::without_code(names).1;
        let mut cores = CORES.to_vec();
        names.sort_unstable();
        cores.sort_unstable();
        if names != cores {
            let text =
                format!("the cores are {}: name these, or mend CORES of crates/tidy/src/crates.rs", CORES.join(", "));
            found.push(Finding::new(PAGE, line.number, text));
        }
    }
    found
}

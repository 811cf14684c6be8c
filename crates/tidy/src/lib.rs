//! The rules of the house that neither compiler nor lints know, as functions from text to findings.
//!
//! `cargo test -p freebs-tidy` reads the repository and fails on every finding. It looks at nothing but text, needs no
//! crate, and builds in a second.
//!
//! Each check is a pure function of a file's path and text, or of the [`Tree`]. Its test plants a case that must be
//! found, and a near miss that must not.

pub mod crates;
pub mod house;
pub mod imports;
pub mod links;
pub mod markdown;
pub mod notes;
pub mod openings;
pub mod residue;
pub mod rules;
pub mod rust;
pub mod sizes;
pub mod tree;
pub mod words;

pub use tree::Tree;

/// A place that breaks a rule of the house, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// The first line is 1.
    pub line: usize,
    /// The fault, and the remedy.
    pub text: String,
}

impl Finding {
    /// A fault at a line, and its remedy.
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, text: text.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// The findings of every check, by path and line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in &tree.texts {
        found.extend(sizes::functions(path, text));
        found.extend(sizes::files(path, text));
        found.extend(openings::opening(path, text));
        found.extend(residue::machine_paths(path, text));
        found.extend(residue::unfinished(path, text));
    }
    found.extend(rules::tags(tree));
    found.extend(rules::list(tree));
    found.extend(links::links(tree));
    found.extend(links::named_paths(tree));
    found.extend(crates::table(tree));
    found.extend(crates::order(tree));
    found.extend(crates::cores(tree));
    found.extend(notes::notes(tree));
    found.extend(words::ratchet(tree));
    found.extend(house::ratchet(tree));
    found.extend(house::rooms(tree));
    found.sort();
    found.dedup();
    found
}

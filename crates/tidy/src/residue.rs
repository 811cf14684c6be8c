//! Traces that work leaves behind: paths of a machine, marks of what is not done, tests that are switched off.

use crate::Finding;
use crate::rust::{TokenKind, tokens};
use crate::tree::{Kind, kind};

/// Folders of a machine that no file of the repository names. They are put together here, so that this file may be
/// looked at as well.
const MACHINE: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Marks of what is not done.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Paths that are there on one machine only. A folder inside another path (`net/…`) is none.
pub fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for folder in MACHINE {
            let inside = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "_-.})".contains(c));
            if line.match_indices(folder).any(|(at, _)| !inside(&line[..at])) {
                let text = format!("a path of a machine ({folder}): use a relative path, or a temporary folder");
                found.push(Finding::new(path, n + 1, text));
            }
        }
    }
    found
}

/// Marks in comments and pages; macros of missing code and ignored tests in Rust.
pub fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    if kind(path, text) != Kind::Rust {
        return text.lines().enumerate().filter_map(|(n, line)| mark(path, n + 1, line)).collect();
    }
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.kind == TokenKind::Comment {
            found.extend(token.text.lines().enumerate().filter_map(|(n, l)| mark(path, token.line + n, l)));
        }
        let next = |n: usize, mark: &str| tokens.get(at + n).is_some_and(|t| t.is_mark(mark));
        if (token.is_word("todo") || token.is_word("unimplemented")) && next(1, "!") {
            found.push(Finding::new(path, token.line, "code is missing here: write it, or return an error"));
        }
        if token.is_mark("#") && next(1, "[") && tokens.get(at + 2).is_some_and(|t| t.is_word("ignore")) {
            let text = "a test that is never run: make it quick, or make it an example";
            found.push(Finding::new(path, token.line, text));
        }
    }
    found
}

/// A line with one of [`MARKS`] as a word.
fn mark(path: &str, number: usize, line: &str) -> Option<Finding> {
    let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
    let mark = words.find(|w| MARKS.contains(w))?;
    Some(Finding::new(path, number, format!("{mark}: do it now, or tell what is missing in the documents")))
}

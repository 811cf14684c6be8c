//! Links of pages, and paths that pages and comments name, lead to something that is there.
//!
//! A code span counts as a path if its first word begins with a folder of the root (`crates/`, `docs/`, `bench/`,
//! `.ci/`), or with the name of a crate and ends in `.rs`, or ends in `.md` and has a slash. Words with a placeholder
//! (`*`, `<`, `{`, `$`, `…`) do not count. In comments of Rust every word of the first kind that has an ending counts.

use crate::rust::{TokenKind, tokens};
use crate::{Finding, Tree, markdown};

/// The folders of the root that pages name.
const FOLDERS: [&str; 4] = ["crates/", "docs/", "bench/", ".ci/"];

/// A path with `.` and `..` taken out; nothing if it leads out of the repository.
fn resolve(page: &str, target: &str) -> Option<String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The targets of the links of a line: `[text](target)` and `[name]: target`.
fn targets(prose: &str) -> Vec<&str> {
    let mut found: Vec<&str> = prose.split("](").skip(1).filter_map(|p| p.split([')', ' ']).next()).collect();
    if let Some((name, target)) = prose.split_once("]: ")
        && name.starts_with('[')
        && !name[1..].contains(['[', ']'])
    {
        found.extend(target.split_whitespace().next());
    }
    found
}

/// Links to files that are not there, and to headings that the page does not have.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (page, text) in tree.ending(".md") {
        for line in markdown::lines(text) {
            for target in targets(&line.prose) {
                if let Some(fault) = fault_of(tree, page, target) {
                    found.push(Finding::new(page, line.number, fault));
                }
            }
        }
    }
    found
}

fn fault_of(tree: &Tree, page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { Some(page.to_owned()) } else { resolve(page, file) };
    let Some(path) = path.filter(|p| p.is_empty() || tree.paths.contains(p)) else {
        return Some(format!("the link to {target} leads nowhere: name a file that is there"));
    };
    if anchor.is_empty() || markdown::anchors(tree.text(&path)).iter().any(|a| a == anchor) {
        return None;
    }
    Some(format!("{path} has no heading for #{anchor}: name one that it has"))
}

/// Paths in code spans of pages, and in comments, that are not there.
pub fn named_paths(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let remedy = "mend the path, or leave it out";
    for (page, text) in tree.ending(".md") {
        for line in markdown::lines(text) {
            for word in line.spans.iter().filter_map(|s| path_in(s)) {
                if !is_there(tree, page, word) {
                    found.push(Finding::new(page, line.number, format!("`{word}` is not there: {remedy}")));
                }
            }
        }
    }
    for (path, text) in tree.ending(".rs") {
        for comment in tokens(text).into_iter().filter(|t| t.kind == TokenKind::Comment) {
            for (n, line) in comment.text.lines().enumerate() {
                let words = line.split_whitespace().filter_map(|w| path_in(w.trim_start_matches(['`', '(', '[', '"'])));
                for word in words.filter(|w| w.ends_with(".md") || w.ends_with(".rs")) {
                    if FOLDERS.iter().any(|f| word.starts_with(f)) && !tree.paths.contains(word) {
                        let text = format!("`{word}` is not there: {remedy}");
                        found.push(Finding::new(path, comment.line + n, text));
                    }
                }
            }
        }
    }
    found
}

/// The first word of a code span without what follows a path: the number of a line, punctuation.
fn path_in(span: &str) -> Option<&str> {
    let word = span.split_whitespace().next()?.split([':', '#', '`', ')', ',', ';']).next()?;
    let word = word.trim_end_matches(['/', '.']);
    let placeholder = word.contains(['*', '<', '>', '{', '$', '…']) || word.contains("...");
    (word.contains('/') && !placeholder).then_some(word)
}

fn is_there(tree: &Tree, page: &str, word: &str) -> bool {
    if FOLDERS.iter().any(|f| word.starts_with(f)) {
        return tree.paths.contains(word) || tree.is_made(word);
    }
    let (first, rest) = word.split_once('/').unwrap_or_default();
    if word.ends_with(".rs") && tree.crates().contains(first) {
        return [format!("crates/{first}/{rest}"), format!("crates/{first}/src/{rest}")]
            .iter()
            .any(|p| tree.paths.contains(p));
    }
    !word.ends_with(".md")
        || word.starts_with('/')
        || tree.paths.contains(word)
        || resolve(page, word).is_some_and(|p| tree.paths.contains(&p))
}

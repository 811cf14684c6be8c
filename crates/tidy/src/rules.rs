//! Rules of the protocol: their list is in `docs/architecture.md`, and comments name them where they are kept.
//!
//! A *rule tag* is one of the letters W R V L I S E and a number from 1 to 99 without a leading zero, as a word of its
//! own: no letter, digit, `_`, `#`, `.` or `-` touches it in front, no letter, digit, `_` or `-` behind. Tags are looked
//! for in comments of Rust, in pages, and in strings of Rust if they are the whole string or stand in round brackets.
//! In backticks there are none.

use crate::rust::{TokenKind, tokens};
use crate::tree::{Kind, kind};
use crate::{Finding, Tree, markdown};
use std::collections::BTreeMap;

/// The page with the list.
pub const LIST: &str = "docs/architecture.md";

/// First letters of rules: writes, reads, views, leases, intervals, snapshots, log.
const FAMILIES: &str = "WRVLISE";

/// A rule of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its line in the list.
    pub line: usize,
    /// There is code that keeps it.
    pub built: bool,
}

/// True for a word that has the form of a tag.
fn is_tag(word: &str) -> bool {
    let mut chars = word.chars();
    let family = chars.next().is_some_and(|c| FAMILIES.contains(c));
    let number = chars.as_str();
    family && (1..=2).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0')
}

/// The tags in a text without code spans, each with the bytes before it.
fn tags_in(prose: &str) -> Vec<(usize, &str)> {
    let part = |c: char| c == '_' || c.is_alphanumeric();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = prose[at..].find(part).map(|n| at + n) {
        let end = prose[begin..].find(|c| !part(c)).map_or(prose.len(), |n| begin + n);
        let touched = prose[..begin].ends_with(['#', '.', '-']) || prose[end..].starts_with('-');
        if is_tag(&prose[begin..end]) && !touched {
            found.push((begin, &prose[begin..end]));
        }
        at = end;
    }
    found
}

/// Only what stands in round brackets; the rest becomes spaces.
fn bracketed(text: &str) -> String {
    let mut depth = 0_usize;
    let keep = |c: char| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth > 0 || c == '\n' { c } else { ' ' }
    };
    text.chars().map(keep).collect()
}

/// The tags of a file with their lines.
pub fn tags_of(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut add = |line: usize, prose: &str| {
        for (at, tag) in tags_in(prose) {
            found.push((line + prose[..at].matches('\n').count(), tag.to_owned()));
        }
    };
    match kind(path, text) {
        Kind::Markdown => markdown::lines(text).iter().for_each(|l| add(l.number, &l.prose)),
        Kind::Rust => {
            for token in tokens(text) {
                match token.kind {
                    TokenKind::Comment => {
                        for (n, line) in token.text.lines().enumerate() {
                            add(token.line + n, &markdown::without_code(line).0);
                        }
                    }
                    TokenKind::Text => {
                        let inner = token.text.trim_matches('"');
                        add(token.line, &if is_tag(inner) { inner.to_owned() } else { bracketed(inner) });
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    found
}

/// The rules of the list: lines that begin with a tag in bold, and ranges such as "I1 to I5" in them.
pub fn listed(page: &str) -> BTreeMap<String, Rule> {
    let mut rules = BTreeMap::new();
    for line in markdown::section(page, "Rules") {
        if !line.text.starts_with("- **") {
            continue;
        }
        let rule = Rule { line: line.number, built: !line.text.contains("**Not built.**") };
        let parts: Vec<&str> = line.text.split("**").collect();
        for (n, tag) in parts.iter().enumerate().filter(|(n, part)| n % 2 == 1 && is_tag(part)) {
            let (family, to) = (&tag[..1], number(tag));
            let from = if n >= 3 && parts[n - 1] == " to " { number(parts[n - 2]) } else { to };
            for n in from..=to {
                rules.insert(format!("{family}{n}"), rule);
            }
        }
    }
    rules
}

fn number(tag: &str) -> u32 {
    tag.get(1..).and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Tags that the list does not know.
pub fn tags(tree: &Tree) -> Vec<Finding> {
    let listed = listed(tree.text(LIST));
    let mut found = Vec::new();
    for (path, text) in &tree.texts {
        for (line, tag) in tags_of(path, text) {
            if !listed.contains_key(&tag) {
                let text = format!("{tag} is not in the list of rules in {LIST}: add it there, or name the right rule");
                found.push(Finding::new(path, line, text));
            }
        }
    }
    found
}

/// Numbers that the list leaves out, and rules that no source names although they are built.
pub fn list(tree: &Tree) -> Vec<Finding> {
    let listed = listed(tree.text(LIST));
    let named: Vec<String> =
        tree.ending(".rs").flat_map(|(path, text)| tags_of(path, text)).map(|(_, tag)| tag).collect();
    let mut found = Vec::new();
    for (tag, rule) in &listed {
        let before = number(tag) - 1;
        if before > 0 && !listed.contains_key(&format!("{}{before}", &tag[..1])) {
            let text = format!("the list has no rule before {tag}: numbers go on one by one");
            found.push(Finding::new(LIST, rule.line, text));
        }
        if rule.built && !named.contains(tag) {
            let text =
                format!("no comment in the sources names {tag}: name it where it is kept, or mark it **Not built.**");
            found.push(Finding::new(LIST, rule.line, text));
        }
    }
    found
}

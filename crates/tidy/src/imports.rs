//! The modules of a crate, and which of them name each other: read from `use` lines and paths, as text.
//!
//! Invariants: modules that are compiled for tests only are not there; a path leads to the file in which its item stands,
//! through re-exports; names that lead out of the crate, or to nothing known, lead nowhere.

use crate::Tree;
use crate::rust::{Token, TokenKind, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// Steps through re-exports before a path is given up.
const STEPS_MAX: usize = 64;

/// One file of a crate.
#[derive(Clone, Debug, Default)]
struct Module<'a> {
    /// Path of the file.
    file: &'a str,
    /// Names that `use` brings in, with the paths that they stand for.
    brought: BTreeMap<&'a str, Vec<&'a str>>,
    /// Modules of which `use` brings in all names.
    globs: Vec<Vec<&'a str>>,
    /// Every path that is named, from the root of the crate.
    named: Vec<Vec<&'a str>>,
}

/// The modules of a crate and their imports.
#[derive(Clone, Debug, Default)]
pub struct Imports<'a> {
    /// By the names that lead to them from the root.
    modules: BTreeMap<Vec<&'a str>, Module<'a>>,
}

impl<'a> Imports<'a> {
    /// The modules of the crate `name`.
    pub fn of(tree: &'a Tree, name: &str) -> Imports<'a> {
        let sources = format!("crates/{name}/src/");
        let mut texts = BTreeMap::new();
        for (path, text) in tree.ending(".rs") {
            let Some(rest) = path.strip_prefix(&sources) else { continue };
            texts.insert(module_of(rest), (path, code(text)));
        }
        let mut hidden: BTreeSet<Vec<&str>> = BTreeSet::new();
        for (module, (_, (_, for_tests))) in &texts {
            hidden.extend(for_tests.iter().map(|n| joined(module, n)));
        }
        let mut imports = Imports::default();
        for (module, (file, (tokens, _))) in texts {
            if hidden.iter().any(|h| module.starts_with(h)) {
                continue;
            }
            let paths = named(&module, &tokens);
            let brought = paths.iter().filter_map(|p| p.brings.map(|name| (name, p.path.clone()))).collect();
            let globs = paths.iter().filter(|p| p.brings_all).map(|p| p.path.clone()).collect();
            let named = paths.into_iter().map(|p| p.path).collect();
            imports.modules.insert(module, Module { file, brought, globs, named });
        }
        imports
    }

    /// The modules, by the names that lead to them from the root, and their files.
    pub fn modules(&self) -> impl Iterator<Item = (&[&'a str], &'a str)> {
        self.modules.iter().map(|(names, module)| (&names[..], module.file))
    }

    /// Names of the modules below the root.
    pub fn rooms(&self) -> BTreeSet<&'a str> {
        self.modules.keys().filter_map(|m| m.first().copied()).collect()
    }

    /// Files, and the other files of the crate in which the items stand that they name.
    pub fn arrows(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for module in self.modules.values() {
            let targets = module.named.iter().filter_map(|path| self.find(path)).map(|m| m.file);
            arrows.entry(module.file).or_default().extend(targets.filter(|t| *t != module.file));
        }
        arrows
    }

    /// The largest set of files each of which leads to all others by imports; empty if there is no circle.
    pub fn circle(&self) -> BTreeSet<&'a str> {
        let arrows = self.arrows();
        let reach: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|from| (*from, reached(&arrows, from))).collect();
        let circle_of = |file: &str| -> BTreeSet<&'a str> {
            let there = &reach[file];
            there.iter().filter(|other| reach.get(*other).is_some_and(|r| r.contains(file))).copied().collect()
        };
        let mut largest = BTreeSet::new();
        for file in reach.keys() {
            let circle = circle_of(file);
            if circle.len() > largest.len() {
                largest = circle;
            }
        }
        largest
    }

    /// Imports from one room to another: the file, and the name of the room that it names.
    pub fn between_rooms(&self) -> BTreeSet<(&'a str, &'a str, &'a str)> {
        let mut found = BTreeSet::new();
        for (from, module) in &self.modules {
            let Some(room) = from.first().copied() else { continue };
            for path in &module.named {
                let Some(target) = self.place(path.clone()).and_then(|m| m.first().copied()) else { continue };
                if target != room {
                    found.insert((module.file, room, target));
                }
            }
        }
        found
    }

    fn find(&self, path: &[&'a str]) -> Option<&Module<'a>> {
        self.place(path.to_vec()).and_then(|m| self.modules.get(&m))
    }

    /// The module in which the item at the end of a path stands.
    fn place(&self, mut path: Vec<&'a str>) -> Option<Vec<&'a str>> {
        for _ in 0..STEPS_MAX {
            let mut module: Vec<&str> = Vec::new();
            let mut rest = path.iter().copied();
            let mut next = None;
            for name in rest.by_ref() {
                module.push(name);
                if !self.modules.contains_key(&module) {
                    module.pop();
                    next = Some(name);
                    break;
                }
            }
            let Some(name) = next else { return Some(module) };
            let Some(here) = self.modules.get(&module) else { return None };
            let mut target = match (here.brought.get(name), here.globs.first()) {
                (Some(target), _) => target.clone(),
                // A name that is nowhere else is taken to come with the first of them.
                (None, Some(all)) if *all != module => joined(all, name),
                (None, _) => return Some(module),
            };
            target.extend(rest);
            if target == path {
                return Some(module);
            }
            path = target;
        }
        None
    }
}

/// Files that imports lead to from a file, in any number of steps.
fn reached<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = arrows[from].iter().copied().collect();
    while let Some(file) = open.pop() {
        if found.insert(file) {
            open.extend(arrows.get(file).into_iter().flatten());
        }
    }
    found
}

/// The names that lead to a module, by its path below `src`.
fn module_of(path: &str) -> Vec<&str> {
    let stem = path.trim_end_matches(".rs");
    let mut names: Vec<&str> = stem.split('/').collect();
    if matches!(names.last(), Some(&("mod" | "lib" | "main"))) {
        names.pop();
    }
    names
}

fn joined<'a>(module: &[&'a str], name: &'a str) -> Vec<&'a str> {
    module.iter().copied().chain([name]).collect()
}

/// Tokens without comments and without modules that are compiled for tests only; the names of such modules that are files.
pub fn code(text: &str) -> (Vec<Token<'_>>, Vec<&str>) {
    let all: Vec<Token<'_>> = tokens(text).into_iter().filter(|t| t.kind != TokenKind::Comment).collect();
    let (mut kept, mut for_tests) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < all.len() {
        let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
        let is_for_tests = attribute.iter().enumerate().all(|(i, t)| all.get(at + i).is_some_and(|x| x.text == *t));
        if !is_for_tests {
            kept.push(all[at]);
            at += 1;
            continue;
        }
        at += attribute.len();
        while all.get(at).is_some_and(|t| t.text == "pub" || t.text == "(" || t.text == ")" || t.text == "crate") {
            at += 1;
        }
        let is_module = all.get(at).is_some_and(|t| t.is_word("mod"));
        if is_module && all.get(at + 2).is_some_and(|t| t.is_mark(";")) {
            for_tests.push(all[at + 1].text);
        }
        at = end_of_item(&all, at);
    }
    (kept, for_tests)
}

/// The token behind the item that begins at `at`: behind its semicolon, or the brace that closes it.
fn end_of_item(all: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = all.get(at) {
        at += 1;
        match token.text {
            "{" | "(" | "[" if token.kind == TokenKind::Mark => depth += 1,
            "}" | ")" | "]" if token.kind == TokenKind::Mark => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.is_mark("}") {
                    return at;
                }
            }
            ";" | "," if depth == 0 => return at,
            _ => {}
        }
    }
    at
}

/// A path that a source names.
struct Named<'a> {
    path: Vec<&'a str>,
    /// The name that a `use` gives it in this module.
    brings: Option<&'a str>,
    /// A `use` brings in all that is in it.
    brings_all: bool,
}

/// The paths of a module that begin with `crate`, `super`, `self`, or with a module below it.
fn named<'a>(module: &[&'a str], tokens: &[Token<'a>]) -> Vec<Named<'a>> {
    let below: BTreeSet<&str> = (1..tokens.len())
        .filter(|at| tokens[at - 1].is_word("mod") && tokens[*at].kind == TokenKind::Word)
        .map(|at| tokens[at].text)
        .collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let in_use = at > 0 && tokens[at - 1].is_word("use");
        let begins = at == 0 || !tokens[at - 1].is_mark(":");
        let word = tokens[at].text;
        let base = match word {
            _ if !begins || tokens[at].kind != TokenKind::Word || !is_joined(tokens, at + 1) => None,
            "crate" => Some((Vec::new(), at + 3)),
            "self" => Some((module.to_vec(), at + 3)),
            "super" => Some(above(module, tokens, at)),
            _ if below.contains(word) => Some((module.to_vec(), at)),
            _ => None,
        };
        let Some((base, from)) = base else {
            at += 1;
            continue;
        };
        at = branches(tokens, from, &base, in_use, &mut found).max(at + 1);
    }
    found
}

fn is_joined(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(at).is_some_and(|t| t.is_mark(":")) && tokens.get(at + 1).is_some_and(|t| t.is_mark(":"))
}

/// The module that a chain of `super` names, and the token behind it.
fn above<'a>(module: &[&'a str], tokens: &[Token<'a>], mut at: usize) -> (Vec<&'a str>, usize) {
    let mut base = module.to_vec();
    while tokens.get(at).is_some_and(|t| t.is_word("super")) && is_joined(tokens, at + 1) {
        base.pop();
        at += 3;
    }
    (base, at)
}

/// The paths of a tree such as `a::{b, c::{self, d as e}}`; the token behind it.
fn branches<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    base: &[&'a str],
    in_use: bool,
    found: &mut Vec<Named<'a>>,
) -> usize {
    let mut path = base.to_vec();
    while let Some(token) = tokens.get(at) {
        if token.is_mark("{") && in_use {
            at += 1;
            while tokens.get(at).is_some_and(|t| !t.is_mark("}")) {
                at = branches(tokens, at, &path, in_use, found).max(at + 1);
                if tokens.get(at).is_some_and(|t| t.is_mark(",")) {
                    at += 1;
                }
            }
            return at + 1;
        }
        if token.is_mark("*") && in_use {
            found.push(Named { path, brings: None, brings_all: true });
            return at + 1;
        }
        if token.kind != TokenKind::Word {
            break;
        }
        if token.text != "self" {
            path.push(token.text);
        }
        at += 1;
        if !is_joined(tokens, at) {
            break;
        }
        at += 2;
    }
    let alias = tokens.get(at).filter(|t| t.is_word("as")).and_then(|_| tokens.get(at + 1));
    let brings = if in_use { alias.map(|t| t.text).or(path.last().copied()) } else { None };
    if alias.is_some() {
        at += 2;
    }
    found.push(Named { path, brings, brings_all: false });
    at
}

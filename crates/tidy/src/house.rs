//! The walls inside a crate, as numbers: circles of imports, structs that others reach into, assertions.
//!
//! A file in a circle can't be read without the others. A struct with methods outside of its module and fields that
//! are seen there has no owner. An invariant that nothing asserts is a hope. [`RECORD`] has the numbers of the crates that are
//! watched: circles and open fields may only go down, assertions may only go up.

use crate::imports::{Imports, code};
use crate::rust::{Token, TokenKind};
use crate::{Finding, Tree, rust};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The file with lines of a crate's name and its numbers.
pub const RECORD: &str = "crates/tidy/house.txt";

/// Lines from which a function counts as long.
const LONG: usize = 71;

/// The numbers of a crate, tests left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct House {
    /// Files of sources.
    pub files: usize,
    /// Modules right below the root.
    pub rooms: usize,
    /// Files of the largest circle of imports.
    pub circle: usize,
    /// Named fields of structs.
    pub fields: usize,
    /// Fields that other files see, of structs with methods outside of the module that they stand in.
    pub open: usize,
    /// `assert!`, `assert_eq!`, `assert_ne!`, and those for debugging.
    pub asserts: usize,
    /// Functions over 70 lines.
    pub long: usize,
}

impl fmt::Display for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let House { files, rooms, circle, fields, open, asserts, long } = self;
        write!(
            f,
            "files {files} rooms {rooms} circle {circle} fields {fields} open {open} asserts {asserts} long {long}"
        )
    }
}

/// Structs by name: their module, and their fields, true for those that other files see.
type Structs<'t, 'a> = BTreeMap<&'a str, (&'t [&'a str], Vec<bool>)>;

/// Measures the crate `name`.
pub fn measure(tree: &Tree, name: &str) -> House {
    let imports = Imports::of(tree, name);
    let mut house = House { circle: imports.circle().len(), rooms: imports.rooms().len(), ..House::default() };
    let (mut structs, mut methods) = (Structs::new(), BTreeSet::new());
    for (module, file) in imports.modules() {
        let text = tree.text(file);
        let (tokens, _) = code(text);
        house.files += 1;
        house.asserts += asserts(&tokens);
        house.long += rust::functions(text).iter().filter(|f| f.lines >= LONG).count();
        for (name, fields) in fields(&tokens) {
            structs.entry(name).or_insert((module, Vec::new())).1.extend(fields);
        }
        methods.extend(implemented(&tokens).into_iter().map(|name| (name, module)));
    }
    house.fields = structs.values().map(|s| s.1.len()).sum();
    let is_open = |name: &str, own: &[&str]| methods.iter().any(|(of, module)| *of == name && !module.starts_with(own));
    let open = structs.iter().filter(|(name, (own, _))| is_open(name, own));
    house.open = open.map(|(_, (_, fields))| fields.iter().filter(|seen| **seen).count()).sum();
    house
}

fn asserts(tokens: &[Token<'_>]) -> usize {
    let is_assert = |t: &Token<'_>| {
        let name = t.text.strip_prefix("debug_").unwrap_or(t.text);
        t.kind == TokenKind::Word && matches!(name, "assert" | "assert_eq" | "assert_ne")
    };
    tokens.windows(2).filter(|two| is_assert(&two[0]) && two[1].is_mark("!")).count()
}

/// The structs with named fields, and which of these have a `pub`.
fn fields<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, Vec<bool>)> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if !tokens[at].is_word("struct") || tokens.get(at + 1).is_none_or(|t| t.kind != TokenKind::Word) {
            continue;
        }
        let end =
            (at..tokens.len()).find(|i| tokens[*i].is_mark("{") || tokens[*i].is_mark(";") || tokens[*i].is_mark("("));
        let Some(open) = end.filter(|i| tokens[*i].is_mark("{")) else { continue };
        found.push((tokens[at + 1].text, visibilities(tokens, open + 1)));
    }
    found
}

/// The fields of the struct whose first one begins at `at`: true for those with a `pub`.
fn visibilities(tokens: &[Token<'_>], mut at: usize) -> Vec<bool> {
    let (mut found, mut depth, mut seen, mut in_type) = (Vec::new(), 0_usize, false, false);
    while let Some(token) = tokens.get(at) {
        match token.text {
            "}" if depth == 0 => break,
            "(" | "[" | "{" | "<" => depth += 1,
            ">" if at > 0 && tokens[at - 1].is_mark("-") => {}
            ")" | "]" | "}" | ">" => depth = depth.saturating_sub(1),
            "pub" if depth == 0 => seen = true,
            ":" if depth == 0 && !in_type => {
                found.push(seen);
                in_type = true;
            }
            "," if depth == 0 => (seen, in_type) = (false, false),
            _ => {}
        }
        at += 1;
    }
    found
}

/// Names of the types that have methods of their own here; implementations of traits are left out.
fn implemented<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].is_word("impl")) {
        let Some(open) = (at..tokens.len()).find(|i| tokens[*i].is_mark("{")) else { continue };
        let head = &tokens[at + 1..open];
        if head.iter().any(|t| t.is_word("for")) {
            continue;
        }
        let (mut depth, mut name) = (0_usize, None);
        for token in head {
            match token.text {
                "<" => depth += 1,
                ">" => depth = depth.saturating_sub(1),
                "where" => break,
                _ if depth == 0 && token.kind == TokenKind::Word => name = Some(token.text),
                _ => {}
            }
        }
        found.extend(name);
    }
    found
}

/// Crates whose walls are worse than the record says, or better without the record saying so.
pub fn ratchet(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in tree.text(RECORD).lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |key: &str| {
            let at = words.iter().position(|w| *w == key)?;
            words.get(at + 1)?.parse::<usize>().ok()
        };
        let recorded = (number("circle"), number("open"), number("asserts"));
        let (name, (Some(circle), Some(open), Some(asserts))) = (words[0], recorded) else {
            found.push(Finding::new(
                RECORD,
                n + 1,
                "not a crate with its numbers: write `name circle 1 open 2 asserts 3`",
            ));
            continue;
        };
        let now = measure(tree, name);
        let mut say = |text: String| found.push(Finding::new(RECORD, n + 1, text));
        if now.circle > circle {
            say(format!(
                "{} files of `{name}` import each other in a circle, {circle} are recorded: move what both need down",
                now.circle
            ));
        }
        if now.open > open {
            say(format!(
                "{} fields of structs of `{name}` with methods in several files can be seen by others, {open} are recorded: keep the fields of a struct to its file",
                now.open
            ));
        }
        if now.asserts < asserts {
            say(format!(
                "`{name}` has {} assertions, {asserts} are recorded: assert what the header calls an invariant",
                now.asserts
            ));
        }
        if now.circle < circle || now.open < open {
            say(format!(
                "`{name}` is better than recorded: write `{name} circle {} open {} asserts {}`",
                now.circle, now.open, now.asserts
            ));
        }
    }
    found
}

/// The floors of the rooms of a crate, from the ground: a room imports rooms of lower floors only.
pub const ROOMS: &[(&str, &[&[&str]])] = &[(
    "lsvd",
    &[
        &["api"],
        &["log"],
        &["map"],
        &["shard"],
        &["engine"],
        &["upkeep"],
        &["read"],
        &["tool"],
        &["audit"],
        &["fuzzing"],
    ],
)];

/// Imports from one room to another of the same floor or one above, and rooms without a floor.
pub fn rooms(tree: &Tree) -> Vec<Finding> {
    ROOMS.iter().flat_map(|(name, floors)| upwards(tree, name, floors)).collect()
}

/// As [`rooms`], of one crate with these floors.
pub fn upwards(tree: &Tree, name: &str, floors: &[&[&str]]) -> Vec<Finding> {
    let imports = Imports::of(tree, name);
    let floor = |room: &str| floors.iter().position(|f| f.contains(&room));
    let mut found = Vec::new();
    for room in imports.rooms() {
        if floor(room).is_none() {
            let text =
                format!("the room `{room}` of `{name}` has no floor: give it one in ROOMS of crates/tidy/src/house.rs");
            found.push(Finding::new(&format!("crates/{name}/src"), 1, text));
        }
    }
    for (file, room, target) in imports.between_rooms() {
        if floor(target).zip(floor(room)).is_some_and(|(to, from)| to >= from) {
            let text =
                format!("`{room}` must not import `{target}`, which is not on a lower floor: hand in what it needs");
            found.push(Finding::new(file, 1, text));
        }
    }
    found
}

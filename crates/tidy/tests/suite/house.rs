//! The walls inside a crate: circles, open structs, assertions and imports upwards are counted as they are.

use freebs_tidy::house::{RECORD, measure, upwards};
use freebs_tidy::imports::Imports;
use freebs_tidy::{Tree, house};

const ROOT: &str = "//! It.\nmod a;\nmod b;\npub mod c;\npub use c::Shown;\n#[cfg(test)]\nmod tests;\n";
/// Names `b`, in a comment also `c`.
const A: &str =
    "use crate::b::B;\npub struct A { pub(crate) x: u8, y: Vec<(u8, B)> }\nimpl A { fn new() { assert!(true); } }\n";
const B: &str = "pub struct B;\nimpl super::a::A { fn more() {} }\n";
const C: &str = "// crate::a\npub struct Shown { pub f: fn(u8) -> u8 }\nimpl Shown {}\n#[cfg(test)]\nmod tests { use crate::a; fn f() { assert!(1 > 0); } }\n";

fn tree(with: &[(&str, &str)]) -> Tree {
    let mut files = vec![
        ("crates/x/Cargo.toml", "[package]\n"),
        ("crates/x/src/lib.rs", ROOT),
        ("crates/x/src/a.rs", A),
        ("crates/x/src/b.rs", B),
        ("crates/x/src/c/mod.rs", C),
        ("crates/x/src/tests.rs", "use crate::{a, b, c};\n"),
    ];
    files.retain(|(path, _)| with.iter().all(|(other, _)| other != path));
    files.extend_from_slice(with);
    Tree::of(&files)
}

#[test]
fn a_house_is_measured_without_its_tests() {
    let now = measure(&tree(&[]), "x");
    assert_eq!(now.to_string(), "files 4 rooms 3 circle 2 fields 3 open 1 asserts 1 long 0");
}

#[test]
fn a_circle_is_found_through_reexports_and_left_by_cutting_it() {
    let circle = |with: &[(&str, &str)]| {
        Imports::of(&tree(with), "x").circle().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(circle(&[]), ["crates/x/src/a.rs", "crates/x/src/b.rs"]);
    assert!(circle(&[("crates/x/src/b.rs", "pub struct B;\n")]).is_empty());
    // By the name that the root gives it, and by a list with an alias.
    let through = [
        ("crates/x/src/b.rs", "use crate::{Shown as S};\npub struct B;\n"),
        ("crates/x/src/c/mod.rs", "use super::{a::{self, A as Other}};\npub struct Shown;\n"),
    ];
    assert_eq!(circle(&through).len(), 3);
    let all = [
        ("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use c::*;\n"),
        ("crates/x/src/b.rs", "use crate::Shown;\npub struct B;\n"),
    ];
    assert!(circle(&all).is_empty(), "the name comes from c, which leads nowhere");
    let words = [("crates/x/src/b.rs", "pub struct B;\nconst X: &str = \"crate::a::A\"; // crate::a::A\n")];
    assert!(circle(&words).is_empty());
}

#[test]
fn imports_upwards_and_rooms_without_a_floor_are_found() {
    let said = |floors: &[&[&str]]| -> Vec<String> {
        upwards(&tree(&[]), "x", floors).iter().map(ToString::to_string).collect()
    };
    let found = said(&[&["b"], &["a", "c"]]);
    assert!(found.len() == 1 && found[0].starts_with("crates/x/src/b.rs:1: `b` must not import `a`"), "{found:?}");
    let found = said(&[&["a"], &["b"]]);
    assert!(
        found.len() == 2
            && found[0].contains("`c` of `x` has no floor")
            && found[1].contains("`a` must not import `b`"),
        "{found:?}"
    );
}

#[test]
fn a_wall_that_fell_is_found_and_a_better_one_is_recorded() {
    let said = |record: &str| -> Vec<String> {
        house::ratchet(&with_record(record)).iter().map(ToString::to_string).collect()
    };
    assert!(said("# A comment.\nx circle 2 open 1 asserts 1\n").is_empty());
    assert!(said("x circle 2 open 1 asserts 0\n").is_empty());
    for (record, part) in [
        ("x circle 1 open 1 asserts 1\n", "2 files of `x` import each other"),
        ("x circle 2 open 0 asserts 1\n", "1 fields of structs of `x`"),
        ("x circle 2 open 1 asserts 2\n", "`x` has 1 assertions, 2 are recorded"),
        ("x circle 3 open 1 asserts 1\n", "better than recorded: write `x circle 2 open 1 asserts 1`"),
        ("x circle two\n", "not a crate with its numbers"),
    ] {
        let found = said(record);
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("{RECORD}:1: ")) && found[0].contains(part),
            "{found:?}"
        );
    }
}

fn with_record(record: &str) -> Tree {
    let mut tree = tree(&[]);
    tree.texts.insert(RECORD.to_owned(), record.to_owned());
    tree
}

//! The scanner of Rust: kinds of tokens, the extent of functions, and its behaviour on any bytes.

use freebs_tidy::rust::{Function, TokenKind, functions, tokens};

fn kinds(source: &str) -> Vec<(TokenKind, &str)> {
    tokens(source).into_iter().map(|t| (t.kind, t.text)).collect()
}

#[test]
fn literals_and_lifetimes() {
    use TokenKind::*;
    let table: &[(&str, &[(TokenKind, &str)])] = &[
        ("'a' 'b", &[(Char, "'a'"), (Lifetime, "'b")]),
        ("'\\'' '\\u{7d}'", &[(Char, "'\\''"), (Char, "'\\u{7d}'")]),
        ("'é' '_ '{'", &[(Char, "'é'"), (Lifetime, "'_"), (Char, "'{'")]),
        ("b'\\'' b\"}\\\"\"", &[(Char, "b'\\''"), (Text, "b\"}\\\"\"")]),
        ("r\"\\\" x", &[(Text, "r\"\\\""), (Word, "x")]),
        ("r##\"a\"# b\"## c", &[(Text, "r##\"a\"# b\"##"), (Word, "c")]),
        ("br#\"}\"# cr#\"{\"# c\"x\"", &[(Text, "br#\"}\"#"), (Text, "cr#\"{\"#"), (Text, "c\"x\"")]),
        ("r#fn break_ crate b", &[(Word, "r#fn"), (Word, "break_"), (Word, "crate"), (Word, "b")]),
        ("1_000u64 0xE2", &[(Number, "1_000u64"), (Number, "0xE2")]),
        ("/* a /* b */ c */ d", &[(Comment, "/* a /* b */ c */"), (Word, "d")]),
        ("a // b \"\nc", &[(Word, "a"), (Comment, "// b \""), (Word, "c")]),
        ("\"a // b\" // \"c", &[(Text, "\"a // b\""), (Comment, "// \"c")]),
    ];
    for (source, expected) in table {
        assert_eq!(kinds(source), *expected, "{source}");
    }
}

#[test]
fn lines_of_tokens() {
    let lines: Vec<usize> = tokens("a\n\"b\nc\" d\n/*\n\n*/ e").into_iter().map(|t| t.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 6]);
}

/// Name, first line and number of lines of each function.
fn extents(source: &str) -> Vec<(String, usize, usize)> {
    functions(source).into_iter().map(|Function { name, line, lines }| (name, line, lines)).collect()
}

#[test]
fn extents_of_functions() {
    type Row = (&'static str, &'static [(&'static str, usize, usize)]);
    let table: &[Row] = &[
        ("fn a() {}", &[("a", 1, 1)]),
        ("\n#[test]\npub(crate) async fn a(\n    x: u8,\n) -> u8 {\n    x\n}\n", &[("a", 3, 5)]),
        ("fn a() {\n    fn b() {\n    }\n}", &[("a", 1, 4), ("b", 2, 2)]),
        // Types, and functions without a body.
        ("type F = fn(u8) -> u8;\ntrait T { fn a(); fn b() {\n} }", &[("b", 2, 2)]),
        // Semicolons and braces in a signature.
        ("fn a(x: [u8; 4]) -> [u8; { 2 + 2 }] {\n}", &[("a", 1, 2)]),
        ("fn a(b: B<{ N }>) -> B<{ N }, 2> where B<2, { N }>: C, {\n}", &[("a", 1, 2)]),
        ("fn a<const N: usize>() where [(); N]: Sized {\n\n}", &[("a", 1, 3)]),
        // A function that a macro makes, and one that only a text has.
        ("macro_rules! m { ($n:ident) => { fn $n() {\n} } }", &[("n", 1, 2)]),
        ("// fn a() {\nconst B: &str = \"fn c() {\";", &[]),
        // Braces of literals.
        ("fn a() {\n    let _ = ['{', '}'];\n    let _ = \"}\";\n}\nfn b() {}", &[("a", 1, 4), ("b", 5, 1)]),
    ];
    for (source, expected) in table {
        let expected: Vec<(String, usize, usize)> =
            expected.iter().map(|(n, l, s)| ((*n).to_owned(), *l, *s)).collect();
        assert_eq!(extents(source), expected, "{source}");
    }
}

/// Beginnings of a source with everything in it, and its pieces in other orders: the scanner takes every byte that is
/// not white space into exactly one token, and ends.
#[test]
fn any_text_is_taken_apart() {
    let pieces = [
        "r#\"", "\"#", "'", "\\", "/*", "*/", "//", "\n", "b'", "fn ", "a", "{", "}", "(", ";", "<", "é", "\"", "$",
        " ",
    ];
    let mut state = 1_u64;
    for round in 0..2_000_usize {
        let mut text = String::new();
        for _ in 0..round % 40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
        }
        let taken: String = tokens(&text).iter().map(|t| t.text).collect();
        let bare = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        assert_eq!(bare(&taken), bare(&text), "{text:?}");
        assert!(functions(&text).iter().all(|f| f.lines <= text.lines().count()), "{text:?}");
    }
}

//! Each check finds what is planted, through `check` as a whole, and nothing else.
//!
//! Every case is a small tidy repository with one change. Pairs of a fault and a near miss differ in what the rule is
//! about, and in nothing else.

use freebs_tidy::{Tree, check};

const ARCHITECTURE: &str = "# Parts

## Crates

| crate | content |
| --- | --- |
| `types` | numbers |
| `io` | traits |

## Rules

- **W1** A rule.
- **W2** Another one. **Not built.**
- **I1** to **I3** and **S1** to **S2**. **Not built.**
";

const INDEX: &str = "# Design notes

| note | decision | state |
| --- | --- | --- |
| [1](0001-one.md) | One copy | in force |
";

const MANIFEST: &str = "[package]\n\n[dependencies]\n";

/// A repository without a finding.
const TIDY: &[(&str, &str)] = &[
    ("README.md", "# It\n\nSee [the parts](docs/architecture.md#crates), `crates/types/src/lib.rs`.\n"),
    ("docs/architecture.md", ARCHITECTURE),
    ("docs/design/README.md", INDEX),
    ("docs/design/0001-one.md", "# 1. One copy\n"),
    ("crates/types/Cargo.toml", MANIFEST),
    ("crates/types/src/lib.rs", "//! Numbers (W1).\n"),
    ("crates/io/Cargo.toml", MANIFEST),
    ("crates/io/src/lib.rs", "//! Traits.\n"),
    ("bench/run", "#!/usr/bin/env python3\n\"\"\"Measures.\"\"\"\n"),
];

const SOURCE: &str = "crates/types/src/new.rs";

/// The findings if a file is put in, or takes the place of the one with its path.
fn findings(path: &str, text: &str) -> Vec<String> {
    let mut files: Vec<(&str, &str)> = TIDY.iter().filter(|(p, _)| *p != path).copied().collect();
    files.push((path, text));
    check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
}

/// The planted text gives exactly one finding, at this line, whose text has `part` in it.
#[track_caller]
fn found(path: &str, text: &str, line: usize, part: &str) {
    let found = findings(path, text);
    let at = format!("{path}:{line}: ");
    assert!(found.len() == 1 && found[0].starts_with(&at) && found[0].contains(part), "{at}{part}: found {found:#?}");
}

#[track_caller]
fn not_found(path: &str, text: &str) {
    let found = findings(path, text);
    assert!(found.is_empty(), "{found:#?}");
}

/// A source that opens as it must and goes on with `code`, from line 3.
fn source(code: &str) -> String {
    format!("//! A room.\n\n{code}\n")
}

fn function_of(lines: usize) -> String {
    source(&format!("fn long() {{\n{}}}", "    step();\n".repeat(lines - 2)))
}

#[test]
fn the_small_repository_is_tidy() {
    not_found("README.md", TIDY[0].1);
}

#[test]
fn long_functions() {
    found(SOURCE, &function_of(71), 3, "`long` has 71 lines");
    found("crates/types/tests/suite/new.rs", &function_of(71), 3, "`long` has 71 lines");
    found("crates/types/examples/new.rs", &function_of(300), 3, "`long` has 300 lines");
    not_found(SOURCE, &function_of(70));
    // Braces in literals and comments end nothing, and a function of a trait without a body has no length.
    let hidden = "fn a() { let _ = ('}', \"}\", r#\"\"}\"#, b'{'); /* } /* } */ */ // }\n}\n";
    not_found(SOURCE, &source(&format!("{hidden}{}", "// one\n".repeat(80))));
    not_found(SOURCE, &source(&format!("trait T {{\n    fn a();\n{}}}", "    // one\n".repeat(80))));
}

#[test]
fn long_files() {
    let of = |lines: usize| source(&"// one\n".repeat(lines - 3));
    found(SOURCE, &of(1_001), 1_001, "1001 lines");
    not_found(SOURCE, &of(1_000));
    let script = |lines: usize| format!("#!/bin/sh\n# A script.\n{}", "true\n".repeat(lines - 2));
    found("bench/long", &script(1_001), 1_001, "1001 lines");
    not_found("bench/long", &script(1_000));
    // A page may be long.
    not_found("docs/long.md", &"text\n".repeat(2_000));
}

#[test]
fn openings() {
    for path in [SOURCE, "crates/types/tests/suite/new.rs", "crates/types/examples/new.rs"] {
        found(path, "use std::io;\n", 1, "does not say what it is");
        found(path, "//!\n//! A room.\n", 1, "the opening is empty");
        not_found(path, "//! A room.\n");
    }
    found("bench/new", "#!/bin/sh\nset -e\n", 2, "does not say what it is");
    not_found("bench/new", "#!/bin/sh\n# A script.\nset -e\n");
    found("bench/new.py", "import json\n", 1, "docstring");
    not_found("bench/new.py", "\"\"\"A module.\"\"\"\nimport json\n");
    found("crates/types/new.c", "#include <stdio.h>\n", 1, "does not say what it is");
    found("crates/types/new.c", "/*\n */\n", 1, "the opening is empty");
    not_found("crates/types/new.c", "/* A program. */\n");
}

/// A tag that the list of the small repository does not know. It is put together here, because this file is looked at,
/// too.
fn unknown(rest: &str) -> String {
    format!("W{rest}")
}

#[test]
fn tags_of_unknown_rules() {
    let w3 = unknown("3");
    found(SOURCE, &source(&format!("// Kept here ({w3}).")), 3, "W3 is not in the list");
    found(SOURCE, &source(&format!("/* One\n   {w3}: */")), 4, "W3 is not in the list");
    found(SOURCE, &source(&format!("fn a() {{ no(\"a fault ({w3})\") }}")), 3, "W3 is not in the list");
    found(SOURCE, &source(&format!("fn a() {{ no(\"{w3}\") }}")), 3, "W3 is not in the list");
    found("docs/new.md", &format!("Text.\n\nAs {w3} says.\n"), 3, "W3 is not in the list");
    // The last one of a range is known, the one behind it is not.
    not_found(SOURCE, &source("// Kept here (W1, I3, S2)."));
    found(SOURCE, &source(&format!("// Kept here ({}).", ["S", "3"].concat())), 3, "S3 is not in the list");
}

#[test]
fn words_that_look_like_tags() {
    for word in ["E2E", "0xE9", "V9_a", "a_V9", "`V9`", "W100", "W0", "W09", "#L99", "Z9", "v9", "x.E9", "E9-like"] {
        not_found(SOURCE, &source(&format!("// It is {word} here.")));
    }
    // Code and strings that only have such a word in them.
    not_found(SOURCE, &source("const V9: &str = \"see V9\";"));
    not_found("docs/new.md", "Text.\n\n    V9 = 1\n\n```\nV9 (V9)\n```\n");
}

#[test]
fn the_list_of_rules() {
    let page = |rule: &str| ARCHITECTURE.replace("- **W2** Another one. **Not built.**", rule);
    found("docs/architecture.md", &page("- **W2** Another one."), 13, "no comment in the sources names W2");
    found("docs/architecture.md", &page("- **W3** Another one. **Not built.**"), 13, "no rule before W3");
    not_found("docs/architecture.md", &page("- **W2** In other words. **Not built.**"));
}

#[test]
fn links() {
    let page = |target: &str| format!("# A page\n\nSee [it]({target}).\n\n## More of it: one\n");
    found("docs/new.md", &page("gone.md"), 3, "leads nowhere");
    found("docs/new.md", &page("../../outside.md"), 3, "leads nowhere");
    found("docs/new.md", &page("#less"), 3, "no heading for #less");
    found("docs/new.md", &page("architecture.md#less"), 3, "no heading for #less");
    found("crates/io/README.md", &page("src/gone.rs"), 3, "leads nowhere");
    found("bench/README.md", "# It\n\n[it]: gone.md\n", 3, "leads nowhere");
    for target in
        ["architecture.md", "../README.md", "design/", "#more-of-it-one", "architecture.md#rules", "https://a.b/#c"]
    {
        not_found("docs/new.md", &page(target));
    }
    not_found("docs/new.md", "```\n[it](gone.md)\n```\n\n    [it](gone.md)\n\nA span: `[it](gone.md)`.\n");
}

#[test]
fn paths_in_pages_and_comments() {
    let page = |span: &str| format!("# A page\n\nSee `{span}`.\n");
    for gone in [
        "crates/gone",
        "docs/gone.md",
        "bench/gone --all",
        ".ci/gone",
        "io/gone.rs",
        "types/src/gone.rs",
        "design/gone.md",
    ] {
        found("docs/new.md", &page(gone), 3, "is not there");
    }
    for there in [
        "crates/types/",
        "docs/architecture.md",
        "bench/run --all",
        "io/lib.rs",
        "types/src/lib.rs:12",
        "design/README.md",
        "crates/*/gone",
        "docs/<name>",
        "other/gone.rs",
        "crates",
        "a/b",
        "gone.md",
    ] {
        not_found("docs/new.md", &page(there));
    }
    let with_made = |span: &str| {
        let page = page(span);
        let mut files = TIDY.to_vec();
        files.push(("docs/new.md", page.as_str()));
        let mut tree = Tree::of(&files);
        tree.made.insert("bench/out".to_owned());
        check(&tree).len()
    };
    assert_eq!((with_made("bench/out"), with_made("bench/out/raw.tsv"), with_made("bench/outer")), (0, 0, 1));
    let gone = ["docs/", "gone.md"].concat();
    found(SOURCE, &source(&format!("// As ({gone}) says.")), 3, "is not there");
    not_found(SOURCE, &source("// As (docs/architecture.md, \"The list\") says."));
    not_found(SOURCE, &source("const GONE: &str = \"docs/gone.md\";"));
}

#[test]
fn the_table_of_crates() {
    let page = ARCHITECTURE.replace("| `io` | traits |\n", "");
    found("docs/architecture.md", &page, 4, "lacks `io`");
    let page = ARCHITECTURE.replace("| `io` |", "| `io` | traits |\n| `ghost` |");
    found("docs/architecture.md", &page, 9, "no crate `ghost`");
    // Rows of another table are not about crates.
    not_found("docs/architecture.md", &ARCHITECTURE.replace("## Rules\n", "## Rules\n\n| `ghost` | a rule |\n"));
}

#[test]
fn the_order_of_crates() {
    let manifest = |lines: &str| format!("[package]\n\n{lines}\n");
    let io = "crates/io/Cargo.toml";
    for up in [
        "[dependencies]\nfreebs-lsvd.workspace = true",
        "[dev-dependencies]\nfreebs-format = { workspace = true }",
        "[target.'cfg(unix)'.dependencies]\nfreebs-io.workspace = true",
        "[dependencies]\nfreebs-new.workspace = true",
        "[build-dependencies]\nliblsvd = \"1\"",
    ] {
        found(io, &manifest(up), 4, "must not depend on");
    }
    found(io, &manifest("[dependencies.freebs-lsvd]\nworkspace = true"), 3, "must not depend on `lsvd`");
    not_found(io, &manifest("[dependencies]\nfreebs-types = { workspace = true }\nbytes.workspace = true"));
    not_found(io, &manifest("[features]\nfreebs-lsvd = []"));
    // A crate without a floor.
    let page = ARCHITECTURE.replace("| `io` |", "| `attic` | boxes |\n| `io` |");
    let mut files = TIDY.to_vec();
    files.retain(|(p, _)| *p != "docs/architecture.md");
    files.extend([("docs/architecture.md", page.as_str()), ("crates/attic/Cargo.toml", MANIFEST)]);
    let found: Vec<String> = check(&Tree::of(&files)).iter().map(ToString::to_string).collect();
    assert!(found.len() == 1 && found[0].starts_with("crates/attic/Cargo.toml:1: `attic` has no floor"), "{found:?}");
}

#[test]
fn cores() {
    let ban = |name: &str| source(&format!("#[allow(clippy::disallowed_{name})]\nmod a;"));
    found(SOURCE, &ban("types"), 3, "must not lift the bans");
    found(SOURCE, &ban("methods"), 3, "must not lift the bans");
    found(SOURCE, &source("use freebs_io::linux::Ring;"), 3, "must not name `io::linux`");
    not_found(SOURCE, &source("#[cfg(target_os = \"linux\")]\n// Not of linux.\nmod a;"));
    // `io` has an edge, and tests of cores may touch the machine.
    not_found("crates/io/src/linux.rs", &ban("types"));
    not_found("crates/types/tests/suite/new.rs", &ban("methods"));
    let sentence = |names: &str| ARCHITECTURE.replace("## Rules", &format!("{names} are the *cores*.\n\n## Rules"));
    found("docs/architecture.md", &sentence("`types` and `io`"), 10, "the cores are types, format");
    let all: Vec<String> = freebs_tidy::crates::CORES.iter().map(|c| format!("`{c}`")).collect();
    not_found("docs/architecture.md", &sentence(&all.join(", ")));
}

#[test]
fn dependencies_of_cores() {
    // A crate of the edge has no place below a core, in whatever order the floors are.
    let page = ARCHITECTURE.replace("| `io` |", "| `driver` | clients |\n| `nbd` | sessions |\n| `io` |");
    let with = |manifest: &str| {
        let mut files = TIDY.to_vec();
        files.retain(|(p, _)| *p != "docs/architecture.md");
        files.extend([
            ("docs/architecture.md", page.as_str()),
            ("crates/nbd/Cargo.toml", MANIFEST),
            ("crates/driver/Cargo.toml", manifest),
        ]);
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(with("[dependencies]\nfreebs-nbd.workspace = true\nfreebs-io.workspace = true\n"), Vec::<String>::new());
    let found = with("[dependencies]\nfreebs-ghost.workspace = true\n");
    assert!(found.iter().any(|f| f.contains("a core and depends on `ghost`")), "{found:?}");
}

#[test]
fn design_notes() {
    let index = |rows: &str| INDEX.replace("| in force |\n", &format!("| in force |\n{rows}\n"));
    let readme = "docs/design/README.md";
    found("docs/design/0002-two.md", "# 2. Two copies\n", 1, "not in docs/design/README.md");
    found(readme, &index("| 3 | number was never used | |"), 6, "row 3 stands where 2 belongs");
    found(readme, &index("| 2 | Two copies | |"), 6, "number 2 has no note");
    not_found(readme, &index("| 2 | number was never used | |"));
    found("docs/design/0001-one.md", "# 1: One copy\n", 1, "the heading is not `# 1. One copy`");
    found("docs/design/0001-one.md", "# 1. Two copies\n", 1, "the heading is not `# 1. One copy`");
    let found = findings(readme, &index("| [2](0002-two.md) | Two copies | |"));
    assert!(found.iter().any(|f| f.contains("README.md:6: there is no 0002-two.md")), "{found:?}");
    let found = findings(readme, &INDEX.replace("0001-one", "0001-two"));
    assert!(found.iter().any(|f| f.contains("there is no 0001-two.md")), "{found:?}");
}

#[test]
fn comments_that_begin_with_a_question_word() {
    for line in ["// What waits.", "/// Who waits.", "/* Whether it waits. */", "/// For so long.", "// By how much."] {
        found(SOURCE, &source(line), 3, "`types` has 1 comment lines that begin with");
    }
    found(SOURCE, &source("// What's this?"), 3, "0 are recorded");
    for line in ["// Whatever waits.", "// All who wait.", "// For some.", "const A: &str = \"// What\";"] {
        not_found(SOURCE, &source(line));
    }
}

#[test]
fn the_ratchet_of_question_words() {
    let record = "crates/tidy/words.txt";
    let with = |number: &str| {
        let source = source("// What waits.\n\n// Who waits.");
        let mut files = TIDY.to_vec();
        files.extend([(SOURCE, source.as_str()), (record, number)]);
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(with("# The record.\ntypes 2\n"), Vec::<String>::new());
    let up = with("types 1\n");
    assert!(up.len() == 1 && up[0].starts_with(&format!("{SOURCE}:5: `types` has 2 ")), "{up:?}");
    let down = with("types 3\n");
    assert_eq!(down, [format!("{record}:1: `types` has only 2 left: write `types 2`")]);
    let gone = with("types 2\nio 0\n");
    assert_eq!(gone, [format!("{record}:2: `io` has none left: take the line out")]);
    assert!(with("types two\n").iter().any(|f| f.contains("not a crate and a number")));
}

#[test]
fn paths_of_a_machine() {
    for folder in ["work", "root", "home"] {
        let path = format!("/{folder}/me");
        found(SOURCE, &source(&format!("const A: &str = \"{path}\";")), 3, "a path of a machine");
        found("docs/new.md", &format!("Text\n\n    cd {path}\n"), 3, "a path of a machine");
        found("bench/new.toml", &format!("a = '{path}'\n"), 1, "a path of a machine");
        not_found(SOURCE, &source(&format!("const A: &str = \"net{path}\";")));
        not_found("docs/new.md", &format!("Text: https://a.net{path}, ..{path}, /{folder}s/.\n"));
    }
}

#[test]
fn marks_of_what_is_not_done() {
    let words = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for word in &words {
        found(SOURCE, &source(&format!("// {word}: mend.")), 3, "do it now");
        found("docs/new.md", &format!("{word} mend\n"), 1, "do it now");
        not_found(SOURCE, &source(&format!("// {word}S and a{word}.")));
        not_found(SOURCE, &source(&format!("const A: &str = \"{word}\";")));
    }
    for missing in ["todo", "unimplemented"] {
        found(SOURCE, &source(&format!("fn a() {{ {missing}!() }}")), 3, "code is missing");
        not_found(SOURCE, &source(&format!("fn {missing}() {{ \"{missing}!()\"; {missing}() }}")));
    }
}

#[test]
fn tests_that_are_switched_off() {
    found(SOURCE, &source("#[test]\n#[ignore]\nfn a() {}"), 4, "never run");
    found(SOURCE, &source("#[ignore = \"slow\"]\nfn a() {}"), 3, "never run");
    not_found(SOURCE, &source("// #[ignore]\n#[must_use = \"ignore\"]\nfn ignore() {}"));
}

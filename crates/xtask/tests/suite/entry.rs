//! The program as it is called: its exit statuses, and the pages and scripts that name it.

use freebs_xtask::commands::COMMANDS;
use freebs_xtask::root;
use std::path::PathBuf;
use std::process::Command;

fn xtask(words: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_freebs-xtask")).args(words).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn exit_statuses_are_stable() {
    assert_eq!(xtask(&["--help"]).0, Some(0));
    assert_eq!(xtask(&["ci", "--dry-run"]).0, Some(0));
    assert_eq!(xtask(&["tea"]).0, Some(2));
    assert_eq!(xtask(&[]).0, Some(2));
    assert_eq!(xtask(&["ci", "--step", "tea"]).0, Some(2));
}

/// A tree with nothing in it but a place for logs, and a `cargo` that does what its variables say: `BAD` names the command that fails, `LINES`
/// is what its tests print, `STATUS` how they end.
fn ci(name: &str, bad: &str, lines: &str, status: &str, words: &[&str]) -> (Option<i32>, String) {
    const SCRIPT: &str = r#"#!/bin/sh
[ "$1 $2" = "deny --version" ] && exit 0
[ "$1" = "$BAD" ] && { echo "broken"; exit 101; }
[ "$1" = clippy ] && echo "linted"
[ "$1" = test ] && { printf '%s\n' "$LINES"; exit "$STATUS"; }
exit 0
"#;
    let top = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (here, bin) = (top.join("crates/xtask"), top.join("bin"));
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(top.join("target")).unwrap();
    std::fs::write(bin.join("cargo"), SCRIPT).unwrap();
    std::fs::set_permissions(bin.join("cargo"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_freebs-xtask"));
    command.arg("ci").args(words).env("PATH", path).env("CARGO_MANIFEST_DIR", &here);
    let out = command.env("BAD", bad).env("LINES", lines).env("STATUS", status).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

const GOOD: &str = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\nskipped: a: no fio";

#[test]
fn ci_ends_well_only_if_every_step_does() {
    let (code, text) = ci("good", "", GOOD, "0", &[]);
    assert_eq!((code, text.lines().last()), (Some(0), Some("4 passed, 0 failed, 2 skipped")), "{text}");
    assert!(text.contains("\nskipped: a: no fio\n4 passed"), "{text}");
    for (step, bad) in [("format", "fmt"), ("lints", "clippy"), ("licences", "deny"), ("tests", "test")] {
        let (code, text) = ci(bad, bad, GOOD, "0", &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(&format!("{step} failed; cargo xtask ci --step {step} repeats it")), "{text}");
        // One step alone fails as well, and the others don't.
        assert_eq!(ci(bad, bad, GOOD, "0", &["--step", step]).0, Some(1));
        let others = ["format", "lints", "licences", "tests"].into_iter().filter(|s| *s != step);
        let others: Vec<&str> = others.flat_map(|s| ["--step", s]).collect();
        assert_eq!(ci(bad, bad, GOOD, "0", &others).0, Some(0));
    }
}

/// Lints that are begun by the first test are looked at after the last one, and those that no test began are run then.
#[test]
fn lints_run_beside_tests() {
    let lines = format!("     Running tests/a.rs (target/a)\n{GOOD}");
    let (code, text) = ci("beside", "", &lines, "0", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("linted"), "what went well is not shown: {text}");
    assert!(text.find("== tests").unwrap() < text.find("== lints").unwrap(), "{text}");
    let (code, text) = ci("beside-bad", "clippy", &lines, "0", &[]);
    assert_eq!((code, text.lines().last()), (Some(1), Some("4 passed, 0 failed, 2 skipped")), "{text}");
    assert!(text.contains("broken") && text.contains("lints failed; cargo xtask ci --step lints repeats it"), "{text}");
    let (code, text) = ci("beside-tests-fail", "clippy", &lines, "101", &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("lints failed, too") && text.contains("tests failed; cargo xtask ci"), "{text}");
    let (code, text) = ci("not-beside", "", GOOD, "0", &[]);
    assert_eq!((code, text.contains("linted")), (Some(0), true), "{text}");
}

#[test]
fn tests_that_fail_die_or_do_not_run_are_counted() {
    let failed = "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
    for (n, (lines, status, last)) in [
        (failed, "101", "5 passed, 2 failed, 0 skipped"),
        (failed, "0", "5 passed, 2 failed, 0 skipped"),
        (GOOD, "101", "4 passed, 1 failed, 2 skipped"),
        ("", "0", "0 passed, 1 failed, 0 skipped"),
    ]
    .into_iter()
    .enumerate()
    {
        let (code, text) = ci(&format!("tests-{n}"), "", lines, status, &["--step", "tests"]);
        assert_eq!((code, text.lines().last()), (Some(1), Some(last)), "{text}");
    }
}

#[test]
fn the_steps_of_ci_are_printed() {
    let (_, text) = xtask(&["ci", "--dry-run"]);
    let steps: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(steps, ["format", "lints", "licences", "tests"]);
    assert!(text.contains("cargo test --workspace --locked --no-fail-fast"));
}

#[test]
fn the_entry_of_ci_ends_with_this_program() {
    let script = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(script.starts_with("#!/usr/bin/env bash\n") && script.contains("set -euo pipefail"));
    assert_eq!(script.lines().last(), Some("exec cargo --locked xtask ci \"$@\""));
}

/// `docs/testing.md` has a row for each command, with its time.
#[test]
fn the_page_lists_all_commands() {
    let page = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| `cargo xtask ")).collect();
    let wanted: Vec<String> = COMMANDS
        .iter()
        .map(|c| {
            let usage = format!("cargo xtask {} {}", c.name, c.usage).trim_end().replace('|', "\\|");
            format!("| `{usage}` | {} | {} |", c.about, c.time)
        })
        .collect();
    assert_eq!(rows, wanted);
}

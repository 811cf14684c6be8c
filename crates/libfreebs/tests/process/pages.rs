//! The page on programs, run as it stands there on a real cluster: whoever copies it gets what is shown.
//!
//! Invariant: all is taken out of the page itself. Indented lines are commands; a block marked `c` or `python` is the file
//! whose name stands in the line of prose before it; one marked `text` is all that the command before it prints. Left out are `cargo` commands, as this test is built already, and blocks
//! of Rust, which are no whole programs.

use crate::support::{Nodes, program};
use crate::tools::{HERE, Python, built, has, run};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Command { line: String, shown: Option<String> },
    File { name: String, text: String },
}

fn steps(page: &str) -> Vec<Step> {
    let (mut found, mut named) = (Vec::new(), "");
    let mut block: Option<(&str, String)> = None;
    for line in page.lines() {
        match (&mut block, line) {
            (Some((language, text)), "```") => {
                let text = std::mem::take(text);
                match (*language, found.last_mut()) {
                    ("text", Some(Step::Command { shown, .. })) => {
                        assert_eq!(shown.replace(text), None, "a command prints one thing");
                    }
                    ("c" | "python", _) => {
                        let name = named.rsplit('`').nth(1).expect("a name of the file before its block").to_owned();
                        found.push(Step::File { name, text });
                    }
                    _ => {}
                }
                block = None;
            }
            (Some((_, text)), line) => *text += &format!("{line}\n"),
            (None, line) => match (line.strip_prefix("```"), line.strip_prefix("    ")) {
                (Some(language), _) => block = Some((language, String::new())),
                (_, Some(line)) if !line.starts_with("cargo ") => {
                    found.push(Step::Command { line: line.to_owned(), shown: None });
                }
                (_, Some(_)) => {}
                _ if line.is_empty() => {}
                _ => named = line,
            },
        }
    }
    assert_eq!(block, None, "the last block has an end");
    found
}

/// A program of the page under its name.
fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
}

#[test]
fn the_page_on_programs_does_what_it_says() {
    let (true, Some(python)) = (has(&["cc", "pkg-config"]), Python::get()) else { return };
    let steps = steps(include_str!("../../../../docs/programs.md"));
    let count = |is: fn(&Step) -> bool| steps.iter().filter(|s| is(s)).count();
    assert!(
        count(|s| matches!(s, Step::File { .. })) == 2 && count(|s| matches!(s, Step::Command { .. })) > 12,
        "{steps:?}"
    );
    let nodes = Nodes::up();
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| dir.path().join(name);
    let (programs, prefix, packages) = (here("programs"), here("prefix"), here("packages"));
    std::fs::create_dir_all(&programs).unwrap();
    std::fs::create_dir_all(here("target/debug/examples")).unwrap();
    symlink(Path::new(HERE).parent().expect("crates"), here("crates")).unwrap();
    symlink(program("freebs"), programs.join("freebs")).unwrap();
    symlink(program("examples/kv"), here("target/debug/examples/kv")).unwrap();
    let interpreter = python.program().display();
    script(&programs, "python3", &format!("exec {interpreter} \"$@\""));
    script(&programs, "pip", &format!("exec {interpreter} -m pip --quiet --disable-pip-version-check \"$@\""));
    let addresses = nodes.addresses().join(",");
    let as_here =
        |text: &str| text.replace("127.0.0.1:7400", &addresses).replace("/usr/local", &prefix.to_string_lossy());
    for step in &steps {
        let (line, shown) = match step {
            Step::File { name, text } => {
                std::fs::write(here(name), as_here(text)).unwrap();
                continue;
            }
            Step::Command { line, shown } => (as_here(line), shown),
        };
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(dir.path()).env("FREEBS_CLUSTER", &addresses);
        shell.env("PATH", format!("{}:{path}", programs.display())).env("BUILT", built());
        shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", prefix.join("lib"));
        // The package is installed into a folder of this test, and nothing is fetched for it.
        shell
            .env("PIP_TARGET", &packages)
            .env("PIP_NO_INDEX", "1")
            .env("PIP_NO_DEPS", "1")
            .env("PYTHONPATH", &packages);
        shell.env("OFFLINE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        let printed = run(&mut shell);
        assert!(shown.as_ref().is_none_or(|shown| *shown == printed), "{line} printed {printed}");
    }
}

#[test]
fn steps_are_taken_out_of_a_page() {
    let page = "A page\n\n    one && two\n    cargo build\n\nThis is `a.c`:\n\n```c\nint x;\n\n```\n\n```rust\nlet x;\n```\n\n    cc a.c\n\n```text\nwell\n```\n";
    let command =
        |line: &str, shown: Option<&str>| Step::Command { line: line.into(), shown: shown.map(str::to_owned) };
    let file = Step::File { name: "a.c".into(), text: "int x;\n\n".into() };
    assert_eq!(steps(page), [command("one && two", None), file, command("cc a.c", Some("well\n"))]);
}

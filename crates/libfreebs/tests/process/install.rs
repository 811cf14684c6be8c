//! The way of a user of the library: install it into a prefix, compile with pkg-config, run on a cluster. And the header
//! alone, as C of three standards and as C++.

use crate::support::Nodes;
use crate::tools::{HERE, built, has, run};
use std::path::Path;
use std::process::Command;

const STRICT: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"];

fn install(prefix: &Path) {
    run(Command::new(format!("{HERE}/install")).arg(prefix).env("BUILT", built()));
}

fn pkg_config(prefix: &Path, words: &[&str]) -> Vec<String> {
    let path = prefix.join("lib/pkgconfig");
    let out = run(Command::new("pkg-config").args(words).arg("freebs").env("PKG_CONFIG_PATH", path));
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_header_is_c_and_cpp() {
    let programs = [("cc", "c", ["c99", "c11", "c17"]), ("c++", "c++", ["c++11", "c++17", "c++20"])];
    if !has(&programs.map(|p| p.0)) {
        return;
    }
    for (compiler, language, standards) in programs {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("alone");
        let text = "#include <freebs.h>\n#include <freebs.h>\nint main(void) { return FREEBS_MAJOR; }\n";
        std::fs::write(&source, text).unwrap();
        for standard in standards {
            run(Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language])
                .arg(format!("-std={standard}"))
                .arg(format!("-I{HERE}/include"))
                .arg(&source));
        }
    }
}

/// Names of functions, by the words before them.
fn names(text: &str, before: &str) -> Vec<String> {
    let names = text.split(before).skip(1).filter_map(|t| t.split('(').next());
    let mut names: Vec<String> = names.map(str::to_owned).filter(|n| n.starts_with("freebs_")).collect();
    names.sort();
    names
}

/// Every function of the header is exported, nothing is exported that is not there, the tour calls all of them, and the
/// limits are those of the Rust library.
#[test]
fn header_library_and_tour_agree() {
    let header = include_str!("../../include/freebs.h");
    let exported = names(include_str!("../../src/lib.rs"), "extern \"C\" fn ");
    let mut declared: Vec<String> = header
        .lines()
        .filter(|l| !l.starts_with([' ', '/', '#']) && l.ends_with(");"))
        .filter_map(|l| l.split('(').next())
        .filter_map(|l| l.split([' ', '*']).next_back())
        .map(str::to_owned)
        .collect();
    declared.sort();
    assert_eq!(exported, declared);
    assert!(declared.len() > 15, "{declared:?}");
    let tour = include_str!("../../examples/c/tour.c");
    // These two are for the whole process, and are tested with a cluster that speaks TLS.
    let of_process = ["freebs_speak_as_node", "freebs_trust_network"];
    for name in declared.iter().filter(|n| !of_process.contains(&n.as_str())) {
        assert!(tour.contains(&format!("{name}(")), "the tour does not call {name}");
    }
    for (name, value) in [
        ("REQUEST_BYTES_MAX", freebs::REQUEST_BYTES_MAX),
        ("INTERVAL_BYTES_MAX", freebs::INTERVAL_BYTES_MAX as u64),
        ("INTERVAL_RUNS_MAX", freebs::INTERVAL_RUNS_MAX as u64),
        ("INTERVAL_CHANGES_MAX", freebs::INTERVAL_CHANGES_MAX as u64),
        ("INTERVAL_BUFFER_MAX", freebs::INTERVAL_BUFFER_MAX as u64),
    ] {
        let line = format!("#define FREEBS_{name} {value}");
        assert!(header.lines().any(|l| l == line), "the header lacks: {line}");
    }
}

#[test]
fn the_tour_runs_from_an_install_prefix() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let nodes = Nodes::up();
    nodes.cli(&["snapshot", "create", "demo", "--name", "then"]);
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    install(&prefix);
    let source = format!("{HERE}/examples/c/tour.c");
    let tour = |program: &Path| {
        let mut tour = Command::new(program);
        tour.arg(nodes.addresses().join(",")).args(["demo", "then"]);
        tour
    };

    let shared = dir.path().join("tour");
    let flags = pkg_config(&prefix, &["--cflags", "--libs"]);
    run(Command::new("cc").args(STRICT).arg("-o").arg(&shared).arg(&source).args(flags));
    let said = run(tour(&shared).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(said.contains("all is well"), "{said}");

    // And without the shared library, as one program.
    let alone = dir.path().join("alone");
    let private = pkg_config(&prefix, &["--static", "--libs"]);
    run(Command::new("cc")
        .args(STRICT)
        .arg("-o")
        .arg(&alone)
        .arg(&source)
        .args(pkg_config(&prefix, &["--cflags"]))
        .arg(prefix.join("lib/libfreebs.a"))
        .args(private.iter().filter(|l| !l.ends_with("freebs"))));
    let said = run(&mut tour(&alone));
    assert!(said.contains("all is well"), "{said}");
}

//! What a user of the library does: install it into a prefix, compile with pkg-config, run. And the header alone, as C
//! of three standards and as C++.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files and programs are what is tested")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Whether the programs are there. A test that cannot be done says so; in CI, where they are installed, it fails.
fn has(test: &str, programs: &[&str]) -> bool {
    let there = |p: &&str| Command::new(p).arg("--version").output().is_ok_and(|o| o.status.success());
    let Some(missing) = programs.iter().find(|p| !there(p)) else { return true };
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{test}: there is no {missing}");
    // Past the capture of the test runner, so that it is counted.
    let line = format!("\nskipped: {test}: there is no {missing}\n");
    std::io::stderr().lock().write_all(line.as_bytes()).expect("standard error");
    false
}

fn run(c: &mut Command) -> String {
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{c:?}: {}\n{text}", out.status);
    text
}

/// The libraries lie beside this test, which cargo has linked with one of them: nothing is built again.
fn install(prefix: &Path) {
    let me = std::env::current_exe().unwrap();
    run(Command::new(format!("{HERE}/install")).arg(prefix).env("BUILT", me.parent().unwrap()));
}

fn pkg_config(prefix: &Path, what: &[&str]) -> Vec<String> {
    let path = prefix.join("lib/pkgconfig");
    let out = run(Command::new("pkg-config").args(what).arg("lsvd").env("PKG_CONFIG_PATH", path));
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_header_is_c_and_cpp() {
    let programs = [("cc", "c", ["c99", "c11", "c17"]), ("c++", "c++", ["c++11", "c++17", "c++20"])];
    if !has("the_header_is_c_and_cpp", &programs.map(|p| p.0)) {
        return;
    }
    for (compiler, language, standards) in programs {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("alone");
        std::fs::write(&source, "#include <lsvd.h>\n#include <lsvd.h>\nint main(void) { return LSVD_MAJOR; }\n")
            .unwrap();
        for standard in standards {
            run(Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language])
                .arg(format!("-std={standard}"))
                .arg(format!("-I{HERE}/include"))
                .arg(&source));
        }
    }
}

/// Every function of the header is exported, and nothing is exported that is not there.
#[test]
fn header_and_library_name_the_same_functions() {
    let header = include_str!("../include/lsvd.h");
    let code = [include_str!("../src/lib.rs"), include_str!("../src/errors.rs")].concat();
    let names = |text: &str, before: &str| {
        let mut out: Vec<String> = text
            .split(before)
            .skip(1)
            .filter_map(|t| t.split('(').next())
            .map(|t| t.trim().to_owned())
            .filter(|t| t.ends_with("_lsvd"))
            .collect();
        out.sort();
        out.dedup();
        out
    };
    let exported = names(&code, "extern \"C\" fn ");
    let declared: Vec<String> = {
        let mut out: Vec<String> = header
            .lines()
            .filter(|l| !l.starts_with([' ', '/', '#']) && l.ends_with(");"))
            .filter_map(|l| l.split('(').next())
            .filter_map(|l| l.split([' ', '*']).next_back())
            .map(str::to_owned)
            .collect();
        out.sort();
        out
    };
    assert_eq!(exported, declared);
    let figure_5 =
        ["create", "open", "cleanup", "read", "write", "fsync", "get_version", "get_writes", "put_writes", "close"];
    for name in figure_5 {
        assert!(declared.contains(&format!("{name}_lsvd")), "{name}");
    }
}

#[test]
fn the_example_runs_from_an_install_prefix() {
    if !has("the_example_runs_from_an_install_prefix", &["cc", "pkg-config"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    install(&prefix);
    let source = format!("{HERE}/examples/c/tour.c");
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"];

    let shared = dir.path().join("tour");
    run(Command::new("cc")
        .args(strict)
        .arg("-o")
        .arg(&shared)
        .arg(&source)
        .args(pkg_config(&prefix, &["--cflags", "--libs"])));
    let said = run(Command::new(&shared).arg(dir.path()).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(said.contains("all is well"), "{said}");

    // And without the shared library, as one program.
    let alone = dir.path().join("alone");
    let private = pkg_config(&prefix, &["--static", "--libs"]);
    run(Command::new("cc")
        .args(strict)
        .arg("-o")
        .arg(&alone)
        .arg(&source)
        .args(pkg_config(&prefix, &["--cflags"]))
        .arg(prefix.join("lib/liblsvd.a"))
        .args(private.iter().filter(|l| !l.ends_with("lsvd"))));
    let said = run(Command::new(&alone).arg(dir.path()));
    assert!(said.contains("all is well"), "{said}");
}

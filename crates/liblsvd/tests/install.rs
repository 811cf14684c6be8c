//! What a user of the library does: install it into a prefix, compile with pkg-config, run. And the header alone, as C
//! of three standards and as C++.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files and programs are what is tested")]

use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Whether a program is there.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

fn run(c: &mut Command) -> String {
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{c:?}: {}\n{text}", out.status);
    text
}

fn install(prefix: &Path) {
    run(Command::new(format!("{HERE}/install")).arg(prefix).env("PROFILE", "dev").env("CARGO", env!("CARGO")));
}

fn pkg_config(prefix: &Path, what: &[&str]) -> Vec<String> {
    let path = prefix.join("lib/pkgconfig");
    let out = run(Command::new("pkg-config").args(what).arg("lsvd").env("PKG_CONFIG_PATH", path));
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_header_is_c_and_cpp() {
    let programs = [("cc", "c", ["c99", "c11", "c17"]), ("c++", "c++", ["c++11", "c++17", "c++20"])];
    for (compiler, language, standards) in programs {
        if !has(compiler) {
            println!("skipped: there is no {compiler}");
            continue;
        }
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
    if let Some(missing) = ["cc", "pkg-config"].into_iter().find(|p| !has(p)) {
        println!("skipped: there is no {missing}");
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

//! The pages of the project: their links lead somewhere, and every rule that a comment names is explained.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a folder that end so, build results left out.
fn files(folder: &Path, end: &str, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, end, out);
        } else if name.ends_with(end) && path.is_file() {
            out.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn links_lead_somewhere() {
    let mut pages = vec![root().join("README.md")];
    files(&root().join("docs"), ".md", &mut pages);
    let mut seen = 0;
    for page in pages {
        let text = read(&page);
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = page.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {target}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 10);
}

/// Names such as `W3` in the comments of a source file.
fn rules_in(text: &str) -> impl Iterator<Item = &str> {
    let comments = text.lines().filter_map(|l| l.split_once("//").map(|(_, c)| c));
    comments.flat_map(|c| c.split(|c: char| !c.is_alphanumeric())).filter(|w| {
        let mut chars = w.chars();
        chars.next().is_some_and(|c| "WRVLISE".contains(c))
            && (2..=3).contains(&w.len())
            && chars.all(|c| c.is_ascii_digit())
    })
}

#[test]
fn rules_that_comments_name_are_explained() {
    let architecture = read(&root().join("docs/architecture.md"));
    let explained: BTreeSet<&str> =
        architecture.split("**").skip(1).step_by(2).filter(|w| rules_in(&format!("// {w}")).eq([*w])).collect();
    assert!(explained.contains("W1") && explained.contains("E10") && explained.len() > 30, "{explained:?}");
    let mut sources = Vec::new();
    files(&root().join("crates"), ".rs", &mut sources);
    let mut named = BTreeSet::new();
    for path in sources {
        let text = read(&path);
        for rule in rules_in(&text) {
            assert!(explained.contains(rule), "{} names {rule}, which no page explains", path.display());
            named.insert(rule.to_owned());
        }
    }
    for rule in ["W1", "W2", "W3", "W4", "W6", "R1", "R2", "R3", "V2", "V5", "V6", "E7"] {
        assert!(named.contains(rule), "no comment says where {rule} is kept");
    }
}

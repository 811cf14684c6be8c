//! The sizes that a reader can take in: functions of 70 lines, files of 1,000.

use crate::tree::{Kind, kind};
use crate::{Finding, rust};

/// Lines of a function, from that of `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Lines of a file of code.
pub const FILE_LINES_MAX: usize = 1_000;

/// Functions that are too long, in sources, tests and examples alike.
pub fn functions(path: &str, text: &str) -> Vec<Finding> {
    if kind(path, text) != Kind::Rust {
        return Vec::new();
    }
    let long = rust::functions(text).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX);
    long.map(|f| {
        let text =
            format!("`{}` has {} lines, {FUNCTION_LINES_MAX} are allowed: split it by its steps", f.name, f.lines);
        Finding::new(path, f.line, text)
    })
    .collect()
}

/// Files of code that are too long.
pub fn files(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    let code = matches!(kind(path, text), Kind::Rust | Kind::C | Kind::Python | Kind::Shell);
    if !code || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let text = format!("{lines} lines, {FILE_LINES_MAX} are allowed: split the file by the nouns in it");
    vec![Finding::new(path, FILE_LINES_MAX + 1, text)]
}

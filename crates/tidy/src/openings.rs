//! Files open with what they are.

use crate::Finding;
use crate::tree::{Kind, kind};

/// A file that does not say in its first lines what it is: `//!` in Rust, a comment (or docstring) elsewhere.
pub fn opening(path: &str, text: &str) -> Vec<Finding> {
    let (marks, remedy): (&[&str], &str) = match kind(path, text) {
        Kind::Rust => (&["//!"], "open it with a `//!` line that says what it is"),
        Kind::C => (&["//", "/*"], "open it with a comment that says what it is"),
        Kind::Python => (&["\"\"\"", "#"], "open it with a docstring or comment that says what it is"),
        Kind::Shell => (&["#"], "open it with a comment that says what it is"),
        Kind::Markdown | Kind::Other => return Vec::new(),
    };
    let skipped = usize::from(text.starts_with("#!/"));
    let mut lines = text.lines().skip(skipped);
    let mut first = lines.next().unwrap_or_default().to_owned();
    if first == "/*" {
        // The first words of a block comment may stand on its second line.
        first.extend(lines.next());
    }
    let said =
        marks.iter().find_map(|mark| first.strip_prefix(mark)).map(|rest| rest.trim_matches(['*', '/', '"', ' ']));
    let fault = match said {
        None => "the file does not say what it is",
        Some("") => "the opening is empty",
        Some(_) => return Vec::new(),
    };
    vec![Finding::new(path, skipped + 1, format!("{fault}: {remedy}"))]
}

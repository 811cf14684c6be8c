//! Design notes: their numbers are dense, and the index in `docs/design/README.md` has a row for each.
//!
//! A row is `| [7](0007-name.md) | title | state |`, with the title as the note's heading has it. A number that no
//! note has is a row without a link that says "never used".

use crate::{Finding, Tree, markdown};

/// The page with the table of notes.
pub const INDEX: &str = "docs/design/README.md";

struct Row<'a> {
    line: usize,
    number: usize,
    /// Empty if the row has no link.
    file: &'a str,
    title: &'a str,
    text: &'a str,
}

/// Rows whose first cell is a number or a link from a number.
fn rows(index: &str) -> Vec<Row<'_>> {
    let row = |l: &markdown::Line<'_>, text| {
        let cells = markdown::cells(text)?;
        let first = cells.first()?;
        let (number, file) = match first.strip_prefix('[').and_then(|f| f.strip_suffix(')')) {
            Some(link) => link.split_once("](")?,
            None => (*first, ""),
        };
        let title = cells.get(1).copied().unwrap_or_default();
        Some(Row { line: l.number, number: number.parse().ok()?, file, title, text })
    };
    markdown::lines(index).iter().filter_map(|l| row(l, l.text)).collect()
}

/// Gaps and doubles in the index, notes without a row, rows without a note, headings that say something else.
pub fn notes(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let rows = rows(tree.text(INDEX));
    for (n, row) in rows.iter().enumerate() {
        if row.number != n + 1 {
            let text = format!("row {} stands where {} belongs: numbers go on one by one", row.number, n + 1);
            found.push(Finding::new(INDEX, row.line, text));
        }
        if row.file.is_empty() && !row.text.contains("never used") {
            let text = format!("number {} has no note: link it, or say that it was never used", row.number);
            found.push(Finding::new(INDEX, row.line, text));
        }
        if !row.file.is_empty() && !tree.texts.contains_key(&format!("docs/design/{}", row.file)) {
            let text = format!("there is no {}: mend the link", row.file);
            found.push(Finding::new(INDEX, row.line, text));
        }
    }
    for (path, text) in tree.ending(".md") {
        let Some(file) = path.strip_prefix("docs/design/").filter(|f| *f != "README.md") else { continue };
        let Some(row) = rows.iter().find(|r| r.file == file) else {
            found.push(Finding::new(path, 1, format!("the note is not in {INDEX}: add a row for it")));
            continue;
        };
        let heading = format!("# {}. {}", row.number, row.title);
        if text.lines().next() != Some(&heading) {
            found.push(Finding::new(
                path,
                1,
                format!("the heading is not `{heading}`, as {INDEX} has it: make them agree"),
            ));
        }
        if !file.starts_with(&format!("{:04}-", row.number)) {
            let text = format!("{file} stands in row {}: name the file by its number", row.number);
            found.push(Finding::new(path, 1, text));
        }
    }
    found
}

//! Tables of the format documents, read from the markdown.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;

/// A row of a struct's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub offset: usize,
    pub bytes: usize,
    pub field: String,
}

/// A struct as a document describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: String,
    pub bytes: usize,
    pub rows: Vec<Row>,
}

/// A document of `docs/formats`.
pub fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect()
}

/// The rows below a header line with these columns, each with the line of the last heading before it.
fn tables(text: &str, columns: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let mut out = Vec::new();
    let mut before = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == columns {
            let rule = lines.next().unwrap_or_default();
            assert!(rule.starts_with("| -"), "no rule below the header: {rule}");
            let mut rows = Vec::new();
            while let Some(row) = lines.next_if(|l| l.starts_with('|')) {
                rows.push(cells(row));
            }
            out.push((before.clone(), rows));
        } else if !line.trim().is_empty() && !line.starts_with('|') {
            before = line.to_owned();
        }
    }
    out
}

/// All structs, from headings such as "### `Name`: 12 bytes" and the tables below them.
pub fn structs(text: &str) -> Vec<Struct> {
    let number = |s: &str| s.parse::<usize>().unwrap_or_else(|_| panic!("'{s}' is no number"));
    tables(text, "| offset | bytes | field | meaning |")
        .into_iter()
        .map(|(heading, rows)| {
            let parts: Vec<&str> = heading.split('`').collect();
            let [_, name, size] = parts[..] else { panic!("a table of bytes below '{heading}'") };
            let size = size.trim_start_matches(": ").trim_end_matches(" bytes");
            let row = |r: Vec<String>| {
                assert!(r.len() == 4 && !r[3].is_empty(), "{name}: a row without meaning: {r:?}");
                Row { offset: number(&r[0]), bytes: number(&r[1]), field: r[2].clone() }
            };
            Struct { name: name.into(), bytes: number(size), rows: rows.into_iter().map(row).collect() }
        })
        .collect()
}

/// The values below the line that begins with `title`: number and name.
pub fn values(text: &str, title: &str) -> Vec<(u64, String)> {
    let all = tables(text, "| value | name | meaning |");
    let (_, rows) =
        all.into_iter().find(|(before, _)| before.starts_with(title)).unwrap_or_else(|| panic!("no table '{title}'"));
    rows.into_iter().map(|r| (r[0].parse().expect("a number"), r[1].clone())).collect()
}

/// All maxima: name and value.
pub fn maxima(text: &str) -> Vec<(String, u64)> {
    let all = tables(text, "| maximum | value | meaning |");
    all.into_iter().flat_map(|(_, rows)| rows).map(|r| (r[0].clone(), r[1].parse().expect("a number"))).collect()
}

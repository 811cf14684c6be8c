//! Tables for people, JSON for programs.

use comfy_table::{CellAlignment, Table, presets};
use freebs_types::Error;
use serde::Serialize;
use std::io::Write;

pub struct Output {
    pub json: bool,
}

impl Output {
    /// Writes to standard output. A reader that has gone (`freebs status | head`) is no error.
    pub fn raw(&self, bytes: &[u8]) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }

    pub fn line(&self, text: &str) {
        self.raw(format!("{text}\n").as_bytes());
    }

    /// One value for programs on one line, or what `people` makes of it.
    pub fn show<T: Serialize>(&self, value: &T, people: impl FnOnce(&T) -> String) {
        if self.json {
            self.line(&serde_json::to_string(value).expect("answers have only what JSON can say"));
        } else {
            self.line(people(value).trim_end());
        }
    }

    /// A sentence for people beside the answer.
    pub fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "freebs: {text}");
    }

    pub fn error(&self, e: &Error) {
        if self.json {
            #[derive(Serialize)]
            struct Shown<'a> {
                error: Inner<'a>,
            }
            #[derive(Serialize)]
            struct Inner<'a> {
                kind: freebs_types::ErrorKind,
                text: &'a str,
            }
            self.show(&Shown { error: Inner { kind: e.kind, text: &e.text } }, |_| String::new());
        }
        self.note(&e.to_string());
    }
}

/// A plain table: a header line, columns apart by spaces; columns named in `right` to the right.
pub fn table(header: &[&str], right: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING);
    t.set_header(header.iter().copied());
    rows.into_iter().for_each(|r| {
        t.add_row(r);
    });
    for (i, name) in header.iter().enumerate() {
        let Some(column) = t.column_mut(i) else { continue };
        column.set_padding((if i == 0 { 0 } else { 1 }, 1));
        if right.contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    t.lines().map(|l| format!("{}\n", l.trim_end())).collect()
}

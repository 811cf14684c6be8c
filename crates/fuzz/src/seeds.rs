//! The inputs that a corpus begins with, made of the formats' own golden bytes and encoders.
//!
//! `cargo xtask bless` writes them; a test holds the files against this, so a format that changes shows here.

use crate::input::Input;
use crate::targets::seeds as of_targets;
use freebs_types::BLOCK;
use std::path::Path;

/// One file of a corpus.
pub struct Seed {
    pub target: &'static str,
    pub name: String,
    pub data: Vec<u8>,
}

/// Collects seeds.
#[derive(Default)]
pub struct Seeds(pub Vec<Seed>);

impl Seeds {
    pub fn add(&mut self, target: &'static str, name: impl Into<String>, data: Vec<u8>) {
        self.0.push(Seed { target, name: name.into(), data });
    }
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/golden").join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let digits: Vec<u8> = text.lines().filter(|l| !l.starts_with("data:")).flat_map(str::bytes).collect();
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex digits") as u8;
    digits.chunks_exact(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect()
}

/// The names of the golden files that begin so.
fn names(prefix: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/golden");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let files = entries.map(|e| e.expect("readable").file_name().into_string().expect("plain names"));
    let mut names: Vec<String> =
        files.filter_map(|n| n.strip_suffix(".hex").filter(|n| n.starts_with(prefix)).map(str::to_owned)).collect();
    names.sort();
    names
}

/// A golden message with zeroes for its payload.
fn message(name: &str) -> Vec<u8> {
    let mut bytes = golden(name);
    let total = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
    bytes.resize(total, 0);
    crate::seal::message(&mut bytes);
    bytes
}

/// A golden frame with zeroes for its data.
fn frame(name: &str) -> Vec<u8> {
    let mut bytes = golden(name);
    let data = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes")) as usize;
    assert!(data.is_multiple_of(BLOCK));
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn formats(out: &mut Seeds) {
    let mended = |rest: &[u8]| Input::bytes(true, 0, 0, rest);
    let mut stream = Vec::new();
    for name in names("message-") {
        let bytes = message(&name);
        let short = name.trim_start_matches("message-").to_owned();
        out.add("wire", &short, mended(&bytes));
        if bytes.len() < 6 << 10 {
            stream.extend_from_slice(&bytes);
        }
        if short == "hello" || short == "welcome" {
            out.add("greeting", &short, Input::bytes(true, 9, 0, &bytes));
        }
    }
    out.add("wire-stream", "all", Input::bytes(true, 13, 0, &stream));
    let pair = [message("message-hello"), message("message-leased")].concat();
    out.add("wire-stream", "short", Input::bytes(true, 1, 0, &pair));
    for name in names("frame-") {
        let short = name.trim_start_matches("frame-").to_owned();
        out.add("frame", &short, mended(&frame(&name)));
        let kinds = ["view", "attach", "mark", "carry"];
        let kind = kinds.iter().position(|k| short.starts_with(k));
        if let Some(kind) = kind {
            let blocks = if short == "carry" { 1 } else { 0 };
            out.add("bodies", &short, Input::bytes(true, 0, kind as u8 | blocks << 2, &golden(&name)[256..]));
        }
    }
    // Kinds of updates that are reserved, in the first update of a frame.
    for kind in [7, 12] {
        let mut bytes = golden("frame-data");
        bytes[256] = kind;
        out.add("frame", format!("data-kind-{kind}"), mended(&bytes));
    }
    out.add("interval", "golden", mended(&golden("interval-record")));
    out.add("superblock", "plain", mended(&golden("superblock")));
    out.add("append", "golden", mended(&golden("append")));
    let index = [golden("segment-index"), golden("segment-footer")].concat();
    out.add("segment-index", "golden", mended(&index));
    let mut page = golden("map-page");
    page.resize(4096, 0);
    out.add("map-page", "golden", mended(&page));
    out.add("checkpoint", "golden", mended(&golden("checkpoint")));
    out.add("openings", "golden", mended(&golden("openings")));
    out.add("host-key", "golden", mended(&golden("host-key")));
}

/// All seeds.
#[must_use]
pub fn all() -> Vec<Seed> {
    let mut out = Seeds::default();
    formats(&mut out);
    of_targets(&mut out);
    out.0
}

//! `freebs volume import` and `export`: images come in and go out unchanged, holes cost nothing, nothing half-made is taken
//! for whole, and each refusal says the way out.

mod ends;
mod refusals;
mod rounds;

use crate::support::cluster::Cluster;
use crate::support::rng::Rng;
use crate::support::tools::{run, told};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Bytes that can't be compressed, none of them zero.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend((rng.next() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A sparse raw image: a disk of `size` bytes with noise at these places.
fn raw(path: PathBuf, size: u64, data: &[(u64, usize)]) -> PathBuf {
    let file = File::create(&path).expect("a file");
    file.set_len(size).expect("a sparse file");
    for (i, (at, len)) in data.iter().enumerate() {
        file.write_all_at(&noise(i as u64 + 1, *len), *at).expect("room");
    }
    path
}

/// An image of the same disk in another format, made by qemu-img.
fn converted(of: &Path, to: PathBuf, how: &str) -> PathBuf {
    let fixed = ["convert", "-f", "raw", "-O", "qcow2"];
    run("qemu-img", fixed.into_iter().chain(how.split_whitespace()).chain([text(of), text(&to)]));
    to
}

/// Both hold the same disk, by the judgement of qemu-img.
fn same_disk(a: (&Path, &str), b: (&Path, &str)) {
    run("qemu-img", ["compare", "-f", a.1, "-F", b.1, text(a.0), text(b.0)]);
}

fn import(c: &Cluster, volume: &str, image: &Path, more: &[&str]) -> Value {
    c.json(&[&["volume", "import", volume, text(image)], more].concat())
}

fn export(c: &Cluster, volume: &str, image: &Path, more: &[&str]) -> Value {
    c.json(&[&["volume", "export", volume, text(image)], more].concat())
}

/// A volume as `volume show` has it.
fn shown(c: &Cluster, volume: &str) -> Value {
    c.json(&["volume", "show", volume])
}

/// Names of the volumes that begin so.
fn volumes(c: &Cluster, prefix: &str) -> Vec<String> {
    let all = c.json(&["volume", "list"]);
    let names = all["volumes"].as_array().expect("a list").iter().map(|v| v["name"].as_str().expect("a name"));
    names.filter(|n| n.starts_with(prefix)).map(str::to_owned).collect()
}

/// The command ends with status 1 and says these words.
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

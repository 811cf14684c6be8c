//! `freebs backup`: volumes are backed up and come back unchanged, what is known is not stored twice, nothing half-made is
//! in a list, and each refusal says the way out.

mod kills;
mod refusals;
mod rounds;
pub mod s3;

use crate::support::cluster::Cluster;
use crate::support::rng::Rng;
use crate::support::tools::{first_difference, told};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Bytes that can't be compressed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A command below `freebs backup` that must succeed.
fn backup(c: &Cluster, words: &[&str]) -> Value {
    c.json(&[&["backup"], words].concat())
}

/// Such a command, whatever comes of it.
fn tried(c: &Cluster, words: &[&str]) -> Output {
    c.cli(&[&["backup"], words].concat())
}

/// The word of a JSON value.
fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}"))
}

/// The backups of a target, in the order of the list.
fn listed(c: &Cluster, target: &str) -> Vec<String> {
    let list = backup(c, &["list", target]);
    assert_eq!(list["damaged"], serde_json::json!([]), "{list}");
    list["backups"].as_array().expect("a list").iter().map(|b| word(b, "backup").to_owned()).collect()
}

/// The backup is the same disk as the file, by way of a new volume and its export.
fn restores_to(c: &Cluster, target: &str, id: &str, volume: &str, size: u64, file: &Path) {
    let restored = backup(c, &["restore", target, id, volume]);
    assert_eq!(restored["size"], size, "{restored}");
    let back = exported(c, volume);
    assert_eq!(std::fs::metadata(&back).expect("a file").len(), size);
    assert_eq!(first_difference(file, &back, size), None, "backup {id}");
    std::fs::remove_file(&back).expect("our own file");
    c.json(&["volume", "delete", volume, "--force"]);
}

/// A volume as a file.
fn exported(c: &Cluster, volume: &str) -> PathBuf {
    let file = c.dir().join(format!("{volume}.raw"));
    c.json(&["volume", "export", volume, text(&file), "--force"]);
    file
}

/// Names of the volumes that begin so.
fn volumes(c: &Cluster, prefix: &str) -> Vec<String> {
    let all = c.json(&["volume", "list"]);
    let names = all["volumes"].as_array().expect("a list").iter().map(|v| word(v, "name"));
    names.filter(|n| n.starts_with(prefix)).map(str::to_owned).collect()
}

/// Names of a volume's snapshots.
fn snapshots(c: &Cluster, volume: &str) -> Vec<String> {
    let all = c.json(&["snapshot", "list", volume]);
    all["snapshots"].as_array().expect("a list").iter().map(|s| word(s, "name").to_owned()).collect()
}

/// The command ends with this status and says these words.
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

/// Files below a directory, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = crate::support::cluster::files_below(dir, &|_| true);
    files.sort();
    files
}

//! Inputs that are kept: a folder of small files for each target, and one of findings.

use crate::Target;
use crate::rng::hash;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of one kept input.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// Bytes of all kept inputs together.
pub const CORPUS_BYTES_MAX: usize = 500 << 10;

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The folder of a target's inputs.
#[must_use]
pub fn folder(target: &Target) -> PathBuf {
    here("corpus").join(target.name)
}

/// The folder of a target's findings.
#[must_use]
pub fn findings_folder(target: &Target) -> PathBuf {
    here("findings").join(target.name)
}

fn read_all(folder: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<io::Result<_>>()?;
    paths.sort();
    paths.into_iter().map(|p| std::fs::read(&p).map(|bytes| (p, bytes))).collect()
}

/// Inputs that are kept of a target, in order of the names: its corpus, then its findings.
pub fn kept(target: &Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = read_all(&folder(target))?;
    all.extend(read_all(&findings_folder(target))?);
    Ok(all)
}

/// Keeps a finding; gives back its file.
pub fn keep_finding(target: &Target, data: &[u8]) -> io::Result<PathBuf> {
    let folder = findings_folder(target);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{:016x}", hash(data)));
    std::fs::write(&path, data)?;
    Ok(path)
}

//! A directory that a target is in, where more has to be known of it than the `object_store` crate tells.
//!
//! Invariants:
//! - A listing has all files that the directory names, but for names that can't be of a target. A file that can't be looked
//!   at is an error: what is left out of a listing counts as needless.
//! - A file that is missing because its directory was unmounted, or because a link leads nowhere, is an error as well.

use crate::store::{Listed, Part};
use std::fs::{self, DirEntry, Metadata, OpenOptions, ReadDir};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Files that a listing looks at before it lets others run.
const BATCH: usize = 1024;

/// A directory, and by which it is known again.
pub(crate) struct Directory {
    root: PathBuf,
    device: u64,
    inode: u64,
}

/// Runs something that waits for a disk, where there is one for it on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(Error::other)?,
        Err(_) => work(),
    }
}

/// Makes the entries of a directory durable.
fn sync(path: &Path) -> Result<()> {
    OpenOptions::new().read(true).open(path)?.sync_all()
}

/// Makes the entry of a directory in the one above it durable. One that may not be read is left alone unless `must`.
pub(crate) fn sync_entry(path: &Path, must: bool) -> Result<()> {
    let path = fs::canonicalize(path)?;
    let Some(above) = path.parent() else { return Ok(()) };
    match sync(above) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && !must => Ok(()),
        done => done,
    }
}

/// True for what a client that was killed has left of a file that it was writing.
fn is_staged(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let root = fs::canonicalize(path)?;
        let found = fs::metadata(&root)?;
        Ok(Self { root, device: found.dev(), inode: found.ino() })
    }

    /// Refuses to go on with a directory that is another one than it was.
    pub(crate) fn check(&self) -> Result<()> {
        let now = fs::metadata(&self.root)?;
        let is_same = (now.dev(), now.ino()) == (self.device, self.inode);
        is_same.then_some(()).ok_or_else(|| Error::other("it is another directory than it was; was it unmounted?"))
    }

    /// Ends well if a file that was not found is in fact not there.
    pub(crate) fn check_missing(&self, key: &str) -> Result<()> {
        self.check()?;
        let mut at = self.root.clone();
        for part in key.split('/') {
            at.push(part);
            match fs::symlink_metadata(&at) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                Ok(found) if found.is_symlink() => {
                    fs::metadata(&at).map_err(|e| Error::other(format!("{} leads nowhere: {e}", at.display())))?;
                }
                Ok(_) => {}
                Err(e) => return Err(e),
            }
        }
        // It has come just now.
        Ok(())
    }

    /// The file behind a name; `None` if it was taken away meanwhile.
    fn look(&self, entry: &DirEntry, key: &str) -> Result<Option<Metadata>> {
        let of = |e: Error| Error::new(e.kind(), format!("can't look at {}: {e}", entry.path().display()));
        // By the directory that is open, not by its path.
        let mut found = entry.metadata();
        if found.as_ref().is_ok_and(Metadata::is_symlink) {
            found = fs::metadata(entry.path());
        }
        match found {
            Err(e) if e.kind() == ErrorKind::NotFound => self.check_missing(key).map(|()| None).map_err(of),
            found => found.map(Some).map_err(of),
        }
    }

    /// The names in a directory; none if it is not there.
    fn read(&self, key: &str) -> Result<Option<ReadDir>> {
        match fs::read_dir(self.root.join(key)) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.check_missing(key).map(|()| None),
            read => read.map(Some),
        }
    }

    /// The name of something at the top, if anything is but what a new file system has.
    pub(crate) fn any(&self) -> Result<Option<String>> {
        self.check()?;
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "lost+found" && !is_staged(&name) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The directories in a directory whose names fit, in order.
    pub(crate) fn folders(&self, key: &str, part: Part) -> Result<Vec<String>> {
        let mut folders = Vec::new();
        for entry in self.read(key)?.into_iter().flatten() {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().filter(|n| part.fits(n)).map(str::to_owned) else { continue };
            if self.look(&entry, &format!("{key}/{name}"))?.is_some_and(|m| m.is_dir()) {
                folders.push(name);
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// Makes the entries at the top durable, and those of a folder; with `deep` those of its folders, too.
    pub(crate) fn sync(&self, key: &str, deep: Option<Part>) -> Result<()> {
        self.check()?;
        let mut paths = vec![self.root.join(key)];
        if let Some(part) = deep {
            let below = self.folders(key, part)?;
            paths.extend(below.iter().map(|name| self.root.join(key).join(name)));
        }
        for path in &paths {
            match sync(path) {
                Err(e) if e.kind() == ErrorKind::NotFound => self.check_missing(key)?,
                done => done.map_err(|e| Error::new(e.kind(), format!("can't sync {}: {e}", path.display())))?,
            }
        }
        Ok(())
    }

    /// A listing of the files below a folder whose keys go on with these parts.
    pub(crate) fn walk(self: &Arc<Self>, folder: &str, parts: &'static [Part]) -> Result<Walk> {
        let open = self.read(folder)?.map(|read| (read, folder.to_owned()));
        Ok(Walk { directory: self.clone(), parts, open: open.into_iter().collect() })
    }
}

/// A listing that is under way.
pub(crate) struct Walk {
    directory: Arc<Directory>,
    parts: &'static [Part],
    /// The directories that it is in, and their keys.
    open: Vec<(ReadDir, String)>,
}

impl Walk {
    /// Some more files; none at the end.
    pub(crate) fn batch(&mut self) -> Result<Vec<Listed>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let depth = self.open.len();
            let Some((read, folder)) = self.open.last_mut() else { break };
            let Some(entry) = read.next() else {
                self.open.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|n| self.parts[depth - 1].fits(n)) else { continue };
            let key = format!("{folder}/{name}");
            let Some(found) = self.directory.look(&entry, &key)? else { continue };
            match depth == self.parts.len() {
                true if found.is_file() => batch.push(listed(name, key, &found)),
                false if found.is_dir() => self.open.extend(self.directory.read(&key)?.map(|read| (read, key))),
                // Not of a target.
                _ => {}
            }
        }
        Ok(batch)
    }
}

fn listed(name: &str, key: String, found: &Metadata) -> Listed {
    let modified = found.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let modified_ms = modified.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
    Listed { last: name.to_owned(), key, bytes: found.len(), modified_ms }
}

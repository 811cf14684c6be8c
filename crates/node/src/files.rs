//! Small files that must be there whole or not at all, and directories that one process owns.

use freebs_types::{Error, ErrorKind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An error of the operating system with its path, as one of ours.
pub fn os_error(what: &str, path: &Path, e: &io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Os,
    };
    Error { kind, text: format!("can't {what} {}: {}", path.display(), plain(e)).into() }
}

/// The system's text without its number.
pub fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

/// Writes a file so that after a crash at any moment the path holds the old bytes or the new ones, and after the
/// return the new ones: a file beside it, its sync, a rename, a sync of the directory.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes)?;
    fs::rename(beside(path), path).map_err(|e| os_error("rename", path, &e))?;
    sync_directory(parent(path))
}

/// The name under which the next contents of `path` are gathered.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// The first half of `write_durably`: the new bytes are on stable media under `beside(path)`.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = beside(path);
    let write = || -> io::Result<()> {
        // For the owner alone: some of these files hold secrets, and none is anybody else's business.
        let mut f = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        f.write_all(bytes)?;
        f.sync_all()
    };
    write().map_err(|e| os_error("write", &temporary, &e))
}

pub fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| os_error("sync", path, &e))
}

pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// All bytes of a file of at most `max` bytes; `None` if there is no such file.
pub fn read_limited(path: &Path, max: usize) -> Result<Option<Vec<u8>>> {
    let f = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(os_error("open", path, &e)),
    };
    let mut bytes = Vec::new();
    f.take(max as u64 + 1).read_to_end(&mut bytes).map_err(|e| os_error("read", path, &e))?;
    if bytes.len() > max {
        return Err(Error::corrupt(format!("{} is larger than it can be ({max} bytes)", path.display())));
    }
    Ok(Some(bytes))
}

/// A directory that belongs to this process, for as long as this value lives (and not longer than the process).
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Makes the directory if need be, proves that it can be written, and takes the lock file `name` in it.
    /// `Busy` names the process that has it.
    pub fn take(dir: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|e| hint(os_error("create the data directory", dir, &e)))?;
        let path = dir.join(name);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(|e| hint(os_error("write to the data directory:", &path, &e)))?;
        // SAFETY: the descriptor is open for the whole call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let mut pid = String::new();
            let _ = std::io::Read::by_ref(&mut file).take(20).read_to_string(&mut pid);
            return Err(Error::busy(format!(
                "{} is in use by another freebs (process {}); stop that one, or choose another directory with --data",
                dir.display(),
                pid.trim()
            )));
        }
        let write = |f: &mut File| -> io::Result<()> {
            f.set_len(0)?;
            f.rewind()?;
            writeln!(f, "{}", std::process::id())
        };
        write(&mut file).map_err(|e| hint(os_error("write to the data directory:", &path, &e)))?;
        Ok(Self { _file: file })
    }
}

fn hint(e: Error) -> Error {
    let way_out = if e.kind == ErrorKind::NoSpace {
        "free some space there, or choose another directory with --data"
    } else {
        "choose another directory with --data, or change its permissions"
    };
    Error { kind: e.kind, text: format!("{}; {way_out}", e.text).into() }
}

/// Bytes that the file system of `path` has free for us.
pub fn free_bytes(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut s: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: path ends in a zero byte, and `s` is a valid place for the answer.
    let done = unsafe { libc::statvfs(path.as_ptr(), &mut s) };
    (done == 0).then(|| s.f_bavail.saturating_mul(s.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_read_within_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert_eq!(read_limited(&path, 10).unwrap(), None);
        write_durably(&path, b"one").unwrap();
        write_durably(&path, b"three").unwrap();
        assert_eq!(read_limited(&path, 5).unwrap().unwrap(), b"three");
        assert_eq!(read_limited(&path, 4).unwrap_err().kind, ErrorKind::Corrupt);
        assert!(!beside(&path).exists());
    }

    #[test]
    fn a_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        let first = DirLock::take(&data, "lock").unwrap();
        let e = DirLock::take(&data, "lock").unwrap_err();
        assert_eq!(e.kind, ErrorKind::Busy);
        assert!(e.text.contains(&std::process::id().to_string()), "{e}");
        drop(first);
        DirLock::take(&data, "lock").unwrap();
    }

    #[test]
    fn a_directory_that_can_not_be_made_says_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        let e = DirLock::take(&dir.path().join("file/data"), "lock").unwrap_err();
        assert!(e.text.contains("--data"), "{e}");
    }
}

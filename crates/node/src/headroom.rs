//! Room of a node's own for its small files, on a file system that others may fill: a file of `BYTES` that holds nothing. A
//! small file that finds no room takes a part of it, so that a node can start, and keep what it learns, where nothing is free.
//!
//! The log keeps room of its own, in segments.

use crate::files::{free_bytes, os_error, parent};
use freebs_types::{ErrorKind, Result};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file's name, beside the small files.
const FILE: &str = "headroom";
/// Its bytes, once there was room for them.
const BYTES: u64 = 1 << 20;
/// The file takes no room where less than this is free.
const FREE_BYTES: u64 = 4 * BYTES;
/// A small file that finds no room takes this much, for itself and for its directory.
const PART: u64 = 64 << 10;

/// Makes the file in a directory as large as it is to be, if there is room for far more: the last room is for others.
pub fn keep(dir: &Path) -> Result<()> {
    if free_bytes(dir).is_some_and(|free| free < FREE_BYTES) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let fill = || -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let mut left = BYTES.saturating_sub(file.metadata()?.len());
        while left > 0 {
            // Bytes that are written take their room, on file systems that don't compress.
            file.write_all(&vec![0; left.min(PART) as usize])?;
            left -= left.min(PART);
        }
        file.sync_all()
    };
    match fill() {
        Err(e) if !matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            Err(os_error("write", &path, &e))
        }
        _ => Ok(()),
    }
}

/// Writes a small file, and once more for each part of the headroom beside it that is given up, as long as the file finds no room.
pub fn with_room<T>(path: &Path, mut write: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match write() {
            Err(e) if e.kind == ErrorKind::NoSpace && give_up_a_part(parent(path)) => {}
            done => return done,
        }
    }
}

/// False if there is nothing to be given up.
fn give_up_a_part(dir: &Path) -> bool {
    let shrink = || -> io::Result<bool> {
        let file = OpenOptions::new().write(true).open(dir.join(FILE))?;
        let bytes = file.metadata()?.len();
        file.set_len(bytes.saturating_sub(PART))?;
        // A file system may give room back only with the transaction that this ends.
        file.sync_all()?;
        Ok(bytes > 0)
    };
    shrink().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::Error;

    #[test]
    fn a_file_without_room_takes_parts_until_none_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (file, len) = (dir.path().join(FILE), || std::fs::metadata(dir.path().join(FILE)).unwrap().len());
        let none = || Error { kind: ErrorKind::NoSpace, text: "full".into() };
        let small = dir.path().join("small");
        assert_eq!(with_room(&small, || Err::<(), _>(none())).unwrap_err().kind, ErrorKind::NoSpace, "nothing is kept");
        assert!(!file.exists());
        keep(dir.path()).unwrap();
        assert_eq!(len(), BYTES);
        let mut tries = 0;
        let third = with_room(&small, || {
            tries += 1;
            if tries < 3 { Err(none()) } else { Ok(tries) }
        });
        assert_eq!((third.unwrap(), len()), (3, BYTES - 2 * PART));
        // It is made up for when there is room.
        keep(dir.path()).unwrap();
        assert_eq!(len(), BYTES);
        let mut tries = 0;
        let never = with_room(&small, || {
            tries += 1;
            Err::<(), _>(none())
        });
        assert_eq!((never.unwrap_err().kind, tries, len()), (ErrorKind::NoSpace, 1 + BYTES / PART, 0));
        // Other errors take nothing.
        keep(dir.path()).unwrap();
        assert!(with_room(&small, || Err::<(), _>(Error::corrupt("rotten"))).is_err());
        assert_eq!(len(), BYTES);
    }
}

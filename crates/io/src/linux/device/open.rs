//! Opening a file or block device: everything that can be wrong with a path, said with the way out.
//!
//! Invariant: opening changes nothing that is there. A file is only ever created, never cut or overwritten, and a
//! descriptor is handed out only with its lock held.

use super::DeviceOptions;
use freebs_types::{Error, Result};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The sector of a file, whatever lies below: most disks have 4,096-byte sectors, or pretend smaller ones (512e)
/// and tear at 4,096, and a file does not say what it lies on.
const FILE_SECTOR: usize = 4096;
const SECTOR_MIN: usize = 512;
const SECTOR_MAX: usize = 4096;

pub(in crate::linux) struct Opened {
    pub file: OwnedFd,
    pub block_device: bool,
    pub direct: bool,
    pub sector: usize,
    pub len: u64,
}

pub(in crate::linux) fn open(path: &Path, options: &DeviceOptions) -> Result<Opened> {
    let existing = look(path)?;
    if existing.is_none() && (!options.create || options.read_only) {
        return Err(Error::not_found(format!("{} does not exist", path.display())));
    }
    let block_device = existing.is_some_and(|t| t.is_block_device());
    let (file, mut direct) = open_file(path, existing.is_none(), block_device, options)?;
    lock(&file, path)?;
    if existing.is_none() {
        sync_directory(path)?;
    }
    let detected = if block_device {
        block_sector(&file, path)?
    } else {
        if direct && file_refuses_direct(&file) {
            (file_flags(&file, 0).map_err(|e| os(path, "cannot be read through the cache", &e)))?;
            direct = false;
        }
        FILE_SECTOR
    };
    let sector = choose_sector(path, detected, options.sector)?;
    if direct && !block_device {
        let least = direct_alignment(&file).unwrap_or(0);
        if least as usize > sector {
            let text = format!("direct I/O on {} needs {least}-byte sectors, not {sector}", path.display());
            return Err(Error::invalid(text));
        }
    }
    // SAFETY: the descriptor is open; seeking it moves nothing that anybody uses.
    let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    let len = u64::try_from(end).map_err(|_| os(path, "does not tell its size", &io::Error::last_os_error()))?;
    Ok(Opened { file, block_device, direct, sector, len: len - len % sector as u64 })
}

fn os(path: &Path, what: &str, e: &io::Error) -> Error {
    Error::os(format!("{} {what}: {e}", path.display()))
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// What is there, if anything; an error if it cannot be used.
fn look(path: &Path) -> Result<Option<std::fs::FileType>> {
    match std::fs::metadata(path) {
        Ok(m) if m.is_dir() => {
            Err(Error::invalid(format!("{} is a directory; name a file in it, or a block device", path.display())))
        }
        Ok(m) if m.is_file() || m.file_type().is_block_device() => Ok(Some(m.file_type())),
        Ok(_) => Err(Error::invalid(format!("{} is neither a regular file nor a block device", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let directory = parent(path);
            match std::fs::metadata(&directory) {
                Ok(_) => Ok(None),
                Err(_) => Err(Error::not_found(format!(
                    "the directory {0} does not exist; make it with: mkdir -p {0}",
                    directory.display()
                ))),
            }
        }
        Err(e) => Err(explain(path, &e)),
    }
}

fn explain(path: &Path, e: &io::Error) -> Error {
    let name = path.display();
    let text = match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("{name} may not be read and written by this user; give it the rights or run as its owner")
        }
        Some(libc::EROFS) => format!("{name} lies on a file system that is mounted read-only; remount it or move it"),
        Some(libc::ENOSPC | libc::EDQUOT) => {
            return Error::no_space(format!("{name} cannot be created, its file system is full; free some space"));
        }
        Some(libc::EBUSY) => {
            return Error::busy(format!("{name} is in use by another process, or mounted; stop or unmount that first"));
        }
        Some(libc::ENOTDIR) => format!("{name} lies below something that is not a directory; name another path"),
        Some(libc::EMFILE | libc::ENFILE) => format!("{name}: too many open files; raise the limit (ulimit -n)"),
        _ => format!("{name} cannot be opened: {e}"),
    };
    Error::os(text)
}

/// The descriptor, and whether it is direct.
fn open_file(path: &Path, create: bool, block_device: bool, options: &DeviceOptions) -> Result<(OwnedFd, bool)> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("{} has a zero byte in its name", path.display())))?;
    let access = if options.read_only { libc::O_RDONLY } else { libc::O_RDWR };
    let mut flags = access | libc::O_CLOEXEC;
    if create {
        flags |= libc::O_CREAT;
    }
    if block_device {
        // On a block device, without O_CREAT, this asks for exclusive use, also against mounts.
        flags |= libc::O_EXCL;
    }
    let attempt = |flags| {
        // SAFETY: `name` is a valid C string.
        let fd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    if !options.buffered {
        match attempt(flags | libc::O_DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            other => return other.map(|file| (file, true)).map_err(|e| explain(path, &e)),
        }
    }
    let file = attempt(flags).map_err(|e| explain(path, &e))?;
    forget_cached(&file).map_err(|e| explain(path, &e))?;
    Ok((file, false))
}

/// Lets the kernel forget what it has of the file. Pages whose write has failed count as written, and would be read as if they
/// were on the disk.
fn forget_cached(file: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and no memory is involved.
    if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the same. It is advice: where the kernel keeps pages all the same, as in a file system in memory, nothing is lost.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn lock(file: &OwnedFd, path: &Path) -> Result<()> {
    // SAFETY: the descriptor is open, and no memory is involved.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EWOULDBLOCK) => Err(Error::busy(format!(
            "{} is in use by another process; stop that one, or choose another device",
            path.display()
        ))),
        _ => Err(os(path, "cannot be locked", &e)),
    }
}

/// A new file survives a power cut only when its directory was synced.
fn sync_directory(path: &Path) -> Result<()> {
    let directory = parent(path);
    std::fs::File::open(&directory)
        .and_then(|d| d.sync_all())
        .map_err(|e| os(&directory, "cannot be made to keep its new file", &e))
}

fn file_flags(file: &OwnedFd, flags: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open, and no memory is involved.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The alignment that direct I/O on this file needs, if the kernel tells (Linux 6.1 and up); 0 means it is refused.
fn direct_alignment(file: &OwnedFd) -> Option<u32> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let (fd, empty) = (file.as_raw_fd(), c"".as_ptr());
    // SAFETY: the path is a valid C string, and `answer` a place for the answer.
    let result = unsafe { libc::statx(fd, empty, libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, answer.as_mut_ptr()) };
    // SAFETY: zeroed above, which is a valid value, and perhaps filled in.
    let answer = unsafe { answer.assume_init() };
    (result == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0).then_some(answer.stx_dio_offset_align)
}

fn file_refuses_direct(file: &OwnedFd) -> bool {
    direct_alignment(file) == Some(0)
}

/// The physical sector of a block device.
fn block_sector(file: &OwnedFd, path: &Path) -> Result<usize> {
    let mut sector: libc::c_uint = 0;
    // SAFETY: this request writes one unsigned int.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKPBSZGET, &raw mut sector) } != 0 {
        return Err(os(path, "does not tell its sector size", &io::Error::last_os_error()));
    }
    Ok(sector as usize)
}

fn choose_sector(path: &Path, detected: usize, wanted: Option<usize>) -> Result<usize> {
    let sector = wanted.unwrap_or(detected);
    if sector.is_power_of_two() && (SECTOR_MIN..=SECTOR_MAX).contains(&sector) {
        return Ok(sector);
    }
    Err(Error::invalid(format!(
        "{} has sectors of {sector} bytes, but a power of two from {SECTOR_MIN} to {SECTOR_MAX} is needed; \
         if the device never tears smaller pieces, set the sector size by hand",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sectors_are_refused_and_an_override_wins() {
        let path = Path::new("/dev/some");
        assert_eq!(choose_sector(path, 512, None).unwrap(), 512);
        assert_eq!(choose_sector(path, 16384, Some(4096)).unwrap(), 4096);
        for (detected, wanted) in [(16384, None), (0, None), (4096, Some(1000)), (4096, Some(256)), (520, None)] {
            let error = choose_sector(path, detected, wanted).unwrap_err();
            assert!(error.text.contains("by hand"), "{error}");
        }
    }
}

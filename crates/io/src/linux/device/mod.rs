//! A file or block device behind the device trait.
//!
//! Invariants:
//! - After a failed write or sync nothing is believed: the device is poisoned, for everybody who shares its
//!   `Poison`, also if the future that would have learned of the failure is gone.
//! - `len` only ever names bytes that were prewritten (or that the file had when it was opened).
//! - Every access is a whole number of sectors inside `len`; anything else is `Invalid` and does not reach the disk.
//!
//! A failed read does not poison. `Os` stands for EIO (the disk, its cable, its controller), `Corrupt` for what the
//! medium or the file system says it has lost (EILSEQ, ENODATA, EBADMSG, EUCLEAN) and for a file that is shorter
//! than it was: the bytes have to come from another copy.

pub(super) mod open;
mod pulse;

pub use pulse::Pulse;

use super::ring::{Kind, Operation, Outcome, Ring};
use crate::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Bytes of one read or write, at most.
pub const IO_BYTES_MAX: usize = 64 << 20;
/// Bytes of one write of zeroes. Large enough to stream, small enough not to keep others waiting for long.
const ZERO_WRITE_BYTES: usize = 1 << 20;

/// The mark of a failed device. Clones share it: devices on the same disk (one for each worker) fail together.
#[derive(Clone, Debug, Default)]
pub struct Poison(Arc<OnceLock<String>>);

impl Poison {
    /// A mark that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the mark. The first cause is kept.
    pub fn set(&self, cause: impl std::fmt::Display) {
        self.0.get_or_init(|| cause.to_string());
    }

    /// What failed first, if anything did.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// `DeviceFailed` once the mark is set.
    pub fn check(&self) -> Result<()> {
        match self.cause() {
            None => Ok(()),
            Some(cause) => Err(Error::device_failed(format!(
                "a write or sync failed ({cause}); restart on a sound device, nothing more is written to this one"
            ))),
        }
    }
}

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Make the file if it is missing (its directory must exist).
    pub create: bool,
    /// Sector bytes, a power of two from 512 to 4,096, in place of what is detected.
    pub sector: Option<usize>,
    /// Go through the page cache even if direct I/O works.
    pub buffered: bool,
    /// Only read: the kernel refuses every write. The device is locked all the same.
    pub read_only: bool,
    /// Fail together with other devices.
    pub poison: Poison,
    /// Says how long it has not answered, together with other devices.
    pub pulse: Pulse,
}

struct Inner {
    ring: Ring,
    file: Rc<OwnedFd>,
    path: PathBuf,
    block_device: bool,
    direct: bool,
    sector: usize,
    len: Cell<u64>,
    poison: Poison,
    pulse: Pulse,
    /// Changes of the length, one at a time.
    resize: tokio::sync::Mutex<()>,
}

/// A file or block device of one worker. A handle: clones share the device.
#[derive(Clone)]
pub struct FileDevice(Rc<Inner>);

/// `Invalid` unless a range is whole sectors within a device of `size` bytes.
pub(super) fn check_range((sector, size): (usize, u64), at: u64, len: u64) -> Result<()> {
    let inside = at.checked_add(len).is_some_and(|end| end <= size);
    if inside && (at | len).is_multiple_of(sector as u64) {
        return Ok(());
    }
    Err(Error::invalid(format!("{len} bytes are not whole {sector}-byte sectors within {size} bytes")))
}

/// As `check_range`, for what is read or written at once.
pub(super) fn check_io(shape: (usize, u64), at: u64, len: usize) -> Result<()> {
    if len > IO_BYTES_MAX {
        return Err(Error::invalid(format!("{len} bytes are more than one access may have ({IO_BYTES_MAX})")));
    }
    check_range(shape, at, len as u64)
}

impl FileDevice {
    /// Opens `path` for this worker alone: `Busy` if another process has it. Blocks for the time of a few system
    /// calls, so it is for the start of a worker.
    pub fn open(ring: &Ring, path: &Path, options: DeviceOptions) -> Result<Self> {
        let opened = open::open(path, &options)?;
        Ok(Self(Rc::new(Inner {
            ring: ring.clone(),
            file: Rc::new(opened.file),
            path: path.to_owned(),
            block_device: opened.block_device,
            direct: opened.direct,
            sector: opened.sector,
            len: Cell::new(opened.len),
            poison: options.poison,
            pulse: options.pulse,
            resize: tokio::sync::Mutex::new(()),
        })))
    }

    /// Whether reads and writes go past the page cache. If not, the file system refused it or it was not wanted;
    /// durability is the same, speed and memory use are not.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }

    /// Whether this is a raw block device, whose length is fixed.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.0.block_device
    }

    /// Path of the file or block device, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The device's mark of failure.
    #[must_use]
    pub fn poison(&self) -> &Poison {
        &self.0.poison
    }

    fn place(&self, what: &str, at: u64) -> String {
        format!("{}: {what} at byte {at}", self.0.path.display())
    }

    fn check_range(&self, what: &str, at: u64, len: u64) -> Result<()> {
        check_range((self.0.sector, self.0.len.get()), at, len).map_err(|e| e.at(self.place(what, at)))
    }

    fn check_io(&self, what: &str, at: u64, len: usize) -> Result<()> {
        check_io((self.0.sector, self.0.len.get()), at, len).map_err(|e| e.at(self.place(what, at)))
    }

    async fn run(&self, kind: Kind, at: u64, buf: Option<AlignedBuf>, poison: Option<Poison>) -> Outcome {
        let operation = Operation { kind, file: Rc::clone(&self.0.file), at, buf, unit: self.0.sector, poison };
        self.0.ring.run(operation).await
    }

    /// An operation whose failure poisons, and which does not count if the device failed while it ran.
    async fn run_or_poison(&self, what: &str, kind: Kind, at: u64, buf: Option<AlignedBuf>) -> Answer {
        if let Err(e) = self.0.poison.check() {
            return (buf, Err(e.at(self.place(what, at))));
        }
        let in_flight = self.0.pulse.write();
        let outcome = self.run(kind, at, buf, Some(self.0.poison.clone())).await;
        drop(in_flight);
        (outcome.buf, self.0.poison.check().map_err(|e| e.at(self.place(what, at))))
    }

    /// Writes zeroes over a range that need not be inside `len` yet. The failure is the system's own; what it means
    /// is for the caller to say.
    async fn zero(&self, at: u64, end: u64) -> io::Result<()> {
        let mut buf = AlignedBuf::zeroed(ZERO_WRITE_BYTES.min((end - at) as usize));
        let mut next = at;
        while next < end {
            buf.set_len(buf.capacity().min((end - next) as usize));
            let len = buf.len() as u64;
            let outcome = self.run(Kind::Write { durable: false }, next, Some(buf), None).await;
            outcome.result?;
            buf = outcome.buf.expect("a write gives its buffer back");
            next += len;
        }
        Ok(())
    }

    /// Makes room for `[old, new)`, fills it with zeroes, and makes both durable.
    async fn extend(&self, old: u64, new: u64) -> io::Result<()> {
        // Reserving first gives long extents, and ENOSPC before anything is written.
        let reserve = Kind::Allocate { mode: 0, bytes: new - old };
        match self.run(reserve, old, None, None).await.result {
            Err(e) if unsupported(&e) => {}
            other => other?,
        }
        self.zero(old, new).await?;
        self.run(Kind::SyncAll, 0, None, None).await.result
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        let file = self.0.file.try_clone()?;
        // It may take long for a large file, and no ring of an older kernel can do it.
        let job = move || match ftruncate(file.as_fd(), len) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        tokio::task::spawn_blocking(job).await.map_err(io::Error::other)??;
        self.run(Kind::SyncAll, 0, None, None).await.result
    }

    /// Poisons, and says so.
    fn fail(&self, what: &str, error: &io::Error) -> Error {
        self.0.poison.set(error);
        Error::device_failed(format!("{}: {what} failed: {error}", self.0.path.display()))
    }

    async fn grow(&self, old: u64, new: u64) -> Result<()> {
        let Err(error) = self.extend(old, new).await else {
            self.0.len.set(new);
            return Ok(());
        };
        if !no_space(&error) {
            return Err(self.fail("growing", &error));
        }
        self.truncate(old).await.map_err(|e| self.fail("taking back growth", &e))?;
        Err(Error::no_space(format!(
            "{} cannot grow to {new} bytes: {error}; free some space on its file system or give the device less",
            self.0.path.display()
        )))
    }
}

type Answer = (Option<AlignedBuf>, Result<()>);

fn ftruncate(file: BorrowedFd<'_>, len: u64) -> i32 {
    // SAFETY: the descriptor is open, and no memory is involved.
    unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) }
}

pub(super) fn unsupported(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
}

/// A file system that is full, a quota, or a limit on the size of files.
pub(super) fn no_space(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

pub(super) fn read_error(e: &io::Error) -> Error {
    let lost = matches!(e.raw_os_error(), Some(libc::EILSEQ | libc::ENODATA | libc::EBADMSG | libc::EUCLEAN));
    match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupt("the file is shorter than it was"),
        _ if lost => Error::corrupt(format!("the medium has lost these bytes: {e}")),
        _ => Error::os(format!("the disk gave no data: {e}")),
    }
}

impl AsRawFd for FileDevice {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.file.as_raw_fd()
    }
}

impl Device for FileDevice {
    fn sector(&self) -> usize {
        self.0.sector
    }

    fn len(&self) -> u64 {
        self.0.len.get()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.0.poison.check().map_err(|e| e.at(self.place("read", at)))?;
        self.check_io("read", at, len)?;
        let buf = AlignedBuf::zeroed(len);
        if len == 0 {
            return Ok(buf);
        }
        let in_flight = self.0.pulse.read();
        let outcome = self.run(Kind::Read, at, Some(buf), None).await;
        drop(in_flight);
        match outcome.result {
            Ok(()) => Ok(outcome.buf.expect("a read gives its buffer back")),
            Err(e) => Err(read_error(&e).at(self.place("read", at))),
        }
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        if let Err(e) = self.check_io("write", at, buf.len()) {
            return (buf, Err(e));
        }
        if buf.is_empty() && durability == Durability::Cached {
            let alive = self.0.poison.check();
            return (buf, alive);
        }
        let kind = Kind::Write { durable: durability == Durability::Durable };
        let (buf, result) = self.run_or_poison("write", kind, at, Some(buf)).await;
        (buf.expect("a write gives its buffer back"), result)
    }

    async fn sync(&self) -> Result<()> {
        self.run_or_poison("sync", Kind::SyncData, 0, None).await.1
    }

    /// On a block device the length is fixed: more is `NoSpace`, less is `Invalid`. A future that is dropped on the
    /// way may leave the file longer than `len` says, never shorter.
    async fn set_len(&self, len: u64) -> Result<()> {
        let _alone = self.0.resize.lock().await;
        self.0.poison.check().map_err(|e| e.at(self.place("resize", len)))?;
        let old = self.0.len.get();
        if !len.is_multiple_of(self.0.sector as u64) || i64::try_from(len).is_err() {
            let text = format!("a length of {len} bytes is not a whole number of {}-byte sectors", self.0.sector);
            return Err(Error::invalid(text).at(self.0.path.display()));
        }
        if self.0.block_device && len != old {
            let text = format!("a block device of {old} bytes cannot have {len}");
            let error = if len > old { Error::no_space(text) } else { Error::invalid(text) };
            return Err(error.at(self.0.path.display()));
        }
        match len.cmp(&old) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => self.grow(old, len).await,
            std::cmp::Ordering::Less => {
                // From here on nobody may count on the bytes behind the new end, even if shrinking fails.
                self.0.len.set(len);
                self.truncate(len).await.map_err(|e| self.fail("shrinking", &e))
            }
        }
    }

    /// A file system that knows no holes keeps the bytes, which is allowed, too.
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.0.poison.check().map_err(|e| e.at(self.place("punch", at)))?;
        self.check_range("punch", at, len)?;
        if len == 0 {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match self.run(Kind::Allocate { mode, bytes: len }, at, None, None).await.result {
            Err(e) if !unsupported(&e) => Err(self.fail("punching a hole", &e)),
            _ => Ok(()),
        }
    }

    /// `NoSpace` if a punched range cannot be filled again; the device is not poisoned by that.
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.0.poison.check().map_err(|e| e.at(self.place("prewrite", at)))?;
        self.check_range("prewrite", at, len)?;
        if len == 0 {
            return Ok(());
        }
        match self.zero(at, at + len).await {
            Ok(()) => self.sync().await,
            Err(e) if no_space(&e) => {
                Err(Error::no_space(format!("the file system is full: {e}")).at(self.place("prewrite", at)))
            }
            Err(e) => Err(self.fail("prewriting", &e)),
        }
    }
}

//! liblsvd: the disk as a C library. The contract is `include/lsvd.h`; here are its functions, and nothing else.
//!
//! Invariants: no panic leaves a function; pointers are checked for null, and lengths against the disk, before a buffer
//! is touched; what C holds of a disk is a number that is looked up (`handles`); every error sets `errno` and the
//! thread's text.

mod errors;

use freebs_capi::{Table, bytes, bytes_mut, error, guard, length, null, status, text};
use freebs_disk::{CreateOptions, Disk, Error, PIECE_HEADER_BYTES, Version, Writes};
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use errors::error_lsvd;

/// `LSVD_CURRENT`, `LSVD_ANY` and `LSVD_ERROR`.
pub const ALL_ONES: u64 = u64::MAX;
/// Bytes that `get_writes_lsvd` puts into one buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// A disk, as C has it: only the address means something.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct lsvd_disk(());

/// Writes on their way, as C has them.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct lsvd_writes(());

static DISKS: Table<Disk> = Table::new("disk", "disks");
static WRITES: Table<Arc<Mutex<Writes>>> = Table::new("stream of writes", "disks");

/// # Safety
/// Null, or a string that ends with a zero byte.
unsafe fn path<'a>(name: *const c_char) -> Result<&'a Path, Error> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller's promise.
    let bytes = unsafe { text("path", name) }?;
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

fn disk(d: *const lsvd_disk) -> Result<Disk, Error> {
    DISKS.get(d)
}

/// A length that is one of a range of the disk: a buffer of another length is not even looked at.
fn within(disk: &Disk, len: u64) -> Result<usize, Error> {
    if len > disk.size() {
        return Err(Error::invalid(format!("{len} bytes are more than the disk's {}", disk.size())));
    }
    length(len)
}

/// A disk that was opened, as C has it.
fn opened(disk: impl FnOnce() -> Result<Disk, Error>) -> *mut lsvd_disk {
    let disk = guard(|| {
        DISKS.ready()?;
        Ok(DISKS.put(disk()?))
    });
    disk.unwrap_or_else(|e| null(&e))
}

/// Bytes for C. `size` is a place for their number; it is set only if there are bytes.
///
/// # Safety
/// `size` is not null, and a place for a `size_t`.
unsafe fn give(data: &[u8], size: *mut usize) -> *mut c_char {
    // SAFETY: malloc has no demands; the result is checked. It may be null for no bytes, so there is always one.
    let buf = unsafe { libc::malloc(data.len().max(1)) }.cast::<u8>();
    if buf.is_null() {
        return errors::no_memory();
    }
    // SAFETY: as many bytes were allocated, the two do not overlap, and `size` is the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), buf, data.len());
        size.write(data.len());
    }
    buf.cast()
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn create_lsvd(pathname: *const c_char, size: u64) -> *mut lsvd_disk {
    // SAFETY: passed on.
    unsafe { create_log_lsvd(pathname, size, 0) }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn create_log_lsvd(pathname: *const c_char, size: u64, log_bytes: u64) -> *mut lsvd_disk {
    opened(|| {
        let options = CreateOptions { log_bytes: Some(log_bytes).filter(|b| *b > 0), ..CreateOptions::default() };
        // SAFETY: passed on.
        Disk::create_with(unsafe { path(pathname) }?, size, &options)
    })
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open_lsvd(pathname: *const c_char) -> *mut lsvd_disk {
    // SAFETY: passed on.
    opened(|| Disk::open(unsafe { path(pathname) }?))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cleanup_lsvd(old_pathname: *const c_char, new_pathname: *const c_char) -> c_int {
    status(guard(|| {
        DISKS.ready()?;
        // SAFETY: passed on.
        let (old, new) = unsafe { (path(old_pathname)?, path(new_pathname)?) };
        let old = Disk::open(old)?;
        old.cleanup_into(new)?;
        old.close()
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cleanup_disk_lsvd(lsvd: *mut lsvd_disk, new_pathname: *const c_char) -> c_int {
    // SAFETY: passed on.
    status(guard(|| disk(lsvd)?.cleanup_into(unsafe { path(new_pathname) }?)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read_lsvd(
    lsvd: *mut lsvd_disk,
    buf: *mut c_char,
    len: u64,
    offset: u64,
    version: u64,
) -> c_int {
    status(guard(|| {
        let disk = disk(lsvd)?;
        let len = within(&disk, len)?;
        // SAFETY: by the contract as long and nobody else's; it is only written to.
        let buf = unsafe { bytes_mut(buf, len) }?;
        match version {
            ALL_ONES => disk.read(buf, offset),
            v => disk.read_at(buf, offset, Version(v)),
        }
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write_lsvd(
    lsvd: *mut lsvd_disk,
    buf: *const c_char,
    len: u64,
    offset: u64,
    version: u64,
) -> c_int {
    status(guard(|| {
        let disk = disk(lsvd)?;
        // SAFETY: passed on.
        let buf = unsafe { bytes(buf, within(&disk, len)?) }?;
        match version {
            0 => disk.write(buf, offset),
            v => disk.write_as(buf, offset, Version(v)),
        }
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write_durable_lsvd(lsvd: *mut lsvd_disk, buf: *const c_char, len: u64, offset: u64) -> c_int {
    status(guard(|| {
        let disk = disk(lsvd)?;
        // SAFETY: passed on.
        disk.write_durable(unsafe { bytes(buf, within(&disk, len)?) }?, offset)
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trim_lsvd(lsvd: *mut lsvd_disk, len: u64, offset: u64) -> c_int {
    status(guard(|| disk(lsvd)?.trim(offset, len)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zero_lsvd(lsvd: *mut lsvd_disk, len: u64, offset: u64) -> c_int {
    status(guard(|| disk(lsvd)?.zero(offset, len)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync_lsvd(lsvd: *mut lsvd_disk) -> c_int {
    status(guard(|| disk(lsvd)?.fsync()))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_version_lsvd(lsvd: *mut lsvd_disk) -> u64 {
    number(guard(|| Ok(disk(lsvd)?.version()?.0)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_size_lsvd(lsvd: *mut lsvd_disk) -> u64 {
    number(guard(|| Ok(disk(lsvd)?.size())))
}

fn number(r: Result<u64, Error>) -> u64 {
    r.unwrap_or_else(|e| {
        error(&e);
        ALL_ONES
    })
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_writes_lsvd(lsvd: *mut lsvd_disk, first_version: u64, size: *mut usize) -> *mut c_char {
    let all = guard(|| {
        if size.is_null() {
            return Err(Error::invalid("the place for the size is a null pointer"));
        }
        let mut all = Vec::new();
        for piece in disk(lsvd)?.get_writes(Version(first_version))? {
            let piece = piece?;
            if all.len() + piece.len() > BUFFER_BYTES_MAX {
                return Ok(Err(errors::too_big as fn() -> _));
            }
            if all.try_reserve(piece.len()).is_err() {
                return Ok(Err(errors::no_memory as fn() -> _));
            }
            all.extend_from_slice(&piece);
        }
        Ok(Ok(all))
    });
    match all {
        // SAFETY: checked above not to be null; a place for a `size_t` by the contract.
        Ok(Ok(all)) => unsafe { give(&all, size) },
        Ok(Err(say)) => say(),
        Err(e) => null(&e),
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_lsvd(buf: *mut c_char) {
    // SAFETY: null, or by the contract a buffer of `give`, which took it from malloc.
    unsafe { libc::free(buf.cast()) };
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writes_lsvd(lsvd: *mut lsvd_disk, first_version: u64) -> *mut lsvd_writes {
    let writes = guard(|| Ok(WRITES.put(Arc::new(Mutex::new(disk(lsvd)?.get_writes(Version(first_version))?)))));
    writes.unwrap_or_else(|e| null(&e))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn next_writes_lsvd(writes: *mut lsvd_writes, size: *mut usize) -> *mut c_char {
    let piece = guard(|| {
        if size.is_null() {
            return Err(Error::invalid("the place for the size is a null pointer"));
        }
        let writes = WRITES.get(writes)?;
        let mut writes = writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.next().transpose()
    });
    match piece {
        // SAFETY: checked above not to be null; a place for a `size_t` by the contract.
        Ok(Some(p)) => unsafe { give(&p, size) },
        Ok(None) => {
            // SAFETY: checked above.
            unsafe { size.write(0) };
            freebs_capi::set_errno(0);
            std::ptr::null_mut()
        }
        Err(e) => null(&e),
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_writes_lsvd(writes: *mut lsvd_writes) {
    if !writes.is_null() {
        status(guard(|| WRITES.take(writes)));
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn put_writes_lsvd(
    lsvd: *mut lsvd_disk,
    first_version: u64,
    buf: *const c_char,
    size: usize,
) -> c_int {
    status(guard(|| {
        let disk = disk(lsvd)?;
        // SAFETY: passed on.
        let buf = unsafe { bytes(buf, length(size as u64)?) }?;
        if first_version != ALL_ONES && buf.len() >= PIECE_HEADER_BYTES {
            let since = freebs_disk::first_version(buf)?;
            if since.0 != first_version {
                return Err(Error::invalid(format!(
                    "the writes begin behind version {since}, not behind {first_version}"
                )));
            }
        }
        disk.put_writes(buf)
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_lsvd(lsvd: *mut lsvd_disk) -> c_int {
    if lsvd.is_null() {
        return 0;
    }
    status(guard(|| DISKS.take(lsvd)?.close()))
}

/// Major and minor number.
#[unsafe(no_mangle)]
pub extern "C" fn library_version_lsvd() -> u32 {
    1
}

//! liblsvd: the disk as a C library. The contract is `include/lsvd.h`; here are its functions, and nothing else.
//!
//! Invariants: no panic leaves a function; pointers are checked for null before they are used, lengths for what a
//! buffer can have; every error sets `errno` and the thread's text.

mod errors;

use errors::{error, invalid, null, status};
use freebs_disk::{CreateOptions, Disk, Error, PIECE_HEADER_BYTES, Version, Writes};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub use errors::error_lsvd;

/// `LSVD_CURRENT`, `LSVD_ANY` and `LSVD_ERROR`.
pub const ALL_ONES: u64 = u64::MAX;
/// Bytes that `get_writes_lsvd` puts into one buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;
/// Bytes before a buffer that is given out, for its length.
const PREFIX: usize = 16;

/// A disk, as C has it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct lsvd_disk(Disk);

/// Writes on their way, as C has them.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct lsvd_writes(Writes);

/// Runs the body of a function; a panic becomes an error.
fn guard<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Error::bug("a mistake in this library; see stderr")))
}

/// # Safety
/// Null, or a string that ends with a zero byte.
unsafe fn path<'a>(name: *const c_char) -> Result<&'a Path, Error> {
    use std::os::unix::ffi::OsStrExt;
    if name.is_null() {
        return Err(invalid("a path is a null pointer"));
    }
    // SAFETY: not null, and the caller's promise.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

/// # Safety
/// Null, or what `create_lsvd` or `open_lsvd` gave and `close_lsvd` did not take.
unsafe fn disk<'a>(d: *const lsvd_disk) -> Result<&'a Disk, Error> {
    // SAFETY: the caller's promise.
    unsafe { d.as_ref() }.map(|d| &d.0).ok_or_else(|| invalid("the disk is a null pointer"))
}

fn length(len: u64) -> Result<usize, Error> {
    isize::try_from(len).map(|n| n as usize).map_err(|_| invalid("a length that no buffer has"))
}

/// # Safety
/// Null, or `len` bytes that nobody changes during the call.
unsafe fn bytes<'a>(buf: *const c_char, len: u64) -> Result<&'a [u8], Error> {
    let len = length(len)?;
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("the buffer is a null pointer")),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) }),
    }
}

fn boxed(disk: Result<Disk, Error>) -> *mut lsvd_disk {
    match disk {
        Ok(d) => Box::into_raw(Box::new(lsvd_disk(d))),
        Err(e) => null(&e),
    }
}

/// Bytes for C, with their length in front, so that `free_lsvd` needs none.
fn give(data: &[u8], size: *mut usize) -> *mut c_char {
    // SAFETY: checked by the callers not to be null; a place for a `size_t` by the contract.
    unsafe { size.write(data.len()) };
    // SAFETY: malloc has no demands; the result is checked.
    let start = unsafe { libc::malloc(PREFIX + data.len()) }.cast::<u8>();
    if start.is_null() {
        return null(&Error::retry("no memory for a buffer"));
    }
    // SAFETY: as many bytes were allocated, and the two do not overlap.
    unsafe {
        start.cast::<usize>().write(data.len());
        let buf = start.add(PREFIX);
        std::ptr::copy_nonoverlapping(data.as_ptr(), buf, data.len());
        buf.cast()
    }
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
    boxed(guard(|| {
        let options = CreateOptions { log_bytes: Some(log_bytes).filter(|b| *b > 0), ..CreateOptions::default() };
        // SAFETY: passed on.
        Disk::create_with(unsafe { path(pathname) }?, size, &options)
    }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open_lsvd(pathname: *const c_char) -> *mut lsvd_disk {
    // SAFETY: passed on.
    boxed(guard(|| Disk::open(unsafe { path(pathname) }?)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cleanup_lsvd(old_pathname: *const c_char, new_pathname: *const c_char) -> c_int {
    status(guard(|| {
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
    status(guard(|| unsafe { disk(lsvd)?.cleanup_into(path(new_pathname)?) }))
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
        // SAFETY: passed on.
        let disk = unsafe { disk(lsvd) }?;
        let len = length(len)?;
        if buf.is_null() && len > 0 {
            return Err(invalid("the buffer is a null pointer"));
        }
        let buf: &mut [u8] = match len {
            0 => &mut [],
            // SAFETY: not null, and by the contract as long and nobody else's; it is only written to.
            _ => unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) },
        };
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
        // SAFETY: passed on.
        let (disk, buf) = unsafe { (disk(lsvd)?, bytes(buf, len)?) };
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
    // SAFETY: passed on.
    status(guard(|| unsafe { disk(lsvd)?.write_durable(bytes(buf, len)?, offset) }))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trim_lsvd(lsvd: *mut lsvd_disk, len: u64, offset: u64) -> c_int {
    // SAFETY: passed on.
    status(guard(|| unsafe { disk(lsvd) }?.trim(offset, len)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zero_lsvd(lsvd: *mut lsvd_disk, len: u64, offset: u64) -> c_int {
    // SAFETY: passed on.
    status(guard(|| unsafe { disk(lsvd) }?.zero(offset, len)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync_lsvd(lsvd: *mut lsvd_disk) -> c_int {
    // SAFETY: passed on.
    status(guard(|| unsafe { disk(lsvd) }?.fsync()))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_version_lsvd(lsvd: *mut lsvd_disk) -> u64 {
    // SAFETY: passed on.
    number(guard(|| Ok(unsafe { disk(lsvd) }?.version()?.0)))
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_size_lsvd(lsvd: *mut lsvd_disk) -> u64 {
    // SAFETY: passed on.
    number(guard(|| Ok(unsafe { disk(lsvd) }?.size())))
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
            return Err(invalid("the place for the size is a null pointer"));
        }
        let mut all = Vec::new();
        // SAFETY: passed on.
        for piece in unsafe { disk(lsvd) }?.get_writes(Version(first_version))? {
            all.extend_from_slice(&piece?);
            if all.len() > BUFFER_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(all))
    });
    match all {
        Ok(Some(all)) => give(&all, size),
        Ok(None) => errors::too_big(),
        Err(e) => null(&e),
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_lsvd(buf: *mut c_char) {
    if !buf.is_null() {
        // SAFETY: by the contract a buffer of `give`, which allocated from `PREFIX` bytes before it on.
        unsafe { libc::free(buf.sub(PREFIX).cast()) };
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writes_lsvd(lsvd: *mut lsvd_disk, first_version: u64) -> *mut lsvd_writes {
    // SAFETY: passed on.
    match guard(|| unsafe { disk(lsvd) }?.get_writes(Version(first_version))) {
        Ok(w) => Box::into_raw(Box::new(lsvd_writes(w))),
        Err(e) => null(&e),
    }
}

/// # Safety
/// See `lsvd.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn next_writes_lsvd(writes: *mut lsvd_writes, size: *mut usize) -> *mut c_char {
    let piece = guard(|| {
        if size.is_null() {
            return Err(invalid("the place for the size is a null pointer"));
        }
        // SAFETY: null, or by the contract what `writes_lsvd` gave, used by one thread at a time.
        let w = unsafe { writes.as_mut() }.ok_or_else(|| invalid("the writes are a null pointer"))?;
        w.0.next().transpose()
    });
    match piece {
        Ok(Some(p)) => give(&p, size),
        Ok(None) => {
            // SAFETY: checked above.
            unsafe { size.write(0) };
            errors::set_errno(0);
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
        let _ = guard(|| {
            // SAFETY: by the contract what `writes_lsvd` gave, and its last use.
            drop(unsafe { Box::from_raw(writes) });
            Ok(())
        });
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
        // SAFETY: passed on.
        let (disk, buf) = unsafe { (disk(lsvd)?, bytes(buf, size as u64)?) };
        if first_version != ALL_ONES && buf.len() >= PIECE_HEADER_BYTES {
            let since = freebs_disk::first_version(buf)?;
            if since.0 != first_version {
                return Err(invalid(format!("the writes begin behind version {since}, not behind {first_version}")));
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
    // SAFETY: by the contract what `create_lsvd` or `open_lsvd` gave, and its last use.
    status(guard(|| unsafe { Box::from_raw(lsvd) }.0.close()))
}

/// Major and minor number.
#[unsafe(no_mangle)]
pub extern "C" fn library_version_lsvd() -> u32 {
    1
}

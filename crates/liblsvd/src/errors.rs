//! Errors as C knows them: a number, and a text for the thread that made the call.

use freebs_disk::{Error, ErrorKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// What each kind is in C; `lsvd.h` says what it asks of the caller.
fn number(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Retry => libc::EAGAIN,
        ErrorKind::Fenced => libc::EACCES,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Corrupt => libc::EBADMSG,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::DeviceFailed | ErrorKind::Os => libc::EIO,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Bug => libc::ENOTRECOVERABLE,
    }
}

pub(crate) fn set_errno(n: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = n };
}

fn note(n: c_int, text: &str) -> c_int {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // At the end of a thread its text is gone already; the number is there always.
    let _ = TEXT.try_with(|t| *t.borrow_mut() = text);
    set_errno(n);
    -n
}

/// Notes an error for the thread. Gives its negative number.
pub(crate) fn error(e: &Error) -> c_int {
    note(number(e.kind), &e.text)
}

pub(crate) fn status<T>(r: Result<T, Error>) -> c_int {
    match r {
        Ok(_) => 0,
        Err(e) => error(&e),
    }
}

/// Notes an error; for functions that give a pointer.
pub(crate) fn null<T>(e: &Error) -> *mut T {
    error(e);
    std::ptr::null_mut()
}

pub(crate) fn too_big<T>() -> *mut T {
    note(libc::EFBIG, "more writes than one buffer may hold; take them piece by piece with writes_lsvd");
    std::ptr::null_mut()
}

pub(crate) fn no_memory<T>() -> *mut T {
    note(libc::ENOMEM, "no memory for the buffer; take the writes piece by piece with writes_lsvd");
    std::ptr::null_mut()
}

pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::invalid(text)
}

/// What went wrong last in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn error_lsvd() -> *const c_char {
    TEXT.try_with(|t| t.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

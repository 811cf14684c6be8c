//! Errors as C knows them: a number, and a text for the thread that made the call.

use freebs_types::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// The number of each kind; the headers say what it asks of the caller.
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

/// Sets the thread's `errno`.
pub fn set_errno(n: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = n };
}

/// Notes an error of this number for the thread. Gives the negative number.
pub fn note(n: c_int, text: &str) -> c_int {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // At the end of a thread its text is gone already; the number is there always.
    let _ = TEXT.try_with(|t| *t.borrow_mut() = text);
    set_errno(n);
    -n
}

/// Notes an error for the thread. Gives its negative number.
pub fn error(e: &Error) -> c_int {
    note(number(e.kind), &e.text)
}

/// 0, or the negative number of the error, which it notes.
pub fn status<T>(r: Result<T>) -> c_int {
    match r {
        Ok(_) => 0,
        Err(e) => error(&e),
    }
}

/// Notes an error; for functions that give a pointer.
pub fn null<T>(e: &Error) -> *mut T {
    error(e);
    std::ptr::null_mut()
}

/// The text of the error that this thread noted last; an empty one before the first. Valid until the next.
#[must_use]
pub fn last_text() -> *const c_char {
    TEXT.try_with(|t| t.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

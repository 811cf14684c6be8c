//! Errors of this library alone, and the text of the last one.

use freebs_capi::{last_text, note};
use std::ffi::c_char;

pub(crate) fn too_big<T>() -> *mut T {
    note(libc::EFBIG, "more writes than one buffer may hold; take them piece by piece with writes_lsvd");
    std::ptr::null_mut()
}

pub(crate) fn no_memory<T>() -> *mut T {
    note(libc::ENOMEM, "no memory for the buffer; take the writes piece by piece with writes_lsvd");
    std::ptr::null_mut()
}

/// The text of the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn error_lsvd() -> *const c_char {
    last_text()
}

//! Arguments as C gives them.

use freebs_types::{Error, Result};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function; a panic becomes an error.
///
/// # Errors
/// Those of the body; `Bug` if it panics.
pub fn guard<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Error::bug("a mistake in this library; see stderr")))
}

/// A length that a buffer can have.
///
/// # Errors
/// `Invalid` if none can.
pub fn length(len: u64) -> Result<usize> {
    isize::try_from(len).map(|n| n as usize).map_err(|_| Error::invalid("a length that no buffer has"))
}

/// A string without its end. `noun` says in the error which one it is.
///
/// # Errors
/// `Invalid` for a null pointer.
///
/// # Safety
/// Null, or a string that ends with a zero byte and that nobody changes as long as the result is used.
pub unsafe fn text<'a>(noun: &str, at: *const c_char) -> Result<&'a [u8]> {
    if at.is_null() {
        return Err(Error::invalid(format!("the {noun} is a null pointer")));
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// Bytes to be read. Of no bytes the pointer is not looked at.
///
/// # Errors
/// `Invalid` for a null pointer.
///
/// # Safety
/// Null, or `len` bytes that nobody changes as long as the result is used.
pub unsafe fn bytes<'a>(buf: *const c_char, len: usize) -> Result<&'a [u8]> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null_buffer()),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// Bytes to be written, and not read before.
///
/// # Errors
/// `Invalid` for a null pointer.
///
/// # Safety
/// Null, or `len` bytes that nobody else uses as long as the result is used.
pub unsafe fn bytes_mut<'a>(buf: *mut c_char, len: usize) -> Result<&'a mut [u8]> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null_buffer()),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

fn null_buffer() -> Error {
    Error::invalid("the buffer is a null pointer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn null_and_panics_are_errors() {
        // SAFETY: null is what is tested; the string has an end.
        unsafe {
            assert!(text("name", null()).unwrap_err().text.contains("the name is a null pointer"));
            assert_eq!(text("name", c"abc".as_ptr()), Ok(&b"abc"[..]));
            assert!(bytes(null(), 1).is_err() && bytes_mut(null_mut(), 1).is_err());
            assert_eq!((bytes(null(), 0).unwrap().len(), bytes_mut(null_mut(), 0).unwrap().len()), (0, 0));
        }
        assert!(length(u64::MAX).is_err() && length(1 << 63).is_err());
        assert_eq!(length(4096), Ok(4096));
        assert!(guard::<()>(|| panic!("a test of a panic")).unwrap_err().text.contains("mistake"));
    }
}

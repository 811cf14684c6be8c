//! Errors by what the caller should do. The kind is API, the text is not.

use core::fmt;
use std::borrow::Cow;

/// What an error asks of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ErrorKind {
    /// Nothing was decided; the same request may be sent again (perhaps elsewhere).
    Retry,
    /// A newer attachment generation exists: this driver's right is gone for ever.
    Fenced,
    /// The volume is in use by somebody else.
    Busy,
    /// Bytes do not match their checksum or identity.
    Corrupt,
    /// No space; heals when space is freed.
    NoSpace,
    /// A write or sync failed: the device is poisoned, and nothing on it is believed until it is opened again.
    DeviceFailed,
    /// The request itself is wrong; sending it again will not help.
    Invalid,
    /// What was named does not exist.
    NotFound,
    /// An operating system call failed for a reason outside (permission, missing file, port taken).
    Os,
    /// Our own mistake.
    Bug,
}

/// An error: what to do, and where and why for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind, which says what the caller is to do. Part of the API: code decides by it.
    pub kind: ErrorKind,
    /// Where and why, in one line for people. Not part of the API: it may change at any time.
    pub text: Cow<'static, str>,
}

/// A result whose error says what to do, unless another error is named.
pub type Result<T, E = Error> = core::result::Result<T, E>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        $($(#[$doc])*
        #[doc = concat!("An error of the kind [`ErrorKind::", stringify!($kind), "`]; `text` says where and why.")]
        pub fn $name(text: impl Into<Cow<'static, str>>) -> Self {
            Self { kind: ErrorKind::$kind, text: text.into() }
        })*
    };
}

impl Error {
    constructors! {
        retry => Retry, fenced => Fenced, busy => Busy, corrupt => Corrupt, no_space => NoSpace,
        device_failed => DeviceFailed, invalid => Invalid, not_found => NotFound, os => Os, bug => Bug,
    }

    /// The same error with a place put before its text.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.text = Cow::Owned(format!("{place}: {}", self.text));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

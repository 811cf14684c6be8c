//! The bytes of a target's objects (`docs/formats/backup.md`).
//!
//! Invariant: whatever the bytes are, decoding neither panics nor allocates more than a small multiple of them, and what
//! is decoded is within the maxima of [`crate::limits`] and encodes to the same bytes again.

mod manifest;
mod object;
mod page;
mod small;

pub(crate) use manifest::blocks_of;
pub use manifest::{Details, Manifest, ManifestDetails, ManifestHeader, PageRef};
pub use object::{ObjectHeader, flags};
pub use page::{BlockEntry, Entry, Page, PageHeader};
pub use small::{Marker, Note, note};

use freebs_types::{Error, Result};

/// The version of all structs here.
pub const VERSION: u16 = 2;

/// An identity of 16 bytes, random: of a target, of a backup, of a key. In text 32 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 16]);

/// The name of an object: the SHA-256 of its plain content, or its HMAC with the key of a sealed target.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub [u8; 32]);

/// A moment of a volume, in words of the source. It alone knows the meaning. Zeroes: nothing that can be told again.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Moment(pub [u8; 32]);

impl Moment {
    /// True if the source said nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == [0; 32]
    }
}

fn of_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

macro_rules! hex {
    ($type:ident) => {
        impl $type {
            /// From its text: small hexadecimal digits, neither more nor fewer than it has.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                of_hex(text).map(Self)
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    };
}

hex!(Id);
hex!(Name);

impl Id {
    /// No backup, no key.
    pub const NONE: Self = Self([0; 16]);

    /// True for [`Self::NONE`].
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// Refuses what does not begin as a struct of this magic, version and length does. The checksum is looked at before.
fn check_start(what: &str, start: ([u8; 4], u16, u16), magic: [u8; 4], length: usize) -> Result<()> {
    if start.0 != magic {
        return Err(Error::corrupt(format!("it does not begin as a {what} does")));
    }
    if start.1 != VERSION {
        return Err(Error::invalid(format!(
            "this {what} has version {} of the format, and this program reads version {VERSION}: use the program that made it",
            start.1
        )));
    }
    if usize::from(start.2) != length {
        return Err(damaged(what, "it has a wrong length"));
    }
    Ok(())
}

fn damaged(what: &str, why: &str) -> Error {
    Error::corrupt(format!("the {what} is damaged: {why}"))
}

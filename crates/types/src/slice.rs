//! Pieces of a view's secret, as values. What is done with them is the crate `secrets`' business.

use core::fmt;

/// Bytes of a slice: its number, then one byte for each of the secret's.
pub const SLICE_BYTES: usize = 33;
/// Bytes of a slice under a member's host key: as many, and a tag.
pub const SEALED_SLICE_BYTES: usize = SLICE_BYTES + 16;

/// One member's slice of a view's secret, in clear: some of them together are the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slice(pub [u8; SLICE_BYTES]);

impl Slice {
    /// Which slice it is, from 1 on, in the order of the members.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.0[0]
    }
}

impl fmt::Debug for Slice {
    /// Logs are read by more people than disks are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({}, …)", self.0[0])
    }
}

/// A slice that only the member can read whose host key it was sealed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealedSlice(pub [u8; SEALED_SLICE_BYTES]);

impl Default for SealedSlice {
    fn default() -> Self {
        Self([0; SEALED_SLICE_BYTES])
    }
}

impl fmt::Debug for SealedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedSlice({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

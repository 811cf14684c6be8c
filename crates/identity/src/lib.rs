//! Identities in a cluster with an authority: keys of nodes, and that of the authority. No I/O.

mod certificate;
mod key;
mod tls;

pub use certificate::{CERTIFICATE_BYTES_MAX, certify, check_own, key_of};
pub use key::{SigningKey, is_signed};
pub use tls::{Caller, Tls};

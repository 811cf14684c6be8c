//! Identities in a cluster with an authority: keys of nodes, and that of the authority. No I/O.

mod key;

pub use key::{SigningKey, is_signed};

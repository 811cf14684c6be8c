//! The border to C, which the C libraries share: handles, errors, and arguments that are checked.
//!
//! Invariants: no panic leaves a function ([`guard`]); pointers are checked for null before anything is read or written
//! there; C holds numbers that are looked up ([`Table`]), never addresses; every error sets `errno` and the thread's text.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is an edge crate")]

mod arguments;
mod errors;
mod handles;

pub use arguments::{bytes, bytes_mut, guard, length, text};
pub use errors::{error, last_text, note, null, set_errno, status};
pub use handles::Table;

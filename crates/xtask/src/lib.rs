//! `cargo xtask COMMAND`: one command for each thing that a developer does.
//!
//! Invariants: a step that fails is told with the command that repeats it; exit status 0 is fine, 1 failed, 2 not
//! understood; nothing but the standard library is needed, so that it is built in a few seconds.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it starts programs and takes the time")]

pub mod beside;
pub mod call;
pub mod ci;
pub mod commands;
pub mod count;
pub mod daily;
pub mod failed;
pub mod mutants;
pub mod options;
pub mod watched;

use std::path::PathBuf;

/// How a command ends that does not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Something failed; all has been said.
    Failed,
    /// The command was not understood; what is to be said of it.
    NotUnderstood(String),
}

/// The end of a command.
pub type Done = Result<(), Bad>;

/// The top of the source tree.
#[must_use]
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.filter(|p| p.ends_with("crates/xtask")).unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    here.join("../..").canonicalize().unwrap_or(here)
}

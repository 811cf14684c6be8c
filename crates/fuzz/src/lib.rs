//! Fuzz targets for everything that reads bytes from a network or a disk, and what runs them.
//!
//! A target is a function of bytes that must neither panic nor hold more memory than its bound, and that checks
//! properties of what it decodes. The same function is run by the test suite (a few thousand executions), by the
//! program of this crate (millions), and by libFuzzer (`fuzz/` at the top).
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the runner reads a corpus, keeps findings and takes the time; the targets themselves are deterministic"
)]
#![allow(missing_docs, reason = "the parts of one program, which is all that uses them")]

pub mod corpus;
pub mod cow;
pub mod execute;
pub mod input;
pub mod memory;
pub mod mutate;
pub mod rng;
pub mod runner;
pub mod seal;
pub mod seeds;
pub mod signal;
pub mod targets;

pub use targets::{TARGETS, Target, target};

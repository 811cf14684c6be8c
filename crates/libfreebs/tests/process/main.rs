//! The C library and the Python package on clusters of real processes: as they are installed, with every mistake that a
//! program can make, and with stores that are killed.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests of real processes in real time")]

mod boundary;
mod install;
mod pages;
mod python;
mod secured;
mod tools;

#[path = "../../../client/tests/process/store.rs"]
mod store;
#[allow(dead_code, reason = "other tests than these kill nodes")]
#[path = "../../../client/tests/process/support.rs"]
mod support;

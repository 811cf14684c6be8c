//! Programs on a cluster of real processes, under real kills.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests of real processes in real time")]

mod bank;
mod ends;
mod kv;
mod refusals;
mod store;
mod support;

//! Images: what was written is read, what QEMU wrote is read, and QEMU reads what was written.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "programs of others are given files beside the test"
)]

mod common;
mod damaged;
mod qemu;
mod round;

//! What the process tests share: clusters of real processes, real clients, a client of our own that remembers, and
//! the words a test uses to skip or to report a number.
//!
//! Invariant: only processes that a test itself started are ended, by process id, and none outlives its test.

pub mod cluster;
pub mod device;
pub mod image;
pub mod nbd;
pub mod oracle;
pub mod rng;
pub mod tools;

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURNS: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(|e| e.into_inner())
}

/// Held by a test that measures stalls or loads the machine: nothing else of this binary runs meanwhile.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(|e| e.into_inner())
}

/// Whether the long forms of the tests are asked for (`FREEBS_FULL=1`).
#[must_use]
pub fn full() -> bool {
    std::env::var_os("FREEBS_FULL").is_some_and(|v| v == "1")
}

//! What the process tests share: clusters of real processes, real clients, a client of our own that remembers, and
//! the words a test uses to skip or to report a number.
//!
//! Invariant: only processes that a test itself started are ended, by process id, and none outlives its test.

pub mod cluster;
pub mod device;
pub mod gateway;
pub mod image;
pub mod load;
pub mod nbd;
pub mod oracle;
pub mod plane;
pub mod rng;
pub mod tools;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

static TURNS: RwLock<()> = RwLock::new(());

/// The right to run, for as long as a test holds it. A test that holds it for longer than any test may take ends the
/// whole binary: one that hangs must fail, with its name, while somebody still looks.
pub struct Turn<G> {
    _guard: G,
    _watched: mpsc::Sender<()>,
}

fn watched<G>(guard: G) -> Turn<G> {
    let limit = Duration::from_secs(if full() { 3600 } else { 600 });
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tools::say(&format!("{test} has run for {limit:?}: it hangs, and this binary with it. Given up."));
            std::process::abort();
        }
    });
    Turn { _guard: guard, _watched: sender }
}

/// Held by a test that may run beside others.
pub fn beside_others() -> Turn<RwLockReadGuard<'static, ()>> {
    watched(TURNS.read().unwrap_or_else(|e| e.into_inner()))
}

/// Held by a test that measures stalls or loads the machine: nothing else of this binary runs meanwhile.
pub fn alone() -> Turn<RwLockWriteGuard<'static, ()>> {
    watched(TURNS.write().unwrap_or_else(|e| e.into_inner()))
}

/// A flag that is raised when this value goes, in a panic, too.
pub struct Raised<'a>(pub &'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the long forms of the tests are asked for (`FREEBS_FULL=1`).
#[must_use]
pub fn full() -> bool {
    std::env::var_os("FREEBS_FULL").is_some_and(|v| v == "1")
}

/// How often a test does its thing: `few` times, `many` times in its long form, or as `FREEBS_ROUNDS` says.
#[must_use]
pub fn rounds(few: usize, many: usize) -> usize {
    match std::env::var("FREEBS_ROUNDS") {
        Ok(text) => text.parse().expect("FREEBS_ROUNDS is a number"),
        Err(_) if full() => many,
        Err(_) => few,
    }
}

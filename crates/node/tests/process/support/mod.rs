//! What the process tests share: clusters of real processes, real clients, a client of our own that remembers, and
//! the words a test uses to skip or to report a number.
//!
//! Invariant: only processes that a test itself started are ended, by process id, and none outlives its test.

pub mod cluster;
pub mod control;
pub mod device;
pub mod gateway;
pub mod image;
pub mod load;
pub mod machines;
pub mod nbd;
pub mod oracle;
pub mod plane;
pub mod rng;
pub mod servers;
pub mod shared;
pub mod tools;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The longest that a test waits for an event: only something that hangs reaches it, on a busy machine, too.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Tests that begin at once, if `RUST_TEST_THREADS` says nothing else. Their turns say which of them go on.
const THREADS: &str = "8";
/// Weight that runs at once, for each processor: these tests wait for most of their time.
const WEIGHT_PER_PROCESSOR: usize = 3;

/// libtest begins as many tests at once as there are processors, and has no other word than this one for another number.
/// Said here it is said for this binary alone.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn more_threads() {
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            // SAFETY: before `main` there is no other thread that could read the environment.
            unsafe { std::env::set_var("RUST_TEST_THREADS", THREADS) };
        }
    }
    more_threads
};

fn this_test() -> String {
    std::thread::current().name().unwrap_or("?").to_owned()
}

/// The part of the machine that a test takes while it runs.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Weight {
    /// A cluster that is asked one thing after the other, or whose test waits for most of its time.
    Light = 1,
    /// A cluster under a load of many requests in flight: most of a processor.
    Loaded = 2,
    /// More than one processor has to give.
    Heavy = 3,
}

/// Turns in the order in which they were asked for, so that heavy tests get theirs.
struct Turns {
    used: usize,
    asked: u64,
    given: u64,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { used: 0, asked: 0, given: 0 });
static CHANGED: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(|e| e.into_inner())
}

/// The right to run, for as long as a test holds it. A test that holds it for longer than any test may take ends the
/// whole binary: one that hangs must fail, with its name, while somebody still looks.
pub struct Turn {
    weight: usize,
    waited: Duration,
    begun: Instant,
    _watched: mpsc::Sender<()>,
}

/// Waits until there is room for this test beside the others of this binary.
pub fn turn(weight: Weight) -> Turn {
    let capacity = WEIGHT_PER_PROCESSOR * std::thread::available_parallelism().map_or(1, |n| n.get());
    let weight = (weight as usize).min(capacity);
    let asked = Instant::now();
    let mut state = turns();
    let mine = state.asked;
    state.asked += 1;
    let waits = |t: &mut Turns| t.given != mine || t.used + weight > capacity;
    let mut state = CHANGED.wait_while(state, waits).unwrap_or_else(|e| e.into_inner());
    (state.given, state.used) = (mine + 1, state.used + weight);
    drop(state);
    CHANGED.notify_all();
    Turn { weight, waited: asked.elapsed(), begun: Instant::now(), _watched: watch() }
}

impl Drop for Turn {
    fn drop(&mut self) {
        turns().used -= self.weight;
        CHANGED.notify_all();
        let (waited, took) = (self.waited.as_secs_f64(), self.begun.elapsed().as_secs_f64());
        tools::say(&format!("turn: {} took {took:.1} s after {waited:.1} s of waiting", this_test()));
    }
}

/// Ends this binary, unless the value goes in time.
fn watch() -> mpsc::Sender<()> {
    let limit = Duration::from_secs(if full() { 3600 } else { 600 });
    let test = this_test();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tools::say(&format!("{test} has run for {limit:?}: it hangs, and this binary with it. Given up."));
            std::process::abort();
        }
    });
    sender
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

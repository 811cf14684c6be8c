//! One execution of a target: what it did, and whether that was allowed.
//!
//! A panic is caught where the build unwinds. Where it aborts (the release profile), the hook is the last that runs, so
//! it calls what was left with `before_abort` first.

use crate::{Target, memory, signal};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// How an execution can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    Panicked {
        message: String,
        /// File and line.
        place: String,
    },
    TooMuchMemory {
        /// Bytes held at a time, and the bound that they are beyond.
        peak: usize,
        bound: usize,
    },
}

impl Wrong {
    /// The mark by which one bug is told from another.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Panicked { place, .. } => place,
            Self::TooMuchMemory { .. } => "memory",
        }
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Panicked { message, place } => write!(f, "panic at {place}: {message}"),
            Self::TooMuchMemory { peak, bound } => write!(f, "{peak} bytes held at a time, the bound is {bound}"),
        }
    }
}

type BeforeAbort = Box<dyn Fn(&Wrong)>;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<Wrong>> = const { RefCell::new(None) };
    static BEFORE_ABORT: RefCell<Option<BeforeAbort>> = const { RefCell::new(None) };
}

/// The function that is called with a panic that will end the process.
pub fn before_abort(call: impl Fn(&Wrong) + 'static) {
    BEFORE_ABORT.set(Some(Box::new(call)));
}

fn hook(info: &PanicHookInfo<'_>) {
    let text = info.payload_as_str().unwrap_or("a panic without a text").to_owned();
    let place = info.location().map_or_else(|| "?".to_owned(), |l| format!("{}:{}", l.file(), l.line()));
    let wrong = Wrong::Panicked { message: text, place };
    if cfg!(panic = "abort") {
        BEFORE_ABORT.with_borrow(|call| call.iter().for_each(|call| call(&wrong)));
    }
    PANIC.set(Some(wrong));
}

/// Executes a target once. What it showed is in `signal` afterwards.
pub fn execute(target: &Target, data: &[u8]) -> Result<(), Wrong> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        memory::keep_freed();
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| if WATCHED.get() { hook(info) } else { before(info) }));
    });
    signal::clear();
    WATCHED.set(true);
    let (ended, peak) = memory::peak_of(|| panic::catch_unwind(AssertUnwindSafe(|| (target.run)(data))));
    WATCHED.set(false);
    let bound = (target.bound)(data.len());
    match ended {
        Err(_) => Err(PANIC.take().unwrap_or(Wrong::Panicked { message: String::new(), place: "?".into() })),
        Ok(()) if peak > bound => Err(Wrong::TooMuchMemory { peak, bound }),
        Ok(()) => Ok(()),
    }
}

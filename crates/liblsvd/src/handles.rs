//! Disks and streams as C has them: numbers in the place of addresses.
//!
//! Invariants: a number is given once and never again, and nothing is ever read at it. So one that was closed, twice
//! closed, or never given is an error of the call; and what is closed while other threads are inside lives until they
//! have left. After a fork the child has no threads and shares the file with its parent: every number is refused there.

use crate::errors::invalid;
use freebs_disk::Error;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, PoisonError, RwLock};

/// Numbers look like what malloc gives.
const STEP: usize = 16;

static FORKED: AtomicBool = AtomicBool::new(false);

/// Everything of one kind that is open.
pub(crate) struct Table<T> {
    what: &'static str,
    last: AtomicUsize,
    open: RwLock<BTreeMap<usize, T>>,
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

fn check_process() -> Result<(), Error> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(invalid("disks do not survive a fork: open them in the process that uses them"));
    }
    Ok(())
}

impl<T: Clone> Table<T> {
    pub const fn new(what: &'static str) -> Self {
        Self { what, last: AtomicUsize::new(0), open: RwLock::new(BTreeMap::new()) }
    }

    /// To be asked before anything is opened; without locks, which a forked child might find held for ever.
    pub fn ready() -> Result<(), Error> {
        static ONCE: Once = Once::new();
        check_process()?;
        ONCE.call_once(|| {
            // SAFETY: the handler only stores a flag. If there is no memory for it, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Ok(())
    }

    pub fn put<C>(&self, value: T) -> *mut C {
        let number = self.last.fetch_add(STEP, Ordering::Relaxed) + STEP;
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, value);
        std::ptr::without_provenance_mut(number)
    }

    pub fn get<C>(&self, number: *const C) -> Result<T, Error> {
        self.check(number)?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&number.addr()).cloned().ok_or_else(|| self.unknown())
    }

    pub fn take<C>(&self, number: *const C) -> Result<T, Error> {
        self.check(number)?;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&number.addr()).ok_or_else(|| self.unknown())
    }

    fn check<C>(&self, number: *const C) -> Result<(), Error> {
        if number.is_null() {
            return Err(invalid(format!("the {} is a null pointer", self.what)));
        }
        check_process()
    }

    fn unknown(&self) -> Error {
        invalid(format!("the {} is not open: it was closed, or never given by this library", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_until_it_is_taken() {
        let table = Table::new("thing");
        let a: *mut u8 = table.put('a');
        let b: *mut u8 = table.put('b');
        assert_eq!((table.get(a), table.get(b)), (Ok('a'), Ok('b')));
        assert_eq!(table.take(a), Ok('a'));
        for gone in [a, std::ptr::null_mut(), b.wrapping_add(1), b.wrapping_add(STEP)] {
            assert!(table.get(gone).is_err() && table.take(gone).is_err());
        }
        let c: *mut u8 = table.put('c');
        assert!(c != a && table.get(a).is_err(), "no number is given twice");
    }
}

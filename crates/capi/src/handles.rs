//! Handles as C has them: numbers in the place of addresses.
//!
//! Invariants: a number is given once and never again, whatever for, and nothing is ever read at it. So one that was closed, twice
//! closed, or never given is an error of the call; and a thing that is closed while other threads are inside lives until they
//! have left. After a fork the child has none of the library's threads, and shares files and sockets with its parent: every
//! number is refused there.

use freebs_types::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, PoisonError, RwLock};

/// Numbers look like what malloc gives.
const STEP: usize = 16;

/// The number that was given last. Things of all kinds have numbers of one row, so one kind is never mistaken for another.
static LAST: AtomicUsize = AtomicUsize::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Everything of one kind that is open.
pub struct Table<T> {
    noun: &'static str,
    of_process: &'static str,
    open: RwLock<BTreeMap<usize, T>>,
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

impl<T: Clone> Table<T> {
    /// None are open yet. Errors say `noun` for one of them, and in a forked child `of_process`: the words for all things of
    /// that library.
    #[must_use]
    pub const fn new(noun: &'static str, of_process: &'static str) -> Self {
        Self { noun, of_process, open: RwLock::new(BTreeMap::new()) }
    }

    /// To be asked before anything is opened; without locks, which a forked child might find held for ever.
    ///
    /// # Errors
    /// `Invalid` in a child that was forked from a process with open things.
    pub fn ready(&self) -> Result<()> {
        static ONCE: Once = Once::new();
        self.check_process()?;
        ONCE.call_once(|| {
            // SAFETY: the handler only stores a flag. If there is no memory for it, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Ok(())
    }

    /// Opens one more. Gives its number.
    pub fn put<C>(&self, value: T) -> *mut C {
        let number = LAST.fetch_add(STEP, Ordering::Relaxed) + STEP;
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, value);
        std::ptr::without_provenance_mut(number)
    }

    /// The open one of this number.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn get<C>(&self, number: *const C) -> Result<T> {
        self.check(number)?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&number.addr()).cloned().ok_or_else(|| self.unknown())
    }

    /// Closes the one of this number: nobody gets it any more.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn take<C>(&self, number: *const C) -> Result<T> {
        self.check(number)?;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&number.addr()).ok_or_else(|| self.unknown())
    }

    fn check<C>(&self, number: *const C) -> Result<()> {
        if number.is_null() {
            return Err(Error::invalid(format!("the {} is a null pointer", self.noun)));
        }
        self.check_process()
    }

    fn check_process(&self) -> Result<()> {
        if FORKED.load(Ordering::Relaxed) {
            let all = self.of_process;
            return Err(Error::invalid(format!(
                "{all} do not survive a fork: open them in the process that uses them"
            )));
        }
        Ok(())
    }

    fn unknown(&self) -> Error {
        Error::invalid(format!("the {} is not open: it was closed, or never given by this library", self.noun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_until_it_is_taken() {
        let table = Table::new("thing", "things");
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
    /// Each table had a row of numbers of its own: the first stream of writes had the number of the first disk, and was
    /// taken for it.
    #[test]
    fn no_number_is_good_for_two_kinds() {
        let (things, others) = (Table::new("thing", "things"), Table::new("other", "others"));
        let a: *mut u8 = things.put('a');
        let b: *mut u8 = others.put('b');
        assert!(things.get(b).is_err() && others.get(a).is_err());
        assert!(others.take(a).unwrap_err().text.contains("the other is not open"));
        assert_eq!((things.get(a), others.take(b)), (Ok('a'), Ok('b')));
    }
}

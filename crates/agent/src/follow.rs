//! The node that a gateway follows: it hears of control states there, and sends commands there.
//!
//! Invariants:
//! - One that answers nothing any more is left, and the next one is followed, in a turn that all come to: a node may answer,
//!   and have nothing to tell.
//! - A gateway's state never gets older: whatever is missing in an older one would be taken for deleted.

use freebs_types::{Error, Result};

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// Counted through those that there are.
    next: usize,
}

impl Following {
    /// The first one to be tried is this one.
    #[must_use]
    pub fn new(first: usize) -> Self {
        Self { next: first }
    }

    /// The order in which so many are tried now; the first that answers is followed.
    pub fn order(self, count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |i| (self.next % count + i) % count)
    }

    /// This one of so many is followed from now on. When it is left, the one behind it comes first.
    pub fn follow(&mut self, at: usize, count: usize) {
        self.next = (at + 1) % count.max(1);
    }

    /// An error if the revision that a node has is older than what was seen already.
    pub fn check(known: u64, offered: u64) -> Result<()> {
        let old = || Error::corrupt(format!("it is older (revision {offered}) than what was seen already ({known})"));
        if offered < known { Err(old()) } else { Ok(()) }
    }
}

//! What is due when. Every owner has at most one entry per timer and keeps its time beside it, so that arming
//! again moves the entry instead of adding one.

use crate::slab::Key;
use freebs_types::{Nanos, Peer};
use std::collections::BTreeSet;

/// What to look after when the time has come. Shards are named by their place in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Open the link again.
    Connect(Peer),
    /// Ask the head again for the attachment.
    Attach(usize),
    /// Ask members again that have said nothing in the present view.
    Follow(usize),
    /// See whether writes hang.
    Stall(usize),
    /// Reads that found no member may try again.
    Reads(usize),
    /// Members are to be asked for a lease again, or those of older generations have ended.
    Lease(usize),
    /// A read that has no answer goes to another member, too.
    Hedge(Key),
    /// An interval that was aborted is tried again.
    Group(Key),
}

#[derive(Default)]
pub(crate) struct Timers {
    set: BTreeSet<(Nanos, Timer)>,
}

impl Timers {
    /// Sets the timer whose present time is in `slot`.
    pub fn arm(&mut self, slot: &mut Option<Nanos>, at: Nanos, timer: Timer) {
        self.disarm(slot, timer);
        *slot = Some(at);
        self.set.insert((at, timer));
    }

    pub fn disarm(&mut self, slot: &mut Option<Nanos>, timer: Timer) {
        if let Some(old) = slot.take() {
            self.set.remove(&(old, timer));
        }
    }

    /// The next one that is due. Its owner must clear its slot.
    pub fn pop(&mut self, now: Nanos) -> Option<Timer> {
        let &(at, timer) = self.set.first()?;
        if at > now {
            return None;
        }
        self.set.pop_first();
        Some(timer)
    }

    pub fn next(&self) -> Option<Nanos> {
        self.set.first().map(|(at, _)| *at)
    }

    pub fn clear(&mut self) {
        self.set.clear();
    }
}

//! The word of one node on another one: it was refused there, too. Pure.
//!
//! Invariants:
//! - Nobody has a word on itself.
//! - It says so only of a refusal that comes behind the question: nodes that have nothing to say to each other may not have
//!   tried for long. Of one that is silent it says nothing, because that may be its own link.

use freebs_types::NodeId;

/// Looks whether a node was reached, one every `timing::REACH_EVERY`.
const LOOKS: usize = 10;

/// An attempt to reach another node, for somebody who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Refusals in a row when it began.
    before: u64,
    left: usize,
}

impl Attempt {
    /// `me` is asked about `node`, whose link was refused so many times in a row by now. None if nobody is asked by that.
    #[must_use]
    pub fn new(me: NodeId, node: NodeId, refusals: u64) -> Option<Self> {
        (me != node).then_some(Self { before: refusals, left: LOOKS })
    }

    /// True if the other one is to be tried, because it has neither refused nor had its time.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.left > 0
    }

    /// That was tried, and waited for: one time less.
    pub fn tried(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// The word on the other one, whose link was refused so many times in a row by now: true if it is gone.
    #[must_use]
    pub fn is_refused(&self, refusals: u64) -> bool {
        refusals > self.before
    }
}

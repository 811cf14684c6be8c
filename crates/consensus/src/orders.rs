//! Orders of a leader on their way (rule L5). Pure.
//!
//! Invariants:
//! - Nothing is ordered before a quorum has said, after the look that found it, that the lead of that look goes on.
//! - Orders end with that lead. Whoever leads next sees for itself; a command that was sent on to it would carry out what
//!   this one saw before it was cut off.
//! - They are given one after another, each behind the answer to the one before. What fails is found to be needed again.

use crate::doubts::Led;
use crate::mutant::Mutant;
use freebs_control::Command;
use freebs_types::NodeId;
use std::collections::VecDeque;

/// The orders of one look, as far as it was not given yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The lead in which it was found.
    lead: Led,
    left: VecDeque<Command>,
    /// The nodes that are taken for failed, each with the reason, as long as nobody was told.
    failed: Vec<(NodeId, String)>,
    is_confirmed: bool,
    mutant: Option<Mutant>,
}

/// The next step of orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A quorum is asked whether that lead goes on; [`Orders::confirm`] wants the answer.
    Confirm,
    /// This command is to be applied, for as long as [`Orders::go_on`] says so.
    Give(Command),
    /// Nothing more is ordered.
    End,
}

impl Orders {
    /// Of a look in that lead. With the mutant [`Mutant::LeaderUnconfirmed`] the rule is left out.
    #[must_use]
    pub fn new(lead: Led, commands: Vec<Command>, failed: Vec<(NodeId, String)>, mutant: Option<Mutant>) -> Self {
        Self { lead, left: commands.into(), failed, is_confirmed: false, mutant }
    }

    /// The lead in which they were found.
    #[must_use]
    pub fn lead(&self) -> Led {
        self.lead
    }

    /// The commands that were not given yet.
    pub fn left(&self) -> impl Iterator<Item = &Command> {
        self.left.iter()
    }

    /// The nodes that are taken for failed by it, each with the reason.
    #[must_use]
    pub fn failed(&self) -> &[(NodeId, String)] {
        &self.failed
    }

    /// True as long as they may be given; `now` is the lead of this moment, as far as it is known here.
    #[must_use]
    pub fn go_on(&self, now: Option<Led>) -> bool {
        now == Some(self.lead) || self.is_left_out()
    }

    /// The next step in the lead of this moment.
    pub fn next(&mut self, now: Option<Led>) -> Step {
        if self.left.is_empty() || !self.go_on(now) {
            return Step::End;
        }
        if !self.is_confirmed {
            return Step::Confirm;
        }
        self.left.pop_front().map_or(Step::End, Step::Give)
    }

    /// The answer of a quorum; the nodes that people are to be told of by it, each with the reason.
    pub fn confirm(&mut self, goes_on: bool) -> Vec<(NodeId, String)> {
        self.is_confirmed = goes_on || self.is_left_out();
        if !self.is_confirmed {
            self.left.clear();
            self.failed.clear();
        }
        std::mem::take(&mut self.failed)
    }

    fn is_left_out(&self) -> bool {
        self.mutant == Some(Mutant::LeaderUnconfirmed)
    }
}

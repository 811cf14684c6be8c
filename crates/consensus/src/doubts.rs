//! Doubts of a voter about its leader, and when it gives that up: pure, with the time as a number.
//!
//! - A voter whose link to the leader was closed by the leader's end asks the other voters, and tries again itself. Each
//!   that is refused now tells all of them.
//! - Once most of the voters say so, this one among them, the leader is given up: whoever stands gets this vote.
//! - Then each stands for election in its turn, the first in order at once: they do not take votes from each other, and if
//!   the first lacks entries that another one has, that one comes next.
//!
//! Nothing is lost by it that works. A voter that can't reach the leader can't answer it either, and a leader that most
//! voters do not answer commits nothing. One link that broke is no majority. Who leads is still decided by votes, and
//! what is committed by logs; a voter only holds to its leader for no longer than there is one.

use crate::timing;
use crate::types::Seat;
use freebs_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A leader, and the term in which it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// The leader.
    pub by: Seat,
    /// Its term.
    pub term: u64,
}

/// When a seat stands for election, counted in heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Heartbeats from now on to the first time.
    pub first: u64,
    /// Heartbeats between that and the next times, as long as nobody else leads.
    pub every: u64,
}

/// The doubts of a voter that does not lead about the one that does.
#[derive(Debug, Default)]
pub struct Doubts {
    led: Option<Led>,
    /// When the others were last asked.
    asked_ms: Option<u64>,
    /// Voters that were refused by the leader's node, and when that was heard.
    refused: BTreeMap<Seat, u64>,
    given_up: bool,
    /// This seat has been told its turn, and stands until another one leads or it says that it ends.
    stands: bool,
}

impl Doubts {
    /// Begins anew with another leader, or another term of the same one: earlier words say nothing of it.
    fn turn_to(&mut self, led: Led) {
        if self.led != Some(led) {
            *self = Self { led: Some(led), ..Self::default() };
        }
    }

    /// Takes in who leads, and whether the link there was closed by its end (`lost`) and is not open again. True if the
    /// other voters are to be asked now, and this seat is to try, too.
    pub fn look(&mut self, now_ms: u64, led: Led, me: Seat, lost: bool) -> bool {
        self.turn_to(led);
        if !lost {
            self.asked_ms = None;
            self.refused.remove(&me);
            self.given_up = false;
            return false;
        }
        let is_due = self.asked_ms.is_none_or(|at| now_ms.saturating_sub(at) >= timing::DOUBT_AGAIN_MS);
        if is_due {
            self.asked_ms = Some(now_ms);
        }
        is_due
    }

    /// `from`, which may be this seat itself, was refused at a node, in the term in which that led as it knew, or 0. Only the
    /// words of `voters` are kept, and only for as long as they count; one that is late says nothing of a later term.
    pub fn hear(&mut self, now_ms: u64, led: Led, from: Seat, (node, term): (NodeId, u64), voters: &[BTreeSet<Seat>]) {
        self.turn_to(led);
        self.refused.retain(|_, at| is_new(*at, now_ms));
        let has_vote = voters.iter().any(|set| set.contains(&from));
        if node == led.by.node && [0, led.term].contains(&term) && from.node != node && has_vote {
            self.refused.insert(from, now_ms);
        }
    }

    /// The turn of this seat, when it gives the leader up; told once, until `ended`. `voters` are one set, or two while they
    /// change.
    pub fn verdict(&mut self, now_ms: u64, me: Seat, voters: &[BTreeSet<Seat>]) -> Option<Turn> {
        let led = self.led?;
        let says = |s: &Seat| self.refused.get(s).is_some_and(|at| is_new(*at, now_ms));
        let most = |set: &BTreeSet<Seat>| 2 * set.iter().filter(|s| says(s)).count() > set.len();
        let is_gone = says(&me) && !voters.is_empty() && voters.iter().all(most);
        self.given_up = is_gone;
        if !is_gone || self.stands {
            return None;
        }
        let others: BTreeSet<&Seat> = voters.iter().flatten().filter(|s| s.node != led.by.node).collect();
        let first = others.iter().position(|s| **s == me)? as u64;
        self.stands = true;
        Some(Turn { first, every: others.len() as u64 })
    }

    /// This seat stands no more.
    pub fn ended(&mut self, led: Led) {
        if self.led == Some(led) {
            self.stands = false;
        }
    }

    /// True if this seat has given up this leader, and no link there is open again.
    #[must_use]
    pub fn has_given_up(&self, led: Led) -> bool {
        self.led == Some(led) && self.given_up
    }
}

/// True if a word of that time counts still.
fn is_new(at: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(at) <= timing::AGREED_MS
}

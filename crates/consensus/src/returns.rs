//! Nodes that may come back to a chain that they left (rule V14), as the leader hears it: pure, with the time as a number.
//!
//! Invariants: a node that had failed comes back when it was heard without a pause for a second; each time that it fails again
//! within ten minutes that is twice as long, up to a minute. Each return of a node that stands still now and then costs those
//! that are there a stall of a second. It may come back for as long as it likes, and its place is kept for a while only: one that
//! comes and goes without end would never be heard for long enough.

use crate::failures::Look;
use crate::timing;
use freebs_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A node that has failed, or had.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// When it was last seen to have failed, if this leader saw that.
    failed_ms: Option<u64>,
    is_failed: bool,
    /// It was heard since then without a pause.
    since_ms: u64,
    /// It has to be, for so many milliseconds.
    wait_ms: u64,
}

impl Heard {
    /// It is heard, and may not come back yet.
    fn is_held(&self, now_ms: u64) -> bool {
        !self.is_failed && now_ms.saturating_sub(self.since_ms) < self.wait_ms
    }
}

/// For how long a node was not there for chains that it left, as far as this leader knows: it had failed, or may not come back yet.
/// While it learns, on its way back, nothing is added; nor while it is there and waits for its turn, or for others.
#[derive(Clone, Copy, Debug)]
struct Away {
    out_ms: u64,
    /// Up to then it is reckoned.
    upto_ms: u64,
    /// It is out of a chain.
    has_left: bool,
}

/// The nodes that have failed, as this leader has seen it, and those that were away when it began.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    nodes: BTreeMap<NodeId, Heard>,
    /// Nodes that left chains and are not back in all of them.
    away: BTreeMap<NodeId, Away>,
}

impl Returns {
    /// Takes in a look at the nodes.
    pub fn look(&mut self, now_ms: u64, nodes: &[Look], failed: &BTreeSet<NodeId>, fail_ms: u64) {
        self.reckon(now_ms);
        for n in nodes {
            if failed.contains(&n.node) {
                self.has_failed(now_ms, n.node);
            } else if let Some(h) = self.nodes.get_mut(&n.node) {
                let is_pause = n.lost || n.idle_ms >= fail_ms / 2;
                if h.is_failed || is_pause {
                    (h.is_failed, h.since_ms) = (false, now_ms);
                }
            }
        }
    }

    /// A node as it was at the last look, up to now.
    fn reckon(&mut self, now_ms: u64) {
        let missing = |h: &Heard| h.is_failed || h.is_held(now_ms);
        for (node, a) in &mut self.away {
            if a.has_left && self.nodes.get(node).is_some_and(missing) {
                a.out_ms += now_ms.saturating_sub(a.upto_ms);
            }
            a.upto_ms = now_ms;
        }
    }

    /// These were never started, and are in no look.
    pub fn were_never_started(&mut self, now_ms: u64, nodes: &BTreeSet<NodeId>) {
        nodes.iter().for_each(|n| self.has_failed(now_ms, *n));
    }

    fn has_failed(&mut self, now_ms: u64, node: NodeId) {
        let fresh = Heard { failed_ms: None, is_failed: false, since_ms: now_ms, wait_ms: timing::RETURN_MS };
        let h = self.nodes.entry(node).or_insert(fresh);
        if !h.is_failed {
            let is_again = h.failed_ms.is_some_and(|at| now_ms - at <= timing::RETURN_FORGET_MS);
            let longer = (2 * h.wait_ms).min(timing::RETURN_MOST_MS);
            h.wait_ms = if is_again { longer } else { timing::RETURN_MS };
        }
        (h.is_failed, h.failed_ms) = (true, Some(now_ms));
    }

    /// These are away, by the control state, and of these some are out of a chain (`left`). One that this leader has never seen to
    /// fail may have failed just before it led.
    pub fn are_away(&mut self, now_ms: u64, away: &BTreeSet<NodeId>, left: &BTreeSet<NodeId>) {
        let fresh = Heard { failed_ms: None, is_failed: false, since_ms: now_ms, wait_ms: timing::RETURN_MS };
        self.reckon(now_ms);
        self.away.retain(|node, _| away.contains(node));
        for node in away {
            self.nodes.entry(*node).or_insert(fresh);
            let a = self.away.entry(*node).or_insert(Away { out_ms: 0, upto_ms: now_ms, has_left: false });
            a.has_left = left.contains(node);
        }
    }

    /// Nodes that are heard, and may not come back yet.
    pub fn held(&self, now_ms: u64) -> BTreeSet<NodeId> {
        self.nodes.iter().filter(|(_, h)| h.is_held(now_ms)).map(|(n, _)| *n).collect()
    }

    /// Nodes that were not there for chains that they left for so long, all together.
    pub fn missed(&mut self, now_ms: u64, for_ms: u64) -> BTreeSet<NodeId> {
        self.reckon(now_ms);
        self.away.iter().filter(|(_, a)| a.out_ms >= for_ms).map(|(n, _)| *n).collect()
    }
}

//! Which nodes have failed, as the leader sees it, and what is to be done: pure, with the time as a number.
//!
//! - A node that was silent for four heartbeats of the design's length has failed (`fail_ms`).
//! - One whose link was closed by its end, and can't be opened again, has failed as soon as another node says the same
//!   of it. A process that was killed is noticed in this way after moments.
//! - A shard whose new head does not open its view is given to the next member after a while, each time after a longer
//!   one: that head may lack more than it can fetch soon, or its device may have failed.
//!
//! A verdict that is wrong costs a view change and nothing else: what a node that only seemed to have failed goes on
//! to say is refused by the members that promised (rules V2, V6).

use freebs_control::{Command, State, limits};
use freebs_types::{NodeId, ShardId, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// How long it counts that another node can't reach one either; and how often others are asked for it.
const AGREED_MS: u64 = 1000;
const ASK_AGAIN_MS: u64 = 300;
/// How long a new head may take to open its view before the next one is tried, at first and at most.
const OPEN_MS: u64 = 5000;
const OPEN_MOST_MS: u64 = 80_000;
/// Shards whose new heads are watched.
const WATCHED_MAX: usize = 1 << 16;

/// A node as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub node: NodeId,
    pub silent_ms: u64,
    /// Its end has closed the link, and no new one could be opened.
    pub lost: bool,
}

/// A shard that was given to another head.
#[derive(Clone, Copy, Debug)]
struct Opening {
    head: NodeId,
    /// The view that the new one follows.
    active: ViewNumber,
    since_ms: u64,
    patience_ms: u64,
}

/// What the leader keeps in mind. A new leader begins with an empty one.
#[derive(Debug, Default)]
pub struct Failures {
    /// When another node last said that it can't reach this one either.
    agreed: BTreeMap<NodeId, u64>,
    asked: BTreeMap<NodeId, u64>,
    opening: BTreeMap<ShardId, Opening>,
    /// For these failed nodes nothing was left to move in the state of this revision: it need not be gone through
    /// again at each heartbeat.
    settled: Option<(u64, BTreeSet<NodeId>)>,
}

impl Failures {
    /// Another node can't reach this one either.
    pub fn agree(&mut self, node: NodeId, now_ms: u64) {
        if self.asked.contains_key(&node) {
            self.agreed.insert(node, now_ms);
        }
    }

    /// Nodes that have failed, and those that others are to be asked about now.
    pub fn look(&mut self, now_ms: u64, nodes: &[Look], fail_ms: u64) -> (BTreeSet<NodeId>, Vec<NodeId>) {
        let (mut failed, mut ask) = (BTreeSet::new(), Vec::new());
        for n in nodes {
            if !n.lost {
                self.asked.remove(&n.node);
                self.agreed.remove(&n.node);
            }
            let is_agreed = self.agreed.get(&n.node).is_some_and(|at| now_ms - at <= AGREED_MS);
            if n.silent_ms >= fail_ms || is_agreed {
                failed.insert(n.node);
            } else if n.lost && self.asked.get(&n.node).is_none_or(|at| now_ms - at >= ASK_AGAIN_MS) {
                self.asked.insert(n.node, now_ms);
                ask.push(n.node);
            }
        }
        (failed, ask)
    }

    /// What is to be decided, if anything: other heads for those that have failed, or for one that does not open its
    /// view. Who is not in `failed` counts as there.
    pub fn decide(&mut self, now_ms: u64, state: &State, failed: &BTreeSet<NodeId>) -> Vec<Command> {
        let mut commands = Vec::new();
        let is_settled = failed.is_empty()
            || self.settled.as_ref().is_some_and(|(revision, of)| *revision == state.revision() && of == failed);
        let moved = if is_settled { Vec::new() } else { state.heads_without(failed) };
        if moved.is_empty() && !is_settled {
            self.settled = Some((state.revision(), failed.clone()));
        }
        if !moved.is_empty() {
            let start = |n: &NodeId| Some((*n, state.node(*n)?.start));
            let nodes: Vec<_> = failed.iter().filter_map(start).collect();
            commands.extend(nodes.chunks(limits::FAILED_NODES_MAX).map(|n| Command::FailOver { nodes: n.to_vec() }));
        }
        for (shard, head) in moved {
            self.watch(now_ms, state, shard, head, OPEN_MS);
        }
        let late = self.late(now_ms, state, failed);
        for (shard, next, patience_ms) in late {
            self.watch(now_ms, state, shard, next, patience_ms);
            commands.push(Command::MoveHead { shard, node: next });
        }
        commands
    }

    fn watch(&mut self, now_ms: u64, state: &State, shard: ShardId, head: NodeId, patience_ms: u64) {
        let Some(s) = state.shard(shard).filter(|_| self.opening.len() < WATCHED_MAX) else { return };
        self.opening.insert(shard, Opening { head, active: s.active, since_ms: now_ms, patience_ms });
    }

    /// Shards whose new head takes too long, each with the next member that is there, and how long that may take.
    fn late(&mut self, now_ms: u64, state: &State, failed: &BTreeSet<NodeId>) -> Vec<(ShardId, NodeId, u64)> {
        let mut late = Vec::new();
        self.opening.retain(|id, o| {
            let Some(s) = state.shard(*id).filter(|s| s.active == o.active) else { return false };
            if now_ms - o.since_ms < o.patience_ms {
                return true;
            }
            // Somebody else has decided meanwhile, or the order for this one was lost: another look at the heads
            // that have failed finds it.
            if s.head() != Some(o.head) {
                return false;
            }
            if let Some(next) = s.members[1..].iter().find(|m| !failed.contains(m)) {
                late.push((*id, *next, (2 * o.patience_ms).min(OPEN_MOST_MS)));
            }
            false
        });
        late
    }
}

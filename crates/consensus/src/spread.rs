//! The leader's care for room and heads: nodes are measured, copies leave full ones, and a node that is back, or new, gets heads
//! again. Pure, with the time as a number; which copy and which head it is follows from the state alone (`freebs_control`).
//!
//! Invariants: no head moves while a node is away or a head has not opened its view; one head at a time. A head goes only to a
//! node that was away, or has come, since this leader began, and that lacks nothing: where an operator has put heads otherwise they
//! stay.

use crate::timing;
use crate::wire::Room;
use freebs_control::{Command, FILLING_PERCENT, FULL_PERCENT, Measured, State, limits};
use freebs_types::{NodeId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// The memory of the leader.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    measured_ms: Option<u64>,
    /// Since when nobody was away.
    calm_ms: Option<u64>,
    moved_ms: Option<u64>,
    /// When it was last looked for a copy that leaves a full node.
    relieved: BTreeMap<NodeId, u64>,
    /// Nodes that are back, or new.
    welcome: BTreeSet<NodeId>,
    /// The head that was moved last, and where to.
    given: Option<(ShardId, NodeId)>,
    /// Those that were away at the last look, and all that were known.
    before: Option<(BTreeSet<NodeId>, BTreeSet<NodeId>)>,
}

impl Spread {
    /// The commands that are due. `away`: nodes that are not there for others; `opens`: heads are to open views.
    pub fn decide(
        &mut self,
        now_ms: u64,
        state: &State,
        (away, opens): (&BTreeSet<NodeId>, bool),
        rooms: &BTreeMap<NodeId, Room>,
    ) -> Option<Command> {
        let known: BTreeSet<NodeId> = state.nodes().filter(|n| n.start.0 > 0).map(|n| n.id).collect();
        if let Some((were_away, were_known)) = &self.before {
            let is_new = |n: &&NodeId| !were_known.contains(n) || were_away.contains(n) && !away.contains(n);
            self.welcome.extend(known.iter().filter(is_new));
        }
        self.before = Some((away.clone(), known));
        self.calm_ms = if away.is_empty() { self.calm_ms.or(Some(now_ms)) } else { None };
        let due = self.measure(now_ms, state, rooms).or_else(|| self.relieve(now_ms, state, away));
        // Heads one after the other, and only while nothing else is to be opened.
        due.or_else(|| self.calm_ms.filter(|_| !opens).and_then(|calm_ms| self.heads(now_ms, state, calm_ms, rooms)))
    }

    /// Rooms that are told anew: by enough that it counts, or on the other side of a mark at which something is done.
    fn measure(&mut self, now_ms: u64, state: &State, rooms: &BTreeMap<NodeId, Room>) -> Option<Command> {
        if self.measured_ms.is_some_and(|at| now_ms - at < timing::MEASURE_EVERY_MS) {
            return None;
        }
        self.measured_ms = Some(now_ms);
        let mut of = Vec::new();
        for node in state.nodes().filter(|n| n.start.0 > 0) {
            let Some(room) = rooms.get(&node.id).filter(|r| r.bytes > 0) else { continue };
            let used_percent = room.used_percent.min(100);
            let (old, new) = (node.used_percent, used_percent);
            let is_above = [FILLING_PERCENT, FULL_PERCENT].iter().any(|mark| old < *mark && new >= *mark);
            let is_other = node.room_bytes.abs_diff(room.bytes) > node.room_bytes / 50;
            if is_other || old.abs_diff(new) >= timing::MEASURE_PERCENT || is_above {
                of.push(Measured { node: node.id, start: node.start, room_bytes: room.bytes, used_percent });
            }
        }
        of.truncate(limits::FAILED_NODES_MAX);
        (!of.is_empty()).then_some(Command::MeasureNodes { of })
    }

    fn relieve(&mut self, now_ms: u64, state: &State, away: &BTreeSet<NodeId>) -> Option<Command> {
        if !state.nodes().any(|n| n.used_percent >= FULL_PERCENT) {
            return None;
        }
        if let Some((shard, from)) = state.hopeless_moves().pop() {
            return Some(Command::MoveCopy { shard, from, to: from });
        }
        self.relieved.retain(|_, at| now_ms - *at < timing::RELIEVE_EVERY_MS);
        let is_due = |n: &NodeId| !self.relieved.contains_key(n) && !away.contains(n);
        let full = state.nodes().filter(|n| n.used_percent >= FULL_PERCENT).map(|n| n.id);
        let node = full.into_iter().find(is_due)?;
        // The pause begins when a copy has moved.
        self.relieved.insert(node, now_ms);
        let found = state.relief(away, node).filter(|_| !state.is_moving_from(node))?;
        Some(Command::MoveCopy { shard: found.shard, from: found.from, to: found.to })
    }

    /// A head for a node that is back. One that lacks anything gets none: it could not open its view until it has fetched that, and
    /// the shard would answer nothing meanwhile. Nor does one that has not opened a view in its time.
    fn heads(&mut self, now_ms: u64, state: &State, calm_ms: u64, rooms: &BTreeMap<NodeId, Room>) -> Option<Command> {
        if let Some((shard, node)) = self.given.take()
            && state.shard(shard).is_some_and(|s| s.head() != Some(node))
        {
            self.welcome.remove(&node);
        }
        let is_soon = self.moved_ms.is_some_and(|at| now_ms - at < timing::HEAD_EVERY_MS);
        if self.welcome.is_empty() || now_ms - calm_ms < timing::HEADS_BACK_MS || is_soon {
            return None;
        }
        self.moved_ms = Some(now_ms);
        let is_level = |n: &NodeId| rooms.get(n).is_some_and(|r| r.is_level);
        let ready: BTreeSet<NodeId> = self.welcome.iter().copied().filter(is_level).collect();
        let Some(found) = state.head_moves(&BTreeSet::new(), Some(&ready), 1).pop() else {
            // Those that lack something, or whose chains still change, are looked at again.
            if ready == self.welcome && !state.has_changing_members() {
                self.welcome.clear();
            }
            return None;
        };
        self.given = Some((found.shard, found.to));
        Some(Command::MoveHead { shard: found.shard, node: found.to })
    }
}

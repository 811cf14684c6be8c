//! Copies and heads that move, so that no node is full while others have room, zones hold one copy of a shard each, and every node
//! leads its part: pure functions of the state.
//!
//! A copy moves as one does from a node that is being emptied (`draining`): another node comes to the chain beside those that
//! are there, learns everything, and only then the copy's node leaves. So at no time there are fewer copies than before.
//!
//! Invariants: a copy moves only in a chain that is at rest, and to a node that is no member; where the other one fails before it
//! has everything, nothing was changed. A move never makes the fuller of its two nodes out of the emptier one.

use crate::apply::shard_of;
use crate::command::Outcome;
use crate::draining::can_grow;
use crate::limits;
use crate::placement::{Fill, Places};
use crate::state::{Node, Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, ShardId, StartNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Moves of one plan; another plan goes on.
pub const MOVES_MAX: usize = 256;
/// Shards in which anybody learns while another copy leaves a full node.
const MOVING_MAX: usize = 4;
/// A head is worth moving if its node has so many more than the one that it goes to.
const HEADS_APART: u64 = 2;

/// A copy, or a head, that is to be elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The shard.
    pub shard: ShardId,
    /// The node that has it.
    pub from: NodeId,
    /// The node that is to have it.
    pub to: NodeId,
}

/// The room of a node as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The node.
    pub node: NodeId,
    /// The start in which it said so.
    pub start: StartNumber,
    /// Bytes that its logs take.
    pub room_bytes: u64,
    /// Hundredths of them that live data take, at most 100.
    pub used_percent: u8,
}

impl Shard {
    /// Nobody's copy is being moved any more once no other one comes, or has come.
    pub(crate) fn settle_move(&mut self, copies: usize) {
        let is_moving = |n: NodeId| self.members.contains(&n) && self.members.len() > copies;
        self.leaves = self.leaves.filter(|n| is_moving(*n));
    }
}

impl State {
    /// True if a copy of this node is being moved.
    #[must_use]
    pub fn is_moving_from(&self, node: NodeId) -> bool {
        self.volumes.values().any(|v| v.shards.iter().any(|s| s.leaves == Some(node)))
    }

    pub(crate) fn has_moving_copies(&self) -> bool {
        self.volumes.values().any(|v| v.shards.iter().any(|s| s.leaves.is_some()))
    }

    /// Moves to a node that has become full meanwhile, each with the node that the copy stays at.
    #[must_use]
    pub fn hopeless_moves(&self) -> Vec<(ShardId, NodeId)> {
        let is_full = |n: &NodeId| self.node(*n).is_some_and(|n| n.fill() == Fill::Full);
        let of = |v: &Volume, s: &Shard| {
            let from = s.leaves.filter(|_| s.grows() && s.joining.iter().any(is_full))?;
            Some((v.shard_id(s.index), from))
        };
        self.volumes().flat_map(|v| v.shards.iter().filter_map(|s| of(v, s))).collect()
    }

    /// The copy that leaves this node stays there after all, if nobody has taken its place yet; else nothing is changed.
    fn stop_move(&mut self, id: ShardId, from: NodeId) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id.volume)?;
        let copies = volume.copies;
        let shard = shard_of(&mut volume, id)?;
        if shard.leaves == Some(from) && shard.grows() {
            let new: Vec<NodeId> =
                shard.joining.iter().copied().filter(|n| !shard.active_members.contains(n)).collect();
            new.into_iter().for_each(|n| shard.retract(n, copies));
            self.commit(volume);
        }
        Ok(Outcome::Moved)
    }

    /// A copy moves; from a node to the same one: it does not move any more. `Retry` if the chain is not at rest.
    pub(crate) fn move_copy(&mut self, id: ShardId, from: NodeId, to: NodeId) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id.volume)?;
        let (name, shard) = (volume.name.clone(), shard_of(&mut volume, id)?.clone());
        if from == to {
            return self.stop_move(id, from);
        }
        if shard.leaves == Some(from) && shard.members.contains(&to) {
            return Ok(Outcome::Moved);
        }
        let called = |n: NodeId| self.node(n).map_or_else(|| n.to_string(), |n| n.name.clone());
        if !shard.members.contains(&from) {
            return Err(Error::invalid(format!("{} has no copy of shard {} of volume {name}", called(from), id.index)));
        }
        if shard.members.contains(&to) {
            return Err(Error::invalid(format!(
                "{} has a copy of shard {} of volume {name} already",
                called(to),
                id.index
            )));
        }
        match self.node(to) {
            None => {
                return Err(Error::not_found(format!("there is no node {to}; `freebs status` shows those there are")));
            }
            Some(n) if n.start.0 == 0 => {
                return Err(Error::invalid(format!("{} has never run; start it first", n.name)));
            }
            Some(n) if n.drains => {
                return Err(Error::invalid(format!("{} is being emptied, so it takes no copies", n.name)));
            }
            Some(_) => {}
        }
        if !self.is_at_rest(&shard) || shard.members.len() != usize::from(volume.copies) {
            return Err(Error::retry(format!(
                "the chain of shard {} of volume {name} is changing; `freebs volume show {name}` says how. Try it again later",
                id.index
            )));
        }
        if !can_grow(&volume, &shard, |n| self.node(*n).is_some_and(|n| n.start.0 > 0)) {
            return Err(Error::invalid(format!(
                "no other node can come to shard {} of volume {name} beside those that it has",
                id.index
            )));
        }
        let shard = shard_of(&mut volume, id)?;
        shard.extend(to);
        shard.leaves = Some(from);
        self.commit(volume);
        Ok(Outcome::Moved)
    }

    /// Nodes' rooms were measured; of one that was started again since it counts no more.
    pub(crate) fn measure_nodes(&mut self, of: &[Measured]) -> Result<Outcome> {
        if of.len() > limits::FAILED_NODES_MAX {
            return Err(Error::invalid(format!("at most {} nodes are measured at a time", limits::FAILED_NODES_MAX)));
        }
        for m in of {
            let used_percent = m.used_percent.min(100);
            let known = self.nodes.get(&m.node).filter(|n| n.start == m.start && n.start.0 > 0).cloned();
            let Some(node) = known else { continue };
            if (node.room_bytes, node.used_percent) != (m.room_bytes, used_percent) {
                self.revision += 1;
                let node = Node { room_bytes: m.room_bytes, used_percent, changed: self.revision, ..(*node).clone() };
                self.nodes.insert(m.node, Arc::new(node));
            }
        }
        Ok(Outcome::Moved)
    }

    /// The zone and weight of a node are these from now on; what is not named stays.
    pub(crate) fn place_node(&mut self, id: NodeId, zone: Option<String>, weight: Option<u16>) -> Result<Outcome> {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return Err(Error::not_found(format!("there is no node {id}; `freebs status` shows those there are")));
        };
        if let Some(zone) = zone.as_ref().filter(|z| !z.is_empty()) {
            crate::rules::check_name("zone", zone)?;
        }
        if weight.is_some_and(|w| w > limits::WEIGHT_MAX) {
            return Err(Error::invalid(format!(
                "a node's weight is 0 to {}; {} is usual",
                limits::WEIGHT_MAX,
                crate::WEIGHT
            )));
        }
        let new = Node {
            zone: zone.unwrap_or_else(|| node.zone.clone()),
            weight: weight.unwrap_or(node.weight),
            ..(*node).clone()
        };
        if new != *node {
            self.revision += 1;
            self.nodes.insert(id, Arc::new(Node { changed: self.revision, ..new }));
        }
        Ok(Outcome::Moved)
    }

    /// Heads that move, one after the other, until no node has `HEADS_APART` more than another one that could have one of them:
    /// to those of `only`, or to any if that is `None`. None to or from a node that is away or being emptied, each head once, and `most` in
    /// all.
    #[must_use]
    pub fn head_moves(&self, away: &BTreeSet<NodeId>, only: Option<&BTreeSet<NodeId>>, most: usize) -> Vec<Move> {
        let stays = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0 && !n.drains);
        let may_get = |n: &&NodeId| stays(n) && only.is_none_or(|of| of.contains(n));
        let (mut loads, mut out) = (self.loads.clone(), Vec::new());
        let all = self.volumes().flat_map(|v| v.shards.iter().map(|s| (v.shard_id(s.index), s)));
        let can_move = |s: &Shard| self.is_at_rest(s) && s.members.first().is_some_and(stays);
        let mut left: Vec<(ShardId, &Shard)> = all.filter(|(_, s)| can_move(s)).collect();
        while out.len() < most {
            let gain = |s: &Shard| {
                let to = s.members[1..].iter().filter(may_get).min_by_key(|n| (loads.of(**n).heads, **n))?;
                let gain = loads.of(s.members[0]).heads.saturating_sub(loads.of(*to).heads);
                (gain >= HEADS_APART).then_some((gain, *to))
            };
            let found = left.iter().enumerate().filter_map(|(i, (_, s))| gain(s).map(|(gain, to)| (gain, i, to)));
            let Some((_, i, to)) = found.max_by_key(|(gain, i, _)| (*gain, std::cmp::Reverse(*i))) else { break };
            let (shard, s) = left.remove(i);
            loads.shift_head(s.members[0], to);
            out.push(Move { shard, from: s.members[0], to });
        }
        out
    }

    /// A copy that leaves a node that is full, if another one has room for it. The largest one goes first.
    #[must_use]
    pub fn relief(&self, away: &BTreeSet<NodeId>, node: NodeId) -> Option<Move> {
        let places = Places::new(self);
        let is_free = |n: &Arc<Node>| n.fill() == Fill::Free && !away.contains(&n.id);
        let learn = |s: &&Shard| !s.joining.is_empty() && !s.only_returns();
        let busy: usize = self.volumes().map(|v| v.shards.iter().filter(learn).count()).sum();
        // Copies that were lost come first: of those that learn at a time moves are a small part.
        if places.fill_of(node) != Fill::Full || !self.nodes().any(is_free) || busy >= MOVING_MAX {
            return None;
        }
        let at =
            |v: &Volume, s: &Shard| self.can_leave(v, s, node, away).then(|| (v.shard_bytes(), v.shard_id(s.index)));
        let mut of: Vec<(u64, ShardId)> =
            self.volumes().flat_map(|v| v.shards.iter().filter_map(move |s| at(v, s))).collect();
        of.sort_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), *id));
        of.into_iter().find_map(|(_, shard)| {
            let (volume, s) = (self.volume(shard.volume)?, self.shard(shard)?);
            let to = self.better(&places, (volume, s), node, away)?;
            self.stays_free((node, to), volume.shard_bytes()).then_some(Move { shard, from: node, to })
        })
    }

    /// True if a node is not filling up with a copy more that is now elsewhere, and those that are on their way to it. How much of a
    /// copy is data is not known: all of it, but no more than its node has. (With a guess two nodes could send one large copy back
    /// and forth.)
    fn stays_free(&self, (from, to): (NodeId, NodeId), bytes: u64) -> bool {
        let (Some(from), Some(to)) = (self.node(from), self.node(to)) else { return false };
        let used = |n: &Node| u128::from(n.room_bytes) * u128::from(n.used_percent) / 100;
        let comes = |v: &Arc<Volume>| {
            let shards = v.shards.iter().filter(|s| s.joining.contains(&to.id)).count();
            u128::from(v.shard_bytes()) * shards as u128
        };
        let coming: u128 = self.volumes.values().map(comes).sum();
        let data = used(from).min(bytes.into());
        (used(to) + coming + data) * 100 < u128::from(to.room_bytes) * u128::from(crate::FILLING_PERCENT)
    }

    /// True if a member's copy may be moved now.
    fn can_leave(&self, volume: &Volume, shard: &Shard, from: NodeId, away: &BTreeSet<NodeId>) -> bool {
        let is_there = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        shard.members.contains(&from)
            && shard.members.len() <= usize::from(volume.copies)
            && self.is_at_rest(shard)
            && can_grow(volume, shard, is_there)
    }

    /// The best node for a copy that leaves `from`.
    fn better(
        &self,
        places: &Places<'_>,
        (volume, shard): (&Volume, &Shard),
        from: NodeId,
        away: &BTreeSet<NodeId>,
    ) -> Option<NodeId> {
        let stay: Vec<NodeId> = shard.members.iter().copied().filter(|n| *n != from).collect();
        let clashes = places.clashes(from, &stay);
        let may_come = |n: &NodeId| !away.contains(n) && !shard.members.contains(n);
        let others = self.places().filter(may_come).filter(|n| self.node(*n).is_some_and(|n| n.start.0 > 0));
        let best = others.min_by_key(|n| places.rank(*n, &stay, volume.shard_bytes()))?;
        (places.clashes(best, &stay) <= clashes).then_some(best)
    }

    /// Copies that move, one after the other: out of zones that have two of a shard, then from nodes whose room is taken more to
    /// those where it is taken less. Each copy moves once at most, and no more often than `MOVES_MAX` in all.
    #[must_use]
    pub fn copy_moves(&self, away: &BTreeSet<NodeId>) -> Vec<Move> {
        let mut places = Places::new(self);
        let all = self.volumes().flat_map(|v| v.shards.iter().map(move |s| (v, s)));
        let mut left: Vec<(&Arc<Volume>, &Shard)> = all.filter(|(_, s)| self.is_at_rest(s)).collect();
        let mut out = Vec::new();
        let apart = |places: &Places<'_>, v: &Volume, s: &Shard| {
            let clash = s.members.iter().rev().copied().find(|n| places.clashes(*n, &s.members) > 0)?;
            let to = self.better(places, (v, s), clash, away).filter(|_| self.can_leave(v, s, clash, away))?;
            let stay: Vec<NodeId> = s.members.iter().copied().filter(|n| *n != clash).collect();
            (places.clashes(to, &stay) < places.clashes(clash, &stay)).then_some((clash, to))
        };
        left.retain(|(v, s)| {
            let may = out.len() < MOVES_MAX;
            let Some((from, to)) = may.then(|| apart(&places, v, s)).flatten() else { return true };
            places.loads.shift((from, to), v.shard_bytes(), s.members[0] == from);
            out.push(Move { shard: v.shard_id(s.index), from, to });
            false
        });
        // The largest first: what is left over is small.
        left.sort_by_key(|(v, s)| (std::cmp::Reverse(v.shard_bytes()), v.id, s.index));
        left.retain(|(v, s)| {
            let Some((from, to)) = self.evener(&places, v, s, away).filter(|_| out.len() < MOVES_MAX) else {
                return true;
            };
            places.loads.shift((from, to), v.shard_bytes(), s.members[0] == from);
            out.push(Move { shard: v.shard_id(s.index), from, to });
            false
        });
        out
    }

    /// The member whose room is taken most, and a node whose room is still taken less when it has the copy in its place.
    fn evener(&self, places: &Places<'_>, v: &Volume, s: &Shard, away: &BTreeSet<NodeId>) -> Option<(NodeId, NodeId)> {
        let is_there = |n: &NodeId| !away.contains(n) && self.node(*n).is_some_and(|n| n.start.0 > 0);
        let taken = |n: &NodeId| (places.placed(*n, 0), places.loads.of(*n).copies, *n);
        let from = s.members.iter().copied().filter(is_there).max_by_key(taken)?;
        let to = self.better(places, (v, s), from, away).filter(|_| self.can_leave(v, s, from, away))?;
        let bytes = i128::from(v.shard_bytes());
        let is_emptier = match (places.placed(to, bytes), places.placed(from, -bytes)) {
            // No room is known, or nothing worth a word is placed: copies count.
            (0, 0) => places.loads.of(to).copies + 1 < places.loads.of(from).copies,
            (to, from) => to <= from,
        };
        is_emptier.then_some((from, to))
    }
}

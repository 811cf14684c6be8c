//! Where copies go: by zone, by the room of the nodes, and by what they carry, in an order that only the state decides.
//!
//! A copy goes, in this order of weight: not to a node that is full; to a zone that has no other copy of the shard; not to a node
//! that is filling up; to where the smallest share of the room is taken. The share of a node is the greater of two: of its room,
//! the part that its copies would take if their volumes were written from end to end, and the part that live data take, as was
//! measured. A node of weight 50 counts as one of half the room. If the room of any node is not known nobody's counts, and a copy
//! goes to where there are fewest.

use crate::state::{State, Volume};
use freebs_types::NodeId;
use std::collections::BTreeMap;

/// The weight of a node of which nothing else was said.
pub const WEIGHT: u16 = 100;
/// Live data take so many hundredths of a node's room: it is filling up, and gets new copies only if others are full.
pub const FILLING_PERCENT: u8 = 85;
/// Live data take so many hundredths of a node's room: it is full, and its copies go elsewhere.
pub const FULL_PERCENT: u8 = 95;
/// All of a node's room, in the unit of shares.
const WHOLE: u128 = 1 << 32;

/// What one node carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub heads: u64,
    pub copies: u64,
    /// Bytes that its copies would have if their volumes were written from end to end.
    pub bytes: u128,
}

/// What all nodes carry. Derived from the volumes; entries without load are not kept, so that the same volumes give
/// the same value however it was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loads {
    by_node: BTreeMap<NodeId, Load>,
    shards: usize,
}

/// How much a node's room is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fill {
    Free,
    Filling,
    Full,
}

impl Loads {
    pub fn of(&self, node: NodeId) -> Load {
        self.by_node.get(&node).copied().unwrap_or_default()
    }

    pub fn shards(&self) -> usize {
        self.shards
    }

    pub fn add(&mut self, volume: &Volume) {
        self.shards += volume.shards.len();
        volume.shards.iter().for_each(|s| self.add_chain(&s.members, volume.shard_bytes()));
    }

    pub fn add_chain(&mut self, members: &[NodeId], bytes: u64) {
        for (i, node) in members.iter().enumerate() {
            self.add_member(*node, bytes);
            self.by_node.entry(*node).or_default().heads += u64::from(i == 0);
        }
    }

    /// One more copy, which leads nothing.
    pub fn add_member(&mut self, node: NodeId, bytes: u64) {
        let load = self.by_node.entry(node).or_default();
        load.copies += 1;
        load.bytes += u128::from(bytes);
    }

    fn take(&mut self, node: NodeId, bytes: u64, is_head: bool) {
        let load = self.by_node.get_mut(&node).expect("every member was added");
        load.copies -= 1;
        load.bytes -= u128::from(bytes);
        load.heads -= u64::from(is_head);
        if *load == Load::default() {
            self.by_node.remove(&node);
        }
    }

    pub fn remove(&mut self, volume: &Volume) {
        self.shards -= volume.shards.len();
        for shard in &volume.shards {
            shard.members.iter().enumerate().for_each(|(i, n)| self.take(*n, volume.shard_bytes(), i == 0));
        }
    }

    /// A copy goes from one node to another.
    pub fn shift(&mut self, (from, to): (NodeId, NodeId), bytes: u64, is_head: bool) {
        self.take(from, bytes, is_head);
        self.add_member(to, bytes);
    }

    /// A head goes from one node to another one of the same chain.
    pub fn shift_head(&mut self, from: NodeId, to: NodeId) {
        self.by_node.get_mut(&from).expect("every head was added").heads -= 1;
        self.by_node.entry(to).or_default().heads += 1;
    }
}

/// The nodes with what they carry, while something is placed.
pub(crate) struct Places<'a> {
    state: &'a State,
    pub loads: Loads,
    /// The room of every node is known.
    measured: bool,
}

/// Order of nodes for one more copy: the least first.
type Rank = (bool, usize, bool, u64, u64, u64, NodeId);

impl<'a> Places<'a> {
    pub fn new(state: &'a State) -> Self {
        let mut homes = state.nodes().filter(|n| n.start.0 > 0).peekable();
        let measured = homes.peek().is_some() && homes.all(|n| n.room_bytes > 0);
        Self { state, loads: state.loads.clone(), measured }
    }

    /// The share of a node's room that its copies would take with so many bytes more, if all of them were written from end to end;
    /// in units of 2^-32. 0 if no room counts.
    pub fn placed(&self, id: NodeId, more: i128) -> u64 {
        let Some(node) = self.state.node(id).filter(|_| self.measured) else { return 0 };
        let room = (u128::from(node.room_bytes) * u128::from(node.weight) / u128::from(WEIGHT)).max(1);
        let bytes = self.loads.of(id).bytes.saturating_add_signed(more);
        u64::try_from(bytes.saturating_mul(WHOLE) / room).unwrap_or(u64::MAX)
    }

    /// The same, or the share that live data took when that was measured, if that is more.
    pub fn share(&self, id: NodeId, more: u64) -> u64 {
        let used = self.state.node(id).filter(|_| self.measured).map_or(0, |n| n.used_percent);
        let used = u64::try_from(u128::from(used) * WHOLE / 100).unwrap_or(u64::MAX);
        self.placed(id, i128::from(more)).max(used)
    }

    /// Members of the chain in the zone of a node, itself left out; none if it is in no zone.
    pub fn clashes(&self, id: NodeId, chain: &[NodeId]) -> usize {
        let zone = |n: NodeId| self.state.node(n).map(|n| n.zone.as_str()).filter(|z| !z.is_empty());
        let own = zone(id);
        chain.iter().filter(|m| **m != id && own.is_some() && zone(**m) == own).count()
    }

    pub fn fill_of(&self, id: NodeId) -> Fill {
        self.state.node(id).map_or(Fill::Free, |n| n.fill())
    }

    /// The place of a node among those that may get one more copy of `bytes`, beside the others of the chain.
    pub fn rank(&self, id: NodeId, chain: &[NodeId], bytes: u64) -> Rank {
        let (load, fill) = (self.loads.of(id), self.fill_of(id));
        let clashes = self.clashes(id, chain);
        (fill == Fill::Full, clashes, fill > Fill::Free, self.share(id, bytes), load.copies, load.heads, id)
    }

    /// Adds the best of the given nodes to a chain until it has `copies`, or has all of them.
    pub fn fill(&self, chain: &mut Vec<NodeId>, nodes: impl Iterator<Item = NodeId>, copies: usize, bytes: u64) {
        let mut others: Vec<NodeId> = nodes.filter(|n| !chain.contains(n)).collect();
        while chain.len() < copies {
            let Some(best) = others.iter().copied().min_by_key(|n| self.rank(*n, chain, bytes)) else { return };
            others.retain(|n| *n != best);
            chain.push(best);
        }
    }

    /// A chain of `copies` of the given nodes: the head where fewest heads are, unless that is full, and the others by their rank.
    pub fn choose(&self, nodes: impl Iterator<Item = NodeId>, copies: usize, bytes: u64) -> Vec<NodeId> {
        let nodes: Vec<NodeId> = nodes.collect();
        let head_key = |n: &NodeId| {
            let load = self.loads.of(*n);
            (self.fill_of(*n), load.heads, self.share(*n, bytes), load.copies, *n)
        };
        let mut chain: Vec<NodeId> = nodes.iter().copied().min_by_key(head_key).into_iter().take(copies).collect();
        self.fill(&mut chain, nodes.into_iter(), copies, bytes);
        chain
    }
}

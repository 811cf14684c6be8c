//! The nodes that may have the past of a shard.

use crate::members::{Backoff, Silence, peer};
use crate::slab::Key;
use crate::timing;
use freebs_types::{Nanos, NodeId, Peer, Sequence, ShardId, Version};
use std::collections::BTreeMap;

/// The moment of a shard that a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The version that is pinned.
    pub version: Version,
    /// The frame that pinned it: who has not committed it does not have the version.
    pub sequence: Sequence,
}

/// Members that a shard may have now, had in the view before, or keeps for those that learn.
pub(super) const MEMBERS_MAX: usize = 32;

pub(super) struct Member {
    pub node: NodeId,
    pub peer: Peer,
    /// Questions without an answer.
    pub reads: u32,
    /// It refused one: no further ones before this time.
    pub rest_until: Nanos,
    pub rest: Backoff,
    /// It was silent for too long.
    pub silence: Option<Silence>,
}

pub(super) struct Shard {
    pub id: ShardId,
    pub cut: Cut,
    pub members: Vec<Member>,
    /// Raised when the members change.
    pub epoch: u32,
    /// Parts that have not ended.
    pub parts: usize,
    /// Fetches that found no member to ask.
    pub waiting: Vec<Key>,
    pub due: Option<Nanos>,
}

pub(super) fn list(nodes: &[NodeId], shard: ShardId, workers: &BTreeMap<NodeId, u16>) -> Vec<Member> {
    let member = |node: &NodeId| Member {
        node: *node,
        peer: peer(*node, shard, workers),
        reads: 0,
        rest_until: Nanos(0),
        rest: Backoff::default(),
        silence: None,
    };
    nodes.iter().take(MEMBERS_MAX).map(member).collect()
}

impl Shard {
    pub fn new(id: ShardId, cut: Cut, nodes: &[NodeId], workers: &BTreeMap<NodeId, u16>) -> Self {
        let members = list(nodes, id, workers);
        Self { id, cut, members, epoch: 0, parts: 0, waiting: Vec::new(), due: None }
    }

    pub fn member_of(&mut self, node: NodeId) -> Option<&mut Member> {
        self.members.iter_mut().find(|m| m.node == node)
    }

    /// Counts a question to a member.
    pub fn asked(&mut self, m: usize, id: u64, now: Nanos) -> (NodeId, Peer) {
        let member = &mut self.members[m];
        member.reads += 1;
        if member.silence.is_some() {
            member.silence = Some(Silence { probe_at: now.plus(timing::PROBE_EVERY), asked: Some((id, now)) });
        }
        (member.node, member.peer)
    }

    pub fn is_silent(&mut self, node: NodeId, now: Nanos) {
        if let Some(member) = self.member_of(node) {
            member.silence.get_or_insert(Silence { probe_at: now.plus(timing::PROBE_EVERY), asked: None });
        }
    }

    /// A member has answered a question, perhaps one that nobody waits for any more.
    pub fn answered(&mut self, from: Peer, id: u64, now: Nanos) {
        let Some(member) = self.members.iter_mut().find(|m| m.peer == from) else { return };
        let asked = member.silence.and_then(|s| s.asked);
        if asked.is_some_and(|(probe, at)| probe == id && now.since(at) < timing::HEDGE_AFTER) {
            member.silence = None;
        }
    }

    pub fn forget(&mut self) {
        (self.parts, self.due) = (0, None);
        self.waiting.clear();
    }
}

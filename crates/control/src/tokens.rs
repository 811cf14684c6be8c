//! Tokens that nodes join with, and all else that the state has of how nodes come.

use crate::limits;
use freebs_types::{Error, Hash32, HostPublic, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A token, without its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Hash of its secret.
    pub hash: Hash32,
    /// Milliseconds since 1970, by the clock of the node that made it.
    pub made_ms: u64,
    /// Milliseconds since 1970.
    pub expires_ms: u64,
    /// The node that came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<NodeId>,
}

/// How nodes come into this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joining {
    /// Public half of the authority's key. `None`: the nodes are those of the cluster file, and nobody can join.
    authority: Option<HostPublic>,
    /// The highest number that a node ever had.
    last_node: NodeId,
    tokens: BTreeMap<Hash32, Token>,
    /// Nodes that were members and don't come back.
    removed: BTreeSet<NodeId>,
}

impl Joining {
    /// As it was kept; `Corrupt` if it can't have been so.
    pub(crate) fn restored(
        authority: Option<HostPublic>,
        last_node: NodeId,
        tokens: Vec<Token>,
        removed: Vec<NodeId>,
    ) -> Result<Self> {
        let count = tokens.len();
        let tokens: BTreeMap<_, _> = tokens.into_iter().map(|t| (t.hash, t)).collect();
        if tokens.len() != count || count > limits::TOKENS_MAX || last_node.0 > limits::NUMBER_MAX {
            return Err(Error::corrupt("the control state has impossible tokens"));
        }
        let count = removed.len();
        let removed: BTreeSet<_> = removed.into_iter().collect();
        let is_number = |n: &NodeId| (1..=limits::NUMBER_MAX).contains(&n.0);
        if removed.len() != count || count > limits::REMOVED_MAX || !removed.iter().all(is_number) {
            return Err(Error::corrupt("the control state has removed impossible nodes"));
        }
        Ok(Self { authority, last_node, tokens, removed })
    }

    /// Public half of the authority's key, if the cluster has one.
    #[must_use]
    pub fn authority(&self) -> Option<HostPublic> {
        self.authority
    }

    pub(crate) fn begin(&mut self, authority: HostPublic) {
        self.authority = Some(authority);
    }

    pub(crate) fn last_node(&self) -> NodeId {
        self.last_node
    }

    /// Nodes that were removed, in order of their numbers.
    #[must_use]
    pub fn removed(&self) -> &BTreeSet<NodeId> {
        &self.removed
    }

    /// Its number is given to nobody any more.
    pub(crate) fn remove_node(&mut self, node: NodeId) {
        self.last_node = self.last_node.max(node);
        self.removed.insert(node);
    }

    /// Tokens in order of their hashes.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.tokens.values()
    }

    /// The one with this hash.
    #[must_use]
    pub fn token(&self, hash: &Hash32) -> Option<Token> {
        self.tokens.get(hash).copied()
    }

    pub(crate) fn put(&mut self, token: Token) {
        self.tokens.insert(token.hash, token);
    }

    pub(crate) fn remove(&mut self, gone: &[Hash32]) {
        self.tokens.retain(|hash, _| !gone.contains(hash));
    }

    /// Forgets the oldest of those that were used, or else that which has ended first; false if there is none.
    pub(crate) fn forget_one(&mut self, now_ms: u64) -> bool {
        let used = self.tokens.values().filter(|t| t.used_by.is_some());
        let ended = self.tokens.values().filter(|t| t.expires_ms <= now_ms);
        let oldest = used.min_by_key(|t| (t.made_ms, t.hash)).or_else(|| ended.min_by_key(|t| (t.expires_ms, t.hash)));
        oldest.map(|t| t.hash).is_some_and(|hash| self.tokens.remove(&hash).is_some())
    }

    /// A token has made a node.
    pub(crate) fn spend(&mut self, token: Token, node: NodeId) {
        self.last_node = node;
        self.put(Token { used_by: Some(node), ..token });
    }
}

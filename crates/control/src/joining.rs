//! Nodes that come into a cluster with an authority: tokens, and the one command that makes a member.
//!
//! Invariants: a token makes one node, and not after its end; in a cluster with an authority nobody is registered who
//! did not come so; the number of a node is never given to another one. The secrets of tokens are not here, only their
//! hashes, and followers are not even told these.

use crate::command::{NewNode, Outcome};
use crate::limits;
use crate::rules;
use crate::state::{Node, State};
use crate::tokens::Token;
use freebs_types::{Error, Hash32, HostPublic, NodeId, Result, StartNumber, limits as common};
use std::sync::Arc;

impl State {
    /// True if only nodes that have joined are members.
    #[must_use]
    pub fn has_authority(&self) -> bool {
        self.joining().authority().is_some()
    }

    /// `Invalid` unless a node may register, and have a seat in the control plane.
    pub fn check_member(&self, node: NodeId) -> Result<()> {
        if !self.has_authority() || self.nodes.contains_key(&node) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "node {node} is no member of this cluster; `freebs cluster token` makes a token, with which it can join \
             (`freebs node join`, with an empty data directory)"
        )))
    }

    /// Nodes that new copies may be placed on. One that has joined and never ran may never come.
    pub(crate) fn places(&self) -> impl Iterator<Item = NodeId> {
        let all = !self.has_authority();
        self.nodes.values().filter(move |n| all || n.start.0 > 0).map(|n| n.id)
    }

    /// The first node, which is registered, has the authority made.
    pub(crate) fn begin_authority(&mut self, key: HostPublic, node: NodeId, identity: HostPublic) -> Result<Outcome> {
        match self.joining().authority() {
            Some(known) if known == key => return Ok(Outcome::Noted),
            Some(_) => return Err(Error::invalid("this cluster has another authority already")),
            None => {}
        }
        let Some(founder) = self.nodes.get(&node) else {
            return Err(Error::invalid(format!("node {node} is to found the cluster, and is not registered")));
        };
        let changed = self.revision + 1;
        let founder = Node { identity: Some(identity), changed, ..(**founder).clone() };
        self.revision = changed;
        self.nodes.insert(node, Arc::new(founder));
        self.joining_mut().begin(key);
        Ok(Outcome::Noted)
    }

    fn authority(&self) -> Result<()> {
        if self.has_authority() {
            return Ok(());
        }
        Err(Error::invalid(
            "this cluster has no authority, so nodes can't join it: its nodes are those of its cluster file. \
             `freebs cluster init` makes a cluster that nodes can join",
        ))
    }

    pub(crate) fn make_token(&mut self, hash: Hash32, expires_ms: u64, now_ms: u64) -> Result<Outcome> {
        self.authority()?;
        if expires_ms <= now_ms || expires_ms - now_ms > limits::TOKEN_MS_MAX {
            let most = rules::format_span(limits::TOKEN_MS_MAX);
            return Err(Error::invalid(format!("a token is good for a second to {most}")));
        }
        if let Some(known) = self.joining().token(&hash) {
            return match known.expires_ms == expires_ms && known.used_by.is_none() {
                true => Ok(Outcome::Noted),
                false => Err(Error::invalid("there is such a token already")),
            };
        }
        // Those that ended long ago are forgotten; until then they say why they are refused.
        let is_old = |t: &Token| t.expires_ms.saturating_add(limits::TOKEN_KEPT_MS) < now_ms;
        let kept = self.joining().tokens().filter(|t| !is_old(t)).count();
        if kept >= limits::TOKENS_MAX {
            return Err(Error::no_space(format!(
                "{} tokens were made in the last days; use those that are there, or wait until they are forgotten, a day \
                 behind their end",
                limits::TOKENS_MAX
            )));
        }
        self.joining_mut().keep_tokens(|t| !is_old(t));
        self.joining_mut().put(Token { hash, expires_ms, used_by: None });
        self.revision += 1;
        Ok(Outcome::Noted)
    }

    pub(crate) fn add_node(&mut self, new: NewNode) -> Result<Outcome> {
        self.authority()?;
        rules::check_node(&new.name, &new.address, new.workers)?;
        let Some(token) = self.joining().token(&new.token) else {
            return Err(Error::not_found(
                "the cluster does not know this token (any more); `freebs cluster token` makes another one",
            ));
        };
        if let Some(user) = token.used_by {
            return self.add_again(user, new);
        }
        let age_ms = new.now_ms.saturating_sub(token.expires_ms);
        if new.now_ms >= token.expires_ms {
            return Err(Error::invalid(format!(
                "the token ended {} ago, at {}; `freebs cluster token` makes another one",
                rules::format_span(age_ms / 1000 * 1000),
                rules::format_date(token.expires_ms)
            )));
        }
        if token.expires_ms - new.now_ms > limits::TOKEN_MS_MAX {
            return Err(Error::invalid(format!(
                "the token would be good until {}, longer than any may be: the clock of the node that was asked is \
                 behind ({}); set it right",
                rules::format_date(token.expires_ms),
                rules::format_date(new.now_ms)
            )));
        }
        self.is_free(&new, None)?;
        if self.nodes.len() >= common::NODES_MAX {
            return Err(Error::invalid(format!("a cluster has at most {} nodes", common::NODES_MAX)));
        }
        let highest = self.nodes.keys().next_back().copied().unwrap_or_default();
        let id = NodeId(self.joining().last_node().max(highest).0 + 1);
        self.joining_mut().spend(token, id);
        self.put_new(id, new);
        Ok(Outcome::Added { node: id })
    }

    fn put_new(&mut self, id: NodeId, new: NewNode) {
        self.revision += 1;
        let node = Node {
            id,
            name: new.name,
            address: new.address,
            workers: new.workers,
            start: StartNumber(0),
            host_key: None,
            identity: Some(new.identity),
            changed: self.revision,
        };
        self.nodes.insert(id, Arc::new(node));
    }

    /// The node that used the token may ask again, until it has run: it may not have heard the answer.
    fn add_again(&mut self, user: NodeId, new: NewNode) -> Result<Outcome> {
        let used = |by: &str| {
            Error::invalid(format!(
                "the token was used by {by} already, and each is for one node; `freebs cluster token` makes another one"
            ))
        };
        let Some(node) = self.nodes.get(&user) else { return Err(used(&format!("node {user}, which is gone"))) };
        if node.identity != Some(new.identity) {
            return Err(used(&node.name));
        }
        let is_same = (&node.name, &node.address, node.workers) == (&new.name, &new.address, new.workers);
        if !is_same && node.start.0 > 0 {
            return Err(Error::invalid(format!(
                "{} has joined with this token and key and has run since; it is started with `freebs node`",
                node.name
            )));
        }
        if !is_same {
            self.is_free(&new, Some(user))?;
            self.put_new(user, new);
        }
        Ok(Outcome::Added { node: user })
    }

    /// Refuses names, addresses and keys that another node has than the one with this number.
    fn is_free(&self, new: &NewNode, id: Option<NodeId>) -> Result<()> {
        let others = || self.nodes.values().filter(|n| Some(n.id) != id);
        if let Some(other) = others().find(|n| n.name == new.name) {
            return Err(Error::invalid(format!(
                "the name {} is node {}'s; choose another with --name",
                new.name, other.id
            )));
        }
        if let Some(other) = others().find(|n| n.address == new.address) {
            return Err(Error::invalid(format!(
                "the address {} is that of {}; choose another with --listen",
                new.address, other.name
            )));
        }
        if let Some(other) = others().find(|n| n.identity == Some(new.identity)) {
            return Err(Error::invalid(format!(
                "the key is that of {}: each node has its own, so join with an empty data directory",
                other.name
            )));
        }
        Ok(())
    }
}

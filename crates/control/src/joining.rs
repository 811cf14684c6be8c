//! Nodes that come into a cluster with an authority: tokens, and the one command that makes a member.
//!
//! Invariants: a token makes one node, and not after its end; in a cluster with an authority nobody is registered who
//! did not come so; the number of a node is never given to another one. A token that nobody used is forgotten only when it
//! is revoked, or when it has ended and another one needs its place. The secrets of tokens are not here, only their hashes,
//! and followers are not even told these.

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

    /// `Invalid` or `Fenced` unless a node may register, and have a seat in the control plane.
    pub fn check_member(&self, node: NodeId) -> Result<()> {
        self.check_removed(node)?;
        if !self.has_authority() || self.nodes.contains_key(&node) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "node {node} is no member of this cluster; `freebs cluster token` makes a token, with which it can join \
             (`freebs node join`, with an empty data directory)"
        )))
    }

    /// Nodes that new copies may be placed on. One that has joined and never ran may never come, and one that drains gets nothing.
    pub(crate) fn places(&self) -> impl Iterator<Item = NodeId> {
        let all = !self.has_authority();
        self.nodes.values().filter(move |n| !n.drains && n.weight > 0 && (all || n.start.0 > 0)).map(|n| n.id)
    }

    /// A cluster that is being founded has this authority, made with the node that founds it, whose key is `identity`. No
    /// command: who can submit one could do so to any cluster, and it can't be taken back.
    pub fn begin_authority(&mut self, key: HostPublic, node: NodeId, identity: HostPublic) -> Result<()> {
        match self.joining().authority() {
            Some(known) if known == key => return Ok(()),
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
        Ok(())
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
        // No clock takes a token away that is not in the way: it may be ahead.
        if self.joining().tokens().len() >= limits::TOKENS_MAX && !self.joining_mut().forget_one(now_ms) {
            return Err(Error::no_space(format!(
                "{} tokens were made that are good and that nobody used; use one of those, or end them with `freebs cluster \
                 token --revoke` (`freebs cluster token --list` shows them)",
                limits::TOKENS_MAX
            )));
        }
        self.joining_mut().put(Token { hash, made_ms: now_ms, expires_ms, used_by: None });
        self.revision += 1;
        Ok(Outcome::Noted)
    }

    /// Ends tokens that nobody used. Others stay as they are.
    pub(crate) fn revoke_tokens(&mut self, tokens: &[Hash32]) -> Result<Outcome> {
        self.authority()?;
        let unused = |hash: &&Hash32| self.joining().token(hash).is_some_and(|t| t.used_by.is_none());
        let gone: Vec<Hash32> = tokens.iter().filter(unused).copied().collect();
        if !gone.is_empty() {
            self.joining_mut().remove(&gone);
            self.revision += 1;
        }
        Ok(Outcome::Noted)
    }

    pub(crate) fn add_node(&mut self, new: NewNode) -> Result<Outcome> {
        self.authority()?;
        rules::check_node(&new.name, &new.address, new.workers)?;
        let Some(token) = self.joining().token(&new.token) else {
            return Err(rules::unknown_token());
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
        // The answer to another token may be lost, and the token with it: the key says that it is the same node.
        // One that has run asks again if it has lost its certificate.
        let is_it = |n: &Node| n.identity == Some(new.identity) && (n.start.0 == 0 || is_same(&new, n));
        let same = self.nodes.values().find(|n| is_it(n)).map(|n| n.id);
        if let Some(node) = same {
            let added = self.add_again(node, new)?;
            self.revision += 1;
            self.joining_mut().put(Token { used_by: Some(node), ..token });
            return Ok(added);
        }
        self.is_free(&new, None)?;
        if self.nodes.len() >= common::NODES_MAX {
            return Err(Error::invalid(format!("a cluster has at most {} nodes", common::NODES_MAX)));
        }
        let highest = self.nodes.keys().next_back().copied().unwrap_or_default().max(self.joining().last_node());
        if highest.0 >= limits::NUMBER_MAX {
            return Err(Error::invalid(format!("there are no numbers for nodes behind {highest}")));
        }
        let id = highest.next();
        self.joining_mut().spend(token, id);
        self.put_new(id, new);
        Ok(Outcome::Added { node: id })
    }

    fn put_new(&mut self, id: NodeId, new: NewNode) {
        self.revision += 1;
        let node = Node::new(id, (new.name, new.address), new.workers, StartNumber(0), self.revision);
        let node = Node { identity: Some(new.identity), ..node };
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
        let is_same = is_same(&new, node);
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
        self.is_free_address(&new.address, id)?;
        if let Some(other) = others().find(|n| n.identity == Some(new.identity)) {
            return Err(Error::invalid(format!(
                "the key is that of {}: each node has its own, so join with an empty data directory",
                other.name
            )));
        }
        Ok(())
    }

    /// Refuses an address that another node has than the one with this number.
    fn is_free_address(&self, address: &str, id: Option<NodeId>) -> Result<()> {
        match self.nodes.values().find(|n| Some(n.id) != id && n.address == address) {
            Some(other) => Err(Error::invalid(format!(
                "the address {address} is that of {}; choose another with --listen",
                other.name
            ))),
            None => Ok(()),
        }
    }

    /// Refuses where a member can't be. In a cluster without an authority nobody looks: its logs say so.
    pub(crate) fn check_place(&self, node: NodeId, address: &str) -> Result<()> {
        if self.has_authority() { self.is_free_address(address, Some(node)) } else { Ok(()) }
    }
}

/// True if who joins has the name, place and workers of that node.
fn is_same(new: &NewNode, node: &Node) -> bool {
    (&node.name, &node.address, node.workers) == (&new.name, &new.address, new.workers)
}

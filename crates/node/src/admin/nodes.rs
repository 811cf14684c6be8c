//! Requests about nodes: they are emptied, removed, placed in zones, and have copies and heads moved to them.

use super::service::{Service, bare};
use super::status;
use crate::timing;
use freebs_control::api::{DrainStatus, MoveStatus, NodeStatus, Reply};
use freebs_control::{Command, ControlPlane, MOVES_MAX, State};
use freebs_types::{Error, NodeId, Result};
use std::collections::BTreeSet;

/// The number of the node with this name.
fn named(state: &State, name: &str) -> Result<NodeId> {
    state.nodes().find(|n| n.name == name).map(|n| n.id).ok_or_else(|| {
        let names: Vec<&str> = state.nodes().map(|n| n.name.as_str()).collect();
        Error::not_found(format!("there is no node '{name}'; there are {}", names.join(", ")))
    })
}

impl Service {
    pub(super) async fn drain(&self, name: &str, drains: bool, heir: Option<&str>) -> Result<Reply> {
        let state = self.state()?;
        let node = named(&state, name)?;
        let heir = heir.map(|name| named(&state, name)).transpose()?;
        self.plane.submit(Command::DrainNode { node, drains, heir }).await?;
        let shards = self.state()?.shards_at(node) as u64;
        Ok(Reply::Draining(DrainStatus { node: name.into(), drains, shards }))
    }

    pub(super) async fn remove(&self, name: &str) -> Result<Reply> {
        self.newest().await?;
        let state = self.state()?;
        let node = named(&state, name)?;
        state.may_remove(node)?;
        self.plane.may_be_without(&state, node)?;
        self.plane.submit(Command::RetireNode { node }).await?;
        let gone = async {
            loop {
                let state = self.state()?;
                if state.is_removed(node) {
                    return Ok(Reply::Removed { node });
                }
                self.plane.changed(state.revision()).await;
            }
        };
        let waits = |_| {
            Err(Error::busy(format!(
                "{name} still has a vote in the control plane, because too few others that could vote are there; it is removed as \
                 soon as they are, or stays with `freebs node drain {name} --undo`"
            )))
        };
        tokio::time::timeout(timing::RETIRE_MAX, gone).await.unwrap_or_else(waits)
    }

    pub(super) async fn place(&self, name: &str, zone: Option<String>, weight: Option<u16>) -> Result<Reply> {
        let node = named(&*self.state()?, name)?;
        self.plane.submit(Command::PlaceNode { node, zone, weight }).await?;
        let state = self.state()?;
        let found = state.node(node).ok_or_else(|| Error::not_found(format!("{name} was removed meanwhile")))?;
        Ok(Reply::Placed { node: NodeStatus::new(&state, found) })
    }

    /// The plan, without the nodes that are named in `avoid`.
    pub(super) async fn spread_plan(&self, avoid: &[String]) -> Result<Reply> {
        let state = self.state()?;
        let away: BTreeSet<NodeId> = avoid.iter().map(|name| named(&state, name)).collect::<Result<_>>()?;
        // With many volumes it takes a while, in which the node's seat is to be heard.
        let plan = tokio::task::spawn_blocking(move || {
            let told = |of: Vec<freebs_control::Move>| of.iter().map(|m| MoveStatus::new(&state, m)).collect();
            let copies = told(state.copy_moves(&away));
            Reply::Spread { copies, heads: told(state.head_moves(&away, None, MOVES_MAX)) }
        });
        plan.await.map_err(|e| Error::bug(format!("the plan was not made: {e}")))
    }

    pub(super) async fn move_copy(&self, name: &str, shard: u32, from: &str, to: &str) -> Result<Reply> {
        let state = self.state()?;
        let volume = state.need(name)?;
        if volume.shard(shard).is_none() {
            return Err(Error::not_found(format!("volume '{name}' has no shard {shard}")));
        }
        let (from, to) = (named(&state, from)?, named(&state, to)?);
        if from != to {
            self.reaches(to, "it can't have a copy").await?;
        }
        self.plane.submit(Command::MoveCopy { shard: volume.shard_id(shard), from, to }).await?;
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    pub(super) async fn move_head(&self, name: &str, node: &str, only: Option<u32>) -> Result<Reply> {
        let state = self.state()?;
        let volume = state.need(name)?;
        let to = named(&state, node)?;
        let wanted = volume.shards.iter().filter(|s| match only {
            Some(index) => s.index == index,
            None => s.members.contains(&to),
        });
        let wanted: Vec<u32> = wanted.map(|s| s.index).collect();
        if wanted.is_empty() {
            return Err(match only {
                Some(index) => Error::not_found(format!("volume '{name}' has no shard {index}")),
                None => Error::invalid(format!(
                    "node {node} is no member of any shard of volume '{name}'; `freebs volume show {name}` names them"
                )),
            });
        }
        // Nothing would be ordered there before it is back, or another one has been made head in its place.
        self.reaches(to, &format!("it can't be head of volume '{name}'")).await?;
        for index in wanted {
            self.plane.submit(Command::MoveHead { shard: volume.shard_id(index), node: to }).await?;
        }
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    /// `Retry` if a node does not answer from here.
    async fn reaches(&self, to: NodeId, else_what: &str) -> Result<()> {
        let state = self.state()?;
        let Some(node) = state.node(to).filter(|n| n.id != self.me().id) else { return Ok(()) };
        let refused =
            |e: Error| Error::retry(format!("{} can't be reached, so {else_what} now: {}", node.name, e.text));
        status::is_there(node).await.map_err(refused)
    }
}

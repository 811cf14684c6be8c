//! Before a node is stopped its heads move to other members, so that its volumes' clients notice nothing.

use super::service::Service;
use super::status;
use crate::timing;
use freebs_control::limits::FAILED_NODES_MAX;
use freebs_control::{Command, ControlPlane, Node, State};
use freebs_types::{NodeId, Result, ShardId, StartNumber, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The shards that a node heads, with the view that is active there.
fn heads_of(state: &State, node: NodeId) -> BTreeMap<ShardId, ViewNumber> {
    let shards = state.volumes().flat_map(|v| v.shards.iter().map(|s| (v.shard_id(s.index), s)));
    shards.filter(|(_, s)| s.head() == Some(node)).map(|(id, s)| (id, s.active)).collect()
}

/// Of these heads, those that other members have taken over: a newer view than the one noted is active there; and those
/// that they are about to take over. One that could not be moved (too few other members are there) is neither.
fn taken_over(before: &BTreeMap<ShardId, ViewNumber>, state: &State, node: NodeId) -> (usize, usize) {
    let moved = before.iter().filter_map(|(id, view)| Some((state.shard(*id)?, view)));
    let moved: Vec<_> = moved.filter(|(s, _)| s.head() != Some(node)).collect();
    let opened = moved.iter().filter(|(s, view)| s.active > **view).count();
    (opened, moved.len() - opened)
}

/// Nodes that share a shard with `node` as its head, and do not answer: no head may go to them.
async fn absent(state: &State, node: NodeId, heads: &BTreeMap<ShardId, ViewNumber>) -> Vec<(NodeId, StartNumber)> {
    let members = heads.keys().filter_map(|id| state.shard(*id)).flat_map(|s| &s.members);
    let members: BTreeSet<NodeId> = members.copied().filter(|n| *n != node).collect();
    let mut asked = JoinSet::new();
    for member in members.iter().filter_map(|n| state.node(*n)) {
        let member: Arc<Node> = Arc::clone(member);
        asked.spawn(async move {
            let there = tokio::time::timeout(timing::HAND_OVER_LOOK, status::is_there(&member)).await;
            (!there.is_ok_and(|t| t.is_ok())).then_some((member.id, member.start))
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

impl Service {
    /// Moves this node's heads to other members, as far as these are there and enough, and returns when they have opened
    /// their views; the number of heads that moved. It may wait for ever: a member may die meanwhile.
    pub async fn hand_over(&self) -> Result<usize> {
        let state = self.state()?;
        let me = self.me();
        let before = heads_of(&state, me.id);
        let mut gone = vec![(me.id, me.start)];
        gone.extend(absent(&state, me.id, &before).await);
        gone.truncate(FAILED_NODES_MAX);
        let nodes: BTreeSet<NodeId> = gone.iter().map(|(node, _)| *node).collect();
        if !state.heads_without(&nodes).iter().any(|(_, head, _)| *head == me.id) {
            return Ok(0);
        }
        self.plane.submit(Command::FailOver { nodes: gone }).await?;
        let mut state = self.plane.state();
        loop {
            let (opened, waits) = taken_over(&before, &state, me.id);
            if waits == 0 {
                return Ok(opened);
            }
            state = self.plane.changed(state.revision()).await;
        }
    }

    /// The number of shards that this node heads, as far as it knows.
    pub fn heads(&self) -> usize {
        heads_of(&self.plane.state(), self.me().id).len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MAX, ask, cluster, create, level, register};
    use super::*;
    use freebs_control::api::Request;
    use freebs_types::Generation;
    use std::time::Duration;

    async fn open_view(nodes: &[super::super::tests::Node], shard: ShardId) -> NodeId {
        let state = nodes[0].plane.state();
        let (head, active) = state.shard(shard).map(|s| (s.head().unwrap(), s.active)).unwrap();
        let plane = &nodes[head.0 as usize - 1].plane;
        let propose = Command::ProposeView { shard, active, node: head, start: StartNumber(1) };
        plane.submit(propose).await.unwrap();
        let view = active.next();
        plane.submit(Command::ActivateView { shard, view, generation: Generation(0) }).await.unwrap();
        head
    }

    /// Returns when the others have opened their views, and not before; a node that is not there gets no head.
    #[tokio::test]
    async fn heads_go_to_members_that_are_there_and_open_their_views() {
        let dir = tempfile::tempdir().unwrap();
        let mut nodes = cluster(dir.path(), 5).await;
        for (id, node) in (1..).zip(&nodes) {
            register(node, id, 1).await;
        }
        let mut new = create("a");
        new.copies = Some(5);
        ask(&nodes[0], Request::VolumeCreate(new)).await.unwrap();
        level(&nodes).await;
        let shard = ShardId::new(1, 0);
        let members = nodes[0].plane.state().shard(shard).unwrap().members.clone();
        let head = open_view(&nodes, shard).await;
        level(&nodes).await;
        // The node behind the head is gone, and nobody has noticed.
        let gone = nodes.iter().position(|n| n.service.me().id == members[1]).unwrap();
        drop(nodes.remove(gone));
        let service = |of: NodeId| nodes.iter().find(|n| n.service.me().id == of).unwrap().service.clone();
        let idle = service(members[3]);
        assert_eq!((idle.heads(), idle.hand_over().await), (0, Ok(0)), "it heads nothing");
        let old = service(head);
        assert_eq!(old.heads(), 1);
        let mut handing = tokio::spawn(async move { old.hand_over().await });
        let plane = &nodes.iter().find(|n| n.service.me().id == members[2]).unwrap().plane;
        let mut state = plane.state();
        while state.shard(shard).unwrap().head() == Some(head) {
            state = plane.changed(state.revision()).await;
        }
        assert_eq!(plane.state().shard(shard).unwrap().head(), Some(members[2]), "the first that is there");
        let early = tokio::time::timeout(Duration::from_millis(300), &mut handing).await;
        assert!(early.is_err(), "nobody orders there yet: {early:?}");
        let active = plane.state().shard(shard).unwrap().active;
        let propose = Command::ProposeView { shard, active, node: members[2], start: StartNumber(1) };
        plane.submit(propose).await.unwrap();
        let view = active.next();
        plane.submit(Command::ActivateView { shard, view, generation: Generation(0) }).await.unwrap();
        assert_eq!(tokio::time::timeout(MAX, handing).await.unwrap().unwrap(), Ok(1));
    }

    /// A node alone has nobody to hand anything to, and is not kept from stopping.
    #[tokio::test]
    async fn a_node_alone_keeps_its_heads() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = cluster(dir.path(), 1).await;
        register(&nodes[0], 1, 1).await;
        ask(&nodes[0], Request::VolumeCreate(create("a"))).await.unwrap();
        assert_eq!((nodes[0].service.heads(), nodes[0].service.hand_over().await), (1, Ok(0)));
    }
}

//! Before a node is stopped on purpose its heads move to other members, so that its volumes' clients notice nothing.

use crate::admin::Client;
use crate::timing;
use freebs_control::Command;
use freebs_control::api::{Reply, Request, Status};
use freebs_types::{Error, Result};
use std::collections::BTreeMap;

/// The heads that a node has, by shard, with the view that is active there.
fn heads_of(status: &Status, node: &str) -> BTreeMap<String, u64> {
    let shards = status.volumes.iter().flat_map(|v| &v.shards);
    shards.filter(|s| s.head == node).map(|s| (s.id.clone(), s.view.0)).collect()
}

/// Whether every one of these shards has been taken over: a newer view than the one noted is active in it. One that
/// could not be moved (too few other members are there) still has its head, and is not waited for.
fn taken_over(before: &BTreeMap<String, u64>, status: &Status, node: &str) -> bool {
    let shards = status.volumes.iter().flat_map(|v| &v.shards);
    shards.filter(|s| s.head != node).all(|s| before.get(&s.id).is_none_or(|view| s.view.0 > *view))
}

async fn status(client: &Client) -> Result<Status> {
    match client.call(&Request::Status, timing::CALL_MAX).await? {
        Reply::Status(status) => Ok(status),
        _ => Err(Error::corrupt("a node answered something else")),
    }
}

async fn move_heads(others: &[String], address: &str) -> Result<()> {
    let client = Client::connect(address).await?;
    let Reply::Node(node) = client.call(&Request::NodeInfo, timing::CALL_MAX).await? else {
        return Err(Error::corrupt("a node answered something else"));
    };
    // It is asked elsewhere: what this one says of itself ends with it.
    let client = Client::connect_any(others).await?;
    let before = heads_of(&status(&client).await?, &node.name);
    if before.is_empty() {
        return Ok(());
    }
    let command = Command::FailOver { nodes: vec![(node.id, node.start)] };
    client.call(&Request::Submit { command }, timing::CALL_MAX).await?;
    while !taken_over(&before, &status(&client).await?, &node.name) {
        tokio::time::sleep(timing::UP_LOOK).await;
    }
    Ok(())
}

/// Moves the heads of the node at `address` to others of the cluster, as far as that can be done in a few seconds. A
/// node that does not answer has nothing to hand over, and is stopped all the same.
pub async fn hand_over(others: Vec<String>, address: String) {
    let moved = tokio::time::timeout(timing::HAND_OVER_MAX, move_heads(&others, &address)).await;
    if let Ok(Err(e)) = moved {
        tracing::debug!("the heads of the node at {address} were not moved: {e}");
    }
}

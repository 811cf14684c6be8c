//! The control plane at the edge: its state on a disk, its requests on sockets.
//!
//! For now the members come from the cluster file and its first node, the *keeper*, puts commands in order: it
//! applies them, makes the state durable and only then answers and shows it. All others follow the keeper with a
//! long poll and forward commands to it, so any node can be asked anything, and reading goes on from the last known
//! state while the keeper is down.
//!
//! A node wires it so: [`Plane::start`] first of all (before devices are made), then `State::next_start` with what the
//! devices come with, then a [`Service`] over the plane and its [`LocalNode`] (connections that say `Role::Control` go
//! to [`serve`]), then `RegisterNode` with the number of this start.

mod client;
mod follower;
mod keeper;
mod plane;
mod server;
mod service;
mod status;
mod store;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use plane::{FollowerOptions, Plane};
pub use server::serve;
pub use service::{Me, Service};

use freebs_control::api::{ShardDigest, ShardStatus};
use freebs_types::{Result, ShardId, VolumeId};
use std::future::Future;
use std::pin::Pin;

/// A future of a trait object.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a node can say of its own replicas; the data path implements it.
pub trait LocalNode: Send + Sync + 'static {
    /// All shards here (of one volume if one is named), in order.
    fn shards(&self, volume: Option<VolumeId>) -> LocalFuture<'_, Vec<ShardStatus>>;

    /// Hash over everything a replica holds now; reads and checks all of it. `NotFound` if the shard is not here.
    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>>;
}

//! The control plane at the edge: a seat on a disk, its messages and requests on sockets.
//!
//! Every node has a *seat* with a copy of the state (`freebs_consensus`); 1, 3 or 5 of them vote. Any node can be asked
//! anything: it answers from its copy, and sends commands on to whoever leads. Gateways follow any node by a long poll.
//!
//! A node wires it so: [`Plane::seat`] first of all (before devices are written to), with connections that say
//! `Role::Seat` brought to [`hear_seat`] from then on; then the steps of `freebs_agent::CameWith`, on [`Plane::newest`], with
//! [`Plane::started`] once the number is on the devices, a [`Service`] over the plane and its [`LocalNode`] (connections
//! that say `Role::Control` go to [`serve`]), and [`Plane::register`].

mod attachments;
mod audit;
mod client;
mod earlier;
mod events;
mod follower;
mod hand_over;
mod joining;
mod plane;
mod recover;
pub mod schedules;
mod seat;
pub mod seat_files;
mod seat_links;
mod server;
mod service;
mod snapshots;
mod status;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use plane::{FollowerOptions, Plane};
pub use seat::{Authority, SeatOptions};
pub use server::{hear_seat, serve, turn_away};
pub use service::{Me, Service};
pub use snapshots::{ROLLING_BACK, name_of_time};

use freebs_control::api::{IntervalAnswer, IntervalQuestion, ShardDigest, ShardStatus};
use freebs_control::audit::{AuditOf, AuditState};
use freebs_types::{Result, ShardId, VolumeId};
use std::future::Future;
use std::pin::Pin;

/// A future of a trait object.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a node can say of its own replicas; the data path implements it.
pub trait LocalNode: Send + Sync + 'static {
    /// All shards here (of one volume if one is named), in order.
    fn shards(&self, volume: Option<VolumeId>) -> LocalFuture<'_, Vec<ShardStatus>>;

    /// Takes a volume from whoever has it, and gives it back; afterwards no driver of it answers anybody. `Busy` if somebody
    /// has it who is there, unless `force`.
    fn expel(&self, volume: VolumeId, force: bool) -> LocalFuture<'_, Result<()>>;

    /// Begins the audit of a replica's hash chain, or says how far it is. `NotFound` if the shard is not here.
    fn audit(&self, of: AuditOf) -> LocalFuture<'_, Result<AuditState>>;

    /// Hash over everything a replica holds now; reads and checks all of it. `NotFound` if the shard is not here.
    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>>;

    /// Another shard's head asks the head of one that is here about an interval. `Retry` if it is not here, or can't say it
    /// now.
    fn ask_interval(&self, of: IntervalQuestion) -> LocalFuture<'_, Result<IntervalAnswer>>;
}

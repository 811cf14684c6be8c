//! The control plane, replicated: `freebs_control::State` behind a Raft log, in 1, 3 or 5 of the nodes.
//!
//! The protocol is the library's (`openraft`); what is ours is what it stands on and what stands on it:
//! - [`store`]: vote, log and snapshot in one file through the device trait, in formats of our own ([`pages`],
//!   [`superblock`], [`codec`]);
//! - [`note`]: what tells an old or blank store from the present one;
//! - [`wire`]: messages with fixed headers and maxima;
//! - [`machine`]: the replicated state and the sessions that make a command count once;
//! - [`voters`]: who votes, as a pure function;
//! - [`peer`]: a seat at work: forwarding, joining, changing voters;
//! - [`timing`]: how long each of them waits;
//! - [`doubts`]: when a voter gives its leader up;
//! - [`failures`]: which nodes have failed, and what becomes of their shards, as the leader decides it;
//! - [`lookout`]: whom the leader asks about nodes, and what it orders;
//! - [`orders`]: how long its orders count;
//! - [`reach`]: what a node says of another one that it is asked about;
//! - [`handle`]: what the other threads of a node have of it, the trait `ControlPlane`.
//!
//! Everything runs in one thread, and all chance comes from a seed, so that a cluster under simulation runs the same
//! way twice. The formats are in `docs/formats/control.md`, the reasons in `docs/design/0014`.

pub mod codec;
pub mod doubts;
pub mod failures;
pub mod handle;
pub mod limits;
mod links;
mod log;
pub mod lookout;
pub mod machine;
mod mutant;
pub mod note;
pub mod orders;
pub mod pages;
pub mod peer;
pub mod reach;
mod returns;
pub mod runtime;
mod scan;
mod sound;
mod spread;
pub mod store;
pub mod superblock;
pub mod timing;
pub mod types;
pub mod voters;
pub mod wire;

pub use links::Network;
pub use log::Watcher;
pub use mutant::Mutant;
pub use peer::Peer;
pub use store::{Options, Store};
pub use timing::Timing;
pub use types::Seat;
pub use wire::{Devices, Room};

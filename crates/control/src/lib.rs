//! The control plane: which nodes there are, which volumes, which chain each shard has, and who may use it.
//!
//! [`State`] is the whole of it, and [`State::apply`] the only way it changes: a pure function of the state and a
//! [`Command`], so that it can be replicated as a log of commands. Nothing here does I/O. What stands behind the
//! trait [`ControlPlane`] (a static one kept by one node, or a replicated one) decides only where the commands are
//! put in order and made durable. No read or write of a volume needs any of it; view changes and attachments do.
//!
//! Invariants, checked by the property tests:
//! - names are unique, and the id of a volume is never used twice;
//! - view numbers of a shard only grow, at most one view is pending, and only the pending one becomes active (V6);
//! - attachment generations only grow;
//! - the same commands in the same order give the same state, bit for bit.

pub mod api;
mod apply;
pub mod audit;
mod changes;
mod clones;
pub mod cluster_file;
pub mod codec;
mod command;
mod draining;
mod durable;
pub mod events;
mod failover;
mod joining;
pub mod limits;
mod members;
mod mutant;
mod placement;
mod plane;
pub mod rebuild;
pub mod recover;
pub mod removal;
pub mod rules;
mod shorter;
mod snapshots;
mod standing;
mod state;
pub mod timing;
mod tokens;

pub use changes::Changes;
pub use command::{Command, CreateVolume, Done, NewNode, Outcome, RecoverShard};
pub use draining::DrainStep;
pub use durable::{STATE_HEADER_BYTES, STATE_MAGIC, STATE_VERSION, StateHeader};
pub use mutant::Mutant;
pub use plane::ControlPlane;
pub use shorter::Leaving;
pub use snapshots::{Cut, Group, Keep, Schedule, Snapshot, SnapshotVolume, Stage};
pub use standing::StandingIn;
pub use state::{Ack, Branch, FIRST_FOUNDING, Forced, Holder, Node, Origin, Pending, Shard, State, Volume};
pub use tokens::{Joining, Token};

//! A node or a gateway, the control state and its peers: the steps of a start, the shards that it has, the views that it
//! opens, the volumes that it attaches and gives back, the links that it opens and takes. Decisions only; sockets, threads
//! and clocks are of whoever calls.
//!
//! The node and the simulator use the same code, so that what is decided here is tried under all faults.
//!
//! Invariants:
//! - What a member is told of a shard, and what it opens, comes from one control state each (rules V2, V6).
//! - Nothing is said to members, and nothing heard of them, before the control plane has taken the node in (V8).
//! - A shard is left only if the control state has the volume and another chain for it, and is gone only if the volume was
//!   deleted: a state that does not know a volume says nothing of it (V7).

mod attach;
mod cuts;
mod dial;
mod follow;
mod links;
mod member;
mod past;
mod plane;
mod port;
mod register;
mod shards;
mod start;
mod status;
pub mod timing;
mod volumes;

pub use attach::{Answer, Asking, Attachment, Lapse, Right, in_place_of_lapsed, refused};
pub use dial::{Dialler, caller, check_start, dials};
pub use follow::Following;
pub use links::{DriverLinks, Wanted};
pub use member::Membership;
pub use past::{cuts_of, holders_of, past_news_of, readable, reader_of, since};
pub use plane::Commands;
pub use port::Port;
pub use register::{Pause, Registration};
pub use shards::{News, Shards};
pub use start::{About, Begun, CameWith, Numbered, TakenIn, highest_start};
pub use status::{add_device, log_status, survey_of};
pub use volumes::{news_of, spec_of, workers_of};

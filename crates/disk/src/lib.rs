//! A virtual disk in a file, for one process: FreEBS's LSVD library (section 4.3, figure 5) on the log engine.
//!
//! Every change is an update, and the disk's version counts them. Updates are appended to a log, so random writes cost
//! what sequential ones do, and after a crash the disk is at exactly one version: all updates up to it, none after.
//!
//! The rooms: `disk` is what callers see; `shared` has the lock and decides who moves things on; `inside` is what
//! lies behind the lock: the `head` orders updates and packs frames, the engine keeps them, `overlay` has what is not
//! durable yet, `ahead` reads ahead; `blocks` turns bytes into updates; `open` and `description` make and find disks; `writes` passes
//! them from one disk to another; `versions` keeps old ones.
//!
//! This crate is an edge: it has threads, a clock and a file.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "an edge crate: threads, clock, files")]
mod ahead;
mod blocks;
mod confined;
mod description;
mod disk;
mod head;
mod inside;
mod open;
mod overlay;
mod piece;
mod shared;
mod timing;
mod versions;
mod writes;

pub use description::SIZE_MAX;
pub use disk::{Disk, Status};
pub use freebs_lsvd::{Counters, Event, EventKind, HistoryState, OpenReport, Space};
pub use freebs_types::{Error, ErrorKind, Result, Version};
pub use open::{CreateOptions, OpenOptions};
pub use piece::{PIECE_BYTES_MAX, PIECE_HEADER_BYTES, first_version};
pub use writes::Writes;

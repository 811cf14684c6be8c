//! Bytes and segments: where things lie on the device, and the way to it. Nothing here knows a shard's state.

pub mod contents;
pub mod gate;
pub mod geometry;
pub mod guard;
pub mod join;
pub mod lost;
pub mod openings;
pub mod place;
pub mod scan;
pub mod segments;
pub mod superblock;
pub mod tomb_list;
pub mod whole;

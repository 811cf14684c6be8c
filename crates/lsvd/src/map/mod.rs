//! Entries of the map, in memory and in sorted runs on the device. Nothing here knows the engine.

pub mod cache;
pub mod extents;
pub mod levels;
pub mod page;
pub mod past;
pub mod run;
pub mod tally;

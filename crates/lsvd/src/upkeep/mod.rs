//! Upkeep of a log beside its work: cleaning, scrubbing, checkpoints.

pub mod checkpoint;
pub mod clean;
pub mod scrub;

//! Reading back: blocks and frames, the present and the past.

mod at_version;
pub mod blocks;
mod forked;
pub mod frames;
mod lost;
mod moments;
mod since;

//! The control plane's state from outside: commands, their bytes, and the state that logs give again.

mod audit;
mod clones;
mod codec;
mod draining;
mod formats;
mod joining;
mod left_out;
mod openings;
mod properties;
mod rebuild;
mod recover;
mod removal;
mod retained;
mod shorter;
mod snapshots;
mod standing;
mod state;
#[path = "../../../format/tests/suite/tables.rs"]
mod tables;

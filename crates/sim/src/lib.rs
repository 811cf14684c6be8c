//! A whole cluster in one thread under one seed: the real cores on simulated devices, links, clocks and processes,
//! with faults, clients, and an oracle that knows what every read may return.
//!
//! Invariants: a run is a function of its seed (same seed, same trace hash); nothing here knows how the cores work
//! inside; each fault has its odds in `Config`, and faults of kinds that lose more than the contract allows are
//! never made. The README beside this crate says what is modelled and how a failing seed is looked into.

mod audit;
mod clones;
mod cluster;
mod config;
mod content;
mod control;
mod device;
mod faults;
mod forced;
mod gateway;
mod history;
mod intervals;
mod leader;
mod less;
mod lost;
pub mod mutants;
mod network;
mod node;
mod oracle;
mod progress;
mod raft;
mod rng;
mod run;
mod shrink;
mod snapshots;
mod timing;
mod watch;
mod workload;
mod world;

pub use cluster::Mutants;
pub use config::{Config, Odds, VolumeConfig};
pub use less::{Less, fault_names, parse_time, parse_volumes};
pub use mutants::{mutant_by_name, mutant_names};
pub use run::{Outcome, run, run_config};
pub use shrink::{Shrunk, shrink};

//! Process tests: clusters of real processes under real clients and real kills.
//!
//! `FREEBS_BIN` names another program than the one of this build, `FREEBS_FULL=1` asks for the long forms,
//! `FREEBS_ROUNDS` says how often a fault of `faults` is repeated, `FREEBS_SEED` repeats a random one, `FREEBS_KEEP=1`
//! keeps the data of a failed one.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests of real processes in real time")]

mod support;

mod attachments;
mod backup;
mod bad_input;
mod by_hand;
mod clients;
mod clones;
mod control_rebuild;
mod damage;
mod databases;
mod draining;
mod events;
mod faults;
mod filesystem;
mod first_start;
mod forced;
mod full;
mod images;
mod joining;
mod kills;
mod leader;
mod members;
mod pages;
mod past;
mod recover;
mod services;
mod serving;
mod snapshots;
mod spreading;
mod stops;
mod tools;
mod verify;

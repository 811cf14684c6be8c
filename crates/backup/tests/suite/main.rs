//! Backups against a store in memory that fails, loses answers, is killed, and whose clients run in any order.

mod faults;
mod formats;
mod places;
mod races;
mod rounds;
#[path = "../../../format/tests/suite/tables.rs"]
mod tables;
mod world;
mod wrong;

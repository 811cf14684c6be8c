//! The control state's replication from outside. `sim` is the slow part: whole control planes under drawn faults.

mod doubts;
mod failures;
mod formats;
mod handle;
mod hostile;
mod lookout;
mod machine;
mod note;
mod orders;
mod reach;
mod returns;
mod sim;
mod slow;
mod standing;
mod store;
#[path = "../../../format/tests/suite/tables.rs"]
mod tables;
mod voters;

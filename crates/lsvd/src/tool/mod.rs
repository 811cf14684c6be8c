//! Tools for a device that nobody uses: what is on it, whether all of it is right, and making its soft state again.
//!
//! They work on a damaged device and say what is lost. `inspect` and `verify` only read. `rebuild` writes indexes of
//! closed segments, and only behind the appends of a segment that it has read whole. `recover` takes what is lost for
//! lost, if the caller says so.
//!
//! Invariants: bytes are understood by the code that recovery and reads use, so a tool and a node never disagree.
//! Nothing on a device makes a tool panic, or hold more than its maps, one segment and its named maxima.

mod check;
mod inspect;
mod opened;
mod rebuild;
mod recover;
mod state;
mod survey;
mod verify;

pub use inspect::inspect;
pub use rebuild::rebuild;
pub use recover::recover;
pub use survey::{ShardSurvey, Survey, survey};
pub use verify::verify;

pub use crate::api::report::*;

//! Words of freebs as types: identities, numbers, units, limits, times and kinds of error.
//!
//! Every number that could be confused with another one has a type of its own. Nothing here does I/O.
//! Invariant: all of these are plain values; their order is the order of the number inside.

mod error;
mod fork;
mod ids;
#[cfg(feature = "serde")]
mod json;
pub mod limits;
mod past;
mod slice;
pub mod timing;
mod units;

pub use error::{Error, ErrorKind, Result};
pub use fork::Fork;
pub use ids::*;
pub use past::{Moment, Past, TIMES_LBA};
pub use slice::*;
pub use units::*;

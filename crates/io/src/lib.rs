//! The edge of freebs: traits for devices, network, clock and randomness, and what stands behind them.
//!
//! Everything above these traits is deterministic. `linux` holds the real implementations (io_uring, sockets,
//! clocks) and is the only module here that may touch them; `memory` holds a plain device for tests, `faults` devices
//! that lose, fail and rot.

mod any;
mod buf;
mod device;
mod env;
pub mod faults;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod memory;
mod net;
#[cfg(target_os = "linux")]
mod timing;

pub use any::AnyDevice;
pub use buf::AlignedBuf;
pub use device::{Device, Durability};
pub use env::{Clock, Random};
pub use net::{LinkId, Outbox};

//! Devices that fail on purpose, behind the device trait: for the tests of whatever stands on a device, here and in
//! programs that use the library.
//!
//! - [`CrashDevice`] is memory that knows what a power cut may take: whatever was not promised durable is lost,
//!   kept, reordered or torn at sectors, growth included.
//! - [`FaultDevice`] wraps a device and lets chosen calls fail or hang.
//! - [`RotDevice`] wraps a device and changes bytes behind its user's back, or loses and misdirects writes.
//!
//! Invariants: everything is deterministic (chance comes from seeds that the caller gives, and nothing else), and no
//! fault is one that the device trait excludes, except those that are named as lies.

mod crash;
mod fault;
mod luck;
mod pages;
mod rot;

pub use crash::{CrashDevice, Lie, PowerCut, Survives};
pub use fault::{Call, Failure, FaultDevice};
pub use rot::{Rot, RotDevice};

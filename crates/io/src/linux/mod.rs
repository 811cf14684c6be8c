//! Linux implementations: the only place that touches files, sockets, the clock and the random generator.
//!
//! A worker is one thread with a current-thread tokio runtime and a `LocalSet`. Inside it live one [`ring::Ring`]
//! (io_uring, or a thread pool where that is forbidden), the worker's [`FileDevice`]s, and one [`net::Transport`]. None
//! of these may leave their thread, and none takes a lock on the way of a request.
//!
//! Invariants:
//! - A buffer handed to the kernel stays alive until the kernel has answered, whatever becomes of the future.
//! - What is queued during a turn of the loop (device operations, messages) is submitted once, at its end.
//! - Everything that waits has a named maximum: operations in flight, bytes queued on a link, bytes of a message.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

pub mod busy;
mod device;
mod env;
mod lent;
pub mod net;
pub mod ring;
mod turn;

pub use device::{DeviceOptions, FileDevice, Poison, Pulse};
pub use env::{OsRandom, SystemClock};
pub use lent::{Done, LentDevice, Which, Work};

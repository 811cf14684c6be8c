//! Node, gateway, supervisor and command line: all of the binary `freebs`. It wires the other crates to sockets,
//! files, clocks and signals, and decides nothing of the protocol. For programs that use volumes there is `client`, which
//! stands on [`attached`] here, as the commands do that copy whole volumes.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is an edge crate")]

mod admin;
pub mod attached;
mod cli;
mod cluster_file;
mod conn;
mod events;
mod files;
mod fill;
mod gateway;
mod headroom;
mod host_socket;
mod identity;
mod options;
mod places;
mod runtime;
mod supervised;
mod timing;
mod up;

/// Runs what the command line says.
pub fn main() -> std::process::ExitCode {
    cli::main()
}

//! The binary `freebs`: node, gateway, supervisor and command line. It wires the other crates to sockets, files,
//! clocks and signals, and decides nothing of the protocol.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is an edge crate")]

mod admin;
mod attached;
mod cli;
mod cluster_file;
mod conn;
mod events;
mod files;
mod gateway;
mod headroom;
mod host_socket;
mod identity;
mod options;
mod places;
mod runtime;
mod timing;
mod up;

/// Requests are many small allocations of many sizes, freed in another order than they came.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}

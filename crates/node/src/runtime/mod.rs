//! The data path of a node or gateway: worker threads, their links and shards, and the drivers that serve clients.
//!
//! The main thread listens, greets and keeps in touch with the control plane; what belongs to a shard or a volume is
//! handed to its worker's thread once, and stays there.

mod audits;
mod core;
mod dial;
mod drivers;
mod greet;
mod membership;
mod nbd_conn;
mod node;
mod thread;
mod wire;

pub use drivers::Held;
pub use nbd_conn::Served;
#[cfg(test)]
pub use node::not_yet;
pub use node::{pass_on_state, run_node, stop_workers};
pub use thread::{Command, WorkerHandle, WorkerSpec, start_worker};
pub use wire::FreebsWire;

use freebs_types::{Error, Result};

/// Runs the main thread's work to its end: an event loop of its own, with tasks that stay on it.
pub fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    end_with_a_panic();
    allow_many_files();
    keep_freed_memory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::os(format!("no event loop: {e}")))?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// File descriptors that a process may need: connections of clients, links, devices.
const FILES_WANTED: libc::rlim_t = 16 << 10;

/// Takes as many file descriptors as are wanted and allowed. The usual limit (1,024) is less than the clients that may
/// connect, who would then leave none for links to members.
fn allow_many_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the structure, which outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 || limit.rlim_cur >= FILES_WANTED {
            return;
        }
        limit.rlim_cur = FILES_WANTED.min(limit.rlim_max);
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            tracing::warn!("no more than the usual number of files may be open");
        }
    }
}

/// Memory that is kept for reuse when it is free, and the largest piece that is taken from it.
const KEPT_BYTES: libc::c_int = 256 << 20;
const PIECE_BYTES: libc::c_int = 64 << 20;

/// Buffers of a hundred kilobytes come and go with every turn of a worker. The allocator would give each of them back
/// to the system, which clears its pages before it hands them out again: a tenth of the processor time of a busy node.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: called before other threads begin; the allocator only notes the two numbers.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, PIECE_BYTES);
    }
}

/// A worker or task that panicked has left its state half changed: the process ends, and recovery begins from disk.
fn end_with_a_panic() {
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        show(info);
        std::process::abort();
    }));
}

//! The io_uring engine.
//!
//! Invariant: all calls come from the thread that made the ring (`SINGLE_ISSUER` demands it, and `Ring` may not
//! leave its thread). With deferred completion work nothing is posted to the completion queue except by our own
//! `enter`, so the eventfd only says that there is work, and need not fire for what `enter` itself posts.

use super::{Engine, IN_FLIGHT_MAX, Kind, Request, RingKind};
use freebs_types::{Error, Result};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

/// Places of the submission queue; when it is full, it is submitted in the middle of a turn.
const SUBMISSIONS: u32 = 256;
const ENTER_GETEVENTS: u32 = 1;

pub(super) struct Uring {
    ring: IoUring,
    kind: RingKind,
    /// The eventfd may be silenced while we are inside the kernel, see `turn`.
    silence: bool,
}

impl Uring {
    /// `NotFound` if this kernel does not offer or allow it.
    pub(super) fn start(kind: RingKind, event: &OwnedFd) -> Result<Self> {
        let absent = |e: io::Error| match e.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Error::os(format!("no io_uring could be made: {e}")),
            _ => Error::not_found(format!("io_uring cannot be used here: {e}")),
        };
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(IN_FLIGHT_MAX as u32);
        match kind {
            RingKind::Deferred => {
                builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            RingKind::Cooperative => {
                builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
            }
            RingKind::Plain | RingKind::Threads => {}
        }
        let ring = builder.build(SUBMISSIONS).map_err(absent)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(absent)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        if !needed.iter().all(|code| probe.is_supported(*code)) || !ring.params().is_feature_nodrop() {
            return Err(Error::not_found("io_uring of this kernel is too old"));
        }
        ring.submitter().register_eventfd(event.as_raw_fd()).map_err(absent)?;
        // The order "silence ends, then look for work" against the kernel's "work is added, then look for silence"
        // needs a full barrier on both sides. The kernel's is only certain on x86.
        let silence = kind == RingKind::Deferred && cfg!(target_arch = "x86_64");
        Ok(Self { ring, kind, silence })
    }

    /// Submits what is queued, and runs completion work. True if the kernel wants to be asked again.
    fn enter(&mut self, wait_for: u32) -> bool {
        let queued = self.ring.submission().len() as u32;
        // SAFETY: the entries in the queue name buffers and files that the slab keeps until their completion.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, wait_for, ENTER_GETEVENTS, None) };
        match result {
            Ok(taken) => taken < queued as usize,
            Err(e) => match e.raw_os_error() {
                // EBUSY: completions must be reaped first; EAGAIN: no memory for requests at the moment.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => true,
                // Anything else means that the ring is not what we think it is; going on would lose operations.
                _ => panic!("io_uring_enter failed: {e}"),
            },
        }
    }

    fn work_is_waiting(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }
}

fn entry(request: &Request) -> squeue::Entry {
    let fd = types::Fd(request.fd);
    let entry = match request.kind {
        Kind::Read => opcode::Read::new(fd, request.start, request.len).offset(request.at).build(),
        Kind::Write { durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, request.start, request.len).offset(request.at).rw_flags(flags).build()
        }
        Kind::SyncData => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Kind::SyncAll => opcode::Fsync::new(fd).build(),
        Kind::Allocate { mode, bytes } => opcode::Fallocate::new(fd, bytes).offset(request.at).mode(mode).build(),
    };
    entry.user_data(u64::from(request.slot))
}

impl Engine for Uring {
    fn kind(&self) -> RingKind {
        self.kind
    }

    fn push(&mut self, request: Request) {
        let entry = entry(&request);
        // SAFETY: see `enter`.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0);
        }
    }

    fn turn(&mut self) -> bool {
        loop {
            if self.ring.submission().is_empty() && !self.work_is_waiting() {
                return false;
            }
            if self.silence {
                self.ring.completion().disable_eventfd();
            }
            let again = self.enter(0);
            if self.silence {
                self.ring.completion().enable_eventfd();
                // Work that was added in silence is found by the next look at the flag.
                fence(Ordering::SeqCst);
            }
            if again {
                return true;
            }
        }
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.ring.completion().next().map(|c| (c.user_data() as u32, c.result()))
    }

    fn wait(&mut self) {
        self.enter(1);
    }
}

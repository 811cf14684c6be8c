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

    /// At most two system calls. The flag that says "work is waiting" can't be trusted further: the kernel adds work
    /// first and sets the flag then, and if we took the work in between, the flag stays up with nothing behind it
    /// until the next work comes. So it is a reason to ask once, never one to ask until it is down.
    fn turn(&mut self) -> bool {
        if self.ring.submission().is_empty() && !self.work_is_waiting() {
            return false;
        }
        if !self.silence {
            return self.enter(0);
        }
        self.ring.completion().disable_eventfd();
        let again = self.enter(0);
        self.ring.completion().enable_eventfd();
        fence(Ordering::SeqCst);
        // Work that was added in silence is found by this look at the flag; what is added from here on rings.
        again || self.work_is_waiting() && self.enter(0)
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.ring.completion().next().map(|c| (c.user_data() as u32, c.result()))
    }

    fn wait(&mut self) {
        self.enter(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::time::Duration;

    const SQ_TASKRUN: u32 = 1 << 2;

    /// Byte of the submission queue's flags in the ring's memory, which is the same for every ring of a kernel.
    fn flags_at() -> usize {
        // `struct io_uring_params` is 120 bytes; the offset of the flags is the 15th number in it.
        let mut params = [0u32; 30];
        // SAFETY: the kernel writes at most 120 bytes into `params`; the descriptor is closed again.
        unsafe {
            let fd = libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr());
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            libc::close(fd as libc::c_int);
        }
        params[14] as usize
    }

    /// What the kernel does when it is interrupted between adding work and saying so: by then the work is done.
    fn set_the_flag(ring: &IoUring) {
        // SAFETY: the first page of the ring's memory, shared with the kernel; mapped for the time of one store.
        unsafe {
            let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let page = libc::mmap(std::ptr::null_mut(), 4096, access, shared, ring.as_raw_fd(), 0);
            assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            let flags = &*page.cast::<u8>().add(flags_at()).cast::<AtomicU32>();
            flags.fetch_or(SQ_TASKRUN, Ordering::SeqCst);
            libc::munmap(page, 4096);
        }
    }

    /// The flag was set although no work was left, nothing was in flight that would have cleared it, and a worker
    /// asked the kernel for that work for ever.
    #[test]
    fn a_flag_without_work_does_not_hold_the_worker() {
        for kind in [RingKind::Deferred, RingKind::Cooperative] {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                let event = super::super::event_fd().unwrap();
                let Ok(mut ring) = Uring::start(kind, &event) else {
                    return tell.send(false).unwrap();
                };
                set_the_flag(&ring.ring);
                assert!(ring.work_is_waiting(), "the flag is where the ring looks for it");
                ring.turn();
                tell.send(true).unwrap();
            });
            match told.recv_timeout(Duration::from_secs(20)) {
                Ok(true) => {}
                Ok(false) => println!("skipped: {kind:?} is not to be had here"),
                Err(e) => panic!("{kind:?}: the turn does not end: {e}"),
            }
        }
    }
}

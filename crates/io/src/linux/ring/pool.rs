//! The stand-in for io_uring: a few threads with pread, pwrite, fdatasync and fallocate.
//!
//! Invariant: a request lies in exactly one place (gathered, jobs, a thread's hands, done), and every request
//! that was pushed reaches `done`, even when the pool is being dropped.

use super::{Engine, Kind, Request, RingKind};
use freebs_types::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads of one pool: enough to keep a device busy at moderate depth.
const THREADS: usize = 8;

#[derive(Default)]
struct Board {
    jobs: VecDeque<Request>,
    done: VecDeque<(u32, i32)>,
    stop: bool,
}

#[derive(Default)]
struct Common {
    board: Mutex<Board>,
    job_came: Condvar,
    job_done: Condvar,
}

impl Common {
    fn board(&self) -> MutexGuard<'_, Board> {
        // The board is consistent between any two statements that could panic, of which there are none.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Pool {
    common: Arc<Common>,
    /// Pushed, not yet on the board.
    gathered: Vec<Request>,
    /// Taken from the board, not yet reaped.
    reaped: VecDeque<(u32, i32)>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn start(event: &OwnedFd) -> Result<Self> {
        let mut pool =
            Self { common: Arc::default(), gathered: Vec::new(), reaped: VecDeque::new(), threads: Vec::new() };
        for number in 0..THREADS {
            let common = Arc::clone(&pool.common);
            let os = |e| Error::os(format!("no thread for file operations could be started: {e}"));
            let event = event.try_clone().map_err(os)?;
            let thread = std::thread::Builder::new().name(format!("freebs-io-{number}"));
            pool.threads.push(thread.spawn(move || work(&common, &event)).map_err(os)?);
        }
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.common.board().stop = true;
        self.common.job_came.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to tell.
            let _ = thread.join();
        }
    }
}

impl Engine for Pool {
    fn kind(&self) -> RingKind {
        RingKind::Threads
    }

    fn push(&mut self, request: Request) {
        self.gathered.push(request);
    }

    fn turn(&mut self) -> bool {
        let mut board = self.common.board();
        let new = self.gathered.len();
        board.jobs.extend(self.gathered.drain(..));
        self.reaped.append(&mut board.done);
        drop(board);
        match new {
            0 => {}
            1 => self.common.job_came.notify_one(),
            _ => self.common.job_came.notify_all(),
        }
        false
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.reaped.pop_front()
    }

    fn wait(&mut self) {
        self.turn();
        if !self.reaped.is_empty() {
            return;
        }
        let mut board = self.common.board();
        while board.done.is_empty() {
            board = self.common.job_done.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
        self.reaped.append(&mut board.done);
    }
}

fn work(common: &Common, event: &OwnedFd) {
    let mut board = common.board();
    loop {
        if let Some(request) = board.jobs.pop_front() {
            drop(board);
            let answer = run(&request);
            board = common.board();
            board.done.push_back((request.slot, answer));
            if board.done.len() == 1 {
                signal(event.as_raw_fd());
                common.job_done.notify_one();
            }
        } else if board.stop {
            return;
        } else {
            board = common.job_came.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn signal(event: RawFd) {
    let one = 1_u64;
    // SAFETY: eight readable bytes. It cannot fail: the counter overflows only after 2^64 completions.
    unsafe { libc::write(event, (&raw const one).cast(), 8) };
}

/// Bytes or a negative errno, as io_uring would answer.
fn run(r: &Request) -> i32 {
    let (len, at) = (r.len as usize, r.at as libc::off_t);
    let part = libc::iovec { iov_base: r.start.cast(), iov_len: len };
    // SAFETY: the slab keeps the buffer and the file until the completion of this request was reaped.
    let result = unsafe {
        match r.kind {
            Kind::Read => libc::pread(r.fd, r.start.cast(), len, at),
            Kind::Write { durable: false } => libc::pwrite(r.fd, r.start.cast(), len, at),
            Kind::Write { durable: true } => libc::pwritev2(r.fd, &part, 1, at, libc::RWF_DSYNC),
            Kind::SyncData => libc::fdatasync(r.fd) as isize,
            Kind::SyncAll => libc::fsync(r.fd) as isize,
            Kind::Allocate { mode, bytes } => libc::fallocate(r.fd, mode, at, bytes as libc::off_t) as isize,
        }
    };
    if result >= 0 {
        return i32::try_from(result).unwrap_or(i32::MAX);
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

//! Asynchronous file operations of one worker: a slab of operations, an engine that runs them, and a driver task.
//!
//! The engine is io_uring where the kernel allows it, a small thread pool otherwise. Both announce completions by
//! an eventfd that the worker's own event loop watches, so there is no other thread to wake in between.
//!
//! Invariants:
//! - An operation owns its buffer and its file from the moment it is queued until its completion was reaped. A
//!   future that is dropped earlier leaves both to the slab (the operation still happens), and a ring that is
//!   dropped waits for what is in flight.
//! - Operations are queued by their futures and submitted together by the driver task, which lets the tasks that
//!   are ready go first: one system call per turn, not per operation.
//! - At most as many operations are in flight as the completion queue has places, so it cannot overflow; the
//!   rest waits in the slab.

mod pool;
mod uring;

use crate::AlignedBuf;
use crate::linux::turn::Turn;
use crate::linux::{Poison, busy};
use freebs_types::{Error, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

/// Operations in flight at once; more wait in the slab. Also the places of the completion queue.
pub const IN_FLIGHT_MAX: usize = 4096;
/// Times that one operation is begun anew after EINTR, EAGAIN or a part done, before it fails.
const TRIES_MAX: u32 = 1024;
/// Environment variable that, set to anything but 0, forces the thread pool.
pub const NO_URING: &str = "FREEBS_NO_URING";

/// What runs the operations of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// io_uring whose completion work runs only when the worker asks for it (Linux 6.1 and up).
    Deferred,
    /// io_uring whose completion work runs at any of the worker's system calls (Linux 5.19 and up).
    Cooperative,
    /// io_uring without any such option.
    Plain,
    /// Threads with pread and pwrite, where io_uring is forbidden or missing.
    Threads,
}

/// What an engine is asked to do. The pointer stays valid until the completion, see the module's invariants.
#[derive(Clone, Copy, Debug)]
struct Request {
    slot: u32,
    kind: Kind,
    fd: RawFd,
    start: *mut u8,
    len: u32,
    at: u64,
}

// SAFETY: the pool sends requests to its threads; what the pointer names is kept by the slab, and touched by nobody
// else, until the completion of the request was reaped.
unsafe impl Send for Request {}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write {
        durable: bool,
    },
    /// Data and what is needed to read it again.
    SyncData,
    /// All metadata, too.
    SyncAll,
    /// `fallocate` with this mode over `bytes` bytes.
    Allocate {
        mode: i32,
        bytes: u64,
    },
}

/// What runs requests. Completions come in any order, one for each request that was pushed.
trait Engine {
    fn kind(&self) -> RingKind;
    /// Takes one request; it starts at the next `turn` or earlier. Never more than `IN_FLIGHT_MAX` at once.
    fn push(&mut self, request: Request);
    /// Starts what was pushed and collects what is finished, without waiting. True if something could not be
    /// started for want of kernel memory, and `turn` must be called again.
    fn turn(&mut self) -> bool;
    /// The next finished request: slot, and bytes or a negative errno.
    fn reap(&mut self) -> Option<(u32, i32)>;
    /// Blocks until something is finished. Only for the end of a ring.
    fn wait(&mut self);
}

/// One operation as the devices ask for it.
pub(super) struct Operation {
    pub kind: Kind,
    pub file: Rc<OwnedFd>,
    pub at: u64,
    /// Filled by reads, emptied by writes, none for the others.
    pub buf: Option<AlignedBuf>,
    /// A part done counts in whole units only, so that direct I/O goes on at an aligned place.
    pub unit: usize,
    /// Told of a failure, also when nobody waits any more.
    pub poison: Option<Poison>,
}

/// What became of an operation.
pub(super) struct Outcome {
    pub buf: Option<AlignedBuf>,
    pub result: io::Result<()>,
}

/// How a durable write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durably {
    /// It is durable when it returns.
    AtOnce,
    /// The system has no such writes: it is written, and a sync follows.
    Written,
    Synced,
}

struct Slot {
    operation: Operation,
    durably: Durably,
    /// Bytes done, in whole units.
    done: usize,
    tries: u32,
    waker: Option<Waker>,
    result: Option<io::Result<()>>,
    /// The future is gone; the slot is freed at completion.
    abandoned: bool,
}

impl Slot {
    fn new(operation: Operation) -> Self {
        let durably = Durably::AtOnce;
        Self { operation, durably, done: 0, tries: 0, waker: None, result: None, abandoned: false }
    }

    /// The operation that the device is asked for next.
    fn kind(&self) -> Kind {
        match (self.operation.kind, self.durably) {
            (Kind::Write { .. }, Durably::Written) => Kind::Write { durable: false },
            (Kind::Write { .. }, Durably::Synced) => Kind::SyncData,
            (kind, _) => kind,
        }
    }

    fn request(&mut self, slot: u32) -> Request {
        let (done, kind) = (self.done, self.kind());
        let (start, len) = match &mut self.operation.buf {
            Some(buf) => (buf[done..].as_mut_ptr(), (buf.len() - done) as u32),
            None => (std::ptr::null_mut(), 0),
        };
        let fd = self.operation.file.as_raw_fd();
        Request { slot, kind, fd, start, len, at: self.operation.at + done as u64 }
    }

    /// Takes in an answer of the engine. None if the operation has to go on.
    fn answer(&mut self, answer: i32) -> Option<io::Result<()>> {
        self.tries += 1;
        let again = self.tries < TRIES_MAX;
        let kind = self.kind();
        if answer < 0 {
            let retry = matches!(-answer, libc::EINTR | libc::EAGAIN) && again;
            let lacks = matches!(-answer, libc::EOPNOTSUPP | libc::ENOSYS) && kind == Kind::Write { durable: true };
            if lacks {
                self.durably = Durably::Written;
            }
            return if retry || lacks { None } else { Some(Err(io::Error::from_raw_os_error(-answer))) };
        }
        let short = match kind {
            Kind::Read => io::ErrorKind::UnexpectedEof,
            Kind::Write { .. } => io::ErrorKind::WriteZero,
            _ => return Some(Ok(())),
        };
        let len = self.operation.buf.as_ref().map_or(0, |b| b.len());
        let reached = self.done + answer as usize;
        if reached >= len {
            let is_last = self.durably == Durably::AtOnce;
            self.durably = if is_last { Durably::AtOnce } else { Durably::Synced };
            return is_last.then_some(Ok(()));
        }
        let whole = reached - reached % self.operation.unit;
        if whole == self.done || !again {
            return Some(Err(io::Error::from(short)));
        }
        self.done = whole;
        None
    }
}

struct State {
    engine: Box<dyn Engine>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Slots that the engine does not have yet.
    waiting: VecDeque<u32>,
    in_flight: usize,
    /// Wakers collected while the state is borrowed, called afterwards.
    ready: Vec<Waker>,
}

impl State {
    fn insert(&mut self, operation: Operation) -> u32 {
        let slot = Slot::new(operation);
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
            }
        };
        self.slots[number as usize] = Some(slot);
        self.waiting.push_back(number);
        number
    }

    fn remove(&mut self, number: u32) -> Slot {
        self.free.push(number);
        self.slots[number as usize].take().expect("the slot is in use until it is removed")
    }

    fn push_waiting(&mut self) {
        while self.in_flight < IN_FLIGHT_MAX
            && let Some(number) = self.waiting.pop_front()
        {
            let slot = self.slots[number as usize].as_mut().expect("a waiting slot is in use");
            let request = slot.request(number);
            self.engine.push(request);
            self.in_flight += 1;
        }
    }

    fn reap(&mut self) {
        while let Some((number, answer)) = self.engine.reap() {
            self.in_flight -= 1;
            let slot = self.slots[number as usize].as_mut().expect("completions name slots in use");
            let Some(result) = slot.answer(answer) else {
                self.waiting.push_back(number);
                continue;
            };
            if let (Err(error), Some(poison)) = (&result, &slot.operation.poison) {
                poison.set(error);
            }
            slot.result = Some(result);
            let waker = slot.waker.take();
            if slot.abandoned {
                drop(self.remove(number));
            } else {
                self.ready.extend(waker);
            }
        }
    }
}

struct Shared {
    state: RefCell<State>,
    turn: Turn,
    task: RefCell<Option<AbortHandle>>,
}

impl Shared {
    /// Hands everything that waits to the engine, and wakes whose operations are finished.
    /// True if it must be called again soon.
    fn run(&self, submit: bool) -> bool {
        let mut state = self.state.borrow_mut();
        if submit {
            state.push_waiting();
        }
        let mut again = state.engine.turn();
        state.reap();
        // An operation that goes on after a part, or that found no place before, is for the next turn.
        again |= !state.waiting.is_empty() && state.in_flight < IN_FLIGHT_MAX;
        let mut ready = std::mem::take(&mut state.ready);
        drop(state);
        if !ready.is_empty() {
            busy::note(ready.len());
        }
        ready.drain(..).for_each(Waker::wake);
        self.state.borrow_mut().ready = ready;
        again
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        let state = self.state.get_mut();
        state.waiting.clear();
        while state.in_flight > 0 {
            state.engine.wait();
            state.reap();
            state.waiting.clear();
        }
    }
}

/// The file operations of one worker. A handle: clones share the ring.
#[derive(Clone)]
pub struct Ring(Rc<Shared>);

impl Ring {
    /// Starts a ring with the best engine that works here. Call it inside the worker's `LocalSet`.
    pub fn start() -> Result<Self> {
        let forced = std::env::var_os(NO_URING).is_some_and(|v| !v.is_empty() && v != "0");
        let kinds = [RingKind::Deferred, RingKind::Cooperative, RingKind::Plain];
        for kind in kinds.into_iter().filter(|_| !forced) {
            match Self::start_kind(kind) {
                Ok(ring) => return Ok(ring),
                Err(e) if e.kind == freebs_types::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Self::start_kind(RingKind::Threads)
    }

    /// Starts a ring with this engine. `NotFound` if the kernel does not offer or allow it.
    pub fn start_kind(kind: RingKind) -> Result<Self> {
        let event = event_fd().map_err(|e| Error::os(format!("no eventfd could be made: {e}")))?;
        let engine: Box<dyn Engine> = match kind {
            RingKind::Threads => Box::new(pool::Pool::start(&event)?),
            _ => Box::new(uring::Uring::start(kind, &event)?),
        };
        // SAFETY: an `OwnedFd` is open, and names the same descriptor, for as long as it lives.
        let event = unsafe { AsyncFd::register_with_interest(event, tokio::io::Interest::READABLE) }
            .map_err(|e| Error::os(format!("the event loop does not watch an eventfd: {e}")))?;
        let state = State {
            engine,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            ready: Vec::new(),
        };
        let shared = Rc::new(Shared { state: RefCell::new(state), turn: Turn::default(), task: RefCell::new(None) });
        let task = tokio::task::spawn_local(drive(Rc::downgrade(&shared), event));
        *shared.task.borrow_mut() = Some(task.abort_handle());
        Ok(Self(shared))
    }

    /// Which engine runs the operations.
    #[must_use]
    pub fn kind(&self) -> RingKind {
        self.0.state.borrow().engine.kind()
    }

    /// Operations queued or in flight, abandoned ones included.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let state = self.0.state.borrow();
        state.slots.iter().flatten().filter(|s| s.result.is_none()).count()
    }

    /// Queues an operation. It happens even if the future is dropped.
    pub(super) fn run(&self, operation: Operation) -> Running {
        let slot = self.0.state.borrow_mut().insert(operation);
        self.0.turn.ask();
        Running { shared: Rc::clone(&self.0), slot, finished: false }
    }
}

/// The future of one operation.
pub(super) struct Running {
    shared: Rc<Shared>,
    slot: u32,
    finished: bool,
}

impl Future for Running {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        assert!(!self.finished, "polled after it was ready");
        let mut state = self.shared.state.borrow_mut();
        let slot = state.slots[self.slot as usize].as_mut().expect("the future holds its slot");
        if slot.result.is_none() {
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let slot = state.remove(self.slot);
        drop(state);
        self.finished = true;
        let result = slot.result.expect("checked above");
        Poll::Ready(Outcome { buf: slot.operation.buf, result })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.shared.state.borrow_mut();
        let slot = state.slots[self.slot as usize].as_mut().expect("the future holds its slot");
        if slot.result.is_some() {
            let slot = state.remove(self.slot);
            drop(state);
            drop(slot);
        } else {
            slot.abandoned = true;
            slot.waker = None;
        }
    }
}

/// The driver task: submits at the end of a turn, reaps when the eventfd fires, ends with the ring.
async fn drive(shared: Weak<Shared>, event: AsyncFd<OwnedFd>) {
    poll_fn(|cx| {
        let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
        let submit = shared.turn.begin(cx);
        // The loop's watch is edge-triggered and every completion is a new edge, so the counter is never read.
        // The readiness is cleared before reaping: what finishes later fires again.
        while let Poll::Ready(guard) = event.poll_read_ready(cx) {
            match guard {
                Ok(mut guard) => guard.clear_ready(),
                // The runtime is shutting down.
                Err(_) => return Poll::Ready(()),
            }
        }
        if shared.run(submit) {
            shared.turn.ask();
        }
        Poll::Pending
    })
    .await;
}

fn event_fd() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: no memory is involved; the result is checked before it is owned.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(kind: Kind) -> Slot {
        let (file, buf) = (Rc::new(event_fd().unwrap()), Some(AlignedBuf::zeroed(8192)));
        Slot::new(Operation { kind, file, at: 4096, buf, unit: 4096, poison: None })
    }

    /// A system without writes that are durable when they return had its device poisoned by the first one.
    #[test]
    fn a_write_that_can_not_be_durable_at_once_is_written_and_synced() {
        for lack in [libc::EOPNOTSUPP, libc::ENOSYS] {
            let mut s = slot(Kind::Write { durable: true });
            assert_eq!(s.request(0).kind, Kind::Write { durable: true });
            assert!(s.answer(-lack).is_none());
            let whole = s.request(0);
            assert_eq!((whole.kind, whole.at, whole.len), (Kind::Write { durable: false }, 4096, 8192));
            assert!(s.answer(4096).is_none(), "a part");
            let rest = s.request(0);
            assert_eq!((rest.kind, rest.at, rest.len), (Kind::Write { durable: false }, 8192, 4096));
            assert!(s.answer(4096).is_none(), "written, and not durable");
            assert_eq!(s.request(0).kind, Kind::SyncData);
            assert!(s.answer(-libc::EINTR).is_none());
            assert_eq!(s.request(0).kind, Kind::SyncData);
            assert!(s.answer(0).unwrap().is_ok());
        }
        // A device that lacks nothing but a whole disk fails, and so does a sync that is not to be had.
        let failed = |s: &mut Slot, errno: i32| s.answer(-errno).unwrap().unwrap_err().raw_os_error();
        let mut s = slot(Kind::Write { durable: true });
        assert_eq!(failed(&mut s, libc::EIO), Some(libc::EIO));
        let mut s = slot(Kind::Write { durable: false });
        assert_eq!(failed(&mut s, libc::EOPNOTSUPP), Some(libc::EOPNOTSUPP));
        let mut s = slot(Kind::Write { durable: true });
        assert!(s.answer(-libc::EOPNOTSUPP).is_none() && s.answer(8192).is_none());
        assert_eq!(failed(&mut s, libc::ENOSYS), Some(libc::ENOSYS));
        let mut s = slot(Kind::Write { durable: true });
        assert!(s.answer(8192).unwrap().is_ok(), "durable at once");
    }
}

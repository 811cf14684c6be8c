//! One operation of a lent device, from the asking to the outcome: plain values that may change threads.
//!
//! Invariant: `perform` ends with an outcome for each work it was given; a write or sync that failed, or that was
//! dropped without being performed, has poisoned the device by then.

use super::Which;
use crate::AlignedBuf;
use crate::linux::Poison;
use crate::linux::device;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one write of zeroes.
const ZERO_WRITE_BYTES: usize = 1 << 20;
/// Reads that one system call submits.
const RING_ENTRIES: usize = 32;
/// Rings kept for the next one who needs one.
const RINGS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write {
        durable: bool,
    },
    Sync,
    /// From this length to `at`, filled with zeroes, durable; with so many bytes reserved behind it, if there is room.
    Grow {
        from: u64,
        reserve: u64,
    },
    /// Only reserves, from `at` on.
    Reserve {
        bytes: u64,
    },
    /// To `at`, durable.
    Truncate,
    Punch {
        bytes: u64,
    },
    Prewrite {
        bytes: u64,
    },
}

impl Kind {
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Sync)
    }

    pub fn is(self, which: Which, owner: u64) -> bool {
        match which {
            Which::ReadsOf(o) => self == Self::Read && o == owner,
            Which::Writes => self.is_write(),
            Which::Space => !self.is_write() && self != Self::Read,
            Which::Any => self.is_write() || self == Self::Read,
        }
    }
}

/// Rings for several reads at once; each is used by one thread at a time.
#[derive(Default)]
pub(super) struct Rings(Mutex<RingPool>);

#[derive(Default)]
struct RingPool {
    free: Vec<IoUring>,
    /// The kernel forbids it: reads go one by one.
    none: bool,
}

impl Rings {
    fn get(&self) -> Option<IoUring> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.none || forced_off() {
            return None;
        }
        if let Some(r) = pool.free.pop() {
            return Some(r);
        }
        match IoUring::builder().dontfork().build(RING_ENTRIES as u32) {
            Ok(r) => Some(r),
            Err(_) => {
                pool.none = true;
                None
            }
        }
    }

    fn put(&self, ring: IoUring) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.free.len() < RINGS_MAX {
            pool.free.push(ring);
        }
    }
}

fn forced_off() -> bool {
    std::env::var_os(crate::linux::ring::NO_URING).is_some_and(|v| !v.is_empty() && v != "0")
}

/// An operation that somebody has to perform.
pub struct Work {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) at: u64,
    /// A part done counts in whole units only.
    pub(super) unit: usize,
    pub(super) file: Arc<OwnedFd>,
    pub(super) rings: Arc<Rings>,
    pub(super) poison: Poison,
    pub(super) buf: Option<AlignedBuf>,
    /// Given out, so that its end must be told.
    pub(super) taken: bool,
}

/// What became of it.
pub struct Done {
    pub(super) id: u64,
    pub(super) buf: Option<AlignedBuf>,
    pub(super) result: io::Result<()>,
    /// What was to be reserved is there: none if nothing was to be.
    pub(super) reserved: Option<bool>,
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.taken && self.kind != Kind::Read {
            // Lost on the way: whoever waits for it would wait for ever.
            self.poison.set("an operation was given up");
        }
    }
}

impl Work {
    /// Performs the operation; blocks.
    #[must_use]
    pub fn perform(mut self) -> Done {
        self.taken = false;
        let mut reserved = None;
        let result = match self.kind {
            Kind::Read => self.read(0),
            Kind::Write { durable } => self.write(durable),
            Kind::Sync => sync(&self.file, false),
            Kind::Grow { from, reserve } => {
                let grown = self.grow(from);
                reserved = Some(grown.is_ok() && self.reserve(reserve));
                grown
            }
            Kind::Reserve { bytes } => {
                reserved = Some(self.reserve(bytes));
                Ok(())
            }
            Kind::Truncate => truncate(&self.file, self.at).and_then(|()| sync(&self.file, true)),
            Kind::Punch { bytes } => {
                fallocate(&self.file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, self.at, bytes)
            }
            Kind::Prewrite { bytes } => {
                zero(&self.file, self.at, self.at + bytes).and_then(|()| sync(&self.file, false))
            }
        };
        if let (Err(e), true) = (&result, self.kind.is_write()) {
            self.poison.set(e);
        }
        Done { id: self.id, buf: self.buf.take(), result, reserved }
    }

    /// Performs all; several reads go out together.
    #[must_use]
    pub fn perform_all(mut all: Vec<Self>) -> Vec<Done> {
        if all.len() > 1
            && all.iter().all(|w| w.kind == Kind::Read)
            && let Some(mut ring) = all[0].rings.get()
        {
            let rings = all[0].rings.clone();
            let mut done = Vec::with_capacity(all.len());
            let mut good = true;
            while !all.is_empty() && good {
                let rest = all.split_off(all.len().min(RING_ENTRIES));
                good = read_together(&mut ring, std::mem::replace(&mut all, rest), &mut done);
            }
            if good {
                rings.put(ring);
            }
            done.extend(all.into_iter().map(Self::perform));
            return done;
        }
        all.into_iter().map(Self::perform).collect()
    }

    /// Reads what is behind the first `from` bytes.
    fn read(&mut self, from: usize) -> io::Result<()> {
        let buf = self.buf.as_mut().expect("a read has a buffer");
        let mut at = from;
        while at < buf.len() {
            let (rest, offset) = (&mut buf[at..], self.at + at as u64);
            // SAFETY: `rest` is ours alone and as long as is said.
            let n = unsafe {
                libc::pread(self.file.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), offset as libc::off_t)
            };
            match again(n)? {
                None => {}
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Direct I/O goes on at an aligned place; what was read of the last unit is read again.
                Some(n) if at + n < buf.len() && (at + n) / self.unit * self.unit == at => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Some(n) if at + n < buf.len() => at = (at + n) / self.unit * self.unit,
                Some(n) => at += n,
            }
        }
        Ok(())
    }

    /// Where the system has no writes that are durable when they return, it is a write and a sync.
    fn write(&mut self, durable: bool) -> io::Result<()> {
        let buf = self.buf.as_ref().expect("a write has a buffer");
        let (mut at, mut at_once) = (0, durable);
        while at < buf.len() {
            let (part, offset) = (&buf[at..], self.at + at as u64);
            let call = if at_once { write_durably } else { write };
            let n = match again(call(&self.file, part, offset)) {
                Err(e) if at_once && device::unsupported(&e) => {
                    at_once = false;
                    continue;
                }
                n => n?,
            };
            match n {
                None => {}
                Some(n) if at + n == buf.len() => at += n,
                Some(n) if n / self.unit == 0 => return Err(io::ErrorKind::WriteZero.into()),
                Some(n) => at += n / self.unit * self.unit,
            }
        }
        let is_left = durable && (!at_once || buf.is_empty());
        if is_left { sync(&self.file, false) } else { Ok(()) }
    }

    /// Keeps room behind the end of the file. False only if the file system says that there is none.
    fn reserve(&self, bytes: u64) -> bool {
        bytes == 0
            || fallocate(&self.file, libc::FALLOC_FL_KEEP_SIZE, self.at, bytes)
                .map_or_else(|e| !device::no_space(&e), |()| true)
    }

    fn grow(&self, from: u64) -> io::Result<()> {
        // Reserving first gives long extents, and ENOSPC before anything is written.
        match fallocate(&self.file, 0, from, self.at - from) {
            Err(e) if device::unsupported(&e) => {}
            other => other?,
        }
        zero(&self.file, from, self.at)?;
        sync(&self.file, true)
    }
}

/// The answer of a system call: none if it has to be made again.
fn again(n: isize) -> io::Result<Option<usize>> {
    if n >= 0 {
        return Ok(Some(n as usize));
    }
    let e = io::Error::last_os_error();
    if e.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(e) }
}

fn write(file: &OwnedFd, bytes: &[u8], at: u64) -> isize {
    // SAFETY: the bytes are only read, and are as many as is said.
    unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) }
}

/// A write is durable when it returns.
fn write_durably(file: &OwnedFd, bytes: &[u8], at: u64) -> isize {
    let part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: one vector that names the bytes, which are only read.
    unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, at as libc::off_t, libc::RWF_DSYNC) }
}

/// Up to `RING_ENTRIES` reads in one system call. False if the ring is not to be used again.
fn read_together(ring: &mut IoUring, mut all: Vec<Work>, done: &mut Vec<Done>) -> bool {
    for (i, w) in all.iter_mut().enumerate() {
        w.taken = false;
        let buf = w.buf.as_mut().expect("a read has a buffer");
        let read = opcode::Read::new(types::Fd(w.file.as_raw_fd()), buf.as_mut_ptr(), buf.len() as u32);
        let entry = read.offset(w.at).build().user_data(i as u64);
        // SAFETY: buffers and file live in `all` until every completion was reaped, below.
        unsafe { ring.submission().push(&entry).expect("the queue has a place for each") };
    }
    let mut answers: Vec<Option<i32>> = vec![None; all.len()];
    let mut missing = all.len();
    while missing > 0 {
        match ring.submit_and_wait(missing) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            // Neither the entries nor their buffers can be taken back from the kernel, so there is no way on.
            Err(e) => {
                eprintln!("a ring with reads in flight can't be entered any more: {e}");
                std::process::abort();
            }
        }
        for c in ring.completion() {
            if answers[c.user_data() as usize].replace(c.result()).is_none() {
                missing -= 1;
            }
        }
    }
    for (mut w, n) in all.into_iter().zip(answers) {
        let n = n.expect("all are there");
        let len = w.buf.as_ref().map_or(0, |b| b.len());
        let result = match usize::try_from(n) {
            Ok(n) if n == len => Ok(()),
            Ok(n) => w.read(n / w.unit * w.unit),
            Err(_) if matches!(-n, libc::EINTR | libc::EAGAIN) => w.read(0),
            Err(_) => Err(io::Error::from_raw_os_error(-n)),
        };
        done.push(Done { id: w.id, buf: w.buf.take(), result, reserved: None });
    }
    true
}

fn sync(file: &OwnedFd, all: bool) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open, and no memory is involved.
        let n = unsafe { if all { libc::fsync(file.as_raw_fd()) } else { libc::fdatasync(file.as_raw_fd()) } };
        if again(n as isize)?.is_some() {
            return Ok(());
        }
    }
}

fn truncate(file: &OwnedFd, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open, and no memory is involved.
        if again(unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) } as isize)?.is_some() {
            return Ok(());
        }
    }
}

fn fallocate(file: &OwnedFd, mode: i32, at: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open, and no memory is involved.
        let n = unsafe { libc::fallocate(file.as_raw_fd(), mode, at as libc::off_t, len as libc::off_t) };
        if again(n as isize)?.is_some() {
            return Ok(());
        }
    }
}

fn zero(file: &OwnedFd, at: u64, end: u64) -> io::Result<()> {
    let buf = AlignedBuf::zeroed(ZERO_WRITE_BYTES.min((end - at) as usize));
    let mut next = at;
    while next < end {
        let len = (buf.len() as u64).min(end - next) as usize;
        match again(write(file, &buf[..len], next))? {
            None => {}
            Some(0) => return Err(io::ErrorKind::WriteZero.into()),
            Some(n) => next += n as u64,
        }
    }
    Ok(())
}

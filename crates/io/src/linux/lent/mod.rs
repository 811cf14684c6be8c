//! A file or block device whose operations are lent out: the engine asks for them, and whichever thread has time
//! performs them with plain system calls.
//!
//! It is for a disk inside a program (no event loop, many threads): a call that needs the medium performs its own
//! read or write, so nothing is handed to another thread and nobody is woken, which on virtual machines costs as
//! much as the access itself.
//!
//! Invariants:
//! - A buffer belongs to its `Work` from `take` on, and to nobody else until `complete`.
//! - What is asked for happens at most once, in any order. Work that is dropped fails, which poisons if it was a write.
//! - After a failed write or sync nothing is believed: the device is poisoned, also if nobody waits for the answer.
//! - Unless it is `short`, the file system has set the headroom aside: growing by it does not fail for want of room.
//! - `len` only ever names bytes that were prewritten (or that the file had when it was opened).

mod work;

pub use work::{Done, Work};

use super::device::{self, open};
use super::{DeviceOptions, Poison};
use crate::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use work::{Kind, Rings};

/// What kinds of work `take` may give out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Reads that were asked for under this owner.
    ReadsOf(u64),
    /// Writes and syncs: somebody waits for these to become durable.
    Writes,
    /// Growing, shrinking, prewriting, punching: long, and nobody's own.
    Space,
    /// Everything but `Space`.
    Any,
}

struct Slot {
    /// Until it is taken.
    work: Option<Work>,
    kind: Kind,
    owner: u64,
    done: Option<Done>,
    waker: Option<Waker>,
}

struct Inner {
    file: Arc<OwnedFd>,
    rings: Arc<Rings>,
    path: PathBuf,
    block_device: bool,
    direct: bool,
    sector: usize,
    len: Cell<u64>,
    poison: Poison,
    slots: RefCell<BTreeMap<u64, Slot>>,
    next: Cell<u64>,
    owner: Cell<u64>,
    headroom: Cell<u64>,
    short: Cell<bool>,
    asking: Cell<bool>,
}

/// Number of the work that reserves; no slot has it.
const RESERVE: u64 = u64::MAX;

/// The device. A handle: clones share it. It stays with the engine; only `Work` and `Done` travel.
#[derive(Clone)]
pub struct LentDevice(Rc<Inner>);

/// Takes the slot away if the future is dropped before its end.
struct Held<'a> {
    inner: &'a Inner,
    id: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.inner.slots.borrow_mut().remove(&self.id);
    }
}

impl LentDevice {
    /// Opens `path` for this process alone: `Busy` if another one has it.
    pub fn open(path: &Path, options: &DeviceOptions) -> Result<Self> {
        let opened = open::open(path, options)?;
        Ok(Self(Rc::new(Inner {
            file: Arc::new(opened.file),
            rings: Arc::default(),
            path: path.to_owned(),
            block_device: opened.block_device,
            direct: opened.direct,
            sector: opened.sector,
            len: Cell::new(opened.len),
            poison: options.poison.clone(),
            slots: RefCell::default(),
            next: Cell::new(0),
            owner: Cell::new(0),
            headroom: Cell::new(0),
            short: Cell::new(false),
            asking: Cell::new(false),
        })))
    }

    /// Whether accesses go past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }
    /// True if it is a block device and no file: its length is fixed, and nothing is set aside.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.0.block_device
    }
    /// The device's mark of failure.
    #[must_use]
    pub fn poison(&self) -> &Poison {
        &self.0.poison
    }

    /// From now on this many bytes are set aside behind the end. The first `ask_room` or growth does it.
    pub fn set_headroom(&self, bytes: u64) {
        self.0.headroom.set(if self.0.block_device { 0 } else { bytes });
    }

    /// Whether the file system had no room for the headroom when it was asked last.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.short.get()
    }

    /// Work that asks the file system for the headroom again, if nobody is asking.
    #[must_use]
    pub fn ask_room(&self) -> Option<Work> {
        if self.0.headroom.get() == 0 || self.0.asking.replace(true) {
            return None;
        }
        Some(self.work(RESERVE, Kind::Reserve { bytes: self.0.headroom.get() }, self.0.len.get(), None))
    }

    /// What is asked for from now on is asked for under this owner.
    pub fn set_owner(&self, owner: u64) {
        self.0.owner.set(owner);
    }

    /// The oldest work of a kind that nobody has taken. It must come back by `complete`.
    pub fn take(&self, which: Which) -> Option<Work> {
        let mut slots = self.0.slots.borrow_mut();
        let mut work = slots.values_mut().find_map(|s| s.work.take_if(|w| w.kind.is(which, s.owner)))?;
        work.taken = true;
        Some(work)
    }

    /// Whether there is work of a kind that nobody has taken.
    #[must_use]
    pub fn has(&self, which: Which) -> bool {
        self.0.slots.borrow().values().any(|s| s.work.as_ref().is_some_and(|w| w.kind.is(which, s.owner)))
    }

    /// Whether a write or sync is asked for or under way.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.0.slots.borrow().values().any(|s| s.done.is_none() && s.kind.is_write())
    }

    /// Takes an outcome in, and wakes who waits for it.
    pub fn complete(&self, done: Done) {
        if let Some(is) = done.reserved {
            self.0.short.set(!is);
        }
        if done.id == RESERVE {
            self.0.asking.set(false);
        }
        let waker = {
            let mut slots = self.0.slots.borrow_mut();
            let Some(s) = slots.get_mut(&done.id) else { return };
            s.done = Some(done);
            s.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }

    fn place(&self, what: &str, at: u64) -> String {
        format!("{}: {what} at byte {at}", self.0.path.display())
    }

    fn check_range(&self, what: &str, at: u64, len: u64) -> Result<()> {
        device::check_range((self.0.sector, self.0.len.get()), at, len).map_err(|e| e.at(self.place(what, at)))
    }

    fn check_io(&self, what: &str, at: u64, len: usize) -> Result<()> {
        device::check_io((self.0.sector, self.0.len.get()), at, len).map_err(|e| e.at(self.place(what, at)))
    }

    fn work(&self, id: u64, kind: Kind, at: u64, buf: Option<AlignedBuf>) -> Work {
        Work {
            id,
            kind,
            at,
            unit: self.0.sector,
            file: self.0.file.clone(),
            rings: self.0.rings.clone(),
            poison: self.0.poison.clone(),
            buf,
            taken: false,
        }
    }

    async fn run(&self, kind: Kind, at: u64, buf: Option<AlignedBuf>) -> Done {
        let inner = &self.0;
        let id = inner.next.get();
        inner.next.set(id + 1);
        let work = self.work(id, kind, at, buf);
        let slot = Slot { work: Some(work), kind, owner: inner.owner.get(), done: None, waker: None };
        inner.slots.borrow_mut().insert(id, slot);
        let held = Held { inner, id };
        poll_fn(|cx| {
            let mut slots = held.inner.slots.borrow_mut();
            let s = slots.get_mut(&id).expect("the future holds its slot");
            match s.done.take() {
                Some(done) => Poll::Ready(done),
                None => {
                    s.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn alive(&self, what: &str, at: u64) -> Result<()> {
        self.0.poison.check().map_err(|e| e.at(self.place(what, at)))
    }

    /// Poisons, and says so.
    fn fail(&self, what: &str, error: &io::Error) -> Error {
        self.0.poison.set(error);
        Error::device_failed(format!("{}: {what} failed: {error}", self.0.path.display()))
    }

    async fn grow(&self, old: u64, new: u64) -> Result<()> {
        let reserve = self.0.headroom.get();
        let done = self.run(Kind::Grow { from: old, reserve }, new, None).await;
        let Err(error) = done.result else {
            self.0.len.set(new);
            return Ok(());
        };
        if !device::no_space(&error) {
            return Err(self.fail("growing", &error));
        }
        self.run(Kind::Truncate, old, None).await.result.map_err(|e| self.fail("taking back growth", &e))?;
        Err(Error::no_space(format!(
            "{} cannot grow to {new} bytes: {error}; free some space on its file system or give the device less",
            self.0.path.display()
        )))
    }
}

impl Device for LentDevice {
    fn sector(&self) -> usize {
        self.0.sector
    }

    fn len(&self) -> u64 {
        self.0.len.get()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.alive("read", at)?;
        self.check_io("read", at, len)?;
        let buf = AlignedBuf::zeroed(len);
        if len == 0 {
            return Ok(buf);
        }
        let mut done = self.run(Kind::Read, at, Some(buf)).await;
        match done.result {
            Ok(()) => Ok(done.buf.take().expect("a read gives its buffer back")),
            Err(e) => Err(device::read_error(&e).at(self.place("read", at))),
        }
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        if let Err(e) = self.check_io("write", at, buf.len()).and_then(|()| self.alive("write", at)) {
            return (buf, Err(e));
        }
        if buf.is_empty() && durability == Durability::Cached {
            return (buf, Ok(()));
        }
        let mut done = self.run(Kind::Write { durable: durability == Durability::Durable }, at, Some(buf)).await;
        let buf = done.buf.take().unwrap_or_else(|| AlignedBuf::zeroed(0));
        (buf, self.alive("write", at))
    }

    async fn sync(&self) -> Result<()> {
        self.alive("sync", 0)?;
        self.run(Kind::Sync, 0, None).await;
        self.alive("sync", 0)
    }

    /// On a block device the length is fixed: more is `NoSpace`, less is `Invalid`.
    async fn set_len(&self, len: u64) -> Result<()> {
        self.alive("resize", len)?;
        let old = self.0.len.get();
        if !len.is_multiple_of(self.0.sector as u64) || i64::try_from(len).is_err() {
            let text = format!("a length of {len} bytes is not a whole number of {}-byte sectors", self.0.sector);
            return Err(Error::invalid(text).at(self.0.path.display()));
        }
        if self.0.block_device && len != old {
            let text = format!("a block device of {old} bytes cannot have {len}");
            let error = if len > old { Error::no_space(text) } else { Error::invalid(text) };
            return Err(error.at(self.0.path.display()));
        }
        match len.cmp(&old) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => self.grow(old, len).await,
            std::cmp::Ordering::Less => {
                self.0.len.set(len);
                self.run(Kind::Truncate, len, None).await.result.map_err(|e| self.fail("shrinking", &e))
            }
        }
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.alive("punch", at)?;
        self.check_range("punch", at, len)?;
        if len == 0 {
            return Ok(());
        }
        match self.run(Kind::Punch { bytes: len }, at, None).await.result {
            Err(e) if !device::unsupported(&e) => Err(self.fail("punching a hole", &e)),
            _ => Ok(()),
        }
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.alive("prewrite", at)?;
        self.check_range("prewrite", at, len)?;
        if len == 0 {
            return Ok(());
        }
        match self.run(Kind::Prewrite { bytes: len }, at, None).await.result {
            Ok(()) => Ok(()),
            Err(e) if device::no_space(&e) => {
                Err(Error::no_space(format!("the file system is full: {e}")).at(self.place("prewrite", at)))
            }
            Err(e) => Err(self.fail("prewriting", &e)),
        }
    }
}

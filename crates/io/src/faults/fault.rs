//! A device whose chosen calls fail, or hang until they are let go.
//!
//! Invariants: a failed write or sync, and a failed change of the length that is no lack of space, poisons the device
//! for all clones, as the trait says: every later call, and every write or sync that is under way, fails with
//! `DeviceFailed`. A failed read poisons nothing. After a failed write the bytes there are old, new, or part of both.

use crate::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reads of any length.
    Read,
    /// Writes, durable ones too.
    Write,
    /// Syncs.
    Sync,
    /// Changes of the length, prewriting, punching.
    Allocate,
}

impl Call {
    /// Each kind once, for tests that go through all of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Sync, Self::Allocate];
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// EIO. Of a write nothing was done.
    Io,
    /// ENOSPC. A change of the length or a prewrite may be tried again; a write poisons.
    NoSpace,
    /// Done in part, then EIO: half of a write's sectors, half of a growth.
    Short,
    /// Done, but the answer is EIO.
    Late,
    /// Does not begin until it is let go.
    Slow,
}

#[derive(Default)]
struct State {
    counts: [u64; 4],
    plan: Vec<(Call, u64, Failure)>,
    hits: u64,
    poison: Option<Error>,
    bad: BTreeSet<u64>,
    waiting: Vec<Waker>,
    let_go: u64,
}

/// A device with planned failures. Clones share the plan and the poison; `again` opens it anew.
#[derive(Clone)]
pub struct FaultDevice<D> {
    inner: D,
    state: Rc<RefCell<State>>,
}

fn index(call: Call) -> usize {
    Call::ALL.iter().position(|c| *c == call).expect("all are listed")
}

impl<D: Device> FaultDevice<D> {
    /// `inner`, with no failure planned.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, state: Rc::default() }
    }

    /// The device underneath, past all planned failures.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The `n`-th call of its kind from now on, 0 for the next one, fails so.
    pub fn plan(&self, call: Call, n: u64, failure: Failure) {
        let mut s = self.state.borrow_mut();
        let number = s.counts[index(call)] + n;
        s.plan.push((call, number, failure));
    }

    /// The sector at byte `at` can't be read any more, until it is written again.
    pub fn spoil(&self, at: u64) {
        self.state.borrow_mut().bad.insert(at);
    }

    /// Calls of a kind so far.
    #[must_use]
    pub fn count(&self, call: Call) -> u64 {
        self.state.borrow().counts[index(call)]
    }

    /// Planned failures that came true.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.state.borrow().hits
    }

    /// True if a failure has poisoned the device: from then on every call fails.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.state.borrow().poison.is_some()
    }

    /// Lets all go that hang now.
    pub fn let_go(&self) {
        let mut s = self.state.borrow_mut();
        s.let_go += 1;
        s.waiting.drain(..).for_each(Waker::wake);
    }

    fn poison_check(&self) -> Result<()> {
        self.state.borrow().poison.clone().map_or(Ok(()), Err)
    }

    fn poison(&self, what: &str) -> Error {
        let e = Error::device_failed(format!("an earlier {what} failed; the device must be opened again"));
        self.state.borrow_mut().poison.get_or_insert(e);
        Error::os(format!("injected failure of a {what}"))
    }

    /// Counts a call and looks up what is to become of it.
    async fn begin(&self, call: Call) -> Result<Option<Failure>> {
        self.poison_check()?;
        let (failure, since) = {
            let s = &mut *self.state.borrow_mut();
            let number = s.counts[index(call)];
            s.counts[index(call)] += 1;
            let found = s.plan.iter().position(|p| (p.0, p.1) == (call, number));
            let failure = found.map(|i| s.plan.swap_remove(i).2);
            s.hits += u64::from(failure.is_some());
            (failure, s.let_go)
        };
        if failure != Some(Failure::Slow) {
            return Ok(failure);
        }
        poll_fn(|cx| {
            let mut s = self.state.borrow_mut();
            if s.let_go > since {
                return Poll::Ready(());
            }
            s.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.poison_check()?;
        Ok(None)
    }

    /// The first half of a write, so that what lies there is neither old nor new.
    async fn half(&self, at: u64, buf: &[u8]) {
        let half = buf.len() / 2 / self.sector() * self.sector();
        if half > 0 {
            let mut part = AlignedBuf::zeroed(half);
            part.copy_from_slice(&buf[..half]);
            // The caller hears of a failure in any case.
            let _ = self.inner.write(at, part, Durability::Cached).await;
        }
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn sector(&self) -> usize {
        self.inner.sector()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        match self.begin(Call::Read).await? {
            None if self.state.borrow().bad.range(at..at + len as u64).next().is_some() => {
                Err(Error::os("injected: a sector can't be read"))
            }
            None => self.inner.read(at, len).await,
            Some(Failure::Short) => Err(Error::corrupt("injected: the read was short")),
            Some(_) => Err(Error::os("injected failure of a read")),
        }
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        match self.begin(Call::Write).await {
            Err(e) => (buf, Err(e)),
            Ok(None) => {
                let (buf, done) = self.inner.write(at, buf, durability).await;
                if done.is_ok() {
                    self.state.borrow_mut().bad.retain(|b| !(at..at + buf.len() as u64).contains(b));
                }
                (buf, self.poison_check().and(done))
            }
            Ok(Some(Failure::NoSpace)) => {
                self.poison("write");
                (buf, Err(Error::no_space("injected: no space for a write")))
            }
            Ok(Some(failure)) => {
                let e = self.poison("write");
                match failure {
                    Failure::Short => self.half(at, &buf).await,
                    Failure::Late => {
                        let (buf, _) = self.inner.write(at, buf, Durability::Cached).await;
                        return (buf, Err(e));
                    }
                    _ => {}
                }
                (buf, Err(e))
            }
        }
    }

    async fn sync(&self) -> Result<()> {
        match self.begin(Call::Sync).await? {
            None => {
                let done = self.inner.sync().await;
                self.poison_check().and(done)
            }
            Some(failure) => {
                let e = self.poison("sync");
                if failure == Failure::Late {
                    let _ = self.inner.sync().await;
                }
                Err(e)
            }
        }
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        match self.begin(Call::Allocate).await? {
            None => self.inner.set_len(len).await,
            Some(Failure::NoSpace) => Err(Error::no_space("injected: the file system is full")),
            Some(failure) => {
                let e = self.poison("change of the length");
                let (old, sector) = (self.inner.len(), self.sector() as u64);
                let there = match failure {
                    Failure::Short => old.min(len) + old.abs_diff(len) / 2 / sector * sector,
                    Failure::Late => len,
                    _ => old,
                };
                let _ = self.inner.set_len(there).await;
                Err(e)
            }
        }
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        match self.begin(Call::Allocate).await? {
            None => self.inner.punch(at, len).await,
            Some(_) => Err(self.poison("punch")),
        }
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        match self.begin(Call::Allocate).await? {
            None => self.inner.prewrite(at, len).await,
            Some(Failure::NoSpace) => Err(Error::no_space("injected: the file system is full")),
            Some(_) => Err(self.poison("prewrite")),
        }
    }
}

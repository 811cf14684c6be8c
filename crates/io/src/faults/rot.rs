//! A device that does not keep what it was given: bits flip, sectors change places, writes go astray or nowhere.
//!
//! Invariants: whoever uses the device hears of nothing, every call succeeds that would have succeeded without. Damage
//! that lies on the medium is put there at once and stays until it is written over.

use super::luck::Luck;
use crate::{AlignedBuf, Device, Durability};
use freebs_types::Result;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What becomes of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// Bit number `0`, counted modulo the bits of a sector, flips.
    Flip(u64),
    /// All its bytes become zero.
    Zero,
    /// Bytes by seed.
    Garbage(u64),
    /// What lies in the sector at this byte.
    CopyOf(u64),
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
enum Astray {
    Lost,
    To(u64),
}

#[derive(Default)]
struct State {
    writes: u64,
    reads: u64,
    astray: BTreeMap<u64, Astray>,
    reads_from: BTreeMap<u64, u64>,
    hits: u64,
}

/// A device with damage. Clones share it.
#[derive(Clone)]
pub struct RotDevice<D> {
    inner: D,
    state: Rc<RefCell<State>>,
}

impl<D: Device> RotDevice<D> {
    /// `inner`, nothing of which is damaged.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, state: Rc::default() }
    }

    /// The device underneath; damage that was done is in it.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Damages the sector at byte `at` (a multiple of the sector). Tells whether it differs from what it was.
    pub async fn rot(&self, at: u64, rot: Rot) -> Result<bool> {
        let sector = self.sector();
        let old = self.inner.read(at, sector).await?;
        let mut new = AlignedBuf::zeroed(sector);
        match rot {
            Rot::Zero => {}
            Rot::Flip(bit) => {
                new.copy_from_slice(&old);
                let bit = bit % (8 * sector as u64);
                new[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            Rot::Garbage(seed) => {
                let mut luck = Luck::new(seed);
                new.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&luck.next().to_le_bytes()));
            }
            Rot::CopyOf(from) => new = self.inner.read(from, sector).await?,
        }
        let differs = new[..] != old[..];
        self.inner.write(at, new, Durability::Durable).await.1.map(|()| differs)
    }

    /// Changes the places of two sectors. Tells whether that makes a difference.
    pub async fn swap(&self, a: u64, b: u64) -> Result<bool> {
        let sector = self.sector();
        let (at_a, at_b) = (self.inner.read(a, sector).await?, self.inner.read(b, sector).await?);
        let differs = at_a[..] != at_b[..];
        self.inner.write(a, at_b, Durability::Durable).await.1?;
        self.inner.write(b, at_a, Durability::Durable).await.1?;
        Ok(differs)
    }

    /// The `n`-th write from now on, 0 for the next one, is answered but not done.
    pub fn lose_write(&self, n: u64) {
        self.plan(n, Astray::Lost);
    }

    /// The `n`-th write from now on goes to byte `to` instead of where it should, as far as the device reaches.
    pub fn misdirect_write(&self, n: u64, to: u64) {
        self.plan(n, Astray::To(to));
    }

    /// The `n`-th read from now on gives what lies at byte `from`, if the device reaches so far.
    pub fn misdirect_read(&self, n: u64, from: u64) {
        let mut s = self.state.borrow_mut();
        let number = s.reads + n;
        s.reads_from.insert(number, from);
    }

    fn plan(&self, n: u64, astray: Astray) {
        let mut s = self.state.borrow_mut();
        let number = s.writes + n;
        s.astray.insert(number, astray);
    }

    /// Writes so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.state.borrow().writes
    }

    /// Reads so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.state.borrow().reads
    }

    /// Calls that went astray.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.state.borrow().hits
    }
}

impl<D: Device> Device for RotDevice<D> {
    fn sector(&self) -> usize {
        self.inner.sector()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        let from = {
            let mut s = self.state.borrow_mut();
            let number = s.reads;
            s.reads += 1;
            let from = s.reads_from.remove(&number).filter(|f| f + len as u64 <= self.inner.len());
            s.hits += u64::from(from.is_some());
            from
        };
        self.inner.read(from.unwrap_or(at), len).await
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        let astray = {
            let mut s = self.state.borrow_mut();
            let number = s.writes;
            s.writes += 1;
            let astray = s.astray.remove(&number);
            s.hits += u64::from(astray.is_some());
            astray
        };
        match astray {
            None => self.inner.write(at, buf, durability).await,
            Some(Astray::To(to)) if to + buf.len() as u64 <= self.inner.len() => {
                self.inner.write(to, buf, durability).await
            }
            Some(_) => (buf, Ok(())),
        }
    }

    async fn sync(&self) -> Result<()> {
        self.inner.sync().await
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len).await
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.inner.punch(at, len).await
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.inner.prewrite(at, len).await
    }
}

//! A device in memory: every write is durable at once. For tests and examples.

use crate::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes in memory behind the device trait. Clones share the bytes, so a "restart" opens a clone.
#[derive(Clone)]
pub struct MemoryDevice {
    bytes: Rc<RefCell<Vec<u8>>>,
    sector: usize,
    limit: u64,
}

impl MemoryDevice {
    /// An empty device with `sector`-byte sectors that can grow to `limit` bytes.
    #[must_use]
    pub fn new(sector: usize, limit: u64) -> Self {
        Self { bytes: Rc::default(), sector, limit }
    }

    /// Changes bytes behind the device's back (damage in tests).
    pub fn poke(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.bytes.borrow_mut());
    }

    fn range(&self, at: u64, len: u64) -> Result<std::ops::Range<usize>> {
        let end = at.checked_add(len).filter(|e| *e <= self.len());
        match end {
            Some(end) if (at | len).is_multiple_of(self.sector as u64) => Ok(at as usize..end as usize),
            _ => Err(Error::invalid(format!("device access of {len} bytes at {at} is out of range or not aligned"))),
        }
    }
}

impl Device for MemoryDevice {
    fn sector(&self) -> usize {
        self.sector
    }

    fn len(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        let range = self.range(at, len as u64)?;
        let mut buf = AlignedBuf::zeroed(len);
        buf.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(buf)
    }

    async fn write(&self, at: u64, buf: AlignedBuf, _durability: Durability) -> (AlignedBuf, Result<()>) {
        let done = self.range(at, buf.len() as u64).map(|r| self.bytes.borrow_mut()[r].copy_from_slice(&buf));
        (buf, done)
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        if len > self.limit {
            return Err(Error::no_space("the memory device is at its limit"));
        }
        self.bytes.borrow_mut().resize(len as usize, 0);
        Ok(())
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        let range = self.range(at, len)?;
        self.bytes.borrow_mut()[range].fill(0);
        Ok(())
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.punch(at, len).await
    }
}

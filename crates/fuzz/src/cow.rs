//! A device whose bytes are those of an image until they are written: an execution copies what it changes only.

use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const PAGE: usize = 4096;

/// Clones share the bytes, so a "restart" opens a clone.
#[derive(Clone)]
pub struct CowDevice {
    image: &'static [u8],
    changed: Rc<RefCell<BTreeMap<u64, Box<[u8; PAGE]>>>>,
    len: Rc<Cell<u64>>,
    sector: usize,
    limit: u64,
}

impl CowDevice {
    /// The image as a device that can grow to `limit` bytes.
    #[must_use]
    pub fn new(image: &'static [u8], sector: usize, limit: u64) -> Self {
        Self { image, changed: Rc::default(), len: Rc::new(Cell::new(image.len() as u64)), sector, limit }
    }

    /// Bytes of the device; zeroes beyond what was written.
    #[must_use]
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.copy(at, &mut out);
        out
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        let from = (at as usize).min(self.image.len());
        let there = out.len().min(self.image.len() - from);
        out[..there].copy_from_slice(&self.image[from..from + there]);
        let end = at + out.len() as u64;
        for (page, bytes) in self.changed.borrow().range(at / PAGE as u64..end.div_ceil(PAGE as u64)) {
            let first = page * PAGE as u64;
            let (begin, stop) = (first.max(at), (first + PAGE as u64).min(end));
            out[(begin - at) as usize..(stop - at) as usize]
                .copy_from_slice(&bytes[(begin - first) as usize..(stop - first) as usize]);
        }
    }

    /// Changes bytes, within the device or not; what lies beyond its end is not seen until it grows.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, offset) = ((at + done as u64) / PAGE as u64, (at + done as u64) as usize % PAGE);
            let some = (PAGE - offset).min(bytes.len() - done);
            let first = page * PAGE as u64;
            let missing = !self.changed.borrow().contains_key(&page);
            if missing {
                let mut old = Box::new([0; PAGE]);
                self.copy(first, &mut old[..]);
                self.changed.borrow_mut().insert(page, old);
            }
            let mut changed = self.changed.borrow_mut();
            let there = changed.get_mut(&page).expect("just put there");
            there[offset..offset + some].copy_from_slice(&bytes[done..done + some]);
            done += some;
        }
    }

    /// Cuts the device off.
    pub fn truncate(&self, len: u64) {
        self.len.set(self.len.get().min(len));
    }

    /// A number that differs if a byte does.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let changed = self.changed.borrow();
        let pages = changed.iter().map(|(page, bytes)| crate::rng::mix(*page) ^ crate::rng::hash(&bytes[..]));
        pages.fold(self.len.get(), |a, b| crate::rng::mix(a ^ b))
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        let fits = at.checked_add(len).is_some_and(|e| e <= self.len.get());
        if fits && (at | len).is_multiple_of(self.sector as u64) {
            return Ok(());
        }
        Err(Error::invalid(format!("device access of {len} bytes at {at} is out of range or not aligned")))
    }
}

impl Device for CowDevice {
    fn sector(&self) -> usize {
        self.sector
    }

    fn len(&self) -> u64 {
        self.len.get()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.check(at, len as u64)?;
        let mut buf = AlignedBuf::zeroed(len);
        self.copy(at, &mut buf);
        Ok(buf)
    }

    async fn write(&self, at: u64, buf: AlignedBuf, _durability: Durability) -> (AlignedBuf, Result<()>) {
        let done = self.check(at, buf.len() as u64).map(|()| self.put(at, &buf));
        (buf, done)
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        if len > self.limit {
            return Err(Error::no_space("the device is at its limit"));
        }
        // Bytes behind the old end read as zeroes.
        let old = self.len.replace(len);
        if len > old && (old < self.image.len() as u64 || !self.changed.borrow().is_empty()) {
            let end = len.min((self.image.len() as u64).max(old));
            let mut at = old;
            while at < end {
                let some = (end - at).min(PAGE as u64) as usize;
                self.put(at, &vec![0; some]);
                at += some as u64;
            }
        }
        Ok(())
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.check(at, len)?;
        for from in (at..at + len).step_by(PAGE) {
            self.put(from, &vec![0; (at + len - from).min(PAGE as u64) as usize]);
        }
        Ok(())
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.punch(at, len).await
    }
}

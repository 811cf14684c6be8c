//! A device that loses what was not durable: at a crash each sector of a write in flight is there or not.

#![allow(dead_code, reason = "each test file uses its part")]

use super::Rng;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;

pub const SECTOR: usize = 512;

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// Writes that have not returned, by number.
    flying: Vec<(u64, u64, Vec<u8>)>,
    /// Writes that returned but were not promised durable.
    cached: Vec<(u64, Vec<u8>)>,
    next: u64,
    /// A growth that has not returned.
    growing: Option<u64>,
    /// Calls until one fails.
    fail_in: Option<u64>,
    limit: u64,
    rng: u64,
    /// Turns that every read takes, more than others do.
    slow: u64,
}

#[derive(Clone)]
pub struct CrashDevice(Rc<RefCell<State>>);

impl CrashDevice {
    pub fn new(limit: u64, seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State { limit, rng: seed | 1, ..State::default() })))
    }

    /// The device as it is found after a power cut.
    pub fn crash(&self, rng: &mut Rng) -> Self {
        let old = self.0.borrow();
        let mut bytes = old.bytes.clone();
        // Reads see cached writes at once; a power cut takes some of them back, sector by sector.
        let flying = old.flying.iter().map(|(_, at, b)| (*at, b));
        for (at, new) in old.cached.iter().map(|(at, b)| (*at, b)).chain(flying) {
            let mode = rng.below(4);
            for (i, piece) in new.chunks(SECTOR).enumerate() {
                let there = match mode {
                    0 => false,
                    1 => true,
                    2 => rng.chance(50),
                    _ => rng.chance(95),
                };
                let from = at as usize + i * SECTOR;
                if there && from + piece.len() <= bytes.len() {
                    bytes[from..from + piece.len()].copy_from_slice(piece);
                }
            }
        }
        if let Some(len) = old.growing
            && rng.chance(50)
        {
            let most = (len - bytes.len() as u64) / SECTOR as u64;
            bytes.resize(bytes.len() + rng.below(most + 1) as usize * SECTOR, 0);
        }
        let state = State { bytes, limit: old.limit, rng: rng.next() | 1, ..State::default() };
        Self(Rc::new(RefCell::new(state)))
    }

    /// Whether every write and growth that was begun has returned.
    pub fn is_quiet(&self) -> bool {
        let s = self.0.borrow();
        s.flying.is_empty() && s.growing.is_none()
    }

    pub fn fail_in(&self, calls: u64) {
        self.0.borrow_mut().fail_in = Some(calls);
    }

    /// From now on reads take so many turns.
    pub fn slow_reads(&self, turns: u64) {
        self.0.borrow_mut().slow = turns;
    }

    async fn dawdle(&self) {
        let n = {
            let mut s = self.0.borrow_mut();
            let mut rng = Rng(s.rng);
            let n = rng.below(4);
            s.rng = rng.0;
            n
        };
        for _ in 0..n {
            tokio::task::yield_now().await;
        }
    }

    fn fails(&self) -> bool {
        let mut s = self.0.borrow_mut();
        match &mut s.fail_in {
            Some(0) => true,
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}

impl Device for CrashDevice {
    fn sector(&self) -> usize {
        SECTOR
    }

    fn len(&self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        assert!((at as usize | len).is_multiple_of(SECTOR) && len > 0, "whole sectors: {len} at {at}");
        self.dawdle().await;
        let slow = self.0.borrow().slow;
        for _ in 0..slow {
            tokio::task::yield_now().await;
        }
        let s = self.0.borrow();
        let Some(bytes) = s.bytes.get(at as usize..at as usize + len) else {
            return Err(Error::invalid("read beyond the end"));
        };
        let mut buf = AlignedBuf::zeroed(len);
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        assert!((at as usize | buf.len()).is_multiple_of(SECTOR), "whole sectors");
        if self.fails() {
            return (buf, Err(Error::os("injected")));
        }
        let number = {
            let mut s = self.0.borrow_mut();
            s.next += 1;
            let n = s.next;
            s.flying.push((n, at, buf.to_vec()));
            n
        };
        self.dawdle().await;
        let mut s = self.0.borrow_mut();
        s.flying.retain(|f| f.0 != number);
        let range = at as usize..at as usize + buf.len();
        if range.end > s.bytes.len() {
            return (buf, Err(Error::invalid("write beyond the end")));
        }
        s.bytes[range].copy_from_slice(&buf);
        if durability == Durability::Cached {
            s.cached.push((at, buf.to_vec()));
        }
        (buf, Ok(()))
    }

    async fn sync(&self) -> Result<()> {
        if self.fails() {
            return Err(Error::os("injected"));
        }
        let n = self.0.borrow().cached.len();
        self.dawdle().await;
        self.0.borrow_mut().cached.drain(..n);
        Ok(())
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        if self.fails() {
            return Err(Error::os("injected"));
        }
        if len > self.0.borrow().limit {
            return Err(Error::no_space("full"));
        }
        self.0.borrow_mut().growing = Some(len);
        self.dawdle().await;
        let mut s = self.0.borrow_mut();
        s.growing = None;
        s.bytes.resize(len as usize, 0);
        Ok(())
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.0.borrow_mut().bytes[at as usize..(at + len) as usize].fill(0);
        self.dawdle().await;
        Ok(())
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.0.borrow_mut().bytes[at as usize..(at + len) as usize].fill(0);
        Ok(())
    }
}

//! A simulated disk: what a device may do to data under the assumptions of `freebs_io::Device`, by chance.
//!
//! Invariants (the model): a write is in force for reads once it returned; it is on stable media once it returned
//! with `Durable`, or once a sync returned that began after it had. At a power loss each sector of everything else
//! is lost, kept, or as some write in between left it, independently of its neighbours; a sector itself never
//! tears. A killed process loses only what it had in flight. After a failed write or sync every call fails until
//! the device is opened anew.

use crate::rng::Rng;
use crate::timing;
use crate::world::World;
use freebs_format::disk::{AppendHeader, SEGMENTS_AT};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Nanos, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Bytes of one sector; `None` is a sector of zeroes.
type Sector = Option<Rc<[u8]>>;

/// How slow and how whole a disk is.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    pub sector: usize,
    /// Bytes that it can grow to.
    pub limit: u64,
    /// Of a read, a cached write, and of what must reach stable media.
    pub read_latency: Nanos,
    pub write_latency: Nanos,
    pub sync_latency: Nanos,
}

/// How a process came to lose its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process was killed: what it had in flight is done or not.
    Kill,
    /// The power went: what was not synced is lost, kept or mixed.
    Power,
}

#[derive(Debug)]
enum Operation {
    Write { at: u64, sectors: Vec<Sector>, durable: bool },
    Sync { up_to: u64 },
    SetLen { sectors: u64 },
}

/// What is on a disk, and in its cache.
#[derive(Default)]
pub struct Content {
    stable: Vec<Sector>,
    unsynced: BTreeMap<u64, Vec<(u64, Sector)>>,
}

struct InFlight {
    operation: Operation,
    done: Option<oneshot::Sender<Result<()>>>,
}

struct State {
    config: DiskConfig,
    stable: Vec<Sector>,
    /// By sector, what was written since it was last made stable, oldest first, each with its number.
    unsynced: BTreeMap<u64, Vec<(u64, Sector)>>,
    in_flight: BTreeMap<u64, InFlight>,
    next: u64,
    poisoned: bool,
    /// Writes and syncs until one fails.
    fails_in: Option<u64>,
    luck: Rng,
}

/// Until when, how many times slower, and whether reads are as fast as ever.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    until: Nanos,
    factor: u64,
    only_durable: bool,
}

/// A disk, and everybody's handle on it. It outlives the processes that use it.
#[derive(Clone)]
pub struct Disk {
    state: Rc<RefCell<State>>,
    world: Rc<World>,
    /// Raised whenever a process that used the disk dies: handles of before never hear anything again.
    epoch: Rc<Cell<u64>>,
    slow: Rc<Cell<Slow>>,
    /// Since when, and until when, nothing is done.
    stalled: Rc<Cell<(Nanos, Nanos)>>,
}

impl Disk {
    #[must_use]
    pub fn new(world: &Rc<World>, config: DiskConfig, luck: Rng) -> Self {
        let state = State {
            config,
            stable: Vec::new(),
            unsynced: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next: 0,
            poisoned: false,
            fails_in: None,
            luck,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
            world: world.clone(),
            epoch: Rc::default(),
            slow: Rc::default(),
            stalled: Rc::default(),
        }
    }

    /// A handle for a process that starts now.
    #[must_use]
    pub fn open(&self) -> SimDevice {
        let mut s = self.state.borrow_mut();
        s.poisoned = false;
        SimDevice { sector: s.config.sector, disk: self.clone(), epoch: self.epoch.get() }
    }

    /// The process that uses the disk is gone.
    pub fn crash(&self, crash: Crash) {
        self.epoch.set(self.epoch.get() + 1);
        self.state.borrow_mut().crash(crash);
        self.world.trace(0x01, crash as u64, self.state.borrow().stable.len() as u64);
    }

    /// Until `until` everything takes `factor` times as long, or only what must reach stable media.
    pub fn slow_down(&self, until: Nanos, factor: u64, only_durable: bool) {
        self.slow.set(Slow { until, factor, only_durable });
    }

    /// Until `until` nothing is done at all.
    pub fn stall(&self, until: Nanos) {
        self.stalled.set((self.world.now(), until));
    }

    /// True if nothing was done for so long that its node says so.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let ((since, until), now) = (self.stalled.get(), self.world.now());
        now < until && now.since(since) >= timing::DEVICE_SILENT
    }

    /// The `n`-th write or sync from now on fails.
    pub fn fail_write(&self, n: u64) {
        self.state.borrow_mut().fails_in = Some(n);
    }

    /// No write fails that was to.
    pub fn fail_no_more(&self) {
        self.state.borrow_mut().fails_in = None;
    }

    /// Whether a write or sync of the present process has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state.borrow().poisoned
    }

    /// Changes one bit on stable media, in a place that the disk's chance names, if there is anything. Returns it.
    pub fn rot(&self) -> Option<u64> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let used: Vec<usize> = (0..s.stable.len()).filter(|i| s.stable[*i].is_some()).collect();
        let place = s.luck.pick(&used).copied()?;
        let bits = 8 * s.config.sector as u64;
        let bit = s.luck.below(bits);
        let sector = s.stable[place].as_mut()?;
        let mut bytes = sector.to_vec();
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        *sector = bytes.into();
        Some(place as u64 * s.config.sector as u64 + bit / 8)
    }

    /// Destroys the headers of an append and of the one behind it, which repeats it, on stable media, and what ends its
    /// segment. That they were there is known by the appends behind them, so never that of the last one. Returns place and
    /// number of the first.
    pub fn lose_append(&self, segment_bytes: u64) -> Option<(u64, u64)> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let sector = s.config.sector as u64;
        let header = |i: usize| {
            let h = AppendHeader::decode(s.stable[i].as_ref()?).ok()?;
            Some((i as u64 * sector, h.number.get()))
        };
        let all: Vec<(u64, u64)> = (0..s.stable.len()).filter_map(header).collect();
        let newest = all.iter().map(|(_, n)| *n).max()?;
        let lost: Vec<_> = all.iter().copied().filter(|(at, n)| n + 1 < newest && *at >= SEGMENTS_AT).collect();
        let (at, number) = s.luck.pick(&lost).copied()?;
        let end = at - (at - SEGMENTS_AT) % segment_bytes + segment_bytes;
        let behind = all.iter().filter(|(_, n)| *n == number + 1).map(|(at, _)| *at);
        for place in [at, end - sector].into_iter().chain(behind) {
            if let Some(Some(bytes)) = s.stable.get_mut((place / sector) as usize) {
                *bytes = vec![0xee; sector as usize].into();
            }
        }
        Some((at, number))
    }

    /// All that reads would give now.
    #[must_use]
    pub fn content(&self) -> Content {
        let s = self.state.borrow();
        let mut sectors = s.stable.clone();
        for (at, versions) in &s.unsynced {
            if let (Some(place), Some((_, newest))) = (sectors.get_mut(*at as usize), versions.last()) {
                place.clone_from(newest);
            }
        }
        Content { stable: sectors, unsynced: BTreeMap::new() }
    }

    /// Puts another disk in, while no process uses it, and gives back what was there.
    pub fn swap(&self, new: Content) -> Content {
        let mut s = self.state.borrow_mut();
        let stable = std::mem::replace(&mut s.stable, new.stable);
        let unsynced = std::mem::replace(&mut s.unsynced, new.unsynced);
        Content { stable, unsynced }
    }

    /// Bytes that it can grow to.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.state.borrow().config.limit
    }

    /// Bytes that a device would have now.
    #[must_use]
    pub fn len(&self) -> u64 {
        let s = self.state.borrow();
        s.stable.len() as u64 * s.config.sector as u64
    }

    fn latency(&self, base: Nanos, durable: bool) -> Nanos {
        let now = self.world.now();
        let mut s = self.state.borrow_mut();
        // Mostly near the base, now and then much more, as disks do.
        let tail = if s.luck.chance(0.02) { s.luck.range(2, 8) } else { 1 };
        let mut wait = s.luck.range(base.0 / 2, base.0 * 3 / 2) * tail;
        let slow = self.slow.get();
        if now < slow.until && (durable || !slow.only_durable) {
            wait = wait.saturating_mul(slow.factor);
        }
        Nanos(wait.min(timing::SLOW_MAX.0))
    }

    /// How much longer something has to wait for the end of a stall, in steps, so that the end may come early.
    fn held(&self) -> Option<Nanos> {
        let held = self.stalled.get().1.since(self.world.now());
        (held.0 > 0).then_some(held.min(timing::STALL_LOOK))
    }

    /// Puts an operation under way; its answer comes when it is done, and never if the process dies before.
    fn submit(&self, operation: Operation, latency: Nanos) -> oneshot::Receiver<Result<()>> {
        let (tell, told) = oneshot::channel();
        let durable = !matches!(operation, Operation::Write { durable: false, .. });
        let wait = self.latency(latency, durable);
        let mut s = self.state.borrow_mut();
        let id = s.number();
        s.in_flight.insert(id, InFlight { operation, done: Some(tell) });
        drop(s);
        let disk = self.clone();
        self.world.after(wait, move || disk.complete(id));
        told
    }

    fn complete(&self, id: u64) {
        if let Some(held) = self.held().filter(|_| self.state.borrow().in_flight.contains_key(&id)) {
            let disk = self.clone();
            self.world.after(held, move || disk.complete(id));
            return;
        }
        let mut s = self.state.borrow_mut();
        let Some(mut op) = s.in_flight.remove(&id) else { return };
        let result = s.carry_out(op.operation);
        self.world.trace(0x02, id, u64::from(result.is_ok()));
        if let Some(done) = op.done.take() {
            let _ = done.send(result);
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn carry_out(&mut self, operation: Operation) -> Result<()> {
        if self.poisoned {
            return Err(poisoned());
        }
        if !matches!(operation, Operation::SetLen { .. })
            && let Some(n) = self.fails_in
        {
            self.fails_in = n.checked_sub(1);
            if n == 0 {
                self.poisoned = true;
                self.leave_mixed(operation, 0.5);
                return Err(poisoned());
            }
        }
        match operation {
            Operation::Write { at, sectors, durable } => {
                for (i, sector) in sectors.into_iter().enumerate() {
                    self.put(at + i as u64, sector, durable);
                }
            }
            Operation::Sync { up_to } => self.make_stable(up_to),
            Operation::SetLen { sectors } => self.set_len(sectors),
        }
        Ok(())
    }

    fn put(&mut self, at: u64, sector: Sector, durable: bool) {
        if at >= self.stable.len() as u64 {
            return;
        }
        if durable {
            // Newer than all that the cache still holds of this sector.
            self.unsynced.remove(&at);
            self.stable[at as usize] = sector;
        } else {
            let number = self.number();
            self.unsynced.entry(at).or_default().push((number, sector));
        }
    }

    fn make_stable(&mut self, up_to: u64) {
        let places: Vec<u64> = self.unsynced.keys().copied().collect();
        for at in places {
            let Some(versions) = self.unsynced.get_mut(&at) else { continue };
            let synced = versions.partition_point(|(n, _)| *n <= up_to);
            if let Some((_, newest)) = versions.drain(..synced).next_back() {
                self.stable[at as usize] = newest;
            }
            if versions.is_empty() {
                self.unsynced.remove(&at);
            }
        }
    }

    fn set_len(&mut self, sectors: u64) {
        self.stable.resize(sectors as usize, None);
        self.unsynced.split_off(&sectors);
    }

    /// Of an operation that never came to its end each sector is done or not.
    fn leave_mixed(&mut self, operation: Operation, chance: f64) {
        match operation {
            Operation::Write { at, sectors, durable } => {
                for (i, sector) in sectors.into_iter().enumerate() {
                    if self.luck.chance(chance) {
                        self.put(at + i as u64, sector, durable);
                    }
                }
            }
            Operation::SetLen { sectors } if self.luck.chance(0.5) => self.set_len(sectors),
            _ => {}
        }
    }

    fn crash(&mut self, crash: Crash) {
        let chance = [0.0, 0.1, 0.5, 0.9, 1.0][self.luck.below(5) as usize];
        for op in std::mem::take(&mut self.in_flight).into_values() {
            self.leave_mixed(op.operation, chance);
        }
        if crash == Crash::Kill {
            return;
        }
        for (at, versions) in std::mem::take(&mut self.unsynced) {
            if self.luck.chance(chance) {
                // Any of the writes may have been the last one that the medium took.
                let i = if self.luck.chance(0.7) {
                    versions.len() - 1
                } else {
                    self.luck.below(versions.len() as u64) as usize
                };
                self.stable[at as usize] = versions[i].1.clone();
            }
        }
    }

    fn read(&self, at: u64, count: u64, out: &mut [u8]) {
        for (i, chunk) in (at..at + count).zip(out.chunks_exact_mut(self.config.sector)) {
            let sector = match self.unsynced.get(&i).and_then(|v| v.last()) {
                Some((_, s)) => s,
                None => &self.stable[i as usize],
            };
            match sector {
                Some(bytes) => chunk.copy_from_slice(bytes),
                None => chunk.fill(0),
            }
        }
    }
}

fn poisoned() -> Error {
    Error::device_failed("the simulated device failed a write")
}

/// One process's handle on a disk.
#[derive(Clone)]
pub struct SimDevice {
    disk: Disk,
    sector: usize,
    epoch: u64,
}

impl SimDevice {
    /// A handle of a dead process waits for ever: nobody is there to go on.
    async fn alive(&self) {
        if self.disk.epoch.get() != self.epoch {
            std::future::pending::<()>().await;
        }
    }

    async fn sleep(&self, time: Nanos) {
        let (tell, told) = oneshot::channel::<()>();
        self.disk.world.after(time, move || {
            let _ = tell.send(());
        });
        let _ = told.await;
    }

    fn range(&self, at: u64, len: u64) -> Result<(u64, u64)> {
        let s = self.disk.state.borrow();
        if s.poisoned {
            return Err(poisoned());
        }
        let unit = self.sector as u64;
        let end = at.checked_add(len).filter(|e| *e <= s.stable.len() as u64 * unit);
        if end.is_none() || !(at | len).is_multiple_of(unit) {
            return Err(Error::invalid(format!("device access of {len} bytes at {at} is out of range or not aligned")));
        }
        Ok((at / unit, len / unit))
    }

    async fn submit(&self, operation: Operation, latency: Nanos) -> Result<()> {
        let told = self.disk.submit(operation, latency);
        match told.await {
            Ok(result) => result,
            // The process died while it waited.
            Err(_) => std::future::pending().await,
        }
    }

    async fn zero(&self, at: u64, len: u64) -> Result<()> {
        self.alive().await;
        let (at, count) = self.range(at, len)?;
        let latency = self.disk.state.borrow().config.write_latency;
        let sectors = vec![None; count as usize];
        self.submit(Operation::Write { at, sectors, durable: false }, latency).await
    }
}

impl Device for SimDevice {
    fn sector(&self) -> usize {
        self.sector
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.alive().await;
        self.range(at, len as u64)?;
        let latency = self.disk.state.borrow().config.read_latency;
        self.sleep(self.disk.latency(latency, false)).await;
        while let Some(held) = self.disk.held() {
            self.sleep(held).await;
        }
        self.alive().await;
        let (at, count) = self.range(at, len as u64)?;
        let mut buf = AlignedBuf::zeroed(len);
        self.disk.state.borrow().read(at, count, &mut buf);
        Ok(buf)
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        self.alive().await;
        let at = match self.range(at, buf.len() as u64) {
            Ok((at, _)) => at,
            Err(e) => return (buf, Err(e)),
        };
        let sectors: Vec<Sector> =
            buf.chunks_exact(self.sector).map(|s| s.iter().any(|b| *b != 0).then(|| s.into())).collect();
        let durable = durability == Durability::Durable;
        let latency = {
            let s = self.disk.state.borrow();
            if durable { s.config.sync_latency } else { s.config.write_latency }
        };
        let done = self.submit(Operation::Write { at, sectors, durable }, latency).await;
        (buf, done)
    }

    async fn sync(&self) -> Result<()> {
        self.alive().await;
        self.range(0, 0)?;
        let (up_to, latency) = {
            let s = self.disk.state.borrow();
            (s.next, s.config.sync_latency)
        };
        self.submit(Operation::Sync { up_to }, latency).await
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        self.alive().await;
        self.range(0, 0)?;
        let (limit, latency) = {
            let s = self.disk.state.borrow();
            (s.config.limit, s.config.sync_latency)
        };
        if len > limit {
            return Err(Error::no_space("the simulated device is at its limit"));
        }
        self.submit(Operation::SetLen { sectors: len / self.sector as u64 }, latency).await
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.zero(at, len).await
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.zero(at, len).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: DiskConfig = DiskConfig {
        sector: 512,
        limit: 1 << 20,
        read_latency: Nanos(100_000),
        write_latency: Nanos(100_000),
        sync_latency: Nanos(1_000_000),
    };

    fn run<F: Future<Output = ()>>(test: impl FnOnce(Rc<World>) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let world = World::new(1, false);
            let pump = world.clone();
            tokio::task::spawn_local(async move { pump.pump(Nanos(u64::MAX / 2)).await });
            test(world.clone()).await;
            world.clear();
        });
    }

    fn filled(byte: u8, len: usize) -> AlignedBuf {
        let mut b = AlignedBuf::zeroed(len);
        b.fill(byte);
        b
    }

    async fn write(d: &SimDevice, at: u64, byte: u8, len: usize, durability: Durability) -> Result<()> {
        d.write(at, filled(byte, len), durability).await.1
    }

    #[test]
    fn what_was_durable_survives_and_what_was_not_is_lost_or_kept_by_sector() {
        run(async |world| {
            let mut seen = [0u32; 3];
            for seed in 0..200 {
                let disk = Disk::new(&world, CONFIG, Rng::new(seed));
                let d = disk.open();
                d.set_len(8192).await.unwrap();
                write(&d, 0, 1, 4096, Durability::Durable).await.unwrap();
                write(&d, 4096, 2, 4096, Durability::Cached).await.unwrap();
                d.sync().await.unwrap();
                write(&d, 4096, 3, 4096, Durability::Cached).await.unwrap();
                assert_eq!(d.read(4096, 512).await.unwrap()[0], 3);
                disk.crash(Crash::Power);
                let d = disk.open();
                let bytes = d.read(0, 8192).await.unwrap();
                assert!(bytes[..4096].iter().all(|b| *b == 1));
                let kept = bytes[4096..].chunks(512).filter(|s| s[0] == 3).count();
                assert!(bytes[4096..].chunks(512).all(|s| s.iter().all(|b| *b == s[0]) && s[0] >= 2));
                seen[usize::from(kept > 0) + usize::from(kept == 8)] += 1;
            }
            assert!(seen.iter().all(|n| *n > 5), "lost, torn, kept: {seen:?}");
        });
    }

    #[test]
    fn a_kill_keeps_what_returned_and_leaves_what_was_in_flight_open() {
        run(async |world| {
            let mut seen = [0u32; 2];
            for seed in 0..100 {
                let disk = Disk::new(&world, CONFIG, Rng::new(seed));
                let d = disk.open();
                d.set_len(8192).await.unwrap();
                write(&d, 0, 1, 512, Durability::Cached).await.unwrap();
                let (old, half) = (d.clone(), Rc::new(Cell::new(false)));
                let told = half.clone();
                tokio::task::spawn_local(async move {
                    let _ = write(&old, 512, 2, 512, Durability::Durable).await;
                    told.set(true);
                });
                tokio::task::yield_now().await;
                disk.crash(Crash::Kill);
                let d = disk.open();
                let bytes = d.read(0, 1024).await.unwrap();
                assert_eq!(bytes[0], 1);
                seen[usize::from(bytes[512] == 2)] += 1;
                d.sync().await.unwrap();
                assert!(!half.get(), "a dead process heard of its write");
            }
            assert!(seen.iter().all(|n| *n > 5), "{seen:?}");
        });
    }

    #[test]
    fn a_failed_write_poisons_the_handle_until_the_disk_is_opened_again() {
        run(async |world| {
            let disk = Disk::new(&world, CONFIG, Rng::new(3));
            let d = disk.open();
            d.set_len(8192).await.unwrap();
            disk.fail_write(1);
            write(&d, 0, 1, 512, Durability::Durable).await.unwrap();
            for _ in 0..2 {
                let e = write(&d, 0, 2, 512, Durability::Durable).await.unwrap_err();
                assert_eq!(e.kind, freebs_types::ErrorKind::DeviceFailed);
            }
            assert!(d.sync().await.is_err() && d.read(0, 512).await.is_err());
            assert!(disk.open().sync().await.is_ok());
            assert_eq!(d.set_len(2 << 20).await.unwrap_err().kind, freebs_types::ErrorKind::NoSpace);
        });
    }
}

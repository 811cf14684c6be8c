//! The device as the engine sees it: it knows which calls that change it are on their way.
//!
//! Invariants:
//! - A call whose future is dropped is not taken back: it may act at any time later, also when the next start has
//!   written in the same place. So the writer does not end, and `close` does not return, before every such call has
//!   returned, of whatever kind: appends, pages of the map, checkpoints, room for the log.
//! - While the writer ends none is begun.

use crate::log::geometry::Geometry;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::Result;
use std::cell::Cell;
use tokio::sync::Notify;

/// Grows a device of so many whole segments by one. A piece of a segment that lies behind them was passed over by the
/// start, as a device that was cut off has one; it is made blank first, or it would count again as part of a whole one.
pub(crate) async fn grow<D: Device>(device: &D, geometry: Geometry, segments: u32) -> Result<()> {
    let (from, end) = (geometry.byte(segments, 0), geometry.byte(segments + 1, 0));
    let piece = device.len().clamp(from, end) - from;
    let piece = piece - piece % geometry.sector as u64;
    if piece > 0 {
        device.prewrite(from, piece).await?;
        device.sync().await?;
    }
    device.set_len(end).await
}

/// A device, and what of it is under way.
pub(crate) struct Ways<D> {
    device: D,
    /// Calls that change the device and have not returned.
    calls: Cell<u32>,
    /// What somebody else than the writer does in several calls.
    tasks: Cell<u32>,
    shut: Cell<bool>,
    /// Rung when one of them changes.
    changed: Notify,
}

/// Counts one of them for as long as it exists.
pub(crate) struct Way<'a> {
    count: &'a Cell<u32>,
    changed: &'a Notify,
}

impl<'a> Way<'a> {
    fn new(count: &'a Cell<u32>, changed: &'a Notify) -> Self {
        count.set(count.get() + 1);
        Self { count, changed }
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
        self.changed.notify_waiters();
    }
}

impl<D> Ways<D> {
    pub fn new(device: D) -> Self {
        Self { device, calls: Cell::new(0), tasks: Cell::new(0), shut: Cell::new(false), changed: Notify::new() }
    }

    /// From now on calls that would change the device wait, or go on.
    pub fn set_shut(&self, shut: bool) {
        self.shut.set(shut);
        self.changed.notify_waiters();
    }

    /// Whether everything that was begun has returned.
    pub fn is_quiet(&self) -> bool {
        self.calls.get() == 0
    }

    /// Something in several calls begins, that the writer does not know of.
    pub fn task(&self) -> Way<'_> {
        Way::new(&self.tasks, &self.changed)
    }

    /// Waits until nothing is under way.
    pub async fn quiet(&self) {
        while !self.is_quiet() || self.tasks.get() > 0 {
            self.changed.notified().await;
        }
    }

    async fn pass(&self) -> Way<'_> {
        while self.shut.get() {
            self.changed.notified().await;
        }
        Way::new(&self.calls, &self.changed)
    }
}

impl<D: Device> Device for Ways<D> {
    fn sector(&self) -> usize {
        self.device.sector()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.device.read(at, len).await
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        let _way = self.pass().await;
        self.device.write(at, buf, durability).await
    }

    async fn sync(&self) -> Result<()> {
        let _way = self.pass().await;
        self.device.sync().await
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        let _way = self.pass().await;
        self.device.set_len(len).await
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        let _way = self.pass().await;
        self.device.punch(at, len).await
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        let _way = self.pass().await;
        self.device.prewrite(at, len).await
    }
}

//! The handle on a device's log.

use crate::{
    Counters, Digest, Event, Expect, FrameName, Listener, OpenReport, Piece, ReadOut, Record, Shape, ShardState, Space,
};
use bytes::Bytes;
use freebs_format::disk::Superblock;
use freebs_format::{CarryBody, Frame};
use freebs_io::Device;
use freebs_types::{BlockRange, Error, Lba, Result, Sequence, ShardId, StartNumber, Version, ViewNumber};
use std::marker::PhantomData;
use std::rc::Rc;

/// A device's log, opened. Clones are the same engine.
pub struct Engine<D: Device> {
    superblock: Rc<Superblock>,
    device: PhantomData<D>,
}

impl<D: Device> Clone for Engine<D> {
    fn clone(&self) -> Self {
        Self { superblock: self.superblock.clone(), device: PhantomData }
    }
}

fn soon<T>() -> Result<T> {
    Err(Error::bug("the log engine is being built"))
}

impl<D: Device> Engine<D> {
    /// Makes an empty log. Refuses a device that already has one, or that holds something else.
    pub async fn create(_device: D, _shape: &Shape) -> Result<()> {
        soon()
    }
    /// Recovers a log and raises the device's start number.
    pub async fn open(_device: D, _expect: &Expect) -> Result<(Self, OpenReport)> {
        soon()
    }
    pub fn start(&self) -> StartNumber {
        self.superblock.start_number()
    }
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
    pub fn shards(&self) -> Vec<ShardId> {
        Vec::new()
    }
    pub fn state(&self, _shard: ShardId) -> Option<ShardState> {
        None
    }
    /// Name, version and committed sequence of the shard's last durable frame, without copying its state.
    pub fn tip(&self, _shard: ShardId) -> Option<(FrameName, Version, Sequence)> {
        None
    }
    pub fn promised(&self, _shard: ShardId) -> Option<ViewNumber> {
        None
    }
    pub fn append(&self, _record: Record) {}
    pub fn set_listener(&self, _listener: Rc<dyn Listener>) {}
    pub async fn run(&self) -> Result<()> {
        soon()
    }
    pub fn committed(&self, _shard: ShardId, _to: Sequence) {}
    pub async fn read(&self, _shard: ShardId, _range: BlockRange) -> Result<ReadOut> {
        soon()
    }
    pub fn block_status(&self, _shard: ShardId, _range: BlockRange) -> Result<Vec<Piece>> {
        soon()
    }
    pub async fn frame(&self, _shard: ShardId, _sequence: Sequence) -> Result<Frame> {
        soon()
    }
    pub async fn frames(&self, _shard: ShardId, _from: Sequence, _max_bytes: usize) -> Result<Vec<Frame>> {
        soon()
    }
    pub async fn name(&self, _shard: ShardId, _sequence: Sequence) -> Result<FrameName> {
        soon()
    }
    /// Committed map entries from address `from` on that were placed behind `since`, and where to go on.
    pub async fn entries(
        &self,
        _shard: ShardId,
        _from: Lba,
        _since: Sequence,
        _max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<Lba>)> {
        soon()
    }
    pub async fn digest(&self, _shard: ShardId) -> Result<Digest> {
        soon()
    }
    pub fn keep(&self, _shard: ShardId, _from: Sequence) {}
    /// Bytes of data that one frame may have in segments of this size.
    pub fn frame_data_max(&self) -> usize {
        0
    }
    pub fn space(&self) -> Space {
        Space::default()
    }
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
    pub fn events(&self) -> Vec<Event> {
        Vec::new()
    }
    pub fn flush_idle(&self) {}
    pub async fn close(&self) -> Result<()> {
        soon()
    }
}

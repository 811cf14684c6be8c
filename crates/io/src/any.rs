//! Any device behind one type. An engine over [`AnyDevice`] is compiled once, whatever it stands on, for one allocation
//! a call: right for tests and tools, which meet devices of many types, and not for the data path of a node.
//!
//! Invariant: a call does what the device below does, with the same turns and the same result.

use crate::{AlignedBuf, Device, Durability};
use freebs_types::Result;
use std::pin::Pin;
use std::rc::Rc;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// [`Device`] with calls that a table of functions can hold.
trait Calls {
    fn sector(&self) -> usize;
    fn len(&self) -> u64;
    fn read(&self, at: u64, len: usize) -> Boxed<'_, Result<AlignedBuf>>;
    fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> Boxed<'_, (AlignedBuf, Result<()>)>;
    fn sync(&self) -> Boxed<'_, Result<()>>;
    fn set_len(&self, len: u64) -> Boxed<'_, Result<()>>;
    fn punch(&self, at: u64, len: u64) -> Boxed<'_, Result<()>>;
    fn prewrite(&self, at: u64, len: u64) -> Boxed<'_, Result<()>>;
}

impl<D: Device> Calls for D {
    fn sector(&self) -> usize {
        Device::sector(self)
    }
    fn len(&self) -> u64 {
        Device::len(self)
    }
    fn read(&self, at: u64, len: usize) -> Boxed<'_, Result<AlignedBuf>> {
        Box::pin(Device::read(self, at, len))
    }
    fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> Boxed<'_, (AlignedBuf, Result<()>)> {
        Box::pin(Device::write(self, at, buf, durability))
    }
    fn sync(&self) -> Boxed<'_, Result<()>> {
        Box::pin(Device::sync(self))
    }
    fn set_len(&self, len: u64) -> Boxed<'_, Result<()>> {
        Box::pin(Device::set_len(self, len))
    }
    fn punch(&self, at: u64, len: u64) -> Boxed<'_, Result<()>> {
        Box::pin(Device::punch(self, at, len))
    }
    fn prewrite(&self, at: u64, len: u64) -> Boxed<'_, Result<()>> {
        Box::pin(Device::prewrite(self, at, len))
    }
}

/// A device of any type. Clones are the same device.
#[derive(Clone)]
pub struct AnyDevice(Rc<dyn Calls>);

impl AnyDevice {
    /// Wraps `device`; whoever needs its own methods keeps a clone of it.
    #[must_use]
    pub fn new(device: impl Device) -> Self {
        Self(Rc::new(device))
    }
}

impl Device for AnyDevice {
    fn sector(&self) -> usize {
        self.0.sector()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.0.read(at, len).await
    }
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        self.0.write(at, buf, durability).await
    }
    async fn sync(&self) -> Result<()> {
        self.0.sync().await
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len).await
    }
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.0.punch(at, len).await
    }
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.0.prewrite(at, len).await
    }
}

//! A volume that is attached by this program, or a snapshot that it reads.

use crate::cluster::{Cluster, Found};
use crate::interval::Interval;
use bytes::Bytes;
use freebs_driver::{Op, Piece, REQUEST_BYTES_MAX, Reply};
use freebs_node::attached::{Asker, Opened};
use freebs_types::{Error, Result, VolumeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An attached volume, or a snapshot. Clones are the same one; the last one that goes gives it back.
///
/// Offsets and lengths are bytes, without alignment. Whatever is answered is durable. Of requests that are on their way
/// at the same time any may come first.
#[derive(Clone)]
pub struct Volume(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    id: VolumeId,
    size: u64,
    opened: Opened,
    asker: Asker,
    is_snapshot: bool,
    is_detached: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_detached.load(Ordering::Relaxed) {
            self.cluster.let_go(self.attached(), self.opened);
        }
    }
}

impl Inner {
    fn attached(&self) -> Option<VolumeId> {
        Some(self.id).filter(|_| !self.is_snapshot)
    }
}

impl Volume {
    fn new(cluster: &Cluster, found: Found, is_snapshot: bool) -> Self {
        let Found { id, size, opened, asker } = found;
        let is_detached = AtomicBool::new(false);
        Self(Arc::new(Inner { cluster: cluster.clone(), id, size, opened, asker, is_snapshot, is_detached }))
    }

    /// Attaches a volume by its name. Nobody else can use it until it is given back.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Busy` if somebody has it and is there; `Retry` says what it waits for.
    pub async fn attach(cluster: &Cluster, name: &str) -> Result<Self> {
        Ok(Self::new(cluster, cluster.attach(name).await?, false))
    }

    /// Opens a snapshot of a volume to read it, whoever has the volume.
    ///
    /// # Errors
    /// `NotFound` if there is none of these names, `Retry` if the snapshot is not complete.
    pub async fn open_snapshot(cluster: &Cluster, volume: &str, snapshot: &str) -> Result<Self> {
        Ok(Self::new(cluster, cluster.open_snapshot(volume, snapshot).await?, true))
    }

    /// Bytes that it had when it was attached, or when the snapshot was taken.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Reads `len` bytes from `offset` on. What was never written reads as zeroes.
    ///
    /// # Errors
    /// `Invalid` past the end, or for more than 64 MiB; `Fenced` if the volume was attached elsewhere, or the cluster was closed
    /// before; `Retry` if too few members answer, or the cluster was closed meanwhile; `Corrupt` if no copy is whole.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check(offset, len as u64)?;
        // Beyond this no buffer is made.
        if len as u64 > REQUEST_BYTES_MAX {
            return Err(Error::invalid("a read has at most 64 MiB: make it several"));
        }
        let reply = self.ask(Op::Read { offset, len: len as u64 }).await?;
        let Reply::Read(pieces) = reply else { return Err(Error::bug("a read was answered with something else")) };
        let mut bytes = Vec::with_capacity(len);
        for piece in pieces {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Zero(n) => bytes.resize(bytes.len() + n as usize, 0),
            }
        }
        Ok(bytes)
    }

    /// Writes these bytes at `offset`. One write of at most 4 KiB that lies in one block happens as a whole or not at all; of
    /// a longer one a part may be there if the program is killed before the answer. An interval has no parts.
    ///
    /// # Errors
    /// As `read`; `NoSpace` if the nodes are full; `Invalid` for a snapshot.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<()> {
        let data = data.into();
        self.change(offset, data.len() as u64, Op::Write { offset, data, fua: false }).await
    }

    /// The range reads as zeroes afterwards, and takes no room.
    ///
    /// # Errors
    /// As `write`.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.change(offset, len, Op::Trim { offset, len }).await
    }

    /// Returns when all that was answered is durable, which it is already.
    ///
    /// # Errors
    /// As `read`.
    pub async fn flush(&self) -> Result<()> {
        self.check(0, 0)?;
        self.ask(Op::Flush).await.map(|_| ())
    }

    /// Begins an interval. Several may be open at a time, each of its own; there are none within one another.
    ///
    /// # Errors
    /// `Invalid` for a snapshot, `Fenced` if the volume was given back.
    pub fn interval(&self) -> Result<Interval> {
        self.check_change(0, 0)?;
        Ok(Interval::new(self.clone()))
    }

    /// Gives it back, also while clones of the handle are there: they get errors from then on.
    ///
    /// # Errors
    /// `Retry` if the control plane could not be told: the volume is free when its leases have ended.
    pub async fn detach(self) -> Result<()> {
        if self.0.is_detached.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.0.cluster.give_back(self.0.attached(), self.0.opened).await
    }

    async fn change(&self, offset: u64, len: u64, op: Op) -> Result<()> {
        self.check_change(offset, len)?;
        self.ask(op).await.map(|_| ())
    }

    pub(crate) async fn ask(&self, op: Op) -> Result<Reply> {
        self.0.asker.ask(op).await
    }

    pub(crate) fn check_change(&self, offset: u64, len: u64) -> Result<()> {
        if self.0.is_snapshot {
            return Err(Error::invalid("a snapshot can't be changed; attach the volume, or clone the snapshot"));
        }
        self.check(offset, len)
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        if self.0.is_detached.load(Ordering::Relaxed) {
            return Err(Error::fenced("the volume was given back: attach it again"));
        }
        self.0.cluster.check_open()?;
        if offset.checked_add(len).is_none_or(|end| end > self.0.size) {
            let size = self.0.size;
            return Err(Error::invalid(format!(
                "bytes {offset}+{len} reach past the end: the volume has {size} bytes"
            )));
        }
        Ok(())
    }
}

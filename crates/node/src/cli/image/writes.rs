//! Writes to a volume, many at a time.

use crate::attached::Attached;
use bytes::Bytes;
use freebs_driver::Op;
use freebs_types::{Error, Result};
use tokio::task::JoinSet;

/// Writes on their way at once, and their bytes: enough for a network of some milliseconds, half of a driver's window.
const WRITES_MAX: usize = 64;
const WRITES_BYTES_MAX: u64 = 16 << 20;

/// Writes on their way.
pub struct Writes<'a> {
    to: &'a Attached,
    on_their_way: JoinSet<Result<u64>>,
    bytes: u64,
}

impl<'a> Writes<'a> {
    #[must_use]
    pub fn new(to: &'a Attached) -> Self {
        Self { to, on_their_way: JoinSet::new(), bytes: 0 }
    }

    /// The volume that they go to.
    #[must_use]
    pub fn to(&self) -> &'a Attached {
        self.to
    }

    /// Sends one, when there is room for it among the others.
    pub async fn put(&mut self, offset: u64, data: Bytes) -> Result<()> {
        let len = data.len() as u64;
        while self.on_their_way.len() >= WRITES_MAX
            || (!self.on_their_way.is_empty() && self.bytes + len > WRITES_BYTES_MAX)
        {
            self.next().await?;
        }
        let answer = self.to.ask(Op::Write { offset, data, fua: false });
        self.bytes += len;
        self.on_their_way.spawn_local(async move { answer.await.map(|_| len) });
        Ok(())
    }

    /// Waits for one of them; false if there is none.
    async fn next(&mut self) -> Result<bool> {
        let Some(done) = self.on_their_way.join_next().await else { return Ok(false) };
        self.bytes -= done.map_err(|e| Error::bug(format!("a write ended without an answer: {e}")))??;
        Ok(true)
    }

    /// Waits for all.
    pub async fn finish(mut self) -> Result<()> {
        while self.next().await? {}
        Ok(())
    }
}

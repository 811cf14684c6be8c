//! An attached volume as the sink of a restore, and reads of what is backed up.

use super::super::image::target::data_in;
use crate::attached::Attached;
use bytes::Bytes;
use freebs_backup::Sink;
use freebs_driver::{Op, Piece, Reply};
use freebs_types::{Error, Result};
use std::ops::Range;

/// Zeroes of a read that has holes.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A volume that this process has attached.
pub struct Volume<'a> {
    pub attached: &'a Attached,
    pub size: u64,
}

/// The bytes of a range, in pieces.
pub async fn read(attached: &Attached, range: Range<u64>) -> Result<Vec<Bytes>> {
    let op = Op::Read { offset: range.start, len: range.end - range.start };
    let Reply::Read(pieces) = attached.ask(op).await? else {
        return Err(Error::bug("a read had another answer"));
    };
    let mut read = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match piece {
            Piece::Data(bytes) => read.push(bytes),
            Piece::Zero(mut n) => {
                while n > 0 {
                    let len = n.min(ZEROES.len() as u64);
                    read.push(Bytes::from_static(&ZEROES[..len as usize]));
                    n -= len;
                }
            }
        }
    }
    Ok(read)
}

impl Sink for Volume<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    /// It was emptied when it was prepared.
    fn is_blank(&self) -> bool {
        true
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        self.attached.ask(Op::Write { offset, data, fua: false }).await.map(|_| ())
    }

    async fn zero(&self, range: Range<u64>) -> Result<()> {
        data_in(self.attached, range, async |offset, len| {
            self.attached.ask(Op::Zero { offset, len, may_trim: true }).await.map(|_| true)
        })
        .await
    }

    async fn flush(&self) -> Result<()> {
        self.attached.ask(Op::Flush).await.map(|_| ())
    }
}

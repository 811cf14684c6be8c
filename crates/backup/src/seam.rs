//! Where data come from and where they go to, and who looks on. Implemented by the callers.

use crate::format::Moment;
use bytes::Bytes;
use freebs_types::Result;
use std::ops::Range;

/// A disk that does not change while it is read: a volume that nobody else has, or a snapshot.
pub trait Source {
    /// Bytes of the disk.
    fn size(&self) -> u64;

    /// The unit of allocation, bytes; for callers that want to choose what they ask for.
    fn block_bytes(&self) -> u32 {
        4096
    }

    /// The moment that is read, if a later source may be asked what has changed since.
    fn moment(&self) -> Moment {
        Moment::default()
    }

    /// True if [`Self::extents`] can answer for what has changed since this moment.
    fn can_tell_since(&self, _moment: &Moment) -> bool {
        false
    }

    /// Calls `each` with the parts of `range` that may hold data, or, with `since`, that may differ from what was there
    /// then. Bytes of no part are zeroes, or as they were. In any order. `NotFound` and
    /// `Corrupt` with `since`: that can't be told any more, and all is to be read.
    fn extents(
        &self,
        range: Range<u64>,
        since: Option<&Moment>,
        each: &mut dyn FnMut(Range<u64>),
    ) -> impl Future<Output = Result<()>>;

    /// The bytes of a range of at most 512 KiB, in pieces.
    fn read(&self, range: Range<u64>) -> impl Future<Output = Result<Vec<Bytes>>>;
}

/// A disk that is written.
pub trait Sink {
    /// Bytes of the disk.
    fn size(&self) -> u64;

    /// True if all of it reads as zeroes; if not it is zeroed first.
    fn is_blank(&self) -> bool;

    /// Writes bytes at a place.
    fn write(&self, at: u64, bytes: Bytes) -> impl Future<Output = Result<()>>;

    /// Makes a range read as zeroes.
    fn zero(&self, range: Range<u64>) -> impl Future<Output = Result<()>>;

    /// All that was written before is durable when this has returned.
    fn flush(&self) -> impl Future<Output = Result<()>>;
}

/// Somebody who looks on, and who has the clock.
pub trait Watch {
    /// Bytes of the disk before this one are done.
    fn reached(&self, _at: u64) {}

    /// So many bytes of data more were moved.
    fn moved(&self, _bytes: u64) {}

    /// Something that people should know, beside the result.
    fn note(&self, _text: &str) {}

    /// Returns when so many bytes of the disk more may be read or written.
    fn pace(&self, _bytes: u64) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// True if a minute or so has passed since it was true the last time: then a create says that it is alive.
    fn is_due(&self) -> bool {
        false
    }
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

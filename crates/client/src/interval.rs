//! Intervals: changes of a volume that happen together or not at all (RIBD).
//!
//! Invariants: before the commit nothing of it is anywhere but in this program's memory, so one that is dropped, and one of
//! a program that died, is nothing at all; an outcome is told only when it is known.

use crate::volume::Volume;
use bytes::Bytes;
use freebs_driver::{Change, INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, Op, Placed, Reply};
use freebs_types::{Error, ErrorKind, Result};

/// Bytes that are written in one interval, all writes together: those that others lie over are kept until the commit.
pub const INTERVAL_BUFFER_MAX: usize = 4 * INTERVAL_BYTES_MAX;

/// The end of an interval.
#[derive(Debug)]
pub enum Outcome {
    /// All of it is there, and durable on a quorum.
    Committed {
        /// Its place in the log of each shard that it has changed.
        places: Vec<Placed>,
    },
    /// Nothing of it is there, nor will be.
    Aborted {
        /// `Fenced` if the volume was given back before, `Invalid` if it is too large; `Busy` if not all of its shards could prepare it in time; `NoSpace` if the nodes are full; `Corrupt` if a block
        /// that it changes in part can't be read.
        why: Error,
    },
}

impl Outcome {
    /// The places of one that was committed, for programs that can't go on without it.
    ///
    /// # Errors
    /// The reason why it was aborted.
    pub fn committed(self) -> Result<Vec<Placed>> {
        match self {
            Self::Committed { places } => Ok(places),
            Self::Aborted { why } => Err(why),
        }
    }
}

/// Changes that are to happen together. Dropped, it was nothing; a `commit` that nobody waits for any more goes on.
///
/// Others do not see it before it is committed, and then they see all of it. It sees what they change meanwhile: a program
/// that computes what it writes from what it reads keeps its own tasks apart, by a lock of its own for instance. No other
/// program has the volume.
pub struct Interval {
    volume: Volume,
    changes: Vec<Change>,
    bytes: usize,
}

impl Interval {
    pub(crate) fn new(volume: Volume) -> Self {
        Self { volume, changes: Vec::new(), bytes: 0 }
    }

    /// Reads from the volume, with this interval's own changes over it.
    ///
    /// # Errors
    /// As `Volume::read`.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = self.volume.read(offset, len).await?;
        lay_over(&mut bytes, offset, &self.changes);
        Ok(bytes)
    }

    /// Writes these bytes when it is committed. Of changes that overlap the later one counts.
    ///
    /// # Errors
    /// `Invalid` past the end, or for too many changes or bytes in one interval (`INTERVAL_CHANGES_MAX`,
    /// `INTERVAL_BUFFER_MAX`); the change is left out then. `Fenced` if the volume was given back.
    pub fn write(&mut self, offset: u64, data: impl Into<Bytes>) -> Result<()> {
        let data = data.into();
        if self.bytes + data.len() > INTERVAL_BUFFER_MAX {
            return Err(Error::invalid("the interval has more than 16 MiB of data: make it smaller"));
        }
        let (len, bytes) = (data.len() as u64, data.len());
        self.add(offset, len, Change::Write { offset, data })?;
        self.bytes += bytes;
        Ok(())
    }

    /// The range reads as zeroes when it is committed, and takes no room.
    ///
    /// # Errors
    /// As `write`.
    pub fn trim(&mut self, offset: u64, len: u64) -> Result<()> {
        self.add(offset, len, Change::Trim { offset, len })
    }

    fn add(&mut self, offset: u64, len: u64, change: Change) -> Result<()> {
        self.volume.check_change(offset, len)?;
        if self.changes.len() == INTERVAL_CHANGES_MAX {
            return Err(Error::invalid("the interval has 4,096 changes already: make it smaller"));
        }
        self.changes.push(change);
        Ok(())
    }

    /// Does all of it, or nothing. One without changes is committed at once.
    ///
    /// They may lie in several shards of the volume, at most `INTERVAL_SHARDS_MAX`, and in each in at most `INTERVAL_RUNS_MAX` runs
    /// of blocks, with at most `INTERVAL_BYTES_MAX` of data (if there are several, four runs and four blocks less); else it is
    /// aborted. Over several it takes the time of two writes, one after the other.
    ///
    /// # Errors
    /// The outcome is not known. `Retry`: too few members answered in time, and it may still happen; a read of any of its
    /// blocks waits until that is decided, and shows it. `Fenced`: the volume was attached elsewhere, and who attached it sees
    /// the outcome.
    pub async fn commit(self) -> Result<Outcome> {
        let Self { volume, changes, .. } = self;
        if let Err(why) = volume.check_change(0, 0) {
            return Ok(Outcome::Aborted { why });
        }
        match volume.ask(Op::Interval { changes: changes.into() }).await {
            Ok(Reply::Committed(places)) => Ok(Outcome::Committed { places }),
            Ok(_) => Err(Error::bug("an interval was answered with something else")),
            Err(why) if was_nothing(why.kind) => Ok(Outcome::Aborted { why }),
            Err(e) => Err(e),
        }
    }

    /// Drops it.
    pub fn abort(self) {}
}

/// True if an error of this kind comes only when nothing of it is there, nor will be: the plan is refused before it is sent, a full
/// node refuses before it orders, old contents are read before, and what was prepared in other shards is undone.
fn was_nothing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Invalid | ErrorKind::NoSpace | ErrorKind::Corrupt | ErrorKind::Busy)
}

/// Puts changes over bytes that begin at `offset`.
fn lay_over(bytes: &mut [u8], offset: u64, changes: &[Change]) {
    let end = offset + bytes.len() as u64;
    for change in changes {
        let (from, len) = match change {
            Change::Write { offset, data } => (*offset, data.len() as u64),
            Change::Trim { offset, len } | Change::Zero { offset, len } => (*offset, *len),
        };
        let (first, last) = (from.max(offset), (from + len).min(end));
        if first >= last {
            continue;
        }
        let here = &mut bytes[(first - offset) as usize..(last - offset) as usize];
        match change {
            Change::Write { data, .. } => here.copy_from_slice(&data[(first - from) as usize..(last - from) as usize]),
            _ => here.fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_changes_lie_over_what_is_read() {
        let write = |offset, text: &'static str| Change::Write { offset, data: text.into() };
        let changes = [write(8, "abcd"), write(10, "XY"), Change::Trim { offset: 11, len: 4 }, write(20, "far")];
        let seen = |offset, len| {
            let mut bytes = vec![b'.'; len];
            lay_over(&mut bytes, offset, &changes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(seen(6, 10), "..abX\0\0\0\0.");
        assert_eq!(seen(9, 2), "bX");
        assert_eq!(seen(21, 4), "ar..");
        assert_eq!((seen(0, 8).as_str(), seen(9, 0).as_str()), ("........", ""));
    }
}

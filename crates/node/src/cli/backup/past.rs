//! A snapshot as the source of a backup: the moment that the next backup asks for changes since is its number.

use super::super::image::target::data_in;
use super::volume::read;
use crate::attached::AttachedPast;
use bytes::Bytes;
use freebs_backup::{Moment, Source};
use freebs_driver::{Op, Reply, STATUS_BYTES_MAX};
use freebs_types::{Error, Result, SnapshotId};
use std::ops::Range;

/// A snapshot that this process reads.
pub struct Past<'a>(pub &'a AttachedPast);

/// Number and time of a snapshot, little-endian; the rest is zero.
fn moment_of(id: SnapshotId, created_ms: u64) -> Moment {
    let mut moment = Moment::default();
    moment.0[..8].copy_from_slice(&id.0.to_le_bytes());
    moment.0[8..16].copy_from_slice(&created_ms.to_le_bytes());
    moment
}

fn number_of(moment: &Moment) -> SnapshotId {
    let mut number = [0; 8];
    number.copy_from_slice(&moment.0[..8]);
    SnapshotId(u64::from_le_bytes(number))
}

impl Past<'_> {
    /// The pins of that moment, if its snapshot is there and changes since then can be told.
    fn pins(&self, moment: &Moment) -> Option<std::sync::Arc<[freebs_format::Pin]>> {
        let (id, is_same) = (number_of(moment), |id, created_ms| moment_of(id, created_ms) == *moment);
        self.0.since_number(id, is_same)
    }
}

impl Source for Past<'_> {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn moment(&self) -> Moment {
        moment_of(self.0.snapshot.id, self.0.snapshot.created_ms)
    }

    fn can_tell_since(&self, moment: &Moment) -> bool {
        self.pins(moment).is_some()
    }

    /// `NotFound` if no copy can tell what changed since.
    async fn extents(&self, range: Range<u64>, since: Option<&Moment>, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        let Some(since) = since else {
            return data_in(&self.0.reader, range, async |at, len| {
                each(at..at + len);
                Ok(true)
            })
            .await;
        };
        let since = self.pins(since).ok_or_else(|| Error::not_found("the snapshot of the backup before is gone"))?;
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(STATUS_BYTES_MAX);
            let op = Op::Changes { offset: at, len, since: since.clone() };
            let Reply::Status(runs) = self.0.reader.ask(op).await? else {
                return Err(Error::bug("a question for changes had another answer"));
            };
            let before = at;
            for run in runs {
                if run.changed {
                    each(at..at + run.bytes);
                }
                at += run.bytes;
            }
            if at == before {
                return Err(Error::bug("an answer to what changed covers nothing"));
            }
        }
        Ok(())
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<Bytes>> {
        read(&self.0.reader, range).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_names_its_snapshot() {
        let moment = moment_of(SnapshotId(0x0102_0304_0506), 7);
        assert_eq!(number_of(&moment), SnapshotId(0x0102_0304_0506));
        assert!(!moment.is_none() && moment != moment_of(SnapshotId(0x0102_0304_0506), 8));
        assert_eq!(moment.0[..10], [6, 5, 4, 3, 2, 1, 0, 0, 7, 0]);
    }
}

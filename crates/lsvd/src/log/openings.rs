//! Which segments were opened last: two pages at the front of the device, written in turn.
//!
//! Invariants: a page that names a segment as opened is durable before anything is appended there, and the page before
//! that one names it as the next. So the newer page names the newest segment of the log, in one way or the other, also if
//! the last write of a page was lost, and with it the index of the segment before, which names the next one, too. A
//! page counts for the start after the one that wrote it, and for no later one: a start that wrote none may have opened
//! segments.

use crate::log::geometry::Geometry;
use freebs_format::disk::{OPENINGS_AT, OPENINGS_BYTES, OPENINGS_MAX, OPENINGS_NONE, Openings, SegmentFooter};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::collections::VecDeque;

/// The segments that were opened last, by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opened {
    /// Of the page that was written last.
    revision: u64,
    /// Number of the last one in the list.
    newest: u64,
    list: VecDeque<u32>,
    /// The segment that is opened next, as that page says.
    next: Option<u32>,
}

impl Opened {
    /// The newer page of the last start; an empty list if there is none.
    pub async fn load<D: Device>(device: &D, geometry: &Geometry) -> Self {
        let mut out = Self::default();
        for (i, at) in OPENINGS_AT.into_iter().enumerate() {
            let Ok(bytes) = device.read(at, OPENINGS_BYTES).await else { continue };
            let Ok((page, list)) = Openings::decode(&bytes, geometry.device) else { continue };
            let revision = page.revision.get();
            if page.start.get() == geometry.start.0 && revision % 2 == i as u64 && revision > out.revision {
                out = Self { revision, newest: page.newest.get(), list: list.into(), next: page.next() };
            }
        }
        out
    }

    /// True if everything that was opened behind number `seq` is here.
    pub fn reaches(&self, seq: u64) -> bool {
        self.revision > 0 && self.newest >= seq && self.since(seq).is_some()
    }

    /// Number of the segment that was opened last, as far as it is known.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The segment that the last page names as the next one.
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// The segments where the log may go on: the one that was opened last, and the next one.
    pub fn last(&self) -> [Option<u32>; 2] {
        [self.find(self.newest), self.next]
    }

    /// Segments with numbers above `seq`, in order; `None` if the list does not reach back so far.
    pub fn since(&self, seq: u64) -> Option<Vec<(u64, u32)>> {
        let first = self.newest + 1 - self.list.len() as u64;
        (seq + 1 >= first).then(|| self.all().into_iter().filter(|o| o.0 > seq).collect())
    }

    /// All that are known, in order.
    pub fn all(&self) -> Vec<(u64, u32)> {
        let first = self.newest + 1 - self.list.len() as u64;
        (first..).zip(self.list.iter().copied()).filter(|(_, id)| *id != OPENINGS_NONE).collect()
    }

    /// The segment that has this number.
    pub fn find(&self, seq: u64) -> Option<u32> {
        let first = self.newest + 1 - self.list.len() as u64;
        let id = *self.list.get(usize::try_from(seq.checked_sub(first)?).ok()?)?;
        (id != OPENINGS_NONE).then_some(id)
    }

    /// Segment `id` has this number. Numbers above it are forgotten, those that were left out belong to none.
    pub fn put(&mut self, seq: u64, id: u32) {
        while self.newest >= seq && self.list.pop_back().is_some() {
            self.newest -= 1;
        }
        if self.list.is_empty() || seq - self.newest > OPENINGS_MAX as u64 {
            self.list.clear();
            self.newest = seq - 1;
        }
        while self.newest < seq {
            self.newest += 1;
            self.list.push_back(if self.newest == seq { id } else { OPENINGS_NONE });
        }
        let many = self.list.len().saturating_sub(OPENINGS_MAX);
        self.list.drain(..many);
        assert!(self.list.len() as u64 <= self.newest, "the numbers of a list are consecutive, from 1 on");
    }

    /// One more page, which says that segment `next` is the next one, and the byte of the device where it goes.
    pub fn page(&mut self, geometry: &Geometry, next: Option<u32>) -> (u64, AlignedBuf) {
        self.revision += 1;
        self.next = next;
        let (version, opened) = ((self.revision, geometry.start), (self.newest, &*self.list.make_contiguous()));
        let bytes = Openings::encode(geometry.device, version, opened, next);
        let mut buf = AlignedBuf::zeroed(OPENINGS_BYTES);
        buf.copy_from_slice(&bytes);
        (OPENINGS_AT[(self.revision % 2) as usize], buf)
    }
}

/// Writes what recovery found, as of this start, and that segment `next` is opened next.
pub(crate) async fn begin<D: Device>(
    device: &D,
    geometry: &Geometry,
    opened: &mut Opened,
    next: Option<u32>,
) -> Result<()> {
    let (at, page) = opened.page(geometry, next);
    let (_, done) = device.write(at, page, Durability::Durable).await;
    done.map_err(|e| Error::device_failed(format!("write of the openings: {e}")))
}

/// The footer in the last sector of a segment, if it is its own.
pub(crate) fn footer_in(bytes: &[u8], geometry: &Geometry, id: u32) -> Option<SegmentFooter> {
    let footer = SegmentFooter::decode(bytes, geometry.segment_bytes).ok()?;
    (footer.device == geometry.device.0 && footer.segment.get() == id).then_some(footer)
}

/// True if a free segment was closed once, and no part of it has become a hole since: the last sector goes first.
pub(crate) async fn is_whole<D: Device>(device: &D, geometry: &Geometry, id: u32) -> bool {
    let at = geometry.byte(id, (geometry.segment_bytes - geometry.sector as u64) as u32);
    let last = device.read(at, geometry.sector).await;
    last.is_ok_and(|b| footer_in(&b, geometry, id).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_of_consecutive_numbers() {
        let mut o = Opened::default();
        assert_eq!(o.since(0), Some(vec![]));
        assert_eq!(o.since(7), Some(vec![]));
        (1..=5).for_each(|n| o.put(n, 10 + n as u32));
        assert_eq!(o.since(3), Some(vec![(4, 14), (5, 15)]));
        assert_eq!(o.since(0).unwrap().len(), 5);
        // The segment with number 5 was never begun, and a later one was.
        o.put(4, 20);
        o.put(7, 30);
        assert_eq!(o.since(3), Some(vec![(4, 20), (7, 30)]));
        for n in 8..=2000 {
            o.put(n, 1);
        }
        assert_eq!((o.list.len(), o.since(1000).unwrap().len()), (OPENINGS_MAX, OPENINGS_MAX));
        assert_eq!(o.since(999), None);
        o.put(9000, 2);
        assert_eq!((o.since(8999), o.since(8998)), (Some(vec![(9000, 2)]), None));
    }
}

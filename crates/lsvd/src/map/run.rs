//! An immutable sorted run of map entries on the device, as memory knows it.
//!
//! Invariants: pages hold entries in order of (slot, address), none overlapping; `fences` has the first key of each,
//! so one page at most can hold the entry over a given block. `members` (young runs) says exactly which blocks have
//! an entry, so that a lookup reads a page only where it finds one.

use super::page::{PageReader, key};
use crate::map::extents::Extent;
use bytes::Bytes;
use freebs_format::disk::{PAGE_ENTRIES, PageHeader, PageName};
use freebs_types::{DeviceId, Result};

/// Pages one behind the other in a map segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: u32,
    pub page: u32,
    pub count: u32,
}

/// Where pages of a run or manifest lie, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    list: Vec<Place>,
    /// First page of each.
    firsts: Vec<u32>,
    pub pages: u32,
}

impl Places {
    pub fn push(&mut self, p: Place) {
        assert!(p.count > 0, "a place has a page");
        self.pages += p.count;
        match self.list.last_mut() {
            Some(last) if last.segment == p.segment && last.page + last.count == p.page => last.count += p.count,
            _ => {
                self.firsts.push(self.pages - p.count);
                self.list.push(p);
            }
        }
    }

    pub fn list(&self) -> &[Place] {
        &self.list
    }

    /// Up to `most` pages from `page` on that lie one behind the other.
    pub fn find(&self, page: u32, most: u32) -> Place {
        let i = self.firsts.partition_point(|f| *f <= page) - 1;
        let (p, skip) = (self.list[i], page - self.firsts[i]);
        assert!(skip < p.count, "page {page} is none of the {} that were written", self.pages);
        Place { segment: p.segment, page: p.page + skip, count: (p.count - skip).min(most) }
    }
}

/// Which blocks have an entry: first block and length of each, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    /// Slots in order, and where each begins in the lists.
    slots: Vec<(u32, u32)>,
    starts: Vec<u32>,
    lens: Vec<u16>,
}

impl Members {
    /// Adds an entry behind the others; `false` if it is out of order, meets one of them, or is too long for a run.
    #[must_use]
    pub fn push(&mut self, slot: u32, start: u32, len: u32) -> bool {
        let Ok(short) = u16::try_from(len) else { return false };
        let end = self.starts.last().zip(self.lens.last()).map_or(0, |(s, l)| s + u32::from(*l));
        match self.slots.last() {
            Some(last) if last.0 > slot || (last.0 == slot && end > start) => return false,
            Some(last) if last.0 == slot => {}
            _ => self.slots.push((slot, self.starts.len() as u32)),
        }
        self.starts.push(start);
        self.lens.push(short);
        true
    }

    pub fn shrink(&mut self) {
        self.starts.shrink_to_fit();
        self.lens.shrink_to_fit();
    }

    /// The first block from `at` on that has an entry.
    pub fn next(&self, slot: u32, at: u32) -> Option<u32> {
        let i = self.slots.binary_search_by_key(&slot, |s| s.0).ok()?;
        let from = self.slots[i].1 as usize;
        let to = self.slots.get(i + 1).map_or(self.starts.len(), |s| s.1 as usize);
        let starts = &self.starts[from..to];
        let n = starts.partition_point(|s| *s <= at);
        if n > 0 && starts[n - 1] + u32::from(self.lens[from + n - 1]) > at {
            return Some(at);
        }
        starts.get(n).copied()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Run {
    pub number: u64,
    pub places: Places,
    pub fences: Vec<u64>,
    pub members: Option<Members>,
    pub entries: u64,
}

impl Run {
    /// The page that may hold the entry over a block.
    pub fn page_of(&self, slot: u32, at: u32) -> u32 {
        (self.fences.partition_point(|f| *f <= key(slot, at)) as u32).saturating_sub(1)
    }

    /// The pages that may hold entries of a range.
    pub fn pages_of(&self, slot: u32, start: u32, end: u32) -> std::ops::Range<u32> {
        let to = self.fences.partition_point(|f| *f < key(slot, end)) as u32;
        self.page_of(slot, start)..to
    }

    /// Whether some block of a range may have an entry.
    pub fn may_have(&self, slot: u32, start: u32, end: u32) -> bool {
        self.members.as_ref().is_none_or(|m| m.next(slot, start).is_some_and(|a| a < end))
    }

    pub fn name(&self, device: DeviceId, page: u32) -> PageName {
        PageName { device, kind: PAGE_ENTRIES, run: self.number, page }
    }

    /// Calls `each` for the entries of a page.
    pub fn entries_of(
        &self,
        device: DeviceId,
        page: u32,
        bytes: &Bytes,
        mut each: impl FnMut(u32, u32, Extent),
    ) -> Result<()> {
        let (count, body) = PageHeader::open(bytes, self.name(device, page))?;
        for e in PageReader::new(body, count) {
            let (slot, start, e) = e?;
            each(slot, start, e);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_know_each_block() {
        let mut m = Members::default();
        for (slot, start, len) in [(2, 5, 3), (2, 10, 1), (4, 0, 2), (4, 7, 65_535)] {
            assert!(m.push(slot, start, len));
        }
        // An entry out of order, of a slot or of a block, or one too long, is refused and changes nothing.
        for (slot, start, len) in [(2, 90, 1), (4, 6, 1), (4, 65_541, 1), (5, 0, 65_536)] {
            assert!(!m.push(slot, start, len), "({slot}, {start}, {len})");
        }
        assert_eq!([0, 5, 7, 8, 10].map(|a| m.next(2, a)), [5, 5, 7, 10, 10].map(Some));
        assert_eq!([m.next(2, 11), m.next(3, 0), m.next(5, 0), m.next(1, 0)], [None; 4]);
        assert_eq!([0, 2, 50_000].map(|a| m.next(4, a)), [0, 7, 50_000].map(Some));
    }

    #[test]
    fn places_join_and_are_found() {
        let mut p = Places::default();
        for (segment, page, count) in [(3, 0, 4), (3, 4, 2), (7, 1, 3)] {
            p.push(Place { segment, page, count });
        }
        assert_eq!(p.list(), [Place { segment: 3, page: 0, count: 6 }, Place { segment: 7, page: 1, count: 3 }]);
        assert_eq!(p.find(5, 9), Place { segment: 3, page: 5, count: 1 });
        assert_eq!(p.find(7, 1), Place { segment: 7, page: 2, count: 1 });
        assert_eq!(p.pages, 9);
    }
}

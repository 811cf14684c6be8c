//! An immutable sorted run of map entries on the device, as memory knows it.
//!
//! Invariants: pages hold entries in order of (slot, address), none overlapping; `fences` has the first key of each,
//! so one page at most can hold the entry over a given block. `members` (young runs) says exactly which blocks have
//! an entry, so that a lookup reads a page only where it finds one.
//!
//! A run of history has superseded extents instead: cells in order of (slot, address), none overlapping, and of each the
//! layers in order of (version, sequence), through as many pages as it takes. `begun` says of each page which version it goes
//! on with if its first cell began on a page before it.

use super::page::{PageReader, key};
use super::tally::Tallies;
use crate::map::extents::{Extent, Layer};
use bytes::Bytes;
use freebs_format::disk::{PAGE_ENTRIES, PAGE_LAYERS, PageHeader, PageName};
use freebs_types::{DeviceId, Error, Result, Version};

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
    /// The part that only some kinds of runs have.
    pub beside: Beside,
    pub entries: u64,
}

/// The part of a run that only its kind has.
#[derive(Debug, Default)]
pub(crate) enum Beside {
    /// The old run of the map has nothing.
    #[default]
    Nothing,
    /// A young run of the map knows its blocks.
    Members(Members),
    Past(PastRun),
}

/// Of a run of history: by page, the version of its first layer if its cell began before it, else 0; and its counts.
#[derive(Debug, Default)]
pub(crate) struct PastRun {
    pub begun: Vec<u64>,
    pub tallies: Tallies,
}

impl Run {
    pub fn members(&self) -> Option<&Members> {
        if let Beside::Members(m) = &self.beside { Some(m) } else { None }
    }

    /// The versions of fences, and the counts, of a run of history; `None` of a run of the map.
    pub fn past(&self) -> Option<&PastRun> {
        if let Beside::Past(p) = &self.beside { Some(p) } else { None }
    }

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
        self.members().is_none_or(|m| m.next(slot, start).is_some_and(|a| a < end))
    }

    pub fn name(&self, device: DeviceId, page: u32) -> PageName {
        let kind = if self.past().is_some() { PAGE_LAYERS } else { PAGE_ENTRIES };
        PageName { device, kind, run: self.number, page }
    }

    /// The pages of a run of history that may hold layers of a range; up to a version, if one is given, of each cell as few as
    /// are needed to find the newest one.
    pub fn past_pages(&self, slot: u32, start: u32, end: u32, upto: Option<Version>) -> impl Iterator<Item = u32> {
        let begun = self.past().map_or(&[][..], |p| &p.begun);
        let first = self.fences.get(self.page_of(slot, start) as usize).copied().unwrap_or_default();
        let mut from = self.fences.partition_point(|f| *f < first);
        if begun.get(from).is_some_and(|v| *v > 0) {
            from -= 1;
        }
        let to = self.fences.partition_point(|f| *f < key(slot, end));
        let is_wanted = move |page: &usize| {
            let (Some(upto), Some(next)) = (upto, begun.get(page + 1).filter(|v| **v > 0)) else { return true };
            // If both pages begin with the same cell, and the next one goes on with it, all of this page is of that cell.
            let is_of_one = self.fences[*page] == self.fences[page + 1];
            !is_of_one || (begun[*page] <= upto.0 && *next > upto.0)
        };
        (from..to).filter(is_wanted).map(|p| p as u32)
    }

    /// Calls `each` for the layers of a page of history.
    pub fn layers_of(
        &self,
        device: DeviceId,
        page: u32,
        bytes: &Bytes,
        mut each: impl FnMut(u32, u32, Layer),
    ) -> Result<()> {
        let (count, body) = PageHeader::open(bytes, self.name(device, page))?;
        let mut layers = PageReader::of_layers(body, count);
        let mut fence = self.fence(page);
        while let Some(l) = layers.next_layer() {
            let (slot, start, l) = l?;
            if let Some((first, begun)) = fence.take()
                && (first != key(slot, start) || (begun > 0 && begun != l.e.version.0))
            {
                return Err(Error::corrupt("page of history with another fence"));
            }
            each(slot, start, l);
        }
        if count == 0 { Err(Error::corrupt("page of history without a layer")) } else { Ok(()) }
    }

    /// The first cell of a page of history, and the version with which it goes on there, if it does; `None` if nothing is known
    /// of the pages.
    fn fence(&self, page: u32) -> Option<(u64, u64)> {
        let begun = self.past()?.begun.get(page as usize)?;
        Some((*self.fences.get(page as usize)?, *begun))
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

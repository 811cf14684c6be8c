//! Many runs become one.
//!
//! Invariants: over each block the entry of the newest run stays (what is newer never lies below what is older, see
//! `shard`); what it covers is told as superseded unless it is the same entry (rule E2). Shards that are gone are
//! left out.

use super::Io;
use crate::map::extents::Extent;
use crate::map::page::key;
use crate::map::run::Run;
use bytes::Bytes;
use freebs_format::disk::PAGE_BYTES;
use freebs_io::Device;
use freebs_types::{Error, Result, Version};
use std::collections::VecDeque;
use std::rc::Rc;

/// Pages that are read at once.
const READ_PAGES: u32 = 16;

/// Entries of one run, in order.
pub(crate) struct Cursor {
    run: Rc<Run>,
    page: u32,
    bytes: Bytes,
    entries: VecDeque<(u32, u32, Extent)>,
    /// The end of the last one that was read.
    end: u64,
}

impl Cursor {
    pub fn new(run: Rc<Run>) -> Self {
        Self { run, page: 0, bytes: Bytes::new(), entries: VecDeque::new(), end: 0 }
    }

    /// The next entry, if its page has been read.
    fn head(&self) -> Option<&(u32, u32, Extent)> {
        self.entries.front()
    }

    fn is_at_end(&self) -> bool {
        self.entries.is_empty() && self.page as usize == self.run.fences.len()
    }

    async fn fill<D: Device>(&mut self, io: Io<'_, D>) -> Result<()> {
        if !self.entries.is_empty() || self.is_at_end() {
            return Ok(());
        }
        if self.bytes.is_empty() {
            let at = self.run.places.find(self.page, READ_PAGES.min(self.run.fences.len() as u32 - self.page));
            self.bytes = io.read_pages(at).await?;
        }
        let page = self.bytes.split_to(PAGE_BYTES);
        let (entries, first) = (&mut self.entries, self.end);
        self.run.entries_of(io.device_id(), self.page, &page, |s, a, e| entries.push_back((s, a, e)))?;
        // Each page begins anew, so it says nothing of where the one before it ended.
        if entries.front().is_some_and(|(s, a, _)| key(*s, *a) < first) {
            return Err(Error::corrupt("run with pages out of order"));
        }
        self.end = entries.back().map_or(first, |(s, a, e)| key(*s, *a) + u64::from(e.len));
        self.page += 1;
        Ok(())
    }

    /// Takes off what lies before a block.
    fn skip_to(&mut self, slot: u32, at: u32) {
        if let Some((s, a, e)) = self.entries.front_mut()
            && *s == slot
            && *a < at
        {
            if *a + e.len <= at {
                self.entries.pop_front();
            } else {
                (*e, *a) = (e.piece(at - *a, *a + e.len - at), at);
            }
        }
    }
}

/// The merge of some runs, newest first.
pub(crate) struct Merge {
    cursors: Vec<Cursor>,
}

impl Merge {
    pub fn new(runs: impl Iterator<Item = Rc<Run>>) -> Self {
        Self { cursors: runs.map(Cursor::new).collect() }
    }

    /// The next entry that stays; `gone(slot, address, entry, version)` for what it supersedes, with
    /// its version.
    pub async fn next<D: Device>(
        &mut self,
        io: Io<'_, D>,
        mut gone: impl FnMut(u32, u32, Extent, Version),
    ) -> Result<Option<(u32, u32, Extent)>> {
        for c in &mut self.cursors {
            if c.head().is_none() && !c.is_at_end() {
                c.fill(io).await?;
            }
        }
        // The first block that any run has an entry for, and the newest run that has it.
        let heads = self.cursors.iter().enumerate().filter_map(|(i, c)| c.head().map(|h| (key(h.0, h.1), i)));
        let Some((first, winner)) = heads.min() else { return Ok(None) };
        let (slot, start, e) = self.cursors[winner].head().expect("just seen");
        let (slot, start) = (*slot, *start);
        // It ends where a newer run has an entry.
        let end = start + e.len;
        let newer = self.cursors[..winner].iter().filter_map(Cursor::head).filter(|h| h.0 == slot).map(|h| h.1);
        let end = newer.fold(end, u32::min);
        debug_assert_eq!(first, key(slot, start));
        let e = e.piece(0, end - start);
        self.cursors[winner].skip_to(slot, end);
        for c in &mut self.cursors[winner + 1..] {
            loop {
                if c.head().is_none() && !c.is_at_end() {
                    c.fill(io).await?;
                }
                let Some((s, a, old)) = c.head().filter(|(s, a, _)| *s == slot && *a < end) else { break };
                let to = (a + old.len).min(end);
                if old.key() != e.key() {
                    gone(*s, *a, old.piece(0, to - a), e.version);
                }
                c.skip_to(slot, to);
            }
        }
        Ok(Some((slot, start, e)))
    }
}

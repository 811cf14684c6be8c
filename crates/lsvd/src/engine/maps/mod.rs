//! The maps at work: tables become runs, runs are merged, lookups read pages.

pub mod flush;
pub mod look;
pub mod merge;
mod past;
mod past_merge;
#[cfg(test)]
mod past_tests;
#[cfg(test)]
mod tests;
pub mod write;

use super::cleaning::Need;
use super::core::Core;
use crate::RuleMutant;
use crate::log::geometry::LAST_SEGMENTS;
use crate::log::openings;
use crate::log::segments::{Segment, SegmentState};
use crate::map::extents::ENTRY_BYTES;
use crate::map::extents::Extent;
use crate::map::run::Place;
use bytes::Bytes;
use freebs_format::disk::PAGE_BYTES;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{DeviceId, Error, Result, Version};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;

/// Device and state, for what has to wait.
pub(crate) struct Io<'a, D> {
    pub device: &'a D,
    pub core: &'a RefCell<Core>,
    /// Whether nobody else lets the device grow.
    pub alone: bool,
}

impl<D> Clone for Io<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D> Copy for Io<'_, D> {}

impl<D: Device> Io<'_, D> {
    pub fn device_id(&self) -> DeviceId {
        self.core.borrow().geometry.device
    }

    fn byte(&self, at: Place) -> u64 {
        self.core.borrow().geometry.byte(at.segment, at.page * PAGE_BYTES as u32)
    }

    pub async fn read_pages(&self, at: Place) -> Result<Bytes> {
        let byte = self.byte(at);
        let read = self.device.read(byte, write::whole(&at)).await;
        Ok(read?.freeze())
    }

    pub async fn write_pages(&self, at: Place, buf: AlignedBuf, how: Durability) -> (AlignedBuf, Result<()>) {
        let byte = self.byte(at);
        self.core.borrow_mut().counters.map_bytes += buf.len() as u64;
        let (buf, done) = self.device.write(byte, buf, how).await;
        (buf, done.map_err(|e| Error::device_failed(format!("write of the map at byte {byte}: {e}"))))
    }

    /// One more ready segment, while nobody else sees to that.
    async fn make_room(&self) -> Result<()> {
        let (bare, len, geometry) = {
            let core = self.core.borrow();
            // Segments that a slot names stay until the slot is emptied (rule E5).
            let named = |id| core.maps.avoid.contains(&id) && !core.segs.leaves_out(RuleMutant::KeptUsedAgain);
            let may = |id: u32, s: &Segment| s.state == SegmentState::Bare && !named(id);
            let bare = core.segs.iter().find(|(id, s)| may(*id, s)).map(|(id, _)| id);
            (bare, core.segs.len(), core.geometry)
        };
        match bare {
            Some(id) => {
                if !openings::is_whole(self.device, &geometry, id).await {
                    self.device.prewrite(geometry.byte(id, 0), geometry.segment_bytes).await?;
                }
                self.core.borrow_mut().segs.set_state(id, SegmentState::Ready);
            }
            None if len < geometry.limit_segments => {
                crate::log::guard::grow(self.device, geometry, len).await?;
                self.core.borrow_mut().segs.push();
            }
            None => return Err(Error::no_space("no segment is free for the map")),
        }
        Ok(())
    }

    /// Room for up to `most` pages, one behind the other.
    pub async fn room(&self, number: u64, most: u32) -> Result<Place> {
        loop {
            let wake = {
                let mut core = self.core.borrow_mut();
                if let Some(at) = core.map_room(number, most) {
                    return Ok(at);
                }
                if !core.may_open_map() {
                    return Err(Error::no_space("no segment is free for the map"));
                }
                core.map_wake.clone()
            };
            if self.alone {
                self.make_room().await?;
            } else {
                wake.notified().await;
            }
        }
    }
}

/// Lets others run; what follows is a step of its own.
pub(crate) async fn pause() {
    let mut first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

impl Core {
    /// Whether room is wanted, and entries that nobody has held against the levels below them may keep some: then all
    /// levels are merged.
    pub fn wants_squeeze(&self) -> bool {
        let m = &self.maps;
        if m.nothing_below() || m.damaged || m.no_squeeze == Some(self.segs.changes) {
            return false;
        }
        let old = m.old.as_ref().map_or(0, |o| o.entries);
        let least = match self.need() {
            Need::None => return false,
            Need::Gentle(_) => (old / 8).max(512),
            Need::Short(_) => (old / 16).max(256),
            Need::Hard => (old / 64).max(64),
        };
        let behind = (m.grown / ENTRY_BYTES) as u64 + m.young.iter().map(|r| r.entries).sum::<u64>();
        behind >= least
    }

    /// Whether the map may have another segment: what the log needs to come back to life stays.
    pub fn may_open_map(&self) -> bool {
        let spare = self.segs.ready_count() > 2 || self.can_grow();
        spare
            && self.failed.is_none()
            && self.free_segments() > (self.geometry.reserve_segments() / 2).max(LAST_SEGMENTS + 1)
    }

    fn map_room(&mut self, number: u64, most: u32) -> Option<Place> {
        let pages = (self.geometry.segment_bytes / PAGE_BYTES as u64) as u32;
        let (segment, page) = match self.maps.open.filter(|(_, p)| *p < pages) {
            Some(open) => open,
            None => {
                // Where the log goes on next is not for the map.
                let avoid = &self.maps.avoid;
                let id = self.segs.ready_for_map(self.opening, avoid).filter(|_| self.may_open_map())?;
                self.segs.set_state(id, SegmentState::Map);
                self.segs.map_count += 1;
                self.maps.segments.insert(id);
                self.pool.notify_one();
                (id, 0)
            }
        };
        let count = most.min(pages - page);
        self.maps.open = Some((segment, page + count));
        self.maps.writing.entry(number).or_default().insert(segment);
        Some(Place { segment, page, count })
    }

    /// Map segments without anything that is named are ready for any use.
    pub fn sweep_map(&mut self) {
        let m = &self.maps;
        let mut named: BTreeSet<u32> = m.writing.values().flatten().copied().collect();
        // Rule E5: what either checkpoint names stays.
        let kept = m.kept.iter().flatten().filter(|_| !self.segs.leaves_out(RuleMutant::KeptUsedAgain));
        let runs = m.runs().chain(m.past.runs()).chain(kept.clone().flat_map(|k| &k.runs));
        let places = runs.flat_map(|r| r.places.list()).chain(kept.flat_map(|k| &k.manifest));
        named.extend(places.map(|p| p.segment));
        let pages = (self.geometry.segment_bytes / PAGE_BYTES as u64) as u32;
        named.extend(m.open.filter(|(_, p)| *p < pages).map(|o| o.0));
        let gone: Vec<u32> = self.maps.segments.difference(&named).copied().collect();
        for id in gone {
            self.maps.segments.remove(&id);
            self.segs.set_state(id, SegmentState::Ready);
            // No live table names it, so it may go back to the file system.
            self.segs.get_mut(id).freed_by = 1;
            self.segs.map_count -= 1;
            self.segs.freed.notify_one();
        }
    }

    /// Recovery has applied all appends up to this one: tells what the checkpoint knew to be committed by then.
    pub fn tell_committed(&mut self, applied: u64) {
        if self.maps.committed.0 > applied {
            return;
        }
        for (id, slot, to) in std::mem::take(&mut self.maps.committed.1) {
            if let Some(s) = self.shards.get_mut(&id).filter(|s| s.slot == slot) {
                s.hear_committed(to, &mut self.segs);
            }
        }
    }

    /// A newer entry, of version `by`, covers this one.
    pub fn superseded(&mut self, slot: u32, at: u32, e: &Extent, by: Version) {
        let Some(shard) = self.maps.slots.get(&slot) else { return };
        if let Some(s) = self.shards.get_mut(shard) {
            s.supersede(at, e, by, false, &mut self.segs);
        }
    }
}

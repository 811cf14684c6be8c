//! Room for the log: a few segments are kept ready, and what is free beyond them goes back to the file system.
//!
//! Invariants:
//! - An append never meets a hole: a segment that was punched, or that recovery does not know to be whole, is filled
//!   with zeroes before it is ready.
//! - A segment is punched only when two live tables without it are durable: if the newest one rots, recovery takes the
//!   one before, and must find all that it names.
//! - A segment that the writer has chosen to open next stays as it is.
//! - Nobody waits for any of this but who has used up all that is ready beside the headroom.

use crate::CleanMutant;
use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::queue::Queued;
use crate::log::geometry::HEADROOM_SEGMENTS;
use crate::log::openings;
use crate::log::segments::{Segment, SegmentState};
use freebs_io::Device;
use freebs_types::{Error, ErrorKind, Result};

/// Segments kept ready, so that no append waits for one to be written in advance: two beside those that nothing may open
/// while the device may still grow.
const POOL: u32 = HEADROOM_SEGMENTS + 2;
/// Segments that stay ready when more become free than are needed: a sixteenth of those in use, within these bounds. A
/// pass of cleaning frees several at once that will soon be wanted again.
const SPARE_MIN: u32 = POOL + 1;
const SPARE_MAX: u32 = 16;
/// Segments that are free but not yet punched, for which a segment is closed early when nobody writes.
const ROLL_SEGMENTS: u32 = 8;
/// Bytes of zeroes that are written at once.
const PREWRITE_BYTES: u64 = 1 << 20;

/// Bytes at the end of a segment that are punched first; no file system has larger blocks.
const TAIL_BYTES: u64 = 64 << 10;

/// What is to be done about room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Grow the device by a segment behind so many.
    Grow(u32),
    Prewrite(u32),
    Punch(u32),
    /// Close the open segment, so that a new live table says what is free.
    Roll,
}

impl Core {
    fn spare_max(&self) -> u32 {
        (self.segs.used_count / 16).clamp(SPARE_MIN, SPARE_MAX)
    }

    /// Whether closing the open segment early is worth what it wastes.
    fn rolls(&self) -> bool {
        // Those that are old enough have been punched before this is asked, down to the pool.
        let n = self.segs.count(SegmentState::Given) + self.segs.ready_count();
        let quiet = self.cleaning.idle && !self.cleaning.busy && self.queue.is_empty() && !self.writing;
        quiet && n >= ROLL_SEGMENTS + self.spare_max() && self.may_open()
    }

    fn space_step(&mut self) -> Option<Step> {
        let (ready, n) = (self.segs.ready_count(), self.segs.len());
        self.growing = false;
        if self.failed.is_some() {
            return None;
        }
        if let Some(id) = self.segs.said().filter(|id| self.segs.get(*id).state == SegmentState::Bare) {
            self.growing = true;
            return Some(Step::Prewrite(id));
        }
        // A file system that was full is asked again whenever somebody rings.
        if ready < POOL || (self.no_growth && self.more_segments()) {
            let bare = self.segs.iter().find(|(_, s)| s.state == SegmentState::Bare && !s.is_read());
            let step = bare.map(|(id, _)| Step::Prewrite(id));
            let step = step.or_else(|| (n < self.geometry.limit_segments).then_some(Step::Grow(n)));
            self.growing = step.is_some();
            return step;
        }
        if self.cleaning.options.mutant == Some(CleanMutant::PunchNamed) {
            let given = self.segs.iter().find(|(_, s)| s.state == SegmentState::Given && !s.is_read());
            return given.map(|(id, _)| Step::Punch(id));
        }
        if self.free_segments() < 2 * self.low_segments() {
            return None;
        }
        let newest = self.open.as_ref().filter(|o| o.first_append > 0).map(|o| o.seq)?;
        // The one that is about to be opened is no longer spare.
        let ready_now = |id, s: &Segment| {
            let is_next = [self.opening, self.segs.said(), self.segs.planned()].contains(&Some(id));
            s.state == SegmentState::Ready && !s.is_read() && !is_next
        };
        let spare = self.segs.iter().filter(|(id, s)| ready_now(*id, s));
        // Those at the end of the device go first; those at its front are used again first.
        let old = spare.filter(|(_, s)| s.freed_by > 0 && s.freed_by < newest);
        let punch = old.last().filter(|_| ready > self.spare_max()).map(|(id, _)| Step::Punch(id));
        punch.or_else(|| self.rolls().then_some(Step::Roll))
    }
}

impl<D: Device> Engine<D> {
    /// Keeps a few segments ready and gives the others back, as long as the log is written.
    pub(crate) async fn space_loop(&self) -> Result<()> {
        let inner = &self.inner;
        loop {
            let step = inner.core.borrow_mut().space_step();
            let done = match step {
                Some(Step::Grow(segments)) => self.grow(segments).await,
                Some(Step::Prewrite(id)) => self.prewrite(id).await,
                Some(Step::Punch(id)) => self.punch(id).await,
                Some(Step::Roll) => {
                    inner.core.borrow_mut().push(Queued::Roll);
                    inner.ring();
                    false
                }
                None => {
                    // Whoever waits for a segment waits for a reader then, who rings; only the end of the log is news.
                    if inner.core.borrow().failed.is_some() {
                        inner.grown.notify_one();
                    }
                    false
                }
            };
            if !done {
                inner.pool.notified().await;
            }
        }
    }

    async fn grow(&self, segments: u32) -> bool {
        let geometry = self.inner.core.borrow().geometry;
        if let Err(e) = crate::log::guard::grow(&self.inner.device, geometry, segments).await {
            self.no_growth(&format!("grow to {} bytes", geometry.byte(segments + 1, 0)), &e);
            return false;
        }
        let mut core = self.inner.core.borrow_mut();
        core.no_growth = false;
        core.segs.push();
        self.inner.ring();
        self.inner.map_wake.notify_one();
        true
    }

    async fn prewrite(&self, id: u32) -> bool {
        let geometry = self.inner.core.borrow().geometry;
        if openings::is_whole(&self.inner.device, &geometry, id).await {
            // A start does not look at what is free.
            let mut core = self.inner.core.borrow_mut();
            core.segs.set_state(id, SegmentState::Ready);
            self.inner.ring();
            self.inner.map_wake.notify_one();
            return true;
        }
        if let Err(e) = self.fill(id).await {
            self.no_growth(&format!("fill segment {id}"), &e);
            return false;
        }
        let mut core = self.inner.core.borrow_mut();
        core.no_growth = false;
        core.segs.set_state(id, SegmentState::Ready);
        core.counters.prewritten_segments += 1;
        self.inner.ring();
        self.inner.map_wake.notify_one();
        true
    }

    async fn fill(&self, id: u32) -> Result<()> {
        let geometry = self.inner.core.borrow().geometry;
        let mut at = 0;
        while at < geometry.segment_bytes {
            let bytes = PREWRITE_BYTES.min(geometry.segment_bytes - at);
            self.inner.device.prewrite(geometry.byte(id, at as u32), bytes).await?;
            at += bytes;
        }
        Ok(())
    }

    /// Gives a segment back. While that goes on nobody can open it.
    async fn punch(&self, id: u32) -> bool {
        let geometry = {
            let mut core = self.inner.core.borrow_mut();
            core.segs.set_state(id, SegmentState::Bare);
            core.geometry
        };
        // The end goes first: who finds a footer of ours after a crash knows that nothing of the segment is missing.
        let (at, len) = (geometry.byte(id, 0), geometry.segment_bytes);
        let tail = TAIL_BYTES.min(len / 2);
        let mut punched = self.inner.device.punch(at + len - tail, tail).await;
        if punched.is_ok() {
            punched = self.inner.device.sync().await;
        }
        if punched.is_ok() {
            punched = self.inner.device.punch(at, len - tail).await;
        }
        match punched {
            Ok(()) => {
                self.inner.core.borrow_mut().counters.punched_segments += 1;
                true
            }
            Err(e) => {
                self.no_growth(&format!("give segment {id} back"), &e);
                false
            }
        }
    }

    /// The device did not grow: it is full, or it has failed.
    fn no_growth(&self, what: &str, e: &Error) {
        {
            let mut core = self.inner.core.borrow_mut();
            core.growing = false;
            if !core.no_growth {
                core.event(crate::EventKind::Space, format!("the device can't {what}: {e}"));
            }
            core.no_growth = true;
            // Better elsewhere than not at all.
            core.segs.said = None;
            // The map may wait for the segment that does not come.
            core.map_wake.notify_one();
        }
        if e.kind != ErrorKind::NoSpace {
            self.fail(&Error::device_failed(format!("{what}: {e}")));
        }
        self.inner.ring();
    }
}

//! Reading closed segments from end to end: what recovery and reads never look at (heads of frames, headers of
//! appends and live tables of segments whose index was good) is held against its checksums and hashes, and the index
//! against the appends. The device tools do it by the same code.
//!
//! It changes nothing in the log; what it finds is told as events, fails the digest that asked for it, and is looked at by
//! the scrub, which has it mended and emptied.

use crate::engine::rot::Place;
use crate::log::geometry::Geometry;
use crate::log::scan::Window;
use crate::log::segments::SegmentState;
use crate::log::whole::{Known, check};
use crate::{Engine, Finding};
use freebs_io::Device;
use freebs_types::{Error, Result, ShardId};

impl<D: Device> Engine<D> {
    /// Reads every closed segment that holds frames of a shard. `Corrupt`, with the first finding, if anything does
    /// not match. All findings are events; what was told before is not told again.
    pub async fn check_segments(&self, shard: ShardId) -> Result<()> {
        let (geometry, list) = {
            let core = self.inner.core.borrow();
            core.shard(shard)?;
            let held = |s: &crate::log::segments::Segment| s.state == SegmentState::Closed && s.content.has(shard);
            let list: Vec<_> =
                core.segs.used().filter(|(_, s)| held(s)).map(|(id, s)| (id, s.seq, core.segs.guard(id))).collect();
            (core.geometry, list)
        };
        let mut first = None;
        for (id, seq, _guard) in list {
            let mut window = Window::new(&self.inner.device, geometry, id);
            let found = check_segment(&mut window, &geometry, seq).await;
            let mut core = self.inner.core.borrow_mut();
            core.tell_found(Place::Segment(id, seq), "", &found);
            if let Some(f) = found.first() {
                core.suspect(id);
                first.get_or_insert(format!("segment {id}, byte {}: {}", f.offset, f.what));
            }
        }
        match first {
            Some(text) => Err(Error::corrupt(format!("the log is damaged: {text}"))),
            None => Ok(()),
        }
    }
}

async fn check_segment<D: Device>(w: &mut Window<'_, D>, g: &Geometry, seq: u64) -> Vec<Finding> {
    let known = Known { seq, newest: false, next_first: None };
    let damage = check(w, g, known).await.damage;
    damage.into_iter().map(|d| Finding { segment: d.segment, offset: d.offset, what: d.what }).collect()
}

//! Reading closed segments from end to end: what recovery and reads never look at (heads of frames, headers of
//! appends and live tables of segments whose index was good) is held against its checksums and hashes, and the index
//! against the appends. The device tools do it by the same code.
//!
//! It changes nothing; what it finds is told as events, and fails the digest that asked for it.

use crate::core::Geometry;
use crate::scan::Window;
use crate::segments::SegmentState;
use crate::tool::segment::{Known, check};
use crate::{Engine, EventKind, Finding};
use freebs_io::Device;
use freebs_types::{Error, Result, ShardId};

impl<D: Device> Engine<D> {
    /// Reads every closed segment that holds frames of a shard. `Corrupt`, with the first finding, if anything does
    /// not match; all findings are events.
    pub async fn check_segments(&self, shard: ShardId) -> Result<()> {
        let (geometry, list) = {
            let core = self.inner.core.borrow();
            core.shard(shard)?;
            let held = |s: &crate::segments::Segment| s.state == SegmentState::Closed && s.content.has(shard);
            let list: Vec<_> =
                core.segs.used().filter(|(_, s)| held(s)).map(|(id, s)| (id, s.seq, core.segs.guard(id))).collect();
            (core.geometry, list)
        };
        let mut first = None;
        for (id, seq, _guard) in list {
            let mut window = Window::new(&self.inner.device, geometry, id);
            for f in check_segment(&mut window, &geometry, seq).await {
                let text = format!("segment {id}, byte {}: {}", f.offset, f.what);
                self.inner.core.borrow_mut().event(EventKind::Damage, text.clone());
                first.get_or_insert(text);
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

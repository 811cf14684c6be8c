//! The room of a node's logs, as its workers tell it and its seat says it to the leader.

use freebs_consensus::Room;
use freebs_lsvd::Space;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by a node's workers and its seat.
#[derive(Clone, Debug, Default)]
pub struct Fill(Arc<Mutex<BTreeMap<u16, Of>>>);

/// The log of one worker.
#[derive(Clone, Copy, Debug)]
struct Of {
    room_bytes: u64,
    used_percent: u8,
    is_level: bool,
}

impl Fill {
    /// A worker's log has this room now; `is_level`: no replica in it lacks anything.
    pub fn tell(&self, worker: u16, space: &Space, is_level: bool) {
        let of = Of { room_bytes: space.room_bytes(), used_percent: space.used_percent(), is_level };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, of);
    }

    /// The room of all together, taken as much as it is in the fullest: a shard lies on one of them.
    pub fn room(&self) -> Room {
        let of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Room {
            bytes: of.values().map(|o| o.room_bytes).sum(),
            used_percent: of.values().map(|o| o.used_percent).max().unwrap_or(0),
            is_level: !of.is_empty() && of.values().all(|o| o.is_level),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 20;

    fn space(live_segments: u64) -> Space {
        let (segment_bytes, live_bytes) = (SEGMENT, live_segments * SEGMENT);
        Space {
            segment_bytes,
            limit_segments: 106,
            free_segments: 20,
            reserve_segments: 4,
            live_bytes,
            ..Space::default()
        }
    }

    #[test]
    fn the_fullest_log_counts() {
        let fill = Fill::default();
        assert_eq!(fill.room(), Room::default());
        fill.tell(0, &space(10), true);
        fill.tell(1, &space(50), false);
        assert_eq!(fill.room(), Room { bytes: 200 * SEGMENT, used_percent: 50, is_level: false });
        fill.tell(1, &space(5), true);
        assert_eq!((fill.room().used_percent, fill.room().is_level), (10, true));
    }

    #[test]
    fn a_log_that_takes_nothing_more_is_full() {
        let fill = Fill::default();
        fill.tell(0, &Space { free_segments: 4, more_soon: true, ..space(10) }, true);
        assert_eq!(fill.room().used_percent, 10);
        fill.tell(0, &Space { free_segments: 4, ..space(10) }, true);
        assert_eq!(fill.room().used_percent, 100);
    }
}

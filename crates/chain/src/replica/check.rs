//! The invariants of a replica, looked at after each step. Each costs a few comparisons, so they are looked at in release
//! builds, too: a log that breaks one of them must not go on.

use super::Replica;
use freebs_types::Sequence;

impl Replica {
    /// # Panics
    /// If an invariant of `replica` or `head` does not hold.
    pub fn check(&self) {
        self.check_log();
        self.check_views();
        if let Some(head) = &self.head {
            head.check();
        }
    }

    fn check_log(&self) {
        let last = self.last.sequence;
        assert!(self.durable <= last, "{}: {} is durable, and {last} is the last frame", self.id, self.durable);
        assert!(self.committed <= last, "{}: {} is committed, and {last} is the last frame", self.id, self.committed);
        assert!(self.told_committed <= self.committed, "{}: the log was told more than is committed", self.id);
        if let Some((end, entry)) = self.tail.last_key_value() {
            assert!(*end <= last, "{}: the tail ends behind the last frame", self.id);
            assert_eq!(*end, entry.name.sequence, "{}: each frame of the tail has its place", self.id);
        }
        if let (Some(first), Some(end)) = (self.recent.front(), self.recent.back()) {
            assert!(
                first.head.seq() > Sequence(0) && end.head.seq() <= last,
                "{}: recent frames are of this log",
                self.id
            );
            assert!(self.recent_bytes > 0, "{}: recent frames are counted", self.id);
        } else {
            assert_eq!(self.recent_bytes, 0, "{}: no frame waits for the disk", self.id);
        }
        if self.gap.is_empty() {
            assert_eq!(self.gap_bytes, 0, "{}: no frame waits for others", self.id);
        }
    }

    fn check_views(&self) {
        assert!(self.promise() >= self.promised, "{}: a promise is never taken back", self.id);
        let Some(view) = &self.view else { return };
        assert!(view.sequence <= self.last.sequence, "{}: the view's frame is in the log", self.id);
        assert!(!view.body.members.is_empty(), "{}: a view has members", self.id);
        assert!(self.attach.generation >= view.body.generation, "{}: a view's generation is known", self.id);
    }
}

//! The invariants of a head, looked at after each step of its replica.

use super::Head;
use freebs_types::limits;

impl Head {
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        assert!(self.members.len() <= limits::CHAIN_MEMBERS_MAX, "a chain has no more members than its views");
        assert!(self.members.is_empty() || self.quorum <= self.members.len(), "a quorum is one of the members");
        assert!(self.quorum > 0, "nothing is committed by nobody");
        assert!(self.waiting.len() <= limits::DRIVER_REQUESTS_MAX, "a driver has no more requests open");
        assert!(self.refused.len() <= limits::DRIVER_REQUESTS_MAX, "no more numbers are refused than are open");
        assert!(self.uncommitted_bytes == 0 || !self.uncommitted.is_empty(), "uncommitted bytes are those of frames");
        if let (Some(first), Some(last)) = (self.uncommitted.front(), self.uncommitted.back()) {
            assert!(first.0 <= last.0, "frames are committed in order");
        }
    }
}

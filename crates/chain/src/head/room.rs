//! The wait of a write for room in the logs of all members that get every frame (rule W7).
//!
//! Invariants: a write is refused for good only by words that were said since it waits, never by an old one of a member
//! that has fallen silent; and such a member is passed over.

use crate::timing;
use freebs_format::wire::Room;
use freebs_types::Nanos;

/// The room that logs have for a write; the worst of all counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpaceFor {
    There,
    /// It has to wait: a log is making room, or its last word is older than the wait.
    Soon,
    None,
}

/// The last word of a member on what its log takes, and when it came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    pub room: Option<Room>,
    pub at: Nanos,
}

/// The wait of the first request for room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomWait {
    /// Since when it waits.
    since: Option<Nanos>,
    /// Since when nothing is known that would make room.
    hopeless_since: Option<Nanos>,
}

impl RoomWait {
    /// True if a request waits.
    pub fn waits(&self) -> bool {
        self.since.is_some()
    }

    /// How it is with a log that said this and does not take what is wanted.
    pub fn space_without(&self, said: &Said, now: Nanos) -> SpaceFor {
        let is_old = said.at < self.since.unwrap_or(now);
        match is_old || said.room.is_some_and(|r| r.more_soon) {
            true => SpaceFor::Soon,
            false => SpaceFor::None,
        }
    }

    /// True if a member that is waited for has not said for [`timing::ROOM_SILENCE`] how much room it has: it would answer
    /// each heartbeat.
    pub fn is_silent(&self, said: &Said, now: Nanos) -> bool {
        self.since.is_some_and(|since| now.since(since.max(said.at)) >= timing::ROOM_SILENCE)
    }

    /// Takes note of how it is with the first of the requests that wait; true if that is refused for want of room: no log
    /// has had any, nor said that it makes some, for a while. Until then one may not have heard of the last commit, nor
    /// looked at what that has freed.
    pub fn gives_up(&mut self, now: Nanos, space: SpaceFor) -> bool {
        if space == SpaceFor::There {
            *self = Self::default();
            return false;
        }
        self.since.get_or_insert(now);
        if space == SpaceFor::Soon {
            self.hopeless_since = None;
            return false;
        }
        now.since(*self.hopeless_since.get_or_insert(now)) >= timing::NO_ROOM_PATIENCE
    }
}

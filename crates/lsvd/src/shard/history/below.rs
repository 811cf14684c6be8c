//! A shard's part of the runs of history, as far as the shard has to know of it.

use freebs_types::{Sequence, Version};

#[derive(Debug, Default)]
pub(crate) struct Below {
    /// Runs have something of it; and they had once since the start.
    is_any: bool,
    was_any: bool,
    /// Nobody needs some of it, as far as is known.
    is_loose: bool,
    /// Only who reads part by part needs some of it.
    is_read: bool,
    /// The runs have been looked through for a window that began here.
    looked_upto: Version,
    /// No layer could leave memory when this was committed: frames that may be cut have them all.
    stuck_at: Option<Sequence>,
}

impl Below {
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// True if memory may have layers that a run knew to be free; for checks.
    pub fn was_any(&self) -> bool {
        self.was_any
    }

    /// Runs are others now.
    pub fn set_any(&mut self, is_any: bool) {
        self.is_any = is_any;
        self.was_any |= is_any;
    }

    /// A layer goes to a run.
    pub fn goes(&mut self, is_kept: bool, is_read: bool) {
        self.set_any(true);
        self.is_read |= !is_kept && is_read;
        self.is_loose |= !is_kept && !is_read;
    }

    /// True if the runs are to be looked through.
    pub fn is_loose(&self) -> bool {
        self.is_any && self.is_loose
    }

    /// True if the next start has to look through them: nobody reads then.
    pub fn is_loose_behind_a_start(&self) -> bool {
        self.is_loose || self.is_read
    }

    /// Something was given up that may have kept some of it.
    pub fn loosen(&mut self) {
        self.is_loose |= self.is_any;
    }

    /// A checkpoint says that something was given up.
    pub fn was_loose(&mut self, is_loose: bool) {
        self.is_loose |= is_loose;
    }

    /// Nobody reads part by part any more.
    pub fn read_no_more(&mut self) {
        self.is_loose |= std::mem::take(&mut self.is_read);
    }

    /// The runs are looked through from now on, for a window that begins here.
    pub fn begin_look(&mut self, window: Version) {
        (self.is_loose, self.is_read, self.looked_upto) = (false, false, window);
    }

    pub fn looked_upto(&self) -> Version {
        self.looked_upto
    }

    pub fn set_stuck(&mut self, committed: Sequence) {
        self.stuck_at = Some(committed);
    }

    /// True if no layer may leave memory, as far as is known.
    pub fn is_stuck(&self, committed: Sequence) -> bool {
        self.stuck_at == Some(committed)
    }
}

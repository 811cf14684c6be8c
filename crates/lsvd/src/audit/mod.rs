//! The audit of a shard's hash chain in one log, from the secrets that views publish (DESIGN section 6, Lithium
//! section 2.2; design note 26 says what it proves).
//!
//! `walk` judges: it takes frames from the newest to the oldest, and knows nothing of devices. `read` gives them to it,
//! a segment at a time, newest first, in steps that others may come between.
//!
//! Invariants:
//! - A frame counts as proven only if its bytes fit its digest, the secret of its view, which is published, gives its
//!   token, and the frame behind it names that token, unless that one is missing. Less is never called proven.
//! - Nothing in the log makes the audit panic, or hold more than one segment's heads and the maxima below.

mod read;
#[cfg(test)]
mod tests;
mod walk;

pub use read::{Auditor, Progress};

use crate::FrameName;
use freebs_types::{Hash32, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Ranges of a report. Older ones are told together, as what is proven least.
pub const RANGES_MAX: usize = 1000;
/// Breaks that are told: the newest ones, and the oldest of all. More are counted.
pub const BREAKS_MAX: usize = 100;
/// Branches that are told: the newest ones.
pub const BRANCHES_MAX: usize = 100;
/// Sequences whose `hid` is told, to be compared with other logs, beside those that were asked for.
pub const SAMPLES_MAX: usize = 4096;
/// Published secrets, and views without one, that are told: the newest ones.
pub const SECRETS_MAX: usize = 1024;
/// Frames that are remembered until their place in the sequence comes.
pub(crate) const WAITING_MAX: usize = 32_768;

/// Things that an audit is told beside the log.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Sequences whose `hid` is wanted. At most `SAMPLES_MAX` are looked at.
    pub at: BTreeSet<Sequence>,
    /// Secrets of views, as other logs published them. One counts only if a frame here was made with it, or if its hash
    /// is in its view's own frame.
    pub secrets: BTreeMap<ViewNumber, Hash32>,
}

/// How sure the audit is of a range of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// The frames are not in the log any more. Their number is known, and the hash of the last one.
    Summarised,
    /// Each frame fits its digest and is named by the one behind it. The secret of its view is not known.
    Linked,
    /// Each frame was made with the secret of its view, which is published.
    Proven,
}

impl Proof {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Summarised => "summarised",
            Self::Linked => "linked",
            Self::Proven => "proven",
        }
    }
}

/// Frames one behind the other of which the same is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// How sure the audit is of them.
    pub proof: Proof,
    /// The first frame.
    pub first: Sequence,
    /// The last frame.
    pub last: Sequence,
    /// Version of their first update.
    pub first_version: Version,
    /// Version of their last update; below `first_version` if they have none.
    pub last_version: Version,
    /// View of the first frame.
    pub first_view: ViewNumber,
    /// View of the last frame.
    pub last_view: ViewNumber,
}

impl Range {
    /// Number of frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }
}

/// The cause of a break in the chain. The names are for programs, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Bytes of a frame are not what was written.
    Altered,
    /// Frames are missing that were never given up.
    Removed,
    /// A frame that is there is not the one that the frame behind it follows.
    Unlinked,
    /// A frame does not follow from the secret of its view.
    Forged,
    /// A secret that was published is not the one that its view was opened with.
    Secret,
}

impl Cause {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Altered => "altered",
            Self::Removed => "removed",
            Self::Unlinked => "unlinked",
            Self::Forged => "forged",
            Self::Secret => "secret",
        }
    }
}

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the segment.
    pub segment: u32,
    /// Byte in the segment.
    pub offset: u32,
    /// The same place as a byte on the device.
    pub byte: u64,
}

/// A break in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// Its cause.
    pub cause: Cause,
    /// View of the frame, or of the one behind those that are missing.
    pub view: ViewNumber,
    /// The first frame that it is about.
    pub first: Sequence,
    /// The last frame that it is about.
    pub last: Sequence,
    /// Version after the last frame, as the log says it.
    pub version: Version,
    /// Where the frame lies; of missing ones, where the frame behind them lies.
    pub place: Option<Place>,
    /// The break in words, for people.
    pub what: String,
}

/// A place where the shard went on by force (rule V10): the view's frame names the public `hid` of the frame before it. The
/// token was not used, so who made it need not have known the history before. This is no break, and it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The view that begins there.
    pub view: ViewNumber,
    /// Its first frame.
    pub sequence: Sequence,
    /// Version before that frame.
    pub version: Version,
}

/// An audit's finding of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The shard.
    pub shard: ShardId,
    /// The last frame when the audit began. It is what the audit goes back from.
    pub last: FrameName,
    /// Version after that frame.
    pub version: Version,
    /// The last frame that was known to be committed then: other logs have the same one.
    pub committed: Sequence,
    /// From the oldest to the newest. Frames of a break are in none of them.
    pub ranges: Vec<Range>,
    /// The oldest ranges were told together, because there are more than `RANGES_MAX`.
    pub folded: bool,
    /// From the oldest to the newest, at most `BREAKS_MAX`.
    pub breaks: Vec<Break>,
    /// Breaks in all.
    pub break_count: u64,
    /// Views that went on by force, from the oldest to the newest, at most `BRANCHES_MAX`.
    pub branches: Vec<Branch>,
    /// Frames that are proven.
    pub proven: u64,
    /// Frames that are linked and not proven.
    pub linked: u64,
    /// Frames that are not in the log any more.
    pub summarised: u64,
    /// Frames with damaged blocks, which have been put back elsewhere in the log: with these they are what was written.
    pub mended: u64,
    /// Frames and their `hid`, from the oldest to the newest: those that were asked for, and others at even distances.
    pub samples: Vec<(Sequence, Hash32)>,
    /// Secrets that views in this log published, newest first.
    pub published: Vec<(ViewNumber, Hash32)>,
    /// Views with frames here whose secret is not known, newest first.
    pub unknown: Vec<ViewNumber>,
    /// Secrets that the audit was told and that do not fit what the log has of their views, newest first. That is no
    /// break: nothing here says that they are right.
    pub unfit: Vec<(ViewNumber, Hash32)>,
    /// Segments that were read.
    pub segments: u32,
    /// Bytes that were read.
    pub bytes: u64,
}

impl Report {
    /// True if there is no break.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.break_count == 0
    }
}

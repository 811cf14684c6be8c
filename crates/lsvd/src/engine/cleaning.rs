//! The state of cleaning: its share, its pass and its round.

use crate::CleanOptions;
use std::rc::Rc;
use tokio::sync::Notify;

/// How much cleaning is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    None,
    /// There is room, but the log is larger than it has to be: bytes to append for 100 of others.
    Gentle(u64),
    /// Free segments grow few: bytes to append for 100 of others.
    Short(u64),
    /// Others wait.
    Hard,
}

#[derive(Debug, Default)]
pub(crate) struct Cleaning {
    pub options: CleanOptions,
    /// Bytes that may be appended now.
    pub credit: u64,
    /// Blocks that may be moved until others append more or more dies; unknown before the first look.
    pub moves_left: Option<u64>,
    /// Blocks that had died when `moves_left` was last made anew.
    pub died_seen: u64,
    /// Nobody else appends.
    pub idle: bool,
    /// A pass is running.
    pub busy: bool,
    /// The share of this pass is being used.
    pub burst: bool,
    /// This pass empties damaged segments: it waits for no share.
    pub saves: bool,
    /// Moves that are queued or being written.
    pub outstanding: u32,
    /// Segments that are given up as soon as the local frames that they need are durable, and how many are not yet.
    pub round: Vec<u32>,
    pub round_jobs: u32,
    /// State of the table of segments when nothing worth cleaning was found last.
    pub looked: Option<u64>,
    /// Something was worth it, but uncommitted frames, a lagging member or a hole stood against it.
    pub held: bool,
    /// Rung when there may be something to do, or to go on with.
    pub wake: Rc<Notify>,
}

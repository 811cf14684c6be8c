//! One run of blocks of the past that a part wants, and the questions for it.

use crate::members::Backoff;
use crate::reads::ATTEMPTS_MAX;
use crate::slab::Key;
use freebs_format::Pin;
use freebs_types::{BlockRange, Nanos, NodeId, Peer};

/// The question of a fetch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    Data,
    Status,
    /// Kinds of blocks, and which of them changed behind this version.
    Changes(Pin),
}

/// A run of blocks that a part wants.
pub(super) struct Fetch {
    pub request: u64,
    /// Place in the request's results.
    pub index: usize,
    pub shard: usize,
    pub range: BlockRange,
    /// The part's bytes begin so far into the first block, and are so many.
    pub skip: usize,
    pub len: u64,
    pub wanted: Wanted,
    /// Bytes in the window.
    pub charge: usize,
    /// The bits below are places in the shard's members as of this number of theirs.
    pub epoch: u32,
    /// Members that were asked in this round.
    pub tried: u32,
    /// Members whose bytes did not match, and those that do not keep the version.
    pub bad: u32,
    pub gone: u32,
    pub tries: u32,
    pub rest: Backoff,
    pub waiting: bool,
    pub due: Option<Nanos>,
    /// Attempts under way, oldest first.
    pub attempts: [u64; ATTEMPTS_MAX],
    pub live: usize,
}

/// A question to a member.
pub(super) struct Attempt {
    pub fetch: Key,
    pub shard: usize,
    pub node: NodeId,
    pub peer: Peer,
}

impl Fetch {
    pub fn new(
        (request, index): (u64, usize),
        shard: usize,
        (range, skip, len): (BlockRange, usize, u64),
        wanted: Wanted,
        charge: usize,
    ) -> Self {
        Self {
            request,
            index,
            shard,
            range,
            skip,
            len,
            wanted,
            charge,
            epoch: 0,
            tried: 0,
            bad: 0,
            gone: 0,
            tries: 0,
            rest: Backoff::default(),
            waiting: false,
            due: None,
            attempts: [0; ATTEMPTS_MAX],
            live: 0,
        }
    }

    pub fn met_damage(&self) -> bool {
        self.bad > 0
    }

    /// Members that it need not ask again.
    pub fn useless(&self) -> u32 {
        self.bad | self.gone
    }
}

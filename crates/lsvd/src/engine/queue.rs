//! The queue of work that waits to be appended.

use super::moves::Move;
use crate::Record;
use freebs_format::CarryBody;
use freebs_types::{Sequence, ShardId};

/// Local frames that free segments.
#[derive(Debug)]
pub(crate) enum Job {
    Mark {
        shard: ShardId,
        released: Sequence,
    },
    Carry {
        shard: ShardId,
        body: CarryBody,
    },
    /// Live blocks of poor segments on their way to the end of the log.
    Move(Move),
}

/// An item of the queue of the log's writer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are the large one; a box would be an allocation per frame")]
pub(crate) enum Queued {
    /// The shard's state, with its suspect tail in it.
    Suspect(ShardId),
    Record(Record),
    Job(Job),
    /// An append without frames, so that the one before it is known to be durable (rule E7).
    Idle,
    /// The open segment is to be closed, and the next one to begin with an append, whether there is one or not.
    Roll,
}

//! What a driver tells of itself to people and metrics.

use crate::Driver;
use freebs_types::{DriverId, Generation, NodeId, Sequence, ShardId, ViewNumber, VolumeId};

/// Events counted since the driver began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Updates that were sent again.
    pub retries: u64,
    /// Blocks or answers of members that did not match.
    pub crc_errors: u64,
    /// Reads that went on to another member.
    pub read_failovers: u64,
    /// Updates whose client was told that they failed while their fate was open.
    pub given_up: u64,
    /// Views that were adopted in place of another one.
    pub view_changes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub volume: VolumeId,
    pub driver: DriverId,
    pub generation: Generation,
    pub ready: bool,
    /// Client requests without an answer.
    pub requests: usize,
    /// Bytes in the window.
    pub bytes: usize,
    pub shards: Vec<ShardInfo>,
    pub counters: Counters,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    pub id: ShardId,
    pub view: ViewNumber,
    pub head: Option<NodeId>,
    /// Ack quorum, 0 while unknown.
    pub quorum: usize,
    /// The head of the view has taken the attachment.
    pub attached: bool,
    /// Durable on the ack quorum, as far as was heard.
    pub committed: Sequence,
    pub members: Vec<MemberInfo>,
    /// Updates without an outcome, those given up included.
    pub writes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    pub node: NodeId,
    /// The link is up.
    pub link: bool,
    /// Its durable sequence in the view; `None` if it has not said so there.
    pub durable: Option<Sequence>,
    /// It lends this driver the right to answer.
    pub lease: bool,
}

impl Driver {
    #[must_use]
    pub fn info(&self) -> Info {
        let shards = self.shards.iter().map(|s| ShardInfo {
            id: s.id,
            view: s.view,
            head: s.members.first().map(|m| m.node),
            quorum: s.quorum,
            attached: s.attached(),
            committed: s.committed,
            members: s
                .members
                .iter()
                .map(|m| MemberInfo {
                    node: m.node,
                    link: self.is_up(m.peer),
                    durable: m.durable,
                    lease: m.lease.until > self.now,
                })
                .collect(),
            writes: s.writes.len(),
        });
        Info {
            volume: self.volume,
            driver: self.driver,
            generation: self.generation,
            ready: self.ready(),
            requests: self.requests.len(),
            bytes: self.bytes,
            shards: shards.collect(),
            counters: self.counters,
        }
    }
}

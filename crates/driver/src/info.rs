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

/// A driver at one moment, as it sees itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The volume that it serves.
    pub volume: VolumeId,
    /// The driver, random at its start.
    pub driver: DriverId,
    /// The generation of its attachment.
    pub generation: Generation,
    /// Requests can be answered: see `Driver::ready`.
    pub ready: bool,
    /// Client requests without an answer.
    pub requests: usize,
    /// Bytes in the window.
    pub bytes: usize,
    /// In the order of the volume's shards.
    pub shards: Vec<ShardInfo>,
    /// Counted since the driver began.
    pub counters: Counters,
}

/// One shard, as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// The shard.
    pub id: ShardId,
    /// The newest view that was adopted; 0 while none is known.
    pub view: ViewNumber,
    /// The node that orders the shard's updates; `None` while no view is known.
    pub head: Option<NodeId>,
    /// Ack quorum, 0 while unknown.
    pub quorum: usize,
    /// The head of the view has taken the attachment.
    pub attached: bool,
    /// Durable on the ack quorum, as far as was heard.
    pub committed: Sequence,
    /// Members of the view, head first.
    pub members: Vec<MemberInfo>,
    /// Updates without an outcome, those given up included.
    pub writes: usize,
}

/// One member of a shard, as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The member's node.
    pub node: NodeId,
    /// The link is up.
    pub link: bool,
    /// Its durable sequence in the view; `None` if it has not said so there.
    pub durable: Option<Sequence>,
    /// It lends this driver the right to answer.
    pub lease: bool,
}

impl Driver {
    /// All that the driver knows now. It asks nobody.
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

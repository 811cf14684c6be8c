//! What can be asked of the control plane, and what comes of it.

use crate::state::Ack;
use freebs_types::{Generation, Hash32, HostPublic, NodeId, ShardId, StartNumber, ViewNumber, VolumeId};
use serde::{Deserialize, Serialize};

/// A new volume. What is left out gets its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateVolume {
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// 3, or as many as there are nodes.
    #[serde(default)]
    pub copies: Option<u8>,
    #[serde(default)]
    pub ack: Ack,
    /// 2, or 1 for one copy.
    #[serde(default)]
    pub min_copies: Option<u8>,
    /// 1 below 64 GiB, then one for each 64 GiB, up to 16.
    #[serde(default)]
    pub shards: Option<u32>,
    /// Bytes; 1 MiB.
    #[serde(default)]
    pub stripe: Option<u64>,
}

/// One change of the state; exactly what is replicated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A node says that it is there, or there again, with a higher start number.
    RegisterNode {
        node: NodeId,
        name: String,
        address: String,
        workers: u16,
        start: StartNumber,
    },
    CreateVolume(CreateVolume),
    /// Refused while the volume is attached, unless forced.
    DeleteVolume {
        volume: VolumeId,
        #[serde(default)]
        force: bool,
    },
    /// Only growing.
    ResizeVolume {
        volume: VolumeId,
        size: u64,
    },
    /// The head of a shard asks for a new view with itself as head. `active` is the active view as it knows it.
    ProposeView {
        shard: ShardId,
        active: ViewNumber,
        node: NodeId,
        start: StartNumber,
    },
    /// The members hold the pending view durably; `generation` is the one in its view frame (rule V6).
    ActivateView {
        shard: ShardId,
        view: ViewNumber,
        generation: Generation,
    },
    /// The right to use a volume.
    AttachVolume {
        volume: VolumeId,
        identity: Hash32,
        /// Of who attaches, for people.
        name: String,
        #[serde(default)]
        force: bool,
        /// Only if this is still the volume's generation. So of several copies of one request, of which some may be
        /// late, one counts: a late one would fence the driver that another one has made.
        #[serde(default)]
        since: Option<Generation>,
        /// The driver of the generation `since` can't answer anybody any more: its leases have ended.
        #[serde(default)]
        lapsed: bool,
    },
    /// Gives the right back, if it is still that generation's.
    DetachVolume {
        volume: VolumeId,
        generation: Generation,
        /// By its driver, which had waited for the leases of all older ones to end and answers nobody any more.
        #[serde(default)]
        settled: bool,
    },
    /// A node says what slices of secrets are to be sealed for, in its present start.
    NameHostKey {
        node: NodeId,
        start: StartNumber,
        key: HostPublic,
    },
    /// Makes another member the head of its shard's chain; it opens a view then. The others keep their order.
    MoveHead {
        shard: ShardId,
        node: NodeId,
    },
    /// The head of a shard can't go on, and `node` is to be head in its place, unless the shard has another head or
    /// another active view by now. The old head goes to the end of the chain.
    ReplaceHead {
        shard: ShardId,
        head: NodeId,
        active: ViewNumber,
        node: NodeId,
    },
    /// These nodes have failed, in the start in which they were last seen: where one is head, the next member becomes
    /// it, in all shards at once.
    FailOver {
        nodes: Vec<(NodeId, StartNumber)>,
    },
    /// The nodes of `gone` have been away for too long, in the start in which they were last seen: other nodes take
    /// their places, in as many shards as may be learned at a time. Those of `failed` take none.
    ReplaceMembers {
        gone: Vec<(NodeId, StartNumber)>,
        failed: Vec<(NodeId, StartNumber)>,
    },
    /// These members of the active view have everything (rule V7), as its head sees.
    MembersComplete {
        shard: ShardId,
        view: ViewNumber,
        nodes: Vec<NodeId>,
    },
}

/// What a command led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Registered,
    Created {
        volume: VolumeId,
    },
    Deleted,
    Resized {
        size: u64,
    },
    /// The pending view, the active one that it follows, and the generation to put into its view frame (rule V6).
    Proposed {
        view: ViewNumber,
        pred: ViewNumber,
        generation: Generation,
    },
    Activated,
    Attached {
        generation: Generation,
        /// No driver of an earlier generation can hold a lease.
        #[serde(default)]
        alone: bool,
    },
    Detached,
    Named,
    Moved,
}

/// An outcome, and the revision of the state that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub revision: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

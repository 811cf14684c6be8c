//! What can be asked of the control plane, and what comes of it.

use crate::snapshots::{Cut, Schedule};
use crate::state::Ack;
use freebs_types::{
    Generation, Hash32, HostPublic, NodeId, Past, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use serde::{Deserialize, Serialize};

/// A new volume. What is left out gets its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateVolume {
    /// Unique in the cluster; 1 to 128 bytes.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// 3, or as many as there are nodes.
    #[serde(default)]
    pub copies: Option<u8>,
    /// When a write is answered.
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
    /// Milliseconds of its past that are kept; none.
    #[serde(default)]
    pub retain_ms: Option<u64>,
}

/// One change of the state; exactly what is replicated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A node says that it is there, or there again, with a higher start number.
    RegisterNode {
        /// The node; numbers are given by the cluster file.
        node: NodeId,
        /// Name for people.
        name: String,
        /// Where it is reached: host and port.
        address: String,
        /// Workers; has to be as before, since shards lie on workers by their number.
        workers: u16,
        /// Its present start; a lower one than is known is refused.
        start: StartNumber,
    },
    /// A new volume, with a chain for each of its shards.
    CreateVolume(CreateVolume),
    /// A new volume that has what a snapshot has of another one; in everything but its name it is as that one. Nothing is
    /// copied.
    CloneVolume {
        /// A volume of the snapshot.
        volume: VolumeId,
        /// Name of the snapshot, which is complete.
        snapshot: String,
        /// Name of the new volume, as for `CreateVolume`.
        name: String,
    },
    /// Snapshots of a volume are made by themselves from now on, or are not any more.
    ScheduleSnapshots {
        /// The volume.
        volume: VolumeId,
        /// When, and which of them stay; `None` for no schedule.
        schedule: Option<Schedule>,
    },
    /// A clone is to have all that it reads from its parent as its own. `Invalid` if the volume is no clone.
    FlattenVolume {
        /// The volume.
        volume: VolumeId,
    },
    /// Refused while the volume is attached, unless forced, and while it has snapshots. Also while a clone of it has not
    /// begun: `Busy`.
    DeleteVolume {
        /// The volume.
        volume: VolumeId,
        /// Also while it is attached.
        #[serde(default)]
        force: bool,
    },
    /// Only growing.
    ResizeVolume {
        /// The volume.
        volume: VolumeId,
        /// New size in bytes.
        size: u64,
    },
    /// Gives a volume another name. Whoever has it attached goes on; heads open views so that the logs say the new name.
    RenameVolume {
        /// The volume.
        volume: VolumeId,
        /// New name, as for `CreateVolume`; one that another volume has is `Invalid`.
        name: String,
    },
    /// So much of a volume's past is kept from now on. What was kept longer is given back; what was not kept is not there.
    RetainVolume {
        /// The volume.
        volume: VolumeId,
        /// Milliseconds, at most `RETAIN_MS_MAX`; 0 for none.
        retain_ms: u64,
    },
    /// The head of a shard asks for a new view with itself as head. `active` is the active view as it knows it.
    ProposeView {
        /// The shard.
        shard: ShardId,
        /// The active view; if it is another, the proposal is refused.
        active: ViewNumber,
        /// The node that proposes, and is to be head.
        node: NodeId,
        /// Its present start, which binds the view to this process (rule W2).
        start: StartNumber,
    },
    /// The members hold the pending view durably; `generation` is the one in its view frame (rule V6).
    ActivateView {
        /// The shard.
        shard: ShardId,
        /// The pending view; if another is pending by now, it is refused.
        view: ViewNumber,
        /// The generation in the view frame; if the volume has another by now, it is refused.
        generation: Generation,
    },
    /// As `ActivateView`, of a view whose frame begins a branch: it was opened by force (rule V10). `Fenced` if nobody has said
    /// that it may be.
    ActivateBranch {
        /// The shard.
        shard: ShardId,
        /// The pending view.
        view: ViewNumber,
        /// The generation in the view frame.
        generation: Generation,
    },
    /// As `ActivateView`, of the first view of a clone's shard.
    ActivateClone {
        /// The shard.
        shard: ShardId,
        /// The pending view.
        view: ViewNumber,
        /// The generation in the view frame.
        generation: Generation,
        /// Members that do not have what the clone begins with, as far as the head knows: they learn it. Each is one for whose
        /// device an empty log is no loss (rule V2).
        learning: Vec<NodeId>,
    },
    /// The right to use a volume.
    AttachVolume {
        /// The volume.
        volume: VolumeId,
        /// Hash of the persistent identity of who attaches.
        identity: Hash32,
        /// Of who attaches, for people.
        name: String,
        /// Also while somebody else has it.
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
        /// The volume.
        volume: VolumeId,
        /// The generation that is given back.
        generation: Generation,
        /// By its driver, which had waited for the leases of all older ones to end and answers nobody any more.
        #[serde(default)]
        settled: bool,
    },
    /// A node says what slices of secrets are to be sealed for, in its present start.
    NameHostKey {
        /// The node.
        node: NodeId,
        /// Its present start.
        start: StartNumber,
        /// Public half of its host key.
        key: HostPublic,
    },
    /// Makes another member the head of its shard's chain; it opens a view then. The others keep their order.
    MoveHead {
        /// The shard.
        shard: ShardId,
        /// The member that is to be head.
        node: NodeId,
    },
    /// The head of a shard can't go on, and `node` is to be head in its place, unless the shard has another head or
    /// another active view by now. The old head goes to the end of the chain.
    ReplaceHead {
        /// The shard.
        shard: ShardId,
        /// The head that can't go on.
        head: NodeId,
        /// The active view when that was noticed.
        active: ViewNumber,
        /// The member that is to be head.
        node: NodeId,
    },
    /// These nodes have failed, in the start in which they were last seen: where one is head, the next member becomes
    /// it, in all shards at once.
    FailOver {
        /// Each with the start in which it failed: a node that is back is left out.
        nodes: Vec<(NodeId, StartNumber)>,
    },
    /// The nodes of `gone` have been away for too long, in the start in which they were last seen: other nodes take
    /// their places, in as many shards as may be learned at a time. Those of `failed` take none.
    ReplaceMembers {
        /// Each with the start in which it was last seen: a node that is back is left out.
        gone: Vec<(NodeId, StartNumber)>,
        /// Each with the start in which it failed.
        failed: Vec<(NodeId, StartNumber)>,
    },
    /// Chains that are shorter than their volumes are to have them (rule V10) get another member each, as many as may be
    /// learned at a time.
    ExtendChains {
        /// Nodes that don't come, each with the start in which it is away: one that is back may come.
        away: Vec<(NodeId, StartNumber)>,
        /// Those of them whose places in chains that became shorter are kept for them (rule V13).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waited: Vec<(NodeId, StartNumber)>,
    },
    /// A node is to be emptied, or is not any more. `NoSpace` if a volume would have fewer copies then.
    DrainNode {
        /// The node.
        node: NodeId,
        /// False: it is a node as others again.
        drains: bool,
        /// The node that takes its places, wherever it can; `None`: who has least.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heir: Option<NodeId>,
    },
    /// A node that was emptied is to be taken out of the cluster: it gives its vote up first.
    RetireNode {
        /// The node.
        node: NodeId,
    },
    /// A node that retires, and has no seat in the control plane any more, is a member no more, for good. Given by the leader.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Nodes that are being emptied: others come to their chains, and where they have everything these leave, as many as may be
    /// learned at a time.
    DrainChains {
        /// Nodes that don't come, each with the start in which it is away: one that is back may come.
        away: Vec<(NodeId, StartNumber)>,
    },
    /// These nodes have failed: chains that can answer nothing without them become shorter, and those to which one of them was
    /// to come go on without it (rules V11, V14). Who goes on is found when this is applied.
    LeaveChains {
        /// Each with the start in which it failed: a node that is back is left out.
        failed: Vec<(NodeId, StartNumber)>,
        /// Only these, each if this is still its active view; empty for all.
        shards: Vec<(ShardId, ViewNumber)>,
    },
    /// These nodes have failed, and were silent for long enough: nodes to spare stand in for them where those that are left can go on
    /// without them (rule V21). Where that is so is found when this is applied.
    StandIn {
        /// Each with the start in which it failed: a node that is back is left out.
        failed: Vec<(NodeId, StartNumber)>,
        /// Others that don't come, each with the start in which it is away.
        away: Vec<(NodeId, StartNumber)>,
    },
    /// These members of the active view have everything (rule V7), as its head sees.
    MembersComplete {
        /// The shard.
        shard: ShardId,
        /// The active view, and the one of these very members; else it is `Fenced`.
        view: ViewNumber,
        /// Members that have everything.
        nodes: Vec<NodeId>,
    },
    /// A snapshot of these volumes, all at one instant. Asked again with the same name, volumes and time it is the same one.
    BeginSnapshot {
        /// New in each of the volumes; an attempt that has failed does not keep its name.
        name: String,
        /// Each once, at most `SNAPSHOT_VOLUMES_MAX`.
        volumes: Vec<VolumeId>,
        /// Milliseconds since 1970, by the clock of who asks.
        created_ms: u64,
        /// The place in their past that it is to be of; `None` for the present. One version is only of one shard.
        past: Option<Past>,
    },
    /// Heads have ordered the cuts of a snapshot, these are committed, and nothing is ordered behind them (rule S1). Those of
    /// views that are not active (any more) count for nothing.
    ReportCuts {
        /// The snapshot.
        snapshot: SnapshotId,
        /// At most `CUTS_OF_COMMAND_MAX`.
        cuts: Vec<(ShardId, Cut)>,
    },
    /// Heads have heard that all cuts of a snapshot are reported, and had ordered nothing behind their own until then.
    ConfirmCuts {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Each with the view of the cut; at most `CUTS_OF_COMMAND_MAX`.
        held: Vec<(ShardId, ViewNumber)>,
    },
    /// A snapshot can't be completed. Nothing happens if it is complete, or has failed.
    FailSnapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// For people; cut at `SNAPSHOT_WHY_BYTES_MAX`.
        why: String,
    },
    /// A volume loses a snapshot; other volumes of a group keep it. `Busy` while it is locked, or a clone of it has not begun.
    DeleteSnapshot {
        /// The volume.
        volume: VolumeId,
        /// Name of the snapshot.
        name: String,
        /// Milliseconds since 1970, by the clock of who asks.
        now_ms: u64,
    },
    /// A snapshot, with all volumes that it is of, is not deleted before a date. It can be made later only.
    LockSnapshot {
        /// One of its volumes.
        volume: VolumeId,
        /// Name of the snapshot.
        name: String,
        /// Milliseconds since 1970.
        until_ms: u64,
        /// Milliseconds since 1970, by the clock of who asks.
        now_ms: u64,
    },
    /// As `DeleteVolume`, with all snapshots that it has. `Busy` while one of them is locked.
    DeleteVolumeAndSnapshots {
        /// The volume.
        volume: VolumeId,
        /// Also while it is attached.
        #[serde(default)]
        force: bool,
        /// Milliseconds since 1970, by the clock of who asks.
        now_ms: u64,
    },
    /// An operator's word: so many members of a shard are lost for good that it can't go on by itself, and it goes on from
    /// what is left (rule V10). `Fenced` if anything of what was seen is another by now.
    RecoverShard(RecoverShard),
    /// One node may join. `Invalid` in a cluster without an authority.
    MakeToken {
        /// Hash of the token's secret.
        token: Hash32,
        /// Milliseconds since 1970, at most `TOKEN_MS_MAX` from now.
        expires_ms: u64,
        /// Milliseconds since 1970, by the clock of who asks.
        now_ms: u64,
    },
    /// A token makes a node a member. Asked again with the same key it is the same one.
    AddNode(NewNode),
    /// Tokens that nobody used are good for nothing any more; others are passed over.
    RevokeTokens {
        /// Hashes of their secrets, at most `TOKENS_MAX`.
        tokens: Vec<Hash32>,
    },
}

impl Command {
    /// True if it is about nodes that join or leave, and tokens: a node that is asked for such a thing holds it against its own clock,
    /// against the key of who asks, and against what the control plane can be without.
    #[must_use]
    pub fn is_about_joining(&self) -> bool {
        let leaves = matches!(self, Self::RetireNode { .. } | Self::RemoveNode { .. });
        leaves || matches!(self, Self::MakeToken { .. } | Self::AddNode(_) | Self::RevokeTokens { .. })
    }
}

/// A node that wants to be a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewNode {
    /// Hash of the token's secret.
    pub token: Hash32,
    /// Public half of the node's key. With the same one it may ask again.
    pub identity: HostPublic,
    /// Name for people, of no other node.
    pub name: String,
    /// Host and port, of no other node.
    pub address: String,
    /// Workers; 1, 2, 4 or 8.
    pub workers: u16,
    /// Milliseconds since 1970, by the clock of the node that was asked.
    pub now_ms: u64,
}

/// How a shard goes on without what is lost, and what was seen when that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverShard {
    /// The shard.
    pub shard: ShardId,
    /// The active view.
    pub active: ViewNumber,
    /// The active view can't be sealed as usual. If not set, nothing is lost, and only members are replaced.
    pub by_force: bool,
    /// The chain, head first.
    pub members: Vec<NodeId>,
    /// Nodes whose promises are enough, each with its present start.
    pub survivors: Vec<(NodeId, StartNumber)>,
    /// All other members of the view and of the chain, each with the start in which it is lost: one that is back is not.
    pub lost: Vec<(NodeId, StartNumber)>,
    /// The chain from then on. Its head is the survivor with the best log; behind those that stay come new members.
    pub chain: Vec<NodeId>,
    /// Where the best log ends, and the version there: nothing below is sealed.
    pub least: Sequence,
    /// See `least`; for people.
    pub version: Version,
    /// The highest committed frame that any answer named. If one names more by now, it has to be asked again.
    pub known: Sequence,
    /// Frames that the best log has lost in its middle, and that may be given up, or 1 if that was done before; 0 if it is
    /// whole. Else its node is the only one in the chain: nobody is to learn it before it is certain that it is what the
    /// shard goes on from.
    pub gives_up: u64,
    /// Logs of the lost members are known to be the same as the best one only up to this frame.
    pub same: Sequence,
    /// Members of the chain that know more than that to be committed: they learn everything, as new members do.
    pub learn: Vec<NodeId>,
}

/// What a command led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Of `RegisterNode`: node, address and start are known.
    Registered,
    /// Of `CreateVolume` and `CloneVolume`.
    Created {
        /// Number of the new volume.
        volume: VolumeId,
    },
    /// Of `DeleteVolume`, `DeleteVolumeAndSnapshots` and `DeleteSnapshot`.
    Deleted,
    /// Of `ResizeVolume`.
    Resized {
        /// Size in bytes from now on.
        size: u64,
    },
    /// The pending view, the active one that it follows, and the generation to put into its view frame (rule V6).
    Proposed {
        /// The pending view: above all that this shard ever had.
        view: ViewNumber,
        /// The active view, 0 for none.
        pred: ViewNumber,
        /// The volume's attachment generation.
        generation: Generation,
    },
    /// Of `ActivateView`, `ActivateBranch` and `ActivateClone`: from now on this view orders requests.
    Activated,
    /// Of `AttachVolume`.
    Attached {
        /// The new generation, above all that the volume ever had.
        generation: Generation,
        /// No driver of an earlier generation can hold a lease.
        #[serde(default)]
        alone: bool,
    },
    /// Of `DetachVolume`; a late one, of an older generation, has changed nothing.
    Detached,
    /// Of `NameHostKey` and `RenameVolume`.
    Named,
    /// Of `BeginSnapshot`.
    SnapshotBegun {
        /// Number of the snapshot.
        snapshot: SnapshotId,
    },
    /// Of `ReportCuts`, `ConfirmCuts`, `FailSnapshot`, `LockSnapshot`, `FlattenVolume`, `MakeToken` and `RevokeTokens`; late words have changed nothing.
    Noted,
    /// Of the commands that change members or heads: `MoveHead`, `ReplaceHead`, `FailOver`, `ReplaceMembers`,
    /// `ExtendChains`, `MembersComplete`, `RecoverShard`, `DrainNode`, `DrainChains`, `RetireNode`, `RemoveNode`.
    Moved,
    /// Of `AddNode`.
    Added {
        /// Number of the new node.
        node: NodeId,
    },
}

/// An outcome, and the revision of the state that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Revision of the state that has the outcome; a watcher that has seen it sees the outcome, too.
    pub revision: u64,
    /// The outcome of the command.
    #[serde(flatten)]
    pub outcome: Outcome,
}

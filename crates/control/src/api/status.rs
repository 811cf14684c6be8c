//! The cluster, its nodes, volumes and shards, as people and programs are shown them.

use super::GatewayInfo;
use crate::recover::LogStatus;
use crate::snapshots::{Cut, Schedule, Snapshot, SnapshotVolume, Stage};
use crate::spread::Move;
use crate::state::{Ack, Branch, Node, Origin, State, Volume};
use freebs_types::{
    ClusterId, Generation, Hash32, NodeId, Past, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use serde::{Deserialize, Serialize};

/// What a member does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// In the active view, and holds all of it.
    Active,
    /// In the active view, and catching up.
    Syncing,
    /// New, and learning what the others have.
    Joining,
    /// A view is being opened.
    Opening,
    /// Reading its log.
    Recovering,
    /// Out of space.
    Full,
    /// Its device failed, or its log is damaged.
    Failed,
    /// The node answers, and does not know the shard (yet).
    Missing,
    /// The node does not answer.
    Down,
}

impl MemberState {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Syncing => "syncing",
            Self::Joining => "joining",
            Self::Opening => "opening",
            Self::Recovering => "recovering",
            Self::Full => "full",
            Self::Failed => "failed",
            Self::Missing => "missing",
            Self::Down => "down",
        }
    }
}

/// One replica, as its node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The view it is in, 0 for none.
    pub view: ViewNumber,
    /// The head as it knows it, 0 for none.
    pub head: NodeId,
    /// Last version it holds.
    pub version: Version,
    /// Last sequence it holds.
    pub sequence: Sequence,
    /// Durable up to this sequence.
    pub durable: Sequence,
    /// Its state at the moment.
    pub state: MemberState,
    /// Generation of an attachment whose driver holds no lease of this member any more.
    #[serde(default)]
    pub lapsed: Option<Generation>,
    /// Versions that its log keeps for snapshots.
    #[serde(default)]
    pub pins: usize,
    /// Only of a head that can't open its view: what it waits for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Versions that are kept below this one are not all there, and can't be read of it; 0 if its history is whole.
    #[serde(default)]
    pub whole_from: Version,
    /// Set while it reads blocks from the shard that it was cloned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_from: Option<ReadsFrom>,
    /// Only of a head: the past that it keeps, version by version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<PastReport>,
    /// The part of its log that counts when the active view is left; `None` from nodes of an earlier version.
    #[serde(default)]
    pub log: Option<LogStatus>,
}

/// The past of a shard, as its head knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReport {
    /// The first version that is kept; each from there on is.
    pub first: Version,
    /// From when on it is known what was ordered when, milliseconds since 1970; `None` if that is not known yet.
    pub from_ms: Option<u64>,
    /// It is shorter than it should be, for want of memory.
    pub is_short: bool,
}

/// The place where a replica reads blocks that it does not have as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadsFrom {
    /// The shard that it was cloned from.
    pub shard: ShardId,
    /// The version of that one.
    pub version: Version,
}

/// Hash over a replica's contents at a version: equal for equal contents, whatever chunks they lie in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardDigest {
    /// The shard.
    pub shard: ShardId,
    /// The replica's view when it was asked; 0 for none.
    pub view: ViewNumber,
    /// The last version that is in the digest.
    pub version: Version,
    /// Hash over the contents at that version.
    pub digest: Hash32,
}

/// The cluster as `freebs status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// Revision of the control state that this was made from.
    pub revision: u64,
    /// All nodes, in order of their numbers.
    pub nodes: Vec<NodeStatus>,
    /// Gateways that announced themselves at nodes that answered.
    pub gateways: Vec<GatewayInfo>,
    /// All that there are.
    pub volumes: Vec<VolumeStatus>,
}

/// One node in `Status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's number.
    pub id: NodeId,
    /// Name for people, from the cluster file.
    pub name: String,
    /// None while the node does not answer.
    pub pid: Option<u32>,
    /// Where it is reached: host and port.
    pub address: String,
    /// `up` or `down`.
    pub state: String,
    /// Highest start number that it came with; 0 if it never ran.
    pub start: StartNumber,
    /// Workers, each with a device log of its own.
    pub workers: u16,
    /// Whether it leads the control plane.
    pub leads: bool,
    /// Whether it has a vote there.
    pub votes: bool,
    /// It is being emptied.
    #[serde(default)]
    pub drains: bool,
    /// Shards of which it has something that others need, or may.
    #[serde(default)]
    pub shards: u64,
    /// It is being taken out of the cluster, and waits for another one to have its vote.
    #[serde(default)]
    pub retires: bool,
    /// Its zone; empty for none.
    #[serde(default)]
    pub zone: String,
    /// How much of its room counts, in hundredths.
    #[serde(default)]
    pub weight: u16,
    /// Bytes that its logs take; 0 until that was measured.
    #[serde(default)]
    pub room_bytes: u64,
    /// Hundredths of them that live data took when it was last measured.
    #[serde(default)]
    pub used_percent: u8,
    /// Bytes that its copies would have if their volumes were written from end to end.
    #[serde(default)]
    pub placed_bytes: u64,
    /// Its copies of shards.
    #[serde(default)]
    pub copies: u64,
    /// Shards that it is to lead.
    #[serde(default)]
    pub heads: u64,
}

impl NodeStatus {
    /// A node by the control state; the rest is as of one that does not answer.
    #[must_use]
    pub fn new(state: &State, node: &Node) -> Self {
        let load = state.loads.of(node.id);
        Self {
            id: node.id,
            name: node.name.clone(),
            pid: None,
            address: node.address.clone(),
            state: "down".into(),
            start: node.start,
            workers: node.workers,
            leads: false,
            votes: false,
            drains: node.drains,
            shards: state.shards_at(node.id) as u64,
            retires: node.retires,
            zone: node.zone.clone(),
            weight: node.weight,
            room_bytes: node.room_bytes,
            used_percent: node.used_percent,
            placed_bytes: u64::try_from(load.bytes).unwrap_or(u64::MAX),
            copies: load.copies,
            heads: load.heads,
        }
    }
}

/// A copy or a head that is to be elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// Name of the volume.
    pub volume: String,
    /// Which of its shards, from 0.
    pub shard: u32,
    /// Name of the node that has it.
    pub from: String,
    /// Name of the node that is to have it.
    pub to: String,
}

impl MoveStatus {
    /// For people.
    #[must_use]
    pub fn new(state: &State, of: &Move) -> Self {
        let name = |n: NodeId| state.node(n).map_or_else(|| n.to_string(), |n| n.name.clone());
        let volume = state.volume(of.shard.volume).map_or_else(|| of.shard.volume.to_string(), |v| v.name.clone());
        Self { volume, shard: of.shard.index, from: name(of.from), to: name(of.to) }
    }
}

/// Whether a volume can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// All members of all shards are active.
    Ready,
    /// It can be used, and lacks copies.
    Degraded,
    /// It can't be written now: a head is missing, or too few copies are there.
    Paused,
}

impl VolumeState {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Paused => "paused",
        }
    }
}

/// One volume, as the CLI shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Number of the volume, never used twice.
    pub id: VolumeId,
    /// Name of the volume, unique in the cluster.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Copies that it was made with: the length that chains have if there are nodes enough.
    pub copies: u8,
    /// When a write is answered.
    pub ack: Ack,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Milliseconds of its past that are kept; 0 for none.
    #[serde(default)]
    pub retain_ms: u64,
    /// Ready, degraded or paused.
    pub state: VolumeState,
    /// Who has it attached.
    pub attached: Option<String>,
    /// Generation of the newest attachment, present or past; 0 before the first.
    #[serde(default)]
    pub generation: Generation,
    /// In the order of their index.
    pub shards: Vec<ShardReport>,
    /// Snapshots that it has.
    #[serde(default)]
    pub snapshots: usize,
    /// The snapshot that it was cloned from; `None` if it is no clone, or if that is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginStatus>,
    /// Snapshots that are made by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
}

/// The origin of a clone, as the CLI shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStatus {
    /// Name of the volume that it was cloned from; the last one that is known, if that was deleted.
    pub volume: String,
    /// Name of the snapshot, which may have been deleted.
    pub snapshot: String,
    /// Its members are to have all that they read from there as their own.
    pub flatten: bool,
}

impl OriginStatus {
    /// The words of a state on an origin.
    #[must_use]
    pub fn new(state: &State, origin: &Origin) -> Self {
        let now = state.volume(origin.volume).map(|v| v.name.clone());
        let volume = now.unwrap_or_else(|| origin.volume_name.clone());
        Self { volume, snapshot: origin.snapshot_name.clone(), flatten: origin.flatten }
    }
}

/// One snapshot, as the CLI shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Never used twice.
    pub id: SnapshotId,
    /// Its name in each of its volumes.
    pub name: String,
    /// Milliseconds since 1970, by the clock of the node that was asked for it.
    pub created_ms: u64,
    /// The place in the past that it is of; `None` if it is of the time when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Past>,
    /// How far it is: `gathering`, `decided`, `complete` or `failed`.
    #[serde(flatten)]
    pub stage: Stage,
    /// Not deleted before this time, milliseconds since 1970; 0 if it may be.
    pub locked_until_ms: u64,
    /// In the order of their numbers.
    pub volumes: Vec<SnapshotOf>,
}

/// A volume in `SnapshotStatus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOf {
    /// Name of the volume.
    pub name: String,
    /// Its size in the snapshot, bytes.
    pub size: u64,
    /// View, version and sequence at which each shard is cut, by index; empty in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Option<Cut>>,
}

impl SnapshotStatus {
    /// The words of a state on a snapshot; with its cuts, or without.
    #[must_use]
    pub fn new(state: &State, snapshot: &Snapshot, with_cuts: bool) -> Self {
        let name = |id: VolumeId| state.volume(id).map_or_else(|| id.to_string(), |v| v.name.clone());
        let of = |v: &SnapshotVolume| SnapshotOf {
            name: name(v.volume),
            size: v.size,
            cuts: if with_cuts { v.cuts.clone() } else { Vec::new() },
        };
        Self {
            id: snapshot.id,
            name: snapshot.name.clone(),
            created_ms: snapshot.created_ms,
            past: snapshot.past,
            stage: snapshot.stage.clone(),
            locked_until_ms: snapshot.locked_until_ms,
            volumes: snapshot.volumes.iter().map(of).collect(),
        }
    }
}

/// One shard in `VolumeStatus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Volume and index, as in `1.0`.
    pub id: String,
    /// The active view, 0 before the first.
    pub view: ViewNumber,
    /// Name of the head.
    pub head: String,
    /// The chain, head first.
    pub members: Vec<MemberReport>,
    /// Names of members that are not known to have everything yet: they learn it from the others (rule V7).
    #[serde(default)]
    pub joining: Vec<String>,
    /// Names of nodes whose places were given to others, and that keep all they have while somebody is joining.
    #[serde(default)]
    pub keepers: Vec<String>,
    /// Names of nodes that left its chain because it could answer nothing with them in it, or were to come to it and failed: they
    /// keep what they have, which may not be all that was written until then, and come back before others (rule V13).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<String>,
    /// Name of the member whose copy is being moved to another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<String>,
    /// If its head can't open its view: what it waits for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// It was decided that it goes on by force (`freebs volume recover`), and no view is active yet that does.
    #[serde(default)]
    pub forced: bool,
    /// Names of the survivors whose promises that needs and who don't answer, or can't give one: it waits for them.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Where it last went on by force: what only lost members had there is lost. `None` if it never did.
    #[serde(default)]
    pub branch: Option<Branch>,
    /// The past that it keeps; `None` if it keeps none, or its head does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<PastReport>,
}

/// One replica in `ShardReport`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Name of the node.
    pub node: String,
    /// Last version that it holds; 0 if its node does not answer.
    pub version: Version,
    /// Versions that it keeps for snapshots; 0 if its node does not answer.
    #[serde(default)]
    pub pins: usize,
    /// Those below this version are not all there, and can't be read of it; 0 if its history is whole.
    #[serde(default)]
    pub whole_from: Version,
    /// It reads blocks from the volume that this one was cloned from. False if its node does not answer.
    #[serde(default)]
    pub reads_from_parent: bool,
    /// Its state at the moment.
    pub state: MemberState,
}

/// What `freebs volume verify` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Name of the volume.
    pub volume: String,
    /// All replicas of all shards answered and agree.
    pub agree: bool,
    /// In the order of their index.
    pub shards: Vec<ShardVerification>,
}

/// One shard in `Verification`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardVerification {
    /// Volume and index, as in `1.0`.
    pub id: String,
    /// All its replicas answered, at the same version and with the same digest.
    pub agree: bool,
    /// Why not, for people; empty if they agree.
    pub problem: String,
    /// One per member.
    pub replicas: Vec<ReplicaDigest>,
}

/// One replica in `ShardVerification`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDigest {
    /// Name of the node.
    pub node: String,
    /// Version of the digest; `None` if there is none.
    pub version: Option<Version>,
    /// Hash over the contents; `None` if there is none.
    pub digest: Option<Hash32>,
    /// Why there is none.
    pub error: Option<String>,
}

impl VolumeStatus {
    /// What the control state says of a volume; members come from their nodes.
    #[must_use]
    pub fn new(volume: &Volume, state: VolumeState, shards: Vec<ShardReport>) -> Self {
        Self {
            id: volume.id,
            name: volume.name.clone(),
            size: volume.size,
            copies: volume.copies,
            ack: volume.ack,
            min_copies: volume.min_copies,
            retain_ms: volume.retain_ms,
            stripe: volume.stripe,
            state,
            attached: volume.holder.as_ref().map(|h| h.name.clone()),
            generation: volume.generation,
            shards,
            snapshots: 0,
            origin: None,
            schedule: volume.schedule.clone(),
        }
    }
}

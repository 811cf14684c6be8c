//! Requests to a node and their replies, as JSON in the bodies of control messages. Field names are stable.
//!
//! A reply body is `{"ok": …}` or `{"error": {"kind": …, "text": …}}`. The kind is API, the text is for people.

use crate::audit::{AuditOf, AuditState};
use crate::changes::Changes;
use crate::cluster_file::ClusterPeer;
use crate::command::{Command, CreateVolume, Done};
use crate::events::Event;
use crate::recover::{LogStatus, Recovery};
use crate::snapshots::{Cut, Schedule, Snapshot, SnapshotVolume, Stage};
use crate::state::{Ack, Branch, Origin, State, Volume};
use core::fmt;
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, Hash32, HostPublic, NodeId, Past, Result, Sequence, ShardId, SnapshotId,
    StartNumber, Version, ViewNumber, VolumeId,
};
use serde::{Deserialize, Serialize};

/// What can be asked of any node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The whole cluster.
    Status,
    /// Makes a volume; the reply is a `Volume`.
    VolumeCreate(CreateVolume),
    /// Makes a volume of a snapshot; the reply is a `Volume`.
    VolumeClone {
        /// Name of a volume of the snapshot.
        volume: String,
        /// Name of the snapshot, which is complete.
        snapshot: String,
        /// Name of the new volume; one that another volume has is `Invalid`.
        name: String,
    },
    /// A clone gets what its members read from the volume that it was cloned from as its own, in the background; the reply is
    /// a `Volume`. `Invalid` if it is no clone.
    VolumeFlatten {
        /// Name of the volume.
        name: String,
    },
    /// Lists all volumes, with the state of their members.
    VolumeList,
    /// One volume, with the state of its members; the reply is a `Volume`.
    VolumeShow {
        /// Name of the volume.
        name: String,
    },
    /// Makes a volume larger; the reply is a `Volume`.
    VolumeResize {
        /// Name of the volume.
        name: String,
        /// New size in bytes; below the present one it is `Invalid`.
        size: u64,
    },
    /// So much of a volume's past is kept from now on; the reply is a `Volume`.
    VolumeRetain {
        /// Name of the volume.
        name: String,
        /// Milliseconds; 0 for none.
        retain_ms: u64,
    },
    /// Gives a volume another name, also while it is attached; the reply is a `Volume`.
    VolumeRename {
        /// Name of the volume.
        name: String,
        /// The new name; one that another volume has is `Invalid`.
        to: String,
    },
    /// Makes a member the head of all shards of a volume that it is a member of, or of one of them.
    VolumeMoveHead {
        /// Name of the volume.
        name: String,
        /// Name of the node.
        node: String,
        /// Index of the shard; `None` for all in which the node is a member.
        #[serde(default)]
        shard: Option<u32>,
    },
    /// Deletes a volume and what its members have of it; the reply is `Deleted`.
    VolumeDelete {
        /// Name of the volume.
        name: String,
        /// Also while it is attached: its driver gets errors from then on.
        #[serde(default)]
        force: bool,
        /// Also if it has snapshots, none of which is locked: they go with it.
        #[serde(default)]
        with_snapshots: bool,
    },
    /// Makes a snapshot of volumes, all at one instant; the reply is a `Snapshot`, which is complete.
    SnapshotCreate {
        /// Names of the volumes, each once.
        volumes: Vec<String>,
        /// The name that it is to have in each of them; `None` for one made of the time.
        #[serde(default)]
        name: Option<String>,
        /// The place in their past that it is to be of; `None` for the present.
        #[serde(default)]
        past: Option<Past>,
    },
    /// Lists snapshots, with those that are being made, and for a while those that have failed.
    SnapshotList {
        /// Only of this volume; `None` for all.
        #[serde(default)]
        volume: Option<String>,
        /// Numbers of the page before end with this one; 0 for the first page.
        #[serde(default)]
        after: SnapshotId,
    },
    /// One snapshot, with the versions that its shards keep; the reply is a `Snapshot`.
    SnapshotShow {
        /// Name of one of its volumes.
        volume: String,
        /// Name of the snapshot.
        name: String,
    },
    /// Deletes a snapshot of a volume; others that it is of keep it. The reply is `Deleted`.
    SnapshotDelete {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot.
        name: String,
    },
    /// Snapshots of a volume are made by themselves from now on, or are not any more; the reply is the `Volume`.
    SnapshotSchedule {
        /// Name of the volume.
        volume: String,
        /// When, and which of them stay; `None` for no schedule.
        schedule: Option<Schedule>,
    },
    /// A snapshot, with all volumes that it is of, is not deleted before a date; the reply is a `Snapshot`.
    SnapshotLock {
        /// Name of one of its volumes.
        volume: String,
        /// Name of the snapshot.
        name: String,
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// Ends the attachment of a volume, from whatever node: its driver can't answer anybody from then on. The reply is
    /// `Detached`, or `Busy` if the driver is there and this is not forced.
    VolumeDetach {
        /// Name of the volume.
        name: String,
        /// Also while its driver is there.
        #[serde(default)]
        force: bool,
    },
    /// Whether all replicas hold the same; waits up to `wait_ms` for them to be at the same version.
    VolumeVerify {
        /// Name of the volume.
        name: String,
        /// Milliseconds; 0 compares the replicas as they are.
        #[serde(default)]
        wait_ms: u64,
    },
    /// Which shards of a volume can go on by force only, and what that costs; does it if the loss is accepted.
    VolumeRecover {
        /// Name of the volume.
        name: String,
        /// An operator's word that the lost members are lost for good: the `word` of the answer that he was shown. If anything
        /// of that is another by now nothing is decided, and the answer says how it is.
        #[serde(default)]
        accept_loss: Option<String>,
    },
    /// This node only.
    NodeInfo,
    /// Others take the places of a node from now on, or do not any more; asked again it says how far that is. The reply is
    /// `Draining`. `NoSpace` if a volume would have fewer copies.
    NodeDrain {
        /// Name of the node.
        name: String,
        /// False: it is a node as others again.
        drains: bool,
        /// Name of the node that takes its places, wherever it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heir: Option<String>,
    },
    /// A node that was emptied is taken out of the cluster for good; the reply is `Removed`. `Busy` if it has anything that others
    /// need, `Invalid` if the control plane can't be without it.
    NodeRemove {
        /// Name of the node.
        name: String,
    },
    /// A token with which one node can join; the reply is a `Token`. `Invalid` in a cluster without an authority.
    TokenCreate {
        /// Milliseconds that it is good for, at most `TOKEN_MS_MAX`.
        valid_ms: u64,
    },
    /// The tokens that the cluster knows; the reply is `Tokens`.
    TokenList,
    /// Ends tokens that nobody used; the reply is `Revoked`.
    TokenRevoke {
        /// The first digits of the hash of one, or `all`.
        of: String,
    },
    /// A node wants to be a member; the reply is `Joined`.
    Join(JoinRequest),
    /// Answers when the state's revision is not `since` (any more), or after `timing::WATCH_MS` with nothing new.
    Watch {
        /// The revision that the watcher has; 0 for none.
        since: u64,
    },
    /// A command of the control plane (register, propose, activate, attach, detach, and those behind `Volume…`).
    Submit {
        /// The command to replicate. The reply is `Done`, or the error that the state gave for it.
        command: Command,
    },
    /// A gateway says that it is there, for as long as this connection lasts.
    Announce(GatewayInfo),
    /// This node's shards, behind `after`, of one volume if one is named.
    ShardStatus {
        /// Only shards of this volume; `None` for all.
        #[serde(default)]
        volume: Option<VolumeId>,
        /// The last shard of the page before; `None` for the first page.
        #[serde(default)]
        after: Option<ShardId>,
    },
    /// The digest of this node's replica of a shard, as of now.
    ShardDigest {
        /// One that this node has a replica of; others are an error.
        shard: ShardId,
    },
    /// The head of a shard asks the head of another one about an interval over both; the reply is an `Interval`. `Retry` if
    /// the shard's head is not on this node, or can't say it now.
    IntervalAsk(IntervalQuestion),
    /// What happened.
    Events(EventsOf),
    /// Begins the audit of a replica's hash chain, or asks how far it is.
    ShardAudit {
        /// Name of the node; `None` for the one that is asked.
        #[serde(default)]
        node: Option<String>,
        /// Which audit.
        audit: AuditOf,
    },
}

/// Which events are asked for: the newest ones, at most `EVENTS_PAGE_MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsOf {
    /// Events at most; more than `EVENTS_PAGE_MAX` counts as that.
    pub limit: usize,
    /// Not before this time, milliseconds since 1970.
    #[serde(default)]
    pub since_ms: u64,
    /// Only of this volume.
    #[serde(default)]
    pub volume: Option<String>,
    /// Only told by this node, or about it.
    #[serde(default)]
    pub node: Option<String>,
    /// Only what this very node has; else it asks the others, too.
    #[serde(default)]
    pub here: bool,
}

impl EventsOf {
    /// True if an event is one of those that are asked for. `limit` and `here` are not looked at.
    #[must_use]
    pub fn takes(&self, e: &Event) -> bool {
        let volume = self.volume.is_none() || e.told.volume == self.volume;
        let node = self.node.as_ref().is_none_or(|n| e.node == *n || e.told.about.as_ref() == Some(n));
        e.time_ms >= self.since_ms && volume && node
    }
}

/// The good half of an answer: which variant it is follows from the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To `Status`.
    Status(Status),
    /// A volume that was created, cloned, shown, or changed; `notes` are sentences for people.
    Volume {
        /// The volume as it is after the request.
        volume: VolumeStatus,
        /// Sentences for people, such as a warning about the number of copies.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// To `VolumeList`.
    Volumes {
        /// All that there are.
        volumes: Vec<VolumeStatus>,
    },
    /// To `VolumeDelete`: the control state has it no more.
    Deleted,
    /// To `SnapshotCreate`, `SnapshotShow` and `SnapshotLock`.
    Snapshot(SnapshotStatus),
    /// To `SnapshotList`: one page, in the order in which they were begun.
    Snapshots {
        /// Without the versions of their shards.
        snapshots: Vec<SnapshotStatus>,
        /// There is another page behind the last of these.
        more: bool,
    },
    /// To `VolumeDetach`: nobody has it any more.
    Detached {
        /// Name of the holder that had it; `None` if nobody did.
        from: Option<String>,
        /// The volume's generation while it was attached.
        generation: Generation,
    },
    /// To `VolumeVerify`.
    Verified(Verification),
    /// To `VolumeRecover`.
    Recovery(Recovery),
    /// To `NodeInfo`.
    Node(NodeInfo),
    /// To `TokenCreate`.
    Token {
        /// The token.
        token: Secret,
        /// The end of it, milliseconds since 1970.
        expires_ms: u64,
    },
    /// To `TokenList`, the oldest first.
    Tokens {
        /// Without their secrets.
        tokens: Vec<TokenStatus>,
    },
    /// To `TokenRevoke`.
    Revoked {
        /// The ids of those that it ended.
        tokens: Vec<String>,
        /// Those that were used before it could end them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        used: Vec<TokenStatus>,
    },
    /// To `Join`.
    Joined(Joined),
    /// To `NodeDrain`.
    Draining(DrainStatus),
    /// To `NodeRemove`.
    Removed {
        /// Number of the node, which no other one gets.
        node: NodeId,
    },
    /// To `Watch`.
    Changes(Changes),
    /// To `Submit`.
    Done(Done),
    /// To `Announce`: it counts from now on.
    Announced,
    /// To `ShardStatus`: one page of them.
    Shards {
        /// In order of volume and index.
        shards: Vec<ShardStatus>,
        /// There is another page: ask with the last shard of this one.
        more: bool,
    },
    /// To `ShardDigest`.
    Digest(ShardDigest),
    /// To `IntervalAsk`.
    Interval(IntervalAnswer),
    /// To `ShardAudit`.
    Audit(AuditState),
    /// Oldest first.
    Events {
        /// Those that were asked for.
        events: Vec<Event>,
        /// Nodes that did not answer: what they alone noticed is missing.
        #[serde(default)]
        missing: Vec<String>,
    },
}

/// A text that is not for logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A node that wants to be a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token that it was given.
    pub token: Secret,
    /// Public half of its key.
    pub identity: HostPublic,
    /// Name for people.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Workers.
    pub workers: u16,
    /// The number that it has already: it has lost its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<NodeId>,
    /// Signature of the claim by that key.
    pub proof: Vec<u8>,
}

impl JoinRequest {
    /// The bytes that are signed: all that is asked for, with the hash of the token in place of it.
    #[must_use]
    pub fn claim(&self, token: Hash32) -> Vec<u8> {
        let mut out = b"freebs 2026-11 join".to_vec();
        out.extend(token.0);
        out.extend(self.identity.0);
        out.extend(self.workers.to_le_bytes());
        for text in [&self.name, &self.address] {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        out
    }
}

/// A token, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStatus {
    /// The first digits of its hash.
    pub id: String,
    /// Milliseconds since 1970, by the clock of the node that made it.
    pub made_ms: u64,
    /// The end of it, milliseconds since 1970.
    pub expires_ms: u64,
    /// Name of the node that came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
}

/// How far a node is emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// Name of the node.
    pub node: String,
    /// It is being emptied.
    pub drains: bool,
    /// Shards of which it has something that others need, or may.
    pub shards: u64,
}

/// A node that is a member from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its number.
    pub node: NodeId,
    /// The others.
    pub peers: Vec<ClusterPeer>,
    /// The node's certificate, in hexadecimal digits.
    pub certificate: String,
}

/// A gateway, or a node that serves NBD itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayInfo {
    /// Name for people: the node's, or the one that the gateway was started with.
    pub name: String,
    /// Number of its process on its host.
    pub pid: u32,
    /// Where it serves NBD: `127.0.0.1:10809` or `unix:/path`.
    pub nbd: String,
    /// Name of its host, for people; empty if it did not say.
    #[serde(default)]
    pub host: String,
}

/// A node of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node's number.
    pub id: NodeId,
    /// Name for people, from the cluster file.
    pub name: String,
    /// The cluster that its data belong to.
    pub cluster: ClusterId,
    /// Number of its process on its host.
    pub pid: u32,
    /// Where peers, drivers and the CLI reach it: host and port.
    pub address: String,
    /// Its present start: the higher one is the newer process.
    pub start: StartNumber,
    /// Workers, each with a device log of its own.
    pub workers: u16,
    /// Revision of the control state it knows.
    pub revision: u64,
    /// Whether it leads the control plane.
    pub leads: bool,
    /// Whether it has a vote there.
    pub votes: bool,
    /// Gateways that announced themselves here.
    pub gateways: Vec<GatewayInfo>,
    /// Version of the program.
    pub version: String,
}

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

/// A question about an interval over several shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalQuestion {
    /// The shard that is asked.
    pub at: ShardId,
    /// The shard that decides.
    pub decider: ShardId,
    /// The driver that has the deciding shard's volume.
    pub driver: u64,
    /// That driver's number of the attempt.
    pub number: u64,
    /// How did it end? Else: is it over here?
    pub decides: bool,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalAnswer {
    /// It counts.
    Committed,
    /// It does not count, and never will.
    Aborted,
    /// It waits for its outcome here, or that is not committed.
    Open,
    /// Nothing of it waits here any more.
    Over,
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

/// The bad half of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// The kind, which says what the asker is to do. API.
    pub kind: ErrorKind,
    /// Where and why, for people. Not API.
    pub text: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Envelope {
    Ok(Box<Reply>),
    Error(ApiError),
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("requests and replies have only what JSON can say")
}

impl Request {
    /// Whether it is about a volume that it names.
    #[must_use]
    pub fn names_volume(&self) -> bool {
        matches!(
            self,
            Self::VolumeShow { .. }
                | Self::VolumeClone { .. }
                | Self::VolumeFlatten { .. }
                | Self::VolumeResize { .. }
                | Self::VolumeRename { .. }
                | Self::VolumeRetain { .. }
                | Self::VolumeMoveHead { .. }
                | Self::VolumeDelete { .. }
                | Self::VolumeDetach { .. }
                | Self::VolumeVerify { .. }
                | Self::VolumeRecover { .. }
                | Self::SnapshotCreate { .. }
                | Self::SnapshotList { .. }
                | Self::SnapshotShow { .. }
                | Self::SnapshotDelete { .. }
                | Self::SnapshotLock { .. }
                | Self::SnapshotSchedule { .. }
        )
    }

    /// The JSON of the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json(self)
    }

    /// The request that this JSON says; `Invalid` if it says none.
    pub fn decode(body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body)
            .map_err(|e| Error::invalid(format!("a control request can't be understood (is one side newer?): {e}")))
    }
}

impl Reply {
    /// The JSON of an answer, good or bad.
    #[must_use]
    pub fn encode(result: Result<Self>) -> Vec<u8> {
        json(&match result {
            Ok(reply) => Envelope::Ok(Box::new(reply)),
            Err(e) => Envelope::Error(ApiError { kind: e.kind, text: e.text.into_owned() }),
        })
    }

    /// The answer that this JSON says: the reply, or the error that was sent. `Invalid` if it says neither.
    pub fn decode(body: &[u8]) -> Result<Self> {
        match serde_json::from_slice(body) {
            Ok(Envelope::Ok(reply)) => Ok(*reply),
            Ok(Envelope::Error(e)) => Err(Error { kind: e.kind, text: e.text.into() }),
            Err(e) => Err(Error::invalid(format!("a control reply can't be understood (is one side newer?): {e}"))),
        }
    }
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

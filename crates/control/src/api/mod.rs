//! Requests to a node and their replies, as JSON in the bodies of control messages. Field names are stable.
//!
//! A reply body is `{"ok": …}` or `{"error": {"kind": …, "text": …}}`. The kind is API, the text is for people.

mod status;

pub use status::{
    MemberReport, MemberState, MoveStatus, NodeStatus, OriginStatus, PastReport, ReadsFrom, ReplicaDigest, ShardDigest,
    ShardReport, ShardStatus, ShardVerification, SnapshotOf, SnapshotStatus, Status, Verification, VolumeState,
    VolumeStatus,
};

use crate::audit::{AuditOf, AuditState};
use crate::changes::Changes;
use crate::cluster_file::ClusterPeer;
use crate::command::{Command, CreateVolume, Done};
use crate::events::Event;
use crate::recover::Recovery;
use crate::snapshots::Schedule;
use core::fmt;
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, Hash32, HostPublic, NodeId, Past, Result, ShardId, SnapshotId,
    StartNumber, VolumeId,
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
    /// The zone of a node, and how much of its room counts; what is left out stays. The reply is `Placed`.
    NodePlace {
        /// Name of the node.
        name: String,
        /// A name; empty for none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
        /// Hundredths, at most `WEIGHT_MAX`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<u16>,
    },
    /// The copies and heads that would have to move for all nodes to have their part; the reply is `Spread`. `avoid`: nodes that
    /// neither give nor get any.
    SpreadPlan {
        /// Names of nodes.
        #[serde(default)]
        avoid: Vec<String>,
    },
    /// A copy of a shard moves to another node, which learns everything first; the reply is the `Volume`.
    VolumeMoveCopy {
        /// Name of the volume.
        name: String,
        /// Which shard, from 0.
        shard: u32,
        /// Name of the node that has it.
        from: String,
        /// Name of the node that gets it.
        to: String,
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
    /// To `NodePlace`.
    Placed {
        /// The node as it is now.
        node: NodeStatus,
    },
    /// To `SpreadPlan`: at most `MOVES_MAX` of each.
    Spread {
        /// In the order in which they are to be made.
        copies: Vec<MoveStatus>,
        /// The same; for the chains as they are now.
        heads: Vec<MoveStatus>,
    },
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
                | Self::VolumeMoveCopy { .. }
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

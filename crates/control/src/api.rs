//! Requests to a node and their replies, as JSON in the bodies of control messages. Field names are stable.
//!
//! A reply body is `{"ok": …}` or `{"error": {"kind": …, "text": …}}`. The kind is API, the text is for people.

use crate::changes::Changes;
use crate::command::{Command, CreateVolume, Done};
use crate::events::Event;
use crate::state::{Ack, Volume};
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, Hash32, NodeId, Result, Sequence, ShardId, StartNumber, Version,
    ViewNumber, VolumeId,
};
use serde::{Deserialize, Serialize};

/// What can be asked of any node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The whole cluster.
    Status,
    VolumeCreate(CreateVolume),
    VolumeList,
    VolumeShow {
        name: String,
    },
    VolumeResize {
        name: String,
        size: u64,
    },
    /// Makes a member the head of all shards of a volume that it is a member of, or of one of them.
    VolumeMoveHead {
        name: String,
        /// Name of the node.
        node: String,
        #[serde(default)]
        shard: Option<u32>,
    },
    VolumeDelete {
        name: String,
        #[serde(default)]
        force: bool,
    },
    /// Whether all replicas hold the same; waits up to `wait_ms` for them to be at the same version.
    VolumeVerify {
        name: String,
        #[serde(default)]
        wait_ms: u64,
    },
    /// This node only.
    NodeInfo,
    /// Answers when the state's revision is not `since` (any more), or after `WATCH_MS` with nothing new.
    Watch {
        since: u64,
    },
    /// A command of the control plane (register, propose, activate, attach, detach, and those behind `Volume…`).
    Submit {
        command: Command,
    },
    /// A gateway says that it is there, for as long as this connection lasts.
    Announce(GatewayInfo),
    /// This node's shards, behind `after`, of one volume if one is named.
    ShardStatus {
        #[serde(default)]
        volume: Option<VolumeId>,
        #[serde(default)]
        after: Option<ShardId>,
    },
    /// The digest of this node's replica of a shard, as of now.
    ShardDigest {
        shard: ShardId,
    },
    /// What happened.
    Events(EventsOf),
}

/// Which events are asked for: the newest ones, at most `EVENTS_PAGE_MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsOf {
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
    #[must_use]
    pub fn takes(&self, e: &Event) -> bool {
        let volume = self.volume.is_none() || e.told.volume == self.volume;
        let node = self.node.as_ref().is_none_or(|n| e.node == *n || e.told.about.as_ref() == Some(n));
        e.time_ms >= self.since_ms && volume && node
    }
}

/// How long a `Watch` waits before it answers with nothing new.
pub const WATCH_MS: u64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Status(Status),
    /// A volume that was created, shown, or resized; `notes` are sentences for people.
    Volume {
        volume: VolumeStatus,
        #[serde(default)]
        notes: Vec<String>,
    },
    Volumes {
        volumes: Vec<VolumeStatus>,
    },
    Deleted,
    Verified(Verification),
    Node(NodeInfo),
    Changes(Changes),
    Done(Done),
    Announced,
    Shards {
        shards: Vec<ShardStatus>,
        more: bool,
    },
    Digest(ShardDigest),
    /// Oldest first.
    Events {
        events: Vec<Event>,
        /// Nodes that did not answer: what they alone noticed is missing.
        #[serde(default)]
        missing: Vec<String>,
    },
}

/// A gateway, or a node that serves NBD itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayInfo {
    pub name: String,
    pub pid: u32,
    /// Where it serves NBD: `127.0.0.1:10809` or `unix:/path`.
    pub nbd: String,
}

/// A node of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub id: NodeId,
    pub name: String,
    pub cluster: ClusterId,
    pub pid: u32,
    pub address: String,
    pub start: StartNumber,
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
    pub state: MemberState,
    /// Generation of an attachment whose driver holds no lease of this member any more.
    #[serde(default)]
    pub lapsed: Option<Generation>,
}

/// Hash over a replica's contents at a version: equal for equal contents, whatever chunks they lie in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardDigest {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub version: Version,
    pub digest: Hash32,
}

/// The cluster as `freebs status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub cluster: ClusterId,
    pub revision: u64,
    pub nodes: Vec<NodeStatus>,
    pub gateways: Vec<GatewayInfo>,
    pub volumes: Vec<VolumeStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    pub name: String,
    /// None while the node does not answer.
    pub pid: Option<u32>,
    pub address: String,
    /// `up` or `down`.
    pub state: String,
    pub start: StartNumber,
    pub workers: u16,
    /// Whether it leads the control plane.
    pub leads: bool,
    /// Whether it has a vote there.
    pub votes: bool,
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
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Paused => "paused",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    pub id: VolumeId,
    pub name: String,
    pub size: u64,
    pub copies: u8,
    pub ack: Ack,
    pub min_copies: u8,
    pub stripe: u64,
    pub state: VolumeState,
    /// Who has it attached.
    pub attached: Option<String>,
    pub shards: Vec<ShardReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Volume and index, as in `1.0`.
    pub id: String,
    /// The active view, 0 before the first.
    pub view: ViewNumber,
    /// Name of the head.
    pub head: String,
    pub members: Vec<MemberReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Name of the node.
    pub node: String,
    pub version: Version,
    pub state: MemberState,
}

/// What `freebs volume verify` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    pub volume: String,
    /// All replicas of all shards answered and agree.
    pub agree: bool,
    pub shards: Vec<ShardVerification>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardVerification {
    pub id: String,
    pub agree: bool,
    /// Why not, for people; empty if they agree.
    pub problem: String,
    pub replicas: Vec<ReplicaDigest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDigest {
    pub node: String,
    pub version: Option<Version>,
    pub digest: Option<Hash32>,
    /// Why there is none.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    pub kind: ErrorKind,
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
                | Self::VolumeResize { .. }
                | Self::VolumeMoveHead { .. }
                | Self::VolumeDelete { .. }
                | Self::VolumeVerify { .. }
        )
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json(self)
    }

    pub fn decode(body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body)
            .map_err(|e| Error::invalid(format!("a control request can't be understood (is one side newer?): {e}")))
    }
}

impl Reply {
    #[must_use]
    pub fn encode(result: Result<Self>) -> Vec<u8> {
        json(&match result {
            Ok(reply) => Envelope::Ok(Box::new(reply)),
            Err(e) => Envelope::Error(ApiError { kind: e.kind, text: e.text.into_owned() }),
        })
    }

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
            stripe: volume.stripe,
            state,
            attached: volume.holder.as_ref().map(|h| h.name.clone()),
            shards,
        }
    }
}

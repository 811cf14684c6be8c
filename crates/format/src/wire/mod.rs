//! Messages between drivers and members, among members, and for control.
//!
//! A message is a fixed header, a meta part (structs and tables, under the header's checksum) and a payload (data
//! blocks, each under a CRC of its own that travels in the meta part, and control bodies). In memory a message is
//! the enum `Message`; links inside a process pass it as it is, sockets encode it.

mod decode;
mod encode;
mod structs;

pub use structs::*;

use crate::{Extent, ExtentKind, Frame, UpdateKind, ViewBody};
use bytes::Bytes;
use freebs_types::{
    BlockRange, ClusterId, DriverId, Error, ErrorKind, Generation, Hash32, HostPublic, Nanos, NodeId, RequestNumber,
    SealedSlice, Sequence, ShardId, Slice, StartNumber, ViewNumber,
};

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    Node = 1,
    Driver = 2,
    Control = 3,
    /// A node's seat in the control plane.
    Seat = 4,
}

/// First message of who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub cluster: ClusterId,
    pub role: Role,
    /// The connecting node (0 for others) and its worker and start number.
    pub node: NodeId,
    pub start: StartNumber,
    pub from_worker: u16,
    /// The worker that is wanted; taken modulo the number of workers.
    pub to_worker: u16,
}

/// The answer to `Hello`. Roles other than `Control` are refused when the cluster differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub start: StartNumber,
    pub worker: u16,
    pub workers: u16,
}

/// A driver's write, trim or zero.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub generation: Generation,
    pub driver: DriverId,
    pub number: RequestNumber,
    pub lowest_open: RequestNumber,
    pub kind: UpdateKind,
    pub extents: Vec<Extent>,
    /// One per data block.
    pub crcs: Vec<u32>,
    pub data: Vec<Bytes>,
}

/// A driver's read or question for block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub generation: Generation,
    /// Chosen by the driver, returned with the answer.
    pub id: u64,
    /// The member's durable sequence in that view must reach this (R1).
    pub floor: Sequence,
    pub range: BlockRange,
    /// Only what is where, without data.
    pub status_only: bool,
}

/// A run of blocks of one kind in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub kind: ExtentKind,
    pub blocks: u32,
}

/// The answer to a read.
#[derive(Clone, Debug)]
pub struct ReadReply {
    pub shard: ShardId,
    pub id: u64,
    pub pieces: Vec<Piece>,
    /// One per data block (none if only the status was asked for).
    pub crcs: Vec<u32>,
    pub data: Vec<Bytes>,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Refusal {
    /// The request names another view; the current one follows in a `View` message or is in `view`.
    WrongView = 1,
    /// A newer generation exists.
    Fenced = 2,
    /// Somebody else uses the volume.
    Busy = 3,
    /// Not now (view change, recovery, catching up); ask again or elsewhere.
    NotReady = 4,
    NoSpace = 5,
    Corrupt = 6,
    DeviceFailed = 7,
    NotFound = 8,
    Invalid = 9,
}

impl Refusal {
    pub fn from_byte(b: u8) -> Option<Self> {
        [
            Self::WrongView,
            Self::Fenced,
            Self::Busy,
            Self::NotReady,
            Self::NoSpace,
            Self::Corrupt,
            Self::DeviceFailed,
            Self::NotFound,
            Self::Invalid,
        ]
        .into_iter()
        .find(|r| *r as u8 == b)
    }

    pub fn of(error: &Error) -> Self {
        match error.kind {
            ErrorKind::Retry | ErrorKind::Os | ErrorKind::Bug => Self::NotReady,
            ErrorKind::Fenced => Self::Fenced,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::DeviceFailed => Self::DeviceFailed,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Invalid => Self::Invalid,
        }
    }
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Attach,
    Write(RequestNumber),
    Read(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub shard: ShardId,
    pub request: Request,
    pub reason: Refusal,
    /// The refusing member's view and generation.
    pub view: ViewNumber,
    pub generation: Generation,
}

/// A member's durable sequence in a view (W4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableItem {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub sequence: Sequence,
    /// What the member's log still takes of this shard (W7). Heads are told, drivers are not.
    pub room: Option<Room>,
}

/// Room in a member's log (W7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of updates beyond those that it was given; whole units of `ROOM_UNIT`, at most `ROOM_MAX`.
    pub bytes: u64,
    /// The log is making room: there may be more soon.
    pub more_soon: bool,
}

/// Room is told in units of so many bytes.
pub const ROOM_UNIT: u64 = 64 << 10;
/// More room is not told.
pub const ROOM_MAX: u64 = ROOM_UNIT * room_field::UNITS as u64;

/// How room lies in its field.
mod room_field {
    pub const SAID: u32 = 1 << 31;
    pub const MORE_SOON: u32 = 1 << 30;
    pub const UNITS: u32 = MORE_SOON - 1;
}

impl Room {
    /// So many bytes, rounded down to what can be told.
    #[must_use]
    pub fn new(bytes: u64, more_soon: bool) -> Self {
        Self { bytes: bytes.min(ROOM_MAX) / ROOM_UNIT * ROOM_UNIT, more_soon }
    }

    fn encode(room: Option<Self>) -> u32 {
        room.map_or(0, |r| {
            let units = (r.bytes.min(ROOM_MAX) / ROOM_UNIT) as u32;
            room_field::SAID | if r.more_soon { room_field::MORE_SOON } else { 0 } | units
        })
    }

    fn decode(field: u32) -> Option<Self> {
        let bytes = u64::from(field & room_field::UNITS) * ROOM_UNIT;
        (field & room_field::SAID > 0).then_some(Self { bytes, more_soon: field & room_field::MORE_SOON > 0 })
    }
}

/// What a head tells its members when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatItem {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub last: Sequence,
    pub committed: Sequence,
    /// Frames from here on may be asked for by a member that lags.
    pub keep: Sequence,
}

/// A frame by view, sequence and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameName {
    pub view: ViewNumber,
    pub sequence: Sequence,
    pub hid: Hash32,
}

/// What a member gives of the predecessor's secret, with its promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Given {
    #[default]
    Nothing,
    /// Its slice.
    Slice(Slice),
    /// All of it: a view that never became active published it.
    Secret(Hash32),
}

/// The answer of a member to a seal (rule V2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealAnswer {
    pub shard: ShardId,
    /// The pending view that was promised.
    pub view: ViewNumber,
    /// The predecessor that was asked for.
    pub pred: ViewNumber,
    /// Last durable frame that belongs to views up to the predecessor; sequence 0 if the log is empty of it.
    pub last: FrameName,
    /// Whether the log holds the predecessor's view frame (V4).
    pub has_pred: bool,
    pub committed: Sequence,
    /// Known damage: the answer does not count.
    pub damaged: bool,
    /// Set when a higher promise stands against this one.
    pub promised: ViewNumber,
    pub given: Given,
}

/// A member that lags asks for frames, or who opens a view asks for the rest of a longer log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub id: u64,
    /// Own last frames, newest first (E3); empty for an empty log.
    pub names: Vec<FrameName>,
    /// Frames up to this sequence are wanted, u64::MAX for all.
    pub until: Sequence,
    /// 0, or where a transfer by map goes on (address plus one).
    pub map_from: u64,
    /// What the asker had placed when its transfer by map began.
    pub map_since: Sequence,
    /// Entries behind `map_since` up to `until` are wanted, because the frames that placed them are lost and nobody has
    /// them any more: any member may answer, not only the head.
    pub lost: bool,
    /// The asker opens a view and fetches the longest log of its predecessor: of what was given up it takes the map.
    pub fetch: bool,
}

impl SyncReply {
    /// Nothing for this request.
    #[must_use]
    pub fn refused(r: &SyncRequest) -> Self {
        let (shard, view, id, mode) = (r.shard, r.view, r.id, SyncMode::Refused);
        Self { shard, view, id, mode, common: Sequence(0), map_next: 0, frames: Vec::new() }
    }
}

/// How the answerer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncMode {
    /// Frames from the common one on; more may follow on the next request.
    Frames = 1,
    /// The asker now has everything the answerer has ordered.
    Level = 2,
    /// Frames are gone: map entries, as one carry frame.
    Map = 3,
    /// Last piece by map: a mark frame with the answerer's state as of the transfer's begin.
    MapEnd = 4,
    /// Not now.
    Refused = 5,
}

#[derive(Clone, Debug)]
pub struct SyncReply {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub id: u64,
    pub mode: SyncMode,
    /// The last frame that both have: the asker cuts what is behind it (E3).
    pub common: Sequence,
    /// Where a transfer by map goes on.
    pub map_next: u64,
    pub frames: Vec<Frame>,
}

/// A member lets a driver answer its client for `LEASE_MS` (L1, L2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    pub shard: ShardId,
    /// The view that the member is in.
    pub view: ViewNumber,
    pub generation: Generation,
    /// As it was asked.
    pub stamp: Nanos,
    /// How long leases that this member gave to older generations may still run, in milliseconds.
    pub older_ms: u32,
}

/// The view of a shard as its members tell drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewNews {
    pub shard: ShardId,
    pub view: ViewNumber,
    /// Sequence of the view frame: the base of durable answers in it.
    pub sequence: Sequence,
    pub body: ViewBody,
}

/// Everything that travels.
#[derive(Clone, Debug)]
pub enum Message {
    Hello(Hello),
    Welcome(Welcome),
    /// Driver to head: use the shard with this generation from now on.
    Attach {
        shard: ShardId,
        view: ViewNumber,
        generation: Generation,
        driver: DriverId,
        identity: Hash32,
    },
    /// Driver to a member that is not the head: send durable answers for this shard here.
    Follow {
        shard: ShardId,
        generation: Generation,
        driver: DriverId,
    },
    /// Head (or member, for `Follow`) to driver. `floor` must be committed before the first read (R2); it is the
    /// attach frame's own sequence, or 0 from a member that is followed.
    Attached {
        news: ViewNews,
        generation: Generation,
        floor: Sequence,
    },
    Detach {
        shard: ShardId,
        generation: Generation,
        driver: DriverId,
    },
    /// Driver to member: let this generation answer its client for a while (L1).
    Lease {
        shard: ShardId,
        generation: Generation,
        driver: DriverId,
        /// The driver's time of sending, which comes back with the answer.
        stamp: Nanos,
    },
    /// The answer, if it is granted.
    Leased(Leased),
    Write(WriteRequest),
    /// Head to driver: requests were ordered in frames.
    Ordered {
        shard: ShardId,
        view: ViewNumber,
        items: Vec<(RequestNumber, Sequence)>,
    },
    /// Member to driver and to head: durable up to these sequences.
    Durable(Vec<DurableItem>),
    Read(ReadRequest),
    ReadReply(ReadReply),
    Refused(Refused),
    /// A new view became active.
    View(ViewNews),
    /// Head to members, or member to next member: frames, and the nodes they are to be passed on to.
    Frames {
        forward: Vec<NodeId>,
        frames: Vec<Frame>,
    },
    Heartbeat(Vec<HeartbeatItem>),
    Seal {
        shard: ShardId,
        view: ViewNumber,
        pred: ViewNumber,
        /// The slice of who is asked, and what it was sealed with: its own log may lack the view frame.
        slice: Option<(HostPublic, SealedSlice)>,
    },
    SealAnswer(SealAnswer),
    Sync(SyncRequest),
    SyncReply(SyncReply),
    /// Head to member: ask me with `Sync` (it was passed over, or lags).
    Nudge {
        shard: ShardId,
        view: ViewNumber,
    },
    Control {
        id: u64,
        body: Bytes,
    },
    ControlReply {
        id: u64,
        body: Bytes,
    },
}

impl Message {
    /// Name for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Welcome(_) => "welcome",
            Self::Attach { .. } => "attach",
            Self::Follow { .. } => "follow",
            Self::Attached { .. } => "attached",
            Self::Detach { .. } => "detach",
            Self::Lease { .. } => "lease",
            Self::Leased(_) => "leased",
            Self::Write(_) => "write",
            Self::Ordered { .. } => "ordered",
            Self::Durable(_) => "durable",
            Self::Read(_) => "read",
            Self::ReadReply(_) => "read reply",
            Self::Refused(_) => "refused",
            Self::View(_) => "view",
            Self::Frames { .. } => "frames",
            Self::Heartbeat(_) => "heartbeat",
            Self::Seal { .. } => "seal",
            Self::SealAnswer(_) => "seal answer",
            Self::Sync(_) => "sync",
            Self::SyncReply(_) => "sync reply",
            Self::Nudge { .. } => "nudge",
            Self::Control { .. } => "control",
            Self::ControlReply { .. } => "control reply",
        }
    }

    /// Data bytes carried, for windows.
    pub fn data_bytes(&self) -> usize {
        self.payload().iter().map(|b| b.len()).sum()
    }
}

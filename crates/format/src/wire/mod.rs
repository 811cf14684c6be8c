//! Messages between drivers and members, among members, and for control.
//!
//! A message is a fixed header, a meta part (structs and tables, under the header's checksum) and a payload (data
//! blocks, each under a CRC of its own that travels in the meta part, and control bodies). In memory a message is
//! the enum `Message`; links inside a process pass it as it is, sockets encode it.

mod decode;
mod encode;
mod structs;

pub use structs::*;

use crate::{Extent, ExtentKind, Frame, IntervalId, Pin, UpdateKind, ViewBody};
use bytes::Bytes;
use freebs_types::{
    BlockRange, ClusterId, DriverId, Error, ErrorKind, Generation, Hash32, HostPublic, IntervalNumber, Lba, Nanos,
    NodeId, RequestNumber, SealedSlice, Sequence, ShardId, Slice, StartNumber, Version, ViewNumber,
};

/// The kind of caller that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// A worker of a node, to a member of its chains.
    Node = 1,
    /// A driver, in a gateway or a node.
    Driver = 2,
    /// A client of the control API.
    Control = 3,
    /// A node's seat in the control plane.
    Seat = 4,
}

/// The first message on a connection, sent by the side that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The cluster that the caller believes to be in.
    pub cluster: ClusterId,
    /// The purpose of the connection.
    pub role: Role,
    /// The connecting node (0 for others) and its worker and start number.
    pub node: NodeId,
    /// Start number of the connecting node or gateway; the higher one is the newer process.
    pub start: StartNumber,
    /// Index of the connecting worker in its node.
    pub from_worker: u16,
    /// The worker that is wanted; taken modulo the number of workers.
    pub to_worker: u16,
}

/// The answer to `Hello`. Roles other than `Control` are refused when the cluster differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The answering node's cluster.
    pub cluster: ClusterId,
    /// The answering node.
    pub node: NodeId,
    /// Start number of the answering node.
    pub start: StartNumber,
    /// The worker that answers, and that the connection belongs to from now on.
    pub worker: u16,
    /// Workers of the answering node.
    pub workers: u16,
}

/// A driver's write, trim or zero.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// The shard; `extents` are addresses in it.
    pub shard: ShardId,
    /// The view that the driver believes to be active; another one is refused with `WrongView`.
    pub view: ViewNumber,
    /// Attachment generation of the driver; a lower one than the shard's is refused with `Fenced`.
    pub generation: Generation,
    /// The asking driver, random at its start.
    pub driver: DriverId,
    /// Number of the request, +1 for each of this driver to this shard; a repeat has the same one.
    pub number: RequestNumber,
    /// The driver's lowest request without an answer: nothing below is repeated any more.
    pub lowest_open: RequestNumber,
    /// `Write`, `Trim` or `Zero`; or, with an `interval`, `Prepare`, `Commit` or `Abort`. The other kinds are not for drivers.
    pub kind: UpdateKind,
    /// The interval that it prepares, commits or aborts.
    pub interval: Option<Box<IntervalPart>>,
    /// Blocks that it changes, at most `limits::UPDATE_EXTENTS_MAX`; none of a `Commit` or `Abort`.
    pub extents: Vec<Extent>,
    /// One per data block.
    pub crcs: Vec<u32>,
    /// Whole blocks each, in the order of the extents; at most `limits::UPDATE_DATA_BYTES_MAX` together.
    pub data: Vec<Bytes>,
}

/// The interval that a driver's request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalPart {
    /// Its name.
    pub id: IntervalId,
    /// The lowest number of an interval of that driver, in that deciding shard's volume, that may not be over in all of its shards: what was decided of those
    /// before may be forgotten.
    pub lowest_open: IntervalNumber,
    /// All shards that it changes, in order; only of a `Prepare`.
    pub participants: Vec<ShardId>,
}

/// A read or question for block status, of a driver, of a reader of the past, or of a member that mends its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The shard; `range` are addresses in it.
    pub shard: ShardId,
    /// The view that the driver believes to be active; another one is refused with `WrongView`.
    pub view: ViewNumber,
    /// Attachment generation of the driver; a lower one than the shard's is refused with `Fenced`.
    pub generation: Generation,
    /// Chosen by the driver, returned with the answer.
    pub id: u64,
    /// The member's durable sequence in that view must reach this (R1).
    pub floor: Sequence,
    /// The blocks, at most `limits::READ_BLOCKS_MAX` if data are asked for.
    pub range: BlockRange,
    /// Only what is where, without data; at most `limits::STATUS_BLOCKS_MAX` blocks.
    pub status_only: bool,
    /// Version 0: the present. Else the blocks as they were at this version, which a member answers if it keeps it, and for
    /// this snapshot if one is named: view and generation mean nothing then, and `floor` is what its committed sequence must
    /// reach.
    pub at: Pin,
    /// With `at` and `status_only`: pieces say what changed behind this version, which the member must keep, too. Version 0:
    /// they don't.
    pub since: Pin,
}

/// A run of blocks of one kind in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The blocks' state: data, or zeroes of one kind.
    pub kind: ExtentKind,
    /// Number of blocks, 1 and up.
    pub blocks: u32,
    /// An update behind `ReadRequest::since` touched them; never set if that is 0.
    pub changed: bool,
}

/// The answer to a read.
#[derive(Clone, Debug)]
pub struct ReadReply {
    /// The shard that was read.
    pub shard: ShardId,
    /// As it was asked.
    pub id: u64,
    /// In order of address; together the range that was asked for.
    pub pieces: Vec<Piece>,
    /// One per data block (none if only the status was asked for).
    pub crcs: Vec<u32>,
    /// Data of the `Data` pieces, whole blocks each.
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
    /// The device is full, or keeps its rest for what must go on.
    NoSpace = 5,
    /// The blocks are damaged here; another member may have them whole.
    Corrupt = 6,
    /// The device is out of use until the node starts again.
    DeviceFailed = 7,
    /// The volume was deleted, or never was.
    NotFound = 8,
    /// The request itself is wrong: asking again does not help.
    Invalid = 9,
    /// The interval was aborted, or can't be prepared now: another attempt may do.
    Aborted = 10,
}

impl Refusal {
    /// The reason with this number; `None` for a number that this version does not know.
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
            Self::Aborted,
        ]
        .into_iter()
        .find(|r| *r as u8 == b)
    }

    /// The reason that tells a driver what to do about an error. What concerns this node alone is `NotReady`.
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
    /// An `Attach`, `Follow` or `Lease`.
    Attach,
    /// The write with this number.
    Write(RequestNumber),
    /// The read, or question for status, with this id.
    Read(u64),
}

/// A request that is not done, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The shard that the request names.
    pub shard: ShardId,
    /// The request that is refused.
    pub request: Request,
    /// Why; it says what the driver does next.
    pub reason: Refusal,
    /// The refusing member's view and generation.
    pub view: ViewNumber,
    /// The attachment generation that the refusing member knows.
    pub generation: Generation,
}

/// A member's durable sequence in a view (W4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableItem {
    /// The shard that the sequence belongs to.
    pub shard: ShardId,
    /// The view that the sequence belongs to: in another one it counts for nothing.
    pub view: ViewNumber,
    /// Everything up to this frame is durable at the member.
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
    /// All that this log and others there keep of their past takes more memory than it should.
    pub past_over: bool,
}

/// The unit in which room is told, in bytes.
pub const ROOM_UNIT: u64 = 64 << 10;
/// The most room that is told, in bytes; a member that has more tells this.
pub const ROOM_MAX: u64 = ROOM_UNIT * room_field::UNITS as u64;

/// How room lies in its field.
mod room_field {
    pub const SAID: u32 = 1 << 31;
    pub const MORE_SOON: u32 = 1 << 30;
    pub const PAST_OVER: u32 = 1 << 29;
    pub const UNITS: u32 = PAST_OVER - 1;
}

impl Room {
    /// `bytes` of room, rounded down to what can be told.
    #[must_use]
    pub fn new(bytes: u64, more_soon: bool) -> Self {
        Self { bytes: bytes.min(ROOM_MAX) / ROOM_UNIT * ROOM_UNIT, more_soon, past_over: false }
    }

    fn encode(room: Option<Self>) -> u32 {
        room.map_or(0, |r| {
            let units = (r.bytes.min(ROOM_MAX) / ROOM_UNIT) as u32;
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = flag(r.more_soon, room_field::MORE_SOON) | flag(r.past_over, room_field::PAST_OVER);
            room_field::SAID | flags | units
        })
    }

    fn decode(field: u32) -> Option<Self> {
        let bytes = u64::from(field & room_field::UNITS) * ROOM_UNIT;
        let has = |flag| field & flag > 0;
        let (more_soon, past_over) = (has(room_field::MORE_SOON), has(room_field::PAST_OVER));
        has(room_field::SAID).then_some(Self { bytes, more_soon, past_over })
    }
}

/// What a head tells its members when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatItem {
    /// The shard that the head orders.
    pub shard: ShardId,
    /// The head's view; a member of another one ignores the rest.
    pub view: ViewNumber,
    /// Sequence of the head's last frame: a member that has less asks for the rest.
    pub last: Sequence,
    /// Highest committed sequence that the head knows.
    pub committed: Sequence,
    /// Frames from here on may be asked for by a member that lags.
    pub keep: Sequence,
}

/// A frame by view, sequence and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameName {
    /// The view that ordered the frame.
    pub view: ViewNumber,
    /// Number of the frame in its shard.
    pub sequence: Sequence,
    /// Hash of the frame's access token; frames with the same one are the same, and so is all before them. Zeroes if it
    /// is not known.
    pub hid: Hash32,
}

/// What a member gives of the predecessor's secret, with its promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// The member has neither: it never saw the view frame, or the secret was not shared.
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
    /// The shard that is asked about.
    pub shard: ShardId,
    /// The pending view that was promised.
    pub view: ViewNumber,
    /// The predecessor that was asked for.
    pub pred: ViewNumber,
    /// Last durable frame that belongs to views up to the predecessor; sequence 0 if the log is empty of it.
    pub last: FrameName,
    /// Whether the log holds the predecessor's view frame (V4).
    pub has_pred: bool,
    /// Highest committed sequence that the member knows.
    pub committed: Sequence,
    /// Known damage: the answer does not count.
    pub damaged: bool,
    /// Set when a higher promise stands against this one.
    pub promised: ViewNumber,
    /// The member's part of the predecessor's secret.
    pub given: Given,
}

/// A member that lags asks for frames, or the opener of a view asks for the rest of a longer log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The shard that the asker lags in, or opens a view of.
    pub shard: ShardId,
    /// The asker's view, or the pending view that it opens.
    pub view: ViewNumber,
    /// Chosen by the asker, returned with the answer.
    pub id: u64,
    /// Own last frames, newest first (E3); empty for an empty log.
    pub names: Vec<FrameName>,
    /// Frames up to this sequence are wanted, u64::MAX for all.
    pub until: Sequence,
    /// Where a transfer by map goes on.
    pub map_from: MapPoint,
    /// What the asker had placed when its transfer by map began.
    pub map_since: Sequence,
    /// Entries behind `map_since` up to `until` are wanted, because the frames that placed them are lost and nobody has
    /// them any more: any member may answer, not only the head.
    pub lost: bool,
    /// The asker opens a view and fetches the longest log of its predecessor: of what was given up it takes the map.
    pub fetch: bool,
    /// Not 0 if the asker's history is not whole below this version: it takes all of the past, whatever it has. With `lost`
    /// that is all it asks for, and any member whose history is whole from a lower version on may answer.
    pub past: Version,
}

/// Where a transfer by map goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapPoint {
    /// The address plus one; 0 before the transfer's beginning, and behind its end.
    pub from: u64,
    /// Version and sequence of the last entry at that address that was told; zeroes for none.
    pub behind: (Version, Sequence),
    /// Blocks from that address on of which entries up to that one were told; of those behind them none was. 0 for none.
    pub blocks: u32,
}

impl MapPoint {
    /// The transfer has not begun, or is over.
    pub const NONE: Self = Self { from: 0, behind: (Version(0), Sequence(0)), blocks: 0 };
    /// The first address of all.
    pub const BEGIN: Self = Self { from: 1, behind: (Version(0), Sequence(0)), blocks: 0 };

    /// True if a transfer goes on there.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.from > 0
    }

    /// The address; the last one of all for one that no shard has.
    #[must_use]
    pub fn lba(&self) -> Lba {
        Lba(u32::try_from(self.from.saturating_sub(1)).unwrap_or(u32::MAX))
    }
}

impl SyncReply {
    /// Nothing for this request.
    #[must_use]
    pub fn refused(r: &SyncRequest) -> Self {
        let (shard, view, id, mode) = (r.shard, r.view, r.id, SyncMode::Refused);
        Self { shard, view, id, mode, common: Sequence(0), map_next: MapPoint::NONE, frames: Vec::new() }
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
    /// Frames are gone: map entries, as one carry frame, and a mark frame that says what was kept behind them.
    Map = 3,
    /// Last piece by map: a mark frame with the answerer's state as of the transfer's begin.
    MapEnd = 4,
    /// Not now.
    Refused = 5,
}

/// The answer to a `SyncRequest`.
#[derive(Clone, Debug)]
pub struct SyncReply {
    /// The shard that was asked about.
    pub shard: ShardId,
    /// As it was asked.
    pub view: ViewNumber,
    /// As it was asked.
    pub id: u64,
    /// The way in which the answerer goes on.
    pub mode: SyncMode,
    /// The last frame that both have: the asker cuts what is behind it (E3).
    pub common: Sequence,
    /// Where a transfer by map goes on.
    pub map_next: MapPoint,
    /// Frames behind `common` in order; or one carry frame of map entries, and a mark frame that says what is kept.
    pub frames: Vec<Frame>,
}

/// A member lets a driver answer its client for `LEASE_MS` (L1, L2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The shard that the driver asked for.
    pub shard: ShardId,
    /// The view that the member is in.
    pub view: ViewNumber,
    /// The generation that the lease is given to.
    pub generation: Generation,
    /// As it was asked.
    pub stamp: Nanos,
    /// How long leases that this member gave to older generations may still run, in milliseconds.
    pub older_ms: u32,
}

/// The view of a shard as its members tell drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewNews {
    /// The shard whose view it is.
    pub shard: ShardId,
    /// The active view.
    pub view: ViewNumber,
    /// Sequence of the view frame: the base of durable answers in it.
    pub sequence: Sequence,
    /// Members, quorum and seal of the view, as the view frame says them.
    pub body: ViewBody,
}

/// Everything that travels.
#[derive(Clone, Debug)]
pub enum Message {
    /// The first message on a connection, of the side that opened it.
    Hello(Hello),
    /// The first message of the other side.
    Welcome(Welcome),
    /// Driver to head: use the shard with this generation from now on.
    Attach {
        /// The shard.
        shard: ShardId,
        /// The view that the driver believes to be active.
        view: ViewNumber,
        /// The generation that the control plane gave it.
        generation: Generation,
        /// The driver, random at its start.
        driver: DriverId,
        /// Hash of the persistent identity of who attaches.
        identity: Hash32,
    },
    /// Driver to a member that is not the head: send durable answers for this shard here.
    Follow {
        /// The shard.
        shard: ShardId,
        /// The generation that the control plane gave it.
        generation: Generation,
        /// The driver, random at its start.
        driver: DriverId,
    },
    /// Head (or member, for `Follow`) to driver. `floor` must be committed before the first read (R2); it is the
    /// attach frame's own sequence, or 0 from a member that is followed.
    Attached {
        /// The view that the answering member is in.
        news: ViewNews,
        /// The generation that is attached.
        generation: Generation,
        /// Sequence that must be committed before the first read, or 0.
        floor: Sequence,
    },
    /// Driver to member: it uses the shard no more. There is no answer.
    Detach {
        /// The shard.
        shard: ShardId,
        /// The generation that is given up.
        generation: Generation,
        /// The driver that goes.
        driver: DriverId,
    },
    /// Driver to member: let this generation answer its client for a while (L1).
    Lease {
        /// The shard.
        shard: ShardId,
        /// The driver's generation; if the member knows a higher one, nothing is granted.
        generation: Generation,
        /// The driver, random at its start.
        driver: DriverId,
        /// The driver's time of sending, which comes back with the answer.
        stamp: Nanos,
    },
    /// The answer, if it is granted.
    Leased(Leased),
    /// Driver to head: a write, trim or zero.
    Write(WriteRequest),
    /// Head to driver: requests were ordered in frames.
    Ordered {
        /// The shard.
        shard: ShardId,
        /// The view that ordered them.
        view: ViewNumber,
        /// Number of each request, and the sequence of the frame that it was put into.
        items: Vec<(RequestNumber, Sequence)>,
    },
    /// Member to driver and to head: durable up to these sequences.
    Durable(Vec<DurableItem>),
    /// Driver to member, or member to a member that may have what is damaged here: blocks, or only what is where.
    Read(ReadRequest),
    /// The answer to a `Read` that is done.
    ReadReply(ReadReply),
    /// A request of a driver, or of a member that reads, is not done.
    Refused(Refused),
    /// A new view became active.
    View(ViewNews),
    /// Head to members, or member to next member: frames, and the nodes they are to be passed on to.
    Frames {
        /// Members that the receiver passes the frames on to, the next one first; empty at the end of the chain.
        forward: Vec<NodeId>,
        /// In order of their sequence; of any shards.
        frames: Vec<Frame>,
    },
    /// Head to members of its shards, when there is nothing else to send.
    Heartbeat(Vec<HeartbeatItem>),
    /// Head of a pending view to a member of its predecessor: promise, and say where your log ends (V2).
    Seal {
        /// The shard.
        shard: ShardId,
        /// The pending view, which the member promises to.
        view: ViewNumber,
        /// The last active view, which is to be sealed.
        pred: ViewNumber,
        /// The asked member's slice, and the key that it was sealed with: the member's own log may lack the view frame.
        slice: Option<(HostPublic, SealedSlice)>,
    },
    /// Member to head of the pending view: the answer to `Seal`.
    SealAnswer(SealAnswer),
    /// Member to head, or opener of a view to a member: frames are wanted.
    Sync(SyncRequest),
    /// The answer to `Sync`.
    SyncReply(SyncReply),
    /// Head to member: ask me with `Sync` (it was passed over, or lags).
    Nudge {
        /// The shard that the member lags in.
        shard: ShardId,
        /// The head's view.
        view: ViewNumber,
    },
    /// A request to the control API of a node, or a message between seats.
    Control {
        /// Chosen by the asker, returned with the answer; several may be under way. Between seats 1 in the first
        /// message and 0 in all others.
        id: u64,
        /// JSON for the control API; between seats as `docs/formats/control.md` says.
        body: Bytes,
    },
    /// The answer to `Control`.
    ControlReply {
        /// As it was asked.
        id: u64,
        /// JSON: `ok` with the result, or `error`.
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

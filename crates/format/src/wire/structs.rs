//! The fixed structs of messages. One header for all, then per kind a fixed part and tables.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a message.
pub const MESSAGE_MAGIC: [u8; 4] = *b"FBMS";
/// Version of the whole protocol; another one is refused, which ends the connection.
pub const WIRE_VERSION: u16 = 2;
/// Bytes of the header of every message.
pub const HEADER_BYTES: usize = 64;
/// Items in one table of a message.
pub const TABLE_ITEMS_MAX: usize = 65_536;
/// Bytes of the meta part of a message.
pub const META_BYTES_MAX: usize = 4 << 20;

/// Kinds of message on the wire.
pub mod kind {
    /// The first message of who connects.
    pub const HELLO: u16 = 1;
    /// The answer to it.
    pub const WELCOME: u16 = 2;
    /// Driver to head: use the shard with this generation from now on.
    pub const ATTACH: u16 = 3;
    /// Driver to another member: send durable answers for this shard here.
    pub const FOLLOW: u16 = 4;
    /// Answer to both.
    pub const ATTACHED: u16 = 5;
    /// Driver to member: the driver goes.
    pub const DETACH: u16 = 6;
    /// Driver to head: a write, trim or zero.
    pub const WRITE: u16 = 7;
    /// Head to driver: requests got these sequences.
    pub const ORDERED: u16 = 8;
    /// Member to driver, and to the head: durable up to these sequences.
    pub const DURABLE: u16 = 9;
    /// Driver to member: blocks, or only what is where.
    pub const READ: u16 = 10;
    /// The answer to it.
    pub const READ_REPLY: u16 = 11;
    /// Why a request is not done.
    pub const REFUSED: u16 = 12;
    /// Member to driver: a new view is active.
    pub const VIEW: u16 = 13;
    /// Head to member, or member to the next one: frames.
    pub const FRAMES: u16 = 14;
    /// Head to members: last and committed sequence.
    pub const HEARTBEAT: u16 = 15;
    /// Head of a pending view to members: promise, and say where your log ends.
    pub const SEAL: u16 = 16;
    /// The answer to it.
    pub const SEAL_ANSWER: u16 = 17;
    /// Member to another: send what follows these frames.
    pub const SYNC: u16 = 18;
    /// Frames, or pieces of the map.
    pub const SYNC_REPLY: u16 = 19;
    /// Head to member: ask me with SYNC.
    pub const NUDGE: u16 = 20;
    /// Driver to member: let this generation answer its client for a while.
    pub const LEASE: u16 = 23;
    /// The answer to it, if it is granted.
    pub const LEASED: u16 = 24;
    /// A request to the control API of a node.
    pub const CONTROL: u16 = 21;
    /// The answer to it.
    pub const CONTROL_REPLY: u16 = 22;
}

/// Header of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MessageHeader {
    /// `MESSAGE_MAGIC`.
    pub magic: [u8; 4],
    /// Version of the messages' format.
    pub version: U16,
    /// Kind of message, one of [`kind`].
    pub kind: U16,
    /// Bytes of header, meta and payload.
    pub total_len: U32,
    /// Bytes of the meta part.
    pub meta_len: U32,
    /// Volume that the message is about, 0 for none.
    pub volume: U64,
    /// Shard of that volume.
    pub shard: U32,
    /// Flags of the kind of message.
    pub flags: U32,
    /// View of the sender, 0 for none.
    pub view: U64,
    /// Generation of the attachment, 0 for none.
    pub generation: U64,
    /// Request number, read id, sync id or control id.
    pub id: U64,
    /// Zero.
    pub reserved: U32,
    /// CRC-32C of the header before this field, and the meta part.
    pub crc: U32,
}
const _: () = assert!(size_of::<MessageHeader>() == HEADER_BYTES);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct HelloMeta {
    pub(crate) cluster: [u8; 16],
    pub(crate) node: U64,
    pub(crate) start: U64,
    pub(crate) from_worker: U16,
    pub(crate) to_worker: U16,
    pub(crate) role: u8,
    pub(crate) reserved: [u8; 27],
}
const _: () = assert!(size_of::<HelloMeta>() == 64);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct WelcomeMeta {
    pub(crate) cluster: [u8; 16],
    pub(crate) node: U64,
    pub(crate) start: U64,
    pub(crate) worker: U16,
    pub(crate) workers: U16,
    pub(crate) reserved: [u8; 28],
}
const _: () = assert!(size_of::<WelcomeMeta>() == 64);

/// `Attach`, `Follow`, `Detach`, `Lease`; and, with the floor and followed by a view body, `Attached` and `View`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AttachMeta {
    pub(crate) driver: U64,
    pub(crate) identity: [u8; 32],
    /// Sequence of the view frame (`Attached`, `View`).
    pub(crate) view_sequence: U64,
    pub(crate) floor: U64,
    pub(crate) reserved: U64,
}
const _: () = assert!(size_of::<AttachMeta>() == 64);

/// `Write`: then extents, then CRCs; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct WriteMeta {
    pub(crate) driver: U64,
    pub(crate) lowest_open: U64,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 3],
    pub(crate) extents: U32,
    pub(crate) reserved2: U64,
}
const _: () = assert!(size_of::<WriteMeta>() == 32);

/// Behind `WriteMeta` if the kind is one of intervals: then the participants.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IntervalMeta {
    pub(crate) decider_volume: U64,
    pub(crate) decider_shard: U32,
    pub(crate) participants: U32,
    pub(crate) driver: U64,
    pub(crate) number: U64,
    pub(crate) lowest_open: U64,
}
const _: () = assert!(size_of::<IntervalMeta>() == 40);

/// One item of `Ordered`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OrderedMeta {
    pub(crate) number: U64,
    pub(crate) sequence: U64,
}
const _: () = assert!(size_of::<OrderedMeta>() == 16);

/// One item of `Durable`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DurableMeta {
    pub(crate) volume: U64,
    pub(crate) shard: U32,
    pub(crate) room: U32,
    pub(crate) view: U64,
    pub(crate) sequence: U64,
}
const _: () = assert!(size_of::<DurableMeta>() == 32);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ReadMeta {
    pub(crate) floor: U64,
    pub(crate) lba: U32,
    pub(crate) blocks: U32,
    /// 0 for the present.
    pub(crate) version: U64,
    pub(crate) snapshot: U64,
    /// 0 unless changes are asked for.
    pub(crate) since: U64,
    pub(crate) since_snapshot: U64,
}
const _: () = assert!(size_of::<ReadMeta>() == 48);

/// One piece of `ReadReply`; then CRCs; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PieceMeta {
    pub(crate) kind: u8,
    pub(crate) changed: u8,
    pub(crate) reserved: [u8; 2],
    pub(crate) blocks: U32,
}
const _: () = assert!(size_of::<PieceMeta>() == 8);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RefusedMeta {
    pub(crate) reason: u8,
    /// 0 attach, 1 write, 2 read.
    pub(crate) what: u8,
    pub(crate) reserved: [u8; 6],
}
const _: () = assert!(size_of::<RefusedMeta>() == 8);

/// `Frames`: then the nodes to forward to, then all heads; payload: all data in order of the heads.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FramesMeta {
    pub(crate) frames: U32,
    pub(crate) forward: U32,
}
const _: () = assert!(size_of::<FramesMeta>() == 8);

/// One item of `Heartbeat`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct HeartbeatMeta {
    pub(crate) volume: U64,
    pub(crate) shard: U32,
    pub(crate) reserved: U32,
    pub(crate) view: U64,
    pub(crate) last: U64,
    pub(crate) committed: U64,
    pub(crate) keep: U64,
}
const _: () = assert!(size_of::<HeartbeatMeta>() == 48);

/// A frame's name in tables.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NameMeta {
    pub(crate) view: U64,
    pub(crate) sequence: U64,
    pub(crate) hid: [u8; 32],
}
const _: () = assert!(size_of::<NameMeta>() == 48);

/// `Seal` with the sealed slice of who is asked; without one it is `pred` alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SealAskMeta {
    pub(crate) pred: U64,
    /// What the slices were sealed with.
    pub(crate) point: [u8; 32],
    pub(crate) slice: [u8; 49],
    pub(crate) reserved: [u8; 7],
}
const _: () = assert!(size_of::<SealAskMeta>() == 96);

/// What a member gives with its promise.
pub(crate) const GIVEN_NOTHING: u8 = 0;
pub(crate) const GIVEN_SLICE: u8 = 1;
pub(crate) const GIVEN_SECRET: u8 = 2;

/// `SealAnswer`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SealMeta {
    pub(crate) pred: U64,
    pub(crate) last: NameMeta,
    pub(crate) committed: U64,
    pub(crate) promised: U64,
    pub(crate) has_pred: u8,
    pub(crate) damaged: u8,
    /// What `slice` is.
    pub(crate) given: u8,
    pub(crate) reserved: [u8; 5],
    /// The member's slice of the predecessor's secret, or the secret.
    pub(crate) slice: [u8; 72],
}
const _: () = assert!(size_of::<SealMeta>() == 152);

/// `Control` and `ControlReply`; payload: the body.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ControlMeta {
    /// CRC-32C of the body: what is JSON has no other checksum.
    pub(crate) body_crc: U32,
    pub(crate) reserved: U32,
}
const _: () = assert!(size_of::<ControlMeta>() == 8);

/// Flag of `SyncMeta`: the frames between `map_since` and `until` are lost.
pub(crate) const SYNC_LOST: u32 = 1;
/// Flag of `SyncMeta`: the asker opens a view.
pub(crate) const SYNC_FETCH: u32 = 2;

/// `Sync`: then names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SyncMeta {
    pub(crate) until: U64,
    pub(crate) map_from: U64,
    pub(crate) map_since: U64,
    pub(crate) behind_version: U64,
    pub(crate) behind_sequence: U64,
    pub(crate) past: U64,
    pub(crate) names: U32,
    pub(crate) flags: U32,
    pub(crate) behind_blocks: U32,
    pub(crate) reserved: U32,
}
const _: () = assert!(size_of::<SyncMeta>() == 64);

/// `SyncReply`: then heads; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SyncReplyMeta {
    pub(crate) common: U64,
    pub(crate) map_next: U64,
    pub(crate) behind_version: U64,
    pub(crate) behind_sequence: U64,
    pub(crate) frames: U32,
    pub(crate) behind_blocks: U32,
    pub(crate) mode: u8,
    pub(crate) reserved: [u8; 7],
}
const _: () = assert!(size_of::<SyncReplyMeta>() == 48);

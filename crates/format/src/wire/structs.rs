//! The fixed structs of messages. One header for all, then per kind a fixed part and tables.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const MESSAGE_MAGIC: [u8; 4] = *b"FBMS";
pub const WIRE_VERSION: u16 = 1;
pub const HEADER_BYTES: usize = 64;
/// Items in one table of a message.
pub const TABLE_ITEMS_MAX: usize = 65_536;
/// Bytes of the meta part of a message.
pub const META_BYTES_MAX: usize = 4 << 20;

/// Kinds of message on the wire.
pub mod kind {
    pub const HELLO: u16 = 1;
    pub const WELCOME: u16 = 2;
    pub const ATTACH: u16 = 3;
    pub const FOLLOW: u16 = 4;
    pub const ATTACHED: u16 = 5;
    pub const DETACH: u16 = 6;
    pub const WRITE: u16 = 7;
    pub const ORDERED: u16 = 8;
    pub const DURABLE: u16 = 9;
    pub const READ: u16 = 10;
    pub const READ_REPLY: u16 = 11;
    pub const REFUSED: u16 = 12;
    pub const VIEW: u16 = 13;
    pub const FRAMES: u16 = 14;
    pub const HEARTBEAT: u16 = 15;
    pub const SEAL: u16 = 16;
    pub const SEAL_ANSWER: u16 = 17;
    pub const SYNC: u16 = 18;
    pub const SYNC_REPLY: u16 = 19;
    pub const NUDGE: u16 = 20;
    pub const LEASE: u16 = 23;
    pub const LEASED: u16 = 24;
    pub const CONTROL: u16 = 21;
    pub const CONTROL_REPLY: u16 = 22;
}

/// Header of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MessageHeader {
    pub magic: [u8; 4],
    pub version: U16,
    pub kind: U16,
    /// Bytes of header, meta and payload.
    pub total_len: U32,
    pub meta_len: U32,
    pub volume: U64,
    pub shard: U32,
    pub flags: U32,
    pub view: U64,
    pub generation: U64,
    /// Request number, read id, sync id or control id.
    pub id: U64,
    pub reserved: U32,
    /// CRC-32C of the header before this field, and the meta part.
    pub crc: U32,
}
const _: () = assert!(size_of::<MessageHeader>() == HEADER_BYTES);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HelloMeta {
    pub cluster: [u8; 16],
    pub node: U64,
    pub start: U64,
    pub from_worker: U16,
    pub to_worker: U16,
    pub role: u8,
    pub reserved: [u8; 27],
}
const _: () = assert!(size_of::<HelloMeta>() == 64);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WelcomeMeta {
    pub cluster: [u8; 16],
    pub node: U64,
    pub start: U64,
    pub worker: U16,
    pub workers: U16,
    pub reserved: [u8; 28],
}
const _: () = assert!(size_of::<WelcomeMeta>() == 64);

/// `Attach`, `Follow`, `Detach`, `Lease`; and, with the floor and followed by a view body, `Attached` and `View`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AttachMeta {
    pub driver: U64,
    pub identity: [u8; 32],
    /// Sequence of the view frame (`Attached`, `View`).
    pub view_sequence: U64,
    pub floor: U64,
    pub reserved: U64,
}
const _: () = assert!(size_of::<AttachMeta>() == 64);

/// `Write`: then extents, then CRCs; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteMeta {
    pub driver: U64,
    pub lowest_open: U64,
    pub kind: u8,
    pub reserved: [u8; 3],
    pub extents: U32,
    pub reserved2: U64,
}
const _: () = assert!(size_of::<WriteMeta>() == 32);

/// One item of `Ordered`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OrderedMeta {
    pub number: U64,
    pub sequence: U64,
}
const _: () = assert!(size_of::<OrderedMeta>() == 16);

/// One item of `Durable`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DurableMeta {
    pub volume: U64,
    pub shard: U32,
    pub room: U32,
    pub view: U64,
    pub sequence: U64,
}
const _: () = assert!(size_of::<DurableMeta>() == 32);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadMeta {
    pub floor: U64,
    pub lba: U32,
    pub blocks: U32,
}
const _: () = assert!(size_of::<ReadMeta>() == 16);

/// One piece of `ReadReply`; then CRCs; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PieceMeta {
    pub kind: u8,
    pub reserved: [u8; 3],
    pub blocks: U32,
}
const _: () = assert!(size_of::<PieceMeta>() == 8);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RefusedMeta {
    pub reason: u8,
    /// 0 attach, 1 write, 2 read.
    pub what: u8,
    pub reserved: [u8; 6],
}
const _: () = assert!(size_of::<RefusedMeta>() == 8);

/// `Frames`: then the nodes to forward to, then all heads; payload: all data in order of the heads.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FramesMeta {
    pub frames: U32,
    pub forward: U32,
}
const _: () = assert!(size_of::<FramesMeta>() == 8);

/// One item of `Heartbeat`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeartbeatMeta {
    pub volume: U64,
    pub shard: U32,
    pub reserved: U32,
    pub view: U64,
    pub last: U64,
    pub committed: U64,
    pub keep: U64,
}
const _: () = assert!(size_of::<HeartbeatMeta>() == 48);

/// A frame's name in tables.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NameMeta {
    pub view: U64,
    pub sequence: U64,
    pub hid: [u8; 32],
}
const _: () = assert!(size_of::<NameMeta>() == 48);

/// `Seal` with the sealed slice of who is asked; without one it is `pred` alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SealAskMeta {
    pub pred: U64,
    /// What the slices were sealed with.
    pub point: [u8; 32],
    pub slice: [u8; 49],
    pub reserved: [u8; 7],
}
const _: () = assert!(size_of::<SealAskMeta>() == 96);

/// What a member gives with its promise.
pub const GIVEN_NOTHING: u8 = 0;
pub const GIVEN_SLICE: u8 = 1;
pub const GIVEN_SECRET: u8 = 2;

/// `SealAnswer`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SealMeta {
    pub pred: U64,
    pub last: NameMeta,
    pub committed: U64,
    pub promised: U64,
    pub has_pred: u8,
    pub damaged: u8,
    /// What `slice` is.
    pub given: u8,
    pub reserved: [u8; 5],
    /// The member's slice of the predecessor's secret, or the secret.
    pub slice: [u8; 72],
}
const _: () = assert!(size_of::<SealMeta>() == 152);

/// `Control` and `ControlReply`; payload: the body.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControlMeta {
    /// CRC-32C of the body: what is JSON has no other checksum.
    pub body_crc: U32,
    pub reserved: U32,
}
const _: () = assert!(size_of::<ControlMeta>() == 8);

/// Flag of `SyncMeta`: the frames between `map_since` and `until` are lost.
pub const SYNC_LOST: u32 = 1;
/// Flag of `SyncMeta`: the asker opens a view.
pub const SYNC_FETCH: u32 = 2;

/// `Sync`: then names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SyncMeta {
    pub until: U64,
    pub map_from: U64,
    pub map_since: U64,
    pub names: U32,
    pub flags: U32,
}
const _: () = assert!(size_of::<SyncMeta>() == 32);

/// `SyncReply`: then heads; payload: data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SyncReplyMeta {
    pub common: U64,
    pub map_next: U64,
    pub frames: U32,
    pub mode: u8,
    pub reserved: [u8; 11],
}
const _: () = assert!(size_of::<SyncReplyMeta>() == 32);

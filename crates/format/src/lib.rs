//! Bytes of freebs: frames, device structures and messages, as fixed little-endian structs. No I/O.
//!
//! Each structure carries magic, version, length, identity and checksum. Parsing never panics, never allocates
//! more than the bytes it was given (a head that is packed: more than a head may have), and refuses what it does not know (`Corrupt` for what a checksum or an
//! identity caught, `Invalid` for what is well-formed but not understood).

mod bodies;
mod crc;
mod description;
pub mod disk;
mod frame;
mod header;
mod interval;
pub mod keys;
pub mod layout;
mod lost;
mod packed;
mod pins;
mod token;
pub mod wire;

pub use bodies::{
    AttachBody, CARRY_ENTRY_BYTES, CLOSED_VIEW_BYTES, CarryBody, CarryEntry, ClosedView, FLAT_BYTES, FORK_BYTES, Flat,
    LOST_VERSION_BYTES, MarkBody, Member, RequestEntry, RequestFloor, Requests, ViewBody, ViewSecret,
};
pub use crc::{block_crc, block_crcs, crc32c, is_zero};
pub use description::VolumeDescription;
pub use frame::{Extent, Frame, FrameBefore, FrameBuilder, FrameHead, FrameMeta, Update, UpdateDraft};
pub use header::{
    ExtentDesc, ExtentKind, FEATURE_BRANCH, FEATURE_CLOSED, FEATURE_FLAT, FEATURE_FORK, FEATURE_GIVEN_UP,
    FEATURE_HISTORY, FEATURE_INTERVALS, FEATURE_LOST, FEATURE_PINS, FEATURE_SHARED, FEATURE_VOLUME, FRAME_MAGIC,
    FrameHeader, FrameKind, UpdateDesc, UpdateKind,
};
pub use interval::{
    INTERVAL_MAGIC, IntervalId, IntervalRecord, IntervalState, interval_data, interval_record, interval_records,
};
pub use lost::{LOST_MAGIC, is_lost_block, lost_block};
pub use packed::{pack, packed_len_max, unpack};
pub use pins::{PIN_BYTES, Pin, PinUpdate};
pub use token::{FrameDigest, frame_digest, hide, token};

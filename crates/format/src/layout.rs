//! Where the fields of each struct lie, as data: for tools that show bytes, and for the test that holds the
//! documents in `docs/formats` to the code.
//!
//! Invariant: every fixed struct of this crate is here, with all its fields, in order and without a gap.

use crate::bodies::{
    AttachFixed, CarryFixed, ClosedFixed, EntryFixed, FlatFixed, FloorFixed, ForkFixed, KeptFixed, LearnedFixed,
    LostFixed, MarkFixed, MemberFixed, SharedFixed, ViewFixed,
};
use crate::description::VolumeFixed;
use crate::disk::{
    AppendHeader, CheckpointSlot, HostKeyFile, IndexFixed, LostStretch, Openings, PageHeader, PagesFixed, RepeatFixed,
    SegmentFooter, Superblock,
};
use crate::header::{ExtentDesc, FrameHeader, UpdateDesc};
use crate::interval::{ParticipantDesc, RecordFixed};
use crate::keys::{JoinTokenFixed, SigningKeyFile};
use crate::pins::PinFixed;
use crate::wire::{
    AttachMeta, ControlMeta, DurableMeta, FramesMeta, HeartbeatMeta, HelloMeta, IntervalMeta, MessageHeader, NameMeta,
    OrderedMeta, PieceMeta, ReadMeta, RefusedMeta, SealAskMeta, SealMeta, SyncMeta, SyncReplyMeta, WelcomeMeta,
    WriteMeta,
};
use core::mem::offset_of;

/// One field of a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name in the struct, which is that of the table in `docs/formats`.
    pub name: &'static str,
    /// Bytes from the struct's start.
    pub offset: usize,
    /// Bytes that it takes; arrays and structs inside count as one field.
    pub bytes: usize,
}

/// One struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The struct's name, which is the heading of its table in `docs/formats`.
    pub name: &'static str,
    /// Bytes of the whole struct.
    pub bytes: usize,
    /// In order of the offset, without a gap.
    pub fields: &'static [Field],
}

const fn bytes_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        /// All fixed structs of frames, devices and messages.
        pub const LAYOUTS: &[Layout] = &[$(Layout {
            name: stringify!($name),
            bytes: size_of::<$name>(),
            fields: &[$(Field {
                name: stringify!($field),
                offset: offset_of!($name, $field),
                bytes: bytes_of::<$name, _>(|s| &s.$field),
            }),*],
        }),*];
    };
}

layouts! {
    FrameHeader {
        magic, version, kind, flags, features, head_len, data_len, updates, cluster, volume, shard, chunk_counter, view,
        chunk_view, sequence, first_version, committed, wall, chunk_offset, key_id, parent, hid, digest, tag, reserved,
        body_crc, crc,
    }
    UpdateDesc { kind, flags, extents, blocks, driver, number, lowest_open, base, past }
    ExtentDesc { lba, blocks, kind, flags, reserved }
    RecordFixed {
        magic, version, state, flags, volume, decider_volume, driver, number, owner, shard, decider_shard, participants,
        extents, reserved, crc,
    }
    ParticipantDesc { volume, shard, reserved }
    ViewFixed { pred, seal_sequence, seal_hid, secret_hash, generation, quorum, min_copies, members, flags }
    MemberFixed { node, start, flags, slice, reserved }
    VolumeFixed { size, stripe, shards, copies, min_copies, all, name_len, name, branch, retain }
    SharedFixed { point, pred_secret, threshold, reserved }
    AttachFixed { generation, driver, identity, reserved }
    MarkFixed {
        promised, secret_view, secret, committed, last_view, released, last_parent, last_digest, attach, flags,
        view_frame_len, floors, entries, retain, pins, closed, given_up,
    }
    PinFixed { version, snapshot }
    FloorFixed { driver, lowest_open }
    EntryFixed { driver, number, sequence }
    ClosedFixed { view, published, secret }
    LostFixed { versions, reserved }
    FlatFixed { upto, from_append, to_append }
    ForkFixed { volume, index, reserved, snapshot, version, sequence }
    KeptFixed { as_of, whole_from }
    LearnedFixed { since, upto, from_append }
    CarryFixed { lba, blocks, version, sequence, chunk_view, chunk_counter, offset, kind, reserved }
    Superblock {
        magic, version, length, features, sector, cluster, device, node, worker, workers, reserved0, segment_bytes,
        size_limit, revision, start, created, reserved, crc,
    }
    HostKeyFile { magic, version, length, cluster, node, secret, public, reserved, crc }
    SigningKeyFile { magic, version, length, cluster, seed, public, reserved, crc }
    JoinTokenFixed { magic, version, length, cluster, authority, secret, expires_ms, reserved, crc }
    LostStretch { from, to }
    AppendHeader {
        magic, version, flags, skipped, device, segment, offset, segment_seq, number, durable, heads_len, extra_len, data_len,
        frames, start, lost, heads_crc, crc,
    }
    SegmentFooter {
        magic, version, skipped, device, segment, frames, segment_seq, first_append, last_append, index_at, index_len,
        next, index_crc, lost, reserved, crc,
    }
    RepeatFixed { append, table_len, frames, copies, copies_crc, body_crc, crc }
    PageHeader { magic, version, kind, device, run, page, count, used, reserved, body_crc, crc }
    PagesFixed { segment, page, count }
    CheckpointSlot {
        magic, version, length, device, revision, manifest, bytes, extents, durable, reserved, extents_crc, crc,
    }
    Openings { magic, version, length, device, revision, start, newest, count, next, reserved, list_crc, crc }
    IndexFixed { head_at, data_at, append, flags, reserved, head_len }
    MessageHeader {
        magic, version, kind, total_len, meta_len, volume, shard, flags, view, generation, id, reserved, crc,
    }
    HelloMeta { cluster, node, start, from_worker, to_worker, role, reserved }
    WelcomeMeta { cluster, node, start, worker, workers, reserved }
    AttachMeta { driver, identity, view_sequence, floor, reserved }
    WriteMeta { driver, lowest_open, kind, reserved, extents, reserved2 }
    IntervalMeta { decider_volume, decider_shard, participants, driver, number, lowest_open }
    OrderedMeta { number, sequence }
    DurableMeta { volume, shard, room, view, sequence }
    ReadMeta { floor, lba, blocks, version, snapshot, since, since_snapshot }
    PieceMeta { kind, changed, reserved, blocks }
    RefusedMeta { reason, what, reserved }
    FramesMeta { frames, forward }
    HeartbeatMeta { volume, shard, reserved, view, last, committed, keep }
    NameMeta { view, sequence, hid }
    SealAskMeta { pred, point, slice, reserved }
    SealMeta { pred, last, committed, promised, has_pred, damaged, given, reserved, slice }
    SyncMeta { until, map_from, map_since, behind_version, behind_sequence, past, names, flags, behind_blocks, reserved }
    SyncReplyMeta { common, map_next, behind_version, behind_sequence, frames, behind_blocks, mode, reserved }
    ControlMeta { body_crc, reserved }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_fill_their_struct() {
        for l in LAYOUTS {
            let mut at = 0;
            for f in l.fields {
                assert_eq!(f.offset, at, "{}.{}", l.name, f.name);
                at += f.bytes;
            }
            assert_eq!(at, l.bytes, "{}", l.name);
        }
    }
}

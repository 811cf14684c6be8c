//! Messages to bytes: header and meta go into one buffer, payload is handed on as it is.

use super::structs::{self as s, kind};
use super::{
    DurableItem, FrameName, Given, HeartbeatItem, Hello, Message, ReadReply, ReadRequest, Refused, Request, Room,
    SealAnswer, SyncReply, SyncRequest, ViewNews, Welcome, WriteRequest,
};
use crate::interval::put_participants;
use crate::{ExtentDesc, Frame, crc32c};
use bytes::{BufMut, Bytes, BytesMut};
use freebs_types::{Generation, HostPublic, NodeId, RequestNumber, SealedSlice, Sequence, ShardId, ViewNumber};
use zerocopy::IntoBytes;

/// The fields of the header that say where a message goes, and what it answers.
#[derive(Default)]
struct Addressed {
    shard: ShardId,
    view: ViewNumber,
    generation: Generation,
    id: u64,
    flags: u32,
}

impl Addressed {
    /// To or from a member in a view.
    fn in_view(shard: ShardId, view: ViewNumber) -> Self {
        Self { shard, view, ..Self::default() }
    }

    /// From the driver of an attachment.
    fn of_driver(shard: ShardId, generation: Generation) -> Self {
        Self { shard, generation, ..Self::default() }
    }
}

fn name(n: &FrameName) -> s::NameMeta {
    s::NameMeta { view: n.view.0.into(), sequence: n.sequence.0.into(), hid: n.hid.0 }
}

fn put_hello(h: &Hello, out: &mut BytesMut) -> Addressed {
    let meta = s::HelloMeta {
        cluster: h.cluster.0,
        node: h.node.0.into(),
        start: h.start.0.into(),
        from_worker: h.from_worker.into(),
        to_worker: h.to_worker.into(),
        role: h.role as u8,
        reserved: [0; 27],
    };
    out.put_slice(meta.as_bytes());
    Addressed::default()
}

fn put_welcome(w: &Welcome, out: &mut BytesMut) -> Addressed {
    let meta = s::WelcomeMeta {
        cluster: w.cluster.0,
        node: w.node.0.into(),
        start: w.start.0.into(),
        worker: w.worker.into(),
        workers: w.workers.into(),
        reserved: [0; 28],
    };
    out.put_slice(meta.as_bytes());
    Addressed::default()
}

/// A message of a driver that says nothing but who it is.
fn put_driver(driver: u64, identity: [u8; 32], to: Addressed, out: &mut BytesMut) -> Addressed {
    let meta =
        s::AttachMeta { driver: driver.into(), identity, view_sequence: 0.into(), floor: 0.into(), reserved: 0.into() };
    out.put_slice(meta.as_bytes());
    to
}

fn put_news(news: &ViewNews, floor: u64, out: &mut BytesMut) -> Addressed {
    let meta = s::AttachMeta {
        driver: 0.into(),
        identity: [0; 32],
        view_sequence: news.sequence.0.into(),
        floor: floor.into(),
        reserved: 0.into(),
    };
    out.put_slice(meta.as_bytes());
    out.put_slice(&news.body.encode());
    Addressed::in_view(news.shard, news.view)
}

fn put_write(w: &WriteRequest, out: &mut BytesMut) -> Addressed {
    let meta = s::WriteMeta {
        driver: w.driver.0.into(),
        lowest_open: w.lowest_open.0.into(),
        kind: w.kind as u8,
        reserved: [0; 3],
        extents: (w.extents.len() as u32).into(),
        reserved2: 0.into(),
    };
    out.put_slice(meta.as_bytes());
    if let Some(i) = &w.interval {
        let meta = s::IntervalMeta {
            decider_volume: i.id.decider.volume.0.into(),
            decider_shard: i.id.decider.index.into(),
            participants: (i.participants.len() as u32).into(),
            driver: i.id.driver.0.into(),
            number: i.id.number.0.into(),
            lowest_open: i.lowest_open.0.into(),
        };
        out.put_slice(meta.as_bytes());
        let mut shards = Vec::new();
        put_participants(&i.participants, &mut shards);
        out.put_slice(&shards);
    }
    for e in &w.extents {
        out.put_slice(ExtentDesc::of(e).as_bytes());
    }
    w.crcs.iter().for_each(|c| out.put_u32_le(*c));
    Addressed { view: w.view, id: w.number.0, ..Addressed::of_driver(w.shard, w.generation) }
}

fn put_ordered(items: &[(RequestNumber, Sequence)], out: &mut BytesMut) {
    for (number, sequence) in items {
        let meta = s::OrderedMeta { number: number.0.into(), sequence: sequence.0.into() };
        out.put_slice(meta.as_bytes());
    }
}

fn put_durable(items: &[DurableItem], out: &mut BytesMut) -> Addressed {
    for i in items {
        let meta = s::DurableMeta {
            volume: i.shard.volume.0.into(),
            shard: i.shard.index.into(),
            room: Room::encode(i.room).into(),
            view: i.view.0.into(),
            sequence: i.sequence.0.into(),
        };
        out.put_slice(meta.as_bytes());
    }
    Addressed::default()
}

fn put_read(r: &ReadRequest, out: &mut BytesMut) -> Addressed {
    let meta = s::ReadMeta {
        floor: r.floor.0.into(),
        lba: r.range.start.0.into(),
        blocks: r.range.len.into(),
        version: r.at.version.0.into(),
        snapshot: r.at.snapshot.0.into(),
        since: r.since.version.0.into(),
        since_snapshot: r.since.snapshot.0.into(),
    };
    out.put_slice(meta.as_bytes());
    let flags = u32::from(r.status_only);
    Addressed { shard: r.shard, view: r.view, generation: r.generation, id: r.id, flags }
}

fn put_read_reply(r: &ReadReply, out: &mut BytesMut) -> Addressed {
    for p in &r.pieces {
        let meta =
            s::PieceMeta { kind: p.kind as u8, changed: p.changed.into(), reserved: [0; 2], blocks: p.blocks.into() };
        out.put_slice(meta.as_bytes());
    }
    r.crcs.iter().for_each(|c| out.put_u32_le(*c));
    Addressed { shard: r.shard, id: r.id, flags: r.pieces.len() as u32, ..Addressed::default() }
}

fn put_refused(r: &Refused, out: &mut BytesMut) -> Addressed {
    let (what, id) = match r.request {
        Request::Attach => (0, 0),
        Request::Write(n) => (1, n.0),
        Request::Read(id) => (2, id),
    };
    out.put_slice(s::RefusedMeta { reason: r.reason as u8, what, reserved: [0; 6] }.as_bytes());
    Addressed { view: r.view, id, ..Addressed::of_driver(r.shard, r.generation) }
}

fn put_heads(frames: &[Frame], out: &mut BytesMut) {
    for f in frames {
        out.put_slice(f.head.bytes());
    }
}

fn put_frames(forward: &[NodeId], frames: &[Frame], out: &mut BytesMut) -> Addressed {
    let meta = s::FramesMeta { frames: (frames.len() as u32).into(), forward: (forward.len() as u32).into() };
    out.put_slice(meta.as_bytes());
    forward.iter().for_each(|n| out.put_u64_le(n.0));
    put_heads(frames, out);
    Addressed::default()
}

fn put_heartbeat(items: &[HeartbeatItem], out: &mut BytesMut) -> Addressed {
    for i in items {
        let meta = s::HeartbeatMeta {
            volume: i.shard.volume.0.into(),
            shard: i.shard.index.into(),
            reserved: 0.into(),
            view: i.view.0.into(),
            last: i.last.0.into(),
            committed: i.committed.0.into(),
            keep: i.keep.0.into(),
        };
        out.put_slice(meta.as_bytes());
    }
    Addressed::default()
}

fn put_seal(pred: ViewNumber, slice: Option<&(HostPublic, SealedSlice)>, out: &mut BytesMut) {
    match slice {
        None => out.put_u64_le(pred.0),
        Some((point, slice)) => {
            let meta = s::SealAskMeta { pred: pred.0.into(), point: point.0, slice: slice.0, reserved: [0; 7] };
            out.put_slice(meta.as_bytes());
        }
    }
}

fn put_seal_answer(a: &SealAnswer, out: &mut BytesMut) -> Addressed {
    let mut meta = s::SealMeta {
        pred: a.pred.0.into(),
        last: name(&a.last),
        committed: a.committed.0.into(),
        promised: a.promised.0.into(),
        has_pred: a.has_pred.into(),
        damaged: a.damaged.into(),
        given: 0,
        reserved: [0; 5],
        slice: [0; 72],
    };
    put_given(&mut meta, &a.given);
    out.put_slice(meta.as_bytes());
    Addressed::in_view(a.shard, a.view)
}

fn put_given(meta: &mut s::SealMeta, given: &Given) {
    let bytes: &[u8] = match given {
        Given::Nothing => &[],
        Given::Slice(slice) => &slice.0,
        Given::Secret(secret) => &secret.0,
    };
    meta.given = match given {
        Given::Nothing => s::GIVEN_NOTHING,
        Given::Slice(_) => s::GIVEN_SLICE,
        Given::Secret(_) => s::GIVEN_SECRET,
    };
    meta.slice[..bytes.len()].copy_from_slice(bytes);
}

fn put_sync(r: &SyncRequest, out: &mut BytesMut) -> Addressed {
    let meta = s::SyncMeta {
        until: r.until.0.into(),
        map_from: r.map_from.from.into(),
        map_since: r.map_since.0.into(),
        behind_version: r.map_from.behind.0.0.into(),
        behind_sequence: r.map_from.behind.1.0.into(),
        past: r.past.0.into(),
        names: (r.names.len() as u32).into(),
        flags: (u32::from(r.lost) * s::SYNC_LOST + u32::from(r.fetch) * s::SYNC_FETCH).into(),
        behind_blocks: r.map_from.blocks.into(),
        reserved: 0.into(),
    };
    out.put_slice(meta.as_bytes());
    r.names.iter().for_each(|n| out.put_slice(name(n).as_bytes()));
    Addressed { id: r.id, ..Addressed::in_view(r.shard, r.view) }
}

fn put_sync_reply(r: &SyncReply, out: &mut BytesMut) -> Addressed {
    let meta = s::SyncReplyMeta {
        common: r.common.0.into(),
        map_next: r.map_next.from.into(),
        behind_version: r.map_next.behind.0.0.into(),
        behind_sequence: r.map_next.behind.1.0.into(),
        frames: (r.frames.len() as u32).into(),
        behind_blocks: r.map_next.blocks.into(),
        mode: r.mode as u8,
        reserved: [0; 7],
    };
    out.put_slice(meta.as_bytes());
    put_heads(&r.frames, out);
    Addressed { id: r.id, ..Addressed::in_view(r.shard, r.view) }
}

fn put_control(id: u64, body: &Bytes, out: &mut BytesMut) -> Addressed {
    let meta = s::ControlMeta { body_crc: crc32c(body).into(), reserved: 0.into() };
    out.put_slice(meta.as_bytes());
    Addressed { id, ..Addressed::default() }
}

impl Message {
    /// The parts of the payload, in order.
    pub fn payload(&self) -> Vec<&Bytes> {
        let frames = |f: &'_ [Frame]| -> usize { f.iter().map(|f| f.data.len()).sum() };
        match self {
            Self::Write(w) => w.data.iter().collect(),
            Self::ReadReply(r) => r.data.iter().collect(),
            Self::Frames { frames: f, .. } | Self::SyncReply(SyncReply { frames: f, .. }) => {
                let mut out = Vec::with_capacity(frames(f));
                out.extend(f.iter().flat_map(|f| &f.data));
                out
            }
            Self::Control { body, .. } | Self::ControlReply { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// Appends header and meta to `out`; the caller sends `payload()` right behind.
    pub fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_bytes(0, s::HEADER_BYTES);
        let (kind, to) = self.put_meta(out);
        let meta_len = out.len() - start - s::HEADER_BYTES;
        let payload: usize = self.data_bytes();
        let mut header = s::MessageHeader {
            magic: s::MESSAGE_MAGIC,
            version: s::WIRE_VERSION.into(),
            kind: kind.into(),
            total_len: ((s::HEADER_BYTES + meta_len + payload) as u32).into(),
            meta_len: (meta_len as u32).into(),
            volume: to.shard.volume.0.into(),
            shard: to.shard.index.into(),
            flags: to.flags.into(),
            view: to.view.0.into(),
            generation: to.generation.0.into(),
            id: to.id.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        out[start..start + s::HEADER_BYTES].copy_from_slice(header.as_bytes());
        header.crc = message_crc(&out[start..]).into();
        out[start + 60..start + 64].copy_from_slice(header.crc.as_bytes());
    }

    /// Appends the meta part; gives back the kind, and the fields of the header that say where it goes.
    fn put_meta(&self, out: &mut BytesMut) -> (u16, Addressed) {
        match self {
            Self::Hello(h) => (kind::HELLO, put_hello(h, out)),
            Self::Welcome(w) => (kind::WELCOME, put_welcome(w, out)),
            Self::Attach { shard, view, generation, driver, identity } => {
                let to = Addressed { view: *view, ..Addressed::of_driver(*shard, *generation) };
                (kind::ATTACH, put_driver(driver.0, identity.0, to, out))
            }
            Self::Follow { shard, generation, driver } => {
                (kind::FOLLOW, put_driver(driver.0, [0; 32], Addressed::of_driver(*shard, *generation), out))
            }
            Self::Detach { shard, generation, driver } => {
                (kind::DETACH, put_driver(driver.0, [0; 32], Addressed::of_driver(*shard, *generation), out))
            }
            Self::Lease { shard, generation, driver, stamp } => {
                let to = Addressed { id: stamp.0, ..Addressed::of_driver(*shard, *generation) };
                (kind::LEASE, put_driver(driver.0, [0; 32], to, out))
            }
            Self::Leased(l) => {
                let (id, flags) = (l.stamp.0, l.older_ms);
                (kind::LEASED, Addressed { shard: l.shard, view: l.view, generation: l.generation, id, flags })
            }
            Self::Attached { news, generation, floor } => {
                (kind::ATTACHED, Addressed { generation: *generation, ..put_news(news, floor.0, out) })
            }
            Self::View(news) => (kind::VIEW, put_news(news, 0, out)),
            Self::Write(w) => (kind::WRITE, put_write(w, out)),
            Self::Ordered { shard, view, items } => {
                put_ordered(items, out);
                (kind::ORDERED, Addressed::in_view(*shard, *view))
            }
            Self::Durable(items) => (kind::DURABLE, put_durable(items, out)),
            Self::Read(r) => (kind::READ, put_read(r, out)),
            Self::ReadReply(r) => (kind::READ_REPLY, put_read_reply(r, out)),
            Self::Refused(r) => (kind::REFUSED, put_refused(r, out)),
            Self::Frames { forward, frames } => (kind::FRAMES, put_frames(forward, frames, out)),
            Self::Heartbeat(items) => (kind::HEARTBEAT, put_heartbeat(items, out)),
            Self::Seal { shard, view, pred, slice } => {
                put_seal(*pred, slice.as_ref(), out);
                (kind::SEAL, Addressed::in_view(*shard, *view))
            }
            Self::SealAnswer(a) => (kind::SEAL_ANSWER, put_seal_answer(a, out)),
            Self::Sync(r) => (kind::SYNC, put_sync(r, out)),
            Self::SyncReply(r) => (kind::SYNC_REPLY, put_sync_reply(r, out)),
            Self::Nudge { shard, view } => (kind::NUDGE, Addressed::in_view(*shard, *view)),
            Self::Control { id, body } => (kind::CONTROL, put_control(*id, body, out)),
            Self::ControlReply { id, body } => (kind::CONTROL_REPLY, put_control(*id, body, out)),
        }
    }
}

/// CRC of a message that starts with its header and goes on with its meta part (and nothing else).
pub(super) fn message_crc(header_and_meta: &[u8]) -> u32 {
    let a = crc32c(&header_and_meta[..60]);
    let b = crc32c(&header_and_meta[s::HEADER_BYTES..]);
    a ^ b.rotate_left(1)
}

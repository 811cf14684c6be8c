//! Bytes to messages. Lengths are held against maxima before anything is split off or allocated.

use super::encode::message_crc;
use super::structs::{self as s, kind};
use super::{
    DurableItem, FrameName, Given, HeartbeatItem, Hello, IntervalPart, Leased, MapPoint, Message, Piece, ReadReply,
    ReadRequest, Refusal, Refused, Request, Role, Room, SealAnswer, SyncMode, SyncReply, SyncRequest, ViewNews,
    Welcome, WriteRequest,
};
use crate::interval::{ParticipantDesc, participants};
use crate::{Extent, ExtentDesc, ExtentKind, Frame, FrameHead, IntervalId, Pin, UpdateKind, ViewBody, crc32c};
use bytes::{Bytes, BytesMut};
use freebs_types::{
    BLOCK, BlockRange, ClusterId, DriverId, Error, Generation, Hash32, HostPublic, IntervalNumber, Lba, Nanos, NodeId,
    RequestNumber, Result, SLICE_BYTES, SealedSlice, Sequence, ShardId, Slice, SnapshotId, StartNumber, Version,
    ViewNumber, VolumeId, limits,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

fn bad(what: &'static str) -> Error {
    Error::corrupt(what)
}

fn table<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> Result<&[T]> {
    let items = <[T]>::ref_from_bytes(bytes).map_err(|_| bad("message table is cut short"))?;
    if items.len() > s::TABLE_ITEMS_MAX { Err(bad("message table is too long")) } else { Ok(items) }
}

fn split<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> Result<(&T, &[u8])> {
    T::ref_from_prefix(bytes).map_err(|_| bad("message is cut short"))
}

fn split_table<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8], n: usize) -> Result<(&[T], &[u8])> {
    if n > s::TABLE_ITEMS_MAX {
        return Err(bad("message table is too long"));
    }
    <[T]>::ref_from_prefix_with_elems(bytes, n).map_err(|_| bad("message table is cut short"))
}

fn whole<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> Result<&T> {
    T::ref_from_bytes(bytes).map_err(|_| bad("message has a wrong length"))
}

fn frame_name(n: &s::NameMeta) -> FrameName {
    FrameName { view: ViewNumber(n.view.get()), sequence: Sequence(n.sequence.get()), hid: Hash32(n.hid) }
}

/// Takes `count` heads off `meta` and their data off `payload`.
fn frames(mut meta: Bytes, mut payload: Bytes, count: usize) -> Result<Vec<Frame>> {
    if count > meta.len() / 256 {
        return Err(bad("message names more frames than it holds"));
    }
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        let head = FrameHead::parse(&mut meta)?;
        let len = head.header().data_len.get() as usize;
        if payload.len() < len {
            return Err(bad("frame data are cut short"));
        }
        let data = if len == 0 { Vec::new() } else { vec![payload.split_to(len)] };
        out.push(Frame::new(head, data)?);
    }
    if meta.is_empty() && payload.is_empty() { Ok(out) } else { Err(bad("message with bytes left over")) }
}

/// The fields of the header in their own types.
struct Head {
    shard: ShardId,
    view: ViewNumber,
    generation: Generation,
    id: u64,
    flags: u32,
}

impl Message {
    /// Bytes that the message at the start of `bytes` has in all; `HEADER_BYTES` while that is not known yet.
    pub fn wanted(bytes: &[u8]) -> Result<usize> {
        let Ok((h, _)) = s::MessageHeader::ref_from_prefix(bytes) else { return Ok(s::HEADER_BYTES) };
        if h.magic != s::MESSAGE_MAGIC {
            return Err(bad("this is no freebs message: is the other end a freebs of this kind?"));
        }
        if h.version.get() != s::WIRE_VERSION {
            return Err(Error::invalid("the other end speaks another version of the protocol"));
        }
        let (total, meta) = (h.total_len.get() as usize, h.meta_len.get() as usize);
        if total > limits::MESSAGE_BYTES_MAX || meta > s::META_BYTES_MAX || total < s::HEADER_BYTES + meta {
            return Err(bad("message with impossible lengths"));
        }
        Ok(total)
    }

    /// Takes one whole message off the front of `buf`, if there is one. Payload is not copied.
    pub fn decode(buf: &mut BytesMut) -> Result<Option<Self>> {
        let total = Self::wanted(buf)?;
        if buf.len() < total || total < s::HEADER_BYTES {
            return Ok(None);
        }
        let h = *whole::<s::MessageHeader>(&buf[..s::HEADER_BYTES])?;
        let meta_end = s::HEADER_BYTES + h.meta_len.get() as usize;
        if message_crc(&buf[..meta_end]) != h.crc.get() {
            return Err(bad("message does not match its checksum"));
        }
        let mut bytes = buf.split_to(total).freeze();
        let payload = bytes.split_off(meta_end);
        let meta = bytes.split_off(s::HEADER_BYTES);
        let head = Head {
            shard: ShardId { volume: VolumeId(h.volume.get()), index: h.shard.get() },
            view: ViewNumber(h.view.get()),
            generation: Generation(h.generation.get()),
            id: h.id.get(),
            flags: h.flags.get(),
        };
        let has_payload = matches!(
            h.kind.get(),
            kind::WRITE | kind::READ_REPLY | kind::FRAMES | kind::SYNC_REPLY | kind::CONTROL | kind::CONTROL_REPLY
        );
        if !has_payload && !payload.is_empty() {
            return Err(bad("message with bytes left over"));
        }
        Self::from_parts(h.kind.get(), &head, meta, payload).map(Some)
    }

    /// Bytes of a greeting, at most: no payload, and a small meta part.
    pub const GREETING_BYTES_MAX: usize = 512;

    /// As `decode`, for the first message of a connection, whose sender is not known yet: a longer one than
    /// `GREETING_BYTES_MAX` is refused before it is awaited.
    pub fn decode_greeting(buf: &mut BytesMut) -> Result<Option<Self>> {
        if Self::wanted(buf)? > Self::GREETING_BYTES_MAX {
            return Err(bad("the greeting is too long"));
        }
        Self::decode(buf)
    }

    fn from_parts(kind: u16, h: &Head, meta: Bytes, payload: Bytes) -> Result<Self> {
        Ok(match kind {
            kind::HELLO => Self::Hello(hello(&meta)?),
            kind::WELCOME => Self::Welcome(welcome(&meta)?),
            kind::ATTACH | kind::FOLLOW | kind::DETACH | kind::LEASE | kind::ATTACHED | kind::VIEW => {
                attach(kind, h, &meta)?
            }
            kind::LEASED if meta.is_empty() => Self::Leased(Leased {
                shard: h.shard,
                view: h.view,
                generation: h.generation,
                stamp: Nanos(h.id),
                older_ms: h.flags,
            }),
            kind::WRITE => Self::Write(write(h, &meta, payload)?),
            kind::ORDERED => Self::Ordered {
                shard: h.shard,
                view: h.view,
                items: table::<s::OrderedMeta>(&meta)?
                    .iter()
                    .map(|i| (RequestNumber(i.number.get()), Sequence(i.sequence.get())))
                    .collect(),
            },
            kind::DURABLE => Self::Durable(table::<s::DurableMeta>(&meta)?.iter().map(durable_item).collect()),
            kind::READ => {
                let m = whole::<s::ReadMeta>(&meta)?;
                Self::Read(ReadRequest {
                    shard: h.shard,
                    view: h.view,
                    generation: h.generation,
                    id: h.id,
                    floor: Sequence(m.floor.get()),
                    range: BlockRange { start: Lba(m.lba.get()), len: m.blocks.get() },
                    status_only: h.flags & 1 != 0,
                    at: Pin { version: Version(m.version.get()), snapshot: SnapshotId(m.snapshot.get()) },
                    since: Pin { version: Version(m.since.get()), snapshot: SnapshotId(m.since_snapshot.get()) },
                })
            }
            kind::READ_REPLY => Self::ReadReply(read_reply(h, &meta, payload)?),
            kind::REFUSED => Self::Refused(refused(h, &meta)?),
            kind::FRAMES => frames_message(&meta, payload)?,
            kind::HEARTBEAT => Self::Heartbeat(table::<s::HeartbeatMeta>(&meta)?.iter().map(heartbeat).collect()),
            kind::SEAL => {
                let (pred, slice) = match whole::<s::SealAskMeta>(&meta) {
                    Ok(m) => (m.pred, Some((HostPublic(m.point), SealedSlice(m.slice)))),
                    Err(_) => (*whole::<U64>(&meta)?, None),
                };
                Self::Seal { shard: h.shard, view: h.view, pred: ViewNumber(pred.get()), slice }
            }
            kind::SEAL_ANSWER => Self::SealAnswer(seal_answer(h, &meta)?),
            kind::SYNC => Self::Sync(sync(h, &meta)?),
            kind::SYNC_REPLY => Self::SyncReply(sync_reply(h, &meta, payload)?),
            kind::NUDGE if meta.is_empty() => Self::Nudge { shard: h.shard, view: h.view },
            kind::NUDGE | kind::LEASED => return Err(bad("message with bytes left over")),
            kind::CONTROL => Self::Control { id: h.id, body: control_body(&meta, payload)? },
            kind::CONTROL_REPLY => Self::ControlReply { id: h.id, body: control_body(&meta, payload)? },
            _ => return Err(Error::invalid("message of an unknown kind; is the other end newer?")),
        })
    }
}

fn hello(meta: &[u8]) -> Result<Hello> {
    let m = whole::<s::HelloMeta>(meta)?;
    let role = [Role::Node, Role::Driver, Role::Control, Role::Seat].into_iter().find(|r| *r as u8 == m.role);
    Ok(Hello {
        cluster: ClusterId(m.cluster),
        role: role.ok_or_else(|| bad("hello with an unknown role"))?,
        node: NodeId(m.node.get()),
        start: StartNumber(m.start.get()),
        from_worker: m.from_worker.get(),
        to_worker: m.to_worker.get(),
    })
}

fn welcome(meta: &[u8]) -> Result<Welcome> {
    let m = whole::<s::WelcomeMeta>(meta)?;
    Ok(Welcome {
        cluster: ClusterId(m.cluster),
        node: NodeId(m.node.get()),
        start: StartNumber(m.start.get()),
        worker: m.worker.get(),
        workers: m.workers.get(),
    })
}

fn attach(kind: u16, h: &Head, meta: &[u8]) -> Result<Message> {
    let (m, rest) = split::<s::AttachMeta>(meta)?;
    let (driver, shard, generation) = (DriverId(m.driver.get()), h.shard, h.generation);
    let news = |rest: &[u8]| -> Result<ViewNews> {
        let body = ViewBody::decode(rest)?;
        Ok(ViewNews { shard, view: h.view, sequence: Sequence(m.view_sequence.get()), body })
    };
    if matches!(kind, kind::ATTACH | kind::FOLLOW | kind::DETACH | kind::LEASE) && !rest.is_empty() {
        return Err(bad("message with bytes left over"));
    }
    Ok(match kind {
        kind::ATTACH => Message::Attach { shard, view: h.view, generation, driver, identity: Hash32(m.identity) },
        kind::FOLLOW => Message::Follow { shard, generation, driver },
        kind::DETACH => Message::Detach { shard, generation, driver },
        kind::LEASE => Message::Lease { shard, generation, driver, stamp: Nanos(h.id) },
        kind::VIEW => Message::View(news(rest)?),
        _ => Message::Attached { news: news(rest)?, generation, floor: Sequence(m.floor.get()) },
    })
}

fn extents(table: &[ExtentDesc]) -> Result<Vec<Extent>> {
    let extent = |d: &ExtentDesc| {
        let kind = ExtentKind::from_byte(d.kind).ok_or_else(|| bad("unknown kind of extent"))?;
        Ok(Extent { kind, range: BlockRange { start: d.start(), len: d.blocks.get() } })
    };
    table.iter().map(extent).collect()
}

/// The interval that a request is about, and what is behind that.
fn interval(meta: &[u8]) -> Result<(Option<Box<IntervalPart>>, &[u8])> {
    let (m, rest) = split::<s::IntervalMeta>(meta)?;
    if m.participants.get() as usize > limits::INTERVAL_SHARDS_MAX {
        return Err(bad("interval over too many shards"));
    }
    let (table, rest) = split_table::<ParticipantDesc>(rest, m.participants.get() as usize)?;
    let id = IntervalId {
        decider: ShardId { volume: VolumeId(m.decider_volume.get()), index: m.decider_shard.get() },
        driver: DriverId(m.driver.get()),
        number: IntervalNumber(m.number.get()),
    };
    let lowest_open = IntervalNumber(m.lowest_open.get());
    Ok((Some(Box::new(IntervalPart { id, lowest_open, participants: participants(table)? })), rest))
}

fn write(h: &Head, meta: &[u8], payload: Bytes) -> Result<WriteRequest> {
    let (m, rest) = split::<s::WriteMeta>(meta)?;
    if m.extents.get() as usize > limits::UPDATE_EXTENTS_MAX || payload.len() > limits::UPDATE_DATA_BYTES_MAX {
        return Err(bad("write beyond the limits of an update"));
    }
    let kind = match UpdateKind::from_byte(m.kind) {
        Some(k @ (UpdateKind::Write | UpdateKind::Trim | UpdateKind::Zero)) => k,
        Some(k) if k.is_interval() => k,
        _ => return Err(bad("a driver can't ask for this kind of update")),
    };
    let (interval, rest) = if kind.is_interval() { interval(rest)? } else { (None, rest) };
    let (table, crcs) = split_table::<ExtentDesc>(rest, m.extents.get() as usize)?;
    if !payload.len().is_multiple_of(BLOCK) || crcs.len() != payload.len() / BLOCK * 4 {
        return Err(bad("CRC table does not fit the data"));
    }
    Ok(WriteRequest {
        shard: h.shard,
        view: h.view,
        generation: h.generation,
        driver: DriverId(m.driver.get()),
        number: RequestNumber(h.id),
        lowest_open: RequestNumber(m.lowest_open.get()),
        kind,
        interval,
        extents: extents(table)?,
        crcs: <[U32]>::ref_from_bytes(crcs).expect("multiple of four").iter().map(|c| c.get()).collect(),
        data: if payload.is_empty() { Vec::new() } else { vec![payload] },
    })
}

fn durable_item(m: &s::DurableMeta) -> DurableItem {
    DurableItem {
        shard: ShardId { volume: VolumeId(m.volume.get()), index: m.shard.get() },
        view: ViewNumber(m.view.get()),
        sequence: Sequence(m.sequence.get()),
        room: Room::decode(m.room.get()),
    }
}

fn heartbeat(m: &s::HeartbeatMeta) -> HeartbeatItem {
    HeartbeatItem {
        shard: ShardId { volume: VolumeId(m.volume.get()), index: m.shard.get() },
        view: ViewNumber(m.view.get()),
        last: Sequence(m.last.get()),
        committed: Sequence(m.committed.get()),
        keep: Sequence(m.keep.get()),
    }
}

fn read_reply(h: &Head, meta: &[u8], payload: Bytes) -> Result<ReadReply> {
    let (table, crcs) = split_table::<s::PieceMeta>(meta, h.flags as usize)?;
    if !payload.len().is_multiple_of(BLOCK) || crcs.len() != payload.len() / BLOCK * 4 {
        return Err(bad("CRC table does not fit the data"));
    }
    let piece = |p: &s::PieceMeta| {
        let kind = ExtentKind::from_byte(p.kind).ok_or_else(|| bad("unknown kind of extent"))?;
        Ok(Piece { kind, blocks: p.blocks.get(), changed: p.changed != 0 })
    };
    Ok(ReadReply {
        shard: h.shard,
        id: h.id,
        pieces: table.iter().map(piece).collect::<Result<_>>()?,
        crcs: <[U32]>::ref_from_bytes(crcs).expect("multiple of four").iter().map(|c| c.get()).collect(),
        data: if payload.is_empty() { Vec::new() } else { vec![payload] },
    })
}

fn refused(h: &Head, meta: &[u8]) -> Result<Refused> {
    let m = whole::<s::RefusedMeta>(meta)?;
    let request = match m.what {
        0 => Request::Attach,
        1 => Request::Write(RequestNumber(h.id)),
        2 => Request::Read(h.id),
        _ => return Err(bad("refusal of an unknown request")),
    };
    Ok(Refused {
        shard: h.shard,
        request,
        reason: Refusal::from_byte(m.reason).ok_or_else(|| bad("refusal for an unknown reason"))?,
        view: h.view,
        generation: h.generation,
    })
}

fn frames_message(meta: &Bytes, payload: Bytes) -> Result<Message> {
    let (m, rest) = split::<s::FramesMeta>(meta)?;
    if m.forward.get() as usize > limits::CHAIN_MEMBERS_MAX {
        return Err(bad("too many nodes to forward to"));
    }
    let (forward, heads) = split_table::<U64>(rest, m.forward.get() as usize)?;
    let frames = frames(meta.slice_ref(heads), payload, m.frames.get() as usize)?;
    Ok(Message::Frames { forward: forward.iter().map(|n| NodeId(n.get())).collect(), frames })
}

fn seal_answer(h: &Head, meta: &[u8]) -> Result<SealAnswer> {
    let m = whole::<s::SealMeta>(meta)?;
    Ok(SealAnswer {
        shard: h.shard,
        view: h.view,
        pred: ViewNumber(m.pred.get()),
        last: frame_name(&m.last),
        has_pred: m.has_pred != 0,
        committed: Sequence(m.committed.get()),
        damaged: m.damaged != 0,
        promised: ViewNumber(m.promised.get()),
        given: given(m)?,
    })
}

fn given(m: &s::SealMeta) -> Result<Given> {
    let short = |_| bad("slice of a wrong length");
    Ok(match m.given {
        s::GIVEN_NOTHING => Given::Nothing,
        s::GIVEN_SLICE => Given::Slice(Slice(m.slice[..SLICE_BYTES].try_into().map_err(short)?)),
        s::GIVEN_SECRET => Given::Secret(Hash32(m.slice[..32].try_into().map_err(short)?)),
        _ => return Err(bad("unknown kind of slice")),
    })
}

fn control_body(meta: &[u8], payload: Bytes) -> Result<Bytes> {
    let m = whole::<s::ControlMeta>(meta)?;
    if payload.len() > limits::CONTROL_BODY_BYTES_MAX {
        return Err(bad("control body is too long"));
    }
    if crc32c(&payload) != m.body_crc.get() {
        return Err(bad("control body does not match its checksum"));
    }
    Ok(payload)
}

fn map_point(from: U64, version: U64, sequence: U64, blocks: U32) -> MapPoint {
    MapPoint { from: from.get(), behind: (Version(version.get()), Sequence(sequence.get())), blocks: blocks.get() }
}

fn sync(h: &Head, meta: &[u8]) -> Result<SyncRequest> {
    let (m, rest) = split::<s::SyncMeta>(meta)?;
    let names = table::<s::NameMeta>(rest)?;
    if names.len() != m.names.get() as usize {
        return Err(bad("sync request is cut short"));
    }
    Ok(SyncRequest {
        shard: h.shard,
        view: h.view,
        id: h.id,
        names: names.iter().map(frame_name).collect(),
        until: Sequence(m.until.get()),
        map_from: map_point(m.map_from, m.behind_version, m.behind_sequence, m.behind_blocks),
        map_since: Sequence(m.map_since.get()),
        lost: m.flags.get() & s::SYNC_LOST != 0,
        fetch: m.flags.get() & s::SYNC_FETCH != 0,
        past: Version(m.past.get()),
    })
}

fn sync_reply(h: &Head, meta: &Bytes, payload: Bytes) -> Result<SyncReply> {
    let (m, rest) = split::<s::SyncReplyMeta>(meta)?;
    let modes = [SyncMode::Frames, SyncMode::Level, SyncMode::Map, SyncMode::MapEnd, SyncMode::Refused];
    let mode = modes.into_iter().find(|x| *x as u8 == m.mode);
    Ok(SyncReply {
        shard: h.shard,
        view: h.view,
        id: h.id,
        mode: mode.ok_or_else(|| bad("sync reply of an unknown mode"))?,
        common: Sequence(m.common.get()),
        map_next: map_point(m.map_next, m.behind_version, m.behind_sequence, m.behind_blocks),
        frames: frames(meta.slice_ref(rest), payload, m.frames.get() as usize)?,
    })
}

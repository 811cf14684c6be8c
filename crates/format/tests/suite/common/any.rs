//! Anything that can be built: strategies for frames and messages.

use super::{block, build, one_piece};
use bytes::Bytes;
use freebs_format::wire::*;
use freebs_format::*;
use freebs_types::*;
use proptest::collection::vec;
use proptest::prelude::*;

pub fn hash() -> impl Strategy<Value = Hash32> {
    any::<[u8; 32]>().prop_map(Hash32)
}

pub fn shard_id() -> impl Strategy<Value = ShardId> {
    (any::<u64>(), any::<u32>()).prop_map(|(v, i)| ShardId::new(v, i))
}

/// Numbers that count on for ever.
pub fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..10, 0..=u64::MAX / 2]
}

pub fn frame_meta() -> impl Strategy<Value = FrameMeta> {
    let ids = (any::<[u8; 16]>(), shard_id(), any::<u64>(), any::<u32>(), 0u32..8192);
    (ids, number(), number(), number(), number(), any::<u64>()).prop_map(
        |(ids, view, sequence, version, done, wall)| {
            let (cluster, shard, chunk_view, counter, chunk_offset) = ids;
            FrameMeta {
                cluster: ClusterId(cluster),
                shard,
                view: ViewNumber(view),
                chunk: ChunkId { view: ViewNumber(chunk_view), counter },
                chunk_offset,
                sequence: Sequence(sequence),
                first_version: Version(version),
                committed: Sequence(done),
                wall,
            }
        },
    )
}

pub fn extent_kind() -> impl Strategy<Value = ExtentKind> {
    prop_oneof![Just(ExtentKind::Data), Just(ExtentKind::Trim), Just(ExtentKind::Zero)]
}

pub fn range(blocks: u32) -> impl Strategy<Value = BlockRange> {
    let end = limits::SHARD_BLOCKS_MAX as u32;
    (1..=blocks, prop_oneof![Just(0u32), 0..end - blocks, Just(end)])
        .prop_map(move |(len, at)| BlockRange::new(at.min(end - len), len))
}

/// An update that `check` accepts, of up to `extents` extents and four times as many blocks of data.
pub fn draft(extents: usize) -> impl Strategy<Value = UpdateDraft> {
    let kind = prop_oneof![Just(UpdateKind::Write), Just(UpdateKind::Trim), Just(UpdateKind::Zero)];
    let extents = vec((extent_kind(), range(4)), 1..=extents);
    (kind, any::<[u64; 3]>(), extents, any::<u8>()).prop_map(|(kind, [driver, number, lowest_open], extents, seed)| {
        let extents: Vec<Extent> = extents.into_iter().map(|(kind, range)| Extent { kind, range }).collect();
        let blocks: u32 = extents.iter().filter(|e| e.kind == ExtentKind::Data).map(|e| e.range.len).sum();
        let data: Vec<Bytes> = (0..blocks).map(|i| block(seed.wrapping_add(i as u8))).collect();
        UpdateDraft {
            kind,
            driver: DriverId(driver),
            number: RequestNumber(number),
            lowest_open: RequestNumber(lowest_open),
            extents,
            crcs: data.iter().map(|b| block_crc(b)).collect(),
            data,
        }
    })
}

pub fn view_body() -> impl Strategy<Value = ViewBody> {
    let members = vec(any::<[u64; 2]>(), 1..=limits::CHAIN_MEMBERS_MAX);
    let shared = prop::option::of((any::<[u8; 32]>(), hash(), any::<u8>()));
    let numbers = (any::<[u64; 3]>(), any::<[u8; 2]>());
    let volume = prop::option::of(("[a-z]{1,128}", any::<[u64; 2]>(), any::<u32>(), any::<[u8; 2]>(), any::<bool>()));
    let all = (numbers, [hash(), hash()], members, shared, volume);
    all.prop_map(|((numbers, small), hashes, members, shared, volume)| {
        let [pred, seal, generation] = numbers;
        ViewBody {
            pred: ViewNumber(pred),
            seal_sequence: Sequence(seal),
            seal_hid: hashes[0],
            secret_hash: hashes[1],
            quorum: small[0] % members.len() as u8 + 1,
            min_copies: small[1],
            generation: Generation(generation),
            shared: shared.map(|(point, pred_secret, n)| {
                Box::new(ViewSecret {
                    threshold: n % members.len() as u8 + 1,
                    point: HostPublic(point),
                    pred_secret,
                    slices: members.iter().map(|m| SealedSlice([m[0] as u8; SEALED_SLICE_BYTES])).collect(),
                })
            }),
            volume: volume.map(|(name, [size, stripe], shards, [copies, min_copies], all)| {
                Box::new(VolumeDescription {
                    name,
                    size,
                    stripe,
                    shards,
                    copies,
                    min_copies,
                    all,
                    retain_ms: stripe,
                    branch: ViewNumber(pred),
                })
            }),
            members: members.iter().map(|m| Member { node: NodeId(m[0]), start: StartNumber(m[1]) }).collect(),
        }
    })
}

pub fn attach_body() -> impl Strategy<Value = AttachBody> {
    (any::<[u64; 2]>(), hash()).prop_map(|([g, d], identity)| AttachBody {
        generation: Generation(g),
        driver: DriverId(d),
        identity,
    })
}

pub fn view_frame() -> impl Strategy<Value = Frame> {
    (frame_meta(), view_body(), hash(), hash())
        .prop_map(|(meta, body, s, p)| FrameBuilder::special(&meta, FrameKind::View, &body.encode(), &s, &p).0)
}

fn closed_view((view, (published, secret)): (u64, (u64, Hash32))) -> ClosedView {
    ClosedView { view: ViewNumber(view), published: Sequence(published), secret }
}

pub fn mark_body() -> impl Strategy<Value = MarkBody> {
    let requests = (vec(any::<[u64; 2]>(), 0..5), vec(any::<[u64; 3]>(), 0..9));
    let closed = prop::collection::btree_map(any::<u64>(), (any::<u64>(), hash()), 0..4);
    let numbers = (any::<[u64; 8]>(), prop::collection::btree_set(1..1u64 << 62, 0..5), 0..1u64 << 62, closed);
    let hashes = [hash(), hash(), hash()];
    (numbers, hashes, attach_body(), any::<[bool; 3]>(), prop::option::of(view_frame()), requests).prop_map(
        |(
            ([promised, secret_view, committed, last_view, released, since, upto, append], pins, retain, closed),
            h,
            attach,
            flags,
            view,
            (floors, entries),
        )| {
            MarkBody {
                promised: ViewNumber(promised),
                secret_view: ViewNumber(secret_view),
                secret: h[0],
                committed: Sequence(committed >> 2),
                attach,
                last_view: ViewNumber(last_view),
                last_parent: h[1],
                last_digest: h[2],
                released: Sequence(released),
                deleted: flags[0],
                suspect_tail: flags[1],
                whole: flags[2],
                learned_since: Sequence(since),
                learned_upto: Sequence(upto),
                learned_from_append: append,
                flat: (append % 7 < 3).then(|| Flat {
                    upto: Sequence(upto >> 2),
                    from_append: append.min(since),
                    to_append: if append.min(since) > 0 { append.max(since) } else { 0 },
                }),
                given_up: ViewNumber(append / 3),
                view_frame: view.map(|f| f.head),
                requests: Requests {
                    floors: floors
                        .iter()
                        .map(|f| RequestFloor { driver: DriverId(f[0]), lowest_open: RequestNumber(f[1]) })
                        .collect(),
                    entries: entries
                        .iter()
                        .map(|e| RequestEntry {
                            driver: DriverId(e[0]),
                            number: RequestNumber(e[1]),
                            sequence: Sequence(e[2]),
                        })
                        .collect(),
                },
                lost: pins.iter().filter(|_| append % 5 < 2).map(|v| Version(*v)).collect(),
                pins: pins.into_iter().map(|v| Pin { version: Version(v), snapshot: SnapshotId(v / 3) }).collect(),
                retain: Version(retain),
                kept_as_of: Some(Sequence(upto >> 2)).filter(|s| s.0 % 3 > 0 && s.0 != committed >> 2),
                whole_from: Version(if since % 2 == 0 { since >> 2 } else { 0 }),
                whole_past: append % 2 == 0,
                fork: (append % 3 == 0).then_some(Fork {
                    parent: ShardId::new(since, upto as u32),
                    snapshot: SnapshotId(append),
                    version: Version((since >> 2).max(1)),
                    sequence: Sequence((upto >> 2).max(1)),
                }),
                closed: closed.into_iter().map(closed_view).collect(),
            }
        },
    )
}

pub fn carry() -> impl Strategy<Value = (CarryBody, Vec<Bytes>)> {
    let entry = (extent_kind(), range(3), any::<[u64; 3]>(), any::<u32>(), 0u32..8192);
    (vec(entry, 0..6), any::<u8>()).prop_map(|(entries, seed)| {
        let mut data = Vec::new();
        let mut carried =
            |(kind, range, [version, sequence, view], counter, offset): (_, BlockRange, [u64; 3], _, _)| {
                let blocks = if kind == ExtentKind::Data { range.len } else { 0 };
                let mine: Vec<Bytes> =
                    (0..blocks).map(|i| block(seed.wrapping_add(data.len() as u8 + i as u8))).collect();
                let crcs = mine.iter().map(|b| block_crc(b)).collect();
                data.extend(mine);
                CarryEntry {
                    kind,
                    range,
                    version: Version(version),
                    sequence: Sequence(sequence),
                    chunk: ChunkId { view: ViewNumber(view), counter },
                    offset,
                    crcs,
                }
            };
        let body = CarryBody { entries: entries.into_iter().map(&mut carried).collect() };
        (body, data)
    })
}

/// A frame of any kind that is made today.
pub fn frame() -> impl Strategy<Value = Frame> {
    let data = (frame_meta(), vec(draft(4), 0..4), hash()).prop_map(|(m, d, p)| build(&m, d, &p).0);
    let attach = (frame_meta(), attach_body(), hash(), hash())
        .prop_map(|(m, b, s, p)| FrameBuilder::special(&m, FrameKind::Attach, &b.encode(), &s, &p).0);
    let mark = (frame_meta(), mark_body(), hash())
        .prop_map(|(m, b, hid)| FrameBuilder::local(&m, FrameKind::Mark, &b.encode(), Vec::new(), &hid));
    let carry = (frame_meta(), carry(), hash())
        .prop_map(|(m, (b, d), hid)| one_piece(FrameBuilder::local(&m, FrameKind::Carry, &b.encode(), d, &hid)));
    prop_oneof![4 => data, 1 => view_frame(), 1 => attach, 1 => mark, 1 => carry]
}

fn view_news() -> impl Strategy<Value = ViewNews> {
    (shard_id(), any::<[u64; 2]>(), view_body()).prop_map(|(shard, [view, sequence], body)| ViewNews {
        shard,
        view: ViewNumber(view),
        sequence: Sequence(sequence),
        body,
    })
}

fn interval_part() -> impl Strategy<Value = (UpdateKind, Option<Box<IntervalPart>>)> {
    let kind = prop_oneof![Just(UpdateKind::Prepare), Just(UpdateKind::Commit), Just(UpdateKind::Abort)];
    let shards = prop::collection::btree_set(shard_id(), 0..5);
    (kind, shard_id(), any::<[u64; 3]>(), shards).prop_map(|(kind, decider, [driver, number, lowest_open], shards)| {
        let id = IntervalId { decider, driver: DriverId(driver), number: IntervalNumber(number) };
        let (participants, lowest_open) = (shards.into_iter().collect(), IntervalNumber(lowest_open));
        (kind, Some(Box::new(IntervalPart { id, lowest_open, participants })))
    })
}

fn write_request() -> impl Strategy<Value = WriteRequest> {
    let of = prop::option::of(interval_part());
    (plain_write(), of).prop_map(|(w, of)| match of {
        Some((kind, interval)) => WriteRequest { kind, interval, ..w },
        None => w,
    })
}

fn plain_write() -> impl Strategy<Value = WriteRequest> {
    (shard_id(), any::<[u64; 2]>(), draft(4)).prop_map(|(shard, [view, generation], d)| WriteRequest {
        shard,
        view: ViewNumber(view),
        generation: Generation(generation),
        driver: d.driver,
        number: d.number,
        lowest_open: d.lowest_open,
        kind: d.kind,
        interval: None,
        extents: d.extents,
        crcs: d.crcs,
        data: if d.data.is_empty() { Vec::new() } else { vec![d.data.concat().into()] },
    })
}

fn read_reply() -> impl Strategy<Value = ReadReply> {
    let pieces = vec((extent_kind(), any::<u32>(), any::<bool>()), 0..6);
    (shard_id(), any::<u64>(), pieces, vec(any::<u8>(), 0..4)).prop_map(|(shard, id, pieces, seeds)| {
        let data: Vec<Bytes> = seeds.iter().map(|s| block(*s)).collect();
        ReadReply {
            shard,
            id,
            pieces: pieces.into_iter().map(|(kind, blocks, changed)| Piece { kind, blocks, changed }).collect(),
            crcs: data.iter().map(|b| block_crc(b)).collect(),
            data: if data.is_empty() { Vec::new() } else { vec![data.concat().into()] },
        }
    })
}

fn frame_name() -> impl Strategy<Value = FrameName> {
    (any::<[u64; 2]>(), hash()).prop_map(|([view, sequence], hid)| FrameName {
        view: ViewNumber(view),
        sequence: Sequence(sequence),
        hid,
    })
}

fn sync_request() -> impl Strategy<Value = Message> {
    (shard_id(), any::<[u64; 8]>(), any::<u32>(), any::<[bool; 2]>(), vec(frame_name(), 0..5)).prop_map(
        |(shard, [view, id, until, from, since, version, sequence, past], blocks, [lost, fetch], names)| {
            Message::Sync(SyncRequest {
                shard,
                view: ViewNumber(view),
                id,
                names,
                until: Sequence(until),
                map_from: MapPoint { from, behind: (Version(version), Sequence(sequence)), blocks },
                map_since: Sequence(since),
                lost,
                fetch,
                past: Version(past),
            })
        },
    )
}

fn sync_reply() -> impl Strategy<Value = Message> {
    let modes = [SyncMode::Frames, SyncMode::Level, SyncMode::Map, SyncMode::MapEnd, SyncMode::Refused];
    (shard_id(), any::<[u64; 6]>(), any::<u32>(), prop::sample::select(modes.to_vec()), vec(frame(), 0..3)).prop_map(
        |(shard, [view, id, common, from, version, sequence], blocks, mode, frames)| {
            let common = Sequence(common);
            let map_next = MapPoint { from, behind: (Version(version), Sequence(sequence)), blocks };
            Message::SyncReply(SyncReply { shard, view: ViewNumber(view), id, mode, common, map_next, frames })
        },
    )
}

fn seal_answer() -> impl Strategy<Value = Message> {
    let bytes = prop::array::uniform32(any::<u8>());
    let given = prop_oneof![
        Just(Given::Nothing),
        bytes.prop_map(|b| Given::Slice(Slice(core::array::from_fn(|i| b[i % 32])))),
        hash().prop_map(Given::Secret),
    ];
    let flags = (any::<[bool; 2]>(), given);
    (shard_id(), any::<[u64; 4]>(), frame_name(), flags).prop_map(|(shard, n, last, (flags, given))| {
        Message::SealAnswer(SealAnswer {
            shard,
            view: ViewNumber(n[0]),
            pred: ViewNumber(n[1]),
            last,
            has_pred: flags[0],
            committed: Sequence(n[2]),
            damaged: flags[1],
            promised: ViewNumber(n[3]),
            given,
        })
    })
}

fn refused() -> impl Strategy<Value = Message> {
    (shard_id(), any::<[u64; 3]>(), 0u8..3, 1u8..=9).prop_map(|(shard, [view, generation, id], what, reason)| {
        let request = match what {
            0 => Request::Attach,
            1 => Request::Write(RequestNumber(id)),
            _ => Request::Read(id),
        };
        let reason = Refusal::from_byte(reason).expect("reasons have no gaps");
        Message::Refused(Refused { shard, request, reason, view: ViewNumber(view), generation: Generation(generation) })
    })
}

fn read_request() -> impl Strategy<Value = Message> {
    (shard_id(), any::<[u64; 8]>(), any::<[u32; 2]>(), any::<bool>()).prop_map(|(shard, n, [lba, len], status_only)| {
        Message::Read(ReadRequest {
            shard,
            view: ViewNumber(n[0]),
            generation: Generation(n[1]),
            id: n[2],
            floor: Sequence(n[3]),
            range: BlockRange::new(lba, len),
            status_only,
            at: Pin { version: Version(n[4]), snapshot: SnapshotId(n[5]) },
            since: Pin { version: Version(n[6]), snapshot: SnapshotId(n[7]) },
        })
    })
}

fn heartbeat() -> impl Strategy<Value = Message> {
    let item = (shard_id(), any::<[u64; 4]>()).prop_map(|(shard, n)| HeartbeatItem {
        shard,
        view: ViewNumber(n[0]),
        last: Sequence(n[1]),
        committed: Sequence(n[2]),
        keep: Sequence(n[3]),
    });
    vec(item, 0..5).prop_map(Message::Heartbeat)
}

fn durable() -> impl Strategy<Value = Message> {
    let room = proptest::option::of((any::<u64>(), any::<bool>()).prop_map(|(bytes, soon)| Room::new(bytes, soon)));
    let item = (shard_id(), any::<[u64; 2]>(), room).prop_map(|(shard, n, room)| DurableItem {
        shard,
        view: ViewNumber(n[0]),
        sequence: Sequence(n[1]),
        room,
    });
    vec(item, 0..5).prop_map(Message::Durable)
}

fn ordered() -> impl Strategy<Value = Message> {
    (shard_id(), any::<u64>(), vec(any::<[u64; 2]>(), 0..5)).prop_map(|(shard, view, items)| Message::Ordered {
        shard,
        view: ViewNumber(view),
        items: items.into_iter().map(|[n, s]| (RequestNumber(n), Sequence(s))).collect(),
    })
}

fn frames_message() -> impl Strategy<Value = Message> {
    (vec(any::<u64>(), 0..=limits::CHAIN_MEMBERS_MAX), vec(frame(), 0..4))
        .prop_map(|(forward, frames)| Message::Frames { forward: forward.into_iter().map(NodeId).collect(), frames })
}

fn greeting() -> impl Strategy<Value = Message> {
    let roles = [Role::Node, Role::Driver, Role::Control, Role::Seat];
    let hello = (any::<[u8; 16]>(), prop::sample::select(roles.to_vec()), any::<[u64; 2]>(), any::<[u16; 2]>());
    let hello = hello.prop_map(|(cluster, role, [node, start], [from_worker, to_worker])| {
        let (cluster, node, start) = (ClusterId(cluster), NodeId(node), StartNumber(start));
        Message::Hello(Hello { cluster, role, node, start, from_worker, to_worker })
    });
    let welcome = (any::<[u8; 16]>(), any::<[u64; 2]>(), any::<[u16; 2]>());
    let welcome = welcome.prop_map(|(cluster, [node, start], [worker, workers])| {
        let (cluster, node, start) = (ClusterId(cluster), NodeId(node), StartNumber(start));
        Message::Welcome(Welcome { cluster, node, start, worker, workers })
    });
    prop_oneof![hello, welcome]
}

fn attachment() -> impl Strategy<Value = Message> {
    let asked = (shard_id(), any::<[u64; 3]>(), hash(), 0u8..5).prop_map(|(shard, [view, g, d], identity, which)| {
        let (view, generation, driver) = (ViewNumber(view), Generation(g), DriverId(d));
        match which {
            0 => Message::Attach { shard, view, generation, driver, identity },
            1 => Message::Follow { shard, generation, driver },
            2 => Message::Lease { shard, generation, driver, stamp: Nanos(view.0) },
            3 => Message::Leased(Leased { shard, view, generation, stamp: Nanos(d), older_ms: d as u32 }),
            _ => Message::Detach { shard, generation, driver },
        }
    });
    let told = (view_news(), any::<[u64; 2]>()).prop_map(|(news, [g, floor])| Message::Attached {
        news,
        generation: Generation(g),
        floor: Sequence(floor),
    });
    prop_oneof![asked, told, view_news().prop_map(Message::View)]
}

fn control() -> impl Strategy<Value = Message> {
    (any::<u64>(), vec(any::<u8>(), 0..300), any::<bool>()).prop_map(|(id, body, is_reply)| {
        let body = Bytes::from(body);
        if is_reply { Message::ControlReply { id, body } } else { Message::Control { id, body } }
    })
}

/// A message of any kind.
pub fn message() -> impl Strategy<Value = Message> {
    let slice = prop::option::of(prop::array::uniform32(any::<u8>()));
    let shards = (shard_id(), any::<[u64; 2]>(), any::<bool>(), slice);
    let shards = shards.prop_map(|(shard, [view, pred], is_seal, slice)| {
        let (view, pred) = (ViewNumber(view), ViewNumber(pred));
        let slice = slice.map(|b| (HostPublic(b), SealedSlice([b[0]; SEALED_SLICE_BYTES])));
        if is_seal { Message::Seal { shard, view, pred, slice } } else { Message::Nudge { shard, view } }
    });
    prop_oneof![
        greeting(),
        attachment(),
        write_request().prop_map(Message::Write),
        read_request(),
        read_reply().prop_map(Message::ReadReply),
        refused(),
        ordered(),
        durable(),
        heartbeat(),
        frames_message(),
        shards,
        seal_answer(),
        sync_request(),
        sync_reply(),
        control(),
    ]
}

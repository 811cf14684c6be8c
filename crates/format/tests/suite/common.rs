//! What the tests of the formats share: one of everything, and bytes with their checksums made right again, as a
//! hostile sender would.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod any;

use bytes::{Bytes, BytesMut};
use freebs_format::wire::*;
use freebs_format::*;
use freebs_types::*;

pub const SECRET: Hash32 = Hash32([7; 32]);
pub const PARENT: Hash32 = Hash32([9; 32]);

pub fn cluster() -> ClusterId {
    ClusterId(core::array::from_fn(|i| 0x10 + i as u8))
}

pub fn shard() -> ShardId {
    ShardId::new(0x0102_0304_0506_0708, 3)
}

pub fn meta() -> FrameMeta {
    FrameMeta {
        cluster: cluster(),
        shard: shard(),
        view: ViewNumber(5),
        chunk: ChunkId::new(4, 6),
        chunk_offset: 77,
        sequence: Sequence(1001),
        first_version: Version(2001),
        committed: Sequence(999),
        wall: 1_767_225_600_000_000_000,
    }
}

/// A block that differs from every other one of another seed.
pub fn block(seed: u8) -> Bytes {
    (0..BLOCK).map(|i| seed.wrapping_mul(31).wrapping_add((i % 251) as u8)).collect::<Vec<_>>().into()
}

pub fn extent(kind: ExtentKind, start: u32, len: u32) -> Extent {
    Extent { kind, range: BlockRange::new(start, len) }
}

/// A write of two blocks with zeroes between them, and a trim.
pub fn drafts() -> Vec<UpdateDraft> {
    let data = vec![block(1), block(2)];
    let write = UpdateDraft {
        kind: UpdateKind::Write,
        driver: DriverId(0xd1),
        number: RequestNumber(12),
        lowest_open: RequestNumber(10),
        extents: vec![extent(ExtentKind::Data, 8, 1), extent(ExtentKind::Zero, 9, 5), extent(ExtentKind::Data, 14, 1)],
        crcs: data.iter().map(|b| block_crc(b)).collect(),
        data,
    };
    let trim = UpdateDraft {
        kind: UpdateKind::Trim,
        driver: DriverId(0xd1),
        number: RequestNumber(13),
        lowest_open: RequestNumber(10),
        extents: vec![extent(ExtentKind::Trim, 1 << 20, 4096)],
        crcs: Vec::new(),
        data: Vec::new(),
    };
    vec![write, trim]
}

/// The frame whole, with its data in one piece as it comes from network or disk.
pub fn one_piece(mut frame: Frame) -> Frame {
    let data = frame.data.concat();
    frame.data = if data.is_empty() { Vec::new() } else { vec![data.into()] };
    frame
}

pub fn build(meta: &FrameMeta, drafts: Vec<UpdateDraft>, parent: &Hash32) -> (Frame, Hash32) {
    let mut builder = FrameBuilder::new();
    for d in drafts {
        assert!(builder.fits(&d));
        builder.push(d);
    }
    let (frame, id) = builder.build(meta, &SECRET, parent);
    (one_piece(frame), id)
}

pub fn data_frame() -> Frame {
    build(&meta(), drafts(), &PARENT).0
}

pub fn view_body() -> ViewBody {
    let member = |n: u64, s: u64| Member { node: NodeId(n), start: StartNumber(s) };
    ViewBody {
        pred: ViewNumber(4),
        seal_sequence: Sequence(1000),
        seal_hid: Hash32([0x5e; 32]),
        secret_hash: hide(&SECRET),
        quorum: 2,
        min_copies: 2,
        generation: Generation(17),
        members: vec![member(1, 31), member(2, 0), member(3, 0)],
        shared: None,
        volume: None,
    }
}

/// A view that says what volume it is of, with slices.
pub fn described_view_body() -> ViewBody {
    let volume = VolumeDescription {
        name: "data-1".into(),
        size: 20 << 30,
        stripe: 1 << 20,
        shards: 4,
        copies: 3,
        min_copies: 2,
        all: false,
        retain_ms: 86_400_000,
        branch: ViewNumber(0),
    };
    ViewBody { volume: Some(Box::new(volume)), ..shared_view_body() }
}

/// The same with a secret that the members share.
pub fn shared_view_body() -> ViewBody {
    let slice = |n: u8| SealedSlice(core::array::from_fn(|i| n * 50 + i as u8));
    let shared = ViewSecret {
        threshold: 2,
        point: HostPublic([0x4e; 32]),
        pred_secret: Hash32([0x0d; 32]),
        slices: vec![slice(1), slice(2), slice(3)],
    };
    ViewBody { shared: Some(Box::new(shared)), ..view_body() }
}

/// The messages that carry slices, by what they are called.
pub fn messages_with_slices() -> Vec<(&'static str, Message)> {
    let all = all_messages();
    let answer = |given| {
        let mut m = all.iter().find(|m| matches!(m, Message::SealAnswer(_))).expect("one of each kind").clone();
        if let Message::SealAnswer(a) = &mut m {
            a.given = given;
        }
        m
    };
    let shared = shared_view_body().shared.expect("it is");
    let slice = Some((shared.point, shared.slices[0]));
    let ask = Message::Seal { shard: shard(), view: ViewNumber(6), pred: ViewNumber(5), slice };
    let clear = Slice(core::array::from_fn(|i| i as u8 + 2));
    let (slice, secret) = (answer(Given::Slice(clear)), answer(Given::Secret(SECRET)));
    vec![("seal-with-slice", ask), ("seal-answer-slice", slice), ("seal-answer-secret", secret)]
}

pub fn shared_view_frame() -> Frame {
    FrameBuilder::special(&meta(), FrameKind::View, &shared_view_body().encode(), &SECRET, &PARENT).0
}

pub fn described_view_frame() -> Frame {
    FrameBuilder::special(&meta(), FrameKind::View, &described_view_body().encode(), &SECRET, &PARENT).0
}

/// A view that goes on by force: its parent is the public hash of the frame that it goes on from.
pub fn branch_view_body() -> ViewBody {
    let described = described_view_body();
    let volume = described.volume.map(|v| Box::new(VolumeDescription { branch: ViewNumber(5), ..*v }));
    ViewBody { volume, ..shared_view_body() }
}

pub fn branch_view_frame() -> Frame {
    let body = branch_view_body();
    FrameBuilder::special(&meta(), FrameKind::View, &body.encode(), &SECRET, &body.seal_hid).0
}

pub fn view_frame() -> Frame {
    FrameBuilder::special(&meta(), FrameKind::View, &view_body().encode(), &SECRET, &PARENT).0
}

pub fn attach_body() -> AttachBody {
    AttachBody { generation: Generation(18), driver: DriverId(0xd2), identity: Hash32([0x1d; 32]) }
}

pub fn attach_frame() -> Frame {
    FrameBuilder::special(&meta(), FrameKind::Attach, &attach_body().encode(), &SECRET, &PARENT).0
}

pub fn mark_body() -> MarkBody {
    let entry =
        |n: u64, s: u64| RequestEntry { driver: DriverId(0xd1), number: RequestNumber(n), sequence: Sequence(s) };
    MarkBody {
        promised: ViewNumber(6),
        secret_view: ViewNumber(5),
        secret: SECRET,
        committed: Sequence(999),
        attach: attach_body(),
        last_view: ViewNumber(5),
        last_parent: PARENT,
        last_digest: Hash32([0xd1; 32]),
        released: Sequence(400),
        deleted: false,
        suspect_tail: true,
        whole: true,
        learned_since: Sequence(0),
        learned_upto: Sequence(0),
        learned_from_append: 0,
        view_frame: Some(view_frame().head),
        requests: Requests {
            floors: vec![RequestFloor { driver: DriverId(0xd1), lowest_open: RequestNumber(10) }],
            entries: vec![entry(10, 998), entry(11, 1000)],
        },
        ..MarkBody::default()
    }
}

/// The same with pinned versions.
pub fn pins_frame() -> Frame {
    let pin = |version, snapshot| Pin { version: Version(version), snapshot: SnapshotId(snapshot) };
    let body = MarkBody { pins: vec![pin(77, 3), pin(1200, 0)], retain: Version(1100), ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same with secrets of closed views.
pub fn closed_frame() -> Frame {
    let closed = |view, published, fill| ClosedView {
        view: ViewNumber(view),
        published: Sequence(published),
        secret: Hash32([fill; 32]),
    };
    let body = MarkBody { closed: vec![closed(3, 600, 0x33), closed(4, 801, 0x44)], ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same of a log whose history is not whole.
pub fn history_frame() -> Frame {
    let body = MarkBody { kept_as_of: Some(Sequence(9_000)), whole_from: Version(1_100), ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same of a clone's shard.
pub fn fork_frame() -> Frame {
    let fork = Fork {
        parent: ShardId::new(0x77, 2),
        snapshot: SnapshotId(9),
        version: Version(1_000),
        sequence: Sequence(8_000),
    };
    let body = MarkBody { fork: Some(fork), ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same of a parent that lacks versions which its clones read.
pub fn lost_frame() -> Frame {
    let body = MarkBody { lost: vec![Version(77), Version(1_000)], ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same of a clone's shard that has all of what it read from its parent.
pub fn flat_frame() -> Frame {
    let flat = Flat { upto: Sequence(8_000), from_append: 4_321, to_append: 4_330 };
    let body = MarkBody { flat: Some(flat), ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// The same of a log that has given up lost frames by force.
pub fn given_up_frame() -> Frame {
    let body = MarkBody { given_up: ViewNumber(5), ..mark_body() };
    FrameBuilder::local(&meta(), FrameKind::Mark, &body.encode(), Vec::new(), &Hash32([0x41; 32]))
}

/// Takes a snapshot, gives one up and begins a window.
pub fn snapshot_frame() -> Frame {
    let mut b = FrameBuilder::new();
    let of = |n| (DriverId(0xd1), RequestNumber(n), RequestNumber(10));
    b.push_pin(PinUpdate::Snapshot(SnapshotId(21)), of(12));
    b.push_pin(PinUpdate::Release(Version(77)), of(13));
    b.push_pin(PinUpdate::Retain(Version(1100)), of(14));
    b.push_pin(PinUpdate::Past(Pin { version: Version(1090), snapshot: SnapshotId(22) }), of(15));
    b.build(&meta(), &SECRET, &PARENT).0
}

pub fn mark_frame() -> Frame {
    FrameBuilder::local(&meta(), FrameKind::Mark, &mark_body().encode(), Vec::new(), &Hash32([0x41; 32]))
}

pub fn carry_body(data: &[Bytes]) -> CarryBody {
    let entry = |kind, start, len, crcs: Vec<u32>| CarryEntry {
        kind,
        range: BlockRange::new(start, len),
        version: Version(1234),
        sequence: Sequence(567),
        chunk: ChunkId::new(3, 2),
        offset: 40,
        crcs,
    };
    let crcs: Vec<u32> = data.iter().map(|b| block_crc(b)).collect();
    CarryBody {
        entries: vec![
            entry(ExtentKind::Data, 100, data.len() as u32, crcs),
            entry(ExtentKind::Trim, 200, 50, Vec::new()),
            entry(ExtentKind::Zero, 300, 1, Vec::new()),
        ],
    }
}

pub fn carry_frame() -> Frame {
    let data = vec![block(3), block(4)];
    let body = carry_body(&data).encode();
    one_piece(FrameBuilder::local(&meta(), FrameKind::Carry, &body, data, &Hash32([0x41; 32])))
}

pub fn all_frames() -> Vec<(&'static str, Frame)> {
    vec![
        ("data", data_frame()),
        ("view", view_frame()),
        ("attach", attach_frame()),
        ("mark", mark_frame()),
        ("carry", carry_frame()),
    ]
}

/// Checksums of a frame's head made right again after its bytes were changed.
pub fn reseal_frame(head: &mut [u8]) {
    let body_crc = crc32c(&head[256..]);
    head[248..252].copy_from_slice(&body_crc.to_le_bytes());
    let crc = crc32c(&head[..252]);
    head[252..256].copy_from_slice(&crc.to_le_bytes());
}

/// Header and meta of a message, then its payload.
pub fn wire_bytes(m: &Message) -> (Vec<u8>, Vec<u8>) {
    let mut out = BytesMut::new();
    m.encode(&mut out);
    (out.to_vec(), m.payload().iter().flat_map(|b| b.to_vec()).collect())
}

pub fn whole_message(m: &Message) -> Vec<u8> {
    let (mut head, payload) = wire_bytes(m);
    head.extend_from_slice(&payload);
    head
}

/// Checksum of a message made right again after header or meta were changed.
pub fn reseal_message(bytes: &mut [u8]) {
    let meta_len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let end = (64 + meta_len).min(bytes.len());
    let crc = crc32c(&bytes[..60]) ^ crc32c(&bytes[64..end]).rotate_left(1);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
}

pub fn decode_message(bytes: &[u8]) -> Result<Option<Message>> {
    Message::decode(&mut BytesMut::from(bytes))
}

pub fn hello() -> Hello {
    Hello {
        cluster: cluster(),
        role: Role::Node,
        node: NodeId(2),
        start: StartNumber(31),
        from_worker: 1,
        to_worker: 3,
    }
}

/// Of an interval over two shards, with a block of data and a trim in this one.
pub fn prepared() -> IntervalRecord {
    IntervalRecord {
        state: IntervalState::Prepared,
        id: IntervalId { decider: ShardId::new(3, 0), driver: DriverId(0xd1), number: IntervalNumber(12) },
        shard: shard(),
        owner: DriverId(0xd1),
        participants: vec![ShardId::new(3, 0), ShardId::new(3, 1)],
        extents: vec![extent(ExtentKind::Data, 77, 1), extent(ExtentKind::Trim, 90, 4)],
    }
}

/// The update that prepares it in the third place.
pub fn prepare_frame() -> Frame {
    let (record, data) = (prepared().encode(), block(9));
    let at = |start: Lba| Extent { kind: ExtentKind::Data, range: BlockRange { start, len: 1 } };
    let mut builder = FrameBuilder::new();
    builder.push(UpdateDraft {
        kind: UpdateKind::Prepare,
        driver: DriverId(0xd1),
        number: RequestNumber(5),
        lowest_open: RequestNumber(4),
        extents: vec![at(interval_record(2).start), at(interval_data(2))],
        crcs: vec![block_crc(&record), block_crc(&data)],
        data: vec![record, data],
    });
    builder.build(&meta(), &SECRET, &PARENT).0
}

pub fn news() -> ViewNews {
    ViewNews { shard: shard(), view: ViewNumber(5), sequence: Sequence(1001), body: view_body() }
}

pub fn write_request() -> WriteRequest {
    let d = drafts().remove(0);
    WriteRequest {
        shard: shard(),
        view: ViewNumber(5),
        generation: Generation(18),
        driver: d.driver,
        number: d.number,
        lowest_open: d.lowest_open,
        kind: d.kind,
        interval: None,
        extents: d.extents,
        crcs: d.crcs,
        data: vec![d.data.concat().into()],
    }
}

pub fn read_reply() -> ReadReply {
    let data = [block(5), block(6)];
    ReadReply {
        shard: shard(),
        id: 0xabcd,
        pieces: vec![
            Piece { kind: ExtentKind::Data, blocks: 2, changed: true },
            Piece { kind: ExtentKind::Trim, blocks: 30, changed: false },
            Piece { kind: ExtentKind::Zero, blocks: 1, changed: true },
        ],
        crcs: data.iter().map(|b| block_crc(b)).collect(),
        data: vec![data.concat().into()],
    }
}

pub fn name(sequence: u64) -> FrameName {
    FrameName { view: ViewNumber(5), sequence: Sequence(sequence), hid: Hash32([sequence as u8; 32]) }
}

/// One message of each kind.
pub fn all_messages() -> Vec<Message> {
    let mut all = driver_messages();
    all.extend(member_messages());
    all
}

/// Greetings, and messages between drivers and members.
fn driver_messages() -> Vec<Message> {
    let (shard, view, generation, driver) = (shard(), ViewNumber(5), Generation(18), DriverId(0xd1));
    vec![
        Message::Hello(hello()),
        Message::Welcome(Welcome { cluster: cluster(), node: NodeId(3), start: StartNumber(8), worker: 3, workers: 4 }),
        Message::Attach { shard, view, generation, driver, identity: Hash32([0x1d; 32]) },
        Message::Follow { shard, generation, driver },
        Message::Attached { news: news(), generation, floor: Sequence(1002) },
        Message::Detach { shard, generation, driver },
        Message::Write(write_request()),
        Message::Ordered { shard, view, items: vec![(RequestNumber(12), Sequence(1001))] },
        Message::Durable(vec![
            DurableItem { shard, view, sequence: Sequence(1001), room: None },
            DurableItem { shard: ShardId::new(9, 0), view: ViewNumber(2), sequence: Sequence(40), room: None },
        ]),
        Message::Read(ReadRequest {
            shard,
            view,
            generation,
            id: 0xabcd,
            floor: Sequence(1001),
            range: BlockRange::new(8, 33),
            status_only: true,
            at: Pin { version: Version(700), snapshot: SnapshotId(7) },
            since: Pin { version: Version(600), snapshot: SnapshotId(6) },
        }),
        Message::ReadReply(read_reply()),
        Message::Refused(Refused {
            shard,
            request: Request::Write(RequestNumber(14)),
            reason: Refusal::NoSpace,
            view,
            generation,
        }),
        Message::View(news()),
        Message::Lease { shard, generation, driver, stamp: Nanos(123_456_789) },
        Message::Leased(Leased { shard, view, generation, stamp: Nanos(123_456_789), older_ms: 1999 }),
    ]
}

/// Messages between members, and those of the control API.
fn member_messages() -> Vec<Message> {
    let (shard, view) = (shard(), ViewNumber(5));
    vec![
        Message::Frames { forward: vec![NodeId(2), NodeId(3)], frames: vec![data_frame(), attach_frame()] },
        Message::Heartbeat(vec![HeartbeatItem {
            shard,
            view,
            last: Sequence(1002),
            committed: Sequence(1001),
            keep: Sequence(990),
        }]),
        Message::Seal { shard, view: ViewNumber(6), pred: view, slice: None },
        Message::SealAnswer(SealAnswer {
            shard,
            view: ViewNumber(6),
            pred: view,
            last: name(1002),
            has_pred: true,
            committed: Sequence(1001),
            damaged: true,
            promised: ViewNumber(6),
            given: Given::Nothing,
        }),
        Message::Sync(SyncRequest {
            shard,
            view,
            id: 77,
            names: vec![name(1002), name(1001)],
            until: Sequence(u64::MAX),
            map_from: MapPoint { from: 3, behind: (Version(11), Sequence(7)), blocks: 5 },
            map_since: Sequence(900),
            lost: false,
            fetch: false,
            past: Version(9),
        }),
        Message::SyncReply(SyncReply {
            shard,
            view,
            id: 77,
            mode: SyncMode::Map,
            common: Sequence(1001),
            map_next: MapPoint { from: 55, behind: (Version(12), Sequence(8)), blocks: 6 },
            frames: vec![carry_frame(), mark_frame()],
        }),
        Message::Nudge { shard, view },
        Message::Control { id: 5, body: Bytes::from_static(br#"{"request":"status"}"#) },
        Message::ControlReply { id: 5, body: Bytes::from_static(br#"{"ok":{"reply":"deleted"}}"#) },
    ]
}

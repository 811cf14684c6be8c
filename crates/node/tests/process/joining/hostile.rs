//! Messages that nobody of good will sends, by a member and by a process of the same machine: each is refused or means nothing,
//! nothing of it is kept, and others do not notice.

use super::encrypted::{dial, hello_from, member};
use super::{BLOCK, Servers, Weight, done, three, turn};
use crate::support::nbd::{Client, Op};
use crate::support::tools::{say, wait_for};
use bytes::{Bytes, BytesMut};
use freebs_format::wire::{
    DurableItem, FrameName, Given, HeartbeatItem, MapPoint, Message, ReadRequest, Role, SealAnswer, SyncMode,
    SyncReply, SyncRequest, WriteRequest,
};
use freebs_format::{Extent, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, Pin, UpdateKind};
use freebs_types::{
    BlockRange, ChunkId, ClusterId, DriverId, Generation, Hash32, Lba, Nanos, NodeId, RequestNumber, Sequence, ShardId,
    Version, ViewNumber,
};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// The shard that there is, and one that nobody knows.
const SHARD: ShardId = ShardId::new(1, 0);
const INVENTED: ShardId = ShardId::new(77, 0);
const FAR: u64 = 1 << 60;
/// Shards that are made up at a time.
const MANY: u64 = 20_000;
/// A node's memory may grow by this while it is told all of it; buffers of links are part of that.
const GROWTH_MAX: u64 = 96 << 20;
/// Time in which the other side may say something, or close.
const LISTEN: Duration = Duration::from_millis(150);

/// Something to send, and its name for people.
type Row = (&'static str, Vec<Message>);

fn frame(cluster: ClusterId, shard: ShardId, view: u64, sequence: u64) -> Frame {
    let meta = FrameMeta {
        cluster,
        shard,
        view: ViewNumber(view),
        chunk: ChunkId { view: ViewNumber(view), counter: 0 },
        chunk_offset: 0,
        sequence: Sequence(sequence),
        first_version: Version(sequence),
        committed: Sequence(FAR),
        wall: 0,
    };
    FrameBuilder::special(&meta, FrameKind::Seal, &[], &Hash32([1; 32]), &Hash32([2; 32])).0
}

fn write(shard: ShardId, view: u64, generation: u64) -> Message {
    let data = Bytes::from(vec![0xbb; BLOCK]);
    let extent = Extent { range: BlockRange { start: Lba(0), len: 1 }, kind: ExtentKind::Data };
    Message::Write(WriteRequest {
        shard,
        view: ViewNumber(view),
        generation: Generation(generation),
        driver: DriverId(9),
        number: RequestNumber(1),
        lowest_open: RequestNumber(1),
        kind: UpdateKind::Write,
        interval: None,
        extents: vec![extent],
        crcs: vec![freebs_format::crc32c(&data)],
        data: vec![data],
    })
}

fn read(shard: ShardId, start: u32, len: u32, at: u64) -> Message {
    Message::Read(ReadRequest {
        shard,
        view: ViewNumber(1),
        generation: Generation(FAR),
        id: 5,
        floor: Sequence(FAR),
        range: BlockRange { start: Lba(start), len },
        status_only: false,
        at: Pin { version: Version(at), ..Pin::default() },
        since: Pin::default(),
    })
}

fn attach(shard: ShardId, generation: u64) -> Message {
    let (view, generation) = (ViewNumber(1), Generation(generation));
    Message::Attach { shard, view, generation, driver: DriverId(9), identity: Hash32([9; 32]) }
}

fn lease(shard: ShardId) -> Message {
    Message::Lease { shard, generation: Generation(FAR), driver: DriverId(9), stamp: Nanos(u64::MAX) }
}

fn invented(of: impl Fn(ShardId) -> Message) -> Vec<Message> {
    (0..MANY).map(|n| of(ShardId::new(1000 + n, (n % 7) as u32))).collect()
}

/// Words that a driver may say, of things that are not so.
fn as_driver() -> Vec<Row> {
    vec![
        ("attach: an invented shard", vec![attach(INVENTED, 1)]),
        ("attach: many of them", invented(|s| attach(s, 1))),
        ("attach: a generation of the future", vec![attach(SHARD, FAR), attach(SHARD, u64::MAX)]),
        ("attach: of another driver", vec![attach(SHARD, 1), attach(SHARD, 0)]),
        (
            "follow: many invented shards",
            invented(|shard| Message::Follow { shard, generation: Generation(1), driver: DriverId(9) }),
        ),
        ("lease: of the future, and many", [vec![lease(SHARD)], invented(lease)].concat()),
        ("detach: another's", vec![Message::Detach { shard: SHARD, generation: Generation(1), driver: DriverId(9) }]),
        ("write: no attachment", vec![write(SHARD, 1, 1), write(SHARD, 2, 2), write(SHARD, FAR, FAR)]),
        ("write: many invented shards", invented(|s| write(s, 1, 1))[..500].to_vec()),
        (
            "read: invented, past the end, of the future",
            vec![read(INVENTED, 0, 1, 0), read(SHARD, u32::MAX - 1, 1, 0), read(SHARD, 0, 256, FAR)],
        ),
    ]
}

/// Words that only members say, of things that are not so.
fn as_member(cluster: ClusterId) -> Vec<Row> {
    let seal = |shard, view| Message::Seal { shard, view: ViewNumber(view), pred: ViewNumber(1), slice: None };
    let frames = |frames: Vec<Frame>| Message::Frames { forward: vec![NodeId(3), NodeId(999)], frames };
    let beat = |shard| HeartbeatItem {
        shard,
        view: ViewNumber(FAR),
        last: Sequence(FAR),
        committed: Sequence(FAR),
        keep: Sequence(FAR),
    };
    let durable = |shard, view| DurableItem { shard, view: ViewNumber(view), sequence: Sequence(FAR), room: None };
    let answer = |shard, view| {
        Message::SealAnswer(SealAnswer {
            shard,
            view: ViewNumber(view),
            pred: ViewNumber(1),
            last: FrameName { view: ViewNumber(view), sequence: Sequence(FAR), hid: Hash32([3; 32]) },
            has_pred: true,
            committed: Sequence(FAR),
            damaged: false,
            promised: ViewNumber(FAR),
            given: Given::Secret(Hash32([4; 32])),
        })
    };
    vec![
        ("frames: an invented shard", vec![frames(vec![frame(cluster, INVENTED, 1, 1)])]),
        ("frames: another cluster's", vec![frames(vec![frame(ClusterId([8; 16]), SHARD, 1, 1)])]),
        ("frames: a sequence that there is, with other content", {
            (1..40).map(|n| frames(vec![frame(cluster, SHARD, 1, n), frame(cluster, SHARD, 2, n)])).collect()
        }),
        ("frames: of a view of the future", vec![frames(vec![frame(cluster, SHARD, FAR, FAR)])]),
        ("seal: views that nobody asked for", vec![seal(SHARD, u64::MAX), seal(SHARD, FAR), seal(SHARD, 0)]),
        ("seal: many invented shards", invented(|s| seal(s, 1))),
        ("seal answer: nobody asked", vec![answer(SHARD, 2), answer(SHARD, FAR), answer(INVENTED, 2)]),
        ("heartbeat: of the future, and many", {
            let many = invented(|s| Message::Heartbeat(vec![beat(s)]));
            [vec![Message::Heartbeat(vec![beat(SHARD), beat(INVENTED)])], many].concat()
        }),
        (
            "durable: of views and shards that there are not",
            vec![Message::Durable(vec![durable(INVENTED, 1), durable(SHARD, FAR), durable(SHARD, 0)])],
        ),
        ("nudge: many invented shards", invented(|shard| Message::Nudge { shard, view: ViewNumber(FAR) })),
    ]
}

/// Questions of members, and answers to none.
fn as_asker(cluster: ClusterId) -> Vec<Row> {
    let name = FrameName { view: ViewNumber(1), sequence: Sequence(1), hid: Hash32([5; 32]) };
    let sync = |shard, names| {
        Message::Sync(SyncRequest {
            shard,
            view: ViewNumber(1),
            id: 3,
            names,
            until: Sequence(FAR),
            map_from: MapPoint::BEGIN,
            map_since: Sequence(0),
            lost: false,
            fetch: true,
            past: Version(FAR),
        })
    };
    let reply = |mode, frames| {
        let (shard, view) = (SHARD, ViewNumber(2));
        Message::SyncReply(SyncReply {
            shard,
            view,
            id: 3,
            mode,
            common: Sequence(1),
            map_next: MapPoint::NONE,
            frames,
        })
    };
    vec![
        ("sync: invented, and without a common frame", vec![sync(INVENTED, vec![name]), sync(SHARD, vec![name; 8])]),
        ("sync: many invented shards", invented(|s| sync(s, Vec::new()))),
        (
            "sync reply: nobody asked",
            vec![
                reply(SyncMode::Level, Vec::new()),
                reply(SyncMode::MapEnd, vec![frame(cluster, SHARD, 1, 2)]),
                reply(SyncMode::Frames, vec![frame(cluster, SHARD, 2, 3)]),
            ],
        ),
    ]
}

/// Bytes that are no message.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let mut cut = BytesMut::new();
    attach(SHARD, 1).encode(&mut cut);
    let whole = cut.to_vec();
    let mut flipped = whole.clone();
    flipped[9] ^= 0x40;
    vec![
        ("no message", vec![0xff; 4096]),
        ("half a message", whole[..whole.len() / 2].to_vec()),
        ("a header with a flipped bit", flipped),
        ("a second hello", hello_from(ClusterId([7; 16]), Role::Node, 2)),
    ]
}

/// One more connection that says a hello, and these bytes; it listens a while, and goes.
fn send(mut stream: impl Read + Write, hello: &[u8], rest: &[u8]) {
    let _ = stream.write_all(hello).and_then(|()| stream.write_all(rest)).and_then(|()| stream.flush());
    let (begun, mut bytes) = (Instant::now(), vec![0; 64 << 10]);
    while begun.elapsed() < LISTEN {
        if matches!(stream.read(&mut bytes), Ok(0)) {
            break;
        }
    }
}

fn encoded(messages: Vec<Message>) -> Vec<u8> {
    let mut out = BytesMut::new();
    messages.iter().for_each(|m| m.encode(&mut out));
    out.to_vec()
}

/// Bytes of memory of the process of a node.
fn memory(s: &Servers, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", s.pid(name))).expect("it runs");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// Somebody who uses the volume all the time.
struct User(Client, u64);

impl User {
    fn goes_on(&mut self, after: &str) {
        self.1 += 1;
        let block = vec![self.1 as u8; BLOCK];
        let at = self.1 % 64 * BLOCK as u64;
        self.0.write(at, &block);
        assert_eq!(self.0.read(at, BLOCK as u32), block, "after {after}");
        assert!(matches!(self.0.ask(&Op::Flush), Ok(Ok(_))), "after {after}");
    }
}

#[test]
fn hostile_messages_change_nothing_and_nobody_notices() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    let place = s.gateway("door");
    let mut user = User(wait_for("the gateway", || Client::connect(&place, "data", true).ok()), 0);
    user.goes_on("nothing");
    // From now on somebody else has what the second node had.
    s.kill("b");
    let (cluster, rogue) = member(&s, "b", 2);
    let before: Vec<u64> = ["a", "c"].iter().map(|n| memory(&s, n)).collect();
    let mut rows: Vec<(&str, Vec<u8>)> = garbage();
    rows.extend(
        as_driver().into_iter().chain(as_member(cluster)).chain(as_asker(cluster)).map(|(name, m)| (name, encoded(m))),
    );
    for (name, bytes) in &rows {
        for at in ["a", "c"] {
            let at = s.address(at);
            for role in [Role::Driver, Role::Node] {
                send(rogue.connect(&at), &hello_from(cluster, role, 2), bytes);
            }
            // A process of this machine, which speaks plain, and may say what drivers say.
            send(dial_shortly(&at), &hello_from(cluster, Role::Driver, 0), bytes);
        }
        user.goes_on(name);
    }
    let grown =
        ["a", "c"].iter().zip(before).map(|(n, before)| memory(&s, n).saturating_sub(before)).max().unwrap_or(0);
    say(&format!("measured: {} hostile rows, memory of a node grew by {} KiB", rows.len(), grown >> 10));
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    s.start("b");
    s.wait_up(3);
    s.wait_healthy("data");
    user.goes_on("all");
    drop(user);
    done(&s.cli(&["volume", "verify", "data"]));
    done(&s.cli(&["verify", "data"]));
    // Nothing of it lies in the logs.
    for name in ["a", "c"] {
        s.kill(name);
        let device = s.data(name).join("log-0.freebs");
        let found = s.json(&["device", "inspect", device.to_str().expect("a text")]);
        let shards = found["shards"].as_array().expect("a list").len();
        assert_eq!(shards, 1, "{found}");
    }
}

fn dial_shortly(at: &str) -> std::net::TcpStream {
    let stream = dial(at);
    stream.set_read_timeout(Some(LISTEN)).expect("set");
    stream
}

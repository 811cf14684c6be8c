//! The time that the driver itself takes per request: `cargo run --release -p freebs-driver --example speed`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures time")]

use bytes::Bytes;
use freebs_driver::{Action, Driver, DriverConfig, Event, Op, ShardSpec, VolumeSpec};
use freebs_format::wire::{DurableItem, Leased, Message, Piece, ReadReply, ViewNews};
use freebs_format::{ExtentKind, Member, ViewBody, block_crc};
use freebs_types::{
    DriverId, Generation, Hash32, Nanos, NodeId, Peer, Sequence, ShardId, StartNumber, ViewNumber, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

const DEPTH: u64 = 32;
const REQUESTS: u64 = 400_000;

fn config(shard: ShardId) -> DriverConfig {
    let members = vec![NodeId(1), NodeId(2), NodeId(3)];
    DriverConfig {
        driver: DriverId(1),
        generation: Generation(1),
        identity: Hash32::default(),
        volume: VolumeSpec {
            id: VolumeId(1),
            size: 1 << 30,
            stripe: 1 << 20,
            shards: vec![ShardSpec { id: shard, view: ViewNumber(1), members }],
        },
        workers: BTreeMap::new(),
        local: None,
        alone: true,
        request_limit: Nanos::from_millis(60_000),
        mutant: None,
    }
}

/// A driver that is attached, and members that answer at once.
struct Bench {
    driver: Driver,
    shard: ShardId,
    sequence: u64,
    data: Bytes,
    crc: u32,
    events: VecDeque<Event>,
    out: Vec<Action>,
    done: u64,
}

impl Bench {
    fn new() -> Self {
        let shard = ShardId::new(1, 0);
        let data = Bytes::from(vec![7u8; 4096]);
        let mut bench = Self {
            driver: Driver::new(config(shard), Nanos(0)),
            shard,
            sequence: 2,
            crc: block_crc(&data),
            data,
            events: VecDeque::from([Event::Tick]),
            out: Vec::new(),
            done: 0,
        };
        bench.run();
        assert!(bench.driver.ready());
        bench
    }

    fn durable(&mut self, node: u64, sequence: u64) {
        let item = DurableItem { shard: self.shard, view: ViewNumber(1), sequence: Sequence(sequence), room: None };
        let from = Peer { node: NodeId(node), worker: 0 };
        self.events.push_back(Event::Message { from, message: Message::Durable(vec![item]) });
    }

    fn answer(&mut self, to: Peer, message: Message) {
        let message = match message {
            Message::Attach { generation, .. } => {
                let members =
                    (1..=3).map(|n| Member { node: NodeId(n), start: StartNumber(1), early: false }).collect();
                let body = ViewBody {
                    pred: ViewNumber(0),
                    seal_sequence: Sequence(0),
                    seal_hid: Hash32::default(),
                    secret_hash: Hash32::default(),
                    quorum: 2,
                    min_copies: 2,
                    generation,
                    members,
                    shared: None,
                    volume: None,
                };
                (1..=3).for_each(|n| self.durable(n, 2));
                let news = ViewNews { shard: self.shard, view: ViewNumber(1), sequence: Sequence(1), body };
                Message::Attached { news, generation, floor: Sequence(2) }
            }
            Message::Lease { shard, generation, stamp, .. } => {
                Message::Leased(Leased { shard, view: ViewNumber(1), generation, stamp, older_ms: 0 })
            }
            Message::Write(w) => {
                self.sequence += 1;
                let sequence = self.sequence;
                (1..=3).for_each(|n| self.durable(n, sequence));
                let items = vec![(w.number, Sequence(sequence))];
                Message::Ordered { shard: self.shard, view: ViewNumber(1), items }
            }
            Message::Read(r) => Message::ReadReply(ReadReply {
                shard: self.shard,
                id: r.id,
                pieces: vec![Piece { kind: ExtentKind::Data, blocks: 1, changed: false }],
                crcs: vec![self.crc],
                data: vec![self.data.clone()],
            }),
            _ => return,
        };
        self.events.push_front(Event::Message { from: to, message });
    }

    fn run(&mut self) {
        while let Some(event) = self.events.pop_front() {
            let mut out = std::mem::take(&mut self.out);
            self.driver.step(Nanos(0), event, &mut out);
            for action in out.drain(..) {
                match action {
                    Action::Connect(peer) => self.events.push_back(Event::LinkUp(peer)),
                    Action::Send { to, message } => self.answer(to, message),
                    Action::Done { result, .. } => {
                        result.unwrap();
                        self.done += 1;
                    }
                    _ => {}
                }
            }
            self.out = out;
        }
    }

    fn measure(&mut self, name: &str, op: impl Fn(u64, &Bytes) -> Op) {
        let begin = Instant::now();
        self.done = 0;
        let mut token = 0u64;
        while self.done < REQUESTS {
            for _ in 0..DEPTH {
                token += 1;
                let op = op(token.wrapping_mul(0x9e37_79b9) % 200_000 * 4096, &self.data);
                self.events.push_back(Event::Client { token, op });
            }
            self.run();
        }
        let ns = begin.elapsed().as_nanos() as u64 / self.done;
        println!("{name}: {ns} ns, {} a second", 1_000_000_000 / ns.max(1));
    }
}

fn main() {
    let mut bench = Bench::new();
    bench.measure("write", |offset, data| Op::Write { offset, data: data.clone(), fua: false });
    bench.measure("read", |offset, _| Op::Read { offset, len: 4096 });
}

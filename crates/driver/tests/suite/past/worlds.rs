//! Worlds of one reader, members that have the snapshot, lack it, are damaged, slow or away, and a network that breaks:
//! whatever happens, an answer is the snapshot's, each request has one, and while one member is well there is a success.

use super::script::{SNAPSHOT, cut, pin, shard};
use bytes::Bytes;
use freebs_driver::past::{Past, PastConfig};
use freebs_driver::{Action, Event, Op, Piece, Reply, ShardSpec, VolumeSpec};
use freebs_format::wire::{Message, Piece as WirePiece, ReadReply, ReadRequest, Refusal, Refused, Request};
use freebs_format::{ExtentKind, block_crc};
use freebs_types::{ErrorKind, Generation, Nanos, NodeId, Peer, ShardId, ViewNumber, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;
const NODES: u64 = 4;
const SINCE: u64 = 20;
const LIMIT_MS: u64 = 3000;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn odds(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// How a member is, for all of its life but for moments in which it is away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Health {
    Well,
    Lacking,
    Behind,
    Damaged,
    Lying,
    Silent,
}

enum Happening {
    Connected(Peer),
    ToNode(u64, Peer, ReadRequest),
    ToReader(u64, Peer, Message),
    Break,
    Client,
    Tick,
}

struct World {
    past: Past,
    rng: Rng,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    serial: u64,
    shards: u64,
    stripe: u64,
    blocks: u64,
    health: [Health; NODES as usize + 1],
    /// Number of the connection that is up.
    links: BTreeMap<Peer, u64>,
    open: BTreeMap<u64, (Op, u64)>,
    token: u64,
    successes: u64,
    failures: u64,
    calm: bool,
}

/// A block of a shard at the cut: kind, fill, and whether it changed behind `SINCE`.
fn content(shard: ShardId, lba: u64) -> (ExtentKind, u8, bool) {
    let n = lba * 31 + u64::from(shard.index) * 17 + lba / 5;
    let kind = [ExtentKind::Data, ExtentKind::Data, ExtentKind::Zero, ExtentKind::Trim][n as usize % 4];
    (kind, (n % 250) as u8 + 1, n.is_multiple_of(3))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed ^ 0x9a57);
        (0..8).for_each(|_| _ = rng.next());
        let shards = 1 + rng.below(3);
        let (stripe, blocks) = (4096 << rng.below(3), 8 + rng.below(200));
        let kinds = [Health::Lacking, Health::Behind, Health::Damaged, Health::Lying, Health::Silent];
        let mut health = [Health::Well; NODES as usize + 1];
        for h in &mut health {
            if rng.odds(500) {
                *h = kinds[rng.below(kinds.len() as u64) as usize];
            }
        }
        let nodes: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
        let spec = |i| ShardSpec { id: shard(i as u32), view: ViewNumber(1), members: nodes.clone() };
        let config = PastConfig {
            number: 9,
            volume: VolumeSpec {
                id: VolumeId(1),
                size: blocks * 4096,
                stripe,
                shards: (0..shards).map(spec).collect(),
            },
            snapshot: SNAPSHOT,
            cuts: (0..shards).map(|i| cut(i as u32)).collect(),
            workers: nodes.iter().map(|n| (*n, 1 + rng.below(2) as u16)).collect(),
            local: rng.odds(300).then_some(NodeId(1)),
            request_limit: Nanos::from_millis(LIMIT_MS),
        };
        let mut world = Self {
            past: Past::new(config, Nanos(0)),
            rng,
            now: 0,
            queue: BTreeMap::new(),
            serial: 0,
            shards,
            stripe,
            blocks,
            health,
            links: BTreeMap::new(),
            open: BTreeMap::new(),
            token: 0,
            successes: 0,
            failures: 0,
            calm: false,
        };
        world.drive(Event::Tick);
        (0..6).for_each(|n| world.later(n, Happening::Client));
        world.later(50, Happening::Break);
        world
    }

    fn later(&mut self, ms: u64, what: Happening) {
        self.serial += 1;
        let at = self.now + ms * MS + self.rng.below(MS);
        self.queue.insert((at, self.serial), what);
    }

    fn is_well(&self) -> bool {
        self.health[1..].contains(&Health::Well)
    }

    fn drive(&mut self, event: Event) {
        let mut out = Vec::new();
        self.past.step(Nanos(self.now), event, &mut out);
        for action in out {
            match action {
                Action::Connect(peer) => self.later(1, Happening::Connected(peer)),
                Action::Send { to, message: Message::Read(r) } => {
                    let link = self.links[&to];
                    let ms = self.rng.below(4);
                    self.later(ms, Happening::ToNode(link, to, r));
                }
                Action::Done { token, result } => self.done(token, result),
                other => panic!("{other:?}"),
            }
        }
        if let Some(due) = self.past.next_deadline() {
            let due = due.0.max(self.now + 1);
            if !self.queue.iter().any(|((at, _), h)| matches!(h, Happening::Tick) && *at <= due) {
                self.serial += 1;
                self.queue.insert((due, self.serial), Happening::Tick);
            }
        }
    }

    fn run(&mut self) {
        while let Some(((at, _), what)) = self.queue.pop_first() {
            self.now = self.now.max(at);
            self.calm |= self.now > 4000 * MS;
            match what {
                Happening::Connected(peer) if self.rng.odds(100) => self.drive(Event::LinkDown(peer)),
                Happening::Connected(peer) => {
                    self.serial += 1;
                    self.links.insert(peer, self.serial);
                    self.drive(Event::LinkUp(peer));
                }
                Happening::ToNode(link, peer, r) if self.links.get(&peer) == Some(&link) => self.answer(link, peer, &r),
                Happening::ToReader(link, from, message) if self.links.get(&from) == Some(&link) => {
                    self.drive(Event::Message { from, message });
                }
                Happening::ToNode(..) | Happening::ToReader(..) => {}
                Happening::Break => self.break_one(),
                Happening::Client => self.client(),
                Happening::Tick => self.drive(Event::Tick),
            }
            if self.calm && self.open.is_empty() {
                break;
            }
            assert!(self.now < 60_000 * MS, "requests without an answer: {:?}", self.open);
        }
        assert_eq!((self.open.len(), self.past.in_flight()), (0, 0));
    }

    fn break_one(&mut self) {
        let up: Vec<Peer> = self.links.keys().copied().collect();
        if !up.is_empty() {
            let peer = up[self.rng.below(up.len() as u64) as usize];
            self.links.remove(&peer);
            self.drive(Event::LinkDown(peer));
        }
        if !self.calm {
            let ms = 20 + self.rng.below(400);
            self.later(ms, Happening::Break);
        }
    }

    fn answer(&mut self, link: u64, peer: Peer, r: &ReadRequest) {
        let i = r.shard.index;
        assert_eq!((r.at.version, r.floor), (cut(i).version, cut(i).sequence), "each shard has its own cut");
        assert!(r.since.version.0 == 0 || (r.since == pin(SINCE) && r.status_only));
        let refusal = match self.health[peer.node.0 as usize] {
            Health::Silent => return,
            Health::Lacking => Some(Refusal::NotFound),
            Health::Behind => Some(Refusal::NotReady),
            Health::Damaged if self.rng.odds(700) => Some(Refusal::Corrupt),
            _ => None,
        };
        let message = match refusal {
            Some(reason) => Message::Refused(Refused {
                shard: r.shard,
                request: Request::Read(r.id),
                reason,
                view: ViewNumber(3),
                generation: Generation(7),
            }),
            None => Message::ReadReply(self.reply(peer, r)),
        };
        let ms = if self.rng.odds(30) { 400 } else { self.rng.below(3) };
        self.later(ms, Happening::ToReader(link, peer, message));
    }

    fn reply(&mut self, peer: Peer, r: &ReadRequest) -> ReadReply {
        let lies = self.health[peer.node.0 as usize] == Health::Lying;
        let mut reply = ReadReply { shard: r.shard, id: r.id, pieces: vec![], crcs: vec![], data: vec![] };
        for lba in r.range.start.0..r.range.start.0 + r.range.len {
            let (kind, fill, changed) = content(r.shard, u64::from(lba));
            reply.pieces.push(WirePiece { kind, blocks: 1, changed: changed && r.since.version.0 > 0 });
            if kind == ExtentKind::Data && !r.status_only {
                let mut block = vec![fill; 4096];
                reply.crcs.push(block_crc(&block));
                block[0] ^= u8::from(lies);
                reply.data.push(Bytes::from(block));
            }
        }
        if lies && (r.status_only || reply.data.is_empty()) {
            reply.pieces.pop();
        }
        reply
    }

    fn client(&mut self) {
        if self.calm {
            return;
        }
        let size = self.blocks * 4096;
        let offset = self.rng.below(size);
        let len = 1 + self.rng.below((size - offset).min(200_000));
        let op = match self.rng.below(4) {
            0 => Op::Status { offset, len },
            1 => Op::Changes { offset, len, since: vec![pin(SINCE); self.shards as usize].into() },
            _ => Op::Read { offset, len },
        };
        self.token += 1;
        self.open.insert(self.token, (op.clone(), self.now));
        self.drive(Event::Client { token: self.token, op });
    }

    /// Block `at` of the volume.
    fn block(&self, byte: u64) -> (ExtentKind, u8, bool) {
        let k = byte / self.stripe;
        let (index, at) = match self.shards {
            1 => (0, byte),
            n => (k % n, k / n * self.stripe + byte % self.stripe),
        };
        content(shard(index as u32), at / 4096)
    }

    fn done(&mut self, token: u64, result: freebs_types::Result<Reply>) {
        let (op, asked) = self.open.remove(&token).expect("each request is answered once");
        let took = (self.now - asked) / MS;
        assert!(took <= LIMIT_MS + 1, "after {took} ms");
        self.successes += u64::from(result.is_ok());
        self.failures += u64::from(result.is_err());
        match (op, result) {
            (Op::Read { offset, len }, Ok(Reply::Read(pieces))) => self.check_read(offset, len, pieces),
            (Op::Status { offset, len }, Ok(Reply::Status(runs))) => self.check_status(offset, len, &runs, false),
            (Op::Changes { offset, len, .. }, Ok(Reply::Status(runs))) => self.check_status(offset, len, &runs, true),
            (_, Err(e)) => {
                let possible = [ErrorKind::Retry, ErrorKind::NotFound, ErrorKind::Corrupt].contains(&e.kind);
                assert!(possible && !self.is_well(), "{e:?}, and a member is well");
            }
            (op, reply) => panic!("{reply:?} is no answer to {op:?}"),
        }
        let ms = 1 + self.rng.below(20);
        self.later(ms, Happening::Client);
    }

    fn check_read(&self, offset: u64, len: u64, pieces: Vec<Piece>) {
        let mut at = offset;
        for piece in pieces {
            match piece {
                Piece::Data(bytes) => {
                    for b in &bytes {
                        let (kind, fill, _) = self.block(at);
                        assert_eq!((kind, fill), (ExtentKind::Data, *b), "byte {at}");
                        at += 1;
                    }
                }
                Piece::Zero(n) => {
                    assert!((at..at + n).step_by(512).all(|b| self.block(b).0 != ExtentKind::Data), "zeroes at {at}");
                    at += n;
                }
            }
        }
        assert_eq!(at, offset + len);
    }

    fn check_status(&self, offset: u64, len: u64, runs: &[freebs_driver::StatusRun], changes: bool) {
        let mut at = offset;
        for r in runs {
            for byte in (at..at + r.bytes).step_by(512) {
                let (kind, _, changed) = self.block(byte);
                let known = (kind == ExtentKind::Trim, kind != ExtentKind::Data, changed && changes);
                assert_eq!(known, (r.hole, r.zero, r.changed), "byte {byte}");
            }
            at += r.bytes;
        }
        assert_eq!(at, offset + len);
    }
}

#[test]
fn whatever_happens_an_answer_is_the_snapshots() {
    let (mut successes, mut failures, mut shapes) = (0, 0, BTreeSet::new());
    for seed in 0..150 {
        let mut world = World::new(seed);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        assert!(ran.is_ok(), "seed {seed}: {:?}", world.health);
        let is_well = world.is_well();
        assert!(!is_well || world.successes > 20, "seed {seed}: {} successes", world.successes);
        (successes, failures) = (successes + world.successes, failures + world.failures);
        shapes.insert((world.shards, is_well));
    }
    assert!(successes > 1000 && failures > 10, "{successes} and {failures}");
    assert_eq!(shapes.len(), 6);
}

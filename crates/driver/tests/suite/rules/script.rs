//! A driver and its log, for scripts.

use bytes::Bytes;
use freebs_driver::{Action, Driver, DriverConfig, Event, Mutant, Op, Piece, Reply, ShardSpec, VolumeSpec};
use freebs_format::wire::{
    DurableItem, Leased, Message, Piece as WirePiece, ReadReply, Refusal, Refused, Request, ViewNews, WriteRequest,
};
use freebs_format::{ExtentKind, Member, ViewBody, block_crc};
use freebs_types::{
    DriverId, Generation, Hash32, Nanos, NodeId, Peer, RequestNumber, Sequence, ShardId, StartNumber, ViewNumber,
    VolumeId,
};
use std::collections::BTreeMap;

pub const GENERATION: Generation = Generation(3);
pub const MIB: u64 = 1 << 20;

/// A driver of a volume with members on nodes 1, 2, 3 (head first) in view 1, and its log.
pub struct Script {
    pub driver: Driver,
    pub now: Nanos,
    pub lines: Vec<String>,
    /// Ids of reads, as the log names them.
    pub reads: Vec<(u64, Peer, ShardId)>,
    pub last_write: Option<WriteRequest>,
    shards: u32,
    /// Members lend whenever they are asked, and the log does not show it.
    pub lend: bool,
    /// Who was asked for a lease: node, shard and stamp, the last one last.
    pub asked: Vec<(u64, ShardId, Nanos)>,
}

pub fn shard(index: u32) -> ShardId {
    ShardId::new(1, index)
}

pub fn peer(node: u64) -> Peer {
    Peer { node: NodeId(node), worker: 0 }
}

pub fn news(index: u32, view: u64, members: &[u64], base: u64) -> ViewNews {
    let quorum = (members.len() / 2 + 1) as u8;
    ViewNews {
        shard: shard(index),
        view: ViewNumber(view),
        sequence: Sequence(base),
        body: ViewBody {
            pred: ViewNumber(view - 1),
            seal_sequence: Sequence(base - 1),
            seal_hid: Hash32::default(),
            secret_hash: Hash32::default(),
            quorum,
            min_copies: quorum,
            generation: GENERATION,
            members: members.iter().map(|n| Member { node: NodeId(*n), start: StartNumber(1) }).collect(),
            shared: None,
            volume: None,
        },
    }
}

pub fn leased(shard: ShardId, stamp: Nanos, older_ms: u32) -> Leased {
    Leased { shard, view: ViewNumber(1), generation: GENERATION, stamp, older_ms }
}

impl Script {
    pub fn new(shards: u32, mutant: Option<Mutant>) -> Self {
        Self::with(shards, mutant, true, false)
    }

    /// `lend`: leases come by themselves. `alone`: no older driver has any.
    pub fn with(shards: u32, mutant: Option<Mutant>, lend: bool, alone: bool) -> Self {
        let spec =
            |index| ShardSpec { id: shard(index), view: ViewNumber(1), members: vec![NodeId(1), NodeId(2), NodeId(3)] };
        let config = DriverConfig {
            driver: DriverId(77),
            generation: GENERATION,
            identity: Hash32::default(),
            volume: VolumeSpec {
                id: VolumeId(1),
                size: 64 * MIB,
                stripe: MIB,
                shards: (0..shards).map(spec).collect(),
            },
            workers: BTreeMap::new(),
            local: None,
            alone,
            request_limit: Nanos::from_millis(60_000),
            mutant,
        };
        let driver = Driver::new(config, Nanos(0));
        let mut script = Self {
            driver,
            now: Nanos(0),
            lines: Vec::new(),
            reads: Vec::new(),
            last_write: None,
            shards,
            lend,
            asked: Vec::new(),
        };
        script.step(Event::Tick);
        script
    }

    /// One shard, links up, attached at sequence 2, past the barrier; the log is empty.
    pub fn ready(mutant: Option<Mutant>) -> Self {
        let mut s = Self::new(1, mutant);
        (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
        s.attached(1, 1, 1, 2);
        (1..=3).for_each(|n| s.durable(n, 1, 2));
        assert!(s.driver.ready());
        s.lines.clear();
        s
    }

    pub fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.driver.step(self.now, event, &mut out);
        let mut lent = Vec::new();
        for action in out {
            if let Action::Send { to, message: Message::Lease { shard, stamp, generation, driver } } = action {
                assert_eq!((stamp, generation, driver), (self.now, GENERATION, DriverId(77)));
                self.asked.push((to.node.0, shard, stamp));
                if self.lend {
                    lent.push((to, shard, stamp));
                } else {
                    let at = if self.shards > 1 { format!(" s{}", shard.index) } else { String::new() };
                    self.lines.push(format!("n{} <- lease{at}", to.node));
                }
                continue;
            }
            let line = self.line(action);
            self.lines.push(line);
        }
        for (from, shard, stamp) in lent {
            self.step(Event::Message { from, message: Message::Leased(leased(shard, stamp, 0)) });
        }
        let due = self.driver.next_deadline();
        assert!(due.is_none_or(|due| due > self.now), "what is due was not done");
    }

    pub fn line(&mut self, action: Action) -> String {
        match action {
            Action::Connect(p) => format!("connect n{}", p.node),
            Action::Send { to, message } => format!("n{} <- {}", to.node, self.message(to, message)),
            Action::Done { token, result: Ok(Reply::Done) } => format!("done {token}"),
            Action::Done { token, result: Ok(Reply::Read(pieces)) } => {
                let pieces: Vec<_> = pieces
                    .iter()
                    .map(|p| match p {
                        Piece::Data(b) => format!("{}x{}", b.len(), b[0]),
                        Piece::Zero(n) => format!("{n}x0"),
                    })
                    .collect();
                format!("done {token}: {}", pieces.join(" "))
            }
            Action::Done { token, result: Ok(Reply::Committed(placed)) } => format!("done {token}: {placed:?}"),
            Action::Done { token, result: Ok(Reply::Status(runs)) } => format!("done {token}: {runs:?}"),
            Action::Done { token, result: Err(e) } => format!("done {token}: {:?}", e.kind),
            Action::Ready => "ready".into(),
            Action::Fenced => "fenced".into(),
            Action::Closed => "closed".into(),
        }
    }

    pub fn message(&mut self, to: Peer, message: Message) -> String {
        match message {
            Message::Attach { view, .. } => format!("attach v{view}"),
            Message::Follow { .. } => "follow".into(),
            Message::Detach { .. } => "detach".into(),
            Message::Write(w) => {
                let extents: Vec<_> = w
                    .extents
                    .iter()
                    .map(|e| {
                        let kind = ["?", "", "t", "z"][e.kind as usize];
                        format!("{kind}{}+{}", e.range.start, e.range.len)
                    })
                    .collect();
                let shard = if self.shards > 1 { format!(" s{}", w.shard.index) } else { String::new() };
                let word = format!("{:?}", w.kind).to_lowercase();
                let what = match &w.interval {
                    Some(i) => format!("{word}{shard} i{}/{}", i.id.number, i.lowest_open),
                    None => format!("write{shard}"),
                };
                let line = format!("{what} #{} v{} open {} [{}]", w.number, w.view, w.lowest_open, extents.join(" "));
                self.last_write = Some(w);
                line
            }
            Message::Read(r) => {
                self.reads.push((r.id, to, r.shard));
                let shard = if self.shards > 1 { format!(" s{}", r.shard.index) } else { String::new() };
                let n = self.reads.len() - 1;
                format!("read{shard} r{n} v{} floor {} [{}+{}]", r.view, r.floor, r.range.start, r.range.len)
            }
            other => other.name().into(),
        }
    }

    /// The member answers what it was asked last.
    #[track_caller]
    pub fn lends(&mut self, node: u64, older_ms: u32) {
        let (_, shard, stamp) = *self.asked.iter().rfind(|a| a.0 == node).expect("it was not asked");
        self.from(node, Message::Leased(leased(shard, stamp, older_ms)));
    }

    pub fn from(&mut self, node: u64, message: Message) {
        self.step(Event::Message { from: peer(node), message });
    }

    pub fn attached(&mut self, node: u64, view: u64, base: u64, floor: u64) {
        self.attached_at(0, node, view, &[1, 2, 3], base, floor);
    }

    pub fn attached_at(&mut self, index: u32, node: u64, view: u64, members: &[u64], base: u64, floor: u64) {
        let news = news(index, view, members, base);
        self.from(node, Message::Attached { news, generation: GENERATION, floor: Sequence(floor) });
    }

    pub fn durable(&mut self, node: u64, view: u64, sequence: u64) {
        let item = DurableItem { shard: shard(0), view: ViewNumber(view), sequence: Sequence(sequence), room: None };
        self.from(node, Message::Durable(vec![item]));
    }

    pub fn ordered(&mut self, node: u64, view: u64, items: &[(u64, u64)]) {
        let items = items.iter().map(|(n, s)| (RequestNumber(*n), Sequence(*s))).collect();
        self.from(node, Message::Ordered { shard: shard(0), view: ViewNumber(view), items });
    }

    pub fn refuse(&mut self, node: u64, request: Request, reason: Refusal, view: u64) {
        let generation = if reason == Refusal::Fenced { Generation(4) } else { GENERATION };
        let refused = Refused { shard: shard(0), request, reason, view: ViewNumber(view), generation };
        self.from(node, Message::Refused(refused));
    }

    /// The answer to read `n` of the log: blocks of one byte each, `None` is never written.
    pub fn answer(&mut self, n: usize, blocks: &[Option<u8>]) {
        self.answer_with(n, blocks, 0);
    }

    pub fn answer_with(&mut self, n: usize, blocks: &[Option<u8>], damage: u32) {
        let (id, from, shard) = self.reads[n];
        let kind = |b: &Option<u8>| if b.is_some() { ExtentKind::Data } else { ExtentKind::Trim };
        let data: Vec<Bytes> = blocks.iter().flatten().map(|b| Bytes::from(vec![*b; 4096])).collect();
        let reply = ReadReply {
            shard,
            id,
            pieces: blocks.iter().map(|b| WirePiece { kind: kind(b), blocks: 1, changed: false }).collect(),
            crcs: data.iter().map(|d| block_crc(d) ^ damage).collect(),
            data,
        };
        self.step(Event::Message { from, message: Message::ReadReply(reply) });
    }

    pub fn write(&mut self, token: u64, offset: u64, len: usize, fill: u8) {
        let data = Bytes::from(vec![fill; len]);
        self.step(Event::Client { token, op: Op::Write { offset, data, fua: false } });
    }

    pub fn read(&mut self, token: u64, offset: u64, len: u64) {
        self.step(Event::Client { token, op: Op::Read { offset, len } });
    }

    pub fn wait(&mut self, ms: u64) {
        self.now = self.now.plus(Nanos::from_millis(ms));
        self.step(Event::Tick);
    }

    /// Holds the log since the last look against what is wanted.
    #[track_caller]
    pub fn sees(&mut self, wanted: &[&str]) {
        assert_eq!(std::mem::take(&mut self.lines), wanted);
    }
}

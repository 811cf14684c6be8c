//! A reader and its log, for scripts.

use bytes::Bytes;
use freebs_driver::past::{Cut, Past, PastConfig};
use freebs_driver::{Action, Event, Op, Piece, Reply, ShardSpec, VolumeSpec};
use freebs_format::wire::{Message, Piece as WirePiece, ReadReply, Refusal, Refused, Request};
use freebs_format::{ExtentKind, Pin, block_crc};
use freebs_types::{Generation, Nanos, NodeId, Peer, Sequence, ShardId, SnapshotId, Version, ViewNumber, VolumeId};
use std::collections::BTreeMap;

pub const MIB: u64 = 1 << 20;
pub const NUMBER: u16 = 3;
pub const SNAPSHOT: SnapshotId = SnapshotId(12);

/// A reader of a snapshot with members on nodes 1, 2, 3, and its log.
pub struct Script {
    pub past: Past,
    pub now: Nanos,
    pub lines: Vec<String>,
    /// Numbers of questions, as the log names them.
    pub reads: Vec<(u64, Peer, ShardId)>,
    shards: u32,
}

pub fn shard(index: u32) -> ShardId {
    ShardId::new(1, index)
}

pub fn peer(node: u64) -> Peer {
    Peer { node: NodeId(node), worker: 0 }
}

pub fn pin(version: u64) -> Pin {
    Pin { version: Version(version), snapshot: SnapshotId(11) }
}

/// The cut of a shard: version 50 with frame 60, and one more for each further shard.
pub fn cut(index: u32) -> Cut {
    Cut { version: Version(50 + u64::from(index)), sequence: Sequence(60 + u64::from(index)) }
}

impl Script {
    pub fn new(shards: u32) -> Self {
        Self::with(shards, None)
    }

    pub fn with(shards: u32, local: Option<NodeId>) -> Self {
        Self::of(shards, (0..shards).map(cut).collect(), local)
    }

    pub fn of(shards: u32, cuts: Vec<Cut>, local: Option<NodeId>) -> Self {
        let members = vec![NodeId(1), NodeId(2), NodeId(3)];
        let spec = |index| ShardSpec { id: shard(index), view: ViewNumber(1), members: members.clone() };
        let config = PastConfig {
            number: NUMBER,
            volume: VolumeSpec {
                id: VolumeId(1),
                size: 64 * MIB,
                stripe: MIB,
                shards: (0..shards).map(spec).collect(),
            },
            snapshot: SNAPSHOT,
            cuts,
            workers: BTreeMap::new(),
            local,
            request_limit: Nanos::from_millis(60_000),
        };
        let past = Past::new(config, Nanos(0));
        let mut script = Self { past, now: Nanos(0), lines: Vec::new(), reads: Vec::new(), shards };
        script.step(Event::Tick);
        script
    }

    /// All links are up; the log is empty.
    pub fn ready(shards: u32) -> Self {
        let mut s = Self::new(shards);
        (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
        s.lines.clear();
        s
    }

    pub fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.past.step(self.now, event, &mut out);
        self.note(out);
        let due = self.past.next_deadline();
        assert!(due.is_none_or(|due| due > self.now), "what is due was not done");
    }

    pub fn note(&mut self, out: Vec<Action>) {
        for action in out {
            let line = self.line(action);
            self.lines.push(line);
        }
    }

    fn line(&mut self, action: Action) -> String {
        match action {
            Action::Connect(p) if p.worker > 0 => format!("connect {p}"),
            Action::Connect(p) => format!("connect n{}", p.node),
            Action::Send { to, message: Message::Read(r) } => {
                assert_eq!((r.view, r.generation), (ViewNumber(0), Generation(0)));
                self.reads.push((r.id, to, r.shard));
                assert_eq!(r.at.snapshot, SNAPSHOT);
                let what = match (r.status_only, r.since.version.0) {
                    (false, 0) => "read",
                    (true, 0) => "status",
                    (true, _) => "changes",
                    (false, _) => panic!("changes are never asked for with data"),
                };
                let shard = if self.shards > 1 { format!(" s{}", r.shard.index) } else { String::new() };
                let since = if r.since.version.0 > 0 { format!(" since {}", r.since.version) } else { String::new() };
                let (n, at) = (self.reads.len() - 1, r.range);
                let (version, floor) = (r.at.version, r.floor);
                format!("n{} <- {what}{shard} r{n} @{version}{since} floor {floor} [{}+{}]", to.node, at.start, at.len)
            }
            Action::Send { message, .. } => panic!("a reader sends no {}", message.name()),
            Action::Done { token, result: Ok(Reply::Done | Reply::Committed(_)) } => format!("done {token}"),
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
            Action::Done { token, result: Ok(Reply::Status(runs)) } => {
                let run = |r: &freebs_driver::StatusRun| {
                    let kind = match (r.hole, r.zero) {
                        (false, false) => 'd',
                        (false, true) => 'z',
                        (true, true) => 't',
                        (true, false) => panic!("a hole reads as zeroes"),
                    };
                    format!("{}{kind}{}", r.bytes, if r.changed { "*" } else { "" })
                };
                format!("done {token}: {}", runs.iter().map(run).collect::<Vec<_>>().join(" "))
            }
            Action::Done { token, result: Err(e) } => format!("done {token}: {:?}", e.kind),
            Action::Closed => "closed".into(),
            Action::Ready | Action::Fenced => panic!("a reader has no attachment"),
        }
    }

    fn from(&mut self, from: Peer, message: Message) {
        self.step(Event::Message { from, message });
    }

    pub fn refuse(&mut self, n: usize, reason: Refusal) {
        let (id, from, shard) = self.reads[n];
        let (view, generation) = (ViewNumber(8), Generation(9));
        self.from(from, Message::Refused(Refused { shard, request: Request::Read(id), reason, view, generation }));
    }

    /// The answer to question `n` of the log: blocks of one byte each, `None` is never written.
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
        self.from(from, Message::ReadReply(reply));
    }

    /// The answer to a question for status: kinds, blocks, and whether they changed.
    pub fn status(&mut self, n: usize, runs: &[(char, u32, bool)]) {
        let (id, from, shard) = self.reads[n];
        let kind = |c| match c {
            'd' => ExtentKind::Data,
            'z' => ExtentKind::Zero,
            _ => ExtentKind::Trim,
        };
        let pieces =
            runs.iter().map(|(c, blocks, changed)| WirePiece { kind: kind(*c), blocks: *blocks, changed: *changed });
        let reply = ReadReply { shard, id, pieces: pieces.collect(), crcs: vec![], data: vec![] };
        self.from(from, Message::ReadReply(reply));
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

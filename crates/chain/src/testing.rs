//! What the unit tests of a replica share: chains of frames that may branch, and steps without a host.

use crate::event::{Action, HostConfig};
use crate::out::Out;
use crate::peers::Peers;
use crate::replica::{Ctx, Replica};
use bytes::Bytes;
use freebs_format::wire::{MapPoint, SyncMode, SyncReply};
use freebs_format::{
    AttachBody, CarryBody, Extent, ExtentKind, Frame, FrameBuilder, FrameHead, FrameKind, FrameMeta, MarkBody, Member,
    UpdateDraft, UpdateKind, ViewBody, block_crc,
};
use freebs_lsvd::Record;
use freebs_types::{
    BlockRange, ChunkId, ClusterId, DriverId, Generation, Hash32, Nanos, NodeId, Peer, RequestNumber, Sequence,
    ShardId, StartNumber, Version, ViewNumber, VolumeId,
};
use std::collections::BTreeMap;

pub const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };

/// Where a chain goes on. A clone with another secret is another branch.
#[derive(Clone)]
pub struct Chain {
    pub secret: u8,
    pub view: u64,
    pub committed: u64,
    pub last: u64,
    pub token: Hash32,
    /// Of its view frames.
    pub generation: u64,
}

impl Chain {
    pub fn new() -> Self {
        Self { secret: 9, view: 1, committed: 0, last: 0, token: Hash32::default(), generation: 0 }
    }

    pub fn meta(&self, sequence: u64) -> FrameMeta {
        FrameMeta {
            cluster: ClusterId([1; 16]),
            shard: SHARD,
            view: ViewNumber(self.view),
            chunk: ChunkId { view: ViewNumber(1), counter: 0 },
            chunk_offset: 0,
            sequence: Sequence(sequence),
            first_version: Version(0),
            committed: Sequence(self.committed.min(sequence - 1)),
            wall: 0,
        }
    }

    fn add(&mut self, kind: FrameKind, body: &[u8]) -> Frame {
        self.last += 1;
        let secret = Hash32([self.secret; 32]);
        let (frame, next) = FrameBuilder::special(&self.meta(self.last), kind, body, &secret, &self.token);
        self.token = next;
        frame
    }

    /// A view frame of the next view, and a few more.
    pub fn view(&mut self) -> Frame {
        let pred = if self.last == 0 { 0 } else { self.view };
        self.view = pred + 1;
        let body = ViewBody {
            pred: ViewNumber(pred),
            seal_sequence: Sequence(self.last),
            seal_hid: freebs_format::hide(&self.token),
            secret_hash: Hash32::default(),
            quorum: 1,
            min_copies: 1,
            generation: Generation(self.generation),
            members: [1, 2].map(|n| Member { node: NodeId(n), start: StartNumber(1), early: false }).to_vec(),
            shared: None,
            volume: None,
        };
        self.add(FrameKind::View, &body.encode())
    }

    /// The first update, of one block.
    pub fn write(&mut self, block: &[u8]) -> Frame {
        let mut b = FrameBuilder::new();
        b.push(UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(5),
            number: RequestNumber(1),
            lowest_open: RequestNumber(1),
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 1) }],
            crcs: vec![block_crc(block)],
            data: vec![Bytes::copy_from_slice(block)],
        });
        self.last += 1;
        let meta = FrameMeta { first_version: Version(1), ..self.meta(self.last) };
        let (frame, next) = b.build(&meta, &Hash32([self.secret; 32]), &self.token);
        self.token = next;
        frame
    }

    pub fn frames(&mut self, count: u64) -> Vec<Frame> {
        (0..count).map(|_| self.add(FrameKind::Seal, &[])).collect()
    }
}

/// Frames 1 to `count` of one chain, the first of them a view frame.
pub fn frames(count: u64, committed: u64) -> Vec<Frame> {
    let mut chain = Chain { committed, ..Chain::new() };
    let mut all = vec![chain.view()];
    all.extend(chain.frames(count - 1));
    all
}

pub fn step(replica: &mut Replica, act: impl FnOnce(&mut Replica, &mut Ctx<'_>)) {
    step_at(Nanos::from_millis(1), &Peers::default(), &mut 7, replica, act);
}

pub fn step_at(
    now: Nanos,
    peers: &Peers,
    tickets: &mut u64,
    replica: &mut Replica,
    act: impl FnOnce(&mut Replica, &mut Ctx<'_>),
) {
    let me = Peer { node: NodeId(2), worker: 0 };
    let config = HostConfig {
        cluster: ClusterId([1; 16]),
        me,
        start: StartNumber(1),
        workers: BTreeMap::new(),
        node_secret: Hash32::default(),
        host_key: freebs_secrets::HostKey::new(Hash32([2; 32])),
        early_pause: Nanos(0),
        mutant: None,
    };
    let mut out = Out::default();
    let mut ctx = Ctx {
        now,
        wall: 0,
        config: &config,
        peers,
        out: &mut out,
        tickets,
        room: u64::MAX,
        spare: u64::MAX,
        more_soon: false,
        sharers: 1,
    };
    act(replica, &mut ctx);
}

pub fn reply(common: u64, mode: SyncMode, frames: Vec<Frame>) -> SyncReply {
    SyncReply {
        shard: SHARD,
        view: ViewNumber(1),
        id: 8,
        mode,
        common: Sequence(common),
        map_next: MapPoint::NONE,
        frames,
    }
}

/// The answer that ends a map: nothing was placed behind `since`, and the state as of `at`.
pub fn map_end(since: u64, at: &Frame, view_frame: &FrameHead) -> SyncReply {
    map_end_with(since, at, view_frame, AttachBody::default())
}

/// The same with an attachment in the state.
pub fn map_end_with(since: u64, at: &Frame, view_frame: &FrameHead, attach: AttachBody) -> SyncReply {
    let h = at.header();
    let meta = FrameMeta { view: h.view_number(), ..Chain::new().meta(h.seq().0) };
    let state = MarkBody {
        committed: h.seq(),
        last_view: h.view_number(),
        last_parent: h.parent_token(),
        last_digest: h.digest(),
        view_frame: Some(view_frame.clone()),
        attach,
        ..MarkBody::default()
    };
    let local = |kind, body: Vec<u8>| FrameBuilder::local(&meta, kind, &body, Vec::new(), &h.hid());
    let carry = local(FrameKind::Carry, CarryBody::default().encode());
    reply(since, SyncMode::MapEnd, vec![carry, local(FrameKind::Mark, state.encode())])
}

/// What a replica wants appended, in short.
pub fn appends(actions: &[Action]) -> Vec<String> {
    let short = |r: &Record| match r {
        Record::Frame(f) => format!("frame {}", f.head.seq()),
        Record::Repair(f) => format!("repair {}", f.head.seq()),
        Record::Cut { to, .. } => format!("cut {to}"),
        Record::Carry { .. } => "carry".to_string(),
        Record::Mark { change, .. } if change.base.is_some() => "base".to_string(),
        Record::Mark { .. } => "mark".to_string(),
        _ => "other".to_string(),
    };
    actions.iter().filter_map(|a| if let Action::Append(r) = a { Some(short(r)) } else { None }).collect()
}

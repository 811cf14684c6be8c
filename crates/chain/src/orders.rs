//! Orders of events that once went wrong, or nearly so, played to one replica.

use crate::event::{Action, HostConfig};
use crate::out::Out;
use crate::peers::Peers;
use crate::replica::{Ctx, Replica, genesis};
use freebs_format::wire::FrameName;
use freebs_format::{Frame, FrameBuilder, FrameKind, FrameMeta, Member, ViewBody};
use freebs_io::LinkId;
use freebs_types::{
    ChunkId, ClusterId, Generation, Hash32, Nanos, NodeId, Peer, Sequence, ShardId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use std::collections::BTreeMap;

const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };
const HEAD: Peer = Peer { node: NodeId(1), worker: 0 };
const HEAD_LINK: LinkId = LinkId(1);

/// Makes the frames of a chain, one after the other.
struct Chain {
    view: ViewNumber,
    last: FrameName,
    token: Hash32,
    committed: u64,
}

impl Chain {
    fn new() -> Self {
        Self { view: ViewNumber(0), last: genesis(), token: Hash32::default(), committed: 0 }
    }

    fn frame(&mut self, kind: FrameKind, body: &[u8]) -> Frame {
        let meta = FrameMeta {
            cluster: ClusterId([1; 16]),
            shard: SHARD,
            view: self.view,
            chunk: ChunkId { view: self.view, counter: 0 },
            chunk_offset: 0,
            sequence: self.last.sequence.next(),
            first_version: Version(0),
            committed: Sequence(self.committed),
            wall: 0,
        };
        let secret = Hash32([self.view.0 as u8; 32]);
        let (frame, token) = FrameBuilder::special(&meta, kind, body, &secret, &self.token);
        self.last = FrameName { view: self.view, sequence: meta.sequence, hid: frame.header().hid() };
        self.token = token;
        frame
    }

    /// A frame without updates.
    fn plain(&mut self) -> Frame {
        self.frame(FrameKind::Seal, &[])
    }

    fn open(&mut self, view: u64) -> Frame {
        let body = ViewBody {
            pred: self.view,
            seal_sequence: self.last.sequence,
            seal_hid: self.last.hid,
            secret_hash: Hash32::default(),
            quorum: 2,
            min_copies: 2,
            generation: Generation(0),
            members: [1, 2, 3].map(|n| Member { node: NodeId(n), start: StartNumber(1) }).to_vec(),
        };
        self.view = ViewNumber(view);
        self.frame(FrameKind::View, &body.encode())
    }
}

/// Node 2, with a link to the head.
struct Scene {
    r: Replica,
    now: Nanos,
    tickets: u64,
}

impl Scene {
    fn new() -> Self {
        Self { r: Replica::empty(SHARD), now: Nanos::from_millis(1), tickets: 0 }
    }

    fn play<T>(&mut self, act: impl FnOnce(&mut Replica, &mut Ctx<'_>) -> T) -> (T, Vec<Action>) {
        let config = HostConfig {
            cluster: ClusterId([1; 16]),
            me: Peer { node: NodeId(2), worker: 0 },
            start: StartNumber(1),
            workers: BTreeMap::new(),
            node_secret: Hash32::default(),
            mutant: None,
        };
        let (mut peers, mut out) = (Peers::default(), Out::default());
        peers.up(HEAD_LINK, HEAD, self.now);
        let mut ctx = Ctx {
            now: self.now,
            wall: 0,
            config: &config,
            peers: &peers,
            out: &mut out,
            tickets: &mut self.tickets,
            room: true,
        };
        let got = act(&mut self.r, &mut ctx);
        (got, out.actions)
    }

    /// As a SYNC answer brings it.
    fn take(&mut self, frame: Frame) {
        let limit = frame.head.view();
        assert!(self.play(|r, ctx| r.on_synced_frame(ctx, frame, limit)).0);
    }

    fn durable(&mut self, sequence: u64) {
        self.play(|r, ctx| r.on_frame_durable(ctx, Sequence(sequence)));
    }

    fn cut(&mut self, to: u64) {
        self.play(|r, ctx| r.cut(ctx, Sequence(to)));
    }
}

/// A slow disk still had frames of view 1 to write when they were cut and replaced by frames of view 2, some of them
/// committed elsewhere by then. The end of the old writes was taken for that of the new ones: the member said that
/// it holds what it did not, and told its log engine to commit frames that were to be cut.
#[test]
fn a_cut_frame_does_not_stand_for_a_committed_successor() {
    let mut s = Scene::new();
    let mut one = Chain::new();
    s.take(one.open(1));
    let mut two = Chain { ..one };
    one = Chain { token: two.token, ..two };
    for _ in 0..4 {
        s.take(one.plain());
    }
    s.cut(1);
    s.take(two.open(2));
    two.committed = 4;
    for _ in 0..4 {
        s.take(two.plain());
    }
    assert_eq!(s.r.committed, Sequence(4));
    s.durable(1);
    assert_eq!(s.r.durable, Sequence(1), "what lies in front of the cut counts");
    for sequence in 2..=5 {
        s.durable(sequence);
    }
    assert_eq!(s.r.durable, Sequence(1), "these were cut");
    assert!(!s.r.serves());
    s.r.on_cut_done();
    s.durable(2);
    assert_eq!(s.r.durable, Sequence(2));
    assert!(s.r.serves());
}

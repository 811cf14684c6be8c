//! Orders of events that once went wrong, or nearly so, played to one replica.

use crate::event::{Action, HostConfig, Opened};
use crate::head::view_secret;
use crate::out::Out;
use crate::peers::Peers;
use crate::replica::{Ctx, Replica, genesis};
use freebs_format::wire::{FrameName, Message, SealAnswer};
use freebs_format::{Frame, FrameBuilder, FrameKind, FrameMeta, Member, ViewBody};
use freebs_io::LinkId;
use freebs_types::{
    ChunkId, ClusterId, Generation, Hash32, Nanos, NodeId, Peer, Sequence, ShardId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use std::collections::BTreeMap;

const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };

fn peer(n: u64) -> Peer {
    Peer { node: NodeId(n), worker: 0 }
}

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
        let secret = view_secret(&Hash32::default(), SHARD, self.view);
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

/// One of the nodes 1 to 3, with links to the others that bear their numbers.
struct Scene {
    r: Replica,
    me: u64,
    now: Nanos,
    tickets: u64,
}

impl Scene {
    fn new(me: u64) -> Self {
        Self { r: Replica::empty(SHARD), me, now: Nanos::from_millis(1), tickets: 0 }
    }

    fn play<T>(&mut self, act: impl FnOnce(&mut Replica, &mut Ctx<'_>) -> T) -> (T, Vec<Action>) {
        let config = HostConfig {
            cluster: ClusterId([1; 16]),
            me: peer(self.me),
            start: StartNumber(1),
            workers: BTreeMap::new(),
            node_secret: Hash32::default(),
            mutant: None,
        };
        let (mut peers, mut out) = (Peers::default(), Out::default());
        for n in (1..=3).filter(|n| *n != self.me) {
            peers.up(LinkId(n), peer(n), self.now);
        }
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
    let mut s = Scene::new(2);
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

/// A member cut a view frame that never became active, and before the next one came it was asked for a seal. It said
/// that it has nothing of the predecessor, although all of its log is of it: frames that it had answered for could
/// have been sealed away.
#[test]
fn a_cut_view_frame_leaves_the_view_before_it() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    s.take(c.open(2));
    s.cut(2);
    let answer = s.r.seal_answer(ViewNumber(3), ViewNumber(1));
    assert_eq!((answer.last.sequence, answer.has_pred), (Sequence(2), true));
    let answer = s.r.seal_answer(ViewNumber(4), ViewNumber(2));
    assert!(!answer.has_pred, "of view 2 it has nothing");
}

/// Node 1 was restarted with frames 1 and 2 of view 1, and is about to open view 2; its own answer is given.
fn opening() -> (Scene, SealAnswer) {
    let mut s = Scene::new(1);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    s.durable(2);
    s.play(|r, ctx| r.become_head(ctx));
    let opened = Opened {
        view: ViewNumber(2),
        pred: ViewNumber(1),
        members: [1, 2, 3].map(NodeId).to_vec(),
        quorum: 2,
        min_copies: 2,
        pred_quorum: 2,
        generation: Generation(0),
    };
    s.play(|r, ctx| r.on_proposed(ctx, Ok(opened)));
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    let answer = s.r.seal_answer(ViewNumber(2), ViewNumber(1));
    assert_eq!((s.r.last.view, answer.has_pred, answer.last.sequence), (ViewNumber(1), true, Sequence(2)));
    (s, answer)
}

/// V2: a member whose device was lost answers with an empty log. It was counted, and with it frames that only the
/// lost device and the third member held could be sealed away.
#[test]
fn an_empty_log_does_not_seal() {
    let (mut s, good) = opening();
    let empty = SealAnswer { last: genesis(), has_pred: false, ..good };
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(3), empty));
    assert_eq!(s.r.last.view, ViewNumber(1), "one log is no quorum's");
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
}

/// A member that answered with a damaged log was never asked again, and the view never opened, however soon the
/// damage was mended.
#[test]
fn a_mended_log_is_asked_again() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), SealAnswer { damaged: true, ..good }));
    assert_eq!(s.r.last.view, ViewNumber(1));
    s.now = s.now.plus(Nanos::from_millis(200));
    let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
    let asks = |a: &Action| matches!(a, Action::Send { to: LinkId(2), message: Message::Seal { .. } });
    assert!(actions.iter().any(asks), "{actions:?}");
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    assert_eq!(s.r.last.view, ViewNumber(2));
}

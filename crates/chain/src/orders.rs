//! Orders of events that once went wrong, or nearly so, played to one replica.

use crate::event::{
    Action, Branch, Forced, Found, HostConfig, MapSource, Mutant, Opened, ShardInfo, ShardSnapshots, Wanted, Who,
};
use crate::head::view_secret;
use crate::host::Host;
use crate::learn::Learning;
use crate::out::Out;
use crate::peers::Peers;
use crate::repair::{Damage, Hole};
use crate::replica::{Ctx, Replica, genesis};
use bytes::Bytes;
use freebs_format::wire::{
    DurableItem, FrameName, HeartbeatItem, MapPoint, Message, Refusal, Room, SealAnswer, SyncMode, SyncReply,
    SyncRequest, WriteRequest,
};
use freebs_format::{
    CarryBody, CarryEntry, Extent, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, Member, UpdateDraft,
    UpdateKind, ViewBody, ViewSecret, block_crc, hide,
};
use freebs_io::LinkId;
use freebs_lsvd::{MapPlace, Record};
use freebs_secrets::HostKey;
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DriverId, Generation, Hash32, Lba, Nanos, NodeId, Peer, RequestNumber,
    Result, Sequence, ShardId, StartNumber, Version, ViewNumber, VolumeId,
};
use std::collections::BTreeMap;

mod cuts;
mod forced;
mod forks;
mod guard;
mod intervals;
mod leases;
mod leaving;
mod past;
mod refused;
mod rewind;
mod room;
mod rules;
mod seals;
mod slices;
mod window;

const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };

/// Of the host on a node.
fn config(n: u64, mutant: Option<Mutant>) -> HostConfig {
    HostConfig {
        cluster: ClusterId([1; 16]),
        me: peer(n),
        start: StartNumber(1),
        workers: BTreeMap::new(),
        node_secret: Hash32::default(),
        host_key: host_key(n),
        mutant,
    }
}

fn peer(n: u64) -> Peer {
    Peer { node: NodeId(n), worker: 0 }
}

pub(crate) fn host_key(n: u64) -> HostKey {
    HostKey::new(Hash32([n as u8; 32]))
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

    fn meta(&self) -> FrameMeta {
        FrameMeta {
            cluster: ClusterId([1; 16]),
            shard: SHARD,
            view: self.view,
            chunk: ChunkId { view: self.view, counter: 0 },
            chunk_offset: 0,
            sequence: self.last.sequence.next(),
            first_version: Version(0),
            committed: Sequence(self.committed),
            wall: 0,
        }
    }

    fn secret(&self) -> Hash32 {
        view_secret(&Hash32::default(), SHARD, self.view)
    }

    fn put(&mut self, (frame, token): (Frame, Hash32)) -> Frame {
        self.last = FrameName { view: self.view, sequence: frame.head.seq(), hid: frame.header().hid() };
        self.token = token;
        frame
    }

    fn frame(&mut self, kind: FrameKind, body: &[u8]) -> Frame {
        let made = FrameBuilder::special(&self.meta(), kind, body, &self.secret(), &self.token);
        self.put(made)
    }

    /// A frame with one write of so many bytes.
    fn data(&mut self, bytes: usize) -> Frame {
        let data = Bytes::from(vec![7; bytes]);
        let range = BlockRange::new(0, (bytes / BLOCK) as u32);
        let mut builder = FrameBuilder::new();
        builder.push(UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(1),
            number: RequestNumber(self.last.sequence.0),
            lowest_open: RequestNumber(1),
            extents: vec![Extent { kind: ExtentKind::Data, range }],
            crcs: vec![block_crc(&data[..BLOCK]); bytes / BLOCK],
            data: vec![data],
        });
        let made = builder.build(&self.meta(), &self.secret(), &self.token);
        self.put(made)
    }

    /// A frame without updates.
    fn plain(&mut self) -> Frame {
        self.frame(FrameKind::Seal, &[])
    }

    fn open(&mut self, view: u64) -> Frame {
        self.open_with(view, None)
    }

    fn open_with(&mut self, view: u64, shared: Option<Box<ViewSecret>>) -> Frame {
        let body = ViewBody {
            pred: self.view,
            seal_sequence: self.last.sequence,
            seal_hid: self.last.hid,
            secret_hash: hide(&view_secret(&Hash32::default(), SHARD, ViewNumber(view))),
            quorum: 2,
            min_copies: 2,
            generation: Generation(0),
            members: [1, 2, 3].map(|n| Member { node: NodeId(n), start: StartNumber(1) }).to_vec(),
            shared,
            volume: None,
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
    wall: u64,
    tickets: u64,
    more_soon: bool,
    mutant: Option<Mutant>,
    /// Frames that were appended.
    log: Vec<Frame>,
    /// Of the predecessor that `proposed` names.
    learning: Vec<NodeId>,
    forced: Option<Forced>,
}

impl Scene {
    fn new(me: u64) -> Self {
        Self {
            r: Replica::empty(SHARD),
            me,
            now: Nanos::from_millis(1),
            wall: 0,
            tickets: 0,
            more_soon: false,
            mutant: None,
            log: Vec::new(),
            learning: Vec::new(),
            forced: None,
        }
    }

    fn play<T>(&mut self, act: impl FnOnce(&mut Replica, &mut Ctx<'_>) -> T) -> (T, Vec<Action>) {
        let config = config(self.me, self.mutant);
        let (mut peers, mut out) = (Peers::default(), Out::default());
        for n in (1..=3).filter(|n| *n != self.me) {
            peers.up(LinkId(n), peer(n), self.now);
        }
        let mut ctx = Ctx {
            now: self.now,
            wall: self.wall,
            config: &config,
            peers: &peers,
            out: &mut out,
            tickets: &mut self.tickets,
            room: u64::MAX,
            spare: u64::MAX,
            more_soon: self.more_soon,
            sharers: 1,
        };
        let got = act(&mut self.r, &mut ctx);
        out.flush(self.now, &peers);
        self.log.extend(out.actions.iter().filter_map(|a| match a {
            Action::Append(Record::Frame(frame)) => Some(frame.clone()),
            _ => None,
        }));
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

    /// View 2 with this predecessor is pending, and the own promise of it is durable.
    fn proposed(&mut self, pred: u64) {
        self.proposed_as(pred, 2);
    }

    fn proposed_as(&mut self, pred: u64, view: u64) {
        let opened = Opened {
            view: ViewNumber(view),
            pred: ViewNumber(pred),
            members: [1, 2, 3].map(NodeId).to_vec(),
            quorum: 2,
            min_copies: 2,
            pred_members: [1, 2, 3].map(NodeId).to_vec(),
            pred_quorum: 2,
            pred_learning: self.learning.clone(),
            pred_unseen: Vec::new(),
            forced: self.forced.clone(),
            generation: Generation(0),
            keys: BTreeMap::new(),
            volume: None,
        };
        self.play(|r, ctx| r.on_proposed(ctx, Ok(opened), Hash32([5; 32])));
        let ticket = self.tickets;
        self.play(|r, ctx| r.on_mark_durable(ctx, ticket));
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
    opening_with(Vec::new())
}

/// The same, and these members were new in view 1.
fn opening_with(learning: Vec<NodeId>) -> (Scene, SealAnswer) {
    let mut s = Scene { learning, ..Scene::new(1) };
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.plain());
    s.durable(2);
    s.play(|r, ctx| r.become_head(ctx));
    s.proposed(1);
    let answer = s.r.seal_answer(ViewNumber(2), ViewNumber(1));
    assert_eq!((s.r.last.view, answer.has_pred, answer.last.sequence), (ViewNumber(1), true, Sequence(2)));
    (s, answer)
}

/// Node 3 had the frame of the active view, and its head died before it told that this is committed. The next head,
/// which had missed the view, asked node 3 for its map, and was refused for ever, because the state that a map ends
/// with must be committed and know its view. The control plane says that it was active, unless a rebuild goes on from it
/// without being sure.
#[test]
fn a_view_that_was_active_is_committed() {
    let mut s = Scene::new(3);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.durable(1);
    assert_eq!(s.r.committed, Sequence(0));
    let mut unsure = ShardInfo { active: ViewNumber(1), known: ViewNumber(0), ..info(1024) };
    s.r.info = Some(unsure.clone());
    s.play(|r, ctx| r.on_seal(ctx, LinkId(2), (ViewNumber(3), ViewNumber(1)), None));
    assert_eq!(s.r.committed, Sequence(0), "a view that may not have been active says nothing");
    unsure.known = ViewNumber(1);
    s.r.info = Some(unsure);
    s.play(|r, ctx| r.on_seal(ctx, LinkId(2), (ViewNumber(4), ViewNumber(1)), None));
    assert_eq!(s.r.committed, Sequence(1));
}

/// A member whose transfer by map was refused half-way (the head had forgotten the state that it was to end with)
/// asked for the same piece again, for ever.
#[test]
fn a_refused_map_is_learned_from_its_beginning() {
    let mut s = Scene::new(2);
    let from = MapPoint { from: 9, ..MapPoint::NONE };
    let map = Learning { from, piece: MapPoint::BEGIN, ..Learning::new(Sequence(0), Sequence(7), Version(0)) };
    let (_, actions) = s.play(|r, ctx| r.ask_map(ctx, peer(1), ViewNumber(1), map));
    let asked = sync_requests(&actions);
    assert_eq!((asked.len(), asked[0].map_from, asked[0].until), (1, from, Sequence(7)));
    let refusal = SyncReply {
        shard: SHARD,
        view: ViewNumber(1),
        id: asked[0].id,
        mode: SyncMode::Refused,
        common: Sequence(0),
        map_next: MapPoint::NONE,
        frames: Vec::new(),
    };
    s.play(|r, ctx| r.on_sync_reply(ctx, refusal));
    s.now = s.now.plus(Nanos::from_millis(300));
    let (_, actions) = s.play(|r, ctx| r.member_tick(ctx));
    let asked = sync_requests(&actions);
    assert_eq!((asked.len(), asked[0].map_from, asked[0].until), (1, MapPoint::NONE, Sequence(u64::MAX)));
}

/// Two members with frames 1 to 6, all committed but the last one. The first of them has lost 3 and 4.
fn members_with_a_hole() -> (Scene, Scene) {
    let (mut s, mut other, mut c) = (Scene::new(2), Scene::new(3), Chain::new());
    let mut all = vec![c.open(1)];
    all.extend((2..=5).map(|_| c.data(BLOCK)));
    c.committed = 5;
    all.push(c.plain());
    for f in &all {
        s.take(f.clone());
        other.take(f.clone());
    }
    for n in 1..=6 {
        s.durable(n);
        other.durable(n);
    }
    let name = |f: &Frame| FrameName { view: ViewNumber(1), sequence: f.head.seq(), hid: f.header().hid() };
    let hole = Hole { before: name(&all[1]), until: Sequence(4), end: None };
    s.r.damage = Damage::new(vec![hole], false);
    s.r.requests = freebs_lsvd::RequestTable::default();
    (s, other)
}

/// The request that a member's next look brings.
fn asks(s: &mut Scene) -> Option<SyncRequest> {
    s.now = s.now.plus(Nanos::from_millis(20));
    let (_, actions) = s.play(|r, ctx| r.member_tick(ctx));
    sync_requests(&actions).first().map(|r| (*r).clone())
}

/// The answer of another member to the request for a piece: one entry, and the place where the rest begins.
fn piece_of(other: &mut Scene, q: &SyncRequest, next: Option<MapPlace>) -> SyncReply {
    let (_, actions) = other.play(|r, ctx| r.on_sync(ctx, LinkId(2), q.clone()));
    let is_read = |a: &Action| matches!(a, Action::MapRead { upto: Sequence(4), since: Sequence(2), .. });
    assert!(actions.iter().any(is_read), "{actions:?}");
    let entry = CarryEntry {
        kind: ExtentKind::Zero,
        range: BlockRange::new(7, 1),
        version: Version(3),
        sequence: Sequence(4),
        chunk: ChunkId::default(),
        offset: 0,
        crcs: Vec::new(),
    };
    let piece = Ok((CarryBody { entries: vec![entry] }, Vec::new(), next));
    let kept = freebs_lsvd::KeptState { as_of: Sequence(4), ..Default::default() };
    let source = MapSource { since: Sequence(2), upto: Sequence(4), view_frame: None, kept, piece };
    let (_, actions) = other.play(|r, ctx| r.answer_map(ctx, LinkId(2), q, source));
    let reply = actions.into_iter().find_map(|a| match a {
        Action::Send { to: LinkId(2), message: Message::SyncReply(r) } => Some(r),
        _ => None,
    });
    reply.expect("a piece")
}

/// Frames were lost that both others had given up: the log stayed damaged for ever, and its answers to seals never
/// counted again. What is left of them is learned, of a member that is not even the head.
#[test]
fn what_is_left_of_lost_frames_is_learned() {
    let (mut s, mut other) = members_with_a_hole();
    for _ in 0..2 {
        let q = asks(&mut s).expect("frames are asked for");
        assert!(!q.lost && q.until == Sequence(4));
        let no = SyncReply {
            shard: SHARD,
            view: q.view,
            id: q.id,
            mode: SyncMode::Refused,
            common: Sequence(0),
            map_next: MapPoint::NONE,
            frames: Vec::new(),
        };
        s.play(|r, ctx| r.on_sync_reply(ctx, no));
    }
    let mut at = MapPoint::BEGIN;
    for next in [Some(MapPlace { lba: Lba(40), behind: (Version(2), Sequence(3)), blocks: 4 }), None] {
        let q = asks(&mut s).expect("what is left is asked for");
        assert_eq!((q.lost, q.map_from, q.map_since, q.until), (true, at, Sequence(2), Sequence(4)));
        let reply = piece_of(&mut other, &q, next);
        let (_, actions) = s.play(|r, ctx| r.on_sync_reply(ctx, reply));
        assert!(
            asks(&mut s).is_none() && s.r.damage.is_there(),
            "one piece at a time, and only what is durable counts"
        );
        let piece = actions.iter().find_map(|a| match a {
            Action::Append(Record::Carry { ticket, .. }) => Some(*ticket),
            _ => None,
        });
        let piece = piece.expect("it goes into the log");
        let (_, mut actions) = s.play(|r, ctx| r.on_learned_durable(ctx, piece));
        // The mark goes out when the last piece is durable.
        let mark = actions.iter().find_map(|a| match a {
            Action::Append(Record::Mark { change, ticket, .. }) => {
                let l = change.learned.as_deref().expect("it says what was learned");
                assert_eq!((l.since, l.upto, l.requests.len()), (Sequence(2), Sequence(4), 4));
                Some(*ticket)
            }
            _ => None,
        });
        assert_eq!(mark.is_some(), next.is_none());
        if let Some(ticket) = mark {
            assert!(s.r.damage.is_there());
            actions = s.play(|r, ctx| r.on_learned_durable(ctx, ticket)).1;
        }
        // The next piece is asked for at once; asked again after a while, because this answer is thrown away.
        assert_eq!(sync_requests(&actions).len(), usize::from(next.is_some()));
        let point = |n: MapPlace| MapPoint { from: u64::from(n.lba.0) + 1, behind: n.behind, blocks: n.blocks };
        at = next.map_or(MapPoint::NONE, point);
        s.now = s.now.plus(Nanos::from_millis(500));
    }
    assert!(!s.r.damage.is_there() && s.r.requests.len() == 4);
}

/// Only who has all of it, and knows it committed, tells what is left of lost frames.
#[test]
fn what_is_left_is_not_told_by_who_may_lack_it() {
    let (mut other, mut c) = (Scene::new(3), Chain::new());
    for f in [c.open(1), c.data(BLOCK), c.data(BLOCK)] {
        other.take(f);
    }
    let ask = |other: &mut Scene, since, until| {
        let (names, map_since) = (Vec::new(), Sequence(since));
        let q = SyncRequest {
            shard: SHARD,
            view: ViewNumber(1),
            id: 9,
            names,
            until: Sequence(until),
            map_from: MapPoint::BEGIN,
            map_since,
            lost: true,
            fetch: false,
            past: Version(0),
        };
        let (_, actions) = other.play(|r, ctx| r.on_sync(ctx, LinkId(2), q));
        actions.iter().any(|a| matches!(a, Action::MapRead { .. }))
    };
    other.durable(3);
    assert!(!ask(&mut other, 0, 2), "not known to be committed");
    other.play(|r, ctx| r.note_committed(ctx, Sequence(2)));
    assert!(ask(&mut other, 0, 2) && ask(&mut other, 1, 2));
    assert!(!ask(&mut other, 0, 3) && !ask(&mut other, 2, 2));
    other.r.damage = Damage::new(vec![Hole { before: genesis(), until: Sequence(1), end: None }], false);
    assert!(!ask(&mut other, 0, 2), "it lacks some itself");
}

fn sync_requests(actions: &[Action]) -> Vec<&SyncRequest> {
    let mut found = Vec::new();
    for a in actions {
        if let Action::Send { message: Message::Sync(r), .. } = a {
            found.push(r);
        }
    }
    found
}

/// A member with a disk that hangs took every frame that came and kept it in memory.
#[test]
fn a_hanging_disk_takes_no_memory_without_bound() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.durable(1);
    let mut taken = 0;
    for n in 2..=40u64 {
        let frame = c.data(4 << 20);
        s.play(|r, ctx| r.on_frame(ctx, frame));
        if s.r.last.sequence == Sequence(n) {
            taken = n;
        }
    }
    assert!((10..=20).contains(&taken), "{taken} frames of 4 MiB taken");
    let (_, actions) = s.play(|r, ctx| r.on_nudge(ctx, LinkId(1), ViewNumber(1)));
    assert!(sync_requests(&actions).is_empty(), "it does not ask for more");
    for n in 2..=taken {
        s.durable(n);
    }
    s.now = s.now.plus(Nanos::from_millis(300));
    let (_, actions) = s.play(|r, ctx| r.member_tick(ctx));
    assert_eq!(sync_requests(&actions).len(), 1, "now it does");
}

/// Heads do not know of each other, and who catches up is not asked for its room: what they gave filled the device, and
/// its log ended.
#[test]
fn frames_that_the_log_has_no_room_for_are_fetched_later() {
    let (mut s, mut c) = (Scene::new(2), Chain::new());
    s.take(c.open(1));
    s.durable(1);
    let all = [c.data(BLOCK), c.data(BLOCK), c.data(BLOCK)];
    let live = all[0].clone();
    s.play(|r, ctx| {
        ctx.spare = BLOCK as u64;
        r.on_frame(ctx, live);
    });
    assert_eq!(s.r.last.sequence, Sequence(1));
    for (spare, is_full) in [(3 * BLOCK as u64, true), (u64::MAX, false)] {
        let frames = all.to_vec();
        s.play(|r, ctx| {
            ctx.spare = spare;
            r.ask(ctx, peer(1), ViewNumber(1), Sequence(u64::MAX));
            let id = r.asking.expect("it asks").id;
            let (mode, common) = (SyncMode::Level, Sequence(1));
            let view = ViewNumber(1);
            r.on_sync_reply(ctx, SyncReply { shard: SHARD, view, id, mode, common, map_next: MapPoint::NONE, frames });
        });
        // With a quarter for what the log adds, two blocks fit.
        assert_eq!((s.r.last.sequence.0, s.r.is_full), (if is_full { 3 } else { 4 }, is_full));
        assert!(s.r.asking.is_none() && s.r.stopped.is_none());
    }
}

/// The control plane named a head whose device was too full for the longest log. It tried again and again, and nobody
/// else could; or it was only waiting for its own cleaning, and asked again after five seconds, with a new view.
#[test]
fn a_head_without_room_for_the_longest_log_hands_over() {
    for more_soon in [false, true] {
        let (mut s, good) = opening();
        let mut c = Chain::new();
        let [_, _, longer] = [c.open(1), c.plain(), c.data(BLOCK)];
        let longest = SealAnswer { last: c.last, ..good };
        let (_, actions) = s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), longest));
        assert_eq!(sync_requests(&actions).len(), 1);
        s.more_soon = more_soon;
        let (_, actions) = s.play(|r, ctx| {
            ctx.spare = 0;
            let id = r.asking.expect("it asks").id;
            let (shard, view, mode, common) = (SHARD, ViewNumber(2), SyncMode::Level, Sequence(2));
            r.on_sync_reply(
                ctx,
                SyncReply { shard, view, id, mode, common, map_next: MapPoint::NONE, frames: vec![longer] },
            );
        });
        let to = |a: &Action| if let Action::HandOver { to, .. } = a { Some(*to) } else { None };
        assert_eq!(actions.iter().find_map(to), (!more_soon).then_some(NodeId(2)));
        let (mut asked, mut proposed) = (0, 0);
        for _ in 0..25 {
            s.now = s.now.plus(Nanos::from_millis(20));
            let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
            asked += sync_requests(&actions).len();
            proposed += actions.iter().filter(|a| matches!(a, Action::Propose { .. })).count();
        }
        assert_eq!((asked > 0, proposed), (more_soon, 0));
    }
}

/// The device of a head failed, and its node went on answering the control plane: its shards waited for ever.
#[test]
fn a_head_whose_log_is_out_of_use_asks_for_another_one() {
    let mut s = Scene::new(1);
    let named = |members: [u64; 3]| ShardInfo {
        members: members.map(NodeId).to_vec(),
        active: ViewNumber(1),
        known: ViewNumber(1),
        highest: ViewNumber(1),
        generation: Generation(0),
        ..info(1024)
    };
    s.r.info = Some(named([1, 2, 3]));
    let to = |a: &Action| if let Action::HandOver { to, .. } = a { Some(to.0) } else { None };
    let mut asked = Vec::new();
    for round in 0..200 {
        s.now = s.now.plus(Nanos::from_millis(100));
        let (_, actions) = s.play(|r, ctx| {
            if round == 10 {
                r.stop(ctx, "the device is out of use".into());
            }
            r.head_tick(ctx);
        });
        asked.extend(actions.iter().find_map(to).map(|to| (round, to)));
    }
    assert_eq!(asked, [(10, 2), (20, 3), (40, 2), (80, 3), (160, 2)]);
    s.r.info = Some(named([2, 3, 1]));
    s.now = s.now.plus(Nanos::from_millis(60_000));
    let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
    assert!(actions.iter().all(|a| to(a).is_none()));
}

/// A head that was told of a newer member of its view by nobody: the answer to SYNC with the view frame was lost on
/// a link that other shards kept busy. Its heartbeats meant nothing to the member.
#[test]
fn a_heartbeat_of_an_unknown_view_makes_a_member_ask() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.durable(1);
    let item = HeartbeatItem {
        shard: SHARD,
        view: ViewNumber(2),
        last: Sequence(2),
        committed: Sequence(2),
        keep: Sequence(0),
    };
    let (_, actions) = s.play(|r, ctx| r.on_heartbeat(ctx, peer(1), &item));
    assert_eq!(sync_requests(&actions)[0].view, ViewNumber(2));
    assert_eq!(s.r.committed, Sequence(0));
}

const DRIVER: LinkId = LinkId(100);

/// Node 1 as the active head of view 2, with node 2's log as far as its own, and a driver attached.
fn leading() -> Scene {
    leading_at(0, Ok(Found::Window(None)))
}

/// The same by a wall clock, and the log has said this of its retention window.
fn leading_at(wall: u64, window: Result<Found>) -> Scene {
    let (mut s, good) = opening();
    s.wall = wall;
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    let asked = s.both_durable();
    let ask = window::asks(&asked).pop().expect("the log is asked for its window");
    assert_eq!((ask.wanted, ask.view), (Wanted::Window, ViewNumber(2)));
    s.play(|r, ctx| r.on_past_found(ctx, ask, window));
    s.play(|r, ctx| r.on_intervals(ctx, ViewNumber(2), Ok(Vec::new())));
    s.play(|r, ctx| r.on_activated(ctx, ViewNumber(2), Ok(())));
    s.play(|r, ctx| r.on_attach(ctx, DRIVER, DriverId(9), Generation(1), Hash32::default()));
    s.both_durable();
    assert_eq!((s.r.committed, s.r.is_active_head()), (Sequence(4), true));
    s
}

/// A member's answer.
fn answer(view: u64, sequence: u64, room: Option<Room>) -> DurableItem {
    DurableItem { shard: SHARD, view: ViewNumber(view), sequence: Sequence(sequence), room }
}

/// A driver's write of so many blocks, from the first one on.
fn request(number: u64, lowest_open: u64, blocks: usize) -> WriteRequest {
    let data = Bytes::from(vec![7; blocks * BLOCK]);
    WriteRequest {
        shard: SHARD,
        view: ViewNumber(2),
        generation: Generation(1),
        driver: DriverId(9),
        number: RequestNumber(number),
        lowest_open: RequestNumber(lowest_open),
        kind: UpdateKind::Write,
        interval: None,
        extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, blocks as u32) }],
        crcs: vec![block_crc(&data[..BLOCK]); blocks],
        data: vec![data],
    }
}

impl Scene {
    /// What was appended is durable here and at node 2.
    fn both_durable(&mut self) -> Vec<Action> {
        let last = self.r.last.sequence;
        let view = self.r.view_number();
        let mut actions = self.play(|r, ctx| r.on_frame_durable(ctx, last)).1;
        actions.extend(self.play(|r, ctx| r.head_member_durable(ctx, NodeId(2), &answer(view.0, last.0, None))).1);
        actions
    }

    fn write(&mut self, room: bool, number: u64, lowest_open: u64, blocks: usize) -> Vec<Action> {
        self.write_as(room, number, lowest_open, blocks, |_| {})
    }

    fn write_as(
        &mut self,
        room: bool,
        number: u64,
        lowest_open: u64,
        blocks: usize,
        change: fn(&mut WriteRequest),
    ) -> Vec<Action> {
        let mut w = request(number, lowest_open, blocks);
        change(&mut w);
        let act = |r: &mut Replica, ctx: &mut Ctx<'_>| {
            ctx.room = if room { u64::MAX } else { 0 };
            r.on_write(ctx, DRIVER, w);
            r.pack(ctx);
        };
        self.play(act).1
    }
}

/// W1: what was asked for in another view, or by who is not attached, is not ordered. The mutant shows that it would be.
#[test]
fn requests_of_others_are_refused() {
    type Change = fn(&mut WriteRequest);
    let others: [(Change, Refusal); 5] = [
        (|w| w.view = ViewNumber(1), Refusal::WrongView),
        (|w| w.view = ViewNumber(3), Refusal::WrongView),
        (|w| w.generation = Generation(0), Refusal::Fenced),
        (|w| w.generation = Generation(2), Refusal::NotReady),
        (|w| w.driver = DriverId(8), Refusal::NotReady),
    ];
    for mutant in [None, Some(Mutant::RequestsOfAnyone)] {
        for (change, wanted) in others {
            let mut s = leading();
            s.mutant = mutant;
            let (last, actions) = (s.r.last.sequence.0, s.write_as(true, 1, 1, 1, change));
            let said = |a: &Action| matches!(a, Action::Send { to: DRIVER, message: Message::Refused(r) } if r.reason == wanted);
            let is_refused = actions.iter().any(said) && s.r.last.sequence.0 == last;
            assert_eq!(is_refused, mutant.is_none(), "{actions:?}");
        }
    }
}

/// W3, W7: a write was refused for want of space, its client was told, and the block was written anew when there was
/// room. Then a copy of the refused request arrived (from an older link, or sent just before the refusal came), was
/// not known, and was applied on top of the newer write.
#[test]
fn a_copy_of_a_refused_write_is_not_applied() {
    let mut s = leading();
    let last = s.r.last.sequence;
    let refused = |actions: &[Action]| {
        actions
            .iter()
            .any(|a| matches!(a, Action::Send { message: Message::Refused(f), .. } if f.reason == Refusal::NoSpace))
    };
    assert!(!refused(&s.write(false, 2, 1, 1)));
    assert!(refused(&s.ticks(0)));
    s.write(true, 3, 1, 1);
    assert_eq!(s.r.last.sequence, last.next());
    assert!(refused(&s.write(true, 2, 1, 1)), "its fate is known");
    assert_eq!(s.r.last.sequence, last.next());
    s.write(true, 4, 4, 1);
    assert_eq!(s.r.last.sequence, last.next().next(), "others go on");
}

fn info(blocks: u64) -> ShardInfo {
    ShardInfo {
        shard: SHARD,
        members: [1, 2, 3].map(NodeId).to_vec(),
        active: ViewNumber(2),
        known: ViewNumber(2),
        blocks,
        highest: ViewNumber(2),
        generation: Generation(1),
        has_keys: false,
        joining: Vec::new(),
        view_members: Vec::new(),
        volume: None,
        forced: None,
        branch: Branch::default(),
        snapshots: ShardSnapshots::default(),
        fork: None,
        flatten: false,
    }
}

fn reason(actions: &[Action]) -> Option<Refusal> {
    actions.iter().find_map(|a| match a {
        Action::Send { message: Message::Refused(f), .. } => Some(f.reason),
        _ => None,
    })
}

/// A write into the part that a volume had just grown by was refused for good when its head had not heard of the new
/// size yet.
#[test]
fn a_write_behind_the_known_end_is_waited_out() {
    let mut s = leading();
    let last = s.r.last.sequence;
    s.r.info = Some(info(1));
    assert_eq!(reason(&s.write(true, 2, 1, 2)), Some(Refusal::NotReady));
    assert_eq!(reason(&s.write(true, 2, 1, 2)), Some(Refusal::NotReady));
    s.r.info = Some(info(2));
    assert_eq!(reason(&s.write(true, 2, 1, 2)), None);
    assert_eq!(s.r.last.sequence, last.next());
}

/// One Attach with the highest generation there is fenced a volume for ever.
#[test]
fn a_generation_that_was_never_given_out_fences_nobody() {
    let mut s = leading();
    s.r.info = Some(info(1024));
    let attach = |s: &mut Scene, generation| {
        s.play(|r, ctx| r.on_attach(ctx, LinkId(101), DriverId(10), Generation(generation), Hash32::default())).1
    };
    for wrong in [u64::MAX, u64::MAX - 1, 1 << 20] {
        assert_eq!(reason(&attach(&mut s, wrong)), Some(Refusal::NotReady));
    }
    assert_eq!(reason(&s.write(true, 2, 1, 1)), None, "the driver goes on");
    // One that this node has not heard of yet is taken, so that nobody waits for the news.
    assert_eq!(reason(&attach(&mut s, 2)), Some(Refusal::Fenced), "the driver before it");
    assert_eq!(reason(&s.write(true, 3, 1, 1)), Some(Refusal::Fenced));
}

/// One Seal for the highest view there is, from who pretends to be a member, and this one never took part again.
#[test]
fn a_view_that_was_never_numbered_is_not_promised() {
    let mut s = Scene::new(2);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.take(c.open(2));
    s.durable(2);
    s.r.info = Some(info(1024));
    for wrong in [u64::MAX, 1 << 20] {
        let (_, actions) = s.play(|r, ctx| r.on_seal(ctx, LinkId(3), (ViewNumber(wrong), ViewNumber(2)), None));
        assert!(actions.is_empty() && s.r.serves(), "{actions:?}");
    }
    let (_, actions) = s.play(|r, ctx| r.on_seal(ctx, LinkId(3), (ViewNumber(4), ViewNumber(2)), None));
    let is_promise = |a: &&Action| matches!(a, Action::Append(Record::Mark { change, .. }) if change.promised == Some(ViewNumber(4)));
    assert_eq!(actions.iter().filter(is_promise).count(), 1, "the promise");
}

/// Writes that had waited for the window were gathered when it opened, but nothing ended the turn with a frame until
/// another write came.
#[test]
fn writes_that_waited_for_the_window_are_ordered_when_it_opens() {
    let mut s = leading();
    let last = s.r.last.sequence.0;
    for n in 1..=5 {
        s.write(true, n, 1, 1024);
    }
    assert_eq!(s.r.last.sequence.0, last + 4, "the fifth waits");
    s.both_durable();
    assert_eq!(s.r.last.sequence.0, last + 5);
}

/// The head's own disk was the last to have the view frame: the view became active before, and the head's drivers
/// never heard of it.
#[test]
fn a_head_with_a_slow_disk_tells_of_its_view() {
    let (mut s, good) = opening();
    s.play(|r, ctx| r.on_follow(ctx, DRIVER, Generation(0)));
    s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
    for n in [2, 3] {
        s.play(|r, ctx| r.head_member_durable(ctx, NodeId(n), &answer(2, 3, None)));
    }
    s.play(|r, ctx| r.on_activated(ctx, ViewNumber(2), Ok(())));
    assert!(!s.r.is_active_head());
    let (_, actions) = s.play(|r, ctx| r.on_frame_durable(ctx, Sequence(3)));
    let tells = |a: &Action| matches!(a, Action::Send { to: DRIVER, message: Message::View(_) });
    assert!(actions.iter().any(tells), "{actions:?}");
}

/// A frame and the heartbeat behind it were lost with one of two links to a member. Nothing told the member, the
/// link was not silent, so it was not passed over either, and a request that needed it hung.
#[test]
fn heartbeats_go_on_until_live_members_have_everything() {
    let mut s = leading();
    s.play(|r, ctx| r.member_is_level(ctx, LinkId(2)));
    let beats = |s: &mut Scene, rounds: u64| {
        let mut n = 0;
        for _ in 0..rounds {
            s.now = s.now.plus(Nanos::from_millis(110));
            let (_, actions) = s.play(|r, ctx| r.head_tick(ctx));
            let beat = |a: &&Action| matches!(a, Action::Send { to: LinkId(2), message: Message::Heartbeat(_) });
            n += actions.iter().filter(beat).count();
        }
        n
    };
    assert_eq!(beats(&mut s, 4), 1, "all is said");
    s.write(true, 1, 1, 1);
    assert_eq!(beats(&mut s, 4), 4, "node 2 has not got it");
    s.both_durable();
    assert_eq!(beats(&mut s, 4), 1);
}

/// The answerer's disk needed longer than the asker's patience. Each answer came after the next question and was
/// dropped for that, for ever.
#[test]
fn a_slow_answer_is_waited_for() {
    let mut s = Scene::new(2);
    let (_, actions) = s.play(|r, ctx| r.on_nudge(ctx, LinkId(1), ViewNumber(1)));
    assert_eq!(sync_requests(&actions).len(), 1);
    let mut longest = 0;
    let mut last = s.now;
    for _ in 0..1000 {
        s.now = s.now.plus(Nanos::from_millis(20));
        let (_, mut actions) = s.play(|r, ctx| r.member_tick(ctx));
        actions.extend(s.play(|r, ctx| r.on_nudge(ctx, LinkId(1), ViewNumber(1))).1);
        if !sync_requests(&actions).is_empty() {
            longest = longest.max(s.now.since(last).0 / 1_000_000);
            last = s.now;
        }
    }
    assert!((4000..=9000).contains(&longest), "waited {longest} ms at most");
}

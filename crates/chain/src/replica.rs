//! One shard on one node: its log as it was put in order here, durable or not yet, and what its roles share.
//!
//! Invariants: `tail` names every frame from the committed one to the last, but for those that damage took; `durable`
//! never passes `last`; `committed` never passes `last`; nothing is appended to a view below a promise.

mod check;

use crate::event::{Action, HostConfig, Mutant, NoteKind, ShardInfo};
use crate::head::Head;
use crate::lease::{Leases, quorums_are_apart};
use crate::out::Out;
use crate::peers::Peers;
use crate::regain::Regain;
use crate::repair::Damage;
use crate::secret::Known;
use crate::sync::Asking;
use freebs_format::wire::{DurableItem, FrameName, MapPoint, Message, Refusal, Request, Room, SyncReply, ViewNews};
use freebs_format::{AttachBody, Frame, FrameHead, FrameKind, ViewBody, hide};
use freebs_io::LinkId;
use freebs_lsvd::{KeptState, MarkChange, Record, RequestTable, ShardState};
use freebs_types::{
    ChunkId, Generation, Hash32, HostPublic, Nanos, NodeId, Peer, SealedSlice, Sequence, ShardId, Version, ViewNumber,
    limits,
};
use std::collections::{BTreeMap, VecDeque};

/// Appended frames of a shard that wait for the own disk.
const UNWRITTEN_BYTES_MAX: usize = 4 * limits::SHARD_WINDOW_BYTES;

/// A change of room by less is not told for its own sake.
const ROOM_STEP: u64 = 1 << 20;

/// What every step of a replica can reach.
pub(crate) struct Ctx<'a> {
    pub now: Nanos,
    pub wall: u64,
    pub config: &'a HostConfig,
    pub peers: &'a Peers,
    pub out: &'a mut Out,
    pub tickets: &'a mut u64,
    /// Bytes of updates that the device takes from this shard, those included that are not durable yet (W7).
    pub room: u64,
    /// Bytes that frames of other members may take without using up what the log needs to go on; as `room`, but with
    /// most of the reserve in it.
    pub spare: u64,
    /// The log is making room: what has none may have some soon.
    pub more_soon: bool,
    /// Shards here that have something on the way to the disk, this one counted as one of them.
    pub sharers: u64,
}

impl Ctx<'_> {
    pub fn mutant(&self, m: Mutant) -> bool {
        self.config.mutant == Some(m)
    }

    /// Mutants of rules that slices would cover: who has not gathered promises has no slices, either.
    pub fn knows_secrets(&self) -> bool {
        self.mutant(Mutant::HeadOrdersAfterRestart) || self.mutant(Mutant::SealAlone)
    }

    pub fn peer(&self, node: NodeId, shard: ShardId) -> Peer {
        Peer::of(node, shard, self.config.workers.get(&node).copied().unwrap_or(1))
    }

    pub fn ticket(&mut self) -> u64 {
        *self.tickets += 1;
        *self.tickets
    }
}

/// The newest view frame of a log.
#[derive(Clone, Debug)]
pub(crate) struct OpenView {
    pub number: ViewNumber,
    pub sequence: Sequence,
    pub body: ViewBody,
}

/// A frame at the end of the log, without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailEntry {
    pub name: FrameName,
    pub version: Version,
    pub parent: Hash32,
    pub digest: Hash32,
    /// Set if the frame is no longer in the log, and known only from the one behind it: then this is its token, and
    /// `parent` and `digest` are not known. One that is known only from the beginning of a branch has none of them.
    pub token: Option<Hash32>,
    /// Wall clock in its header; 0 if that is not known.
    pub wall: u64,
}

impl TailEntry {
    /// A frame of which only the sequence is known.
    pub fn unknown(sequence: Sequence) -> Self {
        let none = Hash32::default();
        let name = FrameName { sequence, ..FrameName::default() };
        Self { name, version: Version(0), parent: none, digest: none, token: None, wall: 0 }
    }

    /// A frame as a mark or a log names its last one: see `origin`.
    pub fn with_origin(name: FrameName, version: Version, parent: Hash32, digest: Hash32) -> Self {
        let none = Hash32::default();
        let is_token = digest == none && hide(&parent) == name.hid;
        match is_token {
            true => Self { name, version, parent: none, digest, token: Some(parent), wall: 0 },
            false => Self { name, version, parent, digest, token: None, wall: 0 },
        }
    }

    /// True if the frame's token can be made, by who knows the view's secret.
    pub fn has_origin(&self) -> bool {
        self.token.is_some() || self.digest != Hash32::default()
    }

    /// What the frame's token is made of: parent and digest; or, without a digest, the token itself.
    pub fn origin(&self) -> (Hash32, Hash32) {
        match self.token {
            Some(token) => (token, Hash32::default()),
            None => (self.parent, self.digest),
        }
    }

    pub fn of(frame: &FrameHead) -> Self {
        let h = frame.header();
        Self {
            name: FrameName { view: h.view_number(), sequence: h.seq(), hid: h.hid() },
            version: h.last_version(),
            parent: h.parent_token(),
            digest: h.digest(),
            token: None,
            wall: h.wall.get(),
        }
    }

    /// The frame before one whose own was given up.
    pub fn before(frame: &FrameHead) -> Self {
        let b = frame.before();
        Self {
            name: FrameName { view: b.view, sequence: b.sequence, hid: b.hid },
            version: b.version,
            parent: Hash32::default(),
            digest: Hash32::default(),
            token: b.token,
            wall: 0,
        }
    }
}

/// A promise that is on its way to the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promising {
    pub view: ViewNumber,
    pub pred: ViewNumber,
    pub ticket: u64,
    /// Who asked; `None` if this node did itself.
    pub asker: Option<LinkId>,
    /// The own slice, as the asker sent it.
    pub slice: Option<(HostPublic, SealedSlice)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub generation: Generation,
    pub is_attached: bool,
}

pub(crate) struct Replica {
    pub id: ShardId,
    /// The node it is on; `None` before it is a host's.
    pub me: Option<NodeId>,
    /// From the control plane; `None` until it has spoken of this shard.
    pub info: Option<ShardInfo>,
    /// The active view in that state, whatever is known beside it.
    pub heard_active: ViewNumber,
    pub last: FrameName,
    /// The end of a log without a frame of its own that can open the first view: of a clone's shard, its fork.
    pub begins: FrameName,
    pub version: Version,
    pub tail: BTreeMap<Sequence, TailEntry>,
    pub durable: Sequence,
    pub committed: Sequence,
    /// What the log engine was told last.
    told_committed: Sequence,
    pub view: Option<OpenView>,
    /// Views whose frames lie before that one, the oldest first: the newest one of which the frame is committed, and all
    /// behind it. They are asked for again if the newer views never become active (V4); so are the slices of a view
    /// whose successor does not say its secret.
    pub before: Vec<OpenView>,
    /// Whether this view is known to be active: only then drivers hear of it.
    pub active_known: bool,
    pub promised: ViewNumber,
    /// Lost frames were given up by force when this view was left.
    pub given_up: ViewNumber,
    pub promising: Option<Promising>,
    pub known: Known,
    pub attach: AttachBody,
    pub leases: Leases,
    pub requests: RequestTable,
    pub chunk: (ChunkId, u32),
    /// Appended, not durable yet: these can't be read from the log.
    pub recent: VecDeque<Frame>,
    recent_bytes: usize,
    /// Arrived before the frames that come before them.
    pub gap: BTreeMap<Sequence, Frame>,
    pub gap_bytes: usize,
    pub gap_since: Nanos,
    pub clients: BTreeMap<LinkId, Client>,
    pub asking: Option<Asking>,
    pub head: Option<Box<Head>>,
    /// The control plane was asked for a view and has not answered yet: it is asked one thing at a time.
    pub proposing: bool,
    /// A frame here differs from the chain's at the same sequence, or the log can't be trusted: nothing is served.
    pub stopped: Option<String>,
    /// When, and how often by now, this node said that another one is to be head in its place.
    pub handed_over: Option<(Nanos, u32)>,
    /// Frames of this log that were lost.
    pub damage: Damage,
    /// The log may have lost a promise, or, if it is empty, all that it had: the device has lost something (V2).
    pub is_doubtful: bool,
    /// It counts as if this had been promised, because the log may have lost a promise: the highest view that was given out as
    /// its first state after the start says.
    doubt: ViewNumber,
    /// When the head was told last that nothing is lacked here.
    pub told_whole: Nanos,
    /// What the head was told last of the room here.
    pub told_room: Option<Room>,
    /// All that is kept here of the past takes more memory than it should, and this shard's is no less than most.
    pub past_over: bool,
    pub view_frame: Option<FrameHead>,
    /// A transfer by map ends with the state of this frame; when it was last asked for.
    pub map_hold: Option<(TailEntry, Nanos)>,
    /// The state at the end of the map that is learned; its last piece is on its way to the disk.
    pub map_end: Option<Frame>,
    /// A piece that waits until it is durable what its teller keeps, and that.
    pub map_piece: Option<(SyncReply, KeptState)>,
    /// The versions that a teller of this transfer keeps, once it is durable; none while a mark of them is on its way.
    pub told_kept: KeptState,
    /// Committed frames up to which peers told of something, by the view in which they were asked; 0 for the view if a start has
    /// found it. The log may have a part of that (`branch.rs`).
    ahead: BTreeMap<ViewNumber, Sequence>,
    /// Kept versions below this are not all there, as the log says.
    pub whole_from: Version,
    pub regain: Regain,
    /// The device has no room for the map that is learned; and where in the map that was seen (address plus one).
    pub is_full: bool,
    pub full_from: MapPoint,
    /// A learned state on its way to the disk: ticket, since which sequence it was learned, and up to which.
    pub learned: Option<(u64, Sequence, Sequence)>,
    /// Cuts that the log engine has not come to yet, oldest first: what it still makes durable behind them is not
    /// of this log any more.
    cutting: VecDeque<Sequence>,
}

/// The name of an empty log's last frame: everyone knows its token.
pub(crate) fn genesis() -> FrameName {
    FrameName { view: ViewNumber(0), sequence: Sequence(0), hid: hide(&Hash32::default()) }
}

/// The place that is named for the chunk behind a frame of this view if it is not known how far that was filled: no frame
/// that follows lies before it.
pub(crate) fn first_chunk(view: ViewNumber) -> (ChunkId, u32) {
    (ChunkId { view, counter: 0 }, 0)
}

/// What updates of so many bytes may take of the log.
pub(crate) fn with_overhead(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}

/// Bytes that a frame takes in memory.
pub(crate) fn weight(frame: &Frame) -> usize {
    frame.data_bytes() + frame.head.bytes().len()
}

impl Replica {
    pub fn empty(id: ShardId) -> Self {
        let mut tail = BTreeMap::new();
        let first = TailEntry {
            name: genesis(),
            version: Version(0),
            parent: Hash32::default(),
            digest: Hash32::default(),
            token: None,
            wall: 0,
        };
        tail.insert(Sequence(0), first);
        Self {
            id,
            me: None,
            info: None,
            heard_active: ViewNumber(0),
            last: genesis(),
            begins: genesis(),
            version: Version(0),
            tail,
            durable: Sequence(0),
            committed: Sequence(0),
            told_committed: Sequence(0),
            view: None,
            before: Vec::new(),
            active_known: false,
            promised: ViewNumber(0),
            given_up: ViewNumber(0),
            promising: None,
            known: Known::default(),
            attach: AttachBody::default(),
            leases: Leases::default(),
            requests: RequestTable::default(),
            chunk: (ChunkId::default(), 0),
            recent: VecDeque::new(),
            recent_bytes: 0,
            gap: BTreeMap::new(),
            gap_bytes: 0,
            gap_since: Nanos(0),
            clients: BTreeMap::new(),
            asking: None,
            head: None,
            proposing: false,
            stopped: None,
            handed_over: None,
            damage: Damage::default(),
            is_doubtful: false,
            doubt: ViewNumber(0),
            told_whole: Nanos(0),
            told_room: None,
            past_over: false,
            view_frame: None,
            map_hold: None,
            map_end: None,
            map_piece: None,
            told_kept: KeptState::default(),
            ahead: BTreeMap::new(),
            whole_from: Version(0),
            regain: Regain::default(),
            is_full: false,
            full_from: MapPoint::NONE,
            learned: None,
            cutting: VecDeque::new(),
        }
    }

    /// On its node.
    pub fn at(mut self, me: NodeId) -> Self {
        self.me = Some(me);
        self
    }

    /// Nothing but a promise. The log has so many cuts of a former replica to do before it comes to what this one gives
    /// it.
    pub fn left(id: ShardId, promised: ViewNumber, cuts: usize) -> Self {
        Self { promised, cutting: std::iter::repeat_n(Sequence(0), cuts).collect(), ..Self::empty(id) }
    }

    /// Cuts that the log has not come to yet.
    pub fn cuts(&self) -> usize {
        self.cutting.len()
    }

    /// As the log engine recovered it; `tail` holds the frames from the committed one on, oldest first.
    pub fn recovered(state: &ShardState, tail: Vec<TailEntry>, view_frame: Option<FrameHead>, damage: Damage) -> Self {
        let mut r = Self::empty(state.shard);
        if state.last.sequence.0 > 0 {
            r.last = state.last;
            let last = TailEntry::with_origin(r.last, state.version, state.parent, state.digest);
            r.tail = tail.into_iter().map(|t| (t.name.sequence, t)).collect();
            // The log knows more of it than its frame does, but not when it was made.
            let wall = r.tail.get(&r.last.sequence).filter(|t| t.name == r.last).map_or(0, |t| t.wall);
            r.tail.insert(r.last.sequence, TailEntry { wall, ..last });
        }
        r.version = state.version;
        r.durable = r.last.sequence;
        r.committed = state.committed.min(r.last.sequence);
        r.told_committed = r.committed;
        // Every frame behind a view frame belongs to its view, so the last frame knows the number.
        r.view = state.view.as_ref().map(|(sequence, body)| OpenView {
            number: state.last.view,
            sequence: *sequence,
            body: body.clone(),
        });
        let before = state.views_before.iter().cloned();
        r.before = before.map(|(number, sequence, body)| OpenView { number, sequence, body }).collect();
        r.promised = state.promised;
        r.is_doubtful = state.promise_lost;
        r.given_up = state.given_up;
        r.attach = state.attach;
        if let Some(generation) = r.view.as_ref().map(|v| v.body.generation).filter(|g| *g > r.attach.generation) {
            r.attach = AttachBody { generation, ..AttachBody::default() };
        }
        r.whole_from = state.whole_from;
        r.ahead.extend(Some((ViewNumber(0), state.ahead)).filter(|(_, s)| s.0 > 0));
        r.requests = state.requests.clone();
        r.chunk = state.open_chunk;
        r.view_frame = view_frame;
        r.damage = damage;
        r.damage.absent = state.absent;
        r
    }

    /// A peer told, in this view, of what committed frames up to there brought or keep. Something of it goes into the log.
    pub fn note_ahead(&mut self, view: ViewNumber, to: Sequence) {
        let known = self.ahead.entry(view).or_default();
        *known = to.max(*known);
    }

    /// True if this log has something of frames behind `at` that was told before this view, and is not in the view itself.
    pub fn is_ahead(&self, view: ViewNumber, at: Sequence) -> bool {
        // Nobody knows any more when that was told which a start has found.
        let is_before = |v: ViewNumber| v < view && (v.0 > 0 || self.view_number() < view);
        self.ahead.iter().any(|(v, to)| is_before(*v) && *to > at)
    }

    /// The highest frame that this node knows to be committed, be it that it has only something of what frames up to there brought.
    pub fn known_committed(&self) -> Sequence {
        self.ahead.values().copied().max().unwrap_or_default().max(self.committed)
    }

    /// True if it has no frame of its own.
    pub fn is_empty_log(&self) -> bool {
        self.last.view == ViewNumber(0)
    }

    pub fn view_number(&self) -> ViewNumber {
        self.view.as_ref().map(|v| v.number).unwrap_or_default()
    }

    /// The highest view that frames may still be refused for: durable promise or one under way.
    pub fn promise(&self) -> ViewNumber {
        self.promising.map_or(self.promised, |p| p.view.max(self.promised))
    }

    /// The newest view that the control plane has said to be active. Older ones are dead.
    pub fn active(&self) -> ViewNumber {
        self.info.as_ref().map_or(ViewNumber(0), |i| i.active)
    }

    /// True if this log may follow a view: it promised none above it, is in none above it, and knows of none above it
    /// that was active. One that has given up lost frames follows nobody: it would not get them.
    pub fn may_follow(&self, view: ViewNumber) -> bool {
        view >= self.promise().max(self.view_number()).max(self.active()) && !self.has_given_up()
    }

    /// The own disk is so far behind that nothing more is taken: a member lets frames go by and fetches them when
    /// the disk has caught up, a head lets requests wait.
    pub fn is_stuffed(&self) -> bool {
        self.recent_bytes >= UNWRITTEN_BYTES_MAX
    }

    /// Bytes that were taken for this log and are not durable yet: those appended, and those that a head gathers.
    pub fn unwritten_bytes(&self) -> u64 {
        (self.recent_bytes + self.head.as_ref().map_or(0, |h| h.gathered_bytes())) as u64
    }

    /// Whether this log takes a frame of another member: the head knows of the room here only what it was told, and who
    /// catches up is not asked at all. The log must not end for it; what is not taken now is fetched later.
    pub fn may_take(&self, ctx: &Ctx<'_>, frame: &Frame) -> bool {
        let bytes = frame.data_bytes() as u64;
        !self.is_stuffed() && (bytes == 0 || ctx.spare > with_overhead(self.unwritten_bytes() + bytes))
    }

    /// Whether one more update may come (W7): a slow disk is full before its log shows it, so what waits for it needs
    /// room, too, with a quarter for what the log adds.
    pub fn has_room(&self, ctx: &Ctx<'_>) -> bool {
        ctx.room > with_overhead(self.unwritten_bytes())
    }

    /// Forgets frames that were appended, when the log goes on elsewhere.
    pub fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }

    /// Whether this log matches its view, and is one of its members': the view frame is durable, and no newer view was
    /// promised (W4, V2), or is known to have been active. Who is new learns of views before its first one, too. One that lacks something
    /// serves in a view that allows it (V16).
    pub fn serves(&self) -> bool {
        let is_member = |v: &OpenView| self.me.is_none_or(|me| v.body.members.iter().any(|m| m.node == me));
        let promised = |v: &OpenView| self.promise().max(self.active()).max(self.may_have_promised()) > v.number;
        let holds = |v: &OpenView| self.durable >= v.sequence && !promised(v);
        self.stopped.is_none() && self.may_count() && self.view.as_ref().is_some_and(|v| holds(v) && is_member(v))
    }

    /// A log whose end may be lost may have lost a promise there: it counts as one of the highest view that was given out
    /// (V2). A node hears of states since its start only, so of one that is not older than any promise before.
    pub fn may_have_promised(&self) -> ViewNumber {
        let given_out = self.info.as_ref().filter(|_| self.damage.suspect_tail).map(|i| i.highest);
        given_out.unwrap_or_default().max(self.doubt)
    }

    /// The first state since the start tells which views were given out. If a promise may be lost, one of the highest of them
    /// may be, and it is durable from now on that it was.
    pub fn doubt_promises(&mut self, ctx: &mut Ctx<'_>, highest: ViewNumber) {
        if !self.is_doubtful || highest <= self.doubt {
            return;
        }
        self.doubt = highest;
        if highest > self.promised && self.stopped.is_none() {
            let (shard, ticket) = (self.id, ctx.ticket());
            let change = MarkChange { promised: Some(highest), ..MarkChange::default() };
            ctx.out.actions.push(Action::Append(Record::Mark { shard, change, ticket }));
        }
    }

    pub fn head_node(&self) -> Option<NodeId> {
        match (&self.view, &self.info) {
            (Some(v), _) => v.body.members.first().map(|m| m.node),
            (None, Some(i)) => i.members.first().copied(),
            _ => None,
        }
    }

    pub fn stop(&mut self, ctx: &mut Ctx<'_>, why: String) {
        ctx.out.tell(NoteKind::Ended, self.id, &format!("stopped: {why}"));
        self.stopped = Some(why);
        self.forget_recent();
    }

    /// Puts a frame that was found to follow the last one into the log.
    pub fn append(&mut self, ctx: &mut Ctx<'_>, frame: Frame) {
        let h = *frame.header();
        let entry = TailEntry::of(&frame.head);
        self.damage.learn_end(&frame.head);
        (self.last, self.version) = (entry.name, entry.version);
        self.tail.insert(h.seq(), entry);
        match frame.head.kind() {
            FrameKind::Data => {
                for u in frame.head.updates() {
                    self.requests.apply(u.driver, u.number, u.lowest_open, h.seq());
                }
            }
            FrameKind::Attach => {
                if let Ok(body) = AttachBody::decode(frame.head.body()) {
                    self.learn_attach(ctx, body, h.seq());
                }
            }
            FrameKind::View => {
                if let Ok(body) = ViewBody::decode(frame.head.body()) {
                    if body.generation > self.attach.generation {
                        let generation = body.generation;
                        self.learn_attach(ctx, AttachBody { generation, ..AttachBody::default() }, h.seq());
                    }
                    self.enter_view(ctx, &frame.head, body);
                }
            }
            _ => {}
        }
        self.chunk = (h.chunk(), h.chunk_offset.get().saturating_add(h.data_blocks()));
        self.recent_bytes += weight(&frame);
        self.recent.push_back(frame.clone());
        ctx.out.actions.push(Action::Append(Record::Frame(frame)));
        self.cut_is_told(ctx);
        self.note_committed(ctx, h.committed_seq());
    }

    /// The frame's view is in force; whether it is active will be heard.
    pub fn enter_view(&mut self, ctx: &mut Ctx<'_>, frame: &FrameHead, body: ViewBody) {
        let me = ctx.config.me.node;
        // A view's frame is as good as a promise of it: answers in the view before that wait for company do not go out any more.
        ctx.out.forget_answers(self.id);
        // A map leads past views: what their members gave is known only of the one right before, if this node was in it.
        let skips = ctx.mutant(Mutant::ForeignLeasesUnknown);
        let was_before = |v: &OpenView| v.number == body.pred || v.number == frame.view() || skips;
        let was_member = |v: &OpenView| v.body.members.iter().any(|m| m.node == me);
        // A quorum of the view before and one of this one need not meet: others may have given leases, and be in neither (L6).
        let is_apart = |v: &OpenView| quorums_are_apart(&v.body, &body) && !ctx.mutant(Mutant::QuorumsApart);
        let knows = self.view.as_ref().is_some_and(|v| was_before(v) && was_member(v) && !is_apart(v));
        // Of who was lost for good nobody knows what they gave (V10, L3).
        if frame.is_branch() || !knows {
            self.assume_leases(ctx.now);
        }
        let new = OpenView { number: frame.view(), sequence: frame.seq(), body };
        // One whose frame was cut is not here any more; what was before that still is.
        self.before.extend(self.view.replace(new));
        let old = self.before.partition_point(|v| v.sequence <= self.committed);
        self.before.drain(..old.saturating_sub(1));
        self.view_frame = Some(frame.clone());
        self.active_known = false;
    }

    /// A higher generation ends the older ones (W1, L2); a lower one changes nothing, even after a cut. It is known from
    /// the frame at `at`.
    pub fn learn_attach(&mut self, ctx: &mut Ctx<'_>, body: AttachBody, at: Sequence) {
        if body.generation < self.attach.generation {
            return;
        }
        if body.generation > self.attach.generation {
            self.leases.raise();
        }
        if (body.generation, body.driver) != (self.attach.generation, self.attach.driver) {
            self.leases.wait_for_driver(ctx.now);
        }
        self.attach = body;
        self.leases.attached_at(at);
        if ctx.mutant(Mutant::OlderDriversAnswered) {
            return;
        }
        let is_old = |c: &Client| c.generation < body.generation;
        let fenced: Vec<LinkId> = self.clients.iter().filter(|(_, c)| is_old(c)).map(|(l, _)| *l).collect();
        for link in fenced {
            self.clients.remove(&link);
            ctx.out.forget(link, self.id);
            self.refuse(ctx, link, Request::Attach, Refusal::Fenced);
        }
    }

    /// Raises what is known committed, and lets go of what was kept for a cut.
    pub fn note_committed(&mut self, ctx: &mut Ctx<'_>, committed: Sequence) {
        let known = committed.min(self.last.sequence);
        if known > self.committed {
            self.committed = known;
            self.tail = self.tail.split_off(&known);
        }
        let tell = self.committed.min(self.durable);
        if tell > self.told_committed {
            self.told_committed = tell;
            ctx.out.actions.push(Action::Committed { shard: self.id, sequence: tell });
        }
    }

    /// Cuts the log behind `to`, which is never below what is committed.
    pub fn cut(&mut self, ctx: &mut Ctx<'_>, to: Sequence) {
        if to >= self.last.sequence {
            return;
        }
        // If the committed frame itself is lost here, the one that will follow it tells its name.
        let lost = || TailEntry { version: self.version, ..TailEntry::unknown(to) };
        let known = self.tail.get(&to).copied().or_else(|| (to == self.committed).then(lost));
        let Some(entry) = known else {
            self.stop(ctx, format!("asked to cut to {to}, below what is committed ({})", self.committed));
            return;
        };
        ctx.out.actions.push(Action::Append(Record::Cut { shard: self.id, to }));
        // They may name what is cut (W4).
        ctx.out.forget_answers(self.id);
        self.cutting.push_back(to);
        self.tail.split_off(&to.next());
        self.last = entry.name;
        self.version = entry.version;
        self.chunk = first_chunk(entry.name.view);
        self.durable = self.durable.min(to);
        self.requests.cut(to);
        self.damage.cut(to);
        // Its frame may have been cut: lower generations stay fenced, but the log may not say so. The head of the next view
        // writes the attachment again.
        if self.leases.may_be_cut(to) {
            self.attach = AttachBody { generation: self.attach.generation, ..AttachBody::default() };
        }
        self.recent.retain(|f| f.head.seq() <= to);
        self.recent_bytes = self.recent.iter().map(weight).sum();
        let cut = self.view.take_if(|v| v.sequence > to);
        self.active_known &= cut.is_none();
        let kept = self.before.partition_point(|v| v.sequence <= to);
        // The view before each of them may have to be followed again.
        for (view, secret) in cut.into_iter().chain(self.before.drain(kept..)).filter_map(|v| v.published()) {
            self.known.remember(view, view, secret);
        }
    }

    /// Writes a promise to the log; everything appended before lies in front of it (V2).
    pub fn promise_durably(
        &mut self,
        ctx: &mut Ctx<'_>,
        (view, pred): (ViewNumber, ViewNumber),
        asker: Option<LinkId>,
        slice: Option<(HostPublic, SealedSlice)>,
    ) {
        let ticket = ctx.ticket();
        self.promising = Some(Promising { view, pred, ticket, asker, slice });
        self.active_known = false;
        ctx.out.forget_answers(self.id);
        self.gap.clear();
        self.gap_bytes = 0;
        let change = MarkChange { promised: Some(view), ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
    }

    /// The engine has made a frame durable. If a cut is queued behind it, it may be one that was cut, with another
    /// frame in its place: that one's turn comes later. (What is at its place by now does not tell: the newer frame
    /// may be committed, and its name forgotten.)
    pub fn on_frame_durable(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence) {
        if self.cutting.iter().all(|to| sequence <= *to) {
            self.on_durable(ctx, sequence);
        }
    }

    /// The log can't have what this replica put into it: the two differ, and what becomes durable behind it says nothing. A
    /// frame that a cut behind it takes away counts as little there.
    pub fn on_refused(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence, why: &'static str) {
        if self.cutting.iter().all(|to| sequence <= *to) {
            let what = format!("the log does not take frame {sequence} ({why})");
            self.stop(ctx, format!("{what}; start this node again to have it mended"));
        }
    }

    /// The engine has come to a cut: what it makes durable from now on was appended behind it.
    pub fn on_cut_done(&mut self) {
        self.cutting.pop_front();
    }

    /// The engine has made frames up to `sequence` durable: everyone who waits hears of it. Of a log that can't be trusted
    /// the last ones say nothing of those before them.
    pub fn on_durable(&mut self, ctx: &mut Ctx<'_>, sequence: Sequence) {
        if sequence > self.last.sequence || self.stopped.is_some() {
            return;
        }
        self.durable = self.durable.max(sequence);
        while self.recent.front().is_some_and(|f| f.head.seq() <= self.durable) {
            self.recent_bytes -= self.recent.pop_front().as_ref().map_or(0, weight);
        }
        self.note_committed(ctx, self.committed);
        self.answer_durable(ctx);
    }

    /// Tells drivers and head how far this log is durable in its view (W4).
    pub fn answer_durable(&mut self, ctx: &mut Ctx<'_>) {
        if !self.serves() {
            return;
        }
        let Some(view) = self.view.as_ref() else { return };
        let (number, head) = (view.number, view.body.members.first().map(|m| m.node));
        assert!(number >= self.promise(), "nothing is answered in a view below a promise (V2)");
        let sequence = if ctx.mutant(Mutant::AnswersBeforeDurable) { self.last.sequence } else { self.durable };
        let item = DurableItem { shard: self.id, view: number, sequence, room: None };
        for link in self.clients.keys() {
            ctx.out.answer_driver(*link, item);
        }
        if head == Some(ctx.config.me.node) {
            self.head_member_durable(ctx, ctx.config.me.node, &item);
        } else if let Some(head) = head {
            let peer = ctx.peer(head, self.id);
            let room = self.room(ctx);
            self.told_room = Some(room);
            ctx.out.answer_head(peer, DurableItem { room: Some(room), ..item }, ctx.now);
        }
    }

    /// What this log takes beyond what it was given. Shards share what the device has: heads do not know of each other.
    fn room(&self, ctx: &Ctx<'_>) -> Room {
        let left = ctx.room.saturating_sub(with_overhead(self.unwritten_bytes()));
        Room {
            past_over: self.past_over,
            lacks: self.lacks_some(),
            ..Room::new(left / ctx.sharers.max(1), ctx.more_soon)
        }
    }

    /// True if a write may have to wait for room at a log that has so much.
    pub fn is_short(r: Room) -> bool {
        r.bytes <= 2 * with_overhead(limits::SHARD_WINDOW_BYTES as u64)
    }

    /// The head hears when room has become short here, or is not any more (W7): without writes there are no answers that
    /// would say so.
    pub fn tell_room(&mut self, ctx: &mut Ctx<'_>) {
        let Some(told) = self.told_room else { return };
        let now = self.room(ctx);
        let coarse = |r: Room| (r.more_soon, r.bytes / ROOM_STEP, r.bytes == 0);
        let is_due = (Self::is_short(told) || Self::is_short(now)) && coarse(told) != coarse(now);
        if is_due || told.past_over != now.past_over {
            self.answer_durable(ctx);
        }
    }

    pub fn news(&self) -> Option<ViewNews> {
        let v = self.view.as_ref()?;
        Some(ViewNews { shard: self.id, view: v.number, sequence: v.sequence, body: v.body.without_slices() })
    }

    /// The view is known to be active: drivers that follow hear of it.
    pub fn learn_active(&mut self, ctx: &mut Ctx<'_>) {
        if self.active_known || !self.serves() {
            return;
        }
        self.active_known = true;
        self.leases.wait_for_all(ctx.now);
        let Some(news) = self.news() else { return };
        for link in self.clients.keys() {
            ctx.out.send(*link, Message::View(news.clone()));
        }
        self.answer_durable(ctx);
    }
}

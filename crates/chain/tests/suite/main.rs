//! Stories of the chain that once went wrong, each told with hosts, a log that is durable at once (or when the story
//! says so), and links that the story cuts.

mod forced;
mod views;

use bytes::Bytes;
use freebs_chain::{
    Action, Begins, Branch, Event, Forced, Found, Host, HostConfig, Mutant, Opened, ShardInfo, ShardSnapshots,
    ShardStatus, SyncSource, Who,
};
use freebs_format::wire::{Message, SyncRequest, WriteRequest};
use freebs_format::{Extent, ExtentKind, Frame, UpdateKind, VolumeDescription, block_crc};
use freebs_io::LinkId;
use freebs_lsvd::{Durable, Record};
use freebs_secrets::HostKey;
use freebs_types::{
    BLOCK, BlockRange, ClusterId, DriverId, Error, Generation, Hash32, HostPublic, Nanos, NodeId, Peer, RequestNumber,
    Result, Sequence, ShardId, StartNumber, ViewNumber,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const SHARD: ShardId = ShardId::new(1, 0);

/// One host with its log.
struct Member {
    host: Host,
    log: BTreeMap<Sequence, Frame>,
    /// Frames of it that can't be read any more.
    unread: BTreeSet<Sequence>,
    /// Appended, and told durable only when the story goes on.
    waiting: VecDeque<Durable>,
    holds_back: bool,
    committed: Sequence,
    notes: Vec<String>,
}

impl Member {
    /// A node that begins with nothing but its secrets.
    fn blank(n: u64, workers: BTreeMap<NodeId, u16>, mutant: Option<Mutant>) -> Self {
        let config = HostConfig {
            cluster: ClusterId([7; 16]),
            me: peer(n),
            start: StartNumber(1),
            workers,
            node_secret: Hash32([n as u8; 32]),
            host_key: host_key(n),
            mutant,
        };
        Self {
            host: Host::new(config),
            log: BTreeMap::new(),
            unread: BTreeSet::new(),
            waiting: VecDeque::new(),
            holds_back: false,
            committed: Sequence(0),
            notes: Vec::new(),
        }
    }
}

/// Some hosts, the links between them, and a control plane that numbers views.
struct Story {
    members: BTreeMap<u64, Member>,
    on_the_way: VecDeque<(u64, u64, Message)>,
    cut: Vec<(u64, u64)>,
    now: Nanos,
    quorum: u8,
    active: ViewNumber,
    highest: ViewNumber,
    /// Heartbeats are lost.
    loses_heartbeats: bool,
    /// What the control plane says to activations.
    refuses: Option<Error>,
    pending: Option<ViewNumber>,
    /// What becomes of a message of this node on its way.
    tampers: fn(u64, &mut Message),
    /// Head first.
    chain: Vec<NodeId>,
    /// Members of the active view, if the chain has others; who is new in the chain; who was new in the active view.
    active_members: Vec<NodeId>,
    joining: Vec<NodeId>,
    learning: Vec<NodeId>,
    /// An operator's word for the view that is active, and the newest branch.
    forced: Option<Forced>,
    branch: Branch,
    /// Logs of older views are the same up to here, once that is active.
    same: Sequence,
    /// Answers that seal a view, if not those that meet each quorum.
    seals_with: Option<u8>,
    generation: Generation,
    keys: BTreeMap<NodeId, HostPublic>,
    volume: Option<VolumeDescription>,
    /// The control plane is silent: who asked it for a view since.
    silent: Option<Vec<u64>>,
}

fn host_key(n: u64) -> HostKey {
    HostKey::new(Hash32([n as u8; 32]))
}

fn peer(n: u64) -> Peer {
    Peer { node: NodeId(n), worker: 0 }
}

impl Story {
    fn new(members: u64, quorum: u8) -> Self {
        Self::with(members, quorum, None)
    }

    fn with(members: u64, quorum: u8, mutant: Option<Mutant>) -> Self {
        Self::among(members, members, quorum, mutant)
    }

    /// A chain of the first `members` nodes.
    fn among(nodes: u64, members: u64, quorum: u8, mutant: Option<Mutant>) -> Self {
        let mut s = Self {
            members: BTreeMap::new(),
            on_the_way: VecDeque::new(),
            cut: Vec::new(),
            now: Nanos::from_millis(1000),
            quorum,
            active: ViewNumber(0),
            highest: ViewNumber(0),
            loses_heartbeats: false,
            refuses: None,
            pending: None,
            tampers: |_, _| {},
            chain: (1..=members).map(NodeId).collect(),
            active_members: Vec::new(),
            joining: Vec::new(),
            learning: Vec::new(),
            forced: None,
            branch: Branch::default(),
            same: Sequence(0),
            seals_with: None,
            generation: Generation(0),
            keys: (1..=nodes).map(|n| (NodeId(n), host_key(n).public())).collect(),
            volume: None,
            silent: None,
        };
        let workers: BTreeMap<NodeId, u16> = (1..=nodes).map(|n| (NodeId(n), 1)).collect();
        for n in 1..=nodes {
            s.members.insert(n, Member::blank(n, workers.clone(), mutant));
        }
        for a in 1..=nodes {
            for b in (1..=nodes).filter(|b| *b != a) {
                s.step(a, Event::LinkUp { link: LinkId(b), who: Who::Member(peer(b)) });
            }
        }
        (1..=nodes).for_each(|n| s.tell(n));
        s
    }

    /// A node hears what the control plane says of the shard.
    fn tell(&mut self, n: u64) {
        let info = ShardInfo {
            shard: SHARD,
            members: self.chain.clone(),
            active: self.active,
            known: self.active,
            blocks: 1024,
            highest: self.highest,
            generation: self.generation,
            has_keys: self.chain.iter().all(|n| self.keys.contains_key(n)),
            joining: self.joining.clone(),
            view_members: self.view_members().to_vec(),
            volume: self.volume.clone().map(Arc::new),
            forced: self.forced.clone(),
            branch: self.branch,
            snapshots: ShardSnapshots::default(),
            fork: None,
            flatten: false,
        };
        self.step(n, Event::Shards(vec![info]));
    }

    fn step(&mut self, n: u64, event: Event) {
        let now = self.now;
        self.members.get_mut(&n).unwrap().host.step(now, event);
        self.carry_out(n);
    }

    fn carry_out(&mut self, n: u64) {
        let actions = self.members.get_mut(&n).unwrap().host.take_actions();
        for a in actions {
            match a {
                Action::Send { to, message } => self.on_the_way.push_back((n, to.0, message)),
                Action::Append(record) => self.append(n, record),
                Action::Committed { sequence, .. } => self.members.get_mut(&n).unwrap().committed = sequence,
                Action::Propose { .. } => match self.silent.as_mut() {
                    Some(asked) => asked.push(n),
                    None => self.answer_proposal(n),
                },
                Action::Activate { view, begins, .. } => {
                    let result = match &self.refuses {
                        _ if self.pending != Some(view) && self.active != view => {
                            Err(Error::fenced("not pending (V6)"))
                        }
                        Some(e) => Err(e.clone()),
                        None => Ok(()),
                    };
                    if result.is_ok() {
                        self.active = view;
                        self.active_members.clear();
                        self.learning.clone_from(&self.joining);
                        if self.forced.take().is_some() && begins == Begins::Branch {
                            self.branch = Branch { view, at: self.same };
                        }
                    }
                    self.step(n, Event::Activated { shard: SHARD, view, result });
                }
                Action::SyncRead { link, request, .. } => self.sync_read(n, link, request),
                // Nothing is prepared in these logs.
                Action::ListIntervals { shard, view, .. } => {
                    self.step(n, Event::Intervals { shard, view, found: Ok(Vec::new()) });
                }
                // These logs keep nothing of the past.
                Action::FindPast(ask) => self.step(n, Event::PastFound { ask, found: Ok(Found::Window(None)) }),
                Action::Note(note) => self.members.get_mut(&n).unwrap().notes.push(note.text),
                _ => {}
            }
        }
    }

    fn view_members(&self) -> &[NodeId] {
        if self.active_members.is_empty() { &self.chain } else { &self.active_members }
    }

    fn answer_proposal(&mut self, n: u64) {
        let result = self.propose(n);
        let seed = Hash32([self.highest.0 as u8; 32]);
        self.step(n, Event::Proposed { shard: SHARD, result, seed });
    }

    fn propose(&mut self, n: u64) -> Result<Opened> {
        if self.chain.first() != Some(&NodeId(n)) {
            return Err(Error::invalid(format!("node {n} is not the head")));
        }
        self.highest = self.highest.next();
        self.pending = Some(self.highest);
        Ok(Opened {
            view: self.highest,
            pred: self.active,
            members: self.chain.clone(),
            quorum: self.quorum,
            min_copies: 1,
            pred_members: self.view_members().to_vec(),
            pred_quorum: self.seals_with.map_or(self.quorum, |n| self.view_members().len() as u8 + 1 - n),
            pred_learning: self.learning.clone(),
            pred_unseen: Vec::new(),
            forced: self.forced.clone(),
            generation: self.generation,
            keys: self.keys.clone(),
            volume: self.volume.clone().map(Box::new),
        })
    }

    fn append(&mut self, n: u64, record: Record) {
        let m = self.members.get_mut(&n).unwrap();
        let done = match record {
            Record::Frame(f) => {
                let (view, sequence) = (f.header().view_number(), f.head.seq());
                m.log.insert(sequence, f);
                Durable::Frame { shard: SHARD, view, sequence }
            }
            Record::Repair(f) => {
                let sequence = f.head.seq();
                m.unread.remove(&sequence);
                m.log.insert(sequence, f);
                Durable::Repair { shard: SHARD, sequence }
            }
            Record::Mark { shard, ticket, .. } => Durable::Mark { shard, ticket },
            Record::Cut { shard, to } => {
                m.log.split_off(&to.next());
                m.unread.split_off(&to.next());
                Durable::Cut { shard, to }
            }
            Record::Forget { shard, .. } => {
                m.log.clear();
                Durable::Forget { shard }
            }
            _ => return,
        };
        m.waiting.push_back(done);
    }

    fn sync_read(&mut self, n: u64, link: LinkId, request: SyncRequest) {
        let m = &self.members[&n];
        let has = |s: Sequence, hid| m.log.get(&s).is_some_and(|f| f.header().hid() == hid);
        let common = request.names.iter().find(|x| x.sequence.0 == 0 || has(x.sequence, x.hid)).map(|x| x.sequence);
        let common = common.unwrap_or_default();
        let frames: Vec<Frame> =
            m.log.range(common.next()..).take_while(|(s, _)| !m.unread.contains(s)).map(|(_, f)| f.clone()).collect();
        let is_lost = frames.is_empty() && m.unread.contains(&common.next());
        let frames = if is_lost { Err(Error::corrupt("the data do not match")) } else { Ok(frames) };
        self.step(n, Event::SyncRead { link, request, source: SyncSource { common, frames } });
    }

    /// Everything that is under way comes to its end.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut idle = true;
            let all: Vec<u64> = self.members.keys().copied().collect();
            for n in all {
                let now = self.now;
                self.members.get_mut(&n).unwrap().host.end_turn(now);
                self.carry_out(n);
                let m = self.members.get_mut(&n).unwrap();
                let next = if m.holds_back { None } else { m.waiting.pop_front() };
                if let Some(done) = next {
                    idle = false;
                    self.step(n, Event::Durable(vec![done]));
                }
            }
            if let Some((from, to, mut message)) = self.on_the_way.pop_front() {
                idle = false;
                (self.tampers)(from, &mut message);
                let lost = self.loses_heartbeats && matches!(message, Message::Heartbeat(_));
                if self.members.contains_key(&to) && !self.cut.contains(&(from, to)) && !lost {
                    self.step(to, Event::Message { from: LinkId(from), message });
                }
            }
            if idle {
                return;
            }
        }
        panic!("the hosts never come to rest");
    }

    /// Lets time pass in ticks.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            self.now = self.now.plus(Nanos::from_millis(20));
            let all: Vec<u64> = self.members.keys().copied().collect();
            for n in all {
                self.step(n, Event::Tick);
            }
            self.settle();
        }
    }

    fn link(&mut self, a: u64, b: u64, up: bool) {
        if up {
            self.step(a, Event::LinkUp { link: LinkId(b), who: Who::Member(peer(b)) });
            self.step(b, Event::LinkUp { link: LinkId(a), who: Who::Member(peer(a)) });
        } else {
            self.step(a, Event::LinkDown { link: LinkId(b) });
            self.step(b, Event::LinkDown { link: LinkId(a) });
        }
    }

    fn status(&self, n: u64) -> ShardStatus {
        self.members[&n].host.status(SHARD).unwrap()
    }
}

/// The last heartbeat of an idle head was lost with its link. Nothing that came later told the member that its view
/// was active and what was committed, so it answered no driver, for ever.
#[test]
fn a_member_that_missed_the_last_heartbeat_hears_another_one() {
    let mut s = Story::new(2, 1);
    s.settle();
    assert_eq!(s.status(1).state, "active");
    s.link(1, 2, false);
    s.wait(300);
    assert!(s.status(2).committed < s.status(1).committed);
    s.link(1, 2, true);
    s.wait(1000);
    assert_eq!(s.status(2).committed, s.status(1).committed);
}

/// A disk that was slow had less room than its log showed: what waited for it was not counted, until the log ran over
/// and the device was out of use.
#[test]
fn what_waits_for_a_slow_disk_takes_room() {
    const ROOM: u64 = 4 << 20;
    let mut s = Story::new(1, 1);
    s.settle();
    let (view, generation, driver, identity) = (s.active, Generation(1), DriverId(9), Hash32([9; 32]));
    let attach = Message::Attach { shard: SHARD, view, generation, driver, identity };
    s.step(1, Event::Message { from: LinkId(100), message: attach });
    s.settle();
    let m = s.members.get_mut(&1).unwrap();
    m.holds_back = true;
    m.host.set_room(ROOM, false);
    let written = |s: &Story| s.members[&1].log.values().map(|f| f.data_bytes() as u64).sum::<u64>();
    let write = |number: u64| {
        let data = Bytes::from(vec![number as u8; 16 * BLOCK]);
        Message::Write(WriteRequest {
            shard: SHARD,
            view,
            generation,
            driver,
            number: RequestNumber(number),
            lowest_open: RequestNumber(1),
            kind: UpdateKind::Write,
            interval: None,
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 16) }],
            crcs: vec![block_crc(&data[..BLOCK]); 16],
            data: vec![data],
        })
    };
    // In one turn, and in turns of their own.
    for number in 1..=200 {
        let message = write(number);
        s.step(1, Event::Message { from: LinkId(100), message });
        if number > 100 {
            s.settle();
        }
    }
    s.settle();
    let first = written(&s);
    assert!((ROOM / 2..=ROOM).contains(&first), "{first} bytes of {ROOM}");
    // Writes that the disk has done wait no longer. The rest of the writes wait for room, and are refused when none comes.
    let m = s.members.get_mut(&1).unwrap();
    m.holds_back = false;
    m.host.set_room(0, false);
    s.settle();
    let status = s.status(1);
    assert_eq!(status.durable, status.last.sequence);
    s.wait(400);
    assert_eq!(written(&s), first);
    s.members.get_mut(&1).unwrap().host.set_room(ROOM, false);
    s.wait(100);
    assert_eq!(written(&s), first, "they were refused");
    s.step(1, Event::Message { from: LinkId(100), message: write(201) });
    s.settle();
    assert_eq!(written(&s), first + 16 * BLOCK as u64);
}

/// A heartbeat overtook, on another link, the frames that a member had asked for. It meant nothing to a log without
/// them, and was never said again.
#[test]
fn a_heartbeat_that_comes_before_its_frames_is_said_again() {
    let mut s = Story::new(2, 1);
    s.settle();
    s.link(1, 2, false);
    let (view, generation, driver, identity) = (s.active, Generation(1), DriverId(9), Hash32([9; 32]));
    let attach = Message::Attach { shard: SHARD, view, generation, driver, identity };
    s.step(1, Event::Message { from: LinkId(100), message: attach });
    s.wait(300);
    s.members.get_mut(&2).unwrap().holds_back = true;
    s.loses_heartbeats = true;
    s.link(1, 2, true);
    s.settle();
    s.wait(20);
    s.loses_heartbeats = false;
    s.members.get_mut(&2).unwrap().holds_back = false;
    s.wait(500);
    assert_eq!(s.status(2).committed, s.status(1).committed);
    assert_eq!(s.members[&2].committed, s.status(1).committed);
}

/// A view that a quorum held, but that the control plane refused, was taken for committed by its head. The next view
/// had to cut its view frame, could not, and the replica stopped for good.
#[test]
fn a_view_that_never_became_active_commits_nothing() {
    let mut s = Story::new(3, 2);
    s.refuses = Some(Error::fenced("the volume was attached meanwhile"));
    s.wait(40);
    assert!(s.highest.0 >= 1 && s.active == ViewNumber(0));
    for n in 1..=3 {
        assert_eq!((s.status(n).committed, s.members[&n].committed), (Sequence(0), Sequence(0)), "node {n}");
    }
    s.refuses = None;
    s.wait(1000);
    assert_eq!(s.status(1).state, "active", "{:?}", s.members[&1].notes);
    for n in 1..=3 {
        assert_eq!(s.status(n).committed, s.status(1).last.sequence, "node {n}: {:?}", s.members[&n].notes);
    }
}

/// The disk under all members stood still for a moment. The head passed all of them over, and when the disk went on
/// they had to ask for what was on its way to them already: a stall of 50 ms became one of 250, again and again.
#[test]
fn a_quorum_that_is_silent_together_is_waited_for() {
    let mut s = Story::new(3, 2);
    s.settle();
    for n in 1..=3 {
        s.members.get_mut(&n).unwrap().holds_back = true;
    }
    let (view, generation, driver, identity) = (s.active, Generation(1), DriverId(9), Hash32([9; 32]));
    let attach = Message::Attach { shard: SHARD, view, generation, driver, identity };
    s.step(1, Event::Message { from: LinkId(100), message: attach });
    s.wait(300);
    let live = s.status(1).chain.iter().filter(|m| m.live).count();
    assert!(live >= 2, "{:?}", s.members[&1].notes);
    for n in 1..=3 {
        s.members.get_mut(&n).unwrap().holds_back = false;
    }
    s.wait(20);
    assert_eq!(s.status(1).committed, s.status(1).last.sequence);
}

/// A member that hangs is still gone past when the others are enough.
#[test]
fn a_member_that_hangs_alone_is_passed_over() {
    let mut s = Story::new(3, 2);
    s.settle();
    s.cut.extend([(1, 2), (2, 1)]);
    let (view, generation, driver, identity) = (s.active, Generation(1), DriverId(9), Hash32([9; 32]));
    let attach = Message::Attach { shard: SHARD, view, generation, driver, identity };
    s.step(1, Event::Message { from: LinkId(100), message: attach });
    s.wait(100);
    let live: Vec<u64> = s.status(1).chain.iter().filter(|m| m.live).map(|m| m.node.0).collect();
    assert!(!live.contains(&2) && live.contains(&3), "{live:?}");
}

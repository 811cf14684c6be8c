//! Every step of every opening of a view, the control state lost at each of them, made again with all nodes or without
//! any one of them, and lost once more (rules V1, V2, V5, V6, V9).
//!
//! Commands and rebuild are the real ones. A log is the views whose frames it goes through, what it knows to be
//! committed, and its promise; what is in a view does not matter, since who holds the frame of a view holds all before
//! it (V5). A view that was active has answered writes on any A of its members that hold its frame.

use freebs_control::rebuild::{NodeName, NodeSurvey, Rebuilt, ShardSurvey, ViewSurvey, VolumeSurvey, rebuild_with};
use freebs_control::{Ack, Command, CreateVolume, Mutant, Outcome, Shard, State};
use freebs_types::{ClusterId, Generation, NodeId, Sequence, ShardId, StartNumber, ViewNumber, VolumeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const CLUSTER: ClusterId = ClusterId([4; 16]);
const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };
/// Frames of a view are counted from its number times this.
const SEQUENCES: u64 = 10;

/// How far everything is gone through.
#[derive(Clone, Copy)]
struct Bounds {
    nodes: u64,
    copies: u8,
    ack: Ack,
    /// Openings that begin between two losses of the control state; these losses; changes of the chain by hand or for a
    /// node that is gone.
    openings: u8,
    losses: u8,
    changes: u8,
    mutant: Option<Mutant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Log {
    /// Views whose frames it has, oldest first.
    views: Vec<u64>,
    /// The newest view whose frame it knows to be committed; no cut takes that back.
    committed: u64,
    promised: u64,
}

/// A head at work; it is forgotten with its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Opening {
    view: u64,
    head: u64,
    /// The members that seal the view before (V2), and how many of them it takes.
    sealers: Vec<u64>,
    needed: usize,
    /// Those of them that have promised it to this head.
    answers: BTreeSet<u64>,
    /// The frame is in the head's log.
    framed: bool,
}

#[derive(Clone)]
struct World {
    bounds: Bounds,
    state: State,
    logs: BTreeMap<u64, Log>,
    views: Rc<BTreeMap<u64, ViewSurvey>>,
    opening: Option<Opening>,
    /// The newest view that ever became active (V6): what only this test knows.
    active: u64,
    start: u64,
    /// Many worlds differ in what their logs do not say.
    made: Rc<RefCell<Made>>,
    /// Openings that may begin before the next loss.
    left: u8,
}

/// States that were made of logs, by these and the node that was left out; `None` where volumes were left out, too.
type Made = BTreeMap<(u64, Option<u64>, String), Option<State>>;

fn ids(nodes: &[NodeId]) -> Vec<u64> {
    nodes.iter().map(|n| n.0).collect()
}

fn register(node: u64, start: u64) -> Command {
    let (name, address) = (format!("node{node}"), format!("h{node}:1"));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(start) }
}

impl World {
    /// A volume of one shard, whose first view is active and whole on all members.
    fn new(bounds: Bounds) -> Self {
        let mut state = State::new(CLUSTER);
        for n in 1..=bounds.nodes {
            state.apply(register(n, 1)).unwrap();
        }
        let new = CreateVolume {
            name: "data".into(),
            size: 1 << 30,
            copies: Some(bounds.copies),
            ack: bounds.ack,
            ..CreateVolume::default()
        };
        state.apply(Command::CreateVolume(new)).unwrap();
        let logs = (1..=bounds.nodes).map(|n| (n, Log::default())).collect();
        let mut world = Self {
            bounds,
            state,
            logs,
            views: Rc::default(),
            opening: None,
            active: 0,
            start: 1,
            made: Rc::default(),
            left: bounds.openings,
        };
        world.propose();
        world.open_fully();
        world.opening = None;
        world
    }

    fn shard(&self) -> &Shard {
        self.state.shard(SHARD).expect("the volume is there")
    }

    fn quorum(&self, len: usize) -> usize {
        self.state.volume(SHARD.volume).expect("it is there").quorum(len)
    }

    fn holders(&self, view: u64) -> Vec<u64> {
        let members = ids(&self.views[&view].members);
        members.into_iter().filter(|n| self.logs[n].views.contains(&view)).collect()
    }

    /// The views that a log goes through up to this one.
    fn line(&self, view: u64) -> Vec<u64> {
        let mut line = Vec::new();
        let mut at = view;
        while at > 0 {
            line.insert(0, at);
            at = self.views[&at].pred.0;
        }
        line
    }

    fn propose(&mut self) {
        let s = self.shard();
        let (active, head, chain) = (s.active, s.head().expect("a chain"), s.members.clone());
        let sealers = ids(s.view_members());
        let command = Command::ProposeView { shard: SHARD, active, node: head, start: StartNumber(self.start) };
        let Outcome::Proposed { view, pred, .. } = self.state.apply(command).unwrap().outcome else { panic!() };
        let needed = match self.views.get(&pred.0) {
            Some(v) => v.members.len() + 1 - usize::from(v.quorum),
            None => 0,
        };
        let volume = self.state.volume(SHARD.volume).unwrap();
        let told = VolumeSurvey {
            name: volume.name.clone(),
            size: volume.size,
            stripe: volume.stripe,
            shards: 1,
            copies: volume.copies,
            min_copies: volume.min_copies,
            ack: volume.ack,
        };
        let frame = ViewSurvey {
            view,
            sequence: Sequence(view.0 * SEQUENCES),
            pred,
            quorum: self.quorum(chain.len()) as u8,
            members: chain,
            head_start: StartNumber(self.start),
            volume: Some(told),
        };
        Rc::make_mut(&mut self.views).insert(view.0, frame);
        let answers = BTreeSet::new();
        self.opening = Some(Opening { view: view.0, head: head.0, sealers, needed, answers, framed: false });
        self.promise(head.0);
    }

    fn may_promise(&self, n: u64) -> bool {
        let Some(o) = &self.opening else { return false };
        !o.framed && o.sealers.contains(&n) && !o.answers.contains(&n) && self.logs[&n].promised <= o.view
    }

    fn promise(&mut self, n: u64) {
        let active = self.shard().known().0;
        let o = self.opening.as_mut().expect("an opening");
        let log = self.logs.get_mut(&n).expect("a node");
        assert!(log.promised <= o.view);
        log.promised = o.view;
        // A member whose view is sealed learns that it was active, and so that its frame is committed.
        if log.views.last() == Some(&active) {
            log.committed = active;
        }
        o.answers.insert(n);
    }

    /// The head has sealed the view before, and takes the frame (V2, V5).
    fn may_frame(&self) -> bool {
        let Some(o) = &self.opening else { return false };
        let pred = self.views[&o.view].pred.0;
        let counts = |n: &&u64| o.sealers.contains(n) && !self.logs[n].views.is_empty();
        let holds = |n: &u64| self.logs[n].views.contains(&pred);
        !o.framed && (pred == 0 || (o.answers.iter().filter(counts).count() >= o.needed && o.answers.iter().any(holds)))
    }

    fn frame(&mut self) {
        let o = self.opening.as_mut().expect("an opening");
        o.framed = true;
        let head = o.head;
        self.take(head);
    }

    fn may_take(&self, n: u64) -> bool {
        let Some(o) = self.opening.as_ref().filter(|o| o.framed) else { return false };
        let log = &self.logs[&n];
        self.views[&o.view].members.contains(&NodeId(n)) && log.promised <= o.view && !log.views.contains(&o.view)
    }

    fn take(&mut self, n: u64) {
        let view = self.opening.as_ref().expect("an opening").view;
        let line = self.line(view);
        let committed = self.logs[&n].committed;
        assert!(committed == 0 || line.contains(&committed), "node {n} can't cut what is committed: {self:?}");
        let log = self.logs.get_mut(&n).expect("a node");
        log.promised = view;
        log.views = line;
    }

    fn may_activate(&self) -> bool {
        let Some(o) = &self.opening else { return false };
        self.active != o.view
            && self.shard().pending.is_some_and(|p| p.view.0 == o.view)
            && self.holders(o.view).len() >= usize::from(self.views[&o.view].quorum)
    }

    fn activate(&mut self) {
        let view = self.opening.as_ref().expect("an opening").view;
        let generation = self.state.volume(SHARD.volume).unwrap().generation;
        self.state.apply(Command::ActivateView { shard: SHARD, view: ViewNumber(view), generation }).unwrap();
        self.active = view;
        let head = self.opening.as_ref().expect("an opening").head;
        self.logs.get_mut(&head).expect("a node").committed = view;
        assert_eq!((self.shard().active.0, self.shard().known().0), (view, view));
    }

    fn open_fully(&mut self) {
        for n in 1..=self.bounds.nodes {
            if self.may_promise(n) {
                self.promise(n);
            }
        }
        assert!(self.may_frame(), "{self:?}");
        self.frame();
        for n in 1..=self.bounds.nodes {
            if self.may_take(n) {
                self.take(n);
            }
        }
        assert!(self.may_activate(), "{self:?}");
        self.activate();
    }

    /// The survey of a node's log.
    fn survey(&self, n: u64) -> NodeSurvey {
        let log = &self.logs[&n];
        let views: Vec<ViewSurvey> = log.views.iter().map(|v| self.views[v].clone()).collect();
        let last = views.last().map_or(0, |v| v.sequence.0);
        let shard = ShardSurvey {
            shard: SHARD,
            promised: ViewNumber(log.promised),
            generation: Generation(0),
            last: Sequence(last),
            committed: Sequence(log.committed * SEQUENCES),
            whole: true,
            views,
        };
        let shards = if log.views.is_empty() && log.promised == 0 { vec![] } else { vec![shard] };
        NodeSurvey { cluster: CLUSTER, node: NodeId(n), start: StartNumber(self.start), whole: true, shards }
    }

    fn rebuilt(&self, without: Option<u64>) -> Rebuilt {
        let name = |n| NodeName { node: NodeId(n), name: format!("node{n}"), address: format!("h{n}:1"), workers: 1 };
        let names: Vec<NodeName> = (1..=self.bounds.nodes).map(name).collect();
        let seen = (1..=self.bounds.nodes).filter(|n| Some(*n) != without);
        let surveys: Vec<NodeSurvey> = seen.map(|n| self.survey(n)).collect();
        // Above that of the lost state: no run has so many commands.
        rebuild_with(CLUSTER, &names, &surveys, 1000 * (self.start + 1), self.bounds.mutant).unwrap()
    }

    /// The state that is made of these logs, and in which all nodes have registered their next start.
    fn made_again(&self, without: Option<u64>) -> Option<State> {
        let views: Vec<_> = self.views.values().map(|v| (v.view.0, v.pred.0, v.quorum, ids(&v.members))).collect();
        let key = (self.start, without, format!("{:?} {views:?}", self.logs));
        if let Some(known) = self.made.borrow().get(&key) {
            return known.clone();
        }
        let mut done = self.rebuilt(without);
        for n in 1..=self.bounds.nodes {
            done.state.apply(register(n, self.start + 1)).unwrap();
        }
        let made = done.left.is_empty().then_some(done.state);
        self.made.borrow_mut().insert(key, made.clone());
        made
    }

    /// The control state is lost, and made again; `None` if that asks for the node that was left out.
    fn lose(&self, without: Option<u64>) -> Option<Self> {
        let Some(state) = self.made_again(without) else {
            assert!(without.is_some(), "all is there: {self:?}");
            return None;
        };
        let next = Self { state, opening: None, start: self.start + 1, left: self.bounds.openings, ..self.clone() };
        self.compare(&next, without);
        Some(next)
    }

    /// The rules for a rebuilt state.
    fn compare(&self, next: &Self, without: Option<u64>) {
        let (was, is) = (self.shard(), next.shard());
        let text = || format!("without {without:?}: {is:?}\nwas {was:?}\n{self:?}");
        let (went_on, known, before) = (is.active.0, is.known().0, was.known().0);
        assert!(self.line(went_on).contains(&self.active), "view {} is lost, {}", self.active, text());
        assert!(went_on >= before, "known was {before}: {}", text());
        let on = |v: u64| self.holders(v).len() >= usize::from(self.views[&v].quorum);
        assert!(known == 0 || on(known), "view {known} is known to have been active, and was not: {}", text());
        assert!(without.is_some() || known == went_on, "with all nodes it is known: {}", text());
        assert!(self.logs.values().all(|l| l.promised <= is.highest.0), "{}", text());
        let whole: Vec<u64> = ids(&is.members).into_iter().filter(|n| !is.joining.contains(&NodeId(*n))).collect();
        assert!(whole.iter().all(|n| self.logs[n].views.contains(&went_on)), "{}", text());
        let v = &self.views[&went_on];
        assert!(whole.len() > v.members.len() - usize::from(v.quorum), "answered writes may be on none: {}", text());
    }

    /// A state that was made again can be gone on from, and then all rebuilds find the same.
    fn goes_on(&self) {
        let mut next = self.clone();
        next.propose();
        next.open_fully();
        for without in (1..=self.bounds.nodes).map(Some).chain([None]) {
            let state = next.made_again(without).expect("one node left out is no loss");
            let s = state.shard(SHARD).expect("the volume is there");
            assert_eq!(s.active.0, next.active, "without {without:?}: {next:?}");
            assert!(without.is_some() || s.known.is_none(), "{next:?}");
        }
    }

    fn steps(&self) -> Vec<Self> {
        let mut out = Vec::new();
        let mut step = |enabled: bool, f: &dyn Fn(&mut Self)| {
            if enabled {
                let mut next = self.clone();
                f(&mut next);
                out.push(next);
            }
        };
        step(self.left > 0, &|w| {
            w.left -= 1;
            w.propose();
        });
        for n in 1..=self.bounds.nodes {
            step(self.may_promise(n), &|w| w.promise(n));
            step(self.may_take(n), &|w| w.take(n));
        }
        step(self.may_frame(), &|w| w.frame());
        step(self.may_activate(), &|w| w.activate());
        for command in self.changes() {
            let mut next = self.clone();
            let before = next.shard().clone();
            if next.state.apply(command).is_ok() && *next.shard() != before {
                next.bounds.changes -= 1;
                out.push(next);
            }
        }
        if self.bounds.losses > 0 {
            for without in (1..=self.bounds.nodes).map(Some).chain([None]) {
                if let Some(mut next) = self.lose(without) {
                    next.bounds.losses -= 1;
                    out.push(next);
                }
            }
        }
        out
    }

    /// Another head, or another node in the place of one that is gone.
    fn changes(&self) -> Vec<Command> {
        if self.bounds.changes == 0 {
            return Vec::new();
        }
        let moves = self.shard().members[1..].iter().map(|n| Command::MoveHead { shard: SHARD, node: *n });
        let gone = (1..=self.bounds.nodes)
            .map(|n| Command::ReplaceMembers { gone: vec![(NodeId(n), StartNumber(self.start))], failed: vec![] });
        moves.chain(gone).collect()
    }

    fn key(&self) -> String {
        let (b, s) = (&self.bounds, self.shard());
        let left = (self.left, b.losses, b.changes, self.active, self.start);
        let shard = (s.active, s.known, s.pending, s.highest, (&s.members, &s.active_members, &s.joining, &s.keepers));
        format!("{left:?} {shard:?} {:?} {:?} {:?}", self.logs, self.opening, self.views.keys())
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line = |v: &ViewSurvey| format!("{} after {} on {:?}, A {}", v.view, v.pred, ids(&v.members), v.quorum);
        let views: Vec<String> = self.views.values().map(line).collect();
        write!(f, "active {}, views {views:#?}, {:?}, logs {:#?}", self.active, self.opening, self.logs)
    }
}

/// Goes through everything; the number of different worlds.
fn explore(bounds: Bounds) -> usize {
    let mut seen = BTreeSet::new();
    let mut open = vec![World::new(bounds)];
    while let Some(world) = open.pop() {
        if seen.insert(world.key()) {
            if world.opening.is_none() {
                world.goes_on();
            }
            if world.bounds.losses > 0 {
                open.extend(world.steps());
            }
        }
    }
    seen.len()
}

fn bounds(nodes: u64, copies: u8, ack: Ack, openings: u8, losses: u8, changes: u8) -> Bounds {
    Bounds { nodes, copies, ack, openings, losses, changes, mutant: None }
}

/// The story: view 5 was being opened when the state was lost. The first rebuild left out a node that might have had its
/// frame, and called it active; the second saw all nodes, and made view 4 again.
#[test]
fn two_rebuilds_agree_on_what_was_active() {
    for (name, b) in [
        ("two copies", bounds(2, 2, Ack::Majority, 2, 2, 0)),
        ("three, a majority", bounds(3, 3, Ack::Majority, 1, 2, 1)),
        ("three, all of them", bounds(3, 3, Ack::All, 1, 2, 1)),
        ("four, a majority", bounds(4, 4, Ack::Majority, 1, 2, 0)),
        ("three of four nodes", bounds(4, 3, Ack::Majority, 1, 2, 1)),
    ] {
        let worlds = explore(b);
        println!("{name}: {worlds} worlds");
        assert!(worlds > 100, "{name}: {worlds}");
    }
}

/// Each rule of a rebuild is needed.
#[test]
fn rebuilds_without_a_rule_are_noticed() {
    for mutant in [Mutant::OldestViewRebuilt, Mutant::PromisesForgotten, Mutant::RebuiltIsActive] {
        let b = Bounds { mutant: Some(mutant), ..bounds(3, 3, Ack::All, 1, 2, 0) };
        assert!(std::panic::catch_unwind(|| explore(b)).is_err(), "{mutant:?}");
    }
}

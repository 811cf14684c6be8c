//! The control plane of a run: the real state machine behind a port that can be slow, cut off, or down, and whose
//! answers can be lost after the command was applied.
//!
//! In a share of the runs the nodes keep the state themselves (`raft`): then what is here is what their seats have decided,
//! and processes hear of it from them.

use crate::network::{Network, Place};
use crate::raft::Seats;
use crate::timing;
use crate::world::World;
use freebs_agent::{
    About, Begun, CameWith, Commands, Following, Lapse, Numbered, Pause, TakenIn, in_place_of_lapsed, refused,
};
use freebs_chain::{IntervalAsk, IntervalWord};
use freebs_control::{Command, CreateVolume, Done, Mutant, Outcome, State, Volume};
use freebs_types::{
    ClusterId, Error, Generation, HostPublic, Nanos, NodeId, Result, ShardId, StartNumber, ViewNumber, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// The news of a replica that can be heard now at the place that asks.
pub type Hear = dyn Fn(Place, NodeId, ShardId) -> Option<Lapse>;

/// The head of a shard on a node that can be asked now at the place that asks.
pub type AskHead = dyn Fn(NodeId, &IntervalAsk) -> Result<IntervalWord>;

/// Hears of a branch: the shard, and the view that began it.
pub type OnBranch = dyn Fn(ShardId, ViewNumber);

/// The control plane's state and whether it can be reached.
pub struct Control {
    world: Rc<World>,
    net: Rc<Network>,
    state: RefCell<Arc<State>>,
    down: Cell<bool>,
    /// Leads that have ended.
    term: Cell<u64>,
    /// The node that led, in that start, was given up by most voters, and is not known to the next leader yet.
    given_up: Cell<Option<(NodeId, StartNumber)>>,
    /// No copy of the state is there, for now.
    lost: Cell<bool>,
    /// The newest view of each shard that ever became active, whatever state of the control plane knows of it.
    activated: RefCell<BTreeMap<ShardId, ViewNumber>>,
    /// All views that ever became active.
    all_activated: RefCell<BTreeSet<(ShardId, ViewNumber)>>,
    mutant: Option<Mutant>,
    /// Calls until an answer is lost after its command was applied; `None`: never.
    lose_answer_in: Cell<Option<u64>>,
    /// Processes that follow the state.
    planes: RefCell<Vec<Weak<Followed>>>,
    hear: RefCell<Option<Rc<Hear>>>,
    ask_head: RefCell<Option<Rc<AskHead>>>,
    /// Wrongs in commands of heads, as they were given.
    accused: RefCell<Vec<Accusation>>,
    /// Told of each branch that becomes active.
    on_branch: RefCell<Option<Rc<OnBranch>>>,
    /// The nodes' own seats, if they keep the state.
    seats: RefCell<Option<Rc<Seats>>>,
}

impl Control {
    #[must_use]
    pub fn new(world: &Rc<World>, net: &Rc<Network>, cluster: ClusterId, mutant: Option<Mutant>) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            net: net.clone(),
            state: RefCell::new(Arc::new(State::new(cluster))),
            down: Cell::new(false),
            term: Cell::new(0),
            given_up: Cell::new(None),
            lost: Cell::new(false),
            activated: RefCell::default(),
            all_activated: RefCell::default(),
            mutant,
            lose_answer_in: Cell::new(None),
            planes: RefCell::default(),
            hear: RefCell::default(),
            ask_head: RefCell::default(),
            accused: RefCell::default(),
            on_branch: RefCell::default(),
            seats: RefCell::default(),
        })
    }

    /// From now on this is told of each branch that becomes active.
    pub fn set_on_branch(&self, tell: Rc<OnBranch>) {
        *self.on_branch.borrow_mut() = Some(tell);
    }

    /// From now on replicas can be asked about the leases of their drivers.
    pub fn set_hear(&self, hear: Rc<Hear>) {
        *self.hear.borrow_mut() = Some(hear);
    }

    /// From now on heads can be asked about intervals.
    pub fn set_ask_head(&self, ask: Rc<AskHead>) {
        *self.ask_head.borrow_mut() = Some(ask);
    }

    /// Goes to a head and back over the network.
    async fn ask_head(&self, from: Place, node: NodeId, ask: IntervalAsk) -> Result<IntervalWord> {
        let lost = || Error::retry("the node can't be reached");
        let Some(wait) = self.net.round_trip(from, Place::Node(node.0)) else {
            self.sleep(timing::CALL_PATIENCE).await;
            return Err(lost());
        };
        let half = Nanos(wait.0 / 2);
        self.sleep(half).await;
        let head = self.ask_head.borrow().clone().ok_or_else(lost)?;
        let word = head(node, &ask);
        self.world.say(|| format!("node {node}: {from:?} asks {ask:?}: {word:?}"));
        self.world.count("heads asked about intervals");
        if self.loses_answer() {
            self.sleep(timing::CALL_PATIENCE).await;
            return Err(lost());
        }
        self.sleep(half).await;
        word
    }

    /// From now on the nodes keep the state.
    pub fn set_seats(&self, seats: Option<Rc<Seats>>) {
        *self.seats.borrow_mut() = seats;
    }

    /// The nodes' own seats, if they keep the state.
    #[must_use]
    pub fn seats(&self) -> Option<Rc<Seats>> {
        self.seats.borrow().clone()
    }

    /// The world and the network of the run.
    #[must_use]
    pub fn parts(&self) -> (Rc<World>, Rc<Network>) {
        (self.world.clone(), self.net.clone())
    }

    /// The seats have decided: this is the newest state, with that command in it.
    pub fn decided(&self, command: Option<&Command>, state: &Arc<State>) {
        let before = self.state.replace(state.clone());
        if let Some(command) = command {
            self.blame(command, &before, state);
        }
        if let Some((shard, view, _)) = command.and_then(activation) {
            let active = |s: &State| s.shard(shard).map(|s| s.active);
            if active(state) == Some(view) && active(&before) != Some(view) {
                let wrong = command.and_then(|c| wrong_activation(&before, c));
                wrong.into_iter().for_each(|why| self.world.violation(why));
                self.is_active(shard, view);
            }
        }
    }

    /// True if a view became active, or may still do so: it is above the newest that did.
    pub fn counts(&self, shard: ShardId, view: ViewNumber) -> bool {
        view > self.activated(shard) || self.all_activated.borrow().contains(&(shard, view))
    }

    fn is_active(&self, shard: ShardId, view: ViewNumber) {
        self.all_activated.borrow_mut().insert((shard, view));
        let mut activated = self.activated.borrow_mut();
        let newest = activated.entry(shard).or_default();
        *newest = view.max(*newest);
    }

    /// These gateways hear of news at the nodes that they follow, each a little later.
    pub fn tell_gateways(&self, which: &dyn Fn(u64) -> bool) {
        self.planes.borrow_mut().retain(|p| p.strong_count() > 0);
        let told = |p: &Rc<Followed>| matches!(p.me, Place::Gateway(g) if which(g));
        for plane in self.planes.borrow().iter().filter_map(Weak::upgrade).filter(told) {
            let wait = plane.lag();
            plane.hear_after(wait);
        }
    }

    /// Every process hears of a change, each a little later.
    fn changed(&self) {
        if self.seats.borrow().is_some() {
            return;
        }
        self.planes.borrow_mut().retain(|p| p.strong_count() > 0);
        for plane in self.planes.borrow().iter().filter_map(Weak::upgrade) {
            let wait = plane.lag();
            if plane.is_node() {
                plane.coming.borrow_mut().push_back(self.snapshot());
            }
            plane.hear_after(wait);
        }
    }

    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.get() || self.lost.get()
    }

    pub fn set_lost(&self, lost: bool) {
        self.lost.set(lost);
        self.term.set(self.term.get() + u64::from(lost));
    }

    /// The number of the present lead: another one after each time nobody led.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term.get()
    }

    /// The rule that is left out.
    #[must_use]
    pub fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// Another state takes the place of the one that was lost.
    pub fn replace(&self, state: State) {
        *self.state.borrow_mut() = Arc::new(state);
        self.changed();
    }

    pub fn set_down(&self, down: bool) {
        if let Some(seats) = self.seats() {
            seats.be_silent(down);
        }
        self.down.set(down);
        self.term.set(self.term.get() + u64::from(down));
    }

    /// The node that leads was given up; nobody leads until `set_down` says so.
    pub fn lose_leader(&self, node: NodeId) {
        self.set_down(true);
        let start = self.state.borrow().node(node).map_or(StartNumber(0), |n| n.start);
        self.given_up.set(Some((node, start)));
    }

    /// The leader before, and its start, if it was given up: for the next one to know, once.
    pub fn take_given_up(&self) -> Option<(NodeId, StartNumber)> {
        self.given_up.take()
    }

    /// The `n`-th answer from now on is lost.
    pub fn lose_answer(&self, n: u64) {
        self.lose_answer_in.set(Some(n));
    }

    /// Applies a command at once (set-up of a run).
    pub fn apply(&self, command: Command) -> Result<Done> {
        let (before, given) = (self.state.borrow().clone(), command.clone());
        let wrong = wrong_activation(&before, &command);
        let is_branch = matches!(command, Command::ActivateBranch { .. });
        let activates = activation(&command).map(|(shard, view, _)| (shard, view));
        let done = Arc::make_mut(&mut self.state.borrow_mut()).apply_with(command, self.mutant);
        if let Some(why) = wrong.filter(|_| done.is_ok()) {
            self.world.violation(why);
        }
        self.blame(&given, &before, &self.snapshot());
        if let Some((shard, view)) = activates.filter(|_| done.is_ok()) {
            self.is_active(shard, view);
        }
        if self.state.borrow().revision() != before.revision() {
            self.changed();
            let tell = self.on_branch.borrow().clone().filter(|_| is_branch);
            tell.zip(activates.filter(|_| done.is_ok()))
                .into_iter()
                .for_each(|(tell, (shard, view))| tell(shard, view));
        }
        done
    }

    /// The seat of a node lags from now on, as one whose disk is slow, or does not any more: then it takes in what came
    /// meanwhile, one state after the other.
    pub fn lag(&self, node: NodeId, lags: bool) {
        let is_it = |p: &Rc<Followed>| p.me == Place::Node(node.0) && p.lags.get() != lags;
        for plane in self.planes.borrow().iter().filter_map(Weak::upgrade).filter(is_it) {
            plane.lags.set(lags);
            for _ in 0..plane.held.take() {
                let wait = self.world.luck.borrow_mut().spread(100_000, 30_000_000);
                plane.clone().hear_after(Nanos(wait));
            }
        }
    }

    /// The newest view of the shard that ever became active.
    #[must_use]
    pub fn activated(&self, shard: ShardId) -> ViewNumber {
        self.activated.borrow().get(&shard).copied().unwrap_or_default()
    }

    /// Looks at the state.
    pub fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.borrow())
    }

    pub fn create_volume(&self, new: CreateVolume) -> Result<VolumeId> {
        match self.apply(Command::CreateVolume(new))?.outcome {
            Outcome::Created { volume } => Ok(volume),
            other => Err(Error::bug(format!("creating a volume gave {other:?}"))),
        }
    }

    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Option<Volume> {
        self.state.borrow().volume(id).map(|v| (**v).clone())
    }

    #[must_use]
    pub fn volumes(&self) -> Vec<Volume> {
        self.state.borrow().volumes().map(|v| (**v).clone()).collect()
    }

    /// The state of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    /// The wrong in a head's command, as the network has seen it when it was given: a view is ready when its quorum has
    /// said that it has it (V5), and who has everything has said so of the view (V7). It counts if the state takes the
    /// command: a head may speak of a view that others have left.
    fn judge(&self, from: Place, command: &Command) {
        self.accused.borrow_mut().retain(|a| a.command != *command);
        let Place::Node(node) = from else { return };
        let witness = self.net.witness.borrow();
        let accuse = |of, why| self.accused.borrow_mut().push(Accusation { command: command.clone(), of, why });
        match command {
            Command::ActivateView { shard, view, .. }
            | Command::ActivateBranch { shard, view, .. }
            | Command::ActivateClone { shard, view, .. } => {
                let quorum = self
                    .volume(shard.volume)
                    .map_or(1, |v| v.quorum(v.shard(shard.index).map_or(1, |s| s.members.len())));
                if !witness.may_be_active(*shard, *view, NodeId(node), quorum) {
                    let text = format!("node {node} calls view {view} of shard {shard} ready to be active");
                    accuse(None, format!("{text}, and its quorum has not said that it has it"));
                }
            }
            Command::MembersComplete { shard, view, nodes } => {
                for node in nodes.iter().filter(|n| !witness.has_opened(**n, *shard, *view)) {
                    let text =
                        format!("is said to have everything of shard {shard}, and has not said that it holds view");
                    accuse(Some(*node), format!("node {node} {text} {view} (V7)"));
                }
                self.world.count("members that learned everything");
            }
            _ => {}
        }
    }

    /// A command was applied to this state, and that one came of it.
    fn blame(&self, command: &Command, before: &State, after: &State) {
        let all = std::mem::take(&mut *self.accused.borrow_mut());
        let (of_this, others) = all.into_iter().partition(|a| a.command == *command);
        *self.accused.borrow_mut() = others;
        of_this
            .into_iter()
            .filter(|a: &Accusation| a.is_taken(before, after))
            .for_each(|a| self.world.violation(a.why));
    }

    /// Goes from `from` to the control plane and back over the network, with what is done there.
    async fn visit<T>(&self, from: Place, work: impl FnOnce() -> T) -> Result<T> {
        let unreachable = || Error::retry("the control plane can't be reached");
        let wait = match self.net.round_trip(from, Place::Control) {
            Some(wait) if !self.is_down() => wait,
            _ => {
                self.sleep(timing::CALL_PATIENCE).await;
                return Err(unreachable());
            }
        };
        let half = Nanos(wait.0 / 2);
        self.sleep(half).await;
        if self.is_down() {
            self.sleep(timing::CALL_PATIENCE).await;
            return Err(unreachable());
        }
        let result = work();
        if self.loses_answer() {
            self.sleep(timing::CALL_PATIENCE).await;
            return Err(unreachable());
        }
        self.sleep(half).await;
        Ok(result)
    }

    /// True for the answer that is to be lost.
    pub fn loses_answer(&self) -> bool {
        let Some(n) = self.lose_answer_in.get() else { return false };
        self.lose_answer_in.set(n.checked_sub(1));
        n == 0
    }

    /// A command from `from`.
    async fn call(&self, from: Place, command: Command) -> Result<Done> {
        self.judge(from, &command);
        if let Some(seats) = self.seats() {
            let result = seats.submit(from, command.clone()).await;
            self.world.trace(0x20, u64::from(result.is_ok()), self.state.borrow().revision());
            self.world.say(|| format!("control: {from:?} {command:?} -> {result:?}"));
            return result;
        }
        let carry_out = || {
            let result = self.apply(command.clone());
            self.world.trace(0x20, u64::from(result.is_ok()), self.state.borrow().revision());
            self.world.say(|| format!("control: {from:?} {command:?} -> {result:?}"));
            result
        };
        self.visit(from, carry_out).await?
    }

    pub async fn sleep(&self, time: Nanos) {
        let (tell, told) = oneshot::channel::<()>();
        self.world.after(time, move || {
            let _ = tell.send(());
        });
        let _ = told.await;
    }
}

/// A wrong in a head's command, if the state takes it.
struct Accusation {
    command: Command,
    /// The member that it is about, if it is about one.
    of: Option<NodeId>,
    why: String,
}

impl Accusation {
    /// True if the command is what made one state of the other.
    fn is_taken(&self, before: &State, after: &State) -> bool {
        if let Some((shard, view, _)) = activation(&self.command) {
            let is_active = |s: &State| s.shard(shard).is_some_and(|s| s.active == view);
            return is_active(after) && !is_active(before);
        }
        match (&self.command, self.of) {
            (Command::MembersComplete { shard, .. }, Some(node)) => {
                let learns = |s: &State| s.shard(*shard).is_some_and(|s| s.joining.contains(&node));
                learns(before) && !learns(after)
            }
            _ => false,
        }
    }
}

/// The view that a command makes active, and the generation in its frame.
fn activation(command: &Command) -> Option<(ShardId, ViewNumber, Generation)> {
    match command {
        Command::ActivateView { shard, view, generation }
        | Command::ActivateBranch { shard, view, generation }
        | Command::ActivateClone { shard, view, generation, .. } => Some((*shard, *view, *generation)),
        _ => None,
    }
}

/// What would be wrong if this command succeeded in that state: only the pending view becomes active, with the generation
/// of this moment in it (V6).
fn wrong_activation(state: &State, command: &Command) -> Option<String> {
    let (shard, view, generation) = activation(command)?;
    let volume = state.volume(shard.volume)?;
    let s = volume.shard(shard.index)?;
    let is_right = s.pending.is_some_and(|p| p.view == view) && volume.generation == generation;
    let text = || format!("view {view} of shard {shard} became active, and it was not pending: {s:?} (V6)");
    (s.active != view && !is_right).then(text)
}

/// The state as one process follows it. A node hears of every state in its turn, as its seat does; a gateway, which asks
/// one, of the newest.
struct Followed {
    control: Rc<Control>,
    me: Place,
    known: RefCell<Arc<State>>,
    /// States on their way to a node.
    coming: RefCell<VecDeque<Arc<State>>>,
    /// When the last of these comes.
    due: Cell<Nanos>,
    /// How many of these have come, and were not taken in yet.
    arrived: Cell<usize>,
    /// Nothing that comes is taken in.
    lags: Cell<bool>,
    /// How many states have come since it lags.
    held: Cell<usize>,
    /// States that are known at a node, and that its worker was not told yet.
    news: RefCell<VecDeque<Arc<State>>>,
    heard: Notify,
    /// Called when there are news, which are taken in by `Plane::hear` or `Plane::next`; without it a gateway takes them in
    /// at once.
    tell: RefCell<Option<Box<dyn Fn()>>>,
}

impl Followed {
    fn is_node(&self) -> bool {
        matches!(self.me, Place::Node(_))
    }

    /// True if no news come here now.
    fn is_cut_off(&self) -> bool {
        match self.control.seats() {
            Some(seats) => !self.is_node() && seats.state_at(self.me).is_none(),
            None => self.control.net.is_blocked(Place::Control, self.me),
        }
    }

    /// The time after which it hears of a state that was decided now. A state that is late holds up all behind it.
    fn lag(&self) -> Nanos {
        let mut luck = self.control.world.luck.borrow_mut();
        // Now and then the node that a gateway follows lags, or a node's disk for the control state is slow.
        let (odds, lag) = if self.is_node() { (0.05, 1_000_000_000) } else { (0.1, 3_000_000_000) };
        let most = if luck.chance(odds) { lag } else { 30_000_000 };
        let now = self.control.world.now();
        let due = Nanos(now.0 + luck.spread(100_000, most)).max(self.due.get());
        self.due.set(due);
        Nanos(due.0 - now.0)
    }

    /// The newest state that can be had here.
    fn newest(&self) -> Arc<State> {
        let Some(seats) = self.control.seats() else { return self.control.snapshot() };
        let known = self.known.borrow();
        // A node that is followed from now on may know less than the one before.
        let newer = seats.state_at(self.me).filter(|s| Following::check(known.revision(), s.revision()).is_ok());
        newer.unwrap_or_else(|| known.clone())
    }

    fn hear_after(self: Rc<Self>, wait: Nanos) {
        let plane = Rc::downgrade(&self);
        self.control.world.after(wait, move || {
            let Some(plane) = plane.upgrade() else { return };
            if plane.is_cut_off() {
                return plane.hear_after(timing::NEWS_AGAIN);
            }
            if plane.lags.get() {
                plane.held.set(plane.held.get() + 1);
                return;
            }
            plane.arrived.set(plane.arrived.get() + 1);
            match &*plane.tell.borrow() {
                Some(tell) => tell(),
                None if plane.is_node() => {}
                None => plane.hear(),
            }
        });
    }

    fn knows(&self, state: Arc<State>) {
        *self.known.borrow_mut() = state;
        self.heard.notify_waiters();
    }

    /// All that was decided until now is known here.
    fn hear(&self) {
        self.arrived.set(0);
        let coming = std::mem::take(&mut *self.coming.borrow_mut());
        self.news.borrow_mut().extend(coming);
        let newest = self.newest();
        self.knows(newest);
        if let Some(tell) = self.tell.borrow().as_ref().filter(|_| self.is_node()) {
            tell();
        }
    }

    /// The oldest state that the worker was not told yet, of those that have come.
    fn next(&self) -> Option<Arc<State>> {
        let oldest = self.news.borrow_mut().pop_front();
        if oldest.is_some() || self.arrived.get() == 0 {
            return oldest;
        }
        self.arrived.set(self.arrived.get() - 1);
        let state = self.coming.borrow_mut().pop_front()?;
        self.knows(state.clone());
        Some(state)
    }
}

/// The control plane as one process sees it, and knows of it: that may be old.
#[derive(Clone)]
pub struct Plane(Rc<Followed>);

impl Plane {
    /// For a process that begins at this place, and knows the state of this moment; nothing yet, if seats keep the state.
    #[must_use]
    pub fn new(control: &Rc<Control>, me: Place) -> Self {
        let known = match control.seats() {
            Some(seats) => seats.state_at(me).unwrap_or_else(|| Arc::new(State::new(control.snapshot().cluster()))),
            None => control.snapshot(),
        };
        let known = RefCell::new(known);
        let (coming, due, arrived, lags, held, news, heard, tell) = Default::default();
        let control = control.clone();
        let followed = Followed { control, me, known, coming, due, arrived, lags, held, news, heard, tell };
        let followed = Rc::new(followed);
        followed.control.planes.borrow_mut().push(Rc::downgrade(&followed));
        if followed.is_cut_off() {
            followed.clone().hear_after(timing::NEWS_AGAIN);
        }
        Self(followed)
    }

    /// The seat of this node has applied this state: the worker hears of it a little later.
    pub fn push(&self, state: Arc<State>) {
        self.0.coming.borrow_mut().push_back(state);
        let wait = self.0.lag();
        self.0.clone().hear_after(wait);
    }

    /// From now on this is called when there are news. Whoever is told takes them in by `hear` when it comes to it.
    pub fn on_news(&self, tell: impl Fn() + 'static) {
        *self.0.tell.borrow_mut() = Some(Box::new(tell));
    }

    /// Takes in all news: for a gateway.
    pub fn hear(&self) {
        self.0.hear();
    }

    /// The oldest state that has come, and that the worker is to be told: for a node.
    #[must_use]
    pub fn next(&self) -> Option<Arc<State>> {
        self.0.next()
    }

    /// The state that is known when the worker begins: it is told that one, and then those that come.
    #[must_use]
    pub fn begin(&self) -> Arc<State> {
        self.0.news.borrow_mut().clear();
        self.state()
    }

    /// The number of a start of that node, whose device comes with this one.
    pub async fn number(&self, node: NodeId, came_with: StartNumber) -> Result<Numbered> {
        // All that was decided before has to be known.
        match self.0.control.seats() {
            Some(seats) => {
                seats.catch_up(node).await?;
                self.hear();
            }
            None => {
                while self.0.control.visit(self.0.me, || self.hear()).await.is_err() {
                    self.0.control.sleep(timing::CALL_AGAIN).await;
                }
            }
        }
        CameWith::new(node, vec![came_with]).with_mutant(self.0.control.mutant).number(&self.state())
    }

    /// Says that the node is there, until it is heard.
    pub async fn register(&self, node: NodeId, begun: Begun, key: Option<HostPublic>) -> Result<TakenIn> {
        let (name, address) = (format!("node-{node}"), format!("10.0.0.{node}:7400"));
        let about = About { name, address, workers: 1, key };
        let pause = async |Pause { time, .. }| self.0.control.sleep(time).await;
        begun.registration(about).say(self, pause).await
    }

    async fn command(&self, command: Command) -> Result<Done> {
        let done = self.0.control.call(self.0.me, command).await?;
        while self.0.lags.get() {
            self.0.control.sleep(timing::NEWS_AGAIN).await;
        }
        // A caller that has the answer sees it in the state, too.
        self.hear();
        Ok(done)
    }
}

impl Commands for Plane {
    async fn submit(&self, command: Command) -> Result<Done> {
        let (me, control) = (self.0.me, &self.0.control);
        let answer = self.command(command.clone()).await;
        let state = self.state();
        if refused(&command, &answer, &state).is_none() {
            return answer;
        }
        let hear = control.hear.borrow().clone();
        // The replicas are asked by who was asked.
        let from = control.seats().map_or(me, |seats| seats.asked_by(me));
        let of = |node, shard| hear.as_ref().and_then(|hear| hear(from, node, shard));
        match in_place_of_lapsed(command, &state, of) {
            Some(instead) => {
                control.world.count("volumes taken over whose leases had ended");
                self.command(instead).await
            }
            None => answer,
        }
    }

    fn state(&self) -> Arc<State> {
        self.0.known.borrow().clone()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        loop {
            let heard = self.0.heard.notified();
            let state = self.state();
            if state.revision() != since {
                return state;
            }
            heard.await;
        }
    }

    async fn ask_interval(&self, node: NodeId, ask: IntervalAsk) -> Result<IntervalWord> {
        self.0.control.ask_head(self.0.me, node, ask).await
    }
}

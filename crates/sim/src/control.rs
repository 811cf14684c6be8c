//! The control plane of a run: the real state machine behind a port that can be slow, cut off, or down, and whose
//! answers can be lost after the command was applied.

use crate::network::{Network, Place};
use crate::timing;
use crate::world::World;
use freebs_agent::Commands;
use freebs_control::{Command, CreateVolume, Done, Mutant, Outcome, State, Volume};
use freebs_types::{
    ClusterId, Error, Generation, Hash32, HostPublic, Nanos, NodeId, Result, ShardId, StartNumber, ViewNumber, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// The control plane's state and whether it can be reached.
pub struct Control {
    world: Rc<World>,
    net: Rc<Network>,
    state: RefCell<Arc<State>>,
    down: Cell<bool>,
    /// No copy of the state is there, for now.
    lost: Cell<bool>,
    /// The newest view of each shard that ever became active, whatever state of the control plane knows of it.
    activated: RefCell<BTreeMap<ShardId, ViewNumber>>,
    mutant: Option<Mutant>,
    /// Calls until an answer is lost after its command was applied; `None`: never.
    lose_answer_in: Cell<Option<u64>>,
    changed: RefCell<Option<Rc<dyn Fn()>>>,
}

impl Control {
    #[must_use]
    pub fn new(world: &Rc<World>, net: &Rc<Network>, cluster: ClusterId, mutant: Option<Mutant>) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            net: net.clone(),
            state: RefCell::new(Arc::new(State::new(cluster))),
            down: Cell::new(false),
            lost: Cell::new(false),
            activated: RefCell::default(),
            mutant,
            lose_answer_in: Cell::new(None),
            changed: RefCell::default(),
        })
    }

    /// Called after every change.
    pub fn on_change(&self, tell: Rc<dyn Fn()>) {
        *self.changed.borrow_mut() = Some(tell);
    }

    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.get() || self.lost.get()
    }

    pub fn set_lost(&self, lost: bool) {
        self.lost.set(lost);
    }

    /// The rule that is left out.
    #[must_use]
    pub fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// Another state takes the place of the one that was lost.
    pub fn replace(&self, state: State) {
        *self.state.borrow_mut() = Arc::new(state);
        if let Some(tell) = self.changed.borrow().clone() {
            tell();
        }
    }

    pub fn set_down(&self, down: bool) {
        self.down.set(down);
    }

    /// The `n`-th answer from now on is lost.
    pub fn lose_answer(&self, n: u64) {
        self.lose_answer_in.set(Some(n));
    }

    /// Applies a command at once (set-up of a run).
    pub fn apply(&self, command: Command) -> Result<Done> {
        let before = self.state.borrow().revision();
        let wrong = self.wrong_activation(&command);
        let activates = match command {
            Command::ActivateView { shard, view, .. } => Some((shard, view)),
            _ => None,
        };
        let done = Arc::make_mut(&mut self.state.borrow_mut()).apply_with(command, self.mutant);
        if let Some(why) = wrong.filter(|_| done.is_ok()) {
            self.world.violation(why);
        }
        if let Some((shard, view)) = activates.filter(|_| done.is_ok()) {
            let mut activated = self.activated.borrow_mut();
            let newest = activated.entry(shard).or_default();
            *newest = view.max(*newest);
        }
        if self.state.borrow().revision() != before
            && let Some(tell) = self.changed.borrow().clone()
        {
            tell();
        }
        done
    }

    /// The newest view of the shard that ever became active.
    #[must_use]
    pub fn activated(&self, shard: ShardId) -> ViewNumber {
        self.activated.borrow().get(&shard).copied().unwrap_or_default()
    }

    /// What would be wrong if this command succeeded: only the pending view becomes active, with the generation of this
    /// moment in it (V6).
    fn wrong_activation(&self, command: &Command) -> Option<String> {
        let Command::ActivateView { shard, view, generation } = *command else { return None };
        let state = self.state.borrow();
        let volume = state.volume(shard.volume)?;
        let s = volume.shard(shard.index)?;
        let is_right = s.pending.is_some_and(|p| p.view == view) && volume.generation == generation;
        let text = || format!("view {view} of shard {shard} became active, and it was not pending: {s:?} (V6)");
        (s.active != view && !is_right).then(text)
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

    /// The wrong in a head's command, as the network has seen it: a view is ready when its quorum has said
    /// that it has it (V5), and who has everything has said so of the view (V7).
    fn judge(&self, from: Place, command: &Command) {
        let Place::Node(node) = from else { return };
        let witness = self.net.witness.borrow();
        match command {
            Command::ActivateView { shard, view, .. } => {
                let quorum = self
                    .volume(shard.volume)
                    .map_or(1, |v| v.quorum(v.shard(shard.index).map_or(1, |s| s.members.len())));
                if !witness.may_be_active(*shard, *view, NodeId(node), quorum) {
                    let text = format!("node {node} calls view {view} of shard {shard} ready to be active");
                    self.world.violation(format!("{text}, and its quorum has not said that it has it"));
                }
            }
            Command::MembersComplete { shard, view, nodes } => {
                for node in nodes.iter().filter(|n| !witness.has_opened(**n, *shard, *view)) {
                    let text =
                        format!("is said to have everything of shard {shard}, and has not said that it holds view");
                    self.world.violation(format!("node {node} {text} {view} (V7)"));
                }
                self.world.count("members that learned everything");
            }
            _ => {}
        }
    }

    /// A command from `from`, over the network.
    pub async fn call(self: &Rc<Self>, from: Place, command: Command) -> Result<Done> {
        self.judge(from, &command);
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
        let result = self.apply(command.clone());
        self.world.trace(0x20, u64::from(result.is_ok()), self.state.borrow().revision());
        self.world.say(|| format!("control: {from:?} {command:?} -> {result:?}"));
        if let Some(n) = self.lose_answer_in.get() {
            self.lose_answer_in.set(n.checked_sub(1));
            if n == 0 {
                self.sleep(timing::CALL_PATIENCE).await;
                return Err(unreachable());
            }
        }
        self.sleep(half).await;
        result
    }

    async fn sleep(&self, time: Nanos) {
        let (tell, told) = oneshot::channel::<()>();
        self.world.after(time, move || {
            let _ = tell.send(());
        });
        let _ = told.await;
    }
}

/// The control plane as one process sees it, and knows of it: that may be old. It hears of every state, in their order.
#[derive(Clone)]
pub struct Plane {
    control: Rc<Control>,
    me: Place,
    known: Rc<RefCell<Arc<State>>>,
    /// States that are on their way here.
    coming: Rc<RefCell<VecDeque<Arc<State>>>>,
    /// States that have come, and that the worker was not told yet.
    news: Rc<RefCell<VecDeque<Arc<State>>>>,
    heard: Rc<Notify>,
}

impl Plane {
    /// For a process that begins at this place, and knows the state of this moment.
    #[must_use]
    pub fn new(control: &Rc<Control>, me: Place) -> Self {
        let known = Rc::new(RefCell::new(control.snapshot()));
        let (coming, news, heard) = Default::default();
        Self { control: control.clone(), me, known, coming, news, heard }
    }

    /// A state sets out for here.
    pub fn expect(&self, state: Arc<State>) {
        self.coming.borrow_mut().push_back(state);
    }

    /// The next one of those that are on their way has come.
    pub fn hear(&self) {
        let Some(state) = self.coming.borrow_mut().pop_front() else { return };
        *self.known.borrow_mut() = state.clone();
        self.news.borrow_mut().push_back(state);
        self.heard.notify_waiters();
    }

    /// All that are on their way have come.
    fn hear_all(&self) {
        while !self.coming.borrow().is_empty() {
            self.hear();
        }
    }

    /// The oldest state that the worker is to be told.
    #[must_use]
    pub fn next(&self) -> Option<Arc<State>> {
        self.news.borrow_mut().pop_front()
    }

    /// The state that is known when the worker begins: it is told that one, and then those that come.
    #[must_use]
    pub fn begin(&self) -> Arc<State> {
        self.news.borrow_mut().clear();
        self.state()
    }

    /// Whether a device that comes with this start number may be used; asked before anything is written to it (rule V8).
    /// Only the node's own starts raise what the control plane knows, so it does not matter when it is asked.
    pub fn may_start(&self, node: NodeId, came_with: StartNumber) -> Result<()> {
        if self.control.mutant == Some(Mutant::OldImagesRegister) {
            return Ok(());
        }
        self.control.with_state(|s| s.next_start(node, &[came_with]).map(|_| ()))
    }

    /// Says that the node is there, until it is heard.
    pub async fn register(&self, node: NodeId, start: StartNumber, key: Option<HostPublic>) -> Result<()> {
        let (name, address) = (format!("node-{node}"), format!("10.0.0.{node}:7400"));
        self.insist(Command::RegisterNode { node, name, address, workers: 1, start }).await?;
        match key {
            Some(key) => self.insist(Command::NameHostKey { node, start, key }).await,
            None => Ok(()),
        }
    }

    async fn insist(&self, command: Command) -> Result<()> {
        loop {
            match self.submit(command.clone()).await {
                Ok(_) => return Ok(()),
                Err(e) if e.kind == freebs_types::ErrorKind::Retry => self.control.sleep(timing::CALL_AGAIN).await,
                Err(e) => return Err(e),
            }
        }
    }
}

impl Commands for Plane {
    async fn submit(&self, command: Command) -> Result<Done> {
        let done = self.control.call(self.me, command).await?;
        // Whoever has the answer sees it in the state, too.
        self.hear_all();
        Ok(done)
    }

    fn state(&self) -> Arc<State> {
        self.known.borrow().clone()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        loop {
            let heard = self.heard.notified();
            let state = self.state();
            if state.revision() != since {
                return state;
            }
            heard.await;
        }
    }
}

/// Takes the right to use a volume, as a gateway that starts does; and whether no earlier driver can hold a lease.
pub async fn attach(
    control: &Rc<Control>,
    from: Place,
    volume: VolumeId,
    identity: Hash32,
) -> Result<(Generation, bool)> {
    let command =
        Command::AttachVolume { volume, identity, name: "sim".into(), force: true, since: None, lapsed: false };
    match control.call(from, command).await?.outcome {
        Outcome::Attached { generation, alone } => Ok((generation, alone)),
        other => Err(Error::bug(format!("attaching gave {other:?}"))),
    }
}

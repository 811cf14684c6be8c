//! The control plane of a run: the real state machine behind a port that can be slow, cut off, or down, and whose
//! answers can be lost after the command was applied.

use crate::network::{Network, Place};
use crate::timing;
use crate::world::World;
use freebs_chain::{ControlPort, Opened, ShardInfo};
use freebs_control::{Command, CreateVolume, Mutant, Outcome, State, Volume};
use freebs_types::{
    ClusterId, Error, Generation, Hash32, HostPublic, Nanos, NodeId, Result, ShardId, StartNumber, ViewNumber, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::oneshot;

/// The control plane's state and whether it can be reached.
pub struct Control {
    world: Rc<World>,
    net: Rc<Network>,
    state: RefCell<State>,
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
            state: RefCell::new(State::new(cluster)),
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
        *self.state.borrow_mut() = state;
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
    pub fn apply(&self, command: Command) -> Result<Outcome> {
        let before = self.state.borrow().revision();
        let wrong = self.wrong_activation(&command);
        let activates = match command {
            Command::ActivateView { shard, view, .. } => Some((shard, view)),
            _ => None,
        };
        let done = self.state.borrow_mut().apply_with(command, self.mutant).map(|d| d.outcome);
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
        match self.apply(Command::CreateVolume(new))? {
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

    /// What a node hears of its shards.
    #[must_use]
    pub fn shards_of(&self, node: NodeId) -> Vec<ShardInfo> {
        let has_key = |n: NodeId| self.state.borrow().node(n).is_some_and(|n| n.host_key.is_some());
        let mut out = Vec::new();
        for v in self.volumes() {
            let description = std::sync::Arc::new(v.description());
            for s in v.shards.iter().filter(|s| s.is_kept_by(node)) {
                out.push(ShardInfo {
                    shard: v.shard_id(s.index),
                    members: s.members.clone(),
                    active: s.active,
                    known: s.known(),
                    blocks: v.shard_blocks(),
                    highest: s.highest,
                    generation: v.generation,
                    has_keys: s.members.iter().all(|n| has_key(*n)),
                    joining: s.joining.clone(),
                    view_members: s.view_members().to_vec(),
                    volume: Some(description.clone()),
                });
            }
        }
        out
    }

    /// A command from `from`, over the network.
    pub async fn call(self: &Rc<Self>, from: Place, command: Command) -> Result<Outcome> {
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

/// A worker's way to the control plane.
#[derive(Clone)]
pub struct Port {
    pub control: Rc<Control>,
    pub node: NodeId,
}

impl Port {
    /// Whether a device that comes with this start number may be used; asked before anything is written to it (rule V8).
    /// Only the node's own starts raise what the control plane knows, so it does not matter when it is asked.
    pub fn may_start(&self, came_with: StartNumber) -> Result<()> {
        if self.control.mutant == Some(Mutant::OldImagesRegister) {
            return Ok(());
        }
        self.control.with_state(|s| s.next_start(self.node, &[came_with]).map(|_| ()))
    }

    /// Says that the node is there, until it is heard.
    pub async fn register(&self, start: StartNumber, workers: u16, key: Option<HostPublic>) -> Result<()> {
        let command = Command::RegisterNode {
            node: self.node,
            name: format!("node-{}", self.node),
            address: format!("10.0.0.{}:7400", self.node),
            workers,
            start,
        };
        self.insist(command).await?;
        match key {
            Some(key) => self.insist(Command::NameHostKey { node: self.node, start, key }).await,
            None => Ok(()),
        }
    }

    async fn insist(&self, command: Command) -> Result<()> {
        loop {
            match self.control.call(Place::Node(self.node.0), command.clone()).await {
                Ok(_) => return Ok(()),
                Err(e) if e.kind == freebs_types::ErrorKind::Retry => self.control.sleep(timing::CALL_AGAIN).await,
                Err(e) => return Err(e),
            }
        }
    }
}

impl ControlPort for Port {
    async fn propose(&self, shard: ShardId, active: ViewNumber, start: StartNumber) -> Result<Opened> {
        let command = Command::ProposeView { shard, active, node: self.node, start };
        let outcome = self.control.call(Place::Node(self.node.0), command).await?;
        let Outcome::Proposed { view, pred, generation } = outcome else {
            return Err(Error::bug(format!("proposing gave {outcome:?}")));
        };
        let volume = self.control.volume(shard.volume).ok_or_else(|| Error::not_found("no such volume"))?;
        let of_shard = volume.shard(shard.index);
        let members = of_shard.map(|s| s.members.clone()).unwrap_or_default();
        let pred_members = of_shard.map(|s| s.view_members().to_vec()).unwrap_or_default();
        let pred_learning = of_shard.map(|s| s.learning.clone()).unwrap_or_default();
        let (quorum, pred_quorum) = (volume.quorum(members.len()) as u8, volume.quorum(pred_members.len()) as u8);
        let state = self.control.state.borrow();
        let keys = members.iter().filter_map(|n| Some((*n, state.node(*n)?.host_key?))).collect();
        let (min_copies, description) = (volume.min_copies, Some(Box::new(volume.description())));
        Ok(Opened {
            view,
            pred,
            quorum,
            min_copies,
            pred_members,
            pred_quorum,
            pred_learning,
            generation,
            members,
            keys,
            volume: description,
        })
    }

    async fn activate(&self, shard: ShardId, view: ViewNumber, generation: Generation) -> Result<()> {
        let volume = self.control.volume(shard.volume);
        let quorum = volume.map_or(1, |v| v.quorum(v.shard(shard.index).map_or(1, |s| s.members.len())));
        if !self.control.net.witness.borrow().may_be_active(shard, view, self.node, quorum) {
            let text = format!("node {} calls view {view} of shard {shard} ready to be active", self.node);
            self.control.world.violation(format!("{text}, and its quorum has not said that it has it"));
        }
        let command = Command::ActivateView { shard, view, generation };
        self.control.call(Place::Node(self.node.0), command).await.map(|_| ())
    }

    async fn complete(&self, shard: ShardId, view: ViewNumber, nodes: Vec<NodeId>) -> Result<()> {
        for node in &nodes {
            if !self.control.net.witness.borrow().has_opened(*node, shard, view) {
                let text = format!("is said to have everything of shard {shard}, and has not said that it holds view");
                self.control.world.violation(format!("node {node} {text} {view} (V7)"));
            }
        }
        self.control.world.count("members that learned everything");
        let command = Command::MembersComplete { shard, view, nodes };
        self.control.call(Place::Node(self.node.0), command).await.map(|_| ())
    }

    async fn hand_over(&self, shard: ShardId, to: NodeId) -> Result<()> {
        let volume = self.control.volume(shard.volume);
        let mine = volume.as_ref().and_then(|v| v.shard(shard.index)).filter(|s| s.head() == Some(self.node));
        let Some(active) = mine.map(|s| s.active) else { return Ok(()) };
        let command = Command::ReplaceHead { shard, head: self.node, active, node: to };
        self.control.call(Place::Node(self.node.0), command).await.map(|_| ())
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
    match control.call(from, command).await? {
        Outcome::Attached { generation, alone } => Ok((generation, alone)),
        other => Err(Error::bug(format!("attaching gave {other:?}"))),
    }
}

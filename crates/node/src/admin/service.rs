//! Answers to control requests at one node.

use super::plane::Plane;
use super::{Client, LocalNode, snapshots, status};
use crate::conn::May;
use crate::events::{EventLog, now_ms};
use crate::timing;
use bytes::Bytes;
use freebs_control::api::{
    DrainStatus, GatewayInfo, IntervalAnswer, IntervalQuestion, NodeInfo, Reply, Request, ShardStatus, VolumeState,
    VolumeStatus,
};
use freebs_control::limits::SHARD_STATUS_PAGE_MAX;
use freebs_control::timing::WATCH_MS;
use freebs_control::{Ack, Command, ControlPlane, CreateVolume, State, Volume};
use freebs_types::{ClusterId, Error, ErrorKind, NodeId, Result, ShardId, StartNumber, VolumeId, limits};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Gateways that may be announced at one node.
const GATEWAYS_MAX: usize = 1024;

/// Requests to join at a time; others wait.
const JOINS_MAX: usize = 2;

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Me {
    pub cluster: ClusterId,
    pub id: NodeId,
    pub name: String,
    pub address: String,
    pub start: StartNumber,
    pub workers: u16,
}

/// One node's control API.
pub struct Service {
    pub(super) plane: Plane,
    pub(super) local: Arc<dyn LocalNode>,
    pub(super) events: Arc<EventLog>,
    me: Me,
    /// The directory that may have the authority's key.
    keys: OnceLock<PathBuf>,
    /// Requests to join that are under way: who has a token that ended may make them, too, and each costs a command.
    joins: Semaphore,
    /// By session, for as long as it lasts; session 0 is this process itself.
    gateways: Mutex<BTreeMap<u64, GatewayInfo>>,
    sessions: AtomicU64,
}

impl Service {
    pub fn new(me: Me, plane: Plane, local: Arc<dyn LocalNode>, events: Arc<EventLog>) -> Arc<Self> {
        let service = Self {
            plane,
            local,
            events,
            me,
            keys: OnceLock::new(),
            joins: Semaphore::new(JOINS_MAX),
            gateways: Mutex::default(),
            sessions: AtomicU64::new(0),
        };
        let service = Arc::new(service);
        service.plane.serve_by(&service);
        service
    }

    /// The right to ask for a node to be taken in, once others have been answered.
    pub(super) async fn one_of_few(&self) -> Result<SemaphorePermit<'_>> {
        self.joins.acquire().await.map_err(|_| Error::bug("nobody may join"))
    }

    /// Nodes that join are certified here if the authority's key lies in this directory.
    pub fn certify_from(&self, data: PathBuf) {
        let _ = self.keys.set(data);
    }

    /// The directory that may have the authority's key.
    pub(super) fn keys(&self) -> Option<PathBuf> {
        self.keys.get().cloned()
    }

    pub fn me(&self) -> &Me {
        &self.me
    }

    /// This node serves NBD itself.
    pub fn announce_self(&self, me: GatewayInfo) {
        self.gateways().insert(0, me);
    }

    fn gateways(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, GatewayInfo>> {
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info(&self) -> NodeInfo {
        NodeInfo {
            id: self.me.id,
            name: self.me.name.clone(),
            cluster: self.me.cluster,
            pid: std::process::id(),
            address: self.me.address.clone(),
            start: self.me.start,
            workers: self.me.workers,
            revision: self.plane.state().revision(),
            leads: self.plane.leads(),
            votes: self.plane.votes(),
            gateways: self.gateways().values().cloned().collect(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// One page of this node's shards.
    pub(super) async fn shards(&self, volume: Option<VolumeId>, after: Option<ShardId>) -> (Vec<ShardStatus>, bool) {
        let mut shards = self.local.shards(volume).await;
        shards.retain(|s| after.is_none_or(|a| s.shard > a));
        let more = shards.len() > SHARD_STATUS_PAGE_MAX;
        shards.truncate(SHARD_STATUS_PAGE_MAX);
        (shards, more)
    }

    /// The state, if it is known here at all.
    pub(super) fn state(&self) -> Result<Arc<State>> {
        let state = self.plane.state();
        if state.revision() == 0 {
            return Err(Error::retry(
                "this node has not learned the control state yet; try again, or ask another node. If all have lost it, \
                 `freebs control rebuild` makes it again",
            ));
        }
        Ok(state)
    }

    /// A node that knows less than the asker has no news for it: what it lacks would look deleted. (It has just
    /// started, for one, and has not heard from the others yet.)
    async fn watch(&self, since: u64) -> Result<Reply> {
        let news = async {
            let mut state = self.plane.changed(since).await;
            while state.revision() < since {
                state = self.plane.changed(state.revision()).await;
            }
            state
        };
        let news = tokio::time::timeout(Duration::from_millis(WATCH_MS), news);
        let state = news.await.unwrap_or_else(|_| self.plane.state());
        self.plane.check()?;
        if state.revision() < since {
            return Err(Error::retry("this node has not heard of the newest control state yet; ask another one"));
        }
        Ok(Reply::Changes(state.changes_since(since)))
    }

    async fn create(&self, new: CreateVolume) -> Result<Reply> {
        let name = new.name.clone();
        self.plane.submit(Command::CreateVolume(new)).await?;
        let state = self.state()?;
        let volume = state.need(&name)?;
        Ok(Reply::Volume { volume: bare(&state, volume), notes: notes(volume) })
    }

    async fn clone_volume(&self, of: &str, snapshot: String, name: String) -> Result<Reply> {
        let volume = self.state()?.need(of)?.id;
        self.plane.submit(Command::CloneVolume { volume, snapshot, name: name.clone() }).await?;
        let state = self.state()?;
        let volume = state.need(&name)?;
        Ok(Reply::Volume { volume: bare(&state, volume), notes: notes(volume) })
    }

    async fn flatten(&self, name: &str) -> Result<Reply> {
        let volume = self.state()?.need(name)?.id;
        self.plane.submit(Command::FlattenVolume { volume }).await?;
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    async fn resize(&self, name: &str, size: u64) -> Result<Reply> {
        let volume = self.state()?.need(name)?.id;
        self.plane.submit(Command::ResizeVolume { volume, size }).await?;
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    async fn rename(&self, name: &str, to: String) -> Result<Reply> {
        let volume = self.state()?.need(name)?.id;
        self.plane.submit(Command::RenameVolume { volume, name: to.clone() }).await?;
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(&to)?), notes: Vec::new() })
    }

    async fn retain(&self, name: &str, retain_ms: u64) -> Result<Reply> {
        let volume = self.state()?.need(name)?.id;
        self.plane.submit(Command::RetainVolume { volume, retain_ms }).await?;
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    async fn drain(&self, name: &str, drains: bool, heir: Option<&str>) -> Result<Reply> {
        let state = self.state()?;
        let node = named(&state, name)?;
        let heir = heir.map(|name| named(&state, name)).transpose()?;
        self.plane.submit(Command::DrainNode { node, drains, heir }).await?;
        let shards = self.state()?.shards_at(node) as u64;
        Ok(Reply::Draining(DrainStatus { node: name.into(), drains, shards }))
    }

    async fn remove(&self, name: &str) -> Result<Reply> {
        self.newest().await?;
        let state = self.state()?;
        let node = named(&state, name)?;
        state.may_remove(node)?;
        self.plane.may_be_without(&state, node)?;
        self.plane.submit(Command::RetireNode { node }).await?;
        let gone = async {
            loop {
                let state = self.state()?;
                if state.is_removed(node) {
                    return Ok(Reply::Removed { node });
                }
                self.plane.changed(state.revision()).await;
            }
        };
        let waits = |_| {
            Err(Error::busy(format!(
                "{name} still has a vote in the control plane, because too few others that could vote are there; it is removed as \
                 soon as they are, or stays with `freebs node drain {name} --undo`"
            )))
        };
        tokio::time::timeout(timing::RETIRE_MAX, gone).await.unwrap_or_else(waits)
    }

    async fn move_head(&self, name: &str, node: &str, only: Option<u32>) -> Result<Reply> {
        let state = self.state()?;
        let volume = state.need(name)?;
        let found = state.nodes().find(|n| n.name == node).cloned();
        let target = found.ok_or_else(|| Error::not_found(format!("there is no node '{node}'")))?;
        let to = target.id;
        let wanted = volume.shards.iter().filter(|s| match only {
            Some(index) => s.index == index,
            None => s.members.contains(&to),
        });
        let wanted: Vec<u32> = wanted.map(|s| s.index).collect();
        if wanted.is_empty() {
            return Err(match only {
                Some(index) => Error::not_found(format!("volume '{name}' has no shard {index}")),
                None => Error::invalid(format!(
                    "node {node} is no member of any shard of volume '{name}'; `freebs volume show {name}` names them"
                )),
            });
        }
        // Nothing would be ordered there before it is back, or another one has been made head in its place.
        if to != self.me.id {
            status::is_there(&target).await.map_err(|e| {
                Error::retry(format!("{node} can't be head of volume '{name}' now, it can't be reached: {}", e.text))
            })?;
        }
        for index in wanted {
            self.plane.submit(Command::MoveHead { shard: volume.shard_id(index), node: to }).await?;
        }
        let state = self.state()?;
        Ok(Reply::Volume { volume: bare(&state, state.need(name)?), notes: Vec::new() })
    }

    /// The command that takes a volume over from a driver whose leases have ended, in place of one that was refused
    /// because of that driver.
    pub(super) async fn in_place_of_lapsed(
        &self,
        command: Command,
        state: &State,
        volume: VolumeId,
    ) -> Option<Command> {
        let heard = status::lapses(self, state, volume).await;
        let of = |node, shard| heard.get(&(node, shard)).copied();
        freebs_agent::in_place_of_lapsed(command, state, of)
    }

    /// Asks the head of a shard on that node, which may be this one, about an interval.
    pub(super) async fn ask_interval(&self, node: NodeId, of: IntervalQuestion) -> Result<IntervalAnswer> {
        if node == self.me.id {
            return self.local.ask_interval(of).await;
        }
        let state = self.state()?;
        let there = state.node(node).ok_or_else(|| Error::retry(format!("node {node} is not known here")))?;
        let client = Client::connect_to(there).await?;
        match client.call(&Request::IntervalAsk(of), timing::NODE_ANSWER_MAX).await? {
            Reply::Interval(answer) => Ok(answer),
            _ => Err(Error::retry("a node answered something else")),
        }
    }

    async fn delete(&self, name: &str, force: bool, with_snapshots: bool) -> Result<Reply> {
        let volume = self.state()?.need(name)?.id;
        let command = match with_snapshots {
            true => Command::DeleteVolumeAndSnapshots { volume, force, now_ms: now_ms() },
            false => Command::DeleteVolume { volume, force },
        };
        self.plane.submit(command).await?;
        Ok(Reply::Deleted)
    }

    /// Returns when everything is known here that was committed when this was called.
    pub(super) async fn newest(&self) -> Result<()> {
        let caught_up = async {
            loop {
                let state = self.state()?;
                let Some(me) = state.node(self.me.id).cloned() else {
                    return Err(Error::retry("this node is not registered yet; try again, or ask another node"));
                };
                // A command that changes nothing, as this node is registered already; its answer comes behind all
                // others. If it is refused, this copy does not even know the present registration.
                let (node, name, address) = (me.id, me.name.clone(), me.address.clone());
                let again = Command::RegisterNode { node, name, address, workers: me.workers, start: me.start };
                match self.plane.submit(again).await {
                    Err(e) if e.kind != ErrorKind::Corrupt => return Err(e),
                    Err(_) => drop(self.plane.changed(state.revision()).await),
                    Ok(_) => return Ok(()),
                }
            }
        };
        let late = |_| Error::retry("this node does not learn the newest control state; ask another one");
        tokio::time::timeout(timing::CATCH_UP_MAX, caught_up).await.map_err(late)?
    }

    /// A copy of the state that lags may not know a volume that was just made, or know one under the name of another
    /// that is gone: "there is no such volume" is said only by the newest state.
    async fn handle(&self, request: Request, session: u64) -> Result<Reply> {
        if !request.names_volume() {
            return self.attempt(request, session).await;
        }
        match self.attempt(request.clone(), session).await {
            Err(e) if e.kind == ErrorKind::NotFound => {
                self.newest().await?;
                self.attempt(request, session).await
            }
            other => other,
        }
    }

    pub(super) async fn show_volume(&self, name: &str) -> Result<Reply> {
        let found = status::volumes(self, Some(name)).await?.pop();
        let volume = found.ok_or_else(|| Error::not_found(format!("there is no volume '{name}'")))?;
        Ok(Reply::Volume { volume, notes: Vec::new() })
    }

    async fn attempt(&self, request: Request, session: u64) -> Result<Reply> {
        match request {
            Request::Status => Ok(Reply::Status(status::status(self).await?)),
            Request::VolumeCreate(new) => self.create(new).await,
            Request::VolumeClone { volume, snapshot, name } => self.clone_volume(&volume, snapshot, name).await,
            Request::VolumeFlatten { name } => self.flatten(&name).await,
            Request::VolumeList => Ok(Reply::Volumes { volumes: status::volumes(self, None).await? }),
            Request::VolumeShow { name } => self.show_volume(&name).await,
            Request::VolumeResize { name, size } => self.resize(&name, size).await,
            Request::VolumeRename { name, to } => self.rename(&name, to).await,
            Request::VolumeRetain { name, retain_ms } => self.retain(&name, retain_ms).await,
            Request::VolumeMoveHead { name, node, shard } => self.move_head(&name, &node, shard).await,
            Request::VolumeDelete { name, force, with_snapshots } => self.delete(&name, force, with_snapshots).await,
            Request::SnapshotCreate { volumes, name, past } => snapshots::create(self, &volumes, name, past).await,
            Request::SnapshotList { volume, after } => snapshots::list(self, volume.as_deref(), after),
            Request::SnapshotShow { volume, name } => snapshots::show(self, &volume, &name),
            Request::SnapshotDelete { volume, name } => snapshots::delete(self, &volume, name).await,
            Request::SnapshotSchedule { volume, schedule } => snapshots::schedule(self, &volume, schedule).await,
            Request::SnapshotLock { volume, name, until_ms } => snapshots::lock(self, &volume, name, until_ms).await,
            Request::VolumeDetach { name, force } => self.detach(&name, force).await,
            Request::VolumeVerify { name, wait_ms } => {
                Ok(Reply::Verified(status::verify(self, &name, Duration::from_millis(wait_ms)).await?))
            }
            Request::VolumeRecover { name, accept_loss } => {
                super::recover::recover(self, &name, accept_loss.as_deref()).await
            }
            Request::NodeInfo => Ok(Reply::Node(self.info())),
            Request::NodeDrain { name, drains, heir } => self.drain(&name, drains, heir.as_deref()).await,
            Request::NodeRemove { name } => self.remove(&name).await,
            Request::TokenCreate { valid_ms } => self.make_token(valid_ms).await,
            Request::TokenList => self.list_tokens().await,
            Request::TokenRevoke { of } => self.revoke_tokens(&of).await,
            Request::Join(of) => self.join(of).await,
            Request::Watch { since } => self.watch(since).await,
            Request::Submit { command } if command.is_about_joining() => Err(Error::invalid(
                "nodes and tokens are asked for with requests of their own, and a node looks at what it is asked for",
            )),
            Request::Submit { command } => Ok(Reply::Done(self.plane.submit(command).await?)),
            Request::Announce(gateway) => {
                freebs_control::rules::check_name("gateway", &gateway.name)?;
                let mut gateways = self.gateways();
                if gateways.len() >= GATEWAYS_MAX && !gateways.contains_key(&session) {
                    return Err(Error::no_space(format!("a node knows at most {GATEWAYS_MAX} gateways")));
                }
                gateways.insert(session, gateway);
                Ok(Reply::Announced)
            }
            Request::ShardStatus { volume, after } => {
                let (shards, more) = self.shards(volume, after).await;
                Ok(Reply::Shards { shards, more })
            }
            Request::Events(of) => super::events::events(self, of).await,
            Request::ShardAudit { node, audit } => Ok(Reply::Audit(super::audit::audit(self, node, audit).await?)),
            Request::IntervalAsk(of) => Ok(Reply::Interval(self.local.ask_interval(of).await?)),
            Request::ShardDigest { shard } => Ok(Reply::Digest(self.local.digest(shard).await?)),
        }
    }
}

/// A volume as the control state alone knows it.
fn bare(state: &State, volume: &Volume) -> VolumeStatus {
    let shards = volume.shards.iter().map(|s| status::report(state, volume, s, &BTreeMap::new()).0).collect();
    status::of_volume(state, volume, VolumeState::Paused, shards)
}

/// What whoever makes such a volume should know.
fn notes(volume: &Volume) -> Vec<String> {
    let (copies, least) = (volume.copies, volume.min_copies);
    match (copies, least) {
        (1, _) => vec!["one copy: the volume is lost with its node's disk".into()],
        (2, 2) => vec![
            "two copies: the volume pauses while one of them is lost (--min-copies 1 lets it go on with one, \
             --copies 3 with two)"
                .into(),
        ],
        (2, 1) => vec![
            "two copies, of which one is enough: while one is lost the volume goes on with the other alone, and if that is \
             lost, too, before the first is back, so is what was written meanwhile"
                .into(),
        ],
        _ if volume.ack == Ack::All && least < copies => vec![format!(
            "ack all: a copy that is lost is done without after about a second, down to {least}; until it is back, what is \
             written has fewer copies"
        )],
        _ if volume.ack == Ack::All => vec![format!(
            "ack all with {copies} copies at least: the volume pauses while one of them is lost (--min-copies lets it go \
             on with fewer)"
        )],
        _ => Vec::new(),
    }
}

/// One connection to a service; what was announced on it goes with it.
pub struct Session {
    /// The node that asks, or is spoken for; 0 for none.
    node: NodeId,
    service: Arc<Service>,
    may: May,
    number: u64,
}

impl Session {
    pub fn new(service: Arc<Service>, may: May, node: NodeId) -> Self {
        let number = service.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        Self { node, service, may, number }
    }

    /// The reply body to a request body. Never fails: errors are replies, too.
    pub async fn answer(&self, body: &[u8]) -> Bytes {
        let result = match Request::decode(body) {
            Ok(request) if self.may == May::Join && !matches!(request, Request::Join(_)) => {
                Err(Error::invalid("whoever has no certificate of this cluster can only join it"))
            }
            Ok(request) => match self.service.plane.state().check_removed(self.node) {
                Ok(()) => self.service.handle(request, self.number).await,
                Err(e) => Err(e),
            },
            Err(e) => Err(e),
        };
        let reply = Reply::encode(result);
        if reply.len() <= limits::CONTROL_BODY_BYTES_MAX {
            return reply.into();
        }
        Reply::encode(Err(Error::invalid("the answer is too long for one message; ask for less (one volume)"))).into()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.service.gateways().remove(&self.number);
    }
}
/// The number of the node with this name.
fn named(state: &State, name: &str) -> Result<NodeId> {
    state.nodes().find(|n| n.name == name).map(|n| n.id).ok_or_else(|| {
        let names: Vec<&str> = state.nodes().map(|n| n.name.as_str()).collect();
        Error::not_found(format!("there is no node '{name}'; there are {}", names.join(", ")))
    })
}

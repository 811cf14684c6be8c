//! One handle on the control plane for all threads of a process, whether it has a seat in it or follows one.

use super::Service;
use super::follower;
use super::seat::{self, Order, SeatOptions, SeatPort};
use crate::timing;
use freebs_agent::{About, Begun, Pause, TakenIn, refused};
use freebs_consensus::handle::Handle;
use freebs_control::api::{GatewayInfo, IntervalAnswer, IntervalQuestion};
use freebs_control::{Command, ControlPlane, Done, State};
use freebs_types::{ClusterId, Error, ErrorKind, NodeId, Result};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Nodes that a control plane of several votes needs at least.
const VOTERS_LEAST: usize = 3;

/// Commands that wait to be put in order.
pub(super) const JOBS_MAX: usize = 1024;

/// A command and where its answer goes.
pub(super) struct Job {
    pub command: Command,
    pub answer: oneshot::Sender<Result<Done>>,
}

/// The control plane as this process sees it. Cheap to clone; the last one that goes stops what is behind it.
#[derive(Clone)]
pub struct Plane {
    kind: Kind,
    announced: Arc<watch::Sender<Option<GatewayInfo>>>,
    /// Who can ask the nodes of the cluster, once this node serves.
    service: Arc<OnceLock<Weak<Service>>>,
}

#[derive(Clone)]
enum Kind {
    /// A node: the state is here, and commands are put in order by whoever leads.
    Seat(Handle, SeatPort),
    /// A gateway: both are at a node.
    Follower { jobs: mpsc::Sender<Job>, state: watch::Receiver<Arc<State>> },
}

/// What a follower needs to know.
#[derive(Debug)]
pub struct FollowerOptions {
    /// `None`: whatever cluster answers first.
    pub cluster: Option<ClusterId>,
    /// Who to ask, the first that answers; those that the state names are asked, too.
    pub addresses: Vec<String>,
}

impl Plane {
    /// A node's own seat in the control plane. Returns when its store is open.
    pub async fn seat(options: SeatOptions) -> Result<Self> {
        let (control, port) = seat::start(options).await?;
        Ok(Self::new(Kind::Seat(control, port), watch::channel(None).0))
    }

    /// Follows any node. Until one was reached, the state is empty and has revision 0.
    pub fn follow(options: FollowerOptions) -> Result<Self> {
        let (jobs, work) = mpsc::channel(JOBS_MAX);
        let (announced, announcements) = watch::channel(None);
        let state = follower::start(options, work, announcements)?;
        Ok(Self::new(Kind::Follower { jobs, state }, announced))
    }

    fn new(kind: Kind, announced: watch::Sender<Option<GatewayInfo>>) -> Self {
        Self { kind, announced: Arc::new(announced), service: Arc::default() }
    }

    pub(super) fn serve_by(&self, service: &Arc<Service>) {
        // A second one would be of the same node.
        let _ = self.service.set(Arc::downgrade(service));
    }

    /// The state once there is one.
    pub async fn ready(&self) -> Arc<State> {
        self.changed(0).await
    }

    /// A gateway says that it serves, now and on each later connection. (A node tells its own service.)
    pub fn announce(&self, me: GatewayInfo) {
        self.announced.send_replace(Some(me));
    }

    /// Whether this node leads the control plane, as far as it knows.
    pub fn leads(&self) -> bool {
        matches!(&self.kind, Kind::Seat(_, port) if port.leads())
    }

    /// Whether this node votes in the control plane, as far as it knows.
    pub fn votes(&self) -> bool {
        matches!(&self.kind, Kind::Seat(_, port) if port.votes())
    }

    /// True if this node has the only vote in the control plane; `None` if that is not known now.
    pub fn has_only_vote(&self) -> Option<bool> {
        match &self.kind {
            Kind::Seat(_, port) => port.has_only_vote(),
            Kind::Follower { .. } => None,
        }
    }

    /// `Invalid` if the control plane can't go on without this node.
    pub fn may_be_without(&self, state: &State, node: NodeId) -> Result<()> {
        let Kind::Seat(_, port) = &self.kind else { return Err(Error::bug("a gateway is asked about votes")) };
        let (voters, leader, left) = (port.voters(), port.leader(), state.nodes().filter(|n| n.id != node).count());
        let name = state.node(node).map_or_else(|| format!("node {node}"), |n| n.name.clone());
        match voters {
            0 => Err(Error::retry("it is not known right now who votes in the control plane")),
            1 if leader.is_none() => Err(Error::retry("nobody leads the control plane right now")),
            1 if leader == Some(node) => Err(Error::invalid(format!(
                "{name} has the only vote in the control plane, so it can't be removed; add nodes first: with three, all vote"
            ))),
            2.. if left < VOTERS_LEAST => Err(Error::invalid(format!(
                "without {name} there would be {left} nodes, and the control plane needs {VOTERS_LEAST} that vote; add a node \
                 first"
            ))),
            _ => Ok(()),
        }
    }

    /// Waits until the others have said that this node runs on an old copy of what it had (rule V8). A gateway has nothing.
    pub async fn is_old(&self) -> Error {
        match &self.kind {
            Kind::Seat(_, port) => port.is_old().await,
            Kind::Follower { .. } => std::future::pending().await,
        }
    }

    /// `Retry` if what is known here will not get newer, because the seat's store has failed.
    pub fn check(&self) -> Result<()> {
        match &self.kind {
            Kind::Seat(_, port) => port.check(),
            Kind::Follower { .. } => Ok(()),
        }
    }

    /// The state with everything in it that was committed when this was called. `Corrupt` if the others say that this
    /// node runs on an old image of its devices (rule V8); `Invalid` if they are of another cluster.
    pub async fn newest(&self) -> Result<Arc<State>> {
        if let Kind::Seat(_, port) = &self.kind {
            let stopped = || Error::retry("the control plane of this process has stopped");
            let (done, caught_up) = oneshot::channel();
            port.orders.send(Order::CatchUp(done)).await.map_err(|_| stopped())?;
            caught_up.await.map_err(|_| stopped())??;
        }
        Ok(self.ready().await)
    }

    /// This start number is durable on the node's devices: from now on its seat's messages carry it (rule V8).
    pub async fn started(&self, start: freebs_types::StartNumber) {
        if let Kind::Seat(_, port) = &self.kind {
            // A seat that has stopped says nothing any more.
            let _ = port.orders.send(Order::Started(start)).await;
        }
    }

    /// The cluster has taken this node in, and its devices are in use: its seat says so to the others.
    pub async fn taken_in(&self) {
        if let Kind::Seat(_, port) = &self.kind {
            let _ = port.orders.send(Order::TakenIn).await;
        }
    }

    /// The node's events, if there is a seat here.
    #[cfg(test)]
    pub(super) fn events(&self) -> Option<Arc<crate::events::EventLog>> {
        self.port().map(|port| port.events.clone())
    }

    /// Where messages from other nodes' seats go, if there is a seat here.
    pub(super) fn port(&self) -> Option<&SeatPort> {
        match &self.kind {
            Kind::Seat(_, port) => Some(port),
            Kind::Follower { .. } => None,
        }
    }

    async fn visible(state: &watch::Receiver<Arc<State>>, revision: u64) {
        let mut state = state.clone();
        let seen = state.wait_for(|s| s.revision() >= revision);
        // Not seen in time: the command is durable all the same, and readers here lag.
        let _ = tokio::time::timeout(timing::VISIBLE_MAX, seen).await;
    }

    /// Says that a node is there, and what slices are to be sealed for, until that was applied.
    pub async fn register(
        &self,
        me: &crate::cluster_file::ClusterNode,
        begun: Begun,
        key: freebs_types::HostPublic,
    ) -> Result<TakenIn> {
        let (name, address) = (me.name.clone(), me.address.clone());
        let about = About { name, address, workers: me.workers, key: Some(key) };
        let pause = async |Pause { why, time }| {
            match why.kind {
                ErrorKind::Retry => tracing::debug!("not registered yet: {why}"),
                _ => tracing::warn!("not registered yet: {why}"),
            }
            tokio::time::sleep(Duration::from_nanos(time.0)).await;
        };
        begun.registration(about).say(&Arc::new(self.clone()), pause).await
    }
}

impl ControlPlane for Plane {
    async fn submit(&self, command: Command) -> Result<Done> {
        let (jobs, state) = match &self.kind {
            Kind::Seat(control, port) => {
                port.check()?;
                let answer = control.submit(command.clone()).await;
                let state = control.state();
                let Some(volume) = refused(&command, &answer, &state).map(|v| v.id) else { return answer };
                let Some(service) = self.service.get().and_then(Weak::upgrade) else { return answer };
                return match service.in_place_of_lapsed(command, &state, volume).await {
                    Some(command) => control.submit(command).await,
                    None => answer,
                };
            }
            Kind::Follower { jobs, state } => (jobs, state),
        };
        let gone = || Error::retry("the control plane of this process has stopped");
        let (answer, answered) = oneshot::channel();
        jobs.send(Job { command, answer }).await.map_err(|_| gone())?;
        let done = answered.await.map_err(|_| gone())??;
        Self::visible(state, done.revision).await;
        Ok(done)
    }

    fn state(&self) -> Arc<State> {
        match &self.kind {
            Kind::Seat(control, _) => control.state(),
            Kind::Follower { state, .. } => state.borrow().clone(),
        }
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        let mut state = match &self.kind {
            Kind::Seat(control, _) => return control.changed(since).await,
            Kind::Follower { state, .. } => state.clone(),
        };
        let found = state.wait_for(|s| s.revision() != since).await.map(|s| s.clone());
        match found {
            Ok(s) => s,
            // Whoever published the state has stopped with the process.
            Err(_) => std::future::pending().await,
        }
    }

    async fn ask_interval(&self, node: NodeId, of: IntervalQuestion) -> Result<IntervalAnswer> {
        let service = self.service.get().and_then(Weak::upgrade);
        let service = service.ok_or_else(|| Error::retry("this node does not serve yet"))?;
        service.ask_interval(node, of).await
    }
}

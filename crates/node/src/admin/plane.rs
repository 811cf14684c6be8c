//! One handle on the control plane for all threads of a process, whether it keeps the state or follows the keeper.

use super::{follower, keeper};
use freebs_control::api::GatewayInfo;
use freebs_control::{Command, ControlPlane, Done, State};
use freebs_types::{ClusterId, Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Commands that wait to be put in order.
pub(super) const JOBS_MAX: usize = 1024;
/// How long a command may take to become visible here once the keeper has it.
const VISIBLE_MAX: Duration = Duration::from_secs(5);

/// A command and where its answer goes.
pub(super) struct Job {
    pub command: Command,
    pub answer: oneshot::Sender<Result<Done>>,
}

/// The control plane as this process sees it. Cheap to clone; the last one that goes stops what is behind it.
#[derive(Clone, Debug)]
pub struct Plane {
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<Arc<State>>,
    announced: Arc<watch::Sender<Option<GatewayInfo>>>,
}

/// What the keeper needs to know.
#[derive(Debug)]
pub struct KeeperOptions {
    pub cluster: ClusterId,
    /// Where the state lies.
    pub data: PathBuf,
    /// A state that is not there is begun anew.
    pub may_create: bool,
    /// The members as the cluster file names them, with start number 0.
    pub members: Vec<Command>,
}

/// What a follower needs to know.
#[derive(Debug)]
pub struct FollowerOptions {
    /// `None`: whatever cluster answers first.
    pub cluster: Option<ClusterId>,
    /// Who to ask, the first that answers.
    pub addresses: Vec<String>,
    /// Whether addresses that the state names may be asked, too (gateways; a node asks the keeper only).
    pub any_node: bool,
}

impl Plane {
    /// The plane of a node: keeper or follower, as its cluster file says. Blocks while the state is read.
    pub fn start(options: &crate::options::NodeOptions) -> Result<Self> {
        let file = &options.cluster;
        if !options.is_keeper() {
            return Self::follow(FollowerOptions {
                cluster: Some(file.cluster),
                addresses: vec![file.keeper().address.clone()],
                any_node: false,
            });
        }
        let member = |n: &crate::cluster_file::ClusterNode| Command::RegisterNode {
            node: n.id,
            name: n.name.clone(),
            address: n.address.clone(),
            workers: n.workers,
            start: freebs_types::StartNumber(0),
        };
        Self::keep(KeeperOptions {
            cluster: file.cluster,
            data: options.data.clone(),
            may_create: !file.set_up,
            members: file.nodes.iter().map(member).collect(),
        })
    }

    /// Keeps the state in a directory.
    pub fn keep(options: KeeperOptions) -> Result<Self> {
        let (jobs, work) = mpsc::channel(JOBS_MAX);
        let state = keeper::start(options, work)?;
        Ok(Self { jobs, state, announced: Arc::new(watch::channel(None).0) })
    }

    /// Follows whoever keeps the state. Until it was reached once, the state is empty and has revision 0.
    pub fn follow(options: FollowerOptions) -> Result<Self> {
        let (jobs, work) = mpsc::channel(JOBS_MAX);
        let (announced, announcements) = watch::channel(None);
        let state = follower::start(options, work, announcements)?;
        Ok(Self { jobs, state, announced: Arc::new(announced) })
    }

    /// The state once there is one.
    pub async fn ready(&self) -> Arc<State> {
        self.changed(0).await
    }

    /// A gateway says that it serves, now and on each later connection. (A node tells its own service.)
    pub fn announce(&self, me: GatewayInfo) {
        self.announced.send_replace(Some(me));
    }

    async fn visible(&self, revision: u64) {
        let mut state = self.state.clone();
        let seen = state.wait_for(|s| s.revision() >= revision);
        // Not seen in time: the command is durable all the same, and readers here lag.
        let _ = tokio::time::timeout(VISIBLE_MAX, seen).await;
    }

    /// Says that a node is there (rules W2, V8); asks again until the keeper has answered.
    pub async fn register(
        &self,
        me: &crate::cluster_file::ClusterNode,
        start: freebs_types::StartNumber,
    ) -> Result<()> {
        let node = Command::RegisterNode {
            node: me.id,
            name: me.name.clone(),
            address: me.address.clone(),
            workers: me.workers,
            start,
        };
        loop {
            match self.submit(node.clone()).await {
                Err(e) if e.kind == freebs_types::ErrorKind::Retry => {
                    tracing::debug!("not registered yet: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                // The keeper could not write its state (its disk is full, for one): that may pass.
                Err(e) if matches!(e.kind, freebs_types::ErrorKind::Os | freebs_types::ErrorKind::NoSpace) => {
                    tracing::warn!("not registered yet: {e}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                other => return other.map(|_| ()),
            }
        }
    }
}

impl ControlPlane for Plane {
    async fn submit(&self, command: Command) -> Result<Done> {
        let gone = || Error::retry("the control plane of this process has stopped");
        let (answer, answered) = oneshot::channel();
        self.jobs.send(Job { command, answer }).await.map_err(|_| gone())?;
        let done = answered.await.map_err(|_| gone())??;
        self.visible(done.revision).await;
        Ok(done)
    }

    fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        let mut state = self.state.clone();
        let found = state.wait_for(|s| s.revision() != since).await.map(|s| s.clone());
        match found {
            Ok(s) => s,
            // Whoever published the state has stopped with the process.
            Err(_) => std::future::pending().await,
        }
    }
}

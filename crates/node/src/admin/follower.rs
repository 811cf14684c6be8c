//! Following a node: a copy of the control state by long poll, and commands sent on to it. For gateways.
//!
//! Runs on a thread of its own with a small runtime, so that the threads of the data path never decode a page.

use super::client::Client;
use super::plane::{FollowerOptions, Job};
use crate::timing;
use freebs_agent::Following;
use freebs_control::api::{GatewayInfo, Reply, Request};
use freebs_control::{Done, State};
use freebs_types::{ClusterId, Error, ErrorKind, Result};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Commands on their way at once.
const FORWARDS_MAX: usize = 256;

struct Follower {
    options: FollowerOptions,
    state: State,
    shown: watch::Sender<Arc<State>>,
    connection: watch::Sender<Option<Client>>,
    announcements: watch::Receiver<Option<GatewayInfo>>,
    following: Following,
}

pub(super) fn start(
    options: FollowerOptions,
    work: mpsc::Receiver<Job>,
    announcements: watch::Receiver<Option<GatewayInfo>>,
) -> Result<watch::Receiver<Arc<State>>> {
    let state = State::new(options.cluster.unwrap_or_default());
    let (shown, seen) = watch::channel(Arc::new(state.clone()));
    let (connection, connected) = watch::channel(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::os(format!("can't start a runtime for the control plane: {e}")))?;
    let follower = Follower { options, state, shown, connection, announcements, following: Following::default() };
    let run = move || {
        runtime.block_on(async {
            let watching = tokio::spawn(follower.run());
            forward(work, connected).await;
            watching.abort();
        });
    };
    let thread = std::thread::Builder::new().name("control".into());
    thread.spawn(run).map_err(|e| Error::os(format!("can't start a thread for the control plane: {e}")))?;
    Ok(seen)
}

impl Follower {
    async fn run(mut self) {
        let mut complained = false;
        loop {
            match self.session().await {
                Err(e) if !complained => {
                    tracing::warn!("the control plane can't be followed: {e}");
                    complained = true;
                }
                Err(e) => tracing::debug!("the control plane can't be followed: {e}"),
                Ok(()) => complained = false,
            }
            self.connection.send_replace(None);
            tokio::time::sleep(timing::FOLLOW_AGAIN).await;
        }
    }

    /// One connection from its begin to its end. `Ok` if it served at all.
    async fn session(&mut self) -> Result<()> {
        let mut addresses = self.options.addresses.clone();
        let known: Vec<_> = self.state.nodes().map(|n| n.address.clone()).collect();
        addresses.extend(known.into_iter().filter(|a| !self.options.addresses.contains(a)));
        let in_turn: Vec<String> = self.following.order(addresses.len()).map(|i| addresses[i].clone()).collect();
        let client = Client::connect_any(&in_turn).await?;
        let at = addresses.iter().position(|a| a == client.address()).unwrap_or(0);
        self.following.follow(at, addresses.len());
        self.check_cluster(&client)?;
        let _announcing = AbortOnDrop(tokio::spawn(announce(client.clone(), self.announcements.clone())));
        self.connection.send_replace(Some(client.clone()));
        let mut served = false;
        loop {
            let request = Request::Watch { since: self.state.revision() };
            let answer = tokio::select! {
                answer = client.call(&request, timing::WATCH_MAX) => answer,
                e = silence(&client) => Err(e),
            };
            let page = match answer {
                Ok(Reply::Changes(page)) => page,
                Ok(_) => return Err(Error::corrupt("a watch was answered with something else")),
                Err(_) if served => return Ok(()),
                Err(e) => return Err(e),
            };
            Following::check(self.state.revision(), page.revision)
                .map_err(|e| e.at(format!("the control state at {}", client.address())))?;
            let more = page.more;
            self.state.take_in(page)?;
            served = true;
            if !more && self.shown.borrow().revision() != self.state.revision() {
                self.shown.send_replace(Arc::new(self.state.clone()));
            }
        }
    }

    fn check_cluster(&mut self, client: &Client) -> Result<()> {
        let theirs = client.welcome().cluster;
        if self.state.cluster() == ClusterId::default() {
            self.state = State::new(theirs);
        }
        if self.state.cluster() == theirs {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the node at {} is of the cluster {theirs}, and this process of {}; check the addresses",
            client.address(),
            self.state.cluster()
        )))
    }
}

/// Returns when a node has stopped to answer: a watch may wait for news for long, but a node that stands still must
/// not keep its followers.
async fn silence(client: &Client) -> Error {
    loop {
        tokio::time::sleep(timing::LISTEN_EVERY).await;
        if let Err(e) = client.call(&Request::NodeInfo, timing::SILENT_MAX).await {
            return e;
        }
    }
}

/// Tells a node of this gateway, as soon as there is something to tell, and at each change.
async fn announce(client: Client, mut announcements: watch::Receiver<Option<GatewayInfo>>) {
    loop {
        let me = announcements.borrow_and_update().clone();
        if let Some(me) = me
            && let Err(e) = client.call(&Request::Announce(me), timing::CONNECTED_MAX).await
        {
            tracing::warn!("{} does not list this gateway: {e}", client.address());
        }
        if announcements.changed().await.is_err() {
            return;
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends commands on until nobody can ask any more.
async fn forward(mut work: mpsc::Receiver<Job>, connected: watch::Receiver<Option<Client>>) {
    let slots = Arc::new(tokio::sync::Semaphore::new(FORWARDS_MAX));
    while let Some(job) = work.recv().await {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        let connected = connected.clone();
        tokio::spawn(async move {
            let result = send_on(&job, connected).await;
            let _ = job.answer.send(result);
            drop(slot);
        });
    }
}

async fn send_on(job: &Job, mut connected: watch::Receiver<Option<Client>>) -> Result<Done> {
    let nobody = || Error::retry("no node of the cluster can be reached");
    let waited = tokio::time::timeout(timing::CONNECTED_MAX, connected.wait_for(Option::is_some)).await;
    let client = waited.map_err(|_| nobody())?.map_err(|_| nobody())?.clone().ok_or_else(nobody)?;
    let request = Request::Submit { command: job.command.clone() };
    // The node that is followed is another one by now: this one may never answer.
    let left = connected.wait_for(|now| now.as_ref().is_none_or(|now| !now.is(&client)));
    let answer = tokio::select! {
        answer = client.call(&request, timing::COMMAND_MAX) => answer,
        _ = left => Err(Error::retry(format!("{} does not answer any more", client.address()))),
    };
    match answer? {
        Reply::Done(done) => Ok(done),
        _ => Err(Error { kind: ErrorKind::Retry, text: "a command was answered with something else".into() }),
    }
}

//! The control plane for the other threads: a seat runs in a thread of its own, and they talk to it through this.

use crate::peer::Peer;
use freebs_control::{Command, ControlPlane, Done, State};
use freebs_types::{Error, Result};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Commands that may wait for the seat's thread.
const QUEUE_MAX: usize = 1024;

type Request = (Command, oneshot::Sender<Result<Done>>);

/// A seat as other threads see it. Clones share it.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    state: watch::Receiver<Arc<State>>,
}

/// The seat's end of its handles, to be served in the seat's thread.
pub struct Desk {
    requests: mpsc::Receiver<Request>,
    state: watch::Sender<Arc<State>>,
}

/// A handle and its desk. Until the desk is served, commands wait, and the state is `state`.
#[must_use]
pub fn handle(state: Arc<State>) -> (Handle, Desk) {
    let (tx, rx) = mpsc::channel(QUEUE_MAX);
    let (published, watched) = watch::channel(state);
    (Handle { requests: tx, state: watched }, Desk { requests: rx, state: published })
}

fn stopped() -> Error {
    Error::retry("the control plane of this node does not run; try another node")
}

impl ControlPlane for Handle {
    async fn submit(&self, command: Command) -> Result<Done> {
        let (tx, rx) = oneshot::channel();
        self.requests.send((command, tx)).await.map_err(|_| stopped())?;
        let done = rx.await.map_err(|_| stopped())??;
        // Between the threads the state comes after the answer; whoever has the answer must see it.
        let mut state = self.state.clone();
        state.wait_for(|s| s.revision() >= done.revision).await.map_err(|_| stopped())?;
        Ok(done)
    }

    fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        let mut state = self.state.clone();
        let new = state.wait_for(|s| s.revision() != since).await.ok().map(|s| s.clone());
        match new {
            Some(new) => new,
            // The seat has stopped: nothing changes any more.
            None => std::future::pending().await,
        }
    }
}

impl Desk {
    /// Serves the handles until all are gone. On the seat's `LocalSet`.
    pub async fn serve(mut self, peer: Peer) {
        let mut state = peer.watch();
        let published = self.state;
        let publish = async move {
            loop {
                published.send_replace(state.now().clone());
                if !state.next().await {
                    std::future::pending::<()>().await;
                }
            }
        };
        let answer = async {
            while let Some((command, reply)) = self.requests.recv().await {
                let peer = peer.clone();
                peer.clone().spawn(async move {
                    // Who asked may have gone.
                    let _ = reply.send(peer.submit(command).await);
                });
            }
        };
        futures_util::future::select(std::pin::pin!(publish), std::pin::pin!(answer)).await;
    }
}

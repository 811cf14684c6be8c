//! A worker as a member of chains: what it hears of the control state, and whom it dials.

use crate::dial::Dialler;
use crate::shards::{News, Shards};
use crate::volumes::workers_of;
use freebs_chain::{ControlPort, Worker};
use freebs_control::State;
use freebs_format::wire::Message;
use freebs_io::{Clock, Device, Outbox};
use freebs_types::{Nanos, Peer, ShardId, ViewNumber};
use std::sync::Arc;

/// One worker's knowledge of the control state, and the links that it opens.
pub struct Membership {
    shards: Shards,
    known: Arc<State>,
    /// Its links to other members.
    pub dialler: Dialler,
}

impl Membership {
    /// For the worker `me` of a node that has so many `workers`, which has been told nothing of the state that is `known`.
    #[must_use]
    pub fn new(me: Peer, workers: u16, known: Arc<State>) -> Self {
        Self { shards: Shards::new(me, workers), known, dialler: Dialler::new(me) }
    }

    /// Tells the worker all that is new for it in a control state, and returns the shards that it is to leave by that, each with
    /// the view that is active in that state.
    pub fn tell<D, O, P, K>(
        &mut self,
        now: Nanos,
        state: &Arc<State>,
        worker: &Worker<D, O, P, K>,
    ) -> Vec<(ShardId, ViewNumber)>
    where
        D: Device,
        O: Outbox<Message>,
        P: ControlPort,
        K: Clock,
    {
        worker.on_workers(workers_of(state));
        let News { left, gone, changed } = self.shards.on_state(state, &worker.shards(), &worker.left_shards());
        worker.on_state(changed, &left, &gone);
        self.dialler.want(now, &worker.wanted_peers());
        self.dialler.hear_of(now, &state.nodes_renewed_since(&self.known));
        self.known = state.clone();
        left
    }
}

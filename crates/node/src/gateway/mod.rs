//! NBD for clients: listens, shakes hands, and hands each connection to its volume's worker at GO.
//!
//! Invariants: a connection gets its volume attached before it is told that it may use it; a client has
//! `timing::HANDSHAKE_LIMIT` for its handshake; there are at most `CONNECTIONS_MAX` of them and of connections in use,
//! and no handshake keeps a new client out.

pub mod asked;
mod handshake;

pub use handshake::{open, open_past};

use crate::admin::{FollowerOptions, Plane};
use crate::cli::signals::Stop;
use crate::options::{GatewayOptions, NbdAddress, host_name};
use crate::places::Places;
use crate::runtime::{Command, WorkerSpec, block_on, pass_on_state, start_worker, stop_workers};
use crate::supervised;
use crate::timing;
use asked::Me;
use freebs_control::api::GatewayInfo;
use freebs_control::{ControlPlane, Volume};
use freebs_io::linux::net::{Address, Listener};
use freebs_types::{Error, NodeId, Peer, Result, VolumeId};
use handshake::{Times, shake_hands};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

#[cfg(test)]
mod tests;

/// Runs a gateway until it is told to stop: drivers and NBD, no data.
pub fn run_gateway(options: GatewayOptions) -> Result<()> {
    block_on(gateway(options))
}

async fn gateway(options: GatewayOptions) -> Result<()> {
    let mut stop = Stop::new()?;
    let nbd = options.nbd.clone();
    let plane = Plane::follow(FollowerOptions { cluster: options.cluster_id, addresses: options.cluster.clone() })?;
    let control = Arc::new(plane.clone());
    // Until a node answers there is nothing to serve, not even a cluster to belong to.
    let state = tokio::select! {
        state = plane.ready() => state,
        () = stop.wait() => return Ok(()),
    };
    let spec = WorkerSpec {
        cluster: state.cluster(),
        me: Peer { node: NodeId(0), worker: 0 },
        workers: 1,
        identity: options.identity,
        name: options.name.clone(),
        control: control.clone(),
        disk: None,
        busy_poll: options.busy_poll,
    };
    let handle = start_worker(spec).await?;
    let workers = Workers { node: NodeId(0), commands: vec![handle.commands.clone()] };
    pass_on_state(control.clone(), workers.clone());
    let me = Me { cluster: state.cluster(), name: options.name.clone() };
    serve(me, nbd.clone(), control, workers, options.attach_wait).await?;
    plane.announce(gateway_info(options.name.clone(), &nbd));
    tracing::info!(gateway = options.name, %nbd, "up");
    supervised::is_up();
    stop.wait().await;
    stop_workers(&[handle]).await;
    tracing::info!(gateway = options.name, "stopped");
    Ok(())
}

/// Clients that shake hands at the same time, those not counted that wait for their volumes.
const HANDSHAKES_MAX: usize = 256;
/// Clients in all. One more is let go at once, so that those who are served keep memory and file descriptors.
const CONNECTIONS_MAX: usize = 1024;

/// The workers that volumes are served by.
#[derive(Clone)]
pub struct Workers {
    /// 0 for a gateway.
    pub node: NodeId,
    pub commands: Vec<mpsc::UnboundedSender<Command>>,
}

impl Workers {
    /// The worker of a volume: that of its first shard, so that a volume of one shard needs no hop.
    fn of(&self, volume: &Volume) -> &mpsc::UnboundedSender<Command> {
        let peer = Peer::of(self.node, volume.shard_id(0), self.commands.len() as u16);
        &self.commands[usize::from(peer.worker)]
    }
}

/// The volume, which a node knows already; `None` if it is not heard of here in time.
pub async fn heard_of<C: ControlPlane>(control: &C, id: VolumeId) -> Option<Arc<Volume>> {
    let heard = async {
        let mut state = control.state();
        loop {
            if let Some(volume) = state.volume(id) {
                return volume.clone();
            }
            state = control.changed(state.revision()).await;
        }
    };
    tokio::time::timeout(timing::HEARD_OF_MAX, heard).await.ok()
}

/// This process as nodes are told of it.
pub fn gateway_info(name: String, nbd: &NbdAddress) -> GatewayInfo {
    GatewayInfo { name, pid: std::process::id(), nbd: nbd.to_string(), host: host_name() }
}

/// Serves NBD, and commands of this host, until the task is dropped. A client whose volume can't be used is told so after
/// `attach_wait`.
pub async fn serve<C: ControlPlane>(
    me: Me,
    address: NbdAddress,
    control: Arc<C>,
    workers: Workers,
    attach_wait: Duration,
) -> Result<()> {
    let at = match &address {
        NbdAddress::Tcp(a) => Address::Tcp(a.to_string()),
        NbdAddress::Unix(p) => Address::Unix(p.clone()),
    };
    let listener = Listener::bind(&at).await.map_err(|e| e.at("NBD (choose another address with --nbd)"))?;
    let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach: attach_wait };
    let places = Places::new(HANDSHAKES_MAX, CONNECTIONS_MAX);
    asked::serve(me, address, control.clone(), workers.clone());
    tokio::task::spawn_local(accept_all(listener, control, workers, places, times));
    Ok(())
}

async fn accept_all<C: ControlPlane>(
    listener: Listener,
    control: Arc<C>,
    workers: Workers,
    places: Rc<Places>,
    times: Times,
) {
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(e) => {
                tracing::warn!("{e}");
                tokio::time::sleep(timing::ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((place, handshake)) = places.take().await else {
            tracing::warn!("an NBD client was turned away: all places are taken");
            continue;
        };
        let (control, workers) = (control.clone(), workers.clone());
        tokio::task::spawn_local(async move {
            let end = tokio::select! {
                // First, so that a place that was promised to another client is free at once.
                biased;
                () = handshake.gives_way() => Err(Error::retry("its handshake gave way to a new client")),
                end = shake_hands(stream, place, &handshake, &*control, &workers, times) => end,
            };
            if let Err(e) = end {
                tracing::debug!("an NBD client left: {e}");
            }
        });
    }
}

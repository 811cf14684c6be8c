//! NBD for clients: listens, shakes hands, and hands each connection to its volume's worker at GO.
//!
//! Invariants: a connection gets its volume attached before it is told that it may use it; a handshake has
//! `timing::HANDSHAKE_LIMIT`; there are at most `CONNECTIONS_MAX` of them and of connections in use.

use crate::admin::{FollowerOptions, Plane};
use crate::cli::signals::Stop;
use crate::options::{GatewayOptions, NbdAddress};
use crate::runtime::{Command, WorkerSpec, block_on, pass_on_state, start_worker, stop_workers};
use crate::timing;
use bytes::{Buf, BytesMut};
use freebs_control::api::GatewayInfo;
use freebs_control::{ControlPlane, State, Volume};
use freebs_io::linux::net::{Address, Listener, Stream};
use freebs_nbd::{Event, ExportInfo, Limits, Purpose, Refusal, RefusalReason, Session, Step, Wait, default_export};
use freebs_types::{Error, Generation, NodeId, Peer, Result, VolumeId};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

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
    serve(nbd.clone(), control, workers).await?;
    plane.announce(GatewayInfo { name: options.name.clone(), pid: std::process::id(), nbd: nbd.to_string() });
    tracing::info!(gateway = options.name, %nbd, "up");
    stop.wait().await;
    stop_workers(vec![handle]).await;
    tracing::info!(gateway = options.name, "stopped");
    Ok(())
}

/// Clients that shake hands at the same time.
const HANDSHAKES_MAX: usize = 256;
/// Clients in all. One more is let go at once, so that those who are served keep memory and file descriptors.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes read at a time before GO.
const READ_BYTES: usize = 16 << 10;

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

/// Serves NBD until the task is dropped.
pub async fn serve<C: ControlPlane>(address: NbdAddress, control: Arc<C>, workers: Workers) -> Result<()> {
    let at = match &address {
        NbdAddress::Tcp(a) => Address::Tcp(a.to_string()),
        NbdAddress::Unix(p) => Address::Unix(p.clone()),
    };
    let listener = Listener::bind(&at).await.map_err(|e| e.at("NBD (choose another address with --nbd)"))?;
    tokio::task::spawn_local(accept_all(listener, control, workers));
    Ok(())
}

async fn accept_all<C: ControlPlane>(listener: Listener, control: Arc<C>, workers: Workers) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(shaking) = handshakes.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let Ok(place) = connections.clone().try_acquire_owned() else {
                    tracing::warn!("an NBD client was turned away: {CONNECTIONS_MAX} are connected");
                    continue;
                };
                let (control, workers) = (control.clone(), workers.clone());
                tokio::task::spawn_local(async move {
                    let _shaking = shaking;
                    if let Err(e) = shake_hands(stream, place, &*control, &workers).await {
                        tracing::debug!("an NBD client left: {e}");
                    }
                });
            }
            Err(e) => {
                tracing::warn!("{e}");
                tokio::time::sleep(timing::ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A volume that was attached for this connection, until it is handed on.
struct Opened {
    volume: VolumeId,
    generation: Generation,
    worker: mpsc::UnboundedSender<Command>,
    handed_on: bool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.handed_on {
            let _ = self.worker.send(Command::Release { volume: self.volume, generation: self.generation });
        }
    }
}

struct Shaking<'a, C> {
    stream: Stream,
    place: OwnedSemaphorePermit,
    session: Session,
    input: BytesMut,
    control: &'a C,
    workers: &'a Workers,
    opened: Option<Opened>,
}

async fn shake_hands<C: ControlPlane>(
    stream: Stream,
    place: OwnedSemaphorePermit,
    control: &C,
    workers: &Workers,
) -> Result<()> {
    if let Stream::Tcp(s) = &stream {
        let _ = s.set_nodelay(true);
    }
    let shaking = Shaking {
        stream,
        place,
        session: Session::new(Limits::default()),
        input: BytesMut::new(),
        control,
        workers,
        opened: None,
    };
    let limit = timing::HANDSHAKE_LIMIT + timing::OPEN_LIMIT;
    tokio::time::timeout(limit, shaking.run())
        .await
        .unwrap_or_else(|_| Err(Error::retry("the handshake took too long")))
}

impl<C: ControlPlane> Shaking<'_, C> {
    async fn run(mut self) -> Result<()> {
        loop {
            let step = self.session.receive(&mut self.input);
            let step = match step {
                Ok(s) => s,
                Err(e) => {
                    self.send().await?;
                    return Err(Error::corrupt(e.to_string()));
                }
            };
            match step {
                Step::Event(Event::Lookup { name, purpose }) => self.look_up(&name, purpose).await?,
                Step::Event(Event::List) => self.list(),
                Step::Event(Event::Go { name }) => return self.hand_over(&name).await,
                Step::Event(Event::Disconnect) => {
                    self.send().await?;
                    return Ok(());
                }
                Step::Event(Event::Request { .. }) => return Err(Error::bug("a request before GO")),
                Step::Wait(Wait::Bytes(n)) => {
                    self.send().await?;
                    self.read(n).await?;
                }
                // Nothing more is looked at until the replies so far are sent, and then it goes on.
                Step::Wait(Wait::Window) => self.send().await?,
                Step::Wait(Wait::Answer) => return Err(Error::bug("a question to the gateway was not answered")),
                Step::Wait(Wait::Closed) => {
                    self.send().await?;
                    return Ok(());
                }
            }
        }
    }

    async fn send(&mut self) -> Result<()> {
        let output = self.session.output();
        while output.has_remaining() {
            let sent = match &mut self.stream {
                Stream::Tcp(s) => s.write_buf(output).await,
                Stream::Unix(s) => s.write_buf(output).await,
            };
            sent.map_err(|e| Error::retry(format!("the connection broke: {e}")))?;
        }
        Ok(())
    }

    async fn read(&mut self, wanted: usize) -> Result<()> {
        self.input.reserve(wanted.max(READ_BYTES));
        let read = async {
            match &mut self.stream {
                Stream::Tcp(s) => s.read_buf(&mut self.input).await,
                Stream::Unix(s) => s.read_buf(&mut self.input).await,
            }
        };
        match tokio::time::timeout(timing::HANDSHAKE_LIMIT, read).await {
            Ok(Ok(0)) => Err(Error::retry("the client closed the connection")),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(Error::retry(format!("the connection broke: {e}"))),
            Err(_) => Err(Error::retry("the client said nothing")),
        }
    }

    fn list(&mut self) {
        let state = self.control.state();
        self.session.list(state.volumes().map(|v| (v.name.as_str(), "")));
    }

    async fn look_up(&mut self, name: &str, purpose: Purpose) -> Result<()> {
        let state = self.control.state();
        let Some(volume) = find(&state, name) else {
            let text = if name.is_empty() {
                "name a volume: there is not exactly one; see `freebs volume list`".to_string()
            } else {
                format!("there is no volume {name}; see `freebs volume list`")
            };
            self.session.export(Err(Refusal::new(RefusalReason::Unknown, text)));
            return Ok(());
        };
        let info = ExportInfo {
            name: volume.name.clone(),
            description: String::new(),
            size: volume.size,
            read_only: false,
            multi_conn: true,
        };
        let is_open = self.opened.as_ref().is_some_and(|o| o.volume == volume.id);
        if matches!(purpose, Purpose::Go | Purpose::ExportName) && !is_open {
            self.opened = None;
            let worker = self.workers.of(&volume).clone();
            match self.unless_gone(open(&worker, volume.id)).await? {
                Ok(generation) => {
                    self.opened = Some(Opened { volume: volume.id, generation, worker, handed_on: false });
                }
                Err(e) => {
                    tracing::warn!("volume {}: not attached: {e}", volume.name);
                    self.session.export(Err(Refusal::new(RefusalReason::Policy, e.text)));
                    return Ok(());
                }
            }
        }
        self.session.export(Ok(info));
        Ok(())
    }

    /// Waits, as long as the client does. One that gave up must not hold a place until the volume can be attached:
    /// clients that try again and again would leave none for those of other volumes.
    async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(timing::CLIENT_GONE_LOOK) => {}
            }
            let ready = match &self.stream {
                Stream::Tcp(s) => tokio::time::timeout(Duration::ZERO, s.ready(Interest::READABLE)).await,
                Stream::Unix(s) => tokio::time::timeout(Duration::ZERO, s.ready(Interest::READABLE)).await,
            };
            if ready.is_ok_and(|r| r.is_ok_and(|r| r.is_read_closed())) {
                return Err(Error::retry("the client gave up before its volume was attached"));
            }
        }
    }

    /// Transmission begins: from here on the connection is its worker's.
    async fn hand_over(mut self, name: &str) -> Result<()> {
        let mut opened = self.opened.take().ok_or_else(|| Error::bug(format!("{name} was not attached before GO")))?;
        let stream = self.stream.loosen()?;
        let command = Command::Nbd {
            volume: opened.volume,
            generation: opened.generation,
            place: self.place,
            stream,
            session: Box::new(self.session),
            input: self.input,
        };
        // The count that `opened` holds is the connection's from now on.
        opened.handed_on = true;
        opened.worker.send(command).map_err(|_| Error::retry("this process is stopping"))
    }
}

fn find(state: &State, name: &str) -> Option<Arc<Volume>> {
    if name.is_empty() { default_export(state.volumes()).cloned() } else { state.volume_by_name(name).cloned() }
}

async fn open(worker: &mpsc::UnboundedSender<Command>, volume: VolumeId) -> Result<Generation> {
    let (reply, answer) = oneshot::channel();
    let stopping = || Error::retry("this process is stopping");
    worker.send(Command::Open { volume, reply }).map_err(|_| stopping())?;
    match tokio::time::timeout(timing::OPEN_LIMIT, answer).await {
        Ok(result) => result.map_err(|_| stopping())?,
        Err(_) => Err(Error::retry("the volume could not be attached in time; see `freebs status`")),
    }
}

//! One node: its control plane, its workers, its listeners, from start to a clean stop.

use super::greet::{Greeted, accept};
use super::membership::Membership;
use super::thread::{Command, Disk, OpenWorker, WorkerHandle, WorkerSpec, open_worker};
use crate::admin::{LocalFuture, LocalNode, Me, Plane, SeatOptions, Service, hear_seat, schedules, serve, turn_away};
use crate::cli::signals::{self, Stop};
use crate::conn::{self, Knocks, May};
use crate::events::EventLog;
use crate::gateway::{self, Workers};
use crate::options::{NodeOptions, bind_error};
use crate::places::Places;
use crate::timing;
use crate::{headroom, identity};
use freebs_agent::{Begun, CameWith, TakenIn, highest_start, log_status};
use freebs_chain::{IntervalAsk, IntervalWord, ShardStatus as ChainStatus};
use freebs_control::api::{
    IntervalAnswer, IntervalQuestion, MemberState, PastReport, ReadsFrom, ShardDigest, ShardStatus,
};
use freebs_control::audit::{AuditOf, AuditState};
use freebs_control::events::{EventKind, Told};
use freebs_control::{ControlPlane, State};
use freebs_format::IntervalId;
use freebs_format::disk::{HOST_KEY_BYTES, HostKeyFile, SUPERBLOCK_AT, SUPERBLOCK_BYTES};
use freebs_format::wire::{Role, Welcome};
use freebs_io::Random;
use freebs_io::linux::{OsRandom, Poison, Pulse};
use freebs_secrets::HostKey;
use freebs_types::{
    ClusterId, DriverId, Error, ErrorKind, Hash32, HostPublic, IntervalNumber, NodeId, Peer, Result, ShardId,
    StartNumber, VolumeId, limits,
};
use std::cell::OnceCell;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

/// The file beside the log from which the secrets of views are derived that have no slices.
const SECRET_FILE: &str = "view-secret";
/// The file beside the log with the key pair that slices are sealed for.
const HOST_KEY_FILE: &str = "host-key";

/// Connections that have not said who they are; the oldest gives way to a new one.
const GREETINGS_MAX: usize = 256;
/// Connections to the control API.
const CONTROL_CLIENTS_MAX: usize = 2048;
/// Connections of nodes that have no certificate yet: strangers may take them all, and no member is kept out by that.
const JOINERS_MAX: usize = 16;
/// Connections from other nodes' seats.
const SEATS_MAX: usize = 2 * limits::NODES_MAX;

/// Runs a node until it is told to stop.
pub fn run_node(options: NodeOptions) -> Result<()> {
    super::block_on(node(options))
}

async fn node(options: NodeOptions) -> Result<()> {
    let mut stop = Stop::new()?;
    let me = options.me().clone();
    let listen = options.listen.to_string();
    let listener = TcpListener::bind(options.listen).await.map_err(|e| bind_error("node", &listen, "--listen", &e))?;
    if let Some(identity) = identity::of_node(&options.cluster, me.id, &options.data)? {
        conn::speak_as(identity);
    }
    let events = EventLog::open(&options.data, &me.name);
    let membership = Membership::of(&options)?;
    let seat = seat_options(&options, &membership, events.clone())?;
    let was_in_use = seat.was_in_use || seat.came_with.0 > 0;
    let (pulse, plane) = (seat.pulse.clone(), Plane::seat(seat).await?);
    membership.begin(&plane)?;
    let door = Rc::new(Door::new(plane.clone(), me.name.clone(), was_in_use, events.clone()));
    // The others need this node's seat as much as it needs theirs, and long before its devices are recovered.
    let inside = door.clone();
    tokio::task::spawn_local(accept(listener, Places::new(GREETINGS_MAX, Semaphore::MAX_PERMITS), move |greeted| {
        let door = inside.clone();
        async move {
            match greeted {
                Ok(greeted) => route(greeted, &door).await,
                Err(refused) => Err(door.refuse(&refused.who, Error::invalid(refused.why))),
            }
        }
    }));
    // A stop need not wait for a recovery, which changes nothing that the next one would miss.
    let mut handles = tokio::select! {
        handles = start_workers(&options, &membership, (&plane, &pulse), &events) => handles?,
        e = told_old(&plane, &events, &me.name) => return Err(e),
        () = stop.wait() => return Ok(()),
    };
    let begun = handles.begun;
    plane.started(begun.start()).await;
    let workers = Workers { node: me.id, commands: handles.workers.iter().map(|h| h.commands.clone()).collect() };
    let service = service(&options, begun, &plane, &workers, &events);
    tokio::task::spawn_local(schedules::keep(Arc::downgrade(&service)));
    door.open(service.clone(), workers.clone());
    let key = handles.host_key;
    let mut ended = tokio::select! {
        registered = plane.register(&me, begun, key) => match registered {
            Ok(taken_in) => {
                membership.taken_in();
                let taken_in = door.taken_in.get_or_init(|| taken_in);
                serve_all(&options, plane.clone(), &service, workers, taken_in).await.map(|()| false)
            }
            Err(e) => Err(e.at("this node was not taken in by the control plane")),
        },
        e = plane.is_old() => Err(e),
        () = stop.wait() => Ok(true),
    };
    let mut told = signals::Told::StopWithAll;
    if let Ok(false) = ended {
        tracing::info!(node = me.name, %listen, "up");
        tokio::task::spawn_local(keep_headroom(options.data.clone()));
        (told, ended) = until_ended(&mut stop, (&membership, &plane), &mut handles.workers).await;
    }
    tell_of_end(&events, &me.name, &ended);
    end_when_told_again(stop);
    if told == signals::Told::Stop {
        hand_over(&service).await;
    }
    stop_workers(&handles.workers).await;
    tracing::info!(node = me.name, "stopped");
    ended.map(|_| ())
}

/// Waits until the others have said that this node is old, and says so where its end is looked for.
async fn told_old(plane: &Plane, events: &EventLog, name: &str) -> Error {
    let e = plane.is_old().await;
    tell_of_end(events, name, &Err(e.clone()));
    e
}

/// The node's control API.
fn service(
    options: &NodeOptions,
    begun: Begun,
    plane: &Plane,
    workers: &Workers,
    events: &Arc<EventLog>,
) -> Arc<Service> {
    let me = options.me();
    let me = Me {
        cluster: options.cluster.cluster,
        id: me.id,
        name: me.name.clone(),
        address: me.address.clone(),
        start: begun.start(),
        workers: options.workers,
    };
    let local = Arc::new(Local { workers: workers.clone() });
    let service = Service::new(me, plane.clone(), local, events.clone());
    service.certify_from(options.data.clone());
    service
}

/// Waits until the node is told to stop, or has to.
async fn until_ended(
    stop: &mut Stop,
    (membership, plane): (&Membership, &Plane),
    workers: &mut [WorkerHandle],
) -> (signals::Told, Result<bool>) {
    tokio::select! {
        told = stop.told() => (told, Ok(false)),
        e = plane.is_old() => (signals::Told::StopWithAll, Err(e)),
        e = contradiction(membership, plane) => (signals::Told::StopWithAll, Err(e)),
        // Other members can't tell a log that does nothing from one that is slow; a node that is gone, they can. And a log
        // that is opened again is read anew.
        e = out_of_use(workers) => (signals::Told::Stop, Err(e)),
    }
}

/// Waits until the log of any worker is of no use before it is started anew.
async fn out_of_use(workers: &mut [WorkerHandle]) -> Error {
    let mut failures: JoinSet<Option<(usize, Error)>> = JoinSet::new();
    for (worker, handle) in workers.iter_mut().enumerate() {
        let (_, none) = oneshot::channel();
        let failed = std::mem::replace(&mut handle.failed, none);
        failures.spawn_local(async move { failed.await.ok().map(|e| (worker, e)) });
    }
    while let Some(ended) = failures.join_next().await {
        if let Ok(Some((worker, e))) = ended {
            let text = format!("the log of worker {worker} can't go on as it is: {e}");
            return Error { kind: e.kind, text: text.into() };
        }
    }
    std::future::pending().await
}

fn tell_of_end(events: &EventLog, name: &str, ended: &Result<bool>) {
    let text = ended.as_ref().err().map_or_else(|| "is being stopped".to_owned(), |e| format!("ends: {e}"));
    events.tell(Told::new(EventKind::Node, text).about(name.to_owned()));
    if let Err(e) = ended {
        end_in_time(e.to_string());
    }
}

/// The process ends soon, whatever its threads wait for: a device that is out of use may answer none of them, and others wait
/// for this node until its links are closed.
fn end_in_time(why: String) {
    std::thread::spawn(move || {
        std::thread::sleep(timing::FAILED_NODE_ENDS);
        tracing::error!("this node ends at once: {why}");
        std::process::exit(1);
    });
}

/// From now on another signal ends the process where it stands, as a kill does: nothing relies on a clean end.
fn end_when_told_again(mut stop: Stop) {
    tokio::task::spawn_local(async move {
        stop.wait().await;
        tracing::warn!("told to stop again: this node ends at once");
        std::process::exit(1);
    });
}

/// Gives other members the time to become heads in this node's place, and says what comes of it.
async fn hand_over(service: &Service) {
    let (heads, begun) = (service.heads(), std::time::Instant::now());
    if heads == 0 {
        return;
    }
    tracing::info!(heads, "told to stop: other nodes become heads first (told again, this node ends at once)");
    match tokio::time::timeout(timing::HAND_OVER_MAX, service.hand_over()).await {
        Ok(Ok(0)) => tracing::warn!("no head was handed over: too few other members are there"),
        Ok(Ok(moved)) => {
            let kept = heads.saturating_sub(moved);
            let ms = begun.elapsed().as_millis() as u64;
            tracing::info!(moved, kept, ms, "heads were handed over");
        }
        Ok(Err(e)) => tracing::warn!("heads were not handed over: {e}"),
        Err(_) => tracing::warn!("heads were not handed over within {} s", timing::HAND_OVER_MAX.as_secs()),
    }
}

/// What the node's seat in the control plane is told.
fn seat_options(options: &NodeOptions, membership: &Membership, events: Arc<EventLog>) -> Result<SeatOptions> {
    let member = |n: &crate::cluster_file::ClusterNode| freebs_control::Command::RegisterNode {
        node: n.id,
        name: n.name.clone(),
        address: n.address.clone(),
        workers: n.workers,
        start: StartNumber(0),
    };
    let cluster = &options.cluster;
    Ok(SeatOptions {
        cluster: cluster.cluster,
        node: options.node,
        data: options.data.clone(),
        members: cluster.nodes.iter().map(member).collect(),
        peers: cluster.peers.iter().map(|p| (p.id, p.address.clone())).collect(),
        authority: membership.authority(),
        founder: options.is_founder(),
        is_alone: !options.cluster.can_be_without(),
        was_in_use: options.cluster.set_up && !options.cluster.came_later.contains(&options.node),
        came_with: came_with(options)?,
        events,
        replace_after: options.replace_after,
        pulse: Pulse::default(),
    })
}

/// The number that this node's devices come with, before they are opened.
fn came_with(options: &NodeOptions) -> Result<StartNumber> {
    let mut copies = Vec::new();
    for worker in 0..options.workers {
        let path = device_path(options, worker);
        let failed = |e: &std::io::Error| crate::files::os_error("read", &path, e);
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed(&e)),
        };
        for at in SUPERBLOCK_AT {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            if file.read_exact_at(&mut bytes, at).is_ok() {
                copies.push(bytes);
            }
        }
    }
    Ok(highest_start(copies))
}

fn device_path(options: &NodeOptions, worker: u16) -> PathBuf {
    options.data.join(format!("log-{worker}.freebs"))
}

/// All workers of a node, and the number of this start.
struct Started {
    begun: Begun,
    host_key: HostPublic,
    workers: Vec<WorkerHandle>,
}

/// Recovers all devices, and starts their workers once the control plane has said that no device is an old image
/// (rule V8). All get the same start number, because a node registers one.
async fn start_workers(
    options: &NodeOptions,
    membership: &Membership,
    (plane, pulse): (&Plane, &Pulse),
    events: &Arc<EventLog>,
) -> Result<Started> {
    let me = options.me();
    let control = Arc::new(plane.clone());
    let secret = node_secret(&options.data)?;
    let host_key = host_key(&options.data, options.cluster.cluster, me.id)?;
    let was_there = options.cluster.set_up && !options.cluster.came_later.contains(&me.id);
    let ran_before = was_there || plane.state().node(me.id).is_some_and(|n| n.start.0 > 0);
    // All workers' devices are on one disk: when a write fails there, none of them is believed any more.
    let poison = Poison::new();
    let mut open: Vec<OpenWorker> = Vec::new();
    for worker in 0..options.workers {
        let disk = Disk {
            path: device_path(options, worker),
            segment_bytes: options.segment_bytes,
            size_limit: options.device_bytes / u64::from(options.workers),
            must_exist: ran_before,
            node_secret: secret,
            host_key: host_key.clone(),
            scrub_bytes: options.scrub_bytes.div_ceil(u64::from(options.workers)),
            map_bytes: options.map_bytes,
            events: events.clone(),
            pulse: pulse.clone(),
            poison: poison.clone(),
        };
        let spec = WorkerSpec {
            cluster: options.cluster.cluster,
            me: Peer { node: me.id, worker },
            workers: options.workers,
            identity: Hash32(*blake3::hash(format!("node {}", me.id).as_bytes()).as_bytes()),
            name: me.name.clone(),
            control: control.clone(),
            disk: Some(disk),
            busy_poll: options.busy_poll,
        };
        open.push(open_worker(spec).await?);
    }
    let came_with = CameWith::new(me.id, open.iter().map(|w| w.came_with).collect());
    came_with.check(&plane.state())?;
    let known = tokio::select! {
        known = known_state(plane) => known?,
        e = contradiction(membership, plane) => return Err(e),
    };
    membership.check_newest(&known)?;
    let numbered = came_with.number(&known)?;
    let mut workers = Vec::new();
    for (worker, w) in open.into_iter().enumerate() {
        let handle = w.start(numbered.start()).await?;
        tell_of_recovery(worker, &handle);
        workers.push(handle);
    }
    Ok(Started { begun: numbered.written(), host_key: host_key.public(), workers })
}

/// Waits until a control state says something else of this node than its files do. Where these keep the others from hearing it, it
/// would wait for them for ever.
async fn contradiction(membership: &Membership, plane: &Plane) -> Error {
    let mut state = plane.ready().await;
    loop {
        if let Err(e) = membership.check(&state) {
            return e;
        }
        state = plane.changed(state.revision()).await;
    }
}

/// The control state with everything in it that is committed by now: what this node has of it may be old.
async fn known_state(plane: &Plane) -> Result<Arc<State>> {
    let state = plane.newest();
    let mut state = std::pin::pin!(state);
    match tokio::time::timeout(timing::CONTROL_PATIENCE, &mut state).await {
        Ok(state) => state,
        Err(_) => {
            tracing::warn!(
                "this node waits for a leader of the control plane, to be told that its devices are new; one comes by \
                 itself while most voters run"
            );
            state.await
        }
    }
}

/// What a node that was taken in does beside answering for the control plane.
async fn serve_all(
    options: &NodeOptions,
    plane: Plane,
    service: &Service,
    workers: Workers,
    _: &TakenIn,
) -> Result<()> {
    plane.taken_in().await;
    let control = Arc::new(plane);
    pass_on_state(control.clone(), workers.clone());
    if let Some(nbd) = &options.nbd {
        let (me, name) = (service.me(), options.me().name.clone());
        let me = gateway::asked::Me { cluster: me.cluster, name: name.clone() };
        gateway::serve(me, nbd.clone(), control, workers, options.attach_wait).await?;
        service.announce_self(gateway::gateway_info(name, nbd));
    }
    Ok(())
}

fn tell_of_recovery(worker: usize, handle: &WorkerHandle) {
    let Some(r) = &handle.report else { return };
    tracing::info!(
        worker,
        start = r.start.0,
        shards = r.shards,
        frames = r.frames,
        segments = r.segments,
        torn_bytes = r.torn_bytes,
        damage = r.damage.len(),
        "recovered"
    );
}

/// Tells workers the control state, and from then on every change of it.
pub fn pass_on_state<C: ControlPlane>(control: Arc<C>, workers: Workers) {
    let tell = move |state: &Arc<State>| {
        for w in &workers.commands {
            let _ = w.send(Command::State(state.clone()));
        }
    };
    let mut state = control.state();
    tell(&state);
    tokio::task::spawn_local(async move {
        loop {
            state = control.changed(state.revision()).await;
            tell(&state);
        }
    });
}

/// Ends workers in good order, and waits for their threads a while.
pub async fn stop_workers(handles: &[WorkerHandle]) {
    let mut done = Vec::new();
    for h in handles {
        let (reply, stopped) = oneshot::channel();
        let _ = h.commands.send(Command::Stop { reply });
        done.push(stopped);
    }
    for d in done {
        let _ = tokio::time::timeout(timing::WORKER_STOP_MAX, d).await;
    }
}

/// What connections are brought to: the seat from the beginning, all else when it is there.
struct Door {
    plane: Plane,
    name: String,
    /// The node ran before: its cluster has a control state.
    was_in_use: bool,
    events: Arc<EventLog>,
    knocks: Knocks,
    inside: OnceCell<(Arc<Service>, Workers)>,
    taken_in: OnceCell<TakenIn>,
    clients: Arc<Semaphore>,
    joiners: Arc<Semaphore>,
    seats: Arc<Semaphore>,
}

impl Door {
    fn new(plane: Plane, name: String, was_in_use: bool, events: Arc<EventLog>) -> Self {
        Self {
            plane,
            name,
            was_in_use,
            events,
            knocks: Knocks::default(),
            inside: OnceCell::new(),
            taken_in: OnceCell::new(),
            clients: Arc::new(Semaphore::new(CONTROL_CLIENTS_MAX)),
            joiners: Arc::new(Semaphore::new(JOINERS_MAX)),
            seats: Arc::new(Semaphore::new(SEATS_MAX)),
        }
    }

    /// Why nothing can be answered here yet.
    fn not_yet(&self) -> Error {
        let knows_nothing = self.plane.state().nodes().next().is_none();
        not_yet(&self.name, knows_nothing, self.was_in_use)
    }

    /// Tells of somebody who may not come in, as far as it is not too often.
    fn refuse(&self, who: &str, why: Error) -> Error {
        if let Some(text) = self.knocks.refused(who, &why) {
            tracing::warn!("{text}");
            self.events.tell(Told::new(EventKind::Node, text).about(self.name.clone()));
        }
        why
    }

    fn open(&self, service: Arc<Service>, workers: Workers) {
        let _ = self.inside.set((service, workers));
    }
}

/// The words of a node that was not taken in yet. One that ran before and knows no control state waits for others that do;
/// if there is none, it waits for ever.
pub fn not_yet(name: &str, knows_nothing: bool, was_in_use: bool) -> Error {
    Error::retry(match (knows_nothing, was_in_use) {
        (true, true) => format!(
            "{name} has no control state, and waits for another node that has it; if all nodes have lost it, stop \
             them and make it again with `freebs control rebuild`"
        ),
        (true, false) => format!("{name} waits for the node that founds the cluster"),
        (false, _) => format!("{name} is starting: it reads its devices, and waits for a leader of the control plane"),
    })
}

/// Brings a connection to who it asks for: the seat, the control API, or one of the workers.
async fn route(greeted: Greeted, door: &Door) -> Result<()> {
    let hello = greeted.hello;
    let stream = greeted.stream;
    let may = match stream.admit(&hello, &door.plane.state()) {
        Ok(may) => may,
        Err(why) => {
            let why = match why.kind {
                ErrorKind::Retry => why,
                _ => door.refuse(&stream.peer(), why),
            };
            return match hello.role {
                Role::Control => turn_away(stream, why).await,
                Role::Seat if why.kind == ErrorKind::Fenced => turn_away(stream, why).await,
                // An `Invalid` one would say that the leader knows no such member.
                Role::Seat if why.kind == ErrorKind::Invalid => {
                    let why = Error::corrupt(format!("this node is refused: {}", why.text));
                    turn_away(stream, why).await
                }
                _ => Err(why),
            };
        }
    };
    if hello.role == Role::Seat {
        let full = |_| Error::no_space(format!("{SEATS_MAX} seats are connected"));
        let _place = door.seats.clone().try_acquire_owned().map_err(full)?;
        return hear_seat(stream, greeted.leftover, hello, &door.plane).await;
    }
    // Who connects too early tries again, or elsewhere.
    let early = || Error::retry("somebody came before this node was taken in");
    if may == May::Join {
        let Some((service, _)) = door.inside.get() else {
            return turn_away(stream, door.not_yet()).await;
        };
        let Ok(_place) = door.joiners.clone().try_acquire_owned() else {
            return turn_away(stream, Error::retry(format!("{JOINERS_MAX} nodes are joining already"))).await;
        };
        let joining = serve(stream, greeted.leftover, (may, hello.node), service.clone());
        let late = |_| Err(Error::retry("it had the time to join"));
        return tokio::time::timeout(timing::JOINING_MAX, joining).await.unwrap_or_else(late);
    }
    if hello.role == Role::Control {
        let full = |_| Error::no_space(format!("{CONTROL_CLIENTS_MAX} clients of the control API are connected"));
        let _place = door.clients.clone().try_acquire_owned().map_err(full)?;
        let Some((service, _)) = door.inside.get() else {
            return turn_away(stream, door.not_yet()).await;
        };
        return serve(stream, greeted.leftover, (may, hello.node), service.clone()).await;
    }
    let (service, workers) = door.inside.get().ok_or_else(early)?;
    if door.taken_in.get().is_none() {
        // What a member says counts only once its start is known (rules W2, V8).
        return Err(early());
    }
    let worker = usize::from(hello.to_worker) % workers.commands.len();
    let me = service.me();
    let (start, to) = (me.start, worker as u16);
    let welcome = Welcome { cluster: me.cluster, node: me.id, start, worker: to, workers: me.workers };
    let stream = stream.into_link().loosen()?;
    let command = Command::Link { stream, hello, welcome, leftover: greeted.leftover };
    workers.commands[worker].send(command).map_err(|_| Error::retry("this node is stopping"))
}

/// Keeps room for small files, as long as this task lives; what they have taken is made up for when there is room again.
async fn keep_headroom(data: PathBuf) {
    loop {
        let of = data.clone();
        if let Ok(Err(e)) = tokio::task::spawn_blocking(move || headroom::keep(&of)).await {
            tracing::warn!("no room is kept for small files: {e}");
        }
        tokio::time::sleep(timing::HEADROOM_EVERY).await;
    }
}

/// The node's secret, made at the first start.
fn node_secret(data: &Path) -> Result<Hash32> {
    let path = data.join(SECRET_FILE);
    match crate::files::read_limited(&path, 64)? {
        Some(bytes) => <[u8; 32]>::try_from(&bytes[..]).map(Hash32).map_err(|_| {
            Error::corrupt(format!(
                "{} has {} bytes in place of 32; put it back from a copy, or start this node with an empty data \
                 directory so that it is filled from the others",
                path.display(),
                bytes.len()
            ))
        }),
        None => {
            let mut secret = Hash32::default();
            OsRandom.fill(&mut secret.0);
            crate::files::write_durably(&path, &secret.0)?;
            Ok(secret)
        }
    }
}

/// The node's host key, made at the first start.
fn host_key(data: &Path, cluster: ClusterId, node: NodeId) -> Result<HostKey> {
    let path = data.join(HOST_KEY_FILE);
    let Some(bytes) = crate::files::read_limited(&path, HOST_KEY_BYTES)? else {
        let mut secret = Hash32::default();
        OsRandom.fill(&mut secret.0);
        let key = HostKey::new(secret);
        crate::files::write_durably(&path, &HostKeyFile::encode(cluster, node, &secret, &key.public()))?;
        return Ok(key);
    };
    let damaged = |why: Error| {
        Error::corrupt(format!(
            "{}: {}; put it back from a copy, or remove it: this node then has a new key, which counts for the views \
             that are opened from then on",
            path.display(),
            why.text
        ))
    };
    let (secret, public) = HostKeyFile::decode(&bytes, cluster, node).map_err(damaged)?;
    let key = HostKey::new(secret);
    if key.public() != public {
        return Err(damaged(Error::corrupt("its halves do not belong together")));
    }
    Ok(key)
}

/// What the control API asks of this node's replicas.
struct Local {
    workers: Workers,
}

impl Local {
    fn worker(&self, shard: ShardId) -> &mpsc::UnboundedSender<Command> {
        let peer = Peer::of(self.workers.node, shard, self.workers.commands.len() as u16);
        &self.workers.commands[usize::from(peer.worker)]
    }

    async fn chain_status(&self) -> Vec<ChainStatus> {
        let mut all = Vec::new();
        for w in &self.workers.commands {
            let (reply, answer) = oneshot::channel();
            if w.send(Command::Status { reply }).is_ok() {
                all.extend(answer.await.unwrap_or_default());
            }
        }
        all.sort_by_key(|s| s.shard);
        all
    }
}

fn member_state(s: &ChainStatus) -> MemberState {
    match s.state {
        "active" | "following" => MemberState::Active,
        "syncing" => MemberState::Syncing,
        "stopped" | "damaged" => MemberState::Failed,
        _ => MemberState::Opening,
    }
}

impl LocalNode for Local {
    fn shards(&self, volume: Option<VolumeId>) -> LocalFuture<'_, Vec<ShardStatus>> {
        Box::pin(async move {
            let all = self.chain_status().await;
            let wanted = all.iter().filter(|s| volume.is_none_or(|v| s.shard.volume == v));
            wanted
                .map(|s| ShardStatus {
                    shard: s.shard,
                    view: s.view,
                    head: s.members.first().copied().unwrap_or(NodeId(0)),
                    version: s.version,
                    sequence: s.last.sequence,
                    durable: s.durable,
                    state: member_state(s),
                    lapsed: s.lapsed,
                    pins: s.pins,
                    waits: s.waits.clone(),
                    whole_from: s.whole_from,
                    reads_from: s.fork.map(|f| ReadsFrom { shard: f.parent, version: f.version }),
                    past: s.past.map(|p| PastReport { first: p.first, from_ms: p.from_ms, is_short: p.is_short }),
                    log: Some(log_status(s)),
                })
                .collect()
        })
    }

    fn expel(&self, volume: VolumeId, force: bool) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            let gone = || Error::retry("this node is stopping");
            let (reply, answer) = oneshot::channel();
            let worker = self.worker(ShardId { volume, index: 0 });
            worker.send(Command::Expel { volume, force, reply }).map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
    }

    fn audit(&self, of: AuditOf) -> LocalFuture<'_, Result<AuditState>> {
        Box::pin(async move {
            let gone = || Error::retry("this node is stopping");
            let (reply, answer) = oneshot::channel();
            self.worker(of.shard).send(Command::Audit { of, reply }).map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
    }

    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>> {
        Box::pin(async move {
            let gone = || Error::retry("this node is stopping");
            let (reply, answer) = oneshot::channel();
            self.worker(shard).send(Command::Digest { shard, reply }).map_err(|_| gone())?;
            let digest = answer.await.map_err(|_| gone())??;
            let status = self.chain_status().await;
            let view = status.iter().find(|s| s.shard == shard).map(|s| s.view).unwrap_or_default();
            Ok(ShardDigest { shard, view, version: digest.version, digest: digest.hash })
        })
    }

    fn ask_interval(&self, of: IntervalQuestion) -> LocalFuture<'_, Result<IntervalAnswer>> {
        Box::pin(async move {
            let gone = || Error::retry("this node is stopping");
            let (reply, answer) = oneshot::channel();
            let id = IntervalId { decider: of.decider, driver: DriverId(of.driver), number: IntervalNumber(of.number) };
            let ask = IntervalAsk { at: of.at, id, decides: of.decides };
            self.worker(of.at).send(Command::AskInterval { ask, reply }).map_err(|_| gone())?;
            Ok(match answer.await.map_err(|_| gone())?? {
                IntervalWord::Committed => IntervalAnswer::Committed,
                IntervalWord::Aborted => IntervalAnswer::Aborted,
                IntervalWord::Open => IntervalAnswer::Open,
                IntervalWord::Over => IntervalAnswer::Over,
            })
        })
    }
}

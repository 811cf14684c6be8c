//! All parts of a run together: nodes, gateways, control plane, and what is asked of them at the end.

use crate::audit;
use crate::config::Config;
use crate::control::{Control, Plane};
use crate::device::{Crash, Disk};
use crate::gateway::{Allowed, Gateway};
use crate::history;
use crate::leader::Leader;
use crate::network::{Arrival, EndPoint, Network, Place, Receiver};
use crate::node::{Node, Rate, Shared, check_space};
use crate::oracle::{Oracle, Stamp};
use crate::progress;
use crate::raft::Seats;
use crate::rng::Rng;
use crate::snapshots::Made;
use crate::timing;
use crate::workload::Workload;
use crate::world::World;
use freebs_agent::{Answer, Asking, Commands, Lapse, Right};
use freebs_chain::ShardStatus;
use freebs_control::{Command, CreateVolume, Holder};
use freebs_driver::DriverConfig;
use freebs_io::LinkId;
use freebs_lsvd::Digest;
use freebs_types::{ClusterId, DriverId, Error, Hash32, Nanos, NodeId, Result, SECTOR, ShardId, StartNumber, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([7; 16]);
/// Hosts of gateways: one that attaches again after another is the same holder, or a new one.
const HOSTS: u64 = 2;

/// Rules left out on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutants {
    /// A rule of the chain; `None` for none.
    pub chain: Option<freebs_chain::Mutant>,
    /// A rule of drivers; `None` for none.
    pub driver: Option<freebs_driver::Mutant>,
    /// A rule of the control plane; `None` for none.
    pub control: Option<freebs_control::Mutant>,
    /// A rule of the nodes' seats, or of the leader where there are none; `None` for none.
    pub seats: Option<freebs_consensus::Mutant>,
}

struct VolumeState {
    id: VolumeId,
    work: Rc<RefCell<Workload>>,
    current: Option<Rc<Gateway>>,
    attaching: bool,
}

/// The whole cluster of a run.
pub struct Cluster {
    pub config: Config,
    pub world: Rc<World>,
    pub net: Rc<Network>,
    pub control: Rc<Control>,
    pub oracle: Rc<Oracle>,
    pub nodes: Vec<Rc<Node>>,
    mutants: Mutants,
    volumes: RefCell<Vec<VolumeState>>,
    gateways: RefCell<BTreeMap<u64, Rc<Gateway>>>,
    next_gateway: Cell<u64>,
    /// Chance for faults.
    pub luck: RefCell<Rng>,
    /// No faults from now on.
    pub over: Cell<bool>,
    /// Snapshots that were complete.
    pub made: RefCell<Vec<Made>>,
    /// Clones that were made. A rebuild of the control state does not know them for clones any more.
    pub clones: RefCell<crate::clones::Clones>,
    /// Times, and places in the order of events.
    pub times: RefCell<Vec<(Nanos, Stamp)>>,
    /// Words of the operator for shards that are to go on by force.
    pub words: RefCell<crate::forced::Words>,
}

impl Receiver for Cluster {
    fn arrive(&self, at: EndPoint, link: LinkId, arrival: Arrival) -> bool {
        match at.place {
            Place::Node(n) => self.node(n).is_some_and(|node| node.arrive(at.incarnation, link, arrival)),
            Place::Gateway(g) => {
                let gateway = self.gateways.borrow().get(&g).cloned();
                gateway.is_some_and(|g| g.arrive(link, arrival))
            }
            Place::Control => false,
        }
    }

    fn incarnation(&self, place: Place) -> Option<u64> {
        match place {
            Place::Node(n) => self.node(n)?.incarnation(),
            _ => None,
        }
    }
}

/// Formats the disks of all nodes, and registers them.
async fn make_nodes(config: &Config, shared: &Shared) -> Result<Vec<Rc<Node>>> {
    let mut nodes = Vec::new();
    for n in 1..=config.nodes {
        let times = config.slowness.get(n as usize - 1).copied().unwrap_or(1);
        let mut disk = config.disk.clone();
        // Writing is slower more often than reading.
        disk.read_latency.0 *= if n % 2 == 0 { times } else { 1 };
        disk.write_latency.0 *= times;
        disk.sync_latency.0 *= times;
        disk.limit -= config.smaller.get(n as usize - 1).copied().unwrap_or(0);
        let disk = Disk::new(&shared.world, disk, Rng::fork(config.seed, 100 + n));
        let node = Node::new(NodeId(n), disk, shared.clone());
        node.format().await?;
        let (name, address) = (format!("node-{n}"), format!("10.0.0.{n}:7400"));
        shared.control.apply(Command::RegisterNode {
            node: NodeId(n),
            name,
            address,
            workers: 1,
            start: StartNumber(0),
        })?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// Creates the volumes, and draws the work of their clients.
fn make_volumes(config: &Config, control: &Control, oracle: &Oracle) -> Result<Vec<VolumeState>> {
    let mut volumes = Vec::new();
    for (i, v) in config.volumes.iter().enumerate() {
        let id = control.create_volume(CreateVolume {
            name: format!("volume-{i}"),
            size: v.size,
            copies: Some(v.copies),
            ack: v.ack,
            min_copies: Some(v.min_copies),
            shards: Some(v.shards),
            stripe: Some(v.stripe),
            retain_ms: v.retain_ms,
        })?;
        let unit = SECTOR as u64;
        let stripe = if v.shards > 1 { v.stripe } else { 1 << 20 };
        oracle.add_volume(id, stripe);
        let luck = Rng::fork(config.seed, 200 + i as u64);
        let mut work = Workload::draw(luck, v.size / unit, v.stripe / unit, v.requests);
        work.may_have_intervals(Rng::fork(config.seed, 700 + i as u64), v.stripe / unit, u64::from(v.shards));
        if config.is_crowded {
            work.crowd();
        }
        if config.is_tight {
            work.fill();
        }
        volumes.push(VolumeState { id, work: Rc::new(RefCell::new(work)), current: None, attaching: false });
    }
    Ok(volumes)
}

impl Cluster {
    /// Makes disks, volumes and clients; nothing runs yet.
    pub async fn build(config: Config, world: &Rc<World>, mutants: Mutants) -> Result<Rc<Self>> {
        let seed = config.seed;
        let net = Network::new(world, config.net.clone(), Rng::fork(seed, 3));
        let control = Control::new(world, &net, CLUSTER, mutants.control);
        let oracle = Oracle::new(world);
        let shared = Shared {
            world: world.clone(),
            net: net.clone(),
            control: control.clone(),
            cluster: CLUSTER,
            segment_bytes: config.segment_bytes,
            has_keys: config.has_keys,
            mutant: mutants.chain,
            drift: config.clocks_drift.then_some(seed),
            has_small_maps: config.has_small_maps,
        };
        let nodes = make_nodes(&config, &shared).await?;
        let volumes = make_volumes(&config, &control, &oracle)?;
        if config.has_seats {
            control.set_seats(Some(Seats::new(&config, &control, mutants.seats)));
        }
        let cluster = Rc::new(Self {
            world: world.clone(),
            net: net.clone(),
            control: control.clone(),
            oracle,
            nodes,
            mutants,
            volumes: RefCell::new(volumes),
            gateways: RefCell::default(),
            next_gateway: Cell::new(0),
            luck: RefCell::new(Rng::fork(seed, 4)),
            over: Cell::new(false),
            words: RefCell::default(),
            made: RefCell::default(),
            clones: RefCell::default(),
            times: RefCell::default(),
            config,
        });
        let receiver: Rc<dyn Receiver> = cluster.clone();
        net.set_receiver(Rc::downgrade(&receiver));
        let weak = Rc::downgrade(&cluster);
        control.set_hear(Rc::new(move |from, node, shard| weak.upgrade()?.heard_of(from, node, shard)));
        let weak = Rc::downgrade(&cluster);
        control.set_ask_head(Rc::new(move |node, ask| {
            let there = weak.upgrade().and_then(|c| c.node(node.0).filter(|n| n.runs()).and_then(|n| n.worker()));
            there.ok_or_else(|| Error::retry("the node does not answer"))?.on_interval_ask(ask)
        }));
        let weak = Rc::downgrade(&cluster);
        control.set_on_branch(Rc::new(move |shard, view| crate::forced::on_branch(&weak, shard, view)));
        Ok(cluster)
    }

    #[must_use]
    pub fn node(&self, n: u64) -> Option<&Rc<Node>> {
        self.nodes.get(usize::try_from(n).ok()?.checked_sub(1)?)
    }

    /// From now on clients use one more volume.
    pub fn use_volume(&self, id: VolumeId, work: Workload) {
        let work = Rc::new(RefCell::new(work));
        self.volumes.borrow_mut().push(VolumeState { id, work, current: None, attaching: false });
    }

    /// True if clients use a volume.
    #[must_use]
    pub fn is_used(&self, id: VolumeId) -> bool {
        self.volumes.borrow().iter().any(|v| v.id == id)
    }

    /// Starts every node's process.
    pub fn start_nodes(&self) {
        for node in &self.nodes {
            node.start();
        }
        if let Some(seats) = self.control.seats() {
            tokio::task::spawn_local(seats.tend());
        }
    }

    /// Keeps gateways attached, and has failed nodes replaced.
    pub fn start(self: &Rc<Self>) {
        if self.config.has_leader && !self.config.has_seats {
            let leader = Leader::new(Rng::fork(self.config.seed, 8), self.mutants.seats);
            tokio::task::spawn_local(leader.lead(self.clone()));
        }
        if self.config.is_watched {
            tokio::task::spawn_local(progress::watch(self.clone()));
        }
        let cluster = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                cluster.attach_where_needed();
                tokio::time::sleep(timing::ATTACH_LOOK).await;
            }
        });
    }

    fn attach_where_needed(self: &Rc<Self>) {
        let count = self.volumes.borrow().len();
        for i in 0..count {
            let needed = {
                let volumes = self.volumes.borrow();
                let v = &volumes[i];
                !v.attaching && v.current.as_ref().is_none_or(|g| g.is_gone())
            };
            if needed {
                self.attach(i);
            }
        }
    }

    /// Attaches a new gateway to the volume with this index: on the host of the one before, or on another one.
    pub fn attach(self: &Rc<Self>, index: usize) {
        if let Some(v) = self.volumes.borrow_mut().get_mut(index) {
            v.attaching = true;
        }
        let id = self.next_gateway.get() + 1;
        self.next_gateway.set(id);
        let host = self.luck.borrow_mut().range(1, HOSTS) as u8;
        let who = Holder { identity: Hash32([host; 32]), name: format!("host-{host}") };
        let cluster = self.clone();
        tokio::task::spawn_local(async move {
            let plane = Plane::new(&cluster.control, Place::Gateway(id));
            let (right, config) = cluster.ask_for(index, &plane, &who).await;
            cluster.begin_gateway((index, id), (right, config), plane);
        });
    }

    /// Somebody else's place, for a question or two.
    pub fn stranger(&self) -> Plane {
        let id = self.next_gateway.get() + 1;
        self.next_gateway.set(id);
        Plane::new(&self.control, Place::Gateway(id))
    }

    /// A client asks until it has the volume; after a while by force.
    async fn ask_for(&self, index: usize, plane: &Plane, who: &Holder) -> (Right, DriverConfig) {
        let volume = self.volumes.borrow()[index].id;
        let mut patience = self.luck.borrow_mut().spread(1, 100);
        loop {
            let mut asking = Asking::new(volume, who.clone(), patience == 0, self.world.now());
            patience = patience.saturating_sub(1);
            while let Ok(command) = asking.question(&plane.state()) {
                let asked = self.oracle.stamp();
                let answer = plane.submit(command).await;
                match asking.answer(self.world.now(), answer) {
                    Answer::Right(right) => {
                        self.oracle.attached(volume, right.generation, asked);
                        match self.driver(&right, plane, who) {
                            Ok(config) => return (right, config),
                            Err(e) => self.world.violation(format!("volume {volume} has no driver: {e}")),
                        }
                    }
                    Answer::Again(_) => {
                        let again = Duration::from_nanos(freebs_agent::timing::ATTACH_ASK_AGAIN.0);
                        let _ = tokio::time::timeout(again, plane.changed(asking.seen())).await;
                    }
                    Answer::Never(_) => break,
                }
            }
            tokio::time::sleep(timing::CLIENT_AGAIN).await;
        }
    }

    fn driver(&self, right: &Right, plane: &Plane, who: &Holder) -> Result<DriverConfig> {
        let mut luck = self.luck.borrow_mut();
        let local = luck.chance(0.5).then(|| NodeId(luck.range(1, self.config.nodes)));
        let config = right.driver(&plane.state(), who, DriverId(luck.next() | 1), local)?;
        Ok(DriverConfig { request_limit: self.config.request_limit, mutant: self.mutants.driver, ..config })
    }

    fn begin_gateway(self: &Rc<Self>, (index, id): (usize, u64), driver: (Right, DriverConfig), plane: Plane) {
        let allowed = Allowed {
            retry: self.config.limit_is_short(),
            no_space: self.config.is_tight,
            // The only copy is on a device that is out of use until its process starts again.
            corrupt: self.config.has_rot || self.config.net.flipped > 0.0,
        };
        let work = self.volumes.borrow()[index].work.clone();
        let drifts = self.config.clocks_drift;
        let rate = if drifts { Rate::draw(self.config.seed, 1 << 16 | id) } else { Rate::default() };
        let (world, net, control) = (&self.world, &self.net, &self.control);
        let g = Gateway::start((id, rate), driver, plane, world, net, control, &self.oracle, &work, allowed);
        self.gateways.borrow_mut().insert(id, g.clone());
        if let Some(v) = self.volumes.borrow_mut().get_mut(index) {
            v.current = Some(g);
            v.attaching = false;
        }
    }

    /// A replica's word on its driver's lease, if it can be asked from there and answers.
    fn heard_of(&self, from: Place, node: NodeId, shard: ShardId) -> Option<Lapse> {
        let there = self.node(node.0).filter(|n| n.runs())?;
        if from != Place::Node(node.0) {
            self.net.round_trip(from, Place::Node(node.0))?;
        }
        let all = there.worker()?.status();
        all.iter().find(|s| s.shard == shard).map(|s| (s.view, s.lapsed))
    }

    /// Volumes, by index.
    #[must_use]
    pub fn volume_count(&self) -> usize {
        self.volumes.borrow().len()
    }

    #[must_use]
    pub fn is_attaching(&self, index: usize) -> bool {
        self.volumes.borrow().get(index).is_none_or(|v| v.attaching)
    }

    #[must_use]
    pub fn current(&self, index: usize) -> Option<Rc<Gateway>> {
        self.volumes.borrow().get(index).and_then(|v| v.current.clone())
    }

    /// All gateways that were ever started.
    #[must_use]
    pub fn gateways(&self) -> Vec<Rc<Gateway>> {
        self.gateways.borrow().values().cloned().collect()
    }

    /// No more requests.
    pub fn end_load(&self) {
        for v in self.volumes.borrow().iter() {
            v.work.borrow_mut().left = 0;
        }
    }

    /// Ends every fault: all processes live, nothing is cut or slow.
    pub fn heal(self: &Rc<Self>) {
        self.over.set(true);
        self.world.say(|| "faults are over".into());
        self.net.heal();
        self.control.set_down(false);
        for node in &self.nodes {
            for disk in node.disks() {
                disk.slow_down(Nanos(0), 1, false);
                disk.stall(Nanos(0));
                disk.fail_no_more();
            }
            if node.has_failed() {
                node.kill(Crash::Kill);
            }
            node.pause(false);
            self.control.lag(node.id, false);
            node.settle();
            node.start();
        }
        for g in self.gateways() {
            g.pause(false);
        }
    }

    /// Whether every volume has a gateway that is ready and has nothing in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_well = |g: &Rc<Gateway>| !g.is_gone() && !g.is_superseded() && g.is_ready();
        let is_done = |g: &Rc<Gateway>| g.in_flight() == 0 && g.undecided() == 0;
        let volumes = self.volumes.borrow();
        volumes.iter().all(|v| !v.attaching && v.current.as_ref().is_some_and(|g| is_well(g) && is_done(g)))
    }

    /// Status of each replica of each shard, of the nodes that are up.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<ShardId, Vec<(NodeId, ShardStatus)>> {
        let mut out: BTreeMap<ShardId, Vec<(NodeId, ShardStatus)>> = BTreeMap::new();
        for node in &self.nodes {
            let Some(worker) = node.worker() else { continue };
            for status in worker.status() {
                out.entry(status.shard).or_default().push((node.id, status));
            }
        }
        out
    }

    /// Whether a member lags because its device has no room for what it lacks.
    fn is_full(&self, node: NodeId, r: &ShardStatus) -> bool {
        let worker = self.node(node.0).and_then(|n| n.worker());
        let space = worker.map(|w| w.engine().space());
        let is_full = |s: freebs_lsvd::Space| s.free_segments <= s.reserve_segments + 1;
        self.config.is_tight && r.state == "full" && space.is_some_and(is_full)
    }

    /// Why the replicas are not all level, if they are not.
    #[must_use]
    pub fn unlevel(&self) -> Option<String> {
        if let Some(why) = self.control.seats().and_then(|s| s.unlevel()) {
            return Some(why);
        }
        let statuses = self.statuses();
        for v in self.control.volumes() {
            for s in &v.shards {
                let shard = v.shard_id(s.index);
                if crate::clones::is_hopeless(self, &v, s) {
                    continue;
                }
                // Beside the only log of a branch former members keep what they have.
                let is_alone = s.members.len() == 1 && s.branch.is_some();
                // One that left a chain that became shorter keeps what it has, for longer than is waited for here (V13, V14).
                let is_away = |n: &NodeId| s.away.contains(n) && !s.members.contains(n);
                let is_kept = |n: &NodeId| is_alone && s.keepers.contains(n) || is_away(n);
                let all = statuses.get(&shard).into_iter().flatten();
                let replicas: Vec<&(NodeId, ShardStatus)> = all.filter(|(n, _)| !is_kept(n)).collect();
                if replicas.len() != s.members.len() {
                    return Some(format!("shard {shard} has {} of {} replicas", replicas.len(), s.members.len()));
                }
                let Some((_, head)) = replicas.iter().copied().find(|(_, r)| r.is_head) else {
                    return Some(format!("shard {shard} has no head"));
                };
                let same = |r: &ShardStatus| {
                    r.last == head.last && r.durable == r.last.sequence && r.committed == head.committed
                };
                // However full devices are, what was answered is on as many of them as were asked for.
                let (level, quorum) = (replicas.iter().filter(|(_, r)| same(r)).count(), v.quorum(s.members.len()));
                if level < quorum {
                    return Some(format!("shard {shard}: {level} members are level, not {quorum}: {replicas:?}"));
                }
                for (node, r) in replicas {
                    if self.is_full(*node, r) {
                        continue;
                    }
                    if !matches!(r.state, "active" | "following") || !same(r) || r.committed != r.last.sequence {
                        return Some(format!("shard {shard} at node {node}: {r:?}; the head: {head:?}"));
                    }
                }
            }
        }
        None
    }

    /// Digests of all replicas, which must agree.
    pub async fn compare_replicas(&self) {
        for v in self.control.volumes() {
            for s in &v.shards {
                let shard = v.shard_id(s.index);
                if crate::clones::is_hopeless(self, &v, s) {
                    continue;
                }
                let mut digests: Vec<(NodeId, Digest)> = Vec::new();
                for m in &s.members {
                    let Some(worker) = self.node(m.0).and_then(|n| n.worker()) else { continue };
                    if worker.status().iter().any(|r| r.shard == shard && self.is_full(*m, r)) {
                        self.world.count("members that had no room to the end");
                        continue;
                    }
                    let engine = worker.engine();
                    let digest = match self.config.has_loss {
                        true => engine.content(shard).await,
                        false => engine.digest(shard).await,
                    };
                    match digest {
                        Ok(d) => digests.push((*m, d)),
                        Err(e) => self.world.violation(format!("no digest of shard {shard} at node {m}: {e}")),
                    }
                }
                for m in &s.members {
                    let Some((node, worker)) = self.node(m.0).and_then(|n| Some((n, n.worker()?))) else { continue };
                    if let Err(why) = history::check(worker.engine(), shard, node.damaged.get()).await {
                        self.world.violation(format!("the log of shard {shard} at node {m}: {why}"));
                    }
                }
                self.audit(shard, &s.members).await;
                // Reading takes time, and a driver that finds its way back meanwhile writes its attach frame; a head gives up
                // pins that nobody needs, which takes a version and changes no block.
                let content = |d: &Digest| (d.hash, d.blocks, d.data_blocks);
                let now = self.control.snapshot();
                if now.shard(shard).is_none_or(|now| now.members != s.members) {
                    // A node that is emptied may have left meanwhile, and have nothing any more.
                    self.world.count("chains that changed while they were compared");
                    continue;
                }
                if digests.windows(2).any(|w| content(&w[0].1) != content(&w[1].1)) {
                    self.world.violation(format!("replicas of shard {shard} differ: {digests:#?}"));
                }
            }
        }
        for node in &self.nodes {
            if let Some(worker) = node.worker() {
                check_space(&self.world, node.id, worker.engine()).await;
            }
        }
    }

    /// Each member's hash chain is as it should be, and all have the same one.
    async fn audit(&self, shard: ShardId, members: &[NodeId]) {
        let mut reports = Vec::new();
        for m in members {
            let Some((node, worker)) = self.node(m.0).and_then(|n| Some((n, n.worker()?))) else { continue };
            match audit::check(worker.engine(), shard, node.damaged.get()).await {
                Ok(report) => {
                    for (what, frames) in
                        [("proven", report.proven), ("linked", report.linked), ("summarised", report.summarised)]
                    {
                        let has = if frames > 0 { "some" } else { "no" };
                        self.world.count(format!("audits with {has} frames that are {what}"));
                    }
                    reports.push((*m, report));
                }
                Err(why) => self.world.violation(format!("the chain of shard {shard} at node {m}: {why}")),
            }
        }
        if let Err(why) = audit::compare(&reports) {
            self.world.violation(format!("shard {shard}: {why}"));
        }
    }

    /// Ends all processes and lets go of everything.
    pub fn end(&self) {
        for g in self.gateways() {
            g.kill();
        }
        for node in &self.nodes {
            node.kill(Crash::Kill);
        }
        self.control.set_seats(None);
        self.gateways.borrow_mut().clear();
        self.volumes.borrow_mut().clear();
        self.world.clear();
    }
}

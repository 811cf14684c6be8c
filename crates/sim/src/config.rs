//! Everything a seed decides before its run begins: the cluster, its luck with hardware, and the odds of faults.

use crate::device::DiskConfig;
use crate::less::Less;
use crate::network::NetConfig;
use crate::rng::Rng;
use freebs_control::Ack;
use freebs_types::{Nanos, limits};

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Bytes.
    pub size: u64,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Shards of the volume.
    pub shards: u32,
    /// Copies that it is made with.
    pub copies: u8,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// When a write is answered.
    pub ack: Ack,
    /// Requests that its client makes in all.
    pub requests: u64,
    /// Milliseconds of its past that it keeps, if it keeps any.
    pub retain_ms: Option<u64>,
}

/// How often each fault strikes, on average per simulated second of the whole cluster, while there is load.
#[derive(Clone, Debug, Default)]
pub struct Odds {
    /// A process of a node is killed; another one starts a moment later.
    pub kill_node: f64,
    /// The same with the power of its machine.
    pub power_node: f64,
    /// All nodes' processes at once.
    pub kill_all: f64,
    /// The power of the whole cluster.
    pub power_all: f64,
    /// A node's process stands still for a while, and goes on.
    pub pause_node: f64,
    /// The same for longer than a node may be silent until it has failed.
    pub pause_long: f64,
    /// One connection breaks, and with it what was on its way.
    pub break_link: f64,
    /// A partition: full, partial, one-way or flapping.
    pub cut: f64,
    /// A gateway's process is killed; another one attaches later.
    pub kill_gateway: f64,
    /// A new gateway attaches while the old one lives.
    pub take_over: f64,
    /// A gateway's process stands still for a while, and goes on.
    pub pause_gateway: f64,
    /// A client leaves in order: its volume is given back, and attached again.
    pub leave_gateway: f64,
    /// A disk becomes slow for a while.
    pub slow_disk: f64,
    /// The disk does nothing for a while, now and then for 5 to 80 seconds.
    pub stall_disk: f64,
    /// A write or sync fails; the device is poisoned and its process starts again.
    pub fail_write: f64,
    /// A byte on the disk of one node changes.
    pub rot: f64,
    /// Heads of frames in the middle of a log are lost while its node is down.
    pub lose_append: f64,
    /// The control plane answers nobody for a while.
    pub control_down: f64,
    /// An answer of the control plane is lost, and the caller does not know what became of its request.
    pub lose_answer: f64,
    /// The wall clock of a process jumps.
    pub jump_clock: f64,
    /// Another member becomes head.
    pub move_head: f64,
    /// The head's process is killed, and another member becomes head before it is back.
    pub fail_over: f64,
    /// A node goes away for longer than its places in chains are kept for it.
    pub leave_node: f64,
    /// A host with a node and a gateway stands still until the node's places are others', and goes on as if nothing were.
    pub suspend_host: f64,
    /// All nodes die, and the control state is lost and made again; now and then once more, in the middle of coming up.
    pub lose_control: f64,
    /// An old disk of a node is put in, or a blank one.
    pub old_image: f64,
    /// The process of the node that leads the control plane is killed, and another one leads soon.
    pub kill_leader: f64,
    /// A node's seat lags, while the node is replaced and then taken again, and its replica goes on.
    pub lag_seat: f64,
    /// So many members of a shard are lost for good that it can't go on by itself.
    pub lose_members: f64,
    /// Somebody asks for a snapshot. No fault, and drawn like one.
    pub snapshot: f64,
    /// A node is to be emptied, or is not any more. No fault either.
    pub drain_node: f64,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Config {
    /// All chance of the run comes from it.
    pub seed: u64,
    /// Name of the kind of run, as `--profile` takes it.
    pub profile: &'static str,
    /// Number of nodes.
    pub nodes: u64,
    /// The volumes, each with clients of its own.
    pub volumes: Vec<VolumeConfig>,
    /// Bytes of a segment of each node's log.
    pub segment_bytes: u64,
    /// How slow the disks are.
    pub disk: DiskConfig,
    /// How slow and how lossy links are.
    pub net: NetConfig,
    /// Nodes have named host keys.
    pub has_keys: bool,
    /// The control plane's leader replaces heads that have failed.
    pub has_leader: bool,
    /// The nodes keep the control state themselves, in seats of Raft.
    pub has_seats: bool,
    /// How many times slower than the others a node's disk is, by node.
    pub slowness: Vec<u64>,
    /// By how many bytes a node's disk is smaller than the largest, by node.
    pub smaller: Vec<u64>,
    /// A request of a client that has no outcome after this time fails.
    pub request_limit: Nanos,
    /// Faults and load are drawn for this time.
    pub load: Nanos,
    /// They end at this time: with `load`, or earlier in a run that was made smaller.
    pub until: Nanos,
    /// After the end of the faults everything must be answered and level within this time.
    pub settle: Nanos,
    /// How often each fault strikes.
    pub odds: Odds,
    /// Everybody wants the same one or two blocks, and acknowledgements are slow.
    pub is_crowded: bool,
    /// Bits of one node's disk are changed: reads may fail, but never lie, and nothing has to get well again.
    pub has_rot: bool,
    /// Frames of one node's log are lost, and have to come back from the others.
    pub has_loss: bool,
    /// The disks are too small for what is written.
    pub is_tight: bool,
    /// A dead process starts again after a time in this range.
    pub restart_min: Nanos,
    /// The longest such time.
    pub restart_max: Nanos,
    /// A node that is away for longer is replaced in its chains.
    pub gone: Nanos,
    /// Clocks of hosts run too fast or too slow by up to the bound that leases count on.
    pub clocks_drift: bool,
    /// Nodes do nothing worse than die, or stand still: clients get their answers soon where enough of them are up.
    pub is_watched: bool,
    /// Members wait so long before each piece that they learn of what they lack.
    pub early_pause: Nanos,
    /// Memory for maps is short: these and their history are in runs.
    pub has_small_maps: bool,
    /// The parts that were left out.
    pub less: Less,
}

/// Writes one after the other that a full device may make before what it takes and what it does not is settled: its
/// segments, of which there are at most 14, several times over, in pieces.
const FULL_DISK_WRITES: u64 = 200;

/// The share of the runs in which the nodes keep the control state themselves.
const SEATS_SHARE: f64 = 0.125;
/// Chosen so that no seed that is kept, or that notices a mutant, became one of them.
const SEATS_SALT: u64 = 3321;
/// The share of the runs with a leader in which chains become shorter.
const SHORTER_SHARE: f64 = 0.25;
/// Chance of its own: other parts of a run stay as they are.
const SHORTER_SALT: u64 = 11_509;
/// Draws the runs in which nodes are emptied.
const DRAIN_SALT: u64 = 44;
/// The share of the runs in which members count early, and for long.
const EARLY_SHARE: f64 = 0.06;
/// Chosen so that no seed that is kept, or that notices a mutant, became one of them.
const EARLY_SALT: u64 = 47;
/// Requests of a volume's clients in the runs in which it is watched that they are answered.
const WATCHED_REQUESTS: u64 = 4000;
/// Such a run may take this much longer to get well: a command is tried for ten seconds before it is given up.
const SEATS_SETTLE: Nanos = Nanos::from_millis(15_000);

/// Faults of a run come in families, so that some runs are of one kind only.
const PROFILES: [(&str, u64); 10] = [
    ("calm", 1),
    ("kills", 4),
    ("power", 3),
    ("links", 4),
    ("gateways", 3),
    ("disks", 2),
    ("crowd", 3),
    ("rot", 1),
    ("tight", 1),
    ("everything", 6),
];

impl Config {
    /// The run that belongs to a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut luck = Rng::fork(seed, 2);
        let total = PROFILES.iter().map(|(_, n)| n).sum();
        let mut at = luck.below(total);
        let profile = PROFILES.iter().find(|(_, n)| {
            let hit = at < *n;
            at = at.saturating_sub(*n);
            hit
        });
        Self::with_profile(seed, profile.map_or("calm", |(name, _)| name), &mut luck)
            .with_time_to_clean()
            .with_leader()
            .with_members()
            .with_lagging_seats()
            .with_losses()
            .with_dead_leaders()
            .with_leaving()
            .with_seats()
            .with_lost_members()
            .with_snapshots()
            .with_shorter_chains()
            .with_drains()
            .with_early_members()
    }

    /// A device that is full moves nearly all that it has before it knows what more it takes, and a disk that needs a
    /// third of a second for a write has then done three in a second.
    fn with_time_to_clean(self) -> Self {
        let slowest = self.slowness.iter().max().map_or(0, |times| times * self.disk.sync_latency.0);
        let more = if self.is_tight { FULL_DISK_WRITES * slowest } else { 0 };
        Self { settle: self.settle.plus(Nanos(more)), ..self }
    }

    fn with_profile(seed: u64, profile: &'static str, luck: &mut Rng) -> Self {
        let nodes = [1, 2, 3, 3, 3, 3, 4, 5][luck.below(8) as usize];
        let is_tight = profile == "tight";
        let has_loss = profile == "rot" && Rng::fork(seed, 4).chance(0.6);
        let has_rot = profile == "rot" && !has_loss;
        let load = Nanos::from_millis(luck.range(1500, 4000));
        let nodes = if has_rot || has_loss { nodes.max(3) } else { nodes };
        let count = luck.range(1, 2);
        let volumes = (0..count).map(|_| VolumeConfig::draw(luck, nodes, profile, 500 / count)).collect();
        let sector = if luck.chance(0.5) { 512 } else { 4096 };
        let segment_bytes = limits::SEGMENT_BYTES_MIN * luck.range(1, 2);
        let segments = if is_tight { luck.range(8, 14) } else { 64 };
        let mut sizes = Rng::fork(seed, 3);
        let has_keys = Rng::fork(seed, 5).chance(0.9);
        let less = |_| if is_tight { sizes.below(segments - 7) * segment_bytes } else { 0 };
        let smaller = (0..nodes).map(less).collect();
        let disk = DiskConfig {
            sector,
            limit: (segments + 1) * segment_bytes,
            read_latency: Nanos(luck.spread(50_000, 2_000_000)),
            write_latency: Nanos(luck.spread(20_000, 1_000_000)),
            sync_latency: Nanos(luck.spread(100_000, 8_000_000)),
        };
        let delay_min = luck.spread(20_000, 500_000);
        let is_lossy = matches!(profile, "links" | "everything");
        let net = NetConfig {
            delay_min: Nanos(delay_min),
            delay_max: Nanos(delay_min * luck.range(2, 20)),
            lost: if is_lossy { [0.0, 0.002, 0.02][luck.below(3) as usize] } else { 0.0 },
            flipped: if matches!(profile, "links" | "rot") { [0.0, 0.02][luck.below(2) as usize] } else { 0.0 },
            encoded: luck.chance(0.3),
            patience_min: Nanos::from_millis(100),
            patience_max: Nanos::from_millis(2500),
        };
        let may_fail = matches!(profile, "kills" | "links" | "everything") && luck.chance(0.35);
        let limit_ms = if may_fail { luck.spread(60, 1500) } else { 120_000 };
        let (restart_min, restart_max) = *luck.pick(&[(1, 100), (50, 600), (1, 2000)]).unwrap_or(&(1, 100));
        Self {
            seed,
            profile,
            nodes,
            volumes,
            segment_bytes,
            disk,
            net,
            has_keys,
            has_leader: false,
            has_seats: false,
            slowness: (0..nodes).map(|_| if luck.chance(0.3) { luck.spread(2, 40) } else { 1 }).collect(),
            smaller,
            request_limit: Nanos::from_millis(limit_ms),
            load,
            until: load,
            settle: Nanos::from_millis(20_000),
            odds: Odds::draw(profile, luck).with_loss(has_loss, seed).with_moves(has_keys && profile != "calm", seed),
            is_crowded: profile == "crowd",
            has_rot,
            has_loss,
            is_tight,
            restart_min: Nanos::from_millis(restart_min),
            restart_max: Nanos::from_millis(restart_max),
            gone: Nanos(u64::MAX),
            clocks_drift: Rng::fork(seed, 11).chance(0.5),
            is_watched: false,
            early_pause: Nanos(0),
            has_small_maps: Rng::fork(seed, 41).chance(0.25),
            less: Less::default(),
        }
    }

    /// In most runs heads that fail are replaced; and in half of these the dead stay away for so long that it pays.
    fn with_leader(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 8);
        self.has_leader = luck.chance(0.75);
        if self.has_leader && luck.chance(0.5) {
            (self.restart_min, self.restart_max) = (Nanos::from_millis(200), Nanos::from_millis(3000));
        }
        self
    }

    /// In some runs nodes go away for long, and there are others to take their places.
    fn with_members(self) -> Self {
        let mut luck = Rng::fork(self.seed, 9);
        if !luck.chance(0.2) || matches!(self.profile, "calm" | "rot" | "tight") {
            return self;
        }
        let mut new = self.with_spare_nodes(&mut luck);
        new.odds.leave_node = 0.5 + luck.below(1000) as f64 / 1000.0;
        new.odds.suspend_host = luck.below(1000) as f64 / 1000.0;
        new
    }

    /// In some others seats lag while their nodes are replaced, and taken again.
    fn with_lagging_seats(self) -> Self {
        let mut luck = Rng::fork(self.seed, 16);
        let can = self.gone == Nanos(u64::MAX) && !matches!(self.profile, "calm" | "rot" | "tight");
        if !luck.chance(0.12) || !can {
            return self;
        }
        let mut new = self.with_spare_nodes(&mut luck);
        new.odds.lag_seat = 0.3 + luck.below(1000) as f64 / 2500.0;
        new.load = new.load.plus(Nanos::from_millis(2000));
        new.until = new.load;
        new
    }

    fn with_spare_nodes(mut self, luck: &mut Rng) -> Self {
        self.nodes = luck.range(4, 5);
        self.slowness.resize(self.nodes as usize, 1);
        self.smaller.resize(self.nodes as usize, 0);
        for v in &mut self.volumes {
            v.copies = luck.range(2, 3) as u8;
            v.min_copies = luck.range(1, 2) as u8;
        }
        self.has_leader = true;
        self.gone = Nanos::from_millis(luck.range(1100, 2000));
        self.load = self.load.plus(Nanos::from_millis(3000));
        self.until = self.load;
        self
    }

    /// In some runs the control state is lost, or disks come back as they once were.
    fn with_losses(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 10);
        if !matches!(self.profile, "kills" | "power" | "gateways" | "everything") || !self.has_keys {
            return self;
        }
        if luck.chance(0.25) {
            self.odds.lose_control = 0.1 + luck.below(1000) as f64 / 2500.0;
        }
        if luck.chance(0.25) {
            self.odds.old_image = 0.3 + luck.below(1000) as f64 / 1000.0;
        }
        self
    }

    /// In some runs with a leader its node is killed now and then.
    fn with_dead_leaders(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 13);
        if self.has_leader && matches!(self.profile, "kills" | "gateways" | "everything") && luck.chance(0.4) {
            self.odds.kill_leader = 0.2 + luck.below(1000) as f64 / 1000.0;
        }
        self
    }

    /// In half of the runs clients leave in order and come back.
    fn with_leaving(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 14);
        if luck.chance(0.5) && !matches!(self.profile, "calm" | "tight") {
            self.odds.leave_gateway = 0.1 + luck.below(1000) as f64 / 1000.0;
        }
        self
    }

    /// In some runs the nodes keep the control state themselves. They elect leaders, so these are killed more often.
    fn with_seats(mut self) -> Self {
        self.has_seats = Rng::fork(self.seed, SEATS_SALT).chance(SEATS_SHARE);
        if !self.has_seats {
            return self;
        }
        self.has_leader = true;
        self.settle = self.settle.plus(SEATS_SETTLE);
        if self.profile != "calm" && self.profile != "rot" {
            let mut luck = Rng::fork(self.seed, 15);
            let _ = luck.next();
            self.odds.kill_leader = 0.2 + luck.below(1000) as f64 / 1000.0;
        }
        self
    }

    /// In some runs with nodes to spare so many members are lost for good that shards go on by force; also where the last
    /// log that is left has lost frames.
    fn with_lost_members(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 15);
        let is_spared = self.odds.leave_node > 0.0;
        if self.has_seats || !(is_spared || self.has_loss) || !self.has_keys || !luck.chance(0.4) {
            return self;
        }
        self.odds.lose_members = 0.1 + luck.below(1000) as f64 / 2500.0;
        if self.has_loss {
            self.nodes = 5;
            self.slowness.resize(5, 1);
            self.smaller.resize(5, 0);
            self.odds.lose_members += 0.2;
        }
        self
    }

    /// In a third of the runs there are snapshots, some of them one behind the other; in half of these volumes keep their past.
    fn with_snapshots(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, 16);
        if luck.chance(0.33) && self.profile != "tight" {
            self.odds.snapshot = 0.5 + luck.below(1000) as f64 / 200.0;
            let keeps = luck.chance(0.5);
            for v in self.volumes.iter_mut().filter(|_| keeps) {
                v.retain_ms = Some(luck.range(1000, 4000));
            }
        }
        self
    }

    /// In half of the runs with nodes to spare some are emptied, and get something again.
    fn with_drains(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, DRAIN_SALT);
        let copies = self.volumes.iter().map(|v| u64::from(v.copies)).max().unwrap_or(1);
        if luck.chance(0.5) && self.has_leader && self.nodes > copies {
            self.odds.drain_node = 0.3 + luck.below(1000) as f64 / 1000.0;
        }
        self
    }

    /// In a quarter of the runs with a leader chains become shorter when members stand still for long, and longer again.
    fn with_shorter_chains(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, SHORTER_SALT);
        if !luck.chance(SHORTER_SHARE)
            || !self.has_leader
            || self.nodes < 2
            || matches!(self.profile, "calm" | "rot" | "tight")
        {
            return self;
        }
        for v in &mut self.volumes {
            v.copies = v.copies.max(2);
            v.min_copies = luck.range(1, 2) as u8;
            v.ack = if v.min_copies == 2 || luck.chance(0.5) { Ack::All } else { v.ack };
        }
        self.odds.pause_long = 0.2 + luck.below(1000) as f64 / 2000.0;
        self.load = self.load.plus(Nanos::from_millis(4000));
        self.until = self.load;
        if self.has_keys && luck.chance(0.5) { self.watched(&mut luck) } else { self }
    }

    /// In some runs nodes to spare take the places of others soon, and learn what they lack slowly, so that they count early for
    /// long. Meanwhile others die, go away or stand still, and come back in the middle.
    fn with_early_members(mut self) -> Self {
        let mut luck = Rng::fork(self.seed, EARLY_SALT);
        let can = self.has_keys && !self.has_seats && !matches!(self.profile, "calm" | "rot" | "tight");
        if !luck.chance(EARLY_SHARE) || !can {
            return self;
        }
        let drain_node = self.odds.drain_node;
        self = self.with_spare_nodes(&mut luck).watched(&mut luck);
        self.profile = "early";
        for v in &mut self.volumes {
            (v.copies, v.ack) = (3, Ack::Majority);
        }
        let mut some = |most: f64| most * luck.below(1000) as f64 / 1000.0;
        self.odds.leave_node = 0.2 + some(0.4);
        self.odds.pause_long = 0.1 + some(0.4);
        self.odds.kill_node = 0.2 + some(0.6);
        self.odds.fail_over = some(0.3);
        self.odds.drain_node = drain_node;
        self.early_pause = Nanos(luck.spread(200_000_000, 5_000_000_000));
        self.load = self.load.plus(Nanos::from_millis(5000));
        self.until = self.load;
        self
    }

    /// All else is as it should be, and clients have something to ask to the end.
    fn watched(mut self, luck: &mut Rng) -> Self {
        let (pause_long, pause_node, kill_node) = (self.odds.pause_long, luck.below(1000) as f64 / 2000.0, 0.2);
        self.odds = Odds { pause_long, pause_node, kill_node, ..Odds::default() };
        self.slowness.fill(1);
        (self.net.lost, self.net.flipped) = (0.0, 0.0);
        self.request_limit = Nanos::from_millis(120_000);
        self.volumes.iter_mut().for_each(|v| v.requests = WATCHED_REQUESTS);
        self.is_watched = true;
        self
    }

    /// Whether clients may be told to try again.
    #[must_use]
    pub fn limit_is_short(&self) -> bool {
        self.request_limit < self.load.plus(self.settle)
    }
}

impl VolumeConfig {
    fn draw(luck: &mut Rng, nodes: u64, profile: &str, requests: u64) -> Self {
        let (is_tight, is_crowded) = (profile == "tight", profile == "crowd");
        let shards = [1, 1, 2, 3][luck.below(4) as usize];
        let stripe = 64 << 10;
        let most = nodes.min(3);
        let copies = if is_tight || is_crowded || profile == "rot" {
            most
        } else {
            luck.range(1, most).max(luck.range(1, most))
        } as u8;
        let min_copies = luck.range(1, u64::from(copies.min(2))) as u8;
        let size = if is_tight { luck.range(8, 14) << 20 } else { (1 << 20) + luck.below(17) * (64 << 10) };
        Self {
            size,
            stripe,
            shards,
            copies,
            min_copies,
            ack: if luck.chance(if is_crowded { 0.5 } else { 0.2 }) { Ack::All } else { Ack::Majority },
            requests: if is_tight || is_crowded { requests * 3 } else { requests },
            retain_ms: None,
        }
    }
}

impl Odds {
    fn draw(profile: &str, luck: &mut Rng) -> Self {
        let mut o = Self::default();
        let mut some = |most: f64| luck.below(1000) as f64 / 1000.0 * most;
        let has = |names: &[&str]| names.contains(&profile) || profile == "everything";
        if has(&["kills"]) {
            o.kill_node = some(3.0);
            o.kill_all = some(0.5);
        }
        if has(&["power", "tight"]) {
            o.power_node = some(2.0);
            o.power_all = some(1.2);
        }
        if profile == "crowd" {
            o.slow_disk = 2.0 + some(4.0);
            o.break_link = 4.0 + some(12.0);
            o.pause_node = some(1.0);
            o.kill_node = some(1.0);
        }
        if has(&["links"]) {
            o.break_link = some(8.0);
            o.cut = some(2.0);
            o.pause_node = some(1.0);
        }
        if has(&["gateways"]) {
            o.kill_gateway = some(2.0);
            o.take_over = some(1.5);
            o.pause_gateway = some(1.0);
        }
        if has(&["gateways", "kills"]) {
            o.control_down = some(0.4);
            o.lose_answer = some(0.4);
        }
        if has(&["disks"]) {
            o.slow_disk = some(3.0);
            o.break_link = some(6.0);
            o.stall_disk = some(0.5);
            o.fail_write = some(0.8);
        }
        if profile == "rot" {
            o.rot = some(3.0);
            o.kill_node = some(1.0);
            o.power_node = some(0.5);
        }
        if profile == "gateways" || profile == "links" {
            o.kill_node = some(0.7);
        }
        if profile != "calm" {
            o.jump_clock = some(0.5);
        }
        o
    }

    /// Frames are lost where bits would have changed.
    fn with_loss(self, has_loss: bool, seed: u64) -> Self {
        let lose_append = 0.3 + 2.0 * (Rng::fork(seed, 4).below(1000) as f64 / 1000.0);
        if has_loss { Self { rot: 0.0, lose_append, ..self } } else { self }
    }

    /// Heads move in half of the runs, if they can at all.
    fn with_moves(self, can: bool, seed: u64) -> Self {
        let mut luck = Rng::fork(seed, 7);
        if !can || luck.chance(0.5) {
            return self;
        }
        let mut some = |most: f64| luck.below(1000) as f64 / 1000.0 * most;
        Self { move_head: some(3.0), fail_over: some(1.5), ..self }
    }

    /// Faults that were added later are drawn only where they can strike, so that older seeds stay what they were.
    #[must_use]
    pub fn is_newer(&self, name: &str) -> bool {
        matches!(
            name,
            "suspend_host"
                | "lose_control"
                | "old_image"
                | "kill_leader"
                | "leave_gateway"
                | "lag_seat"
                | "lose_members"
                | "snapshot"
                | "pause_long"
                | "drain_node"
        )
    }

    /// Names and odds, in a fixed order.
    #[must_use]
    pub fn list(&self) -> [(&'static str, f64); 31] {
        [
            ("kill_node", self.kill_node),
            ("power_node", self.power_node),
            ("kill_all", self.kill_all),
            ("power_all", self.power_all),
            ("pause_node", self.pause_node),
            ("break_link", self.break_link),
            ("cut", self.cut),
            ("kill_gateway", self.kill_gateway),
            ("take_over", self.take_over),
            ("pause_gateway", self.pause_gateway),
            ("slow_disk", self.slow_disk),
            ("stall_disk", self.stall_disk),
            ("fail_write", self.fail_write),
            ("rot", self.rot),
            ("lose_append", self.lose_append),
            ("control_down", self.control_down),
            ("lose_answer", self.lose_answer),
            ("jump_clock", self.jump_clock),
            ("move_head", self.move_head),
            ("fail_over", self.fail_over),
            ("leave_node", self.leave_node),
            ("suspend_host", self.suspend_host),
            ("lose_control", self.lose_control),
            ("old_image", self.old_image),
            ("kill_leader", self.kill_leader),
            ("leave_gateway", self.leave_gateway),
            ("lag_seat", self.lag_seat),
            ("lose_members", self.lose_members),
            ("snapshot", self.snapshot),
            ("pause_long", self.pause_long),
            ("drain_node", self.drain_node),
        ]
    }
}

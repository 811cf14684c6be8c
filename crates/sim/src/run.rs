//! One run from its seed to its verdict.

use crate::clones;
use crate::cluster::{Cluster, Mutants};
use crate::config::Config;
use crate::faults;
use crate::less::Less;
use crate::progress;
use crate::snapshots;
use crate::timing;
use crate::world::{World, show};
use freebs_types::Nanos;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::task::Poll;
use tokio::task::LocalSet;

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The seed of the run.
    pub seed: u64,
    /// Name of the kind of run.
    pub profile: &'static str,
    /// The parts of the run that were left out.
    pub less: Less,
    /// Empty if all went well.
    pub violations: Vec<String>,
    /// Equal for two runs that took the same course.
    pub trace: u64,
    /// Jobs of the simulated world that were done: deliveries, time-outs, faults.
    pub events: u64,
    /// Reads whose data were held against what they may be.
    pub reads: u64,
    /// Writes of clients that succeeded.
    pub writes: u64,
    /// Simulated time.
    pub time: Nanos,
    /// How often things happened: messages by name, faults, notes of the cores.
    pub counts: BTreeMap<String, u64>,
}

impl Outcome {
    /// True if nothing was violated.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    /// The command that repeats this run.
    #[must_use]
    pub fn replay(&self, mutants: Mutants) -> String {
        let chain = mutants.chain.map(|m| format!(" --mutant {m:?}"));
        let driver = mutants.driver.map(|m| format!(" --mutant {m:?}"));
        let control = mutants.control.map(|m| format!(" --mutant {m:?}"));
        let seats = mutants.seats.map(|m| format!(" --mutant {m:?}"));
        let mutant = chain.or(driver).or(control).or(seats).unwrap_or_default();
        let less = if self.less == Less::default() { String::new() } else { format!(" {}", self.less) };
        format!("cargo xtask sim {}{mutant}{less} --verbose", self.seed)
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, mutants: Mutants, verbose: bool) -> Outcome {
    run_config(Config::draw(seed), mutants, verbose)
}

/// Runs a configuration.
#[must_use]
pub fn run_config(config: Config, mutants: Mutants, verbose: bool) -> Outcome {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build() {
        Ok(runtime) => runtime,
        Err(e) => panic!("a runtime without I/O can always be made: {e}"),
    };
    let (seed, profile, less) = (config.seed, config.profile, config.less.clone());
    let course = || LocalSet::new().block_on(&runtime, Box::pin(course(config, mutants, verbose)));
    // An assertion of the cores that fails is a finding like any other.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(course)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_string())).unwrap_or_default();
        let violations = vec![format!("panic: {text}")];
        Outcome { seed, profile, less, violations, ..Outcome::default() }
    })
}

async fn course(config: Config, mutants: Mutants, verbose: bool) -> Outcome {
    let world = World::new(config.seed, verbose);
    world.say(|| format!("{config:#?}"));
    let (until, settle, has_rot) = (config.until, config.settle, config.has_rot);
    let blank = Outcome { seed: config.seed, profile: config.profile, less: config.less.clone(), ..Outcome::default() };
    let building = Cluster::build(config, &world, mutants);
    let cluster = match pumped(&world, building).await {
        Some(Ok(cluster)) => cluster,
        made => {
            let why = made.and_then(Result::err).map(|e| e.to_string()).unwrap_or_default();
            world.violation(format!("the cluster can't be made: {why}"));
            return outcome(blank, &world, (0, 0));
        }
    };
    cluster.start_nodes();
    if !has_control(&world, &cluster).await {
        return outcome(blank, &world, (0, 0));
    }
    cluster.start();
    world.pump(world.now().plus(timing::COME_UP)).await;
    faults::schedule(&cluster);
    snapshots::note_times(&cluster);
    world.pump(world.now().plus(until)).await;
    cluster.end_load();
    cluster.heal();
    if has_rot {
        // Nothing has to get well, but what is read is still judged.
        world.pump(world.now().plus(Nanos::from_millis(1000))).await;
    } else {
        verdict(&world, &cluster, settle).await;
    }
    cluster.oracle.check_all();
    cluster.oracle.check_clones();
    let judged = cluster.oracle.judged();
    let result = outcome(blank, &world, judged);
    cluster.end();
    result
}

fn outcome(blank: Outcome, world: &World, (reads, writes): (u64, u64)) -> Outcome {
    let (trace, events, time) = (world.trace_hash(), world.jobs_done(), world.now());
    let (violations, counts) = (world.take_violations(), world.take_counts());
    Outcome { violations, trace, events, reads, writes, time, counts, ..blank }
}

/// Drives the world while something waits for it. `None` if the run failed meanwhile.
async fn pumped<T>(world: &Rc<World>, what: impl Future<Output = T>) -> Option<T> {
    let mut what = std::pin::pin!(what);
    let mut pump = std::pin::pin!(world.pump(Nanos(u64::MAX / 4)));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(out) = what.as_mut().poll(cx) {
            return Poll::Ready(Some(out));
        }
        pump.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Pumps until `good` or until time is up; says whether it came to be.
async fn until(world: &Rc<World>, end: Nanos, good: impl Fn() -> bool) -> bool {
    while !good() {
        if world.now() >= end || world.is_failed() {
            return false;
        }
        world.pump(world.now().plus(timing::SETTLED_LOOK)).await;
    }
    true
}

/// If the nodes keep the control state, it begins with as many votes as there are to be.
async fn has_control(world: &Rc<World>, cluster: &Cluster) -> bool {
    let Some(seats) = cluster.control.seats() else { return true };
    let end = world.now().plus(timing::SEATS_SET_UP);
    let done = until(world, end, || seats.are_set_up()).await;
    if !done && !world.is_failed() {
        world.violation(format!("the seats do not come together: {}", seats.describe().join("\n    ")));
    }
    done
}

/// Without faults everything gets answered, everything can be read, and all replicas become the same.
async fn verdict(world: &Rc<World>, cluster: &Rc<Cluster>, settle: Nanos) {
    let end = world.now().plus(settle);
    if !until(world, end, || cluster.is_idle()).await {
        if !world.is_failed() {
            world.violation(format!("no end within {}: {}", show(settle), describe(cluster)));
        }
        return;
    }
    let gateways: Vec<_> = (0..cluster.volume_count()).filter_map(|i| cluster.current(i)).collect();
    for g in &gateways {
        g.begin_scan();
    }
    let end = world.now().plus(settle);
    if !until(world, end, || gateways.iter().all(|g| g.has_scanned() && g.in_flight() == 0)).await {
        if !world.is_failed() {
            world.violation(format!("the volumes can't be read within {}: {}", show(settle), describe(cluster)));
        }
        return;
    }
    let end = world.now().plus(timing::WHOLE_AGAIN);
    if !until(world, end, || progress::short(cluster).is_none()).await {
        if !world.is_failed() {
            let why = progress::short(cluster).unwrap_or_default();
            world.violation(format!(
                "chains are short after {}: {why} {}",
                show(timing::WHOLE_AGAIN),
                describe(cluster)
            ));
        }
        return;
    }
    let end = world.now().plus(settle);
    if !until(world, end, || cluster.unlevel().is_none()).await {
        if !world.is_failed() {
            let why = cluster.unlevel().unwrap_or_default();
            world.violation(format!("replicas are not level within {}: {why} {}", show(settle), describe(cluster)));
        }
        return;
    }
    let _ = pumped(world, cluster.compare_replicas()).await;
    let _ = pumped(world, snapshots::check(cluster)).await;
    let _ = pumped(world, clones::check(cluster)).await;
}

fn describe(cluster: &Cluster) -> String {
    let mut out = String::new();
    for g in (0..cluster.volume_count()).filter_map(|i| cluster.current(i)) {
        let _ = write!(out, "\n    gateway {} of volume {}, generation {}: {}", g.id, g.volume, g.generation, g.info());
    }
    for (shard, replicas) in cluster.statuses() {
        for (node, r) in replicas {
            let _ = write!(
                out,
                "\n    shard {shard} at node {node}: {}{} view {} last {}/{} durable {} committed {}",
                r.state,
                if r.is_head { " head," } else { "," },
                r.view,
                r.last.view,
                r.last.sequence,
                r.durable,
                r.committed
            );
        }
    }
    for node in &cluster.nodes {
        let Some(w) = node.worker() else { continue };
        let _ = write!(out, "\n    log of node {}: {:?}", node.id, w.engine().space());
    }
    for line in cluster.control.seats().map(|s| s.describe()).unwrap_or_default() {
        let _ = write!(out, "\n    {line}");
    }
    for node in cluster.nodes.iter().filter(|n| n.worker().is_none()) {
        let _ = write!(out, "\n    node {} has no worker (alive: {})", node.id, node.is_alive());
    }
    out
}

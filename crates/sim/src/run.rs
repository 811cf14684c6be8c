//! One run from its seed to its verdict.

use crate::cluster::{Cluster, Mutants};
use crate::config::Config;
use crate::faults;
use crate::world::{World, show};
use freebs_types::Nanos;
use std::rc::Rc;
use tokio::task::LocalSet;

/// How often the end of a run looks whether all is well.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);
/// Load and faults begin when the cluster has come up, or after this time at the latest.
const COME_UP: Nanos = Nanos::from_millis(300);

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub profile: &'static str,
    /// Empty if all went well.
    pub violations: Vec<String>,
    /// Equal for two runs that took the same course.
    pub trace: u64,
    pub events: u64,
    pub reads: u64,
    pub writes: u64,
    /// Simulated time.
    pub time: Nanos,
}

impl Outcome {
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    /// The command that repeats this run.
    #[must_use]
    pub fn replay(&self, mutants: Mutants) -> String {
        let mutant = match (mutants.chain, mutants.driver) {
            (Some(m), _) => format!(" --mutant {m:?}"),
            (_, Some(m)) => format!(" --mutant {m:?}"),
            _ => String::new(),
        };
        format!("cargo run -p freebs-sim -- {}{mutant} --verbose", self.seed)
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
    let local = LocalSet::new();
    local.block_on(&runtime, async { Box::pin(course(config, mutants, verbose)).await })
}

async fn course(config: Config, mutants: Mutants, verbose: bool) -> Outcome {
    let world = World::new(config.seed, verbose);
    world.say(|| format!("{config:#?}"));
    let (seed, profile, load, settle) = (config.seed, config.profile, config.load, config.settle);
    let has_rot = config.has_rot;
    let building = Cluster::build(config, &world, mutants);
    let cluster = match pumped(&world, building).await {
        Ok(cluster) => cluster,
        Err(e) => {
            world.violation(format!("the cluster can't be made: {e}"));
            return outcome(seed, profile, &world, (0, 0));
        }
    };
    cluster.start();
    world.pump(world.now().plus(COME_UP)).await;
    faults::schedule(&cluster);
    world.pump(world.now().plus(load)).await;
    cluster.end_load();
    cluster.heal();
    if has_rot {
        // Nothing has to get well, but what is read is still judged.
        world.pump(world.now().plus(Nanos::from_millis(1000))).await;
    } else {
        verdict(&world, &cluster, settle).await;
    }
    cluster.oracle.check_all();
    let judged = cluster.oracle.judged();
    let result = outcome(seed, profile, &world, judged);
    cluster.end();
    result
}

fn outcome(seed: u64, profile: &'static str, world: &World, (reads, writes): (u64, u64)) -> Outcome {
    let (trace, events, time) = (world.trace_hash(), world.jobs_done(), world.now());
    Outcome { seed, profile, violations: world.take_violations(), trace, events, reads, writes, time }
}

/// Drives the world while something of the set-up waits for it.
async fn pumped<T>(world: &Rc<World>, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    let end = Nanos(u64::MAX / 4);
    let mut pump = std::pin::pin!(world.pump(end));
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(out) = what.as_mut().poll(cx) {
            return std::task::Poll::Ready(out);
        }
        let _ = pump.as_mut().poll(cx);
        std::task::Poll::Pending
    })
    .await
}

/// Pumps until `good` or until time is up; says whether it came to be.
async fn until(world: &Rc<World>, end: Nanos, good: impl Fn() -> bool) -> bool {
    while !good() {
        if world.now() >= end || world.is_failed() {
            return false;
        }
        world.pump(world.now().plus(LOOK_EVERY)).await;
    }
    true
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
    let end = world.now().plus(settle);
    if !until(world, end, || cluster.unlevel().is_none()).await {
        if !world.is_failed() {
            let why = cluster.unlevel().unwrap_or_default();
            world.violation(format!("replicas are not level within {}: {why}", show(settle)));
        }
        return;
    }
    pumped(world, cluster.compare_replicas()).await;
}

fn describe(cluster: &Cluster) -> String {
    let gateways: Vec<String> = (0..cluster.volume_count())
        .filter_map(|i| cluster.current(i))
        .map(|g| format!("gateway {} in flight {}: {}", g.id, g.in_flight(), g.info()))
        .collect();
    format!("{gateways:#?} {:#?}", cluster.statuses())
}

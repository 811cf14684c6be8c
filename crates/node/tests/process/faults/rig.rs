//! Five nodes, or three, a gateway that does not belong to them, and its two clients.

use super::figures::{Figures, Stall};
use super::machine;
use super::prober::Prober;
use crate::support::cluster::{Cluster, Setup};
use crate::support::gateway::Gateway;
use crate::support::load::{Answers, Load};
use crate::support::oracle::Oracle;
use crate::support::plane::settled;
use crate::support::rng::Rng;
use crate::support::tools::{told, wait_for};
use crate::support::{Raised, full};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

pub const NODES: usize = 5;
/// The volume that both clients use.
pub const VOLUME: &str = "demo";
/// What the oracle has of it, from the beginning.
const REGION: u64 = 8 << 20;
/// Where the prober writes.
const PROBED: u64 = 64 << 20;
/// Requests that the oracle has in flight, in turn.
const DEPTHS: [usize; 2] = [4, 32];
/// Answered writes that show that it goes on. The prober sends one after the other.
pub const SOME: u64 = 30;

/// Five nodes, all of which vote. `more` goes to `freebs up`.
#[must_use]
pub fn five(more: &[&str]) -> Cluster {
    all_voting(NODES, more)
}

/// As many nodes, all of which vote: 3 or 5.
#[must_use]
pub fn all_voting(nodes: usize, more: &[&str]) -> Cluster {
    let more = more.iter().map(|m| (*m).to_owned()).collect();
    // Seven processes that look for work before they sleep take it from each other on a small machine. In the long form,
    // whose figures count, they are as users have them.
    let env = if full() { vec![] } else { vec![("FREEBS_BUSY_POLL".into(), "0".into())] };
    let c = Cluster::up(Setup { nodes: nodes as u16, more, env, ..Setup::default() });
    c.wait_healthy(VOLUME);
    settled(&c, nodes);
    c
}

/// When a fault happened, and when what had failed was started again or let go.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    pub hit: Instant,
    pub back: Instant,
}

/// A volume under load.
pub struct Rig<'a> {
    c: &'a Cluster,
    prober: Prober,
    gateway: Gateway,
    oracle: Oracle,
    rng: Rng,
    rounds: usize,
}

impl<'a> Rig<'a> {
    #[must_use]
    pub fn on(c: &'a Cluster, what: &str) -> Self {
        let mut rng = Rng::announced(what);
        let gateway = Gateway::start(c, c.dir(), "probe");
        let prober = Prober::connect(&gateway.place, VOLUME, PROBED);
        let oracle = Oracle::new(0, REGION, Rng::new(rng.next()));
        Self { c, prober, gateway, oracle, rng, rounds: 0 }
    }

    /// Lets one thing happen under load; it is told of the prober's answers. Then all members must be at work again, and
    /// hold what was answered.
    pub fn round(&mut self, fault: impl FnOnce(&Answers) -> Moments + Send) -> Stall {
        let Self { c, prober, gateway, oracle, rng, rounds } = self;
        // Of the two processors that a small machine has, the prober gets a good part.
        let depth = DEPTHS[*rounds % DEPTHS.len()];
        let load = Load { depth, pause: Duration::from_millis(1), ..Load::new(&gateway.place, VOLUME) };
        *rounds += 1;
        let calm = SOME + rng.below(2 * SOME);
        let mut moments = None;
        let writes = prober.answers.clone();
        prober.forget();
        oracle.tally.longest_gap = Duration::ZERO;
        let stop = AtomicBool::new(false);
        let (Moments { hit, back }, machine) = machine::beside(&c.dir().join("watch"), || {
            std::thread::scope(|s| {
                let _raised = Raised(&stop);
                s.spawn(|| prober.run(&stop));
                load.run(c, oracle, || {
                    writes.more(calm);
                    moments = Some(fault(&writes));
                    c.wait_healthy(VOLUME);
                    // Who comes back may have something to say of before.
                    writes.more(calm);
                });
            });
            let moments = moments.expect("the fault has happened");
            (moments, moments.hit)
        });
        let end = Instant::now();
        let tally = &oracle.tally;
        assert_eq!((tally.errors, tally.lost), (0, 0), "{tally:?}\n{}", c.log());
        prober.check();
        load.check(c, oracle);
        Stall {
            before: prober.longest_before(hit),
            fault: prober.longest(hit, back),
            back: prober.longest(back, end),
            resumed: prober.first_answer(back).saturating_duration_since(back),
            oracle: oracle.tally.longest_gap,
            machine,
        }
    }

    /// A generator for a test's own choices, of the seed that was told.
    pub fn seeded(&mut self) -> Rng {
        Rng::new(self.rng.next())
    }

    /// The longest part of a wait of the prober, since the last round began, within these spans, all together.
    #[must_use]
    pub fn longest_within(&self, spans: &[(Instant, Instant)]) -> Duration {
        self.prober.longest_within(spans)
    }

    /// All was answered, all is there, and all copies are the same: this can be told.
    pub fn end(self, figures: &[&Figures]) -> Known {
        let Self { c, prober, gateway, oracle, rng: _, rounds: _ } = self;
        assert!(oracle.tally.writes > 100 && oracle.tally.reads > 100, "hardly anything: {:?}", oracle.tally);
        drop(gateway);
        c.wait_healthy(VOLUME);
        c.verify(VOLUME);
        figures.iter().for_each(|f| f.tell());
        Known { prober, oracle }
    }
}

/// What clients were told of a volume.
pub struct Known {
    prober: Prober,
    oracle: Oracle,
}

impl Known {
    /// All of it is there still.
    pub fn check(&mut self, c: &Cluster) {
        let gateway = Gateway::start(c, c.dir(), "later");
        self.prober.move_to(&gateway.place);
        self.prober.check();
        Load::new(&gateway.place, VOLUME).check(c, &mut self.oracle);
    }
}

/// The process of a node that is up.
#[must_use]
pub fn pid_of(c: &Cluster, node: &str) -> u32 {
    c.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down\n{}", c.log())).1
}

/// Has the supervisor start a node whose process was killed.
pub fn start_node(c: &Cluster, node: &str, killed: u32) {
    // Until it knows that, it has nothing to start.
    c.wait_gone(killed);
    let data = c.data();
    let out = c.cli(&["node", "start", node, "--data", data.to_str().expect("a plain path")]);
    assert!(out.status.success(), "{}\n{}", told(&out), c.log());
}

/// Waits until another node heads the volume, and it has been used there.
pub fn another_head(c: &Cluster, old: &str, writes: &Answers) {
    wait_for("another head", || (c.chain(VOLUME).0 != old).then_some(()));
    writes.more(SOME);
}

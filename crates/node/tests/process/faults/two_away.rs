//! Six nodes, and up to two of them at a time killed or frozen at random, while others take the places of who is away
//! for long. Whenever two nodes that hold everything have been up for `GRACE`, requests are to be answered: at first
//! anybody goes, and that is seldom so; then two such nodes stay, until that was so for long enough.

use super::rig::{Moments, Rig, VOLUME, start_node};
use crate::support::cluster::{Cluster, Setup};
use crate::support::rng::Rng;
use crate::support::tools::say;
use crate::support::{PATIENCE, Raised, Weight, full, rounds, turn};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const NODES: u16 = 6;
const AWAY_MAX: usize = 2;
/// Nodes of a chain of three that are enough.
const ENOUGH: usize = 2;
/// Time that nodes may take until they answer again.
const GRACE: Duration = Duration::from_secs(2);

/// A request may wait for this long in all while two nodes that hold everything have been up for `GRACE`. A head that is
/// killed is replaced within a second; the rest is for a machine that does other things, too.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// That is looked at for longer than the longest wait, or nothing could be too late.
const GOOD_MIN: Duration = Duration::from_secs(15);

/// A span of time.
type Span = (Instant, Instant);

/// The nodes that were said to have everything, and when: between the question and the answer.
struct Sample {
    asked: Instant,
    told: Instant,
    holders: BTreeSet<String>,
}

fn names(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|n| Some(n.as_str()?.to_owned())).collect()
}

/// Members that are not learning, and former members that keep what they have.
fn holders(volume: &Value) -> BTreeSet<String> {
    let shard = &volume["shards"][0];
    let joining = names(&shard["joining"]);
    let members = shard["members"].as_array().into_iter().flatten();
    let mut all: BTreeSet<String> = members.filter_map(|m| Some(m["node"].as_str()?.to_owned())).collect();
    all.retain(|n| !joining.contains(n));
    all.extend(names(&shard["keepers"]));
    all
}

/// The samples until now, oldest first.
#[derive(Default)]
struct Samples(Mutex<Vec<Sample>>);

impl Samples {
    fn all(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.0.lock().expect("not poisoned")
    }

    fn newest(&self) -> BTreeSet<String> {
        self.all().last().map(|s| s.holders.clone()).unwrap_or_default()
    }

    /// Asks once.
    fn take(&self, c: &Cluster) {
        let asked = Instant::now();
        let holders = holders(&c.volume(VOLUME));
        self.all().push(Sample { asked, told: Instant::now(), holders });
    }

    /// Asks again and again until it is told to stop.
    fn watch(&self, c: &Cluster, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.take(c);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The reason why a node is away, and its process.
#[derive(Clone, Copy, Debug)]
enum Away {
    Killed(u32),
    Frozen(u32),
}

/// Nodes that come and go.
struct Chaos<'a> {
    c: &'a Cluster,
    rng: Rng,
    /// Nodes that are away, and until when.
    away: BTreeMap<String, (Away, Instant)>,
    /// Since when each of the others is up.
    up: BTreeMap<String, Instant>,
    /// When each was up: from its start, or its waking, until it was killed or frozen.
    was_up: BTreeMap<String, Vec<Span>>,
    kills: usize,
    freezes: usize,
}

impl<'a> Chaos<'a> {
    fn on(c: &'a Cluster, rng: Rng) -> Self {
        let up = c.nodes().into_iter().map(|n| (n.0, Instant::now())).collect();
        Self { c, rng, away: BTreeMap::new(), up, was_up: BTreeMap::new(), kills: 0, freezes: 0 }
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.rng.below(to - from))
    }

    /// Without this node enough others that hold everything have been up for long enough.
    fn can_be_spared(&self, node: &str, holders: &BTreeSet<String>) -> bool {
        let stays = |n: &String, since: &Instant| n != node && holders.contains(n) && since.elapsed() > GRACE;
        self.up.iter().filter(|(n, since)| stays(n, since)).count() >= ENOUGH
    }

    /// Somebody goes: a node that holds something of the volume, three times of four; if `gently`, one that can be spared.
    fn leave(&mut self, holders: &BTreeSet<String>, gently: bool) {
        let of_all = self.rng.one_in(4);
        let may = |n: &String| (of_all || holders.contains(n)) && (!gently || self.can_be_spared(n, holders));
        let may: Vec<String> = self.up.keys().filter(|n| may(n)).cloned().collect();
        if may.is_empty() {
            return;
        }
        let node = may[self.rng.below(may.len() as u64) as usize].clone();
        let pid = self.c.process_of(&node).unwrap_or_else(|| panic!("{node} ended by itself\n{}", self.c.log()));
        let until = Instant::now() + self.ms(300, 7000);
        let since = self.up.remove(&node).expect("it is up");
        self.was_up.entry(node.clone()).or_default().push((since, Instant::now()));
        let how = if self.rng.one_in(2) {
            self.kills += 1;
            self.c.kill(&[pid]);
            Away::Killed(pid)
        } else {
            self.freezes += 1;
            self.c.pause(pid);
            Away::Frozen(pid)
        };
        self.away.insert(node, (how, until));
    }

    fn come_back(&mut self, node: &str) {
        match self.away.remove(node).expect("it is away").0 {
            Away::Killed(pid) => start_node(self.c, node, pid),
            Away::Frozen(pid) => self.c.resume(pid),
        }
        self.up.insert(node.to_owned(), Instant::now());
    }

    fn run(&mut self, samples: &Samples, gently: bool, is_over: impl Fn(&Self) -> bool) {
        while !is_over(self) {
            let due: Vec<String> =
                self.away.iter().filter(|(_, (_, until))| *until <= Instant::now()).map(|(n, _)| n.clone()).collect();
            due.iter().for_each(|n| self.come_back(n));
            if self.away.len() < AWAY_MAX {
                self.leave(&samples.newest(), gently);
            }
            let pause = self.ms(50, 1200);
            std::thread::sleep(pause);
        }
    }

    fn end(&mut self) {
        let left: Vec<String> = self.away.keys().cloned().collect();
        left.iter().for_each(|n| self.come_back(n));
    }

    /// When each node was up until now.
    fn was_up(&self) -> BTreeMap<String, Vec<Span>> {
        let mut all = self.was_up.clone();
        for (node, since) in &self.up {
            all.entry(node.clone()).or_default().push((*since, Instant::now()));
        }
        all
    }

    /// First anybody goes, for this long; then who can be spared, until enough was seen.
    fn both_ways(&mut self, samples: &Samples, time: Duration) {
        let begun = Instant::now();
        self.run(samples, false, |_| begun.elapsed() >= time);
        let wanted = GOOD_MIN.max(time);
        let is_enough = |c: &Self| length(&good(&samples.all(), &c.was_up())) >= wanted;
        self.run(samples, true, |c| is_enough(c) || begun.elapsed() >= time + wanted + PATIENCE);
        self.end();
    }
}

fn length(spans: &[Span]) -> Duration {
    spans.iter().map(|s| s.1 - s.0).sum()
}

/// When a node was seen, by one sample and the next ones, to hold everything.
fn held(samples: &[Sample], node: &str) -> Vec<Span> {
    let mut spans = vec![];
    for run in samples.chunk_by(|a, b| a.holders.contains(node) == b.holders.contains(node)) {
        if run[0].holders.contains(node) && run[0].told < run[run.len() - 1].asked {
            spans.push((run[0].told, run[run.len() - 1].asked));
        }
    }
    spans
}

fn both(a: Span, b: Span) -> Option<Span> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (from < to).then_some((from, to))
}

/// When at least `ENOUGH` nodes had held everything and been up for `GRACE`, as spans that do not touch.
fn good(samples: &[Sample], was_up: &BTreeMap<String, Vec<Span>>) -> Vec<Span> {
    let mut steps: Vec<(Instant, i32)> = vec![];
    for (node, up) in was_up {
        for span in up {
            for (from, to) in held(samples, node).into_iter().filter_map(|h| both(*span, h)) {
                if from + GRACE < to {
                    steps.extend([(from + GRACE, 1), (to, -1)]);
                }
            }
        }
    }
    steps.sort_by_key(|s| (s.0, -s.1));
    let (mut there, mut since, mut spans) = (0, None, vec![]);
    for (at, step) in steps {
        there += step;
        match since {
            None if there >= ENOUGH as i32 => since = Some(at),
            Some(from) if there < ENOUGH as i32 => {
                spans.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    spans
}

#[test]
fn with_two_nodes_that_hold_everything_requests_are_answered() {
    let _turn = turn(Weight::Loaded);
    let time = Duration::from_secs(if full() { 70 } else { 15 });
    let mut more = vec!["--no-restart".to_owned()];
    more.extend(["--replace-after", "3s"].map(String::from));
    let c = Cluster::up(Setup { nodes: NODES, more, ..Setup::default() });
    c.wait_healthy(VOLUME);
    let mut rig = Rig::on(&c, "two of six away");
    for round in 0..rounds(1, 3) {
        let mut chaos = Chaos::on(&c, rig.seeded());
        let (stop, samples, begun) = (AtomicBool::new(false), Samples::default(), Instant::now());
        samples.take(&c);
        rig.round(|_| {
            std::thread::scope(|s| {
                let raised = Raised(&stop);
                let watching = s.spawn(|| samples.watch(&c, &stop));
                chaos.both_ways(&samples, time);
                drop(raised);
                watching.join().expect("the watcher ends");
            });
            Moments { hit: begun, back: Instant::now() }
        });
        let (kills, freezes) = (chaos.kills, chaos.freezes);
        let spans = good(&samples.all(), &chaos.was_up());
        let (longest, all) = (rig.longest_within(&spans), rig.longest_within(&[(begun, Instant::now())]));
        say(&format!(
            "measured: round {round}: {kills} kills and {freezes} freezes in {:.0} s, at most {AWAY_MAX} of {NODES} \
             nodes away; for {:.0} s two that hold everything had been up for {GRACE:?}: longest wait then {:.3} s, at \
             any time {:.3} s; errors 0, lost answers 0",
            begun.elapsed().as_secs_f64(),
            length(&spans).as_secs_f64(),
            longest.as_secs_f64(),
            all.as_secs_f64(),
        ));
        assert!(kills + freezes > 2, "hardly anything happened");
        assert!(length(&spans) >= GOOD_MIN, "there was no time to look at: {:?}", length(&spans));
        assert!(longest < WAIT_MAX, "requests waited for {longest:?} with everything there\n{}", c.log());
    }
    rig.end(&[]);
}

mod tests {
    use super::{GRACE, Sample, good};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    #[test]
    fn spans_in_which_two_hold_everything_are_found() {
        let zero = Instant::now();
        let at = |s: u64| zero + Duration::from_secs(s);
        let sample = |s: u64, of: &[&str]| Sample {
            asked: at(s),
            told: at(s),
            holders: of.iter().map(|n| (*n).to_owned()).collect(),
        };
        let samples: Vec<Sample> = (0..40).map(|s| sample(s, if s < 20 { &["a", "b"] } else { &["b", "c"] })).collect();
        let up = |spans: &[(u64, u64)]| spans.iter().map(|s| (at(s.0), at(s.1))).collect::<Vec<_>>();
        let was_up = BTreeMap::from([
            ("a".to_owned(), up(&[(0, 40)])),
            ("b".to_owned(), up(&[(0, 8), (10, 40)])),
            ("c".to_owned(), up(&[(0, 30)])),
        ]);
        let grace = GRACE.as_secs();
        assert_eq!(good(&samples, &was_up), up(&[(grace, 8), (10 + grace, 19), (20 + grace, 30)]));
    }
}

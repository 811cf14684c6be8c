//! Time and order of a run: one queue of things that will happen, on tokio's paused clock.
//!
//! Devices, links, faults and clients put jobs into the queue; the pump carries them out one by one in order of
//! (time, number), and lets every task that one has woken run until it waits before it takes the next. So a run is
//! a function of its seed. Time is tokio's paused clock, in nanoseconds since the run began; its timers, and with
//! them the sleeps of the cores, tick in milliseconds.

use crate::rng::{Rng, mix};
use freebs_types::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// Jobs after which a run is given up: something goes round in circles.
const JOBS_MAX: u64 = 3_000_000;

type Job = Box<dyn FnOnce()>;

/// State that all parts of a run share.
pub struct World {
    begun: tokio::time::Instant,
    queue: RefCell<BTreeMap<(Nanos, u64), Job>>,
    next: Cell<u64>,
    earlier: Notify,
    trace: Cell<u64>,
    jobs: Cell<u64>,
    violations: RefCell<Vec<String>>,
    verbose: bool,
    /// Faults that wait for a moment: (moment, how many of them to let pass, what to do).
    armed: RefCell<Vec<(&'static str, u64, Job)>>,
    /// How often things happened, by name: what a run has tried at all.
    counts: RefCell<BTreeMap<String, u64>>,
    /// Chance for latencies of devices and links.
    pub luck: RefCell<Rng>,
}

impl World {
    /// To be made inside a runtime whose clock is paused.
    #[must_use]
    pub fn new(seed: u64, verbose: bool) -> Rc<Self> {
        Rc::new(Self {
            begun: paused_now(),
            queue: RefCell::default(),
            next: Cell::new(0),
            earlier: Notify::new(),
            trace: Cell::new(seed),
            jobs: Cell::new(0),
            violations: RefCell::default(),
            verbose,
            armed: RefCell::default(),
            counts: RefCell::default(),
            luck: RefCell::new(Rng::fork(seed, 1)),
        })
    }

    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(paused_now().duration_since(self.begun).as_nanos() as u64)
    }

    /// Has `job` done after `delay`.
    pub fn after(&self, delay: Nanos, job: impl FnOnce() + 'static) {
        let at = self.now().plus(delay);
        let number = self.next.get();
        self.next.set(number + 1);
        let mut queue = self.queue.borrow_mut();
        let is_first = queue.first_key_value().is_none_or(|((t, _), _)| at < *t);
        queue.insert((at, number), Box::new(job));
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Has `job` done right behind the moment that follows `pass` more of its name.
    pub fn when(&self, moment: &'static str, pass: u64, job: impl FnOnce() + 'static) {
        self.armed.borrow_mut().push((moment, pass, Box::new(job)));
    }

    /// Counts something that happened.
    pub fn count(&self, name: impl Into<String>) {
        *self.counts.borrow_mut().entry(name.into()).or_default() += 1;
    }

    pub fn take_counts(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.counts.borrow_mut())
    }

    /// Something happened that faults may wait for.
    pub fn moment(&self, name: &str) {
        self.count(name);
        let mut armed = self.armed.borrow_mut();
        if armed.is_empty() {
            return;
        }
        let mut due = Vec::new();
        armed.retain_mut(|(moment, pass, job)| {
            if *moment != name {
                return true;
            }
            if *pass > 0 {
                *pass -= 1;
                return true;
            }
            due.push(std::mem::replace(job, Box::new(|| {})));
            false
        });
        drop(armed);
        for job in due {
            let wait = Nanos(self.luck.borrow_mut().spread(1, 3_000_000));
            self.after(wait, job);
        }
    }

    /// Carries out jobs until `until`, or until the run has failed.
    pub async fn pump(&self, until: Nanos) {
        while self.now() < until && !self.is_failed() {
            let first = self.queue.borrow().first_key_value().map(|((t, _), _)| *t);
            match first {
                Some(at) if at <= self.now() => {
                    let job = self.queue.borrow_mut().pop_first();
                    if let Some((_, job)) = job {
                        self.jobs.set(self.jobs.get() + 1);
                        job();
                    }
                    if self.jobs.get() > JOBS_MAX {
                        self.violation(format!("more than {JOBS_MAX} events: something goes round in circles"));
                    }
                    // Everything that the job woke runs before the next one.
                    tokio::task::yield_now().await;
                }
                first => {
                    let wait = first.unwrap_or(until).min(until).since(self.now());
                    let _ = tokio::time::timeout(Duration::from_nanos(wait.0.max(1)), self.earlier.notified()).await;
                }
            }
        }
    }

    /// Drops everything that is still to happen, and with it what holds the parts of the run together.
    pub fn clear(&self) {
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        drop(queue);
        let armed = std::mem::take(&mut *self.armed.borrow_mut());
        drop(armed);
    }

    /// Mixes what just happened into the trace of the run.
    pub fn trace(&self, what: u64, a: u64, b: u64) {
        let t = mix(self.trace.get() ^ what).rotate_left(17) ^ mix(a).rotate_left(31) ^ mix(b ^ 0x5555);
        self.trace.set(mix(t ^ self.now().0));
    }

    /// Two runs with the same hash took the same course.
    pub fn trace_hash(&self) -> u64 {
        self.trace.get()
    }

    pub fn jobs_done(&self) -> u64 {
        self.jobs.get()
    }

    /// Something that must never be. The run ends at the first one.
    pub fn violation(&self, what: String) {
        self.say(|| format!("VIOLATION {what}"));
        self.violations.borrow_mut().push(format!("at {}: {what}", show(self.now())));
    }

    pub fn is_failed(&self) -> bool {
        !self.violations.borrow().is_empty()
    }

    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.violations.borrow_mut())
    }

    /// A line for people, if they asked for lines.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if self.verbose {
            println!("{} {}", show(self.now()), line());
        }
    }

    pub fn is_verbose(&self) -> bool {
        self.verbose
    }
}

/// Simulated time for people.
#[must_use]
pub fn show(at: Nanos) -> String {
    format!("{:>4}.{:06} s", at.0 / 1_000_000_000, at.0 / 1_000 % 1_000_000)
}

#[allow(clippy::disallowed_methods, reason = "the clock is paused: this is the simulated time")]
fn paused_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_of_time_and_tasks_run_between_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let world = World::new(1, false);
            let seen = Rc::new(RefCell::new(Vec::new()));
            for (delay, name) in [(5_000_000, "c"), (100, "a"), (200, "b")] {
                let (seen, notify) = (seen.clone(), Rc::new(Notify::new()));
                let (s, n) = (seen.clone(), notify.clone());
                tokio::task::spawn_local(async move {
                    n.notified().await;
                    s.borrow_mut().push(format!("{name} woken"));
                });
                world.after(Nanos(delay), move || {
                    seen.borrow_mut().push(name.to_string());
                    notify.notify_one();
                });
            }
            world.pump(Nanos::from_millis(4)).await;
            assert_eq!(*seen.borrow(), ["a", "a woken", "b", "b woken"]);
            world.pump(Nanos::from_millis(9)).await;
            assert_eq!(seen.borrow().len(), 6);
            assert_eq!(world.now(), Nanos::from_millis(9));
        });
    }
}

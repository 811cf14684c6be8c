//! What is told of a fault that was repeated.

use crate::support::tools::say;
use std::time::Duration;

/// One round's longest waits, of the client that writes without a pause if nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Before the fault.
    pub before: Duration,
    /// From the fault until what had failed was started again, or let go.
    pub fault: Duration,
    /// From then on.
    pub back: Duration,
    /// From then on until the first answer.
    pub resumed: Duration,
    /// The other client's, over the whole round; it reads, too.
    pub oracle: Duration,
    /// What the machine made somebody else wait from the fault on.
    pub machine: Duration,
}

impl Stall {
    fn all(&self) -> Duration {
        self.fault.max(self.back)
    }
}

/// A fault, what is asked of it, and its rounds.
#[derive(Debug)]
pub struct Figures {
    what: String,
    median_asked: Option<f64>,
    longest_asked: Option<f64>,
    rounds: Vec<Stall>,
}

fn beside(asked: Option<f64>) -> String {
    asked.map_or(String::new(), |s| format!(" (asked: at most {s})"))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0
}

impl Figures {
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), median_asked: None, longest_asked: None, rounds: vec![] }
    }

    /// In seconds.
    #[must_use]
    pub fn median_asked(self, seconds: f64) -> Self {
        Self { median_asked: Some(seconds), ..self }
    }

    /// In seconds.
    #[must_use]
    pub fn longest_asked(self, seconds: f64) -> Self {
        Self { longest_asked: Some(seconds), ..self }
    }

    pub fn add(&mut self, stall: Stall) {
        let (n, s) = (self.rounds.len(), |d: Duration| d.as_secs_f64());
        say(&format!(
            "{}, round {n}: {:.3} s, when it was back {:.3} s (first answer after {:.3} s), \
             before {:.3} s; the oracle {:.3} s, the machine {:.3} s",
            self.what,
            s(stall.fault),
            s(stall.back),
            s(stall.resumed),
            s(stall.before),
            s(stall.oracle),
            s(stall.machine)
        ));
        self.rounds.push(stall);
    }

    /// One line of all rounds, once it is known that everything was right. Without rounds there is nothing to tell.
    pub fn tell(&self) {
        if self.rounds.is_empty() {
            return;
        }
        let of = |f: fn(&Stall) -> Duration| self.rounds.iter().map(|s| f(s).as_secs_f64()).collect::<Vec<_>>();
        let most = |f| of(f).into_iter().fold(0.0, f64::max);
        say(&format!(
            "measured: {}: {} rounds, median stall {:.3} s{}, longest {:.3} s{}; longest when it was back {:.3} s, \
             until it went on then {:.3} s, before the fault {:.3} s, of the oracle {:.3} s, of the machine {:.3} s; \
             errors 0, lost answers 0, replicas agree",
            self.what,
            self.rounds.len(),
            median(of(Stall::all)),
            beside(self.median_asked),
            most(Stall::all),
            beside(self.longest_asked),
            most(|s| s.back),
            most(|s| s.resumed),
            most(|s| s.before),
            most(|s| s.oracle),
            most(|s| s.machine),
        ));
    }
}

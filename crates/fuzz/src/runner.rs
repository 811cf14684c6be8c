//! Many executions of a target: mutations of what is kept, deterministic by seed.

use crate::execute::{Wrong, execute};
use crate::mutate::mutate;
use crate::rng::{Rng, hash, mix};
use crate::{Target, signal};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Inputs that are held to be mutated, at most; then old ones make room.
const POOL_MAX: usize = 4096;
/// An execution that takes longer is a finding.
pub const SLOW: Duration = Duration::from_secs(10);
/// Bits of the set of what was seen.
const SEEN_BITS: usize = 1 << 18;

/// How long to run: whichever ends first.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    pub runs: u64,
    pub seconds: Option<u64>,
}

/// Something that is wrong, and the input that shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    pub wrong: Wrong,
    pub data: Vec<u8>,
}

/// Figures of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub executions: u64,
    pub seconds: f64,
    /// Inputs that showed something new.
    pub kept: usize,
    pub seen: usize,
    /// One of each, the first that came.
    pub findings: Vec<Finding>,
}

struct Seen {
    bits: Vec<u64>,
    count: usize,
}

impl Seen {
    /// Takes in what the last execution showed; whether any of it is new.
    fn take_in(&mut self) -> bool {
        let before = self.count;
        for s in signal::take() {
            let bit = s as usize % SEEN_BITS;
            let word = &mut self.bits[bit / 64];
            self.count += usize::from(*word & (1 << (bit % 64)) == 0);
            *word |= 1 << (bit % 64);
        }
        self.count > before
    }
}

thread_local! {
    static CURRENT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The input of the execution that is going on in this thread.
#[must_use]
pub fn current() -> Vec<u8> {
    CURRENT.with_borrow(Clone::clone)
}

/// Executes once, and says what is wrong; an execution that takes too long is wrong, too.
pub fn once(target: &Target, data: &[u8]) -> Option<Wrong> {
    CURRENT.with_borrow_mut(|c| {
        c.clear();
        c.extend_from_slice(data);
    });
    let begun = Instant::now();
    let result = execute(target, data);
    let took = begun.elapsed();
    match result {
        Err(wrong) => Some(wrong),
        Ok(()) if took > SLOW => {
            let message = format!("an execution took {} s", took.as_secs());
            Some(Wrong::Panicked { message, place: "slow".into() })
        }
        Ok(()) => None,
    }
}

/// Runs a target on `kept`, and on mutations of it. `told` is called about once a second.
pub fn run(target: &Target, kept: &[Vec<u8>], length: Length, seed: u64, mut told: impl FnMut(&Report)) -> Report {
    let begun = Instant::now();
    let mut rng = Rng::new(seed ^ mix(hash(target.name.as_bytes())));
    let mut seen = Seen { bits: vec![0; SEEN_BITS / 64], count: 0 };
    let (mut pool, mut report) = (Vec::new(), Report::default());
    let mut second = 0;
    let mut one = |data: Vec<u8>, keep: bool, pool: &mut Vec<Vec<u8>>, report: &mut Report, rng: &mut Rng| {
        report.executions += 1;
        let wrong = once(target, &data);
        let new = seen.take_in();
        report.seen = seen.count;
        if let Some(wrong) = wrong {
            if !report.findings.iter().any(|f| f.wrong.name() == wrong.name()) {
                report.findings.push(Finding { wrong, data });
            }
        } else if new || keep {
            report.kept += usize::from(new && !keep);
            if pool.len() < POOL_MAX {
                pool.push(data);
            } else {
                pool[rng.below(POOL_MAX)] = data;
            }
        }
    };
    for data in kept {
        one(data.clone(), true, &mut pool, &mut report, &mut rng);
    }
    if pool.is_empty() {
        pool.push(vec![0; 2]);
    }
    while report.executions < length.runs {
        // New inputs are mutated more often than old ones.
        let newest = pool.len() - pool.len().min(16);
        let at = if rng.chance(30) { newest + rng.below(pool.len() - newest) } else { rng.below(pool.len()) };
        let other = rng.below(pool.len());
        let data = mutate(&mut rng, &pool[at], &pool[other], target.words, target.input_bytes_max);
        one(data, false, &mut pool, &mut report, &mut rng);
        if report.executions.is_multiple_of(16) {
            let now = begun.elapsed().as_secs();
            if now > second {
                second = now;
                report.seconds = begun.elapsed().as_secs_f64();
                told(&report);
            }
            if length.seconds.is_some_and(|s| now >= s) {
                break;
            }
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report
}

/// A shorter input that is wrong in the same way, by at most `tries` executions.
#[must_use]
pub fn shorten(target: &Target, finding: &Finding, tries: usize) -> Vec<u8> {
    let mut best = finding.data.clone();
    let mut left = tries;
    let mut size = best.len() / 2;
    while size > 0 && left > 0 {
        let mut at = 0;
        while at < best.len() && left > 0 {
            let mut less = best.clone();
            less.drain(at..(at + size).min(best.len()));
            left -= 1;
            if once(target, &less).is_some_and(|w| w.name() == finding.wrong.name()) {
                best = less;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    best
}

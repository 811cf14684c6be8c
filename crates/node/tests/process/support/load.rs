//! The oracle as a load on a cluster to which things happen, and what is looked at when they have happened.

use super::cluster::Cluster;
use super::nbd::{Client, Place};
use super::oracle::Oracle;
use super::tools::{say, wait_for};
use super::{PATIENCE, Raised};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A block that holds a number, all over.
#[must_use]
pub fn block_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(4096 / 8)
}

/// The number that a block holds; one of two writes would be torn.
#[must_use]
pub fn number_of(block: &[u8]) -> u64 {
    let number = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
    assert!(block == block_of(number), "a block of one write");
    number
}

/// How many answers a client has got, for those who wait for more.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<AtomicU64>);

impl Answers {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until the client has got `count` more. If that is more than it has in flight, some of them are to requests
    /// that it sends from now on.
    pub fn more(&self, count: u64) {
        let (wanted, begun) = (self.count() + count, Instant::now());
        while self.count() < wanted {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} of {count} more answers after {PATIENCE:?}",
                self.count() + count - wanted
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// How a load is put on a volume.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    pub place: &'a Place,
    pub volume: &'a str,
    /// Requests in flight.
    pub depth: usize,
    /// What the client does nothing for, between an answer and what it sends next.
    pub pause: Duration,
}

impl<'a> Load<'a> {
    #[must_use]
    pub fn new(place: &'a Place, volume: &'a str) -> Self {
        Self { place, volume, depth: 32, pause: Duration::ZERO }
    }

    #[must_use]
    pub fn attach(&self) -> Client {
        Client::attach(self.place, self.volume)
    }

    /// Runs the oracle while `faults` happen. If the connection ends it connects again.
    pub fn run(&self, c: &Cluster, oracle: &mut Oracle, faults: impl FnOnce() + Send) {
        let done = AtomicBool::new(false);
        // The faults' clock begins when there is somebody whom they can hit.
        let mut client = self.attach();
        let stop = || {
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
            done.load(Ordering::Relaxed)
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                // Also when the faults panic, so that the other side ends.
                let _raised = Raised(&done);
                faults();
            });
            loop {
                match oracle.run(&mut client, self.depth, stop) {
                    Ok(true) => break,
                    Ok(false) => client = self.attach(),
                    Err(e) => {
                        say(&format!("{e}\n{}", c.log()));
                        panic!("the volume broke its promise: {e}");
                    }
                }
            }
        });
    }

    /// Reads all that the oracle knows, twice, with nothing else of it under way.
    pub fn check(&self, c: &Cluster, oracle: &mut Oracle) {
        let mut client = self.attach();
        for _ in 0..2 {
            oracle.read_all(&mut client).unwrap_or_else(|e| panic!("{e}\n{}", c.log()));
        }
    }
}

/// The processes of all nodes that are up.
#[must_use]
pub fn pids(c: &Cluster) -> Vec<u32> {
    c.nodes().iter().map(|n| n.1).collect()
}

/// Waits until the supervisor has started all nodes again; their new processes. `old` are those that were killed.
pub fn all_up(c: &Cluster, nodes: usize, old: &[u32]) -> Vec<u32> {
    wait_for("all nodes again", || {
        let now = pids(c);
        (now.len() == nodes && now.iter().all(|p| !old.contains(p))).then_some(now)
    })
}

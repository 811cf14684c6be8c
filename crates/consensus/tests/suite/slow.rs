//! A leader with a slow disk that is asked without a pause, in simulated time.

use freebs_consensus::types::Randomness;
use freebs_consensus::{Network, Options, Peer, Seat, Store, Timing};
use freebs_control::{Command, State};
use freebs_io::faults::CrashDevice;
use freebs_io::{AlignedBuf, Device, Durability, Random};
use freebs_types::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};

const CLUSTER: ClusterId = ClusterId([8; 16]);
/// A disk under load needs this long for a sync.
const SYNC_MS: u64 = 100;
/// A worker asks again after this time for what it was not answered.
const ASKED_EVERY_MS: u64 = 60;

struct Nobody;

impl Network for Nobody {
    fn send(&self, _: Seat, _: Vec<u8>) {}
}

struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes.iter_mut().zip(self.0.to_le_bytes().iter().cycle()).for_each(|(b, n)| *b = *n);
    }
}

/// A device on which all that must reach stable media takes `SYNC_MS`.
#[derive(Clone)]
struct Slow(CrashDevice);

async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

impl Device for Slow {
    fn sector(&self) -> usize {
        self.0.sector()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.0.read(at, len).await
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        if durability == Durability::Durable {
            sleep(SYNC_MS).await;
        }
        self.0.write(at, buf, durability).await
    }

    async fn sync(&self) -> Result<()> {
        sleep(SYNC_MS).await;
        self.0.sync().await
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len).await
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.0.punch(at, len).await
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.0.prewrite(at, len).await
    }
}

async fn leader() -> Peer {
    let (start, noted) = (StartNumber(1), StartNumber(0));
    let options = Options { cluster: CLUSTER, node: NodeId(1), start, noted, room: 64 << 10, mutant: None };
    let device = Slow(CrashDevice::new(4096, 1 << 30));
    let random = Box::new(Counting(7));
    let store = Store::found(device, options, random, &State::new(CLUSTER)).await.unwrap();
    let peer = Peer::start(store, Nobody, Timing::default(), BTreeSet::new(), 7, None).await.unwrap();
    peer.stand().await;
    while peer.leader().0 != Some(peer.seat()) {
        sleep(10).await;
    }
    peer
}

/// The library dealt with each command that had come while the one before was written, and with nothing else: it never
/// heard that one was on the disk, so nothing was committed for as long as commands came.
#[test]
fn a_leader_with_a_slow_disk_decides_while_it_is_asked_without_a_pause() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let peer = Randomness::scope(1, leader()).await;
        let answered = Rc::new(Cell::new(0));
        for n in 0..100 {
            let (one, count) = (peer.clone(), answered.clone());
            let (name, address) = (format!("n{n}"), format!("h{n}:1"));
            let command =
                Command::RegisterNode { node: NodeId(n + 1), name, address, workers: 1, start: StartNumber(1) };
            spawn_local(Randomness::scope(n, async move {
                one.submit(command).await.unwrap();
                count.set(count.get() + 1);
            }));
            sleep(ASKED_EVERY_MS).await;
        }
        // Of six seconds the last part is still under way.
        assert!(answered.get() > 80, "{} of 100 commands were answered meanwhile", answered.get());
    });
}

//! A bank: money moves between accounts that lie in blocks of their own, each time in one interval. Whatever is killed,
//! no sum is lost or made.

use crate::support::Nodes;
use freebs::{Cluster, ErrorKind, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

const ACCOUNTS: usize = 200;
const TASKS: u64 = 8;
const EACH: u64 = 1000;

/// Accounts lie in blocks far from each other, and not at their beginnings.
fn place(account: usize) -> u64 {
    account as u64 * 5 * 4096 + 300
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

async fn sum(volume: &Volume) -> u64 {
    let mut sum = 0;
    for account in 0..ACCOUNTS {
        sum += number(&volume.read(place(account), 8).await.expect("a balance"));
    }
    sum
}

/// One task's transfers. The locks keep tasks from reading what another one is about to change.
async fn transfers(
    volume: Volume,
    locks: Arc<Vec<Mutex<()>>>,
    task: u64,
    (moved, several): (Arc<AtomicU64>, Arc<AtomicU64>),
    stop: Arc<AtomicBool>,
) {
    let mut luck = task + 1;
    while !stop.load(Ordering::Relaxed) {
        luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (a, b) = ((luck >> 33) as usize % ACCOUNTS, (luck >> 48) as usize % ACCOUNTS);
        if a == b {
            continue;
        }
        let (_first, _second) = (locks[a.min(b)].lock().await, locks[a.max(b)].lock().await);
        let mut interval = volume.interval().expect("it is attached");
        let (from, to) = match (interval.read(place(a), 8).await, interval.read(place(b), 8).await) {
            (Ok(from), Ok(to)) => (number(&from), number(&to)),
            // Another program has taken the volume over.
            (Err(e), _) | (_, Err(e)) => return assert_eq!(e.kind, ErrorKind::Fenced, "{e}"),
        };
        let amount = (luck >> 20) % (from / 4 + 1);
        interval.write(place(a), (from - amount).to_le_bytes().to_vec()).unwrap();
        interval.write(place(b), (to + amount).to_le_bytes().to_vec()).unwrap();
        assert_eq!(number(&interval.read(place(a), 8).await.unwrap()), from - amount, "own writes are seen");
        if luck.is_multiple_of(7) {
            interval.abort();
            let now = volume.read(place(a), 8).await.map(|b| number(&b));
            assert!(now.is_err() || now == Ok(from), "it never was");
            continue;
        }
        match interval.commit().await {
            Ok(outcome) => {
                let places = outcome.committed().expect("it is committed");
                assert!((1..=2).contains(&places.len()));
                several.fetch_add(u64::from(places.len() > 1), Ordering::Relaxed);
            }
            Err(e) => return assert_eq!(e.kind, ErrorKind::Fenced, "{e}"),
        }
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Money is moved while the volume's head is killed; then another program of the same name takes the volume over, as if this one
/// had been killed, in the middle of what it does. Gives back how many transfers changed several shards.
async fn run(name: &str) -> u64 {
    let nodes = Nodes::up();
    nodes.cli(&["volume", "create", "wide", "--size", "64M", "--shards", "4"]);
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let cluster = Cluster::connect_as(&addresses, "bank").await.unwrap();
    let volume = Volume::attach(&cluster, name).await.unwrap();
    let mut opening = volume.interval().unwrap();
    for account in 0..ACCOUNTS {
        opening.write(place(account), EACH.to_le_bytes().to_vec()).unwrap();
    }
    opening.commit().await.unwrap().committed().unwrap();
    let locks: Arc<Vec<Mutex<()>>> = Arc::new((0..ACCOUNTS).map(|_| Mutex::new(())).collect());
    let (moved, several) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let counts = (moved.clone(), several.clone());
    let of = |task| tokio::spawn(transfers(volume.clone(), locks.clone(), task, counts.clone(), stop.clone()));
    let tasks: Vec<_> = (0..TASKS).map(of).collect();
    let wanted = EACH * ACCOUNTS as u64;
    for round in 0..3 {
        let then = format!("round-{round}");
        tokio::task::block_in_place(|| {
            nodes.cli(&["snapshot", "create", name, "--name", &then]);
            nodes.kill_head(name);
        });
        let before = moved.load(Ordering::Relaxed);
        let far = async {
            while moved.load(Ordering::Relaxed) < before + 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::support::PATIENCE, far).await.expect("it goes on without the head");
        let past = Volume::open_snapshot(&cluster, name, &then).await.unwrap();
        assert_eq!(sum(&past).await, wanted, "in the snapshot of round {round}");
    }
    let other = Cluster::connect_as(&addresses, "bank").await.unwrap();
    let again = Volume::attach(&other, name).await.unwrap();
    assert_eq!(sum(&again).await, wanted, "after {} transfers", moved.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(sum(&again).await, wanted, "nothing came late");
    other.close().await;
    cluster.close().await;
    several.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bank_loses_nothing_when_heads_are_killed() {
    assert_eq!(run("demo").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_whose_accounts_lie_in_several_shards() {
    assert!(run("wide").await > 100);
}

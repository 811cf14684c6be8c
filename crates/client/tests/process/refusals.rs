//! Things that can't be done, and what is said of them. Nothing of them is half done.

use crate::support::Nodes;
use freebs::{
    Cluster, ErrorKind, INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, INTERVAL_RUNS_MAX, Interval, Outcome, Volume,
};

const BLOCK: u64 = 4096;

/// The text of an interval that is aborted for being of this kind.
async fn aborted(interval: Interval) -> String {
    match interval.commit().await.expect("its outcome is known") {
        Outcome::Aborted { why } => {
            assert_eq!(why.kind, ErrorKind::Invalid);
            why.to_string()
        }
        Outcome::Committed { places } => panic!("it was committed at {places:?}"),
    }
}

async fn limits(volume: &Volume) {
    let size = volume.size();
    let mut interval = volume.interval().unwrap();
    assert!(interval.write(size - 1, "ab").unwrap_err().to_string().contains("past the end"));
    assert!(interval.trim(u64::MAX, 2).unwrap_err().to_string().contains("past the end"));
    for _ in 0..INTERVAL_CHANGES_MAX {
        interval.write(0, "x").unwrap();
    }
    assert!(interval.write(0, "x").unwrap_err().to_string().contains("4,096 changes"));
    assert!(matches!(interval.commit().await, Ok(Outcome::Committed { .. })));
    let mut large = volume.interval().unwrap();
    large.write(1, vec![7; INTERVAL_BYTES_MAX]).unwrap();
    assert!(aborted(large).await.contains("4 MiB"));
    let mut scattered = volume.interval().unwrap();
    for i in 0..=INTERVAL_RUNS_MAX as u64 {
        scattered.write(i * 2 * BLOCK, "x").unwrap();
    }
    assert!(aborted(scattered).await.contains("1,024 runs"));
    let mut buffer = volume.interval().unwrap();
    let more = (0..5).map(|_| buffer.write(0, vec![1; INTERVAL_BYTES_MAX])).find_map(Result::err);
    assert!(more.expect("it is full").to_string().contains("16 MiB"));
    drop(buffer);
    assert_eq!(volume.read(0, 2).await.unwrap(), b"x\0", "nothing of those is there");
    assert_eq!(volume.read(2 * BLOCK, 1).await.unwrap(), [0]);
    assert!(volume.read(0, 65 << 20).await.unwrap_err().to_string().contains("past the end"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_done_is_said() {
    let nodes = Nodes::up();
    nodes.cli(&["volume", "create", "wide", "--size", "64M", "--shards", "4"]);
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let cluster = Cluster::connect(&addresses).await.unwrap();
    let kind = |e: Option<freebs::Error>| e.map(|e| e.kind);
    assert_eq!(kind(Volume::attach(&cluster, "none").await.err()), Some(ErrorKind::NotFound));
    let volume = Volume::attach(&cluster, "demo").await.unwrap();
    limits(&volume).await;
    // Twice, by this program and by another one.
    assert_eq!(kind(Volume::attach(&cluster, "demo").await.err()), Some(ErrorKind::Busy));
    let other = Cluster::connect_as(&addresses, "other").await.unwrap();
    assert_eq!(kind(Volume::attach(&other, "demo").await.err()), Some(ErrorKind::Busy));
    volume.write(0, "still here").await.unwrap();
    // One shard or several.
    let wide = Volume::attach(&cluster, "wide").await.unwrap();
    for (step, shards) in [(20, 4), (22, 1)] {
        let mut far = wide.interval().unwrap();
        (0..4).for_each(|i| far.write(i << step, "x").unwrap());
        assert!(matches!(far.commit().await, Ok(Outcome::Committed { places }) if places.len() == shards));
        assert_eq!(wide.read(3 << step, 1).await.unwrap(), b"x");
    }
    let mut large = wide.interval().unwrap();
    (0..4).for_each(|i| large.write(i << 22, vec![7; 1 << 20]).unwrap());
    large.write(1 << 20, "y").unwrap();
    assert!(aborted(large).await.contains("less 16 KiB"));
    assert_eq!(wide.read(1 << 20, 1).await.unwrap(), b"x");
    // A snapshot is read only.
    tokio::task::block_in_place(|| nodes.cli(&["snapshot", "create", "demo", "--name", "then"]));
    let past = Volume::open_snapshot(&cluster, "demo", "then").await.unwrap();
    assert_eq!(past.read(0, 5).await.unwrap(), b"still");
    assert!(past.write(0, "x").await.unwrap_err().to_string().contains("snapshot"));
    assert!(kind(past.interval().err()) == Some(ErrorKind::Invalid));
    // One that is open while its volume is given back.
    let mut open = volume.interval().unwrap();
    open.write(0, "never").unwrap();
    volume.clone().detach().await.unwrap();
    assert!(matches!(open.commit().await, Ok(Outcome::Aborted { why }) if why.kind == ErrorKind::Fenced));
    assert_eq!(kind(volume.read(0, 1).await.err()), Some(ErrorKind::Fenced));
    let again = Volume::attach(&other, "demo").await.unwrap();
    assert_eq!(again.read(0, 10).await.unwrap(), b"still here");
    other.close().await;
    cluster.close().await;
}

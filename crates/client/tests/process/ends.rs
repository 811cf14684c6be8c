//! How handles come to their end: fenced, given back, closed with their cluster.

use crate::support::Nodes;
use freebs::{Cluster, Error, ErrorKind, Outcome, Result, Volume};

const MIB: u64 = 1 << 20;

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind)
}

/// A handle that was fenced kept the volume's place in its program: the volume was `Busy` there until the handle had gone.
async fn a_fenced_handle_does_not_keep_the_volume(addresses: &[&str]) {
    let first = Cluster::connect_as(addresses, "twin").await.unwrap();
    let fenced = Volume::attach(&first, "demo").await.unwrap();
    fenced.write(0, "first").await.unwrap();
    let second = Cluster::connect_as(addresses, "twin").await.unwrap();
    let taken = Volume::attach(&second, "demo").await.unwrap();
    taken.write(0, "second").await.unwrap();
    assert_eq!(kind(fenced.read(0, 6).await), Some(ErrorKind::Fenced));
    let mut late = fenced.interval().unwrap();
    late.write(0, "late").unwrap();
    assert_eq!(kind(late.commit().await), Some(ErrorKind::Fenced));
    taken.detach().await.unwrap();
    let again = Volume::attach(&first, "demo").await.expect("its own old handle is not in its way");
    assert_eq!(again.read(0, 6).await.unwrap(), b"second");
    assert_eq!(kind(Volume::attach(&first, "demo").await), Some(ErrorKind::Busy), "this one is");
    // The old one's end takes nothing from the new one.
    drop(fenced);
    again.write(0, "third").await.unwrap();
    assert_eq!(kind(Volume::attach(&first, "demo").await), Some(ErrorKind::Busy));
    again.detach().await.unwrap();
    Volume::attach(&first, "demo").await.unwrap().detach().await.unwrap();
    second.close().await;
    first.close().await;
}

fn is_closed(e: &Error) -> bool {
    e.text.contains("closed")
}

/// Requests that were under way when the cluster was closed ended with `Fenced`, as if somebody had taken the volume.
async fn closing_is_not_called_fencing(addresses: &[&str]) {
    let cluster = Cluster::connect(addresses).await.unwrap();
    let volume = Volume::attach(&cluster, "demo").await.unwrap();
    let mut open = volume.interval().unwrap();
    open.write(0, "never").unwrap();
    let writes: Vec<_> = (0..60)
        .map(|i| {
            let volume = volume.clone();
            tokio::spawn(async move { volume.write(i * MIB, vec![i as u8 + 1; MIB as usize]).await })
        })
        .collect();
    while !volume.read(0, 1).await.is_ok_and(|byte| byte == [1]) {}
    cluster.clone().close().await;
    let mut cut_off = 0;
    for write in writes {
        if let Err(e) = write.await.unwrap() {
            assert!(e.kind == ErrorKind::Retry && is_closed(&e), "{e:?}");
            cut_off += 1;
        }
    }
    assert!(cut_off > 0, "all writes were done before the end");
    for late in [volume.read(0, 1).await.map(drop), volume.write(0, "x").await, volume.flush().await] {
        let e = late.unwrap_err();
        assert!(e.kind == ErrorKind::Fenced && is_closed(&e), "{e:?}");
    }
    assert!(matches!(open.commit().await, Ok(Outcome::Aborted { why }) if is_closed(&why)));
    assert!(is_closed(&Volume::attach(&cluster, "demo").await.err().expect("it is closed")));
    assert!(volume.detach().await.is_ok(), "it was given back already");
    cluster.close().await;
}

async fn names_are_checked(addresses: &[&str]) {
    let long = "n".repeat(129);
    for name in ["", "two words", "-x", ".x", "a/b", "über", "a\0b", &long] {
        let why = Cluster::connect_as(addresses, name).await.err().unwrap_or_else(|| panic!("{name:?} was taken"));
        assert_eq!(why.kind, ErrorKind::Invalid, "{name:?}: {why}");
    }
    Cluster::connect_as(addresses, &long[1..]).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_that_ended_say_so() {
    let nodes = Nodes::up();
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    names_are_checked(&addresses).await;
    a_fenced_handle_does_not_keep_the_volume(&addresses).await;
    closing_is_not_called_fencing(&addresses).await;
}
